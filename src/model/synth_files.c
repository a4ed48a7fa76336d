/* synth_files.c - the JSON files of a synthetic checkpoint. */
#include <stdio.h>
#include <string.h>

#include "model/synth.h"

/* Spelling and "special" of the added tokens, in the order of their ids. */
static const struct {
    const char *text;
    bool special;
} added_tokens[SYNTH_ADDED_TOKENS] = {
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
enum { END_OF_TEXT = 0, IM_END = 2, VISION_START = 9, VISION_END = 10, IMAGE = 12, VIDEO = 13 };

static const char split_regex[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

uint32_t synth_n_tokens(const model_shape *shape)
{
    return shape->n_vocab == 248320 ? 248077 : shape->n_vocab - 31;
}

static uint32_t added_id(const model_shape *s, uint32_t i)
{
    return synth_n_tokens(s) - SYNTH_ADDED_TOKENS + i;
}

/* ---- Configuration ---- */

static void put_quantization(strbuf *b, const model_shape *s, const char *key)
{
    (void)strbuf_printf(b,
                        "    \"%s\": {\n        \"group_size\": 64,\n        \"bits\": 4,\n"
                        "        \"mode\": \"affine\"",
                        key);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        static const char *const names[] = {"gate", "shared_expert_gate"};
        for (int k = 0; k < 2; k++)
            (void)strbuf_printf(b,
                                ",\n        \"language_model.model.layers.%u.mlp.%s\": "
                                "{\"group_size\": 64, \"bits\": 8}",
                                i, names[k]);
    }
    (void)strbuf_puts(b, "\n    },\n");
}

static void put_layer_types(strbuf *b, const model_shape *s)
{
    (void)strbuf_puts(b, "        \"layer_types\": [");
    for (uint32_t i = 0; i < s->n_layers; i++)
        (void)strbuf_printf(b, "%s\"%s_attention\"", i == 0 ? "" : ", ",
                            shape_is_full(s, i) ? "full" : "linear");
    (void)strbuf_puts(b, "],\n");
}

static void put_text_config(strbuf *b, const model_shape *s)
{
    (void)strbuf_printf(b,
                        "    \"text_config\": {\n"
                        "        \"attention_bias\": false,\n        \"attention_dropout\": 0.0,\n"
                        "        \"attn_output_gate\": true,\n        \"bos_token_id\": %u,\n"
                        "        \"dtype\": \"bfloat16\",\n        \"eos_token_id\": %u,\n"
                        "        \"full_attention_interval\": %u,\n        \"head_dim\": %u,\n"
                        "        \"hidden_act\": \"silu\",\n        \"hidden_size\": %u,\n",
                        added_id(s, END_OF_TEXT), added_id(s, END_OF_TEXT), s->full_interval,
                        s->head_dim, s->hidden);
    put_layer_types(b, s);
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        {"linear_conv_kernel_dim", s->conv_kernel},
        {"linear_key_head_dim", s->gdn_k_dim},
        {"linear_num_key_heads", s->gdn_k_heads},
        {"linear_num_value_heads", s->gdn_v_heads},
        {"linear_value_head_dim", s->gdn_v_dim},
        {"max_position_embeddings", s->max_context},
        {"moe_intermediate_size", s->expert_width},
        {"mtp_num_hidden_layers", 0},
        {"num_attention_heads", s->n_heads},
        {"num_experts", s->n_experts},
        {"num_experts_per_tok", s->n_experts_used},
        {"num_hidden_layers", s->n_layers},
        {"num_key_value_heads", s->n_kv_heads},
        {"shared_expert_intermediate_size", s->shared_width},
        {"vocab_size", s->n_vocab},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        (void)strbuf_printf(b, "        \"%s\": %u,\n", numbers[i].key, numbers[i].value);
    (void)strbuf_puts(b, "        \"mamba_ssm_dtype\": \"float32\",\n"
                         "        \"model_type\": \"qwen3_5_moe_text\",\n"
                         "        \"partial_rotary_factor\": 0.25,\n"
                         "        \"rms_norm_eps\": 1e-06,\n"
                         "        \"rope_parameters\": {\"mrope_interleaved\": true, "
                         "\"mrope_section\": [11, 11, 10], \"partial_rotary_factor\": 0.25, "
                         "\"rope_theta\": 10000000, \"rope_type\": \"default\"},\n"
                         "        \"tie_word_embeddings\": false,\n        \"use_cache\": true\n"
                         "    },\n");
}

bool synth_config(strbuf *b, const model_shape *s)
{
    (void)strbuf_printf(b,
                        "{\n    \"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"],\n"
                        "    \"calla_synth\": true,\n"
                        "    \"eos_token_id\": [%u, %u],\n    \"image_token_id\": %u,\n"
                        "    \"model_type\": \"qwen3_5_moe\",\n",
                        added_id(s, IM_END), added_id(s, END_OF_TEXT), added_id(s, IMAGE));
    put_quantization(b, s, "quantization");
    put_quantization(b, s, "quantization_config");
    put_text_config(b, s);
    return strbuf_printf(b,
                         "    \"tie_word_embeddings\": false,\n"
                         "    \"transformers_version\": \"4.57.1\",\n"
                         "    \"video_token_id\": %u,\n    \"vision_end_token_id\": %u,\n"
                         "    \"vision_start_token_id\": %u\n}\n",
                         added_id(s, VIDEO), added_id(s, VISION_END), added_id(s, VISION_START));
}

bool synth_is(const json_value *config)
{
    const json_value *v = json_get(config, "calla_synth");
    return v != NULL && v->type == JSON_TRUE;
}

bool synth_generation_config(strbuf *b, const model_shape *s)
{
    return strbuf_printf(b,
                         "{\n    \"bos_token_id\": %u,\n    \"do_sample\": true,\n"
                         "    \"eos_token_id\": [%u, %u],\n    \"pad_token_id\": %u,\n"
                         "    \"temperature\": 1.0,\n    \"top_k\": 20,\n    \"top_p\": 0.95\n}\n",
                         added_id(s, END_OF_TEXT), added_id(s, IM_END), added_id(s, END_OF_TEXT),
                         added_id(s, END_OF_TEXT));
}

/* ---- Tokenizer ---- */

/* The k-th letter of merged tokens: a blank (spelled U+0120), then a to z. */
static void put_letter(strbuf *b, uint32_t k)
{
    if (k == 0)
        (void)strbuf_puts(b, "\xc4\xa0");
    else
        (void)strbuf_putc(b, (char)('a' + k - 1));
}

/* The letters of the i-th merged token: all of two letters first, then of three, ...; only the
 * first letter may be the blank. Its last merge joins all but the last letter with the last, and
 * the former is an earlier token (or a byte). */
static uint32_t merged_letters(uint32_t i, uint32_t letters[8])
{
    uint32_t n = 2;
    uint64_t count = 27 * 26; /* tokens of n letters */
    while (i >= count) {
        i -= (uint32_t)count;
        count *= 26;
        n++;
    }
    for (uint32_t k = n - 1; k > 0; k--) {
        letters[k] = 1 + i % 26;
        i /= 26;
    }
    letters[0] = i;
    return n;
}

/* One byte in the byte-level alphabet, as a JSON string. */
static void put_byte(strbuf *b, uint32_t c)
{
    char utf8[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
    if (c < 0x80) {
        utf8[0] = (char)c;
        (void)json_write_string(b, utf8, 1);
    } else {
        (void)json_write_string(b, utf8, 2);
    }
}

/* Bytes in the order of their ids: the printable ones stand for themselves, the others, in order,
 * for U+0100 and up. */
static void put_byte_tokens(strbuf *b)
{
    uint32_t id = 0;
    for (uint32_t c = '!'; c <= 0xff; c++) {
        if ((c > '~' && c < 0xa1) || c == 0xad) continue;
        (void)strbuf_puts(b, id == 0 ? "" : ",");
        put_byte(b, c);
        (void)strbuf_printf(b, ":%u", id++);
    }
    for (uint32_t c = 0x100; id < 256; c++) {
        (void)strbuf_putc(b, ',');
        put_byte(b, c);
        (void)strbuf_printf(b, ":%u", id++);
    }
}

static void put_added_tokens(strbuf *b, uint32_t n_bpe)
{
    for (uint32_t i = 0; i < SYNTH_ADDED_TOKENS; i++)
        (void)strbuf_printf(b,
                            "%s\n{\"id\":%u,\"content\":\"%s\",\"single_word\":false,"
                            "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                            "\"special\":%s}",
                            i == 0 ? "" : ",", n_bpe + i, added_tokens[i].text,
                            added_tokens[i].special ? "true" : "false");
}

bool synth_tokenizer(strbuf *b, uint32_t n_tokens)
{
    static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                     "\"trim_offsets\":false,\"use_regex\":false}";
    const uint32_t n_bpe = n_tokens - SYNTH_ADDED_TOKENS, n_merges = n_bpe - 256;
    uint32_t letters[8];
    (void)strbuf_puts(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                         "\"added_tokens\":[");
    put_added_tokens(b, n_bpe);
    (void)strbuf_puts(b, "],\n\"normalizer\":{\"type\":\"NFC\"},\n\"pre_tokenizer\":{\"type\":"
                         "\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                         "\"Regex\":");
    (void)json_write_string(b, split_regex, sizeof split_regex - 1);
    (void)strbuf_printf(b,
                        "},\"behavior\":\"Isolated\",\"invert\":false},%s]},\n"
                        "\"post_processor\":%s,\n\"decoder\":%s,\n\"model\":{\"type\":\"BPE\","
                        "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","
                        "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,"
                        "\"ignore_merges\":false,\n\"vocab\":{",
                        byte_level, byte_level, byte_level);
    put_byte_tokens(b);
    for (uint32_t i = 0; i < n_merges; i++) {
        const uint32_t n = merged_letters(i, letters);
        (void)strbuf_puts(b, ",\"");
        for (uint32_t k = 0; k < n; k++)
            put_letter(b, letters[k]);
        (void)strbuf_printf(b, "\":%u", 256 + i);
    }
    (void)strbuf_puts(b, "},\n\"merges\":[");
    for (uint32_t i = 0; i < n_merges; i++) {
        const uint32_t n = merged_letters(i, letters);
        (void)strbuf_puts(b, i == 0 ? "[\"" : ",[\"");
        for (uint32_t k = 0; k + 1 < n; k++)
            put_letter(b, letters[k]);
        (void)strbuf_puts(b, "\",\"");
        put_letter(b, letters[n - 1]);
        (void)strbuf_puts(b, "\"]");
    }
    return strbuf_puts(b, "]}}\n");
}

bool synth_tokenizer_config(strbuf *b, const model_shape *s)
{
    (void)strbuf_printf(b,
                        "{\n  \"add_prefix_space\": false,\n  \"backend\": \"tokenizers\",\n"
                        "  \"bos_token\": null,\n  \"clean_up_tokenization_spaces\": false,\n"
                        "  \"eos_token\": \"%s\",\n  \"errors\": \"replace\",\n"
                        "  \"model_max_length\": %u,\n  \"pad_token\": \"%s\",\n"
                        "  \"pretokenize_regex\": ",
                        added_tokens[IM_END].text, s->max_context, added_tokens[END_OF_TEXT].text);
    (void)json_write_string(b, split_regex, sizeof split_regex - 1);
    return strbuf_puts(b, ",\n  \"split_special_tokens\": false,\n"
                          "  \"tokenizer_class\": \"TokenizersBackend\",\n"
                          "  \"unk_token\": null\n}\n");
}
