/* http.c - the server: libmicrohttpd's daemon and its callbacks.
 *
 * One thread a connection (MHD_USE_THREAD_PER_CONNECTION): handlers may block until the scheduler
 * has answered, and nothing must be suspended and resumed. The price is a stack a connection, of
 * which there are at most some hundred. libmicrohttpd's own time limit is not used: it counts the
 * time that a handler takes; the monitor (http_monitor.c) keeps all deadlines.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/pool.h"
#include "server/http_listen.h"
#include "server/http_priv.h"
#include "server/server_log.h"
#include "server/text.h"

#define BODY_BYTES_DEFAULT  (UINT64_C(32) << 20)
#define CONNECTIONS_DEFAULT 256u
#define SLOTS_EXTRA         64u /* connections over the limit, which are told so */
#define CONN_MEMORY_BYTES   65536u
#define THREAD_STACK_BYTES  (UINT64_C(2) << 20)

/* ---- Callbacks of libmicrohttpd ------------------------------------------------------------ */

static void on_connection(void *cls, struct MHD_Connection *c, void **slot,
                          enum MHD_ConnectionNotificationCode code)
{
    http_server *s = cls;
    http_conn *conn = *slot;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (!conn) return;
        pthread_mutex_lock(&s->lock);
        *conn = (http_conn){.fd = -1, .serial = conn->serial + 1};
        s->n_connections--;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_conns && !*slot; i++)
        if (s->conns[i].phase == CONN_FREE) *slot = conn = &s->conns[i];
    if (conn) {
        conn->fd = info->connect_fd;
        conn->phase = CONN_HEADERS;
        conn->serial++;
        conn->deadline = time_now() + s->o.header_seconds;
        if (s->n_connections++ >= s->o.connections_max) {
            http_reply_raw(NULL, conn->fd, 503, "too many connections");
            conn->phase = CONN_CLOSED;
            conn->deadline = time_now() + HTTP_LINGER_SECONDS;
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (conn)
        http_monitor_wake(s);
    else
        (void)shutdown(info->connect_fd, SHUT_RDWR);
}

static http_req *new_request(http_server *s, struct MHD_Connection *c, const char *method,
                             const char *path)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    http_conn *conn = info ? info->socket_context : NULL;
    if (!conn) return NULL;
    pthread_mutex_lock(&s->lock);
    const bool closed = conn->phase == CONN_CLOSED;
    pthread_mutex_unlock(&s->lock);
    if (closed) return NULL;
    http_req *r = http_req_create(s, c, conn, method, path);
    if (!r) return NULL;
    pthread_mutex_lock(&s->lock);
    conn->serial++;
    conn->req = r;
    conn->pending = false;
    pthread_mutex_unlock(&s->lock);
    return r;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **req_cls)
{
    http_server *s = cls;
    http_req *r = *req_cls;
    if (!r) {
        r = new_request(s, c, method, url);
        *req_cls = r;
        return r ? http_req_begin(r, version) : MHD_NO;
    }
    if (*n_data > 0) {
        const enum MHD_Result rc = http_req_body(r, data, *n_data);
        *n_data = 0;
        return rc;
    }
    return http_req_answer(r);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **req_cls,
                         enum MHD_RequestTerminationCode why)
{
    http_server *s = cls;
    http_req *r = *req_cls;
    (void)c;
    *req_cls = NULL;
    if (!r) return;
    pthread_mutex_lock(&s->lock);
    if (why == MHD_REQUEST_TERMINATED_COMPLETED_OK) r->complete = true;
    const bool complete = r->complete;
    s->n_active -= r->active;
    s->n_model -= r->needs_model;
    if (r->needs_model) s->last_model = time_now();
    http_conn *conn = r->conn;
    conn->req = NULL;
    conn->serial++;
    if (conn->phase != CONN_CLOSED) {
        conn->phase = CONN_IDLE;
        conn->deadline = time_now() + s->o.idle_seconds;
    }
    pthread_mutex_unlock(&s->lock);
    http_monitor_wake(s);
    if (!complete) http_req_set_gone(r);
    http_req_unref(r, false);
}

static void on_log(void *cls, const char *fmt, va_list args) ATTR_PRINTF(2, 0);
static void on_log(void *cls, const char *fmt, va_list args)
{
    http_server *s = cls;
    char line[256];
    (void)vsnprintf(line, sizeof line, fmt, args);
    const size_t n = strlen(line);
    if (n > 0 && line[n - 1] == '\n') line[n - 1] = '\0';
    if (s->o.log) server_log_line(s->o.log, CALLA_LOG_DEBUG, "http: %s", line);
}

/* ---- Create ------------------------------------------------------------------------------- */

static char **copy_list(const char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    char **copy = mem_array(n + 1, sizeof *copy);
    for (size_t i = 0; copy && i < n; i++)
        if (!(copy[i] = mem_strdup(list[i]))) {
            while (i > 0)
                mem_free(copy[--i]);
            mem_free(copy);
            return NULL;
        }
    return copy;
}

static void free_list(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        mem_free(list[i]);
    mem_free(list);
}

static uint32_t or_default(uint32_t v, uint32_t def)
{
    return v > 0 ? v : def;
}

static calla_status copy_options(http_server *s, const http_options *o, calla_error *err)
{
    s->o = *o;
    if (s->o.body_bytes_max == 0) s->o.body_bytes_max = BODY_BYTES_DEFAULT;
    s->o.connections_max = or_default(o->connections_max, CONNECTIONS_DEFAULT);
    s->o.header_seconds = or_default(o->header_seconds, 10);
    s->o.body_seconds = or_default(o->body_seconds, 60);
    s->o.idle_seconds = or_default(o->idle_seconds, 75);
    s->o.comment_seconds = or_default(o->comment_seconds, 10);
    s->n_conns = s->o.connections_max + SLOTS_EXTRA;
    s->conns = mem_array(s->n_conns, sizeof *s->conns);
    s->keys = copy_list(o->keys);
    s->allow_hosts = copy_list(o->allow_hosts);
    s->cors_origins = copy_list(o->cors_origins);
    s->host = mem_strdup(o->host ? o->host : "127.0.0.1");
    s->unix_path = o->unix_socket ? mem_strdup(o->unix_socket) : NULL;
    if (!s->conns || !s->keys || !s->allow_hosts || !s->cors_origins || !s->host ||
        (o->unix_socket && !s->unix_path))
        return err_set(err, CALLA_ERR_MEMORY, "http: out of memory");
    return CALLA_OK;
}

static calla_status open_socket(http_server *s, calla_error *err)
{
    strbuf url = {0};
    calla_status st;
    if (s->unix_path) {
        st = listen_unix(s->unix_path, &s->listen_fd, err);
        if (st == CALLA_OK) s->made_socket = true;
        strbuf_printf(&url, "unix:%s", s->unix_path);
    } else {
        st = listen_tcp(s->host, s->o.port, &s->listen_fd, &s->port, err);
        const bool v6 = strchr(s->host, ':') != NULL;
        strbuf_printf(&url, v6 ? "http://[%s]:%u" : "http://%s:%u", s->host, (unsigned)s->port);
    }
    s->url = url.data;
    if (st == CALLA_OK && url.failed) st = err_set(err, CALLA_ERR_MEMORY, "http: out of memory");
    return st;
}

static calla_status start_daemon(http_server *s, calla_error *err)
{
    const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                           MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    /* clang-format off */
    s->mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s,
        MHD_OPTION_EXTERNAL_LOGGER, on_log, s,
        MHD_OPTION_LISTEN_SOCKET, (MHD_socket)s->listen_fd,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->n_conns,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONN_MEMORY_BYTES,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK_BYTES,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_END);
    /* clang-format on */
    if (!s->mhd) return err_set(err, CALLA_ERR_IO, "http: libmicrohttpd does not start");
    return CALLA_OK;
}

calla_status http_server_create(http_server **out, const http_options *options, calla_error *err)
{
    http_server *s = mem_alloc(sizeof *s);
    calla_status st;
    *out = NULL;
    if (!s) return err_set(err, CALLA_ERR_MEMORY, "http: out of memory");
    s->listen_fd = s->wake[0] = s->wake[1] = -1;
    s->epoch = (uint32_t)text_now(); /* ids differ from those of an earlier process */
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->none, NULL);
    TRY(copy_options(s, options, err));
    TRY(open_socket(s, err));
    TRY(http_monitor_start(s, err));
    TRY(start_daemon(s, err));
    *out = s;
    return CALLA_OK;
fail:
    http_server_destroy(s);
    return st;
}

/* ---- Stop --------------------------------------------------------------------------------- */

void http_server_quiesce(http_server *s)
{
    if (atomic_exchange(&s->quiet, true)) return;
    (void)MHD_quiesce_daemon(s->mhd);
    (void)shutdown(s->listen_fd, SHUT_RDWR); /* the kernel takes no more either */
    if (s->made_socket) (void)unlink(s->unix_path);
    s->made_socket = false;
    http_monitor_wake(s);
}

void http_server_cancel(http_server *s)
{
    for (size_t i = 0; i < s->n_conns; i++) {
        pthread_mutex_lock(&s->lock);
        http_req *r = s->conns[i].req;
        if (r) http_req_ref(r);
        pthread_mutex_unlock(&s->lock);
        if (!r) continue;
        http_req_set_gone(r);
        http_req_unref(r, false);
    }
}

void http_server_destroy(http_server *s)
{
    if (!s) return;
    if (s->mhd) {
        http_server_quiesce(s);
        http_server_cancel(s);
        MHD_stop_daemon(s->mhd);
        pthread_mutex_lock(&s->lock);
        while (s->n_requests > 0)
            pthread_cond_wait(&s->none, &s->lock);
        pthread_mutex_unlock(&s->lock);
    }
    http_monitor_stop(s);
    if (s->listen_fd >= 0) (void)close(s->listen_fd);
    if (s->made_socket) (void)unlink(s->unix_path);
    pthread_cond_destroy(&s->none);
    pthread_mutex_destroy(&s->lock);
    free_list(s->keys);
    free_list(s->allow_hosts);
    free_list(s->cors_origins);
    mem_free(s->conns);
    mem_free(s->host);
    mem_free(s->unix_path);
    mem_free(s->url);
    mem_free(s);
}

/* ---- State -------------------------------------------------------------------------------- */

void http_server_set_api(http_server *s, api_ctx *ctx)
{
    pthread_mutex_lock(&s->lock);
    s->last_model = time_now();
    atomic_store(&s->api, ctx);
    pthread_mutex_unlock(&s->lock);
}

api_ctx *http_server_take_api(http_server *s, double idle_seconds)
{
    api_ctx *ctx = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->n_model == 0 && time_now() - s->last_model >= idle_seconds)
        ctx = atomic_exchange(&s->api, NULL);
    pthread_mutex_unlock(&s->lock);
    return ctx;
}

static uint32_t read_count(const http_server *s, const uint32_t *count)
{
    pthread_mutex_t *lock = &((http_server *)(uintptr_t)s)->lock;
    pthread_mutex_lock(lock);
    const uint32_t n = *count;
    pthread_mutex_unlock(lock);
    return n;
}

uint32_t http_server_n_active(const http_server *s)
{
    return read_count(s, &s->n_active);
}

uint32_t http_server_n_connections(const http_server *s)
{
    return read_count(s, &s->n_connections);
}

uint16_t http_server_port(const http_server *s)
{
    return s->port;
}

const char *http_server_url(const http_server *s)
{
    return s->url;
}
