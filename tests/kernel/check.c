#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/ck.h"
#include "base/mem.h"

/* ---- Drawing ---- */

uint64_t check_random(check *c)
{
    uint64_t z = c->rng += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t check_below(check *c, uint32_t n)
{
    return (uint32_t)(check_random(c) >> 32) % n;
}

double check_unit(check *c)
{
    return (double)(check_random(c) >> 11) * 0x1p-52 - 1.0;
}

values check_values(check *c)
{
    const uint32_t i = check_below(c, N_VALUES + 4);
    return i < N_VALUES ? (values)i : VALUES_PLAIN;
}

const char *values_name(values v)
{
    static const char *const names[] = {"plain", "tiny", "huge", "zero", "denormal", "mixed"};
    return names[v];
}

float check_draw(check *c, values v, double large)
{
    const double u = check_unit(c);
    switch (v) {
    case VALUES_TINY:
        return (float)(u * 1e-20);
    case VALUES_HUGE:
        return (float)(u * large);
    case VALUES_ZERO:
        return u < 0 ? -0.0f : 0.0f;
    case VALUES_DENORMAL:
        return (float)(u * 1e-39);
    case VALUES_MIXED:
        return (float)ldexp(u, (int)check_below(c, 24) - 16);
    case VALUES_PLAIN:
    case N_VALUES:
        break;
    }
    return (float)(u * 2);
}

void check_fill(check *c, float *x, size_t n, values v, double large)
{
    for (size_t i = 0; i < n; i++)
        x[i] = check_draw(c, v, large);
}

/* ---- Memory ---- */

/* n bytes whose start is aligned to `align` and whose end is as near to an unmapped page as that
 * allows; `gap` bytes nearer to the front if given. */
static uint8_t *block(check *c, size_t n, size_t align, size_t gap)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (n + gap + page) / page * page + page; /* at least 1 page of canary */
    if (c->n_blocks == CHECK_BLOCKS_MAX) abort();
    uint8_t *map = mmap(NULL, body + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + page, body, PROT_READ | PROT_WRITE) != 0) {
        fprintf(stderr, "calla-check: no memory for a block of %zu bytes\n", n);
        exit(2);
    }
    memset(map + page, 0xff, body);
    const size_t off = (page + body - n - gap) / align * align;
    c->blocks[c->n_blocks++] = (check_block){map, map + off, body + 2 * page, n};
    return map + off;
}

float *check_floats(check *c, size_t n)
{
    return (float *)(void *)block(c, n * sizeof(float), 64, 0);
}

uint8_t *check_bytes(check *c, size_t n)
{
    const size_t gap = check_below(c, 2) == 0 ? 0 : n % 2 == 0 ? 1 : 2;
    return block(c, n, 1, gap);
}

float *check_copy(check *c, const float *x, size_t n)
{
    float *copy = check_floats(c, n);
    memcpy(copy, x, n * sizeof *copy);
    return copy;
}

void check_release(check *c, bool verify)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        const check_block *b = &c->blocks[i];
        const uint8_t *end = b->map + b->map_bytes - page;
        for (const uint8_t *p = b->map + page; verify && p < end; p++) {
            if (p == b->data) p += b->data_bytes;
            if (p < end && *p != 0xff) {
                check_fail(c, "wrote outside a block of %zu bytes, at offset %td", b->data_bytes,
                           p - b->data);
                break;
            }
        }
        munmap(b->map, b->map_bytes);
    }
    c->n_blocks = 0;
}

/* ---- Comparing ---- */

void check_fail(check *c, const char *fmt, ...)
{
    if (c->failed) return;
    c->failed = true;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->failure, sizeof c->failure, fmt, ap);
    va_end(ap);
}

void check_shape(check *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->shape, sizeof c->shape, fmt, ap);
    va_end(ap);
}

void check_close(check *c, const char *what, size_t i, size_t j, float got, double want,
                 double warn, double fail)
{
    const double error = fabs((double)got - want);
    if (error <= warn * c->worst) return;
    if (!(error <= fail)) /* also when NaN */
        check_fail(c, "%s[%zu][%zu] = %.9g, expected %.9g, error %.3g, bound %.3g", what, i, j,
                   (double)got, want, error, fail);
    else if (warn > 0)
        c->worst = error / warn;
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

void check_same(check *c, const char *what, size_t i, size_t j, float got, float want)
{
    if (bits(got) != bits(want))
        check_fail(c, "%s[%zu][%zu] = %.9g (%08x), not bitwise the expected %.9g (%08x)", what, i,
                   j, (double)got, bits(got), (double)want, bits(want));
}

void check_unwritten(check *c, const char *what, size_t i, size_t j, float got)
{
    if (bits(got) != 0xffffffffu)
        check_fail(c, "%s[%zu][%zu] lies outside the output but was written (%.9g)", what, i, j,
                   (double)got);
}

/* ---- Timing ---- */

/* Processor time of this thread: others may be using the machine. */
static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define BATCHES 9

/* Seconds per call: median over batches of at least 5 ms each; once: one batch, for the slow
 * reference. */
static double seconds_per_call(void (*call)(void *), void *ctx, bool once, double *spread)
{
    double t[BATCHES];
    double n = 1;
    int n_batches = 0;
    if (!once) call(ctx);
    for (;;) {
        const double t0 = now();
        for (double i = 0; i < n; i++)
            call(ctx);
        const double dt = now() - t0;
        if (dt < 5e-3) {
            n *= 2;
            continue;
        }
        t[n_batches++] = dt / n;
        if (once || n_batches == BATCHES || dt * n_batches > 0.5) break;
    }
    qsort(t, (size_t)n_batches, sizeof *t, by_value);
    *spread = (t[n_batches - 1] - t[0]) / t[n_batches / 2];
    return t[n_batches / 2];
}

void bench_run(bench *b, const char *shape, double n_bytes, double n_flops, void (*call)(void *),
               void *ctx)
{
    double spread;
    const uint32_t i = b->i_shape++;
    if (i >= BENCH_SHAPES_MAX) abort();
    const double s = seconds_per_call(call, ctx, b->quiet, &spread);
    if (b->is_ref) b->ref_seconds[i] = s;
    if (b->quiet) return;
    const double gbs = n_bytes / s * 1e-9, gflops = n_flops / s * 1e-9,
                 gain = b->ref_seconds[i] / s;
    if (b->csv)
        printf("%s,%s,%s,%.3f,%.2f,%.2f,%.2f,%.0f\n", b->name, b->variant, shape, s * 1e6, gbs,
               gflops, gain, spread * 50);
    else
        printf("%-14s %-7s %-26s %11.3f us %8.2f GB/s %8.2f GFLOP/s %7.2f x ref  (+-%.0f %%)\n",
               b->name, b->variant, shape, s * 1e6, gbs, gflops, gain, spread * 50);
    fflush(stdout);
}

uint8_t *bench_bytes(size_t n)
{
    uint8_t *p = mem_alloc_pages(n);
    if (p == NULL) {
        fprintf(stderr, "calla-check: no memory for %zu bytes\n", n);
        exit(2);
    }
    uint64_t x = 88172645463325252u; /* xorshift64: the bytes of random codes */
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        p[i] = (uint8_t)(x >> 32);
    }
    return p;
}

float *bench_floats(size_t n)
{
    float *p = (float *)(void *)bench_bytes(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        p[i] = (float)((double)(bits(p[i]) >> 8) * 0x1p-23 - 1.0);
    return p;
}
