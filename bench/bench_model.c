/* bench_model - prefill and decode of a checkpoint on the CPU beside this machine's own limits.
 *
 *   bench_model [-m DIR] [--threads N] [--kv bf16|f32] [--variant V] [--ctx N,N,...] [--steps N]
 *               [--prefill N,N,...] [--precision exact|int16|int8]
 *
 * Prints, measured in the same run: read bandwidth of all threads (anonymous memory, and the mapped
 * weights), f32 FMA peak; then for each context length decode tokens/s, bytes per token by the cost
 * model (weights + state + KV), GB/s and its share of the read bandwidth; for each prompt length
 * prefill tokens/s, GFLOP/s and its share of the FMA peak; and the resident memory that is not the
 * mapped file. Tokens are pseudo-random ids: with
 * random routing, as for real text, every token reads other experts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exec/executor.h"
#include "peak.h"

#define LENGTHS_MAX 16
#define READ_BYTES  (1ull << 30)

typedef struct bench {
    const char *dir, *variant;
    calla_kv_type kv;
    calla_precision precision;
    uint32_t n_threads, steps;
    uint32_t ctx[LENGTHS_MAX], prefill[LENGTHS_MAX];
    int n_ctx, n_prefill;
    checkpoint *ck;
    model_shape shape;
    model_weights weights;
    executor *ex;
    float *logits;
    uint64_t rng;
    double read_bw, flops, int8;
} bench;

static int32_t next_token(bench *b)
{
    b->rng = b->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (int32_t)((b->rng >> 33) % b->shape.n_vocab);
}

static int parse_lengths(const char *s, uint32_t out[LENGTHS_MAX])
{
    int n = 0;
    while (*s != '\0' && n < LENGTHS_MAX) {
        char *end;
        out[n++] = (uint32_t)strtoul(s, &end, 10);
        s = *end == ',' ? end + 1 : end;
        if (end == s) break;
    }
    return n;
}

static void parse_args(bench *b, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];
        if (strcmp(k, "-m") == 0) b->dir = v;
        if (strcmp(k, "--threads") == 0) b->n_threads = (uint32_t)strtoul(v, NULL, 10);
        if (strcmp(k, "--steps") == 0) b->steps = (uint32_t)strtoul(v, NULL, 10);
        if (strcmp(k, "--variant") == 0) b->variant = v;
        if (strcmp(k, "--kv") == 0) b->kv = strcmp(v, "f32") == 0 ? CALLA_KV_F32 : CALLA_KV_BF16;
        if (strcmp(k, "--precision") == 0)
            b->precision = strcmp(v, "exact") == 0  ? CALLA_PRECISION_EXACT
                           : strcmp(v, "int8") == 0 ? CALLA_PRECISION_INT8
                                                    : CALLA_PRECISION_INT16;
        if (strcmp(k, "--ctx") == 0) b->n_ctx = parse_lengths(v, b->ctx);
        if (strcmp(k, "--prefill") == 0) b->n_prefill = parse_lengths(v, b->prefill);
    }
}

static calla_status open_model(bench *b, calla_error *err)
{
    calla_status st;
    const exec_options o = {.n_threads = b->n_threads,
                            .kv_type = b->kv,
                            .variant = b->variant,
                            .precision = b->precision};
    TRY(checkpoint_open(&b->ck, b->dir, err));
    TRY(shape_read(&b->shape, checkpoint_config(b->ck), checkpoint_generation_config(b->ck), err));
    TRY(weights_bind(&b->weights, b->ck, &b->shape, err));
    TRY(exec_cpu_create(&b->ex, &b->shape, &b->weights, &o, err));
    b->logits = mem_array(b->shape.n_vocab, sizeof *b->logits);
    return CALLA_OK;
fail:
    return st;
}

static void measure_machine(bench *b)
{
    pool *p = NULL;
    if (pool_create(&p, b->n_threads, NULL) != CALLA_OK) return;
    const char *v = b->ex->ops->variant(b->ex);
    uint8_t *mem = mem_alloc_pages(READ_BYTES);
    if (mem != NULL) {
        memset(mem, 1, READ_BYTES);
        b->read_bw = peak_read_bandwidth(p, mem, READ_BYTES, 12, v);
        mem_free_pages(mem, READ_BYTES);
    }
    const matrix *w = &b->weights.lm_head;
    const double map_bw = peak_read_bandwidth(p, w->data, w->rows * w->row_bytes, 12, v);
    b->flops = peak_fma(p, v);
    b->int8 = peak_int8(p);
    printf("machine: %u threads, read %.2f GB/s (mapped lm_head %.2f GB/s), f32 FMA %.1f GFLOP/s "
           "(%s), int8 %.1f GOP/s\n",
           pool_n_threads(p), b->read_bw / 1e9, map_bw / 1e9, b->flops / 1e9,
           b->ex->ops->variant(b->ex), b->int8 / 1e9);
    pool_destroy(p);
}

/* Feeds n tokens in chunks; seconds, or a negative number on failure. */
static double feed(bench *b, exec_seq *seq, uint32_t n)
{
    int32_t ids[512];
    const double t0 = time_now();
    for (uint32_t done = 0; done < n;) {
        const uint32_t m = n - done < 512 ? n - done : 512;
        for (uint32_t i = 0; i < m; i++)
            ids[i] = next_token(b);
        const exec_segment seg = {seq, ids, m, EXEC_LOGITS_LAST, b->logits};
        calla_error err;
        if (b->ex->ops->run(b->ex, &seg, 1, &err) != CALLA_OK) {
            fprintf(stderr, "bench_model: %s\n", err.message);
            return -1.0;
        }
        done += m;
    }
    return time_now() - t0;
}

/* Resident memory that is not a mapping of a file, in bytes; 0 where the system does not tell. */
static double resident_anonymous(void)
{
    char line[256];
    double kb = 0.0;
    FILE *f = fopen("/proc/self/status", "r");
    if (f == NULL) return 0.0;
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "RssAnon:", 8) == 0) kb = strtod(line + 8, NULL);
    (void)fclose(f);
    return kb * 1024.0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench_decode(bench *b, uint32_t ctx)
{
    exec_seq *seq = NULL;
    exec_plan plan;
    calla_error err;
    if (b->ex->ops->seq_create(b->ex, ctx + b->steps, &seq, &err) != CALLA_OK) {
        fprintf(stderr, "bench_model: %s\n", err.message);
        return;
    }
    double *dt = mem_array(b->steps, sizeof *dt);
    if (dt == NULL || feed(b, seq, ctx) < 0) return;
    b->ex->ops->plan(b->ex, ctx, &plan);
    for (uint32_t i = 0; i < b->steps; i++)
        dt[i] = feed(b, seq, 1);
    qsort(dt, b->steps, sizeof *dt, by_value);
    const double med = dt[b->steps / 2];
    const double bytes =
        (double)b->weights.active_bytes + (double)plan.kv_bytes + 2.0 * (double)plan.state_bytes;
    printf("decode  ctx %6u: %7.2f tokens/s (median of %u; %.2f .. %.2f ms), %.3f GB/token, "
           "%.2f GB/s = %.1f %% of read\n",
           ctx, 1.0 / med, b->steps, dt[0] * 1e3, dt[b->steps - 1] * 1e3, bytes / 1e9,
           bytes / med / 1e9, 100.0 * bytes / med / b->read_bw);
    fflush(stdout);
    printf("                     %.3f GiB resident beyond the mapping\n",
           resident_anonymous() / (1u << 30));
    mem_free(dt);
    b->ex->ops->seq_destroy(b->ex, seq);
}

static void bench_prefill(bench *b, uint32_t n)
{
    exec_seq *seq = NULL;
    calla_error err;
    if (b->ex->ops->seq_create(b->ex, n, &seq, &err) != CALLA_OK) {
        fprintf(stderr, "bench_model: %s\n", err.message);
        return;
    }
    const double dt = feed(b, seq, n);
    const double full = b->shape.n_layers / b->shape.full_interval;
    const double attn = 4.0 * shape_q_width(&b->shape) * full * (n / 2.0);
    const double ops = n * (2.0 * shape_macs(&b->shape) + attn);
    if (dt > 0)
        printf("prefill     %6u: %7.2f tokens/s (%.2f s), %.1f GFLOP/s = %.1f %% of the FMA peak, "
               "%.1f %% of the int8 peak\n",
               n, n / dt, dt, ops / dt / 1e9, 100.0 * ops / dt / b->flops,
               b->int8 > 0 ? 100.0 * ops / dt / b->int8 : 0.0);
    fflush(stdout);
    b->ex->ops->seq_destroy(b->ex, seq);
}

int main(int argc, char **argv)
{
    static bench b = {.dir = "models/nano",
                      .steps = 32,
                      .n_ctx = 1,
                      .ctx = {256},
                      .n_prefill = 1,
                      .prefill = {512},
                      .rng = 1};
    calla_error err;
    parse_args(&b, argc, argv);
    const double t0 = time_now();
    if (open_model(&b, &err) != CALLA_OK) {
        fprintf(stderr, "bench_model: %s\n", err.message);
        return 1;
    }
    printf("model:   %s, opened in %.3f s, %.3f GB mapped, %.3f GB active per token\n", b.dir,
           time_now() - t0, (double)b.weights.mapped_bytes / 1e9,
           (double)b.weights.active_bytes / 1e9);
    measure_machine(&b);
    for (int i = 0; i < b.n_prefill; i++)
        bench_prefill(&b, b.prefill[i]);
    for (int i = 0; i < b.n_ctx; i++)
        bench_decode(&b, b.ctx[i]);
    b.ex->ops->destroy(b.ex);
    weights_unbind(&b.weights);
    checkpoint_close(b.ck);
    mem_free(b.logits);
    return 0;
}
