/* msl.h - the Metal kernels as the emulator runs them: the text that ships, compiled as C++ against
 * shim_run.h (run.cpp), for each family of kernels and each rung of its matrix tiles.
 *
 * Owns:    nothing; tables are static.
 */
#ifndef CALLA_TESTS_MSL_MSL_H
#define CALLA_TESTS_MSL_MSL_H

#include <stddef.h>
#include <stdint.h>

#include "exec/gpu/metal/source.h"
#include "kernels/simt.h"

typedef struct msl_library {
    const simt_kernel *kernels; /* the last row is empty */
    const unsigned char *text;  /* what they were compiled from */
    size_t bytes;
} msl_library;

#ifdef __cplusplus
extern "C" {
#endif

/* What is wrong with the matrix units, for tests of what must find it (shim_matrix_run.h). */
typedef enum msl_plant_kind {
    MSL_PLANT_NONE,
    MSL_PLANT_LANES_8,    /* simdgroup_matrix: rows and columns exchanged among the lanes */
    MSL_PLANT_LANES_16,   /* fragments: a lane's columns are elsewhere */
    MSL_PLANT_FRAGMENTS,  /* a right operand's two fragments exchanged */
    MSL_PLANT_NOT_TURNED, /* transpose_right is not heard */
    MSL_PLANT_OVERWRITES, /* multiply_accumulate multiplies */
    MSL_PLANT_SHORT_SUMS, /* results are bf16 */
    MSL_PLANT_NIBBLES,    /* the high nibble comes first */
    MSL_PLANT_LARGE,      /* columns from 1024 on are read 1024 before */
    MSL_PLANT_LAST_ROWS,  /* the last four rows of a clipped tensor are lost */
    MSL_PLANTS
} msl_plant_kind;
extern int msl_plant;

/* FNV-1a, 64 bits. */
uint64_t msl_hash(const void *text, size_t bytes);

/* The kernels of metal_sources[family] at a rung (any when the family has no tiles): rows up to an
 * empty one; NULL when there is no such text. hash: of the text they come from, or NULL. */
const simt_kernel *msl_kernels(metal_rung rung, uint32_t family, uint64_t *hash);

/* All kernels of a rung by kernel_id, for simt_device_create. A kernel that Metal does not have
 * ends its dispatch with a violation. Not thread-safe the first time. */
const simt_kernel *msl_table(metal_rung rung);

#ifdef __cplusplus
}
#endif
#endif
