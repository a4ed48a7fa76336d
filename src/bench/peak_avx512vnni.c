#include <immintrin.h>

#include "base/attrs.h"
#include "bench/peak.h"

/* Fourteen independent chains of sums of byte products in registers. */
double peak_int8_avx512vnni(uint64_t n, float *sink)
{
    enum { CHAINS = 14 };
    __m512i acc[CHAINS];
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-1);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_set1_epi32(i);
    for (uint64_t k = 0; k < n; k++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        acc[0] = _mm512_xor_si512(acc[0], acc[i]);
    *sink += (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(acc[0]));
    return (double)n * CHAINS * 64 * 2.0;
}
