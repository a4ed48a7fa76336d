/* metal_dev.h - inside the Metal driver: its state, shared by its files and by its tests.
 *
 * Does:       metal.c device and limits, memory.c buffers and copies, residency.c what stays in
 *             memory, library.c texts to pipelines, rung.c which matrix tiles, program.c encoding,
 *             flight.c submission, waiting, errors.
 * Invariants: one queue. All memory is shared with the host, and nothing is tracked by Metal:
 *             within a command buffer there is one concurrent encoder with a barrier between
 *             levels; each encoder waits for the fence that the one before it has updated. The
 *             serial of a command buffer is the value of the event that it signals at its end; at
 *             most METAL_FLIGHT of them are not finished. The host touches a buffer's memory only
 * when the last command buffer that names it (last_serial) has ended. Tickets count from 1. A
 * failure at ticket f is reported by the first wait (or read) for f or later; then every ticket
 * issued before that report fails too, and the following ones are good. Threads:    one caller at a
 * time. Beside it: `compiling`, until metal_libraries_join(), and the heartbeat of residency.c,
 * which takes its lock. Errors:     metal_enter() refuses when the device is lost.
 */
#ifndef CALLA_EXEC_GPU_METAL_METAL_DEV_H
#define CALLA_EXEC_GPU_METAL_METAL_DEV_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "base/pool.h"
#include "exec/gpu/metal/api.h"
#include "exec/gpu/metal/chip.h"

#define METAL_FLIGHT      2u
#define METAL_TICKETS     64u
#define METAL_TIMEOUT     120u /* seconds, for one command buffer */
#define METAL_KEEP_ALIVE  180.0
#define METAL_BEAT        0.5
#define METAL_THREADGROUP 32768u /* bytes of threadgroup memory that kernels may use */
#define METAL_BLIT_AFTER  ((uint64_t)64 << 10) /* copies of so many bytes are the GPU's */

/* A command buffer that was committed. */
typedef struct metal_flight {
    m_id buffer; /* retained */
    uint64_t serial, ticket;
} metal_flight;

typedef struct metal_ticket {
    uint64_t ticket; /* 0: unused */
    uint64_t serial; /* of its last command buffer */
    double seconds;  /* of those that were collected */
} metal_ticket;

typedef struct metal_residency {
    m_id set; /* NULL: macOS 14 has none */
    bool dirty;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* set, dirty, stop */
    pthread_cond_t wake;
    bool stop;
    _Atomic uint64_t last_use_ms;
} metal_residency;

typedef struct metal_library {
    m_id library;    /* NULL: failed */
    char *text;      /* from kernel_dir: mem_free; NULL: built in */
    char *log;       /* the compiler's, of a failure: mem_free */
    calla_error err; /* why it failed */
} metal_library;

typedef struct metal_device {
    gpu_device base;
    metal_api api;
    m_id device, queue, fence, event, process;
    bool fence_used;     /* some encoder has updated it */
    bool fence_stale;    /* of work that failed: replaced when all that runs has ended */
    gpu_metal_options o; /* strings are copies below */
    char *cache_dir, *kernel_dir;
    char name[64], architecture[32], system[96];
    metal_os os;
    uint32_t generation;
    bool phone;
    const metal_chip *chip;
    metal_rates rates;
    metal_rung rung;
    bool checked; /* the rung passed its self-check */
    uint64_t max_buffer, working_set, used_bytes, page;
    metal_residency residency;

    metal_library library[METAL_SOURCES];
    bool library_tried[METAL_SOURCES];
    m_id pipeline[KERNEL_COUNT + 1]; /* NULL: not yet */
    pool *compilers;
    pthread_t compiling;
    bool is_compiling;

    metal_flight flight[METAL_FLIGHT]; /* oldest first */
    uint32_t n_flight;
    uint64_t last_serial, reached; /* all up to `reached` have ended */
    metal_ticket ticket[METAL_TICKETS];
    uint64_t last_ticket;
    uint32_t inject;                /* countdown; 0: off */
    uint64_t fail_first, fail_last; /* tickets that failed; 0: none; last 0: not yet reported */
    calla_error fail_error;
    bool lost;
    bool hung;      /* and its work may still be running: what it uses is not given back */
    int thermal;    /* as last logged */
    double heat_at; /* when it was asked */
} metal_device;

struct gpu_buffer {
    m_id buffer;
    uint8_t *host;
    uint64_t bytes, last_serial;
    bool seen;   /* buffer_host() tells */
    bool mapped; /* memory of the caller, not to be written */
};

static inline metal_device *metal_of(gpu_device *d)
{
    return (metal_device *)d;
}

/* ---- metal.c ---- */

/* For a lost device: its failure, if nobody was told yet; "... must be opened again". */
calla_status metal_gone(metal_device *d, calla_error *err);
/* Every operation that talks to Metal stands between these two; *ap is the autorelease pool. */
calla_status metal_enter(metal_device *d, m_ptr *ap, calla_error *err);
void metal_leave(metal_device *d, m_ptr ap);
void metal_say(const metal_device *d, calla_log_level level, const char *fmt, ...)
    ATTR_PRINTF(3, 4);
void metal_release(const metal_device *d, m_id object); /* NULL is fine */
/* Logs the thermal state when it has changed. */
void metal_watch_heat(metal_device *d);

/* ---- memory.c ---- */

calla_status metal_buffer_create(gpu_device *d, gpu_memory kind, uint64_t bytes, const char *name,
                                 gpu_buffer **out, calla_error *err);
calla_status metal_buffer_map(gpu_device *d, const void *host, uint64_t bytes, const char *name,
                              gpu_buffer **out, calla_error *err);
void metal_buffer_destroy(gpu_device *d, gpu_buffer *b);
calla_status metal_write(gpu_device *d, gpu_view dst, const void *src, calla_error *err);
calla_status metal_zero(gpu_device *d, gpu_view dst, calla_error *err);
calla_status metal_copy(gpu_device *d, gpu_view dst, gpu_view src, calla_error *err);
calla_status metal_read(gpu_device *d, void *dst, gpu_view src, calla_error *err);

/* ---- residency.c ---- */

calla_status metal_residency_start(metal_device *d, calla_error *err);
void metal_residency_stop(metal_device *d);
void metal_residency_add(metal_device *d, m_id buffer);
void metal_residency_remove(metal_device *d, m_id buffer);
void metal_residency_use(metal_device *d); /* before a command buffer is made */

/* ---- library.c ---- */

/* Reads the texts of kernel_dir. */
calla_status metal_texts_load(metal_device *d, calla_error *err);
const char *metal_text_of(const metal_device *d, uint32_t i_source);
/* Compiles all libraries that are not there, on threads of their own; start returns at once. */
calla_status metal_libraries_start(metal_device *d, calla_error *err);
void metal_libraries_join(metal_device *d);
/* Forgets libraries and pipelines whose text has tiles (all: every one). */
void metal_libraries_drop(metal_device *d, bool all);
/* Makes the pipelines that are wanted (want[KERNEL_COUNT]) and not there. */
calla_status metal_pipelines_make(metal_device *d, const bool *want, calla_error *err);

/* ---- rung.c ---- */

/* Decides d->rung, by the cached outcome or by the self-check. */
calla_status metal_rung_choose(metal_device *d, calla_error *err);
/* What a cached outcome must begin with; the rung follows as "rung N\n". False: no memory. */
bool metal_rung_key(const metal_device *d, metal_rung best, strbuf *key);
/* The rung that the contents of a cache file give; false when they are another key's, or damaged.
 */
bool metal_rung_read(const char *key, const char *data, size_t n, metal_rung best, metal_rung *r);

/* ---- program.c ---- */

calla_status metal_program_create(gpu_device *d, const gpu_recording *r, bool once,
                                  gpu_program **out, calla_error *err);
void metal_program_destroy(gpu_device *d, gpu_program *p);
calla_status metal_submit(gpu_device *d, gpu_program *p, uint64_t *ticket, calla_error *err);
calla_status metal_profile(gpu_device *d, gpu_program *p, double *seconds, calla_error *err);
uint32_t metal_program_parts(const gpu_program *p); /* command buffers of a submission */

/* ---- flight.c ---- */

/* A command buffer of its own for `ticket`; waits until there is room. */
calla_status metal_begin(metal_device *d, m_id *buffer, calla_error *err);
/* Commits what metal_begin() gave. */
void metal_commit(metal_device *d, m_id buffer, uint64_t ticket);
/* The next ticket; its work follows. */
uint64_t metal_ticket_new(metal_device *d);
/* Waits until all up to `serial` have ended; collect: their times are wanted too. Failures are
 * noted, CALLA_ERR_DEVICE only when the device hangs. */
calla_status metal_reach(metal_device *d, uint64_t serial, bool collect, calla_error *err);
calla_status metal_wait(gpu_device *d, uint64_t ticket, double *seconds, calla_error *err);
/* The failure of a ticket up to `ticket` that is to be reported, if any. */
calla_status metal_pending(metal_device *d, uint64_t ticket, calla_error *err);
void metal_note_failure(metal_device *d, uint64_t ticket, const calla_error *err);

#endif
