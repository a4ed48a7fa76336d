/* prim_gmm_simt.h - prim_gmm.h for the emulator: no gmm_run; gmm_codes in plain C++. */
#ifndef CALLA_KERNELS_PRIM_GMM_SIMT_H
#define CALLA_KERNELS_PRIM_GMM_SIMT_H

#define KERNEL_DYN_SMEM(name, bytes)
#define GMM_THREADS(G) 128 * G
template <uint G, bool WIDE, int MODE, typename Y>
KFN void gmm_run(THREF(const gmm_tile), DPTR(const ushort), DPTR(const uint), DPTR(const uint),
                 DPTR(const uint), uint, Y, uint, uint, uint)
{
}

/* sum(q x) of a group; q: 8 words. */
KFN float gmm_dot64(const uint *q, DPTR(const ushort) x)
{
    float part = 0.0f;
    for (uint k = 0; k < 64; k++)
        part = KFMA((float)((q[k / 8] >> (4 * (k & 7u))) & 15u), kx_bf16_load(x[k]), part);
    return part;
}

/* A lane has a row of W. */
template <uint BM, int MODE, typename Y>
KFN void gmm_codes(THREF(const gmm_tile) t, DPTR(const ushort) x, DPTR(const float) sums,
                   DPTR(const uint) w, DPTR(const uint) sb, uint pitch, Y y, uint lane, uint sg)
{
    const uint c = 32 * sg + lane, n_groups = t.cols / 64;
    const ulong row = t.w0 + kmin(c, t.n_w - 1);
    float sum[BM] = {};
    for (uint g = 0; g < n_groups; g++) {
        const uint s = sb[row * n_groups + g];
        const uint4 lo = ld16(w + row * (t.cols / 8), 8 * g);
        const uint4 hi = ld16(w + row * (t.cols / 8), 8 * g + 4);
        const uint q[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
        for (uint r = 0; r < t.n_x; r++) {
            const float part = gmm_dot64(q, x + ((ulong)(t.x0 + r) * t.cols + 64 * g));
            const float more = kx_bf16_load(s >> 16) * sums[(t.x0 + r) * n_groups + g];
            sum[r] = KFMA(kx_bf16_load(s & 0xffffu), part, sum[r] + more);
        }
    }
    for (uint r = 0; r < t.n_x; r++) {
        const ulong at = (ulong)(t.x0 + r) * pitch + (MODE == GMM_UP ? (t.w0 + c) / 2 : t.w0 + c);
        const float v = sum[r], u = MODE == GMM_UP ? simd_xor_f32(v, 1) : 0.0f;
        if (c >= t.n_w || (MODE == GMM_UP && (c & 1u) != 0)) continue;
        if constexpr (MODE == GMM_SET)
            y[at] = v;
        else if constexpr (MODE == GMM_ADD)
            y[at] = y[at] + v;
        else
            y[at] = (ushort)kx_bf16_store(MODE == GMM_UP ? kx_silu(v) * u : v);
    }
}

#endif
