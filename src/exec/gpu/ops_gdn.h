/* ops_gdn.h - the scan with a kernel of the caller's choice, for tests and measurements. */
#ifndef CALLA_EXEC_GPU_OPS_GDN_H
#define CALLA_EXEC_GPU_OPS_GDN_H

#include "exec/gpu/ops.h"

typedef struct gdn_scan_kind {
    kernel_id kernel;
    uint32_t groups; /* of a value head */
    uint32_t lanes;  /* a column */
    bool one, regs;  /* one reduction; state in registers */
} gdn_scan_kind;

#define GDN_SCAN_KINDS 8u
/* All scan kernels; the first is the release path. */
extern const gdn_scan_kind gdn_scan_kinds[GDN_SCAN_KINDS];

/* op_gdn_scan with that kernel, whatever the switches say. */
void gdn_scan_with(gpu_context *g, const gdn_scan_kind *kind, uint32_t n, uint32_t n_segs,
                   gpu_view tok, gpu_view seg, const gpu_gdn *l, gpu_view y, gpu_view scratch,
                   gpu_view o);

#endif
