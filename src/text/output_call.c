#include "text/output_parser.h"

#include <string.h>

#define NULL_MAX 64u /* a nullable string this long is no null */

static void fail_if(output_parser *p, bool failed)
{
    if (failed && p->status == CALLA_OK) p->status = CALLA_ERR_MEMORY;
}

static const json_value *tool_function(const json_value *tool)
{
    const json_value *f = json_get(tool, "function");
    return f != NULL && f->type == JSON_OBJECT ? f : tool;
}

const json_value *output_find_tool(const json_value *tools, const char *name, size_t n)
{
    if (tools == NULL || tools->type != JSON_ARRAY) return NULL;
    for (const json_value *t = tools->first; t != NULL; t = t->next) {
        const json_value *v = json_get(tool_function(t), "name");
        if (v != NULL && v->type == JSON_STRING && v->n_text == n && memcmp(v->text, name, n) == 0)
            return t;
    }
    return NULL;
}

void output_call_begin(output_parser *p, const char *name, size_t n)
{
    output_flush(p);
    const json_value *tool = output_find_tool(p->o.tools, name, n);
    p->parameters = json_get(tool_function(tool), "parameters");
    p->has_params = false;
    const output_event e = {.kind = OUTPUT_CALL_BEGIN, .index = p->n_calls, .text = name, .n = n};
    if (p->status == CALLA_OK) p->o.on_event(p->o.user, &e);
}

/* What stands in front of a value; to `b`. */
static void write_key(const output_parser *p, strbuf *b)
{
    (void)strbuf_puts(b, p->has_params ? ", " : "{");
    (void)json_write_string(b, p->key, p->n_key);
    (void)strbuf_puts(b, ": ");
}

static void emit_scratch(output_parser *p, size_t skip, size_t drop)
{
    fail_if(p, p->scratch.failed);
    if (p->status != CALLA_OK) return;
    output_emit(p, OUTPUT_CALL_ARGS, p->scratch.data + skip, p->scratch.len - skip - drop);
}

static void emit_escaped(output_parser *p, const char *s, size_t n)
{
    strbuf_clear(&p->scratch);
    (void)json_write_string(&p->scratch, s, n);
    emit_scratch(p, 1, 1);
}

/* From now on the value is a string that goes out as it comes. */
static void stream_value(output_parser *p)
{
    strbuf_clear(&p->scratch);
    write_key(p, &p->scratch);
    (void)strbuf_putc(&p->scratch, '"');
    emit_scratch(p, 0, 0);
    p->has_params = p->streaming = true;
    if (p->value.len > 0) emit_escaped(p, p->value.data, p->value.len);
    strbuf_deinit(&p->value);
}

void output_param_begin(output_parser *p, const char *key, size_t n)
{
    memcpy(p->key, key, n);
    p->n_key = n;
    value_type_of(&p->type, p->parameters, key, n);
    p->streaming = p->value_begun = false;
    strbuf_clear(&p->value);
    if (value_is_text(&p->type)) stream_value(p);
}

void output_value_put(output_parser *p, const char *s, size_t n)
{
    if (n > 0 && !p->value_begun) {
        p->value_begun = true;
        if (s[0] == '\n') {
            s++;
            n--;
        }
    }
    if (n == 0) return;
    if (p->streaming) {
        emit_escaped(p, s, n);
        return;
    }
    fail_if(p, !strbuf_append(&p->value, s, n));
    if (p->status != CALLA_OK) return;
    const bool maybe_null =
        p->value.len <= NULL_MAX && value_may_be_null(p->value.data, p->value.len);
    if (p->value.len > OUTPUT_VALUE_MAX || (p->type.n_kinds == 0 && !maybe_null)) stream_value(p);
}

static const char *value_text(const output_parser *p)
{
    return p->value.data != NULL ? p->value.data : "";
}

void output_value_end(output_parser *p)
{
    if (p->streaming) {
        output_emit(p, OUTPUT_CALL_ARGS, "\"", 1);
        return;
    }
    strbuf_clear(&p->scratch);
    write_key(p, &p->scratch);
    (void)value_write(&p->scratch, &p->type, value_text(p), p->value.len);
    emit_scratch(p, 0, 0);
    p->has_params = true;
    strbuf_clear(&p->value);
    if (p->value.cap > 65536) strbuf_deinit(&p->value);
}

/* What would close the arguments of a call that is not whole; to p->scratch. */
static void write_closing(output_parser *p)
{
    strbuf *b = &p->scratch;
    strbuf_clear(b);
    if (p->state == STATE_VALUE && p->streaming) {
        (void)strbuf_puts(b, "\"}");
    } else if (p->state == STATE_VALUE) {
        write_key(p, b);
        (void)json_write_string(b, value_text(p), p->value.len);
        (void)strbuf_putc(b, '}');
    } else {
        (void)strbuf_puts(b, p->has_params ? "}" : "{}");
    }
    fail_if(p, b->failed);
}

void output_call_end(output_parser *p, bool complete)
{
    output_event e = {.kind = OUTPUT_CALL_END, .index = p->n_calls, .complete = complete};
    if (complete) {
        if (p->state == STATE_VALUE) output_value_end(p);
        output_emit(p, OUTPUT_CALL_ARGS, p->has_params ? "}" : "{}", p->has_params ? 1 : 2);
        e.text = "";
    }
    output_flush(p);
    if (!complete) {
        write_closing(p);
        e.text = p->scratch.data;
        e.n = p->scratch.len;
    }
    p->state = STATE_TEXT;
    p->n_calls++;
    if (p->status == CALLA_OK) p->o.on_event(p->o.user, &e);
}
