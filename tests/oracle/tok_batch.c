/* tok_batch.c - the tokenizer as a filter, for tools/oracle/check_tokenizer.py.
 *
 *   tok_batch DIR < requests > answers
 *
 * A request is one byte (what), a 32-bit little-endian length, and so many bytes; an answer is a
 * length and so many bytes. Ids and code points are 32-bit little-endian.
 *   e  text -> ids                         p  the same, special tokens inert
 *   d  ids -> text                         s  ids -> text by the streaming decoder, token by token
 *   n  text -> its NFC                     c  code points -> one byte each, char_class
 *   t  text -> text with the microseconds of encoding it
 * On stderr: the seconds that opening the tokenizer took.
 */
#include <stdio.h>
#include <string.h>
#include "base/ck.h"
#include "base/mem.h"
#include "base/pool.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

static bool answer_ids(const calla_tokenizer *tok, strbuf *out, const char *s, size_t n,
                       unsigned flags)
{
    int32_t *ids;
    size_t n_ids;
    if (calla_tokenizer_encode(tok, s, n, flags, &ids, &n_ids, NULL) != CALLA_OK) return false;
    for (size_t i = 0; i < n_ids; i++) {
        const uint32_t id = (uint32_t)ids[i];
        const uint8_t le[4] = {(uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16),
                               (uint8_t)(id >> 24)};
        strbuf_append(out, le, 4);
    }
    mem_free(ids);
    return true;
}

static bool answer_text(const calla_tokenizer *tok, strbuf *out, const char *s, size_t n)
{
    int32_t *ids = mem_array(n / 4, sizeof *ids);
    char *text;
    size_t n_text;
    for (size_t i = 0; i < n / 4; i++)
        ids[i] = (int32_t)load_le32(s + 4 * i);
    if (calla_tokenizer_decode(tok, ids, n / 4, false, &text, &n_text, NULL) != CALLA_OK)
        return false;
    strbuf_append(out, text, n_text);
    mem_free(text);
    mem_free(ids);
    return true;
}

static bool answer_stream(const calla_tokenizer *tok, strbuf *out, const char *s, size_t n)
{
    static char piece[3 * (TOKENIZER_TOKEN_MAX + 4)];
    calla_utf8_stream stream = {0};
    for (size_t i = 0; i < n / 4; i++) {
        size_t len;
        const char *bytes = calla_tokenizer_bytes(tok, (int32_t)load_le32(s + 4 * i), &len);
        strbuf_append(out, piece, calla_utf8_stream_push(&stream, bytes, len, piece));
    }
    return strbuf_append(out, piece, calla_utf8_stream_finish(&stream, piece));
}

static bool answer(const calla_tokenizer *tok, strbuf *out, char what, const char *s, size_t n)
{
    nfc_scratch nfc = {0};
    bool ok = true;
    switch (what) {
    case 'e':
        return answer_ids(tok, out, s, n, CALLA_ENCODE_DEFAULT);
    case 'p':
        return answer_ids(tok, out, s, n, CALLA_ENCODE_PLAIN_TEXT);
    case 'd':
        return answer_text(tok, out, s, n);
    case 's':
        return answer_stream(tok, out, s, n);
    case 'n':
        ok = nfc_append(out, &nfc, s, n);
        nfc_scratch_deinit(&nfc);
        return ok;
    case 'c':
        for (size_t i = 0; i < n / 4; i++)
            strbuf_putc(out, (char)unicode_class(load_le32(s + 4 * i)));
        return !out->failed;
    case 't': {
        const double t0 = time_now();
        ok = answer_ids(tok, out, s, n, CALLA_ENCODE_DEFAULT);
        const double us = (time_now() - t0) * 1e6;
        strbuf_clear(out);
        return ok && strbuf_printf(out, "%.0f", us);
    }
    default:
        return false;
    }
}

int main(int argc, char **argv)
{
    calla_error err;
    calla_tokenizer *tok;
    strbuf in = {0}, out = {0};
    uint8_t head[5];
    const double t0 = time_now();
    if (argc != 2) return 2;
    if (calla_tokenizer_open(&tok, argv[1], &err) != CALLA_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    fprintf(stderr, "%.3f\n", time_now() - t0);
    while (fread(head, 1, 5, stdin) == 5) {
        strbuf_clear(&in);
        strbuf_clear(&out);
        for (uint32_t left = load_le32(head + 1); left > 0;) {
            char part[65536];
            const size_t k = fread(part, 1, left < sizeof part ? left : sizeof part, stdin);
            if (k == 0 || !strbuf_append(&in, part, k)) return 1;
            left -= (uint32_t)k;
        }
        if (!answer(tok, &out, (char)head[0], in.data, in.len)) return 1;
        const uint32_t n = (uint32_t)out.len;
        const uint8_t le[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16),
                               (uint8_t)(n >> 24)};
        if (fwrite(le, 1, 4, stdout) != 4 || fwrite(out.data, 1, out.len, stdout) != out.len)
            return 1;
    }
    strbuf_deinit(&in);
    strbuf_deinit(&out);
    calla_tokenizer_close(tok);
    return fflush(stdout) == 0 ? 0 : 1;
}
