/* The GPU's part of `calla selftest`: every kernel against its reference, the matrix products at
 * the real model's shapes, and what the device gives at most. */
#include <stdio.h>
#include <string.h>

#include "base/fpenv.h"
#include "base/pool.h"
#include "check/ceilings.h"
#include "check/check_priv.h"
#include "cli/selftest.h"
#include "exec/gpu/mm_check.h"

static void on_line(void *user, calla_log_level level, const char *line)
{
    (void)level;
    selftest_note(user, "  %s", line);
}

/* A driver that keeps the outcome of a check of its own does not find it here: what it says while
 * it checks is a part of the report. */
static calla_status open_device(selftest_log *t, gpu_device **d, const char *backend,
                                calla_error *err)
{
    if (strcmp(backend, "cuda") == 0) return gpu_cuda_create(d, 0, err);
    if (strcmp(backend, "simt") == 0) return gpu_simt_create(d, &(gpu_simt_options){0}, err);
    if (strcmp(backend, "metal") == 0)
        return gpu_metal_create(
            d, &(gpu_metal_options){.max_rung = -1, .log = on_line, .log_user = t}, err);
    return err_set(err, CALLA_ERR_UNSUPPORTED, "there is no GPU backend \"%s\"", backend);
}

/* ---- Kernels ---- */

static void check_case_once(selftest_log *t, check *c, const check_case *k)
{
    const double t0 = time_now();
    c->worst = 0.0;
    check_draw(c, k, 1);
    const double ms = (time_now() - t0) * 1e3;
    if (c->failed)
        selftest_verdict(t, false, "%s (%s): %s", k->name, c->shape, c->failure);
    else
        selftest_note(t, "  ok      %-28s %5.2f of the bound  %8.1f ms with its reference  %s",
                      k->name, c->worst, ms, c->shape);
}

static calla_status check_kernels(selftest_log *t, gpu_device *d, calla_error *err)
{
    static check c;
    const bool emulated = strcmp(d->ops->name, "simt") == 0;
    const unsigned failed = t->n_failed;
    unsigned n = 0;
    c = (check){.dev = d};
    const calla_status st = recorder_create(&c.rec, d, err);
    if (st != CALLA_OK) return st;
    selftest_heading(t, "kernels of the GPU against their plain C references");
    for (size_t f = 0; f < check_n_families; f++)
        for (const check_case *k = check_families[f]; k->name != NULL; k++) {
            if ((k->flags & (CHECK_BENCH | (emulated ? CHECK_ON_DEVICE : CHECK_EMULATOR))) != 0)
                continue;
            check_case_once(t, &c, k);
            n++;
        }
    recorder_destroy(c.rec);
    if (t->n_failed == failed) selftest_verdict(t, true, "%u cases of random shapes", n);
    return CALLA_OK;
}

/* A wrong product is a verdict, not an error. */
static void check_products(selftest_log *t, gpu_device *d)
{
    const bool emulated = strcmp(d->ops->name, "simt") == 0;
    const mm_check_options o = {.seed = 1, .n_max = emulated ? 8 : 0};
    mm_check_report r = {0};
    calla_error err;
    selftest_heading(t, "matrix products at the real model's shapes");
    const calla_status st = mm_check_run(d, &o, &r, &err);
    for (uint32_t i = 0; i < r.n; i++) {
        const mm_check *m = &r.check[i];
        selftest_verdict(t, m->worst <= 1.0,
                         "%-10s %5u x %5u x %5u  error %.2f of the bound, %8.3f ms, %6.2f TFLOP/s",
                         m->what, m->n, m->rows, m->cols, m->worst, m->seconds * 1e3,
                         m->seconds > 0 ? m->flops / m->seconds / 1e12 : 0.0);
    }
    if (st != CALLA_OK) selftest_verdict(t, false, "%s", err.message);
}

/* ---- Ceilings ---- */

static calla_status measure(selftest_log *t, gpu_device *d, calla_error *err)
{
    gpu_ceilings c = {0};
    const calla_status st = gpu_ceilings_measure(d, strcmp(d->ops->name, "simt") == 0, &c, err);
    if (st != CALLA_OK) return st;
    selftest_heading(t, "ceilings");
    for (uint32_t i = 0; i < CEILING_GROUPS; i++)
        selftest_note(t, "  %5u groups: a dependent dispatch %7.2f us, an independent one %7.2f us",
                      c.groups[i], c.dependent[i] * 1e6, c.independent[i] * 1e6);
    for (uint32_t i = 0; i < CEILING_READS; i++)
        selftest_note(t, "  reading %8.2f MB a dispatch, one after another: %7.1f GB/s",
                      (double)c.bytes[i] / 1e6, c.read[i] / 1e9);
    (void)printf("  a dependent dispatch %.2f us, reading %.0f GB/s\n", c.dependent[1] * 1e6,
                 c.read[CEILING_READS - 1] / 1e9);
    return st;
}

calla_status selftest_gpu(selftest_log *t, const char *backend, char *name, calla_error *err)
{
    gpu_device *d = NULL;
    gpu_limits lim;
    const double t0 = time_now();
    calla_status st = open_device(t, &d, backend, err);
    if (st != CALLA_OK) return st;
    d->ops->limits(d, &lim);
    (void)snprintf(name, 96, "%s", lim.name);
    selftest_heading(t, "GPU: %s", lim.name);
    selftest_note(t, "  backend %s, opened in %.1f s, %u cores, memory %.1f GiB, %.1f free",
                  backend, time_now() - t0, lim.n_cores, (double)lim.total_bytes / (1 << 30),
                  (double)lim.free_bytes / (1 << 30));
    (void)fpenv_flush_denormals(); /* the references have the kernels' bits then */
    st = check_kernels(t, d, err);
    if (st == CALLA_OK) check_products(t, d);
    if (st == CALLA_OK) st = measure(t, d, err);
    d->ops->destroy(d);
    return st;
}
