/* args_gemm.h - argument structs of the prefill products, and the layout of the routing lists. */
#ifndef CALLA_KERNELS_ARGS_GEMM_H
#define CALLA_KERNELS_ARGS_GEMM_H

#include "kernels/args.h"

/* y [n][rows] = or += W x; x [n][cols]. */
typedef struct gemm_args {
    uint32_t n, rows, cols, add;
} gemm_args;
KARGS_SIZE(gemm_args, 16);

/* Expansion of n_mats matrices [rows][cols] to bf16: words of codes and of sb, from word 0 of the
 * binding, and from one matrix to the next. */
typedef struct gemm_expand_args {
    uint32_t n_mats, rows, cols, codes, sb, stride;
} gemm_expand_args;
KARGS_SIZE(gemm_expand_args, 24);

typedef struct gemm_router_args {
    uint32_t n, rows, cols;
    float eps;
} gemm_router_args;
KARGS_SIZE(gemm_router_args, 16);

/* Routing lists. Pairs (token, choice) are sorted by expert, then by token: `slots`. The shared
 * expert n_experts has the n slots behind those, in token order. Slots of an expert are cut into
 * tiles: c slots make, with full == 0, ceil(c / tail) short tiles; with tail == 0, ceil(c / full)
 * full ones, of about equal height (a multiple of 16; full is one, at most 128); else full ones
 * and, if 1 .. tail slots remain, one short tile. */
typedef struct moe_plan_args {
    uint32_t n, n_used, n_experts;
    uint32_t full, tail;
} moe_plan_args;
KARGS_SIZE(moe_plan_args, 20);

/* n_map [16]: number of full tiles, of short tiles. An entry of a map: expert, slot, rows, 0. */
#define MOE_MAP_FULL  0
#define MOE_MAP_SHORT 1

/* One product of the experts: rows x cols of each slab; codes and sb: word offsets in a slab. */
typedef struct moe_gemm_args {
    uint32_t rows, cols, codes, sb, slab; /* slab: words */
    uint32_t list;                        /* MOE_MAP_FULL or MOE_MAP_SHORT */
} moe_gemm_args;
KARGS_SIZE(moe_gemm_args, 24);

typedef struct moe_combine_args {
    uint32_t n, n_used, hidden;
} moe_combine_args;
KARGS_SIZE(moe_combine_args, 12);

/* The native main loop reads activations with the columns of every block of 32 in another order: at
 * place p stands column GMM_COLUMN(p). */
#define GMM_COLUMN(p) (((p) & ~31u) | ((p)&7u) << 2 | ((p)&31u) >> 3)

#define GMM_PLACE(c) (((c) & ~31u) | ((c)&3u) << 3 | ((c)&31u) >> 2) /* of column c */

typedef struct gmm_permute_args {
    uint32_t n_blocks; /* of 32 */
} gmm_permute_args;
KARGS_SIZE(gmm_permute_args, 4);

typedef struct mm_probe_args {
    uint32_t turned; /* 0: B is [32][16], else [16][32] */
} mm_probe_args;
KARGS_SIZE(mm_probe_args, 4);

/* Sums of rows of bf16 by groups of 64. */
typedef struct gmm_sums_args {
    uint32_t cols;
} gmm_sums_args;
KARGS_SIZE(gmm_sums_args, 4);

#endif
