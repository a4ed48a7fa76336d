/* prim_mm_simt.h - matrix tiles in plain C++: each lane computes its elements from memory. */
#ifndef CALLA_KERNELS_PRIM_MM_SIMT_H
#define CALLA_KERNELS_PRIM_MM_SIMT_H

struct mm_acc {
    float v[16];
};

KFN void mm_mac_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch, TPTR(const ushort) B,
                     uint b_pitch, uint lane)
{
    float a[2][16], b[8][16];
    for (uint k = 0; k < 16; k++) {
        for (uint r = 0; r < 2; r++)
            a[r][k] = kx_bf16_load(A[(lane / 4 + 8 * r) * a_pitch + k]);
        for (uint c = 0; c < 8; c++)
            b[c][k] = kx_bf16_load(B[(8 * (c / 2) + 2 * (lane & 3) + (c & 1)) * b_pitch + k]);
    }
    for (uint e = 0; e < 16; e++) {
        const uint r = (e / 2) & 1, c = 2 * (e / 4) + (e & 1);
        float s = acc.v[e];
        for (uint k = 0; k < 16; k++)
            s = KFMA(a[r][k], b[c][k], s);
        acc.v[e] = s;
    }
}

KFN void mm_mac_turned_lane(THREF(mm_acc) acc, TPTR(const ushort) A, uint a_pitch,
                            TPTR(const ushort) B, uint b_pitch, uint lane)
{
    for (uint k = 0; k < 16; k++) {
        for (uint e = 0; e < 16; e++) {
            const uint r = lane / 4 + 8 * ((e / 2) & 1), c = 8 * (e / 4) + 2 * (lane & 3) + (e & 1);
            acc.v[e] =
                KFMA(kx_bf16_load(A[r * a_pitch + k]), kx_bf16_load(B[k * b_pitch + c]), acc.v[e]);
        }
    }
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
