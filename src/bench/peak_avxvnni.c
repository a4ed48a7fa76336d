#include <immintrin.h>

#include "base/attrs.h"
#include "bench/peak.h"

/* Independent chains of sums of byte products in registers. */
double peak_int8_avxvnni(uint64_t n, float *sink)
{
    enum { CHAINS = 12 };
    __m256i acc[CHAINS];
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-1);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm256_set1_epi32(i);
    for (uint64_t k = 0; k < n; k++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm256_dpbusd_avx_epi32(acc[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    *sink += (float)_mm_cvtsi128_si32(_mm256_castsi256_si128(acc[0]));
    return (double)n * CHAINS * 32 * 2.0;
}
