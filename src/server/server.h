/* server.h - `calla serve` as an object: HTTP layer, engine, scheduler, API.
 *
 * Does:    listens at once, so that /health answers while the model is loaded; loads it; answers;
 *          drains. Routes of its own: /health, /ready, /metrics, / (the chat page).
 * Owns:    everything. Order of death: HTTP layer (its threads call the API), API, scheduler,
 * engine. Threads: one thread makes the calls, in the order create, load, tend, drain, destroy.
 */
#ifndef CALLA_SERVER_SERVER_H
#define CALLA_SERVER_SERVER_H

#include "base/error.h"

#define SERVER_PARALLEL_DEFAULT 4u
#define SERVER_CTX_DEFAULT      32768u
#define SERVER_CACHE_DEFAULT    (UINT64_C(2) << 30)
#define SERVER_CACHE_AUTO       UINT64_MAX

typedef struct server server;

typedef struct server_options {
    /* Model. */
    const char *model_dir;
    const char *model_name; /* in answers; NULL: the folder's name */
    const char *backend;    /* as calla_engine_options */
    unsigned n_threads;
    uint32_t n_parallel, n_ctx; /* 0: the defaults above, less when memory does not suffice */
    uint32_t queue_max;         /* 0: scheduler's */
    uint64_t cache_ram_bytes;   /* SERVER_CACHE_AUTO: as n_parallel; 0: no cache */
    const char *pack_dir;       /* as calla_engine_options */
    calla_precision precision;  /* as calla_engine_options */
    calla_progress_fn progress; /* of loading, as there */
    void *progress_user;

    /* HTTP; see http_options. Lists are separated by commas; NULL: none. */
    const char *host;
    uint16_t port;
    const char *unix_socket;
    const char *key_file; /* a key a line; empty lines and lines with '#' first do not count */
    const char *allow_hosts, *cors_origins;
    uint64_t body_bytes_max;
    uint32_t connections_max;

    /* Reports. */
    int log_fd;
    bool log_json, log_prompts;
    calla_log_level log_level;
    const char *trace_dir; /* NULL: none */

    /* Seconds without a request for the model after which it leaves memory, until the next; 0:
     * never. Needs server_tend(). */
    double idle_unload_seconds;
} server_options;

/* Listens. The strings of the options are borrowed. */
calla_status server_create(server **out, const server_options *options, calla_error *err);

/* Opens the model; from then on requests are answered. */
calla_status server_load(server *s, calla_error *err);

/* Unloads the model when it was idle for long, and loads it again when a request waits for that. To
 * be called about once a second, and when server_wake_fd() can be read. *loaded: which it is now.
 */
void server_tend(server *s, bool *loaded);
int server_wake_fd(const server *s); /* -1 without idle_unload_seconds */

const char *server_url(const server *s);

/* Takes no more connections, lets running requests end for so many seconds, then ends them: their
 * clients get an error, streams as their last event. False when some had to be ended. */
bool server_drain(server *s, double seconds);

void server_destroy(server *s); /* NULL is fine */

#endif
