#include "base/hash.h"

#include <string.h>

#include "base/attrs.h"

#define LANES  8u
#define STRIPE (LANES * 8u)
/* Odd, without a pattern: the golden ratio's and the square roots' of 2 and 3 fractions. */
#define K1 UINT64_C(0x9e3779b97f4a7c15)
#define K2 UINT64_C(0x6a09e667f3bcc909)
#define K3 UINT64_C(0xbb67ae8584caa73b)

static inline uint64_t rotate(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

/* For a fixed lane a bijection of the word, for a fixed word one of the lane. */
static inline uint64_t mix(uint64_t lane, uint64_t word)
{
    return rotate(lane ^ word, 29) * K1;
}

static inline void add_stripe(uint64_t lane[LANES], const uint8_t *p)
{
    uint64_t w[LANES];
    memcpy(w, p, STRIPE);
    UNROLLED (i, LANES)
        lane[i] = mix(lane[i], w[i]);
}

static uint64_t scatter(uint64_t h)
{
    h = (h ^ h >> 32) * K2;
    h = (h ^ h >> 29) * K3;
    return h ^ h >> 32;
}

uint64_t hash64(const void *data, size_t n, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t lane[LANES];
    size_t left = n;
    UNROLLED (i, LANES)
        lane[i] = scatter(seed + (i + 1) * K1);
    for (; left >= STRIPE; left -= STRIPE, p += STRIPE)
        add_stripe(lane, p);
    if (left != 0) {
        uint8_t last[STRIPE] = {0};
        memcpy(last, p, left);
        add_stripe(lane, last);
    }
    uint64_t h = mix(seed, n);
    UNROLLED (i, LANES)
        h = mix(h, scatter(lane[i]));
    return scatter(h);
}
