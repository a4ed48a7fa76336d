/* Tool calls through the APIs, on the demonstration model at temperature 0: cut off by max_tokens
 * and echoed, one at a time, restricted to some tools; and answers that were forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "unit/api_support.h"

static world w;

#define COLD     "\"temperature\":0"
#define NO_THINK "\"chat_template_kwargs\":{\"enable_thinking\":false}"
#define OSLO     "What is the weather like in Oslo today?"
#define TWO      "What is the weather in Oslo and in Geneva?"
#define CITY                                                                                       \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"Name "   \
    "of the city\"}},\"required\":[\"city\"]}"
#define MINUTES                                                                                    \
    "{\"type\":\"object\",\"properties\":{\"minutes\":{\"type\":\"integer\",\"description\":"      \
    "\"Length in minutes\"}},\"required\":[\"minutes\"]}"
#define W_ABOUT     "\"name\":\"weather\",\"description\":\"Current weather conditions.\""
#define T_ABOUT     "\"name\":\"set_timer\",\"description\":\"Sets a countdown.\""
#define F(about, p) "{\"type\":\"function\",\"function\":{" about ",\"parameters\":" p "}}"
#define R(about, p) "{\"type\":\"function\"," about ",\"parameters\":" p "}"
#define A(about, p) "{" about ",\"input_schema\":" p "}"

/* One API: how it asks, and where its answer has what. */
typedef struct api {
    const char *name;
    http_handler fn;
    const char *list;  /* member that has the conversation */
    const char *tools; /* weather and set_timer */
    const char *limit, *off, *serial;
} api;

static const api apis[] = {
    {"chat", api_chat, "messages", F(W_ABOUT, CITY) "," F(T_ABOUT, MINUTES), "max_tokens", NO_THINK,
     "\"parallel_tool_calls\":false"},
    {"messages", api_messages, "messages", A(W_ABOUT, CITY) "," A(T_ABOUT, MINUTES), "max_tokens",
     "\"x\":0", "\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}"},
    {"responses", api_responses, "input", R(W_ABOUT, CITY) "," R(T_ABOUT, MINUTES),
     "max_output_tokens", "\"reasoning\":{\"effort\":\"none\"}", "\"parallel_tool_calls\":false"},
};

/* The body for a question, what followed it, and further members. */
static fake *ask_api(const api *a, const char *question, const char *later, const char *more)
{
    strbuf body = {0};
    (void)strbuf_printf(&body,
                        "{" COLD ",%s,\"tools\":[%s],\"%s\":[{\"role\":\"user\",\"content\":"
                        "\"%s\"}%s]%s}",
                        a->off, a->tools, a->list, question, later, more);
    fake *f = ask(&w, a->fn, body.data);
    if (f->status != 0 && f->status != 200) fail_msg("%s\n%s", body.data, f->body.data);
    strbuf_deinit(&body);
    return f;
}

static const json_value *items_of(const api *a, const fake *f)
{
    return at(f->doc.root, a->fn == api_messages ? "content" : "output");
}

/* The first call of an answer, as NAME and its arguments' text; NULL when there is none. */
static const json_value *call_of(const api *a, const fake *f, size_t i)
{
    if (a->fn == api_chat) {
        char path[64];
        (void)snprintf(path, sizeof path, "choices.0.message.tool_calls.%zu.function", i);
        return at(f->doc.root, path);
    }
    for (const json_value *m = items_of(a, f)->first; m != NULL; m = m->next)
        if ((json_is(json_get(m, "type"), "tool_use") ||
             json_is(json_get(m, "type"), "function_call")) &&
            i-- == 0)
            return m;
    return NULL;
}

static bool was_cut(const api *a, const fake *f)
{
    const json_value *root = f->doc.root;
    return json_is(a->fn == api_chat       ? at(root, "choices.0.finish_reason")
                   : a->fn == api_messages ? at(root, "stop_reason")
                                           : at(root, "incomplete_details.reason"),
                   a->fn == api_chat ? "length" : a->limit);
}

/* The answer as the client sends it back, followed by a complaint about the call, if it has one. */
static void put_echo(strbuf *out, const api *a, const fake *f)
{
    const json_value *call = call_of(a, f, 0);
    (void)strbuf_putc(out, ',');
    if (a->fn == api_chat) {
        (void)json_write(out, at(f->doc.root, "choices.0.message"));
        if (call != NULL)
            (void)strbuf_printf(out,
                                ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"Error: "
                                "the arguments are not valid JSON\"}",
                                text_at(f, "choices.0.message.tool_calls.0.id"));
    } else if (a->fn == api_messages) {
        (void)strbuf_puts(out, "{\"role\":\"assistant\",\"content\":");
        (void)json_write(out, items_of(a, f));
        (void)strbuf_puts(out, "}");
        if (call != NULL)
            (void)strbuf_printf(out,
                                ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
                                "\"tool_use_id\":\"%s\",\"is_error\":true,\"content\":\"cut\"}]}",
                                json_get(call, "id")->text);
    } else {
        for (const json_value *m = items_of(a, f)->first; m != NULL; m = m->next) {
            (void)json_write(out, m);
            (void)strbuf_putc(out, ',');
        }
        out->len--;
        if (call != NULL)
            (void)strbuf_printf(out,
                                ",{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":"
                                "\"failed to parse the arguments\"}",
                                json_get(call, "call_id")->text);
    }
    (void)strbuf_puts(out, ",{\"role\":\"user\",\"content\":\"" OSLO "\"}");
}

#define WHOLE "{\"city\": \"Oslo\"}"

/* Unfinished arguments are no JSON where they are a text, so that nobody runs half a call. */
static unsigned check_cut_call(const api *a, const json_value *call)
{
    const json_value *args = json_get(call, a->fn == api_messages ? "input" : "arguments");
    json_doc doc = {0};
    if (a->fn == api_messages) {
        assert_int_equal(args->type, JSON_OBJECT);
        const json_value *city = json_get(args, "city");
        if (city != NULL) assert_memory_equal(city->text, "Oslo", city->n_text);
        return city == NULL || city->n_text < 4;
    }
    assert_memory_equal(args->text, WHOLE, args->n_text);
    if (args->n_text == sizeof WHOLE - 1) return 0; /* the cut is behind the call's end */
    assert_int_not_equal(json_parse(&doc, args->text, args->n_text, NULL, NULL), CALLA_OK);
    json_free(&doc);
    return 1;
}

/* Every length: the conversation goes on behind the cut, and the next turn's call is whole. */
static void test_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
        const api *a = &apis[i];
        unsigned n_calls = 0;
        bool cut = true;
        for (unsigned n = 1; cut; n++) {
            char limit[64];
            strbuf echo = {0};
            assert_true(n < 100);
            (void)snprintf(limit, sizeof limit, ",\"%s\":%u", a->limit, n);
            fake *f = ask_api(a, OSLO, "", limit);
            cut = was_cut(a, f);
            const json_value *call = call_of(a, f, 0);
            if (cut && call != NULL) {
                n_calls += check_cut_call(a, call);
            }
            if (!cut) assert_non_null(call);
            if (a->fn == api_chat || items_of(a, f)->n_items != 0) {
                put_echo(&echo, a, f);
                fake *next = ask_api(a, OSLO, echo.data, "");
                assert_non_null(call_of(a, next, 0));
                assert_false(was_cut(a, next));
                fake_free(next);
            }
            strbuf_deinit(&echo);
            fake_free(f);
        }
        print_message("%s: %u lengths with a call that was cut off\n", a->name, n_calls);
        assert_in_range(n_calls, 3, 100);
    }
}

/* ---- One call at most ---- */

static size_t count_text(const fake *f, const char *text)
{
    size_t n = 0;
    for (const char *s = f->sse.log.data; (s = strstr(s, text)) != NULL; s++)
        n++;
    return n;
}

static void test_serial(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
        const api *a = &apis[i];
        char more[128];
        fake *f = ask_api(a, TWO, "", "");
        assert_non_null(call_of(a, f, 1)); /* the model wants two */
        fake_free(f);
        (void)snprintf(more, sizeof more, ",%s", a->serial);
        f = ask_api(a, TWO, "", more);
        assert_non_null(call_of(a, f, 0));
        assert_null(call_of(a, f, 1));
        assert_false(was_cut(a, f));
        if (a->fn == api_chat)
            assert_string_equal(text_at(f, "choices.0.finish_reason"), "tool_calls");
        if (a->fn == api_messages) assert_string_equal(text_at(f, "stop_reason"), "tool_use");
        if (a->fn == api_responses) assert_string_equal(text_at(f, "status"), "completed");
        fake_free(f);
        (void)snprintf(more, sizeof more, ",\"stream\":true,%s", a->serial);
        f = ask_api(a, TWO, "", more);
        assert_int_equal(count_text(f, "Geneva"), 0);
        assert_int_equal(count_text(f, a->fn == api_chat       ? "\"name\":\"weather\",\"arg"
                                       : a->fn == api_messages ? "\"type\":\"tool_use\""
                                                               : "output_item.done\",\"seq"),
                         1);
        fake_free(f);
    }
}

/* With a constraint, too; and the answer is remembered although the model went on. */
static void test_serial_again(void **state)
{
    const api *a = &apis[0];
    (void)state;
    fake *f = ask_api(a, TWO, "", ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false");
    assert_non_null(call_of(a, f, 0));
    assert_null(call_of(a, f, 1));
    fake_free(f);
    static const char thinking[] = ",\"chat_template_kwargs\":{\"enable_thinking\":true}";
    char more[160];
    (void)snprintf(more, sizeof more, "%s,%s", thinking, a->serial);
    f = ask_api(a, TWO, "", more);
    assert_null(call_of(a, f, 1));
    const json_value *thought = at(f->doc.root, "choices.0.message.reasoning_content");
    assert_non_null(thought);
    strbuf echo = {0};
    (void)strbuf_printf(&echo,
                        ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{"
                        "\"name\":\"weather\",\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}}]},{"
                        "\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"windy\"}");
    fake *known = ask_api(a, TWO, echo.data, more);
    char *city = strstr(echo.data, "Oslo"); /* another call: rendered without its thinking */
    memcpy(city, "Rome", 4);
    fake *unknown = ask_api(a, TWO, echo.data, more);
    const long n_known = strtol(text_at(known, "usage.prompt_tokens"), NULL, 10);
    const long n_unknown = strtol(text_at(unknown, "usage.prompt_tokens"), NULL, 10);
    assert_true(n_known > n_unknown + 5);
    fake_free(known);
    fake_free(unknown);
    strbuf_deinit(&echo);
    fake_free(f);
}

/* ---- Some tools only ---- */

#define ALLOWED(mode, tools)                                                                       \
    ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"" mode             \
    "\",\"tools\":[" tools "]}}"
#define ALLOWED_R(mode, tools)                                                                     \
    ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"" mode "\",\"tools\":[" tools "]}"
#define CHAT_NAME(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define NAME(name)      "{\"type\":\"function\",\"name\":\"" name "\"}"

static void allowed(const api *a, const char *choice, const char *first, bool thinking)
{
    strbuf more = {0};
    (void)strbuf_puts(&more, choice);
    if (thinking) (void)strbuf_puts(&more, ",\"chat_template_kwargs\":{\"enable_thinking\":true}");
    fake *f = ask_api(a, OSLO, "", more.data),
         *free = ask_api(a, OSLO, "", more.data + strlen(choice));
    const char *n_prompt = a->fn == api_chat ? "usage.prompt_tokens" : "usage.input_tokens";
    assert_string_equal(text_at(f, n_prompt), text_at(free, n_prompt)); /* the same prompt */
    const json_value *call = call_of(a, f, 0);
    if (first == NULL && call != NULL) fail_msg("%s: %s", choice, f->body.data);
    if (first != NULL && (call == NULL || !json_is(json_get(call, "name"), first)))
        fail_msg("%s: no %s in %s", choice, first, f->body.data);
    for (size_t i = 1; first != NULL && (call = call_of(a, f, i)) != NULL; i++)
        assert_true(json_is(json_get(call, "name"), first));
    fake_free(f);
    fake_free(free);
    strbuf_deinit(&more);
}

static void test_allowed(void **state)
{
    const api *chat = &apis[0], *responses = &apis[2];
    (void)state;
    for (int thinking = 0; thinking < 2; thinking++) {
        allowed(chat, ALLOWED("auto", CHAT_NAME("weather")), "weather", thinking != 0);
        allowed(chat, ALLOWED("required", CHAT_NAME("set_timer")), "set_timer", thinking != 0);
        allowed(chat, ALLOWED("auto", CHAT_NAME("weather") "," CHAT_NAME("set_timer")), "weather",
                thinking != 0);
    }
    allowed(responses, ALLOWED_R("auto", NAME("weather")), "weather", false);
    allowed(responses, ALLOWED_R("required", NAME("set_timer")), "set_timer", false);
    /* The one that the model wants is not among them. */
    fake *f = ask_api(chat, OSLO, "", ALLOWED("auto", CHAT_NAME("set_timer")) ",\"max_tokens\":60");
    const json_value *call = call_of(chat, f, 0);
    if (call != NULL) assert_true(json_is(json_get(call, "name"), "set_timer"));
    assert_null(strstr(f->body.data, "\"weather\""));
    fake_free(f);
}

/* ---- Custom tools, namespaces ---- */

#define NOTE        "\"name\":\"note\",\"description\":\"Writes a note.\""
#define NOTE_CHAT   ",\"tools\":[{\"type\":\"custom\",\"custom\":{" NOTE "}}]"
#define NOTE_R      ",\"tools\":[{\"type\":\"custom\"," NOTE "}]"
#define CHOOSE_CHAT ",\"tool_choice\":{\"type\":\"custom\",\"custom\":{\"name\":\"note\"}}"
#define CHOOSE_R    ",\"tool_choice\":{\"type\":\"custom\",\"name\":\"note\"}"
#define ONE         ",\"parallel_tool_calls\":false,\"max_tokens\":200,\"max_output_tokens\":200"

/* Whole, streamed, cut off and sent back. */
static void test_custom(void **state)
{
    const api *chat = &apis[0];
    (void)state;
    fake *f = ask_api(chat, OSLO, "", NOTE_CHAT CHOOSE_CHAT ONE);
    assert_string_equal(text_at(f, "choices.0.message.tool_calls.0.type"), "custom");
    assert_string_equal(text_at(f, "choices.0.message.tool_calls.0.custom.name"), "note");
    const char *input = text_at(f, "choices.0.message.tool_calls.0.custom.input");
    assert_null(strstr(input, "{\"input\""));
    assert_true(strlen(input) > 2);
    fake *s = ask_api(chat, OSLO, "", NOTE_CHAT CHOOSE_CHAT ONE ",\"stream\":true");
    strbuf joined = {0};
    join_events(s, "choices.0.delta.tool_calls.0.custom.input", &joined);
    assert_string_equal(joined.data, input);
    assert_int_equal(count_text(s, "\"type\":\"custom\""), 1);
    fake_free(s);
    strbuf_clear(&joined);
    (void)strbuf_putc(&joined, ',');
    (void)json_write(&joined, at(f->doc.root, "choices.0.message"));
    (void)strbuf_printf(&joined, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"ok\"}",
                        text_at(f, "choices.0.message.tool_calls.0.id"));
    s = ask_api(chat, OSLO, joined.data, NOTE_CHAT ",\"max_tokens\":5");
    const long n_first = strtol(text_at(f, "usage.total_tokens"), NULL, 10);
    const char *cached = text_at(s, "usage.prompt_tokens_details.cached_tokens");
    assert_true(strtol(cached, NULL, 10) >= n_first - 8); /* it is remembered */
    fake_free(s);
    s = ask_api(chat, OSLO, "", NOTE_CHAT CHOOSE_CHAT ",\"max_tokens\":22");
    assert_string_equal(text_at(s, "choices.0.finish_reason"), "length");
    const json_value *cut = at(s->doc.root, "choices.0.message.tool_calls.0.custom.input");
    assert_non_null(cut);
    assert_memory_equal(cut->text, input, cut->n_text);
    fake_free(s);
    strbuf_deinit(&joined);
    fake_free(f);
}

static void test_custom_responses(void **state)
{
    const api *a = &apis[2];
    strbuf echo = {0}, joined = {0};
    (void)state;
    fake *f = ask_api(a, OSLO, "", NOTE_R CHOOSE_R ONE);
    assert_string_equal(text_at(f, "output.0.type"), "custom_tool_call");
    assert_memory_equal(text_at(f, "output.0.id"), "ctc_", 4);
    assert_null(at(f->doc.root, "output.0.arguments"));
    (void)strbuf_putc(&echo, ',');
    (void)json_write(&echo, at(f->doc.root, "output.0"));
    (void)strbuf_printf(
        &echo, ",{\"type\":\"custom_tool_call_output\",\"call_id\":\"%s\",\"output\":\"ok\"}",
        text_at(f, "output.0.call_id"));
    fake *next = ask_api(a, OSLO, echo.data, NOTE_R ",\"max_output_tokens\":5");
    assert_int_equal(next->status, 200);
    fake_free(next);
    fake *s = ask_api(a, OSLO, "", NOTE_R CHOOSE_R ONE ",\"stream\":true");
    join_events(s, "delta", &joined);
    assert_string_equal(joined.data, text_at(f, "output.0.input"));
    assert_int_equal(count_text(s, "event: response.custom_tool_call_input.done"), 1);
    assert_int_equal(count_text(s, "function_call"), 0);
    fake_free(s);
    fake_free(f);
    strbuf_deinit(&echo);
    strbuf_deinit(&joined);
}

static void test_namespace(void **state)
{
    const api *a = &apis[2];
    (void)state;
    fake *f =
        ask_api(a, OSLO, "",
                ",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"namespace\",\"name\":\"sky\","
                "\"description\":\"x\",\"tools\":[" R(W_ABOUT, CITY) "]}]");
    assert_string_equal(text_at(f, "output.0.name"), "weather");
    assert_string_equal(text_at(f, "output.0.namespace"), "sky");
    assert_string_equal(text_at(f, "output.0.arguments"), WHOLE);
    fake_free(f);
}

/* Tools whose schema the server knows; the model has not met them, so that a call is asked for. */
static void test_known_tools(void **state)
{
    static const struct {
        const char *type, *name, *member;
    } rows[] = {
        {"bash_20250124", "bash", NULL},
        {"text_editor_20250124", "str_replace_editor", "command"},
        {"text_editor_20250728", "str_replace_based_edit_tool", "path"},
        {"memory_20250818", "memory", "command"},
    };
    const api *a = &apis[1];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strbuf more = {0};
        (void)strbuf_printf(&more,
                            ",\"tools\":[{\"type\":\"%s\",\"name\":\"%s\",\"cache_control\":null}],"
                            "\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true},"
                            "\"max_tokens\":300",
                            rows[i].type, rows[i].name);
        fake *f = ask_api(a, OSLO, "", more.data);
        assert_string_equal(text_at(f, "content.0.name"), rows[i].name);
        if (rows[i].member != NULL && !was_cut(a, f))
            assert_non_null(json_get(at(f->doc.root, "content.0.input"), rows[i].member));
        fake_free(f);
        strbuf_deinit(&more);
    }
}

typedef struct refusal {
    size_t api;
    const char *more, *param;
} refusal;

static void test_refusals(void **state)
{
    static const refusal rows[] = {
        {0, ALLOWED("all", CHAT_NAME("weather")), "tool_choice.allowed_tools.mode"},
        {0, ALLOWED("auto", ""), "tool_choice.allowed_tools.tools"},
        {0, ALLOWED("auto", "1"), "tool_choice.allowed_tools.tools[0].name"},
        {0, ALLOWED("auto", CHAT_NAME("weather") "," CHAT_NAME("x")),
         "tool_choice.allowed_tools.tools[1].function.name"},
        {0, ALLOWED("auto", CHAT_NAME("weather")) ",\"tools\":[]",
         "tool_choice.allowed_tools.tools"},
        {0, ",\"tool_choice\":{\"type\":\"allowed_tools\"}", "tool_choice.mode"},
        {0, ",\"tool_choice\":{\"type\":\"web_search\"}", "tool_choice.type"},
        {0, ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice.name"},
        {0, ",\"tool_choice\":{\"type\":\"function\",\"function\":{}}",
         "tool_choice.function.name"},
        {0, ",\"tools\":[{\"type\":\"custom\",\"custom\":{}}]", "tools[0].custom.name"},
        {0, ",\"tools\":[{\"type\":\"web_search\"}]", "tools[0].type"},
        {0, NOTE_CHAT ",\"tool_choice\":{\"type\":\"custom\",\"custom\":{\"name\":\"x\"}}",
         "tool_choice.custom.name"},
        {0, ",\"functions\":[{\"name\":\"f\"}]", "functions"},
        {0, ",\"modalities\":[\"text\",\"audio\"]", "modalities[1]"},
        {1, ",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]",
         "tools[0].type"},
        {1, ",\"tools\":[{\"type\":\"bash_2\",\"name\":\"bash\"}]", "tools[0].type"},
        {1, ",\"tools\":[{\"type\":\"computer_20250124\",\"name\":\"computer\"}]", "tools[0].type"},
        {1, ",\"tools\":[{\"type\":\"bash_20250124\"}]", "tools[0].name"},
        {1, ",\"tools\":[{\"type\":1}]", "tools[0].type"},
        {2, ",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"local_shell\"}]", "tools[1].type"},
        {2, ",\"tools\":[{\"type\":\"custom\",\"name\":\"f\",\"format\":1}]", "tools[0].format"},
        {2, ",\"tools\":[{\"type\":\"namespace\",\"name\":\"f\"}]", "tools[0].tools"},
        {2,
         ",\"tools\":[{\"type\":\"namespace\",\"name\":\"f\",\"tools\":[{\"type\":\"namespace\"}]}"
         "]",
         "tools[0].tools[0].type"},
        {2, ",\"prompt\":{\"id\":\"p\"}", "prompt"},
        {2, ",\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]", "input[0].type"},
        {2, ALLOWED_R("", NAME("weather")), "tool_choice.mode"},
        {2, ALLOWED_R("auto", NAME("y")), "tool_choice.tools[0].name"},
        {2, ",\"tool_choice\":{\"type\":\"function\",\"name\":\"y\"}", "tool_choice.name"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const api *a = &apis[rows[i].api];
        strbuf body = {0};
        (void)strbuf_printf(&body,
                            "{\"tools\":[%s],\"%s\":[{\"role\":\"user\",\"content\":\"x\"}]%s}",
                            a->tools, a->list, rows[i].more);
        fake *f = ask(&w, a->fn, body.data);
        if (f->status != 400) fail_msg("%u for %s", f->status, body.data);
        assert_string_equal(f->param, rows[i].param);
        fake_free(f);
        strbuf_deinit(&body);
    }
}

/* ---- Forgetting ---- */

/* Tokens of the prompt of a second turn whose first had thinking that the client left out. */
static long second_prompt(api_ctx *ctx)
{
    static const char body[] = "{" COLD ",\"tools\":[" F(
        W_ABOUT,
        CITY) "],\"messages\":[{\"role\":\"user\",\"content\":"
              "\"" OSLO
              "\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":"
              "\"weather\",\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}}]},{\"role\":\"tool\","
              "\"tool_call_id\":\"1\",\"content\":\"windy\"}]}";
    world here = {.ctx = ctx};
    fake *f = ask(&here, api_tokenize, body);
    const long n = strtol(text_at(f, "count"), NULL, 10);
    fake_free(f);
    return n;
}

static void first_turn(api_ctx *ctx, const char *question)
{
    world here = {.ctx = ctx};
    strbuf body = {0};
    (void)strbuf_printf(&body,
                        "{" COLD
                        ",\"tools\":[" F(W_ABOUT, CITY) "],\"messages\":[{\"role\":\"user\","
                                                        "\"content\":\"%s\"}]}",
                        question);
    fake *f = ask(&here, api_chat, body.data);
    assert_int_equal(f->status, 200);
    fake_free(f);
    strbuf_deinit(&body);
}

/* A memory for one or two answers: the latest are there, an old one is rendered as it was sent. */
static void test_forgotten(void **state)
{
    const api_options o = {.engine = w.engine, .scheduler = w.sched, .replay_bytes = 400};
    api_ctx *ctx;
    calla_error err;
    (void)state;
    assert_int_equal(api_create(&ctx, &o, &err), CALLA_OK);
    const long n_rendered = second_prompt(ctx);
    first_turn(ctx, OSLO);
    const long n_remembered = second_prompt(ctx);
    assert_true(n_remembered > n_rendered + 5);
    for (int i = 0; i < 3; i++) /* others come, and it is used in between */
        first_turn(ctx, i == 0 ? "Is it raining in Rabat?" : TWO);
    assert_int_equal(second_prompt(ctx), n_rendered);
    first_turn(ctx, OSLO);
    assert_int_equal(second_prompt(ctx), n_remembered);
    api_destroy(ctx);
}

static int open_world(void **state)
{
    const scheduler_options so = {
        .n_parallel = 2, .n_ctx = 1024, .cache_ram_bytes = UINT64_C(64) << 20};
    (void)state;
    world_open(&w, &so);
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    world_close(&w);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_custom),       cmocka_unit_test(test_custom_responses),
        cmocka_unit_test(test_namespace),    cmocka_unit_test(test_known_tools),
        cmocka_unit_test(test_cut),          cmocka_unit_test(test_serial),
        cmocka_unit_test(test_serial_again), cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_forgotten),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
