#include "bench/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "bench/record.h"
#include "bench/stats.h"

#define FILES_MAX      64u
#define FILE_BYTES_MAX (16u << 20)
#define SAMPLES_MAX    4096u
#define TOKENS_MAX     (1 << 24)
#define RESAMPLES      2000u
#define ALL_LEVEL      0.05 /* chance that a table of equal builds shows a difference */

typedef struct side {
    json_doc docs[FILES_MAX];
    uint32_t n;
} side;

/* One measurement on both sides. */
typedef struct row {
    const char *kind, *without;
    int64_t tokens;
    double rate[2], ratio, low, high; /* tokens/s; b / a */
} row;

/* ---- Files ---- */

static calla_status load(side *s, const char *path, size_t n_path, calla_error *err)
{
    char *text = NULL;
    size_t n;
    char *name = mem_memdup(path, n_path);
    calla_status st = name == NULL ? err_set(err, CALLA_ERR_MEMORY, "no memory for a name")
                                   : file_read(name, FILE_BYTES_MAX, &text, &n, err);
    const json_limits limits = {.what = name};
    json_doc *d = &s->docs[s->n];
    if (st == CALLA_OK) st = json_parse(d, text, n, &limits, err);
    if (st == CALLA_OK) {
        s->n++;
        const json_value *results = json_get(d->root, "results");
        const json_value *format = json_get(d->root, "format");
        int64_t f = 1;
        if (results == NULL || results->type != JSON_ARRAY ||
            (format != NULL && (!json_int(format, &f) || f < 1 || f > BENCH_FORMAT)))
            st = err_set(err, CALLA_ERR_FORMAT,
                         "%s: expected what calla bench --json writes, format 1 to %d", name,
                         BENCH_FORMAT);
    }
    mem_free(text);
    mem_free(name);
    return st;
}

static calla_status load_list(side *s, const char *list, calla_error *err)
{
    calla_status st = CALLA_OK;
    while (*list != '\0' && st == CALLA_OK) {
        const size_t n = strcspn(list, ",");
        if (s->n == FILES_MAX)
            return err_set(err, CALLA_ERR_ARGUMENT, "more than %u files to compare", FILES_MAX);
        st = load(s, list, n, err);
        list += n + (list[n] == ',');
    }
    return st;
}

/* The same measurement in another file, or NULL. */
static const json_value *find(const json_doc *d, const row *r)
{
    for (const json_value *v = json_get(d->root, "results")->first; v != NULL; v = v->next) {
        int64_t tokens;
        const json_value *without = json_get(v, "without");
        if (json_int(json_get(v, "tokens"), &tokens) && tokens == r->tokens &&
            json_is(json_get(v, "kind"), r->kind) &&
            (r->without == NULL ? without == NULL : json_is(without, r->without)))
            return v;
    }
    return NULL;
}

/* ---- Statistics ---- */

static double median(double *v, uint32_t n)
{
    stats_sort(v, n);
    return stats_median(v, n);
}

/* P(T > t) of Student's distribution, by Simpson's rule over the angle: t = sqrt(dof) tan a. */
static double t_tail(double t, uint32_t dof)
{
    enum { n = 400 };
    const double from = atan(t / sqrt(dof)), to = acos(-1.0) / 2.0, h = (to - from) / n;
    double part = 0.0, whole = 0.0;
    for (int i = 0; i <= n; i++) {
        const double w = i == 0 || i == n ? 1.0 : i % 2 != 0 ? 4.0 : 2.0;
        part += w * pow(cos(from + i * h), dof - 1.0) * h;
        whole += w * pow(cos(to * i / n), dof - 1.0) * to / n;
    }
    return part / (2.0 * whole);
}

static double t_quantile(double tail, uint32_t dof)
{
    double low = 0.0, high = 1e6;
    for (int i = 0; i < 80; i++) {
        const double mid = (low + high) / 2.0;
        if (t_tail(mid, dof) > tail)
            low = mid;
        else
            high = mid;
    }
    return high;
}

static void interval_of_pairs(row *r, const double *log_ratio, uint32_t n, double tail)
{
    double mean = 0.0, square = 0.0;
    for (uint32_t i = 0; i < n; i++)
        mean += log_ratio[i] / n;
    for (uint32_t i = 0; i < n; i++)
        square += (log_ratio[i] - mean) * (log_ratio[i] - mean);
    const double half = t_quantile(tail, n - 1) * sqrt(square / (n - 1) / n);
    r->ratio = exp(mean);
    r->low = exp(mean - half);
    r->high = exp(mean + half);
}

typedef struct samples {
    double v[SAMPLES_MAX];
    uint32_t n;
} samples;

static double resampled(const samples *s, double *scratch, uint64_t *rng)
{
    for (uint32_t i = 0; i < s->n; i++) {
        *rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
        scratch[i] = s->v[(*rng >> 33) % s->n];
    }
    return median(scratch, s->n);
}

/* Of seconds, so that a / b is the ratio of speeds. */
static void interval_of_samples(row *r, samples *a, samples *b, double tail)
{
    static double scratch[SAMPLES_MAX], ratios[RESAMPLES];
    uint64_t rng = 1;
    r->ratio = median(a->v, a->n) / median(b->v, b->n);
    for (uint32_t i = 0; i < RESAMPLES; i++)
        ratios[i] = resampled(a, scratch, &rng) / resampled(b, scratch, &rng);
    stats_sort(ratios, RESAMPLES);
    const uint32_t cut = (uint32_t)(tail * RESAMPLES);
    r->low = ratios[cut] / (1.0 + COMPARE_BETWEEN);
    r->high = ratios[RESAMPLES - 1 - cut] * (1.0 + COMPARE_BETWEEN);
}

/* Adds the seconds of one result, or what its rate says when it has none; its median. */
static bool take(const json_value *result, double tokens, samples *s, double *median_seconds)
{
    static samples one;
    double rate;
    const json_value *list = json_get(result, "seconds");
    one.n = 0;
    for (const json_value *v = list != NULL ? list->first : NULL; v != NULL; v = v->next) {
        double x;
        if (one.n == SAMPLES_MAX || !json_double(v, &x) || !(x > 0.0)) return false;
        one.v[one.n++] = x;
    }
    if (one.n == 0) {
        if (!json_double(json_get(result, "tokens_per_s"), &rate) || !(rate > 0.0)) return false;
        one.v[one.n++] = tokens / rate;
    }
    for (uint32_t i = 0; i < one.n && s->n < SAMPLES_MAX; i++)
        s->v[s->n++] = one.v[i];
    *median_seconds = median(one.v, one.n);
    return true;
}

/* ---- The table ---- */

/* False: not in every file, or not well-formed. */
static bool measure(const side *a, const side *b, row *r, double tail)
{
    static samples all[2];
    double seconds[2][FILES_MAX], log_ratio[FILES_MAX];
    const double n = strcmp(r->kind, "prefill") == 0 ? (double)r->tokens : 1.0;
    all[0].n = all[1].n = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const json_value *x = find(&a->docs[i], r), *y = find(&b->docs[i], r);
        if (x == NULL || y == NULL || !take(x, n, &all[0], &seconds[0][i]) ||
            !take(y, n, &all[1], &seconds[1][i]))
            return false;
        log_ratio[i] = log(seconds[0][i] / seconds[1][i]);
    }
    if (a->n >= 3)
        interval_of_pairs(r, log_ratio, a->n, tail);
    else
        interval_of_samples(r, &all[0], &all[1], tail);
    for (int k = 0; k < 2; k++)
        r->rate[k] = n / median(seconds[k], a->n);
    return true;
}

static bool is_measurement(const json_value *v, row *r)
{
    const json_value *kind = json_get(v, "kind"), *without = json_get(v, "without");
    if ((!json_is(kind, "prefill") && !json_is(kind, "decode")) ||
        !json_int(json_get(v, "tokens"), &r->tokens) || r->tokens < 1 || r->tokens > TOKENS_MAX)
        return false;
    r->kind = kind->text;
    r->without = without != NULL && without->type == JSON_STRING ? without->text : NULL;
    return true;
}

/* Members of the head whose difference explains a difference of speed. */
static void print_conditions(const side *a, const side *b)
{
    static const char *const keys[] = {"machine",   "model", "backend", "variant",
                                       "precision", "kv",    "threads", "chunk_tokens"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_value *x = json_get(a->docs[0].root, keys[i]),
                         *y = json_get(b->docs[0].root, keys[i]);
        int64_t n, m;
        if (x == NULL || y == NULL) continue;
        const bool same = x->type == JSON_STRING ? json_is(y, x->text)
                                                 : !json_int(x, &n) || !json_int(y, &m) || n == m;
        if (!same) printf("note: A and B differ in more than the build: %s\n", keys[i]);
    }
}

/* Measurements of one side that are not compared; `other` has them or not. */
static void print_missing(const side *s, const side *other, char name, char other_name)
{
    row r;
    memset(&r, 0, sizeof r);
    for (const json_value *v = json_get(s->docs[0].root, "results")->first; v != NULL; v = v->next)
        if (is_measurement(v, &r) && find(&other->docs[0], &r) == NULL)
            printf("not compared: %s %lld is in %c and not in %c\n",
                   strcmp(r.kind, "prefill") == 0 ? "prefill" : "decode", (long long)r.tokens, name,
                   other_name);
}

static void print_row(const row *r, bool *slower)
{
    const bool is_less = r->high<1.0 - COMPARE_LEAST, is_more = r->low> 1.0 + COMPARE_LEAST;
    *slower = *slower || is_less;
    printf("%-8s %7lld %-18s %10.2f %10.2f  %6.3f  (%.3f .. %.3f)  %s\n", r->kind,
           (long long)r->tokens, r->without != NULL ? r->without : "", r->rate[0], r->rate[1],
           r->ratio, r->low, r->high,
           is_less   ? "slower"
           : is_more ? "faster"
                     : "no difference shown");
}

static calla_status compare(const side *a, const side *b, bool *slower, calla_error *err)
{
    const json_value *results = json_get(a->docs[0].root, "results");
    uint32_t n = 0, n_shown = 0;
    row r;
    memset(&r, 0, sizeof r);
    for (const json_value *v = results->first; v != NULL; v = v->next)
        n += is_measurement(v, &r) && find(&b->docs[0], &r) != NULL;
    const double tail = ALL_LEVEL / 2.0 / (n == 0 ? 1 : n);
    printf("%-8s %7s %-18s %10s %10s  %6s  (95 %% interval)\n", "", "tokens", "without", "A, /s",
           "B, /s", "B / A");
    for (const json_value *v = results->first; v != NULL; v = v->next) {
        if (!is_measurement(v, &r) || find(&b->docs[0], &r) == NULL) continue;
        if (measure(a, b, &r, tail)) {
            print_row(&r, slower);
            n_shown++;
        } else {
            printf("not compared: %s %lld is not well-formed in all files\n", r.kind,
                   (long long)r.tokens);
        }
    }
    print_missing(a, b, 'A', 'B');
    print_missing(b, a, 'B', 'A');
    print_conditions(a, b);
    if (n_shown == 0)
        return err_set(err, CALLA_ERR_ARGUMENT, "no measurement is in all files of both sides");
    if (a->n < 3)
        printf("fewer than three pairs of runs: %.0f %% is allowed for what differs between runs\n",
               100.0 * COMPARE_BETWEEN);
    return CALLA_OK;
}

calla_status bench_compare(const char *a, const char *b, bool *slower, calla_error *err)
{
    side *s = mem_array(2, sizeof *s);
    *slower = false;
    if (s == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to compare");
    calla_status st = load_list(&s[0], a, err);
    if (st == CALLA_OK) st = load_list(&s[1], b, err);
    if (st == CALLA_OK && (s[0].n != s[1].n || s[0].n == 0))
        st = err_set(err, CALLA_ERR_ARGUMENT,
                     "--compare pairs files in order, found %u and %u of them", s[0].n, s[1].n);
    if (st == CALLA_OK) st = compare(&s[0], &s[1], slower, err);
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < FILES_MAX; i++)
            json_free(&s[k].docs[i]);
    mem_free(s);
    return st;
}
