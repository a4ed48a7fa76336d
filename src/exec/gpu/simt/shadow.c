#include "exec/gpu/simt/shadow.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define CHUNK_BYTES 4096u /* of a buffer: cells are allocated where they are needed */
#define CHUNK_CELLS (CHUNK_BYTES / 2)
#define SITES_MAX   4096u /* a power of two */

/* Instead of a thread: several of one simdgroup, or several. */
#define MANY_OF_SG 0x8000u
#define MANY       0xffffu

/* The last write and read of two bytes. Epochs count barriers of the group and the simdgroup. */
typedef struct stamp {
    uint32_t run; /* the group's number; 0: none */
    uint16_t thread, epoch, dev_epoch, sg_epoch, site;
    uint8_t how, half; /* SIMT_SHARED; which of the bytes */
} stamp;

typedef struct cell {
    stamp w, r;
    uint32_t r_other; /* another group that has read */
} cell;

struct shadow {
    uint64_t bytes;
    uint8_t *init; /* [bytes] 1: written */
    cell **chunk;
    uint64_t n_chunks;
};

typedef struct site {
    const char *file;
    int line;
} site;

typedef struct run_info {
    const simt_kernel *kernel;
    uint32_t i_dispatch, gx, gy, slot;
} run_info;

struct simt_checker {
    uint32_t first_run, next_run;
    run_info *runs; /* of this submission */
    uint32_t cap_runs, n_slots;
    cell *tg; /* [n_slots][SIMT_TG_ALL / 2] */
    simt_rivals rivals;
    const void *rivals_ctx;
    site sites[SITES_MAX];
};

/* ---- Buffers ---- */

shadow *shadow_create(uint64_t bytes, bool initialised)
{
    shadow *s = mem_alloc(sizeof *s);
    if (s == NULL) return NULL;
    s->bytes = bytes;
    s->n_chunks = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    s->init = mem_alloc_pages((size_t)bytes);
    s->chunk = mem_array((size_t)s->n_chunks, sizeof *s->chunk);
    if (s->init == NULL || s->chunk == NULL) {
        shadow_destroy(s);
        return NULL;
    }
    if (initialised) memset(s->init, 1, (size_t)bytes);
    return s;
}

void shadow_destroy(shadow *s)
{
    if (s == NULL) return;
    for (uint64_t i = 0; s->chunk != NULL && i < s->n_chunks; i++)
        mem_free(s->chunk[i]);
    mem_free(s->chunk);
    mem_free_pages(s->init, (size_t)s->bytes);
    mem_free(s);
}

void shadow_written(shadow *s, uint64_t off, uint64_t bytes)
{
    memset(s->init + off, 1, (size_t)bytes);
}

void shadow_copied(shadow *dst, uint64_t dst_off, const shadow *src, uint64_t src_off,
                   uint64_t bytes)
{
    memmove(dst->init + dst_off, src->init + src_off, (size_t)bytes);
}

static cell *shadow_cell(simt_lane *t, shadow *s, uint64_t off)
{
    cell **c = &s->chunk[off / CHUNK_BYTES];
    if (*c == NULL) *c = mem_array(CHUNK_CELLS, sizeof **c);
    if (*c == NULL) simt_violation(t, "no memory for the checks");
    return *c + off % CHUNK_BYTES / 2;
}

/* ---- Groups ---- */

calla_status simt_checker_create(simt_checker **out, uint32_t n_slots, calla_error *err)
{
    simt_checker *c = mem_alloc(sizeof *c);
    *out = c;
    if (c != NULL) c->tg = mem_array(n_slots * SIMT_TG_ALL / 2, sizeof *c->tg);
    if (c == NULL || c->tg == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for checks");
    c->first_run = c->next_run = 1;
    c->n_slots = n_slots;
    return CALLA_OK;
}

void simt_checker_destroy(simt_checker *c)
{
    if (c == NULL) return;
    mem_free(c->runs);
    mem_free(c->tg);
    mem_free(c);
}

void simt_checker_rivals(simt_checker *c, simt_rivals fn, const void *ctx)
{
    c->rivals = fn;
    c->rivals_ctx = ctx;
}

void simt_checker_begin(simt_checker *c)
{
    c->first_run = c->next_run;
}

uint32_t simt_checker_group(simt_checker *c, uint32_t slot, const simt_launch *l, uint32_t gx,
                            uint32_t gy)
{
    const uint32_t i = c->next_run - c->first_run;
    if (i == c->cap_runs) {
        const uint32_t cap = 2 * c->cap_runs + 256;
        run_info *more = mem_resize(c->runs, cap * sizeof *more);
        if (more == NULL) return 0;
        c->runs = more;
        c->cap_runs = cap;
    }
    c->runs[i] = (run_info){l->kernel, l->i_dispatch, gx, gy, slot};
    return c->next_run++;
}

static const run_info *run_of(const simt_checker *c, uint32_t run)
{
    return &c->runs[run - c->first_run];
}

/* Another group of the same dispatch, or of one that may run at the same time? */
static bool is_rival(const simt_checker *c, const shadow *s, uint32_t run, uint32_t mine)
{
    if (run == mine || run < c->first_run) return false;
    const uint32_t a = run_of(c, run)->i_dispatch, b = run_of(c, mine)->i_dispatch;
    return a == b || (c->rivals != NULL && c->rivals(c->rivals_ctx, s, a, b));
}

static uint16_t site_of(simt_checker *c, const char *file, int line)
{
    uint32_t h = ((uint32_t)((uintptr_t)file >> 3) * 31u + (uint32_t)line) % SITES_MAX;
    for (uint32_t n = 0; n < SITES_MAX; n++, h = (h + 1) % SITES_MAX) {
        if (c->sites[h].file == NULL) c->sites[h] = (site){file, line};
        if (c->sites[h].file == file && c->sites[h].line == line) break;
    }
    return (uint16_t)h;
}

/* ---- Sentences ---- */

void kernel_param(char *to, size_t size, const simt_kernel *k, uint32_t i_binding)
{
    const char *p = k->params != NULL ? k->params : "";
    for (uint32_t i = 0; i < i_binding && p != NULL; i++) {
        p = strchr(p, ',');
        if (p != NULL) p++;
    }
    const char *end = p != NULL ? strchr(p, ',') : NULL;
    if (end == NULL) {
        (void)snprintf(to, size, "%u", i_binding);
        return;
    }
    const char *start = end;
    while (start > p && start[-1] != ' ' && start[-1] != '*')
        start--;
    (void)snprintf(to, size, "%.*s", (int)(end - start), start);
}

/* An access under judgement. */
typedef struct access_info {
    simt_lane *t;
    simt_checker *c;
    const simt_track *track; /* NULL: threadgroup memory */
    const simt_array *array;
    int64_t off;
    uint32_t bytes, how;
    const char *file;
    int line;
    uint16_t site;
} access_info;

static const char *verb(const access_info *a)
{
    if ((a->how & SIMT_SHARED) != 0)
        return (a->how & SIMT_WRITE) != 0 ? "atomic or shared write" : "shared read";
    return (a->how & SIMT_WRITE) != 0 ? "write" : "read";
}

static const char *place(const access_info *a, char *to, size_t size)
{
    const long long off = (long long)a->off;
    if (a->track == NULL) {
        (void)snprintf(to, size, "threadgroup array %s (%u bytes) at byte %lld", a->array->name,
                       a->array->bytes, off);
    } else {
        char name[32];
        const simt_track *k = a->track;
        const simt_launch *l = a->t->group->launch;
        kernel_param(name, sizeof name, l->kernel, k->i_binding);
        (void)snprintf(to, size, "binding %s (%llu bytes, at %llu of buffer %s) at byte %lld", name,
                       (unsigned long long)l->bind[k->i_binding].bytes, (unsigned long long)k->off,
                       k->buffer, off);
    }
    return to;
}

/* what: a clause after the place. */
static void blame(const access_info *a, const char *what)
{
    char where[200];
    simt_violation(a->t, "%s:%d: %s of %u bytes of %s: %s", a->file, a->line, verb(a), a->bytes,
                   place(a, where, sizeof where), what);
}

static void blame_race(const access_info *a, const stamp *s, const char *did)
{
    char what[200], who[48];
    const bool device = a->track != NULL && (s->how & SIMT_WRITE) != 0;
    const char *barrier = device ? "TG_BARRIER_DEVICE" : "barrier";
    if (s->thread == MANY)
        (void)snprintf(who, sizeof who, "several threads");
    else if (s->thread >= MANY_OF_SG)
        (void)snprintf(who, sizeof who, "several threads of simdgroup %u", s->thread - MANY_OF_SG);
    else
        (void)snprintf(who, sizeof who, "thread %u", s->thread);
    (void)snprintf(what, sizeof what, "%s %s it at %s:%d with no %s in between", who, did,
                   a->c->sites[s->site].file, a->c->sites[s->site].line, barrier);
    blame(a, what);
}

static void blame_rival(const access_info *a, uint32_t run, const char *did, const stamp *s)
{
    char what[300], whose[120];
    const run_info *r = run_of(a->c, run), *mine = run_of(a->c, a->t->group->run);
    if (r->i_dispatch == mine->i_dispatch)
        (void)snprintf(whose, sizeof whose, "the same dispatch");
    else
        (void)snprintf(whose, sizeof whose,
                       "dispatch %u (%s), which nothing orders with this (%u),", r->i_dispatch,
                       r->kernel->name, mine->i_dispatch);
    (void)snprintf(what, sizeof what, "group (%u, %u) of %s %s it at %s:%d", r->gx, r->gy, whose,
                   did, a->c->sites[s->site].file, a->c->sites[s->site].line);
    blame(a, what);
}

/* ---- Verdicts ---- */

/* Is what s says of this group ordered before this thread by a barrier, or by being its own?
 * A write to device memory needs TG_BARRIER_DEVICE; a read has come to its end at any barrier. */
static bool is_ordered(const access_info *a, const stamp *s, bool write)
{
    const simt_lane *t = a->t;
    if (s->thread == t->tid && (a->how & SIMT_BY_SG) == 0) return true;
    if (a->track != NULL && write) return s->dev_epoch != (uint16_t)t->group->dev_epoch;
    if (s->epoch != (uint16_t)t->group->epoch) return true;
    if (a->track != NULL || s->thread == MANY) return false;
    const uint32_t sg =
        s->thread >= MANY_OF_SG ? s->thread - MANY_OF_SG : (uint32_t)s->thread / SIMT_LANES;
    return sg == t->tid / SIMT_LANES && s->sg_epoch != (uint16_t)t->sg->epoch;
}

/* Atomics and shared accesses are for groups of one dispatch. */
static bool is_exempt(const access_info *a, const stamp *s, uint8_t half)
{
    if ((s->half & half) == 0) return true;
    if ((a->how & s->how & SIMT_SHARED) == 0) return false;
    return s->run < a->c->first_run || a->track == NULL ||
           run_of(a->c, s->run)->i_dispatch == run_of(a->c, a->t->group->run)->i_dispatch;
}

static void judge(const access_info *a, const cell *c, uint8_t half)
{
    const uint32_t run = a->t->group->run;
    if (!is_exempt(a, &c->w, half)) {
        if (c->w.run == run && !is_ordered(a, &c->w, true)) blame_race(a, &c->w, "wrote");
        if (a->track != NULL && is_rival(a->c, a->track->s, c->w.run, run))
            blame_rival(a, c->w.run, "wrote", &c->w);
    }
    if ((a->how & SIMT_WRITE) == 0 || is_exempt(a, &c->r, half)) return;
    if (c->r.run == run && !is_ordered(a, &c->r, false)) blame_race(a, &c->r, "read");
    if (a->track == NULL) return;
    const shadow *s = a->track->s;
    if (is_rival(a->c, s, c->r.run, run)) blame_rival(a, c->r.run, "read", &c->r);
    if (is_rival(a->c, s, c->r_other, run)) blame_rival(a, c->r_other, "read", &c->r);
}

static void remember(const access_info *a, cell *c, uint8_t half)
{
    const simt_lane *t = a->t;
    const simt_group *g = t->group;
    stamp n = {g->run,
               (uint16_t)t->tid,
               (uint16_t)g->epoch,
               (uint16_t)g->dev_epoch,
               (uint16_t)t->sg->epoch,
               a->site,
               (uint8_t)a->how,
               half};
    if ((a->how & SIMT_WRITE) != 0) {
        if (c->w.run == n.run && c->w.thread == n.thread) n.half |= c->w.half;
        c->w = n;
        return;
    }
    if ((a->how & SIMT_BY_SG) != 0) n.thread = (uint16_t)(MANY_OF_SG | t->tid / SIMT_LANES);
    const stamp *o = &c->r;
    if (o->run == n.run && o->epoch == n.epoch) {
        n.half |= o->half;
        n.how &= o->how;
        const uint32_t sg = o->thread == MANY         ? UINT32_MAX
                            : o->thread >= MANY_OF_SG ? o->thread - MANY_OF_SG
                                                      : (uint32_t)o->thread / SIMT_LANES;
        if (o->thread != n.thread)
            n.thread = sg == t->tid / SIMT_LANES ? (uint16_t)(MANY_OF_SG | sg) : MANY;
    } else if (o->run != n.run) {
        c->r_other = o->run;
    }
    c->r = n;
}

static void set_bits(uint8_t *bits, int64_t off, uint32_t bytes)
{
    for (int64_t i = off / 4; i <= (off + bytes - 1) / 4; i++)
        bits[i / 8] |= (uint8_t)(1u << (i % 8));
}

/* A further read, after a barrier, of what several threads have read already: nothing to say and
 * nothing to note. The usual case of operands in threadgroup memory. */
static bool is_common_read(const access_info *a, const cell *c)
{
    const simt_group *g = a->t->group;
    const uint16_t epoch = (uint16_t)g->epoch;
    return (a->how & SIMT_WRITE) == 0 && c->r.thread == MANY && c->r.run == g->run &&
           c->r.epoch == epoch && c->w.run == g->run && c->r.half == 3 &&
           (a->track != NULL ? c->w.dev_epoch != (uint16_t)g->dev_epoch : c->w.epoch != epoch) &&
           (c->r.how & SIMT_SHARED) == 0;
}

static void visit_cells(const access_info *a, cell *c, uint32_t n)
{
    const uint8_t half = a->bytes > 1 ? 3 : (uint8_t)(1 + (a->off & 1));
    for (uint32_t i = 0; i < n; i++) {
        if (is_common_read(a, &c[i])) continue;
        judge(a, &c[i], half);
        remember(a, &c[i], half);
    }
}

static bool is_aligned(int64_t off, uint32_t bytes)
{
    const uint32_t align = bytes & (~bytes + 1); /* the largest power of two in it */
    return off % (align < 16 ? align : 16) == 0;
}

/* Bytes that nobody has written; of a binding declared written, nobody of this dispatch. */
static void check_old(const access_info *a, simt_track *k)
{
    const uint64_t at = k->off + (uint64_t)a->off;
    for (uint32_t i = 0; i < a->bytes; i++)
        if (k->s->init[at + i] == 0) blame(a, "nothing has been written there");
    if (!k->cells || (k->access & GPU_WRITE) == 0 || (k->access == GPU_READ_WRITE && k->old_read))
        return;
    const uint32_t run = a->t->group->run;
    const cell *c = shadow_cell(a->t, k->s, at);
    for (uint32_t i = 0; i < (a->bytes + 1) / 2; i++) {
        const uint32_t by = c[i].w.run;
        if (by == run || (by != 0 && is_rival(a->c, k->s, by, run))) continue;
        k->old_read = true;
        if (k->access == GPU_WRITE)
            blame(a, "it is declared as only written, and this dispatch has not written there");
    }
}

uint8_t *simt_device_access(const simt_binding *b, int64_t off, uint32_t bytes, uint32_t how,
                            const char *file, int line)
{
    simt_lane *t = simt_self;
    if (b == NULL) simt_violation(t, "%s:%d: use of a pointer without a value", file, line);
    simt_track *k = b->track;
    access_info a = {t, k->c, k, NULL, off, bytes, how, file, line, 0};
    if (off < 0 || (uint64_t)off > b->bytes || bytes > b->bytes - (uint64_t)off)
        blame(&a, "out of bounds");
    if (!is_aligned(off, bytes)) blame(&a, "misaligned");
    if ((how & SIMT_WRITE) != 0) {
        if ((k->access & GPU_WRITE) == 0) blame(&a, "it is declared as only read");
        set_bits(k->written, off, bytes);
    } else {
        check_old(&a, k);
        set_bits(k->read, off, bytes);
    }
    if (k->cells) {
        a.site = site_of(k->c, file, line);
        const uint64_t at = k->off + (uint64_t)off;
        visit_cells(&a, shadow_cell(t, k->s, at), (bytes + 1) / 2);
    }
    if ((how & SIMT_WRITE) != 0) memset(k->s->init + k->off + (uint64_t)off, 1, bytes);
    return b->ptr + off;
}

uint8_t *simt_tg_access(const simt_array *array, int64_t off, uint32_t bytes, uint32_t how,
                        const char *file, int line)
{
    simt_lane *t = simt_self;
    if (array == NULL) simt_violation(t, "%s:%d: use of a pointer without a value", file, line);
    const simt_group *g = t->group;
    simt_checker *c = g->launch->checker;
    access_info a = {t, c, NULL, array, off, bytes, how, file, line, site_of(c, file, line)};
    if (off < 0 || off > array->bytes || bytes > array->bytes - off) blame(&a, "out of bounds");
    if (!is_aligned(off, bytes)) blame(&a, "misaligned");
    const uint32_t at = array->off + (uint32_t)off;
    cell *cells = &c->tg[(run_of(c, g->run)->slot * SIMT_TG_ALL + at) / 2];
    if ((how & SIMT_WRITE) == 0)
        for (uint32_t i = 0; i < (bytes + 1) / 2; i++)
            if (cells[i].w.run != g->run) blame(&a, "nothing has been written there");
    visit_cells(&a, cells, (bytes + 1) / 2);
    return g->tg + at;
}
