#include "text/output_parser.h"

#include <string.h>
#include "base/ck.h"

enum { SLICE = 1024, OUT_MAX = 16384 };

/* ---- Events ---- */

void output_flush(output_parser *p)
{
    if (p->out.failed) p->status = CALLA_ERR_MEMORY;
    if (p->out.len > 0 && p->status == CALLA_OK) {
        const output_event e = {
            .kind = p->out_kind, .index = p->n_calls, .text = p->out.data, .n = p->out.len};
        p->o.on_event(p->o.user, &e);
    }
    if (p->out.cap > 4 * OUT_MAX)
        strbuf_deinit(&p->out);
    else
        strbuf_clear(&p->out);
}

void output_emit(output_parser *p, output_kind kind, const char *s, size_t n)
{
    if (p->out.len > 0 && p->out_kind != kind) output_flush(p);
    p->out_kind = kind;
    (void)strbuf_append(&p->out, s, n);
    if (p->out.failed || p->out.len > OUT_MAX) output_flush(p);
}

/* ---- Text ---- */

static void note_line(output_parser *p, const char *s, size_t n)
{
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        n--;
    if (n > 0) p->line_start = s[n - 1] == '\n';
}

/* Text follows a call: what stood between is one run of newlines, the longer of the two. */
static void settle_gap(output_parser *p)
{
    if (p->n_newlines[1] < p->n_gap) p->n_newlines[1] = p->n_gap;
    if (!p->begun[1]) p->n_newlines[1] = 0;
    p->after_call = p->wrapper_open = false;
}

static size_t skip_gap(output_parser *p, const char *s, size_t n)
{
    size_t i = 0;
    for (; i < n && (s[i] == ' ' || (s[i] >= '\t' && s[i] <= '\r')); i++)
        if (s[i] == '\n') p->n_gap++;
    return i;
}

static void emit_newlines(output_parser *p, output_kind kind, size_t n)
{
    static const char lines[] = "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n";
    while (n > 0 && p->status == CALLA_OK) {
        const size_t k = n < sizeof lines - 1 ? n : sizeof lines - 1;
        output_emit(p, kind, lines, k);
        n -= k;
    }
}

static void text_put(output_parser *p, const char *s, size_t n)
{
    if (p->after_call) {
        const size_t k = skip_gap(p, s, n);
        s += k;
        n -= k;
        if (n == 0) return;
        settle_gap(p);
    }
    note_line(p, s, n);
    const int part = p->reasoning ? 0 : 1;
    const output_kind kind = p->reasoning ? OUTPUT_REASONING : OUTPUT_CONTENT;
    size_t begin = 0, end = n;
    while (end > 0 && s[end - 1] == '\n')
        end--;
    while (begin < end && !p->begun[part] && s[begin] == '\n')
        begin++;
    if (begin < end) {
        emit_newlines(p, kind, p->n_newlines[part]);
        output_emit(p, kind, s + begin, end - begin);
        p->n_newlines[part] = 0;
        p->begun[part] = p->led = true;
    }
    if (p->begun[part]) p->n_newlines[part] += n - end;
}

static const char *at(const output_parser *p, size_t off)
{
    return p->win.data + p->pos + off;
}

static void take(output_parser *p, size_t n)
{
    p->pos += n;
    p->match = (output_match){.stage = STAGE_FIRST};
}

static void end_call(output_parser *p, bool complete)
{
    output_call_end(p, complete);
    p->reasoning = false;
    p->after_call = p->line_start = true;
    p->n_gap = 0;
}

/* What stands behind a function's name or a parameter's end. */
static void go_on(output_parser *p)
{
    const output_match m = p->match;
    switch (m.last) {
    case TAG_PARAMETER:
        output_param_begin(p, at(p, m.key), m.n_key);
        p->state = STATE_VALUE;
        take(p, m.at);
        return;
    case TAG_END_FUNCTION:
        end_call(p, true);
        take(p, m.at);
        return;
    case TAG_END_CALL:
        end_call(p, true);
        p->wrapper_open = false;
        take(p, m.at);
        return;
    case TAG_FUNCTION:
        end_call(p, true);
        take(p, m.last_at);
        return;
    default: /* the end of the output */
        end_call(p, !p->truncated && !m.cut);
        take(p, m.last_at);
        return;
    }
}

static void take_text(output_parser *p)
{
    const output_match *m = &p->match;
    switch (m->first) {
    case TAG_THINK:
    case TAG_END_THINK:
        if (p->after_call && m->first == TAG_THINK) settle_gap(p);
        p->reasoning = m->first == TAG_THINK;
        p->no_calls = p->no_calls && p->reasoning;
        p->led = false;
        p->line_start = true;
        take(p, m->at);
        return;
    case TAG_END_CALL:
        p->wrapper_open = false;
        p->n_gap = 0;
        take(p, m->at);
        return;
    default:
        if (m->json) {
            p->state = STATE_JSON;
            return;
        }
        p->wrapper_open = true;
        output_call_begin(p, at(p, m->name), m->n_name);
        go_on(p);
        return;
    }
}

/* One step; false: more input is needed. */
static bool step_text(output_parser *p)
{
    const size_t n = p->win.len - p->pos;
    if (n == 0) return false;
    const char *tag = memchr(at(p, 0), '<', n);
    const size_t run = tag == NULL ? n : (size_t)(tag - at(p, 0));
    if (run > 0) {
        text_put(p, at(p, 0), run);
        take(p, run);
        return true;
    }
    const output_found f = output_match_text(p);
    if (f == FOUND_MORE && !p->eof) return false;
    if (f == FOUND_YES) {
        take_text(p);
        return true;
    }
    text_put(p, at(p, 0), 1);
    take(p, 1);
    return true;
}

/* ---- Values ---- */

static void take_value(output_parser *p)
{
    const output_match m = p->match;
    /* </function> or </tool_call> in place of </parameter>; what follows is text's to read. */
    if (m.first == TAG_END_FUNCTION || m.first == TAG_END_CALL) {
        end_call(p, m.last != TAG_NONE || (!p->truncated && !m.cut));
        take(p, m.last_at);
        return;
    }
    if (m.first == TAG_PARAMETER) p->match.last = TAG_PARAMETER;
    output_value_end(p);
    p->state = STATE_TEXT;
    go_on(p);
}

static size_t plain_run(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] != '<' && s[i] != '\n')
        i++;
    return i;
}

static bool step_value(output_parser *p)
{
    const size_t n = p->win.len - p->pos;
    if (n == 0) {
        if (p->eof) end_call(p, !p->truncated);
        return p->eof;
    }
    const size_t run = plain_run(at(p, 0), n);
    if (run > 0) {
        output_value_put(p, at(p, 0), run);
        take(p, run);
        return true;
    }
    const output_found f = output_match_value(p);
    if (f == FOUND_MORE && !p->eof) return false;
    if (f == FOUND_YES) {
        take_value(p);
        return true;
    }
    if (f == FOUND_MORE && p->truncated) { /* half a tag is no part of a value that was cut off */
        take(p, n);
        return true;
    }
    /* One newline in front of the end is not the value's. */
    if (n > 1 || *at(p, 0) != '\n' || !p->eof) output_value_put(p, at(p, 0), 1);
    take(p, 1);
    return true;
}

/* ---- A call as JSON ---- */

/* Emits the call; false when it is none. */
static bool json_call(output_parser *p)
{
    const output_match m = p->match;
    value_members found = {.keys = {"name", "arguments"}};
    bool ok;
    size_t begin = 11; /* behind "<tool_call>" */
    while (*at(p, begin) != '{')
        begin++;
    strbuf_clear(&p->scratch);
    if (!value_write_object(&p->scratch, at(p, begin), m.scan - begin, &found, &ok)) {
        p->status = CALLA_ERR_MEMORY;
        return false;
    }
    if (!ok || found.begin[0] == found.end[0] || found.begin[1] == found.end[1]) return false;
    const char *name = p->scratch.data + found.begin[0];
    const char *args = p->scratch.data + found.begin[1];
    size_t n_name = found.end[0] - found.begin[0];
    if (name[0] != '"' || args[0] != '{') return false;
    name++;
    n_name -= 2;
    if (!output_name_ok(name, n_name) || memchr(name, '\\', n_name) != NULL) return false;
    p->wrapper_open = m.last == TAG_NONE;
    output_call_begin(p, name, n_name);
    output_emit(p, OUTPUT_CALL_ARGS, args, found.end[1] - found.begin[1] - 1);
    p->has_params = true; /* the closing bracket is end_call's */
    p->state = STATE_TEXT;
    end_call(p, true);
    take(p, m.last == TAG_NONE ? m.last_at : m.at);
    return true;
}

static bool step_json(output_parser *p)
{
    const output_found f = output_match_json(p);
    if (f == FOUND_MORE && !p->eof) return false;
    p->state = STATE_TEXT;
    if (f == FOUND_YES && json_call(p)) return true;
    p->no_json = p->base + p->pos + p->match.scan; /* so that nothing is scanned twice */
    text_put(p, at(p, 0), 1);
    take(p, 1);
    return true;
}

/* ---- The parser ---- */

static void run(output_parser *p)
{
    bool more = true;
    while (more && p->status == CALLA_OK)
        more = p->state == STATE_TEXT    ? step_text(p)
               : p->state == STATE_VALUE ? step_value(p)
                                         : step_json(p);
}

static void feed(output_parser *p, const char *s, size_t n)
{
    if (p->pos > 0) { /* little is left, unless a call as JSON is held: that stays where it is */
        p->win.len -= p->pos;
        memmove(p->win.data, p->win.data + p->pos, p->win.len);
        p->base += p->pos;
        p->pos = 0;
    }
    if (!strbuf_append(&p->win, s, n)) p->status = CALLA_ERR_MEMORY;
    run(p);
}

calla_status output_parser_create(output_parser **out, const output_options *options,
                                  calla_error *err)
{
    *out = NULL;
    output_parser *p = mem_alloc(sizeof *p);
    if (p == NULL) return err_set(err, CALLA_ERR_MEMORY, "out of memory for an output parser");
    p->o = *options;
    p->reasoning = options->start_in_reasoning;
    p->no_calls = options->start_in_reasoning && options->call_after_reasoning;
    p->line_start = true;
    *out = p;
    return CALLA_OK;
}

void output_parser_destroy(output_parser *p)
{
    if (p == NULL) return;
    strbuf_deinit(&p->win);
    strbuf_deinit(&p->value);
    strbuf_deinit(&p->scratch);
    strbuf_deinit(&p->out);
    mem_free(p);
}

calla_status output_parser_push(output_parser *p, const char *bytes, size_t n)
{
    char slice[3 * (SLICE + 3)];
    if (p->eof) return CALLA_ERR_ARGUMENT;
    while (n > 0 && p->status == CALLA_OK) {
        const size_t k = n < SLICE ? n : SLICE;
        feed(p, slice, calla_utf8_stream_push(&p->utf8, bytes, k, slice));
        bytes += k;
        n -= k;
    }
    output_flush(p);
    return p->status;
}

calla_status output_parser_finish(output_parser *p, bool truncated)
{
    char tail[12];
    if (p->eof) return CALLA_ERR_ARGUMENT;
    const size_t n = calla_utf8_stream_finish(&p->utf8, tail);
    p->eof = true;
    p->truncated = truncated;
    if (p->status == CALLA_OK) feed(p, tail, n);
    output_flush(p);
    return p->status;
}
