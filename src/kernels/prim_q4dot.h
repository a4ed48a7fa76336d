/* prim_q4dot.h - products of 4-bit and 8-bit codes with f32 activations in registers.
 *
 * Does:       q4dot16: 16 codes of two words times 16 activations, one chain of fma from 0 in
 *             ascending order. q8dot16: 16 codes of four words. q4_unpack16 and q4dot_unpacked: the
 *             first in two steps, for codes that meet several activations.
 *             A target may want the activations scaled by powers of two: q4_prepare and q8_prepare
 *             do so to four of them, q4_scale and q8_scale give the group's scale with that taken
 *             back. Powers of two are exact, so every target has the bits of the scalar form.
 */
#ifndef CALLA_KERNELS_PRIM_Q4DOT_H
#define CALLA_KERNELS_PRIM_Q4DOT_H

#include "kernels/dialect.h"

/* A thread's activations. */
template <uint N> struct lane_f32 {
    float v[N];
};

KFN float q4_bias(uint sb)
{
    return KFLOAT(sb & 0xffff0000u);
}

#if defined(__CUDACC__)
#include "kernels/prim_q4dot_cuda.h"
#elif defined(__METAL_VERSION__)
#include "kernels/prim_q4dot_metal.h"
#else
#include "kernels/prim_q4dot_simt.h"
#endif

#endif
