/* measure.h - the time of prefills and of decode steps.
 *
 * Does:       feeds pseudo-random tokens (with random routing, as with real text, every token reads
 *             other experts) to sequences of an engine's executor, and times it.
 * Method:     a prefill is of n tokens into an empty sequence, in the engine's chunks, logits of
 * the last token included. A decode step is of one token; where the device draws tokens itself, in
 * a stream of greedy ones. The first prefill and the first three steps of a measurement do not
 * count. Owns:       its buffers; borrows the engine, of which nobody else may use the executor.
 * Threads:    one.
 */
#ifndef CALLA_BENCH_MEASURE_H
#define CALLA_BENCH_MEASURE_H

#include "bench/record.h"

#define MEASURE_REPS_MAX  100u
#define MEASURE_STEPS_MAX 1024u
#define MEASURE_WARM      3u /* steps */
#define MEASURE_AHEAD     4u /* that a stream may be ahead of the last one */
#define MEASURE_ROOM                                                                               \
    (MEASURE_WARM + MEASURE_AHEAD + 1u) /* that a measurement needs beyond o.steps */

typedef struct measure_options {
    uint32_t reps, steps;
    /* Called between chunks, with the tokens that the call in progress has still to take; may be
     * NULL. */
    void (*progress)(void *user, uint32_t n_left);
    void *progress_user;
} measure_options;

typedef struct measure {
    calla_engine *e;
    executor *ex;
    measure_options o;
    uint64_t rng;
    int32_t *ids;  /* [chunk_tokens] */
    float *logits; /* [n_vocab] */
} measure;

calla_status measure_init(measure *m, calla_engine *e, const measure_options *o, calla_error *err);
void measure_deinit(measure *m);

/* Appends n tokens in chunks; *seconds of it all. */
calla_status measure_feed(measure *m, exec_seq *seq, uint32_t n, double *seconds, calla_error *err);
/* One prefill of n tokens into a sequence of its own. */
calla_status measure_prefill(measure *m, uint32_t n, double *seconds, calla_error *err);
/* o.steps steps from where seq stands, which needs room for o.steps + MEASURE_ROOM. */
calla_status measure_decode(measure *m, exec_seq *seq, double *seconds, calla_error *err);

/* What a token must do at least, of a prefill of n tokens and of a step at n: operations, and bytes
 * that are read or written. A chunk reads the experts that tokens of random routing meet. */
double measure_prefill_flops(const model_shape *s, uint32_t n);
double measure_decode_flops(const model_shape *s, uint32_t n);
double measure_prefill_bytes(const measure *m, uint32_t n);
double measure_decode_bytes(const measure *m, uint32_t n);
/* Kernels and dependent stages of a token; CPU: runs of its threads. 0: unknown. */
void measure_counts(measure *m, bench_result *r);
/* Device bytes that a sequence of n tokens and all else occupies; CPU: resident bytes now. */
uint64_t measure_memory(const measure *m, uint32_t n);

/* Result of a measurement with what a token costs, to be given to record_add(). */
bench_result measure_result(measure *m, const char *kind, uint32_t n);

#endif
