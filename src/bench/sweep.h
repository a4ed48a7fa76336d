/* sweep.h - prefill and decode over a list of lengths, within a budget of time.
 *
 * Does:    prefills first, then decode, each from the shortest on. One context of growing length
 *          serves all decode lengths: it is measured at the first, fed up to the second, and so on.
 *          What would not fit into memory, or into what is left of the budget by the speeds seen so
 *          far, is left out and noted with the reason; repetitions become fewer before that.
 * Budget:  prefills may use PREFILL_SHARE of it when there are decode lengths. A single measurement
 *          takes half of what is left at most, unless it runs once.
 * Errors:  a failed measurement ends the sweep; nothing measured at all is CALLA_ERR_ARGUMENT.
 */
#ifndef CALLA_BENCH_SWEEP_H
#define CALLA_BENCH_SWEEP_H

#include "bench/measure.h"

#define SWEEP_LENGTHS_MAX   32u
#define SWEEP_PREFILL_SHARE 0.6

typedef struct sweep_lengths {
    uint32_t n[SWEEP_LENGTHS_MAX], n_n;
} sweep_lengths;

/* The article's ten: 256 .. 131072. */
extern const sweep_lengths sweep_article;

/* "256,4096" -> ascending, each once; "" is none. False for anything else. */
bool sweep_parse(const char *text, sweep_lengths *out);

typedef struct sweep_options {
    sweep_lengths prefill, decode;
    double budget; /* seconds; 0: no limit */
    void (*on_result)(void *user, const bench_result *x);
    /* What is measured now, and how far everything is by estimate, in seconds. */
    void (*on_progress)(void *user, const char *what, double done, double total);
    void *user;
} sweep_options;

/* Uses m->o.progress. */
calla_status sweep_run(measure *m, bench_record *r, const sweep_options *o, calla_error *err);

#endif
