/* gemv.h: projections, router, experts of decode; every switch, one to sixteen tokens. */
#include <string.h>

#include "check/check.h"
#include "kernels/ref_basic.h"
#include "kernels/ref_gemv.h"

typedef struct matrix {
    ref_matrix host;
    gpu_q4 dev;
} matrix;

static matrix any_matrix(check *c, uint32_t rows, uint32_t cols)
{
    const uint64_t n_codes = (uint64_t)rows * cols / 8, n_groups = (uint64_t)rows * cols / 64;
    matrix m = {.host = {check_words(c, n_codes), check_scales(c, n_groups, -8), rows, cols}};
    m.dev = (gpu_q4){check_view(c, "codes", n_codes * 4, m.host.codes),
                     check_view(c, "sb", n_groups * 4, m.host.sb), rows, cols};
    return m;
}

/* ---- Projections ---- */

typedef struct gemv_case {
    uint32_t rows, cols, n;
    bool norm, rows_of, add, no_fold, no_rows;
} gemv_case;

/* What the product reads with norm_fold off. */
static void ref_norm_f32(const float *x, const float *norm, uint32_t n, float eps, float *y)
{
    const float inv = ref_rms_inverse(x, n, eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inv * norm[i];
}

static void want_gemv(const gemv_case *k, const matrix *w, const float *x, const float *norm,
                      float eps, float *scratch, float *y)
{
    if (norm != NULL && k->no_fold) {
        ref_norm_f32(x, norm, k->cols, eps, scratch);
        ref_gemv(&w->host, scratch, NULL, eps, y);
    } else {
        ref_gemv(&w->host, x, norm, eps, y);
    }
}

static void run_gemv(check *c, gemv_case k)
{
    gpu_context *g = check_context(c, &shape_35b);
    g->off[GPU_SW_norm_fold] = k.no_fold;
    g->off[GPU_SW_gemv_rows] = k.no_rows;
    const uint32_t n_x = k.rows_of ? k.n + 3 : k.n;
    check_shape(c, "T %u, %u x %u%s%s%s%s%s", k.n, k.rows, k.cols, k.norm ? ", norm" : "",
                k.rows_of ? ", rows_of" : "", k.add ? ", add" : "", k.no_fold ? ", no fold" : "",
                k.no_rows ? ", gemv_rows off" : "");
    const matrix w = any_matrix(c, k.rows, k.cols);
    const float *x = check_floats(c, (uint64_t)n_x * k.cols, -2, 2);
    const float *norm = check_floats(c, k.cols, 0.5f, 1.5f);
    uint32_t *rows_of = check_host(c, k.n * 4);
    for (uint32_t t = 0; t < k.n; t++)
        rows_of[t] = k.rows_of ? check_below(c, n_x) : t;
    const float *y0 = check_floats(c, (uint64_t)k.n * k.rows, -1, 1);
    const gpu_view vx = check_view(c, "x", (uint64_t)n_x * k.cols * 4, x), none = {NULL, 0, 0};
    const gpu_view y = check_view(c, "y", (uint64_t)k.n * k.rows * 4, k.add ? y0 : NULL);
    const gpu_view scratch = check_view(c, "scratch", op_gemv_scratch(&shape_35b, k.n), NULL);
    if (k.add)
        op_gemv_add(g, k.n, vx, &w.dev, scratch, y);
    else
        op_gemv(g, k.n, vx, n_x, k.norm ? check_view(c, "norm", k.cols * 4, norm) : none,
                k.rows_of ? check_view(c, "rows_of", k.n * 4, rows_of) : none, &w.dev, scratch, y);
    if (!check_run(c)) return;
    float *want = check_host(c, (uint64_t)k.n * k.rows * 4), *in = check_host(c, k.cols * 4);
    for (uint32_t t = 0; t < k.n; t++) {
        float *row = want + (size_t)t * k.rows;
        want_gemv(&k, &w, x + (size_t)rows_of[t] * k.cols, k.norm ? norm : NULL, shape_35b.rms_eps,
                  in, row);
        for (uint32_t i = 0; k.add && i < k.rows; i++)
            row[i] = y0[(size_t)t * k.rows + i] + row[i];
    }
    check_same_f32(c, "y", check_fetch(c, y), want, k.n, k.rows);
}

static gemv_case any_gemv(check *c)
{
    static const uint32_t widths[] = {64, 128, 256, 448, 1024, 1088, 2048, 2048, 4096, 4096};
    gemv_case k = {.rows =
                       check_below(c, 2) == 0 ? 1 + check_below(c, 70) : 4 + 4 * check_below(c, 20),
                   .cols = CHECK_PICK(c, widths),
                   .n = 1};
    k.add = check_below(c, 3) == 0;
    k.norm = !k.add && check_below(c, 3) != 0;
    k.rows_of = !k.add && check_below(c, 4) == 0;
    return k;
}

static void gemv_one(check *c)
{
    run_gemv(c, any_gemv(c));
}

static void gemv_many(check *c)
{
    gemv_case k = any_gemv(c);
    k.n = 2 + check_below(c, 15);
    run_gemv(c, k);
}

static void gemv_unfolded(check *c)
{
    gemv_case k = any_gemv(c);
    k.n = 1 + check_below(c, 4);
    k.norm = !k.add;
    k.no_fold = true;
    run_gemv(c, k);
}

static void gemv_row(check *c)
{
    static const uint32_t widths[] = {64, 448, 2048, 4096, 6144};
    gemv_case k = any_gemv(c);
    k.cols = CHECK_PICK(c, widths);
    k.n = 1 + check_below(c, 3);
    k.no_rows = true;
    run_gemv(c, k);
}

/* The model's own sizes: grids whose groups take several turns. */
static void gemv_real(check *c)
{
    static const uint32_t rows[] = {12352, 9216, 2048, 60000};
    gemv_case k = {.rows = CHECK_PICK(c, rows), .cols = 2048};
    k.n = check_below(c, 2) == 0 ? 1 : 1 + check_below(c, 16);
    k.add = k.rows == 2048;
    if (k.add) k.cols = 4096;
    k.norm = !k.add;
    run_gemv(c, k);
}

/* ---- Router ---- */

static void router(check *c)
{
    model_shape s = check_below(c, 2) == 0 ? check_nano : shape_35b;
    if (check_below(c, 3) == 0) s.hidden = 64 * (1 + check_below(c, 20));
    gpu_context *g = check_context(c, &s);
    g->off[GPU_SW_router_tail] = check_below(c, 3) == 0;
    const uint32_t n = check_below(c, 3) != 0 ? 1 : 1 + check_below(c, 16);
    const uint32_t h = s.hidden, e = s.n_experts, u = s.n_experts_used;
    check_shape(c, "T %u, H %u, E %u%s", n, h, e, g->off[GPU_SW_router_tail] ? ", no tail" : "");
    const ref_matrix w = {check_words(c, (uint64_t)(e + 1) * h / 4),
                          check_scales(c, (uint64_t)(e + 1) * h / 64, -128), e + 1, h};
    const gpu_q8 router = {check_view(c, "codes", (uint64_t)(e + 1) * h, w.codes),
                           check_view(c, "sb", (uint64_t)(e + 1) * h / 16, w.sb), e + 1, h};
    const float *x = check_floats(c, (uint64_t)n * h, -2, 2);
    const float *norm = check_floats(c, h, 0.5f, 1.5f);
    const uint64_t scratch_bytes = op_router_scratch(&s, n);
    const gpu_view scratch = check_view(c, "scratch", scratch_bytes, check_host(c, scratch_bytes));
    const gpu_view ids = check_view(c, "ids", n * u * 4, NULL);
    const gpu_view weights = check_view(c, "weights", n * (u + 1) * 4, NULL);
    const gpu_view vx = check_view(c, "x", (uint64_t)n * h * 4, x);
    const gpu_view vnorm = check_view(c, "norm", h * 4, norm);
    for (int turn = 0; turn < 2; turn++) /* the second finds the counters as the first left them */
        op_router(g, n, vx, vnorm, &router, scratch, ids, weights);
    if (!check_run(c)) return;
    float *logits = check_host(c, (uint64_t)n * (e + 1) * 4);
    for (uint32_t t = 0; t < n; t++)
        ref_router(&w, x + (size_t)t * h, norm, s.rms_eps, logits + (size_t)t * (e + 1));
    uint32_t *want_ids = check_host(c, n * u * 4);
    float *want = check_host(c, n * (u + 1) * 4);
    ref_top8(n, e, u, logits, want_ids, want);
    check_same_u32(c, "ids", check_fetch(c, ids), want_ids, n, u);
    check_same_f32(c, "weights", check_fetch(c, weights), want, n, u + 1);
    const uint32_t *counters = check_fetch(c, gpu_sub(scratch, 0, 4096));
    for (uint32_t i = 0; i < 1024; i++)
        if (counters[i] != 0) check_fail(c, "counter %u is %u, expected 0", i, counters[i]);
}

/* ---- Experts ---- */

typedef struct moe_case {
    model_shape s;
    uint32_t n;
    bool no_gateup, no_down, no_rows;
} moe_case;

static void run_moe(check *c, const moe_case *k)
{
    const model_shape *s = &k->s;
    gpu_context *g = check_context(c, s);
    g->off[GPU_SW_fuse_gateup] = k->no_gateup;
    g->off[GPU_SW_fuse_down] = k->no_down;
    g->off[GPU_SW_gemv_rows] = k->no_rows;
    const uint32_t n = k->n, h = s->hidden, w = s->expert_width, u = s->n_experts_used;
    check_shape(c, "T %u, H %u, W %u%s%s%s", n, h, w, k->no_gateup ? ", no fuse_gateup" : "",
                k->no_down ? ", no fuse_down" : "", k->no_rows ? ", no gemv_rows" : "");
    const uint32_t slab_words = h * w / 64 * 27;
    uint32_t *slabs = check_words(c, (uint64_t)(s->n_experts + 1) * slab_words);
    for (uint32_t e = 0; e <= s->n_experts; e++) {
        uint32_t *slab = slabs + (size_t)e * slab_words;
        memcpy(slab + h * w / 4, check_scales(c, h * w / 32, -8), h * w / 32 * 4);
        memcpy(slab + h * w / 32 * 13, check_scales(c, h * w / 64, -8), h * w / 64 * 4);
    }
    const float *x = check_floats(c, (uint64_t)n * h, -2, 2);
    const float *norm = check_floats(c, h, 0.5f, 1.5f);
    const float *weights = check_floats(c, (uint64_t)n * (u + 1), 0, 1);
    uint32_t *ids = check_host(c, (uint64_t)n * u * 4);
    for (uint32_t i = 0; i < n * u; i++)
        ids[i] = check_below(c, s->n_experts);
    const gpu_bank bank = {
        check_view(c, "slabs", (uint64_t)(s->n_experts + 1) * slab_words * 4, slabs),
        slab_words * 4};
    const gpu_view vx = check_view(c, "x", (uint64_t)n * h * 4, x);
    op_moe(g, n, vx, check_view(c, "norm", h * 4, norm), check_view(c, "ids", n * u * 4, ids),
           check_view(c, "weights", n * (u + 1) * 4, weights), &bank,
           check_view(c, "scratch", op_moe_scratch(s, n), NULL));
    if (!check_run(c)) return;
    const ref_experts m = {slabs, slab_words, h, w, s->n_experts, u};
    float *want = check_host(c, (uint64_t)n * h * 4), *hidden = check_host(c, (u + 1) * w * 4);
    memcpy(want, x, (size_t)n * h * 4);
    for (uint32_t t = 0; t < n; t++) {
        ref_gateup(&m, x + (size_t)t * h, norm, s->rms_eps, ids + (size_t)t * u, hidden);
        (k->no_down || k->no_rows ? ref_down_separate : ref_down)(
            &m, hidden, ids + (size_t)t * u, weights + (size_t)t * (u + 1), want + (size_t)t * h);
    }
    check_same_f32(c, "x", check_fetch(c, vx), want, n, h);
}

/* Wide rows with few experts and outputs: the emulator is slow. */
static moe_case any_moe(check *c)
{
    moe_case k = {.s = check_nano, .n = 1};
    if (check_below(c, 2) == 0) {
        k.s = shape_35b;
        k.s.n_experts = 4;
        k.s.n_experts_used = 1 + check_below(c, 3);
        k.s.expert_width = 64 * (1 + check_below(c, 3));
    }
    return k;
}

static void moe_one(check *c)
{
    const moe_case k = any_moe(c);
    run_moe(c, &k);
}

static void moe_wide(check *c)
{
    moe_case k = {.s = check_nano, .n = 1};
    k.s.expert_width = 512;
    k.s.n_experts = 10;
    run_moe(c, &k);
}

static void moe_real(check *c)
{
    moe_case k = {.s = shape_35b};
    k.s.n_experts = 32;
    k.n = check_below(c, 2) == 0 ? 1 : 1 + check_below(c, 16);
    run_moe(c, &k);
}

static void moe_many(check *c)
{
    moe_case k = {.s = check_nano, .n = 2 + check_below(c, 15)};
    run_moe(c, &k);
}

static void moe_separate(check *c)
{
    moe_case k = any_moe(c);
    const uint32_t how = check_below(c, 3);
    k.no_gateup = how == 0;
    k.no_down = how == 1;
    k.no_rows = how == 2;
    k.n = 1 + check_below(c, 2);
    run_moe(c, &k);
}

const check_case check_gemv_cases[] = {
    {"gemv_one", gemv_one, 0},
    {"gemv_many", gemv_many, 0},
    {"gemv_unfolded", gemv_unfolded, 0},
    {"gemv_row", gemv_row, 0},
    {"gemv_router", router, 0},
    {"gemv_moe_one", moe_one, 0},
    {"gemv_moe_wide", moe_wide, 0},
    {"gemv_moe_many", moe_many, 0},
    {"gemv_moe_separate", moe_separate, 0},
    {"gemv_real", gemv_real, CHECK_ON_DEVICE},
    {"gemv_moe_real", moe_real, CHECK_ON_DEVICE},
    {NULL, NULL, 0},
};
