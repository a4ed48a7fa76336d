#include <immintrin.h>

#define PEAK_FN     peak_int8_avx512vnni
#define PEAK_CHAINS 14
#define VEC         __m512i
#define BYTES       __m512i
#define SET8        _mm512_set1_epi8
#define SET32       _mm512_set1_epi32
#define DOT         _mm512_dpbusd_epi32
#define XOR         _mm512_xor_si512
#define LANE0(a)    _mm_cvtsi128_si32(_mm512_castsi512_si128(a))
#define PRODUCTS    64
#include "bench/peak_int8.inc"
