/* Life of a job; the context. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/api_gen.h"

#define REPLAY_BYTES (UINT64_C(32) << 20)

/* ---- Context ---- */

static void name_model(api_ctx *ctx, const char *name)
{
    const char *dir = ctx->info.model_dir != NULL ? ctx->info.model_dir : "calla";
    size_t n = strlen(dir);
    if (name == NULL) {
        while (n > 1 && dir[n - 1] == '/')
            n--;
        size_t begin = n;
        while (begin > 0 && dir[begin - 1] != '/')
            begin--;
        (void)snprintf(ctx->model, sizeof ctx->model, "%.*s", (int)(n - begin), dir + begin);
    } else {
        (void)snprintf(ctx->model, sizeof ctx->model, "%s", name);
    }
}

calla_status api_create(api_ctx **out, const api_options *options, calla_error *err)
{
    api_ctx *ctx = mem_alloc(sizeof *ctx);
    sched_stats stats;
    *out = NULL;
    if (ctx == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the API");
    ctx->engine = options->engine;
    ctx->scheduler = options->scheduler;
    ctx->tok = calla_engine_tokenizer(options->engine);
    calla_engine_get_info(options->engine, &ctx->info);
    if (options->scheduler != NULL) {
        scheduler_stats(options->scheduler, &stats);
        ctx->n_ctx = stats.n_ctx;
    }
    const time_t now = time(NULL);
    struct tm utc;
    ctx->created = (int64_t)now;
    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(ctx->created_at, sizeof ctx->created_at, "%Y-%m-%dT%H:%M:%SZ", &utc);
    name_model(ctx, options->model_name);
    (void)snprintf(ctx->fingerprint, sizeof ctx->fingerprint, "calla_%s", CALLA_VERSION);
    const uint64_t bytes = options->replay_bytes != 0 ? options->replay_bytes : REPLAY_BYTES;
    const calla_status st = replay_create(&ctx->replay, bytes, err);
    if (st != CALLA_OK) {
        mem_free(ctx);
        return st;
    }
    *out = ctx;
    return CALLA_OK;
}

void api_destroy(api_ctx *ctx)
{
    if (ctx == NULL) return;
    replay_destroy(ctx->replay);
    mem_free(ctx);
}

const http_route *api_routes(size_t *n)
{
    static const http_route routes[] = {
        {"POST", "/v1/chat/completions", api_chat, 0},
        {"POST", "/v1/completions", api_completions, 0},
        {"POST", "/v1/responses", api_responses, 0},
        {"POST", "/v1/messages", api_messages, HTTP_ANTHROPIC},
        {"POST", "/v1/messages/count_tokens", api_count_tokens, HTTP_ANTHROPIC},
        {"GET", "/v1/models", api_models, 0},
        {"GET", "/v1/models/*", api_model, 0},
        {"POST", "/tokenize", api_tokenize, 0},
        {"POST", "/detokenize", api_detokenize, 0},
    };
    *n = sizeof routes / sizeof *routes;
    return routes;
}

/* ---- Jobs ---- */

void api_respond_error(http_request *req, const api_error *e)
{
    const http_error he = {
        .status = e->status, .param = e->param[0] != '\0' ? e->param : NULL, .code = e->code};
    http_respond_error(req, &he, "%s", e->message);
}

gen_job *gen_create(api_ctx *ctx, const gen_protocol *protocol, const char *body, size_t n_body,
                    api_error *e)
{
    const json_limits limits = {
        .what = "body", .max_depth = API_JSON_DEPTH, .max_nodes = API_JSON_NODES};
    calla_error err;
    gen_job *job = mem_alloc(sizeof *job);
    if (job == NULL) {
        (void)api_no_memory(e);
        return NULL;
    }
    *job = (gen_job){.ctx = ctx, .protocol = protocol};
    job->created = (int64_t)time(NULL);
    random_id(job->id, protocol->id_prefix);
    (void)pthread_mutex_init(&job->lock, NULL);
    (void)pthread_cond_init(&job->changed, NULL);
    for (uint32_t i = 0; i < API_CHOICES_MAX; i++) {
        job->choices[i].job = job;
        job->choices[i].index = i;
    }
    job->in.n = job->in.n_prompts = 1;
    if (protocol->wire_bytes != 0 && (job->wire = mem_alloc(protocol->wire_bytes)) == NULL)
        (void)api_no_memory(e);
    else if (json_parse(&job->body, body, n_body, &limits, &err) != CALLA_OK)
        (void)api_from(e, NULL, &err);
    else if (job->body.root->type != JSON_OBJECT)
        (void)api_fail(e, 400, NULL, NULL, "The body must be a JSON object, found %s.",
                       json_type_name(job->body.root));
    else
        return job;
    gen_destroy(job);
    return NULL;
}

gen_job *gen_begin(api_ctx *ctx, http_request *req, const gen_protocol *protocol)
{
    api_error e = {0};
    gen_job *job = gen_create(ctx, protocol, req->body, req->n_body, &e);
    if (job != NULL)
        job->req = req;
    else
        api_respond_error(req, &e);
    return job;
}

static void choice_deinit(gen_choice *c)
{
    output_parser_destroy(c->parser);
    output_result_deinit(&c->answer);
    strbuf_deinit(&c->held);
    strbuf_deinit(&c->input);
    mem_free(c->ids.data);
    mem_free(c->calls);
    mem_free(c->logprobs);
    mem_free(c->tops);
}

void gen_destroy(gen_job *job)
{
    if (job == NULL) return;
    for (uint32_t i = 0; i < API_CHOICES_MAX; i++)
        choice_deinit(&job->choices[i]);
    prompt_deinit(&job->in.prompt);
    for (uint32_t i = 0; i + 1 < API_CHOICES_MAX; i++)
        prompt_deinit(&job->in.more[i]);
    mem_free(job->origin.data);
    mem_free(job->tool_origin.data);
    mem_free(job->in.bias_ids);
    mem_free(job->in.bias);
    constraint_destroy(job->in.forms[0]);
    constraint_destroy(job->in.forms[1]);
    normalize_deinit(&job->chat);
    tree_deinit(&job->nodes);
    json_free(&job->body);
    strbuf_deinit(&job->line);
    if (job->wire != NULL && job->protocol->wire_deinit != NULL)
        job->protocol->wire_deinit(job->wire);
    mem_free(job->wire);
    (void)pthread_cond_destroy(&job->changed);
    (void)pthread_mutex_destroy(&job->lock);
    mem_free(job);
}

void gen_refuse(gen_job *job, const api_error *e)
{
    api_respond_error(job->req, e);
    gen_destroy(job);
}

bool gen_chat_prompt(gen_job *job, const json_value *messages, const calla_chat_options *options,
                     api_error *e)
{
    const char *name = job->protocol->prompt_name;
    const normal_source source = {.messages = messages, .name = name, .origin = job->origin.data};
    if (!normalize_messages(&job->chat, &source, e)) return false;
    const prompt_source from = {.name = name,
                                .tok = job->ctx->tok,
                                .replay = job->ctx->replay,
                                .chat = &job->chat,
                                .tools = job->in.tools,
                                .options = *options};
    return prompt_build(&job->in.prompt, &from, e);
}

void gen_handle(api_ctx *ctx, http_request *req, const gen_protocol *protocol)
{
    api_error e = {0};
    gen_job *job = gen_begin(ctx, req, protocol);
    if (job == NULL) return;
    if (protocol->parse(job, &e))
        gen_run(job);
    else
        gen_refuse(job, &e);
}

void gen_send(gen_job *job, const char *event)
{
    if (job->sse != NULL &&
        (job->line.failed || !sse_send(job->sse, event, job->line.data, job->line.len)))
        atomic_store(&job->gone, true);
    strbuf_clear(&job->line);
    job->line.failed = false;
}

void gen_send_failure(gen_job *job, const gen_choice *c, const char *event)
{
    api_error e;
    gen_failure(c, &e);
    const http_error he = {.status = e.status, .code = e.code};
    http_error_object(job->req, &job->line, &he, e.message);
    gen_send(job, event);
}

void gen_send_tail(gen_job *job, const char *object)
{
    if (job->in.include_usage) {
        put_head(&job->line, job, object);
        (void)strbuf_puts(&job->line, ",\"choices\":[],");
        put_usage(&job->line, job);
        (void)strbuf_putc(&job->line, ',');
        put_timings(&job->line, job);
        (void)strbuf_putc(&job->line, '}');
        gen_send(job, NULL);
    }
    (void)strbuf_puts(&job->line, "[DONE]");
    gen_send(job, NULL);
}

const api_prompt *gen_prompt(const gen_choice *c)
{
    const gen_request *in = &c->job->in;
    const uint32_t i = c->index / (in->n / in->n_prompts);
    return i == 0 ? &in->prompt : &in->more[i - 1];
}

uint32_t gen_n_prompt(const gen_job *job)
{
    const uint32_t each = job->in.n / job->in.n_prompts;
    size_t n = 0;
    for (uint32_t i = 0; i < job->in.n_prompts; i++)
        n += gen_prompt(&job->choices[i * each])->ids.len;
    return (uint32_t)n;
}

const gen_choice *gen_failed(const gen_job *job)
{
    for (uint32_t i = 0; i < job->n_submitted; i++)
        if (job->choices[i].finish == GEN_FAILED) return &job->choices[i];
    return NULL;
}

void gen_failure(const gen_choice *c, api_error *e)
{
    const bool memory = c->failed || c->result.status == CALLA_ERR_MEMORY;
    if (memory)
        (void)api_no_memory(e);
    else if (c->result.status == CALLA_ERR_CANCELLED)
        (void)api_fail(e, 503, "shutting_down", NULL, "The server is shutting down.");
    else if (c->result.status == CALLA_ERR_ARGUMENT && c->job->in.n_bias != 0)
        (void)api_bad(e, "logit_bias", "%s", c->message);
    else
        (void)api_fail(e, 500, NULL, NULL, "%s", c->message);
}

uint32_t gen_message_at(const gen_job *job, uint32_t token)
{
    const api_prompt *p = &job->in.prompt;
    if (token == SCHED_NO_POSITION || !p->is_chat) return HTTP_NO_POSITION;
    for (size_t i = 0; i < p->n_ends; i++)
        if (token < p->ends[i]) return (uint32_t)i;
    return (uint32_t)p->n_ends;
}

/* ---- Constraints ---- */

static bool has_strict_tool(const json_value *tools)
{
    for (const json_value *t = tools->first; t != NULL; t = t->next) {
        const json_value *strict = json_get(json_get(t, "function"), "strict");
        if (strict != NULL && strict->type == JSON_TRUE) return true;
    }
    return false;
}

static bool unfit(api_error *e, const char *param, const calla_error *err)
{
    if (err->code == CALLA_ERR_MEMORY || err->code == CALLA_ERR_INTERNAL)
        return api_from(e, param, err);
    return api_bad(e, param, "%s", err->message);
}

static bool constrain_calls(gen_job *job, constraint **out, constraint_tool_mode mode, api_error *e)
{
    const gen_request *in = &job->in;
    const constraint_tool_options o = {.tools = in->callable != NULL ? in->callable : in->tools,
                                       .parallel = !in->serial,
                                       .mode = mode};
    calla_error err;
    if (constraint_tool_calls(out, &o, &err) == CALLA_OK) return true;
    return unfit(e, "tools", &err);
}

bool gen_constrain(gen_job *job, api_error *e)
{
    gen_request *in = &job->in;
    calla_error err;
    if (in->must_call) return constrain_calls(job, &in->forms[0], CONSTRAINT_TOOLS_REQUIRED, e);
    if (in->form == GEN_FREE) {
        if (in->tools == NULL || (in->callable == NULL && !has_strict_tool(in->tools))) return true;
        return constrain_calls(job, &in->forms[0], CONSTRAINT_TOOLS_AUTO, e);
    }
    const calla_status st =
        in->form == GEN_JSON ? constraint_json_object(&in->forms[0], &err)
                             : constraint_json_schema(&in->forms[0], in->schema, in->strict, &err);
    if (st != CALLA_OK) return unfit(e, in->form_path.s, &err);
    /* With tools the answer is either of them. */
    return in->tools == NULL || constrain_calls(job, &in->forms[1], CONSTRAINT_TOOLS_REQUIRED, e);
}
