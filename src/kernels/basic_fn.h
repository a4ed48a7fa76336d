/* basic_fn.h - device functions that kernels of several files share: the mean square of a row, the
 * order of floats, the choice of experts.
 */
#ifndef CALLA_KERNELS_BASIC_FN_H
#define CALLA_KERNELS_BASIC_FN_H

#include "kernels/dialect.h"

/* The mean square of a row in its pinned order: float4 number i belongs to partial (i / 32) % 4 and
 * lane i % 32; a lane adds ascending, then the xor tree, then ((p0 + p1) + (p2 + p3)). One
 * partial: */
KFN float rms_partial(DPTR(const float) x, uint n, uint p, uint lane)
{
    float s = 0.0f;
    for (uint i = 4 * (32 * p + lane); i < n; i += 512) {
        const float4 v = ld16f(x, i);
        s = KFMA(v.x, v.x, s);
        s = KFMA(v.y, v.y, s);
        s = KFMA(v.z, v.z, s);
        s = KFMA(v.w, v.w, s);
    }
    return simd_sum_f32(s);
}

KFN float rms_inverse(float p0, float p1, float p2, float p3, uint n, float eps)
{
    return kx_rsqrt(((p0 + p1) + (p2 + p3)) / (float)n + eps);
}

/* Unsigned integers in the order of the floats; +0 and -0 are one. */
KFN uint order_key(float x)
{
    const uint u = KBITS(x + 0.0f);
    return (u & 0x80000000u) != 0u ? ~u : (u | 0x80000000u);
}

/* A lane's logits: expert 32 j + lane in v[j], -1e30 where there is none. */
template <uint J> struct route_logits {
    float v[J];
};

/* One simdgroup: ids [n_used] of the largest logits, falling, ties to the lower id; weights
 * [n_used + 1]: their softmax, then sigmoid(shared). A round is two reductions of integers. */
template <uint J>
KFN void route_pick(THREF(const route_logits<J>) l, float shared, uint n_used, uint lane,
                    DPTR(uint) ids, DPTR(float) weights)
{
    uint key[J];
    UNROLL for (uint j = 0; j < J; j++) key[j] = order_key(l.v[j]);
    uint my_id = 0, my_key = 0;
    for (uint r = 0; r < n_used; r++) {
        uint best = key[0], best_j = 0;
        UNROLL for (uint j = 1; j < J; j++)
        {
            best_j = key[j] > best ? j : best_j;
            best = key[j] > best ? key[j] : best;
        }
        const uint top = simd_max_u32(best);
        const uint id = simd_min_u32(best == top ? 32 * best_j + lane : 0xffffffffu);
        UNROLL for (uint j = 0; j < J; j++) key[j] = id == 32 * j + lane ? 0u : key[j];
        my_id = lane == r ? id : my_id;
        my_key = lane == r ? top : my_key;
    }
    /* the key is the logit again: 0 has become +0, which exp does not see */
    const float mine = KFLOAT((my_key & 0x80000000u) != 0u ? (my_key & 0x7fffffffu) : ~my_key);
    const float largest = simd_lane_f32(mine, 0);
    const float e = lane < n_used ? kx_exp(mine - largest) : 0.0f;
    const float sum = simd_sum_f32(e);
    if (lane < n_used) {
        ids[lane] = my_id;
        weights[lane] = e / sum;
    }
    if (lane == 0) weights[n_used] = kx_sigmoid(shared);
}

#endif
