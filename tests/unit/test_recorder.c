/* The recorder against a comparison of every pair: random ranges, reads and writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/gpu/recorder.h"

#define N_BUFFERS 5u
#define N_MAX     200u

/* A device whose buffers are only sizes. */
struct gpu_buffer {
    uint64_t bytes;
};

static uint64_t sizes_only(const gpu_buffer *b)
{
    return b->bytes;
}

static const gpu_ops fake_ops = {.name = "fake", .buffer_bytes = sizes_only};
static gpu_device fake = {&fake_ops};
static gpu_buffer buffers[N_BUFFERS] = {{1024}, {1024}, {64}, {4096}, {1 << 20}};

static uint64_t rng;
static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % n;
}

static void record_random(recorder *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const kernel_id k = (kernel_id)below(KERNEL_COUNT);
        rec_dispatch(r, k, 1 + below(5), 1);
        for (uint32_t b = 0; b < kernel_table[k].n_bindings; b++) {
            gpu_buffer *buf = &buffers[below(N_BUFFERS)];
            const uint32_t units = (uint32_t)(buf->bytes / 16);
            const uint32_t off = below(units), len = 1 + below(units - off);
            const gpu_view v = {buf, off * 16u, len * 16u};
            const uint32_t kind = below(6);
            if (kind == 0)
                rec_read_write(r, v);
            else if (kind == 1)
                rec_write(r, v);
            else
                rec_read(r, v);
        }
    }
}

static bool conflict(const gpu_dispatch *a, const gpu_dispatch *b)
{
    for (uint32_t i = 0; i < a->n_bindings; i++)
        for (uint32_t j = 0; j < b->n_bindings; j++) {
            const gpu_view x = a->bind[i].view, y = b->bind[j].view;
            if (x.buf == y.buf && x.off < y.off + y.bytes && y.off < x.off + x.bytes &&
                ((a->bind[i].access | b->bind[j].access) & GPU_WRITE) != 0)
                return true;
        }
    return false;
}

static bool path[N_MAX][N_MAX]; /* i comes after j */

static void close_over(const gpu_recording *rec, uint32_t without_i, uint32_t without_dep)
{
    memset(path, 0, sizeof path);
    for (uint32_t i = 0; i < rec->n; i++)
        for (uint32_t d = rec->dep_first[i]; d < rec->dep_first[i + 1]; d++) {
            const uint32_t j = rec->dep[d];
            if (i == without_i && d == without_dep) continue;
            path[i][j] = true;
            for (uint32_t k = 0; k < j; k++)
                path[i][k] = path[i][k] || path[j][k];
        }
}

/* Every conflicting pair is ordered, no edge can be left out, levels follow the edges. */
static void check(const gpu_recording *rec)
{
    close_over(rec, UINT32_MAX, 0);
    uint32_t top = 0;
    for (uint32_t i = 0; i < rec->n; i++) {
        for (uint32_t j = 0; j < i; j++)
            if (conflict(&rec->dispatch[i], &rec->dispatch[j])) {
                assert_true(path[i][j]);
                assert_true(rec->level[i] > rec->level[j]);
            }
        uint32_t level = 0;
        for (uint32_t d = rec->dep_first[i]; d < rec->dep_first[i + 1]; d++) {
            assert_true(rec->dep[d] < i);
            assert_true(conflict(&rec->dispatch[i], &rec->dispatch[rec->dep[d]]));
            if (rec->level[rec->dep[d]] + 1 > level) level = rec->level[rec->dep[d]] + 1;
        }
        assert_int_equal(rec->level[i], level);
        if (level > top) top = level;
    }
    assert_int_equal(rec->n_levels, rec->n == 0 ? 0 : top + 1);
    for (uint32_t i = 0; i < rec->n; i++)
        for (uint32_t d = rec->dep_first[i]; d < rec->dep_first[i + 1]; d++) {
            close_over(rec, i, d);
            assert_false(path[i][rec->dep[d]]);
        }
}

static void test_random(void **state)
{
    (void)state;
    recorder *r;
    calla_error err;
    assert_int_equal(recorder_create(&r, &fake, &err), CALLA_OK);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        gpu_recording rec;
        rng = seed;
        rec_reset(r);
        record_random(r, seed == 30 ? 0 : 2 + below(40));
        if (rec_finish(r, false, &rec, &err) != CALLA_OK)
            fail_msg("seed %d: %s", (int)seed, err.message);
        check(&rec);
    }
    recorder_destroy(r);
}

static void test_serial(void **state)
{
    (void)state;
    recorder *r;
    calla_error err;
    gpu_recording rec;
    rng = 7;
    assert_int_equal(recorder_create(&r, &fake, &err), CALLA_OK);
    record_random(r, 50);
    assert_int_equal(rec_finish(r, true, &rec, &err), CALLA_OK);
    assert_int_equal(rec.n_levels, 50);
    for (uint32_t i = 1; i < 50; i++) {
        assert_int_equal(rec.dep_first[i + 1] - rec.dep_first[i], 1);
        assert_int_equal(rec.dep[rec.dep_first[i]], i - 1);
    }
    recorder_destroy(r);
}

static void test_refusals(void **state)
{
    (void)state;
    recorder *r;
    calla_error err;
    gpu_recording rec;
    const gpu_view good = {&buffers[0], 0, 1024};
    const gpu_view bad[] = {
        {NULL, 0, 16},        {&buffers[0], 16, 1024}, {&buffers[0], 1040, 16},
        {&buffers[0], 8, 16}, {&buffers[0], 0, 0},     {&buffers[0], 32, UINT64_MAX - 8},
    };
    assert_int_equal(recorder_create(&r, &fake, &err), CALLA_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rec_reset(r);
        rec_dispatch(r, (kernel_id)0, 1, 1);
        rec_read(r, bad[i]);
        assert_int_equal(rec_finish(r, false, &rec, &err), CALLA_ERR_INTERNAL);
        assert_non_null(strstr(err.message, kernel_table[0].name));
    }
    rec_reset(r);
    rec_dispatch(r, (kernel_id)0, 1, 1);
    for (uint32_t i = 0; i <= kernel_table[0].n_bindings; i++) /* one too many */
        rec_read(r, good);
    assert_int_equal(rec_finish(r, false, &rec, &err), CALLA_ERR_INTERNAL);
    rec_reset(r);
    rec_dispatch(r, (kernel_id)0, 1, 1); /* none */
    assert_int_equal(rec_finish(r, false, &rec, &err), CALLA_ERR_INTERNAL);
    rec_reset(r);
    rec_dispatch(r, (kernel_id)0, 0, 1);
    assert_int_equal(rec_finish(r, false, &rec, &err), CALLA_ERR_INTERNAL);
    rec_reset(r);
    rec_read(r, good); /* no dispatch */
    assert_int_equal(rec_finish(r, false, &rec, &err), CALLA_ERR_INTERNAL);
    rec_reset(r); /* usable again */
    rec_dispatch(r, (kernel_id)0, 1, 1);
    for (uint32_t i = 0; i < kernel_table[0].n_bindings; i++)
        rec_read(r, good);
    assert_int_equal(rec_finish(r, false, &rec, &err), CALLA_OK);
    recorder_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_serial),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
