/* The matrix products of decode as dispatches. */
#include "exec/gpu/ops.h"

#include "kernels/args_basic.h"
#include "kernels/args_gemv.h"

/* What the kernels hold in registers and threadgroup memory. */
#define GEMV_COLS_MAX   4096u
#define DOWN_WIDTH_MAX  512u
#define DOWN_INPUTS_MAX 4608u
#define DOWN_USED_MAX   8u
#define ROUTER_MAX      256u
#define MULTI_TOKENS    8u /* of a pass of gemv_multi */

static uint32_t blocks_of(uint32_t n, uint32_t size)
{
    return (n + size - 1) / size;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Groups that take turns over n_units: as many as the device holds at once, shared by the tokens.
 */
static uint32_t turns(const gpu_context *g, uint32_t n_units, uint32_t n_tokens, uint32_t per_core)
{
    if (g->groups_per_core != 0) per_core = g->groups_per_core;
    return min_u32(n_units, max_u32(1, blocks_of(g->n_cores * per_core, n_tokens)));
}

static double q4_bytes(double rows, double cols)
{
    return rows * cols * 0.5625;
}

/* ---- Projections ---- */

/* Of one token's input as gemv_prepare leaves it. */
static uint64_t prepared_bytes(uint32_t cols)
{
    const uint64_t padded = (cols + 1023u) & ~1023u;
    return (padded + padded / 32 + 4) * 4;
}

uint64_t op_gemv_scratch(const model_shape *s, uint32_t n)
{
    const uint32_t cols = max_u32(s->hidden, max_u32(shape_q_width(s), shape_gdn_v_width(s)));
    return n * prepared_bytes(cols);
}

/* The inputs of a product, as recorded. */
typedef struct gemv_input {
    gpu_view x;
    uint32_t n_x;
    gpu_view norm, rows_of; /* buf may be NULL */
} gemv_input;

static void read_input(gpu_context *g, uint32_t n, uint32_t cols, const gemv_input *in)
{
    const gpu_view x = gpu_sub(in->x, 0, (uint64_t)in->n_x * cols * 4);
    rec_read(g->rec, x);
    rec_read(g->rec, in->norm.buf != NULL ? gpu_sub(in->norm, 0, (uint64_t)cols * 4) : x);
    rec_read(g->rec, in->rows_of.buf != NULL ? gpu_sub(in->rows_of, 0, (uint64_t)n * 4) : x);
}

/* Norms the rows into scratch; the product then reads them there. */
static void norm_rows(gpu_context *g, uint32_t n, uint32_t cols, gemv_input *in, gpu_view scratch)
{
    const gpu_view x = gpu_sub(in->x, 0, (uint64_t)in->n_x * cols * 4);
    const gpu_view y = gpu_sub(scratch, 0, (uint64_t)n * cols * 4);
    const gemv_args a = {.cols = cols,
                         .flags = in->rows_of.buf != NULL ? GEMV_ROWS_OF : 0u,
                         .eps = g->shape->rms_eps};
    rec_dispatch(g->rec, KERNEL_gemv_norm, n, 1);
    rec_read(g->rec, x);
    rec_read(g->rec, gpu_sub(in->norm, 0, (uint64_t)cols * 4));
    rec_read(g->rec, in->rows_of.buf != NULL ? gpu_sub(in->rows_of, 0, (uint64_t)n * 4) : x);
    rec_write(g->rec, y);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * cols * 8, (double)n * cols * 4);
    *in = (gemv_input){.x = y, .n_x = n};
}

static uint32_t input_flags(const gemv_input *in, bool add)
{
    return (in->norm.buf != NULL ? GEMV_NORM : 0u) | (in->rows_of.buf != NULL ? GEMV_ROWS_OF : 0u) |
           (add ? GEMV_ADD : 0u);
}

static void write_output(gpu_context *g, bool add, gpu_view y)
{
    if (add)
        rec_read_write(g->rec, y);
    else
        rec_write(g->rec, y);
}

/* Eight tokens in a pass over the weights. */
static void product_multi(gpu_context *g, uint32_t n, const gemv_input *in, const gpu_q4 *w,
                          gpu_view scratch, bool add, gpu_view y)
{
    const gpu_view prepared = gpu_sub(scratch, 0, n * prepared_bytes(w->cols));
    const gemv_args p = {
        .cols = w->cols, .flags = input_flags(in, false), .eps = g->shape->rms_eps};
    rec_dispatch(g->rec, KERNEL_gemv_prepare, n, 1);
    read_input(g, n, w->cols, in);
    rec_write(g->rec, prepared);
    rec_args(g->rec, &p, sizeof p);
    rec_cost(g->rec, (double)n * w->cols * 8, (double)n * w->cols * 4);

    const gemv_multi_args a = {
        .rows = w->rows, .cols = w->cols, .n_tokens = n, .flags = add ? GEMV_ADD : 0u};
    const uint32_t n_passes = blocks_of(n, MULTI_TOKENS);
    rec_dispatch(g->rec, KERNEL_gemv_multi, turns(g, blocks_of(w->rows, 16), n_passes, 2),
                 n_passes);
    rec_read(g->rec, w->codes);
    rec_read(g->rec, w->sb);
    rec_read(g->rec, prepared);
    write_output(g, add, gpu_sub(y, 0, (uint64_t)n * w->rows * 4));
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, q4_bytes(w->rows, w->cols) + (double)n * 4 * (w->cols + w->rows),
             2.0 * n * w->rows * w->cols);
}

static void product(gpu_context *g, uint32_t n, gemv_input in, const gpu_q4 *w, gpu_view scratch,
                    bool add, gpu_view y)
{
    if (n > 1 && !g->off[GPU_SW_gemv_rows] && !g->off[GPU_SW_norm_fold]) {
        product_multi(g, n, &in, w, scratch, add, y);
        return;
    }
    if (in.norm.buf != NULL && g->off[GPU_SW_norm_fold]) norm_rows(g, n, w->cols, &in, scratch);
    const gemv_args a = {
        .rows = w->rows, .cols = w->cols, .flags = input_flags(&in, add), .eps = g->shape->rms_eps};
    const uint32_t n_fours = blocks_of(w->rows, 4);
    const bool known = w->rows % 4 == 0; /* what the kernels for one K ask */
    if (w->cols > GEMV_COLS_MAX || g->off[GPU_SW_gemv_rows])
        rec_dispatch(g->rec, KERNEL_gemv_row, n_fours, n);
    else if (w->cols == 2048 && known)
        rec_dispatch(g->rec, KERNEL_gemv_k2048, turns(g, blocks_of(n_fours, 4), n, 4), n);
    else
        rec_dispatch(g->rec, w->cols == 4096 && known ? KERNEL_gemv_k4096 : KERNEL_gemv_any,
                     turns(g, blocks_of(n_fours, 2), n, 3), n);
    rec_read(g->rec, w->codes);
    rec_read(g->rec, w->sb);
    read_input(g, n, w->cols, &in);
    write_output(g, add, gpu_sub(y, 0, (uint64_t)n * w->rows * 4));
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, q4_bytes(w->rows, w->cols) + (double)n * 4 * (w->cols + w->rows),
             2.0 * n * w->rows * w->cols);
}

void op_gemv(gpu_context *g, uint32_t n, gpu_view x, uint32_t n_x, gpu_view norm, gpu_view rows_of,
             const gpu_q4 *w, gpu_view scratch, gpu_view y)
{
    const gemv_input in = {.x = x, .n_x = n_x, .norm = norm, .rows_of = rows_of};
    product(g, n, in, w, scratch, false, y);
}

void op_gemv_add(gpu_context *g, uint32_t n, gpu_view in, const gpu_q4 *w, gpu_view scratch,
                 gpu_view x)
{
    product(g, n, (gemv_input){.x = in, .n_x = n}, w, scratch, true, x);
}

/* ---- Router ---- */

#define ROUTER_COUNTERS 4096u /* bytes at the scratch's begin */

uint64_t op_router_scratch(const model_shape *s, uint32_t n)
{
    return ROUTER_COUNTERS + (uint64_t)n * (s->n_experts + 1) * 4;
}

void op_router(gpu_context *g, uint32_t n, gpu_view x, gpu_view norm, const gpu_q8 *router,
               gpu_view scratch, gpu_view ids, gpu_view weights)
{
    const model_shape *s = g->shape;
    const bool tail = !g->off[GPU_SW_router_tail] && s->n_experts <= ROUTER_MAX;
    const gpu_view counters = gpu_sub(scratch, 0, (uint64_t)n * 4);
    const gpu_view logits = gpu_sub(scratch, ROUTER_COUNTERS, (uint64_t)n * (s->n_experts + 1) * 4);
    const gemv_router_args a = {.cols = s->hidden,
                                .n_experts = s->n_experts,
                                .n_used = s->n_experts_used,
                                .tail = tail,
                                .eps = s->rms_eps};
    rec_dispatch(g->rec, s->hidden == 2048 ? KERNEL_gemv_router : KERNEL_gemv_router_any,
                 blocks_of(s->n_experts + 1, 4), n);
    rec_read(g->rec, router->codes);
    rec_read(g->rec, router->sb);
    rec_read(g->rec, gpu_sub(x, 0, (uint64_t)n * s->hidden * 4));
    rec_read(g->rec, gpu_sub(norm, 0, (uint64_t)s->hidden * 4));
    if (tail) {
        rec_read_write(g->rec, counters);
        rec_write(g->rec, logits);
        rec_write(g->rec, gpu_sub(ids, 0, (uint64_t)n * s->n_experts_used * 4));
        rec_write(g->rec, gpu_sub(weights, 0, (uint64_t)n * (s->n_experts_used + 1) * 4));
    } else { /* the others are not touched */
        rec_read(g->rec, counters);
        rec_write(g->rec, logits);
        rec_read(g->rec, counters);
        rec_read(g->rec, counters);
    }
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (s->n_experts + 1.0) * s->hidden * 1.0625 + (double)n * s->hidden * 4,
             2.0 * n * (s->n_experts + 1) * s->hidden);
    if (!tail) op_top8(g, n, logits, ids, weights);
}

/* ---- Experts ---- */

/* h [T][U + 1][W], then for the ablations g and u of the same size and d [T][U + 1][H]. */
uint64_t op_moe_scratch(const model_shape *s, uint32_t n)
{
    const uint64_t n_slots = s->n_experts_used + 1;
    return n * n_slots * (3 * (uint64_t)s->expert_width + s->hidden) * 4;
}

typedef struct moe_plan {
    gpu_view h, gate, up, d, slabs, ids, weights;
    uint32_t n_slots; /* of all tokens */
    gemv_moe_args args;
} moe_plan;

static moe_plan plan_moe(const gpu_context *g, uint32_t n, gpu_view ids, gpu_view weights,
                         const gpu_bank *bank, gpu_view scratch)
{
    const model_shape *s = g->shape;
    const uint32_t n_slots = n * (s->n_experts_used + 1);
    const uint64_t h_bytes = (uint64_t)n_slots * s->expert_width * 4;
    return (moe_plan){
        .h = gpu_sub(scratch, 0, h_bytes),
        .gate = gpu_sub(scratch, h_bytes, h_bytes),
        .up = gpu_sub(scratch, 2 * h_bytes, h_bytes),
        .d = gpu_sub(scratch, 3 * h_bytes, (uint64_t)n_slots * s->hidden * 4),
        .slabs = bank->slabs,
        .ids = gpu_sub(ids, 0, (uint64_t)n * s->n_experts_used * 4),
        .weights = gpu_sub(weights, 0, (uint64_t)n_slots * 4),
        .n_slots = n_slots,
        .args = {.hidden = s->hidden,
                 .width = s->expert_width,
                 .n_experts = s->n_experts,
                 .n_used = s->n_experts_used,
                 .slab_words = bank->slab_bytes / 4,
                 .flags = GEMV_NORM,
                 .eps = s->rms_eps},
    };
}

static void gateup_fused(gpu_context *g, uint32_t n, const moe_plan *p, gpu_view x, gpu_view norm)
{
    const uint32_t n_fours = (p->args.n_used + 1) * p->args.width / 2;
    if (p->args.hidden == 2048)
        rec_dispatch(g->rec, KERNEL_gemv_gateup, turns(g, blocks_of(n_fours, 4), n, 3), n);
    else
        rec_dispatch(g->rec, KERNEL_gemv_gateup_any, turns(g, blocks_of(n_fours, 2), n, 3), n);
    rec_read(g->rec, p->slabs);
    rec_read(g->rec, x);
    rec_read(g->rec, norm);
    rec_read(g->rec, p->ids);
    rec_write(g->rec, p->h);
    rec_args(g->rec, &p->args, sizeof p->args);
    rec_cost(g->rec, q4_bytes(2.0 * p->n_slots * p->args.width, p->args.hidden),
             4.0 * p->n_slots * p->args.width * p->args.hidden);
}

/* y [T][U + 1][rows] of the matrix that a describes. */
static void expert_rows(gpu_context *g, const moe_plan *p, gemv_expert_args a, gpu_view x,
                        gpu_view norm, gpu_view y)
{
    a.slab_words = p->args.slab_words;
    a.n_experts = p->args.n_experts;
    a.n_used = p->args.n_used;
    a.eps = p->args.eps;
    rec_dispatch(g->rec, KERNEL_gemv_expert_row, blocks_of(a.rows, 4), p->n_slots);
    rec_read(g->rec, p->slabs);
    rec_read(g->rec, x);
    rec_read(g->rec, norm);
    rec_read(g->rec, p->ids);
    rec_write(g->rec, y);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, q4_bytes((double)p->n_slots * a.rows, a.cols),
             2.0 * p->n_slots * a.rows * a.cols);
}

static void gateup_separate(gpu_context *g, const moe_plan *p, gpu_view x, gpu_view norm)
{
    const uint32_t width = p->args.width, hidden = p->args.hidden;
    gemv_expert_args a = {.rows = width,
                          .cols = hidden,
                          .stride = 2,
                          .sb_at = width * (hidden / 4),
                          .flags = GEMV_NORM};
    expert_rows(g, p, a, x, norm, p->gate);
    a.first = 1;
    expert_rows(g, p, a, x, norm, p->up);
    const gemv_args n = {.rows = p->n_slots * width};
    rec_dispatch(g->rec, KERNEL_gemv_silu_mul, blocks_of(n.rows, 128), 1);
    rec_read(g->rec, p->gate);
    rec_read(g->rec, p->up);
    rec_write(g->rec, p->h);
    rec_args(g->rec, &n, sizeof n);
    rec_cost(g->rec, 12.0 * n.rows, 0);
}

static void down_fused(gpu_context *g, uint32_t n, const moe_plan *p, gpu_view x)
{
    rec_dispatch(g->rec, KERNEL_gemv_down, blocks_of(p->args.hidden, 16), n);
    rec_read(g->rec, p->slabs);
    rec_read(g->rec, p->h);
    rec_read(g->rec, p->ids);
    rec_read(g->rec, p->weights);
    rec_read_write(g->rec, x);
    rec_args(g->rec, &p->args, sizeof p->args);
    rec_cost(g->rec, q4_bytes((double)p->n_slots * p->args.hidden, p->args.width),
             2.0 * p->n_slots * p->args.width * p->args.hidden);
}

static void down_separate(gpu_context *g, uint32_t n, const moe_plan *p, gpu_view x)
{
    const uint32_t width = p->args.width, hidden = p->args.hidden;
    const uint32_t codes_at = width * (hidden / 4 + hidden / 32);
    const gemv_expert_args a = {.rows = hidden,
                                .cols = width,
                                .stride = 1,
                                .codes_at = codes_at,
                                .sb_at = codes_at + hidden * (width / 8),
                                .per_slot = 1};
    expert_rows(g, p, a, p->h, p->h, p->d);
    rec_dispatch(g->rec, KERNEL_gemv_combine, blocks_of(hidden, 128), n);
    rec_read(g->rec, p->d);
    rec_read(g->rec, p->weights);
    rec_read_write(g->rec, x);
    rec_args(g->rec, &p->args, sizeof p->args);
    rec_cost(g->rec, 4.0 * p->n_slots * hidden, 2.0 * p->n_slots * hidden);
}

void op_moe(gpu_context *g, uint32_t n, gpu_view x, gpu_view norm, gpu_view ids, gpu_view weights,
            const gpu_bank *bank, gpu_view scratch)
{
    const model_shape *s = g->shape;
    const moe_plan p = plan_moe(g, n, ids, weights, bank, scratch);
    const gpu_view xs = gpu_sub(x, 0, (uint64_t)n * s->hidden * 4);
    const gpu_view w = gpu_sub(norm, 0, (uint64_t)s->hidden * 4);
    if (g->off[GPU_SW_fuse_gateup] || g->off[GPU_SW_gemv_rows] || s->hidden > GEMV_COLS_MAX)
        gateup_separate(g, &p, xs, w);
    else
        gateup_fused(g, n, &p, xs, w);
    if (g->off[GPU_SW_fuse_down] || g->off[GPU_SW_gemv_rows] || s->expert_width > DOWN_WIDTH_MAX ||
        s->n_experts_used > DOWN_USED_MAX ||
        (s->n_experts_used + 1) * s->expert_width > DOWN_INPUTS_MAX)
        down_separate(g, n, &p, xs);
    else
        down_fused(g, n, &p, xs);
}
