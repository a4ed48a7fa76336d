/* int_dotprod.c - 4-bit matrices by activations of 8 or 16 bits: Advanced SIMD with the dot product
 * of bytes (ARMv8.2, every Apple silicon). */
#include "exec/cpu/registry.h"

#include "exec/cpu/vec.h"

#include "exec/cpu/int_128.inc"

/* By word j of four. */
static ATTR_INLINE vi dot_lane(vi sum, vi u, vi four, uint32_t j)
{
    const int8x16_t a = vreinterpretq_s8_s32(u), b = vreinterpretq_s8_s32(four);
    switch (j) {
    case 0:
        return vdotq_laneq_s32(sum, a, b, 0);
    case 1:
        return vdotq_laneq_s32(sum, a, b, 1);
    case 2:
        return vdotq_laneq_s32(sum, a, b, 2);
    default:
        return vdotq_laneq_s32(sum, a, b, 3);
    }
}
#define vi_dot_lane dot_lane
#define rows_sum    dot_rows

#define K(name)    neon_##name
#define INT_TOKENS 6
#include "exec/cpu/vec_int.inc"
#include "exec/cpu/vec_int_one.inc"
