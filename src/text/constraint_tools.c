/* Tool calls in the model's own format, so that text/output.h reads every accepted one as what it
 * says: a text value cannot hold what the parser might take for its end. */
#include <string.h>

#include "text/constraint_build.h"

/* ---- Text up to a tag ---- */

#define SEARCH_MAX 96u /* beginnings of all patterns */

/* Any text without the patterns, up to the first one, with it. A state is the longest beginning of
 * a pattern that the text ends in. */
typedef struct search {
    const char *const *patterns; /* [0] ends the text, the others may not come */
    size_t n_patterns;
    bool lines_only; /* no control characters but tab and line ends */
    struct {
        const char *s;
        size_t n;
        uint32_t node;
    } states[SEARCH_MAX];
    size_t n_states;
} search;

static size_t find_state(const search *s, const char *text, size_t n)
{
    for (size_t i = 0; i < s->n_states; i++)
        if (s->states[i].n == n && memcmp(s->states[i].s, text, n) == 0) return i;
    return SIZE_MAX;
}

static bool is_pattern(const search *s, size_t state, size_t i)
{
    return s->states[state].n == strlen(s->patterns[i]) &&
           memcmp(s->states[state].s, s->patterns[i], s->states[state].n) == 0;
}

static void search_states(builder *b, search *s)
{
    s->n_states = 1;
    s->states[0].s = "";
    s->states[0].n = 0;
    s->states[0].node = build_node(b);
    for (size_t i = 0; i < s->n_patterns; i++)
        for (size_t n = 1; n <= strlen(s->patterns[i]); n++) {
            if (find_state(s, s->patterns[i], n) != SIZE_MAX) continue;
            if (s->n_states == SEARCH_MAX) {
                build_fail(b, CALLA_ERR_INTERNAL, "too many tags to search for");
                return;
            }
            s->states[s->n_states].s = s->patterns[i];
            s->states[s->n_states].n = n;
            s->states[s->n_states++].node = build_node(b);
        }
}

/* After a byte: the longest beginning that the text now ends in; BARRED: it may not come. */
#define BARRED SIZE_MAX
static size_t search_next(const search *s, size_t from, char byte)
{
    const uint8_t c = (uint8_t)byte;
    if (s->lines_only && (c < 0x20 || c == 0x7f) && c != '\n' && c != '\t' && c != '\r')
        return BARRED;
    bool known = false; /* as a letter of the patterns */
    for (size_t k = 0; k < s->n_patterns; k++)
        known |= strchr(s->patterns[k], byte) != NULL;
    if (!known) return 0;
    char text[64];
    const size_t n = s->states[from].n;
    memcpy(text, s->states[from].s, n);
    text[n] = byte;
    size_t to = 0;
    for (size_t i = 0; i <= n && to == 0; i++) {
        to = find_state(s, text + i, n + 1 - i);
        if (to == SIZE_MAX) to = 0;
    }
    for (size_t k = 1; k < s->n_patterns; k++)
        if (is_pattern(s, to, k)) return BARRED;
    return to;
}

/* begin: what the text is taken to come after. any_end (BUILD_NONE: none): reached from everywhere.
 * Returns the node behind patterns[0]. */
static uint32_t build_search(builder *b, uint32_t from, search *s, const char *begin,
                             uint32_t any_end)
{
    search_states(b, s);
    const uint32_t beyond_ascii = build_node(b);
    if (b->status != CALLA_OK) return 0;
    uint32_t end = 0;
    build_utf8(b, beyond_ascii, s->states[0].node, 0x80, 0xd7ff);
    build_utf8(b, beyond_ascii, s->states[0].node, 0xe000, 0x10ffff);
    build_skip(b, from, s->states[find_state(s, begin, strlen(begin))].node);
    for (size_t i = 0; i < s->n_states; i++) {
        bool whole = false;
        if (is_pattern(s, i, 0)) end = s->states[i].node;
        for (size_t k = 0; k < s->n_patterns; k++)
            whole |= is_pattern(s, i, k);
        if (whole) continue;
        const uint32_t node = s->states[i].node;
        for (uint32_t c = 1; c < 0x80; c++) {
            uint32_t last = c;
            const size_t to = search_next(s, i, (char)c);
            while (last < 0x7f && to != BARRED && search_next(s, i, (char)(last + 1)) == to)
                last++;
            if (to != BARRED) build_bytes(b, node, s->states[to].node, c, last);
            c = last;
        }
        build_skip(b, node, beyond_ascii);
        if (any_end != BUILD_NONE) build_skip(b, node, any_end);
    }
    return end;
}

uint32_t build_free_text(builder *b, uint32_t from)
{
    static const char *const tags[] = {"\n</parameter>", "</parameter>", "</function>",
                                       "</tool_call>", "\n<parameter="};
    if (b->status != CALLA_OK) return 0;
    if (b->rule_free_text == 0) {
        b->rule_free_text = build_rule(b);
        if (b->status != CALLA_OK) return 0;
        const nfa_rule r = b->rules[b->rule_free_text];
        search s = {.patterns = tags, .n_patterns = 5, .lines_only = true};
        const uint32_t end = build_search(b, r.start, &s, "\n", BUILD_NONE);
        build_skip(b, build_text(b, end, "\n", 1), r.accept);
    }
    const uint32_t to = build_node(b);
    build_call(b, from, to, b->rule_free_text);
    return to;
}

/* ---- Calls ---- */

static bool is_name(const json_value *v)
{
    if (v == NULL || v->type != JSON_STRING || v->n_text == 0 || v->n_text > 256) return false;
    for (size_t i = 0; i < v->n_text; i++)
        if ((uint8_t)v->text[i] <= ' ' || strchr("<>{}\"'\x7f", v->text[i]) != NULL) return false;
    return true;
}

static void build_tool(builder *b, uint32_t from, uint32_t to, const json_value *tool)
{
    const json_value *name = json_get(tool, "name"), *strict = json_get(tool, "strict");
    const json_value *parameters = json_get(tool, "parameters");
    if (parameters != NULL && parameters->type == JSON_NULL) parameters = NULL;
    b->strict = strict != NULL && strict->type == JSON_TRUE;
    b->lenient = !b->strict;
    b->root = parameters;
    strbuf_clear(&b->path);
    uint32_t at = build_text(b, from, name->text, name->n_text);
    at = build_parameters(b, build_puts(b, at, ">\n"), parameters);
    build_skip(b, build_puts(b, at, "</function>\n"), to);
    build_refs(b); /* while "#" means this tool's parameters */
    if (b->status != CALLA_OK && b->status != CALLA_ERR_MEMORY)
        err_prefix(&b->error, b->status, "tool \"%.64s\"", name->text);
}

/* So many sets of parameters for all tools together: beyond, those with many have the schema's
 * order. */
#define ANY_ORDER_SETS 8192u

static void limit_any_order(builder *b, const json_value *tools)
{
    for (;; b->n_any_order--) {
        uint64_t n_sets = 0;
        for (const json_value *t = tools->first; t != NULL; t = t->next) {
            const json_value *inner = json_get(t, "function");
            const json_value *p =
                json_get(json_get(inner != NULL ? inner : t, "parameters"), "properties");
            if (p != NULL && p->n_items <= b->n_any_order) n_sets += 1u << p->n_items;
        }
        if (n_sets <= ANY_ORDER_SETS || b->n_any_order == 1) return;
    }
}

/* From the newline before a name to the one behind "</function>". */
static void build_functions(builder *b, uint32_t from, uint32_t to,
                            const constraint_tool_options *o)
{
    bool some = false;
    if (o->tools == NULL || o->tools->type != JSON_ARRAY) {
        build_fail(b, CALLA_ERR_ARGUMENT, "tools must be an array");
        return;
    }
    limit_any_order(b, o->tools);
    for (const json_value *t = o->tools->first; t != NULL && b->status == CALLA_OK; t = t->next) {
        const json_value *inner = json_get(t, "function");
        const json_value *tool = inner != NULL ? inner : t;
        const json_value *name = json_get(tool, "name");
        if (!is_name(name)) {
            build_fail(b, CALLA_ERR_ARGUMENT, "a tool has no name that a call can be written with");
        } else if (o->name == NULL || json_is(name, o->name)) {
            build_tool(b, from, to, tool);
            some = true;
        }
    }
    if (!some)
        build_fail(b, CALLA_ERR_ARGUMENT, "no tool \"%.64s\" is among the tools",
                   o->name == NULL ? "" : o->name);
}

void build_tool_calls(builder *b, const constraint_tool_options *options)
{
    static const char *const tags[] = {"<tool_call>", "<function="};
    const uint32_t start = b->rules[0].start, accept = b->rules[0].accept;
    uint32_t opened = build_node(b);
    b->style = STYLE_JSON_IN_CALL;
    if (options->mode == CONSTRAINT_TOOLS_AUTO) {
        search s = {.patterns = tags, .n_patterns = 2};
        opened = build_search(b, start, &s, "", accept);
    } else {
        const uint32_t newline = build_text(b, start, "\n", 1);
        const uint32_t call = build_text(b, newline, "\n", 1);
        build_skip(b, start, call);
        build_skip(b, newline, call);
        build_skip(b, build_puts(b, call, "<tool_call>"), opened);
    }
    const uint32_t done = build_node(b);
    build_functions(b, build_puts(b, opened, "\n<function="), done, options);
    const uint32_t closed = build_puts(b, done, "</tool_call>");
    build_skip(b, closed, accept);
    if (options->parallel) build_skip(b, build_puts(b, closed, "\n<tool_call>"), opened);
}
