/* ref_gemm.h - what the kernels of gemm.h compute, in plain C.
 *
 * Does:       the router, the routing lists and the combination in the kernels' order, bitwise; the
 *             products in double precision, with the sum of their terms' magnitudes for bounds.
 * Shapes:     as in gemm.h.
 */
#ifndef CALLA_KERNELS_REF_GEMM_H
#define CALLA_KERNELS_REF_GEMM_H

#include "kernels/args_gemm.h"

/* Weight k of a row: bf16 bits of scale q + bias. */
uint16_t ref_gemm_weight(const uint32_t *codes, const uint32_t *sb, uint32_t k);

/* sum [n][rows] = W x, x row rows_of[t] (NULL: t); magnitude: sum of |w x|. */
void ref_gemm(uint32_t n, uint32_t rows, uint32_t cols, const uint16_t *x, const uint32_t *rows_of,
              const uint32_t *codes, const uint32_t *sb, double *sum, double *magnitude);
/* The same with weights scale q + bias as they are, as gmm_codes takes them: magnitude is that of
 * its two sums, |scale q x| + |bias x|. */
void ref_gemm_codes(uint32_t n, uint32_t rows, uint32_t cols, const uint16_t *x,
                    const uint32_t *rows_of, const uint32_t *codes, const uint32_t *sb, double *sum,
                    double *magnitude);

/* sums [n][cols / 64] of x [n][cols]. */
void ref_gmm_sums(uint32_t n, uint32_t cols, const uint16_t *x, float *sums);

void ref_gemm_router(const gemm_router_args *a, const float *x, const float *norm,
                     const uint32_t *codes, const uint32_t *sb, float *y);

/* Everything that moe_count and moe_plan write. */
typedef struct ref_moe_lists {
    uint32_t *counts;     /* [n_experts][8] */
    uint32_t *slot_token; /* [n (n_used + 1)] */
    uint32_t *slot_of;    /* [n][n_used] */
    uint32_t *n_map;      /* [16] */
    uint32_t *full;       /* [..][4] */
    uint32_t *tails;      /* [..][4] */
} ref_moe_lists;
void ref_moe_plan(const moe_plan_args *a, const uint32_t *ids, const ref_moe_lists *out);

void ref_moe_combine(const moe_combine_args *a, const uint16_t *y, const uint32_t *slot_of,
                     const float *weights, float *x);

#endif
