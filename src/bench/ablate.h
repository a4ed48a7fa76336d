/* ablate.h - what each mechanism of the GPU executor is worth.
 *
 * Does:    measures with it and without it, alternating in one process: pairs of results, the first
 *          with `without` "", the second with the mechanism's name.
 * Errors:  CALLA_ERR_UNSUPPORTED where the executor has nothing to turn off.
 */
#ifndef CALLA_BENCH_ABLATE_H
#define CALLA_BENCH_ABLATE_H

#include "bench/measure.h"

/* The first name of the list "A,B,..." that is no mechanism, NULL when all are; *n its length. */
const char *ablate_unknown(const char *list, size_t *n);

typedef struct ablate_options {
    const char *only; /* "A,B,...": these mechanisms; NULL: all */
    /* Lengths instead of each mechanism's own; 0: none given. */
    const uint32_t *prefill, *decode;
    uint32_t n_prefill, n_decode;
} ablate_options;

/* Prints a line for each. */
calla_status ablate_run(measure *m, bench_record *r, const ablate_options *o, calla_error *err);

#endif
