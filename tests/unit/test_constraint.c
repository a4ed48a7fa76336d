/* Constraints: what they accept, against tables and a validator of its own; that texts may be cut
 * anywhere; that tool calls are read by the output parser as what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/constraint_walk.h"
#include "support/schema_check.h"
#include "text/output.h"

static json_doc parse(const char *s)
{
    json_doc doc = {0};
    calla_error err;
    if (json_parse(&doc, s, strlen(s), NULL, &err) != CALLA_OK) fail_msg("%s: %s", err.message, s);
    return doc;
}

static constraint *make(const char *schema)
{
    json_doc doc = parse(schema);
    constraint *c;
    calla_error err;
    if (constraint_json_schema(&c, doc.root, false, &err) != CALLA_OK)
        fail_msg("%s: %s", err.message, schema);
    json_free(&doc);
    return c;
}

/* From the beginning, at once; try must agree. */
static bool accepts(constraint *c, const char *s)
{
    constraint_reset(c);
    if (*s == '\0') return constraint_may_end(c);
    const bool could = constraint_try(c, s, strlen(s));
    if (constraint_advance(c, s, strlen(s)) != could) fail_msg("try and advance differ: %s", s);
    return could && constraint_may_end(c);
}

/* ---- Tables ---- */

typedef struct row {
    const char *schema;
    const char *good[10], *bad[16];
} row;

#define OBJ_AB                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"           \
    "\"string\"}},\"required\":[\"a\"],\"additionalProperties\":false}"
#define TREE                                                                                       \
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{"        \
    "\"type\":\"integer\"},\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},"        \
    "\"required\":[\"v\"],\"additionalProperties\":false}}}"

static const row rows[] = {
    {"{}",
     {"1", "-0.5e+10", "\"x\"", "[]", "{}", "null", "[1, {\"a\": [true,false]}]",
      "{\"a\":1,\"a\":2}", "[\n  1,\n  2\n]"},
     {"", "01", "1.", ".5", "+1", "1e", "tru", "[1,]", "{,}", "{\"a\"}", "{a:1}", "[1 , 2]", " 1",
      "NaN", "{\"a\":\n1}"}},
    {"true", {"1"}, {"x"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"a\\n\\u00e9\\\"\\/\"", "\"\\ud83d\\ude00\"", "\"é😀\"", "\"\x7f\"",
      "\"</tool_call>\""},
     {"\"", "\"\n\"", "\"\\x\"", "\"\\u12\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"",
      "\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "1"}},
    {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":3}",
     {"\"a\"", "\"éé\\n\"", "\"\\ud83d\\ude00ab\"", "\"<//\""},
     {"\"\"", "\"abcd\"", "\"\\ud83d\\ude00abc\""}},
    {"{\"type\":\"integer\"}",
     {"0", "-12", "12345678901234567890"},
     {"1.0", "1e3", "00", "-", "123456789012345678901"}},
    {"{\"type\":\"number\"}", {"0", "-1.50", "1E-7", "1e199"}, {"1e200", "0x1", "--1"}},
    {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":120}",
     {"-5", "-1", "0", "9", "99", "120"},
     {"-6", "-0", "121", "1000", "-10", "5.0"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":0.5,\"exclusiveMaximum\":10}",
     {"1", "9"},
     {"0", "10", "-1", "11"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "0.5", "1", "1.000", "0.00", "0.99999"},
     {"1.01", "-0.5", "2", "1e0", "-0"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":-2.25,\"exclusiveMaximum\":-1e-2}",
     {"-2.2499", "-1", "-0.011", "-0.02"},
     {"-2.25", "-2.3", "-0.01", "-0.001", "0", "1"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"True", "1", "null"}},
    {"{\"type\":[\"string\",\"null\"]}", {"\"x\"", "null"}, {"1", "nul"}},
    {"{\"type\":\"integer\",\"nullable\":true}", {"1", "null"}, {"\"x\""}},
    {"{\"enum\":[\"a\",\"ab\",1,null,{\"k\":[1]}]}",
     {"\"a\"", "\"ab\"", "1", "null", "{\"k\": [1]}"},
     {"\"\"", "\"abc\"", "11", "{\"k\":[1]}"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
    {"{\"const\":\"q\\\"\"}", {"\"q\\\"\""}, {"\"q\"", "\"q\\u0022\""}},
    {OBJ_AB,
     {"{\"a\":1}", "{\"a\": 1, \"b\": \"x\"}", "{\n    \"a\": 1,\n    \"b\": \"\"\n}",
      "{ \"a\": 1 }", "{\n\t\"a\": 1\n}"},
     {"{}", "{\"b\":\"x\"}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1,\"a\":2}", "{\"a\":1,}",
      "{\"a\":1,\"c\":2}", "{\"a\":\"1\"}", "{  \"a\": 1}", "{\"a\" :1}", "{\"a\":1}\n",
      "{\"\\u0061\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"z\"]}",
     {"{\"a\":1,\"z\":[]}", "{\"z\":1,\"b\":2,\"\":3}", "{\"z\":0,\"aa\":\"\"}"},
     {"{\"a\":1}", "{\"b\":2,\"z\":1}", "{\"z\":1,\"a\":\"x\"}", "{\"z\":1,\"\\u0061\":\"x\"}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{}", "{\"x\":true,\"\\u00e9\":false}"},
     {"{\"x\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
     {"[]", "[1]", "[1, 2,3]", "[\n1\n]"},
     {"[\"a\"]", "[1", "[1 2]", "[ ]x", "[1,,2]"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1,2,3]"},
     {"[]", "[1]", "[1,2,3,4]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", {"[]", "[ ]"}, {"[1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":"
     "{\"type\":\"null\"},\"minItems\":1}",
     {"[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
     {"[]", "[\"a\"]", "[1,2]", "[1,\"a\",1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false}",
     {"[]", "[1]"},
     {"[1,1]"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\",\"items\":{}},{\"type\":\"array\","
     "\"items\":{\"type\":\"string\"}}]}",
     {"1", "[[]]", "[\"a\",\"b\"]", "[\"a\",1]"},
     {"\"a\"", "[1"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\",\"x\"]},{\"type\":\"object\",\"properties\":{\"k\":{"
     "\"const\":\"b\"}},\"required\":[\"k\"]}]}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\"}"},
     {"{\"k\":\"a\"}", "{\"k\":\"c\"}"}},
    {"{\"allOf\":[{\"type\":\"integer\"}],\"title\":\"t\"}", {"1"}, {"\"x\""}},
    {TREE,
     {"{\"v\":1}", "{\"v\":1,\"c\":[{\"v\":2,\"c\":[{\"v\":3,\"c\":[]}]}]}"},
     {"{\"c\":[]}", "{\"v\":1,\"c\":[1]}"}},
    {"{\"properties\":{\"a\":{\"$ref\":\"#/properties/b\"},\"b\":{\"type\":\"null\"}}}",
     {"{\"a\":null,\"b\":null}", "{}"},
     {"{\"a\":1}", "1"}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]{2}(x|y\\\\d+)?$\"}",
     {"\"ab\"", "\"ccx\"", "\"aay12\""},
     {"\"a\"", "\"abz\"", "\"aby\"", "\"ab\\u0078\""}},
    {"{\"type\":\"string\",\"pattern\":\"b+\"}",
     {"\"abc\"", "\"b\"", "\"\\n\\u00e9b\""},
     {"\"ac\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a|b$\"}", {"\"ax\"", "\"xb\""}, {"\"xa\"", "\"bx\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[^a]$\"}",
     {"\"é\"", "\"\\\"\"", "\"\\n\"", "\"😀\""},
     {"\"a\"", "\"\"", "\"bb\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z]*$\",\"minLength\":2,\"maxLength\":4}",
     {"\"ab\"", "\"abcd\""},
     {"\"a\"", "\"abcde\"", "\"A1\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"2000-12-31\"", "\"0001-01-01\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"0000-01-01\"", "\"2024-1-1\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.25+05:30\""},
     {"\"2024-01-01 00:00:00Z\"", "\"2024-01-01T24:00:00Z\"", "\"2024-01-01T00:00:00\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"01234567-89ab-cdef-0123-456789ABCDEF\""},
     {"\"01234567-89ab-cdef-0123-456789abcde\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"1.20.255.0\""},
     {"\"1.2.3.256\"", "\"1.2.3\""}},
    {"{\"type\":\"string\",\"format\":\"ipv6\"}",
     {"\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\""},
     {"\"1:2\"", "\"::1::\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}", {"\"a.b@c.de\""}, {"\"a@b\"", "\"@c.de\""}},
};
#define N_ROWS (sizeof rows / sizeof rows[0])

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        constraint *c = make(rows[i].schema);
        for (size_t k = 0; k < 10 && rows[i].good[k] != NULL; k++)
            if (!accepts(c, rows[i].good[k]))
                fail_msg("refused %s by %s", rows[i].good[k], rows[i].schema);
        for (size_t k = 0; k < 16 && rows[i].bad[k] != NULL; k++)
            if (accepts(c, rows[i].bad[k]))
                fail_msg("accepted %s by %s", rows[i].bad[k], rows[i].schema);
        constraint_destroy(c);
    }
}

/* Any cut, a copy made at any place, and a refused byte at any place change nothing. */
static void test_splits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        constraint *c = make(rows[i].schema), *copy;
        for (size_t k = 0; k < 10 && rows[i].good[k] != NULL; k++) {
            const char *s = rows[i].good[k];
            const size_t n = strlen(s);
            for (size_t cut = 0; cut <= n; cut++) {
                constraint_reset(c);
                for (size_t at = 0; at < cut; at++)
                    assert_true(constraint_try(c, s + at, 1) && constraint_advance(c, s + at, 1));
                assert_int_equal(constraint_clone(&copy, c, NULL), CALLA_OK);
                assert_false(constraint_advance(c, "\x01", 1));
                assert_true(cut == n || constraint_advance(c, s + cut, n - cut));
                assert_true(cut == n || constraint_advance(copy, s + cut, n - cut));
                assert_true(constraint_may_end(c) && constraint_may_end(copy));
                constraint_destroy(copy);
            }
        }
        constraint_destroy(c);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        calla_status code;
        const char *says;
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a/b\":{\"not\":{}}}}", CALLA_ERR_UNSUPPORTED,
         "\"#/properties/a~1b\" has \"not\""},
        {"{\"type\":\"integer\",\"multipleOf\":5}", CALLA_ERR_UNSUPPORTED, "\"multipleOf\""},
        {"{\"type\":\"array\",\"items\":{\"type\":\"object\",\"patternProperties\":{}}}",
         CALLA_ERR_UNSUPPORTED, "\"#/items\" has \"patternProperties\""},
        {"{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"if\":{}}}}", CALLA_ERR_UNSUPPORTED,
         "\"#/$defs/x\" has \"if\""},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"uniqueItems\":true}]}", CALLA_ERR_UNSUPPORTED,
         "\"#/anyOf/1\" has \"uniqueItems\""},
        {"{\"anyOf\":[{}],\"type\":\"object\"}", CALLA_ERR_UNSUPPORTED, "in this combination"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", CALLA_ERR_UNSUPPORTED,
         "not plainly apart"},
        {"{\"allOf\":[{},{}]}", CALLA_ERR_UNSUPPORTED, "\"allOf\""},
        {"{\"type\":\"string\",\"format\":\"iri\"}", CALLA_ERR_UNSUPPORTED, "\"format\""},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", CALLA_ERR_UNSUPPORTED, "look-around"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", CALLA_ERR_UNSUPPORTED, "has \\1"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\bx\"}", CALLA_ERR_UNSUPPORTED, "has \\b"},
        {"{\"type\":\"string\",\"pattern\":\"a^b\"}", CALLA_ERR_UNSUPPORTED, "anchor"},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", CALLA_ERR_UNSUPPORTED, "without end"},
        {"{\"type\":\"string\",\"pattern\":\"a{99999}\"}", CALLA_ERR_UNSUPPORTED, "4096"},
        {"{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){30}$\"}", CALLA_ERR_UNSUPPORTED,
         "too intricate"},
        {"{\"type\":\"string\",\"maxLength\":1000000}", CALLA_ERR_UNSUPPORTED, "\"maxLength\""},
        {"{\"type\":\"number\",\"minimum\":1e300}", CALLA_ERR_UNSUPPORTED, "nothing can satisfy"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", CALLA_ERR_UNSUPPORTED,
         "nothing can"},
        {"{\"$ref\":\"#\"}", CALLA_ERR_UNSUPPORTED, "nothing can satisfy"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", CALLA_ERR_UNSUPPORTED,
         "back to itself"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", CALLA_ERR_UNSUPPORTED,
         "nothing can satisfy"},
        {"false", CALLA_ERR_UNSUPPORTED, "nothing can satisfy"},
        {"{\"$ref\":\"#/$defs/none\"}", CALLA_ERR_ARGUMENT, "leads nowhere"},
        {"{\"$ref\":\"http://x/y\"}", CALLA_ERR_ARGUMENT, "leads nowhere"},
        {"{\"type\":\"text\"}", CALLA_ERR_ARGUMENT, "\"type\""},
        {"{\"type\":5}", CALLA_ERR_ARGUMENT, "\"type\""},
        {"{\"properties\":[]}", CALLA_ERR_ARGUMENT, "\"properties\""},
        {"{\"required\":{}}", CALLA_ERR_ARGUMENT, "\"required\""},
        {"{\"enum\":1}", CALLA_ERR_ARGUMENT, "\"enum\""},
        {"{\"minItems\":-1}", CALLA_ERR_ARGUMENT, "\"minItems\""},
        {"{\"properties\":{\"a\":1}}", CALLA_ERR_ARGUMENT, "\"#/properties/a\""},
        {"[]", CALLA_ERR_ARGUMENT, "must be an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_doc doc = parse(cases[i].schema);
        constraint *c = (constraint *)&doc;
        calla_error err = {0};
        const calla_status st = constraint_json_schema(&c, doc.root, false, &err);
        if (st != cases[i].code || strstr(err.message, cases[i].says) == NULL || c != NULL)
            fail_msg("%s: status %d, \"%s\"", cases[i].schema, (int)st, err.message);
        assert_int_equal(err.code, st);
        json_free(&doc);
    }
}

static void test_strict(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *says;
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"required\":[\"a\"],"
         "\"additionalProperties\":false}",
         NULL},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"required\":[\"a\"]}",
         "\"additionalProperties\""},
        {OBJ_AB, "\"b\""},
        {"{\"type\":\"array\"}", "\"type\""},
        {"{\"anyOf\":[{\"type\":\"object\"}]}", "\"type\""},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\"}},\"required\":[\"a\"],"
         "\"additionalProperties\":false}",
         "\"#/properties/a\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_doc doc = parse(cases[i].schema);
        constraint *c;
        calla_error err = {0};
        const calla_status st = constraint_json_schema(&c, doc.root, true, &err);
        assert_int_equal(st, cases[i].says == NULL ? CALLA_OK : CALLA_ERR_ARGUMENT);
        if (st != CALLA_OK) assert_non_null(strstr(err.message, cases[i].says));
        constraint_destroy(c);
        json_free(&doc);
    }
}

/* ---- Depth and ambiguity ---- */

static void repeat(strbuf *b, const char *s, int n)
{
    for (int i = 0; i < n; i++)
        strbuf_puts(b, s);
}

static void test_depth(void **state)
{
    (void)state;
    constraint *c;
    assert_int_equal(constraint_json_object(&c, NULL), CALLA_OK);
    assert_false(accepts(c, "[]"));
    assert_true(accepts(c, "{\"a\":[{\"b\":null}]}"));
    strbuf deep = {0};
    repeat(&deep, "{\"a\":[", 13);
    repeat(&deep, "]}", 13);
    assert_true(accepts(c, deep.data));
    /* Beyond the limit nothing is opened that could not be closed. */
    constraint_reset(c);
    int n = 0;
    while (constraint_advance(c, "{\"a\":", 5))
        n++;
    assert_in_range(n, 27, 28);
    while (constraint_advance(c, "{", 1))
        ;
    walk_random r = {9};
    strbuf rest = {0};
    bool stuck;
    (void)walk(c, &r, &rest, &stuck);
    assert_false(stuck);
    strbuf_deinit(&rest);
    strbuf_deinit(&deep);
    constraint_destroy(c);
}

/* Exponentially many paths: some are dropped, nothing breaks. */
static void test_ambiguity(void **state)
{
    (void)state;
    constraint *c = make(
        "{\"$ref\":\"#/$defs/r\",\"$defs\":{\"r\":{\"anyOf\":[{\"type\":\"array\",\"items\":{"
        "\"$ref\":\"#/$defs/r\"}},{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
        "s\"}},{\"type\":"
        "\"integer\"}]},\"s\":{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/s\"}},{"
        "\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/r\"}},{\"type\":\"null\"}]}}}");
    strbuf text = {0};
    repeat(&text, "[", 20);
    repeat(&text, "]", 20);
    assert_true(accepts(c, text.data));
    walk_random r = {4};
    for (int i = 0; i < 50; i++) {
        bool stuck;
        constraint_reset(c);
        strbuf_clear(&text);
        (void)walk(c, &r, &text, &stuck);
        assert_false(stuck);
    }
    strbuf_deinit(&text);
    constraint_destroy(c);
}

/* ---- Random walks ---- */

static void test_walks(void **state)
{
    (void)state;
    size_t n_whole = 0;
    for (size_t i = 0; i < N_ROWS; i++) {
        json_doc schema = parse(rows[i].schema);
        constraint *c = make(rows[i].schema);
        walk_random r = {i + 1};
        for (int k = 0; k < 60; k++) {
            strbuf text = {0};
            bool stuck;
            constraint_reset(c);
            const bool whole = walk(c, &r, &text, &stuck);
            if (stuck) fail_msg("seed %zu: nothing can follow %s", i + 1, text.data);
            if (whole) {
                json_doc doc = parse(text.data);
                if (!schema_valid(schema.root, schema.root, doc.root))
                    fail_msg("seed %zu: %s is not valid under %s", i + 1, text.data,
                             rows[i].schema);
                json_free(&doc);
                n_whole++;
            }
            strbuf_deinit(&text);
        }
        constraint_destroy(c);
        json_free(&schema);
    }
    assert_true(n_whole > N_ROWS * 50);
}

/* ---- Tools ---- */

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"write_file\",\"parameters\":{\"type\":"      \
    "\"object\",\"properties\":{\"path\":{\"type\":\"string\"},\"text\":{\"type\":\"string\"},"    \
    "\"mode\":{\"type\":\"string\",\"enum\":[\"new\",\"over\\nwrite\",\"0\"]},\"n\":{\"type\":"    \
    "\"integer\",\"minimum\":1,\"maximum\":99},\"opts\":{\"type\":\"object\",\"properties\":{"     \
    "\"s\":{\"type\":\"string\"},\"deep\":{\"$ref\":\"#/$defs/d\"}},\"additionalProperties\":"     \
    "false}},\"required\":[\"path\",\"text\"],\"$defs\":{\"d\":{\"type\":\"array\",\"items\":{"    \
    "\"$ref\":\"#/$defs/d\"}}}}}},"                                                                \
    "{\"type\":\"function\",\"function\":{\"name\":\"write\",\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{\"ok\":{\"type\":\"boolean\"},\"maybe\":{\"anyOf\":[{\"type\":\"integer\"},{" \
    "\"type\":\"null\"}]},\"any\":{\"type\":\"array\"},\"code\":{\"type\":\"string\","             \
    "\"maxLength\""                                                                                \
    ":6},\"x\":{}},\"required\":[\"ok\"]}}},"                                                      \
    "{\"name\":\"now\"}]"

static constraint *make_tools(const json_value *tools, const char *name, bool parallel,
                              constraint_tool_mode mode)
{
    const constraint_tool_options o = {tools, name, parallel, mode};
    constraint *c;
    calla_error err;
    if (constraint_tool_calls(&c, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    return c;
}

static const json_value *find_parameters(const json_value *tools, const char *name)
{
    for (const json_value *t = tools->first; t != NULL; t = t->next) {
        const json_value *inner = json_get(t, "function");
        const json_value *tool = inner != NULL ? inner : t;
        if (json_is(json_get(tool, "name"), name)) return json_get(tool, "parameters");
    }
    fail_msg("the call is of a tool \"%s\"", name);
    return NULL;
}

/* The output parser must find whole calls, whose arguments are valid. */
static size_t check_calls(const json_value *tools, const strbuf *text, size_t n_content)
{
    output_result result = {0};
    output_parser *p;
    const output_options o = {.tools = tools, .on_event = output_result_event, .user = &result};
    assert_int_equal(output_parser_create(&p, &o, NULL), CALLA_OK);
    assert_int_equal(output_parser_push(p, text->data, text->len), CALLA_OK);
    assert_int_equal(output_parser_finish(p, false), CALLA_OK);
    output_parser_destroy(p);
    if (result.content.len > n_content)
        fail_msg("content \"%s\" of %s", result.content.data, text->data);
    const size_t n = result.n_calls;
    for (size_t i = 0; i < n; i++) {
        const output_call *call = &result.calls[i];
        if (!call->complete) fail_msg("call %zu is not complete: %s", i, text->data);
        const json_value *parameters = find_parameters(tools, call->name);
        json_doc doc = parse(call->arguments.data);
        if (parameters != NULL && !schema_valid(parameters, parameters, doc.root))
            fail_msg("%s is not valid for %s, read from %s", call->arguments.data, call->name,
                     text->data);
        json_free(&doc);
    }
    output_result_deinit(&result);
    return n;
}

static void test_tool_walks(void **state)
{
    (void)state;
    json_doc tools = parse(TOOLS);
    static const char *const names[] = {NULL, "write_file", "write", "now"};
    size_t n_calls = 0;
    for (unsigned i = 0; i < 16; i++) {
        const bool is_auto = i >= 8;
        constraint *c = make_tools(tools.root, names[i % 4], i % 8 < 4,
                                   is_auto ? CONSTRAINT_TOOLS_AUTO : CONSTRAINT_TOOLS_REQUIRED);
        walk_random r = {i + 1};
        for (int k = 0; k < 60; k++) {
            strbuf text = {0};
            bool stuck;
            constraint_reset(c);
            const bool whole = walk(c, &r, &text, &stuck);
            if (stuck) fail_msg("seed %u: nothing can follow %s", i + 1, text.data);
            if (whole && text.len != 0) {
                const size_t n = check_calls(tools.root, &text, is_auto ? SIZE_MAX : 0);
                if (!is_auto && (n == 0 || (n > 1 && i % 8 >= 4)))
                    fail_msg("%zu calls in %s", n, text.data);
                n_calls += n;
            }
            strbuf_deinit(&text);
        }
        constraint_destroy(c);
    }
    print_message("  %zu calls\n", n_calls);
    assert_true(n_calls > 500);
    json_free(&tools);
}

#define CALL(name, body)  "<tool_call>\n<function=" name ">\n" body "</function>\n</tool_call>"
#define PARAM(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static void test_tool_table(void **state)
{
    (void)state;
    static const char *const good[] = {
        CALL("now", ""),
        "\n\n" CALL("now", ""),
        CALL("now", "") "\n" CALL("write", PARAM("ok", "true")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "")),
        CALL("write_file", PARAM("text", "1\n\n<p>2</p>\n</x>\n\"\\") PARAM("path", "a")),
        CALL("write_file", PARAM("n", "99") PARAM("path", "") PARAM("mode", "over\nwrite")
                               PARAM("text", "<tool_call> </parameter <parameter=x>")),
        CALL("write_file",
             PARAM("path", "é") PARAM("text", "x")
                 PARAM("opts", "{\"s\": \"<\\/parameter\\n< /function>\", \"deep\": [[]]}")),
        CALL("write", PARAM("ok", "false") PARAM("maybe", "null") PARAM("code", "a<b>")),
    };
    static const char *const bad[] = {
        "",
        "x",
        "<tool_call>",
        CALL("no", ""),
        CALL("write", ""),
        CALL("now", "") "\n",
        CALL("now", "") CALL("now", ""),
        "\n\n\n" CALL("now", ""),
        CALL("write_file", PARAM("path", "a")),
        CALL("write_file", PARAM("path", "a") PARAM("path", "a") PARAM("text", "")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "</function>")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "\n<parameter=n>")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "\xff")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "") PARAM("n", "0")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "") PARAM("mode", "old")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "") PARAM("z", "old")),
        CALL("write_file", PARAM("path", "a") PARAM("text", "") PARAM("opts", "{\"s\":\"</\"}")),
        CALL("write", PARAM("ok", "True")),
        CALL("write", PARAM("ok", "true") PARAM("code", "1234567")),
    };
    json_doc tools = parse(TOOLS);
    constraint *c = make_tools(tools.root, NULL, true, CONSTRAINT_TOOLS_REQUIRED);
    constraint *is_auto = make_tools(tools.root, NULL, true, CONSTRAINT_TOOLS_AUTO);
    constraint *one = make_tools(tools.root, "now", false, CONSTRAINT_TOOLS_REQUIRED);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!accepts(c, good[i]) || !accepts(is_auto, good[i])) fail_msg("refused %s", good[i]);
        const strbuf text = {(char *)(uintptr_t)good[i], strlen(good[i]), 0, 0, false};
        assert_true(check_calls(tools.root, &text, 0) != 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (accepts(c, bad[i])) fail_msg("accepted %s", bad[i]);
    assert_true(accepts(one, CALL("now", "")));
    assert_false(accepts(one, CALL("write", PARAM("ok", "true"))));
    assert_false(accepts(one, CALL("now", "") "\n" CALL("now", "")));
    constraint_reset(is_auto);
    assert_true(constraint_may_end(is_auto));
    assert_true(accepts(is_auto, "I see. <tool_ <tool_cal>\n"));
    assert_false(accepts(is_auto, "Hm <tool_call> is"));
    assert_false(accepts(is_auto, "<function=now>"));
    assert_true(accepts(is_auto, "Let me look.\n\n" CALL("now", "")));
    assert_false(accepts(is_auto, CALL("now", "") " done"));
    constraint_destroy(c);
    constraint_destroy(is_auto);
    constraint_destroy(one);
    json_free(&tools);
}

static void test_tool_errors(void **state)
{
    (void)state;
    static const struct {
        const char *tools, *name;
        calla_status code;
        const char *says;
    } cases[] = {
        {"[]", NULL, CALLA_ERR_ARGUMENT, "no tool"},
        {"{}", NULL, CALLA_ERR_ARGUMENT, "array"},
        {"[{\"name\":\"a\"}]", "b", CALLA_ERR_ARGUMENT, "no tool \"b\""},
        {"[{\"name\":\"a b\"}]", NULL, CALLA_ERR_ARGUMENT, "no name"},
        {"[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{"
         "\"k\":{"
         "\"type\":\"integer\",\"multipleOf\":3}},\"required\":[\"k\"],\"additionalProperties\":"
         "false"
         "}}]",
         NULL, CALLA_ERR_UNSUPPORTED,
         "tool \"a\": the schema at \"#/properties/k\" has \"multipleOf\""},
        {"[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{}}}"
         "]",
         NULL, CALLA_ERR_ARGUMENT, "\"additionalProperties\""},
        {"[{\"name\":\"a\",\"parameters\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":"
         "\"integer\",\"multipleOf\":3},\"s\":{\"type\":\"string\",\"pattern\":\"(?=x)\","
         "\"maxLength\":"
         "50000},\"t\":{\"not\":{}},\"u\":{\"type\":\"str\"},\"v\":{\"allOf\":[{},{}]}},"
         "\"minProperties"
         "\":1}}]",
         NULL, CALLA_OK, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_doc tools = parse(cases[i].tools);
        const constraint_tool_options o = {.tools = tools.root, .name = cases[i].name};
        constraint *c;
        calla_error err = {0};
        const calla_status st = constraint_tool_calls(&c, &o, &err);
        if (st != cases[i].code || (st != CALLA_OK && strstr(err.message, cases[i].says) == NULL))
            fail_msg("%s: status %d, \"%s\"", cases[i].tools, (int)st, err.message);
        constraint_destroy(c);
        json_free(&tools);
    }
}

/* ---- Size ---- */

/* A schema made of n pieces, "%zu" in each replaced by its number and by the one before. */
static void put_pieces(strbuf *s, const char *head, const char *piece, const char *tail, size_t n)
{
    strbuf_clear(s);
    (void)strbuf_puts(s, head);
    for (size_t i = 0; i < n; i++) {
        if (i != 0) (void)strbuf_putc(s, ',');
        for (const char *c = piece; *c != '\0'; c++) {
            if (*c == '@')
                (void)strbuf_printf(s, "%zu", i);
            else if (*c == '^')
                (void)strbuf_printf(s, "%zu", i == 0 ? 0 : i - 1);
            else
                (void)strbuf_putc(s, *c);
        }
    }
    (void)strbuf_puts(s, tail);
}

/* What would take seconds is given up for its work: in the automaton, in references, in names, in
 * first bytes of rules. */
static void test_too_intricate(void **state)
{
    static const struct {
        const char *head, *piece, *tail;
        size_t n;
    } hard[] = {
        {"{\"type\":\"string\",\"pattern\":\"", "\\\\w{0,200}[^a]{0,200}.{0,2000}", "\"}", 1},
        {"{\"anyOf\":[", "{\"type\":\"string\",\"pattern\":\"@[a-z]{100}\"}", "]}", 400},
        {"{\"type\":\"object\",\"properties\":{", "\"p@\":{\"type\":\"integer\"}", "}}", 2000},
        {"{\"anyOf\":[{\"$ref\":\"#/$defs/d9999\"}],\"$defs\":{",
         "\"d@\":{\"anyOf\":[{\"$ref\":\"#/$defs/d^\"},{\"type\":\"null\"}]}", "}}", 10000},
        {"{\"type\":\"array\",\"prefixItems\":[", "{\"const\":@}", "]}", 12000},
    };
    strbuf s = {0};
    (void)state;
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        constraint *c;
        calla_error err = {0};
        put_pieces(&s, hard[i].head, hard[i].piece, hard[i].tail, hard[i].n);
        json_doc d = parse(s.data);
        const calla_status st = constraint_json_schema(&c, d.root, false, &err);
        if (st != CALLA_ERR_UNSUPPORTED || strstr(err.message, "too intricate") == NULL)
            fail_msg("row %zu: status %d, \"%s\"", i, (int)st, err.message);
        json_free(&d);
    }
    strbuf_deinit(&s);
}

/* What agents send: hundreds of tools, a few large objects, unions of some dozens. */
static void test_large(void **state)
{
    static const char many[] =
        "{\"name\":\"server_@__tool\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"path_@\":{\"type\":\"string\"},\"limit\":{\"type\":\"integer\",\"minimum\":0,"
        "\"maximum\":"
        "1000},\"mode\":{\"enum\":[\"alpha\",\"beta\",\"gamma\"]},\"deep\":{\"type\":\"boolean\"},"
        "\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"todos\":{\"type\":"
        "\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"content\":{\"type\":\"string\"}"
        ","
        "\"status\":{\"type\":\"string\",\"enum\":[\"open\",\"done\"]}},\"required\":[\"content\"]}"
        "}"
        "},\"required\":[\"path_@\"]}}";
    static const struct {
        const char *head, *piece, *tail;
        size_t n;
    } fine[] = {
        {"{\"type\":\"object\",\"properties\":{", "\"property_number_@\":{\"type\":\"string\"}",
         "}}", 400},
        {"{\"oneOf\":[",
         "{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"t@\"},\"a\":{\"type\":\"string\"}"
         ","
         "\"b\":{\"type\":\"number\"},\"c\":{\"type\":\"array\"}},\"required\":[\"t\"]}",
         "]}", 40},
        {"{\"enum\":[", "\"value_@\"", "]}", 5000},
    };
    strbuf s = {0};
    (void)state;
    for (size_t n = 25; n <= 400; n *= 2) {
        put_pieces(&s, "[", many, "]", n);
        json_doc tools = parse(s.data);
        constraint *c = make_tools(tools.root, NULL, true, CONSTRAINT_TOOLS_REQUIRED);
        assert_true(
            accepts(c, CALL("server_7__tool", PARAM("path_7", "a\nb") PARAM("limit", "12"))));
        assert_false(accepts(c, CALL("server_7__tool", PARAM("path_8", "a"))));
        print_message("  %zu tools: %u states, %u bytes\n", n, constraint_n_states(c),
                      (unsigned)constraint_bytes(c));
        constraint_destroy(c);
        json_free(&tools);
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        put_pieces(&s, fine[i].head, fine[i].piece, fine[i].tail, fine[i].n);
        constraint_destroy(make(s.data));
    }
    strbuf_deinit(&s);
}

/* Few tools: any order. So many that the orders would be too many: the schema's, and the call still
 * parses. */
static void test_orders(void **state)
{
    static const char eight[] =
        "{\"name\":\"t@\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},"
        "\"c\":{},\"d\":{},\"e\":{},\"f\":{},\"g\":{},\"h\":{}}}}";
    strbuf s = {0};
    (void)state;
    for (size_t n = 32; n <= 33; n++) {
        put_pieces(&s, "[", eight, "]", n);
        json_doc tools = parse(s.data);
        constraint *c = make_tools(tools.root, NULL, true, CONSTRAINT_TOOLS_REQUIRED);
        assert_true(accepts(c, CALL("t3", PARAM("a", "x") PARAM("h", "y"))));
        assert_int_equal(accepts(c, CALL("t3", PARAM("h", "y") PARAM("a", "x"))), n == 32);
        constraint_destroy(c);
        json_free(&tools);
    }
    strbuf_deinit(&s);
}

/* ---- Memory ---- */

static void test_memory(void **state)
{
    (void)state;
    json_doc schema = parse(TREE), tools = parse(TOOLS);
    for (int k = 0; k < 2; k++) {
        calla_status st = CALLA_ERR_MEMORY;
        for (int64_t n = 0; st != CALLA_OK; n++) {
            constraint *c;
            calla_error err = {0};
            const constraint_tool_options o = {.tools = tools.root};
            mem_fail_after(n);
            st = k == 0 ? constraint_json_schema(&c, schema.root, false, &err)
                        : constraint_tool_calls(&c, &o, &err);
            mem_fail_after(-1);
            if (st != CALLA_OK && st != CALLA_ERR_MEMORY)
                fail_msg("allocation %d: %s", (int)n, err.message);
            constraint_destroy(c);
        }
    }
    constraint *c = make(TREE);
    const uint64_t before = mem_count();
    assert_true(accepts(c, "{\"v\":1,\"c\":[{\"v\":2,\"c\":[{\"v\":3,\"c\":[]}]}]}"));
    assert_true(mem_count() == before);
    print_message("  tree: %u states, %u bytes\n", constraint_n_states(c),
                  (unsigned)constraint_bytes(c));
    constraint_destroy(c);
    constraint_destroy(NULL);
    json_free(&schema);
    json_free(&tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),      cmocka_unit_test(test_splits),
        cmocka_unit_test(test_errors),     cmocka_unit_test(test_strict),
        cmocka_unit_test(test_depth),      cmocka_unit_test(test_ambiguity),
        cmocka_unit_test(test_walks),      cmocka_unit_test(test_tool_walks),
        cmocka_unit_test(test_tool_table), cmocka_unit_test(test_tool_errors),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_too_intricate),
        cmocka_unit_test(test_large),      cmocka_unit_test(test_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
