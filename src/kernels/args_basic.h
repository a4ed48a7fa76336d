/* args_basic.h - arguments of the kernels in basic.h. */
#ifndef CALLA_KERNELS_ARGS_BASIC_H
#define CALLA_KERNELS_ARGS_BASIC_H

#include "kernels/args.h"

typedef struct basic_embed_args {
    uint32_t hidden; /* % 64 == 0 */
} basic_embed_args;
KARGS_SIZE(basic_embed_args, 4);

typedef struct basic_norm_args {
    uint32_t n; /* width of a row, % 4 == 0 */
    float eps;
} basic_norm_args;
KARGS_SIZE(basic_norm_args, 8);

typedef struct basic_top8_args {
    uint32_t n_tokens, n_experts, n_used;
} basic_top8_args;
KARGS_SIZE(basic_top8_args, 12);

#define ARGMAX_BLOCK 4096u /* logits a group of basic_argmax_part */
typedef struct basic_argmax_args {
    uint32_t n_vocab; /* logits in a row, % 4 == 0 */
    uint32_t n_valid; /* that take part */
    uint32_t n_blocks;
} basic_argmax_args;
KARGS_SIZE(basic_argmax_args, 12);

#endif
