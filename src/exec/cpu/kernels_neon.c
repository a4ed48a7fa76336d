/* kernels_neon.c - ARMv8.0 Advanced SIMD: the bodies over vec.h, and how codes become weights. */
#include "exec/cpu/registry.h"

#include <math.h>

#include "exec/cpu/vec.h"

#define K(name)       neon_##name
#define TILE_TOKENS   6u /* 4 x 6 sums, 6 operands, 1 weight: 31 of 32 registers */
#define DIRECT_TOKENS 3u

/* 16 bytes are 4 lanes of 8 codes; vector i takes code i of every lane, so prepared x holds columns
 * i, 8 + i, 16 + i, 24 + i of each 32 together. Codes are masked where they lie; the fixed-point
 * conversion divides by 16^i. */
#define Q4_STEP(i)                                                                                 \
    w[i] = v_fma(vcvtq_n_f32_u32(vandq_u32(u, vdupq_n_u32(15u << 4 * (i))), 4 * (i)), scale, bias)

VEC_OP void q4_widen(const uint8_t *codes, vf scale, vf bias, vf *w)
{
    const uint32x4_t u = vreinterpretq_u32_u8(vld1q_u8(codes));
    w[0] = v_fma(vcvtq_f32_u32(vandq_u32(u, vdupq_n_u32(15))), scale, bias);
    Q4_STEP(1);
    Q4_STEP(2);
    Q4_STEP(3);
    Q4_STEP(4);
    Q4_STEP(5);
    Q4_STEP(6);
    Q4_STEP(7);
}

VEC_OP void q8_widen(const uint8_t *codes, vf scale, vf bias, vf *w)
{
    UNROLLED (i, 2) {
        const uint8x16_t u = vld1q_u8(codes + 16 * i);
        const uint16x8_t low = vmovl_u8(vget_low_u8(u)), high = vmovl_high_u8(u);
        w[4 * i] = v_fma(vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), scale, bias);
        w[4 * i + 1] = v_fma(vcvtq_f32_u32(vmovl_high_u16(low)), scale, bias);
        w[4 * i + 2] = v_fma(vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), scale, bias);
        w[4 * i + 3] = v_fma(vcvtq_f32_u32(vmovl_high_u16(high)), scale, bias);
    }
}

void K(prep_q4)(const float *x, uint32_t cols, void *out)
{
    float *xp = out;
    for (uint32_t c = 0; c < cols; c += 32)
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t lane = 0; lane < 4; lane++)
                xp[c + 4 * i + lane] = x[c + 8 * lane + i];
}

#include "exec/cpu/vec_tile.inc"
#include "exec/cpu/vec_matmul.inc"
#include "exec/cpu/vec_rows.inc"
#include "exec/cpu/vec_gdn.inc"
#include "exec/cpu/vec_attn.inc"
