/* prim_mm.h - matrix tiles: the one place that knows how a simdgroup holds a fragment.
 *
 * Does:       mm_acc holds a 16 x 32 f32 tile of a simdgroup. mm_zero(acc);
 *             mm_mac(acc, A, a_pitch, B, b_pitch) adds A[16, 16] B[32, 16]^T, A and B bf16 in
 *             threadgroup memory, pitches in elements, rows 16-byte aligned;
 *             mm_mac_turned adds A[16, 16] B[16, 32];
 *             MM_EACH(acc, row, col, v) { ... } visits the lane's 16 elements, v assignable.
 *             mm_dequant8(word, sb): eight 4-bit weights as bf16, in order.
 * Invariants: all lanes of the simdgroup call together, with `lane` in scope; a barrier has
 *             separated the stores to A and B from the call. Products are exact, sums f32, their
 *             order the target's: results agree within K eps sum|ab|. An element depends on its
 *             row of A and its row of B alone.
 *             A dequantised weight is bf16(scale q + bias), rounded once; where the sum needs more
 *             than 24 bits a target may round it to f32 first.
 */
#ifndef CALLA_KERNELS_PRIM_MM_H
#define CALLA_KERNELS_PRIM_MM_H

#if defined(__CUDACC__)
#include "kernels/prim_mm_cuda.h"
#elif defined(__METAL_VERSION__)
#include "kernels/prim_mm_metal.h"
#else
#include "kernels/prim_mm_simt.h"
#endif

#define mm_mac(acc, A, a_pitch, B, b_pitch) mm_mac_lane(acc, A, a_pitch, B, b_pitch, lane)
#define mm_mac_turned(acc, A, a_pitch, B, b_pitch)                                                 \
    mm_mac_turned_lane(acc, A, a_pitch, B, b_pitch, lane)
#if !defined(MM_EACH)
/* Element e of a lane: two neighbours in a row, rows 8 apart, then the next 8 columns. */
#define MM_EACH(acc, row, col, v)                                                                  \
    UNROLL for (uint v##_e = 0; v##_e < 16;                                                        \
                v##_e++) if (THREF(float) v = (acc).v[v##_e];                                      \
                             true) if (const uint row = lane / 4 + 8 * ((v##_e / 2) & 1),          \
                                       col = 8 * (v##_e / 4) + 2 * (lane & 3) + (v##_e & 1);       \
                                       true)

KFN void mm_zero(THREF(mm_acc) acc)
{
    UNROLL for (uint i = 0; i < 16; i++) acc.v[i] = 0.0f;
}
#endif

#endif
