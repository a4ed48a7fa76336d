#include "model/shape.h"

#include <stdio.h>
#include <string.h>

#define N_VOCAB_MAX (1 << 24)
#define WIDTH_MAX   65536

const model_shape shape_35b = {
    .n_layers = 40,
    .hidden = 2048,
    .n_vocab = 248320,
    .max_context = 262144,
    .full_interval = 4,
    .n_heads = 16,
    .n_kv_heads = 2,
    .head_dim = MODEL_HEAD_DIM,
    .rotary_dim = MODEL_ROTARY_DIM,
    .gdn_k_heads = 16,
    .gdn_v_heads = 32,
    .gdn_k_dim = MODEL_GDN_DIM,
    .gdn_v_dim = MODEL_GDN_DIM,
    .conv_kernel = MODEL_CONV_KERNEL,
    .n_experts = 256,
    .n_experts_used = 8,
    .expert_width = 512,
    .shared_width = 512,
    .rms_eps = 1e-6f,
    .rope_theta = 1e7f,
};

/* ---- Refusals ---- */

calla_status shape_refuse(const json_value *v, const char *file, const char *key,
                          const char *expected, calla_error *err)
{
    strbuf b = {0};
    if (v == NULL)
        (void)strbuf_puts(&b, "nothing");
    else if (v->type == JSON_OBJECT)
        (void)strbuf_puts(&b, "an object");
    else if (v->type == JSON_ARRAY)
        (void)strbuf_printf(&b, "an array of %zu", v->n_items);
    else
        (void)json_write(&b, v);
    const calla_status st = err_set(err, CALLA_ERR_UNSUPPORTED, "%s: %s: expected %s, found %.100s",
                                    file, key, expected, b.data == NULL ? "another value" : b.data);
    strbuf_deinit(&b);
    return st;
}

static calla_status refuse(const json_value *v, const char *key, const char *expected,
                           calla_error *err)
{
    return shape_refuse(v, "config.json", key, expected, err);
}

static bool absent(const json_value *v)
{
    return v == NULL || v->type == JSON_NULL;
}

static calla_status read_u32(const json_value *obj, const char *key, int64_t min, int64_t max,
                             uint32_t *out, calla_error *err)
{
    const json_value *v = json_get(obj, key);
    int64_t x = 0;
    if (!json_int(v, &x) || x < min || x > max) {
        char expected[80];
        (void)snprintf(expected, sizeof expected, "a whole number from %lld to %lld",
                       (long long)min, (long long)max);
        return refuse(v, key, expected, err);
    }
    *out = (uint32_t)x;
    return CALLA_OK;
}

static calla_status expect_int(const json_value *obj, const char *key, int64_t value,
                               calla_error *err)
{
    const json_value *v = json_get(obj, key);
    int64_t x = 0;
    if (json_int(v, &x) && x == value) return CALLA_OK;
    char expected[32];
    (void)snprintf(expected, sizeof expected, "%lld", (long long)value);
    return refuse(v, key, expected, err);
}

/* ---- Values that the architecture fixes; absent means the architecture's own value ---- */

static calla_status expect_text(const json_value *obj, const char *key, const char *text,
                                calla_error *err)
{
    const json_value *v = json_get(obj, key);
    return absent(v) || json_is(v, text) ? CALLA_OK : refuse(v, key, text, err);
}

static calla_status expect_bool(const json_value *obj, const char *key, bool value,
                                calla_error *err)
{
    const json_value *v = json_get(obj, key);
    if (absent(v) || v->type == (value ? JSON_TRUE : JSON_FALSE)) return CALLA_OK;
    return refuse(v, key, value ? "true" : "false", err);
}

/* Settings of sibling architectures. */
static calla_status expect_unset(const json_value *obj, const char *key, calla_error *err)
{
    const json_value *v = json_get(obj, key);
    if (absent(v) || v->type == JSON_FALSE) return CALLA_OK;
    if (v->type == JSON_ARRAY && v->n_items == 0) return CALLA_OK;
    return refuse(v, key, "it to be absent", err);
}

static calla_status check_fixed(const json_value *config, const json_value *text, calla_error *err)
{
    calla_status st;
    static const char *const unset[] = {"mlp_only_layers", "output_gate_type", "rope_scaling",
                                        "use_sliding_window", "sliding_window"};
    TRY(expect_text(text, "hidden_act", "silu", err));
    TRY(expect_text(text, "mamba_ssm_dtype", "float32", err));
    TRY(expect_bool(text, "attn_output_gate", true, err));
    TRY(expect_bool(text, "attention_bias", false, err));
    TRY(expect_bool(text, "norm_topk_prob", true, err));
    TRY(expect_bool(text, "tie_word_embeddings", false, err));
    TRY(expect_bool(config, "tie_word_embeddings", false, err));
    if (!absent(json_get(text, "decoder_sparse_step")))
        TRY(expect_int(text, "decoder_sparse_step", 1, err));
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        TRY(expect_unset(text, unset[i], err));
fail:
    return st;
}

/* ---- Parts ---- */

static calla_status find_text(const json_value *config, const json_value **text, calla_error *err)
{
    const json_value *type = json_get(config, "model_type");
    const json_value *inner = json_get(config, "text_config");
    if (inner == NULL) {
        *text = config;
        return json_is(type, "qwen3_5_moe_text") ? CALLA_OK
                                                 : refuse(type, "model_type", "qwen3_5_moe", err);
    }
    if (!json_is(type, "qwen3_5_moe")) return refuse(type, "model_type", "qwen3_5_moe", err);
    if (inner->type != JSON_OBJECT) return refuse(inner, "text_config", "an object", err);
    *text = inner;
    return expect_text(inner, "model_type", "qwen3_5_moe_text", err);
}

static calla_status read_dims(model_shape *s, const json_value *t, calla_error *err)
{
    calla_status st;
    TRY(read_u32(t, "num_hidden_layers", 1, MODEL_LAYERS_MAX, &s->n_layers, err));
    TRY(read_u32(t, "hidden_size", 64, WIDTH_MAX, &s->hidden, err));
    TRY(read_u32(t, "vocab_size", 1, N_VOCAB_MAX, &s->n_vocab, err));
    TRY(read_u32(t, "max_position_embeddings", 1, INT32_MAX, &s->max_context, err));
    TRY(read_u32(t, "full_attention_interval", 2, MODEL_LAYERS_MAX, &s->full_interval, err));
    TRY(read_u32(t, "num_attention_heads", 1, 256, &s->n_heads, err));
    TRY(read_u32(t, "num_key_value_heads", 1, 256, &s->n_kv_heads, err));
    TRY(read_u32(t, "linear_num_key_heads", 1, 256, &s->gdn_k_heads, err));
    TRY(read_u32(t, "linear_num_value_heads", 1, 256, &s->gdn_v_heads, err));
    TRY(read_u32(t, "num_experts", 1, MODEL_EXPERTS_MAX, &s->n_experts, err));
    TRY(read_u32(t, "num_experts_per_tok", 1, MODEL_EXPERTS_USED_MAX, &s->n_experts_used, err));
    TRY(read_u32(t, "moe_intermediate_size", 64, WIDTH_MAX, &s->expert_width, err));
    TRY(read_u32(t, "shared_expert_intermediate_size", 64, WIDTH_MAX, &s->shared_width, err));
    TRY(expect_int(t, "head_dim", MODEL_HEAD_DIM, err));
    TRY(expect_int(t, "linear_key_head_dim", MODEL_GDN_DIM, err));
    TRY(expect_int(t, "linear_value_head_dim", MODEL_GDN_DIM, err));
    TRY(expect_int(t, "linear_conv_kernel_dim", MODEL_CONV_KERNEL, err));
    s->head_dim = MODEL_HEAD_DIM;
    s->rotary_dim = MODEL_ROTARY_DIM;
    s->gdn_k_dim = s->gdn_v_dim = MODEL_GDN_DIM;
    s->conv_kernel = MODEL_CONV_KERNEL;
fail:
    return st;
}

static calla_status check_multiple(const json_value *t, const char *key, uint32_t value,
                                   uint32_t of, const char *of_name, calla_error *err)
{
    if (value % of == 0) return CALLA_OK;
    char expected[96];
    (void)snprintf(expected, sizeof expected, "a multiple of %s%s%u", of_name,
                   of_name[0] == '\0' ? "" : " ", of);
    return refuse(json_get(t, key), key, expected, err);
}

static calla_status check_dims(const model_shape *s, const json_value *t, calla_error *err)
{
    calla_status st;
    TRY(check_multiple(t, "hidden_size", s->hidden, MODEL_QUANT_GROUP, "", err));
    TRY(check_multiple(t, "moe_intermediate_size", s->expert_width, MODEL_QUANT_GROUP, "", err));
    TRY(check_multiple(t, "shared_expert_intermediate_size", s->shared_width, MODEL_QUANT_GROUP, "",
                       err));
    TRY(check_multiple(t, "num_attention_heads", s->n_heads, s->n_kv_heads, "num_key_value_heads",
                       err));
    TRY(check_multiple(t, "linear_num_value_heads", s->gdn_v_heads, s->gdn_k_heads,
                       "linear_num_key_heads", err));
    if (s->n_experts_used > s->n_experts)
        st = refuse(json_get(t, "num_experts_per_tok"), "num_experts_per_tok",
                    "at most num_experts", err);
fail:
    return st;
}

static calla_status check_layer_types(const model_shape *s, const json_value *t, calla_error *err)
{
    const json_value *types = json_get(t, "layer_types");
    if (absent(types)) return CALLA_OK;
    if (types->type != JSON_ARRAY || types->n_items != s->n_layers)
        return refuse(types, "layer_types", "an array of num_hidden_layers names", err);
    uint32_t i = 0;
    for (const json_value *v = types->first; v != NULL; v = v->next, i++) {
        const char *name = shape_is_full(s, i) ? "full_attention" : "linear_attention";
        if (!json_is(v, name)) {
            char key[40];
            (void)snprintf(key, sizeof key, "layer_types[%u]", i);
            return refuse(v, key, name, err);
        }
    }
    return CALLA_OK;
}

static calla_status read_positive(const json_value *v, const char *key, double max, float *out,
                                  calla_error *err)
{
    double d = 0;
    if (!json_double(v, &d) || !(d > 0) || d > max || !((float)d > 0))
        return refuse(v, key, "a positive number in range", err);
    *out = (float)d;
    return CALLA_OK;
}

/* A quarter of head_dim rotates, unscaled. Older files keep theta and factor beside rope_parameters
 * or without it; where a value is given twice, both must agree. */
static calla_status read_rope(model_shape *s, const json_value *t, calla_error *err)
{
    calla_status st;
    const json_value *rope = json_get(t, "rope_parameters");
    if (absent(rope)) rope = NULL;
    if (rope != NULL && rope->type != JSON_OBJECT)
        return refuse(rope, "rope_parameters", "an object", err);
    const json_value *places[2] = {rope, t};
    bool has_theta = false;
    for (int i = 0; i < 2; i++) {
        const json_value *f = json_get(places[i], "partial_rotary_factor");
        const json_value *theta = json_get(places[i], "rope_theta");
        double d = 0;
        if (!absent(f) && (!json_double(f, &d) || d * MODEL_HEAD_DIM != MODEL_ROTARY_DIM))
            return refuse(f, "partial_rotary_factor", "0.25", err);
        if (absent(theta)) continue;
        float x = 0;
        TRY(read_positive(theta, "rope_theta", 1e12, &x, err));
        if (has_theta && x != s->rope_theta)
            return refuse(theta, "rope_theta", "the value of rope_parameters", err);
        s->rope_theta = x;
        has_theta = true;
    }
    if (!has_theta) return refuse(NULL, "rope_theta", "a positive number", err);
    st = expect_text(rope, "rope_type", "default", err);
fail:
    return st;
}

static calla_status add_stop_id(model_shape *s, const json_value *v, const char *file,
                                calla_error *err)
{
    int64_t id = 0;
    if (!json_int(v, &id) || id < 0 || id >= (int64_t)s->n_vocab)
        return shape_refuse(v, file, "eos_token_id", "token ids below vocab_size", err);
    s->stop_ids[s->n_stop_ids++] = (int32_t)id;
    return CALLA_OK;
}

static calla_status read_stop_ids(model_shape *s, const json_value *config, const json_value *text,
                                  const json_value *generation, calla_error *err)
{
    const char *key = "eos_token_id";
    const json_value *v = json_get(generation, key);
    const char *file = absent(v) ? "config.json" : "generation_config.json";
    if (absent(v)) v = json_get(config, key);
    if (absent(v)) v = json_get(text, key);
    if (absent(v)) return refuse(NULL, key, "a token id or a list of them", err);
    if (v->type != JSON_ARRAY) return add_stop_id(s, v, file, err);
    if (v->n_items == 0 || v->n_items > MODEL_STOP_IDS_MAX)
        return shape_refuse(v, file, key, "1 to 16 token ids", err);
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        const calla_status st = add_stop_id(s, m, file, err);
        if (st != CALLA_OK) return st;
    }
    return CALLA_OK;
}

calla_status shape_read(model_shape *out, const json_value *config, const json_value *generation,
                        calla_error *err)
{
    calla_status st;
    const json_value *text = NULL;
    model_shape s = {0};
    memset(out, 0, sizeof *out);
    TRY(find_text(config, &text, err));
    TRY(check_fixed(config, text, err));
    TRY(read_dims(&s, text, err));
    TRY(check_dims(&s, text, err));
    TRY(check_layer_types(&s, text, err));
    TRY(read_positive(json_get(text, "rms_norm_eps"), "rms_norm_eps", 0.1, &s.rms_eps, err));
    TRY(read_rope(&s, text, err));
    TRY(read_stop_ids(&s, config, text, generation, err));
    *out = s;
fail:
    return st;
}

double shape_macs(const model_shape *s)
{
    const uint32_t n_full = s->n_layers / s->full_interval;
    const double h = s->hidden;
    const double gdn = h * (shape_conv_channels(s) + shape_gdn_v_width(s) + 2.0 * s->gdn_v_heads) +
                       h * shape_gdn_v_width(s);
    const double att =
        h * (2.0 * shape_q_width(s) + 2.0 * shape_kv_width(s)) + h * shape_q_width(s);
    const double moe = h * (s->n_experts + 1.0) + 3.0 * h * s->shared_width +
                       3.0 * h * s->expert_width * s->n_experts_used;
    return (s->n_layers - n_full) * gdn + n_full * att + s->n_layers * moe;
}
