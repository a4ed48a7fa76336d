/* The elementary functions of the GPU kernels against the C library in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/fpenv.h"
#include "kernels/kmath.h"

static double ulp_error(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1.0, e - 24);
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0.0;
    for (float x = -87.2f; x < 88.6f; x += 0.00173f) {
        const double e = ulp_error(kx_exp(x), exp((double)x));
        if (e > worst) worst = e;
    }
    printf("exp: %.2f ulp\n", worst);
    assert_true(worst < 2.0);
    assert_true(kx_exp(-1000.0f) == 0.0f);
    assert_true(kx_exp(0.0f) == 1.0f);
    assert_true(kx_exp(1000.0f) > 3e38f && isfinite(kx_exp(1000.0f)));
}

static void test_log(void **state)
{
    (void)state;
    double worst = 0.0;
    for (float x = 1.2e-38f; x < 3e38f; x *= 1.00037f) {
        const double want = log((double)x);
        const double e = fabs(want) < 1e-30 ? 0.0 : ulp_error(kx_log(x), want);
        if (e > worst) worst = e;
    }
    printf("log: %.2f ulp\n", worst);
    assert_true(worst < 2.0);
    assert_true(kx_log(1.0f) == 0.0f);
}

static void test_gates(void **state)
{
    (void)state;
    double sig = 0.0, soft = 0.0, silu = 0.0;
    for (float x = -80.0f; x < 80.0f; x += 0.00071f) {
        const double e = exp(-(double)x);
        sig = fmax(sig, ulp_error(kx_sigmoid(x), 1.0 / (1.0 + e)));
        silu = fmax(silu, ulp_error(kx_silu(x), (double)x / (1.0 + e)));
        soft = fmax(soft,
                    ulp_error(kx_softplus(x), fmax((double)x, 0.0) + log1p(exp(-fabs((double)x)))));
    }
    printf("sigmoid %.2f, silu %.2f, softplus %.2f ulp\n", sig, silu, soft);
    assert_true(sig < 4.0 && silu < 4.0 && soft < 4.0);
}

static void test_sincos(void **state)
{
    (void)state;
    double worst = 0.0;
    for (float x = 0.0f; x <= 262144.0f; x += x < 100.0f ? 0.00137f : 0.437f) {
        const kx_sincos_result r = kx_sincos(x);
        worst = fmax(worst, fabs((double)r.s - sin((double)x)));
        worst = fmax(worst, fabs((double)r.c - cos((double)x)));
    }
    printf("sincos: %.2e\n", worst);
    assert_true(worst < 2e-7);
}

static void test_bf16(void **state)
{
    (void)state;
    assert_int_equal(kx_bf16_store(1.0f), 0x3f80);
    assert_int_equal(kx_bf16_store(kx_float(0x3f808000u)), 0x3f80); /* tie to even */
    assert_int_equal(kx_bf16_store(kx_float(0x3f818000u)), 0x3f82);
    assert_int_equal(kx_bf16_store(-INFINITY), 0xff80);
    assert_true(isnan(kx_bf16_load(kx_bf16_store(NAN))));
    for (unsigned h = 0; h < 0x7f80; h++)
        assert_int_equal(kx_bf16_store(kx_bf16_load(h)), h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),    cmocka_unit_test(test_log),  cmocka_unit_test(test_gates),
        cmocka_unit_test(test_sincos), cmocka_unit_test(test_bf16),
    };
    fpenv_flush_denormals();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
