/* tokenizer.json -> calla_tokenizer.
 *
 * The file is read as events. Its two large members, model.vocab and model.merges, go straight into
 * byte strings; everything else is copied into a small document (the skeleton, with `true` in their
 * place) that is parsed to a tree and checked member by member. Merges are resolved to ids at the
 * end: the order of the members is free, and some merges name a part that a later one produces. */
#include "text/tokenizer.h"

#include <string.h>
#include "base/ck.h"
#include "base/json.h"
#include "text/tokenizer_data.h"
#include "text/utf8.h"

#define FILE_NAME    "tokenizer.json"
#define SKELETON_MAX (16u << 20)

static const char known_regex[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* A token as the file names it. */
typedef struct entry {
    uint32_t id, off;
    uint16_t len;
    uint8_t kind; /* token_kind */
} entry;

/* The bytes of a merge's two parts, end to end in loader.merge_bytes. */
typedef struct raw_merge {
    uint32_t off;
    uint16_t n_left, n_right;
} raw_merge;

typedef enum place { IN_OTHER, IN_VOCAB, IN_MERGES, IN_MERGE_PAIR } place;

typedef struct vocab_slot {
    uint32_t hash, i_entry; /* i_entry NONE: empty */
} vocab_slot;

#define NONE UINT32_MAX

typedef struct loader {
    calla_tokenizer *tok; /* tok->bytes takes the tokens' bytes while they come */
    entry *entries;
    size_t n_entries, cap_entries, n_vocab;
    raw_merge *merges;
    size_t n_merges, cap_merges;
    strbuf merge_bytes, skeleton;
    vocab_slot *slots; /* [mask + 1] */
    size_t mask;
    int16_t byte_of[0x144]; /* character of the byte alphabet -> byte, or -1 */
    /* Where the events are: */
    place place, opens; /* opens: what the value after the last key would open */
    unsigned depth;     /* containers open outside vocab and merges */
    unsigned n_parts;   /* of the merge pair */
    bool in_model, comma, seen_vocab, seen_merges, want_id;
    calla_error *err; /* never NULL */
} loader;

static calla_status no_memory(calla_error *err)
{
    return err_set(err, CALLA_ERR_MEMORY, "no memory to load the tokenizer");
}

/* Makes room for one more element. */
static bool grow(void **p, size_t *cap, size_t n, size_t size)
{
    if (n < *cap) return true;
    const size_t new_cap = *cap == 0 ? 1024 : *cap * 2;
    uint64_t n_bytes;
    if (!ck_mul(new_cap, size, &n_bytes)) return false;
    void *q = mem_resize(*p, (size_t)n_bytes);
    if (q == NULL) return false;
    *p = q;
    *cap = new_cap;
    return true;
}

/* ---- The byte alphabet ----
 *
 * Bytes 33-126, 161-172 and 174-255 are written as the character of that number; the other 68, in
 * increasing order, as U+0100 ... U+0143. */

static void alphabet_init(int16_t byte_of[0x144])
{
    int16_t next = 0x100;
    for (int16_t c = 0; c < 0x144; c++)
        byte_of[c] = -1;
    for (int16_t b = 0; b < 256; b++) {
        const bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[plain ? b : next++] = b;
    }
}

/* Appends the bytes that s spells; false (with err set) when it is not in the alphabet. */
static bool add_spelled(loader *l, strbuf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        utf8_kind kind;
        i += utf8_read(s + i, n - i, &cp, &kind);
        if (kind != UTF8_CHAR || cp >= 0x144 || l->byte_of[cp] < 0) {
            (void)err_set(l->err, CALLA_ERR_FORMAT,
                          FILE_NAME ": \"%.*s\" has a character outside the 256 that stand for "
                                    "bytes",
                          (int)(n < 64 ? n : 64), s);
            return false;
        }
        strbuf_putc(out, (char)l->byte_of[cp]);
    }
    if (out->failed) (void)no_memory(l->err);
    return !out->failed;
}

static bool check_len(loader *l, const char *s, size_t n, size_t len)
{
    if (len != 0 && len <= TOKENIZER_TOKEN_MAX) return true;
    (void)err_set(l->err, CALLA_ERR_FORMAT,
                  FILE_NAME ": token \"%.*s\" has %zu bytes; expected 1 to %u",
                  (int)(n < 64 ? n : 64), s, len, TOKENIZER_TOKEN_MAX);
    return false;
}

/* ---- Events ---- */

static bool unexpected(loader *l, const char *found)
{
    const char *what = l->place == IN_VOCAB ? "model.vocab: expected an id for each token"
                                            : "model.merges: expected \"a b\" or [\"a\", \"b\"]";
    (void)err_set(l->err, CALLA_ERR_FORMAT, FILE_NAME ": %s, found %s", what, found);
    return false;
}

/* After an append to the skeleton failed. */
static bool skeleton_failed(loader *l)
{
    if (l->skeleton.len < SKELETON_MAX / 2) /* not near the limit, so it was memory */
        (void)no_memory(l->err);
    else
        (void)err_set(l->err, CALLA_ERR_FORMAT,
                      FILE_NAME ": about %u bytes or more besides vocabulary and merges",
                      SKELETON_MAX);
    return false;
}

/* Before a value (or container) of the skeleton. */
static bool skeleton_value(loader *l, const char *s, size_t n)
{
    if (l->opens != IN_OTHER) {
        const char *want =
            l->opens == IN_VOCAB ? "model.vocab is not an object" : "model.merges is not an array";
        (void)err_set(l->err, CALLA_ERR_FORMAT, FILE_NAME ": %s", want);
        return false;
    }
    if (l->comma) strbuf_putc(&l->skeleton, ',');
    l->comma = true;
    return strbuf_append(&l->skeleton, s, n) || skeleton_failed(l);
}

static bool on_null(void *ctx)
{
    loader *l = ctx;
    return l->place == IN_OTHER ? skeleton_value(l, "null", 4) : unexpected(l, "null");
}

static bool on_bool(void *ctx, bool value)
{
    loader *l = ctx;
    if (l->place != IN_OTHER) return unexpected(l, "a boolean");
    return value ? skeleton_value(l, "true", 4) : skeleton_value(l, "false", 5);
}

/* Decimal digits only, below TOKENS_MAX. */
static bool parse_id(const char *s, size_t n, uint32_t *id)
{
    *id = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *id = *id * 10 + (uint32_t)(s[i] - '0');
        if (*id >= TOKENS_MAX) return false;
    }
    return n > 0;
}

static bool on_number(void *ctx, const char *s, size_t n)
{
    loader *l = ctx;
    if (l->place == IN_OTHER) return skeleton_value(l, s, n);
    if (l->place != IN_VOCAB) return unexpected(l, "a number");
    if (parse_id(s, n, &l->entries[l->n_entries - 1].id)) return true;
    (void)err_set(l->err, CALLA_ERR_FORMAT,
                  FILE_NAME ": model.vocab has the id %.*s; expected 0 to %u",
                  (int)(n < 40 ? n : 40), s, TOKENS_MAX - 1);
    return false;
}

/* One part, or (n_parts stays 0) the first of two. */
static bool merge_part(loader *l, const char *s, size_t n, bool left)
{
    const size_t at = l->merge_bytes.len;
    if (!add_spelled(l, &l->merge_bytes, s, n)) return false;
    const size_t len = l->merge_bytes.len - at;
    if (!check_len(l, s, n, len)) return false;
    if (left) {
        if (l->n_merges == TOKENS_MAX ||
            !grow((void **)&l->merges, &l->cap_merges, l->n_merges, sizeof *l->merges)) {
            (void)no_memory(l->err);
            return false;
        }
        l->merges[l->n_merges++] = (raw_merge){(uint32_t)at, (uint16_t)len, 0};
    } else {
        l->merges[l->n_merges - 1].n_right = (uint16_t)len;
    }
    return true;
}

static bool merge_string(loader *l, const char *s, size_t n)
{
    const char *space = memchr(s, ' ', n);
    if (space == NULL) return unexpected(l, "a string without a space");
    const size_t n_left = (size_t)(space - s);
    return merge_part(l, s, n_left, true) && merge_part(l, space + 1, n - n_left - 1, false);
}

static bool on_string(void *ctx, const char *s, size_t n)
{
    loader *l = ctx;
    switch (l->place) {
    case IN_VOCAB:
        return unexpected(l, "a string");
    case IN_MERGES:
        return merge_string(l, s, n);
    case IN_MERGE_PAIR:
        if (l->n_parts == 2) return unexpected(l, "more than two parts");
        return merge_part(l, s, n, l->n_parts++ == 0);
    default:
        if (!skeleton_value(l, "", 0)) return false;
        return json_write_string(&l->skeleton, s, n) || skeleton_failed(l);
    }
}

static bool add_entry(loader *l, uint32_t id, size_t off, size_t len, token_kind kind)
{
    if (!grow((void **)&l->entries, &l->cap_entries, l->n_entries, sizeof *l->entries)) {
        (void)no_memory(l->err);
        return false;
    }
    l->entries[l->n_entries++] = (entry){id, (uint32_t)off, (uint16_t)len, (uint8_t)kind};
    return true;
}

static bool on_key(void *ctx, const char *s, size_t n)
{
    loader *l = ctx;
    if (l->place == IN_VOCAB) {
        strbuf *bytes = &l->tok->bytes;
        const size_t at = bytes->len;
        return add_spelled(l, bytes, s, n) && check_len(l, s, n, bytes->len - at) &&
               add_entry(l, 0, at, bytes->len - at, TOKEN_VOCAB);
    }
    if (l->depth == 1) l->in_model = n == 5 && memcmp(s, "model", n) == 0;
    if (l->comma) strbuf_putc(&l->skeleton, ',');
    l->comma = false;
    if (!json_write_string(&l->skeleton, s, n) || !strbuf_putc(&l->skeleton, ':'))
        return skeleton_failed(l);
    const bool of_model = l->depth == 2 && l->in_model;
    if (of_model && n == 5 && memcmp(s, "vocab", n) == 0) l->opens = IN_VOCAB;
    if (of_model && n == 6 && memcmp(s, "merges", n) == 0) l->opens = IN_MERGES;
    return true;
}

/* Enters vocab or merges; the skeleton gets `true` for it. */
static bool enter(loader *l, place where, bool *seen)
{
    if (*seen) {
        (void)err_set(l->err, CALLA_ERR_FORMAT, FILE_NAME ": model.%s occurs twice",
                      where == IN_VOCAB ? "vocab" : "merges");
        return false;
    }
    *seen = true;
    l->opens = IN_OTHER;
    l->place = where;
    return skeleton_value(l, "true", 4);
}

static bool open_container(loader *l, const char *bracket)
{
    if (!skeleton_value(l, bracket, 1)) return false;
    l->comma = false;
    l->depth++;
    return true;
}

static bool close_container(loader *l, char bracket)
{
    l->comma = true;
    l->depth--;
    return strbuf_putc(&l->skeleton, bracket) || skeleton_failed(l);
}

static bool on_object(void *ctx)
{
    loader *l = ctx;
    if (l->place != IN_OTHER) return unexpected(l, "an object");
    if (l->opens == IN_VOCAB) return enter(l, IN_VOCAB, &l->seen_vocab);
    return open_container(l, "{");
}

static bool on_object_end(void *ctx)
{
    loader *l = ctx;
    if (l->place != IN_VOCAB) return close_container(l, '}');
    l->place = IN_OTHER;
    return true;
}

static bool on_array(void *ctx)
{
    loader *l = ctx;
    if (l->place == IN_VOCAB || l->place == IN_MERGE_PAIR) return unexpected(l, "an array");
    if (l->place == IN_MERGES) {
        l->place = IN_MERGE_PAIR;
        l->n_parts = 0;
        return true;
    }
    if (l->opens == IN_MERGES) return enter(l, IN_MERGES, &l->seen_merges);
    return open_container(l, "[");
}

static bool on_array_end(void *ctx)
{
    loader *l = ctx;
    if (l->place == IN_MERGE_PAIR) {
        l->place = IN_MERGES;
        return l->n_parts == 2 || unexpected(l, "fewer than two parts");
    }
    if (l->place != IN_MERGES) return close_container(l, ']');
    l->place = IN_OTHER;
    return true;
}

/* ---- The small members ---- */

static calla_status refuse(loader *l, const char *member, const char *expected)
{
    return err_set(l->err, CALLA_ERR_UNSUPPORTED, FILE_NAME ": %s is not %s", member, expected);
}

static bool is_false(const json_value *v)
{
    return v != NULL && v->type == JSON_FALSE;
}

static bool is_null(const json_value *v)
{
    return v == NULL || v->type == JSON_NULL;
}

/* Absent, null, false or empty. */
static bool is_off(const json_value *v)
{
    return is_null(v) || v->type == JSON_FALSE || json_is(v, "");
}

static calla_status check_model(loader *l, const json_value *model)
{
    static const char *const off[] = {"dropout",
                                      "unk_token",
                                      "continuing_subword_prefix",
                                      "end_of_word_suffix",
                                      "fuse_unk",
                                      "byte_fallback",
                                      "ignore_merges"};
    if (!json_is(json_get(model, "type"), "BPE")) return refuse(l, "model.type", "\"BPE\"");
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (!is_off(json_get(model, off[i])))
            return err_set(l->err, CALLA_ERR_UNSUPPORTED,
                           FILE_NAME ": model.%s is set; expected null, false or empty", off[i]);
    if (json_get(model, "vocab") == NULL || json_get(model, "merges") == NULL)
        return err_set(l->err, CALLA_ERR_FORMAT, FILE_NAME ": model has no vocab or no merges");
    return CALLA_OK;
}

static bool is_byte_level(const json_value *v)
{
    return json_is(json_get(v, "type"), "ByteLevel");
}

static calla_status check_pre_tokenizer(loader *l, const json_value *pre)
{
    const json_value *list = json_get(pre, "pretokenizers");
    const json_value *split = json_at(list, 0), *bytes = json_at(list, 1);
    if (!json_is(json_get(pre, "type"), "Sequence") || list == NULL || list->n_items != 2 ||
        !json_is(json_get(split, "type"), "Split") || !is_byte_level(bytes))
        return refuse(l, "pre_tokenizer", "a Sequence of Split and ByteLevel");
    if (!json_is(json_get(json_get(split, "pattern"), "Regex"), known_regex))
        return refuse(l, "the pre-tokenizer's regex", "the one of Qwen3.6");
    if (!json_is(json_get(split, "behavior"), "Isolated") || !is_false(json_get(split, "invert")))
        return refuse(l, "the pre-tokenizer's Split", "\"Isolated\" and not inverted");
    if (!is_false(json_get(bytes, "add_prefix_space")) || !is_false(json_get(bytes, "use_regex")))
        return refuse(l, "the pre-tokenizer's ByteLevel", "without add_prefix_space and use_regex");
    return CALLA_OK;
}

/* An added token: {content, special, lstrip, ...}. */
static calla_status add_added(loader *l, const json_value *v, uint32_t id)
{
    static const char *const off[] = {"lstrip", "rstrip", "single_word", "normalized"};
    const json_value *content = json_get(v, "content"), *special = json_get(v, "special");
    if (content == NULL || content->type != JSON_STRING || special == NULL ||
        (special->type != JSON_TRUE && special->type != JSON_FALSE))
        return err_set(l->err, CALLA_ERR_FORMAT,
                       FILE_NAME ": added token %u has no content or no special flag", id);
    if (!check_len(l, content->text, content->n_text, content->n_text)) return l->err->code;
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (!is_false(json_get(v, off[i])))
            return err_set(l->err, CALLA_ERR_UNSUPPORTED,
                           FILE_NAME ": added token \"%.64s\" does not have %s false",
                           content->text, off[i]);
    const token_kind kind = special->type == JSON_TRUE ? TOKEN_SPECIAL : TOKEN_ADDED;
    const size_t n = content->n_text;
    for (size_t i = l->n_vocab; i < l->n_entries; i++) {
        const entry *e = &l->entries[i];
        const bool same = e->len == n && memcmp(l->tok->bytes.data + e->off, content->text, n) == 0;
        if (same && e->id == id && e->kind == kind) return CALLA_OK;
        if (same || e->id == id)
            return err_set(l->err, CALLA_ERR_FORMAT,
                           "added token \"%.64s\" (id %u) contradicts id %u given before",
                           content->text, id, e->id);
    }
    if (l->n_entries - l->n_vocab == TOKENIZER_ADDED_MAX)
        return err_set(l->err, CALLA_ERR_UNSUPPORTED, FILE_NAME ": more than %u added tokens",
                       TOKENIZER_ADDED_MAX);
    const size_t at = l->tok->bytes.len;
    if (!strbuf_append(&l->tok->bytes, content->text, n)) return no_memory(l->err);
    return add_entry(l, id, at, n, kind) ? CALLA_OK : l->err->code;
}

static calla_status read_added(loader *l, const json_value *list)
{
    if (is_null(list)) return CALLA_OK;
    if (list->type != JSON_ARRAY) return refuse(l, "added_tokens", "an array");
    for (const json_value *v = list->first; v != NULL; v = v->next) {
        int64_t id;
        if (!json_int(json_get(v, "id"), &id) || id < 0 || id >= (int64_t)TOKENS_MAX)
            return err_set(l->err, CALLA_ERR_FORMAT,
                           FILE_NAME ": an added token has no id between 0 and %u", TOKENS_MAX - 1);
        const calla_status st = add_added(l, v, (uint32_t)id);
        if (st != CALLA_OK) return st;
    }
    return CALLA_OK;
}

static calla_status read_skeleton(loader *l)
{
    const json_limits limits = {.what = FILE_NAME};
    json_doc doc = {0};
    calla_status st = json_parse(&doc, l->skeleton.data, l->skeleton.len, &limits, l->err);
    if (st != CALLA_OK) return st;
    const json_value *root = doc.root, *post = json_get(root, "post_processor");
    TRY(check_model(l, json_get(root, "model")));
    TRY(check_pre_tokenizer(l, json_get(root, "pre_tokenizer")));
    if (!json_is(json_get(json_get(root, "normalizer"), "type"), "NFC"))
        st = refuse(l, "normalizer", "NFC");
    else if (!is_byte_level(json_get(root, "decoder")))
        st = refuse(l, "decoder", "ByteLevel");
    else if (!is_null(post) && !is_byte_level(post))
        st = refuse(l, "post_processor", "ByteLevel");
    else
        st = read_added(l, json_get(root, "added_tokens"));
fail:
    json_free(&doc);
    return st;
}

/* The added tokens of tokenizer_config.json, and the regex it repeats. */
static calla_status read_config(loader *l, const char *json, size_t n)
{
    const json_limits limits = {.what = "tokenizer_config.json"};
    json_doc doc = {0};
    calla_status st = json_parse(&doc, json, n, &limits, l->err);
    if (st != CALLA_OK) return st;
    const json_value *regex = json_get(doc.root, "pretokenize_regex");
    const json_value *added = json_get(doc.root, "added_tokens_decoder");
    if (!is_null(regex) && !json_is(regex, known_regex)) {
        st = err_set(l->err, CALLA_ERR_UNSUPPORTED,
                     "tokenizer_config.json: pretokenize_regex is not the one of Qwen3.6");
        goto fail;
    }
    if (is_null(added)) goto fail;
    for (const json_value *v = added->first; v != NULL; v = v->next) {
        uint32_t id;
        if (v->key == NULL || !parse_id(v->key, v->n_key, &id)) {
            st = err_set(l->err, CALLA_ERR_FORMAT,
                         "tokenizer_config.json: added_tokens_decoder has a key that is no id");
            goto fail;
        }
        TRY(add_added(l, v, id));
    }
fail:
    json_free(&doc);
    return st;
}

/* ---- Tokens by id and by spelling ---- */

static uint32_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = n;
    while (n >= 8) {
        h = (h ^ load_le64(s)) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
        s += 8;
        n -= 8;
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < n; i++)
        tail = tail << 8 | (uint8_t)s[i];
    h = (h ^ tail) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(h >> 32);
}

/* The slot of the token with these bytes, or the empty slot where it would be. */
static vocab_slot *find(const loader *l, const char *s, size_t n, uint32_t hash)
{
    size_t i = hash & l->mask;
    for (; l->slots[i].i_entry != NONE; i = (i + 1) & l->mask) {
        const entry *e = &l->entries[l->slots[i].i_entry];
        if (l->slots[i].hash == hash && e->len == n &&
            memcmp(l->tok->bytes.data + e->off, s, n) == 0)
            break;
    }
    return &l->slots[i];
}

static int32_t id_of(const loader *l, const char *s, size_t n)
{
    const vocab_slot *slot = find(l, s, n, hash_bytes(s, n));
    if (slot->i_entry == NONE || l->entries[slot->i_entry].kind != TOKEN_VOCAB) return -1;
    return (int32_t)l->entries[slot->i_entry].id;
}

static calla_status index_tokens(loader *l)
{
    calla_tokenizer *t = l->tok;
    size_t n_slots = 1024;
    while (n_slots < 2 * l->n_entries)
        n_slots *= 2;
    l->mask = n_slots - 1;
    l->slots = mem_array(n_slots, sizeof *l->slots);
    t->tokens = mem_array(l->n_entries, sizeof *t->tokens);
    if (l->slots == NULL || t->tokens == NULL) return no_memory(l->err);
    for (size_t i = 0; i < n_slots; i++)
        l->slots[i].i_entry = NONE;
    t->n_tokens = (uint32_t)l->n_entries;
    for (size_t i = 0; i < l->n_entries; i++) {
        const entry *e = &l->entries[i];
        const char *s = t->bytes.data + e->off;
        const int shown = e->len < 64 ? e->len : 64;
        if (e->id >= t->n_tokens)
            return err_set(l->err, CALLA_ERR_FORMAT,
                           FILE_NAME ": token \"%.*s\" has id %u, but there are only %u tokens "
                                     "(ids must be dense)",
                           shown, s, e->id, t->n_tokens);
        if (t->tokens[e->id].kind != TOKEN_NONE)
            return err_set(l->err, CALLA_ERR_FORMAT, FILE_NAME ": two tokens have id %u", e->id);
        t->tokens[e->id] = (token){e->off, e->len, e->kind};
        const uint32_t hash = hash_bytes(s, e->len);
        vocab_slot *slot = find(l, s, e->len, hash);
        if (slot->i_entry != NONE)
            return err_set(l->err, CALLA_ERR_FORMAT,
                           FILE_NAME ": token \"%.*s\" occurs twice, with ids %u and %u", shown, s,
                           l->entries[slot->i_entry].id, e->id);
        *slot = (vocab_slot){hash, (uint32_t)i};
    }
    return CALLA_OK;
}

static calla_status index_bytes(loader *l)
{
    for (int b = 0; b < 256; b++) {
        const char c = (char)b;
        l->tok->merges.byte_id[b] = id_of(l, &c, 1);
        if (l->tok->merges.byte_id[b] < 0)
            return err_set(l->err, CALLA_ERR_FORMAT, FILE_NAME ": byte 0x%02x is not a token", b);
    }
    return CALLA_OK;
}

static calla_status index_merges(loader *l)
{
    if (!bpe_init(&l->tok->merges, l->n_merges)) return no_memory(l->err);
    for (size_t i = 0; i < l->n_merges; i++) {
        const raw_merge *r = &l->merges[i];
        const char *s = l->merge_bytes.data + r->off;
        const bpe_merge m = {
            .left = id_of(l, s, r->n_left),
            .right = id_of(l, s + r->n_left, r->n_right),
            .product = id_of(l, s, (size_t)r->n_left + r->n_right),
            .rank = (uint32_t)i,
        };
        if (m.left < 0 || m.right < 0 || m.product < 0)
            return err_set(l->err, CALLA_ERR_FORMAT,
                           FILE_NAME ": merge %zu names a %s that is not in the vocabulary", i,
                           m.left < 0 || m.right < 0 ? "part" : "product");
        if (!bpe_add(&l->tok->merges, m))
            return err_set(l->err, CALLA_ERR_FORMAT, FILE_NAME ": merge %zu repeats a pair", i);
    }
    return CALLA_OK;
}

static calla_status index_added(loader *l)
{
    calla_tokenizer *t = l->tok;
    size_t n_nodes = 1;
    for (size_t i = l->n_vocab; i < l->n_entries; i++)
        n_nodes += l->entries[i].len;
    if (n_nodes == 1) return CALLA_OK;
    t->trie = mem_array(n_nodes, sizeof *t->trie);
    if (t->trie == NULL) return no_memory(l->err);
    t->n_trie = 1;
    t->trie[0].id = -1;
    for (size_t i = l->n_vocab; i < l->n_entries; i++) {
        const entry *e = &l->entries[i];
        const uint8_t *s = (const uint8_t *)t->bytes.data + e->off;
        uint32_t at = 0;
        for (size_t k = 0; k < e->len; k++) {
            uint32_t kid = t->trie[at].child;
            while (kid != 0 && t->trie[kid].byte != s[k])
                kid = t->trie[kid].sibling;
            if (kid == 0) {
                kid = (uint32_t)t->n_trie++;
                t->trie[kid] = (trie_node){.sibling = t->trie[at].child, .id = -1, .byte = s[k]};
                t->trie[at].child = kid;
            }
            at = kid;
        }
        t->trie[at].id = (int32_t)e->id;
        t->starts[s[0]] = true;
    }
    return CALLA_OK;
}

/* ---- The whole ---- */

static calla_status load(loader *l, const char *json, size_t n, const char *config, size_t n_config)
{
    const json_sax sax = {
        .ctx = l,
        .on_null = on_null,
        .on_bool = on_bool,
        .on_number = on_number,
        .on_string = on_string,
        .on_key = on_key,
        .on_object = on_object,
        .on_object_end = on_object_end,
        .on_array = on_array,
        .on_array_end = on_array_end,
    };
    const json_limits limits = {.what = FILE_NAME};
    calla_status st = json_sax_parse(&sax, json, n, &limits, l->err);
    if (st != CALLA_OK) return st;
    l->n_vocab = l->n_entries;
    TRY(read_skeleton(l));
    if (config != NULL) TRY(read_config(l, config, n_config));
    TRY(index_tokens(l));
    TRY(index_bytes(l));
    TRY(index_merges(l));
    TRY(index_added(l));
fail:
    return st;
}

calla_status tokenizer_parse(calla_tokenizer **out, const char *json, size_t n,
                             const char *config_json, size_t n_config, calla_error *err)
{
    calla_error local;
    loader l = {.err = err != NULL ? err : &local};
    calla_status st;
    *out = NULL;
    if (n > TOKENIZER_FILE_MAX)
        return err_set(err, CALLA_ERR_FORMAT, FILE_NAME " has %zu bytes; at most %u are read", n,
                       TOKENIZER_FILE_MAX);
    l.skeleton.max = SKELETON_MAX;
    l.tok = mem_alloc(sizeof *l.tok);
    if (l.tok == NULL) return no_memory(err);
    alphabet_init(l.byte_of);
    st = load(&l, json, n, config_json, n_config);
    if (st == CALLA_OK)
        *out = l.tok;
    else
        calla_tokenizer_close(l.tok);
    mem_free(l.entries);
    mem_free(l.merges);
    mem_free(l.slots);
    strbuf_deinit(&l.merge_bytes);
    strbuf_deinit(&l.skeleton);
    return st;
}
