/* gemm.h - prefill: dense and expert products with 4-bit weights, the router, routing lists.
 * References: ref_gemm.h. Activations are bf16, weights bf16(scale q + bias) (prim_mm.h), sums f32
 * over ascending K; no value depends on the other tokens of the batch. */
#include "kernels/args_gemm.h"
#include "kernels/prim_gmm.h"

/* ---- The portable tile ---- */

#define GEMM_PITCH 72u /* of a tile's rows in threadgroup memory: 64 elements and 16 bytes */

/* Where a tile's operands are. Rows of x beyond n_x, of W beyond n_w repeat the last one. */
struct gemm_operands {
    uint x0, n_x; /* first and number of rows of the tile */
    uint w0, n_w;
    uint cols;
};

/* Row r of the tile in x: itself, or as the list of slots says. */
KFN uint gemm_row(THREF(const gemm_operands) o, DPTR(const uint) slot_token, bool gather, uint r)
{
    const uint i = o.x0 + kmin(r, o.n_x - 1);
    return gather ? slot_token[i] : i;
}

/* tc [BM][BN + 4] = X W^T for one tile by 4 simdgroups, each 16 x 32. Q4: w holds codes, cols / 8
 * words a row, and sb cols / 64; else w holds bf16 pairs. ta: BM rows, tb: BN rows of GEMM_PITCH.
 * The next 64 columns are loaded to registers while the tile works on these. Ends with a barrier.
 */
template <uint BM, uint BN, bool Q4>
KFN void gemm_tile(THREF(const gemm_operands) o, DPTR(const ushort) x, DPTR(const uint) slot_token,
                   bool gather, DPTR(const uint) w, DPTR(const uint) sb, TPTR(ushort) ta,
                   TPTR(ushort) tb, TPTR(float) tc, uint tid, uint lane, uint sg)
{
    const uint NA = BM / 16, NB = BN / 64, SX = BN / 32; /* loads a thread, simdgroups in a row */
    const uint chunk = tid & 7, odd = tid & 1;
    ulong a_at[BM / 16], b_at[BN / 64];
    ulong sb_at[BN / 64];
    UNROLL for (uint i = 0; i < NA; i++)
    {
        a_at[i] = (ulong)gemm_row(o, slot_token, gather, tid / 8 + 16 * i) * o.cols + 8 * chunk;
    }
    UNROLL for (uint i = 0; i < NB; i++)
    {
        const uint r = o.w0 + kmin(tid / 2 + 64 * i, o.n_w - 1);
        b_at[i] = Q4 ? (ulong)r * (o.cols / 8) + 4 * odd : (ulong)r * (o.cols / 2) + 16 * odd;
        sb_at[i] = (ulong)r * (o.cols / 64);
    }
    uint4 a[BM / 16], b[BN / 64];
    uint s[BN / 64];
    mm_acc acc;
    mm_zero(acc);
    UNROLL for (uint i = 0; i < NA; i++) a[i] = ld16h(x + a_at[i], 0);
    if (Q4) {
        UNROLL for (uint i = 0; i < NB; i++)
        {
            b[i] = ld16(w + b_at[i], 0);
            s[i] = sb[sb_at[i]];
        }
    }
    for (uint k = 0; k < o.cols; k += 64) {
        TG_BARRIER();
        UNROLL for (uint i = 0; i < NA; i++)
        {
            tg_st16h(ta, (tid / 8 + 16 * i) * GEMM_PITCH + 8 * chunk, a[i]);
        }
        UNROLL for (uint i = 0; i < NB; i++)
        {
            const uint at = (tid / 2 + 64 * i) * GEMM_PITCH + 32 * odd;
            if (Q4) {
                tg_st16h(tb, at, mm_dequant8(b[i].x, s[i]));
                tg_st16h(tb, at + 8, mm_dequant8(b[i].y, s[i]));
                tg_st16h(tb, at + 16, mm_dequant8(b[i].z, s[i]));
                tg_st16h(tb, at + 24, mm_dequant8(b[i].w, s[i]));
            } else {
                UNROLL for (uint j = 0; j < 32; j += 8)
                {
                    tg_st16h(tb, at + j, ld16(w + b_at[i] + k / 2, j / 2));
                }
            }
        }
        TG_BARRIER();
        if (k + 64 < o.cols) {
            UNROLL for (uint i = 0; i < NA; i++) a[i] = ld16h(x + a_at[i] + (k + 64), 0);
            if (Q4) {
                UNROLL for (uint i = 0; i < NB; i++)
                {
                    b[i] = ld16(w + b_at[i] + (k + 64) / 8, 0);
                    s[i] = sb[sb_at[i] + (k + 64) / 64];
                }
            }
        }
        UNROLL for (uint kk = 0; kk < 64; kk += 16)
        {
            mm_mac(acc, ta + (sg / SX * 16 * GEMM_PITCH + kk), GEMM_PITCH,
                   tb + (sg % SX * 32 * GEMM_PITCH + kk), GEMM_PITCH);
        }
    }
    MM_EACH(acc, row, col, v)
    {
        tc[(sg / SX * 16 + row) * (BN + 4) + sg % SX * 32 + col] = v;
    }
    TG_BARRIER();
}

/* The dense product. */
template <bool Q4>
KFN void gemm_dense(ARGS_REF(gemm_args) a, DPTR(const ushort) x, DPTR(const uint) w,
                    DPTR(const uint) sb, DPTR(float) y, TPTR(ushort) ta, TPTR(ushort) tb,
                    TPTR(float) tc, uint tid, uint lane, uint sg, uint gx, uint gy)
{
    gemm_operands o;
    o.x0 = 32 * gy;
    o.n_x = kmin(32u, a.n - o.x0);
    o.w0 = 64 * gx;
    o.n_w = kmin(64u, a.rows - o.w0);
    o.cols = a.cols;
    gemm_tile<32, 64, Q4>(o, x, w, false, w, sb, ta, tb, tc, tid, lane, sg);
    for (uint i = tid; i < 32 * 64; i += 128) {
        const uint r = i / 64, c = i % 64;
        if (r < o.n_x && c < o.n_w) {
            DPTR(float) out = y + ((ulong)(o.x0 + r) * a.rows + o.w0 + c);
            const float v = tc[r * 68 + c];
            out[0] = a.add != 0 ? out[0] + v : v;
        }
    }
}

/* gemm_q4: y (=, or += with add) W x.
 * shapes  x [n][cols] bf16; codes [rows][cols / 8]; sb [rows][cols / 64]; y [n][rows]
 * grid    ceil(rows / 64) x ceil(n / 32)
 * memory  22,528 bytes
 * cost    rows cols 0.5625 + n (2 cols + 4 rows) bytes, 2 n rows cols operations
 * ref     ref_gemm, within its tolerance */
KERNEL(gemm_q4, 128, KIN(0, ushort, x), KIN(1, uint, codes), KIN(2, uint, sb), KOUT(3, float, y),
       KARG(4, gemm_args, a))
{
    KCTX;
    TG_ARRAY(ushort, ta, 32 * GEMM_PITCH);
    TG_ARRAY(ushort, tb, 64 * GEMM_PITCH);
    TG_ARRAY(float, tc, 32 * 68);
    PDL_LAUNCH();
    PDL_WAIT();
    gemm_dense<true>(a, x, codes, sb, y, ta, tb, tc, tid, lane, sg, gx, gy);
}
KERNEL_END

/* gemm_wide: gemm_q4 with a bf16 matrix [rows][cols], pairs in words, from memory; the form
 * without inline_dequant. */
KERNEL(gemm_wide, 128, KIN(0, ushort, x), KIN(1, uint, w), KOUT(2, float, y), KARG(3, gemm_args, a))
{
    KCTX;
    TG_ARRAY(ushort, ta, 32 * GEMM_PITCH);
    TG_ARRAY(ushort, tb, 64 * GEMM_PITCH);
    TG_ARRAY(float, tc, 32 * 68);
    PDL_LAUNCH();
    PDL_WAIT();
    gemm_dense<false>(a, x, w, w, y, ta, tb, tc, tid, lane, sg, gx, gy);
}
KERNEL_END

/* gemm_expand: 4-bit matrices to bf16.
 * shapes  src: matrix m has codes [rows][cols / 8] at word m stride + codes, sb [rows][cols / 64]
 * at m stride + sb; w [n_mats][rows][cols] bf16 grid    any x n_mats: groups of a matrix share its
 * 64-blocks cost    2.5625 n_mats rows cols bytes ref     ref_gemm_weight, bitwise but for what
 * prim_mm.h allows */
KERNEL(gemm_expand, 256, KIN(0, uint, codes), KIN(1, uint, sb), KOUT(2, ushort, w),
       KARG(3, gemm_expand_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint n = a.rows * (a.cols / 32);
    DPTR(const uint) c = codes + ((ulong)gy * a.stride + a.codes);
    DPTR(const uint) s = sb + ((ulong)gy * a.stride + a.sb);
    DPTR(ushort) out = w + (ulong)gy * a.rows * a.cols;
    for (uint i = 256 * gx + tid; i < n; i += 256 * ngx) {
        const uint4 q = ld16(c, 4 * i);
        const uint g = s[i / 2];
        st16h(out, 32 * i, mm_dequant8(q.x, g));
        st16h(out, 32 * i + 8, mm_dequant8(q.y, g));
        st16h(out, 32 * i + 16, mm_dequant8(q.z, g));
        st16h(out, 32 * i + 24, mm_dequant8(q.w, g));
    }
}
KERNEL_END

/* ---- Router ---- */

/* 32 columns: 8 rows from w, tokens 0 and 32 from x. */
struct router_acc {
    float v[16];
};
KFN void router_mac(THREF(router_acc) acc, TPTR(const float) w, TPTR(const float) x)
{
    UNROLL for (uint j = 0; j < 32; j++)
    {
        const float4 lo = tg_ld16f(w, j * 68), hi = tg_ld16f(w, j * 68 + 4);
        UNROLL for (uint h = 0; h < 2; h++)
        {
            const float v = x[j * 65 + 32 * h];
            acc.v[8 * h] = KFMA(lo.x, v, acc.v[8 * h]);
            acc.v[8 * h + 1] = KFMA(lo.y, v, acc.v[8 * h + 1]);
            acc.v[8 * h + 2] = KFMA(lo.z, v, acc.v[8 * h + 2]);
            acc.v[8 * h + 3] = KFMA(lo.w, v, acc.v[8 * h + 3]);
            acc.v[8 * h + 4] = KFMA(hi.x, v, acc.v[8 * h + 4]);
            acc.v[8 * h + 5] = KFMA(hi.y, v, acc.v[8 * h + 5]);
            acc.v[8 * h + 6] = KFMA(hi.z, v, acc.v[8 * h + 6]);
            acc.v[8 * h + 7] = KFMA(hi.w, v, acc.v[8 * h + 7]);
        }
    }
}

/* gemm_router: y[t] = R RMS1(x[t]; norm) in f32. A thread holds 8 rows x 2 tokens and adds
 * w (x norm) over ascending K; the factor rsqrt(mean x^2 + eps) comes last. The sum of squares of a
 * token: four partials, number p over the elements with (i / 8) % 4 = p, ascending, then
 * (p0 + p1) + (p2 + p3).
 * shapes  x [n][cols]; norm [cols]; codes [rows][cols / 4] (8-bit); sb [rows][cols / 64];
 *         y [n][rows]
 * grid    ceil(rows / 64) x ceil(n / 64)
 * memory  18,048 bytes
 * cost    1.0625 rows cols + 4 n (cols + rows) bytes, 2 n rows cols operations on the f32 units
 * ref     ref_gemm_router, bitwise */
KERNEL(gemm_router, 256, KIN(0, float, x), KIN(1, float, norm), KIN(2, uint, codes),
       KIN(3, uint, sb), KOUT(4, float, y), KARG(5, gemm_router_args, a))
{
    KCTX;
    TG_ARRAY(float, xs, 32 * 65);
    TG_ARRAY(float, ws, 32 * 68);
    TG_ARRAY(float, sq, 64 * 4);
    PDL_LAUNCH();
    PDL_WAIT();
    const uint x0 = 64 * gy, w0 = 64 * gx;
    const uint xt = tid / 4, xk = 8 * (tid & 3), wr = tid & 63, wk = 8 * (tid / 64);
    const uint row = kmin(w0 + wr, a.rows - 1);
    DPTR(const float) x_row = x + (ulong)kmin(x0 + xt, a.n - 1) * a.cols;
    DPTR(const uint) w_row = codes + (ulong)row * (a.cols / 4);
    DPTR(const uint) sb_row = sb + (ulong)row * (a.cols / 64);
    router_acc acc;
    float squares = 0.0f;
    UNROLL for (uint i = 0; i < 16; i++) acc.v[i] = 0.0f;
    for (uint k = 0; k < a.cols; k += 32) {
        float v[8], g[8];
        const float4 v0 = ld16f(x_row, k + xk), v1 = ld16f(x_row, k + xk + 4);
        const float4 g0 = ld16f(norm, k + xk), g1 = ld16f(norm, k + xk + 4);
        const uint q0 = w_row[(k + wk) / 4], q1 = w_row[(k + wk) / 4 + 1];
        const uint s = sb_row[k / 64];
        const float scale = kx_bf16_load(s & 0xffffu), bias = kx_bf16_load(s >> 16);
        v[0] = v0.x, v[1] = v0.y, v[2] = v0.z, v[3] = v0.w;
        v[4] = v1.x, v[5] = v1.y, v[6] = v1.z, v[7] = v1.w;
        g[0] = g0.x, g[1] = g0.y, g[2] = g0.z, g[3] = g0.w;
        g[4] = g1.x, g[5] = g1.y, g[6] = g1.z, g[7] = g1.w;
        TG_BARRIER();
        UNROLL for (uint j = 0; j < 8; j++)
        {
            const uint q = ((j < 4 ? q0 : q1) >> (8 * (j & 3))) & 255u;
            squares = KFMA(v[j], v[j], squares);
            xs[(xk + j) * 65 + xt] = v[j] * g[j];
            ws[(wk + j) * 68 + wr] = KFMA(scale, (float)q, bias);
        }
        TG_BARRIER();
        if (w0 + 8 * sg < a.rows) router_mac(acc, ws + 8 * sg, xs + lane);
    }
    sq[tid] = squares;
    TG_BARRIER();
    UNROLL for (uint h = 0; h < 2; h++)
    {
        const uint t = lane + 32 * h;
        const float sum = (sq[4 * t] + sq[4 * t + 1]) + (sq[4 * t + 2] + sq[4 * t + 3]);
        const float inv = kx_rsqrt(sum / (float)a.cols + a.eps);
        UNROLL for (uint j = 0; j < 8; j++)
        {
            const uint r = w0 + 8 * sg + j;
            if (x0 + t < a.n && r < a.rows)
                y[(ulong)(x0 + t) * a.rows + r] = acc.v[8 * h + j] * inv;
        }
    }
}
KERNEL_END

/* ---- Routing lists ---- */

/* Four ids from number i on; ~0 beyond the last. */
KFN uint4 moe_ids4(DPTR(const uint) ids, uint i, uint n)
{
    uint4 v;
    if (i + 4 <= n) return ld16(ids, i);
    v.x = i < n ? ids[i] : ~0u;
    v.y = i + 1 < n ? ids[i + 1] : ~0u;
    v.z = i + 2 < n ? ids[i + 2] : ~0u;
    v.w = ~0u;
    return v;
}

KFN uint moe_matches(uint4 v, uint e)
{
    return (v.x == e ? 1u : 0u) + (v.y == e ? 1u : 0u) + (v.z == e ? 1u : 0u) +
           (v.w == e ? 1u : 0u);
}

/* Ids that one of a group's 8 simdgroups looks at: a multiple of 128. */
KFN uint moe_share(uint n)
{
    return (n + 1023) / 1024 * 128;
}

/* moe_count: counts[e][i] = ids that equal e in the i-th eighth of the list. No atomics.
 * shapes  ids [n][n_used]; counts [n_experts][8]
 * grid    n_experts
 * cost    4 n n_used bytes (read n_experts times, from the cache)
 * ref     ref_moe_plan */
KERNEL(moe_count, 256, KIN(0, uint, ids), KOUT(1, uint, counts), KARG(2, moe_plan_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint n = a.n * a.n_used, share = moe_share(n);
    const uint end = kmin(n, (sg + 1) * share);
    uint c = 0;
    for (uint i = sg * share + 4 * lane; i < end; i += 128)
        c += moe_matches(moe_ids4(ids, i, n), gx);
    c = simd_sum_u32(c);
    if (lane == 0) counts[8 * gx + sg] = c;
}
KERNEL_END

/* Height of an expert's full tiles: equal parts when there are no short ones. */
KFN uint moe_height(ARGS_REF(moe_plan_args) a, uint c)
{
    if (a.tail != 0 || c == 0) return a.full;
    const uint n = (c + a.full - 1) / a.full;
    return ((c + n - 1) / n + 15) & ~15u;
}
/* Tiles of c slots. */
KFN uint moe_n_full(ARGS_REF(moe_plan_args) a, uint c)
{
    if (a.full == 0) return 0;
    const uint h = moe_height(a, c);
    return c / h + (c % h > a.tail ? 1u : 0u);
}
KFN uint moe_n_short(ARGS_REF(moe_plan_args) a, uint c)
{
    if (a.full == 0) return (c + a.tail - 1) / a.tail;
    return c % a.full != 0 && c % a.full <= a.tail ? 1u : 0u;
}

/* A simdgroup's share of the ids of expert e to slots from slot on. */
KFN void moe_list_slots(DPTR(const uint) ids, DPTR(uint) slot_token, DPTR(uint) slot_of,
                        ARGS_REF(moe_plan_args) a, uint e, uint slot, uint sg, uint lane)
{
    const uint n = a.n * a.n_used, share = moe_share(n), end = kmin(n, (sg + 1) * share);
    for (uint first = sg * share; first < end; first += 128) {
        const uint i = first + 4 * lane;
        uint4 v;
        v.x = v.y = v.z = v.w = ~0u;
        if (i < end) v = moe_ids4(ids, i, n);
        const uint c = moe_matches(v, e);
        if (simd_ballot_u32(c != 0) == 0) continue;
        uint s = slot + simd_prefix_u32(c);
        UNROLL for (uint j = 0; j < 4; j++)
        {
            const uint id = j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
            if (id == e) {
                slot_token[s] = (i + j) / a.n_used;
                slot_of[i + j] = s;
                s++;
            }
        }
        slot += simd_sum_u32(c);
    }
}

/* moe_plan: group e lists the slots and tiles of expert e, group n_experts those of the shared
 * expert and the numbers of tiles. Order: experts, then tokens; nothing depends on timing.
 * shapes  ids [n][n_used]; counts [n_experts][8]; slot_token [n (n_used + 1)]; slot_of [n][n_used];
 *         n_map [16]; full, tails [..][4]
 * grid    n_experts + 1
 * cost    4 n n_used bytes (read n_experts times, from the cache), 8 n (n_used + 1) written
 * ref     ref_moe_plan */
KERNEL(moe_plan, 256, KIN(0, uint, ids), KIN(1, uint, counts), KOUT(2, uint, slot_token),
       KOUT(3, uint, slot_of), KOUT(4, uint, n_map), KOUT(5, uint, full), KOUT(6, uint, tails),
       KARG(7, moe_plan_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 24);
    PDL_LAUNCH();
    PDL_WAIT();
    const uint n = a.n * a.n_used;
    const bool shared = gx == a.n_experts;
    uint before = 0, n_full = 0, n_short = 0;
    for (uint e = tid; e < gx; e += 256) {
        const uint4 lo = ld16(counts, 8 * e), hi = ld16(counts, 8 * e + 4);
        const uint c = lo.x + lo.y + lo.z + lo.w + hi.x + hi.y + hi.z + hi.w;
        before += c;
        n_full += moe_n_full(a, c);
        n_short += moe_n_short(a, c);
    }
    before = simd_sum_u32(before);
    n_full = simd_sum_u32(n_full);
    n_short = simd_sum_u32(n_short);
    if (lane == 0) {
        part[sg] = before;
        part[8 + sg] = n_full;
        part[16 + sg] = n_short;
    }
    TG_BARRIER();
    before = 0, n_full = 0, n_short = 0;
    uint mine = 0, slot = 0; /* slots of this expert; of it before this simdgroup's share */
    UNROLL for (uint i = 0; i < 8; i++)
    {
        before += part[i];
        n_full += part[8 + i];
        n_short += part[16 + i];
        const uint c = shared ? 0u : counts[8 * gx + i];
        slot += i < sg ? c : 0u;
        mine += c;
    }
    if (shared) {
        mine = a.n;
        for (uint t = tid; t < a.n; t += 256)
            slot_token[n + t] = t;
    } else {
        moe_list_slots(ids, slot_token, slot_of, a, gx, before + slot, sg, lane);
    }
    const uint my_full = moe_n_full(a, mine), my_short = moe_n_short(a, mine);
    const uint height = moe_height(a, mine);
    for (uint i = tid; i < my_full; i += 256) {
        uint4 m;
        m.x = gx, m.y = before + i * height, m.z = kmin(height, mine - i * height), m.w = 0;
        st16(full, 4 * (n_full + i), m);
    }
    const uint done = a.full == 0 ? 0u : kmin(mine, my_full * a.full);
    for (uint i = tid; i < my_short; i += 256) {
        uint4 m;
        m.x = gx, m.y = before + done + i * a.tail;
        m.z = kmin(a.tail, mine - done - i * a.tail), m.w = 0;
        st16(tails, 4 * (n_short + i), m);
    }
    if (shared && tid < 16)
        n_map[tid] = tid == 0 ? n_full + my_full : tid == 1 ? n_short + my_short : 0u;
}
KERNEL_END

/* ---- Experts ---- */

/* One tile of an expert's product; false when the list has no entry gy. */
template <uint BM, uint BN, bool Q4>
KFN bool moe_tile(ARGS_REF(moe_gemm_args) a, THREF(gemm_operands) o, DPTR(const ushort) x,
                  DPTR(const uint) slot_token, bool gather, DPTR(const uint) n_map,
                  DPTR(const uint) map, DPTR(const uint) bank, TPTR(ushort) ta, TPTR(ushort) tb,
                  TPTR(float) tc, uint tid, uint lane, uint sg, uint gx, uint gy)
{
    if (gy >= n_map[a.list]) return false;
    const uint4 m = ld16(map, 4 * gy);
    o.x0 = m.y;
    o.n_x = m.z;
    o.w0 = BN * gx;
    o.n_w = kmin(BN, a.rows - o.w0);
    o.cols = a.cols;
    DPTR(const uint) slab = bank + (ulong)m.x * a.slab;
    gemm_tile<BM, BN, Q4>(o, x, slot_token, gather, slab + a.codes, slab + a.sb, ta, tb, tc, tid,
                          lane, sg);
    return true;
}

/* Rows g0 u0 g1 u1 .. of a tile to h [slots][rows / 2] = bf16(silu(g) u). */
template <uint BM, uint BN>
KFN void moe_store_up(THREF(const gemm_operands) o, uint rows, TPTR(const float) tc, DPTR(ushort) h,
                      uint tid)
{
    for (uint i = tid; i < BM * BN / 2; i += 128) {
        const uint r = i / (BN / 2), c = 2 * (i % (BN / 2));
        if (r < o.n_x && c < o.n_w) {
            const float g = tc[r * (BN + 4) + c], u = tc[r * (BN + 4) + c + 1];
            h[(ulong)(o.x0 + r) * (rows / 2) + (o.w0 + c) / 2] =
                (ushort)kx_bf16_store(kx_silu(g) * u);
        }
    }
}

/* A tile to y [slots][rows] bf16. */
template <uint BM, uint BN>
KFN void moe_store_down(THREF(const gemm_operands) o, uint rows, TPTR(const float) tc,
                        DPTR(ushort) y, uint tid)
{
    for (uint i = tid; i < BM * BN; i += 128) {
        const uint r = i / BN, c = i % BN;
        if (r < o.n_x && c < o.n_w)
            y[(ulong)(o.x0 + r) * rows + o.w0 + c] = (ushort)kx_bf16_store(tc[r * (BN + 4) + c]);
    }
}

/* moe_up_*: h[slot] = bf16(silu(G x) * (U x)), x the slot's token; moe_down_*: y[slot] = bf16(D h).
 * BM is the height of a tile: 32 x 64 for full ones, 16 x 128 for short ones.
 * shapes  x [n][cols] bf16; slot_token [slots]; n_map [16]; map [..][4]; bank: slabs of a.slab
 * words, or, for wide, [n_experts + 1][rows][cols] bf16 (no inline_dequant); h [slots][rows / 2], y
 * [slots][rows] bf16 grid    ceil(rows / BN) x the most tiles there can be; groups beyond the list
 * do nothing memory  22,528 and 29,184 bytes cost    each expert's matrix once; 2 slots rows cols
 * operations ref     ref_moe, within its tolerance */
#define MOE_KERNELS(suffix, BM, BN, Q4)                                                            \
    KERNEL(moe_up_##suffix, 128, KIN(0, ushort, x), KIN(1, uint, slot_token), KIN(2, uint, n_map), \
           KIN(3, uint, map), KIN(4, uint, bank), KOUT(5, ushort, h), KARG(6, moe_gemm_args, a))   \
    {                                                                                              \
        KCTX;                                                                                      \
        TG_ARRAY(ushort, ta, BM *GEMM_PITCH);                                                      \
        TG_ARRAY(ushort, tb, BN *GEMM_PITCH);                                                      \
        TG_ARRAY(float, tc, BM *(BN + 4));                                                         \
        PDL_LAUNCH();                                                                              \
        PDL_WAIT();                                                                                \
        gemm_operands o;                                                                           \
        if (moe_tile<BM, BN, Q4>(a, o, x, slot_token, true, n_map, map, bank, ta, tb, tc, tid,     \
                                 lane, sg, gx, gy))                                                \
            moe_store_up<BM, BN>(o, a.rows, tc, h, tid);                                           \
    }                                                                                              \
    KERNEL_END                                                                                     \
    KERNEL(moe_down_##suffix, 128, KIN(0, ushort, h), KIN(1, uint, n_map), KIN(2, uint, map),      \
           KIN(3, uint, bank), KOUT(4, ushort, y), KARG(5, moe_gemm_args, a))                      \
    {                                                                                              \
        KCTX;                                                                                      \
        TG_ARRAY(ushort, ta, BM *GEMM_PITCH);                                                      \
        TG_ARRAY(ushort, tb, BN *GEMM_PITCH);                                                      \
        TG_ARRAY(float, tc, BM *(BN + 4));                                                         \
        PDL_LAUNCH();                                                                              \
        PDL_WAIT();                                                                                \
        gemm_operands o;                                                                           \
        if (moe_tile<BM, BN, Q4>(a, o, h, n_map, false, n_map, map, bank, ta, tb, tc, tid, lane,   \
                                 sg, gx, gy))                                                      \
            moe_store_down<BM, BN>(o, a.rows, tc, y, tid);                                         \
    }                                                                                              \
    KERNEL_END

MOE_KERNELS(32, 32, 64, true)
MOE_KERNELS(16, 16, 128, true)
MOE_KERNELS(wide_32, 32, 64, false)
MOE_KERNELS(wide_16, 16, 128, false)

/* moe_combine: x[t] += sum over the choices in order of weight y[slot], then the shared expert.
 * shapes  y [n (n_used + 1)][hidden] bf16; slot_of [n][n_used]; weights [n][n_used + 1];
 *         x [n][hidden]
 * grid    ceil(hidden / 1024) x n: a thread has 8 columns
 * cost    n hidden (2 (n_used + 1) + 8) bytes; memory bound
 * ref     ref_moe_combine, bitwise */
KERNEL(moe_combine, 128, KIN(0, ushort, y), KIN(1, uint, slot_of), KIN(2, float, weights),
       KOUT(3, float, x), KARG(4, moe_combine_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint c = 1024 * gx + 8 * tid, u = a.n_used;
    if (c < a.hidden) {
        float s[8];
        UNROLL for (uint j = 0; j < 8; j++) s[j] = 0.0f;
        for (uint i = 0; i <= u; i++) {
            const uint slot = i < u ? slot_of[gy * u + i] : a.n * u + gy;
            const float w = weights[gy * (u + 1) + i];
            const uint4 v = ld16h(y + (ulong)slot * a.hidden, c);
            s[0] = KFMA(w, kx_bf16_load(v.x & 0xffffu), s[0]);
            s[1] = KFMA(w, kx_bf16_load(v.x >> 16), s[1]);
            s[2] = KFMA(w, kx_bf16_load(v.y & 0xffffu), s[2]);
            s[3] = KFMA(w, kx_bf16_load(v.y >> 16), s[3]);
            s[4] = KFMA(w, kx_bf16_load(v.z & 0xffffu), s[4]);
            s[5] = KFMA(w, kx_bf16_load(v.z >> 16), s[5]);
            s[6] = KFMA(w, kx_bf16_load(v.w & 0xffffu), s[6]);
            s[7] = KFMA(w, kx_bf16_load(v.w >> 16), s[7]);
        }
        DPTR(float) out = x + (ulong)gy * a.hidden;
        float4 lo = ld16f(out, c), hi = ld16f(out, c + 4);
        lo.x += s[0], lo.y += s[1], lo.z += s[2], lo.w += s[3];
        hi.x += s[4], hi.y += s[5], hi.z += s[6], hi.w += s[7];
        st16f(out, c, lo);
        st16f(out, c + 4, hi);
    }
}
KERNEL_END

/* ---- The native main loop (prim_gmm.h) ---- */

KFN uint gmm_pair(uint a, uint b, uint odd)
{
    return odd != 0 ? (a >> 16) | (b & 0xffff0000u) : (a & 0xffffu) | (b << 16);
}

/* gmm_permute: y = x with the columns of every 32 in the order of GMM_COLUMN. A thread does a
 * block. shapes  x, y [n_blocks][32] bf16 grid    ceil(n_blocks / 256) cost    4 bytes an element;
 * memory bound ref     GMM_COLUMN */
KERNEL(gmm_permute, 256, KIN(0, ushort, x), KOUT(1, ushort, y), KARG(2, gmm_permute_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint i = 256 * gx + tid;
    if (i < a.n_blocks) {
        uint w[16];
        UNROLL for (uint c = 0; c < 4; c++)
        {
            const uint4 v = ld16h(x, 32 * i + 8 * c);
            w[4 * c] = v.x, w[4 * c + 1] = v.y, w[4 * c + 2] = v.z, w[4 * c + 3] = v.w;
        }
        UNROLL for (uint q = 0; q < 4; q++)
        {
            uint4 v;
            v.x = gmm_pair(w[q / 2], w[2 + q / 2], q & 1);
            v.y = gmm_pair(w[4 + q / 2], w[6 + q / 2], q & 1);
            v.z = gmm_pair(w[8 + q / 2], w[10 + q / 2], q & 1);
            v.w = gmm_pair(w[12 + q / 2], w[14 + q / 2], q & 1);
            st16h(y, 32 * i + 8 * q, v);
        }
    }
}
KERNEL_END

/* gmm_set_*, gmm_add_*: as gemm_q4, x in the order of GMM_COLUMN; wide: as gemm_wide.
 * grid    ceil(rows / 64 G) x ceil(n / 128)
 * memory  beyond 32 KB, the target's own
 * ref     ref_gemm, within its tolerance */
#define GMM_DENSE_BODY(G, WIDE, MODE, w, sb)                                                       \
    KCTX;                                                                                          \
    PDL_LAUNCH();                                                                                  \
    PDL_WAIT();                                                                                    \
    gmm_tile t;                                                                                    \
    t.x0 = GMM_TOKENS * gy;                                                                        \
    t.n_x = kmin(GMM_TOKENS, a.n - t.x0);                                                          \
    t.w0 = 64u * G * gx;                                                                           \
    t.n_w = kmin(64u * G, a.rows - t.w0);                                                          \
    t.cols = a.cols;                                                                               \
    gmm_run<G, WIDE, MODE>(t, x, w, w, sb, a.rows, y, tid, lane, sg);
#define GMM_DENSE(name, G, MODE)                                                                   \
    KERNEL(name, GMM_THREADS(G), KIN(0, ushort, x), KIN(1, uint, codes), KIN(2, uint, sb),         \
           KOUT(3, float, y), KARG(4, gemm_args, a))                                               \
    {GMM_DENSE_BODY(G, false, MODE, codes, sb)} KERNEL_END KERNEL_DYN_SMEM(name,                   \
                                                                           GMM_SMEM(G, false));
#define GMM_DENSE_WIDE(name, MODE)                                                                 \
    KERNEL(name, GMM_THREADS(4), KIN(0, ushort, x), KIN(1, uint, w), KOUT(2, float, y),            \
           KARG(3, gemm_args, a))                                                                  \
    {GMM_DENSE_BODY(4, true, MODE, w, w)} KERNEL_END KERNEL_DYN_SMEM(name, GMM_SMEM(4, true));

GMM_DENSE(gmm_set_4, 4, GMM_SET)
GMM_DENSE(gmm_add_4, 4, GMM_ADD)
GMM_DENSE(gmm_set_2, 2, GMM_SET)
GMM_DENSE(gmm_add_2, 2, GMM_ADD)
GMM_DENSE_WIDE(gmm_wide_set, GMM_SET)
GMM_DENSE_WIDE(gmm_wide_add, GMM_ADD)

/* gmm_up_*, gmm_down_*: as moe_up_32 and moe_down_32 for the list of full tiles, x and h in the
 * order of GMM_COLUMN; wide: as moe_up_wide_32 and moe_down_wide_32. With four warpgroups tokens
 * are read less often, with two one group's beginning and end hide behind another's loop. */
#define GMM_EXPERT_BODY(G, WIDE, MODE, from, slots, pitch, to)                                     \
    KCTX;                                                                                          \
    PDL_LAUNCH();                                                                                  \
    PDL_WAIT();                                                                                    \
    if (gy < n_map[a.list]) {                                                                      \
        const uint4 m = ld16(map, 4 * gy);                                                         \
        DPTR(const uint) slab = bank + (ulong)m.x * a.slab;                                        \
        gmm_tile t;                                                                                \
        t.x0 = m.y, t.n_x = m.z, t.w0 = 64u * G * gx;                                              \
        t.n_w = kmin(64u * G, a.rows - t.w0), t.cols = a.cols;                                     \
        gmm_run<G, WIDE, MODE>(t, from, slots, slab + a.codes, slab + a.sb, pitch, to, tid, lane,  \
                               sg);                                                                \
    }
#define GMM_EXPERTS(suffix, G, WIDE)                                                               \
    KERNEL(gmm_up_##suffix, GMM_THREADS(G), KIN(0, ushort, x), KIN(1, uint, slot_token),           \
           KIN(2, uint, n_map), KIN(3, uint, map), KIN(4, uint, bank), KOUT(5, ushort, h),         \
           KARG(6, moe_gemm_args, a))                                                              \
    {GMM_EXPERT_BODY(G, WIDE, GMM_UP, x, slot_token, a.rows / 2, h)} KERNEL_END KERNEL_DYN_SMEM(   \
        gmm_up_##suffix, GMM_SMEM(G, WIDE));                                                       \
    KERNEL(gmm_down_##suffix, GMM_THREADS(G), KIN(0, ushort, h), KIN(1, uint, n_map),              \
           KIN(2, uint, map), KIN(3, uint, bank), KOUT(4, ushort, y), KARG(5, moe_gemm_args, a))   \
    {GMM_EXPERT_BODY(G, WIDE, GMM_DOWN, h, n_map, a.rows, y)} KERNEL_END KERNEL_DYN_SMEM(          \
        gmm_down_##suffix, GMM_SMEM(G, WIDE));

GMM_EXPERTS(4, 4, false)
GMM_EXPERTS(2, 2, false)
GMM_EXPERTS(wide, 4, true)

/* ---- The main loop over codes in memory (prim_gmm.h) ---- */

/* Of 8 elements, ascending; then of the 8 lanes of a group of 64 by the tree 4, 2, 1. */
KFN float gmm_sum8(uint4 v)
{
    float s = kx_bf16_load(v.x & 0xffffu);
    s = s + kx_bf16_load(v.x >> 16);
    s = s + kx_bf16_load(v.y & 0xffffu);
    s = s + kx_bf16_load(v.y >> 16);
    s = s + kx_bf16_load(v.z & 0xffffu);
    s = s + kx_bf16_load(v.z >> 16);
    s = s + kx_bf16_load(v.w & 0xffffu);
    s = s + kx_bf16_load(v.w >> 16);
    s = s + simd_xor_f32(s, 4);
    s = s + simd_xor_f32(s, 2);
    return s + simd_xor_f32(s, 1);
}

/* gmm_sums: sums of the rows of x by groups of 64.
 * shapes  x [n][cols] bf16, cols % 256 == 0; sums [n][cols / 64]
 * grid    n
 * cost    n cols 2.0625 bytes
 * ref     ref_gmm_sums, bitwise */
KERNEL(gmm_sums, 128, KIN(0, ushort, x), KOUT(1, float, sums), KARG(2, gmm_sums_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const ulong row = (ulong)gx * a.cols;
    for (uint i = tid; i < a.cols / 8; i += 128) {
        const float s = gmm_sum8(ld16h(x + row, 8 * i));
        if (i % 8 == 0) sums[gx * (a.cols / 64) + i / 8] = s;
    }
}
KERNEL_END

/* gmm_gather: the rows of x in the order of slots, and their sums.
 * shapes  x [n][cols] bf16, cols % 256 == 0; slot_token [slots]; y [slots][cols]; sums as gmm_sums
 * grid    slots
 * cost    slots cols 4.0625 bytes
 * ref     slot_token; ref_gmm_sums, bitwise */
KERNEL(gmm_gather, 128, KIN(0, ushort, x), KIN(1, uint, slot_token), KOUT(2, ushort, y),
       KOUT(3, float, sums), KARG(4, gmm_sums_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const ulong from = (ulong)slot_token[gx] * a.cols, to = (ulong)gx * a.cols;
    for (uint i = tid; i < a.cols / 8; i += 128) {
        const uint4 v = ld16h(x + from, 8 * i);
        const float s = gmm_sum8(v);
        st16h(y + to, 8 * i, v);
        if (i % 8 == 0) sums[gx * (a.cols / 64) + i / 8] = s;
    }
}
KERNEL_END

/* codes_set, codes_add: as gemm_q4; sums: of x, by gmm_sums.
 * grid    ceil(rows / 128) x ceil(n / 32)
 * memory  none
 * ref     ref_gemm_codes, within its tolerance */
#define CODES_DENSE(name, MODE)                                                                    \
    KERNEL(name, 128, KIN(0, ushort, x), KIN(1, float, sums), KIN(2, uint, codes),                 \
           KIN(3, uint, sb), KOUT(4, float, y), KARG(5, gemm_args, a))                             \
    {                                                                                              \
        KCTX;                                                                                      \
        PDL_LAUNCH();                                                                              \
        PDL_WAIT();                                                                                \
        gmm_tile t;                                                                                \
        t.x0 = 32 * gy, t.n_x = kmin(32u, a.n - t.x0), t.w0 = 128 * gx;                            \
        t.n_w = kmin(128u, a.rows - t.w0), t.cols = a.cols;                                        \
        if (32 * sg < t.n_w) gmm_codes<32, MODE>(t, x, sums, codes, sb, a.rows, y, lane, sg);      \
    }                                                                                              \
    KERNEL_END
CODES_DENSE(codes_set, GMM_SET)
CODES_DENSE(codes_add, GMM_ADD)

/* codes_up_*, codes_down_*: as moe_up_* and moe_down_* for tiles of 32 and of 16 slots, x by
 * gmm_gather, sums of x or h.
 * grid    ceil(rows / 128) x the most tiles there can be; groups beyond the list do nothing
 * memory  none
 * ref     ref_gemm_codes, within its tolerance */
#define CODES_EXPERT_BODY(BM, MODE, pitch, to)                                                     \
    KCTX;                                                                                          \
    PDL_LAUNCH();                                                                                  \
    PDL_WAIT();                                                                                    \
    if (gy < n_map[a.list]) {                                                                      \
        const uint4 m = ld16(map, 4 * gy);                                                         \
        DPTR(const uint) slab = bank + (ulong)m.x * a.slab;                                        \
        gmm_tile t;                                                                                \
        t.x0 = m.y, t.n_x = m.z, t.w0 = 128 * gx;                                                  \
        t.n_w = kmin(128u, a.rows - t.w0), t.cols = a.cols;                                        \
        if (32 * sg < t.n_w)                                                                       \
            gmm_codes<BM, MODE>(t, x, sums, slab + a.codes, slab + a.sb, pitch, to, lane, sg);     \
    }
#define CODES_EXPERTS(BM)                                                                          \
    KERNEL(codes_up_##BM, 128, KIN(0, ushort, x), KIN(1, float, sums), KIN(2, uint, n_map),        \
           KIN(3, uint, map), KIN(4, uint, bank), KOUT(5, ushort, h), KARG(6, moe_gemm_args, a))   \
    {CODES_EXPERT_BODY(BM, GMM_UP, a.rows / 2, h)} KERNEL_END KERNEL(                              \
        codes_down_##BM, 128, KIN(0, ushort, x), KIN(1, float, sums), KIN(2, uint, n_map),         \
        KIN(3, uint, map), KIN(4, uint, bank), KOUT(5, ushort, y), KARG(6, moe_gemm_args, a))      \
    {CODES_EXPERT_BODY(BM, GMM_DOWN, a.rows, y)} KERNEL_END
CODES_EXPERTS(32)
CODES_EXPERTS(16)

/* ---- A tile by itself ---- */

/* mm_probe: c = A B^T added twice to nothing, or turned: A B; and where each lane's elements are.
 * shapes  a [n][16][16], b [n][32][16] or [n][16][32] bf16; c [n][16][32]; map [32][16]: 32 row +
 *         column of element e of lane l, by group 0
 * grid    n
 * memory  2,304 bytes
 * ref     in mm_check.c, exact for exact sums */
KERNEL(mm_probe, 32, KIN(0, ushort, a), KIN(1, ushort, b), KOUT(2, float, c), KOUT(3, uint, map),
       KARG(4, mm_probe_args, args))
{
    KCTX;
    TG_ARRAY(ushort, ta, 16 * 24);
    TG_ARRAY(ushort, tb, 32 * 24);
    PDL_LAUNCH();
    PDL_WAIT();
    const bool turned = args.turned != 0;
    const uint pitch = turned ? 40 : 24;
    const uint at = turned ? lane / 2 * pitch + 16 * (lane & 1u) : lane * pitch;
    tg_st16h(ta, lane / 2 * 24 + 8 * (lane & 1u), ld16h(a, 256 * gx + 8 * lane));
    tg_st16h(tb, at, ld16h(b, 512 * gx + 16 * lane));
    tg_st16h(tb, at + 8, ld16h(b, 512 * gx + 16 * lane + 8));
    TG_BARRIER();
    mm_acc acc;
    mm_zero(acc);
    for (uint i = 0; i < 2; i++) {
        if (turned)
            mm_mac_turned(acc, ta, 24, tb, pitch);
        else
            mm_mac(acc, ta, 24, tb, pitch);
    }
    uint e = 0;
    MM_EACH(acc, row, col, v)
    {
        c[512 * gx + 32 * row + col] = v;
        if (gx == 0) map[16 * lane + e] = 32 * row + col;
        e++;
    }
}
KERNEL_END
