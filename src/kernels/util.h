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

/* y[group] = sum of the group's words of w modulo 2^32: rounds of 4,096 words, the groups of a
 * round side by side; w [4096 ngx n_rounds], y [ngx]. Bytes 16384 ngx n_rounds. The ceiling of
 * kernels that read weights: the first loads are in flight before PDL_WAIT, those of the next round
 * before a round's sums. Without rounds: the cost of a stage. Reference: check_driver.c. */
KERNEL(util_read, 256, KIN(0, uint, w), KOUT(1, uint, y), KARG(2, util_read_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 8);
    uint at = gx * 4096u + tid * 4u;
    uint4 v[4];
    uint s = 0;
    if (a.n_rounds != 0u) {
        UNROLL for (uint u = 0; u < 4; u++) v[u] = ld16_stream(w, at + u * 1024u);
    }
    PDL_LAUNCH();
    PDL_WAIT();
    for (uint r = 0; r < a.n_rounds; r++) {
        uint4 next[4];
        at += ngx * 4096u;
        UNROLL for (uint u = 0; u < 4; u++)
        {
            next[u] = v[u];
            if (r + 1u < a.n_rounds) next[u] = ld16_stream(w, at + u * 1024u);
        }
        UNROLL for (uint u = 0; u < 4; u++)
        {
            s += (v[u].x + v[u].y) + (v[u].z + v[u].w);
            v[u] = next[u];
        }
    }
    s = simd_sum_u32(s);
    if (lane == 0) part[sg] = s;
    TG_BARRIER();
    if (tid == 0) {
        uint sum = 0;
        for (uint i = 0; i < n_sg; i++)
            sum += part[i];
        y[gx] = sum;
    }
}
KERNEL_END

#endif
