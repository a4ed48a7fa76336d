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

/* FNV-1a, 64 bits. */
uint64_t msl_hash(const void *text, size_t bytes);

/* The kernels of metal_sources[family] at a rung (any when the family has no tiles): rows up to an
 * empty one; NULL when there is no such text. hash: of the text they come from, or NULL. */
const simt_kernel *msl_kernels(metal_rung rung, uint32_t family, uint64_t *hash);

/* Are rungs 1 to 3 what they say? Otherwise they are rung 0. */
extern const bool msl_has_rungs;

/* All kernels of a rung by kernel_id, for simt_device_create. A kernel that Metal does not have
 * ends its dispatch with a violation. Not thread-safe the first time. */
const simt_kernel *msl_table(metal_rung rung);

#ifdef __cplusplus
}
#endif
#endif
