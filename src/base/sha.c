#include "base/sha.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include "base/sha_blocks.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static uint32_t rotl(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

static void sha256_blocks_plain(uint32_t h[8], const uint8_t *p, size_t n)
{
    for (; n > 0; n--, p += 64) {
        uint32_t w[64];
        for (size_t i = 0; i < 16; i++)
            w[i] = load_be32(p + 4 * i);
        for (size_t i = 16; i < 64; i++) {
            const uint32_t x = w[i - 15], y = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (rotl(x, 25) ^ rotl(x, 14) ^ x >> 3) +
                   (rotl(y, 15) ^ rotl(y, 13) ^ y >> 10);
        }
        uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
        for (size_t i = 0; i < 64; i++) {
            const uint32_t t = k + (rotl(e, 26) ^ rotl(e, 21) ^ rotl(e, 7)) + ((e & f) ^ (~e & g)) +
                               sha256_k[i] + w[i];
            const uint32_t u =
                (rotl(a, 30) ^ rotl(a, 19) ^ rotl(a, 10)) + ((a & b) ^ (a & c) ^ (b & c));
            k = g;
            g = f;
            f = e;
            e = d + t;
            d = c;
            c = b;
            b = a;
            a = t + u;
        }
        const uint32_t s[8] = {a, b, c, d, e, f, g, k};
        for (size_t i = 0; i < 8; i++)
            h[i] += s[i];
    }
}

static void sha1_blocks(uint32_t h[8], const uint8_t *p, size_t n)
{
    static const uint32_t k[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    for (; n > 0; n--, p += 64) {
        uint32_t w[80];
        for (size_t i = 0; i < 16; i++)
            w[i] = load_be32(p + 4 * i);
        for (size_t i = 16; i < 80; i++)
            w[i] = rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
        for (size_t i = 0; i < 80; i++) {
            const uint32_t f = i < 20   ? (b & c) | (~b & d)
                               : i < 40 ? b ^ c ^ d
                               : i < 60 ? (b & c) | (b & d) | (c & d)
                                        : b ^ c ^ d;
            const uint32_t t = rotl(a, 5) + f + e + k[i / 20] + w[i];
            e = d;
            d = c;
            c = rotl(b, 30);
            b = a;
            a = t;
        }
        h[0] += a;
        h[1] += b;
        h[2] += c;
        h[3] += d;
        h[4] += e;
    }
}

/* ---- Choosing ----------------------------------------------------------------------------- */

static atomic_int plain_forced;

void sha_force_plain(int on)
{
    atomic_store(&plain_forced, on);
}

static bool has_instructions(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29)) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
    return true;
#elif defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & (1ul << 6)) != 0; /* HWCAP_SHA2 */
#else
    return false;
#endif
}

static sha256_blocks_fn sha256_blocks(void)
{
    if (atomic_load(&plain_forced) || !has_instructions()) return sha256_blocks_plain;
#if defined(__x86_64__)
    return sha256_blocks_shani;
#elif defined(__aarch64__)
    return sha256_blocks_armsha;
#else
    return sha256_blocks_plain;
#endif
}

const char *sha_variant(void)
{
    if (sha256_blocks() == sha256_blocks_plain) return "plain";
#if defined(__x86_64__)
    return "sha-ni";
#else
    return "armv8";
#endif
}

/* ---- Pieces ------------------------------------------------------------------------------- */

void sha_init(sha *s, sha_kind kind)
{
    static const uint32_t h1[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    static const uint32_t h256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(s, 0, sizeof *s);
    s->kind = kind;
    memcpy(s->h, kind == SHA_1 ? h1 : h256, sizeof s->h);
}

void sha_update(sha *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    const sha256_blocks_fn blocks = s->kind == SHA_1 ? sha1_blocks : sha256_blocks();
    const size_t have = s->n_bytes % 64;
    s->n_bytes += n;
    if (have > 0) {
        const size_t room = 64 - have, take = n < room ? n : room;
        memcpy(s->block + have, p, take);
        if (take < room) return;
        blocks(s->h, s->block, 1);
        p += take;
        n -= take;
    }
    if (n >= 64) blocks(s->h, p, n / 64);
    if (n % 64 > 0) memcpy(s->block, p + n / 64 * 64, n % 64);
}

void sha_final(sha *s, char hex[SHA_HEX_MAX])
{
    static const char digits[] = "0123456789abcdef";
    const uint64_t n_bits = s->n_bytes * 8;
    const size_t have = s->n_bytes % 64;
    uint8_t tail[72] = {0x80}; /* up to 64 bytes of padding, then the length */
    const size_t n_pad = (have < 56 ? 56 : 120) - have;
    for (size_t i = 0; i < 8; i++)
        tail[n_pad + i] = (uint8_t)(n_bits >> (56 - 8 * i));
    sha_update(s, tail, n_pad + 8);
    const size_t n = s->kind == SHA_1 ? 40 : 64;
    for (size_t i = 0; i < n; i++)
        hex[i] = digits[s->h[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[n] = '\0';
}
