/* record.h - what `calla bench` found out: the machine, the model, and every measurement.
 *
 * Does:       holds it; report.h writes it down, measure.h and its neighbours fill it.
 * Owns:       its strings (in arrays or mem_free) and the seconds of every result.
 * Invariants: 0 means not measured or not applicable, NAN for temperatures, -1 for unknown flags.
 *             Nothing here is a path or a user's name: a record may be published.
 */
#ifndef CALLA_BENCH_RECORD_H
#define CALLA_BENCH_RECORD_H

#include "engine/engine.h"

#define BENCH_FORMAT      3
#define BENCH_RESULTS_MAX 256u
#define BENCH_LEFT_MAX    64u

/* What this machine does at most, measured in the same run. */
typedef struct bench_limits {
    double read_bytes_per_s; /* memory that the weights are in, all threads or the whole device */
    double copy_bytes_per_s; /* bytes read plus bytes written; GPU */
    double matrix_flops;     /* products of the precision in use; a multiply-add counts two */
    double vector_flops;     /* f32 fused multiply-adds */
    char matrix_kind[64];    /* how matrix_flops was measured */
} bench_limits;

typedef struct bench_thermal {
    double before_c, after_c; /* NAN: unknown */
    int throttled;            /* between the two; -1: unknown */
} bench_thermal;

/* Bytes at the end of the run; 0: unknown. */
typedef struct bench_memory {
    uint64_t anonymous, mapped, device;
} bench_memory;

typedef struct bench_result {
    const char *kind; /* "prefill": `tokens` from an empty context; "decode": a step at `tokens` */
    uint32_t tokens;
    double rate, slowest, fastest; /* tokens/s; rate: median */
    double low, high;              /* of the median, with 95 % confidence (stats.h) */
    double bytes, flops;           /* that a token must move and compute at least */
    double kernels, stages;        /* of a token; stages: one after another */
    uint64_t memory;               /* device, or resident, bytes then */
    const char *without;   /* mechanism turned off, "" none of an ablation's pair, or NULL */
    const char *published; /* the article's gain of that mechanism, or NULL */
    double *seconds;       /* [n_seconds] of each prefill or step, ascending */
    uint32_t n_seconds;
} bench_result;

/* A length that was not measured, and why: there was no room (memory, the model's context) or no
 * time for it. */
typedef struct bench_left {
    const char *kind;
    uint32_t tokens;
    bool for_time;
    char why[160];
} bench_left;

typedef struct bench_record {
    char date[32]; /* ISO 8601, UTC: when it began */
    char system[128], machine[128];
    uint64_t memory_bytes; /* of the machine, or of the device */
    double load;           /* average of the minute before; -1: unknown */
    char model[128];       /* base name */
    bool synthetic;
    char backend[16], variant[128], precision[16], kv[16];
    uint32_t n_threads, chunk_tokens;
    char flags[512];
    bench_limits limits;
    bench_thermal thermal;
    bench_memory memory;
    uint64_t file_bytes, active_bytes;
    int large_pages; /* the mapped weights are in pages of 2 MB; -1: unknown */
    bench_result results[BENCH_RESULTS_MAX];
    uint32_t n_results;
    bench_left left[BENCH_LEFT_MAX];
    uint32_t n_left;
    const struct agent_result *agent; /* of a replay (agent.h), borrowed, or NULL */
} bench_record;

/* Zeroes it and fills what is known before anything is measured; flags stay the caller's. */
void record_begin(bench_record *r, const calla_engine *e, calla_kv_type kv);
/* What is only known at the end: memory, pages. */
void record_end(bench_record *r, const calla_engine *e);
void record_deinit(bench_record *r);

/* Appends `like` with the statistics of seconds[n], each of `tokens` tokens (a prefill's length, or
 * 1 a step); seconds is sorted. NULL when the record is full. */
bench_result *record_add(bench_record *r, bench_result like, double *seconds, uint32_t n,
                         double tokens);
void record_leave_out(bench_record *r, bench_left what, const char *fmt, ...) ATTR_PRINTF(3, 4);

/* What the program was built from, as `git describe` says it, or "". */
extern const char bench_commit[];

#endif
