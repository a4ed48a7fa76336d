#include <immintrin.h>
#include <string.h>

#define PEAK_CHAINS 12
#define PEAK_FN     peak_fma_avx512
#include "bench/peak_fma.inc"

#define READ_FN peak_read_avx512
#define VEC     __m512i
#define LOAD    _mm512_loadu_si512
#define XOR     _mm512_xor_si512
#define ZERO    _mm512_setzero_si512()
#include "bench/peak_read.inc"
