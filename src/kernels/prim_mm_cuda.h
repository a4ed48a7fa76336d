/* prim_mm_cuda.h - matrix tiles by mma.sync (sm_80 and newer). */
#ifndef CALLA_KERNELS_PRIM_MM_CUDA_H
#define CALLA_KERNELS_PRIM_MM_CUDA_H

struct mm_acc {
    float v[16];
};

KFN uint mm_tg_address(const void *p)
{
    return (uint)__cvta_generic_to_shared(p);
}

/* Four 8 x 8 matrices of bf16; the lane gives a row's address, gets two neighbours of a row. */
KFN uint4 mm_ldmatrix4(uint address)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

KFN void mm_16x8x16(float *d, uint4 a, uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

KFN void mm_mac_lane(mm_acc &acc, const ushort *A, uint a_pitch, const ushort *B, uint b_pitch,
                     uint lane)
{
    /* A: rows 0-7, 8-15 at k = 0, then at k = 8. B: 8 rows at k = 0, at k = 8, then the next 8. */
    const uint4 a = mm_ldmatrix4(mm_tg_address(A + (lane & 15u) * a_pitch + 8 * (lane >> 4)));
    const uint b_row = (lane & 7u) + 8 * (lane >> 4), b_k = 8 * ((lane >> 3) & 1u);
    UNROLL for (uint h = 0; h < 2; h++)
    {
        const uint4 b = mm_ldmatrix4(mm_tg_address(B + (16 * h + b_row) * b_pitch + b_k));
        mm_16x8x16(acc.v + 8 * h, a, b.x, b.y);
        mm_16x8x16(acc.v + 8 * h + 4, a, b.z, b.w);
    }
}

KFN uint4 mm_ldmatrix4_turned(uint address)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

KFN void mm_mac_turned_lane(mm_acc &acc, const ushort *A, uint a_pitch, const ushort *B,
                            uint b_pitch, uint lane)
{
    /* B: k = 0-7, 8-15 of 8 columns, then of the next 8. */
    const uint4 a = mm_ldmatrix4(mm_tg_address(A + (lane & 15u) * a_pitch + 8 * (lane >> 4)));
    UNROLL for (uint h = 0; h < 2; h++)
    {
        const uint4 b = mm_ldmatrix4_turned(
            mm_tg_address(B + (lane & 15u) * b_pitch + 16 * h + 8 * (lane >> 4)));
        mm_16x8x16(acc.v + 8 * h, a, b.x, b.y);
        mm_16x8x16(acc.v + 8 * h + 4, a, b.z, b.w);
    }
}

KFN uint mm_fma2(uint a, uint b, uint c)
{
    uint d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Two codes in bits 0-3 and 16-19 of q as scale q + bias: 0x4300 | q is 128 + q in bf16. */
KFN uint mm_dequant2(uint q, uint scale2, uint bias2)
{
    const uint c = mm_fma2((q & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc300c300u);
    return mm_fma2(c, scale2, bias2);
}

KFN uint4 mm_dequant8(uint w, uint sb)
{
    const uint s = __byte_perm(sb, 0, 0x1010), b = __byte_perm(sb, 0, 0x3232);
    const uint w04 = mm_dequant2(w, s, b), w15 = mm_dequant2(w >> 4, s, b);
    const uint w26 = mm_dequant2(w >> 8, s, b), w37 = mm_dequant2(w >> 12, s, b);
    uint4 o;
    o.x = __byte_perm(w04, w15, 0x5410);
    o.y = __byte_perm(w26, w37, 0x5410);
    o.z = __byte_perm(w04, w15, 0x7632);
    o.w = __byte_perm(w26, w37, 0x7632);
    return o;
}

#endif
