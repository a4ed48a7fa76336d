#include "server/metrics.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <mach/mach.h>
#endif

#define N_BOUNDS 14u

typedef struct histogram {
    const char *name, *help;
    const double *bounds;          /* [N_BOUNDS] seconds, ascending */
    uint64_t counts[N_BOUNDS + 1]; /* the last: above all bounds */
    double sum;
} histogram;

static const double bounds_long[N_BOUNDS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                             1,     2.5,  5,     10,   30,  120,  600};
static const double bounds_token[N_BOUNDS] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03,
                                              0.05,   0.075, 0.1,   0.2,   0.5,  1,    5};

struct metrics {
    pthread_mutex_t lock; /* guards all below */
    struct {
        const char *route;
        unsigned status;
        uint64_t n;
    } series[METRICS_SERIES_MAX];
    size_t n_series;
    uint64_t n_gone;
    histogram request, first, next;
};

calla_status metrics_create(metrics **out, calla_error *err)
{
    metrics *m = mem_alloc(sizeof *m);
    *out = NULL;
    if (!m) return err_set(err, CALLA_ERR_MEMORY, "metrics: out of memory");
    pthread_mutex_init(&m->lock, NULL);
    m->request = (histogram){.name = "calla_request_seconds",
                             .help = "Headers read to answer sent.",
                             .bounds = bounds_long};
    m->first = (histogram){.name = "calla_time_to_first_token_seconds",
                           .help = "Headers read to first token.",
                           .bounds = bounds_long};
    m->next = (histogram){.name = "calla_inter_token_seconds",
                          .help = "Token to token within a request.",
                          .bounds = bounds_token};
    *out = m;
    return CALLA_OK;
}

void metrics_destroy(metrics *m)
{
    if (!m) return;
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

static void observe(histogram *h, double seconds)
{
    size_t i = 0;
    while (i < N_BOUNDS && seconds > h->bounds[i])
        i++;
    h->counts[i]++;
    h->sum += seconds;
}

void metrics_request(metrics *m, const request_record *r)
{
    pthread_mutex_lock(&m->lock);
    size_t i = 0;
    while (i < m->n_series &&
           (strcmp(m->series[i].route, r->route) != 0 || m->series[i].status != r->status))
        i++;
    if (i < METRICS_SERIES_MAX) {
        if (i == m->n_series) {
            m->series[i].route = r->route;
            m->series[i].status = r->status;
            m->n_series++;
        }
        m->series[i].n++;
    }
    m->n_gone += r->gone;
    observe(&m->request, r->seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_first_token(metrics *m, double seconds)
{
    pthread_mutex_lock(&m->lock);
    observe(&m->first, seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_next_token(metrics *m, double seconds)
{
    pthread_mutex_lock(&m->lock);
    observe(&m->next, seconds);
    pthread_mutex_unlock(&m->lock);
}

uint64_t metrics_resident_bytes(void)
{
#if defined(__APPLE__)
    mach_task_basic_info_data_t info;
    mach_msg_type_number_t n = MACH_TASK_BASIC_INFO_COUNT;
    if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &n) != KERN_SUCCESS)
        return 0;
    return info.resident_size;
#else
    uint64_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%*u %" SCNu64, &pages) != 1) pages = 0; /* NOLINT(cert-err34-c) */
    (void)fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
#endif
}

static void head(strbuf *out, const char *name, const char *type, const char *help)
{
    strbuf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void number(strbuf *out, const char *name, const char *type, const char *help, uint64_t v)
{
    head(out, name, type, help);
    strbuf_printf(out, "%s %" PRIu64 "\n", name, v);
}

static void render_histogram(strbuf *out, const histogram *h)
{
    uint64_t n = 0;
    head(out, h->name, "histogram", h->help);
    for (size_t i = 0; i < N_BOUNDS; i++) {
        n += h->counts[i];
        strbuf_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", h->name, h->bounds[i], n);
    }
    n += h->counts[N_BOUNDS];
    strbuf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", h->name, n);
    strbuf_printf(out, "%s_sum %.9g\n%s_count %" PRIu64 "\n", h->name, h->sum, h->name, n);
}

static void render_scheduler(strbuf *out, const sched_stats *s)
{
    number(out, "calla_tokens_prefilled_total", "counter", "Prompt tokens computed.",
           s->n_tokens_prefilled);
    number(out, "calla_tokens_cached_total", "counter", "Prompt tokens taken from the cache.",
           s->n_tokens_cached);
    number(out, "calla_tokens_generated_total", "counter", "Tokens generated.",
           s->n_tokens_generated);
    number(out, "calla_steps_total", "counter", "Calls of the executor.", s->n_steps);
    number(out, "calla_queue_length", "gauge", "Requests that wait for a sequence.", s->n_queued);
    number(out, "calla_queue_limit", "gauge", "Requests that may wait.", s->queue_max);
    number(out, "calla_running", "gauge", "Requests that have a sequence.", s->n_running);
    number(out, "calla_prefilling", "gauge", "Of them, those with prompt left.", s->n_prefilling);
    number(out, "calla_parallel_limit", "gauge", "Sequences that run together.", s->n_parallel);
    number(out, "calla_context_tokens", "gauge", "Tokens that a sequence can hold.", s->n_ctx);
    head(out, "calla_generations_total", "counter", "Requests given to the scheduler, by end.");
    strbuf_printf(out,
                  "calla_generations_total{end=\"finished\"} %" PRIu64 "\n"
                  "calla_generations_total{end=\"cancelled\"} %" PRIu64 "\n"
                  "calla_generations_total{end=\"failed\"} %" PRIu64 "\n"
                  "calla_generations_total{end=\"refused\"} %" PRIu64 "\n",
                  s->n_finished, s->n_cancelled, s->n_failed, s->n_refused);
    number(out, "calla_cache_bytes", "gauge", "Bytes of the prefix cache in use.", s->cache_bytes);
    number(out, "calla_cache_limit_bytes", "gauge", "Bytes it may use.", s->cache_limit_bytes);
    number(out, "calla_cache_timelines", "gauge", "Sequences kept.", s->n_timelines);
    number(out, "calla_cache_states", "gauge", "Recurrent states kept.", s->n_states);
    number(out, "calla_cache_hits_total", "counter", "Prompts with a cached part.", s->n_hits);
    number(out, "calla_cache_misses_total", "counter", "Prompts without one.", s->n_misses);
    number(out, "calla_cache_evicted_timelines_total", "counter", "Sequences given up.",
           s->n_evicted_timelines);
    number(out, "calla_cache_evicted_states_total", "counter", "States given up.",
           s->n_evicted_states);
    number(out, "calla_planned_bytes", "gauge", "Memory reserved for sequences and cache.",
           s->planned_bytes);
}

void metrics_render(metrics *m, strbuf *out, const sched_stats *sched, uint32_t n_connections)
{
    pthread_mutex_lock(&m->lock);
    head(out, "calla_requests_total", "counter", "Requests by route and status.");
    for (size_t i = 0; i < m->n_series; i++)
        strbuf_printf(out, "calla_requests_total{route=\"%s\",status=\"%u\"} %" PRIu64 "\n",
                      m->series[i].route, m->series[i].status, m->series[i].n);
    number(out, "calla_clients_gone_total", "counter", "Requests whose client left early.",
           m->n_gone);
    render_histogram(out, &m->request);
    render_histogram(out, &m->first);
    render_histogram(out, &m->next);
    pthread_mutex_unlock(&m->lock);
    number(out, "calla_connections", "gauge", "Open connections.", n_connections);
    number(out, "calla_ready", "gauge", "1 when the model is loaded.", sched != NULL);
    number(out, "process_resident_memory_bytes", "gauge", "Resident memory.",
           metrics_resident_bytes());
    if (sched) render_scheduler(out, sched);
}
