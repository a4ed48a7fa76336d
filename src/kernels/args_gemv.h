/* args_gemv.h - arguments of the kernels in gemv.h. */
#ifndef CALLA_KERNELS_ARGS_GEMV_H
#define CALLA_KERNELS_ARGS_GEMV_H

#include "kernels/args.h"

/* Flags of a matrix product. */
#define GEMV_NORM    1u /* x is normed first */
#define GEMV_ADD     2u /* y += */
#define GEMV_ROWS_OF 4u /* token t's input is row rows_of[t] of x */

typedef struct gemv_args {
    uint32_t rows, cols; /* of the matrix; cols % 64 == 0 */
    uint32_t flags;
    float eps;
} gemv_args;
KARGS_SIZE(gemv_args, 16);

typedef struct gemv_multi_args {
    uint32_t rows, cols, n_tokens, flags;
} gemv_multi_args;
KARGS_SIZE(gemv_multi_args, 16);

typedef struct gemv_router_args {
    uint32_t cols; /* hidden, % 64 == 0, <= 4096 */
    uint32_t n_experts, n_used;
    uint32_t tail; /* the last group chooses the experts */
    float eps;
} gemv_router_args;
KARGS_SIZE(gemv_router_args, 20);

typedef struct gemv_moe_args {
    uint32_t hidden, width;
    uint32_t n_experts, n_used;
    uint32_t slab_words; /* of one expert, in u32 */
    uint32_t flags;
    float eps;
} gemv_moe_args;
KARGS_SIZE(gemv_moe_args, 28);

/* Row by row products with expert matrices: out row i of a slot is row first + stride * i of the
 * matrix at codes_at in the slab. */
typedef struct gemv_expert_args {
    uint32_t rows, cols;
    uint32_t first, stride;
    uint32_t codes_at, sb_at; /* in u32 from the slab's begin */
    uint32_t slab_words;
    uint32_t n_experts, n_used;
    uint32_t per_slot; /* x is [T][n_used + 1][cols], else [T][cols] */
    uint32_t flags;
    float eps;
} gemv_expert_args;
KARGS_SIZE(gemv_expert_args, 48);

#endif
