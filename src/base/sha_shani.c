/* SHA-256 by x86's SHA instructions: four rounds take two of them. The state is kept as the pairs
 * of words that they want, (a b e f) and (c d g h). */
#include "base/sha_blocks.h"
#include <immintrin.h>

/* Rounds i .. i+3 with the words w; the state of the caller moves on. */
#define ROUNDS(i, w)                                                                               \
    do {                                                                                           \
        const __m128i kw = _mm_add_epi32(w, _mm_loadu_si128((const __m128i *)(sha256_k + (i))));   \
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, kw);                                              \
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(kw, 0x0e));                     \
    } while (0)

/* The next four words from the last sixteen: a, b, c, d in order; a is replaced. */
static __m128i next_words(__m128i a, __m128i b, __m128i c, __m128i d)
{
    const __m128i t = _mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4));
    return _mm_sha256msg2_epu32(t, d);
}

void sha256_blocks_shani(uint32_t h[8], const uint8_t *p, size_t n)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i lo = _mm_loadu_si128((const __m128i *)h);       /* d c b a */
    const __m128i hi = _mm_loadu_si128((const __m128i *)(h + 4)); /* h g f e */
    const __m128i cdab = _mm_shuffle_epi32(lo, 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(hi, 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; n > 0; n--, p += 64) {
        const __m128i abef_0 = abef, cdgh_0 = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
        for (int i = 0; i < 4; i++)
            ROUNDS(4 * i, w[i]);
        for (int i = 16; i < 64; i += 16) {
            for (int k = 0; k < 4; k++) {
                w[k] = next_words(w[k], w[(k + 1) & 3], w[(k + 2) & 3], w[(k + 3) & 3]);
                ROUNDS(i + 4 * k, w[k]);
            }
        }
        abef = _mm_add_epi32(abef, abef_0);
        cdgh = _mm_add_epi32(cdgh, cdgh_0);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}
