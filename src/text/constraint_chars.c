/* Sets of characters, and texts over them in the three styles.
 *
 * Inside a tool call the output parser looks for closing tags in every text, so that none may hold
 * what could end it: JSON strings have no "</" there ("<\/" says the same), and limited raw texts
 * neither "</" nor "<p". One bit of the state says that the last byte was a "<". */
#include <stdlib.h>
#include <string.h>

#include "text/constraint_build.h"
#include "text/utf8.h"

#define CP_MAX     0x10ffffu
#define INLINE_MAX 8u /* edges of texts whose long characters are written out at every edge */

/* ---- Sets ---- */

static int by_lo(const void *a, const void *b)
{
    const cp_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorts, joins. Returns the new n. */
static size_t normalise(cp_range *r, size_t n)
{
    size_t m = 0;
    if (n != 0) qsort(r, n, sizeof *r, by_lo);
    for (size_t i = 0; i < n; i++) {
        if (m != 0 && r[i].lo <= r[m - 1].hi + 1) {
            if (r[i].hi > r[m - 1].hi) r[m - 1].hi = r[i].hi;
        } else {
            r[m++] = r[i];
        }
    }
    return m;
}

/* out has room for n + 1. */
static size_t complement(const cp_range *r, size_t n, cp_range *out)
{
    size_t m = 0;
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (r[i].lo > next) out[m++] = (cp_range){next, r[i].lo - 1};
        next = r[i].hi + 1;
    }
    if (next <= CP_MAX) out[m++] = (cp_range){next, CP_MAX};
    return m;
}

static char_class *intern(builder *b, const cp_range *r, size_t n, bool any)
{
    for (char_class *c = b->classes; c != NULL; c = c->next) {
        build_spend(b, 1);
        if (c->any == any && c->n == n && (n == 0 || memcmp(c->ranges, r, n * sizeof *r) == 0))
            return c;
    }
    char_class *c = arena_alloc(&b->mem, sizeof *c);
    cp_range *copy = arena_alloc(&b->mem, (n + 1) * sizeof *copy);
    if (c == NULL || copy == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return NULL;
    }
    if (n != 0) memcpy(copy, r, n * sizeof *r);
    *c = (char_class){.ranges = copy, .n = n, .any = any, .next = b->classes};
    return b->classes = c;
}

char_class *chars_class(builder *b, const cp_range *ranges, size_t n, bool negate)
{
    if (b->status != CALLA_OK) return NULL;
    cp_range *r = mem_array(n + 3, sizeof *r), *other = mem_array(n + 4, sizeof *other);
    char_class *c = NULL;
    if (r == NULL || other == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
    } else {
        if (n != 0) memcpy(r, ranges, n * sizeof *r);
        size_t m = normalise(r, n);
        if (!negate) { /* taking the surrogates out is easiest in the complement */
            m = complement(r, m, other);
            memcpy(r, other, m * sizeof *r);
        }
        r[m++] = (cp_range){0xd800, 0xdfff};
        m = complement(r, normalise(r, m), other);
        c = intern(b, other, m, false);
    }
    mem_free(r);
    mem_free(other);
    return c;
}

char_class *chars_any(builder *b)
{
    static const cp_range all[] = {{0, 0xd7ff}, {0xe000, CP_MAX}};
    if (b->any == NULL && b->status == CALLA_OK) b->any = intern(b, all, 2, true);
    return b->any;
}

/* ---- NFAs over characters ---- */

uint32_t chars_node(builder *b, chars_nfa *m)
{
    if (m->n_nodes >= BUILD_NODES_MAX / 4)
        build_fail(b, CALLA_ERR_UNSUPPORTED, "the pattern is too large to enforce");
    return b->status == CALLA_OK ? m->n_nodes++ : 0;
}

void chars_link(builder *b, chars_nfa *m, uint32_t from, uint32_t to, char_class *on)
{
    if (b->status != CALLA_OK) return;
    if (m->n_edges == m->cap_edges) {
        const uint32_t cap = m->cap_edges == 0 ? 16 : m->cap_edges * 2;
        chars_edge *grown =
            cap > BUILD_EDGES_MAX ? NULL : mem_resize(m->edges, cap * sizeof *grown);
        if (grown == NULL) {
            build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
            return;
        }
        m->edges = grown;
        m->cap_edges = cap;
    }
    m->edges[m->n_edges++] = (chars_edge){from, to, on};
}

void chars_deinit(chars_nfa *m)
{
    mem_free(m->edges);
    *m = (chars_nfa){0};
}

/* ---- Writing one character ---- */

/* Does the style write this character as the one byte that it is? */
static bool is_plain(uint32_t cp, text_style style)
{
    if (style == STYLE_RAW) return (cp >= 0x20 && cp < 0x7f) || cp == '\n' || cp == '\t';
    return cp >= 0x20 && cp < 0x80 && cp != '"' && cp != '\\';
}

/* A hexadecimal digit of value lo ... hi. */
static void build_hex(builder *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    for (uint32_t x = lo; x <= hi; x++) {
        build_bytes(b, from, to, x < 10 ? '0' + x : 'a' + x - 10, x < 10 ? '0' + x : 'a' + x - 10);
        if (x >= 10) build_bytes(b, from, to, 'A' + x - 10, 'A' + x - 10);
    }
}

static uint32_t build_hexes(builder *b, uint32_t from, int n)
{
    for (; n > 0; n--) {
        const uint32_t to = build_node(b);
        build_hex(b, from, to, 0, 15);
        from = to;
    }
    return from;
}

/* Every escape that stands for a character; a pair of surrogates is one. */
static void build_escapes(builder *b, uint32_t from, uint32_t to)
{
    const uint32_t esc = build_text(b, from, "\\", 1);
    for (const char *c = "\"\\/bfnrt"; *c != '\0'; c++)
        build_bytes(b, esc, to, (uint8_t)*c, (uint8_t)*c);
    const uint32_t u = build_text(b, esc, "u", 1);
    const uint32_t other = build_node(b), d = build_node(b), low = build_node(b),
                   high = build_node(b);
    build_hex(b, u, other, 0, 12);
    build_hex(b, u, other, 14, 15);
    build_skip(b, build_hexes(b, other, 3), to);
    build_hex(b, u, d, 13, 13);
    build_hex(b, d, low, 0, 7);
    build_skip(b, build_hexes(b, low, 2), to);
    build_hex(b, d, high, 8, 11);
    uint32_t second = build_hexes(b, high, 2);
    second = build_text(b, second, "\\u", 2);
    const uint32_t d2 = build_node(b), tail = build_node(b);
    build_hex(b, second, d2, 13, 13);
    build_hex(b, d2, tail, 12, 15);
    build_skip(b, build_hexes(b, tail, 2), to);
}

/* The only escape of an ASCII character that is not plain. */
static void build_escape(builder *b, uint32_t from, uint32_t to, uint32_t cp)
{
    static const char names[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = cp == 0 ? NULL : strchr(names, (int)cp);
    uint32_t end = build_text(b, from, "\\", 1);
    if (at != NULL) {
        end = build_text(b, end, &letters[at - names], 1);
    } else {
        end = build_puts(b, end, cp < 16 ? "u000" : "u001");
        const uint32_t next = build_node(b);
        build_hex(b, end, next, cp & 15, cp & 15);
        end = next;
    }
    build_skip(b, end, to);
}

/* The characters of c that are not plain. */
static void build_long(builder *b, uint32_t from, uint32_t to, const char_class *c,
                       text_style style)
{
    const bool json = style != STYLE_RAW;
    for (size_t i = 0; i < c->n; i++) {
        const uint32_t lo = c->ranges[i].lo, hi = c->ranges[i].hi;
        for (uint32_t cp = lo; cp <= hi && cp < 0x80 && json && !c->any; cp++)
            if (!is_plain(cp, style)) build_escape(b, from, to, cp);
        if (hi >= 0x80) build_utf8(b, from, to, lo < 0x80 ? 0x80 : lo, hi);
    }
    if (json && c->any) build_escapes(b, from, to);
}

/* The same as a rule; 0: there are none. */
static uint32_t long_rule(builder *b, char_class *c, text_style style)
{
    if (b->status != CALLA_OK || c->long_rule[style] != 0) return c->long_rule[style];
    bool some = false;
    for (size_t i = 0; i < c->n; i++)
        for (uint32_t cp = c->ranges[i].lo; cp <= c->ranges[i].hi && !some; cp++)
            some = cp >= 0x80 || (style != STYLE_RAW && !is_plain(cp, style));
    if (!some) return 0;
    const uint32_t r = build_rule(b);
    if (b->status != CALLA_OK) return 0;
    c->long_rule[style] = r;
    build_long(b, b->rules[r].start, b->rules[r].accept, c, style);
    return r;
}

typedef struct char_target {
    uint32_t to, after_angle; /* where to go; after a "<" */
    bool from_angle;          /* a "<" comes before */
    uint32_t inlined;         /* where the longer forms begin; BUILD_NONE: they are a rule */
} char_target;

static void build_char(builder *b, uint32_t from, char_target t, char_class *c, text_style style)
{
    const bool guarded = style != STYLE_JSON;
    for (size_t i = 0; i < c->n; i++) {
        for (uint32_t cp = c->ranges[i].lo; cp <= c->ranges[i].hi && cp < 0x80;) {
            const bool angle = guarded && cp == '<';
            const bool barred = t.from_angle && (cp == '/' || (style == STYLE_RAW && cp == 'p'));
            uint32_t end = cp + 1;
            if (!angle && !barred && is_plain(cp, style))
                while (end <= c->ranges[i].hi && is_plain(end, style) && end != '<' && end != '/' &&
                       end != 'p')
                    end++;
            if (!barred && is_plain(cp, style))
                build_bytes(b, from, angle ? t.after_angle : t.to, cp, end - 1);
            cp = end;
        }
    }
    if (t.inlined != BUILD_NONE) {
        build_skip(b, from, t.inlined);
        return;
    }
    const uint32_t r = long_rule(b, c, style);
    if (r != 0) build_call(b, from, t.to, r);
}

/* ---- Texts ---- */

uint32_t build_chars(builder *b, uint32_t from, const chars_nfa *m, uint32_t min, uint32_t max,
                     text_style style)
{
    const uint32_t end = build_node(b);
    const uint32_t n_levels = (max == BUILD_NONE ? min : max) + 1; /* characters so far */
    const uint32_t n_flags = style == STYLE_JSON ? 1 : 2;
    if (b->status != CALLA_OK) return 0;
    if (min >= BUILD_NODES_MAX || (max != BUILD_NONE && max >= BUILD_NODES_MAX)) {
        build_fail(b, CALLA_ERR_UNSUPPORTED,
                   "the schema at \"#%s\" has a length of %u, which is too large to enforce",
                   b->path.data == NULL ? "" : b->path.data, max == BUILD_NONE ? min : max);
        return 0;
    }
    const uint32_t base = build_nodes(b, (uint64_t)m->n_nodes * n_levels * n_flags);
    const uint32_t per_level = m->n_nodes * n_flags;
    build_skip(b, from, base + m->start * n_flags);
    for (uint32_t level = 0; level < n_levels && b->status == CALLA_OK; level++) {
        const uint32_t at = base + level * per_level;
        const bool last = level + 1 == n_levels;
        const uint32_t next = last ? at : at + per_level;
        for (uint32_t i = 0; i < m->n_edges && b->status == CALLA_OK; i++) {
            const chars_edge *e = &m->edges[i];
            uint32_t inlined = BUILD_NONE;
            if (e->on != NULL && m->n_edges * n_levels <= INLINE_MAX &&
                (!last || max == BUILD_NONE)) {
                inlined =
                    build_node(b); /* text of no particular length: without calls, it is quick */
                build_long(b, inlined, next + e->to * n_flags, e->on, style);
            }
            for (uint32_t f = 0; f < n_flags; f++) {
                const uint32_t node = at + e->from * n_flags + f;
                const uint32_t to = next + e->to * n_flags;
                if (e->on == NULL)
                    build_skip(b, node, at + e->to * n_flags + f);
                else if (!last || max == BUILD_NONE)
                    build_char(b, node, (char_target){to, to + n_flags - 1, f != 0, inlined}, e->on,
                               style);
            }
        }
        for (uint32_t f = 0; f < n_flags && level >= min; f++)
            build_skip(b, at + m->accept * n_flags + f, end);
    }
    return end;
}

uint32_t build_any_text(builder *b, uint32_t from, uint32_t min, uint32_t max, text_style style)
{
    chars_nfa m = {0};
    const uint32_t node = chars_node(b, &m);
    chars_link(b, &m, node, node, chars_any(b));
    const uint32_t end = build_chars(b, from, &m, min, max, style);
    chars_deinit(&m);
    return end;
}

/* Node of a trie of names; [0] is the root, and as a link none. */
typedef struct name_node {
    uint32_t child, sibling;
    uint32_t cp;   /* that leads here */
    uint32_t node; /* of the NFA */
    bool is_name;
} name_node;

static void link_class(builder *b, chars_nfa *m, uint32_t from, uint32_t to, const cp_range *r,
                       size_t n, bool negate)
{
    char_class *c = chars_class(b, r, n, negate);
    if (c != NULL) chars_link(b, m, from, to, c);
}

/* What leaves the trie at `at`: to `other`. Characters beyond ASCII and escaped ones come in a
 * class of their own, which most nodes share. r: scratch for the children and four more. */
static void link_others(builder *b, chars_nfa *m, const name_node *trie, uint32_t at,
                        uint32_t other, cp_range *r)
{
    static const cp_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}};
    static const cp_range rest[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x80, CP_MAX}};
    size_t n = 0;
    for (uint32_t k = trie[at].child; k != 0; k = trie[k].sibling)
        if (!is_plain(trie[k].cp, STYLE_JSON)) r[n++] = (cp_range){trie[k].cp, trie[k].cp};
    memcpy(r + n, plain, sizeof plain);
    link_class(b, m, trie[at].node, other, r, n + 3, true); /* neither plain nor a child */
    n = 0;
    for (uint32_t k = trie[at].child; k != 0; k = trie[k].sibling)
        if (is_plain(trie[k].cp, STYLE_JSON)) r[n++] = (cp_range){trie[k].cp, trie[k].cp};
    build_spend(b, n);
    memcpy(r + n, rest, sizeof rest);
    link_class(b, m, trie[at].node, other, r, n + 4, true); /* plain, and not a child */
}

static void trie_add(builder *b, chars_nfa *m, chars_name name, name_node *trie, uint32_t *n)
{
    uint32_t at = 0;
    for (size_t i = 0; i < name.n && b->status == CALLA_OK;) {
        uint32_t cp = 0;
        utf8_kind kind;
        i += utf8_read(name.s + i, name.n - i, &cp, &kind);
        uint32_t k = trie[at].child;
        for (; k != 0 && trie[k].cp != cp; k = trie[k].sibling)
            build_spend(b, 1);
        if (k == 0) {
            k = (*n)++;
            trie[k] = (name_node){0, trie[at].child, cp, chars_node(b, m), false};
            trie[at].child = k;
            link_class(b, m, trie[at].node, trie[k].node, &(cp_range){cp, cp}, 1, false);
        }
        at = k;
    }
    trie[at].is_name = true;
}

/* Characters that could be escaped are written in one way until the name differs from all. */
void chars_all_but(builder *b, chars_nfa *m, const chars_name *names, size_t n)
{
    size_t n_max = 0;
    uint32_t n_trie = 1;
    for (size_t i = 0; i < n && n_max <= BUILD_NAMES_MAX; i++)
        n_max += names[i].n;
    if (n_max > BUILD_NAMES_MAX) {
        build_fail(b, CALLA_ERR_UNSUPPORTED,
                   "the schema at \"#%s\" has too many names for additionalProperties",
                   b->path.data == NULL ? "" : b->path.data);
        return;
    }
    m->start = chars_node(b, m);
    m->accept = chars_node(b, m);
    const uint32_t other = chars_node(b, m);
    name_node *trie = mem_array(n_max + 1, sizeof *trie);
    cp_range *scratch = mem_array(n_max + 5, sizeof *scratch);
    if (trie == NULL || scratch == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
    } else {
        trie[0].node = m->start;
        for (size_t i = 0; i < n; i++)
            trie_add(b, m, names[i], trie, &n_trie);
        for (uint32_t k = 0; k < n_trie && b->status == CALLA_OK; k++) {
            link_others(b, m, trie, k, other, scratch);
            if (!trie[k].is_name) chars_link(b, m, trie[k].node, m->accept, NULL);
        }
        chars_link(b, m, other, other, chars_any(b));
        chars_link(b, m, other, m->accept, NULL);
    }
    mem_free(trie);
    mem_free(scratch);
}

uint32_t build_quoted(builder *b, uint32_t from, const char *s, size_t n)
{
    strbuf text = {0};
    if (!json_write_string(&text, s, n))
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
    for (size_t i = 0; i < text.len && b->status == CALLA_OK; i++) {
        const bool guard =
            b->style != STYLE_JSON && i != 0 && text.data[i] == '/' && text.data[i - 1] == '<';
        if (guard) from = build_text(b, from, "\\", 1);
        from = build_text(b, from, &text.data[i], 1);
    }
    strbuf_deinit(&text);
    return from;
}
