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

/* ---- decode ---- */

/* A group of 8 simdgroups takes 128 keys at a time. Simdgroup s scores keys 16 s .. + 15 of them
 * for all heads, and multiplies dims 32 s .. + 31 of all 128 values. Keys and values come from
 * device memory straight into fragments: a sum over dims may take them in any order, and so may the
 * rows of a result. g = lane / 4, c = lane % 4. */
#define ATTN_ROUND 128

/* Keys g and g + 8 of the simdgroup's 16: dims 8 (c + 4 j) .. + 7 in word 8 i + j. */
typedef struct attn_keys {
    uint4 w[16];
} attn_keys;

/* Of each 16 keys t: keys 2c, 2c + 1, 2c + 8, 2c + 9 (i), dims 32 s + 4 g .. + 3. */
typedef struct attn_values {
    frag_w2 w[32]; /* 4 t + i */
} attn_values;

KFN uint attn_value_key(uint t, uint i, uint lane)
{
    return 16 * t + 2 * (lane % 4) + (i & 1) + 8 * (i / 2);
}

/* Keys at or behind end are zeros. */
KFN void attn_load_keys(THREF(attn_keys) t, DPTR(const ushort) k, uint row, uint key, uint end,
                        uint sg, uint lane)
{
    UNROLL for (uint i = 0; i < 2; i++)
    {
        const uint j0 = key + 16 * sg + lane / 4 + 8 * i;
        UNROLL for (uint j = 0; j < 8; j++)
        {
            uint4 w = attn_none().k;
            if (j0 < end) w = ld16h(k, (row + j0) * ATTN_DIM + 8 * (lane % 4 + 4 * j));
            t.w[8 * i + j] = w;
        }
    }
}

KFN void attn_load_values(THREF(attn_values) t, DPTR(const ushort) v, uint row, uint key, uint end,
                          uint sg, uint lane)
{
    UNROLL for (uint i = 0; i < 32; i++)
    {
        const uint j0 = key + attn_value_key(i / 4, i % 4, lane);
        frag_w2 w;
        w.x = 0;
        w.y = 0;
        if (j0 < end) w = frag_ld8(v, (row + j0) * ATTN_DIM + 32 * sg + 4 * (lane / 4));
        t.w[i] = w;
    }
}

/* Puts the newest key, number `at` of the round, and its value in the place of the zeros. */
KFN void attn_patch(THREF(attn_keys) kt, THREF(attn_values) vt, uint at, TPTR(const ushort) kn,
                    TPTR(const ushort) vn, uint sg, uint lane)
{
    UNROLL for (uint i = 0; i < 2; i++)
    {
        if (16 * sg + lane / 4 + 8 * i == at) {
            UNROLL for (uint j = 0; j < 8; j++) kt.w[8 * i + j] =
                tg_ld16h(kn, 8 * (lane % 4 + 4 * j));
        }
    }
    UNROLL for (uint i = 0; i < 32; i++)
    {
        if (attn_value_key(i / 4, i % 4, lane) == at)
            vt.w[i] = frag_tg_ld8(vn, 32 * sg + 4 * (lane / 4));
    }
}

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

/* Scores of head g for keys 2c, 2c + 1, 2c + 8, 2c + 9 of the simdgroup's. */
KFN void attn_mma_scores(THREF(attn_keys) k, TPTR(const uint) q, uint lane, THREF(frag_c) s)
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

/* m of head g over the group's keys, l over this lane's; o: product i, dims 32 s + 4 g + 2 i (v[0]
 * head 2c, v[1] head 2c + 1) and + 1 (v[2], v[3]). */
typedef struct attn_mma_state {
    float m, l;
    frag_c o[2];
} attn_mma_state;

/* Scores to weights. n: keys of the round. top [8 heads][8 simdgroups]: their maxima; p [8][32][2]:
 * the weights as fragments B of 16 keys. A barrier separates the maxima from their use, and the
 * weights from theirs. */
KFN void attn_mma_weights(THREF(attn_mma_state) st, THREF(frag_c) s, uint n, uint sg, uint lane,
                          TPTR(float) top, TPTR(uint) p)
{
    const uint g = lane / 4, c = lane % 4;
    UNROLL for (uint i = 0; i < 4; i++)
    {
        if (attn_value_key(sg, i, lane) >= n) s.v[i] = -1e30f;
    }
    float m = kmax(kmax(s.v[0], s.v[1]), kmax(s.v[2], s.v[3]));
    const float m1 = simd_xor_f32(m, 1);
    m = kmax(m, m1);
    const float m2 = simd_xor_f32(m, 2);
    m = kmax(m, m2);
    if (c == 0) top[8 * g + sg] = m;
    TG_BARRIER();
    const float4 t0 = tg_ld16f(top, 8 * g), t1 = tg_ld16f(top, 8 * g + 4);
    m = kmax(kmax(kmax(t0.x, t0.y), kmax(t0.z, t0.w)), kmax(kmax(t1.x, t1.y), kmax(t1.z, t1.w)));
    m = kmax(m, st.m);
    const float f = attn_exp2(st.m - m);
    UNROLL for (uint i = 0; i < 4; i++) s.v[i] = attn_exp2(s.v[i] - m);
    st.m = m;
    st.l = KFMA(st.l, f, (s.v[0] + s.v[1]) + (s.v[2] + s.v[3]));
    p[(32 * sg + lane) * 2] = frag_pack(s.v[0], s.v[1]);
    p[(32 * sg + lane) * 2 + 1] = frag_pack(s.v[2], s.v[3]);
    const float f0 = simd_lane_f32(f, 8 * c), f1 = simd_lane_f32(f, 8 * c + 4);
    UNROLL for (uint i = 0; i < 2; i++)
    {
        st.o[i].v[0] = st.o[i].v[0] * f0;
        st.o[i].v[1] = st.o[i].v[1] * f1;
        st.o[i].v[2] = st.o[i].v[2] * f0;
        st.o[i].v[3] = st.o[i].v[3] * f1;
    }
    TG_BARRIER();
}

/* o += V^T P^T: rows of the products are dims, columns heads. */
KFN void attn_mma_values(THREF(attn_mma_state) st, THREF(attn_values) v, TPTR(const uint) p, uint n,
                         uint lane)
{
    UNROLL for (uint t = 0; t < 8; t++)
    {
        if (16 * t < n) {
            const uint b0 = p[(32 * t + lane) * 2], b1 = p[(32 * t + lane) * 2 + 1];
            const frag_w2 e0 = v.w[4 * t], o0 = v.w[4 * t + 1];
            const frag_w2 e1 = v.w[4 * t + 2], o1 = v.w[4 * t + 3];
            frag_mma(st.o[0], frag_low(e0.x, o0.x), frag_high(e0.x, o0.x), frag_low(e1.x, o1.x),
                     frag_high(e1.x, o1.x), b0, b1);
            frag_mma(st.o[1], frag_low(e0.y, o0.y), frag_high(e0.y, o0.y), frag_low(e1.y, o1.y),
                     frag_high(e1.y, o1.y), b0, b1);
        }
    }
}

/* All rounds of [begin, end), the first one's keys and values loaded. The next keys are on their
 * way during softmax and values, the next values during the scores. Then writes the block's
 * unnormalised o and (m, l). */
KFN void attn_mma_block(THREF(attn_keys) kt, THREF(attn_values) vt, TPTR(const uint) q,
                        DPTR(const ushort) k, DPTR(const ushort) v, uint row, uint begin, uint end,
                        TPTR(float) top, TPTR(uint) p, uint n_heads, uint head, uint part,
                        uint n_blocks, DPTR(float) po, DPTR(float) pml, uint sg, uint lane)
{
    const uint g = lane / 4, c = lane % 4;
    attn_mma_state st;
    st.m = -1e30f;
    st.l = 0.0f;
    UNROLL for (uint i = 0; i < 4; i++)
    {
        st.o[0].v[i] = 0.0f;
        st.o[1].v[i] = 0.0f;
    }
    uint turn = 0;
    for (uint key = begin; key < end; key += ATTN_ROUND) {
        frag_c s;
        attn_mma_scores(kt, q, lane, s);
        if (key + ATTN_ROUND < end) attn_load_keys(kt, k, row, key + ATTN_ROUND, end, sg, lane);
        attn_mma_weights(st, s, end - key, sg, lane, top + turn, p);
        attn_mma_values(st, vt, p, end - key, lane);
        if (key + ATTN_ROUND < end) attn_load_values(vt, v, row, key + ATTN_ROUND, end, sg, lane);
        turn = 64 - turn; /* a simdgroup may be a barrier ahead of a reader */
    }
    float l = st.l;
    l = l + simd_xor_f32(l, 1);
    l = l + simd_xor_f32(l, 2);
    if (c == 0) top[turn + 8 * g + sg] = l;
    TG_BARRIER();
    if (sg == 0 && c == 0 && g < n_heads) {
        float sum = 0.0f;
        for (uint i = 0; i < 8; i++)
            sum = sum + top[turn + 8 * g + i];
        const uint at = (head + g) * n_blocks + part;
        pml[2 * at] = st.m;
        pml[2 * at + 1] = sum;
    }
    UNROLL for (uint h = 0; h < 2; h++)
    {
        float4 x;
        x.x = st.o[0].v[h];
        x.y = st.o[0].v[2 + h];
        x.z = st.o[1].v[h];
        x.w = st.o[1].v[2 + h];
        if (2 * c + h < n_heads)
            st16f(po + (ulong)((head + 2 * c + h) * n_blocks + part) * ATTN_DIM, 32 * sg + 4 * g,
                  x);
    }
}

/* Decode: up to 8 query heads of a KV head against one block of its keys, every key and value read
 * once. Grid x: n_kv_heads * n_blocks, y: tokens; 8 simdgroups. Each prepares one head; in the last
 * block two also prepare and append the new key and value, which the group takes from threadgroup
 * memory (12 KB in all). Bytes: 1,024 a key; operations: 16 x 16 x 8 products, half of the score's
 * rows carry the low bits of q. */
KERNEL(attn_step_fused_mma, 256, KIN(0, uint, tok), KIN(1, float, y), KIN(2, float, rope),
       KIN(3, float, q_norm), KIN(4, float, k_norm), KOUT(5, ushort, k), KOUT(6, ushort, v),
       KOUT(7, float, po), KOUT(8, float, pml), KARG(9, attn_args, a))
{
    KCTX;
    TG_ARRAY(uint, q, 16 * 32 * 4);
    TG_ARRAY(uint, p, 8 * 32 * 2);
    TG_ARRAY(float, top, 2 * 8 * 8);
    TG_ARRAY(ushort, kn, ATTN_DIM);
    TG_ARRAY(ushort, vn, ATTN_DIM);
    PDL_WAIT();
    PDL_LAUNCH();
    const attn_where w = attn_token(tok, gy);
    const uint n = w.pos + 1, kb = attn_block_keys(n, a.one);
    const uint part = gx % a.n_blocks, kv = gx / a.n_blocks;
    const uint begin = part * kb, end = kmin(begin + kb, n);
    if (begin < n) {
        DPTR(const float) yt = y + (ulong)gy * a.y_pitch;
        DPTR(const float) rt = rope + gy * 64;
        DPTR(ushort) kh = k + (ulong)kv * a.n_rows * ATTN_DIM;
        DPTR(ushort) vh = v + (ulong)kv * a.n_rows * ATTN_DIM;
        attn_keys kt;
        attn_values vt;
        attn_load_keys(kt, kh, w.row, begin, kmin(end, w.pos), sg, lane);
        attn_load_values(vt, vh, w.row, begin, kmin(end, w.pos), sg, lane);
        attn_f8 x = attn_unpack(attn_none().k);
        if (sg < a.group)
            x = attn_norm_rope<true>(
                attn_load_f32<true>(yt + (kv * a.group + sg) * 2 * ATTN_DIM, lane), q_norm, rt,
                a.eps, ATTN_SCALE, lane);
        attn_mma_store_q(q, sg, x, lane);
        if (end == n) {
            DPTR(const float) yk = yt + (2 * a.n_heads + kv) * ATTN_DIM;
            if (sg == 6) {
                const uint4 kw = attn_pack(attn_norm_rope<true>(attn_load_f32<true>(yk, lane),
                                                                k_norm, rt, a.eps, 1.0f, lane));
                tg_st16h(kn, 8 * lane, kw);
                attn_store_row<true>(kh, w.row + w.pos, lane, kw);
            }
            if (sg == 7) {
                const uint4 vw = attn_pack(attn_load_f32<true>(yk + a.n_kv_heads * ATTN_DIM, lane));
                tg_st16h(vn, 8 * lane, vw);
                attn_store_row<true>(vh, w.row + w.pos, lane, vw);
            }
        }
        TG_BARRIER();
        if (end == n) attn_patch(kt, vt, w.pos - begin, kn, vn, sg, lane);
        attn_mma_block(kt, vt, q, kh, vh, w.row, begin, end, top, p, a.group,
                       gy * a.n_heads + kv * a.group, part, a.n_blocks, po, pml, sg, lane);
    }
}
KERNEL_END

/* The same from prepared q [T][n_heads][256] f32 and a cache that holds the new key. */
KERNEL(attn_step_plain_mma, 256, KIN(0, uint, tok), KIN(1, float, qs), KIN(2, ushort, k),
       KIN(3, ushort, v), KOUT(4, float, po), KOUT(5, float, pml), KARG(6, attn_args, a))
{
    KCTX;
    TG_ARRAY(uint, q, 16 * 32 * 4);
    TG_ARRAY(uint, p, 8 * 32 * 2);
    TG_ARRAY(float, top, 2 * 8 * 8);
    PDL_WAIT();
    PDL_LAUNCH();
    const attn_where w = attn_token(tok, gy);
    const uint n = w.pos + 1, kb = attn_block_keys(n, a.one);
    const uint part = gx % a.n_blocks, kv = gx / a.n_blocks;
    const uint begin = part * kb, end = kmin(begin + kb, n);
    if (begin < n) {
        DPTR(const ushort) kh = k + (ulong)kv * a.n_rows * ATTN_DIM;
        DPTR(const ushort) vh = v + (ulong)kv * a.n_rows * ATTN_DIM;
        attn_keys kt;
        attn_values vt;
        attn_load_keys(kt, kh, w.row, begin, end, sg, lane);
        attn_load_values(vt, vh, w.row, begin, end, sg, lane);
        attn_f8 x = attn_unpack(attn_none().k);
        if (sg < a.group)
            x = attn_load_f32<true>(qs + (ulong)(gy * a.n_heads + kv * a.group + sg) * ATTN_DIM,
                                    lane);
        attn_mma_store_q(q, sg, x, lane);
        TG_BARRIER();
        attn_mma_block(kt, vt, q, kh, vh, w.row, begin, end, top, p, a.group,
                       gy * a.n_heads + kv * a.group, part, a.n_blocks, po, pml, sg, lane);
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
    if (simd_ballot_u32(f[0] != 1.0f || f[1] != 1.0f) != 0) {
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
                          ARGS_REF(attn_args) a, uint lane)
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
            frag_copy_wait<0>();
            TG_BARRIER(); /* these keys are there, and nobody reads the ones before */
            if (key + ATTN_SCAN_KEYS < end) {
                const uint next = stage - now;
                attn_scan_fetch(kt + next, k + base, t.kv_row, key + ATTN_SCAN_KEYS, end, tid);
                attn_scan_fetch(vt + next, v + base, t.kv_row, key + ATTN_SCAN_KEYS, end, tid);
                frag_copy_close();
            }
            if (key <= p_last) {
                attn_scan_score x;
                attn_scan_multiply(x, mem, q_row, kt + now, lane);
                if (key + ATTN_SCAN_KEYS - 1 > p_first) attn_scan_mask(x, key, p0, p1, lane);
                attn_scan_weights(st, x);
                attn_scan_values(st, x, vt + now, lane);
            }
            now = stage - now;
        }
        attn_scan_finish(st, mem, q_row, n_rows, t.first, head, y, o, a, lane);
    }
}
KERNEL_END

#endif
