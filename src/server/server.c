#include "server/server.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/scheduler.h"
#include "server/api.h"
#include "server/http.h"
#include "server/http_access.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/server_log.h"
#include "server/text.h"
#include "server/trace.h"

#define KEY_FILE_BYTES_MAX 65536u
#define ENDING_SECONDS     10.0 /* for aborted requests to end, for their answers to be sent */

struct server {
    server_options o;
    server_log *log;
    server_trace *trace;
    metrics *metrics;
    http_route *routes; /* ours, then the API's */
    http_server *http;
    calla_engine *engine;
    scheduler *sched;
    api_ctx *api;
    int wake[2]; /* a pipe: a request waits for the model; -1 without idle_unload_seconds */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Guarded by lock: */
    bool ready;        /* requests are answered, if need be after loading */
    bool loaded;       /* sched, api and engine are there */
    bool asleep;       /* they were, and come back when wanted */
    bool wanted;       /* by a request, which waits */
    bool closing;      /* nothing is loaded any more */
    uint32_t n_failed; /* tries to load again */
};

/* ---- Routes ------------------------------------------------------------------------------- */

static bool is_ready(server *s)
{
    pthread_mutex_lock(&s->lock);
    const bool ready = s->ready;
    pthread_mutex_unlock(&s->lock);
    return ready;
}

static void respond_health(http_request *req, bool must_be_ready)
{
    const bool ready = is_ready(req->user);
    strbuf body = {0};
    strbuf_printf(&body, "{\"status\":\"%s\",\"ready\":%s}",
                  ready || !must_be_ready ? "ok" : "not ready", ready ? "true" : "false");
    http_set_header(req, "Cache-Control", "no-store");
    http_respond_json(req, ready || !must_be_ready ? 200 : 503, &body);
}

static void handle_health(api_ctx *ctx, http_request *req)
{
    (void)ctx;
    respond_health(req, http_has_query(req, "ready"));
}

static void handle_ready(api_ctx *ctx, http_request *req)
{
    (void)ctx;
    respond_health(req, true);
}

static void handle_metrics(api_ctx *ctx, http_request *req)
{
    server *s = req->user;
    sched_stats stats;
    strbuf body = {0};
    (void)ctx;
    pthread_mutex_lock(&s->lock); /* it could go meanwhile */
    const bool loaded = s->loaded;
    if (loaded) scheduler_stats(s->sched, &stats);
    pthread_mutex_unlock(&s->lock);
    metrics_render(s->metrics, &body, loaded ? &stats : NULL,
                   http_server_n_connections(http_request_server(req)));
    http_respond(req, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static void handle_page(api_ctx *ctx, http_request *req)
{
    strbuf body = {0};
    (void)ctx;
    strbuf_append(&body, server_page, server_page_bytes);
    http_set_header(req, "Content-Security-Policy",
                    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                    "frame-ancestors 'none'");
    http_set_header(req, "Referrer-Policy", "no-referrer");
    http_set_header(req, "Cache-Control", "no-cache");
    http_respond(req, 200, "text/html; charset=utf-8", &body);
}

static calla_status make_routes(server *s, size_t *n_routes, calla_error *err)
{
    static const http_route own[] = {
        {"GET", "/health", handle_health, HTTP_OPEN | HTTP_NO_MODEL},
        {"GET", "/ready", handle_ready, HTTP_OPEN | HTTP_NO_MODEL},
        {"GET", "/metrics", handle_metrics, HTTP_NO_MODEL},
    };
    static const http_route page = {"GET", "/", handle_page, HTTP_NO_MODEL};
    const size_t n_own = sizeof own / sizeof *own;
    size_t n_api;
    const http_route *api = api_routes(&n_api);
    s->routes = mem_array(n_own + n_api + 1, sizeof *s->routes);
    if (!s->routes) return err_set(err, CALLA_ERR_MEMORY, "server: out of memory");
    memcpy(s->routes, own, sizeof own);
    memcpy(s->routes + n_own, api, n_api * sizeof *api);
    *n_routes = n_own + n_api;
    if (server_page_bytes > 0) s->routes[(*n_routes)++] = page;
    return CALLA_OK;
}

/* ---- Lists -------------------------------------------------------------------------------- */

/* Words of `text` between the bytes of `separators`, NULL at the end; they point into `text`, which
 * is cut up. NULL: out of memory. */
static const char **split(char *text, const char *separators)
{
    size_t n = 1;
    for (const char *p = text; *p; p++)
        n += strchr(separators, *p) != NULL;
    const char **list = mem_array(n + 1, sizeof *list);
    if (!list) return NULL;
    size_t i = 0;
    for (char *p = text; *p;) {
        p += strspn(p, separators);
        const size_t len = strcspn(p, separators);
        if (len == 0) break;
        list[i++] = p;
        p += len;
        if (*p) *p++ = '\0';
    }
    return list;
}

/* The keys of the file, in *text. */
static calla_status read_keys(server *s, char **text, const char ***keys, calla_error *err)
{
    const char *path = s->o.key_file;
    size_t n_bytes, n = 0;
    struct stat info;
    const calla_status st = file_read(path, KEY_FILE_BYTES_MAX, text, &n_bytes, err);
    if (st != CALLA_OK) return st;
    if (strlen(*text) != n_bytes)
        return err_set(err, CALLA_ERR_FORMAT, "%s: expected lines of text, found a NUL byte", path);
    const char **lines = split(*text, "\r\n");
    *keys = lines;
    if (!lines) return err_set(err, CALLA_ERR_MEMORY, "%s: out of memory", path);
    for (size_t i = 0; lines[i]; i++) {
        if (lines[i][0] == '#') continue;
        for (const char *p = lines[i]; *p; p++)
            if (*p <= ' ' || *p > '~')
                return err_set(err, CALLA_ERR_FORMAT,
                               "%s: expected a key of printable ASCII without spaces in line %zu",
                               path, i + 1);
        lines[n++] = lines[i];
    }
    lines[n] = NULL;
    if (n == 0) return err_set(err, CALLA_ERR_FORMAT, "%s: expected a key, found none", path);
    if (stat(path, &info) == 0 && (info.st_mode & 077) != 0)
        server_log_line(s->log, CALLA_LOG_WARN, "%s can be read by other users of this machine",
                        path);
    return CALLA_OK;
}

static calla_status read_list(const char *text, char **copy, const char ***list, calla_error *err)
{
    if (!text) return CALLA_OK;
    *copy = mem_strdup(text);
    *list = *copy ? split(*copy, ", ") : NULL;
    return *list ? CALLA_OK : err_set(err, CALLA_ERR_MEMORY, "server: out of memory");
}

/* ---- Create ------------------------------------------------------------------------------- */

/* A request waits until the thread that tends has loaded the model. */
static api_ctx *on_need(void *user, bool *failed)
{
    server *s = user;
    const char byte = 0;
    pthread_mutex_lock(&s->lock);
    const uint32_t n_failed = s->n_failed;
    if (s->asleep && !s->wanted && write(s->wake[1], &byte, 1) == 1) s->wanted = true;
    while (s->asleep && !s->closing && s->n_failed == n_failed)
        pthread_cond_wait(&s->changed, &s->lock);
    api_ctx *api = s->loaded ? s->api : NULL;
    *failed = s->asleep;
    pthread_mutex_unlock(&s->lock);
    return api;
}

static calla_status start_http(server *s, calla_error *err)
{
    char *text[3] = {NULL, NULL, NULL};
    const char **list[3] = {NULL, NULL, NULL};
    size_t n_routes = 0;
    calla_status st;
    if (s->o.key_file) TRY(read_keys(s, &text[0], &list[0], err));
    TRY(read_list(s->o.allow_hosts, &text[1], &list[1], err));
    TRY(read_list(s->o.cors_origins, &text[2], &list[2], err));
    for (const char **origin = list[2]; origin != NULL && *origin != NULL; origin++)
        if (!access_origin_valid(*origin)) {
            st = err_set(err, CALLA_ERR_ARGUMENT,
                         "--cors-origin: expected * or an origin like https://host[:port], without "
                         "a path, found '%.200s'",
                         *origin);
            goto fail;
        }
    TRY(make_routes(s, &n_routes, err));
    const http_options ho = {
        .routes = s->routes,
        .n_routes = n_routes,
        .user = s,
        .host = s->o.host,
        .port = s->o.port,
        .unix_socket = s->o.unix_socket,
        .keys = list[0],
        .allow_hosts = list[1],
        .cors_origins = list[2],
        .body_bytes_max = s->o.body_bytes_max,
        .connections_max = s->o.connections_max,
        .on_need = s->o.idle_unload_seconds > 0 ? on_need : NULL,
        .metrics = s->metrics,
        .log = s->log,
        .trace = s->trace,
    };
    TRY(http_server_create(&s->http, &ho, err));
fail:
    for (size_t i = 0; i < 3; i++) {
        mem_free(list[i]);
        mem_free(text[i]);
    }
    return st;
}

calla_status server_create(server **out, const server_options *options, calla_error *err)
{
    server *s = mem_alloc(sizeof *s);
    calla_status st;
    *out = NULL;
    if (!s) return err_set(err, CALLA_ERR_MEMORY, "server: out of memory");
    s->o = *options;
    s->wake[0] = s->wake[1] = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (options->idle_unload_seconds > 0 && pipe(s->wake) != 0) {
        st = err_set(err, CALLA_ERR_IO, "server: cannot make a pipe");
        goto fail;
    }
    const server_log_options lo = {options->log_fd, options->log_json, options->log_prompts,
                                   options->log_level};
    TRY(server_log_create(&s->log, &lo, err));
    TRY(metrics_create(&s->metrics, err));
    if (options->trace_dir) TRY(server_trace_create(&s->trace, options->trace_dir, err));
    TRY(start_http(s, err));
    *out = s;
    return CALLA_OK;
fail:
    server_destroy(s);
    return st;
}

/* ---- Load --------------------------------------------------------------------------------- */

static void on_engine_log(void *user, calla_log_level level, const char *line)
{
    server_log_line(user, level, "%s", line);
}

/* Plans from generous to frugal: what was not asked for gives way when memory does not suffice. */
static calla_status start_scheduler(server *s, uint32_t max_context, calla_error *err)
{
    static const struct {
        uint32_t n_parallel, n_ctx;
        uint64_t cache_bytes;
    } plans[] = {
        {SERVER_PARALLEL_DEFAULT, SERVER_CTX_DEFAULT, SERVER_CACHE_DEFAULT},
        {2, SERVER_CTX_DEFAULT, SERVER_CACHE_DEFAULT / 2},
        {2, SERVER_CTX_DEFAULT / 2, SERVER_CACHE_DEFAULT / 2},
        {1, SERVER_CTX_DEFAULT / 4, SERVER_CACHE_DEFAULT / 4},
        {1, SERVER_CTX_DEFAULT / 8, 0},
    };
    calla_status st = CALLA_ERR_MEMORY;
    if (s->o.n_ctx > max_context)
        return err_set(err, CALLA_ERR_ARGUMENT, "--ctx is %u, expected at most the model's %u",
                       s->o.n_ctx, max_context);
    for (size_t i = 0; i < sizeof plans / sizeof *plans && st == CALLA_ERR_MEMORY; i++) {
        uint32_t n_ctx = s->o.n_ctx;
        if (n_ctx == 0) n_ctx = plans[i].n_ctx < max_context ? plans[i].n_ctx : max_context;
        const scheduler_options so = {
            .n_parallel = s->o.n_parallel > 0 ? s->o.n_parallel : plans[i].n_parallel,
            .n_ctx = n_ctx,
            .queue_max = s->o.queue_max,
            .cache_ram_bytes = s->o.cache_ram_bytes != SERVER_CACHE_AUTO ? s->o.cache_ram_bytes
                                                                         : plans[i].cache_bytes,
        };
        st = scheduler_create(&s->sched, s->engine, &so, err);
        if (st == CALLA_OK)
            server_log_line(s->log, CALLA_LOG_INFO,
                            "%u sequences of %u tokens, %.0f MB for the prefix cache",
                            so.n_parallel, so.n_ctx, (double)so.cache_ram_bytes / 1e6);
    }
    return st;
}

calla_status server_load(server *s, calla_error *err)
{
    const calla_engine_options eo = {
        .model_dir = s->o.model_dir,
        .backend = s->o.backend,
        .n_threads = s->o.n_threads,
        .n_ctx = s->o.n_ctx,
        .pack_dir = s->o.pack_dir,
        .precision = s->o.precision,
        .progress = s->o.progress,
        .progress_user = s->o.progress_user,
        .log = on_engine_log,
        .log_user = s->log,
    };
    calla_engine_info info;
    calla_status st;
    TRY(calla_engine_create(&s->engine, &eo, err));
    calla_engine_get_info(s->engine, &info);
    TRY(start_scheduler(s, info.max_context, err));
    const api_options ao = {
        .engine = s->engine, .scheduler = s->sched, .model_name = s->o.model_name};
    TRY(api_create(&s->api, &ao, err));
    pthread_mutex_lock(&s->lock);
    s->ready = s->loaded = true;
    s->asleep = s->wanted = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    http_server_set_api(s->http, s->api);
    server_log_line(s->log, CALLA_LOG_INFO, "%s is ready at %s", s->o.model_dir, server_url(s));
fail:
    return st;
}

/* ---- Idle --------------------------------------------------------------------------------- */

static void free_model(server *s)
{
    api_destroy(s->api);
    scheduler_destroy(s->sched);
    calla_engine_destroy(s->engine);
    s->api = NULL;
    s->sched = NULL;
    s->engine = NULL;
}

/* True when no request has had the model for long; from then on they ask on_need() for it. */
static bool fall_asleep(server *s)
{
    pthread_mutex_lock(&s->lock);
    const bool idle = s->loaded && s->o.idle_unload_seconds > 0 &&
                      http_server_take_api(s->http, s->o.idle_unload_seconds) != NULL;
    if (idle) {
        s->loaded = false;
        s->asleep = true;
    }
    pthread_mutex_unlock(&s->lock);
    return idle;
}

static void unload(server *s)
{
    /* No request has the model; one whose client went may still run. */
    scheduler_abort(s->sched);
    (void)scheduler_drain(s->sched, ENDING_SECONDS);
    free_model(s);
    server_log_line(s->log, CALLA_LOG_INFO,
                    "the model is unloaded after %.0f s without a request; the next one loads it",
                    s->o.idle_unload_seconds);
}

static void load_again(server *s)
{
    calla_error err = {0};
    char bytes[16];
    (void)read(s->wake[0], bytes, sizeof bytes);
    if (server_load(s, &err) == CALLA_OK) return;
    free_model(s);
    server_log_line(s->log, CALLA_LOG_ERROR, "the model cannot be loaded again: %s", err.message);
    pthread_mutex_lock(&s->lock);
    s->n_failed++;
    s->wanted = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void server_tend(server *s, bool *loaded)
{
    pthread_mutex_lock(&s->lock);
    const bool wanted = s->wanted;
    pthread_mutex_unlock(&s->lock);
    if (wanted)
        load_again(s);
    else if (fall_asleep(s))
        unload(s);
    pthread_mutex_lock(&s->lock);
    *loaded = s->loaded;
    pthread_mutex_unlock(&s->lock);
}

int server_wake_fd(const server *s)
{
    return s->wake[0];
}

const char *server_url(const server *s)
{
    return http_server_url(s->http);
}

/* ---- Stop --------------------------------------------------------------------------------- */

/* True when all answers are sent within so many seconds. */
static bool wait_answers(const server *s, double seconds)
{
    const struct timespec tick = {0, 5000000};
    const double end = time_now() + seconds;
    while (http_server_n_active(s->http) > 0) {
        if (time_now() >= end) return false;
        (void)nanosleep(&tick, NULL);
    }
    return true;
}

bool server_drain(server *s, double seconds)
{
    const double end = time_now() + seconds;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    http_server_quiesce(s->http);
    const uint32_t n = http_server_n_active(s->http);
    if (n > 0)
        server_log_line(s->log, CALLA_LOG_INFO, "shutting down: %u requests have %.0f s to end", n,
                        seconds);
    bool all = !s->sched || scheduler_drain(s->sched, seconds);
    const double left = end - time_now();
    all = all && wait_answers(s, left > 1.0 ? left : 1.0);
    if (all) return true;
    server_log_line(s->log, CALLA_LOG_WARN, "shutting down: %u requests are cut off",
                    http_server_n_active(s->http));
    if (s->sched) {
        scheduler_abort(s->sched);
        (void)scheduler_drain(s->sched, ENDING_SECONDS);
    }
    if (wait_answers(s, ENDING_SECONDS)) return false;
    http_server_cancel(s->http); /* who does not read, or waits for something else */
    (void)wait_answers(s, ENDING_SECONDS);
    return false;
}

void server_destroy(server *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->ready = s->loaded = false;
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    http_server_destroy(s->http);
    free_model(s);
    for (size_t i = 0; i < 2; i++)
        if (s->wake[i] >= 0) (void)close(s->wake[i]);
    metrics_destroy(s->metrics);
    server_trace_destroy(s->trace);
    server_log_destroy(s->log);
    mem_free(s->routes);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
