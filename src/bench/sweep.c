#include "bench/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "bench/stats.h"

#define PROBE 16u /* tokens of the first, unmeasured prefill */

const sweep_lengths sweep_article = {
    .n = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072}, .n_n = 10};

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

bool sweep_parse(const char *text, sweep_lengths *out)
{
    *out = (sweep_lengths){.n_n = 0};
    while (*text != '\0') {
        char *end;
        const unsigned long v = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || v == 0 || v > 1000000) return false;
        if (out->n_n == SWEEP_LENGTHS_MAX) return false;
        out->n[out->n_n++] = (uint32_t)v;
        if (*end != ',' && *end != '\0') return false;
        text = *end == ',' ? end + 1 : end;
    }
    qsort(out->n, out->n_n, sizeof *out->n, by_number);
    uint32_t n = 0;
    for (uint32_t i = 0; i < out->n_n; i++)
        if (n == 0 || out->n[n - 1] != out->n[i]) out->n[n++] = out->n[i];
    out->n_n = n;
    return true;
}

typedef struct sweep {
    measure *m;
    bench_record *r;
    const sweep_options *o;
    double began, deadline; /* deadline: of the phase; 0: none */
    /* Seconds of the last prefill that was measured, of last_n tokens; of the last step. */
    double last, step;
    uint32_t last_n, step_n;
    char what[64];
    double after; /* estimated seconds of all that comes after the call in progress */
} sweep;

/* ---- Estimates ---- */

/* A prefill of n tokens, from the last one by the operations of both. */
static double prefill_seconds(const sweep *s, uint32_t n)
{
    const model_shape *shape = &s->m->e->shape;
    if (n == 0 || s->last_n == 0) return 0.0;
    return s->last * (n * measure_prefill_flops(shape, n)) /
           (s->last_n * measure_prefill_flops(shape, s->last_n));
}

static double step_seconds(const sweep *s, uint32_t n)
{
    if (s->step_n == 0) return s->last_n != 0 ? s->last / s->last_n : 0.0;
    return s->step * measure_decode_bytes(s->m, n) / measure_decode_bytes(s->m, s->step_n);
}

static double decode_seconds(const sweep *s, uint32_t from, uint32_t n)
{
    return prefill_seconds(s, n) - prefill_seconds(s, from) +
           (s->m->o.steps + MEASURE_WARM) * step_seconds(s, n);
}

static double left(const sweep *s)
{
    return s->deadline > 0.0 ? s->deadline - time_now() : 1e9;
}

/* Prefills at n that half of the time left is enough for. */
static uint32_t reps_at(const sweep *s, uint32_t n)
{
    const double each = prefill_seconds(s, n), fit = left(s) / 2.0 / each;
    if (!(each > 0.0) || fit >= s->m->o.reps) return s->m->o.reps;
    return fit < 1.0 ? 1 : (uint32_t)fit;
}

/* Of what comes after prefill i and decode j, as far as the budget allows. */
static double seconds_after(const sweep *s, uint32_t i, uint32_t j)
{
    const sweep_lengths *p = &s->o->prefill, *d = &s->o->decode;
    double sum = 0.0;
    for (; i < p->n_n; i++)
        sum += (s->m->o.reps + 1) * prefill_seconds(s, p->n[i]);
    for (; j < d->n_n; j++)
        sum += decode_seconds(s, j > 0 ? d->n[j - 1] : 0, d->n[j]);
    const double most = s->o->budget > 0.0 ? s->began + s->o->budget - time_now() : sum;
    return sum < most ? sum : most > 0.0 ? most : 0.0;
}

static void tell(void *user, uint32_t n_left)
{
    const sweep *s = user;
    const double done = time_now() - s->began;
    const double each = s->last_n != 0 ? s->last / s->last_n : 0.0;
    if (s->o->on_progress != NULL)
        s->o->on_progress(s->o->user, s->what, done, done + n_left * each + s->after);
}

static void clock_text(char *buf, size_t n, double seconds)
{
    const unsigned long t = seconds > 0.0 ? (unsigned long)(seconds + 0.5) : 0;
    (void)snprintf(buf, n, "%lu:%02lu", t / 60, t % 60);
}

/* True: `seconds` more are too many, which is noted. */
static bool too_long(sweep *s, const char *kind, uint32_t n, double seconds)
{
    char would[32], has[32];
    if (!(seconds > left(s))) return false;
    clock_text(would, sizeof would, seconds);
    clock_text(has, sizeof has, left(s));
    record_leave_out(s->r, (bench_left){kind, n, true, ""},
                     "would take about %s, %s are left of the budget", would, has);
    return true;
}

/* True: there is no memory for a sequence of n tokens, which is noted. */
static bool too_large(sweep *s, const char *kind, uint32_t n, uint32_t room)
{
    calla_error why;
    if (engine_reserve(s->m->e, n + room, &why) == CALLA_OK) {
        engine_release(s->m->e, n + room);
        return false;
    }
    record_leave_out(s->r, (bench_left){kind, n, false, ""}, "%s", why.message);
    return true;
}

static void keep(sweep *s, const char *kind, uint32_t n, double *t, uint32_t n_t, double tokens)
{
    bench_result like = measure_result(s->m, kind, n);
    measure_counts(s->m, &like);
    const bench_result *x = record_add(s->r, like, t, n_t, tokens);
    if (x != NULL && s->o->on_result != NULL) s->o->on_result(s->o->user, x);
}

/* ---- Prefill ---- */

static calla_status prefill_at(sweep *s, uint32_t i, calla_error *err)
{
    const uint32_t n = s->o->prefill.n[i];
    double t[MEASURE_REPS_MAX], warm = 0.0;
    if (too_large(s, "prefill", n, 0) || too_long(s, "prefill", n, prefill_seconds(s, n)))
        return CALLA_OK;
    (void)snprintf(s->what, sizeof s->what, "prefill %u", n);
    /* A long one needs none before it: it is warm after its first chunks. */
    const bool warms = s->o->budget == 0.0 || prefill_seconds(s, n) < 2.0;
    uint32_t reps = reps_at(s, n);
    calla_status st = CALLA_OK;
    s->after = seconds_after(s, i + 1, 0) + reps * prefill_seconds(s, n);
    if (warms) {
        st = measure_prefill(s->m, n, &warm, err);
        s->last = warm;
        s->last_n = n;
        reps = reps_at(s, n);
    }
    for (uint32_t k = 0; k < reps && st == CALLA_OK; k++) {
        s->after = seconds_after(s, i + 1, 0) + (reps - k - 1) * prefill_seconds(s, n);
        tell(s, n);
        st = measure_prefill(s->m, n, &t[k], err);
    }
    if (st != CALLA_OK) return st;
    keep(s, "prefill", n, t, reps, n);
    s->last = stats_median(t, reps);
    s->last_n = n;
    return st;
}

/* ---- Decode ---- */

/* Brings seq to position n, from the start when it is beyond already. */
static calla_status grow(sweep *s, exec_seq *seq, uint32_t n, calla_error *err)
{
    const exec_ops *ops = s->m->ex->ops;
    double unused;
    if (ops->seq_position(seq) > n) ops->seq_reset(s->m->ex, seq);
    const uint32_t at = ops->seq_position(seq);
    tell(s, n - at);
    return n > at ? measure_feed(s->m, seq, n - at, &unused, err) : CALLA_OK;
}

static calla_status decode_at(sweep *s, exec_seq *seq, uint32_t j, calla_error *err)
{
    const uint32_t n = s->o->decode.n[j], at = s->m->ex->ops->seq_position(seq);
    static double t[MEASURE_STEPS_MAX];
    if (too_long(s, "decode", n, decode_seconds(s, at > n ? 0 : at, n))) return CALLA_OK;
    (void)snprintf(s->what, sizeof s->what, "decode at %u", n);
    s->after = seconds_after(s, s->o->prefill.n_n, j + 1) + s->m->o.steps * step_seconds(s, n);
    calla_status st = grow(s, seq, n, err);
    if (st == CALLA_OK) st = measure_decode(s->m, seq, t, err);
    if (st != CALLA_OK) return st;
    keep(s, "decode", n, t, s->m->o.steps, 1.0);
    s->step = stats_median(t, s->m->o.steps);
    s->step_n = n;
    return st;
}

static calla_status decode_all(sweep *s, calla_error *err)
{
    const sweep_lengths *d = &s->o->decode;
    const uint32_t room = s->m->o.steps + MEASURE_ROOM;
    exec_seq *seq = NULL;
    uint32_t n_fit = 0;
    while (n_fit < d->n_n && !too_large(s, "decode", d->n[n_fit], room))
        n_fit++;
    for (uint32_t j = n_fit + 1; j < d->n_n; j++) /* the first one was noted */
        (void)too_large(s, "decode", d->n[j], room);
    if (n_fit == 0) return CALLA_OK;
    calla_status st = s->m->ex->ops->seq_create(s->m->ex, d->n[n_fit - 1] + room, &seq, err);
    for (uint32_t j = 0; j < n_fit && st == CALLA_OK; j++)
        st = decode_at(s, seq, j, err);
    s->m->ex->ops->seq_destroy(s->m->ex, seq);
    return st;
}

/* A short prefill, for the first estimate; on a machine that has to read the weights from a disk,
 * the second one counts. */
static calla_status probe(sweep *s, calla_error *err)
{
    calla_status st = CALLA_OK;
    (void)snprintf(s->what, sizeof s->what, "warming up");
    for (int i = 0; i < 2 && st == CALLA_OK; i++)
        st = measure_prefill(s->m, PROBE, &s->last, err);
    s->last_n = PROBE;
    return st;
}

calla_status sweep_run(measure *m, bench_record *r, const sweep_options *o, calla_error *err)
{
    sweep s = {.m = m, .r = r, .o = o, .began = time_now()};
    const bool both = o->prefill.n_n != 0 && o->decode.n_n != 0;
    calla_status st;
    m->o.progress = tell;
    m->o.progress_user = &s;
    if (o->budget > 0.0) s.deadline = s.began + o->budget * (both ? SWEEP_PREFILL_SHARE : 1.0);
    TRY(probe(&s, err));
    for (uint32_t i = 0; i < o->prefill.n_n; i++)
        TRY(prefill_at(&s, i, err));
    if (o->budget > 0.0) s.deadline = s.began + o->budget;
    TRY(decode_all(&s, err));
    if (r->n_results == 0 && r->n_left != 0)
        st = err_set(err, CALLA_ERR_ARGUMENT, "nothing was measured: %s %u: %s", r->left[0].kind,
                     r->left[0].tokens, r->left[0].why);
fail:
    m->o.progress = NULL;
    return st;
}
