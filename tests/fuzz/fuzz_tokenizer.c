/* The tokenizer. The first byte chooses:
 *   '{'   the input is a tokenizer.json (then, after a zero byte, a tokenizer_config.json): it is
 *         parsed, and encodes a fixed text if it is accepted
 *   else  the rest is text for the demo model's tokenizer, the first byte says how it is encoded
 * Checked: ids are in range; decoding gives the text back, repaired and in NFC, whatever the flags
 * and spans; special tokens never come out of a span; streaming equals decoding at once. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
    if (!condition) abort();
}

static calla_tokenizer *demo(void)
{
    static calla_tokenizer *tok;
    if (tok == NULL) must(calla_tokenizer_open(&tok, "models/nano", NULL) == CALLA_OK);
    return tok;
}

static void check_stream(const calla_tokenizer *tok, const id_list *ids, const char *want, size_t n)
{
    static char out[3 * (TOKENIZER_TOKEN_MAX + 3)];
    calla_utf8_stream stream = {0};
    size_t at = 0;
    for (size_t i = 0; i <= ids->len; i++) {
        size_t len = 0;
        const char *bytes = i < ids->len ? calla_tokenizer_bytes(tok, ids->data[i], &len) : NULL;
        const size_t k = i < ids->len ? calla_utf8_stream_push(&stream, bytes, len, out)
                                      : calla_utf8_stream_finish(&stream, out);
        must(k <= n - at && memcmp(out, want + at, k) == 0);
        at += k;
    }
    must(at == n);
}

static void check_text(const calla_tokenizer *tok, const char *text, size_t n,
                       const text_span *spans, size_t n_spans)
{
    id_list ids = {0};
    strbuf repaired = {0}, once = {0}, twice = {0};
    nfc_scratch scratch = {0};
    char *back;
    size_t n_back;
    must(tokenizer_encode_spans(tok, text, n, spans, n_spans, &ids, NULL) == CALLA_OK);
    for (size_t i = 0; i < ids.len; i++) {
        must(ids.data[i] >= 0 && ids.data[i] < calla_tokenizer_size(tok));
        must(n_spans == 0 || spans[0].begin != 0 || spans[0].end < n ||
             !calla_tokenizer_is_special(tok, ids.data[i]));
    }
    must(calla_tokenizer_decode(tok, ids.data, ids.len, false, &back, &n_back, NULL) == CALLA_OK);
    check_stream(tok, &ids, back, n_back);
    /* Pieces between added tokens are put into NFC each; all of it once more is the same. */
    must(utf8_repair(&repaired, n != 0 ? text : "", n));
    must(nfc_append(&once, &scratch, repaired.data, repaired.len));
    must(nfc_append(&twice, &scratch, back, n_back));
    must(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
    nfc_scratch_deinit(&scratch);
    strbuf_deinit(&repaired);
    strbuf_deinit(&once);
    strbuf_deinit(&twice);
    mem_free(ids.data);
    mem_free(back);
}

static void check_file(const char *json, size_t size)
{
    static const char text[] = "Hello <|im_end|> w\xC3\xB6rld 12 don't\r\n\r\n  aaaaaaaaaaaaaaaaaaa"
                               "aaaaaaaaaaaaaaaaaaaaaaa \xFF e\xCC\x81 <think>";
    const char *zero = memchr(json, 0, size);
    const size_t n = zero != NULL ? (size_t)(zero - json) : size;
    const char *config = zero != NULL ? zero + 1 : NULL;
    calla_tokenizer *tok;
    calla_error err = {0};
    const calla_status st =
        tokenizer_parse(&tok, json, n, config, zero != NULL ? size - n - 1 : 0, &err);
    must((st == CALLA_OK) == (tok != NULL));
    must(st == CALLA_OK || (err.code == st && err.message[0] != '\0'));
    if (tok != NULL) check_text(tok, text, sizeof text - 1, NULL, 0);
    calla_tokenizer_close(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    const size_t n = size - 1;
    if (data[0] == '{') {
        check_file((const char *)data, size);
        return 0;
    }
    const text_span all = {0, n};
    const text_span two[] = {{n / 8, n / 4}, {n / 2, n - n / 4}};
    switch (data[0] % 3) {
    case 0:
        check_text(demo(), text, n, NULL, 0);
        break;
    case 1:
        check_text(demo(), text, n, &all, 1);
        break;
    default:
        check_text(demo(), text, n, two, 2);
    }
    return 0;
}
