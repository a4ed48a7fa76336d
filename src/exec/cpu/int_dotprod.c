/* int_dotprod.c - 4-bit matrices by activations of 8 or 16 bits: Advanced SIMD with the dot product
 * of bytes (ARMv8.2, every Apple silicon). */
#include "exec/cpu/registry.h"

#include "exec/cpu/vec.h"

typedef int32x4_t vi;

static ATTR_INLINE vi vi_zero(void)
{
    return vdupq_n_s32(0);
}
static ATTR_INLINE vi vi_add(vi a, vi b)
{
    return vaddq_s32(a, b);
}
static ATTR_INLINE vi vi_shl8(vi a)
{
    return vshlq_n_s32(a, 8);
}
static ATTR_INLINE vi vi_load(const void *p)
{
    return vreinterpretq_s32_u8(vld1q_u8(p));
}
static ATTR_INLINE void vi_store(void *p, vi a)
{
    vst1q_u8(p, vreinterpretq_u8_s32(a));
}
static ATTR_INLINE vi vi_set(int32_t word)
{
    return vdupq_n_s32(word);
}
static ATTR_INLINE vf vi_f32(vi a)
{
    return vcvtq_f32_s32(a);
}
static ATTR_INLINE vi vi_low(vi a)
{
    return vandq_s32(a, vdupq_n_s32(0x0f0f0f0f));
}
static ATTR_INLINE vi vi_high(vi a)
{
    return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a), 4));
}
static ATTR_INLINE vi vi_dot(vi sum, vi u, vi s)
{
    return vdotq_s32(sum, vreinterpretq_s8_s32(u), vreinterpretq_s8_s32(s));
}

/* Words 0 .. 7 of 4 rows: two transpositions of 4 x 4. */
static ATTR_INLINE void words(const uint8_t *const p[VLEN], size_t off, uint32_t n_bytes, vi out[8])
{
    (void)n_bytes;
    UNROLLED (half, 2) {
        vi a[4];
        UNROLLED (i, 4)
            a[i] = vi_load(p[i] + off + half * 16);
        const int64x2_t b0 = vreinterpretq_s64_s32(vtrn1q_s32(a[0], a[1]));
        const int64x2_t b1 = vreinterpretq_s64_s32(vtrn2q_s32(a[0], a[1]));
        const int64x2_t b2 = vreinterpretq_s64_s32(vtrn1q_s32(a[2], a[3]));
        const int64x2_t b3 = vreinterpretq_s64_s32(vtrn2q_s32(a[2], a[3]));
        out[4 * half] = vreinterpretq_s32_s64(vtrn1q_s64(b0, b2));
        out[4 * half + 1] = vreinterpretq_s32_s64(vtrn1q_s64(b1, b3));
        out[4 * half + 2] = vreinterpretq_s32_s64(vtrn2q_s64(b0, b2));
        out[4 * half + 3] = vreinterpretq_s32_s64(vtrn2q_s64(b1, b3));
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

#define K(name)    neon_##name
#define INT_TOKENS 6
#include "exec/cpu/vec_int.inc"
#include "exec/cpu/vec_int_one.inc"
