/* A constraint, a vocabulary of the real size and the sampler together: random logits write valid
 * documents and calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/filter_constraint.h"
#include "engine/sampler.h"
#include "support/schema_check.h"
#include "tokenizer_fixture.h"

#define N_VOCAB 248077u
#define STOP_ID 248046 /* <|im_end|> */

static calla_tokenizer *tok;

static int open_tokenizer(void **state)
{
    (void)state;
    tok = fixture_open();
    return tok == NULL;
}

static int close_tokenizer(void **state)
{
    (void)state;
    calla_tokenizer_close(tok);
    return 0;
}

static json_doc parse(const char *s, size_t n)
{
    json_doc doc = {0};
    calla_error err;
    if (json_parse(&doc, s, n, NULL, &err) != CALLA_OK) fail_msg("%s: %s", err.message, s);
    return doc;
}

static constraint *make(const char *schema)
{
    json_doc doc = parse(schema, strlen(schema));
    constraint *c;
    assert_int_equal(constraint_json_schema(&c, doc.root, false, NULL), CALLA_OK);
    json_free(&doc);
    return c;
}

static int32_t id_of(const char *s)
{
    int32_t *ids;
    size_t n;
    assert_int_equal(calla_tokenizer_encode(tok, s, strlen(s), 0, &ids, &n, NULL), CALLA_OK);
    assert_int_equal(n, 1);
    const int32_t id = ids[0];
    calla_free(ids);
    return id;
}

/* ---- Which tokens ---- */

static void test_control_tokens(void **state)
{
    (void)state;
    constraint *c = make("{\"type\":\"string\"}");
    sched_filter f;
    assert_int_equal(filter_constraint_create(&f, &c, 1, tok, NULL), CALLA_OK);
    constraint_destroy(c); /* the filter has its own */
    assert_false(f.may_end(f.user));
    assert_false(f.allow(f.user, id_of("a")));
    assert_true(f.allow(f.user, id_of("\"")));
    f.accept(f.user, id_of("\""));
    static const char *const texts[] = {"a", " the", "<tool_call>", "<", "</"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_true(f.allow(f.user, id_of(texts[i])));
    static const char *const control[] = {"<think>",        "</think>",        "<|im_end|>",
                                          "<|fim_prefix|>", "<tool_response>", "<tts_pad>"};
    for (size_t i = 0; i < sizeof control / sizeof *control; i++)
        assert_false(f.allow(f.user, id_of(control[i])));
    assert_false(f.allow(f.user, -1));
    assert_false(f.allow(f.user, (int32_t)N_VOCAB + 100));
    f.accept(f.user, id_of("\""));
    assert_true(f.may_end(f.user));
    f.destroy(f.user);
}

static void test_two_forms(void **state)
{
    (void)state;
    constraint *forms[] = {NULL, make("{\"type\":\"integer\"}")};
    sched_filter f;
    assert_int_equal(filter_constraint_create(&f, forms, 1, tok, NULL), CALLA_OK);
    assert_null(f.user);
    forms[0] = make("{\"enum\":[\"a\",12]}");
    assert_int_equal(filter_constraint_create(&f, forms, 3, tok, NULL), CALLA_ERR_ARGUMENT);
    assert_int_equal(filter_constraint_create(&f, forms, 2, tok, NULL), CALLA_OK);
    assert_true(f.allow(f.user, id_of("\"")) && f.allow(f.user, id_of("1")));
    f.accept(f.user, id_of("1"));
    assert_true(f.may_end(f.user) && f.allow(f.user, id_of("3")));
    f.accept(f.user, id_of("3"));
    assert_true(f.may_end(f.user) && !f.allow(f.user, id_of("\"")));
    f.destroy(f.user);
    for (int64_t n = 0; n < 3; n++) {
        mem_fail_after(n);
        assert_int_equal(filter_constraint_create(&f, forms, 2, tok, NULL), CALLA_ERR_MEMORY);
        mem_fail_after(-1);
    }
    constraint_destroy(forms[0]);
    constraint_destroy(forms[1]);
}

/* ---- Whole texts ---- */

static uint64_t rnd_state;

static float rnd(void) /* [0, 1) */
{
    rnd_state = rnd_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(rnd_state >> 40) * 0x1p-24f;
}

static bool allow(void *user, int32_t id)
{
    const sched_filter *f = user;
    return id == STOP_ID ? f->may_end(f->user) : f->allow(f->user, id);
}

/* Random logits in which what ends things becomes likelier with time. */
static void fill(float *row, uint32_t i_token)
{
    for (uint32_t i = 0; i < N_VOCAB; i++)
        row[i] = (rnd() + rnd() + rnd() - 1.5f) * 6.0f;
    static const char *const ends[] = {"\"",    "}",        "]", "</", "tool",
                                       "_call", "function", ">", "\n"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        row[id_of(ends[i])] += 4.0f + (float)i_token * 0.4f;
    row[STOP_ID] += 4.0f + (float)i_token;
}

static void write_text(const sched_filter *f, const calla_sampling *p, strbuf *out)
{
    static float row[N_VOCAB];
    sampler *s;
    assert_int_equal(sampler_create(&s, N_VOCAB, NULL, 0, NULL), CALLA_OK);
    sampler_begin(s, p, NULL, 0);
    for (uint32_t i = 0; i < 120; i++) {
        calla_error err;
        sched_filter copy = *f;
        int32_t id = -1;
        fill(row, i);
        if (sampler_draw_filtered(s, row, allow, &copy, &id, &err) != CALLA_OK)
            fail_msg("%s after %s", err.message, out->data);
        if (id == STOP_ID) {
            sampler_destroy(s);
            return;
        }
        size_t n;
        const char *bytes = calla_tokenizer_bytes(tok, id, &n);
        f->accept(f->user, id);
        strbuf_append(out, bytes, n);
    }
    fail_msg("no end: %s", out->data);
}

static void test_random_logits(void **state)
{
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
                                 "\"string\",\"maxLength\":40},\"n\":{"
                                 "\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{"
                                 "\"type\":\"array\",\"items\":{"
                                 "\"enum\":[\"x\",\"yy\",null]},\"minItems\":1,\"maxItems\":3}},"
                                 "\"required\":[\"name\",\"n\","
                                 "\"tags\"],\"additionalProperties\":false}";
    static const calla_sampling settings[] = {{.temperature = 0.0f},
                                              {.temperature = 1.0f, .top_k = 20, .top_p = 0.95f},
                                              {.temperature = 0.8f},
                                              {.temperature = 1.0f, .min_p = 0.02f}};
    json_doc root = parse(schema, sizeof schema - 1);
    constraint *c = make(schema);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        strbuf text = {0};
        sched_filter f;
        rnd_state = i + 1;
        assert_int_equal(filter_constraint_create(&f, &c, 1, tok, NULL), CALLA_OK);
        write_text(&f, &settings[i], &text);
        json_doc doc = parse(text.data, text.len);
        if (!schema_valid(root.root, root.root, doc.root)) fail_msg("not valid: %s", text.data);
        print_message("  %s\n", text.data);
        json_free(&doc);
        strbuf_deinit(&text);
        f.destroy(f.user);
    }
    constraint_destroy(c);
    json_free(&root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_tokens),
        cmocka_unit_test(test_two_forms),
        cmocka_unit_test(test_random_logits),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
