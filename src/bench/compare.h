/* compare.h - are two sets of `calla bench --json` files different?
 *
 * Does:    reads a list of files for each side, pairs them in order, and gives for every
 * measurement that both have the ratio of speeds with an interval. Method:  with three pairs or
 * more, Student's t on the logarithms of the pairs' ratios of median speeds: what slows both runs
 * of a pair cancels, what differs between runs is in the interval. With fewer, a bootstrap of the
 * medians, widened by COMPARE_BETWEEN, since one run cannot show how runs differ. Intervals hold
 * together: 95 % for the whole table. Less than COMPARE_LEAST is never called a difference.
 */
#ifndef CALLA_BENCH_COMPARE_H
#define CALLA_BENCH_COMPARE_H

#include "base/error.h"

#define COMPARE_BETWEEN 0.03
#define COMPARE_LEAST   0.005

/* a, b: "FILE" or "FILE,FILE,...", as many of each. Prints the table, what only
 * one side has, and which conditions differ; *slower: some measurement of b is slower than a's. */
calla_status bench_compare(const char *a, const char *b, bool *slower, calla_error *err);

#endif
