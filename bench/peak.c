#include "peak.h"

#include <string.h>

#define READ_BLOCK (1u << 20)

typedef struct read_ctx {
    const uint8_t *data;
    uint64_t n;
    uint64_t sums[POOL_THREADS_MAX * 8]; /* one cache line a thread */
} read_ctx;

/* Eight independent sums of 64-bit words: the compiler turns them into vector loads. */
static void read_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    read_ctx *c = p;
    const uint8_t *at = c->data + (uint64_t)i_task * READ_BLOCK;
    const uint64_t all = c->n - (uint64_t)i_task * READ_BLOCK;
    const uint64_t n = (all < READ_BLOCK ? all : READ_BLOCK) / 512 * 512;
    uint64_t s[64] = {0};
    for (uint64_t i = 0; i < n; i += 512) {
        uint64_t w[64];
        memcpy(w, at + i, sizeof w);
        for (int j = 0; j < 64; j++)
            s[j] += w[j];
    }
    for (int j = 0; j < 64; j++)
        c->sums[i_thread * 8] += s[j];
}

double peak_read_bandwidth(pool *p, const uint8_t *data, uint64_t n, int n_reps)
{
    static read_ctx c;
    double best = 0.0;
    c.data = data;
    c.n = n;
    for (int r = 0; r < n_reps; r++) {
        const double t0 = time_now();
        pool_run(p, read_task, &c, (uint32_t)((n + READ_BLOCK - 1) / READ_BLOCK));
        const double rate = (double)n / (time_now() - t0);
        if (rate > best) best = rate;
    }
    return best;
}

typedef struct fma_ctx {
    double (*fn)(uint64_t n, float *sink);
    uint64_t n;
    double ops[POOL_THREADS_MAX];
    float sink[POOL_THREADS_MAX];
} fma_ctx;

static double fma_generic(uint64_t n, float *sink)
{
    float acc[64];
    for (int i = 0; i < 64; i++)
        acc[i] = (float)i;
    for (uint64_t k = 0; k < n; k++)
        for (int i = 0; i < 64; i++)
            acc[i] = acc[i] * 0.999f + 0.001f;
    for (int i = 0; i < 64; i++)
        *sink += acc[i];
    return (double)n * 64.0 * 2.0;
}

static void fma_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    fma_ctx *c = p;
    (void)i_thread;
    c->ops[i_task] = c->fn(c->n, &c->sink[i_task]);
}

double peak_fma(pool *p, const char *variant)
{
    static fma_ctx c;
    const uint32_t n_threads = pool_n_threads(p);
    double best = 0.0;
    c.fn = fma_generic;
    c.n = 8000000;
#if defined(__x86_64__)
    if (strcmp(variant, "avx512") == 0) c.fn = peak_fma_avx512;
    if (strcmp(variant, "avx2") == 0) c.fn = peak_fma_avx2;
#else
    (void)variant;
#endif
    for (int r = 0; r < 3; r++) {
        const double t0 = time_now();
        pool_run(p, fma_task, &c, n_threads);
        const double dt = time_now() - t0;
        double ops = 0.0;
        for (uint32_t i = 0; i < n_threads; i++)
            ops += c.ops[i];
        if (ops / dt > best) best = ops / dt;
    }
    return best;
}
