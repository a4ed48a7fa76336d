/* prim_gmm_cuda.h - the native main loop of 4-bit products on Hopper (sm_90a): wgmma with the
 * weights from registers.
 *
 * Does:       one tile Y^T = W X^T: 64 G rows of W (G warpgroups) by N tokens, N the tile's number
 *             rounded up to 16. The weights are wgmma's M side: codes are
 *             dequantised where the instruction reads them, so a tile of few tokens wastes little
 *             and no weight makes a second trip through shared memory. The tokens are its N side,
 *             gathered by row into shared memory in the 128-byte swizzle.
 *             A ring of GMM_STAGES blocks of 64 columns is filled by cp.async, two behind the
 *             oldest in use; a block's two halves are two groups of wgmma, of which one always runs
 *             while the next half is dequantised.
 * Order:      A lane of wgmma holds columns 2c, 2c + 1, 8 + 2c, 9 + 2c of every 16 (c = lane % 4);
 *             a word of codes has eight consecutive ones. So the columns of X are permuted inside
 *             blocks of 32 (gmm_permute, GMM_COLUMN): then lane c wants words c and 4 + c of the
 *             row's 8, which is what ldmatrix gives, and a pair is nibbles n and n + 4 of a word,
 *             which is one mask. Row r of a fragment is row 2 r of W, row r + 8 is 2 r + 1: gate
 *             and up meet in one lane. Bf16 weights (WIDE) need no other order of X.
 * Invariants: weights are bf16(scale q + bias), sums f32 by ascending blocks of 16 columns, the
 * same for every N. cols % 64 == 0, rows even, codes 16-byte aligned.
 */
#ifndef CALLA_KERNELS_PRIM_GMM_CUDA_H
#define CALLA_KERNELS_PRIM_GMM_CUDA_H

/* Shared memory: GMM_STAGES x { X 128 x 128 B, then codes 64 G x 32 B and sb 64 G x 4 B, or WIDE
 * W 64 G x 128 B }, 1024-aligned. */
#define GMM_X_BYTES (GMM_TOKENS * 128u)
#define GMM_STAGE_BYTES(G, WIDE)                                                                   \
    ((GMM_X_BYTES + (G)*64u * ((WIDE) ? 128u : 36u) + 1023u) / 1024u * 1024u)
#define GMM_STAGES(G, WIDE) ((WIDE) ? 4u : (G) == 4 ? 8u : 5u)
#define GMM_SMEM(G, WIDE)   (GMM_STAGES(G, WIDE) * GMM_STAGE_BYTES(G, WIDE) + 1024u)
/* Of __launch_bounds__: two groups of two warpgroups share a multiprocessor. */
#define GMM_THREADS(G) 128 * G, 4 / G

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- Instructions ---- */

KFN void gmm_copy16(uint smem, const void *p)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(smem), "l"(p)
                 : "memory");
}
KFN void gmm_copy4(uint smem, const void *p)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem), "l"(p) : "memory");
}
KFN void gmm_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <uint N> KFN void gmm_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Shared memory written before it is seen by wgmma. */
KFN void gmm_fence_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Registers written before it are seen by wgmma. */
KFN void gmm_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
KFN void gmm_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <uint N> KFN void gmm_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* The compiler may not move reads of v above this. */
KFN void gmm_hold(float &v)
{
    asm volatile("" : "+f"(v)::"memory");
}

KFN uint gmm_load_u32(uint smem)
{
    uint v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(smem) : "memory");
    return v;
}
KFN void gmm_store_u32(uint smem, uint v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem), "r"(v) : "memory");
}
KFN void gmm_store_u16(uint smem, uint v)
{
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(smem), "h"((ushort)v) : "memory");
}
KFN uint4 gmm_load_16(uint smem)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(smem)
                 : "memory");
    return v;
}

/* d [64][N] += A [64][16] B [N][16]^T; a: the lane's part of A, b: B's descriptor. */
#define GMM_F8(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define GMM_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
template <uint N> KFN void gmm_mma(float *d, const uint *a, ulong b);
/* clang-format off */
template <> __device__ __forceinline__ void gmm_mma<16>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
                 : GMM_F8(0)
                 : GMM_A, "l"(b)
                 : "memory");
}
template <> __device__ __forceinline__ void gmm_mma<32>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                 : GMM_F8(0), GMM_F8(8)
                 : GMM_A, "l"(b)
                 : "memory");
}
template <> __device__ __forceinline__ void gmm_mma<48>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23}, "
                 "{%24, %25, %26, %27}, %28, 1, 1, 1, 0;"
                 : GMM_F8(0), GMM_F8(8), GMM_F8(16)
                 : GMM_A, "l"(b)
                 : "memory");
}
template <> __device__ __forceinline__ void gmm_mma<64>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : GMM_F8(0), GMM_F8(8), GMM_F8(16), GMM_F8(24)
                 : GMM_A, "l"(b)
                 : "memory");
}
template <> __device__ __forceinline__ void gmm_mma<80>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, "
                 "{%40, %41, %42, %43}, %44, 1, 1, 1, 0;"
                 : GMM_F8(0), GMM_F8(8), GMM_F8(16), GMM_F8(24), GMM_F8(32)
                 : GMM_A, "l"(b)
                 : "memory");
}
template <> __device__ __forceinline__ void gmm_mma<96>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47}, "
                 "{%48, %49, %50, %51}, %52, 1, 1, 1, 0;"
                 : GMM_F8(0), GMM_F8(8), GMM_F8(16), GMM_F8(24), GMM_F8(32), GMM_F8(40)
                 : GMM_A, "l"(b)
                 : "memory");
}
template <> __device__ __forceinline__ void gmm_mma<112>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55}, "
                 "{%56, %57, %58, %59}, %60, 1, 1, 1, 0;"
                 : GMM_F8(0), GMM_F8(8), GMM_F8(16), GMM_F8(24), GMM_F8(32), GMM_F8(40),
                   GMM_F8(48)
                 : GMM_A, "l"(b)
                 : "memory");
}
template <> __device__ __forceinline__ void gmm_mma<128>(float *d, const uint *a, ulong b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
                 "%58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                 : GMM_F8(0), GMM_F8(8), GMM_F8(16), GMM_F8(24), GMM_F8(32), GMM_F8(40),
                   GMM_F8(48), GMM_F8(56)
                 : GMM_A, "l"(b)
                 : "memory");
}
/* clang-format on */

/* K-major, rows of 128 bytes swizzled in groups of 8 (1024 bytes). */
KFN ulong gmm_descriptor(uint smem)
{
    return (ulong)((smem & 0x3ffffu) >> 4) | (ulong)1 << 16 | (ulong)(1024 >> 4) << 32 |
           (ulong)1 << 62;
}

/* ---- The ring ---- */

/* What a thread copies of each block of 64 columns: 16 bytes of some tokens, of one row of codes,
 * perhaps an sb; WIDE: of four rows of bf16. In shared memory rows of W lie in the order of
 * fragments, with their 16-byte parts swapped so that ldmatrix meets every bank once. */
template <uint G, uint N> struct gmm_copies {
    const ushort *x_from[(N * 8 + 128 * G - 1) / (128 * G)];
    uint x_to[(N * 8 + 128 * G - 1) / (128 * G)];
    const uint *w_from, *s_from;
    uint w_to, s_to;
    uint to, n_left; /* stage, blocks */
};

template <uint G, uint N, bool WIDE>
KFN void gmm_copies_begin(gmm_copies<G, N> &c, const gmm_tile &t, const ushort *x,
                          const uint *slot_token, bool gather, const uint *w, const uint *sb,
                          uint ring, uint tid)
{
    UNROLL for (uint i = 0; i < (N * 8 + 128 * G - 1) / (128 * G); i++)
    {
        const uint r = tid / 8 + i * 16 * G, row = t.x0 + kmin(r, t.n_x - 1);
        c.x_from[i] = x + (ulong)(gather ? slot_token[row] : row) * t.cols + 8 * (tid & 7);
        c.x_to[i] = r * 128 + (((tid & 7) ^ (r & 7)) << 4);
    }
    const uint r = WIDE ? tid / 8 : tid / 2, at = r / 16 * 16 + r % 16 / 2 + r % 2 * 8;
    const ulong row = t.w0 + kmin(r, t.n_w - 1);
    if (WIDE) {
        c.w_from = w + (ulong)t.w0 * (t.cols / 2) + 4 * (tid & 7);
        c.w_to = GMM_X_BYTES + at * 128 + (((tid & 7) ^ (at & 7)) << 4);
    } else {
        c.w_from = w + row * (t.cols / 8) + 4 * (tid & 1);
        c.w_to = GMM_X_BYTES + at * 32 + (((tid & 1) ^ (at / 4 & 1)) << 4);
        c.s_from = sb + row * (t.cols / 64);
        c.s_to = GMM_X_BYTES + G * 64 * 32 + at * 4;
    }
    c.to = ring;
    c.n_left = t.cols / 64;
}

/* The next block of columns, if there is one; a group of copies in any case. */
template <uint G, uint N, bool WIDE>
KFN void gmm_copies_next(gmm_copies<G, N> &c, const gmm_tile &t, uint ring, uint tid)
{
    if (c.n_left != 0) {
        UNROLL for (uint i = 0; i < (N * 8 + 128 * G - 1) / (128 * G); i++)
        {
            if (N % (16 * G) == 0 || tid / 8 + i * 16 * G < N)
                gmm_copy16(c.to + c.x_to[i], c.x_from[i]);
            c.x_from[i] += 64;
        }
        if (WIDE) {
            UNROLL for (uint i = 0; i < 4; i++)
            {
                const uint r = kmin(tid / 8 + i * 16 * G, t.n_w - 1);
                gmm_copy16(c.to + c.w_to + i * 16 * G * 128, c.w_from + (ulong)r * (t.cols / 2));
            }
            c.w_from += 32;
        } else {
            gmm_copy16(c.to + c.w_to, c.w_from);
            if ((tid & 1) == 0) gmm_copy4(c.to + c.s_to, c.s_from);
            c.w_from += 8;
            c.s_from += 1;
        }
        c.n_left--;
        c.to += GMM_STAGE_BYTES(G, WIDE);
        if (c.to == ring + GMM_STAGES(G, WIDE) * GMM_STAGE_BYTES(G, WIDE)) c.to = ring;
    }
    gmm_copy_commit();
}

/* ---- The loop ---- */

/* Half a block (32 columns) as two operands A: word w0 of the lane's even row, w1 of its odd row.
 */
KFN void gmm_dequant_half(uint *a, uint w0, uint w1, uint g0, uint g1)
{
    const uint s0 = __byte_perm(g0, 0, 0x1010), b0 = __byte_perm(g0, 0, 0x3232);
    const uint s1 = __byte_perm(g1, 0, 0x1010), b1 = __byte_perm(g1, 0, 0x3232);
    UNROLL for (uint j = 0; j < 4; j++)
    {
        a[2 * j] = mm_dequant2(w0 >> (4 * j), s0, b0);
        a[2 * j + 1] = mm_dequant2(w1 >> (4 * j), s1, b1);
    }
}

/* The same from bf16 rows. */
KFN void gmm_load_half(uint *a, uint rows, uint half, uint lane)
{
    UNROLL for (uint j = 0; j < 2; j++)
    {
        const uint part = 4 * half + 2 * j + (lane >> 4);
        const uint4 v = mm_ldmatrix4(rows + ((part ^ (lane & 7)) << 4));
        a[4 * j] = v.x, a[4 * j + 1] = v.y, a[4 * j + 2] = v.z, a[4 * j + 3] = v.w;
    }
}

/* d [N / 2]: of the warp's 16 rows and the tile's tokens, element 4 j + e is token
 * 8 j + 2 (lane % 4) + e % 2, row 2 (lane / 4) + e / 2. Ends with all reads of the ring done. */
template <uint G, uint N, bool WIDE>
KFN void gmm_main(float *d, const gmm_tile &t, gmm_copies<G, N> &c, uint ring, uint tid, uint lane,
                  uint sg)
{
    const uint STAGES = GMM_STAGES(G, WIDE), AHEAD = STAGES - 2;
    const uint at = sg * 16 + (lane & 15); /* the row whose address this lane gives to ldmatrix */
    const uint l_rows = GMM_X_BYTES + at * 128;
    const uint l_codes = GMM_X_BYTES + at * 32 + ((lane >> 4 ^ (at >> 2 & 1)) << 4);
    const uint l_sb = GMM_X_BYTES + G * 64 * 32 + (sg * 16 + lane / 4) * 4;
    UNROLL for (uint i = 0; i < N / 2; i++) d[i] = 0.0f;
    for (uint k = 0; k < AHEAD; k++)
        gmm_copies_next<G, N, WIDE>(c, t, ring, tid);
    uint stage = ring;
    for (uint k = 0; k < t.cols; k += 64) {
        gmm_copy_wait<AHEAD - 1>();
        gmm_fence_shared();
        TG_BARRIER();
        gmm_copies_next<G, N, WIDE>(c, t, ring, tid);
        uint a[8], b[8], g0 = 0, g1 = 0;
        uint4 w;
        if (!WIDE) {
            w = mm_ldmatrix4(stage + l_codes);
            g0 = gmm_load_u32(stage + l_sb);
            g1 = gmm_load_u32(stage + l_sb + 32);
        }
        const ulong desc = gmm_descriptor(stage);
        gmm_wait<1>(); /* whoever read a is done */
        if (WIDE)
            gmm_load_half(a, stage + l_rows, 0, lane);
        else
            gmm_dequant_half(a, w.x, w.y, g0, g1);
        gmm_fence();
        gmm_mma<N>(d, a, desc);
        gmm_mma<N>(d, a + 4, desc + 2);
        gmm_commit();
        gmm_wait<1>(); /* whoever read b, and with it the block before this one */
        if (WIDE)
            gmm_load_half(b, stage + l_rows, 1, lane);
        else
            gmm_dequant_half(b, w.z, w.w, g0, g1);
        gmm_fence();
        gmm_mma<N>(d, b, desc + 4);
        gmm_mma<N>(d, b + 4, desc + 6);
        gmm_commit();
        stage += GMM_STAGE_BYTES(G, WIDE);
        if (stage == ring + STAGES * GMM_STAGE_BYTES(G, WIDE)) stage = ring;
    }
    gmm_wait<0>();
    UNROLL for (uint i = 0; i < N / 2; i++) gmm_hold(d[i]);
}

/* ---- What becomes of a tile ---- */

KFN uint gmm_bf16x2(float lo, float hi)
{
    uint v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

/* Within the bf16 rounding that follows. */
KFN float gmm_silu(float g)
{
    return __fdividef(g, 1.0f + __expf(-g));
}

/* y [..][pitch] f32 of a tile: 8 bytes a lane, 64 consecutive a row of lanes. */
template <uint N, bool ADD>
KFN void gmm_store_f32(const float *d, const gmm_tile &t, uint pitch, float *y, uint lane, uint sg)
{
    const uint row = 16 * sg + 2 * (lane / 4);
    if (row >= t.n_w) return;
    UNROLL for (uint j = 0; j < N / 4; j++)
    {
        const uint token = j / 2 * 8 + 2 * (lane & 3) + (j & 1);
        if (token >= t.n_x) continue;
        float2 *at = (float2 *)(y + (ulong)(t.x0 + token) * pitch + t.w0 + row);
        float2 v = make_float2(d[j / 2 * 4 + (j & 1)], d[j / 2 * 4 + 2 + (j & 1)]);
        if (ADD) {
            const float2 o = *at;
            v.x = o.x + v.x;
            v.y = o.y + v.y;
        }
        *at = v;
    }
}

/* h or y of a tile, bf16, by way of the ring so that rows are written whole. C columns a row. */
template <uint G, uint N, bool WIDE, bool UP>
KFN void gmm_store_bf16(const float *d, const gmm_tile &t, uint pitch, ushort *y, uint ring,
                        uint tid, uint lane, uint sg)
{
    const uint C = UP ? 32 * G : 64 * G, PITCH = 2 * C + 16; /* bytes */
    const uint r = lane / 4;
    /* Column 8 sg + r of the tile; where codes will read it, in the order of GMM_COLUMN. */
    const uint h_at = WIDE ? 8 * sg + r : 32 * (sg / 4) + 8 * (r & 3) + 2 * (sg & 3) + r / 4;
    TG_BARRIER();
    UNROLL for (uint j = 0; j < N / 4; j++)
    {
        const uint token = j / 2 * 8 + 2 * (lane & 3) + (j & 1);
        const float v0 = d[j / 2 * 4 + (j & 1)], v1 = d[j / 2 * 4 + 2 + (j & 1)];
        if (UP)
            gmm_store_u16(ring + token * PITCH + 2 * h_at, gmm_bf16x2(gmm_silu(v0) * v1, 0.0f));
        else
            gmm_store_u32(ring + token * PITCH + 4 * (8 * sg + r), gmm_bf16x2(v0, v1));
    }
    TG_BARRIER();
    const uint first = UP ? t.w0 / 2 : t.w0, n_cols = UP ? t.n_w / 2 : t.n_w;
    for (uint i = tid; i < t.n_x * (C / 8); i += 128 * G) {
        const uint token = i / (C / 8), c = i % (C / 8) * 8;
        if (c < n_cols)
            st16h(y + ((ulong)(t.x0 + token) * pitch + first), c,
                  gmm_load_16(ring + token * PITCH + 2 * c));
    }
}

template <uint G, uint N, bool WIDE, int MODE, typename Y>
KFN void gmm_run_n(const gmm_tile &t, const ushort *x, const uint *slot_token, const uint *w,
                   const uint *sb, uint pitch, Y *y, uint ring, uint tid, uint lane, uint sg)
{
    float d[N / 2];
    gmm_copies<G, N> c;
    gmm_copies_begin<G, N, WIDE>(c, t, x, slot_token, MODE == GMM_UP, w, sb, ring, tid);
    gmm_main<G, N, WIDE>(d, t, c, ring, tid, lane, sg);
    if constexpr (MODE == GMM_SET || MODE == GMM_ADD)
        gmm_store_f32<N, MODE == GMM_ADD>(d, t, pitch, y, lane, sg);
    else
        gmm_store_bf16<G, N, WIDE, MODE == GMM_UP>(d, t, pitch, y, ring, tid, lane, sg);
}

template <uint G, bool WIDE, int MODE, typename Y>
KFN void gmm_run(const gmm_tile &t, const ushort *x, const uint *slot_token, const uint *w,
                 const uint *sb, uint pitch, Y *y, uint tid, uint lane, uint sg)
{
    extern __shared__ uchar gmm_memory[];
    const uint ring = (mm_tg_address(gmm_memory) + 1023u) & ~1023u;
#define GMM_N(n)                                                                                   \
    case (n) / 16:                                                                                 \
        gmm_run_n<G, n, WIDE, MODE>(t, x, slot_token, w, sb, pitch, y, ring, tid, lane, sg);       \
        break
    switch ((t.n_x + 15) / 16) {
        GMM_N(16);
        GMM_N(32);
        GMM_N(48);
        GMM_N(64);
        GMM_N(80);
        GMM_N(96);
        GMM_N(112);
        GMM_N(128);
    }
#undef GMM_N
}

#else /* compiled for another GPU: never launched (gpu_limits.native_mm) */

template <uint G, bool WIDE, int MODE, typename Y>
KFN void gmm_run(const gmm_tile &, const ushort *, const uint *, const uint *, const uint *, uint,
                 Y *, uint, uint, uint)
{
}

#endif

/* Metal's: never launched. */
template <uint BM, int MODE, typename Y>
KFN void gmm_codes(const gmm_tile &, const ushort *, const float *, const uint *, const uint *,
                   uint, Y *, uint, uint)
{
}

#endif
