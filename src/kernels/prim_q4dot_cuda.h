/* prim_q4dot_cuda.h - prim_q4dot.h with one mask and one fma a code.
 *
 * A code that is masked where it stands and read as f32 bits is a denormal: q 2^p 2^-149 for a code
 * at bit p <= 19. The fma of this hardware takes denormals at full rate unless told to flush them,
 * and it is exact, so no conversion is needed: activations are multiplied by 2^(100 - p) before,
 * the group's scale by 2^49 after. Masks run at half the rate of fma here: 1.1 masks a code and no
 * conversion are 2.2 cycles, where conversion through half2 takes 3.1.
 * Limits: |x| < 2^27 (2^100 x must be finite). Sums keep their bits down to 2^-77.
 */

KFN float q4_fma(uint q, float x, float s)
{
    float d; /* without .ftz, in spite of -ftz=true */
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(__uint_as_float(q)), "f"(x), "f"(s));
    return d;
}

/* Bits of codes 0 .. 4 in a word: 0, 4, 8, 12, 16; of codes 5, 6, 7 in word >> 12: 8, 12, 16. */
KFN float4 q4_prepare(float4 v, uint odd)
{
    v.x *= odd != 0u ? 0x1p84f : 0x1p100f;
    v.y *= odd != 0u ? 0x1p92f : 0x1p96f;
    v.z *= odd != 0u ? 0x1p88f : 0x1p92f;
    v.w *= odd != 0u ? 0x1p84f : 0x1p88f;
    return v;
}

KFN float q4_scale(uint sb)
{
    return __uint_as_float(sb << 16) * 0x1p49f;
}

template <uint N> KFN float q4dot8(uint w, THREF(const lane_f32<N>) x, uint at, float s)
{
    const uint h = w >> 12;
    s = q4_fma(w & 0xfu, x.v[at], s);
    s = q4_fma(w & 0xf0u, x.v[at + 1], s);
    s = q4_fma(w & 0xf00u, x.v[at + 2], s);
    s = q4_fma(w & 0xf000u, x.v[at + 3], s);
    s = q4_fma(w & 0xf0000u, x.v[at + 4], s);
    s = q4_fma(h & 0xf00u, x.v[at + 5], s);
    s = q4_fma(h & 0xf000u, x.v[at + 6], s);
    return q4_fma(h & 0xf0000u, x.v[at + 7], s);
}

template <uint N> KFN float q4dot16(uint w0, uint w1, THREF(const lane_f32<N>) x, uint at)
{
    return q4dot8(w1, x, at + 8, q4dot8(w0, x, at, 0.0f));
}

KFN void q4_unpack8(THREF(lane_f32<16>) q, uint at, uint w)
{
    const uint h = w >> 12;
    q.v[at] = __uint_as_float(w & 0xfu);
    q.v[at + 1] = __uint_as_float(w & 0xf0u);
    q.v[at + 2] = __uint_as_float(w & 0xf00u);
    q.v[at + 3] = __uint_as_float(w & 0xf000u);
    q.v[at + 4] = __uint_as_float(w & 0xf0000u);
    q.v[at + 5] = __uint_as_float(h & 0xf00u);
    q.v[at + 6] = __uint_as_float(h & 0xf000u);
    q.v[at + 7] = __uint_as_float(h & 0xf0000u);
}

KFN void q4_unpack16(THREF(lane_f32<16>) q, uint w0, uint w1)
{
    q4_unpack8(q, 0, w0);
    q4_unpack8(q, 8, w1);
}

KFN float q4dot_unpacked(THREF(const lane_f32<16>) q, THREF(const lane_f32<16>) x)
{
    float s = 0.0f;
    UNROLL for (uint i = 0; i < 16; i++) s = q4_fma(__float_as_uint(q.v[i]), x.v[i], s);
    return s;
}

/* Bits of codes 0, 1 in a word: 0, 8; of codes 2, 3 in word >> 16. */
KFN float4 q8_prepare(float4 v)
{
    v.x *= 0x1p100f;
    v.y *= 0x1p92f;
    v.z *= 0x1p100f;
    v.w *= 0x1p92f;
    return v;
}

KFN float q8_scale(uint sb)
{
    return __uint_as_float(sb << 16) * 0x1p49f;
}

template <uint N> KFN float q8dot4(uint w, THREF(const lane_f32<N>) x, uint at, float s)
{
    const uint h = w >> 16;
    s = q4_fma(w & 0xffu, x.v[at], s);
    s = q4_fma(w & 0xff00u, x.v[at + 1], s);
    s = q4_fma(h & 0xffu, x.v[at + 2], s);
    return q4_fma(h & 0xff00u, x.v[at + 3], s);
}

template <uint N> KFN float q8dot16(uint4 w, THREF(const lane_f32<N>) x, uint at)
{
    float s = q8dot4(w.x, x, at, 0.0f);
    s = q8dot4(w.y, x, at + 4, s);
    s = q8dot4(w.z, x, at + 8, s);
    return q8dot4(w.w, x, at + 12, s);
}
