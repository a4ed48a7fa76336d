#include "bench/ablate.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* What each mechanism is measured on, and what the article reports for it (docs/SPEED.md). */
static const struct {
    const char *name, *kind;
    uint32_t n;
    const char *published;
} mechanisms[] = {
    {"inline_dequant", "prefill", 512, "+77.4 %"},
    {"gpu_routing", "prefill", 512, "+89 %"},
    {"tile32", "prefill", 2048, "+13.2 %"},
    {"gdn_regs", "prefill", 2048, "+5.6 %"},
    {"gdn_staged", "prefill", 2048, NULL},
    {"gdn_one_reduction", "prefill", 2048, NULL},
    {"tensor_main", "prefill", 2048, NULL},
    {"concurrent", "decode", 256, NULL},
    {"gemv_rows", "decode", 256, NULL},
    {"fuse_gateup", "decode", 256, NULL},
    {"fuse_down", "decode", 256, NULL},
    {"fuse_qkprep", "decode", 256, NULL},
    {"fuse_gdnnorm", "decode", 256, NULL},
    {"router_tail", "decode", 256, NULL},
    {"norm_fold", "decode", 256, NULL},
    {"pdl", "decode", 256, NULL},
    {"token_slots", "decode", 256, NULL},
    {"gpu_argmax", "decode", 256, NULL},
    {"kv_coalesce", "decode", 3840, "+2.1 %"},
    {"gqa_pack", "decode", 32768, "+23.8 %"},
    {"attn_blocks", "decode", 32768, "+7.7 %"},
    {"attn_mm", "decode", 32768, NULL},
};
#define N_MECHANISMS (sizeof mechanisms / sizeof *mechanisms)

static bool selected(const char *list, const char *name)
{
    const size_t n = strlen(name);
    if (list == NULL) return true;
    for (const char *p = list; *p != '\0'; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && strncmp(p, name, n) == 0) return true;
    return false;
}

const char *ablate_unknown(const char *list, size_t *n)
{
    for (const char *p = list; *p != '\0'; p += *n, p += *p == ',') {
        size_t i = 0;
        *n = strcspn(p, ",");
        while (i < N_MECHANISMS &&
               (strlen(mechanisms[i].name) != *n || strncmp(p, mechanisms[i].name, *n) != 0))
            i++;
        if (i == N_MECHANISMS) return p;
    }
    return NULL;
}

typedef struct pair {
    const char *kind;
    uint32_t tokens;
    double *t[2]; /* with, without */
    uint32_t n[2];
} pair;

/* One prefill, or the steps at p->tokens, after what t[off] has. The first round warms up. */
static calla_status once(measure *m, exec_seq *seq, pair *p, int off, bool counts, calla_error *err)
{
    double *to = p->t[off] + p->n[off];
    const bool prefill = strcmp(p->kind, "prefill") == 0;
    const uint32_t n = prefill ? 1 : m->o.steps;
    const calla_status st =
        prefill ? measure_prefill(m, p->tokens, to, err) : measure_decode(m, seq, to, err);
    if (st == CALLA_OK && counts) p->n[off] += n;
    return st;
}

static calla_status alternate(measure *m, pair *p, const char *name, calla_error *err)
{
    const exec_ops *ops = m->ex->ops;
    const uint32_t steps = 2 * (m->o.reps + 1) * (MEASURE_ROOM + m->o.steps);
    double unused;
    exec_seq *seq = NULL;
    calla_status st = CALLA_OK;
    calla_error ignored;
    if (strcmp(p->kind, "decode") == 0) {
        st = ops->seq_create(m->ex, p->tokens + steps, &seq, err);
        if (st == CALLA_OK) st = measure_feed(m, seq, p->tokens, &unused, err);
    }
    for (uint32_t r = 0; r <= m->o.reps && st == CALLA_OK; r++)
        for (int off = 0; off < 2 && st == CALLA_OK; off++) {
            st = ops->ablate(m->ex, off != 0 ? name : NULL, err);
            if (st == CALLA_OK) st = once(m, seq, p, off, r > 0, err);
        }
    ops->seq_destroy(m->ex, seq);
    (void)ops->ablate(m->ex, NULL, &ignored);
    return st;
}

static calla_status ablate_one(measure *m, bench_record *r, size_t i, uint32_t tokens,
                               calla_error *err)
{
    const char *name = mechanisms[i].name, *kind = mechanisms[i].kind;
    const bool prefill = strcmp(kind, "prefill") == 0;
    const size_t room = (size_t)(m->o.reps + 1) * (prefill ? 1 : m->o.steps);
    pair p = {.kind = kind, .tokens = tokens};
    const bench_result *x[2] = {NULL, NULL};
    p.t[0] = mem_array(2 * room, sizeof *p.t[0]);
    if (p.t[0] == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to compare %s", name);
    p.t[1] = p.t[0] + room;
    const calla_status st = alternate(m, &p, name, err);
    for (int off = 0; off < 2 && st == CALLA_OK; off++) {
        bench_result like = measure_result(m, kind, tokens);
        like.without = off != 0 ? name : "";
        like.published = mechanisms[i].n == tokens ? mechanisms[i].published : NULL;
        x[off] = record_add(r, like, p.t[off], p.n[off], prefill ? tokens : 1.0);
    }
    mem_free(p.t[0]);
    if (x[0] == NULL || x[1] == NULL) return st;
    printf("%-18s %-8s %7u %12.1f %12.1f %+8.1f%% %10s\n", name, kind, tokens, x[0]->rate,
           x[1]->rate, 100.0 * (x[0]->rate / x[1]->rate - 1.0),
           x[0]->published != NULL ? x[0]->published : "-");
    (void)fflush(stdout);
    return st;
}

calla_status ablate_run(measure *m, bench_record *r, const ablate_options *o, calla_error *err)
{
    calla_status st = CALLA_OK;
    if (m->ex->ops->ablate == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "--ablate needs a GPU backend, found %s",
                       m->ex->ops->name);
    printf("%-18s %-8s %7s %12s %12s %9s %10s\n", "mechanism", "measured", "at", "with", "without",
           "gain", "article");
    for (size_t i = 0; i < N_MECHANISMS && st == CALLA_OK; i++) {
        const bool prefill = strcmp(mechanisms[i].kind, "prefill") == 0;
        const uint32_t *given = prefill ? o->prefill : o->decode;
        const bool any = o->n_prefill + o->n_decode != 0;
        uint32_t n = prefill ? o->n_prefill : o->n_decode;
        if (!any) given = &mechanisms[i].n, n = 1;
        if (!selected(o->only, mechanisms[i].name)) continue;
        for (uint32_t j = 0; j < n && st == CALLA_OK; j++)
            st = ablate_one(m, r, i, given[j], err);
    }
    return st;
}
