/* The driver itself, on any device: order of what is recorded and of what is not, host memory,
 * failures. Kernels of util.h move words whose values tell in which order they ran. */
#include <string.h>

#include "check/check.h"
#include "kernels/args_util.h"

#define CELLS   48u
#define CELL    1024u /* words */
#define STEPS   150u
#define REPEATS 3u

/* Random copies and fills among the cells of one buffer: a hazard nearly everywhere, so that any
 * missing or wrongly reduced dependency shows. */
static void record_walk(check *c, gpu_context *g, gpu_view cells, uint32_t *model)
{
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t n = 1 + check_below(c, 4);
        const uint32_t to = check_below(c, CELLS - n + 1);
        const uint32_t from = check_below(c, CELLS - n + 1);
        const uint64_t bytes = (uint64_t)n * CELL * 4;
        const bool apart = from + n <= to || to + n <= from;
        rec_dispatch(g->rec, apart ? KERNEL_util_copy : KERNEL_util_fill, n, 1);
        if (apart) {
            const util_copy_args a = {n * CELL};
            rec_read(g->rec, gpu_sub(cells, (uint64_t)from * CELL * 4, bytes));
            rec_write(g->rec, gpu_sub(cells, (uint64_t)to * CELL * 4, bytes));
            rec_args(g->rec, &a, sizeof a);
        } else {
            const util_fill_args a = {n * CELL, (uint32_t)check_random(c)};
            rec_write(g->rec, gpu_sub(cells, (uint64_t)to * CELL * 4, bytes));
            rec_args(g->rec, &a, sizeof a);
            for (uint32_t j = 0; j < n * CELL; j++)
                model[(size_t)to * CELL + j] = a.value;
        }
        if (apart) memcpy(model + (size_t)to * CELL, model + (size_t)from * CELL, bytes);
    }
}

static bool done(check *c, calla_status st, const calla_error *err)
{
    if (st != CALLA_OK) check_fail(c, "%s", err->message);
    return st == CALLA_OK;
}

/* As launches, as a graph, and with early starts; each several times from its own last state. */
static void order(check *c)
{
    gpu_device *d = check_device(c);
    gpu_context *g = check_context(c, &check_nano);
    const uint64_t bytes = (uint64_t)CELLS * CELL * 4;
    uint32_t *start = check_words(c, CELLS * CELL), *model = check_host(c, bytes);
    const gpu_view cells = check_view(c, "cells", bytes, start);
    const uint32_t n_repeats = check_on_emulator(c) ? 1 : REPEATS;
    calla_error err;
    gpu_recording r;
    record_walk(c, g, cells, model); /* for the recording; the model is made again below */
    if (!done(c, rec_finish(g->rec, false, &r, &err), &err)) return;
    for (uint32_t kind = 0; kind < 4 && !check_failed(c); kind++) {
        gpu_program *p = NULL;
        uint64_t t = 0;
        memcpy(model, start, bytes);
        r.early_start = kind % 2 != 0;
        if (!done(c, d->ops->program_create(d, &r, kind < 2, &p, &err), &err)) return;
        bool ok = done(c, d->ops->write(d, cells, start, &err), &err);
        for (uint32_t i = 0; i < n_repeats && ok; i++) {
            ok = done(c, d->ops->submit(d, p, &t, &err), &err);
            for (uint32_t j = 0; j < r.n; j++) {
                const gpu_dispatch *x = &r.dispatch[j];
                uint32_t *to = model + x->bind[x->n_bindings - 1].view.off / 4;
                uint32_t n;
                memcpy(&n, x->args, 4);
                if (x->kernel == KERNEL_util_copy)
                    memcpy(to, model + x->bind[0].view.off / 4, (size_t)n * 4);
                for (uint32_t k = 0; x->kernel == KERNEL_util_fill && k < n; k++)
                    memcpy(&to[k], x->args + 4, 4);
            }
        }
        check_shape(c, "%u steps, kind %u", STEPS, kind);
        if (ok && done(c, d->ops->wait(d, t, NULL, &err), &err))
            check_same_u32(c, "cells", check_fetch(c, cells), model, CELLS, CELL);
        d->ops->program_destroy(d, p);
    }
    rec_reset(g->rec);
}

/* Writes, clears, copies and a kernel, in the order of the calls; sources are spoilt at once. */
static void memory(check *c)
{
    gpu_device *d = check_device(c);
    const bool small = check_on_emulator(c);
    const uint64_t bytes = small ? 256 << 10 : 24 << 20;
    uint8_t *src = check_host(c, bytes), *model = check_host(c, bytes);
    const gpu_view v = check_view(c, "bytes", bytes, model);
    calla_error err;
    const uint32_t n_ops = small ? 60 : 300;
    check_shape(c, "%u operations on %llu bytes", n_ops, (unsigned long long)bytes);
    for (uint32_t i = 0; i < n_ops; i++) {
        const uint64_t most = i % 20 == 0 ? bytes : 20000;
        const uint64_t n = 1 + check_below(c, (uint32_t)most);
        const uint64_t at = check_below(c, (uint32_t)((bytes - n) / 16 + 1)) * 16;
        const gpu_view to = gpu_sub(v, at, n);
        calla_status st;
        if (i % 4 == 0) {
            st = d->ops->zero(d, to, &err);
            memset(model + at, 0, n);
        } else if (i % 4 == 1 && at >= n + 16) {
            const uint64_t from = (at - n) / 16 * 16;
            st = d->ops->copy(d, to, gpu_sub(v, from, n), &err);
            memcpy(model + at, model + from, n);
        } else {
            for (uint64_t j = 0; j < n; j += 3)
                src[j] = (uint8_t)check_random(c);
            st = d->ops->write(d, to, src, &err);
            memcpy(model + at, src, n);
            memset(src, 0xee, n);
        }
        if (!done(c, st, &err)) return;
    }
    check_same_u32(c, "bytes", check_fetch(c, v), (uint32_t *)(void *)model, 1, bytes / 4);
}

/* Memory that both sides see, written by each. */
static void host_memory(check *c)
{
    gpu_device *d = check_device(c);
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t n = 4096;
    calla_error err;
    gpu_buffer *h = NULL;
    if (!done(c, d->ops->buffer_create(d, GPU_MEM_HOST, 8 * n, "host", &h, &err), &err)) return;
    uint32_t *p = d->ops->buffer_host(h);
    const gpu_view from = {h, 0, 4 * n}, to = {h, 4 * n, 4 * n};
    const util_copy_args a = {n};
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < n; i++)
            p[i] = (uint32_t)check_random(c);
        rec_dispatch(g->rec, KERNEL_util_copy, n / 1024, 1);
        rec_read(g->rec, from);
        rec_write(g->rec, to);
        rec_args(g->rec, &a, sizeof a);
        if (check_run(c)) check_same_u32(c, "host", p + n, p, 1, n);
    }
    d->ops->buffer_destroy(d, h);
}

static void read_sums(check *c)
{
    gpu_context *g = check_context(c, &check_nano);
    const uint32_t n_groups = 1 + check_below(c, 5), n_rounds = check_below(c, 4);
    const uint64_t n = 4096u * (uint64_t)n_groups * (n_rounds > 0 ? n_rounds : 1);
    check_shape(c, "%u groups, %u rounds", n_groups, n_rounds);
    const uint32_t *w = check_words(c, n);
    uint32_t *want = check_host(c, n_groups * 4u);
    const gpu_view vw = check_view(c, "w", n * 4, w), vy = check_view(c, "y", n_groups * 4u, NULL);
    const util_read_args a = {n_rounds};
    rec_dispatch(g->rec, KERNEL_util_read, n_groups, 1);
    rec_read(g->rec, vw);
    rec_write(g->rec, vy);
    rec_args(g->rec, &a, sizeof a);
    if (!check_run(c)) return;
    for (uint64_t i = 0; n_rounds > 0 && i < n; i++)
        want[i / 4096 % n_groups] += w[i];
    check_same_u32(c, "y", check_fetch(c, vy), want, 1, n_groups);
}

/* A failed submission is reported, and what was in flight with it; the next one is right. */
static void failure(check *c)
{
    gpu_device *d = check_device(c);
    gpu_context *g = check_context(c, &check_nano);
    const gpu_view y = check_view(c, "y", 4096, NULL);
    const util_fill_args a = {1024, (uint32_t)check_random(c)};
    calla_error err;
    gpu_recording r;
    gpu_program *p = NULL;
    uint64_t t = 0;
    rec_dispatch(g->rec, KERNEL_util_fill, 1, 1);
    rec_write(g->rec, y);
    rec_args(g->rec, &a, sizeof a);
    calla_status st = CALLA_OK;
    TRY(rec_finish(g->rec, false, &r, &err));
    TRY(d->ops->program_create(d, &r, false, &p, &err));
    TRY(d->ops->zero(d, y, &err));
    d->ops->inject_failure(d, 2);
    TRY(d->ops->submit(d, p, &t, &err));
    TRY(d->ops->wait(d, t, NULL, &err));
    st = d->ops->submit(d, p, &t, &err);
    if (st == CALLA_OK) st = d->ops->wait(d, t, NULL, &err);
    if (st != CALLA_ERR_DEVICE || d->ops->lost(d)) check_fail(c, "the failure was not reported");
    TRY(d->ops->submit(d, p, &t, &err));
    TRY(d->ops->wait(d, t, NULL, &err));
    uint32_t *want = check_host(c, 4096);
    for (uint32_t i = 0; i < 1024; i++)
        want[i] = a.value;
    check_same_u32(c, "y", check_fetch(c, y), want, 1, 1024);
fail:
    done(c, st, &err);
    d->ops->program_destroy(d, p);
    rec_reset(g->rec);
}

const check_case check_driver_cases[] = {{"driver_order", order, 0},
                                         {"driver_memory", memory, 0},
                                         {"driver_host_memory", host_memory, 0},
                                         {"driver_failure", failure, 0},
                                         {"util_read", read_sums, 0},
                                         {NULL, NULL, 0}};
