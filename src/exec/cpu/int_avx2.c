/* int_avx2.c - 4-bit matrices by activations of 8 or 16 bits: AVX2. Two instructions and an
 * addition do the work of VNNI's one: no sum of two products leaves 16 bits, since a code is
 * below 16. */
#include "exec/cpu/registry.h"

#include "exec/cpu/vec.h"

typedef __m256i vi;

static ATTR_INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
static ATTR_INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
static ATTR_INLINE vi vi_shl8(vi a)
{
    return _mm256_slli_epi32(a, 8);
}
static ATTR_INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
static ATTR_INLINE void vi_store(void *p, vi a)
{
    _mm256_storeu_si256(p, a);
}
static ATTR_INLINE vi vi_set(int32_t word)
{
    return _mm256_set1_epi32(word);
}
static ATTR_INLINE vf vi_f32(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
static ATTR_INLINE vi vi_low(vi a)
{
    return _mm256_and_si256(a, _mm256_set1_epi8(15));
}
static ATTR_INLINE vi vi_high(vi a)
{
    return vi_low(_mm256_srli_epi32(a, 4));
}
static ATTR_INLINE vi vi_dot(vi sum, vi u, vi s)
{
    const vi two = _mm256_maddubs_epi16(u, s);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
}

/* Words 0 .. 7 of 8 rows: an 8 x 8 transposition. */
static ATTR_INLINE void words(const uint8_t *const p[VLEN], size_t off, uint32_t n_bytes, vi out[8])
{
    vi a[8], b[8];
    (void)n_bytes;
    UNROLLED (i, 8)
        a[i] = vi_load(p[i] + off);
    UNROLLED (i, 4) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    UNROLLED (i, 2) { /* 128-bit lanes: words j, j + 4 of rows 4 i .. */
        a[4 * i] = _mm256_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm256_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm256_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm256_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    UNROLLED (i, 4) {
        out[i] = _mm256_permute2x128_si256(a[i], a[4 + i], 0x20);
        out[4 + i] = _mm256_permute2x128_si256(a[i], a[4 + i], 0x31);
    }
}

/* Parameters of groups [g, g + n), n <= 16. */
static ATTR_INLINE void params(const uint8_t *const p[VLEN], uint32_t g, uint32_t n,
                               float out[16][VLEN])
{
    for (uint32_t i = 0; i < VLEN; i++)
        for (uint32_t j = 0; j < n; j++)
            out[j][i] = load_bf16(p[i] + (size_t)(g + j) * 2);
}

#define K(name)    avx2_##name
#define INT_TOKENS 4
#include "exec/cpu/vec_int.inc"
#include "exec/cpu/vec_int_one.inc"
