#include "text/tokenizer.h"

#include <string.h>
#include "base/file.h"
#include "text/tokenizer_data.h"
#include "text/unicode.h"

bool id_list_push(id_list *l, int32_t id)
{
    if (l->len == l->cap) {
        const size_t cap = l->cap < 32 ? 64 : l->cap * 2;
        if (cap > SIZE_MAX / sizeof *l->data) return false;
        int32_t *data = mem_resize(l->data, cap * sizeof *data);
        if (data == NULL) return false;
        l->data = data;
        l->cap = cap;
    }
    l->data[l->len++] = id;
    return true;
}

#define CONFIG_MAX (16u << 20)

calla_status calla_tokenizer_open(calla_tokenizer **out, const char *dir, calla_error *err)
{
    calla_status st = CALLA_OK;
    char *json = NULL, *config = NULL;
    size_t n_json = 0, n_config = 0;
    *out = NULL;
    char *path = path_join(dir, "tokenizer.json");
    char *config_path = path_join(dir, "tokenizer_config.json");
    if (path == NULL || config_path == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory to open the tokenizer");
        goto fail;
    }
    TRY(file_read(path, TOKENIZER_FILE_MAX, &json, &n_json, err));
    if (file_exists(config_path)) TRY(file_read(config_path, CONFIG_MAX, &config, &n_config, err));
    st = tokenizer_parse(out, json, n_json, config, n_config, err);
    if (st != CALLA_OK) (void)err_prefix(err, st, "%s", dir);
fail:
    mem_free(path);
    mem_free(config_path);
    mem_free(json);
    mem_free(config);
    return st;
}

void calla_tokenizer_close(calla_tokenizer *tok)
{
    if (tok == NULL) return;
    bpe_deinit(&tok->merges);
    strbuf_deinit(&tok->bytes);
    mem_free(tok->tokens);
    mem_free(tok->trie);
    mem_free(tok);
}

int32_t calla_tokenizer_size(const calla_tokenizer *tok)
{
    return (int32_t)tok->n_tokens;
}

const char *calla_tokenizer_bytes(const calla_tokenizer *tok, int32_t id, size_t *n_bytes)
{
    *n_bytes = 0;
    if (id < 0 || (uint32_t)id >= tok->n_tokens) return NULL;
    *n_bytes = tok->tokens[id].len;
    return tok->bytes.data + tok->tokens[id].off;
}

bool calla_tokenizer_is_special(const calla_tokenizer *tok, int32_t id)
{
    return id >= 0 && (uint32_t)id < tok->n_tokens && tok->tokens[id].kind == TOKEN_SPECIAL;
}

int32_t calla_tokenizer_added_id(const calla_tokenizer *tok, const char *spelling)
{
    if (tok->n_trie == 0 || *spelling == '\0') return -1;
    uint32_t at = 0;
    for (const char *p = spelling; *p != '\0'; p++) {
        at = tok->trie[at].child;
        while (at != 0 && tok->trie[at].byte != (uint8_t)*p)
            at = tok->trie[at].sibling;
        if (at == 0) return -1;
    }
    return tok->trie[at].id;
}

/* ---- Encoding ---- */

typedef struct encoder {
    const calla_tokenizer *tok;
    id_list *ids;
    strbuf norm;
    nfc_scratch nfc;
    bpe_scratch bpe;
} encoder;

static bool is_ascii(const char *s, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++)
        any |= (uint8_t)s[i];
    return any < 0x80;
}

/* A piece of text without added tokens. */
static bool encode_piece(encoder *e, const char *s, size_t n)
{
    if (!is_ascii(s, n)) {
        strbuf_clear(&e->norm);
        if (!nfc_append(&e->norm, &e->nfc, s, n)) return false;
        s = e->norm.data;
        n = e->norm.len;
    }
    for (size_t i = 0; i < n;) {
        const size_t end = pretokenize_next(s, n, i);
        if (!bpe_word(&e->tok->merges, &e->bpe, s + i, end - i, e->ids)) return false;
        i = end;
    }
    return true;
}

/* The longest recognised added token at s; its id, or -1. `special_end`: special tokens must end
 * at or before this length to be recognised. */
static int32_t match_added(const calla_tokenizer *tok, const char *s, size_t n, size_t special_end,
                           size_t *len)
{
    int32_t found = -1;
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        at = tok->trie[at].child;
        while (at != 0 && tok->trie[at].byte != (uint8_t)s[i])
            at = tok->trie[at].sibling;
        if (at == 0) break;
        const int32_t id = tok->trie[at].id;
        if (id < 0 || (tok->tokens[id].kind == TOKEN_SPECIAL && i + 1 > special_end)) continue;
        found = id;
        *len = i + 1;
    }
    return found;
}

static bool encode_text(encoder *e, const char *text, size_t n, const text_span *spans,
                        size_t n_spans)
{
    const calla_tokenizer *tok = e->tok;
    size_t begin = 0, i = 0, i_span = 0, len = 0;
    if (n == 0) return true; /* text may be NULL */
    while (tok->n_trie != 0 && i < n) {
        if (!tok->starts[(uint8_t)text[i]]) {
            i++;
            continue;
        }
        while (i_span < n_spans &&
               (spans[i_span].end <= i || spans[i_span].end <= spans[i_span].begin))
            i_span++;
        size_t special_end = SIZE_MAX;
        if (i_span < n_spans) special_end = spans[i_span].begin > i ? spans[i_span].begin - i : 0;
        const int32_t id = match_added(tok, text + i, n - i, special_end, &len);
        if (id < 0) {
            i++;
            continue;
        }
        if (!encode_piece(e, text + begin, i - begin) || !id_list_push(e->ids, id)) return false;
        i += len;
        begin = i;
    }
    return encode_piece(e, text + begin, n - begin);
}

calla_status tokenizer_encode_spans(const calla_tokenizer *tok, const char *text, size_t n,
                                    const text_span *spans, size_t n_spans, id_list *ids,
                                    calla_error *err)
{
    if (n > TOKENIZER_TEXT_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "text of %zu bytes; at most %u are encoded at once",
                       n, TOKENIZER_TEXT_MAX);
    encoder e = {.tok = tok, .ids = ids};
    const bool ok = encode_text(&e, text, n, spans, n_spans);
    strbuf_deinit(&e.norm);
    nfc_scratch_deinit(&e.nfc);
    bpe_scratch_deinit(&e.bpe);
    return ok ? CALLA_OK
              : err_set(err, CALLA_ERR_MEMORY, "no memory to encode %zu bytes of text", n);
}

calla_status calla_tokenizer_encode(const calla_tokenizer *tok, const char *text, size_t n_bytes,
                                    unsigned flags, int32_t **ids, size_t *n_ids, calla_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    if ((flags & ~(unsigned)CALLA_ENCODE_PLAIN_TEXT) != 0)
        return err_set(err, CALLA_ERR_ARGUMENT, "encode flags %#x; only %#x is defined", flags,
                       (unsigned)CALLA_ENCODE_PLAIN_TEXT);
    const text_span all = {0, n_bytes};
    id_list list = {0};
    const size_t n_spans = (flags & CALLA_ENCODE_PLAIN_TEXT) != 0 ? 1 : 0;
    const calla_status st = tokenizer_encode_spans(tok, text, n_bytes, &all, n_spans, &list, err);
    if (st != CALLA_OK) {
        mem_free(list.data);
        return st;
    }
    *ids = list.data;
    *n_ids = list.len;
    return CALLA_OK;
}

calla_status calla_tokenizer_decode(const calla_tokenizer *tok, const int32_t *ids, size_t n_ids,
                                    bool skip_special, char **text, size_t *n_bytes,
                                    calla_error *err)
{
    strbuf raw = {0}, clean = {0};
    *text = NULL;
    *n_bytes = 0;
    for (size_t i = 0; i < n_ids; i++) {
        size_t n;
        const char *bytes = calla_tokenizer_bytes(tok, ids[i], &n);
        if (skip_special && calla_tokenizer_is_special(tok, ids[i])) continue;
        (void)strbuf_append(&raw, bytes, n);
    }
    if (raw.failed || !utf8_repair(&clean, raw.len != 0 ? raw.data : "", raw.len)) {
        strbuf_deinit(&raw);
        strbuf_deinit(&clean);
        return err_set(err, CALLA_ERR_MEMORY, "no memory to decode %zu tokens", n_ids);
    }
    strbuf_deinit(&raw);
    *text = clean.data;
    *n_bytes = clean.len;
    return CALLA_OK;
}
