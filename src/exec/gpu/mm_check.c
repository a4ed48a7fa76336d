#include "exec/gpu/mm_check.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "exec/gpu/ops_gemm.h"
#include "kernels/kmath.h"
#include "kernels/ref_attn.h"
#include "kernels/ref_gemm.h"

#define BUFFERS_MAX 16u
#define BLOCKS_MAX  32u
#define D           ATTN_DIM

/* Errors are sticky: after one every call does nothing, and memory is NULL. */
typedef struct checker {
    gpu_device *d;
    recorder *rec;
    gpu_context g;
    model_shape shape;
    uint64_t rng;
    bool twice; /* the second run is the one timed */
    gpu_buffer *buffers[BUFFERS_MAX];
    void *blocks[BLOCKS_MAX];
    uint32_t n_buffers, n_blocks;
    mm_check *now;
    calla_status st;
    calla_error *err;
} checker;

/* The real model's, but for the number of experts, and small in what is not multiplied. */
static model_shape real_shape(void)
{
    model_shape s = shape_35b;
    s.n_layers = 4;
    s.n_vocab = 1024;
    s.max_context = 4096;
    s.n_experts = 12;
    return s;
}

/* ---- Memory and values ---- */

static void *block(checker *c, uint64_t bytes)
{
    if (c->st != CALLA_OK) return NULL;
    void *p = c->n_blocks < BLOCKS_MAX ? mem_alloc_aligned((size_t)bytes) : NULL;
    if (p == NULL)
        c->st = err_set(c->err, CALLA_ERR_MEMORY, "no memory to check the matrix products with");
    else
        c->blocks[c->n_blocks++] = p;
    return p;
}

static gpu_view view(checker *c, uint64_t bytes, const void *init)
{
    gpu_view v = {NULL, 0, bytes};
    if (c->st != CALLA_OK) return v;
    c->st = c->d->ops->buffer_create(c->d, GPU_MEM_DEVICE, bytes, "mm check", &v.buf, c->err);
    if (c->st != CALLA_OK) return v;
    c->buffers[c->n_buffers++] = v.buf;
    if (init != NULL) c->st = c->d->ops->write(c->d, v, init, c->err);
    return v;
}

static void *fetch(checker *c, gpu_view v)
{
    void *p = block(c, v.bytes);
    if (p != NULL) c->st = c->d->ops->read(c->d, p, v, c->err);
    return p;
}

static void release(checker *c)
{
    for (uint32_t i = 0; i < c->n_buffers; i++)
        c->d->ops->buffer_destroy(c->d, c->buffers[i]);
    for (uint32_t i = 0; i < c->n_blocks; i++)
        mem_free_aligned(c->blocks[i]);
    c->n_buffers = c->n_blocks = 0;
    c->g.mm = (gpu_view){0};
}

static uint32_t draw(checker *c)
{
    c->rng += 0x9e3779b97f4a7c15u;
    uint64_t z = c->rng;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static float uniform(checker *c, float a, float b)
{
    return a + (b - a) * (float)(draw(c) >> 8) * 0x1p-24f;
}

static uint32_t *words(checker *c, uint64_t n)
{
    uint32_t *x = block(c, 4 * n);
    for (uint64_t i = 0; x != NULL && i < n; i++)
        x[i] = draw(c);
    return x;
}

static float *floats(checker *c, uint64_t n, float a, float b)
{
    float *x = block(c, 4 * n);
    for (uint64_t i = 0; x != NULL && i < n; i++)
        x[i] = uniform(c, a, b);
    return x;
}

static uint16_t *bf16s(checker *c, uint64_t n)
{
    uint16_t *x = block(c, 2 * n);
    for (uint64_t i = 0; x != NULL && i < n; i++)
        x[i] = (uint16_t)kx_bf16_store(uniform(c, -1, 1));
    return x;
}

/* Scales, and biases that put the weights around zero. */
static void draw_scales(checker *c, uint32_t *sb, uint64_t n)
{
    for (uint64_t i = 0; c->st == CALLA_OK && i < n; i++) {
        const float s = uniform(c, 0.005f, 0.015f) * ((draw(c) & 3u) == 0 ? -1.0f : 1.0f);
        sb[i] = kx_bf16_store(s) | kx_bf16_store(-s * uniform(c, 6.5f, 9.5f)) << 16;
    }
}

/* ---- Running and comparing ---- */

static void run(checker *c)
{
    gpu_recording r;
    gpu_program *p = NULL;
    uint64_t ticket;
    if (c->st != CALLA_OK) return;
    c->st = rec_finish(c->rec, false, &r, c->err);
    if (c->st != CALLA_OK) return;
    for (uint32_t i = 0; i < r.n; i++)
        c->now->flops += r.dispatch[i].flops;
    c->st = c->d->ops->program_create(c->d, &r, true, &p, c->err);
    for (uint32_t i = 0; c->st == CALLA_OK && i < (c->twice ? 2u : 1u); i++) {
        c->st = c->d->ops->submit(c->d, p, &ticket, c->err);
        if (c->st == CALLA_OK) c->st = c->d->ops->wait(c->d, ticket, &c->now->seconds, c->err);
    }
    c->d->ops->program_destroy(c->d, p);
}

static void compare(checker *c, double got, double want, double bound, uint32_t token, uint32_t at)
{
    const double e = fabs(got - want);
    if (c->st != CALLA_OK) return;
    const double part = isnan(e) ? HUGE_VAL : e / bound;
    if (part > c->now->worst) c->now->worst = part;
    if (e <= bound) return;
    c->st =
        err_set(c->err, CALLA_ERR_DEVICE,
                "%s of %u tokens, %u x %u: value %u of token %u is %.9g, expected %.9g +- %.2g",
                c->now->what, c->now->n, c->now->rows, c->now->cols, at, token, got, want, bound);
}

/* As calla-gpu-check: f32 sums of K products in any order. */
static double relative_bound(uint32_t cols)
{
    return 8 * sqrt((double)cols) * 0x1p-24;
}

/* Number i of a sample of n things, m of them to a tile: every place of a tile, in the last tile
 * or in any. */
static uint32_t sample(checker *c, uint32_t i, uint32_t m, uint32_t n)
{
    const uint32_t last = (n - 1) / m * m, tile = (draw(c) & 1) != 0 ? last : draw(c) % n / m * m;
    return tile + i < n ? tile + i : n - 1 - i % n;
}

static void matrix_row(const checker *c, uint32_t n, uint32_t cols, const uint16_t *x,
                       const uint32_t *rows_of, const uint32_t *codes, const uint32_t *sb,
                       double *sum, double *magnitude)
{
    if (gemm_is_exact(&c->g, cols))
        ref_gemm_codes(n, 1, cols, x, rows_of, codes, sb, sum, magnitude);
    else
        ref_gemm(n, 1, cols, x, rows_of, codes, sb, sum, magnitude);
}

/* ---- A tile ---- */

#define N_TILES 3u

/* Operands that tell every place apart, and sums that are exact: an identity with odd numbers times
 * powers of two; the same, exchanged; small integers. */
static void draw_tiles(checker *c, bool turned, float *a, float *b)
{
    for (uint32_t i = 0; i < N_TILES * 512; i++) {
        const uint32_t tile = i / 512, r = i % 512 / 16, k = i % 16;
        const float place = ldexpf((float)(2 * r + 1), (int)k - 8);
        const float left = tile == 0 ? (r == k) : tile == 1 ? place : (float)(draw(c) % 16);
        const float right = tile == 0 ? place : tile == 1 ? (r % 16 == k) : (float)(draw(c) % 16);
        const uint32_t in_tile = turned ? 32 * k + r : 16 * r + k;
        if (r < 16) a[256 * tile + 16 * r + k] = left;
        b[512 * tile + in_tile] = right;
    }
}

static void compare_tiles(checker *c, bool turned, const float *a, const float *b, const float *got,
                          const uint32_t *map)
{
    uint32_t seen[512] = {0};
    for (uint32_t i = 0; i < 512; i++) {
        if (map[i] < 512) seen[map[i]]++;
    }
    for (uint32_t i = 0; i < 512; i++) /* every place is one lane's */
        compare(c, (double)seen[i], 1, 0.5, i / 32, i % 32);
    for (uint32_t i = 0; i < N_TILES * 512; i++) {
        const uint32_t tile = i / 512, row = i % 512 / 32, col = i % 32;
        double sum = 0;
        for (uint32_t k = 0; k < 16; k++)
            sum += 2 * (double)a[256 * tile + 16 * row + k] *
                   (double)b[512 * tile + (turned ? 32 * k + col : 16 * col + k)];
        compare(c, (double)got[i], sum, 1e-30, row, col);
    }
}

static void check_tiles(checker *c, bool turned)
{
    *c->now = (mm_check){.what = turned ? "tile, turned" : "tile", .n = 16, .rows = 32, .cols = 16};
    float *a = block(c, 4 * N_TILES * 256), *b = block(c, 4 * N_TILES * 512);
    uint16_t *ha = block(c, 2 * N_TILES * 256), *hb = block(c, 2 * N_TILES * 512);
    if (c->st != CALLA_OK) return;
    draw_tiles(c, turned, a, b);
    for (uint32_t i = 0; i < N_TILES * 512; i++) {
        if (i < N_TILES * 256) ha[i] = (uint16_t)kx_bf16_store(a[i]);
        hb[i] = (uint16_t)kx_bf16_store(b[i]);
    }
    const mm_probe_args args = {turned};
    const gpu_view va = view(c, 2 * N_TILES * 256, ha), vb = view(c, 2 * N_TILES * 512, hb);
    const gpu_view vc = view(c, 4 * N_TILES * 512, NULL), vm = view(c, 4 * 512, NULL);
    if (c->st != CALLA_OK) return;
    rec_dispatch(c->rec, KERNEL_mm_probe, N_TILES, 1);
    rec_read(c->rec, va);
    rec_read(c->rec, vb);
    rec_write(c->rec, vc);
    rec_write(c->rec, vm);
    rec_args(c->rec, &args, sizeof args);
    rec_cost(c->rec, 0, 2.0 * N_TILES * 16 * 32 * 32);
    run(c);
    const float *got = fetch(c, vc);
    const uint32_t *map = fetch(c, vm);
    if (c->st == CALLA_OK) compare_tiles(c, turned, a, b, got, map);
}

/* ---- Dense ---- */

#define SAMPLE_TOKENS 33u
#define SAMPLE_ROWS   128u

static void compare_gemm(checker *c, const uint16_t *x, const uint32_t *codes, const uint32_t *sb,
                         const float *before, const float *y)
{
    const uint32_t n = c->now->n, rows = c->now->rows, cols = c->now->cols;
    uint32_t token[SAMPLE_TOKENS];
    double want[SAMPLE_TOKENS], bound[SAMPLE_TOKENS];
    const uint32_t n_tokens = n < SAMPLE_TOKENS ? n : SAMPLE_TOKENS;
    for (uint32_t i = 0; i < SAMPLE_ROWS; i++) {
        const uint32_t r = sample(c, i, SAMPLE_ROWS, rows);
        for (uint32_t t = 0; t < n_tokens; t++)
            token[t] = n_tokens == n ? t : t == 32 ? n - 1 : sample(c, t, 32, n);
        matrix_row(c, n_tokens, cols, x, token, codes + (uint64_t)r * (cols / 8),
                   sb + (uint64_t)r * (cols / 64), want, bound);
        for (uint32_t t = 0; t < n_tokens; t++) {
            const uint64_t at = (uint64_t)token[t] * rows + r;
            const double w = want[t] + (before != NULL ? (double)before[at] : 0);
            compare(c, (double)y[at], w, bound[t] * relative_bound(cols) + fabs(w) * 0x1p-23,
                    token[t], r);
        }
    }
}

static void check_gemm(checker *c, uint32_t n, uint32_t rows, uint32_t cols, bool add)
{
    *c->now = (mm_check){.what = add ? "gemm add" : "gemm", .n = n, .rows = rows, .cols = cols};
    uint32_t *codes = words(c, (uint64_t)rows * cols / 8);
    uint32_t *sb = block(c, (uint64_t)rows * cols / 16);
    draw_scales(c, sb, (uint64_t)rows * cols / 64);
    const uint16_t *x = bf16s(c, (uint64_t)n * cols);
    const float *before = add ? floats(c, (uint64_t)n * rows, -1, 1) : NULL;
    const gpu_q4 w = {view(c, (uint64_t)rows * cols / 2, codes),
                      view(c, (uint64_t)rows * cols / 16, sb), rows, cols};
    const gpu_view vx = view(c, 2ull * n * cols, x), vy = view(c, 4ull * n * rows, before);
    const uint64_t mm = op_mm_scratch(&c->g, n);
    if (mm != 0) c->g.mm = view(c, mm, NULL);
    if (c->st == CALLA_OK) op_gemm(&c->g, n, vx, &w, add, vy);
    const bool twice = c->twice;
    c->twice = twice && !add;
    run(c);
    c->twice = twice;
    const float *y = fetch(c, vy);
    if (c->st == CALLA_OK) compare_gemm(c, x, codes, sb, before, y);
}

/* ---- Experts ---- */

typedef struct expert_case {
    uint32_t n;
    const uint32_t *bank, *ids, *lists;
    const uint16_t *xn, *h, *y;
    moe_layout l;
} expert_case;

static uint32_t slab_words(const model_shape *s)
{
    return 3 * s->expert_width * s->hidden / 8 + 3 * s->expert_width * s->hidden / 64;
}

static uint32_t expert_of(const checker *c, const expert_case *e, uint32_t slot)
{
    const uint32_t n = e->n * c->shape.n_experts_used;
    for (uint32_t p = 0; p < n; p++)
        if (e->lists[e->l.slot_of / 4 + p] == slot) return e->ids[p];
    return c->shape.n_experts;
}

/* Value j of h of a slot: silu(g) u. */
static void compare_h(checker *c, const expert_case *e, uint32_t slot, uint32_t j,
                      const uint32_t *up)
{
    const uint32_t w = c->shape.expert_width, hidden = c->shape.hidden;
    const uint32_t token = e->lists[e->l.slot_token / 4 + slot], *sb = up + w * hidden / 4;
    double sum[2], mag[2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t r = 2 * j + i;
        matrix_row(c, 1, hidden, e->xn, &token, up + r * (hidden / 8), sb + r * (hidden / 64),
                   &sum[i], &mag[i]);
        mag[i] *= relative_bound(hidden);
    }
    const double silu = sum[0] / (1 + exp(-sum[0])), want = silu * sum[1];
    const uint32_t at = gemm_is_permuted(&c->g) ? GMM_PLACE(j) : j;
    compare(c, (double)kx_bf16_load(e->h[(uint64_t)slot * w + at]), want,
            1.1 * mag[0] * (fabs(sum[1]) + mag[1]) + fabs(silu) * mag[1] +
                fabs(want) * (0x1p-8 + 0x1p-20) + 1e-30,
            slot, j);
}

/* Value j of y of a slot, from the device's h. */
static void compare_y(checker *c, const expert_case *e, uint32_t slot, uint32_t j,
                      const uint32_t *down)
{
    const uint32_t w = c->shape.expert_width, hidden = c->shape.hidden;
    const uint32_t *sb = down + w * hidden / 8;
    uint16_t h[1024];
    double sum, mag;
    for (uint32_t i = 0; i < w; i++)
        h[i] = e->h[(uint64_t)slot * w + (gemm_is_permuted(&c->g) ? GMM_PLACE(i) : i)];
    matrix_row(c, 1, w, h, NULL, down + j * (w / 8), sb + j * (w / 64), &sum, &mag);
    compare(c, (double)kx_bf16_load(e->y[(uint64_t)slot * hidden + j]), sum,
            mag * relative_bound(w) + fabs(sum) * (0x1p-8 + 0x1p-20), slot, j);
}

static void compare_experts(checker *c, const expert_case *e)
{
    const uint32_t w = c->shape.expert_width, hidden = c->shape.hidden;
    for (uint32_t i = 0; i < 3 * 128 && c->st == CALLA_OK; i++) {
        const uint32_t slot = i % 8 == 0 ? e->l.n_slots - 1 - i / 8 % e->n : draw(c) % e->l.n_slots;
        const uint32_t *slab = e->bank + (uint64_t)expert_of(c, e, slot) * slab_words(&c->shape);
        compare_h(c, e, slot, sample(c, i % 64, 64, w), slab);
        compare_y(c, e, slot, sample(c, i % 128, 128, hidden),
                  slab + w * hidden / 4 + w * hidden / 32);
    }
}

/* Distinct experts of every token; the first ones are crowded. */
static uint32_t *draw_ids(checker *c, uint32_t n)
{
    const uint32_t u = c->shape.n_experts_used, all = c->shape.n_experts;
    uint32_t *ids = block(c, 4ull * n * u);
    for (uint32_t t = 0; ids != NULL && t < n; t++) {
        uint32_t mask = 0;
        for (uint32_t i = 0; i < u;) {
            const uint32_t e = draw(c) % all * (i % 2 + draw(c) % all) / all % all;
            if ((mask >> e & 1u) != 0) continue;
            mask |= 1u << e;
            ids[t * u + i++] = e;
        }
    }
    return ids;
}

static uint32_t *draw_bank(checker *c)
{
    const uint32_t w = c->shape.expert_width, hidden = c->shape.hidden;
    uint32_t *bank = words(c, (c->shape.n_experts + 1ull) * slab_words(&c->shape));
    for (uint32_t i = 0; bank != NULL && i <= c->shape.n_experts; i++) {
        uint32_t *up_sb = bank + (uint64_t)i * slab_words(&c->shape) + w * hidden / 4;
        draw_scales(c, up_sb, 2 * w * hidden / 64);
        draw_scales(c, up_sb + w * hidden / 32 + w * hidden / 8, w * hidden / 64);
    }
    return bank;
}

static void check_experts(checker *c, uint32_t n)
{
    const model_shape *s = &c->shape;
    const uint64_t slab = 4ull * slab_words(s);
    *c->now = (mm_check){.what = "experts", .n = n, .rows = 2 * s->expert_width, .cols = s->hidden};
    expert_case e = {.n = n, .l = moe_layout_of(s, n)};
    e.bank = draw_bank(c);
    e.ids = draw_ids(c, n);
    e.xn = bf16s(c, (uint64_t)n * s->hidden);
    const float *weights = floats(c, n * (s->n_experts_used + 1ull), 0, 1);
    const float *x = floats(c, (uint64_t)n * s->hidden, -1, 1);
    uint32_t *lists = block(c, op_moe_plan_bytes(s, n));
    const gpu_bank bank = {view(c, (s->n_experts + 1) * slab, e.bank), (uint32_t)slab};
    const gpu_view ids = view(c, 4ull * n * s->n_experts_used, e.ids);
    const gpu_view xn = view(c, 2ull * n * s->hidden, e.xn);
    const gpu_view vw = view(c, 4ull * n * (s->n_experts_used + 1), weights);
    const gpu_view vx = view(c, 4ull * n * s->hidden, x);
    const gpu_view scratch = view(c, op_moe_gemm_scratch(s, n), NULL);
    const uint64_t mm = op_mm_scratch(&c->g, n);
    if (mm != 0) c->g.mm = view(c, mm, NULL);
    if (c->st == CALLA_OK) op_moe_gemm(&c->g, n, xn, ids, vw, &bank, scratch, vx);
    run(c);
    e.h = fetch(c, gpu_sub(scratch, e.l.h, 2ull * e.l.n_slots * s->expert_width));
    e.y = fetch(c, gpu_sub(scratch, e.l.y, 2ull * e.l.n_slots * s->hidden));
    if (c->st != CALLA_OK) return;
    op_moe_plan_host(&c->g, n, e.ids, lists);
    e.lists = lists;
    compare_experts(c, &e);
}

/* ---- Attention ---- */

typedef struct attn_case {
    attn_args a;
    tok_entry *tok;
    float *y, *rope, *q_norm, *k_norm;
    uint16_t *k, *v;
} attn_case;

static void draw_attn(checker *c, attn_case *p, uint32_t n)
{
    const model_shape *s = &c->shape;
    p->a = (attn_args){.n_heads = s->n_heads,
                       .n_kv_heads = s->n_kv_heads,
                       .group = s->n_heads / s->n_kv_heads,
                       .n_rows = n,
                       .y_pitch = 2 * shape_q_width(s) + 2 * shape_kv_width(s),
                       .n_tokens = n,
                       .n_segs = 1,
                       .eps = s->rms_eps};
    p->tok = block(c, n * sizeof *p->tok);
    p->y = floats(c, (uint64_t)n * p->a.y_pitch, -2, 2);
    p->rope = block(c, n * 256ull);
    p->q_norm = floats(c, D, 0.5f, 3);
    p->k_norm = floats(c, D, 0.5f, 3);
    p->k = block(c, 2ull * s->n_kv_heads * n * D);
    p->v = block(c, 2ull * s->n_kv_heads * n * D);
    for (uint32_t t = 0; c->st == CALLA_OK && t < n; t++) {
        p->tok[t] = (tok_entry){7, t, 0, 0};
        for (uint32_t i = 0; i < 32; i++) {
            const kx_sincos_result r = kx_sincos(uniform(c, 0, 1000));
            p->rope[t * 64 + i] = r.c;
            p->rope[t * 64 + 32 + i] = r.s;
        }
    }
}

/* Of bf16 weights: 2^-9 of the largest |v|, which is 2; of rounding o: 2^-9 of itself. */
static void compare_attn(checker *c, const attn_case *p, const uint16_t *o)
{
    const uint64_t n = (uint64_t)p->a.n_tokens * p->a.n_heads * D;
    float *q = block(c, 4 * n), *want = block(c, 4 * n);
    if (c->st != CALLA_OK) return;
    ref_attn_prepare(&p->a, p->tok, p->y, p->rope, p->q_norm, p->k_norm, false, true, p->k, p->v,
                     q);
    ref_attn_exact(&p->a, p->tok, p->y, q, p->k, p->v, want);
    const uint32_t row = p->a.n_heads * D;
    for (uint64_t i = 0; i < n; i++)
        compare(c, (double)kx_bf16_load(o[i]), (double)want[i],
                2.0 / 512 + 1e-4 + fabs((double)want[i]) / 512, (uint32_t)(i / row),
                (uint32_t)(i % row));
}

static void check_attention(checker *c, uint32_t n)
{
    const model_shape *s = &c->shape;
    *c->now = (mm_check){.what = "attention", .n = n, .rows = s->n_heads, .cols = D};
    attn_case p;
    draw_attn(c, &p, n);
    const seg_entry segment = {0, n, 0, 0, 0, {0, 0, 0}};
    const uint64_t cache = 2ull * s->n_kv_heads * n * D;
    const gpu_view tok = view(c, n * sizeof(tok_entry), p.tok);
    const gpu_view seg = view(c, sizeof segment, &segment);
    const gpu_view y = view(c, 4ull * n * p.a.y_pitch, p.y), rope = view(c, n * 256ull, p.rope);
    const gpu_attn l = {.q_norm = view(c, 4 * D, p.q_norm),
                        .k_norm = view(c, 4 * D, p.k_norm),
                        .k = view(c, cache, p.k),
                        .v = view(c, cache, p.v),
                        .n_rows = n};
    const gpu_view scratch = view(c, op_attn_scan_scratch(s, n, 1), NULL);
    const gpu_view o = view(c, 2ull * n * s->n_heads * D, NULL);
    if (c->st == CALLA_OK) op_attn_scan(&c->g, n, 1, n, tok, seg, &l, y, rope, scratch, o);
    run(c);
    const uint16_t *got = fetch(c, o);
    if (c->st == CALLA_OK) compare_attn(c, &p, got);
}

/* ---- All of them ---- */

typedef enum kind { TILE, TURNED, GEMM, GEMM_ADD, EXPERTS, ATTENTION } kind;

static const struct {
    kind kind;
    uint32_t n, rows, cols;
} cases[] = {{TILE, 1, 0, 0},
             {TURNED, 1, 0, 0},
             {GEMM, 8, 1024, 2048},
             {GEMM, 33, 1024, 2048},
             {GEMM, 512, 1024, 2048},
             {GEMM, 65, 12352, 2048},
             {GEMM_ADD, 40, 2048, 4096},
             {EXPERTS, 8, 0, 0},
             {EXPERTS, 150, 0, 0},
             {ATTENTION, 33, 0, 0},
             {ATTENTION, 140, 0, 0}};
_Static_assert(sizeof cases / sizeof *cases <= MM_CHECKS_MAX, "the report has room");

calla_status mm_check_run(gpu_device *d, const mm_check_options *o, mm_check_report *out,
                          calla_error *err)
{
    gpu_limits lim;
    d->ops->limits(d, &lim);
    checker c = {.d = d, .shape = real_shape(), .rng = o->seed, .twice = o->n_max == 0, .err = err};
    memset(out, 0, sizeof *out);
    c.st = recorder_create(&c.rec, d, err);
    c.g = (gpu_context){
        .rec = c.rec, .shape = &c.shape, .n_cores = lim.n_cores, .native_mm = lim.native_mm};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases && c.st == CALLA_OK; i++) {
        const uint32_t n = cases[i].n;
        if (o->n_max != 0 && n > o->n_max) continue;
        c.now = &out->check[out->n++];
        rec_reset(c.rec);
        if (cases[i].kind <= TURNED)
            check_tiles(&c, cases[i].kind == TURNED);
        else if (cases[i].kind == EXPERTS)
            check_experts(&c, n);
        else if (cases[i].kind == ATTENTION)
            check_attention(&c, n);
        else
            check_gemm(&c, n, cases[i].rows, cases[i].cols, cases[i].kind == GEMM_ADD);
        release(&c);
    }
    recorder_destroy(c.rec);
    return c.st;
}
