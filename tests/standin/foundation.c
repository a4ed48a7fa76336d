/* The few classes of Foundation that the driver meets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rt.h"

/* ---- NSString ---- */

typedef struct string_body {
    char *text;
} string_body;

static void string_dealloc(obj *o)
{
    mem_free(RT_BODY(o, string_body)->text);
}

obj *ns_string(const char *text)
{
    obj *o = rt_new(&class_NSString);
    RT_BODY(o, string_body)->text = mem_strdup(text);
    if (RT_BODY(o, string_body)->text == NULL) abort();
    return o;
}

const char *ns_text(obj *string)
{
    return rt_is(string, &class_NSString, "text of a string") ? RT_BODY(string, string_body)->text
                                                              : "";
}

static obj *string_with_utf8(obj *self, rt_sel *sel, const char *text)
{
    (void)self;
    (void)sel;
    if (text == NULL) {
        rt_violation("stringWithUTF8String: NULL");
        return NULL;
    }
    rt_lock();
    obj *o = rt_autorelease(ns_string(text));
    rt_unlock();
    return o;
}

static obj *string_init_utf8(obj *self, rt_sel *sel, const char *text)
{
    (void)sel;
    char *copy = mem_strdup(text);
    if (copy == NULL) abort();
    RT_BODY(self, string_body)->text = copy;
    return self;
}

static const char *string_utf8(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, string_body)->text;
}

static unsigned long string_length(obj *self, rt_sel *sel)
{
    (void)sel;
    return strlen(RT_BODY(self, string_body)->text);
}

static const rt_method string_methods[] = {
    RT_M("stringWithUTF8String:", string_with_utf8, RT_CLASS | RT_FAILS, 0),
    RT_M("initWithUTF8String:", string_init_utf8, 0, 0),
    RT_M("UTF8String", string_utf8, 0, 0),
    RT_M("length", string_length, 0, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_NSString = {"NSString",          &class_NSObject, string_methods,
                                 sizeof(string_body), string_dealloc,  0};

/* ---- NSError ---- */

typedef struct error_body {
    obj *domain, *message;
    long code;
} error_body;

static void error_dealloc(obj *o)
{
    rt_release(RT_BODY(o, error_body)->domain);
    rt_release(RT_BODY(o, error_body)->message);
}

obj *ns_error(const char *domain, long code, const char *message)
{
    obj *o = rt_new(&class_NSError);
    *RT_BODY(o, error_body) = (error_body){ns_string(domain), ns_string(message), code};
    return o;
}

void ns_error_out(obj **out, const char *domain, long code, const char *message)
{
    if (out != NULL) *out = rt_autorelease(ns_error(domain, code, message));
}

static obj *error_message(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, error_body)->message;
}

static obj *error_domain(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, error_body)->domain;
}

static long error_code(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, error_body)->code;
}

static const rt_method error_methods[] = {RT_M("localizedDescription", error_message, RT_FAILS, 0),
                                          RT_M("domain", error_domain, 0, 0),
                                          RT_M("code", error_code, 0, 0),
                                          {NULL, NULL, 0, 0}};
const rt_class class_NSError = {"NSError",          &class_NSObject, error_methods,
                                sizeof(error_body), error_dealloc,   0};

/* ---- NSNumber ---- */

typedef struct number_body {
    long value;
} number_body;

static obj *number_of(long value)
{
    rt_lock();
    obj *o = rt_new(&class_NSNumber);
    RT_BODY(o, number_body)->value = value;
    rt_autorelease(o);
    rt_unlock();
    return o;
}

static obj *number_with_int(obj *self, rt_sel *sel, int v)
{
    (void)self;
    (void)sel;
    return number_of(v);
}

static obj *number_with_uint(obj *self, rt_sel *sel, unsigned v)
{
    (void)self;
    (void)sel;
    return number_of((long)v);
}

static obj *number_with_long(obj *self, rt_sel *sel, long v)
{
    (void)self;
    (void)sel;
    return number_of(v);
}

static const rt_method number_methods[] = {
    RT_M("numberWithInt:", number_with_int, RT_CLASS | RT_FAILS, 0),
    RT_M("numberWithUnsignedInt:", number_with_uint, RT_CLASS | RT_FAILS, 0),
    RT_M("numberWithLong:", number_with_long, RT_CLASS | RT_FAILS, 0),
    RT_M("numberWithUnsignedLong:", number_with_long, RT_CLASS | RT_FAILS, 0),
    RT_M("numberWithInteger:", number_with_long, RT_CLASS | RT_FAILS, 0),
    RT_M("numberWithUnsignedInteger:", number_with_long, RT_CLASS | RT_FAILS, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_NSNumber = {
    "NSNumber", &class_NSObject, number_methods, sizeof(number_body), NULL, 0};

/* ---- NSDictionary ---- */

#define PAIRS_MAX 16u
typedef struct dict_body {
    obj *keys[PAIRS_MAX], *values[PAIRS_MAX];
    size_t n;
} dict_body;

static void dict_dealloc(obj *o)
{
    dict_body *b = RT_BODY(o, dict_body);
    for (size_t i = 0; i < b->n; i++) {
        rt_release(b->keys[i]);
        rt_release(b->values[i]);
    }
}

static void dict_put(obj *dict, obj *value, obj *key)
{
    dict_body *b = RT_BODY(dict, dict_body);
    if (!rt_is(key, &class_NSString, "key of a dictionary") ||
        !rt_is(value, &class_NSObject, "value of a dictionary"))
        return;
    if (b->n == PAIRS_MAX) {
        rt_violation("a dictionary of more than %u pairs", PAIRS_MAX);
        return;
    }
    b->keys[b->n] = rt_retain(key);
    b->values[b->n++] = rt_retain(value);
}

static obj *dict_new(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    obj *o = rt_autorelease(rt_new(self->cls));
    rt_unlock();
    return o;
}

static obj *dict_with_one(obj *self, rt_sel *sel, obj *value, obj *key)
{
    obj *o = dict_new(self, sel);
    rt_lock();
    dict_put(o, value, key);
    rt_unlock();
    return o;
}

static obj *dict_with_arrays(obj *self, rt_sel *sel, obj *const *values, obj *const *keys,
                             unsigned long n)
{
    obj *o = dict_new(self, sel);
    rt_lock();
    for (unsigned long i = 0; i < n; i++)
        dict_put(o, values[i], keys[i]);
    rt_unlock();
    return o;
}

static void dict_set(obj *self, rt_sel *sel, obj *value, obj *key)
{
    (void)sel;
    rt_lock();
    dict_put(self, value, key);
    rt_unlock();
}

size_t ns_dictionary_count(obj *dict)
{
    return RT_BODY(dict, dict_body)->n;
}

bool ns_dictionary_number(obj *dict, const char *key, long *value)
{
    const dict_body *b = RT_BODY(dict, dict_body);
    for (size_t i = 0; i < b->n; i++) {
        if (strcmp(ns_text(b->keys[i]), key) != 0) continue;
        obj *v = b->values[i];
        if (v->cls == &class_NSNumber)
            *value = RT_BODY(v, number_body)->value;
        else
            *value = strtol(ns_text(v), NULL, 0);
        return true;
    }
    return false;
}

static const rt_method dict_methods[] = {
    RT_M("dictionary", dict_new, RT_CLASS | RT_FAILS, 0),
    RT_M("dictionaryWithObject:forKey:", dict_with_one, RT_CLASS | RT_FAILS, 0),
    RT_M("dictionaryWithObjects:forKeys:count:", dict_with_arrays, RT_CLASS | RT_FAILS, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_NSDictionary = {"NSDictionary",    &class_NSObject, dict_methods,
                                     sizeof(dict_body), dict_dealloc,    0};
static const rt_method mutable_methods[] = {RT_M("setObject:forKey:", dict_set, 0, 0),
                                            {NULL, NULL, 0, 0}};
const rt_class class_NSMutableDictionary = {"NSMutableDictionary", &class_NSDictionary,
                                            mutable_methods,       sizeof(dict_body),
                                            dict_dealloc,          0};

/* ---- NSArray ---- */

#define ITEMS_MAX 128u
typedef struct array_body {
    obj *items[ITEMS_MAX];
    size_t n;
} array_body;

static void array_dealloc(obj *o)
{
    array_body *b = RT_BODY(o, array_body);
    for (size_t i = 0; i < b->n; i++)
        rt_release(b->items[i]);
}

obj *ns_array(obj *const *items, size_t n)
{
    obj *o = rt_new(&class_NSArray);
    array_body *b = RT_BODY(o, array_body);
    for (size_t i = 0; i < n && i < ITEMS_MAX; i++)
        b->items[b->n++] = rt_retain(items[i]);
    return o;
}

static unsigned long array_count(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, array_body)->n;
}

static obj *array_at(obj *self, rt_sel *sel, unsigned long i)
{
    (void)sel;
    const array_body *b = RT_BODY(self, array_body);
    if (i < b->n) return b->items[i];
    rt_violation("item %lu of an array of %zu", i, b->n);
    return NULL;
}

static const rt_method array_methods[] = {RT_M("count", array_count, 0, 0),
                                          RT_M("objectAtIndex:", array_at, RT_FAILS, 0),
                                          {NULL, NULL, 0, 0}};
const rt_class class_NSArray = {"NSArray",          &class_NSObject, array_methods,
                                sizeof(array_body), array_dealloc,   0};

/* ---- NSURL, NSProcessInfo ---- */

static obj *url_with_path(obj *self, rt_sel *sel, obj *path)
{
    (void)sel;
    rt_lock();
    obj *o = NULL;
    if (rt_is(path, &class_NSString, "fileURLWithPath:")) o = rt_autorelease(rt_new(self->cls));
    rt_unlock();
    return o;
}

static const rt_method url_methods[] = {
    RT_M("fileURLWithPath:", url_with_path, RT_CLASS | RT_FAILS, 0), {NULL, NULL, 0, 0}};
const rt_class class_NSURL = {"NSURL", &class_NSObject, url_methods, 0, NULL, 0};

static obj *process_info(obj *self, rt_sel *sel)
{
    (void)sel;
    static obj *only;
    rt_lock();
    if (only == NULL) {
        only = rt_new(self->cls);
        only->immortal = true;
    }
    rt_unlock();
    return only;
}

typedef struct os_version {
    long major, minor, patch;
} os_version;

static bool process_at_least(obj *self, rt_sel *sel, os_version v)
{
    (void)self;
    (void)sel;
    if (v.major < 10 || v.major > 99 || v.minor < 0 || v.minor > 99 || v.patch < 0 || v.patch > 99)
        rt_violation("isOperatingSystemAtLeastVersion: %ld.%ld.%ld", v.major, v.minor, v.patch);
    const long want = v.major * 100 + v.minor;
    return want < (long)rt_opt.os || (want == (long)rt_opt.os && v.patch == 0);
}

static long process_thermal(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return (long)rt_opt.thermal;
}

static bool process_low_power(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    return rt_opt.low_power != 0;
}

static obj *process_version_string(obj *self, rt_sel *sel)
{
    (void)self;
    (void)sel;
    char text[64];
    (void)snprintf(text, sizeof text, "Version %u.%u (Build 25A%u)", rt_opt.os / 100,
                   rt_opt.os % 100, rt_opt.os);
    rt_lock();
    obj *o = rt_autorelease(ns_string(text));
    rt_unlock();
    return o;
}

static const rt_method process_methods[] = {
    RT_M("processInfo", process_info, RT_CLASS | RT_FAILS, 0),
    RT_M("isOperatingSystemAtLeastVersion:", process_at_least, 0, 0),
    RT_M("thermalState", process_thermal, 0, 0),
    RT_M("isLowPowerModeEnabled", process_low_power, 0, 0),
    RT_M("operatingSystemVersionString", process_version_string, RT_FAILS, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_NSProcessInfo = {
    "NSProcessInfo", &class_NSObject, process_methods, 0, NULL, 0};
