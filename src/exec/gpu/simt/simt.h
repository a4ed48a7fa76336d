/* simt.h - the emulator behind device.h: machines that run groups of fibers.
 *
 * Does:       simt_machine_run() runs one group of a launch on the calling thread of the host.
 * Owns:       a machine owns its fibers' stacks and threadgroup memory.
 * Threads:    one machine for each thread of the host.
 * Errors:     a violation ends the group; simt_machine_failure() is its sentence.
 */
#ifndef CALLA_EXEC_GPU_SIMT_SIMT_H
#define CALLA_EXEC_GPU_SIMT_SIMT_H

#include "base/error.h"
#include "exec/gpu/device.h"
#include "kernels/simt.h"

/* The kernels of the program, by kernel_id (kernels_simt.cpp, kernels_check.cpp). */
extern const simt_kernel simt_kernels_fast[], simt_kernels_check[];

/* Groups to run: next() fills in launch, gx, gy, run, or returns false (there may be more when a
 * group has ended). */
typedef struct simt_source {
    bool (*next)(void *ctx, simt_group *g);
    void (*ended)(void *ctx, const simt_group *g);
    void *ctx;
} simt_source;

/* n_slots: groups that run interleaved. seed 0: everything in ascending order. */
calla_status simt_machine_create(simt_machine **out, uint32_t n_slots, uint64_t seed,
                                 calla_error *err);
void simt_machine_destroy(simt_machine *m);
void simt_machine_guard(simt_machine *m); /* a page without access below every stack */
/* False after a violation. Denormals must be flushed (base/fpenv.h). */
bool simt_machine_run(simt_machine *m, const simt_launch *l, uint32_t gx, uint32_t gy);
bool simt_machine_run_all(simt_machine *m, const simt_source *source);
const char *simt_machine_failure(const simt_machine *m);

/* A device with other kernels than the program's (tests); rows up to a NULL name. o->check must
 * agree with how they were compiled (SIMT_CHECK). */
calla_status simt_device_create(gpu_device **out, const gpu_simt_options *o,
                                const simt_kernel *kernels, calla_error *err);

/* What a checked submission touched, binding by binding, after it has run. */
typedef struct simt_touch {
    const gpu_dispatch *dispatch;
    const char *kernel;
    char param[32]; /* the kernel's name of the binding */
    uint32_t i_dispatch, i_binding;
    uint64_t declared, n_read, n_written; /* bytes, to four */
    bool old_read; /* a byte that this dispatch had not written before was read */
} simt_touch;
/* An edge of the recording, and whether the two dispatches touched a byte in conflict. */
typedef struct simt_edge {
    uint32_t before, after;
    const char *kernel_before, *kernel_after;
    bool needed;
} simt_edge;
typedef struct simt_watch {
    void (*touch)(void *ctx, const simt_touch *t);
    void (*edge)(void *ctx, const simt_edge *e);
    void *ctx;
} simt_watch;
void simt_device_watch(gpu_device *d, const simt_watch *w); /* NULL: none */

#endif
