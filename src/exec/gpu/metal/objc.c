/* Opening the libraries; strings and errors. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "exec/gpu/metal/api.h"

typedef void (*any_fn)(void);

/* Handles of the libraries, in the order of the table. */
typedef struct libraries {
    void *handle[8];
    uint32_t n;
} libraries;

static calla_status open_all(libraries *l, const char *one, calla_error *err)
{
    static const char *const system_paths[] = {
#define LIBRARY(field, path) path,
#include "exec/gpu/metal/selectors.inc"
    };
    const char *const *paths = one != NULL ? &one : system_paths;
    const uint32_t n = one != NULL ? 1 : (uint32_t)(sizeof system_paths / sizeof *system_paths);
    for (; l->n < n; l->n++) {
        l->handle[l->n] = dlopen(paths[l->n], RTLD_NOW | RTLD_LOCAL);
        if (l->handle[l->n] == NULL)
            return err_set(err, CALLA_ERR_UNSUPPORTED,
                           "there is no Metal on this machine (%s cannot be opened)", paths[l->n]);
    }
    return CALLA_OK;
}

/* POSIX lets a function's address pass through a data pointer. */
static any_fn find(const libraries *l, const char *symbol)
{
    any_fn f = NULL;
    for (uint32_t i = 0; i < l->n && f == NULL; i++) {
        void *p = dlsym(l->handle[i], symbol);
        memcpy(&f, &p, sizeof f);
    }
    return f;
}

calla_status metal_api_open(metal_api *a, const char *one, calla_error *err)
{
    libraries l = {.n = 0};
    memset(a, 0, sizeof *a);
    const calla_status st = open_all(&l, one, err);
    if (st != CALLA_OK) return st;
    const char *missing = NULL;
    any_fn fn;
#define FUNCTION(field, symbol, result, parameters)                                                \
    fn = find(&l, #symbol);                                                                        \
    memcpy(&a->f.field, &fn, sizeof fn);                                                           \
    if (fn == NULL) missing = #symbol;
#include "exec/gpu/metal/selectors.inc"
    const any_fn send = find(&l, "objc_msgSend");
    if (send == NULL) missing = "objc_msgSend";
    if (missing != NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "this system's Metal has no function %s",
                       missing);
#define CLASS(field, name, since)                                                                  \
    a->c.field = a->f.get_class(#name);                                                            \
    if ((since) <= 14 && a->c.field == NULL) missing = #name;
#include "exec/gpu/metal/selectors.inc"
    if (missing != NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "this system's Metal has no class %s", missing);
#define METHOD(receiver, field, selector, since, result, parameters)                               \
    a->m.field.sel = a->f.sel_register(selector);                                                  \
    memcpy(&a->m.field.send, &send, sizeof send);
#include "exec/gpu/metal/selectors.inc"
    return CALLA_OK;
}

m_id metal_string(const metal_api *a, const char *text)
{
    return SEND(a, string_with, a->c.string, text);
}

void metal_text(const metal_api *a, m_id string, char *text, size_t bytes)
{
    const char *s = string != NULL ? SEND0(a, utf8, string) : NULL;
    (void)snprintf(text, bytes, "%s", s != NULL ? s : "");
}

void metal_error_text(const metal_api *a, m_id error, char *text, size_t bytes)
{
    metal_text(a, error != NULL ? SEND0(a, error_text, error) : NULL, text, bytes);
    if (text[0] == '\0') (void)snprintf(text, bytes, "no description");
}
