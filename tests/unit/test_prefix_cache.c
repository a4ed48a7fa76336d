/* The prefix cache on the null device: what is found, what is kept, what goes first; and the
 * executor operations it stands on, bitwise on the demonstration model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine_fake.h"

#include "engine/prefix_cache.h"

#define N_CTX 900u
/* The null device: 4 bytes of key-value rows a token and 4 of its id, a state of 8. */
#define SEQ_BYTES(n) (8u * (n) + 8u)

static int32_t ids[N_CTX];

static int set_up(void **state)
{
    (void)state;
    fake_ids(ids, N_CTX, FAKE_VOCAB, 1);
    return 0;
}

static prefix_cache *make_cache(calla_engine *e, uint64_t limit)
{
    calla_error err;
    prefix_cache *c;
    if (prefix_cache_create(&c, e, N_CTX, limit, &err) != CALLA_OK) fail_msg("%s", err.message);
    return c;
}

static prefix_stats stats(const prefix_cache *c)
{
    prefix_stats st;
    prefix_cache_stats(c, &st);
    assert_true(st.bytes <= st.limit_bytes);
    return st;
}

/* Runs ids [t->n_tokens, to) and tells the cache; the null device checks the state. */
static void run_to(calla_engine *e, timeline *t, const int32_t *from, uint32_t to)
{
    calla_error err;
    float row[FAKE_VOCAB];
    while (t->n_tokens < to) {
        uint32_t n = to - t->n_tokens;
        if (n > e->chunk_tokens) n = e->chunk_tokens;
        const exec_segment seg = {t->seq, from + t->n_tokens, n, EXEC_LOGITS_LAST, row};
        if (e->ex->ops->run(e->ex, &seg, 1, &err) != CALLA_OK) fail_msg("%s", err.message);
        timeline_append(t, from + t->n_tokens, n);
    }
    assert_int_equal(e->ex->ops->seq_position(t->seq), to);
}

/* A request: begins wherever it can, saves at the marks, is parked. Returns n_cached. */
static uint32_t request(calla_engine *e, prefix_cache *c, const int32_t *prompt, uint32_t n,
                        const uint32_t *marks, uint32_t n_marks)
{
    calla_error err;
    prefix_match m;
    timeline *t;
    prefix_cache_find(c, prompt, n, &m);
    if (prefix_cache_begin(c, &m, &t, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(t->n_tokens, m.n_cached);
    assert_true(m.n_cached < n && m.n_cached <= m.n_common);
    for (uint32_t i = 0; i < n_marks; i++) {
        if (marks[i] <= t->n_tokens) continue;
        run_to(e, t, prompt, marks[i]);
        prefix_cache_save(c, t);
    }
    run_to(e, t, prompt, n);
    assert_memory_equal(t->tokens, prompt, n * sizeof *prompt);
    prefix_cache_park(c, t);
    (void)stats(c);
    return m.n_cached;
}

/* ids up to `same`, then others that depend on `branch`. */
static const int32_t *branch(int32_t *out, uint32_t same, uint32_t i_branch)
{
    memcpy(out, ids, sizeof ids);
    for (uint32_t i = same; i < N_CTX; i++)
        out[i] = (ids[i] + 1 + (int32_t)i_branch) % (int32_t)FAKE_VOCAB;
    return out;
}

static void test_find(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    prefix_cache *c = make_cache(e, 1 << 20);
    static const uint32_t marks[] = {50, 100, 150};
    int32_t other[N_CTX];
    prefix_match m;
    prefix_cache_find(c, ids, 200, &m);
    assert_int_equal(m.n_cached + m.n_common, 0);
    assert_false(m.diverged);
    assert_int_equal(request(e, c, ids, 200, marks, 3), 0);

    prefix_cache_find(c, ids, 300, &m); /* longer: all of it */
    assert_int_equal(m.n_cached, 200);
    assert_int_equal(m.n_common, 200);
    assert_false(m.diverged);
    assert_null(m.state);
    prefix_cache_find(c, ids, 200, &m); /* the same: one token must run */
    assert_int_equal(m.n_cached, 150);
    assert_int_equal(m.n_common, 200);
    assert_false(m.diverged);
    prefix_cache_find(c, ids, 151, &m);
    assert_int_equal(m.n_cached, 150);
    prefix_cache_find(c, ids, 150, &m);
    assert_int_equal(m.n_cached, 100);
    prefix_cache_find(c, ids, 50, &m);
    assert_int_equal(m.n_cached, 0);
    assert_int_equal(m.n_common, 50);
    prefix_cache_find(c, branch(other, 120, 0), 300, &m);
    assert_int_equal(m.n_cached, 100);
    assert_int_equal(m.n_common, 120);
    assert_true(m.diverged);
    assert_int_equal(m.diverged_id, ids[120]);
    prefix_cache_find(c, branch(other, 0, 0), 300, &m);
    assert_int_equal(m.n_common, 0);
    prefix_cache_destroy(c);
    prefix_cache_destroy(NULL);
    calla_engine_destroy(e);
}

/* Behind the last saved state a timeline goes on in place; before it, a fork leaves it alone. */
static void test_place(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    prefix_cache *c = make_cache(e, 1 << 20);
    static const uint32_t marks[] = {50, 100, 150, 250};
    int32_t other[N_CTX];
    (void)request(e, c, ids, 200, marks, 3);
    assert_int_equal(request(e, c, branch(other, 160, 0), 300, marks, 4), 150);
    assert_int_equal(stats(c).n_timelines, 1);
    assert_int_equal(stats(c).n_states, 4);
    assert_int_equal(request(e, c, branch(other, 110, 1), 300, marks, 4), 100); /* fork */
    assert_int_equal(stats(c).n_timelines, 2);
    assert_int_equal(stats(c).n_states, 6); /* 50 and 100 are shared */
    assert_int_equal(request(e, c, branch(other, 160, 0), 310, NULL, 0), 300); /* both are whole */
    assert_int_equal(request(e, c, branch(other, 110, 1), 310, NULL, 0), 300);
    assert_int_equal(stats(c).n_timelines, 2);
    assert_int_equal(stats(c).bytes, 2 * SEQ_BYTES(310) + 6 * 8);
    prefix_cache_destroy(c);
    calla_engine_destroy(e);
}

/* An active timeline serves others up to where it is. */
static void test_active(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    prefix_cache *c = make_cache(e, 1 << 20);
    calla_error err;
    prefix_match m;
    timeline *a, *b;
    prefix_cache_find(c, ids, 400, &m);
    assert_int_equal(prefix_cache_begin(c, &m, &a, &err), CALLA_OK);
    run_to(e, a, ids, 100);
    prefix_cache_find(c, ids, 400, &m);
    assert_int_equal(m.n_cached, 0); /* its present state is its own */
    assert_int_equal(m.n_common, 100);
    prefix_cache_save(c, a);
    prefix_cache_save(c, a); /* once is enough */
    assert_int_equal(stats(c).n_states, 1);
    run_to(e, a, ids, 150);
    prefix_cache_find(c, ids, 400, &m);
    assert_int_equal(m.n_cached, 100);
    assert_int_equal(prefix_cache_begin(c, &m, &b, &err), CALLA_OK);
    assert_true(a != b);
    run_to(e, b, ids, 400);
    run_to(e, a, ids, 300);
    assert_int_equal(stats(c).bytes, 8); /* the state; active ones are not the cache's */
    prefix_cache_drop(c, a);
    assert_int_equal(stats(c).n_states, 1); /* b holds it too */
    prefix_cache_park(c, b);
    assert_int_equal(stats(c).bytes, SEQ_BYTES(400) + 8);
    prefix_cache_find(c, ids, 101, &m);
    assert_int_equal(m.n_cached, 100);
    prefix_cache_destroy(c);
    calla_engine_destroy(e);
}

static void test_eviction(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    static const uint32_t marks[] = {50, 100};
    int32_t a[N_CTX], b[N_CTX], d[N_CTX];
    (void)branch(a, 0, 1);
    (void)branch(b, 0, 2);
    (void)branch(d, 0, 3);
    /* Room for two sequences of 200 with two states each, less one byte. */
    prefix_cache *c = make_cache(e, 2 * SEQ_BYTES(200) + 4 * 8 - 1);
    (void)request(e, c, a, 200, marks, 2);
    (void)request(e, c, b, 200, marks, 2);
    prefix_stats st = stats(c); /* the oldest went: a's state at 50 */
    assert_int_equal(st.n_evicted_states, 1);
    assert_int_equal(st.n_timelines, 2);
    prefix_match m;
    prefix_cache_find(c, a, 100, &m);
    assert_int_equal(m.n_cached, 0);
    prefix_cache_find(c, a, 101, &m);
    assert_int_equal(m.n_cached, 100);
    assert_int_equal(request(e, c, a, 201, NULL, 0), 200); /* a is used: b is older now */
    (void)request(e, c, d, 200, marks, 2);
    prefix_cache_find(c, b, 300, &m);
    assert_int_equal(m.n_common, 0);
    prefix_cache_find(c, a, 300, &m);
    assert_int_equal(m.n_cached, 201);
    prefix_cache_find(c, d, 300, &m);
    assert_int_equal(m.n_cached, 200);
    assert_true(stats(c).n_evicted_timelines == 1);
    prefix_cache_destroy(c);

    c = make_cache(e, 1000); /* one that is too long is not kept, and costs the others nothing */
    (void)request(e, c, a, 100, marks, 1);
    (void)request(e, c, b, 200, NULL, 0);
    prefix_cache_find(c, a, 300, &m);
    assert_int_equal(m.n_cached, 100);
    prefix_cache_find(c, b, 300, &m);
    assert_int_equal(m.n_common, 0);
    prefix_cache_destroy(c);

    c = make_cache(e, 0); /* off */
    (void)request(e, c, a, 100, marks, 2);
    assert_int_equal(stats(c).bytes, 0);
    assert_int_equal(request(e, c, a, 150, marks, 2), 0);
    prefix_cache_destroy(c);
    calla_engine_destroy(e);
}

/* The first saved state of conversations in use (a system prompt) outlives their later ones. */
static void test_first_state_stays(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    prefix_cache *c = make_cache(e, SEQ_BYTES(800) + 3 * 8);
    int32_t other[N_CTX];
    uint32_t mark = 100;
    (void)request(e, c, ids, 150, &mark, 1);
    for (mark = 200; mark <= 800; mark += 100)
        assert_true(request(e, c, ids, mark, (uint32_t[]){mark - 10}, 1) > 0);
    assert_int_equal(stats(c).n_timelines, 1);
    assert_int_equal(stats(c).n_states, 3);
    prefix_match m;
    prefix_cache_find(c, branch(other, 100, 1), 300, &m);
    assert_int_equal(m.n_cached, 100);
    prefix_cache_destroy(c);
    calla_engine_destroy(e);
}

static void test_many(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    prefix_cache *c = make_cache(e, 1 << 24);
    static const uint32_t marks[] = {20, 35};
    int32_t p[N_CTX];
    for (uint32_t i = 0; i < PREFIX_TIMELINES_MAX + 20; i++) {
        memcpy(p, ids, sizeof p);
        p[30] = (int32_t)(i % FAKE_VOCAB);
        p[31] = (int32_t)(i / FAKE_VOCAB);
        (void)request(e, c, p, 40, marks, 2);
        assert_true(stats(c).n_timelines <= PREFIX_TIMELINES_MAX);
    }
    assert_true(stats(c).n_evicted_timelines >= 18);
    assert_int_equal(stats(c).n_timelines, PREFIX_TIMELINES_MAX);
    assert_int_equal(stats(c).n_states, 1 + PREFIX_TIMELINES_MAX);
    prefix_cache_destroy(c);
    calla_engine_destroy(e);
}

/* Random requests over a tree of prompts against a small budget; the null device checks every
 * continued state, request() every token. */
static void test_random(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    uint64_t n_cached = 0;
    int32_t p[N_CTX];
    uint64_t seed = 99;
    print_message("seed %d\n", (int)seed);
    for (uint32_t round = 0; round < 20; round++) {
        prefix_cache *c = make_cache(e, 1000 + 1500 * round);
        for (uint32_t i = 0; i < 200; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const uint32_t r = (uint32_t)(seed >> 33), same = r % 7 * 40, n = 1 + r / 7 % 350;
            const uint32_t marks[] = {n / 3, n / 2, n - 1};
            n_cached +=
                request(e, c, branch(p, same, r / 4096 % 3), n, marks + (r & 1), 3 - (r & 1));
        }
        prefix_cache_destroy(c);
    }
    assert_true(n_cached > 100000);
    calla_engine_destroy(e);
}

/* Without memory, begin evicts what is parked, then fails; saving just does not happen. */
static void test_no_memory(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    prefix_cache *c = make_cache(e, 1 << 20);
    calla_error err;
    static const uint32_t marks[] = {50, 100, 150};
    int32_t other[N_CTX];
    (void)branch(other, 60, 0);
    prefix_match m;
    timeline *t;
    for (uint32_t i = 0; i < 3; i++)
        (void)request(e, c, ids + 100 * i, 200, marks, 3);
    mem_fail_after(0);
    prefix_cache_find(c, other, 200, &m); /* a fork that cannot be had: in place instead */
    assert_int_equal(m.n_cached, 50);
    assert_int_equal(prefix_cache_begin(c, &m, &t, &err), CALLA_OK);
    run_to(e, t, other, 120);
    prefix_cache_save(c, t); /* not possible */
    mem_fail_after(-1);
    assert_int_equal(stats(c).n_timelines, 0);
    run_to(e, t, other, 200);
    prefix_cache_park(c, t);
    prefix_cache_find(c, other, 200, &m);
    assert_int_equal(m.n_cached, 50);
    prefix_cache_find(c, ids + 300, 200, &m);
    mem_fail_after(0);
    assert_int_equal(prefix_cache_begin(c, &m, &t, &err), CALLA_ERR_MEMORY);
    mem_fail_after(-1);
    assert_null(t);
    assert_int_equal(prefix_cache_begin(c, &m, &t, &err), CALLA_OK);
    prefix_cache_drop(c, t);
    prefix_cache_destroy(c);
    for (int n = 0; n < 2; n++) {
        mem_fail_after(n);
        const calla_status st = prefix_cache_create(&c, e, N_CTX, 1 << 20, &err);
        mem_fail_after(-1);
        assert_int_equal(st, n == 0 ? CALLA_ERR_MEMORY : CALLA_OK);
        prefix_cache_destroy(c);
    }
    calla_engine_destroy(e);
}

/* ---- The demonstration model: restored = uninterrupted, bitwise ---- */

#define NANO_TOKENS 120u

static void nano_run(calla_engine *e, exec_seq *seq, const int32_t *t, uint32_t n, float *row)
{
    calla_error err;
    const exec_segment seg = {seq, t, n, EXEC_LOGITS_LAST, row};
    if (e->ex->ops->run(e->ex, &seg, 1, &err) != CALLA_OK) fail_msg("%s", err.message);
}

static void test_nano(void **state)
{
    (void)state;
    for (int kv = 0; kv < 2; kv++) {
        calla_error err;
        calla_engine *e;
        const calla_engine_options o = {.model_dir = "models/nano",
                                        .n_threads = 2,
                                        .kv_type = kv == 0 ? CALLA_KV_BF16 : CALLA_KV_F32};
        if (calla_engine_create(&e, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
        const exec_ops *ops = e->ex->ops;
        const uint32_t n_vocab = e->shape.n_vocab;
        const size_t bytes = n_vocab * sizeof(float), n_state = (size_t)ops->seq_state_bytes(e->ex);
        float *want = mem_alloc(bytes), *got = mem_alloc(bytes);
        uint8_t *saved = mem_alloc(n_state);
        exec_seq *a, *b;
        int32_t t[NANO_TOKENS];
        fake_ids(t, NANO_TOKENS, 4000, 3);
        assert_int_equal(ops->seq_create(e->ex, 200, &a, &err), CALLA_OK);
        assert_int_equal(ops->seq_create(e->ex, 150, &b, &err), CALLA_OK);
        nano_run(e, a, t, 70, want);
        assert_int_equal(ops->seq_state_save(e->ex, a, saved, NULL), CALLA_OK);
        nano_run(e, a, t + 70, NANO_TOKENS - 70, want);
        assert_int_equal(ops->seq_restore(e->ex, a, a, 70, saved, NULL),
                         CALLA_OK); /* back in place, another way, and back again */
        assert_int_equal(ops->seq_position(a), 70);
        nano_run(e, a, t, 60, got);
        assert_memory_not_equal(got, want, bytes);
        assert_int_equal(ops->seq_restore(e->ex, a, a, 70, saved, NULL), CALLA_OK);
        nano_run(e, a, t + 70, NANO_TOKENS - 70, got);
        assert_memory_equal(got, want, bytes);
        nano_run(e, b, t + 5, 100, got); /* another sequence, shorter, used before */
        assert_int_equal(ops->seq_restore(e->ex, b, a, 70, saved, NULL), CALLA_OK);
        assert_int_equal(ops->seq_position(b), 70);
        nano_run(e, b, t + 70, NANO_TOKENS - 70, got);
        assert_memory_equal(got, want, bytes);
        ops->seq_destroy(e->ex, a);
        ops->seq_destroy(e->ex, b);
        mem_free(saved);
        mem_free(want);
        mem_free(got);
        calla_engine_destroy(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_active),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_first_state_stays),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_nano),
    };
    return cmocka_run_group_tests_name("prefix cache", tests, set_up, NULL);
}
