/* What the Metal driver decides without a Mac: chips, rungs, the cutting of programs, and the file
 * with the outcome of the self-check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "exec/gpu/gpu.h"
#include "exec/gpu/metal/metal_dev.h"
#include "model/synth.h"

static void test_chips(void **state)
{
    (void)state;
    bool phone = true;
    assert_int_equal(metal_generation("applegpu_g13s", &phone), 13);
    assert_false(phone);
    assert_int_equal(metal_generation("applegpu_g18p", &phone), 18);
    assert_true(phone);
    static const char *const strange[] = {"", "applegpu_g", "applegpu_g1", "applegpu_gx7s", "AMD"};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        assert_int_equal(metal_generation(strange[i], &phone), 0);
    assert_int_equal(metal_chip_find("Apple M3 Ultra", "")->n_cores, 80);
    assert_string_equal(metal_chip_find("Apple M4 Pro", "applegpu_g16s")->name, "Apple M4 Pro");
    /* a chip that came later is taken for the smallest of the newest that is known */
    assert_string_equal(metal_chip_find("Apple M7 Max", "applegpu_g19s")->name, "Apple M5");
    assert_string_equal(metal_chip_find("Apple M2 Quattro", "applegpu_g14d")->name, "Apple M2");
    assert_string_equal(metal_chip_find("", "")->name, "Apple M1");
}

static void test_rungs(void **state)
{
    (void)state;
    static const struct {
        uint32_t generation;
        bool phone;
        metal_os os;
        metal_rung want;
    } all[] = {
        {13, false, {14, 0}, METAL_RUNG_SIMDGROUP}, {16, false, {26, 4}, METAL_RUNG_SIMDGROUP},
        {17, false, {26, 1}, METAL_RUNG_SIMDGROUP}, {17, false, {26, 2}, METAL_RUNG_TENSOR},
        {17, false, {26, 3}, METAL_RUNG_TENSOR},    {17, false, {26, 4}, METAL_RUNG_TENSOR4},
        {17, false, {27, 0}, METAL_RUNG_TENSOR4},   {17, true, {26, 4}, METAL_RUNG_SIMDGROUP},
        {18, true, {26, 4}, METAL_RUNG_TENSOR4},    {17, false, {15, 9}, METAL_RUNG_SIMDGROUP},
        {0, false, {27, 0}, METAL_RUNG_SIMDGROUP},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(metal_best_rung(all[i].generation, all[i].phone, all[i].os), all[i].want);
    for (int r = 0; r < METAL_RUNGS; r++) {
        metal_rung back = METAL_RUNG_SCALAR;
        assert_true(metal_rung_parse(metal_rung_name((metal_rung)r), &back));
        assert_int_equal(back, r);
    }
    metal_rung none;
    assert_false(metal_rung_parse("", &none));
    assert_false(metal_rung_parse("Tensor", &none));
}

/* ---- Cutting ---- */

#define N_MAX 64u

typedef struct made {
    gpu_dispatch dispatch[N_MAX];
    uint32_t level[N_MAX], order[N_MAX + 1], first[N_MAX + 1];
    gpu_recording r;
} made;

static void make(made *m, uint32_t n, uint32_t seed)
{
    memset(m, 0, sizeof *m);
    uint32_t n_levels = 0;
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        /* a chain with dispatches beside it, as the recorder would number them */
        m->level[i] = i == 0 ? 0 : (seed >> 16) % (n_levels + 1);
        if (m->level[i] + 1 > n_levels) n_levels = m->level[i] + 1;
        m->dispatch[i].bytes = (double)(seed >> 8 & 255);
        m->dispatch[i].flops = (double)(seed >> 20 & 255);
    }
    m->r =
        (gpu_recording){.dispatch = m->dispatch, .level = m->level, .n = n, .n_levels = n_levels};
}

static double cost(const made *m, const metal_rates *rates, uint32_t first, uint32_t end,
                   uint32_t *n_levels)
{
    double sum = 0;
    *n_levels = 0;
    for (uint32_t i = first; i < end; i++) {
        sum += metal_seconds(rates, &m->dispatch[m->order[i]]);
        if (i == first || m->level[m->order[i]] != m->level[m->order[i - 1]]) {
            sum += rates->level_s;
            (*n_levels)++;
        }
    }
    return sum;
}

static void check_parts(const made *m, const metal_rates *rates, double budget, uint32_t n_parts)
{
    uint8_t seen[N_MAX] = {0};
    assert_int_equal(m->first[0], 0);
    assert_int_equal(m->first[n_parts], m->r.n);
    for (uint32_t i = 0; i < m->r.n; i++) {
        assert_int_equal(seen[m->order[i]]++, 0);
        if (i == 0) continue;
        const uint32_t a = m->order[i - 1], b = m->order[i];
        assert_true(m->level[a] < m->level[b] || (m->level[a] == m->level[b] && a < b));
    }
    for (uint32_t p = 0; p < n_parts; p++) {
        uint32_t n_levels, more;
        assert_true(m->first[p] < m->first[p + 1]);
        const double c = cost(m, rates, m->first[p], m->first[p + 1], &n_levels);
        assert_true(c <= budget * (1 + 1e-9) || n_levels == 1);
        if (p == 0) continue;
        /* cut between levels, and no earlier than needed */
        const uint32_t at = m->first[p];
        uint32_t end = at + 1;
        assert_int_not_equal(m->level[m->order[at]], m->level[m->order[at - 1]]);
        while (end < m->r.n && m->level[m->order[end]] == m->level[m->order[at]])
            end++;
        assert_true(cost(m, rates, m->first[p - 1], end, &more) > budget * (1 - 1e-9));
    }
}

static void test_split(void **state)
{
    (void)state;
    static made m;
    const metal_rates rates = {1000.0, 500.0, 0.01};
    uint32_t most = 0;
    for (uint32_t seed = 1; seed < 400; seed++) {
        make(&m, 1 + seed % N_MAX, seed);
        const double budget = 0.05 * (1 + seed % 40);
        const uint32_t n = metal_split(&m.r, &rates, budget, m.order, m.first);
        check_parts(&m, &rates, budget, n);
        if (n > most) most = n;
    }
    assert_true(most > 8);
    make(&m, 0, 1);
    assert_int_equal(metal_split(&m.r, &rates, 1.0, m.order, m.first), 0);
}

/* ---- The real model's chunks ---- */

#define STAGES_MAX 2048u

typedef struct stages {
    gpu_dispatch dispatch[STAGES_MAX];
    uint32_t level[STAGES_MAX], order[STAGES_MAX + 1], first[STAGES_MAX + 1];
    uint32_t n, n_levels;
    double flops;
} stages;

static void add_stage(void *user, const exec_stage *s)
{
    stages *t = user;
    assert_true(t->n < STAGES_MAX);
    t->dispatch[t->n].bytes = s->bytes;
    t->dispatch[t->n].flops = s->flops;
    t->level[t->n++] = s->level;
    t->flops += s->flops;
    if (s->level + 1 > t->n_levels) t->n_levels = s->level + 1;
}

/* No command buffer of any chip comes near a watchdog, by the cautious rates. */
static void test_real_chunks(void **state)
{
    (void)state;
    static const char *const names[] = {"Apple M1", "Apple M1 Max", "Apple M4 Pro",
                                        "Apple M3 Ultra", "Apple M5 Max"};
    static const uint32_t lengths[] = {4096, 32768, 131072, 262144};
    static stages t;
    model_shape shape;
    calla_error err;
    assert_int_equal(synth_shape(&shape, "full", 0, &err), CALLA_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const metal_rates rates = metal_rates_of(
            metal_chip_find(names[i], ""),
            i + 1 == sizeof names / sizeof *names ? METAL_RUNG_TENSOR4 : METAL_RUNG_SIMDGROUP);
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            memset(&t, 0, sizeof t);
            const uint32_t n = gpu_tokens_at_once(&shape, METAL_PART_SECONDS * rates.flops_s,
                                                  GPU_CHUNK_DEFAULT, lengths[j]);
            if (exec_gpu_schedule(&shape, NULL, true, n, lengths[j], add_stage, &t, &err) !=
                CALLA_OK)
                fail_msg("%s", err.message);
            const gpu_recording r = {
                .dispatch = t.dispatch, .level = t.level, .n = t.n, .n_levels = t.n_levels};
            const uint32_t n_parts = metal_split(&r, &rates, METAL_PART_SECONDS, t.order, t.first);
            double longest = 0;
            for (uint32_t p = 0; p < n_parts; p++) {
                double sum = 0;
                for (uint32_t k = t.first[p]; k < t.first[p + 1]; k++)
                    sum += metal_seconds(&rates, &t.dispatch[t.order[k]]);
                if (sum > longest) longest = sum;
            }
            print_message("  %-14s %6u: %4u tokens, %3u command buffers, longest %3.0f ms\n",
                          names[i], lengths[j], n, n_parts, longest * 1e3);
            assert_true(longest < 0.3);
            if (lengths[j] >= 131072) assert_true(n_parts >= 10);
        }
    }
}

/* ---- The outcome of the self-check ---- */

static metal_device *some_device(void)
{
    metal_device *d = mem_alloc(sizeof *d);
    assert_non_null(d);
    (void)snprintf(d->name, sizeof d->name, "Apple M5 Max");
    (void)snprintf(d->architecture, sizeof d->architecture, "applegpu_g17s");
    (void)snprintf(d->system, sizeof d->system, "Version 26.4 (Build 25E1)");
    return d;
}

static bool reads(const char *key, const char *text, metal_rung best, metal_rung *r)
{
    /* exactly as long as it is, so that a read past the end is seen */
    const size_t n = strlen(text);
    char *copy = mem_memdup(text, n);
    const bool ok = metal_rung_read(key, copy, n, best, r);
    mem_free(copy);
    return ok;
}

static void test_outcome(void **state)
{
    (void)state;
    metal_device *d = some_device();
    strbuf key = {0}, other = {0}, text = {0};
    metal_rung r = METAL_RUNG_SCALAR;
    assert_true(metal_rung_key(d, METAL_RUNG_TENSOR4, &key));
    (void)strbuf_printf(&text, "%srung 2\n", key.data);
    assert_true(reads(key.data, text.data, METAL_RUNG_TENSOR4, &r));
    assert_int_equal(r, METAL_RUNG_TENSOR);
    /* each of these is another machine's, or another program's */
    d->system[8] = '7';
    assert_true(metal_rung_key(d, METAL_RUNG_TENSOR4, &other));
    assert_false(reads(other.data, text.data, METAL_RUNG_TENSOR4, &r));
    d->system[8] = '2';
    strbuf_clear(&other);
    assert_true(metal_rung_key(d, METAL_RUNG_TENSOR, &other));
    assert_false(reads(other.data, text.data, METAL_RUNG_TENSOR, &r));
    strbuf_clear(&other);
    d->library[1].text = mem_strdup("kernel void other() {}");
    assert_true(metal_rung_key(d, METAL_RUNG_TENSOR4, &other));
    assert_string_not_equal(other.data, key.data);
    mem_free(d->library[1].text);
    mem_free(d);
    strbuf_deinit(&key);
    strbuf_deinit(&other);
    strbuf_deinit(&text);
}

static void test_hostile_outcome(void **state)
{
    (void)state;
    static const char key[] = "key\n";
    static const char *const bad[] = {
        "",
        "k",
        "key\n",
        "key\nrung",
        "key\nrung ",
        "key\nrung 4\n",
        "key\nrung 3\n",
        "key\nrung -\n",
        "key\nrung 2",
        "key\nrung 2\n\n",
        "key\nrung 22\n",
        "key\nrung  2\n",
        "kex\nrung 2\n",
        "key\nRUNG 2\n",
        "\nkey\nrung 2\n",
        "key\nrung \xff\n",
        "rung 2\nkey\n",
    };
    metal_rung r = METAL_RUNG_SCALAR;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (reads(key, bad[i], METAL_RUNG_TENSOR, &r)) fail_msg("taken: \"%s\"", bad[i]);
    assert_int_equal(r, METAL_RUNG_SCALAR);
    assert_true(reads(key, "key\nrung 2\n", METAL_RUNG_TENSOR, &r));
    /* every single byte matters */
    for (size_t i = 0; i < strlen("key\nrung 2\n"); i++) {
        char text[] = "key\nrung 2\n";
        text[i] = (char)(text[i] ^ 0x40);
        assert_false(reads(key, text, METAL_RUNG_TENSOR, &r));
    }
}

/* ---- Without Metal ---- */

static void test_no_metal(void **state)
{
    (void)state;
    gpu_device *d;
    calla_error err;
    const gpu_metal_options o = {.framework = "libcalla-no-such.so", .max_rung = -1};
    assert_int_equal(gpu_metal_create(&d, &o, &err), CALLA_ERR_UNSUPPORTED);
    assert_null(d);
    assert_string_equal(err.message,
                        "there is no Metal on this machine (libcalla-no-such.so cannot "
                        "be opened)");
    const gpu_metal_options bad = {.max_rung = METAL_RUNGS};
    assert_int_equal(gpu_metal_create(&d, &bad, &err), CALLA_ERR_ARGUMENT);
    assert_int_equal(setenv("CALLA_METAL_RUNG", "granite", 1), 0);
    assert_int_equal(gpu_metal_create(&d, &o, &err), CALLA_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "granite"));
    assert_int_equal(unsetenv("CALLA_METAL_RUNG"), 0);
    for (int64_t n = 0; n < 2; n++) {
        mem_fail_after(n);
        const calla_status st = gpu_metal_create(&d, &o, &err);
        mem_fail_after(-1);
        assert_true(st == CALLA_ERR_MEMORY || st == CALLA_ERR_UNSUPPORTED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chips),    cmocka_unit_test(test_rungs),
        cmocka_unit_test(test_split),    cmocka_unit_test(test_real_chunks),
        cmocka_unit_test(test_outcome),  cmocka_unit_test(test_hostile_outcome),
        cmocka_unit_test(test_no_metal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
