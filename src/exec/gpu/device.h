/* device.h - the narrow waist of the GPU drivers (simt, cuda, metal).
 *
 * Does:       memory, ordered small copies, programs (recorded dispatches), submission, waiting.
 * Owns:       buffers and programs belong to their device and are destroyed before it.
 * Invariants: submissions, writes and reads take effect in the order of the calls (one queue). A
 *             dispatch touches only the ranges of its bindings, in the declared way; the emulator
 *             checks that. Between dispatches of a program only the edges of the recorder order.
 * Threads:    one caller at a time.
 * Errors:     CALLA_ERR_MEMORY before anything is half done; CALLA_ERR_DEVICE when the device
 *             failed: the work since the last successful wait is lost, buffers may hold anything,
 *             the device can be used again unless gpu_ops.lost says otherwise.
 */
#ifndef CALLA_EXEC_GPU_DEVICE_H
#define CALLA_EXEC_GPU_DEVICE_H

#include "base/error.h"

typedef struct gpu_device gpu_device;
typedef struct gpu_buffer gpu_buffer;
typedef struct gpu_program gpu_program;

typedef enum gpu_memory {
    GPU_MEM_DEVICE, /* device memory; contents undefined at creation */
    GPU_MEM_HOST    /* seen by both sides at buffer_host(); kernels write it sparingly */
} gpu_memory;

enum { GPU_READ = 1, GPU_WRITE = 2, GPU_READ_WRITE = 3 };

/* Part of a buffer. off is a multiple of 16. */
typedef struct gpu_view {
    gpu_buffer *buf;
    uint64_t off, bytes;
} gpu_view;

typedef struct gpu_binding {
    gpu_view view;
    uint32_t access; /* GPU_READ, ... */
} gpu_binding;

#define GPU_BINDINGS_MAX 16u
#define GPU_ARGS_MAX     128u

/* Index into kernels.inc. */
typedef enum kernel_id {
#define K(name, threads, bindings) KERNEL_##name,
#include "kernels/kernels.inc"
#undef K
    KERNEL_COUNT
} kernel_id;

typedef struct kernel_info {
    const char *name;
    uint32_t threads, n_bindings;
} kernel_info;
extern const kernel_info kernel_table[KERNEL_COUNT + 1]; /* kernels.c; the last row is empty */

/* One kernel launch over grid_x * grid_y groups. */
typedef struct gpu_dispatch {
    uint32_t kernel; /* kernel_id */
    uint32_t grid_x, grid_y;
    uint32_t n_bindings, args_bytes;
    gpu_binding bind[GPU_BINDINGS_MAX];
    uint8_t args[GPU_ARGS_MAX];
    /* Cost: bytes that must move through device memory, operations (an fma is two). */
    double bytes, flops;
    const char *label; /* for profiles: layer kind and step; static storage */
} gpu_dispatch;

/* What the recorder hands to a driver. Dispatches are in an order in which running them one after
 * the other is right. level[i]: dispatches of one level have no hazard among themselves, and depend
 * on lower levels only. Dependencies of i: dep[dep_first[i] .. dep_first[i + 1]), each < i,
 * transitively reduced. */
typedef struct gpu_recording {
    const gpu_dispatch *dispatch;
    const uint32_t *level, *dep_first, *dep;
    uint32_t n, n_levels;
    /* A driver may start a dispatch before the one it depends on has ended: PDL_WAIT() orders the
     * rest (switch pdl). The recorder leaves it false. */
    bool early_start;
} gpu_recording;

/* Main loops of 4-bit products that a target may have beyond the portable tile (prim_gmm.h). */
typedef enum gpu_mm {
    GPU_MM_TILES, /* none */
    GPU_MM_CODES, /* Metal with tensors of codes in memory: gmm_codes */
    GPU_MM_WGMMA  /* CUDA sm_90a: gmm_run, and the fragments of attn_mma.h */
} gpu_mm;

typedef struct gpu_limits {
    char name[96];        /* "NVIDIA H200", "SIMT emulator" */
    uint64_t total_bytes; /* device memory; 0: unknown */
    uint64_t free_bytes;  /* now */
    uint32_t n_cores;     /* multiprocessors */
    gpu_mm native_mm;
    double dispatch_flops; /* of one dispatch, so that no watchdog minds it; 0: any number */
} gpu_limits;

typedef struct gpu_ops {
    const char *name; /* "simt", "cuda", "metal" */
    void (*destroy)(gpu_device *d);
    void (*limits)(gpu_device *d, gpu_limits *out);
    calla_status (*buffer_create)(gpu_device *d, gpu_memory kind, uint64_t bytes, const char *name,
                                  gpu_buffer **out, calla_error *err);
    void (*buffer_destroy)(gpu_device *d, gpu_buffer *b);
    /* A buffer over memory of the host, which is read there and stays the caller's: host is at the
     * beginning of a page of the system, all of the last page is readable, and neither changes
     * while the buffer exists. NULL: this driver's buffers are its own. */
    calla_status (*buffer_map)(gpu_device *d, const void *host, uint64_t bytes, const char *name,
                               gpu_buffer **out, calla_error *err);
    uint64_t (*buffer_bytes)(const gpu_buffer *b);
    void *(*buffer_host)(gpu_buffer *b); /* NULL for device memory */
    /* In order with submissions; src may be reused at once. Large writes may block. */
    calla_status (*write)(gpu_device *d, gpu_view dst, const void *src, calla_error *err);
    calla_status (*zero)(gpu_device *d, gpu_view dst, calla_error *err);
    calla_status (*copy)(gpu_device *d, gpu_view dst, gpu_view src,
                         calla_error *err); /* equal sizes */
    /* Waits for all before it. */
    calla_status (*read)(gpu_device *d, void *dst, gpu_view src, calla_error *err);
    /* once: will be submitted one time (a driver need not build a graph). Copies the recording. */
    calla_status (*program_create)(gpu_device *d, const gpu_recording *r, bool once,
                                   gpu_program **out, calla_error *err);
    void (*program_destroy)(gpu_device *d, gpu_program *p);
    calla_status (*submit)(gpu_device *d, gpu_program *p, uint64_t *ticket, calla_error *err);
    /* Waits until ticket (and all before it) is done; reports its failure. seconds: device time of
     * that submission, or NULL. */
    calla_status (*wait)(gpu_device *d, uint64_t ticket, double *seconds, calla_error *err);
    /* Runs the program's dispatches one by one; seconds[i] of each (0 where not measured). */
    calla_status (*profile)(gpu_device *d, gpu_program *p, double *seconds, calla_error *err);
    /* The n-th submission from now fails (1: the next), as a device error; 0: none. For tests. */
    void (*inject_failure)(gpu_device *d, uint32_t n);
    /* True after an error that a driver cannot recover from. */
    bool (*lost)(const gpu_device *d);
} gpu_ops;

struct gpu_device {
    const gpu_ops *ops;
};

typedef struct gpu_simt_options {
    uint64_t seed;         /* order of groups, simdgroups, lanes; 0: ascending */
    bool check;            /* shadow memory: races, bounds, uninitialised reads */
    uint32_t threads;      /* groups in parallel when not checking; 0: all processors */
    uint64_t memory_bytes; /* device memory there is; 0: unlimited */
} gpu_simt_options;

calla_status gpu_simt_create(gpu_device **out, const gpu_simt_options *o, calla_error *err);

/* CALLA_ERR_UNSUPPORTED, with what is missing, when there is no driver, no device, or no kernels in
 * this build. */
calla_status gpu_cuda_create(gpu_device **out, uint32_t i_device, calla_error *err);

typedef struct gpu_metal_options {
    const char *cache_dir;  /* where the outcome of the self-check is kept; NULL, "none": nowhere */
    const char *kernel_dir; /* folder with NAME.metal for a family's text; NULL: those built in */
    const char *framework;  /* one library instead of Apple's (tests); NULL: Apple's */
    int32_t max_rung;       /* metal/source.h: no better tiles than these; -1: the best */
    bool trust;             /* max_rung (or the best by chip and system) is used unchecked */
    uint32_t check_tokens;  /* of the largest product of the self-check (tests); 0: all sizes */
    uint32_t timeout_s;     /* for one command buffer; 0: 120 */
    calla_log_fn log;       /* may be NULL; called by the thread that calls the device */
    void *log_user;
} gpu_metal_options;

/* CALLA_ERR_UNSUPPORTED, with what is missing, when there is no Metal or no Apple silicon. What an
 * option leaves open is taken from the environment: CALLA_METAL_FRAMEWORK, CALLA_KERNEL_DIR, and
 * CALLA_METAL_RUNG=scalar|simdgroup|tensor|tensor4, which also means trust. */
calla_status gpu_metal_create(gpu_device **out, const gpu_metal_options *o, calla_error *err);

/* The next bytes of a buffer that is being laid out, *used of which are taken; places begin at
 * multiples of 256. buf may be NULL, to measure. */
static inline gpu_view gpu_carve(gpu_buffer *buf, uint64_t *used, uint64_t bytes)
{
    const gpu_view v = {buf, *used, bytes};
    *used += (bytes + 255) / 256 * 256;
    return v;
}

static inline gpu_view gpu_sub(gpu_view v, uint64_t off, uint64_t bytes)
{
    return (gpu_view){v.buf, v.off + off, bytes};
}

#endif
