#include "bench/report.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "bench/agent.h"

/* ---- Shares ---- */

double report_bandwidth_fraction(const bench_record *r, const bench_result *x)
{
    return r->limits.read_bytes_per_s > 0.0 ? x->bytes * x->rate / r->limits.read_bytes_per_s : 0.0;
}

double report_matrix_fraction(const bench_record *r, const bench_result *x)
{
    return r->limits.matrix_flops > 0.0 ? x->flops * x->rate / r->limits.matrix_flops : 0.0;
}

double report_roof(const bench_record *r, const bench_result *x)
{
    const bench_limits *l = &r->limits;
    if (!(l->read_bytes_per_s > 0.0) || !(l->matrix_flops > 0.0)) return 0.0;
    return 1.0 / fmax(x->bytes / l->read_bytes_per_s, x->flops / l->matrix_flops);
}

/* ---- For people ---- */

/* 31.4 kB, 10.2 MB, 1.90 GB */
static const char *amount(char text[32], double x, const char *unit)
{
    static const char prefix[] = " kMGT";
    size_t i = 0;
    for (; x >= 999.5 && i + 2 < sizeof prefix; i++)
        x /= 1000.0;
    (void)snprintf(text, 32, "%.*f %.*s%s",
                   x < 9.995   ? 2
                   : x < 99.95 ? 1
                               : 0,
                   x, i != 0, prefix + i, unit);
    return text;
}

void report_limits(const bench_record *r, FILE *out)
{
    const bench_limits *l = &r->limits;
    const struct {
        const char *what, *unit, *of;
        double x;
    } rows[] = {{"read", "B/s", "", l->read_bytes_per_s},
                {"copy", "B/s", "", l->copy_bytes_per_s},
                {"matrices", "FLOP/s", l->matrix_kind, l->matrix_flops},
                {"f32", "FLOP/s", "", l->vector_flops}};
    const char *sep = "limits: ";
    char text[32];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!(rows[i].x > 0.0)) continue;
        fprintf(out, "%s%s %s", sep, rows[i].what, amount(text, rows[i].x, rows[i].unit));
        if (rows[i].of[0] != '\0') fprintf(out, " (%s)", rows[i].of);
        sep = ", ";
    }
    if (sep[0] == ',') fputc('\n', out);
}

void report_heading(const bench_record *r, FILE *out)
{
    fprintf(out, "%-8s %7s  %10s  %-20s  %9s %12s", "", "tokens", "tokens/s", "median's 95 %",
            "a token:", "");
    if (r->limits.read_bytes_per_s > 0.0)
        fprintf(out, " %8s %8s %8s", "of read", "of peak", "of roof");
    fputc('\n', out);
}

/* " 12.3 %", or blanks for 0. */
static void put_share(double x, FILE *out)
{
    if (x > 0.0)
        fprintf(out, " %6.1f %%", 100.0 * x);
    else
        fprintf(out, " %8s", "");
}

void report_result(const bench_record *r, const bench_result *x, FILE *out)
{
    const double roof = report_roof(r, x);
    char interval[48], bytes[32], flops[32];
    (void)snprintf(interval, sizeof interval, "(%.2f .. %.2f)", x->low, x->high);
    fprintf(out, "%-8s %7u  %10.2f  %-20s %10s%12s", x->kind, x->tokens, x->rate, interval,
            amount(bytes, x->bytes, "B"), amount(flops, x->flops, "FLOP"));
    put_share(report_bandwidth_fraction(r, x), out);
    put_share(report_matrix_fraction(r, x), out);
    put_share(roof > 0.0 ? x->rate / roof : 0.0, out);
    fputc('\n', out);
    (void)fflush(out);
}

/* "left out: prefill 4096, 8192: would take ..."; the reason is the first one's. */
static void put_left(const bench_record *r, const char *kind, bool for_time, FILE *out)
{
    const char *why = NULL;
    for (uint32_t i = 0; i < r->n_left; i++) {
        const bench_left *l = &r->left[i];
        if (strcmp(l->kind, kind) != 0 || l->for_time != for_time) continue;
        if (why == NULL)
            fprintf(out, "left out: %s %u", kind, l->tokens);
        else
            fprintf(out, ", %u", l->tokens);
        if (why == NULL) why = l->why;
    }
    if (why != NULL) fprintf(out, ": %s\n", why);
}

void report_end(const bench_record *r, FILE *out)
{
    const bench_thermal *t = &r->thermal;
    char a[32], m[32], d[32];
    for (int i = 0; i < 4; i++)
        put_left(r, i < 2 ? "prefill" : "decode", i % 2 == 0, out);
    for (uint32_t i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        if (strcmp(x->kind, "decode") != 0 || !(x->kernels > 0.0)) continue;
        fprintf(out, "a step at %u: %.0f kernels in %.0f stages\n", x->tokens, x->kernels,
                x->stages);
        break;
    }
    if (r->memory.anonymous != 0)
        fprintf(out, "memory: %s of its own, %s mapped",
                amount(a, (double)r->memory.anonymous, "B"),
                amount(m, (double)r->memory.mapped, "B"));
    if (r->memory.device != 0)
        fprintf(out, ", %s on the device", amount(d, (double)r->memory.device, "B"));
    if (r->large_pages > 0) fprintf(out, ", weights in large pages");
    if (r->memory.anonymous != 0) fputc('\n', out);
    if (isfinite(t->before_c)) fprintf(out, "temperature: %.0f C", t->before_c);
    if (isfinite(t->before_c)) fprintf(out, ", %.0f C at the end\n", t->after_c);
    if (t->throttled > 0) fprintf(out, "the machine slowed itself down for its temperature\n");
}

/* ---- JSON ---- */

/* "key": text, */
static void put_text(strbuf *s, const char *key, const char *text)
{
    (void)strbuf_printf(s, "\"%s\": ", key);
    (void)json_write_string(s, text, strlen(text));
    (void)strbuf_puts(s, ", ");
}

/* "key": number; null for what is no number and, when it cannot be, for 0 */
static void put_number(strbuf *s, const char *key, double x, const char *end)
{
    if (isfinite(x) && x > 0.0)
        (void)strbuf_printf(s, "\"%s\": %.7g%s", key, x, end);
    else
        (void)strbuf_printf(s, "\"%s\": null%s", key, end);
}

static void put_flag(strbuf *s, const char *key, int flag, const char *end)
{
    (void)strbuf_printf(s, "\"%s\": %s%s", key,
                        flag < 0    ? "null"
                        : flag != 0 ? "true"
                                    : "false",
                        end);
}

static void put_bytes(strbuf *s, const char *key, uint64_t bytes, const char *end)
{
    if (bytes != 0)
        (void)strbuf_printf(s, "\"%s\": %llu%s", key, (unsigned long long)bytes, end);
    else
        (void)strbuf_printf(s, "\"%s\": null%s", key, end);
}

static void put_limits(strbuf *s, const bench_limits *l)
{
    (void)strbuf_puts(s, " \"limits\": {");
    put_number(s, "read_bytes_per_s", l->read_bytes_per_s, ", ");
    put_number(s, "copy_bytes_per_s", l->copy_bytes_per_s, ", ");
    put_number(s, "matrix_flops", l->matrix_flops, ", ");
    put_text(s, "matrix_kind", l->matrix_kind);
    put_number(s, "vector_flops", l->vector_flops, "},\n");
}

static void put_thermal(strbuf *s, const bench_thermal *t)
{
    if (!isfinite(t->before_c) && !isfinite(t->after_c) && t->throttled < 0) {
        (void)strbuf_puts(s, " \"thermal\": null,\n");
        return;
    }
    (void)strbuf_puts(s, " \"thermal\": {");
    put_number(s, "before_c", t->before_c, ", ");
    put_number(s, "after_c", t->after_c, ", ");
    put_flag(s, "throttled", t->throttled, "},\n");
}

static void put_head(strbuf *s, const bench_record *r)
{
    (void)strbuf_printf(s, "{\"format\": %d, ", BENCH_FORMAT);
    put_text(s, "version", calla_version());
    put_text(s, "commit", bench_commit);
    put_text(s, "date", r->date);
    put_text(s, "system", r->system);
    put_text(s, "machine", r->machine);
    put_bytes(s, "memory_bytes", r->memory_bytes, ", ");
    if (r->load >= 0.0)
        (void)strbuf_printf(s, "\"load_average\": %.2f,\n ", r->load);
    else
        (void)strbuf_puts(s, "\"load_average\": null,\n ");
    put_text(s, "model", r->model);
    put_flag(s, "synthetic", r->synthetic, ", ");
    put_text(s, "backend", r->backend);
    put_text(s, "variant", r->variant);
    put_text(s, "precision", r->precision);
    put_text(s, "kv", r->kv);
    (void)strbuf_printf(s, "\"threads\": %u, \"chunk_tokens\": %u, ", r->n_threads,
                        r->chunk_tokens);
    (void)strbuf_puts(s, "\"flags\": ");
    (void)json_write_string(s, r->flags, strlen(r->flags));
    (void)strbuf_puts(s, ",\n");
    put_limits(s, &r->limits);
    put_thermal(s, &r->thermal);
    (void)strbuf_puts(s, " \"memory\": {");
    put_bytes(s, "anonymous_bytes", r->memory.anonymous, ", ");
    put_bytes(s, "mapped_bytes", r->memory.mapped, ", ");
    put_bytes(s, "device_bytes", r->memory.device, "},\n");
    (void)strbuf_puts(s, " \"weights\": {");
    put_bytes(s, "file_bytes", r->file_bytes, ", ");
    put_bytes(s, "active_bytes", r->active_bytes, ", ");
    put_flag(s, "large_pages", r->large_pages, "},\n");
}

static void put_result(strbuf *s, const bench_record *r, const bench_result *x)
{
    (void)strbuf_printf(s, "\n  {\"kind\": \"%s\", \"tokens\": %u, ", x->kind, x->tokens);
    put_number(s, "tokens_per_s", x->rate, ", ");
    put_number(s, "slowest", x->slowest, ", ");
    put_number(s, "fastest", x->fastest, ", ");
    put_number(s, "low", x->low, ", ");
    put_number(s, "high", x->high, ", ");
    (void)strbuf_printf(s, "\"bytes_per_token\": %.0f, \"flops_per_token\": %.0f, ", x->bytes,
                        x->flops);
    put_number(s, "bandwidth_fraction", report_bandwidth_fraction(r, x), ", ");
    put_number(s, "matrix_fraction", report_matrix_fraction(r, x), ", ");
    put_number(s, "kernels_per_token", x->kernels, ", ");
    put_number(s, "stages_per_token", x->stages, ", ");
    put_bytes(s, "memory_bytes", x->memory, "");
    if (x->without != NULL && x->without[0] != '\0')
        (void)strbuf_printf(s, ", \"without\": \"%s\"", x->without);
    (void)strbuf_puts(s, ", \"seconds\": [");
    for (uint32_t i = 0; i < x->n_seconds; i++)
        (void)strbuf_printf(s, "%s%.6g", i == 0 ? "" : ", ", x->seconds[i]);
    (void)strbuf_puts(s, "]}");
}

void report_json(const bench_record *r, strbuf *out)
{
    put_head(out, r);
    (void)strbuf_puts(out, " \"left_out\": [");
    for (uint32_t i = 0; i < r->n_left; i++) {
        const bench_left *l = &r->left[i];
        (void)strbuf_printf(out,
                            "%s{\"kind\": \"%s\", \"tokens\": %u, \"why\": ", i == 0 ? "" : ", ",
                            l->kind, l->tokens);
        (void)json_write_string(out, l->why, strlen(l->why));
        (void)strbuf_putc(out, '}');
    }
    (void)strbuf_puts(out, "],\n \"results\": [");
    for (uint32_t i = 0; i < r->n_results; i++) {
        if (i != 0) (void)strbuf_putc(out, ',');
        put_result(out, r, &r->results[i]);
    }
    (void)strbuf_puts(out, "\n]");
    if (r->agent != NULL) {
        (void)strbuf_puts(out, ",\n ");
        agent_put_json(out, r->agent);
    }
    (void)strbuf_puts(out, "}\n");
}

/* ---- CSV ---- */

/* A field in quotes when it needs them. */
static void put_field(strbuf *s, const char *text)
{
    const bool plain = strpbrk(text, ",\"\n") == NULL;
    if (!plain) (void)strbuf_putc(s, '"');
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"') (void)strbuf_putc(s, '"');
        (void)strbuf_putc(s, *p);
    }
    (void)strbuf_puts(s, plain ? "," : "\",");
}

static void put_value(strbuf *s, double x)
{
    if (isfinite(x) && x > 0.0) (void)strbuf_printf(s, "%.10g", x);
    (void)strbuf_putc(s, ',');
}

/* What is the same on every line, so that files can be put together. */
static void put_common(strbuf *s, const bench_record *r)
{
    const char *const texts[] = {calla_version(), bench_commit, r->date,    r->system,
                                 r->machine,      r->model,     r->backend, r->variant,
                                 r->precision,    r->kv,        r->flags};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        put_field(s, texts[i]);
    (void)strbuf_printf(s, "%d,%u,%u,", r->synthetic, r->n_threads, r->chunk_tokens);
    put_value(s, r->limits.read_bytes_per_s);
    put_value(s, r->limits.copy_bytes_per_s);
    put_value(s, r->limits.matrix_flops);
    put_field(s, r->limits.matrix_kind);
    put_value(s, r->limits.vector_flops);
}

void report_csv(const bench_record *r, strbuf *out)
{
    if (r->agent != NULL) {
        agent_put_csv(out, r->agent);
        return;
    }
    (void)strbuf_puts(out, "kind,tokens,without,tokens_per_s,slowest,fastest,low,high,"
                           "bytes_per_token,flops_per_token,bandwidth_fraction,matrix_fraction,"
                           "kernels_per_token,stages_per_token,memory_bytes,version,commit,date,"
                           "system,machine,model,backend,variant,precision,kv,flags,synthetic,"
                           "threads,chunk_tokens,read_bytes_per_s,copy_bytes_per_s,matrix_flops,"
                           "matrix_kind,vector_flops,samples\n");
    for (uint32_t i = 0; i < r->n_results; i++) {
        const bench_result *x = &r->results[i];
        const double values[] = {x->rate,
                                 x->slowest,
                                 x->fastest,
                                 x->low,
                                 x->high,
                                 x->bytes,
                                 x->flops,
                                 report_bandwidth_fraction(r, x),
                                 report_matrix_fraction(r, x),
                                 x->kernels,
                                 x->stages,
                                 (double)x->memory};
        (void)strbuf_printf(out, "%s,%u,%s,", x->kind, x->tokens,
                            x->without != NULL ? x->without : "");
        for (size_t j = 0; j < sizeof values / sizeof *values; j++)
            put_value(out, values[j]);
        put_common(out, r);
        (void)strbuf_printf(out, "%u\n", x->n_seconds);
    }
}
