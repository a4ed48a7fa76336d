/* mm_check.h - whether a device multiplies matrices right, at the shapes of the real model.
 *
 * Does:       multiplies single tiles, whose sums are exact; runs op_gemm, op_moe_gemm and
 *             op_attn_scan on drawn values and compares a sample of the results (every place of a
 *             tile, tiles drawn at random, always the last ones) with the plain C references.
 *             A driver that can build its matrix tiles in several ways decides with it which way
 *             this machine gets right: compilers have been seen to make wrong code for large
 *             shapes only.
 * Invariants: deterministic in the seed. Works on every device; on the emulator choose n_max small.
 * Memory:     about 100 MB on the device, and as much here; all freed.
 * Errors:     CALLA_ERR_DEVICE with a sentence when a value is wrong or the device failed, the
 *             report holding what was done; CALLA_ERR_MEMORY.
 */
#ifndef CALLA_EXEC_GPU_MM_CHECK_H
#define CALLA_EXEC_GPU_MM_CHECK_H

#include "exec/gpu/device.h"

#define MM_CHECKS_MAX 12u

typedef struct mm_check_options {
    uint64_t seed;
    uint32_t n_max; /* tokens of a check, at least 8; larger ones are left out; 0: all */
} mm_check_options;

typedef struct mm_check {
    const char *what;       /* "tile", "tile, turned", "gemm", "gemm add", "experts", "attention" */
    uint32_t n, rows, cols; /* tokens, and the matrix; attention: heads and dims */
    double worst;           /* the largest error in parts of its bound: right up to 1 */
    double seconds;         /* of the device */
    double flops;
} mm_check;

typedef struct mm_check_report {
    mm_check check[MM_CHECKS_MAX];
    uint32_t n;
} mm_check_report;

calla_status mm_check_run(gpu_device *d, const mm_check_options *o, mm_check_report *out,
                          calla_error *err);

#endif
