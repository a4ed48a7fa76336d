/* record.h - what is known of one finished request: for the log line, the metrics, the trace. */
#ifndef CALLA_SERVER_RECORD_H
#define CALLA_SERVER_RECORD_H

#include "server/http.h"

typedef struct request_record {
    const char *id, *method, *path; /* path without query */
    const char *route;              /* pattern of the route, or "other" */
    unsigned status;                /* 0: the client had gone before an answer */
    bool stream, gone;              /* gone: the client left before the end */
    double unix_time;               /* when the headers were there */
    double seconds;                 /* from then to the end of both sides */
    double ttft_seconds;            /* to the first token; below 0: none */
    const http_usage *usage;        /* NULL: no tokens involved */
    const char *body;               /* [n_body] of the request */
    size_t n_body;
    const char *answer; /* [n_answer]; the whole answer when traced, else NULL */
    size_t n_answer;
} request_record;

#endif
