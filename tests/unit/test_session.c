/* Sessions on the null device: every rule of calla.h that does not need a model. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine_fake.h"

#define ROW_BYTES (FAKE_VOCAB * sizeof(float))

static int32_t ids[600];

static int set_up(void **state)
{
    (void)state;
    fake_ids(ids, 600, FAKE_VOCAB, 1);
    return 0;
}

static void feed(calla_session *s, const int32_t *t, size_t n)
{
    calla_error err;
    if (calla_session_feed(s, t, n, NULL, NULL, &err) != CALLA_OK) fail_msg("%s", err.message);
}

static void assert_same(const calla_session *a, const calla_session *b)
{
    const uint32_t n = calla_session_position(a);
    assert_int_equal(n, calla_session_position(b));
    assert_memory_equal(calla_session_tokens(a), calla_session_tokens(b), n * sizeof(int32_t));
    assert_memory_equal(calla_session_logits(a), calla_session_logits(b), ROW_BYTES);
}

/* What a generate call produced. */
typedef struct heard {
    int32_t ids[256];
    size_t n, stop_after;
    calla_session *cancel_at_stop;
    uint64_t n_allocs;
} heard;

static bool hear(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    heard *h = user;
    (void)bytes;
    (void)n_bytes;
    if (h->n == 0) h->n_allocs = mem_count();
    assert_int_equal(h->n_allocs, mem_count()); /* nothing allocates between tokens */
    h->ids[h->n++] = id;
    if (h->n != h->stop_after) return true;
    if (h->cancel_at_stop == NULL) return false;
    calla_session_cancel(h->cancel_at_stop);
    return true;
}

static calla_generate_result generate(calla_session *s, const calla_generate_options *o, heard *h)
{
    calla_error err;
    calla_generate_result r;
    if (calla_session_generate(s, o, hear, h, &r, &err) != CALLA_OK) fail_msg("%s", err.message);
    return r;
}

/* ---- Feeding ---- */

static void test_chunks(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 64, 512};
    calla_engine *whole = fake_engine(4096);
    calla_session *a = fake_session(whole, 600);
    assert_null(calla_session_logits(a));
    feed(a, ids, 0);
    assert_null(calla_session_logits(a));
    feed(a, ids, 600);
    for (size_t i = 0; i < 4; i++) {
        calla_engine *e = fake_engine(chunks[i]);
        calla_session *b = fake_session(e, 700);
        feed(b, ids, 13);
        feed(b, ids + 13, 1);
        feed(b, ids + 14, 586);
        assert_same(a, b);
        assert_memory_equal(calla_session_tokens(b), ids, sizeof ids);
        calla_session_reset(b);
        assert_int_equal(calla_session_position(b), 0);
        assert_null(calla_session_logits(b));
        feed(b, ids, 600);
        assert_same(a, b);
        calla_session_destroy(b);
        calla_engine_destroy(e);
    }
    calla_session_destroy(a);
    calla_engine_destroy(whole);
}

static void test_refusals(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_error err;
    calla_session *s = fake_session(e, 100);
    const int32_t low[] = {1, -1}, high[] = {1, 2, FAKE_VOCAB};
    assert_int_equal(calla_session_feed(s, low, 2, NULL, NULL, &err), CALLA_ERR_ARGUMENT);
    assert_int_equal(calla_session_feed(s, high, 3, NULL, NULL, &err), CALLA_ERR_ARGUMENT);
    assert_string_equal(err.message, "token 2: id 97, expected 0 to 96");
    assert_int_equal(calla_session_position(s), 0);
    assert_int_equal(calla_session_generate(s, NULL, NULL, NULL, NULL, &err), CALLA_ERR_ARGUMENT);
    feed(s, ids, 60);
    assert_int_equal(calla_session_feed(s, ids, 41, NULL, NULL, &err), CALLA_ERR_FULL);
    assert_string_equal(err.message, "41 tokens do not fit: the session holds 60 of at most 100");
    assert_int_equal(calla_session_feed(s, ids, SIZE_MAX, NULL, NULL, &err), CALLA_ERR_FULL);
    assert_int_equal(calla_session_position(s), 60);
    feed(s, ids, 40);
    const calla_sampling bad = {.top_p = 2.0f};
    const calla_generate_options o = {.sampling = &bad};
    assert_int_equal(calla_session_generate(s, &o, NULL, NULL, NULL, &err), CALLA_ERR_ARGUMENT);
    calla_session_destroy(s);

    const calla_session_options too_long = {.n_ctx = 1001};
    assert_int_equal(calla_session_create(&s, e, &too_long, &err), CALLA_ERR_ARGUMENT);
    assert_null(s);
    calla_session_destroy(NULL);
    calla_engine_destroy(e);
}

typedef struct progress_log {
    size_t n_calls, done[16], stop_at;
    calla_session *cancel;
} progress_log;

static bool on_progress(void *user, size_t n_done, size_t n_total)
{
    progress_log *p = user;
    assert_int_equal(n_total, 600);
    p->done[p->n_calls++] = n_done;
    if (p->n_calls != p->stop_at) return true;
    if (p->cancel == NULL) return false;
    calla_session_cancel(p->cancel);
    return true;
}

static void test_feed_cancel(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_error err;
    calla_session *a = fake_session(e, 1000), *b = fake_session(e, 1000);
    feed(a, ids, 600);

    progress_log p = {.stop_at = 3}; /* the callback says no */
    assert_int_equal(calla_session_feed(b, ids, 600, on_progress, &p, &err), CALLA_ERR_CANCELLED);
    assert_int_equal(p.n_calls, 3);
    assert_int_equal(calla_session_position(b), 192);
    assert_non_null(calla_session_logits(b));
    p = (progress_log){.stop_at = 2, .cancel = b}; /* cancelled meanwhile */
    calla_session_reset(b);
    assert_int_equal(calla_session_feed(b, ids, 600, on_progress, &p, &err), CALLA_ERR_CANCELLED);
    assert_int_equal(calla_session_position(b), 128);
    feed(b, ids + 128, 472); /* what was done is kept */
    assert_same(a, b);

    calla_session_cancel(b); /* before: stops the next call, once */
    assert_int_equal(calla_session_feed(b, ids, 10, NULL, NULL, &err), CALLA_ERR_CANCELLED);
    assert_same(a, b);
    feed(a, ids, 10);
    feed(b, ids, 10);
    assert_same(a, b);
    calla_session_destroy(a);
    calla_session_destroy(b);
    calla_engine_destroy(e);
}

/* ---- Generating ---- */

static void test_generate(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_session *a = fake_session(e, 300), *b = fake_session(e, 300);
    feed(a, ids, 50);
    feed(b, ids, 50);
    const calla_sampling p = {.temperature = 0.8f, .top_k = 10, .seed = 7};
    calla_generate_options o = {.sampling = &p, .max_tokens = 40};
    heard h = {0}, again = {0};
    const calla_generate_result r = generate(a, &o, &h);
    assert_int_equal(r.stop, CALLA_STOP_LENGTH);
    assert_int_equal(r.n_tokens, 40);
    assert_int_equal(h.n, 40);
    assert_int_equal(calla_session_position(a), 90);
    assert_memory_equal(calla_session_tokens(a) + 50, h.ids, 40 * sizeof *h.ids);
    (void)generate(b, &o, &again); /* the same seed */
    assert_memory_equal(h.ids, again.ids, 40 * sizeof *h.ids);
    calla_session_reset(b); /* generated = fed */
    feed(b, calla_session_tokens(a), 90);
    assert_same(a, b);

    o.max_tokens = 0;
    h = (heard){0};
    assert_int_equal(generate(a, &o, &h).stop, CALLA_STOP_CONTEXT);
    assert_int_equal(calla_session_position(a), 300);
    assert_int_equal(generate(a, &o, &h).stop, CALLA_STOP_CONTEXT);

    o.max_tokens = 20; /* greedy by default: the largest logit */
    o.sampling = NULL;
    h = (heard){0};
    uint32_t best = 0;
    for (uint32_t i = 1; i < FAKE_VOCAB; i++)
        if (calla_session_logits(b)[i] > calla_session_logits(b)[best]) best = i;
    (void)generate(b, &o, &h);
    assert_int_equal(h.ids[0], best);
    calla_session_destroy(a);
    calla_session_destroy(b);
    calla_engine_destroy(e);
}

static void test_stops(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_session *s = fake_session(e, 300);
    calla_error err;
    feed(s, ids, 50);
    calla_snapshot *start;
    assert_int_equal(calla_session_snapshot(s, &start, &err), CALLA_OK);
    calla_generate_options o = {.max_tokens = 30};
    heard all = {0}, h = {0};
    (void)generate(s, &o, &all);

    e->shape.n_stop_ids = 2; /* the stop id ends the text and is not part of it */
    e->shape.stop_ids[0] = -5;
    e->shape.stop_ids[1] = all.ids[12];
    uint32_t first = 0;
    while (all.ids[first] != all.ids[12])
        first++;
    assert_int_equal(calla_session_restore(s, start, &err), CALLA_OK);
    const calla_generate_result r = generate(s, &o, &h);
    assert_int_equal(r.stop, CALLA_STOP_EOS);
    assert_int_equal(r.n_tokens, first);
    assert_int_equal(h.n, first);
    assert_int_equal(calla_session_position(s), 50 + first);
    o.ignore_eos = true;
    assert_int_equal(calla_session_restore(s, start, &err), CALLA_OK);
    h = (heard){0};
    assert_int_equal(generate(s, &o, &h).stop, CALLA_STOP_LENGTH);
    assert_memory_equal(h.ids, all.ids, 30 * sizeof *h.ids);

    assert_int_equal(calla_session_restore(s, start, &err), CALLA_OK);
    h = (heard){.stop_after = 5}; /* the callback says no: that token counts */
    assert_int_equal(generate(s, &o, &h).stop, CALLA_STOP_CALLBACK);
    assert_int_equal(calla_session_position(s), 55);
    h = (heard){.stop_after = 5, .cancel_at_stop = s};
    assert_int_equal(generate(s, &o, &h).stop, CALLA_STOP_CANCELLED);
    assert_int_equal(calla_session_position(s), 60);
    calla_session_cancel(s);
    h = (heard){0};
    assert_int_equal(generate(s, &o, &h).stop, CALLA_STOP_CANCELLED);
    assert_int_equal(h.n, 0);
    assert_memory_equal(calla_session_tokens(s) + 50, all.ids, 10 * sizeof *h.ids);
    o.max_tokens = 20;
    assert_int_equal(generate(s, &o, &h).n_tokens, 20);
    assert_memory_equal(h.ids, all.ids + 10, 20 * sizeof *h.ids);
    calla_snapshot_destroy(start);
    calla_session_destroy(s);
    calla_engine_destroy(e);
}

/* Ids without a token never come out, whatever their logits. */
static void test_padding(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    static int32_t banned[FAKE_VOCAB / 2];
    for (int32_t i = 0; i < (int32_t)FAKE_VOCAB / 2; i++)
        banned[i] = 2 * i + 1;
    e->banned = banned;
    e->n_banned = FAKE_VOCAB / 2;
    calla_session *s = fake_session(e, 1000);
    feed(s, ids, 10);
    const calla_sampling p = {.temperature = 2.0f};
    const calla_generate_options o = {.sampling = &p, .max_tokens = 200};
    heard h = {0};
    (void)generate(s, &o, &h);
    for (size_t i = 0; i < h.n; i++)
        assert_int_equal(h.ids[i] % 2, 0);
    e->banned = NULL;
    calla_session_destroy(s);
    calla_engine_destroy(e);
}

/* ---- Snapshots ---- */

static void test_snapshot(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64), *other = fake_engine(64);
    calla_error err;
    calla_session *a = fake_session(e, 400), *b = fake_session(e, 400), *c, *far;
    calla_snapshot *zero, *mid;
    assert_int_equal(calla_session_snapshot(b, &zero, &err), CALLA_OK);
    feed(a, ids, 300);
    feed(b, ids, 100);
    assert_int_equal(calla_session_snapshot(b, &mid, &err), CALLA_OK);
    assert_int_equal(calla_snapshot_position(mid), 100);
    assert_true(calla_snapshot_bytes(mid) >= 800 + ROW_BYTES);
    assert_int_equal(calla_session_fork(&c, b, &err), CALLA_OK);
    assert_same(b, c);
    feed(b, ids + 300, 200); /* a detour */
    assert_int_equal(calla_session_restore(b, mid, &err), CALLA_OK);
    assert_same(b, c);
    feed(b, ids + 100, 200);
    assert_same(a, b);
    feed(c, ids + 100, 200);
    assert_same(a, c);
    assert_int_equal(calla_session_restore(c, zero, &err), CALLA_OK);
    assert_int_equal(calla_session_position(c), 0);
    assert_null(calla_session_logits(c));
    feed(c, ids, 300);
    assert_same(a, c);

    calla_session *small = fake_session(e, 99);
    assert_int_equal(calla_session_restore(small, mid, &err), CALLA_ERR_FULL);
    feed(small, ids, 99); /* still usable */
    far = fake_session(other, 400);
    assert_int_equal(calla_session_restore(far, mid, &err), CALLA_ERR_ARGUMENT);
    calla_session_destroy(a);
    calla_session_destroy(b);
    calla_session_destroy(c);
    calla_session_destroy(far);
    calla_session_destroy(small);
    calla_engine_destroy(e);
    calla_engine *later[32]; /* one of them is most likely where the old one was */
    for (int i = 0; i < 32; i++) {
        later[i] = fake_engine(64);
        far = fake_session(later[i], 400);
        assert_int_equal(calla_session_restore(far, mid, &err), CALLA_ERR_ARGUMENT);
        calla_session_destroy(far);
    }
    for (int i = 0; i < 32; i++)
        calla_engine_destroy(later[i]);
    calla_snapshot_destroy(zero);
    calla_snapshot_destroy(mid);
    calla_snapshot_destroy(NULL);
    calla_engine_destroy(other);
}

/* ---- Scoring ---- */

typedef struct scored {
    size_t n, stop_at;
    float rows[600][FAKE_VOCAB];
} scored;

static bool on_logits(void *user, size_t i, const float *logits, int32_t n_vocab)
{
    scored *s = user;
    assert_int_equal(i, s->n);
    assert_int_equal(n_vocab, FAKE_VOCAB);
    memcpy(s->rows[s->n++], logits, ROW_BYTES);
    return s->n != s->stop_at;
}

static void test_score(void **state)
{
    (void)state;
    static scored got;
    calla_engine *e = fake_engine(200);
    calla_error err;
    calla_session *a = fake_session(e, 700), *b = fake_session(e, 700);
    assert_int_equal(calla_session_score(a, ids, 600, on_logits, &got, &err), CALLA_OK);
    assert_int_equal(got.n, 600);
    for (size_t i = 0; i < 600; i++) {
        feed(b, ids + i, 1);
        assert_memory_equal(got.rows[i], calla_session_logits(b), ROW_BYTES);
    }
    assert_same(a, b);
    got = (scored){.stop_at = 70};
    calla_session_reset(a);
    assert_int_equal(calla_session_score(a, ids, 600, on_logits, &got, &err), CALLA_ERR_CANCELLED);
    assert_int_equal(got.n, 70);
    calla_session_reset(b);
    feed(b, ids, calla_session_position(a));
    assert_same(a, b);
    calla_session_destroy(a);
    calla_session_destroy(b);
    calla_engine_destroy(e);
}

/* ---- Failures ---- */

static void test_failed_runs(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_error err;
    calla_session *a = fake_session(e, 400), *b = fake_session(e, 400), *c;
    calla_snapshot *snapshot, *none;
    feed(a, ids, 200);
    feed(b, ids, 64);
    assert_int_equal(calla_session_snapshot(b, &snapshot, &err), CALLA_OK);

    exec_null_fail(e->ex, NULL_FAULT_CLEAN, 1); /* the tokens before it stay */
    assert_int_equal(calla_session_feed(b, ids + 64, 136, NULL, NULL, &err), CALLA_ERR_INTERNAL);
    assert_int_equal(calla_session_position(b), 128);
    assert_null(calla_session_logits(b));
    assert_int_equal(calla_session_generate(b, NULL, NULL, NULL, NULL, &err), CALLA_ERR_ARGUMENT);
    feed(b, ids + 128, 72);
    assert_same(a, b);

    exec_null_fail(e->ex, NULL_FAULT_BROKEN, 0);
    assert_int_equal(calla_session_generate(b, NULL, NULL, NULL, NULL, &err), CALLA_ERR_INTERNAL);
    assert_int_equal(calla_session_feed(b, ids, 1, NULL, NULL, &err), CALLA_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "broken"));
    assert_int_equal(calla_session_generate(b, NULL, NULL, NULL, NULL, &err), CALLA_ERR_ARGUMENT);
    assert_int_equal(calla_session_score(b, ids, 1, on_logits, NULL, &err), CALLA_ERR_ARGUMENT);
    assert_int_equal(calla_session_snapshot(b, &none, &err), CALLA_ERR_ARGUMENT);
    assert_null(none);
    assert_int_equal(calla_session_fork(&c, b, &err), CALLA_ERR_ARGUMENT);
    assert_null(c);
    assert_int_equal(calla_session_restore(b, snapshot, &err), CALLA_OK);
    feed(b, ids + 64, 136);
    assert_same(a, b);
    calla_session_reset(b);
    feed(b, ids, 200);
    assert_same(a, b);
    calla_snapshot_destroy(snapshot);
    calla_session_destroy(a);
    calla_session_destroy(b);
    calla_engine_destroy(e);
}

static void test_memory(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_error err;
    calla_session *s = fake_session(e, 100), *t = NULL;
    calla_snapshot *c = NULL;
    feed(s, ids, 10);
    int64_t n = 0;
    for (; t == NULL; n++) { /* every allocation of a fork fails in turn */
        mem_fail_after(n);
        const calla_status st = calla_session_fork(&t, s, &err);
        if (st != CALLA_OK) assert_int_equal(st, CALLA_ERR_MEMORY);
        assert_true((st == CALLA_OK) == (t != NULL));
    }
    assert_true(n > 10);
    mem_fail_after(0);
    assert_int_equal(calla_session_snapshot(s, &c, &err), CALLA_ERR_MEMORY);
    assert_int_equal(calla_session_score(s, ids, 4, on_logits, NULL, &err), CALLA_ERR_MEMORY);
    mem_fail_after(-1);
    assert_same(s, t);
    calla_session_destroy(t);

    /* The plan: sessions together stay under the limit, and give back what they had. */
    calla_memory_plan plan;
    assert_int_equal(calla_engine_plan(e, 100, &plan, &err), CALLA_OK);
    assert_int_equal(plan.kv_bytes, 400);
    assert_int_equal(plan.total_bytes, plan.kv_bytes + plan.state_bytes + plan.logits_bytes);
    e->limit_bytes = 2 * plan.total_bytes;
    for (int i = 0; i < 3; i++) {
        t = fake_session(e, 100);
        assert_int_equal(calla_session_fork(&(calla_session *){NULL}, s, &err), CALLA_ERR_MEMORY);
        assert_non_null(strstr(err.message, "not enough memory"));
        calla_session_destroy(t);
    }
    calla_session_destroy(s);
    assert_int_equal(e->reserved, 0);
    calla_engine_destroy(e);
}

/* ---- Threads ---- */

typedef struct worker {
    calla_engine *engine;
    uint32_t seed;
    heard h;
} worker;

static bool hear_quietly(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    heard *h = user;
    (void)bytes;
    (void)n_bytes;
    h->ids[h->n++] = id;
    return true;
}

static void *work_thread(void *arg)
{
    worker *w = arg;
    const calla_session_options so = {.n_ctx = 400};
    const calla_sampling p = {.temperature = 1.0f, .top_p = 0.9f, .seed = w->seed};
    const calla_generate_options o = {.sampling = &p, .max_tokens = 200};
    calla_session *s, *t;
    calla_generate_result r;
    if (calla_session_create(&s, w->engine, &so, NULL) != CALLA_OK) return NULL;
    if (calla_session_feed(s, ids + w->seed, 150, NULL, NULL, NULL) == CALLA_OK &&
        calla_session_fork(&t, s, NULL) == CALLA_OK) {
        (void)calla_session_generate(t, &o, hear_quietly, &w->h, &r, NULL);
        calla_session_destroy(t);
    }
    calla_session_destroy(s);
    return NULL;
}

/* Sessions in four threads at once = each alone. */
static void test_threads(void **state)
{
    (void)state;
    enum { n_workers = 4 };
    static worker together[n_workers], alone;
    pthread_t threads[n_workers];
    calla_engine *e = fake_engine(16);
    for (uint32_t i = 0; i < n_workers; i++) {
        together[i] = (worker){.engine = e, .seed = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, work_thread, &together[i]), 0);
    }
    for (uint32_t i = 0; i < n_workers; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < n_workers; i++) {
        alone = (worker){.engine = e, .seed = i + 1};
        (void)work_thread(&alone);
        assert_int_equal(alone.h.n, 200);
        assert_int_equal(together[i].h.n, 200);
        assert_memory_equal(together[i].h.ids, alone.h.ids, 200 * sizeof *alone.h.ids);
    }
    calla_engine_destroy(e);
}

static calla_session *signalled;

static void on_signal(int sig)
{
    (void)sig;
    calla_session_cancel(signalled);
}

static bool raise_once(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    heard *h = user;
    (void)id;
    (void)bytes;
    (void)n_bytes;
    if (++h->n == 3) (void)raise(SIGUSR1);
    return true;
}

static void test_cancel_from_signal(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(16);
    signalled = fake_session(e, 300);
    feed(signalled, ids, 20);
    (void)signal(SIGUSR1, on_signal);
    heard h = {0};
    calla_generate_result r;
    assert_int_equal(calla_session_generate(signalled, NULL, raise_once, &h, &r, NULL), CALLA_OK);
    assert_int_equal(r.stop, CALLA_STOP_CANCELLED);
    assert_int_equal(r.n_tokens, 3);
    (void)signal(SIGUSR1, SIG_DFL);
    calla_session_destroy(signalled);
    calla_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_feed_cancel), cmocka_unit_test(test_generate),
        cmocka_unit_test(test_stops),       cmocka_unit_test(test_padding),
        cmocka_unit_test(test_snapshot),    cmocka_unit_test(test_score),
        cmocka_unit_test(test_failed_runs), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_threads),     cmocka_unit_test(test_cancel_from_signal),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
