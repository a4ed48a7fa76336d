/* http_client.h - HTTP requests, by the system's libcurl.
 *
 * Does:    one request at a time: redirects, byte ranges, a bearer token, stalls noticed,
 * cancelling. libcurl is opened when it is first wanted, so that a program on a machine without it
 * runs all the rest; its headers are needed to build, the library is not linked. Token:   goes to
 * the origin (scheme, host, port) of the request's own address only, never to one that a redirect
 * names, and over plain http to this machine only. It is in no message. Threads:
 * http_library_open() once, before threads; an http_client belongs to one thread at a time. Errors:
 * sentences without the address's query, which may hold a signature.
 */
#ifndef CALLA_NET_HTTP_CLIENT_H
#define CALLA_NET_HTTP_CLIENT_H

#include <stdatomic.h>
#include "base/error.h"

#define HTTP_UNKNOWN       UINT64_MAX
#define HTTP_REDIRECTS_MAX 10

typedef struct http_library http_library;
typedef struct http_client http_client;

/* names: files to try, ended by NULL; NULL: the usual ones. UNSUPPORTED names what is missing. */
calla_status http_library_open(http_library **out, const char *const *names, calla_error *err);
void http_library_close(http_library *lib);
/* "libcurl/7.88.1 OpenSSL/3.0.15 ..." */
const char *http_library_version(const http_library *lib);

calla_status http_client_create(http_client **out, http_library *lib, calla_error *err);
void http_client_destroy(http_client *c);

/* Headers of the reply that is not a redirect; but linked_size, linked_etag and commit are of the
 * first reply that had them. */
typedef struct http_reply {
    int status;
    uint64_t length;                              /* Content-Length, or HTTP_UNKNOWN */
    uint64_t range_first, range_last, range_size; /* Content-Range; HTTP_UNKNOWN each */
    uint64_t linked_size;                         /* X-Linked-Size, or HTTP_UNKNOWN */
    double retry_after;                           /* seconds; 0: not given */
    bool moved;                                   /* came after a redirect to another origin */
    char etag[80], linked_etag[80];               /* without W/ and quotes; "": none */
    char commit[48];                              /* X-Repo-Commit */
    char message[160];                            /* X-Error-Message */
} http_reply;

typedef struct http_call {
    const char *url;
    const char *token; /* NULL: none */
    bool head;
    bool ranged; /* asks for bytes first .. last */
    uint64_t first, last;
    double stall_seconds;      /* without a byte for this long it is given up; 0: 30 */
    const atomic_bool *cancel; /* may be NULL; looked at at least once a second */
    bool (*on_reply)(void *user, const http_reply *reply); /* before the body; NULL: go on */
    bool (*on_body)(void *user, const void *p, size_t n);  /* NULL: the body is dropped */
    void *user;
} http_call;

typedef enum http_outcome {
    HTTP_OK,        /* a whole reply came, of whatever status */
    HTTP_STOPPED,   /* a callback said no */
    HTTP_CANCELLED, /* *cancel */
    HTTP_BROKEN,    /* it failed on the way; another time it may work */
    HTTP_REFUSED    /* it cannot work: address, certificate, redirects */
} http_outcome;

/* reply is filled as far as it came. err for BROKEN and REFUSED. */
http_outcome http_do(http_client *c, const http_call *call, http_reply *reply, calla_error *err);

/* ---- Parts, for tests ---- */

typedef struct http_url { /* pieces of a text */
    const char *scheme, *host, *port, *path;
    size_t n_scheme, n_host, n_port; /* n_port 0: the scheme's own */
} http_url;

/* "http[s]://host[:port][/...]" without user and password; false otherwise. */
bool http_url_split(const char *url, http_url *out);
bool http_same_origin(const char *a, const char *b);
/* May a token go there? https, or this machine. */
bool http_token_safe(const char *url);
/* "HOST" of an address, for messages. */
void http_host(const char *url, char *out, size_t size);
/* One header line into reply. */
void http_reply_header(http_reply *reply, const char *line, size_t n);

#endif
