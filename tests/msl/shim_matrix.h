/* shim_matrix.h - matrix units as shim.h has the rest: declared, with address spaces, by language
 * version; only what our texts use. */
#ifndef CALLA_TESTS_MSL_SHIM_MATRIX_H
#define CALLA_TESTS_MSL_SHIM_MATRIX_H

namespace metal
{

template <typename T, int COLS, int ROWS> struct simdgroup_matrix {
    static_assert(COLS == 8 && ROWS == 8, "a simdgroup_matrix is 8 x 8");
    typedef T elements __attribute__((ext_vector_type(2)));
    elements &thread_elements();
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
void simdgroup_multiply_accumulate(simdgroup_float8x8 &, simdgroup_float8x8, simdgroup_float8x8,
                                   simdgroup_float8x8);

#if __METAL_VERSION__ >= 400 && defined(__HAVE_TENSOR__)

template <typename T> struct msl_plain_type {
    typedef T type;
};
template <typename T> struct msl_plain_type<device T> {
    typedef T type;
};
template <typename T> struct msl_plain_type<threadgroup T> {
    typedef T type;
};
template <typename T> using remove_addrspace_t = typename msl_plain_type<T>::type;

struct execution_simdgroup {
};
struct tensor_inline {
};
struct tensor_offset {
};
struct uint4b_format;

template <typename I, int N> struct dextents {
    static_assert(N == 2, "tensors of two dimensions");
    dextents(I, I);
};

template <typename T, typename X, typename KIND, typename... TAGS> struct tensor {
    tensor(T *, X);
    tensor<T, X, KIND, tensor_offset> slice(int, int);
};
template <typename X, typename KIND, typename... TAGS>
struct tensor<device uint4b_format, X, KIND, TAGS...> {
    tensor(device uchar *, X);
    tensor<device uint4b_format, X, KIND, tensor_offset> slice(int, int);
};

#endif

} /* namespace metal */

#if __METAL_VERSION__ >= 400 && defined(__HAVE_TENSOR__)

namespace mpp
{
namespace tensor_ops
{

/* Class and function: see shim_tensor_run.h. */
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
};
constexpr ulong matmul2d_descriptor(int m, int n, int k, bool left_turned, bool right_turned,
                                    bool relaxed, enum matmul2d_descriptor::mode mode)
{
    return (ulong)m | (ulong)n << 12 | (ulong)k << 24 | (ulong)left_turned << 40 |
           (ulong)right_turned << 41 | (ulong)relaxed << 42 | (ulong)mode << 43;
}

template <typename T, typename A, typename B> struct msl_cooperative {
    T &operator[](ushort);
};

template <ulong WHAT, typename SCOPE> struct matmul2d {
    template <typename A, typename B, typename C>
    msl_cooperative<A, B, C> get_left_input_cooperative_tensor();
    template <typename A, typename B, typename C>
    msl_cooperative<B, A, C> get_right_input_cooperative_tensor();
    template <typename A, typename B, typename C>
    msl_cooperative<C, A, B> get_destination_cooperative_tensor();
    /* Not const, and in the thread's space. */
    template <typename A, typename B> void run(A &, B &, msl_cooperative<float, A, B> &);
};

} /* namespace tensor_ops */
} /* namespace mpp */

#endif
#endif
