/* Submissions run at once, on the calling thread and a pool's. A failure makes the submissions
 * after it lost as well, up to the call that reports it. */
#include "exec/gpu/simt/priv.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fpenv.h"
#include "base/mem.h"

static simt_device *of(gpu_device *d)
{
    return (simt_device *)d;
}

/* ---- Buffers ---- */

static void buffer_destroy(gpu_device *d, gpu_buffer *b)
{
    if (b == NULL) return;
    of(d)->used_bytes -= b->kind == GPU_MEM_DEVICE && b->data != NULL ? b->bytes : 0;
    shadow_destroy(b->shadow);
    mem_free_pages(b->data, (size_t)b->bytes);
    mem_free(b);
}

static calla_status buffer_create(gpu_device *d, gpu_memory kind, uint64_t bytes, const char *name,
                                  gpu_buffer **out, calla_error *err)
{
    *out = NULL;
    const uint64_t limit = of(d)->options.memory_bytes;
    if (limit != 0 && kind == GPU_MEM_DEVICE && bytes > limit - of(d)->used_bytes)
        return err_set(err, CALLA_ERR_MEMORY, "the emulator has no room for %s (%llu bytes)", name,
                       (unsigned long long)bytes);
    gpu_buffer *b = mem_alloc(sizeof *b);
    if (b != NULL && bytes > 0 && bytes <= SIZE_MAX) b->data = mem_alloc_pages((size_t)bytes);
    if (b == NULL || b->data == NULL) {
        mem_free(b);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for buffer %s of %llu bytes", name,
                       (unsigned long long)bytes);
    }
    b->bytes = bytes;
    b->kind = kind;
    if (kind == GPU_MEM_DEVICE) of(d)->used_bytes += bytes;
    (void)snprintf(b->name, sizeof b->name, "%s", name);
    if (of(d)->options.check) {
        memset(b->data, 0xff, (size_t)bytes);
        b->shadow = shadow_create(bytes, kind == GPU_MEM_HOST);
        if (b->shadow == NULL) {
            buffer_destroy(d, b);
            return err_set(err, CALLA_ERR_MEMORY, "no memory for the shadow of buffer %s", name);
        }
    }
    *out = b;
    return CALLA_OK;
}

static uint64_t buffer_bytes(const gpu_buffer *b)
{
    return b->bytes;
}

static void *buffer_host(gpu_buffer *b)
{
    return b->kind == GPU_MEM_HOST ? b->data : NULL;
}

static calla_status check_view(gpu_view v, const char *what, calla_error *err)
{
    if (v.buf == NULL) return err_set(err, CALLA_ERR_ARGUMENT, "%s: no buffer", what);
    if (v.off > v.buf->bytes || v.bytes > v.buf->bytes - v.off)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "%s: %llu bytes at %llu of buffer %s, which has %llu", what,
                       (unsigned long long)v.bytes, (unsigned long long)v.off, v.buf->name,
                       (unsigned long long)v.buf->bytes);
    return CALLA_OK;
}

/* Reports a failure once; later calls than the report's work again. */
static calla_status report(simt_device *d, calla_error *err)
{
    d->pending = false;
    return err_set(err, CALLA_ERR_DEVICE, "%s", d->failure);
}

static calla_status device_write(gpu_device *d, gpu_view dst, const void *src, calla_error *err)
{
    (void)d;
    const calla_status st = check_view(dst, "write", err);
    if (st != CALLA_OK) return st;
    memcpy(dst.buf->data + dst.off, src, (size_t)dst.bytes);
    if (dst.buf->shadow != NULL) shadow_written(dst.buf->shadow, dst.off, dst.bytes);
    return CALLA_OK;
}

static calla_status device_zero(gpu_device *d, gpu_view dst, calla_error *err)
{
    (void)d;
    const calla_status st = check_view(dst, "zero", err);
    if (st != CALLA_OK) return st;
    memset(dst.buf->data + dst.off, 0, (size_t)dst.bytes);
    if (dst.buf->shadow != NULL) shadow_written(dst.buf->shadow, dst.off, dst.bytes);
    return CALLA_OK;
}

static calla_status device_copy(gpu_device *d, gpu_view dst, gpu_view src, calla_error *err)
{
    (void)d;
    calla_status st = check_view(dst, "copy, to", err);
    if (st == CALLA_OK) st = check_view(src, "copy, from", err);
    if (st == CALLA_OK && dst.bytes != src.bytes)
        st = err_set(err, CALLA_ERR_ARGUMENT, "copy of %llu bytes to %llu",
                     (unsigned long long)src.bytes, (unsigned long long)dst.bytes);
    if (st != CALLA_OK) return st;
    memmove(dst.buf->data + dst.off, src.buf->data + src.off, (size_t)dst.bytes);
    if (dst.buf->shadow != NULL)
        shadow_copied(dst.buf->shadow, dst.off, src.buf->shadow, src.off, dst.bytes);
    return CALLA_OK;
}

static calla_status device_read(gpu_device *d, void *dst, gpu_view src, calla_error *err)
{
    if (of(d)->pending) return report(of(d), err);
    const calla_status st = check_view(src, "read", err);
    if (st == CALLA_OK) memcpy(dst, src.buf->data + src.off, (size_t)src.bytes);
    return st;
}

/* ---- Programs ---- */

static calla_status check_dispatch(const simt_device *d, const gpu_dispatch *x, calla_error *err)
{
    if (x->kernel >= d->n_kernels)
        return err_set(err, CALLA_ERR_ARGUMENT, "kernel %u of %u", x->kernel, d->n_kernels);
    const simt_kernel *k = &d->kernels[x->kernel];
    if (x->n_bindings != k->n_bindings)
        return err_set(err, CALLA_ERR_ARGUMENT, "kernel %s has %u bindings, not %u", k->name,
                       k->n_bindings, x->n_bindings);
    if (x->args_bytes != k->args_bytes || x->args_bytes > GPU_ARGS_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "kernel %s has %u bytes of arguments, not %u",
                       k->name, k->args_bytes, x->args_bytes);
    for (uint32_t i = 0; i < x->n_bindings; i++) {
        const gpu_view v = x->bind[i].view;
        const calla_status st = check_view(v, k->name, err);
        if (st != CALLA_OK) return st;
        if (v.off % 16 != 0)
            return err_set(err, CALLA_ERR_ARGUMENT, "kernel %s, binding %u: offset %llu", k->name,
                           i, (unsigned long long)v.off);
    }
    return CALLA_OK;
}

static void program_destroy(gpu_device *d, gpu_program *p)
{
    (void)d;
    if (p == NULL) return;
    mem_free(p->dispatch);
    mem_free(p->dep_first);
    mem_free(p->dep);
    mem_free(p);
}

static calla_status program_create(gpu_device *d, const gpu_recording *r, bool once,
                                   gpu_program **out, calla_error *err)
{
    (void)once;
    *out = NULL;
    for (uint32_t i = 0; i < r->n; i++) {
        const calla_status st = check_dispatch(of(d), &r->dispatch[i], err);
        if (st != CALLA_OK) return st;
    }
    gpu_program *p = mem_alloc(sizeof *p);
    const uint32_t n_dep = r->n > 0 ? r->dep_first[r->n] : 0;
    if (p != NULL) {
        p->dispatch = mem_array((size_t)r->n + 1, sizeof *p->dispatch);
        p->dep_first = mem_array((size_t)r->n + 1, sizeof *p->dep_first);
        p->dep = mem_array((size_t)n_dep + 1, sizeof *p->dep);
    }
    if (p == NULL || p->dispatch == NULL || p->dep_first == NULL || p->dep == NULL) {
        program_destroy(d, p);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a program of %u dispatches", r->n);
    }
    p->n = r->n;
    if (r->n > 0) {
        memcpy(p->dispatch, r->dispatch, r->n * sizeof *p->dispatch);
        memcpy(p->dep_first, r->dep_first, (r->n + 1) * sizeof *p->dep_first);
    }
    if (n_dep > 0) memcpy(p->dep, r->dep, n_dep * sizeof *p->dep);
    *out = p;
    return CALLA_OK;
}

/* ---- Running ---- */

typedef struct run {
    simt_device *d;
    const simt_launch *l;
    uint32_t n_groups, per_task;
    _Atomic int32_t failed_by; /* thread, or -1 */
} run;

static void run_groups(void *ctx, uint32_t i_task, uint32_t i_thread)
{
    run *r = ctx;
    const uint32_t first = i_task * r->per_task;
    const uint32_t left = r->n_groups - first;
    const uint32_t n = left < r->per_task ? left : r->per_task;
    for (uint32_t i = first; i < first + n; i++) {
        if (atomic_load_explicit(&r->failed_by, memory_order_relaxed) >= 0) return;
        if (!simt_machine_run(r->d->machines[i_thread], r->l, i % r->l->grid_x, i / r->l->grid_x)) {
            int32_t none = -1;
            (void)atomic_compare_exchange_strong(&r->failed_by, &none, (int32_t)i_thread);
            return;
        }
    }
}

simt_launch simt_launch_of(const simt_device *d, const gpu_dispatch *x)
{
    simt_launch l = {.kernel = &d->kernels[x->kernel],
                     .args = x->args,
                     .grid_x = x->grid_x,
                     .grid_y = x->grid_y};
    for (uint32_t i = 0; i < x->n_bindings; i++) {
        const gpu_view v = x->bind[i].view;
        l.bind[i] = (simt_binding){v.buf->data + v.off, v.bytes, NULL};
    }
    return l;
}

static bool run_dispatch(simt_device *d, const gpu_dispatch *x)
{
    const simt_launch l = simt_launch_of(d, x);
    run r = {.d = d, .l = &l, .n_groups = x->grid_x * x->grid_y};
    atomic_init(&r.failed_by, -1);
    if (r.n_groups == 0) return true;
    r.per_task = 1 + r.n_groups / (pool_n_threads(d->threads) * 8);
    pool_run(d->threads, run_groups, &r, (r.n_groups + r.per_task - 1) / r.per_task);
    const int32_t by = atomic_load(&r.failed_by);
    if (by < 0) return true;
    (void)snprintf(d->failure, sizeof d->failure, "%s", simt_machine_failure(d->machines[by]));
    return false;
}

static bool run_fast(simt_device *d, const gpu_program *p, double *seconds)
{
    bool ok = true;
    for (uint32_t i = 0; i < p->n && ok; i++) {
        const double t0 = time_now();
        ok = run_dispatch(d, &p->dispatch[i]);
        if (seconds != NULL) seconds[i] = time_now() - t0;
    }
    return ok;
}

static bool run_program(simt_device *d, const gpu_program *p, double *seconds)
{
    const uint64_t fp = fpenv_flush_denormals();
    const bool ok = d->checker != NULL ? simt_run_checked(d, p, seconds) : run_fast(d, p, seconds);
    fpenv_restore(fp);
    return ok;
}

static calla_status submit(gpu_device *dev, gpu_program *p, uint64_t *ticket, calla_error *err)
{
    (void)err;
    simt_device *d = of(dev);
    *ticket = ++d->ticket;
    d->seconds = 0;
    bool ok = !d->pending;
    if (ok && d->fail_in > 0 && --d->fail_in == 0) {
        (void)snprintf(d->failure, sizeof d->failure, "injected failure");
        ok = false;
    } else if (ok) {
        const double t0 = time_now();
        ok = run_program(d, p, NULL);
        d->seconds = time_now() - t0;
    }
    if (!ok) {
        if (!d->pending) d->lost_first = d->ticket;
        d->lost_end = d->ticket + 1;
        d->pending = true;
    }
    return CALLA_OK;
}

static calla_status wait_for(gpu_device *dev, uint64_t ticket, double *seconds, calla_error *err)
{
    simt_device *d = of(dev);
    if (seconds != NULL) *seconds = d->seconds;
    if (ticket >= d->lost_first && ticket < d->lost_end) return report(d, err);
    return CALLA_OK;
}

static calla_status profile(gpu_device *dev, gpu_program *p, double *seconds, calla_error *err)
{
    simt_device *d = of(dev);
    if (d->pending || !run_program(d, p, seconds)) return report(d, err);
    return CALLA_OK;
}

static void inject_failure(gpu_device *d, uint32_t n)
{
    of(d)->fail_in = n;
}

static bool lost(const gpu_device *d)
{
    (void)d;
    return false;
}

static void limits(gpu_device *d, gpu_limits *out)
{
    memset(out, 0, sizeof *out);
    (void)snprintf(out->name, sizeof out->name, "SIMT emulator");
    out->n_cores = pool_n_threads(of(d)->threads);
    out->total_bytes = of(d)->options.memory_bytes;
    if (out->total_bytes != 0) out->free_bytes = out->total_bytes - of(d)->used_bytes;
}

static void destroy(gpu_device *dev)
{
    if (dev == NULL) return;
    simt_device *d = of(dev);
    const uint32_t n = d->threads != NULL ? pool_n_threads(d->threads) : 0;
    for (uint32_t i = 0; i < n; i++)
        simt_machine_destroy(d->machines[i]);
    pool_destroy(d->threads);
    simt_checker_destroy(d->checker);
    mem_free(d);
}

static const gpu_ops simt_ops = {.name = "simt",
                                 .destroy = destroy,
                                 .limits = limits,
                                 .buffer_create = buffer_create,
                                 .buffer_destroy = buffer_destroy,
                                 .buffer_bytes = buffer_bytes,
                                 .buffer_host = buffer_host,
                                 .write = device_write,
                                 .zero = device_zero,
                                 .copy = device_copy,
                                 .read = device_read,
                                 .program_create = program_create,
                                 .program_destroy = program_destroy,
                                 .submit = submit,
                                 .wait = wait_for,
                                 .profile = profile,
                                 .inject_failure = inject_failure,
                                 .lost = lost};

calla_status simt_device_create(gpu_device **out, const gpu_simt_options *o,
                                const simt_kernel *kernels, calla_error *err)
{
    *out = NULL;
#if defined(__x86_64__)
    if (!CPU_SUPPORTS("avx2") || !CPU_SUPPORTS("fma"))
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "the SIMT emulator needs a processor with AVX2 and FMA");
#endif
    simt_device *d = mem_alloc(sizeof *d);
    if (d == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the SIMT emulator");
    d->base.ops = &simt_ops;
    d->options = *o;
    d->kernels = kernels;
    while (kernels[d->n_kernels].name != NULL)
        d->n_kernels++;
    calla_status st;
    const uint32_t n_slots = o->check && o->seed != 0 ? 3 : 1;
    TRY(pool_create(&d->threads, o->check ? 1 : o->threads, err));
    for (uint32_t i = 0; i < pool_n_threads(d->threads); i++)
        TRY(simt_machine_create(&d->machines[i], n_slots, o->check ? o->seed : 0, err));
    if (o->check) {
        simt_machine_guard(d->machines[0]);
        TRY(simt_checker_create(&d->checker, n_slots, err));
    }
    *out = &d->base;
    return CALLA_OK;
fail:
    destroy(&d->base);
    return st;
}

void simt_device_watch(gpu_device *d, const simt_watch *w)
{
    of(d)->watch = w != NULL ? *w : (simt_watch){NULL, NULL, NULL};
}

calla_status gpu_simt_create(gpu_device **out, const gpu_simt_options *o, calla_error *err)
{
    return simt_device_create(out, o, o->check ? simt_kernels_check : simt_kernels_fast, err);
}
