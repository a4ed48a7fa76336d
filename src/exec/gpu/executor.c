/* Creation, the memory plan, the table of operations. */
#include "exec/gpu/gpu.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Scratch is described once, by scratch_layout(), which runs twice: to measure, then to hand out.
 */
static gpu_view carve(gpu_scratch *s, uint64_t bytes)
{
    return gpu_carve(s->buf, &s->bytes, bytes);
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t op_bytes(const model_shape *s, uint32_t chunk)
{
    const uint32_t segs = chunk / 2 < GPU_SEGS_MAX ? chunk / 2 + 1 : GPU_SEGS_MAX;
    uint64_t n = op_moe_scratch(s, GPU_DECODE_MAX);
    n = max_u64(n, op_gemv_scratch(s, GPU_DECODE_MAX));
    n = max_u64(n, op_attn_step_scratch(s, GPU_DECODE_MAX, gpu_len_bucket(s->max_context)));
    n = max_u64(n, op_moe_gemm_scratch(s, chunk));
    n = max_u64(n, op_gdn_scan_scratch(s, chunk, segs));
    n = max_u64(n, op_attn_scan_scratch(s, chunk, segs));
    return max_u64(n, op_sample_scratch(s, GPU_DECODE_MAX));
}

static void scratch_layout(gpu_scratch *t, const model_shape *s, uint32_t chunk)
{
    const uint64_t n = chunk < GPU_DECODE_MAX ? GPU_DECODE_MAX : chunk;
    const uint32_t n1 = shape_conv_channels(s) + shape_gdn_v_width(s) + 2 * s->gdn_v_heads;
    const uint32_t n2 = 2 * shape_q_width(s) + 2 * shape_kv_width(s);
    const uint32_t mix =
        shape_q_width(s) > shape_gdn_v_width(s) ? shape_q_width(s) : shape_gdn_v_width(s);
    t->bytes = 0;
    t->router = carve(t, op_router_scratch(s, GPU_DECODE_MAX));
    t->gdn = carve(t, op_gdn_step_scratch(s, GPU_DECODE_MAX));
    t->zero = (gpu_view){t->buf, 0, t->bytes};
    t->tok = carve(t, n * sizeof(tok_entry));
    t->seg = carve(t, GPU_SEGS_MAX * sizeof(seg_entry));
    t->rows_of = carve(t, GPU_DECODE_MAX * 4);
    t->x = carve(t, n * s->hidden * 4);
    t->xn = carve(t, n * s->hidden * 2);
    t->y = carve(t, n * (n1 > n2 ? n1 : n2) * 4);
    t->o = carve(t, max_u64(n * mix * 2, (uint64_t)GPU_DECODE_MAX * mix * 4));
    t->rope = carve(t, n * MODEL_ROTARY_DIM * 4);
    t->ids = carve(t, n * s->n_experts_used * 4);
    t->weights = carve(t, n * (s->n_experts_used + 1u) * 4);
    t->route_logits = carve(t, n * (s->n_experts + 1u) * 4);
    t->logits = carve(t, (uint64_t)GPU_LOGIT_ROWS * s->n_vocab * 4);
    t->op = carve(t, op_bytes(s, chunk));
}

static uint32_t chunk_of(const exec_options *o)
{
    const uint32_t n = o->chunk_tokens == 0 ? GPU_CHUNK_DEFAULT : o->chunk_tokens;
    return n > GPU_CHUNK_MAX ? GPU_CHUNK_MAX : n;
}

/* With all mechanisms on. native_mm: as in gpu_limits; it takes a little more. */
static void plan_all(const model_shape *s, gpu_mm native_mm, uint32_t chunk, uint32_t n_ctx,
                     exec_plan *plan)
{
    const gpu_context ctx = {.shape = s, .native_mm = native_mm};
    gpu_scratch t = {0};
    scratch_layout(&t, s, chunk);
    *plan = (exec_plan){.kv_bytes = gpu_arena_bytes(s, n_ctx, 0),
                        .state_bytes = gpu_arena_bytes(s, 0, 1),
                        .scratch_bytes = t.bytes + op_mm_scratch(&ctx, chunk) +
                                         gpu_stream_bytes(s) + gpu_arena_bytes(s, GPU_PARK_ROWS, 0),
                        .weight_bytes = gpu_weights_bytes(s)};
}

void exec_gpu_plan(const model_shape *shape, const exec_options *options, uint32_t n_ctx,
                   exec_plan *plan)
{
    plan_all(shape, GPU_MM_WGMMA, chunk_of(options), n_ctx, plan);
}

/* ---- operations ---- */

void gpu_programs_forget(gpu_exec *ex)
{
    gpu_stream_drain(ex);
    for (uint32_t i = 0; i < GPU_PROGRAMS_MAX; i++) {
        if (ex->programs[i].program != NULL)
            ex->dev->ops->program_destroy(ex->dev, ex->programs[i].program);
        ex->programs[i].program = NULL;
    }
}

static void destroy_buffers(gpu_exec *ex, gpu_buffer **list, uint32_t n)
{
    for (uint32_t i = 0; list != NULL && i < n; i++)
        if (list[i] != NULL) ex->dev->ops->buffer_destroy(ex->dev, list[i]);
    mem_free(list);
}

static void op_destroy(executor *base)
{
    if (base == NULL) return;
    gpu_exec *ex = gpu_self(base);
    gpu_programs_forget(ex);
    gpu_stream_free(ex);
    destroy_buffers(ex, ex->k, ex->n_full);
    destroy_buffers(ex, ex->v, ex->n_full);
    destroy_buffers(ex, ex->state, ex->n_gdn);
    destroy_buffers(ex, ex->ring, ex->n_gdn);
    gpu_weights_free(&ex->w, ex->dev);
    if (ex->s.buf != NULL) ex->dev->ops->buffer_destroy(ex->dev, ex->s.buf);
    if (ex->mm != NULL) ex->dev->ops->buffer_destroy(ex->dev, ex->mm);
    recorder_destroy(ex->rec);
    ex->dev->ops->destroy(ex->dev);
    mem_free(ex->seqs);
    mem_free(ex->slot_used);
    mem_free(ex->tok_host);
    mem_free(ex->seg_host);
    mem_free(ex->host);
    mem_free(ex);
}

static const char *op_variant(const executor *ex)
{
    return gpu_self_c(ex)->variant;
}

static uint32_t op_n_threads(const executor *ex)
{
    (void)ex;
    return 1;
}

static void op_plan(const executor *base, uint32_t n_ctx, exec_plan *plan)
{
    const gpu_exec *ex = gpu_self_c(base);
    plan_all(ex->shape, ex->ctx.native_mm, ex->chunk, n_ctx, plan);
}

static uint32_t op_seq_position(const exec_seq *seq)
{
    return seq->n_tokens;
}

static void op_seq_reset(executor *base, exec_seq *seq)
{
    (void)base;
    seq->n_tokens = 0;
}

static calla_status op_run(executor *base, const exec_segment *segs, uint32_t n_segs,
                           calla_error *err)
{
    return gpu_forward(gpu_self(base), segs, n_segs, err);
}

/* Makes ctx.mm large enough for a whole chunk. */
calla_status gpu_mm_reserve(gpu_exec *ex, calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    const uint64_t bytes = op_mm_scratch(&ex->ctx, ex->chunk);
    if (bytes == 0 || (ex->mm != NULL && ops->buffer_bytes(ex->mm) >= bytes)) return CALLA_OK;
    if (ex->mm != NULL) ops->buffer_destroy(ex->dev, ex->mm);
    ex->mm = NULL;
    ex->ctx.mm = (gpu_view){NULL, 0, 0};
    const calla_status st =
        ops->buffer_create(ex->dev, GPU_MEM_DEVICE, bytes, "products", &ex->mm, err);
    if (st == CALLA_OK) ex->ctx.mm = (gpu_view){ex->mm, 0, bytes};
    return st;
}

static void op_tap(executor *base, exec_tap_fn fn, void *user)
{
    gpu_exec *ex = gpu_self(base);
    ex->tap = fn;
    ex->tap_user = user;
}

static const char *const switch_names[GPU_SW_COUNT] = {
#define S(name) #name,
    GPU_SWITCHES(S)
#undef S
};

static calla_status op_ablate(executor *base, const char *list, calla_error *err)
{
    gpu_exec *ex = gpu_self(base);
    bool off[GPU_SW_COUNT] = {false};
    while (list != NULL && *list != '\0') {
        const size_t n = strcspn(list, ",");
        uint32_t i = 0;
        while (i < GPU_SW_COUNT &&
               (strlen(switch_names[i]) != n || strncmp(list, switch_names[i], n) != 0))
            i++;
        if (i == GPU_SW_COUNT)
            return err_set(err, CALLA_ERR_ARGUMENT, "there is no mechanism \"%.*s\" to ablate",
                           (int)n, list);
        off[i] = true;
        list += n;
        if (*list == ',') list++;
    }
    gpu_programs_forget(ex);
    memcpy(ex->ctx.off, off, sizeof off);
    return gpu_mm_reserve(ex, err);
}

/* The program calls itself by its device. */
static exec_ops make_ops(const char *name)
{
    return (exec_ops){
        .name = name,
        .piece_tokens = 512, /* some 33 ms on an H200 */
        .destroy = op_destroy,
        .variant = op_variant,
        .n_threads = op_n_threads,
        .plan = op_plan,
        .seq_create = gpu_seq_create,
        .seq_destroy = gpu_seq_destroy,
        .seq_position = op_seq_position,
        .seq_reset = op_seq_reset,
        .run = op_run,
        .seq_image_bytes = gpu_image_bytes,
        .seq_save = gpu_seq_save,
        .seq_load = gpu_seq_load,
        .seq_state_bytes = gpu_state_bytes,
        .seq_state_save = gpu_state_save,
        .seq_restore = gpu_seq_restore,
        .stream_begin = gpu_stream_begin,
        .stream_next = gpu_stream_next,
        .stream_end = gpu_stream_end,
        .copy_bandwidth = gpu_copy_bandwidth,
        .ablate = op_ablate,
        .profile = gpu_profile,
        .tap = op_tap,
    };
}

/* ---- creation ---- */

static calla_status check(const model_shape *s, const exec_options *o, calla_error *err)
{
    if (o->kv_type == CALLA_KV_F32)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "a GPU keeps keys and values as bf16; f32 needs the cpu backend");
    if (s->gdn_v_heads % 2 != 0)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "a GPU needs an even linear_num_value_heads, found %u", s->gdn_v_heads);
    if (s->n_heads / s->n_kv_heads > 16)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "a GPU takes up to 16 query heads for each KV head, found %u",
                       s->n_heads / s->n_kv_heads);
    return CALLA_OK;
}

static void know_device(gpu_exec *ex)
{
    gpu_limits lim;
    ex->dev->ops->limits(ex->dev, &lim);
    (void)snprintf(ex->variant, sizeof ex->variant, "%s", lim.name);
    ex->ctx.n_cores = lim.n_cores;
    ex->ctx.native_mm = lim.native_mm;
    ex->dispatch_flops = lim.dispatch_flops;
    if (lim.dispatch_flops != 0) ex->ops.piece_tokens = 128; /* some 0.2 s on an M1 Max */
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

/* Weights, scratch and one sequence must fit before anything is allocated. */
static calla_status check_memory(const gpu_exec *ex, uint32_t n_ctx, calla_error *err)
{
    gpu_limits lim;
    exec_plan p;
    ex->dev->ops->limits(ex->dev, &lim);
    plan_all(ex->shape, lim.native_mm, ex->chunk, n_ctx, &p);
    const uint64_t seq = p.kv_bytes + p.state_bytes;
    const uint64_t sum = p.weight_bytes + p.scratch_bytes + seq;
    if (lim.total_bytes == 0 || sum <= lim.free_bytes) return CALLA_OK;
    return err_set(err, CALLA_ERR_MEMORY,
                   "not enough GPU memory: %.2f GiB of weights + %.2f GiB of scratch + %.2f GiB "
                   "for a sequence of %u tokens = %.2f GiB, found %.2f of %.2f GiB free on %s",
                   gib(p.weight_bytes), gib(p.scratch_bytes), gib(seq), n_ctx, gib(sum),
                   gib(lim.free_bytes), gib(lim.total_bytes), lim.name);
}

static uint32_t ctx_of(const model_shape *s, const exec_options *o)
{
    const uint32_t n = o->n_ctx == 0 ? GPU_CTX_DEFAULT : o->n_ctx;
    return n < s->max_context ? n : s->max_context;
}

static calla_status allocate(gpu_exec *ex, uint32_t n_ctx, calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    ex->k = mem_array(ex->n_full, sizeof *ex->k);
    ex->v = mem_array(ex->n_full, sizeof *ex->v);
    ex->state = mem_array(ex->n_gdn, sizeof *ex->state);
    ex->ring = mem_array(ex->n_gdn, sizeof *ex->ring);
    ex->tok_host =
        mem_array(ex->chunk < GPU_DECODE_MAX ? GPU_DECODE_MAX : ex->chunk, sizeof *ex->tok_host);
    ex->seg_host = mem_array(GPU_SEGS_MAX, sizeof *ex->seg_host);
    ex->host = mem_array(2u * MODEL_GDN_DIM * MODEL_GDN_DIM, sizeof *ex->host);
    if (ex->k == NULL || ex->v == NULL || ex->state == NULL || ex->ring == NULL ||
        ex->tok_host == NULL || ex->seg_host == NULL || ex->host == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the executor");
    know_device(ex);
    scratch_layout(&ex->s, ex->shape, ex->chunk);
    calla_status st = check_memory(ex, n_ctx, err);
    if (st == CALLA_OK)
        st = ops->buffer_create(ex->dev, GPU_MEM_DEVICE, ex->s.bytes, "scratch", &ex->s.buf, err);
    if (st != CALLA_OK) return st;
    scratch_layout(&ex->s, ex->shape, ex->chunk);
    st = gpu_mm_reserve(ex, err);
    if (st == CALLA_OK) st = gpu_stream_create(ex, err);
    return st == CALLA_OK ? ops->zero(ex->dev, ex->s.zero, err) : st;
}

calla_status gpu_exec_create(executor **out, gpu_device *dev, const model_shape *shape,
                             const model_weights *weights, const exec_options *options,
                             calla_error *err)
{
    gpu_exec *ex = mem_alloc(sizeof *ex);
    if (ex == NULL) {
        dev->ops->destroy(dev);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the executor");
    }
    ex->ops = make_ops(dev->ops->name);
    ex->base.ops = &ex->ops;
    ex->dev = dev;
    ex->shape = shape;
    ex->chunk = chunk_of(options);
    ex->n_full = shape->n_layers / shape->full_interval;
    ex->n_gdn = shape->n_layers - ex->n_full;
    ex->ctx.shape = shape;
    calla_status st = check(shape, options, err);
    if (st == CALLA_OK) st = recorder_create(&ex->rec, dev, err);
    ex->ctx.rec = ex->rec;
    if (st == CALLA_OK) st = allocate(ex, ctx_of(shape, options), err);
    if (st == CALLA_OK)
        st = weights == NULL ? gpu_weights_place(&ex->w, dev, shape, err)
                             : gpu_weights_load(&ex->w, dev, shape, weights, options, err);
    if (st != CALLA_OK) {
        op_destroy(&ex->base);
        return st;
    }
    *out = &ex->base;
    return CALLA_OK;
}

calla_status exec_gpu_open(executor **out, const char *driver, const model_shape *shape,
                           const model_weights *weights, const exec_options *options,
                           calla_error *err)
{
    gpu_device *dev = NULL;
    calla_status st;
    *out = NULL;
    if (strcmp(driver, "cuda") == 0)
        st = gpu_cuda_create(&dev, 0, err);
    else if (strcmp(driver, "metal") == 0)
        st = gpu_metal_create(&dev,
                              &(gpu_metal_options){.cache_dir = options->pack_dir,
                                                   .max_rung = -1,
                                                   .log = options->log,
                                                   .log_user = options->log_user},
                              err);
    else if (strcmp(driver, "simt") == 0)
        st = gpu_simt_create(&dev, &(gpu_simt_options){.threads = options->n_threads}, err);
    else
        st = err_set(err, CALLA_ERR_UNSUPPORTED, "there is no GPU driver \"%s\"", driver);
    return st == CALLA_OK ? gpu_exec_create(out, dev, shape, weights, options, err) : st;
}
