/* tokenizer_fixture.h - a tokenizer.json of the real size for tests, without the real vocabulary.
 *
 * The merges are the published ones (tests/data/qwen3.6/merges.txt). Ids: single bytes 0 ... 255 in
 * the order of the byte alphabet, 256 + rank for each merge, fillers that no text reaches up to
 * 248043, then the 33 added tokens at their true ids. The true vocabulary has 201 tokens that come
 * from no merge, so only ids up to 103815 and from 248044 on are the true ones.
 */
#ifndef TOKENIZER_FIXTURE_H
#define TOKENIZER_FIXTURE_H

#include <stdint.h>
#include <string.h>
#include "base/attrs.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"

#define FIXTURE_REGEX                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| "    \
    "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* Everything between the added tokens and the value of model.vocab. */
#define FIXTURE_MIDDLE                                                                             \
    "\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", "            \
    "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" FIXTURE_REGEX          \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "              \
    "\"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}]}, "              \
    "\"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "                  \
    "\"trim_offsets\": false, \"use_regex\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, "     \
    "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "                      \
    "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", \"fuse_unk\": false, "     \
    "\"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": "

typedef struct fixture_added {
    const char *spelling;
    bool special;
} fixture_added;

static const fixture_added fixture_tokens[33] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
    {"<|audio_start|>", true},    {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};

#define FIXTURE_FIRST_ADDED 248044u

/* The character of the byte alphabet for b, NUL-terminated. */
static ATTR_UNUSED void fixture_letter(unsigned b, char out[3])
{
    unsigned cp = b;
    if (!((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174))
        cp = b < 33 ? 0x100 + b : b < 161 ? 0x100 + 33 + (b - 127) : 0x143;
    size_t n = 0;
    if (cp >= 0x80) out[n++] = (char)(0xC0 | cp >> 6);
    out[n++] = (char)(cp >= 0x80 ? 0x80 | (cp & 0x3F) : cp);
    out[n] = '\0';
}

/* The 256 bytes as `"x": id, ` in the order of the real vocabulary. */
static ATTR_UNUSED void fixture_bytes(strbuf *out)
{
    unsigned id = 0;
    for (int plain = 1; plain >= 0; plain--)
        for (unsigned b = 0; b < 256; b++) {
            char letter[3];
            fixture_letter(b, letter);
            const bool is_plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            if (is_plain != (plain == 1)) continue;
            (void)json_write_string(out, letter, strlen(letter));
            (void)strbuf_printf(out, ": %u, ", id++);
        }
}

static ATTR_UNUSED void fixture_added_tokens(strbuf *out, unsigned first_id, size_t n)
{
    (void)strbuf_puts(out, "\"added_tokens\": [");
    for (size_t i = 0; i < n; i++)
        (void)strbuf_printf(out,
                            "%s{\"id\": %u, \"content\": \"%s\", \"single_word\": false, "
                            "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                            "\"special\": %s}",
                            i > 0 ? ", " : "", first_id + (unsigned)i, fixture_tokens[i].spelling,
                            fixture_tokens[i].special ? "true" : "false");
    (void)strbuf_puts(out, "], ");
}

static ATTR_UNUSED void fixture_vocab(strbuf *out, const char *merges, size_t n)
{
    unsigned id = 256;
    fixture_bytes(out);
    for (size_t i = 0; i < n;) {
        const size_t len = strcspn(merges + i, "\n");
        const size_t left = strcspn(merges + i, " ");
        strbuf token = {0};
        (void)strbuf_append(&token, merges + i, left);
        (void)strbuf_append(&token, merges + i + left + 1, len - left - 1);
        (void)json_write_string(out, token.data, token.len);
        (void)strbuf_printf(out, ": %u, ", id++);
        strbuf_deinit(&token);
        i += len + 1;
    }
    for (unsigned k = 0; id < FIXTURE_FIRST_ADDED; k++, id++) {
        char a[3], b[3];
        fixture_letter(0xF8 + k / 128, a); /* bytes that are in no UTF-8 text */
        fixture_letter(0x80 + k % 128, b);
        (void)strbuf_printf(out, "\"%s%s%s\": %u%s", a, a, b, id,
                            id + 1 < FIXTURE_FIRST_ADDED ? ", " : "");
    }
}

/* A whole tokenizer.json of 248,077 tokens. pairs: merges as ["a", "b"], else "a b". n_added: how
 * many of the 33 added tokens it names (the published files have 26 and 33). False when the merges
 * cannot be read. */
static ATTR_UNUSED bool fixture_json(strbuf *out, bool pairs, size_t n_added)
{
    char *merges = NULL;
    size_t n = 0;
    if (file_read("tests/data/qwen3.6/merges.txt", 16u << 20, &merges, &n, NULL) != CALLA_OK)
        return false;
    (void)strbuf_puts(out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, ");
    fixture_added_tokens(out, FIXTURE_FIRST_ADDED, n_added);
    (void)strbuf_puts(out, FIXTURE_MIDDLE "{");
    fixture_vocab(out, merges, n);
    (void)strbuf_puts(out, "}, \"merges\": [");
    for (size_t i = 0; i < n;) {
        const size_t len = strcspn(merges + i, "\n");
        const size_t left = strcspn(merges + i, " ");
        if (i > 0) (void)strbuf_puts(out, ", ");
        if (pairs) {
            (void)strbuf_putc(out, '[');
            (void)json_write_string(out, merges + i, left);
            (void)strbuf_puts(out, ", ");
            (void)json_write_string(out, merges + i + left + 1, len - left - 1);
            (void)strbuf_putc(out, ']');
        } else {
            (void)json_write_string(out, merges + i, len);
        }
        i += len + 1;
    }
    (void)strbuf_puts(out, "]}}");
    mem_free(merges);
    return !out->failed;
}

/* The stand-in tokenizer itself; NULL when that fails. */
static ATTR_UNUSED calla_tokenizer *fixture_open(void)
{
    strbuf json = {0};
    calla_tokenizer *tok = NULL;
    if (fixture_json(&json, true, 33))
        (void)tokenizer_parse(&tok, json.data, json.len, NULL, 0, NULL);
    strbuf_deinit(&json);
    return tok;
}

#endif
