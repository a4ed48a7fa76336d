/* prim_frag_simt.h - prim_frag_cuda.h for the emulator: the same fragments, summed in plain C. */
#ifndef CALLA_KERNELS_PRIM_FRAG_SIMT_H
#define CALLA_KERNELS_PRIM_FRAG_SIMT_H

#define FRAG_PTR(T) TPTR(T)

typedef struct frag_c {
    float v[4];
} frag_c;

typedef struct frag_mma_arg {
    uint a[4], b[2];
    float *c;
} frag_mma_arg;

/* Element j (0, 1) of a word. */
KFN float frag_half(uint w, uint j)
{
    return kx_bf16_load((w >> (16 * j)) & 0xffffu);
}

KFN void frag_mma_all(void *const *args)
{
    float a[16][16], b[16][8];
    for (uint l = 0; l < 32; l++) {
        const frag_mma_arg *x = static_cast<const frag_mma_arg *>(args[l]);
        const uint g = l / 4, c = l % 4;
        for (uint j = 0; j < 2; j++) {
            for (uint i = 0; i < 4; i++)
                a[g + 8 * (i % 2)][2 * c + j + 8 * (i / 2)] = frag_half(x->a[i], j);
            for (uint i = 0; i < 2; i++)
                b[2 * c + j + 8 * i][g] = frag_half(x->b[i], j);
        }
    }
    for (uint l = 0; l < 32; l++) {
        float *out = static_cast<frag_mma_arg *>(args[l])->c;
        for (uint i = 0; i < 4; i++)
            for (uint k = 0; k < 16; k++)
                out[i] = KFMA(a[l / 4 + 8 * (i / 2)][k], b[k][2 * (l % 4) + i % 2], out[i]);
    }
}

KFN void frag_mma(THREF(frag_c) c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1)
{
    frag_mma_arg x = {{a0, a1, a2, a3}, {b0, b1}, c.v};
    simt_collective(&x, SIMT_SITE("frag_mma"), frag_mma_all);
}

KFN uint frag_pack(float lo, float hi)
{
    return kx_bf16_store(lo) | (kx_bf16_store(hi) << 16);
}

KFN float frag_exp2(float x)
{
    return attn_exp2(x);
}

KFN uint4 frag_row16(FRAG_PTR(const ushort) p)
{
    return tg_ld16h(p, 0);
}

typedef struct frag_load_arg {
    uint4 row;
    uint out[4];
} frag_load_arg;

KFN uint frag_word(uint4 w, uint i)
{
    return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}

KFN void frag_load_all(void *const *args)
{
    for (uint l = 0; l < 32; l++) {
        frag_load_arg *x = static_cast<frag_load_arg *>(args[l]);
        for (uint i = 0; i < 4; i++)
            x->out[i] = frag_word(static_cast<frag_load_arg *>(args[8 * i + l / 4])->row, l % 4);
    }
}

KFN void frag_load_turned_all(void *const *args)
{
    for (uint l = 0; l < 32; l++) {
        frag_load_arg *x = static_cast<frag_load_arg *>(args[l]);
        const uint g = l / 4, c = l % 4;
        for (uint i = 0; i < 4; i++) {
            x->out[i] = 0;
            for (uint j = 0; j < 2; j++) {
                const uint4 row = static_cast<frag_load_arg *>(args[8 * i + 2 * c + j])->row;
                x->out[i] |= ((frag_word(row, g / 2) >> (16 * (g % 2))) & 0xffffu) << (16 * j);
            }
        }
    }
}

KFN uint4 frag_load(FRAG_PTR(const ushort) row)
{
    frag_load_arg x = {frag_row16(row), {0, 0, 0, 0}};
    simt_collective(&x, SIMT_SITE("frag_load"), frag_load_all);
    return uint4{x.out[0], x.out[1], x.out[2], x.out[3]};
}

KFN uint4 frag_load_turned(FRAG_PTR(const ushort) row)
{
    frag_load_arg x = {frag_row16(row), {0, 0, 0, 0}};
    simt_collective(&x, SIMT_SITE("frag_load_turned"), frag_load_turned_all);
    return uint4{x.out[0], x.out[1], x.out[2], x.out[3]};
}

KFN uint frag_low(uint a, uint b)
{
    return (a & 0xffffu) | (b << 16);
}
KFN uint frag_high(uint a, uint b)
{
    return (a >> 16) | (b & 0xffff0000u);
}

typedef struct frag_w2 {
    uint x, y;
} frag_w2;

KFN frag_w2 frag_ld8(DPTR(const ushort) p, uint i)
{
    frag_w2 w;
    w.x = (uint)p[i] | ((uint)p[i + 1] << 16);
    w.y = (uint)p[i + 2] | ((uint)p[i + 3] << 16);
    return w;
}
KFN frag_w2 frag_tg_ld8(TPTR(const ushort) p, uint i)
{
    frag_w2 w;
    w.x = (uint)p[i] | ((uint)p[i + 1] << 16);
    w.y = (uint)p[i + 2] | ((uint)p[i + 3] << 16);
    return w;
}

KFN uint4 frag_read16(TPTR(const uint) p)
{
    return tg_ld16(p, 0);
}

KFN void frag_copy16(FRAG_PTR(ushort) to, DPTR(const ushort) from, bool valid)
{
    uint4 w = {0, 0, 0, 0};
    if (valid) w = ld16h(from, 0);
    tg_st16h(to, 0, w);
}
KFN void frag_copy_close()
{
}
template <uint N> KFN void frag_copy_wait()
{
}

#define FRAG_MEMORY(name, bytes) static_assert((bytes) <= SIMT_NATIVE_BYTES, "size of " #name)
#define FRAG_ARRAY(name, bytes)  FRAG_PTR(ushort) name = simt_native_array<ushort>(bytes, #name)

#endif
