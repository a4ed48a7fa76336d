// Kernels that are wrong on purpose: the emulator must catch each (check_simt.c). Not in the program.
#define SIMT_CHECK 1
#include "kernels/args_util.h"
#include "kernels/dialect.h"

#include "simt_wrong.h"

/* Nothing wrong; the cases give it wrong bindings. */
KERNEL(wrong_copy, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    if (tid < a.n) y[gx * 32u + tid] = x[gx * 32u + tid];
}
KERNEL_END

KERNEL(wrong_update, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    if (tid < a.n) y[gx * 32u + tid] += x[gx * 32u + tid];
}
KERNEL_END

KERNEL(wrong_divergent_simd, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    uint v = x[tid];
    if (lane < a.n) v = simd_sum_u32(v);
    y[tid] = v;
}
KERNEL_END

KERNEL(wrong_two_sites, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    uint v = x[tid];
    if (lane < a.n)
        v = simd_sum_u32(v);
    else
        v = simd_max_u32(v);
    y[tid] = v;
}
KERNEL_END

KERNEL(wrong_divergent_barrier, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    if (sg < a.n) TG_BARRIER();
    y[tid] = x[tid];
}
KERNEL_END

KERNEL(wrong_two_barriers, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    if (sg < a.n)
        TG_BARRIER();
    else
        TG_BARRIER();
    y[tid] = x[tid];
}
KERNEL_END

/* mode 0: right. 1: no barrier. 2: SG_BARRIER where the group's is needed. */
KERNEL(wrong_tg_race, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 64);
    part[tid] = 0u;
    TG_BARRIER();
    part[tid] = x[tid];
    if (a.n == 0) TG_BARRIER();
    if (a.n == 2) SG_BARRIER();
    y[tid] = part[63u - tid];
}
KERNEL_END

/* Neighbours within a simdgroup: SG_BARRIER is enough. 1: none. */
KERNEL(wrong_sg_race, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 64);
    part[tid] = 0u;
    TG_BARRIER();
    part[tid] = x[tid];
    if (a.n == 0) SG_BARRIER();
    y[tid] = part[tid ^ 1u];
}
KERNEL_END

/* Read, then written by others. 0: with a barrier. */
KERNEL(wrong_tg_war, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 64);
    part[tid] = x[tid];
    TG_BARRIER();
    const uint v = part[0];
    if (a.n == 0) TG_BARRIER();
    if (tid == 40u) part[0] = 7u;
    y[tid] = v;
}
KERNEL_END

/* Exchange through device memory. 0: with its barrier; 1: without; 2 and 3: SG_BARRIER and TG_BARRIER
 * do not order it. */
KERNEL(wrong_device_race, 64, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    y[tid] = 0u;
    TG_BARRIER();
    y[tid] = x[tid];
    if (a.n == 0) TG_BARRIER_DEVICE();
    if (a.n == 2) SG_BARRIER();
    if (a.n == 3) TG_BARRIER();
    const uint v = y[tid ^ 1u];
    TG_BARRIER();
    y[tid] = v;
}
KERNEL_END

/* Groups meet in y[0]. 0: by atomics; 1: both write; 2: one reads what another wrote. */
KERNEL(wrong_groups, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    if (tid == 0) {
        if (a.n == 0) (void)atomic_add_u32(y, 0, x[gx]);
        if (a.n == 1) y[0] = x[gx];
        if (a.n == 2) y[1u + gx] = x[gx] + y[1u + (gx ^ 1u)];
    }
}
KERNEL_END

/* The last group to arrive adds up. y: counter, sum, parts. 0: right; 1: parts stored plainly. */
KERNEL(wrong_last_arriver, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    if (tid == 0) {
        if (a.n == 0)
            st_shared_u32(y, 2u + gx, x[gx]);
        else
            y[2u + gx] = x[gx];
        device_fence();
        if (atomic_add_u32(y, 0, 1u) == ngx - 1u) {
            device_fence();
            uint sum = 0;
            for (uint i = 0; i < ngx; i++)
                sum += ld_shared_u32(y, 2u + i);
            y[1] = sum;
        }
    }
}
KERNEL_END

/* 1: an index beyond the binding; 2: before it; 3: misaligned 16 bytes. */
KERNEL(wrong_bounds, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    uint v = x[tid];
    if (a.n == 1 && tid == 5) v = x[32];
    if (a.n == 2 && tid == 5) v = (x - 1)[0];
    if (a.n == 3 && tid == 5) v = ld16(x, 2).x;
    y[tid] = v;
}
KERNEL_END

/* 1: beyond the array; 2: misaligned; 3: never written. */
KERNEL(wrong_tg_bounds, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    TG_ARRAY(uint, before, 4);
    TG_ARRAY(uint, part, 32);
    TG_ARRAY(uint, after, 4);
    if (tid < 4) before[tid] = after[tid] = 1u;
    part[tid] = x[tid];
    TG_BARRIER();
    uint v = part[31u - tid];
    if (a.n == 1 && tid == 5) v = part[32];
    if (a.n == 2 && tid == 5) v = tg_ld16(part, 2).x;
    y[tid] = v;
}
KERNEL_END

KERNEL(wrong_tg_unwritten, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 32);
    if (tid < a.n) part[tid] = x[tid];
    TG_BARRIER();
    y[tid] = part[tid];
}
KERNEL_END

KERNEL(wrong_tg_big, 32, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, wrong_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 8192);
    TG_ARRAY(uint, more, 4);
    part[tid] = x[tid];
    more[tid & 3u] = a.n;
    y[tid] = part[tid];
}
KERNEL_END

extern "C" {
extern const simt_kernel simt_wrong_kernels[];
const simt_kernel simt_wrong_kernels[] = {
#define K(name, threads) SIMT_ROW(name, threads, 2)
    WRONG_KERNELS(K)
#undef K
        {nullptr, 0, 0, 0, nullptr, nullptr}};
}
