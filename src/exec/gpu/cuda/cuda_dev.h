/* cuda_dev.h - inside the CUDA driver: its state, shared by its files and by its tests.
 *
 * Does:       cuda.c device and memory, copy.c ordered copies, program.c launches and graphs.
 * Invariants: one context, one stream: everything takes effect in the order of the calls. The
 *             context is current only inside a call, so a program that uses CUDA itself is not
 *             disturbed.
 *             Tickets count from 1. The events of ticket t are those of slot t % CUDA_SLOTS, until
 *             ticket t + CUDA_SLOTS has waited for it.
 *             A failure at ticket f is reported by the first wait (or read) for f or later; then
 *             every ticket issued before that report fails too, and the following ones are good.
 * Errors:     after an error the context is asked to synchronise; when it cannot, it is lost.
 */
#ifndef CALLA_EXEC_GPU_CUDA_DEV_H
#define CALLA_EXEC_GPU_CUDA_DEV_H

#include "base/pool.h"
#include "exec/gpu/cuda/api.h"
#include "exec/gpu/device.h"

#define CUDA_SLOTS         64u
#define CUDA_MODULES_MAX   8u
#define CUDA_SEGMENTS      4u
#define CUDA_SEGMENT_BYTES (8u << 20)

/* A fat binary in memory. */
typedef struct cuda_image {
    const void *data;
    size_t bytes;
} cuda_image;

/* What a device is made from; the tests have their own. */
typedef struct cuda_source {
    const cuda_api *api;
    const cuda_image *image;
    uint32_t n_images;
} cuda_source;

typedef struct cuda_kernel {
    cu_function func; /* NULL: not in this build */
    uint32_t dyn_smem;
    uint32_t args_bytes; /* of the argument struct; UINT32_MAX: unknown */
} cuda_kernel;

typedef struct cuda_slot {
    cu_event begin, end;
    uint64_t ticket; /* 0: unused */
} cuda_slot;

/* A piece of the pinned ring through which writes pass. */
typedef struct cuda_segment {
    uint8_t *host;
    cu_event done; /* the copies out of it, when busy */
    size_t used;
    bool busy;
} cuda_segment;

typedef struct cuda_device {
    gpu_device base;
    cuda_api api;
    cu_device id;
    cu_context ctx;
    cu_stream stream;
    char name[96];
    uint32_t n_cores;
    bool native_mm;  /* sm_90a: the main loops of prim_*_cuda.h */
    bool native_pdl; /* early starts: sm_90 and newer, and a driver that knows them */
    bool lost;

    cu_module module[CUDA_MODULES_MAX];
    uint32_t n_modules;
    cuda_kernel kernel[KERNEL_COUNT + 1];
    cu_function faulty; /* cuda_break() */

    cuda_slot slot[CUDA_SLOTS];
    uint64_t last_ticket;
    uint32_t inject;                /* countdown; 0: off */
    uint64_t fail_first, fail_last; /* tickets that failed; 0: none; last 0: not yet reported */
    calla_error fail_error;

    uint8_t *ring; /* CUDA_SEGMENTS * CUDA_SEGMENT_BYTES, pinned */
    cuda_segment segment[CUDA_SEGMENTS];
    uint32_t i_segment;
    pool *copiers; /* for large writes; created at the first */
} cuda_device;

struct gpu_buffer {
    cu_ptr ptr;
    void *host; /* NULL: device memory */
    uint64_t bytes;
};

calla_status cuda_create_from(gpu_device **out, const cuda_source *src, uint32_t i_device,
                              calla_error *err);

/* Makes the context current until cuda_leave(); CALLA_ERR_DEVICE when it is lost. */
calla_status cuda_enter(cuda_device *d, calla_error *err);
void cuda_leave(cuda_device *d);
/* The status for a failed call; `what` completes "... failed while WHAT". */
calla_status cuda_fail(cuda_device *d, cu_result r, const char *what, calla_error *err);

/* In a function that has `calla_status st` and a label `fail`. */
#define CU(d, call, what, err)                                                                     \
    do {                                                                                           \
        const cu_result cu_r = (call);                                                             \
        if (cu_r != 0) {                                                                           \
            st = cuda_fail(d, cu_r, what, err);                                                    \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)

calla_status cuda_copy_init(cuda_device *d, calla_error *err);
void cuda_copy_deinit(cuda_device *d);
calla_status cuda_write(gpu_device *dev, gpu_view dst, const void *src, calla_error *err);
calla_status cuda_zero(gpu_device *dev, gpu_view dst, calla_error *err);
calla_status cuda_copy(gpu_device *dev, gpu_view dst, gpu_view src, calla_error *err);
calla_status cuda_read(gpu_device *dev, void *dst, gpu_view src, calla_error *err);

calla_status cuda_program_create(gpu_device *dev, const gpu_recording *r, bool once,
                                 gpu_program **out, calla_error *err);
void cuda_program_destroy(gpu_device *dev, gpu_program *p);
calla_status cuda_profile(gpu_device *dev, gpu_program *p, double *seconds, calla_error *err);

calla_status cuda_submit(gpu_device *dev, gpu_program *p, uint64_t *ticket, calla_error *err);
calla_status cuda_wait(gpu_device *dev, uint64_t ticket, double *seconds, calla_error *err);
/* The failure of a ticket up to `ticket` that is to be reported, if any. */
calla_status cuda_pending(cuda_device *d, uint64_t ticket, calla_error *err);
/* The launches of p, in order, on the stream. */
calla_status cuda_program_launch(cuda_device *d, gpu_program *p, calla_error *err);

/* How a program is run, for tests and benchmarks: 0 launches, 1 a graph, 2 a graph in which some
 * dispatches start early. */
uint32_t cuda_program_mode(const gpu_program *p);

/* Runs a kernel that writes to a bad address: the context is lost at the next wait. For tests. */
calla_status cuda_break(gpu_device *dev, uint64_t *ticket, calla_error *err);

#endif
