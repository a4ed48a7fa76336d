#include <arm_neon.h>

#define PEAK_FN     peak_int8_dotprod
#define PEAK_CHAINS 24
#define VEC         int32x4_t
#define BYTES       int8x16_t
#define SET8        vdupq_n_s8
#define SET32       vdupq_n_s32
#define DOT         vdotq_s32
#define XOR         veorq_s32
#define LANE0(a)    vgetq_lane_s32(a, 0)
#define PRODUCTS    16
#include "bench/peak_int8.inc"
