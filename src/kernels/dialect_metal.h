/* dialect_metal.h - the kernel language (README.md) in Metal Shading Language 3.1 and newer.
 *
 * Does:       every macro of README.md. The position of a thread comes as parameters that KERNEL
 *             adds; argument n of a kernel is buffer n.
 * Invariants: kernels.metal has included Apple's headers and turned contraction off.
 *             Before MSL 3.2 there is no fence between groups: what they exchange goes through
 *             relaxed atomics, and TG_BARRIER_DEVICE() stands on both sides of the counter.
 *             Functions of Metal are written with metal::, so that no name of ours meets one.
 *             KX_SHIM: compiled as C++ by tests/msl, which has its own TG_ARRAY and UNROLL.
 */
#ifndef CALLA_KERNELS_DIALECT_METAL_H
#define CALLA_KERNELS_DIALECT_METAL_H

#include "kernels/args.h"

static_assert(sizeof(ulong) == 8, "ulong has 64 bits");

/* ---- Kernels ---- */

#define KERNEL(name, threads, ...)                                                                 \
    [[kernel, max_total_threads_per_threadgroup(threads)]] void name(                              \
        __VA_ARGS__, uint tid [[thread_index_in_threadgroup]],                                     \
        uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]],       \
        uint n_sg [[simdgroups_per_threadgroup]], uint3 kx_at [[threadgroup_position_in_grid]],    \
        uint3 kx_of [[threadgroups_per_grid]])
#define KERNEL_END
#define KIN(i, T, name)  device const T *name [[buffer(i)]]
#define KOUT(i, T, name) device T *name [[buffer(i)]]
#define KARG(i, T, name) constant T &name [[buffer(i)]]
#define KCTX                                                                                       \
    const uint gx = kx_at.x, gy = kx_at.y, ngx = kx_of.x, ngy = kx_of.y;                           \
    (void)gx, (void)gy, (void)ngx, (void)ngy

#define DPTR(T)             device T *
#define TPTR(T)             threadgroup T *
#define THREF(T)            thread T &
#define ARGS(T)             constant T &
#define ARGS_REF(T)         constant T &
#define THARRAY(T, n, name) thread T(&name)[n]

#if !defined(KX_SHIM)
/* Of uint4: the alignment that tg_ld16 needs. */
#define TG_ARRAY(T, name, n)                                                                       \
    threadgroup uint4 name##_tg[((n) * sizeof(T) + 15) / 16];                                      \
    threadgroup T *const name = (threadgroup T *)name##_tg
#define UNROLL _Pragma("clang loop unroll(full)")
#endif

#define TG_BARRIER() metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup)
#define TG_BARRIER_DEVICE()                                                                        \
    metal::threadgroup_barrier(metal::mem_flags::mem_device | metal::mem_flags::mem_threadgroup)
#define SG_BARRIER() metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup)

#define PDL_WAIT()   ((void)0)
#define PDL_LAUNCH() ((void)0)

/* ---- Simdgroup ---- */

KFN float simd_xor_f32(float v, uint mask)
{
    return metal::simd_shuffle_xor(v, (ushort)mask);
}
KFN uint simd_xor_u32(uint v, uint mask)
{
    return metal::simd_shuffle_xor(v, (ushort)mask);
}

/* Metal leaves undefined what comes from outside the simdgroup: such lanes ask for their own. */
KFN uint kx_lane()
{
    return metal::simd_prefix_exclusive_sum(1u);
}
KFN float simd_lane_f32(float v, uint i)
{
    return metal::simd_shuffle(v, (ushort)i);
}
KFN uint simd_lane_u32(uint v, uint i)
{
    return metal::simd_shuffle(v, (ushort)i);
}
KFN float simd_down_f32(float v, uint d)
{
    const uint l = kx_lane();
    return simd_lane_f32(v, l + d < 32u ? l + d : l);
}
KFN uint simd_down_u32(uint v, uint d)
{
    const uint l = kx_lane();
    return simd_lane_u32(v, l + d < 32u ? l + d : l);
}
KFN float simd_up_f32(float v, uint d)
{
    const uint l = kx_lane();
    return simd_lane_f32(v, l >= d ? l - d : l);
}
KFN uint simd_up_u32(uint v, uint d)
{
    const uint l = kx_lane();
    return simd_lane_u32(v, l >= d ? l - d : l);
}

KFN float simd_sum_f32(float v)
{
    UNROLL for (uint m = 16; m != 0; m >>= 1) v = v + simd_xor_f32(v, m);
    return v;
}

KFN float simd_max_f32(float v)
{
    UNROLL for (uint m = 16; m != 0; m >>= 1)
    {
        const float o = simd_xor_f32(v, m);
        v = v > o ? v : o;
    }
    return v;
}

/* The order of integer operations does not show. */
KFN uint simd_min_u32(uint v)
{
    return metal::simd_min(v);
}
KFN uint simd_max_u32(uint v)
{
    return metal::simd_max(v);
}
KFN uint simd_sum_u32(uint v)
{
    return metal::simd_sum(v);
}
KFN uint simd_prefix_u32(uint v)
{
    return metal::simd_prefix_exclusive_sum(v);
}
KFN uint simd_ballot_u32(bool c)
{
    return (uint)(metal::simd_vote::vote_t)metal::simd_ballot(c);
}

/* ---- Memory ---- */

KFN uint4 ld16(device const uint *p, uint i)
{
    return *(device const uint4 *)(p + i);
}
KFN uint4 ld16_stream(device const uint *p, uint i)
{
    return *(device const uint4 *)(p + i);
}
KFN float4 ld16f(device const float *p, uint i)
{
    return *(device const float4 *)(p + i);
}
KFN uint4 ld16h(device const ushort *p, uint i)
{
    return *(device const uint4 *)(p + i);
}
KFN void st16(device uint *p, uint i, uint4 v)
{
    *(device uint4 *)(p + i) = v;
}
KFN void st16f(device float *p, uint i, float4 v)
{
    *(device float4 *)(p + i) = v;
}
KFN void st16h(device ushort *p, uint i, uint4 v)
{
    *(device uint4 *)(p + i) = v;
}

KFN uint4 tg_ld16(threadgroup const uint *p, uint i)
{
    return *(threadgroup const uint4 *)(p + i);
}
KFN float4 tg_ld16f(threadgroup const float *p, uint i)
{
    return *(threadgroup const float4 *)(p + i);
}
KFN uint4 tg_ld16h(threadgroup const ushort *p, uint i)
{
    return *(threadgroup const uint4 *)(p + i);
}
KFN void tg_st16(threadgroup uint *p, uint i, uint4 v)
{
    *(threadgroup uint4 *)(p + i) = v;
}
KFN void tg_st16f(threadgroup float *p, uint i, float4 v)
{
    *(threadgroup float4 *)(p + i) = v;
}
KFN void tg_st16h(threadgroup ushort *p, uint i, uint4 v)
{
    *(threadgroup uint4 *)(p + i) = v;
}

KFN uint atomic_add_u32(device uint *p, uint i, uint v)
{
    return metal::atomic_fetch_add_explicit((device atomic_uint *)(p + i), v,
                                            metal::memory_order_relaxed);
}
KFN uint tg_atomic_add_u32(threadgroup uint *p, uint i, uint v)
{
    return metal::atomic_fetch_add_explicit((threadgroup atomic_uint *)(p + i), v,
                                            metal::memory_order_relaxed);
}

KFN void st_shared_u32(device uint *p, uint i, uint v)
{
    metal::atomic_store_explicit((device atomic_uint *)(p + i), v, metal::memory_order_relaxed);
}
KFN uint ld_shared_u32(device const uint *p, uint i)
{
    return metal::atomic_load_explicit((device atomic_uint *)(p + i), metal::memory_order_relaxed);
}
KFN void st_shared_f32(device float *p, uint i, float v)
{
    metal::atomic_store_explicit((device atomic_uint *)(p + i), as_type<uint>(v),
                                 metal::memory_order_relaxed);
}
KFN float ld_shared_f32(device const float *p, uint i)
{
    return as_type<float>(
        metal::atomic_load_explicit((device atomic_uint *)(p + i), metal::memory_order_relaxed));
}

KFN void device_fence()
{
#if __METAL_VERSION__ >= 320
    metal::atomic_thread_fence(metal::mem_flags::mem_device, metal::memory_order_seq_cst,
                               metal::thread_scope_device);
#endif
}

#endif
