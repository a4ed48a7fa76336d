/* Attention of decode and prefill as dispatches. */
#include "exec/gpu/ops.h"

#include "kernels/args_attn.h"

#define D        ATTN_DIM
#define PACK_MAX 16u /* query heads of a KV head that one group takes */

static uint32_t blocks_of(uint32_t n, uint32_t size)
{
    return (n + size - 1) / size;
}

/* Key blocks of the longest sequence. */
static uint32_t key_blocks(uint32_t max_len)
{
    const uint32_t n = blocks_of(max_len, ATTN_BLOCK_MIN);
    return n < ATTN_BLOCKS_MAX ? n : ATTN_BLOCKS_MAX;
}

static attn_args common_args(const gpu_context *g, uint32_t n, const gpu_attn *l)
{
    const model_shape *s = g->shape;
    return (attn_args){.n_heads = s->n_heads,
                       .n_kv_heads = s->n_kv_heads,
                       .group = s->n_heads / s->n_kv_heads,
                       .n_rows = l->n_rows,
                       .y_pitch = 2 * shape_q_width(s) + 2 * shape_kv_width(s),
                       .n_tokens = n,
                       .eps = s->rms_eps};
}

/* The caches of all KV heads. Which rows a token touches only the device knows. */
static gpu_view cache(const attn_args *a, gpu_view v)
{
    return gpu_sub(v, 0, (uint64_t)a->n_kv_heads * a->n_rows * D * 2);
}

static void bind_inputs(gpu_context *g, const attn_args *a, gpu_view tok, gpu_view y)
{
    rec_read(g->rec, gpu_sub(tok, 0, (uint64_t)a->n_tokens * sizeof(tok_entry)));
    rec_read(g->rec, gpu_sub(y, 0, (uint64_t)a->n_tokens * a->y_pitch * 4));
}

/* What every kernel that prepares reads and appends to. */
static void bind_prepare(gpu_context *g, const attn_args *a, gpu_view tok, const gpu_attn *l,
                         gpu_view y, gpu_view rope)
{
    bind_inputs(g, a, tok, y);
    rec_read(g->rec, gpu_sub(rope, 0, (uint64_t)a->n_tokens * MODEL_ROTARY_DIM * 4));
    rec_read(g->rec, gpu_sub(l->q_norm, 0, D * 4));
    rec_read(g->rec, gpu_sub(l->k_norm, 0, D * 4));
    rec_read_write(g->rec, cache(a, l->k));
    rec_read_write(g->rec, cache(a, l->v));
}

static void prepare(gpu_context *g, const attn_args *a, gpu_view tok, const gpu_attn *l, gpu_view y,
                    gpu_view rope, gpu_view q, bool bf16)
{
    const uint32_t per = a->n_heads + a->n_kv_heads;
    rec_dispatch(g->rec, bf16 ? KERNEL_attn_prepare_bf16 : KERNEL_attn_prepare_f32,
                 blocks_of(a->n_tokens * per, 8), 1);
    bind_prepare(g, a, tok, l, y, rope);
    rec_write(g->rec, q);
    rec_args(g->rec, a, sizeof *a);
    const double q_values = (double)a->n_tokens * a->n_heads * D;
    const double kv_values = (double)a->n_tokens * 2 * a->n_kv_heads * D;
    rec_cost(g->rec, q_values * (bf16 ? 6 : 8) + kv_values * 6, (q_values + kv_values) * 6);
}

/* ---- decode ---- */

typedef struct step_scratch {
    gpu_view q, po, pml;
    uint64_t bytes;
} step_scratch;

static step_scratch step_views(const model_shape *s, uint32_t n, uint32_t n_blocks, gpu_view base)
{
    const uint64_t q = (uint64_t)n * shape_q_width(s) * 4;
    const uint64_t po = q * n_blocks;
    const uint64_t pml = (uint64_t)n * s->n_heads * n_blocks * 8;
    return (step_scratch){.q = {base.buf, base.off, q},
                          .po = {base.buf, base.off + q, po},
                          .pml = {base.buf, base.off + q + po, pml},
                          .bytes = q + po + pml};
}

uint64_t op_attn_step_scratch(const model_shape *s, uint32_t n, uint32_t max_len)
{
    return step_views(s, n, key_blocks(max_len), (gpu_view){NULL, 0, 0}).bytes;
}

/* mma: both pack and coalesce. */
static kernel_id step_kernel(bool fused, bool pack, bool coalesce, bool mma)
{
    if (mma) return fused ? KERNEL_attn_step_fused_mma : KERNEL_attn_step_plain_mma;
    static const kernel_id k[2][2][2] = {
        {{KERNEL_attn_step_plain_one_strided, KERNEL_attn_step_plain_one},
         {KERNEL_attn_step_plain_pack_strided, KERNEL_attn_step_plain_pack}},
        {{KERNEL_attn_step_fused_one_strided, KERNEL_attn_step_fused_one},
         {KERNEL_attn_step_fused_pack_strided, KERNEL_attn_step_fused_pack}}};
    return k[fused][pack][coalesce];
}

void op_attn_step(gpu_context *g, uint32_t n, uint32_t max_len, gpu_view tok, const gpu_attn *l,
                  gpu_view y, gpu_view rope, gpu_view scratch, gpu_view o)
{
    attn_args a = common_args(g, n, l);
    a.one = g->off[GPU_SW_attn_blocks];
    a.n_blocks = a.one ? 1 : key_blocks(max_len);
    const step_scratch s = step_views(g->shape, n, a.n_blocks, scratch);
    const bool fused = !g->off[GPU_SW_fuse_qkprep];
    const bool pack = !g->off[GPU_SW_gqa_pack] && a.group <= PACK_MAX;
    const bool coalesce = !g->off[GPU_SW_kv_coalesce];
    const bool wgmma = g->native_mm == GPU_MM_WGMMA;
    const bool mma =
        wgmma && !g->off[GPU_SW_attn_mm] && pack && coalesce && a.group <= ATTN_MMA_GROUP;
    const double keys = (double)n * max_len;

    if (!fused) prepare(g, &a, tok, l, y, rope, s.q, false);
    rec_dispatch(g->rec, step_kernel(fused, pack, coalesce, mma),
                 (pack ? a.n_kv_heads : a.n_heads) * a.n_blocks, n);
    if (fused) {
        bind_prepare(g, &a, tok, l, y, rope);
    } else {
        rec_read(g->rec, gpu_sub(tok, 0, (uint64_t)n * sizeof(tok_entry)));
        rec_read(g->rec, s.q);
        rec_read(g->rec, cache(&a, l->k));
        rec_read(g->rec, cache(&a, l->v));
    }
    rec_write(g->rec, s.po);
    rec_write(g->rec, s.pml);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, keys * a.n_kv_heads * D * 4, keys * a.n_heads * D * 4);

    rec_dispatch(g->rec, KERNEL_attn_merge, a.n_heads * 4, n);
    bind_inputs(g, &a, tok, y);
    rec_read(g->rec, s.po);
    rec_read(g->rec, s.pml);
    rec_write(g->rec, gpu_sub(o, 0, (uint64_t)n * a.n_heads * D * 4));
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * a.n_heads * D * (4 * a.n_blocks + 8),
             (double)n * a.n_heads * D * 2 * a.n_blocks);
}

/* ---- prefill ---- */

uint64_t op_attn_scan_scratch(const model_shape *s, uint32_t n, uint32_t n_segs)
{
    (void)n_segs;
    return (uint64_t)n * shape_q_width(s) * 2; /* q */
}

void op_attn_scan(gpu_context *g, uint32_t n, uint32_t n_segs, uint32_t max_len, gpu_view tok,
                  gpu_view seg, const gpu_attn *l, gpu_view y, gpu_view rope, gpu_view scratch,
                  gpu_view o)
{
    attn_args a = common_args(g, n, l);
    a.n_segs = n_segs;
    const gpu_view q = gpu_sub(scratch, 0, (uint64_t)n * a.n_heads * D * 2);
    prepare(g, &a, tok, l, y, rope, q, true);

    const bool wgmma = g->native_mm == GPU_MM_WGMMA;
    const bool native = wgmma && !g->off[GPU_SW_tensor_main] && a.group <= ATTN_SCAN_GROUP;
    if (!g->off[GPU_SW_attn_mm] && a.group <= ATTN_MM_ROWS) {
        const uint32_t per = (native ? ATTN_SCAN_ROWS : ATTN_MM_ROWS) / a.group;
        rec_dispatch(g->rec, native ? KERNEL_attn_scan_mma : KERNEL_attn_scan_mm,
                     (n / per + n_segs) * a.n_kv_heads, 1);
        rec_read(g->rec, gpu_sub(seg, 0, (uint64_t)n_segs * sizeof(seg_entry)));
    } else {
        const uint32_t quads = blocks_of(a.group, 4);
        rec_dispatch(g->rec, KERNEL_attn_scan_rows, blocks_of(n * a.n_kv_heads * quads, 8), 1);
        rec_read(g->rec, gpu_sub(tok, 0, (uint64_t)n * sizeof(tok_entry)));
    }
    rec_read(g->rec, gpu_sub(y, 0, (uint64_t)n * a.y_pitch * 4));
    rec_read(g->rec, q);
    rec_read(g->rec, cache(&a, l->k));
    rec_read(g->rec, cache(&a, l->v));
    rec_write(g->rec, gpu_sub(o, 0, (uint64_t)n * a.n_heads * D * 2));
    rec_args(g->rec, &a, sizeof a);
    /* Half of the chunk's own square is masked. */
    const double keys = (double)n * (max_len - n / 2.0);
    rec_cost(g->rec, (double)max_len * a.n_kv_heads * D * 4 + (double)n * a.n_heads * D * 8,
             keys * a.n_heads * D * 4);
}
