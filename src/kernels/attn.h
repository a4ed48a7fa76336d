/* attn.h - attention of decode and prefill (docs/MODEL.md 6.4, 6.5): scalar kernels.
 *
 * Common to all: scores are in the exp2 domain (queries carry ATTN_SCALE), f32 sums, -1e30f for
 * "no key". A simdgroup holds NH query heads of one KV head in registers, each lane 8 of the 256
 * dims: 8 lane .. 8 lane + 7 (CO: a row is one 16-byte load per lane), or lane + 32 i (the older
 * form). Keys are taken in batches of 4: 4 NH scores by the xor tree, one rescaling per batch.
 *
 * Layouts: y [T][y_pitch]: per head q (256), gate (256); then k, v of each KV head. rope [T][64]:
 * cos, sin. k, v [n_kv_heads][n_rows][256] bf16. tok [T] tok_entry.
 */
#ifndef CALLA_KERNELS_ATTN_H
#define CALLA_KERNELS_ATTN_H

#include "kernels/args_attn.h"
#include "kernels/dialect.h"

typedef struct attn_f8 {
    float v[8];
} attn_f8;

/* Softmax over some keys: maximum, sum of 2^(s - m), and o = sum of 2^(s - m) v. */
typedef struct attn_state {
    float m, l;
    attn_f8 o;
} attn_state;

template <uint NH> struct attn_heads {
    attn_f8 q[NH];
    attn_state st[NH];
};

/* Positions of a token within the batch's bindings. */
typedef struct attn_where {
    uint pos, row; /* its position; first cache row of its sequence */
} attn_where;

KFN attn_where attn_token(DPTR(const uint) tok, uint t)
{
    const uint4 e = ld16(tok, 4 * t);
    attn_where w;
    w.pos = e.y;
    w.row = e.w;
    return w;
}

template <bool CO> KFN attn_f8 attn_load_f32(DPTR(const float) p, uint lane)
{
    attn_f8 x;
    if (CO) {
        const float4 a = ld16f(p, 8 * lane), b = ld16f(p, 8 * lane + 4);
        x.v[0] = a.x;
        x.v[1] = a.y;
        x.v[2] = a.z;
        x.v[3] = a.w;
        x.v[4] = b.x;
        x.v[5] = b.y;
        x.v[6] = b.z;
        x.v[7] = b.w;
    } else {
        UNROLL for (uint i = 0; i < 8; i++) x.v[i] = p[lane + 32 * i];
    }
    return x;
}

KFN attn_f8 attn_unpack(uint4 w)
{
    attn_f8 x;
    x.v[0] = KFLOAT(w.x << 16);
    x.v[1] = KFLOAT(w.x & 0xffff0000u);
    x.v[2] = KFLOAT(w.y << 16);
    x.v[3] = KFLOAT(w.y & 0xffff0000u);
    x.v[4] = KFLOAT(w.z << 16);
    x.v[5] = KFLOAT(w.z & 0xffff0000u);
    x.v[6] = KFLOAT(w.w << 16);
    x.v[7] = KFLOAT(w.w & 0xffff0000u);
    return x;
}

KFN uint4 attn_pack(attn_f8 x)
{
    uint4 w;
    w.x = kx_bf16_store(x.v[0]) | (kx_bf16_store(x.v[1]) << 16);
    w.y = kx_bf16_store(x.v[2]) | (kx_bf16_store(x.v[3]) << 16);
    w.z = kx_bf16_store(x.v[4]) | (kx_bf16_store(x.v[5]) << 16);
    w.w = kx_bf16_store(x.v[6]) | (kx_bf16_store(x.v[7]) << 16);
    return w;
}

/* The lane's dims of a bf16 row, still packed (word j: dims i = 2 j and 2 j + 1). */
template <bool CO> KFN uint4 attn_load_row(DPTR(const ushort) p, uint row, uint lane)
{
    uint4 w;
    if (CO) {
        w = ld16h(p, row * ATTN_DIM + 8 * lane);
    } else {
        const uint i = row * ATTN_DIM + lane;
        w.x = (uint)p[i] | ((uint)p[i + 32] << 16);
        w.y = (uint)p[i + 64] | ((uint)p[i + 96] << 16);
        w.z = (uint)p[i + 128] | ((uint)p[i + 160] << 16);
        w.w = (uint)p[i + 192] | ((uint)p[i + 224] << 16);
    }
    return w;
}

template <bool CO> KFN void attn_store_row(DPTR(ushort) p, uint row, uint lane, uint4 w)
{
    if (CO) {
        st16h(p, row * ATTN_DIM + 8 * lane, w);
    } else {
        const uint i = row * ATTN_DIM + lane;
        p[i] = (ushort)(w.x & 0xffffu);
        p[i + 32] = (ushort)(w.x >> 16);
        p[i + 64] = (ushort)(w.y & 0xffffu);
        p[i + 96] = (ushort)(w.y >> 16);
        p[i + 128] = (ushort)(w.z & 0xffffu);
        p[i + 160] = (ushort)(w.z >> 16);
        p[i + 192] = (ushort)(w.w & 0xffffu);
        p[i + 224] = (ushort)(w.w >> 16);
    }
}

template <bool CO> KFN void attn_store_f32(DPTR(float) p, uint row, uint lane, attn_f8 x)
{
    DPTR(float) r = p + (ulong)row * ATTN_DIM;
    if (CO) {
        float4 a, b;
        a.x = x.v[0];
        a.y = x.v[1];
        a.z = x.v[2];
        a.w = x.v[3];
        b.x = x.v[4];
        b.y = x.v[5];
        b.z = x.v[6];
        b.w = x.v[7];
        st16f(r, 8 * lane, a);
        st16f(r, 8 * lane + 4, b);
    } else {
        UNROLL for (uint i = 0; i < 8; i++) r[lane + 32 * i] = x.v[i];
    }
}

/* RMS1 with w, RoPE on dims 0 .. 63 in pairs (i, i + 32), times scale; a whole simdgroup. */
template <bool CO>
KFN attn_f8 attn_norm_rope(attn_f8 x, DPTR(const float) w, DPTR(const float) rope, float eps,
                           float scale, uint lane)
{
    float ss = 0.0f;
    UNROLL for (uint i = 0; i < 8; i++) ss = KFMA(x.v[i], x.v[i], ss);
    const float r = kx_rsqrt(KFMA(simd_sum_f32(ss), 1.0f / ATTN_DIM, eps));
    const attn_f8 g = attn_load_f32<CO>(w, lane);
    UNROLL for (uint i = 0; i < 8; i++) x.v[i] = (x.v[i] * r) * g.v[i];
    if (CO) { /* dims of lanes 0 .. 3 pair with those of lanes 4 .. 7 */
        UNROLL for (uint i = 0; i < 8; i++)
        {
            const float other = simd_xor_f32(x.v[i], 4);
            const uint j = (lane & 3) * 8 + i;
            const float c = rope[j], s = rope[32 + j];
            const float sn = lane < 4 ? -(other * s) : other * s;
            if (lane < 8) x.v[i] = KFMA(x.v[i], c, sn);
        }
    } else {
        const float c = rope[lane], s = rope[32 + lane];
        const float x0 = x.v[0], x1 = x.v[1];
        x.v[0] = KFMA(x0, c, -(x1 * s));
        x.v[1] = KFMA(x1, c, x0 * s);
    }
    UNROLL for (uint i = 0; i < 8; i++) x.v[i] = x.v[i] * scale;
    return x;
}

/* The newest key and value of a sequence when they are not in the cache yet. */
typedef struct attn_new {
    uint key; /* its position; no position: 0xffffffff */
    uint4 k, v;
} attn_new;

KFN attn_new attn_none()
{
    attn_new n;
    n.key = 0xffffffffu;
    n.k.x = 0;
    n.k.y = 0;
    n.k.z = 0;
    n.k.w = 0;
    n.v = n.k;
    return n;
}

/* Adds keys first .. first + 3 (those below end) to the states of NH heads. first < end. */
template <bool CO, uint NH>
KFN void attn_batch(DPTR(const ushort) k, DPTR(const ushort) v, uint row, uint first, uint end,
                    THREF(attn_new) nw, uint lane, THREF(attn_heads<NH>) h)
{
    uint4 kw[4], vw[4];
    UNROLL for (uint j = 0; j < 4; j++)
    {
        const uint key = first + j < end ? first + j : first;
        if (key == nw.key) {
            kw[j] = nw.k;
            vw[j] = nw.v;
        } else {
            kw[j] = attn_load_row<CO>(k, row + key, lane);
            vw[j] = attn_load_row<CO>(v, row + key, lane);
        }
    }
    float p[4][NH];
    UNROLL for (uint j = 0; j < 4; j++)
    {
        const attn_f8 x = attn_unpack(kw[j]);
        UNROLL for (uint i = 0; i < NH; i++)
        {
            float s = 0.0f;
            UNROLL for (uint d = 0; d < 8; d++) s = KFMA(h.q[i].v[d], x.v[d], s);
            s = simd_sum_f32(s);
            p[j][i] = first + j < end ? s : -1e30f;
        }
    }
    UNROLL for (uint i = 0; i < NH; i++)
    {
        const float m = kmax(kmax(h.st[i].m, kmax(p[0][i], p[1][i])), kmax(p[2][i], p[3][i]));
        const float f = attn_exp2(h.st[i].m - m);
        UNROLL for (uint j = 0; j < 4; j++) p[j][i] = attn_exp2(p[j][i] - m);
        h.st[i].m = m;
        h.st[i].l = KFMA(h.st[i].l, f, (p[0][i] + p[1][i]) + (p[2][i] + p[3][i]));
        UNROLL for (uint d = 0; d < 8; d++) h.st[i].o.v[d] = h.st[i].o.v[d] * f;
    }
    UNROLL for (uint j = 0; j < 4; j++)
    {
        const attn_f8 x = attn_unpack(vw[j]);
        UNROLL for (uint i = 0; i < NH; i++)
        {
            UNROLL for (uint d = 0; d < 8; d++) h.st[i].o.v[d] =
                KFMA(p[j][i], x.v[d], h.st[i].o.v[d]);
        }
    }
}

template <uint NH> KFN void attn_heads_clear(THREF(attn_heads<NH>) h)
{
    UNROLL for (uint i = 0; i < NH; i++)
    {
        h.st[i].m = -1e30f;
        h.st[i].l = 0.0f;
        UNROLL for (uint d = 0; d < 8; d++) h.st[i].o.v[d] = 0.0f;
    }
}

/* a += b over disjoint keys. */
KFN void attn_join(THREF(attn_state) a, float bm, float bl, attn_f8 bo)
{
    const float m = kmax(a.m, bm);
    const float fa = attn_exp2(a.m - m), fb = attn_exp2(bm - m);
    a.m = m;
    a.l = KFMA(a.l, fa, bl * fb);
    UNROLL for (uint d = 0; d < 8; d++) a.o.v[d] = KFMA(a.o.v[d], fa, bo.v[d] * fb);
}

/* Joins the states of the slices of a group's keys, pairwise: the upper half of the slices goes
 * through threadgroup memory to the lower half until slice 0 holds all. Simdgroup sg has slice
 * sg / quads and heads sg % quads. buf: 4 * NH * 256 floats; ml: 4 * NH * 2. All threads. */
template <uint NH>
KFN void attn_join_slices(THREF(attn_heads<NH>) h, uint slice, uint quad, uint quads, uint slices,
                          uint lane, TPTR(float) buf, TPTR(float) ml)
{
    for (uint n_half = slices >> 1; n_half > 0; n_half >>= 1) {
        if (slice >= n_half && slice < 2 * n_half) {
            const uint at = ((slice - n_half) * quads + quad) * NH;
            UNROLL for (uint i = 0; i < NH; i++)
            {
                UNROLL for (uint d = 0; d < 8; d++) buf[(at + i) * ATTN_DIM + 32 * d + lane] =
                    h.st[i].o.v[d];
                if (lane == 0) {
                    ml[2 * (at + i)] = h.st[i].m;
                    ml[2 * (at + i) + 1] = h.st[i].l;
                }
            }
        }
        TG_BARRIER();
        if (slice < n_half) {
            const uint at = (slice * quads + quad) * NH;
            UNROLL for (uint i = 0; i < NH; i++)
            {
                attn_f8 o;
                UNROLL for (uint d = 0; d < 8; d++) o.v[d] =
                    buf[(at + i) * ATTN_DIM + 32 * d + lane];
                attn_join(h.st[i], ml[2 * (at + i)], ml[2 * (at + i) + 1], o);
            }
        }
        TG_BARRIER();
    }
}

/* One group of decode attention: HG heads from `head` on, all of one KV head, over one block of
 * one sequence's keys: heads in quads of NH per simdgroup, keys in slices (batch i of the block
 * belongs to slice i % slices). Writes unnormalised o and (m, l) of the block. */
template <bool CO, uint NH>
KFN void attn_block(DPTR(const ushort) k, DPTR(const ushort) v, uint row, uint begin, uint end,
                    THREF(attn_new) nw, THREF(attn_heads<NH>) h, uint head, uint n_heads, uint part,
                    uint slice, uint quad, uint quads, uint slices, uint lane, uint n_blocks,
                    TPTR(float) buf, TPTR(float) ml, DPTR(float) po, DPTR(float) pml)
{
    attn_heads_clear<NH>(h);
    if (slice < slices) {
        for (uint key = begin + 4 * slice; key < end; key += 4 * slices)
            attn_batch<CO, NH>(k, v, row, key, end, nw, lane, h);
    }
    attn_join_slices<NH>(h, slice, quad, quads, slices, lane, buf, ml);
    if (slice == 0) {
        UNROLL for (uint i = 0; i < NH; i++)
        {
            if (NH * quad + i < n_heads) {
                const uint at = (head + NH * quad + i) * n_blocks + part;
                attn_store_f32<CO>(po, at, lane, h.st[i].o);
                if (lane == 0) {
                    pml[2 * at] = h.st[i].m;
                    pml[2 * at + 1] = h.st[i].l;
                }
            }
        }
    }
}

/* Key slices of a group of 8 simdgroups when its heads take `quads` of them. */
KFN uint attn_slices(uint quads)
{
    return quads == 1 ? 8 : quads == 2 ? 4 : 2;
}

/* Decode, with q and k prepared here. Grid x: KV heads (NH 4) or query heads (NH 1), times
 * n_blocks; y: tokens. A group skips when its block lies behind the sequence.
 *
 * Every simdgroup prepares the heads it holds; those of the last block also the new key, which
 * they use from registers; one of them appends it. */
#define ATTN_STEP_FUSED(name, CO, NH)                                                              \
    KERNEL(name, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, float, rope),                    \
           KIN(3, float, q_norm), KIN(4, float, k_norm), KOUT(5, ushort, k), KOUT(6, ushort, v),   \
           KOUT(7, float, po), KOUT(8, float, pml), KARG(9, attn_args, a))                         \
    {                                                                                              \
        KCTX;                                                                                      \
        TG_ARRAY(float, buf, 4 * NH * ATTN_DIM);                                                   \
        TG_ARRAY(float, ml, 4 * NH * 2);                                                           \
        PDL_WAIT();                                                                                \
        PDL_LAUNCH();                                                                              \
        attn_step_fused<CO, NH>(tok, y, rope, q_norm, k_norm, k, v, po, pml, a, buf, ml, gx, gy,   \
                                sg, lane);                                                         \
    }                                                                                              \
    KERNEL_END

template <bool CO, uint NH>
KFN void attn_step_fused(DPTR(const uint) tok, DPTR(const float) y, DPTR(const float) rope,
                         DPTR(const float) q_norm, DPTR(const float) k_norm, DPTR(ushort) k,
                         DPTR(ushort) v, DPTR(float) po, DPTR(float) pml, ARGS(attn_args) a,
                         TPTR(float) buf, TPTR(float) ml, uint gx, uint gy, uint sg, uint lane)
{
    const attn_where w = attn_token(tok, gy);
    const uint n = w.pos + 1, kb = attn_block_keys(n, a.one);
    const uint part = gx % a.n_blocks, unit = gx / a.n_blocks;
    const uint begin = part * kb, end = kmin(begin + kb, n);
    if (begin < n) {
        const uint heads = NH == 1 ? 1 : a.group;
        const uint head = unit * heads, kv = head / a.group;
        const uint quads = (heads + NH - 1) / NH, slices = attn_slices(quads);
        const uint slice = sg / quads, quad = sg % quads;
        DPTR(const float) yt = y + (ulong)gy * a.y_pitch;
        DPTR(const float) rt = rope + gy * 64;
        DPTR(ushort) kh = k + (ulong)kv * a.n_rows * ATTN_DIM;
        DPTR(ushort) vh = v + (ulong)kv * a.n_rows * ATTN_DIM;
        attn_heads<NH> h;
        UNROLL for (uint i = 0; i < NH; i++)
        {
            const uint j = NH * quad + i < heads ? NH * quad + i : heads - 1; /* behind: the last */
            h.q[i] = attn_norm_rope<CO>(attn_load_f32<CO>(yt + (head + j) * 2 * ATTN_DIM, lane),
                                        q_norm, rt, a.eps, ATTN_SCALE, lane);
        }
        attn_new nw = attn_none();
        if (end == n) {
            DPTR(const float) yk = yt + (2 * a.n_heads + kv) * ATTN_DIM;
            nw.key = w.pos;
            nw.k = attn_pack(
                attn_norm_rope<CO>(attn_load_f32<CO>(yk, lane), k_norm, rt, a.eps, 1.0f, lane));
            nw.v = attn_pack(attn_load_f32<CO>(yk + a.n_kv_heads * ATTN_DIM, lane));
            if (sg == 0 && head % a.group == 0) {
                attn_store_row<CO>(kh, w.row + w.pos, lane, nw.k);
                attn_store_row<CO>(vh, w.row + w.pos, lane, nw.v);
            }
        }
        attn_block<CO, NH>(kh, vh, w.row, begin, end, nw, h, gy * a.n_heads + head, heads, part,
                           slice, quad, quads, slices, lane, a.n_blocks, buf, ml, po, pml);
    }
}

ATTN_STEP_FUSED(attn_step_fused_pack, true, 4)
ATTN_STEP_FUSED(attn_step_fused_one, true, 1)
ATTN_STEP_FUSED(attn_step_fused_pack_strided, false, 4)
ATTN_STEP_FUSED(attn_step_fused_one_strided, false, 1)

/* Decode, from prepared q [T][n_heads][256] f32 and a cache that holds the new key. */
#define ATTN_STEP_PLAIN(name, CO, NH)                                                              \
    KERNEL(name, 256, KIN(0, uint, tok), KIN(1, float, q), KIN(2, ushort, k), KIN(3, ushort, v),   \
           KOUT(4, float, po), KOUT(5, float, pml), KARG(6, attn_args, a))                         \
    {                                                                                              \
        KCTX;                                                                                      \
        TG_ARRAY(float, buf, 4 * NH * ATTN_DIM);                                                   \
        TG_ARRAY(float, ml, 4 * NH * 2);                                                           \
        PDL_WAIT();                                                                                \
        PDL_LAUNCH();                                                                              \
        attn_step_plain<CO, NH>(tok, q, k, v, po, pml, a, buf, ml, gx, gy, sg, lane);              \
    }                                                                                              \
    KERNEL_END

template <bool CO, uint NH>
KFN void attn_step_plain(DPTR(const uint) tok, DPTR(const float) q, DPTR(const ushort) k,
                         DPTR(const ushort) v, DPTR(float) po, DPTR(float) pml, ARGS(attn_args) a,
                         TPTR(float) buf, TPTR(float) ml, uint gx, uint gy, uint sg, uint lane)
{
    const attn_where w = attn_token(tok, gy);
    const uint n = w.pos + 1, kb = attn_block_keys(n, a.one);
    const uint part = gx % a.n_blocks, unit = gx / a.n_blocks;
    const uint begin = part * kb, end = kmin(begin + kb, n);
    if (begin < n) {
        const uint heads = NH == 1 ? 1 : a.group;
        const uint head = unit * heads, kv = head / a.group;
        const uint quads = (heads + NH - 1) / NH, slices = attn_slices(quads);
        const uint slice = sg / quads, quad = sg % quads;
        DPTR(const float) qt = q + (ulong)gy * a.n_heads * ATTN_DIM;
        attn_heads<NH> h;
        UNROLL for (uint i = 0; i < NH; i++)
        {
            const uint j = NH * quad + i < heads ? NH * quad + i : heads - 1; /* behind: the last */
            h.q[i] = attn_load_f32<CO>(qt + (head + j) * ATTN_DIM, lane);
        }
        attn_new nw = attn_none();
        attn_block<CO, NH>(k + (ulong)kv * a.n_rows * ATTN_DIM, v + (ulong)kv * a.n_rows * ATTN_DIM,
                           w.row, begin, end, nw, h, gy * a.n_heads + head, heads, part, slice,
                           quad, quads, slices, lane, a.n_blocks, buf, ml, po, pml);
    }
}

ATTN_STEP_PLAIN(attn_step_plain_pack, true, 4)
ATTN_STEP_PLAIN(attn_step_plain_one, true, 1)
ATTN_STEP_PLAIN(attn_step_plain_pack_strided, false, 4)
ATTN_STEP_PLAIN(attn_step_plain_one_strided, false, 1)

/* o [T][n_heads][256] = joined blocks / l, times sigmoid(gate). Grid x: heads * 4 (64 dims each),
 * y: tokens. Thread: dim tid % 64, blocks tid / 64 + 4 i in ascending order; the four sums are
 * added in order. Bytes: 1,032 a block and head. */
KERNEL(attn_merge, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, float, po), KIN(3, float, pml),
       KOUT(4, float, o), KARG(5, attn_args, a))
{
    KCTX;
    TG_ARRAY(float, wgt, ATTN_BLOCKS_MAX);
    TG_ARRAY(float, sum, 256);
    TG_ARRAY(float, total, 1);
    PDL_WAIT();
    PDL_LAUNCH();
    const uint head = gx / 4, d = gx % 4 * 64 + tid % 64;
    const attn_where w = attn_token(tok, gy);
    const uint n = w.pos + 1, kb = attn_block_keys(n, a.one), n_parts = (n + kb - 1) / kb;
    const uint at = (gy * a.n_heads + head) * a.n_blocks;
    float x[ATTN_BLOCKS_MAX / 4]; /* on their way before the weights are known */
    UNROLL for (uint j = 0; j < ATTN_BLOCKS_MAX / 4; j++)
    {
        const uint i = tid / 64 + 4 * j;
        x[j] = i < n_parts ? po[(ulong)(at + i) * ATTN_DIM + d] : 0.0f;
    }
    if (sg == 0) {
        const uint i0 = lane, i1 = lane + 32;
        const float m0 = i0 < n_parts ? pml[2 * (at + i0)] : -1e30f;
        const float m1 = i1 < n_parts ? pml[2 * (at + i1)] : -1e30f;
        const float l0 = i0 < n_parts ? pml[2 * (at + i0) + 1] : 0.0f;
        const float l1 = i1 < n_parts ? pml[2 * (at + i1) + 1] : 0.0f;
        const float m = simd_max_f32(kmax(m0, m1));
        const float f0 = attn_exp2(m0 - m), f1 = attn_exp2(m1 - m);
        const float l = simd_sum_f32(KFMA(l0, f0, l1 * f1));
        wgt[i0] = f0;
        wgt[i1] = f1;
        if (lane == 0) total[0] = l;
    }
    TG_BARRIER();
    float s = 0.0f;
    UNROLL for (uint j = 0; j < ATTN_BLOCKS_MAX / 4; j++)
    {
        const uint i = tid / 64 + 4 * j;
        if (i < n_parts) s = KFMA(x[j], wgt[i], s);
    }
    sum[tid] = s;
    TG_BARRIER();
    if (tid < 64) {
        const float joined = (sum[tid] + sum[tid + 64]) + (sum[tid + 128] + sum[tid + 192]);
        const float gate = y[(ulong)gy * a.y_pitch + (2 * head + 1) * ATTN_DIM + d];
        o[(ulong)(gy * a.n_heads + head) * ATTN_DIM + d] = (joined / total[0]) * kx_sigmoid(gate);
    }
}
KERNEL_END

/* Preparation: a simdgroup takes one query head (norm, RoPE, scale -> q) or one KV head (norm,
 * RoPE -> k; v) of one token. Grid x: T (n_heads + n_kv_heads) / 8. Bytes: 4 in, 4 (f32) or 2 out a
 * value. */
KFN attn_f8 attn_prepare_q(DPTR(const float) y, DPTR(const float) rope, DPTR(const float) q_norm,
                           ARGS_REF(attn_args) a, uint t, uint head, uint lane)
{
    DPTR(const float) yq = y + (ulong)t * a.y_pitch + head * 2 * ATTN_DIM;
    return attn_norm_rope<true>(attn_load_f32<true>(yq, lane), q_norm, rope + t * 64, a.eps,
                                ATTN_SCALE, lane);
}

KFN void attn_append(DPTR(const uint) tok, DPTR(const float) y, DPTR(const float) rope,
                     DPTR(const float) k_norm, DPTR(ushort) k, DPTR(ushort) v,
                     ARGS_REF(attn_args) a, uint t, uint kv, uint lane)
{
    const attn_where w = attn_token(tok, t);
    DPTR(const float) yk = y + (ulong)t * a.y_pitch + (2 * a.n_heads + kv) * ATTN_DIM;
    const attn_f8 x = attn_norm_rope<true>(attn_load_f32<true>(yk, lane), k_norm, rope + t * 64,
                                           a.eps, 1.0f, lane);
    const attn_f8 z = attn_load_f32<true>(yk + a.n_kv_heads * ATTN_DIM, lane);
    const ulong base = (ulong)kv * a.n_rows * ATTN_DIM;
    attn_store_row<true>(k + base, w.row + w.pos, lane, attn_pack(x));
    attn_store_row<true>(v + base, w.row + w.pos, lane, attn_pack(z));
}

KERNEL(attn_prepare_f32, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, float, rope),
       KIN(3, float, q_norm), KIN(4, float, k_norm), KOUT(5, ushort, k), KOUT(6, ushort, v),
       KOUT(7, float, q), KARG(8, attn_args, a))
{
    KCTX;
    PDL_WAIT();
    PDL_LAUNCH();
    const uint per = a.n_heads + a.n_kv_heads, t = (gx * 8 + sg) / per, j = (gx * 8 + sg) % per;
    if (t < a.n_tokens) {
        if (j < a.n_heads)
            attn_store_f32<true>(q, t * a.n_heads + j, lane,
                                 attn_prepare_q(y, rope, q_norm, a, t, j, lane));
        else
            attn_append(tok, y, rope, k_norm, k, v, a, t, j - a.n_heads, lane);
    }
}
KERNEL_END

KERNEL(attn_prepare_bf16, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, float, rope),
       KIN(3, float, q_norm), KIN(4, float, k_norm), KOUT(5, ushort, k), KOUT(6, ushort, v),
       KOUT(7, ushort, q), KARG(8, attn_args, a))
{
    KCTX;
    PDL_WAIT();
    PDL_LAUNCH();
    const uint per = a.n_heads + a.n_kv_heads, t = (gx * 8 + sg) / per, j = (gx * 8 + sg) % per;
    if (t < a.n_tokens) {
        if (j < a.n_heads)
            attn_store_row<true>(q, t * a.n_heads + j, lane,
                                 attn_pack(attn_prepare_q(y, rope, q_norm, a, t, j, lane)));
        else
            attn_append(tok, y, rope, k_norm, k, v, a, t, j - a.n_heads, lane);
    }
}
KERNEL_END

/* Prefill without matrix tiles: a simdgroup takes 4 heads of one KV head of one token and walks all
 * its keys from position 0 on. o [T][n_heads][256] bf16, gated. Grid x: T * n_kv_heads * quads / 8.
 * Simdgroups of a group share keys through the cache. */
KERNEL(attn_scan_rows, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, ushort, q),
       KIN(3, ushort, k), KIN(4, ushort, v), KOUT(5, ushort, o), KARG(6, attn_args, a))
{
    KCTX;
    PDL_WAIT();
    PDL_LAUNCH();
    const uint quads = (a.group + 3) / 4, per = quads * a.n_kv_heads;
    const uint unit = gx * 8 + sg, t = unit / per, kv = unit % per / quads, quad = unit % quads;
    if (t < a.n_tokens) {
        const attn_where w = attn_token(tok, t);
        const uint head = kv * a.group;
        const ulong base = (ulong)kv * a.n_rows * ATTN_DIM;
        attn_heads<4> h;
        UNROLL for (uint i = 0; i < 4; i++)
        {
            const uint j = kmin(4 * quad + i, a.group - 1);
            h.q[i] = attn_unpack(attn_load_row<true>(q, t * a.n_heads + head + j, lane));
        }
        attn_new nw = attn_none();
        attn_heads_clear<4>(h);
        for (uint key = 0; key <= w.pos; key += 4)
            attn_batch<true, 4>(k + base, v + base, w.row, key, w.pos + 1, nw, lane, h);
        UNROLL for (uint i = 0; i < 4; i++)
        {
            const uint j = 4 * quad + i;
            if (j < a.group) {
                const attn_f8 g = attn_load_f32<true>(
                    y + (ulong)t * a.y_pitch + (2 * (head + j) + 1) * ATTN_DIM, lane);
                UNROLL for (uint d = 0; d < 8; d++) h.st[i].o.v[d] =
                    (h.st[i].o.v[d] / h.st[i].l) * kx_sigmoid(g.v[d]);
                attn_store_row<true>(o, t * a.n_heads + head + j, lane, attn_pack(h.st[i].o));
            }
        }
    }
}
KERNEL_END

/* ---- prefill in tiles ---- */

/* What a group works on; n 0: nothing. */
typedef struct attn_scan_tile {
    uint first, n;    /* tokens */
    uint pos, kv_row; /* position of the first one; first row of the sequence */
} attn_scan_tile;

KFN attn_scan_tile attn_scan_find(DPTR(const uint) seg, uint n_segs, uint per, uint tile)
{
    attn_scan_tile t;
    t.n = 0;
    t.first = 0;
    t.pos = 0;
    t.kv_row = 0;
    uint before = 0;
    for (uint i = 0; i < n_segs; i++) {
        const uint4 e = ld16(seg, 8 * i);
        const uint here = (e.y + per - 1) / per;
        if (tile >= before && tile < before + here) {
            const uint off = (tile - before) * per;
            t.first = e.x + off;
            t.n = kmin(per, e.y - off);
            t.pos = seg[8 * i + 4] + off;
            t.kv_row = e.w;
        }
        before += here;
    }
    return t;
}

#endif
