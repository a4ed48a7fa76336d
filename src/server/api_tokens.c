/* POST /tokenize, POST /detokenize, GET /v1/models, GET /v1/models/NAME */
#include <string.h>

#include "server/api_gen.h"

/* ---- Tokens ---- */

static const gen_protocol no_answer = {
    .id_prefix = "req_", .call_prefix = "", .prompt_name = "messages"};

static void put_ids(strbuf *b, const api_ctx *ctx, const id_list *ids, bool pieces)
{
    for (size_t i = 0; i < ids->len; i++) {
        if (i != 0) (void)strbuf_putc(b, ',');
        if (!pieces) {
            (void)strbuf_printf(b, "%d", ids->data[i]);
            continue;
        }
        (void)strbuf_printf(b, "{\"id\":%d,\"piece\":", ids->data[i]);
        put_token(b, ctx, ids->data[i]);
        (void)strbuf_puts(b, ",\"bytes\":");
        put_token_bytes(b, ctx, ids->data[i]);
        (void)strbuf_putc(b, '}');
    }
}

typedef struct tokenize_params {
    const json_value *content, *prompt, *messages, *tools, *kwargs;
    api_bool with_pieces, parse_special, add_special;
} tokenize_params;

#define AT(member) offsetof(tokenize_params, member)

static const api_field tokenize_fields[] = {
    {"content", API_STRING, AT(content), 0, 0},
    {"prompt", API_STRING, AT(prompt), 0, 0},
    {"messages", API_ARRAY, AT(messages), 0, 0},
    {"tools", API_ARRAY, AT(tools), 0, 0},
    {"with_pieces", API_BOOL, AT(with_pieces), 0, 0},
    {"parse_special", API_BOOL, AT(parse_special), 0, 0},
    {"add_special", API_BOOL, AT(add_special), 0, 0},
};

/* The text of `content` (or `prompt`), or the prompt that `messages` become. */
static bool tokenize(gen_job *job, const tokenize_params *p, api_error *e)
{
    const json_value *text = p->content != NULL ? p->content : p->prompt;
    const text_span all = {0, text != NULL ? text->n_text : 0};
    const bool inert = p->parse_special.set && !p->parse_special.value && all.end != 0;
    calla_error err;
    if (p->messages != NULL) {
        gen_sampling s;
        calla_chat_options options = {0};
        return gen_read_sampling(job, &s, e) && gen_read_thinking(job, &s, NULL, "", &options, e) &&
               gen_set_tools(job, p->tools, e) && gen_chat_prompt(job, p->messages, &options, e);
    }
    if (text == NULL)
        return api_fail(e, 400, NULL, "content",
                        "The body needs \"content\" (a string) or \"messages\".");
    if (tokenizer_encode_spans(job->ctx->tok, text->text, text->n_text, &all, inert ? 1 : 0,
                               &job->in.prompt.ids, &err) != CALLA_OK)
        return api_from(e, "content", &err);
    return true;
}

void api_tokenize(api_ctx *ctx, http_request *req)
{
    api_error e = {0};
    tokenize_params p = {0};
    gen_job *job = gen_begin(ctx, req, &no_answer);
    if (job == NULL) return;
    if (!api_read(job->body.root, "", tokenize_fields,
                  sizeof tokenize_fields / sizeof *tokenize_fields, &p, &e) ||
        !tokenize(job, &p, &e)) {
        gen_refuse(job, &e);
        return;
    }
    strbuf out = {0};
    (void)strbuf_puts(&out, "{\"tokens\":[");
    put_ids(&out, ctx, &job->in.prompt.ids, p.with_pieces.value);
    (void)strbuf_printf(&out, "],\"count\":%zu,\"max_model_len\":%u}", job->in.prompt.ids.len,
                        ctx->n_ctx);
    http_respond_json(req, 200, &out);
    gen_destroy(job);
}

static bool read_tokens(gen_job *job, api_error *e)
{
    const json_value *tokens = json_get(job->body.root, "tokens");
    size_t i = 0;
    if (tokens == NULL || tokens->type != JSON_ARRAY)
        return api_bad(e, "tokens", "expected an array of token ids, found %s",
                       json_type_name(tokens));
    for (const json_value *m = tokens->first; m != NULL; m = m->next, i++) {
        int64_t id;
        if (!json_int(m, &id) || id < 0 || id >= job->ctx->info.n_tokens)
            return api_bad(e, path_of("tokens[%zu]", i).s, "expected a token id from 0 to %d",
                           job->ctx->info.n_tokens - 1);
        if (!id_list_push(&job->in.prompt.ids, (int32_t)id)) return api_no_memory(e);
    }
    return true;
}

void api_detokenize(api_ctx *ctx, http_request *req)
{
    api_error e = {0};
    char *text = NULL;
    size_t n = 0;
    calla_error err;
    gen_job *job = gen_begin(ctx, req, &no_answer);
    if (job == NULL) return;
    const id_list *ids = &job->in.prompt.ids;
    bool ok = read_tokens(job, &e);
    if (ok &&
        calla_tokenizer_decode(ctx->tok, ids->data, ids->len, false, &text, &n, &err) != CALLA_OK)
        ok = api_from(&e, "tokens", &err);
    if (!ok) {
        gen_refuse(job, &e);
        return;
    }
    strbuf out = {0};
    (void)strbuf_puts(&out, "{\"content\":");
    put_string(&out, text, n);
    (void)strbuf_puts(&out, ",\"prompt\":");
    put_string(&out, text, n);
    (void)strbuf_putc(&out, '}');
    calla_free(text);
    http_respond_json(req, 200, &out);
    gen_destroy(job);
}

/* ---- Models ---- */

static void put_model_object(strbuf *b, const api_ctx *ctx, const char *id)
{
    (void)strbuf_puts(b, "{\"id\":");
    put_text(b, id);
    (void)strbuf_printf(b,
                        ",\"object\":\"model\",\"type\":\"model\",\"created\":%lld,"
                        "\"owned_by\":\"calla\",\"context_length\":%u,\"max_model_len\":%u",
                        (long long)ctx->created, ctx->n_ctx, ctx->n_ctx);
    /* Anthropic's */
    (void)strbuf_printf(b, ",\"created_at\":\"%s\",\"lifecycle\":\"active\"", ctx->created_at);
    (void)strbuf_printf(
        b, ",\"max_input_tokens\":%u,\"max_tokens\":%u,\"display_name\":", ctx->n_ctx, ctx->n_ctx);
    put_text(b, id);
    (void)strbuf_printf(b, ",\"max_context_length\":%u}", ctx->info.max_context);
}

void api_models(api_ctx *ctx, http_request *req)
{
    strbuf out = {0};
    (void)strbuf_puts(&out, "{\"object\":\"list\",\"data\":[");
    put_model_object(&out, ctx, ctx->model);
    (void)strbuf_puts(&out, "],\"has_more\":false,\"first_id\":");
    put_text(&out, ctx->model);
    (void)strbuf_puts(&out, ",\"last_id\":");
    put_text(&out, ctx->model);
    (void)strbuf_putc(&out, '}');
    http_respond_json(req, 200, &out);
}

/* Requests may use any name; the list has one, and only that one is described. */
void api_model(api_ctx *ctx, http_request *req)
{
    api_error e;
    strbuf out = {0};
    if (strcmp(req->tail, ctx->model) != 0) {
        (void)api_fail(&e, 404, "model_not_found", "model",
                       "This server has one model, \"%s\"; there is no \"%.100s\".", ctx->model,
                       req->tail);
        api_respond_error(req, &e);
        return;
    }
    put_model_object(&out, ctx, ctx->model);
    http_respond_json(req, 200, &out);
}
