/* The thread pool: every task exactly once, results visible to the caller, run after run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>
#include "base/mem.h"
#include "base/pool.h"

#define N_TASKS_MAX 5000u

typedef struct work {
    uint32_t n_threads, factor;
    uint32_t done[N_TASKS_MAX]; /* plain memory: the pool orders it */
    uint32_t thread_of[N_TASKS_MAX];
} work;

static void run_task(void *ctx, uint32_t i_task, uint32_t i_thread)
{
    work *w = ctx;
    w->done[i_task] += w->factor;
    w->thread_of[i_task] = i_thread;
}

typedef struct range_work {
    work *w;
    uint32_t n_tasks;
    uint32_t promised[8]; /* to each thread: where its next run begins; n_tasks: not said */
    bool begun[8], broken[8];
} range_work;

static void run_range(void *ctx, uint32_t first, uint32_t end, uint32_t next, uint32_t i_thread)
{
    range_work *r = ctx;
    const uint32_t promised = r->begun[i_thread] ? r->promised[i_thread] : r->n_tasks;
    if (first >= end || end > r->n_tasks || next > r->n_tasks ||
        (next < r->n_tasks && next < end) || (promised != r->n_tasks && promised != first))
        r->broken[i_thread] = true;
    r->begun[i_thread] = true;
    r->promised[i_thread] = next;
    for (uint32_t i = first; i < end; i++)
        run_task(r->w, i, i_thread);
}

/* By ranges: each task once, and what was said to come next came. */
static void run_ranges(pool *p, work *w, uint32_t n)
{
    range_work r = {.w = w, .n_tasks = n};
    pool_run_ranges(p, run_range, &r, n);
    for (uint32_t t = 0; t < 8; t++) {
        assert_false(r.broken[t]);
        assert_true(!r.begun[t] || r.promised[t] == n);
    }
}

static void check_runs(uint32_t n_threads, uint32_t n_runs)
{
    static const uint32_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, N_TASKS_MAX};
    pool *p = NULL;
    calla_error err;
    work *w = mem_alloc(sizeof *w);
    uint32_t want[N_TASKS_MAX] = {0};
    assert_int_equal(pool_create(&p, n_threads, &err), CALLA_OK);
    assert_int_equal(pool_n_threads(p), n_threads);
    for (uint32_t r = 0; r < n_runs; r++) {
        const uint32_t n = sizes[r % 8];
        w->factor = r + 1;
        if (r / 8 % 2 == 0)
            pool_run(p, run_task, w, n);
        else
            run_ranges(p, w, n);
        for (uint32_t i = 0; i < n; i++) {
            want[i] += r + 1;
            assert_true(w->thread_of[i] < n_threads);
        }
        if (r % 16 == 15) { /* long enough for the workers to fall asleep */
            const struct timespec pause = {0, 2000000};
            (void)nanosleep(&pause, NULL);
        }
    }
    assert_memory_equal(w->done, want, sizeof want);
    pool_destroy(p);
    mem_free(w);
}

static void test_runs(void **state)
{
    (void)state;
    check_runs(1, 40);
    check_runs(2, 200);
    check_runs(5, 200);
}

static void test_create(void **state)
{
    (void)state;
    pool *p = NULL;
    calla_error err;
    assert_true(cpu_count() >= 1);
    assert_int_equal(pool_create(&p, 0, &err), CALLA_OK);
    assert_int_equal(pool_n_threads(p), cpu_count());
    pool_destroy(p); /* without a run */
    pool_destroy(NULL);
    mem_fail_after(0);
    assert_int_equal(pool_create(&p, 2, &err), CALLA_ERR_MEMORY);
    mem_fail_after(-1);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_create),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
