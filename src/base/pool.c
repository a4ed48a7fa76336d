/* A run is published by storing fn, range_fn, ctx, n_tasks and next = 0, then incrementing `epoch`
 * (release). A worker that sees a new epoch (acquire) takes tasks from `next` until it is
 * exhausted, then increments `n_idle` (release). run() waits until every worker is idle (acquire),
 * so a worker never sees the fields of a later run while it still holds those of an earlier one.
 * `lock` guards only sleeping: `n_sleeping` and the condition variable. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#endif
#include "base/pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__APPLE__)
#include <stdio.h>
#include <string.h>
#include <pthread/qos.h>
#include <sys/sysctl.h>
#endif

#include "base/fpenv.h"
#include "base/mem.h"

#define STACK_BYTES     ((size_t)2 << 20)
#define SPIN_SECONDS    200e-6
#define SPINS_PER_YIELD 256 /* some 10 us: on a busy machine the others must get on */

struct pool {
    _Alignas(64) _Atomic uint64_t epoch;
    _Alignas(64) _Atomic uint32_t next;
    _Alignas(64) _Atomic uint32_t n_idle;
    _Alignas(64) pool_fn fn;
    pool_range_fn range_fn; /* NULL: fn */
    void *ctx;
    uint32_t n_tasks;
    uint32_t n_threads;
    _Atomic bool stop;
    _Atomic uint32_t n_sleeping;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct pool_worker {
        pool *owner;
        pthread_t thread;
        uint32_t i_thread;
    } workers[POOL_THREADS_MAX];
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

double time_now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

bool thread_start(pthread_t *out, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return false;
    const bool ok = pthread_attr_setstacksize(&attr, STACK_BYTES) == 0 &&
                    pthread_create(out, &attr, fn, arg) == 0;
    (void)pthread_attr_destroy(&attr);
    return ok;
}

#if defined(__APPLE__)
/* Cores but the slow ones ("Efficiency"); 0 when the system does not tell kinds apart. A run ends
 * with its slowest task, so slow cores would only be waited for. */
static uint32_t fast_cores(void)
{
    uint32_t n_levels = 0, n_cores = 0;
    size_t n = sizeof n_levels;
    if (sysctlbyname("hw.nperflevels", &n_levels, &n, NULL, 0) != 0) return 0;
    for (uint32_t i = 0; i < n_levels && i < 16; i++) {
        char key[48], name[32] = "";
        uint32_t cores = 0;
        n = sizeof name - 1;
        (void)snprintf(key, sizeof key, "hw.perflevel%u.name", i);
        if (sysctlbyname(key, name, &n, NULL, 0) == 0 && strcmp(name, "Efficiency") == 0) continue;
        n = sizeof cores;
        (void)snprintf(key, sizeof key, "hw.perflevel%u.logicalcpu", i);
        if (sysctlbyname(key, &cores, &n, NULL, 0) == 0) n_cores += cores;
    }
    return n_cores;
}
#endif

uint32_t cpu_count(void)
{
#if defined(__APPLE__)
    const uint32_t fast = fast_cores();
    if (fast != 0) return fast;
#endif
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (uint32_t)n;
}

typedef struct range {
    uint32_t first, end;
} range;

/* A run of neighbours, ever fewer, so that all threads end at the same time; empty: none left. */
static range claim(pool *p)
{
    const uint32_t n_tasks = p->n_tasks;
    const uint32_t share = 2 * p->n_threads;
    uint32_t i = atomic_load_explicit(&p->next, memory_order_relaxed);
    while (i < n_tasks) {
        const uint32_t n = (n_tasks - i) / share > 0 ? (n_tasks - i) / share : 1;
        if (atomic_compare_exchange_weak_explicit(&p->next, &i, i + n, memory_order_relaxed,
                                                  memory_order_relaxed))
            return (range){i, i + n};
    }
    return (range){n_tasks, n_tasks};
}

/* Runs of tasks, the next one claimed before one is worked on, so that fn knows it; not when so few
 * are left that another thread would have to wait for it. */
static void take_ranges(pool *p, uint32_t i_thread)
{
    const range none = {p->n_tasks, p->n_tasks};
    range r = claim(p);
    while (r.first < r.end) {
        const uint32_t taken = atomic_load_explicit(&p->next, memory_order_relaxed);
        const bool ahead = taken + 2 * p->n_threads <= p->n_tasks;
        const range next = ahead ? claim(p) : none;
        p->range_fn(p->ctx, r.first, r.end, next.first, i_thread);
        r = next.first < next.end ? next : claim(p);
    }
}

static void take_tasks(pool *p, uint32_t i_thread)
{
    if (p->range_fn != NULL) {
        take_ranges(p, i_thread);
        return;
    }
    for (range r = claim(p); r.first < r.end; r = claim(p))
        for (uint32_t i = r.first; i < r.end; i++)
            p->fn(p->ctx, i, i_thread);
}

/* Waits until epoch differs from `seen`: spins, then sleeps. */
static uint64_t wait_epoch(pool *p, uint64_t seen)
{
    const double until = time_now() + SPIN_SECONDS;
    for (uint32_t i = 1;; i++) {
        const uint64_t e = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (e != seen) return e;
        cpu_relax();
        if (i % SPINS_PER_YIELD != 0) continue;
        if (time_now() > until) break;
        (void)sched_yield();
    }
    (void)pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_sleeping, 1);
    uint64_t e;
    while ((e = atomic_load(&p->epoch)) == seen)
        (void)pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_sleeping, 1);
    (void)pthread_mutex_unlock(&p->lock);
    return e;
}

static void *worker_main(void *arg)
{
    struct pool_worker *w = arg;
    pool *p = w->owner;
    uint64_t seen = 0;
#if defined(__APPLE__)
    /* Work that someone waits for: without this the system may choose its slow cores. */
    (void)pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0);
#endif
    for (;;) {
        seen = wait_epoch(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        take_tasks(p, w->i_thread);
        atomic_fetch_add_explicit(&p->n_idle, 1, memory_order_release);
    }
}

/* Publishes a new epoch and wakes whoever sleeps. The sequentially consistent pair (epoch here,
 * n_sleeping in wait_epoch) rules out a missed wake-up. */
static void publish(pool *p)
{
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->n_sleeping) != 0) {
        (void)pthread_mutex_lock(&p->lock);
        (void)pthread_cond_broadcast(&p->wake);
        (void)pthread_mutex_unlock(&p->lock);
    }
}

calla_status pool_create(pool **out, uint32_t n_threads, calla_error *err)
{
    *out = NULL;
    if (n_threads == 0) n_threads = cpu_count();
    if (n_threads > POOL_THREADS_MAX) n_threads = POOL_THREADS_MAX;
    pool *p = mem_alloc_aligned(sizeof *p);
    if (p == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the thread pool");
    p->n_threads = 1;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->wake, NULL);
    for (uint32_t i = 1; i < n_threads; i++) {
        struct pool_worker *w = &p->workers[i];
        w->owner = p;
        w->i_thread = i;
        if (!thread_start(&w->thread, worker_main, w)) {
            pool_destroy(p);
            return err_set(err, CALLA_ERR_MEMORY, "cannot start thread %u of %u", i + 1, n_threads);
        }
        p->n_threads++;
    }
    *out = p;
    return CALLA_OK;
}

void pool_destroy(pool *p)
{
    if (p == NULL) return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    publish(p);
    for (uint32_t i = 1; i < p->n_threads; i++)
        (void)pthread_join(p->workers[i].thread, NULL);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    mem_free_aligned(p);
}

uint32_t pool_n_threads(const pool *p)
{
    return p->n_threads;
}

/* Hands out p->fn or p->range_fn. */
static void run(pool *p, uint32_t n_tasks)
{
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->n_idle, 0, memory_order_relaxed);
    publish(p);
    take_tasks(p, 0);
    const uint32_t n_workers = p->n_threads - 1;
    for (uint32_t i = 1; atomic_load_explicit(&p->n_idle, memory_order_acquire) != n_workers; i++) {
        cpu_relax();
        if (i % SPINS_PER_YIELD == 0) (void)sched_yield();
    }
}

void pool_run(pool *p, pool_fn fn, void *ctx, uint32_t n_tasks)
{
    if (n_tasks == 0) return;
    if (p->n_threads == 1 || n_tasks == 1) {
        for (uint32_t i = 0; i < n_tasks; i++)
            fn(ctx, i, 0);
        return;
    }
    p->fn = fn;
    p->range_fn = NULL;
    p->ctx = ctx;
    run(p, n_tasks);
}

void pool_run_ranges(pool *p, pool_range_fn fn, void *ctx, uint32_t n_tasks)
{
    if (n_tasks == 0) return;
    if (p->n_threads == 1 || n_tasks == 1) {
        fn(ctx, 0, n_tasks, n_tasks, 0);
        return;
    }
    p->range_fn = fn;
    p->ctx = ctx;
    run(p, n_tasks);
}
