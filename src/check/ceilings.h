/* ceilings.h - what a GPU gives at most: the cost of a dispatch, reading, and products.
 *
 * Does:       chains of dispatches that depend on each other, of dispatches that do not, and of
 *             dispatches that read, all by kernels of the program (util_read) and timed by the
 *             device.
 * Memory:     eight times the largest of `bytes`; of a product 270 MB; freed at the end.
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

/* A product of the kind that prefill is made of: 4-bit weights [rows][cols] by n tokens. */
typedef struct gpu_product {
    uint32_t n, rows, cols;
    double flops; /* operations/s, the best of a few runs; random values */
} gpu_product;

calla_status gpu_product_measure(gpu_device *d, bool small, gpu_product *out, calla_error *err);

/* small: sizes for an emulator. */
calla_status gpu_ceilings_measure(gpu_device *d, bool small, gpu_ceilings *out, calla_error *err);

#endif
