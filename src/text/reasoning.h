/* reasoning.h - divides generated tokens into thinking and answer while they stream.
 *
 * Does:       decides by token id (<think>, </think>), never by spelling; drops the tags and every
 *             special token; strips newlines at both ends of both parts (leading ones are never
 *             emitted, trailing ones are held until a further character comes); hands out whole
 *             UTF-8 characters.
 * Start:      from the prompt as rendered, not from what the caller asked for: thinking when its
 *             last <think> is later than its last </think>.
 * Invariants: what is emitted for one part is its text without outer newlines, in order, however
 *             the tokens cut it. Tool calls are part of the text (parsing them is a later layer's).
 * Threads:    one.  Errors: none; nothing is allocated.
 */
#ifndef CALLA_TEXT_REASONING_H
#define CALLA_TEXT_REASONING_H

#include "calla.h"

typedef struct reasoning {
    const calla_tokenizer *tok;
    int32_t begin_id, end_id; /* -1: not in this vocabulary, or text is not divided */
    bool raw;                 /* one part, newlines as they come */
    bool thinking;            /* the part that the next token belongs to */
    bool begun;               /* something of this part was emitted */
    size_t n_newlines;        /* held back */
    calla_utf8_stream utf8;
} reasoning;

/* Receives n > 0 bytes of whole characters. */
typedef void (*reasoning_fn)(void *user, bool thinking, const char *text, size_t n);

void reasoning_init(reasoning *r, const calla_tokenizer *tok, const int32_t *prompt, size_t n);

/* For text without a chat template: everything is answer, nothing is stripped but special tokens.
 */
void reasoning_init_raw(reasoning *r, const calla_tokenizer *tok);

/* One generated token and its bytes. */
void reasoning_push(reasoning *r, int32_t id, const char *bytes, size_t n, reasoning_fn emit,
                    void *user);

/* At the end: emits what is held of an unfinished character; held newlines are dropped. */
void reasoning_finish(reasoning *r, reasoning_fn emit, void *user);

#endif
