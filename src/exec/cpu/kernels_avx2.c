/* kernels_avx2.c - AVX2 and FMA: the bodies over vec.h, and how codes become weights. */
#include "exec/cpu/registry.h"

#include <math.h>

#include "exec/cpu/vec.h"

#define K(name)       avx2_##name
#define TILE_TOKENS   3u /* 4 x 3 sums, 3 operands, 1 weight: 16 registers */
#define DIRECT_TOKENS 4u

/* A group's 32 bytes are 8 lanes of 8 codes; vector i takes code i of every lane, so prepared x
 * holds columns i, 8 + i, .. 56 + i together. Codes are masked where they lie, worth 16^i times
 * their value, and meet a scale worth 16^-i: exact, as every bf16 scale / 16^3 is an f32, and a
 * shift less per vector than bringing each to the bottom. */
VEC_OP void q4_widen(const uint8_t *codes, vf scale, vf bias, vf *w)
{
    const __m256i u = _mm256_loadu_si256((const void *)codes);
    const __m256i high = _mm256_srli_epi32(u, 16);
    const vf scales[4] = {scale, v_mul(scale, v_set(0x1p-4f)), v_mul(scale, v_set(0x1p-8f)),
                          v_mul(scale, v_set(0x1p-12f))};
    UNROLLED (i, 8) {
        const __m256i mask = _mm256_set1_epi32(15 << 4 * (i % 4));
        const __m256i code = _mm256_and_si256(i < 4 ? u : high, mask);
        w[i] = v_fma(_mm256_cvtepi32_ps(code), scales[i % 4], bias);
    }
}

VEC_OP void q8_widen(const uint8_t *codes, vf scale, vf bias, vf *w)
{
    UNROLLED (i, 8) {
        const __m128i u = _mm_loadl_epi64((const void *)(codes + 8 * i));
        w[i] = v_fma(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(u)), scale, bias);
    }
}

void K(prep_q4)(const float *x, uint32_t cols, void *out)
{
    float *xp = out;
    for (uint32_t c = 0; c < cols; c += MODEL_QUANT_GROUP)
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t lane = 0; lane < 8; lane++)
                xp[c + 8 * i + lane] = x[c + 8 * lane + i];
}

#include "exec/cpu/vec_tile.inc"
#include "exec/cpu/vec_matmul.inc"
#include "exec/cpu/vec_rows.inc"
#include "exec/cpu/vec_gdn.inc"
#include "exec/cpu/vec_attn.inc"
