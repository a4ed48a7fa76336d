/* OpenAI's custom tools: the function made of one, and the text of a call cut anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "server/api_custom.h"

/* ---- The text of a call ---- */

static void test_read(void **state)
{
    static const char text[] =
        "a \"b\"\n\t\\n \x01\x7f \xc3\xa9\xf0\x9f\x98\x80 \\u0041 {\"x\": 1}/\b\f\r";
    strbuf json = {0};
    (void)state;
    (void)strbuf_puts(&json, "{\"input\": ");
    (void)json_write_string(&json, text, sizeof text - 1);
    (void)strbuf_putc(&json, '}');
    for (size_t i = 0; i <= json.len; i++) {
        for (size_t k = i; k <= json.len; k += 3) {
            custom_reader r = {0};
            strbuf out = {0};
            custom_read(&r, json.data, i, &out);
            custom_read(&r, json.data + i, k - i, &out);
            custom_read(&r, json.data + k, json.len - k, &out);
            assert_string_equal(out.data, text);
            strbuf_deinit(&out);
        }
    }
    /* Cut off: what was written so far, and nothing of half an escape. */
    for (size_t i = 0; i <= json.len; i++) {
        custom_reader r = {0};
        strbuf out = {0};
        custom_read(&r, json.data, i, &out);
        if (out.len != 0) assert_memory_equal(out.data, text, out.len);
        strbuf_deinit(&out);
    }
    custom_reader r = {0};
    strbuf out = {0};
    custom_read(&r, "{\"input\": \"\\u00e9\\u20ac\\/\"}\"x\"", 31, &out);
    assert_string_equal(out.data, "\xc3\xa9\xe2\x82\xac/");
    strbuf_deinit(&out);
    strbuf_deinit(&json);
}

/* ---- The function ---- */

#define SCHEMA                                                                                     \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"input\": {\"type\": \"string\"}}, " \
    "\"required\": [\"input\"], \"additionalProperties\": false}, \"strict\": true}}"

typedef struct row {
    const char *in, *out; /* out: the function, or the path of the error */
} row;

static const row rows[] = {
    {"{\"name\":\"f\"}",
     "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"\", " SCHEMA},
    {"{\"name\":\"f\",\"description\":\"d\",\"format\":{\"type\":\"text\"}}",
     "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", " SCHEMA},
    {"{\"name\":\"f\",\"description\":\"d\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\","
     "\"definition\":\"start: x\"}}",
     "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\\n\\nThe input "
     "has "
     "this form (lark):\\nstart: x\", " SCHEMA},
    {"{\"name\":\"f\",\"format\":{\"type\":\"grammar\",\"grammar\":{\"syntax\":\"regex\","
     "\"definition\":\"a+\"}}}",
     "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"The input has "
     "this "
     "form (regex):\\na+\", " SCHEMA},
    {"1", "t"},
    {"{}", "t.name"},
    {"{\"name\":\"a b\"}", "t.name"},
    {"{\"name\":\"f\",\"description\":1}", "t.description"},
    {"{\"name\":\"f\",\"format\":1}", "t.format"},
    {"{\"name\":\"f\",\"format\":{}}", "t.format.type"},
    {"{\"name\":\"f\",\"format\":{\"type\":\"xml\"}}", "t.format.type"},
    {"{\"name\":\"f\",\"format\":{\"type\":\"grammar\"}}", "t.format.syntax"},
    {"{\"name\":\"f\",\"format\":{\"type\":\"grammar\",\"grammar\":{\"syntax\":\"ebnf\"}}}",
     "t.format.grammar.syntax"},
    {"{\"name\":\"f\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\"}}",
     "t.format.definition"},
};

static void test_function(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_doc doc;
        tree t = {0};
        api_error e = {0};
        strbuf out = {0};
        assert_int_equal(json_parse(&doc, rows[i].in, strlen(rows[i].in), NULL, NULL), CALLA_OK);
        const json_value *f = custom_function(&t, doc.root, "t", &e);
        if (f != NULL)
            (void)json_write(&out, f);
        else
            (void)strbuf_puts(&out, e.param);
        assert_string_equal(out.data, rows[i].out);
        strbuf_deinit(&out);
        tree_deinit(&t);
        json_free(&doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
