/* api.h - the APIs' handlers: requests in, answers and event streams out.
 *
 * Does:       maps OpenAI's chat completions, completions and responses, Anthropic's messages, and
 *             a few small routes to one internal request (api_gen.h), and one internal stream of
 *             events back to each of them.
 * Owns:       the memory of past answers (api_replay.h). Engine and scheduler are borrowed and
 *             outlive the context; no request may be running when it is destroyed.
 * Threads:    handlers run on the threads of the HTTP layer.
 * Errors:     every fault of a request is a 400 with a sentence that names the field; a full queue
 *             is 429, a server that shuts down or has no memory 503. 500: the device failed.
 */
#ifndef CALLA_SERVER_API_H
#define CALLA_SERVER_API_H

#include "engine/scheduler.h"
#include "server/http.h"

typedef struct api_options {
    calla_engine *engine;   /* with a tokenizer */
    scheduler *scheduler;   /* NULL: for questions only (api_question.h), not for handlers */
    const char *model_name; /* NULL: the last part of the checkpoint's path */
    uint64_t replay_bytes;  /* for the tokens of past answers; 0: 32 MiB */
} api_options;

calla_status api_create(api_ctx **out, const api_options *options, calla_error *err);
void api_destroy(api_ctx *ctx); /* NULL is fine */

/* The routes of all handlers here. */
const http_route *api_routes(size_t *n);

void api_chat(api_ctx *ctx, http_request *req);         /* POST /v1/chat/completions */
void api_completions(api_ctx *ctx, http_request *req);  /* POST /v1/completions */
void api_responses(api_ctx *ctx, http_request *req);    /* POST /v1/responses */
void api_messages(api_ctx *ctx, http_request *req);     /* POST /v1/messages */
void api_count_tokens(api_ctx *ctx, http_request *req); /* POST /v1/messages/count_tokens */
void api_models(api_ctx *ctx, http_request *req);       /* GET /v1/models */
void api_model(api_ctx *ctx, http_request *req);        /* GET /v1/models/NAME */
void api_tokenize(api_ctx *ctx, http_request *req);     /* POST /tokenize */
void api_detokenize(api_ctx *ctx, http_request *req);   /* POST /detokenize */

#endif
