/* http_priv.h - inside of the HTTP layer (http.h): one struct a connection, one a request.
 *
 * A connection is a slot of http_server.conns, taken and left by libmicrohttpd's notifications. Its
 * phase says what the monitor watches for (http_monitor.c):
 *
 *   HEADERS  the first request of a connection: the header deadline (408)
 *   IDLE     between requests: the idle deadline (closed); covers the next request's headers
 *   BODY     headers are there: the body deadline (408)
 *   WORK     the handler runs, or the stream is silent: a hang-up (the request is gone)
 *   REPLY    a stream's piece is being sent: a hang-up, or the reply deadline (gone, closed)
 *   LAST     a whole answer, or a stream's end: the reply deadline only, since a client that closes
 *            may have all of it; when it has not, sending fails
 *   CLOSED   the monitor or a refusal has shut the socket down; libmicrohttpd will notice
 *
 * Locks: http_server.lock guards the slots, the list of finished requests and the counts;
 * http_req.lock guards the request's stream and hang-up state. The server's is taken first, or
 * alone; neither is held while a callback runs.
 */
#ifndef CALLA_SERVER_HTTP_PRIV_H
#define CALLA_SERVER_HTTP_PRIV_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/http.h"
#include "server/record.h"

#define HTTP_SET_HEADERS_MAX 12u
#define HTTP_BODIES_MAX      (UINT64_C(1) << 30) /* request bodies in memory, all together */
#define HTTP_LINGER_SECONDS  2.0                 /* for the client to read the last answer */
#define HTTP_REPLY_SECONDS   60.0                /* without progress while sending */

typedef struct http_req http_req;

typedef enum conn_phase {
    CONN_FREE, /* an unused slot */
    CONN_HEADERS,
    CONN_IDLE,
    CONN_BODY,
    CONN_WORK,
    CONN_REPLY,
    CONN_LAST,
    CONN_CLOSED
} conn_phase;

typedef struct http_conn {
    int fd;
    conn_phase phase;
    uint64_t serial; /* changes whenever the slot is taken or a request begins or ends */
    double deadline; /* time_now(), 0: none */
    http_req *req;   /* WORK, REPLY, LAST; the connection's reference */
    bool pending;    /* bytes wait behind the request: peeking shows no end of file */
} http_conn;

struct http_req {
    http_request pub; /* first: the handler's view */
    http_server *server;
    struct MHD_Connection *mhd;
    http_conn *conn;
    const http_route *route;
    api_ctx *ctx;
    char id_text[32], method[16];
    char *path;      /* a copy: the record outlives libmicrohttpd's strings */
    char *authority; /* of a target in absolute form, whose Host does not count; else NULL */
    double unix_time;

    strbuf body;
    uint64_t n_bodies;   /* counted in http_server.n_bodies */
    uint64_t n_received; /* bytes of the body, kept or not */
    bool refused;        /* answered before the body; its bytes are dropped */
    bool active;         /* counted in http_server.n_active */
    bool needs_model;    /* counted in http_server.n_model */

    struct MHD_Response *response;
    unsigned status; /* also written by the monitor, under the server's lock */
    bool complete;   /* the answer was sent; under the server's lock */
    struct {
        char *name, *value;
    } headers[HTTP_SET_HEADERS_MAX];
    size_t n_headers;

    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Guarded by lock: */
    unsigned n_refs; /* connection, producer of a stream, monitor while it calls back */
    bool streaming;  /* sse_open */
    bool closed;     /* sse_close */
    bool gone, overflow;
    strbuf queue; /* [queue.len] of which queue_off are sent */
    size_t queue_off;
    bool calling, called;
    http_hangup_fn hangup;
    void *hangup_user;
    http_usage usage;
    bool has_usage;
    double first_token, last_token;
    strbuf answer; /* for the trace */

    http_req *next_finished;
};

struct http_server {
    http_options o;
    char **keys, **allow_hosts, **cors_origins; /* copies of the lists; NULL at the end */
    char *host, *unix_path, *url;
    struct MHD_Daemon *mhd;
    _Atomic(api_ctx *) api;
    _Atomic uint64_t next_id, n_bodies;
    pthread_t monitor;
    int wake[2]; /* pipe to the monitor */
    int listen_fd;
    uint32_t epoch; /* first part of ids */
    uint16_t port;
    bool made_socket; /* unix_path is ours to remove */
    bool has_monitor;
    atomic_bool quiet; /* quiesced */

    bool stopping; /* guarded by lock, as all below */
    uint32_t n_connections;
    uint32_t n_requests; /* structs alive */
    uint32_t n_active;   /* handlers running, answers not yet sent */
    uint32_t n_model;    /* of these, with the model */
    double last_model;   /* when one of them ended */
    pthread_mutex_t lock;
    pthread_cond_t none; /* n_requests became 0 */
    http_conn *conns;    /* [n_conns] */
    size_t n_conns;
    http_req *finished; /* their last reference was dropped by a producer: to be logged */
};

/* ---- http_request.c ---- */
/* One reference: the connection's. NULL: out of memory. */
http_req *http_req_create(http_server *s, struct MHD_Connection *c, http_conn *conn,
                          const char *method, const char *path);
/* Headers are there; a piece of the body; all of it. MHD_NO closes the connection. */
enum MHD_Result http_req_begin(http_req *r, const char *version);
enum MHD_Result http_req_body(http_req *r, const char *data, size_t n);
enum MHD_Result http_req_answer(http_req *r);
void http_req_ref(http_req *r);
/* Drops a reference; the last one logs, counts and frees. From a producer: leaves that to the
 * monitor, since a log line may block. */
void http_req_unref(http_req *r, bool producer);
void http_req_finish(http_req *r);

/* ---- http_reply.c ---- */
/* Gives the response to libmicrohttpd and drops it; MHD_NO closes the connection. */
enum MHD_Result http_reply_queue(http_req *r);
/* Writes a minimal answer straight to the socket, for when libmicrohttpd cannot. */
void http_reply_raw(const http_req *r, int fd, unsigned status, const char *message);
void http_reply_cors(http_req *r, const char *origin);

/* ---- sse.c ---- */
struct MHD_Response *sse_response(http_req *r);

/* ---- http_monitor.c ---- */
calla_status http_monitor_start(http_server *s, calla_error *err);
void http_monitor_stop(http_server *s);
void http_monitor_wake(const http_server *s);
void http_conn_phase(http_conn *c, http_server *s, conn_phase phase, double seconds);
/* The client has gone (or is too slow): callback once, stream woken. */
void http_req_set_gone(http_req *r);

#endif
