/* Prompt to ids: where the renderer meets the tokenizer. */
#include "text/chat.h"

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
