/* The Metal driver's choice of matrix tiles, on the stand-in: kinds that do not compile or that
 * multiply wrong at large sizes are left out, and the outcome is kept. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "exec/gpu/metal/source.h"
#include "exec/gpu/device.h"
#include "support/st_writer.h"

#define FILE_NAME "metal-selfcheck"

static const char *(*configure)(const char *options), *(*finish)(void);
static uint64_t (*count)(const char *what);
static char *dir;
static char said[16384];

static void on_line(void *user, calla_log_level level, const char *line)
{
    (void)user;
    if (level == CALLA_LOG_DEBUG) return;
    const size_t n = strlen(said);
    (void)snprintf(said + n, sizeof said - n, "%s\n", line);
}

static void find(void *lib, const char *symbol, void *to)
{
    void *p = dlsym(lib, symbol);
    assert_non_null(p);
    memcpy(to, &p, sizeof p);
}

static int set_up(void **state)
{
    (void)state;
    void *lib = dlopen(STANDIN, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) fail_msg("%s", dlerror());
    find(lib, "standin_configure", (void *)&configure);
    find(lib, "standin_finish", (void *)&finish);
    find(lib, "standin_count", (void *)&count);
    dir = stw_mkdir();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stw_rmdir(dir);
    return 0;
}

/* Opens on a machine as described; the name of the device, or the error's sentence. */
static calla_status open_on(const char *machine, const char *cache_dir, char *text, uint64_t *runs)
{
    const gpu_metal_options o = {.framework = STANDIN,
                                 .cache_dir = cache_dir,
                                 .max_rung = -1,
                                 .check_tokens = 8,
                                 .log = on_line};
    gpu_device *d;
    gpu_limits lim;
    calla_error err;
    const char *bad = configure(machine);
    if (bad != NULL) fail_msg("%s", bad);
    said[0] = '\0';
    const calla_status st = gpu_metal_create(&d, &o, &err);
    *runs = count("dispatches");
    if (st == CALLA_OK) {
        d->ops->limits(d, &lim);
        d->ops->destroy(d);
    }
    const char *left = finish();
    if (left != NULL) fail_msg("%s: %s", machine, left);
    (void)snprintf(text, 256, "%.255s", st == CALLA_OK ? lim.name : err.message);
    return st;
}

static bool has(const char *words)
{
    return strstr(said, words) != NULL;
}

static void test_no_tensors(void **state)
{
    (void)state;
    static const char machine[] = "mode=msl,chip=M5Max,os=26.4,no-tensor=1";
    char text[256];
    uint64_t runs;
    char *path = path_join(dir, FILE_NAME);
    if (open_on(machine, dir, text, &runs) != CALLA_OK) fail_msg("%s", text);
    assert_string_equal(text, "Apple M5 Max, simdgroup 8x8");
    assert_true(runs > 0);
    assert_true(has("tensor 4-bit: not used on this machine: the GPU kernels"));
    assert_true(has("tensor 16x32x16: not used on this machine: the GPU kernels"));
    assert_true(has("__HAVE_TENSOR__")); /* the compiler's own words */
    /* The next start believes it; another system, and a damaged file, are checked again. */
    assert_int_equal(open_on(machine, dir, text, &runs), CALLA_OK);
    assert_string_equal(text, "Apple M5 Max, simdgroup 8x8");
    assert_int_equal(runs, 0);
    assert_false(has("first start"));
    assert_int_equal(open_on("mode=none,chip=M5Max,os=26.3,no-tensor=1", dir, text, &runs),
                     CALLA_ERR_DEVICE);
    assert_true(has("first start"));
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fputc('k', f), 'k');
    assert_int_equal(fclose(f), 0);
    assert_int_equal(open_on("mode=none,chip=M5Max,os=26.4,no-tensor=1", dir, text, &runs),
                     CALLA_ERR_DEVICE);
    assert_true(has("first start"));
    assert_int_equal(remove(path), 0);
    mem_free(path);
}

static void test_wrong_products(void **state)
{
    (void)state;
    char text[256];
    uint64_t runs;
    if (open_on("mode=msl,chip=M5Max,os=26.4,wrong=3", "none", text, &runs) != CALLA_OK)
        fail_msg("%s", text);
    assert_string_equal(text, "Apple M5 Max, tensor 16x32x16");
    assert_true(has("tensor 4-bit: not used on this machine: gemm of 8 tokens"));
    assert_true(has("tensor 16x32x16: matrix products at real shapes are right"));
}

/* Nothing multiplies: each kind has its line, and there is no Metal. */
static void test_nothing_works(void **state)
{
    (void)state;
    char text[256];
    uint64_t runs;
    char *path = path_join(dir, FILE_NAME);
    assert_int_equal(open_on("mode=none,chip=M5Max,os=26.4", dir, text, &runs), CALLA_ERR_DEVICE);
    assert_non_null(strstr(text, "no kind of matrix tiles works on Apple M5 Max"));
    for (int r = 0; r < METAL_RUNGS; r++) {
        static const char *const names[] = {"scalar tiles", "simdgroup 8x8", "tensor 16x32x16",
                                            "tensor 4-bit"};
        char line[64];
        (void)snprintf(line, sizeof line, "%s: not used on this machine: ", names[r]);
        assert_true(has(line));
    }
    assert_false(file_exists(path));
    mem_free(path);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {T(test_no_tensors), T(test_wrong_products),
                                       T(test_nothing_works)};
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
