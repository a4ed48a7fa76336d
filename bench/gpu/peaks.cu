/* peaks.cu - loops that do nothing but matrix products, for the ceilings of bench_gpu.c. */
#include "kernels/dialect.h"

KFN uint hash(uint x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Two bf16 of magnitude 2^-2 .. 2^1 and random signs: power, and with it the clock, as for data. */
KFN uint random_pair(uint x)
{
    const uint h = hash(x);
    return (h & 0x81ff81ffu) | 0x3e003e00u;
}

/* Products m16n8k16 from registers; 8 warps a group, 32 products of 4096 operations each a round. */
extern "C" __global__ void __launch_bounds__(256) peak_mma_sync(float *out, uint n_rounds)
{
    const uint tid = threadIdx.x;
    uint a[4][4], b[8][2];
    float c[4][8][4];
    UNROLL for (uint i = 0; i < 4; i++)
        UNROLL for (uint j = 0; j < 4; j++) a[i][j] = random_pair(tid * 64u + i * 4u + j);
    UNROLL for (uint i = 0; i < 8; i++)
        UNROLL for (uint j = 0; j < 2; j++) b[i][j] = random_pair(tid * 64u + 32u + i * 2u + j);
    UNROLL for (uint i = 0; i < 4; i++)
        UNROLL for (uint j = 0; j < 8; j++)
            UNROLL for (uint k = 0; k < 4; k++) c[i][j][k] = 0.0f;
    for (uint r = 0; r < n_rounds; r++) {
        UNROLL for (uint i = 0; i < 4; i++)
            UNROLL for (uint j = 0; j < 8; j++)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(c[i][j][0]), "+f"(c[i][j][1]), "+f"(c[i][j][2]),
                               "+f"(c[i][j][3])
                             : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]),
                               "r"(b[j][0]), "r"(b[j][1]));
    }
    float s = 0.0f;
    UNROLL for (uint i = 0; i < 4; i++)
        UNROLL for (uint j = 0; j < 8; j++)
            UNROLL for (uint k = 0; k < 4; k++) s += c[i][j][k];
    out[blockIdx.x * 256u + tid] = s;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* K-major tile of 64 bf16 a row, 128-byte swizzle: 8 rows are 1,024 bytes. */
KFN ulong descriptor(const uint *p)
{
    const ulong at = (ulong)__cvta_generic_to_shared(p);
    return ((at & 0x3ffffu) >> 4) | (1ul << 16) | (64ul << 32) | (1ul << 62);
}

#define ACC8(i)                                                                                    \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]),     \
        "+f"(c[i + 6]), "+f"(c[i + 7])

KFN void wgmma_256(float (&c)[128], ulong da, ulong db)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, 1, 1, 1, 0, 0;"
        : ACC8(0),
          ACC8(8),
          ACC8(16),
          ACC8(24),
          ACC8(32),
          ACC8(40),
          ACC8(48),
          ACC8(56),
          ACC8(64),
          ACC8(72),
          ACC8(80),
          ACC8(88),
          ACC8(96),
          ACC8(104),
          ACC8(112),
          ACC8(120)
        : "l"(da), "l"(db));
}
#endif

/* Products m64n256k16 from shared memory; two groups of 4 warps, 16 products of 524288 operations
 * each a round. sm_90a only. */
extern "C" __global__ void __launch_bounds__(256, 1) peak_wgmma(float *out, uint n_rounds)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ __align__(1024) uint tile[(2 * 64 + 256) * 32]; /* A of each group, then B */
    const uint tid = threadIdx.x, group = tid >> 7;
    float c[128];
    for (uint i = tid; i < (2 * 64 + 256) * 32; i += 256)
        tile[i] = random_pair(i);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    UNROLL for (uint i = 0; i < 128; i++) c[i] = 0.0f;
    const ulong da = descriptor(tile + group * 64u * 32u), db = descriptor(tile + 128u * 32u);
    for (uint r = 0; r < n_rounds; r++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        UNROLL for (uint k = 0; k < 16; k++)
            wgmma_256(c, da + 2u * (k & 3u), db + 2u * (k & 3u));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float s = 0.0f;
    UNROLL for (uint i = 0; i < 128; i++) s += c[i];
    out[blockIdx.x * 256u + tid] = s;
#else
    if (n_rounds == 0xffffffffu) out[0] = 0.0f;
#endif
}
