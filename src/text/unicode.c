#include "text/unicode.h"

#include <string.h>
#include <utf8proc.h>

#define O CLASS_OTHER
#define L CLASS_LETTER
#define M CLASS_MARK
#define N CLASS_NUMBER
#define S CLASS_SPACE
#define E CLASS_NEWLINE
static const uint8_t ascii_class[128] = {
    O, O, O, O, O, O, O, O, O, S, E, S, S, E, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};

/* Characters of Unicode 15.1 and 16.0, for a libutf8proc that does not know them: the regex engine
 * of the reference does. tools/oracle/check_tokenizer.py compares the classes of all characters. */
static const struct {
    uint32_t first, last;
    uint8_t class;
} later[] = {
    {0x897, 0x897, M},     {0x1C89, 0x1C8A, L},   {0xA7CB, 0xA7CD, L},   {0xA7DA, 0xA7DC, L},
    {0x105C0, 0x105F3, L}, {0x10D40, 0x10D49, N}, {0x10D4A, 0x10D65, L}, {0x10D69, 0x10D6D, M},
    {0x10D6F, 0x10D85, L}, {0x10EC2, 0x10EC4, L}, {0x10EFC, 0x10EFC, M}, {0x11380, 0x11389, L},
    {0x1138B, 0x1138B, L}, {0x1138E, 0x1138E, L}, {0x11390, 0x113B5, L}, {0x113B7, 0x113B7, L},
    {0x113B8, 0x113C0, M}, {0x113C2, 0x113C2, M}, {0x113C5, 0x113C5, M}, {0x113C7, 0x113CA, M},
    {0x113CC, 0x113D0, M}, {0x113D1, 0x113D1, L}, {0x113D2, 0x113D2, M}, {0x113D3, 0x113D3, L},
    {0x113E1, 0x113E2, M}, {0x116D0, 0x116E3, N}, {0x11BC0, 0x11BE0, L}, {0x11BF0, 0x11BF9, N},
    {0x11F5A, 0x11F5A, M}, {0x13460, 0x143FA, L}, {0x16100, 0x1611D, L}, {0x1611E, 0x1612F, M},
    {0x16130, 0x16139, N}, {0x16D40, 0x16D6C, L}, {0x16D70, 0x16D79, N}, {0x18CFF, 0x18CFF, L},
    {0x1CCF0, 0x1CCF9, N}, {0x1E5D0, 0x1E5ED, L}, {0x1E5EE, 0x1E5EF, M}, {0x1E5F0, 0x1E5F0, L},
    {0x1E5F1, 0x1E5FA, N}, {0x2EBF0, 0x2EE5D, L},
};
#undef O
#undef L
#undef M
#undef N
#undef S
#undef E

static char_class later_class(uint32_t cp)
{
    size_t low = 0, high = sizeof later / sizeof later[0];
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (cp > later[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    const bool found = low < sizeof later / sizeof later[0] && cp >= later[low].first;
    return found ? (char_class)later[low].class : CLASS_OTHER;
}

char_class unicode_class(uint32_t cp)
{
    if (cp < 128) return (char_class)ascii_class[cp];
    switch (utf8proc_get_property((utf8proc_int32_t)cp)->category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return CLASS_LETTER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return CLASS_MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return CLASS_NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return CLASS_SPACE;
    case UTF8PROC_CATEGORY_CN:
        return later_class(cp);
    default: /* of the controls, only U+0085 is White_Space above ASCII */
        return cp == 0x85 ? CLASS_SPACE : CLASS_OTHER;
    }
}

static uint8_t combining_class(int32_t cp)
{
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

#define INSERTION_MAX 24u

/* Stable sort of cps[0..n) by combining class; tmp has room for n. */
static void sort_marks(int32_t *cps, size_t n, int32_t *tmp)
{
    if (n <= INSERTION_MAX) {
        for (size_t i = 1; i < n; i++) {
            const int32_t cp = cps[i];
            const uint8_t ccc = combining_class(cp);
            size_t j = i;
            for (; j > 0 && combining_class(cps[j - 1]) > ccc; j--)
                cps[j] = cps[j - 1];
            cps[j] = cp;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[combining_class(cps[i]) + 1]++;
    for (size_t c = 1; c < 257; c++)
        start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++)
        tmp[start[combining_class(cps[i])]++] = cps[i];
    memcpy(cps, tmp, n * sizeof *cps);
}

static void canonical_order(int32_t *cps, size_t n, int32_t *tmp)
{
    for (size_t i = 0; i < n; i++) {
        if (combining_class(cps[i]) == 0) continue;
        size_t end = i + 1;
        while (end < n && combining_class(cps[end]) != 0)
            end++;
        if (end - i > 1) sort_marks(cps + i, end - i, tmp);
        i = end - 1;
    }
}

/* A canonical decomposition has at most 2 code points for each byte of the character. */
#define CPS_PER_BYTE 2u

/* NFC of s, valid UTF-8 that begins with a character that cannot compose with one before it. */
static bool nfc_segment(strbuf *out, nfc_scratch *scratch, const char *s, size_t n)
{
    if (n > SIZE_MAX / (4 * CPS_PER_BYTE * sizeof(int32_t))) return false;
    const size_t room = n * CPS_PER_BYTE;
    if (scratch->cap < 2 * room) {
        int32_t *cps = mem_resize(scratch->cps, 2 * room * sizeof *cps);
        if (cps == NULL) return false;
        scratch->cps = cps;
        scratch->cap = 2 * room;
    }
    int32_t *cps = scratch->cps;
    size_t n_cps = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        utf8_kind kind;
        i += utf8_read(s + i, n - i, &cp, &kind);
        const utf8proc_ssize_t k = utf8proc_decompose_char(
            (utf8proc_int32_t)cp, cps + n_cps, (utf8proc_ssize_t)(room - n_cps),
            UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        if (k < 0 || (size_t)k > room - n_cps) return false;
        n_cps += (size_t)k;
    }
    canonical_order(cps, n_cps, cps + room);
    const utf8proc_ssize_t n_composed =
        utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n_cps, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < n_composed; i++) {
        char utf8[4];
        strbuf_append(out, utf8, utf8_write((uint32_t)cps[i], utf8));
    }
    return n_composed >= 0 && !out->failed;
}

/* True for some starters that are their own NFC and never the second of a composition: the text
 * may be cut before them, and what lies between two needs no work. Beside Latin these are kana, CJK
 * ideographs and Hangul syllables, so that text without spaces makes no long segments; and U+11A7,
 * which utf8proc 2.8 drops after a Hangul syllable as if it were a trailing consonant. */
static bool is_inert(uint32_t cp)
{
    return cp < 0x300 || cp == 0x11A7 ||
           (cp >= 0x3040 && cp <= 0x9FFF && cp != 0x3099 && cp != 0x309A) ||
           (cp >= 0xAC00 && cp <= 0xD7A3);
}

bool nfc_append(strbuf *out, nfc_scratch *scratch, const char *s, size_t n)
{
    size_t copied = 0; /* s[0, copied) is in out */
    size_t base = 0;   /* where the character before i begins; i when there is none to compose */
    uint32_t cp;
    utf8_kind kind;
    for (size_t i = 0; i < n;) {
        const size_t len = utf8_read(s + i, n - i, &cp, &kind);
        if (kind == UTF8_CHAR && is_inert(cp)) {
            base = i;
            i += len;
            continue;
        }
        if (kind != UTF8_CHAR) {
            strbuf_append(out, s + copied, i - copied);
            strbuf_puts(out, UTF8_REPLACEMENT);
            i += len;
        } else {
            strbuf_append(out, s + copied, base - copied);
            while (i < n) {
                const size_t k = utf8_read(s + i, n - i, &cp, &kind);
                if (kind != UTF8_CHAR || is_inert(cp)) break;
                i += k;
            }
            if (!nfc_segment(out, scratch, s + base, i - base)) return false;
        }
        copied = base = i;
    }
    return strbuf_append(out, s + copied, n - copied);
}

void nfc_scratch_deinit(nfc_scratch *scratch)
{
    mem_free(scratch->cps);
    memset(scratch, 0, sizeof *scratch);
}
