/* bench-gpu - what an NVIDIA GPU gives at most: copies, reads, dependent stages, matrix products,
 * uploads. The ceilings that calla-gpu-check --time and docs/SPEED.md are held against.
 *
 *   bench-gpu           the table
 *   bench-gpu --break   a kernel with a bad address: reported, the device lost, the next one right
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/gpu/cuda/cuda_dev.h"
#include "exec/gpu/recorder.h"
#include "kernels/args_util.h"
#include "peaks.h"

#define REPS  15u
#define MIB   ((uint64_t)1 << 20)
#define L2_X  ((uint64_t)2048 * MIB) /* far more than any cache */
#define ROUND 16384u                 /* bytes of a group and round of util_read */

typedef struct bench {
    gpu_device *dev;
    const gpu_ops *ops;
    recorder *rec;
    gpu_view big, out; /* L2_X bytes; results of groups */
    uint32_t n_cores;
} bench;

static void die(const char *what)
{
    fprintf(stderr, "bench-gpu: %s\n", what);
    exit(1);
}

static void must(calla_status st, const calla_error *err)
{
    if (st != CALLA_OK) die(err->message);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static gpu_view buffer(bench *b, gpu_memory kind, uint64_t bytes, const char *name)
{
    calla_error err;
    gpu_buffer *p = NULL;
    must(b->ops->buffer_create(b->dev, kind, bytes, name, &p, &err), &err);
    return (gpu_view){p, 0, bytes};
}

static void open_bench(bench *b)
{
    calla_error err;
    gpu_limits l;
    memset(b, 0, sizeof *b);
    must(gpu_cuda_create(&b->dev, 0, &err), &err);
    b->ops = b->dev->ops;
    must(recorder_create(&b->rec, b->dev, &err), &err);
    b->ops->limits(b->dev, &l);
    b->n_cores = l.n_cores;
    printf("%s, %u multiprocessors, %.1f of %.1f GiB free\n", l.name, l.n_cores,
           (double)l.free_bytes / 0x1p30, (double)l.total_bytes / 0x1p30);
}

static void close_bench(bench *b)
{
    recorder_destroy(b->rec);
    b->ops->destroy(b->dev);
}

/* Median seconds of what the recorder holds; how: 0 launches, 1 a graph, 2 with early starts. */
static double measure(bench *b, uint32_t how, uint32_t *mode)
{
    calla_error err;
    gpu_recording r;
    gpu_program *p = NULL;
    double s[REPS];
    must(rec_finish(b->rec, false, &r, &err), &err);
    r.early_start = how == 2;
    must(b->ops->program_create(b->dev, &r, how == 0, &p, &err), &err);
    *mode = cuda_program_mode(p);
    for (uint32_t i = 0; i < REPS + 3; i++) {
        uint64_t t = 0;
        must(b->ops->submit(b->dev, p, &t, &err), &err);
        must(b->ops->wait(b->dev, t, &s[i < 3 ? 0 : i - 3], &err), &err);
    }
    b->ops->program_destroy(b->dev, p);
    return median(s, REPS);
}

/* ---- Memory ---- */

/* Random words: constant data may be faster than real data. */
static void fill_big(bench *b)
{
    const uint64_t part = 64 * MIB;
    calla_error err;
    uint32_t *p = mem_alloc((size_t)part);
    if (p == NULL) die("no memory");
    uint64_t s = 1;
    for (uint64_t i = 0; i < part / 4; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        p[i] = (uint32_t)(s >> 32);
    }
    for (uint64_t at = 0; at < b->big.bytes; at += part)
        must(b->ops->write(b->dev, gpu_sub(b->big, at, part), p, &err), &err);
    mem_free(p);
}

static void record_read(bench *b, uint64_t off, uint32_t n_groups, uint32_t n_rounds)
{
    const util_read_args a = {n_rounds};
    const uint64_t bytes = (uint64_t)ROUND * n_groups * (n_rounds > 0 ? n_rounds : 1);
    rec_dispatch(b->rec, KERNEL_util_read, n_groups, 1);
    rec_read(b->rec, gpu_sub(b->big, off, bytes));
    rec_write(b->rec, gpu_sub(b->out, 0, 4 * (uint64_t)n_groups));
    rec_args(b->rec, &a, sizeof a);
}

static void bench_memory(bench *b)
{
    static const uint32_t per_core[] = {1, 2, 4, 6, 8, 16};
    calla_error err;
    uint32_t mode;
    double s[REPS];
    const uint64_t half = b->big.bytes / 2;
    for (uint32_t i = 0; i < REPS + 3; i++) {
        const double t0 = time_now();
        uint8_t byte[16];
        must(b->ops->copy(b->dev, gpu_sub(b->big, half, half), gpu_sub(b->big, 0, half), &err),
             &err);
        must(b->ops->read(b->dev, byte, gpu_sub(b->big, half, 16), &err), &err);
        s[i < 3 ? 0 : i - 3] = time_now() - t0;
    }
    printf("%-46s %9.0f GB/s (read and written)\n", "copy engine, 1 GiB",
           2 * (double)half / median(s, REPS) * 1e-9);
    const util_copy_args a = {(uint32_t)(half / 4)};
    rec_reset(b->rec);
    rec_dispatch(b->rec, KERNEL_util_copy, (uint32_t)(half / 4096), 1);
    rec_read(b->rec, gpu_sub(b->big, 0, half));
    rec_write(b->rec, gpu_sub(b->big, half, half));
    rec_args(b->rec, &a, sizeof a);
    printf("%-46s %9.0f GB/s (read and written)\n", "copy kernel, 1 GiB",
           2 * (double)half / measure(b, 1, &mode) * 1e-9);
    for (size_t i = 0; i < sizeof per_core / sizeof *per_core; i++) {
        const uint32_t n_groups = b->n_cores * per_core[i];
        const uint32_t n_rounds = (uint32_t)(b->big.bytes / ROUND / n_groups);
        rec_reset(b->rec);
        record_read(b, 0, n_groups, n_rounds);
        char what[64];
        snprintf(what, sizeof what, "read kernel, 2 GiB, %u groups a multiprocessor", per_core[i]);
        printf("%-46s %9.0f GB/s\n", what,
               (double)n_groups * n_rounds * ROUND / measure(b, 1, &mode) * 1e-9);
    }
}

/* ---- Stages ---- */

#define STAGES 96u

static void stage_line(bench *b, const char *what, uint32_t n_groups, uint32_t n_rounds)
{
    const uint64_t bytes = (uint64_t)ROUND * n_groups * n_rounds;
    double us[3];
    uint32_t mode[3];
    for (uint32_t how = 0; how < 3; how++) {
        uint64_t at = 0;
        rec_reset(b->rec);
        for (uint32_t i = 0; i < STAGES; i++) {
            if (at + bytes > b->big.bytes) at = 0;
            record_read(b, at, n_groups, n_rounds);
            at += bytes;
        }
        us[how] = measure(b, how, &mode[how]) * 1e6 / STAGES;
    }
    printf("%-46s %9.2f %9.2f %9.2f us%s\n", what, us[0], us[1], us[2],
           mode[2] == 2 ? "" : "  (no early starts here)");
}

static void bench_stages(bench *b)
{
    char what[64];
    printf("%-46s %9s %9s %9s\n", "dependent stages", "launches", "graph", "early");
    stage_line(b, "1 empty group", 1, 0);
    stage_line(b, "132 empty groups", 132, 0);
    stage_line(b, "1056 empty groups", 1056, 0);
    static const uint32_t groups[] = {36, 288, 576, 1152};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        snprintf(what, sizeof what, "reading %.1f MB", groups[i] * (double)ROUND * 1e-6);
        stage_line(b, what, groups[i], 1);
    }
    stage_line(b, "reading 18.9 MB, 2 rounds", 576, 2);
    stage_line(b, "reading 37.7 MB, 4 rounds", 576, 4);
}

/* Submission and waiting as seen from here: one at a time, with a small write before each, and many
 * in flight. */
static void bench_submit(bench *b)
{
    calla_error err;
    gpu_recording r;
    gpu_program *p = NULL;
    double s[2][201];
    uint8_t word[256] = {0};
    uint64_t t = 0;
    rec_reset(b->rec);
    record_read(b, 0, 1, 0);
    must(rec_finish(b->rec, false, &r, &err), &err);
    must(b->ops->program_create(b->dev, &r, false, &p, &err), &err);
    for (uint32_t i = 0; i < 402; i++) {
        const double t0 = time_now();
        if (i % 2 != 0)
            must(b->ops->write(b->dev, gpu_sub(b->out, 0, sizeof word), word, &err), &err);
        must(b->ops->submit(b->dev, p, &t, &err), &err);
        must(b->ops->wait(b->dev, t, NULL, &err), &err);
        s[i % 2][i / 2] = time_now() - t0;
    }
    const double t0 = time_now();
    for (uint32_t i = 0; i < 1000; i++)
        must(b->ops->submit(b->dev, p, &t, &err), &err);
    must(b->ops->wait(b->dev, t, NULL, &err), &err);
    const double all = time_now() - t0;
    printf("%-46s %9.2f us\n", "submit and wait, an empty graph", median(s[0], 201) * 1e6);
    printf("%-46s %9.2f us\n", "256 bytes written before it", median(s[1], 201) * 1e6);
    printf("%-46s %9.2f us\n", "empty graphs in flight, each", all * 1e3);
    b->ops->program_destroy(b->dev, p);
}

/* ---- Matrix products ---- */

static void peak_line(bench *b, cu_module m, const char *name, const char *what, uint32_t n_groups,
                      double flops_round)
{
    cuda_device *d = (cuda_device *)b->dev;
    const cuda_api *a = &d->api;
    cu_function f = NULL;
    cu_event e[2] = {NULL, NULL};
    cu_ptr out = b->out.buf->ptr;
    uint32_t n_rounds = 20000;
    void *params[] = {&out, &n_rounds};
    double s[REPS];
    bool ok = a->module_function(&f, m, name) == 0 && a->event_create(&e[0], 0) == 0 &&
              a->event_create(&e[1], 0) == 0;
    n_rounds = 2097152.0 < flops_round ? 4000 : 20000;
    for (uint32_t i = 0; ok && i < REPS + 1; i++) {
        float ms = 0;
        ok = a->event_record(e[0], d->stream) == 0 &&
             a->launch(f, n_groups, 1, 1, 256, 1, 1, 0, d->stream, params, NULL) == 0 &&
             a->event_record(e[1], d->stream) == 0 && a->event_sync(e[1]) == 0 &&
             a->event_elapsed(&ms, e[0], e[1]) == 0;
        s[i == 0 ? 0 : i - 1] = (double)ms * 1e-3;
    }
    if (!ok) die(what);
    const double sec = median(s, REPS);
    printf("%-46s %9.0f TFLOP/s (%.1f ms)\n", what, flops_round * n_rounds * n_groups / sec * 1e-12,
           sec * 1e3);
    a->event_destroy(e[0]);
    a->event_destroy(e[1]);
}

static void bench_matrix(bench *b)
{
    cuda_device *d = (cuda_device *)b->dev;
    calla_error err;
    cu_module m = NULL;
    if (bench_peaks_bytes == 0) return;
    must(cuda_enter(d, &err), &err);
    if (d->api.module_load(&m, bench_peaks) != 0) die("the peak kernels do not load");
    peak_line(b, m, "peak_mma_sync", "bf16 products, mma.sync", b->n_cores, 8 * 32 * 4096.0);
    if (d->native_mm)
        peak_line(b, m, "peak_wgmma", "bf16 products, wgmma", b->n_cores, 2 * 16 * 524288.0);
    d->api.module_unload(m);
    cuda_leave(d);
}

/* ---- Host ---- */

static void bench_upload(bench *b)
{
    const uint64_t n = 1024 * MIB;
    calla_error err;
    uint8_t byte[16];
    double s[3], r[3];
    uint8_t *p = mem_alloc((size_t)n);
    if (p == NULL) die("no memory");
    memset(p, 0x5a, (size_t)n);
    for (uint32_t i = 0; i < 3; i++) {
        double t0 = time_now();
        must(b->ops->write(b->dev, gpu_sub(b->big, 0, n), p, &err), &err);
        must(b->ops->read(b->dev, byte, gpu_sub(b->big, 0, 16), &err), &err);
        s[i] = time_now() - t0;
        t0 = time_now();
        must(b->ops->read(b->dev, p, gpu_sub(b->big, 0, n), &err), &err);
        r[i] = time_now() - t0;
    }
    printf("%-46s %9.1f GB/s\n", "write from memory, 1 GiB", (double)n / median(s, 3) * 1e-9);
    printf("%-46s %9.1f GB/s\n", "read to memory, 1 GiB", (double)n / median(r, 3) * 1e-9);
    mem_free(p);
}

/* ---- Failure ---- */

static bool sums_are_right(bench *b)
{
    calla_error err;
    gpu_recording r;
    gpu_program *p = NULL;
    uint32_t w[4096], got[4], want = 0;
    uint64_t t = 0;
    b->big = buffer(b, GPU_MEM_DEVICE, sizeof w, "words");
    b->out = buffer(b, GPU_MEM_DEVICE, 64, "sum");
    for (uint32_t i = 0; i < 4096; i++)
        want += w[i] = i * 2654435761u;
    must(b->ops->write(b->dev, b->big, w, &err), &err);
    rec_reset(b->rec);
    record_read(b, 0, 1, 1);
    must(rec_finish(b->rec, false, &r, &err), &err);
    must(b->ops->program_create(b->dev, &r, false, &p, &err), &err);
    must(b->ops->submit(b->dev, p, &t, &err), &err);
    must(b->ops->wait(b->dev, t, NULL, &err), &err);
    must(b->ops->read(b->dev, got, gpu_sub(b->out, 0, 16), &err), &err);
    b->ops->program_destroy(b->dev, p);
    return got[0] == want;
}

static void release(bench *b)
{
    b->ops->buffer_destroy(b->dev, b->big.buf);
    b->ops->buffer_destroy(b->dev, b->out.buf);
    close_bench(b);
}

static int run_break(void)
{
    bench b;
    calla_error err;
    uint64_t t = 0;
    open_bench(&b);
    if (!sums_are_right(&b)) die("a wrong sum before the failure");
    must(cuda_break(b.dev, &t, &err), &err);
    if (b.ops->wait(b.dev, t, NULL, &err) != CALLA_ERR_DEVICE) die("the failure was not reported");
    printf("reported: %s\n", err.message);
    if (!b.ops->lost(b.dev)) die("the device is not lost");
    if (b.ops->zero(b.dev, b.big, &err) != CALLA_ERR_DEVICE) die("a lost device works");
    release(&b);
    open_bench(&b);
    if (!sums_are_right(&b)) die("a wrong sum after the failure");
    release(&b);
    printf("a device opened after the failure is right\n");
    return 0;
}

int main(int argc, char **argv)
{
    bench b;
    if (argc == 2 && strcmp(argv[1], "--break") == 0) return run_break();
    if (argc > 1) die("usage: bench-gpu [--break]");
    open_bench(&b);
    b.big = buffer(&b, GPU_MEM_DEVICE, L2_X, "the benchmark");
    b.out = buffer(&b, GPU_MEM_DEVICE, MIB, "results");
    fill_big(&b);
    bench_upload(&b);
    fill_big(&b);
    bench_memory(&b);
    bench_matrix(&b);
    bench_submit(&b);
    bench_stages(&b);
    release(&b);
    return 0;
}
