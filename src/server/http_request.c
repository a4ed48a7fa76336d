/* http_request.c - one request, from its headers to its record. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/pool.h"
#include "server/http_access.h"
#include "server/http_priv.h"
#include "server/metrics.h"
#include "server/server_log.h"
#include "server/text.h"
#include "server/trace.h"

#define PATH_BYTES_MAX  2048u
#define DRAIN_BYTES_MAX (UINT64_C(64) << 20) /* of a body that is too large: see drain() */
#define DRAIN_SECONDS   2.0

/* ---- Life --------------------------------------------------------------------------------- */

/* "/path", or all of it when it is nothing else; from a target in absolute form (RFC 9112, 3.2.2)
 * also the authority, which is checked in place of Host. False: out of memory. */
static bool split_target(http_req *r, const char *target)
{
    const size_t n_scheme = strncasecmp(target, "http://", 7) == 0    ? 7
                            : strncasecmp(target, "https://", 8) == 0 ? 8
                                                                      : 0;
    const char *path = target;
    if (n_scheme > 0) {
        path += n_scheme + strcspn(target + n_scheme, "/");
        r->authority = mem_strdup(target + n_scheme);
        if (!r->authority) return false;
        r->authority[strcspn(r->authority, "/")] = '\0';
    }
    r->path = mem_strdup(*path ? path : "/");
    return r->path != NULL;
}

http_req *http_req_create(http_server *s, struct MHD_Connection *c, http_conn *conn,
                          const char *method, const char *path)
{
    http_req *r = mem_alloc(sizeof *r);
    if (!r) return NULL;
    if (!split_target(r, path)) {
        mem_free(r->authority);
        mem_free(r);
        return NULL;
    }
    r->server = s;
    r->mhd = c;
    r->conn = conn;
    r->unix_time = text_now();
    r->body.max = s->o.body_bytes_max + 1; /* and the NUL */
    r->first_token = r->last_token = -1.0;
    (void)snprintf(r->method, sizeof r->method, "%s", method);
    const uint64_t id = atomic_fetch_add(&s->next_id, 1) + 1;
    (void)snprintf(r->id_text, sizeof r->id_text, "req_%08" PRIx32 "%06" PRIx64, s->epoch, id);
    r->pub = (http_request){.id = id,
                            .id_text = r->id_text,
                            .method = strcmp(r->method, "HEAD") == 0 ? "GET" : r->method,
                            .path = r->path,
                            .tail = "",
                            .body = "",
                            .anthropic = strncmp(r->path, "/v1/messages", 12) == 0,
                            .started = time_now(),
                            .user = s->o.user};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->cond, NULL);
    r->n_refs = 1;
    pthread_mutex_lock(&s->lock);
    s->n_requests++;
    pthread_mutex_unlock(&s->lock);
    return r;
}

static void req_free(http_req *r)
{
    http_server *s = r->server;
    if (r->response) MHD_destroy_response(r->response);
    for (size_t i = 0; i < r->n_headers; i++) {
        mem_free(r->headers[i].name);
        mem_free(r->headers[i].value);
    }
    atomic_fetch_sub(&s->n_bodies, r->n_bodies);
    strbuf_deinit(&r->body);
    strbuf_deinit(&r->queue);
    strbuf_deinit(&r->answer);
    mem_free(r->path);
    mem_free(r->authority);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->cond);
    mem_free(r);
    pthread_mutex_lock(&s->lock);
    if (--s->n_requests == 0) pthread_cond_broadcast(&s->none);
    pthread_mutex_unlock(&s->lock);
}

void http_req_finish(http_req *r)
{
    const http_options *o = &r->server->o;
    const request_record record = {
        .id = r->id_text,
        .method = r->method,
        .path = r->path,
        .route = r->route ? r->route->path : "other",
        .status = r->status,
        .stream = r->streaming,
        .gone = !r->complete,
        .unix_time = r->unix_time,
        .seconds = time_now() - r->pub.started,
        .ttft_seconds = r->first_token < 0.0 ? -1.0 : r->first_token - r->pub.started,
        .usage = r->has_usage ? &r->usage : NULL,
        .body = r->pub.body,
        .n_body = r->pub.n_body,
        .answer = o->trace ? r->answer.data : NULL,
        .n_answer = r->answer.len,
    };
    if (o->metrics) metrics_request(o->metrics, &record);
    if (o->log) server_log_request(o->log, &record);
    calla_error err;
    if (o->trace && server_trace_write(o->trace, &record, &err) != CALLA_OK && o->log)
        server_log_line(o->log, CALLA_LOG_WARN, "trace: %s", err.message);
    req_free(r);
}

void http_req_ref(http_req *r)
{
    pthread_mutex_lock(&r->lock);
    r->n_refs++;
    pthread_mutex_unlock(&r->lock);
}

void http_req_unref(http_req *r, bool producer)
{
    http_server *s = r->server;
    pthread_mutex_lock(&r->lock);
    const bool last = --r->n_refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last) return;
    if (!producer) {
        http_req_finish(r);
        return;
    }
    pthread_mutex_lock(&s->lock);
    r->next_finished = s->finished;
    s->finished = r;
    pthread_mutex_unlock(&s->lock);
    http_monitor_wake(s);
}

/* ---- Headers ------------------------------------------------------------------------------ */

const char *http_header(const http_request *req, const char *name)
{
    const http_req *r = (const http_req *)req;
    return MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, name);
}

const char *http_query(const http_request *req, const char *name)
{
    const http_req *r = (const http_req *)req;
    return MHD_lookup_connection_value(r->mhd, MHD_GET_ARGUMENT_KIND, name);
}

const http_server *http_request_server(const http_request *req)
{
    return ((const http_req *)req)->server;
}

struct find {
    const char *name;
    bool found;
};

static enum MHD_Result find_name(void *cls, enum MHD_ValueKind kind, const char *key,
                                 const char *value)
{
    struct find *f = cls;
    (void)kind;
    (void)value;
    f->found = strcmp(key, f->name) == 0;
    return f->found ? MHD_NO : MHD_YES;
}

bool http_has_query(const http_request *req, const char *name)
{
    const http_req *r = (const http_req *)req;
    struct find f = {.name = name};
    (void)MHD_get_connection_values(r->mhd, MHD_GET_ARGUMENT_KIND, find_name, &f);
    return f.found;
}

static enum MHD_Result add_size(void *cls, enum MHD_ValueKind kind, const char *key,
                                const char *value)
{
    size_t *n = cls;
    (void)kind;
    *n += strlen(key) + (value ? strlen(value) : 0) + 4;
    return MHD_YES;
}

static bool is_header_list(const char *s)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
    return strspn(s, ok) == strlen(s);
}

static bool path_matches(http_req *r, const http_route *route)
{
    const size_t n = strlen(route->path);
    if (n > 0 && route->path[n - 1] == '*') {
        if (strncmp(r->path, route->path, n - 1) != 0) return false;
        r->pub.tail = r->path + n - 1;
        return true;
    }
    return strcmp(r->path, route->path) == 0;
}

/* The route, or NULL with the methods that the path has in *allow ("" : no such path). */
static const http_route *find_route(http_req *r, strbuf *allow)
{
    for (size_t i = 0; i < r->server->o.n_routes; i++) {
        const http_route *route = &r->server->o.routes[i];
        if (!path_matches(r, route)) continue;
        if (strcmp(route->method, r->pub.method) == 0) return route;
        if (allow->len > 0) strbuf_puts(allow, ", ");
        strbuf_puts(allow, strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method);
    }
    r->pub.tail = "";
    return NULL;
}

static void refuse(http_req *r, unsigned status, const char *code, const char *fmt, ...)
    ATTR_PRINTF(4, 5);
static void refuse(http_req *r, unsigned status, const char *code, const char *fmt, ...)
{
    char message[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    http_respond_error(&r->pub, &(http_error){.status = status, .code = code}, "%s", message);
    r->refused = true;
}

static bool check_size(http_req *r)
{
    size_t n = 0;
    (void)MHD_get_connection_values(r->mhd, MHD_HEADER_KIND, add_size, &n);
    if (n > HTTP_HEADER_BYTES_MAX)
        refuse(r, 431, NULL, "headers: expected at most %u bytes, found %zu", HTTP_HEADER_BYTES_MAX,
               n);
    else if (strlen(r->path) > PATH_BYTES_MAX)
        refuse(r, 414, NULL, "path: expected at most %u bytes, found %zu", PATH_BYTES_MAX,
               strlen(r->path));
    return !r->refused;
}

/* Host and Origin; answers a preflight. */
static bool check_origin(http_req *r)
{
    const http_server *s = r->server;
    const char *origin = http_header(&r->pub, "Origin");
    const char *host = r->authority ? r->authority : http_header(&r->pub, "Host");
    if (!s->unix_path && !access_host(host, s->host, (const char *const *)s->allow_hosts)) {
        refuse(r, 403, "host_not_allowed",
               "the Host '%.200s' is not a name of this server; --allow-host adds names", host);
        return false;
    }
    const bool listed =
        origin && access_origin_listed(origin, (const char *const *)s->cors_origins);
    if (listed) http_reply_cors(r, origin);
    if (origin && !listed && !access_origin_same(origin, host)) {
        refuse(r, 403, "origin_not_allowed",
               "pages of '%.200s' may not use this server; --cors-origin allows them", origin);
        return false;
    }
    if (strcmp(r->method, "OPTIONS") != 0) return true;
    strbuf none = {0};
    const char *asked = http_header(&r->pub, "Access-Control-Request-Headers");
    if (listed) {
        http_set_header(&r->pub, "Access-Control-Allow-Methods", "GET, POST");
        if (asked && is_header_list(asked))
            http_set_header(&r->pub, "Access-Control-Allow-Headers", asked);
        if (http_header(&r->pub, "Access-Control-Request-Private-Network"))
            http_set_header(&r->pub, "Access-Control-Allow-Private-Network", "true");
        http_set_header(&r->pub, "Access-Control-Max-Age", "600");
    }
    http_respond(&r->pub, 204, NULL, &none);
    r->refused = true;
    return false;
}

static bool check_key(http_req *r)
{
    const http_server *s = r->server;
    if (r->route && (r->route->flags & HTTP_OPEN)) return true;
    if (access_key(http_header(&r->pub, "Authorization"), http_header(&r->pub, "x-api-key"),
                   (const char *const *)s->keys))
        return true;
    refuse(r, 401, "invalid_api_key",
           "this server asks for a key: Authorization: Bearer KEY, or x-api-key: KEY");
    /* A browser that opens a page asks its user for it, and sends it along from then on. */
    const bool page = strcmp(r->pub.method, "GET") == 0 && strcmp(r->path, "/") == 0;
    http_set_header(&r->pub, "WWW-Authenticate",
                    page ? "Basic realm=\"calla: the key is the password\"" : "Bearer");
    return false;
}

static bool is_coded(const char *content_encoding)
{
    return content_encoding && strcasecmp(content_encoding, "identity") != 0;
}

/* All that can be said before the body. */
static void check_head(http_req *r)
{
    strbuf allow = {0};
    r->route = find_route(r, &allow);
    if (r->route) r->pub.anthropic = (r->route->flags & HTTP_ANTHROPIC) != 0;
    const bool open = r->route && (r->route->flags & HTTP_OPEN);
    if (!check_size(r) || (!open && !check_origin(r)) || !check_key(r)) {
        /* answered */
    } else if (!r->route && allow.len > 0) {
        refuse(r, 405, "method_not_allowed", "%s: expected %s, found %s", r->path, allow.data,
               r->method);
        http_set_header(&r->pub, "Allow", allow.data);
    } else if (!r->route) {
        refuse(r, 404, "not_found", "there is no %s", r->path);
    } else if (strcmp(r->pub.method, "POST") == 0 &&
               !access_is_json(http_header(&r->pub, "Content-Type"))) {
        refuse(r, 415, NULL, "Content-Type: expected application/json, found '%.100s'",
               http_header(&r->pub, "Content-Type"));
    } else if (is_coded(http_header(&r->pub, "Content-Encoding"))) {
        refuse(r, 415, NULL, "Content-Encoding: expected none, found '%.100s'",
               http_header(&r->pub, "Content-Encoding"));
    } else if (atomic_load(&r->server->quiet) && !open) {
        refuse(r, 503, "shutting_down", "the server is shutting down");
    }
    strbuf_deinit(&allow);
}

/* ---- Body --------------------------------------------------------------------------------- */

/* Reads for a while what a client still sends: closing with unread bytes would reset the
 * connection, and the client might lose the answer that says why. */
static void drain(int fd)
{
    char bytes[16384];
    uint64_t n = 0;
    const double end = time_now() + DRAIN_SECONDS;
    while (n < DRAIN_BYTES_MAX) {
        const double left = end - time_now();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (left <= 0.0 || poll(&p, 1, (int)(left * 1e3) + 1) <= 0) return;
        const ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
        if (got > 0) n += (uint64_t)got;
    }
}

/* Answers by hand and closes: libmicrohttpd cannot answer in the middle of a body, and must not
 * read on behind one whose end is uncertain. */
static enum MHD_Result cut(http_req *r, unsigned status, const char *message)
{
    http_server *s = r->server;
    pthread_mutex_lock(&s->lock);
    const bool first = r->conn->phase != CONN_CLOSED;
    if (first) {
        r->status = status;
        r->complete = true;
        http_reply_raw(r, r->conn->fd, status, message);
        r->conn->phase = CONN_CLOSED;
        r->conn->deadline = 0.0;
    }
    pthread_mutex_unlock(&s->lock);
    if (first) drain(r->conn->fd);
    return MHD_NO;
}

static enum MHD_Result too_large(http_req *r)
{
    char text[128];
    (void)snprintf(text, sizeof text, "body: expected at most %" PRIu64 " bytes, found more",
                   r->server->o.body_bytes_max);
    return cut(r, 413, text);
}

/* What http_req_begin wants to know of the headers. */
typedef struct framing {
    unsigned n_host, n_length, n_coding;
    bool malformed; /* a name that is no name, a value with a line's end or NUL in it */
    const char *coding;
} framing;

static bool is_name(const char *s, size_t n)
{
    static const char more[] = "!#$%&'*+-.^_`|~0123456789";
    bool ok = n > 0;
    for (size_t i = 0; i < n; i++) {
        const char lower = (char)(s[i] | 32);
        ok = ok && s[i] != '\0' && ((lower >= 'a' && lower <= 'z') || strchr(more, s[i]));
    }
    return ok;
}

static enum MHD_Result count_framing(void *cls, enum MHD_ValueKind kind, const char *key,
                                     size_t n_key, const char *value, size_t n_value)
{
    framing *f = cls;
    (void)kind;
    if (!is_name(key, n_key) || (value && strcspn(value, "\r\n") != n_value)) f->malformed = true;
    if (strcasecmp(key, "Host") == 0) f->n_host++;
    /* A longer name is what libmicrohttpd 0.9.75 makes of a value on a line of its own. */
    if (strncasecmp(key, "Content-Length", 14) == 0) {
        f->n_length++;
        f->malformed = f->malformed || n_key > 14;
    }
    if (strncasecmp(key, "Transfer-Encoding", 17) == 0) {
        f->n_coding++;
        f->coding = value;
        f->malformed = f->malformed || n_key > 17;
    }
    return MHD_YES;
}

/* Where the body ends, and for whom it is, must be beyond doubt: a proxy in front that reads these
 * headers otherwise than we do would let one client's body be another's request (RFC 9112, 6.3).
 * What is wrong, or NULL. */
static const char *framing_fault(http_req *r, const char *version, unsigned *status)
{
    framing f = {0};
    (void)MHD_get_connection_values_n(r->mhd, MHD_HEADER_KIND, count_framing, &f);
    *status = 400;
    if (f.malformed) return "headers: expected NAME: VALUE in every line";
    if (f.n_host > 1) return "Host: expected one, found more";
    if (f.n_length > 1) return "Content-Length: expected one, found more";
    if (f.n_coding == 0) return NULL;
    if (f.n_length != 0) return "Content-Length and Transfer-Encoding: expected one of them";
    if (f.n_coding > 1) return "Transfer-Encoding: expected one, found more";
    if (strcmp(version, "HTTP/1.1") != 0) return "Transfer-Encoding: expected none before HTTP/1.1";
    if (f.coding && strcasecmp(f.coding, "chunked") == 0) return NULL;
    *status = 501;
    return "Transfer-Encoding: expected chunked, found another";
}

enum MHD_Result http_req_begin(http_req *r, const char *version)
{
    uint64_t n = 0;
    unsigned status;
    const char *fault = framing_fault(r, version, &status);
    if (fault) return cut(r, status, fault);
    const char *length = http_header(&r->pub, "Content-Length");
    for (const char *p = length; p && *p >= '0' && *p <= '9' && n <= UINT64_MAX / 16; p++)
        n = n * 10 + (uint64_t)(*p - '0');
    check_head(r);
    if (n > r->server->o.body_bytes_max) return too_large(r);
    http_conn_phase(r->conn, r->server, CONN_BODY, r->server->o.body_seconds);
    return MHD_YES;
}

enum MHD_Result http_req_body(http_req *r, const char *data, size_t n)
{
    r->n_received += n;
    if (r->n_received > r->server->o.body_bytes_max) return too_large(r);
    if (r->refused) return MHD_YES;
    r->n_bodies += n;
    if (atomic_fetch_add(&r->server->n_bodies, n) + n > HTTP_BODIES_MAX)
        refuse(r, 503, "overloaded", "too many large requests at once");
    else if (!strbuf_append(&r->body, data, n))
        refuse(r, 503, "overloaded", "out of memory");
    return MHD_YES;
}

/* ---- Answer ------------------------------------------------------------------------------- */

static void call_handler(http_req *r)
{
    http_server *s = r->server;
    const bool needs_model = !(r->route->flags & (HTTP_NO_MODEL | HTTP_OPEN));
    /* Counted first: then http_server_take_api() either sees it, or has taken the context. */
    pthread_mutex_lock(&s->lock);
    r->needs_model = needs_model;
    s->n_model += needs_model;
    pthread_mutex_unlock(&s->lock);
    api_ctx *ctx = atomic_load(&s->api);
    bool failed = false;
    if (!ctx && needs_model && s->o.on_need) ctx = s->o.on_need(s->o.user, &failed);
    if (!ctx && needs_model) {
        if (failed)
            refuse(r, 503, "not_loaded",
                   "the model could not be loaded again; the server's log says why");
        else
            refuse(r, 503, "loading", "the model is still being loaded");
        return;
    }
    r->route->fn(ctx, &r->pub);
    if (r->streaming) return;
    http_clear_hangup(&r->pub);
    if (!r->response) {
        refuse(r, 500, NULL, "no answer from %s", r->route->path);
        if (s->o.log) server_log_line(s->o.log, CALLA_LOG_ERROR, "%s gave no answer", r->path);
    }
}

enum MHD_Result http_req_answer(http_req *r)
{
    http_server *s = r->server;
    if (r->body.data) {
        r->pub.body = r->body.data;
        r->pub.n_body = r->body.len;
    }
    pthread_mutex_lock(&s->lock);
    const bool closed = r->conn->phase == CONN_CLOSED;
    if (!closed) r->active = true;
    s->n_active += r->active;
    pthread_mutex_unlock(&s->lock);
    if (closed) return MHD_NO;
    http_conn_phase(r->conn, s, CONN_WORK, 0.0);
    if (!r->refused) call_handler(r);
    return http_reply_queue(r);
}

/* ---- The other end ------------------------------------------------------------------------ */

void http_on_hangup(http_request *req, http_hangup_fn fn, void *user)
{
    http_req *r = (http_req *)req;
    pthread_mutex_lock(&r->lock);
    r->hangup = fn;
    r->hangup_user = user;
    r->called = false;
    const bool late = r->gone;
    pthread_mutex_unlock(&r->lock);
    if (late) http_req_set_gone(r);
}

void http_clear_hangup(http_request *req)
{
    http_req *r = (http_req *)req;
    pthread_mutex_lock(&r->lock);
    r->hangup = NULL;
    while (r->calling)
        pthread_cond_wait(&r->cond, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

bool http_gone(const http_request *req)
{
    pthread_mutex_t *lock = &((http_req *)(uintptr_t)req)->lock;
    pthread_mutex_lock(lock);
    const bool gone = ((const http_req *)req)->gone;
    pthread_mutex_unlock(lock);
    return gone;
}

/* ---- Notes -------------------------------------------------------------------------------- */

void http_note_usage(http_request *req, const http_usage *usage)
{
    http_req *r = (http_req *)req;
    pthread_mutex_lock(&r->lock);
    r->usage = *usage;
    r->has_usage = true;
    pthread_mutex_unlock(&r->lock);
}

void http_note_token(http_request *req)
{
    http_req *r = (http_req *)req;
    struct metrics *m = r->server->o.metrics;
    const double now = time_now();
    pthread_mutex_lock(&r->lock);
    const double last = r->last_token;
    if (last < 0.0) r->first_token = now;
    r->last_token = now;
    pthread_mutex_unlock(&r->lock);
    if (!m) return;
    if (last < 0.0)
        metrics_first_token(m, now - r->pub.started);
    else
        metrics_next_token(m, now - last);
}
