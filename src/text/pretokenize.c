/* The pre-tokenizer's regex, by hand (alternatives in this order):
 *
 *   1  (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   2  [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+
 *   3  \p{N}
 *   4   ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*
 *   5  \s*[\r\n]+
 *   6  \s+(?!\S)
 *   7  \s+
 *
 * Every alternative is decided by looking at most two characters ahead of its match, or, for 5 to
 * 7, by one scan of a run of white space. Such a run is scanned at most three times (5 takes it up
 * to its last newline, 6 the rest but one character), so the whole is linear.
 */
#include "text/tokenizer.h"
#include "text/unicode.h"

typedef struct cursor {
    const char *s;
    size_t n;
} cursor;

/* Class of the character at i, 0 at the end; *next is the position after it. */
static unsigned class_at(cursor t, size_t i, size_t *next)
{
    *next = i;
    if (i >= t.n) return 0;
    uint32_t cp;
    utf8_kind kind;
    *next = i + utf8_read(t.s + i, t.n - i, &cp, &kind);
    return kind == UTF8_CHAR ? (unsigned)unicode_class(cp) : (unsigned)CLASS_OTHER;
}

/* The first position at or after i whose character is in none of the classes. */
static size_t skip(cursor t, size_t i, unsigned classes)
{
    size_t next;
    while ((class_at(t, i, &next) & classes) != 0)
        i = next;
    return i;
}

static char lower_at(cursor t, size_t i)
{
    if (i >= t.n) return '\0';
    const char c = t.s[i];
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Length of the contraction after an apostrophe, 0 if there is none. */
static size_t contraction(cursor t, size_t i)
{
    const char a = lower_at(t, i), b = lower_at(t, i + 1);
    switch (a) {
    case 's':
    case 't':
    case 'm':
    case 'd':
        return 1;
    case 'r':
    case 'v':
        return b == 'e' ? 2 : 0;
    case 'l':
        return b == 'l' ? 2 : 0;
    case '\xC5': /* U+017F, long s, folds to s */
        return b == '\xBF' ? 2 : 0;
    default:
        return 0;
    }
}

/* The end of a match that begins with white space at i (alternatives 5 to 7). */
static size_t white_space(cursor t, size_t i)
{
    size_t last = i, end = i, after_newline = i, next;
    for (unsigned c; c = class_at(t, end, &next), (c & (CLASS_SPACE | CLASS_NEWLINE)) != 0;) {
        last = end;
        end = next;
        if (c == CLASS_NEWLINE) after_newline = end;
    }
    if (after_newline > i) return after_newline;
    return end == t.n || last == i ? end : last;
}

size_t pretokenize_next(const char *text, size_t n, size_t i)
{
    const unsigned word = CLASS_LETTER | CLASS_MARK;
    const cursor t = {text, n};
    size_t second, third;
    const unsigned c = class_at(t, i, &second);
    const unsigned d = class_at(t, second, &third);

    if (text[i] == '\'') {
        const size_t k = contraction(t, second);
        if (k != 0) return second + k;
    }
    if ((c & (CLASS_NEWLINE | CLASS_LETTER | CLASS_NUMBER)) == 0 && (d & word) != 0)
        return skip(t, third, word);
    if ((c & word) != 0) return skip(t, second, word);
    if (c == CLASS_NUMBER) return second;
    if (c == CLASS_OTHER || (text[i] == ' ' && d == CLASS_OTHER))
        return skip(t, skip(t, second, CLASS_OTHER), CLASS_NEWLINE);
    return white_space(t, i);
}
