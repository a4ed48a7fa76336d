/* The sampler against a naive f64 reference: which ids can be drawn, and how often. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/sampler.h"

#define N_REAL_VOCAB 248320u

/* ---- The reference ---- */

typedef struct entry {
    double z, p;
    int32_t id;
} entry;

static int by_rank(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

typedef struct setting {
    calla_sampling p;
    const int32_t *history, *generated, *banned;
    size_t n_history, n_generated, n_banned;
    const bool *allowed; /* [n_vocab]; NULL: no filter */
    const int32_t *bias_ids;
    const float *bias;
    size_t n_bias;
} setting;

static bool contains(const int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static double penalised(const setting *s, double x, int32_t id)
{
    const calla_sampling *p = &s->p;
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_generated; i++)
        n += s->generated[i] == id;
    for (size_t i = 0; i < s->n_bias; i++)
        if (s->bias_ids[i] == id) x += (double)s->bias[i];
    if (p->repetition_penalty != 0.0f && (n != 0 || contains(s->history, s->n_history, id)))
        x = x > 0 ? x / (double)p->repetition_penalty : x * (double)p->repetition_penalty;
    x -= (double)p->frequency_penalty * n;
    if (n != 0) x -= (double)p->presence_penalty;
    return x;
}

/* probs[n] of every id; e: scratch [n]. */
static void reference(const setting *s, const float *logits, size_t n, entry *e, double *probs)
{
    const calla_sampling *p = &s->p;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        probs[i] = 0.0;
        const int32_t id = (int32_t)i;
        if (contains(s->banned, s->n_banned, id)) continue;
        if (s->allowed != NULL && !s->allowed[i]) continue;
        e[m++] = (entry){penalised(s, (double)logits[i], id) / (double)p->temperature, 0.0, id};
    }
    qsort(e, m, sizeof *e, by_rank);
    if (p->top_k > 0 && (size_t)p->top_k < m) m = (size_t)p->top_k;
    double sum = 0.0;
    for (size_t i = 0; i < m; i++)
        sum += e[i].p = exp(e[i].z - e[0].z);
    if (p->top_p > 0.0f && p->top_p < 1.0f) {
        double mass = 0.0;
        size_t k = 0;
        while (k < m && mass < (double)p->top_p * sum)
            mass += e[k++].p;
        m = k;
    }
    while (m > 1 && e[m - 1].p < (double)p->min_p)
        m--;
    sum = 0.0;
    for (size_t i = 0; i < m; i++)
        sum += e[i].p;
    for (size_t i = 0; i < m; i++)
        probs[e[i].id] = e[i].p / sum;
}

/* ---- Helpers ---- */

static uint64_t rnd_state;

static double rnd(void) /* [0, 1) */
{
    rnd_state = rnd_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(rnd_state >> 11) * 0x1p-53;
}

static sampler *make(uint32_t n_vocab, const setting *s)
{
    sampler *sm;
    calla_error err;
    assert_int_equal(sampler_create(&sm, n_vocab, s->banned, s->n_banned, &err), CALLA_OK);
    return sm;
}

static void begin(sampler *sm, const setting *s)
{
    sampler_begin(sm, &s->p, s->history, s->n_history);
    sampler_set_bias(sm, s->bias_ids, s->bias, s->n_bias);
    for (size_t i = 0; i < s->n_generated; i++)
        sampler_accept(sm, s->generated[i]);
}

static int32_t draw(sampler *sm, const float *logits)
{
    int32_t id = -1;
    calla_error err;
    if (sampler_draw(sm, logits, &id, &err) != CALLA_OK) fail_msg("%s", err.message);
    return id;
}

static bool is_allowed(void *user, int32_t id)
{
    const setting *s = user;
    return s->allowed[id];
}

static int32_t draw_filtered(sampler *sm, const setting *s, const float *logits)
{
    int32_t id = -1;
    calla_error err;
    setting copy = *s;
    if (sampler_draw_filtered(sm, logits, is_allowed, &copy, &id, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    return id;
}

/* Chi-square of n_draws draws against the reference; ids of probability 0 must not appear. The
 * bound is the mean plus five standard deviations: with fixed seeds it holds or it does not. */
static void check_frequencies(const setting *s, const float *logits, uint32_t n_vocab)
{
    enum { n_draws = 20000 };
    entry *e = calloc(n_vocab, sizeof *e);
    double *probs = calloc(n_vocab, sizeof *probs);
    uint32_t *seen = calloc(n_vocab, sizeof *seen);
    reference(s, logits, n_vocab, e, probs);
    sampler *sm = make(n_vocab, s);
    begin(sm, s);
    for (int i = 0; i < n_draws; i++)
        seen[s->allowed == NULL ? draw(sm, logits) : draw_filtered(sm, s, logits)]++;
    double chi = 0.0;
    int df = -1;
    double rare_p = 0.0, rare_n = 0.0; /* expected below 5: pooled */
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (probs[i] == 0.0) {
            if (seen[i] != 0) fail_msg("id %u has probability 0 and was drawn", i);
        } else if (probs[i] * n_draws < 5.0) {
            rare_p += probs[i] * n_draws;
            rare_n += seen[i];
        } else {
            const double want = probs[i] * n_draws, d = seen[i] - want;
            chi += d * d / want;
            df++;
        }
    }
    if (rare_p >= 5.0) {
        chi += (rare_n - rare_p) * (rare_n - rare_p) / rare_p;
        df++;
    }
    if (df > 0 && chi > df + 5.0 * sqrt(2.0 * df))
        fail_msg("chi-square %.1f with %d degrees of freedom", chi, df);
    sampler_destroy(sm);
    free(e);
    free(probs);
    free(seen);
}

/* ---- Tests ---- */

static void test_frequencies(void **state)
{
    (void)state;
    static const int32_t history[] = {3, 5, 5, 9}, generated[] = {1, 2, 2, 9, 2}, banned[] = {0, 7};
    for (unsigned seed = 1; seed <= 60; seed++) {
        rnd_state = seed;
        float logits[50];
        const uint32_t n_vocab = 10 + (uint32_t)(rnd() * 40);
        for (uint32_t i = 0; i < n_vocab; i++)
            logits[i] = (float)(rnd() * 8 - 4);
        if (seed % 4 == 0) logits[8] = logits[4] = logits[1]; /* ties */
        setting s = {.history = history, .n_history = 4, .generated = generated, .n_generated = 5};
        s.p.temperature = (float)(0.3 + rnd() * 1.5);
        s.p.seed = seed * 77;
        if (seed % 2 == 0) s.p.top_k = 1 + (int32_t)(rnd() * 12);
        if (seed % 3 == 0) s.p.top_p = (float)(0.05 + rnd() * 0.9);
        if (seed % 5 == 0) s.p.min_p = (float)(rnd() * 0.3);
        if (seed % 7 < 3) s.p.presence_penalty = (float)(rnd() * 2);
        if (seed % 7 < 2) s.p.frequency_penalty = (float)(rnd() - 0.3);
        if (seed % 7 > 4) s.p.repetition_penalty = (float)(0.8 + rnd());
        if (seed % 2 == 1) s.banned = banned, s.n_banned = 2;
        check_frequencies(&s, logits, n_vocab);
    }
}

/* A filter and a bias change the distribution as -infinity and added logits would. */
static void test_filter(void **state)
{
    (void)state;
    static const int32_t history[] = {3, 5, 5, 9}, generated[] = {1, 2, 2, 9, 2}, banned[] = {0, 7};
    static const int32_t bias_ids[] = {1, 4, 30, 31};
    static const float bias[] = {2.5f, -1.0f, 6.0f, -INFINITY};
    static float logits[3000];
    static bool allowed[3000];
    for (unsigned seed = 1; seed <= 48; seed++) {
        rnd_state = seed;
        const uint32_t n_vocab = seed % 3 == 0 ? 3000 : 40;
        const double share = seed % 5 == 0 ? 0.02 : seed % 5 == 1 ? 0.95 : 0.4;
        for (uint32_t i = 0; i < n_vocab; i++) {
            allowed[i] = rnd() < share;
            logits[i] = (float)(rnd() * 8 - 4 + (allowed[i] ? 0.0 : seed % 4));
        }
        allowed[30] = true;
        setting s = {.history = history, .n_history = 4, .generated = generated, .n_generated = 5};
        s.allowed = allowed;
        s.p.temperature = (float)(0.3 + rnd());
        s.p.seed = seed;
        if (seed % 2 == 0) s.p.top_k = 1 + (int32_t)(rnd() * 25);
        if (seed % 8 == 4) s.p.top_k = 700;
        if (seed % 3 == 1) s.p.top_p = (float)(0.05 + rnd() * 0.9);
        if (seed % 5 == 0) s.p.min_p = (float)(rnd() * 0.3);
        if (seed % 7 < 3) s.p.presence_penalty = (float)(rnd() * 2);
        if (seed % 2 == 1) s.banned = banned, s.n_banned = 2;
        if (seed % 4 != 1) s.bias_ids = bias_ids, s.bias = bias, s.n_bias = 4;
        check_frequencies(&s, logits, n_vocab);
        s.allowed = NULL; /* the bias alone */
        if (n_vocab == 40) check_frequencies(&s, logits, n_vocab);
    }
}

static void test_filter_greedy(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float row[N];
    static bool allowed[N];
    for (int i = 0; i < N; i++)
        row[i] = (float)(i % 1000);
    setting s = {.allowed = allowed};
    sampler *sm = make(N, &s);
    begin(sm, &s);
    allowed[4999] = allowed[999] = allowed[5] = true;
    assert_int_equal(draw_filtered(sm, &s, row), 999); /* lowest id on a tie */
    allowed[4999] = allowed[999] = false;
    allowed[3004] = allowed[1005] = allowed[2005] = true; /* found only when all are asked about */
    assert_int_equal(draw_filtered(sm, &s, row), 5);
    allowed[5] = false;
    assert_int_equal(draw_filtered(sm, &s, row), 1005);
    memset(allowed, 0, sizeof allowed);
    for (int i = 0; i < 3; i++) {
        int32_t id;
        calla_error err;
        s.p.temperature = i == 0 ? 0.0f : 1.0f;
        s.p.top_k = i == 1 ? 20 : 0;
        begin(sm, &s);
        assert_int_equal(sampler_draw_filtered(sm, row, is_allowed, &s, &id, &err),
                         CALLA_ERR_INTERNAL);
        assert_non_null(strstr(err.message, "none of 5000"));
        s.bias_ids = &(int32_t){1};
        s.bias = &(float){-INFINITY};
        s.n_bias = 1;
        begin(sm, &s);
        assert_int_equal(sampler_draw_filtered(sm, row, is_allowed, &s, &id, &err),
                         CALLA_ERR_ARGUMENT);
        s.n_bias = 0;
    }
    sampler_destroy(sm);
}

static void test_greedy(void **state)
{
    (void)state;
    static const int32_t banned[] = {1};
    setting s = {.banned = banned, .n_banned = 1};
    sampler *sm = make(6, &s);
    begin(sm, &s);
    const float ties[] = {1, 9, 3, 7, 7, 7};
    assert_int_equal(draw(sm, ties), 3); /* 1 is padding; lowest id on a tie */
    const float negative[] = {-5, -1, -3, -INFINITY, -4, -9};
    assert_int_equal(draw(sm, negative), 2);
    assert_true(ties[1] == 9.0f); /* the row is not written to */
    sampler_destroy(sm);
}

/* Penalties by hand. */
static void test_penalties(void **state)
{
    (void)state;
    static const int32_t history[] = {0, 1};
    setting s = {.history = history, .n_history = 2};
    sampler *sm = make(4, &s);
    const float row[] = {4.0f, -1.0f, 3.0f, 2.5f};

    begin(sm, &s);
    assert_int_equal(draw(sm, row), 0); /* nothing set: the history does not matter */
    s.p.presence_penalty = 2.0f;
    begin(sm, &s);
    assert_int_equal(draw(sm, row), 0); /* the prompt does not count for presence */
    sampler_accept(sm, 0);
    assert_int_equal(draw(sm, row), 2); /* 4 - 2 < 3 */
    s.p = (calla_sampling){.frequency_penalty = 0.6f};
    begin(sm, &s);
    sampler_accept(sm, 0);
    assert_int_equal(draw(sm, row), 0); /* 3.4 */
    sampler_accept(sm, 0);
    assert_int_equal(draw(sm, row), 2); /* 2.8 */
    s.p = (calla_sampling){.repetition_penalty = 1.5f};
    begin(sm, &s);
    assert_int_equal(draw(sm, row), 2); /* 4 / 1.5 */
    sampler_accept(sm, 2);
    assert_int_equal(draw(sm, row), 0); /* 2.67, 3 / 1.5 = 2, 2.5 */
    s.p = (calla_sampling){.repetition_penalty = 1.2f, .presence_penalty = 2.0f};
    begin(sm, &s);
    assert_int_equal(draw(sm, row), 0); /* 4 / 1.2 = 3.33: from the prompt, still no presence */
    const float below[] = {-2.0f, -1.0f, -1.4f, -9.0f};
    s.p = (calla_sampling){.repetition_penalty = 1.5f};
    begin(sm, &s);
    assert_int_equal(draw(sm, below), 2); /* -1 * 1.5 < -1.4 */
    sampler_destroy(sm);
}

static void test_bad_rows(void **state)
{
    (void)state;
    setting s = {.p.temperature = 1.0f};
    sampler *sm = make(3, &s);
    begin(sm, &s);
    calla_error err;
    int32_t id;
    const float nan_row[] = {1, NAN, 2}, inf_row[] = {1, 2, INFINITY};
    const float none[] = {-INFINITY, -INFINITY, -INFINITY}, one[] = {-INFINITY, -3e38f, -INFINITY};
    assert_int_equal(sampler_draw(sm, nan_row, &id, &err), CALLA_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "token id 1 is NaN"));
    assert_int_equal(sampler_draw(sm, inf_row, &id, &err), CALLA_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "token id 2 is +infinity"));
    assert_int_equal(sampler_draw(sm, none, &id, &err), CALLA_ERR_INTERNAL);
    assert_int_equal(draw(sm, one), 1);
    sampler_destroy(sm);
}

static void test_seeds(void **state)
{
    (void)state;
    float row[100];
    rnd_state = 5;
    for (int i = 0; i < 100; i++)
        row[i] = (float)(rnd() * 2);
    setting s = {.p = {.temperature = 1.0f, .seed = 42}};
    sampler *a = make(100, &s), *b = make(100, &s);
    begin(a, &s);
    begin(b, &s);
    int32_t first[50];
    for (int i = 0; i < 50; i++) {
        first[i] = draw(a, row);
        assert_int_equal(first[i], draw(b, row));
    }
    /* Fixed for good: a seed that somebody noted down keeps its meaning. */
    static const int32_t pinned[] = {7, 37, 70, 93, 99, 79, 73, 85, 77, 61, 70, 28};
    for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++)
        assert_int_equal(first[i], pinned[i]);
    begin(a, &s); /* a new response begins the sequence again */
    assert_int_equal(draw(a, row), first[0]);
    s.p.top_k = 20;
    s.p.top_p = 0.95f;
    static const int32_t pinned_few[] = {72, 63, 82, 62, 77, 44, 82, 94};
    begin(a, &s);
    for (size_t i = 0; i < sizeof pinned_few / sizeof pinned_few[0]; i++)
        assert_int_equal(draw(a, row), pinned_few[i]);
    s.p.top_k = 0;
    s.p.top_p = 0;
    s.p.seed = 43;
    begin(a, &s);
    int n_equal = 0;
    for (int i = 0; i < 50; i++)
        n_equal += draw(a, row) == first[i];
    assert_true(n_equal < 10);
    sampler_destroy(a);
    sampler_destroy(b);
}

/* What a GPU is told (op_sample); that it draws the same ids is tests/gpu/check_basic.c's to show.
 */
static void test_export(void **state)
{
    (void)state;
    float row[100];
    rnd_state = 6;
    for (int i = 0; i < 100; i++)
        row[i] = (float)(rnd() * 2);
    static const int32_t history[] = {3, 3, 9};
    setting s = {.p = {.temperature = 0.5f, .top_k = 64, .repetition_penalty = 1.5f, .seed = 1},
                 .history = history,
                 .n_history = 3};
    sampler *a = make(100, &s), *b = make(100, &s);
    sample_entry e, f;
    begin(a, &s);
    assert_true(sampler_export(a, &e));
    assert_int_equal(e.top_k, 64);
    assert_int_equal(e.greedy, 0);
    assert_int_equal(e.counted, 1);
    assert_true(e.by == 2.0f && e.repetition == 1.5f && e.top_p == 0.0f);
    sampler_accept(a, 7);
    uint32_t counts[100];
    sampler_export_counts(a, counts);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(counts[i], i == 3 || i == 9 ? SAMPLE_TOUCHED
                                    : i == 7         ? (SAMPLE_TOUCHED | 1u)
                                                     : 0u);
    begin(a, &s); /* skipping is drawing elsewhere */
    begin(b, &s);
    draw(a, row);
    sampler_skip(b);
    assert_true(sampler_export(a, &e) && sampler_export(b, &f));
    assert_memory_equal(e.rng, f.rng, sizeof e.rng);
    const int32_t id = 4;
    const float value = 1;
    sampler_set_bias(b, &id, &value, 1);
    assert_false(sampler_export(b, &f));
    s.p.top_k = 65;
    begin(b, &s);
    assert_false(sampler_export(b, &f));
    s.p.top_k = 0;
    begin(b, &s);
    assert_false(sampler_export(b, &f));
    s.p = (calla_sampling){.seed = 3};
    begin(b, &s);
    assert_true(sampler_export(b, &f));
    assert_true(f.greedy == 1 && f.top_k == 1 && f.counted == 0);
    sampler_destroy(a);
    sampler_destroy(b);
}

/* The whole vocabulary of the model: every filter against the sorted reference. */
static void test_real_vocabulary(void **state)
{
    (void)state;
    const uint32_t n = N_REAL_VOCAB;
    float *row = calloc(n, sizeof *row);
    entry *e = calloc(n, sizeof *e);
    double *probs = calloc(n, sizeof *probs);
    rnd_state = 11;
    for (uint32_t i = 0; i < n; i++) /* sum of uniforms: bell-shaped, sd about 2.9 */
        row[i] = (float)((rnd() + rnd() + rnd() + rnd() - 2.0) * 5.0);
    for (int i = 0; i < 30; i++)
        row[(uint32_t)(rnd() * n)] = (float)(10 + rnd() * 6);
    const calla_sampling settings[] = {
        {.temperature = 1.0f, .top_k = 20, .top_p = 0.95f},
        {.temperature = 0.7f, .top_p = 0.8f},
        {.temperature = 1.0f, .top_p = 0.999f},
        {.temperature = 3.0f, .top_p = 0.3f},
        {.temperature = 1.0f, .top_k = 100000},
        {.temperature = 1.0f, .min_p = 0.05f},
        {.temperature = 1.0f},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setting s = {.p = settings[i]};
        sampler *sm = make(n, &s);
        begin(sm, &s);
        reference(&s, row, n, e, probs);
        double p_drawn = 0.0, p_mean = 0.0;
        const clock_t t0 = clock();
        enum { n_draws = 100 };
        for (int d = 0; d < n_draws; d++) {
            const int32_t id = draw(sm, row);
            if (probs[id] == 0.0) fail_msg("setting %zu drew id %d of probability 0", i, (int)id);
            p_drawn += probs[id] / n_draws;
        }
        const double ms = (double)(clock() - t0) * 1e3 / CLOCKS_PER_SEC / n_draws;
        for (uint32_t k = 0; k < n; k++)
            p_mean += probs[k] * probs[k];
        print_message("  setting %zu: %.2f ms of CPU a draw, mean p %.4f (expected %.4f)\n", i, ms,
                      p_drawn, p_mean);
        assert_true(fabs(p_drawn - p_mean) < 0.2 * p_mean + 1e-5);
        sampler_destroy(sm);
    }
    free(row);
    free(e);
    free(probs);
}

/* Equal logits: the lowest ids are kept, however many. */
static void test_flat(void **state)
{
    (void)state;
    enum { n = 5000 };
    float *row = calloc(n, sizeof *row);
    const calla_sampling settings[] = {
        {.temperature = 1.0f, .top_p = 0.5f},
        {.temperature = 1.0f, .top_k = n / 2},
        {.temperature = 1.0f, .top_k = n - 1, .top_p = 0.5001f},
    };
    for (size_t i = 0; i < 3; i++) {
        setting s = {.p = settings[i]};
        sampler *sm = make(n, &s);
        begin(sm, &s);
        int32_t largest = 0;
        for (int d = 0; d < 2000; d++) {
            const int32_t id = draw(sm, row);
            if (id > largest) largest = id;
        }
        assert_in_range(largest, n / 2 - 20, n / 2 - 1);
        sampler_destroy(sm);
    }
    free(row);
}

static void test_check(void **state)
{
    (void)state;
    const struct {
        calla_sampling p;
        const char *word;
    } bad[] = {
        {{.temperature = -0.1f}, "temperature"},
        {{.temperature = NAN}, "temperature"},
        {{.temperature = INFINITY}, "temperature"},
        {{.top_p = 1.1f}, "top_p"},
        {{.top_p = -0.1f}, "top_p"},
        {{.min_p = 1.0f}, "min_p"},
        {{.min_p = NAN}, "min_p"},
        {{.top_k = -1}, "top_k"},
        {{.presence_penalty = NAN}, "presence_penalty"},
        {{.frequency_penalty = 1e9f}, "frequency_penalty"},
        {{.repetition_penalty = -1.0f}, "repetition_penalty"},
    };
    calla_error err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(sampling_check(&bad[i].p, &err), CALLA_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, bad[i].word));
    }
    const calla_sampling off = {0};
    assert_int_equal(sampling_check(&off, &err), CALLA_OK);
}

static void test_memory(void **state)
{
    (void)state;
    sampler *sm;
    calla_error err;
    for (int64_t i = 0; i < 7; i++) {
        mem_fail_after(i);
        assert_int_equal(sampler_create(&sm, 100, NULL, 0, &err), CALLA_ERR_MEMORY);
        assert_null(sm);
    }
    mem_fail_after(-1);
    setting s = {.p = {.temperature = 1.0f, .top_p = 0.9f, .repetition_penalty = 1.1f}};
    sm = make(100, &s);
    float row[100] = {0};
    const uint64_t n_allocs = mem_count();
    begin(sm, &s);
    for (int i = 0; i < 10; i++)
        sampler_accept(sm, draw(sm, row));
    assert_int_equal(mem_count(), n_allocs);
    sampler_destroy(sm);
    sampler_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),   cmocka_unit_test(test_filter),
        cmocka_unit_test(test_filter_greedy), cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_penalties),     cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_seeds),         cmocka_unit_test(test_real_vocabulary),
        cmocka_unit_test(test_flat),          cmocka_unit_test(test_check),
        cmocka_unit_test(test_memory),        cmocka_unit_test(test_export),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
