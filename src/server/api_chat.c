/* POST /v1/chat/completions */
#include <string.h>

#include "server/api_gen.h"

#define AT(member) offsetof(chat_params, member)

typedef struct chat_params {
    const json_value *messages, *tools, *stream_options, *reasoning, *functions, *modalities;
    api_bool parallel, logprobs;
    api_int n, top_logprobs;
} chat_params;

static const api_field chat_fields[] = {
    {"messages", API_ARRAY, AT(messages), 0, 0},
    {"tools", API_ARRAY, AT(tools), 0, 0},
    {"stream_options", API_OBJECT, AT(stream_options), 0, 0},
    {"reasoning", API_OBJECT, AT(reasoning), 0, 0},
    {"functions", API_ARRAY, AT(functions), 0, 0},
    {"modalities", API_ARRAY, AT(modalities), 0, 0},
    {"parallel_tool_calls", API_BOOL, AT(parallel), 0, 0},
    {"logprobs", API_BOOL, AT(logprobs), 0, 0},
    {"n", API_INT, AT(n), 1, API_CHOICES_MAX},
    {"top_logprobs", API_INT, AT(top_logprobs), 0, SCHED_TOP_LOGPROBS_MAX},
};

/* ---- Request ---- */

static bool read_logprobs(gen_job *job, const chat_params *p, api_error *e)
{
    job->in.logprobs = p->logprobs.value;
    if (p->top_logprobs.set && p->top_logprobs.value > 0 && !p->logprobs.value)
        return api_bad(e, "top_logprobs", "it needs \"logprobs\": true");
    job->in.n_top = (uint32_t)p->top_logprobs.value;
    return true;
}

/* OpenRouter's form: {"effort", "max_tokens", "enabled"}. */
static bool read_reasoning(const chat_params *p, gen_sampling *s, const json_value **effort,
                           const char **path, api_error *e)
{
    struct {
        api_int max_tokens;
        api_bool enabled;
    } r = {0};
    const api_field fields[] = {
        {"max_tokens", API_INT, 0, 0, 2147483647},
        {"enabled", API_BOOL, (size_t)((char *)&r.enabled - (char *)&r), 0, 0},
    };
    if (p->reasoning == NULL) return true;
    if (!api_read(p->reasoning, "reasoning", fields, 2, &r, e)) return false;
    if (r.max_tokens.set && !s->thinking_budget.set) s->thinking_budget = r.max_tokens;
    if (r.enabled.set && !s->enable_thinking.set) s->enable_thinking = r.enabled;
    if (*effort == NULL) {
        *effort = json_get(p->reasoning, "effort");
        *path = "reasoning.effort";
    }
    return true;
}

/* What would be missed, were it passed over. */
static bool refuse_unsupported(const chat_params *p, api_error *e)
{
    if (p->functions != NULL && p->functions->n_items != 0)
        return api_bad(e, "functions", "\"tools\" have taken their place, and are supported");
    size_t i = 0;
    for (const json_value *m = p->modalities != NULL ? p->modalities->first : NULL; m != NULL;
         m = m->next, i++)
        if (!json_is(m, "text"))
            return api_bad(e, path_of("modalities[%zu]", i).s, "this model writes text only");
    return true;
}

static bool chat_parse(gen_job *job, api_error *e)
{
    const json_value *root = job->body.root;
    const json_value *effort = json_get(root, "reasoning_effort");
    const char *effort_path = "reasoning_effort";
    chat_params p = {0};
    gen_sampling s;
    calla_chat_options options = {0};
    if (!api_read(root, "", chat_fields, sizeof chat_fields / sizeof *chat_fields, &p, e) ||
        !refuse_unsupported(&p, e) || !gen_read_sampling(job, &s, e) ||
        !gen_read_stops(job, "stop", e) || !gen_read_limit(job, "max_tokens", e) ||
        !gen_read_limit(job, "max_completion_tokens", e) || !read_logprobs(job, &p, e) ||
        !gen_read_stream_options(job, p.stream_options, e) ||
        !read_reasoning(&p, &s, &effort, &effort_path, e) ||
        !gen_read_thinking(job, &s, effort, effort_path, &options, e) ||
        !gen_set_tools(job, p.tools, e) ||
        !gen_read_tool_choice(job, json_get(root, "tool_choice"), e) ||
        !gen_read_format(job, json_get(root, "response_format"), "response_format", "json_schema",
                         e))
        return false;
    if (p.n.set) job->in.n = (uint32_t)p.n.value;
    job->in.serial = p.parallel.set && !p.parallel.value;
    return gen_chat_prompt(job, p.messages, &options, e);
}

/* ---- Answer ---- */

static const char *call_type(const gen_call *c)
{
    return c->custom ? "custom" : "function";
}

static const char *text_name(const gen_call *c)
{
    return c->custom ? "input" : "arguments";
}

static void put_calls(strbuf *b, const gen_choice *c)
{
    (void)strbuf_puts(b, ",\"tool_calls\":[");
    for (size_t i = 0; i < c->answer.n_calls; i++) {
        const output_call *call = &c->answer.calls[i];
        const char *type = call_type(&c->calls[i]);
        (void)strbuf_printf(b,
                            "%s{\"id\":\"%s\",\"type\":\"%s\",\"%s\":{\"name\":", i != 0 ? "," : "",
                            c->calls[i].id, type, type);
        put_string(b, call->name, call->n_name);
        (void)strbuf_printf(b, ",\"%s\":", text_name(&c->calls[i]));
        put_string(b, call->arguments.data, call->arguments.len);
        (void)strbuf_puts(b, "}}");
    }
    (void)strbuf_putc(b, ']');
}

static void put_choice(strbuf *b, const gen_choice *c)
{
    const output_result *a = &c->answer;
    (void)strbuf_printf(b,
                        "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (a->content.len != 0 || (a->n_calls == 0 && a->reasoning.len == 0))
        put_string(b, a->content.data, a->content.len);
    else
        (void)strbuf_puts(b, "null");
    (void)strbuf_puts(b, ",\"refusal\":null");
    if (a->reasoning.len != 0) {
        (void)strbuf_puts(b, ",\"reasoning_content\":");
        put_string(b, a->reasoning.data, a->reasoning.len);
    }
    if (a->n_calls != 0) put_calls(b, c);
    (void)strbuf_puts(b, "},\"logprobs\":");
    if (c->job->in.logprobs) {
        (void)strbuf_puts(b, "{\"content\":[");
        put_logprobs(b, c, 0, c->n_logprobs);
        (void)strbuf_puts(b, "],\"refusal\":null}");
    } else {
        (void)strbuf_puts(b, "null");
    }
    (void)strbuf_printf(b, ",\"finish_reason\":\"%s\"}", finish_name(c->finish));
}

static void chat_answer(gen_job *job, strbuf *out)
{
    put_head(out, job, "chat.completion");
    (void)strbuf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < job->in.n; i++) {
        if (i != 0) (void)strbuf_putc(out, ',');
        put_choice(out, &job->choices[i]);
    }
    (void)strbuf_puts(out, "],");
    put_usage(out, job);
    (void)strbuf_putc(out, ',');
    put_timings(out, job);
    (void)strbuf_putc(out, '}');
}

/* ---- Stream ---- */

/* Rows of tokens whose content is out; at the end all. */
static void put_chunk_logprobs(strbuf *b, gen_choice *c, bool last)
{
    size_t to = c->n_sent;
    while (to < c->n_logprobs && (last || c->logprobs[to].before < c->answer.content.len))
        to++;
    if (!c->job->in.logprobs || to == c->n_sent) return;
    (void)strbuf_puts(b, ",\"logprobs\":{\"content\":[");
    put_logprobs(b, c, c->n_sent, to);
    (void)strbuf_puts(b, "],\"refusal\":null}");
    c->n_sent = to;
}

static void chunk_begin(gen_job *job, const gen_choice *c)
{
    put_head(&job->line, job, "chat.completion.chunk");
    (void)strbuf_printf(&job->line, ",\"choices\":[{\"index\":%u,\"delta\":{", c->index);
}

static void chunk_end(gen_job *job, const char *finish)
{
    if (finish != NULL)
        (void)strbuf_printf(&job->line, ",\"finish_reason\":\"%s\"}]", finish);
    else
        (void)strbuf_puts(&job->line, ",\"finish_reason\":null}]");
    if (job->in.include_usage) (void)strbuf_puts(&job->line, ",\"usage\":null");
    (void)strbuf_putc(&job->line, '}');
    gen_send(job, NULL);
}

static void put_call_delta(gen_job *job, const gen_choice *c, const gen_event *ev)
{
    const gen_call *call = &c->calls[ev->index];
    strbuf *b = &job->line;
    (void)strbuf_printf(b, "\"tool_calls\":[{\"index\":%u,", ev->index);
    if (ev->kind == GEN_CALL) {
        (void)strbuf_printf(b, "\"id\":\"%s\",\"type\":\"%s\",\"%s\":{\"name\":", call->id,
                            call_type(call), call_type(call));
        put_string(b, ev->text, ev->n);
        (void)strbuf_printf(b, ",\"%s\":\"\"}}]", text_name(call));
    } else {
        (void)strbuf_printf(b, "\"%s\":{\"%s\":", call_type(call), text_name(call));
        put_string(b, ev->text, ev->n);
        (void)strbuf_puts(b, "}}]");
    }
}

static void chat_end(gen_job *job, gen_choice *c)
{
    if (c->finish == GEN_FAILED) {
        gen_send_failure(job, c, NULL);
        return;
    }
    chunk_begin(job, c);
    (void)strbuf_putc(&job->line, '}');
    put_chunk_logprobs(&job->line, c, true);
    chunk_end(job, finish_name(c->finish));
}

static void chat_event(gen_job *job, gen_choice *c, const gen_event *ev)
{
    strbuf *b = &job->line;
    if (ev->kind == GEN_CALL_END) return;
    if (ev->kind == GEN_END) {
        chat_end(job, c);
        return;
    }
    chunk_begin(job, c);
    switch (ev->kind) {
    case GEN_BEGIN:
        (void)strbuf_puts(b, "\"role\":\"assistant\",\"content\":\"\"}");
        break;
    case GEN_REASONING:
        (void)strbuf_puts(b, "\"reasoning_content\":");
        put_string(b, ev->text, ev->n);
        (void)strbuf_putc(b, '}');
        break;
    case GEN_CONTENT:
        (void)strbuf_puts(b, "\"content\":");
        put_string(b, ev->text, ev->n);
        (void)strbuf_putc(b, '}');
        put_chunk_logprobs(b, c, false);
        break;
    default:
        put_call_delta(job, c, ev);
        (void)strbuf_putc(b, '}');
        break;
    }
    chunk_end(job, NULL);
}

static void chat_finish(gen_job *job)
{
    gen_send_tail(job, "chat.completion.chunk");
}

const gen_protocol gen_chat = {.parse = chat_parse,
                               .id_prefix = "chatcmpl-",
                               .prompt_name = "messages",
                               .call_prefix = "call_",
                               .event = chat_event,
                               .finish = chat_finish,
                               .answer = chat_answer};

void api_chat(api_ctx *ctx, http_request *req)
{
    gen_handle(ctx, req, &gen_chat);
}
