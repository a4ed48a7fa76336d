/* The tokenizer: golden ids, both forms of the file, added tokens, spans, decoding, refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include "tokenizer_fixture.h"

static calla_tokenizer *standin, *nano;

static int open_both(void **state)
{
    (void)state;
    calla_error err = {0};
    standin = fixture_open();
    if (calla_tokenizer_open(&nano, "models/nano", &err) != CALLA_OK)
        print_error("%s\n", err.message);
    return standin != NULL && nano != NULL ? 0 : 1;
}

static int close_both(void **state)
{
    (void)state;
    calla_tokenizer_close(standin);
    calla_tokenizer_close(nano);
    return 0;
}

/* The golden rows hold ids of the real vocabulary: those that the stand-in cannot have. */
static bool comparable(int64_t id)
{
    return id <= 103815 || id >= FIXTURE_FIRST_ADDED;
}

static void golden_rows(void **state)
{
    (void)state;
    char *data;
    size_t n, n_rows = 0;
    assert_int_equal(
        file_read("tests/data/qwen3.6/tokenizer-golden.jsonl", 1u << 20, &data, &n, NULL),
        CALLA_OK);
    for (size_t i = 0; i < n; n_rows++) {
        const size_t len = strcspn(data + i, "\n");
        json_doc doc = {0};
        assert_int_equal(json_parse(&doc, data + i, len, NULL, NULL), CALLA_OK);
        const json_value *text = json_get(doc.root, "text"), *want = json_get(doc.root, "ids");
        int32_t *ids;
        size_t n_ids;
        assert_int_equal(
            calla_tokenizer_encode(standin, text->text, text->n_text, 0, &ids, &n_ids, NULL),
            CALLA_OK);
        assert_int_equal(n_ids, want->n_items);
        size_t k = 0;
        for (const json_value *v = want->first; v != NULL; v = v->next, k++) {
            int64_t id;
            assert_true(json_int(v, &id));
            if (comparable(id)) assert_int_equal(ids[k], id);
        }
        mem_free(ids);
        json_free(&doc);
        i += len + 1;
    }
    assert_int_equal(n_rows, 57);
    mem_free(data);
}

/* ---- Encoding and decoding ---- */

static void assert_ids(const calla_tokenizer *tok, const char *text, size_t n,
                       const text_span *spans, size_t n_spans, const int32_t *want, size_t n_want)
{
    id_list got = {0};
    assert_int_equal(tokenizer_encode_spans(tok, text, n, spans, n_spans, &got, NULL), CALLA_OK);
    assert_int_equal(got.len, n_want);
    assert_memory_equal(got.data, want, n_want * sizeof *want);
    mem_free(got.data);
}

#define COUNT(...) (sizeof(const int32_t[]){__VA_ARGS__} / sizeof(int32_t))
#define IDS(text, ...)                                                                             \
    assert_ids(standin, text, strlen(text), NULL, 0, (const int32_t[]){__VA_ARGS__},               \
               COUNT(__VA_ARGS__))
#define IDS_SPAN(text, begin, end, ...)                                                            \
    assert_ids(standin, text, strlen(text), &(const text_span){begin, end}, 1,                     \
               (const int32_t[]){__VA_ARGS__}, COUNT(__VA_ARGS__))

enum { IM_START = 248045, IM_END = 248046, THINK = 248068 };
/* "<|im_end|>" as text: < | im _ end | > */
#define PLAIN_IM_END 27, 91, 316, 6018, 91, 29

static void added_tokens(void **state)
{
    (void)state;
    IDS("a<|im_end|>b", 64, IM_END, 65);
    IDS("<|im_end|><|im_end|>", IM_END, IM_END);
    IDS("<<think>", 27, THINK);
    IDS("<thin<think>", 13314, 258, THINK); /* "<th" "in" */
    IDS("<tts_text_bos_single>", 248075);   /* the longest wins over <tts_text_bos ... */
    IDS("<tts_text_bos>", 248073);
    /* Pieces beside an added token are separate texts: the space is not joined to b. */
    IDS("a <think> b", 64, 220, THINK, 292);
    /* NFC does not reach across one. */
    IDS("e<think>\xCC\x81", 68, THINK, 52033);
}

static void spans(void **state)
{
    (void)state;
    const char *text = "a<|im_end|>b<|im_end|>";
    const int32_t both[] = {64, IM_END, 65, IM_END};
    assert_ids(standin, text, 22, NULL, 0, both, 4);
    IDS_SPAN(text, 0, 12, 64, PLAIN_IM_END, 65, IM_END);
    IDS_SPAN(text, 10, 11, 64, PLAIN_IM_END, 65, IM_END); /* its last byte is inside */
    IDS_SPAN(text, 0, 2, 64, PLAIN_IM_END, 65, IM_END);   /* its first byte is inside */
    IDS_SPAN(text, 11, 12, 64, IM_END, 65, IM_END);       /* beside it: not touched */
    IDS_SPAN(text, 5, 5, 64, IM_END, 65, IM_END);         /* an empty span holds nothing */
    IDS_SPAN("<think><|im_end|>", 0, 17, THINK, PLAIN_IM_END);
    IDS_SPAN("<|im_end|", 0, 9, 27, 91, 316, 6018, 91);
    const text_span two[] = {{0, 3}, {12, 13}};
    const int32_t none[] = {64, PLAIN_IM_END, 65, PLAIN_IM_END};
    assert_ids(standin, text, 22, two, 2, none, sizeof none / sizeof *none);

    int32_t *ids;
    size_t n;
    assert_int_equal(
        calla_tokenizer_encode(standin, text, 22, CALLA_ENCODE_PLAIN_TEXT, &ids, &n, NULL),
        CALLA_OK);
    assert_int_equal(n, sizeof none / sizeof *none);
    assert_memory_equal(ids, none, sizeof none);
    mem_free(ids);
    assert_int_equal(calla_tokenizer_encode(standin, text, 22, 2, &ids, &n, NULL),
                     CALLA_ERR_ARGUMENT);
    assert_null(ids);
}

static void lookups(void **state)
{
    (void)state;
    size_t n = 1;
    assert_int_equal(calla_tokenizer_size(standin), 248077);
    assert_int_equal(calla_tokenizer_size(nano), 4065);
    assert_int_equal(calla_tokenizer_added_id(standin, "<|im_end|>"), IM_END);
    assert_int_equal(calla_tokenizer_added_id(standin, "<|im_end|"), -1);
    assert_int_equal(calla_tokenizer_added_id(standin, "<|im_end|>x"), -1);
    assert_int_equal(calla_tokenizer_added_id(standin, ""), -1);
    assert_true(calla_tokenizer_is_special(standin, IM_END));
    assert_false(calla_tokenizer_is_special(standin, THINK));
    assert_false(calla_tokenizer_is_special(standin, 64));
    assert_false(calla_tokenizer_is_special(standin, -1));
    assert_false(calla_tokenizer_is_special(standin, 248077));
    assert_null(calla_tokenizer_bytes(standin, 248077, &n));
    assert_int_equal(n, 0);
    assert_null(calla_tokenizer_bytes(standin, -1, &n));
    assert_memory_equal(calla_tokenizer_bytes(standin, 220, &n), " ", 1);
    assert_int_equal(n, 1);
    calla_tokenizer_close(NULL);
}

static void assert_text(const int32_t *ids, size_t n_ids, bool skip, const char *want)
{
    char *text;
    size_t n;
    assert_int_equal(calla_tokenizer_decode(standin, ids, n_ids, skip, &text, &n, NULL), CALLA_OK);
    assert_int_equal(n, strlen(want));
    assert_string_equal(text, want);
    mem_free(text);
}

static void decoding(void **state)
{
    (void)state;
    const int32_t ids[] = {IM_START, 64, THINK, IM_END, 300000, -5};
    assert_text(ids, 6, false, "<|im_start|>a<think><|im_end|>");
    assert_text(ids, 6, true, "a<think>");
    assert_text(NULL, 0, false, "");
    const int32_t half[] = {127, 64, 127, 102}; /* 0xC3, "a", 0xC3 0xA9 */
    assert_text(half, 4, false,
                "\xEF\xBF\xBD"
                "a\xC3\xA9");
}

static void broken_text(void **state)
{
    (void)state;
    id_list a = {0}, b = {0};
    assert_int_equal(tokenizer_encode_spans(standin, "a\xE4\xB8<think>\xFF", 11, NULL, 0, &a, NULL),
                     CALLA_OK);
    assert_int_equal(
        tokenizer_encode_spans(standin, "a\xEF\xBF\xBD<think>\xEF\xBF\xBD", 14, NULL, 0, &b, NULL),
        CALLA_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len * sizeof *a.data);
    mem_free(a.data);
    mem_free(b.data);
}

/* What is not changed by NFC comes back byte for byte; NUL is an ordinary byte. */
static void round_trips(void **state)
{
    (void)state;
    static const char text[] = "\0 int main(void)\r\n{\n\treturn 0;  }\n\n\xE4\xB8\xAD\xE6\x96\x87 "
                               "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 don't \xC3\xA9 12.5 "
                               "<think>\n</think> \xE3\x80\x80\xC2\x85   ";
    const calla_tokenizer *const both[] = {standin, nano};
    for (size_t i = 0; i < 2; i++) {
        int32_t *ids;
        char *back;
        size_t n_ids, n_back;
        assert_int_equal(calla_tokenizer_encode(both[i], text, sizeof text, 0, &ids, &n_ids, NULL),
                         CALLA_OK);
        assert_int_equal(calla_tokenizer_decode(both[i], ids, n_ids, false, &back, &n_back, NULL),
                         CALLA_OK);
        assert_int_equal(n_back, sizeof text);
        assert_memory_equal(back, text, sizeof text);
        mem_free(ids);
        mem_free(back);
    }
}

/* A megabyte of what quadratic algorithms fear. There is no clock here: the test would not end. */
static void megabytes(void **state)
{
    (void)state;
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        " \n",
                                        "<",
                                        "<|im_",
                                        "'",
                                        "\xCC\x81",
                                        "\xCD\x85\xCC\x81\xCC\x96\xCC\xB4",
                                        "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB",
                                        "\xFF"};
    enum { SIZE = 1 << 20 };
    char *text = mem_alloc(SIZE);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const size_t len = strlen(units[i]), n = SIZE / len * len;
        for (size_t k = 0; k < n; k++)
            text[k] = units[i][k % len];
        int32_t *ids;
        size_t n_ids;
        assert_int_equal(calla_tokenizer_encode(standin, text, n, 0, &ids, &n_ids, NULL), CALLA_OK);
        assert_true(n_ids > 1000);
        mem_free(ids);
    }
    mem_free(text);
    int32_t *ids;
    size_t n_ids;
    assert_int_equal(
        calla_tokenizer_encode(standin, "", (size_t)TOKENIZER_TEXT_MAX + 1, 0, &ids, &n_ids, NULL),
        CALLA_ERR_ARGUMENT);
}

/* ---- The file ---- */

/* The two published forms, and added tokens of which the config names the last seven. */
static void both_forms(void **state)
{
    (void)state;
    strbuf json = {0}, config = {0};
    calla_tokenizer *tok;
    assert_true(fixture_json(&json, false, 26));
    strbuf_puts(&config, "{\"added_tokens_decoder\": {");
    for (size_t i = 0; i < 33; i++)
        strbuf_printf(&config,
                      "%s\"%u\": {\"content\": \"%s\", \"lstrip\": false, \"normalized\": false, "
                      "\"rstrip\": false, \"single_word\": false, \"special\": %s}",
                      i > 0 ? ", " : "", FIXTURE_FIRST_ADDED + (unsigned)i,
                      fixture_tokens[i].spelling, fixture_tokens[i].special ? "true" : "false");
    strbuf_puts(&config, "}}");
    calla_error err;
    if (tokenizer_parse(&tok, json.data, json.len, config.data, config.len, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    assert_int_equal(calla_tokenizer_size(tok), 248077);
    const char *text = "<tts_pad>The <|im_end|>quick";
    id_list a = {0}, b = {0};
    assert_int_equal(tokenizer_encode_spans(tok, text, strlen(text), NULL, 0, &a, NULL), CALLA_OK);
    assert_int_equal(tokenizer_encode_spans(standin, text, strlen(text), NULL, 0, &b, NULL),
                     CALLA_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len * sizeof *a.data);
    mem_free(a.data);
    mem_free(b.data);
    calla_tokenizer_close(tok);
    strbuf_deinit(&json);
    strbuf_deinit(&config);
}

/* A small whole file: 256 bytes, 256 "ab", 257 "abc", 258 "bc", then three added tokens. */
static void mini_json(strbuf *out)
{
    strbuf_puts(out, "{");
    fixture_added_tokens(out, 259, 3);
    strbuf_puts(out, FIXTURE_MIDDLE "{");
    fixture_bytes(out);
    strbuf_puts(out, "\"ab\": 256, \"abc\": 257, \"bc\": 258}, \"merges\": [[\"a\", \"b\"], "
                     "[\"ab\", \"c\"], [\"b\", \"c\"]]}}");
}

typedef struct refusal {
    const char *from, *to; /* first occurrence in the small file */
    calla_status code;
    const char *message;
} refusal;

static const refusal refusals[] = {
    {"\"NFC\"", "\"NFKC\"", CALLA_ERR_UNSUPPORTED, "normalizer is not NFC"},
    {"{\"type\": \"NFC\"}", "null", CALLA_ERR_UNSUPPORTED, "normalizer is not NFC"},
    {"[\\\\p{L}\\\\p{M}]+", "\\\\p{L}+", CALLA_ERR_UNSUPPORTED, "regex is not"},
    {"\"Isolated\"", "\"Removed\"", CALLA_ERR_UNSUPPORTED, "Split is not \"Isolated\""},
    {"\"invert\": false", "\"invert\": true", CALLA_ERR_UNSUPPORTED, "Split is not \"Isolated\""},
    {"\"Sequence\"", "\"Whitespace\"", CALLA_ERR_UNSUPPORTED, "pre_tokenizer is not"},
    {"\"add_prefix_space\": false", "\"add_prefix_space\": true", CALLA_ERR_UNSUPPORTED,
     "ByteLevel is not without"},
    {"\"use_regex\": false", "\"use_regex\": true", CALLA_ERR_UNSUPPORTED,
     "ByteLevel is not without"},
    {"\"post_processor\": {\"type\": \"ByteLevel\"", "\"post_processor\": {\"type\": \"Template\"",
     CALLA_ERR_UNSUPPORTED, "post_processor is not ByteLevel"},
    {"\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"WordPiece\"",
     CALLA_ERR_UNSUPPORTED, "decoder is not ByteLevel"},
    {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", CALLA_ERR_UNSUPPORTED, "model.type is not"},
    {"\"dropout\": null", "\"dropout\": 0.1", CALLA_ERR_UNSUPPORTED, "model.dropout is set"},
    {"\"unk_token\": null", "\"unk_token\": \"?\"", CALLA_ERR_UNSUPPORTED, "unk_token is set"},
    {"\"byte_fallback\": false", "\"byte_fallback\": true", CALLA_ERR_UNSUPPORTED,
     "byte_fallback is set"},
    {"\"ignore_merges\": false", "\"ignore_merges\": true", CALLA_ERR_UNSUPPORTED,
     "ignore_merges is set"},
    {"\"end_of_word_suffix\": \"\"", "\"end_of_word_suffix\": \"x\"", CALLA_ERR_UNSUPPORTED,
     "end_of_word_suffix is set"},
    {"\"lstrip\": false", "\"lstrip\": true", CALLA_ERR_UNSUPPORTED, "does not have lstrip false"},
    {"\"normalized\": false", "\"normalized\": true", CALLA_ERR_UNSUPPORTED,
     "does not have normalized false"},
    {", \"special\": true", "", CALLA_ERR_FORMAT, "added token 259 has no content or no special"},
    {"\"id\": 259", "\"id\": 260", CALLA_ERR_FORMAT, "contradicts id 260"},
    {"\"id\": 259", "\"id\": -1", CALLA_ERR_FORMAT, "no id between"},
    {"\"id\": 261", "\"id\": 262", CALLA_ERR_FORMAT, "(ids must be dense)"},
    {"<|im_start|>", "<|endoftext|>", CALLA_ERR_FORMAT, "contradicts id 259"},
    {"<|im_start|>", "abc", CALLA_ERR_FORMAT, "occurs twice, with ids 257 and 260"},
    {"\"ab\": 256", "\"ab\": 257", CALLA_ERR_FORMAT, "two tokens have id 257"},
    {"\"ab\": 256", "\"ab\": 16777216", CALLA_ERR_FORMAT, "has the id 16777216"},
    {"\"ab\": 256", "\"ab\": 1e2", CALLA_ERR_FORMAT, "has the id 1e2"},
    {"\"ab\": 256", "\"ab\": \"256\"", CALLA_ERR_FORMAT, "found a string"},
    {"\"ab\": 256", "\"ab\": []", CALLA_ERR_FORMAT, "found an array"},
    {"\"ab\": 256", "\"\": 256", CALLA_ERR_FORMAT, "has 0 bytes"},
    {"\"ab\": 256", "\"a b\": 256", CALLA_ERR_FORMAT, "outside the 256"},
    {"\"ab\": 256", "\"a\xE4\xB8\xAD\": 256", CALLA_ERR_FORMAT, "outside the 256"},
    {"\"ab\": 256", "\"bc\": 256", CALLA_ERR_FORMAT, "occurs twice"},
    {"\"!\": 0", "\"!!\": 0", CALLA_ERR_FORMAT, "byte 0x21 is not a token"},
    {"[\"b\", \"c\"]", "[\"a\", \"b\"]", CALLA_ERR_FORMAT, "merge 2 repeats a pair"},
    {"[\"b\", \"c\"]", "[\"c\", \"c\"]", CALLA_ERR_FORMAT, "merge 2 names a product"},
    {"[\"b\", \"c\"]", "[\"bd\", \"c\"]", CALLA_ERR_FORMAT, "merge 2 names a part"},
    {"[\"b\", \"c\"]", "[\"b\"]", CALLA_ERR_FORMAT, "fewer than two parts"},
    {"[\"b\", \"c\"]", "[\"b\", \"c\", \"d\"]", CALLA_ERR_FORMAT, "more than two parts"},
    {"[\"b\", \"c\"]", "[\"b\", \"\"]", CALLA_ERR_FORMAT, "has 0 bytes"},
    {"[\"b\", \"c\"]", "\"bc\"", CALLA_ERR_FORMAT, "a string without a space"},
    {"[\"b\", \"c\"]", "\"b c d\"", CALLA_ERR_FORMAT, "outside the 256"},
    {"[\"b\", \"c\"]", "7", CALLA_ERR_FORMAT, "found a number"},
    {"[\"b\", \"c\"]", "[[\"b\", \"c\"]]", CALLA_ERR_FORMAT, "found an array"},
    {"\"merges\": [", "\"merges\": {\"a\": ", CALLA_ERR_FORMAT, "model.merges is not an array"},
    {"\"vocab\": {", "\"vocab\": [] , \"x\": {", CALLA_ERR_FORMAT, "model.vocab is not an object"},
    {"\"vocab\": {", "\"vocab\": {}, \"vocab\": {", CALLA_ERR_FORMAT, "model.vocab occurs twice"},
    {"\"merges\": [", "\"mergers\": [", CALLA_ERR_FORMAT, "no vocab or no merges"},
    {"\"vocab\": {", "\"vocabulary\": {", CALLA_ERR_FORMAT, "no vocab or no merges"},
    {"]}}", "]}", CALLA_ERR_FORMAT, "not valid JSON"},
};

static calla_status parse_edited(const refusal *r, calla_error *err)
{
    strbuf json = {0}, edited = {0};
    calla_tokenizer *tok = NULL;
    mini_json(&json);
    const char *at = strstr(json.data, r->from);
    assert_non_null(at);
    strbuf_append(&edited, json.data, (size_t)(at - json.data));
    strbuf_puts(&edited, r->to);
    strbuf_puts(&edited, at + strlen(r->from));
    const calla_status st = tokenizer_parse(&tok, edited.data, edited.len, NULL, 0, err);
    assert_int_equal(tok != NULL, st == CALLA_OK);
    calla_tokenizer_close(tok);
    strbuf_deinit(&json);
    strbuf_deinit(&edited);
    return st;
}

static void refused_files(void **state)
{
    (void)state;
    const refusal nothing = {"\"ab\": 256", "\"ab\": 256", CALLA_OK, ""};
    assert_int_equal(parse_edited(&nothing, NULL), CALLA_OK);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        calla_error err = {0};
        const calla_status st = parse_edited(r, &err);
        if (st != r->code || strstr(err.message, r->message) == NULL)
            fail_msg("%s -> %s: code %d, \"%s\"", r->from, r->to, st, err.message);
        assert_int_equal(parse_edited(r, NULL), st);
    }
}

static void refused_configs(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"pretokenize_regex\": \"x\"}", "pretokenize_regex is not"},
        {"{\"added_tokens_decoder\": {\"x\": {}}}", "a key that is no id"},
        {"{\"added_tokens_decoder\": [{}]}", "a key that is no id"},
        {"{\"added_tokens_decoder\": {\"259\": {}}}", "no content"},
        {"{\"added_tokens_decoder\": {\"259\": {\"content\": \"<|endoftext|>\", \"special\": "
         "false, "
         "\"lstrip\": false, \"rstrip\": false, \"single_word\": false, \"normalized\": false}}}",
         "contradicts id 259"},
        {"{", "tokenizer_config.json: not valid JSON"},
    };
    strbuf json = {0};
    mini_json(&json);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        calla_tokenizer *tok;
        calla_error err = {0};
        assert_int_not_equal(
            tokenizer_parse(&tok, json.data, json.len, cases[i][0], strlen(cases[i][0]), &err),
            CALLA_OK);
        assert_null(tok);
        if (strstr(err.message, cases[i][1]) == NULL) fail_msg("\"%s\"", err.message);
    }
    strbuf_deinit(&json);
}

static void order_of_members_is_free(void **state)
{
    (void)state;
    const refusal swapped = {"\"vocab\": {", "\"merges\": [\"ab c\", \"a b\"], \"vocab\": {",
                             CALLA_OK, ""};
    strbuf json = {0}, edited = {0};
    calla_tokenizer *tok;
    mini_json(&json);
    const char *at = strstr(json.data, swapped.from);
    const char *end = strstr(json.data, ", \"merges\"");
    strbuf_append(&edited, json.data, (size_t)(at - json.data));
    strbuf_puts(&edited, swapped.to);
    strbuf_append(&edited, at + strlen(swapped.from), (size_t)(end - at) - strlen(swapped.from));
    strbuf_puts(&edited, "}}");
    assert_int_equal(tokenizer_parse(&tok, edited.data, edited.len, NULL, 0, NULL), CALLA_OK);
    const int32_t want[] = {257, 64, 259};
    assert_ids(tok, "abca<|endoftext|>", 17, NULL, 0, want, 3);
    calla_tokenizer_close(tok);
    strbuf_deinit(&json);
    strbuf_deinit(&edited);
}

static void open_errors(void **state)
{
    (void)state;
    calla_tokenizer *tok;
    calla_error err;
    assert_int_equal(calla_tokenizer_open(&tok, "tests/data/qwen3.6", &err), CALLA_ERR_IO);
    assert_null(tok);
    assert_non_null(strstr(err.message, "tests/data/qwen3.6/tokenizer.json"));
}

/* ---- Every allocation fails once ---- */

static void exhausted_loading(void **state)
{
    (void)state;
    strbuf json = {0};
    mini_json(&json);
    calla_status st = CALLA_ERR_MEMORY;
    for (int64_t n = 0; st != CALLA_OK; n++) {
        calla_tokenizer *tok;
        assert_true(n < 100000);
        mem_fail_after(n);
        st = tokenizer_parse(&tok, json.data, json.len, "{}", 2, NULL);
        mem_fail_after(-1);
        assert_true(st == CALLA_OK || st == CALLA_ERR_MEMORY);
        assert_int_equal(tok != NULL, st == CALLA_OK);
        calla_tokenizer_close(tok);
    }
    strbuf_deinit(&json);
}

static void exhausted_coding(void **state)
{
    (void)state;
    const char *text = "a longer text, with e\xCC\x81 and one word of more than twenty-four bytes: "
                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa <think>";
    calla_status st = CALLA_ERR_MEMORY;
    for (int64_t n = 0; st != CALLA_OK; n++) {
        int32_t *ids;
        char *back = NULL;
        size_t n_ids, n_back;
        assert_true(n < 1000);
        mem_fail_after(n);
        st = calla_tokenizer_encode(standin, text, strlen(text), 0, &ids, &n_ids, NULL);
        if (st == CALLA_OK)
            st = calla_tokenizer_decode(standin, ids, n_ids, true, &back, &n_back, NULL);
        mem_fail_after(-1);
        assert_true(st == CALLA_OK || st == CALLA_ERR_MEMORY);
        assert_int_equal(back != NULL, st == CALLA_OK);
        mem_free(ids);
        mem_free(back);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_rows),
        cmocka_unit_test(added_tokens),
        cmocka_unit_test(spans),
        cmocka_unit_test(lookups),
        cmocka_unit_test(decoding),
        cmocka_unit_test(broken_text),
        cmocka_unit_test(round_trips),
        cmocka_unit_test(megabytes),
        cmocka_unit_test(both_forms),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(refused_configs),
        cmocka_unit_test(order_of_members_is_free),
        cmocka_unit_test(open_errors),
        cmocka_unit_test(exhausted_loading),
        cmocka_unit_test(exhausted_coding),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, open_both, close_both);
}
