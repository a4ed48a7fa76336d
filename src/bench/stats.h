/* stats.h - medians and how sure they are. */
#ifndef CALLA_BENCH_STATS_H
#define CALLA_BENCH_STATS_H

#include <stdint.h>

void stats_sort(double *v, uint32_t n);
/* Of sorted values, n >= 1. */
double stats_median(const double *v, uint32_t n);
/* The interval between two of the sorted values that covers the median of what they are drawn from
 * with 95 % confidence or more, whatever the distribution: by the binomial distribution of how many
 * lie below it. Five values or fewer cannot say so much (of five, lowest to highest covers 94 %);
 * then it is all of them. */
void stats_median_interval(const double *v, uint32_t n, double *low, double *high);

#endif
