#include "server/api_arguments.h"

#include <string.h>

#include "text/pystr.h"

/* ---- Closing JSON that was cut off ---- */

typedef enum expect {
    EXPECT_VALUE,
    EXPECT_ITEM, /* a value, or the end of the array */
    EXPECT_KEY,
    EXPECT_MEMBER, /* a key, or the end of the object */
    EXPECT_COLON,
    EXPECT_MORE /* a comma, or an end */
} expect;

typedef struct closer {
    const char *s;
    size_t n, at;
    expect next;
    size_t keep;      /* bytes that make good JSON when all open brackets are closed */
    const char *tail; /* what completes the value behind them */
    size_t depth;
    char open[API_JSON_DEPTH]; /* brackets that would close, outermost first */
} closer;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void value_done(closer *z)
{
    z->keep = z->at;
    z->next = EXPECT_MORE;
}

/* Length of the escape at s[i]; 0: it is cut off. A first half of a pair goes with its second. */
static size_t escape_length(const char *s, size_t i, size_t n)
{
    if (n - i < 2) return 0;
    if (s[i + 1] != 'u') return 2;
    if (n - i < 6) return 0;
    const bool first_half = (s[i + 2] | 0x20) == 'd' && strchr("89abAB", s[i + 3]) != NULL;
    const bool cut = n - i < 12 && (n - i == 6 || s[i + 6] == '\\');
    return first_half && cut ? 0 : 6;
}

/* The string at z->at. Its end may be missing; *good: then, where it may be closed. */
static bool skip_string(closer *z, size_t *good)
{
    size_t i = z->at + 1;
    *good = i;
    while (i < z->n && z->s[i] != '"') {
        const size_t len = z->s[i] == '\\' ? escape_length(z->s, i, z->n) : 1;
        if (len == 0) break;
        i += len;
        *good = i < z->n ? i : z->n;
    }
    const bool ended = i < z->n && z->s[i] == '"';
    z->at = ended ? i + 1 : z->n;
    return ended;
}

static void take_string(closer *z)
{
    size_t good;
    if (skip_string(z, &good)) {
        value_done(z);
    } else {
        z->keep = good;
        z->tail = "\"";
    }
}

/* A number that the end cuts loses what is none yet; whether it is one the parser says. */
static void take_number(closer *z)
{
    const size_t begin = z->at;
    while (z->at < z->n && (is_digit(z->s[z->at]) || strchr("+-.eE", z->s[z->at]) != NULL))
        z->at++;
    if (z->at < z->n) {
        value_done(z);
        return;
    }
    size_t end = z->n;
    while (end > begin && !is_digit(z->s[end - 1]))
        end--;
    if (end > begin) z->keep = end;
}

static bool take_literal(closer *z)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t len = strlen(words[i]), left = z->n - z->at;
        const size_t k = left < len ? left : len;
        if (memcmp(z->s + z->at, words[i], k) != 0) continue;
        z->at += k;
        value_done(z);
        z->tail = words[i] + k;
        return true;
    }
    return false;
}

static bool push(closer *z, char closing)
{
    if (z->depth == API_JSON_DEPTH) return false;
    z->open[z->depth++] = closing;
    z->keep = ++z->at;
    z->next = closing == '}' ? EXPECT_MEMBER : EXPECT_ITEM;
    return true;
}

static bool take_value(closer *z)
{
    const char c = z->s[z->at];
    if (c == '{') return push(z, '}');
    if (c == '[') return push(z, ']');
    if (c == '"')
        take_string(z);
    else if (c == '-' || is_digit(c))
        take_number(z);
    else
        return take_literal(z);
    return true;
}

static bool take_end(closer *z)
{
    if (z->depth == 0 || z->s[z->at] != z->open[z->depth - 1]) return false;
    z->depth--;
    z->at++;
    value_done(z);
    return true;
}

static bool take_key(closer *z)
{
    size_t good;
    if (z->s[z->at] != '"') return z->next == EXPECT_MEMBER && take_end(z);
    if (skip_string(z, &good)) z->next = EXPECT_COLON;
    return true;
}

static bool take_more(closer *z)
{
    if (z->depth == 0 || z->s[z->at] != ',') return take_end(z);
    z->at++;
    z->next = z->open[z->depth - 1] == '}' ? EXPECT_KEY : EXPECT_VALUE;
    return true;
}

static bool take(closer *z)
{
    switch (z->next) {
    case EXPECT_ITEM:
        return z->s[z->at] == ']' ? take_end(z) : take_value(z);
    case EXPECT_VALUE:
        return take_value(z);
    case EXPECT_KEY:
    case EXPECT_MEMBER:
        return take_key(z);
    case EXPECT_COLON:
        z->next = EXPECT_VALUE;
        return z->s[z->at++] == ':';
    case EXPECT_MORE:
        return take_more(z);
    }
    return false;
}

bool arguments_close(strbuf *out, const char *s, size_t n)
{
    closer z = {.s = s, .n = n, .tail = "", .next = EXPECT_VALUE};
    while (z.at < n) {
        if (is_blank(s[z.at]))
            z.at++;
        else if ((z.depth == 0 && s[z.at] != '{') || !take(&z))
            return false;
    }
    if (z.depth == 0) return false; /* whole, or empty */
    (void)strbuf_append(out, s, z.keep);
    (void)strbuf_puts(out, z.tail);
    while (z.depth > 0)
        (void)strbuf_putc(out, z.open[--z.depth]);
    return !out->failed;
}

/* ---- Reading ---- */

static json_value *parse(tree *t, const char *s, size_t n, const char *path, api_error *e)
{
    const json_limits limits = {
        .what = path, .max_depth = API_JSON_DEPTH, .max_nodes = API_JSON_NODES};
    json_value *v = NULL;
    calla_error err, again;
    strbuf closed = {0};
    calla_status st = tree_parse(t, s, n, &limits, &v, &err);
    if (st == CALLA_ERR_FORMAT && arguments_close(&closed, s, n))
        st = tree_parse(t, closed.data, closed.len, &limits, &v, &again);
    if (closed.failed || st == CALLA_ERR_MEMORY)
        (void)api_no_memory(e);
    else if (st != CALLA_OK)
        (void)api_fail(e, 400, NULL, path, "%s", err.message);
    strbuf_deinit(&closed);
    return v;
}

/* One string: what is inside, or an empty object. */
static json_value *unwrap(tree *t, const json_value *text, const char *path, api_error *e)
{
    size_t begin = 0, end = text->n_text;
    pystr_strip(text->text, &begin, &end);
    if (begin == end) return tree_new(t, JSON_OBJECT);
    json_value *v = parse(t, text->text, text->n_text, path, e);
    return v != NULL && v->type == JSON_NULL ? tree_new(t, JSON_OBJECT) : v;
}

static json_value *read_any(tree *t, const json_value *args, const char *path, api_error *e)
{
    if (args == NULL || args->type == JSON_NULL) return tree_new(t, JSON_OBJECT);
    if (args->type == JSON_OBJECT) return tree_copy(t, args);
    if (args->type != JSON_STRING) {
        (void)api_bad(e, path, "expected a string of JSON, found %s", json_type_name(args));
        return NULL;
    }
    json_value *v = unwrap(t, args, path, e);
    if (v != NULL && v->type == JSON_STRING) v = unwrap(t, v, path, e);
    if (v != NULL && v->type != JSON_OBJECT) {
        (void)api_bad(e, path, "expected the JSON of an object, found that of %s",
                      json_type_name(v));
        return NULL;
    }
    return v;
}

json_value *arguments_read(tree *t, const json_value *args, const char *path, api_error *e)
{
    json_value *v = read_any(t, args, path, e);
    if (v == NULL && t->failed) (void)api_no_memory(e);
    return v;
}
