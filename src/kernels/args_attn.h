/* args_attn.h - arguments and shared arithmetic of the attention kernels (host and device). */
#ifndef CALLA_KERNELS_ARGS_ATTN_H
#define CALLA_KERNELS_ARGS_ATTN_H

#include "kernels/args.h"
#include "kernels/kmath.h"

#define ATTN_DIM        256
#define ATTN_BLOCKS_MAX 64  /* key blocks of a sequence */
#define ATTN_BLOCK_MIN  32  /* keys; every block is a multiple of it */
#define ATTN_MMA_GROUP  8   /* query heads of a KV head that the decode products take */
#define ATTN_SCAN_ROWS  128 /* rows (positions times heads) of a prefill tile on products */
#define ATTN_SCAN_KEYS  64
#define ATTN_MM_ROWS    32 /* the same on portable tiles, and the most heads */
#define ATTN_SCAN_GROUP 16 /* query heads of a KV head that it takes */

typedef struct attn_args {
    uint32_t n_heads, n_kv_heads;
    uint32_t group;    /* query heads of a KV head, at most 16 */
    uint32_t n_rows;   /* rows of the cache of one KV head */
    uint32_t y_pitch;  /* N2: row of y, floats */
    uint32_t n_blocks; /* blocks of a sequence that the partial results have room for */
    uint32_t one;      /* not 0: one block covers the whole sequence */
    uint32_t n_tokens, n_segs;
    float eps;
} attn_args;
KARGS_SIZE(attn_args, 40);

/* Keys of a block when n are visible: depends on n alone, and keeps the blocks within
 * ATTN_BLOCKS_MAX and near it for long sequences. */
KFN unsigned attn_block_keys(unsigned n, unsigned one)
{
    const unsigned grain = ATTN_BLOCK_MIN * ATTN_BLOCKS_MAX;
    return one != 0 ? n : ATTN_BLOCK_MIN * ((n + grain - 1) / grain);
}

/* 2^x within 2 ulp for x <= 127; 0 below -126. Our own least-squares fit. */
KFN float attn_exp2(float x)
{
    const float c = x < -126.0f ? -126.0f : x;
    const float n = kx_round(c);
    const float r = c - n;
    float p = 1.321867225e-03f;
    p = KFMA(p, r, 9.671698324e-03f);
    p = KFMA(p, r, 5.550893024e-02f);
    p = KFMA(p, r, 2.402223796e-01f);
    p = KFMA(p, r, 6.931468844e-01f);
    p = KFMA(p, r, 1.0f);
    return x < -126.0f ? 0.0f : p * KFLOAT((unsigned)((int)n + 127) << 23);
}

/* Queries are scaled by log2(e) / sqrt(ATTN_DIM): scores are exponents of 2. */
#define ATTN_SCALE 0.0901684400f

#endif
