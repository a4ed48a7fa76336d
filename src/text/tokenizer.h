/* tokenizer.h - internal face of the tokenizer (public part: calla.h).
 *
 * Does:       byte-level BPE as in Qwen3.6's tokenizer.json. To encode: added tokens are split out
 *             (leftmost, longest, exact bytes); the rest is repaired UTF-8, put into NFC, cut into
 *             pre-tokens, and merged by rank inside each.
 * Refuses:    a tokenizer.json that asks for anything else: another model type, normaliser, regex,
 *             dropout, byte fallback, added tokens with lstrip, rstrip, single_word or normalized.
 * Invariants: ids 0 ... size - 1 each have exactly one token, and each of the 256 bytes is one.
 * Limits:     TOKENIZER_FILE_MAX bytes of tokenizer.json, TOKENIZER_TOKEN_MAX bytes a token,
 *             TOKENIZER_ADDED_MAX added tokens, TOKENIZER_TEXT_MAX bytes of text in one call.
 * Threads:    immutable once open.
 */
#ifndef CALLA_TEXT_TOKENIZER_H
#define CALLA_TEXT_TOKENIZER_H

#include "base/error.h"
#include "base/mem.h"

#define TOKENIZER_FILE_MAX  (256u << 20)
#define TOKENIZER_TOKEN_MAX 4096u
#define TOKENIZER_ADDED_MAX 4096u
#define TOKENIZER_TEXT_MAX  (256u << 20)

/* Bytes [begin, end) of a text in which tokens marked special are inert (stay text). */
typedef struct text_span {
    size_t begin, end;
} text_span;

/* Growable id list. Zero-initialise; mem_free(data). */
typedef struct id_list {
    int32_t *data;
    size_t len, cap;
} id_list;

bool id_list_push(id_list *l, int32_t id);

/* Appends the ids of text. spans are sorted and disjoint; a special token whose spelling has a byte
 * in a span is not recognised. (n_spans = 0: all added tokens are recognised.) On failure the list
 * may have grown. */
calla_status tokenizer_encode_spans(const calla_tokenizer *tok, const char *text, size_t n,
                                    const text_span *spans, size_t n_spans, id_list *ids,
                                    calla_error *err);

/* tokenizer.json and (or NULL) tokenizer_config.json from memory: tests and fuzzing. */
calla_status tokenizer_parse(calla_tokenizer **out, const char *json, size_t n,
                             const char *config_json, size_t n_config, calla_error *err);

/* The end of the pre-token that begins at i < n in valid UTF-8 text (unit tests). */
size_t pretokenize_next(const char *text, size_t n, size_t i);

#endif
