/* trace.h - a folder with one replayable JSON file a request.
 *
 * Does:    writes TIME-ID.json, mode 0600: {"id", "time", "method", "path", "status", "stream",
 *          "gone", "request": the body as a string, "response": the answer as a string (of a
 *          stream, its events), "timings": {...}, "usage": {...}}. A body that is not UTF-8 is
 *          "request_hex" instead. Headers, which may hold keys, are not written.
 * Threads: any.
 */
#ifndef CALLA_SERVER_TRACE_H
#define CALLA_SERVER_TRACE_H

#include "base/error.h"
#include "server/record.h"

typedef struct server_trace server_trace;

/* Makes the folder (0700) unless it is there. */
calla_status server_trace_create(server_trace **out, const char *dir, calla_error *err);
void server_trace_destroy(server_trace *t);

calla_status server_trace_write(server_trace *t, const request_record *r, calla_error *err);

#endif
