/* What `calla bench` writes: statistics with known answers, JSON and CSV, lengths and budgets,
 * temperatures from a made-up /sys. Nothing is timed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "bench/report.h"
#include "bench/stats.h"
#include "bench/sweep.h"
#include "bench/thermal.h"
#include "engine_fake.h"

/* ---- Statistics ---- */

static void test_median(void **state)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
    (void)state;
    stats_sort(odd, 3);
    stats_sort(even, 4);
    assert_true(stats_median(odd, 3) == 2.0);
    assert_true(stats_median(even, 4) == 2.5);
    assert_true(stats_median(odd, 1) == 1.0);
}

/* The ranks of textbooks' tables of this interval. */
static void test_interval(void **state)
{
    static const struct {
        uint32_t n, first;
    } table[] = {{1, 1}, {5, 1}, {6, 1}, {8, 1}, {9, 2}, {20, 6}, {32, 10}, {50, 18}, {100, 40}};
    double v[1024], low, high;
    (void)state;
    for (int i = 0; i < 1024; i++)
        v[i] = i + 1;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        stats_median_interval(v, table[i].n, &low, &high);
        if (low != table[i].first || high != table[i].n + 1 - table[i].first)
            fail_msg("n = %u: ranks %.0f and %.0f, expected %u from both ends", table[i].n, low,
                     high, table[i].first);
    }
    stats_median_interval(v, 1024, &low, &high);
    assert_true(low > 475 && low < 485 && high == 1025 - low);
}

/* It covers the median of a skewed distribution at least 95 times in a hundred. */
static void test_coverage(void **state)
{
    uint64_t rng = 7;
    int covered = 0;
    (void)state;
    for (int run = 0; run < 4000; run++) {
        double v[11], low, high;
        for (int i = 0; i < 11; i++) {
            rng = rng * 6364136223846793005ull + 1442695040888963407ull;
            v[i] = -log(((double)(rng >> 11) + 0.5) * 0x1p-53); /* median ln 2 */
        }
        stats_sort(v, 11);
        stats_median_interval(v, 11, &low, &high);
        covered += low <= log(2.0) && log(2.0) <= high;
    }
    if (covered < 3800 || covered > 3980) fail_msg("seed 7: %d of 4000 cover the median", covered);
}

/* ---- Records ---- */

static void fill(bench_record *r)
{
    double t[] = {0.3, 0.1, 0.2}, steps[] = {0.01, 0.02};
    memset(r, 0, sizeof *r);
    *r = (bench_record){.model = "a \"model\"\n",
                        .backend = "cpu",
                        .flags = "--prefill 8,9",
                        .n_threads = 2,
                        .chunk_tokens = 512,
                        .large_pages = -1,
                        .thermal = {(double)NAN, (double)NAN, -1},
                        .limits = {.read_bytes_per_s = 1000, .matrix_flops = 400}};
    assert_non_null(
        record_add(r, (bench_result){.kind = "prefill", .tokens = 20, .flops = 2}, t, 3, 20));
    assert_non_null(
        record_add(r, (bench_result){.kind = "decode", .tokens = 7, .bytes = 5, .without = "pdl"},
                   steps, 2, 1));
    record_leave_out(r, (bench_left){"decode", 4096, false, ""}, "no %s", "room");
}

static double number(const json_value *v, const char *key)
{
    double x;
    if (!json_double(json_get(v, key), &x)) fail_msg("no number \"%s\"", key);
    return x;
}

static void is_null(const json_value *v, const char *key)
{
    const json_value *x = json_get(v, key);
    if (x == NULL || x->type != JSON_NULL) fail_msg("\"%s\" is not null", key);
}

static void test_json(void **state)
{
    static const char *const keys[] = {"format",  "version", "commit",       "date",   "system",
                                       "machine", "kv",      "memory_bytes", "model",  "synthetic",
                                       "backend", "variant", "precision",    "limits", "threads",
                                       "flags",   "thermal", "chunk_tokens", "memory", "weights"};
    static bench_record r;
    strbuf s = {0};
    json_doc d;
    calla_error err;
    (void)state;
    fill(&r);
    report_json(&r, &s);
    if (json_parse(&d, s.data, s.len, &(json_limits){0}, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_get(d.root, keys[i]) == NULL) fail_msg("no \"%s\"", keys[i]);
    assert_true(number(d.root, "format") == 3);
    assert_true(json_is(json_get(d.root, "model"), "a \"model\"\n"));
    is_null(d.root, "thermal");
    is_null(json_get(d.root, "limits"), "copy_bytes_per_s");
    assert_true(number(json_get(d.root, "limits"), "read_bytes_per_s") == 1000);
    is_null(json_get(d.root, "weights"), "large_pages");
    const json_value *results = json_get(d.root, "results"), *x = json_at(results, 0);
    assert_int_equal(results->n_items, 2);
    assert_true(json_is(json_get(x, "kind"), "prefill"));
    assert_true(number(x, "tokens") == 20 && number(x, "tokens_per_s") == 100);
    assert_true(fabs(number(x, "slowest") - 20 / 0.3) < 1e-3 && number(x, "fastest") == 200);
    assert_true(number(x, "low") == number(x, "slowest") && number(x, "high") == 200);
    assert_true(fabs(number(x, "matrix_fraction") - 0.5) < 1e-9);
    is_null(x, "bandwidth_fraction");
    is_null(x, "kernels_per_token");
    is_null(x, "stages_per_token");
    assert_true(json_get(x, "without") == NULL);
    assert_int_equal(json_get(x, "seconds")->n_items, 3);
    x = json_at(results, 1);
    assert_true(json_is(json_get(x, "without"), "pdl"));
    assert_true(fabs(number(x, "tokens_per_s") - 1 / 0.015) < 1e-3);
    assert_true(fabs(number(x, "bandwidth_fraction") - 5 / 0.015 / 1000) < 1e-6);
    assert_true(json_is(json_get(json_at(json_get(d.root, "left_out"), 0), "why"), "no room"));
    json_free(&d);
    strbuf_deinit(&s);
    record_deinit(&r);
}

/* Fields of a line of CSV, with quotes. */
static unsigned n_fields(const char *line, const char **end)
{
    unsigned n = 1;
    bool quoted = false;
    for (; *line != '\0' && (quoted || *line != '\n'); line++) {
        if (*line == '"') quoted = !quoted;
        n += !quoted && *line == ',';
    }
    *end = *line == '\n' ? line + 1 : line;
    return n;
}

static void test_csv(void **state)
{
    static bench_record r;
    strbuf s = {0};
    (void)state;
    fill(&r);
    report_csv(&r, &s);
    const char *at = s.data;
    const unsigned n = n_fields(at, &at);
    assert_int_equal(n_fields(at, &at), n);
    assert_int_equal(n_fields(at, &at), n);
    assert_true(*at == '\0');
    assert_non_null(strstr(s.data, "\"a \"\"model\"\"\n\""));
    assert_non_null(strstr(s.data, "\"--prefill 8,9\""));
    strbuf_deinit(&s);
    record_deinit(&r);
}

static void test_roof(void **state)
{
    const bench_record r = {.limits = {.read_bytes_per_s = 1000, .matrix_flops = 400}};
    const bench_result reads = {.bytes = 10, .flops = 1}, computes = {.bytes = 1, .flops = 8};
    (void)state;
    assert_true(fabs(report_roof(&r, &reads) - 100) < 1e-9);
    assert_true(fabs(report_roof(&r, &computes) - 50) < 1e-9);
    assert_true(report_roof(&(bench_record){.limits = {.read_bytes_per_s = 1}}, &reads) == 0.0);
}

static void test_full(void **state)
{
    static bench_record r;
    double t[] = {1};
    (void)state;
    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < BENCH_RESULTS_MAX; i++)
        assert_non_null(record_add(&r, (bench_result){.kind = "decode"}, t, 1, 1));
    assert_true(record_add(&r, (bench_result){.kind = "decode"}, t, 1, 1) == NULL);
    record_deinit(&r);
}

/* ---- Sweeps ---- */

static void test_lengths(void **state)
{
    static const char *const bad[] = {"a", "0", ",", "1,,2", "-1", "1 2", "1000001", " 1"};
    sweep_lengths l;
    char many[512] = "1";
    (void)state;
    assert_true(sweep_parse("", &l) && l.n_n == 0);
    assert_true(sweep_parse("4096,16,16,256", &l) && l.n_n == 3);
    assert_true(l.n[0] == 16 && l.n[1] == 256 && l.n[2] == 4096);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (sweep_parse(bad[i], &l)) fail_msg("takes '%s'", bad[i]);
    for (uint32_t i = 0; i < SWEEP_LENGTHS_MAX; i++)
        memcpy(many + 1 + 2 * i, ",2", 3);
    assert_false(sweep_parse(many, &l));
    assert_int_equal(sweep_article.n_n, 10);
}

typedef struct seen {
    uint32_t n, tokens[16];
    bool decode[16];
} seen;

static void on_result(void *user, const bench_result *x)
{
    seen *s = user;
    s->decode[s->n] = strcmp(x->kind, "decode") == 0;
    s->tokens[s->n++] = x->tokens;
}

static calla_status sweep(bench_record *r, seen *s, const char *prefill, const char *decode,
                          double budget, calla_error *err)
{
    calla_engine *e = fake_engine(32);
    measure m;
    sweep_options o = {.budget = budget, .on_result = on_result, .user = s};
    memset(r, 0, sizeof *r);
    *s = (seen){.n = 0};
    e->shape.full_interval = 4; /* costs are computed from the shape */
    e->shape.n_layers = 4;
    e->shape.hidden = e->shape.head_dim = 64;
    e->shape.n_heads = e->shape.n_kv_heads = 1;
    e->shape.n_experts = 8;
    e->shape.n_experts_used = 2;
    assert_true(sweep_parse(prefill, &o.prefill) && sweep_parse(decode, &o.decode));
    const measure_options mo = {.reps = 7, .steps = 8};
    assert_int_equal(measure_init(&m, e, &mo, err), CALLA_OK);
    const calla_status st = sweep_run(&m, r, &o, err);
    measure_deinit(&m);
    calla_engine_destroy(e);
    return st;
}

/* 20 lies behind what 16 and its steps have reached; 2000 is more than the model's context. */
static void test_sweep(void **state)
{
    static const uint32_t tokens[] = {16, 64, 16, 20, 64};
    static bench_record r;
    seen s;
    calla_error err;
    (void)state;
    if (sweep(&r, &s, "64,16,2000", "16,20,64,2000,3000", 0.0, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    assert_int_equal(s.n, 5);
    for (uint32_t i = 0; i < 5; i++)
        assert_true(s.tokens[i] == tokens[i] && s.decode[i] == (i >= 2));
    assert_int_equal(r.results[0].n_seconds, 7);
    assert_int_equal(r.results[2].n_seconds, 8);
    assert_int_equal(r.n_left, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_non_null(strstr(r.left[i].why, "between 1 and 1000 tokens"));
    record_deinit(&r);
}

static void test_budget(void **state)
{
    static bench_record r;
    seen s;
    calla_error err;
    (void)state;
    /* Over before it begins. */
    assert_int_equal(sweep(&r, &s, "16,64", "16", 1e-9, &err), CALLA_ERR_ARGUMENT);
    assert_int_equal(r.n_left, 3);
    assert_non_null(strstr(r.left[0].why, "left of the budget"));
    assert_non_null(strstr(err.message, "nothing was measured: prefill 16"));
    record_deinit(&r);
    /* More than enough. */
    assert_int_equal(sweep(&r, &s, "16,64", "16", 1e4, &err), CALLA_OK);
    assert_true(s.n == 3 && r.n_left == 0 && r.results[0].n_seconds == 7);
    record_deinit(&r);
}

/* ---- Temperatures ---- */

static char made[16][128]; /* files */
static uint32_t n_made;

static void put(const char *root, const char *path, const char *text)
{
    char *name = made[n_made++ % 16];
    (void)snprintf(name, sizeof made[0], "%s/%s", root, path);
    for (char *p = name + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(name, 0700);
        *p = '/';
    }
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    (void)fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Files, and the folders that are empty then. */
static void take_away(void)
{
    for (uint32_t i = 0; i < n_made; i++)
        (void)unlink(made[i]);
    for (uint32_t i = 0; i < n_made; i++)
        for (char *p; (p = strrchr(made[i], '/')) != NULL;) {
            *p = '\0';
            (void)rmdir(made[i]);
        }
    n_made = 0;
}

static void test_thermal(void **state)
{
#if defined(__linux__)
    char root[] = "build-thermal-XXXXXX";
    thermal_state none, before, after;
    (void)state;
    assert_non_null(mkdtemp(root));
    thermal_read_at(&none, root);
    assert_true(isnan(none.celsius) && none.slowed < 0);
    put(root, "class/thermal/thermal_zone0/type", "iwlwifi\n");
    put(root, "class/thermal/thermal_zone0/temp", "99000\n");
    put(root, "class/thermal/thermal_zone1/type", "x86_pkg_temp\n");
    put(root, "class/thermal/thermal_zone1/temp", "61000\n");
    put(root, "class/hwmon/hwmon0/name", "k10temp\n");
    put(root, "class/hwmon/hwmon0/temp1_input", "63500\n");
    put(root, "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "4\n");
    put(root, "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "1\n");
    thermal_read_at(&before, root);
    assert_true(before.celsius == 63.5 && before.slowed == 5);
    put(root, "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "2\n");
    thermal_read_at(&after, root);
    assert_int_equal(thermal_between(&before, &after).throttled, 1);
    assert_int_equal(thermal_between(&before, &before).throttled, 0);
    assert_int_equal(thermal_between(&none, &after).throttled, -1);
    take_away();
    assert_int_equal(access(root, F_OK), -1);
#else
    (void)state;
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_median),   cmocka_unit_test(test_interval),
        cmocka_unit_test(test_coverage), cmocka_unit_test(test_json),
        cmocka_unit_test(test_csv),      cmocka_unit_test(test_roof),
        cmocka_unit_test(test_full),     cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_sweep),    cmocka_unit_test(test_budget),
        cmocka_unit_test(test_thermal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
