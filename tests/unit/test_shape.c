/* config.json: what is read, and every value that contradicts the architecture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "model/shape.h"
#include "support/tiny_model.h"

static calla_status read_shape(const char *config, const char *generation, model_shape *s,
                               calla_error *err)
{
    json_doc c = {0}, g = {0};
    assert_int_equal(json_parse(&c, config, strlen(config), NULL, err), CALLA_OK);
    if (generation != NULL)
        assert_int_equal(json_parse(&g, generation, strlen(generation), NULL, err), CALLA_OK);
    const calla_status st = shape_read(s, c.root, g.root, err);
    json_free(&c);
    json_free(&g);
    return st;
}

static void test_real(void **state)
{
    (void)state;
    char *config = NULL, *generation = NULL;
    size_t n = 0;
    calla_error err = {0};
    model_shape s;
    assert_int_equal(file_read("tests/data/qwen3.6/config.json", 1 << 20, &config, &n, &err), 0);
    assert_int_equal(
        file_read("tests/data/qwen3.6/generation_config.json", 1 << 20, &generation, &n, &err), 0);
    assert_int_equal(read_shape(config, generation, &s, &err), CALLA_OK);
    assert_int_equal(s.n_layers, 40);
    assert_int_equal(s.hidden, 2048);
    assert_int_equal(s.n_vocab, 248320);
    assert_int_equal(s.max_context, 262144);
    assert_int_equal(s.full_interval, 4);
    assert_int_equal(s.n_heads, 16);
    assert_int_equal(s.n_kv_heads, 2);
    assert_int_equal(s.head_dim, 256);
    assert_int_equal(s.rotary_dim, 64);
    assert_int_equal(s.gdn_k_heads, 16);
    assert_int_equal(s.gdn_v_heads, 32);
    assert_int_equal(s.gdn_k_dim, 128);
    assert_int_equal(s.gdn_v_dim, 128);
    assert_int_equal(s.conv_kernel, 4);
    assert_int_equal(s.n_experts, 256);
    assert_int_equal(s.n_experts_used, 8);
    assert_int_equal(s.expert_width, 512);
    assert_int_equal(s.shared_width, 512);
    assert_true(s.rms_eps == 1e-6f);
    assert_true(s.rope_theta == 1e7f);
    assert_int_equal(s.n_stop_ids, 2);
    assert_int_equal(s.stop_ids[0], 248046);
    assert_int_equal(s.stop_ids[1], 248044);
    assert_int_equal(shape_conv_channels(&s), 8192);
    assert_int_equal(shape_q_width(&s), 4096);
    assert_int_equal(shape_kv_width(&s), 512);
    int n_full = 0;
    for (uint32_t i = 0; i < s.n_layers; i++)
        n_full += shape_is_full(&s, i);
    assert_int_equal(n_full, 10);
    assert_false(shape_is_full(&s, 2));
    assert_true(shape_is_full(&s, 3));
    mem_free(config);
    mem_free(generation);
}

static void test_stop_ids(void **state)
{
    (void)state;
    model_shape s;
    calla_error err = {0};
    assert_int_equal(read_shape(TINY_CONFIG, NULL, &s, &err), CALLA_OK);
    assert_int_equal(s.n_stop_ids, 1);
    assert_int_equal(s.stop_ids[0], 7);
    char *top = stw_replaced(TINY_CONFIG, "{", "{\"eos_token_id\":[1,2],");
    assert_int_equal(read_shape(top, NULL, &s, &err), CALLA_OK);
    assert_int_equal(s.n_stop_ids, 2);
    assert_int_equal(read_shape(top, "{\"eos_token_id\":3}", &s, &err), CALLA_OK);
    assert_int_equal(s.n_stop_ids, 1);
    assert_int_equal(s.stop_ids[0], 3);
    assert_int_equal(read_shape(top, "{}", &s, &err), CALLA_OK);
    assert_int_equal(s.n_stop_ids, 2);
    assert_int_equal(read_shape(top, "{\"eos_token_id\":[96]}", &s, &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "generation_config.json: eos_token_id: expected token ids "
                                        "below vocab_size, found 96"));
    assert_int_equal(read_shape(top, "{\"eos_token_id\":[]}", &s, &err), CALLA_ERR_UNSUPPORTED);
    static const char many[] = "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}";
    assert_int_equal(read_shape(top, many, &s, &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "expected 1 to 16 token ids, found an array of 17"));
    mem_free(top);
}

/* A flat configuration, theta beside the rope block, absent optional values. */
static void test_variants(void **state)
{
    (void)state;
    model_shape s;
    calla_error err = {0};
    char *flat = stw_replaced(TINY_CONFIG_HF,
                              "{\"model_type\":\"qwen3_5_moe\",\"tie_word_embeddings\":false,"
                              "\"text_config\":",
                              "");
    flat[strlen(flat) - 1] = '\0';
    assert_int_equal(read_shape(flat, NULL, &s, &err), CALLA_OK);
    mem_free(flat);
    char *old = stw_replaced(TINY_CONFIG,
                             "\"rope_parameters\":{\"partial_rotary_factor\":0.25,\"rope_theta\":"
                             "10000000,\"rope_type\":\"default\"}",
                             "\"rope_theta\":1e7");
    assert_int_equal(read_shape(old, NULL, &s, &err), CALLA_OK);
    assert_true(s.rope_theta == 1e7f);
    mem_free(old);
    char *bare = stw_replaced(TINY_CONFIG, "\"hidden_act\":\"silu\",", "");
    assert_int_equal(read_shape(bare, NULL, &s, &err), CALLA_OK);
    mem_free(bare);
}

typedef struct contradiction {
    const char *from, *to, *sentence;
} contradiction;

#define NUM(key, old, new, sentence)                                                               \
    {                                                                                              \
        "\"" key "\":" old, "\"" key "\":" new, "config.json: " key ": expected " sentence         \
    }

static const contradiction contradictions[] = {
    {"\"qwen3_5_moe\"", "\"qwen3_next\"",
     "config.json: model_type: expected qwen3_5_moe, found \"qwen3_next\""},
    {"\"qwen3_5_moe_text\"", "\"llama\"", "model_type: expected qwen3_5_moe_text, found \"llama\""},
    {"\"model_type\":\"qwen3_5_moe\",", "", "model_type: expected qwen3_5_moe, found nothing"},
    NUM("attention_bias", "false", "true", "false, found true"),
    NUM("attn_output_gate", "true", "false", "true, found false"),
    NUM("hidden_act", "\"silu\"", "\"gelu\"", "silu, found \"gelu\""),
    NUM("mamba_ssm_dtype", "\"float32\"", "\"bfloat16\"", "float32, found \"bfloat16\""),
    NUM("tie_word_embeddings", "false", "true", "false, found true"),
    NUM("head_dim", "256", "128", "256, found 128"),
    NUM("linear_key_head_dim", "128", "64", "128, found 64"),
    NUM("linear_value_head_dim", "128", "256", "128, found 256"),
    NUM("linear_conv_kernel_dim", "4", "3", "4, found 3"),
    NUM("hidden_size", "64", "96", "a multiple of 64, found 96"),
    NUM("hidden_size", "64", "0", "a whole number from 64 to 65536, found 0"),
    NUM("hidden_size", "64", "64.5", "a whole number from 64 to 65536, found 64.5"),
    NUM("hidden_size", "64", "-64", "a whole number from 64 to 65536, found -64"),
    NUM("hidden_size", "64", "1e99", "a whole number from 64 to 65536, found 1e+99"),
    NUM("hidden_size", "64", "\"64\"", "a whole number from 64 to 65536, found \"64\""),
    NUM("hidden_size", "64", "[64]", "a whole number from 64 to 65536, found an array of 1"),
    NUM("moe_intermediate_size", "64", "65", "a multiple of 64, found 65"),
    NUM("shared_expert_intermediate_size", "64", "100", "a multiple of 64, found 100"),
    NUM("num_key_value_heads", "1", "0", "a whole number from 1 to 256, found 0"),
    {"\"num_key_value_heads\":1", "\"num_key_value_heads\":3",
     "num_attention_heads: expected a multiple of num_key_value_heads 3, found 2"},
    {"\"linear_num_key_heads\":1", "\"linear_num_key_heads\":4",
     "linear_num_value_heads: expected a multiple of linear_num_key_heads 4, found 2"},
    NUM("num_experts_per_tok", "2", "5", "at most num_experts, found 5"),
    NUM("num_experts_per_tok", "2", "33", "a whole number from 1 to 32, found 33"),
    NUM("num_experts", "4", "1025", "a whole number from 1 to 1024, found 1025"),
    NUM("num_hidden_layers", "4", "257", "a whole number from 1 to 256, found 257"),
    {"\"num_hidden_layers\":4", "\"num_hidden_layers\":8",
     "layer_types: expected an array of num_hidden_layers names, found an array of 4"},
    NUM("vocab_size", "96", "null", "a whole number from 1 to 16777216, found null"),
    NUM("full_attention_interval", "4", "1", "a whole number from 2 to 256, found 1"),
    {"\"full_attention_interval\":4", "\"full_attention_interval\":2",
     "layer_types[1]: expected full_attention, found \"linear_attention\""},
    {"\"full_attention\"]", "\"sliding_attention\"]",
     "layer_types[3]: expected full_attention, found \"sliding_attention\""},
    NUM("rms_norm_eps", "1e-06", "0", "a positive number in range, found 0"),
    NUM("rms_norm_eps", "1e-06", "-1e-06", "a positive number in range, found -1e-06"),
    NUM("partial_rotary_factor", "0.25", "0.5", "0.25, found 0.5"),
    {"\"partial_rotary_factor\":0.25,\"rope_theta\"", "\"partial_rotary_factor\":1,\"rope_theta\"",
     "partial_rotary_factor: expected 0.25, found 1"},
    NUM("rope_type", "\"default\"", "\"yarn\"", "default, found \"yarn\""),
    {"\"rope_theta\":10000000,", "", "rope_theta: expected a positive number, found nothing"},
    {"\"rms_norm_eps\"", "\"rope_theta\":1e4,\"rms_norm_eps\"",
     "rope_theta: expected the value of rope_parameters, found 10000.0"},
    {"\"rms_norm_eps\"", "\"norm_topk_prob\":false,\"rms_norm_eps\"",
     "norm_topk_prob: expected true, found false"},
    {"\"rms_norm_eps\"", "\"decoder_sparse_step\":2,\"rms_norm_eps\"",
     "decoder_sparse_step: expected 1, found 2"},
    {"\"rms_norm_eps\"", "\"mlp_only_layers\":[1],\"rms_norm_eps\"",
     "mlp_only_layers: expected it to be absent"},
    {"\"rms_norm_eps\"", "\"rope_scaling\":{\"type\":\"yarn\"},\"rms_norm_eps\"",
     "rope_scaling: expected it to be absent"},
    {"\"text_config\":{", "\"text_config\":7,\"x\":{", "text_config: expected an object, found 7"},
    {"\"eos_token_id\":7,", "",
     "eos_token_id: expected a token id or a list of them, found nothing"},
};

static void test_contradictions(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
        const contradiction *c = &contradictions[i];
        char *config = stw_replaced(TINY_CONFIG, c->from, c->to);
        model_shape s;
        calla_error err = {0};
        const calla_status st = read_shape(config, NULL, &s, &err);
        if (st == CALLA_OK || strstr(err.message, c->sentence) == NULL)
            fail_msg("expected \"%s\", found \"%s\"", c->sentence,
                     st == CALLA_OK ? "ok" : err.message);
        assert_int_equal(st, CALLA_ERR_UNSUPPORTED);
        assert_int_equal(s.n_layers, 0);
        mem_free(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_contradictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
