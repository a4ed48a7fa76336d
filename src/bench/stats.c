#include "bench/stats.h"

#include <math.h>
#include <stdlib.h>

#define TAIL 0.025

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

void stats_sort(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
}

double stats_median(const double *v, uint32_t n)
{
    return n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2.0;
}

void stats_median_interval(const double *v, uint32_t n, double *low, double *high)
{
    /* below: P(at most k of n lie under the median), in logarithms so that n may be thousands. */
    double below = 0.0, choose = 0.0;
    uint32_t k = 0;
    for (; k < n / 2; k++) {
        below += exp(choose - n * log(2.0));
        if (below > TAIL) break;
        choose += log((double)(n - k) / (k + 1.0));
    }
    const uint32_t first = k > 0 ? k - 1 : 0;
    *low = v[first];
    *high = v[n - 1 - first];
}
