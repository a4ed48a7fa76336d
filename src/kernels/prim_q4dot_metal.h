/* prim_q4dot_metal.h - prim_q4dot.h without conversions.
 *
 * A code that is masked where it stands, at bit p <= 16, and put under the exponent of 2^23 is the
 * float 2^23 + q 2^p; the subtraction of 2^23 is exact. So a code costs and, or, subtract and fma,
 * one issue slot each on every Apple GPU, where shift and conversion take four each on M1 and M2.
 * The powers of two are taken out of the activations (2^(16 - p) x) and of the scale (2^-16).
 * Limits: |x| < 2^100, |scale| > 2^-108.
 */

#define Q4_MAGIC 0x4b000000u /* 2^23 */

/* q 2^p of masked bits. */
KFN float q4_value(uint masked)
{
    return KFLOAT(masked | Q4_MAGIC) - 8388608.0f;
}

/* Bits of codes 0 .. 4 in a word: 0, 4, 8, 12, 16; of codes 5, 6, 7 in word >> 12: 8, 12, 16. */
KFN float4 q4_prepare(float4 v, uint odd)
{
    v.x *= odd != 0u ? 1.0f : 65536.0f;
    v.y *= odd != 0u ? 256.0f : 4096.0f;
    v.z *= odd != 0u ? 16.0f : 256.0f;
    v.w *= odd != 0u ? 1.0f : 16.0f;
    return v;
}

KFN float q4_scale(uint sb)
{
    return KFLOAT(sb << 16) * (1.0f / 65536.0f);
}

KFN void q4_unpack8(THREF(lane_f32<16>) q, uint at, uint w)
{
    const uint h = w >> 12;
    q.v[at] = q4_value(w & 0xfu);
    q.v[at + 1] = q4_value(w & 0xf0u);
    q.v[at + 2] = q4_value(w & 0xf00u);
    q.v[at + 3] = q4_value(w & 0xf000u);
    q.v[at + 4] = q4_value(w & 0xf0000u);
    q.v[at + 5] = q4_value(h & 0xf00u);
    q.v[at + 6] = q4_value(h & 0xf000u);
    q.v[at + 7] = q4_value(h & 0xf0000u);
}

KFN void q4_unpack16(THREF(lane_f32<16>) q, uint w0, uint w1)
{
    q4_unpack8(q, 0, w0);
    q4_unpack8(q, 8, w1);
}

KFN float q4dot_unpacked(THREF(const lane_f32<16>) q, THREF(const lane_f32<16>) x)
{
    float s = 0.0f;
    UNROLL for (uint i = 0; i < 16; i++) s = KFMA(q.v[i], x.v[i], s);
    return s;
}

template <uint N> KFN float q4dot16(uint w0, uint w1, THREF(const lane_f32<N>) x, uint at)
{
    lane_f32<16> q;
    q4_unpack16(q, w0, w1);
    float s = 0.0f;
    UNROLL for (uint i = 0; i < 16; i++) s = KFMA(q.v[i], x.v[at + i], s);
    return s;
}

/* Bits of codes 0, 1 in a word: 0, 8; of codes 2, 3 in word >> 16. */
KFN float4 q8_prepare(float4 v)
{
    v.x *= 256.0f;
    v.z *= 256.0f;
    return v;
}

KFN float q8_scale(uint sb)
{
    return KFLOAT(sb << 16) * (1.0f / 256.0f);
}

template <uint N> KFN float q8dot4(uint w, THREF(const lane_f32<N>) x, uint at, float s)
{
    const uint h = w >> 16;
    s = KFMA(q4_value(w & 0xffu), x.v[at], s);
    s = KFMA(q4_value(w & 0xff00u), x.v[at + 1], s);
    s = KFMA(q4_value(h & 0xffu), x.v[at + 2], s);
    return KFMA(q4_value(h & 0xff00u), x.v[at + 3], s);
}

template <uint N> KFN float q8dot16(uint4 w, THREF(const lane_f32<N>) x, uint at)
{
    float s = q8dot4(w.x, x, at, 0.0f);
    s = q8dot4(w.y, x, at + 4, s);
    s = q8dot4(w.z, x, at + 8, s);
    return q8dot4(w.w, x, at + 12, s);
}
