/* conversation.h - the messages of a chat, and the prompt they make.
 *
 * Does:   keeps system prompt, turns and tools; writes them as JSON; renders and encodes them with
 *         the official template.
 * Owns:   copies of every text. Texts are made valid UTF-8 when added.
 */
#ifndef CALLA_CLI_CONVERSATION_H
#define CALLA_CLI_CONVERSATION_H

#include "base/error.h"
#include "base/mem.h"

typedef struct message {
    const char *role; /* static: "user", "assistant" */
    char *content;    /* NUL-terminated copy, n_content bytes */
    size_t n_content;
    char *reasoning; /* NULL: none */
    size_t n_reasoning;
} message;

typedef struct conversation {
    char *system; /* NULL: none */
    size_t n_system;
    char *tools; /* JSON array, NULL: none */
    size_t n_tools;
    message *messages;
    size_t n_messages, cap_messages;
} conversation; /* zero-initialise */

void conversation_deinit(conversation *c);
/* Forgets the turns, keeps system prompt and tools. */
void conversation_clear(conversation *c);

/* text NULL or empty: no system prompt. */
calla_status conversation_set_system(conversation *c, const char *text, calla_error *err);
calla_status conversation_add(conversation *c, const char *role, const char *content,
                              size_t n_content, const char *reasoning, size_t n_reasoning,
                              calla_error *err);
void conversation_pop(conversation *c); /* removes the last message */

/* Appends the JSON array of messages. */
bool conversation_write(const conversation *c, strbuf *out);

/* *ids: calla_free(). */
calla_status conversation_encode(const conversation *c, const calla_tokenizer *tok,
                                 const calla_chat_options *options, int32_t **ids, size_t *n_ids,
                                 calla_error *err);

/* A copy with every invalid UTF-8 sequence replaced by U+FFFD; mem_free(). NULL: out of memory.
 * *changed (may be NULL) tells whether there was one. */
char *utf8_clean(const char *text, size_t n, size_t *n_out, bool *changed);

#endif
