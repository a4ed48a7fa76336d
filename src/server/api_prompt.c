#include "server/api_prompt.h"

#include <string.h>

#define ASSISTANT    "<|im_start|>assistant\n"
#define THINK_OPEN   "<think>\n"
#define THINK_NONE   "<think>\n\n</think>\n\n"
#define THINK_CLOSED "\n</think>\n\n"
#define IM_END       "<|im_end|>\n"

typedef struct encoder {
    const prompt_source *from;
    const chat_prompt *text;
    api_prompt *out;
    text_span *spans; /* [text->n_outside] scratch */
    size_t i_span;    /* first that may end behind `pos` */
    size_t pos;       /* encoded so far */
    id_list answer;   /* scratch */
    calla_error err;
} encoder;

void prompt_deinit(api_prompt *p)
{
    mem_free(p->ids.data);
    mem_free(p->ends);
    memset(p, 0, sizeof *p);
}

bool prompt_in_thinking(const calla_tokenizer *tok, const int32_t *ids, size_t n)
{
    const int32_t open = calla_tokenizer_added_id(tok, "<think>");
    const int32_t close = calla_tokenizer_added_id(tok, "</think>");
    while (n-- > 0) {
        if (ids[n] == close) return false;
        if (ids[n] == open) return true;
    }
    return false;
}

/* Encodes the text from pos to `to`. */
static calla_status encode_to(encoder *z, size_t to)
{
    const chat_prompt *p = z->text;
    size_t n = 0;
    while (z->i_span < p->n_outside && p->outside[z->i_span].end <= z->pos)
        z->i_span++;
    for (size_t i = z->i_span; i < p->n_outside && p->outside[i].begin < to; i++) {
        const text_span s = p->outside[i];
        z->spans[n].begin = s.begin > z->pos ? s.begin - z->pos : 0;
        z->spans[n++].end = (s.end < to ? s.end : to) - z->pos;
    }
    const calla_status st = tokenizer_encode_spans(z->from->tok, p->text.data + z->pos, to - z->pos,
                                                   z->spans, n, &z->out->ids, &z->err);
    z->pos = to;
    return st;
}

static calla_status encode_literal(encoder *z, const char *text)
{
    return tokenizer_encode_spans(z->from->tok, text, strlen(text), NULL, 0, &z->out->ids, &z->err);
}

static bool is_newlines(const calla_tokenizer *tok, int32_t id)
{
    size_t n;
    const char *s = calla_tokenizer_bytes(tok, id, &n);
    for (size_t i = 0; i < n; i++)
        if (s[i] != '\n') return false;
    return n != 0;
}

/* Where the text after the thinking begins in z->answer; its length when there is none. */
static size_t after_thinking(const encoder *z, bool thinking)
{
    const int32_t close = calla_tokenizer_added_id(z->from->tok, "</think>");
    size_t i = 0;
    if (thinking) {
        while (i < z->answer.len && z->answer.data[i] != close)
            i++;
        if (i == z->answer.len) return i;
        i++;
    }
    while (i < z->answer.len && is_newlines(z->from->tok, z->answer.data[i]))
        i++;
    return i;
}

/* The answer's own tokens instead of the rendered message, if they are remembered. */
static calla_status encode_answer(encoder *z, const json_value *message, chat_message place)
{
    bool thinking = false;
    size_t skip = 0;
    calla_status st;
    z->answer.len = 0;
    if (!replay_get(z->from->replay, z->out->key, message, &z->answer, &thinking)) return CALLA_OK;
    if (!place.thinks) {
        skip = after_thinking(z, thinking);
        if (skip == z->answer.len) return CALLA_OK;
    }
    if ((st = encode_to(z, place.begin + strlen(ASSISTANT))) != CALLA_OK) return st;
    if (place.thinks) st = encode_literal(z, thinking ? THINK_OPEN : THINK_NONE);
    for (size_t i = skip; st == CALLA_OK && i < z->answer.len; i++)
        if (!id_list_push(&z->out->ids, z->answer.data[i]))
            st = err_set(&z->err, CALLA_ERR_MEMORY, "no memory for the prompt");
    z->pos = place.end - strlen(IM_END);
    return st;
}

static calla_status encode_messages(encoder *z)
{
    const normal_chat *chat = z->from->chat;
    const json_value *m = chat->messages->first;
    const size_t n = z->text->n_messages;
    for (size_t i = 0; i < n && m != NULL; i++, m = m->next) {
        const chat_message place = z->text->messages[i];
        const bool cut = chat->continues && i + 1 == n;
        calla_status st = CALLA_OK;
        if (z->from->replay != NULL) {
            z->out->key = replay_next(z->from->replay, z->out->key, m);
            if (json_is(json_get(m, "role"), "assistant") && !cut) st = encode_answer(z, m, place);
        }
        if (st != CALLA_OK) return st;
        if (cut) break;
        if ((st = encode_to(z, place.end)) != CALLA_OK) return st;
        z->out->ends[z->out->n_ends++] = (uint32_t)z->out->ids.len;
    }
    return encode_to(z, z->text->text.len);
}

/* The message that is continued loses its end, and its thinking stays open when there is nothing
 * behind it. */
static void cut_end(strbuf *text)
{
    const size_t end = strlen(IM_END), closed = strlen(THINK_CLOSED), none = strlen(THINK_NONE);
    text->len -= end;
    const char *s = text->data;
    const size_t n = text->len;
    const bool empty = n >= none && memcmp(s + n - none, THINK_NONE, none) == 0;
    if (!empty && n >= closed && memcmp(s + n - closed, THINK_CLOSED, closed) == 0)
        text->len -= closed;
}

bool prompt_build(api_prompt *out, const prompt_source *from, api_error *e)
{
    chat_prompt text;
    calla_chat_options options = from->options;
    encoder z = {.from = from, .text = &text, .out = out};
    memset(out, 0, sizeof *out);
    out->is_chat = true;
    options.no_generation_prompt = from->chat->continues;
    calla_status st = chat_render(&text, from->chat->messages, from->tools, &options, &z.err);
    if (st == CALLA_ERR_TEMPLATE) return api_bad(e, from->name, "%s", z.err.message);
    if (st != CALLA_OK) return api_from(e, from->name, &z.err);
    if (from->chat->continues) cut_end(&text.text);
    out->ends = mem_array(text.n_messages + 1, sizeof *out->ends);
    z.spans = mem_array(text.n_outside + 1, sizeof *z.spans);
    if (out->ends == NULL || z.spans == NULL) {
        st = err_set(&z.err, CALLA_ERR_MEMORY, "no memory for the prompt");
    } else {
        if (from->replay != NULL) out->key = replay_begin(from->replay, from->tools);
        st = encode_messages(&z);
    }
    if (st == CALLA_OK) {
        out->in_thinking = prompt_in_thinking(from->tok, out->ids.data, out->ids.len);
    } else {
        prompt_deinit(out);
        (void)api_from(e, from->name, &z.err);
    }
    mem_free(z.answer.data);
    mem_free(z.spans);
    chat_prompt_deinit(&text);
    return st == CALLA_OK;
}

static bool begins(const char *s, size_t n, const char *with)
{
    return n >= strlen(with) && memcmp(s, with, strlen(with)) == 0;
}

calla_status prompt_answer_tokens(const calla_tokenizer *tok, const json_value *message,
                                  bool thinking, uint32_t *n, calla_error *err)
{
    static const calla_chat_options plain = {.no_generation_prompt = true};
    tree t = {0};
    chat_prompt text = {0};
    id_list ids = {0};
    tree_list list = tree_begin(&t, JSON_ARRAY), question = tree_begin(&t, JSON_OBJECT);
    tree_set(&t, &question, "role", tree_literal(&t, "user"));
    tree_set(&t, &question, "content", tree_literal(&t, ""));
    tree_append(&t, &list, question.node);
    tree_append(&t, &list, tree_copy(&t, message));
    calla_status st = t.failed ? err_set(err, CALLA_ERR_MEMORY, "no memory for an answer")
                               : chat_render(&text, list.node, NULL, &plain, err);
    if (st == CALLA_OK) {
        const chat_message place = text.messages[1];
        const char *s = text.text.data + place.begin + strlen(ASSISTANT);
        size_t len = place.end - place.begin - strlen(ASSISTANT) - strlen(IM_END);
        const size_t skip = !thinking && begins(s, len, THINK_NONE) ? strlen(THINK_NONE)
                            : begins(s, len, THINK_OPEN)            ? strlen(THINK_OPEN)
                                                                    : 0;
        st = tokenizer_encode_spans(tok, s + skip, len - skip, NULL, 0, &ids, err);
    }
    *n = (uint32_t)ids.len;
    mem_free(ids.data);
    chat_prompt_deinit(&text);
    tree_deinit(&t);
    return st;
}
