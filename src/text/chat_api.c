/* JSON text in, prompt or ids out: the public face of chat.c. */
#include <string.h>
#include "text/chat.h"

/* Python's own parser stops near 1000; real tool schemas stay below 50. */
#define CHAT_DEPTH_MAX 512u

calla_status chat_render_json(chat_prompt *out, const char *messages, size_t n_messages,
                              const char *tools, size_t n_tools, const calla_chat_options *options,
                              calla_error *err)
{
    const json_limits messages_limits = {.what = "messages", .max_depth = CHAT_DEPTH_MAX};
    const json_limits tools_limits = {.what = "tools", .max_depth = CHAT_DEPTH_MAX};
    json_doc m = {0}, t = {0};
    calla_status st;
    memset(out, 0, sizeof *out);
    if (messages == NULL) return err_set(err, CALLA_ERR_ARGUMENT, "messages are missing");
    TRY(json_parse(&m, messages, n_messages, &messages_limits, err));
    if (tools != NULL) TRY(json_parse(&t, tools, n_tools, &tools_limits, err));
    TRY(chat_render(out, m.root, t.root, options, err));
fail:
    json_free(&m);
    json_free(&t);
    return st;
}

calla_status calla_chat_render(const char *messages_json, size_t n_messages_bytes,
                               const char *tools_json, size_t n_tools_bytes,
                               const calla_chat_options *options, char **text, size_t *n_bytes,
                               calla_error *err)
{
    chat_prompt p;
    *text = NULL;
    *n_bytes = 0;
    const calla_status st = chat_render_json(&p, messages_json, n_messages_bytes, tools_json,
                                             n_tools_bytes, options, err);
    if (st != CALLA_OK) return st;
    *text = p.text.data; /* to the caller */
    *n_bytes = p.text.len;
    p.text = (strbuf){0};
    chat_prompt_deinit(&p);
    return CALLA_OK;
}

calla_status calla_chat_encode(const calla_tokenizer *tok, const char *messages_json,
                               size_t n_messages_bytes, const char *tools_json,
                               size_t n_tools_bytes, const calla_chat_options *options,
                               int32_t **ids, size_t *n_ids, calla_error *err)
{
    chat_prompt p = {0};
    id_list list = {0};
    calla_status st;
    *ids = NULL;
    *n_ids = 0;
    TRY(chat_render_json(&p, messages_json, n_messages_bytes, tools_json, n_tools_bytes, options,
                         err));
    TRY(tokenizer_encode_spans(tok, p.text.data, p.text.len, p.outside, p.n_outside, &list, err));
    *ids = list.data; /* to the caller */
    *n_ids = list.len;
    list.data = NULL;
fail:
    mem_free(list.data);
    chat_prompt_deinit(&p);
    return st;
}
