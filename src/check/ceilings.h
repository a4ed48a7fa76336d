/* ceilings.h - what a GPU gives at most: the cost of a dispatch, and reading.
 *
 * Does:       chains of dispatches that depend on each other, of dispatches that do not, and of
 *             dispatches that read, all by kernels of the program (util_read) and timed by the
 *             device.
 * Memory:     the largest of `bytes`, twice; freed at the end.
 */
#ifndef CALLA_CHECK_CEILINGS_H
#define CALLA_CHECK_CEILINGS_H

#include "exec/gpu/device.h"

#define CEILING_GROUPS 4u
#define CEILING_READS  4u

typedef struct gpu_ceilings {
    uint32_t groups[CEILING_GROUPS];
    double dependent[CEILING_GROUPS], independent[CEILING_GROUPS]; /* seconds a dispatch */
    uint64_t bytes[CEILING_READS]; /* that one dispatch of a chain reads */
    double read[CEILING_READS];    /* bytes/s of the chain */
} gpu_ceilings;

/* small: sizes for an emulator. */
calla_status gpu_ceilings_measure(gpu_device *d, bool small, gpu_ceilings *out, calla_error *err);

#endif
