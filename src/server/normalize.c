#include "server/normalize.h"

#include <string.h>

#include "server/api_custom.h"
#include "text/pystr.h"

typedef struct normalizer {
    const normal_source *from;
    tree *t;
    tree_list out;
    strbuf system;
    bool has_system;
    size_t i_assistant; /* the last one */
    api_error *e;
} normalizer;

/* The client's name for message i, or for a member of it (".content"), if it is the client's. */
static api_path place(const normalizer *z, size_t i, const char *member)
{
    if (z->from->origin != NULL) return path_of("%s[%d]", z->from->name, z->from->origin[i]);
    return path_of("%s[%zu]%s", z->from->name, i, member);
}

/* ---- Content ---- */

bool normalize_part(const json_value *part, const char *path, const char **text, size_t *n,
                    api_error *e)
{
    static const char *const texts[] = {"text", "input_text", "output_text", "summary_text",
                                        "reasoning_text"};
    if (part->type == JSON_STRING) return api_text(part, path, text, n, e);
    if (part->type != JSON_OBJECT)
        return api_bad(e, path, "expected a content part, found %s", json_type_name(part));
    const json_value *type = json_get(part, "type");
    if (type == NULL && json_get(part, "text") != NULL) type = json_get(part, "text");
    if (type == NULL || type->type != JSON_STRING)
        return api_bad(e, path, "a content part needs a \"type\" that is a string");
    const char *member = json_is(type, "refusal") ? "refusal" : NULL;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (json_is(type, texts[i])) member = "text";
    if (type == json_get(part, "text")) member = "text";
    if (member == NULL)
        return api_bad(e, path, "this model reads text only; a part of type \"%.40s\" was found",
                       type->text);
    const json_value *v = json_get(part, member);
    const api_path at = path_of("%s.%s", path, member);
    if (v == NULL) return api_bad(e, at.s, "expected a string, found nothing");
    return api_text(v, at.s, text, n, e);
}

/* A string node with the content of a message. */
static json_value *content_node(normalizer *z, const json_value *content, const char *path)
{
    const char *text = "";
    size_t n = 0;
    if (content == NULL || content->type != JSON_ARRAY) {
        if (!api_text(content, path, &text, &n, z->e)) return NULL;
        if (n == 0) return tree_literal(z->t, "");
        return tree_copy(z->t, content);
    }
    strbuf joined = {0};
    json_value *node = NULL;
    size_t i = 0;
    for (const json_value *p = content->first; p != NULL; p = p->next, i++) {
        if (!normalize_part(p, path_of("%s[%zu]", path, i).s, &text, &n, z->e)) goto done;
        (void)strbuf_append(&joined, text, n);
    }
    if (joined.failed) z->t->failed = true;
    if (!joined.failed) node = tree_string(z->t, joined.data, joined.len);
done:
    strbuf_deinit(&joined);
    return node;
}

/* ---- Tool calls ---- */

bool normalize_name(const json_value *name, const char *path, api_error *e)
{
    if (name == NULL || name->type != JSON_STRING)
        return api_bad(e, path, "expected a function's name, found %s", json_type_name(name));
    if (name->n_text == 0 || name->n_text > API_NAME_MAX)
        return api_bad(e, path, "expected a name of 1 to %u bytes, found %zu", API_NAME_MAX,
                       name->n_text);
    for (size_t i = 0; i < name->n_text; i++) {
        const unsigned char c = (unsigned char)name->text[i];
        if (c <= ' ' || c == 0x7f || strchr("<>{}\"'", c) != NULL)
            return api_bad(e, path,
                           "a function's name has no white space and none of < > { } \" '");
    }
    return true;
}

/* The arguments of a call; a custom one has a text. */
static json_value *call_arguments(normalizer *z, const json_value *f, bool custom, const char *path)
{
    const json_value *v = json_get(f, custom ? "input" : "arguments");
    const api_path at = path_of("%s.%s", path, custom ? "input" : "arguments");
    const char *text;
    size_t n;
    if (!custom) return arguments_read(z->t, v, at.s, z->e);
    return api_text(v, at.s, &text, &n, z->e) ? custom_arguments(z->t, text, n) : NULL;
}

/* {"name", "arguments", "id"} from one call of the request. */
static json_value *call_node(normalizer *z, const json_value *call, const char *path)
{
    if (call->type != JSON_OBJECT) {
        (void)api_bad(z->e, path, "expected a tool call, found %s", json_type_name(call));
        return NULL;
    }
    const json_value *type = json_get(call, "type"), *id = json_get(call, "id");
    const bool custom = json_is(type, "custom");
    if (type != NULL && type->type != JSON_NULL && !json_is(type, "function") && !custom) {
        (void)api_bad(z->e, path_of("%s.type", path).s, "expected function or custom");
        return NULL;
    }
    const json_value *inner = json_get(call, custom ? "custom" : "function");
    const json_value *f = inner != NULL ? inner : call;
    const api_path in =
        path_of("%s%s%s", path, inner != NULL ? "." : "", inner != NULL ? inner->key : "");
    if (!normalize_name(json_get(f, "name"), path_of("%s.name", in.s).s, z->e)) return NULL;
    if (id != NULL && id->type != JSON_STRING && id->type != JSON_NULL) {
        (void)api_bad(z->e, path_of("%s.id", path).s, "expected a string, found %s",
                      json_type_name(id));
        return NULL;
    }
    json_value *args = call_arguments(z, f, custom, in.s);
    if (args == NULL) return NULL;
    tree_list out = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, &out, "name", tree_copy(z->t, json_get(f, "name")));
    tree_set(z->t, &out, "arguments", args);
    if (id != NULL && id->type == JSON_STRING) tree_set(z->t, &out, "id", tree_copy(z->t, id));
    return out.node;
}

/* False on a fault. *out: an array, or NULL when the message has no calls. */
static bool calls_node(normalizer *z, const json_value *m, size_t i_msg, json_value **out)
{
    const json_value *calls = json_get(m, "tool_calls");
    const json_value *old = json_get(m, "function_call");
    const api_path path = place(z, i_msg, ".tool_calls");
    tree_list list = {0};
    *out = NULL;
    if (calls != NULL && calls->type != JSON_NULL) {
        if (calls->type != JSON_ARRAY)
            return api_bad(z->e, path.s, "expected an array, found %s", json_type_name(calls));
        if (calls->n_items == 0) return true;
        if (calls->n_items > API_CALLS_MAX)
            return api_bad(z->e, path.s, "expected at most %u calls, found %zu", API_CALLS_MAX,
                           calls->n_items);
        list = tree_begin(z->t, JSON_ARRAY);
        size_t i = 0;
        for (const json_value *c = calls->first; c != NULL; c = c->next, i++) {
            json_value *node = call_node(z, c, path_of("%s[%zu]", path.s, i).s);
            if (node == NULL) return false;
            tree_append(z->t, &list, node);
        }
    } else if (old != NULL && old->type != JSON_NULL) {
        json_value *node = call_node(z, old, place(z, i_msg, ".function_call").s);
        if (node == NULL) return false;
        list = tree_begin(z->t, JSON_ARRAY);
        tree_append(z->t, &list, node);
    }
    *out = list.node;
    return true;
}

/* ---- Messages ---- */

static json_value *begin_message(normalizer *z, tree_list *m, const char *role, json_value *content)
{
    *m = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, m, "role", tree_literal(z->t, role));
    tree_set(z->t, m, "content", content);
    return m->node;
}

/* Content with <think> left open before a call written as text: what is between them is the
 * reasoning, the rest from the call on the content. */
static void close_reasoning(normalizer *z, json_value **content, json_value **reasoning)
{
    static const char open[] = "<think>";
    const char *s = (*content)->text;
    const size_t n = (*content)->n_text;
    const size_t at = pystr_rfind(s, 0, n, open);
    if (at == n || pystr_find(s, at, n, "</think>") != n) return;
    const size_t call = pystr_find(s, at, n, "<tool_call>");
    size_t begin = 0, end = at;
    pystr_strip(s, &begin, &end);
    if (call == n || begin != end) return;
    *reasoning = tree_string(z->t, s + at + strlen(open), call - at - strlen(open));
    *content = tree_string(z->t, s + call, n - call);
}

static bool put_assistant(normalizer *z, const json_value *m, size_t i, json_value *content)
{
    static const char *const names[] = {"reasoning_content", "reasoning"};
    json_value *reasoning = NULL, *calls = NULL;
    for (size_t k = 0; k < 2 && reasoning == NULL; k++) {
        const json_value *v = json_get(m, names[k]);
        const char *text;
        size_t n;
        if (v == NULL || v->type == JSON_NULL) continue;
        if (!api_text(v, path_of("%s.%s", place(z, i, "").s, names[k]).s, &text, &n, z->e))
            return false;
        reasoning = tree_copy(z->t, v);
    }
    if (!calls_node(z, m, i, &calls)) return false;
    z->i_assistant = i;
    if (reasoning == NULL) close_reasoning(z, &content, &reasoning);
    tree_list out;
    (void)begin_message(z, &out, "assistant", content);
    if (reasoning != NULL) tree_set(z->t, &out, "reasoning_content", reasoning);
    if (calls != NULL) tree_set(z->t, &out, "tool_calls", calls);
    tree_append(z->t, &z->out, out.node);
    return true;
}

static bool put_tool(normalizer *z, const json_value *m, size_t i, json_value *content)
{
    const json_value *id = json_get(m, "tool_call_id");
    if (id != NULL && id->type != JSON_STRING && id->type != JSON_NULL)
        return api_bad(z->e, place(z, i, ".tool_call_id").s, "expected a string, found %s",
                       json_type_name(id));
    if (z->out.last == NULL)
        return api_bad(z->e, place(z, i, "").s,
                       "a tool's result needs an assistant message with its call before it");
    tree_list out;
    (void)begin_message(z, &out, "tool", content);
    if (id != NULL && id->type == JSON_STRING)
        tree_set(z->t, &out, "tool_call_id", tree_copy(z->t, id));
    tree_append(z->t, &z->out, out.node);
    return true;
}

static bool put_system(normalizer *z, const json_value *content)
{
    if (z->has_system && z->system.len != 0 && content->n_text != 0)
        (void)strbuf_puts(&z->system, "\n\n");
    (void)strbuf_append(&z->system, content->text, content->n_text);
    z->has_system = true;
    return !z->system.failed || api_no_memory(z->e);
}

static bool put_message(normalizer *z, const json_value *m, size_t i)
{
    if (m->type != JSON_OBJECT)
        return api_bad(z->e, place(z, i, "").s, "expected an object, found %s", json_type_name(m));
    const json_value *role = json_get(m, "role");
    const api_path at = place(z, i, ".role");
    if (role == NULL || role->type != JSON_STRING)
        return api_bad(z->e, at.s, "expected a string, found %s", json_type_name(role));
    z->e->status = 0;
    json_value *content = content_node(z, json_get(m, "content"), place(z, i, ".content").s);
    if (content == NULL) return z->e->status != 0 ? false : api_no_memory(z->e);
    if (json_is(role, "system") || json_is(role, "developer")) return put_system(z, content);
    if (json_is(role, "assistant")) return put_assistant(z, m, i, content);
    if (json_is(role, "tool") || json_is(role, "function")) return put_tool(z, m, i, content);
    if (!json_is(role, "user"))
        return api_bad(z->e, at.s,
                       "expected system, developer, user, assistant or tool, found \"%.40s\"",
                       role->text);
    tree_list out;
    tree_append(z->t, &z->out, begin_message(z, &out, "user", content));
    return true;
}

/* ---- Order of results ---- */

static bool same_id(const json_value *call, const json_value *result)
{
    const json_value *a = json_get(call, "id"), *b = json_get(result, "tool_call_id");
    return a != NULL && b != NULL && a->n_text == b->n_text &&
           memcmp(a->text, b->text, a->n_text) == 0;
}

/* Puts the results that follow `turn` in the order of its calls, those of no known id behind them.
 * Returns the last one. */
static json_value *order_results(json_value *turn, const json_value *calls)
{
    json_value *end = turn->next; /* first message that is no result */
    while (end != NULL && json_is(json_get(end, "role"), "tool"))
        end = end->next;
    json_value *done = turn;
    for (const json_value *c = calls->first; c != NULL; c = c->next) {
        json_value *before = done;
        while (before->next != end) {
            json_value *r = before->next;
            if (same_id(c, r)) {
                before->next = r->next;
                r->next = done->next;
                done->next = r;
                done = r;
                if (before->next == r) before = r;
            } else {
                before = r;
            }
        }
    }
    while (done->next != end)
        done = done->next;
    return done;
}

static void order_all(json_value *messages)
{
    for (json_value *m = messages != NULL ? messages->first : NULL; m != NULL; m = m->next) {
        const json_value *calls = json_get(m, "tool_calls");
        if (calls != NULL && calls->n_items > 1) m = order_results(m, calls);
    }
}

/* ---- Whole ---- */

void normalize_deinit(normal_chat *c)
{
    tree_deinit(&c->nodes);
    memset(c, 0, sizeof *c);
}

static void put_first(normalizer *z)
{
    tree_list m;
    json_value *node =
        begin_message(z, &m, "system", tree_string(z->t, z->system.data, z->system.len));
    if (node == NULL || z->out.node == NULL) return;
    node->next = z->out.node->first;
    z->out.node->first = node;
    z->out.node->n_items++;
}

/* The last message may be the assistant's, to be continued, and somebody must have asked. */
static bool check_whole(normalizer *z, normal_chat *c)
{
    const json_value *last = z->out.last;
    bool asked = false;
    c->continues = last != NULL && json_is(json_get(last, "role"), "assistant");
    if (c->continues && json_get(last, "tool_calls") != NULL)
        return api_bad(z->e, place(z, z->i_assistant, "").s,
                       "tool calls must be followed by their results");
    const json_value *first = z->out.node != NULL ? z->out.node->first : NULL;
    for (const json_value *m = first; m != NULL && !asked; m = m->next)
        asked = json_is(json_get(m, "role"), "user");
    return asked || api_bad(z->e, z->from->name, "expected a message of the user, found none");
}

bool normalize_messages(normal_chat *out, const normal_source *from, api_error *e)
{
    const json_value *messages = from->messages;
    memset(out, 0, sizeof *out);
    if (messages == NULL || messages->type != JSON_ARRAY)
        return api_bad(e, from->name, "expected an array of messages, found %s",
                       json_type_name(messages));
    if (messages->n_items == 0 || messages->n_items > API_MESSAGES_MAX)
        return api_bad(e, from->name, "expected 1 to %u messages, found %zu", API_MESSAGES_MAX,
                       messages->n_items);
    normalizer z = {.from = from, .t = &out->nodes, .e = e};
    z.out = tree_begin(z.t, JSON_ARRAY);
    size_t i = 0;
    bool ok = true;
    for (const json_value *m = messages->first; ok && m != NULL; m = m->next)
        ok = put_message(&z, m, i++);
    if (ok && z.has_system) put_first(&z);
    if (ok && (z.t->failed || z.out.node == NULL)) ok = api_no_memory(e);
    if (ok) ok = check_whole(&z, out);
    if (ok) {
        order_all(z.out.node);
        out->messages = z.out.node;
    }
    strbuf_deinit(&z.system);
    if (!ok) normalize_deinit(out);
    return ok;
}

/* ---- Tools ---- */

static bool check_tool(const json_value *tools, const json_value *tool, const tool_places *places,
                       size_t i, api_error *e)
{
    const api_path at =
        path_of("tools[%zu]", places->origin != NULL ? (size_t)places->origin[i] : i);
    const api_path in = path_of("%s%s", at.s, places->flat ? "" : ".function");
    if (tool->type != JSON_OBJECT)
        return api_bad(e, at.s, "expected an object, found %s", json_type_name(tool));
    const json_value *type = json_get(tool, "type");
    if (type == NULL || type->type != JSON_STRING)
        return api_bad(e, path_of("%s.type", at.s).s, "expected \"function\", found %s",
                       json_type_name(type));
    if (!json_is(type, "function"))
        return api_bad(e, path_of("%s.type", at.s).s, "expected \"function\", found \"%.40s\"",
                       type->text);
    const json_value *f = json_get(tool, "function");
    if (f == NULL || f->type != JSON_OBJECT)
        return api_bad(e, path_of("%s.function", at.s).s, "expected an object, found %s",
                       json_type_name(f));
    const json_value *name = json_get(f, "name");
    if (!normalize_name(name, path_of("%s.name", in.s).s, e)) return false;
    static const api_field fields[] = {
        {"description", API_STRING, 0, 0, 0},
        {"parameters", API_OBJECT, 0, 0, 0},
        {"strict", API_BOOL, 0, 0, 0},
    };
    union {
        const json_value *v;
        api_bool b;
    } ignored;
    if (!api_read(f, in.s, fields, 3, &ignored, e)) return false;
    for (const json_value *other = tools->first; other != tool; other = other->next) {
        const json_value *seen = json_get(json_get(other, "function"), "name");
        if (seen->n_text == name->n_text && memcmp(seen->text, name->text, name->n_text) == 0)
            return api_bad(e, path_of("%s.name", in.s).s,
                           "\"%.60s\" is the name of an earlier tool", name->text);
    }
    return true;
}

bool normalize_tools(const json_value *tools, const tool_places *places, api_error *e)
{
    if (tools == NULL || tools->type == JSON_NULL) return true;
    if (tools->type != JSON_ARRAY)
        return api_bad(e, "tools", "expected an array, found %s", json_type_name(tools));
    if (tools->n_items > API_TOOLS_MAX)
        return api_bad(e, "tools", "expected at most %u tools, found %zu", API_TOOLS_MAX,
                       tools->n_items);
    size_t i = 0;
    for (const json_value *t = tools->first; t != NULL; t = t->next)
        if (!check_tool(tools, t, places, i++, e)) return false;
    return true;
}
