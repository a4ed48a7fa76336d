/* prim_mm_metal.h - prim_mm.h on Metal, in one of the ways of CALLA_RUNG:
 *
 *   0  shuffles and fma. A lane owns column `lane` of the tile: for a step of K it holds the
 *      column's 16 weights; the products' other factor, the same for all lanes, comes by a shuffle.
 *   1  simdgroup_matrix 8 x 8 of floats. Operands are turned to f32 where a lane takes its elements
 *      from threadgroup memory: a shift. So products of bf16 are exact on chips without bf16
 *      arithmetic (M1, M2), sums are f32, and no support of bfloat is asked for; the rate of f32
 *      matrices is that of half ones.
 *   2  cooperative tensors of bfloat, 16 x 32 x 16 (M5), filled by hand. 3: the same;
 * prim_gmm_metal.h has the products of codes.
 */
#ifndef CALLA_KERNELS_PRIM_MM_METAL_H
#define CALLA_KERNELS_PRIM_MM_METAL_H

#include "kernels/prim_layout_metal.h"

struct mm_acc {
    float v[16];
};

/* Element e of a lane. */
#if CALLA_RUNG == 0
#define MM_ROW(e) (e)
#define MM_COL(e) lane
#elif CALLA_RUNG == 1
/* Fragment e / 2: rows from 8 (e / 8), columns from 8 (e / 2 % 4). */
#define MM_ROW(e) (8 * ((e) / 8) + lay8_row(lane))
#define MM_COL(e) (8 * ((e) / 2 & 3) + lay8_col(lane) + ((e)&1))
#else
/* Fragment e / 8: columns from 16 (e / 8). */
#define MM_ROW(e) (8 * ((e) / 4 & 1) + lay16_row(lane))
#define MM_COL(e) (16 * ((e) / 8) + lay16_col(lane) + ((e)&3))
#endif

/* Loops that run once: C++14 has no `if` with a declaration. */
#define MM_EACH(acc, row, col, v)                                                                  \
    UNROLL for (uint v##_e = 0; v##_e < 16;                                                        \
                v##_e++) for (uint v##_go = 1, row = MM_ROW(v##_e), col = MM_COL(v##_e);           \
                              v##_go != 0; v##_go = 0) for (THREF(float) v = (acc).v[v##_e];       \
                                                            v##_go != 0; v##_go = 0)

KFN void mm_zero(THREF(mm_acc) acc)
{
    UNROLL for (uint i = 0; i < 16; i++) acc.v[i] = 0.0f;
}

#if CALLA_RUNG == 0

/* ---- Shuffles ---- */

/* b: the 16 factors of the lane's column, two a word. */
KFN void mm_column(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch, THARRAY(uint, 8, b),
                   uint lane)
{
    /* lane l has words 4 (l & 1) .. of row l / 2 */
    const uint4 mine = tg_ld16h(A, lane / 2 * a_pitch + 8 * (lane & 1u));
    UNROLL for (uint r = 0; r < 16; r++)
    {
        UNROLL for (uint j = 0; j < 8; j++)
        {
            const uint4 m = mine;
            const uint from = (j & 3u) == 0u   ? m.x
                              : (j & 3u) == 1u ? m.y
                              : (j & 3u) == 2u ? m.z
                                               : m.w;
            const uint w = simd_lane_u32(from, 2 * r + j / 4);
            acc.v[r] = KFMA(kx_bf16_load(w & 0xffffu), kx_bf16_load(b[j] & 0xffffu), acc.v[r]);
            acc.v[r] = KFMA(kx_bf16_load(w >> 16), kx_bf16_load(b[j] >> 16), acc.v[r]);
        }
    }
}

KFN void mm_mac_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch, TPTR(const ushort) B,
                     uint b_pitch, uint lane)
{
    const uint4 lo = tg_ld16h(B, lane * b_pitch), hi = tg_ld16h(B, lane * b_pitch + 8);
    uint b[8];
    b[0] = lo.x;
    b[1] = lo.y;
    b[2] = lo.z;
    b[3] = lo.w;
    b[4] = hi.x;
    b[5] = hi.y;
    b[6] = hi.z;
    b[7] = hi.w;
    mm_column(acc, A, a_pitch, b, lane);
}

KFN void mm_mac_turned_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch,
                            TPTR(const ushort) B, uint b_pitch, uint lane)
{
    uint b[8];
    UNROLL for (uint j = 0; j < 8; j++)
    {
        b[j] = (uint)B[2 * j * b_pitch + lane] | (uint)B[(2 * j + 1) * b_pitch + lane] << 16;
    }
    mm_column(acc, A, a_pitch, b, lane);
}

#elif CALLA_RUNG == 1

/* ---- simdgroup_matrix ---- */

typedef metal::simdgroup_float8x8 mm_8x8;

/* The lane's two elements: neighbours in memory, i even. */
KFN void mm_take(THREF(mm_8x8) m, TPTR(const ushort) p, uint i)
{
    const uint w = *(TPTR(const uint))(p + i);
    m.thread_elements()[0] = kx_bf16_load(w & 0xffffu);
    m.thread_elements()[1] = kx_bf16_load(w >> 16);
}

/* The same, pitch apart. */
KFN void mm_take_turned(THREF(mm_8x8) m, TPTR(const ushort) p, uint i, uint pitch)
{
    m.thread_elements()[0] = kx_bf16_load((uint)p[i]);
    m.thread_elements()[1] = kx_bf16_load((uint)p[i + pitch]);
}

/* a: rows 0-7, 8-15; b: columns 0-7 .. 24-31, of 8 steps of K. */
KFN void mm_mac_8(THREF(mm_acc) acc, THARRAY(mm_8x8, 2, a), THARRAY(mm_8x8, 4, b))
{
    UNROLL for (uint f = 0; f < 8; f++)
    {
        mm_8x8 c;
        c.thread_elements()[0] = acc.v[2 * f];
        c.thread_elements()[1] = acc.v[2 * f + 1];
        metal::simdgroup_multiply_accumulate(c, a[f / 4], b[f & 3u], c);
        acc.v[2 * f] = c.thread_elements()[0];
        acc.v[2 * f + 1] = c.thread_elements()[1];
    }
}

KFN void mm_mac_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch, TPTR(const ushort) B,
                     uint b_pitch, uint lane)
{
    const uint row = lay8_row(lane), col = lay8_col(lane);
    UNROLL for (uint k = 0; k < 16; k += 8)
    {
        mm_8x8 a[2], b[4];
        UNROLL for (uint i = 0; i < 2; i++) mm_take(a[i], A, (8 * i + row) * a_pitch + k + col);
        UNROLL for (uint i = 0; i < 4; i++)
            mm_take_turned(b[i], B, (8 * i + col) * b_pitch + k + row, b_pitch);
        mm_mac_8(acc, a, b);
    }
}

KFN void mm_mac_turned_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch,
                            TPTR(const ushort) B, uint b_pitch, uint lane)
{
    const uint row = lay8_row(lane), col = lay8_col(lane);
    UNROLL for (uint k = 0; k < 16; k += 8)
    {
        mm_8x8 a[2], b[4];
        UNROLL for (uint i = 0; i < 2; i++) mm_take(a[i], A, (8 * i + row) * a_pitch + k + col);
        UNROLL for (uint i = 0; i < 4; i++) mm_take(b[i], B, (k + row) * b_pitch + 8 * i + col);
        mm_mac_8(acc, a, b);
    }
}

#else

/* ---- Cooperative tensors ---- */

/* Both operands of a product, as 16 x 16 fragments; B of two, side by side or, turned, one above
 * the other: a fragment has the rows that are in memory. */
template <bool B_ROWS>
KFN void mm_16x32x16(THREF(mm_acc) acc, THARRAY(bfloat, 8, a), THARRAY(bfloat, 16, b))
{
    constexpr auto what = mpp::tensor_ops::matmul2d_descriptor(
        16, 32, 16, false, B_ROWS, true,
        mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<what, metal::execution_simdgroup> op;
    auto ta = op.template get_left_input_cooperative_tensor<bfloat, bfloat, float>();
    auto tb = op.template get_right_input_cooperative_tensor<bfloat, bfloat, float>();
    auto tc = op.template get_destination_cooperative_tensor<
        metal::remove_addrspace_t<decltype(ta)>, metal::remove_addrspace_t<decltype(tb)>, float>();
    UNROLL for (ushort i = 0; i < 8; i++) ta[i] = a[i];
    UNROLL for (ushort i = 0; i < 16; i++)
    {
        tb[i] = b[i];
        tc[i] = acc.v[i];
    }
    op.run(ta, tb, tc);
    UNROLL for (ushort i = 0; i < 16; i++) acc.v[i] = tc[i];
}

/* The lane's 8 elements of the 16 x 16 at p, and of the next. Rows of pitch elements, 8-byte
 * aligned. */
template <uint N>
KFN void mm_fragment(THARRAY(bfloat, N, to), uint first, TPTR(const ushort) p, uint pitch,
                     uint lane)
{
    UNROLL for (uint h = 0; h < 2; h++)
    {
        const ushort4 w =
            *(TPTR(const ushort4))(p + (lay16_row(lane) + 8 * h) * pitch + lay16_col(lane));
        to[first + 4 * h] = as_type<bfloat>(w.x);
        to[first + 4 * h + 1] = as_type<bfloat>(w.y);
        to[first + 4 * h + 2] = as_type<bfloat>(w.z);
        to[first + 4 * h + 3] = as_type<bfloat>(w.w);
    }
}

KFN void mm_mac_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch, TPTR(const ushort) B,
                     uint b_pitch, uint lane)
{
    bfloat a[8], b[16];
    mm_fragment<8>(a, 0, A, a_pitch, lane);
    mm_fragment<16>(b, 0, B, b_pitch, lane);
    mm_fragment<16>(b, 8, B + 16 * b_pitch, b_pitch, lane);
    mm_16x32x16<true>(acc, a, b);
}

KFN void mm_mac_turned_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch,
                            TPTR(const ushort) B, uint b_pitch, uint lane)
{
    bfloat a[8], b[16];
    mm_fragment<8>(a, 0, A, a_pitch, lane);
    mm_fragment<16>(b, 0, B, b_pitch, lane);
    mm_fragment<16>(b, 8, B + 16, b_pitch, lane);
    mm_16x32x16<false>(acc, a, b);
}

#endif

/* ---- Weights ---- */

#if CALLA_RUNG >= 2

/* M5 converts and rounds in an instruction each. */
KFN uint mm_weight(uint q, float scale, float bias)
{
    return (uint)as_type<ushort>((bfloat)KFMA(scale, (float)(q & 15u), bias));
}

KFN uint4 mm_dequant8(uint w, uint sb)
{
    const float s = kx_bf16_load(sb & 0xffffu), b = kx_bf16_load(sb >> 16);
    uint4 o;
    o.x = mm_weight(w, s, b) | mm_weight(w >> 4, s, b) << 16;
    o.y = mm_weight(w >> 8, s, b) | mm_weight(w >> 12, s, b) << 16;
    o.z = mm_weight(w >> 16, s, b) | mm_weight(w >> 20, s, b) << 16;
    o.w = mm_weight(w >> 24, s, b) | mm_weight(w >> 28, s, b) << 16;
    return o;
}

#else

/* M1 and M2 take four cycles for a shift and for a conversion. So a code is masked where it stands,
 * becomes a number by being put below a large one, and its power of two is the scale's: all exact.
 */
KFN float mm_code(uint masked)
{
    return as_type<float>(0x4b000000u | masked) - 8388608.0f;
}

/* Two finite numbers as bf16, to nearest, ties to even. */
KFN uint mm_bf16x2(float lo, float hi)
{
    const uint a = as_type<uint>(lo), b = as_type<uint>(hi);
    const uint x = a + 0x7fffu + (a >> 16 & 1u), y = b + 0x7fffu + (b >> 16 & 1u);
    return x >> 16 | (y & 0xffff0000u);
}

KFN uint4 mm_dequant8(uint w, uint sb)
{
    const float s0 = kx_bf16_load(sb & 0xffffu), b = kx_bf16_load(sb >> 16);
    const float s1 = s0 * 0.0625f, s2 = s0 * 0.00390625f, s3 = s0 * 0.000244140625f;
    const uint h = w >> 16;
    uint4 o;
    o.x = mm_bf16x2(KFMA(s0, mm_code(w & 0xfu), b), KFMA(s1, mm_code(w & 0xf0u), b));
    o.y = mm_bf16x2(KFMA(s2, mm_code(w & 0xf00u), b), KFMA(s3, mm_code(w & 0xf000u), b));
    o.z = mm_bf16x2(KFMA(s0, mm_code(h & 0xfu), b), KFMA(s1, mm_code(h & 0xf0u), b));
    o.w = mm_bf16x2(KFMA(s2, mm_code(h & 0xf00u), b), KFMA(s3, mm_code(h & 0xf000u), b));
    return o;
}

#endif

#endif
