#include "engine/filter_constraint.h"

#include "base/mem.h"

typedef struct filter {
    constraint *c;
    const calla_tokenizer *tok;
    int32_t think[2]; /* ids of <think>, </think>; -1: not one token */
} filter;

/* The bytes of an id that may stand in a constrained text; NULL: it may not. */
static const char *text_of(const filter *f, int32_t id, size_t *n)
{
    const char *s = calla_tokenizer_bytes(f->tok, id, n);
    if (s == NULL || *n == 0 || id == f->think[0] || id == f->think[1]) return NULL;
    return calla_tokenizer_is_special(f->tok, id) ? NULL : s;
}

static bool allow(void *user, int32_t id)
{
    const filter *f = user;
    size_t n;
    const char *s = text_of(f, id, &n);
    return s != NULL && constraint_try(f->c, s, n);
}

static bool may_end(void *user)
{
    const filter *f = user;
    return constraint_may_end(f->c);
}

static void accept(void *user, int32_t id)
{
    const filter *f = user;
    size_t n;
    const char *s = text_of(f, id, &n);
    if (s != NULL) (void)constraint_advance(f->c, s, n); /* allowed: cannot fail */
}

static void destroy(void *user)
{
    filter *f = user;
    constraint_destroy(f->c);
    mem_free(f);
}

static calla_status find_token(const filter *f, const char *s, size_t n, int32_t *id,
                               calla_error *err)
{
    int32_t *ids;
    size_t n_ids;
    const calla_status st =
        calla_tokenizer_encode(f->tok, s, n, CALLA_ENCODE_DEFAULT, &ids, &n_ids, err);
    if (st != CALLA_OK) return st;
    *id = n_ids == 1 ? ids[0] : -1;
    calla_free(ids);
    return CALLA_OK;
}

calla_status filter_constraint_create(sched_filter *out, constraint *c, const calla_tokenizer *tok,
                                      calla_error *err)
{
    calla_status st;
    filter *f = mem_alloc(sizeof *f);
    *out = (sched_filter){0};
    if (f == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a filter");
    *f = (filter){.c = c, .tok = tok};
    TRY(find_token(f, "<think>", 7, &f->think[0], err));
    TRY(find_token(f, "</think>", 8, &f->think[1], err));
    *out = (sched_filter){f, allow, may_end, accept, destroy};
    return CALLA_OK;
fail:
    mem_free(f);
    return st;
}
