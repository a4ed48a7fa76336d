/* The pre-tokenizer against a naive reading of its regex; character classes; NFC. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include <utf8proc.h>
#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

static uint64_t rng_state;

static uint32_t rng(uint32_t n)
{
    rng_state = rng_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((rng_state >> 33) % n);
}

/* ---- By hand ---- */

static void assert_pieces(const char *text, const char *const *pieces)
{
    const size_t n = strlen(text);
    size_t i = 0, k = 0;
    for (; i < n; k++) {
        const size_t end = pretokenize_next(text, n, i);
        assert_non_null(pieces[k]);
        assert_int_equal(end - i, strlen(pieces[k]));
        assert_memory_equal(text + i, pieces[k], end - i);
        i = end;
    }
    assert_null(pieces[k]);
}

#define PIECES(text, ...) assert_pieces(text, (const char *const[]){__VA_ARGS__, NULL})

static void alternatives(void **state)
{
    (void)state;
    PIECES("don't", "don", "'t");
    PIECES("'S'T'RE'Ve'M'lL'D", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D");
    PIECES("'\xC5\xBFx", "'\xC5\xBF", "x"); /* long s folds to s */
    PIECES("'r", "'r");
    PIECES("'la", "'la");
    PIECES("''s", "''", "s"); /* alternative 4 takes both, before 1 is tried at the second */
    PIECES("a\xCC\x81z", "a\xCC\x81z");
    PIECES("\xCC\x81", "\xCC\x81");
    PIECES(".\xCC\x81z", ".\xCC\x81z");
    PIECES("1\xCC\x81", "1", "\xCC\x81");
    PIECES("12", "1", "2");
    PIECES(" 1", " ", "1");
    PIECES("\tword", "\tword");
    PIECES("\nword", "\n", "word");
    PIECES(" ..\r\n\r\nx", " ..\r\n\r\n", "x");
    PIECES("  ..", " ", " ..");
    PIECES("\t..", "\t", "..");
    PIECES(" \n \n  x", " \n \n", " ", " x");
    PIECES("a   ", "a", "   ");
    PIECES("a  1", "a", " ", " ", "1");
    PIECES("\xC2\x85\xE3\x80\x80x", "\xC2\x85", "\xE3\x80\x80x");
    PIECES("\xE2\x80\x8B\xE2\x80\x8B", "\xE2\x80\x8B\xE2\x80\x8B"); /* U+200B is no white space */
}

static void golden_pieces(void **state)
{
    (void)state;
    char *data;
    size_t n, n_checked = 0;
    assert_int_equal(
        file_read("tests/data/qwen3.6/tokenizer-golden.jsonl", 1u << 20, &data, &n, NULL),
        CALLA_OK);
    for (size_t i = 0; i < n; i += strcspn(data + i, "\n") + 1) {
        json_doc doc = {0};
        assert_int_equal(json_parse(&doc, data + i, strcspn(data + i, "\n"), NULL, NULL), CALLA_OK);
        const json_value *text = json_get(doc.root, "text"), *pieces = json_get(doc.root, "pieces");
        strbuf norm = {0};
        nfc_scratch scratch = {0};
        assert_true(nfc_append(&norm, &scratch, text->text, text->n_text));
        size_t at = 0;
        if (pieces != NULL && pieces->type == JSON_ARRAY) {
            for (const json_value *p = pieces->first; p != NULL; p = p->next, n_checked++) {
                const size_t end = pretokenize_next(norm.data, norm.len, at);
                assert_int_equal(end - at, p->n_text);
                assert_memory_equal(norm.data + at, p->text, p->n_text);
                at = end;
            }
            assert_int_equal(at, norm.len);
        }
        strbuf_deinit(&norm);
        nfc_scratch_deinit(&scratch);
        json_free(&doc);
    }
    assert_true(n_checked > 100);
    mem_free(data);
}

/* ---- Against the regex, read literally: greedy with backtracking, on an array of characters ----
 */

typedef struct chars {
    uint32_t cp[64];
    size_t off[65]; /* byte offsets */
    size_t n;
} chars;

static bool is(const chars *t, size_t i, unsigned classes)
{
    return i < t->n && ((unsigned)unicode_class(t->cp[i]) & classes) != 0;
}

static uint32_t folded(const chars *t, size_t i)
{
    if (i >= t->n) return 0;
    const uint32_t c = t->cp[i];
    if (c == 0x17F) return 's';
    return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

static size_t run(const chars *t, size_t i, unsigned classes)
{
    while (is(t, i, classes))
        i++;
    return i;
}

#define SPACES  (CLASS_SPACE | CLASS_NEWLINE)
#define LETTERS (CLASS_LETTER | CLASS_MARK)

static size_t naive_next(const chars *t, size_t i)
{
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t k = 0; t->cp[i] == '\'' && k < 7; k++) {
        size_t j = 0;
        while (endings[k][j] != '\0' && folded(t, i + 1 + j) == (uint32_t)endings[k][j])
            j++;
        if (endings[k][j] == '\0') return i + 1 + j;
    }
    for (size_t optional = 2; optional-- > 0;) {
        if (optional == 1 && is(t, i, CLASS_NEWLINE | CLASS_LETTER | CLASS_NUMBER)) continue;
        const size_t end = run(t, i + optional, LETTERS);
        if (end > i + optional) return end;
    }
    if (is(t, i, CLASS_NUMBER)) return i + 1;
    for (size_t optional = 2; optional-- > 0;) {
        if (optional == 1 && t->cp[i] != ' ') continue;
        const size_t end = run(t, i + optional, CLASS_OTHER);
        if (end > i + optional) return run(t, end, CLASS_NEWLINE);
    }
    const size_t white = run(t, i, SPACES);
    for (size_t j = white + 1; j-- > i;) { /* \s* gives back until [\r\n]+ matches */
        const size_t end = run(t, j, CLASS_NEWLINE);
        if (end > j) return end;
    }
    for (size_t j = white; j > i; j--) /* \s+ gives back until no \S follows */
        if (j == t->n || is(t, j, SPACES)) return j;
    return white;
}

/* Characters that matter to the regex, each class several times. */
static const uint32_t alphabet[] = {
    ' ',     ' ',    ' ',    '\t',  '\n',   '\n',   '\r',  0x85,   0xA0,   0x3000,  0x2028, '\'',
    '\'',    's',    'S',    0x17F, 't',    'r',    'e',   'v',    'l',    'L',     'm',    'd',
    'x',     0xE9,   0x4E2D, '1',   0x0663, 0x2167, 0xBD,  0x301,  0x93E,  0x20DD,  '.',    '<',
    0x1F600, 0x200D, 0x200B, 0,     0x1F,   0xAD,   0x378, 0xE000, 0xFFFD, 0x10FFFF};

static void as_the_regex(void **state)
{
    (void)state;
    rng_state = 1;
    print_message("seed %llu\n", (unsigned long long)rng_state);
    for (unsigned round = 0; round < 200000; round++) {
        chars t = {.n = 1 + rng(12)};
        char text[256];
        /* Few different characters a text: runs and near misses. */
        const uint32_t from = rng(sizeof alphabet / sizeof alphabet[0]);
        const uint32_t width = 1 + rng(sizeof alphabet / sizeof alphabet[0]);
        for (size_t i = 0; i < t.n; i++) {
            t.cp[i] = alphabet[(from + rng(width)) % (sizeof alphabet / sizeof alphabet[0])];
            t.off[i + 1] = t.off[i] + utf8_write(t.cp[i], text + t.off[i]);
        }
        for (size_t i = 0; i < t.n;) {
            const size_t want = naive_next(&t, i);
            assert_int_equal(pretokenize_next(text, t.off[t.n], t.off[i]), t.off[want]);
            i = want;
        }
    }
}

/* ---- Classes and NFC ---- */

static void white_space_is_complete(void **state)
{
    (void)state;
    static const uint32_t white[] = {9,      10,     11,     12,     13,     0x20,   0x85,
                                     0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                     0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                     0x2029, 0x202F, 0x205F, 0x3000};
    size_t n = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        const unsigned c = (unsigned)unicode_class(cp);
        assert_true(c != 0 && (c & (c - 1)) == 0);
        if ((c & SPACES) == 0) continue;
        assert_true(n < sizeof white / sizeof white[0] && white[n] == cp);
        assert_int_equal(c == CLASS_NEWLINE, cp == '\n' || cp == '\r');
        n++;
    }
    assert_int_equal(n, sizeof white / sizeof white[0]);
}

/* Characters that Unicode 15.0 does not have, so that the library may not know them. */
static void later_characters(void **state)
{
    (void)state;
    static const struct {
        uint32_t cp;
        char_class want;
    } cases[] = {
        {0x896, CLASS_OTHER},    {0x897, CLASS_MARK},     {0x1C89, CLASS_LETTER},
        {0x10D49, CLASS_NUMBER}, {0x10D4A, CLASS_LETTER}, {0x10D66, CLASS_OTHER},
        {0x143FA, CLASS_LETTER}, {0x143FB, CLASS_OTHER},  {0x2EBEF, CLASS_OTHER},
        {0x2EBF0, CLASS_LETTER}, {0x2EE5D, CLASS_LETTER}, {0x2EE5E, CLASS_OTHER},
        {0x10FFFF, CLASS_OTHER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(unicode_class(cases[i].cp), cases[i].want);
}

static void assert_nfc(const char *text, const char *want)
{
    strbuf out = {0};
    nfc_scratch scratch = {0};
    assert_true(nfc_append(&out, &scratch, text, strlen(text)));
    assert_string_equal(out.data, want);
    strbuf_deinit(&out);
    nfc_scratch_deinit(&scratch);
}

static void nfc_cases(void **state)
{
    (void)state;
    assert_nfc("", "");
    assert_nfc("e\xCC\x81", "\xC3\xA9");
    assert_nfc("xe\xCC\x81ye\xCC\x81", "x\xC3\xA9y\xC3\xA9");
    assert_nfc("a\xCC\x88\xCC\xA3", "\xE1\xBA\xA1\xCC\x88");            /* marks are put in order */
    assert_nfc("\xE2\x84\xAB", "\xC3\x85");                             /* U+212B, a singleton */
    assert_nfc("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC");             /* composition exclusion */
    assert_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"); /* Hangul Jamo */
    assert_nfc("\xEA\xB0\x80\xE1\x86\xA7", "\xEA\xB0\x80\xE1\x86\xA7"); /* U+11A7 is no trailer */
    assert_nfc("\xCC\x81", "\xCC\x81");
    assert_nfc("a\xFF\xCC\x81",
               "a\xEF\xBF\xBD\xCC\x81"); /* repaired, and nothing to compose with */
    assert_nfc("\xE1\x84\x92\xE1\x85", "\xE1\x84\x92\xEF\xBF\xBD");
}

/* nfc_append(), told by utf8proc_map() on short texts. */
static void assert_nfc_as_utf8proc(strbuf *out, nfc_scratch *scratch, const char *text, size_t n)
{
    utf8proc_uint8_t *want = NULL;
    const utf8proc_ssize_t n_want =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &want,
                     UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    assert_true(n_want >= 0);
    strbuf_clear(out);
    assert_true(nfc_append(out, scratch, text, n));
    assert_int_equal(out->len, n_want);
    assert_memory_equal(out->data, want, out->len);
    free(want);
}

/* Every character after and before those that compose with most: shows that cutting is harmless. */
static void nfc_of_all_characters(void **state)
{
    (void)state;
    static const uint32_t first[] = {'a', 0x1100, 0xAC00, 0x304B, 0x9C7},
                          last[] = {0x301, 0x3099, 0x11A8};
    strbuf out = {0};
    nfc_scratch scratch = {0};
    for (uint32_t cp = 1; cp < 0x20000; cp++) {
        if ((cp >= 0xD800 && cp < 0xE000) || cp == 0x11A7) continue;
        char text[16];
        size_t n = utf8_write(first[cp % 5], text);
        n += utf8_write(cp, text + n);
        n += utf8_write(last[cp % 3], text + n);
        assert_nfc_as_utf8proc(&out, &scratch, text, n);
        n = utf8_write(first[(cp + 1) % 5], text);
        n += utf8_write(cp, text + n);
        assert_nfc_as_utf8proc(&out, &scratch, text, n);
    }
    strbuf_deinit(&out);
    nfc_scratch_deinit(&scratch);
}

/* Where utf8proc_map() is fast enough and right, it says the same. */
static void nfc_as_utf8proc(void **state)
{
    (void)state;
    static const uint32_t bases[] = {'a',    'e',    ' ',     0xE9,   0x3B1, 0xAC00,
                                     0x1100, 0x1161, 0x11A8,  0x915,  0x9C7, 0x4E2D,
                                     0x304B, 0xAC01, 0x1D15E, 0x212B, 0x1E0A};
    static const uint32_t marks[] = {0x300, 0x301, 0x323,  0x327, 0x334,   0x345,  0x93C,
                                     0x94D, 0x9BE, 0x3099, 0x316, 0x1D165, 0x1D16E};
    rng_state = 2;
    print_message("seed %llu\n", (unsigned long long)rng_state);
    strbuf out = {0};
    nfc_scratch scratch = {0};
    for (unsigned round = 0; round < 50000; round++) {
        char text[512];
        size_t n = 0;
        const uint32_t len = 1 + rng(round % 50 == 0 ? 100 : 10), p = 2 + rng(20);
        for (uint32_t i = 0; i < len; i++)
            n += utf8_write(rng(p) == 0 ? bases[rng(sizeof bases / sizeof bases[0])]
                                        : marks[rng(sizeof marks / sizeof marks[0])],
                            text + n);
        assert_nfc_as_utf8proc(&out, &scratch, text, n);
    }
    strbuf_deinit(&out);
    nfc_scratch_deinit(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alternatives),     cmocka_unit_test(golden_pieces),
        cmocka_unit_test(as_the_regex),     cmocka_unit_test(white_space_is_complete),
        cmocka_unit_test(later_characters), cmocka_unit_test(nfc_cases),
        cmocka_unit_test(nfc_as_utf8proc),  cmocka_unit_test(nfc_of_all_characters),
    };
    return cmocka_run_group_tests_name("pretokenize", tests, NULL, NULL);
}
