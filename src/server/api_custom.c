#include "server/api_custom.h"

#include <string.h>

#include "server/normalize.h"

/* ---- The function that the model sees ---- */

static json_value *put_text(tree *t, const char *s)
{
    return tree_string(t, s, strlen(s));
}

static json_value *parameters(tree *t)
{
    tree_list input = tree_begin(t, JSON_OBJECT), props = tree_begin(t, JSON_OBJECT);
    tree_list all = tree_begin(t, JSON_OBJECT), required = tree_begin(t, JSON_ARRAY);
    tree_set(t, &input, "type", put_text(t, "string"));
    tree_set(t, &props, "input", input.node);
    tree_append(t, &required, put_text(t, "input"));
    tree_set(t, &all, "type", put_text(t, "object"));
    tree_set(t, &all, "properties", props.node);
    tree_set(t, &all, "required", required.node);
    tree_set(t, &all, "additionalProperties", tree_new(t, JSON_FALSE));
    return all.node;
}

/* What the model is told of the form of the text. */
static bool describe_format(const json_value *format, const char *path, strbuf *out, api_error *e)
{
    if (format == NULL || format->type == JSON_NULL) return true;
    if (format->type != JSON_OBJECT)
        return api_bad(e, path, "expected an object, found %s", json_type_name(format));
    const json_value *type = json_get(format, "type");
    if (json_is(type, "text")) return true;
    if (!json_is(type, "grammar"))
        return api_bad(e, path_of("%s.type", path).s, "expected text or grammar");
    const json_value *in = json_get(format, "grammar"); /* chat completions */
    const api_path at = path_of("%s%s", path, in != NULL ? ".grammar" : "");
    const json_value *syntax = json_get(in != NULL ? in : format, "syntax");
    const json_value *definition = json_get(in != NULL ? in : format, "definition");
    if (!json_is(syntax, "lark") && !json_is(syntax, "regex"))
        return api_bad(e, path_of("%s.syntax", at.s).s, "expected lark or regex");
    if (definition == NULL || definition->type != JSON_STRING)
        return api_bad(e, path_of("%s.definition", at.s).s, "expected a string, found %s",
                       json_type_name(definition));
    (void)strbuf_printf(out, "%sThe input has this form (%s):\n", out->len != 0 ? "\n\n" : "",
                        syntax->text);
    (void)strbuf_append(out, definition->text, definition->n_text);
    return true;
}

json_value *custom_function(tree *t, const json_value *custom, const char *path, api_error *e)
{
    const json_value *name = json_get(custom, "name");
    const char *text;
    size_t n;
    strbuf about = {0};
    if (custom == NULL || custom->type != JSON_OBJECT) {
        (void)api_bad(e, path, "expected an object, found %s", json_type_name(custom));
        return NULL;
    }
    if (!normalize_name(name, path_of("%s.name", path).s, e) ||
        !api_text(json_get(custom, "description"), path_of("%s.description", path).s, &text, &n, e))
        return NULL;
    (void)strbuf_append(&about, text, n);
    const bool ok =
        describe_format(json_get(custom, "format"), path_of("%s.format", path).s, &about, e);
    tree_list f = tree_begin(t, JSON_OBJECT), outer = tree_begin(t, JSON_OBJECT);
    if (about.failed) t->failed = true;
    tree_set(t, &f, "name", tree_copy(t, name));
    tree_set(t, &f, "description", tree_string(t, about.data, about.len));
    tree_set(t, &f, "parameters", parameters(t));
    tree_set(t, &f, "strict", tree_new(t, JSON_TRUE));
    tree_set(t, &outer, "type", put_text(t, "function"));
    tree_set(t, &outer, "function", f.node);
    strbuf_deinit(&about);
    if (ok && t->failed) (void)api_no_memory(e);
    return ok && !t->failed ? outer.node : NULL;
}

json_value *custom_arguments(tree *t, const char *input, size_t n)
{
    tree_list args = tree_begin(t, JSON_OBJECT);
    tree_set(t, &args, "input", tree_string(t, input, n));
    return args.node;
}

/* ---- The text of a call ---- */

static void put_code_point(strbuf *out, unsigned cp)
{
    if (cp < 0x80) {
        (void)strbuf_putc(out, (char)cp);
    } else if (cp < 0x800) {
        (void)strbuf_putc(out, (char)(0xc0 | cp >> 6));
        (void)strbuf_putc(out, (char)(0x80 | (cp & 0x3f)));
    } else {
        (void)strbuf_putc(out, (char)(0xe0 | cp >> 12));
        (void)strbuf_putc(out, (char)(0x80 | (cp >> 6 & 0x3f)));
        (void)strbuf_putc(out, (char)(0x80 | (cp & 0x3f)));
    }
}

static unsigned hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a' + 10);
}

/* A whole escape without its backslash. Halves of pairs are never written by the parser. */
static void put_escape(strbuf *out, const char *s)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *k = strchr(from, s[0]);
    unsigned cp = 0;
    if (s[0] != 'u') {
        (void)strbuf_putc(out, k != NULL ? to[k - from] : s[0]);
        return;
    }
    for (int i = 1; i <= 4; i++)
        cp = cp << 4 | hex_digit(s[i]);
    put_code_point(out, cp);
}

void custom_read(custom_reader *r, const char *s, size_t n, strbuf *out)
{
    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        if (r->n_escape != 0) {
            r->escape[r->n_escape++ - 1] = c;
            if (r->escape[0] == 'u' && r->n_escape <= 5) continue;
            if (r->n_quotes == 3) put_escape(out, r->escape);
            r->n_escape = 0;
        } else if (c == '\\') {
            r->n_escape = 1;
        } else if (c == '"') {
            if (r->n_quotes < 4) r->n_quotes++;
        } else if (r->n_quotes == 3) {
            (void)strbuf_putc(out, c);
        }
    }
}
