/* prim_gmm.h - the whole K loop of a 4-bit product where the target has a better one than mm_mac.
 *
 * Does:       gmm_run<G, WIDE, MODE>(tile, x, slot_token, w, sb, pitch, y, tid, lane, sg) by 128 G
 *             threads: a tile of W x, up to 128 tokens by 64 G rows of W; then, by MODE, y = or
 *             y += (f32, rows of pitch elements), or for experts y = bf16(silu(g) u) of rows
 *             g0 u0 g1 u1 .., or y = bf16. w holds codes, and x and the h of GMM_UP are in the
 * order of GMM_COLUMN; or, WIDE, bf16 pairs, and all is in its own order. Rows of x: slot_token[x0
 * + r] for GMM_UP, else x0 + r. Invariants: on targets without one nothing is launched
 * (gpu_limits.native_mm), and the portable tile does everything. Same rounding of weights and bound
 * of errors as prim_mm.h.
 */
#ifndef CALLA_KERNELS_PRIM_GMM_H
#define CALLA_KERNELS_PRIM_GMM_H

#include "kernels/prim_mm.h"

#define GMM_TOKENS 128u

struct gmm_tile {
    uint x0, n_x; /* tokens or slots: first, number <= 128 */
    uint w0, n_w; /* rows of W: first, number; even */
    uint cols;
};

enum { GMM_SET, GMM_ADD, GMM_UP, GMM_DOWN };

#if defined(__CUDACC__)
#include "kernels/prim_gmm_cuda.h"
#else
#define KERNEL_DYN_SMEM(name, bytes)
#define GMM_THREADS(G) 128 * G
template <uint G, bool WIDE, int MODE, typename Y>
KFN void gmm_run(THREF(const gmm_tile), DPTR(const ushort), DPTR(const uint), DPTR(const uint),
                 DPTR(const uint), uint, Y, uint, uint, uint)
{
}
#endif

#endif
