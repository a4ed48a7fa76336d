/* constraint_build.h - internals of constraint.h: from rules to an automaton.
 *
 * Does:       a builder collects rules; a rule is an NFA whose edges are nothing, a range of bytes,
 *             or a call of another rule. build_finish makes each rule deterministic (alternatives
 *             that begin alike share their beginning) and checks that it can be run.
 *             constraint_build.c: builder; constraint_chars.c: sets of characters, text of a
 *             pattern and length; constraint_regex.c: patterns; constraint_number.c: ranges of
 *             numbers; constraint_value.c: any JSON; constraint_schema.c: schemas;
 *             constraint_tools.c: tool calls; constraint.c: runs it.
 * Errors:     the first failure stays in the builder and turns all that follows into no-ops;
 *             build_finish returns it.
 * Invariants: rules other than the root accept no empty text, and none calls itself before a byte.
 */
#ifndef CALLA_TEXT_CONSTRAINT_BUILD_H
#define CALLA_TEXT_CONSTRAINT_BUILD_H

#include "text/constraint.h"

#define BUILD_NODES_MAX 1048576u   /* of all NFAs */
#define BUILD_EDGES_MAX 4194304u   /* and their edges */
#define BUILD_SETS_MAX  8388608u   /* members of all sets of nodes of one rule */
#define BUILD_WORK_MAX  (1u << 26) /* steps of all loops over more than one schema: some 0.2 s */
#define BUILD_RULES_MAX 16384u
#define BUILD_NAMES_MAX 32768u /* bytes of the names that an additional one must not be */
#define ANY_ORDER_MAX   8u     /* parameters that may come in any order */
#define BUILD_NONE      UINT32_MAX

/* ---- The automaton ---- */

typedef struct byte_edge {
    uint32_t to;
    uint8_t lo, hi;
} byte_edge;

typedef struct call_edge {
    uint32_t rule, to; /* to: where the caller goes on */
} call_edge;

typedef struct dfa_state {
    uint32_t i_byte, i_call;
    uint16_t n_byte, n_call; /* byte edges are disjoint, ascending */
    bool final;              /* the rule may end here */
    uint8_t need;            /* levels of calls without which its end cannot be reached */
} dfa_state;

typedef struct dfa_rule {
    uint32_t start;    /* state */
    uint64_t first[4]; /* bytes it can begin with, a bit each */
} dfa_rule;

typedef struct automaton {
    dfa_state *states;
    byte_edge *bytes;
    call_edge *calls;
    dfa_rule *rules; /* rule 0 is the root */
    uint32_t n_states, n_bytes, n_calls, n_rules;
    /* Bytes of one class are alike in every state. table [n_states, n_classes]: the state that the
     * byte leads to, when nothing else can happen; TABLE_DEAD: it cannot come; TABLE_ASK: look at
     * the edges. NULL: would be too large. */
    uint32_t *table;
    uint32_t n_classes;
    uint8_t class_of[256];
} automaton;

#define TABLE_DEAD      (UINT32_MAX - 1)
#define TABLE_ASK       UINT32_MAX
#define TABLE_BYTES_MAX (8u << 20)

void automaton_deinit(automaton *a);

/* ---- The builder ---- */

typedef struct nfa_edge {
    uint32_t next; /* edge of the same node, or BUILD_NONE */
    uint32_t to;
    uint32_t rule; /* BUILD_NONE: bytes, or nothing when lo > hi */
    uint8_t lo, hi;
} nfa_edge;

typedef struct nfa_rule {
    uint32_t start, accept; /* nodes */
} nfa_rule;

typedef struct cp_range {
    uint32_t lo, hi;
} cp_range;

/* How text is written: in a JSON string, in a JSON string inside a tool call (without "</"), or as
 * it is, between the tags of a parameter. */
typedef enum text_style { STYLE_JSON, STYLE_JSON_IN_CALL, STYLE_RAW, STYLE_N } text_style;

/* A set of characters: sorted, disjoint, no surrogates. */
typedef struct char_class {
    cp_range *ranges; /* [n] */
    size_t n;
    bool any; /* all of them; in JSON every escape is then fine, otherwise only needed ones */
    struct char_class *next;
    uint32_t long_rule[STYLE_N]; /* what is not one byte; 0: not yet built */
} char_class;

typedef struct ref_rule {
    const void *schema;
    uint32_t rule;
    char *path;
    text_style style;
} ref_rule;

typedef struct builder {
    calla_status status;
    calla_error error;
    uint32_t *nodes; /* [n_nodes] first edge of each */
    nfa_edge *edges;
    nfa_rule *rules;
    uint32_t n_nodes, cap_nodes, n_edges, cap_edges, n_rules, cap_rules;
    arena mem;
    char_class *classes, *any;
    uint32_t rule_space, rule_number, rule_integer, rule_value[2],
        rule_free_text; /* 0: not yet built */
    text_style style;   /* of JSON strings now */
    /* Schemas */
    strbuf path;                   /* JSON pointer of the present place */
    bool lenient;                  /* pass over what cannot be enforced */
    bool strict;                   /* as OpenAI wants it */
    const struct json_value *root; /* what "#" means */
    ref_rule *refs;                /* rules of schemas, in the order of their discovery */
    uint32_t n_refs, cap_refs, n_refs_built;
    unsigned depth;
    unsigned n_any_order; /* parameters of a tool that may come in any order */
    uint64_t work;
} builder;

/* Rule 0 is there from the start. */
void builder_init(builder *b);
void builder_deinit(builder *b);

/* Keeps the first failure. */
void build_fail(builder *b, calla_status code, const char *fmt, ...) ATTR_PRINTF(3, 4);
/* Counts steps, so that no schema keeps a processor busy: beyond BUILD_WORK_MAX it fails. */
void build_spend(builder *b, uint64_t n);
uint32_t build_nodes(builder *b, uint64_t n); /* the first of n new ones */
uint32_t build_node(builder *b);
uint32_t build_rule(builder *b);
void build_skip(builder *b, uint32_t from, uint32_t to);
void build_bytes(builder *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);
void build_call(builder *b, uint32_t from, uint32_t to, uint32_t rule);
/* These return the node they end in. */
uint32_t build_text(builder *b, uint32_t from, const char *s, size_t n);
uint32_t build_puts(builder *b, uint32_t from, const char *s);
/* One code point range, not in the surrogates, as UTF-8. */
void build_utf8(builder *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);
/* Everything is built: the automaton, or the first failure. */
calla_status build_finish(builder *b, automaton *out, calla_error *err);

/* ---- constraint_chars.c ---- */

/* Interned; ranges in any order, overlapping or not; surrogates are left out. */
char_class *chars_class(builder *b, const cp_range *ranges, size_t n, bool negate);
char_class *chars_any(builder *b);

typedef struct chars_edge {
    uint32_t from, to;
    char_class *on; /* NULL: nothing */
} chars_edge;

/* An NFA over characters. Zero-initialise; deinit. */
typedef struct chars_nfa {
    chars_edge *edges;
    uint32_t n_edges, cap_edges, n_nodes, start, accept;
} chars_nfa;

uint32_t chars_node(builder *b, chars_nfa *m);
void chars_link(builder *b, chars_nfa *m, uint32_t from, uint32_t to, char_class *on);
void chars_deinit(chars_nfa *m);

/* The texts of m with min to max characters (max BUILD_NONE: no limit), written in the style. */
uint32_t build_chars(builder *b, uint32_t from, const chars_nfa *m, uint32_t min, uint32_t max,
                     text_style style);
/* Any text of so many characters. */
uint32_t build_any_text(builder *b, uint32_t from, uint32_t min, uint32_t max, text_style style);
/* Adds to m the texts that are none of names[n], from m->start to m->accept. */
typedef struct chars_name {
    const char *s;
    size_t n;
} chars_name;
void chars_all_but(builder *b, chars_nfa *m, const chars_name *names, size_t n);
/* A literal as a JSON string in the builder's style, with quotes. */
uint32_t build_quoted(builder *b, uint32_t from, const char *s, size_t n);

/* ---- constraint_regex.c ---- */

/* The pattern as an NFA of the whole text: what it does not anchor may be surrounded by anything.
 * what: for errors, e.g. "pattern". */
void regex_parse(builder *b, chars_nfa *m, const char *pattern, size_t n);
/* The pattern of a "format"; NULL: unknown. */
const char *regex_of_format(const char *format);

/* ---- constraint_number.c ---- */

typedef struct number_bounds {
    const char *min, *max; /* JSON numbers, NUL-terminated; NULL: none */
    bool min_open, max_open;
} number_bounds;

/* Plain decimal numbers within bounds, without exponent; integral ones without fraction. */
uint32_t build_number_in(builder *b, uint32_t from, const number_bounds *bounds, bool integral);

/* ---- constraint_value.c ---- */

uint32_t build_space(builder *b, uint32_t from); /* the optional white space */
uint32_t build_blank(builder *b, uint32_t from); /* after a colon: one space at most */
uint32_t build_number(builder *b, uint32_t from, bool integral);
uint32_t build_value(builder *b, uint32_t from);  /* any JSON value */
uint32_t build_object(builder *b, uint32_t from); /* any JSON object */
/* A JSON text written out, in the builder's style. */
uint32_t build_literal(builder *b, uint32_t from, const struct json_value *v);

/* ---- constraint_schema.c ---- */

/* Whatever is valid under the schema; b->root and b->path are set. */
uint32_t build_schema(builder *b, uint32_t from, const struct json_value *schema);
/* The parameters of a tool call, up to "</function>", as the output parser will read them: texts as
 * they are. parameters: the schema of the object, which b->root is too; NULL: there are none. */
uint32_t build_parameters(builder *b, uint32_t from, const struct json_value *parameters);
/* The rules that $ref asked for. */
void build_refs(builder *b);
/* ---- constraint_tools.c ---- */

/* Text between the tags of a parameter, and the end of it: "\n</parameter>\n". */
uint32_t build_free_text(builder *b, uint32_t from);
/* The whole: the root and all that it calls. */
void build_tool_calls(builder *b, const constraint_tool_options *options);

#endif
