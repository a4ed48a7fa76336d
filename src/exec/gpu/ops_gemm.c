/* Products of prefill: dense matrices, router, routing lists, experts. */
#include "exec/gpu/ops_gemm.h"

#include "kernels/ref_gemm.h"

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- Dense ---- */

static bool is_wide(const gpu_context *g)
{
    return g->off[GPU_SW_inline_dequant];
}

bool gemm_is_native(const gpu_context *g)
{
    return g->native_mm == GPU_MM_WGMMA && g->mm.buf != NULL && !g->off[GPU_SW_tensor_main];
}

bool gemm_is_permuted(const gpu_context *g)
{
    return gemm_is_native(g) && !is_wide(g);
}

bool gemm_is_exact(const gpu_context *g, uint32_t cols)
{
    return g->native_mm == GPU_MM_CODES && g->mm.buf != NULL && !g->off[GPU_SW_tensor_main] &&
           !is_wide(g) && cols % 256 == 0;
}

/* Codes from byte off on, and every stride bytes again, can be an operand as they lie there. */
static bool is_codes(const gpu_context *g, gpu_view w, uint64_t off, uint64_t stride, uint32_t cols)
{
    return gemm_is_exact(g, cols) && (w.off + off) % 128 == 0 && stride % 128 == 0;
}

enum { MM_DENSE, MM_UP, MM_DOWN };

/* Warpgroups of a native tile: it has 64 rows of W for each. */
static uint32_t groups(const gpu_context *g, uint32_t product)
{
    static const uint8_t usual[] = {2, 2, 2}; /* docs/SPEED.md */
    return g->mm_groups[product] != 0 ? g->mm_groups[product] : usual[product];
}

/* bf16 elements of the largest dense matrix. */
static uint64_t dense_max(const model_shape *s)
{
    const uint32_t vw = shape_gdn_v_width(s), q = shape_q_width(s);
    const uint64_t in = (uint64_t)(shape_conv_channels(s) + vw + 2 * s->gdn_v_heads) * s->hidden;
    const uint64_t qkv = (uint64_t)(2 * q + 2 * shape_kv_width(s)) * s->hidden;
    const uint64_t out = (uint64_t)(vw > q ? vw : q) * s->hidden;
    const uint64_t head = (uint64_t)s->n_vocab * s->hidden;
    const uint64_t a = in > qkv ? in : qkv, b = out > head ? out : head;
    return a > b ? a : b;
}

/* Of sums by groups of n rows, with room to the next. */
static uint64_t sums_bytes(uint64_t n, uint32_t cols)
{
    return (4 * n * (cols / 64) + 255) & ~255ull;
}

uint64_t op_mm_scratch(const gpu_context *g, uint32_t n)
{
    const model_shape *s = g->shape;
    if (is_wide(g)) {
        const uint64_t bank = (s->n_experts + 1ull) * 2 * s->expert_width * s->hidden;
        const uint64_t dense = dense_max(s);
        return 2 * (bank > dense ? bank : dense);
    }
    if (g->native_mm == GPU_MM_TILES || g->off[GPU_SW_tensor_main]) return 0;
    const uint32_t vw = shape_gdn_v_width(s), q = shape_q_width(s);
    const uint32_t out = vw > q ? vw : q, widest = out > s->hidden ? out : s->hidden;
    if (g->native_mm == GPU_MM_WGMMA) return 2ull * n * widest;
    const uint64_t n_slots = (uint64_t)n * (s->n_experts_used + 1);
    const uint64_t dense = sums_bytes(n, widest), down = sums_bytes(n_slots, s->expert_width);
    const uint64_t up = sums_bytes(n_slots, s->hidden) + 2 * n_slots * s->hidden;
    const uint64_t most = up > dense ? up : dense;
    return most > down ? most : down;
}

/* Records the sums of x [n][cols] to g->mm; returns what holds them. */
static gpu_view sum_rows(gpu_context *g, gpu_view x, uint32_t n, uint32_t cols)
{
    const gmm_sums_args a = {cols};
    const gpu_view sums = gpu_sub(g->mm, 0, 4ull * n * (cols / 64));
    rec_label(g->rec, "sums");
    rec_dispatch(g->rec, KERNEL_gmm_sums, n, 1);
    rec_read(g->rec, gpu_sub(x, 0, 2ull * n * cols));
    rec_write(g->rec, sums);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, 2.0625 * n * cols, 0);
    return sums;
}

/* Records the permutation of x [n][cols] to g->mm; returns what holds it. */
static gpu_view permute(gpu_context *g, gpu_view x, uint32_t n, uint32_t cols)
{
    const gmm_permute_args a = {n * (cols / 32)};
    const gpu_view y = gpu_sub(g->mm, 0, 2ull * n * cols);
    rec_label(g->rec, "permute");
    rec_dispatch(g->rec, KERNEL_gmm_permute, div_up(a.n_blocks, 256), 1);
    rec_read(g->rec, gpu_sub(x, 0, y.bytes));
    rec_write(g->rec, y);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, 4.0 * n * cols, 0);
    return y;
}

/* Records the expansion of matrices to g->mm; returns what holds them. */
static gpu_view expand(gpu_context *g, gpu_view codes, gpu_view sb, const gemm_expand_args *a)
{
    const double elements = (double)a->n_mats * a->rows * a->cols;
    const gpu_view w = gpu_sub(g->mm, 0, 2ull * a->n_mats * a->rows * a->cols);
    const uint32_t groups = div_up(a->rows * (a->cols / 32), 256);
    rec_label(g->rec, "expand");
    rec_dispatch(g->rec, KERNEL_gemm_expand, min_u32(groups, 1024), a->n_mats);
    rec_read(g->rec, codes);
    rec_read(g->rec, sb);
    rec_write(g->rec, w);
    rec_args(g->rec, a, sizeof *a);
    rec_cost(g->rec, 2.5625 * elements, 0);
    return w;
}

static kernel_id native_dense(const gpu_context *g, bool add)
{
    if (is_wide(g)) return add ? KERNEL_gmm_wide_add : KERNEL_gmm_wide_set;
    if (groups(g, MM_DENSE) == 4) return add ? KERNEL_gmm_add_4 : KERNEL_gmm_set_4;
    return add ? KERNEL_gmm_add_2 : KERNEL_gmm_set_2;
}

void op_gemm(gpu_context *g, uint32_t n, gpu_view in, const gpu_q4 *w, bool add, gpu_view y)
{
    const gemm_args a = {n, w->rows, w->cols, add};
    const double elements = (double)w->rows * w->cols;
    const bool native = gemm_is_native(g) && w->rows % 2 == 0;
    const bool codes = is_codes(g, w->codes, 0, 0, w->cols);
    gpu_view wide = {0}, sums = {0};
    in = gpu_sub(in, 0, 2ull * n * w->cols);
    y = gpu_sub(y, 0, 4ull * n * w->rows);
    if (is_wide(g)) {
        const gemm_expand_args e = {1, w->rows, w->cols, 0, 0, 0};
        wide = expand(g, w->codes, w->sb, &e);
    }
    if (native && !is_wide(g)) in = permute(g, in, n, w->cols);
    if (codes) sums = sum_rows(g, in, n, w->cols);
    const uint32_t n_groups = is_wide(g) ? 4 : groups(g, MM_DENSE);
    const kernel_id k = native       ? native_dense(g, add)
                        : codes      ? (add ? KERNEL_codes_add : KERNEL_codes_set)
                        : is_wide(g) ? KERNEL_gemm_wide
                                     : KERNEL_gemm_q4;
    rec_label(g->rec, "gemm");
    rec_dispatch(g->rec, k,
                 div_up(w->rows, native  ? 64 * n_groups
                                 : codes ? 128
                                         : 64),
                 div_up(n, native ? 128 : 32));
    rec_read(g->rec, in);
    if (codes) rec_read(g->rec, sums);
    if (is_wide(g)) {
        rec_read(g->rec, wide);
    } else {
        rec_read(g->rec, w->codes);
        rec_read(g->rec, w->sb);
    }
    if (add)
        rec_read_write(g->rec, y);
    else
        rec_write(g->rec, y);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec,
             elements * (is_wide(g) ? 2 : 0.5625) +
                 (double)n * (2.0 * w->cols + (add ? 8.0 : 4.0) * w->rows),
             2.0 * n * elements);
}

void op_router_gemm(gpu_context *g, uint32_t n, gpu_view x, gpu_view norm, const gpu_q8 *router,
                    gpu_view logits)
{
    const gemm_router_args a = {n, router->rows, router->cols, g->shape->rms_eps};
    const double elements = (double)router->rows * router->cols;
    rec_label(g->rec, "router");
    rec_dispatch(g->rec, KERNEL_gemm_router, div_up(router->rows, 64), div_up(n, 64));
    rec_read(g->rec, gpu_sub(x, 0, 4ull * n * router->cols));
    rec_read(g->rec, norm);
    rec_read(g->rec, router->codes);
    rec_read(g->rec, router->sb);
    rec_write(g->rec, gpu_sub(logits, 0, 4ull * n * router->rows));
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, 1.0625 * elements + 4.0 * n * ((double)router->cols + router->rows),
             2.0 * n * elements);
}

/* ---- Experts: scratch ---- */

/* The most tiles of a height that n tokens can make: every expert may have an incomplete one. */
static uint32_t tiles_max(const model_shape *s, uint32_t n, uint32_t height)
{
    const uint32_t pairs = n * s->n_experts_used;
    const uint32_t used = min_u32(s->n_experts, pairs);
    return (pairs + used * (height - 1)) / height + div_up(n, height);
}

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    const uint64_t here = *at;
    *at = (here + bytes + 255) & ~255ull;
    return here;
}

moe_layout moe_layout_of(const model_shape *s, uint32_t n)
{
    moe_layout l = {.n_slots = n * (s->n_experts_used + 1), .tiles_max = tiles_max(s, n, 16)};
    uint64_t at = 0;
    l.counts = take(&at, 32ull * s->n_experts);
    l.slot_token = take(&at, 4ull * l.n_slots);
    l.slot_of = take(&at, 4ull * n * s->n_experts_used);
    l.n_map = take(&at, 64);
    l.full = take(&at, 16ull * l.tiles_max);
    l.tails = take(&at, 16ull * l.tiles_max);
    l.plan_bytes = at;
    l.h = take(&at, 2ull * l.n_slots * s->expert_width);
    l.y = take(&at, 2ull * l.n_slots * s->hidden);
    l.total = at;
    return l;
}

uint64_t op_moe_gemm_scratch(const model_shape *s, uint32_t n)
{
    return moe_layout_of(s, n).total;
}

uint64_t op_moe_plan_bytes(const model_shape *s, uint32_t n)
{
    return moe_layout_of(s, n).plan_bytes;
}

/* ---- Experts: routing lists ---- */

moe_plan_args moe_plan_args_of(const gpu_context *g, uint32_t n)
{
    moe_plan_args a = {
        .n = n, .n_used = g->shape->n_experts_used, .n_experts = g->shape->n_experts};
    const bool native = gemm_is_native(g), tall = !g->off[GPU_SW_tile32];
    a.full = native ? (tall ? 128 : 16) : (tall ? 32 : 0);
    a.tail = native ? 0 : 16;
    return a;
}

void op_moe_plan(gpu_context *g, uint32_t n, gpu_view ids, gpu_view scratch)
{
    const moe_layout l = moe_layout_of(g->shape, n);
    const moe_plan_args a = moe_plan_args_of(g, n);
    const uint64_t id_bytes = 4ull * n * a.n_used;
    const gpu_view counts = gpu_sub(scratch, l.counts, 32ull * a.n_experts);
    ids = gpu_sub(ids, 0, id_bytes);
    rec_label(g->rec, "routing lists");
    rec_dispatch(g->rec, KERNEL_moe_count, a.n_experts, 1);
    rec_read(g->rec, ids);
    rec_write(g->rec, counts);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)id_bytes, 0);
    rec_dispatch(g->rec, KERNEL_moe_plan, a.n_experts + 1, 1);
    rec_read(g->rec, ids);
    rec_read(g->rec, counts);
    rec_write(g->rec, gpu_sub(scratch, l.slot_token, 4ull * l.n_slots));
    rec_write(g->rec, gpu_sub(scratch, l.slot_of, id_bytes));
    rec_write(g->rec, gpu_sub(scratch, l.n_map, 64));
    rec_write(g->rec, gpu_sub(scratch, l.full, 16ull * l.tiles_max));
    rec_write(g->rec, gpu_sub(scratch, l.tails, 16ull * l.tiles_max));
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, 3.0 * (double)id_bytes, 0);
}

void op_moe_plan_host(const gpu_context *g, uint32_t n, const uint32_t *ids, void *image)
{
    const moe_layout l = moe_layout_of(g->shape, n);
    const moe_plan_args a = moe_plan_args_of(g, n);
    uint32_t *words = image;
    const ref_moe_lists out = {.counts = words + l.counts / 4,
                               .slot_token = words + l.slot_token / 4,
                               .slot_of = words + l.slot_of / 4,
                               .n_map = words + l.n_map / 4,
                               .full = words + l.full / 4,
                               .tails = words + l.tails / 4};
    ref_moe_plan(&a, ids, &out);
}

/* ---- Experts: products ---- */

typedef struct experts {
    gpu_context *g;
    const gpu_bank *bank;
    gpu_view scratch;
    moe_layout l;
    moe_plan_args plan;
    uint32_t n;
} experts;

/* One list of tiles of one product. second: the tokens of slots, sums, or none. */
static void product_list(const experts *e, const moe_gemm_args *a, kernel_id k, uint32_t height,
                         uint32_t width, gpu_view x, gpu_view second, gpu_view weights,
                         gpu_view out)
{
    recorder *r = e->g->rec;
    const uint64_t map = a->list == MOE_MAP_FULL ? e->l.full : e->l.tails;
    /* With two lists the short one has at most one tile an expert. */
    const uint32_t n_tiles = a->list == MOE_MAP_SHORT && e->plan.full != 0
                                 ? min_u32(e->plan.n_experts, e->n * e->plan.n_used) + 1
                                 : tiles_max(e->g->shape, e->n, height);
    rec_dispatch(r, k, div_up(a->rows, width), n_tiles);
    rec_read(r, x);
    if (second.buf != NULL) rec_read(r, second);
    rec_read(r, gpu_sub(e->scratch, e->l.n_map, 64));
    rec_read(r, gpu_sub(e->scratch, map, 16ull * e->l.tiles_max));
    rec_read(r, weights);
    rec_write(r, out);
    rec_args(r, a, sizeof *a);
}

static kernel_id native_expert(bool wide, uint32_t n_groups, bool up)
{
    if (wide) return up ? KERNEL_gmm_up_wide : KERNEL_gmm_down_wide;
    if (n_groups == 4) return up ? KERNEL_gmm_up_4 : KERNEL_gmm_down_4;
    return up ? KERNEL_gmm_up_2 : KERNEL_gmm_down_2;
}

/* Records the rows of x in the order of slots, and their sums, to g->mm. */
static gpu_view gather_rows(const experts *e, gpu_view x, uint32_t cols, gpu_view *sums)
{
    recorder *r = e->g->rec;
    const gmm_sums_args a = {cols};
    const uint64_t n = e->l.n_slots;
    const gpu_view y = gpu_sub(e->g->mm, sums_bytes(n, cols), 2 * n * cols);
    *sums = gpu_sub(e->g->mm, 0, 4 * n * (cols / 64));
    rec_label(r, "gather");
    rec_dispatch(r, KERNEL_gmm_gather, e->l.n_slots, 1);
    rec_read(r, x);
    rec_read(r, gpu_sub(e->scratch, e->l.slot_token, 4 * n));
    rec_write(r, y);
    rec_write(r, *sums);
    rec_args(r, &a, sizeof a);
    rec_cost(r, 4.0625 * (double)n * cols, 0);
    return y;
}

/* The kernels of a product: its full tiles and its short ones (of another width), and what they
 * read besides activations and weights. */
typedef struct product_kind {
    kernel_id full, tail;
    uint32_t height, width, tail_width;
    gpu_view x, second;
} product_kind;

static product_kind kind_of(const experts *e, const moe_gemm_args *a, bool gather, gpu_view x)
{
    gpu_context *g = e->g;
    const bool wide = is_wide(g);
    const gpu_view tokens = gpu_sub(e->scratch, e->l.slot_token, 4ull * e->l.n_slots);
    product_kind k = {.full = gather ? (wide ? KERNEL_moe_up_wide_32 : KERNEL_moe_up_32)
                                     : (wide ? KERNEL_moe_down_wide_32 : KERNEL_moe_down_32),
                      .tail = gather ? (wide ? KERNEL_moe_up_wide_16 : KERNEL_moe_up_16)
                                     : (wide ? KERNEL_moe_down_wide_16 : KERNEL_moe_down_16),
                      .height = 32,
                      .width = 64,
                      .tail_width = 128,
                      .x = x};
    if (gather) k.second = tokens;
    if (gemm_is_native(g)) {
        const uint32_t n_groups = wide ? 4 : groups(g, gather ? MM_UP : MM_DOWN);
        if (gather && !wide) k.x = permute(g, x, e->n, a->cols);
        k.full = native_expert(wide, n_groups, gather);
        k.height = e->plan.full;
        k.width = 64 * n_groups;
    } else if (is_codes(g, e->bank->slabs, 4ull * a->codes, 4ull * a->slab, a->cols)) {
        if (gather)
            k.x = gather_rows(e, x, a->cols, &k.second);
        else
            k.second = sum_rows(g, x, e->l.n_slots, a->cols);
        k.full = gather ? KERNEL_codes_up_32 : KERNEL_codes_down_32;
        k.tail = gather ? KERNEL_codes_up_16 : KERNEL_codes_down_16;
        k.width = 128;
    }
    return k;
}

/* h or y of all slots: up when gather. The cost is booked on the first list. */
static void product(const experts *e, moe_gemm_args a, bool gather, gpu_view x, gpu_view out)
{
    gpu_context *g = e->g;
    const bool wide = is_wide(g);
    const uint32_t n_mats = e->plan.n_experts + 1;
    const double elements = (double)n_mats * a.rows * a.cols;
    const double cost = elements * (wide ? 2 : 0.5625) + (double)x.bytes + (double)out.bytes;
    const double flops = 2.0 * e->l.n_slots * a.rows * a.cols;
    gpu_view weights = gpu_sub(e->bank->slabs, 0, (uint64_t)n_mats * e->bank->slab_bytes);
    if (wide) {
        const gemm_expand_args x_args = {n_mats, a.rows, a.cols, a.codes, a.sb, a.slab};
        weights = expand(g, weights, weights, &x_args);
        a.codes = a.sb = 0;
        a.slab = a.rows * a.cols / 2;
    }
    const product_kind k = kind_of(e, &a, gather, x);
    rec_label(g->rec, gather ? "experts up" : "experts down");
    if (e->plan.full != 0) {
        product_list(e, &a, k.full, k.height, k.width, k.x, k.second, weights, out);
        rec_cost(g->rec, cost, flops);
    }
    if (e->plan.tail == 0) return;
    a.list = MOE_MAP_SHORT;
    product_list(e, &a, k.tail, 16, k.tail_width, k.x, k.second, weights, out);
    if (e->plan.full == 0) rec_cost(g->rec, cost, flops);
}

void op_moe_experts(gpu_context *g, uint32_t n, gpu_view xn, gpu_view weights, const gpu_bank *bank,
                    gpu_view scratch, gpu_view x)
{
    const model_shape *s = g->shape;
    const uint32_t w = s->expert_width, hidden = s->hidden, u = s->n_experts_used;
    const experts e = {.g = g,
                       .bank = bank,
                       .scratch = scratch,
                       .l = moe_layout_of(s, n),
                       .plan = moe_plan_args_of(g, n),
                       .n = n};
    const uint32_t up_codes = w * hidden / 4, up_sb = w * hidden / 32; /* words */
    const moe_gemm_args up = {2 * w, hidden, 0, up_codes, bank->slab_bytes / 4, MOE_MAP_FULL};
    const moe_gemm_args down = {
        hidden,      w, up_codes + up_sb, up_codes + up_sb + w * hidden / 8, bank->slab_bytes / 4,
        MOE_MAP_FULL};
    const gpu_view h = gpu_sub(scratch, e.l.h, 2ull * e.l.n_slots * w);
    const gpu_view y = gpu_sub(scratch, e.l.y, 2ull * e.l.n_slots * hidden);
    product(&e, up, true, gpu_sub(xn, 0, 2ull * n * hidden), h);
    product(&e, down, false, h, y);
    const moe_combine_args a = {n, u, hidden};
    rec_label(g->rec, "experts combined");
    rec_dispatch(g->rec, KERNEL_moe_combine, div_up(hidden, 1024), n);
    rec_read(g->rec, y);
    rec_read(g->rec, gpu_sub(scratch, e.l.slot_of, 4ull * n * u));
    rec_read(g->rec, gpu_sub(weights, 0, 4ull * n * (u + 1)));
    rec_read_write(g->rec, gpu_sub(x, 0, 4ull * n * hidden));
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * hidden * (2.0 * (u + 1) + 8.0), 0);
}

void op_moe_gemm(gpu_context *g, uint32_t n, gpu_view xn, gpu_view ids, gpu_view weights,
                 const gpu_bank *bank, gpu_view scratch, gpu_view x)
{
    op_moe_plan(g, n, ids, scratch);
    op_moe_experts(g, n, xn, weights, bank, scratch, x);
}
