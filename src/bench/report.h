/* report.h - a record as lines for people, as JSON and as CSV.
 *
 * JSON:    format 3; docs/BENCH.md lists the fields. What was not measured is null.
 * CSV:     one line for each result, the same names, the lists of seconds left out; of a replay
 *          (agent.h) one for each turn instead.
 */
#ifndef CALLA_BENCH_REPORT_H
#define CALLA_BENCH_REPORT_H

#include <stdio.h>

#include "bench/record.h"

/* The part of the bandwidth, and of the matrix peak, that a result reached; 0: unknown. */
double report_bandwidth_fraction(const bench_record *r, const bench_result *x);
double report_matrix_fraction(const bench_record *r, const bench_result *x);

/* What a token costs at least by bytes / bandwidth and by operations / peak: the larger of both
 * (the roof), as tokens a second; 0: unknown. */
double report_roof(const bench_record *r, const bench_result *x);

void report_limits(const bench_record *r, FILE *out);
void report_heading(const bench_record *r, FILE *out);
void report_result(const bench_record *r, const bench_result *x, FILE *out);
/* What was left out, kernels, memory, temperatures. */
void report_end(const bench_record *r, FILE *out);

void report_json(const bench_record *r, strbuf *out);
void report_csv(const bench_record *r, strbuf *out);

#endif
