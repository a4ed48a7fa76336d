/* shim_matrix_run.h - matrix units on the emulator, for shim_run.h: what our texts use of them.
 *
 * Does:       simdgroup_matrix 8 x 8; matmul2d with cooperative tensors, and over tensors in
 * memory. The contract is enforced where Metal would do anything: uniform arguments, all lanes of a
 * simdgroup, ranges, alignment, types and shapes that a version knows; fresh matrices and tensors
 * hold NaN, and so do results beyond a tensor's extents. Which element a lane holds is written here
 * once more, the other way round (element to lane), from what programs in use rely on: Apple does
 * not document it. Invariants: included by shim_run.h before the address-space words become empty.
 */
#ifndef CALLA_TESTS_MSL_SHIM_MATRIX_RUN_H
#define CALLA_TESTS_MSL_SHIM_MATRIX_RUN_H

struct alignas(8) ushort4 {
    ushort x, y, z, w;
};

struct msl_bfloat {
    ushort bits;
    msl_bfloat() = default;
    explicit msl_bfloat(float x)
    {
        const uint u = msl_as_type<uint>(x);
        const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
        bits = (ushort)(is_nan ? (u >> 16) | 64u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
    operator float() const
    {
        return msl_as_type<float>((uint)bits << 16);
    }
};
#define bfloat msl_bfloat

#define MSL_NAN __builtin_nanf("")

/* The lane that holds element (row, col) of an 8 x 8 matrix, or of a 16 x 16 fragment with
 * row % 8 and col / 2: two neighbours there, four here. */
static inline uint msl_holder(uint row, uint col)
{
    if (msl_plant == MSL_PLANT_LANES_8) return 16 * (col / 4) + 2 * (col % 4) + row;
    return 16 * (row / 4) + 2 * (row % 4) + 8 * (col / 4) + col / 2 % 2;
}

/* ---- simdgroup_matrix ---- */

namespace metal
{

template <typename T> struct msl_pair {
    T v[2];
    T &operator[](uint i)
    {
        if (i > 1) simt_violation(simt_self, "thread_elements()[%u] of two", i);
        return v[i];
    }
};

template <typename T, int COLS, int ROWS> struct simdgroup_matrix {
    static_assert(COLS == 8 && ROWS == 8, "a simdgroup_matrix is 8 x 8");
    msl_pair<T> elements = {{(T)MSL_NAN, (T)MSL_NAN}};
    msl_pair<T> &thread_elements()
    {
        return elements;
    }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

struct msl_mac {
    simdgroup_float8x8 *d, a, b, c;
};

static inline void msl_mac_all(void *const *args)
{
    float m[3][8][8]; /* a, b, c */
    for (uint row = 0; row < 8; row++)
        for (uint col = 0; col < 8; col++) {
            const msl_mac *x = static_cast<const msl_mac *>(args[msl_holder(row, col)]);
            m[0][row][col] = x->a.elements.v[col % 2];
            m[1][row][col] = x->b.elements.v[col % 2];
            m[2][row][col] = x->c.elements.v[col % 2];
        }
    for (uint row = 0; row < 8; row++)
        for (uint col = 0; col < 8; col++) {
            float s = m[2][row][col];
            for (uint k = 0; k < 8; k++)
                s = __builtin_fmaf(m[0][row][k], m[1][k][col], s);
            msl_mac *x = static_cast<msl_mac *>(args[msl_holder(row, col)]);
            x->d->elements.v[col % 2] = s;
        }
}

/* d = a b + c */
static inline void msl_simdgroup_mac(simdgroup_float8x8 &d, const simdgroup_float8x8 &a,
                                     const simdgroup_float8x8 &b, const simdgroup_float8x8 &c,
                                     const char *site)
{
    msl_mac x = {&d, a, b, c};
    msl_collective(&x, site, msl_mac_all);
}
#define simdgroup_multiply_accumulate(d, a, b, c)                                                  \
    msl_simdgroup_mac(d, a, b, c, MSL_SITE("simdgroup_multiply_accumulate"))

} /* namespace metal */

#if __METAL_VERSION__ >= 400 && defined(__HAVE_TENSOR__)
#include "shim_tensor_run.h"
#endif

#endif
