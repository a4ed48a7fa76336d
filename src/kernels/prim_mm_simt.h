/* prim_mm_simt.h - matrix tiles in plain C++: the last lane to arrive computes the tile for all. */
#ifndef CALLA_KERNELS_PRIM_MM_SIMT_H
#define CALLA_KERNELS_PRIM_MM_SIMT_H

struct mm_acc {
    float v[16];
};

struct mm_tiles {
    TPTR(const ushort) A, B;
    uint a_pitch, b_pitch;
};

struct mm_call {
    mm_tiles tiles; /* the same for all lanes */
    float *acc;     /* [16] of the lane */
};

/* 8 elements. */
KFN void mm_load8(float *to, uint stride, TPTR(const ushort) p, uint at)
{
    const uint4 v = simt_sg_load16h(p, at);
    const uint w[4] = {v.x, v.y, v.z, v.w};
    for (uint i = 0; i < 4; i++) {
        to[2 * i * stride] = kx_bf16_load(w[i] & 0xffffu);
        to[(2 * i + 1) * stride] = kx_bf16_load(w[i] >> 16);
    }
}

/* sum[row][col] of all lanes; MM_EACH's order of elements. */
#define MM_LANE_EACH(l, e, row, col)                                                               \
    for (uint l = 0; l < 32; l++)                                                                  \
        for (uint e = 0, row, col;                                                                 \
             row = l / 4 + 8 * ((e / 2) & 1), col = 8 * (e / 4) + 2 * (l & 3) + (e & 1), e < 16;   \
             e++)

/* turned: B is [16][32], as mm_mac_turned takes it. */
template <bool TURNED> KFN void mm_all(void *const *args)
{
    const mm_call *c[32];
    for (uint l = 0; l < 32; l++)
        c[l] = static_cast<const mm_call *>(args[l]);
    const mm_tiles t = c[0]->tiles;
    for (uint l = 1; l < 32; l++)
        if (memcmp(&c[l]->tiles, &t, sizeof t) != 0)
            simt_violation(simt_self, "mm_mac: lanes 0 and %u name different tiles", l);
    float a[16][16], b[16][32], sum[16][32];
    for (uint r = 0; r < 16; r++)
        for (uint k = 0; k < 16; k += 8)
            mm_load8(&a[r][k], 1, t.A, r * t.a_pitch + k);
    for (uint i = 0; i < 64; i++)
        if (TURNED)
            mm_load8(&b[i / 4][8 * (i % 4)], 1, t.B, i / 4 * t.b_pitch + 8 * (i % 4));
        else
            mm_load8(&b[8 * (i % 2)][i / 2], 32, t.B, i / 2 * t.b_pitch + 8 * (i % 2));
    MM_LANE_EACH(l, e, row, col) sum[row][col] = c[l]->acc[e];
    for (uint r = 0; r < 16; r++)
        for (uint k = 0; k < 16; k++)
            for (uint i = 0; i < 32; i++)
                sum[r][i] = KFMA(a[r][k], b[k][i], sum[r][i]);
    MM_LANE_EACH(l, e, row, col) c[l]->acc[e] = sum[row][col];
}

KFN void mm_mac_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch, TPTR(const ushort) B,
                     uint b_pitch, uint)
{
    mm_call c = {{A, B, a_pitch, b_pitch}, acc.v};
    simt_collective(&c, SIMT_SITE("mm_mac"), mm_all<false>);
}

KFN void mm_mac_turned_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch,
                            TPTR(const ushort) B, uint b_pitch, uint)
{
    mm_call c = {{A, B, a_pitch, b_pitch}, acc.v};
    simt_collective(&c, SIMT_SITE("mm_mac_turned"), mm_all<true>);
}

KFN uint mm_weight(uint q, float scale, float bias)
{
    return kx_bf16_store(KFMA(scale, (float)(q & 15u), bias));
}

KFN uint4 mm_dequant8(uint w, uint sb)
{
    const float s = kx_bf16_load(sb & 0xffffu), b = kx_bf16_load(sb >> 16);
    uint4 o;
    o.x = mm_weight(w, s, b) | mm_weight(w >> 4, s, b) << 16;
    o.y = mm_weight(w >> 8, s, b) | mm_weight(w >> 12, s, b) << 16;
    o.z = mm_weight(w >> 16, s, b) | mm_weight(w >> 20, s, b) << 16;
    o.w = mm_weight(w >> 24, s, b) | mm_weight(w >> 28, s, b) << 16;
    return o;
}

#endif
