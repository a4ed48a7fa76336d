/* dialect_cuda.h - the kernel language (README.md) in CUDA C++, sm_80 and newer.
 *
 * Does:       every macro of README.md; PDL_WAIT and PDL_LAUNCH on sm_90 and newer.
 * Invariants: compiled with -fmad=false -ftz=true -prec-div=true -prec-sqrt=true, so that scalar
 *             arithmetic has the bits of the emulator and of the C references.
 *             No pointer is __restrict__ and no load is ld.global.nc: both say "constant while the
 *             kernel runs", which is false for a kernel that was started before its predecessor
 *             ended (PDL), and lets the compiler move the load above PDL_WAIT.
 *             ld16_stream is volatile: the loads stay in source order and behind PDL_WAIT.
 *             KERNEL_DYN_SMEM is for prim_*_cuda.h alone.
 */
#ifndef CALLA_KERNELS_DIALECT_CUDA_H
#define CALLA_KERNELS_DIALECT_CUDA_H

#include "kernels/args.h"

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;
static_assert(sizeof(ulong) == 8, "ulong has 64 bits");

/* ---- Kernels ---- */

#define KERNEL(name, threads, ...)                                                                 \
    extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#define KERNEL_END
#define KIN(i, T, name)  const T *name
#define KOUT(i, T, name) T *name
#define KARG(i, T, name) const __grid_constant__ T name
#define KCTX                                                                                       \
    const uint tid = threadIdx.x, lane = threadIdx.x & 31u, sg = threadIdx.x >> 5,                 \
               n_sg = blockDim.x >> 5, gx = blockIdx.x, gy = blockIdx.y, ngx = gridDim.x,          \
               ngy = gridDim.y

/* Dynamic threadgroup memory of a kernel of a native main loop, beyond the 32 KB of TG_ARRAY: the
 * driver reads the number from the module. At file scope. */
#define KERNEL_DYN_SMEM(name, bytes) extern "C" __device__ unsigned name##_dyn_smem = (bytes)

template <typename T> using kx_ref = T &;
#define DPTR(T)             T *
#define TPTR(T)             T *
#define THREF(T)            kx_ref<T>
#define ARGS(T)             T
#define ARGS_REF(T)         kx_ref<const T>
#define THARRAY(T, n, name) T(&name)[n]

#define TG_ARRAY(T, name, n) __shared__ __align__(16) T name[n]
#define TG_BARRIER()         __syncthreads()
#define TG_BARRIER_DEVICE()  __syncthreads()
#define SG_BARRIER()         __syncwarp()
#define UNROLL               _Pragma("unroll")

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PDL_WAIT()   asm volatile("griddepcontrol.wait;" ::: "memory")
#define PDL_LAUNCH() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define PDL_WAIT()   ((void)0)
#define PDL_LAUNCH() ((void)0)
#endif

/* ---- Simdgroup ---- */

#define KX_ALL 0xffffffffu

KFN float simd_xor_f32(float v, uint mask)
{
    return __shfl_xor_sync(KX_ALL, v, (int)mask);
}
KFN uint simd_xor_u32(uint v, uint mask)
{
    return __shfl_xor_sync(KX_ALL, v, (int)mask);
}
KFN float simd_down_f32(float v, uint d)
{
    return __shfl_down_sync(KX_ALL, v, d);
}
KFN uint simd_down_u32(uint v, uint d)
{
    return __shfl_down_sync(KX_ALL, v, d);
}
KFN float simd_up_f32(float v, uint d)
{
    return __shfl_up_sync(KX_ALL, v, d);
}
KFN uint simd_up_u32(uint v, uint d)
{
    return __shfl_up_sync(KX_ALL, v, d);
}
KFN float simd_lane_f32(float v, uint i)
{
    return __shfl_sync(KX_ALL, v, (int)i);
}
KFN uint simd_lane_u32(uint v, uint i)
{
    return __shfl_sync(KX_ALL, v, (int)i);
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
    return __reduce_min_sync(KX_ALL, v);
}
KFN uint simd_max_u32(uint v)
{
    return __reduce_max_sync(KX_ALL, v);
}
KFN uint simd_sum_u32(uint v)
{
    return __reduce_add_sync(KX_ALL, v);
}

KFN uint simd_prefix_u32(uint v)
{
    uint s = v;
    UNROLL for (uint d = 1; d < 32; d <<= 1)
    {
        const uint o = simd_up_u32(s, d);
        s += (threadIdx.x & 31u) >= d ? o : 0u;
    }
    return s - v;
}

KFN uint simd_ballot_u32(bool c)
{
    return __ballot_sync(KX_ALL, c ? 1 : 0);
}

/* ---- Memory ---- */

KFN uint4 ld16(const uint *p, uint i)
{
    return *(const uint4 *)(p + i);
}
KFN float4 ld16f(const float *p, uint i)
{
    return *(const float4 *)(p + i);
}
KFN uint4 ld16h(const ushort *p, uint i)
{
    return *(const uint4 *)(p + i);
}
KFN void st16(uint *p, uint i, uint4 v)
{
    *(uint4 *)(p + i) = v;
}
KFN void st16f(float *p, uint i, float4 v)
{
    *(float4 *)(p + i) = v;
}
KFN void st16h(ushort *p, uint i, uint4 v)
{
    *(uint4 *)(p + i) = v;
}

KFN uint4 ld16_stream(const uint *p, uint i)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p + i));
    return v;
}

#define tg_ld16  ld16
#define tg_ld16f ld16f
#define tg_ld16h ld16h
#define tg_st16  st16
#define tg_st16f st16f
#define tg_st16h st16h

KFN uint atomic_add_u32(uint *p, uint i, uint v)
{
    return atomicAdd(p + i, v);
}
KFN uint tg_atomic_add_u32(uint *p, uint i, uint v)
{
    return atomicAdd(p + i, v);
}

KFN void st_shared_u32(uint *p, uint i, uint v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p + i), "r"(v) : "memory");
}

KFN uint ld_shared_u32(const uint *p, uint i)
{
    uint v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p + i) : "memory");
    return v;
}

KFN void st_shared_f32(float *p, uint i, float v)
{
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p + i), "f"(v) : "memory");
}

KFN float ld_shared_f32(const float *p, uint i)
{
    float v;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p + i) : "memory");
    return v;
}

KFN void device_fence()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* ---- Arithmetic ---- */

#ifndef kmin
#define kmin(a, b) ((a) < (b) ? (a) : (b))
#define kmax(a, b) ((a) > (b) ? (a) : (b))
#endif

#endif
