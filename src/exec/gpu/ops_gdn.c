/* Gated DeltaNet (docs/MODEL.md 6.2, 6.3): decode step and prefill scan. */
#include "exec/gpu/ops_gdn.h"
#include "kernels/args_gdn.h"

#define STEP_COUNTERS 4096u /* bytes: [T][HV] u32 */

static gdn_args args_of(const model_shape *s, uint32_t n, uint32_t n_segs)
{
    return (gdn_args){.n = n,
                      .n_segs = n_segs,
                      .k_heads = s->gdn_k_heads,
                      .v_heads = s->gdn_v_heads,
                      .ratio = s->gdn_v_heads / s->gdn_k_heads,
                      .y_pitch = shape_conv_channels(s) + shape_gdn_v_width(s) + 2 * s->gdn_v_heads,
                      .eps = s->rms_eps};
}

/* Bytes of n rows of width floats. */
static uint64_t rows(uint32_t n, uint32_t width)
{
    return (uint64_t)n * width * sizeof(float);
}

/* The first bytes of v. */
static gpu_view part(gpu_view v, uint64_t bytes)
{
    return gpu_sub(v, 0, bytes);
}

static double state_flops(const gdn_args *a)
{
    return 8.0 * GDN_HEAD_FLOATS * a->v_heads;
}

uint64_t op_gdn_step_scratch(const model_shape *s, uint32_t n)
{
    return STEP_COUNTERS + rows(n, shape_gdn_v_width(s));
}

void op_gdn_step(gpu_context *g, uint32_t n, gpu_view tok, const gpu_gdn *l, gpu_view y,
                 gpu_view scratch, gpu_view o)
{
    const model_shape *s = g->shape;
    const gdn_args a = args_of(s, n, 0);
    const uint32_t vw = shape_gdn_v_width(s), channels = shape_conv_channels(s);
    tok = part(tok, n * (uint64_t)sizeof(tok_entry));
    y = part(y, rows(n, a.y_pitch));
    o = part(o, rows(n, vw));
    const gpu_view arrived = gpu_sub(scratch, 0, STEP_COUNTERS);
    const gpu_view raw = gpu_sub(scratch, STEP_COUNTERS, rows(n, vw));
    const bool fused = !g->off[GPU_SW_fuse_gdnnorm];
    /* Groups of quarter heads only where whole heads would leave most of the device idle: the last
     * group's norm costs more than that on an H200 (docs/SPEED.md). */
    const bool split =
        8 * n * a.v_heads <= g->n_cores && n * a.v_heads * sizeof(uint32_t) <= STEP_COUNTERS;
    const kernel_id k = !fused  ? KERNEL_gdn_step_raw
                        : split ? KERNEL_gdn_step_split
                                : KERNEL_gdn_step;
    rec_label(g->rec, "gdn step");
    rec_dispatch(g->rec, k, k == KERNEL_gdn_step ? a.v_heads : 4 * a.v_heads, n);
    rec_read(g->rec, tok);
    rec_read(g->rec, l->conv);
    rec_read(g->rec, l->rate);
    rec_read(g->rec, l->dt);
    rec_read(g->rec, l->norm);
    rec_read(g->rec, y);
    rec_read_write(g->rec, l->state);
    rec_read_write(g->rec, l->ring);
    rec_write(g->rec, fused ? o : raw);
    if (k == KERNEL_gdn_step_split) {
        rec_write(g->rec, raw);
        rec_read_write(g->rec, arrived);
    }
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec,
             (double)n * (2.0 * GDN_HEAD_FLOATS * a.v_heads + 5.0 * channels + 2.0 * vw) * 4.0 +
                 16.0 * channels,
             n * state_flops(&a));
    if (fused) return;
    rec_label(g->rec, "gdn norm");
    rec_dispatch(g->rec, KERNEL_gdn_norm_f32, (n * a.v_heads + 7) / 8, 1);
    rec_read(g->rec, raw);
    rec_read(g->rec, l->norm);
    rec_read(g->rec, y);
    rec_write(g->rec, o);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, 3.0 * (double)rows(n, vw), 10.0 * n * vw);
}

/* Parts of the scan's scratch. */
typedef struct scan_scratch {
    gpu_view q, k, v, gates, raw;
} scan_scratch;

static uint64_t take(gpu_view from, uint64_t *off, uint64_t bytes, gpu_view *out)
{
    *out = gpu_sub(from, *off, bytes);
    *off += bytes;
    return *off;
}

static uint64_t scan_scratch_of(const model_shape *s, uint32_t n, gpu_view from, scan_scratch *out)
{
    uint64_t off = 0;
    (void)take(from, &off, rows(n, shape_gdn_k_width(s)), &out->q);
    (void)take(from, &off, rows(n, shape_gdn_k_width(s)), &out->k);
    (void)take(from, &off, rows(n, shape_gdn_v_width(s)), &out->v);
    (void)take(from, &off, rows(n, 4 * s->gdn_v_heads), &out->gates);
    return take(from, &off, rows(n, shape_gdn_v_width(s)), &out->raw);
}

uint64_t op_gdn_scan_scratch(const model_shape *s, uint32_t n, uint32_t n_segs)
{
    (void)n_segs;
    scan_scratch parts;
    return scan_scratch_of(s, n, (gpu_view){NULL, 0, 0}, &parts);
}

static void record_prep(gpu_context *g, const gdn_args *a, gpu_view tok, const gpu_gdn *l,
                        gpu_view y, const scan_scratch *p)
{
    const uint32_t channels = shape_conv_channels(g->shape);
    rec_label(g->rec, "gdn prepare");
    rec_dispatch(g->rec, KERNEL_gdn_prep, (a->k_heads + a->v_heads + 3) / 4,
                 (a->n + GDN_PREP_TOKENS - 1) / GDN_PREP_TOKENS);
    rec_read(g->rec, tok);
    rec_read(g->rec, l->conv);
    rec_read(g->rec, l->rate);
    rec_read(g->rec, l->dt);
    rec_read(g->rec, y);
    rec_read(g->rec, l->ring);
    rec_write(g->rec, p->q);
    rec_write(g->rec, p->k);
    rec_write(g->rec, p->v);
    rec_write(g->rec, p->gates);
    rec_args(g->rec, a, sizeof *a);
    rec_cost(g->rec, (double)a->n * (2.0 * channels + 6.0 * a->v_heads) * 4.0,
             30.0 * a->n * channels);
}

const gdn_scan_kind gdn_scan_kinds[GDN_SCAN_KINDS] = {
    {KERNEL_gdn_scan_4, 4, 4, true, true},
    {KERNEL_gdn_scan_8, 4, 8, true, true},
    {KERNEL_gdn_scan_8x2, 4, 8, true, true},
    {KERNEL_gdn_scan_4_text, 4, 4, false, true},
    {KERNEL_gdn_scan_4_mem, 4, 4, true, false},
    {KERNEL_gdn_scan_4_text_mem, 4, 4, false, false},
    {KERNEL_gdn_scan_direct, 32, 32, true, true},
    {KERNEL_gdn_scan_direct_text, 32, 32, false, true},
};

static kernel_id scan_kernel(const gpu_context *g)
{
    const bool one = !g->off[GPU_SW_gdn_one_reduction];
    if (g->off[GPU_SW_gdn_regs]) return one ? KERNEL_gdn_scan_4_mem : KERNEL_gdn_scan_4_text_mem;
    if (g->off[GPU_SW_gdn_staged])
        return one ? KERNEL_gdn_scan_direct : KERNEL_gdn_scan_direct_text;
    return one ? gdn_scan_kinds[0].kernel : KERNEL_gdn_scan_4_text;
}

static void record_scan(gpu_context *g, const gdn_scan_kind *kind, const gdn_args *a, gpu_view seg,
                        const gpu_gdn *l, const scan_scratch *p)
{
    const uint32_t kw = shape_gdn_k_width(g->shape), vw = shape_gdn_v_width(g->shape);
    rec_label(g->rec, "gdn scan");
    rec_dispatch(g->rec, kind->kernel, a->v_heads * kind->groups, a->n_segs);
    rec_read(g->rec, seg);
    rec_read(g->rec, p->q);
    rec_read(g->rec, p->k);
    rec_read(g->rec, p->v);
    rec_read(g->rec, p->gates);
    rec_read_write(g->rec, l->state);
    rec_write(g->rec, p->raw);
    rec_args(g->rec, a, sizeof *a);
    const double visits = kind->regs ? a->n_segs : a->n_segs + a->n / GDN_BLOCK;
    rec_cost(g->rec,
             (a->n * (2.0 * kw + 2.0 * vw + 4.0 * a->v_heads) +
              visits * 2.0 * GDN_HEAD_FLOATS * a->v_heads) *
                 4.0,
             a->n * state_flops(a));
}

void gdn_scan_with(gpu_context *g, const gdn_scan_kind *kind, uint32_t n, uint32_t n_segs,
                   gpu_view tok, gpu_view seg, const gpu_gdn *l, gpu_view y, gpu_view scratch,
                   gpu_view o)
{
    const gdn_args a = args_of(g->shape, n, n_segs);
    const uint32_t vw = shape_gdn_v_width(g->shape);
    tok = part(tok, n * (uint64_t)sizeof(tok_entry));
    seg = part(seg, n_segs * (uint64_t)sizeof(seg_entry));
    y = part(y, rows(n, a.y_pitch));
    o = part(o, rows(n, vw) / 2);
    scan_scratch p;
    (void)scan_scratch_of(g->shape, n, scratch, &p);
    record_prep(g, &a, tok, l, y, &p);
    record_scan(g, kind, &a, seg, l, &p);
    rec_label(g->rec, "gdn norm");
    rec_dispatch(g->rec, KERNEL_gdn_norm_bf16, (n * a.v_heads + 7) / 8, 1);
    rec_read(g->rec, tok);
    rec_read(g->rec, p.raw);
    rec_read(g->rec, l->norm);
    rec_read(g->rec, y);
    rec_write(g->rec, l->ring);
    rec_write(g->rec, o);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, 2.5 * (double)rows(n, vw), 10.0 * n * vw);
}

void op_gdn_scan(gpu_context *g, uint32_t n, uint32_t n_segs, gpu_view tok, gpu_view seg,
                 const gpu_gdn *l, gpu_view y, gpu_view scratch, gpu_view o)
{
    const kernel_id k = scan_kernel(g);
    uint32_t i = 0;
    while (gdn_scan_kinds[i].kernel != k)
        i++;
    gdn_scan_with(g, &gdn_scan_kinds[i], n, n_segs, tok, seg, l, y, scratch, o);
}

/* Row r, column c of a head's state, in the kernels' order (kernels/gdn.h). */
static uint32_t state_index(uint32_t r, uint32_t c)
{
    return (c / 8) * GDN_TILE_FLOATS + (r / 16) * 128 + ((r / 4 % 4) * 8 + c % 8) * 4 + r % 4;
}

void gdn_state_to_image(const float *state, float *image)
{
    for (uint32_t r = 0; r < MODEL_GDN_DIM; r++)
        for (uint32_t c = 0; c < MODEL_GDN_DIM; c++)
            image[r * MODEL_GDN_DIM + c] = state[state_index(r, c)];
}

void gdn_state_from_image(const float *image, float *state)
{
    for (uint32_t r = 0; r < MODEL_GDN_DIM; r++)
        for (uint32_t c = 0; c < MODEL_GDN_DIM; c++)
            state[state_index(r, c)] = image[r * MODEL_GDN_DIM + c];
}
