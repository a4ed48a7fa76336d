/* Reference files: written, read back, refused; the arithmetic of comparisons on numbers that can
 * be worked out by hand; drift on streams with one known fault. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/st_writer.h"

#include "engine/verify.h"

#define N_TOKENS 5u
#define N_VOCAB  7u
#define N_POINTS 5u /* two layers */
#define N_TRACED 3u
#define N_WIDTH  4u

static const int32_t tokens[N_TOKENS] = {1, 4, 0, 6, 2};
static const int32_t first[2] = {0, 3};

static uint64_t rng = 20261130;

static float draw(void)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(int32_t)(rng >> 32) / 5e8f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = draw();
}

typedef struct files {
    char *dir, *path;
    float logits[N_TOKENS * N_VOCAB], trace[N_POINTS * N_TRACED * N_WIDTH];
} files;

static int set_up(void **state)
{
    files *f = mem_alloc(sizeof *f);
    f->dir = stw_mkdir();
    f->path = path_join(f->dir, "x.safetensors");
    fill(f->logits, N_TOKENS * N_VOCAB);
    fill(f->trace, N_POINTS * N_TRACED * N_WIDTH);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    files *f = *state;
    stw_rmdir(f->dir);
    mem_free(f->path);
    mem_free(f);
    return 0;
}

static void save(const files *f, uint32_t k)
{
    calla_error err;
    reference_writer w = {.source = "a \"test\"",
                          .tokens = tokens,
                          .first = first,
                          .n_tokens = N_TOKENS,
                          .n_seqs = 2,
                          .n_vocab = N_VOCAB,
                          .k = k,
                          .n_points = N_POINTS,
                          .n_traced = N_TRACED,
                          .n_width = N_WIDTH};
    assert_int_equal(reference_begin(&w, &err), CALLA_OK);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        reference_put(&w, i, f->logits + (size_t)i * N_VOCAB);
    memcpy(w.trace, f->trace, sizeof f->trace);
    if (reference_write(&w, f->path, &err) != CALLA_OK) fail_msg("%s", err.message);
    reference_writer_deinit(&w);
}

static void load(const files *f, reference *r)
{
    calla_error err;
    if (reference_open(r, f->path, &err) != CALLA_OK) fail_msg("%s", err.message);
}

static void test_all_logits_come_back(void **state)
{
    const files *f = *state;
    reference r;
    float row[N_VOCAB], point[N_WIDTH];
    uint32_t at, n;
    save(f, 0);
    load(f, &r);
    assert_int_equal(r.k, 0);
    assert_int_equal(r.n_vocab, N_VOCAB);
    assert_int_equal(r.n_seqs, 2);
    reference_seq(&r, 1, &at, &n);
    assert_true(at == 3 && n == 2);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        assert_int_equal(reference_token(&r, i), tokens[i]);
        reference_row(&r, i, row);
        assert_memory_equal(row, f->logits + (size_t)i * N_VOCAB, sizeof row);
    }
    reference_point(&r, 4, 2, point);
    assert_memory_equal(point, f->trace + (4 * N_TRACED + 2) * N_WIDTH, sizeof point);
    reference_close(&r);
}

static void test_the_largest_logits_come_back(void **state)
{
    const files *f = *state;
    reference r;
    save(f, 3);
    load(f, &r);
    assert_int_equal(r.k, 3);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        const float *x = f->logits + (size_t)i * N_VOCAB;
        double sum = 0.0;
        for (uint32_t v = 0; v < N_VOCAB; v++) {
            uint32_t rank = 0;
            for (uint32_t u = 0; u < N_VOCAB; u++)
                rank += x[u] > x[v];
            if (rank < 3) {
                assert_int_equal(reference_top_id(&r, i, rank), v);
                assert_true(reference_top_logit(&r, i, rank) == x[v]);
            }
            sum += exp((double)x[v]);
        }
        assert_true(fabs((double)reference_log_sum(&r, i) - log(sum)) < 1e-5);
        if (i + 1 < N_TOKENS) assert_true(reference_target_logit(&r, i) == x[tokens[i + 1]]);
    }
    reference_close(&r);
}

/* A file of k logits a row as a list that a test may break. */
static void as_list(const files *f, stw_list *l, bool all)
{
    reference r;
    save(f, all ? 0 : 3);
    load(f, &r);
    for (size_t i = 0; i < safetensors_count(r.file); i++) {
        const st_tensor *t = safetensors_at(r.file, i);
        char shape[48];
        size_t at = 0;
        for (uint32_t d = 0; d < t->n_dims; d++)
            at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%llu", d == 0 ? "" : "x",
                                   (unsigned long long)t->shape[d]);
        stw_add(l, t->name, st_dtype_name(t->dtype), shape, t->data);
    }
    reference_close(&r);
}

static void refused(const files *f, stw_list *l, const char *words)
{
    reference r;
    calla_error err;
    stw_save_shard(l, 0, f->path, true);
    assert_int_equal(reference_open(&r, f->path, &err), CALLA_ERR_FORMAT);
    if (strstr(err.message, words) == NULL) fail_msg("'%s' lacks '%s'", err.message, words);
    assert_null(r.file);
    stw_free(l);
}

/* One value of a tensor is wrong. */
typedef struct wrong {
    bool all;
    const char *name, *words;
    size_t at;
    int32_t id;
    float value;
} wrong;

static void test_wrong_values_are_refused(void **state)
{
    static const wrong list[] = {
        {true, "tokens", "outside the vocabulary", 2, N_VOCAB, 0},
        {true, "tokens", "outside the vocabulary", 2, -1, 0},
        {true, "first", "ascending", 0, 1, 0},
        {true, "first", "ascending", 1, N_TOKENS, 0},
        {true, "logits", "logits: a value is not finite", 9, 0, NAN},
        {false, "log_sum", "less than the sum", 1, 0, -90.0f},
        {false, "log_sum", "must be finite", 1, 0, INFINITY},
        {false, "top_ids", "distinct", 4, N_VOCAB, 0},
        {false, "top_logits", "descending", 2, 0, 99.0f},
        {false, "target_logit", "larger than the largest", 0, 0, 99.0f},
        {false, "trace", "trace: a value is not finite", 7, 0, INFINITY},
        {false, "n_vocab", "n_vocab: expected 1", 0, 0, 0},
    };
    const files *f = *state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const wrong *w = &list[i];
        stw_list l = {0};
        as_list(f, &l, w->all);
        stw_tensor *t = stw_find(&l, w->name);
        memcpy(t->data + 4 * w->at, t->dtype[0] == 'I' ? (const void *)&w->id : &w->value, 4);
        refused(f, &l, w->words);
    }
    stw_list l = {0};
    as_list(f, &l, false);
    stw_tensor *t = stw_find(&l, "top_ids");
    memcpy(t->data + 4, t->data, 4);
    refused(f, &l, "distinct");
}

static void test_wrong_tensors_are_refused(void **state)
{
    static const struct {
        const char *name, *dtype, *shape, *words; /* dtype NULL: dropped */
    } list[] = {
        {"tokens", NULL, NULL, "tokens: expected 1"},
        {"first", NULL, NULL, "first: expected"},
        {"top_ids", NULL, NULL, "logits: it is missing"},
        {"log_sum", NULL, NULL, "log_sum: it is missing"},
        {"top_logits", "I32", "5x3", "expected F32"},
        {"top_logits", "F32", "3x5", "expected 5 x 3"},
        {"top_ids", "I32", "3x5", "top_ids: expected 2"},
        {"trace", "F32", "4x3x5", "2 * layers + 1"},
        {"trace", "F32", "5x4x3", "2 * layers + 1"}, /* the first sequence has 3 tokens */
    };
    const files *f = *state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        stw_list l = {0};
        as_list(f, &l, false);
        stw_tensor *t = stw_find(&l, list[i].name);
        if (list[i].dtype == NULL) {
            stw_drop(&l, t);
        } else {
            (void)snprintf(t->dtype, sizeof t->dtype, "%s", list[i].dtype);
            (void)snprintf(t->shape, sizeof t->shape, "%s", list[i].shape);
        }
        refused(f, &l, list[i].words);
    }
}

/* Logits that differ by a known factor in one probability. */
static void test_statistics(void **state)
{
    const files *f = *state;
    for (uint32_t k = 0; k <= 3; k += 3) {
        reference r;
        verify_stats same = {0}, other = {0};
        float row[N_VOCAB], x[N_VOCAB];
        save(f, k);
        load(f, &r);
        for (uint32_t i = 0; i + 1 < N_TOKENS; i++)
            verify_add(&same, &r, i, f->logits + (size_t)i * N_VOCAB, row);
        assert_true(same.n == 4 && same.n_same == 4 && same.kl_max < 1e-6 && same.diff_max == 0.0);
        assert_true(fabs(verify_perplexity_ratio(&same) - 1.0) < 1e-6);
        /* Row 0, all mass at its most likely token: KL is -log of what it had. */
        memcpy(x, f->logits, sizeof x);
        uint32_t best = 0;
        double sum = 0.0;
        for (uint32_t v = 0; v < N_VOCAB; v++) {
            best = x[v] > x[best] ? v : best;
            sum += exp((double)x[v]);
        }
        for (uint32_t v = 0; v < N_VOCAB; v++)
            x[v] = v == best ? 1.0f : 0.0f;
        verify_add(&other, &r, 0, x, row);
        const double log_q = log(exp(1.0) + N_VOCAB - 1.0);
        double kl = 0.0;
        for (uint32_t v = 0; v < N_VOCAB; v++) {
            const double p = exp((double)f->logits[v]) / sum;
            kl += p * (log(p) - ((double)x[v] - log_q));
        }
        assert_int_equal(other.n_same, 1);
        assert_true(fabs(other.nll - (log_q - (double)x[tokens[1]])) < 1e-9);
        assert_true(fabs(other.nll_ref - (log(sum) - (double)f->logits[tokens[1]])) < 1e-5);
        if (k == 0)
            assert_true(fabs(other.kl_sum - kl) < 1e-6);
        else
            assert_true(other.kl_sum <= kl + 1e-6 && other.kl_sum > 0.0);
        x[best] = -1.0f;
        verify_add(&other, &r, 0, x, row);
        assert_int_equal(other.n_same, 1);
        x[2] = NAN;
        verify_add(&other, &r, 0, x, row);
        assert_true(isnan(verify_perplexity_ratio(&other)) && isinf(other.kl_max));
        reference_close(&r);
    }
}

static void test_drift_finds_the_point(void **state)
{
    const files *f = *state;
    reference r;
    calla_error err;
    char name[48];
    static const char *const names[N_POINTS] = {"embedding", "layer 0 gdn", "layer 0 experts",
                                                "layer 1 attention", "layer 1 experts"};
    save(f, 0);
    load(f, &r);
    for (uint32_t fault = 0; fault <= N_POINTS; fault++) {
        float x[N_POINTS * N_TRACED * N_WIDTH];
        drift d;
        memcpy(x, f->trace, sizeof x);
        for (uint32_t p = 0; p < N_POINTS; p++)
            for (uint32_t i = 0; i < N_TRACED * N_WIDTH; i++) {
                float *v = &x[p * N_TRACED * N_WIDTH + i];
                *v *= 1.0f + 1e-4f * draw(); /* rounding */
                /* A fault stays in the stream; it begins with token 1. */
                if (p >= fault && i >= N_WIDTH) *v += 3.0f;
            }
        assert_int_equal(drift_find(&d, &r, x, &err), CALLA_OK);
        assert_int_equal(d.fault, fault);
        if (fault < N_POINTS) {
            assert_int_equal(d.points[fault].first, 1);
            drift_name(fault, 2, name);
            assert_string_equal(name, names[fault]);
        }
        mem_free(d.points);
    }
    float x[N_POINTS * N_TRACED * N_WIDTH];
    memcpy(x, f->trace, sizeof x);
    for (uint32_t i = 0; i < N_TRACED * N_WIDTH; i++)
        x[2 * N_TRACED * N_WIDTH + i] = NAN;
    drift d;
    assert_int_equal(drift_find(&d, &r, x, &err), CALLA_OK);
    assert_int_equal(d.fault, 2);
    mem_free(d.points);
    reference_close(&r);
}

static void test_no_memory_is_said(void **state)
{
    const files *f = *state;
    reference r;
    calla_error err;
    save(f, 3);
    for (int64_t n = 0;; n++) {
        mem_fail_after(n);
        const calla_status st = reference_open(&r, f->path, &err);
        mem_fail_after(-1);
        if (st == CALLA_OK) break;
        assert_int_equal(st, CALLA_ERR_MEMORY);
        assert_null(r.file);
    }
    reference_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_logits_come_back),
        cmocka_unit_test(test_the_largest_logits_come_back),
        cmocka_unit_test(test_wrong_values_are_refused),
        cmocka_unit_test(test_wrong_tensors_are_refused),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_drift_finds_the_point),
        cmocka_unit_test(test_no_memory_is_said),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
