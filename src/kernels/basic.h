/* basic.h - embedding, norms, routing, argmax. References: ref_basic.h. */
#include "kernels/args_basic.h"
#include "kernels/basic_fn.h"

/* ---- Embedding ---- */

/* basic_embed: x[t] = row tok[t].token of the 4-bit matrix; rope[t] = cos, then sin of
 * pos * inv_freq.
 * shapes  tok [T] tok_entry; codes [V][H / 2] bytes; sb [V][H / 64]; inv_freq [32];
 *         x [T][H]; rope [T][64]
 * grid    T groups
 * cost    T (4.6 H + 256) bytes
 * ref     ref_embed, bitwise */
KERNEL(basic_embed, 256, KIN(0, uint, tok), KIN(1, uint, codes), KIN(2, uint, sb),
       KIN(3, float, inv_freq), KOUT(4, float, x), KOUT(5, float, rope),
       KARG(6, basic_embed_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint n_words = a.hidden / 8, n_groups = a.hidden / 64;
    const uint id = tok[4 * gx], pos = tok[4 * gx + 1];
    DPTR(const uint) row = codes + (ulong)id * n_words;
    DPTR(const uint) row_sb = sb + (ulong)id * n_groups;
    DPTR(float) out = x + (ulong)gx * a.hidden;
    for (uint i = tid; i < n_words; i += 256) {
        const uint w = row[i], g = row_sb[i / 8];
        const float scale = kx_bf16_load(g & 0xffffu), bias = kx_bf16_load(g >> 16);
        float4 lo, hi;
        lo.x = KFMA(scale, (float)(w & 15u), bias);
        lo.y = KFMA(scale, (float)((w >> 4) & 15u), bias);
        lo.z = KFMA(scale, (float)((w >> 8) & 15u), bias);
        lo.w = KFMA(scale, (float)((w >> 12) & 15u), bias);
        hi.x = KFMA(scale, (float)((w >> 16) & 15u), bias);
        hi.y = KFMA(scale, (float)((w >> 20) & 15u), bias);
        hi.z = KFMA(scale, (float)((w >> 24) & 15u), bias);
        hi.w = KFMA(scale, (float)(w >> 28), bias);
        st16f(out, 8 * i, lo);
        st16f(out, 8 * i + 4, hi);
    }
    if (tid < 32) {
        const kx_sincos_result sc = kx_sincos((float)pos * inv_freq[tid]);
        rope[64 * gx + tid] = sc.c;
        rope[64 * gx + 32 + tid] = sc.s;
    }
}
KERNEL_END

/* ---- Norms ---- */

/* basic_norm_bf16: y = bf16(x rsqrt(mean x^2 + eps) w).
 * shapes  x [T][n] f32; w [n]; y [T][n] bf16
 * grid    T groups
 * cost    6 T n bytes; memory bound
 * ref     ref_norm, bitwise */
KERNEL(basic_norm_bf16, 128, KIN(0, float, x), KIN(1, float, w), KOUT(2, ushort, y),
       KARG(3, basic_norm_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 4);
    PDL_LAUNCH();
    PDL_WAIT();
    DPTR(const float) row = x + (ulong)gx * a.n;
    DPTR(ushort) out = y + (ulong)gx * a.n;
    const float p = rms_partial(row, a.n, sg, lane);
    if (lane == 0) part[sg] = p;
    TG_BARRIER();
    const float inv = rms_inverse(part[0], part[1], part[2], part[3], a.n, a.eps);
    for (uint i = 8 * tid; i < a.n; i += 8 * 128) {
        const float4 v0 = ld16f(row, i), v1 = ld16f(row, i + 4);
        const float4 w0 = ld16f(w, i), w1 = ld16f(w, i + 4);
        uint4 o;
        o.x = kx_bf16_store(v0.x * inv * w0.x) | kx_bf16_store(v0.y * inv * w0.y) << 16;
        o.y = kx_bf16_store(v0.z * inv * w0.z) | kx_bf16_store(v0.w * inv * w0.w) << 16;
        o.z = kx_bf16_store(v1.x * inv * w1.x) | kx_bf16_store(v1.y * inv * w1.y) << 16;
        o.w = kx_bf16_store(v1.z * inv * w1.z) | kx_bf16_store(v1.w * inv * w1.w) << 16;
        st16h(out, i, o);
    }
}
KERNEL_END

/* ---- Routing ---- */

template <uint J>
KFN void top8_row(DPTR(const float) logits, DPTR(uint) ids, DPTR(float) weights, uint t,
                  uint n_experts, uint n_used, uint lane)
{
    route_logits<J> l;
    DPTR(const float) row = logits + (ulong)t * (n_experts + 1);
    UNROLL for (uint j = 0; j < J; j++)
    {
        const uint e = 32 * j + lane;
        l.v[j] = e < n_experts ? row[e] : -1e30f;
    }
    route_pick<J>(l, row[n_experts], n_used, lane, ids + t * n_used, weights + t * (n_used + 1));
}

/* basic_top8: op_top8.
 * shapes  logits [T][E + 1]; ids [T][U]; weights [T][U + 1]; E <= 256 (basic_top8_wide: 1,024)
 * grid    T / 4 groups, a simdgroup a token
 * cost    4 T (E + 2 U) bytes; latency bound
 * ref     ref_top8, bitwise */
KERNEL(basic_top8, 128, KIN(0, float, logits), KOUT(1, uint, ids), KOUT(2, float, weights),
       KARG(3, basic_top8_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint t = 4 * gx + sg;
    if (t < a.n_tokens) top8_row<8>(logits, ids, weights, t, a.n_experts, a.n_used, lane);
}
KERNEL_END

KERNEL(basic_top8_wide, 128, KIN(0, float, logits), KOUT(1, uint, ids), KOUT(2, float, weights),
       KARG(3, basic_top8_args, a))
{
    KCTX;
    PDL_LAUNCH();
    PDL_WAIT();
    const uint t = 4 * gx + sg;
    if (t < a.n_tokens) top8_row<32>(logits, ids, weights, t, a.n_experts, a.n_used, lane);
}
KERNEL_END

/* ---- Argmax ---- */

/* The best of a group's (key, id) pairs, in part[0 .. 2); key 0 loses to every logit. */
KFN void argmax_group(uint key, uint id, TPTR(uint) part, uint lane, uint sg, uint n_sg)
{
    const uint top = simd_max_u32(key);
    const uint first = simd_min_u32(key == top ? id : 0xffffffffu);
    if (lane == 0) {
        part[2 * sg] = top;
        part[2 * sg + 1] = first;
    }
    TG_BARRIER();
    if (sg == 0) {
        const uint k = lane < n_sg ? part[2 * lane] : 0u;
        const uint i = lane < n_sg ? part[2 * lane + 1] : 0xffffffffu;
        const uint t = simd_max_u32(k);
        const uint f = simd_min_u32(k == t ? i : 0xffffffffu);
        SG_BARRIER();
        if (lane == 0) {
            part[0] = t;
            part[1] = f;
        }
    }
    TG_BARRIER();
}

/* basic_argmax_part: the best of each 4,096 logits.
 * shapes  logits [T][V]; pairs [T][n_blocks][2]: key, id
 * grid    n_blocks x T
 * cost    4 T V bytes; memory bound
 * ref     ref_argmax, with basic_argmax_final */
KERNEL(basic_argmax_part, 256, KIN(0, float, logits), KOUT(1, uint, pairs),
       KARG(2, basic_argmax_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 16);
    PDL_LAUNCH();
    PDL_WAIT();
    DPTR(const float) row = logits + (ulong)gy * a.n_vocab;
    uint key = 0, id = 0xffffffffu;
    UNROLL for (uint j = 0; j < ARGMAX_BLOCK / 1024; j++)
    {
        const uint i = ARGMAX_BLOCK * gx + 1024 * j + 4 * tid;
        if (i < a.n_valid) {
            const float4 v = ld16f(row, i);
            const uint k0 = order_key(v.x);
            const uint k1 = i + 1 < a.n_valid ? order_key(v.y) : 0u;
            const uint k2 = i + 2 < a.n_valid ? order_key(v.z) : 0u;
            const uint k3 = i + 3 < a.n_valid ? order_key(v.w) : 0u;
            id = k0 > key ? i : id;
            key = kmax(key, k0);
            id = k1 > key ? i + 1 : id;
            key = kmax(key, k1);
            id = k2 > key ? i + 2 : id;
            key = kmax(key, k2);
            id = k3 > key ? i + 3 : id;
            key = kmax(key, k3);
        }
    }
    argmax_group(key, id, part, lane, sg, n_sg);
    if (tid < 2) pairs[2 * (gy * a.n_blocks + gx) + tid] = part[tid];
}
KERNEL_END

/* basic_argmax_final: best[t] from the pairs. Grid: T groups. */
KERNEL(basic_argmax_final, 128, KIN(0, uint, pairs), KOUT(1, uint, best),
       KARG(2, basic_argmax_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 8);
    PDL_LAUNCH();
    PDL_WAIT();
    DPTR(const uint) row = pairs + (ulong)gx * 2 * a.n_blocks;
    uint key = 0, id = 0xffffffffu;
    for (uint i = tid; i < a.n_blocks; i += 128) {
        const uint k = row[2 * i], v = row[2 * i + 1];
        id = k > key ? v : id;
        key = kmax(key, k);
    }
    argmax_group(key, id, part, lane, sg, n_sg);
    if (tid == 0) best[gx] = part[1];
}
KERNEL_END
