/* cmd_bench.c - calla bench: prefill and decode of a checkpoint, on any backend. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/bench_compare.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "engine/engine.h"

#define LENGTHS_MAX 32
#define RESULTS_MAX 256
#define STEPS_MAX   1024

typedef struct bench_options {
    cli_common common;
    const char *prefill, *decode, *only, *json, *csv;
    uint64_t reps, steps;
    int ablate, profile, compare;
} bench_options;

static const cli_option options[] = {
    CLI_OPT_TEXT(0, "prefill", bench_options, prefill, "N,N,...",
                 "prompt lengths; default 512,2048, \"\" for none"),
    CLI_OPT_TEXT(0, "decode", bench_options, decode, "N,N,...",
                 "context lengths; default 256,4096, \"\" for none"),
    CLI_OPT_UINT(0, "reps", bench_options, reps, 1, 100, "N",
                 "repetitions, of which the median counts; default 5"),
    CLI_OPT_UINT(0, "steps", bench_options, steps, 1, STEPS_MAX, "N",
                 "tokens of a decode measurement; default 32"),
    CLI_OPT_FLAG(0, "ablate", bench_options, ablate, 1,
                 "the gain of each mechanism: with it and without it, alternating"),
    CLI_OPT_TEXT(0, "only", bench_options, only, "A,B,...", "these mechanisms of --ablate"),
    CLI_OPT_FLAG(0, "profile", bench_options, profile, 1,
                 "the time of each kernel, timed alone; on a CPU of each step, as it runs"),
    CLI_OPT_FLAG(
        0, "compare", bench_options, compare, 1,
        "measure nothing: compare the results A with B, files of --json or lists \"A1,A2\""),
    CLI_OPT_TEXT(0, "json", bench_options, json, "FILE", "results as JSON"),
    CLI_OPT_TEXT(0, "csv", bench_options, csv, "FILE", "results as CSV"),
    CLI_ROW_MODEL(bench_options, common),
    CLI_ROW_BACKEND(bench_options, common),
    CLI_ROW_THREADS(bench_options, common),
    CLI_ROW_PRECISION(bench_options, common),
    CLI_ROW_PACK_DIR(bench_options, common),
    CLI_ROW_LOG_LEVEL(bench_options, common),
    CLI_OPT_END,
};

static int cmd_bench(int argc, char **argv);

const cli_command cli_bench = {
    .name = "bench",
    .summary = "tokens per second of prefill and decode",
    .args = "[A B]",
    .about = "Measures prefill and decode at several lengths with pseudo-random tokens, and says\n"
             "what share of the memory's bandwidth decode uses. On a GPU, --ablate measures what\n"
             "each mechanism is worth, beside the figures of the article that this engine\n"
             "follows. --profile divides the time. --compare A B says for each\n"
             "measurement whether B's speed differs from A's, with a 95 % interval for the whole\n"
             "table; three pairs of alternating runs or more show what differs between runs. It\n"
             "exits with 1 when something is slower.\n",
    .options = options,
    .n_args_max = 2,
    .main = cmd_bench,
};

typedef struct result {
    const char *kind, *without; /* "prefill", "decode"; mechanism turned off or NULL */
    uint32_t n;
    double rate, low, high; /* tokens/s: median, slowest, fastest */
    double bytes, flops;    /* of a token */
    const char *published;
    double *seconds; /* [n_seconds] of each prefill or step, ascending; mem_free */
    uint32_t n_seconds;
} result;

typedef struct bench {
    const bench_options *o;
    cli_logger logger;
    calla_engine *e;
    executor *ex;
    uint64_t rng;
    int32_t *ids;
    float *logits;
    double copy; /* bytes/s, 0: unknown */
    result results[RESULTS_MAX];
    uint32_t n_results;
} bench;

/* ---- measuring ---- */

static int32_t next_token(bench *b)
{
    b->rng = b->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (int32_t)((b->rng >> 33) % b->e->shape.n_vocab);
}

/* Appends n tokens in chunks; *seconds of it all. */
static calla_status feed(bench *b, exec_seq *seq, uint32_t n, double *seconds, calla_error *err)
{
    calla_status st = CALLA_OK;
    const double t0 = time_now();
    while (n != 0 && st == CALLA_OK) {
        const uint32_t m = n < b->e->chunk_tokens ? n : b->e->chunk_tokens;
        for (uint32_t i = 0; i < m; i++)
            b->ids[i] = next_token(b);
        const exec_segment seg = {seq, b->ids, m, m == n ? EXEC_LOGITS_LAST : EXEC_LOGITS_NONE,
                                  m == n ? b->logits : NULL};
        st = b->ex->ops->run(b->ex, &seg, 1, err);
        n -= m;
    }
    *seconds = time_now() - t0;
    return st;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void keep(bench *b, result r, double *seconds, uint32_t n, double tokens)
{
    qsort(seconds, n, sizeof *seconds, by_value);
    r.rate = tokens / seconds[n / 2];
    r.low = tokens / seconds[n - 1];
    r.high = tokens / seconds[0];
    if (b->n_results == RESULTS_MAX) return;
    r.seconds = (double *)(void *)mem_memdup(seconds, n * sizeof *seconds); /* may fail: no list */
    r.n_seconds = r.seconds != NULL ? n : 0;
    b->results[b->n_results++] = r;
}

static double prefill_flops(const model_shape *s, uint32_t n)
{
    const uint32_t n_full = s->n_layers / s->full_interval;
    return 2.0 * shape_macs(s) + 4.0 * shape_q_width(s) * n_full * (n / 2.0);
}

static double decode_bytes(const bench *b, uint32_t ctx)
{
    exec_plan plan;
    b->ex->ops->plan(b->ex, ctx, &plan);
    return (double)b->e->weights.active_bytes + (double)plan.kv_bytes +
           2.0 * (double)plan.state_bytes;
}

static calla_status prefill_once(bench *b, uint32_t n, double *seconds, calla_error *err)
{
    exec_seq *seq = NULL;
    calla_status st = b->ex->ops->seq_create(b->ex, n, &seq, err);
    if (st == CALLA_OK) st = feed(b, seq, n, seconds, err);
    b->ex->ops->seq_destroy(b->ex, seq);
    return st;
}

static calla_status bench_prefill(bench *b, uint32_t n, calla_error *err)
{
    double t[100], warm = 0.0;
    calla_status st = prefill_once(b, n, &warm, err);
    const uint32_t reps = warm > 20.0 ? 1 : (uint32_t)b->o->reps;
    t[0] = warm;
    for (uint32_t i = 0; i < reps && st == CALLA_OK && (reps > 1 || i > 0); i++)
        st = prefill_once(b, n, &t[i], err);
    if (st == CALLA_OK)
        keep(b, (result){.kind = "prefill", .n = n, .flops = prefill_flops(&b->e->shape, n)}, t,
             reps, n);
    return st;
}

/* Steps drawn by the device, greedily; the first few do not count. */
static calla_status stream_at(bench *b, exec_seq *seq, double *t, calla_error *err)
{
    const exec_ops *ops = b->ex->ops;
    const exec_stream item = {.seq = seq,
                              .token = next_token(b),
                              .sampling = {.top_k = 1, .greedy = 1, .by = 1, .repetition = 1}};
    const uint32_t n = (uint32_t)b->o->steps + 3;
    int32_t id;
    calla_status st = ops->stream_begin(b->ex, &item, 1, b->e->banned_bits, n, err);
    if (st != CALLA_OK) return st;
    for (uint32_t i = 0; i < n && st == CALLA_OK; i++) {
        const double t0 = time_now();
        st = ops->stream_next(b->ex, &id, err);
        if (i >= 3) t[i - 3] = time_now() - t0;
    }
    float *const logits[] = {NULL};
    return st == CALLA_OK ? ops->stream_end(b->ex, logits, NULL, err) : st;
}

/* Steps of one sequence at position n; the first few do not count. */
static calla_status decode_at(bench *b, exec_seq *seq, double *t, calla_error *err)
{
    calla_status st = CALLA_OK;
    double warm;
    if (b->ex->ops->stream_begin != NULL) {
        st = stream_at(b, seq, t, err);
        if (st != CALLA_ERR_FULL) return st; /* the device may not draw (gpu_argmax) */
        st = CALLA_OK;
    }
    for (uint32_t i = 0; i < 3 && st == CALLA_OK; i++)
        st = feed(b, seq, 1, &warm, err);
    for (uint32_t i = 0; i < b->o->steps && st == CALLA_OK; i++)
        st = feed(b, seq, 1, &t[i], err);
    return st;
}

static calla_status bench_decode(bench *b, uint32_t n, calla_error *err)
{
    double t[STEPS_MAX], unused;
    exec_seq *seq = NULL;
    calla_status st = b->ex->ops->seq_create(b->ex, n + 4 + (uint32_t)b->o->steps, &seq, err);
    if (st == CALLA_OK) st = feed(b, seq, n, &unused, err);
    if (st == CALLA_OK) st = decode_at(b, seq, t, err);
    if (st == CALLA_OK)
        keep(b, (result){.kind = "decode", .n = n, .bytes = decode_bytes(b, n)}, t,
             (uint32_t)b->o->steps, 1.0);
    b->ex->ops->seq_destroy(b->ex, seq);
    return st;
}

/* ---- ablation ---- */

/* What each mechanism is measured on, and what the article reports for it (docs/SPEED.md). */
static const struct {
    const char *name, *kind;
    uint32_t n;
    const char *published;
} mechanisms[] = {
    {"inline_dequant", "prefill", 512, "+77.4 %"},
    {"gpu_routing", "prefill", 512, "+89 %"},
    {"tile32", "prefill", 2048, "+13.2 %"},
    {"gdn_regs", "prefill", 2048, "+5.6 %"},
    {"gdn_staged", "prefill", 2048, NULL},
    {"gdn_one_reduction", "prefill", 2048, NULL},
    {"tensor_main", "prefill", 2048, NULL},
    {"concurrent", "decode", 256, NULL},
    {"gemv_rows", "decode", 256, NULL},
    {"fuse_gateup", "decode", 256, NULL},
    {"fuse_down", "decode", 256, NULL},
    {"fuse_qkprep", "decode", 256, NULL},
    {"fuse_gdnnorm", "decode", 256, NULL},
    {"router_tail", "decode", 256, NULL},
    {"norm_fold", "decode", 256, NULL},
    {"pdl", "decode", 256, NULL},
    {"token_slots", "decode", 256, NULL},
    {"gpu_argmax", "decode", 256, NULL},
    {"kv_coalesce", "decode", 3840, "+2.1 %"},
    {"gqa_pack", "decode", 32768, "+23.8 %"},
    {"attn_blocks", "decode", 32768, "+7.7 %"},
    {"attn_mm", "decode", 32768, NULL},
};
#define N_MECHANISMS (sizeof mechanisms / sizeof *mechanisms)

static bool selected(const char *list, const char *name)
{
    const size_t n = strlen(name);
    if (list == NULL) return true;
    for (const char *p = list; *p != '\0'; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && strncmp(p, name, n) == 0) return true;
    return false;
}

/* The first name of the list that is no mechanism, NULL when all are; *n its length. */
static const char *unknown_mechanism(const char *list, size_t *n)
{
    for (const char *p = list; *p != '\0'; p += *n, p += *p == ',') {
        size_t i = 0;
        *n = strcspn(p, ",");
        while (i < N_MECHANISMS &&
               (strlen(mechanisms[i].name) != *n || strncmp(p, mechanisms[i].name, *n) != 0))
            i++;
        if (i == N_MECHANISMS) return p;
    }
    return NULL;
}

/* One prefill of n tokens, or the steps at n, into t[0 .. *n_t). */
static calla_status measure_once(bench *b, const char *kind, exec_seq *seq, uint32_t n, double *t,
                                 uint32_t *n_t, calla_error *err)
{
    if (strcmp(kind, "prefill") == 0) {
        *n_t = 1;
        return prefill_once(b, n, t, err);
    }
    *n_t = (uint32_t)b->o->steps;
    return decode_at(b, seq, t, err);
}

static calla_status ablate_one(bench *b, size_t i, calla_error *err)
{
    const char *kind = mechanisms[i].kind;
    const bool prefill = strcmp(kind, "prefill") == 0;
    const uint32_t n = mechanisms[i].n, reps = (uint32_t)b->o->reps;
    const uint32_t room = n + 2 * (reps + 1) * (3 + (uint32_t)b->o->steps) + 1;
    static double t[2][100 * STEPS_MAX];
    uint32_t n_t[2] = {0, 0}, got = 0;
    double unused;
    exec_seq *seq = NULL;
    calla_status st = CALLA_OK;
    if (!prefill) {
        st = b->ex->ops->seq_create(b->ex, room, &seq, err);
        if (st == CALLA_OK) st = feed(b, seq, n, &unused, err);
    }
    for (uint32_t r = 0; r <= reps && st == CALLA_OK; r++)
        for (int off = 0; off < 2 && st == CALLA_OK; off++) {
            st = b->ex->ops->ablate(b->ex, off != 0 ? mechanisms[i].name : NULL, err);
            if (st == CALLA_OK) st = measure_once(b, kind, seq, n, t[off] + n_t[off], &got, err);
            if (r > 0) n_t[off] += got; /* the first round warms up */
        }
    for (int off = 0; off < 2 && st == CALLA_OK; off++)
        keep(b,
             (result){.kind = kind,
                      .n = n,
                      .without = off != 0 ? mechanisms[i].name : "",
                      .published = mechanisms[i].published},
             t[off], n_t[off], prefill ? n : 1.0);
    b->ex->ops->seq_destroy(b->ex, seq);
    calla_error ignored;
    (void)b->ex->ops->ablate(b->ex, NULL, &ignored);
    return st;
}

static calla_status ablate_all(bench *b, calla_error *err)
{
    calla_status st = CALLA_OK;
    if (b->ex->ops->ablate == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "--ablate needs a GPU backend, found %s",
                       b->ex->ops->name);
    printf("%-18s %-8s %7s %12s %12s %9s %10s\n", "mechanism", "measured", "at", "with", "without",
           "gain", "article");
    for (size_t i = 0; i < N_MECHANISMS && st == CALLA_OK; i++) {
        if (!selected(b->o->only, mechanisms[i].name)) continue;
        st = ablate_one(b, i, err);
        if (st != CALLA_OK) break;
        const result *with = &b->results[b->n_results - 2], *without = with + 1;
        printf("%-18s %-8s %7u %12.1f %12.1f %+8.1f%% %10s\n", mechanisms[i].name,
               mechanisms[i].kind, mechanisms[i].n, with->rate, without->rate,
               100.0 * (with->rate / without->rate - 1.0),
               mechanisms[i].published != NULL ? mechanisms[i].published : "-");
        (void)fflush(stdout);
    }
    return st;
}

/* ---- profile ---- */

typedef struct profile_row {
    const char *label, *kernel;
    uint32_t n;
    double bytes, flops, seconds;
} profile_row;

typedef struct profile {
    profile_row rows[128];
    uint32_t n_rows, n_kernels, n_stages;
    double seconds;
} profile;

static void add_stage(void *user, const exec_stage *s)
{
    profile *p = user;
    uint32_t i = 0;
    while (i < p->n_rows &&
           (strcmp(p->rows[i].label, s->label) != 0 || strcmp(p->rows[i].kernel, s->kernel) != 0))
        i++;
    if (i == 128) i--;
    profile_row *r = &p->rows[i];
    if (i == p->n_rows) {
        *r = (profile_row){.label = s->label, .kernel = s->kernel};
        p->n_rows++;
    }
    r->n++;
    r->bytes += s->bytes;
    r->flops += s->flops;
    r->seconds += s->seconds;
    p->seconds += s->seconds;
    p->n_kernels++;
    if (s->level + 1 > p->n_stages) p->n_stages = s->level + 1;
}

static calla_status profile_step(bench *b, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                                 calla_error *err)
{
    static profile p;
    p = (profile){.n_rows = 0};
    if (b->ex->ops->profile == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "%s cannot be profiled", b->ex->ops->name);
    const calla_status st =
        b->ex->ops->profile(b->ex, prefill, n_tokens, n_ctx, add_stage, &p, err);
    if (st != CALLA_OK) return st;
    printf("%s of %u tokens at %u: %u kernels, %u stages, %.1f us together\n",
           prefill ? "prefill" : "decode", n_tokens, n_ctx, p.n_kernels, p.n_stages,
           p.seconds * 1e6);
    printf("  %-16s %-26s %6s %10s %7s %9s %9s\n", "step", "kernel", "times", "us each", "share",
           "GB/s", "TFLOP/s");
    for (uint32_t i = 0; i < p.n_rows; i++) {
        const profile_row *r = &p.rows[i];
        printf("  %-16s %-26s %6u %10.2f %6.1f%% %9.1f %9.2f\n", r->label, r->kernel, r->n,
               r->seconds * 1e6 / r->n, 100.0 * r->seconds / p.seconds, r->bytes / r->seconds / 1e9,
               r->flops / r->seconds / 1e12);
    }
    (void)fflush(stdout);
    return CALLA_OK;
}

/* ---- output ---- */

static void print_result(const bench *b, const result *r)
{
    printf("%-8s %7u  %10.2f tokens/s  (%.2f .. %.2f)", r->kind, r->n, r->rate, r->low, r->high);
    if (r->bytes > 0.0)
        printf("  %7.3f GB/token  %8.1f GB/s", r->bytes / 1e9, r->bytes * r->rate / 1e9);
    if (r->bytes > 0.0 && b->copy > 0.0)
        printf(" = %.1f %% of copy", 100.0 * r->bytes * r->rate / b->copy);
    if (r->flops > 0.0) printf("  %8.2f TFLOP/s", r->flops * r->rate / 1e12);
    printf("\n");
    (void)fflush(stdout);
}

static calla_status write_file(const char *path, const strbuf *s, calla_error *err)
{
    FILE *f = fopen(path, "w");
    const bool ok = f != NULL && !s->failed && fwrite(s->data, 1, s->len, f) == s->len;
    const bool closed = f != NULL && fclose(f) == 0;
    if (ok && closed) return CALLA_OK;
    return err_set(err, CALLA_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* What was measured and where; no paths. */
static void put_head(const bench *b, strbuf *s)
{
    struct utsname u;
    calla_engine_info info;
    calla_engine_get_info(b->e, &info);
    const char *model = base_name(info.model_dir);
    (void)strbuf_printf(s, "{\"format\": 2, \"version\": \"%s\", ", calla_version());
    if (uname(&u) == 0)
        (void)strbuf_printf(s, "\"system\": \"%s %s %s\", ", u.sysname, u.release, u.machine);
    (void)strbuf_puts(s, "\"model\": ");
    (void)json_write_string(s, model, strlen(model));
    (void)strbuf_printf(s,
                        ", \"backend\": \"%s\", \"variant\": \"%s\", \"threads\": %u, "
                        "\"copy_bytes_per_s\": %.4e, \"results\": [",
                        info.backend, info.variant, info.n_threads, b->copy);
}

static void put_result(const result *r, strbuf *s)
{
    (void)strbuf_printf(
        s,
        "\n  {\"kind\": \"%s\", \"tokens\": %u, \"tokens_per_s\": %.3f, \"slowest\": %.3f, "
        "\"fastest\": %.3f, \"bytes_per_token\": %.0f, \"flops_per_token\": %.0f",
        r->kind, r->n, r->rate, r->low, r->high, r->bytes, r->flops);
    if (r->without != NULL && r->without[0] != '\0')
        (void)strbuf_printf(s, ", \"without\": \"%s\"", r->without);
    (void)strbuf_puts(s, ", \"seconds\": [");
    for (uint32_t i = 0; i < r->n_seconds; i++)
        (void)strbuf_printf(s, "%s%.6g", i == 0 ? "" : ", ", r->seconds[i]);
    (void)strbuf_puts(s, "]}");
}

static calla_status write_json(const bench *b, calla_error *err)
{
    strbuf s = {0};
    put_head(b, &s);
    for (uint32_t i = 0; i < b->n_results; i++) {
        if (i != 0) (void)strbuf_putc(&s, ',');
        put_result(&b->results[i], &s);
    }
    (void)strbuf_puts(&s, "\n]}\n");
    const calla_status st = write_file(b->o->json, &s, err);
    strbuf_deinit(&s);
    return st;
}

static calla_status write_csv(const bench *b, calla_error *err)
{
    strbuf s = {0};
    (void)strbuf_puts(
        &s, "kind,tokens,without,tokens_per_s,slowest,fastest,bytes_per_token,flops_per_token\n");
    for (uint32_t i = 0; i < b->n_results; i++) {
        const result *r = &b->results[i];
        (void)strbuf_printf(&s, "%s,%u,%s,%.3f,%.3f,%.3f,%.0f,%.0f\n", r->kind, r->n,
                            r->without != NULL ? r->without : "", r->rate, r->low, r->high,
                            r->bytes, r->flops);
    }
    const calla_status st = write_file(b->o->csv, &s, err);
    strbuf_deinit(&s);
    return st;
}

/* ---- the command ---- */

/* "256,4096" -> lengths; false for anything else. */
static bool parse_lengths(const char *s, uint32_t *out, uint32_t *n)
{
    *n = 0;
    while (*s != '\0') {
        char *end;
        const unsigned long v = strtoul(s, &end, 10);
        if (end == s || v == 0 || v > 1000000 || *n == LENGTHS_MAX) return false;
        out[(*n)++] = (uint32_t)v;
        if (*end != ',' && *end != '\0') return false;
        s = *end == ',' ? end + 1 : end;
    }
    return true;
}

typedef struct lengths {
    uint32_t prefill[LENGTHS_MAX], decode[LENGTHS_MAX], n_prefill, n_decode;
} lengths;

static calla_status run(bench *b, const lengths *l, calla_error *err)
{
    calla_status st = CALLA_OK;
    if (b->o->ablate) return ablate_all(b, err);
    for (uint32_t i = 0; i < l->n_prefill && st == CALLA_OK; i++) {
        const uint32_t n = l->prefill[i];
        const uint32_t chunk = n < b->e->chunk_tokens ? n : b->e->chunk_tokens;
        st = b->o->profile ? profile_step(b, true, chunk, n, err) : bench_prefill(b, n, err);
        if (st == CALLA_OK && !b->o->profile) print_result(b, &b->results[b->n_results - 1]);
    }
    for (uint32_t i = 0; i < l->n_decode && st == CALLA_OK; i++) {
        st = b->o->profile ? profile_step(b, false, 1, l->decode[i], err)
                           : bench_decode(b, l->decode[i], err);
        if (st == CALLA_OK && !b->o->profile) print_result(b, &b->results[b->n_results - 1]);
    }
    return st;
}

static calla_status open_bench(bench *b, calla_error *err)
{
    char *dir, *pack_dir = NULL;
    calla_status st = cli_model_dir(b->o->common.model, &dir, err);
    if (st == CALLA_OK) st = cli_pack_dir(&b->o->common, &pack_dir, err);
    if (st != CALLA_OK) {
        mem_free(dir);
        return st;
    }
    b->logger = cli_logger_make(&cli_bench, &b->o->common);
    term_progress progress;
    term_progress_begin(&progress, "loading weights", "bytes");
    const calla_engine_options eo = {
        .model_dir = dir,
        .backend = b->o->common.backend,
        .n_threads = (unsigned)b->o->common.n_threads,
        .pack_dir = pack_dir,
        .precision = cli_precision(&b->o->common),
        .progress = cli_on_load,
        .progress_user = &progress,
        .log = cli_log,
        .log_user = &b->logger,
    };
    const double t0 = time_now();
    st = calla_engine_create(&b->e, &eo, err);
    term_progress_end(&progress);
    const double seconds = time_now() - t0;
    if (st == CALLA_OK) {
        calla_engine_info i;
        calla_engine_get_info(b->e, &i);
        b->ex = b->e->ex;
        b->ids = mem_array(b->e->chunk_tokens, sizeof *b->ids);
        b->logits = mem_array(b->e->shape.n_vocab, sizeof *b->logits);
        if (b->ex->ops->copy_bandwidth != NULL) b->copy = b->ex->ops->copy_bandwidth(b->ex);
        printf("%s: %s (%s), opened in %.2f s, %.3f GB of weights", i.model_dir, i.backend,
               i.variant, seconds, (double)i.weight_bytes / 1e9);
        if (b->copy > 0.0) printf(", copy %.0f GB/s", b->copy / 1e9);
        printf("\n");
    }
    mem_free(pack_dir);
    mem_free(dir);
    if (st == CALLA_OK && (b->ids == NULL || b->logits == NULL))
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a benchmark");
    return st;
}

static int run_compare(char **argv, int n_args)
{
    calla_error err;
    bool slower;
    if (n_args != 2)
        return cli_usage_error(&cli_bench, "--compare takes two files, or two lists of files");
    if (bench_compare(argv[1], argv[2], &slower, &err) != CALLA_OK)
        return cli_fail(&cli_bench, &err);
    return slower ? CLI_FAILED : CLI_OK;
}

static int cmd_bench(int argc, char **argv)
{
    bench_options o = {.common = CLI_COMMON_DEFAULTS,
                       .prefill = "512,2048",
                       .decode = "256,4096",
                       .reps = 5,
                       .steps = 32};
    static bench b;
    lengths l;
    int n_args = 0;
    calla_error err;
    const int rc = cli_parse(&cli_bench, argc, argv, &o, &n_args);
    if (rc >= 0) return rc;
    if (o.compare) return run_compare(argv, n_args);
    if (n_args != 0) return cli_usage_error(&cli_bench, "two files are for --compare");
    if (!parse_lengths(o.prefill, l.prefill, &l.n_prefill) ||
        !parse_lengths(o.decode, l.decode, &l.n_decode))
        return cli_usage_error(&cli_bench,
                               "--prefill and --decode take up to %d lengths as \"256,4096\"",
                               LENGTHS_MAX);
    if (o.only != NULL && !o.ablate)
        return cli_usage_error(&cli_bench, "--only chooses among the mechanisms of --ablate");
    size_t n_bad;
    const char *bad = o.only != NULL ? unknown_mechanism(o.only, &n_bad) : NULL;
    if (bad != NULL)
        return cli_usage_error(&cli_bench, "--only: there is no mechanism '%.*s'", (int)n_bad, bad);
    b = (bench){.o = &o, .rng = 1};
    calla_status st = open_bench(&b, &err);
    if (st == CALLA_OK) st = run(&b, &l, &err);
    if (st == CALLA_OK && o.json != NULL) st = write_json(&b, &err);
    if (st == CALLA_OK && o.csv != NULL) st = write_csv(&b, &err);
    calla_engine_destroy(b.e);
    for (uint32_t i = 0; i < b.n_results; i++)
        mem_free(b.results[i].seconds);
    mem_free(b.ids);
    mem_free(b.logits);
    return st == CALLA_OK ? CLI_OK : cli_fail(&cli_bench, &err);
}
