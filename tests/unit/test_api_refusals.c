/* What the APIs refuse: every field with wrong types, from tables; broken bodies; full queues. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "unit/api_support.h"

static world w;

/* A field with a value that is refused; param NULL: the name of the field. */
typedef struct wrong {
    const char *name, *value, *param;
} wrong;

#define WRONG_SAMPLING                                                                             \
    {"temperature", "\"1\"", NULL}, {"temperature", "-0.1", NULL}, {"temperature", "101", NULL},   \
        {"temperature", "1e999", NULL}, {"temperature", "true", NULL}, {"top_p", "2", NULL},       \
        {"top_p", "\"x\"", NULL}, {"top_p", "-1", NULL}, {"min_p", "1.5", NULL},                   \
        {"min_p", "[]", NULL}, {"top_k", "1.5", NULL}, {"top_k", "-2", NULL},                      \
        {"top_k", "99999999999999999999", NULL}, {"top_k", "\"1\"", NULL},                         \
        {"presence_penalty", "\"x\"", NULL}, {"presence_penalty", "1000", NULL},                   \
        {"frequency_penalty", "{}", NULL}, {"repetition_penalty", "-1", NULL},                     \
        {"repetition_penalty", "false", NULL}, {"seed", "1.5", NULL}, {"seed", "\"s\"", NULL},     \
        {"seed", "1e30", NULL}, {"seed", "9223372036854775808", NULL}, {"logit_bias", "[]", NULL}, \
        {"logit_bias", "{\"x\":1}", NULL}, {"logit_bias", "{\"-1\":1}", NULL},                     \
        {"logit_bias", "{\"999999999\":1}", NULL},                                                 \
        {"logit_bias", "{\"1\":\"a\"}", "logit_bias.1"},                                           \
        {"logit_bias", "{\"1\":101}", "logit_bias.1"}, {"stream", "1", NULL},                      \
        {"stream", "\"true\"", NULL}, {"model", "1", NULL}, {"enable_thinking", "0", NULL},        \
        {"thinking_budget", "-1", NULL}, {"thinking_budget", "\"x\"", NULL},                       \
    {                                                                                              \
        "chat_template_kwargs", "[]", NULL                                                         \
    }

#define WRONG_TOOLS                                                                                \
    {"tools", "{}", NULL}, {"tools", "[1]", "tools[0]"},                                           \
    {                                                                                              \
        "tools", "[{}]", "tools[0].type"                                                           \
    }

static const wrong wrong_chat[] = {
    WRONG_SAMPLING,
    WRONG_TOOLS,
    {"chat_template_kwargs", "{\"enable_thinking\":1}", "chat_template_kwargs.enable_thinking"},
    {"messages", "null", NULL},
    {"messages", "{}", NULL},
    {"messages", "[]", NULL},
    {"messages", "[{\"role\":\"system\",\"content\":\"x\"}]", NULL},
    {"messages", "[{\"role\":\"assistant\",\"content\":\"x\"}]", NULL},
    {"messages", "[{\"role\":\"user\",\"content\":\"<tool_response>x</tool_response>\"}]", NULL},
    {"stop", "1", NULL},
    {"stop", "{}", NULL},
    {"stop", "[1]", "stop[0]"},
    {"stop",
     "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\","
     "\"f\",\"g\",\"h\"]",
     "stop[16]"},
    {"max_tokens", "0", NULL},
    {"max_tokens", "-2", NULL},
    {"max_tokens", "\"5\"", NULL},
    {"max_tokens", "1.5", NULL},
    {"max_tokens", "1e300", NULL},
    {"max_completion_tokens", "[]", NULL},
    {"n", "0", NULL},
    {"n", "9", NULL},
    {"n", "\"1\"", NULL},
    {"logprobs", "1", NULL},
    {"top_logprobs", "21", NULL},
    {"top_logprobs", "3", NULL}, /* without logprobs */
    {"stream_options", "1", NULL},
    {"stream_options", "{\"include_usage\":1}", "stream_options.include_usage"},
    {"parallel_tool_calls", "\"x\"", NULL},
    {"reasoning_effort", "1", NULL},
    {"reasoning_effort", "\"huge\"", NULL},
    {"reasoning", "\"x\"", NULL},
    {"reasoning", "{\"max_tokens\":\"x\"}", "reasoning.max_tokens"},
    {"reasoning", "{\"effort\":1}", "reasoning.effort"},
    {"tool_choice", "1", NULL},
    {"tool_choice", "\"maybe\"", NULL},
    {"tool_choice", "\"required\"", NULL}, /* without tools */
    {"tool_choice", "{}", "tool_choice.type"},
    {"tool_choice", "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}",
     "tool_choice.function.name"},
    {"response_format", "\"json\"", NULL},
    {"response_format", "{}", "response_format.type"},
    {"response_format", "{\"type\":\"xml\"}", "response_format.type"},
    {"response_format", "{\"type\":\"json_schema\"}", "response_format.json_schema"},
    {"response_format", "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\"}}",
     "response_format.json_schema.schema"},
    {"response_format",
     "{\"type\":\"json_schema\",\"json_schema\":{\"strict\":1,\"schema\":{\"type\":\"object\"}}}",
     "response_format.json_schema.strict"},
};

static const wrong wrong_completions[] = {
    WRONG_SAMPLING,
    {"prompt", "null", NULL},
    {"prompt", "1", NULL},
    {"prompt", "{}", NULL},
    {"prompt", "\"\"", NULL},
    {"prompt", "[]", NULL},
    {"prompt", "[1,\"x\"]", "prompt[1]"},
    {"prompt", "[1,-1]", "prompt[1]"},
    {"prompt", "[1,99999999]", "prompt[1]"},
    {"prompt", "[true]", "prompt[0]"},
    {"prompt", "[\"a\",1]", "prompt[1]"},
    {"prompt", "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]", NULL},
    {"stop", "1", NULL},
    {"max_tokens", "0", NULL},
    {"n", "9", NULL},
    {"best_of", "2", NULL},
    {"echo", "1", NULL},
    {"suffix", "\"x\"", NULL},
    {"suffix", "1", NULL},
    {"logprobs", "true", NULL},
    {"logprobs", "21", NULL},
};

static const wrong wrong_messages[] = {
    WRONG_SAMPLING,
    {"messages", "null", NULL},
    {"messages", "[]", NULL},
    {"messages", "[1]", "messages[0]"},
    {"messages", "[{\"role\":\"tool\"}]", "messages[0].role"},
    {"messages", "[{\"role\":\"user\"}]", "messages[0].content"},
    {"messages", "[{\"role\":\"user\",\"content\":1}]", "messages[0].content"},
    {"messages", "[{\"role\":\"user\",\"content\":[1]}]", "messages[0].content[0]"},
    {"messages", "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]",
     "messages[0].content[0]"},
    {"messages", "[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]",
     "messages[0].content[0].tool_use_id"},
    {"messages",
     "[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":"
     "[{\"type\":\"image\"}]}]}]",
     "messages[0].content[0].content[0]"},
    {"messages", "[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":1}]}]",
     "messages[0].content[0].id"},
    {"messages",
     "[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
     "\"input\":\"{]\"}]}]",
     "messages[0].content[0].input"},
    {"messages", "[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":1}]}]",
     "messages[0].content[0].thinking"},
    {"messages", "[{\"role\":\"assistant\",\"content\":\"x\"}]", NULL},
    {"messages",
     "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"x\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\","
     "\"name\":\"f\",\"input\":{}}]}]",
     "messages[2]"},
    {"messages",
     "[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\","
     "\"content\":\"x\"}]}]",
     "messages[0]"},
    {"tools", "[{\"name\":\"f\",\"input_schema\":{},\"description\":1}]", "tools[0].description"},
    {"tools", "[{\"name\":\"f\",\"input_schema\":{},\"strict\":1}]", "tools[0].strict"},
    {"tools", "[{\"name\":\"f\",\"input_schema\":{}},{\"name\":\"f\",\"input_schema\":{}}]",
     "tools[1].name"},
    {"output_config", "{\"format\":{\"type\":\"x\"}}", "output_config.format.type"},
    {"output_format", "{\"type\":\"x\"}", "output_format.type"},
    {"system", "1", NULL},
    {"system", "[{\"type\":\"image\"}]", "system[0]"},
    {"stop_sequences", "1", NULL},
    {"max_tokens", "\"x\"", NULL},
    {"tools", "{}", NULL},
    {"tools", "[{\"name\":\"f\"}]", "tools[0].input_schema"},
    {"tools", "[{\"name\":\"f g\",\"input_schema\":{}}]", "tools[0].name"},
    {"tools", "[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]", "tools[0].type"},
    {"tool_choice", "\"auto\"", NULL},
    {"tool_choice", "{\"type\":\"any\"}", NULL},
    {"tool_choice", "{\"type\":\"x\"}", "tool_choice.type"},
    {"tool_choice", "{\"type\":\"tool\"}", "tool_choice.name"},
    {"thinking", "true", NULL},
    {"thinking", "{\"type\":\"x\"}", "thinking.type"},
    {"thinking", "{\"type\":\"enabled\",\"budget_tokens\":\"x\"}", "thinking.budget_tokens"},
    {"output_config", "1", NULL},
};

static const wrong wrong_responses[] = {
    WRONG_SAMPLING,
    {"input", "null", NULL},
    {"input", "1", NULL},
    {"input", "[1]", "input[0]"},
    {"input", "[{\"type\":\"item_reference\",\"id\":\"x\"}]", "input[0].type"},
    {"input", "[{\"type\":7}]", "input[0].type"},
    {"input", "[{\"role\":\"x\"}]", "input[0].role"},
    {"input", "[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]",
     "input[0].content[0]"},
    {"input", "[{\"type\":\"function_call\",\"name\":\"f\"}]", "input[0].call_id"},
    {"input",
     "[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{]\"}]",
     "input[0].arguments"},
    {"input", "[{\"type\":\"function_call_output\",\"output\":\"f\"}]", "input[0].call_id"},
    {"input", "[]", NULL},
    {"input", "[{\"role\":\"system\",\"content\":\"x\"}]", NULL},
    {"input", "[{\"role\":\"user\",\"content\":\"<tool_response>x</tool_response>\"}]", NULL},
    {"input", "[{\"type\":\"reasoning\"},{\"type\":\"function_call_output\",\"call_id\":\"1\"}]",
     NULL},
    {"input", "[{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"}]",
     "input[0]"},
    {"input",
     "[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"reasoning\"},{\"type\":\"function_call\","
     "\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"\"}]",
     "input[2]"},
    {"tools", "[{\"type\":\"web_search\"},{\"type\":\"function\",\"name\":\"f\",\"strict\":1}]",
     "tools[1].strict"},
    {"instructions", "1", NULL},
    {"previous_response_id", "\"resp_1\"", NULL},
    {"previous_response_id", "1", NULL},
    {"conversation", "\"c\"", NULL},
    {"background", "true", NULL},
    {"max_output_tokens", "0", NULL},
    {"tools", "{}", NULL},
    {"tools", "[1]", "tools[0]"},
    {"tools", "[{\"type\":\"function\"}]", "tools[0].name"},
    {"tool_choice", "\"required\"", NULL},
    {"text", "1", NULL},
    {"text", "{\"format\":{\"type\":\"x\"}}", "text.format.type"},
    {"text", "{\"format\":{\"type\":\"json_schema\"}}", "text.format.schema"},
    {"reasoning", "1", NULL},
    {"reasoning", "{\"effort\":\"x\"}", "reasoning.effort"},
};

static const wrong wrong_tokenize[] = {
    {"content", "1", NULL},
    {"with_pieces", "1", NULL},
    {"messages", "{}", NULL},
    {"tools", "1", NULL},
};

/* base: the object's members that are fine, replaced by the wrong one of the same name. */
static void refuse_all(http_handler fn, const char *base_name, const char *base_value,
                       const wrong *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const wrong *c = &cases[i];
        strbuf body = {0};
        (void)strbuf_puts(&body, "{");
        if (strcmp(c->name, base_name) != 0)
            (void)strbuf_printf(&body, "\"%s\":%s,", base_name, base_value);
        (void)strbuf_printf(&body, "\"%s\":%s}", c->name, c->value);
        fake *f = ask(&w, fn, body.data);
        if (f->status != 400) fail_msg("status %u for %s", f->status, body.data);
        const char *param = c->param != NULL ? c->param : c->name;
        if (strcmp(f->param, param) != 0)
            fail_msg("%s: names '%s', not '%s'", body.data, f->param, param);
        assert_non_null(strstr(text_at(f, "error.message"), c->name));
        fake_free(f);
        strbuf_deinit(&body);
    }
}

#define ALL(cases) cases, sizeof cases / sizeof *cases
#define HELLO      "[{\"role\":\"user\",\"content\":\"Hello\"}]"

static void test_wrong_types(void **state)
{
    (void)state;
    refuse_all(api_chat, "messages", HELLO, ALL(wrong_chat));
    refuse_all(api_completions, "prompt", "\"x\"", ALL(wrong_completions));
    refuse_all(api_messages, "messages", HELLO, ALL(wrong_messages));
    refuse_all(api_count_tokens, "messages", HELLO, ALL(wrong_messages));
    refuse_all(api_responses, "input", "\"x\"", ALL(wrong_responses));
    refuse_all(api_tokenize, "content", "\"x\"", ALL(wrong_tokenize));
}

/* ---- Bodies ---- */

static const http_handler handlers[] = {api_chat,         api_completions, api_messages,
                                        api_count_tokens, api_responses,   api_tokenize,
                                        api_detokenize};

static void test_bodies(void **state)
{
    static const char *const bodies[] = {
        "",
        " ",
        "{",
        "null",
        "1",
        "\"x\"",
        "[]",
        "{\"a\":}",
        "{}",
        "{\"messages\"",
        "\xff\xfe",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\x28\"}]}",
        "{\"a\":1}{\"b\":2}"};
    (void)state;
    for (size_t h = 0; h < sizeof handlers / sizeof *handlers; h++) {
        for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
            fake *f = ask(&w, handlers[h], bodies[i]);
            if (f->status != 400) fail_msg("handler %zu: %u for %s", h, f->status, bodies[i]);
            assert_true(strlen(text_at(f, "error.message")) > 5);
            fake_free(f);
        }
    }
}

static void test_nesting(void **state)
{
    strbuf body = {0};
    (void)state;
    (void)strbuf_puts(&body, "{\"x\":");
    for (int i = 0; i < 100000; i++)
        (void)strbuf_putc(&body, '[');
    for (size_t h = 0; h < sizeof handlers / sizeof *handlers; h++) {
        fake *f = ask_n(&w, handlers[h], body.data, body.len);
        assert_int_equal(f->status, 400);
        fake_free(f);
    }
    strbuf_deinit(&body);
}

/* Odd but legal: answered. */
static void test_odd(void **state)
{
    static const char *const bodies[] = {
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\\ud800b\"}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}",
        "{\"max_tokens\":5,\"max_tokens\":1,\"messages\":1,\"messages\":" HELLO "}",
        "{\"max_tokens\":1,\"messages\":" HELLO ",\"unknown\":{\"x\":[1,2]},\"user\":null}",
        "{\"max_tokens\":1,\"messages\":" HELLO ",\"stop\":[\"\",\"x\"],\"seed\":-1,\"top_k\":-1,"
        "\"top_p\":0,\"min_p\":1,\"repetition_penalty\":0,\"temperature\":null,\"tools\":[],"
        "\"tool_choice\":\"none\",\"logit_bias\":{},\"response_format\":{\"type\":\"text\"}}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        fake *f = ask(&w, api_chat, bodies[i]);
        if (f->status != 200) fail_msg("%u %s for %s", f->status, f->body.data, bodies[i]);
        assert_string_equal(text_at(f, "choices.0.finish_reason"), "length");
        assert_string_equal(text_at(f, "usage.completion_tokens"), "1");
        fake_free(f);
    }
}

/* A prompt that is too long, in the member that has it. */
static void refuse_long(http_handler handler, const char *head, const char *tail, const char *param)
{
    strbuf body = {0};
    (void)strbuf_puts(&body, head);
    for (int i = 0; i < 600; i++)
        (void)strbuf_puts(&body, "1 ");
    (void)strbuf_puts(&body, tail);
    fake *f = ask(&w, handler, body.data);
    assert_int_equal(f->status, 400);
    assert_string_equal(f->code, "context_length_exceeded");
    assert_string_equal(f->param, param);
    assert_non_null(strstr(text_at(f, "error.message"), "512"));
    fake_free(f);
    strbuf_deinit(&body);
}

static void test_context(void **state)
{
    (void)state;
    refuse_long(api_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"",
                "\"}],\"stream\":true}", "messages");
    refuse_long(api_completions, "{\"prompt\":\"", "\"}", "prompt");
    refuse_long(api_responses, "{\"input\":\"", "\"}", "input");
}

/* The bounds of a whole number are all its digits. */
static void test_bounds(void **state)
{
    (void)state;
    fake *f = ask(&w, api_completions, "{\"prompt\":\"x\",\"max_tokens\":1000000000000000000}");
    assert_int_equal(f->status, 400);
    assert_string_equal(text_at(f, "error.message"),
                        "max_tokens: expected an integer from -1 to 9007199254740992, found "
                        "1000000000000000000");
    fake_free(f);
}

/* ---- A full queue ---- */

static void test_full(void **state)
{
    static const char slow[] = "{\"stream\":true,\"messages\":" HELLO
                               ",\"logit_bias\":{\"4034\":-100,\"4032\":-100},\"temperature\":0}";
    fake *first = fake_new(slow, strlen(slow)), *second = fake_new(slow, strlen(slow));
    (void)state;
    api_chat(w.ctx, &first->req);
    sched_stats s;
    do { /* until the first has left the queue */
        scheduler_stats(w.sched, &s);
    } while (s.n_running == 0);
    api_chat(w.ctx, &second->req); /* waits in the queue of one */
    fake *f = ask(&w, api_chat, "{\"messages\":" HELLO "}");
    assert_int_equal(f->status, 429);
    assert_string_equal(f->code, "queue_full");
    fake_free(f);
    /* Two choices of one request: one would find room, so none is begun. */
    first->hangup(first->hangup_user);
    fake_wait(first);
    do {
        scheduler_stats(w.sched, &s);
    } while (s.n_queued != 0);
    f = ask(&w, api_chat, "{\"n\":2,\"stream\":true,\"messages\":" HELLO "}");
    assert_int_equal(f->status, 429);
    assert_int_equal(f->sse.log.len, 0);
    fake_free(f);
    second->hangup(second->hangup_user);
    fake_wait(second);
    assert_non_null(strstr(second->sse.log.data, "[DONE]"));
    fake_free(first);
    fake_free(second);
}

static int open_world(void **state)
{
    const scheduler_options so = {.n_parallel = 1, .n_ctx = 512, .queue_max = 1};
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
        cmocka_unit_test(test_wrong_types), cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_nesting),     cmocka_unit_test(test_odd),
        cmocka_unit_test(test_context),     cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
