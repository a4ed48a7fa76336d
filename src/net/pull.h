/* pull.h - downloads a model into the store.
 *
 * Does:     reads the listing of a revision, fetches the files that a model needs in ranges over
 * several connections, checks each by its SHA-256 (small ones by Git's name of them), and puts the
 *           folder into its place by one rename.
 * Resuming: all that is known is on the disk (part.h); a run that was killed at any moment is gone
 * on with by the next. What a changed revision has in common with what is here is kept. Failing:
 * errors of the network and answers 408, 429 and 5xx are tried again with growing pauses, as long
 * as a Retry-After says; a file that is wrong when complete is fetched once more. Then, and for all
 * other answers, the pull fails with one sentence; what came stays for the next. Threads:
 * pull_run() from one thread, which calls back; it starts others.
 */
#ifndef CALLA_NET_PULL_H
#define CALLA_NET_PULL_H

#include "net/store.h"

#define PULL_CONNECTIONS_MAX 32u

typedef enum pull_phase { PULL_LISTING, PULL_FETCHING, PULL_CHECKING } pull_phase;

typedef struct pull_options {
    http_library *lib;
    const hub *hub;
    const hub_repo *repo;
    const char *root;       /* of the store */
    uint32_t n_connections; /* 0: 8 */
    uint32_t n_retries;     /* of one range without progress */
    double retry_seconds;   /* the first pause; doubles to 30 */
    double stall_seconds;
    bool check; /* hash a model that is complete already, too */
    const atomic_bool *cancel;
    /* config.json and the other small files are in `dir`: is it a model to go on with? NULL: yes */
    calla_status (*accept)(void *user, const char *dir, calla_error *err);
    /* Ten times a second: bytes of all files. */
    void (*on_progress)(void *user, pull_phase phase, uint64_t done, uint64_t total);
    void (*on_note)(void *user, const char *line); /* what is tried again, and why */
    void *user;
} pull_options;

typedef struct pull_result {
    char *dir; /* mem_free() */
    char commit[41];
    size_t n_files;
    uint64_t bytes;         /* of all files */
    uint64_t bytes_fetched; /* now */
    bool complete_before;   /* nothing was to be done */
    bool again;             /* failed, and trying again may help */
} pull_result;

calla_status pull_run(const pull_options *o, pull_result *result, calla_error *err);

#endif
