/* POST /v1/messages and /v1/messages/count_tokens: Anthropic's form. */
#include <string.h>

#include "server/api_blocks.h"

#define SIGNATURE "Y2FsbGE=" /* clients want one back and forth; nothing is signed here */

typedef struct msg_wire {
    blocks blocks;
    strbuf content; /* the blocks that are closed, as JSON */
} msg_wire;

/* ---- Request: messages ---- */

typedef struct converter {
    tree *t;
    tree_list out; /* OpenAI's messages */
    id_list *origin;
    size_t i; /* the client's message */
    api_error *e;
} converter;

static void put_message(converter *z, const tree_list *m)
{
    tree_append(z->t, &z->out, m->node);
    if (!id_list_push(z->origin, (int32_t)z->i)) z->t->failed = true;
}

static void add_message(converter *z, const char *role, json_value *content)
{
    tree_list m = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, &m, "role", tree_literal(z->t, role));
    tree_set(z->t, &m, "content", content);
    put_message(z, &m);
}

/* Blocks of text joined by `between`. NULL on a fault. */
static json_value *join_blocks(converter *z, const json_value *v, const char *path,
                               const char *between)
{
    const char *s;
    size_t n, i = 0;
    strbuf text = {0};
    json_value *node = NULL;
    if (v == NULL || v->type != JSON_ARRAY)
        return api_text(v, path, &s, &n, z->e) ? tree_string(z->t, s, n) : NULL;
    for (const json_value *b = v->first; b != NULL; b = b->next, i++) {
        if (!normalize_part(b, path_of("%s[%zu]", path, i).s, &s, &n, z->e)) goto done;
        if (text.len != 0 && n != 0) (void)strbuf_puts(&text, between);
        (void)strbuf_append(&text, s, n);
    }
    node = text.failed ? NULL : tree_string(z->t, text.data, text.len);
    if (node == NULL) (void)api_no_memory(z->e);
done:
    strbuf_deinit(&text);
    return node;
}

/* A coding agent puts a line here that differs in every request and says nothing to a model. */
static bool is_billing(const json_value *part)
{
    static const char head[] = "x-anthropic-billing-header:";
    const json_value *text = json_get(part, "text");
    return text != NULL && text->type == JSON_STRING && text->n_text >= sizeof head - 1 &&
           memcmp(text->text, head, sizeof head - 1) == 0;
}

static bool convert_system(converter *z, const json_value *system)
{
    if (system == NULL || system->type == JSON_NULL) return true;
    if (system->type == JSON_STRING) {
        add_message(z, "system", tree_copy(z->t, system));
        return true;
    }
    if (system->type != JSON_ARRAY)
        return api_bad(z->e, "system", "expected a string or an array of blocks, found %s",
                       json_type_name(system));
    size_t i = 0;
    for (const json_value *b = system->first; b != NULL; b = b->next, i++) {
        const char *s;
        size_t n;
        if (!normalize_part(b, path_of("system[%zu]", i).s, &s, &n, z->e)) return false;
        if (!is_billing(b)) add_message(z, "system", tree_string(z->t, s, n));
    }
    return true;
}

static bool convert_result(converter *z, const json_value *b, const char *path)
{
    const json_value *id = json_get(b, "tool_use_id");
    if (id == NULL || id->type != JSON_STRING)
        return api_bad(z->e, path_of("%s.tool_use_id", path).s, "expected a string, found %s",
                       json_type_name(id));
    json_value *text = join_blocks(z, json_get(b, "content"), path_of("%s.content", path).s, "\n");
    if (text == NULL) return false;
    tree_list m = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, &m, "role", tree_literal(z->t, "tool"));
    tree_set(z->t, &m, "content", text);
    tree_set(z->t, &m, "tool_call_id", tree_copy(z->t, id));
    put_message(z, &m);
    return true;
}

/* Results become messages of their own; the text between and behind them the user's. */
static bool convert_user(converter *z, const json_value *content, const char *path)
{
    strbuf text = {0};
    bool ok = true, any = false;
    size_t i = 0;
    for (const json_value *b = content->first; ok && b != NULL; b = b->next, i++) {
        const api_path at = path_of("%s[%zu]", path, i);
        const char *s;
        size_t n;
        if (json_is(json_get(b, "type"), "tool_result")) {
            if (text.len != 0) add_message(z, "user", tree_string(z->t, text.data, text.len));
            strbuf_clear(&text);
            ok = convert_result(z, b, at.s);
            any = true;
        } else {
            ok = normalize_part(b, at.s, &s, &n, z->e);
            if (ok && text.len != 0) (void)strbuf_puts(&text, "\n\n");
            if (ok) (void)strbuf_append(&text, s, n);
        }
    }
    if (text.failed) z->t->failed = true;
    if (ok && (text.len != 0 || !any))
        add_message(z, "user", tree_string(z->t, text.data, text.len));
    strbuf_deinit(&text);
    return ok;
}

static bool convert_call(converter *z, const json_value *b, const char *path, tree_list *calls)
{
    const json_value *id = json_get(b, "id"), *input = json_get(b, "input");
    if (id == NULL || id->type != JSON_STRING)
        return api_bad(z->e, path_of("%s.id", path).s, "expected a string, found %s",
                       json_type_name(id));
    if (!normalize_name(json_get(b, "name"), path_of("%s.name", path).s, z->e)) return false;
    json_value *args = arguments_read(z->t, input, path_of("%s.input", path).s, z->e);
    if (args == NULL) return false;
    tree_list call = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, &call, "id", tree_copy(z->t, id));
    tree_set(z->t, &call, "name", tree_copy(z->t, json_get(b, "name")));
    tree_set(z->t, &call, "arguments", args);
    if (calls->node == NULL) *calls = tree_begin(z->t, JSON_ARRAY);
    tree_append(z->t, calls, call.node);
    return true;
}

static bool convert_block(converter *z, const json_value *b, const char *path, strbuf *text,
                          strbuf *thinking, tree_list *calls)
{
    const json_value *type = json_get(b, "type");
    const char *s;
    size_t n;
    if (json_is(type, "redacted_thinking")) return true;
    if (json_is(type, "tool_use")) return convert_call(z, b, path, calls);
    if (json_is(type, "thinking")) {
        if (!api_text(json_get(b, "thinking"), path_of("%s.thinking", path).s, &s, &n, z->e))
            return false;
        (void)strbuf_append(thinking, s, n);
        return true;
    }
    if (!normalize_part(b, path, &s, &n, z->e)) return false;
    (void)strbuf_append(text, s, n);
    return true;
}

static bool convert_assistant(converter *z, const json_value *content, const char *path)
{
    strbuf text = {0}, thinking = {0};
    tree_list calls = {0}, m = tree_begin(z->t, JSON_OBJECT);
    bool ok = true;
    size_t i = 0;
    for (const json_value *b = content->first; ok && b != NULL; b = b->next, i++)
        ok = convert_block(z, b, path_of("%s[%zu]", path, i).s, &text, &thinking, &calls);
    if (text.failed || thinking.failed) z->t->failed = true;
    tree_set(z->t, &m, "role", tree_literal(z->t, "assistant"));
    tree_set(z->t, &m, "content", tree_string(z->t, text.data, text.len));
    if (thinking.len != 0)
        tree_set(z->t, &m, "reasoning_content", tree_string(z->t, thinking.data, thinking.len));
    if (calls.node != NULL) tree_set(z->t, &m, "tool_calls", calls.node);
    put_message(z, &m);
    strbuf_deinit(&text);
    strbuf_deinit(&thinking);
    return ok;
}

static bool convert_message(converter *z, const json_value *m)
{
    const size_t i = z->i;
    static const char *const roles[] = {"user", "assistant", "system"};
    const json_value *role = json_get(m, "role"), *content = json_get(m, "content");
    const api_path at = path_of("messages[%zu].content", i);
    if (m->type != JSON_OBJECT)
        return api_bad(z->e, path_of("messages[%zu]", i).s, "expected an object, found %s",
                       json_type_name(m));
    size_t k = 0;
    while (k < 3 && !json_is(role, roles[k]))
        k++;
    if (k == 3)
        return api_bad(z->e, path_of("messages[%zu].role", i).s, "expected user or assistant");
    if (content != NULL && content->type == JSON_STRING) {
        add_message(z, roles[k], tree_copy(z->t, content));
        return true;
    }
    if (content == NULL || content->type != JSON_ARRAY)
        return api_bad(z->e, at.s, "expected a string or an array of blocks, found %s",
                       json_type_name(content));
    if (k == 0) return convert_user(z, content, at.s);
    if (k == 1) return convert_assistant(z, content, at.s);
    json_value *text = join_blocks(z, content, at.s, "\n\n");
    if (text != NULL) add_message(z, "system", text);
    return text != NULL;
}

static bool convert_messages(gen_job *job, json_value **out, api_error *e)
{
    const json_value *messages = json_get(job->body.root, "messages");
    converter z = {.t = &job->nodes, .origin = &job->origin, .e = e};
    if (messages == NULL || messages->type != JSON_ARRAY || messages->n_items == 0)
        return api_bad(e, "messages", "expected an array of messages, found %s",
                       messages != NULL && messages->type == JSON_ARRAY ? "an empty one"
                                                                        : json_type_name(messages));
    z.out = tree_begin(z.t, JSON_ARRAY);
    if (!convert_system(&z, json_get(job->body.root, "system"))) return false;
    for (const json_value *m = messages->first; m != NULL; m = m->next, z.i++)
        if (!convert_message(&z, m)) return false;
    *out = z.out.node;
    return !z.t->failed || api_no_memory(e);
}

/* ---- Request: the rest ---- */

/* Tools of which Anthropic's models know the schema, and which the client runs. */
static const struct {
    const char *type; /* up to the date */
    const char *about, *schema;
} known_tools[] = {
    {"bash_", "Runs a command in a shell that stays open between calls.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\",\"description\":\"The "
     "command\"},\"restart\":{\"type\":\"boolean\",\"description\":\"true: starts the shell anew "
     "instead\"}}}"},
    {"text_editor_", "Views, creates and edits text files.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\",\"enum\":[\"view\","
     "\"create\","
     "\"str_replace\",\"insert\"]},\"path\":{\"type\":\"string\",\"description\":\"Of the file, or "
     "of a "
     "folder to view\"},\"file_text\":{\"type\":\"string\",\"description\":\"create: the whole "
     "text\"},"
     "\"old_str\":{\"type\":\"string\",\"description\":\"str_replace: a text that occurs once\"},"
     "\"new_str\":{\"type\":\"string\",\"description\":\"str_replace: what takes its place\"},"
     "\"insert_line\":{\"type\":\"integer\",\"description\":\"insert: the line to insert behind, 0 "
     "for "
     "the beginning\"},\"insert_text\":{\"type\":\"string\",\"description\":\"insert: the text\"},"
     "\"view_range\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"description\":\"view: "
     "first "
     "and last line; -1: the end\"}},\"required\":[\"command\",\"path\"]}"},
    {"memory_", "Keeps notes in files under /memories, which later conversations can read.",
     "{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\",\"enum\":[\"view\","
     "\"create\","
     "\"str_replace\",\"insert\",\"delete\",\"rename\"]},\"path\":{\"type\":\"string\"},\"file_"
     "text\":{"
     "\"type\":\"string\",\"description\":\"create: the whole "
     "text\"},\"old_str\":{\"type\":\"string\","
     "\"description\":\"str_replace: a text that occurs once\"},\"new_str\":{\"type\":\"string\","
     "\"description\":\"str_replace: what takes its "
     "place\"},\"insert_line\":{\"type\":\"integer\"},"
     "\"insert_text\":{\"type\":\"string\"},\"view_range\":{\"type\":\"array\",\"items\":{\"type\":"
     "\"integer\"}},\"old_path\":{\"type\":\"string\",\"description\":\"rename\"},\"new_path\":{"
     "\"type\":"
     "\"string\",\"description\":\"rename\"}},\"required\":[\"command\"]}"},
};

/* Description and schema of a tool. False on a fault. */
static bool tool_schema(gen_job *job, const json_value *tool, const char *path, json_value **about,
                        json_value **schema, api_error *e)
{
    tree *t = &job->nodes;
    const json_value *type = json_get(tool, "type");
    const api_path at = path_of("%s.type", path);
    if (type != NULL && type->type != JSON_STRING && type->type != JSON_NULL)
        return api_bad(e, at.s, "expected a string, found %s", json_type_name(type));
    if (type == NULL || type->type == JSON_NULL || json_is(type, "custom")) {
        const json_value *own = json_get(tool, "input_schema");
        if (own == NULL || own->type != JSON_OBJECT)
            return api_bad(e, path_of("%s.input_schema", path).s, "expected an object, found %s",
                           json_type_name(own));
        *schema = tree_copy(t, own);
        *about = tree_copy(t, json_get(tool, "description"));
        return true;
    }
    for (size_t i = 0; i < sizeof known_tools / sizeof *known_tools; i++) {
        const char *s = known_tools[i].schema;
        const size_t n = strlen(known_tools[i].type);
        if (strncmp(type->text, known_tools[i].type, n) != 0 ||
            strspn(type->text + n, "0123456789") != 8 || type->n_text != n + 8)
            continue;
        *about = tree_literal(t, known_tools[i].about);
        return tree_parse(t, s, strlen(s), NULL, schema, NULL) == CALLA_OK || api_no_memory(e);
    }
    return api_bad(e, at.s,
                   "\"%.60s\" is not supported; custom, bash, text_editor and memory are, which "
                   "the client runs",
                   type->text);
}

static bool convert_tool(gen_job *job, const json_value *tool, size_t i, tree_list *out,
                         api_error *e)
{
    tree *t = &job->nodes;
    const api_path at = path_of("tools[%zu]", i);
    json_value *about = NULL, *schema = NULL;
    if (tool->type != JSON_OBJECT)
        return api_bad(e, at.s, "expected an object, found %s", json_type_name(tool));
    if (!tool_schema(job, tool, at.s, &about, &schema, e) ||
        !normalize_name(json_get(tool, "name"), path_of("%s.name", at.s).s, e))
        return false;
    tree_list f = tree_begin(t, JSON_OBJECT), outer = tree_begin(t, JSON_OBJECT);
    tree_set(t, &f, "name", tree_copy(t, json_get(tool, "name")));
    if (about != NULL) tree_set(t, &f, "description", about);
    tree_set(t, &f, "parameters", schema);
    if (json_get(tool, "strict") != NULL)
        tree_set(t, &f, "strict", tree_copy(t, json_get(tool, "strict")));
    tree_set(t, &outer, "type", tree_literal(t, "function"));
    tree_set(t, &outer, "function", f.node);
    tree_append(t, out, outer.node);
    return true;
}

static bool read_tools(gen_job *job, api_error *e)
{
    const json_value *tools = json_get(job->body.root, "tools");
    size_t i = 0;
    if (tools == NULL || tools->type == JSON_NULL) return true;
    if (tools->type != JSON_ARRAY)
        return api_bad(e, "tools", "expected an array, found %s", json_type_name(tools));
    tree_list out = tree_begin(&job->nodes, JSON_ARRAY);
    for (const json_value *t = tools->first; t != NULL; t = t->next)
        if (!convert_tool(job, t, i++, &out, e)) return false;
    if (job->nodes.failed) return api_no_memory(e);
    return gen_set_tools(job, out.node, e);
}

static bool read_choice(gen_job *job, api_error *e)
{
    const json_value *c = json_get(job->body.root, "tool_choice");
    api_bool serial = {0};
    const api_field field = {"disable_parallel_tool_use", API_BOOL, 0, 0, 0};
    if (c == NULL || c->type == JSON_NULL) return true;
    if (c->type != JSON_OBJECT)
        return api_bad(e, "tool_choice", "expected an object, found %s", json_type_name(c));
    if (!api_read(c, "tool_choice", &field, 1, &serial, e)) return false;
    job->in.serial = serial.value;
    const json_value *type = json_get(c, "type");
    if (json_is(type, "auto")) return true;
    if (json_is(type, "any")) return gen_require_call(job, NULL, "tool_choice", e);
    if (json_is(type, "none")) {
        job->in.tools = NULL;
        return true;
    }
    if (!json_is(type, "tool"))
        return api_bad(e, "tool_choice.type", "expected auto, any, tool or none");
    const json_value *name = json_get(c, "name");
    if (name == NULL) return api_bad(e, "tool_choice.name", "expected a string, found nothing");
    return gen_require_call(job, name, "tool_choice.name", e);
}

/* Thinking is off unless asked for, as in Anthropic's API. */
static bool read_thinking(gen_job *job, gen_sampling *s, calla_chat_options *options, api_error *e)
{
    const json_value *t = json_get(job->body.root, "thinking");
    const json_value *output = json_get(job->body.root, "output_config");
    api_int budget = {0};
    const api_field field = {"budget_tokens", API_INT, 0, 0, 2147483647};
    bool on = false;
    if (t != NULL && t->type != JSON_NULL) {
        const json_value *type = json_get(t, "type");
        if (t->type != JSON_OBJECT)
            return api_bad(e, "thinking", "expected an object, found %s", json_type_name(t));
        on =
            json_is(type, "enabled") || json_is(type, "adaptive") || json_is(type, "between_tools");
        if (!on && !json_is(type, "disabled"))
            return api_bad(e, "thinking.type",
                           "expected enabled, disabled, adaptive or between_tools");
        if (!api_read(t, "thinking", &field, 1, &budget, e)) return false;
    }
    if (output != NULL && output->type != JSON_OBJECT && output->type != JSON_NULL)
        return api_bad(e, "output_config", "expected an object, found %s", json_type_name(output));
    if (budget.set) s->thinking_budget = budget;
    if (!s->enable_thinking.set) s->enable_thinking = (api_bool){true, on};
    const json_value *format = json_get(output, "format");
    const bool old = format == NULL; /* the name of the beta */
    if (old) format = json_get(job->body.root, "output_format");
    return gen_read_thinking(job, s, json_get(output, "effort"), "output_config.effort", options,
                             e) &&
           gen_read_format(job, format, old ? "output_format" : "output_config.format", NULL, e);
}

static bool messages_parse(gen_job *job, api_error *e)
{
    gen_sampling s;
    calla_chat_options options = {0};
    json_value *messages = NULL;
    return gen_read_sampling(job, &s, e) && gen_read_stops(job, "stop_sequences", e) &&
           gen_read_limit(job, "max_tokens", e) && read_tools(job, e) && read_choice(job, e) &&
           read_thinking(job, &s, &options, e) && convert_messages(job, &messages, e) &&
           gen_chat_prompt(job, messages, &options, e);
}

/* ---- Answer ---- */

static const char *stop_reason(const gen_choice *c)
{
    switch (c->finish) {
    case GEN_LENGTH:
        return "max_tokens";
    case GEN_CALLS:
        return "tool_use";
    case GEN_STOP_STRING:
        return "stop_sequence";
    default:
        return "end_turn";
    }
}

static void put_stop(strbuf *b, const gen_choice *c)
{
    (void)strbuf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c));
    if (c->stop != NULL)
        put_string(b, c->stop->s, c->stop->n);
    else
        (void)strbuf_puts(b, "null");
}

static void put_msg_usage(strbuf *b, const gen_choice *c)
{
    const uint32_t n = gen_n_prompt(c->job);
    (void)strbuf_printf(b,
                        "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
                        "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
                        n - c->n_cached, c->n_cached, (unsigned)c->ids.len);
}

static void put_msg_head(strbuf *b, const gen_job *job)
{
    (void)strbuf_printf(
        b, "\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", job->id);
    put_model(b, job);
}

static void messages_answer(gen_job *job, strbuf *out)
{
    const msg_wire *w = job->wire;
    const gen_choice *c = &job->choices[0];
    (void)strbuf_putc(out, '{');
    put_msg_head(out, job);
    (void)strbuf_puts(out, ",\"content\":[");
    (void)strbuf_append(out, w->content.data, w->content.len);
    (void)strbuf_puts(out, "],");
    put_stop(out, c);
    (void)strbuf_putc(out, ',');
    put_msg_usage(out, c);
    (void)strbuf_putc(out, '}');
    if (w->content.failed) out->failed = true;
}

/* ---- Stream ---- */

static void put_block(strbuf *b, const block *k)
{
    if (k->kind == BLOCK_REASONING) {
        (void)strbuf_puts(b, "{\"type\":\"thinking\",\"thinking\":");
        put_string(b, k->text.data, k->text.len);
        (void)strbuf_puts(b, ",\"signature\":\"" SIGNATURE "\"}");
    } else if (k->kind == BLOCK_TEXT) {
        (void)strbuf_puts(b, "{\"type\":\"text\",\"text\":");
        put_string(b, k->text.data, k->text.len);
        (void)strbuf_putc(b, '}');
    } else {
        (void)strbuf_printf(b, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", k->call_id);
        put_string(b, k->name.data, k->name.len);
        (void)strbuf_puts(b, ",\"input\":");
        (void)strbuf_append(b, k->text.data, k->text.len);
        (void)strbuf_append(b, k->closing, k->n_closing);
        if (k->text.len + k->n_closing == 0) (void)strbuf_puts(b, "{}");
        (void)strbuf_putc(b, '}');
    }
}

static void on_open(gen_job *job, const block *k)
{
    strbuf *b = &job->line;
    (void)strbuf_printf(
        b, "{\"type\":\"content_block_start\",\"index\":%u,\"content_block\":", k->index);
    if (k->kind == BLOCK_REASONING)
        (void)strbuf_puts(b, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}");
    else {
        put_block(b, k); /* empty still */
        (void)strbuf_putc(b, '}');
    }
    gen_send(job, "content_block_start");
}

static void send_delta(gen_job *job, const block *k, const char *type, const char *member,
                       const char *s, size_t n)
{
    strbuf *b = &job->line;
    (void)strbuf_printf(b,
                        "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{\"type\":\"%s\","
                        "\"%s\":",
                        k->index, type, member);
    put_string(b, s, n);
    (void)strbuf_puts(b, "}}");
    gen_send(job, "content_block_delta");
}

static void on_delta(gen_job *job, const block *k, const char *s, size_t n)
{
    if (k->kind == BLOCK_REASONING)
        send_delta(job, k, "thinking_delta", "thinking", s, n);
    else if (k->kind == BLOCK_TEXT)
        send_delta(job, k, "text_delta", "text", s, n);
    else
        send_delta(job, k, "input_json_delta", "partial_json", s, n);
}

static void on_close(gen_job *job, const block *k)
{
    msg_wire *w = job->wire;
    if (k->index != 0) (void)strbuf_putc(&w->content, ',');
    put_block(&w->content, k);
    if (k->kind == BLOCK_REASONING)
        send_delta(job, k, "signature_delta", "signature", SIGNATURE, sizeof SIGNATURE - 1);
    (void)strbuf_printf(&job->line, "{\"type\":\"content_block_stop\",\"index\":%u}", k->index);
    gen_send(job, "content_block_stop");
}

static void send_start(gen_job *job, const gen_choice *c)
{
    strbuf *b = &job->line;
    (void)strbuf_puts(b, "{\"type\":\"message_start\",\"message\":{");
    put_msg_head(b, job);
    (void)strbuf_puts(b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_msg_usage(b, c);
    (void)strbuf_puts(b, "}}");
    gen_send(job, "message_start");
    (void)strbuf_puts(b, "{\"type\":\"ping\"}");
    gen_send(job, "ping");
}

static void send_end(gen_job *job, const gen_choice *c)
{
    strbuf *b = &job->line;
    if (c->finish == GEN_FAILED) {
        gen_send_failure(job, c, "error");
        return;
    }
    (void)strbuf_puts(b, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(b, c);
    (void)strbuf_puts(b, "},");
    put_msg_usage(b, c);
    (void)strbuf_putc(b, '}');
    gen_send(job, "message_delta");
    (void)strbuf_puts(b, "{\"type\":\"message_stop\"}");
    gen_send(job, "message_stop");
}

static void messages_event(gen_job *job, gen_choice *c, const gen_event *ev)
{
    static const block_hooks hooks = {on_open, on_delta, on_close};
    msg_wire *w = job->wire;
    if (ev->kind == GEN_BEGIN) send_start(job, c);
    blocks_event(&w->blocks, job, c, ev, &hooks);
    if (ev->kind == GEN_END) send_end(job, c);
}

static void messages_finish(gen_job *job)
{
    (void)job;
}

static void messages_deinit(void *wire)
{
    msg_wire *w = wire;
    blocks_deinit(&w->blocks);
    strbuf_deinit(&w->content);
}

const gen_protocol gen_messages = {.parse = messages_parse,
                                   .id_prefix = "msg_",
                                   .prompt_name = "messages",
                                   .call_prefix = "toolu_",
                                   .wire_bytes = sizeof(msg_wire),
                                   .wire_deinit = messages_deinit,
                                   .flat_tools = true,
                                   .collects = true,
                                   .event = messages_event,
                                   .finish = messages_finish,
                                   .answer = messages_answer};

void api_messages(api_ctx *ctx, http_request *req)
{
    gen_handle(ctx, req, &gen_messages);
}

void api_count_tokens(api_ctx *ctx, http_request *req)
{
    api_error e = {0};
    gen_job *job = gen_begin(ctx, req, &gen_messages);
    if (job == NULL) return;
    if (!messages_parse(job, &e)) {
        gen_refuse(job, &e);
        return;
    }
    strbuf out = {0};
    (void)strbuf_printf(&out, "{\"input_tokens\":%u}", gen_n_prompt(job));
    http_respond_json(req, 200, &out);
    gen_destroy(job);
}
