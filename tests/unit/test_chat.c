#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "text/chat.h"
#include "tokenizer_fixture.h"

#define DATA "tests/data/"

/* ---- Cases rendered by the official template ---- */

static bool flag(const json_value *kwargs, const char *name, json_type type)
{
    const json_value *v = json_get(kwargs, name);
    return v != NULL && v->type == type;
}

static bool equals(const char *s, size_t n, const json_value *v)
{
    return v->n_text == n && memcmp(s, v->text, n) == 0;
}

/* The sentence is the template's own, so it must be ours; other Python errors only have to fail. */
static bool sentence_is_fixed(const json_value *c)
{
    const json_value *type = json_get(c, "error_type");
    return !json_is(type, "TypeError") && !json_is(type, "UndefinedError");
}

static void check_spans(const chat_prompt *p)
{
    size_t last = 0;
    for (size_t i = 0; i < p->n_outside; i++) {
        assert_true(p->outside[i].begin < p->outside[i].end);
        assert_true(i == 0 ? p->outside[i].begin >= last : p->outside[i].begin > last);
        last = p->outside[i].end;
    }
    assert_true(last <= p->text.len);
}

static calla_tokenizer *tok;
static size_t n_rows_with_ids;

static void check_ids(const chat_prompt *p, const json_value *name, const json_value *want)
{
    id_list ids = {0};
    assert_int_equal(tokenizer_encode_spans(tok, p->text.data, p->text.len, p->outside,
                                            p->n_outside, &ids, NULL),
                     CALLA_OK);
    if (ids.len != want->n_items)
        fail_msg("%s: expected %zu ids, found %zu", name->text, want->n_items, ids.len);
    size_t i = 0;
    for (const json_value *v = want->first; v != NULL; v = v->next, i++) {
        int64_t id;
        assert_true(json_int(v, &id));
        if (ids.data[i] != id)
            fail_msg("%s: id %zu: expected %lld, found %d", name->text, i, (long long)id,
                     (int)ids.data[i]);
    }
    mem_free(ids.data);
    n_rows_with_ids++;
}

static void check_case(const json_value *c)
{
    const json_value *kw = json_get(c, "kwargs"), *name = json_get(c, "name");
    const json_value *rendered = json_get(c, "rendered"), *error = json_get(c, "error");
    const calla_chat_options opt = {
        .no_generation_prompt = !flag(kw, "add_generation_prompt", JSON_TRUE),
        .disable_thinking = flag(kw, "enable_thinking", JSON_FALSE),
        .preserve_thinking = flag(kw, "preserve_thinking", JSON_TRUE),
        .add_vision_id = flag(kw, "add_vision_id", JSON_TRUE),
    };
    chat_prompt p;
    calla_error err = {0};
    const calla_status st =
        chat_render(&p, json_get(c, "messages"), json_get(c, "tools"), &opt, &err);
    if (rendered != NULL) {
        if (st != CALLA_OK) fail_msg("%s: %s", name->text, err.message);
        if (!equals(p.text.data != NULL ? p.text.data : "", p.text.len, rendered))
            fail_msg("%s: expected <%s>, found <%s>", name->text, rendered->text, p.text.data);
        check_spans(&p);
        const json_value *ids = json_get(c, "ids");
        if (ids != NULL && ids->type == JSON_ARRAY) check_ids(&p, name, ids);
    } else {
        if (st != CALLA_ERR_TEMPLATE) fail_msg("%s: status %d", name->text, (int)st);
        if (sentence_is_fixed(c) && !json_is(error, err.message))
            fail_msg("%s: expected <%s>, found <%s>", name->text, error->text, err.message);
        assert_null(p.text.data);
        assert_null(p.outside);
    }
    chat_prompt_deinit(&p);
}

static void check_file(const char *path, size_t n_expected)
{
    char *data = NULL;
    size_t n = 0, n_cases = 0;
    calla_error err = {0};
    if (file_read(path, 16u << 20, &data, &n, &err) != CALLA_OK) fail_msg("%s", err.message);
    for (const char *line = data; line < data + n;) {
        const char *end = memchr(line, '\n', (size_t)(data + n - line));
        if (end == NULL) end = data + n;
        json_doc doc;
        const json_limits limits = {.what = path};
        if (json_parse(&doc, line, (size_t)(end - line), &limits, &err) != CALLA_OK)
            fail_msg("%s", err.message);
        check_case(doc.root);
        json_free(&doc);
        n_cases++;
        line = end + 1;
    }
    assert_int_equal(n_cases, n_expected);
    mem_free(data);
}

static void golden_file(void **state)
{
    (void)state;
    n_rows_with_ids = 0;
    check_file(DATA "qwen3.6/chat-golden.jsonl", 36);
    assert_int_equal(n_rows_with_ids, 28);
}

static void generated_file(void **state)
{
    (void)state;
    check_file(DATA "chat-generated.jsonl", 200);
}

/* ---- Marks ---- */

/* The prompt with every outside byte range in [[ ]]. */
static char *marked(const char *messages, const char *tools, calla_chat_options opt)
{
    chat_prompt p;
    calla_error err = {0};
    strbuf out = {0};
    if (chat_render_json(&p, messages, strlen(messages), tools, tools != NULL ? strlen(tools) : 0,
                         &opt, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    check_spans(&p);
    size_t at = 0;
    for (size_t i = 0; i < p.n_outside; i++) {
        const text_span s = p.outside[i];
        (void)strbuf_append(&out, p.text.data + at, s.begin - at);
        (void)strbuf_puts(&out, "[[");
        (void)strbuf_append(&out, p.text.data + s.begin, s.end - s.begin);
        (void)strbuf_puts(&out, "]]");
        at = s.end;
    }
    (void)strbuf_append(&out, p.text.data + at, p.text.len - at);
    chat_prompt_deinit(&p);
    return out.data;
}

static void expect_marked(const char *messages, const char *expected)
{
    char *got = marked(messages, NULL,
                       (calla_chat_options){.no_generation_prompt = true, .add_vision_id = true});
    assert_string_equal(got, expected);
    mem_free(got);
}

static void marks_contents(void **state)
{
    (void)state;
    expect_marked("[{\"role\":\"user\",\"content\":\" <|im_end|> \"}]",
                  "<|im_start|>user\n[[<|im_end|>]]<|im_end|>\n");
    expect_marked("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"\"}]",
                  "<|im_start|>system\n[[s]]<|im_end|>\n<|im_start|>user\n<|im_end|>\n");
    expect_marked("[{\"role\":\"user\",\"content\":[{\"text\":\" a\"},{\"text\":\"b\"},"
                  "{\"image\":0},{\"text\":\"c\"},{\"video\":0},{\"image\":0},{\"text\":\" \"}]}]",
                  "<|im_start|>user\n[[ab]]Picture 1: <|vision_start|><|image_pad|><|vision_end|>"
                  "[[c]]Video 1: <|vision_start|><|video_pad|><|vision_end|>"
                  "Picture 2: <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n");
}

/* 'image' in item: a substring of a string, an element of a list. Neither has a text. */
static void items_are_misread_as_the_template_does(void **state)
{
    (void)state;
    expect_marked("[{\"role\":\"user\",\"content\":[\"an image\",\"video\",\"text\",[\"image\"],"
                  "[\"an image\",\"text\"],{\"text\":null}]}]",
                  "<|im_start|>user\nPicture 1: <|vision_start|><|image_pad|><|vision_end|>"
                  "Video 1: <|vision_start|><|video_pad|><|vision_end|>"
                  "Picture 2: <|vision_start|><|image_pad|><|vision_end|>[[None]]<|im_end|>\n");
}

static void marks_assistant_and_tools(void **state)
{
    (void)state;
    expect_marked("[{\"role\":\"user\",\"content\":\"u\"},"
                  "{\"role\":\"assistant\",\"content\":\"c\",\"reasoning_content\":\"\\nr\",\"tool_"
                  "calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"k\":\"v\",\"n\":[1],"
                  "\"e\":\"\"}}},{\"name\":\"g\"}]},"
                  "{\"role\":\"tool\",\"content\":\"t\"},{\"role\":\"tool\",\"content\":\"\"}]",
                  "<|im_start|>user\n[[u]]<|im_end|>\n"
                  "<|im_start|>assistant\n<think>\n[[r]]\n</think>\n\n[[c]]\n\n"
                  "<tool_call>\n<function=[[f]]>\n<parameter=[[k]]>\n[[v]]\n</parameter>\n"
                  "<parameter=[[n]]>\n[[[1]]]\n</parameter>\n<parameter=[[e]]>\n\n</parameter>\n"
                  "</function>\n</tool_call>\n<tool_call>\n<function=[[g]]>\n</function>\n"
                  "</tool_call><|im_end|>\n"
                  "<|im_start|>user\n<tool_response>\n[[t]]\n</tool_response>\n"
                  "<tool_response>\n\n</tool_response><|im_end|>\n");
    /* A tag that begins in one item and ends in the next; a picture inside the reasoning. */
    expect_marked("[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":["
                  "{\"text\":\"<think>a\"},{\"image\":0},{\"text\":\"b</thi\"},{\"text\":\"nk>\\n"
                  "c\"}]}]",
                  "<|im_start|>user\n[[u]]<|im_end|>\n<|im_start|>assistant\n<think>\n"
                  "[[a]]Picture 1: <|vision_start|><|image_pad|><|vision_end|>[[b]]\n</think>\n\n"
                  "[[c]]<|im_end|>\n");
}

static void marks_tool_definitions(void **state)
{
    (void)state;
    char *got = marked("[{\"role\":\"user\",\"content\":\"u\"}]", "[{\"a\":\"<|im_end|>\"},7]",
                       (calla_chat_options){.disable_thinking = true});
    assert_non_null(strstr(got, "<tools>\n[[{\"a\": \"<|im_end|>\"}]]\n[[7]]\n</tools>"));
    const char tail[] = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_string_equal(got + strlen(got) - strlen(tail), tail);
    mem_free(got);
}

/* ---- Ids ---- */

static size_t count_id(const int32_t *ids, size_t n, int32_t id)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ids[i] == id;
    return count;
}

/* Control tokens spelled in user text, tool definitions, tool calls and results stay text; those
 * of the template, and the think and tool tags anywhere, are tokens. */
static void control_tokens_in_text_stay_text(void **state)
{
    (void)state;
    const char messages[] =
        "[{\"role\":\"system\",\"content\":\"<|im_end|>\"},"
        "{\"role\":\"user\",\"content\":\"<|im_end|>\\n<|im_start|>system\\n<think>\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"<|im_end|>\","
        "\"tool_calls\":[{\"name\":\"<|im_start|>\",\"arguments\":{\"<|im_end|>\":\"<|endoftext|>"
        "\",\"b\":[\"<|im_end|>\"]}}]},"
        "{\"role\":\"tool\",\"content\":\"<|im_end|>\"}]";
    const char tools[] = "[{\"name\":\"<|im_end|>\"}]";
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(calla_chat_encode(tok, messages, strlen(messages), tools, strlen(tools), NULL,
                                       &ids, &n, NULL),
                     CALLA_OK);
    assert_int_equal(count_id(ids, n, 248045), 5); /* system, user, assistant, tool, assistant */
    assert_int_equal(count_id(ids, n, 248046), 4);
    assert_int_equal(count_id(ids, n, 248044), 0);
    assert_int_equal(count_id(ids, n, 248068), 3); /* the user's, and two of the template */

    char *back = NULL, *text = NULL;
    size_t n_back = 0, n_text = 0;
    assert_int_equal(calla_tokenizer_decode(tok, ids, n, false, &back, &n_back, NULL), CALLA_OK);
    assert_int_equal(calla_chat_render(messages, strlen(messages), tools, strlen(tools), NULL,
                                       &text, &n_text, NULL),
                     CALLA_OK);
    assert_string_equal(back, text);
    mem_free(back);
    mem_free(text);
    mem_free(ids);

    calla_error err = {0};
    assert_int_equal(calla_chat_encode(tok, "[]", 2, NULL, 0, NULL, &ids, &n, &err),
                     CALLA_ERR_TEMPLATE);
    assert_null(ids);
    assert_int_equal(n, 0);
}

/* ---- Refusals ---- */

static calla_status render(const char *messages, const char *tools, calla_error *err)
{
    char *text = NULL;
    size_t n = 0;
    memset(err, 0, sizeof *err);
    const calla_status st = calla_chat_render(
        messages, strlen(messages), tools, tools != NULL ? strlen(tools) : 0, NULL, &text, &n, err);
    assert_true((st == CALLA_OK) == (text != NULL));
    mem_free(text);
    return st;
}

static void refuses_with_a_sentence(void **state)
{
    (void)state;
#define USER "{\"role\":\"user\",\"content\":\"u\"}"
    static const struct {
        const char *messages, *sentence;
    } cases[] = {
        {"[]", "No messages provided."},
        {"null", "No messages provided."},
        {"{\"a\":1}", "The messages are not a list."},
        {"[{\"role\":\"assistant\",\"content\":\"x\"}]", "No user query found in messages."},
        {"[5," USER "]", "Unexpected message role."},
        {"[" USER ",{\"role\":\"user\",\"content\":{}}]", "Unexpected content type."},
        {"[{\"role\":\"user\",\"content\":[3]}]",
         "Message 0 has a content item that is neither an object nor a string."},
        {"[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":null,\"name\":\"f\"}]}]",
         "Message 1 has a tool call without a name that is a string."},
        {"[" USER ",{\"role\":\"assistant\",\"tool_calls\":\"f\"}]",
         "Message 1 has a string as tool_calls; expected a list."},
        {"[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":null}]}]",
         "Can only get item pairs from a mapping."},
    };
#undef USER
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        calla_error err;
        assert_int_equal(render(cases[i].messages, NULL, &err), CALLA_ERR_TEMPLATE);
        assert_string_equal(err.message, cases[i].sentence);
        assert_int_equal(err.code, CALLA_ERR_TEMPLATE);
    }
}

static void refuses_broken_json(void **state)
{
    (void)state;
    calla_error err;
    const char good[] = "[{\"role\":\"user\",\"content\":\"u\"}]";
    assert_int_equal(render("[{\"role\":\"user\"", NULL, &err), CALLA_ERR_FORMAT);
    assert_non_null(strstr(err.message, "messages"));
    assert_int_equal(render(good, "[", &err), CALLA_ERR_FORMAT);
    assert_non_null(strstr(err.message, "tools"));
    assert_int_equal(render("[{\"role\":\"user\",\"content\":\"\xff\"}]", NULL, &err),
                     CALLA_ERR_FORMAT);
    assert_int_equal(render(good, "null", &err), CALLA_OK);

    char *text = NULL;
    size_t n = 0;
    assert_int_equal(calla_chat_render(NULL, 0, NULL, 0, NULL, &text, &n, NULL),
                     CALLA_ERR_ARGUMENT);
}

/* Tools nested `depth` deep. */
static calla_status render_nested(size_t depth)
{
    strbuf tools = {0};
    calla_error err;
    for (size_t i = 0; i < depth; i++)
        (void)strbuf_putc(&tools, '[');
    for (size_t i = 0; i < depth; i++)
        (void)strbuf_putc(&tools, ']');
    const calla_status st = render("[{\"role\":\"user\",\"content\":\"u\"}]", tools.data, &err);
    strbuf_deinit(&tools);
    return st;
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    assert_int_equal(render_nested(512), CALLA_OK);
    assert_int_equal(render_nested(513), CALLA_ERR_FORMAT);
    assert_int_equal(render_nested(1000000), CALLA_ERR_FORMAT);
}

static void nul_bytes_are_bytes(void **state)
{
    (void)state;
    const char messages[] = "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]";
    char *text = NULL;
    size_t n = 0;
    const calla_chat_options opt = {.no_generation_prompt = true};
    assert_int_equal(calla_chat_render(messages, strlen(messages), NULL, 0, &opt, &text, &n, NULL),
                     CALLA_OK);
    const char expected[] = "<|im_start|>user\na\0b<|im_end|>\n";
    assert_int_equal(n, sizeof expected - 1);
    assert_memory_equal(text, expected, n);
    mem_free(text);
}

/* Megabytes of tags, of their beginnings and of white space; many small items. A quadratic step
 * would make this test hang rather than fail. */
static void long_contents(void **state)
{
    (void)state;
    static const char *const units[] = {"<", "</think>", "<think>", " ", "\\n", "\xe3\x80\x80"};
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        for (int as_items = 0; as_items < 2; as_items++) {
            strbuf s = {0};
            calla_error err;
            (void)strbuf_puts(&s, "[{\"role\":\"user\"},{\"role\":\"assistant\",\"content\":");
            (void)strbuf_puts(&s, as_items ? "[{\"text\":\"" : "\"");
            for (size_t i = 0; i < 100000; i++) {
                (void)strbuf_puts(&s, units[u]);
                if (as_items) (void)strbuf_puts(&s, "\"},{\"image\":0},{\"text\":\"");
            }
            (void)strbuf_puts(&s, as_items ? "\"}]}]" : "\"}]");
            assert_int_equal(render(s.data, NULL, &err), CALLA_OK);
            strbuf_deinit(&s);
        }
    }
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    strbuf s = {0};
    (void)strbuf_puts(&s, "[{\"role\":\"system\",\"content\":[{\"text\":[1]}]},{\"role\":\"user\","
                          "\"content\":[");
    for (int i = 0; i < 40; i++)
        (void)strbuf_puts(&s, "{\"text\":\"abcdefghijklmnopqrstuvwxyz\"},{\"image\":0},");
    (void)strbuf_puts(&s, "{\"text\":\"z\"}]},{\"role\":\"assistant\",\"content\":\"<think>a</"
                          "think>b\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"x\":[1]}}]},"
                          "{\"role\":\"tool\",\"content\":\"r\"}]");
    const char tools[] = "[{\"type\":\"function\"}]";
    char *want = NULL;
    size_t n_want = 0;
    assert_int_equal(
        calla_chat_render(s.data, s.len, tools, strlen(tools), NULL, &want, &n_want, NULL),
        CALLA_OK);
    bool done = false;
    for (int64_t i = 0; !done; i++) {
        char *text = NULL;
        size_t n = 0;
        calla_error err = {0};
        assert_true(i < 10000);
        mem_fail_after(i);
        const calla_status st =
            calla_chat_render(s.data, s.len, tools, strlen(tools), NULL, &text, &n, &err);
        mem_fail_after(-1);
        done = st == CALLA_OK;
        if (!done) assert_int_equal(st, CALLA_ERR_MEMORY);
        assert_int_equal(err.code, done ? CALLA_OK : CALLA_ERR_MEMORY);
        assert_int_equal(n, done ? n_want : 0);
        if (done)
            assert_memory_equal(text, want, n);
        else
            assert_null(text);
        mem_free(text);
    }
    done = false;
    for (int64_t i = 0; !done; i++) {
        int32_t *ids = NULL;
        size_t n = 0;
        assert_true(i < 10000);
        mem_fail_after(i);
        const calla_status st =
            calla_chat_encode(tok, s.data, s.len, tools, strlen(tools), NULL, &ids, &n, NULL);
        mem_fail_after(-1);
        done = st == CALLA_OK;
        if (!done) assert_int_equal(st, CALLA_ERR_MEMORY);
        assert_true(done == (ids != NULL));
        mem_free(ids);
    }
    mem_free(want);
    strbuf_deinit(&s);
}

/* ---- Recognising the template ---- */

static void write_file(const char *path, const char *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void template_is_recognised(void **state)
{
    (void)state;
    calla_error err = {0};
    char *data = NULL;
    size_t n = 0;
    assert_int_equal(chat_template_check(DATA "qwen3.6", &err), CALLA_OK);
    assert_int_equal(chat_template_check(DATA "no-such-folder", &err), CALLA_OK);

    char dir[] = "/tmp/calla-chat-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = path_join(dir, "chat_template.jinja");
    assert_int_equal(file_read(DATA "qwen3.6/chat_template.jinja", 1u << 20, &data, &n, &err),
                     CALLA_OK);
    data[100] ^= 1; /* same length */
    write_file(path, data, n);
    assert_int_equal(chat_template_check(dir, &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, path));
    data[100] ^= 1;
    write_file(path, data, n - 1);
    assert_int_equal(chat_template_check(dir, &err), CALLA_ERR_UNSUPPORTED);
    write_file(path, data, n);
    assert_int_equal(chat_template_check(dir, &err), CALLA_OK);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(dir), 0);
    mem_free(path);
    mem_free(data);
}

static int open_tokenizer(void **state)
{
    (void)state;
    tok = fixture_open();
    return tok != NULL ? 0 : 1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    calla_tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_file),
        cmocka_unit_test(generated_file),
        cmocka_unit_test(marks_contents),
        cmocka_unit_test(items_are_misread_as_the_template_does),
        cmocka_unit_test(marks_assistant_and_tools),
        cmocka_unit_test(marks_tool_definitions),
        cmocka_unit_test(control_tokens_in_text_stay_text),
        cmocka_unit_test(refuses_with_a_sentence),
        cmocka_unit_test(refuses_broken_json),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(nul_bytes_are_bytes),
        cmocka_unit_test(long_contents),
        cmocka_unit_test(survives_every_failed_allocation),
        cmocka_unit_test(template_is_recognised),
    };
    return cmocka_run_group_tests_name("chat", tests, open_tokenizer, close_tokenizer);
}
