/* A submission in checking mode. A dispatch is ready when those it depends on have ended; groups of
 * all that are ready are drawn at random. What each dispatch touched is noted; afterwards any two
 * that no chain of dependencies orders must not have touched a byte in conflict. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "exec/gpu/simt/priv.h"

typedef struct job {
    simt_launch launch;
    simt_track track[GPU_BINDINGS_MAX];
    uint32_t n_waits; /* dependencies that have not ended */
    uint32_t n_groups, n_begun, n_ended;
    uint32_t *order;  /* [n_groups]; NULL: ascending */
    uint64_t *before; /* bit set: all dispatches that this one comes after */
} job;

typedef struct schedule {
    simt_device *d;
    const gpu_program *p;
    job *jobs;
    uint32_t n_words; /* of a bit set */
    uint64_t rng;     /* 0: ascending order */
    double t0, *seconds;
} schedule;

static uint32_t below(schedule *s, uint32_t n)
{
    s->rng = s->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((s->rng >> 33) % n);
}

/* ---- Building ---- */

static bool overlap(gpu_view a, gpu_view b)
{
    return a.buf == b.buf && a.off < b.off + b.bytes && b.off < a.off + a.bytes;
}

static bool is_written_by(const gpu_dispatch *x, gpu_view v)
{
    for (uint32_t i = 0; i < x->n_bindings; i++)
        if ((x->bind[i].access & GPU_WRITE) != 0 && overlap(x->bind[i].view, v)) return true;
    return false;
}

static bool job_init(schedule *s, uint32_t i)
{
    const gpu_dispatch *x = &s->p->dispatch[i];
    job *j = &s->jobs[i];
    j->launch = simt_launch_of(s->d, x);
    j->launch.checker = s->d->checker;
    j->launch.i_dispatch = i;
    j->n_groups = x->grid_x * x->grid_y;
    j->n_waits = s->p->dep_first[i + 1] - s->p->dep_first[i];
    for (uint32_t b = 0; b < x->n_bindings; b++) {
        const gpu_view v = x->bind[b].view;
        const size_t n = (size_t)(v.bytes / 32 + 1);
        simt_track *k = &j->track[b];
        *k = (simt_track){.c = s->d->checker,
                          .s = v.buf->shadow,
                          .buffer = v.buf->name,
                          .off = v.off,
                          .access = x->bind[b].access,
                          .i_binding = b,
                          .cells = is_written_by(x, v),
                          .read = mem_alloc_pages(n),
                          .written = mem_alloc_pages(n)};
        j->launch.bind[b].track = k;
        if (k->read == NULL || k->written == NULL) return false;
    }
    j->before = mem_array(s->n_words, sizeof *j->before);
    if (j->before == NULL) return false;
    for (uint32_t k = s->p->dep_first[i]; k < s->p->dep_first[i + 1]; k++) {
        const uint32_t on = s->p->dep[k];
        for (uint32_t w = 0; w < s->n_words; w++)
            j->before[w] |= s->jobs[on].before[w];
        j->before[on / 64] |= UINT64_C(1) << (on % 64);
    }
    return true;
}

static void job_deinit(job *j)
{
    for (uint32_t b = 0; b < GPU_BINDINGS_MAX; b++) {
        const size_t n = (size_t)(j->launch.bind[b].bytes / 32 + 1);
        mem_free_pages(j->track[b].read, n);
        mem_free_pages(j->track[b].written, n);
    }
    mem_free(j->order);
    mem_free(j->before);
}

/* ---- Running ---- */

static void shuffle(schedule *s, job *j)
{
    j->order = mem_array(j->n_groups, sizeof *j->order);
    if (j->order == NULL) return;
    for (uint32_t i = 0; i < j->n_groups; i++) {
        const uint32_t k = below(s, i + 1);
        j->order[i] = j->order[k];
        j->order[k] = i;
    }
}

/* A dispatch that may begin a group; NULL when there is none. */
static job *ready(schedule *s)
{
    const uint32_t n = s->p->n, first = s->rng != 0 ? below(s, n) : 0;
    for (uint32_t i = 0; i < n; i++) {
        job *j = &s->jobs[(first + i) % n];
        if (j->n_waits == 0 && j->n_begun < j->n_groups) return j;
    }
    return NULL;
}

static bool next_group(void *ctx, simt_group *g)
{
    schedule *s = ctx;
    job *j = ready(s);
    if (j == NULL) return false;
    if (j->n_begun == 0 && s->rng != 0) shuffle(s, j);
    const uint32_t i = j->order != NULL ? j->order[j->n_begun] : j->n_begun;
    j->n_begun++;
    g->launch = &j->launch;
    g->gx = i % j->launch.grid_x;
    g->gy = i / j->launch.grid_x;
    g->run = simt_checker_group(s->d->checker, g->slot, &j->launch, g->gx, g->gy);
    memset(g->tg, 0xff, SIMT_TG_BYTES);
    return g->run != 0;
}

static void release_waiting(schedule *s, uint32_t ended)
{
    const gpu_program *p = s->p;
    for (uint32_t i = ended + 1; i < p->n; i++)
        for (uint32_t k = p->dep_first[i]; k < p->dep_first[i + 1]; k++)
            if (p->dep[k] == ended && --s->jobs[i].n_waits == 0 && s->jobs[i].n_groups == 0)
                release_waiting(s, i);
}

static void group_ended(void *ctx, const simt_group *g)
{
    schedule *s = ctx;
    const uint32_t i = g->launch->i_dispatch;
    if (++s->jobs[i].n_ended < s->jobs[i].n_groups) return;
    release_waiting(s, i);
    if (s->seconds == NULL) return;
    const double t = time_now();
    s->seconds[i] = t - s->t0;
    s->t0 = t;
}

/* ---- What was touched ---- */

static bool bit(const uint8_t *bits, uint64_t off)
{
    return (bits[off / 32] >> (off / 4 % 8) & 1) != 0;
}

/* The first byte of the buffer that both touched, one of them writing; or UINT64_MAX. */
static uint64_t touched_both(const simt_track *a, uint64_t a_bytes, const simt_track *b,
                             uint64_t b_bytes)
{
    const uint64_t begin = a->off > b->off ? a->off : b->off;
    const uint64_t a_end = a->off + a_bytes, b_end = b->off + b_bytes;
    for (uint64_t at = begin; at < a_end && at < b_end; at += 4) {
        const uint64_t i = at - a->off, k = at - b->off;
        const bool a_wrote = bit(a->written, i), b_wrote = bit(b->written, k);
        if ((a_wrote && (b_wrote || bit(b->read, k))) || (b_wrote && bit(a->read, i))) return at;
    }
    return UINT64_MAX;
}

static bool in_conflict(const schedule *s, uint32_t i, uint32_t j, uint32_t *binding, uint64_t *at)
{
    const gpu_dispatch *x = &s->p->dispatch[i], *y = &s->p->dispatch[j];
    for (uint32_t a = 0; a < x->n_bindings; a++)
        for (uint32_t b = 0; b < y->n_bindings; b++) {
            const gpu_binding *p = &x->bind[a], *q = &y->bind[b];
            if (((p->access | q->access) & GPU_WRITE) == 0 || !overlap(p->view, q->view)) continue;
            *at = touched_both(&s->jobs[i].track[a], p->view.bytes, &s->jobs[j].track[b],
                               q->view.bytes);
            *binding = a;
            if (*at != UINT64_MAX) return true;
        }
    return false;
}

static bool check_order(schedule *s)
{
    for (uint32_t j = 0; j < s->p->n; j++)
        for (uint32_t i = 0; i < j; i++) {
            uint32_t b;
            uint64_t at;
            if ((s->jobs[j].before[i / 64] >> (i % 64) & 1) != 0) continue;
            if (!in_conflict(s, i, j, &b, &at)) continue;
            const gpu_dispatch *x = &s->p->dispatch[i], *y = &s->p->dispatch[j];
            (void)snprintf(s->d->failure, sizeof s->d->failure,
                           "dispatches %u (kernel %s, %s) and %u (kernel %s, %s) are not ordered, "
                           "but both touch byte %llu of buffer %s and one writes it",
                           i, s->jobs[i].launch.kernel->name, x->label != NULL ? x->label : "", j,
                           s->jobs[j].launch.kernel->name, y->label != NULL ? y->label : "",
                           (unsigned long long)at, s->jobs[i].track[b].buffer);
            return false;
        }
    return true;
}

static uint64_t count_touched(const uint8_t *bits, uint64_t bytes)
{
    uint64_t n = 0;
    for (uint64_t at = 0; at < bytes; at += 4)
        if (bit(bits, at)) n += bytes - at < 4 ? bytes - at : 4;
    return n;
}

static void tell_watch(const schedule *s)
{
    const simt_watch *w = &s->d->watch;
    for (uint32_t i = 0; i < s->p->n; i++) {
        const job *j = &s->jobs[i];
        for (uint32_t b = 0; w->touch != NULL && b < s->p->dispatch[i].n_bindings; b++) {
            const simt_track *k = &j->track[b];
            simt_touch t = {.dispatch = &s->p->dispatch[i],
                            .kernel = j->launch.kernel->name,
                            .i_dispatch = i,
                            .i_binding = b,
                            .declared = j->launch.bind[b].bytes,
                            .old_read = k->old_read};
            kernel_param(t.param, sizeof t.param, j->launch.kernel, b);
            t.n_read = count_touched(k->read, t.declared);
            t.n_written = count_touched(k->written, t.declared);
            w->touch(w->ctx, &t);
        }
        for (uint32_t k = s->p->dep_first[i]; w->edge != NULL && k < s->p->dep_first[i + 1]; k++) {
            uint32_t b;
            uint64_t at;
            const uint32_t on = s->p->dep[k];
            const simt_edge e = {on, i, s->jobs[on].launch.kernel->name, j->launch.kernel->name,
                                 in_conflict(s, on, i, &b, &at)};
            w->edge(w->ctx, &e);
        }
    }
}

/* ---- A submission ---- */

bool simt_run_checked(simt_device *d, const gpu_program *p, double *seconds)
{
    schedule s = {.d = d,
                  .p = p,
                  .n_words = p->n / 64 + 1,
                  .rng = d->options.seed != 0 ? d->options.seed + d->ticket : 0,
                  .seconds = seconds,
                  .t0 = time_now()};
    if (p->n == 0) return true;
    bool ok = false;
    s.jobs = mem_array(p->n, sizeof *s.jobs);
    if (s.jobs == NULL) goto no_memory;
    for (uint32_t i = 0; i < p->n; i++)
        if (!job_init(&s, i)) goto no_memory;
    for (uint32_t i = 0; i < p->n; i++) /* those without groups end at once */
        if (s.jobs[i].n_groups == 0 && p->dep_first[i] == p->dep_first[i + 1])
            release_waiting(&s, i);
    simt_checker_begin(d->checker);
    const simt_source source = {next_group, group_ended, &s};
    ok = simt_machine_run_all(d->machines[0], &source);
    if (!ok)
        (void)snprintf(d->failure, sizeof d->failure, "%s", simt_machine_failure(d->machines[0]));
    else if ((ok = check_order(&s)))
        tell_watch(&s);
    goto done;
no_memory:
    (void)snprintf(d->failure, sizeof d->failure, "no memory for the checks");
done:
    for (uint32_t i = 0; s.jobs != NULL && i < p->n; i++)
        job_deinit(&s.jobs[i]);
    mem_free(s.jobs);
    return ok;
}
