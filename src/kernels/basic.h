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

/* ---- Sampling ---- */

/* A lane's sixteen candidates; key 0: none. */
typedef struct sample_lane {
    uint key[16], id[16];
} sample_lane;

/* One simdgroup: the k first of its candidates (larger key, then lower id) to out [64][2], in no
 * order, zeros behind. The k-th key is found bit by bit. */
KFN void sample_select(THREF(const sample_lane) c, uint k, TPTR(uint) out, uint lane)
{
    out[2 * lane] = 0u;
    out[2 * lane + 1] = 0u;
    out[64 + 2 * lane] = 0u;
    out[64 + 2 * lane + 1] = 0u;
    uint bound = 1u, n_bound = 0u; /* keys that reach bound */
    UNROLL for (uint j = 0; j < 16; j++) n_bound += c.key[j] >= 1u ? 1u : 0u;
    n_bound = simd_sum_u32(n_bound);
    if (n_bound > k) {
        bound = 0u;
        for (uint bit = 0x80000000u; bit != 0u && n_bound != k; bit >>= 1) {
            uint n = 0u;
            UNROLL for (uint j = 0; j < 16; j++) n += c.key[j] >= (bound | bit) ? 1u : 0u;
            n = simd_sum_u32(n);
            if (n >= k) {
                bound |= bit;
                n_bound = n;
            }
        }
    }
    uint last = 0xffffffffu; /* of the ids whose key is bound, the last to take */
    if (n_bound > k) {
        uint n_equal = 0u;
        UNROLL for (uint j = 0; j < 16; j++) n_equal += c.key[j] == bound ? 1u : 0u;
        const uint need = k - (n_bound - simd_sum_u32(n_equal));
        last = 0u;
        for (uint bit = 0x80000000u; bit != 0u; bit >>= 1) {
            uint n = 0u;
            UNROLL for (uint j = 0; j < 16; j++) n +=
                c.key[j] == bound && c.id[j] < (last | bit) ? 1u : 0u;
            if (simd_sum_u32(n) < need) last |= bit;
        }
    }
    uint n_mine = 0u;
    UNROLL for (uint j = 0; j < 16; j++) n_mine +=
        c.key[j] > bound || (c.key[j] == bound && c.id[j] <= last) ? 1u : 0u;
    uint at = simd_prefix_u32(n_mine);
    SG_BARRIER();
    UNROLL for (uint j = 0; j < 16; j++)
    {
        if (c.key[j] > bound || (c.key[j] == bound && c.id[j] <= last)) {
            out[2 * at] = c.key[j];
            out[2 * at + 1] = c.id[j];
            at++;
        }
    }
}

/* A group of 256 threads: the k first of its 4,096 candidates to best [64][2]; part [8][64][2]. */
KFN void sample_group(THREF(sample_lane) c, uint k, TPTR(uint) part, TPTR(uint) best, uint lane,
                      uint sg)
{
    sample_select(c, k, part + 128 * sg, lane);
    TG_BARRIER();
    if (sg == 0) {
        UNROLL for (uint j = 0; j < 16; j++)
        {
            c.key[j] = part[2 * (32 * j + lane)];
            c.id[j] = part[2 * (32 * j + lane) + 1];
        }
        sample_select(c, k, best, lane);
    }
    TG_BARRIER();
}

/* The penalties of engine/sampler.h. */
KFN float sample_penalised(float x, uint count, float presence, float frequency, float repetition)
{
    if (count == 0u) return x;
    const uint n = count & ~SAMPLE_TOUCHED;
    const float y = x > 0.0f ? x / repetition : x * repetition;
    return n != 0u ? y - (presence + frequency * (float)n) : y;
}

KFN uint sample_key(float x)
{
    return x >= -3.4028235e38f ? order_key(x) : (x < 0.0f ? 0u : 0xffffffffu); /* -inf, NaN */
}

/* basic_sample_part: of each 4,096 logits the top_k first, penalised, without the banned ones.
 * shapes  logits [T][V]; banned [V / 32] bits; samp [T] sample_entry; counts [slots][V];
 *         cand [T][n_blocks][64][2]: key, id
 * grid    n_blocks x T
 * memory  4.6 KB
 * cost    4 T V bytes (8 T V with penalties); latency of the search
 * ref     sampler_draw (engine/sampler.h), with basic_sample_final: the same ids
 * why     a search by bits keeps candidates in registers; sorting 4,096 pairs would not. */
KERNEL(basic_sample_part, 256, KIN(0, float, logits), KIN(1, uint, banned), KIN(2, uint, samp),
       KIN(3, uint, counts), KOUT(4, uint, cand), KARG(5, basic_sample_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 1024);
    TG_ARRAY(uint, best, 128);
    PDL_LAUNCH();
    PDL_WAIT();
    DPTR(const uint) entry = samp + SAMPLE_ENTRY_WORDS * gy;
    const bool counted = entry[2] != 0u;
    DPTR(const uint) count = counts + (ulong)(counted ? entry[3] : 0u) * a.n_vocab;
    const float presence = KFLOAT(entry[8]), frequency = KFLOAT(entry[9]);
    const float repetition = KFLOAT(entry[10]);
    sample_lane c;
    UNROLL for (uint j = 0; j < 4; j++)
    {
        const uint i = SAMPLE_BLOCK * gx + 1024 * j + 4 * tid;
        float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        uint bans = 0u;
        if (i < a.n_vocab) {
            const float4 v = ld16f(logits + (ulong)gy * a.n_vocab, i);
            x[0] = v.x;
            x[1] = v.y;
            x[2] = v.z;
            x[3] = v.w;
            bans = banned[i / 32] >> (i & 31u);
            if (counted) {
                const uint4 n = ld16(count, i);
                x[0] = sample_penalised(x[0], n.x, presence, frequency, repetition);
                x[1] = sample_penalised(x[1], n.y, presence, frequency, repetition);
                x[2] = sample_penalised(x[2], n.z, presence, frequency, repetition);
                x[3] = sample_penalised(x[3], n.w, presence, frequency, repetition);
            }
        }
        UNROLL for (uint e = 0; e < 4; e++)
        {
            /* a NaN or an infinity spoils the row even where its id is banned */
            const uint key = i < a.n_vocab ? sample_key(x[e]) : 0u;
            c.key[4 * j + e] = ((bans >> e) & 1u) != 0u && key < 0xff800000u ? 0u : key;
            c.id[4 * j + e] = i + e;
        }
    }
    sample_group(c, entry[0], part, best, lane, sg);
    if (tid < 128) cand[128 * (gy * a.n_blocks + gx) + tid] = best[tid];
}
KERNEL_END

/* 64-bit words as pairs: the dialect has no 64-bit arithmetic. */
typedef struct u32x2 {
    uint lo, hi;
} u32x2;

KFN u32x2 wide_xor(u32x2 a, u32x2 b)
{
    a.lo ^= b.lo;
    a.hi ^= b.hi;
    return a;
}

/* 0 < n < 32 */
KFN u32x2 wide_shl(u32x2 a, uint n)
{
    a.hi = a.hi << n | a.lo >> (32 - n);
    a.lo = a.lo << n;
    return a;
}

KFN u32x2 wide_rotl(u32x2 a, uint n)
{
    const uint top = a.hi >> (32 - n);
    a = wide_shl(a, n);
    a.lo |= top;
    return a;
}

KFN u32x2 wide_add(u32x2 a, u32x2 b)
{
    a.lo += b.lo;
    a.hi += b.hi + (a.lo < b.lo ? 1u : 0u);
    return a;
}

/* One step of xoshiro256** on state [8]; the high word of its output. One lane calls. */
KFN uint sample_random(TPTR(uint) state)
{
    u32x2 s[4];
    UNROLL for (uint i = 0; i < 4; i++)
    {
        s[i].lo = state[2 * i];
        s[i].hi = state[2 * i + 1];
    }
    u32x2 r = wide_rotl(wide_add(s[1], wide_shl(s[1], 2)), 7);
    r = wide_add(r, wide_shl(r, 3));
    const u32x2 t = wide_shl(s[1], 17);
    s[2] = wide_xor(s[2], s[0]);
    s[3] = wide_xor(s[3], s[1]);
    s[1] = wide_xor(s[1], s[2]);
    s[0] = wide_xor(s[0], s[3]);
    s[2] = wide_xor(s[2], t);
    u32x2 swapped; /* rotl 45 is a swap of the words and rotl 13 */
    swapped.lo = s[3].hi;
    swapped.hi = s[3].lo;
    s[3] = wide_rotl(swapped, 13);
    UNROLL for (uint i = 0; i < 4; i++)
    {
        state[2 * i] = s[i].lo;
        state[2 * i + 1] = s[i].hi;
    }
    return r.hi;
}

/* The high word of a b. */
KFN uint mul_high(uint a, uint b)
{
    const uint al = a & 0xffffu, ah = a >> 16, bl = b & 0xffffu, bh = b >> 16;
    const uint m = ah * bl + ((al * bl) >> 16);
    const uint n = al * bh + (m & 0xffffu);
    return ah * bh + (m >> 16) + (n >> 16);
}

/* The sampler's exp for z in [-50, 0] (engine/sampler.c), 0 below. */
KFN float sample_exp(float z)
{
    const float x = z >= -50.0f ? z : -50.0f;
    const int n = (int)(x * 1.44269504f - 0.5f);
    const float f = x - (float)n * 0.693145752f - (float)n * 1.42860677e-6f;
    float p = 1.0f / 720.0f;
    p = p * f + 1.0f / 120.0f;
    p = p * f + 1.0f / 24.0f;
    p = p * f + 1.0f / 6.0f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    return z >= -50.0f ? p * KFLOAT((uint)(n + 127) << 23) : 0.0f;
}

KFN float key_logit(uint key)
{
    return KFLOAT((key & 0x80000000u) != 0u ? (key & 0x7fffffffu) : ~key);
}

/* The draw among the k first, falling, in sorted [64][2]; one simdgroup, lane l has ranks l and
 * 32 + l. Weights are integers, so sums are exact in any order. r: a random word. */
KFN uint sample_draw(TPTR(const uint) sorted, float by, float top_p, float min_p, uint r, uint lane)
{
    const float top = key_logit(sorted[0]);
    float w[2];
    uint weight[2], before[2];
    UNROLL for (uint h = 0; h < 2; h++)
    {
        const uint key = sorted[2 * (32 * h + lane)];
        w[h] = key != 0u ? sample_exp((key_logit(key) - top) * by) : 0.0f;
        weight[h] = (uint)(w[h] * 33554432.0f);
    }
    const uint first = simd_sum_u32(weight[0]);
    before[0] = simd_prefix_u32(weight[0]);
    before[1] = first + simd_prefix_u32(weight[1]);
    const uint total = first + simd_sum_u32(weight[1]);
    const uint need = top_p > 0.0f ? kmax((uint)(top_p * (float)total), 1u) : total;
    UNROLL for (uint h = 0; h < 2; h++) weight[h] =
        before[h] < need && w[h] >= min_p ? weight[h] : 0u;
    const uint kept = simd_sum_u32(weight[0]);
    before[0] = simd_prefix_u32(weight[0]);
    before[1] = kept + simd_prefix_u32(weight[1]);
    const uint point = mul_high(r, kept + simd_sum_u32(weight[1]));
    uint rank = 0u;
    UNROLL for (uint h = 0; h < 2; h++) rank +=
        point >= before[h] && point - before[h] < weight[h] ? 32 * h + lane : 0u;
    return sorted[2 * simd_sum_u32(rank) + 1];
}

/* Sorts best [64][2] into sorted; one simdgroup. */
KFN void sample_sort(TPTR(const uint) best, TPTR(uint) sorted, uint lane)
{
    UNROLL for (uint h = 0; h < 2; h++)
    {
        const uint mine = 32 * h + lane, key = best[2 * mine], id = best[2 * mine + 1];
        uint rank = 0u;
        for (uint i = 0; i < 64; i++) {
            const uint k = best[2 * i], d = best[2 * i + 1];
            rank += k > key || (k == key && (d < id || (d == id && i < mine))) ? 1u : 0u;
        }
        sorted[2 * rank] = key;
        sorted[2 * rank + 1] = id;
    }
    SG_BARRIER();
}

/* basic_sample_final: the draw; the id goes to the ring, to the counts and, with advance, to the
 * token table with the next position.
 * shapes  cand [T][n_blocks][64][2]; samp [T] sample_entry; counts [slots][V]; ring [T][ring_len]
 *         in host memory; tok [T] tok_entry
 * grid    T groups
 * memory  5.6 KB
 * ref     sampler_draw: the same ids, whatever the logits */
KERNEL(basic_sample_final, 256, KIN(0, uint, cand), KOUT(1, uint, samp), KOUT(2, uint, counts),
       KOUT(3, uint, ring), KOUT(4, uint, tok), KARG(5, basic_sample_args, a))
{
    KCTX;
    TG_ARRAY(uint, part, 1024);
    TG_ARRAY(uint, best, 128);
    TG_ARRAY(uint, sorted, 128);
    TG_ARRAY(uint, old, SAMPLE_ENTRY_WORDS);
    PDL_LAUNCH();
    PDL_WAIT();
    DPTR(uint) entry = samp + SAMPLE_ENTRY_WORDS * gx;
    if (tid < SAMPLE_ENTRY_WORDS) old[tid] = entry[tid];
    TG_BARRIER();
    sample_lane c;
    UNROLL for (uint j = 0; j < 16; j++)
    {
        const uint i = 256 * j + tid;
        c.key[j] = 0u;
        c.id[j] = 0u;
        if (i < 64 * a.n_blocks) {
            c.key[j] = cand[128 * gx * a.n_blocks + 2 * i];
            c.id[j] = cand[128 * gx * a.n_blocks + 2 * i + 1];
        }
    }
    sample_group(c, old[0], part, best, lane, sg);
    if (sg == 0) {
        sample_sort(best, sorted, lane);
        const uint top = sorted[0];
        uint id = sorted[1];
        if (old[1] == 0u) {
            const uint r = simd_lane_u32(lane == 0 ? sample_random(old + 12) : 0u, 0);
            id = sample_draw(sorted, KFLOAT(old[5]), KFLOAT(old[6]), KFLOAT(old[7]), r, lane);
            SG_BARRIER();
            if (lane < 8) entry[12 + lane] = old[12 + lane];
        }
        const bool bad = top == 0u || top >= 0xff800000u; /* nothing left, +infinity, NaN */
        const bool ends = simd_ballot_u32(lane < old[11] && old[24 + (lane & 15u)] == id) != 0u;
        if (lane == 0) {
            const uint n = old[4];
            ring[gx * a.ring_len + n % a.ring_len] = bad ? SAMPLE_BAD : id;
            entry[4] = n + 1;
            if (!bad && old[2] != 0u) {
                const ulong at = (ulong)old[3] * a.n_vocab + id;
                counts[at] = (counts[at] + 1u) | SAMPLE_TOUCHED;
            }
            if (a.advance != 0u) {
                tok[4 * gx] = bad ? 0u : id;
                tok[4 * gx + 1] = ends ? 0u : tok[4 * gx + 1] + 1u;
                if (ends) {
                    tok[4 * gx + 2] = old[20];
                    tok[4 * gx + 3] = old[21];
                }
            }
        }
    }
}
KERNEL_END
