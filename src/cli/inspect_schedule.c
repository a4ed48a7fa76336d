#include "cli/inspect_schedule.h"

#include <stdio.h>
#include <string.h>

#include "exec/executor.h"

#define ROWS_MAX      128u
#define PREFILL_CHUNK 2048u

/* Dispatches with the same kernel and label, of all layers. */
typedef struct row {
    const char *label, *kernel;
    uint32_t n, groups, threads;
    double bytes, flops;
} row;

typedef struct table {
    row rows[ROWS_MAX];
    uint32_t n_rows, n_kernels, n_stages;
    double bytes, flops;
} table;

static void add(void *user, const exec_stage *s)
{
    table *t = user;
    uint32_t i = 0;
    while (i < t->n_rows &&
           (strcmp(t->rows[i].label, s->label) != 0 || strcmp(t->rows[i].kernel, s->kernel) != 0))
        i++;
    if (i == ROWS_MAX) i--; /* the sum stays right */
    row *r = &t->rows[i];
    if (i == t->n_rows) *r = (row){.label = s->label, .kernel = s->kernel, .threads = s->threads};
    if (i == t->n_rows) t->n_rows++;
    r->n++;
    r->groups = s->groups;
    r->bytes += s->bytes;
    r->flops += s->flops;
    t->n_kernels++;
    t->bytes += s->bytes;
    t->flops += s->flops;
    if (s->level + 1 > t->n_stages) t->n_stages = s->level + 1;
}

static void write_text(strbuf *b, const table *t, const char *what, uint32_t n_ctx)
{
    (void)strbuf_printf(b,
                        "%s at %u tokens of context: %u kernels in %u dependent stages, "
                        "%.3f GB, %.2f GFLOP\n",
                        what, n_ctx, t->n_kernels, t->n_stages, t->bytes / 1e9, t->flops / 1e9);
    (void)strbuf_printf(b, "  %-16s %-24s %6s %8s %8s %10s %10s\n", "step", "kernel", "times",
                        "groups", "threads", "MB each", "MFLOP each");
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const row *r = &t->rows[i];
        (void)strbuf_printf(b, "  %-16s %-24s %6u %8u %8u %10.3f %10.2f\n", r->label, r->kernel,
                            r->n, r->groups, r->threads, r->bytes / 1e6 / r->n,
                            r->flops / 1e6 / r->n);
    }
}

static void write_json(strbuf *b, const table *t, const char *name)
{
    (void)strbuf_printf(b,
                        "\"%s\": {\"kernels\": %u, \"stages\": %u, \"bytes\": %.0f, "
                        "\"flops\": %.0f, \"rows\": [",
                        name, t->n_kernels, t->n_stages, t->bytes, t->flops);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const row *r = &t->rows[i];
        (void)strbuf_printf(b,
                            "%s{\"step\": \"%s\", \"kernel\": \"%s\", \"times\": %u, "
                            "\"groups\": %u, \"threads\": %u, \"bytes\": %.0f, \"flops\": %.0f}",
                            i == 0 ? "" : ", ", r->label, r->kernel, r->n, r->groups, r->threads,
                            r->bytes, r->flops);
    }
    (void)strbuf_puts(b, "]}");
}

calla_status inspect_schedule(strbuf *b, const model_shape *shape, uint32_t n_ctx, bool json,
                              calla_error *err)
{
    const uint32_t chunk = n_ctx < PREFILL_CHUNK ? n_ctx : PREFILL_CHUNK;
    table decode = {0}, prefill = {0};
    calla_status st = exec_gpu_schedule(shape, false, 1, n_ctx, add, &decode, err);
    if (st == CALLA_OK) st = exec_gpu_schedule(shape, true, chunk, n_ctx, add, &prefill, err);
    if (st != CALLA_OK) return st;
    if (json) {
        write_json(b, &decode, "decode");
        (void)strbuf_puts(b, ", ");
        write_json(b, &prefill, "prefill");
        return CALLA_OK;
    }
    char what[64];
    (void)snprintf(what, sizeof what, "A prefill chunk of %u tokens", chunk);
    write_text(b, &decode, "A decode step", n_ctx);
    (void)strbuf_putc(b, '\n');
    write_text(b, &prefill, what, n_ctx);
    return CALLA_OK;
}
