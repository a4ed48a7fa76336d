/* metrics.h - counters and latency histograms, as Prometheus text.
 *
 * Does:    counts requests by route and status, observes latencies; renders them together with the
 *          scheduler's counters and this process's memory.
 * Threads: all functions from any thread; one short lock.
 * Limits:  METRICS_SERIES_MAX pairs of route and status; routes are patterns of the table, so that
 *          clients cannot invent series.
 */
#ifndef CALLA_SERVER_METRICS_H
#define CALLA_SERVER_METRICS_H

#include "base/error.h"
#include "base/mem.h"
#include "engine/scheduler.h"
#include "server/record.h"

#define METRICS_SERIES_MAX 256u

typedef struct metrics metrics;

calla_status metrics_create(metrics **out, calla_error *err);
void metrics_destroy(metrics *m);

void metrics_request(metrics *m, const request_record *r); /* r->route: kept, a constant */
void metrics_first_token(metrics *m, double seconds);      /* since the request's headers */
void metrics_next_token(metrics *m, double seconds);       /* since the token before */

/* sched NULL: no model yet. */
void metrics_render(metrics *m, strbuf *out, const sched_stats *sched, uint32_t n_connections);

/* Resident bytes of this process; 0 when unknown. */
uint64_t metrics_resident_bytes(void);

#endif
