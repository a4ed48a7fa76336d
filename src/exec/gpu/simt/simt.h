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

/* The kernels of the program, by kernel_id (kernels_simt.cpp). */
extern const simt_kernel simt_kernels_fast[];

calla_status simt_machine_create(simt_machine **out, calla_error *err);
void simt_machine_destroy(simt_machine *m);
/* False after a violation. Denormals must be flushed (base/fpenv.h). */
bool simt_machine_run(simt_machine *m, const simt_launch *l, uint32_t gx, uint32_t gy);
const char *simt_machine_failure(const simt_machine *m);

/* A device with other kernels than the program's (tests); rows up to a NULL name. */
calla_status simt_device_create(gpu_device **out, const gpu_simt_options *o,
                                const simt_kernel *kernels, calla_error *err);

#endif
