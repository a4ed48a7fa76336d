/* ref_basic.h - what the kernels of basic.h compute, in plain C and in the same order.
 *
 * Does:       op_embed, op_norm_bf16, op_top8 and op_argmax on host memory, bitwise equal to the
 *             kernels when the host flushes denormals (base/fpenv.h).
 * Shapes:     as in exec/gpu/ops.h.
 */
#ifndef CALLA_KERNELS_REF_BASIC_H
#define CALLA_KERNELS_REF_BASIC_H

#include <stdint.h>
#include "kernels/args.h"

/* The xor tree of simd_sum_f32 over v[32]. */
float ref_simd_sum(const float *v);

/* rsqrt(mean of x^2 + eps) over n % 4 == 0 values. */
float ref_rms_inverse(const float *x, uint32_t n, float eps);

/* One row of a 4-bit matrix, expanded. */
void ref_q4_row(const uint32_t *codes, const uint32_t *sb, uint32_t cols, float *out);

void ref_embed(uint32_t n, uint32_t hidden, const tok_entry *tok, const uint32_t *codes,
               const uint32_t *sb, const float *inv_freq, float *x, float *rope);
void ref_norm_bf16(uint32_t n, uint32_t hidden, float eps, const float *x, const float *w,
                   uint16_t *y);
/* n_used <= 32. */
void ref_top8(uint32_t n, uint32_t n_experts, uint32_t n_used, const float *logits, uint32_t *ids,
              float *weights);
void ref_argmax(uint32_t n, uint32_t n_vocab, uint32_t n_valid, const float *logits,
                uint32_t *best);

#endif
