/* cmocka.h - as much of cmocka as tests of the stand-in need, for a target without the library. */
#ifndef CALLA_TESTS_STANDIN_ARM_CMOCKA_H
#define CALLA_TESTS_STANDIN_ARM_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
#f, f                                                                                      \
    }
#define print_message(...) ((void)printf(__VA_ARGS__))
#define fail_msg(...)                                                                              \
    ((void)fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), (void)fprintf(stderr, __VA_ARGS__),     \
     (void)fputc('\n', stderr), exit(1))
#define assert_true(x)                                                                             \
    do {                                                                                           \
        if (!(x)) fail_msg("not true: %s", #x);                                                    \
    } while (0)
#define assert_false(x)           assert_true(!(x))
#define assert_null(x)            assert_true((x) == NULL)
#define assert_non_null(x)        assert_true((x) != NULL)
#define assert_int_equal(a, b)    assert_true((long long)(a) == (long long)(b))
#define assert_ptr_equal(a, b)    assert_true((a) == (b))
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)

#define cmocka_run_group_tests(tests, set_up, tear_down)                                           \
    standin_run(tests, sizeof(tests) / sizeof *(tests), set_up)
static inline int standin_run(const struct CMUnitTest *t, size_t n, int (*set_up)(void **state))
{
    void *state = NULL;
    if (set_up(&state) != 0) return 1;
    for (size_t i = 0; i < n; i++) {
        printf("%s\n", t[i].name);
        (void)fflush(stdout);
        t[i].run(&state);
    }
    printf("%zu passed, 0 failed\n", n);
    return 0;
}

#endif
