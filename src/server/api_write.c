/* Pieces of answers. */
#include <math.h>
#include <string.h>

#include "server/api_gen.h"
#include "text/utf8.h"

void put_string(strbuf *b, const char *s, size_t n)
{
    (void)json_write_string(b, n != 0 ? s : "", n);
}

void put_text(strbuf *b, const char *s)
{
    put_string(b, s, strlen(s));
}

void put_real(strbuf *b, double x)
{
    (void)strbuf_printf(b, "%.9g", isnan(x) ? 0.0 : x > 9999 ? 9999.0 : x < -9999 ? -9999.0 : x);
}

void put_model(strbuf *b, const gen_job *job)
{
    const json_value *m = job->in.model;
    if (m != NULL)
        put_string(b, m->text, m->n_text);
    else
        put_text(b, job->ctx->model);
}

void put_head(strbuf *b, const gen_job *job, const char *object)
{
    (void)strbuf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", job->id,
                        object, (long long)job->created);
    put_model(b, job);
    (void)strbuf_printf(b, ",\"system_fingerprint\":\"%s\"", job->ctx->fingerprint);
}

const char *finish_name(gen_finish f)
{
    switch (f) {
    case GEN_LENGTH:
        return "length";
    case GEN_CALLS:
        return "tool_calls";
    case GEN_STOP:
    case GEN_STOP_STRING:
    case GEN_CANCELLED:
        return "stop";
    case GEN_FAILED:
        return "error";
    }
    return "stop";
}

void put_usage(strbuf *b, const gen_job *job)
{
    const uint32_t n_prompt = gen_n_prompt(job);
    unsigned n_generated = 0, n_thinking = 0;
    for (uint32_t i = 0; i < job->in.n; i++) {
        n_generated += job->choices[i].result.n_generated;
        n_thinking += job->choices[i].result.n_thinking;
    }
    (void)strbuf_printf(b,
                        "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,"
                        "\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                        "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
                        n_prompt, n_generated, n_prompt + n_generated, job->choices[0].n_cached,
                        n_thinking);
}

static void put_rate(strbuf *b, const char *name, double n, double seconds)
{
    (void)strbuf_printf(b, ",\"%s\":", name);
    (void)strbuf_printf(b, "%.2f", seconds > 0 ? n / seconds : 0.0);
}

void put_timings(strbuf *b, const gen_job *job)
{
    const sched_result *r = &job->choices[0].result;
    const uint32_t computed = r->n_prompt - r->n_cached;
    (void)strbuf_printf(b, "\"timings\":{\"queue_ms\":%.3f,\"cache_n\":%u,\"prompt_n\":%u",
                        1e3 * r->queue_seconds, r->n_cached, computed);
    (void)strbuf_printf(b, ",\"prompt_ms\":%.3f", 1e3 * r->prefill_seconds);
    put_rate(b, "prompt_per_second", computed, r->prefill_seconds);
    (void)strbuf_printf(b, ",\"predicted_n\":%u,\"predicted_ms\":%.3f", r->n_generated,
                        1e3 * r->decode_seconds);
    put_rate(b, "predicted_per_second", r->n_generated, r->decode_seconds);
    if (r->diverged_at == SCHED_NO_POSITION) {
        (void)strbuf_puts(b, ",\"diverged_at\":null,\"diverged_message\":null}");
        return;
    }
    (void)strbuf_printf(b, ",\"diverged_at\":%u", r->diverged_at);
    const uint32_t message = gen_message_at(job, r->diverged_at);
    if (message == HTTP_NO_POSITION)
        (void)strbuf_puts(b, ",\"diverged_message\":null}");
    else
        (void)strbuf_printf(b, ",\"diverged_message\":%u}", message);
}

void put_token(strbuf *b, const api_ctx *ctx, int32_t id)
{
    size_t n;
    const char *s = calla_tokenizer_bytes(ctx->tok, id, &n);
    strbuf text = {0};
    (void)utf8_repair(&text, n != 0 ? s : "", n);
    if (text.failed) b->failed = true;
    put_string(b, text.data, text.len);
    strbuf_deinit(&text);
}

void put_token_bytes(strbuf *b, const api_ctx *ctx, int32_t id)
{
    size_t n;
    const char *s = calla_tokenizer_bytes(ctx->tok, id, &n);
    (void)strbuf_putc(b, '[');
    for (size_t i = 0; i < n; i++)
        (void)strbuf_printf(b, "%s%u", i != 0 ? "," : "", (unsigned)(unsigned char)s[i]);
    (void)strbuf_putc(b, ']');
}

static void put_row(strbuf *b, const api_ctx *ctx, int32_t id, float logprob)
{
    (void)strbuf_puts(b, "{\"token\":");
    put_token(b, ctx, id);
    (void)strbuf_puts(b, ",\"logprob\":");
    put_real(b, (double)logprob);
    (void)strbuf_puts(b, ",\"bytes\":");
    put_token_bytes(b, ctx, id);
}

void put_logprobs(strbuf *b, const gen_choice *c, size_t from, size_t to)
{
    const api_ctx *ctx = c->job->ctx;
    const size_t stride = c->job->in.n_top;
    for (size_t i = from; i < to; i++) {
        const gen_logprob *row = &c->logprobs[i];
        if (i != from) (void)strbuf_putc(b, ',');
        put_row(b, ctx, row->id, row->logprob);
        (void)strbuf_puts(b, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < row->n_top; k++) {
            const sched_top *top = &c->tops[i * stride + k];
            if (k != 0) (void)strbuf_putc(b, ',');
            put_row(b, ctx, top->id, top->logprob);
            (void)strbuf_putc(b, '}');
        }
        (void)strbuf_puts(b, "]}");
    }
}
