/* ck.h - checked arithmetic for sizes, little-endian loads, bf16.
 *
 * Every size that comes from outside is built with ck_add/ck_mul. Loads assume neither alignment
 * nor a host byte order (MLX safetensors data begins at odd addresses).
 */
#ifndef CALLA_BASE_CK_H
#define CALLA_BASE_CK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* *out = a + b; false (and *out untouched) when the sum does not fit. */
static inline bool ck_add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b > UINT64_MAX - a) return false;
    *out = a + b;
    return true;
}

/* *out = a * b; false (and *out untouched) when the product does not fit. */
static inline bool ck_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a != 0 && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}

static inline uint64_t load_le64(const void *p)
{
    const uint8_t *b = p;
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | b[i];
    return v;
}

static inline uint32_t load_le32(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint16_t load_le16(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}

/* bf16 is the upper half of an f32. */
static inline float bf16_to_f32(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float load_bf16(const void *p)
{
    return bf16_to_f32(load_le16(p));
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#endif
