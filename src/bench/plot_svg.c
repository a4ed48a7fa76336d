#include "bench/plot_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const svg_font svg_title = {"t", 19}, svg_note = {"n", 12}, svg_head = {"h", 14},
               svg_tick = {"a", 11}, svg_value = {"v", 10};

/* ---- Text ---- */

/* Bytes of the character at s. */
static size_t n_char(const char *s)
{
    size_t n = 1;
    while (((unsigned char)s[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* In units of the font size. */
static double char_width(const char *s)
{
    const unsigned char c = (unsigned char)*s;
    if (c >= 0x80) return c >= 0xe0 ? 1.0 : 0.65;
    if (strchr("il.,:;'|!() ", c) != NULL) return 0.31;
    if (strchr("mwMW@%", c) != NULL) return 0.9;
    return c >= 'A' && c <= 'Z' ? 0.68 : 0.575;
}

double svg_width(const char *s, double px)
{
    double w = 0.0;
    for (; *s != '\0'; s += n_char(s))
        w += char_width(s);
    return w * px;
}

static void escape_char(strbuf *out, const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    const bool no_xml = u[0] < 0x20 || (n == 3 && u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe);
    if (no_xml)
        (void)strbuf_putc(out, '?');
    else if (*s == '<')
        (void)strbuf_puts(out, "&lt;");
    else if (*s == '>')
        (void)strbuf_puts(out, "&gt;");
    else if (*s == '&')
        (void)strbuf_puts(out, "&amp;");
    else if (*s == '"')
        (void)strbuf_puts(out, "&quot;");
    else
        (void)strbuf_append(out, s, n);
}

void svg_escape(strbuf *out, const char *s)
{
    for (; *s != '\0'; s += n_char(s))
        escape_char(out, s, n_char(s));
}

/* Escapes s, cut to a width. */
static void put_cut(strbuf *out, const char *s, double px, double width)
{
    const bool cut = svg_width(s, px) > width;
    double w = cut ? px : 0.0; /* of the dots */
    for (; *s != '\0'; s += n_char(s)) {
        w += char_width(s) * px;
        if (cut && w > width) break;
        escape_char(out, s, n_char(s));
    }
    if (cut) (void)strbuf_puts(out, "\xe2\x80\xa6");
}

void svg_text(svg_pen *g, double x, double y, svg_anchor a, svg_font f, double width, const char *s)
{
    static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    (void)strbuf_printf(g->out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\"%s>", f.class, x, y,
                        anchors[a]);
    put_cut(g->out, s, f.px, width);
    (void)strbuf_puts(g->out, "</text>\n");
}

/* ---- Shapes ---- */

void svg_line(svg_pen *g, const char *class, double x0, double y0, double x1, double y1)
{
    (void)strbuf_printf(g->out,
                        "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                        class, x0, y0, x1, y1);
}

void svg_mark(svg_pen *g, uint32_t i, bool hollow, double x, double y, const char *tip)
{
    static const char *const shapes[] = {"M-4,0A4,4 0 1 1 4,0A4,4 0 1 1 -4,0Z",
                                         "M-3.5,-3.5H3.5V3.5H-3.5Z", "M0,-5L5,0L0,5L-5,0Z",
                                         "M0,-4.8L4.6,3.4H-4.6Z", "M0,4.8L4.6,-3.4H-4.6Z"};
    (void)strbuf_printf(g->out,
                        "<path class=\"m %s%u\" transform=\"translate(%.1f %.1f)\" d=\"%s\">",
                        hollow ? "o l" : "f", i, x, y, shapes[i % 5]);
    if (tip != NULL) {
        (void)strbuf_puts(g->out, "<title>");
        svg_escape(g->out, tip);
        (void)strbuf_puts(g->out, "</title>");
    }
    (void)strbuf_puts(g->out, "</path>\n");
    svg_block(g, (svg_box){x - 5, y - 5, x + 5, y + 5});
}

/* ---- Labels ---- */

void svg_block(svg_pen *g, svg_box b)
{
    if (g->n < SVG_BOXES) g->boxes[g->n++] = b;
}

void svg_block_line(svg_pen *g, double x0, double y0, double x1, double y1)
{
    const double length = hypot(x1 - x0, y1 - y0);
    const uint32_t n = length < 6000.0 ? (uint32_t)(length / 4.0) + 1 : 1500;
    for (uint32_t i = 0; i <= n; i++) {
        const double x = x0 + (x1 - x0) * i / n, y = y0 + (y1 - y0) * i / n;
        svg_block(g, (svg_box){x - 1, y - 1, x + 1, y + 1});
    }
}

static bool is_free(const svg_pen *g, svg_box area, svg_box b)
{
    if (b.x0 < area.x0 || b.y0 < area.y0 || b.x1 > area.x1 || b.y1 > area.y1) return false;
    if (g->n == SVG_BOXES) return false;
    for (uint32_t i = 0; i < g->n; i++) {
        const svg_box *o = &g->boxes[i];
        if (b.x0 < o->x1 && b.x1 > o->x0 && b.y0 < o->y1 && b.y1 > o->y0) return false;
    }
    return true;
}

bool svg_label(svg_pen *g, svg_box area, svg_box of, svg_font f, double far, const char *s)
{
    const double w = svg_width(s, f.px), h = f.px, gap = 3.0;
    const double x = (of.x0 + of.x1 - w) / 2.0, y = (of.y0 + of.y1 - h) / 2.0;
    for (uint32_t ring = 0; 6.0 * ring <= far; ring++) {
        const double more = 6.0 * ring;
        const double up = of.y0 - gap - h - more, down = of.y1 + gap + more;
        const double left = of.x0 - gap - w - more, right = of.x1 + gap + more;
        const double at[][2] = {{x, up},     {x, down},  {right, y},    {left, y},
                                {right, up}, {left, up}, {right, down}, {left, down}};
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            const svg_box b = {at[i][0], at[i][1], at[i][0] + w, at[i][1] + h};
            if (!is_free(g, area, b)) continue;
            svg_block(g, b);
            svg_text(g, (b.x0 + b.x1) / 2.0, b.y1 - 0.15 * h, SVG_MIDDLE, f, w + 1.0, s);
            return true;
        }
    }
    return false;
}

/* Boxes along a slanted text, from (x, y) in direction (dx, dy); blocks them, or asks. */
static bool along(svg_pen *g, svg_box area, double x, double y, double dx, double dy, double w,
                  double px, bool block)
{
    const double step = px / 2.0;
    for (uint32_t i = 1; i * step < w; i++) {
        const double t = i * step;
        const double cx = x + dx * t + dy * px * 0.4, cy = y + dy * t - dx * px * 0.4;
        const svg_box b = {cx - step, cy - step, cx + step, cy + step};
        if (block)
            svg_block(g, b);
        else if (!is_free(g, area, b))
            return false;
    }
    return true;
}

bool svg_label_along(svg_pen *g, svg_box area, double x0, double y0, double x1, double y1,
                     svg_font f, const char *s)
{
    const double length = hypot(x1 - x0, y1 - y0), w = svg_width(s, f.px), off = 5.0;
    if (length < w + 10.0) return false;
    const double dx = (x1 - x0) / length, dy = (y1 - y0) / length;
    for (uint32_t i = 0; 5.0 + 10.0 * i + w < length; i++) {
        const double t = 5.0 + 10.0 * i;
        const double x = x0 + dx * t + dy * off, y = y0 + dy * t - dx * off;
        if (!along(g, area, x, y, dx, dy, w, f.px, false)) continue;
        (void)along(g, area, x, y, dx, dy, w, f.px, true);
        (void)strbuf_printf(g->out,
                            "<text class=\"%s\" transform=\"translate(%.1f %.1f) rotate(%.2f)\">",
                            f.class, x, y, atan2(dy, dx) * 180.0 / acos(-1.0));
        put_cut(g->out, s, f.px, w + 1.0);
        (void)strbuf_puts(g->out, "</text>\n");
        return true;
    }
    return false;
}

/* ---- Axes ---- */

double svg_at(const svg_axis *a, double v)
{
    const double part =
        a->log ? log(v / a->lo) / log(a->hi / a->lo) : (v - a->lo) / (a->hi - a->lo);
    return a->p0 + part * (a->p1 - a->p0);
}

static uint32_t linear_ticks(const svg_axis *a, double *out, uint32_t max)
{
    const double raw = (a->hi - a->lo) / 5.0, ten = pow(10.0, floor(log10(raw)));
    const double step = raw <= ten       ? ten
                        : raw <= 2 * ten ? 2 * ten
                        : raw <= 5 * ten ? 5 * ten
                                         : 10 * ten;
    uint32_t n = 0;
    const double first = ceil(a->lo / step) * step;
    while (n < max && first + n * step <= a->hi) {
        out[n] = first + n * step;
        n++;
    }
    return n;
}

/* Decades, or 1, 2, 5 of each where there are few. */
uint32_t svg_ticks(const svg_axis *a, double *out, uint32_t max)
{
    static const double digits[] = {1.0, 2.0, 5.0};
    if (!a->log) return linear_ticks(a, out, max);
    const double span = log10(a->hi / a->lo);
    const int every = span > 12.0 ? 3 : 1;
    uint32_t n = 0;
    for (int e = (int)floor(log10(a->lo)); e <= (int)ceil(log10(a->hi)); e += every)
        for (int d = 0; d < (span < 2.6 ? 3 : 1); d++) {
            const double v = digits[d] * pow(10.0, e);
            if (v >= a->lo * 0.999 && v <= a->hi * 1.001 && n < max) out[n++] = v;
        }
    return n;
}

uint32_t svg_ticks_binary(const svg_axis *a, double *out, uint32_t max)
{
    const int from = (int)ceil(log2(a->lo) - 0.01), to = (int)floor(log2(a->hi) + 0.01);
    const int every = (to - from) / 11 + 1;
    uint32_t n = 0;
    for (int e = from; e <= to && n < max; e += every)
        out[n++] = exp2(e);
    return n;
}

/* ---- Numbers ---- */

const char *svg_number(char *to, double v)
{
    char digits[32];
    if (v < 99.95) {
        (void)snprintf(to, SVG_NUMBER, "%.*f", v < 0.995 ? 3 : v < 9.995 ? 2 : 1, v);
        return to;
    }
    const int n = snprintf(digits, sizeof digits, "%.0f", v);
    size_t m = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) to[m++] = ',';
        to[m++] = digits[i];
    }
    to[m] = '\0';
    return to;
}

const char *svg_length(char *to, double n)
{
    static const char *const units[] = {"", "K", "M", "G"};
    size_t u = 0;
    double v = n;
    while (u < 3 && v >= 1024.0 && floor(v / 1024.0) * 1024.0 >= v) {
        v /= 1024.0;
        u++;
    }
    if (v >= 10000.0 || (u == 0 && v > 1000.0)) return svg_number(to, n);
    (void)snprintf(to, SVG_NUMBER, "%.0f%s", v, units[u]);
    return to;
}

const char *svg_si(char *to, double v, const char *unit)
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};
    size_t u = 0;
    while (u < 6 && v >= 999.5) {
        v /= 1000.0;
        u++;
    }
    (void)snprintf(to, SVG_NUMBER, "%.3g %s%.12s", v, units[u], unit);
    return to;
}
