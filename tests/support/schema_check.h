/* schema_check.h - a small validator of JSON schemas, for tests: written apart from the compiler of
 * constraints, and without patterns and formats. */
#ifndef CALLA_TESTS_SCHEMA_CHECK_H
#define CALLA_TESTS_SCHEMA_CHECK_H

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static inline bool schema_valid(const json_value *root, const json_value *s, const json_value *v);

static inline bool schema_equal(const json_value *a, const json_value *b)
{
    strbuf x = {0}, y = {0};
    json_write(&x, a);
    json_write(&y, b);
    const bool equal = x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    strbuf_deinit(&x);
    strbuf_deinit(&y);
    return equal;
}

static inline bool schema_is_type(const char *name, const json_value *v)
{
    switch (v->type) {
    case JSON_NULL:
        return strcmp(name, "null") == 0;
    case JSON_TRUE:
    case JSON_FALSE:
        return strcmp(name, "boolean") == 0;
    case JSON_STRING:
        return strcmp(name, "string") == 0;
    case JSON_ARRAY:
        return strcmp(name, "array") == 0;
    case JSON_OBJECT:
        return strcmp(name, "object") == 0;
    default:
        return strcmp(name, "number") == 0 ||
               (strcmp(name, "integer") == 0 && strpbrk(v->text, ".eE") == NULL);
    }
}

static inline size_t schema_n_chars(const json_value *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_text; i++)
        n += ((unsigned char)v->text[i] & 0xc0) != 0x80;
    return n;
}

/* Does the keyword hold for x? A keyword that is not there holds. */
static inline bool schema_bound(const json_value *s, const char *key, double x, int sign, bool open)
{
    double bound;
    if (!json_double(json_get(s, key), &bound)) return true;
    return open ? sign * (x - bound) > 0 : sign * (x - bound) >= 0;
}

static inline bool schema_object_valid(const json_value *root, const json_value *s,
                                       const json_value *v)
{
    const json_value *props = json_get(s, "properties"), *req = json_get(s, "required");
    const json_value *more = json_get(s, "additionalProperties");
    for (const json_value *r = req == NULL ? NULL : req->first; r != NULL; r = r->next)
        if (json_get(v, r->text) == NULL) return false;
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        const json_value *own = json_get(props, m->key);
        if (own == NULL) own = more;
        if (own != NULL && !schema_valid(root, own, m)) return false;
    }
    return true;
}

static inline bool schema_array_valid(const json_value *root, const json_value *s,
                                      const json_value *v)
{
    const json_value *prefix = json_get(s, "prefixItems"), *items = json_get(s, "items");
    size_t i = 0;
    for (const json_value *m = v->first; m != NULL; m = m->next, i++) {
        const json_value *own = json_at(prefix, i);
        if (own == NULL) own = items;
        if (own != NULL && !schema_valid(root, own, m)) return false;
    }
    return schema_bound(s, "minItems", (double)i, 1, false) &&
           schema_bound(s, "maxItems", (double)i, -1, false);
}

static inline const json_value *schema_ref(const json_value *root, const json_value *s)
{
    const json_value *ref = json_get(s, "$ref");
    if (ref == NULL) return s;
    const char *slash = strrchr(ref->text, '/');
    if (slash == NULL) return root;
    const char *where = strncmp(ref->text, "#/$defs/", 8) == 0 ? "$defs" : "properties";
    return json_get(json_get(root, where), slash + 1);
}

static inline bool schema_type_valid(const json_value *s, const json_value *v)
{
    const json_value *type = json_get(s, "type"), *nullable = json_get(s, "nullable");
    if (type == NULL) return true;
    if (nullable != NULL && nullable->type == JSON_TRUE && v->type == JSON_NULL) return true;
    bool some = type->type == JSON_STRING && schema_is_type(type->text, v);
    for (const json_value *t = type->type == JSON_ARRAY ? type->first : NULL; t; t = t->next)
        some |= schema_is_type(t->text, v);
    return some;
}

static inline bool schema_valid(const json_value *root, const json_value *s, const json_value *v)
{
    if (s->type == JSON_TRUE || s->type == JSON_FALSE) return s->type == JSON_TRUE;
    const json_value *target = schema_ref(root, s);
    if (target != s) return schema_valid(root, target, v);
    const json_value *any = json_get(s, "anyOf");
    if (any == NULL) any = json_get(s, "oneOf");
    if (any == NULL) any = json_get(s, "allOf");
    bool some = any == NULL;
    for (const json_value *a = any == NULL ? NULL : any->first; a != NULL; a = a->next)
        some |= schema_valid(root, a, v);
    if (!some || !schema_type_valid(s, v)) return false;
    const json_value *choices = json_get(s, "enum"), *one = json_get(s, "const");
    some = choices == NULL;
    for (const json_value *c = choices == NULL ? NULL : choices->first; c != NULL; c = c->next)
        some |= schema_equal(c, v);
    if (!some || (one != NULL && !schema_equal(one, v))) return false;
    if (v->type == JSON_NUMBER) {
        const double x = strtod(v->text, NULL);
        return schema_bound(s, "minimum", x, 1, false) &&
               schema_bound(s, "maximum", x, -1, false) &&
               schema_bound(s, "exclusiveMinimum", x, 1, true) &&
               schema_bound(s, "exclusiveMaximum", x, -1, true);
    }
    if (v->type == JSON_STRING)
        return schema_bound(s, "minLength", (double)schema_n_chars(v), 1, false) &&
               schema_bound(s, "maxLength", (double)schema_n_chars(v), -1, false);
    if (v->type == JSON_OBJECT) return schema_object_valid(root, s, v);
    return v->type != JSON_ARRAY || schema_array_valid(root, s, v);
}

#endif
