/* Prefill products: dense matrices, router, routing lists, experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "exec/gpu/ops_gemm.h"
#include "kernels/kmath.h"
#include "kernels/ref_gemm.h"

/* A sum of K products in f32, in any order, with slack for the tensor units' short additions. The
 * worst case grows with K, errors that look random with its root. */
static double relative_bound(uint32_t cols)
{
    return 8 * sqrt((double)cols) * 0x1p-24;
}

/* g->mm, as large as the switches ask. */
static void give_mm(check *c, gpu_context *g, uint32_t n)
{
    const uint64_t bytes = op_mm_scratch(g, n);
    if (bytes != 0) g->mm = check_view(c, "mm", bytes, NULL);
}

/* ---- Dense ---- */

typedef struct matrix {
    uint32_t *codes, *sb;
    gpu_q4 q;
} matrix;

static matrix new_matrix(check *c, uint32_t rows, uint32_t cols)
{
    matrix m = {check_words(c, (uint64_t)rows * cols / 8),
                check_scales(c, (uint64_t)rows * cols / 64, 8),
                {.rows = rows, .cols = cols}};
    m.q.codes = check_view(c, "codes", (uint64_t)rows * cols / 2, m.codes);
    m.q.sb = check_view(c, "sb", (uint64_t)rows * cols / 16, m.sb);
    return m;
}

/* The reference that the context's products of rows of cols are to be held against. */
static void reference(const gpu_context *g, uint32_t n, uint32_t rows, uint32_t cols,
                      const uint16_t *x, const uint32_t *rows_of, const uint32_t *codes,
                      const uint32_t *sb, double *sum, double *magnitude)
{
    if (gemm_is_exact(g, cols))
        ref_gemm_codes(n, rows, cols, x, rows_of, codes, sb, sum, magnitude);
    else
        ref_gemm(n, rows, cols, x, rows_of, codes, sb, sum, magnitude);
}

/* Rows r0 .. r0 + n_rows - 1 of W, all tokens, y being [n][rows]. */
static void compare_dense(check *c, const gpu_context *g, const matrix *m, uint32_t n,
                          const uint16_t *x, const float *before, const float *y, uint32_t r0,
                          uint32_t n_rows)
{
    const uint32_t cols = m->q.cols;
    const uint64_t count = (uint64_t)n * n_rows;
    double *want = check_host(c, count * 8), *bound = check_host(c, count * 8);
    float *got = check_host(c, count * 4);
    reference(g, n, n_rows, cols, x, NULL, m->codes + (uint64_t)r0 * (cols / 8),
              m->sb + (uint64_t)r0 * (cols / 64), want, bound);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = i / n_rows * m->q.rows + r0 + i % n_rows;
        got[i] = y[at];
        bound[i] *= relative_bound(cols);
        if (before == NULL) continue;
        want[i] += (double)before[at];
        bound[i] += fabs(want[i]) * 0x1p-23;
    }
    check_bound_f32(c, "y", got, want, bound, n, n_rows);
}

static void dense(check *c, gpu_context *g, uint32_t n, uint32_t rows, uint32_t cols, bool add)
{
    check_shape(c, "T %u, %u x %u%s", n, rows, cols, add ? ", add" : "");
    const matrix m = new_matrix(c, rows, cols);
    const uint16_t *x = check_bf16s(c, (uint64_t)n * cols, -1, 1);
    const float *before = check_floats(c, (uint64_t)n * rows, -1, 1);
    const gpu_view vx = check_view(c, "x", 2ull * n * cols, x);
    const gpu_view vy = check_view(c, "y", 4ull * n * rows, add ? before : NULL);
    /* The last token alone, for the same bits. */
    const gpu_view one_x = check_view(c, "one x", 2ull * cols, x + (uint64_t)(n - 1) * cols);
    const gpu_view one_y =
        check_view(c, "one y", 4ull * rows, add ? before + (uint64_t)(n - 1) * rows : NULL);
    give_mm(c, g, n);
    op_gemm(g, n, vx, &m.q, add, vy);
    if (!check_run(c)) return;
    op_gemm(g, 1, one_x, &m.q, add, one_y);
    if (!check_run(c)) return;
    /* Timed runs repeat the addition. */
    if (add && check_timing(c)) return;
    const float *y = check_fetch(c, vy);
    check_same_f32(c, "the last token alone", check_fetch(c, one_y), y + (uint64_t)(n - 1) * rows,
                   1, rows);
    const uint32_t window = rows < 200 ? rows : 200;
    compare_dense(c, g, &m, n, x, add ? before : NULL, y, 0, window);
    compare_dense(c, g, &m, n, x, add ? before : NULL, y, rows - window, window);
}

static void dense_nano(check *c, bool no_inline)
{
    static const uint32_t tokens[] = {1, 5, 31, 32, 33, 47, 100};
    static const uint32_t shapes[][2] = {{1544, 256}, {256, 512}, {264, 64}, {64, 2048}, {8, 128}};
    gpu_context *g = check_context(c, &check_nano);
    g->off[GPU_SW_inline_dequant] = no_inline;
    const uint32_t i = check_below(c, 5);
    dense(c, g, CHECK_PICK(c, tokens), shapes[i][0], shapes[i][1], check_below(c, 2) != 0);
}

static void dense_inline(check *c)
{
    dense_nano(c, false);
}

static void dense_wide(check *c)
{
    dense_nano(c, true);
}

/* The main loop over codes in memory, where the rows allow it. */
static void use_codes(check *c, gpu_context *g)
{
    if (check_draws_native(c)) g->native_mm = GPU_MM_CODES;
}

static void dense_codes(check *c)
{
    static const uint32_t tokens[] = {1, 5, 16, 31, 32, 33, 47, 100};
    static const uint32_t shapes[][2] = {{1544, 256}, {256, 512}, {264, 64},
                                         {134, 2048}, {8, 256},   {130, 768}};
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t i = check_below(c, 6);
    use_codes(c, g);
    dense(c, g, CHECK_PICK(c, tokens), shapes[i][0], shapes[i][1], check_below(c, 2) != 0);
}

static void dense_portable(check *c)
{
    gpu_context *g = check_context(c, &shape_35b);
    g->off[GPU_SW_tensor_main] = true;
    dense(c, g, 65, 12352, 2048, false);
}

static void dense_35b_wide(check *c)
{
    gpu_context *g = check_context(c, &shape_35b);
    g->off[GPU_SW_inline_dequant] = true;
    g->off[GPU_SW_tensor_main] = check_below(c, 2) != 0;
    dense(c, g, 1 + check_below(c, 200), 2048, 4096, check_below(c, 2) != 0);
}

static void dense_35b(check *c)
{
    static const uint32_t tokens[] = {1, 8, 17, 63, 128, 129, 200, 300};
    static const uint32_t shapes[][2] = {{12352, 2048}, {2048, 4096}, {9216, 2048}};
    const uint32_t i = check_below(c, 3);
    gpu_context *g = check_context(c, &shape_35b);
    g->mm_groups[0] = check_below(c, 2) != 0 ? 2 : 4;
    dense(c, g, CHECK_PICK(c, tokens), shapes[i][0], shapes[i][1], check_below(c, 2) != 0);
}

static void expansion(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t rows = 1 + check_below(c, 40), cols = 64 * (1 + check_below(c, 5));
    const uint32_t n_mats = 1 + check_below(c, 3), codes = 16, words = rows * cols / 8;
    const uint32_t sb = codes + words, stride = (sb + rows * cols / 64 + 7) / 4 * 4;
    const gemm_expand_args a = {n_mats, rows, cols, codes, sb, stride};
    check_shape(c, "%u of %u x %u", n_mats, rows, cols);
    uint32_t *bank = check_words(c, (uint64_t)n_mats * stride);
    for (uint32_t m = 0; m < n_mats; m++)
        memcpy(bank + (uint64_t)m * stride + sb, check_scales(c, rows * cols / 64, 8),
               rows * cols / 16);
    const gpu_view v = check_view(c, "bank", 4ull * n_mats * stride, bank);
    const gpu_view w = check_view(c, "w", 2ull * n_mats * rows * cols, NULL);
    rec_dispatch(g->rec, KERNEL_gemm_expand, 1 + check_below(c, 3), n_mats);
    rec_read(g->rec, v);
    rec_read(g->rec, v);
    rec_write(g->rec, w);
    rec_args(g->rec, &a, sizeof a);
    if (!check_run(c)) return;
    uint16_t *want = check_host(c, w.bytes);
    for (uint32_t i = 0; i < n_mats * rows * cols; i++) {
        const uint32_t *mat = bank + (uint64_t)(i / (rows * cols)) * stride;
        const uint32_t r = i / cols % rows;
        want[i] =
            ref_gemm_weight(mat + codes + r * (cols / 8), mat + sb + r * (cols / 64), i % cols);
    }
    check_same_u16(c, "w", check_fetch(c, w), want, n_mats * rows, cols);
}

static void permutation(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t n = 32 * (1 + check_below(c, 600));
    const gmm_permute_args a = {n / 32};
    check_shape(c, "n %u", n);
    const uint16_t *x = check_bf16s(c, n, -1, 1);
    const gpu_view vx = check_view(c, "x", 2ull * n, x), vy = check_view(c, "y", 2ull * n, NULL);
    rec_dispatch(g->rec, KERNEL_gmm_permute, (a.n_blocks + 255) / 256, 1);
    rec_read(g->rec, vx);
    rec_write(g->rec, vy);
    rec_args(g->rec, &a, sizeof a);
    if (!check_run(c)) return;
    uint16_t *want = check_host(c, 2ull * n);
    for (uint32_t i = 0; i < n; i++)
        want[i] = x[GMM_COLUMN(i)];
    check_same_u16(c, "y", check_fetch(c, vy), want, n / 32, 32);
}

/* gmm_sums and gmm_gather. */
static void sums(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t n = 1 + check_below(c, 40), cols = 256 * (1 + check_below(c, 8));
    const uint32_t slots = 1 + check_below(c, 60);
    const gmm_sums_args a = {cols};
    check_shape(c, "%u of %u x %u", slots, n, cols);
    const uint16_t *x = check_bf16s(c, (uint64_t)n * cols, -1, 1);
    uint32_t *token = check_host(c, 4ull * slots);
    uint16_t *want = check_host(c, 2ull * slots * cols);
    for (uint32_t i = 0; i < slots; i++) {
        token[i] = check_below(c, n);
        memcpy(want + (uint64_t)i * cols, x + (uint64_t)token[i] * cols, 2ull * cols);
    }
    const gpu_view vx = check_view(c, "x", 2ull * n * cols, x);
    const gpu_view vy = check_view(c, "y", 2ull * slots * cols, NULL);
    const gpu_view all = check_view(c, "sums", 4ull * n * (cols / 64), NULL);
    const gpu_view some = check_view(c, "slots' sums", 4ull * slots * (cols / 64), NULL);
    rec_dispatch(g->rec, KERNEL_gmm_sums, n, 1);
    rec_read(g->rec, vx);
    rec_write(g->rec, all);
    rec_args(g->rec, &a, sizeof a);
    rec_dispatch(g->rec, KERNEL_gmm_gather, slots, 1);
    rec_read(g->rec, vx);
    rec_read(g->rec, check_view(c, "slot_token", 4ull * slots, token));
    rec_write(g->rec, vy);
    rec_write(g->rec, some);
    rec_args(g->rec, &a, sizeof a);
    if (!check_run(c)) return;
    float *of_all = check_host(c, all.bytes), *of_some = check_host(c, some.bytes);
    ref_gmm_sums(n, cols, x, of_all);
    ref_gmm_sums(slots, cols, want, of_some);
    check_same_f32(c, "sums", check_fetch(c, all), of_all, n, cols / 64);
    check_same_u16(c, "y", check_fetch(c, vy), want, slots, cols);
    check_same_f32(c, "slots' sums", check_fetch(c, some), of_some, slots, cols / 64);
}

/* ---- Router ---- */

static void router(check *c, const model_shape *s, uint32_t n)
{
    gpu_context *g = check_context(c, s);
    const gemm_router_args a = {n, s->n_experts + 1, s->hidden, s->rms_eps};
    check_shape(c, "T %u, %u x %u", n, a.rows, a.cols);
    const float *x = check_floats(c, (uint64_t)n * a.cols, -3, 3);
    const float *norm = check_floats(c, a.cols, 0.5f, 2);
    const uint32_t *codes = check_words(c, (uint64_t)a.rows * a.cols / 4);
    const uint32_t *sb = check_scales(c, (uint64_t)a.rows * a.cols / 64, 128);
    const gpu_q8 q = {check_view(c, "codes", (uint64_t)a.rows * a.cols, codes),
                      check_view(c, "sb", (uint64_t)a.rows * a.cols / 16, sb), a.rows, a.cols};
    const gpu_view y = check_view(c, "logits", 4ull * n * a.rows, NULL);
    op_router_gemm(g, n, check_view(c, "x", 4ull * n * a.cols, x),
                   check_view(c, "norm", 4ull * a.cols, norm), &q, y);
    if (!check_run(c) || n > 1000) return;
    float *want = check_host(c, y.bytes);
    ref_gemm_router(&a, x, norm, codes, sb, want);
    check_same_f32(c, "logits", check_fetch(c, y), want, n, a.rows);
}

static void router_nano(check *c)
{
    router(c, &check_nano, 1 + check_below(c, 130));
}

static void router_35b(check *c)
{
    router(c, &shape_35b, 1 + check_below(c, 200));
}

/* ---- Experts ---- */

typedef struct moe {
    const model_shape *s;
    uint32_t n;
    uint32_t *bank, *ids;
    uint16_t *xn;
    float *weights, *x;
    gpu_bank vbank;
    gpu_view vxn, vids, vweights, vx, scratch;
    moe_layout l;
} moe;

static uint32_t slab_words(const model_shape *s)
{
    return 3 * s->expert_width * s->hidden / 8 + 3 * s->expert_width * s->hidden / 64;
}

/* Distinct experts for every token; with a skew the first ones are crowded and some stay empty. */
static void draw_ids(check *c, const model_shape *s, uint32_t n, bool skew, uint32_t *ids)
{
    const uint32_t u = s->n_experts_used;
    for (uint32_t i = 0; i < n * u; i++) {
        bool taken = true;
        while (taken) {
            uint32_t e = check_below(c, s->n_experts);
            if (skew) e = e * check_below(c, s->n_experts) / s->n_experts;
            ids[i] = e;
            taken = false;
            for (uint32_t j = i / u * u; j < i; j++)
                taken = taken || ids[j] == e;
        }
    }
}

static moe new_moe(check *c, const model_shape *s, uint32_t n, bool skew)
{
    const uint32_t w = s->expert_width, h = s->hidden, u = s->n_experts_used;
    const uint64_t slab = slab_words(s);
    moe m = {.s = s, .n = n, .l = moe_layout_of(s, n)};
    check_shape(c, "T %u, %u x %u of %u%s", n, u, w, s->n_experts, skew ? ", skewed" : "");
    m.bank = check_words(c, (s->n_experts + 1) * slab);
    for (uint32_t e = 0; e <= s->n_experts; e++) {
        uint32_t *at = m.bank + e * slab;
        memcpy(at + w * h / 4, check_scales(c, 2 * w * h / 64, 8), w * h / 8);
        memcpy(at + w * h / 4 + w * h / 32 + w * h / 8, check_scales(c, w * h / 64, 8), w * h / 16);
    }
    m.ids = check_host(c, 4ull * n * u);
    draw_ids(c, s, n, skew, m.ids);
    m.xn = check_bf16s(c, (uint64_t)n * h, -1, 1);
    m.weights = check_floats(c, (uint64_t)n * (u + 1), 0, 1);
    m.x = check_floats(c, (uint64_t)n * h, -1, 1);
    m.vbank = (gpu_bank){check_view(c, "bank", 4 * (s->n_experts + 1) * slab, m.bank),
                         (uint32_t)(4 * slab)};
    m.vxn = check_view(c, "xn", 2ull * n * h, m.xn);
    m.vids = check_view(c, "ids", 4ull * n * u, m.ids);
    m.vweights = check_view(c, "weights", 4ull * n * (u + 1), m.weights);
    m.vx = check_view(c, "x", 4ull * n * h, m.x);
    m.scratch = check_view(c, "scratch", op_moe_gemm_scratch(s, n), NULL);
    return m;
}

/* The lists on the device against the reference; returns the latter, an image of the scratch. */
static const uint32_t *compare_lists(check *c, const gpu_context *g, const moe *m)
{
    const uint32_t n_pairs = m->n * m->s->n_experts_used;
    uint32_t *want = check_host(c, m->l.plan_bytes);
    op_moe_plan_host(g, m->n, m->ids, want);
    const struct {
        const char *what;
        uint64_t at, words;
    } parts[] = {{"counts", m->l.counts, 8ull * m->s->n_experts},
                 {"slot_token", m->l.slot_token, m->l.n_slots},
                 {"slot_of", m->l.slot_of, n_pairs},
                 {"n_map", m->l.n_map, 16},
                 {"full tiles", m->l.full, 4ull * want[m->l.n_map / 4]},
                 {"short tiles", m->l.tails, 4ull * want[m->l.n_map / 4 + 1]}};
    for (uint32_t i = 0; i < 6; i++) {
        if (parts[i].words == 0) continue;
        check_same_u32(c, parts[i].what,
                       check_fetch(c, gpu_sub(m->scratch, parts[i].at, 4 * parts[i].words)),
                       want + parts[i].at / 4, 1, parts[i].words);
    }
    return want;
}

typedef struct slot_work {
    double *sum, *mag, *want, *bound;
    float *got;
    const uint16_t *h, *y;
} slot_work;

/* h of a slot from its token, y of it from the device's h, each within its bound. */
static void compare_slot(check *c, const gpu_context *ctx, const moe *m, uint32_t slot,
                         uint32_t expert, uint32_t token, const slot_work *k)
{
    const uint32_t w = m->s->expert_width, hidden = m->s->hidden;
    const uint32_t *up = m->bank + (uint64_t)expert * slab_words(m->s),
                   *up_sb = up + w * hidden / 4;
    const uint32_t *down = up_sb + w * hidden / 32, *down_sb = down + w * hidden / 8;
    reference(ctx, 1, 2 * w, hidden, m->xn, &token, up, up_sb, k->sum, k->mag);
    for (uint32_t j = 0; j < w; j++) {
        const double g = k->sum[2 * j], u = k->sum[2 * j + 1], silu = g / (1 + exp(-g));
        const double eg = k->mag[2 * j] * relative_bound(hidden);
        const double eu = k->mag[2 * j + 1] * relative_bound(hidden);
        k->want[j] = silu * u;
        /* |silu'| < 1.1 */
        k->bound[j] = 1.1 * eg * (fabs(u) + eu) + fabs(silu) * eu +
                      fabs(k->want[j]) * (0x1p-8 + 0x1p-20) + 1e-30;
        k->got[j] = kx_bf16_load(k->h[(uint64_t)slot * w + j]);
    }
    check_bound_f32(c, "h", k->got, k->want, k->bound, 1, w);
    reference(ctx, 1, hidden, w, k->h, &slot, down, down_sb, k->want, k->mag);
    for (uint32_t j = 0; j < hidden; j++) {
        k->bound[j] = k->mag[j] * relative_bound(w) + fabs(k->want[j]) * (0x1p-8 + 0x1p-20);
        k->got[j] = kx_bf16_load(k->y[(uint64_t)slot * hidden + j]);
    }
    check_bound_f32(c, "y", k->got, k->want, k->bound, 1, hidden);
}

/* At most n_slots slots, the last ones (the shared expert) among them. */
static void compare_moe(check *c, const gpu_context *g, const moe *m, uint32_t n_slots)
{
    const uint32_t *lists = compare_lists(c, g, m);
    const uint32_t u = m->s->n_experts_used;
    const uint64_t widest = 2 * m->s->expert_width + m->s->hidden;
    slot_work k = {.sum = check_host(c, widest * 8),
                   .mag = check_host(c, widest * 8),
                   .want = check_host(c, widest * 8),
                   .bound = check_host(c, widest * 8),
                   .got = check_host(c, widest * 4),
                   .h = check_fetch(c, gpu_sub(m->scratch, m->l.h, m->l.y - m->l.h)),
                   .y = check_fetch(c, gpu_sub(m->scratch, m->l.y, m->l.total - m->l.y))};
    if (gemm_is_permuted(g)) {
        uint16_t *h = check_host(c, m->l.y - m->l.h);
        const uint32_t w = m->s->expert_width;
        for (uint32_t j = 0; j < m->l.n_slots * w; j++)
            h[j / w * w + GMM_COLUMN(j % w)] = k.h[j];
        k.h = h;
    }
    for (uint32_t i = 0; i < n_slots && !check_failed(c); i++) {
        const uint32_t slot = i == 0 ? m->l.n_slots - 1 : check_below(c, m->l.n_slots);
        uint32_t expert = m->s->n_experts;
        for (uint32_t p = 0; slot < m->n * u && p < m->n * u; p++)
            if (lists[m->l.slot_of / 4 + p] == slot) expert = m->ids[p];
        compare_slot(c, g, m, slot, expert, lists[m->l.slot_token / 4 + slot], &k);
    }
    const moe_combine_args a = {m->n, u, m->s->hidden};
    ref_moe_combine(&a, k.y, lists + m->l.slot_of / 4, m->weights, m->x);
    if (!check_timing(c)) check_same_f32(c, "x", check_fetch(c, m->vx), m->x, m->n, m->s->hidden);
}

static void moe_case(check *c, gpu_context *g, const moe *m, uint32_t n_slots)
{
    give_mm(c, g, m->n);
    op_moe_gemm(g, m->n, m->vxn, m->vids, m->vweights, &m->vbank, m->scratch, m->vx);
    if (check_run(c)) compare_moe(c, g, m, n_slots);
}

static uint32_t draw_n(check *c)
{
    static const uint32_t tokens[] = {1, 2, 5, 17, 33, 64, 65};
    return CHECK_PICK(c, tokens);
}

static void moe_nano(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const moe m = new_moe(c, &check_nano, draw_n(c), check_below(c, 2) != 0);
    moe_case(c, g, &m, 40);
}

static void moe_tile16(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    g->off[GPU_SW_tile32] = true;
    const moe m = new_moe(c, &check_nano, draw_n(c), true);
    moe_case(c, g, &m, 40);
}

static void moe_wide(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    g->off[GPU_SW_inline_dequant] = true;
    g->off[GPU_SW_tile32] = check_below(c, 2) != 0;
    const moe m = new_moe(c, &check_nano, draw_n(c), true);
    moe_case(c, g, &m, 40);
}

/* Up with codes as they lie and down on tiles, as the demonstration model; or both with codes. */
static void moe_codes(check *c)
{
    model_shape s = check_nano;
    if (check_below(c, 2) != 0) s.expert_width = s.shared_width = 256;
    gpu_context *g = check_context(c, &s);
    use_codes(c, g);
    g->off[GPU_SW_tile32] = check_below(c, 4) == 0;
    const moe m = new_moe(c, &s, draw_n(c), check_below(c, 2) != 0);
    moe_case(c, g, &m, 40);
}

/* Without gpu_routing: the lists come from the host. */
static void moe_host(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const moe m = new_moe(c, &check_nano, draw_n(c), false);
    uint32_t *image = check_host(c, op_moe_plan_bytes(m.s, m.n));
    give_mm(c, g, m.n); /* before the lists: they are those of its tiles */
    op_moe_plan_host(g, m.n, m.ids, image);
    calla_error err;
    gpu_device *d = check_device(c);
    const gpu_view lists = gpu_sub(m.scratch, 0, op_moe_plan_bytes(m.s, m.n));
    if (d->ops->write(d, lists, image, &err) != CALLA_OK) check_fail(c, "%s", err.message);
    op_moe_experts(g, m.n, m.vxn, m.vweights, &m.vbank, m.scratch, m.vx);
    if (check_run(c)) compare_moe(c, g, &m, 40);
}

/* Long lists, several rounds of a simdgroup, experts without slots. */
static void lists_only(check *c)
{
    model_shape s = shape_35b;
    s.n_experts = 8 + check_below(c, 300);
    s.n_experts_used = 1 + check_below(c, 8);
    gpu_context *g = check_context(c, &s);
    g->off[GPU_SW_tile32] = check_below(c, 2) != 0;
    const gpu_view any = check_view(c, "mm", 16, NULL); /* its tiles, not its products */
    g->native_mm = check_below(c, 2) != 0 ? GPU_MM_WGMMA : GPU_MM_TILES;
    g->mm = any;
    moe m = {.s = &s, .n = 1 + check_below(c, 400)};
    m.l = moe_layout_of(&s, m.n);
    m.ids = check_host(c, 4ull * m.n * s.n_experts_used);
    draw_ids(c, &s, m.n, check_below(c, 2) != 0, m.ids);
    check_shape(c, "T %u, %u of %u", m.n, s.n_experts_used, s.n_experts);
    m.scratch = check_view(c, "lists", m.l.plan_bytes, NULL);
    op_moe_plan(g, m.n, check_view(c, "ids", 4ull * m.n * s.n_experts_used, m.ids), m.scratch);
    if (check_run(c)) (void)compare_lists(c, g, &m);
}

static void moe_35b(check *c)
{
    static const uint32_t tokens[] = {1, 40, 130, 400};
    gpu_context *g = check_context(c, &shape_35b);
    g->mm_groups[1] = check_below(c, 2) != 0 ? 2 : 4;
    g->mm_groups[2] = check_below(c, 2) != 0 ? 2 : 4;
    const moe m = new_moe(c, &shape_35b, CHECK_PICK(c, tokens), check_below(c, 2) != 0);
    moe_case(c, g, &m, 60);
}

static void moe_35b_wide(check *c)
{
    gpu_context *g = check_context(c, &shape_35b);
    g->off[GPU_SW_inline_dequant] = true;
    const moe m = new_moe(c, &shape_35b, 1 + check_below(c, 200), check_below(c, 2) != 0);
    moe_case(c, g, &m, 40);
}

static void moe_35b_portable(check *c)
{
    gpu_context *g = check_context(c, &shape_35b);
    g->off[GPU_SW_tensor_main] = true;
    const moe m = new_moe(c, &shape_35b, 1 + check_below(c, 200), check_below(c, 2) != 0);
    moe_case(c, g, &m, 40);
}

/* ---- Timing ---- */

/* groups: of the native main loop; 0: the usual, 1: the portable tile. */
static gpu_context *time_context(check *c, uint8_t groups)
{
    gpu_context *g = check_context(c, &shape_35b);
    g->off[GPU_SW_tensor_main] = groups == 1;
    for (uint32_t i = 0; i < 3 && groups > 1; i++)
        g->mm_groups[i] = groups;
    return g;
}

static void time_dense(check *c, uint32_t n, uint32_t rows, uint32_t cols, uint8_t groups)
{
    gpu_context *g = time_context(c, groups);
    check_shape(c, "T %u, %u x %u", n, rows, cols);
    const matrix m = new_matrix(c, rows, cols);
    give_mm(c, g, n);
    op_gemm(g, n, check_view(c, "x", 2ull * n * cols, check_bf16s(c, (uint64_t)n * cols, -1, 1)),
            &m.q, false, check_view(c, "y", 4ull * n * rows, NULL));
    check_run(c);
}

static void time_moe(check *c, uint32_t n, uint8_t groups)
{
    gpu_context *g = time_context(c, groups);
    const moe m = new_moe(c, &shape_35b, n, false);
    give_mm(c, g, n);
    op_moe_gemm(g, n, m.vxn, m.vids, m.vweights, &m.vbank, m.scratch, m.vx);
    check_run(c);
}

static void time_moe_wide(check *c, uint32_t n)
{
    gpu_context *g = time_context(c, 0);
    g->off[GPU_SW_inline_dequant] = true;
    const moe m = new_moe(c, &shape_35b, n, false);
    give_mm(c, g, n);
    op_moe_gemm(g, n, m.vxn, m.vids, m.vweights, &m.vbank, m.scratch, m.vx);
    check_run(c);
}

#define TIME(name, call)                                                                           \
    static void name(check *c)                                                                     \
    {                                                                                              \
        call;                                                                                      \
    }
TIME(time_in_512, time_dense(c, 512, 12352, 2048, 0))
TIME(time_in, time_dense(c, 4096, 12352, 2048, 0))
TIME(time_in_2, time_dense(c, 4096, 12352, 2048, 2))
TIME(time_in_portable, time_dense(c, 4096, 12352, 2048, 1))
TIME(time_out, time_dense(c, 4096, 2048, 4096, 0))
TIME(time_out_2, time_dense(c, 4096, 2048, 4096, 2))
TIME(time_out_portable, time_dense(c, 4096, 2048, 4096, 1))
TIME(time_router, router(c, &shape_35b, 4096))
TIME(time_moe_4096_wide, time_moe_wide(c, 4096))
TIME(time_moe_256, time_moe(c, 256, 0))
TIME(time_moe_512, time_moe(c, 512, 0))
TIME(time_moe_2048, time_moe(c, 2048, 0))
TIME(time_moe_4096, time_moe(c, 4096, 0))
TIME(time_moe_4096_2, time_moe(c, 4096, 2))
TIME(time_moe_4096_4, time_moe(c, 4096, 4))
TIME(time_moe_4096_portable, time_moe(c, 4096, 1))

#define BIG (CHECK_BENCH | CHECK_ON_DEVICE)
const check_case check_gemm_cases[] = {{"gemm_dense", dense_inline, 0},
                                       {"gemm_dense_wide", dense_wide, 0},
                                       {"gemm_dense_35b", dense_35b, CHECK_ON_DEVICE},
                                       {"gemm_dense_35b_portable", dense_portable, CHECK_ON_DEVICE},
                                       {"gemm_dense_35b_wide", dense_35b_wide, CHECK_ON_DEVICE},
                                       {"gemm_dense_codes", dense_codes, 0},
                                       {"gemm_sums", sums, 0},
                                       {"gemm_expand", expansion, 0},
                                       {"gemm_permute", permutation, 0},
                                       {"gemm_router", router_nano, 0},
                                       {"gemm_router_35b", router_35b, CHECK_ON_DEVICE},
                                       {"moe_lists", lists_only, 0},
                                       {"moe", moe_nano, 0},
                                       {"moe_tile16", moe_tile16, 0},
                                       {"moe_wide", moe_wide, 0},
                                       {"moe_codes", moe_codes, 0},
                                       {"moe_host_lists", moe_host, 0},
                                       {"moe_35b", moe_35b, CHECK_ON_DEVICE},
                                       {"moe_35b_wide", moe_35b_wide, CHECK_ON_DEVICE},
                                       {"moe_35b_portable", moe_35b_portable, CHECK_ON_DEVICE},
                                       {"time_gemm_in_512", time_in_512, BIG},
                                       {"time_gemm_in_4096", time_in, BIG},
                                       {"time_gemm_in_4096_2", time_in_2, BIG},
                                       {"time_gemm_in_4096_portable", time_in_portable, BIG},
                                       {"time_gemm_out_4096", time_out, BIG},
                                       {"time_gemm_out_4096_2", time_out_2, BIG},
                                       {"time_gemm_out_4096_portable", time_out_portable, BIG},
                                       {"time_gemm_router_4096", time_router, BIG},
                                       {"time_moe_256", time_moe_256, BIG},
                                       {"time_moe_512", time_moe_512, BIG},
                                       {"time_moe_2048", time_moe_2048, BIG},
                                       {"time_moe_4096", time_moe_4096, BIG},
                                       {"time_moe_4096_2", time_moe_4096_2, BIG},
                                       {"time_moe_4096_4", time_moe_4096_4, BIG},
                                       {"time_moe_4096_portable", time_moe_4096_portable, BIG},
                                       {"time_moe_4096_wide", time_moe_4096_wide, BIG},
                                       {NULL, NULL, 0}};
