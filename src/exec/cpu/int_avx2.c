/* int_avx2.c - 4-bit matrices by activations of 8 or 16 bits: AVX2. Two instructions and an
 * addition do the work of VNNI's one: no sum of two products leaves 16 bits, nor one of sixteen,
 * since a code is below 16. */
#include "exec/cpu/registry.h"

#include "exec/cpu/vec.h"

typedef __m256i vi;

static ATTR_INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
static ATTR_INLINE vi vi_dot(vi sum, vi u, vi s)
{
    const vi two = _mm256_maddubs_epi16(u, s);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}
static ATTR_INLINE vi dot_narrow(vi sum, vi u, vi s)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(u, s));
}
static ATTR_INLINE vi vi_widen(vi sum, vi narrow)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
}
#define vi_dot_narrow dot_narrow
/* Four products a lane of 16 bits; the high plane counts 256 times. */
static ATTR_INLINE vi vi_group(vi even, vi odd, const uint8_t *x, uint32_t n_planes)
{
    vi s = _mm256_setzero_si256();
    UNROLLED (i, n_planes) {
        const vi four = _mm256_add_epi16(_mm256_maddubs_epi16(even, vi_load(x + i * 64)),
                                         _mm256_maddubs_epi16(odd, vi_load(x + i * 64 + 32)));
        const vi worth = _mm256_set1_epi16(i + 1 < n_planes ? 256 : 1);
        s = _mm256_add_epi32(s, _mm256_madd_epi16(four, worth));
    }
    return s;
}

#define K(name)    avx2_##name
#define INT_TOKENS 4
#include "exec/cpu/int_256.inc"
