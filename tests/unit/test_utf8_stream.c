/* UTF-8: maximal subparts, the streaming decoder at every split, repair. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include "calla.h"
#include "text/utf8.h"

#define R UTF8_REPLACEMENT

typedef struct broken {
    const char *bytes, *text;
} broken;

static const broken table[] = {
    {"", ""},
    {"plain", "plain"},
    {"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80", "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80"},
    {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
    /* The four examples of the Unicode standard, tables 3-8 to 3-11. */
    {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A"},
    {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A"},
    {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B"},
    {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A"},
    {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", "a" R R R "b" R "c" R R "d"},
    /* Cut off by the end: one replacement each. */
    {"a\xC3", "a" R},
    {"a\xE4\xB8", "a" R},
    {"a\xF0\x9F\x98", "a" R},
    {"\xF5\x80", R R},
    {"\xF4\x90", R R},
    {"\xE0\x9F", R R},
};

static void unicode_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        strbuf out = {0};
        assert_true(utf8_repair(&out, table[i].bytes, strlen(table[i].bytes)));
        assert_string_equal(out.data, table[i].text);
        strbuf_deinit(&out);
    }
}

/* True when every character that is in out is complete, i.e. repair changes nothing. */
static void assert_whole(const char *out, size_t n)
{
    strbuf again = {0};
    assert_true(utf8_repair(&again, out, n));
    assert_int_equal(again.len, n);
    assert_memory_equal(again.data, out, n);
    strbuf_deinit(&again);
}

/* Pushes s in pieces that end where the bits of `cuts` say; out has the room the header asks for,
 * and not more. */
static void check_split(const char *s, size_t n, unsigned cuts, const strbuf *want)
{
    calla_utf8_stream stream = {0};
    strbuf got = {0};
    for (size_t begin = 0; begin < n;) {
        size_t end = begin + 1;
        while (end < n && (cuts >> (end - 1) & 1) == 0)
            end++;
        const size_t room = 3 * (end - begin + 3);
        char *out = mem_alloc(room);
        const size_t k = calla_utf8_stream_push(&stream, s + begin, end - begin, out);
        assert_true(k <= room);
        assert_true(stream.n_held <= 3);
        assert_whole(out, k);
        assert_true(strbuf_append(&got, out, k));
        mem_free(out);
        begin = end;
    }
    char last[12];
    strbuf_append(&got, last, calla_utf8_stream_finish(&stream, last));
    assert_int_equal(stream.n_held, 0);
    assert_int_equal(got.len, want->len);
    assert_memory_equal(got.data, want->data, want->len);
    strbuf_deinit(&got);
}

static void every_split_of_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const size_t n = strlen(table[i].bytes);
        strbuf want = {0};
        assert_true(utf8_repair(&want, table[i].bytes, n));
        for (unsigned cuts = 0; cuts < 1u << (n > 0 ? n - 1 : 0); cuts++)
            check_split(table[i].bytes, n, cuts, &want);
        strbuf_deinit(&want);
    }
}

/* All strings of five bytes over those where something begins or ends, in all 16 divisions. */
static void every_split_of_all_strings(void **state)
{
    (void)state;
    static const uint8_t edge[] = {0x41, 0x80, 0x8F, 0x9F, 0xBF, 0xC1, 0xC2,
                                   0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4, 0xF5};
    enum { N = sizeof edge, LEN = 5 };
    for (unsigned code = 0; code < N * N * N * N * N; code += 7) {
        char s[LEN];
        unsigned c = code;
        for (size_t i = 0; i < LEN; i++, c /= N)
            s[i] = (char)edge[c % N];
        strbuf want = {0};
        assert_true(utf8_repair(&want, s, LEN));
        check_split(s, LEN, code / 7 % 16, &want);
        strbuf_deinit(&want);
    }
}

static void read_write_round_trip(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        utf8_kind kind;
        uint32_t back = 0;
        const size_t n = utf8_write(cp, s);
        const bool surrogate = cp >= 0xD800 && cp < 0xE000;
        const size_t k = utf8_read(s, n, &back, &kind);
        assert_int_equal(kind, surrogate ? UTF8_BAD : UTF8_CHAR);
        if (surrogate) continue;
        assert_int_equal(k, n);
        assert_int_equal(back, cp);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_read(s, cut, &back, &kind), cut);
            assert_int_equal(kind, UTF8_SHORT);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unicode_examples),
        cmocka_unit_test(every_split_of_examples),
        cmocka_unit_test(every_split_of_all_strings),
        cmocka_unit_test(read_write_round_trip),
    };
    return cmocka_run_group_tests_name("utf8_stream", tests, NULL, NULL);
}
