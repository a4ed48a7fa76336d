#include "text/output.h"

#include <string.h>

static output_call *add_call(output_result *r)
{
    if (r->n_calls == r->cap_calls) {
        const size_t cap = r->cap_calls == 0 ? 4 : r->cap_calls * 2;
        output_call *grown = mem_resize(r->calls, cap * sizeof *grown);
        if (grown == NULL) return NULL;
        r->calls = grown;
        r->cap_calls = cap;
    }
    output_call *c = &r->calls[r->n_calls++];
    memset(c, 0, sizeof *c);
    return c;
}

static bool begin_call(output_result *r, const output_event *e)
{
    output_call *c = add_call(r);
    if (c == NULL) return false;
    c->name = mem_memdup(e->text, e->n);
    c->n_name = c->name != NULL ? e->n : 0;
    return c->name != NULL;
}

static bool store(output_result *r, const output_event *e)
{
    switch (e->kind) {
    case OUTPUT_REASONING:
        return strbuf_append(&r->reasoning, e->text, e->n);
    case OUTPUT_CONTENT:
        return strbuf_append(&r->content, e->text, e->n);
    case OUTPUT_CALL_BEGIN:
        return begin_call(r, e);
    case OUTPUT_CALL_ARGS:
        return strbuf_append(&r->calls[r->n_calls - 1].arguments, e->text, e->n);
    case OUTPUT_CALL_END:
        r->calls[r->n_calls - 1].complete = e->complete;
        return strbuf_append(&r->calls[r->n_calls - 1].arguments, e->text, e->n);
    }
    return true;
}

void output_result_event(void *result, const output_event *event)
{
    output_result *r = result;
    if (!r->failed) r->failed = !store(r, event);
}

void output_result_deinit(output_result *r)
{
    for (size_t i = 0; i < r->n_calls; i++) {
        mem_free(r->calls[i].name);
        strbuf_deinit(&r->calls[i].arguments);
    }
    mem_free(r->calls);
    strbuf_deinit(&r->reasoning);
    strbuf_deinit(&r->content);
    memset(r, 0, sizeof *r);
}
