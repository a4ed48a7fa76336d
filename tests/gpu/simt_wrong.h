/* simt_wrong.h - kernels that are wrong on purpose: binding 0 read, binding 1 written. */
#ifndef CALLA_TESTS_GPU_SIMT_WRONG_H
#define CALLA_TESTS_GPU_SIMT_WRONG_H

#include <stdint.h>

typedef struct wrong_args {
    uint32_t n;
} wrong_args;

#define WRONG_KERNELS(K)                                                                           \
    K(wrong_copy, 32)                                                                              \
    K(wrong_update, 32)                                                                            \
    K(wrong_divergent_simd, 64)                                                                    \
    K(wrong_two_sites, 64)                                                                         \
    K(wrong_divergent_barrier, 64)                                                                 \
    K(wrong_two_barriers, 64)                                                                      \
    K(wrong_tg_race, 64)                                                                           \
    K(wrong_sg_race, 64)                                                                           \
    K(wrong_tg_war, 64)                                                                            \
    K(wrong_device_race, 64)                                                                       \
    K(wrong_groups, 32)                                                                            \
    K(wrong_last_arriver, 32)                                                                      \
    K(wrong_bounds, 32)                                                                            \
    K(wrong_tg_bounds, 32)                                                                         \
    K(wrong_tg_unwritten, 32)                                                                      \
    K(wrong_tg_big, 32)

enum {
#define K(name, threads) WRONG_##name,
    WRONG_KERNELS(K)
#undef K
        WRONG_COUNT
};

#endif
