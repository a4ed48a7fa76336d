/* Attention blocks: values over several blocks, and independence of the query rows. */
#include "check.h"

#include <math.h>
#include <stdio.h>

#include "base/ck.h"

#define DIM        MODEL_HEAD_DIM
#define Q_MAX      33u
#define BLOCKS_MAX 3u

typedef struct problem {
    uint32_t n_q, n_blocks, n_kv[BLOCKS_MAX], n_visible[BLOCKS_MAX][Q_MAX];
    const float *q[Q_MAX];
    const void *k[BLOCKS_MAX], *v[BLOCKS_MAX];
    calla_kv_type type;
    float *scratch;
} problem;

/* Positions that no query sees stay NaN: they must not matter. */
static void *draw_kv(check *c, const problem *p, bool is_key, uint32_t n_rows, uint32_t n_seen,
                     values v, double large)
{
    const uint32_t last = n_rows - 1;
    const size_t n = is_key ? attn_key_at(p->type, last / ATTN_KEYS * ATTN_KEYS + ATTN_KEYS, 0)
                            : attn_value_at(p->type, last, DIM - ATTN_KEYS) + ATTN_KEYS;
    float *f = check_floats(c, p->type == CALLA_KV_BF16 ? n / 2 : n);
    for (uint32_t j = 0; j < n_seen; j++)
        for (uint32_t i = 0; i < DIM; i++) {
            const size_t at = is_key ? attn_key_at(p->type, j, i) : attn_value_at(p->type, j, i);
            const float x = check_draw(c, v, large);
            if (p->type == CALLA_KV_BF16)
                ((uint16_t *)(void *)f)[at] = f32_to_bf16(x);
            else
                f[at] = x;
        }
    return f;
}

static void draw_problem(check *c, problem *p)
{
    static const uint32_t q_list[] = {1, 1, 2, 3, 4, 7, 8, 8, 9, 16, 33};
    static const uint32_t kv_list[] = {1, 2, 3, 8, 15, 16, 17, 33, 63, 64, 64, 64};
    const values vq = check_values(c), vk = check_values(c), vv = check_values(c);
    p->n_q = CHECK_PICK(c, q_list);
    p->n_blocks = 1 + check_below(c, BLOCKS_MAX);
    p->type = check_below(c, 2) == 0 ? CALLA_KV_BF16 : CALLA_KV_F32;
    check_shape(c, "queries %u, blocks %u, %s, q %s, k %s, v %s", p->n_q, p->n_blocks,
                p->type == CALLA_KV_BF16 ? "bf16" : "f32", values_name(vq), values_name(vk),
                values_name(vv));
    for (uint32_t i = 0; i < p->n_q; i++) {
        float *q = check_floats(c, DIM);
        check_fill(c, q, DIM, vq, 50);
        p->q[i] = q;
    }
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        uint32_t n_seen = 0;
        p->n_kv[b] = b + 1 < p->n_blocks ? ATTN_BLOCK : CHECK_PICK(c, kv_list);
        const bool all = check_below(c, 2) == 0;
        for (uint32_t i = 0; i < p->n_q; i++) {
            p->n_visible[b][i] = all ? p->n_kv[b] : check_below(c, p->n_kv[b] + 1);
            if (p->n_visible[b][i] > n_seen) n_seen = p->n_visible[b][i];
        }
        p->k[b] = draw_kv(c, p, true, p->n_kv[b], n_seen, vk, 50);
        p->v[b] = draw_kv(c, p, false, p->n_kv[b], n_seen, vv, 1e15);
    }
    p->scratch = check_floats(c, ATTN_SCRATCH_FLOATS(p->n_q));
}

static void states_init(check *c, attn_state *st, uint32_t n)
{
    float *o = check_floats(c, (size_t)n * DIM);
    for (uint32_t i = 0; i < n; i++) {
        st[i] = (attn_state){-INFINITY, 0, o + (size_t)i * DIM};
        memset(st[i].o, 0, DIM * sizeof(float));
    }
}

static double kv_value(const problem *p, const void *kv, size_t i)
{
    return p->type == CALLA_KV_BF16 ? (double)bf16_to_f32(((const uint16_t *)kv)[i])
                                    : (double)((const float *)kv)[i];
}

/* A query over all its visible positions at once. An error of `es` in a score is a factor of
 * exp(es) in its weight; the running maximum brings the same once more. */
static void compare_query(check *c, const problem *p, uint32_t i_q, const attn_state *st)
{
    double s[BLOCKS_MAX * ATTN_BLOCK], m = -(double)INFINITY, l = 0, mag_max = 0;
    double o[DIM] = {0}, o_mag[DIM] = {0}, v_mag[DIM] = {0};
    uint32_t n = 0, at = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++)
        for (size_t j = 0; j < p->n_visible[b][i_q]; j++, n++) {
            double sum = 0, mag = 0;
            for (size_t i = 0; i < DIM; i++) {
                const double term =
                    (double)p->q[i_q][i] *
                    kv_value(p, p->k[b], attn_key_at(p->type, (uint32_t)j, (uint32_t)i));
                sum += term, mag += fabs(term);
            }
            s[n] = sum;
            if (sum > m) m = sum;
            if (mag > mag_max) mag_max = mag;
        }
    if (n == 0) {
        check_same(c, "m of an unseen row", i_q, 0, st->m, -INFINITY);
        check_same(c, "l of an unseen row", i_q, 0, st->l, 0);
        return;
    }
    for (uint32_t b = 0; b < p->n_blocks; b++)
        for (size_t j = 0; j < p->n_visible[b][i_q]; j++) {
            const double w = exp(s[at++] - m);
            l += w;
            for (size_t i = 0; i < DIM; i++) {
                const double v =
                    kv_value(p, p->v[b], attn_value_at(p->type, (uint32_t)j, (uint32_t)i));
                o[i] += w * v, o_mag[i] += fabs(w * v), v_mag[i] += fabs(v);
            }
        }
    /* (s - m) itself rounds: its magnitude times eps, at most 110 before exp underflows */
    const double es = (DIM / 16.0 + 8) * EPS * mag_max + 256 * TINY;
    const double fail = expm1(2 * es + 120 * EPS) + (n + 8) * EPS;
    const double warn = expm1(es / 4 + 8 * EPS) + (sqrt((double)n) + 8) * EPS;
    check_close(c, "m", i_q, 0, st->m, m, es / 2, es);
    check_close(c, "l", i_q, 0, st->l, l, warn * l, fail * l);
    for (size_t i = 0; i < DIM; i++) {
        /* weights below the smallest normal number may be dropped */
        const double floor = n * TINY + 2 * (double)FLT_MIN * v_mag[i];
        check_close(c, "o", i_q, i, st->o[i], o[i], warn * o_mag[i] + floor,
                    fail * o_mag[i] + floor);
    }
}

/* Rows first, first + step, .. alone: the same bits. */
static void compare_part(check *c, const problem *p, const attn_state *all)
{
    const uint32_t first = check_below(c, p->n_q), step = 1 + check_below(c, 3);
    const uint32_t n = 1 + check_below(c, (p->n_q - 1 - first) / step + 1);
    const float *q[Q_MAX];
    uint32_t n_visible[Q_MAX];
    attn_state st[Q_MAX];
    states_init(c, st, n);
    float *scratch = check_floats(c, ATTN_SCRATCH_FLOATS(n));
    for (uint32_t i = 0; i < n; i++)
        q[i] = p->q[first + i * step];
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        uint32_t n_kv = 0;
        for (uint32_t i = 0; i < n; i++) {
            n_visible[i] = p->n_visible[b][first + i * step];
            if (n_visible[i] > n_kv) n_kv = n_visible[i];
        }
        /* a block cut to what these rows see must not matter either */
        c->k->attn_block(q, n_visible, n, p->k[b], p->v[b],
                         check_below(c, 2) == 0 && n_kv > 0 ? n_kv : p->n_kv[b], p->type, st,
                         scratch);
    }
    for (uint32_t i = 0; i < n; i++) {
        const attn_state *want = &all[first + i * step];
        check_same(c, "part m", i, 0, st[i].m, want->m);
        check_same(c, "part l", i, 0, st[i].l, want->l);
        for (uint32_t j = 0; j < DIM; j++)
            check_same(c, "part o", i, j, st[i].o[j], want->o[j]);
    }
}

void check_attn_block(check *c)
{
    problem p;
    attn_state st[Q_MAX];
    draw_problem(c, &p);
    states_init(c, st, p.n_q);
    for (uint32_t b = 0; b < p.n_blocks; b++)
        c->k->attn_block(p.q, p.n_visible[b], p.n_q, p.k[b], p.v[b], p.n_kv[b], p.type, st,
                         p.scratch);
    for (uint32_t i = 0; i < p.n_q; i++)
        compare_query(c, &p, i, &st[i]);
    for (uint32_t i = 0; i < 4; i++)
        compare_part(c, &p, st);
}

/* ---- Benchmark ---- */

#define N_CONTEXT 65536u

typedef struct job {
    const cpu_kernels *k;
    const float *q[512];
    uint32_t n_visible[512], n_q, n_context;
    uint8_t *keys, *vals;
    attn_state st[512];
    float *scratch;
    calla_kv_type type;
} job;

static void call_attn(void *ctx)
{
    job *j = ctx;
    const size_t row = DIM * (j->type == CALLA_KV_BF16 ? 2 : 4);
    for (uint32_t i = 0; i < j->n_q; i++)
        j->st[i].m = -INFINITY, j->st[i].l = 0;
    for (size_t pos = 0; pos < j->n_context; pos += ATTN_BLOCK)
        j->k->attn_block(j->q, j->n_visible, j->n_q, j->keys + pos * row, j->vals + pos * row,
                         ATTN_BLOCK, j->type, j->st, j->scratch);
}

static void bench_shape(bench *b, uint32_t n_q, uint32_t n_context, calla_kv_type type)
{
    static job j;
    const size_t n = (size_t)n_context * DIM;
    j = (job){.k = b->k,
              .n_q = n_q,
              .n_context = n_context,
              .keys = (uint8_t *)bench_floats(n),
              .vals = (uint8_t *)bench_floats(n),
              .scratch = bench_floats(ATTN_SCRATCH_FLOATS(n_q)),
              .type = type};
    /* as bf16, the lower half of each float is a number of any size: make both halves plain */
    if (type == CALLA_KV_BF16)
        for (size_t i = 0; i < n * 2; i++) {
            ((uint16_t *)(void *)j.keys)[i] = f32_to_bf16((float)(i % 29) * 0.01f);
            ((uint16_t *)(void *)j.vals)[i] = f32_to_bf16((float)(i % 31) * 0.01f);
        }
    for (uint32_t i = 0; i < n_q; i++) {
        j.q[i] = bench_floats(DIM);
        j.st[i].o = bench_floats(DIM);
        j.n_visible[i] = ATTN_BLOCK;
    }
    char name[48];
    snprintf(name, sizeof name, "q %u context %u %s", n_q, n_context,
             type == CALLA_KV_BF16 ? "bf16" : "f32");
    bench_run(b, name, 2.0 * (double)n * (type == CALLA_KV_BF16 ? 2 : 4), 4.0 * (double)n * n_q,
              call_attn, &j);
}

void bench_attn_block(bench *b)
{
    bench_shape(b, 8, 1024, CALLA_KV_BF16);
    bench_shape(b, 8, N_CONTEXT, CALLA_KV_BF16);
    bench_shape(b, 8, 1024, CALLA_KV_F32);
    bench_shape(b, 64, 1024, CALLA_KV_BF16);
    bench_shape(b, 512, 1024, CALLA_KV_BF16);
}
