/* The demonstration model against its reference values (tests/golden/README.md): logits, greedy
 * continuations, perplexity, for both cache types, every precision and every kernel variant of this
 * CPU. */
#include "support/golden.h"

#define SHORT_CASE      100   /* tokens: cases for the slow reference kernels */
#define LOGIT_BAR       2e-3f /* f32 cache */
#define LOGIT_BAR_INT16 1e-2f
#define LOGIT_BAR_INT8  1.0f
#define LOGIT_BAR_BF16  0.7f /* as the reference's own bfloat16 run */

/* NULL when this CPU lacks the variant. */
static calla_engine *open_engine(calla_kv_type kv, const char *variant, calla_precision precision)
{
    calla_error err;
    calla_engine *e;
    const calla_engine_options o = {
        .model_dir = MODEL_DIR, .kv_type = kv, .cpu_variant = variant, .precision = precision};
    const calla_status st = calla_engine_create(&e, &o, &err);
    if (st == CALLA_ERR_ARGUMENT && variant != NULL) return NULL;
    if (st != CALLA_OK) fail_msg("%s", err.message);
    return e;
}

static void test_f32_cache(void **state)
{
    (void)state;
    calla_engine *e = open_engine(CALLA_KV_F32, NULL, CALLA_PRECISION_EXACT);
    const double worst = run_cases(e, SIZE_MAX, "f32");
    assert_true(worst < (double)LOGIT_BAR);
    calla_engine_destroy(e);
}

static void test_bf16_cache(void **state)
{
    (void)state;
    calla_engine *e = open_engine(CALLA_KV_BF16, NULL, CALLA_PRECISION_EXACT);
    const double worst = run_cases(e, SIZE_MAX, "bf16");
    assert_true(worst < (double)LOGIT_BAR_BF16);
    calla_engine_destroy(e);
}

static void test_variants(void **state)
{
    (void)state;
    static const char *const names[] = {"ref", "avx2", "avxvnni", "avx512", "neon", "i8mm"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        calla_engine *e = open_engine(CALLA_KV_F32, names[i], CALLA_PRECISION_EXACT);
        if (e == NULL) continue;
        calla_engine_info info;
        calla_engine_get_info(e, &info);
        assert_string_equal(info.variant, names[i]);
        assert_true(run_cases(e, SHORT_CASE, "f32") < (double)LOGIT_BAR);
        calla_engine_destroy(e);
        e = open_engine(CALLA_KV_F32, names[i], CALLA_PRECISION_INT16);
        assert_true(run_cases(e, SHORT_CASE, "f32, int16") < (double)LOGIT_BAR_INT16);
        calla_engine_destroy(e);
    }
}

/* The default: what 16-bit inputs move is far less than what a bfloat16 cache does. */
static void test_int16(void **state)
{
    (void)state;
    calla_engine *e = open_engine(CALLA_KV_F32, NULL, CALLA_PRECISION_INT16);
    assert_true(run_cases(e, SIZE_MAX, "f32, int16") < (double)LOGIT_BAR_INT16);
    check_perplexity(e, "f32, int16", 1e-4);
    calla_engine_destroy(e);
    e = open_engine(CALLA_KV_DEFAULT, NULL, CALLA_PRECISION_DEFAULT);
    assert_true(run_cases(e, SIZE_MAX, "bf16, int16") < (double)LOGIT_BAR_BF16);
    check_perplexity(e, "bf16, int16", 1e-3);
    calla_engine_destroy(e);
}

static void test_int8(void **state)
{
    (void)state;
    calla_engine *e = open_engine(CALLA_KV_F32, NULL, CALLA_PRECISION_INT8);
    assert_true(run_cases(e, SIZE_MAX, "f32, int8") < (double)LOGIT_BAR_INT8);
    check_perplexity(e, "f32, int8", 5e-3);
    calla_engine_destroy(e);
}

static void test_perplexity(void **state)
{
    (void)state;
    calla_engine *e = open_engine(CALLA_KV_F32, NULL, CALLA_PRECISION_EXACT);
    check_perplexity(e, "f32", 1e-4);
    calla_engine_destroy(e);
    e = open_engine(CALLA_KV_BF16, NULL, CALLA_PRECISION_EXACT);
    check_perplexity(e, "bf16", 1e-3);
    calla_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_cache), cmocka_unit_test(test_bf16_cache),
        cmocka_unit_test(test_variants),  cmocka_unit_test(test_int16),
        cmocka_unit_test(test_int8),      cmocka_unit_test(test_perplexity),
    };
    return cmocka_run_group_tests(tests, golden_set_up, golden_tear_down);
}
