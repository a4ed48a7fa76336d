#include <locale.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/json.h"

/* json_write(json_parse(in)), or NULL when it is refused. */
static char *round_trip(const char *in, calla_error *err)
{
    json_doc doc;
    strbuf out = {0};
    if (json_parse(&doc, in, strlen(in), NULL, err) != CALLA_OK) return NULL;
    assert_true(json_write(&out, doc.root));
    json_free(&doc);
    return out.data;
}

/* json.dumps(json.loads(in), ensure_ascii=False) of Python 3.11. */
static void writes_as_python(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {" [ 1 , 2 ] ", "[1, 2]"},
        {"{}", "{}"},
        {"{\"a\":{\"b\":[]},\"c\":null}", "{\"a\": {\"b\": []}, \"c\": null}"},
        {"[true,false]", "[true, false]"},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"1E5", "100000.0"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"123456789.125", "123456789.125"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"1e400", "Infinity"},
        {"-1e400", "-Infinity"},
        {"1e-400", "0.0"},
        {"-2.5e-7", "-2.5e-07"},
        {"1e23", "1e+23"},
        {"5.960464477539063e-08", "5.960464477539063e-08"}, /* 2^-24: the nearest does not do */
        {"5.6843418860808015e-14", "5.684341886080802e-14"},
        {"9.671406556917033e+24", "9.671406556917033e+24"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\\\/\"",
         "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\""},
        {"\"\\u007f\\u00e9\\u2028\\ud83d\\ude00\"", "\"\x7f\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80\""},
        {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}"},
        {"{\"\":1,\"\\u0000\":2,\"\":[3]}", "{\"\": [3], \"\\u0000\": 2}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *out = round_trip(cases[i].in, NULL);
        assert_non_null(out);
        assert_string_equal(out, cases[i].out);
        mem_free(out);
    }
}

static void refuses_what_is_no_json(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       " ",    "[",     "]",       "[1,]", "{\"a\"}",
                                      "1 2",    "nul",  "NaN",   "'a'",     "01",   "1.",
                                      "\"\n\"", "[1]x", "{1:2}", "\"\\x\"", "-",    "\"\\u12\""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        calla_error err = {0};
        char *out = round_trip(bad[i], &err);
        if (out != NULL) fail_msg("<%s> was read as %s", bad[i], out);
        assert_int_equal(err.code, CALLA_ERR_FORMAT);
    }
}

/* Every way in which bytes can fail to be UTF-8, at every distance from an eight-byte step. */
static void refuses_what_is_no_utf8(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "\xc1\xbf",
                                      "\xc3",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xed\xbf\xbf",
                                      "\xe2\x82",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5",
                                      "\xff",
                                      "\xf0\x9f\x98"};
    static const char *const good[] = {"\xc2\x80",         "\xdf\xbf",         "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",     "\xee\x80\x80",     "\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\x7f"};
    for (size_t pad = 0; pad < 17; pad++) {
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            calla_error err = {0};
            strbuf s = {0};
            (void)strbuf_printf(&s, "\"%.*s%s\"", (int)pad, "0123456789abcdefg", bad[i]);
            assert_null(round_trip(s.data, &err));
            assert_int_equal(err.offset, pad + 1);
            strbuf_deinit(&s);
        }
        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
            strbuf s = {0};
            (void)strbuf_printf(&s, "\"%.*s%s\"", (int)pad, "0123456789abcdefg", good[i]);
            char *out = round_trip(s.data, NULL);
            assert_string_equal(out, s.data);
            mem_free(out);
            strbuf_deinit(&s);
        }
    }
}

/* Strings are valid UTF-8 whatever the escapes say: half a pair is one U+FFFD, its neighbours stay.
 */
static void lone_surrogates_are_replaced(void **state)
{
    (void)state;
#define FFFD "\xef\xbf\xbd"
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"{\"\\udc00\":\"a\\udfffb\\udc00\"}", "{\"" FFFD "\": \"a" FFFD "b" FFFD "\"}"},
        {"\"\\ud83d\"", "\"" FFFD "\""},
        {"\"\\uD83Dx\"", "\"" FFFD "x\""},
        {"\"\\ud83d\\u0041\"", "\"" FFFD "A\""},
        {"\"\\ud83d\\n\"", "\"" FFFD "\\n\""},
        {"\"\\ud83d\\ud83d\\ude00\"", "\"" FFFD "\xf0\x9f\x98\x80\""},
        {"\"\\ude00\\ud83d\"", "\"" FFFD FFFD "\""},
        {"\"\\uDBFF\\uDFFF\"", "\"\xf4\x8f\xbf\xbf\""},
        {"\"\\\\ud83d\"", "\"\\\\ud83d\""},      /* an escaped backslash, then letters */
        {"\"\\\\\\ud83d\"", "\"\\\\" FFFD "\""}, /* one, then an escape */
        {"{\"\\udbff\":\"\\ud800\"}", "{\"" FFFD "\": \"" FFFD "\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *out = round_trip(cases[i].in, NULL);
        assert_non_null(out);
        assert_string_equal(out, cases[i].out);
        mem_free(out);
    }
    static const char *const bad[] = {"\"\\ud83\"", "\"\\ud83d\\", "\"\\ud83d\\u\"", "\\ud83d"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_null(round_trip(bad[i], NULL));
}

/* Another decimal point in the program's locale changes nothing. */
static void locale_is_ignored(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    const char *set = NULL;
    for (size_t i = 0; i < 3 && set == NULL; i++)
        set = setlocale(LC_NUMERIC, names[i]);
    if (set == NULL) skip();
    char *out = round_trip("[0.25, 1.5e3]", NULL);
    assert_string_equal(out, "[0.25, 1500.0]");
    mem_free(out);
    (void)setlocale(LC_NUMERIC, "C");
}

static void limits_hold(void **state)
{
    (void)state;
    const json_limits limits = {.what = "thing", .max_depth = 2, .max_nodes = 4};
    json_doc doc;
    calla_error err = {0};
    assert_int_equal(json_parse(&doc, "[[1,2]]", 7, &limits, &err), CALLA_OK);
    json_free(&doc);
    assert_int_equal(json_parse(&doc, "[[[]]]", 6, &limits, &err), CALLA_ERR_FORMAT);
    assert_non_null(strstr(err.message, "thing: nesting"));
    assert_int_equal(json_parse(&doc, "[1,2,3,4]", 9, &limits, &err), CALLA_ERR_FORMAT);
    assert_non_null(strstr(err.message, "thing: more values"));
    assert_null(doc.root);
    /* Depth and values at once: the limit that was hit is named. */
    const json_limits both = {.max_depth = 1, .max_nodes = 2};
    assert_int_equal(json_parse(&doc, "[1,2]", 5, &both, &err), CALLA_ERR_FORMAT);
    assert_string_equal(err.message, "JSON: more values than the limit (2) at byte 4");
    assert_int_equal(err.offset, 4);
}

/* 100,000 equal keys, and as many different ones. */
static void large_objects(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        strbuf s = {0};
        json_doc doc;
        (void)strbuf_putc(&s, '{');
        for (int i = 0; i < 100000; i++)
            (void)strbuf_printf(&s, "%s\"k%d\":%d", i == 0 ? "" : ",", same ? 0 : i, i);
        (void)strbuf_putc(&s, '}');
        assert_int_equal(json_parse(&doc, s.data, s.len, NULL, NULL), CALLA_OK);
        assert_int_equal(doc.root->n_items, same ? 1 : 100000);
        assert_string_equal(json_get(doc.root, "k0")->text, same ? "99999" : "0");
        json_free(&doc);
        strbuf_deinit(&s);
    }
}

static void access_is_forgiving(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[1,\"x\\u0000y\"],\"b\":{}}";
    json_doc doc;
    assert_int_equal(json_parse(&doc, text, strlen(text), NULL, NULL), CALLA_OK);
    const json_value *a = json_get(doc.root, "a");
    assert_null(json_get(NULL, "a"));
    assert_null(json_get(a, "a"));
    assert_null(json_get(doc.root, "c"));
    assert_null(json_at(NULL, 0));
    assert_null(json_at(a, 2));
    assert_null(json_at(json_at(a, 0), 0));
    assert_ptr_equal(json_at(doc.root, 0), a);
    assert_int_equal(json_at(a, 1)->n_text, 3);
    assert_memory_equal(json_at(a, 1)->text, "x\0y", 4);
    assert_false(json_is(json_at(a, 1), "x"));
    assert_false(json_is(NULL, "x"));
    json_free(&doc);
    json_free(&doc);
}

static void numbers_convert(void **state)
{
    (void)state;
    static const char text[] = "[1,-9223372036854775808,9223372036854775808,2.0,2.5,1e400,\"1\"]";
    json_doc doc;
    int64_t i;
    double d;
    assert_int_equal(json_parse(&doc, text, strlen(text), NULL, NULL), CALLA_OK);
    assert_true(json_int(json_at(doc.root, 0), &i) && i == 1);
    assert_true(json_int(json_at(doc.root, 1), &i) && i == INT64_MIN);
    assert_false(json_int(json_at(doc.root, 2), &i));
    assert_true(json_int(json_at(doc.root, 3), &i) && i == 2);
    assert_false(json_int(json_at(doc.root, 4), &i));
    assert_true(json_double(json_at(doc.root, 4), &d) && d == 2.5);
    assert_false(json_double(json_at(doc.root, 5), &d));
    assert_false(json_int(json_at(doc.root, 6), &i));
    assert_false(json_double(json_at(doc.root, 7), &d));
    json_free(&doc);
}

/* YAJL does not check its allocator; json.c does it for it. */
static void survives_every_failed_allocation(void **state)
{
    (void)state;
    strbuf s = {0};
    (void)strbuf_putc(&s, '[');
    for (int i = 0; i < 3000; i++)
        (void)strbuf_printf(&s, "{\"key\\t%d\":\"\\u00e9%0200d\"},", i, i);
    (void)strbuf_puts(&s, "0]");
    for (int broken = 0; broken < 2; broken++) {
        bool done = false;
        for (int64_t i = 0; !done; i++) {
            json_doc doc;
            calla_error err = {0};
            assert_true(i < 10000);
            mem_fail_after(i);
            const calla_status st = json_parse(&doc, s.data, s.len - (size_t)broken, NULL, &err);
            mem_fail_after(-1);
            done = st != CALLA_ERR_MEMORY;
            if (done) assert_int_equal(st, broken ? CALLA_ERR_FORMAT : CALLA_OK);
            assert_int_equal(err.code, st);
            json_free(&doc);
        }
    }
    strbuf_deinit(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_as_python),
        cmocka_unit_test(refuses_what_is_no_json),
        cmocka_unit_test(refuses_what_is_no_utf8),
        cmocka_unit_test(lone_surrogates_are_replaced),
        cmocka_unit_test(locale_is_ignored),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(large_objects),
        cmocka_unit_test(access_is_forgiving),
        cmocka_unit_test(numbers_convert),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
