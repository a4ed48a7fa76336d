/* api_prompt.h - from messages to token ids.
 *
 * Does:       renders a normalized conversation by the chat template, encodes it message by
 *             message, and puts the remembered tokens of past answers in their places. Control
 *             tokens spelled in messages and tools stay text.
 * Errors:     400 with the template's sentence; 503 when memory ran out.
 */
#ifndef CALLA_SERVER_API_PROMPT_H
#define CALLA_SERVER_API_PROMPT_H

#include "server/api_field.h"
#include "server/api_replay.h"
#include "server/normalize.h"
#include "text/chat.h"

typedef struct api_prompt {
    id_list ids;
    uint32_t *ends; /* [n_ends] tokens up to the end of each message */
    size_t n_ends;
    bool in_thinking; /* the last <think> is still open */
    bool is_chat;     /* rendered here; else given as text or ids */
    replay_key key;   /* of the conversation */
} api_prompt;

typedef struct prompt_source {
    const calla_tokenizer *tok;
    replay *replay; /* NULL: none */
    const normal_chat *chat;
    const char *name;        /* of the client's member, for errors */
    const json_value *tools; /* NULL: none */
    calla_chat_options options;
} prompt_source;

bool prompt_build(api_prompt *out, const prompt_source *from, api_error *e);
void prompt_deinit(api_prompt *p); /* zeroed struct is fine */

/* Tokens that a model wrote for this (normalized) answer, whose prompt ended inside an open block
 * of thinking or behind a closed one. */
calla_status prompt_answer_tokens(const calla_tokenizer *tok, const json_value *message,
                                  bool thinking, uint32_t *n, calla_error *err);

/* Whether the ids end inside an open block of thinking. */
bool prompt_in_thinking(const calla_tokenizer *tok, const int32_t *ids, size_t n);

#endif
