/* simd_avx512.h - what the AVX-512 kernels share: sums across lanes, exp, bf16. */
#ifndef CALLA_EXEC_CPU_SIMD_AVX512_H
#define CALLA_EXEC_CPU_SIMD_AVX512_H

#include <immintrin.h>

#include "base/attrs.h"

/* The sums of four vectors, each by the same tree: lanes i and i + 8, then i and i + 4, i + 2,
 * i + 1. Four at once because shuffles are the scarce port. */
static ATTR_INLINE __m128 sum4(__m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44),  /* 128-bit lanes 0, 1 */
                                    _mm512_shuffle_f32x4(a, b, 0xee)); /* 2, 3 */
    const __m512 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),  /* lanes 0, 2 */
                             _mm512_shuffle_f32x4(ab, cd, 0xdd)); /* 1, 3 */
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s));
}

/* The same tree for one vector. */
static ATTR_INLINE float sum1(__m512 a)
{
    return _mm_cvtss_f32(sum4(a, a, a, a));
}

/* Sixteen bf16 values, widened. */
static ATTR_INLINE __m512 load_bf16x16(const void *p)
{
    const __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

/* e^x within 2 ulp; 0 far below, infinity far above, never NaN for a number. x = n ln 2 + r, and
 * e^r = 1 + r + r^2 p(r) with p minimax on |r| <= ln 2 / 2 (relative error of the whole 3e-9). The
 * clamp keeps n ln 2 exact; scalef does overflow, underflow and denormals. */
static ATTR_INLINE __m512 exp512(__m512 x)
{
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(100)), _mm512_set1_ps(-110));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)),
                                          _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e400p-1f), x); /* 15 bits: exact product */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
    __m512 p = _mm512_set1_ps(0x1.6a215ap-10f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.123b9ap-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.5558fcp-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.555490p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.fffffcp-2f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1)), n);
}

/* x / (1 + e^-x); -0 where e^-x overflows. */
static ATTR_INLINE __m512 silu512(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1);
    const __m512 e = exp512(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(x, _mm512_add_ps(one, e));
}

#endif
