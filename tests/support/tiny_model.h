/* tiny_model.h - the smallest model of the architecture, as a list of tensors for tests.
 *
 * Four layers (three Gated DeltaNet, one attention), hidden 64, 4 experts of width 64, 2 used,
 * vocabulary 96. Data are pseudo-random bytes for codes, small bf16 numbers elsewhere; the same
 * seed gives the same bytes. Include after st_writer.h.
 */
#ifndef CALLA_TESTS_TINY_MODEL_H
#define CALLA_TESTS_TINY_MODEL_H

#include "support/st_writer.h"

#define TINY_QUANT                                                                                 \
    "\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\","                          \
    "\"language_model.model.layers.0.mlp.gate\":{\"group_size\":64,\"bits\":8},"                   \
    "\"language_model.model.layers.1.mlp.gate\":{\"bits\":8},"                                     \
    "\"language_model.model.layers.2.mlp.gate\":{\"group_size\":64,\"bits\":8},"                   \
    "\"language_model.model.layers.3.mlp.gate\":{\"group_size\":64,\"bits\":8}},"

#define TINY_TEXT_CONFIG                                                                           \
    "\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":\"qwen3_5_moe_text\","          \
    "\"attention_bias\":false,\"attn_output_gate\":true,\"eos_token_id\":7,"                       \
    "\"full_attention_interval\":4,\"head_dim\":256,\"hidden_act\":\"silu\",\"hidden_size\":64,"   \
    "\"layer_types\":[\"linear_attention\",\"linear_attention\",\"linear_attention\","             \
    "\"full_attention\"],\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,"                \
    "\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_value_head_dim\":128,"       \
    "\"mamba_ssm_dtype\":\"float32\",\"max_position_embeddings\":1024,"                            \
    "\"moe_intermediate_size\":64,\"num_attention_heads\":2,\"num_experts\":4,"                    \
    "\"num_experts_per_tok\":2,\"num_hidden_layers\":4,\"num_key_value_heads\":1,"                 \
    "\"partial_rotary_factor\":0.25,\"rms_norm_eps\":1e-06,\"rope_parameters\":{"                  \
    "\"partial_rotary_factor\":0.25,\"rope_theta\":10000000,\"rope_type\":\"default\"},"           \
    "\"shared_expert_intermediate_size\":64,\"tie_word_embeddings\":false,\"vocab_size\":96}"

#define TINY_CONFIG    "{\"model_type\":\"qwen3_5_moe\"," TINY_QUANT TINY_TEXT_CONFIG "}"
#define TINY_CONFIG_HF "{\"model_type\":\"qwen3_5_moe\"," TINY_TEXT_CONFIG "}"

typedef struct tiny_rng {
    uint64_t s;
} tiny_rng;

/* splitmix64 */
static uint64_t tiny_next(tiny_rng *r)
{
    uint64_t z = r->s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* BF16 in [-0.25, 0.25], U32 arbitrary, F32 in [-0.25, 0.25]. */
static void tiny_fill(stw_tensor *t, tiny_rng *r)
{
    const size_t n = (size_t)stw_bytes(t);
    t->data = mem_alloc(n);
    assert_non_null(t->data);
    const bool is_bf16 = strcmp(t->dtype, "BF16") == 0, is_f32 = strcmp(t->dtype, "F32") == 0;
    const size_t step = is_bf16 ? 2 : 4;
    for (size_t i = 0; i + step <= n; i += step) {
        uint32_t u = (uint32_t)(tiny_next(r) >> 32);
        if (is_bf16 || is_f32) {
            const float f = ((float)(u >> 8) / 16777216.0f - 0.5f) * 0.5f;
            if (is_bf16)
                u = f32_to_bf16(f);
            else
                memcpy(&u, &f, sizeof u);
        }
        for (size_t k = 0; k < step; k++)
            t->data[i + k] = (uint8_t)(u >> (8 * k));
    }
}

static void tiny_add(stw_list *l, tiny_rng *r, const char *prefix, const char *name,
                     const char *dtype, const char *shape)
{
    char full[128];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    tiny_fill(stw_add(l, full, dtype, shape, NULL), r);
}

/* A matrix: bits 4 or 8 make three tensors, 16 one BF16 tensor. outer is "" or "4x". */
static void tiny_matrix(stw_list *l, tiny_rng *r, const char *prefix, const char *module,
                        const char *outer, unsigned rows, unsigned cols, unsigned bits)
{
    char name[96], shape[48];
    (void)snprintf(name, sizeof name, "%s.weight", module);
    (void)snprintf(shape, sizeof shape, "%s%ux%u", outer, rows,
                   bits == 16 ? cols : cols * bits / 32);
    tiny_add(l, r, prefix, name, bits == 16 ? "BF16" : "U32", shape);
    if (bits == 16) return;
    (void)snprintf(shape, sizeof shape, "%s%ux%u", outer, rows, cols / 64);
    (void)snprintf(name, sizeof name, "%s.scales", module);
    tiny_add(l, r, prefix, name, "BF16", shape);
    (void)snprintf(name, sizeof name, "%s.biases", module);
    tiny_add(l, r, prefix, name, "BF16", shape);
}

static void tiny_layer(stw_list *l, tiny_rng *r, const char *p, bool full, bool hf)
{
    const unsigned bits = hf ? 16 : 4, router_bits = hf ? 16 : 8;
    tiny_add(l, r, p, "input_layernorm.weight", "BF16", "64");
    tiny_add(l, r, p, "post_attention_layernorm.weight", "BF16", "64");
    if (full) {
        tiny_matrix(l, r, p, "self_attn.q_proj", "", 1024, 64, bits);
        tiny_matrix(l, r, p, "self_attn.k_proj", "", 256, 64, bits);
        tiny_matrix(l, r, p, "self_attn.v_proj", "", 256, 64, bits);
        tiny_matrix(l, r, p, "self_attn.o_proj", "", 64, 512, bits);
        tiny_add(l, r, p, "self_attn.q_norm.weight", "BF16", "256");
        tiny_add(l, r, p, "self_attn.k_norm.weight", "BF16", "256");
    } else {
        tiny_matrix(l, r, p, "linear_attn.in_proj_qkv", "", 512, 64, bits);
        tiny_matrix(l, r, p, "linear_attn.in_proj_z", "", 256, 64, bits);
        tiny_matrix(l, r, p, "linear_attn.in_proj_b", "", 2, 64, bits);
        tiny_matrix(l, r, p, "linear_attn.in_proj_a", "", 2, 64, bits);
        tiny_matrix(l, r, p, "linear_attn.out_proj", "", 64, 256, bits);
        tiny_add(l, r, p, "linear_attn.conv1d.weight", "BF16", hf ? "512x1x4" : "512x4x1");
        tiny_add(l, r, p, "linear_attn.A_log", hf ? "F32" : "BF16", "2");
        tiny_add(l, r, p, "linear_attn.dt_bias", "BF16", "2");
        tiny_add(l, r, p, "linear_attn.norm.weight", hf ? "F32" : "BF16", "128");
    }
    tiny_matrix(l, r, p, "mlp.gate", "", 4, 64, router_bits);
    tiny_matrix(l, r, p, "mlp.shared_expert_gate", "", 1, 64, bits);
    tiny_matrix(l, r, p, "mlp.shared_expert.gate_proj", "", 64, 64, bits);
    tiny_matrix(l, r, p, "mlp.shared_expert.up_proj", "", 64, 64, bits);
    tiny_matrix(l, r, p, "mlp.shared_expert.down_proj", "", 64, 64, bits);
    if (hf) {
        tiny_add(l, r, p, "mlp.experts.gate_up_proj", "BF16", "4x128x64");
        tiny_add(l, r, p, "mlp.experts.down_proj", "BF16", "4x64x64");
        return;
    }
    tiny_matrix(l, r, p, "mlp.switch_mlp.gate_proj", "4x", 64, 64, bits);
    tiny_matrix(l, r, p, "mlp.switch_mlp.up_proj", "4x", 64, 64, bits);
    tiny_matrix(l, r, p, "mlp.switch_mlp.down_proj", "4x", 64, 64, bits);
}

/* All tensors of the tiny model, in MLX's layout or Hugging Face's. */
ATTR_UNUSED static void tiny_model(stw_list *l, bool hf, uint64_t seed)
{
    tiny_rng r = {seed};
    const char *prefix = hf ? "model.language_model." : "language_model.model.";
    const unsigned bits = hf ? 16 : 4;
    char p[64];
    tiny_matrix(l, &r, prefix, "embed_tokens", "", 96, 64, bits);
    tiny_matrix(l, &r, hf ? "" : "language_model.", "lm_head", "", 96, 64, bits);
    tiny_add(l, &r, prefix, "norm.weight", "BF16", "64");
    for (unsigned i = 0; i < 4; i++) {
        (void)snprintf(p, sizeof p, "%slayers.%u.", prefix, i);
        tiny_layer(l, &r, p, i == 3, hf);
    }
}

#endif
