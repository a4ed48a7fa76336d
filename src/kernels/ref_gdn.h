/* ref_gdn.h - plain C references of the Gated DeltaNet kernels (gdn.h): the same layouts, the same
 * order of operations, the same bits. Denormals must be flushed (base/fpenv.h). */
#ifndef CALLA_KERNELS_REF_GDN_H
#define CALLA_KERNELS_REF_GDN_H

#include <stdbool.h>

#include "kernels/args_gdn.h"

typedef struct ref_gdn {
    const float *conv, *rate, *dt, *norm;
    float *state, *ring;
    uint32_t k_heads, v_heads;
    float eps;
} ref_gdn;

/* op_gdn_step: y [T][N1] -> o [T][VW]. */
void ref_gdn_decode(const ref_gdn *l, uint32_t n, const tok_entry *tok, const float *y, float *o);

/* op_gdn_scan, o [T][VW] bf16. lpc: lanes a column of the scan kernel; one: one reduction. */
void ref_gdn_prefill(const ref_gdn *l, uint32_t n, const tok_entry *tok, const float *y,
                     uint32_t lpc, bool one, uint16_t *o);

#endif
