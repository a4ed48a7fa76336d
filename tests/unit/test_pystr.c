#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <utf8proc.h>
#include "text/pystr.h"

/* Every code point for which Python 3 says chr(c).isspace(). */
static const int32_t SPACES[] = {
    0x09,   0x0a,   0x0b,   0x0c,   0x0d,   0x1c,   0x1d,   0x1e,   0x1f,   0x20,
    0x85,   0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006,
    0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000,
};

static bool is_space(int32_t c)
{
    for (size_t i = 0; i < sizeof SPACES / sizeof SPACES[0]; i++)
        if (SPACES[i] == c) return true;
    return false;
}

static void strip_knows_every_code_point(void **state)
{
    (void)state;
    for (int32_t c = 1; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c <= 0xdfff) continue;
        char s[16];
        size_t n = (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)s);
        s[n] = 'x';
        memcpy(s + n + 1, s, n);
        size_t begin = 0, end = 2 * n + 1;
        pystr_strip(s, &begin, &end);
        const bool stripped = begin == n && end == n + 1;
        if (stripped != is_space(c) || (!stripped && (begin != 0 || end != 2 * n + 1)))
            fail_msg("U+%04X: stripped to [%zu, %zu)", (unsigned)c, begin, end);
    }
}

static void strip_stays_in_its_range(void **state)
{
    (void)state;
    const char s[] = "  a\xe3\x80\x80 \n b";
    size_t begin = 3, end = 8; /* only white space */
    pystr_strip(s, &begin, &end);
    assert_int_equal(begin, end);
    begin = 1, end = 4; /* ends inside U+3000: not a space */
    pystr_strip(s, &begin, &end);
    assert_int_equal(begin, 2);
    assert_int_equal(end, 4);
    begin = end = 2;
    pystr_strip(s, &begin, &end);
    assert_int_equal(begin, 2);
    assert_int_equal(end, 2);
}

static void find_first_and_last(void **state)
{
    (void)state;
    const char s[] = "<<a><<a>>";
    assert_int_equal(pystr_find(s, 0, 9, "<a>"), 1);
    assert_int_equal(pystr_rfind(s, 0, 9, "<a>"), 5);
    assert_int_equal(pystr_find(s, 2, 9, "<a>"), 5);
    assert_int_equal(pystr_find(s, 2, 7, "<a>"), 7);
    assert_int_equal(pystr_rfind(s, 0, 7, "<a>"), 1);
    assert_int_equal(pystr_rfind(s, 2, 7, "<a>"), 7);
    assert_int_equal(pystr_find(s, 0, 2, "<a>"), 2);
    assert_int_equal(pystr_rfind(s, 0, 2, "<a>"), 2);
    assert_int_equal(pystr_find(s, 9, 9, "<a>"), 9);
}

/* str(json.loads(in)) of Python 3.11. */
static void write_spells_as_python(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"null", "None"},
        {"true", "True"},
        {"false", "False"},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"1E5", "100000.0"},
        {"1e16", "1e+16"},
        {"1e-5", "1e-05"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"1e999", "inf"},
        {"-1e999", "-inf"},
        {"\"a'\\n\"", "a'\n"},
        {"[]", "[]"},
        {"{}", "{}"},
        {"[1, \"a\", null, 2.50, true]", "[1, 'a', None, 2.5, True]"},
        {"{\"k\": [\"it's\"], \"'\\\"\": \"\\\\\"}", "{'k': [\"it's\"], '\\'\"': '\\\\'}"},
        {"[\"\\u0000\\t\\n\\r\\u001b\\u007f\"]", "['\\x00\\t\\n\\r\\x1b\\x7f']"},
        {"[\"\\u00e9\\u00a0\\u00ad\\u200b\\u2028\"]", "['\xc3\xa9\\xa0\\xad\\u200b\\u2028']"},
        {"[\"\\ud83d\\ude00\\udb40\\udc01\"]", "['\xf0\x9f\x98\x80\\U000e0001']"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_doc doc;
        strbuf out = {0};
        assert_int_equal(json_parse(&doc, cases[i].in, strlen(cases[i].in), NULL, NULL), CALLA_OK);
        assert_true(pystr_write(&out, doc.root));
        assert_string_equal(out.data, cases[i].out);
        strbuf_deinit(&out);
        json_free(&doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strip_knows_every_code_point),
        cmocka_unit_test(strip_stays_in_its_range),
        cmocka_unit_test(find_first_and_last),
        cmocka_unit_test(write_spells_as_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
