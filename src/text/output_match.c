#include "text/output_parser.h"

#include <string.h>

static const struct {
    const char *s;
    size_t n;
} tags[N_TAGS] = {
    [TAG_THINK] = {"<think>", 7},          [TAG_END_THINK] = {"</think>", 8},
    [TAG_CALL] = {"<tool_call>", 11},      [TAG_END_CALL] = {"</tool_call>", 12},
    [TAG_FUNCTION] = {"<function=", 10},   [TAG_END_FUNCTION] = {"</function>", 11},
    [TAG_PARAMETER] = {"<parameter=", 11}, [TAG_END_PARAMETER] = {"</parameter>", 12},
};

#define SET(tag) (1u << (tag))

typedef struct span {
    const char *s;
    size_t n;
} span;

static span window(const output_parser *p)
{
    return (span){p->win.data + p->pos, p->win.len - p->pos};
}

static void enter(output_match *m, output_stage stage)
{
    m->stage = stage;
    m->from = m->at;
}

/* One of a set of tags; none is the beginning of another. */
static output_found match_tag(output_match *m, span w, unsigned set, output_tag *tag)
{
    const size_t n = w.n - m->at;
    bool more = false;
    for (int t = 0; t < N_TAGS; t++) {
        if ((set & SET(t)) == 0) continue;
        const size_t k = n < tags[t].n ? n : tags[t].n;
        if (k > 0 && memcmp(w.s + m->at, tags[t].s, k) != 0) continue;
        if (k < tags[t].n) {
            more = true;
            continue;
        }
        *tag = (output_tag)t;
        m->at += k;
        return FOUND_YES;
    }
    return more ? FOUND_MORE : FOUND_NO;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* White space, up to a byte that is none. */
static output_found match_gap(output_match *m, span w)
{
    while (m->at < w.n && is_space(w.s[m->at])) {
        if (m->at - m->from == OUTPUT_GAP_MAX) return FOUND_NO;
        m->at++;
    }
    return m->at < w.n ? FOUND_YES : FOUND_MORE;
}

static bool name_char_ok(char c)
{
    return (unsigned char)c > ' ' && c != 0x7f && strchr("<>{}\"'", c) == NULL;
}

bool output_name_ok(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!name_char_ok(s[i])) return false;
    return n > 0 && n <= OUTPUT_NAME_MAX;
}

static output_found match_name(output_match *m, span w)
{
    for (; m->at < w.n && w.s[m->at] != '>'; m->at++)
        if (!name_char_ok(w.s[m->at]) || m->at - m->from == OUTPUT_NAME_MAX) return FOUND_NO;
    if (m->at == w.n) return FOUND_MORE;
    m->name = m->from;
    m->n_name = m->at++ - m->from;
    return m->n_name > 0 ? FOUND_YES : FOUND_NO;
}

static output_found match_key(output_match *m, span w)
{
    for (; m->at < w.n && w.s[m->at] != '>'; m->at++) {
        const char c = w.s[m->at];
        if (c == '<' || c == '\n' || c == '\r' || m->at - m->from == OUTPUT_NAME_MAX)
            return FOUND_NO;
    }
    if (m->at == w.n) return FOUND_MORE;
    size_t begin = m->from, end = m->at++;
    while (begin < end && is_space(w.s[begin]))
        begin++;
    while (begin < end && is_space(w.s[end - 1]))
        end--;
    m->key = begin;
    m->n_key = end - begin;
    return begin < end ? FOUND_YES : FOUND_NO;
}

/* The output ends here, in a construct that is good so far. */
static output_found match_end(output_match *m, span w, bool cut)
{
    m->last = TAG_NONE;
    m->last_at = w.n;
    m->cut = cut;
    return FOUND_YES;
}

static unsigned first_text_tags(const output_parser *p)
{
    unsigned set = SET(TAG_THINK) | SET(TAG_END_THINK);
    if (p->o.tools == NULL || p->no_calls) return set;
    set |= SET(TAG_CALL);
    if (!p->reasoning && p->line_start) set |= SET(TAG_FUNCTION);
    if (p->after_call && p->wrapper_open) set |= SET(TAG_END_CALL);
    return set;
}

/* Which way to go on behind the first tag; FOUND_YES: it was all. */
static output_found text_first(output_parser *p, output_match *m)
{
    switch (m->first) {
    case TAG_THINK:
        return !p->reasoning || !p->led ? FOUND_YES : FOUND_NO;
    case TAG_CALL:
        enter(m, STAGE_GAP);
        return FOUND_MORE;
    case TAG_FUNCTION:
        enter(m, STAGE_NAME);
        return FOUND_MORE;
    default:
        return FOUND_YES;
    }
}

/* Only tools that exist are called without the wrapper. */
static bool name_allowed(const output_parser *p, const output_match *m, span w)
{
    if (m->first == TAG_CALL || (p->after_call && p->wrapper_open)) return true;
    return output_find_tool(p->o.tools, w.s + m->name, m->n_name) != NULL;
}

output_found output_match_text(output_parser *p)
{
    output_match *m = &p->match;
    const span w = window(p);
    const unsigned last =
        SET(TAG_PARAMETER) | SET(TAG_END_FUNCTION) | SET(TAG_END_CALL) | SET(TAG_FUNCTION);
    output_found f = FOUND_YES;
    while (f == FOUND_YES) {
        switch (m->stage) {
        case STAGE_FIRST:
            f = match_tag(m, w, first_text_tags(p), &m->first);
            if (f != FOUND_YES) break;
            f = text_first(p, m);
            if (f != FOUND_MORE) return f;
            f = FOUND_YES;
            break;
        case STAGE_GAP:
            f = match_gap(m, w);
            if (f != FOUND_YES) break;
            m->json = w.s[m->at] == '{' && !p->reasoning && p->base + p->pos >= p->no_json;
            if (m->json) return FOUND_YES;
            m->stage = STAGE_NEXT;
            break;
        case STAGE_NEXT:
            f = match_tag(m, w, SET(TAG_FUNCTION), &m->last);
            enter(m, f == FOUND_YES ? STAGE_NAME : STAGE_NEXT);
            break;
        case STAGE_NAME:
            f = match_name(m, w);
            if (f == FOUND_YES && !name_allowed(p, m, w)) f = FOUND_NO;
            if (f == FOUND_YES) enter(m, STAGE_GAP2);
            break;
        case STAGE_GAP2:
            f = match_gap(m, w);
            if (f == FOUND_MORE && p->eof) return match_end(m, w, false);
            m->last_at = m->at;
            if (f == FOUND_YES) m->stage = STAGE_LAST;
            break;
        case STAGE_LAST:
            f = match_tag(m, w, last, &m->last);
            if (f == FOUND_YES && m->last != TAG_PARAMETER) return f;
            if (f == FOUND_YES) enter(m, STAGE_KEY);
            if (f == FOUND_MORE && p->eof) return match_end(m, w, true);
            break;
        case STAGE_KEY:
            f = match_key(m, w);
            if (f == FOUND_MORE && p->eof) return match_end(m, w, true);
            return f;
        }
    }
    return f;
}

/* Behind the first tag of an ending. */
static void value_first(output_match *m)
{
    if (m->first == TAG_END_PARAMETER)
        enter(m, STAGE_GAP2);
    else
        enter(m, m->first == TAG_PARAMETER ? STAGE_KEY : STAGE_GAP);
}

/* Another declared parameter opens although this one was not closed. */
static bool key_allowed(const output_parser *p, const output_match *m, span w)
{
    if (m->first != TAG_PARAMETER) return true;
    if (m->n_key == p->n_key && memcmp(w.s + m->key, p->key, p->n_key) == 0) return false;
    return value_is_declared(p->parameters, w.s + m->key, m->n_key);
}

static unsigned first_value_tags(bool newline)
{
    const unsigned set = SET(TAG_END_PARAMETER) | SET(TAG_END_FUNCTION) | SET(TAG_END_CALL);
    return newline ? set | SET(TAG_PARAMETER) : set;
}

output_found output_match_value(output_parser *p)
{
    output_match *m = &p->match;
    const span w = window(p);
    const bool ending = p->eof; /* the end of the output may end a value */
    output_found f = FOUND_YES;
    while (f == FOUND_YES) {
        switch (m->stage) {
        case STAGE_FIRST:
            m->at = w.s[0] == '\n';
            f = match_tag(m, w, first_value_tags(m->at == 1), &m->first);
            if (f == FOUND_YES) value_first(m);
            break;
        case STAGE_GAP:
            f = match_gap(m, w);
            if (f == FOUND_MORE && ending) return match_end(m, w, false);
            if (f == FOUND_YES && m->first == TAG_END_CALL) return FOUND_NO;
            m->last_at = m->at;
            if (f == FOUND_YES) m->stage = STAGE_NEXT;
            break;
        case STAGE_NEXT:
            f = match_tag(m, w, SET(TAG_END_CALL) | SET(TAG_FUNCTION), &m->last);
            if (f == FOUND_MORE && ending) return match_end(m, w, true);
            if (f == FOUND_YES && m->last == TAG_END_CALL) return f;
            if (f == FOUND_YES) enter(m, STAGE_NAME);
            break;
        case STAGE_NAME:
            f = match_name(m, w);
            if (f == FOUND_MORE && ending) return match_end(m, w, true);
            return f;
        case STAGE_GAP2:
            f = match_gap(m, w);
            if (f == FOUND_MORE && ending) return match_end(m, w, false);
            m->last_at = m->at;
            if (f == FOUND_YES) m->stage = STAGE_LAST;
            break;
        case STAGE_LAST:
            f = match_tag(m, w, SET(TAG_PARAMETER) | SET(TAG_END_FUNCTION) | SET(TAG_END_CALL),
                          &m->last);
            if (f == FOUND_MORE && ending) return match_end(m, w, true);
            if (f == FOUND_YES && m->last != TAG_PARAMETER) return f;
            if (f == FOUND_YES) enter(m, STAGE_KEY);
            break;
        case STAGE_KEY:
            f = match_key(m, w);
            if (f == FOUND_MORE && ending && m->first == TAG_END_PARAMETER)
                return match_end(m, w, true);
            return f == FOUND_YES && !key_allowed(p, m, w) ? FOUND_NO : f;
        }
    }
    return f;
}

/* Looks for the bracket that closes the first one, and gives up at what JSON does not have. */
static output_found json_body(output_match *m, span w)
{
    for (; m->scan < w.n; m->scan++) {
        const char c = w.s[m->scan];
        if (m->scan >= OUTPUT_JSON_MAX) return FOUND_NO;
        if (m->in_string) {
            if (!m->escaped && c == '"') m->in_string = false;
            m->escaped = !m->escaped && c == '\\';
            if ((unsigned char)c < 0x20) return FOUND_NO;
        } else if (c == '"') {
            m->in_string = true;
        } else if (c == '{' || c == '[') {
            m->depth++;
        } else if (c == '}' || c == ']') {
            if (--m->depth > 0) continue;
            m->at = ++m->scan;
            enter(m, STAGE_GAP2);
            return FOUND_YES;
        } else if (c == '\0' || strchr(" \t\r\n:,0123456789+-.eEtrufalsn", c) == NULL) {
            return FOUND_NO;
        }
    }
    return FOUND_MORE;
}

output_found output_match_json(output_parser *p)
{
    output_match *m = &p->match;
    const span w = window(p);
    output_found f = FOUND_YES;
    if (m->stage == STAGE_GAP) {
        if (m->scan < m->at) m->scan = m->at;
        f = json_body(m, w);
    }
    if (f == FOUND_YES && m->stage == STAGE_GAP2) {
        f = match_gap(m, w);
        if (f == FOUND_MORE && p->eof) return match_end(m, w, false);
        if (f == FOUND_YES) m->stage = STAGE_LAST;
    }
    if (f == FOUND_YES) f = match_tag(m, w, SET(TAG_END_CALL), &m->last);
    if (f == FOUND_MORE && m->stage == STAGE_LAST && p->eof) return match_end(m, w, false);
    return f;
}
