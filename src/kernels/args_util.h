/* args_util.h - argument structs of util.h. */
#ifndef CALLA_KERNELS_ARGS_UTIL_H
#define CALLA_KERNELS_ARGS_UTIL_H

#include "kernels/args.h"

typedef struct util_fill_args {
    uint32_t n, value;
} util_fill_args;
KARGS_SIZE(util_fill_args, 8);

typedef struct util_copy_args {
    uint32_t n;
} util_copy_args;
KARGS_SIZE(util_copy_args, 4);

typedef struct util_sum_args {
    float scale;
} util_sum_args;
KARGS_SIZE(util_sum_args, 4);

typedef struct util_read_args {
    uint32_t n_rounds;
} util_read_args;
KARGS_SIZE(util_read_args, 4);

#endif
