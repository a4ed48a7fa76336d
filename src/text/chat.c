#include "text/chat.h"

#include <string.h>
#include "base/file.h"
#include "text/pystr.h"

/* The template's own words. */

#define IM_END        "<|im_end|>\n"
#define ASSISTANT     "<|im_start|>assistant\n"
#define THINK_CLOSE   "</think>"
#define RESPONSE_OPEN "<tool_response>"
#define RESPONSE_END  "</tool_response>"

static const char TOOLS_HEAD[] =
    "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>";

static const char TOOLS_TAIL[] =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n"
    "<function=example_function_name>\n"
    "<parameter=example_parameter_1>\n"
    "value_1\n"
    "</parameter>\n"
    "<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\n"
    "that can span\n"
    "multiple lines\n"
    "</parameter>\n"
    "</function>\n"
    "</tool_call>\n\n"
    "<IMPORTANT>\n"
    "Reminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block "
    "must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n"
    "</IMPORTANT>";

/* The state of one rendering. `content` is the scratch in which a message's content is put
 * together before it is trimmed, split and copied: the template works on whole strings, so a tag
 * may begin in one content item and end in the next. */
typedef struct renderer {
    chat_prompt *out;
    chat_prompt content;
    const calla_chat_options *opt;
    const json_value **msg; /* [n_msg] */
    size_t n_msg;
    size_t last_query;           /* index of the last real user message */
    uint64_t n_images, n_videos; /* so far in the conversation */
    calla_error *err;
} renderer;

/* A range of r->content.text or of another buffer. */
typedef struct range {
    size_t begin, end;
} range;

/* ---- Text with marks ---- */

/* Marks [begin, end) as outside, joining it to a span that ends there. */
static void mark(chat_prompt *p, size_t begin, size_t end)
{
    if (p->text.failed || begin == end) return;
    if (p->n_outside != 0 && p->outside[p->n_outside - 1].end == begin) {
        p->outside[p->n_outside - 1].end = end;
        return;
    }
    if (p->n_outside == p->cap_outside) {
        const size_t cap = p->cap_outside == 0 ? 16 : p->cap_outside * 2;
        text_span *grown =
            cap > SIZE_MAX / sizeof *grown ? NULL : mem_resize(p->outside, cap * sizeof *grown);
        if (grown == NULL) {
            p->text.failed = true;
            return;
        }
        p->outside = grown;
        p->cap_outside = cap;
    }
    p->outside[p->n_outside++] = (text_span){begin, end};
}

static void put(chat_prompt *p, const char *literal)
{
    (void)strbuf_puts(&p->text, literal);
}

static void put_outside(chat_prompt *p, const char *s, size_t n)
{
    const size_t begin = p->text.len;
    (void)strbuf_append(&p->text, s, n);
    mark(p, begin, p->text.len);
}

static void put_json(chat_prompt *p, const json_value *v)
{
    const size_t begin = p->text.len;
    (void)json_write(&p->text, v);
    mark(p, begin, p->text.len);
}

/* Appends part of another marked text, with its marks. */
static void put_part(chat_prompt *p, const chat_prompt *from, range part)
{
    const size_t base = p->text.len;
    if (part.begin == part.end) return;
    (void)strbuf_append(&p->text, from->text.data + part.begin, part.end - part.begin);
    if (p->text.failed) return;
    for (size_t i = 0; i < from->n_outside; i++) {
        const text_span span = from->outside[i];
        const size_t b = span.begin > part.begin ? span.begin : part.begin;
        const size_t e = span.end < part.end ? span.end : part.end;
        if (b < e) mark(p, base + (b - part.begin), base + (e - part.begin));
    }
}

static void clear(chat_prompt *p)
{
    const bool failed = p->text.failed;
    strbuf_clear(&p->text);
    p->text.failed = failed;
    p->n_outside = 0;
}

void chat_prompt_deinit(chat_prompt *p)
{
    strbuf_deinit(&p->text);
    mem_free(p->outside);
    mem_free(p->messages);
    memset(p, 0, sizeof *p);
}

/* ---- Content of a message ---- */

static calla_status refuse(const renderer *r, const char *sentence)
{
    return err_set(r->err, CALLA_ERR_TEMPLATE, "%s", sentence);
}

/* `'word' in item` of the template: key of an object, substring of a string, element of a list. */
static bool contains(const json_value *item, const char *word)
{
    if (item->type == JSON_OBJECT) return json_get(item, word) != NULL;
    if (item->type == JSON_STRING)
        return pystr_find(item->text, 0, item->n_text, word) != item->n_text;
    for (const json_value *m = item->first; m != NULL; m = m->next)
        if (json_is(m, word)) return true;
    return false;
}

static bool has_type(const json_value *item, const char *type)
{
    return json_is(json_get(item, "type"), type);
}

static void put_picture(renderer *r, const char *label, const char *placeholder, uint64_t n)
{
    if (r->opt->add_vision_id)
        (void)strbuf_printf(&r->content.text, "%s %llu: ", label, (unsigned long long)n);
    put(&r->content, placeholder);
}

static calla_status put_item(renderer *r, size_t i_msg, const json_value *item, bool count,
                             bool is_system)
{
    if (item->type != JSON_OBJECT && item->type != JSON_ARRAY && item->type != JSON_STRING)
        return err_set(r->err, CALLA_ERR_TEMPLATE,
                       "Message %zu has a content item that is neither an object nor a string.",
                       i_msg);
    if (contains(item, "image") || contains(item, "image_url") || has_type(item, "image")) {
        if (is_system) return refuse(r, "System message cannot contain images.");
        if (count) r->n_images++;
        put_picture(r, "Picture", "<|vision_start|><|image_pad|><|vision_end|>", r->n_images);
    } else if (contains(item, "video") || has_type(item, "video")) {
        if (is_system) return refuse(r, "System message cannot contain videos.");
        if (count) r->n_videos++;
        put_picture(r, "Video", "<|vision_start|><|video_pad|><|vision_end|>", r->n_videos);
    } else if (contains(item, "text")) {
        /* Only an object has a .text; of a list or string it is undefined, which prints nothing. */
        const json_value *text = json_get(item, "text");
        const size_t begin = r->content.text.len;
        if (text != NULL) (void)pystr_write(&r->content.text, text);
        mark(&r->content, begin, r->content.text.len);
    } else {
        return refuse(r, "Unexpected item type in content.");
    }
    return CALLA_OK;
}

/* The template's render_content()|trim: fills r->content, *part is its trimmed range. `count`:
 * images and videos advance the counters. */
static calla_status render_content(renderer *r, size_t i_msg, bool count, bool is_system,
                                   range *part)
{
    const json_value *content = json_get(r->msg[i_msg], "content");
    clear(&r->content);
    *part = (range){0, 0};
    if (content == NULL || content->type == JSON_NULL) return CALLA_OK;
    if (content->type == JSON_STRING) {
        put_outside(&r->content, content->text, content->n_text);
    } else if (content->type == JSON_ARRAY) {
        for (const json_value *item = content->first; item != NULL; item = item->next) {
            const calla_status st = put_item(r, i_msg, item, count, is_system);
            if (st != CALLA_OK) return st;
        }
    } else {
        return refuse(r, "Unexpected content type.");
    }
    part->end = r->content.text.len;
    if (part->end != 0) pystr_strip(r->content.text.data, &part->begin, &part->end);
    return CALLA_OK;
}

/* ---- System block ---- */

/* A string is iterable too: each of its characters counts as a tool. */
static void put_tool_chars(chat_prompt *p, const json_value *s)
{
    for (size_t i = 0; i < s->n_text;) {
        size_t j = i + 1;
        while (j < s->n_text && ((unsigned char)s->text[j] & 0xc0) == 0x80)
            j++;
        put(p, "\n");
        const size_t begin = p->text.len;
        (void)json_write_string(&p->text, s->text + i, j - i);
        mark(p, begin, p->text.len);
        i = j;
    }
}

static bool has_tools(const json_value *tools)
{
    if (tools == NULL) return false;
    return (tools->type == JSON_ARRAY && tools->n_items != 0) ||
           (tools->type == JSON_STRING && tools->n_text != 0);
}

static calla_status put_system(renderer *r, const json_value *tools)
{
    const bool is_system = json_is(json_get(r->msg[0], "role"), "system");
    range text = {0, 0};
    if (is_system) {
        const calla_status st = render_content(r, 0, false, true, &text);
        if (st != CALLA_OK) return st;
    }
    if (has_tools(tools)) {
        put(r->out, TOOLS_HEAD);
        for (const json_value *t = tools->first; t != NULL; t = t->next) {
            put(r->out, "\n");
            put_json(r->out, t);
        }
        if (tools->type == JSON_STRING) put_tool_chars(r->out, tools);
        put(r->out, TOOLS_TAIL);
        if (text.begin != text.end) put(r->out, "\n\n");
    } else if (is_system) {
        put(r->out, "<|im_start|>system\n");
    } else {
        return CALLA_OK;
    }
    put_part(r->out, &r->content, text);
    put(r->out, IM_END);
    return CALLA_OK;
}

/* ---- Messages ---- */

static bool has_role(const renderer *r, size_t i, const char *role)
{
    return json_is(json_get(r->msg[i], "role"), role);
}

static bool is_tool_response(const char *s, range t)
{
    const size_t n_open = strlen(RESPONSE_OPEN), n_end = strlen(RESPONSE_END);
    const size_t n = t.end - t.begin;
    return n >= n_open && n >= n_end && memcmp(s + t.begin, RESPONSE_OPEN, n_open) == 0 &&
           memcmp(s + t.end - n_end, RESPONSE_END, n_end) == 0;
}

/* The last user message that is not a wrapped tool response; reasoning after it is kept. */
static calla_status find_last_query(renderer *r)
{
    for (size_t i = r->n_msg; i-- > 0;) {
        if (!has_role(r, i, "user")) continue;
        range text;
        const calla_status st = render_content(r, i, false, false, &text);
        if (st != CALLA_OK) return st;
        if (text.begin != text.end && is_tool_response(r->content.text.data, text)) continue;
        r->last_query = i;
        return CALLA_OK;
    }
    return refuse(r, "No user query found in messages.");
}

/* Reasoning written inside the content: before the first </think>, after the last <think> there.
 * What follows the last </think> is the content. (The template also strips newlines from the
 * reasoning; its later trim makes that void.) */
static range split_reasoning(const char *s, range *content)
{
    range think = {content->begin, content->begin};
    const size_t close = pystr_find(s, content->begin, content->end, THINK_CLOSE);
    if (close == content->end) return think;
    const size_t open = pystr_rfind(s, content->begin, close, "<think>");
    think.begin = open != close ? open + strlen("<think>") : content->begin;
    think.end = close;
    pystr_strip(s, &think.begin, &think.end);
    content->begin =
        pystr_rfind(s, content->begin, content->end, THINK_CLOSE) + strlen(THINK_CLOSE);
    while (content->begin < content->end && s[content->begin] == '\n')
        content->begin++;
    return think;
}

static calla_status put_arguments(renderer *r, const json_value *args)
{
    if (args->type != JSON_OBJECT) return refuse(r, "Can only get item pairs from a mapping.");
    for (const json_value *a = args->first; a != NULL; a = a->next) {
        put(r->out, "<parameter=");
        put_outside(r->out, a->key, a->n_key);
        put(r->out, ">\n");
        if (a->type == JSON_STRING)
            put_outside(r->out, a->text, a->n_text);
        else
            put_json(r->out, a);
        put(r->out, "\n</parameter>\n");
    }
    return CALLA_OK;
}

static calla_status put_tool_calls(renderer *r, size_t i_msg, bool after_content)
{
    const json_value *calls = json_get(r->msg[i_msg], "tool_calls");
    if (calls == NULL) return CALLA_OK;
    if (calls->type == JSON_STRING && calls->n_text != 0)
        return err_set(r->err, CALLA_ERR_TEMPLATE,
                       "Message %zu has a string as tool_calls; expected a list.", i_msg);
    if (calls->type != JSON_ARRAY) return CALLA_OK;
    for (const json_value *call = calls->first; call != NULL; call = call->next) {
        const json_value *inner = json_get(call, "function");
        const json_value *f = inner != NULL ? inner : call;
        const json_value *name = json_get(f, "name");
        if (name == NULL || name->type != JSON_STRING)
            return err_set(r->err, CALLA_ERR_TEMPLATE,
                           "Message %zu has a tool call without a name that is a string.", i_msg);
        if (call != calls->first)
            put(r->out, "\n");
        else if (after_content)
            put(r->out, "\n\n");
        put(r->out, "<tool_call>\n<function=");
        put_outside(r->out, name->text, name->n_text);
        put(r->out, ">\n");
        const json_value *args = json_get(f, "arguments");
        const calla_status st = args == NULL ? CALLA_OK : put_arguments(r, args);
        if (st != CALLA_OK) return st;
        put(r->out, "</function>\n</tool_call>");
    }
    return CALLA_OK;
}

static calla_status put_assistant(renderer *r, size_t i, range content)
{
    const json_value *given = json_get(r->msg[i], "reasoning_content");
    const char *s = r->content.text.data;
    const bool separate = given != NULL && given->type == JSON_STRING;
    range think = {0, 0};
    if (separate) {
        think.end = given->n_text;
        pystr_strip(given->text, &think.begin, &think.end);
    } else if (content.begin != content.end) {
        think = split_reasoning(s, &content);
    }
    put(r->out, ASSISTANT);
    r->out->messages[i].thinks = r->opt->preserve_thinking || i > r->last_query;
    if (r->out->messages[i].thinks) {
        put(r->out, "<think>\n");
        if (separate)
            put_outside(r->out, given->text + think.begin, think.end - think.begin);
        else
            put_part(r->out, &r->content, think);
        put(r->out, "\n</think>\n\n");
    }
    put_part(r->out, &r->content, content);
    if (content.begin != content.end) pystr_strip(s, &content.begin, &content.end);
    const calla_status st = put_tool_calls(r, i, content.begin != content.end);
    if (st == CALLA_OK) put(r->out, IM_END);
    return st;
}

static void put_tool(renderer *r, size_t i, range content)
{
    if (i != 0 && !has_role(r, i - 1, "tool")) put(r->out, "<|im_start|>user");
    put(r->out, "\n" RESPONSE_OPEN "\n");
    put_part(r->out, &r->content, content);
    put(r->out, "\n" RESPONSE_END);
    if (i + 1 == r->n_msg || !has_role(r, i + 1, "tool")) put(r->out, IM_END);
}

static calla_status put_message(renderer *r, size_t i)
{
    range content;
    const calla_status st = render_content(r, i, true, false, &content);
    if (st != CALLA_OK) return st;
    if (has_role(r, i, "system"))
        return i == 0 ? CALLA_OK : refuse(r, "System message must be at the beginning.");
    if (has_role(r, i, "assistant")) return put_assistant(r, i, content);
    if (has_role(r, i, "user")) {
        put(r->out, "<|im_start|>user\n");
        put_part(r->out, &r->content, content);
        put(r->out, IM_END);
    } else if (has_role(r, i, "tool")) {
        put_tool(r, i, content);
    } else {
        return refuse(r, "Unexpected message role.");
    }
    return CALLA_OK;
}

/* ---- Whole ---- */

/* What Python takes for false. */
static bool falsy(const json_value *v)
{
    double d;
    switch (v->type) {
    case JSON_NULL:
    case JSON_FALSE:
        return true;
    case JSON_TRUE:
        return false;
    case JSON_NUMBER:
        return json_double(v, &d) && d == 0;
    case JSON_STRING:
        return v->n_text == 0;
    case JSON_ARRAY:
    case JSON_OBJECT:
        return v->n_items == 0;
    }
    return true;
}

static calla_status collect(renderer *r, const json_value *messages)
{
    if (messages == NULL || falsy(messages)) return refuse(r, "No messages provided.");
    if (messages->type != JSON_ARRAY) return refuse(r, "The messages are not a list.");
    r->n_msg = messages->n_items;
    r->msg = mem_array(r->n_msg, sizeof *r->msg);
    r->out->messages = mem_array(r->n_msg, sizeof *r->out->messages);
    if (r->msg == NULL || r->out->messages == NULL)
        return err_set(r->err, CALLA_ERR_MEMORY, "No memory for the prompt.");
    r->out->n_messages = r->n_msg;
    size_t i = 0;
    for (const json_value *m = messages->first; m != NULL; m = m->next)
        r->msg[i++] = m;
    return CALLA_OK;
}

static void put_generation_prompt(renderer *r)
{
    if (r->opt->no_generation_prompt) return;
    put(r->out, ASSISTANT);
    put(r->out, r->opt->disable_thinking ? "<think>\n\n</think>\n\n" : "<think>\n");
}

calla_status chat_render(chat_prompt *out, const json_value *messages, const json_value *tools,
                         const calla_chat_options *options, calla_error *err)
{
    static const calla_chat_options defaults;
    renderer r = {.out = out, .opt = options != NULL ? options : &defaults, .err = err};
    calla_status st;
    memset(out, 0, sizeof *out);
    TRY(collect(&r, messages));
    TRY(put_system(&r, tools));
    TRY(find_last_query(&r));
    for (size_t i = 0; i < r.n_msg; i++) {
        out->messages[i].begin = i == 0 ? 0 : out->messages[i - 1].end;
        TRY(put_message(&r, i));
        out->messages[i].end = out->text.len;
    }
    put_generation_prompt(&r);
fail:
    if (out->text.failed || r.content.text.failed)
        st = err_set(err, CALLA_ERR_MEMORY, "No memory for the prompt.");
    mem_free(r.msg);
    chat_prompt_deinit(&r.content);
    if (st != CALLA_OK) chat_prompt_deinit(out);
    return st;
}

/* ---- Recognising the template ---- */

#define TEMPLATE_BYTES     7764u
#define TEMPLATE_FNV1A     0x8ae3a8bc6e68f114u
#define TEMPLATE_BYTES_MAX (1u << 20)

static uint64_t fnv1a(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

calla_status chat_template_check(const char *model_dir, calla_error *err)
{
    char *path = path_join(model_dir, "chat_template.jinja");
    char *text = NULL;
    size_t n = 0;
    calla_status st = CALLA_OK;
    if (path == NULL) return err_set(err, CALLA_ERR_MEMORY, "No memory for a file name.");
    if (!file_exists(path)) goto fail;
    TRY(file_read(path, TEMPLATE_BYTES_MAX, &text, &n, err));
    if (n != TEMPLATE_BYTES || fnv1a(text, n) != TEMPLATE_FNV1A)
        st = err_set(err, CALLA_ERR_UNSUPPORTED,
                     "%s: not the chat template of Qwen3.6 (%u bytes, hash %016llx), found %zu "
                     "bytes, hash %016llx",
                     path, TEMPLATE_BYTES, (unsigned long long)TEMPLATE_FNV1A, n,
                     (unsigned long long)fnv1a(text, n));
fail:
    mem_free(text);
    mem_free(path);
    return st;
}
