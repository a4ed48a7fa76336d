/* api_question.h - a request's body as a prompt, without HTTP: for replaying what was recorded.
 *
 * Does:       reads a body as its route does and builds the prompt with its boundaries, remembered
 *             answers in their places. Finds the recorded answer in a later request, which sends
 *             it along, and lets other tokens take its place there: those that a replay generated.
 * Owns:       a question owns what it was made of; the context is borrowed and outlives it.
 * Threads:    one a question.
 * Errors:     CALLA_ERR_FORMAT with the sentence that a client would get.
 */
#ifndef CALLA_SERVER_API_QUESTION_H
#define CALLA_SERVER_API_QUESTION_H

#include "server/api.h"
#include "server/api_replay.h"

typedef struct api_question api_question;

/* Is it the path of a route that takes messages? NULL is chat completions'. */
bool api_question_path(const char *path);

calla_status api_question_create(api_question **out, api_ctx *ctx, const char *path,
                                 const char *body, size_t n_body, calla_error *err);
void api_question_destroy(api_question *q); /* NULL is fine */

/* Prompt and boundaries of *request; they live as long as q. */
void api_question_fill(const api_question *q, sched_request *request);
/* The longest answer that was asked for; 0: no limit. */
uint32_t api_question_max_tokens(const api_question *q);

/* The key of the conversation behind each message, as the context's memory of answers has it. */
size_t api_question_n_messages(const api_question *q);
void api_question_keys(const api_question *q, replay_key *keys); /* [n_messages] */
/* Is the i-th message an answer, and not the beginning of one? */
bool api_question_is_answer(const api_question *q, size_t i);

/* Tokens of the answer that `later`, which goes on from q's messages, has behind them. */
calla_status api_question_count(const api_question *q, const api_question *later, uint32_t *n,
                                calla_error *err);
/* From now on prompts of the context have these ids in place of that answer. */
void api_question_answer(const api_question *q, const api_question *later, const int32_t *ids,
                         size_t n_ids);

#endif
