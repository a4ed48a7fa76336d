#include "bench/peak.h"

#include "exec/cpu/kernels.h"

#include <string.h>

#define READ_BLOCK (1u << 20)

typedef struct read_ctx {
    uint64_t (*fn)(const uint8_t *at, uint64_t n, uint64_t ahead);
    const uint8_t *data;
    uint64_t n, ahead;
    uint64_t sums[POOL_THREADS_MAX * 8]; /* one cache line a thread */
} read_ctx;

#define READ_FN   peak_read_generic
#define VEC       uint64_t
#define LOAD      load_word
#define XOR(a, b) ((a) ^ (b))
#define ZERO      0
static uint64_t load_word(const void *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}
#include "bench/peak_read.inc"

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

typedef double (*peak_fn)(uint64_t n, float *sink);

typedef struct peak_code {
    const char *variant; /* of the CPU's kernels */
    uint32_t needs;      /* for int8 */
    uint64_t (*read)(const uint8_t *at, uint64_t n, uint64_t ahead);
    peak_fn fma, int8;
} peak_code;

/* Of a variant, the last row whose features the CPU has. */
static peak_code best_of(const char *variant)
{
    static const peak_code rows[] = {
#if defined(__x86_64__)
        {"avx2", CPU_AVX2, peak_read_avx2, peak_fma_avx2, peak_int8_avx2},
        {"avxvnni", CPU_AVXVNNI, peak_read_avx2, peak_fma_avx2, peak_int8_avxvnni},
        {"avx512", CPU_AVX512, peak_read_avx512, peak_fma_avx512, peak_int8_avx2},
        {"avx512", CPU_VNNI, peak_read_avx512, peak_fma_avx512, peak_int8_avx512vnni},
#elif defined(__aarch64__)
        {"neon", CPU_NEON, peak_read_neon, peak_fma_neon, NULL},
        {"neon", CPU_DOTPROD, peak_read_neon, peak_fma_neon, peak_int8_dotprod},
        {"i8mm", CPU_I8MM, peak_read_neon, peak_fma_neon, peak_int8_i8mm},
#endif
        {"ref", 0, peak_read_generic, fma_generic, NULL},
    };
    peak_code best = {"ref", 0, peak_read_generic, fma_generic, NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].variant, variant) == 0 &&
            (cpu_features() & rows[i].needs) == rows[i].needs)
            best = rows[i];
    return best;
}

static void read_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    read_ctx *c = p;
    const uint8_t *at = c->data + (uint64_t)i_task * READ_BLOCK;
    const uint64_t all = c->n - (uint64_t)i_task * READ_BLOCK;
    const uint64_t n = (all < READ_BLOCK ? all : READ_BLOCK) / 256 * 256;
    c->sums[i_thread * 8] ^= c->fn(at, n, c->ahead);
}

double peak_read_bandwidth(pool *p, const uint8_t *data, uint64_t n, int n_reps,
                           const char *variant)
{
    static read_ctx c;
    double best = 0.0;
    c.fn = best_of(variant).read;
    c.data = data;
    c.n = n;
    for (int r = 0; r < n_reps; r++) {
        c.ahead = (uint64_t)(r % 4) * 1024; /* none, 1, 2, 3 KiB: which wins depends on the CPU */
        const double t0 = time_now();
        pool_run(p, read_task, &c, (uint32_t)((n + READ_BLOCK - 1) / READ_BLOCK));
        const double rate = (double)n / (time_now() - t0);
        if (rate > best) best = rate;
    }
    return best;
}

typedef struct fma_ctx {
    peak_fn fn;
    uint64_t n;
    double ops[POOL_THREADS_MAX];
    float sink[POOL_THREADS_MAX];
} fma_ctx;

static void fma_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    fma_ctx *c = p;
    (void)i_thread;
    c->ops[i_task] = c->fn(c->n, &c->sink[i_task]);
}

/* Operations per second of c->fn on all threads, best of three. */
static double rate_of(pool *p, fma_ctx *c)
{
    const uint32_t n_threads = pool_n_threads(p);
    double best = 0.0;
    for (int r = 0; r < 3; r++) {
        const double t0 = time_now();
        pool_run(p, fma_task, c, n_threads);
        const double dt = time_now() - t0;
        double ops = 0.0;
        for (uint32_t i = 0; i < n_threads; i++)
            ops += c->ops[i];
        if (ops / dt > best) best = ops / dt;
    }
    return best;
}

double peak_fma(pool *p, const char *variant)
{
    static fma_ctx c;
    c.fn = best_of(variant).fma;
    c.n = 8000000;
    return rate_of(p, &c);
}

double peak_int8(pool *p, const char *variant)
{
    static fma_ctx c;
    c.fn = best_of(variant).int8;
    c.n = 8000000;
    return c.fn != NULL ? rate_of(p, &c) : 0.0;
}
