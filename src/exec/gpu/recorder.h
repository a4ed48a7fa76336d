/* recorder.h - collects dispatches and derives their order from what they read and write.
 *
 * Does:       keeps a growing list of dispatches; rec_finish() computes, from the bindings' byte
 *             ranges, the dependencies (read after write, write after read, write after write),
 *             reduces them transitively and assigns levels. Nothing is ordered by hand.
 * Owns:       its lists; the recording of rec_finish() borrows from it until the next rec_reset().
 * Errors:     sticky: after a failure (memory, a binding outside its buffer, a wrong count) every
 *             call is a no-op and rec_finish() reports the first one.
 */
#ifndef CALLA_EXEC_GPU_RECORDER_H
#define CALLA_EXEC_GPU_RECORDER_H

#include "exec/gpu/device.h"

typedef struct recorder recorder;

calla_status recorder_create(recorder **out, gpu_device *d, calla_error *err);
void recorder_destroy(recorder *r);
void rec_reset(recorder *r);

/* Begins a dispatch; bindings, arguments and cost follow and belong to it. */
void rec_dispatch(recorder *r, kernel_id k, uint32_t grid_x, uint32_t grid_y);
void rec_read(recorder *r, gpu_view v);  /* the next binding */
void rec_write(recorder *r, gpu_view v); /* every byte that is read was written by it before */
void rec_read_write(recorder *r, gpu_view v);
void rec_args(recorder *r, const void *args, uint32_t bytes);
void rec_cost(recorder *r, double bytes, double flops);
void rec_label(recorder *r, const char *label); /* static storage; of the following dispatches */

/* serial: every dispatch depends on the one before it (the ablation of `concurrent`). */
calla_status rec_finish(recorder *r, bool serial, gpu_recording *out, calla_error *err);

#endif
