/* POST /v1/responses: a stateless subset of OpenAI's Responses API. */
#include <string.h>

#include "server/api_blocks.h"

typedef struct resp_wire {
    blocks blocks;
    strbuf output; /* the items that are closed, as JSON */
    unsigned sequence;
    const json_value *instructions, *metadata;
    tree_list spaces; /* {"name", "namespace"} of the tools that are in one */
    bool has_limit;
} resp_wire;

/* ---- Request: input ---- */

/* Items become OpenAI's chat messages. Reasoning, text and calls that follow each other are one
 * assistant message, which is open until something else comes. */
typedef struct converter {
    tree *t;
    tree_list out;
    tree_list calls; /* of the open message */
    strbuf text, reasoning;
    bool open;
    id_list *origin;
    size_t i, i_open; /* the client's item; the last one of the open message */
    api_error *e;
} converter;

static void put_message(converter *z, const tree_list *m, size_t i)
{
    tree_append(z->t, &z->out, m->node);
    if (!id_list_push(z->origin, (int32_t)i)) z->t->failed = true;
}

static void open_assistant(converter *z)
{
    z->open = true;
    z->i_open = z->i;
}

static void close_assistant(converter *z)
{
    if (!z->open) return;
    tree_list m = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, &m, "role", tree_literal(z->t, "assistant"));
    tree_set(z->t, &m, "content", tree_string(z->t, z->text.data, z->text.len));
    if (z->reasoning.len != 0)
        tree_set(z->t, &m, "reasoning_content",
                 tree_string(z->t, z->reasoning.data, z->reasoning.len));
    if (z->calls.node != NULL) tree_set(z->t, &m, "tool_calls", z->calls.node);
    put_message(z, &m, z->i_open);
    strbuf_clear(&z->text);
    strbuf_clear(&z->reasoning);
    z->calls = (tree_list){0};
    z->open = false;
}

static bool append_parts(converter *z, strbuf *to, const json_value *v, const char *path)
{
    const char *s;
    size_t n, i = 0;
    if (v == NULL || v->type != JSON_ARRAY) {
        if (!api_text(v, path, &s, &n, z->e)) return false;
        (void)strbuf_append(to, s, n);
        return true;
    }
    for (const json_value *p = v->first; p != NULL; p = p->next, i++) {
        if (!normalize_part(p, path_of("%s[%zu]", path, i).s, &s, &n, z->e)) return false;
        (void)strbuf_append(to, s, n);
    }
    return true;
}

static bool convert_message(converter *z, const json_value *item, const char *path)
{
    static const char *const roles[] = {"user", "system", "developer"};
    const json_value *role = json_get(item, "role"), *content = json_get(item, "content");
    const api_path at = path_of("%s.content", path);
    if (json_is(role, "assistant")) {
        /* A second text, or a text behind calls, begins a turn of its own. */
        if (z->text.len != 0 || z->calls.node != NULL) close_assistant(z);
        open_assistant(z);
        return append_parts(z, &z->text, content, at.s);
    }
    close_assistant(z);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (!json_is(role, roles[i])) continue;
        strbuf text = {0};
        const bool ok = append_parts(z, &text, content, at.s);
        tree_list m = tree_begin(z->t, JSON_OBJECT);
        tree_set(z->t, &m, "role", tree_literal(z->t, roles[i]));
        tree_set(z->t, &m, "content", tree_string(z->t, text.data, text.len));
        put_message(z, &m, z->i);
        if (text.failed) z->t->failed = true;
        strbuf_deinit(&text);
        return ok;
    }
    return api_bad(z->e, path_of("%s.role", path).s,
                   "expected user, assistant, system or developer");
}

static bool convert_call(converter *z, const json_value *item, const char *path)
{
    const json_value *id = json_get(item, "call_id");
    const bool custom = json_is(json_get(item, "type"), "custom_tool_call");
    const json_value *args = json_get(item, custom ? "input" : "arguments");
    const char *text;
    size_t n;
    if (id == NULL || id->type != JSON_STRING)
        return api_bad(z->e, path_of("%s.call_id", path).s, "expected a string, found %s",
                       json_type_name(id));
    if (!normalize_name(json_get(item, "name"), path_of("%s.name", path).s, z->e)) return false;
    json_value *parsed = NULL;
    if (!custom)
        parsed = arguments_read(z->t, args, path_of("%s.arguments", path).s, z->e);
    else if (api_text(args, path_of("%s.input", path).s, &text, &n, z->e))
        parsed = custom_arguments(z->t, text, n);
    if (parsed == NULL) return false;
    tree_list call = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, &call, "id", tree_copy(z->t, id));
    tree_set(z->t, &call, "name", tree_copy(z->t, json_get(item, "name")));
    tree_set(z->t, &call, "arguments", parsed);
    if (z->calls.node == NULL) z->calls = tree_begin(z->t, JSON_ARRAY);
    tree_append(z->t, &z->calls, call.node);
    open_assistant(z);
    return true;
}

static bool convert_output(converter *z, const json_value *item, const char *path)
{
    const json_value *id = json_get(item, "call_id");
    strbuf text = {0};
    if (id == NULL || id->type != JSON_STRING)
        return api_bad(z->e, path_of("%s.call_id", path).s, "expected a string, found %s",
                       json_type_name(id));
    close_assistant(z);
    const bool ok = append_parts(z, &text, json_get(item, "output"), path_of("%s.output", path).s);
    tree_list m = tree_begin(z->t, JSON_OBJECT);
    tree_set(z->t, &m, "role", tree_literal(z->t, "tool"));
    tree_set(z->t, &m, "content", tree_string(z->t, text.data, text.len));
    tree_set(z->t, &m, "tool_call_id", tree_copy(z->t, id));
    put_message(z, &m, z->i);
    if (text.failed) z->t->failed = true;
    strbuf_deinit(&text);
    return ok;
}

static bool convert_item(converter *z, const json_value *item)
{
    const api_path path = path_of("input[%zu]", z->i);
    const json_value *type = json_get(item, "type");
    if (item->type != JSON_OBJECT)
        return api_bad(z->e, path.s, "expected an object, found %s", json_type_name(item));
    if (type == NULL || json_is(type, "message")) return convert_message(z, item, path.s);
    if (json_is(type, "function_call") || json_is(type, "custom_tool_call"))
        return convert_call(z, item, path.s);
    if (json_is(type, "function_call_output") || json_is(type, "custom_tool_call_output"))
        return convert_output(z, item, path.s);
    if (json_is(type, "reasoning")) {
        const json_value *content = json_get(item, "content");
        if (z->text.len != 0 || z->calls.node != NULL) close_assistant(z);
        open_assistant(z);
        return append_parts(z, &z->reasoning, content, path_of("%s.content", path.s).s);
    }
    if (json_is(type, "item_reference"))
        return api_bad(z->e, path_of("%s.type", path.s).s,
                       "this server keeps no items; send the item itself (\"store\": false makes "
                       "clients do so)");
    return api_bad(z->e, path_of("%s.type", path.s).s,
                   "expected message, reasoning, function_call, function_call_output, "
                   "custom_tool_call or custom_tool_call_output%s%.40s",
                   type->type == JSON_STRING ? ", found " : "",
                   type->type == JSON_STRING ? type->text : "");
}

static bool convert_items(converter *z, const json_value *input)
{
    if (input == NULL || (input->type != JSON_STRING && input->type != JSON_ARRAY))
        return api_bad(z->e, "input", "expected a string or an array of items, found %s",
                       json_type_name(input));
    if (input->type == JSON_STRING) {
        tree_list m = tree_begin(z->t, JSON_OBJECT);
        tree_set(z->t, &m, "role", tree_literal(z->t, "user"));
        tree_set(z->t, &m, "content", tree_copy(z->t, input));
        put_message(z, &m, z->i);
        return true;
    }
    if (input->n_items == 0)
        return api_bad(z->e, "input", "expected at least one item, found none");
    for (const json_value *item = input->first; item != NULL; item = item->next, z->i++)
        if (!convert_item(z, item)) return false;
    close_assistant(z);
    return true;
}

static bool convert_input(gen_job *job, json_value **out, api_error *e)
{
    resp_wire *w = job->wire;
    converter z = {.t = &job->nodes, .origin = &job->origin, .e = e};
    z.out = tree_begin(z.t, JSON_ARRAY);
    if (w->instructions != NULL) {
        tree_list m = tree_begin(z.t, JSON_OBJECT);
        tree_set(z.t, &m, "role", tree_literal(z.t, "system"));
        tree_set(z.t, &m, "content", tree_copy(z.t, w->instructions));
        put_message(&z, &m, 0);
    }
    bool ok = convert_items(&z, json_get(job->body.root, "input"));
    if (z.text.failed || z.reasoning.failed) z.t->failed = true;
    strbuf_deinit(&z.text);
    strbuf_deinit(&z.reasoning);
    *out = z.out.node;
    if (ok && z.t->failed) ok = api_no_memory(e);
    return ok;
}

/* ---- Request: the rest ---- */

/* {"type": "function", "name", ...} as chat completions have it. NULL: a fault. */
static json_value *function_of(gen_job *job, const json_value *tool, const char *path, api_error *e)
{
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    tree *t = &job->nodes;
    tree_list f = tree_begin(t, JSON_OBJECT), outer = tree_begin(t, JSON_OBJECT);
    if (!normalize_name(json_get(tool, "name"), path_of("%s.name", path).s, e)) return NULL;
    for (size_t k = 0; k < sizeof members / sizeof *members; k++) {
        const json_value *v = json_get(tool, members[k]);
        if (v != NULL && v->type != JSON_NULL) tree_set(t, &f, members[k], tree_copy(t, v));
    }
    tree_set(t, &outer, "type", tree_literal(t, "function"));
    tree_set(t, &outer, "function", f.node);
    if (t->failed) (void)api_no_memory(e);
    return t->failed ? NULL : outer.node;
}

/* Tools that OpenAI's servers run are offers that nobody takes here. */
static bool is_hosted(const json_value *type)
{
    static const char *const names[] = {
        "file_search", "code_interpreter",          "image_generation",
        "mcp",         "programmatic_tool_calling", "tool_search"};
    static const char search[] = "web_search";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is(type, names[i])) return true;
    return strncmp(type->text, search, sizeof search - 1) == 0;
}

typedef struct tool_reader {
    gen_job *job;
    tree_list out;
    size_t i; /* in the client's list */
    api_error *e;
} tool_reader;

static bool put_tool(tool_reader *z, json_value *tool)
{
    tree *t = &z->job->nodes;
    if (tool == NULL) return false;
    tree_append(t, &z->out, tool);
    if (!id_list_push(&z->job->tool_origin, (int32_t)z->i)) t->failed = true;
    return !t->failed || api_no_memory(z->e);
}

/* The tools of a namespace are functions like others; their calls say where they are from. */
static bool read_namespace(tool_reader *z, const json_value *space, const char *path);

static bool read_tool(tool_reader *z, const json_value *tool, const char *path, bool nested)
{
    const json_value *type = json_get(tool, "type");
    if (tool->type != JSON_OBJECT)
        return api_bad(z->e, path, "expected an object, found %s", json_type_name(tool));
    if (type == NULL || type->type != JSON_STRING)
        return api_bad(z->e, path_of("%s.type", path).s, "expected a string, found %s",
                       json_type_name(type));
    if (json_is(type, "function")) return put_tool(z, function_of(z->job, tool, path, z->e));
    if (json_is(type, "custom")) return put_tool(z, gen_custom_tool(z->job, tool, path, z->e));
    if (json_is(type, "namespace") && !nested) return read_namespace(z, tool, path);
    if (is_hosted(type)) return true;
    return api_bad(z->e, path_of("%s.type", path).s,
                   "\"%.40s\" is not supported; function, custom and namespace are", type->text);
}

static bool read_namespace(tool_reader *z, const json_value *space, const char *path)
{
    const json_value *name = json_get(space, "name"), *tools = json_get(space, "tools");
    resp_wire *w = z->job->wire;
    tree *t = &z->job->nodes;
    size_t i = 0;
    if (!normalize_name(name, path_of("%s.name", path).s, z->e)) return false;
    if (tools == NULL || tools->type != JSON_ARRAY)
        return api_bad(z->e, path_of("%s.tools", path).s, "expected an array, found %s",
                       json_type_name(tools));
    if (w->spaces.node == NULL) w->spaces = tree_begin(t, JSON_ARRAY);
    for (const json_value *tool = tools->first; tool != NULL; tool = tool->next, i++) {
        if (!read_tool(z, tool, path_of("%s.tools[%zu]", path, i).s, true)) return false;
        if (json_get(tool, "name") == NULL) continue; /* a hosted one */
        tree_list of = tree_begin(t, JSON_OBJECT);
        tree_set(t, &of, "name", tree_copy(t, json_get(tool, "name")));
        tree_set(t, &of, "namespace", tree_copy(t, name));
        tree_append(t, &w->spaces, of.node);
    }
    return !t->failed || api_no_memory(z->e);
}

static bool read_tools(gen_job *job, const json_value *tools, api_error *e)
{
    tool_reader z = {.job = job, .e = e};
    if (tools == NULL) return true;
    z.out = tree_begin(&job->nodes, JSON_ARRAY);
    for (const json_value *tool = tools->first; tool != NULL; tool = tool->next, z.i++)
        if (!read_tool(&z, tool, path_of("tools[%zu]", z.i).s, false)) return false;
    if (job->nodes.failed) return api_no_memory(e);
    return gen_set_tools(job, z.out.node, e);
}

typedef struct resp_params {
    const json_value *tools, *text, *reasoning, *previous, *instructions, *metadata, *prompt;
    api_bool parallel, background;
} resp_params;

#define AT(member) offsetof(resp_params, member)

static const api_field resp_fields[] = {
    {"tools", API_ARRAY, AT(tools), 0, 0},
    {"text", API_OBJECT, AT(text), 0, 0},
    {"reasoning", API_OBJECT, AT(reasoning), 0, 0},
    {"previous_response_id", API_STRING, AT(previous), 0, 0},
    {"instructions", API_STRING, AT(instructions), 0, 0},
    {"metadata", API_OBJECT, AT(metadata), 0, 0},
    {"prompt", API_OBJECT, AT(prompt), 0, 0},
    {"parallel_tool_calls", API_BOOL, AT(parallel), 0, 0},
    {"background", API_BOOL, AT(background), 0, 0},
};

static bool responses_parse(gen_job *job, api_error *e)
{
    const json_value *root = job->body.root;
    resp_wire *w = job->wire;
    resp_params p = {0};
    gen_sampling s;
    calla_chat_options options = {0};
    json_value *messages = NULL;
    if (!api_read(root, "", resp_fields, sizeof resp_fields / sizeof *resp_fields, &p, e))
        return false;
    if (p.previous != NULL)
        return api_bad(e, "previous_response_id",
                       "this server keeps no responses; send the whole conversation as input");
    if (json_get(root, "conversation") != NULL && json_get(root, "conversation")->type != JSON_NULL)
        return api_bad(e, "conversation",
                       "this server keeps no conversations; send the whole of it as input");
    if (p.prompt != NULL)
        return api_bad(e, "prompt", "this server keeps no prompts; send input and instructions");
    if (p.background.value) return api_bad(e, "background", "it is not supported");
    w->instructions = p.instructions;
    w->metadata = p.metadata;
    if (!gen_read_sampling(job, &s, e) || !gen_read_stops(job, "stop", e) ||
        !gen_read_limit(job, "max_output_tokens", e) ||
        !gen_read_thinking(job, &s, json_get(p.reasoning, "effort"), "reasoning.effort", &options,
                           e) ||
        !read_tools(job, p.tools, e) ||
        !gen_read_tool_choice(job, json_get(root, "tool_choice"), e) ||
        !gen_read_format(job, json_get(p.text, "format"), "text.format", NULL, e))
        return false;
    w->has_limit = job->in.max_tokens != 0;
    job->in.serial = p.parallel.set && !p.parallel.value;
    return convert_input(job, &messages, e) && gen_chat_prompt(job, messages, &options, e);
}

/* ---- The response object ---- */

static void put_json_or(strbuf *b, const json_value *v, const char *absent)
{
    if (v != NULL && v->type != JSON_NULL)
        (void)json_write(b, v);
    else
        (void)strbuf_puts(b, absent);
}

static void put_resp_usage(strbuf *b, const gen_job *job)
{
    const sched_result *r = &job->choices[0].result;
    const uint32_t n = gen_n_prompt(job);
    (void)strbuf_printf(b,
                        "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
                        "\"cache_write_tokens\":0},"
                        "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
                        "\"total_tokens\":%u}",
                        n, r->n_cached, r->n_generated, r->n_thinking, n + r->n_generated);
}

/* In no more digits than a float has: 0.3, not 0.300000012. */
static void put_float(strbuf *b, float x)
{
    (void)strbuf_printf(b, "%.7g", (double)x);
}

/* Members that echo the request. */
static void put_echo(strbuf *b, const gen_job *job)
{
    const resp_wire *w = job->wire;
    const json_value *root = job->body.root;
    (void)strbuf_puts(b, ",\"instructions\":");
    put_json_or(b, w->instructions, "null");
    (void)strbuf_puts(b, ",\"metadata\":");
    put_json_or(b, w->metadata, "{}");
    (void)strbuf_puts(b, ",\"max_output_tokens\":");
    put_json_or(b, w->has_limit ? json_get(root, "max_output_tokens") : NULL, "null");
    (void)strbuf_puts(b, ",\"model\":");
    put_model(b, job);
    (void)strbuf_printf(b, ",\"parallel_tool_calls\":%s,\"previous_response_id\":null",
                        job->in.serial ? "false" : "true");
    (void)strbuf_puts(b, ",\"reasoning\":");
    put_json_or(b, json_get(root, "reasoning"), "{\"effort\":null,\"summary\":null}");
    (void)strbuf_puts(b, ",\"store\":false,\"temperature\":");
    put_float(b, job->in.sampling.temperature);
    (void)strbuf_puts(b, ",\"text\":");
    put_json_or(b, json_get(root, "text"), "{\"format\":{\"type\":\"text\"}}");
    (void)strbuf_puts(b, ",\"tool_choice\":");
    put_json_or(b, json_get(root, "tool_choice"), "\"auto\"");
    (void)strbuf_puts(b, ",\"tools\":");
    put_json_or(b, json_get(root, "tools"), "[]");
    (void)strbuf_puts(b, ",\"top_p\":");
    put_float(b, job->in.sampling.top_p > 0 ? job->in.sampling.top_p : 1.0f);
    (void)strbuf_puts(b, ",\"truncation\":\"disabled\",\"user\":null");
}

static void put_response(strbuf *b, const gen_job *job, const char *status)
{
    const resp_wire *w = job->wire;
    const gen_choice *c = &job->choices[0];
    const bool running = strcmp(status, "in_progress") == 0;
    (void)strbuf_printf(
        b, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\"", job->id,
        (long long)job->created, status);
    (void)strbuf_puts(b, ",\"error\":");
    if (!running && c->finish == GEN_FAILED) {
        api_error e;
        gen_failure(c, &e);
        (void)strbuf_puts(b, "{\"code\":\"server_error\",\"message\":");
        put_text(b, e.message);
        (void)strbuf_putc(b, '}');
    } else {
        (void)strbuf_puts(b, "null");
    }
    (void)strbuf_printf(b, ",\"incomplete_details\":%s",
                        !running && c->finish == GEN_LENGTH ? "{\"reason\":\"max_output_tokens\"}"
                                                            : "null");
    (void)strbuf_puts(b, ",\"output\":[");
    (void)strbuf_append(b, w->output.data, w->output.len);
    (void)strbuf_putc(b, ']');
    put_echo(b, job);
    (void)strbuf_puts(b, ",\"usage\":");
    if (running)
        (void)strbuf_puts(b, "null");
    else
        put_resp_usage(b, job);
    (void)strbuf_putc(b, '}');
    if (w->output.failed) b->failed = true;
}

static const char *final_status(const gen_choice *c)
{
    return c->finish == GEN_FAILED   ? "failed"
           : c->finish == GEN_LENGTH ? "incomplete"
                                     : "completed";
}

static void responses_answer(gen_job *job, strbuf *out)
{
    put_response(out, job, final_status(&job->choices[0]));
}

/* ---- Items ---- */

static void put_part(strbuf *b, const block *k)
{
    (void)strbuf_printf(
        b, "{\"type\":\"%s\",\"text\":", k->kind == BLOCK_TEXT ? "output_text" : "reasoning_text");
    put_string(b, k->text.data, k->text.len);
    if (k->kind == BLOCK_TEXT) (void)strbuf_puts(b, ",\"annotations\":[],\"logprobs\":[]");
    (void)strbuf_putc(b, '}');
}

static void put_call_item(strbuf *b, const resp_wire *w, const block *k)
{
    (void)strbuf_printf(b, "\"type\":\"%s\",\"call_id\":\"%s\",\"name\":",
                        k->custom ? "custom_tool_call" : "function_call", k->call_id);
    put_string(b, k->name.data, k->name.len);
    const json_value *of = w->spaces.node != NULL ? w->spaces.node->first : NULL;
    while (of != NULL && !json_is(json_get(of, "name"), k->name.data))
        of = of->next;
    if (of != NULL) {
        const json_value *space = json_get(of, "namespace");
        (void)strbuf_puts(b, ",\"namespace\":");
        put_string(b, space->text, space->n_text);
    }
    (void)strbuf_puts(b, k->custom ? ",\"input\":" : ",\"arguments\":");
    put_string(b, k->text.data, k->text.len);
    (void)strbuf_putc(b, '}');
}

static void put_item(strbuf *b, const resp_wire *w, const block *k, const char *status)
{
    const bool closed = strcmp(status, "in_progress") != 0;
    (void)strbuf_printf(b, "{\"id\":\"%s\",\"status\":\"%s\",", k->id, status);
    if (k->kind == BLOCK_CALL) {
        put_call_item(b, w, k);
        return;
    }
    (void)strbuf_puts(b, k->kind == BLOCK_TEXT
                             ? "\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                             : "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
    if (closed) put_part(b, k);
    (void)strbuf_puts(b, "]}");
}

/* ---- Stream ---- */

/* Begins an event; more members follow. */
static void begin_event(gen_job *job, const char *type)
{
    resp_wire *w = job->wire;
    (void)strbuf_printf(&job->line, "{\"type\":\"%s\",\"sequence_number\":%u", type, w->sequence++);
}

static void send_event(gen_job *job, const char *type)
{
    (void)strbuf_putc(&job->line, '}');
    gen_send(job, type);
}

static void send_response(gen_job *job, const char *type, const char *status)
{
    begin_event(job, type);
    (void)strbuf_puts(&job->line, ",\"response\":");
    put_response(&job->line, job, status);
    send_event(job, type);
}

static void send_item(gen_job *job, const char *type, const block *k, const char *status)
{
    begin_event(job, type);
    (void)strbuf_printf(&job->line, ",\"output_index\":%u,\"item\":", k->index);
    put_item(&job->line, job->wire, k, status);
    send_event(job, type);
}

static void put_place(gen_job *job, const block *k)
{
    (void)strbuf_printf(&job->line, ",\"item_id\":\"%s\",\"output_index\":%u", k->id, k->index);
    if (k->kind != BLOCK_CALL) (void)strbuf_puts(&job->line, ",\"content_index\":0");
}

static void send_part(gen_job *job, const char *type, const block *k)
{
    begin_event(job, type);
    put_place(job, k);
    (void)strbuf_puts(&job->line, ",\"part\":");
    put_part(&job->line, k);
    send_event(job, type);
}

static void send_text(gen_job *job, const block *k, bool done, const char *s, size_t n)
{
    static const char *const types[][2] = {
        {"", ""},
        {"response.reasoning_text.delta", "response.reasoning_text.done"},
        {"response.output_text.delta", "response.output_text.done"},
        {"response.function_call_arguments.delta", "response.function_call_arguments.done"},
        {"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"},
    };
    const bool custom = k->kind == BLOCK_CALL && k->custom;
    const char *type = types[custom ? BLOCK_CALL + 1 : k->kind][done];
    begin_event(job, type);
    put_place(job, k);
    if (k->kind == BLOCK_CALL && done && !custom) {
        (void)strbuf_puts(&job->line, ",\"name\":");
        put_string(&job->line, k->name.data, k->name.len);
    }
    if (k->kind == BLOCK_TEXT) (void)strbuf_puts(&job->line, ",\"logprobs\":[]");
    (void)strbuf_printf(&job->line, ",\"%s\":",
                        !done                   ? "delta"
                        : custom                ? "input"
                        : k->kind == BLOCK_CALL ? "arguments"
                                                : "text");
    put_string(&job->line, s, n);
    send_event(job, type);
}

static void on_open(gen_job *job, const block *k)
{
    send_item(job, "response.output_item.added", k, "in_progress");
    if (k->kind != BLOCK_CALL) send_part(job, "response.content_part.added", k);
}

static void on_delta(gen_job *job, const block *k, const char *s, size_t n)
{
    send_text(job, k, false, s, n);
}

static void on_close(gen_job *job, const block *k)
{
    resp_wire *w = job->wire;
    const char *status = k->complete ? "completed" : "incomplete";
    if (k->index != 0) (void)strbuf_putc(&w->output, ',');
    put_item(&w->output, w, k, status);
    send_text(job, k, true, k->text.data, k->text.len);
    if (k->kind != BLOCK_CALL) send_part(job, "response.content_part.done", k);
    send_item(job, "response.output_item.done", k, status);
}

static void responses_event(gen_job *job, gen_choice *c, const gen_event *ev)
{
    static const block_hooks hooks = {on_open, on_delta, on_close};
    resp_wire *w = job->wire;
    if (ev->kind == GEN_BEGIN) {
        send_response(job, "response.created", "in_progress");
        send_response(job, "response.in_progress", "in_progress");
    }
    blocks_event(&w->blocks, job, c, ev, &hooks);
    if (ev->kind != GEN_END) return;
    const char *status = final_status(c);
    send_response(job, path_of("response.%s", status).s, status);
}

static void responses_finish(gen_job *job)
{
    (void)job;
}

static void responses_deinit(void *wire)
{
    resp_wire *w = wire;
    blocks_deinit(&w->blocks);
    strbuf_deinit(&w->output);
}

const gen_protocol gen_responses = {.parse = responses_parse,
                                    .id_prefix = "resp_",
                                    .prompt_name = "input",
                                    .call_prefix = "call_",
                                    .wire_bytes = sizeof(resp_wire),
                                    .wire_deinit = responses_deinit,
                                    .flat_tools = true,
                                    .collects = true,
                                    .event = responses_event,
                                    .finish = responses_finish,
                                    .answer = responses_answer};

void api_responses(api_ctx *ctx, http_request *req)
{
    gen_handle(ctx, req, &gen_responses);
}
