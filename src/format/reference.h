/* reference.h - the logits of some engine, teacher-forced, as a file to compare others with.
 *
 * Does:       reads and checks such a file (`calla verify`); writes one.
 * Owns:       a reference owns its mapping; pointers into it live until reference_close.
 * Format:     a .safetensors file; __metadata__ is free. n positions of n_seqs sequences, one after
 *             the other; row i holds the logits after token i.
 *               tokens       I32 [n]            ids in [0, n_vocab)
 *               first        I32 [n_seqs]       where each sequence begins; 0, ascending
 *             and either all logits
 *               logits       F32 or BF16 [n, n_vocab]
 *             or the k largest of each row:
 *               top_ids      I32 [n, k]         distinct
 *               top_logits   F32 [n, k]         descending
 *               log_sum      F32 [n]            log of the sum of e^logit over all n_vocab ids
 *               target_logit F32 [n]            of the sequence's next token; unused at its last
 *               n_vocab      I32 [1]
 *             and, if wanted, the residual stream of the first m tokens of the first sequence:
 *               trace        F32 [2 * n_layers + 1, m, hidden]   the embedding; then for each layer
 *                            after its Gated DeltaNet or attention was added, and after its experts
 * Limits:     REFERENCE_TOKENS_MAX positions; every number must be finite.
 * Threads:    immutable once open.
 */
#ifndef CALLA_FORMAT_REFERENCE_H
#define CALLA_FORMAT_REFERENCE_H

#include "format/safetensors.h"

#define REFERENCE_TOKENS_MAX (1u << 24)
#define REFERENCE_VOCAB_MAX  (1u << 24)
#define REFERENCE_TOP_MAX    65536u

typedef struct reference {
    safetensors *file;
    uint32_t n_tokens, n_seqs, n_vocab;
    uint32_t k;                           /* logits of a row; 0: all */
    uint32_t n_points, n_traced, n_width; /* of the trace; 0: none */
    const uint8_t *tokens, *first, *logits, *top_ids, *top_logits, *log_sum, *target, *trace;
    bool is_bf16; /* logits */
} reference;

calla_status reference_open(reference *out, const char *path, calla_error *err);
/* The same over bytes in memory, which are borrowed; `what` names them in errors. */
calla_status reference_parse(reference *out, const char *what, const uint8_t *data, uint64_t n,
                             calla_error *err);
void reference_close(reference *r); /* zeroed struct is fine */

int32_t reference_token(const reference *r, uint32_t i);
/* Tokens [*first, *first + *n) are sequence i. */
void reference_seq(const reference *r, uint32_t i, uint32_t *first, uint32_t *n);
/* Row i of all logits into out [n_vocab]; k must be 0. */
void reference_row(const reference *r, uint32_t i, float *out);
/* The j-th largest of row i, j < k. */
int32_t reference_top_id(const reference *r, uint32_t i, uint32_t j);
float reference_top_logit(const reference *r, uint32_t i, uint32_t j);
float reference_log_sum(const reference *r, uint32_t i);
float reference_target_logit(const reference *r, uint32_t i);
/* Token t of a point of the trace into out [n_width]. */
void reference_point(const reference *r, uint32_t i_point, uint32_t t, float *out);

/* Collects rows and writes the file. Zero-initialise, set the first block, then reference_begin. */
typedef struct reference_writer {
    const char *source; /* who computed this: into __metadata__; NULL: nothing */
    const int32_t *tokens, *first;
    uint32_t n_tokens, n_seqs, n_vocab;
    uint32_t k; /* 0 or n_vocab: all logits */
    uint32_t n_points, n_traced, n_width;
    /* [n_tokens * n_vocab] or what the format says of k; [n_points * n_traced * n_width] */
    float *logits, *top_logits, *log_sum, *target, *trace;
    int32_t *top_ids;
} reference_writer;

calla_status reference_begin(reference_writer *w, calla_error *err);
void reference_put(reference_writer *w, uint32_t i, const float *logits);
/* To PATH.part first, which becomes PATH. */
calla_status reference_write(const reference_writer *w, const char *path, calla_error *err);
void reference_writer_deinit(reference_writer *w);

#endif
