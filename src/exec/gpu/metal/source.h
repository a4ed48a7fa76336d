/* source.h - the kernels as Metal source text: what the driver compiles on the machine it runs on.
 *
 * Does:       one flattened text a family of kernels (kernels.metal), embedded by the build.
 * Invariants: a text includes Apple's headers only. METAL_RUNG is the kind of matrix tiles: a
 *             family that has tiles is compiled with the macro CALLA_RUNG (its number), at language
 *             METAL_LANGUAGE(rung, macOS); the others without the macro, as METAL_RUNG_SCALAR.
 */
#ifndef CALLA_EXEC_GPU_METAL_SOURCE_H
#define CALLA_EXEC_GPU_METAL_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum metal_rung {
    METAL_RUNG_SCALAR,    /* shuffles and fma */
    METAL_RUNG_SIMDGROUP, /* simdgroup_matrix: M1 and newer */
    METAL_RUNG_TENSOR,    /* cooperative tensors 16 x 32 x 16: M5, macOS 26.2 */
    METAL_RUNG_TENSOR4,   /* 4-bit operands from memory as they are: M5, macOS 26.4 */
    METAL_RUNGS
} metal_rung;

/* 3.2, where the system has it, for its fence of device memory (dialect_metal.h). */
#define METAL_LANGUAGE(rung, macos)                                                                \
    ((rung) >= METAL_RUNG_TENSOR ? 0x40000u : (macos) >= 15 ? 0x30002u : 0x30001u)

typedef struct metal_source {
    const char *name; /* "basic", "gemv", "gemm", "gdn", "attn" */
    const char *text; /* NUL-terminated */
    size_t bytes;     /* without the NUL */
    bool has_tiles;   /* depends on CALLA_RUNG */
} metal_source;

#define METAL_SOURCES 5u
extern const metal_source metal_sources[METAL_SOURCES];

/* Which text has the kernel: [KERNEL_COUNT], index into metal_sources; UINT8_MAX: no text has it,
 * it is for another target alone. */
extern const uint8_t metal_source_of[];

#endif
