#include <string.h>

#include "text/constraint_build.h"

/* ---- White space ---- */

static uint32_t space_rule(builder *b)
{
    if (b->rule_space != 0 || b->status != CALLA_OK) return b->rule_space;
    b->rule_space = build_rule(b);
    if (b->status != CALLA_OK) return 0;
    const nfa_rule r = b->rules[b->rule_space];
    build_bytes(b, r.start, r.accept, ' ', ' ');
    const uint32_t newline = build_text(b, r.start, "\n", 1);
    build_skip(b, newline, r.accept);
    uint32_t at = newline;
    for (unsigned i = 0; i < CONSTRAINT_INDENT_MAX; i++) {
        at = build_text(b, at, " ", 1);
        build_skip(b, at, r.accept);
    }
    at = newline;
    for (unsigned i = 0; i < CONSTRAINT_INDENT_MAX / 4; i++) {
        at = build_text(b, at, "\t", 1);
        build_skip(b, at, r.accept);
    }
    return b->rule_space;
}

uint32_t build_space(builder *b, uint32_t from)
{
    const uint32_t to = build_node(b);
    build_skip(b, from, to);
    build_call(b, from, to, space_rule(b));
    return to;
}

uint32_t build_blank(builder *b, uint32_t from)
{
    const uint32_t to = build_node(b);
    build_skip(b, from, to);
    build_bytes(b, from, to, ' ', ' ');
    return to;
}

/* ---- Numbers ---- */

/* At least one digit, n at most. */
static uint32_t build_digits(builder *b, uint32_t from, unsigned n)
{
    const uint32_t end = build_node(b);
    for (; n > 0; n--) {
        const uint32_t to = build_node(b);
        build_bytes(b, from, to, '0', '9');
        build_skip(b, to, end);
        from = to;
    }
    return end;
}

/* Exponents stay below 200, so that no reader's double overflows. */
static void build_exponent(builder *b, uint32_t from, uint32_t end)
{
    const uint32_t e = build_node(b), sign = build_node(b), one = build_node(b);
    build_bytes(b, from, e, 'e', 'e');
    build_bytes(b, from, e, 'E', 'E');
    build_skip(b, e, sign);
    build_bytes(b, e, sign, '+', '+');
    build_bytes(b, e, sign, '-', '-');
    build_skip(b, build_digits(b, sign, 2), end);
    build_bytes(b, sign, one, '1', '1');
    const uint32_t two = build_node(b);
    build_bytes(b, one, two, '0', '9');
    build_bytes(b, two, end, '0', '9');
}

static uint32_t number_rule(builder *b, bool integral)
{
    uint32_t *rule = integral ? &b->rule_integer : &b->rule_number;
    if (*rule != 0 || b->status != CALLA_OK) return *rule;
    *rule = build_rule(b);
    if (b->status != CALLA_OK) return 0;
    const nfa_rule r = b->rules[*rule];
    const uint32_t positive = build_node(b), first = build_node(b), whole = build_node(b);
    build_skip(b, r.start, positive);
    build_bytes(b, r.start, positive, '-', '-');
    build_bytes(b, positive, whole, '0', '0');
    build_bytes(b, positive, first, '1', '9');
    build_skip(b, first, whole);
    build_skip(b, build_digits(b, first, CONSTRAINT_DIGITS_MAX - 1), whole);
    build_skip(b, whole, r.accept);
    if (integral) return *rule;
    const uint32_t fraction = build_digits(b, build_text(b, whole, ".", 1), CONSTRAINT_DIGITS_MAX);
    build_skip(b, fraction, r.accept);
    build_exponent(b, fraction, r.accept);
    build_exponent(b, whole, r.accept);
    return *rule;
}

uint32_t build_number(builder *b, uint32_t from, bool integral)
{
    const uint32_t to = build_node(b);
    build_call(b, from, to, number_rule(b, integral));
    return to;
}

/* ---- Any value ---- */

static uint32_t build_string(builder *b, uint32_t from)
{
    const uint32_t open = build_text(b, from, "\"", 1);
    return build_text(b, build_any_text(b, open, 0, BUILD_NONE, b->style), "\"", 1);
}

uint32_t build_object(builder *b, uint32_t from)
{
    const uint32_t end = build_node(b), key = build_node(b);
    const uint32_t open = build_space(b, build_text(b, from, "{", 1));
    build_skip(b, open, key);
    build_bytes(b, open, end, '}', '}');
    const uint32_t colon = build_blank(b, build_text(b, build_string(b, key), ":", 1));
    const uint32_t value = build_value(b, colon);
    build_skip(b, build_space(b, build_text(b, value, ",", 1)), key);
    build_bytes(b, build_space(b, value), end, '}', '}');
    return end;
}

static uint32_t build_array(builder *b, uint32_t from)
{
    const uint32_t end = build_node(b), item = build_node(b);
    const uint32_t open = build_space(b, build_text(b, from, "[", 1));
    build_skip(b, open, item);
    build_bytes(b, open, end, ']', ']');
    const uint32_t value = build_value(b, item);
    build_skip(b, build_space(b, build_text(b, value, ",", 1)), item);
    build_bytes(b, build_space(b, value), end, ']', ']');
    return end;
}

static uint32_t value_rule(builder *b)
{
    uint32_t *rule = &b->rule_value[b->style != STYLE_JSON];
    if (*rule != 0 || b->status != CALLA_OK) return *rule;
    *rule = build_rule(b);
    if (b->status != CALLA_OK) return 0;
    const nfa_rule r = b->rules[*rule];
    build_skip(b, build_string(b, r.start), r.accept);
    build_skip(b, build_number(b, r.start, false), r.accept);
    build_skip(b, build_object(b, r.start), r.accept);
    build_skip(b, build_array(b, r.start), r.accept);
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++)
        build_skip(b, build_puts(b, r.start, words[i]), r.accept);
    return *rule;
}

uint32_t build_value(builder *b, uint32_t from)
{
    const uint32_t to = build_node(b);
    build_call(b, from, to, value_rule(b));
    return to;
}

uint32_t build_literal(builder *b, uint32_t from, const json_value *v)
{
    strbuf text = {0};
    if (!json_write(&text, v)) build_fail(b, CALLA_ERR_MEMORY, "no memory for a constraint");
    for (size_t i = 0; i < text.len && b->status == CALLA_OK; i++) {
        /* Only strings have a "<". */
        if (b->style != STYLE_JSON && i != 0 && text.data[i] == '/' && text.data[i - 1] == '<')
            from = build_text(b, from, "\\", 1);
        from = build_text(b, from, &text.data[i], 1);
    }
    strbuf_deinit(&text);
    return from;
}
