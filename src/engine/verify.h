/* verify.h - how far this engine is from a reference, in logits and layer by layer.
 *
 * Does:    the arithmetic of `calla verify`: no input, no output. All sums are in f64.
 * Threads: none of its own.
 */
#ifndef CALLA_ENGINE_VERIFY_H
#define CALLA_ENGINE_VERIFY_H

#include "format/reference.h"

/* Zero-initialise. Perplexity and the rest are over the positions that have a next token. With a
 * reference of the k largest logits, KL is that of k ids and one for all others, which is at most
 * the true one, and differences of logits are over those k and the next token. */
#define VERIFY_TIE 0.05 /* logits: tokens so close may change places by rounding alone */

typedef struct verify_stats {
    uint64_t n;            /* positions */
    uint64_t n_same;       /* of these, with the same most likely token */
    uint64_t n_tied;       /* with another, but the reference's two best are within VERIFY_TIE */
    double nll_ref, nll;   /* sums of -log p(next token) */
    double kl_sum, kl_max; /* KL(reference || ours), nats */
    double diff_sum, diff_max; /* |difference of logits| */
    uint64_t n_diff;
    uint32_t worst; /* position of kl_max */
    double
        widest_gap; /* where the most likely differ: most that the reference's two best are apart */
} verify_stats;

/* Row i of r against logits [n_vocab]. row: scratch of n_vocab. */
void verify_add(verify_stats *s, const reference *r, uint32_t i, const float *logits, float *row);
double verify_perplexity_ratio(const verify_stats *s); /* ours / reference's; NaN when n is 0 */

/* What a point adds to the residual stream (the embedding: the stream itself) beside what it adds
 * in the reference: |a - b| / |b| for each token. */
typedef struct drift_point {
    double median, max; /* over tokens */
    uint32_t first;     /* token from which on it is above the bar; n_traced: none */
    double stream;      /* median of |x - y| / |y| for the stream after the point */
} drift_point;

typedef struct drift {
    uint32_t n_points;
    drift_point *points; /* mem_free */
    uint32_t fault;      /* the first point that stands out, or n_points */
    double bar;          /* at the fault, or the last */
} drift;

/* A point stands out when its median is above the bar: at first DRIFT_FLOOR, more for a reference
 * whose embedding is rounded already (DRIFT_ROUNDED times that), then DRIFT_JUMP times the largest
 * so far: rounding grows from layer to layer, a fault jumps. */
#define DRIFT_EMBED   0.06 /* bar of the embedding */
#define DRIFT_FLOOR   0.02
#define DRIFT_ROUNDED 10.0
#define DRIFT_JUMP    4.0

/* x: the stream of this engine, laid out as the reference's trace. On failure out is zero. */
calla_status drift_find(drift *out, const reference *r, const float *x, calla_error *err);

/* "embedding", "layer 3 experts"; full_interval as in model_shape. */
void drift_name(uint32_t i_point, uint32_t full_interval, char out[48]);

#endif
