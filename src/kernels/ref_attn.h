/* ref_attn.h - what the attention kernels compute, in plain C.
 *
 * Does:   ref_attn_prepare, ref_attn_step and ref_attn_scan take every sum in the order of the
 *         scalar kernels (attn.h): their bits are equal. ref_attn_exact is the mathematics in
 *         double, for the matrix-tile kernels.
 * Shapes: as in attn.h; q [T][n_heads][256] f32, scaled by ATTN_SCALE. tok, k, v as on the device.
 */
#ifndef CALLA_KERNELS_REF_ATTN_H
#define CALLA_KERNELS_REF_ATTN_H

#include <stdbool.h>

#include "kernels/args_attn.h"

/* Norm, RoPE and scale of q; k and v appended. strided: sums of the kernels with strided dims.
 * bf16: q rounded to bf16 (prefill). */
void ref_attn_prepare(const attn_args *a, const tok_entry *tok, const float *y, const float *rope,
                      const float *q_norm, const float *k_norm, bool strided, bool bf16,
                      uint16_t *k, uint16_t *v, float *q);
/* o [T][n_heads][256]; nh: heads of a simdgroup, 4 or 1. */
void ref_attn_step(const attn_args *a, const tok_entry *tok, const float *y, const float *q,
                   const uint16_t *k, const uint16_t *v, bool strided, uint32_t nh, float *o);
/* o bf16. */
void ref_attn_scan(const attn_args *a, const tok_entry *tok, const float *y, const float *q,
                   const uint16_t *k, const uint16_t *v, uint16_t *o);
void ref_attn_exact(const attn_args *a, const tok_entry *tok, const float *y, const float *q,
                    const uint16_t *k, const uint16_t *v, float *o);

#endif
