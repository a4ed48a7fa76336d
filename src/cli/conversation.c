#include "cli/conversation.h"
#include <string.h>
#include "base/ck.h"
#include "base/json.h"

char *utf8_clean(const char *text, size_t n, size_t *n_out, bool *changed)
{
    uint64_t cap;
    if (!ck_mul(n, 3, &cap) || !ck_add(cap, 32, &cap) || cap > SIZE_MAX) return NULL;
    char *out = mem_alloc((size_t)cap);
    if (!out) return NULL;
    calla_utf8_stream stream = {0};
    size_t len = calla_utf8_stream_push(&stream, text, n, out);
    len += calla_utf8_stream_finish(&stream, out + len);
    out[len] = '\0';
    *n_out = len;
    if (changed) *changed = len != n || memcmp(out, text, n) != 0;
    return out;
}

static void message_deinit(message *m)
{
    mem_free(m->content);
    mem_free(m->reasoning);
}

void conversation_clear(conversation *c)
{
    while (c->n_messages > 0)
        conversation_pop(c);
}

void conversation_deinit(conversation *c)
{
    conversation_clear(c);
    mem_free(c->messages);
    mem_free(c->system);
    mem_free(c->tools);
    *c = (conversation){0};
}

void conversation_pop(conversation *c)
{
    if (c->n_messages > 0) message_deinit(&c->messages[--c->n_messages]);
}

calla_status conversation_set_system(conversation *c, const char *text, calla_error *err)
{
    char *copy = NULL;
    size_t n = 0;
    if (text && *text) {
        copy = utf8_clean(text, strlen(text), &n, NULL);
        if (!copy) return err_set(err, CALLA_ERR_MEMORY, "no memory for the system prompt");
    }
    mem_free(c->system);
    c->system = copy;
    c->n_system = n;
    return CALLA_OK;
}

calla_status conversation_add(conversation *c, const char *role, const char *content,
                              size_t n_content, const char *reason, size_t n_reason,
                              calla_error *err)
{
    message m = {.role = role};
    if (c->n_messages == c->cap_messages) {
        const size_t cap = c->cap_messages ? 2 * c->cap_messages : 8;
        message *grown = mem_resize(c->messages, cap * sizeof *grown);
        if (!grown) goto fail;
        c->messages = grown;
        c->cap_messages = cap;
    }
    m.content = utf8_clean(content, n_content, &m.n_content, NULL);
    if (!m.content) goto fail;
    if (n_reason > 0) {
        m.reasoning = utf8_clean(reason, n_reason, &m.n_reasoning, NULL);
        if (!m.reasoning) goto fail;
    }
    c->messages[c->n_messages++] = m;
    return CALLA_OK;
fail:
    message_deinit(&m);
    return err_set(err, CALLA_ERR_MEMORY, "no memory for a message of %zu bytes", n_content);
}

bool conversation_write(const conversation *c, strbuf *out)
{
    strbuf_putc(out, '[');
    if (c->system) {
        strbuf_puts(out, "{\"role\": \"system\", \"content\": ");
        json_write_string(out, c->system, c->n_system);
        strbuf_putc(out, '}');
    }
    for (size_t i = 0; i < c->n_messages; i++) {
        const message *m = &c->messages[i];
        if (i > 0 || c->system) strbuf_puts(out, ", ");
        strbuf_printf(out, "{\"role\": \"%s\", \"content\": ", m->role);
        json_write_string(out, m->content, m->n_content);
        if (m->reasoning) {
            strbuf_puts(out, ", \"reasoning_content\": ");
            json_write_string(out, m->reasoning, m->n_reasoning);
        }
        strbuf_putc(out, '}');
    }
    return strbuf_putc(out, ']');
}

calla_status conversation_encode(const conversation *c, const calla_tokenizer *tok,
                                 const calla_chat_options *options, int32_t **ids, size_t *n_ids,
                                 calla_error *err)
{
    strbuf json = {0};
    calla_status st;
    *ids = NULL;
    *n_ids = 0;
    if (conversation_write(c, &json))
        st = calla_chat_encode(tok, json.data, json.len, c->tools, c->n_tools, options, ids, n_ids,
                               err);
    else
        st = err_set(err, CALLA_ERR_MEMORY, "no memory to render the conversation");
    strbuf_deinit(&json);
    return st;
}
