/* The gated delta rule: values, and independence of slabs and of where the tokens are divided. */
#include "check.h"

#include <math.h>
#include <stdio.h>

#define DIM      MODEL_GDN_DIM
#define N_SLABS  (DIM / GDN_SLAB)
#define MAX_TIME 40u

typedef struct problem {
    uint32_t n_tokens;
    const float *q, *k, *v, *decay, *beta, *state0;
    size_t qk_stride, v_stride, gate_stride, o_stride;
} problem;

/* Rows of length at most one, as the model's l2norm makes them. */
static void draw_unit_rows(check *c, float *x, size_t stride, uint32_t n, double length)
{
    for (uint32_t t = 0; t < n; t++) {
        float *row = x + t * stride;
        const values v = check_below(c, 3) == 0 ? VALUES_MIXED : VALUES_PLAIN;
        double sum = 0;
        check_fill(c, row, DIM, v, 1);
        for (uint32_t i = 0; i < DIM; i++)
            sum += (double)row[i] * (double)row[i];
        for (uint32_t i = 0; i < DIM; i++)
            row[i] = check_below(c, 50) == 0 ? 0.0f : (float)((double)row[i] / sqrt(sum) * length);
    }
}

static float draw_factor(check *c)
{
    switch (check_below(c, 12)) {
    case 0:
        return 0.0f;
    case 1:
        return 1.0f;
    case 2:
        return 1e-39f;
    default:
        return (float)(check_unit(c) / 2 + 0.5);
    }
}

static void draw_problem(check *c, problem *p)
{
    const values vv = check_values(c), vs = check_values(c);
    p->n_tokens = check_below(c, 3) == 0 ? 1 + check_below(c, MAX_TIME) : 1 + check_below(c, 5);
    check_shape(c, "tokens %u, v %s, state %s", p->n_tokens, values_name(vv), values_name(vs));
    p->qk_stride = DIM + 16 * check_below(c, 3);
    p->v_stride = DIM + 16 * check_below(c, 3);
    p->o_stride = DIM + 16 * check_below(c, 3);
    p->gate_stride = 1 + check_below(c, 3);
    const size_t n = p->n_tokens - 1;
    float *q = check_floats(c, n * p->qk_stride + DIM),
          *k = check_floats(c, n * p->qk_stride + DIM);
    float *v = check_floats(c, n * p->v_stride + DIM);
    float *decay = check_floats(c, n * p->gate_stride + 1);
    float *beta = check_floats(c, n * p->gate_stride + 1);
    float *state = check_floats(c, GDN_STATE_FLOATS);
    draw_unit_rows(c, q, p->qk_stride, p->n_tokens, 0.088);
    draw_unit_rows(c, k, p->qk_stride, p->n_tokens, 1.0);
    for (size_t t = 0; t < p->n_tokens; t++) {
        check_fill(c, v + t * p->v_stride, DIM, vv, 1e15);
        decay[t * p->gate_stride] = draw_factor(c);
        beta[t * p->gate_stride] = draw_factor(c);
    }
    check_fill(c, state, GDN_STATE_FLOATS, vs, 1e15);
    p->q = q, p->k = k, p->v = v, p->decay = decay, p->beta = beta, p->state0 = state;
}

static void scan(const check *c, const problem *p, float *state, uint32_t slab0, uint32_t slab1,
                 size_t t0, size_t t1, float *o)
{
    c->k->gdn_scan(state, slab0, slab1, (uint32_t)(t1 - t0), p->q + t0 * p->qk_stride,
                   p->k + t0 * p->qk_stride, p->qk_stride, p->v + t0 * p->v_stride, p->v_stride,
                   p->decay + t0 * p->gate_stride, p->beta + t0 * p->gate_stride, p->gate_stride,
                   o + t0 * p->o_stride, p->o_stride);
}

/* One value column in f64. Since |k| <= 1, beta <= 1 and decay <= 1, a step does not enlarge an
 * error of S; so each step adds its own rounding errors, at most those of a dot product of length
 * 128 over vectors of length |S|, |k|. */
static void compare_column(check *c, const problem *p, uint32_t col, const float *state,
                           const float *o)
{
    const size_t slab = (size_t)(col / GDN_SLAB) * DIM * GDN_SLAB + col % GDN_SLAB;
    double s[DIM], err = 0, norm = 0;
    for (uint32_t i = 0; i < DIM; i++)
        s[i] = (double)p->state0[slab + (size_t)i * GDN_SLAB];
    for (size_t t = 0; t < p->n_tokens; t++) {
        const float *q = p->q + t * p->qk_stride, *k = p->k + t * p->qk_stride;
        const double v = (double)p->v[t * p->v_stride + col];
        double m = 0, out = 0, q_norm = 0, before = 0;
        norm = 0;
        for (uint32_t i = 0; i < DIM; i++) {
            s[i] *= (double)p->decay[t * p->gate_stride];
            before += s[i] * s[i];
            m += s[i] * (double)k[i];
        }
        const double d = (double)p->beta[t * p->gate_stride] * (v - m);
        for (uint32_t i = 0; i < DIM; i++) {
            s[i] += (double)k[i] * d;
            norm += s[i] * s[i];
            out += s[i] * (double)q[i];
            q_norm += (double)q[i] * (double)q[i];
        }
        norm = sqrt(norm);
        err += sqrt(before) + norm + fabs(v);
        const double mag = (err + norm) * sqrt(q_norm), floor = 1000 * TINY * (double)(t + 1);
        check_close(c, "o", t, col, o[t * p->o_stride + col], out, 24 * EPS * mag + floor,
                    136 * EPS * mag + floor);
    }
    const double floor = 1000 * TINY * p->n_tokens;
    for (uint32_t i = 0; i < DIM; i++)
        check_close(c, "state", i, col, state[slab + (size_t)i * GDN_SLAB], s[i],
                    24 * EPS * (err + norm) + floor, 136 * EPS * (err + norm) + floor);
}

/* Some slabs, tokens in two calls: the same bits, and nothing else touched. */
static void compare_part(check *c, const problem *p, const float *state, const float *o)
{
    const size_t o_floats = (p->n_tokens - 1) * p->o_stride + DIM;
    const uint32_t slab0 = check_below(c, N_SLABS + 1);
    const uint32_t slab1 = slab0 + check_below(c, N_SLABS + 1 - slab0);
    const size_t cut = check_below(c, p->n_tokens + 1);
    float *s2 = check_copy(c, p->state0, GDN_STATE_FLOATS), *o2 = check_floats(c, o_floats);
    scan(c, p, s2, slab0, slab1, 0, cut, o2);
    scan(c, p, s2, slab0, slab1, cut, p->n_tokens, o2);
    for (uint32_t i = 0; i < GDN_STATE_FLOATS; i++) {
        const uint32_t slab = i / (DIM * GDN_SLAB);
        const bool inside = slab >= slab0 && slab < slab1;
        check_same(c, inside ? "part state" : "untouched state", slab, i % (DIM * GDN_SLAB), s2[i],
                   inside ? state[i] : p->state0[i]);
    }
    for (size_t i = 0; i < o_floats; i++) {
        const size_t t = i / p->o_stride, col = i % p->o_stride;
        if (col >= (size_t)slab0 * GDN_SLAB && col < (size_t)slab1 * GDN_SLAB && col < DIM)
            check_same(c, "part o", t, col, o2[i], o[i]);
        else
            check_unwritten(c, "o", t, col, o2[i]);
    }
}

void check_gdn_scan(check *c)
{
    problem p;
    draw_problem(c, &p);
    float *state = check_copy(c, p.state0, GDN_STATE_FLOATS);
    float *o = check_floats(c, (p.n_tokens - 1) * p.o_stride + DIM);
    scan(c, &p, state, 0, N_SLABS, 0, p.n_tokens, o);
    for (uint32_t col = 0; col < DIM; col++)
        compare_column(c, &p, col, state, o);
    for (uint32_t i = 0; i < 4; i++)
        compare_part(c, &p, state, o);
}

/* ---- Benchmark ---- */

typedef struct job {
    const cpu_kernels *k;
    float *state, *q, *key, *v, *o, *decay, *beta;
    uint32_t n_tokens, n_heads;
} job;

static void call_gdn(void *ctx)
{
    const job *j = ctx;
    for (uint32_t h = 0; h < j->n_heads; h++)
        j->k->gdn_scan(j->state + (size_t)h * GDN_STATE_FLOATS, 0, N_SLABS, j->n_tokens, j->q,
                       j->key, DIM, j->v, DIM, j->decay, j->beta, 1, j->o, DIM);
}

/* Decode: 30 layers of 32 heads would stream 63 MB; 960 heads show it. Prefill: the slabs stay. */
static void bench_shape(bench *b, uint32_t n_heads, uint32_t n_tokens)
{
    static job j;
    j = (job){.k = b->k,
              .state = bench_floats((size_t)n_heads * GDN_STATE_FLOATS),
              .q = bench_floats((size_t)n_tokens * DIM),
              .key = bench_floats((size_t)n_tokens * DIM),
              .v = bench_floats((size_t)n_tokens * DIM),
              .o = bench_floats((size_t)n_tokens * DIM),
              .decay = bench_floats(n_tokens),
              .beta = bench_floats(n_tokens),
              .n_tokens = n_tokens,
              .n_heads = n_heads};
    for (uint32_t t = 0; t < n_tokens; t++) {
        j.decay[t] = 0.9f, j.beta[t] = 0.5f;
        for (uint32_t i = 0; i < DIM; i++)
            j.key[t * DIM + i] *= 0.1f;
    }
    char name[48];
    snprintf(name, sizeof name, "heads %u tokens %u", n_heads, n_tokens);
    const double n = (double)n_heads * GDN_STATE_FLOATS;
    bench_run(b, name, 8 * n, 7 * n * n_tokens, call_gdn, &j);
}

void bench_gdn_scan(bench *b)
{
    bench_shape(b, 960, 1);
    bench_shape(b, 1, 64);
    bench_shape(b, 32, 512);
}
