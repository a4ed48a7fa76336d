/* predict.h - how fast a GPU would be, from what it would be asked to do.
 *
 * Does:       a table of GPUs with published and measured figures, and the time of a decode step or
 *             of a prompt on one of them, from the dispatches of the schedule (executor.h).
 * Formula:    seconds = sum over dispatches of max(bytes / read rate, operations / rate of their
 *             kind) + stages x cost of a dependent stage. Dispatches of one stage share the memory
 *             and the units, so their times add up. Kinds: products of matrix tiles; rows of codes
 *             (decode), by instructions a weight; everything else, f32 with half of its slots used.
 * Invariants: a prediction, not a measurement: of the chips of the table, only the H200's rates are
 *             of this program's own kernels.
 */
#ifndef CALLA_EXEC_PREDICT_H
#define CALLA_EXEC_PREDICT_H

#include "exec/executor.h"

struct exec_chip {
    const char *id;     /* "m5-max" */
    const char *device; /* as its driver says it, "Apple M5 Max" */
    const char *tiles;  /* how matrix tiles are multiplied */
    uint32_t n_cores;
    uint32_t native_mm; /* gpu_mm */
    double read;        /* bytes/s that products sustain */
    double tile, row;   /* operations/s of matrix tiles; of rows of codes */
    double f32;         /* operations/s of fused multiply-adds */
    double stage;       /* seconds of a dependent dispatch */
};

/* The table; *n: rows. */
const exec_chip *exec_chips(uint32_t *n);
/* The chip of a device's name, with the best tiles that the table has for it; NULL: not there. */
const exec_chip *exec_chip_of(const char *device);

typedef struct exec_prediction {
    double seconds;                      /* of the step, or of the whole prompt */
    double of_bytes, of_work, of_stages; /* parts of it: bound by reading, by operations, waiting */
    double bytes, flops;
    uint32_t n_kernels, n_stages; /* of a step, or of all chunks */
} exec_prediction;

/* A decode step of one sequence at n_ctx tokens, or the prefill of a prompt of n_ctx tokens. */
calla_status exec_gpu_predict(const model_shape *shape, const exec_chip *chip, bool prefill,
                              uint32_t n_ctx, exec_prediction *out, calla_error *err);

#endif
