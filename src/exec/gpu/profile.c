/* Ceilings of the device, and the time of each dispatch of a step. */
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "exec/gpu/gpu.h"

#define COPY_BYTES (1ull << 30)
#define COPY_TIMES 8

/* Device-to-device copy, bytes read plus bytes written a second; 0 when there is no room. */
double gpu_copy_bandwidth(executor *base)
{
    gpu_exec *ex = gpu_self(base);
    const gpu_ops *ops = ex->dev->ops;
    gpu_buffer *a = NULL, *b = NULL;
    calla_error err;
    uint8_t last[16];
    double best = 0.0;
    calla_status st = ops->buffer_create(ex->dev, GPU_MEM_DEVICE, COPY_BYTES, "copy", &a, &err);
    if (st == CALLA_OK)
        st = ops->buffer_create(ex->dev, GPU_MEM_DEVICE, COPY_BYTES, "copy", &b, &err);
    if (st == CALLA_OK) st = ops->zero(ex->dev, (gpu_view){a, 0, COPY_BYTES}, &err);
    for (int i = 0; i < 3 && st == CALLA_OK; i++) {
        st = ops->read(ex->dev, last, (gpu_view){a, 0, sizeof last}, &err);
        const double t0 = time_now();
        for (int j = 0; j < COPY_TIMES && st == CALLA_OK; j++)
            st = ops->copy(ex->dev, (gpu_view){b, 0, COPY_BYTES}, (gpu_view){a, 0, COPY_BYTES},
                           &err);
        if (st == CALLA_OK) st = ops->read(ex->dev, last, (gpu_view){b, 0, sizeof last}, &err);
        const double rate = 2.0 * COPY_TIMES * (double)COPY_BYTES / (time_now() - t0);
        if (st == CALLA_OK && rate > best) best = rate;
    }
    if (a != NULL) ops->buffer_destroy(ex->dev, a);
    if (b != NULL) ops->buffer_destroy(ex->dev, b);
    return best;
}

static calla_status place(gpu_exec *ex, exec_seq *const *seqs, uint32_t n_seqs, bool prefill,
                          uint32_t n, calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    uint32_t rows_of[GPU_DECODE_MAX];
    for (uint32_t t = 0; t < n; t++) {
        const exec_seq *seq = seqs[prefill ? 0 : t];
        const uint32_t pos = prefill ? seq->n_tokens + t : seq->n_tokens;
        ex->tok_host[t] =
            (tok_entry){(t * 7919u + 13u) % ex->shape->n_vocab, pos, seq->slot, seq->kv_row};
        if (t < GPU_DECODE_MAX) rows_of[t] = t;
    }
    for (uint32_t i = 0; i < n_seqs && prefill; i++)
        ex->seg_host[i] = (seg_entry){.first = 0,
                                      .n = n,
                                      .slot = seqs[i]->slot,
                                      .kv_row = seqs[i]->kv_row,
                                      .pos = seqs[i]->n_tokens};
    calla_status st =
        ops->write(ex->dev, gpu_sub(ex->s.tok, 0, n * sizeof(tok_entry)), ex->tok_host, err);
    if (st == CALLA_OK)
        st = ops->write(ex->dev, gpu_sub(ex->s.rows_of, 0, sizeof rows_of), rows_of, err);
    if (st == CALLA_OK && prefill)
        st = ops->write(ex->dev, gpu_sub(ex->s.seg, 0, sizeof(seg_entry)), ex->seg_host, err);
    return st;
}

static calla_status measure(gpu_exec *ex, exec_stage_fn fn, void *user, calla_error *err)
{
    gpu_recording r;
    gpu_program *p = NULL;
    calla_status st = rec_finish(ex->rec, false, &r, err);
    if (st != CALLA_OK) return st;
    double *seconds = mem_array(r.n, sizeof *seconds);
    if (seconds == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a profile");
    st = ex->dev->ops->program_create(ex->dev, &r, true, &p, err);
    if (st == CALLA_OK) st = ex->dev->ops->profile(ex->dev, p, seconds, err);
    for (uint32_t i = 0; i < r.n && st == CALLA_OK; i++) {
        const gpu_dispatch *d = &r.dispatch[i];
        fn(user,
           &(exec_stage){kernel_table[d->kernel].name, d->label, r.level[i], d->grid_x * d->grid_y,
                         kernel_table[d->kernel].threads, d->bytes, d->flops, seconds[i]});
    }
    if (p != NULL) ex->dev->ops->program_destroy(ex->dev, p);
    mem_free(seconds);
    return st;
}

calla_status gpu_profile(executor *base, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                         exec_stage_fn fn, void *user, calla_error *err)
{
    gpu_exec *ex = gpu_self(base);
    const uint32_t most = prefill ? ex->chunk : GPU_DECODE_MAX;
    const uint32_t step = prefill ? n_tokens : 1;
    if (n_tokens == 0 || n_tokens > most || n_ctx < step)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "a step takes 1 to %u tokens within the context, found %u of %u", most,
                       n_tokens, n_ctx);
    exec_seq *seqs[GPU_DECODE_MAX] = {NULL};
    const uint32_t n_seqs = prefill ? 1 : n_tokens;
    calla_status st = CALLA_OK;
    for (uint32_t i = 0; i < n_seqs && st == CALLA_OK; i++) {
        st = gpu_seq_create(base, n_ctx, &seqs[i], err);
        if (st == CALLA_OK) seqs[i]->n_tokens = n_ctx - step; /* time does not depend on values */
    }
    if (st == CALLA_OK) st = place(ex, seqs, n_seqs, prefill, n_tokens, err);
    if (st == CALLA_OK) {
        if (prefill)
            gpu_record_prefill(ex, n_tokens, 1, gpu_len_bucket(n_ctx), 0, ex->shape->n_layers);
        else
            gpu_record_decode(ex, n_tokens, gpu_len_bucket(n_ctx), n_tokens);
        st = measure(ex, fn, user, err);
    }
    for (uint32_t i = 0; i < n_seqs; i++)
        gpu_seq_destroy(base, seqs[i]);
    return st;
}
