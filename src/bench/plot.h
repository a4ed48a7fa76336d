/* plot.h - results of `calla bench --json` as one SVG: throughput against length, and roofline.
 *
 * Does:       reads results files (formats 1 to 3), then draws them: a panel each for prefill and
 *             decode (median, spread, and the speed that the limits of the file would allow), and
 *             below them FLOP/s against FLOPs per byte with the ceilings of each machine.
 *             Ablated results are left out. A file with a member "source" holds the figures of
 *             others: it is drawn as points without lines.
 * Invariants: the SVG is well-formed XML in UTF-8 whatever the strings of a file hold; long strings
 *             are cut. It brings its colours for light and dark pages. Same files, same bytes.
 * Limits:     PLOT_SERIES_MAX files, PLOT_POINTS_MAX measurements of one kind in each.
 * Errors:     sentences name the file and the member.
 */
#ifndef CALLA_BENCH_PLOT_H
#define CALLA_BENCH_PLOT_H

#include <stddef.h>
#include "base/error.h"
#include "base/mem.h"

#define PLOT_SERIES_MAX 8u
#define PLOT_POINTS_MAX 64u

typedef struct plot plot;

calla_status plot_create(plot **out, calla_error *err);
void plot_destroy(plot *p);

/* Adds what n bytes of JSON hold; `name` (a file's, for messages and equal labels) is copied. */
calla_status plot_add(plot *p, const char *name, const char *json, size_t n, calla_error *err);
calla_status plot_add_file(plot *p, const char *path, calla_error *err);

/* Appends the SVG. CALLA_ERR_ARGUMENT when no file had anything to draw. */
calla_status plot_draw(const plot *p, strbuf *out, calla_error *err);

#endif
