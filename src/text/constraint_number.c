/* Ranges of decimal numbers, exactly: the digits are compared with those of the bounds from the
 * left. `tight` to a bound means that all digits so far are equal to it. */
#include <string.h>

#include "text/constraint_build.h"

#define DIGITS CONSTRAINT_DIGITS_MAX
/* Numbers of so many digits stay apart when a reader makes doubles of them: 1.0000000000000000001
 * would be no more than 1. */
#define EXACT 15u

/* A bound without sign: digits of the whole part (no leading zeros, at least one) and of the
 * fraction (no trailing zeros). */
typedef struct decimal {
    uint8_t whole[DIGITS], fraction[DIGITS];
    unsigned n_whole, n_fraction;
    bool negative, zero;
    bool huge; /* more digits than a number may have: beyond all of them */
} decimal;

static void read_exponent(const char *s, int *exponent)
{
    const bool negative = *s == '-';
    int x = 0;
    for (s += *s == '-' || *s == '+'; *s != '\0'; s++)
        if (x < 10000) x = x * 10 + (*s - '0');
    *exponent = negative ? -x : x;
}

/* s: a JSON number. False: it has digits that no number may have. */
static bool decimal_read(decimal *d, const char *s)
{
    char digits[512];
    int n = 0, point = 0, exponent = 0;
    bool in_fraction = false;
    *d = (decimal){.negative = *s == '-'};
    for (s += *s == '-'; *s != '\0' && *s != 'e' && *s != 'E'; s++) {
        in_fraction |= *s == '.';
        if (*s == '.' || (n == 0 && *s == '0' && !in_fraction)) continue;
        if (n == (int)sizeof digits) return false;
        digits[n++] = (char)(*s - '0');
        point += !in_fraction;
    }
    if (*s != '\0') read_exponent(s + 1, &exponent);
    point += exponent; /* digits before the point */
    int first = 0;
    while (first < n && digits[first] == 0)
        first++;
    while (n > first && digits[n - 1] == 0)
        n--;
    d->zero = first == n;
    if (d->zero) point = first = n = 0;
    d->huge = point - first > (int)DIGITS;
    if (d->huge) return true;
    if (n - point > (int)DIGITS) return false;
    for (int i = first; i < point; i++)
        d->whole[d->n_whole++] = (uint8_t)(i < n ? digits[i] : 0);
    if (d->n_whole == 0) d->whole[d->n_whole++] = 0;
    for (int i = point; i < n; i++)
        d->fraction[d->n_fraction++] = (uint8_t)(i < first || i < 0 ? 0 : digits[i]);
    return true;
}

/* Magnitudes from lo to hi; hi NULL: no limit. */
typedef struct span {
    const decimal *lo, *hi;
    bool lo_open, hi_open;
    bool integral;
} span;

typedef struct grid { /* nodes by tightness */
    uint32_t at[2][2];
} grid;

static void new_grid(builder *b, grid *g)
{
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 2; h++)
            g->at[l][h] = build_node(b);
}

/* One more digit; lo, hi: the bounds' digits here. */
static void link_digit(builder *b, const grid *from, const grid *to, unsigned lo, unsigned hi,
                       unsigned least)
{
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 2; h++) {
            const unsigned first = l != 0 && lo > least ? lo : least, last = h != 0 ? hi : 9;
            for (unsigned d = first; d <= last; d++)
                build_bytes(b, from->at[l][h], to->at[l != 0 && d == lo][h != 0 && d == hi],
                            '0' + d, '0' + d);
        }
}

/* May the number end after n digits of the fraction? */
static void link_end(builder *b, const grid *g, uint32_t end, const span *s, unsigned n)
{
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 2; h++) {
            const bool lo_ok = l == 0 || (s->lo->n_fraction <= n && !s->lo_open);
            const bool hi_ok = h == 0 || s->hi == NULL || s->hi->n_fraction > n || !s->hi_open;
            if (lo_ok && hi_ok) build_skip(b, g->at[l][h], end);
        }
}

static unsigned fraction_digit(const decimal *d, unsigned i)
{
    return d != NULL && i < d->n_fraction ? d->fraction[i] : 0;
}

static void build_span(builder *b, uint32_t from, uint32_t end, const span *s)
{
    const unsigned n_lo = s->lo->n_whole, n_hi = s->hi == NULL ? DIGITS : s->hi->n_whole;
    for (unsigned n = n_lo; n <= n_hi && b->status == CALLA_OK; n++) {
        grid g, next;
        new_grid(b, &g);
        build_skip(b, from, g.at[n == n_lo][s->hi != NULL && n == n_hi]);
        for (unsigned i = 0; i < n; i++) {
            new_grid(b, &next);
            link_digit(b, &g, &next, n == n_lo ? s->lo->whole[i] : 0,
                       s->hi != NULL && n == n_hi ? s->hi->whole[i] : 9, i == 0 && n > 1 ? 1 : 0);
            g = next;
        }
        link_end(b, &g, end, s, 0);
        if (s->integral) continue;
        new_grid(b, &next);
        for (int l = 0; l < 2; l++)
            for (int h = 0; h < 2; h++)
                build_bytes(b, g.at[l][h], next.at[l][h], '.', '.');
        for (unsigned i = 0; n + i < EXACT; i++) {
            g = next;
            new_grid(b, &next);
            link_digit(b, &g, &next, fraction_digit(s->lo, i), fraction_digit(s->hi, i), 0);
            link_end(b, &next, end, s, i + 1);
        }
    }
}

/* a before b, as numbers without sign. */
static int compare(const decimal *a, const decimal *b)
{
    if (a->huge || b->huge) return (int)a->huge - (int)b->huge;
    if (a->n_whole != b->n_whole) return a->n_whole < b->n_whole ? -1 : 1;
    const int c = memcmp(a->whole, b->whole, a->n_whole);
    return c != 0 ? c : memcmp(a->fraction, b->fraction, DIGITS);
}

/* The numbers of one sign. near, far: bounds of the magnitude, NULL: none. */
static void build_side(builder *b, uint32_t from, uint32_t end, const decimal *near, bool near_open,
                       const decimal *far, bool far_open, bool integral)
{
    static const decimal zero = {.n_whole = 1, .zero = true};
    if (near == NULL) near = &zero;
    if (near->huge) return;
    if (far != NULL && far->huge) far = NULL;
    if (far != NULL) {
        const int c = compare(near, far);
        if (c > 0 || (c == 0 && (near_open || far_open))) return;
    }
    build_span(b, from, end, &(span){near, far, near_open, far_open, integral});
}

uint32_t build_number_in(builder *b, uint32_t from, const number_bounds *bounds, bool integral)
{
    const uint32_t end = build_node(b);
    decimal lo = {0}, hi = {0};
    if ((bounds->min != NULL && !decimal_read(&lo, bounds->min)) ||
        (bounds->max != NULL && !decimal_read(&hi, bounds->max))) {
        build_fail(
            b, CALLA_ERR_UNSUPPORTED,
            "the schema at \"#%s\" has a bound of more than %u digits, which cannot be enforced",
            b->path.data == NULL ? "" : b->path.data, DIGITS);
        return 0;
    }
    const bool has_lo = bounds->min != NULL, has_hi = bounds->max != NULL;
    const bool lo_below = !has_lo || (lo.negative && !lo.zero); /* below zero */
    const bool hi_below = has_hi && hi.negative && !hi.zero;
    if (!hi_below) { /* zero and above */
        const bool lo_counts = has_lo && !lo_below;
        build_side(b, from, end, lo_counts ? &lo : NULL, lo_counts && bounds->min_open,
                   has_hi ? &hi : NULL, has_hi && bounds->max_open, integral);
    }
    if (lo_below) { /* below zero: the larger the magnitude, the smaller the number */
        const uint32_t minus = build_text(b, from, "-", 1);
        static const decimal zero = {.n_whole = 1, .zero = true};
        build_side(b, minus, end, hi_below ? &hi : &zero, hi_below ? bounds->max_open : true,
                   has_lo ? &lo : NULL, has_lo && bounds->min_open, integral);
    }
    return end;
}
