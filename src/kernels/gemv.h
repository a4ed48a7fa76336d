/* gemv.h - matrix products of decode: 4-bit projections, the router, the experts.
 *
 * A product's pinned order. Lane l of a simdgroup owns, of every 1,024 columns, the run of 32 at
 * 32 l. For a row, from 0: per run acc = fma(scale, dot of the first 16, acc), the same with the
 * second 16, acc = fma(bias, sum of the run, acc), runs ascending over 2,048 columns; the xor tree
 * over the lanes; pieces of 2,048 columns are added ascending. The sum of a run: (x + y) + (z + w)
 * of each float4, then the xor tree over its eight float4. A norm's weight multiplies x, its
 * rsqrt the finished sum. 8-bit rows (router): runs of 16 in every 512 columns, one dot a run.
 * References: ref_gemv.h, bitwise for every kernel.
 */
#include "kernels/args_gemv.h"
#include "kernels/basic_fn.h"
#include "kernels/prim_q4dot.h"

/* ---- Staging the input in threadgroup memory ---- */

/* Where float4 number i of a row of runs of 8 (or 4) float4 is kept: lanes that read the same place
 * of neighbouring runs hit different banks. */
KFN uint stage_at8(uint i)
{
    return i ^ ((i >> 3) & 7u);
}
KFN uint stage_at4(uint i)
{
    return i ^ ((i >> 3) & 3u);
}

KFN float4 zero4()
{
    float4 v;
    v.x = 0.0f;
    v.y = 0.0f;
    v.z = 0.0f;
    v.w = 0.0f;
    return v;
}

KFN float add_squares(float4 v, float s)
{
    s = KFMA(v.x, v.x, s);
    s = KFMA(v.y, v.y, s);
    s = KFMA(v.z, v.z, s);
    return KFMA(v.w, v.w, s);
}

KFN float4 times4(float4 v, float4 w)
{
    v.x *= w.x;
    v.y *= w.y;
    v.z *= w.z;
    v.w *= w.w;
    return v;
}

/* float4 number tid + threads j of a row of n columns, zeros behind it. */
template <uint N> struct row_part {
    float4 v[N];
};

template <uint N, bool FULL>
KFN void row_load(THREF(row_part<N>) r, DPTR(const float) x, uint n, uint tid)
{
    UNROLL for (uint j = 0; j < N; j++)
    {
        const uint i = 4 * tid + 512 * j;
        r.v[j] = zero4();
        if (FULL || i < n) r.v[j] = ld16f(x, i);
    }
}

/* Four activations prepared for q4dot16, and the sum of their run. All lanes call. */
KFN void stage_four(float4 v, uint i, TPTR(float) stage, TPTR(float) sums)
{
    float s = (v.x + v.y) + (v.z + v.w);
    s = s + simd_xor_f32(s, 4);
    s = s + simd_xor_f32(s, 2);
    s = s + simd_xor_f32(s, 1);
    if ((i & 31u) == 0u) sums[i / 32] = s;
    tg_st16f(stage, 4 * stage_at8(i / 4), q4_prepare(v, (i >> 2) & 1u));
}

/* A group of 128 threads stages N * 512 columns of x times w: stage [512 N], sums [16 N]. Returns
 * the simdgroup's partial of the mean square of x (rms_partial). */
template <uint N, bool FULL>
KFN float stage_normed(DPTR(const float) x, THREF(const row_part<N>) w, uint n, TPTR(float) stage,
                       TPTR(float) sums, uint tid)
{
    row_part<N> r;
    row_load<N, FULL>(r, x, n, tid);
    float square = 0.0f;
    UNROLL for (uint j = 0; j < N; j++)
    {
        square = add_squares(r.v[j], square);
        stage_four(times4(r.v[j], w.v[j]), 4 * tid + 512 * j, stage, sums);
    }
    return simd_sum_f32(square);
}

template <uint N, bool FULL>
KFN void stage_plain(DPTR(const float) x, uint n, TPTR(float) stage, TPTR(float) sums, uint tid)
{
    row_part<N> r;
    row_load<N, FULL>(r, x, n, tid);
    UNROLL for (uint j = 0; j < N; j++) stage_four(r.v[j], 4 * tid + 512 * j, stage, sums);
}

/* The lane's runs r0 + 32 c, c < C. */
template <uint C>
KFN void unstage_q4(THREF(lane_f32<32 * C>) x, THREF(lane_f32<C>) sum, TPTR(float) stage,
                    TPTR(float) sums, uint r0)
{
    UNROLL for (uint c = 0; c < C; c++)
    {
        const uint r = r0 + 32 * c;
        UNROLL for (uint p = 0; p < 8; p++)
        {
            const float4 v = tg_ld16f(stage, 4 * stage_at8(8 * r + p));
            x.v[32 * c + 4 * p] = v.x;
            x.v[32 * c + 4 * p + 1] = v.y;
            x.v[32 * c + 4 * p + 2] = v.z;
            x.v[32 * c + 4 * p + 3] = v.w;
        }
        sum.v[c] = sums[r];
    }
}

/* ---- Rows ---- */

/* A lane's part of four rows: C runs of each. */
template <uint C> struct q4_four {
    uint4 w[4 * C];
    uint sb[4 * C];
};

/* Row i of four. codes and sb: where the lane's first run of the first row is. K: columns of a row
 * if known, else 0. */
template <uint C, uint K>
KFN void q4_load(THREF(q4_four<C>) q, uint i, DPTR(const uint) codes, DPTR(const uint) sb,
                 uint cols, uint r0)
{
    const uint n = K != 0 ? K : cols;
    UNROLL for (uint c = 0; c < C; c++)
    {
        const uint at = i * C + c;
        if (K != 0 || r0 + 32 * c < n / 32) {
            q.w[at] = ld16_stream(codes, i * (n / 8) + 128 * c);
            q.sb[at] = sb[i * (n / 64) + 16 * c];
        } else {
            q.w[at].x = 0u;
            q.w[at].y = 0u;
            q.w[at].z = 0u;
            q.w[at].w = 0u;
            q.sb[at] = 0u;
        }
    }
}

template <uint C>
KFN float q4_dot(THREF(const q4_four<C>) q, uint i, THREF(const lane_f32<32 * C>) x,
                 THREF(const lane_f32<C>) sum)
{
    float acc = 0.0f;
    UNROLL for (uint c = 0; c < C; c++)
    {
        const uint4 w = q.w[i * C + c];
        const float scale = q4_scale(q.sb[i * C + c]);
        acc = KFMA(scale, q4dot16(w.x, w.y, x, 32 * c), acc);
        acc = KFMA(scale, q4dot16(w.z, w.w, x, 32 * c + 16), acc);
        acc = KFMA(q4_bias(q.sb[i * C + c]), sum.v[c], acc);
    }
    return acc;
}

/* The xor trees of four values at once: lanes 8 r .. 8 r + 7 get that of a_r. Six shuffles for
 * twenty, the same bits. */
KFN float simd_sum4(float a0, float a1, float a2, float a3, uint lane)
{
    const bool up = (lane & 16u) != 0u, odd = (lane & 8u) != 0u;
    const float b0 = (up ? a2 : a0) + simd_xor_f32(up ? a0 : a2, 16);
    const float b1 = (up ? a3 : a1) + simd_xor_f32(up ? a1 : a3, 16);
    float c = (odd ? b1 : b0) + simd_xor_f32(odd ? b0 : b1, 8);
    c = c + simd_xor_f32(c, 4);
    c = c + simd_xor_f32(c, 2);
    return c + simd_xor_f32(c, 1);
}

/* A team of S simdgroups adds its pieces; every lane's value is that of its row of the four.
 * halves [32]: two places in turn, so nobody writes one before all have read it. All threads of the
 * group call. */
template <uint S> KFN float team_sum(float s, TPTR(float) halves, uint turn, uint lane, uint sg)
{
    if (S == 1) return s;
    TPTR(float) mine = halves + 16 * (turn & 1u);
    if ((lane & 7u) == 0u) mine[4 * sg + lane / 8] = s;
    TG_BARRIER();
    const uint first = sg - sg % S;
    s = mine[4 * first + lane / 8];
    UNROLL for (uint h = 1; h < S; h++) s = s + mine[4 * (first + h) + lane / 8];
    return s;
}

/* ---- Projections ---- */

/* What a group of 128 threads does for one token: rows in fours, a team of S simdgroups a four,
 * each C * 1,024 columns of it; teams of all groups take turns. Weights of the first rows are
 * asked for before the input is waited for, those of the next when a row's registers are free.
 * K: columns if known (rows % 4 == 0 then), else 0. */
template <uint C, uint S, uint K>
KFN void gemv_group(DPTR(const uint) codes, DPTR(const uint) sb, DPTR(const float) x,
                    DPTR(const float) norm, DPTR(const uint) rows_of, DPTR(float) y,
                    ARGS(gemv_args) a, TPTR(float) stage, TPTR(float) sums, TPTR(float) part,
                    TPTR(float) halves, uint tid, uint lane, uint sg, uint gx, uint gy, uint ngx)
{
    const uint cols = K != 0 ? K : a.cols, n_fours = (a.rows + 3) / 4;
    const uint n_teams = 4 / S, piece = sg % S, r0 = piece * C * 32 + lane;
    const bool has_norm = (a.flags & GEMV_NORM) != 0u;
    uint first = gx * n_teams; /* of the group; the team's four is first + sg / S */
    DPTR(const uint) next = codes + (ulong)(4 * (first + sg / S)) * (cols / 8) + 4 * r0;
    DPTR(const uint) next_sb = sb + (ulong)(4 * (first + sg / S)) * (cols / 64) + r0 / 2;
    q4_four<C> q;
    UNROLL for (uint i = 0; i < 4; i++)
    {
        if (4 * (first + sg / S) + i < a.rows) q4_load<C, K>(q, i, next, next_sb, cols, r0);
    }
    row_part<2 * C * S> w;
    if (has_norm) row_load<2 * C * S, K != 0>(w, norm, cols, tid);
    PDL_WAIT();
    const uint x_row = (a.flags & GEMV_ROWS_OF) != 0u ? rows_of[gy] : gy;
    DPTR(const float) in = x + (ulong)x_row * cols;
    float square = 0.0f;
    if (has_norm)
        square = stage_normed<2 * C * S, K != 0>(in, w, cols, stage, sums, tid);
    else
        stage_plain<2 * C * S, K != 0>(in, cols, stage, sums, tid);
    if (lane == 0) part[sg] = square;
    TG_BARRIER();
    lane_f32<32 * C> v;
    lane_f32<C> sum;
    unstage_q4<C>(v, sum, stage, sums, r0);
    const float inv =
        has_norm ? rms_inverse(part[0], part[1], part[2], part[3], cols, a.eps) : 1.0f;
    DPTR(float) out = y + (ulong)gy * a.rows;
    for (uint turn = 0; first < n_fours; turn++) {
        const uint row = 4 * (first + sg / S) + lane / 8;
        first += ngx * n_teams;
        next += (ulong)(4 * ngx * n_teams) * (cols / 8);
        next_sb += (ulong)(4 * ngx * n_teams) * (cols / 64);
        const uint next_row = 4 * (first + sg / S);
        const bool mine = piece == 0 && (lane & 7u) == 0u && row < a.rows;
        const float old = mine && (a.flags & GEMV_ADD) != 0u ? out[row] : 0.0f;
        float acc[4];
        UNROLL for (uint i = 0; i < 4; i++)
        {
            acc[i] = q4_dot<C>(q, i, v, sum);
            if (next_row + (K != 0 ? 0u : i) < a.rows) q4_load<C, K>(q, i, next, next_sb, cols, r0);
        }
        float s = simd_sum4(acc[0], acc[1], acc[2], acc[3], lane);
        s = team_sum<S>(s, halves, turn, lane, sg) * inv;
        if (mine) out[row] = (a.flags & GEMV_ADD) != 0u ? old + s : s;
    }
}

/* gemv_k2048: y = W x, K = 2048, x in registers.
 * shapes  codes [N][K / 2] bytes; sb [N][K / 64]; x [.][K]; norm [K]; rows_of [T]; y [T][N]
 * grid    at most N / 16 x T groups, any number: they take turns
 * cost    N K (0.5625) bytes, 2 N K flops a token; memory bound
 * ref     ref_gemv, bitwise
 * why     kernels are short here: what counts is the time from the input's arrival to the first
 *         product, so weights are in registers by then and x is read once a group. */
KERNEL(gemv_k2048, 128, KIN(0, uint, codes), KIN(1, uint, sb), KIN(2, float, x),
       KIN(3, float, norm), KIN(4, uint, rows_of), KOUT(5, float, y), KARG(6, gemv_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, 2048);
    TG_ARRAY(float, sums, 64);
    TG_ARRAY(float, part, 4);
    PDL_LAUNCH();
    gemv_group<2, 1, 2048>(codes, sb, x, norm, rows_of, y, a, stage, sums, part, part, tid, lane,
                           sg, gx, gy, ngx);
}
KERNEL_END

/* gemv_k4096: the same with K = 4096: two simdgroups a row. */
KERNEL(gemv_k4096, 128, KIN(0, uint, codes), KIN(1, uint, sb), KIN(2, float, x),
       KIN(3, float, norm), KIN(4, uint, rows_of), KOUT(5, float, y), KARG(6, gemv_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, 4096);
    TG_ARRAY(float, sums, 128);
    TG_ARRAY(float, part, 4);
    TG_ARRAY(float, halves, 32);
    PDL_LAUNCH();
    gemv_group<2, 2, 4096>(codes, sb, x, norm, rows_of, y, a, stage, sums, part, halves, tid, lane,
                           sg, gx, gy, ngx);
}
KERNEL_END

/* gemv_any: the same for every K <= 4096. */
KERNEL(gemv_any, 128, KIN(0, uint, codes), KIN(1, uint, sb), KIN(2, float, x), KIN(3, float, norm),
       KIN(4, uint, rows_of), KOUT(5, float, y), KARG(6, gemv_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, 4096);
    TG_ARRAY(float, sums, 128);
    TG_ARRAY(float, part, 4);
    TG_ARRAY(float, halves, 32);
    PDL_LAUNCH();
    gemv_group<2, 2, 0>(codes, sb, x, norm, rows_of, y, a, stage, sums, part, halves, tid, lane, sg,
                        gx, gy, ngx);
}
KERNEL_END

/* ---- Several tokens ---- */

/* gemv_prepare: the inputs of T tokens for gemv_multi: x times w, prepared for q4dot16, in the
 * order in which lanes read it: float4 number p of run 32 c + lane at (8 c + p) 32 + lane; then the
 * runs' sums, then the norm's factor; P = K rounded up to 1,024. shapes  x [.][K]; norm [K];
 * rows_of [T]; y [T][P + P / 32 + 4] grid    T groups */
KERNEL(gemv_prepare, 128, KIN(0, float, x), KIN(1, float, norm), KIN(2, uint, rows_of),
       KOUT(3, float, y), KARG(4, gemv_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 4);
    PDL_LAUNCH();
    PDL_WAIT();
    const uint n_padded = (a.cols + 1023u) & ~1023u;
    const uint x_row = (a.flags & GEMV_ROWS_OF) != 0u ? rows_of[gx] : gx;
    DPTR(const float) in = x + (ulong)x_row * a.cols;
    DPTR(float) out = y + (ulong)gx * (n_padded + n_padded / 32 + 4);
    float square = 0.0f;
    const bool has_norm = (a.flags & GEMV_NORM) != 0u;
    for (uint base = 0; base < n_padded; base += 1024) {
        row_part<2> v, w;
        const uint n = a.cols - kmin(base, a.cols);
        row_load<2, false>(v, in + base, n, tid);
        if (has_norm) row_load<2, false>(w, norm + base, n, tid);
        UNROLL for (uint j = 0; j < 2; j++)
        {
            const uint i = base + 4 * tid + 512 * j, run = i / 32, p = (i / 4) & 7u;
            float4 f = v.v[j];
            if (has_norm) {
                square = add_squares(f, square);
                f = times4(f, w.v[j]);
            }
            float s = (f.x + f.y) + (f.z + f.w);
            s = s + simd_xor_f32(s, 4);
            s = s + simd_xor_f32(s, 2);
            s = s + simd_xor_f32(s, 1);
            if (p == 0) out[n_padded + run] = s;
            st16f(out, 4 * ((8 * (run / 32) + p) * 32 + run % 32), q4_prepare(f, p & 1u));
        }
    }
    square = simd_sum_f32(square);
    if (lane == 0) part[sg] = square;
    TG_BARRIER();
    if (tid == 0)
        out[n_padded + n_padded / 32] =
            has_norm ? rms_inverse(part[0], part[1], part[2], part[3], a.cols, a.eps) : 1.0f;
}
KERNEL_END

/* gemv_multi: y = W x for the 2 to 16 tokens of gemv_prepare, eight in a pass over the weights.
 * shapes  codes, sb as gemv_k2048, any K; x of gemv_prepare; y [T][N]
 * grid    at most N / 16 x T / 8 groups: they take turns
 * cost    N K (0.5625) bytes, 2 N K T flops; memory bound to about T = 8
 * ref     ref_gemv, bitwise: a token's result is the one it has alone
 * why     codes are unpacked once for eight tokens; four rows share what is read of x. */
#define MULTI_TOKENS 8
KERNEL(gemv_multi, 128, KIN(0, uint, codes), KIN(1, uint, sb), KIN(2, float, x), KOUT(3, float, y),
       KARG(4, gemv_multi_args, a))
{
    KCTX;
    PDL_LAUNCH();
    const uint n_padded = (a.cols + 1023u) & ~1023u, n_runs = a.cols / 32;
    const uint pitch = n_padded + n_padded / 32 + 4;
    const uint t0 = MULTI_TOKENS * gy, n = kmin(a.n_tokens - t0, (uint)MULTI_TOKENS);
    const uint n_fours = (a.rows + 3) / 4;
    DPTR(const float) in = x + (ulong)t0 * pitch;
    PDL_WAIT();
    for (uint four = 4 * gx + sg; four < n_fours; four += 4 * ngx) {
        float total[MULTI_TOKENS];
        UNROLL for (uint t = 0; t < MULTI_TOKENS; t++) total[t] = 0.0f;
        for (uint piece = 0; piece < n_padded; piece += 2048) {
            float acc[4 * MULTI_TOKENS];
            UNROLL for (uint i = 0; i < 4 * MULTI_TOKENS; i++) acc[i] = 0.0f;
            for (uint at = piece; at < kmin(piece + 2048, n_padded); at += 1024) {
                const uint run = at / 32 + lane;
                uint4 w[4];
                uint g[4];
                UNROLL for (uint i = 0; i < 4; i++)
                {
                    const uint row = kmin(4 * four + i, a.rows - 1);
                    w[i].x = 0u;
                    w[i].y = 0u;
                    w[i].z = 0u;
                    w[i].w = 0u;
                    g[i] = 0u;
                    if (run < n_runs) {
                        w[i] = ld16_stream(codes + (ulong)row * (a.cols / 8), 4 * run);
                        g[i] = (sb + (ulong)row * (a.cols / 64))[run / 2];
                    }
                }
                UNROLL for (uint h = 0; h < 2; h++)
                {
                    lane_f32<16> q[4];
                    UNROLL for (uint i = 0; i < 4; i++)
                        q4_unpack16(q[i], h == 0 ? w[i].x : w[i].z, h == 0 ? w[i].y : w[i].w);
                    UNROLL for (uint t = 0; t < MULTI_TOKENS; t++)
                    {
                        if (t < n) {
                            DPTR(const float) row = in + t * pitch;
                            lane_f32<16> v;
                            UNROLL for (uint p = 0; p < 4; p++)
                            {
                                const float4 f =
                                    ld16f(row, 4 * ((at / 128 + 4 * h + p) * 32 + lane));
                                v.v[4 * p] = f.x;
                                v.v[4 * p + 1] = f.y;
                                v.v[4 * p + 2] = f.z;
                                v.v[4 * p + 3] = f.w;
                            }
                            UNROLL for (uint i = 0; i < 4; i++) acc[4 * t + i] =
                                KFMA(q4_scale(g[i]), q4dot_unpacked(q[i], v), acc[4 * t + i]);
                            if (h == 1) {
                                const float s = row[n_padded + run];
                                UNROLL for (uint i = 0; i < 4; i++) acc[4 * t + i] =
                                    KFMA(q4_bias(g[i]), s, acc[4 * t + i]);
                            }
                        }
                    }
                }
            }
            UNROLL for (uint t = 0; t < MULTI_TOKENS; t++)
            {
                const float s =
                    simd_sum4(acc[4 * t], acc[4 * t + 1], acc[4 * t + 2], acc[4 * t + 3], lane);
                total[t] = piece == 0 ? s : total[t] + s;
            }
        }
        const uint row = 4 * four + lane / 8;
        UNROLL for (uint t = 0; t < MULTI_TOKENS; t++)
        {
            if (t < n && (lane & 7u) == 0u && row < a.rows) {
                const float s = total[t] * in[t * pitch + n_padded + n_padded / 32];
                const ulong to = (ulong)(t0 + t) * a.rows + row;
                y[to] = (a.flags & GEMV_ADD) != 0u ? y[to] + s : s;
            }
        }
    }
}
KERNEL_END

/* ---- One row a simdgroup (ablation of gemv_rows, and any K) ---- */

/* A row's product, read word by word, the input from device memory. */
KFN float row_dot(DPTR(const uint) codes, DPTR(const uint) sb, DPTR(const float) x,
                  DPTR(const float) norm, bool has_norm, uint cols, uint lane)
{
    float total = 0.0f;
    for (uint piece = 0; piece < cols; piece += 2048) {
        float acc = 0.0f;
        const uint end = kmin(piece + 2048, cols);
        for (uint at = piece + 32 * lane; at < end; at += 1024) {
            float dots[2], four[8];
            UNROLL for (uint h = 0; h < 2; h++)
            {
                dots[h] = 0.0f;
                UNROLL for (uint i = 0; i < 4; i++)
                {
                    const uint at4 = at + 16 * h + 4 * i;
                    const uint w = codes[at4 / 8] >> (16 * (i & 1u));
                    float4 v = ld16f(x, at4);
                    if (has_norm) {
                        const float4 g = ld16f(norm, at4);
                        v.x *= g.x;
                        v.y *= g.y;
                        v.z *= g.z;
                        v.w *= g.w;
                    }
                    dots[h] = KFMA((float)(w & 15u), v.x, dots[h]);
                    dots[h] = KFMA((float)((w >> 4) & 15u), v.y, dots[h]);
                    dots[h] = KFMA((float)((w >> 8) & 15u), v.z, dots[h]);
                    dots[h] = KFMA((float)((w >> 12) & 15u), v.w, dots[h]);
                    four[4 * h + i] = (v.x + v.y) + (v.z + v.w);
                }
            }
            const float sum = ((four[0] + four[4]) + (four[2] + four[6])) +
                              ((four[1] + four[5]) + (four[3] + four[7]));
            const uint g = sb[at / 64];
            acc = KFMA(KFLOAT(g << 16), dots[0], acc);
            acc = KFMA(KFLOAT(g << 16), dots[1], acc);
            acc = KFMA(q4_bias(g), sum, acc);
        }
        acc = simd_sum_f32(acc);
        total = piece == 0 ? acc : total + acc;
    }
    return total;
}

/* gemv_row: y = W x for any K % 64 == 0. Grid: N / 4 x T. ref_gemv, bitwise. */
KERNEL(gemv_row, 128, KIN(0, uint, codes), KIN(1, uint, sb), KIN(2, float, x), KIN(3, float, norm),
       KIN(4, uint, rows_of), KOUT(5, float, y), KARG(6, gemv_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 4);
    PDL_LAUNCH();
    PDL_WAIT();
    const bool has_norm = (a.flags & GEMV_NORM) != 0u;
    const uint x_row = (a.flags & GEMV_ROWS_OF) != 0u ? rows_of[gy] : gy;
    DPTR(const float) in = x + (ulong)x_row * a.cols;
    const float p = has_norm ? rms_partial(in, a.cols, sg, lane) : 0.0f;
    if (lane == 0) part[sg] = p;
    TG_BARRIER();
    const float inv =
        has_norm ? rms_inverse(part[0], part[1], part[2], part[3], a.cols, a.eps) : 1.0f;
    const uint row = 4 * gx + sg;
    if (row < a.rows) {
        const float s = row_dot(codes + (ulong)row * (a.cols / 8), sb + (ulong)row * (a.cols / 64),
                                in, norm, has_norm, a.cols, lane) *
                        inv;
        const ulong at = (ulong)gy * a.rows + row;
        if (lane == 0) y[at] = (a.flags & GEMV_ADD) != 0u ? y[at] + s : s;
    }
}
KERNEL_END

/* gemv_norm: y = x rsqrt(mean x^2 + eps) w, f32 (ablation of norm_fold). Grid: T groups. */
KERNEL(gemv_norm, 128, KIN(0, float, x), KIN(1, float, w), KIN(2, uint, rows_of), KOUT(3, float, y),
       KARG(4, gemv_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 4);
    PDL_LAUNCH();
    PDL_WAIT();
    const uint x_row = (a.flags & GEMV_ROWS_OF) != 0u ? rows_of[gx] : gx;
    DPTR(const float) in = x + (ulong)x_row * a.cols;
    DPTR(float) out = y + (ulong)gx * a.cols;
    const float p = rms_partial(in, a.cols, sg, lane);
    if (lane == 0) part[sg] = p;
    TG_BARRIER();
    const float inv = rms_inverse(part[0], part[1], part[2], part[3], a.cols, a.eps);
    for (uint i = 4 * tid; i < a.cols; i += 512) {
        float4 v = ld16f(in, i);
        const float4 g = ld16f(w, i);
        v.x = v.x * inv * g.x;
        v.y = v.y * inv * g.y;
        v.z = v.z * inv * g.z;
        v.w = v.w * inv * g.w;
        st16f(out, i, v);
    }
}
KERNEL_END

/* ---- Router ---- */

/* What a group of 128 threads does: four rows, a simdgroup a row; K: columns if known, else 0. The
 * row is in registers before the input is waited for. */
template <uint K>
KFN void router_group(DPTR(const uint) codes, DPTR(const uint) sb, DPTR(const float) x,
                      DPTR(const float) norm, DPTR(uint) counters, DPTR(float) logits,
                      DPTR(uint) ids, DPTR(float) weights, ARGS(gemv_router_args) a,
                      TPTR(float) stage, TPTR(float) sums, TPTR(float) part, TPTR(uint) arrived,
                      uint tid, uint lane, uint sg, uint gx, uint gy, uint ngx)
{
    const uint N = K != 0 ? K / 512 : 8;
    const uint cols = K != 0 ? K : a.cols, n_runs = cols / 16;
    const uint row = kmin(4 * gx + sg, a.n_experts);
    DPTR(const uint) row_codes = codes + (ulong)row * (cols / 4);
    DPTR(const uint) row_sb = sb + (ulong)row * (cols / 64);
    uint4 q[N];
    uint g[N];
    UNROLL for (uint c = 0; c < N; c++)
    {
        const uint r = K != 0 ? 32 * c + lane : kmin(32 * c + lane, n_runs - 1);
        q[c] = ld16_stream(row_codes, 4 * r);
        g[c] = row_sb[r / 4];
    }
    row_part<N> w, v;
    row_load<N, K != 0>(w, norm, cols, tid);
    PDL_WAIT();
    row_load<N, K != 0>(v, x + (ulong)gy * cols, cols, tid);
    float square = 0.0f;
    UNROLL for (uint j = 0; j < N; j++)
    {
        const uint i = 4 * tid + 512 * j;
        square = add_squares(v.v[j], square);
        const float4 f = times4(v.v[j], w.v[j]);
        float s = (f.x + f.y) + (f.z + f.w);
        s = s + simd_xor_f32(s, 2);
        s = s + simd_xor_f32(s, 1);
        if ((tid & 3u) == 0u) sums[i / 16] = s;
        tg_st16f(stage, 4 * stage_at4(i / 4), q8_prepare(f));
    }
    square = simd_sum_f32(square);
    if (lane == 0) part[sg] = square;
    TG_BARRIER();
    float acc = 0.0f;
    UNROLL for (uint c = 0; c < N; c++)
    {
        const uint r = 32 * c + lane;
        if (K != 0 || r < n_runs) {
            lane_f32<16> f;
            UNROLL for (uint p = 0; p < 4; p++)
            {
                const float4 t = tg_ld16f(stage, 4 * stage_at4(4 * r + p));
                f.v[4 * p] = t.x;
                f.v[4 * p + 1] = t.y;
                f.v[4 * p + 2] = t.z;
                f.v[4 * p + 3] = t.w;
            }
            acc = KFMA(q8_scale(g[c]), q8dot16(q[c], f, 0), acc);
            acc = KFMA(q4_bias(g[c]), sums[r], acc);
        }
    }
    acc = simd_sum_f32(acc) * rms_inverse(part[0], part[1], part[2], part[3], cols, a.eps);
    DPTR(float) out = logits + (ulong)gy * (a.n_experts + 1);
    if (lane == 0 && 4 * gx + sg <= a.n_experts) st_shared_f32(out, row, acc);
    if (a.tail != 0u) {
        TG_BARRIER_DEVICE();
        if (tid == 0) {
            device_fence();
            arrived[0] = atomic_add_u32(counters, gy, 1u);
            device_fence();
        }
        TG_BARRIER_DEVICE();
        if (arrived[0] == ngx - 1 && sg == 0) {
            route_logits<8> l;
            UNROLL for (uint j = 0; j < 8; j++)
            {
                const uint e = 32 * j + lane;
                l.v[j] = e < a.n_experts ? ld_shared_f32(out, e) : -1e30f;
            }
            route_pick<8>(l, ld_shared_f32(out, a.n_experts), a.n_used, lane, ids + gy * a.n_used,
                          weights + gy * (a.n_used + 1));
            if (lane == 0) st_shared_u32(counters, gy, 0u);
        }
    }
}

/* gemv_router: logits of a token, K = 2048; with tail, the last group to arrive chooses the
 * experts. gemv_router_any: K <= 4096.
 * shapes  codes [E + 1][K] bytes; sb [E + 1][K / 64]; x [T][K]; norm [K]; counters [T], zero
 *         before and after; logits [T][E + 1]; ids [T][U]; weights [T][U + 1]
 * grid    (E + 1) / 4 x T groups
 * cost    E K 1.06 bytes; latency bound
 * ref     ref_router and ref_top8, bitwise */
KERNEL(gemv_router, 128, KIN(0, uint, codes), KIN(1, uint, sb), KIN(2, float, x),
       KIN(3, float, norm), KOUT(4, uint, counters), KOUT(5, float, logits), KOUT(6, uint, ids),
       KOUT(7, float, weights), KARG(8, gemv_router_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, 2048);
    TG_ARRAY(float, sums, 128);
    TG_ARRAY(float, part, 4);
    TG_ARRAY(uint, arrived, 1);
    PDL_LAUNCH();
    router_group<2048>(codes, sb, x, norm, counters, logits, ids, weights, a, stage, sums, part,
                       arrived, tid, lane, sg, gx, gy, ngx);
}
KERNEL_END

KERNEL(gemv_router_any, 128, KIN(0, uint, codes), KIN(1, uint, sb), KIN(2, float, x),
       KIN(3, float, norm), KOUT(4, uint, counters), KOUT(5, float, logits), KOUT(6, uint, ids),
       KOUT(7, float, weights), KARG(8, gemv_router_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, 4096);
    TG_ARRAY(float, sums, 256);
    TG_ARRAY(float, part, 4);
    TG_ARRAY(uint, arrived, 1);
    PDL_LAUNCH();
    router_group<0>(codes, sb, x, norm, counters, logits, ids, weights, a, stage, sums, part,
                    arrived, tid, lane, sg, gx, gy, ngx);
}
KERNEL_END

/* ---- Experts ---- */

/* gemv_gateup: h[t][s] = silu(gate x) * (up x) for the routed experts and, last, the shared one.
 * shapes  slabs as gpu_bank; x [T][H], H = 2048; norm [H]; ids [T][U]; h [T][U + 1][W]
 * grid    at most (U + 1) W / 8 x T groups: they take turns
 * cost    (U + 1) 2 W H 0.5625 bytes a token; memory bound
 * ref     ref_gateup, bitwise
 * why     g and u rows lie side by side, so a simdgroup has both of two outputs in its four. */
template <uint C, uint S, uint K>
KFN void gateup_group(DPTR(const uint) slabs, DPTR(const float) x, DPTR(const float) norm,
                      DPTR(const uint) ids, DPTR(float) h, ARGS(gemv_moe_args) a, TPTR(float) stage,
                      TPTR(float) sums, TPTR(float) part, TPTR(float) halves, uint tid, uint lane,
                      uint sg, uint gx, uint gy, uint ngx)
{
    const uint cols = K != 0 ? K : a.hidden;
    const uint fours = a.width / 2, n_fours = (a.n_used + 1) * fours; /* of a slot, of all */
    const uint n_teams = 4 / S, piece = sg % S, r0 = piece * C * 32 + lane;
    const uint sb_at = a.width * (cols / 4);
    uint first = gx * n_teams;
    uint slot = (first + sg / S) / fours, at = (first + sg / S) % fours; /* four `at` of slot */
    row_part<2 * C * S> w;
    row_load<2 * C * S, K != 0>(w, norm, cols, tid);
    PDL_WAIT();
    q4_four<C> q;
    if (slot <= a.n_used) {
        const uint e = slot < a.n_used ? ids[gy * a.n_used + slot] : a.n_experts;
        DPTR(const uint) slab = slabs + (ulong)e * a.slab_words;
        UNROLL for (uint i = 0; i < 4; i++)
            q4_load<C, K>(q, i, slab + at * (cols / 2) + 4 * r0,
                          slab + sb_at + at * (cols / 16) + r0 / 2, cols, r0);
    }
    const float square =
        stage_normed<2 * C * S, K != 0>(x + (ulong)gy * cols, w, cols, stage, sums, tid);
    if (lane == 0) part[sg] = square;
    TG_BARRIER();
    lane_f32<32 * C> v;
    lane_f32<C> sum;
    unstage_q4<C>(v, sum, stage, sums, r0);
    const float inv = rms_inverse(part[0], part[1], part[2], part[3], cols, a.eps);
    DPTR(float) out = h + (ulong)gy * (a.n_used + 1) * a.width;
    for (uint turn = 0; first < n_fours; turn++) {
        const uint four = first + sg / S;
        first += ngx * n_teams;
        at += ngx * n_teams;
        while (at >= fours) {
            at -= fours;
            slot++;
        }
        const bool more = slot <= a.n_used;
        const uint e = slot < a.n_used ? ids[gy * a.n_used + slot] : a.n_experts;
        DPTR(const uint) slab = slabs + (ulong)e * a.slab_words;
        DPTR(const uint) next = slab + at * (cols / 2) + 4 * r0;
        DPTR(const uint) next_sb = slab + sb_at + at * (cols / 16) + r0 / 2;
        float acc[4];
        UNROLL for (uint i = 0; i < 4; i++)
        {
            acc[i] = q4_dot<C>(q, i, v, sum);
            if (more) q4_load<C, K>(q, i, next, next_sb, cols, r0);
        }
        float s = simd_sum4(acc[0], acc[1], acc[2], acc[3], lane);
        s = team_sum<S>(s, halves, turn, lane, sg) * inv;
        const float u = simd_xor_f32(s, 8);
        if (piece == 0 && (lane & 15u) == 0u && four < n_fours)
            out[2 * four + lane / 16] = kx_silu(s) * u;
    }
}

KERNEL(gemv_gateup, 128, KIN(0, uint, slabs), KIN(1, float, x), KIN(2, float, norm),
       KIN(3, uint, ids), KOUT(4, float, h), KARG(5, gemv_moe_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, 2048);
    TG_ARRAY(float, sums, 64);
    TG_ARRAY(float, part, 4);
    PDL_LAUNCH();
    gateup_group<2, 1, 2048>(slabs, x, norm, ids, h, a, stage, sums, part, part, tid, lane, sg, gx,
                             gy, ngx);
}
KERNEL_END

/* gemv_gateup_any: the same for every H <= 4096. */
KERNEL(gemv_gateup_any, 128, KIN(0, uint, slabs), KIN(1, float, x), KIN(2, float, norm),
       KIN(3, uint, ids), KOUT(4, float, h), KARG(5, gemv_moe_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, 4096);
    TG_ARRAY(float, sums, 128);
    TG_ARRAY(float, part, 4);
    TG_ARRAY(float, halves, 32);
    PDL_LAUNCH();
    gateup_group<2, 2, 0>(slabs, x, norm, ids, h, a, stage, sums, part, halves, tid, lane, sg, gx,
                          gy, ngx);
}
KERNEL_END

/* gemv_down: x[t] += sum over slots of weight * down h, W <= 512.
 * A half simdgroup has a row: lane l of the half its run of 32 columns. From 0, slots ascending,
 * the shared expert last: acc = fma(weight, product as in gemv, acc); the xor tree 8, 4, 2, 1.
 * shapes  h [T][U + 1][W], (U + 1) W <= 4,608, U <= 8; weights [T][U + 1]; x [T][H]
 * grid    H / 16 x T groups
 * memory  the inputs of all slots, 19 KB
 * cost    (U + 1) W H 0.5625 bytes a token; memory bound; all of it asked for before the first use
 * ref     ref_down, bitwise
 * why     no partial results in memory, no atomics: an output is one simdgroup's. */
#define DOWN_STAGE 4608 /* % 128 == 0 */
#define DOWN_SLOTS 9
KERNEL(gemv_down, 256, KIN(0, uint, slabs), KIN(1, float, h), KIN(2, uint, ids),
       KIN(3, float, weights), KOUT(4, float, x), KARG(5, gemv_moe_args, a))
{
    KCTX;
    TG_ARRAY(float, stage, DOWN_STAGE);
    TG_ARRAY(float, sums, DOWN_STAGE / 32);
    PDL_LAUNCH();
    const uint n_slots = a.n_used + 1, n_runs = a.width / 32;
    const uint row = 16 * gx + 2 * sg + lane / 16, run = kmin(lane & 15u, n_runs - 1);
    const uint codes_at = a.width * (a.hidden / 4 + a.hidden / 32);
    const uint my_codes = codes_at + row * (a.width / 8) + 4 * run;
    const uint my_sb = codes_at + a.hidden * (a.width / 8) + row * (a.width / 64) + run / 2;
    PDL_WAIT();
    /* no branches between the loads: lanes and slots too many repeat the last with weight 0 */
    uint e[DOWN_SLOTS];
    UNROLL for (uint s = 0; s < DOWN_SLOTS; s++) e[s] =
        s < a.n_used ? ids[gy * a.n_used + s] : a.n_experts;
    uint4 w[DOWN_SLOTS];
    uint g[DOWN_SLOTS];
    float weight[DOWN_SLOTS];
    UNROLL for (uint s = 0; s < DOWN_SLOTS; s++)
    {
        DPTR(const uint) slab = slabs + (ulong)e[s] * a.slab_words;
        w[s] = ld16_stream(slab, my_codes);
        g[s] = slab[my_sb];
    }
    UNROLL for (uint s = 0; s < DOWN_SLOTS; s++)
    {
        const float f = weights[gy * n_slots + kmin(s, a.n_used)];
        weight[s] = s < n_slots && (lane & 15u) < n_runs ? f : 0.0f;
    }
    /* all slots are one row of n_slots W columns: runs do not cross slots */
    const uint n_inputs = n_slots * a.width;
    const ulong at = (ulong)gy * a.hidden + row;
    row_part<(DOWN_STAGE + 1023) / 1024> v;
    UNROLL for (uint j = 0; j < (DOWN_STAGE + 1023) / 1024; j++)
    {
        const uint i = 4 * tid + 1024 * j;
        v.v[j] = zero4();
        if (i < n_inputs) v.v[j] = ld16f(h + (ulong)gy * n_inputs, i);
    }
    const float old = (lane & 15u) == 0u ? x[at] : 0.0f;
    UNROLL for (uint j = 0; j < (DOWN_STAGE + 1023) / 1024; j++)
    {
        const uint i = 4 * tid + 1024 * j;
        if (i < ((n_inputs + 127u) & ~127u)) stage_four(v.v[j], i, stage, sums);
    }
    TG_BARRIER();
    float acc = 0.0f;
    UNROLL for (uint s = 0; s < DOWN_SLOTS; s++)
    {
        lane_f32<32> f;
        lane_f32<1> sum;
        unstage_q4<1>(f, sum, stage, sums, kmin(s, a.n_used) * n_runs + run);
        const float scale = q4_scale(g[s]);
        float p = KFMA(scale, q4dot16(w[s].x, w[s].y, f, 0), 0.0f);
        p = KFMA(scale, q4dot16(w[s].z, w[s].w, f, 16), p);
        acc = KFMA(weight[s], KFMA(q4_bias(g[s]), sum.v[0], p), acc);
    }
    acc = acc + simd_xor_f32(acc, 8);
    acc = acc + simd_xor_f32(acc, 4);
    acc = acc + simd_xor_f32(acc, 2);
    acc = acc + simd_xor_f32(acc, 1);
    if ((lane & 15u) == 0u) x[at] = old + acc;
}
KERNEL_END

/* ---- Experts in more kernels (ablations of fuse_gateup and fuse_down, and any shape) ---- */

/* gemv_expert_row: out[t][s][i] = row first + stride i of the matrix of slot s's expert times x.
 * Grid: rows / 4 x T (U + 1). ref_gemv a row, bitwise. */
KERNEL(gemv_expert_row, 128, KIN(0, uint, slabs), KIN(1, float, x), KIN(2, float, norm),
       KIN(3, uint, ids), KOUT(4, float, y), KARG(5, gemv_expert_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 4);
    PDL_LAUNCH();
    PDL_WAIT();
    const bool has_norm = (a.flags & GEMV_NORM) != 0u;
    const uint t = gy / (a.n_used + 1), slot = gy % (a.n_used + 1);
    DPTR(const float) in = x + (ulong)(a.per_slot != 0u ? gy : t) * a.cols;
    const float p = has_norm ? rms_partial(in, a.cols, sg, lane) : 0.0f;
    if (lane == 0) part[sg] = p;
    TG_BARRIER();
    const float inv =
        has_norm ? rms_inverse(part[0], part[1], part[2], part[3], a.cols, a.eps) : 1.0f;
    const uint e = slot < a.n_used ? ids[t * a.n_used + slot] : a.n_experts;
    DPTR(const uint) slab = slabs + (ulong)e * a.slab_words;
    const uint i = 4 * gx + sg, row = a.first + a.stride * i;
    if (i < a.rows) {
        const float s =
            row_dot(slab + a.codes_at + row * (a.cols / 8), slab + a.sb_at + row * (a.cols / 64),
                    in, norm, has_norm, a.cols, lane);
        if (lane == 0) y[(ulong)gy * a.rows + i] = s * inv;
    }
}
KERNEL_END

/* gemv_silu_mul: h = silu(g) u over n values. Grid: n / 128. */
KERNEL(gemv_silu_mul, 128, KIN(0, float, g), KIN(1, float, u), KOUT(2, float, h),
       KARG(3, gemv_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint i = 128 * gx + tid;
    if (i < a.rows) h[i] = kx_silu(g[i]) * u[i];
}
KERNEL_END

/* gemv_combine: x[t] += sum over slots of weight * d[t][s]: from 0, ascending. Grid: H / 128 x T.
 */
KERNEL(gemv_combine, 128, KIN(0, float, d), KIN(1, float, weights), KOUT(2, float, x),
       KARG(3, gemv_moe_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint i = 128 * gx + tid, n_slots = a.n_used + 1;
    if (i < a.hidden) {
        float acc = 0.0f;
        for (uint s = 0; s < n_slots; s++)
            acc = KFMA(weights[gy * n_slots + s], d[(ulong)(gy * n_slots + s) * a.hidden + i], acc);
        x[(ulong)gy * a.hidden + i] = x[(ulong)gy * a.hidden + i] + acc;
    }
}
KERNEL_END
