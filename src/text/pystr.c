#include "text/pystr.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool ascii_space(unsigned char c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
}

/* U+0085 and U+00A0 */
static bool space2(const unsigned char *p)
{
    return p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0);
}

/* U+1680, 2000-200A, 2028, 2029, 202F, 205F, 3000 */
static bool space3(const unsigned char *p)
{
    if (p[0] == 0xe1) return p[1] == 0x9a && p[2] == 0x80;
    if (p[0] == 0xe3) return p[1] == 0x80 && p[2] == 0x80;
    if (p[0] != 0xe2) return false;
    if (p[1] == 0x81) return p[2] == 0x9f;
    return p[1] == 0x80 &&
           ((p[2] >= 0x80 && p[2] <= 0x8a) || p[2] == 0xa8 || p[2] == 0xa9 || p[2] == 0xaf);
}

void pystr_strip(const char *s, size_t *begin, size_t *end)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t b = *begin, e = *end;
    while (b < e) {
        const size_t left = e - b;
        const size_t n = ascii_space(p[b])            ? 1
                         : left >= 2 && space2(p + b) ? 2
                         : left >= 3 && space3(p + b) ? 3
                                                      : 0;
        if (n == 0) break;
        b += n;
    }
    while (b < e) {
        const size_t left = e - b;
        const size_t n = ascii_space(p[e - 1])            ? 1
                         : left >= 2 && space2(p + e - 2) ? 2
                         : left >= 3 && space3(p + e - 3) ? 3
                                                          : 0;
        if (n == 0) break;
        e -= n;
    }
    *begin = b;
    *end = e;
}

size_t pystr_find(const char *s, size_t begin, size_t end, const char *needle)
{
    const size_t n = strlen(needle);
    while (end - begin >= n) {
        const char *p = memchr(s + begin, needle[0], end - begin - n + 1);
        if (p == NULL) break;
        if (memcmp(p, needle, n) == 0) return (size_t)(p - s);
        begin = (size_t)(p - s) + 1;
    }
    return end;
}

size_t pystr_rfind(const char *s, size_t begin, size_t end, const char *needle)
{
    const size_t n = strlen(needle);
    if (end - begin < n) return end;
    for (size_t i = end - n + 1; i-- > begin;)
        if (s[i] == needle[0] && memcmp(s + i, needle, n) == 0) return i;
    return end;
}

/* str.isprintable() of one character beyond ASCII. */
static bool printable(utf8proc_int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static void repr_char(strbuf *out, const char *p, size_t n, utf8proc_int32_t c)
{
    const unsigned u = (unsigned)c;
    if (c == '\n')
        (void)strbuf_puts(out, "\\n");
    else if (c == '\r')
        (void)strbuf_puts(out, "\\r");
    else if (c == '\t')
        (void)strbuf_puts(out, "\\t");
    else if ((c >= 0x20 && c < 0x7f) || (c >= 0x80 && printable(c)))
        (void)strbuf_append(out, p, n);
    else if (c < 0x100)
        (void)strbuf_printf(out, "\\x%02x", u);
    else if (c < 0x10000)
        (void)strbuf_printf(out, "\\u%04x", u);
    else
        (void)strbuf_printf(out, "\\U%08x", u);
}

static bool repr_string(strbuf *out, const char *s, size_t n)
{
    const bool single = memchr(s, '\'', n) != NULL && memchr(s, '"', n) == NULL;
    const char quote = single ? '"' : '\'';
    (void)strbuf_putc(out, quote);
    for (size_t i = 0; i < n && !out->failed;) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t len =
            utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(n - i), &c);
        const size_t step = len > 0 ? (size_t)len : 1; /* JSON strings are valid UTF-8 */
        if (len <= 0) c = 0xfffd;
        if (c == quote || c == '\\') (void)strbuf_putc(out, '\\');
        repr_char(out, s + i, step, c);
        i += step;
    }
    return strbuf_putc(out, quote);
}

static bool write_number(strbuf *out, const json_value *v)
{
    const bool is_float = strpbrk(v->text, ".eE") != NULL;
    if (is_float && isinf(strtod(v->text, NULL)))
        return strbuf_puts(out, v->text[0] == '-' ? "-inf" : "inf");
    return json_write(out, v);
}

static bool write_repr(strbuf *out, const json_value *v)
{
    switch (v->type) {
    case JSON_NULL:
        return strbuf_puts(out, "None");
    case JSON_FALSE:
        return strbuf_puts(out, "False");
    case JSON_TRUE:
        return strbuf_puts(out, "True");
    case JSON_NUMBER:
        return write_number(out, v);
    case JSON_STRING:
        return repr_string(out, v->text, v->n_text);
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    const bool object = v->type == JSON_OBJECT;
    (void)strbuf_putc(out, object ? '{' : '[');
    for (const json_value *m = v->first; m != NULL && !out->failed; m = m->next) {
        if (m != v->first) (void)strbuf_puts(out, ", ");
        if (object) {
            (void)repr_string(out, m->key, m->n_key);
            (void)strbuf_puts(out, ": ");
        }
        (void)write_repr(out, m);
    }
    return strbuf_putc(out, object ? '}' : ']');
}

bool pystr_write(strbuf *out, const json_value *v)
{
    if (v->type == JSON_STRING) return strbuf_append(out, v->text, v->n_text);
    return write_repr(out, v);
}
