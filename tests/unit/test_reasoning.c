/* Division of generated tokens into thinking and answer, with the tokenizer of models/nano. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "text/reasoning.h"

static calla_tokenizer *tok;

static int open_tokenizer(void **state)
{
    (void)state;
    return calla_tokenizer_open(&tok, "models/nano", NULL) == CALLA_OK ? 0 : -1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    calla_tokenizer_close(tok);
    return 0;
}

typedef struct parts {
    strbuf thought, answer;
} parts;

static void collect(void *user, bool thinking, const char *text, size_t n)
{
    parts *p = user;
    assert_true(n > 0);
    strbuf_append(thinking ? &p->thought : &p->answer, text, n);
}

/* Divides `output`, generated after `prompt`, and compares. */
static void check(const char *prompt, const char *output, const char *thought, const char *answer)
{
    int32_t *in = NULL, *out = NULL;
    size_t n_in = 0, n_out = 0;
    parts p = {0};
    reasoning r;
    assert_int_equal(calla_tokenizer_encode(tok, prompt, strlen(prompt), 0, &in, &n_in, NULL), 0);
    assert_int_equal(calla_tokenizer_encode(tok, output, strlen(output), 0, &out, &n_out, NULL), 0);
    reasoning_init(&r, tok, in, n_in);
    for (size_t i = 0; i < n_out; i++) {
        size_t n = 0;
        const char *bytes = calla_tokenizer_bytes(tok, out[i], &n);
        reasoning_push(&r, out[i], bytes, n, collect, &p);
    }
    reasoning_finish(&r, collect, &p);
    assert_string_equal(p.thought.data ? p.thought.data : "", thought);
    assert_string_equal(p.answer.data ? p.answer.data : "", answer);
    strbuf_deinit(&p.thought);
    strbuf_deinit(&p.answer);
    calla_free(in);
    calla_free(out);
}

#define ASK "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

static void test_begins_as_the_prompt_says(void **state)
{
    (void)state;
    check(ASK "<think>\n", "I greet.\n</think>\n\nHello!", "I greet.", "Hello!");
    check(ASK "<think>\n\n</think>\n\n", "Hello!", "", "Hello!");
    check(ASK, "Hello!", "", "Hello!");
    /* An earlier turn's thinking is over. */
    check("<think>\na\n</think>\n\nb" ASK, "Hello!", "", "Hello!");
    check("<think>\na\n</think>\n\nb" ASK "<think>\n", "Hm", "Hm", "");
}

static void test_tags(void **state)
{
    (void)state;
    check(ASK "<think>\n", "<think>\nA\n</think>\n\nB", "A", "B"); /* repeated tag */
    check(ASK, "A</think>B", "", "AB");                            /* stray tag */
    check(ASK, "A<think>B</think>C", "B", "AC");                   /* thinks again */
    check(ASK "<think>\n", "never ends", "never ends", "");
    check(ASK "<think>\n", "</think>\n\nB", "", "B");
    check(ASK, "A<|im_start|>B", "", "AB"); /* special tokens are never shown */
    check(ASK, "<tool_call>\nx\n</tool_call>", "", "<tool_call>\nx\n</tool_call>");
}

static void test_newlines(void **state)
{
    (void)state;
    check(ASK "<think>\n", "\n\nA\n\nB\n\n</think>\n\n\nC\n\n\nD\n\n", "A\n\nB", "C\n\n\nD");
    check(ASK, "\n \nA \n", "", " \nA ");
    check(ASK, "\n\n\n", "", "");
}

static void test_utf8(void **state)
{
    (void)state;
    check(ASK, "Grüße, 世界 🙂", "", "Grüße, 世界 🙂");
    /* Half a character at the end of a part becomes U+FFFD there, and does not leak over. */
    parts p = {0};
    reasoning r;
    const int32_t begin = calla_tokenizer_added_id(tok, "<think>");
    const int32_t end = calla_tokenizer_added_id(tok, "</think>");
    reasoning_init(&r, tok, &begin, 1);
    reasoning_push(&r, 0, "A\xe4\xb8", 3, collect, &p);
    reasoning_push(&r, end, "</think>", 8, collect, &p);
    reasoning_push(&r, 0, "\x96", 1, collect, &p);
    reasoning_push(&r, 0, "B\xf0\x9f", 3, collect, &p);
    reasoning_push(&r, 0, "\x99\x82\xc3", 3, collect, &p);
    reasoning_finish(&r, collect, &p);
    assert_string_equal(p.thought.data, "A\xef\xbf\xbd");
    assert_string_equal(p.answer.data, "\xef\xbf\xbd"
                                       "B\xf0\x9f\x99\x82\xef\xbf\xbd");
    strbuf_deinit(&p.thought);
    strbuf_deinit(&p.answer);
}

static void test_raw(void **state)
{
    (void)state;
    parts p = {0};
    reasoning r;
    const int32_t end = calla_tokenizer_added_id(tok, "</think>");
    reasoning_init_raw(&r, tok);
    reasoning_push(&r, 0, "\n\na\n", 4, collect, &p);
    reasoning_push(&r, end, "</think>", 8, collect, &p);
    reasoning_push(&r, calla_tokenizer_added_id(tok, "<|im_start|>"), "<|im_start|>", 12, collect,
                   &p);
    reasoning_push(&r, 0, "\n", 1, collect, &p);
    reasoning_finish(&r, collect, &p);
    assert_null(p.thought.data);
    assert_string_equal(p.answer.data, "\n\na\n</think>\n");
    strbuf_deinit(&p.answer);
}

static void test_long_token(void **state)
{
    (void)state;
    parts p = {0};
    reasoning r;
    char text[1001];
    memset(text, 'x', 1000);
    text[1000] = '\0';
    memcpy(text + 255, "\xc3\xbc", 2); /* a character across the step of the decoder */
    reasoning_init(&r, tok, NULL, 0);
    reasoning_push(&r, 0, text, 1000, collect, &p);
    reasoning_finish(&r, collect, &p);
    assert_string_equal(p.answer.data, text);
    strbuf_deinit(&p.answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_begins_as_the_prompt_says),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_newlines),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_long_token),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
