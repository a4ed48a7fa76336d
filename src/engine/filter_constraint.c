#include "engine/filter_constraint.h"

#include <string.h>

#include "base/mem.h"

typedef struct filter {
    const calla_tokenizer *tok;
    constraint *forms[FILTER_FORMS_MAX]; /* NULL: out, or never in */
} filter;

static bool is_control(const char *s, size_t n)
{
    static const char *const tags[] = {"<think>", "</think>", "<tool_response>",
                                       "</tool_response>"};
    if (s[0] != '<') return false;
    if (n > 4 && s[1] == '|' && s[n - 2] == '|' && s[n - 1] == '>') return true;
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (n == strlen(tags[i]) && memcmp(s, tags[i], n) == 0) return true;
    return false;
}

/* The bytes of an id that may stand in a constrained text; NULL: it may not. */
static const char *text_of(const filter *f, int32_t id, size_t *n)
{
    const char *s = calla_tokenizer_bytes(f->tok, id, n);
    if (s == NULL || *n == 0 || is_control(s, *n)) return NULL;
    return calla_tokenizer_is_special(f->tok, id) ? NULL : s;
}

static bool allow(void *user, int32_t id)
{
    const filter *f = user;
    size_t n;
    const char *s = text_of(f, id, &n);
    for (size_t i = 0; s != NULL && i < FILTER_FORMS_MAX; i++)
        if (f->forms[i] != NULL && constraint_try(f->forms[i], s, n)) return true;
    return false;
}

static bool may_end(void *user)
{
    const filter *f = user;
    for (size_t i = 0; i < FILTER_FORMS_MAX; i++)
        if (f->forms[i] != NULL && constraint_may_end(f->forms[i])) return true;
    return false;
}

static void accept(void *user, int32_t id)
{
    filter *f = user;
    size_t n;
    const char *s = text_of(f, id, &n);
    for (size_t i = 0; s != NULL && i < FILTER_FORMS_MAX; i++) {
        if (f->forms[i] == NULL || constraint_advance(f->forms[i], s, n)) continue;
        constraint_destroy(f->forms[i]);
        f->forms[i] = NULL;
    }
}

static void destroy(void *user)
{
    filter *f = user;
    if (f == NULL) return;
    for (size_t i = 0; i < FILTER_FORMS_MAX; i++)
        constraint_destroy(f->forms[i]);
    mem_free(f);
}

calla_status filter_constraint_create(sched_filter *out, constraint *const *forms, size_t n,
                                      const calla_tokenizer *tok, calla_error *err)
{
    calla_status st = CALLA_OK;
    size_t n_forms = 0;
    *out = (sched_filter){0};
    if (n > FILTER_FORMS_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "a filter takes %u forms, found %zu",
                       FILTER_FORMS_MAX, n);
    filter *f = mem_alloc(sizeof *f);
    if (f == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a filter");
    f->tok = tok;
    for (size_t i = 0; i < n; i++)
        if (forms[i] != NULL) TRY(constraint_clone(&f->forms[n_forms++], forms[i], err));
    if (n_forms == 0) goto fail; /* nothing to filter: no failure */
    *out = (sched_filter){f, allow, may_end, accept, destroy};
    return CALLA_OK;
fail:
    destroy(f);
    return st;
}
