#include "server/api_question.h"

#include <string.h>

#include "server/api_gen.h"

struct api_question {
    gen_job *job; /* parsed, never run */
};

static const gen_protocol *protocol_of(const char *path)
{
    if (path == NULL || strcmp(path, "/v1/chat/completions") == 0) return &gen_chat;
    if (strcmp(path, "/v1/messages") == 0) return &gen_messages;
    if (strcmp(path, "/v1/responses") == 0) return &gen_responses;
    return NULL;
}

bool api_question_path(const char *path)
{
    return protocol_of(path) != NULL;
}

static calla_status fault(calla_error *err, const api_error *e)
{
    return err_set(err, e->status == 503 ? CALLA_ERR_MEMORY : CALLA_ERR_FORMAT, "%s", e->message);
}

calla_status api_question_create(api_question **out, api_ctx *ctx, const char *path,
                                 const char *body, size_t n_body, calla_error *err)
{
    const gen_protocol *protocol = protocol_of(path);
    api_error e = {0};
    *out = NULL;
    if (protocol == NULL) return err_set(err, CALLA_ERR_UNSUPPORTED, "%s takes no messages", path);
    api_question *q = mem_alloc(sizeof *q);
    if (q == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a request");
    q->job = gen_create(ctx, protocol, body, n_body, &e);
    if (q->job == NULL || !protocol->parse(q->job, &e)) {
        api_question_destroy(q);
        return fault(err, &e);
    }
    *out = q;
    return CALLA_OK;
}

void api_question_destroy(api_question *q)
{
    if (q == NULL) return;
    gen_destroy(q->job);
    mem_free(q);
}

void api_question_fill(const api_question *q, sched_request *request)
{
    const api_prompt *p = &q->job->in.prompt;
    request->prompt = p->ids.data;
    request->n_prompt = p->ids.len;
    request->boundaries = p->ends;
    request->n_boundaries = p->n_ends;
}

uint32_t api_question_max_tokens(const api_question *q)
{
    return q->job->in.max_tokens;
}

/* ---- Answers ---- */

size_t api_question_n_messages(const api_question *q)
{
    return q->job->chat.messages->n_items;
}

void api_question_keys(const api_question *q, replay_key *keys)
{
    const replay *r = q->job->ctx->replay;
    replay_key key = replay_begin(r, q->job->in.tools);
    for (const json_value *m = q->job->chat.messages->first; m != NULL; m = m->next)
        *keys++ = key = replay_next(r, key, m);
}

bool api_question_is_answer(const api_question *q, size_t i)
{
    const normal_chat *chat = &q->job->chat;
    return json_is(json_get(json_at(chat->messages, i), "role"), "assistant") &&
           !(chat->continues && i + 1 == chat->messages->n_items);
}

static const json_value *answer_in(const api_question *q, const api_question *later)
{
    return json_at(later->job->chat.messages, api_question_n_messages(q));
}

calla_status api_question_count(const api_question *q, const api_question *later, uint32_t *n,
                                calla_error *err)
{
    return prompt_answer_tokens(q->job->ctx->tok, answer_in(q, later),
                                q->job->in.prompt.in_thinking, n, err);
}

void api_question_answer(const api_question *q, const api_question *later, const int32_t *ids,
                         size_t n_ids)
{
    replay *r = q->job->ctx->replay;
    const api_prompt *p = &q->job->in.prompt;
    const json_value *m = answer_in(q, later);
    const json_value *reasoning = json_get(m, "reasoning_content");
    if (m == NULL) return;
    const bool given = reasoning != NULL && reasoning->type == JSON_STRING;
    replay_put(r, replay_next(r, p->key, m), given ? reasoning->text : "",
               given ? reasoning->n_text : 0, ids, n_ids, p->in_thinking);
}
