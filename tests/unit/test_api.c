/* What the APIs answer, on the demonstration model at temperature 0. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "unit/api_support.h"

static world w;

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define IRENE      "\"messages\":[" USER("My name is Irene.") "]"
#define GREETING   "Hello, Irene! I am Calla. How can I help you?"
#define NO_THINK   "\"chat_template_kwargs\":{\"enable_thinking\":false}"
#define COLD       "\"temperature\":0"
#define CITY                                                                                       \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"Name "   \
    "of "                                                                                          \
    "the city\"}},\"required\":[\"city\"]}"
#define ABOUT "\"description\":\"Current weather conditions.\""
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\"," ABOUT                  \
    ",\"parameters\":" CITY "}}]"
#define OSLO "What is the weather like in Oslo today?"

static fake *ask_ok(http_handler fn, const char *body)
{
    fake *f = ask(&w, fn, body);
    if (f->status != 0 && f->status != 200) fail_msg("%u %s", f->status, f->body.data);
    return f;
}

static long number_at(const fake *f, const char *path)
{
    return strtol(text_at(f, path), NULL, 10);
}

/* ---- Chat completions ---- */

static void test_chat(void **state)
{
    (void)state;
    fake *f = ask_ok(api_chat, "{\"model\":\"any\"," COLD "," IRENE "}");
    assert_string_equal(text_at(f, "object"), "chat.completion");
    assert_string_equal(text_at(f, "model"), "any");
    assert_memory_equal(text_at(f, "id"), "chatcmpl-", 9);
    assert_string_equal(text_at(f, "choices.0.message.role"), "assistant");
    assert_string_equal(text_at(f, "choices.0.message.content"), GREETING);
    assert_string_equal(text_at(f, "choices.0.message.reasoning_content"),
                        "The user is called Irene. I greet Irene.");
    assert_null(at(f->doc.root, "choices.0.message.tool_calls"));
    assert_string_equal(text_at(f, "choices.0.finish_reason"), "stop");
    assert_int_equal(number_at(f, "usage.prompt_tokens"), 15);
    const long n = number_at(f, "usage.completion_tokens");
    assert_int_equal(number_at(f, "usage.total_tokens"), 15 + n);
    assert_in_range(number_at(f, "usage.completion_tokens_details.reasoning_tokens"), 1, n - 1);
    assert_int_equal(number_at(f, "timings.predicted_n"), n);
    assert_int_equal(f->usage.n_prompt, 15);
    assert_int_equal(f->usage.n_generated, n);
    assert_int_equal(f->n_tokens, n);
    fake_free(f);
    f = ask_ok(api_chat, "{" NO_THINK "," COLD "," IRENE "}");
    assert_null(at(f->doc.root, "choices.0.message.reasoning_content"));
    assert_string_equal(text_at(f, "choices.0.message.content"), GREETING);
    fake_free(f);
    f = ask_ok(api_chat, "{\"reasoning_effort\":\"none\"," COLD "," IRENE "}");
    assert_null(at(f->doc.root, "choices.0.message.reasoning_content"));
    fake_free(f);
    f = ask_ok(api_chat, "{\"thinking_budget\":3," COLD "," IRENE "}");
    assert_string_equal(text_at(f, "choices.0.message.reasoning_content"), "The user is");
    fake_free(f);
}

/* The stream's pieces, joined, are the whole answer's texts; the order of chunks. */
static void stream_equals(const char *members)
{
    static const char *const fields[] = {"content", "reasoning_content"};
    strbuf body = {0};
    char path[96];
    (void)strbuf_printf(&body, "{%s}", members);
    fake *whole = ask_ok(api_chat, body.data);
    strbuf_clear(&body);
    (void)strbuf_printf(&body, "{\"stream\":true,%s}", members);
    fake *f = ask_ok(api_chat, body.data);
    json_doc doc = {0};
    const json_value *first = event_at(f, 0, &doc);
    assert_true(json_is(at(first, "choices.0.delta.role"), "assistant"));
    json_free(&doc);
    const json_value *last = event_at(f, f->sse.n_events - 2, &doc);
    const json_value *finish = at(last, "choices.0.finish_reason");
    assert_true(json_is(finish, text_at(whole, "choices.0.finish_reason")));
    json_free(&doc);
    assert_non_null(strstr(f->sse.log.data, "data: [DONE]\n\n"));
    for (int i = 0; i < 2; i++) {
        strbuf joined = {0};
        (void)snprintf(path, sizeof path, "choices.0.delta.%s", fields[i]);
        join_events(f, path, &joined);
        (void)snprintf(path, sizeof path, "choices.0.message.%s", fields[i]);
        const json_value *v = at(whole->doc.root, path);
        assert_string_equal(joined.data != NULL ? joined.data : "",
                            v != NULL && v->text != NULL ? v->text : "");
        strbuf_deinit(&joined);
    }
    strbuf args = {0};
    join_events(f, "choices.0.delta.tool_calls.0.function.arguments", &args);
    const json_value *v = at(whole->doc.root, "choices.0.message.tool_calls.0.function.arguments");
    assert_string_equal(args.data != NULL ? args.data : "", v != NULL ? v->text : "");
    strbuf_deinit(&args);
    strbuf_deinit(&body);
    fake_free(whole);
    fake_free(f);
}

static void test_stream(void **state)
{
    (void)state;
    stream_equals(COLD "," IRENE);
    stream_equals(COLD "," NO_THINK "," IRENE);
    stream_equals(COLD ",\"max_tokens\":5," IRENE);
    stream_equals(COLD ",\"stop\":\"Calla\"," IRENE);
    stream_equals(COLD ",\"messages\":[" USER(OSLO) "]," TOOLS);
    stream_equals(COLD ",\"tool_choice\":\"required\"," IRENE "," TOOLS);
    stream_equals(COLD ",\"tool_choice\":\"none\",\"messages\":[" USER(OSLO) "]," TOOLS);
    stream_equals(COLD ",\"max_tokens\":25,\"messages\":[" USER(OSLO) "]," NO_THINK "," TOOLS);
}

static void test_stream_usage(void **state)
{
    json_doc doc = {0};
    (void)state;
    fake *f = ask_ok(api_chat, "{\"stream\":true,\"stream_options\":{\"include_usage\":true}," COLD
                               "," IRENE "}");
    const json_value *v = event_at(f, f->sse.n_events - 2, &doc);
    assert_int_equal(at(v, "choices")->n_items, 0);
    assert_string_equal(at(v, "usage.prompt_tokens")->text, "15");
    json_free(&doc);
    v = event_at(f, 1, &doc);
    assert_int_equal(at(v, "usage")->type, JSON_NULL);
    json_free(&doc);
    fake_free(f);
}

/* ---- Stop strings ---- */

static void stops_at(const char *stop, const char *content, const char *finish)
{
    strbuf body = {0};
    (void)strbuf_printf(&body, "{" COLD "," NO_THINK "," IRENE ",\"logprobs\":true,\"stop\":%s}",
                        stop);
    fake *f = ask_ok(api_chat, body.data);
    assert_string_equal(text_at(f, "choices.0.message.content"), content);
    assert_string_equal(text_at(f, "choices.0.finish_reason"), finish);
    /* The tokens of the logprobs spell the content, but for the end of the last one. */
    strbuf text = {0};
    const json_value *rows = at(f->doc.root, "choices.0.logprobs.content");
    for (const json_value *r = rows->first; r != NULL; r = r->next) {
        assert_true(text.len < strlen(content));
        (void)strbuf_append(&text, json_get(r, "token")->text, json_get(r, "token")->n_text);
    }
    assert_memory_equal(text.data != NULL ? text.data : "", content, strlen(content));
    strbuf_deinit(&text);
    strbuf_deinit(&body);
    fake_free(f);
}

static void test_stops(void **state)
{
    (void)state;
    stops_at("\"Calla\"", "Hello, Irene! I am ", "stop");
    stops_at("\"rene! I a\"", "Hello, I", "stop");
    stops_at("[\"help\",\"I am C\",\"zzz\"]", "Hello, Irene! ", "stop");
    stops_at("\"Hello\"", "", "stop");
    stops_at("\"you?!\"", GREETING, "stop"); /* begins at the very end, and is no stop */
    stops_at("[\"?\"]", "Hello, Irene! I am Calla. How can I help you", "stop");
    stops_at("\"user is\"", GREETING, "stop");
}

/* ---- Choices, logprobs, bias ---- */

static void test_choices(void **state)
{
    (void)state;
    fake *f = ask_ok(api_chat, "{\"n\":3," COLD "," IRENE "}");
    assert_int_equal(at(f->doc.root, "choices")->n_items, 3);
    assert_string_equal(text_at(f, "choices.2.index"), "2");
    assert_string_equal(text_at(f, "choices.2.message.content"), GREETING);
    fake_free(f);
    f = ask_ok(api_chat, "{\"n\":2,\"stream\":true," COLD "," IRENE "}");
    unsigned n_finished = 0;
    for (size_t i = 0; i < f->sse.n_events; i++) {
        json_doc doc = {0};
        const json_value *v = event_at(f, i, &doc);
        const json_value *finish = v != NULL ? at(v, "choices.0.finish_reason") : NULL;
        if (finish != NULL && finish->type == JSON_STRING) n_finished++;
        json_free(&doc);
    }
    assert_int_equal(n_finished, 2);
    fake_free(f);
}

static void test_logprobs(void **state)
{
    (void)state;
    fake *f =
        ask_ok(api_chat, "{\"logprobs\":true,\"top_logprobs\":3," COLD "," NO_THINK "," IRENE "}");
    assert_string_equal(text_at(f, "choices.0.logprobs.content.0.token"), "Hello");
    const json_value *bytes = at(f->doc.root, "choices.0.logprobs.content.0.bytes");
    assert_int_equal(bytes->n_items, 5);
    assert_string_equal(bytes->first->text, "72");
    const json_value *top = at(f->doc.root, "choices.0.logprobs.content.0.top_logprobs");
    assert_int_equal(top->n_items, 3);
    assert_true(json_is(json_get(top->first, "token"), "Hello"));
    double a, b;
    assert_true(json_double(json_get(top->first, "logprob"), &a));
    assert_true(json_double(json_get(top->first->next, "logprob"), &b));
    assert_true(a <= 0 && b <= a);
    fake_free(f);
    /* All of them in the stream too. */
    f = ask_ok(api_chat, "{\"stream\":true,\"logprobs\":true,\"stop\":\"zz\"," COLD "," NO_THINK
                         "," IRENE "}");
    strbuf text = {0};
    for (size_t i = 0; i < f->sse.n_events; i++) {
        json_doc doc = {0};
        const json_value *v = event_at(f, i, &doc);
        const json_value *rows = v != NULL ? at(v, "choices.0.logprobs.content") : NULL;
        for (const json_value *r = rows != NULL ? rows->first : NULL; r != NULL; r = r->next)
            (void)strbuf_puts(&text, json_get(r, "token")->text);
        json_free(&doc);
    }
    assert_string_equal(text.data, GREETING);
    strbuf_deinit(&text);
    fake_free(f);
}

static void test_bias(void **state)
{
    (void)state;
    fake *f = ask_ok(api_tokenize, "{\"content\":\"Hello\"}");
    char body[256];
    (void)snprintf(body, sizeof body,
                   "{\"logit_bias\":{\"%s\":-100},\"max_tokens\":1," COLD "," NO_THINK "," IRENE
                   "}",
                   text_at(f, "tokens.0"));
    fake_free(f);
    f = ask_ok(api_chat, body);
    assert_null(strstr(text_at(f, "choices.0.message.content"), "Hello"));
    fake_free(f);
    /* All tokens: nothing can come, which is the request's fault. */
    strbuf all = {0};
    (void)strbuf_puts(&all, "{" COLD "," IRENE ",\"logit_bias\":{");
    for (int32_t i = 0; i < 4096; i++)
        (void)strbuf_printf(&all, "%s\"%d\":-100", i != 0 ? "," : "", (int)i);
    (void)strbuf_puts(&all, "}}");
    f = ask(&w, api_chat, all.data);
    assert_int_equal(f->status, 400);
    assert_string_equal(f->param, "logit_bias");
    fake_free(f);
    strbuf_deinit(&all);
}

/* ---- Tools, and what is remembered ---- */

#define CALL_TURN(args, more)                                                                      \
    "{\"role\":\"assistant\",\"content\":null" more ",\"tool_calls\":[{\"id\":\"c1\",\"type\":"    \
    "\"function\",\"function\":{\"name\":\"weather\",\"arguments\":" args "}}]}"
#define RESULT "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"windy, 12 degrees\"}"

/* Asks for the second turn with this echo of the first; returns the cached tokens. */
static long second_turn(const char *echo, long *n_prompt)
{
    strbuf body = {0};
    (void)strbuf_printf(&body, "{" COLD ",\"messages\":[" USER(OSLO) ",%s," RESULT "]," TOOLS "}",
                        echo);
    fake *f = ask_ok(api_chat, body.data);
    assert_non_null(strstr(text_at(f, "choices.0.message.content"), "12 degrees"));
    const long n = number_at(f, "usage.prompt_tokens_details.cached_tokens");
    *n_prompt = number_at(f, "usage.prompt_tokens");
    strbuf_deinit(&body);
    fake_free(f);
    return n;
}

static void test_tools(void **state)
{
    long n_all, n_other;
    (void)state;
    fake *f = ask_ok(api_chat, "{" COLD ",\"messages\":[" USER(OSLO) "]," TOOLS "}");
    assert_string_equal(text_at(f, "choices.0.finish_reason"), "tool_calls");
    assert_int_equal(at(f->doc.root, "choices.0.message.content")->type, JSON_NULL);
    assert_string_equal(text_at(f, "choices.0.message.tool_calls.0.type"), "function");
    assert_memory_equal(text_at(f, "choices.0.message.tool_calls.0.id"), "call_", 5);
    assert_string_equal(text_at(f, "choices.0.message.tool_calls.0.function.name"), "weather");
    assert_string_equal(text_at(f, "choices.0.message.tool_calls.0.function.arguments"),
                        "{\"city\": \"Oslo\"}");
    const long n_first = number_at(f, "usage.total_tokens");
    fake_free(f);

    /* Without its reasoning, as most clients send it, the answer is there with every token. */
    const long n = second_turn(CALL_TURN("\"{ \\\"city\\\":\\\"Oslo\\\"}\"", ""), &n_all);
    if (n < n_first) fail_msg("%ld of %ld tokens were cached", n, n_first);
    /* With it, too. */
    (void)second_turn(
        CALL_TURN("{\"city\":\"Oslo\"}",
                  ",\"reasoning_content\":\"The user asks for the weather in Oslo. I call "
                  "weather.\""),
        &n_other);
    assert_int_equal(n_other, n_all);
    /* Another call, or other reasoning, is rendered as it is sent. */
    (void)second_turn(CALL_TURN("{\"city\":\"Oslo\"}", ",\"reasoning_content\":\"Hm.\""), &n_other);
    assert_true(n_other < n_all);
    (void)second_turn(CALL_TURN("{\"city\":\"Bergen\"}", ""), &n_other);
    assert_true(n_other < n_all);
}

static void test_required(void **state)
{
    (void)state;
    fake *f = ask_ok(api_chat, "{\"tool_choice\":\"required\"," COLD "," IRENE "," TOOLS "}");
    assert_string_equal(text_at(f, "choices.0.finish_reason"), "tool_calls");
    assert_int_equal(at(f->doc.root, "choices.0.message.content")->type, JSON_NULL);
    json_doc args = {0};
    const json_value *v = at(f->doc.root, "choices.0.message.tool_calls.0.function.arguments");
    assert_int_equal(json_parse(&args, v->text, v->n_text, NULL, NULL), CALLA_OK);
    assert_int_equal(json_get(args.root, "city")->type, JSON_STRING);
    json_free(&args);
    fake_free(f);
    f = ask_ok(api_chat, "{\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
                         "\"weather\"}}," COLD "," NO_THINK "," IRENE "," TOOLS "}");
    assert_string_equal(text_at(f, "choices.0.message.tool_calls.0.function.name"), "weather");
    fake_free(f);
}

#define SCHEMA(props, req)                                                                         \
    "{\"type\":\"object\",\"properties\":{" props "},\"required\":[" req                           \
    "],\"additionalProperties\":false}"
#define FORMAT(schema)                                                                             \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":"    \
    "true,\"schema\":" schema "}}"

static void test_schema(void **state)
{
    json_doc doc = {0};
    int64_t age;
    (void)state;
    fake *f = ask_ok(api_chat, "{" COLD "," IRENE "," FORMAT(
                                   SCHEMA("\"name\":{\"type\":\"string\",\"maxLength\":8},\"age\":{"
                                          "\"type\":\"integer\"}",
                                          "\"name\",\"age\"")) "}");
    assert_true(at(f->doc.root, "choices.0.message.reasoning_content") != NULL);
    const json_value *v = at(f->doc.root, "choices.0.message.content");
    assert_int_equal(json_parse(&doc, v->text, v->n_text, NULL, NULL), CALLA_OK);
    assert_int_equal(json_get(doc.root, "name")->type, JSON_STRING);
    assert_true(json_int(json_get(doc.root, "age"), &age));
    json_free(&doc);
    fake_free(f);
    f = ask(&w, api_chat, "{" IRENE "," FORMAT(SCHEMA("\"a\":{\"not\":{}}", "\"a\"")) "}");
    assert_int_equal(f->status, 400);
    assert_string_equal(f->param, "response_format");
    assert_non_null(strstr(text_at(f, "error.message"), "\"not\""));
    fake_free(f);
    /* With tools in sight, either of them. */
    f = ask_ok(api_chat, "{" COLD ",\"messages\":[" USER(OSLO) "]," TOOLS "," FORMAT(
                             SCHEMA("\"a\":{\"type\":\"string\"}", "\"a\"")) "}");
    assert_string_equal(text_at(f, "choices.0.finish_reason"), "tool_calls");
    fake_free(f);
}

/* ---- Continuing, control tokens ---- */

static void test_continue(void **state)
{
    (void)state;
    fake *f = ask_ok(
        api_chat,
        "{" COLD ",\"messages\":[" USER(
            "My name is Irene.") ",{\"role\":\"assistant\",\"content\":\"Hello, Irene! I am\"}]}");
    assert_string_equal(text_at(f, "choices.0.message.content"), " Calla. How can I help you?");
    assert_null(at(f->doc.root, "choices.0.message.reasoning_content"));
    fake_free(f);
    f = ask_ok(api_chat, "{" COLD ",\"messages\":[" USER(
                             "My name is Irene.") ",{\"role\":\"assistant\",\"reasoning\":\"The "
                                                  "user is called\"}]}");
    assert_string_equal(text_at(f, "choices.0.message.reasoning_content"),
                        " Irene. I greet Irene.");
    assert_string_equal(text_at(f, "choices.0.message.content"), GREETING);
    fake_free(f);
}

static long count_id(const fake *f, long id)
{
    long n = 0;
    for (const json_value *v = at(f->doc.root, "tokens")->first; v != NULL; v = v->next)
        n += strtol(v->text, NULL, 10) == id;
    return n;
}

static void test_inert(void **state)
{
    (void)state;
    fake *f = ask_ok(api_tokenize, "{\"content\":\"<|im_end|>\"}");
    const long end = number_at(f, "tokens.0");
    assert_string_equal(text_at(f, "count"), "1");
    fake_free(f);
    f = ask_ok(api_tokenize, "{\"content\":\"<|im_end|>\",\"parse_special\":false}");
    assert_int_equal(count_id(f, end), 0);
    fake_free(f);
    f = ask_ok(api_tokenize, "{\"messages\":[" USER("a<|im_end|>b") "]}");
    assert_int_equal(count_id(f, end), 1);
    fake_free(f);
}

/* ---- Messages ---- */

#define ATOOLS "\"tools\":[{\"name\":\"weather\"," ABOUT ",\"input_schema\":" CITY "}]"
#define THINK  "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}"

/* The names of the events, without repetitions in a row. */
static void event_names(const fake *f, strbuf *out)
{
    char last[64] = "";
    for (const char *s = f->sse.log.data; (s = strstr(s, "event: ")) != NULL;) {
        s += 7;
        const size_t n = strcspn(s, "\n");
        if (n != strlen(last) || memcmp(last, s, n) != 0)
            (void)strbuf_printf(out, "%.*s ", (int)n, s);
        (void)snprintf(last, sizeof last, "%.*s", (int)n, s);
    }
}

static void test_messages(void **state)
{
    (void)state;
    fake *f = ask_ok(api_messages, "{\"max_tokens\":100," COLD "," IRENE "}");
    assert_string_equal(text_at(f, "type"), "message");
    assert_string_equal(text_at(f, "content.0.type"), "text"); /* no thinking unless asked for */
    assert_string_equal(text_at(f, "content.0.text"), GREETING);
    assert_string_equal(text_at(f, "stop_reason"), "end_turn");
    const long n =
        number_at(f, "usage.input_tokens") + number_at(f, "usage.cache_read_input_tokens");
    fake_free(f);
    f = ask_ok(api_count_tokens, "{\"max_tokens\":100," IRENE "}");
    assert_int_equal(number_at(f, "input_tokens"), n);
    fake_free(f);
    f = ask_ok(api_messages,
               "{\"max_tokens\":100,\"stop_sequences\":[\"Calla\"]," COLD "," THINK "," IRENE "}");
    assert_string_equal(text_at(f, "content.0.type"), "thinking");
    assert_string_equal(text_at(f, "content.1.text"), "Hello, Irene! I am ");
    assert_string_equal(text_at(f, "stop_reason"), "stop_sequence");
    assert_string_equal(text_at(f, "stop_sequence"), "Calla");
    fake_free(f);
    f = ask_ok(api_messages, "{\"max_tokens\":3," COLD "," IRENE "}");
    assert_string_equal(text_at(f, "stop_reason"), "max_tokens");
    fake_free(f);
}

static void test_messages_stream(void **state)
{
    strbuf names = {0}, joined = {0};
    (void)state;
    fake *f = ask_ok(api_messages, "{\"stream\":true,\"max_tokens\":100," COLD "," THINK ","
                                   "\"messages\":[" USER(OSLO) "]," ATOOLS "}");
    event_names(f, &names);
    assert_string_equal(names.data, "message_start ping content_block_start content_block_delta "
                                    "content_block_stop content_block_start content_block_delta "
                                    "content_block_stop message_delta message_stop ");
    join_events(f, "delta.partial_json", &joined);
    assert_string_equal(joined.data, "{\"city\": \"Oslo\"}");
    strbuf_clear(&joined);
    join_events(f, "delta.thinking", &joined);
    assert_string_equal(joined.data, "The user asks for the weather in Oslo. I call weather.");
    strbuf_clear(&joined);
    join_events(f, "delta.stop_reason", &joined);
    assert_string_equal(joined.data, "tool_use");
    strbuf_deinit(&joined);
    strbuf_deinit(&names);
    fake_free(f);
}

static void test_messages_tools(void **state)
{
    (void)state;
    fake *f = ask_ok(
        api_messages,
        "{\"max_tokens\":100," COLD ",\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-"
        "billing-header: cch=1\"}],\"messages\":[" USER(
            OSLO) ",{\"role\":\"assistant\","
                  "\"content\":[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"weather\","
                  "\"input\":{"
                  "\"city\":\"Oslo\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
                  "\"tool_use_id\":\"t1\",\"content\":[{\"type\":\"text\",\"text\":\"windy, 12 "
                  "degrees\"}]}"
                  "]}]," ATOOLS "}");
    assert_non_null(strstr(text_at(f, "content.0.text"), "12 degrees"));
    fake_free(f);
    f = ask_ok(api_messages, "{\"max_tokens\":100,\"tool_choice\":{\"type\":\"any\"}," COLD
                             "," IRENE "," ATOOLS "}");
    assert_string_equal(text_at(f, "content.0.type"), "tool_use");
    assert_int_equal(at(f->doc.root, "content.0.input")->type, JSON_OBJECT);
    assert_memory_equal(text_at(f, "content.0.id"), "toolu_", 6);
    fake_free(f);
}

/* ---- Responses ---- */

#define RTOOLS                                                                                     \
    "\"tools\":[{\"type\":\"function\",\"name\":\"weather\"," ABOUT ",\"parameters\":" CITY        \
    "},{\"type\":\"web_search\"}]"

static void test_responses(void **state)
{
    (void)state;
    fake *f = ask_ok(api_responses, "{\"input\":\"My name is Irene.\"," COLD "}");
    assert_string_equal(text_at(f, "status"), "completed");
    assert_string_equal(text_at(f, "output.0.type"), "reasoning");
    assert_string_equal(text_at(f, "output.1.content.0.text"), GREETING);
    assert_string_equal(text_at(f, "usage.input_tokens"), "15");
    fake_free(f);
    f = ask_ok(
        api_responses,
        "{" COLD ",\"input\":[" USER(
            OSLO) ",{\"type\":\"function_call\",\"call_id\":\"1\","
                  "\"name\":\"weather\",\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"},{\"type\":"
                  "\"function_call_output\",\"call_id\":\"1\",\"output\":\"windy, 12 degrees\"}],"
                  "\"reasoning\":{\"effort\":\"none\"}," RTOOLS "}");
    assert_non_null(strstr(text_at(f, "output.0.content.0.text"), "12 degrees"));
    fake_free(f);
    f = ask_ok(api_responses, "{\"input\":\"x\",\"max_output_tokens\":1,\"temperature\":0.3}");
    assert_string_equal(text_at(f, "temperature"), "0.3");
    fake_free(f);
    f = ask_ok(api_responses, "{\"input\":\"My name is Irene.\",\"max_output_tokens\":2," COLD "}");
    assert_string_equal(text_at(f, "status"), "incomplete");
    assert_string_equal(text_at(f, "incomplete_details.reason"), "max_output_tokens");
    fake_free(f);
}

static void test_responses_stream(void **state)
{
    strbuf names = {0};
    (void)state;
    fake *f = ask_ok(api_responses, "{\"stream\":true," COLD ",\"input\":\"" OSLO "\"," RTOOLS "}");
    event_names(f, &names);
    assert_string_equal(
        names.data,
        "response.created response.in_progress response.output_item.added "
        "response.content_part.added response.reasoning_text.delta response.reasoning_text.done "
        "response.content_part.done response.output_item.done response.output_item.added "
        "response.function_call_arguments.delta response.function_call_arguments.done "
        "response.output_item.done response.completed ");
    for (size_t i = 0; i < f->sse.n_events; i++) {
        json_doc doc = {0};
        int64_t number;
        const json_value *v = event_at(f, i, &doc);
        assert_true(json_int(json_get(v, "sequence_number"), &number));
        assert_int_equal(number, i);
        if (i + 1 == f->sse.n_events) {
            assert_true(json_is(at(v, "response.output.1.name"), "weather"));
            assert_true(json_is(at(v, "response.status"), "completed"));
        }
        json_free(&doc);
    }
    strbuf_deinit(&names);
    fake_free(f);
}

/* ---- Completions, tokens, models ---- */

#define RAW                                                                                        \
    "<|im_start|>user\\nMy name is "                                                               \
    "Irene.<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n"

static void test_completions(void **state)
{
    (void)state;
    fake *f = ask_ok(api_completions, "{\"prompt\":\"" RAW "\"," COLD "}");
    assert_string_equal(text_at(f, "choices.0.text"), GREETING);
    assert_string_equal(text_at(f, "choices.0.finish_reason"), "stop");
    fake_free(f);
    f = ask_ok(api_completions, "{\"prompt\":[\"" RAW "\",\"" RAW "Hello\"],\"n\":2,\"logprobs\":2,"
                                "\"stop\":[\" am\"]," COLD "}");
    assert_int_equal(at(f->doc.root, "choices")->n_items, 4);
    assert_string_equal(text_at(f, "choices.1.text"), "Hello, Irene! I");
    assert_string_equal(text_at(f, "choices.3.text"), ", Irene! I");
    assert_string_equal(text_at(f, "choices.3.logprobs.tokens.0"), ",");
    assert_string_equal(text_at(f, "choices.3.logprobs.text_offset.1"), "1");
    fake_free(f);
    f = ask_ok(api_completions, "{\"prompt\":\"" RAW "Hello\",\"echo\":true,\"stream\":true,"
                                "\"max_tokens\":2," COLD "}");
    strbuf joined = {0};
    join_events(f, "choices.0.text", &joined);
    assert_non_null(strstr(joined.data, "</think>\n\nHello, Irene"));
    strbuf_deinit(&joined);
    fake_free(f);
}

static void test_tokens(void **state)
{
    (void)state;
    fake *f = ask_ok(api_tokenize, "{\"content\":\"H\\u00e9llo\",\"with_pieces\":true}");
    assert_true(number_at(f, "count") >= 2);
    assert_non_null(at(f->doc.root, "tokens.0.bytes"));
    fake_free(f);
    f = ask_ok(api_tokenize, "{\"content\":\"H\\u00e9llo\"}");
    strbuf body = {0};
    (void)strbuf_puts(&body, "{\"tokens\":");
    (void)json_write(&body, at(f->doc.root, "tokens"));
    (void)strbuf_putc(&body, '}');
    fake_free(f);
    f = ask_ok(api_detokenize, body.data);
    assert_string_equal(text_at(f, "content"), "H\xc3\xa9llo");
    strbuf_deinit(&body);
    fake_free(f);
}

static void test_models(void **state)
{
    (void)state;
    fake *f = ask_ok(api_models, "");
    assert_string_equal(text_at(f, "data.0.id"), "nano");
    assert_string_equal(text_at(f, "data.0.context_length"), "1024");
    assert_string_equal(text_at(f, "data.0.max_model_len"), "1024");
    fake_free(f);
    f = fake_new("", 0);
    f->req.tail = "nano";
    api_model(w.ctx, &f->req);
    assert_int_equal(f->status, 200);
    fake_free(f);
    f = fake_new("", 0);
    f->req.tail = "other";
    api_model(w.ctx, &f->req);
    assert_int_equal(f->status, 404);
    fake_free(f);
}

/* ---- Clients that go ---- */

#define LONG "\"temperature\":0,\"logit_bias\":{\"4034\":-100,\"4032\":-100}," IRENE

static void test_hangup(void **state)
{
    sched_stats before, after;
    (void)state;
    scheduler_stats(w.sched, &before);
    fake *f = fake_new("{\"stream\":true," LONG "}", strlen("{\"stream\":true," LONG "}"));
    api_chat(w.ctx, &f->req);
    (void)pthread_mutex_lock(&f->lock);
    while (f->sse.n_events < 5)
        (void)pthread_cond_wait(&f->changed, &f->lock);
    (void)pthread_mutex_unlock(&f->lock);
    f->hangup(f->hangup_user);
    fake_wait(f);
    assert_true(f->usage.n_generated < 900);
    fake_free(f);
    /* A reader too slow: the stream says so, and it is over. */
    f = fake_new("{\"stream\":true," LONG "}", strlen("{\"stream\":true," LONG "}"));
    f->sse.fail_after = 5;
    api_chat(w.ctx, &f->req);
    fake_wait(f);
    assert_true(f->usage.n_generated < 20);
    fake_free(f);
    do {
        scheduler_stats(w.sched, &after);
    } while (after.n_running != 0);
    assert_int_equal(after.n_submitted, before.n_submitted + 2);
}

static int open_world(void **state)
{
    const scheduler_options so = {
        .n_parallel = 4, .n_ctx = 1024, .cache_ram_bytes = UINT64_C(256) << 20};
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
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stream_usage),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_inert),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_messages_stream),
        cmocka_unit_test(test_messages_tools),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_responses_stream),
        cmocka_unit_test(test_completions),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_hangup),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
