/* server_log.h - one line a request on stderr; lines of the server's own.
 *
 * Does:    writes a request's record as text (a terminal) or as one JSON object a line, and other
 *          events in the same form. Never a key; text of prompts only with `prompts`.
 * Threads: any; a line is one write under a lock.
 */
#ifndef CALLA_SERVER_SERVER_LOG_H
#define CALLA_SERVER_SERVER_LOG_H

#include "base/error.h"
#include "server/record.h"

typedef struct server_log server_log;

typedef struct server_log_options {
    int fd;                /* where lines go */
    bool json;             /* JSON lines instead of text */
    bool prompts;          /* the request's body too */
    calla_log_level level; /* of server_log_line; requests are CALLA_LOG_INFO */
} server_log_options;

calla_status server_log_create(server_log **out, const server_log_options *options,
                               calla_error *err);
void server_log_destroy(server_log *log);

void server_log_request(server_log *log, const request_record *r);
void server_log_line(server_log *log, calla_log_level level, const char *fmt, ...)
    ATTR_PRINTF(3, 4);

/* The line without newline, as server_log_request writes it (tests). */
void server_log_format(strbuf *out, bool json, bool prompts, const request_record *r);

#endif
