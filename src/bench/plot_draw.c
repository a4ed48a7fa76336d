#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/plot.h"
#include "bench/plot_series.h"
#include "bench/plot_svg.h"

#define WIDTH  960.0
#define MARGIN 24.0

typedef struct figure {
    const plot *p;
    svg_pen g;
    bool log;   /* of both panels of speed */
    bool crowd; /* too many series for a label at every point */
    double y;   /* where the next thing begins */
    double x0;  /* of the next panel */
} figure;

/* Okabe and Ito's colours, told apart by nearly everyone; lighter ones where the page is dark. */
static const struct {
    const char *light, *dark;
} colours[PLOT_SERIES_MAX] = {
    {"#0072b2", "#56b4e9"}, {"#d55e00", "#ff8f3f"}, {"#009e73", "#2fd0a0"}, {"#b0508a", "#e69ac8"},
    {"#b57e00", "#f0c040"}, {"#5b6770", "#b8c2cc"}, {"#882255", "#dd7799"}, {"#3d8fc0", "#9ad8f8"}};

static const char style[] =
    "text{font-family:system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,"
    "sans-serif;fill:#24292f}\n"
    ".bg{fill:#fff;stroke:#d0d7de}\n"
    ".t{font-size:19px;font-weight:600}.n{font-size:12px;fill:#57606a}.h{font-size:14px;"
    "font-weight:600}\n"
    ".a{font-size:11px;fill:#57606a}.v{font-size:10px;fill:#57606a;paint-order:stroke;"
    "stroke:#fff;stroke-width:3px;stroke-linejoin:round}\n"
    ".e{stroke:#e4e8ec;stroke-width:1}.x{stroke:#8c959f;stroke-width:1}\n"
    ".p{fill:none;stroke-width:2;stroke-linejoin:round}.b{opacity:.2}\n"
    ".q{fill:none;stroke-width:1.2;stroke-dasharray:5 4}.c{fill:none;stroke-width:1.6}\n"
    ".w{stroke-width:1.2}.m{stroke:#fff;stroke-width:1}.o{fill:#fff;stroke-width:2}\n";

static const char style_dark[] =
    "text{fill:#e6edf3}.bg{fill:#0d1117;stroke:#30363d}.n,.a,.v{fill:#9da7b3}.v{stroke:#0d1117}\n"
    ".e{stroke:#222a33}.x{stroke:#6e7681}.b{opacity:.28}.m{stroke:#0d1117}.o{fill:#0d1117}\n";

static void put_style(figure *f)
{
    strbuf *out = f->g.out;
    (void)strbuf_printf(out, "<style>\n%s", style);
    for (uint32_t i = 0; i < f->p->n; i++)
        (void)strbuf_printf(out, ".l%u{stroke:%s}.f%u{fill:%s}\n", i, colours[i].light, i,
                            colours[i].light);
    (void)strbuf_printf(out, "@media (prefers-color-scheme:dark){\n%s", style_dark);
    for (uint32_t i = 0; i < f->p->n; i++)
        (void)strbuf_printf(out, ".l%u{stroke:%s}.f%u{fill:%s}\n", i, colours[i].dark, i,
                            colours[i].dark);
    (void)strbuf_puts(out, "}\n</style>\n");
}

/* ---- Head and foot ---- */

/* The only series that is ours, or NULL. */
static const plot_series *alone(const plot *p)
{
    const plot_series *one = NULL;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->s[i]->quoted) continue;
        if (one != NULL) return NULL;
        one = p->s[i];
    }
    return one;
}

static const char *common_model(const plot *p)
{
    const char *model = NULL;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->s[i]->quoted || p->s[i]->model[0] == '\0') continue;
        if (model != NULL && strcmp(model, p->s[i]->model) != 0) return NULL;
        model = p->s[i]->model;
    }
    return model;
}

static void title_of(const plot *p, char *to, size_t n)
{
    const plot_series *one = alone(p);
    const char *model = common_model(p);
    if (one != NULL && one->machine[0] != '\0')
        (void)snprintf(to, n, "%s on %s", model != NULL ? model : "calla", one->machine);
    else
        (void)snprintf(to, n, "calla bench: %s", model != NULL ? model : "several models");
}

/* A legend says it too. */
static bool has_subtitle(const plot *p)
{
    return p->n == 1 && p->s[0]->how[0] != '\0';
}

static bool has_legend(const plot *p)
{
    return p->n > 1;
}

/* The legend's rows, drawn, or only counted. */
static uint32_t legend(figure *f, bool draw)
{
    double x = MARGIN, y = f->y;
    uint32_t rows = 1;
    for (uint32_t i = 0; i < f->p->n; i++) {
        const plot_series *s = f->p->s[i];
        double w = svg_width(s->label, svg_note.px);
        if (w > WIDTH - 2 * MARGIN - 16) w = WIDTH - 2 * MARGIN - 16;
        if (x > MARGIN && x + 16 + w > WIDTH - MARGIN) {
            x = MARGIN;
            y += 19;
            rows++;
        }
        if (draw) {
            svg_mark(&f->g, i, s->quoted, x + 5, y - 4, NULL);
            svg_text(&f->g, x + 16, y, SVG_START, svg_note, w + 1, s->label);
        }
        x += 16 + w + 24;
    }
    return rows;
}

static void put_head(figure *f, double height)
{
    strbuf *out = f->g.out;
    char title[3 * PLOT_TEXT];
    title_of(f->p, title, sizeof title);
    (void)strbuf_printf(out,
                        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                        "viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n<title>",
                        WIDTH, height, WIDTH, height);
    svg_escape(out, title);
    (void)strbuf_puts(out, "</title>\n");
    put_style(f);
    (void)strbuf_printf(out,
                        "<rect class=\"bg\" x=\".5\" y=\".5\" width=\"%.0f\" height=\"%.0f\" "
                        "rx=\"6\"/>\n",
                        WIDTH - 1, height - 1);
    svg_text(&f->g, MARGIN, 38, SVG_START, svg_title, WIDTH - 2 * MARGIN, title);
    f->y = 60;
    if (has_subtitle(f->p)) {
        svg_text(&f->g, MARGIN, f->y, SVG_START, svg_note, WIDTH - 2 * MARGIN, f->p->s[0]->how);
        f->y += 22;
    }
    if (has_legend(f->p)) f->y += 19.0 * legend(f, true);
    f->y += 4;
}

/* What points, bands and dashes are, of those that are there. */
static void explain(const plot *p, char *to, size_t n)
{
    bool intervals = false, extremes = false, quoted = false, bounds = false;
    for (uint32_t i = 0; i < p->n; i++) {
        const plot_series *s = p->s[i];
        intervals = intervals || s->intervals;
        extremes = extremes || s->extremes;
        quoted = quoted || s->quoted;
        for (uint32_t k = 0; k < PLOT_KINDS; k++)
            bounds = bounds || (s->n[k] > 0 && plot_bound(s, &s->points[k][0]) > 0.0);
    }
    const char *spread = intervals && extremes ? ", bands their 95 % intervals or all measurements"
                         : intervals           ? ", bands their 95 % intervals"
                         : extremes            ? ", bands all measurements"
                                               : "";
    (void)snprintf(to, n, "Points are medians%s.%s%s", spread,
                   bounds ? " Dashed: what the limits measured in the same run allow." : "",
                   quoted ? " Hollow: reported by others, not measured." : "");
}

static void put_foot(figure *f)
{
    char line[PLOT_SERIES_MAX * 2 * PLOT_TEXT] = "calla ";
    size_t n = strlen(line);
    for (uint32_t i = 0; i < f->p->n; i++) {
        const plot_series *s = f->p->s[i];
        char one[2 * PLOT_TEXT];
        (void)snprintf(one, sizeof one, "%.40s%s%.40s", s->commit, *s->date != '\0' ? ", " : "",
                       s->date);
        if (s->quoted || strstr(line, one) != NULL) continue;
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%s", n > 6 ? "; " : "", one);
    }
    char words[300];
    explain(f->p, words, sizeof words);
    svg_text(&f->g, MARGIN, f->y, SVG_START, svg_tick, WIDTH - 2 * MARGIN, words);
    svg_text(&f->g, MARGIN, f->y + 17, SVG_START, svg_tick, WIDTH - 2 * MARGIN, line);
    (void)strbuf_puts(f->g.out, "</svg>\n");
}

/* ---- Speed against length ---- */

typedef struct range {
    double lo, hi;
} range;

static void widen(range *r, double v)
{
    if (!(v > 0.0)) return;
    if (r->lo <= 0.0 || v < r->lo) r->lo = v;
    if (v > r->hi) r->hi = v;
}

static void ranges(const plot *p, uint32_t kind, range *tokens, range *rate)
{
    *tokens = *rate = (range){0.0, 0.0};
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t j = 0; j < p->s[i]->n[kind]; j++) {
            const plot_point *q = &p->s[i]->points[kind][j];
            widen(tokens, q->tokens);
            widen(rate, q->low);
            widen(rate, q->high);
            widen(rate, plot_bound(p->s[i], q));
        }
}

typedef struct panel {
    svg_box area;
    svg_axis x, y;
} panel;

static const char *tick_number(char *to, double v)
{
    if (v >= 1000.0) return svg_number(to, v);
    (void)snprintf(to, SVG_NUMBER, "%g", v);
    return to;
}

static void put_grid(figure *f, const panel *a, bool binary, const char *unit)
{
    double v[40];
    char text[SVG_NUMBER];
    uint32_t n = svg_ticks(&a->y, v, 40);
    for (uint32_t i = 0; i < n; i++) {
        const double y = svg_at(&a->y, v[i]);
        svg_line(&f->g, "e", a->area.x0, y, a->area.x1, y);
        svg_text(&f->g, a->area.x0 - 7, y + 4, SVG_END, svg_tick, 80,
                 unit != NULL ? svg_si(text, v[i], unit) : tick_number(text, v[i]));
    }
    n = binary ? svg_ticks_binary(&a->x, v, 40) : svg_ticks(&a->x, v, 40);
    for (uint32_t i = 0; i < n; i++) {
        const double x = svg_at(&a->x, v[i]);
        svg_line(&f->g, "e", x, a->area.y0, x, a->area.y1);
        svg_text(&f->g, x, a->area.y1 + 16, SVG_MIDDLE, svg_tick, 60,
                 binary ? svg_length(text, v[i]) : tick_number(text, v[i]));
    }
    svg_line(&f->g, "x", a->area.x0, a->area.y1, a->area.x1, a->area.y1);
}

static bool has_spread(const plot_series *s, uint32_t kind)
{
    for (uint32_t j = 0; j < s->n[kind]; j++)
        if (s->points[kind][j].low < s->points[kind][j].high) return true;
    return false;
}

/* A band, or whiskers where there is one point. */
static void put_spread(figure *f, const panel *a, uint32_t i, uint32_t kind)
{
    const plot_series *s = f->p->s[i];
    const plot_point *q = s->points[kind];
    strbuf *out = f->g.out;
    char class[16];
    if (!has_spread(s, kind)) return;
    (void)snprintf(class, sizeof class, "w l%u", i);
    if (s->quoted || s->n[kind] == 1) {
        for (uint32_t j = 0; j < s->n[kind]; j++)
            if (q[j].low < q[j].high)
                svg_line(&f->g, class, svg_at(&a->x, q[j].tokens), svg_at(&a->y, q[j].low),
                         svg_at(&a->x, q[j].tokens), svg_at(&a->y, q[j].high));
        return;
    }
    (void)strbuf_printf(out, "<polygon class=\"b f%u\" points=\"", i);
    for (uint32_t j = 0; j < s->n[kind]; j++)
        (void)strbuf_printf(out, "%.1f,%.1f ", svg_at(&a->x, q[j].tokens),
                            svg_at(&a->y, q[j].high));
    for (uint32_t j = s->n[kind]; j > 0; j--)
        (void)strbuf_printf(out, "%.1f,%.1f ", svg_at(&a->x, q[j - 1].tokens),
                            svg_at(&a->y, q[j - 1].low));
    (void)strbuf_puts(out, "\"/>\n");
}

/* The line through the medians, or through the bounds where they are known. */
static void put_line(figure *f, const panel *a, uint32_t i, uint32_t kind, bool bound)
{
    const plot_series *s = f->p->s[i];
    double last[2] = {0.0, 0.0};
    uint32_t n = 0;
    for (uint32_t j = 0; j < s->n[kind]; j++) {
        const plot_point *q = &s->points[kind][j];
        const double v = bound ? plot_bound(s, q) : q->rate;
        if (v <= 0.0) continue;
        const double x = svg_at(&a->x, q->tokens), y = svg_at(&a->y, v);
        if (n++ == 0)
            (void)strbuf_printf(f->g.out, "<polyline class=\"%s l%u\" points=\"", bound ? "q" : "p",
                                i);
        else
            svg_block_line(&f->g, last[0], last[1], x, y);
        (void)strbuf_printf(f->g.out, "%.1f,%.1f ", x, y);
        last[0] = x;
        last[1] = y;
    }
    if (n != 0) (void)strbuf_puts(f->g.out, "\"/>\n");
}

static void put_points(figure *f, const panel *a, uint32_t i, uint32_t kind)
{
    const plot_series *s = f->p->s[i];
    for (uint32_t j = 0; j < s->n[kind]; j++) {
        const plot_point *q = &s->points[kind][j];
        char tip[2 * PLOT_TEXT + 5 * SVG_NUMBER], v[4][SVG_NUMBER];
        int n = snprintf(tip, sizeof tip, "%s: %s at %.0f tokens: %s tokens/s", s->label,
                         kind == PLOT_PREFILL ? "prefill" : "decode", q->tokens,
                         svg_number(v[0], q->rate));
        if (q->low < q->high)
            (void)snprintf(tip + n, sizeof tip - (size_t)n, " (%s to %s)", svg_number(v[1], q->low),
                           svg_number(v[2], q->high));
        svg_mark(&f->g, i, s->quoted, svg_at(&a->x, q->tokens), svg_at(&a->y, q->rate), tip);
    }
}

static void label_points(figure *f, const panel *a, uint32_t i, uint32_t kind)
{
    const plot_series *s = f->p->s[i];
    char text[SVG_NUMBER];
    if (f->crowd && !s->quoted) return;
    for (uint32_t j = 0; j < s->n[kind]; j++) {
        const double x = svg_at(&a->x, s->points[kind][j].tokens);
        const double y = svg_at(&a->y, s->points[kind][j].rate);
        (void)svg_label(&f->g, a->area, (svg_box){x - 4, y - 5, x + 4, y + 5}, svg_value, 24.0,
                        svg_number(text, s->points[kind][j].rate));
    }
}

/* One panel; false when there is nothing of this kind. */
static bool put_speed(figure *f, uint32_t kind, double width)
{
    range tokens, rate;
    ranges(f->p, kind, &tokens, &rate);
    if (tokens.hi <= 0.0) return false;
    const svg_box area = {f->x0 + 62, f->y + 30, f->x0 + width, f->y + 310};
    const double pad = tokens.hi > tokens.lo ? pow(tokens.hi / tokens.lo, 0.04) : 2.0;
    const panel a = {
        area,
        {tokens.lo / pad, tokens.hi * pad, area.x0, area.x1, true},
        {f->log ? rate.lo / 1.8 : 0.0, rate.hi * (f->log ? 1.8 : 1.12), area.y1, area.y0, f->log}};
    svg_text(&f->g, area.x0, f->y + 16, SVG_START, svg_head, width,
             kind == PLOT_PREFILL ? f->log ? "Prefill, tokens/s (log scale)" : "Prefill, tokens/s"
             : f->log             ? "Decode, tokens/s (log scale)"
                                  : "Decode, tokens/s");
    svg_text(&f->g, area.x1, area.y1 + 33, SVG_END, svg_tick, width,
             kind == PLOT_PREFILL ? "tokens of prompt" : "tokens of context");
    put_grid(f, &a, true, NULL);
    for (uint32_t i = 0; i < f->p->n; i++)
        put_spread(f, &a, i, kind);
    for (uint32_t i = 0; i < f->p->n; i++) {
        put_line(f, &a, i, kind, true);
        if (!f->p->s[i]->quoted) put_line(f, &a, i, kind, false);
    }
    for (uint32_t i = 0; i < f->p->n; i++)
        put_points(f, &a, i, kind);
    for (uint32_t i = 0; i < f->p->n; i++)
        label_points(f, &a, i, kind);
    f->x0 += width + 30;
    return true;
}

/* ---- Roofline ---- */

static double peak(const plot_series *s)
{
    return s->matrix > 0.0 ? s->matrix : s->vector;
}

static bool on_roof(const plot_point *q)
{
    return q->bytes > 0.0 && q->flops > 0.0;
}

static bool roof_ranges(const plot *p, range *x, range *y)
{
    uint32_t n = 0;
    bool roof = false;
    *x = *y = (range){0.0, 0.0};
    for (uint32_t i = 0; i < p->n; i++) {
        const plot_series *s = p->s[i];
        for (uint32_t k = 0; k < PLOT_KINDS; k++)
            for (uint32_t j = 0; j < s->n[k]; j++) {
                const plot_point *q = &s->points[k][j];
                if (!on_roof(q)) continue;
                widen(x, q->flops / q->bytes);
                widen(y, q->flops * q->rate);
                n++;
            }
        roof = roof || s->read > 0.0 || peak(s) > 0.0;
        widen(y, peak(s));
        if (s->read > 0.0) widen(x, peak(s) / s->read);
    }
    if (n == 0 || !roof) return false;
    *x = (range){x->lo / 4.0, x->hi * 4.0};
    *y = (range){y->lo / 4.0, y->hi * 2.5};
    return true;
}

/* A second, lower ceiling. */
static bool has_vector(const plot_series *s, const panel *a)
{
    return s->vector > a->y.lo && s->vector < s->matrix;
}

/* From where the slope enters the area to the ridge, then flat. */
static void put_roof(figure *f, const panel *a, uint32_t i)
{
    const plot_series *s = f->p->s[i];
    const double top = peak(s);
    double ridge = s->read > 0.0 ? top / s->read : a->x.lo;
    char class[16];
    (void)snprintf(class, sizeof class, "c l%u", i);
    if (s->read > 0.0) {
        const double from = fmax(a->x.lo, a->y.lo / s->read);
        const double to = top > 0.0 ? ridge : fmin(a->x.hi, a->y.hi / s->read);
        const double x0 = svg_at(&a->x, from), y0 = svg_at(&a->y, from * s->read);
        const double x1 = svg_at(&a->x, to), y1 = svg_at(&a->y, to * s->read);
        if (from < to) {
            svg_line(&f->g, class, x0, y0, x1, y1);
            svg_block_line(&f->g, x0, y0, x1, y1);
        }
    }
    if (top > 0.0) {
        ridge = fmax(ridge, a->x.lo);
        svg_line(&f->g, class, svg_at(&a->x, ridge), svg_at(&a->y, top), a->area.x1,
                 svg_at(&a->y, top));
        svg_block_line(&f->g, svg_at(&a->x, ridge), svg_at(&a->y, top), a->area.x1,
                       svg_at(&a->y, top));
    }
    if (has_vector(s, a)) {
        const double from = s->read > 0.0 ? fmax(s->vector / s->read, a->x.lo) : a->x.lo;
        const double y = svg_at(&a->y, s->vector);
        (void)snprintf(class, sizeof class, "q l%u", i);
        svg_line(&f->g, class, svg_at(&a->x, from), y, a->area.x1, y);
        svg_block_line(&f->g, svg_at(&a->x, from), y, a->area.x1, y);
    }
}

static void label_roof(figure *f, const panel *a, uint32_t i)
{
    const plot_series *s = f->p->s[i];
    const double top = peak(s), from = s->read > 0.0 ? fmax(a->x.lo, a->y.lo / s->read) : 0.0;
    char text[2 * PLOT_TEXT + SVG_NUMBER], number[SVG_NUMBER];
    if (s->read > 0.0 && top > 0.0 && from < top / s->read) {
        (void)snprintf(text, sizeof text, "%s %s", s->copy ? "copy" : "read",
                       svg_si(number, s->read, "B/s"));
        (void)svg_label_along(&f->g, a->area, svg_at(&a->x, from), svg_at(&a->y, from * s->read),
                              svg_at(&a->x, top / s->read), svg_at(&a->y, top), svg_value, text);
    }
    for (int vector = 0; vector < 2; vector++) {
        const double v = vector ? s->vector : top;
        const char *kind = vector ? "vector units" : s->matrix_kind;
        if (vector ? !has_vector(s, a) : v <= a->y.lo) continue;
        const double y = svg_at(&a->y, v);
        (void)snprintf(text, sizeof text, "%.60s%s%s", kind, *kind != '\0' ? " " : "",
                       svg_si(number, v, "FLOP/s"));
        const double w = svg_width(text, svg_value.px);
        (void)svg_label(&f->g, a->area, (svg_box){a->area.x1 - w - 6, y - 1, a->area.x1 - 6, y + 1},
                        svg_value, f->crowd ? 0.0 : 24.0, text);
    }
}

/* Neighbours that would share a label get one: "decode 256 to 4K". */
static void label_roof_points(figure *f, const panel *a, uint32_t i, uint32_t kind)
{
    const plot_series *s = f->p->s[i];
    const plot_point *q = s->points[kind];
    const char *name = kind == PLOT_PREFILL ? "prefill" : "decode";
    for (uint32_t j = 0, to; j < s->n[kind]; j = to) {
        svg_box b = {0, 0, 0, 0};
        char text[3 * SVG_NUMBER], v[2][SVG_NUMBER];
        for (to = j; to < s->n[kind] && on_roof(&q[to]); to++) {
            const double x = svg_at(&a->x, q[to].flops / q[to].bytes);
            const double y = svg_at(&a->y, q[to].flops * q[to].rate);
            if (to > j && (x < b.x0 - 18 || x > b.x1 + 18 || y < b.y0 - 18 || y > b.y1 + 18)) break;
            b = to == j ? (svg_box){x, y, x, y}
                        : (svg_box){fmin(b.x0, x), fmin(b.y0, y), fmax(b.x1, x), fmax(b.y1, y)};
        }
        if (to == j) {
            to++;
            continue;
        }
        b = (svg_box){b.x0 - 5, b.y0 - 5, b.x1 + 5, b.y1 + 5};
        if (to == j + 1)
            (void)snprintf(text, sizeof text, "%s %s", name, svg_length(v[0], q[j].tokens));
        else
            (void)snprintf(text, sizeof text, "%s %s to %s", name, svg_length(v[0], q[j].tokens),
                           svg_length(v[1], q[to - 1].tokens));
        (void)svg_label(&f->g, a->area, b, svg_value, f->crowd ? 0.0 : 24.0, text);
    }
}

static void put_roofline(figure *f)
{
    range x, y;
    if (!roof_ranges(f->p, &x, &y)) return;
    const svg_box area = {MARGIN + 84, f->y + 30, WIDTH - MARGIN, f->y + 370};
    const panel a = {
        area, {x.lo, x.hi, area.x0, area.x1, true}, {y.lo, y.hi, area.y1, area.y0, true}};
    svg_text(&f->g, area.x0, f->y + 16, SVG_START, svg_head, 600,
             "Roofline: FLOP/s against FLOP per byte");
    svg_text(&f->g, area.x1, area.y1 + 33, SVG_END, svg_tick, 400,
             "FLOP per byte of memory traffic");
    put_grid(f, &a, false, "FLOP/s");
    for (uint32_t i = 0; i < f->p->n; i++)
        put_roof(f, &a, i);
    for (uint32_t i = 0; i < f->p->n; i++)
        for (uint32_t k = 0; k < PLOT_KINDS; k++)
            for (uint32_t j = 0; j < f->p->s[i]->n[k]; j++) {
                const plot_point *q = &f->p->s[i]->points[k][j];
                char tip[2 * PLOT_TEXT + SVG_NUMBER], v[SVG_NUMBER];
                if (!on_roof(q)) continue;
                (void)snprintf(tip, sizeof tip, "%s: %s at %.0f tokens: %s", f->p->s[i]->label,
                               k == PLOT_PREFILL ? "prefill" : "decode", q->tokens,
                               svg_si(v, q->flops * q->rate, "FLOP/s"));
                svg_mark(&f->g, i, f->p->s[i]->quoted, svg_at(&a.x, q->flops / q->bytes),
                         svg_at(&a.y, q->flops * q->rate), tip);
            }
    for (uint32_t i = 0; i < f->p->n; i++)
        for (uint32_t k = 0; k < PLOT_KINDS; k++)
            label_roof_points(f, &a, i, k);
    for (uint32_t i = 0; i < f->p->n; i++)
        label_roof(f, &a, i);
    f->y += 420;
}

/* ---- The whole ---- */

/* How high it all is, and whether speeds need a logarithmic axis. */
static double measure(figure *f)
{
    range tokens, rate, x, y;
    uint32_t n = 0;
    f->log = false;
    f->crowd = f->p->n > 4;
    for (uint32_t k = 0; k < PLOT_KINDS; k++) {
        ranges(f->p, k, &tokens, &rate);
        n += tokens.hi > 0.0;
        if (rate.hi > 12.0 * rate.lo) f->log = true;
    }
    if (n == 0) return 0.0;
    double height = 64.0 + 360.0 + 52.0;
    if (has_subtitle(f->p)) height += 22.0;
    if (has_legend(f->p)) height += 19.0 * legend(f, false);
    if (roof_ranges(f->p, &x, &y)) height += 420.0;
    return height;
}

calla_status plot_draw(const plot *p, strbuf *out, calla_error *err)
{
    figure *f = mem_alloc(sizeof *f);
    if (f == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a plot");
    f->p = p;
    f->g.out = out;
    f->x0 = MARGIN;
    const double height = measure(f);
    if (height > 0.0) {
        range tokens[PLOT_KINDS], rate;
        for (uint32_t k = 0; k < PLOT_KINDS; k++)
            ranges(p, k, &tokens[k], &rate);
        const bool both = tokens[0].hi > 0.0 && tokens[1].hi > 0.0;
        put_head(f, height);
        for (uint32_t k = 0; k < PLOT_KINDS; k++)
            (void)put_speed(f, k, both ? (WIDTH - 2 * MARGIN - 30) / 2 : WIDTH - 2 * MARGIN);
        f->y += 360;
        f->g.n = 0;
        put_roofline(f);
        f->y += 12;
        put_foot(f);
    }
    mem_free(f);
    if (height <= 0.0)
        return err_set(err, CALLA_ERR_ARGUMENT, "no file holds a prefill or a decode to plot");
    return out->failed ? err_set(err, CALLA_ERR_MEMORY, "no memory for a plot") : CALLA_OK;
}
