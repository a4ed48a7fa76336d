/* args_gdn.h - arguments of the Gated DeltaNet kernels. */
#ifndef CALLA_KERNELS_ARGS_GDN_H
#define CALLA_KERNELS_ARGS_GDN_H

#include "kernels/args.h"

/* Tokens that one simdgroup of gdn_prep walks over. */
#define GDN_PREP_TOKENS 8
/* Tokens staged at a time by the scan. */
#define GDN_STAGE 16
/* Tokens between two visits of the state to device memory, in the blockwise scan. */
#define GDN_BLOCK 32
/* Floats of one head's state; of one tile (8 columns) of it. */
#define GDN_HEAD_FLOATS 16384
#define GDN_TILE_FLOATS 1024

typedef struct gdn_args {
    uint32_t n, n_segs;        /* tokens, segments */
    uint32_t k_heads, v_heads; /* HK, HV */
    uint32_t ratio;            /* HV / HK */
    uint32_t y_pitch;          /* N1 = C + VW + 2 HV, a multiple of 4 */
    float eps;                 /* of the gated norm */
    uint32_t reserved;
} gdn_args;
KARGS_SIZE(gdn_args, 32);

#endif
