/* Which kernels are chosen. What they compute is held by calla-check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/cpu/kernels.h"

/* A table is complete whatever the limit: the references fill what a variant lacks. */
static void expect_complete(const cpu_kernels *k)
{
    assert_non_null(k->prep_q4);
    assert_non_null(k->matmul_q4);
    assert_non_null(k->prep_i16);
    assert_non_null(k->matmul_i16);
    assert_non_null(k->prep_i8);
    assert_non_null(k->matmul_i8);
    assert_non_null(k->matmul_q8);
    assert_non_null(k->matmul_bf16);
    assert_non_null(k->matmul_f32);
    assert_non_null(k->rmsnorm);
    assert_non_null(k->l2norm);
    assert_non_null(k->gated_rmsnorm);
    assert_non_null(k->silu_mul);
    assert_non_null(k->sigmoid_mul);
    assert_non_null(k->axpy);
    assert_non_null(k->conv_silu);
    assert_non_null(k->gdn_scan);
    assert_non_null(k->attn_block);
}

static void reference_is_always_there(void **state)
{
    (void)state;
    cpu_kernels k;
    assert_int_equal(cpu_kernels_select(&k, "ref", NULL), CALLA_OK);
    assert_string_equal(k.name, "ref");
    expect_complete(&k);
}

static void best_follows_the_cpu(void **state)
{
    (void)state;
    cpu_kernels k;
    const uint32_t f = cpu_features();
    const char *want = f & CPU_AVX512    ? "avx512"
                       : f & CPU_AVXVNNI ? "avxvnni"
                       : f & CPU_AVX2    ? "avx2"
                       : f & CPU_I8MM    ? "i8mm"
                       : f & CPU_NEON    ? "neon"
                                         : "ref";
    assert_int_equal(cpu_kernels_select(&k, NULL, NULL), CALLA_OK);
    assert_string_equal(k.name, want);
    expect_complete(&k);
    if ((f & CPU_AVX512) != 0) assert_true((f & CPU_AVX2) != 0);
}

static void limit_holds(void **state)
{
    (void)state;
    cpu_kernels ref, k;
    if ((cpu_features() & CPU_AVX2) == 0) skip();
    assert_int_equal(cpu_kernels_select(&ref, "ref", NULL), CALLA_OK);
    assert_int_equal(cpu_kernels_select(&k, "avx2", NULL), CALLA_OK);
    assert_string_equal(k.name, "avx2");
    assert_ptr_not_equal(k.matmul_q4, ref.matmul_q4);
    assert_ptr_not_equal(k.prep_q4, NULL);
    cpu_kernels best;
    assert_int_equal(cpu_kernels_select(&best, NULL, NULL), CALLA_OK);
    if ((cpu_features() & CPU_AVX512) != 0) assert_ptr_not_equal(best.matmul_q4, k.matmul_q4);
}

static void unknown_names_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"", "avx1024", "REF", "refx"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cpu_kernels k;
        calla_error err;
        assert_int_equal(cpu_kernels_select(&k, names[i], &err), CALLA_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, names[i]));
        assert_non_null(strstr(err.message, "have ref"));
    }
#if defined(__x86_64__)
    cpu_kernels k;
    assert_int_equal(cpu_kernels_select(&k, "neon", NULL), CALLA_ERR_ARGUMENT);
#endif
}

/* By hand: codes 0..15 in ascending nibbles, scale -0.5, bias 2; row 1 at an odd address. */
static void matrix_row_by_hand(void **state)
{
    (void)state;
    static uint8_t data[1 + 2 * 32], scales[1 + 4] = {0, 0, 0, 0x00, 0xbf},
                                                biases[1 + 4] = {0, 0, 0, 0x00, 0x40};
    for (size_t i = 0; i < 32; i++)
        data[33 + i] = (uint8_t)(i % 8 * 2 | (i % 8 * 2 + 1) << 4);
    const matrix m = {.type = MAT_Q4,
                      .rows = 2,
                      .cols = 64,
                      .row_bytes = 32,
                      .data = data + 1,
                      .scales = scales + 1,
                      .biases = biases + 1};
    float out[64];
    matrix_row(&m, 1, out);
    for (size_t i = 0; i < 64; i++)
        assert_true(out[i] == 2.0f - 0.5f * (float)(i % 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_always_there),
        cmocka_unit_test(best_follows_the_cpu),
        cmocka_unit_test(limit_holds),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(matrix_row_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
