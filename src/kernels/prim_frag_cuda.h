/* prim_frag_cuda.h - the tensor core's 16 x 8 x 16 product and what feeds it, sm_80 and newer.
 *
 * With g = lane / 4 and c = lane % 4 a lane holds (pairs are 2 bf16 in a word, lower index low):
 *   A [16][16]: a0 (row g, cols 2c, 2c+1)   a1 (row g+8, same)   a2 (row g, cols 2c+8, 2c+9)   a3
 *   B [16][8]:  b0 (rows 2c, 2c+1; col g)   b1 (rows 2c+8, 2c+9; col g)
 *   C [16][8]:  v0, v1 (row g, cols 2c, 2c+1)   v2, v3 (row g+8)
 */
#ifndef CALLA_KERNELS_PRIM_FRAG_CUDA_H
#define CALLA_KERNELS_PRIM_FRAG_CUDA_H

/* Pointer into FRAG_ARRAY's memory. */
#define FRAG_PTR(T) T *

typedef struct frag_c {
    float v[4];
} frag_c;

/* c += A B */
KFN void frag_mma(THREF(frag_c) c, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Two bf16, rounded to nearest even. */
KFN uint frag_pack(float lo, float hi)
{
    uint w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
    return w;
}

/* 2^x within 2 ulp, 0 far below. */
KFN float frag_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Four 8 x 8 matrices of bf16 in threadgroup memory; lane l gives row l % 8 of matrix l / 8. Word
 * i: matrix i, row g, cols 2c and 2c+1 (turned: rows 2c and 2c+1, col g). */
KFN uint4 frag_load(FRAG_PTR(const ushort) row)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"((uint)__cvta_generic_to_shared(row))
                 : "memory");
    return r;
}

KFN uint4 frag_load_turned(FRAG_PTR(const ushort) row)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"((uint)__cvta_generic_to_shared(row))
                 : "memory");
    return r;
}

/* Low or high halves of two words, a's below. */
KFN uint frag_low(uint a, uint b)
{
    return __byte_perm(a, b, 0x5410);
}
KFN uint frag_high(uint a, uint b)
{
    return __byte_perm(a, b, 0x7632);
}

/* 8 bytes from element i on; i % 4 == 0. */
typedef struct frag_w2 {
    uint x, y;
} frag_w2;

KFN frag_w2 frag_ld8(DPTR(const ushort) p, uint i)
{
    const uint2 v = *(const uint2 *)(p + i);
    frag_w2 w;
    w.x = v.x;
    w.y = v.y;
    return w;
}
#define frag_tg_ld8 frag_ld8

/* tg_ld16 that is not kept in registers over a loop. */
KFN uint4 frag_read16(TPTR(const uint) p)
{
    uint4 r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"((uint)__cvta_generic_to_shared(p))
                 : "memory");
    return r;
}

/* 16 bytes of it. */
KFN uint4 frag_row16(FRAG_PTR(const ushort) p)
{
    return tg_ld16h(p, 0);
}

/* 16 bytes from device to threadgroup memory, behind the program's back; zeros when not valid (the
 * address is not read). frag_copy_close ends a set; frag_copy_wait<N>: all but the last N sets are
 * there for this thread. */
KFN void frag_copy16(FRAG_PTR(ushort) to, DPTR(const ushort) from, bool valid)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint)__cvta_generic_to_shared(to)),
        "l"(from), "r"(valid ? 16 : 0)
        : "memory");
}
KFN void frag_copy_close()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <uint N> KFN void frag_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Threadgroup memory beyond TG_ARRAY's: FRAG_MEMORY(kernel, bytes) at file scope, FRAG_ARRAY in the
 * kernel. */
#define FRAG_MEMORY(name, bytes) KERNEL_DYN_SMEM(name, bytes)
#define FRAG_ARRAY(name, bytes)                                                                    \
    extern __shared__ __align__(1024) ushort frag_memory[];                                        \
    FRAG_PTR(ushort) name = frag_memory

#endif
