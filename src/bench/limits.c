#include "bench/limits.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "bench/machine.h"
#include "bench/peak.h"
#include "check/ceilings.h"
#include "engine/sysmem.h"
#include "exec/gpu/gpu.h"

#define READ_MAX  (1ull << 30)
#define READ_MIN  (1ull << 22)
#define READ_REPS 12

static double read_rate(pool *p, const calla_engine *e, const char *variant)
{
    uint64_t n = e->weights.mapped_bytes;
    const uint64_t room = sysmem_available() / 4;
    if (n < READ_MIN) n = READ_MIN;
    if (n > READ_MAX) n = READ_MAX;
    if (n > room) n = room / 256 * 256;
    uint8_t *mem = mem_alloc_pages((size_t)n);
    if (mem == NULL) return 0.0;
    mem_large_pages(mem, (size_t)n);
    memset(mem, 1, (size_t)n);
    const double rate = peak_read_bandwidth(p, mem, n, READ_REPS, variant);
    mem_free_pages(mem, (size_t)n);
    return rate;
}

static void measure_cpu(bench_limits *out, const calla_engine *e)
{
    const char *variant = e->ex->ops->variant(e->ex), *precision = machine_precision(e);
    pool *p = NULL;
    calla_error ignored;
    if (pool_create(&p, e->ex->ops->n_threads(e->ex), &ignored) != CALLA_OK) return;
    out->read_bytes_per_s = read_rate(p, e, variant);
    out->vector_flops = peak_fma(p, variant);
    out->matrix_flops = out->vector_flops;
    const char *kind = "f32 multiply-adds";
    const double int8 = strcmp(precision, "exact") != 0 ? peak_int8(p, variant) : 0.0;
    if (int8 > 0.0) {
        const bool planes = strcmp(precision, "int16") == 0;
        out->matrix_flops = planes ? int8 / 2.0 : int8;
        kind = planes ? "int8 products, two for each of int16" : "int8 products";
    }
    (void)snprintf(out->matrix_kind, sizeof out->matrix_kind, "%s", kind);
    pool_destroy(p);
}

static void measure_gpu(bench_limits *out, calla_engine *e)
{
    gpu_device *d = gpu_self(e->ex)->dev;
    const bool small = strcmp(d->ops->name, "simt") == 0;
    gpu_ceilings c = {0};
    gpu_product best = {0};
    calla_error ignored;
    if (gpu_ceilings_measure(d, small, &c, &ignored) == CALLA_OK)
        for (uint32_t i = 0; i < CEILING_READS; i++)
            if (c.read[i] > out->read_bytes_per_s) out->read_bytes_per_s = c.read[i];
    if (!small && e->ex->ops->copy_bandwidth != NULL)
        out->copy_bytes_per_s = e->ex->ops->copy_bandwidth(e->ex);
    if (gpu_product_measure(d, small, &best, &ignored) != CALLA_OK) return;
    out->matrix_flops = best.flops;
    (void)snprintf(out->matrix_kind, sizeof out->matrix_kind, "4-bit product of %u x %u x %u",
                   best.n, best.rows, best.cols);
}

void limits_measure(bench_limits *out, calla_engine *e)
{
    *out = (bench_limits){0};
    if (machine_is_gpu(e))
        measure_gpu(out, e);
    else
        measure_cpu(out, e);
}
