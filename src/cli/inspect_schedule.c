#include "cli/inspect_schedule.h"

#include <stdio.h>
#include <string.h>

#include "exec/predict.h"

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

calla_status inspect_schedule(strbuf *b, const model_shape *shape, const exec_chip *chip,
                              uint32_t n_ctx, bool json, calla_error *err)
{
    const uint32_t chunk = n_ctx < PREFILL_CHUNK ? n_ctx : PREFILL_CHUNK;
    table decode = {0}, prefill = {0};
    calla_status st = exec_gpu_schedule(shape, chip, false, 1, n_ctx, add, &decode, err);
    if (st == CALLA_OK) st = exec_gpu_schedule(shape, chip, true, chunk, n_ctx, add, &prefill, err);
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

/* ---- Predictions ---- */

static const uint32_t lengths[] = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

static double rate(const exec_prediction *p, bool prefill, uint32_t n)
{
    return (prefill ? (double)n : 1.0) / p->seconds;
}

static calla_status predict_json(strbuf *b, const model_shape *shape, const exec_chip *chip,
                                 calla_error *err)
{
    (void)strbuf_printf(b,
                        "{\"chip\": \"%s\", \"device\": \"%s\", \"tiles\": \"%s\", "
                        "\"cores\": %u, \"read\": %.4g, \"tile\": %.4g, \"row\": %.4g, "
                        "\"f32\": %.4g, \"stage\": %.3g, \"predictions\": [",
                        chip->id, chip->device, chip->tiles, chip->n_cores, chip->read, chip->tile,
                        chip->row, chip->f32, chip->stage);
    for (size_t i = 0; i < 2 * N_LENGTHS; i++) {
        const bool prefill = i % 2 != 0;
        const uint32_t n = lengths[i / 2];
        exec_prediction p;
        if (n > shape->max_context) continue;
        const calla_status st = exec_gpu_predict(shape, chip, prefill, n, &p, err);
        if (st != CALLA_OK) return st;
        (void)strbuf_printf(b,
                            "%s{\"kind\": \"%s\", \"n\": %u, \"tokens_per_second\": %.2f, "
                            "\"seconds\": %.6g, \"of_bytes\": %.6g, \"of_work\": %.6g, "
                            "\"of_stages\": %.6g, \"bytes\": %.0f, \"flops\": %.0f, "
                            "\"kernels\": %u, \"stages\": %u}",
                            i == 0 ? "" : ", ", prefill ? "prefill" : "decode", n,
                            rate(&p, prefill, n), p.seconds, p.of_bytes, p.of_work, p.of_stages,
                            p.bytes, p.flops, p.n_kernels, p.n_stages);
    }
    (void)strbuf_puts(b, "]}");
    return CALLA_OK;
}

static calla_status predict_text(strbuf *b, const model_shape *shape, const exec_chip *chip,
                                 calla_error *err)
{
    (void)strbuf_printf(b,
                        "%s, %s: reads %.0f GB/s, tiles %.1f TFLOP/s, f32 %.1f, a stage %.2f us\n"
                        "  %8s %12s %9s %8s %22s %14s\n",
                        chip->device, chip->tiles, chip->read / 1e9, chip->tile / 1e12,
                        chip->f32 / 1e12, chip->stage * 1e6, "tokens", "decode tok/s", "GB/token",
                        "stages", "ms: bytes+work+stages", "prefill tok/s");
    for (size_t i = 0; i < N_LENGTHS; i++) {
        exec_prediction d, p;
        if (lengths[i] > shape->max_context) break;
        calla_status st = exec_gpu_predict(shape, chip, false, lengths[i], &d, err);
        if (st == CALLA_OK) st = exec_gpu_predict(shape, chip, true, lengths[i], &p, err);
        if (st != CALLA_OK) return st;
        (void)strbuf_printf(b, "  %8u %12.0f %9.3f %8u %8.2f + %4.2f + %4.2f %14.0f\n", lengths[i],
                            rate(&d, false, 0), d.bytes / 1e9, d.n_stages, d.of_bytes * 1e3,
                            d.of_work * 1e3, d.of_stages * 1e3, rate(&p, true, lengths[i]));
    }
    return CALLA_OK;
}

calla_status inspect_predict(strbuf *b, const model_shape *shape, const exec_chip *only, bool json,
                             calla_error *err)
{
    uint32_t n = 0, n_shown = 0;
    const exec_chip *chips = exec_chips(&n);
    if (!json)
        (void)strbuf_puts(b, "Predictions, not measurements: seconds = sum over dispatches of "
                             "max(bytes / read rate,\noperations / rate) + stages x cost of a "
                             "stage (exec/predict.h).\n");
    for (uint32_t i = 0; i < n; i++) {
        if (only != NULL && only != &chips[i]) continue;
        (void)strbuf_puts(b, json ? (n_shown == 0 ? "{\"chips\": [" : ", ") : "\n");
        const calla_status st =
            json ? predict_json(b, shape, &chips[i], err) : predict_text(b, shape, &chips[i], err);
        if (st != CALLA_OK) return st;
        n_shown++;
    }
    if (json) (void)strbuf_puts(b, "]}\n");
    return CALLA_OK;
}

const exec_chip *inspect_chip(const char *id)
{
    uint32_t n = 0;
    const exec_chip *chips = exec_chips(&n);
    for (uint32_t i = 0; id != NULL && i < n; i++)
        if (strcmp(chips[i].id, id) == 0) return &chips[i];
    return NULL;
}
