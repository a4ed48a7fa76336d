/* Metal's matrix tiles as they ship, on the emulator (tests/msl): the self-check that chooses among
 * them on a Mac passes for each, and finds what is wrong with a matrix unit when something is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "exec/gpu/mm_check.h"
#include "exec/gpu/recorder.h"
#include "exec/gpu/simt/simt.h"
#include "kernels/args_gemm.h"
#include "msl/msl.h"

/* The emulator behind a driver that says which main loop it has. */
static gpu_ops ops;
static const gpu_ops *real_ops;
static gpu_mm native_mm;

static void limits(gpu_device *d, gpu_limits *out)
{
    real_ops->limits(d, out);
    out->native_mm = native_mm;
}

static calla_status check(metal_rung rung, msl_plant_kind plant, mm_check_report *r,
                          calla_error *err)
{
    static const gpu_simt_options simt = {.seed = 1};
    static const mm_check_options o = {.seed = 3, .n_max = 8};
    gpu_device *d = NULL;
    assert_int_equal(simt_device_create(&d, &simt, msl_table(rung), err), CALLA_OK);
    real_ops = d->ops;
    ops = *d->ops;
    ops.limits = limits;
    d->ops = &ops;
    native_mm = rung == METAL_RUNG_TENSOR4 ? GPU_MM_CODES : GPU_MM_TILES;
    msl_plant = (int)plant;
    const calla_status st = mm_check_run(d, &o, r, err);
    msl_plant = MSL_PLANT_NONE;
    d->ops = real_ops;
    d->ops->destroy(d);
    return st;
}

static void right(void **state)
{
    (void)state;
    for (uint32_t rung = 0; rung < METAL_RUNGS; rung++) {
        mm_check_report r;
        calla_error err;
        if (check((metal_rung)rung, MSL_PLANT_NONE, &r, &err) != CALLA_OK)
            fail_msg("rung %u: %s", rung, err.message);
        for (uint32_t i = 0; i < r.n; i++)
            print_message("rung %u, %s: %.2f of the bound\n", rung, r.check[i].what,
                          r.check[i].worst);
    }
}

/* what: the check that must find it. */
static void found(metal_rung rung, msl_plant_kind plant, const char *what)
{
    mm_check_report r;
    calla_error err;
    if (check(rung, plant, &r, &err) == CALLA_OK)
        fail_msg("rung %u passes with plant %u", (unsigned)rung, (unsigned)plant);
    assert_int_equal(err.code, CALLA_ERR_DEVICE);
    assert_string_equal(r.check[r.n - 1].what, what);
    print_message("rung %u, plant %u: %s\n", (unsigned)rung, (unsigned)plant, err.message);
}

static void wrong(void **state)
{
    (void)state;
    found(METAL_RUNG_SIMDGROUP, MSL_PLANT_LANES_8, "tile");
    for (uint32_t r = METAL_RUNG_TENSOR; r <= METAL_RUNG_TENSOR4; r++) {
        const metal_rung rung = (metal_rung)r;
        found(rung, MSL_PLANT_LANES_16, "tile");
        found(rung, MSL_PLANT_FRAGMENTS, "tile");
        found(rung, MSL_PLANT_NOT_TURNED, "tile");
        found(rung, MSL_PLANT_OVERWRITES, "tile");
        found(rung, MSL_PLANT_SHORT_SUMS, "tile");
    }
    found(METAL_RUNG_TENSOR4, MSL_PLANT_NIBBLES, "gemm");
    found(METAL_RUNG_TENSOR4, MSL_PLANT_LARGE, "gemm");
    found(METAL_RUNG_TENSOR4, MSL_PLANT_LAST_ROWS, "gemm");
}

/* codes_set of 8 tokens and 128 rows on buffers that break a rule; sentence: what must be said. */
static void refused(uint32_t cols, uint64_t codes_off, uint64_t codes_bytes, const char *sentence)
{
    static const gpu_simt_options simt = {.seed = 1};
    static uint8_t zeros[1 << 16];
    const gemm_args a = {8, 128, cols, 0};
    const uint64_t bytes[] = {8ull * cols * 2, 8ull * (cols / 64) * 4, codes_off + codes_bytes,
                              128ull * (cols / 64) * 4, 8ull * 128 * 4};
    gpu_device *d = NULL;
    recorder *rec = NULL;
    gpu_buffer *b[5];
    gpu_program *p = NULL;
    gpu_recording r;
    calla_error err;
    uint64_t ticket;
    assert_int_equal(simt_device_create(&d, &simt, msl_table(METAL_RUNG_TENSOR4), &err), CALLA_OK);
    assert_int_equal(recorder_create(&rec, d, &err), CALLA_OK);
    rec_dispatch(rec, KERNEL_codes_set, 1, 1);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(d->ops->buffer_create(d, GPU_MEM_DEVICE, bytes[i], "b", &b[i], &err),
                         CALLA_OK);
        const gpu_view all = {b[i], 0, bytes[i]};
        assert_true(bytes[i] <= sizeof zeros);
        assert_int_equal(d->ops->write(d, all, zeros, &err), CALLA_OK);
        if (i == 4)
            rec_write(rec, all);
        else
            rec_read(rec, i == 2 ? gpu_sub(all, codes_off, codes_bytes) : all);
    }
    rec_args(rec, &a, sizeof a);
    assert_int_equal(rec_finish(rec, false, &r, &err), CALLA_OK);
    assert_int_equal(d->ops->program_create(d, &r, true, &p, &err), CALLA_OK);
    calla_status st = d->ops->submit(d, p, &ticket, &err);
    if (st == CALLA_OK) st = d->ops->wait(d, ticket, NULL, &err);
    if (sentence == NULL) {
        assert_int_equal(st, CALLA_OK);
    } else {
        assert_int_equal(st, CALLA_ERR_DEVICE);
        if (strstr(err.message, sentence) == NULL) fail_msg("said: %s", err.message);
    }
    d->ops->program_destroy(d, p);
    for (uint32_t i = 0; i < 5; i++)
        d->ops->buffer_destroy(d, b[i]);
    recorder_destroy(rec);
    d->ops->destroy(d);
}

static void contract(void **state)
{
    (void)state;
    refused(256, 0, 128 * 128, NULL);
    refused(192, 0, 128 * 96, "rows that are not aligned");
    refused(256, 64, 128 * 128, "a base that is not aligned");
    refused(256, 0, 127 * 128, "outside of every buffer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right), cmocka_unit_test(wrong),
                                       cmocka_unit_test(contract)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
