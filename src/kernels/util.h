/* util.h - device code: filling and copying words. */
#ifndef CALLA_KERNELS_UTIL_H
#define CALLA_KERNELS_UTIL_H

#include "kernels/args_util.h"
#include "kernels/dialect.h"

/* y[i] = value, i < n. y [n]. Grid (ceil(n / 1024)): four words a thread, so that no lane of a full
 * group idles. Bytes 4 n. Needs n % 4 == 0. */
KERNEL(util_fill, 256, KOUT(0, uint, y), KARG(1, util_fill_args, a))
{
    KCTX;
    PDL_WAIT();
    const uint i = (gx * 256u + tid) * 4u;
    uint4 v;
    v.x = v.y = v.z = v.w = a.value;
    if (i < a.n) st16(y, i, v);
}
KERNEL_END

/* y[i] = x[i], i < n. x, y [n]. Grid (ceil(n / 1024)). Bytes 8 n. Needs n % 4 == 0. */
KERNEL(util_copy, 256, KIN(0, uint, x), KOUT(1, uint, y), KARG(2, util_copy_args, a))
{
    KCTX;
    PDL_WAIT();
    const uint i = (gx * 256u + tid) * 4u;
    if (i < a.n) st16(y, i, ld16_stream(x, i));
}
KERNEL_END

/* y[group] = sum of the group's 256 elements of x, in the pinned order: the xor tree in a
 * simdgroup, then simdgroups ascending. x [256 ngx], y [ngx]. Bytes 1028 ngx. Reference:
 * check_util.c. */
KERNEL(util_sum, 256, KIN(0, float, x), KOUT(1, float, y), KARG(2, util_sum_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 8);
    PDL_WAIT();
    const float s = simd_sum_f32(x[gx * 256u + tid] * a.scale);
    if (lane == 0) part[sg] = s;
    TG_BARRIER();
    if (tid == 0) {
        float sum = 0.0f;
        for (uint i = 0; i < n_sg; i++)
            sum += part[i];
        y[gx] = sum;
    }
}
KERNEL_END

#endif
