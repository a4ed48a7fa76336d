/* plot_series.h - what src/bench/plot.c has read and plot_svg.c draws. */
#ifndef CALLA_BENCH_PLOT_SERIES_H
#define CALLA_BENCH_PLOT_SERIES_H

#include <stdbool.h>
#include <stdint.h>
#include "bench/plot.h"

#define PLOT_TEXT 120 /* bytes of a string that is kept, NUL included */

enum { PLOT_PREFILL, PLOT_DECODE, PLOT_KINDS };

typedef struct plot_point {
    double tokens;
    double rate, low, high; /* tokens/s: median and spread; low == high: none known */
    double bytes, flops;    /* of a token; 0: unknown */
} plot_point;

typedef struct plot_series {
    char label[PLOT_TEXT], name[PLOT_TEXT];
    char machine[PLOT_TEXT], model[PLOT_TEXT], how[PLOT_TEXT], commit[PLOT_TEXT], date[PLOT_TEXT];
    char matrix_kind[PLOT_TEXT];
    double read, matrix, vector; /* bytes/s, FLOP/s, FLOP/s; 0: unknown */
    bool copy;                   /* `read` is the copy bandwidth: nothing else was known */
    bool quoted;                 /* figures of others */
    bool intervals, extremes;    /* spreads are of 95 % of the median; slowest to fastest */
    plot_point points[PLOT_KINDS][PLOT_POINTS_MAX]; /* ascending by tokens */
    uint32_t n[PLOT_KINDS];
} plot_series;

struct plot {
    plot_series *s[PLOT_SERIES_MAX];
    uint32_t n;
};

/* What the limits allow, tokens/s; 0: unknown. */
double plot_bound(const plot_series *s, const plot_point *p);

#endif
