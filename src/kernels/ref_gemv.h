/* ref_gemv.h - what the kernels of gemv.h compute, in plain C and in the same order.
 *
 * Shapes:     as in exec/gpu/ops.h; one token a call. Bitwise equal to the kernels when the host
 *             flushes denormals (base/fpenv.h).
 */
#ifndef CALLA_KERNELS_REF_GEMV_H
#define CALLA_KERNELS_REF_GEMV_H

#include <stdint.h>

typedef struct ref_matrix {
    const uint32_t *codes, *sb;
    uint32_t rows, cols;
} ref_matrix;

/* y [rows] = W x; with norm: of the normed x, its rsqrt applied to the sums. */
void ref_gemv(const ref_matrix *w, const float *x, const float *norm, float eps, float *y);

/* logits [rows] of an 8-bit matrix, from the normed x. */
void ref_router(const ref_matrix *w, const float *x, const float *norm, float eps, float *logits);

typedef struct ref_experts {
    const uint32_t *slabs;
    uint32_t slab_words, hidden, width, n_experts, n_used;
} ref_experts;

/* h [n_used + 1][width]. */
void ref_gateup(const ref_experts *m, const float *x, const float *norm, float eps,
                const uint32_t *ids, float *h);
/* x [hidden] += the experts' outputs, slots summed lane by lane; width <= 512. */
void ref_down(const ref_experts *m, const float *h, const uint32_t *ids, const float *weights,
              float *x);
/* The same with every slot's output rounded first (the kernels of fuse_down off). */
void ref_down_separate(const ref_experts *m, const float *h, const uint32_t *ids,
                       const float *weights, float *x);

#endif
