/* shim.h - Metal Shading Language in the eyes of clang++, for checking alone: nothing can run.
 *
 * Does:       address spaces are Clang's, which no cast or call mixes; every built-in function that
 *             our texts may use is declared, under the language version that has it, and nothing
 *             else is: what is not declared here does not compile.
 * Invariants: -x c++, -std=c++14 up to MSL 3.2 and c++17 from 4.0, -D__METAL_VERSION__=310 ...
 *             thread is empty: that the word stands at every reference is the lint's business, as
 *             are attributes and pragmas. half and bfloat are macros, as they are keywords there.
 */
#ifndef CALLA_TESTS_MSL_SHIM_H
#define CALLA_TESTS_MSL_SHIM_H

typedef __SIZE_TYPE__ size_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef int int32_t;
typedef unsigned int uint32_t;

#define MSL_VECTORS(T)                                                                             \
    typedef T T##2 __attribute__((ext_vector_type(2)));                                            \
    typedef T T##3 __attribute__((ext_vector_type(3)));                                            \
    typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(float)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(uchar)
#undef MSL_VECTORS
#define half __fp16
#if __METAL_VERSION__ >= 310
/* A type of its own, with what Metal's has: conversion from and to float. */
struct msl_bfloat {
    unsigned short bits;
    msl_bfloat() = default;
    explicit msl_bfloat(float);
    operator float() const;
};
#define bfloat msl_bfloat
#endif

/* The bits of a value as another type of the same size. */
template <typename T, typename F> T msl_as_type(F v)
{
    static_assert(sizeof(T) == sizeof(F), "as_type between sizes");
    T to;
    __builtin_memcpy(&to, &v, sizeof to);
    return to;
}
#define as_type msl_as_type

#define device      __attribute__((address_space(1)))
#define constant    const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread

/* Clang has no automatic variable with an address space. */
#define TG_ARRAY(T, name, n)                                                                       \
    static threadgroup uint4 name##_tg[((n) * sizeof(T) + 15) / 16];                               \
    threadgroup T *const name = (threadgroup T *)name##_tg
#define UNROLL _Pragma("clang loop unroll(full)")

namespace metal
{

float fma(float, float, float);
namespace precise
{
float sqrt(float);
}

enum class mem_flags : unsigned { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b)
{
    return mem_flags((unsigned)a | (unsigned)b);
}
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

/* ---- Simdgroup functions: for 32-bit values ---- */

#define MSL_SIMD(T)                                                                                \
    T simd_shuffle(T, ushort);                                                                     \
    T simd_shuffle_xor(T, ushort);                                                                 \
    T simd_sum(T);                                                                                 \
    T simd_min(T);                                                                                 \
    T simd_max(T);                                                                                 \
    T simd_prefix_exclusive_sum(T);
MSL_SIMD(float)
MSL_SIMD(uint)
#undef MSL_SIMD
struct simd_vote {
    typedef ulong vote_t;
    explicit operator vote_t() const;
};
simd_vote simd_ballot(bool);

/* ---- Atomics ---- */

enum memory_order { memory_order_relaxed, memory_order_seq_cst };
struct atomic_uint {
    uint msl_value; /* not to be touched: it has another name there, or none */
};
uint atomic_fetch_add_explicit(volatile device atomic_uint *, uint, memory_order);
uint atomic_fetch_add_explicit(volatile threadgroup atomic_uint *, uint, memory_order);
uint atomic_load_explicit(const volatile device atomic_uint *, memory_order);
void atomic_store_explicit(volatile device atomic_uint *, uint, memory_order);
#if __METAL_VERSION__ >= 320
enum thread_scope { thread_scope_threadgroup, thread_scope_device };
void atomic_thread_fence(mem_flags, memory_order, thread_scope);
#endif

} /* namespace metal */

#include "shim_matrix.h"

#endif
