/* plot_svg.h - the pen of plot_draw.c: shapes, escaped text, labels that keep out of each other's
 *              way, axes.
 *
 * Units:      pixels, y downwards. A box is a rectangle that labels may not touch.
 * Invariants: text is escaped and cut to the width it is given. Widths are estimates (no font is
 *             known), meant to be too large rather than too small.
 * Errors:     strbuf's: check out->failed once.
 */
#ifndef CALLA_BENCH_PLOT_SVG_H
#define CALLA_BENCH_PLOT_SVG_H

#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

#define SVG_BOXES 8192u

typedef struct svg_box {
    double x0, y0, x1, y1;
} svg_box;

typedef struct svg_pen {
    strbuf *out;
    svg_box boxes[SVG_BOXES];
    uint32_t n;
} svg_pen;

typedef enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor;

/* One class of the style sheet: `px` is its font size. */
typedef struct svg_font {
    const char *class;
    double px;
} svg_font;

extern const svg_font svg_title, svg_note, svg_head, svg_tick, svg_value;

double svg_width(const char *s, double px);
void svg_escape(strbuf *out, const char *s);
void svg_text(svg_pen *g, double x, double y, svg_anchor a, svg_font f, double width,
              const char *s);
void svg_line(svg_pen *g, const char *class, double x0, double y0, double x1, double y1);
/* The mark of series i; `hollow` for figures of others. `tip` appears under a pointer. */
void svg_mark(svg_pen *g, uint32_t i, bool hollow, double x, double y, const char *tip);

void svg_block(svg_pen *g, svg_box b);                                       /* no label there */
void svg_block_line(svg_pen *g, double x0, double y0, double x1, double y1); /* nor along this */
/* A label beside `of`, at most `far` away, inside `area`, where nothing is; none when there is no
 * such place. */
bool svg_label(svg_pen *g, svg_box area, svg_box of, svg_font f, double far, const char *s);
/* A label along a line that rises to the right, just above it, at the first free place. */
bool svg_label_along(svg_pen *g, svg_box area, double x0, double y0, double x1, double y1,
                     svg_font f, const char *s);

/* An axis maps values to pixels. */
typedef struct svg_axis {
    double lo, hi; /* values at p0, p1 */
    double p0, p1;
    bool log;
} svg_axis;

double svg_at(const svg_axis *a, double v);
/* The ticks of an axis, ascending: values that deserve a number; at most `max`. */
uint32_t svg_ticks(const svg_axis *a, double *out, uint32_t max);
uint32_t svg_ticks_binary(const svg_axis *a, double *out, uint32_t max); /* powers of two */

#define SVG_NUMBER 40
/* "28,685", "709", "37.6", "0.82": three digits or all before the point, into SVG_NUMBER bytes. */
const char *svg_number(char *to, double v);
const char *svg_length(char *to, double n);               /* 256, 4K, 1M, 3,840 */
const char *svg_si(char *to, double v, const char *unit); /* "4.53 TB/s" */

#endif
