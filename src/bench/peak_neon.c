#include <arm_neon.h>
#include <string.h>

#define PEAK_CHAINS 24
#define PEAK_FN     peak_fma_neon
#include "bench/peak_fma.inc"

#define READ_FN peak_read_neon
#define VEC     uint8x16_t
#define LOAD(p) vld1q_u8(p)
#define XOR     veorq_u8
#define ZERO    vdupq_n_u8(0)
#include "bench/peak_read.inc"
