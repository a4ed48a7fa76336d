#include "text/value.h"

#include <string.h>
#include "text/pystr.h"
#include "text/value_literal.h"

/* ---- Types ---- */

static bool same_nocase(const char *s, const char *lower, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] + ('a' - 'A')) : s[i];
        if (c != lower[i]) return false;
    }
    return true;
}

static void add_kind(value_type *t, value_kind kind)
{
    for (unsigned i = 0; i < t->n_kinds; i++)
        if (t->kinds[i] == kind) return;
    t->kinds[t->n_kinds++] = kind;
}

static void add_type(value_type *t, const json_value *name)
{
    static const struct {
        const char *spelling;
        bool prefix;
        value_kind kind;
    } rows[] = {
        {"int", true, VALUE_INTEGER},      {"uint", true, VALUE_INTEGER},
        {"long", true, VALUE_INTEGER},     {"short", true, VALUE_INTEGER},
        {"unsigned", true, VALUE_INTEGER}, {"num", true, VALUE_NUMBER},
        {"float", true, VALUE_NUMBER},     {"double", false, VALUE_NUMBER},
        {"boolean", false, VALUE_BOOLEAN}, {"bool", false, VALUE_BOOLEAN},
        {"binary", false, VALUE_BOOLEAN},  {"object", false, VALUE_OBJECT},
        {"dict", true, VALUE_OBJECT},      {"array", false, VALUE_ARRAY},
        {"arr", false, VALUE_ARRAY},       {"list", true, VALUE_ARRAY},
    };
    if (json_is(name, "null")) {
        t->nullable = true;
        return;
    }
    for (size_t i = 0; name->type == JSON_STRING && i < sizeof rows / sizeof rows[0]; i++) {
        const size_t n = strlen(rows[i].spelling);
        if (name->n_text < n || (!rows[i].prefix && name->n_text != n)) continue;
        if (!same_nocase(name->text, rows[i].spelling, n)) continue;
        add_kind(t, rows[i].kind);
        return;
    }
    t->string = true;
}

static const json_value *find_ref(const json_value *root, const json_value *ref)
{
    static const char *const folders[] = {"$defs", "definitions"};
    for (size_t i = 0; ref->type == JSON_STRING && i < 2; i++) {
        const size_t n = strlen(folders[i]);
        if (ref->n_text < n + 3 || strncmp(ref->text, "#/", 2) != 0) continue;
        if (strncmp(ref->text + 2, folders[i], n) != 0 || ref->text[n + 2] != '/') continue;
        return json_get(json_get(root, folders[i]), ref->text + n + 3);
    }
    return NULL;
}

enum { SCHEMAS_MAX = 64 }; /* alternatives of one parameter that are looked at */

typedef struct schema_list {
    const json_value *items[SCHEMAS_MAX]; /* a stack: the next one is last */
    unsigned n, n_seen;
} schema_list;

static void push_all(schema_list *l, const json_value *array)
{
    const unsigned first = l->n;
    for (const json_value *v = array->first; v != NULL && l->n < SCHEMAS_MAX; v = v->next)
        l->items[l->n++] = v;
    for (unsigned i = first, j = l->n; i + 1 < j; i++) {
        const json_value *v = l->items[i];
        l->items[i] = l->items[--j];
        l->items[j] = v;
    }
}

static bool has_null(const json_value *list)
{
    for (const json_value *v = list == NULL ? NULL : list->first; v != NULL; v = v->next)
        if (v->type == JSON_NULL) return true;
    return false;
}

/* One schema: adds its types, or puts its alternatives on the stack. */
static void add_schema(value_type *t, schema_list *l, const json_value *root, const json_value *v)
{
    static const char *const alternatives[] = {"anyOf", "oneOf", "allOf"};
    const json_value *type = json_get(v, "type"), *nullable = json_get(v, "nullable");
    const json_value *ref = json_get(v, "$ref");
    if ((nullable != NULL && nullable->type == JSON_TRUE) || has_null(json_get(v, "enum")))
        t->nullable = true;
    if (type != NULL && type->type == JSON_ARRAY) {
        for (const json_value *a = type->first; a != NULL; a = a->next)
            add_type(t, a);
        return;
    }
    if (type != NULL) {
        add_type(t, type);
        return;
    }
    if (ref != NULL) {
        const json_value *found = find_ref(root, ref);
        if (found == NULL)
            add_kind(t, VALUE_OBJECT);
        else if (l->n < SCHEMAS_MAX)
            l->items[l->n++] = found;
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        const json_value *list = json_get(v, alternatives[i]);
        if (list == NULL || list->type != JSON_ARRAY) continue;
        push_all(l, list);
        return;
    }
    if (json_get(v, "enum") == NULL && json_get(v, "properties") != NULL)
        add_kind(t, VALUE_OBJECT);
    else if (json_get(v, "enum") == NULL && json_get(v, "items") != NULL)
        add_kind(t, VALUE_ARRAY);
    else
        t->string = true;
}

static const json_value *find_property(const json_value *parameters, const char *key, size_t n_key)
{
    const json_value *properties = json_get(parameters, "properties");
    if (properties == NULL || properties->type != JSON_OBJECT) return NULL;
    for (const json_value *v = properties->first; v != NULL; v = v->next)
        if (v->n_key == n_key && memcmp(v->key, key, n_key) == 0) return v;
    return NULL;
}

void value_type_of(value_type *t, const json_value *parameters, const char *key, size_t n_key)
{
    schema_list l = {.n = 0};
    *t = (value_type){.n_kinds = 0};
    const json_value *v = find_property(parameters, key, n_key);
    if (v != NULL) l.items[l.n++] = v;
    for (; l.n > 0 && l.n_seen < SCHEMAS_MAX; l.n_seen++)
        add_schema(t, &l, parameters, l.items[--l.n]);
    /* Nothing said, or more than we look at. A lone null says nothing of what else may come. */
    if (l.n > 0 || t->n_kinds == 0) t->string = true;
}

bool value_is_declared(const json_value *parameters, const char *key, size_t n_key)
{
    return find_property(parameters, key, n_key) != NULL;
}

bool value_is_text(const value_type *t)
{
    return t->n_kinds == 0 && !t->nullable;
}

/* ---- Conversion ---- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool value_may_be_null(const char *s, size_t n)
{
    size_t i = 0, k = 0;
    while (i < n && is_space(s[i]))
        i++;
    while (i < n && k < 4 && same_nocase(s + i, &"null"[k], 1)) {
        i++;
        k++;
    }
    while (i < n && k == 4 && is_space(s[i]))
        i++;
    return i == n;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t skip_digits(const char *s, size_t n, size_t i)
{
    while (i < n && is_digit(s[i]))
        i++;
    return i;
}

/* Sign, digits, and an integral rest: ".000", or an exponent that leaves no fraction. */
static bool write_integer(strbuf *out, const char *s, size_t n)
{
    enum { EXPONENT_MAX = 308 }; /* what a double can hold */
    size_t i = n > 0 && (s[0] == '+' || s[0] == '-');
    const size_t whole = i;
    i = skip_digits(s, n, i);
    const size_t n_whole = i - whole;
    size_t point = i, fraction = i;
    if (i < n && s[i] == '.') i = fraction = skip_digits(s, n, i + 1);
    if (n_whole == 0) return false;
    while (fraction > point && (s[fraction - 1] == '0' || s[fraction - 1] == '.'))
        fraction--; /* zeros at the end of the fraction do not count */
    const size_t n_fraction = fraction > point ? fraction - point - 1 : 0;
    size_t exponent = 0;
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        if (i + 1 < n && s[i + 1] == '+') i++;
        const size_t first = ++i;
        for (; i < n && is_digit(s[i]) && exponent <= EXPONENT_MAX; i++)
            exponent = exponent * 10 + (size_t)(s[i] - '0');
        if (i == first) return false;
    }
    if (i != n || exponent > EXPONENT_MAX || n_fraction > exponent) return false;

    size_t begin = whole, zeros = exponent - n_fraction;
    while (begin < point && s[begin] == '0')
        begin++;
    size_t tail = point + 1;
    if (begin == point)
        while (tail < fraction && s[tail] == '0')
            tail++;
    if (begin == point && tail >= point + 1 + n_fraction) return strbuf_putc(out, '0');
    if (s[0] == '-') (void)strbuf_putc(out, '-');
    (void)strbuf_append(out, s + begin, point - begin);
    if (n_fraction > 0) (void)strbuf_append(out, s + tail, point + 1 + n_fraction - tail);
    for (; zeros > 0; zeros--)
        (void)strbuf_putc(out, '0');
    return true;
}

/* Tries one kind; false: not of this kind (or memory ran out, which out->failed keeps). */
static bool write_kind(strbuf *out, value_kind kind, const char *s, size_t n)
{
    switch (kind) {
    case VALUE_INTEGER:
        return write_integer(out, s, n);
    case VALUE_NUMBER:
        return n > 0 && value_number_length(s, n) == n && strbuf_append(out, s, n);
    case VALUE_BOOLEAN:
        if (n == 4 && same_nocase(s, "true", 4)) return strbuf_puts(out, "true");
        return n == 5 && same_nocase(s, "false", 5) && strbuf_puts(out, "false");
    case VALUE_OBJECT:
    case VALUE_ARRAY:
        if (n == 0 || s[0] != (kind == VALUE_OBJECT ? '{' : '[')) return false;
        return value_literal_write(out, s, n, false, NULL) ||
               value_literal_write(out, s, n, true, NULL);
    case VALUE_N_KINDS:
        break;
    }
    return false;
}

bool value_write(strbuf *out, const value_type *t, const char *s, size_t n)
{
    size_t begin = 0, end = n;
    if (!value_is_text(t)) pystr_strip(s, &begin, &end);
    if (end - begin == 4 && same_nocase(s + begin, "null", 4) && (t->nullable || !t->string))
        return strbuf_puts(out, "null");
    for (unsigned i = 0; i < t->n_kinds && !out->failed; i++)
        if (write_kind(out, t->kinds[i], s + begin, end - begin)) return !out->failed;
    return json_write_string(out, s, n);
}

bool value_write_object(strbuf *out, const char *s, size_t n, value_members *members, bool *ok)
{
    *ok = n > 0 && s[0] == '{' && value_literal_write(out, s, n, false, members);
    return !out->failed;
}
