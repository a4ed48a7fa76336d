/* registry.h - declares every function of registry.inc, and the order of the variants. */
#ifndef CALLA_EXEC_CPU_REGISTRY_H
#define CALLA_EXEC_CPU_REGISTRY_H

#include "exec/cpu/kernels.h"

/* A table is filled upwards, so a later variant here overrides an earlier one. */
enum {
    VARIANT_ref,
    VARIANT_avx2,
    VARIANT_avxvnni,
    VARIANT_avx512,
    VARIANT_neon,
    VARIANT_i8mm,
    N_VARIANTS
};
#define VARIANT_NAMES                                                                              \
    {                                                                                              \
        "ref", "avx2", "avxvnni", "avx512", "neon", "i8mm"                                         \
    }

#define KERNEL(name, variant, needs) kernel_##name variant##_##name;
#include "exec/cpu/registry.inc"
#undef KERNEL

#endif
