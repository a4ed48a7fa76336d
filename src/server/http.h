/* http.h - HTTP/1.1 over libmicrohttpd: routes, limits, access rules, SSE, hang-ups.
 *
 * Does:       reads whole requests within the limits, checks Host, Origin, key and content type,
 *             finds the route, calls its handler, writes one JSON answer or an event stream, tells
 *             the handler's side when the client has gone, logs and counts every request.
 *             Knows nothing of models. Answers by itself, with the API's error object: 400, 401,
 *             403, 404, 405 (Allow), 408, 413, 415, 431, 501, OPTIONS.
 * Owns:       sockets, threads, requests. A request lives until its connection is done with it and,
 *             when sse_open was called, sse_close was.
 * Threads:    one thread a connection (libmicrohttpd's), which runs the handler and may block in
 *             it; the number of connections is bounded and no route can keep another waiting. One
 *             monitor thread watches every connection for hang-ups and deadlines. Functions marked
 *             [any] may be called from any thread while the request lives; the others only by the
 *             handler before it returns.
 * Invariants: (1) Every request gets exactly one answer and one log line. (2) sse_send never
 *             blocks. (3) After http_clear_hangup, sse_close, or the return of a handler without a
 *             stream, the hang-up callback is not running and will not run.
 * Limits:     http_options; HTTP_HEADER_BYTES_MAX, HTTP_SSE_QUEUE_BYTES.
 */
#ifndef CALLA_SERVER_HTTP_H
#define CALLA_SERVER_HTTP_H

#include "base/error.h"
#include "base/mem.h"

#define HTTP_HEADER_BYTES_MAX 16384u
#define HTTP_SSE_QUEUE_BYTES  (UINT64_C(1) << 20) /* events that a slow reader may be behind */
#define HTTP_NO_POSITION      UINT32_MAX

typedef struct http_server http_server;
typedef struct sse_stream sse_stream;

/* What a handler reads. Borrowed while the request lives. */
typedef struct http_request {
    uint64_t id;         /* unique in this process, above 0 */
    const char *id_text; /* the same as sent in x-request-id: "req_..." */
    const char *method;  /* "GET"; HEAD arrives as "GET" */
    const char *path;    /* percent-decoded, no authority, no query; "/v1/models/x" */
    const char *tail;    /* what a route's final '*' stands for; "" otherwise */
    const char *body;    /* [n_body], NUL-terminated besides; "" without one */
    size_t n_body;
    bool anthropic; /* route flag HTTP_ANTHROPIC: shape of the error object */
    double started; /* time_now() when the request's headers were there */
    void *user;     /* http_options.user */
} http_request;

/* ---- Answers ------------------------------------------------------------------------------ */

/* Value of a request header (any case), or NULL; of a query argument, decoded, or NULL. */
const char *http_header(const http_request *req, const char *name);
const char *http_query(const http_request *req, const char *name);
bool http_has_query(const http_request *req, const char *name); /* "?name" has it, without value */

/* Adds a header to the coming answer: plain values without control characters. */
void http_set_header(http_request *req, const char *name, const char *value);

/* The answer. The body's bytes are taken over (body is left empty). A failed strbuf becomes a 500.
 * http_respond takes a content type; http_respond_json is application/json. */
void http_respond_json(http_request *req, unsigned status, strbuf *body);
void http_respond(http_request *req, unsigned status, const char *content_type, strbuf *body);

/* The API's error object: {"error":{"message","type","param","code"}}, or Anthropic's
 * {"type":"error","error":{"type","message"},"request_id"}. type NULL: the usual one of the status
 * and API; param, code NULL: null. 429 and 503 get Retry-After unless set. */
typedef struct http_error {
    unsigned status;
    const char *type, *param, *code; /* of OpenAI's object; type also of Anthropic's */
} http_error;
void http_respond_error(http_request *req, const http_error *e, const char *fmt, ...)
    ATTR_PRINTF(3, 4);
/* [any] Only appends the object, for an error inside an event stream. */
void http_error_object(const http_request *req, strbuf *out, const http_error *e,
                       const char *message);

/* ---- Event streams ------------------------------------------------------------------------ */

/* Makes the answer an event stream (200, text/event-stream) that begins when the handler returns;
 * events sent before are kept. NULL: out of memory (nothing answered yet). */
sse_stream *sse_open(http_request *req);

/* Undoes sse_open within the handler, as long as nobody else uses the stream: an ordinary answer
 * may follow. */
void sse_abort(sse_stream *s);

/* [any] Queues one event: "event: EVENT" when not NULL, then "data: " + the n bytes (a newline in
 * them begins another "data: " line). False: the client has gone or is too far behind; give up
 * (events are dropped from then on, sse_close is still due). One sender at a time. */
bool sse_send(sse_stream *s, const char *event, const char *data, size_t n);

/* [any] No more events; what is queued is still delivered. The caller's last use of the stream and
 * its request. NULL is fine. Waits for a hang-up callback that is running. */
void sse_close(sse_stream *s);

http_request *sse_request(sse_stream *s);

/* A comment line is sent by itself when a stream was silent for 10 seconds. */

/* ---- The other end ------------------------------------------------------------------------ */

/* fn(user) is called once, from a thread of this layer (or at once, from here, when it is too
 * late already), when the client closes its connection or stops reading. It must return soon:
 * scheduler_cancel(), say. A client that closes only its sending side counts as gone. */
typedef void (*http_hangup_fn)(void *user);
void http_on_hangup(http_request *req, http_hangup_fn fn, void *user);
void http_clear_hangup(http_request *req); /* [any] */
bool http_gone(const http_request *req);   /* [any] */

/* ---- Log, metrics, trace ------------------------------------------------------------------ */

/* [any] For the log line, metrics and trace of this request; the last call counts, not later than
 * sse_close or the handler's return. */
typedef struct http_usage {
    uint32_t n_prompt, n_cached, n_generated;
    uint32_t diverged_at;      /* token; HTTP_NO_POSITION: it did not */
    uint32_t diverged_message; /* index in messages; HTTP_NO_POSITION: unknown */
    double queue_seconds, prefill_seconds, decode_seconds;
    const char *stop; /* finish reason; a string constant, or NULL */
} http_usage;
void http_note_usage(http_request *req, const http_usage *usage);

/* [any] A token was generated now: time to first token, inter-token latency. */
void http_note_token(http_request *req);

/* ---- Routes ------------------------------------------------------------------------------- */

typedef struct api_ctx api_ctx; /* server/api.h */
typedef void (*http_handler)(api_ctx *ctx, http_request *req);

enum {
    HTTP_OPEN = 1,      /* no key needed, any Host; never behind the model's loading */
    HTTP_NO_MODEL = 2,  /* answered while the model is still loading (ctx is NULL then) */
    HTTP_ANTHROPIC = 4, /* Anthropic's error object; "/v1/messages" paths have it for 404 too */
};

typedef struct http_route {
    const char *method; /* "GET" (HEAD too) or "POST" (JSON body) */
    const char *path;   /* exact, or ending in '*': a prefix */
    http_handler fn;
    unsigned flags;
} http_route;

/* ---- Server ------------------------------------------------------------------------------- */

typedef struct http_options {
    const http_route *routes; /* [n_routes], borrowed */
    size_t n_routes;
    void *user; /* http_request.user */

    const char *host;        /* address or name to bind; NULL: "127.0.0.1" */
    uint16_t port;           /* 0: any free one */
    const char *unix_socket; /* not NULL: this path (mode 0600) instead of host and port */

    /* NULL-terminated lists, copied; NULL: empty. */
    const char *const *keys;         /* empty: no key asked for */
    const char *const *allow_hosts;  /* Host values besides loopback and `host`, without port */
    const char *const *cors_origins; /* "https://x:1"; "*": any */

    uint64_t body_bytes_max;  /* 0: 32 MiB */
    uint32_t connections_max; /* 0: 256 */
    uint32_t header_seconds;  /* from a connection to its first request's headers; 0: 10 */
    uint32_t body_seconds;    /* from there to the end of its body; 0: 60 */
    uint32_t idle_seconds;    /* from an answer to the next request's headers; 0: 75 */
    uint32_t comment_seconds; /* silence of a stream before a comment; 0: 10 */

    /* [the request's thread] A request needs the model and there is none: brings it, or NULL, which
     * makes it a 503. It may block. *failed: not because it is loaded for the first time. NULL:
     * none is brought. */
    struct api_ctx *(*on_need)(void *user, bool *failed);

    struct metrics *metrics;    /* borrowed, may be NULL */
    struct server_log *log;     /* borrowed, may be NULL */
    struct server_trace *trace; /* borrowed, may be NULL */
} http_options;

/* Listens. One sentence when the port is taken or the address is not ours. */
calla_status http_server_create(http_server **out, const http_options *options, calla_error *err);

/* Waits for running handlers and streams: end what they wait for before (scheduler_destroy). */
void http_server_destroy(http_server *s);

/* [any] Requests that need the model get 503 until this was called with a context; NULL: again. */
void http_server_set_api(http_server *s, api_ctx *ctx);

/* The context, which no request has or gets any more, when no request had it for so many seconds;
 * NULL: there was one, or there is no context. */
api_ctx *http_server_take_api(http_server *s, double idle_seconds);

/* [any] No new connections; the open ones are closed after the answer they wait for. */
void http_server_quiesce(http_server *s);

/* [any] Treats every client as gone: hang-up callbacks are called, streams end. */
void http_server_cancel(http_server *s);

/* [any] Requests without a complete answer; open connections. */
uint32_t http_server_n_active(const http_server *s);
uint32_t http_server_n_connections(const http_server *s);

/* The server of a request (whose handler may run before http_server_create has returned). */
const http_server *http_request_server(const http_request *req);

uint16_t http_server_port(const http_server *s);
const char *http_server_url(const http_server *s); /* "http://127.0.0.1:8080" or "unix:PATH" */

#endif
