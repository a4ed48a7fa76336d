/* Creation, memory plan, sequences and their images. The layout of scratch is described once, by
 * scratch_layout(), which runs twice: without memory to measure, then to hand out addresses. */
#include <math.h>
#include <string.h>

#include "base/ck.h"
#include "base/mem.h"
#include "exec/cpu/cpu.h"
#include "exec/cpu/registry.h"

typedef struct carver {
    uint8_t *base; /* NULL: measuring */
    uint64_t used;
} carver;

/* Two lines of the cache, which processors like to fetch together. */
#define LINE_PAIR 128u

static void *carve(carver *c, uint64_t n, uint64_t size)
{
    void *p = c->base == NULL ? NULL : c->base + c->used;
    c->used += (n * size + LINE_PAIR - 1) / LINE_PAIR * LINE_PAIR;
    return p;
}

/* Rows are an odd number of pairs of lines apart: by a power of two, as the widths are, the same
 * column of all tokens would have to share a few sets of the caches. */
static void carve_rows(carver *c, rows *r, uint64_t n, uint64_t n_floats)
{
    const uint64_t n_pairs = (n_floats * sizeof(float) + LINE_PAIR - 1) / LINE_PAIR;
    r->stride = (size_t)(n_pairs | 1) * (LINE_PAIR / sizeof(float));
    r->base = carve(c, n * r->stride, sizeof(float));
    r->p = carve(c, n, sizeof(float *));
    if (c->base == NULL) return;
    for (uint64_t i = 0; i < n; i++)
        r->p[i] = r->base + i * r->stride;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Floats that hold n values prepared for Q4. */
static uint64_t prep_floats(const cpu_exec *ex, uint64_t n)
{
    return (n + MODEL_QUANT_GROUP - 1) / MODEL_QUANT_GROUP * ex->prep_bytes / sizeof(float);
}

static void scratch_layout(cpu_exec *ex, carver *c)
{
    const model_shape *s = ex->shape;
    const uint64_t n = ex->chunk, slots = n * (s->n_experts_used + 1);
    const uint32_t mix = max_u32(shape_gdn_v_width(s), shape_q_width(s));
    const uint32_t width = max_u32(s->expert_width, s->shared_width);
    ex->seg_first = carve(c, n, sizeof *ex->seg_first);
    ex->tokens = carve(c, n, sizeof *ex->tokens);
    ex->inv_freq = carve(c, MODEL_ROTARY_DIM / 2, sizeof(float));
    ex->rope_cos = carve(c, n * (MODEL_ROTARY_DIM / 2), sizeof(float));
    ex->rope_sin = carve(c, n * (MODEL_ROTARY_DIM / 2), sizeof(float));
    carve_rows(c, &ex->x, n, s->hidden);
    carve_rows(c, &ex->xn, n, s->hidden);
    carve_rows(c, &ex->xp, n, prep_floats(ex, s->hidden));
    carve_rows(c, &ex->mix, n, mix);
    carve_rows(c, &ex->mixp, n, prep_floats(ex, mix));
    carve_rows(c, &ex->qkv, n, shape_conv_channels(s));
    carve_rows(c, &ex->conv, n, shape_conv_channels(s));
    carve_rows(c, &ex->z, n, shape_gdn_v_width(s));
    carve_rows(c, &ex->b, n, s->gdn_v_heads);
    carve_rows(c, &ex->a, n, s->gdn_v_heads);
    carve_rows(c, &ex->q, n, 2 * (uint64_t)shape_q_width(s));
    carve_rows(c, &ex->k, n, shape_kv_width(s));
    carve_rows(c, &ex->v, n, shape_kv_width(s));
    ex->part_rows = attention_part_rows(s);
    ex->attn_part = carve(c, (uint64_t)ex->part_rows * MODEL_HEAD_DIM, sizeof(float));
    ex->attn_part_st = carve(c, ex->part_rows, sizeof *ex->attn_part_st);
    carve_rows(c, &ex->logits, n, s->n_experts);
    carve_rows(c, &ex->shared_logit, n, 1);
    carve_rows(c, &ex->slot_gate, slots, width);
    carve_rows(c, &ex->slot_up, slots, width);
    carve_rows(c, &ex->slot_act, slots, prep_floats(ex, width));
    carve_rows(c, &ex->slot_out, slots, s->hidden);
    ex->slot_x = carve(c, slots, sizeof *ex->slot_x);
    ex->slot_xp = carve(c, slots, sizeof *ex->slot_xp);
    ex->logit_y = carve(c, n, sizeof *ex->logit_y);
    ex->route_expert = carve(c, slots, sizeof *ex->route_expert);
    ex->route_weight = carve(c, slots, sizeof *ex->route_weight);
    ex->route_slot = carve(c, slots, sizeof *ex->route_slot);
    ex->expert_count = carve(c, s->n_experts + 1u, sizeof *ex->expert_count);
    ex->groups = carve(c, s->n_experts + 1u, sizeof *ex->groups);
    const size_t lin = linear_scratch_floats(s), att = attention_scratch_floats(s);
    ex->thread_floats = ((lin > att ? lin : att) + 15) / 16 * 16;
    ex->thread_mem = carve(c, ex->thread_floats * (uint64_t)ex->n_threads, sizeof(float));
}

/* Elements of a sequence's arrays. */
static uint32_t n_full_layers(const model_shape *s)
{
    return s->n_layers / s->full_interval;
}

static uint32_t n_gdn_layers(const model_shape *s)
{
    return s->n_layers - n_full_layers(s);
}

static uint64_t kv_elem_bytes(calla_kv_type t)
{
    return t == CALLA_KV_F32 ? sizeof(float) : sizeof(uint16_t);
}

static uint64_t kv_half_bytes(const model_shape *s, calla_kv_type t, uint64_t n_tokens)
{
    return (uint64_t)n_full_layers(s) * shape_kv_width(s) * n_tokens * kv_elem_bytes(t);
}

static uint64_t gdn_bytes(const model_shape *s)
{
    return (uint64_t)n_gdn_layers(s) * s->gdn_v_heads * GDN_STATE_FLOATS * sizeof(float);
}

static uint64_t conv_bytes(const model_shape *s)
{
    return (uint64_t)n_gdn_layers(s) * 3 * shape_conv_channels(s) * sizeof(float);
}

static calla_kv_type kv_resolve(calla_kv_type t)
{
    return t == CALLA_KV_DEFAULT ? CALLA_KV_BF16 : t;
}

/* The kernels and how Q4 matrices take their inputs. */
static calla_status choose_kernels(cpu_exec *ex, const char *variant, calla_error *err)
{
    const cpu_kernels *k = &ex->kern;
    const calla_status st = cpu_kernels_select(&ex->kern, variant, err);
    if (st != CALLA_OK) return st;
    if (ex->precision == CALLA_PRECISION_DEFAULT)
        ex->precision =
            k->matmul_i16 == ref_matmul_i16 ? CALLA_PRECISION_EXACT : CALLA_PRECISION_INT16;
    switch (ex->precision) {
    case CALLA_PRECISION_EXACT:
        ex->prep = k->prep_q4;
        ex->matmul_q4 = k->matmul_q4;
        ex->prep_bytes = PREP_BYTES_F32;
        break;
    case CALLA_PRECISION_INT8:
        ex->prep = k->prep_i8;
        ex->matmul_q4 = k->matmul_i8;
        ex->prep_bytes = PREP_BYTES_I8;
        break;
    case CALLA_PRECISION_DEFAULT:
    case CALLA_PRECISION_INT16:
        ex->prep = k->prep_i16;
        ex->matmul_q4 = k->matmul_i16;
        ex->prep_bytes = PREP_BYTES_I16;
        break;
    }
    return CALLA_OK;
}

/* Fills the fields that scratch_layout needs, but for prep_bytes: choose_kernels. */
static void settle(cpu_exec *ex, const model_shape *shape, const exec_options *o)
{
    ex->shape = shape;
    ex->kv_type = kv_resolve(o->kv_type);
    ex->precision = o->precision;
    ex->chunk = o->chunk_tokens == 0 ? CPU_CHUNK_DEFAULT : o->chunk_tokens;
    ex->n_threads = o->n_threads == 0 ? cpu_count() : o->n_threads;
    if (ex->chunk > CPU_CHUNK_MAX) ex->chunk = CPU_CHUNK_MAX;
    if (ex->n_threads > POOL_THREADS_MAX) ex->n_threads = POOL_THREADS_MAX;
}

/* Positions that the cache of a sequence has: whole blocks. */
static uint32_t kv_rows(uint32_t n_ctx)
{
    return (n_ctx + ATTN_BLOCK - 1) / ATTN_BLOCK * ATTN_BLOCK;
}

static void plan_seq(const model_shape *s, calla_kv_type kv, uint32_t n_ctx, exec_plan *plan)
{
    plan->kv_bytes = 2 * kv_half_bytes(s, kv, kv_rows(n_ctx));
    plan->state_bytes = gdn_bytes(s) + conv_bytes(s);
}

void exec_cpu_plan(const model_shape *shape, const exec_options *options, uint32_t n_ctx,
                   exec_plan *plan)
{
    cpu_exec ex = {0};
    carver c = {0};
    settle(&ex, shape, options);
    if (choose_kernels(&ex, options->variant, NULL) != CALLA_OK) ex.prep_bytes = PREP_BYTES_F32;
    scratch_layout(&ex, &c);
    plan_seq(shape, ex.kv_type, n_ctx, plan);
    plan->scratch_bytes = c.used;
    plan->weight_bytes = 0;
}

/* ---- operations ---- */

static cpu_exec *self(executor *ex)
{
    return (cpu_exec *)ex;
}

static const cpu_exec *self_c(const executor *ex)
{
    return (const cpu_exec *)ex;
}

static void op_destroy(executor *base)
{
    if (base == NULL) return;
    cpu_exec *ex = self(base);
    pool_destroy(ex->pool);
    mem_free_pages(ex->scratch, (size_t)ex->scratch_bytes);
    mem_free(ex);
}

static const char *op_variant(const executor *ex)
{
    return self_c(ex)->kern.name;
}

static uint32_t op_n_threads(const executor *ex)
{
    return pool_n_threads(self_c(ex)->pool);
}

static void op_plan(const executor *base, uint32_t n_ctx, exec_plan *plan)
{
    const cpu_exec *ex = self_c(base);
    plan_seq(ex->shape, ex->kv_type, n_ctx, plan);
    plan->scratch_bytes = ex->scratch_bytes;
    plan->weight_bytes = 0;
}

static void op_seq_destroy(executor *base, exec_seq *seq)
{
    (void)base;
    if (seq == NULL) return;
    mem_free_pages(seq->k, (size_t)seq->kv_bytes);
    mem_free_pages(seq->v, (size_t)seq->kv_bytes);
    mem_free_pages(seq->gdn, (size_t)seq->gdn_bytes);
    mem_free_pages(seq->conv, (size_t)seq->conv_bytes);
    mem_free(seq);
}

static calla_status op_seq_create(executor *base, uint32_t n_ctx, exec_seq **out, calla_error *err)
{
    const cpu_exec *ex = self_c(base);
    const model_shape *s = ex->shape;
    *out = NULL;
    exec_seq *seq = mem_alloc(sizeof *seq);
    if (seq != NULL) {
        seq->n_ctx = n_ctx;
        seq->n_rows = kv_rows(n_ctx);
        seq->elem_bytes = (size_t)kv_elem_bytes(ex->kv_type);
        seq->kv_bytes = kv_half_bytes(s, ex->kv_type, seq->n_rows);
        seq->gdn_bytes = gdn_bytes(s);
        seq->conv_bytes = conv_bytes(s);
        seq->k = mem_alloc_pages((size_t)seq->kv_bytes);
        seq->v = mem_alloc_pages((size_t)seq->kv_bytes);
        mem_small_pages(seq->k, (size_t)seq->kv_bytes); /* a short sequence stays small */
        mem_small_pages(seq->v, (size_t)seq->kv_bytes);
        seq->gdn = mem_alloc_pages((size_t)seq->gdn_bytes);
        mem_large_pages(seq->gdn, (size_t)seq->gdn_bytes);
        seq->conv = mem_alloc_pages((size_t)seq->conv_bytes);
    }
    if (seq == NULL || seq->k == NULL || seq->v == NULL || seq->gdn == NULL || seq->conv == NULL) {
        op_seq_destroy(base, seq);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a sequence of %u tokens", n_ctx);
    }
    *out = seq;
    return CALLA_OK;
}

static uint32_t op_seq_position(const exec_seq *seq)
{
    return seq->n_tokens;
}

static void op_seq_reset(executor *base, exec_seq *seq)
{
    (void)base;
    seq->n_tokens = 0;
    memset(seq->gdn, 0, (size_t)seq->gdn_bytes);
    memset(seq->conv, 0, (size_t)seq->conv_bytes);
}

static calla_status op_run(executor *base, const exec_segment *segs, uint32_t n_segs,
                           calla_error *err)
{
    return cpu_forward(self(base), segs, n_segs, err);
}

static uint64_t op_image_bytes(const executor *base, uint32_t n_tokens)
{
    const cpu_exec *ex = self_c(base);
    return 2 * kv_half_bytes(ex->shape, ex->kv_type, n_tokens) + gdn_bytes(ex->shape) +
           conv_bytes(ex->shape);
}

/* The first n_tokens positions of one head's keys or values, between the cache's order and rows of
 * 256. Sixteen-bit and 32-bit elements; the positions of a group together, for its lines. */
static void head_copy(uint8_t *cache, uint8_t *image, bool keys, calla_kv_type type,
                      uint32_t n_tokens, bool save)
{
    const size_t size = (size_t)kv_elem_bytes(type);
    for (uint32_t first = 0; first < n_tokens; first += ATTN_KEYS) {
        const uint32_t end = n_tokens - first < ATTN_KEYS ? n_tokens : first + ATTN_KEYS;
        for (uint32_t i = 0; i < MODEL_HEAD_DIM; i++)
            for (uint32_t pos = first; pos < end; pos++) {
                uint8_t *at =
                    cache + (keys ? attn_key_at(type, pos, i) : attn_value_at(type, pos, i)) * size;
                uint8_t *img = image + ((size_t)pos * MODEL_HEAD_DIM + i) * size;
                if (size == sizeof(float))
                    memcpy(save ? img : at, save ? at : img, sizeof(float));
                else
                    memcpy(save ? img : at, save ? at : img, sizeof(uint16_t));
            }
    }
}

/* Image: K rows [full][kv head][n_tokens][256], V rows, recurrent state [gdn][head][k][v] f32,
 * convolution rows [gdn][3][channels] f32. One function for both directions keeps them equal. */
static void image_copy(const cpu_exec *ex, exec_seq *seq, uint8_t *image, uint32_t n_tokens,
                       bool save)
{
    const model_shape *s = ex->shape;
    const size_t row = MODEL_HEAD_DIM * seq->elem_bytes;
    const uint64_t n_caches = (uint64_t)n_full_layers(s) * s->n_kv_heads;
    for (int half = 0; half < 2; half++) {
        uint8_t *cache = half == 0 ? seq->k : seq->v;
        for (uint64_t i = 0; i < n_caches; i++, image += n_tokens * row)
            head_copy(cache + i * seq->n_rows * row, image, half == 0, ex->kv_type, n_tokens, save);
    }
    const size_t n_slabs = (size_t)(seq->gdn_bytes / (GDN_SLAB * sizeof(float)));
    for (size_t i = 0; i < n_slabs; i++) { /* i-th run of GDN_SLAB values in slab order */
        const size_t head = i / (GDN_STATE_FLOATS / GDN_SLAB),
                     r = i % (GDN_STATE_FLOATS / GDN_SLAB);
        const size_t k = r % MODEL_GDN_DIM, slab = r / MODEL_GDN_DIM;
        float *at = seq->gdn + i * GDN_SLAB;
        uint8_t *img =
            image + (head * GDN_STATE_FLOATS + k * MODEL_GDN_DIM + slab * GDN_SLAB) * sizeof(float);
        if (save)
            memcpy(img, at, GDN_SLAB * sizeof(float));
        else
            memcpy(at, img, GDN_SLAB * sizeof(float));
    }
    image += seq->gdn_bytes;
    if (save)
        memcpy(image, seq->conv, (size_t)seq->conv_bytes);
    else
        memcpy(seq->conv, image, (size_t)seq->conv_bytes);
}

static calla_status op_seq_save(executor *base, const exec_seq *seq, uint8_t *image,
                                calla_error *err)
{
    (void)err;
    image_copy(self_c(base), (exec_seq *)(uintptr_t)seq, image, seq->n_tokens, true);
    return CALLA_OK;
}

static calla_status op_seq_load(executor *base, exec_seq *seq, const uint8_t *image,
                                uint32_t n_tokens, calla_error *err)
{
    if (n_tokens > seq->n_ctx)
        return err_set(err, CALLA_ERR_FULL,
                       "a snapshot of %u tokens does not fit into a context of %u", n_tokens,
                       seq->n_ctx);
    image_copy(self_c(base), seq, (uint8_t *)(uintptr_t)image, n_tokens, false);
    seq->n_tokens = n_tokens;
    return CALLA_OK;
}

static uint64_t op_state_bytes(const executor *base)
{
    const model_shape *s = self_c(base)->shape;
    return gdn_bytes(s) + conv_bytes(s);
}

static calla_status op_state_save(executor *base, const exec_seq *seq, uint8_t *state,
                                  calla_error *err)
{
    (void)base;
    (void)err;
    memcpy(state, seq->gdn, (size_t)seq->gdn_bytes);
    memcpy(state + seq->gdn_bytes, seq->conv, (size_t)seq->conv_bytes);
    return CALLA_OK;
}

static calla_status op_restore(executor *base, exec_seq *dst, const exec_seq *src,
                               uint32_t n_tokens, const uint8_t *state, calla_error *err)
{
    (void)err;
    const model_shape *s = self_c(base)->shape;
    const size_t row = MODEL_HEAD_DIM * src->elem_bytes;
    const size_t n_caches = (size_t)n_full_layers(s) * s->n_kv_heads;
    for (size_t i = 0; dst != src && n_tokens != 0 && i < n_caches; i++) {
        const size_t to = i * dst->n_rows * row, from = i * src->n_rows * row;
        memcpy(dst->k + to, src->k + from, kv_rows(n_tokens) * row);
        memcpy(dst->v + to, src->v + from, kv_rows(n_tokens) * row);
    }
    memcpy(dst->gdn, state, (size_t)dst->gdn_bytes);
    memcpy(dst->conv, state + dst->gdn_bytes, (size_t)dst->conv_bytes);
    dst->n_tokens = n_tokens;
    return CALLA_OK;
}

static void op_tap(executor *base, exec_tap_fn fn, void *user)
{
    cpu_exec *ex = self(base);
    ex->tap = fn;
    ex->tap_user = user;
}

static const exec_ops ops = {
    .name = "cpu",
    .piece_tokens = 64,
    .destroy = op_destroy,
    .variant = op_variant,
    .n_threads = op_n_threads,
    .plan = op_plan,
    .seq_create = op_seq_create,
    .seq_destroy = op_seq_destroy,
    .seq_position = op_seq_position,
    .seq_reset = op_seq_reset,
    .run = op_run,
    .tap = op_tap,
    .profile = cpu_profile,
    .seq_image_bytes = op_image_bytes,
    .seq_save = op_seq_save,
    .seq_load = op_seq_load,
    .seq_state_bytes = op_state_bytes,
    .seq_state_save = op_state_save,
    .seq_restore = op_restore,
};

static calla_status check(const model_shape *s, const exec_options *o, calla_error *err)
{
    if (s->n_heads / s->n_kv_heads > ATTN_TILE_ROWS)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "the cpu executor takes up to %u query heads for each KV head, found %u",
                       ATTN_TILE_ROWS, s->n_heads / s->n_kv_heads);
    if (o->chunk_tokens > CPU_CHUNK_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "chunk_tokens is %u, the limit is %u",
                       o->chunk_tokens, CPU_CHUNK_MAX);
    return CALLA_OK;
}

calla_status exec_cpu_create(executor **out, const model_shape *shape, const model_weights *weights,
                             const exec_options *options, calla_error *err)
{
    calla_status st = CALLA_OK;
    carver c = {0};
    *out = NULL;
    cpu_exec *ex = mem_alloc(sizeof *ex);
    if (ex == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the executor");
    ex->base.ops = &ops;
    TRY(check(shape, options, err));
    settle(ex, shape, options);
    ex->weights = weights;
    TRY(choose_kernels(ex, options->variant, err));
    scratch_layout(ex, &c);
    ex->scratch_bytes = c.used;
    ex->scratch = mem_alloc_pages((size_t)c.used);
    if (ex->scratch == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for %llu bytes of scratch",
                     (unsigned long long)c.used);
        goto fail;
    }
    c = (carver){ex->scratch, 0};
    scratch_layout(ex, &c);
    for (uint32_t i = 0; i < MODEL_ROTARY_DIM / 2; i++)
        ex->inv_freq[i] = (float)(1.0 / pow((double)shape->rope_theta,
                                            2.0 * (double)i / (double)MODEL_ROTARY_DIM));
    TRY(pool_create(&ex->pool, ex->n_threads, err));
    *out = &ex->base;
    return CALLA_OK;
fail:
    op_destroy(&ex->base);
    return st;
}
