/* The memory of past answers: what is the same conversation, and which answers are forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <pthread.h>
#include <cmocka.h>

#include "server/api_replay.h"

static replay *make(uint64_t bytes)
{
    replay *r;
    calla_error err;
    assert_int_equal(replay_create(&r, bytes, &err), CALLA_OK);
    return r;
}

static replay_key key_of(const replay *r, replay_key before, const char *message)
{
    json_doc doc;
    if (json_parse(&doc, message, strlen(message), NULL, NULL) != CALLA_OK) fail_msg("%s", message);
    const replay_key k = replay_next(r, before, doc.root);
    json_free(&doc);
    return k;
}

static bool same(replay_key a, replay_key b)
{
    return a.half[0] == b.half[0] && a.half[1] == b.half[1];
}

/* ---- Keys ---- */

#define CALL(name, args)                                                                           \
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"name\":\"" name                   \
    "\",\"arguments\":" args "}]}"

typedef struct pair {
    const char *a, *b;
    bool same;
} pair;

static const pair pairs[] = {
    {"{\"role\":\"user\",\"content\":\"x\"}", "{\"content\":\" x\\n\",\"role\":\"user\"}", true},
    {"{\"role\":\"user\",\"content\":\"x\"}", "{\"role\":\"user\",\"content\":\"y\"}", false},
    {"{\"role\":\"user\",\"content\":\"x\"}", "{\"role\":\"tool\",\"content\":\"x\"}", false},
    {"{\"role\":\"assistant\",\"content\":\"x\"}",
     "{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"r\"}", true},
    {"{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"1\"}",
     "{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":\"2\"}", true},
    {"{\"role\":\"user\",\"content\":\"ab\"}", "{\"role\":\"userab\",\"content\":\"\"}", false},
    {CALL("f", "{\"a\":1,\"b\":[2,{}]}"), CALL("f", "{\"b\":[2.0,{}],\"a\":1e0}"), true},
    {CALL("f", "{\"a\":-0.0}"), CALL("f", "{\"a\":0}"), true},
    {CALL("f", "{\"a\":1}"), CALL("f", "{\"a\":\"1\"}"), false},
    {CALL("f", "{\"a\":null}"), CALL("f", "{\"a\":false}"), false},
    {CALL("f", "{\"a\":true}"), CALL("f", "{\"a\":false}"), false},
    {CALL("f", "{\"a\":null}"), CALL("f", "{}"), false},
    {CALL("f", "{\"a\":[]}"), CALL("f", "{\"a\":{}}"), false},
    {CALL("f", "{\"a\":[1,2]}"), CALL("f", "{\"a\":[2,1]}"), false},
    {CALL("f", "{\"a\":[[1],2]}"), CALL("f", "{\"a\":[[1,2]]}"), false},
    {CALL("f", "{\"a\":\"x\"}"), CALL("f", "{\"x\":\"a\"}"), false},
    {CALL("f", "{\"a\":\" x\"}"), CALL("f", "{\"a\":\"x\"}"), false},
    {CALL("f", "{\"a\":{\"b\":1},\"c\":{\"d\":2}}"), CALL("f", "{\"a\":{\"d\":2},\"c\":{\"b\":1}}"),
     false},
    {CALL("f", "{}"), CALL("g", "{}"), false},
    {CALL("f", "{}"), "{\"role\":\"assistant\",\"content\":\"f\"}", false},
};

static void test_keys(void **state)
{
    replay *r = make(1000), *other = make(1000);
    const replay_key none = replay_begin(r, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (same(key_of(r, none, pairs[i].a), key_of(r, none, pairs[i].b)) != pairs[i].same)
            fail_msg("%s and %s: expected %s", pairs[i].a, pairs[i].b,
                     pairs[i].same ? "the same key" : "different keys");
    /* What stood before counts, and its order; the tools; and the server's own secret. */
    const char *x = pairs[0].a, *y = pairs[1].b;
    assert_false(same(key_of(r, key_of(r, none, x), y), key_of(r, none, y)));
    assert_false(same(key_of(r, key_of(r, none, x), y), key_of(r, key_of(r, none, y), x)));
    json_doc tools;
    assert_int_equal(json_parse(&tools, "[{}]", 4, NULL, NULL), CALLA_OK);
    assert_false(same(replay_begin(r, tools.root), none));
    assert_false(same(key_of(other, replay_begin(other, NULL), x), key_of(r, none, x)));
    json_free(&tools);
    replay_destroy(r);
    replay_destroy(other);
}

/* ---- Answers ---- */

static replay_key number_key(uint64_t i)
{
    return (replay_key){{i, ~i}};
}

/* n ids that tell which answer it is. */
static void put(replay *r, uint64_t i, size_t n)
{
    int32_t ids[300];
    assert_true(n <= 300);
    for (size_t k = 0; k < n; k++)
        ids[k] = (int32_t)(i * 7 + k);
    replay_put(r, number_key(i), "why", 3, ids, n, i % 2 == 0);
}

static bool has(replay *r, uint64_t i, size_t n)
{
    const json_value message = {.type = JSON_OBJECT};
    id_list out = {0};
    bool thinking = i % 2 != 0;
    const bool found = replay_get(r, number_key(i), &message, &out, &thinking);
    if (found) {
        assert_int_equal(out.len, n);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(out.data[k], i * 7 + k);
        assert_int_equal(thinking, i % 2 == 0);
    }
    mem_free(out.data);
    return found;
}

static void test_reasoning(void **state)
{
    static const struct {
        const char *message;
        bool found;
    } rows[] = {
        {"{}", true},
        {"{\"reasoning_content\":\"\"}", true},
        {"{\"reasoning_content\":\"\\nwhy \"}", true},
        {"{\"reasoning_content\":\"what\"}", false},
    };
    replay *r = make(1000);
    (void)state;
    put(r, 1, 3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_doc doc;
        id_list out = {0};
        bool thinking;
        assert_int_equal(json_parse(&doc, rows[i].message, strlen(rows[i].message), NULL, NULL),
                         CALLA_OK);
        assert_int_equal(replay_get(r, number_key(1), doc.root, &out, &thinking), rows[i].found);
        assert_int_equal(out.len, rows[i].found ? 3 : 0);
        mem_free(out.data);
        json_free(&doc);
    }
    replay_destroy(r);
}

/* Bytes that one answer of n ids takes: the smallest limit under which it is kept. */
static uint64_t bytes_of(size_t n)
{
    for (uint64_t bytes = 1;; bytes++) {
        replay *r = make(bytes);
        put(r, 5, n);
        const bool kept = has(r, 5, n);
        replay_destroy(r);
        if (kept) return bytes;
    }
}

static void test_eviction(void **state)
{
    (void)state;
    const uint64_t one = bytes_of(10);
    assert_int_equal(bytes_of(11), one + sizeof(int32_t));
    replay *r = make(3 * one);
    put(r, 1, 10);
    put(r, 2, 10);
    put(r, 3, 10);
    assert_true(has(r, 1, 10) && has(r, 2, 10) && has(r, 3, 10)); /* 1 is the oldest use now */
    assert_true(has(r, 1, 10));                                   /* now 2 */
    put(r, 4, 10);
    assert_false(has(r, 2, 10));
    assert_true(has(r, 1, 10) && has(r, 3, 10) && has(r, 4, 10));
    /* The same key again replaces, and takes no room twice. */
    put(r, 3, 9);
    put(r, 3, 10);
    assert_true(has(r, 1, 10) && has(r, 4, 10) && has(r, 3, 10));
    /* A large one drives out as many as it needs, from the oldest on. */
    put(r, 5, 10 + one / sizeof(int32_t));
    assert_false(has(r, 1, 10) || has(r, 4, 10));
    assert_true(has(r, 3, 10) && has(r, 5, 10 + one / sizeof(int32_t)));
    /* One that does not fit at all drives out nothing; one without tokens is none. */
    put(r, 6, 300);
    put(r, 7, 0);
    assert_false(has(r, 6, 300) || has(r, 7, 0));
    assert_true(has(r, 3, 10));
    /* One byte less than three: two. */
    replay_destroy(r);
    r = make(3 * one - 1);
    for (uint64_t i = 1; i <= 3; i++)
        put(r, i, 10);
    assert_false(has(r, 1, 10));
    assert_true(has(r, 2, 10) && has(r, 3, 10));
    replay_destroy(r);
    replay_destroy(NULL);
}

/* Against a plain list, most recently used first: random puts and gets, answers of several sizes,
 * keys that meet in one bucket. */
enum { KEYS = 60, LIMIT = 4000, STEPS = 20000 };

typedef struct plain {
    uint64_t key[KEYS];
    size_t n_ids[KEYS];
    size_t n;
} plain;

static void to_front(plain *p, size_t i)
{
    const uint64_t key = p->key[i];
    const size_t n_ids = p->n_ids[i];
    memmove(p->key + 1, p->key, i * sizeof *p->key);
    memmove(p->n_ids + 1, p->n_ids, i * sizeof *p->n_ids);
    p->key[0] = key;
    p->n_ids[0] = n_ids;
}

static size_t place_of(const plain *p, uint64_t key)
{
    size_t i = 0;
    while (i < p->n && p->key[i] != key)
        i++;
    return i;
}

static void plain_put(plain *p, uint64_t key, size_t n_ids, uint64_t head)
{
    const size_t at = place_of(p, key);
    if (at < p->n) {
        to_front(p, at);
    } else {
        p->n++;
        to_front(p, p->n - 1);
    }
    p->key[0] = key;
    p->n_ids[0] = n_ids;
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->n; i++) {
        bytes += head + p->n_ids[i] * sizeof(int32_t);
        if (bytes > LIMIT) p->n = i;
    }
}

static void test_random(void **state)
{
    const uint64_t head = bytes_of(1) - sizeof(int32_t);
    replay *r = make(LIMIT);
    plain p = {.n = 0};
    uint64_t x = 20260101;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)x);
    for (int step = 0; step < STEPS; step++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        const uint64_t n = (x >> 33) % KEYS;
        const uint64_t key = n % 3 == 0 ? n * 4096 : n; /* the 20 multiples share a bucket */
        const size_t n_ids = (size_t)(x >> 45) % 40 + 1;
        if ((x >> 60) % 2 == 0) {
            put(r, key, n_ids);
            plain_put(&p, key, n_ids, head);
            continue;
        }
        const size_t at = place_of(&p, key);
        assert_int_equal(has(r, key, at < p.n ? p.n_ids[at] : 0), at < p.n);
        if (at < p.n) to_front(&p, at);
    }
    assert_in_range(p.n, 10, KEYS);
    replay_destroy(r);
}

/* No memory for an answer: it is not there, and nothing else is lost. */
static void test_memory(void **state)
{
    replay *r = make(1000);
    (void)state;
    put(r, 1, 5);
    mem_fail_after(0);
    put(r, 2, 5);
    mem_fail_after(-1);
    assert_true(has(r, 1, 5));
    assert_false(has(r, 2, 5));
    const json_value message = {.type = JSON_OBJECT};
    id_list out = {0};
    bool thinking;
    mem_fail_after(0);
    assert_false(replay_get(r, number_key(1), &message, &out, &thinking));
    mem_fail_after(-1);
    mem_free(out.data);
    assert_true(has(r, 1, 5));
    replay_destroy(r);
}

/* Threads that put and get the same answers. */
static void *worker(void *user)
{
    replay *r = user;
    for (uint64_t i = 0; i < 3000; i++) {
        put(r, i % 50, 10);
        (void)has(r, (i * 13) % 50, 10);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[4];
    replay *r = make(2000);
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, worker, r), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    replay_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),     cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_eviction), cmocka_unit_test(test_random),
        cmocka_unit_test(test_memory),   cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
