/* attn.h and attn_mma.h: decode and prefill attention. */
#include <string.h>

#include "check/check.h"
#include "kernels/args_util.h"
#include "kernels/ref_attn.h"

#define D ATTN_DIM

/* One drawn problem: shapes, inputs, caches. */
typedef struct problem {
    model_shape shape;
    attn_args a;
    uint32_t n_seqs, max_len;
    tok_entry *tok;
    seg_entry *seg;
    float *y, *rope, *q_norm, *k_norm;
    uint16_t *k, *v; /* before the step; the reference appends here */
    gpu_view vtok, vseg, vy, vrope, vscratch, vo;
    gpu_attn l;
} problem;

/* Query and KV heads: the two models, then groups that no quad divides. */
static void draw_heads(check *c, model_shape *s, bool any)
{
    static const uint32_t odd[][2] = {{3, 1}, {4, 2}, {10, 2}, {12, 1}, {16, 1}, {20, 1}, {6, 1}};
    *s = check_below(c, 2) == 0 ? check_nano : shape_35b;
    if (!any || check_below(c, 2) == 0) return;
    const uint32_t i = check_below(c, sizeof odd / sizeof *odd);
    s->n_heads = odd[i][0];
    s->n_kv_heads = odd[i][1];
}

static void draw_inputs(check *c, problem *p)
{
    const uint32_t n = p->a.n_tokens;
    p->y = check_floats(c, (uint64_t)n * p->a.y_pitch, -2, 2);
    p->rope = check_host(c, (uint64_t)n * 64 * 4);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < 32; i++) {
            const kx_sincos_result r = kx_sincos(check_uniform(c, 0, 1000));
            p->rope[t * 64 + i] = r.c;
            p->rope[t * 64 + 32 + i] = r.s;
        }
    p->q_norm = check_floats(c, D, 0.5f, 3);
    p->k_norm = check_floats(c, D, 0.5f, 3);
    /* Rows that no sequence has reached hold NaN: nobody may look. */
    const uint64_t rows = (uint64_t)p->a.n_kv_heads * p->a.n_rows;
    p->k = check_bf16s(c, rows * D, -2, 2);
    p->v = check_bf16s(c, rows * D, -2, 2);
}

static bool in_cache(const problem *p, uint32_t row)
{
    for (uint32_t t = 0; t < p->a.n_tokens; t++)
        if (row >= p->tok[t].kv_row && row < p->tok[t].kv_row + p->tok[t].pos) return true;
    return false;
}

static void spoil(problem *p)
{
    for (uint32_t h = 0; h < p->a.n_kv_heads; h++)
        for (uint32_t r = 0; r < p->a.n_rows; r++)
            for (uint32_t d = 0; d < D && !in_cache(p, r); d++) {
                p->k[((uint64_t)h * p->a.n_rows + r) * D + d] = 0x7fc0;
                p->v[((uint64_t)h * p->a.n_rows + r) * D + d] = 0x7fc0;
            }
}

static void make_views(check *c, problem *p, uint64_t scratch, uint32_t o_bytes)
{
    const uint64_t n = p->a.n_tokens, cache = (uint64_t)p->a.n_kv_heads * p->a.n_rows * D * 2;
    p->vtok = check_view(c, "tok", n * sizeof(tok_entry), p->tok);
    if (p->seg != NULL) p->vseg = check_view(c, "seg", p->n_seqs * sizeof(seg_entry), p->seg);
    p->vy = check_view(c, "y", n * p->a.y_pitch * 4, p->y);
    p->vrope = check_view(c, "rope", n * 256, p->rope);
    p->l.q_norm = check_view(c, "q_norm", D * 4, p->q_norm);
    p->l.k_norm = check_view(c, "k_norm", D * 4, p->k_norm);
    p->l.k = check_view(c, "k", cache, p->k);
    p->l.v = check_view(c, "v", cache, p->v);
    p->l.n_rows = p->a.n_rows;
    p->vscratch = check_view(c, "scratch", scratch, NULL);
    p->vo = check_view(c, "o", n * p->a.n_heads * D * o_bytes, NULL);
}

static void set_args(problem *p)
{
    const model_shape *s = &p->shape;
    p->a.n_heads = s->n_heads;
    p->a.n_kv_heads = s->n_kv_heads;
    p->a.group = s->n_heads / s->n_kv_heads;
    p->a.y_pitch = 2 * shape_q_width(s) + 2 * shape_kv_width(s);
    p->a.eps = s->rms_eps;
}

/* A decode batch: every token at the end of its own sequence, with gaps between sequences. One in
 * six is a single sequence of about `longest`. */
static void draw_step(check *c, problem *p, bool any_heads, uint32_t longest)
{
    static const uint32_t edges[] = {0, 1, 3, 4, 15, 16, 31, 32, 63, 64, 127};
    draw_heads(c, &p->shape, any_heads);
    set_args(p);
    const bool is_long = longest > 300 && check_below(c, 6) == 0;
    p->n_seqs = p->a.n_tokens = is_long ? 1 : 1 + check_below(c, 3);
    p->tok = check_host(c, p->n_seqs * sizeof *p->tok);
    for (uint32_t t = 0; t < p->n_seqs; t++) {
        uint32_t pos = check_below(c, 2) == 0 ? CHECK_PICK(c, edges) : check_below(c, 300);
        if (is_long) pos = longest - check_below(c, 400);
        p->a.n_rows += check_below(c, 5);
        p->tok[t] = (tok_entry){7, pos, t, p->a.n_rows};
        p->a.n_rows += pos + 1;
        if (pos + 1 > p->max_len) p->max_len = pos + 1;
    }
    p->a.n_rows += check_below(c, 40);
    draw_inputs(c, p);
    spoil(p);
}

static bool run_step(check *c, problem *p, gpu_context *g, uint32_t max_len)
{
    op_attn_step(g, p->a.n_tokens, max_len, p->vtok, &p->l, p->vy, p->vrope, p->vscratch, p->vo);
    return check_run(c);
}

static void same_cache(check *c, problem *p)
{
    const uint64_t rows = (uint64_t)p->a.n_kv_heads * p->a.n_rows;
    check_same_u16(c, "k", check_fetch(c, p->l.k), p->k, rows, D);
    check_same_u16(c, "v", check_fetch(c, p->l.v), p->v, rows, D);
}

/* All scalar forms. */
static void step(check *c)
{
    problem p = {0};
    draw_step(c, &p, true, 2300);
    gpu_context *g = check_context(c, &p.shape);
    g->off[GPU_SW_attn_mm] = true;
    g->off[GPU_SW_fuse_qkprep] = check_below(c, 2) == 0;
    g->off[GPU_SW_gqa_pack] = check_below(c, 2) == 0;
    g->off[GPU_SW_kv_coalesce] = check_below(c, 2) == 0;
    g->off[GPU_SW_attn_blocks] = check_below(c, 4) == 0;
    const uint32_t max_len = p.max_len + check_below(c, 300);
    check_shape(c, "heads %u/%u tokens %u length %u rows %u%s%s%s%s", p.a.n_heads, p.a.n_kv_heads,
                p.a.n_tokens, p.max_len, p.a.n_rows,
                g->off[GPU_SW_fuse_qkprep] ? " -fuse_qkprep" : "",
                g->off[GPU_SW_gqa_pack] ? " -gqa_pack" : "",
                g->off[GPU_SW_kv_coalesce] ? " -kv_coalesce" : "",
                g->off[GPU_SW_attn_blocks] ? " -attn_blocks" : "");
    make_views(c, &p, op_attn_step_scratch(&p.shape, p.a.n_tokens, max_len), 4);
    if (!run_step(c, &p, g, max_len)) return;

    const uint64_t n_out = (uint64_t)p.a.n_tokens * p.a.n_heads;
    float *q = check_host(c, n_out * D * 4), *want = check_host(c, n_out * D * 4);
    const bool strided = g->off[GPU_SW_kv_coalesce];
    p.a.one = g->off[GPU_SW_attn_blocks];
    ref_attn_prepare(&p.a, p.tok, p.y, p.rope, p.q_norm, p.k_norm,
                     strided && !g->off[GPU_SW_fuse_qkprep], false, p.k, p.v, q);
    same_cache(c, &p);
    const bool pack = !g->off[GPU_SW_gqa_pack] && p.a.group <= 16;
    ref_attn_step(&p.a, p.tok, p.y, q, p.k, p.v, strided, pack ? 4 : 1, want);
    check_same_f32(c, "o", check_fetch(c, p.vo), want, n_out, D);
    float *exact = check_host(c, n_out * D * 4);
    ref_attn_exact(&p.a, p.tok, p.y, q, p.k, p.v, exact);
    check_close_f32(c, "the reference's o", want, exact, n_out, D, 3e-5, 0);
}

static void step_mma(check *c)
{
    problem p = {0};
    draw_step(c, &p, false, check_on_emulator(c) ? 2300 : 30000);
    if (check_below(c, 3) == 0) { /* fewer heads than rows of a product */
        p.shape.n_heads = 3 * p.shape.n_kv_heads;
        set_args(&p);
        p.y = check_floats(c, (uint64_t)p.a.n_tokens * p.a.y_pitch, -2, 2);
    }
    gpu_context *g = check_context(c, &p.shape);
    if (check_draws_native(c)) g->native_mm = GPU_MM_WGMMA;
    g->off[GPU_SW_fuse_qkprep] = check_below(c, 2) == 0;
    g->off[GPU_SW_attn_blocks] = check_below(c, 4) == 0;
    check_shape(c, "heads %u/%u tokens %u length %u rows %u%s%s", p.a.n_heads, p.a.n_kv_heads,
                p.a.n_tokens, p.max_len, p.a.n_rows,
                g->off[GPU_SW_fuse_qkprep] ? " -fuse_qkprep" : "",
                g->off[GPU_SW_attn_blocks] ? " -attn_blocks" : "");
    make_views(c, &p, op_attn_step_scratch(&p.shape, p.a.n_tokens, p.max_len), 4);
    if (!run_step(c, &p, g, p.max_len)) return;

    const uint64_t n_out = (uint64_t)p.a.n_tokens * p.a.n_heads;
    float *q = check_host(c, n_out * D * 4), *want = check_host(c, n_out * D * 4);
    ref_attn_prepare(&p.a, p.tok, p.y, p.rope, p.q_norm, p.k_norm, false, false, p.k, p.v, q);
    same_cache(c, &p);
    ref_attn_exact(&p.a, p.tok, p.y, q, p.k, p.v, want);
    check_close_f32(c, "o", check_fetch(c, p.vo), want, n_out, D, 2.0 / 512 + 1e-4, 0);
}

/* Neither the bound of the grid nor the rest of the batch shows in a token's result. */
static void step_alone(check *c)
{
    problem p = {0};
    draw_step(c, &p, false, check_on_emulator(c) ? 2300 : 30000);
    gpu_context *g = check_context(c, &p.shape);
    if (check_draws_native(c)) g->native_mm = check_below(c, 2) == 0 ? GPU_MM_WGMMA : GPU_MM_TILES;
    check_shape(c, "heads %u/%u tokens %u length %u%s", p.a.n_heads, p.a.n_kv_heads, p.a.n_tokens,
                p.max_len, g->native_mm ? " native" : "");
    make_views(c, &p, op_attn_step_scratch(&p.shape, p.a.n_tokens, 4096), 4);
    if (!run_step(c, &p, g, p.max_len)) return;
    const uint64_t heads = p.a.n_heads;
    const float *all = check_fetch(c, p.vo);
    for (uint32_t t = 0; t < p.a.n_tokens; t++) {
        op_attn_step(g, 1, p.tok[t].pos + 1 + check_below(c, 200), gpu_sub(p.vtok, t * 16, 16),
                     &p.l, gpu_sub(p.vy, (uint64_t)t * p.a.y_pitch * 4, (uint64_t)p.a.y_pitch * 4),
                     gpu_sub(p.vrope, t * 256, 256), p.vscratch, p.vo);
        if (!check_run(c)) return;
        check_same_f32(c, "o alone", check_fetch(c, p.vo), all + t * heads * D, heads, D);
    }
}

/* A prefill batch: segments that continue sequences. */
static void draw_scan(check *c, problem *p, bool any_heads, uint32_t most)
{
    draw_heads(c, &p->shape, any_heads);
    set_args(p);
    p->n_seqs = 1 + check_below(c, 3);
    p->seg = check_host(c, p->n_seqs * sizeof *p->seg);
    p->tok = check_host(c, (uint64_t)p->n_seqs * most * sizeof *p->tok);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const uint32_t pos = check_below(c, 2) * check_below(c, 150), n = 1 + check_below(c, most);
        p->a.n_rows += check_below(c, 5);
        p->seg[i] = (seg_entry){p->a.n_tokens, n, i, p->a.n_rows, pos, {0, 0, 0}};
        for (uint32_t t = 0; t < n; t++)
            p->tok[p->a.n_tokens + t] = (tok_entry){7, pos + t, i, p->a.n_rows};
        p->a.n_tokens += n;
        p->a.n_rows += pos + n;
        if (pos + n > p->max_len) p->max_len = pos + n;
    }
    p->a.n_rows += check_below(c, 70);
    p->a.n_segs = p->n_seqs;
    draw_inputs(c, p);
    spoil(p);
}

static bool run_scan(check *c, problem *p, gpu_context *g)
{
    op_attn_scan(g, p->a.n_tokens, p->n_seqs, p->max_len, p->vtok, p->vseg, &p->l, p->vy, p->vrope,
                 p->vscratch, p->vo);
    return check_run(c);
}

static void scan(check *c)
{
    problem p = {0};
    draw_scan(c, &p, true, 20);
    gpu_context *g = check_context(c, &p.shape);
    g->off[GPU_SW_attn_mm] = true;
    check_shape(c, "heads %u/%u tokens %u segments %u length %u", p.a.n_heads, p.a.n_kv_heads,
                p.a.n_tokens, p.n_seqs, p.max_len);
    make_views(c, &p, op_attn_scan_scratch(&p.shape, p.a.n_tokens, p.n_seqs), 2);
    if (!run_scan(c, &p, g)) return;
    const uint64_t n_out = (uint64_t)p.a.n_tokens * p.a.n_heads;
    float *q = check_host(c, n_out * D * 4);
    uint16_t *want = check_host(c, n_out * D * 2);
    ref_attn_prepare(&p.a, p.tok, p.y, p.rope, p.q_norm, p.k_norm, false, true, p.k, p.v, q);
    same_cache(c, &p);
    ref_attn_scan(&p.a, p.tok, p.y, q, p.k, p.v, want);
    check_same_u16(c, "o", check_fetch(c, p.vo), want, n_out, D);
}

/* Of bf16 weights: 2^-9 of the largest |v|; of rounding o: 2^-9 of itself. */
static void scan_tiles(check *c, bool native)
{
    problem p = {0};
    draw_scan(c, &p, true, 40);
    gpu_context *g = check_context(c, &p.shape);
    if (check_draws_native(c)) g->native_mm = native ? GPU_MM_WGMMA : GPU_MM_TILES;
    g->off[GPU_SW_tensor_main] = !native;
    check_shape(c, "heads %u/%u tokens %u segments %u length %u", p.a.n_heads, p.a.n_kv_heads,
                p.a.n_tokens, p.n_seqs, p.max_len);
    make_views(c, &p, op_attn_scan_scratch(&p.shape, p.a.n_tokens, p.n_seqs), 2);
    if (!run_scan(c, &p, g)) return;
    const uint64_t n_out = (uint64_t)p.a.n_tokens * p.a.n_heads;
    float *q = check_host(c, n_out * D * 4), *want = check_host(c, n_out * D * 4);
    float *got = check_host(c, n_out * D * 4);
    ref_attn_prepare(&p.a, p.tok, p.y, p.rope, p.q_norm, p.k_norm, false, true, p.k, p.v, q);
    same_cache(c, &p);
    ref_attn_exact(&p.a, p.tok, p.y, q, p.k, p.v, want);
    const uint16_t *o = check_fetch(c, p.vo);
    for (uint64_t i = 0; i < n_out * D; i++)
        got[i] = kx_bf16_load(o[i]);
    check_close_f32(c, "o", got, want, n_out, D, 2.0 / 512 + 1e-4, 1.0 / 512);
}

static void scan_mma(check *c)
{
    scan_tiles(c, true);
}

static void scan_mm(check *c)
{
    scan_tiles(c, false);
}

/* One prompt in one piece, and in two: the same bits. */
static void scan_chunks(check *c)
{
    problem p = {0};
    draw_heads(c, &p.shape, false);
    set_args(&p);
    const uint32_t n = 2 + check_below(c, 100), cut = 1 + check_below(c, n - 1);
    p.n_seqs = 1;
    p.a.n_tokens = p.a.n_rows = p.max_len = n;
    const seg_entry segs[3] = {{0, n, 0, 0, 0, {0, 0, 0}},
                               {0, cut, 0, 0, 0, {0, 0, 0}},
                               {0, n - cut, 0, 0, cut, {0, 0, 0}}};
    p.tok = check_host(c, (uint64_t)n * sizeof *p.tok);
    for (uint32_t t = 0; t < n; t++)
        p.tok[t] = (tok_entry){7, t, 0, 0};
    draw_inputs(c, &p);
    p.seg = check_host(c, sizeof segs);
    memcpy(p.seg, segs, sizeof segs);
    p.n_seqs = 3;
    gpu_context *g = check_context(c, &p.shape);
    if (check_draws_native(c)) g->native_mm = GPU_MM_WGMMA;
    g->off[GPU_SW_tensor_main] = check_below(c, 2) == 0;
    g->off[GPU_SW_attn_mm] = check_below(c, 3) == 0;
    check_shape(c, "heads %u/%u tokens %u cut at %u%s%s", p.a.n_heads, p.a.n_kv_heads, n, cut,
                g->off[GPU_SW_tensor_main] ? " -tensor_main" : "",
                g->off[GPU_SW_attn_mm] ? " -attn_mm" : "");
    make_views(c, &p, op_attn_scan_scratch(&p.shape, n, 1), 2);
    const gpu_view seg = p.vseg, tok = p.vtok;
    p.n_seqs = 1;
    if (!run_scan(c, &p, g)) return;
    const uint64_t row = (uint64_t)p.a.n_heads * D;
    const uint16_t *whole = check_fetch(c, p.vo);
    for (uint32_t i = 1; i < 3; i++) {
        const uint64_t from = segs[i].pos, m = segs[i].n;
        p.a.n_tokens = segs[i].n;
        p.vseg = gpu_sub(seg, i * sizeof *segs, sizeof *segs);
        p.vtok = gpu_sub(tok, from * 16, m * 16);
        op_attn_scan(g, segs[i].n, 1, (uint32_t)(from + m), p.vtok, p.vseg, &p.l,
                     gpu_sub(p.vy, from * p.a.y_pitch * 4, m * p.a.y_pitch * 4),
                     gpu_sub(p.vrope, from * 256, m * 256), p.vscratch, p.vo);
        if (!check_run(c)) return;
        check_same_u16(c, "o in two pieces", check_fetch(c, gpu_sub(p.vo, 0, m * row * 2)),
                       whole + from * row, m * p.a.n_heads, D);
    }
}

/* ---- timing ---- */

#define BENCH_LAYERS 10u /* so that the caches do not stay in the device's own cache */

/* Caches of `layers` layers of n rows, filled by the device. */
static void bench_cache(check *c, problem *p, uint32_t n, uint32_t layers)
{
    gpu_context *g = check_context(c, &p->shape);
    const uint64_t bytes = (uint64_t)layers * p->a.n_kv_heads * n * D * 2;
    const util_fill_args fill = {(uint32_t)(bytes / 4), 0x3c103c00};
    gpu_view *const views[] = {&p->l.k, &p->l.v};
    for (uint32_t i = 0; i < 2; i++) {
        *views[i] = check_view(c, i == 0 ? "k" : "v", bytes, NULL);
        rec_dispatch(g->rec, KERNEL_util_fill, (fill.n + 1023) / 1024, 1);
        rec_write(g->rec, *views[i]);
        rec_args(g->rec, &fill, sizeof fill);
    }
    p->l.n_rows = p->a.n_rows = n;
}

/* One sequence of n keys; the last n_new are the batch. Values without meaning. */
static void bench_inputs(check *c, problem *p, uint32_t n, uint32_t n_new)
{
    p->shape = shape_35b;
    set_args(p);
    p->n_seqs = 1;
    p->max_len = n;
    p->a.n_tokens = n_new;
    p->tok = check_host(c, (uint64_t)n_new * sizeof *p->tok);
    for (uint32_t t = 0; t < n_new; t++)
        p->tok[t] = (tok_entry){7, n - n_new + t, 0, 0};
    const seg_entry seg = {0, n_new, 0, 0, n - n_new, {0, 0, 0}};
    const uint64_t y = (uint64_t)n_new * p->a.y_pitch;
    p->vtok = check_view(c, "tok", (uint64_t)n_new * sizeof(tok_entry), p->tok);
    p->vseg = check_view(c, "seg", sizeof seg, &seg);
    p->vy = check_view(c, "y", y * 4, check_floats(c, y, -2, 2));
    p->vrope =
        check_view(c, "rope", (uint64_t)n_new * 256, check_floats(c, (uint64_t)n_new * 64, -1, 1));
    p->l.q_norm = check_view(c, "q_norm", D * 4, check_floats(c, D, 1, 2));
    p->l.k_norm = check_view(c, "k_norm", D * 4, check_floats(c, D, 1, 2));
    p->vo = check_view(c, "o", (uint64_t)n_new * p->a.n_heads * D * 4, NULL);
}

typedef struct bench_form {
    const char *label;
    gpu_switch off[2];
    uint32_t n_off;
} bench_form;

/* All attention of one decode step; the dispatches that fill the caches are not timed. */
static void bench_step(check *c, uint32_t n, const bench_form *f)
{
    problem p = {0};
    n = check_on_emulator(c) && n > 512 ? 512 : n;
    bench_inputs(c, &p, n, 1);
    bench_cache(c, &p, n, BENCH_LAYERS);
    if (!check_run_once(c)) return;
    gpu_context *g = check_context(c, &p.shape);
    for (uint32_t i = 0; i < f->n_off; i++)
        g->off[f->off[i]] = true;
    const uint64_t cache = (uint64_t)p.a.n_kv_heads * n * D * 2;
    const gpu_attn all = p.l;
    p.vscratch = check_view(c, "scratch", op_attn_step_scratch(&p.shape, 1, n), NULL);
    for (uint32_t i = 0; i < BENCH_LAYERS; i++) {
        p.l.k = gpu_sub(all.k, i * cache, cache);
        p.l.v = gpu_sub(all.v, i * cache, cache);
        op_attn_step(g, 1, n, p.vtok, &p.l, p.vy, p.vrope, p.vscratch, p.vo);
    }
    check_shape(c, "%u layers, n %u%s", BENCH_LAYERS, n, f->label);
    (void)check_run(c);
}

static const bench_form forms[] = {{"", {0}, 0},
                                   {" -attn_mm", {GPU_SW_attn_mm}, 1},
                                   {" -fuse_qkprep", {GPU_SW_fuse_qkprep}, 1},
                                   {" -attn_blocks", {GPU_SW_attn_blocks}, 1},
                                   {" -kv_coalesce", {GPU_SW_kv_coalesce}, 1},
                                   {" -gqa_pack", {GPU_SW_gqa_pack}, 1}};

#define BENCH_STEP(name, n)                                                                        \
    static void name(check *c)                                                                     \
    {                                                                                              \
        bench_step(c, n, &forms[0]);                                                               \
    }
BENCH_STEP(bench_step_256, 256)
BENCH_STEP(bench_step_1k, 1024)
BENCH_STEP(bench_step_4k, 4096)
BENCH_STEP(bench_step_8k, 8192)
BENCH_STEP(bench_step_32k, 32768)
BENCH_STEP(bench_step_128k, 131072)

static void bench_forms_4k(check *c)
{
    for (uint32_t i = 1; i < sizeof forms / sizeof *forms; i++)
        bench_step(c, 4096, &forms[i]);
}

static void bench_forms_32k(check *c)
{
    for (uint32_t i = 1; i < sizeof forms / sizeof *forms; i++)
        bench_step(c, 32768, &forms[i]);
}

/* One layer; 2,048 new tokens at the end of n. */
static void bench_scan(check *c, uint32_t n, const bench_form *f)
{
    problem p = {0};
    const uint32_t n_new = check_on_emulator(c) ? 64 : 2048;
    n = check_on_emulator(c) ? n / 512 : n;
    bench_inputs(c, &p, n > n_new ? n : n_new, n_new);
    bench_cache(c, &p, p.max_len, 1);
    if (!check_run_once(c)) return;
    gpu_context *g = check_context(c, &p.shape);
    for (uint32_t i = 0; i < f->n_off; i++)
        g->off[f->off[i]] = true;
    p.vscratch = check_view(c, "scratch", op_attn_scan_scratch(&p.shape, n_new, 1), NULL);
    check_shape(c, "%u tokens, n %u%s", n_new, p.max_len, f->label);
    (void)run_scan(c, &p, g);
}

#define BENCH_SCAN(name, n)                                                                        \
    static void name(check *c)                                                                     \
    {                                                                                              \
        bench_scan(c, n, &forms[0]);                                                               \
    }
BENCH_SCAN(bench_scan_2k, 2048)
BENCH_SCAN(bench_scan_32k, 32768)
BENCH_SCAN(bench_scan_128k, 131072)

static void bench_scan_forms(check *c)
{
    static const uint32_t n[] = {2048, 32768};
    static const bench_form older[] = {{" -tensor_main", {GPU_SW_tensor_main}, 1},
                                       {" -attn_mm", {GPU_SW_attn_mm}, 1}};
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t j = 0; j < 2; j++)
            bench_scan(c, n[i], &older[j]);
}

const check_case check_attn_cases[] = {{"attn_step", step, 0},
                                       {"attn_step_mma", step_mma, 0},
                                       {"attn_step_alone", step_alone, 0},
                                       {"attn_scan", scan, 0},
                                       {"attn_scan_mma", scan_mma, 0},
                                       {"attn_scan_mm", scan_mm, 0},
                                       {"attn_scan_chunks", scan_chunks, 0},
                                       {"attn_step_256", bench_step_256, CHECK_BENCH},
                                       {"attn_step_1k", bench_step_1k, CHECK_BENCH},
                                       {"attn_step_4k", bench_step_4k, CHECK_BENCH},
                                       {"attn_step_8k", bench_step_8k, CHECK_BENCH},
                                       {"attn_step_32k", bench_step_32k, CHECK_BENCH},
                                       {"attn_step_128k", bench_step_128k, CHECK_BENCH},
                                       {"attn_forms_4k", bench_forms_4k, CHECK_BENCH},
                                       {"attn_forms_32k", bench_forms_32k, CHECK_BENCH},
                                       {"attn_scan_2k", bench_scan_2k, CHECK_BENCH},
                                       {"attn_scan_32k", bench_scan_32k, CHECK_BENCH},
                                       {"attn_scan_128k", bench_scan_128k, CHECK_BENCH},
                                       {"attn_scan_forms", bench_scan_forms, CHECK_BENCH},
                                       {NULL, NULL, 0}};
