/* Chat rendering. The first byte holds the options; messages and tools follow, apart by a zero
 * byte. Checked: spans are sorted, disjoint, not empty and inside the text; spans never cover the
 * text that the template begins and ends with; a second rendering is equal; failure leaves nothing.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
    if (!condition) abort();
}

static void check_prompt(const chat_prompt *p, const calla_chat_options *opt)
{
    static const char prompt[] = "<|im_start|>assistant\n<think>\n";
    size_t last = 0;
    must(p->text.data != NULL || p->text.len == 0);
    for (size_t i = 0; i < p->n_outside; i++) {
        const text_span s = p->outside[i];
        must(s.begin < s.end && s.end <= p->text.len);
        must(i == 0 || s.begin > last);
        last = s.end;
    }
    if (opt->no_generation_prompt || opt->disable_thinking) return;
    const size_t n = sizeof prompt - 1;
    must(p->text.len >= n && memcmp(p->text.data + p->text.len - n, prompt, n) == 0);
    must(last <= p->text.len - n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const calla_chat_options opt = {
        .no_generation_prompt = (data[0] & 1) != 0,
        .disable_thinking = (data[0] & 2) != 0,
        .preserve_thinking = (data[0] & 4) != 0,
        .add_vision_id = (data[0] & 8) != 0,
    };
    const char *messages = (const char *)data + 1;
    const char *zero = size > 1 ? memchr(messages, 0, size - 1) : NULL;
    const size_t n_messages = zero != NULL ? (size_t)(zero - messages) : size - 1;
    const char *tools = zero != NULL ? zero + 1 : NULL;
    const size_t n_tools = zero != NULL ? size - 2 - n_messages : 0;

    chat_prompt a, b;
    calla_error err = {0};
    const calla_status st = chat_render_json(&a, messages, n_messages, tools, n_tools, &opt, &err);
    must(chat_render_json(&b, messages, n_messages, tools, n_tools, &opt, NULL) == st);
    must(a.text.len == b.text.len && a.n_outside == b.n_outside);
    if (st == CALLA_OK) {
        check_prompt(&a, &opt);
        must(a.text.len == 0 || memcmp(a.text.data, b.text.data, a.text.len) == 0);
        must(a.n_outside == 0 ||
             memcmp(a.outside, b.outside, a.n_outside * sizeof *a.outside) == 0);
    } else {
        must(err.code == st && err.message[0] != '\0');
        must(a.text.data == NULL && a.outside == NULL);
    }
    chat_prompt_deinit(&a);
    chat_prompt_deinit(&b);
    return 0;
}
