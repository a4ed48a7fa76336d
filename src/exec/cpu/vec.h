/* vec.h - vectors of f32, one vocabulary for AVX2, AVX-512 and NEON.
 *
 * Does:       lets a kernel body be written once and compiled once per instruction set; the set is
 *             the widest that the file's compiler flags allow. VLEN is the number of lanes (not
 *             defined, and nothing else is, where there is no set).
 * Invariants: every operation is IEEE, round to nearest; v_fma rounds once. Sums of lanes are
 *             pairwise in a fixed order, v_sum4 in the same order as v_sum. Loads and stores need
 *             no alignment and touch VLEN elements exactly.
 */
#ifndef CALLA_EXEC_CPU_VEC_H
#define CALLA_EXEC_CPU_VEC_H

#include <stdint.h>

#include "base/attrs.h"
#include "base/ck.h"

#define VEC_OP static ATTR_INLINE

#if defined(__AVX512F__)

#include <immintrin.h>
#define VLEN 16u
typedef __m512 vf;

VEC_OP vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC_OP void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
VEC_OP vf v_set(float a)
{
    return _mm512_set1_ps(a);
}
VEC_OP vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VEC_OP vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
VEC_OP vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VEC_OP vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
VEC_OP vf v_fma(vf a, vf b, vf c) /* a * b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}
VEC_OP vf v_max(vf a, vf b) /* b where either is NaN */
{
    return _mm512_max_ps(a, b);
}
VEC_OP vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VEC_OP vf v_load_bf16(const void *p)
{
    const __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
/* 2 * VLEN values: the lower halves of 32-bit words, and the upper ones */
VEC_OP void v_load_bf16_pairs(const void *p, vf *lo, vf *hi)
{
    const __m512i u = _mm512_loadu_si512(p);
    *lo = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    *hi = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000)));
}
VEC_OP vf v_load_raw(const uint8_t *p) /* f32 at any address */
{
    return _mm512_castsi512_ps(_mm512_loadu_si512(p));
}
VEC_OP vf v_set_bf16(const uint8_t *p)
{
    return v_set(load_bf16(p));
}
VEC_OP vf v_round(vf a) /* to an integer, ties to even */
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_OP vf v_ldexp(vf a, vf n) /* a * 2^n, rounded once; n integer, |n| <= 252 */
{
    return _mm512_scalef_ps(a, n);
}
VEC_OP __m256 v_halves_(vf a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

#elif defined(__AVX2__)

#include <immintrin.h>
#define VLEN 8u
typedef __m256 vf;

VEC_OP vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VEC_OP void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}
VEC_OP vf v_set(float a)
{
    return _mm256_set1_ps(a);
}
VEC_OP vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
VEC_OP vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
VEC_OP vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
VEC_OP vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
VEC_OP vf v_fma(vf a, vf b, vf c) /* a * b + c */
{
    return _mm256_fmadd_ps(a, b, c);
}
VEC_OP vf v_max(vf a, vf b) /* b where either is NaN */
{
    return _mm256_max_ps(a, b);
}
VEC_OP vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VEC_OP vf v_load_bf16(const void *p)
{
    const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
VEC_OP void v_load_bf16_pairs(const void *p, vf *lo, vf *hi)
{
    const __m256i u = _mm256_loadu_si256(p);
    *lo = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    *hi = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000)));
}
VEC_OP vf v_load_raw(const uint8_t *p) /* f32 at any address */
{
    return _mm256_castsi256_ps(_mm256_loadu_si256((const void *)p));
}
VEC_OP vf v_set_bf16(const uint8_t *p)
{
    const __m256i pairs = _mm256_set1_epi16((short)load_le16(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
VEC_OP vf v_round(vf a) /* to an integer, ties to even */
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_OP vf v_pow2_(__m256i n) /* -126 <= n <= 127 */
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
VEC_OP vf v_ldexp(vf a, vf n) /* a * 2^n, n integer, |n| <= 252; rounded once if |a| is near 1 */
{
    const __m256i i = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(i, 1);
    return v_mul(v_mul(a, v_pow2_(half)), v_pow2_(_mm256_sub_epi32(i, half)));
}
VEC_OP __m256 v_halves_(vf a)
{
    return a;
}

#elif defined(__aarch64__)

#include <arm_neon.h>
#define VLEN 4u
typedef float32x4_t vf;

VEC_OP vf v_load(const float *p)
{
    return vld1q_f32(p);
}
VEC_OP void v_store(float *p, vf a)
{
    vst1q_f32(p, a);
}
VEC_OP vf v_set(float a)
{
    return vdupq_n_f32(a);
}
VEC_OP vf v_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
VEC_OP vf v_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
VEC_OP vf v_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
VEC_OP vf v_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
VEC_OP vf v_fma(vf a, vf b, vf c) /* a * b + c */
{
    return vfmaq_f32(c, a, b);
}
VEC_OP vf v_max(vf a, vf b) /* NaN where either is */
{
    return vmaxq_f32(a, b);
}
VEC_OP vf v_min(vf a, vf b)
{
    return vminq_f32(a, b);
}
VEC_OP vf v_load_bf16(const void *p)
{
    const uint16x4_t h = vreinterpret_u16_u8(vld1_u8(p));
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}
VEC_OP void v_load_bf16_pairs(const void *p, vf *lo, vf *hi)
{
    const uint32x4_t u = vreinterpretq_u32_u8(vld1q_u8(p));
    *lo = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
    *hi = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000u)));
}
VEC_OP vf v_load_raw(const uint8_t *p) /* f32 at any address */
{
    return vreinterpretq_f32_u8(vld1q_u8(p));
}
VEC_OP vf v_set_bf16(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vdup_n_u16(load_le16(p)), 16));
}
VEC_OP vf v_round(vf a) /* to an integer, ties to even */
{
    return vrndnq_f32(a);
}
VEC_OP vf v_pow2_(int32x4_t n) /* -126 <= n <= 127 */
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
VEC_OP vf v_ldexp(vf a, vf n) /* a * 2^n, n integer, |n| <= 252; rounded once if |a| is near 1 */
{
    const int32x4_t i = vcvtq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(i, 1);
    return v_mul(v_mul(a, v_pow2_(half)), v_pow2_(vsubq_s32(i, half)));
}
VEC_OP float v_sum(vf a) /* (a0 + a1) + (a2 + a3) */
{
    return vaddvq_f32(a);
}
VEC_OP float v_hmax(vf a)
{
    return vmaxvq_f32(a);
}
VEC_OP void v_sum4(vf a, vf b, vf c, vf d, float *out) /* four sums to out[0 .. 4) */
{
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

#endif

#if defined(__AVX2__)
/* Fold to 8 lanes, neighbours, neighbours again, halves. */
VEC_OP void v_sum4(vf a, vf b, vf c, vf d, float *out) /* four sums to out[0 .. 4) */
{
    const __m256 ab = _mm256_hadd_ps(v_halves_(a), v_halves_(b));
    const __m256 cd = _mm256_hadd_ps(v_halves_(c), v_halves_(d));
    const __m256 s = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
VEC_OP float v_sum(vf a)
{
    const __m256 h = v_halves_(a);
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(h, h), h);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
VEC_OP float v_hmax(vf a)
{
    float lane[VLEN];
    v_store(lane, a);
    float m = lane[0];
    for (unsigned i = 1; i < VLEN; i++)
        m = lane[i] > m ? lane[i] : m;
    return m;
}
#endif

#if defined(VLEN)

/* e^x within 1.01 ulp, denormal results included; 0 below -104, infinity above 88.73; NaN stays
 * NaN. x = n ln 2 + r, |r| <= ln 2 / 2; the polynomial is the minimax of (e^r - 1 - r) / r^2,
 * relative error of e^r 3e-9. */
VEC_OP vf v_exp(vf x)
{
    x = v_max(v_set(-104.0f), v_min(v_set(89.0f), x));
    const vf n = v_round(v_mul(x, v_set(0x1.715476p+0f)));
    vf r = v_fma(n, v_set(-0x1.62e400p-1f), x);
    r = v_fma(n, v_set(-0x1.7f7d1cp-20f), r);
    vf p = v_set(0x1.6a23cep-10f);
    p = v_fma(p, r, v_set(0x1.123a20p-7f));
    p = v_fma(p, r, v_set(0x1.5558f2p-5f));
    p = v_fma(p, r, v_set(0x1.555492p-3f));
    p = v_fma(p, r, v_set(0x1.fffffcp-2f));
    p = v_fma(p, v_mul(r, r), r);
    return v_ldexp(v_add(p, v_set(1.0f)), n);
}

VEC_OP vf v_sigmoid(vf x)
{
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), x))));
}

VEC_OP vf v_silu(vf x)
{
    return v_div(x, v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), x))));
}

#endif
#endif
