/* attn_mm.h - prefill attention on matrix tiles (prim_mm.h): every target. */
#ifndef CALLA_KERNELS_ATTN_MM_H
#define CALLA_KERNELS_ATTN_MM_H

#include "kernels/attn.h"
#include "kernels/prim_mm.h"

#define ATTN_MM_PITCH  72 /* of bf16 rows of 64 */
#define ATTN_MM_SPITCH 68

/* Rows of 64 of the 256 dims: row r of the tile from device row at(r) = row + r; zeros where r >=
 * n. 128 threads. */
KFN void attn_mm_rows(TPTR(ushort) to, DPTR(const ushort) from, uint row, uint n, uint dim,
                      uint tid)
{
    UNROLL for (uint i = 0; i < 4; i++)
    {
        const uint r = 16 * i + tid / 8, c = 8 * (tid % 8);
        uint4 w = attn_none().k;
        if (r < n) w = ld16h(from, (row + r) * ATTN_DIM + dim + c);
        tg_st16h(to, r * ATTN_MM_PITCH + c, w);
    }
}

/* The same of a tile's queries: row r is head r % group of token r / group. 32 rows. */
KFN void attn_mm_queries(TPTR(ushort) to, DPTR(const ushort) q, uint token, uint head, uint n_rows,
                         uint dim, ARGS_REF(attn_args) a, uint tid)
{
    UNROLL for (uint i = 0; i < 2; i++)
    {
        const uint r = 16 * i + tid / 8, c = 8 * (tid % 8);
        uint4 w = attn_none().k;
        if (r < n_rows)
            w = ld16h(q, ((token + r / a.group) * a.n_heads + head + r % a.group) * ATTN_DIM + dim +
                             c);
        tg_st16h(to, r * ATTN_MM_PITCH + c, w);
    }
}

/* A quarter of a row: 16 scores to weights, masked behind the row's position. m: of the row, l: of
 * this quarter. Returns the factor of what was there before. */
KFN float attn_mm_weights(TPTR(const float) s, TPTR(ushort) p, uint key, uint pos, THREF(float) m,
                          THREF(float) l)
{
    float x[16], top = -1e30f;
    UNROLL for (uint i = 0; i < 16; i++)
    {
        x[i] = key + i <= pos ? s[i] : -1e30f;
        top = kmax(top, x[i]);
    }
    const float t1 = simd_xor_f32(top, 1);
    top = kmax(top, t1);
    const float t2 = simd_xor_f32(top, 2);
    top = kmax(kmax(top, t2), m);
    const float f = attn_exp2(m - top);
    float sum = 0.0f;
    UNROLL for (uint i = 0; i < 16; i++)
    {
        const float w = attn_exp2(x[i] - top);
        sum = sum + w;
        p[i] = (ushort)kx_bf16_store(w);
    }
    m = top;
    l = KFMA(l, f, sum);
    return f;
}

/* Prefill: 32 rows (all heads of a KV head at 32 / group positions) against all their keys, 64 at a
 * time from position 0 on, so that the division of a prompt into chunks does not show. 4
 * simdgroups: halves of the rows times halves of the keys (scores) or dims (values); keys, values
 * and queries pass through threadgroup memory 64 dims at a time (28 KB in all). Grid x: tiles *
 * n_kv_heads, later positions first; groups behind the last tile skip. Bytes: 1,024 a key and
 * group; operations: 1,024 a key and row. Tolerance as attn_mma.h.
 *
 * q [T][n_heads][256] bf16, scaled; o [T][n_heads][256] bf16. */
KERNEL(attn_scan_mm, 128, KIN(0, uint, seg), KIN(1, float, y), KIN(2, ushort, qs),
       KIN(3, ushort, kc), KIN(4, ushort, vc), KOUT(5, ushort, o), KARG(6, attn_args, a))
{
    KCTX;
    TG_ARRAY(ushort, q, 32 * ATTN_MM_PITCH);
    TG_ARRAY(ushort, kv, 64 * ATTN_MM_PITCH);
    TG_ARRAY(ushort, p, 32 * ATTN_MM_PITCH);
    TG_ARRAY(float, s, 32 * ATTN_MM_SPITCH);
    TG_ARRAY(float, factor, 32);
    PDL_WAIT();
    PDL_LAUNCH();
    const uint per = 32 / a.group, i_kv = gx % a.n_kv_heads;
    const attn_scan_tile t = attn_scan_find(seg, a.n_segs, per, (ngx - 1 - gx) / a.n_kv_heads);
    if (t.n != 0) {
        const uint n_rows = t.n * a.group, end = t.pos + t.n, head = i_kv * a.group;
        const ulong base = (ulong)i_kv * a.n_rows * ATTN_DIM;
        const uint rh = 16 * (sg / 2), ch = 32 * (sg % 2); /* the simdgroup's first row, column */
        /* For the weights a thread holds a quarter of a row. */
        const uint row = tid / 4, col = 16 * (tid % 4);
        const uint pos = t.pos + (row < n_rows ? row / a.group : 0);
        float m = -1e30f, l = 0.0f;
        mm_acc acc[4];
        UNROLL for (uint i = 0; i < 4; i++) mm_zero(acc[i]);
        for (uint key = 0; key < end; key += 64) {
            mm_acc x;
            mm_zero(x);
            UNROLL for (uint d = 0; d < 4; d++)
            {
                TG_BARRIER();
                attn_mm_queries(q, qs, t.first, head, n_rows, 64 * d, a, tid);
                attn_mm_rows(kv, kc + base, t.kv_row + key, end - key, 64 * d, tid);
                TG_BARRIER();
                UNROLL for (uint i = 0; i < 4; i++)
                    mm_mac(x, q + rh * ATTN_MM_PITCH + 16 * i, ATTN_MM_PITCH,
                           kv + ch * ATTN_MM_PITCH + 16 * i, ATTN_MM_PITCH);
            }
            MM_EACH(x, r, c, v)
            {
                s[(rh + r) * ATTN_MM_SPITCH + ch + c] = v;
            }
            TG_BARRIER();
            const float f = attn_mm_weights(s + row * ATTN_MM_SPITCH + col,
                                            p + row * ATTN_MM_PITCH + col, key + col, pos, m, l);
            if (col == 0) factor[row] = f;
            TG_BARRIER();
            UNROLL for (uint d = 0; d < 4; d++)
            {
                MM_EACH(acc[d], r, c, v)
                {
                    (void)c;
                    v = v * factor[rh + r];
                }
            }
            UNROLL for (uint d = 0; d < 4; d++)
            {
                if (d != 0) TG_BARRIER();
                attn_mm_rows(kv, vc + base, t.kv_row + key, end - key, 64 * d, tid);
                TG_BARRIER();
                UNROLL for (uint i = 0; i < 4; i++)
                    mm_mac_turned(acc[d], p + rh * ATTN_MM_PITCH + 16 * i, ATTN_MM_PITCH,
                                  kv + 16 * i * ATTN_MM_PITCH + ch, ATTN_MM_PITCH);
            }
        }
        l = l + simd_xor_f32(l, 1);
        l = l + simd_xor_f32(l, 2);
        TG_BARRIER();
        if (col == 0) factor[row] = 1.0f / l;
        TG_BARRIER();
        UNROLL for (uint d = 0; d < 4; d++)
        {
            MM_EACH(acc[d], r, c, v)
            {
                if (rh + r < n_rows) {
                    const uint token = t.first + (rh + r) / a.group, h = head + (rh + r) % a.group;
                    const uint dim = 64 * d + ch + c;
                    const float gate = y[(ulong)token * a.y_pitch + (2 * h + 1) * ATTN_DIM + dim];
                    o[(token * a.n_heads + h) * ATTN_DIM + dim] =
                        (ushort)kx_bf16_store((v * factor[rh + r]) * kx_sigmoid(gate));
                }
            }
        }
    }
}
KERNEL_END

#endif
