/* From NFAs to the automaton: subset construction rule by rule, where a call of a rule is one more
 * letter of the alphabet. Then the levels of calls that each state needs, and what rules begin
 * with; byte edges into states that cannot reach the end go. */
#include <assert.h>
#include <string.h>

#include "text/constraint_build.h"

#define NEED_NEVER 255u

typedef struct dfa_set {
    uint32_t begin, n; /* in members */
    uint32_t state;    /* number of the state */
} dfa_set;

typedef struct dfa {
    builder *b;
    automaton *a;
    uint32_t cap_states, cap_bytes, cap_calls;
    uint32_t *members; /* of all sets of the rule, each sorted */
    uint32_t n_members, cap_members;
    dfa_set *sets; /* [n_sets] of the rule, in the order of their states */
    uint32_t n_sets, cap_sets;
    uint32_t *table; /* [n_table] hash of sets: index + 1 */
    uint32_t n_table;
    uint32_t *stamp; /* [n_nodes] of the builder */
    uint32_t now;
    uint32_t *stack; /* [n_nodes] */
    uint32_t *found; /* [n_nodes] nodes of the set being collected */
    uint32_t n_found;
    nfa_edge *edges; /* of the state that is being made */
    uint32_t n_byte_edges, n_edges, cap_edges;
} dfa;

static bool room(dfa *d, void *p, uint32_t n, uint32_t *cap, size_t size)
{
    if (d->b->status != CALLA_OK) return false;
    if (n < *cap) return true;
    const uint32_t more = *cap == 0 ? 256 : *cap * 2;
    void *old;
    memcpy(&old, p, sizeof old);
    void *grown = mem_resize(old, (size_t)more * size);
    if (grown == NULL) {
        build_fail(d->b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return false;
    }
    memcpy(p, &grown, sizeof grown);
    *cap = more;
    return true;
}

/* ---- Sets of nodes ---- */

static bool is_skip(const nfa_edge *e)
{
    return e->rule == BUILD_NONE && e->lo > e->hi;
}

/* Adds node and what is reached from it by nothing; only nodes where something happens count. */
static void collect(dfa *d, uint32_t node, uint32_t accept)
{
    uint32_t n = 0;
    if (d->stamp[node] == d->now) return;
    d->stamp[node] = d->now;
    d->stack[n++] = node;
    while (n != 0) {
        const uint32_t at = d->stack[--n];
        d->b->work++;
        bool counts = at == accept;
        for (uint32_t i = d->b->nodes[at]; i != BUILD_NONE; i = d->b->edges[i].next) {
            const nfa_edge *e = &d->b->edges[i];
            d->b->work++;
            if (!is_skip(e)) {
                counts = true;
            } else if (d->stamp[e->to] != d->now) {
                d->stamp[e->to] = d->now;
                d->stack[n++] = e->to;
            }
        }
        if (counts) d->found[d->n_found++] = at;
    }
}

static void sort(uint32_t *v, uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (uint32_t i = gap; i < n; i++) {
            const uint32_t x = v[i];
            uint32_t k = i;
            for (; k >= gap && v[k - gap] > x; k -= gap)
                v[k] = v[k - gap];
            v[k] = x;
        }
}

static uint32_t hash(const uint32_t *v, uint32_t n)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ v[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static void rehash(dfa *d)
{
    if (d->n_sets * 2 < d->n_table) return;
    const uint32_t n = d->n_table * 2;
    uint32_t *table = mem_array(n, sizeof *table);
    if (table == NULL) {
        build_fail(d->b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return;
    }
    for (uint32_t i = 0; i < d->n_sets; i++) {
        uint32_t at = hash(d->members + d->sets[i].begin, d->sets[i].n) & (n - 1);
        while (table[at] != 0)
            at = (at + 1) & (n - 1);
        table[at] = i + 1;
    }
    mem_free(d->table);
    d->table = table;
    d->n_table = n;
}

/* The state of the set found[n_found]; a new one when it has not been met. */
static uint32_t intern(dfa *d)
{
    builder *b = d->b;
    build_spend(b, 4 * (uint64_t)d->n_found); /* what was collected, too */
    sort(d->found, d->n_found);
    rehash(d);
    if (b->status != CALLA_OK) return 0;
    uint32_t at = hash(d->found, d->n_found) & (d->n_table - 1);
    for (; d->table[at] != 0; at = (at + 1) & (d->n_table - 1)) {
        assert(d->sets != NULL && d->members != NULL && d->found != NULL);
        const dfa_set *s = &d->sets[d->table[at] - 1];
        if (s->n == d->n_found &&
            memcmp(d->members + s->begin, d->found, s->n * sizeof *d->found) == 0)
            return s->state;
    }
    if (d->a->n_states == CONSTRAINT_STATES_MAX || d->n_found > BUILD_SETS_MAX - d->n_members) {
        build_fail(b, CALLA_ERR_UNSUPPORTED, "the schema needs more than %u states to be enforced",
                   CONSTRAINT_STATES_MAX);
        return 0;
    }
    const dfa_set s = {d->n_members, d->n_found, d->a->n_states};
    for (uint32_t i = 0; i < d->n_found; i++) {
        if (!room(d, &d->members, d->n_members, &d->cap_members, sizeof *d->members)) return 0;
        d->members[d->n_members++] = d->found[i];
    }
    if (!room(d, &d->sets, d->n_sets, &d->cap_sets, sizeof *d->sets)) return 0;
    if (!room(d, &d->a->states, d->a->n_states, &d->cap_states, sizeof *d->a->states)) return 0;
    d->sets[d->n_sets++] = s;
    d->table[at] = d->n_sets;
    d->a->states[d->a->n_states++] = (dfa_state){.need = NEED_NEVER};
    return s.state;
}

static void begin_set(dfa *d)
{
    d->now++;
    d->n_found = 0;
}

/* ---- Edges of a state ---- */

static void add_byte(dfa *d, dfa_state *s, uint32_t lo, uint32_t hi, uint32_t to)
{
    automaton *a = d->a;
    if (s->n_byte != 0) {
        byte_edge *e = &a->bytes[a->n_bytes - 1];
        if (e->to == to && e->hi + 1u == lo) {
            e->hi = (uint8_t)hi;
            return;
        }
    }
    if (!room(d, &a->bytes, a->n_bytes, &d->cap_bytes, sizeof *a->bytes)) return;
    a->bytes[a->n_bytes++] = (byte_edge){to, (uint8_t)lo, (uint8_t)hi};
    s->n_byte++;
}

/* The edges of a set's nodes that are not nothing: first those of bytes, then the calls. */
static void list_edges(dfa *d, dfa_set set)
{
    builder *b = d->b;
    d->n_byte_edges = d->n_edges = 0;
    for (int calls = 0; calls < 2; calls++) {
        for (uint32_t m = 0; m < set.n; m++) {
            for (uint32_t i = b->nodes[d->members[set.begin + m]]; i != BUILD_NONE;
                 i = b->edges[i].next) {
                const nfa_edge *e = &b->edges[i];
                b->work++;
                if (is_skip(e) || (e->rule != BUILD_NONE) != (calls != 0)) continue;
                if (!room(d, &d->edges, d->n_edges, &d->cap_edges, sizeof *d->edges)) return;
                d->edges[d->n_edges++] = *e;
            }
        }
        if (calls == 0) d->n_byte_edges = d->n_edges;
    }
}

static void expand_bytes(dfa *d, uint32_t accept, dfa_state *s)
{
    bool cut[257] = {false}; /* a range begins here */
    const uint32_t n = d->n_byte_edges;
    for (uint32_t i = 0; i < n; i++)
        cut[d->edges[i].lo] = cut[d->edges[i].hi + 1] = true;
    for (uint32_t lo = 0; n != 0 && lo < 256 && d->b->status == CALLA_OK;) {
        uint32_t end = lo + 1;
        while (end < 256 && !cut[end])
            end++;
        begin_set(d);
        build_spend(d->b, n);
        for (uint32_t i = 0; i < n; i++)
            if (d->edges[i].lo <= lo && lo <= d->edges[i].hi) collect(d, d->edges[i].to, accept);
        if (d->n_found != 0) {
            const uint32_t to = intern(d);
            add_byte(d, s, lo, end - 1, to);
        }
        lo = end;
    }
}

static void expand_calls(dfa *d, uint32_t accept, dfa_state *s)
{
    uint32_t last = 0;
    for (;;) { /* rules in ascending order */
        uint32_t rule = BUILD_NONE;
        build_spend(d->b, 2 * (d->n_edges - d->n_byte_edges));
        for (uint32_t i = d->n_byte_edges; i < d->n_edges; i++)
            if (d->edges[i].rule > last && d->edges[i].rule < rule) rule = d->edges[i].rule;
        if (rule == BUILD_NONE || d->b->status != CALLA_OK) return;
        begin_set(d);
        for (uint32_t i = d->n_byte_edges; i < d->n_edges; i++)
            if (d->edges[i].rule == rule) collect(d, d->edges[i].to, accept);
        last = rule;
        if (d->n_found == 0) continue;
        const uint32_t to = intern(d);
        if (!room(d, &d->a->calls, d->a->n_calls, &d->cap_calls, sizeof *d->a->calls)) return;
        d->a->calls[d->a->n_calls++] = (call_edge){rule, to};
        if (++s->n_call == UINT16_MAX)
            build_fail(d->b, CALLA_ERR_UNSUPPORTED, "the schema is too large to enforce");
    }
}

static void make_rule(dfa *d, uint32_t i_rule)
{
    const nfa_rule r = d->b->rules[i_rule];
    d->n_sets = d->n_members = 0;
    memset(d->table, 0, d->n_table * sizeof *d->table);
    begin_set(d);
    collect(d, r.start, r.accept);
    d->a->rules[i_rule].start = intern(d);
    for (uint32_t i = 0; i < d->n_sets && d->b->status == CALLA_OK; i++) {
        const dfa_set set = d->sets[i];
        dfa_state s = {.i_byte = d->a->n_bytes, .i_call = d->a->n_calls, .need = NEED_NEVER};
        for (uint32_t m = 0; m < set.n; m++)
            s.final |= d->members[set.begin + m] == r.accept;
        list_edges(d, set);
        expand_bytes(d, r.accept, &s);
        expand_calls(d, r.accept, &s);
        if (d->b->status == CALLA_OK) d->a->states[set.state] = s;
    }
}

/* ---- What can be reached ---- */

static uint8_t larger(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

static uint8_t state_need(const automaton *a, const dfa_state *s)
{
    uint8_t need = s->final ? 0 : NEED_NEVER;
    for (uint32_t i = 0; i < s->n_byte; i++) {
        const uint8_t x = a->states[a->bytes[s->i_byte + i].to].need;
        if (x < need) need = x;
    }
    for (uint32_t i = 0; i < s->n_call; i++) {
        const call_edge *c = &a->calls[s->i_call + i];
        const uint8_t in = a->states[a->rules[c->rule].start].need;
        if (in >= CONSTRAINT_DEPTH_MAX) continue;
        const uint8_t x = larger((uint8_t)(in + 1), a->states[c->to].need);
        if (x < need) need = x;
    }
    return need;
}

/* Falls to the least solution; states are numbered outwards, so that going backwards is quick. */
static void find_needs(builder *b, automaton *a)
{
    for (bool changed = true; changed && b->status == CALLA_OK;) {
        changed = false;
        build_spend(b, (uint64_t)a->n_states + a->n_bytes + a->n_calls);
        for (uint32_t i = a->n_states; i-- > 0;) {
            const uint8_t need = state_need(a, &a->states[i]);
            changed |= need != a->states[i].need;
            a->states[i].need = need;
        }
    }
}

static void prune(automaton *a)
{
    for (uint32_t i = 0; i < a->n_states; i++) {
        dfa_state *s = &a->states[i];
        uint16_t n = 0;
        for (uint32_t k = 0; k < s->n_byte; k++) {
            const byte_edge e = a->bytes[s->i_byte + k];
            if (a->states[e.to].need != NEED_NEVER) a->bytes[s->i_byte + n++] = e;
        }
        s->n_byte = n;
        n = 0;
        for (uint32_t k = 0; k < s->n_call; k++) {
            const call_edge e = a->calls[s->i_call + k];
            if (a->states[e.to].need != NEED_NEVER &&
                a->states[a->rules[e.rule].start].need != NEED_NEVER)
                a->calls[s->i_call + n++] = e;
        }
        s->n_call = n;
    }
}

/* First bytes of every rule: grows until nothing changes. Rounds beyond the number of rules mean
 * nothing new, so that it ends. */
static void find_first(builder *b, automaton *a)
{
    for (bool changed = true; changed && b->status == CALLA_OK;) {
        changed = false;
        for (uint32_t r = a->n_rules; r-- > 0;) { /* rules mostly call younger ones */
            const dfa_state *s = &a->states[a->rules[r].start];
            build_spend(b, 16u + s->n_byte + s->n_call);
            uint64_t first[4];
            memcpy(first, a->rules[r].first, sizeof first);
            for (uint32_t i = 0; i < s->n_byte; i++)
                for (uint32_t c = a->bytes[s->i_byte + i].lo; c <= a->bytes[s->i_byte + i].hi; c++)
                    first[c >> 6] |= (uint64_t)1 << (c & 63);
            for (uint32_t i = 0; i < s->n_call; i++)
                for (int k = 0; k < 4; k++)
                    first[k] |= a->rules[a->calls[s->i_call + i].rule].first[k];
            changed |= memcmp(first, a->rules[r].first, sizeof first) != 0;
            memcpy(a->rules[r].first, first, sizeof first);
        }
    }
}

/* Removes, in rounds, rules whose first calls are all of removed rules: what stays calls itself
 * before any byte. */
static bool calls_itself(builder *b, const automaton *a)
{
    bool *removed = mem_array(a->n_rules, 1);
    if (removed == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return false;
    }
    uint32_t n_left = a->n_rules;
    for (bool changed = true; changed && b->status == CALLA_OK;) {
        changed = false;
        for (uint32_t r = a->n_rules; r-- > 0;) {
            const dfa_state *s = &a->states[a->rules[r].start];
            build_spend(b, 1u + s->n_call);
            bool stays = removed[r];
            for (uint32_t i = 0; i < s->n_call; i++)
                stays |= !removed[a->calls[s->i_call + i].rule];
            if (stays) continue;
            removed[r] = changed = true;
            n_left--;
        }
    }
    mem_free(removed);
    return n_left != 0;
}

static void check(builder *b, const automaton *a)
{
    if (a->states[a->rules[0].start].need >= CONSTRAINT_DEPTH_MAX) {
        build_fail(b, CALLA_ERR_UNSUPPORTED, "nothing can satisfy the schema");
        return;
    }
    for (uint32_t r = 1; r < a->n_rules; r++)
        if (a->states[a->rules[r].start].final)
            build_fail(b, CALLA_ERR_INTERNAL, "rule %u of a constraint may be empty", r);
    if (calls_itself(b, a))
        build_fail(b, CALLA_ERR_UNSUPPORTED,
                   "a $ref of the schema leads back to itself with nothing between");
}

/* ---- The table ---- */

static void find_classes(automaton *a)
{
    bool cut[257] = {false};
    for (uint32_t i = 0; i < a->n_bytes; i++)
        cut[a->bytes[i].lo] = cut[a->bytes[i].hi + 1] = true;
    for (uint32_t c = 0; c < 256; c++) { /* first bytes of rules begin at such cuts, too */
        if (c != 0 && cut[c]) a->n_classes++;
        a->class_of[c] = (uint8_t)a->n_classes;
    }
    a->n_classes++;
}

static uint32_t table_entry(const automaton *a, const dfa_state *s, uint32_t byte)
{
    uint32_t to = TABLE_DEAD;
    for (uint32_t i = 0; i < s->n_call; i++)
        if ((a->rules[a->calls[s->i_call + i].rule].first[byte >> 6] >> (byte & 63) & 1) != 0)
            return TABLE_ASK;
    if (s->final) return TABLE_ASK; /* the caller goes on */
    for (uint32_t i = 0; i < s->n_byte; i++) {
        const byte_edge *e = &a->bytes[s->i_byte + i];
        if (e->lo <= byte && byte <= e->hi) to = e->to;
    }
    /* It needs no more levels than before: depth is no question. */
    return to == TABLE_DEAD || a->states[to].need <= s->need ? to : TABLE_ASK;
}

static void make_table(builder *b, automaton *a)
{
    find_classes(a);
    const uint64_t n = (uint64_t)a->n_states * a->n_classes;
    if (n * sizeof *a->table > TABLE_BYTES_MAX) return;
    a->table = mem_array((size_t)n, sizeof *a->table);
    if (a->table == NULL) {
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
        return;
    }
    for (uint32_t i = 0; i < a->n_states && b->status == CALLA_OK; i++) {
        build_spend(b, (uint64_t)a->n_classes * (1u + a->states[i].n_call));
        for (uint32_t c = 0; c < 256; c++)
            if (c == 0 || a->class_of[c] != a->class_of[c - 1])
                a->table[i * a->n_classes + a->class_of[c]] = table_entry(a, &a->states[i], c);
    }
}

/* ---- The whole ---- */

static bool dfa_init(dfa *d, builder *b, automaton *a)
{
    *d = (dfa){.b = b, .a = a, .n_table = 1024};
    a->n_rules = b->n_rules;
    a->rules = mem_array(b->n_rules, sizeof *a->rules);
    d->table = mem_array(d->n_table, sizeof *d->table);
    d->stamp = mem_array(b->n_nodes, sizeof *d->stamp);
    d->stack = mem_array(b->n_nodes, sizeof *d->stack);
    d->found = mem_array(b->n_nodes, sizeof *d->found);
    return a->rules != NULL && d->table != NULL && d->stamp != NULL && d->stack != NULL &&
           d->found != NULL;
}

static void dfa_deinit(dfa *d)
{
    mem_free(d->members);
    mem_free(d->sets);
    mem_free(d->table);
    mem_free(d->stamp);
    mem_free(d->stack);
    mem_free(d->found);
    mem_free(d->edges);
}

calla_status build_finish(builder *b, automaton *out, calla_error *err)
{
    dfa d = {0};
    *out = (automaton){0};
    if (b->status == CALLA_OK && !dfa_init(&d, b, out))
        build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
    for (uint32_t r = 0; r < b->n_rules && b->status == CALLA_OK; r++)
        make_rule(&d, r);
    if (b->status == CALLA_OK) {
        find_needs(b, out);
        prune(out);
        find_first(b, out);
        check(b, out);
    }
    if (b->status == CALLA_OK) make_table(b, out);
    dfa_deinit(&d);
    if (b->status == CALLA_OK) return CALLA_OK;
    automaton_deinit(out);
    if (err != NULL) *err = b->error;
    return b->status;
}
