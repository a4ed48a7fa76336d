/* The schedule of a step without a device: buffers have sizes and no contents. */
#include "base/mem.h"
#include "exec/gpu/gpu.h"
#include "exec/predict.h"

struct gpu_buffer {
    uint64_t bytes;
};

typedef struct paper {
    gpu_device base;
    uint32_t n_cores;
    gpu_mm native_mm;
} paper;

static void paper_destroy(gpu_device *d)
{
    mem_free(d);
}

static void paper_limits(gpu_device *d, gpu_limits *out)
{
    const paper *p = (const paper *)(const void *)d;
    *out = (gpu_limits){.name = "schedule", .n_cores = p->n_cores, .native_mm = p->native_mm};
}

static calla_status paper_buffer_create(gpu_device *d, gpu_memory kind, uint64_t bytes,
                                        const char *name, gpu_buffer **out, calla_error *err)
{
    (void)d;
    (void)kind;
    *out = mem_alloc(sizeof **out);
    if (*out == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the plan of %s", name);
    (*out)->bytes = bytes;
    return CALLA_OK;
}

static void paper_buffer_destroy(gpu_device *d, gpu_buffer *b)
{
    (void)d;
    mem_free(b);
}

static uint64_t paper_buffer_bytes(const gpu_buffer *b)
{
    return b->bytes;
}

static calla_status paper_zero(gpu_device *d, gpu_view dst, calla_error *err)
{
    (void)d;
    (void)dst;
    (void)err;
    return CALLA_OK;
}

static calla_status paper_copy(gpu_device *d, gpu_view dst, gpu_view src, calla_error *err)
{
    (void)src;
    return paper_zero(d, dst, err);
}

static const gpu_ops paper_ops = {
    .name = "schedule",
    .destroy = paper_destroy,
    .limits = paper_limits,
    .buffer_create = paper_buffer_create,
    .buffer_destroy = paper_buffer_destroy,
    .buffer_bytes = paper_buffer_bytes,
    .zero = paper_zero,
    .copy = paper_copy,
};

static void report(const gpu_recording *r, exec_stage_fn fn, void *user)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const gpu_dispatch *d = &r->dispatch[i];
        fn(user,
           &(exec_stage){kernel_table[d->kernel].name, d->label, r->level[i], d->grid_x * d->grid_y,
                         kernel_table[d->kernel].threads, d->bytes, d->flops, 0.0});
    }
}

static gpu_device *paper_device(const exec_chip *chip)
{
    paper *p = mem_alloc(sizeof *p);
    if (p == NULL) return NULL;
    p->base.ops = &paper_ops;
    p->n_cores = chip != NULL ? chip->n_cores : 132;
    p->native_mm = chip != NULL ? (gpu_mm)chip->native_mm : GPU_MM_WGMMA;
    return &p->base;
}

calla_status exec_gpu_schedule(const model_shape *shape, const exec_chip *chip, bool prefill,
                               uint32_t n_tokens, uint32_t n_ctx, exec_stage_fn fn, void *user,
                               calla_error *err)
{
    const uint32_t most = prefill ? GPU_CHUNK_MAX : GPU_DECODE_MAX;
    if (n_tokens == 0 || n_tokens > most || n_ctx < (prefill ? n_tokens : 1u))
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "a %s takes 1 to %u tokens within the context, found %u of %u",
                       prefill ? "prefill chunk" : "decode step", most, n_tokens, n_ctx);
    gpu_device *dev = paper_device(chip);
    if (dev == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a schedule");
    const exec_options o = {.chunk_tokens = prefill ? n_tokens : 0};
    executor *base;
    calla_status st = gpu_exec_create(&base, dev, shape, NULL, &o, err);
    if (st != CALLA_OK) return st;
    gpu_exec *ex = gpu_self(base);
    exec_seq *seqs[GPU_DECODE_MAX] = {NULL};
    const uint32_t n_seqs = prefill ? 1 : n_tokens;
    for (uint32_t i = 0; i < n_seqs && st == CALLA_OK; i++)
        st = gpu_seq_create(base, n_ctx, &seqs[i], err);
    if (st == CALLA_OK) {
        gpu_recording r;
        if (prefill)
            gpu_record_prefill(ex, n_tokens, 1, gpu_len_bucket(n_ctx), 0, shape->n_layers);
        else
            gpu_record_decode(ex, n_tokens, gpu_len_bucket(n_ctx), n_tokens);
        st = rec_finish(ex->rec, false, &r, err);
        if (st == CALLA_OK) report(&r, fn, user);
    }
    for (uint32_t i = 0; i < n_seqs; i++)
        gpu_seq_destroy(base, seqs[i]);
    base->ops->destroy(base);
    return st;
}
