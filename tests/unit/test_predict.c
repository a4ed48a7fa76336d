/* Predictions: the schedule of the real model on every chip of the table, and what follows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include "exec/predict.h"
#include "model/synth.h"

static exec_prediction predict(const exec_chip *c, bool prefill, uint32_t n)
{
    model_shape s;
    exec_prediction p;
    calla_error err;
    assert_int_equal(synth_shape(&s, "full", 0, &err), CALLA_OK);
    if (exec_gpu_predict(&s, c, prefill, n, &p, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_true(fabs(p.seconds - (p.of_bytes + p.of_work + p.of_stages)) < 1e-12);
    return p;
}

/* docs/SPEED.md: what a token must move, and the bar for dependent stages. */
static void test_decode(void **state)
{
    (void)state;
    uint32_t n = 0;
    const exec_chip *chips = exec_chips(&n);
    assert_true(n >= 5);
    for (uint32_t i = 0; i < n; i++) {
        const exec_prediction a = predict(&chips[i], false, 256),
                              b = predict(&chips[i], false, 4096);
        assert_true(a.n_stages <= 260);
        assert_true(fabs(a.bytes / 1.808e9 - 1) < 0.02);
        assert_true(fabs(b.bytes / 1.887e9 - 1) < 0.02);
        assert_true(a.seconds < b.seconds);
        assert_true(a.seconds > a.bytes / chips[i].read);
        assert_true(predict(&chips[i], false, 131072).seconds > 1.5 * a.seconds);
    }
}

static void test_prefill(void **state)
{
    (void)state;
    uint32_t n = 0;
    const exec_chip *chips = exec_chips(&n);
    for (uint32_t i = 0; i < n; i++) {
        const exec_prediction a = predict(&chips[i], true, 2048),
                              b = predict(&chips[i], true, 4096);
        /* twice the tokens, and the attention of the second chunk over the first */
        assert_true(b.flops > 2 * a.flops && b.flops < 2.2 * a.flops);
        assert_true(b.seconds > 2 * a.seconds);
        assert_true(a.flops / 2048 > 4.8e9); /* a token's products */
        assert_true(a.flops / a.seconds < chips[i].tile);
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(exec_chip_of("Apple M5 Max")->id, "m5-max"); /* the faster tiles */
    assert_string_equal(exec_chip_of("Apple M1 Max, 4-bit")->id, "m1-max");
    assert_null(exec_chip_of("Apple M1"));
    assert_null(exec_chip_of(""));
    uint32_t n = 0;
    const exec_chip *chips = exec_chips(&n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(strcmp(chips[i].id, chips[j].id), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
