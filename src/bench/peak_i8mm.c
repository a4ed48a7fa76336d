#include <arm_neon.h>

#include "base/attrs.h"
#include "bench/peak.h"

/* Independent chains of products of 2 x 8 by 8 x 2 bytes in registers. */
double peak_int8_i8mm(uint64_t n, float *sink)
{
    enum { CHAINS = 24 };
    int32x4_t acc[CHAINS];
    const int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(-1);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = vdupq_n_s32(i);
    for (uint64_t k = 0; k < n; k++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            acc[i] = vmmlaq_s32(acc[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        acc[0] = veorq_s32(acc[0], acc[i]);
    *sink += (float)vgetq_lane_s32(acc[0], 0);
    return (double)n * CHAINS * 32 * 2.0;
}
