#include "text/value_literal.h"

#include <string.h>
#include "text/utf8.h"

typedef struct literal {
    const char *s;
    size_t n, i;
    strbuf *out;
    strbuf text; /* the string just read */
    bool python;
    value_members *members;
    int i_member;                /* the member being read, or -1 */
    unsigned depth;              /* brackets open */
    char close[VALUE_DEPTH_MAX]; /* what closes each */
} literal;

static size_t skip_digits(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return i;
}

size_t value_number_length(const char *s, size_t n)
{
    const size_t first = n > 0 && s[0] == '-';
    size_t i = skip_digits(s, n, first);
    if (i == first || (s[first] == '0' && i - first > 1)) return 0;
    if (i < n && s[i] == '.') {
        const size_t j = skip_digits(s, n, i + 1);
        if (j == i + 1) return 0;
        i = j;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        const size_t sign = i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-');
        const size_t j = skip_digits(s, n, i + 1 + sign);
        if (j == i + 1 + sign) return 0;
        i = j;
    }
    return i;
}

/* ---- Strings ---- */

/* n digits of a base at l->i, at least n_min; false when there are fewer. */
static bool read_digits(literal *l, unsigned base, unsigned n_min, unsigned n_max, uint32_t *v)
{
    unsigned k = 0;
    *v = 0;
    for (; k < n_max && l->i < l->n; k++, l->i++) {
        const char c = l->s[l->i];
        const unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                           : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                           : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                                  : 99;
        if (d >= base) break;
        *v = *v * base + d;
    }
    return k >= n_min;
}

static bool put_char(literal *l, uint32_t cp)
{
    char c[4];
    if (cp > 0x10ffff) return false;
    if (cp >= 0xd800 && cp <= 0xdfff) cp = 0xfffd;
    (void)strbuf_append(&l->text, c, utf8_write(cp, c));
    return true;
}

/* After "\u": four digits; a high half takes the low half that follows. */
static bool read_u(literal *l)
{
    uint32_t a, b;
    if (!read_digits(l, 16, 4, 4, &a)) return false;
    const size_t back = l->i;
    if (a >= 0xd800 && a <= 0xdbff && l->n - l->i >= 6 && memcmp(l->s + l->i, "\\u", 2) == 0) {
        l->i += 2;
        if (read_digits(l, 16, 4, 4, &b) && b >= 0xdc00 && b <= 0xdfff)
            return put_char(l, 0x10000 + ((a - 0xd800) << 10) + (b - 0xdc00));
        l->i = back;
    }
    return put_char(l, a);
}

/* After a backslash; l->i is at the character that says which. */
static bool read_escape(literal *l)
{
    static const char from[] = "\"\\nrtbf/", to[] = "\"\\\n\r\t\b\f/";
    uint32_t v;
    if (l->i == l->n) return false;
    const char c = l->s[l->i];
    const char *p = c == '\0' ? NULL : strchr(from, c);
    if (p != NULL && !(l->python && c == '/')) {
        l->i++;
        return strbuf_putc(&l->text, to[p - from]);
    }
    if (c == 'u') {
        l->i++;
        return read_u(l);
    }
    if (!l->python) return false;
    if (c >= '0' && c <= '7') return read_digits(l, 8, 1, 3, &v) && put_char(l, v);
    l->i++;
    switch (c) {
    case 'x':
        return read_digits(l, 16, 2, 2, &v) && put_char(l, v);
    case 'U':
        return read_digits(l, 16, 8, 8, &v) && put_char(l, v);
    case 'a':
        return strbuf_putc(&l->text, '\a');
    case 'v':
        return strbuf_putc(&l->text, '\v');
    case '\'':
        return strbuf_putc(&l->text, '\'');
    case '\n':
        return true;
    case 'N':
        return false;
    default: /* Python keeps the backslash. */
        (void)strbuf_putc(&l->text, '\\');
        l->i--;
        return true;
    }
}

/* A string into l->text; l->i is at its quote. */
static bool read_string(literal *l)
{
    const char quote = l->s[l->i++];
    strbuf_clear(&l->text);
    while (l->i < l->n && !l->text.failed) {
        const size_t from = l->i;
        while (l->i < l->n && l->s[l->i] != quote && l->s[l->i] != '\\' &&
               ((unsigned char)l->s[l->i] >= 0x20 || (l->python && l->s[l->i] == '\t')))
            l->i++;
        (void)strbuf_append(&l->text, l->s + from, l->i - from);
        if (l->i == l->n) return false;
        if (l->s[l->i] == quote) {
            l->i++;
            return !l->text.failed;
        }
        if (l->s[l->i++] != '\\' || !read_escape(l)) return false;
    }
    return false;
}

static bool at_string(const literal *l)
{
    return l->i < l->n && (l->s[l->i] == '"' || (l->python && l->s[l->i] == '\''));
}

/* ---- Values ---- */

static void skip_space(literal *l)
{
    while (l->i < l->n && (l->s[l->i] == ' ' || (l->s[l->i] >= '\t' && l->s[l->i] <= '\r'))) {
        if (!l->python && (l->s[l->i] == '\v' || l->s[l->i] == '\f')) return;
        l->i++;
    }
}

static bool read_word(literal *l)
{
    static const struct {
        const char *word, *json;
        bool python;
    } rows[] = {{"true", "true", false}, {"false", "false", false}, {"null", "null", false},
                {"True", "true", true},  {"False", "false", true},  {"None", "null", true}};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        const size_t n = strlen(rows[k].word);
        if ((rows[k].python && !l->python) || l->n - l->i < n) continue;
        if (memcmp(l->s + l->i, rows[k].word, n) != 0) continue;
        l->i += n;
        return strbuf_puts(l->out, rows[k].json);
    }
    return false;
}

static bool read_scalar(literal *l)
{
    if (at_string(l)) return read_string(l) && json_write_string(l->out, l->text.data, l->text.len);
    const size_t n = value_number_length(l->s + l->i, l->n - l->i);
    if (n == 0) return read_word(l);
    l->i += n;
    return strbuf_append(l->out, l->s + l->i - n, n);
}

static bool open_bracket(literal *l, char c)
{
    if (l->depth == VALUE_DEPTH_MAX) return false;
    l->close[l->depth++] = c == '{' ? '}' : ']';
    l->i++;
    return strbuf_putc(l->out, c);
}

/* The value at hand has ended; was it a member that someone asked for? */
static void end_value(literal *l)
{
    if (l->depth != 1 || l->i_member < 0) return;
    l->members->end[l->i_member] = l->out->len;
    l->i_member = -1;
}

static bool read_key(literal *l)
{
    if (!at_string(l) || !read_string(l)) return false;
    (void)json_write_string(l->out, l->text.data, l->text.len);
    skip_space(l);
    if (l->i == l->n || l->s[l->i++] != ':') return false;
    (void)strbuf_puts(l->out, ": ");
    for (int k = 0; l->members != NULL && l->depth == 1 && k < 2; k++) {
        if (strlen(l->members->keys[k]) != l->text.len) continue;
        if (memcmp(l->members->keys[k], l->text.data, l->text.len) != 0) continue;
        l->i_member = k;
        l->members->begin[k] = l->out->len;
    }
    return true;
}

/* All of it. `first`: a bracket was just opened, so it may close at once. */
static bool read_all(literal *l)
{
    bool first = true, wanted = true; /* wanted: a value or a key must come next */
    while (!l->out->failed) {
        skip_space(l);
        if (!wanted && l->depth == 0) return l->i == l->n;
        if (l->i == l->n) return false;
        const char c = l->s[l->i], close = l->depth > 0 ? l->close[l->depth - 1] : '\0';
        const bool comma = !wanted && c == ',';
        if (comma) {
            l->i++;
            skip_space(l);
            if (l->i == l->n) return false;
        }
        const bool may_close = comma ? l->python : !wanted || first;
        if (l->depth > 0 && l->s[l->i] == close && may_close) {
            l->i++;
            l->depth--;
            (void)strbuf_putc(l->out, close);
            end_value(l);
            wanted = first = false;
            continue;
        }
        if (!wanted && !comma) return false;
        if (comma) (void)strbuf_puts(l->out, ", ");
        if (close == '}') {
            if (!read_key(l)) return false;
            skip_space(l);
            if (l->i == l->n) return false;
        }
        first = wanted = l->s[l->i] == '{' || l->s[l->i] == '[';
        if (wanted ? !open_bracket(l, l->s[l->i]) : !read_scalar(l)) return false;
        if (!wanted) end_value(l);
    }
    return false;
}

bool value_literal_write(strbuf *out, const char *s, size_t n, bool python, value_members *members)
{
    literal l = {.s = s, .n = n, .out = out, .python = python, .members = members, .i_member = -1};
    const size_t before = out->len;
    if (members != NULL)
        members->begin[0] = members->end[0] = members->begin[1] = members->end[1] = 0;
    const bool ok = read_all(&l) && !l.text.failed;
    if (l.text.failed) out->failed = true;
    strbuf_deinit(&l.text);
    if (!ok && !out->failed && out->data != NULL) out->data[out->len = before] = '\0';
    return ok && !out->failed;
}
