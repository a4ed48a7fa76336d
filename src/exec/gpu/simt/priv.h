/* priv.h - the emulator's device, for simt.c and schedule.c. */
#ifndef CALLA_EXEC_GPU_SIMT_PRIV_H
#define CALLA_EXEC_GPU_SIMT_PRIV_H

#include "base/pool.h"
#include "exec/gpu/simt/shadow.h"

struct gpu_buffer {
    uint8_t *data;
    uint64_t bytes;
    gpu_memory kind;
    shadow *shadow; /* checking mode, else NULL */
    char name[48];
};

struct gpu_program {
    gpu_dispatch *dispatch;
    uint32_t *dep_first, *dep; /* as in gpu_recording */
    uint32_t n;
};

typedef struct simt_device {
    gpu_device base;
    gpu_simt_options options;
    const simt_kernel *kernels;
    uint32_t n_kernels;
    pool *threads;
    simt_machine *machines[POOL_THREADS_MAX];
    simt_checker *checker; /* checking mode, else NULL */
    simt_watch watch;
    uint64_t used_bytes;           /* of device memory */
    uint64_t ticket;               /* the last given out */
    uint64_t lost_first, lost_end; /* tickets of failed and lost submissions; 0, 0: none */
    bool pending;                  /* a failure that no call has reported yet */
    char failure[1024];
    double seconds; /* of the last submission */
    uint32_t fail_in;
} simt_device;

/* The launch of a dispatch, without checks. */
simt_launch simt_launch_of(const simt_device *d, const gpu_dispatch *x);

/* Runs a program in checking mode: dispatches in any order that the dependencies allow, their
 * groups interleaved. False after a violation, which d->failure then says. seconds as in
 * gpu_ops.profile.
 */
bool simt_run_checked(simt_device *d, const gpu_program *p, double *seconds);

#endif
