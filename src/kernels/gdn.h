/* gdn.h - Gated DeltaNet (docs/MODEL.md 6.2, 6.3): one decoded token of several sequences, and the
 * scan of prompt segments.
 *
 * Shapes:     HK key heads, HV value heads, ratio = HV / HK, KW = 128 HK, VW = 128 HV,
 *             C = 2 KW + VW. y [T][N1]: q (KW), k (KW), v (VW), z (VW), b (HV), a (HV).
 *             conv [4][C]; ring [slots][4][C], the input of position p in row p & 3.
 *             state [slots][HV][16384]: 16 tiles of 8 columns, each [j 8][lane 32][e 4]: column
 *             (lane & 7) of the tile, row 16 j + 4 (lane >> 3) + e. So a simdgroup that holds a
 *             tile with 4 lanes a column loads 512 contiguous bytes at a time.
 * Invariants: a token's operations, and their order, depend on the kernel alone: not on the segment
 *             it is scanned in, nor on the other tokens. gdn_step* and a scan with 4 lanes a column
 *             and one reduction compute the same bits.
 *             Nothing is read of a sequence's state or ring before its first position.
 * Reference:  ref_gdn.c, bit for bit. */
#ifndef CALLA_KERNELS_GDN_H
#define CALLA_KERNELS_GDN_H

#include "kernels/args_gdn.h"

#define GDN_L2_EPS  1e-6f
#define GDN_Q_SCALE 8.838834764831845e-02f /* 1 / sqrt(128) */

/* x3 is the oldest input. */
KFN float gdn_conv(float w0, float w1, float w2, float w3, float x3, float x2, float x1, float x0)
{
    return KFMA(w3, x0, KFMA(w2, x1, KFMA(w1, x2, w0 * x3)));
}

/* kx_silu() of each; the divisions come last, so that the rest runs side by side. */
KFN float4 gdn_silu4(float4 a)
{
    float4 d;
    d.x = 1.0f + kx_exp(-a.x);
    d.y = 1.0f + kx_exp(-a.y);
    d.z = 1.0f + kx_exp(-a.z);
    d.w = 1.0f + kx_exp(-a.w);
    d.x = a.x / d.x;
    d.y = a.y / d.y;
    d.z = a.z / d.z;
    d.w = a.w / d.w;
    return d;
}

KFN float4 gdn_conv_silu4(float4 w0, float4 w1, float4 w2, float4 w3, float4 x3, float4 x2,
                          float4 x1, float4 x0)
{
    float4 r;
    r.x = gdn_conv(w0.x, w1.x, w2.x, w3.x, x3.x, x2.x, x1.x, x0.x);
    r.y = gdn_conv(w0.y, w1.y, w2.y, w3.y, x3.y, x2.y, x1.y, x0.y);
    r.z = gdn_conv(w0.z, w1.z, w2.z, w3.z, x3.z, x2.z, x1.z, x0.z);
    r.w = gdn_conv(w0.w, w1.w, w2.w, w3.w, x3.w, x2.w, x1.w, x0.w);
    return gdn_silu4(r);
}

KFN float gdn_dot4(float4 a, float4 b)
{
    return KFMA(a.w, b.w, KFMA(a.z, b.z, KFMA(a.y, b.y, a.x * b.x)));
}

KFN float4 gdn_scale4(float4 a, float s)
{
    float4 r;
    r.x = a.x * s;
    r.y = a.y * s;
    r.z = a.z * s;
    r.w = a.w * s;
    return r;
}

KFN float gdn_alpha(float rate, float a, float dt)
{
    return kx_exp(-rate * kx_softplus(a + dt));
}

KFN float4 gdn_zero4()
{
    float4 r;
    r.x = 0.0f;
    r.y = 0.0f;
    r.z = 0.0f;
    r.w = 0.0f;
    return r;
}

/* One token for the columns of a lane. LPC lanes share a column, a lane has CPL columns.
 * s [CPL][128 / LPC]: the lane's rows of its columns, rows 4 (LPC j + part) + e at 4 j + e;
 * k, q [128 / LPC]: the same rows of the normalised key and query; v [CPL]: values in, outputs out.
 * part is lane / (32 / LPC): lanes that share a row are neighbours.
 * ONE: both sums from the old state, side by side; otherwise in the order of the definition. */
template <uint LPC, uint CPL, bool ONE>
KFN void gdn_token(THARRAY(float, CPL * 128 / LPC, s), THARRAY(float, 128 / LPC, k),
                   THARRAY(float, 128 / LPC, q), THARRAY(float, CPL, v), float alpha, float beta,
                   float qk)
{
    const uint n = 128 / LPC;
    UNROLL for (uint c = 0; c < CPL; c++)
    {
        float m[4], o[4];
        UNROLL for (uint e = 0; e < 4; e++) m[e] = o[e] = 0.0f;
        if (!ONE) {
            UNROLL for (uint i = 0; i < n; i++) s[c * n + i] *= alpha;
        }
        UNROLL for (uint i = 0; i < n; i++)
        {
            m[i & 3] = KFMA(s[c * n + i], k[i], m[i & 3]);
            if (ONE) o[i & 3] = KFMA(s[c * n + i], q[i], o[i & 3]);
        }
        float km = (m[0] + m[1]) + (m[2] + m[3]);
        UNROLL for (uint d = 16; d >= 32 / LPC; d >>= 1) km += simd_xor_f32(km, d);
        if (ONE) {
            const float delta = beta * KFMA(-alpha, km, v[c]);
            UNROLL for (uint i = 0; i < n; i++)
            {
                s[c * n + i] = KFMA(k[i], delta, alpha * s[c * n + i]);
            }
            float qm = (o[0] + o[1]) + (o[2] + o[3]);
            UNROLL for (uint d = 16; d >= 32 / LPC; d >>= 1) qm += simd_xor_f32(qm, d);
            v[c] = KFMA(alpha, qm, qk * delta);
        } else {
            const float delta = beta * (v[c] - km);
            UNROLL for (uint i = 0; i < n; i++)
            {
                s[c * n + i] = KFMA(k[i], delta, s[c * n + i]);
                o[i & 3] = KFMA(s[c * n + i], q[i], o[i & 3]);
            }
            float qm = (o[0] + o[1]) + (o[2] + o[3]);
            UNROLL for (uint d = 16; d >= 32 / LPC; d >>= 1) qm += simd_xor_f32(qm, d);
            v[c] = qm;
        }
    }
}

/* Index in a head's state of a lane's four rows 4 (LPC j + part) .. + 3 of column col. */
template <uint LPC> KFN uint gdn_state_index(uint col, uint part, uint j)
{
    const uint r = LPC * j + part; /* rows / 4 */
    return (col >> 3) * GDN_TILE_FLOATS + (r >> 2) * 128 + ((r & 3) * 8 + (col & 7)) * 4;
}

template <uint LPC, uint CPL>
KFN void gdn_load_state(THARRAY(float, CPL * 128 / LPC, s), DPTR(const float) state, uint col,
                        uint part, bool zero)
{
    UNROLL for (uint i = 0; i < CPL * 32 / LPC; i++)
    {
        const uint c = i / (32 / LPC), j = i % (32 / LPC);
        float4 x = gdn_zero4();
        if (!zero) x = ld16f(state, gdn_state_index<LPC>(col + c * (32 / LPC), part, j));
        s[4 * i] = x.x;
        s[4 * i + 1] = x.y;
        s[4 * i + 2] = x.z;
        s[4 * i + 3] = x.w;
    }
}

template <uint LPC, uint CPL>
KFN void gdn_store_state(THARRAY(float, CPL * 128 / LPC, s), DPTR(float) state, uint col, uint part)
{
    UNROLL for (uint i = 0; i < CPL * 32 / LPC; i++)
    {
        const uint c = i / (32 / LPC), j = i % (32 / LPC);
        float4 x;
        x.x = s[4 * i];
        x.y = s[4 * i + 1];
        x.z = s[4 * i + 2];
        x.w = s[4 * i + 3];
        st16f(state, gdn_state_index<LPC>(col + c * (32 / LPC), part, j), x);
    }
}

/* A lane's rows of a 128-vector in threadgroup memory. */
template <uint LPC>
KFN void gdn_tg_rows(THARRAY(float, 128 / LPC, r), TPTR(const float) p, uint part)
{
    UNROLL for (uint j = 0; j < 32 / LPC; j++)
    {
        const float4 x = tg_ld16f(p, (LPC * j + part) * 4);
        r[4 * j] = x.x;
        r[4 * j + 1] = x.y;
        r[4 * j + 2] = x.z;
        r[4 * j + 3] = x.w;
    }
}

/* Gated RMS norm of a head by one simdgroup: lane l has the 8 values 8 (l & 15) .. of o, both
 * halves of the simdgroup the same (or two different heads). */
KFN float gdn_norm_scale(float4 lo, float4 hi, float eps)
{
    float s = gdn_dot4(lo, lo) + gdn_dot4(hi, hi);
    UNROLL for (uint d = 8; d != 0; d >>= 1) s += simd_xor_f32(s, d);
    return kx_rsqrt(KFMA(s, 1.0f / 128.0f, eps));
}

/* silu_z: kx_silu(z). */
KFN float4 gdn_gate4(float4 o, float scale, float4 w, float4 silu_z)
{
    float4 r;
    r.x = o.x * scale * w.x * silu_z.x;
    r.y = o.y * scale * w.y * silu_z.y;
    r.z = o.z * scale * w.z * silu_z.z;
    r.w = o.w * scale * w.w * silu_z.w;
    return r;
}

/* ---- Decode ---- */

#define GDN_STEP_INPUTS                                                                            \
    KIN(0, tok_entry, tok), KIN(1, float, conv), KIN(2, float, rate), KIN(3, float, dt),           \
        KIN(4, float, norm), KIN(5, float, y), KOUT(6, float, state), KOUT(7, float, ring),        \
        KOUT(8, float, o)

/* Item i of a group in a row of y: q, then k of the key head, then the group's columns of v, then z
 * of the whole head. */
KFN uint gdn_step_item(uint i, uint cols, uint head, uint k_head, uint col0, uint kw, uint channels)
{
    uint at = channels + head * 128 + i - 256 - cols;
    if (i < 256 + cols) at = 2 * kw + head * 128 + col0 + i - 256;
    if (i < 256) at = kw + k_head * 128 + i - 128;
    if (i < 128) at = k_head * 128 + i;
    return at;
}

/* First half of gdn_step_columns: all loads, SiLU of convolution and z into x_s; the gates' inputs.
 * The state is asked for last, and on its way while the inputs are worked on. */
template <uint TILES, bool Z>
KFN void gdn_step_inputs(DPTR(const tok_entry) tok, DPTR(const float) conv, DPTR(const float) y,
                         DPTR(const float) state, DPTR(float) ring, ARGS(gdn_args) a, uint head,
                         uint col0, uint t, uint tid, TPTR(float) x_s, THARRAY(float, 32, s),
                         THREF(uint) slot, THREF(float) b_in, THREF(float) a_in)
{
    const uint threads = TILES * 32, cols = TILES * 8, items = 256 + cols + (Z ? 128 : 0);
    const uint rounds = (items + threads - 1) / threads;
    const uint kw = a.k_heads * 128, channels = 2 * kw + a.v_heads * 128;
    const uint k_head = head / a.ratio;
    uint at[rounds];
    float w[rounds][4], x[rounds][4], den[rounds];
    UNROLL for (uint r = 0; r < rounds; r++)
    {
        at[r] = gdn_step_item(kmin(r * threads + tid, items - 1), cols, head, k_head, col0, kw,
                              channels);
        UNROLL for (uint j = 0; j < 4; j++)
        {
            w[r][j] = 0.0f;
            if (at[r] < channels) w[r][j] = conv[j * channels + at[r]];
        }
    }
    PDL_WAIT();
    const uint pos = tok[t].pos;
    slot = tok[t].slot;
    const bool keeps = slot != TOK_NO_SLOT; /* otherwise nothing is read either: pos is 0 */
    const uint from = keeps ? slot : 0u;
    DPTR(float) rg = ring + (ulong)from * 4 * channels;
    DPTR(const float) yt = y + (ulong)t * a.y_pitch;
    UNROLL for (uint r = 0; r < rounds; r++)
    {
        x[r][0] = yt[at[r]];
        UNROLL for (uint j = 1; j < 4; j++)
        {
            x[r][j] = 0.0f;
            if (pos >= j && at[r] < channels) x[r][j] = rg[((pos - j) & 3) * channels + at[r]];
        }
    }
    b_in = yt[channels + a.v_heads * 128 + head];
    a_in = yt[channels + a.v_heads * 129 + head];
    gdn_load_state<4, 1>(s, state + ((ulong)from * a.v_heads + head) * GDN_HEAD_FLOATS,
                         col0 + (tid >> 5) * 8 + (tid & 7), (tid >> 3) & 3, pos == 0);
    PDL_LAUNCH();
    /* one group a channel writes the ring; row pos & 3 is read by none */
    const bool writes_qk = head % a.ratio == 0 && col0 == 0;
    UNROLL for (uint r = 0; r < rounds; r++)
    {
        const uint i = r * threads + tid;
        const float u = x[r][0];
        const float c = gdn_conv(w[r][0], w[r][1], w[r][2], w[r][3], x[r][3], x[r][2], x[r][1], u);
        if (keeps && i < 256 + cols && (i >= 256 || writes_qk))
            rg[(pos & 3) * channels + at[r]] = u;
        x[r][0] = i < 256 + cols ? c : u;
        den[r] = 1.0f + kx_exp(-x[r][0]);
    }
    UNROLL for (uint r = 0; r < rounds; r++)
    {
        const float silu = x[r][0] / den[r];
        if (r * threads + tid < items) x_s[r * threads + tid] = silu;
    }
}

/* By simdgroup: 0 q normalised, 1 k normalised, 2 q . k, 3 the gates. r_s: what q and k were
 * multiplied by, q . k before that, alpha, beta. */
KFN void gdn_step_scalars(TPTR(const float) x_s, TPTR(float) n_s, TPTR(float) r_s, float rate,
                          float a_in, float dt, float b_in, uint sg, uint lane)
{
    if (sg < 3) {
        const float4 p = tg_ld16f(x_s, (sg == 1 ? 128 : 0) + 4 * lane);
        const float4 q = tg_ld16f(x_s, (sg == 0 ? 0 : 128) + 4 * lane);
        float r = simd_sum_f32(gdn_dot4(p, q)); /* q q, k k, q k */
        if (sg < 2) {
            r = kx_rsqrt(r + GDN_L2_EPS) * (sg == 0 ? GDN_Q_SCALE : 1.0f);
            tg_st16f(n_s, sg * 128 + 4 * lane, gdn_scale4(p, r));
        }
        if (lane == 0) r_s[sg] = r;
    }
    if (sg == 3) {
        const float beta = kx_sigmoid(b_in), alpha = gdn_alpha(rate, a_in, dt);
        if (lane == 0) {
            r_s[3] = alpha;
            r_s[4] = beta;
        }
    }
}

/* The step of TILES tiles (8 TILES columns) of one value head for one token: SiLU of the
 * convolution for the channels it needs, and of z when Z; norms, gates, state (left in s). Returns
 * the output of the lane's column, on all lanes of the column. x_s [items]: q, k, v, z; n_s [256]:
 * q and k normalised; r_s [8]: scalars; slot: the token's. Long chains (division, root,
 * exponential) run side by side: in rounds, or in different simdgroups. */
template <uint TILES, bool Z>
KFN float gdn_step_columns(DPTR(const tok_entry) tok, DPTR(const float) conv,
                           DPTR(const float) rate, DPTR(const float) dt, DPTR(const float) y,
                           DPTR(const float) state, DPTR(float) ring, ARGS(gdn_args) a, uint head,
                           uint col0, uint t, uint tid, TPTR(float) x_s, TPTR(float) n_s,
                           TPTR(float) r_s, THARRAY(float, 32, s), THREF(uint) slot)
{
    const uint lane = tid & 31, sg = tid >> 5, part = lane >> 3;
    const float head_rate = rate[head], head_dt = dt[head];
    float b_in, a_in, k[32], q[32], v[1];
    gdn_step_inputs<TILES, Z>(tok, conv, y, state, ring, a, head, col0, t, tid, x_s, s, slot, b_in,
                              a_in);
    TG_BARRIER();
    gdn_step_scalars(x_s, n_s, r_s, head_rate, a_in, head_dt, b_in, sg, lane);
    TG_BARRIER();
    gdn_tg_rows<4>(q, n_s, part);
    gdn_tg_rows<4>(k, n_s + 128, part);
    v[0] = x_s[256 + sg * 8 + (lane & 7)];
    gdn_token<4, 1, true>(s, k, q, v, r_s[3], r_s[4], r_s[2] * r_s[0] * r_s[1]);
    return v[0];
}

/* A head's state, after gdn_step_columns. */
#define GDN_STEP_STORE(head, col0)                                                                 \
    do {                                                                                           \
        if (slot != TOK_NO_SLOT)                                                                   \
            gdn_store_state<4, 1>(s, state + ((ulong)slot * a.v_heads + (head)) * GDN_HEAD_FLOATS, \
                                  (col0) + sg * 8 + (lane & 7), lane >> 3);                        \
    } while (0)

/* A whole head a group: grid (HV, T). Decode of one token leaves most of a large GPU idle, several
 * fill it. Threadgroup memory 3,616 bytes. Bytes per head and token: the state (65,536) read and
 * written, 8 KB of y and ring. Operations: 8 per state element. */
KERNEL(gdn_step, 512, GDN_STEP_INPUTS, KARG(9, gdn_args, a))
{
    KCTX;
    TG_ARRAY(float, x_s, 512);
    TG_ARRAY(float, n_s, 256);
    TG_ARRAY(float, r_s, 8);
    TG_ARRAY(float, o_s, 128);
    float s[32];
    uint slot;
    const float v = gdn_step_columns<16, true>(tok, conv, rate, dt, y, state, ring, a, gx, 0, gy,
                                               tid, x_s, n_s, r_s, s, slot);
    if (lane < 8) o_s[sg * 8 + lane] = v;
    const uint i = 8 * (lane & 15), mine = i + 4 * (lane >> 4);
    const float4 wn = ld16f(norm, mine);
    TG_BARRIER();
    GDN_STEP_STORE(gx, 0);
    if (sg == 0) {
        const float scale = gdn_norm_scale(tg_ld16f(o_s, i), tg_ld16f(o_s, i + 4), a.eps);
        st16f(o, (gy * a.v_heads + gx) * 128 + mine,
              gdn_gate4(tg_ld16f(o_s, mine), scale, wn, tg_ld16f(x_s, 384 + mine)));
    }
}
KERNEL_END

/* A quarter of a head a group: grid (4 HV, T); group 4 h + p has columns 32 p .. of head h. The
 * last of a head's four groups to arrive does the norm: arrived [T][HV] counts them, and is left
 * zero. raw [T][VW] passes the outputs. Threadgroup memory 2,740 bytes. */
KERNEL(gdn_step_split, 128, GDN_STEP_INPUTS, KOUT(9, float, raw), KOUT(10, uint, arrived),
       KARG(11, gdn_args, a))
{
    KCTX;
    TG_ARRAY(float, x_s, 416);
    TG_ARRAY(float, n_s, 256);
    TG_ARRAY(float, r_s, 8);
    TG_ARRAY(uint, last_s, 1);
    const uint head = gx >> 2, col0 = (gx & 3) * 32, i_head = gy * a.v_heads + head;
    float s[32];
    uint slot;
    const float v = gdn_step_columns<4, true>(tok, conv, rate, dt, y, state, ring, a, head, col0,
                                              gy, tid, x_s, n_s, r_s, s, slot);
    if (lane < 8) st_shared_f32(raw, i_head * 128 + col0 + sg * 8 + lane, v);
    const uint i = 8 * (lane & 15), mine = i + 4 * (lane >> 4);
    const float4 wn = ld16f(norm, mine);
    TG_BARRIER_DEVICE();
    if (tid == 0) { /* before the stores of the state, which the fences would wait for */
        device_fence();
        last_s[0] = atomic_add_u32(arrived, i_head, 1);
        device_fence();
    }
    GDN_STEP_STORE(head, col0);
    TG_BARRIER_DEVICE();
    if (sg == 0 && last_s[0] == 3) {
        float r[8];
        UNROLL for (uint e = 0; e < 8; e++) r[e] = ld_shared_f32(raw, i_head * 128 + i + e);
        float4 lo, hi;
        lo.x = r[0];
        lo.y = r[1];
        lo.z = r[2];
        lo.w = r[3];
        hi.x = r[4];
        hi.y = r[5];
        hi.z = r[6];
        hi.w = r[7];
        const float scale = gdn_norm_scale(lo, hi, a.eps);
        st16f(o, i_head * 128 + mine,
              gdn_gate4(lane < 16 ? lo : hi, scale, wn, tg_ld16f(x_s, 288 + mine)));
        if (lane == 0) st_shared_u32(arrived, i_head, 0);
    }
}
KERNEL_END

/* As gdn_step_split, without the norm: o [T][VW] raw, gdn_norm_f32 follows (fuse_gdnnorm off). */
KERNEL(gdn_step_raw, 128, GDN_STEP_INPUTS, KARG(9, gdn_args, a))
{
    KCTX;
    TG_ARRAY(float, x_s, 288);
    TG_ARRAY(float, n_s, 256);
    TG_ARRAY(float, r_s, 8);
    const uint head = gx >> 2, col0 = (gx & 3) * 32;
    float s[32];
    uint slot;
    const float v = gdn_step_columns<4, false>(tok, conv, rate, dt, y, state, ring, a, head, col0,
                                               gy, tid, x_s, n_s, r_s, s, slot);
    if (lane < 8) o[(gy * a.v_heads + head) * 128 + col0 + sg * 8 + lane] = v;
    GDN_STEP_STORE(head, col0);
}
KERNEL_END

/* Gated norm of raw [T][VW] for unit u = (token, head): half a simdgroup a head. */
KFN float4 gdn_norm_unit(DPTR(const float) raw, DPTR(const float) y, DPTR(const float) norm,
                         ARGS(gdn_args) a, uint u, uint i, THREF(float4) second)
{
    const uint t = u / a.v_heads, h = u % a.v_heads;
    const uint z = t * a.y_pitch + (2 * a.k_heads + a.v_heads + h) * 128 + i;
    const float4 lo = ld16f(raw, u * 128 + i), hi = ld16f(raw, u * 128 + i + 4);
    const float scale = gdn_norm_scale(lo, hi, a.eps);
    second = gdn_gate4(hi, scale, ld16f(norm, i + 4), gdn_silu4(ld16f(y, z + 4)));
    return gdn_gate4(lo, scale, ld16f(norm, i), gdn_silu4(ld16f(y, z)));
}

/* o [T][VW] = gated norm of raw. Grid: T HV / 8 groups, rounded up; two heads a simdgroup. */
KERNEL(gdn_norm_f32, 128, KIN(0, float, raw), KIN(1, float, norm), KIN(2, float, y),
       KOUT(3, float, o), KARG(4, gdn_args, a))
{
    KCTX;
    const uint unit = (gx * 4 + sg) * 2 + (lane >> 4), i = 8 * (lane & 15);
    const uint last = a.n * a.v_heads - 1;
    PDL_WAIT();
    PDL_LAUNCH();
    float4 hi;
    const float4 lo = gdn_norm_unit(raw, y, norm, a, kmin(unit, last), i, hi);
    if (unit <= last) {
        st16f(o, unit * 128 + i, lo);
        st16f(o, unit * 128 + i + 4, hi);
    }
}
KERNEL_END

/* ---- Prefill ---- */

/* Is the token j before t of the same segment? */
KFN bool gdn_follows(DPTR(const tok_entry) tok, uint t, uint j)
{
    return t >= j && tok[t - j].slot == tok[t].slot;
}

/* Four channels of the input of position pos(t) - j. */
KFN float4 gdn_history(DPTR(const tok_entry) tok, DPTR(const float) y, DPTR(const float) ring,
                       uint y_pitch, uint channels, uint t, uint j, uint ch)
{
    float4 r = gdn_zero4();
    if (gdn_follows(tok, t, j))
        r = ld16f(y + (ulong)(t - j) * y_pitch, ch);
    else if (tok[t].pos >= j)
        r = ld16f(ring + (ulong)tok[t].slot * 4 * channels, ((tok[t].pos - j) & 3) * channels + ch);
    return r;
}

/* Tokens [t0, t0 + n) of one value head's v: w are the taps of the lane's four channels ch. */
KFN void gdn_prep_v(DPTR(const tok_entry) tok, DPTR(const float) y, DPTR(const float) ring,
                    DPTR(float) v, ARGS(gdn_args) a, uint t0, uint n, uint ch,
                    THARRAY(float4, 4, w))
{
    const uint kw = a.k_heads * 128, vw = a.v_heads * 128, channels = 2 * kw + vw;
    float4 x0 = ld16f(y + (ulong)t0 * a.y_pitch, ch), x1 = gdn_zero4(), x2 = x1, x3 = x1;
    for (uint t = t0; t < t0 + n; t++) {
        if (t == t0 || !gdn_follows(tok, t, 1)) {
            x1 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 1, ch);
            x2 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 2, ch);
            x3 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 3, ch);
        }
        const float4 next = ld16f(y + (ulong)kmin(t + 1, a.n - 1) * a.y_pitch, ch);
        st16f(v + (ulong)t * vw, ch - 2 * kw,
              gdn_conv_silu4(w[0], w[1], w[2], w[3], x3, x2, x1, x0));
        x3 = x2;
        x2 = x1;
        x1 = x0;
        x0 = next;
    }
}

/* The same for one key head's q and k (channels ch and KW + ch), normalised; qk_s [n] = q . k. */
KFN void gdn_prep_qk(DPTR(const tok_entry) tok, DPTR(const float) y, DPTR(const float) ring,
                     DPTR(float) q, DPTR(float) k, ARGS(gdn_args) a, uint t0, uint n, uint ch,
                     uint lane, THARRAY(float4, 4, w), THARRAY(float4, 4, wk), TPTR(float) qk_s)
{
    const uint kw = a.k_heads * 128, channels = 2 * kw + a.v_heads * 128;
    float4 q0 = ld16f(y + (ulong)t0 * a.y_pitch, ch), q1 = gdn_zero4(), q2 = q1, q3 = q1;
    float4 k0 = ld16f(y + (ulong)t0 * a.y_pitch, kw + ch), k1 = q1, k2 = q1, k3 = q1;
    for (uint t = t0; t < t0 + n; t++) {
        if (t == t0 || !gdn_follows(tok, t, 1)) {
            q1 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 1, ch);
            q2 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 2, ch);
            q3 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 3, ch);
            k1 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 1, kw + ch);
            k2 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 2, kw + ch);
            k3 = gdn_history(tok, y, ring, a.y_pitch, channels, t, 3, kw + ch);
        }
        DPTR(const float) yn = y + (ulong)kmin(t + 1, a.n - 1) * a.y_pitch;
        const float4 qn = ld16f(yn, ch), kn = ld16f(yn, kw + ch);
        const float4 qc = gdn_conv_silu4(w[0], w[1], w[2], w[3], q3, q2, q1, q0);
        const float4 kc = gdn_conv_silu4(wk[0], wk[1], wk[2], wk[3], k3, k2, k1, k0);
        float qq = gdn_dot4(qc, qc), kk = gdn_dot4(kc, kc), qk = gdn_dot4(qc, kc);
        UNROLL for (uint d = 16; d != 0; d >>= 1) /* three trees side by side */
        {
            qq += simd_xor_f32(qq, d);
            kk += simd_xor_f32(kk, d);
            qk += simd_xor_f32(qk, d);
        }
        const float rq = kx_rsqrt(qq + GDN_L2_EPS) * GDN_Q_SCALE;
        const float rk = kx_rsqrt(kk + GDN_L2_EPS);
        st16f(q + (ulong)t * kw, ch, gdn_scale4(qc, rq));
        st16f(k + (ulong)t * kw, ch, gdn_scale4(kc, rk));
        if (lane == 0) qk_s[t - t0] = qk * rq * rk;
        q3 = q2;
        q2 = q1;
        q1 = q0;
        q0 = qn;
        k3 = k2;
        k2 = k1;
        k1 = k0;
        k0 = kn;
    }
}

/* Inputs of the scan: q [T][HK][128] and k [T][HK][128] after convolution and norm (q also scaled),
 * v [T][VW] after convolution, gates [T][HV][4]: alpha, beta, q . k, 0. All f32, as on the CPU:
 * bf16 would save 16 of the 64 KB that a token of the full model moves here, and as much in the
 * scan, which is bound by latency.
 * A simdgroup has the channels of one key head (q and k) or one value head (v), 4 a lane, for 8
 * tokens, and keeps the last three inputs. Grid ((HK + HV) / 4 rounded up, T / 8 rounded up).
 * Bytes a token: C read, C written, f32, 3/8 of the reads again through the cache. */
KERNEL(gdn_prep, 128, KIN(0, tok_entry, tok), KIN(1, float, conv), KIN(2, float, rate),
       KIN(3, float, dt), KIN(4, float, y), KIN(5, float, ring), KOUT(6, float, q),
       KOUT(7, float, k), KOUT(8, float, v), KOUT(9, float, gates), KARG(10, gdn_args, a))
{
    KCTX;
    TG_ARRAY(float, qk_s, 4 * GDN_PREP_TOKENS);
    const uint role = gx * 4 + sg, t0 = gy * GDN_PREP_TOKENS;
    const uint kw = a.k_heads * 128, vw = a.v_heads * 128, channels = 2 * kw + vw;
    const uint n = kmin(a.n - t0, (uint)GDN_PREP_TOKENS);
    const bool is_k = role < a.k_heads, is_v = !is_k && role < a.k_heads + a.v_heads;
    const uint ch = is_k ? role * 128 + 4 * lane : 2 * kw + (role - a.k_heads) * 128 + 4 * lane;
    float4 w[4], wk[4];
    UNROLL for (uint j = 0; j < 4; j++)
    {
        w[j] = is_k || is_v ? ld16f(conv, j * channels + ch) : gdn_zero4();
        wk[j] = is_k ? ld16f(conv, j * channels + kw + ch) : gdn_zero4();
    }
    PDL_WAIT();
    PDL_LAUNCH();
    if (is_v) gdn_prep_v(tok, y, ring, v, a, t0, n, ch, w);
    if (is_k) {
        gdn_prep_qk(tok, y, ring, q, k, a, t0, n, ch, lane, w, wk, qk_s + sg * GDN_PREP_TOKENS);
        SG_BARRIER();
        for (uint i = lane; i < n * a.ratio; i += 32) {
            const uint t = t0 + i / a.ratio, h = role * a.ratio + i % a.ratio;
            DPTR(const float) ba = y + (ulong)t * a.y_pitch + channels + vw;
            float4 g;
            g.x = gdn_alpha(rate[h], ba[a.v_heads + h], dt[h]);
            g.y = kx_sigmoid(ba[h]);
            g.z = qk_s[sg * GDN_PREP_TOKENS + i / a.ratio];
            g.w = 0.0f;
            st16f(gates, (t * a.v_heads + h) * 4, g);
        }
    }
}
KERNEL_END

#define GDN_SCAN_BINDINGS                                                                          \
    KIN(0, seg_entry, seg), KIN(1, float, q), KIN(2, float, k), KIN(3, float, v),                  \
        KIN(4, float, gates), KOUT(5, float, state), KOUT(6, float, o), KARG(7, gdn_args, a)

/* A thread's share of tokens t0 .. t0 + 15 of q, k (rows KW apart), v (32 columns, rows VW apart)
 * and gates; beyond the segment's n tokens the last one again. */
template <uint THREADS>
KFN void gdn_stage_load(DPTR(const float) q, DPTR(const float) k, DPTR(const float) v,
                        DPTR(const float) gates, ARGS(gdn_args) a, uint t0, uint n, uint tid,
                        THARRAY(float4, GDN_STAGE * 32 / THREADS, qn),
                        THARRAY(float4, GDN_STAGE * 32 / THREADS, kn), THREF(float4) vn,
                        THREF(float4) gn)
{
    UNROLL for (uint i = 0; i < GDN_STAGE * 32 / THREADS; i++)
    {
        const uint x = i * THREADS + tid, t = kmin(t0 + (x >> 5), n - 1);
        qn[i] = ld16f(q, t * a.k_heads * 128 + (x & 31) * 4);
        kn[i] = ld16f(k, t * a.k_heads * 128 + (x & 31) * 4);
    }
    if (tid < 128) vn = ld16f(v, kmin(t0 + (tid >> 3), n - 1) * a.v_heads * 128 + (tid & 7) * 4);
    if (tid < GDN_STAGE) gn = ld16f(gates, kmin(t0 + tid, n - 1) * a.v_heads * 4);
}

template <uint THREADS>
KFN void gdn_stage_store(THARRAY(float4, GDN_STAGE * 32 / THREADS, qn),
                         THARRAY(float4, GDN_STAGE * 32 / THREADS, kn), float4 vn, float4 gn,
                         uint tid, TPTR(float) q_s, TPTR(float) k_s, TPTR(float) v_s,
                         TPTR(float) g_s)
{
    UNROLL for (uint i = 0; i < GDN_STAGE * 32 / THREADS; i++)
    {
        tg_st16f(q_s, (i * THREADS + tid) * 4, qn[i]);
        tg_st16f(k_s, (i * THREADS + tid) * 4, kn[i]);
    }
    if (tid < 128) tg_st16f(v_s, tid * 4, vn);
    if (tid < GDN_STAGE) tg_st16f(g_s, tid * 4, gn);
}

/* Operands of staged token t; outputs of it. */
#define GDN_OPERANDS(t, k, q, x, g)                                                                \
    gdn_tg_rows<LPC>(k, k_s + (t)*128, part);                                                      \
    gdn_tg_rows<LPC>(q, q_s + (t)*128, part);                                                      \
    g = tg_ld16f(g_s, (t)*4);                                                                      \
    UNROLL for (uint c = 0; c < CPL; c++) x[c] =                                                   \
        v_s[(t)*32 + sg * cols + c * (32 / LPC) + col_in_sg]
#define GDN_OUTPUT(t, x)                                                                           \
    if (part == 0) {                                                                               \
        UNROLL for (uint c = 0; c < CPL; c++)                                                      \
            o_s[(sg * GDN_STAGE + (t)) * cols + c * (32 / LPC) + col_in_sg] = x[c];                \
    }

/* The scan of 32 columns of one value head over one segment: group gx = 4 head + quarter, gy the
 * segment; LPC * 32 / CPL threads. The state stays in registers; 16 tokens are staged at a time,
 * and the next 16 are on their way (in registers) while these are computed. Not REGS: the state is
 * written and read again every 32 tokens. */
template <uint LPC, uint CPL, bool ONE, bool REGS>
KFN void gdn_scan_columns(DPTR(const seg_entry) seg, DPTR(const float) q, DPTR(const float) k,
                          DPTR(const float) v, DPTR(const float) gates, DPTR(float) state,
                          DPTR(float) o, ARGS(gdn_args) a, uint gx, uint gy, uint tid,
                          TPTR(float) q_s, TPTR(float) k_s, TPTR(float) v_s, TPTR(float) g_s,
                          TPTR(float) o_s)
{
    const uint threads = LPC * 32 / CPL, per = GDN_STAGE * 32 / threads;
    const uint cols = CPL * 32 / LPC; /* of a simdgroup */
    const uint lane = tid & 31, sg = tid >> 5;
    const uint part = lane / (32 / LPC), col_in_sg = lane % (32 / LPC);
    const uint head = gx >> 2, quarter = gx & 3;
    const uint kw = a.k_heads * 128, vw = a.v_heads * 128;
    PDL_WAIT();
    PDL_LAUNCH();
    const uint first = seg[gy].first, n = seg[gy].n;
    DPTR(float) st = state + ((ulong)seg[gy].slot * a.v_heads + head) * GDN_HEAD_FLOATS;
    DPTR(const float) qh = q + (ulong)first * kw + head / a.ratio * 128;
    DPTR(const float) kh = k + (ulong)first * kw + head / a.ratio * 128;
    DPTR(const float) vh = v + (ulong)first * vw + head * 128 + quarter * 32;
    DPTR(const float) gh = gates + ((ulong)first * a.v_heads + head) * 4;
    DPTR(float) oh = o + (ulong)first * vw + head * 128 + quarter * 32 + sg * cols;
    const uint col = quarter * 32 + sg * cols + col_in_sg;
    float s[CPL * 128 / LPC];
    gdn_load_state<LPC, CPL>(s, st, col, part, seg[gy].pos == 0);

    float4 qn[per], kn[per], vn, gn; /* the next 16 tokens */
    vn = gn = gdn_zero4();
    for (uint t0 = 0; t0 < n + GDN_STAGE; t0 += GDN_STAGE) {
        /* loads for tokens t0 .., then the tokens before t0, which were loaded a round ago */
        const uint nt = t0 == 0 ? 0 : kmin(n - (t0 - GDN_STAGE), (uint)GDN_STAGE);
        TG_BARRIER();
        if (t0 != 0) gdn_stage_store<threads>(qn, kn, vn, gn, tid, q_s, k_s, v_s, g_s);
        TG_BARRIER();
        if (t0 < n) gdn_stage_load<threads>(qh, kh, vh, gh, a, t0, n, tid, qn, kn, vn, gn);
        /* a token's operands are loaded while the token before it is computed */
        float ka[128 / LPC], qa[128 / LPC], xa[CPL], kb[128 / LPC], qb[128 / LPC], xb[CPL];
        float4 ga, gb;
        if (nt != 0) {
            GDN_OPERANDS(0, ka, qa, xa, ga);
        }
        for (uint t = 0; t < nt; t += 2) {
            GDN_OPERANDS(t + 1, kb, qb, xb, gb);
            gdn_token<LPC, CPL, ONE>(s, ka, qa, xa, ga.x, ga.y, ga.z);
            GDN_OUTPUT(t, xa);
            if (t + 1 < nt) {
                GDN_OPERANDS((t + 2) % GDN_STAGE, ka, qa, xa, ga);
                gdn_token<LPC, CPL, ONE>(s, kb, qb, xb, gb.x, gb.y, gb.z);
                GDN_OUTPUT(t + 1, xb);
            }
        }
        SG_BARRIER();
        /* a simdgroup writes its own columns: cols / 4 lanes a token */
        const uint t = lane / (cols / 4), i = lane % (cols / 4) * 4;
        if (t < nt)
            st16f(oh, (t0 - GDN_STAGE + t) * vw + i,
                  tg_ld16f(o_s, (sg * GDN_STAGE + t) * cols + i));
        if (!REGS && t0 % GDN_BLOCK == 0 && t0 != 0) {
            gdn_store_state<LPC, CPL>(s, st, col, part);
            TG_BARRIER();
            gdn_load_state<LPC, CPL>(s, st, col, part, false);
        }
    }
    gdn_store_state<LPC, CPL>(s, st, col, part);
}

/* Threadgroup memory 20,736 bytes. Bytes a token: q, k (per key head), v, o and gates once. */
#define GDN_SCAN(name, LPC, CPL, ONE, REGS)                                                        \
    KERNEL(name, LPC * 32 / CPL, GDN_SCAN_BINDINGS)                                                \
    {                                                                                              \
        KCTX;                                                                                      \
        TG_ARRAY(float, q_s, GDN_STAGE * 128);                                                     \
        TG_ARRAY(float, k_s, GDN_STAGE * 128);                                                     \
        TG_ARRAY(float, v_s, GDN_STAGE * 32);                                                      \
        TG_ARRAY(float, g_s, GDN_STAGE * 4);                                                       \
        TG_ARRAY(float, o_s, GDN_STAGE * 32);                                                      \
        gdn_scan_columns<LPC, CPL, ONE, REGS>(seg, q, k, v, gates, state, o, a, gx, gy, tid, q_s,  \
                                              k_s, v_s, g_s, o_s);                                 \
    }                                                                                              \
    KERNEL_END

GDN_SCAN(gdn_scan_4, 4, 1, true, true)
GDN_SCAN(gdn_scan_8, 8, 1, true, true)
GDN_SCAN(gdn_scan_8x2, 8, 2, true, true)
GDN_SCAN(gdn_scan_4_text, 4, 1, false, true)
GDN_SCAN(gdn_scan_4_mem, 4, 1, true, false)
GDN_SCAN(gdn_scan_4_text_mem, 4, 1, false, false)

/* The older form: 32 lanes a column, 4 rows a lane, nothing staged. Group gx = 32 head + 4 columns,
 * gy the segment. */
template <bool ONE>
KFN void gdn_scan_direct_column(DPTR(const seg_entry) seg, DPTR(const float) q, DPTR(const float) k,
                                DPTR(const float) v, DPTR(const float) gates, DPTR(float) state,
                                DPTR(float) o, ARGS(gdn_args) a, uint gx, uint gy, uint tid)
{
    const uint lane = tid & 31, head = gx >> 5, col = (gx & 31) * 4 + (tid >> 5);
    const uint kw = a.k_heads * 128, vw = a.v_heads * 128;
    PDL_WAIT();
    PDL_LAUNCH();
    const uint first = seg[gy].first, n = seg[gy].n;
    DPTR(float) st = state + ((ulong)seg[gy].slot * a.v_heads + head) * GDN_HEAD_FLOATS;
    DPTR(const float) qh = q + (ulong)first * kw + head / a.ratio * 128;
    DPTR(const float) kh = k + (ulong)first * kw + head / a.ratio * 128;
    DPTR(const float) vh = v + (ulong)first * vw + head * 128 + col;
    DPTR(const float) gh = gates + ((ulong)first * a.v_heads + head) * 4;
    DPTR(float) oh = o + (ulong)first * vw + head * 128 + col;
    float s[4];
    gdn_load_state<32, 1>(s, st, col, lane, seg[gy].pos == 0);
    for (uint t = 0; t < n; t++) {
        const float4 k4 = ld16f(kh, t * kw + lane * 4), q4 = ld16f(qh, t * kw + lane * 4);
        const float4 g = ld16f(gh, t * a.v_heads * 4);
        float kt[4], qt[4], x[1];
        kt[0] = k4.x;
        kt[1] = k4.y;
        kt[2] = k4.z;
        kt[3] = k4.w;
        qt[0] = q4.x;
        qt[1] = q4.y;
        qt[2] = q4.z;
        qt[3] = q4.w;
        x[0] = vh[t * vw];
        gdn_token<32, 1, ONE>(s, kt, qt, x, g.x, g.y, g.z);
        if (lane == 0) oh[t * vw] = x[0];
    }
    gdn_store_state<32, 1>(s, st, col, lane);
}

KERNEL(gdn_scan_direct, 128, GDN_SCAN_BINDINGS)
{
    KCTX;
    gdn_scan_direct_column<true>(seg, q, k, v, gates, state, o, a, gx, gy, tid);
}
KERNEL_END

KERNEL(gdn_scan_direct_text, 128, GDN_SCAN_BINDINGS)
{
    KCTX;
    gdn_scan_direct_column<false>(seg, q, k, v, gates, state, o, a, gx, gy, tid);
}
KERNEL_END

/* Four channels of the ring row of token t. */
KFN void gdn_ring_copy(DPTR(const tok_entry) tok, DPTR(const float) y, DPTR(float) ring,
                       uint y_pitch, uint channels, uint t, uint ch)
{
    st16f(ring + (ulong)tok[t].slot * 4 * channels, (tok[t].pos & 3) * channels + ch,
          ld16f(y + (ulong)t * y_pitch, ch));
}

/* o [T][VW] bf16 = gated norm of raw; the inputs of each segment's last four tokens go into the
 * ring. Grid: T HV / 8 groups, rounded up; two heads a simdgroup. Bytes a token: raw and z f32, o.
 */
KERNEL(gdn_norm_bf16, 128, KIN(0, tok_entry, tok), KIN(1, float, raw), KIN(2, float, norm),
       KIN(3, float, y), KOUT(4, float, ring), KOUT(5, ushort, o), KARG(6, gdn_args, a))
{
    KCTX;
    const uint unit = (gx * 4 + sg) * 2 + (lane >> 4), i = 8 * (lane & 15);
    const uint last = a.n * a.v_heads - 1;
    PDL_WAIT();
    PDL_LAUNCH();
    float4 hi;
    const float4 lo = gdn_norm_unit(raw, y, norm, a, kmin(unit, last), i, hi);
    if (unit <= last) {
        uint4 r;
        r.x = kx_bf16_store(lo.x) | kx_bf16_store(lo.y) << 16;
        r.y = kx_bf16_store(lo.z) | kx_bf16_store(lo.w) << 16;
        r.z = kx_bf16_store(hi.x) | kx_bf16_store(hi.y) << 16;
        r.w = kx_bf16_store(hi.z) | kx_bf16_store(hi.w) << 16;
        st16h(o, unit * 128 + i, r);
        const uint t = unit / a.v_heads, h = unit % a.v_heads;
        const uint kw = a.k_heads * 128, channels = 2 * kw + a.v_heads * 128;
        if (t + 4 >= a.n || tok[t + 4].slot != tok[t].slot) {
            gdn_ring_copy(tok, y, ring, a.y_pitch, channels, t, 2 * kw + h * 128 + i);
            gdn_ring_copy(tok, y, ring, a.y_pitch, channels, t, 2 * kw + h * 128 + i + 4);
            if (h % a.ratio == 0) {
                const uint ch = h / a.ratio * 128 + i;
                gdn_ring_copy(tok, y, ring, a.y_pitch, channels, t, ch);
                gdn_ring_copy(tok, y, ring, a.y_pitch, channels, t, ch + 4);
                gdn_ring_copy(tok, y, ring, a.y_pitch, channels, t, kw + ch);
                gdn_ring_copy(tok, y, ring, a.y_pitch, channels, t, kw + ch + 4);
            }
        }
    }
}
KERNEL_END

#endif
