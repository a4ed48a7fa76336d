/* prim_q4dot_simt.h - prim_q4dot.h in the dialect alone: the definition. */

/* v: activations 4 odd .. 4 odd + 3 of a word's eight. */
KFN float4 q4_prepare(float4 v, uint odd)
{
    (void)odd;
    return v;
}

KFN float q4_scale(uint sb)
{
    return KFLOAT(sb << 16);
}

/* Apart, so that the conversion is not in the chain; the bits are those of one loop. */
KFN void q4_unpack16(THREF(lane_f32<16>) q, uint w0, uint w1)
{
    SIMT_UNROLL for (uint i = 0; i < 8; i++) q.v[i] = (float)(int)((w0 >> 4 * i) & 15u);
    SIMT_UNROLL for (uint i = 0; i < 8; i++) q.v[8 + i] = (float)(int)((w1 >> 4 * i) & 15u);
}

KFN float q4dot_unpacked(THREF(const lane_f32<16>) q, THREF(const lane_f32<16>) x)
{
    float s = 0.0f;
    SIMT_UNROLL for (uint i = 0; i < 16; i++) s = KFMA(q.v[i], x.v[i], s);
    return s;
}

template <uint N> KFN float q4dot16(uint w0, uint w1, THREF(const lane_f32<N>) x, uint at)
{
    lane_f32<16> q;
    q4_unpack16(q, w0, w1);
    float s = 0.0f;
    SIMT_UNROLL for (uint i = 0; i < 16; i++) s = KFMA(q.v[i], x.v[at + i], s);
    return s;
}

KFN float4 q8_prepare(float4 v)
{
    return v;
}

KFN float q8_scale(uint sb)
{
    return KFLOAT(sb << 16);
}

template <uint N> KFN float q8dot16(uint4 w, THREF(const lane_f32<N>) x, uint at)
{
    float s = 0.0f;
    UNROLL for (uint i = 0; i < 4; i++) s = KFMA((float)((w.x >> 8 * i) & 255u), x.v[at + i], s);
    UNROLL for (uint i = 0; i < 4; i++) s =
        KFMA((float)((w.y >> 8 * i) & 255u), x.v[at + 4 + i], s);
    UNROLL for (uint i = 0; i < 4; i++) s =
        KFMA((float)((w.z >> 8 * i) & 255u), x.v[at + 8 + i], s);
    UNROLL for (uint i = 0; i < 4; i++) s =
        KFMA((float)((w.w >> 8 * i) & 255u), x.v[at + 12 + i], s);
    return s;
}
