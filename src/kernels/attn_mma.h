/* attn_mma.h - attention on 16 x 8 x 16 products (prim_frag_*.h): CUDA, and the emulator for tests.
 *
 * Same mathematics, layouts and blocks as attn.h; the weights of the softmax are rounded to bf16,
 * sums are f32. Tolerance against ref_attn_exact: 2^-8 of the largest |v| of the head, from
 * the weights' rounding (2^-9 each, their sum exact).
 */
#ifndef CALLA_KERNELS_ATTN_MMA_H
#define CALLA_KERNELS_ATTN_MMA_H

#include "kernels/attn.h"

#if defined(__CUDACC__)
#include "kernels/prim_frag_cuda.h"
#else
#include "kernels/prim_frag_simt.h"
#endif

#define ATTN_MMA_OPITCH 68

/* Sixteen keys as a lane reads them, 16 bytes at a time and straight into fragments: a sum over
 * dims may take them in any order, and so may rows of a result. g = lane / 4, c = lane % 4.
 *   K: keys g and g + 8, dims 8 (c + 4 j) .. + 7, j < 8: words 2 i, 2 i + 1 are b0, b1
 *   V: keys 2c, 2c+1, 2c+8, 2c+9, dims 8 (g + 8 j) .. + 7, j < 4 */
typedef struct attn_tile {
    uint4 w[16];
} attn_tile;

KFN uint4 attn_row16(DPTR(const ushort) p, uint row, uint dim, bool valid)
{
    uint4 w;
    w.x = 0;
    w.y = 0;
    w.z = 0;
    w.w = 0;
    if (valid) w = ld16h(p, row * ATTN_DIM + dim);
    return w;
}

/* Keys at or behind end are zeros. */
KFN void attn_tile_k(THREF(attn_tile) t, DPTR(const ushort) k, uint row, uint key, uint end,
                     uint lane)
{
    const uint g = lane / 4, c = lane % 4;
    UNROLL for (uint i = 0; i < 2; i++)
    {
        const uint j0 = key + g + 8 * i;
        UNROLL for (uint j = 0; j < 8; j++) t.w[8 * i + j] =
            attn_row16(k, row + j0, 8 * (c + 4 * j), j0 < end);
    }
}

KFN void attn_tile_v(THREF(attn_tile) t, DPTR(const ushort) v, uint row, uint key, uint end,
                     uint lane)
{
    const uint g = lane / 4, c = lane % 4;
    UNROLL for (uint i = 0; i < 4; i++)
    {
        const uint j0 = key + 2 * c + (i & 1) + 8 * (i / 2);
        UNROLL for (uint j = 0; j < 4; j++) t.w[4 * i + j] =
            attn_row16(v, row + j0, 8 * (g + 8 * j), j0 < end);
    }
}

/* State of a simdgroup over its keys. m and l of head g (l: this lane's keys only); o: heads 2c and
 * 2c + 1, of product (j, i) dims 8 (g + 8 j) + 2 i (v[0], v[1]) and + 1 (v[2], v[3]). */
typedef struct attn_mma_state {
    float m, l;
    frag_c o[16];
} attn_mma_state;

/* q as fragments A [16 products][32 lanes][4 words]: rows 0 .. 7 are the heads in bf16, rows 8 ..
 * 15 what bf16 left over of them. A simdgroup stores one head from 8 dims a lane. */
KFN void attn_mma_store_q(TPTR(uint) q, uint head, attn_f8 x, uint lane)
{
    attn_f8 rest;
    const uint4 hi = attn_pack(x), none = attn_none().k;
    const attn_f8 y = attn_unpack(hi);
    UNROLL for (uint i = 0; i < 8; i++) rest.v[i] = x.v[i] - y.v[i];
    const uint4 lo = attn_pack(rest);
    const uint at = (lane / 4 * 64 + 4 * head + lane % 4) * 4;
    uint4 w = none;
    w.x = hi.x;
    w.y = lo.x;
    w.z = hi.y;
    w.w = lo.y;
    tg_st16(q, at, w);
    w.x = hi.z;
    w.y = lo.z;
    w.z = hi.w;
    w.w = lo.w;
    tg_st16(q, at + 128, w);
}

/* Scores of head g for keys 2c, 2c+1, 2c+8, 2c+9 of the tile. */
KFN void attn_mma_scores(THREF(attn_tile) k, TPTR(const uint) q, uint lane, THREF(frag_c) s)
{
    frag_c a[2], b[2];
    UNROLL for (uint i = 0; i < 4; i++)
    {
        a[0].v[i] = 0.0f;
        a[1].v[i] = 0.0f;
        b[0].v[i] = 0.0f;
        b[1].v[i] = 0.0f;
    }
    UNROLL for (uint j = 0; j < 8; j++)
    {
        const uint4 x = frag_read16(q + (64 * j + lane) * 4);
        frag_mma(a[0], x.x, x.y, x.z, x.w, k.w[j].x, k.w[j].y);
        frag_mma(b[0], x.x, x.y, x.z, x.w, k.w[8 + j].x, k.w[8 + j].y);
        const uint4 z = frag_read16(q + (64 * j + 32 + lane) * 4);
        frag_mma(a[1], z.x, z.y, z.z, z.w, k.w[j].z, k.w[j].w);
        frag_mma(b[1], z.x, z.y, z.z, z.w, k.w[8 + j].z, k.w[8 + j].w);
    }
    s.v[0] = (a[0].v[0] + a[1].v[0]) + (a[0].v[2] + a[1].v[2]);
    s.v[1] = (a[0].v[1] + a[1].v[1]) + (a[0].v[3] + a[1].v[3]);
    s.v[2] = (b[0].v[0] + b[1].v[0]) + (b[0].v[2] + b[1].v[2]);
    s.v[3] = (b[0].v[1] + b[1].v[1]) + (b[0].v[3] + b[1].v[3]);
}

/* Scores to weights; the state's m, l and o follow. n: keys of the tile that exist, at least 1. */
KFN void attn_mma_weights(THREF(attn_mma_state) st, THREF(frag_c) s, uint n, uint lane)
{
    const uint c = lane % 4;
    UNROLL for (uint i = 0; i < 4; i++)
    {
        if (2 * c + (i & 1) + 8 * (i / 2) >= n) s.v[i] = -1e30f;
    }
    float m = kmax(kmax(s.v[0], s.v[1]), kmax(s.v[2], s.v[3]));
    const float m1 = simd_xor_f32(m, 1);
    m = kmax(m, m1);
    const float m2 = simd_xor_f32(m, 2);
    m = kmax(kmax(m, m2), st.m);
    const float f = attn_exp2(st.m - m);
    UNROLL for (uint i = 0; i < 4; i++) s.v[i] = attn_exp2(s.v[i] - m);
    st.m = m;
    st.l = KFMA(st.l, f, (s.v[0] + s.v[1]) + (s.v[2] + s.v[3]));
    if (simd_ballot(f != 1.0f) != 0) {
        const float f0 = simd_lane_f32(f, 8 * c), f1 = simd_lane_f32(f, 8 * c + 4);
        UNROLL for (uint i = 0; i < 16; i++)
        {
            st.o[i].v[0] = st.o[i].v[0] * f0;
            st.o[i].v[1] = st.o[i].v[1] * f1;
            st.o[i].v[2] = st.o[i].v[2] * f0;
            st.o[i].v[3] = st.o[i].v[3] * f1;
        }
    }
}

/* o += V^T P^T: rows of the product are dims, columns heads. */
KFN void attn_mma_values(THREF(attn_mma_state) st, THREF(attn_tile) v, THREF(frag_c) s)
{
    const uint b0 = frag_pack(s.v[0], s.v[1]), b1 = frag_pack(s.v[2], s.v[3]);
    UNROLL for (uint j = 0; j < 4; j++)
    {
        const uint4 e0 = v.w[j], o0 = v.w[4 + j], e1 = v.w[8 + j], o1 = v.w[12 + j];
        frag_mma(st.o[4 * j], frag_low(e0.x, o0.x), frag_high(e0.x, o0.x), frag_low(e1.x, o1.x),
                 frag_high(e1.x, o1.x), b0, b1);
        frag_mma(st.o[4 * j + 1], frag_low(e0.y, o0.y), frag_high(e0.y, o0.y), frag_low(e1.y, o1.y),
                 frag_high(e1.y, o1.y), b0, b1);
        frag_mma(st.o[4 * j + 2], frag_low(e0.z, o0.z), frag_high(e0.z, o0.z), frag_low(e1.z, o1.z),
                 frag_high(e1.z, o1.z), b0, b1);
        frag_mma(st.o[4 * j + 3], frag_low(e0.w, o0.w), frag_high(e0.w, o0.w), frag_low(e1.w, o1.w),
                 frag_high(e1.w, o1.w), b0, b1);
    }
}

/* Adds the states of the n_sg simdgroups that had keys, in order, 64 dims of all heads at a time,
 * and writes the block's unnormalised o and (m, l). ml: [8][8][2]; buf: [8][8][OPITCH]. */
KFN void attn_mma_finish(THREF(attn_mma_state) st, uint n_sg, uint sg, uint tid, uint lane,
                         uint n_heads, uint head, uint part, uint n_blocks, TPTR(float) buf,
                         TPTR(float) ml, DPTR(float) po, DPTR(float) pml)
{
    const uint g = lane / 4, c = lane % 4;
    float l = st.l;
    l = l + simd_xor_f32(l, 1);
    l = l + simd_xor_f32(l, 2);
    if (c == 0) {
        ml[(sg * 8 + g) * 2] = st.m;
        ml[(sg * 8 + g) * 2 + 1] = l;
    }
    TG_BARRIER();
    float m0 = -1e30f, m1 = -1e30f;
    for (uint i = 0; i < n_sg; i++) {
        m0 = kmax(m0, ml[(i * 8 + 2 * c) * 2]);
        m1 = kmax(m1, ml[(i * 8 + 2 * c + 1) * 2]);
    }
    const float f0 = attn_exp2(ml[(sg * 8 + 2 * c) * 2] - m0);
    const float f1 = attn_exp2(ml[(sg * 8 + 2 * c + 1) * 2] - m1);
    UNROLL for (uint j = 0; j < 4; j++)
    {
        if (sg < n_sg) {
            UNROLL for (uint h = 0; h < 2; h++)
            {
                const uint at = (sg * 8 + 2 * c + h) * ATTN_MMA_OPITCH + 8 * g;
                const float f = h == 0 ? f0 : f1;
                float4 x;
                x.x = st.o[4 * j].v[h] * f;
                x.y = st.o[4 * j].v[2 + h] * f;
                x.z = st.o[4 * j + 1].v[h] * f;
                x.w = st.o[4 * j + 1].v[2 + h] * f;
                tg_st16f(buf, at, x);
                x.x = st.o[4 * j + 2].v[h] * f;
                x.y = st.o[4 * j + 2].v[2 + h] * f;
                x.z = st.o[4 * j + 3].v[h] * f;
                x.w = st.o[4 * j + 3].v[2 + h] * f;
                tg_st16f(buf, at + 4, x);
            }
        }
        TG_BARRIER();
        UNROLL for (uint i = 0; i < 2; i++)
        {
            const uint h = tid / 64 + 4 * i, d = tid % 64;
            if (h < n_heads) {
                float sum = 0.0f;
                for (uint s = 0; s < n_sg; s++)
                    sum = sum + buf[(s * 8 + h) * ATTN_MMA_OPITCH + d];
                po[(ulong)((head + h) * n_blocks + part) * ATTN_DIM + 64 * j + d] = sum;
            }
        }
        TG_BARRIER();
    }
    if (tid < n_heads) {
        float m = -1e30f, sum = 0.0f;
        for (uint i = 0; i < n_sg; i++)
            m = kmax(m, ml[(i * 8 + tid) * 2]);
        for (uint i = 0; i < n_sg; i++)
            sum = KFMA(ml[(i * 8 + tid) * 2 + 1], attn_exp2(ml[(i * 8 + tid) * 2] - m), sum);
        const uint at = (head + tid) * n_blocks + part;
        pml[2 * at] = m;
        pml[2 * at + 1] = sum;
    }
}

/* Keys [begin, end): tile i of 16 keys belongs to simdgroup i % 8. The next tile's K is on its way
 * during the softmax and V, the next V during the scores. k0, v0: the first tile when loaded. */
KFN void attn_mma_keys(THREF(attn_mma_state) st, THREF(attn_tile) kt, THREF(attn_tile) vt,
                       TPTR(const uint) q, DPTR(const ushort) k, DPTR(const ushort) v, uint row,
                       uint first, uint end, uint lane)
{
    for (uint key = first; key < end; key += 128) {
        frag_c s;
        attn_mma_scores(kt, q, lane, s);
        if (key + 128 < end) attn_tile_k(kt, k, row, key + 128, end, lane);
        attn_mma_weights(st, s, end - key, lane);
        attn_mma_values(st, vt, s);
        if (key + 128 < end) attn_tile_v(vt, v, row, key + 128, end, lane);
    }
}

KFN void attn_mma_clear(THREF(attn_mma_state) st)
{
    st.m = -1e30f;
    st.l = 0.0f;
    UNROLL for (uint i = 0; i < 16; i++)
    {
        UNROLL for (uint j = 0; j < 4; j++) st.o[i].v[j] = 0.0f;
    }
}

/* Decode: up to 8 query heads of a KV head against one block of its keys, each key read once and
 * straight into fragments. Grid x: n_kv_heads * n_blocks, y: tokens; 8 simdgroups, one head each to
 * prepare, then 16 keys each at a time. Threadgroup memory 26 KB. Bytes: 1,024 a key; operations:
 * 16 x 16 x 8 products, half of the score's rows carry the low bits of q. */
KERNEL(attn_step_fused_mma, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, float, rope),
       KIN(3, float, q_norm), KIN(4, float, k_norm), KOUT(5, ushort, k), KOUT(6, ushort, v),
       KOUT(7, float, po), KOUT(8, float, pml), KARG(9, attn_args, a))
{
    KCTX;
    TG_ARRAY(uint, q, 16 * 32 * 4);
    TG_ARRAY(float, buf, 8 * 8 * ATTN_MMA_OPITCH);
    TG_ARRAY(float, ml, 8 * 8 * 2);
    PDL_WAIT();
    PDL_LAUNCH();
    const attn_where w = attn_token(tok, gy);
    const uint n = w.pos + 1, kb = attn_block_keys(n, a.one);
    const uint part = gx % a.n_blocks, kv = gx / a.n_blocks;
    const uint begin = part * kb, end = kmin(begin + kb, n), first = begin + 16 * sg;
    if (begin < n) {
        DPTR(const float) yt = y + (ulong)gy * a.y_pitch;
        DPTR(const float) rt = rope + gy * 64;
        DPTR(ushort) kh = k + (ulong)kv * a.n_rows * ATTN_DIM;
        DPTR(ushort) vh = v + (ulong)kv * a.n_rows * ATTN_DIM;
        attn_tile kt, vt;
        if (end < n) { /* the block has no new key */
            attn_tile_k(kt, kh, w.row, first, end, lane);
            attn_tile_v(vt, vh, w.row, first, end, lane);
        }
        attn_f8 x = attn_unpack(attn_none().k);
        if (sg < a.group)
            x = attn_norm_rope<true>(
                attn_load_f32<true>(yt + (kv * a.group + sg) * 2 * ATTN_DIM, lane), q_norm, rt,
                a.eps, ATTN_SCALE, lane);
        attn_mma_store_q(q, sg, x, lane);
        if (end == n) {
            DPTR(const float) yk = yt + (2 * a.n_heads + kv) * ATTN_DIM;
            if (sg == 0)
                attn_store_row<true>(
                    kh, w.row + w.pos, lane,
                    attn_pack(attn_norm_rope<true>(attn_load_f32<true>(yk, lane), k_norm, rt, a.eps,
                                                   1.0f, lane)));
            if (sg == 1)
                attn_store_row<true>(
                    vh, w.row + w.pos, lane,
                    attn_pack(attn_load_f32<true>(yk + a.n_kv_heads * ATTN_DIM, lane)));
        }
        TG_BARRIER();
        if (end == n) {
            attn_tile_k(kt, kh, w.row, first, end, lane);
            attn_tile_v(vt, vh, w.row, first, end, lane);
        }
        attn_mma_state st;
        attn_mma_clear(st);
        attn_mma_keys(st, kt, vt, q, kh, vh, w.row, first, end, lane);
        attn_mma_finish(st, kmin(8u, (end - begin + 15) / 16), sg, tid, lane, a.group,
                        gy * a.n_heads + kv * a.group, part, a.n_blocks, buf, ml, po, pml);
    }
}
KERNEL_END

/* The same from prepared q [T][n_heads][256] f32 and a cache that holds the new key. */
KERNEL(attn_step_plain_mma, 256, KIN(0, uint, tok), KIN(1, float, qs), KIN(2, ushort, k),
       KIN(3, ushort, v), KOUT(4, float, po), KOUT(5, float, pml), KARG(6, attn_args, a))
{
    KCTX;
    TG_ARRAY(uint, q, 16 * 32 * 4);
    TG_ARRAY(float, buf, 8 * 8 * ATTN_MMA_OPITCH);
    TG_ARRAY(float, ml, 8 * 8 * 2);
    PDL_WAIT();
    PDL_LAUNCH();
    const attn_where w = attn_token(tok, gy);
    const uint n = w.pos + 1, kb = attn_block_keys(n, a.one);
    const uint part = gx % a.n_blocks, kv = gx / a.n_blocks;
    const uint begin = part * kb, end = kmin(begin + kb, n), first = begin + 16 * sg;
    if (begin < n) {
        DPTR(const ushort) kh = k + (ulong)kv * a.n_rows * ATTN_DIM;
        DPTR(const ushort) vh = v + (ulong)kv * a.n_rows * ATTN_DIM;
        attn_tile kt, vt;
        attn_tile_k(kt, kh, w.row, first, end, lane);
        attn_tile_v(vt, vh, w.row, first, end, lane);
        attn_f8 x = attn_unpack(attn_none().k);
        if (sg < a.group)
            x = attn_load_f32<true>(qs + (ulong)(gy * a.n_heads + kv * a.group + sg) * ATTN_DIM,
                                    lane);
        attn_mma_store_q(q, sg, x, lane);
        TG_BARRIER();
        attn_mma_state st;
        attn_mma_clear(st);
        attn_mma_keys(st, kt, vt, q, kh, vh, w.row, first, end, lane);
        attn_mma_finish(st, kmin(8u, (end - begin + 15) / 16), sg, tid, lane, a.group,
                        gy * a.n_heads + kv * a.group, part, a.n_blocks, buf, ml, po, pml);
    }
}
KERNEL_END

/* ---- prefill ---- */

/* Rows of a tile: row r is query head r % group of position r / group of the tile, one KV head.
 * Threadgroup memory, rows of 32 chunks of 16 bytes, chunk c of row r at place c ^ (r & 7):
 * q [128], then twice k [64] and v [64]. */
#define ATTN_SCAN_BYTES ((ATTN_SCAN_ROWS + 4 * ATTN_SCAN_KEYS) * ATTN_DIM * 2)

KFN uint attn_scan_at(uint row, uint chunk)
{
    return row * ATTN_DIM + 8 * (chunk ^ (row & 7));
}

/* Copies keys key .. key + 63, as far as they are below end, zeros behind. */
KFN void attn_scan_fetch(FRAG_PTR(ushort) to, DPTR(const ushort) from, uint row, uint key, uint end,
                         uint tid)
{
    UNROLL for (uint i = 0; i < ATTN_SCAN_KEYS / 8; i++)
    {
        const uint r = 8 * i + tid / 32, c = tid % 32;
        const bool valid = key + r < end;
        frag_copy16(to + attn_scan_at(r, c),
                    from + (row + (valid ? key + r : 0)) * ATTN_DIM + 8 * c, valid);
    }
}

/* State of a simdgroup's 16 rows: rows g (index 0) and g + 8 (1); l of this lane's keys only. */
typedef struct attn_scan_state {
    float m[2], l[2];
    frag_c o[32]; /* dims 8 i + 2c, + 1 */
} attn_scan_state;

typedef struct attn_scan_score {
    frag_c s[8]; /* keys 8 i + 2c, + 1 */
} attn_scan_score;

KFN void attn_scan_multiply(THREF(attn_scan_score) x, FRAG_PTR(const ushort) q, uint q_row,
                            FRAG_PTR(const ushort) k, uint lane)
{
    UNROLL for (uint i = 0; i < 8; i++)
    {
        UNROLL for (uint j = 0; j < 4; j++) x.s[i].v[j] = 0.0f;
    }
    const uint row = (lane & 7) + 8 * (lane / 16), half = (lane / 8) & 1;
    UNROLL for (uint d = 0; d < 16; d++)
    {
        const uint4 a = frag_load(q + attn_scan_at(q_row + lane % 16, 2 * d + lane / 16));
        UNROLL for (uint i = 0; i < 4; i++)
        {
            const uint4 b = frag_load(k + attn_scan_at(16 * i + row, 2 * d + half));
            frag_mma(x.s[2 * i], a.x, a.y, a.z, a.w, b.x, b.y);
            frag_mma(x.s[2 * i + 1], a.x, a.y, a.z, a.w, b.z, b.w);
        }
    }
}

/* Scores behind the rows' positions p0, p1 vanish. key: the block's first. */
KFN void attn_scan_mask(THREF(attn_scan_score) x, uint key, uint p0, uint p1, uint lane)
{
    UNROLL for (uint i = 0; i < 8; i++)
    {
        UNROLL for (uint j = 0; j < 4; j++)
        {
            if (key + 8 * i + 2 * (lane % 4) + (j & 1) > (j < 2 ? p0 : p1)) x.s[i].v[j] = -1e30f;
        }
    }
}

/* Scores to weights; the state follows. */
KFN void attn_scan_weights(THREF(attn_scan_state) st, THREF(attn_scan_score) x)
{
    float f[2];
    UNROLL for (uint r = 0; r < 2; r++)
    {
        float m = x.s[0].v[2 * r];
        UNROLL for (uint i = 0; i < 8; i++) m = kmax(m, kmax(x.s[i].v[2 * r], x.s[i].v[2 * r + 1]));
        const float m1 = simd_xor_f32(m, 1);
        m = kmax(m, m1);
        const float m2 = simd_xor_f32(m, 2);
        m = kmax(kmax(m, m2), st.m[r]);
        f[r] = frag_exp2(st.m[r] - m);
        float l = 0.0f;
        UNROLL for (uint i = 0; i < 8; i++)
        {
            UNROLL for (uint j = 0; j < 2; j++)
            {
                const float p = frag_exp2(x.s[i].v[2 * r + j] - m);
                x.s[i].v[2 * r + j] = p;
                l = l + p;
            }
        }
        st.m[r] = m;
        st.l[r] = KFMA(st.l[r], f[r], l);
    }
    if (simd_ballot(f[0] != 1.0f || f[1] != 1.0f) != 0) {
        UNROLL for (uint i = 0; i < 32; i++)
        {
            st.o[i].v[0] = st.o[i].v[0] * f[0];
            st.o[i].v[1] = st.o[i].v[1] * f[0];
            st.o[i].v[2] = st.o[i].v[2] * f[1];
            st.o[i].v[3] = st.o[i].v[3] * f[1];
        }
    }
}

KFN void attn_scan_values(THREF(attn_scan_state) st, THREF(attn_scan_score) x,
                          FRAG_PTR(const ushort) v, uint lane)
{
    UNROLL for (uint k = 0; k < 4; k++)
    {
        const uint a0 = frag_pack(x.s[2 * k].v[0], x.s[2 * k].v[1]);
        const uint a1 = frag_pack(x.s[2 * k].v[2], x.s[2 * k].v[3]);
        const uint a2 = frag_pack(x.s[2 * k + 1].v[0], x.s[2 * k + 1].v[1]);
        const uint a3 = frag_pack(x.s[2 * k + 1].v[2], x.s[2 * k + 1].v[3]);
        UNROLL for (uint d = 0; d < 16; d++)
        {
            const uint4 b =
                frag_load_turned(v + attn_scan_at(16 * k + lane % 16, 2 * d + lane / 16));
            frag_mma(st.o[2 * d], a0, a1, a2, a3, b.x, b.y);
            frag_mma(st.o[2 * d + 1], a0, a1, a2, a3, b.z, b.w);
        }
    }
}

/* o / l times sigmoid(gate) as bf16, through the simdgroup's own rows of q: every row leaves as 512
 * bytes. */
KFN void attn_scan_finish(THREF(attn_scan_state) st, FRAG_PTR(ushort) q, uint q_row, uint n_rows,
                          uint token, uint head, DPTR(const float) y, DPTR(ushort) o,
                          THREF(const attn_args) a, uint lane)
{
    const uint g = lane / 4, c = lane % 4;
    SG_BARRIER();
    UNROLL for (uint r = 0; r < 2; r++)
    {
        float l = st.l[r];
        l = l + simd_xor_f32(l, 1);
        l = l + simd_xor_f32(l, 2);
        const float scale = 1.0f / l;
        const uint row = q_row + g + 8 * r, at = row < n_rows ? row : 0;
        DPTR(const float)
        gate = y + (ulong)(token + at / a.group) * a.y_pitch +
               (2 * (head + at % a.group) + 1) * ATTN_DIM;
        UNROLL for (uint i = 0; i < 32; i++)
        {
            UNROLL for (uint j = 0; j < 2; j++) q[attn_scan_at(row, i) + 2 * c + j] =
                (ushort)kx_bf16_store((st.o[i].v[2 * r + j] * scale) *
                                      kx_sigmoid(gate[8 * i + 2 * c + j]));
        }
    }
    SG_BARRIER();
    for (uint i = 0; i < 16; i++) {
        const uint row = q_row + i;
        if (row < n_rows)
            st16h(o,
                  ((token + row / a.group) * a.n_heads + head + row % a.group) * ATTN_DIM +
                      8 * lane,
                  frag_row16(q + attn_scan_at(row, lane)));
    }
}

FRAG_MEMORY(attn_scan_mma, ATTN_SCAN_BYTES);

/* Prefill: 128 rows (all heads of a KV head at 128 / group positions) against all their keys, 64 at
 * a time from position 0 on, so that the division of a prompt into chunks does not show. 8
 * simdgroups of 16 rows; the next 64 keys are on their way during a block. Grid x: tiles *
 * n_kv_heads, later positions first; groups behind the last tile skip. 192 KiB of threadgroup
 * memory. Bytes: 1,024 a key and group, from L2; operations: 1,024 a key and row.
 *
 * q [T][n_heads][256] bf16, scaled; o [T][n_heads][256] bf16. */
KERNEL(attn_scan_mma, 256, KIN(0, uint, seg), KIN(1, float, y), KIN(2, ushort, qs),
       KIN(3, ushort, k), KIN(4, ushort, v), KOUT(5, ushort, o), KARG(6, attn_args, a))
{
    KCTX;
    FRAG_ARRAY(mem, ATTN_SCAN_BYTES);
    PDL_WAIT();
    PDL_LAUNCH();
    const uint per = ATTN_SCAN_ROWS / a.group, kv = gx % a.n_kv_heads;
    const attn_scan_tile t = attn_scan_find(seg, a.n_segs, per, (ngx - 1 - gx) / a.n_kv_heads);
    if (t.n != 0) {
        const uint n_rows = t.n * a.group, end = t.pos + t.n, head = kv * a.group;
        const ulong base = (ulong)kv * a.n_rows * ATTN_DIM;
        FRAG_PTR(ushort) kt = mem + ATTN_SCAN_ROWS * ATTN_DIM;
        FRAG_PTR(ushort) vt = kt + ATTN_SCAN_KEYS * ATTN_DIM;
        const uint stage = 2 * ATTN_SCAN_KEYS * ATTN_DIM;
        for (uint i = 0; i < ATTN_SCAN_ROWS / 8; i++) {
            const uint r = 8 * i + sg, at = r < n_rows ? r : 0;
            frag_copy16(mem + attn_scan_at(r, lane),
                        qs +
                            (ulong)((t.first + at / a.group) * a.n_heads + head + at % a.group) *
                                ATTN_DIM +
                            8 * lane,
                        r < n_rows);
        }
        attn_scan_fetch(kt, k + base, t.kv_row, 0, end, tid);
        attn_scan_fetch(vt, v + base, t.kv_row, 0, end, tid);
        frag_copy_close();

        /* Positions of rows g and g + 8, and of the simdgroup's first and last; rows that are not
         * there see what the first position sees. */
        const uint q_row = 16 * sg, r0 = q_row + lane / 4, r1 = r0 + 8, r15 = q_row + 15;
        const uint p0 = t.pos + (r0 < n_rows ? r0 / a.group : 0);
        const uint p1 = t.pos + (r1 < n_rows ? r1 / a.group : 0);
        const uint p_last = t.pos + (r15 < n_rows ? r15 / a.group : t.n - 1);
        const uint p_first = t.pos + (r15 < n_rows ? q_row / a.group : 0);
        attn_scan_state st;
        UNROLL for (uint r = 0; r < 2; r++)
        {
            st.m[r] = -1e30f;
            st.l[r] = 0.0f;
        }
        UNROLL for (uint i = 0; i < 32; i++)
        {
            UNROLL for (uint j = 0; j < 4; j++) st.o[i].v[j] = 0.0f;
        }
        uint now = 0;
        for (uint key = 0; key < end; key += ATTN_SCAN_KEYS) {
            if (key + ATTN_SCAN_KEYS < end) {
                const uint next = stage - now;
                attn_scan_fetch(kt + next, k + base, t.kv_row, key + ATTN_SCAN_KEYS, end, tid);
                attn_scan_fetch(vt + next, v + base, t.kv_row, key + ATTN_SCAN_KEYS, end, tid);
            }
            frag_copy_close();
            frag_copy_wait<1>();
            TG_BARRIER();
            if (key <= p_last) {
                attn_scan_score x;
                attn_scan_multiply(x, mem, q_row, kt + now, lane);
                if (key + ATTN_SCAN_KEYS - 1 > p_first) attn_scan_mask(x, key, p0, p1, lane);
                attn_scan_weights(st, x);
                attn_scan_values(st, x, vt + now, lane);
            }
            TG_BARRIER();
            now = stage - now;
        }
        attn_scan_finish(st, mem, q_row, n_rows, t.first, head, y, o, a, lane);
    }
}
KERNEL_END

#endif
