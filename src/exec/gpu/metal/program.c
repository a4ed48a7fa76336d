/* Programs: dispatches in the order of their levels, cut into command buffers of bounded time. */
#include <string.h>

#include "base/mem.h"
#include "exec/gpu/metal/metal_dev.h"

typedef struct metal_launch {
    m_id pipeline;
    uint32_t grid_x, grid_y, threads;
    uint32_t n_bindings, args_bytes;
    bool barrier; /* begins a level */
    gpu_buffer *buf[GPU_BINDINGS_MAX];
    uint64_t off[GPU_BINDINGS_MAX];
    uint8_t args[GPU_ARGS_MAX];
} metal_launch;

struct gpu_program {
    metal_launch *launch; /* [n] */
    uint32_t n;
    uint32_t *first; /* [n_parts + 1]: where each command buffer begins */
    uint32_t n_parts;
    uint32_t *recorded; /* [n]: its place in the recording */
};

uint32_t metal_program_parts(const gpu_program *p)
{
    return p->n_parts;
}

/* ---- From a recording ---- */

static calla_status check_dispatch(const gpu_dispatch *g, calla_error *err)
{
    if (g->kernel >= KERNEL_COUNT)
        return err_set(err, CALLA_ERR_INTERNAL, "there is no GPU kernel %u", g->kernel);
    const kernel_info *k = &kernel_table[g->kernel];
    if (g->n_bindings != k->n_bindings || g->args_bytes > GPU_ARGS_MAX)
        return err_set(err, CALLA_ERR_INTERNAL,
                       "GPU kernel %s: %u bindings and %u bytes of arguments, expected %u and up "
                       "to %u",
                       k->name, g->n_bindings, g->args_bytes, k->n_bindings, GPU_ARGS_MAX);
    for (uint32_t i = 0; i < g->n_bindings; i++) {
        const gpu_view v = g->bind[i].view;
        if (v.buf == NULL || v.off % 16 != 0 || v.off > v.buf->bytes ||
            v.bytes > v.buf->bytes - v.off)
            return err_set(err, CALLA_ERR_INTERNAL,
                           "GPU kernel %s: binding %u is outside its buffer or not aligned",
                           k->name, i);
        if (v.buf->mapped && (g->bind[i].access & GPU_WRITE) != 0)
            return err_set(err, CALLA_ERR_INTERNAL,
                           "GPU kernel %s: binding %u writes to memory that is only read", k->name,
                           i);
    }
    return CALLA_OK;
}

static void fill(const metal_device *d, metal_launch *l, const gpu_dispatch *g)
{
    l->pipeline = d->pipeline[g->kernel];
    l->grid_x = g->grid_x;
    l->grid_y = g->grid_y;
    l->threads = kernel_table[g->kernel].threads;
    l->n_bindings = g->n_bindings;
    l->args_bytes = g->args_bytes;
    for (uint32_t i = 0; i < g->n_bindings; i++) {
        l->buf[i] = g->bind[i].view.buf;
        l->off[i] = g->bind[i].view.off;
    }
    memcpy(l->args, g->args, g->args_bytes);
}

static calla_status make_ready(metal_device *d, const gpu_recording *r, calla_error *err)
{
    bool want[KERNEL_COUNT + 1] = {false};
    for (uint32_t i = 0; i < r->n; i++) {
        const calla_status st = check_dispatch(&r->dispatch[i], err);
        if (st != CALLA_OK) return st;
        want[r->dispatch[i].kernel] = true;
    }
    return metal_pipelines_make(d, want, err);
}

calla_status metal_program_create(gpu_device *dev, const gpu_recording *r, bool once,
                                  gpu_program **out, calla_error *err)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    (void)once;
    *out = NULL;
    calla_status st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    st = make_ready(d, r, err);
    metal_leave(d, ap);
    if (st != CALLA_OK) return st;
    gpu_program *p = mem_alloc(sizeof *p);
    if (p != NULL) {
        p->n = r->n;
        p->launch = mem_array((size_t)r->n + 1, sizeof *p->launch);
        p->first = mem_array((size_t)r->n + 1, sizeof *p->first);
        p->recorded = mem_array((size_t)r->n + 1, sizeof *p->recorded);
    }
    if (p == NULL || p->launch == NULL || p->first == NULL || p->recorded == NULL) {
        metal_program_destroy(dev, p);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a program of %u kernels", r->n);
    }
    p->n_parts = metal_split(r, &d->rates, METAL_PART_SECONDS, p->recorded, p->first);
    for (uint32_t i = 0; i < p->n; i++) {
        fill(d, &p->launch[i], &r->dispatch[p->recorded[i]]);
        p->launch[i].barrier = i > 0 && r->level[p->recorded[i]] != r->level[p->recorded[i - 1]];
    }
    *out = p;
    return CALLA_OK;
}

void metal_program_destroy(gpu_device *dev, gpu_program *p)
{
    (void)dev;
    if (p == NULL) return;
    mem_free(p->launch);
    mem_free(p->first);
    mem_free(p->recorded);
    mem_free(p);
}

/* ---- Encoding ---- */

/* What the encoder has now: what stays is not said again. */
typedef struct encoder {
    m_id id, pipeline;
    const gpu_buffer *buf[GPU_BINDINGS_MAX];
    uint64_t off[GPU_BINDINGS_MAX];
} encoder;

static void encode(const metal_device *d, encoder *e, const metal_launch *l)
{
    const metal_api *a = &d->api;
    if (l->pipeline != e->pipeline) SEND(a, set_pipeline, e->id, l->pipeline);
    e->pipeline = l->pipeline;
    for (uint32_t i = 0; i < l->n_bindings; i++) {
        if (l->buf[i] == e->buf[i] && l->off[i] == e->off[i]) continue;
        if (l->buf[i] == e->buf[i])
            SEND(a, set_offset, e->id, (m_uint)l->off[i], i);
        else
            SEND(a, set_buffer, e->id, l->buf[i]->buffer, (m_uint)l->off[i], i);
        e->buf[i] = l->buf[i];
        e->off[i] = l->off[i];
    }
    if (l->args_bytes != 0) {
        SEND(a, set_bytes, e->id, l->args, l->args_bytes, l->n_bindings);
        if (l->n_bindings < GPU_BINDINGS_MAX) e->buf[l->n_bindings] = NULL; /* no buffer now */
    }
    SEND(a, dispatch, e->id, (m_size){l->grid_x, l->grid_y, 1}, (m_size){l->threads, 1, 1});
}

/* Launches [first, end) as one command buffer of `ticket`. */
static calla_status run_part(metal_device *d, const gpu_program *p, uint32_t first, uint32_t end,
                             uint64_t ticket, calla_error *err)
{
    const metal_api *a = &d->api;
    m_id buffer;
    calla_status st = metal_begin(d, &buffer, err);
    if (st != CALLA_OK) return st;
    encoder e = {.id = SEND(a, compute_encoder, buffer, M_CONCURRENT)};
    if (e.id == NULL)
        return err_set(err, CALLA_ERR_DEVICE, "%s gives no encoder for kernels", d->name);
    if (d->fence_used) SEND(a, wait_fence, e.id, d->fence);
    for (uint32_t i = first; i < end; i++) {
        if (p->launch[i].barrier && i != first) SEND(a, barrier, e.id, M_SCOPE_BUFFERS);
        encode(d, &e, &p->launch[i]);
    }
    SEND(a, update_fence, e.id, d->fence);
    d->fence_used = true;
    SEND0(a, end_encoding, e.id);
    metal_commit(d, buffer, ticket);
    for (uint32_t i = first; i < end; i++)
        for (uint32_t b = 0; b < p->launch[i].n_bindings; b++)
            p->launch[i].buf[b]->last_serial = d->last_serial;
    return CALLA_OK;
}

/* Does the work of this ticket still make sense? */
static bool is_well(const metal_device *d, uint64_t ticket)
{
    return d->fail_first == 0 || d->fail_last != 0 || ticket < d->fail_first;
}

calla_status metal_submit(gpu_device *dev, gpu_program *p, uint64_t *ticket, calla_error *err)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    calla_status st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    const uint64_t t = metal_ticket_new(d);
    const bool injected = d->inject == 1;
    if (d->inject != 0) d->inject--;
    if (injected) {
        calla_error e;
        err_set(&e, CALLA_ERR_DEVICE, "%s failed while running a program (as it was told to)",
                d->name);
        metal_note_failure(d, t, &e);
    }
    for (uint32_t i = 0; i < p->n_parts && st == CALLA_OK && is_well(d, t); i++) {
        m_ptr inner = d->api.f.pool_push();
        st = run_part(d, p, p->first[i], p->first[i + 1], t, err);
        d->api.f.pool_pop(inner);
    }
    *ticket = t;
    metal_watch_heat(d);
    metal_leave(d, ap);
    return st;
}

/* ---- Profile ---- */

#define PROFILE_RUNS 5u

static double median(double *v, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j > 0 && v[j] < v[j - 1]; j--) {
            const double t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    return v[n / 2];
}

static calla_status run_alone(metal_device *d, const gpu_program *p, uint32_t i, double *seconds,
                              calla_error *err)
{
    m_ptr ap = d->api.f.pool_push();
    const uint64_t t = metal_ticket_new(d);
    calla_status st = run_part(d, p, i, i + 1, t, err);
    if (st == CALLA_OK) st = metal_reach(d, d->last_serial, true, err);
    if (st == CALLA_OK) st = metal_pending(d, t, err);
    *seconds = d->ticket[t % METAL_TICKETS].seconds;
    d->api.f.pool_pop(ap);
    return st;
}

/* A command buffer a dispatch: their times are what Metal tells. */
calla_status metal_profile(gpu_device *dev, gpu_program *p, double *seconds, calla_error *err)
{
    metal_device *d = metal_of(dev);
    m_ptr ap;
    calla_status st = metal_enter(d, &ap, err);
    if (st != CALLA_OK) return st;
    double *all = mem_array((size_t)p->n * PROFILE_RUNS + 1, sizeof *all);
    if (all == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for a profile of %u kernels", p->n);
        goto fail;
    }
    for (uint32_t run = 0; run < PROFILE_RUNS; run++)
        for (uint32_t i = 0; i < p->n; i++)
            TRY(run_alone(d, p, i, &all[(size_t)i * PROFILE_RUNS + run], err));
    for (uint32_t i = 0; i < p->n; i++)
        seconds[p->recorded[i]] = median(all + (size_t)i * PROFILE_RUNS, PROFILE_RUNS);
fail:
    mem_free(all);
    metal_leave(d, ap);
    return st;
}
