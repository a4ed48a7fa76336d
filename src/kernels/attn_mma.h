/* attn_mma.h - attention on 16 x 8 x 16 products (prim_frag_*.h): CUDA, and the emulator for tests.
 *
 * Same mathematics, layouts and blocks as attn.h; q and the weights of the softmax are rounded to
 * bf16, sums are f32. Tolerance against ref_attn_exact: 2^-8 of the largest |v| of the head, from
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

#define ATTN_MMA_QPITCH (ATTN_DIM + 32) /* 16-byte reads of 8 rows without bank conflicts */
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

/* Scores of head g for keys 2c, 2c+1, 2c+8, 2c+9 of the tile. */
KFN void attn_mma_scores(THREF(attn_tile) k, TPTR(const ushort) q, uint lane, THREF(frag_c) s)
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
        const uint4 x = tg_ld16h(q, lane / 4 * ATTN_MMA_QPITCH + 8 * (lane % 4 + 4 * j));
        frag_mma(a[0], x.x, 0, x.y, 0, k.w[j].x, k.w[j].y);
        frag_mma(b[0], x.x, 0, x.y, 0, k.w[8 + j].x, k.w[8 + j].y);
        frag_mma(a[1], x.z, 0, x.w, 0, k.w[j].z, k.w[j].w);
        frag_mma(b[1], x.z, 0, x.w, 0, k.w[8 + j].z, k.w[8 + j].w);
    }
    s.v[0] = a[0].v[0] + a[1].v[0];
    s.v[1] = a[0].v[1] + a[1].v[1];
    s.v[2] = b[0].v[0] + b[1].v[0];
    s.v[3] = b[0].v[1] + b[1].v[1];
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

KFN uint attn_low(uint a, uint b)
{
    return (a & 0xffffu) | (b << 16);
}
KFN uint attn_high(uint a, uint b)
{
    return (a >> 16) | (b & 0xffff0000u);
}

/* o += V^T P^T: rows of the product are dims, columns heads. */
KFN void attn_mma_values(THREF(attn_mma_state) st, THREF(attn_tile) v, THREF(frag_c) s)
{
    const uint b0 = frag_pack(s.v[0], s.v[1]), b1 = frag_pack(s.v[2], s.v[3]);
    UNROLL for (uint j = 0; j < 4; j++)
    {
        const uint4 e0 = v.w[j], o0 = v.w[4 + j], e1 = v.w[8 + j], o1 = v.w[12 + j];
        frag_mma(st.o[4 * j], attn_low(e0.x, o0.x), attn_high(e0.x, o0.x), attn_low(e1.x, o1.x),
                 attn_high(e1.x, o1.x), b0, b1);
        frag_mma(st.o[4 * j + 1], attn_low(e0.y, o0.y), attn_high(e0.y, o0.y), attn_low(e1.y, o1.y),
                 attn_high(e1.y, o1.y), b0, b1);
        frag_mma(st.o[4 * j + 2], attn_low(e0.z, o0.z), attn_high(e0.z, o0.z), attn_low(e1.z, o1.z),
                 attn_high(e1.z, o1.z), b0, b1);
        frag_mma(st.o[4 * j + 3], attn_low(e0.w, o0.w), attn_high(e0.w, o0.w), attn_low(e1.w, o1.w),
                 attn_high(e1.w, o1.w), b0, b1);
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
                       TPTR(const ushort) q, DPTR(const ushort) k, DPTR(const ushort) v, uint row,
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
 * prepare, then 16 keys each at a time. Threadgroup memory 22.5 KB. Bytes: 1,024 a key; operations:
 * 16 x 16 x 8 products, half of the score's rows idle. */
KERNEL(attn_step_fused_mma, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, float, rope),
       KIN(3, float, q_norm), KIN(4, float, k_norm), KOUT(5, ushort, k), KOUT(6, ushort, v),
       KOUT(7, float, po), KOUT(8, float, pml), KARG(9, attn_args, a))
{
    KCTX;
    TG_ARRAY(ushort, q, ATTN_MMA_GROUP * ATTN_MMA_QPITCH);
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
        uint4 qw = attn_none().k;
        if (sg < a.group)
            qw = attn_pack(attn_norm_rope<true>(
                attn_load_f32<true>(yt + (kv * a.group + sg) * 2 * ATTN_DIM, lane), q_norm, rt,
                a.eps, ATTN_SCALE, lane));
        tg_st16h(q, sg * ATTN_MMA_QPITCH + 8 * lane, qw);
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

/* The same from prepared q [T][n_heads][256] bf16 and a cache that holds the new key. */
KERNEL(attn_step_plain_mma, 256, KIN(0, uint, tok), KIN(1, ushort, qs), KIN(2, ushort, k),
       KIN(3, ushort, v), KOUT(4, float, po), KOUT(5, float, pml), KARG(6, attn_args, a))
{
    KCTX;
    TG_ARRAY(ushort, q, ATTN_MMA_GROUP * ATTN_MMA_QPITCH);
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
        uint4 qw = attn_none().k;
        if (sg < a.group) qw = attn_load_row<true>(qs, gy * a.n_heads + kv * a.group + sg, lane);
        tg_st16h(q, sg * ATTN_MMA_QPITCH + 8 * lane, qw);
        TG_BARRIER();
        attn_mma_state st;
        attn_mma_clear(st);
        attn_mma_keys(st, kt, vt, q, kh, vh, w.row, first, end, lane);
        attn_mma_finish(st, kmin(8u, (end - begin + 15) / 16), sg, tid, lane, a.group,
                        gy * a.n_heads + kv * a.group, part, a.n_blocks, buf, ml, po, pml);
    }
}
KERNEL_END

#endif
