/* JSON schemas. Alternatives become edges side by side; a $ref becomes a call of a rule, so that it
 * may be recursive. Members of an object come in the schema's order. */
#include <stdlib.h>
#include <string.h>

#include "text/constraint_build.h"

#define DEPTH_MAX         64u   /* of schemas within schemas */
#define LENIENT_COUNT_MAX 1024u /* larger lengths are passed over where that is allowed */
#define MEMBERS_MAX       2048u /* properties of one object */
#define ONE_OF_MAX        64u   /* alternatives that are compared with each other */

static uint32_t compile(builder *b, uint32_t from, const json_value *schema, bool raw);

/* ---- Places ---- */

static size_t schema_enter(builder *b, const char *key, const char *name, size_t n_name)
{
    const size_t n = b->path.len;
    strbuf_putc(&b->path, '/');
    strbuf_puts(&b->path, key);
    if (name != NULL) strbuf_putc(&b->path, '/');
    for (size_t i = 0; name != NULL && i < n_name; i++) {
        if (name[i] == '~')
            strbuf_puts(&b->path, "~0");
        else if (name[i] == '/')
            strbuf_puts(&b->path, "~1");
        else
            strbuf_putc(&b->path, name[i]);
    }
    if (b->path.failed) build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
    return n;
}

static size_t enter_index(builder *b, const char *key, size_t i)
{
    const size_t n = b->path.len;
    strbuf_printf(&b->path, "/%s/%zu", key, i);
    return n;
}

static void schema_leave(builder *b, size_t n_path)
{
    b->path.len = n_path;
    if (b->path.data != NULL) b->path.data[n_path] = '\0';
}

static const char *place(const builder *b)
{
    return b->path.data == NULL ? "" : b->path.data;
}

static uint32_t refuse(builder *b, const char *keyword, const char *why)
{
    build_fail(b, CALLA_ERR_UNSUPPORTED, "the schema at \"#%s\" has \"%s\", which %s", place(b),
               keyword, why);
    return 0;
}

static uint32_t malformed(builder *b, const char *keyword, const char *expected)
{
    build_fail(b, CALLA_ERR_ARGUMENT, "\"%s\" of the schema at \"#%s\" must be %s", keyword,
               place(b), expected);
    return 0;
}

/* ---- Keywords ---- */

enum {              /* what a keyword is about */
       ON_NOTE = 1, /* nothing that is enforced */
       ON_TYPE = 2,
       ON_OBJECT = 4,
       ON_ARRAY = 8,
       ON_STRING = 16,
       ON_NUMBER = 32,
       ON_ENUM = 64,
       ON_REF = 128,
       ON_ANY_OF = 256,
       ON_ALL_OF = 512,
       ON_NULL = 1024
};
#define ON_VALUES ((unsigned)(ON_OBJECT | ON_ARRAY | ON_STRING | ON_NUMBER))

static const struct {
    const char *name;
    unsigned on;
} keywords[] = {
    {"title", ON_NOTE},
    {"description", ON_NOTE},
    {"default", ON_NOTE},
    {"example", ON_NOTE},
    {"examples", ON_NOTE},
    {"$schema", ON_NOTE},
    {"$id", ON_NOTE},
    {"$comment", ON_NOTE},
    {"$defs", ON_NOTE},
    {"definitions", ON_NOTE},
    {"deprecated", ON_NOTE},
    {"readOnly", ON_NOTE},
    {"writeOnly", ON_NOTE},
    {"discriminator", ON_NOTE},
    {"type", ON_TYPE},
    {"nullable", ON_NULL},
    {"properties", ON_OBJECT},
    {"required", ON_OBJECT},
    {"additionalProperties", ON_OBJECT},
    {"items", ON_ARRAY},
    {"prefixItems", ON_ARRAY},
    {"minItems", ON_ARRAY},
    {"maxItems", ON_ARRAY},
    {"minLength", ON_STRING},
    {"maxLength", ON_STRING},
    {"pattern", ON_STRING},
    {"format", ON_STRING},
    {"minimum", ON_NUMBER},
    {"maximum", ON_NUMBER},
    {"exclusiveMinimum", ON_NUMBER},
    {"exclusiveMaximum", ON_NUMBER},
    {"enum", ON_ENUM},
    {"const", ON_ENUM},
    {"$ref", ON_REF},
    {"anyOf", ON_ANY_OF},
    {"oneOf", ON_ANY_OF},
    {"allOf", ON_ALL_OF},
};

static unsigned keyword_on(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
        if (strcmp(keywords[i].name, name) == 0) return keywords[i].on;
    return strncmp(name, "x-", 2) == 0 ? ON_NOTE : 0;
}

/* Keywords whose value says nothing. */
static bool is_idle(const json_value *v)
{
    int64_t x;
    if (strcmp(v->key, "uniqueItems") == 0) return v->type == JSON_FALSE;
    if (strcmp(v->key, "propertyNames") == 0)
        return v->type == JSON_OBJECT && v->n_items == 1 && json_is(json_get(v, "type"), "string");
    if (strcmp(v->key, "strict") == 0) return v->type == JSON_TRUE || v->type == JSON_FALSE;
    return strcmp(v->key, "minProperties") == 0 && json_int(v, &x) && x == 0;
}

/* Every keyword must be about one of `allowed`; the union of what they are about. */
static unsigned check_keywords(builder *b, const json_value *schema, unsigned allowed)
{
    unsigned all = 0;
    for (const json_value *v = schema->first; v != NULL; v = v->next) {
        const unsigned on = keyword_on(v->key);
        if ((on & allowed) != 0) {
            all |= on;
        } else if (!b->lenient && !is_idle(v)) {
            const char *why = on == 0 ? "is not supported" : "is not supported in this combination";
            refuse(b, v->key, why);
        }
    }
    return all;
}

/* ---- References ---- */

/* The member of v that one part of a JSON pointer names. */
static const json_value *pointer_step(const json_value *v, const char *part, size_t n)
{
    size_t index = 0;
    for (size_t i = 0; v->type == JSON_ARRAY && i < n; i++) {
        if (part[i] < '0' || part[i] > '9' || i > 6) return NULL;
        index = index * 10 + (size_t)(part[i] - '0');
    }
    if (v->type == JSON_ARRAY) return n == 0 ? NULL : json_at(v, index);
    if (v->type != JSON_OBJECT) return NULL;
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        size_t i = 0, k = 0;
        for (; i < n && k < m->n_key; i++, k++) {
            char c = part[i];
            if (c == '~' && i + 1 < n) c = part[++i] == '0' ? '~' : '/';
            if (c != m->key[k]) break;
        }
        if (i == n && k == m->n_key) return m;
    }
    return NULL;
}

static const json_value *find_ref(builder *b, const json_value *ref)
{
    if (ref->type != JSON_STRING) {
        malformed(b, "$ref", "a string");
        return NULL;
    }
    const char *s = ref->text, *end = ref->text + ref->n_text;
    const json_value *v = b->root;
    if (s == end || *s++ != '#' || (s != end && *s != '/')) v = NULL;
    while (v != NULL && s < end) {
        const char *part = ++s;
        while (s < end && *s != '/')
            s++;
        build_spend(b, 4 * (uint64_t)v->n_items); /* names are compared */
        v = pointer_step(v, part, (size_t)(s - part));
    }
    if (v == NULL)
        build_fail(b, CALLA_ERR_ARGUMENT, "\"$ref\" at \"#%s\" leads nowhere: \"%.80s\"", place(b),
                   ref->text);
    return v;
}

/* Follows $ref; NULL (and a failure) when it leads nowhere. */
static const json_value *schema_resolve(builder *b, const json_value *schema)
{
    for (unsigned i = 0; schema != NULL && json_get(schema, "$ref") != NULL; i++) {
        if (i == DEPTH_MAX) {
            refuse(b, "$ref", "leads back to itself");
            return NULL;
        }
        schema = find_ref(b, json_get(schema, "$ref"));
    }
    return schema;
}

/* The rule of a schema, built later by build_refs. */
static uint32_t schema_rule(builder *b, const json_value *schema)
{
    build_spend(b, b->n_refs);
    for (uint32_t i = 0; i < b->n_refs; i++)
        if (b->refs[i].schema == schema && b->refs[i].style == b->style) return b->refs[i].rule;
    if (b->n_refs == b->cap_refs) {
        const uint32_t cap = b->cap_refs == 0 ? 16 : b->cap_refs * 2;
        ref_rule *grown = mem_resize(b->refs, cap * sizeof *grown);
        if (grown == NULL) {
            build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
            return 0;
        }
        b->refs = grown;
        b->cap_refs = cap;
    }
    const uint32_t rule = build_rule(b);
    char *path = arena_memdup(&b->mem, place(b), strlen(place(b)));
    if (path == NULL) build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
    if (b->status != CALLA_OK) return 0;
    b->refs[b->n_refs++] = (ref_rule){schema, rule, path, b->style};
    return rule;
}

void build_refs(builder *b)
{
    while (b->n_refs_built < b->n_refs && b->status == CALLA_OK) {
        const ref_rule r = b->refs[b->n_refs_built++];
        b->style = r.style;
        strbuf_clear(&b->path);
        strbuf_puts(&b->path, r.path);
        build_skip(b, compile(b, b->rules[r.rule].start, r.schema, false), b->rules[r.rule].accept);
    }
}

/* ---- Numbers given by keywords ---- */

/* A count, e.g. minItems; `otherwise` when it is not there. */
static uint32_t read_count(builder *b, const json_value *schema, const char *key,
                           uint32_t otherwise)
{
    const json_value *v = json_get(schema, key);
    int64_t x;
    if (v == NULL) return otherwise;
    if (!json_int(v, &x) || x < 0) return malformed(b, key, "a whole number, not negative");
    if (b->lenient && x > LENIENT_COUNT_MAX) return otherwise;
    if (x < CONSTRAINT_STATES_MAX) return (uint32_t)x;
    return refuse(b, key, "is too large to enforce");
}

static uint32_t compile_number(builder *b, uint32_t from, const json_value *schema, bool integral)
{
    const json_value *lo = json_get(schema, "minimum"), *hi = json_get(schema, "maximum");
    const json_value *lo_open = json_get(schema, "exclusiveMinimum");
    const json_value *hi_open = json_get(schema, "exclusiveMaximum");
    number_bounds n = {0};
    /* Draft 4 has booleans that say what minimum and maximum mean. */
    n.min_open = lo_open != NULL && lo_open->type == JSON_TRUE;
    n.max_open = hi_open != NULL && hi_open->type == JSON_TRUE;
    const bool new_lo = lo_open != NULL && lo_open->type == JSON_NUMBER;
    const bool new_hi = hi_open != NULL && hi_open->type == JSON_NUMBER;
    if ((new_lo && lo != NULL) || (new_hi && hi != NULL)) {
        if (!b->lenient)
            return refuse(b, new_lo && lo != NULL ? "minimum" : "maximum",
                          "cannot be enforced beside its exclusive form");
    }
    if (new_lo) lo = lo_open, n.min_open = true;
    if (new_hi) hi = hi_open, n.max_open = true;
    if (lo == NULL && hi == NULL) return build_number(b, from, integral);
    if ((lo != NULL && lo->type != JSON_NUMBER) || (hi != NULL && hi->type != JSON_NUMBER))
        return malformed(b, lo != NULL && lo->type != JSON_NUMBER ? "minimum" : "maximum",
                         "a number");
    n.min = lo == NULL ? NULL : lo->text;
    n.max = hi == NULL ? NULL : hi->text;
    return build_number_in(b, from, &n, integral);
}

/* ---- Strings ---- */

/* The characters of a string, without quotes. */
static uint32_t compile_text(builder *b, uint32_t from, const json_value *schema, text_style style)
{
    const uint32_t min = read_count(b, schema, "minLength", 0);
    const uint32_t max = read_count(b, schema, "maxLength", BUILD_NONE);
    const json_value *pattern = json_get(schema, "pattern"), *format = json_get(schema, "format");
    const char *by_format = NULL;
    if (format != NULL && format->type != JSON_STRING) return malformed(b, "format", "a string");
    if (pattern != NULL && pattern->type != JSON_STRING) return malformed(b, "pattern", "a string");
    if (format != NULL) by_format = regex_of_format(format->text);
    if (format != NULL && by_format == NULL && pattern == NULL && !b->lenient)
        return refuse(b, "format",
                      "is none of date, time, date-time, duration, uuid, email, "
                      "hostname, ipv4, ipv6, uri");
    if (max < min) return malformed(b, "maxLength", "at least minLength");
    if (pattern == NULL && by_format == NULL) return build_any_text(b, from, min, max, style);
    chars_nfa m = {0};
    if (pattern != NULL)
        regex_parse(b, &m, pattern->text, pattern->n_text);
    else
        regex_parse(b, &m, by_format, strlen(by_format));
    if (b->lenient && b->status == CALLA_ERR_UNSUPPORTED) { /* any text instead */
        b->status = CALLA_OK;
        chars_deinit(&m);
        return build_any_text(b, from, min, max, style);
    }
    const uint32_t end = build_chars(b, from, &m, min, max, style);
    chars_deinit(&m);
    return end;
}

static bool limits_text(const json_value *schema)
{
    return json_get(schema, "minLength") != NULL || json_get(schema, "maxLength") != NULL ||
           json_get(schema, "pattern") != NULL || json_get(schema, "format") != NULL;
}

static uint32_t close_parameter(builder *b, uint32_t from)
{
    return build_puts(b, from, "\n</parameter>\n");
}

static uint32_t compile_string(builder *b, uint32_t from, const json_value *schema, bool raw)
{
    if (raw && !limits_text(schema)) return build_free_text(b, from);
    if (raw) return close_parameter(b, compile_text(b, from, schema, STYLE_RAW));
    const uint32_t open = build_text(b, from, "\"", 1);
    return build_text(b, compile_text(b, open, schema, b->style), "\"", 1);
}

/* ---- Arrays ---- */

static uint32_t compile_items(builder *b, uint32_t from, const json_value *items)
{
    return items == NULL ? build_value(b, from) : build_schema(b, from, items);
}

/* The i-th item; items of the same schema share a rule. */
static uint32_t compile_item(builder *b, uint32_t from, const json_value *prefix,
                             const json_value *items, size_t i)
{
    if (prefix != NULL) build_spend(b, i);
    const json_value *own = json_at(prefix, i);
    if (own != NULL) {
        const size_t n_path = enter_index(b, "prefixItems", i);
        const uint32_t end = build_schema(b, from, own);
        schema_leave(b, n_path);
        return end;
    }
    if (items == NULL) return build_value(b, from);
    const size_t n_path = schema_enter(b, "items", NULL, 0);
    const uint32_t to = build_node(b), rule = schema_rule(b, items);
    build_call(b, from, to, rule);
    schema_leave(b, n_path);
    return to;
}

static uint32_t compile_array(builder *b, uint32_t from, const json_value *schema)
{
    const json_value *items = json_get(schema, "items"), *prefix = json_get(schema, "prefixItems");
    const uint32_t min = read_count(b, schema, "minItems", 0);
    const uint32_t max = read_count(b, schema, "maxItems", BUILD_NONE);
    const uint32_t end = build_node(b);
    if (items != NULL && items->type == JSON_ARRAY)
        return malformed(b, "items", "a schema (prefixItems has lists of them)");
    if (prefix != NULL && prefix->type != JSON_ARRAY)
        return malformed(b, "prefixItems", "an array");
    if (max < min) return malformed(b, "maxItems", "at least minItems");
    const uint32_t n_prefix = prefix == NULL ? 0 : (uint32_t)prefix->n_items;
    uint32_t n_chain = min > n_prefix ? min : n_prefix;
    if (max != BUILD_NONE) n_chain = max;
    uint32_t at = build_space(b, build_text(b, from, "[", 1)), loop = at;
    if (min == 0) build_bytes(b, at, end, ']', ']');
    for (uint32_t i = 0; i < n_chain && b->status == CALLA_OK; i++) {
        if (i != 0) at = build_space(b, build_text(b, at, ",", 1));
        loop = at;
        at = compile_item(b, at, prefix, items, i);
        if (i + 1 >= min) build_bytes(b, build_space(b, at), end, ']', ']');
    }
    if (max != BUILD_NONE) return end;
    if (n_chain != 0) loop = build_space(b, build_text(b, at, ",", 1));
    const size_t n_path = schema_enter(b, "items", NULL, 0);
    const uint32_t first = build_node(b);
    build_skip(b, loop, first);
    const uint32_t last = compile_items(b, first, items);
    build_skip(b, build_space(b, build_text(b, last, ",", 1)), first);
    build_bytes(b, build_space(b, last), end, ']', ']');
    schema_leave(b, n_path);
    return end;
}

/* ---- Objects ---- */

typedef struct member {
    const char *name;
    size_t n_name;
    const json_value *schema; /* NULL: any value */
    bool required;
} member;

static bool is_named(const json_value *v, const char *name, size_t n)
{
    return v->type == JSON_STRING && v->n_text == n && memcmp(v->text, name, n) == 0;
}

/* Declared members, then required ones that are not declared. NULL: failed, or none. */
static member *list_members(builder *b, const json_value *schema, const json_value *more, size_t *n)
{
    const json_value *props = json_get(schema, "properties"), *req = json_get(schema, "required");
    *n = 0;
    if (props != NULL && props->type != JSON_OBJECT) malformed(b, "properties", "an object");
    if (req != NULL && req->type != JSON_ARRAY) malformed(b, "required", "an array of strings");
    if (b->status != CALLA_OK) return NULL;
    const size_t n_props = props == NULL ? 0 : props->n_items;
    const size_t n_req = req == NULL ? 0 : req->n_items;
    if (n_props > MEMBERS_MAX || n_req > MEMBERS_MAX) {
        refuse(b, n_props > MEMBERS_MAX ? "properties" : "required", "has more than 2048 names");
        return NULL;
    }
    member *m = arena_alloc(&b->mem, (n_props + n_req + 1) * sizeof *m);
    if (m == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return NULL;
    }
    for (const json_value *p = n_props == 0 ? NULL : props->first; p != NULL; p = p->next)
        m[(*n)++] = (member){p->key, p->n_key, p, false};
    for (const json_value *r = n_req == 0 ? NULL : req->first; r != NULL; r = r->next) {
        size_t i = 0;
        if (r->type != JSON_STRING) malformed(b, "required", "an array of strings");
        while (i < *n && b->status == CALLA_OK && !is_named(r, m[i].name, m[i].n_name))
            i++;
        build_spend(b, i);
        if (b->status != CALLA_OK) return NULL;
        if (i == *n && b->lenient && more != NULL && more->type == JSON_FALSE) continue;
        if (i == *n) m[(*n)++] = (member){r->text, r->n_text, more, false};
        m[i].required = true;
    }
    return m;
}

/* A name that is none of the members', with quotes. */
static uint32_t build_other_name(builder *b, uint32_t from, const member *m, size_t n)
{
    const uint32_t open = build_text(b, from, "\"", 1);
    if (n == 0) return build_text(b, build_any_text(b, open, 0, BUILD_NONE, b->style), "\"", 1);
    chars_name *names = arena_alloc(&b->mem, n * sizeof *names);
    if (names == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        names[i] = (chars_name){m[i].name, m[i].n_name};
    chars_nfa others = {0};
    chars_all_but(b, &others, names, n);
    const uint32_t close = build_chars(b, open, &others, 0, BUILD_NONE, b->style);
    chars_deinit(&others);
    return build_text(b, close, "\"", 1);
}

static uint32_t compile_member(builder *b, uint32_t key, const member *m)
{
    const uint32_t name = build_quoted(b, key, m->name, m->n_name);
    const uint32_t colon = build_blank(b, build_text(b, name, ":", 1));
    if (m->schema == NULL) return build_value(b, colon);
    const size_t n_path = schema_enter(b, "properties", m->name, m->n_name);
    const uint32_t end = build_schema(b, colon, m->schema);
    schema_leave(b, n_path);
    return end;
}

static uint32_t compile_others(builder *b, uint32_t key, const json_value *more, const member *m,
                               size_t n)
{
    const uint32_t name = build_other_name(b, key, m, n);
    const uint32_t colon = build_blank(b, build_text(b, name, ":", 1));
    if (more == NULL) return build_value(b, colon);
    const size_t n_path = schema_enter(b, "additionalProperties", NULL, 0);
    const uint32_t end = build_schema(b, colon, more);
    schema_leave(b, n_path);
    return end;
}

static void check_strict(builder *b, const json_value *more, const member *m, size_t n)
{
    if (more == NULL || more->type != JSON_FALSE)
        build_fail(b, CALLA_ERR_ARGUMENT,
                   "\"additionalProperties\" of the schema at \"#%s\" must be false, as \"strict\" "
                   "is true",
                   place(b));
    for (size_t i = 0; i < n; i++)
        if (!m[i].required)
            build_fail(
                b, CALLA_ERR_ARGUMENT,
                "\"required\" of the schema at \"#%s\" must have \"%.80s\", as \"strict\" is "
                "true",
                place(b), m[i].name);
}

/* none: no member has been written; some: one has, so that a comma comes before the next. */
static uint32_t compile_object(builder *b, uint32_t from, const json_value *schema)
{
    const json_value *more = json_get(schema, "additionalProperties");
    size_t n = 0;
    const member *m = list_members(b, schema, more, &n);
    if (b->strict) check_strict(b, more, m, n);
    uint32_t none = build_space(b, build_text(b, from, "{", 1)), some = BUILD_NONE;
    for (size_t i = 0; i < n && b->status == CALLA_OK; i++) {
        const uint32_t key = build_node(b), next_some = build_node(b), next_none = build_node(b);
        if (none != BUILD_NONE) build_skip(b, none, key);
        if (some != BUILD_NONE) build_skip(b, build_space(b, build_text(b, some, ",", 1)), key);
        build_skip(b, compile_member(b, key, &m[i]), next_some);
        if (!m[i].required && none != BUILD_NONE) build_skip(b, none, next_none);
        if (!m[i].required && some != BUILD_NONE) build_skip(b, some, next_some);
        none = m[i].required ? BUILD_NONE : none == BUILD_NONE ? BUILD_NONE : next_none;
        some = next_some;
    }
    const uint32_t end = build_node(b);
    if (more == NULL || more->type != JSON_FALSE) {
        const uint32_t key = build_node(b), next = build_node(b);
        if (none != BUILD_NONE) build_skip(b, none, key);
        if (some != BUILD_NONE) build_skip(b, some, next);
        build_skip(b, build_space(b, build_text(b, next, ",", 1)), key);
        build_skip(b, compile_others(b, key, more, m, n), next);
        some = next;
    }
    if (none != BUILD_NONE) build_bytes(b, none, end, '}', '}');
    if (some != BUILD_NONE) build_bytes(b, build_space(b, some), end, '}', '}');
    return end;
}

/* ---- Values of one type ---- */

static uint32_t compile_type(builder *b, uint32_t from, const json_value *schema, const char *type,
                             bool raw)
{
    uint32_t end;
    if (strcmp(type, "string") == 0) return compile_string(b, from, schema, raw);
    if (strcmp(type, "object") == 0) {
        end = compile_object(b, from, schema);
    } else if (strcmp(type, "array") == 0) {
        end = compile_array(b, from, schema);
    } else if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0) {
        end = compile_number(b, from, schema, *type == 'i');
    } else if (strcmp(type, "null") == 0) {
        end = build_puts(b, from, "null");
    } else if (strcmp(type, "boolean") == 0) {
        end = build_node(b);
        build_skip(b, build_puts(b, from, "true"), end);
        build_skip(b, build_puts(b, from, "false"), end);
    } else {
        if (!b->lenient)
            return malformed(b, "type", "string, number, integer, boolean, object, array or null");
        if (raw) return build_free_text(b, from);
        end = build_value(b, from);
    }
    return raw ? close_parameter(b, end) : end;
}

static bool has_type(const json_value *schema, const char *name)
{
    const json_value *type = json_get(schema, "type");
    if (type == NULL || json_is(type, name)) return true;
    for (const json_value *t = type->type == JSON_ARRAY ? type->first : NULL; t; t = t->next)
        if (json_is(t, name)) return true;
    return false;
}

static bool type_admits(const json_value *schema, const json_value *v)
{
    switch (v->type) {
    case JSON_NULL: {
        const json_value *nullable = json_get(schema, "nullable");
        return has_type(schema, "null") || (nullable != NULL && nullable->type == JSON_TRUE);
    }
    case JSON_FALSE:
    case JSON_TRUE:
        return has_type(schema, "boolean");
    case JSON_STRING:
        return has_type(schema, "string");
    case JSON_ARRAY:
        return has_type(schema, "array");
    case JSON_OBJECT:
        return has_type(schema, "object");
    default:
        return has_type(schema, "number") ||
               (has_type(schema, "integer") && strpbrk(v->text, ".eE") == NULL);
    }
}

/* Could the output parser take this text for the end of a parameter? */
static bool ends_parameter(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] < 0x20 && s[i] != '\n' && s[i] != '\t') return true;
    return n != strlen(s) || strstr(s, "</parameter>") != NULL ||
           strstr(s, "</function>") != NULL || strstr(s, "</tool_call>") != NULL ||
           strstr(s, "<parameter=") != NULL;
}

static void compile_choice(builder *b, uint32_t from, uint32_t end, const json_value *v, bool raw)
{
    if (raw && v->type == JSON_STRING) {
        if (ends_parameter(v->text, v->n_text)) return;
        build_skip(b, close_parameter(b, build_text(b, from, v->text, v->n_text)), end);
        return;
    }
    const uint32_t at = build_literal(b, from, v);
    build_skip(b, raw ? close_parameter(b, at) : at, end);
}

static uint32_t compile_enum(builder *b, uint32_t from, const json_value *schema, bool raw)
{
    const json_value *choices = json_get(schema, "enum"), *one = json_get(schema, "const");
    const uint32_t end = build_node(b);
    if (choices != NULL && choices->type != JSON_ARRAY) return malformed(b, "enum", "an array");
    if (choices != NULL && one != NULL && !b->lenient)
        return refuse(b, "const", "cannot be enforced beside enum");
    if (one != NULL) compile_choice(b, from, end, one, raw);
    const json_value *first = one == NULL && choices != NULL ? choices->first : NULL;
    /* A parameter without a type is read as text, so that other choices would not come back. */
    bool text_only = false;
    for (const json_value *v = first; v != NULL; v = v->next)
        text_only |= raw && json_get(schema, "type") == NULL && v->type == JSON_STRING;
    for (const json_value *v = first; v != NULL; v = v->next) {
        if (text_only && v->type != JSON_STRING && v->type != JSON_NULL) continue;
        if (type_admits(schema, v)) compile_choice(b, from, end, v, raw);
    }
    return end;
}

static uint32_t compile_types(builder *b, uint32_t from, const json_value *schema, unsigned on,
                              bool raw)
{
    const json_value *type = json_get(schema, "type"), *nullable = json_get(schema, "nullable");
    const uint32_t end = build_node(b);
    if (nullable != NULL && nullable->type == JSON_TRUE)
        build_skip(b, compile_type(b, from, schema, "null", raw), end);
    if (type != NULL && type->type == JSON_STRING) {
        build_skip(b, compile_type(b, from, schema, type->text, raw), end);
        return end;
    }
    if (type != NULL) {
        if (type->type != JSON_ARRAY)
            return malformed(b, "type", "a string or an array of strings");
        for (const json_value *t = type->first; t != NULL; t = t->next) {
            if (t->type != JSON_STRING) return malformed(b, "type", "an array of strings");
            build_skip(b, compile_type(b, from, schema, t->text, raw), end);
        }
        return end;
    }
    /* No type: the keywords tell. The output parser takes a parameter for text otherwise. */
    const bool some = (on & ON_VALUES) != 0;
    if ((on & ON_OBJECT) != 0) build_skip(b, compile_type(b, from, schema, "object", raw), end);
    if ((on & ON_ARRAY) != 0) build_skip(b, compile_type(b, from, schema, "array", raw), end);
    if ((on & ON_STRING) != 0 || (raw && (on & (ON_OBJECT | ON_ARRAY)) == 0))
        build_skip(b, compile_string(b, from, schema, raw), end);
    if ((on & ON_NUMBER) != 0 && !raw)
        build_skip(b, compile_type(b, from, schema, "number", raw), end);
    if (!some && !raw) build_skip(b, build_value(b, from), end);
    return end;
}

/* ---- Combinations ---- */

/* The schema of a declared member that must be there; NULL: it is not such a one. */
static const json_value *required_member(builder *b, const json_value *schema,
                                         const json_value *name)
{
    const json_value *req = json_get(schema, "required"), *props = json_get(schema, "properties");
    if (name->type != JSON_STRING || req == NULL || req->type != JSON_ARRAY || props == NULL ||
        props->type != JSON_OBJECT)
        return NULL;
    build_spend(b, req->n_items + props->n_items);
    const json_value *r = req->first, *p = props->first;
    while (r != NULL && !is_named(r, name->text, name->n_text))
        r = r->next;
    while (p != NULL && (p->n_key != name->n_text || memcmp(p->key, name->text, p->n_key) != 0))
        p = p->next;
    return r != NULL ? p : NULL;
}

/* Is there a value that both admit? True when in doubt. */
static bool overlap(builder *b, const json_value *x, const json_value *y, unsigned depth)
{
    static const char *const types[] = {"string", "boolean", "object", "array", "null"};
    x = schema_resolve(b, x);
    y = schema_resolve(b, y);
    if (x == NULL || y == NULL || x->type != JSON_OBJECT || y->type != JSON_OBJECT) return true;
    bool common = false;
    const bool x_number = has_type(x, "number") || has_type(x, "integer");
    common |= x_number && (has_type(y, "number") || has_type(y, "integer"));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        common |= has_type(x, types[i]) && has_type(y, types[i]);
    if (!common) return false;
    const json_value *xc = json_get(x, "const"), *yc = json_get(y, "const");
    if (xc != NULL && yc != NULL && xc->type == JSON_STRING && yc->type == JSON_STRING)
        return is_named(xc, yc->text, yc->n_text);
    /* Objects: a member that both require tells them apart. */
    if (!json_is(json_get(x, "type"), "object") || !json_is(json_get(y, "type"), "object"))
        return true;
    const json_value *req = json_get(x, "required");
    if (req == NULL || req->type != JSON_ARRAY || depth == 4) return true;
    for (const json_value *r = req->first; r != NULL && b->status == CALLA_OK; r = r->next) {
        const json_value *mx = required_member(b, x, r), *my = required_member(b, y, r);
        if (mx != NULL && my != NULL && !overlap(b, mx, my, depth + 1)) return false;
    }
    return true;
}

static uint32_t compile_any_of(builder *b, uint32_t from, const json_value *schema, bool raw)
{
    const json_value *any = json_get(schema, "anyOf"), *one = json_get(schema, "oneOf");
    const char *key = any != NULL ? "anyOf" : "oneOf";
    const json_value *list = any != NULL ? any : one;
    const uint32_t end = build_node(b);
    if (any != NULL && one != NULL) return refuse(b, "oneOf", "cannot be enforced beside anyOf");
    if (list->type != JSON_ARRAY || list->n_items == 0)
        return malformed(b, key, "an array of schemas");
    if (any == NULL && !b->lenient && list->n_items > ONE_OF_MAX)
        return refuse(b, key, "has more than 64 alternatives (use anyOf)");
    for (const json_value *x = list->first; x != NULL && any == NULL && !b->lenient; x = x->next)
        for (const json_value *y = x->next; y != NULL && b->status == CALLA_OK; y = y->next)
            if (overlap(b, x, y, 0))
                refuse(b, "oneOf", "has alternatives that are not plainly apart (use anyOf)");
    const json_value *nullable = json_get(schema, "nullable");
    if (nullable != NULL && nullable->type == JSON_TRUE)
        build_skip(b, compile_type(b, from, schema, "null", raw), end);
    size_t i = 0;
    for (const json_value *x = list->first; x != NULL; x = x->next) {
        const size_t n_path = enter_index(b, key, i++);
        build_skip(b, compile(b, from, x, raw), end);
        schema_leave(b, n_path);
    }
    return end;
}

static uint32_t compile_ref(builder *b, uint32_t from, const json_value *schema, bool raw)
{
    const json_value *target = find_ref(b, json_get(schema, "$ref"));
    if (target == NULL) return 0;
    const json_value *ref = json_get(schema, "$ref");
    const size_t n_path = b->path.len;
    char *old = arena_memdup(&b->mem, place(b), n_path);
    if (old == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return 0;
    }
    strbuf_clear(&b->path); /* the place is now that of the target */
    strbuf_append(&b->path, ref->text + 1, ref->n_text - 1);
    uint32_t end;
    if (raw) {
        end = compile(b, from, target, true);
    } else {
        end = build_node(b);
        build_call(b, from, end, schema_rule(b, target));
    }
    strbuf_clear(&b->path);
    strbuf_append(&b->path, old, n_path);
    return end;
}

static uint32_t compile_all_of(builder *b, uint32_t from, const json_value *schema, bool raw)
{
    const json_value *list = json_get(schema, "allOf");
    if (list->type != JSON_ARRAY || list->n_items == 0)
        return malformed(b, "allOf", "an array of schemas");
    if (list->n_items > 1 && !b->lenient)
        return refuse(b, "allOf", "is supported with one schema only");
    if (list->n_items > 1) return raw ? build_free_text(b, from) : build_value(b, from);
    const size_t n_path = enter_index(b, "allOf", 0);
    const uint32_t end = compile(b, from, list->first, raw);
    schema_leave(b, n_path);
    return end;
}

static uint32_t compile_keywords(builder *b, uint32_t from, const json_value *schema, bool raw)
{
    if (json_get(schema, "$ref") != NULL) {
        check_keywords(b, schema, ON_NOTE | ON_REF);
        return compile_ref(b, from, schema, raw);
    }
    if (json_get(schema, "enum") != NULL || json_get(schema, "const") != NULL) {
        check_keywords(b, schema, ON_NOTE | ON_TYPE | ON_NULL | ON_ENUM);
        return compile_enum(b, from, schema, raw);
    }
    if (json_get(schema, "anyOf") != NULL || json_get(schema, "oneOf") != NULL) {
        check_keywords(b, schema, ON_NOTE | ON_NULL | ON_ANY_OF);
        return compile_any_of(b, from, schema, raw);
    }
    if (json_get(schema, "allOf") != NULL) {
        check_keywords(b, schema, ON_NOTE | ON_ALL_OF);
        return compile_all_of(b, from, schema, raw);
    }
    const unsigned on = check_keywords(b, schema, ON_NOTE | ON_TYPE | ON_NULL | ON_VALUES);
    return compile_types(b, from, schema, on, raw);
}

static uint32_t compile(builder *b, uint32_t from, const json_value *schema, bool raw)
{
    if (b->status != CALLA_OK) return 0;
    if (schema->type == JSON_TRUE) return raw ? build_free_text(b, from) : build_value(b, from);
    if (schema->type == JSON_FALSE) return build_node(b); /* nothing leads there */
    if (schema->type != JSON_OBJECT) {
        build_fail(b, CALLA_ERR_ARGUMENT, "the schema at \"#%s\" must be an object or a boolean",
                   place(b));
        return 0;
    }
    if (b->depth == DEPTH_MAX) {
        build_fail(b, CALLA_ERR_UNSUPPORTED, "the schema is nested deeper than %u", DEPTH_MAX);
        return 0;
    }
    b->depth++;
    const uint32_t end = compile_keywords(b, from, schema, raw);
    b->depth--;
    return end;
}

uint32_t build_schema(builder *b, uint32_t from, const json_value *schema)
{
    if (b->strict && schema == b->root && b->depth == 0) {
        const json_value *root = schema_resolve(b, schema);
        if (root != NULL && !json_is(json_get(root, "type"), "object"))
            return malformed(b, "type", "\"object\", as \"strict\" is true");
    }
    return compile(b, from, schema, false);
}

/* ---- Parameters of a tool ---- */

static bool is_writable(const char *key, size_t n)
{
    if (n == 0 || n > 256 || key[0] == ' ' || key[n - 1] == ' ') return false;
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)key[i] < 0x20 || key[i] == '>' || key[i] == '<' || key[i] == 0x7f)
            return false;
    return true;
}

/* Keeps the members that can be written. */
static void drop_unwritable(builder *b, member *m, size_t *n)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < *n; i++) {
        if (is_writable(m[i].name, m[i].n_name))
            m[n_kept++] = m[i];
        else if (!b->lenient)
            refuse(b, m[i].name, "a call cannot be written with");
    }
    *n = n_kept;
}

static uint32_t build_parameter(builder *b, uint32_t from, const member *m)
{
    uint32_t at = build_puts(b, from, "<parameter=");
    at = build_puts(b, build_text(b, at, m->name, m->n_name), ">\n");
    if (m->schema == NULL) return build_free_text(b, at);
    const size_t n_path = schema_enter(b, "properties", m->name, m->n_name);
    const uint32_t end = compile(b, at, m->schema, true);
    schema_leave(b, n_path);
    return end;
}

/* A node for each set of parameters that have been written. */
static uint32_t build_any_order(builder *b, uint32_t from, const member *m, size_t n)
{
    const uint32_t end = build_node(b), sets = build_nodes(b, (uint64_t)1 << n);
    uint32_t required = 0;
    build_skip(b, from, sets);
    for (uint32_t i = 0; i < n && b->status == CALLA_OK; i++) {
        const uint32_t rule = build_rule(b);
        if (b->status != CALLA_OK) return 0;
        const nfa_rule r = b->rules[rule];
        build_skip(b, build_parameter(b, r.start, &m[i]), r.accept);
        if (m[i].required) required |= 1u << i;
        for (uint32_t set = 0; set >> n == 0; set++)
            if ((set >> i & 1) == 0) build_call(b, sets + set, sets + (set | 1u << i), rule);
    }
    for (uint32_t set = 0; set >> n == 0; set++)
        if ((set & required) == required) build_skip(b, sets + set, end);
    return end;
}

uint32_t build_parameters(builder *b, uint32_t from, const json_value *parameters)
{
    const json_value *schema = parameters == NULL ? NULL : schema_resolve(b, parameters);
    if (schema == NULL || b->status != CALLA_OK) return from;
    if (schema->type != JSON_OBJECT) {
        build_fail(b, CALLA_ERR_ARGUMENT, "\"parameters\" of a tool must be an object schema");
        return 0;
    }
    check_keywords(b, schema, ON_NOTE | ON_TYPE | ON_OBJECT);
    if (!has_type(schema, "object") && !b->lenient) return malformed(b, "type", "\"object\"");
    size_t n = 0;
    const json_value *more = json_get(schema, "additionalProperties");
    member *m = list_members(b, schema, more, &n);
    if (b->strict) check_strict(b, more, m, n);
    if (b->status != CALLA_OK) return 0;
    drop_unwritable(b, m, &n);
    if (n <= b->n_any_order) return build_any_order(b, from, m, n);
    for (size_t i = 0; i < n && b->status == CALLA_OK; i++) {
        const uint32_t to = build_parameter(b, from, &m[i]);
        if (!m[i].required) build_skip(b, from, to);
        from = to;
    }
    return from;
}
