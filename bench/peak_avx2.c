#include <immintrin.h>
#include <string.h>

#define PEAK_FN peak_fma_avx2
#include "peak_fma.inc"

#define READ_FN peak_read_avx2
#define VEC     __m256i
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define XOR     _mm256_xor_si256
#define ZERO    _mm256_setzero_si256()
#include "peak_read.inc"
