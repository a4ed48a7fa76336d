/* chat_batch - renders conversations from standard input for tools/oracle/check_chat.py.
 *
 * In:  one JSON object a line: messages, tools (optional), kwargs (the template's variables).
 * Out: one JSON object a line: {"rendered": TEXT} or {"error": SENTENCE, "code": NUMBER}.
 */
#include <string.h>
#include "oracle/lines.h"
#include "text/chat.h"

static bool flag(const json_value *kwargs, const char *name, json_type type)
{
    const json_value *v = json_get(kwargs, name);
    return v != NULL && v->type == type;
}

static bool render_line(strbuf *line, const char *text, size_t n)
{
    const json_limits limits = {.what = "case", .max_depth = 600};
    json_doc doc = {0};
    chat_prompt p = {0};
    calla_error err = {0};
    calla_status st = json_parse(&doc, text, n, &limits, &err);
    if (st == CALLA_OK) {
        const json_value *kw = json_get(doc.root, "kwargs");
        const calla_chat_options opt = {
            .no_generation_prompt = !flag(kw, "add_generation_prompt", JSON_TRUE),
            .disable_thinking = flag(kw, "enable_thinking", JSON_FALSE),
            .preserve_thinking = flag(kw, "preserve_thinking", JSON_TRUE),
            .add_vision_id = flag(kw, "add_vision_id", JSON_TRUE),
        };
        st = chat_render(&p, json_get(doc.root, "messages"), json_get(doc.root, "tools"), &opt,
                         &err);
    }
    strbuf_clear(line);
    (void)strbuf_puts(line, st == CALLA_OK ? "{\"rendered\": " : "{\"error\": ");
    if (st == CALLA_OK)
        (void)json_write_string(line, p.text.data != NULL ? p.text.data : "", p.text.len);
    else
        (void)json_write_string(line, err.message, strlen(err.message));
    (void)strbuf_printf(line, ", \"code\": %d}\n", (int)st);
    chat_prompt_deinit(&p);
    json_free(&doc);
    return !line->failed;
}

int main(void)
{
    return answer_lines(render_line);
}
