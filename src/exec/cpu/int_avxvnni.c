/* int_avxvnni.c - 4-bit matrices by activations of 8 or 16 bits: AVX-VNNI, the sum of four products
 * of bytes on vectors of 256 bits (processors with it have no AVX-512, as a rule). */
#include "exec/cpu/registry.h"

#include "exec/cpu/vec.h"

typedef __m256i vi;

static ATTR_INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
static ATTR_INLINE vi vi_dot(vi sum, vi u, vi s)
{
    return _mm256_dpbusd_avx_epi32(sum, u, s);
}
static ATTR_INLINE vi vi_group(vi even, vi odd, const uint8_t *x, uint32_t n_planes)
{
    vi s = _mm256_setzero_si256();
    UNROLLED (i, n_planes) {
        if (i > 0) s = _mm256_slli_epi32(s, 8);
        s = vi_dot(s, even, vi_load(x + i * 64));
        s = vi_dot(s, odd, vi_load(x + i * 64 + 32));
    }
    return s;
}

#define K(name)    avxvnni_##name
#define INT_TOKENS 6
#include "exec/cpu/int_256.inc"
