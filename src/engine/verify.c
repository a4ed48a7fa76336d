#include "engine/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- Logits ---- */

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double log_sum_exp(const float *x, uint32_t n)
{
    const double top = (double)x[argmax(x, n)];
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* NaN counts as the largest. */
static double larger(double a, double b)
{
    return b <= a ? a : isnan(b) ? (double)INFINITY : b;
}

static void add_diff(verify_stats *s, float got, float want)
{
    const double d = fabs((double)got - (double)want);
    s->diff_sum += d;
    s->diff_max = larger(s->diff_max, d);
    s->n_diff++;
}

static void add_top1(verify_stats *s, uint32_t best, uint32_t ref_best, double gap)
{
    if (best == ref_best) {
        s->n_same++;
        return;
    }
    if (gap <= VERIFY_TIE) s->n_tied++;
    s->widest_gap = fmax(s->widest_gap, gap);
}

static double gap_of_two_best(const float *row, uint32_t n, uint32_t best)
{
    double second = -(double)INFINITY;
    for (uint32_t v = 0; v < n; v++)
        if (v != best && (double)row[v] > second) second = (double)row[v];
    return (double)row[best] - second;
}

/* KL of all ids; log_ref and log_own are the logarithms of the sums. */
static double add_all(verify_stats *s, uint32_t n, const float *row, double log_ref,
                      const float *logits, double log_own)
{
    double kl = 0.0;
    for (uint32_t v = 0; v < n; v++) {
        const double p = (double)row[v] - log_ref, q = (double)logits[v] - log_own;
        kl += exp(p) * (p - q);
        add_diff(s, logits[v], row[v]);
    }
    const uint32_t best = argmax(row, n);
    add_top1(s, argmax(logits, n), best, gap_of_two_best(row, n, best));
    return kl;
}

static double add_top(verify_stats *s, const reference *r, uint32_t i, double log_ref,
                      const float *logits, double log_own)
{
    double kl = 0.0, p_rest = 1.0, q_rest = 1.0;
    const int32_t next = reference_token(r, i + 1);
    bool next_seen = false;
    for (uint32_t j = 0; j < r->k; j++) {
        const int32_t id = reference_top_id(r, i, j);
        const float want = reference_top_logit(r, i, j);
        const double p = (double)want - log_ref, q = (double)logits[id] - log_own;
        kl += exp(p) * (p - q);
        p_rest -= exp(p);
        q_rest -= exp(q);
        next_seen = next_seen || id == next;
        add_diff(s, logits[id], want);
    }
    if (!next_seen) add_diff(s, logits[next], reference_target_logit(r, i));
    if (p_rest > 1e-6 && q_rest > 1e-6) kl += p_rest * log(p_rest / q_rest);
    const double gap = (double)reference_top_logit(r, i, 0) - (double)reference_top_logit(r, i, 1);
    add_top1(s, argmax(logits, r->n_vocab), (uint32_t)reference_top_id(r, i, 0), gap);
    return kl;
}

void verify_add(verify_stats *s, const reference *r, uint32_t i, const float *logits, float *row)
{
    const double log_own = log_sum_exp(logits, r->n_vocab);
    const int32_t next = reference_token(r, i + 1);
    double kl, log_ref, want;
    if (r->k == 0) {
        reference_row(r, i, row);
        log_ref = log_sum_exp(row, r->n_vocab);
        want = (double)row[next];
        kl = add_all(s, r->n_vocab, row, log_ref, logits, log_own);
    } else {
        log_ref = (double)reference_log_sum(r, i);
        want = (double)reference_target_logit(r, i);
        kl = add_top(s, r, i, log_ref, logits, log_own);
    }
    if (kl < 0.0) kl = 0.0; /* rounding */
    s->n++;
    s->nll_ref += log_ref - want;
    s->nll += log_own - (double)logits[next];
    s->kl_sum += kl;
    if (!(kl <= s->kl_max) || s->n == 1) s->worst = i;
    s->kl_max = larger(s->kl_max, kl);
}

double verify_perplexity_ratio(const verify_stats *s)
{
    return exp((s->nll - s->nll_ref) / (double)s->n);
}

/* ---- Layers ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Reorders v. */
static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

typedef struct buffers {
    float *now, *before; /* the reference's token at a point and at the one before */
    double *added, *stream, *sorted;
} buffers;

/* Infinity where ours is not finite: medians must not hide it. */
static double relative(double difference, double size)
{
    const double x = sqrt(difference) / fmax(sqrt(size), 1e-30);
    return isfinite(x) ? x : (double)INFINITY;
}

static void token_drift(const reference *r, const float *x, uint32_t p, uint32_t t, buffers *b)
{
    const size_t w = r->n_width, row = ((size_t)p * r->n_traced + t) * w;
    const float *own = x + row;
    const float *own_before = p == 0 ? NULL : own - (size_t)r->n_traced * w;
    double d_added = 0.0, n_added = 0.0, d_stream = 0.0, n_stream = 0.0;
    reference_point(r, p, t, b->now);
    if (p != 0) reference_point(r, p - 1, t, b->before);
    for (size_t c = 0; c < w; c++) {
        const double y = (double)b->now[c], d = (double)own[c] - y;
        const double y_before = p == 0 ? 0.0 : (double)b->before[c];
        const double d_before = p == 0 ? 0.0 : (double)own_before[c] - y_before;
        d_stream += d * d;
        n_stream += y * y;
        d_added += (d - d_before) * (d - d_before);
        n_added += (y - y_before) * (y - y_before);
    }
    b->added[t] = relative(d_added, n_added);
    b->stream[t] = relative(d_stream, n_stream);
}

static drift_point point_drift(const reference *r, const float *x, uint32_t p, double bar,
                               buffers *b)
{
    const uint32_t n = r->n_traced;
    drift_point out = {.first = n};
    for (uint32_t t = 0; t < n; t++) {
        token_drift(r, x, p, t, b);
        out.max = fmax(out.max, b->added[t]);
    }
    for (uint32_t t = n; t-- > 0;)
        if (b->added[t] > bar) out.first = t;
    memcpy(b->sorted, b->added, n * sizeof *b->sorted);
    out.median = median(b->sorted, n);
    out.stream = median(b->stream, n);
    return out;
}

calla_status drift_find(drift *out, const reference *r, const float *x, calla_error *err)
{
    double *d = mem_array(r->n_traced, 3 * sizeof *d);
    float *f = mem_array(r->n_width, 2 * sizeof *f);
    *out = (drift){.n_points = r->n_points, .fault = r->n_points, .bar = DRIFT_EMBED};
    out->points = mem_array(r->n_points, sizeof *out->points);
    calla_status st = CALLA_OK;
    if (d == NULL || f == NULL || out->points == NULL) {
        mem_free(out->points);
        *out = (drift){0};
        st = err_set(err, CALLA_ERR_MEMORY, "no memory to compare the layers");
    } else {
        buffers b = {f, f + r->n_width, d, d + r->n_traced, d + 2 * r->n_traced};
        for (uint32_t p = 0; p < r->n_points; p++) {
            out->points[p] = point_drift(r, x, p, out->bar, &b);
            const double m = out->points[p].median;
            if (out->fault < p) continue;
            if (m > out->bar)
                out->fault = p;
            else if (p == 0)
                out->bar = DRIFT_FLOOR + DRIFT_ROUNDED * m;
            else
                out->bar = fmax(out->bar, DRIFT_JUMP * m);
        }
    }
    mem_free(d);
    mem_free(f);
    return st;
}

void drift_name(uint32_t i_point, uint32_t full_interval, char out[48])
{
    const uint32_t layer = (i_point - 1) / 2;
    if (i_point == 0)
        (void)snprintf(out, 48, "embedding");
    else
        (void)snprintf(out, 48, "layer %u %s", layer,
                       i_point % 2 == 0                   ? "experts"
                       : (layer + 1) % full_interval == 0 ? "attention"
                                                          : "gdn");
}
