#include <immintrin.h>
#include <string.h>

#define PEAK_CHAINS 12
#define PEAK_FN     peak_fma_avx2
#include "bench/peak_fma.inc"

#define READ_FN peak_read_avx2
#define VEC     __m256i
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define XOR     _mm256_xor_si256
#define ZERO    _mm256_setzero_si256()
#include "bench/peak_read.inc"

/* As the kernels do it (exec/cpu/int_avx2.c): two instructions and an addition. */
double peak_int8_avx2(uint64_t n, float *sink)
{
    enum { CHAINS = 10 };
    __m256i acc[CHAINS];
    const __m256i one = _mm256_set1_epi16(1);
    __m256i a = _mm256_set1_epi8(3);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm256_set1_epi32(-i);
    for (uint64_t k = 0; k < n; k++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) /* by the sum itself, or the product would be made once */
            acc[i] =
                _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, acc[i]), one));
    }
    for (int i = 1; i < CHAINS; i++)
        acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    *sink += (float)_mm_cvtsi128_si32(_mm256_castsi256_si128(acc[0]));
    return (double)n * CHAINS * 32 * 2.0;
}
