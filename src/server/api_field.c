#include "server/api_field.h"

#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

/* Sentences quote what was sent, cut at a number of bytes: half characters become '?'. */
static void clean(char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        utf8_kind kind;
        const size_t len = utf8_read(text + i, n - i, &cp, &kind);
        if (kind != UTF8_CHAR) memset(text + i, '?', len);
        i += len;
    }
}

bool api_fail(api_error *e, unsigned status, const char *code, const char *param, const char *fmt,
              ...)
{
    va_list args;
    e->status = status;
    e->code = code;
    (void)snprintf(e->param, sizeof e->param, "%s", param != NULL ? param : "");
    va_start(args, fmt);
    (void)vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    clean(e->param);
    clean(e->message);
    return false;
}

bool api_bad(api_error *e, const char *param, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return api_fail(e, 400, NULL, param, "%s: %s", param, text);
}

bool api_no_memory(api_error *e)
{
    return api_fail(e, 503, "out_of_memory", NULL, "The server has no memory for this request.");
}

bool api_from(api_error *e, const char *param, const calla_error *err)
{
    switch (err->code) {
    case CALLA_ERR_MEMORY:
        return api_no_memory(e);
    case CALLA_ERR_INTERNAL:
    case CALLA_ERR_IO:
        return api_fail(e, 500, NULL, NULL, "%s", err->message);
    default:
        return api_fail(e, 400, NULL, param, "%s", err->message);
    }
}

api_path path_of(const char *fmt, ...)
{
    api_path p;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(p.s, sizeof p.s, fmt, args);
    va_end(args);
    return p;
}

const char *json_type_name(const json_value *v)
{
    static const char *const names[] = {"null",     "a boolean", "a boolean", "a number",
                                        "a string", "an array",  "an object"};
    return v == NULL ? "nothing" : names[v->type];
}

static bool has_kind(const json_value *v, api_kind kind)
{
    switch (kind) {
    case API_BOOL:
        return v->type == JSON_TRUE || v->type == JSON_FALSE;
    case API_INT:
    case API_REAL:
        return v->type == JSON_NUMBER;
    case API_STRING:
        return v->type == JSON_STRING;
    case API_ARRAY:
        return v->type == JSON_ARRAY;
    case API_OBJECT:
        return v->type == JSON_OBJECT;
    }
    return false;
}

static bool out_of_range(const api_field *f, const json_value *v, const char *path, api_error *e)
{
    if (f->kind == API_REAL)
        return api_bad(e, path, "expected a number from %.15g to %.15g, found %.40s", f->min,
                       f->max, v->text);
    /* 2^63 - 1 is no double. */
    const long long max = f->max >= 0x1p63 ? INT64_MAX : (long long)f->max;
    return api_bad(e, path, "expected an integer from %lld to %lld, found %.40s", (long long)f->min,
                   max, v->text);
}

static bool read_one(const json_value *v, const api_field *f, const char *path, char *to,
                     api_error *e)
{
    static const char *const wanted[] = {"a boolean", "an integer", "a number",
                                         "a string",  "an array",   "an object"};
    if (!has_kind(v, f->kind))
        return api_bad(e, path, "expected %s, found %s", wanted[f->kind], json_type_name(v));
    if (f->kind == API_BOOL) {
        const api_bool b = {true, v->type == JSON_TRUE};
        memcpy(to, &b, sizeof b);
    } else if (f->kind == API_INT) {
        api_int i = {.set = true};
        if (!json_int(v, &i.value) || (double)i.value < f->min || (double)i.value > f->max)
            return out_of_range(f, v, path, e);
        memcpy(to, &i, sizeof i);
    } else if (f->kind == API_REAL) {
        api_real r = {.set = true};
        if (!json_double(v, &r.value) || r.value < f->min || r.value > f->max)
            return out_of_range(f, v, path, e);
        memcpy(to, &r, sizeof r);
    } else {
        memcpy(to, &v, sizeof v);
    }
    return true;
}

bool api_read(const json_value *object, const char *where, const api_field *fields, size_t n,
              void *out, api_error *e)
{
    for (size_t i = 0; i < n; i++) {
        const json_value *v = json_get(object, fields[i].name);
        if (v == NULL || v->type == JSON_NULL) continue;
        const api_path path = path_of("%s%s%s", where, *where != '\0' ? "." : "", fields[i].name);
        if (!read_one(v, &fields[i], path.s, (char *)out + fields[i].offset, e)) return false;
    }
    return true;
}

bool api_text(const json_value *v, const char *path, const char **text, size_t *n, api_error *e)
{
    *text = "";
    *n = 0;
    if (v == NULL || v->type == JSON_NULL) return true;
    if (v->type != JSON_STRING)
        return api_bad(e, path, "expected a string, found %s", json_type_name(v));
    *text = v->text;
    *n = v->n_text;
    return true;
}
