#include "text/constraint_build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Life ---- */

void builder_init(builder *b)
{
    *b = (builder){.status = CALLA_OK, .n_any_order = ANY_ORDER_MAX};
    build_node(b); /* node 0 belongs to nobody: failed calls return it */
    build_rule(b);
}

void builder_deinit(builder *b)
{
    mem_free(b->nodes);
    mem_free(b->edges);
    mem_free(b->rules);
    mem_free(b->refs);
    arena_deinit(&b->mem);
    strbuf_deinit(&b->path);
}

void automaton_deinit(automaton *a)
{
    mem_free(a->states);
    mem_free(a->bytes);
    mem_free(a->calls);
    mem_free(a->rules);
    mem_free(a->table);
    *a = (automaton){0};
}

void build_fail(builder *b, calla_status code, const char *fmt, ...)
{
    if (b->status != CALLA_OK) return;
    b->status = code;
    b->error.code = code;
    b->error.offset = CALLA_NO_OFFSET;
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->error.message, sizeof b->error.message, fmt, args);
    va_end(args);
}

void build_spend(builder *b, uint64_t n)
{
    b->work += n;
    if (b->work > BUILD_WORK_MAX)
        build_fail(b, CALLA_ERR_UNSUPPORTED,
                   "the schema is too intricate to enforce: its alternatives, optional members "
                   "and patterns multiply");
}

/* Room for one more in *p; false: failed. */
static bool grow(builder *b, void *p, uint32_t n, uint32_t *cap, size_t size)
{
    if (b->status != CALLA_OK) return false;
    if (n < *cap) return true;
    const uint32_t more = *cap == 0 ? 64 : *cap * 2;
    void *old;
    memcpy(&old, p, sizeof old);
    void *grown = mem_resize(old, (size_t)more * size);
    if (grown == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return false;
    }
    memcpy(p, &grown, sizeof grown);
    *cap = more;
    return true;
}

/* ---- Rules ---- */

uint32_t build_nodes(builder *b, uint64_t n)
{
    const uint32_t first = b->n_nodes;
    build_spend(b, n);
    if (b->status == CALLA_OK && n > BUILD_NODES_MAX - first)
        build_fail(b, CALLA_ERR_UNSUPPORTED, "the schema is too large to enforce");
    for (uint64_t i = 0; i < n; i++) {
        if (!grow(b, &b->nodes, b->n_nodes, &b->cap_nodes, sizeof *b->nodes)) return 0;
        b->nodes[b->n_nodes++] = BUILD_NONE;
    }
    return first;
}

uint32_t build_node(builder *b)
{
    return build_nodes(b, 1);
}

uint32_t build_rule(builder *b)
{
    const uint32_t start = build_nodes(b, 2);
    if (b->n_rules == BUILD_RULES_MAX)
        build_fail(b, CALLA_ERR_UNSUPPORTED, "the schema is too large to enforce");
    if (!grow(b, &b->rules, b->n_rules, &b->cap_rules, sizeof *b->rules)) return 0;
    b->rules[b->n_rules] = (nfa_rule){start, start + 1};
    return b->n_rules++;
}

static void add_edge(builder *b, uint32_t from, nfa_edge e)
{
    build_spend(b, 1);
    if (b->status == CALLA_OK && b->n_edges == BUILD_EDGES_MAX)
        build_fail(b, CALLA_ERR_UNSUPPORTED, "the schema is too large to enforce");
    if (!grow(b, &b->edges, b->n_edges, &b->cap_edges, sizeof *b->edges)) return;
    e.next = b->nodes[from];
    b->nodes[from] = b->n_edges;
    b->edges[b->n_edges++] = e;
}

void build_skip(builder *b, uint32_t from, uint32_t to)
{
    add_edge(b, from, (nfa_edge){.to = to, .rule = BUILD_NONE, .lo = 1, .hi = 0});
}

void build_bytes(builder *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    add_edge(b, from,
             (nfa_edge){.to = to, .rule = BUILD_NONE, .lo = (uint8_t)lo, .hi = (uint8_t)hi});
}

void build_call(builder *b, uint32_t from, uint32_t to, uint32_t rule)
{
    add_edge(b, from, (nfa_edge){.to = to, .rule = rule});
}

uint32_t build_text(builder *b, uint32_t from, const char *s, size_t n)
{
    for (size_t i = 0; i < n && b->status == CALLA_OK; i++) {
        const uint32_t to = build_node(b);
        build_bytes(b, from, to, (uint8_t)s[i], (uint8_t)s[i]);
        from = to;
    }
    return from;
}

uint32_t build_puts(builder *b, uint32_t from, const char *s)
{
    return build_text(b, from, s, strlen(s));
}

static unsigned encode(uint32_t cp, uint8_t out[4])
{
    const unsigned n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (unsigned i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 0x3f));
    out[0] = (uint8_t)(n == 1 ? cp : (0xf00u >> n & 0xf0u) | cp);
    return n;
}

/* Cuts the range until every piece is a product of byte ranges; at most six levels deep. */
void build_utf8(builder *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff};
    for (int i = 0; i < 3; i++)
        if (lo <= last[i] && hi > last[i]) {
            build_utf8(b, from, to, lo, last[i]);
            build_utf8(b, from, to, last[i] + 1, hi);
            return;
        }
    uint8_t first[4] = {0}, end[4] = {0};
    const unsigned n = encode(lo, first);
    for (unsigned i = 1; i < n; i++) {
        const uint32_t mask = (1u << 6 * i) - 1;
        if ((lo & ~mask) == (hi & ~mask)) continue;
        if ((lo & mask) != 0) {
            build_utf8(b, from, to, lo, lo | mask);
            build_utf8(b, from, to, (lo | mask) + 1, hi);
            return;
        }
        if ((hi & mask) != mask) {
            build_utf8(b, from, to, lo, (hi & ~mask) - 1);
            build_utf8(b, from, to, hi & ~mask, hi);
            return;
        }
    }
    encode(hi, end);
    for (unsigned i = 0; i < n; i++) {
        const uint32_t next = i + 1 == n ? to : build_node(b);
        build_bytes(b, from, next, first[i], end[i]);
        from = next;
    }
}
