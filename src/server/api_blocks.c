#include "server/api_blocks.h"

static void close_block(blocks *s, gen_job *job, const block_hooks *hooks, bool complete)
{
    if (s->now.kind == BLOCK_NONE) return;
    s->now.complete = complete;
    hooks->close(job, &s->now);
    s->now.kind = BLOCK_NONE;
}

static void open_block(blocks *s, gen_job *job, const block_hooks *hooks, block_kind kind)
{
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_"};
    s->now.kind = kind;
    s->now.n_closing = 0;
    s->now.index = s->n++;
    strbuf_clear(&s->now.text);
    random_id(s->now.id, kind == BLOCK_CALL && s->now.custom ? "ctc_" : prefixes[kind]);
    hooks->open(job, &s->now);
}

static void add(blocks *s, gen_job *job, const block_hooks *hooks, const gen_event *ev)
{
    (void)strbuf_append(&s->now.text, ev->text, ev->n);
    hooks->delta(job, &s->now, ev->text, ev->n);
}

static void add_text(blocks *s, gen_job *job, const block_hooks *hooks, block_kind kind,
                     const gen_event *ev)
{
    if (s->now.kind != kind) {
        close_block(s, job, hooks, true);
        open_block(s, job, hooks, kind);
    }
    add(s, job, hooks, ev);
}

void blocks_event(blocks *s, gen_job *job, const gen_choice *c, const gen_event *ev,
                  const block_hooks *hooks)
{
    switch (ev->kind) {
    case GEN_BEGIN:
        break;
    case GEN_REASONING:
        add_text(s, job, hooks, BLOCK_REASONING, ev);
        break;
    case GEN_CONTENT:
        add_text(s, job, hooks, BLOCK_TEXT, ev);
        break;
    case GEN_CALL:
        close_block(s, job, hooks, true);
        strbuf_clear(&s->now.name);
        (void)strbuf_append(&s->now.name, ev->text, ev->n);
        s->now.call_id = c->calls[ev->index].id;
        s->now.custom = c->calls[ev->index].custom;
        open_block(s, job, hooks, BLOCK_CALL);
        break;
    case GEN_ARGS:
        add(s, job, hooks, ev);
        break;
    case GEN_CALL_END:
        s->now.closing = ev->text;
        s->now.n_closing = ev->n;
        close_block(s, job, hooks, ev->complete);
        break;
    case GEN_END:
        close_block(s, job, hooks, c->finish != GEN_LENGTH);
        break;
    }
}

void blocks_deinit(blocks *s)
{
    strbuf_deinit(&s->now.text);
    strbuf_deinit(&s->now.name);
}
