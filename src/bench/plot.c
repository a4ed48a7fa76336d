#include "bench/plot.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "bench/plot_series.h"

#define FILE_BYTES_MAX (16u << 20)
#define FORMAT_MAX     3
#define NUMBER_MAX     1e18 /* nothing that is measured is larger */

static const char *const kinds[PLOT_KINDS] = {"prefill", "decode"};

/* ---- Strings and numbers of a file ---- */

/* At most PLOT_TEXT - 1 bytes, whole characters, "..." where cut; control characters become ' '. */
static void keep_text(char *to, const char *s, size_t n)
{
    size_t m = n;
    if (m > PLOT_TEXT - 4) {
        m = PLOT_TEXT - 4;
        while (m > 0 && ((unsigned char)s[m] & 0xc0) == 0x80)
            m--;
    }
    for (size_t i = 0; i < m; i++)
        to[i] = (unsigned char)s[i] < 0x20 ? ' ' : s[i];
    (void)memcpy(to + m, m < n ? "..." : "", m < n ? 4 : 1);
}

static void take_text(char *to, const json_value *v)
{
    if (v != NULL && v->type == JSON_STRING) keep_text(to, v->text, v->n_text);
}

/* Appends to a text what still fits, after a separator. */
static void add_text(char *to, const char *s)
{
    char whole[2 * PLOT_TEXT];
    if (*s == '\0') return;
    const int n = snprintf(whole, sizeof whole, "%s%s%s", to, *to != '\0' ? ", " : "", s);
    if (n > 0) keep_text(to, whole, (size_t)n);
}

/* A member that may be missing or null; then *out stays. */
static calla_status take_number(const json_value *of, const char *key, double *out,
                                calla_error *err)
{
    const json_value *v = json_get(of, key);
    double x;
    if (v == NULL || v->type == JSON_NULL) return CALLA_OK;
    if (!json_double(v, &x) || !(x >= 0.0) || x > NUMBER_MAX)
        return err_set(err, CALLA_ERR_FORMAT, "%s: expected a number from 0 to 1e18", key);
    *out = x;
    return CALLA_OK;
}

/* ---- The head ---- */

/* A string, or the object that bench/peers writes. */
static void take_machine(plot_series *s, const json_value *v)
{
    take_text(s->machine, v);
    take_text(s->machine, json_get(v, "cpu"));
    take_text(s->machine, json_get(v, "gpu"));
}

static void take_how(plot_series *s, const json_value *root)
{
    static const char *const words[] = {"backend", "variant", "precision"};
    char kv[PLOT_TEXT] = "", cache[2 * PLOT_TEXT];
    int64_t n;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char word[PLOT_TEXT] = "";
        take_text(word, json_get(root, words[i]));
        if (strcmp(word, s->machine) != 0) add_text(s->how, word); /* a GPU's variant is its name */
    }
    take_text(kv, json_get(root, "kv"));
    (void)snprintf(cache, sizeof cache, "%.100s cache", kv);
    if (kv[0] != '\0') add_text(s->how, cache);
    if (json_is(json_get(root, "backend"), "cpu") && json_int(json_get(root, "threads"), &n) &&
        n > 0 && n < 1000000) {
        (void)snprintf(cache, sizeof cache, "%d thread%s", (int)n, n == 1 ? "" : "s");
        add_text(s->how, cache);
    }
    if (json_int(json_get(root, "chunk_tokens"), &n) && n > 0 && n < 1000000000) {
        (void)snprintf(cache, sizeof cache, "chunks of %d", (int)n);
        add_text(s->how, cache);
    }
}

static calla_status take_limits(plot_series *s, const json_value *root, calla_error *err)
{
    const json_value *limits = json_get(root, "limits");
    double copy = 0.0;
    calla_status st = take_number(root, "copy_bytes_per_s", &copy, err);
    if (st == CALLA_OK) st = take_number(limits, "copy_bytes_per_s", &copy, err);
    if (st == CALLA_OK) st = take_number(limits, "read_bytes_per_s", &s->read, err);
    if (st == CALLA_OK) st = take_number(limits, "matrix_flops", &s->matrix, err);
    if (st == CALLA_OK) st = take_number(limits, "vector_flops", &s->vector, err);
    take_text(s->matrix_kind, json_get(limits, "matrix_kind"));
    s->copy = s->read <= 0.0 && copy > 0.0;
    if (s->copy) s->read = copy;
    return st;
}

static calla_status take_head(plot_series *s, const json_value *root, calla_error *err)
{
    const json_value *format = json_get(root, "format"), *synthetic = json_get(root, "synthetic");
    int64_t n = 0;
    if (format != NULL && (!json_int(format, &n) || n < 1 || n > FORMAT_MAX))
        return err_set(err, CALLA_ERR_FORMAT, "format: expected 1 to %d, found %.20s", FORMAT_MAX,
                       format->text != NULL ? format->text : "something else");
    take_machine(s, json_get(root, "machine"));
    take_text(s->model, json_get(root, "model"));
    if (synthetic != NULL && synthetic->type == JSON_TRUE) add_text(s->model, "random weights");
    take_text(s->commit, json_get(root, "commit"));
    if (s->commit[0] == '\0') take_text(s->commit, json_get(root, "version"));
    take_text(s->date, json_get(root, "date"));
    s->date[10] = '\0'; /* the day */
    take_how(s, root);
    take_text(s->label, json_get(root, "label"));
    if (s->label[0] == '\0') {
        add_text(s->label, s->machine);
        add_text(s->label, s->how);
    }
    s->quoted = json_get(root, "source") != NULL;
    return take_limits(s, root, err);
}

/* ---- The results ---- */

static calla_status take_point(plot_point *p, const json_value *v, calla_error *err)
{
    int64_t tokens;
    if (!json_int(json_get(v, "tokens"), &tokens) || tokens < 1 || tokens > 1000000000)
        return err_set(err, CALLA_ERR_FORMAT, "tokens: expected a number from 1 to 1000000000");
    p->tokens = (double)tokens;
    calla_status st = take_number(v, "tokens_per_s", &p->rate, err);
    if (st == CALLA_OK && p->rate < 1e-6)
        return err_set(err, CALLA_ERR_FORMAT, "tokens_per_s: expected a positive number");
    p->low = p->high = p->rate;
    if (st == CALLA_OK) st = take_number(v, "slowest", &p->low, err);
    if (st == CALLA_OK) st = take_number(v, "fastest", &p->high, err);
    if (st == CALLA_OK) st = take_number(v, "low", &p->low, err);
    if (st == CALLA_OK) st = take_number(v, "high", &p->high, err);
    if (st == CALLA_OK) st = take_number(v, "bytes_per_token", &p->bytes, err);
    if (st == CALLA_OK) st = take_number(v, "flops_per_token", &p->flops, err);
    if (st == CALLA_OK && (p->low > p->rate || p->high < p->rate || p->low <= 0.0))
        return err_set(err, CALLA_ERR_FORMAT, "%.0f tokens: the median is not within its spread",
                       p->tokens);
    return st;
}

/* At its place by length. The first of equal ones stays. */
static calla_status insert(plot_series *s, uint32_t kind, const plot_point *p, calla_error *err)
{
    plot_point *at = s->points[kind];
    uint32_t i = s->n[kind];
    for (uint32_t j = 0; j < i; j++)
        if (at[j].tokens == p->tokens) return CALLA_OK;
    if (i == PLOT_POINTS_MAX)
        return err_set(err, CALLA_ERR_FORMAT, "more than %u lengths of %s", PLOT_POINTS_MAX,
                       kinds[kind]);
    for (; i > 0 && at[i - 1].tokens > p->tokens; i--)
        at[i] = at[i - 1];
    at[i] = *p;
    s->n[kind]++;
    return CALLA_OK;
}

static calla_status take_results(plot_series *s, const json_value *root, calla_error *err)
{
    const json_value *results = json_get(root, "results");
    uint32_t i = 0;
    if (results == NULL || results->type != JSON_ARRAY)
        return err_set(err, CALLA_ERR_FORMAT, "expected what calla bench --json writes");
    for (const json_value *v = results->first; v != NULL; v = v->next, i++) {
        const json_value *kind = json_get(v, "kind"), *without = json_get(v, "without");
        plot_point p = {0};
        uint32_t k = 0;
        if (without != NULL && without->type == JSON_STRING && without->n_text > 0) continue;
        while (k < PLOT_KINDS && !json_is(kind, kinds[k]))
            k++;
        if (k == PLOT_KINDS) continue; /* of a later version, or no measurement of speed */
        calla_status st = take_point(&p, v, err);
        if (st == CALLA_OK) st = insert(s, k, &p, err);
        const bool interval = json_get(v, "low") != NULL && json_get(v, "high") != NULL;
        if (p.low < p.high) *(interval ? &s->intervals : &s->extremes) = true;
        if (st != CALLA_OK) return err_prefix(err, st, "results[%u]", i);
    }
    return CALLA_OK;
}

/* ---- The object ---- */

double plot_bound(const plot_series *s, const plot_point *p)
{
    const double by_bytes = p->bytes > 0.0 ? s->read / p->bytes : 0.0;
    const double peak = s->matrix > 0.0 ? s->matrix : s->vector;
    const double by_work = p->flops > 0.0 ? peak / p->flops : 0.0;
    if (by_bytes <= 0.0 || by_work <= 0.0) return by_bytes > 0.0 ? by_bytes : by_work;
    return by_bytes < by_work ? by_bytes : by_work;
}

calla_status plot_create(plot **out, calla_error *err)
{
    *out = mem_alloc(sizeof **out);
    return *out != NULL ? CALLA_OK : err_set(err, CALLA_ERR_MEMORY, "no memory for a plot");
}

void plot_destroy(plot *p)
{
    if (p == NULL) return;
    for (uint32_t i = 0; i < p->n; i++)
        mem_free(p->s[i]);
    mem_free(p);
}

static calla_status take_all(plot_series *s, const json_value *root, calla_error *err)
{
    const calla_status st = take_head(s, root, err);
    return st == CALLA_OK ? take_results(s, root, err) : st;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* Labels that a reader could not tell apart get the names of their files. */
static void tell_apart(plot *p, plot_series *s)
{
    if (s->label[0] == '\0') add_text(s->label, s->name);
    for (uint32_t i = 0; i < p->n; i++) {
        if (strcmp(p->s[i]->label, s->label) != 0) continue;
        add_text(s->label, s->name);
        return;
    }
}

calla_status plot_add(plot *p, const char *name, const char *json, size_t n, calla_error *err)
{
    const json_limits limits = {.what = name, .max_depth = 16, .max_nodes = 2000000};
    json_doc doc = {0};
    if (p->n == PLOT_SERIES_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "more than %u files to plot", PLOT_SERIES_MAX);
    plot_series *s = mem_alloc(sizeof *s);
    if (s == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the results of a plot");
    name = base_name(name);
    keep_text(s->name, name, strlen(name));
    calla_status st = json_parse(&doc, json, n, &limits, err);
    if (st == CALLA_OK) {
        st = take_all(s, doc.root, err);
        if (st != CALLA_OK) (void)err_prefix(err, st, "%s", limits.what);
    }
    json_free(&doc);
    if (st != CALLA_OK) {
        mem_free(s);
        return st;
    }
    tell_apart(p, s);
    p->s[p->n++] = s;
    return CALLA_OK;
}

calla_status plot_add_file(plot *p, const char *path, calla_error *err)
{
    char *text = NULL;
    size_t n = 0;
    calla_status st = file_read(path, FILE_BYTES_MAX, &text, &n, err);
    if (st == CALLA_OK) st = plot_add(p, path, text, n, err);
    mem_free(text);
    return st;
}
