#include <immintrin.h>

#define PEAK_FN     peak_int8_avxvnni
#define PEAK_CHAINS 12
#define VEC         __m256i
#define BYTES       __m256i
#define SET8        _mm256_set1_epi8
#define SET32       _mm256_set1_epi32
#define DOT         _mm256_dpbusd_avx_epi32
#define XOR         _mm256_xor_si256
#define LANE0(a)    _mm_cvtsi128_si32(_mm256_castsi256_si128(a))
#define PRODUCTS    32
#include "bench/peak_int8.inc"
