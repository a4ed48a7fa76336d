/* chat.h - internal face of the chat renderer (public part: calla.h).
 *
 * Does:    renders messages by the rules of the official template, and records which bytes came
 *          from outside, so that control tokens spelled there stay text.
 * Errors:  CALLA_ERR_TEMPLATE with the template's own sentence; CALLA_ERR_FORMAT for JSON faults.
 */
#ifndef CALLA_TEXT_CHAT_H
#define CALLA_TEXT_CHAT_H

#include "base/json.h"
#include "text/tokenizer.h"

/* Where a message stands in the text. Tool results of one user turn are apart. What precedes the
 * first message (a system block of tools alone) belongs to it; behind the last one comes the
 * generation prompt. Every end is behind an added token and its newline, or before one: the pieces
 * may be encoded one by one. */
typedef struct chat_message {
    size_t begin, end;
    bool thinks; /* an assistant's, with a block of thinking (empty or not) */
} chat_message;

typedef struct chat_prompt {
    strbuf text;
    chat_message *messages; /* [n_messages] as given */
    size_t n_messages;
    text_span *outside; /* sorted, disjoint: bytes that came from messages and tools */
    size_t n_outside, cap_outside;
} chat_prompt;

/* messages: parsed array; tools: parsed array or NULL. Values that the template would misread
 * rather than refuse (a string as tools, a list as a message) are misread in the same way. On
 * failure *out is empty. Time and memory are linear in the input. */
calla_status chat_render(chat_prompt *out, const json_value *messages, const json_value *tools,
                         const calla_chat_options *options, calla_error *err);
void chat_prompt_deinit(chat_prompt *p); /* zeroed struct is fine */

/* As chat_render, from JSON text (tools: NULL for none). */
calla_status chat_render_json(chat_prompt *out, const char *messages, size_t n_messages,
                              const char *tools, size_t n_tools, const calla_chat_options *options,
                              calla_error *err);

/* Compares the folder's chat_template.jinja with the template these rules implement (by length and
 * 64-bit hash): any other is CALLA_ERR_UNSUPPORTED, never approximated. Absent file: accepted. */
calla_status chat_template_check(const char *model_dir, calla_error *err);

#endif
