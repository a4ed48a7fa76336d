/* Runs an automaton. A path is a state and a stack of states to return to; stacks share their lower
 * parts, as nodes of a pool that are never changed. All paths read each byte side by side. Calls
 * and returns happen when a byte asks for them, so that one path usually stands for all that could
 * come.
 *
 * Invariants: (1) nodes are younger than the node below them. (2) Every path can be finished within
 * CONSTRAINT_DEPTH_MAX levels (state.need). (3) c->cur and the nodes it uses lie below c->n_kept;
 * what lies above belongs to the call that runs. */
#include "text/constraint.h"

#include <stdatomic.h>
#include <string.h>

#include "text/constraint_build.h"

#define WORK_MAX 128u /* calls and returns looked into for one byte of one path */
#define POOL_MAX 6144u
/* A byte may push this many nodes; live ones are at most PATHS_MAX * DEPTH_MAX. */
#define POOL_STEP (CONSTRAINT_PATHS_MAX * WORK_MAX)

_Static_assert(2 * CONSTRAINT_PATHS_MAX * CONSTRAINT_DEPTH_MAX + POOL_STEP <= POOL_MAX,
               "the pool holds kept nodes, live nodes, and those of one byte");

typedef struct path {
    uint32_t state;
    uint32_t stack; /* node; 0: empty */
} path;

typedef struct stack_node {
    uint32_t below; /* node; 0: none */
    uint32_t to;    /* state to return to */
    uint32_t depth; /* nodes from here down */
} stack_node;

typedef struct program {
    automaton a;
    atomic_uint n_users;
} program;

enum { FIRST_UNKNOWN, FIRST_NO, FIRST_YES };

typedef struct paths {
    path at[CONSTRAINT_PATHS_MAX];
    uint32_t n;
} paths;

struct constraint {
    program *program;
    paths cur;
    uint32_t n_kept, n_pool;
    uint8_t first[256]; /* of cur: what is known of the next byte */
    paths scratch[2];
    path work[WORK_MAX];
    stack_node pool[POOL_MAX]; /* [0] is not used */
    uint32_t moved[POOL_MAX];  /* scratch of compact */
};

/* ---- Life ---- */

static void program_unref(program *p)
{
    if (p == NULL || atomic_fetch_sub(&p->n_users, 1) != 1) return;
    automaton_deinit(&p->a);
    mem_free(p);
}

void constraint_reset(constraint *c)
{
    c->cur.n = 1;
    c->cur.at[0] = (path){c->program->a.rules[0].start, 0};
    c->n_kept = c->n_pool = 1;
    memset(c->first, FIRST_UNKNOWN, sizeof c->first);
}

/* Takes the builder's work over, whether it succeeds or not. */
static calla_status finish(constraint **out, builder *b, calla_error *err)
{
    *out = NULL;
    automaton a;
    const calla_status st = build_finish(b, &a, err);
    builder_deinit(b);
    if (st != CALLA_OK) return st;
    constraint *c = mem_alloc(sizeof *c);
    program *p = mem_alloc(sizeof *p);
    if (c == NULL || p == NULL) {
        automaton_deinit(&a);
        mem_free(c);
        mem_free(p);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a constraint");
    }
    p->a = a;
    atomic_init(&p->n_users, 1);
    c->program = p;
    constraint_reset(c);
    *out = c;
    return CALLA_OK;
}

calla_status constraint_json_object(constraint **out, calla_error *err)
{
    builder b;
    builder_init(&b);
    if (b.status == CALLA_OK) build_skip(&b, build_object(&b, b.rules[0].start), b.rules[0].accept);
    return finish(out, &b, err);
}

calla_status constraint_json_schema(constraint **out, const json_value *schema, bool strict,
                                    calla_error *err)
{
    builder b;
    builder_init(&b);
    b.root = schema;
    b.strict = strict;
    if (b.status == CALLA_OK)
        build_skip(&b, build_schema(&b, b.rules[0].start, schema), b.rules[0].accept);
    build_refs(&b);
    return finish(out, &b, err);
}

calla_status constraint_tool_calls(constraint **out, const constraint_tool_options *options,
                                   calla_error *err)
{
    builder b;
    builder_init(&b);
    if (b.status == CALLA_OK) build_tool_calls(&b, options);
    return finish(out, &b, err);
}

calla_status constraint_clone(constraint **out, const constraint *c, calla_error *err)
{
    constraint *copy = mem_alloc(sizeof *copy);
    *out = copy;
    if (copy == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a constraint");
    copy->program = c->program;
    atomic_fetch_add(&c->program->n_users, 1);
    copy->cur = c->cur;
    copy->n_kept = copy->n_pool = c->n_kept;
    memcpy(copy->pool, c->pool, c->n_kept * sizeof *c->pool);
    return CALLA_OK;
}

void constraint_destroy(constraint *c)
{
    if (c == NULL) return;
    program_unref(c->program);
    mem_free(c);
}

uint32_t constraint_n_states(const constraint *c)
{
    return c->program->a.n_states;
}

uint64_t constraint_bytes(const constraint *c)
{
    const automaton *a = &c->program->a;
    return sizeof *c + sizeof *c->program + (uint64_t)a->n_states * sizeof *a->states +
           (uint64_t)a->n_bytes * sizeof *a->bytes + (uint64_t)a->n_calls * sizeof *a->calls +
           (uint64_t)a->n_rules * sizeof *a->rules +
           (a->table == NULL ? 0 : (uint64_t)a->n_states * a->n_classes * sizeof *a->table);
}

/* ---- The stacks ---- */

static uint32_t depth_of(const constraint *c, uint32_t stack)
{
    return stack == 0 ? 0 : c->pool[stack].depth;
}

/* An equal node of the same byte is used again, so that equal paths are seen to be equal. */
static uint32_t push(constraint *c, uint32_t below, uint32_t to, uint32_t n_before)
{
    for (uint32_t i = n_before; i < c->n_pool; i++)
        if (c->pool[i].below == below && c->pool[i].to == to) return i;
    c->pool[c->n_pool] = (stack_node){below, to, depth_of(c, below) + 1};
    return c->n_pool++;
}

/* Moves the nodes from `base` on that the paths use together. */
static void compact(constraint *c, uint32_t base, paths *p)
{
    memset(c->moved + base, 0, (c->n_pool - base) * sizeof *c->moved);
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = p->at[i].stack; k >= base && c->moved[k] == 0; k = c->pool[k].below)
            c->moved[k] = 1;
    uint32_t n = base;
    for (uint32_t k = base; k < c->n_pool; k++) {
        if (c->moved[k] == 0) continue;
        stack_node node = c->pool[k];
        if (node.below >= base) node.below = c->moved[node.below];
        c->pool[n] = node;
        c->moved[k] = n++;
    }
    c->n_pool = n;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->at[i].stack >= base) p->at[i].stack = c->moved[p->at[i].stack];
}

/* ---- One byte ---- */

static void add_path(paths *out, path p)
{
    for (uint32_t i = 0; i < out->n; i++)
        if (out->at[i].state == p.state && out->at[i].stack == p.stack) return;
    if (out->n < CONSTRAINT_PATHS_MAX) out->at[out->n++] = p;
}

/* The state after a byte, or BUILD_NONE. */
static uint32_t follow(const automaton *a, const dfa_state *s, uint8_t byte)
{
    const byte_edge *e = a->bytes + s->i_byte;
    for (uint32_t i = 0; i < s->n_byte; i++)
        if (byte <= e[i].hi) return byte >= e[i].lo ? e[i].to : BUILD_NONE;
    return BUILD_NONE;
}

static void step_path(constraint *c, path p, uint8_t byte, paths *out)
{
    const automaton *a = &c->program->a;
    const uint32_t n_before = c->n_pool;
    uint32_t n = 0, n_looked = 0;
    c->work[n++] = p;
    while (n != 0 && n_looked++ < WORK_MAX) {
        const path at = c->work[--n];
        const dfa_state *s = &a->states[at.state];
        const uint32_t depth = depth_of(c, at.stack);
        const uint32_t to = follow(a, s, byte);
        if (to != BUILD_NONE && depth + a->states[to].need <= CONSTRAINT_DEPTH_MAX)
            add_path(out, (path){to, at.stack});
        if (s->final && at.stack != 0 && n < WORK_MAX)
            c->work[n++] = (path){c->pool[at.stack].to, c->pool[at.stack].below};
        for (uint32_t i = s->n_call; i-- > 0 && n < WORK_MAX;) {
            const call_edge *e = &a->calls[s->i_call + i];
            const dfa_rule *r = &a->rules[e->rule];
            if ((r->first[byte >> 6] >> (byte & 63) & 1) == 0) continue;
            if (depth + 1 + a->states[r->start].need > CONSTRAINT_DEPTH_MAX ||
                depth + a->states[e->to].need > CONSTRAINT_DEPTH_MAX)
                continue;
            c->work[n++] = (path){r->start, push(c, at.stack, e->to, n_before)};
        }
    }
}

/* Follows one path through the table as far as it says where to go. Returns the bytes read; *dead:
 * the next one cannot come. */
static size_t run_table(const automaton *a, uint32_t *at, const char *bytes, size_t n, bool *dead)
{
    size_t i = 0;
    *dead = false;
    for (; i < n; i++) {
        const uint32_t to = a->table[*at * a->n_classes + a->class_of[(uint8_t)bytes[i]]];
        if (to >= TABLE_DEAD) {
            *dead = to == TABLE_DEAD;
            break;
        }
        *at = to;
    }
    return i;
}

/* Where the bytes lead; NULL: nowhere. Nodes below n_kept stay. */
static paths *run(constraint *c, const char *bytes, size_t n)
{
    const automaton *a = &c->program->a;
    const paths *from = &c->cur;
    paths *to = &c->scratch[0];
    for (size_t i = 0; i < n; i++) {
        to = from == &c->scratch[0] ? &c->scratch[1] : &c->scratch[0];
        to->n = 0;
        if (from->n == 1 && a->table != NULL) {
            bool dead;
            to->at[0] = from->at[0];
            i += run_table(a, &to->at[0].state, bytes + i, n - i, &dead);
            if (dead) return NULL;
            if (i == n) {
                to->n = 1;
                return to;
            }
            step_path(c, to->at[0], (uint8_t)bytes[i], to);
        } else {
            for (uint32_t k = 0; k < from->n; k++)
                step_path(c, from->at[k], (uint8_t)bytes[i], to);
        }
        if (to->n == 0) return NULL;
        if (c->n_pool > POOL_MAX - POOL_STEP) compact(c, c->n_kept, to);
        from = to;
    }
    return to;
}

/* ---- The interface ---- */

bool constraint_try(constraint *c, const char *bytes, size_t n)
{
    if (n == 0) return false;
    uint8_t *first = &c->first[(uint8_t)bytes[0]]; /* most tokens of a vocabulary end here */
    if (*first == FIRST_UNKNOWN) {
        *first = run(c, bytes, 1) != NULL ? FIRST_YES : FIRST_NO;
        c->n_pool = c->n_kept;
    }
    if (*first == FIRST_NO || n == 1) return *first == FIRST_YES;
    const bool ok = run(c, bytes, n) != NULL;
    c->n_pool = c->n_kept;
    return ok;
}

bool constraint_advance(constraint *c, const char *bytes, size_t n)
{
    if (n == 0) return true;
    paths *p = run(c, bytes, n);
    if (p == NULL) {
        c->n_pool = c->n_kept;
        return false;
    }
    compact(c, 1, p);
    c->cur.n = p->n;
    memcpy(c->cur.at, p->at, p->n * sizeof *p->at);
    c->n_kept = c->n_pool;
    memset(c->first, FIRST_UNKNOWN, sizeof c->first);
    return true;
}

bool constraint_may_end(const constraint *c)
{
    const dfa_state *states = c->program->a.states;
    for (uint32_t i = 0; i < c->cur.n; i++) {
        path p = c->cur.at[i];
        while (p.stack != 0 && states[p.state].final)
            p = (path){c->pool[p.stack].to, c->pool[p.stack].below};
        if (p.stack == 0 && states[p.state].final) return true;
    }
    return false;
}
