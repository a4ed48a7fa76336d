/* agent_trace.h - recorded requests of a conversation, in their order.
 *
 * Does:       reads a folder that `calla serve --trace` filled (one JSON object a file, ordered by
 *             its "time"), or a file with one JSON object a line. An object is one of
 *             - a record: {"request": a body, as a string or an object; "path", "status", "usage":
 *               {"generated_tokens"}}, all but the first may be missing;
 *             - a body alone: of /v1/responses when it has "input", else of /v1/chat/completions;
 *             - {"after": N, "keep": K, "messages": [...]}: the body of line N, of whose messages
 *               the first K stay (all, when K is missing), and these follow; "usage" as above.
 *             Records of other paths, of failed requests and of bodies that are not UTF-8 are left
 *             out and counted. Bodies are read no further than that.
 * Owns:       everything it returns.
 * Errors:     sentences begin with the file and, of a file with lines, the line.
 * Limits:     AGENT_REQUESTS_MAX, AGENT_BYTES_MAX of all bodies together, and of a file.
 */
#ifndef CALLA_BENCH_AGENT_TRACE_H
#define CALLA_BENCH_AGENT_TRACE_H

#include "base/error.h"

#define AGENT_REQUESTS_MAX 10000u
#define AGENT_BYTES_MAX    (UINT64_C(1) << 30)

typedef struct agent_request {
    char *where; /* "trace.jsonl:12", for errors */
    char *path;
    char *body;
    size_t n_body;
    char *time;           /* as recorded; NULL: unknown */
    uint32_t n_generated; /* tokens of the answer; 0: unknown */
} agent_request;

typedef struct agent_trace {
    agent_request *requests;
    uint32_t n, cap;
    uint32_t n_left_out;
    uint64_t bytes;
} agent_trace;

/* On failure *out is empty. Without a single request it fails. */
calla_status agent_trace_open(agent_trace *out, const char *path, calla_error *err);
/* The lines of a file, from memory. */
calla_status agent_trace_parse(agent_trace *out, const char *name, const char *data, size_t n,
                               calla_error *err);
void agent_trace_close(agent_trace *t); /* zeroed struct is fine */

#endif
