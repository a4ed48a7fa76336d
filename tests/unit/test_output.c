#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/file.h"
#include "output_check.h"
#include "text/value.h"

static json_doc tools_doc;

static int load_tools(void **state)
{
    (void)state;
    return json_parse(&tools_doc, CHECK_TOOLS, sizeof CHECK_TOOLS - 1, NULL, NULL) != CALLA_OK;
}

static int free_tools(void **state)
{
    (void)state;
    json_free(&tools_doc);
    return 0;
}

static void collect(output_result *r, const check_input *in)
{
    const output_options o = {.start_in_reasoning = in->reasoning,
                              .call_after_reasoning = in->after,
                              .tools = in->tools,
                              .on_event = output_result_event,
                              .user = r};
    output_parser *p;
    *r = (output_result){.n_calls = 0};
    assert_int_equal(output_parser_create(&p, &o, NULL), CALLA_OK);
    assert_int_equal(output_parser_push(p, in->bytes, in->n), CALLA_OK);
    assert_int_equal(output_parser_finish(p, in->truncated), CALLA_OK);
    output_parser_destroy(p);
    assert_false(r->failed);
}

/* ---- The golden file ---- */

static void same_text(const char *name, const strbuf *found, const json_value *want)
{
    if (found->len != want->n_text || memcmp(found->len ? found->data : "", want->text, found->len))
        fail_msg("%s: expected \"%s\", found \"%s\"", name, want->text,
                 found->data ? found->data : "");
}

static void same_arguments(const char *name, const output_call *c, const json_value *want)
{
    json_doc doc = {0};
    strbuf a = {0}, b = {0};
    assert_int_equal(json_parse(&doc, c->arguments.data, c->arguments.len, NULL, NULL), CALLA_OK);
    assert_true(json_write(&a, doc.root) && json_write(&b, want));
    if (strcmp(a.data, b.data) != 0) fail_msg("%s: expected %s, found %s", name, b.data, a.data);
    /* The style is json_write's already. */
    if (strcmp(a.data, c->arguments.data) != 0)
        fail_msg("%s: expected the style of %s, found %s", name, a.data, c->arguments.data);
    strbuf_deinit(&a);
    strbuf_deinit(&b);
    json_free(&doc);
}

/* One push, every way of cutting in two, and byte by byte. */
static void every_cut(const char *name, const check_input *in)
{
    check_log whole, cut;
    assert_true(check_parse(&whole, in, 0, 0));
    if (whole.fault != NULL) fail_msg("%s: %s", name, whole.fault);
    for (size_t i = 0; i <= in->n; i++) {
        const output_options o = {.start_in_reasoning = in->reasoning,
                                  .call_after_reasoning = in->after,
                                  .tools = in->tools,
                                  .on_event = check_event,
                                  .user = &cut};
        output_parser *p;
        cut = (check_log){.last = -1};
        assert_int_equal(output_parser_create(&p, &o, NULL), CALLA_OK);
        assert_int_equal(output_parser_push(p, in->bytes, i), CALLA_OK);
        assert_int_equal(output_parser_push(p, in->bytes + i, in->n - i), CALLA_OK);
        assert_int_equal(output_parser_finish(p, in->truncated), CALLA_OK);
        output_parser_destroy(p);
        if (cut.fault != NULL || !check_same(&whole, &cut))
            fail_msg("%s cut at %zu: expected%s\nfound%s", name, i, whole.text.data, cut.text.data);
        check_log_deinit(&cut);
    }
    assert_true(check_parse(&cut, in, 1, 0));
    if (!check_same(&whole, &cut))
        fail_msg("%s by bytes: expected%s\nfound%s", name, whole.text.data, cut.text.data);
    check_log_deinit(&cut);
    check_log_deinit(&whole);
}

static void check_golden(const json_value *c)
{
    const json_value *out = json_get(c, "output"), *want = json_get(c, "expect");
    const json_value *tools = json_get(c, "tools"), *calls = json_get(want, "tool_calls");
    const char *name = json_get(c, "name")->text;
    const check_input in = {.bytes = out->text,
                            .n = out->n_text,
                            .tools = tools->n_items > 0 ? tools : NULL,
                            .reasoning = json_is(json_get(c, "start_state"), "reasoning")};
    output_result r;
    collect(&r, &in);
    same_text(name, &r.reasoning, json_get(want, "reasoning_content"));
    same_text(name, &r.content, json_get(want, "content"));
    if (r.n_calls != calls->n_items)
        fail_msg("%s: expected %zu calls, found %zu", name, calls->n_items, r.n_calls);
    for (size_t i = 0; i < r.n_calls; i++) {
        const json_value *call = json_at(calls, i);
        assert_string_equal(r.calls[i].name, json_get(call, "name")->text);
        same_arguments(name, &r.calls[i], json_get(call, "arguments"));
        assert_true(r.calls[i].complete);
    }
    output_result_deinit(&r);
    every_cut(name, &in);
}

static void test_golden(void **state)
{
    (void)state;
    char *data;
    size_t n, n_cases = 0;
    assert_int_equal(
        file_read("tests/data/qwen3.6/tool-parse-golden.jsonl", 1u << 20, &data, &n, NULL),
        CALLA_OK);
    for (char *line = data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_doc doc = {0};
        assert_int_equal(json_parse(&doc, line, (size_t)(end - line), NULL, NULL), CALLA_OK);
        check_golden(doc.root);
        json_free(&doc);
        n_cases++;
    }
    assert_int_equal(n_cases, 33);
    mem_free(data);
}

/* ---- Rules ----
 * A row's result is written as: reasoning | content | name{arguments} ... with "!" in front of a
 * call that is not complete (arguments closed). */

typedef struct rule {
    const char
        *start; /* "r": in reasoning, "-": without tools, "t": truncated, "c": calls after it */
    const char *output, *want;
} rule;

#define CALL(body)        "<tool_call>\n<function=get_weather>\n" body "</function>\n</tool_call>"
#define PARAM(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
#define OPEN(key)         "<tool_call>\n<function=get_weather>\n<parameter=" key ">\n"

static const rule rules[] = {
    /* Parts. */
    {"r", "<think>\n<think>\na</think>b", "a|b|"},
    {"r", "a <think> b</think>c", "a <think> b|c|"},
    {"", "a\n<think>\nb\n</think>\n\nc", "b|a\n\n\nc|"},
    {"r", "a</think>b<think>\n<think>c", "a\nc|b|"},
    {"", "\n\n\na\n\n\n", "|a|"},
    {"r", "\n \n", " ||"},
    {"r", "a\xf0\x9f\x8f\x94</thin", "a\xf0\x9f\x8f\x94</thin||"},
    {"",
     "\xff"
     "a\xe2\x82",
     "|\xef\xbf\xbd"
     "a\xef\xbf\xbd|"},
    {"-", "<think>\na</think>\n<tool_call>\n<function=f>", "a|<tool_call>\n<function=f>|"},
    /* Which tags open a call. */
    {"r", "a\n<tool_call>\nb", "a\n<tool_call>\nb||"},
    {"r", "a\n<function=f>\n</function>", "a\n<function=f>\n</function>||"},
    {"", "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
     "||f{\"a\": \"1\"}"},
    {"", "Now:\n\n  <function=f>\n</function>\n</tool_call>\n<function=x>\n</function>",
     "|Now:\n\n  \n<function=x>\n</function>|f{}"},
    {"", "<function=f>\n</function>\n<function=x>\n</function>", "||f{}x{}"},
    {"", "<function=f>\n</tool_call>\n<function=x>\n</function>\n</tool_call>",
     "|<function=x>\n</function>\n</tool_call>|f{}"},
    {"", "<function=nope>\n</function>", "|<function=nope>\n</function>|"},
    {"", "so <function=f>\n</function>", "|so <function=f>\n</function>|"},
    {"", "<function=f> is how", "|<function=f> is how|"},
    {"", "<tool_call>\n<function=f> is how", "|<tool_call>\n<function=f> is how|"},
    {"", "<tool_call>\n<function=f>\n<parameter=a\nb>",
     "|<tool_call>\n<function=f>\n<parameter=a\nb>|"},
    {"", "<tool_call>\n<function=>\n</function>", "|<tool_call>\n<function=>\n</function>|"},
    {"", "<tool_call>\n<function=a b>\n</function>", "|<tool_call>\n<function=a b>\n</function>|"},
    {"", "<tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "|<tool_call>|f{}"},
    {"", "<tool_call></tool_call>", "|<tool_call></tool_call>|"},
    {"", "a</tool_call>", "|a</tool_call>|"},
    {"", "<tool_call>\n<function=f>\n<function=list_files>\n</tool_call>", "||f{}list_files{}"},
    {"r", "a</think>\n\n" CALL("") "\n\n" CALL(""), "a||get_weather{}get_weather{}"},
    /* Text around calls. */
    {"", "a\n" CALL("") "\n\n\n b", "|a\n\n\nb|get_weather{}"},
    {"", "a\n\n" CALL("") "b", "|a\n\nb|get_weather{}"},
    {"", CALL("") "\n\nb", "|b|get_weather{}"},
    {"r", "a\n" CALL("") "\n</think>\nb", "a|b|get_weather{}"},
    {"", CALL("") "\n<think>\nb", "b||get_weather{}"},
    /* Endings of a value. */
    {"", CALL("<parameter=city>a</parameter>"), "||get_weather{\"city\": \"a\"}"},
    {"", CALL("<parameter= city >\n\na\n\n</parameter>"), "||get_weather{\"city\": \"\\na\\n\"}"},
    {"", CALL("<parameter=city>\n</parameter>"), "||get_weather{\"city\": \"\"}"},
    {"", CALL(PARAM("city", "\r\na\r")), "||get_weather{\"city\": \"\\r\\na\\r\"}"},
    {"", CALL(PARAM("city", "a</parameter>b")), "||get_weather{\"city\": \"a</parameter>b\"}"},
    {"", CALL(PARAM("city", "a\n</parameter>\n</parameter>")),
     "||get_weather{\"city\": \"a\\n</parameter>\\n</parameter>\"}"},
    {"", CALL(PARAM("city", "a\n</function>\nb")),
     "||get_weather{\"city\": \"a\\n</function>\\nb\"}"},
    {"", CALL(PARAM("city", "a\n</tool_call>\nb")),
     "||get_weather{\"city\": \"a\\n</tool_call>\\nb\"}"},
    {"", CALL(PARAM("city", "a\n<parameter=zzz>\nb")),
     "||get_weather{\"city\": \"a\\n<parameter=zzz>\\nb\"}"},
    {"", CALL(PARAM("city", "a <parameter=days>\nb")),
     "||get_weather{\"city\": \"a <parameter=days>\\nb\"}"},
    {"", CALL(PARAM("city", "a\n<parameter=city>\nb")),
     "||get_weather{\"city\": \"a\\n<parameter=city>\\nb\"}"},
    {"", CALL("<parameter=city>\n<parameter=days>\n3\n</parameter>\n"),
     "||get_weather{\"city\": \"\", \"days\": 3}"},
    {"", CALL(PARAM("city", "a\n</parameter>\n<parameter=\nb>")),
     "||get_weather{\"city\": \"a\\n</parameter>\\n<parameter=\\nb>\"}"},
    {"", OPEN("city") "a\n</function>\n<function=f>\n</function>",
     "||get_weather{\"city\": \"a\"}f{}"},
    {"", OPEN("city") "a\n</function>\n<function=f", "||!get_weather{\"city\": \"a\"}"},
    {"", OPEN("city") "a\n</tool_call>\n ", "||get_weather{\"city\": \"a\"}"},
    {"", OPEN("city") "a\n</parameter>\n</tool_call>\n<tool_call>\n<function=f>",
     "||get_weather{\"city\": \"a\"}f{}"},
    {"", OPEN("city") "a\n", "||get_weather{\"city\": \"a\"}"},
    {"", OPEN("city") "a\n</para", "||get_weather{\"city\": \"a\\n</para\"}"},
    {"", OPEN("city") "a\n</parameter>\n<par", "||!get_weather{\"city\": \"a\"}"},
    {"", CALL(PARAM("city", "a") PARAM("city", "b")),
     "||get_weather{\"city\": \"a\", \"city\": \"b\"}"},
    /* Cut by a limit. */
    {"t", "a <tool_call>\n<function=get_wea", "|a <tool_call>\n<function=get_wea|"},
    {"t", "<tool_call>\n<function=get_weather>", "||!get_weather{}"},
    {"t", "<tool_call>\n<function=get_weather>\n<param", "||!get_weather{}"},
    {"t", OPEN("city"), "||!get_weather{\"city\": \"\"}"},
    {"t", OPEN("city") "Par", "||!get_weather{\"city\": \"Par\"}"},
    {"t", OPEN("days") "12", "||!get_weather{\"days\": \"12\"}"},
    {"t", OPEN("note") "nul", "||!get_weather{\"note\": \"nul\"}"},
    {"t", OPEN("days") "12\n</parameter>", "||!get_weather{\"days\": 12}"},
    {"t", OPEN("days") "12\n</parameter>\n<parameter=city>\nP",
     "||!get_weather{\"days\": 12, \"city\": \"P\"}"},
    {"t", OPEN("days") "12\n</parameter>\n</function>", "||get_weather{\"days\": 12}"},
    {"t", OPEN("city") "a\n</function>", "||!get_weather{\"city\": \"a\"}"},
    {"t", OPEN("city") "a\n</para", "||!get_weather{\"city\": \"a\"}"},
    {"t", OPEN("city") "a</parameter", "||!get_weather{\"city\": \"a\"}"},
    {"t", OPEN("city") "a\n</", "||!get_weather{\"city\": \"a\"}"},
    {"t", OPEN("city") "a\n<", "||!get_weather{\"city\": \"a\"}"},
    {"t", OPEN("city") "a\n</parameter>\nb</tool",
     "||!get_weather{\"city\": "
     "\"a\\n</parameter>\\nb\"}"},
    {"t", OPEN("city") "a\n<parameter=da", "||!get_weather{\"city\": \"a\"}"},
    {"t", OPEN("city") "a <param", "||!get_weather{\"city\": \"a <param\"}"},
    {"t", OPEN("city") "a\n</pb", "||!get_weather{\"city\": \"a\\n</pb\"}"},
    {"t", OPEN("days") "12\n</par", "||!get_weather{\"days\": \"12\"}"},
    /* A constraint that begins behind the reasoning: no calls before. */
    {"rc", "a\n" CALL("") "\nb</think>" CALL(""), "a\n" CALL("") "\nb||get_weather{}"},
    {"rc", "a</think>b<think>c\n" CALL(""), "ac|b|get_weather{}"},
    {"c", "a<think>b\n" CALL(""), "b|a|get_weather{}"},
    {"", "<tool_call>\n<function=get_weather>\n<param", "||!get_weather{}"},
    {"", "<tool_call>\n<function=get_weather>\n<parameter=ci", "||!get_weather{}"},
    /* Calls as JSON. */
    {"",
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1,\"b\":[true, {}]}}\n</tool_call>\nx",
     "|x|f{\"a\": 1, \"b\": [true, {}]}"},
    {"", "<tool_call>{\"arguments\": {}, \"id\": \"}{\\\"\", \"name\": \"f\"}", "||f{}"},
    {"", "<tool_call>{\"name\": \"f\"}</tool_call>", "|<tool_call>{\"name\": \"f\"}</tool_call>|"},
    {"", "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
     "|<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>|"},
    {"", "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
     "|<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>|"},
    {"", "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
     "|<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>|"},
    {"", "<tool_call>{x} <tool_call>\n<function=f>\n</function>", "|<tool_call>{x} |f{}"},
    {"t", "<tool_call>{\"name\": \"f\", \"argum", "|<tool_call>{\"name\": \"f\", \"argum|"},
    {"r", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>||"},
};

static void describe(strbuf *out, const output_result *r)
{
    (void)strbuf_append(out, r->reasoning.data, r->reasoning.len);
    (void)strbuf_putc(out, '|');
    (void)strbuf_append(out, r->content.data, r->content.len);
    (void)strbuf_putc(out, '|');
    for (size_t i = 0; i < r->n_calls; i++)
        (void)strbuf_printf(out, "%s%s%s", r->calls[i].complete ? "" : "!", r->calls[i].name,
                            r->calls[i].arguments.data);
}

static check_input rule_input(const rule *r)
{
    return (check_input){.bytes = r->output,
                         .n = strlen(r->output),
                         .tools = strchr(r->start, '-') ? NULL : tools_doc.root,
                         .reasoning = strchr(r->start, 'r') != NULL,
                         .after = strchr(r->start, 'c') != NULL,
                         .truncated = strchr(r->start, 't') != NULL};
}

static void test_rules(void **state)
{
    (void)state;
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const check_input in = rule_input(&rules[i]);
        output_result r;
        strbuf found = {0};
        collect(&r, &in);
        describe(&found, &r);
        if (strcmp(found.data, rules[i].want) != 0) {
            n_wrong++;
            print_error("row %zu: %s\nexpected %s\nfound    %s\n", i, rules[i].output,
                        rules[i].want, found.data);
        }
        strbuf_deinit(&found);
        output_result_deinit(&r);
        every_cut(rules[i].output, &in);
    }
    assert_int_equal(n_wrong, 0);
}

/* ---- Types ---- */

static const struct {
    const char *schema, *text, *want;
} values[] = {
    {"{\"type\": \"integer\"}", " +007 ", "7"},
    {"{\"type\": \"integer\"}", "-0", "0"},
    {"{\"type\": \"integer\"}", "3.00", "3"},
    {"{\"type\": \"integer\"}", "-12.50e1", "-125"},
    {"{\"type\": \"integer\"}", "0.05e3", "50"},
    {"{\"type\": \"integer\"}", "1e3", "1000"},
    {"{\"type\": \"integer\"}", "1e+3", "1000"},
    {"{\"type\": \"integer\"}", "12x", "\"12x\""},
    {"{\"type\": \"integer\"}", "1e999", "\"1e999\""},
    {"{\"type\": \"integer\"}", "1.5", "\"1.5\""},
    {"{\"type\": \"integer\"}", "1e-1", "\"1e-1\""},
    {"{\"type\": \"integer\"}", "", "\"\""},
    {"{\"type\": \"integer\"}", "-", "\"-\""},
    {"{\"type\": \"uint8\"}", "200", "200"},
    {"{\"type\": \"Integer\"}", "1", "1"},
    {"{\"type\": \"number\"}", "5.0", "5.0"},
    {"{\"type\": \"number\"}", "1E400", "1E400"},
    {"{\"type\": \"number\"}", "01", "\"01\""},
    {"{\"type\": \"number\"}", "", "\"\""},
    {"{\"type\": \"number\"}", "NaN", "\"NaN\""},
    {"{\"type\": \"double\"}", "-1.5e-7", "-1.5e-7"},
    {"{\"type\": \"boolean\"}", "\tFALSE\n", "false"},
    {"{\"type\": \"boolean\"}", "1", "\"1\""},
    {"{\"type\": \"string\"}", "null", "\"null\""},
    {"{}", "null", "\"null\""},
    {"true", "1", "\"1\""},
    {"{\"type\": \"date\"}", "1", "\"1\""},
    {"{\"type\": \"string\", \"nullable\": true}", "NULL", "null"},
    {"{\"enum\": [\"a\", null]}", "null", "null"},
    {"{\"enum\": [1, 2]}", "1", "\"1\""},
    {"{\"type\": \"integer\"}", "null", "null"},
    {"{\"type\": [\"integer\", \"string\"]}", "null", "\"null\""},
    {"{\"type\": [\"string\", \"integer\"]}", "12", "12"},
    {"{\"type\": [\"string\", \"integer\"]}", "1x", "\"1x\""},
    {"{\"anyOf\": [{\"type\": \"boolean\"}, {\"oneOf\": [{\"type\": \"array\"}]}]}", "[1]", "[1]"},
    {"{\"anyOf\": []}", "1", "\"1\""},
    {"{\"$ref\": \"#/$defs/S\"}", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
    {"{\"$ref\": \"#/$defs/O\"}", "{\"a\":1}", "{\"a\": 1}"},
    {"{\"$ref\": \"#/$defs/LOOP\"}", "1", "\"1\""},
    {"{\"$ref\": \"other\"}", "{ }", "{}"},
    {"{\"allOf\": [{\"$ref\": \"#/$defs/O\"}]}", "{}", "{}"},
    {"{\"properties\": {}}", "{}", "{}"},
    {"{\"items\": {}}", "[]", "[]"},
    {"{\"type\": \"object\"}", "[1]", "\"[1]\""},
    {"{\"type\": \"object\"}", "{\"a\":1,\"a\" : 2.50}\n", "{\"a\": 1, \"a\": 2.50}"},
    {"{\"type\": \"object\"}", "{\"a\": 1,}", "{\"a\": 1}"},
    {"{\"type\": \"object\"}", "{,}", "\"{,}\""},
    {"{\"type\": \"object\"}", "{1: 2}", "\"{1: 2}\""},
    {"{\"type\": \"object\"}", "{'a': [None, False, 'it\\'s', \"q\"],}",
     "{\"a\": [null, false, \"it's\", \"q\"]}"},
    {"{\"type\": \"array\"}", "[\"\\ud83c\\udfd4 \\ud800 \\u00e9 \\/\"]",
     "[\"\xf0\x9f\x8f\x94 \xef\xbf\xbd \xc3\xa9 /\"]"},
    {"{\"type\": \"array\"}", "['\\x41\\101\\U0001f3d4\\d\\\n\\a']",
     "[\"AA\xf0\x9f\x8f\x94\\\\d\\u0007\"]"},
    {"{\"type\": \"array\"}", "['\\U00110000']", "\"['\\\\U00110000']\""},
    {"{\"type\": \"array\"}", "['a' 'b']", "\"['a' 'b']\""},
    {"{\"type\": \"array\"}", "[1 2]", "\"[1 2]\""},
    {"{\"type\": \"array\"}", "[1,", "\"[1,\""},
    {"{\"type\": \"array\"}", "['\\N{DASH}']", "\"['\\\\N{DASH}']\""},
    {"{\"type\": \"array\"}", "[\"\\ud83dxy\\ud83d\\u0041\"]",
     "[\"\xef\xbf\xbdxy\xef\xbf\xbd"
     "A\"]"},
    {"{\"type\": \"array\"}", "[\"\\u12", "\"[\\\"\\\\u12\""},
    {"{\"type\": \"boolish\"}", "true", "\"true\""},
    {"{\"type\": \"array\"}", "[1}", "\"[1}\""},
    {"{\"type\": \"array\"}", "[] []", "\"[] []\""},
    {"{\"type\": \"array\"}", "[\"\\", "\"[\\\"\\\\\""},
    {"{\"type\": \"list[int]\"}", "[ [ ] , [1 , -2e+5]]", "[[], [1, -2e+5]]"},
};

static void test_values(void **state)
{
    (void)state;
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        strbuf s = {0}, out = {0};
        json_doc doc = {0};
        value_type t;
        (void)strbuf_printf(&s,
                            "{\"$defs\": {\"S\": {\"type\": \"string\"}, \"O\": {\"type\": "
                            "\"object\"}, \"LOOP\": {\"$ref\": \"#/$defs/LOOP\"}}, "
                            "\"properties\": {\"k\": %s}}",
                            values[i].schema);
        assert_int_equal(json_parse(&doc, s.data, s.len, NULL, NULL), CALLA_OK);
        value_type_of(&t, doc.root, "k", 1);
        assert_true(value_write(&out, &t, values[i].text, strlen(values[i].text)));
        if (strcmp(out.data, values[i].want) != 0) {
            n_wrong++;
            print_error("%s as %s: expected %s, found %s\n", values[i].text, values[i].schema,
                        values[i].want, out.data);
        }
        if (value_is_text(&t)) assert_true(out.data[0] == '"');
        json_free(&doc);
        strbuf_deinit(&s);
        strbuf_deinit(&out);
    }
    assert_int_equal(n_wrong, 0);
}

static void test_deep_values(void **state)
{
    (void)state;
    char text[2 * (VALUE_DEPTH_MAX + 1)];
    for (size_t depth = VALUE_DEPTH_MAX; depth <= VALUE_DEPTH_MAX + 1; depth++) {
        strbuf out = {0};
        const value_type t = {.kinds = {VALUE_ARRAY}, .n_kinds = 1};
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_true(value_write(&out, &t, text, 2 * depth));
        assert_int_equal(out.data[0], depth <= VALUE_DEPTH_MAX ? '[' : '"');
        strbuf_deinit(&out);
    }
}

/* ---- Streaming ---- */

typedef struct stream_seen {
    size_t n_args; /* fragments */
    size_t n_bytes;
} stream_seen;

static void on_stream(void *user, const output_event *e)
{
    stream_seen *s = user;
    if (e->kind != OUTPUT_CALL_ARGS) return;
    s->n_args++;
    s->n_bytes += e->n;
}

/* A string parameter is never further behind than what may begin an ending. */
static void test_strings_stream(void **state)
{
    (void)state;
    static const char head[] = OPEN("city");
    stream_seen s = {0};
    output_parser *p;
    const output_options o = {.tools = tools_doc.root, .on_event = on_stream, .user = &s};
    assert_int_equal(output_parser_create(&p, &o, NULL), CALLA_OK);
    assert_int_equal(output_parser_push(p, head, sizeof head - 1), CALLA_OK);
    assert_int_equal(s.n_args, 1); /* {"city": " */
    for (size_t i = 1; i <= 1000; i++) {
        assert_int_equal(output_parser_push(p, "x", 1), CALLA_OK);
        assert_int_equal(s.n_args, 1 + i);
    }
    const size_t before = s.n_bytes;
    assert_int_equal(output_parser_push(p, "\n", 1), CALLA_OK);
    assert_int_equal(output_parser_push(p, "</parameter>", 12), CALLA_OK);
    assert_int_equal(s.n_bytes, before);
    assert_int_equal(output_parser_push(p, "y", 1), CALLA_OK);
    assert_int_equal(s.n_bytes, before + strlen("\\n</parameter>y"));
    assert_int_equal(output_parser_finish(p, true), CALLA_OK);
    assert_int_equal(output_parser_push(p, "y", 1), CALLA_ERR_ARGUMENT);
    assert_int_equal(output_parser_finish(p, true), CALLA_ERR_ARGUMENT);
    output_parser_destroy(p);
    output_parser_destroy(NULL);
}

/* ---- Limits ---- */

static void put_many(strbuf *b, const char *s, size_t n_bytes)
{
    const size_t end = b->len + n_bytes;
    while (b->len < end)
        (void)strbuf_puts(b, s);
    assert_false(b->failed);
}

static void test_limits(void **state)
{
    (void)state;
    /* One byte too many between two tags, in a name, in a parameter's name. */
    for (int i = 0; i < 6; i++) {
        const size_t over = i & 1;
        strbuf b = {0};
        output_result r;
        (void)strbuf_puts(&b, "<tool_call>");
        if (i / 2 == 0) put_many(&b, " ", OUTPUT_GAP_MAX + over);
        (void)strbuf_puts(&b, "<function=");
        put_many(&b, "n", i / 2 == 1 ? OUTPUT_NAME_MAX + over : 1);
        (void)strbuf_puts(&b, "><parameter=");
        put_many(&b, "k", i / 2 == 2 ? OUTPUT_NAME_MAX + over : 1);
        (void)strbuf_puts(&b, ">v</parameter></function></tool_call>");
        const check_input in = {.bytes = b.data, .n = b.len, .tools = tools_doc.root};
        collect(&r, &in);
        assert_int_equal(r.n_calls, 1 - over);
        assert_int_equal(r.content.len, over ? b.len : 0);
        output_result_deinit(&r);
        every_cut("limits", &in);
        strbuf_deinit(&b);
    }
}

static void test_long_values(void **state)
{
    (void)state;
    for (size_t over = 0; over < 2; over++) {
        strbuf b = {0};
        output_result r;
        (void)strbuf_puts(&b, OPEN("days"));
        put_many(&b, "7", OUTPUT_VALUE_MAX + over);
        (void)strbuf_puts(&b, "\n</parameter>\n</function>\n</tool_call>");
        const check_input in = {.bytes = b.data, .n = b.len, .tools = tools_doc.root};
        collect(&r, &in);
        assert_int_equal(r.n_calls, 1);
        assert_int_equal(r.calls[0].arguments.len,
                         strlen("{\"days\": }") + OUTPUT_VALUE_MAX + 3 * over);
        assert_int_equal(r.calls[0].arguments.data[9], over ? '"' : '7');
        output_result_deinit(&r);
        strbuf_deinit(&b);
    }
}

/* Minutes if anything were quadratic. */
static void test_linear(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    static const char gap[] = "                                                                "
                              "                                                                ";
    static const char *const heads[] = {"", OPEN("city"), OPEN("days"), OPEN("note")};
    static const char *const parts[] = {
        "<",
        "\n",
        "<tool_call>",
        "<tool_call>\n",
        "</parameter>",
        "\n</parameter>\n</",
        "<tool_call>\n<function=f>\n",
        "<function=f>\n<parameter=a ",
        "\n<parameter=days",
        "</parameter><parameter=",
        "</function>\n<function=f",
        "<tool_call>{\"",
        "<tool_call>{[",
        "<tool_call>{\"name\": ",
        "\n<think>\n</think>",
        CALL(""),
        "</tool_call> ",
        gap,
        "</parameter>\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
        "\xf0\x9f\x8f\x94",
    };
    for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++) {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            strbuf b = {0};
            (void)strbuf_puts(&b, heads[h]);
            put_many(&b, parts[i], BYTES / (h + 1));
            const check_input in = {.bytes = b.data, .n = b.len, .tools = tools_doc.root};
            const char *fault = check_output(&in, 9, 1);
            if (fault != NULL) fail_msg("%s%s ...: %s", heads[h], parts[i], fault);
            strbuf_deinit(&b);
        }
    }
}

/* ---- Out of memory ---- */

static const char rich[] = "<think>\na\n</think>\n\nb\n" CALL(
    PARAM("city", "P\n</parameter>\nq") PARAM("days", "12") PARAM("opts", "{'a': 'b', \"c\": [1]}")
        PARAM("note", "null")) "\n<tool_call>\n{\"name\": "
                               "\"f\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>\n" OPEN(
                                   "tags") "[1, ";

static void test_memory(void **state)
{
    (void)state;
    const check_input in = {
        .bytes = rich, .n = sizeof rich - 1, .tools = tools_doc.root, .truncated = true};
    bool ok = false;
    for (int64_t n = 0; !ok; n++) {
        output_result r = {0};
        const output_options o = {.start_in_reasoning = true,
                                  .tools = in.tools,
                                  .on_event = output_result_event,
                                  .user = &r};
        output_parser *p;
        mem_fail_after(n);
        calla_status st = output_parser_create(&p, &o, NULL);
        for (size_t i = 0; st == CALLA_OK && i < in.n; i += 7)
            st = output_parser_push(p, in.bytes + i, in.n - i < 7 ? in.n - i : 7);
        if (st == CALLA_OK) st = output_parser_finish(p, true);
        mem_fail_after(-1);
        ok = st == CALLA_OK && !r.failed;
        assert_true(st == CALLA_OK || st == CALLA_ERR_MEMORY);
        if (ok) assert_int_equal(r.n_calls, 3);
        output_parser_destroy(p);
        output_result_deinit(&r);
        assert_true(n < 10000);
    }
}

/* ---- Generated outputs ---- */

static const char *const pieces[] = {
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<think>",
    "</think>",
    "\n",
    "\n",
    "\n\n",
    " ",
    "\t",
    "\r\n",
    ">",
    "<",
    "/",
    "{",
    "}",
    "\"",
    "'",
    "\\",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "None",
    "12",
    "-3.50",
    "1e5",
    "a",
    "text ",
    "<function=f>",
    "<function=get_weather>",
    "<function=nope>",
    "<parameter=city>",
    "<parameter=days>",
    "<parameter=note>",
    "<parameter=opts>",
    "<parameter=zzz>",
    "\n</parameter>\n",
    "\n</function>\n</tool_call>",
    "<tool_call>\n<function=get_weather>\n",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {",
    "}}\n</tool_call>",
    "{\"a\": [1, {\"b\": null}]}",
    "{'a': True}",
    "\xc3\xa9",
    "\xf0\x9f\x8f\x94",
    "\xf0\x9f",
    "\xff",
    "\x01",
    "</",
    "<t",
    "<para",
};
enum { N_PIECES = sizeof pieces / sizeof pieces[0] };

static void gen_piece(strbuf *b, uint64_t *seed)
{
    (void)strbuf_puts(b, pieces[check_random(seed) % N_PIECES]);
}

static void gen_call(strbuf *b, uint64_t *seed)
{
    static const char *const keys[] = {"city", "days", "opts", "tags", "lat",  "metric",
                                       "note", "when", "any",  "ref",  "mode", "zzz"};
    (void)strbuf_puts(b, "<tool_call>\n<function=get_weather>\n");
    for (uint64_t n = check_random(seed) % 4; n > 0; n--) {
        (void)strbuf_printf(b, "<parameter=%s>\n", keys[check_random(seed) % 12]);
        for (uint64_t k = check_random(seed) % 4; k > 0; k--)
            gen_piece(b, seed);
        (void)strbuf_puts(b, "\n</parameter>\n");
    }
    (void)strbuf_puts(b, "</function>\n</tool_call>");
}

static void generate(strbuf *b, uint64_t *seed)
{
    strbuf_clear(b);
    for (uint64_t n = check_random(seed) % 12; n > 0; n--) {
        if (check_random(seed) % 4 == 0)
            gen_call(b, seed);
        else
            gen_piece(b, seed);
    }
    /* Some lose a byte, a stretch, or their end. */
    const uint64_t how = check_random(seed) % 6;
    if (b->len == 0 || how > 2) return;
    const size_t i = (size_t)(check_random(seed) % b->len);
    const size_t k = how == 0   ? 1
                     : how == 1 ? (size_t)(check_random(seed) % (b->len - i))
                                : b->len - i;
    memmove(b->data + i, b->data + i + k, b->len - i - k);
    b->len -= k;
    b->data[b->len] = '\0';
}

/* OUTPUT_FUZZ=N tests N outputs; `make check-output` a million. */
static void test_generated(void **state)
{
    (void)state;
    const char *env = getenv("OUTPUT_FUZZ"), *env_seed = getenv("OUTPUT_SEED");
    const uint64_t n = env != NULL ? strtoull(env, NULL, 10) : 20000;
    uint64_t seed = env_seed != NULL ? strtoull(env_seed, NULL, 10) : 20261129;
    static const size_t max_cuts[] = {1, 2, 5, 30};
    strbuf b = {0};
    print_message("%llu outputs, seed %llu\n", (unsigned long long)n, (unsigned long long)seed);
    for (uint64_t i = 0; i < n; i++) {
        generate(&b, &seed);
        const uint64_t r = check_random(&seed);
        const check_input in = {.bytes = b.len > 0 ? b.data : "",
                                .n = b.len,
                                .tools = r % 16 == 0 ? NULL : tools_doc.root,
                                .reasoning = (r & 16) != 0,
                                .truncated = (r & 32) != 0};
        const char *fault = check_output(&in, max_cuts[r >> 8 & 3], r);
        if (fault != NULL) fail_msg("output %llu: %s:\n%s", (unsigned long long)i, fault, in.bytes);
    }
    strbuf_deinit(&b);
}

/* Calls as the template writes them come back with the very values. */
static void test_round_trip(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 3000; i++) {
        strbuf b = {0}, want = {0}, value = {0};
        const uint64_t n = check_random(&seed) % 5;
        (void)strbuf_puts(&b, "<tool_call>\n<function=nope>\n");
        (void)strbuf_putc(&want, '{');
        for (uint64_t k = 0; k < n; k++) {
            strbuf_clear(&value);
            (void)strbuf_puts(&value, "");
            for (uint64_t j = check_random(&seed) % 6; j > 0; j--) {
                const char *piece = pieces[check_random(&seed) % N_PIECES];
                /* Broken characters do not come back, and these may be endings. */
                if (strchr(piece, '\xff') || strstr(piece, "\xf0\x9f") || strstr(piece, "</"))
                    continue;
                (void)strbuf_puts(&value, piece);
            }
            (void)strbuf_printf(&b, "<parameter=k%d>\n%s\n</parameter>\n", (int)k, value.data);
            (void)strbuf_printf(&want, "%s\"k%d\": ", k > 0 ? ", " : "", (int)k);
            (void)json_write_string(&want, value.data, value.len);
        }
        (void)strbuf_puts(&b, "</function>\n</tool_call>");
        (void)strbuf_putc(&want, '}');
        const check_input in = {.bytes = b.data, .n = b.len, .tools = tools_doc.root};
        output_result r;
        collect(&r, &in);
        assert_int_equal(r.n_calls, 1);
        if (strcmp(r.calls[0].arguments.data, want.data) != 0)
            fail_msg("expected %s\nfound %s", want.data, r.calls[0].arguments.data);
        assert_int_equal(r.content.len, 0);
        output_result_deinit(&r);
        strbuf_deinit(&b);
        strbuf_deinit(&want);
        strbuf_deinit(&value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),         cmocka_unit_test(test_rules),
        cmocka_unit_test(test_values),         cmocka_unit_test(test_deep_values),
        cmocka_unit_test(test_strings_stream), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_values),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_generated),      cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, load_tools, free_tools);
}
