#include "exec/predict.h"

#include <string.h>

#include "exec/gpu/device.h"

#define CHUNK 2048u

/* Apple: f32 = cores x 128 lanes x 2 x clock (1.30, 1.38, 1.58, 1.50 GHz under load). simdgroup
 * tiles run on those lanes, at 102 of 128 a cycle, and a quarter of the time goes to weights and
 * staging (assumed). A row of codes takes 3 instructions for 2 operations, 6 where a conversion
 * takes four slots (M1), where a fused multiply-add has one. Reading: an M5 Max sustains 576 of 614
 * GB/s (reported); the others are assumed to sustain 85 %, an M3 Ultra, with its many small groups,
 * 75 %. A dependent dispatch: 3 to 4 us on an M5 Max (reported), assumed everywhere. Tensor tiles:
 * 30 and 50 TFLOP/s on 40 cores (reported of others' kernels). H200: bench-gpu and the profile in
 * docs/SPEED.md. */
static const exec_chip chips[] = {
    {"m1-max", "Apple M1 Max", "simdgroup_matrix", 32, GPU_MM_TILES, 340e9, 6.3e12, 3.5e12, 10.6e12,
     3.5e-6},
    {"m4-pro", "Apple M4 Pro", "simdgroup_matrix", 20, GPU_MM_TILES, 232e9, 4.8e12, 5.4e12, 8.1e12,
     3.5e-6},
    {"m3-ultra", "Apple M3 Ultra", "simdgroup_matrix", 80, GPU_MM_TILES, 614e9, 16.9e12, 18.9e12,
     28.3e12, 3.5e-6},
    {"m5-max-26.2", "Apple M5 Max", "tensors 16x32x16", 40, GPU_MM_TILES, 576e9, 30e12, 10.3e12,
     15.4e12, 3.5e-6},
    {"m5-max", "Apple M5 Max", "4-bit tensors", 40, GPU_MM_CODES, 576e9, 50e12, 10.3e12, 15.4e12,
     3.5e-6},
    {"h200", "NVIDIA H200", "wgmma", 132, GPU_MM_WGMMA, 4.4e12, 400e12, 40e12, 60e12, 0.98e-6},
};
#define N_CHIPS (sizeof chips / sizeof *chips)

const exec_chip *exec_chips(uint32_t *n)
{
    *n = N_CHIPS;
    return chips;
}

const exec_chip *exec_chip_of(const char *device)
{
    const exec_chip *best = NULL;
    for (size_t i = 0; i < N_CHIPS; i++)
        if (strncmp(device, chips[i].device, strlen(chips[i].device)) == 0 &&
            (best == NULL || chips[i].tile > best->tile))
            best = &chips[i];
    return best;
}

/* ---- A step ---- */

typedef struct sum {
    const exec_chip *chip;
    exec_prediction p;
} sum;

static bool begins(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Operations a second of a kernel, by its family. */
static double rate_of(const exec_chip *c, const char *kernel)
{
    static const char *const tiles[] = {"gemm_q4",
                                        "gemm_wide",
                                        "gmm_",
                                        "codes_",
                                        "moe_up",
                                        "moe_down",
                                        "attn_scan_mm",
                                        "attn_step_fused_mma",
                                        "attn_step_plain_mma"};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        if (begins(kernel, tiles[i])) return c->tile;
    return begins(kernel, "gemv_") ? c->row : c->f32 / 2;
}

static void add_stage(void *user, const exec_stage *s)
{
    sum *t = user;
    const double read = s->bytes / t->chip->read, work = s->flops / rate_of(t->chip, s->kernel);
    t->p.of_bytes += read >= work ? read : 0.0;
    t->p.of_work += read >= work ? 0.0 : work;
    t->p.bytes += s->bytes;
    t->p.flops += s->flops;
    t->p.n_kernels++;
    if (s->level + 1 > t->p.n_stages) t->p.n_stages = s->level + 1;
}

static calla_status predict_step(const model_shape *shape, const exec_chip *chip, bool prefill,
                                 uint32_t n_tokens, uint32_t n_ctx, exec_prediction *out,
                                 calla_error *err)
{
    sum t = {.chip = chip};
    const calla_status st =
        exec_gpu_schedule(shape, chip, prefill, n_tokens, n_ctx, add_stage, &t, err);
    t.p.of_stages = t.p.n_stages * chip->stage;
    *out = t.p;
    return st;
}

static void add_scaled(exec_prediction *to, const exec_prediction *p, double n)
{
    to->of_bytes += n * p->of_bytes;
    to->of_work += n * p->of_work;
    to->of_stages += n * p->of_stages;
    to->bytes += n * p->bytes;
    to->flops += n * p->flops;
    to->n_kernels += (uint32_t)(n * p->n_kernels);
    to->n_stages += (uint32_t)(n * p->n_stages);
}

/* The cost of a chunk grows linearly with what is before it, so the first and the last tell all. */
calla_status exec_gpu_predict(const model_shape *shape, const exec_chip *chip, bool prefill,
                              uint32_t n_ctx, exec_prediction *out, calla_error *err)
{
    const uint32_t n = !prefill ? 1 : n_ctx < CHUNK ? n_ctx : CHUNK;
    const double chunks = prefill ? (double)n_ctx / n : 1.0;
    exec_prediction first, last;
    *out = (exec_prediction){0};
    calla_status st = predict_step(shape, chip, prefill, n, prefill ? n : n_ctx, &first, err);
    if (st == CALLA_OK && prefill) st = predict_step(shape, chip, true, n, n_ctx, &last, err);
    if (st != CALLA_OK) return st;
    add_scaled(out, &first, prefill ? chunks / 2 : 1.0);
    if (prefill) add_scaled(out, &last, chunks / 2);
    out->seconds = out->of_bytes + out->of_work + out->of_stages;
    return CALLA_OK;
}
