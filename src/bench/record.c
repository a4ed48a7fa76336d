#include "bench/record.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "bench/machine.h"
#include "bench/stats.h"
#include "exec/gpu/gpu.h"
#include "model/synth.h"
#include "text/utf8.h"

/* The last part of a path and its length, without slashes behind it. */
static const char *base_name(const char *path, size_t *n)
{
    *n = strlen(path);
    while (*n > 1 && path[*n - 1] == '/')
        --*n;
    size_t from = *n;
    while (from > 0 && path[from - 1] != '/')
        from--;
    *n -= from;
    return path + from;
}

/* It as valid UTF-8 that ends with a whole character; what "." and ".." stand for. */
static void put_base_name(char *out, size_t room, const char *path)
{
    size_t n, used = 0;
    const char *from = base_name(path, &n);
    char real[PATH_MAX];
    if (n <= 2 && strspn(from, ".") >= n && realpath(path, real) != NULL)
        from = base_name(real, &n);
    while (n != 0) {
        uint32_t cp;
        utf8_kind kind;
        const size_t step = utf8_read(from, n, &cp, &kind);
        const char *add = kind == UTF8_CHAR ? from : UTF8_REPLACEMENT;
        const size_t n_add = kind == UTF8_CHAR ? step : sizeof UTF8_REPLACEMENT - 1;
        if (used + n_add >= room) break;
        memcpy(out + used, add, n_add);
        used += n_add;
        from += step;
        n -= step;
    }
    out[used] = '\0';
}

void record_begin(bench_record *r, const calla_engine *e, calla_kv_type kv)
{
    calla_engine_info info;
    const time_t now = time(NULL);
    struct tm utc;
    *r = (bench_record){
        .large_pages = -1,
        .thermal = {.before_c = (double)NAN, .after_c = (double)NAN, .throttled = -1}};
    calla_engine_get_info(e, &info);
    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(r->date, sizeof r->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    machine_system(r->system, sizeof r->system);
    machine_name(r->machine, sizeof r->machine);
    r->memory_bytes = machine_bytes();
    put_base_name(r->model, sizeof r->model, info.model_dir);
    r->load = machine_load();
    (void)snprintf(r->backend, sizeof r->backend, "%s", info.backend);
    (void)snprintf(r->variant, sizeof r->variant, "%s", info.variant);
    (void)snprintf(r->kv, sizeof r->kv, "%s", kv == CALLA_KV_F32 ? "f32" : "bf16");
    r->synthetic = e->ck != NULL && synth_is(checkpoint_config(e->ck));
    r->n_threads = info.n_threads;
    r->chunk_tokens = info.chunk_tokens;
    r->file_bytes = info.weight_bytes;
    r->active_bytes = info.active_bytes;
    if (!machine_is_gpu(e)) {
        (void)snprintf(r->precision, sizeof r->precision, "%s", machine_precision(e));
    } else if (strcmp(info.backend, "simt") != 0) {
        const gpu_exec *ex = gpu_self_c(e->ex);
        gpu_limits lim;
        ex->dev->ops->limits(ex->dev, &lim);
        (void)snprintf(r->machine, sizeof r->machine, "%s", lim.name);
        r->memory_bytes = lim.total_bytes;
    }
}

void record_end(bench_record *r, const calla_engine *e)
{
    machine_memory(&r->memory);
    if (!machine_is_gpu(e)) {
        r->large_pages = machine_large_pages();
        return;
    }
    for (uint32_t i = 0; i < r->n_results; i++)
        if (r->results[i].memory > r->memory.device) r->memory.device = r->results[i].memory;
}

void record_deinit(bench_record *r)
{
    for (uint32_t i = 0; i < r->n_results; i++)
        mem_free(r->results[i].seconds);
    r->n_results = 0;
}

bench_result *record_add(bench_record *r, bench_result like, double *seconds, uint32_t n,
                         double tokens)
{
    double first, last;
    if (r->n_results == BENCH_RESULTS_MAX || n == 0) return NULL;
    bench_result *x = &r->results[r->n_results++];
    stats_sort(seconds, n);
    stats_median_interval(seconds, n, &first, &last);
    *x = like;
    x->rate = tokens / stats_median(seconds, n);
    x->slowest = tokens / seconds[n - 1];
    x->fastest = tokens / seconds[0];
    x->low = tokens / last;
    x->high = tokens / first;
    x->seconds = (double *)(void *)mem_memdup(seconds, n * sizeof *seconds); /* may fail: no list */
    x->n_seconds = x->seconds != NULL ? n : 0;
    return x;
}

void record_leave_out(bench_record *r, bench_left what, const char *fmt, ...)
{
    va_list args;
    if (r->n_left == BENCH_LEFT_MAX) return;
    bench_left *l = &r->left[r->n_left++];
    *l = what;
    va_start(args, fmt);
    (void)vsnprintf(l->why, sizeof l->why, fmt, args);
    va_end(args);
}
