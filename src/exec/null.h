/* null.h - the null device: an executor without a model.
 *
 * Does:       keeps the whole contract of executor.h with a hash in place of the forward pass: the
 *             logits after a token are a pure function of the tokens up to it. Tests of everything
 *             above the executor run on it in microseconds. run() refuses a sequence whose state is
 *             not that of its tokens, as a wrong restore would leave it.
 * Faults:     exec_null_fail arranges for one later run() to fail, in either way that executor.h
 *             allows, so that the callers' error paths can be tested.
 * Streams:    only after exec_null_streams. A call that touches a sequence of a running stream, or
 *             goes on behind a stop id or max_steps, is CALLA_ERR_INTERNAL.
 */
#ifndef CALLA_EXEC_NULL_H
#define CALLA_EXEC_NULL_H

#include "exec/executor.h"

typedef enum exec_null_fault {
    NULL_FAULT_NONE,
    NULL_FAULT_CLEAN, /* fails; sequences stay as they were */
    NULL_FAULT_BROKEN /* fails half-way; the sequence's position has moved */
} exec_null_fault;

calla_status exec_null_create(executor **out, uint32_t n_vocab, uint32_t chunk_tokens,
                              calla_error *err);

/* The run after the next n_runs ones fails with CALLA_ERR_INTERNAL, once. stream_next and
 * stream_end count as runs. */
void exec_null_fail(executor *ex, exec_null_fault fault, uint32_t n_runs);

/* From now on every run() with this token in a segment is refused with this status (no token: a
 * negative id). */
void exec_null_refuse(executor *ex, int32_t token, calla_status status);

/* run() and stream_next() calls so far. */
uint64_t exec_null_runs(const executor *ex);

/* From now on there are streams; max_streams of them begin, then CALLA_ERR_FULL. */
void exec_null_streams(executor *ex, uint64_t max_streams);
/* So many began, and took so many steps. */
uint64_t exec_null_streams_begun(const executor *ex);
uint64_t exec_null_stream_steps(const executor *ex);

/* An id drawn from logits [n_vocab] as a device does: that of engine/sampler.h. banned
 * [(n_vocab + 31) / 32]; counts [n_vocab], NULL when not e->counted. */
uint32_t exec_null_draw(sample_entry *e, const float *logits, uint32_t n_vocab,
                        const uint32_t *banned, uint32_t *counts);

#endif
