#include "base/json.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#include <yajl/yajl_parse.h>

#define DEPTH_DEFAULT 64u
#define NODES_DEFAULT 16000000u

/* ---- Events ---- */

typedef struct sax_state {
    const json_sax *sax;
    const char *fault; /* limit that was hit, or NULL */
    uint32_t depth, max_depth;
    uint64_t n_nodes, max_nodes;
    uint64_t limit; /* the one that was hit */
} sax_state;

static int sax_node(sax_state *s)
{
    if (s->n_nodes == s->max_nodes) {
        s->fault = "more values than the limit";
        s->limit = s->max_nodes;
        return 0;
    }
    s->n_nodes++;
    return 1;
}

static int sax_open(sax_state *s)
{
    if (!sax_node(s)) return 0;
    if (s->depth == s->max_depth) {
        s->fault = "nesting deeper than the limit";
        s->limit = s->max_depth;
        return 0;
    }
    s->depth++;
    return 1;
}

static int on_null(void *p)
{
    sax_state *s = p;
    return sax_node(s) && (s->sax->on_null == NULL || s->sax->on_null(s->sax->ctx));
}

static int on_bool(void *p, int v)
{
    sax_state *s = p;
    return sax_node(s) && (s->sax->on_bool == NULL || s->sax->on_bool(s->sax->ctx, v != 0));
}

static int on_number(void *p, const char *t, size_t n)
{
    sax_state *s = p;
    return sax_node(s) && (s->sax->on_number == NULL || s->sax->on_number(s->sax->ctx, t, n));
}

static int on_string(void *p, const unsigned char *t, size_t n)
{
    sax_state *s = p;
    return sax_node(s) &&
           (s->sax->on_string == NULL || s->sax->on_string(s->sax->ctx, (const char *)t, n));
}

static int on_key(void *p, const unsigned char *t, size_t n)
{
    sax_state *s = p;
    return s->sax->on_key == NULL || s->sax->on_key(s->sax->ctx, (const char *)t, n);
}

static int on_object(void *p)
{
    sax_state *s = p;
    return sax_open(s) && (s->sax->on_object == NULL || s->sax->on_object(s->sax->ctx));
}

static int on_object_end(void *p)
{
    sax_state *s = p;
    s->depth--;
    return s->sax->on_object_end == NULL || s->sax->on_object_end(s->sax->ctx);
}

static int on_array(void *p)
{
    sax_state *s = p;
    return sax_open(s) && (s->sax->on_array == NULL || s->sax->on_array(s->sax->ctx));
}

static int on_array_end(void *p)
{
    sax_state *s = p;
    s->depth--;
    return s->sax->on_array_end == NULL || s->sax->on_array_end(s->sax->ctx);
}

/* ---- Memory of YAJL ----
 * YAJL does not look at what its allocator returns. So a failed allocation leaves it by longjmp,
 * and its blocks stand in a list that json_sax_parse frees. No callback of ours is on the stack
 * then: callbacks never call YAJL. */

typedef union yajl_block {
    struct {
        union yajl_block *prev, *next;
    } link;
    max_align_t align;
} yajl_block;

typedef struct yajl_memory {
    yajl_block head; /* of a ring */
    jmp_buf exhausted;
} yajl_memory;

static void *ya_resize(yajl_memory *m, yajl_block *b, size_t n)
{
    yajl_block *prev = b != NULL ? b->link.prev : m->head.link.prev;
    yajl_block *next = b != NULL ? b->link.next : &m->head;
    yajl_block *grown = n > SIZE_MAX - sizeof *b ? NULL : mem_resize(b, sizeof *b + n);
    if (grown == NULL) longjmp(m->exhausted, 1);
    grown->link.prev = prev;
    grown->link.next = next;
    prev->link.next = next->link.prev = grown;
    return grown + 1;
}

static void *ya_malloc(void *ctx, size_t n)
{
    return ya_resize(ctx, NULL, n);
}

static void *ya_realloc(void *ctx, void *p, size_t n)
{
    return ya_resize(ctx, p != NULL ? (yajl_block *)p - 1 : NULL, n);
}

static void ya_free(void *ctx, void *p)
{
    (void)ctx;
    if (p == NULL) return;
    yajl_block *b = (yajl_block *)p - 1;
    b->link.prev->link.next = b->link.next;
    b->link.next->link.prev = b->link.prev;
    mem_free(b);
}

static void ya_free_all(yajl_memory *m)
{
    while (m->head.link.next != &m->head)
        ya_free(m, m->head.link.next + 1);
}

/* ---- Parsing ---- */

/* Bytes of the UTF-8 character at s, 0 if it is none: overlong forms, surrogates, what lies beyond
 * U+10FFFF, or a cut end. */
static size_t utf8_char(const unsigned char *s, size_t n)
{
    const unsigned char c = s[0];
    if (c < 0x80) return 1;
    const size_t len = c >= 0xc2 && c <= 0xdf   ? 2
                       : c >= 0xe0 && c <= 0xef ? 3
                       : c >= 0xf0 && c <= 0xf4 ? 4
                                                : 0;
    if (len == 0 || len > n) return 0;
    const unsigned char lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    const unsigned char hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < lo || s[1] > hi) return 0;
    for (size_t i = 2; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return len;
}

/* YAJL accepts byte sequences that only look like UTF-8. */
static calla_status check_utf8(const char *what, const char *data, size_t n, calla_error *err)
{
    const unsigned char *s = (const unsigned char *)data;
    for (size_t i = 0; i < n;) {
        uint64_t eight;
        if (n - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        const size_t len = utf8_char(s + i, n - i);
        if (len == 0)
            return err_set_at(err, CALLA_ERR_FORMAT, i,
                              "%s: not valid JSON at byte %zu (not UTF-8)", what, i);
        i += len;
    }
    return CALLA_OK;
}

/* The value of the escape "\\uXXXX" at s, or -1 when there is none. */
static int escape_at(const char *s, size_t n)
{
    int v = 0;
    if (n < 6 || s[0] != '\\' || s[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const int c = (unsigned char)s[i], letter = c | 0x20;
        const bool decimal = c >= '0' && c <= '9', hex = letter >= 'a' && letter <= 'f';
        if (!decimal && !hex) return -1;
        v = v << 4 | (decimal ? c - '0' : letter - 'a' + 10);
    }
    return v;
}

/* The next escape, from position i on, of half a surrogate pair without the other half; n when
 * there is none. Outside of strings a backslash is an error anyway. */
static size_t next_lone_half(const char *s, size_t n, size_t i)
{
    while (i < n) {
        const char *p = memchr(s + i, '\\', n - i);
        if (p == NULL) return n;
        i = (size_t)(p - s);
        const int v = escape_at(p, n - i);
        if (v < 0xd800 || v > 0xdfff) {
            i += 2;
            continue;
        }
        const int low = escape_at(p + 6, n - i - 6);
        if (v > 0xdbff || low < 0xdc00 || low > 0xdfff) return i;
        i += 12;
    }
    return n;
}

/* YAJL makes something else, or nothing, of half a surrogate pair. JSON written by JavaScript has
 * such escapes where a text was cut. *fixed: the text with "\\ufffd" in their place, which keeps
 * every offset (mem_free), or NULL when there are none. */
static calla_status fix_lone_halves(const char *what, const char *data, size_t n, char **fixed,
                                    calla_error *err)
{
    *fixed = NULL;
    for (size_t i = next_lone_half(data, n, 0); i < n; i = next_lone_half(data, n, i + 6)) {
        if (*fixed == NULL) *fixed = mem_memdup(data, n);
        if (*fixed == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to parse %s", what);
        memcpy(*fixed + i + 2, "fffd", 4);
    }
    return CALLA_OK;
}

/* The first line of YAJL's report, without its "parse error: " and excerpt. */
static calla_status syntax_error(yajl_handle h, const char *what, const char *data, size_t n,
                                 calla_error *err)
{
    const uint64_t at = yajl_get_bytes_consumed(h);
    unsigned char *msg = yajl_get_error(h, 0, (const unsigned char *)data, n);
    const char *text = msg != NULL ? (const char *)msg : "syntax error";
    const char *colon = strstr(text, "error: ");
    if (colon != NULL) text = colon + strlen("error: ");
    const int len = (int)strcspn(text, "\n");
    const calla_status st =
        err_set_at(err, CALLA_ERR_FORMAT, at, "%s: not valid JSON at byte %llu (%.*s)", what,
                   (unsigned long long)at, len, text);
    if (msg != NULL) yajl_free_error(h, msg);
    return st;
}

static calla_status limit_error(yajl_handle h, const sax_state *s, const char *what,
                                calla_error *err)
{
    const uint64_t at = yajl_get_bytes_consumed(h);
    return err_set_at(err, CALLA_ERR_FORMAT, at, "%s: %s (%llu) at byte %llu", what, s->fault,
                      (unsigned long long)s->limit, (unsigned long long)at);
}

static calla_status sax_run(sax_state *s, yajl_memory *m, const char *what, const char *data,
                            size_t n, calla_error *err)
{
    static const yajl_callbacks callbacks = {
        .yajl_null = on_null,
        .yajl_boolean = on_bool,
        .yajl_number = on_number,
        .yajl_string = on_string,
        .yajl_start_map = on_object,
        .yajl_map_key = on_key,
        .yajl_end_map = on_object_end,
        .yajl_start_array = on_array,
        .yajl_end_array = on_array_end,
    };
    yajl_alloc_funcs alloc = {ya_malloc, ya_realloc, ya_free, m};
    if (setjmp(m->exhausted) != 0)
        return err_set(err, CALLA_ERR_MEMORY, "no memory to parse %s", what);
    yajl_handle h = yajl_alloc(&callbacks, &alloc, s);
    yajl_status ys = yajl_parse(h, (const unsigned char *)data, n);
    if (ys == yajl_status_ok) ys = yajl_complete_parse(h);
    if (ys == yajl_status_ok) return CALLA_OK;
    if (ys != yajl_status_client_canceled) return syntax_error(h, what, data, n, err);
    if (s->fault != NULL) return limit_error(h, s, what, err);
    if (err != NULL && err->code != CALLA_OK) return err->code; /* by the callback */
    return err_set(err, CALLA_ERR_FORMAT, "%s: unexpected value", what);
}

calla_status json_sax_parse(const json_sax *sax, const char *data, size_t n,
                            const json_limits *limits, calla_error *err)
{
    const char *what = limits != NULL && limits->what != NULL ? limits->what : "JSON";
    sax_state s = {.sax = sax, .max_depth = DEPTH_DEFAULT, .max_nodes = NODES_DEFAULT};
    yajl_memory m;
    m.head.link.prev = m.head.link.next = &m.head;
    if (limits != NULL && limits->max_depth != 0) s.max_depth = limits->max_depth;
    if (limits != NULL && limits->max_nodes != 0) s.max_nodes = limits->max_nodes;
    if (err != NULL) err->code = CALLA_OK;
    char *fixed = NULL;
    calla_status st = check_utf8(what, data, n, err);
    if (st == CALLA_OK) st = fix_lone_halves(what, data, n, &fixed, err);
    if (st == CALLA_OK) st = sax_run(&s, &m, what, fixed != NULL ? fixed : data, n, err);
    ya_free_all(&m);
    mem_free(fixed);
    return st;
}

/* ---- Tree ---- */

#define STACK_MAX 1024u

typedef struct builder {
    json_doc *doc;
    calla_error *err;
    json_value *stack[STACK_MAX]; /* open containers */
    json_value *last[STACK_MAX];  /* their last item */
    uint32_t depth;
    const char *key;
    size_t n_key;
} builder;

static bool no_memory(builder *b)
{
    (void)err_set(b->err, CALLA_ERR_MEMORY, "no memory for a JSON tree");
    return false;
}

static json_value *add(builder *b, json_type type)
{
    json_value *v = arena_alloc(&b->doc->mem, sizeof *v);
    if (v == NULL) {
        (void)no_memory(b);
        return NULL;
    }
    v->type = type;
    v->key = b->key;
    v->n_key = b->n_key;
    b->key = NULL;
    b->n_key = 0;
    if (b->depth == 0) {
        b->doc->root = v;
    } else {
        json_value *parent = b->stack[b->depth - 1];
        json_value *last = b->last[b->depth - 1];
        if (last == NULL)
            parent->first = v;
        else
            last->next = v;
        b->last[b->depth - 1] = v;
        parent->n_items++;
    }
    return v;
}

static bool add_text(builder *b, json_type type, const char *s, size_t n)
{
    json_value *v = add(b, type);
    if (v == NULL) return false;
    v->text = arena_memdup(&b->doc->mem, s, n);
    v->n_text = n;
    return v->text != NULL || no_memory(b);
}

static bool tree_null(void *ctx)
{
    return add(ctx, JSON_NULL) != NULL;
}

static bool tree_bool(void *ctx, bool value)
{
    return add(ctx, value ? JSON_TRUE : JSON_FALSE) != NULL;
}

static bool tree_number(void *ctx, const char *s, size_t n)
{
    return add_text(ctx, JSON_NUMBER, s, n);
}

static bool tree_string(void *ctx, const char *s, size_t n)
{
    return add_text(ctx, JSON_STRING, s, n);
}

static bool tree_key(void *ctx, const char *s, size_t n)
{
    builder *b = ctx;
    b->key = arena_memdup(&b->doc->mem, s, n);
    b->n_key = n;
    return b->key != NULL || no_memory(b);
}

static bool tree_open(builder *b, json_type type)
{
    json_value *v = add(b, type);
    if (v == NULL) return false;
    b->stack[b->depth] = v;
    b->last[b->depth] = NULL;
    b->depth++;
    return true;
}

static bool tree_object(void *ctx)
{
    return tree_open(ctx, JSON_OBJECT);
}

static bool tree_array(void *ctx)
{
    return tree_open(ctx, JSON_ARRAY);
}

static bool tree_array_end(void *ctx)
{
    builder *b = ctx;
    b->depth--;
    return true;
}

typedef struct member {
    json_value *v;
    size_t pos;
} member;

static int member_cmp(const void *pa, const void *pb)
{
    const member *a = pa, *b = pb;
    const size_t n = a->v->n_key < b->v->n_key ? a->v->n_key : b->v->n_key;
    const int c = memcmp(a->v->key, b->v->key, n);
    if (c != 0) return c;
    if (a->v->n_key != b->v->n_key) return a->v->n_key < b->v->n_key ? -1 : 1;
    return a->pos < b->pos ? -1 : a->pos > b->pos;
}

static bool same_key(const json_value *a, const json_value *b)
{
    return a->n_key == b->n_key && memcmp(a->key, b->key, a->n_key) == 0;
}

/* The value of `from` at the place of `to`. */
static void member_replace(json_value *to, const json_value *from)
{
    json_value *next = to->next;
    *to = *from;
    to->next = next;
}

/* Duplicate keys: last value, first place. Sorting keeps it O(n log n) for hostile objects. */
static bool tree_object_end(void *ctx)
{
    builder *b = ctx;
    json_value *obj = b->stack[--b->depth];
    const size_t n = obj->n_items;
    if (n < 2) return true;
    member *m = mem_array(n, sizeof *m);
    if (m == NULL) return no_memory(b);
    size_t i = 0;
    for (json_value *v = obj->first; v != NULL; v = v->next, i++)
        m[i] = (member){v, i};
    qsort(m, n, sizeof *m, member_cmp);
    bool any = false;
    for (i = 0; i < n;) {
        size_t j = i + 1;
        while (j < n && same_key(m[i].v, m[j].v))
            j++;
        if (j - i > 1) {
            member_replace(m[i].v, m[j - 1].v);
            for (size_t k = i + 1; k < j; k++)
                m[k].v->key = NULL;
            any = true;
        }
        i = j;
    }
    mem_free(m);
    if (!any) return true;
    for (json_value **p = &obj->first; *p != NULL;) {
        if ((*p)->key != NULL) {
            p = &(*p)->next;
        } else {
            *p = (*p)->next;
            obj->n_items--;
        }
    }
    return true;
}

calla_status json_parse(json_doc *doc, const char *data, size_t n, const json_limits *limits,
                        calla_error *err)
{
    json_limits lim = limits != NULL ? *limits : (json_limits){0};
    if (lim.max_depth > STACK_MAX) lim.max_depth = STACK_MAX;
    calla_error own = {0};
    memset(doc, 0, sizeof *doc);
    builder *b = mem_alloc(sizeof *b);
    if (b == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a JSON tree");
    b->doc = doc;
    b->err = &own;
    const json_sax sax = {
        .ctx = b,
        .on_null = tree_null,
        .on_bool = tree_bool,
        .on_number = tree_number,
        .on_string = tree_string,
        .on_key = tree_key,
        .on_object = tree_object,
        .on_object_end = tree_object_end,
        .on_array = tree_array,
        .on_array_end = tree_array_end,
    };
    const calla_status st = json_sax_parse(&sax, data, n, &lim, &own);
    mem_free(b);
    if (st != CALLA_OK) {
        json_free(doc);
        if (err != NULL) *err = own;
    }
    return st;
}

void json_free(json_doc *doc)
{
    arena_deinit(&doc->mem);
    doc->root = NULL;
}

/* ---- Numbers ----
 * strtod and printf write and expect the decimal point of the thread's locale, which belongs to the
 * program that uses this library. */

static locale_t point_begin(void)
{
    const locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    return c == (locale_t)0 ? c : uselocale(c);
}

static void point_end(locale_t before)
{
    if (before == (locale_t)0) return;
    const locale_t c = uselocale(before);
    freelocale(c);
}

static double number_value(const char *text)
{
    const locale_t before = point_begin();
    const double d = strtod(text, NULL);
    point_end(before);
    return d;
}

/* ---- Access ---- */

const json_value *json_get(const json_value *v, const char *key)
{
    if (v == NULL || v->type != JSON_OBJECT) return NULL;
    const size_t n = strlen(key);
    for (const json_value *m = v->first; m != NULL; m = m->next)
        if (m->n_key == n && memcmp(m->key, key, n) == 0) return m;
    return NULL;
}

const json_value *json_at(const json_value *v, size_t i)
{
    if (v == NULL || (v->type != JSON_ARRAY && v->type != JSON_OBJECT)) return NULL;
    const json_value *m = v->first;
    for (; m != NULL && i != 0; i--)
        m = m->next;
    return m;
}

bool json_is(const json_value *v, const char *s)
{
    return v != NULL && v->type == JSON_STRING && v->n_text == strlen(s) &&
           memcmp(v->text, s, v->n_text) == 0;
}

static bool is_integer_text(const json_value *v)
{
    return strpbrk(v->text, ".eE") == NULL;
}

bool json_int(const json_value *v, int64_t *out)
{
    if (v == NULL || v->type != JSON_NUMBER) return false;
    if (is_integer_text(v)) {
        errno = 0;
        const long long x = strtoll(v->text, NULL, 10);
        if (errno != 0) return false;
        *out = x;
        return true;
    }
    double d;
    if (!json_double(v, &d) || d != floor(d) || fabs(d) > 9007199254740992.0) return false;
    *out = (int64_t)d;
    return true;
}

bool json_double(const json_value *v, double *out)
{
    if (v == NULL || v->type != JSON_NUMBER) return false;
    const double d = number_value(v->text);
    if (!isfinite(d)) return false;
    *out = d;
    return true;
}

/* ---- Writing ---- */

bool json_write_string(strbuf *out, const char *s, size_t n)
{
    (void)strbuf_putc(out, '"');
    size_t plain = 0; /* start of the run not yet written */
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        (void)strbuf_append(out, s + plain, i - plain);
        plain = i + 1;
        static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
        const char *p = c == 0 ? NULL : strchr(from, c);
        if (p != NULL) {
            const char esc[2] = {'\\', to[p - from]};
            (void)strbuf_append(out, esc, 2);
        } else {
            (void)strbuf_printf(out, "\\u%04x", c);
        }
    }
    (void)strbuf_append(out, s + plain, n - plain);
    return strbuf_putc(out, '"');
}

/* The decimal digits of "d.dddde+XX" one up in the last place; false when all are nines. */
static bool digits_up(char *s)
{
    char *p = strchr(s, 'e');
    while (p > s) {
        p--;
        if (*p == '.') continue;
        if (*p != '9') {
            ++*p;
            return true;
        }
        *p = '0';
    }
    return false;
}

/* The fewest digits that read back as d > 0, as "d.dddde+XX"; returns their number. Above a power
 * of two the numbers lie twice as far apart as below, so that not the nearest decimal but the next
 * one up may be the one that reads back. */
static int shortest_digits(char s[40], double d)
{
    char up[40];
    for (int prec = 1; prec < 17; prec++) {
        (void)snprintf(s, 40, "%.*e", prec - 1, d);
        if (strtod(s, NULL) == d) return prec;
        memcpy(up, s, sizeof up);
        if (digits_up(up) && strtod(up, NULL) == d) {
            memcpy(s, up, sizeof up);
            return prec;
        }
    }
    (void)snprintf(s, 40, "%.16e", d);
    return 17;
}

/* Python's repr of a float: shortest digits, exponent form outside 1e-4 .. 1e16. */
static bool write_float_point(strbuf *out, double d)
{
    char s[40];
    if (signbit(d)) (void)strbuf_putc(out, '-');
    d = fabs(d);
    if (isinf(d)) return strbuf_puts(out, "Infinity");
    if (d == 0) return strbuf_puts(out, "0.0");
    const int prec = shortest_digits(s, d);
    char *e = strchr(s, 'e');
    const int exp10 = (int)strtol(e + 1, NULL, 10);
    if (exp10 < -4 || exp10 >= 16) {
        *e = '\0';
        return strbuf_printf(out, "%se%c%02d", s, exp10 < 0 ? '-' : '+', abs(exp10));
    }
    const int decimals = prec - 1 - exp10;
    return strbuf_printf(out, "%.*f", decimals < 1 ? 1 : decimals, d);
}

static bool write_float(strbuf *out, double d)
{
    const locale_t before = point_begin();
    const bool ok = write_float_point(out, d);
    point_end(before);
    return ok;
}

static bool write_number(strbuf *out, const json_value *v)
{
    if (!is_integer_text(v)) return write_float(out, number_value(v->text));
    if (strcmp(v->text, "-0") == 0) return strbuf_putc(out, '0');
    return strbuf_append(out, v->text, v->n_text);
}

/* Recursion depth is bounded by the limit the tree was parsed with (at most STACK_MAX). */
bool json_write(strbuf *out, const json_value *v)
{
    switch (v->type) {
    case JSON_NULL:
        return strbuf_puts(out, "null");
    case JSON_FALSE:
        return strbuf_puts(out, "false");
    case JSON_TRUE:
        return strbuf_puts(out, "true");
    case JSON_NUMBER:
        return write_number(out, v);
    case JSON_STRING:
        return json_write_string(out, v->text, v->n_text);
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    const bool object = v->type == JSON_OBJECT;
    (void)strbuf_putc(out, object ? '{' : '[');
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        if (m != v->first) (void)strbuf_puts(out, ", ");
        if (object) {
            (void)json_write_string(out, m->key, m->n_key);
            (void)strbuf_puts(out, ": ");
        }
        (void)json_write(out, m);
    }
    return strbuf_putc(out, object ? '}' : ']');
}
