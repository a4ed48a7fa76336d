/* golden.h - the demonstration model's reference values (tests/golden/README.md), for any engine.
 */
#ifndef CALLA_TESTS_SUPPORT_GOLDEN_H
#define CALLA_TESTS_SUPPORT_GOLDEN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "calla.h"
#include "format/safetensors.h"

#define MODEL_DIR "models/nano"
#define MAX_IDS   6000

static json_doc golden;
static safetensors *tensors;

static int golden_set_up(void **state)
{
    (void)state;
    calla_error err;
    char *text;
    size_t n;
    if (file_read("tests/golden/golden.json", 1u << 24, &text, &n, &err) != CALLA_OK ||
        json_parse(&golden, text, n, NULL, &err) != CALLA_OK ||
        safetensors_open(&tensors, "tests/golden/golden.safetensors", &err) != CALLA_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    mem_free(text);
    return 0;
}

static int golden_tear_down(void **state)
{
    (void)state;
    json_free(&golden);
    safetensors_close(tensors);
    return 0;
}

static size_t read_ids(const json_value *list, int32_t *ids)
{
    size_t n = 0;
    for (const json_value *v = list->first; v != NULL; v = v->next) {
        int64_t id = 0;
        assert_true(n < MAX_IDS && json_int(v, &id));
        ids[n++] = (int32_t)id;
    }
    return n;
}

typedef struct checker {
    const json_value *test_case;
    const char *name;
    size_t from;  /* position of the first row of this score() */
    double worst; /* |dlogit| */
    size_t n_compared;
} checker;

static void compare(checker *c, double got, double want)
{
    const double d = fabs(got - want);
    if (!(d <= c->worst)) c->worst = d; /* NaN counts as worst */
    c->n_compared++;
}

static bool on_row(void *user, size_t row, const float *logits, int32_t n_vocab)
{
    checker *c = user;
    const size_t i = c->from + row;
    char name[128];
    (void)snprintf(name, sizeof name, "%s.logits.%zu", c->name, i);
    const st_tensor *t = safetensors_find(tensors, name);
    for (int32_t v = 0; t != NULL && v < n_vocab; v++) {
        float want;
        memcpy(&want, t->data + (size_t)v * sizeof want, sizeof want);
        compare(c, (double)logits[v], (double)want);
    }
    for (const json_value *r = json_get(c->test_case, "top20")->first; r != NULL; r = r->next) {
        int64_t pos, id;
        double want;
        assert_true(json_int(json_get(r, "pos"), &pos));
        if ((size_t)pos != i) continue;
        const json_value *ids = json_get(r, "ids"), *logit = json_get(r, "logits");
        for (size_t k = 0; k < ids->n_items; k++) {
            assert_true(json_int(json_at(ids, k), &id) && json_double(json_at(logit, k), &want));
            compare(c, (double)logits[id], want);
        }
    }
    return true;
}

typedef struct reply {
    int32_t ids[MAX_IDS];
    size_t n;
} reply;

static bool on_token(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    reply *r = user;
    (void)bytes;
    (void)n_bytes;
    r->ids[r->n++] = id;
    return r->n < MAX_IDS;
}

/* Scores the prompt, generates, goes back to its end, scores the golden continuation. */
static void run_case(calla_engine *e, const json_value *test_case, checker *c)
{
    static int32_t ids[MAX_IDS], want[MAX_IDS];
    static reply got;
    calla_error err;
    calla_session *s;
    calla_snapshot *end;
    c->test_case = test_case;
    c->name = json_get(test_case, "name")->text;
    const size_t n = read_ids(json_get(test_case, "input_ids"), ids);
    const size_t n_want = read_ids(json_get(test_case, "greedy_ids"), want);
    const calla_session_options so = {.n_ctx = (uint32_t)(n + n_want + 1)};
    if (calla_session_create(&s, e, &so, &err) != CALLA_OK) fail_msg("%s", err.message);
    c->from = 0;
    assert_int_equal(calla_session_score(s, ids, n, on_row, c, &err), CALLA_OK);
    assert_int_equal(calla_session_snapshot(s, &end, &err), CALLA_OK);

    const bool stopped = json_get(test_case, "greedy_stopped")->type == JSON_TRUE;
    const calla_generate_options o = {.max_tokens = (uint32_t)n_want + (stopped ? 1 : 0)};
    calla_generate_result r;
    got.n = 0;
    assert_int_equal(calla_session_generate(s, &o, on_token, &got, &r, &err), CALLA_OK);
    if (got.n != n_want || memcmp(got.ids, want, n_want * sizeof *want) != 0 ||
        (stopped && r.stop != CALLA_STOP_EOS))
        fail_msg("case %s: another greedy continuation", c->name);

    assert_int_equal(calla_session_restore(s, end, &err), CALLA_OK);
    c->from = n;
    assert_int_equal(calla_session_score(s, want, n_want, on_row, c, &err), CALLA_OK);
    calla_snapshot_destroy(end);
    calla_session_destroy(s);
}

/* All cases of at most max_tokens, prompt and reply. Returns the worst |dlogit|. */
ATTR_UNUSED static double run_cases(calla_engine *e, size_t max_tokens, const char *kv)
{
    checker c = {0};
    size_t n_run = 0;
    for (const json_value *v = json_get(golden.root, "cases")->first; v != NULL; v = v->next) {
        if (json_get(v, "input_ids")->n_items + json_get(v, "greedy_ids")->n_items > max_tokens)
            continue;
        run_case(e, v, &c);
        n_run++;
    }
    calla_engine_info info;
    calla_engine_get_info(e, &info);
    print_message("  %s, cache %s: %zu greedy texts equal, max |dlogit| %.2e over %zu values\n",
                  info.variant, kv, n_run, c.worst, c.n_compared);
    assert_true(n_run >= (max_tokens == SIZE_MAX ? 8u : 6u) && c.n_compared > 10000);
    return c.worst;
}

typedef struct nll {
    const int32_t *ids;
    size_t n;
    double sum, blocks[8];
} nll;

static bool on_nll_row(void *user, size_t i, const float *logits, int32_t n_vocab)
{
    nll *p = user;
    if (i + 1 == p->n) return true;
    double top = -(double)INFINITY, sum = 0.0;
    for (int32_t v = 0; v < n_vocab; v++)
        if ((double)logits[v] > top) top = (double)logits[v];
    for (int32_t v = 0; v < n_vocab; v++)
        sum += exp((double)logits[v] - top);
    const double x = top + log(sum) - (double)logits[p->ids[i + 1]];
    p->sum += x;
    p->blocks[i / 256] += x;
    return true;
}

ATTR_UNUSED static void check_perplexity(calla_engine *e, const char *name, double bar)
{
    static int32_t ids[MAX_IDS];
    const json_value *g = json_get(golden.root, "perplexity");
    nll p = {.ids = ids, .n = read_ids(json_get(g, "ids"), ids)};
    assert_int_equal(p.n, 2048);
    calla_error err;
    calla_session *s;
    assert_int_equal(calla_session_create(&s, e, NULL, &err), CALLA_OK);
    assert_int_equal(calla_session_score(s, ids, p.n, on_nll_row, &p, &err), CALLA_OK);
    double want, block, worst = 0.0;
    assert_true(json_double(json_get(g, "mean_nll"), &want));
    const double ratio = exp(p.sum / 2047.0 - want);
    for (size_t i = 0; i < 8; i++) {
        assert_true(json_double(json_at(json_get(g, "nll_sum_per_256"), i), &block));
        if (fabs(p.blocks[i] - block) > worst) worst = fabs(p.blocks[i] - block);
    }
    print_message("  cache %s: perplexity %.6f, ratio %.8f (bar 1 +- %.0e), worst block %.1e nat\n",
                  name, exp(p.sum / 2047.0), ratio, bar, worst);
    assert_true(fabs(ratio - 1.0) < bar);
    calla_session_destroy(s);
}

#endif
