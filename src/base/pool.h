/* pool.h - a fixed set of threads that run index ranges.
 *
 * Does:       pool_run(n_tasks) calls fn(ctx, i_task, i_thread) once for each task; returns when
 *             all are done. Tasks are handed out dynamically, in runs of neighbours that become
 *             shorter towards the end; the result of a task must not depend on which thread runs
 *             it or when. pool_run_ranges hands fn such a run, [first, end), at once, and the first
 *             task of this thread's next run for fetching ahead (n_tasks: not known, or none):
 *             tasks can then be small, so that no thread waits long for the last one. One thread,
 *             or one task: fn gets all at once. No tasks: no call.
 * Invariants: one run at a time; the calling thread is thread 0 and works too.
 * Threads:    a run from one thread at a time (the engine's worker). Workers spin briefly
 *             between runs (a token is some hundred runs long), then sleep. Workers flush denormals
 *             (base/fpenv.h); the caller of pool_run should do the same around its work.
 * Errors:     creation only; a run cannot fail.
 */
#ifndef CALLA_BASE_POOL_H
#define CALLA_BASE_POOL_H

#include <pthread.h>

#include "base/error.h"

typedef struct pool pool;
typedef void (*pool_fn)(void *ctx, uint32_t i_task, uint32_t i_thread);

typedef void (*pool_range_fn)(void *ctx, uint32_t first, uint32_t end, uint32_t next,
                              uint32_t i_thread);

#define POOL_THREADS_MAX 256u

/* n_threads 0: one per CPU this process may run on. */
calla_status pool_create(pool **out, uint32_t n_threads, calla_error *err);
void pool_destroy(pool *p);
uint32_t pool_n_threads(const pool *p);
void pool_run(pool *p, pool_fn fn, void *ctx, uint32_t n_tasks);
void pool_run_ranges(pool *p, pool_range_fn fn, void *ctx, uint32_t n_tasks);

/* CPUs this process may run on, on macOS those but the efficiency cores; at least 1. */
uint32_t cpu_count(void);

/* A thread with a stack of 2 MB (macOS gives 512 KB, Linux 8 MB unless it is told). False: no
 * thread. */
bool thread_start(pthread_t *out, void *(*fn)(void *), void *arg);

/* Seconds on a monotonic clock. */
double time_now(void);

#endif
