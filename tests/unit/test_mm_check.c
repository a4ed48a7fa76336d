/* mm_check.h on the emulator: right products pass, a wrong value in any place of a tile does not,
 * a failing device is reported. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "exec/gpu/mm_check.h"

/* The emulator, with the answers of its reads spoilt. */
static gpu_ops ops;
static const gpu_ops *real_ops;
static uint32_t i_read, spoil_read;      /* the n-th read from 1 on; 0: none */
static uint64_t spoil_first, spoil_step; /* which bytes, as 16-bit words */
static uint16_t spoil_with;

static calla_status spoiling_read(gpu_device *d, void *dst, gpu_view src, calla_error *err)
{
    const calla_status st = real_ops->read(d, dst, src, err);
    uint16_t *w = dst;
    if (++i_read != spoil_read) return st;
    for (uint64_t i = spoil_first; i < src.bytes / 2; i += spoil_step)
        w[i] ^= spoil_with;
    return st;
}

static gpu_device *open_emulator(void)
{
    gpu_device *d = NULL;
    calla_error err;
    const gpu_simt_options o = {.seed = 1};
    assert_int_equal(gpu_simt_create(&d, &o, &err), CALLA_OK);
    real_ops = d->ops;
    ops = *d->ops;
    ops.read = spoiling_read;
    d->ops = &ops;
    i_read = spoil_read = 0;
    return d;
}

static void close_emulator(gpu_device *d)
{
    d->ops = real_ops;
    d->ops->destroy(d);
}

static const mm_check_options small = {.seed = 7, .n_max = 8};

static void right(void **state)
{
    (void)state;
    gpu_device *d = open_emulator();
    mm_check_report r;
    calla_error err;
    if (mm_check_run(d, &small, &r, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(r.n, 4);
    for (uint32_t i = 0; i < r.n; i++) {
        print_message("%s %u x %u of %u: %.2f of the bound\n", r.check[i].what, r.check[i].rows,
                      r.check[i].cols, r.check[i].n, r.check[i].worst);
        assert_true((r.check[i].worst > 0 || i < 2) && r.check[i].worst <= 1);
        assert_true(r.check[i].flops > 0 && r.check[i].seconds > 0);
    }
    close_emulator(d);
}

/* One of the 128 columns that a tile may have, in all tiles; the high halves of f32. */
static void wrong_places(void **state)
{
    (void)state;
    for (uint32_t place = 0; place < 128; place += 25) {
        gpu_device *d = open_emulator();
        mm_check_report r;
        calla_error err;
        spoil_read = 5; /* after two for each kind of tile */
        spoil_with = 0x0100;
        spoil_first = 2 * place + 1;
        spoil_step = 256;
        assert_int_equal(mm_check_run(d, &small, &r, &err), CALLA_ERR_DEVICE);
        assert_non_null(strstr(err.message, "gemm of 8 tokens, 1024 x 2048: value "));
        assert_true(r.check[2].worst > 1);
        assert_int_equal(r.n, 3);
        close_emulator(d);
    }
}

/* A value of a tile, and of the map of its places. */
static void wrong_tiles(void **state)
{
    (void)state;
    for (uint32_t i = 1; i <= 4; i++) {
        gpu_device *d = open_emulator();
        mm_check_report r;
        calla_error err;
        spoil_read = i;
        spoil_with = 1;
        spoil_first = i % 2 != 0 ? 2 * 333 + 1 : 2 * 77;
        spoil_step = 1u << 30;
        assert_int_equal(mm_check_run(d, &small, &r, &err), CALLA_ERR_DEVICE);
        assert_non_null(strstr(err.message, i <= 2 ? "tile of 16" : "tile, turned of 16"));
        close_emulator(d);
    }
}

static void wrong_experts(void **state)
{
    (void)state;
    for (uint32_t i = 6; i <= 7; i++) { /* h, y */
        gpu_device *d = open_emulator();
        mm_check_report r;
        calla_error err;
        spoil_read = i;
        spoil_with = 0x4000;
        spoil_first = 37;
        spoil_step = 64;
        assert_int_equal(mm_check_run(d, &small, &r, &err), CALLA_ERR_DEVICE);
        assert_non_null(strstr(err.message, "experts of 8 tokens"));
        close_emulator(d);
    }
}

static void attention(void **state)
{
    (void)state;
    const mm_check_options o = {.seed = 9, .n_max = 33};
    gpu_device *d = open_emulator();
    mm_check_report r;
    calla_error err;
    if (mm_check_run(d, &o, &r, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(r.n, 6);
    assert_string_equal(r.check[5].what, "attention");
    close_emulator(d);
}

static void failing(void **state)
{
    (void)state;
    for (uint32_t i = 1; i <= 2; i++) {
        gpu_device *d = open_emulator();
        mm_check_report r;
        calla_error err;
        d->ops->inject_failure(d, i);
        assert_int_equal(mm_check_run(d, &small, &r, &err), CALLA_ERR_DEVICE);
        close_emulator(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right),       cmocka_unit_test(wrong_places),
        cmocka_unit_test(wrong_tiles), cmocka_unit_test(wrong_experts),
        cmocka_unit_test(attention),   cmocka_unit_test(failing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
