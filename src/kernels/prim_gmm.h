/* prim_gmm.h - the whole K loop of a 4-bit product where the target has a better one than mm_mac.
 *
 * Does:       gmm_run<G, WIDE, MODE>(tile, x, slot_token, w, sb, pitch, y, tid, lane, sg) by 128 G
 *             threads: a tile of W x, up to 128 tokens by 64 G rows of W; then, by MODE, y = or
 *             y += (f32, rows of pitch elements), or for experts y = bf16(silu(g) u) of rows
 *             g0 u0 g1 u1 .., or y = bf16. w holds codes, and x and the h of GMM_UP are in the
 *             order of GMM_COLUMN; or, WIDE, bf16 pairs, and all is in its own order. Rows of x:
 *             slot_token[x0 + r] for GMM_UP, else x0 + r. (GPU_MM_WGMMA)
 *             gmm_codes<BM, MODE>(tile, x, sums, w, sb, pitch, y, lane, sg) by each simdgroup with
 *             32 sg < n_w: up to BM tokens (16 or 32) by rows 32 sg .. 32 sg + 31 of the tile's up
 *             to 128. MODE as above; x in its own order, rows x0 + r; sums [..][cols / 64]: of each
 *             row of x, by groups (gmm_sums). cols % 256 == 0, codes 128-byte aligned.
 *             (GPU_MM_CODES)
 * Invariants: on targets without one nothing is launched (gpu_limits.native_mm), and the portable
 *             tile does everything. gmm_run: rounding of weights and bound of errors as prim_mm.h.
 *             gmm_codes: weights scale q + bias are not rounded; sum over groups of
 *             scale sum(q x) + bias sum(x), within K eps sum(|scale q x| + |bias x|).
 */
#ifndef CALLA_KERNELS_PRIM_GMM_H
#define CALLA_KERNELS_PRIM_GMM_H

#include "kernels/prim_mm.h"

#define GMM_TOKENS 128u

struct gmm_tile {
    uint x0, n_x; /* tokens or slots: first, number <= 128; gmm_codes: <= BM */
    uint w0, n_w; /* rows of W: first, number; even */
    uint cols;
};

enum { GMM_SET, GMM_ADD, GMM_UP, GMM_DOWN };

#if defined(__CUDACC__)
#include "kernels/prim_gmm_cuda.h"
#elif defined(__METAL_VERSION__)
#include "kernels/prim_gmm_metal.h"
#else
#include "kernels/prim_gmm_simt.h"
#endif

#endif
