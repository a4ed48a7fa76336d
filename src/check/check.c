#include "check/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ck.h"
#include "base/mem.h"
#include "check/check_priv.h"

const model_shape check_nano = {.n_layers = 8,
                                .hidden = 256,
                                .n_vocab = 4096,
                                .max_context = 16384,
                                .full_interval = 4,
                                .n_heads = 8,
                                .n_kv_heads = 1,
                                .head_dim = 256,
                                .rotary_dim = 64,
                                .gdn_k_heads = 2,
                                .gdn_v_heads = 4,
                                .gdn_k_dim = 128,
                                .gdn_v_dim = 128,
                                .conv_kernel = 4,
                                .n_experts = 32,
                                .n_experts_used = 8,
                                .expert_width = 64,
                                .shared_width = 64,
                                .rms_eps = 1e-6f,
                                .rope_theta = 1e7f};

static void die(const char *what)
{
    fprintf(stderr, "calla: kernel check: %s\n", what);
    exit(2);
}

/* ---- Device ---- */

gpu_device *check_device(check *c)
{
    return c->dev;
}

bool check_on_emulator(const check *c)
{
    return strcmp(c->dev->ops->name, "simt") == 0;
}

bool check_draws_native(const check *c)
{
    return check_on_emulator(c) && !c->metal;
}

bool check_timing(const check *c)
{
    return c->time_reps > 0;
}

gpu_context *check_context(check *c, const model_shape *shape)
{
    gpu_limits limits;
    c->dev->ops->limits(c->dev, &limits);
    memset(&c->context, 0, sizeof c->context);
    c->context.rec = c->rec;
    c->context.shape = shape;
    c->context.n_cores = limits.n_cores;
    c->context.native_mm = c->codes ? GPU_MM_CODES : limits.native_mm;
    rec_reset(c->rec);
    return &c->context;
}

#define POISON_MAX ((uint64_t)64 << 20)

gpu_view check_view(check *c, const char *name, uint64_t bytes, const void *init)
{
    calla_error err;
    const gpu_ops *ops = c->dev->ops;
    if (c->n_buffers == CHECK_BUFFERS_MAX) die("too many buffers in a case");
    gpu_buffer **b = &c->buffers[c->n_buffers];
    if (ops->buffer_create(c->dev, GPU_MEM_DEVICE, bytes, name, b, &err) != CALLA_OK)
        die(err.message);
    c->n_buffers++;
    const gpu_view v = {*b, 0, bytes};
    /* The emulator knows what was not written; elsewhere it is NaN. */
    if (init == NULL && !c->raw && (!check_on_emulator(c) || c->metal) && bytes <= POISON_MAX) {
        uint8_t *poison = mem_alloc((size_t)bytes);
        if (poison == NULL) die("no memory");
        memset(poison, 0xff, (size_t)bytes);
        if (ops->write(c->dev, v, poison, &err) != CALLA_OK) die(err.message);
        mem_free(poison);
    }
    if (init != NULL && ops->write(c->dev, v, init, &err) != CALLA_OK) die(err.message);
    return v;
}

void *check_fetch(check *c, gpu_view v)
{
    calla_error err;
    void *host = check_host(c, v.bytes);
    if (c->dev->ops->read(c->dev, host, v, &err) != CALLA_OK) check_fail(c, "%s", err.message);
    return host;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of time_reps submissions. */
static void time_program(check *c, gpu_program *p, const gpu_recording *r)
{
    double bytes = 0, flops = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        bytes += r->dispatch[i].bytes;
        flops += r->dispatch[i].flops;
    }
    double *seconds = check_host(c, c->time_reps * sizeof *seconds);
    for (uint32_t i = 0; i < c->time_reps; i++) {
        calla_error err;
        uint64_t ticket;
        if (c->dev->ops->submit(c->dev, p, &ticket, &err) != CALLA_OK ||
            c->dev->ops->wait(c->dev, ticket, &seconds[i], &err) != CALLA_OK) {
            check_fail(c, "%s", err.message);
            return;
        }
    }
    qsort(seconds, c->time_reps, sizeof *seconds, by_value);
    const double t = seconds[c->time_reps / 2];
    printf("time %-28s %-44s %4u dispatches %10.1f us (%.1f .. %.1f) %8.1f GB/s %8.3f TFLOP/s",
           c->name, c->shape, r->n, t * 1e6, seconds[0] * 1e6, seconds[c->time_reps - 1] * 1e6,
           bytes / t * 1e-9, flops / t * 1e-12);
    if (c->peak_gbs > 0) printf(" %5.1f %% of copy", 100 * bytes / t * 1e-9 / c->peak_gbs);
    if (c->peak_tflops > 0) printf(" %5.1f %% of bf16", 100 * flops / t * 1e-12 / c->peak_tflops);
    printf("\n");
}

static calla_status run_once(check *c, gpu_program *p, calla_error *err)
{
    uint64_t ticket;
    const calla_status st = c->dev->ops->submit(c->dev, p, &ticket, err);
    return st != CALLA_OK ? st : c->dev->ops->wait(c->dev, ticket, NULL, err);
}

static bool run(check *c, bool timed)
{
    calla_error err;
    gpu_recording r;
    gpu_program *p = NULL;
    calla_status st;
    TRY(rec_finish(c->rec, false, &r, &err));
    r.early_start = c->early;
    TRY(c->dev->ops->program_create(c->dev, &r, !timed && !c->graph, &p, &err));
    TRY(run_once(c, p, &err));
    if (timed) time_program(c, p, &r);
fail:
    if (st != CALLA_OK) check_fail(c, "%s", err.message);
    c->dev->ops->program_destroy(c->dev, p);
    rec_reset(c->rec);
    return st == CALLA_OK;
}

bool check_run(check *c)
{
    return run(c, check_timing(c));
}

bool check_run_once(check *c)
{
    return run(c, false);
}

/* ---- Values ---- */

void *check_host(check *c, uint64_t bytes)
{
    if (c->n_blocks == CHECK_BLOCKS_MAX) die("too many host blocks in a case");
    void *p = mem_alloc_aligned((size_t)bytes);
    if (p == NULL) die("no memory");
    c->blocks[c->n_blocks++] = p;
    return p;
}

uint64_t check_random(check *c)
{
    c->rng += 0x9e3779b97f4a7c15u;
    uint64_t z = c->rng;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t check_below(check *c, uint32_t n)
{
    return (uint32_t)(check_random(c) % n);
}

float check_uniform(check *c, float a, float b)
{
    return a + (b - a) * (float)(check_random(c) >> 40) * 0x1p-24f;
}

float *check_floats(check *c, uint64_t n, float a, float b)
{
    float *x = check_host(c, n * sizeof *x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = check_uniform(c, a, b);
    return x;
}

uint16_t *check_bf16s(check *c, uint64_t n, float a, float b)
{
    uint16_t *x = check_host(c, n * sizeof *x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = f32_to_bf16(check_uniform(c, a, b));
    return x;
}

uint32_t *check_words(check *c, uint64_t n)
{
    uint32_t *x = check_host(c, n * sizeof *x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = (uint32_t)(check_random(c) >> 32);
    return x;
}

uint32_t *check_scales(check *c, uint64_t n, float bias_in_scales)
{
    uint32_t *x = check_host(c, n * sizeof *x);
    for (uint64_t i = 0; i < n; i++) {
        const float scale = check_uniform(c, 0.005f, 0.015f) * (check_below(c, 4) == 0 ? -1 : 1);
        const float bias = scale * bias_in_scales * check_uniform(c, 0.8f, 1.2f);
        x[i] = f32_to_bf16(scale) | (uint32_t)f32_to_bf16(bias) << 16;
    }
    return x;
}

/* ---- Comparing ---- */

void check_fail(check *c, const char *fmt, ...)
{
    if (c->failed) return;
    c->failed = true;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->failure, sizeof c->failure, fmt, ap);
    va_end(ap);
}

void check_shape(check *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->shape, sizeof c->shape, fmt, ap);
    va_end(ap);
}

bool check_failed(const check *c)
{
    return c->failed;
}

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

void check_same_f32(check *c, const char *what, const float *got, const float *want, uint64_t rows,
                    uint64_t cols)
{
    for (uint64_t i = 0; i < rows * cols && !c->failed; i++)
        if (bits(got[i]) != bits(want[i]))
            check_fail(c, "%s[%llu][%llu] is %.9g (%08x), expected %.9g (%08x)", what,
                       (unsigned long long)(i / cols), (unsigned long long)(i % cols),
                       (double)got[i], bits(got[i]), (double)want[i], bits(want[i]));
}

void check_same_u32(check *c, const char *what, const uint32_t *got, const uint32_t *want,
                    uint64_t rows, uint64_t cols)
{
    for (uint64_t i = 0; i < rows * cols && !c->failed; i++)
        if (got[i] != want[i])
            check_fail(c, "%s[%llu][%llu] is %u, expected %u", what, (unsigned long long)(i / cols),
                       (unsigned long long)(i % cols), got[i], want[i]);
}

void check_same_u16(check *c, const char *what, const uint16_t *got, const uint16_t *want,
                    uint64_t rows, uint64_t cols)
{
    for (uint64_t i = 0; i < rows * cols && !c->failed; i++)
        if (got[i] != want[i])
            check_fail(c, "%s[%llu][%llu] is %04x, expected %04x", what,
                       (unsigned long long)(i / cols), (unsigned long long)(i % cols), got[i],
                       want[i]);
}

static void close_enough(check *c, const char *what, uint64_t i, uint64_t cols, float got,
                         double want, double bound)
{
    const double e = fabs((double)got - want);
    if (bound > 0 && e / bound > c->worst) c->worst = e / bound;
    if (!(e <= bound))
        check_fail(c, "%s[%llu][%llu] is %.9g, expected %.9g +- %.2g", what,
                   (unsigned long long)(i / cols), (unsigned long long)(i % cols), (double)got,
                   want, bound);
}

void check_close_f32(check *c, const char *what, const float *got, const float *want, uint64_t rows,
                     uint64_t cols, double abs, double rel)
{
    for (uint64_t i = 0; i < rows * cols && !c->failed; i++)
        close_enough(c, what, i, cols, got[i], (double)want[i], abs + rel * fabs((double)want[i]));
}

void check_bound_f32(check *c, const char *what, const float *got, const double *want,
                     const double *bound, uint64_t rows, uint64_t cols)
{
    for (uint64_t i = 0; i < rows * cols && !c->failed; i++)
        close_enough(c, what, i, cols, got[i], want[i], bound[i]);
}

/* ---- Draws ---- */

/* check_X_cases of check_X.c */
#define FAMILIES(F)     F(attn) F(basic) F(driver) F(gdn) F(gemm) F(gemv) F(products) F(util)
#define DECLARE(family) extern const check_case check_##family##_cases[];
#define CASES(family)   check_##family##_cases,
FAMILIES(DECLARE)
const check_case *const check_families[] = {FAMILIES(CASES)};
const size_t check_n_families = sizeof check_families / sizeof *check_families;

static uint64_t name_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s != '\0'; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return h;
}

static void release(check *c)
{
    for (uint32_t i = 0; i < c->n_buffers; i++)
        c->dev->ops->buffer_destroy(c->dev, c->buffers[i]);
    for (uint32_t i = 0; i < c->n_blocks; i++)
        mem_free_aligned(c->blocks[i]);
    c->n_buffers = c->n_blocks = 0;
}

void check_draw(check *c, const check_case *k, uint64_t seed)
{
    c->name = k->name;
    c->failed = false;
    c->rng = seed * 0x2545f4914f6cdd1du + name_hash(k->name);
    c->shape[0] = '\0';
    k->run(c);
    release(c);
}
