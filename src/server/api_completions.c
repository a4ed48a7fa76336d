/* POST /v1/completions: raw text or token ids in, raw text out. */
#include <string.h>

#include "server/api_gen.h"

#define OBJECT     "text_completion"
#define AT(member) offsetof(completion_params, member)

typedef struct completion_params {
    api_bool echo;
    api_int n, best_of, logprobs;
    const json_value *suffix, *stream_options;
} completion_params;

static const api_field completion_fields[] = {
    {"echo", API_BOOL, AT(echo), 0, 0},
    {"n", API_INT, AT(n), 1, API_CHOICES_MAX},
    {"best_of", API_INT, AT(best_of), 1, API_CHOICES_MAX},
    {"logprobs", API_INT, AT(logprobs), 0, SCHED_TOP_LOGPROBS_MAX},
    {"suffix", API_STRING, AT(suffix), 0, 0},
    {"stream_options", API_OBJECT, AT(stream_options), 0, 0},
};

typedef struct completion_wire {
    bool echo;
} completion_wire;

/* ---- Request ---- */

static bool read_text(gen_job *job, const json_value *v, const char *path, api_prompt *out,
                      api_error *e)
{
    calla_error err;
    if (tokenizer_encode_spans(job->ctx->tok, v->text, v->n_text, NULL, 0, &out->ids, &err) !=
        CALLA_OK)
        return api_from(e, path, &err);
    return true;
}

static bool read_ids(gen_job *job, const json_value *v, const char *path, api_prompt *out,
                     api_error *e)
{
    size_t i = 0;
    for (const json_value *m = v->first; m != NULL; m = m->next, i++) {
        int64_t id;
        if (!json_int(m, &id) || id < 0 || id >= job->ctx->info.n_tokens)
            return api_bad(e, path_of("%s[%zu]", path, i).s, "expected a token id from 0 to %d",
                           job->ctx->info.n_tokens - 1);
        if (!id_list_push(&out->ids, (int32_t)id)) return api_no_memory(e);
    }
    return true;
}

static bool read_prompt(gen_job *job, const json_value *v, const char *path, api_prompt *out,
                        api_error *e)
{
    if (v->type == JSON_STRING) return read_text(job, v, path, out, e);
    if (v->type == JSON_ARRAY && v->first != NULL && v->first->type == JSON_NUMBER)
        return read_ids(job, v, path, out, e);
    return api_bad(e, path, "expected a string or an array of token ids, found %s",
                   json_type_name(v));
}

static bool read_prompts(gen_job *job, api_error *e)
{
    gen_request *in = &job->in;
    const json_value *v = json_get(job->body.root, "prompt");
    if (v == NULL || v->type == JSON_NULL)
        return api_bad(e, "prompt", "expected a string or an array, found nothing");
    if (v->type != JSON_ARRAY || v->first == NULL || v->first->type == JSON_NUMBER)
        return read_prompt(job, v, "prompt", &in->prompt, e);
    if (v->n_items > API_CHOICES_MAX / in->n)
        return api_bad(e, "prompt", "expected at most %u prompts, or choices of all prompts",
                       API_CHOICES_MAX);
    in->n_prompts = (uint32_t)v->n_items;
    in->n *= in->n_prompts;
    size_t i = 0;
    for (const json_value *p = v->first; p != NULL; p = p->next, i++)
        if (!read_prompt(job, p, path_of("prompt[%zu]", i).s,
                         i == 0 ? &in->prompt : &in->more[i - 1], e))
            return false;
    return true;
}

static bool completions_parse(gen_job *job, api_error *e)
{
    completion_params p = {0};
    completion_wire *w = job->wire;
    gen_sampling s;
    if (!api_read(job->body.root, "", completion_fields,
                  sizeof completion_fields / sizeof *completion_fields, &p, e) ||
        !gen_read_sampling(job, &s, e) || !gen_read_stops(job, "stop", e) ||
        !gen_read_limit(job, "max_tokens", e) ||
        !gen_read_format(job, json_get(job->body.root, "response_format"), "response_format",
                         "json_schema", e) ||
        !gen_read_stream_options(job, p.stream_options, e))
        return false;
    w->echo = p.echo.value;
    if (p.suffix != NULL && p.suffix->n_text != 0)
        return api_bad(e, "suffix", "inserting text is not supported");
    if (p.n.set) job->in.n = (uint32_t)p.n.value;
    if (p.best_of.set && p.best_of.value != job->in.n)
        return api_bad(e, "best_of", "only the value of n (%u) is supported", job->in.n);
    job->in.logprobs = p.logprobs.set;
    job->in.n_top = (uint32_t)p.logprobs.value;
    if (w->echo && p.logprobs.set)
        return api_bad(e, "logprobs", "they are not known for an echoed prompt");
    return read_prompts(job, e);
}

/* ---- Answer ---- */

static void put_tops(strbuf *b, const gen_choice *c, size_t i)
{
    const gen_logprob *row = &c->logprobs[i];
    (void)strbuf_putc(b, '{');
    for (uint32_t k = 0; k < row->n_top; k++) {
        const sched_top *top = &c->tops[i * c->job->in.n_top + k];
        if (k != 0) (void)strbuf_putc(b, ',');
        put_token(b, c->job->ctx, top->id);
        (void)strbuf_putc(b, ':');
        put_real(b, (double)top->logprob);
    }
    (void)strbuf_putc(b, '}');
}

/* The old form: columns. */
static void put_columns(strbuf *b, const gen_choice *c, size_t from, size_t to)
{
    (void)strbuf_puts(b, "{\"tokens\":[");
    for (size_t i = from; i < to; i++) {
        if (i != from) (void)strbuf_putc(b, ',');
        put_token(b, c->job->ctx, c->logprobs[i].id);
    }
    (void)strbuf_puts(b, "],\"token_logprobs\":[");
    for (size_t i = from; i < to; i++) {
        if (i != from) (void)strbuf_putc(b, ',');
        put_real(b, (double)c->logprobs[i].logprob);
    }
    (void)strbuf_puts(b, "],\"top_logprobs\":[");
    for (size_t i = from; i < to; i++) {
        if (i != from) (void)strbuf_putc(b, ',');
        put_tops(b, c, i);
    }
    (void)strbuf_puts(b, "],\"text_offset\":[");
    for (size_t i = from; i < to; i++)
        (void)strbuf_printf(b, "%s%zu", i != from ? "," : "", c->logprobs[i].before);
    (void)strbuf_puts(b, "]}");
}

static void put_choice(strbuf *b, const gen_choice *c, const char *s, size_t n, size_t to,
                       const char *finish)
{
    (void)strbuf_printf(b, "{\"index\":%u,\"text\":", c->index);
    put_string(b, s, n);
    (void)strbuf_puts(b, ",\"logprobs\":");
    if (c->job->in.logprobs)
        put_columns(b, c, c->n_sent, to);
    else
        (void)strbuf_puts(b, "null");
    if (finish != NULL)
        (void)strbuf_printf(b, ",\"finish_reason\":\"%s\"}", finish);
    else
        (void)strbuf_puts(b, ",\"finish_reason\":null}");
}

/* The prompt's text, when it is to be echoed. */
static void put_prompt(strbuf *text, const gen_choice *c)
{
    const api_prompt *p = gen_prompt(c);
    char *s;
    size_t n;
    if (!((const completion_wire *)c->job->wire)->echo) return;
    if (calla_tokenizer_decode(c->job->ctx->tok, p->ids.data, p->ids.len, false, &s, &n, NULL) !=
        CALLA_OK) {
        text->failed = true;
        return;
    }
    (void)strbuf_append(text, s, n);
    calla_free(s);
}

static void completions_answer(gen_job *job, strbuf *out)
{
    put_head(out, job, OBJECT);
    (void)strbuf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < job->in.n; i++) {
        const gen_choice *c = &job->choices[i];
        strbuf text = {0};
        put_prompt(&text, c);
        (void)strbuf_append(&text, c->answer.content.data, c->answer.content.len);
        if (text.failed) out->failed = true;
        if (i != 0) (void)strbuf_putc(out, ',');
        put_choice(out, c, text.data, text.len, c->n_logprobs, finish_name(c->finish));
        strbuf_deinit(&text);
    }
    (void)strbuf_puts(out, "],");
    put_usage(out, job);
    (void)strbuf_putc(out, ',');
    put_timings(out, job);
    (void)strbuf_putc(out, '}');
}

/* ---- Stream ---- */

static void send_choice(gen_job *job, gen_choice *c, const char *s, size_t n, const char *finish)
{
    size_t to = c->n_sent;
    while (to < c->n_logprobs && (finish != NULL || c->logprobs[to].before < c->answer.content.len))
        to++;
    put_head(&job->line, job, OBJECT);
    (void)strbuf_puts(&job->line, ",\"choices\":[");
    put_choice(&job->line, c, s, n, to, finish);
    (void)strbuf_puts(&job->line, "]}");
    c->n_sent = to;
    gen_send(job, NULL);
}

static void completions_event(gen_job *job, gen_choice *c, const gen_event *ev)
{
    if (ev->kind == GEN_BEGIN) {
        strbuf text = {0};
        put_prompt(&text, c);
        if (text.len != 0) send_choice(job, c, text.data, text.len, NULL);
        strbuf_deinit(&text);
    } else if (ev->kind == GEN_CONTENT) {
        send_choice(job, c, ev->text, ev->n, NULL);
    } else if (ev->kind == GEN_END && c->finish == GEN_FAILED) {
        gen_send_failure(job, c, NULL);
    } else if (ev->kind == GEN_END) {
        send_choice(job, c, "", 0, finish_name(c->finish));
    }
}

static void completions_finish(gen_job *job)
{
    gen_send_tail(job, OBJECT);
}

static const gen_protocol completions = {.parse = completions_parse,
                                         .id_prefix = "cmpl-",
                                         .prompt_name = "prompt",
                                         .call_prefix = "call_",
                                         .wire_bytes = sizeof(completion_wire),
                                         .event = completions_event,
                                         .finish = completions_finish,
                                         .answer = completions_answer};

void api_completions(api_ctx *ctx, http_request *req)
{
    gen_handle(ctx, req, &completions);
}
