/* Members that several APIs have. */
#include <math.h>
#include <string.h>

#include "server/api_gen.h"

#define AT(struct_type, member) offsetof(struct_type, member)

static const api_field sampling_fields[] = {
    {"temperature", API_REAL, AT(gen_sampling, temperature), 0, 100},
    {"top_p", API_REAL, AT(gen_sampling, top_p), 0, 1},
    {"min_p", API_REAL, AT(gen_sampling, min_p), 0, 1},
    {"top_k", API_INT, AT(gen_sampling, top_k), -1, 2147483647},
    {"presence_penalty", API_REAL, AT(gen_sampling, presence), -100, 100},
    {"frequency_penalty", API_REAL, AT(gen_sampling, frequency), -100, 100},
    {"repetition_penalty", API_REAL, AT(gen_sampling, repetition), 0, 100},
    {"seed", API_INT, AT(gen_sampling, seed), -9223372036854775808.0, 9223372036854775807.0},
    {"logit_bias", API_OBJECT, AT(gen_sampling, logit_bias), 0, 0},
    {"stream", API_BOOL, AT(gen_sampling, stream), 0, 0},
    {"enable_thinking", API_BOOL, AT(gen_sampling, enable_thinking), 0, 0},
    {"thinking_budget", API_INT, AT(gen_sampling, thinking_budget), 0, 2147483647},
    {"chat_template_kwargs", API_OBJECT, AT(gen_sampling, kwargs), 0, 0},
    {"model", API_STRING, AT(gen_sampling, model), 0, 0},
};

static void set(float *to, api_real from)
{
    if (from.set) *to = (float)from.value;
}

static void apply_sampling(gen_job *job, const gen_sampling *s)
{
    calla_sampling *p = &job->in.sampling;
    calla_engine_default_sampling(job->ctx->engine, p);
    set(&p->temperature, s->temperature);
    set(&p->top_p, s->top_p);
    set(&p->min_p, s->min_p);
    set(&p->presence_penalty, s->presence);
    set(&p->frequency_penalty, s->frequency);
    set(&p->repetition_penalty, s->repetition);
    /* What the API means by the ends of the ranges: 0 keeps the likeliest token only, 1 too. */
    if (s->top_p.set && s->top_p.value <= 0) p->top_p = 1e-6f;
    if (p->min_p >= 1) p->min_p = 0.999999f;
    if (s->top_k.set) p->top_k = s->top_k.value > 0 ? (int32_t)s->top_k.value : 0;
    p->seed = s->seed.set ? (uint64_t)s->seed.value : random_u64();
}

static bool read_bias(gen_job *job, const json_value *bias, api_error *e)
{
    gen_request *in = &job->in;
    if (bias == NULL || bias->n_items == 0) return true;
    in->bias_ids = mem_array(bias->n_items, sizeof *in->bias_ids);
    in->bias = mem_array(bias->n_items, sizeof *in->bias);
    if (in->bias_ids == NULL || in->bias == NULL) return api_no_memory(e);
    for (const json_value *m = bias->first; m != NULL; m = m->next) {
        const json_value key = {.type = JSON_NUMBER, .text = m->key, .n_text = m->n_key};
        int64_t id;
        double value;
        if (m->n_key == 0 || strspn(m->key, "0123456789") != m->n_key || !json_int(&key, &id) ||
            id >= job->ctx->info.n_vocab)
            return api_bad(e, "logit_bias", "expected token ids from 0 to %d, found \"%.40s\"",
                           job->ctx->info.n_vocab - 1, m->key);
        if (!json_double(m, &value) || value < -100 || value > 100)
            return api_bad(e, path_of("logit_bias.%.40s", m->key).s,
                           "expected a number from -100 to 100");
        in->bias_ids[in->n_bias] = (int32_t)id;
        in->bias[in->n_bias++] = value <= -100 ? -INFINITY : (float)value;
    }
    return true;
}

bool gen_read_sampling(gen_job *job, gen_sampling *s, api_error *e)
{
    memset(s, 0, sizeof *s);
    if (!api_read(job->body.root, "", sampling_fields,
                  sizeof sampling_fields / sizeof *sampling_fields, s, e))
        return false;
    apply_sampling(job, s);
    job->in.stream = s->stream.value;
    job->in.model = s->model;
    return read_bias(job, s->logit_bias, e);
}

static bool add_stop(gen_job *job, const json_value *v, const char *path, api_error *e)
{
    if (v->type != JSON_STRING)
        return api_bad(e, path, "expected a string, found %s", json_type_name(v));
    if (v->n_text == 0) return true;
    if (v->n_text > API_STOP_BYTES_MAX)
        return api_bad(e, path, "expected at most %u bytes, found %zu", API_STOP_BYTES_MAX,
                       v->n_text);
    if (job->in.n_stops == API_STOPS_MAX)
        return api_bad(e, path, "expected at most %u stop strings", API_STOPS_MAX);
    job->in.stops[job->in.n_stops++] = (gen_stop){v->text, v->n_text};
    return true;
}

bool gen_read_stops(gen_job *job, const char *name, api_error *e)
{
    const json_value *v = json_get(job->body.root, name);
    size_t i = 0;
    if (v == NULL || v->type == JSON_NULL) return true;
    if (v->type == JSON_STRING) return add_stop(job, v, name, e);
    if (v->type != JSON_ARRAY)
        return api_bad(e, name, "expected a string or an array of strings, found %s",
                       json_type_name(v));
    for (const json_value *s = v->first; s != NULL; s = s->next)
        if (!add_stop(job, s, path_of("%s[%zu]", name, i++).s, e)) return false;
    return true;
}

bool gen_read_stream_options(gen_job *job, const json_value *options, api_error *e)
{
    api_bool usage = {0};
    const api_field field = {"include_usage", API_BOOL, 0, 0, 0};
    if (!api_read(options, "stream_options", &field, 1, &usage, e)) return false;
    job->in.include_usage = usage.value;
    return true;
}

bool gen_read_limit(gen_job *job, const char *name, api_error *e)
{
    api_int limit = {0};
    const api_field field = {name, API_INT, 0, -1, 9007199254740992.0};
    if (!api_read(job->body.root, "", &field, 1, &limit, e)) return false;
    if (!limit.set) return true;
    if (limit.value == 0) return api_bad(e, name, "expected at least 1, found 0");
    job->in.max_tokens = limit.value < 0           ? 0
                         : limit.value > (1 << 30) ? 1u << 30
                                                   : (uint32_t)limit.value;
    return true;
}

/* ---- Thinking ---- */

typedef struct kwargs {
    api_bool enable_thinking, preserve_thinking, add_vision_id;
    api_int thinking_budget;
} kwargs;

static const api_field kwargs_fields[] = {
    {"enable_thinking", API_BOOL, AT(kwargs, enable_thinking), 0, 0},
    {"preserve_thinking", API_BOOL, AT(kwargs, preserve_thinking), 0, 0},
    {"add_vision_id", API_BOOL, AT(kwargs, add_vision_id), 0, 0},
    {"thinking_budget", API_INT, AT(kwargs, thinking_budget), 0, 2147483647},
};

/* Tokens of thinking for each effort; none switches it off, high and above have no limit. */
static bool read_effort(gen_request *in, const json_value *effort, const char *path, bool *off,
                        api_error *e)
{
    static const struct {
        const char *name;
        uint32_t budget;
    } levels[] = {{"minimal", 512}, {"low", 2048}, {"medium", 8192}};
    if (effort == NULL || effort->type == JSON_NULL) return true;
    if (effort->type != JSON_STRING)
        return api_bad(e, path, "expected a string, found %s", json_type_name(effort));
    if (json_is(effort, "none")) {
        *off = true;
        return true;
    }
    if (json_is(effort, "high") || json_is(effort, "xhigh") || json_is(effort, "max")) return true;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (!json_is(effort, levels[i].name)) continue;
        in->limit_thinking = true;
        in->thinking_budget = levels[i].budget;
        return true;
    }
    return api_bad(e, path, "expected none, minimal, low, medium, high or xhigh, found \"%.40s\"",
                   effort->text);
}

bool gen_read_thinking(gen_job *job, const gen_sampling *s, const json_value *effort,
                       const char *effort_path, calla_chat_options *options, api_error *e)
{
    gen_request *in = &job->in;
    kwargs k = {0};
    bool off = false;
    if (!read_effort(in, effort, effort_path, &off, e)) return false;
    if (!api_read(s->kwargs, "chat_template_kwargs", kwargs_fields,
                  sizeof kwargs_fields / sizeof *kwargs_fields, &k, e))
        return false;
    const api_bool enable = k.enable_thinking.set ? k.enable_thinking : s->enable_thinking;
    const api_int budget = s->thinking_budget.set ? s->thinking_budget : k.thinking_budget;
    if (budget.set) {
        in->limit_thinking = true;
        in->thinking_budget = (uint32_t)budget.value;
    }
    options->disable_thinking = enable.set ? !enable.value : off;
    options->preserve_thinking = k.preserve_thinking.value;
    options->add_vision_id = k.add_vision_id.value;
    return true;
}

/* ---- Tools ---- */

json_value *gen_custom_tool(gen_job *job, const json_value *custom, const char *path, api_error *e)
{
    tree *t = &job->nodes;
    json_value *f = custom_function(t, custom, path, e);
    if (f == NULL) return NULL;
    if (job->in.customs.node == NULL) job->in.customs = tree_begin(t, JSON_ARRAY);
    tree_append(t, &job->in.customs, tree_copy(t, json_get(custom, "name")));
    if (!t->failed) return f;
    (void)api_no_memory(e);
    return NULL;
}

/* {"type": "custom", "custom": {...}} among them become functions. */
static bool convert_customs(gen_job *job, const json_value **tools, api_error *e)
{
    tree *t = &job->nodes;
    tree_list out = tree_begin(t, JSON_ARRAY);
    size_t i = 0;
    bool any = false;
    for (const json_value *v = (*tools)->first; v != NULL; v = v->next, i++) {
        json_value *tool = NULL;
        if (json_is(json_get(v, "type"), "custom")) {
            any = true;
            tool =
                gen_custom_tool(job, json_get(v, "custom"), path_of("tools[%zu].custom", i).s, e);
            if (tool == NULL) return false;
        } else {
            tool = tree_copy(t, v);
        }
        tree_append(t, &out, tool);
    }
    if (t->failed) return api_no_memory(e);
    if (any) *tools = out.node;
    return true;
}

bool gen_set_tools(gen_job *job, const json_value *tools, api_error *e)
{
    if (tools != NULL && tools->type == JSON_ARRAY && !job->protocol->flat_tools &&
        !convert_customs(job, &tools, e))
        return false;
    const tool_places places = {.flat = job->protocol->flat_tools, .origin = job->tool_origin.data};
    if (!normalize_tools(tools, &places, e)) return false;
    job->in.tools = tools != NULL && tools->n_items != 0 ? tools : NULL;
    return true;
}

/* Adds the tool of the request that has this name to the list. */
static bool add_callable(gen_job *job, const json_value *name, const char *path, tree_list *out,
                         api_error *e)
{
    if (!normalize_name(name, path, e)) return false;
    for (const json_value *t = job->in.tools->first; t != NULL; t = t->next) {
        if (!json_is(json_get(json_get(t, "function"), "name"), name->text)) continue;
        tree_append(&job->nodes, out, tree_copy(&job->nodes, t));
        return !job->nodes.failed || api_no_memory(e);
    }
    return api_bad(e, path, "no tool of the request is named \"%.100s\"", name->text);
}

bool gen_require_call(gen_job *job, const json_value *name, const char *path, api_error *e)
{
    if (job->in.tools == NULL)
        return api_bad(e, path, "a call is required, but the request has no tools");
    job->in.must_call = true;
    if (name == NULL) return true;
    tree_list one = tree_begin(&job->nodes, JSON_ARRAY);
    if (!add_callable(job, name, path, &one, e)) return false;
    job->in.callable = one.node;
    return true;
}

/* A choice that names a function: {"name"}, or, in chat completions, {"function": {"name"}}. */
static const json_value *chosen_name(const json_value *choice, const char *at, api_path *path)
{
    const json_value *inner = json_get(choice, "function");
    if (inner == NULL) inner = json_get(choice, "custom");
    *path = path_of("%s%s%s.name", at, inner != NULL ? "." : "", inner != NULL ? inner->key : "");
    return json_get(inner != NULL ? inner : choice, "name");
}

/* The calls are restricted, the prompt has all tools: it stays the same from turn to turn. */
static bool read_allowed(gen_job *job, const json_value *choice, api_error *e)
{
    const json_value *in = json_get(choice, "allowed_tools"); /* chat completions */
    const api_path at = path_of("tool_choice%s", in != NULL ? ".allowed_tools" : "");
    if (in == NULL) in = choice;
    const json_value *mode = json_get(in, "mode"), *tools = json_get(in, "tools");
    const bool required = json_is(mode, "required");
    if (!required && !json_is(mode, "auto"))
        return api_bad(e, path_of("%s.mode", at.s).s, "expected auto or required");
    if (tools == NULL || tools->type != JSON_ARRAY || tools->n_items == 0)
        return api_bad(e, path_of("%s.tools", at.s).s, "expected an array of tools, found %s",
                       tools != NULL && tools->type == JSON_ARRAY ? "an empty one"
                                                                  : json_type_name(tools));
    if (job->in.tools == NULL)
        return api_bad(e, path_of("%s.tools", at.s).s, "the request has no tools");
    tree_list list = tree_begin(&job->nodes, JSON_ARRAY);
    size_t i = 0;
    for (const json_value *t = tools->first; t != NULL; t = t->next, i++) {
        api_path path;
        const json_value *name = chosen_name(t, path_of("%s.tools[%zu]", at.s, i).s, &path);
        if (!add_callable(job, name, path.s, &list, e)) return false;
    }
    job->in.callable = list.node;
    job->in.must_call = required;
    return true;
}

bool gen_read_tool_choice(gen_job *job, const json_value *choice, api_error *e)
{
    if (choice == NULL || choice->type == JSON_NULL || json_is(choice, "auto")) return true;
    if (json_is(choice, "none")) {
        job->in.tools = NULL;
        return true;
    }
    if (json_is(choice, "required")) return gen_require_call(job, NULL, "tool_choice", e);
    if (choice->type == JSON_STRING)
        return api_bad(e, "tool_choice",
                       "expected auto, none, required or an object, found \"%.40s\"", choice->text);
    if (choice->type != JSON_OBJECT)
        return api_bad(e, "tool_choice", "expected a string or an object, found %s",
                       json_type_name(choice));
    const json_value *type = json_get(choice, "type");
    if (json_is(type, "allowed_tools")) return read_allowed(job, choice, e);
    if (!json_is(type, "function") && !json_is(type, "custom"))
        return api_bad(e, "tool_choice.type", "expected function, custom or allowed_tools");
    api_path path;
    const json_value *name = chosen_name(choice, "tool_choice", &path);
    if (name == NULL) return api_bad(e, path.s, "expected a function's name, found nothing");
    return gen_require_call(job, name, path.s, e);
}

/* ---- Form of the content ---- */

bool gen_read_format(gen_job *job, const json_value *format, const char *path, const char *inner,
                     api_error *e)
{
    gen_request *in = &job->in;
    in->form_path = path_of("%s", path);
    if (format == NULL || format->type == JSON_NULL) return true;
    if (format->type != JSON_OBJECT)
        return api_bad(e, path, "expected an object, found %s", json_type_name(format));
    const json_value *type = json_get(format, "type");
    if (type == NULL || type->type != JSON_STRING)
        return api_bad(e, path_of("%s.type", path).s, "expected a string, found %s",
                       json_type_name(type));
    if (json_is(type, "text")) return true;
    if (json_is(type, "json_object")) {
        in->form = GEN_JSON;
        /* llama.cpp's and others' habit: a schema beside it. */
        in->schema = json_get(format, "schema");
        if (in->schema != NULL && in->schema->type == JSON_OBJECT) in->form = GEN_SCHEMA;
        return true;
    }
    if (!json_is(type, "json_schema"))
        return api_bad(e, path_of("%s.type", path).s,
                       "expected text, json_object or json_schema, found \"%.40s\"", type->text);
    const json_value *holder = inner != NULL ? json_get(format, inner) : format;
    const char *dot = inner != NULL ? "." : "";
    const char *in_name = inner != NULL ? inner : "";
    if (holder == NULL || holder->type != JSON_OBJECT)
        return api_bad(e, path_of("%s.%s", path, in_name).s, "expected an object, found %s",
                       json_type_name(holder));
    in->schema = json_get(holder, "schema");
    if (in->schema == NULL || in->schema->type != JSON_OBJECT)
        return api_bad(e, path_of("%s%s%s.schema", path, dot, in_name).s,
                       "expected an object, found %s", json_type_name(in->schema));
    const json_value *strict = json_get(holder, "strict");
    if (strict != NULL && strict->type != JSON_TRUE && strict->type != JSON_FALSE &&
        strict->type != JSON_NULL)
        return api_bad(e, path_of("%s%s%s.strict", path, dot, in_name).s,
                       "expected a boolean, found %s", json_type_name(strict));
    in->strict = strict != NULL && strict->type == JSON_TRUE;
    in->form = GEN_SCHEMA;
    return true;
}
