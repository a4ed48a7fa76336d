/* output_batch - parses model output from standard input for tools/oracle/check_output.py.
 *
 * In:  one JSON object a line: output, tools (array or null), reasoning, truncated (booleans).
 * Out: one JSON object a line: reasoning, content, calls: [{name, arguments (text), complete}].
 */
#include <string.h>
#include "oracle/lines.h"
#include "text/output.h"

static bool flag(const json_value *v, const char *name)
{
    const json_value *f = json_get(v, name);
    return f != NULL && f->type == JSON_TRUE;
}

static void put(strbuf *line, const char *key, const char *s, size_t n)
{
    (void)strbuf_printf(line, "\"%s\": ", key);
    (void)json_write_string(line, s != NULL ? s : "", n);
}

static void put_result(strbuf *line, const output_result *r)
{
    (void)strbuf_putc(line, '{');
    put(line, "reasoning", r->reasoning.data, r->reasoning.len);
    (void)strbuf_puts(line, ", ");
    put(line, "content", r->content.data, r->content.len);
    (void)strbuf_puts(line, ", \"calls\": [");
    for (size_t i = 0; i < r->n_calls; i++) {
        const output_call *c = &r->calls[i];
        (void)strbuf_puts(line, i > 0 ? ", {" : "{");
        put(line, "name", c->name, c->n_name);
        (void)strbuf_puts(line, ", ");
        put(line, "arguments", c->arguments.data, c->arguments.len);
        (void)strbuf_printf(line, ", \"complete\": %s}", c->complete ? "true" : "false");
    }
    (void)strbuf_puts(line, "]}\n");
}

static bool parse_line(strbuf *line, const char *text, size_t n)
{
    json_doc doc = {0};
    output_result r = {.n_calls = 0};
    output_parser *p = NULL;
    bool ok = json_parse(&doc, text, n, NULL, NULL) == CALLA_OK;
    const json_value *tools = json_get(doc.root, "tools"), *out = json_get(doc.root, "output");
    const output_options o = {.start_in_reasoning = flag(doc.root, "reasoning"),
                              .tools = tools != NULL && tools->type == JSON_ARRAY ? tools : NULL,
                              .on_event = output_result_event,
                              .user = &r};
    ok = ok && out != NULL && output_parser_create(&p, &o, NULL) == CALLA_OK &&
         output_parser_push(p, out->text, out->n_text) == CALLA_OK &&
         output_parser_finish(p, flag(doc.root, "truncated")) == CALLA_OK && !r.failed;
    output_parser_destroy(p);
    strbuf_clear(line);
    if (ok) put_result(line, &r);
    output_result_deinit(&r);
    json_free(&doc);
    return ok && !line->failed;
}

int main(void)
{
    return answer_lines(parse_line);
}
