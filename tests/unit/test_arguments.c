/* Arguments of tool calls in histories: every way of cutting them off is closed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "server/api_arguments.h"

typedef struct row {
    const char *in, *out; /* out NULL: refused */
} row;

static const row rows[] = {
    {"{", "{}"},
    {" {\n", " {}"},
    {"{\"a", "{}"},
    {"{\"a\"", "{}"},
    {"{\"a\":", "{}"},
    {"{\"a\": \"", "{\"a\": \"\"}"},
    {"{\"a\": \"x", "{\"a\": \"x\"}"},
    {"{\"a\": \"x\\", "{\"a\": \"x\"}"},
    {"{\"a\": \"x\\n", "{\"a\": \"x\\n\"}"},
    {"{\"a\": \"x\\u00e", "{\"a\": \"x\"}"},
    {"{\"a\": \"x\\u00e9", "{\"a\": \"x\\u00e9\"}"},
    {"{\"a\": \"x\\ud83d", "{\"a\": \"x\"}"},
    {"{\"a\": \"x\\ud83d\\ude", "{\"a\": \"x\"}"},
    {"{\"a\": \"x\\ud83d\\ude00", "{\"a\": \"x\\ud83d\\ude00\"}"},
    {"{\"a\": \"\\ud83d\",\"b", "{\"a\": \"\\ud83d\"}"},
    {"{\"a\": \"x\"", "{\"a\": \"x\"}"},
    {"{\"a\": \"x\",", "{\"a\": \"x\"}"},
    {"{\"a\": \"x\", \"b", "{\"a\": \"x\"}"},
    {"{\"a\": 1", "{\"a\": 1}"},
    {"{\"a\": -", "{}"},
    {"{\"a\": 12.", "{\"a\": 12}"},
    {"{\"a\": 1e+", "{\"a\": 1}"},
    {"{\"a\": 1, \"b\": -", "{\"a\": 1}"},
    {"{\"a\": t", "{\"a\": true}"},
    {"{\"a\": fals", "{\"a\": false}"},
    {"{\"a\": null", "{\"a\": null}"},
    {"{\"a\": [", "{\"a\": []}"},
    {"{\"a\": [1,", "{\"a\": [1]}"},
    {"{\"a\": [1, {\"b\": [\"x", "{\"a\": [1, {\"b\": [\"x\"]}]}"},
    {"{\"a\": [{}, [], ", "{\"a\": [{}, []]}"},
    {"{\"a\": [{}, []], \"b\":{\"c", "{\"a\": [{}, []], \"b\":{}}"},
    {"", NULL},
    {"{}", NULL}, /* nothing to close */
    {"{\"a\": 1}", NULL},
    {"[", NULL},
    {"\"x", NULL},
    {"x", NULL},
    {"{a", NULL},
    {"{'a': 1", NULL},
    {"{\"a\" 1", NULL},
    {"{\"a\": 1 2", NULL},
    {"{\"a\": x", NULL},
    {"{\"a\": tru,", NULL},
    {"{\"a\": [1}", NULL},
    {"{\"a\": [1]]", NULL},
    {"{\"a\": [,", NULL},
    {"{,", NULL},
    {"{\"a\": 1,}", NULL},
    {"{\"a\": 1}{", NULL},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strbuf out = {0};
        const bool ok = arguments_close(&out, rows[i].in, strlen(rows[i].in));
        if (ok != (rows[i].out != NULL)) fail_msg("%s: %s", rows[i].in, ok ? out.data : "refused");
        if (ok) assert_string_equal(out.data, rows[i].out);
        strbuf_deinit(&out);
    }
}

/* Cut anywhere, it is closed to an object whose members are beginnings of the whole's. */
static void test_every_cut(void **state)
{
    static const char whole[] =
        "{\"path\": \"a/\\u00e9\\ud83d\\ude00.txt\", \"text\": \"x\\n\\\"y\\\"\\\\\", \"n\": "
        "-12.5e+3, \"deep\": [true, {\"k\": null, \"l\": [[], {}]}, \"z\"], \"end\": false}";
    (void)state;
    for (size_t n = 1; n < sizeof whole - 1; n++) {
        const json_value text = {.type = JSON_STRING, .text = whole, .n_text = n};
        tree t = {0};
        api_error e = {0};
        json_value *v = arguments_read(&t, &text, "p", &e);
        if (v == NULL) fail_msg("%zu bytes: %s", n, e.message);
        assert_int_equal(v->type, JSON_OBJECT);
        const json_value *s = json_get(v, "text");
        if (s != NULL) assert_memory_equal(s->text, "x\n\"y\"\\", s->n_text);
        tree_deinit(&t);
    }
}

static const row reads[] = {
    {"null", "{}"},
    {"\"\"", "{}"},
    {"\" \\n\"", "{}"},
    {"{}", "{}"},
    {"{\"a\":1}", "{\"a\": 1}"},
    {"\"{\\\"a\\\":1}\"", "{\"a\": 1}"},
    {"\"null\"", "{}"},
    {"\"{\\\"a\\\":\\\"x\"", "{\"a\": \"x\"}"},
    {"\"\\\"\\\"\"", "{}"},                              /* a string of a string */
    {"\"\\\"{\\\\\\\"a\\\\\\\": 1\\\"\"", "{\"a\": 1}"}, /* cut inside it */
    {"1", "p: expected a string of JSON, found a number"},
    {"[]", "p: expected a string of JSON, found an array"},
    {"\"[1]\"", "p: expected the JSON of an object, found that of an array"},
    {"\"\\\"\\\\\\\"\\\\\\\"\\\"\"", "p: expected the JSON of an object, found that of a string"},
    {"\"{a}\"", "p: not valid JSON at byte "},
    {"\"{]\"", "p: not valid JSON at byte "},
    {"\"x\"", "p: not valid JSON at byte "},
};

static void test_reads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        json_doc doc;
        tree t = {0};
        api_error e = {0};
        strbuf out = {0};
        assert_int_equal(json_parse(&doc, reads[i].in, strlen(reads[i].in), NULL, NULL), CALLA_OK);
        json_value *v = arguments_read(&t, doc.root, "p", &e);
        if (v != NULL) {
            (void)json_write(&out, v);
            assert_string_equal(out.data, reads[i].out);
        } else {
            if (strncmp(e.message, reads[i].out, strlen(reads[i].out)) != 0)
                fail_msg("%s: %s", reads[i].in, e.message);
            assert_int_equal(e.status, 400);
            assert_string_equal(e.param, "p");
        }
        strbuf_deinit(&out);
        tree_deinit(&t);
        json_free(&doc);
    }
}

/* Brackets up to the limit of depth and beyond; every allocation fails once. */
static void test_limits(void **state)
{
    char deep[1024];
    (void)state;
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    for (size_t n = 6; n < sizeof deep; n++) {
        strbuf out = {0};
        const bool ok = arguments_close(&out, deep, n);
        assert_int_equal(ok, n - 5 < API_JSON_DEPTH);
        strbuf_deinit(&out);
    }
    const json_value text = {.type = JSON_STRING, .text = "{\"a\": [\"b", .n_text = 9};
    for (int64_t k = 0;; k++) {
        tree t = {0};
        api_error e = {0};
        assert_true(k < 1000);
        mem_fail_after(k);
        json_value *v = arguments_read(&t, &text, "p", &e);
        mem_fail_after(-1);
        if (v == NULL) assert_int_equal(e.status, 503);
        tree_deinit(&t);
        if (v != NULL) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
