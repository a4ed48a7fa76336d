/* cmd_verify.c - calla verify: this engine beside a reference file, teacher-forced. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "engine/engine.h"
#include "engine/verify.h"

#define TEXT_MAX  (64u << 20) /* bytes of --text and --ids */
#define ROWS_MAX  256u        /* of logits at a time */
#define ROWS_ROOM (256u << 20)

typedef struct verify_options {
    cli_common common;
    const char *text, *ids, *kv, *variant, *json;
    int write, step, layers;
    uint64_t n_tokens, top, n_traced;
    double min_top1, max_ratio, max_kl, max_dlogit;
} verify_options;

static const cli_option options[] = {
    CLI_OPT_FLAG(0, "step", verify_options, step, 1,
                 "compute token by token, as in generation; default: as a prompt"),
    CLI_OPT_FLAG(0, "layers", verify_options, layers, 1, "show the drift of every layer"),
    CLI_OPT_TEXT(0, "json", verify_options, json, "FILE", "the result as JSON"),
    CLI_OPT_SECTION("Bars"),
    CLI_OPT_REAL(0, "min-top1", verify_options, min_top1, 0, 100, "PERCENT",
                 "positions with the same most likely token, or a tie; default 95"),
    CLI_OPT_REAL(0, "max-ratio", verify_options, max_ratio, 0, 1, "X",
                 "distance of the perplexity ratio from 1; default 0.01"),
    CLI_OPT_REAL(0, "max-kl", verify_options, max_kl, 0, 100, "X",
                 "mean KL(reference || calla) in nats; default 0.01"),
    CLI_OPT_REAL(0, "max-dlogit", verify_options, max_dlogit, 0, 1e6, "X",
                 "largest difference of two logits; default: none"),
    CLI_OPT_SECTION("Writing a reference"),
    CLI_OPT_FLAG(0, "write", verify_options, write, 1, "write REF with this backend's results"),
    CLI_OPT_TEXT(0, "text", verify_options, text, "FILE",
                 "text to compute; default: pseudo-random tokens"),
    CLI_OPT_TEXT(0, "ids", verify_options, ids, "FILE", "token ids, a sequence a line"),
    CLI_OPT_UINT(0, "tokens", verify_options, n_tokens, 2, 1000000, "N",
                 "tokens of a sequence; default 192"),
    CLI_OPT_UINT(0, "top", verify_options, top, 0, REFERENCE_TOP_MAX, "K",
                 "logits kept of a position, 0: all; default 64"),
    CLI_OPT_UINT(0, "trace", verify_options, n_traced, 0, 4096, "N",
                 "tokens whose layers are kept; default 32"),
    CLI_OPT_SECTION("Model"),
    CLI_ROW_MODEL(verify_options, common),
    CLI_ROW_BACKEND(verify_options, common),
    CLI_ROW_THREADS(verify_options, common),
    CLI_ROW_PRECISION(verify_options, common),
    CLI_OPT_CHOICE(0, "kv", verify_options, kv, "bf16|f32", "format of the attention cache"),
    CLI_OPT_CHOICE(0, "variant", verify_options, variant, "ref|avx2|avxvnni|avx512|neon|i8mm",
                   "highest CPU kernel variant to use"),
    CLI_ROW_PACK_DIR(verify_options, common),
    CLI_ROW_LOG_LEVEL(verify_options, common),
    CLI_OPT_END,
};

static int cmd_verify(int argc, char **argv);

const cli_command cli_verify = {
    .name = "verify",
    .summary = "compare with the logits of another engine",
    .args = "REF",
    .about =
        "Computes the token ids of the reference file REF on this backend and compares: ratio of\n"
        "perplexities, agreement of the most likely token, KL divergence, differences of logits.\n"
        "When the file holds the residual stream too, says how far each layer drifts and which\n"
        "is the first that stands out. Exits with 1 when a bar is missed.\n"
        "REF comes from tools/oracle/write_reference_*.py for other engines, or from --write for\n"
        "another backend. With K logits a position, KL is that of those and one rest, which is\n"
        "at most the true one, and differences of logits are over the K and the next token. A\n"
        "tie is another most likely token where the reference's two best are within 0.05.\n",
    .options = options,
    .n_args_min = 1,
    .n_args_max = 1,
    .main = cmd_verify,
};

typedef struct verify {
    const verify_options *o;
    const char *path; /* of the reference */
    cli_logger logger;
    calla_engine *e;
    executor *ex;
    reference ref;
    reference_writer writer;
    verify_stats stats;
    drift drift;
    int32_t *ids, *first; /* of all sequences */
    uint32_t n_ids, n_seqs;
    float *logits, *row; /* [max_rows * n_vocab], [n_vocab] */
    float *trace;        /* [n_points][n_traced][hidden] */
    uint32_t n_points, n_traced, at;
    uint32_t max_rows;
    double seconds;
} verify;

typedef void (*row_fn)(verify *v, uint32_t i, const float *logits);

/* ---- Computing ---- */

static uint32_t seq_tokens(const verify *v, uint32_t i)
{
    return (i + 1 < v->n_seqs ? (uint32_t)v->first[i + 1] : v->n_ids) - (uint32_t)v->first[i];
}

/* Ids [first, first + n), every row to fn. */
static calla_status score(verify *v, uint32_t first, uint32_t n, row_fn fn, term_progress *progress,
                          calla_error *err)
{
    const exec_ops *ops = v->ex->ops;
    const size_t n_vocab = v->e->shape.n_vocab;
    exec_seq *seq = NULL;
    calla_status st = ops->seq_create(v->ex, n, &seq, err);
    for (uint32_t i = 0; i < n && st == CALLA_OK;) {
        const uint32_t m = v->o->step ? 1 : n - i < v->max_rows ? n - i : v->max_rows;
        const exec_segment seg = {seq, v->ids + first + i, m, EXEC_LOGITS_ALL, v->logits};
        st = ops->run(v->ex, &seg, 1, err);
        for (uint32_t r = 0; r < m && st == CALLA_OK; r++)
            fn(v, first + i + r, v->logits + r * n_vocab);
        i += m;
        term_progress_update(progress, first + i, v->n_ids);
    }
    ops->seq_destroy(v->ex, seq);
    return st;
}

static void on_point(void *user, uint32_t i_layer, exec_point point, const float *base,
                     size_t stride, uint32_t n_tokens)
{
    verify *v = user;
    const size_t h = v->e->shape.hidden, p = 2 * i_layer + (uint32_t)point;
    for (uint32_t t = 0; t < n_tokens; t++)
        memcpy(v->trace + (p * v->n_traced + v->at + t) * h, base + t * stride, h * sizeof *base);
}

/* The residual stream of the first tokens. */
static calla_status trace(verify *v, calla_error *err)
{
    const exec_ops *ops = v->ex->ops;
    exec_seq *seq = NULL;
    if (ops->tap == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "the %s backend does not show its layers",
                       ops->name);
    v->trace = mem_array((size_t)v->n_points * v->n_traced, v->e->shape.hidden * sizeof(float));
    if (v->trace == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the layers");
    calla_status st = ops->seq_create(v->ex, v->n_traced, &seq, err);
    ops->tap(v->ex, on_point, v);
    for (v->at = 0; v->at < v->n_traced && st == CALLA_OK;) {
        const uint32_t left = v->n_traced - v->at;
        const uint32_t m = v->o->step ? 1 : left < v->max_rows ? left : v->max_rows;
        const exec_segment seg = {seq, v->ids + v->at, m, EXEC_LOGITS_NONE, NULL};
        st = ops->run(v->ex, &seg, 1, err);
        v->at += m;
    }
    ops->tap(v->ex, NULL, NULL);
    ops->seq_destroy(v->ex, seq);
    return st;
}

static calla_status compute(verify *v, row_fn fn, calla_error *err)
{
    const uint64_t n_vocab = v->e->shape.n_vocab;
    term_progress progress;
    calla_status st = CALLA_OK;
    v->max_rows = v->e->chunk_tokens < ROWS_MAX ? v->e->chunk_tokens : ROWS_MAX;
    if (v->max_rows > ROWS_ROOM / (4 * n_vocab))
        v->max_rows = (uint32_t)(ROWS_ROOM / (4 * n_vocab));
    v->logits = mem_array(v->max_rows, (size_t)n_vocab * sizeof(float));
    v->row = mem_array((size_t)n_vocab, sizeof(float));
    if (v->logits == NULL || v->row == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for %u rows of logits", v->max_rows);
    const double t0 = time_now();
    term_progress_begin(&progress, "computing", "tokens");
    for (uint32_t i = 0; i < v->n_seqs && st == CALLA_OK; i++)
        st = score(v, (uint32_t)v->first[i], seq_tokens(v, i), fn, &progress, err);
    if (st == CALLA_OK && v->n_traced != 0) st = trace(v, err);
    term_progress_end(&progress);
    v->seconds = time_now() - t0;
    return st;
}

/* ---- Comparing ---- */

static void compare_row(verify *v, uint32_t i, const float *logits)
{
    for (uint32_t s = 1; s <= v->n_seqs; s++) /* the last position of a sequence has no next */
        if (i + 1 == (s < v->n_seqs ? (uint32_t)v->first[s] : v->n_ids)) return;
    verify_add(&v->stats, &v->ref, i, logits, v->row);
}

static calla_status take_reference(verify *v, calla_error *err)
{
    const model_shape *s = &v->e->shape;
    const reference *r = &v->ref;
    if (r->n_vocab != s->n_vocab)
        return err_set(err, CALLA_ERR_ARGUMENT, "%s: its vocabulary has %u ids, the model's has %u",
                       v->path, r->n_vocab, s->n_vocab);
    if (r->n_traced != 0 && (r->n_points != 2 * s->n_layers + 1 || r->n_width != s->hidden))
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "%s: its trace is of %u layers of width %u, the model has %u of %u", v->path,
                       r->n_points / 2, r->n_width, s->n_layers, s->hidden);
    v->n_ids = r->n_tokens;
    v->n_seqs = r->n_seqs;
    v->n_traced = r->n_traced;
    v->ids = mem_array(v->n_ids, sizeof *v->ids);
    v->first = mem_array(v->n_seqs, sizeof *v->first);
    if (v->ids == NULL || v->first == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the ids");
    for (uint32_t i = 0; i < v->n_ids; i++)
        v->ids[i] = reference_token(r, i);
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        uint32_t first, n;
        reference_seq(r, i, &first, &n);
        v->first[i] = (int32_t)first;
    }
    return CALLA_OK;
}

typedef struct bar {
    const char *name;
    double value, limit;
    bool at_least, off;
} bar;

#define N_BARS 4

static void bars(const verify *v, bar out[N_BARS])
{
    const verify_options *o = v->o;
    const verify_stats *s = &v->stats;
    const double n = (double)s->n;
    const bar list[N_BARS] = {
        {"top-1 agreement or tie, %", 100.0 * (double)(s->n_same + s->n_tied) / n, o->min_top1,
         true, false},
        {"|perplexity ratio - 1|", fabs(verify_perplexity_ratio(s) - 1.0), o->max_ratio, false,
         false},
        {"mean KL, nats", s->kl_sum / n, o->max_kl, false, false},
        {"max |dlogit|", s->diff_max, o->max_dlogit, false, o->max_dlogit == 0.0},
    };
    memcpy(out, list, sizeof list);
}

static bool holds(const bar *b)
{
    return b->off || (b->at_least ? b->value >= b->limit : b->value <= b->limit);
}

static bool drifts(const verify *v)
{
    return v->drift.fault < v->drift.n_points;
}

static bool passed(const verify *v)
{
    bar b[N_BARS];
    bool ok = !drifts(v);
    bars(v, b);
    for (int i = 0; i < N_BARS; i++)
        ok = ok && holds(&b[i]);
    return ok;
}

static void print_layers(const verify *v)
{
    const drift *d = &v->drift;
    char name[48];
    printf("%-20s %12s %12s %12s\n", "point", "added", "at most", "stream");
    for (uint32_t p = 0; p < d->n_points; p++) {
        drift_name(p, v->e->shape.full_interval, name);
        printf("%-20s %12.6f %12.6f %12.6f%s\n", name, d->points[p].median, d->points[p].max,
               d->points[p].stream, p == d->fault ? "  <- stands out" : "");
    }
}

static void print_drift(const verify *v)
{
    const drift *d = &v->drift;
    char name[48];
    uint32_t largest = 0;
    if (v->n_traced == 0) return;
    if (v->o->layers) print_layers(v);
    for (uint32_t p = 1; p < d->n_points; p++)
        if (!(d->points[p].median <= d->points[largest].median)) largest = p;
    drift_name(drifts(v) ? d->fault : largest, v->e->shape.full_interval, name);
    if (drifts(v))
        printf("drift: %s is the first to stand out: what it adds is off by %.3f (median of %u "
               "tokens, bar %.3f), from token %u on\n",
               name, d->points[d->fault].median, v->n_traced, d->bar, d->points[d->fault].first);
    else
        printf("drift: none of %u points stands out; what a point adds is off by %.5f at most (%s; "
               "median of %u tokens), the final stream by %.5f\n",
               d->n_points, d->points[largest].median, name, v->n_traced,
               d->points[d->n_points - 1].stream);
}

static void print_result(const verify *v)
{
    const verify_stats *s = &v->stats;
    const reference *r = &v->ref;
    const double n = (double)s->n;
    bar b[N_BARS];
    bars(v, b);
    printf("%s: %u positions in %u sequence%s, ", v->path, r->n_tokens, r->n_seqs,
           r->n_seqs == 1 ? "" : "s");
    if (r->k == 0)
        printf("all %u logits", r->n_vocab);
    else
        printf("%u of %u logits", r->k, r->n_vocab);
    printf("; %s %s, %s, %.1f s\n", v->ex->ops->name, v->ex->ops->variant(v->ex),
           v->o->step ? "token by token" : "as a prompt", v->seconds);
    printf("perplexity     %.6f, reference %.6f, ratio %.6f\n", exp(s->nll / n),
           exp(s->nll_ref / n), verify_perplexity_ratio(s));
    printf("top-1          %.2f %% agree, %llu of %llu differ", 100.0 * (double)s->n_same / n,
           (unsigned long long)(s->n - s->n_same), (unsigned long long)s->n);
    if (s->n_same < s->n)
        printf(" (%llu ties; the reference's two best are up to %.4f apart there)",
               (unsigned long long)s->n_tied, s->widest_gap);
    printf("\nKL             mean %.3e, max %.3e at position %u%s\n", b[2].value, s->kl_max,
           s->worst, r->k != 0 ? " (of the kept logits and one rest)" : "");
    printf("|dlogit|       mean %.5f, max %.5f\n", s->diff_sum / (double)s->n_diff, s->diff_max);
    print_drift(v);
    for (int i = 0; i < N_BARS; i++)
        if (!holds(&b[i]))
            printf("FAILED: %s is %.6g, the bar is %.6g\n", b[i].name, b[i].value, b[i].limit);
    if (passed(v))
        printf("passed\n");
    else if (drifts(v))
        printf("FAILED: see the layer above\n");
    else if (v->n_traced != 0)
        printf("FAILED, but no layer stands out: see the final norm and the output matrix, or "
               "tokens beyond %u\n",
               v->n_traced);
}

/* JSON has no infinity: null. */
static void put_number(strbuf *s, const char *key, double x)
{
    if (isfinite(x))
        (void)strbuf_printf(s, ", \"%s\": %.9g", key, x);
    else
        (void)strbuf_printf(s, ", \"%s\": null", key);
}

static void put_drift(const verify *v, strbuf *s)
{
    const drift *d = &v->drift;
    char name[48];
    if (v->n_traced == 0) return;
    (void)strbuf_printf(s, ", \"traced\": %u, \"fault\": ", v->n_traced);
    drift_name(d->fault, v->e->shape.full_interval, name);
    (void)strbuf_printf(s, drifts(v) ? "\"%s\"" : "null", name);
    (void)strbuf_puts(s, ", \"drift\": [");
    for (uint32_t p = 0; p < d->n_points; p++) {
        drift_name(p, v->e->shape.full_interval, name);
        (void)strbuf_printf(s, "%s\n  {\"point\": \"%s\"", p == 0 ? "" : ",", name);
        put_number(s, "added", d->points[p].median);
        put_number(s, "added_max", d->points[p].max);
        put_number(s, "stream", d->points[p].stream);
        (void)strbuf_putc(s, '}');
    }
    (void)strbuf_puts(s, "]");
}

static calla_status write_json(const verify *v, calla_error *err)
{
    const verify_stats *s = &v->stats;
    const double n = (double)s->n;
    strbuf b = {0};
    (void)strbuf_printf(&b, "{\"passed\": %s, \"backend\": \"%s\", \"variant\": ",
                        passed(v) ? "true" : "false", v->ex->ops->name);
    const char *variant = v->ex->ops->variant(v->ex);
    (void)json_write_string(&b, variant, strlen(variant));
    (void)strbuf_printf(&b, ", \"step\": %s, \"positions\": %llu, \"kept_logits\": %u",
                        v->o->step ? "true" : "false", (unsigned long long)s->n, v->ref.k);
    put_number(&b, "perplexity", exp(s->nll / n));
    put_number(&b, "reference_perplexity", exp(s->nll_ref / n));
    put_number(&b, "perplexity_ratio", verify_perplexity_ratio(s));
    put_number(&b, "top1", (double)s->n_same / n);
    put_number(&b, "ties", (double)s->n_tied / n);
    put_number(&b, "widest_gap", s->widest_gap);
    put_number(&b, "kl_mean", s->kl_sum / n);
    put_number(&b, "kl_max", s->kl_max);
    put_number(&b, "dlogit_mean", s->diff_sum / (double)s->n_diff);
    put_number(&b, "dlogit_max", s->diff_max);
    put_drift(v, &b);
    (void)strbuf_puts(&b, "}\n");
    FILE *f = b.failed ? NULL : fopen(v->o->json, "w");
    bool ok = f != NULL && fwrite(b.data, 1, b.len, f) == b.len;
    if (f != NULL && fclose(f) != 0) ok = false;
    strbuf_deinit(&b);
    return ok ? CALLA_OK
              : err_set(err, CALLA_ERR_IO, "cannot write %s: %s", v->o->json, strerror(errno));
}

static calla_status run_verify(verify *v, calla_error *err)
{
    calla_status st = take_reference(v, err);
    v->n_points = v->ref.n_points;
    if (st == CALLA_OK) st = compute(v, compare_row, err);
    if (st == CALLA_OK && v->stats.n == 0)
        st = err_set(err, CALLA_ERR_ARGUMENT, "%s: no sequence of two tokens or more", v->path);
    if (st == CALLA_OK && v->n_traced != 0) st = drift_find(&v->drift, &v->ref, v->trace, err);
    if (st != CALLA_OK) return st;
    print_result(v);
    return v->o->json != NULL ? write_json(v, err) : CALLA_OK;
}

/* ---- Writing a reference ---- */

static void put_row(verify *v, uint32_t i, const float *logits)
{
    reference_put(&v->writer, i, logits);
}

/* One sequence more of at most --tokens ids. */
static bool add_seq(verify *v, const int32_t *ids, size_t n)
{
    if (n > v->o->n_tokens) n = (size_t)v->o->n_tokens;
    if (n == 0) return true;
    int32_t *all = mem_resize(v->ids, (v->n_ids + n) * sizeof *all);
    if (all == NULL) return false;
    v->ids = all;
    int32_t *first = mem_resize(v->first, (v->n_seqs + 1) * sizeof *first);
    if (first == NULL) return false;
    v->first = first;
    v->first[v->n_seqs++] = (int32_t)v->n_ids;
    memcpy(v->ids + v->n_ids, ids, n * sizeof *ids);
    v->n_ids += (uint32_t)n;
    return true;
}

/* A line of ids. */
static bool add_line(verify *v, const char *line, size_t n, int32_t *ids)
{
    size_t n_ids = 0;
    for (size_t i = 0; i < n;) {
        i += strspn(line + i, " \t\r,");
        if (i >= n) break;
        const size_t len = strspn(line + i, "0123456789");
        const unsigned long id = strtoul(line + i, NULL, 10);
        if (len == 0 || len > 9 || id >= v->e->shape.n_vocab) return false;
        if (n_ids < v->o->n_tokens) ids[n_ids++] = (int32_t)id;
        i += len;
    }
    return add_seq(v, ids, n_ids);
}

static calla_status ids_from_file(verify *v, calla_error *err)
{
    char *text;
    size_t n;
    calla_status st = file_read(v->o->ids, TEXT_MAX, &text, &n, err);
    if (st != CALLA_OK) return st;
    int32_t *ids = mem_array((size_t)v->o->n_tokens, sizeof *ids);
    bool ok = ids != NULL;
    for (size_t i = 0, line = 1; i < n && ok; line++) {
        const size_t len = strcspn(text + i, "\n");
        ok = add_line(v, text + i, len, ids);
        if (!ok)
            st = err_set(err, CALLA_ERR_ARGUMENT, "%s: line %zu: expected ids from 0 to %u",
                         v->o->ids, line, v->e->shape.n_vocab - 1);
        i += len + 1;
    }
    if (ids == NULL) st = err_set(err, CALLA_ERR_MEMORY, "no memory for the ids");
    mem_free(ids);
    mem_free(text);
    return st;
}

static calla_status ids_from_text(verify *v, calla_error *err)
{
    char *text;
    size_t n, n_ids;
    int32_t *ids;
    calla_status st = file_read(v->o->text, TEXT_MAX, &text, &n, err);
    if (st != CALLA_OK) return st;
    st = calla_tokenizer_encode(v->e->tok, text, n, 0, &ids, &n_ids, err);
    mem_free(text);
    if (st != CALLA_OK) return st;
    if (!add_seq(v, ids, n_ids)) st = err_set(err, CALLA_ERR_MEMORY, "no memory for the ids");
    calla_free(ids);
    return st;
}

static calla_status random_ids(verify *v, calla_error *err)
{
    int32_t *ids = mem_array((size_t)v->o->n_tokens, sizeof *ids);
    uint64_t rng = 1;
    if (ids == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the ids");
    for (uint64_t i = 0; i < v->o->n_tokens; i++) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        ids[i] = (int32_t)((rng >> 33) % v->e->shape.n_vocab);
    }
    const bool ok = add_seq(v, ids, (size_t)v->o->n_tokens);
    mem_free(ids);
    return ok ? CALLA_OK : err_set(err, CALLA_ERR_MEMORY, "no memory for the ids");
}

static calla_status run_write(verify *v, calla_error *err)
{
    const model_shape *s = &v->e->shape;
    strbuf source = {0};
    calla_status st = v->o->text != NULL  ? ids_from_text(v, err)
                      : v->o->ids != NULL ? ids_from_file(v, err)
                                          : random_ids(v, err);
    if (st == CALLA_OK && (v->n_ids == 0 || v->n_ids > REFERENCE_TOKENS_MAX))
        st = err_set(err, CALLA_ERR_ARGUMENT, "a reference has 1 to %u tokens, found %u",
                     REFERENCE_TOKENS_MAX, v->n_ids);
    if (st != CALLA_OK) return st;
    (void)strbuf_printf(&source, "calla %s, %s %s%s", calla_version(), v->ex->ops->name,
                        v->ex->ops->variant(v->ex), v->o->step ? ", token by token" : "");
    const uint32_t n = seq_tokens(v, 0);
    v->n_traced = v->o->n_traced < n ? (uint32_t)v->o->n_traced : n;
    v->n_points = 2 * s->n_layers + 1;
    v->writer = (reference_writer){.source = source.data,
                                   .tokens = v->ids,
                                   .first = v->first,
                                   .n_tokens = v->n_ids,
                                   .n_seqs = v->n_seqs,
                                   .n_vocab = s->n_vocab,
                                   .k = (uint32_t)v->o->top,
                                   .n_points = v->n_points,
                                   .n_traced = v->n_traced,
                                   .n_width = s->hidden};
    st = reference_begin(&v->writer, err);
    if (st == CALLA_OK) st = compute(v, put_row, err);
    if (st == CALLA_OK && v->n_traced != 0)
        memcpy(v->writer.trace, v->trace,
               (size_t)v->n_points * v->n_traced * s->hidden * sizeof(float));
    if (st == CALLA_OK) st = reference_write(&v->writer, v->path, err);
    if (st == CALLA_OK)
        printf("%s: %u positions in %u sequence%s, %.1f s; %s\n", v->path, v->n_ids, v->n_seqs,
               v->n_seqs == 1 ? "" : "s", v->seconds, source.data);
    strbuf_deinit(&source);
    return st;
}

/* ---- The command ---- */

static calla_status open_engine(verify *v, calla_error *err)
{
    const verify_options *o = v->o;
    char *dir, *pack_dir = NULL;
    term_progress progress;
    calla_status st = cli_model_dir(o->common.model, &dir, err);
    if (st == CALLA_OK) st = cli_pack_dir(&o->common, &pack_dir, err);
    if (st == CALLA_OK) {
        v->logger = cli_logger_make(&cli_verify, &o->common);
        term_progress_begin(&progress, "loading weights", "bytes");
        const calla_engine_options eo = {
            .model_dir = dir,
            .backend = o->common.backend,
            .n_threads = (unsigned)o->common.n_threads,
            .precision = cli_precision(&o->common),
            .kv_type = o->kv != NULL && strcmp(o->kv, "f32") == 0 ? CALLA_KV_F32 : CALLA_KV_BF16,
            .cpu_variant = o->variant,
            .pack_dir = pack_dir,
            .progress = cli_on_load,
            .progress_user = &progress,
            .log = cli_log,
            .log_user = &v->logger,
        };
        st = calla_engine_create(&v->e, &eo, err);
        term_progress_end(&progress);
        if (st == CALLA_OK) v->ex = v->e->ex;
    }
    mem_free(pack_dir);
    mem_free(dir);
    return st;
}

static void deinit(verify *v)
{
    reference_close(&v->ref);
    reference_writer_deinit(&v->writer);
    calla_engine_destroy(v->e);
    mem_free(v->drift.points);
    mem_free(v->ids);
    mem_free(v->first);
    mem_free(v->logits);
    mem_free(v->row);
    mem_free(v->trace);
}

static int cmd_verify(int argc, char **argv)
{
    verify_options o = {.common = CLI_COMMON_DEFAULTS,
                        .n_tokens = 192,
                        .top = 64,
                        .n_traced = 32,
                        .min_top1 = 95.0,
                        .max_ratio = 0.01,
                        .max_kl = 0.01};
    verify v = {.o = &o};
    calla_error err;
    const int rc = cli_parse(&cli_verify, argc, argv, &o, NULL);
    if (rc >= 0) return rc;
    if (!o.write && (o.text != NULL || o.ids != NULL))
        return cli_usage_error(&cli_verify, "--text and --ids belong to --write");
    if (o.text != NULL && o.ids != NULL)
        return cli_usage_error(&cli_verify, "--text and --ids exclude each other");
    v.path = argv[1];
    calla_status st = o.write ? CALLA_OK : reference_open(&v.ref, v.path, &err);
    if (st == CALLA_OK) st = open_engine(&v, &err);
    if (st == CALLA_OK) st = o.write ? run_write(&v, &err) : run_verify(&v, &err);
    const bool ok = st == CALLA_OK && (o.write || passed(&v));
    deinit(&v);
    if (st != CALLA_OK) return cli_fail(&cli_verify, &err);
    return ok ? CLI_OK : CLI_FAILED;
}
