/* prim_gmm_metal.h - the main loop over codes in memory (M5, macOS 26.4 and newer): matmul2d with a
 * right operand of uint4b_format, which the matrix unit reads as it lies in the pack.
 *
 * Does:       gmm_codes (prim_gmm.h): a simdgroup multiplies BM tokens by 32 rows of W, 64 columns
 *             (a group of codes) at a time, into a partial tensor of its own, which is multiplied
 *             by the group's scale and added to the f32 sum with bias times the sum of the token's
 *             activations. Nothing passes through threadgroup memory; there are no barriers.
 *             Operands are clipped by their extents: rows beyond a tile's count as zero.
 *             16 tokens take two groups at a time, so that the unit is not waited for; 32 have no
 *             registers for that (sum and partial are 16 x 32 tiles, and more than four of those
 *             are slow).
 * Invariants: rows of codes begin at multiples of 128 bytes (cols % 256 == 0). The destination of
 *             16 n x 32 consists of 16 x 16 fragments (prim_layout_metal.h), row by row.
 */
#ifndef CALLA_KERNELS_PRIM_GMM_METAL_H
#define CALLA_KERNELS_PRIM_GMM_METAL_H

/* Wgmma's: never launched. */
#define KERNEL_DYN_SMEM(name, bytes)
#define GMM_THREADS(G) 128 * G
template <uint G, bool WIDE, int MODE, typename Y>
KFN void gmm_run(THREF(const gmm_tile), DPTR(const ushort), DPTR(const uint), DPTR(const uint),
                 DPTR(const uint), uint, Y, uint, uint, uint)
{
}

#if CALLA_RUNG < 3

template <uint BM, int MODE, typename Y>
KFN void gmm_codes(THREF(const gmm_tile), DPTR(const ushort), DPTR(const float), DPTR(const uint),
                   DPTR(const uint), uint, Y, uint, uint)
{
}

#else

/* Where a lane's scales and sums are: column 16 (i / 4) + lay16_col + i % 4 of the simdgroup's 32,
 * row 8 i + lay16_row of the tile. Words; group 0. */
template <uint BM> struct gmm_places {
    uint column[8], row[BM / 8];
};

/* sum += scale * part + bias * (the token's sum) of group g. */
template <uint BM, typename P>
KFN void gmm_add_group(THARRAY(float, BM, sum), THREF(P) part, THREF(const gmm_places<BM>) at,
                       DPTR(const float) sums, DPTR(const uint) sb, uint g)
{
    float x[BM / 8];
    UNROLL for (uint i = 0; i < BM / 8; i++) x[i] = sums[at.row[i] + g];
    UNROLL for (uint c = 0; c < 8; c++)
    {
        const uint s = sb[at.column[c] + g];
        const float scale = kx_bf16_load(s & 0xffffu), bias = kx_bf16_load(s >> 16);
        UNROLL for (uint i = 0; i < BM / 8; i++)
        {
            const uint e = 16 * (i / 2) + 8 * (c / 4) + 4 * (i & 1u) + (c & 3u);
            sum[e] = KFMA(scale, part[(ushort)e], KFMA(bias, x[i], sum[e]));
        }
    }
}

/* What becomes of row r and columns c .. c + 3 of W's tile. */
template <int MODE>
KFN void gmm_put(THREF(const gmm_tile) t, uint pitch, DPTR(float) y, uint r, uint c, float4 v)
{
    DPTR(float) out = y + ((ulong)(t.x0 + r) * pitch + t.w0 + c);
    const bool add = MODE == GMM_ADD;
    out[0] = add ? out[0] + v.x : v.x;
    if (c + 1 < t.n_w) out[1] = add ? out[1] + v.y : v.y;
    if (c + 2 < t.n_w) out[2] = add ? out[2] + v.z : v.z;
    if (c + 3 < t.n_w) out[3] = add ? out[3] + v.w : v.w;
}
template <int MODE>
KFN void gmm_put(THREF(const gmm_tile) t, uint pitch, DPTR(ushort) y, uint r, uint c, float4 v)
{
    DPTR(ushort) out = y + (ulong)(t.x0 + r) * pitch;
    if (MODE == GMM_UP) {
        out[(t.w0 + c) / 2] = (ushort)kx_bf16_store(kx_silu(v.x) * v.y);
        if (c + 2 < t.n_w) out[(t.w0 + c) / 2 + 1] = (ushort)kx_bf16_store(kx_silu(v.z) * v.w);
        return;
    }
    out[t.w0 + c] = (ushort)kx_bf16_store(v.x);
    if (c + 1 < t.n_w) out[t.w0 + c + 1] = (ushort)kx_bf16_store(v.y);
    if (c + 2 < t.n_w) out[t.w0 + c + 2] = (ushort)kx_bf16_store(v.z);
    if (c + 3 < t.n_w) out[t.w0 + c + 3] = (ushort)kx_bf16_store(v.w);
}

template <uint BM, int MODE, typename Y>
KFN void gmm_codes(THREF(const gmm_tile) t, DPTR(const ushort) x, DPTR(const float) sums,
                   DPTR(const uint) w, DPTR(const uint) sb, uint pitch, Y y, uint lane, uint sg)
{
    typedef metal::dextents<int, 2> size;
    typedef metal::tensor<device bfloat, size, metal::tensor_inline> activations;
    typedef metal::tensor<device metal::uint4b_format, size, metal::tensor_inline> codes;
    constexpr auto what = mpp::tensor_ops::matmul2d_descriptor(
        (int)BM, 32, 64, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply);
    mpp::tensor_ops::matmul2d<what, metal::execution_simdgroup> op;
    const uint w0 = t.w0 + 32 * sg, n_w = kmin(32u, t.n_w - 32 * sg), n_groups = t.cols / 64;
    activations tx((device bfloat *)(x + (ulong)t.x0 * t.cols), size((int)t.cols, (int)t.n_x));
    codes tw((device uchar *)(w + (ulong)w0 * (t.cols / 8)), size((int)t.cols, (int)n_w));
    gmm_places<BM> at;
    UNROLL for (uint c = 0; c < 8; c++)
    {
        const uint col = 16 * (c / 4) + lay16_col(lane) + (c & 3u);
        at.column[c] = (w0 + kmin(col, n_w - 1)) * n_groups;
    }
    UNROLL for (uint i = 0; i < BM / 8; i++)
    {
        at.row[i] = (t.x0 + kmin(8 * i + lay16_row(lane), t.n_x - 1)) * n_groups;
    }
    float sum[BM];
    UNROLL for (uint i = 0; i < BM; i++) sum[i] = 0.0f;
    for (uint g = 0; g < n_groups; g += BM == 16 ? 2 : 1) {
        auto x0 = tx.slice((int)(64 * g), 0);
        auto c0 = tw.slice((int)(64 * g), 0);
        auto p0 =
            op.template get_destination_cooperative_tensor<decltype(x0), decltype(c0), float>();
        op.run(x0, c0, p0);
        if (BM == 16) {
            auto x1 = tx.slice((int)(64 * g + 64), 0);
            auto c1 = tw.slice((int)(64 * g + 64), 0);
            auto p1 =
                op.template get_destination_cooperative_tensor<decltype(x1), decltype(c1), float>();
            op.run(x1, c1, p1);
            gmm_add_group<BM>(sum, p0, at, sums, sb, g);
            gmm_add_group<BM>(sum, p1, at, sums, sb, g + 1);
        } else {
            gmm_add_group<BM>(sum, p0, at, sums, sb, g);
        }
    }
    UNROLL for (uint f = 0; f < BM / 4; f++)
    {
        const uint r = 16 * (f / 4) + 8 * (f & 1u) + lay16_row(lane);
        const uint c = 32 * sg + 16 * (f / 2 & 1u) + lay16_col(lane);
        float4 v;
        v.x = sum[4 * f];
        v.y = sum[4 * f + 1];
        v.z = sum[4 * f + 2];
        v.w = sum[4 * f + 3];
        if (r < t.n_x && c < t.n_w) gmm_put<MODE>(t, pitch, y, r, c, v);
    }
}

#endif

#endif
