#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "server/normalize.h"

typedef struct good {
    const char *in, *out;
    bool continues;
} good;

#define CALL(x) "[" U ",{\"role\":\"assistant\",\"tool_calls\":[" x "]}," U "]"
#define U       "{\"role\": \"user\", \"content\": \"u\"}"

static const good goods[] = {
    {"[" U "]", "[" U "]", false},
    /* System anywhere, several, developer, in parts. */
    {"[" U
     ",{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":[{\"type\":"
     "\"text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"}]}]",
     "[{\"role\": \"system\", \"content\": \"a\\n\\nbc\"}, " U "]", false},
    {"[{\"role\":\"system\",\"content\":null}," U "]",
     "[{\"role\": \"system\", \"content\": \"\"}, " U "]", false},
    /* Content missing, null, strings as parts, parts of other APIs. */
    {"[{\"role\":\"user\"}]", "[{\"role\": \"user\", \"content\": \"\"}]", false},
    {"[{\"role\":\"user\",\"content\":null}]", "[{\"role\": \"user\", \"content\": \"\"}]", false},
    {"[{\"role\":\"user\",\"content\":[\"a\",{\"type\":\"input_text\",\"text\":\"b\"},{\"text\":"
     "\"c\"},{\"type\":\"refusal\",\"refusal\":\"d\"}]}]",
     "[{\"role\": \"user\", \"content\": \"abcd\"}]", false},
    /* Reasoning under two names; null is none; the first name wins. */
    {"[" U ",{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"r\"}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"x\", \"reasoning_content\": \"r\"}, " U "]",
     false},
    {"[" U ",{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"r\",\"reasoning_content\":"
     "\"s\"}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"x\", \"reasoning_content\": \"s\"}, " U "]",
     false},
    {"[" U ",{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":null}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"x\"}, " U "]", false},
    /* Reasoning left open before a call written as text. */
    {"[" U ",{\"role\":\"assistant\",\"content\":\"<think>r\\n<tool_call>\\nz\"}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"<tool_call>\\nz\", \"reasoning_content\": "
     "\"r\\n\"}, " U "]",
     false},
    {"[" U ",{\"role\":\"assistant\",\"content\":\"<think>r</think><tool_call>\"}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"<think>r</think><tool_call>\"}, " U "]",
     false},
    /* Arguments: JSON in a string, an object, empty, missing. */
    {"[" U ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
     "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},{\"function\":{\"name\":"
     "\"g\",\"arguments\":{\"b\":2}}},{\"function\":{\"name\":\"h\",\"arguments\":\" "
     "\"}},{\"name\":\"i\"}]}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"f\", "
     "\"arguments\": {\"a\": 1}, \"id\": \"1\"}, {\"name\": \"g\", \"arguments\": {\"b\": 2}}, "
     "{\"name\": \"h\", \"arguments\": {}}, {\"name\": \"i\", \"arguments\": {}}]}, " U "]",
     false},
    /* A custom tool's text. */
    {CALL("{\"id\":\"1\",\"type\":\"custom\",\"custom\":{\"name\":\"f\",\"input\":\"a\\nb\"}}"),
     "[" U ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"f\", "
     "\"arguments\": {\"input\": \"a\\nb\"}, \"id\": \"1\"}]}, " U "]",
     false},
    {"[" U ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":null,\"function_call\":{"
     "\"name\":\"f\",\"arguments\":\"{}\"}}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"f\", "
     "\"arguments\": {}}]}, " U "]",
     false},
    {"[" U ",{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"x\"}, " U "]", false},
    /* Results in the order of the calls; strangers last. */
    {"[" U ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}},"
     "{\"id\":\"2\",\"function\":{\"name\":\"g\"}}]},{\"role\":\"tool\",\"content\":\"?\"},{"
     "\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":\"two\"},{\"role\":\"tool\","
     "\"tool_call_id\":\"1\",\"content\":\"one\"}," U "]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"f\", "
     "\"arguments\": {}, \"id\": \"1\"}, {\"name\": \"g\", \"arguments\": {}, \"id\": \"2\"}]}, "
     "{\"role\": \"tool\", \"content\": \"one\", \"tool_call_id\": \"1\"}, {\"role\": \"tool\", "
     "\"content\": \"two\", \"tool_call_id\": \"2\"}, {\"role\": \"tool\", \"content\": \"?\"}, " U
     "]",
     false},
    /* The last message is the assistant's. */
    {"[" U ",{\"role\":\"assistant\",\"content\":\"x\"}]",
     "[" U ", {\"role\": \"assistant\", \"content\": \"x\"}]", true},
};

static bool normalize(normal_chat *c, const json_value *messages, const int32_t *origin,
                      api_error *e)
{
    const normal_source from = {
        .messages = messages, .name = origin != NULL ? "input" : "messages", .origin = origin};
    return normalize_messages(c, &from, e);
}

static void run_good(const good *g)
{
    json_doc doc;
    calla_error err;
    api_error e;
    normal_chat c;
    strbuf out = {0};
    if (json_parse(&doc, g->in, strlen(g->in), NULL, &err) != CALLA_OK)
        fail_msg("%s: %s", g->in, err.message);
    if (!normalize(&c, doc.root, NULL, &e)) fail_msg("%s: %s", g->in, e.message);
    assert_true(json_write(&out, c.messages));
    assert_string_equal(out.data, g->out);
    assert_int_equal(c.continues, g->continues);
    strbuf_deinit(&out);
    normalize_deinit(&c);
    json_free(&doc);
}

static void test_good(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++)
        run_good(&goods[i]);
}

typedef struct bad {
    const char *in, *param;
} bad;

#define F "messages[1].tool_calls[0].function"

static const bad bads[] = {
    {"{}", "messages"},
    {"[]", "messages"},
    {"[{\"role\":\"system\",\"content\":\"x\"}]", "messages"},
    {"[{\"role\":\"assistant\",\"content\":\"x\"}]", "messages"},
    /* A message of the system behind it is no excuse, and is not to blame. */
    {"[" U ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]},"
     "{\"role\":\"system\",\"content\":\"x\"}]",
     "messages[1]"},
    {"\"x\"", "messages"},
    {"[1]", "messages[0]"},
    {"[" U ",null]", "messages[1]"},
    {"[{\"content\":\"x\"}]", "messages[0].role"},
    {"[{\"role\":1}]", "messages[0].role"},
    {"[{\"role\":\"robot\"}]", "messages[0].role"},
    {"[{\"role\":\"user\",\"content\":1}]", "messages[0].content"},
    {"[{\"role\":\"user\",\"content\":{}}]", "messages[0].content"},
    {"[{\"role\":\"user\",\"content\":true}]", "messages[0].content"},
    {"[{\"role\":\"user\",\"content\":[1]}]", "messages[0].content[0]"},
    {"[{\"role\":\"user\",\"content\":[[]]}]", "messages[0].content[0]"},
    {"[{\"role\":\"user\",\"content\":[{}]}]", "messages[0].content[0]"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]",
     "messages[0].content[0].text"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","
     "\"image_url\":{\"url\":\"x\"}}]}]",
     "messages[0].content[1]"},
    {"[" U ",{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]",
     "messages[1].content[0]"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}]", "messages[0].content[0]"},
    {"[" U ",{\"role\":\"assistant\",\"reasoning_content\":1}]", "messages[1].reasoning_content"},
    {"[" U ",{\"role\":\"assistant\",\"reasoning\":{}}]", "messages[1].reasoning"},
    {"[" U ",{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[1].tool_calls"},
    {"[" U ",{\"role\":\"assistant\",\"tool_calls\":\"x\"}]", "messages[1].tool_calls"},
    {CALL("1"), "messages[1].tool_calls[0]"},
    {CALL("{\"type\":\"search\",\"function\":{\"name\":\"f\"}}"), "messages[1].tool_calls[0].type"},
    {CALL("{\"type\":\"custom\",\"function\":{\"name\":\"f\"}}"), "messages[1].tool_calls[0].name"},
    {CALL("{\"type\":\"custom\",\"custom\":{\"name\":\"f\",\"input\":{}}}"),
     "messages[1].tool_calls[0].custom.input"},
    {CALL("{\"id\":5,\"function\":{\"name\":\"f\"}}"), "messages[1].tool_calls[0].id"},
    {CALL("{\"function\":{}}"), F ".name"},
    {CALL("{\"function\":{\"name\":7}}"), F ".name"},
    {CALL("{\"function\":{\"name\":\"\"}}"), F ".name"},
    {CALL("{\"function\":{\"name\":\"a b\"}}"), F ".name"},
    {CALL("{\"function\":{\"name\":\"a>\"}}"), F ".name"},
    {CALL("{\"function\":{\"name\":\"a\\u0000b\"}}"), F ".name"},
    {CALL("{\"function\":{\"name\":\"f\",\"arguments\":\"{]\"}}"), F ".arguments"},
    {CALL("{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}"), F ".arguments"},
    {CALL("{\"function\":{\"name\":\"f\",\"arguments\":3}}"), F ".arguments"},
    {"[" U ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]",
     "messages[1]"},
    {"[{\"role\":\"tool\",\"content\":\"x\"}," U "]", "messages[0]"},
    {"[" U ",{\"role\":\"tool\",\"tool_call_id\":3,\"content\":\"x\"}]",
     "messages[1].tool_call_id"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        json_doc doc;
        api_error e;
        normal_chat c;
        assert_int_equal(json_parse(&doc, bads[i].in, strlen(bads[i].in), NULL, NULL), CALLA_OK);
        if (normalize(&c, doc.root, NULL, &e)) fail_msg("accepted: %s", bads[i].in);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, bads[i].param);
        assert_memory_equal(e.message, bads[i].param, strlen(bads[i].param));
        assert_null(c.messages);
        json_free(&doc);
    }
}

/* What was made from another API's items is named by them. */
static void test_origin(void **state)
{
    static const int32_t origin[] = {0, 7, 9};
    static const bad made[] = {
        {"[{\"role\":\"system\"},{\"role\":\"tool\"}]", "input[7]"},
        {"[" U ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]},"
         "{\"role\":\"system\",\"content\":\"x\"}]",
         "input[7]"},
        {"[" U ",{\"role\":\"user\",\"content\":1}]", "input[7]"},
        {"[{\"role\":\"system\"},{\"role\":\"assistant\",\"content\":\"x\"}]", "input"},
        {"[]", "input"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        json_doc doc;
        api_error e;
        normal_chat c;
        assert_int_equal(json_parse(&doc, made[i].in, strlen(made[i].in), NULL, NULL), CALLA_OK);
        if (normalize(&c, doc.root, origin, &e)) fail_msg("accepted: %s", made[i].in);
        assert_string_equal(e.param, made[i].param);
        assert_memory_equal(e.message, made[i].param, strlen(made[i].param));
        json_free(&doc);
    }
}

static const bad bad_tools[] = {
    {"{}", "tools"},
    {"\"x\"", "tools"},
    {"[1]", "tools[0]"},
    {"[{}]", "tools[0].type"},
    {"[{\"type\":1}]", "tools[0].type"},
    {"[{\"type\":\"web\"}]", "tools[0].type"},
    {"[{\"type\":\"function\"}]", "tools[0].function"},
    {"[{\"type\":\"function\",\"function\":\"f\"}]", "tools[0].function"},
    {"[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools[0].function.name"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":1}}]",
     "tools[0].function.description"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]",
     "tools[0].function.parameters"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]",
     "tools[0].function.strict"},
    {"[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":"
     "{\"name\":\"a\"}}]",
     "tools[1].function.name"},
};

static void test_tools(void **state)
{
    static const char fine[] = "[{\"type\":\"function\",\"function\":{\"name\":\"a.b-c_D\","
                               "\"parameters\":null,\"strict\":true,\"x\":1}}]";
    static const tool_places own = {.flat = false};
    json_doc doc;
    api_error e;
    (void)state;
    for (size_t i = 0; i < sizeof bad_tools / sizeof *bad_tools; i++) {
        const char *in = bad_tools[i].in;
        assert_int_equal(json_parse(&doc, in, strlen(in), NULL, NULL), CALLA_OK);
        if (normalize_tools(doc.root, &own, &e)) fail_msg("accepted: %s", in);
        assert_string_equal(e.param, bad_tools[i].param);
        json_free(&doc);
    }
    assert_int_equal(json_parse(&doc, fine, strlen(fine), NULL, NULL), CALLA_OK);
    assert_true(normalize_tools(doc.root, &own, &e));
    assert_true(normalize_tools(NULL, &own, &e));
    json_free(&doc);
    /* The last of the table, made from a flat list whose first two were left out. */
    static const int32_t origin[] = {2, 3};
    const tool_places made = {.flat = true, .origin = origin};
    const char *twice = bad_tools[sizeof bad_tools / sizeof *bad_tools - 1].in;
    assert_int_equal(json_parse(&doc, twice, strlen(twice), NULL, NULL), CALLA_OK);
    assert_false(normalize_tools(doc.root, &made, &e));
    assert_string_equal(e.param, "tools[3].name");
    json_free(&doc);
}

/* Every allocation fails once: an error, no crash, nothing left. */
static void test_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) {
        json_doc doc;
        assert_int_equal(json_parse(&doc, goods[i].in, strlen(goods[i].in), NULL, NULL), CALLA_OK);
        for (int64_t k = 0;; k++) {
            api_error e = {0};
            normal_chat c;
            assert_true(k < 1000);
            mem_fail_after(k);
            const bool ok = normalize(&c, doc.root, NULL, &e);
            mem_fail_after(-1);
            if (ok) {
                normalize_deinit(&c);
                break;
            }
            assert_int_equal(e.status, 503);
        }
        json_free(&doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),  cmocka_unit_test(test_bad),    cmocka_unit_test(test_origin),
        cmocka_unit_test(test_tools), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
