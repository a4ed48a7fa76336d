/* Binding: layouts, quantisation, norms, byte counts, and every refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/weights.h"
#include "support/tiny_model.h"

typedef struct opened {
    checkpoint *ck;
    model_shape shape;
    model_weights w;
    calla_error err;
} opened;

static calla_status open_all(opened *o, const char *dir)
{
    memset(o, 0, sizeof *o);
    calla_status st = checkpoint_open(&o->ck, dir, &o->err);
    if (st == CALLA_OK)
        st = shape_read(&o->shape, checkpoint_config(o->ck), checkpoint_generation_config(o->ck),
                        &o->err);
    if (st == CALLA_OK) st = weights_bind(&o->w, o->ck, &o->shape, &o->err);
    return st;
}

static void close_all(opened *o)
{
    weights_unbind(&o->w);
    checkpoint_close(o->ck);
}

static void open_ok(opened *o, const char *dir)
{
    if (open_all(o, dir) != CALLA_OK) fail_msg("%s", o->err.message);
}

#define P "language_model.model."
#define L "language_model.model.layers."
#define H "model.language_model.layers."

/* ---- The full-size checkpoints, as sparse files ---- */

static void load_tsv(stw_list *l, const char *path, bool sharded)
{
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(file_read(path, 1 << 20, &text, &n, NULL), CALLA_OK);
    char *line = strchr(text, '\n') + 1; /* after the heading */
    while (*line != '\0') {
        char name[128], dtype[12], shape[48], shard[64] = "model-00001";
        unsigned long long bytes = 0;
        const int got =
            sscanf(line, "%127s %11s %47s %llu %63s", name, dtype, shape, &bytes, shard);
        assert_true(got == 5 || (!sharded && got == 4));
        stw_tensor *t = stw_add(l, name, dtype, shape, NULL);
        assert_int_equal(stw_bytes(t), bytes);
        t->shard = sharded ? (unsigned)strtoul(shard + strlen("model-"), NULL, 10) - 1
                           : (unsigned)(l->n * 8 / 1046); /* any of 8 */
        line = strchr(line, '\n') + 1;
    }
    mem_free(text);
}

static void write_real_config(const char *dir)
{
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(file_read("tests/data/qwen3.6/config.json", 1 << 20, &text, &n, NULL), 0);
    stw_write(dir, "config.json", text, n);
    mem_free(text);
}

static void test_real_mlx(void **state)
{
    (void)state;
    /* docs/MODEL.md, 3.2: rows of the byte table. */
    static const uint64_t expected[WEIGHT_GROUPS] = {286064640, 286064640, 568442880,  1977600,
                                                     153354240, 331776,    10240,      22282240,
                                                     87040,     70778880,  18119393280};
    stw_list l = {0};
    opened o;
    char *dir = stw_mkdir();
    load_tsv(&l, "tests/data/qwen3.6/mlx-tensors.tsv", true);
    stw_save(&l, dir, 4, true);
    write_real_config(dir);
    open_ok(&o, dir);
    assert_int_equal(checkpoint_count(o.ck), 2090);
    assert_int_equal(checkpoint_n_shards(o.ck), 4);
    assert_false(o.w.hf_layout);
    assert_int_equal(o.w.mapped_bytes, 19508787456u);
    assert_int_equal(o.w.active_bytes, 1669561728u);
    assert_int_equal(o.w.n_skipped_vision, 333);
    assert_int_equal(o.w.n_skipped_mtp, 0);
    assert_int_equal(o.w.skipped_bytes, 893142496u);
    weight_group g[WEIGHT_GROUPS];
    uint64_t n_tensors = 0;
    weights_groups(o.ck, g);
    for (uint32_t i = 0; i < WEIGHT_GROUPS; i++) {
        if (g[i].n_bytes != expected[i])
            fail_msg("%s: expected %llu bytes, found %llu", g[i].name,
                     (unsigned long long)expected[i], (unsigned long long)g[i].n_bytes);
        n_tensors += g[i].n_tensors;
    }
    assert_int_equal(n_tensors, 1757);
    assert_int_equal(o.w.layers[0].router.type, MAT_Q8);
    assert_int_equal(o.w.layers[39].shared_router.type, MAT_Q8);
    assert_int_equal(o.w.lm_head.type, MAT_Q4);
    /* Layer 20's in_proj_qkv: codes and scales in shard 2, biases in shard 3. */
    assert_ptr_equal(o.w.layers[20].in_qkv.biases,
                     checkpoint_find(o.ck, L "20.linear_attn.in_proj_qkv.biases")->data);
    close_all(&o);
    stw_free(&l);
    stw_rmdir(dir);
}

static void test_real_hf(void **state)
{
    (void)state;
    stw_list l = {0};
    opened o;
    char *dir = stw_mkdir();
    load_tsv(&l, "tests/data/qwen3.6/hf-tensors.tsv", false);
    stw_save(&l, dir, 8, false);
    write_real_config(dir);
    open_ok(&o, dir);
    assert_true(o.w.hf_layout);
    assert_int_equal(o.w.mapped_bytes, 69321221376u);
    assert_int_equal(o.w.n_skipped_vision, 333);
    assert_int_equal(o.w.n_skipped_mtp, 19);
    assert_int_equal(o.w.skipped_bytes, 893142496u + 1689281536u);
    assert_true(o.w.layers[0].input_norm[7] == 1.0f); /* 1 + 0 */
    assert_true(o.w.layers[0].gdn_norm[7] == 0.0f);   /* as stored */
    close_all(&o);
    stw_free(&l);
    stw_rmdir(dir);
}

/* ---- Values and pointers ---- */

static const st_tensor *tensor(const opened *o, const char *name)
{
    const st_tensor *t = checkpoint_find(o->ck, name);
    if (t == NULL) fail_msg("no tensor %s", name);
    return t;
}

static void put16(stw_list *l, const char *name, size_t i, uint16_t v)
{
    uint8_t *p = stw_find(l, name)->data + 2 * i;
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void test_mlx_values(void **state)
{
    (void)state;
    stw_list l = {0};
    opened o;
    char *dir = stw_mkdir();
    tiny_model(&l, false, 1);
    put16(&l, L "0.input_layernorm.weight", 3, 0x3fa0);    /* 1.25 */
    put16(&l, L "3.self_attn.q_norm.weight", 255, 0xbf80); /* -1 */
    put16(&l, L "0.linear_attn.conv1d.weight", 4, 0x4000); /* channel 1, tap 0: 2 */
    put16(&l, L "0.linear_attn.conv1d.weight", 7, 0x4040); /* channel 1, tap 3: 3 */
    put16(&l, L "0.linear_attn.A_log", 1, 0xc000);         /* -2 */
    for (size_t i = 0; i < l.n; i += 3)
        l.items[i].shard = (unsigned)(i % 2); /* parts of one matrix in two shards */
    stw_save(&l, dir, 2, true);
    stw_write_text(dir, "config.json", TINY_CONFIG);
    open_ok(&o, dir);
    const layer_weights *l0 = &o.w.layers[0], *l3 = &o.w.layers[3];
    assert_true(l0->input_norm[3] == 1.25f);
    assert_true(l3->q_norm[255] == -1.0f);
    assert_true(l0->conv[0 * 512 + 1] == 2.0f);
    assert_true(l0->conv[3 * 512 + 1] == 3.0f);
    assert_true(l0->a_log[1] == -2.0f);
    assert_int_equal((uintptr_t)l0->conv % 64, 0);
    assert_int_equal((uintptr_t)l0->dt_bias % 64, 0);

    assert_int_equal(l3->q.type, MAT_Q4);
    assert_int_equal(l3->q.rows, 1024);
    assert_int_equal(l3->q.cols, 64);
    assert_int_equal(l3->q.row_bytes, 32);
    assert_ptr_equal(l3->q.data, tensor(&o, L "3.self_attn.q_proj.weight")->data);
    assert_ptr_equal(l3->q.scales, tensor(&o, L "3.self_attn.q_proj.scales")->data);
    assert_ptr_equal(l3->q.biases, tensor(&o, L "3.self_attn.q_proj.biases")->data);
    assert_int_equal((uintptr_t)l3->q.data % 2, 1); /* odd addresses are fine */
    assert_int_equal(l0->router.type, MAT_Q8);
    assert_int_equal(l0->router.row_bytes, 64);
    assert_int_equal(l0->shared_router.rows, 1);
    assert_null(l3->in_qkv.data);
    assert_null(l0->q.data);

    const matrix e2 = expert_matrix(&l0->down, 2);
    assert_ptr_equal(e2.data,
                     tensor(&o, L "0.mlp.switch_mlp.down_proj.weight")->data + 2 * 64 * 32);
    assert_ptr_equal(e2.scales,
                     tensor(&o, L "0.mlp.switch_mlp.down_proj.scales")->data + 2 * 64 * 2);
    assert_ptr_equal(e2.biases,
                     tensor(&o, L "0.mlp.switch_mlp.down_proj.biases")->data + 2 * 64 * 2);
    uint64_t bytes = 0;
    for (size_t i = 0; i < l.n; i++)
        bytes += stw_bytes(&l.items[i]);
    assert_int_equal(o.w.mapped_bytes, bytes);
    close_all(&o);
    stw_free(&l);
    stw_rmdir(dir);
}

static void test_hf_values(void **state)
{
    (void)state;
    stw_list l = {0};
    opened o;
    char *dir = stw_mkdir();
    tiny_model(&l, true, 2);
    put16(&l, H "0.input_layernorm.weight", 3, 0x3e80);          /* 0.25 -> 1.25 */
    put16(&l, H "0.post_attention_layernorm.weight", 0, 0x3b80); /* 2^-8 -> 1 + 2^-8 in f32 */
    put16(&l, "model.language_model.norm.weight", 63, 0xbf80);   /* -1 -> 0 */
    put16(&l, H "3.self_attn.k_norm.weight", 1, 0x3f80);         /* 1 -> 2 */
    put16(&l, H "0.linear_attn.conv1d.weight", 4, 0x4000);
    const float norm = 0.3f; /* F32: not a bf16 number, not shifted */
    memcpy(stw_find(&l, H "0.linear_attn.norm.weight")->data + 4 * 5, &norm, 4);
    stw_save(&l, dir, 0, true);
    stw_write_text(dir, "config.json", TINY_CONFIG_HF);
    open_ok(&o, dir);
    const layer_weights *l0 = &o.w.layers[0];
    assert_true(o.w.hf_layout);
    assert_true(l0->input_norm[3] == 1.25f);
    assert_true(l0->post_norm[0] == 1.00390625f);
    assert_true(o.w.final_norm[63] == 0.0f);
    assert_true(o.w.layers[3].k_norm[1] == 2.0f);
    assert_true(l0->gdn_norm[5] == norm);
    assert_true(l0->conv[1] == 2.0f);
    assert_int_equal(l0->router.type, MAT_BF16);
    assert_int_equal(l0->router.row_bytes, 128);

    /* gate rows, then up rows, of each expert */
    const uint8_t *fused = tensor(&o, H "0.mlp.experts.gate_up_proj")->data;
    const matrix gate = expert_matrix(&l0->gate, 3), up = expert_matrix(&l0->up, 3);
    assert_ptr_equal(gate.data, fused + 3 * 128 * 128);
    assert_ptr_equal(up.data, fused + 3 * 128 * 128 + 64 * 128);
    assert_int_equal(gate.rows, 64);
    assert_int_equal(up.cols, 64);
    assert_null(gate.scales);
    assert_ptr_equal(expert_matrix(&l0->down, 1).data,
                     tensor(&o, H "0.mlp.experts.down_proj")->data + 64 * 128);
    close_all(&o);
    stw_free(&l);
    stw_rmdir(dir);
}

/* Replaces a quantised module by a plain one of the given dtype. */
static void make_plain(stw_list *l, const char *module, const char *dtype, const char *shape)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s.scales", module);
    stw_drop(l, stw_find(l, name));
    (void)snprintf(name, sizeof name, "%s.biases", module);
    stw_drop(l, stw_find(l, name));
    (void)snprintf(name, sizeof name, "%s.weight", module);
    stw_tensor *t = stw_find(l, name);
    mem_free(t->data);
    t->data = NULL;
    (void)snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    (void)snprintf(t->shape, sizeof t->shape, "%s", shape);
}

static void make_q4(stw_list *l, const char *name, const char *shape)
{
    stw_tensor *t = stw_find(l, name);
    (void)snprintf(t->shape, sizeof t->shape, "%s", shape);
}

/* Older and mixed conversions: 4-bit router, plain matrices, "false" overrides, MTP tensors. */
static void test_mixed(void **state)
{
    (void)state;
    stw_list l = {0};
    opened o;
    char *dir = stw_mkdir();
    tiny_model(&l, false, 3);
    make_q4(&l, L "0.mlp.gate.weight", "4x8");
    make_plain(&l, L "0.linear_attn.in_proj_a", "BF16", "2x64");
    make_plain(&l, L "1.linear_attn.in_proj_b", "F32", "2x64");
    make_plain(&l, L "3.mlp.switch_mlp.up_proj", "BF16", "4x64x64");
    (void)stw_add(&l, "mtp.fc.weight", "BF16", "2", "abcd");
    (void)stw_add(&l, "language_model.mtp.norm.weight", "BF16", "2", "abcd");
    (void)stw_add(&l, "vision_tower.x", "F16", "3", "abcdef");
    (void)stw_add(&l, "model.visual.y", "I64", "1", "abcdefgh");
    stw_save(&l, dir, 0, true);
    char *config = stw_replaced(TINY_CONFIG,
                                "\"language_model.model.layers.0.mlp.gate\":"
                                "{\"group_size\":64,\"bits\":8}",
                                "\"language_model.model.layers.0.linear_attn.in_proj_a\":false");
    stw_write_text(dir, "config.json", config);
    open_ok(&o, dir);
    assert_int_equal(o.w.layers[0].router.type, MAT_Q4);
    assert_int_equal(o.w.layers[1].router.type, MAT_Q8);
    assert_int_equal(o.w.layers[0].in_a.type, MAT_BF16);
    assert_int_equal(o.w.layers[1].in_b.type, MAT_F32);
    assert_int_equal(o.w.layers[1].in_b.row_bytes, 256);
    assert_int_equal(o.w.layers[3].up.first.type, MAT_BF16);
    assert_int_equal(o.w.layers[3].up.data_stride, 64 * 128);
    assert_int_equal(o.w.layers[3].up.param_stride, 0);
    assert_int_equal(o.w.n_skipped_mtp, 2);
    assert_int_equal(o.w.n_skipped_vision, 2);
    assert_int_equal(o.w.skipped_bytes, 4 + 4 + 6 + 8);
    close_all(&o);
    mem_free(config);
    stw_free(&l);
    stw_rmdir(dir);
}

/* ---- Refusals ---- */

typedef enum change { DROP, DTYPE, SHAPE, RENAME, ADD, CONFIG } change;

static const struct {
    change what;
    const char *a, *b; /* tensor and new value; text of config.json and its replacement */
    const char *sentence;
    bool hf;
} refusals[] = {
    {DROP, L "1.mlp.gate.weight", "", "tensor " L "1.mlp.gate.weight is missing", 0},
    {DROP, L "1.mlp.gate.biases", "", "tensor " L "1.mlp.gate.biases is missing", 0},
    {DROP, L "1.mlp.gate.scales", "",
     "tensor " L "1.mlp.gate.weight: expected dtype BF16 or F32, "
     "found U32",
     0},
    {DROP, P "norm.weight", "", "tensor " P "norm.weight is missing", 0},
    {DROP, L "0.linear_attn.conv1d.weight", "", "conv1d.weight is missing", 0},
    {DROP, L "2.linear_attn.A_log", "", "tensor " L "2.linear_attn.A_log is missing", 0},
    {DROP, P "embed_tokens.weight", "",
     "expected a tensor " P "embed_tokens.weight or "
     "model.language_model.embed_tokens.weight, found neither",
     0},
    {DROP, "language_model.lm_head.weight", "", "language_model.lm_head.weight is missing", 0},
    {DROP, H "1.mlp.experts.down_proj", "", "tensor " H "1.mlp.experts.down_proj is missing", 1},
    {DTYPE, L "0.input_layernorm.weight", "F16",
     "tensor " L "0.input_layernorm.weight: expected dtype BF16 or F32, found F16", 0},
    {DTYPE, L "0.linear_attn.conv1d.weight", "I16", "expected dtype BF16 or F32, found I16", 0},
    {DTYPE, L "0.linear_attn.in_proj_z.weight", "I32", "expected dtype U32, found I32", 0},
    {DTYPE, L "0.linear_attn.in_proj_z.scales", "F16", "expected dtype BF16, found F16", 0},
    {DTYPE, L "0.linear_attn.in_proj_z.biases", "F16", "expected dtype BF16, found F16", 0},
    {DTYPE, H "0.mlp.experts.gate_up_proj", "F16", "expected dtype BF16 or F32, found F16", 1},
    {SHAPE, L "0.input_layernorm.weight", "65", "expected shape [64], found [65]", 0},
    {SHAPE, L "0.input_layernorm.weight", "1x64", "expected shape [64], found [1, 64]", 0},
    {SHAPE, L "0.input_layernorm.weight", "", "expected shape [64], found []", 0},
    {SHAPE, L "0.linear_attn.conv1d.weight", "512x2x2",
     "expected shape [512, 4, 1], found "
     "[512, 2, 2]",
     0},
    {SHAPE, L "1.linear_attn.conv1d.weight", "512x1x4",
     "tensor " L "1.linear_attn.conv1d.weight: "
     "expected shape [512, 4, 1], found "
     "[512, 1, 4]",
     0},
    {SHAPE, L "3.self_attn.q_proj.weight", "512x8", "expected shape [1024, 8], found [512, 8]", 0},
    {SHAPE, L "3.self_attn.q_proj.weight", "1024x9", "expected shape [1024, 8], found [1024, 9]",
     0},
    {SHAPE, L "3.self_attn.q_proj.weight", "", "expected shape [1024, 8], found []", 0},
    {SHAPE, L "3.self_attn.q_proj.scales", "1024x2", "expected shape [1024, 1], found [1024, 2]",
     0},
    {SHAPE, L "3.self_attn.q_proj.biases", "1024", "expected shape [1024, 1], found [1024]", 0},
    {SHAPE, L "3.self_attn.q_proj.weight", "1024x16",
     "tensor " L "3.self_attn.q_proj.weight: expected 4-bit codes by config.json, found 8-bit by "
     "its shape",
     0},
    {SHAPE, L "1.mlp.gate.weight", "4x8",
     "tensor " L "1.mlp.gate.weight: expected 8-bit codes by "
     "config.json, found 4-bit by its shape",
     0},
    {SHAPE, L "0.mlp.switch_mlp.up_proj.weight", "3x64x8",
     "expected shape [4, 64, 8], found [3, 64, 8]", 0},
    {SHAPE, H "0.mlp.experts.gate_up_proj", "4x64x64",
     "expected shape [4, 128, 64], found [4, 64, 64]", 1},
    {SHAPE, H "1.linear_attn.conv1d.weight", "512x4x1",
     "expected shape [512, 1, 4], found "
     "[512, 4, 1]",
     1},
    {RENAME, L "0.mlp.gate.weight", L "0.mlp.gates.weight", "mlp.gate.weight is missing", 0},
    {ADD, L "4.input_layernorm.weight", "64",
     "tensor " L "4.input_layernorm.weight has no place in a model of 4 layers", 0},
    {ADD, L "0.mlp.gate.bias", "4", "tensor " L "0.mlp.gate.bias has no place", 0},
    {ADD, "model.language_model.embed_tokens.weight", "4", "embed_tokens.weight, found both", 0},
    {ADD, H "0.mlp.experts.gate_up_proj.scales", "4", "gate_up_proj.scales has no place", 1},
    {CONFIG, "\"group_size\":64,\"bits\":4", "\"group_size\":32,\"bits\":4",
     "config.json: quantization group_size of " P "embed_tokens: expected 64, found 32", 0},
    {CONFIG, "\"bits\":4", "\"bits\":3",
     "quantization bits of " P "embed_tokens: expected 4 or 8, "
     "found 3",
     0},
    {CONFIG, "\"bits\":4", "\"bits\":\"4\"", "expected 4 or 8, found \"4\"", 0},
    {CONFIG, "\"bits\":4,", "", "expected 4 or 8, found nothing", 0},
    {CONFIG, "\"affine\"", "\"mxfp4\"",
     "config.json: quantization mode: expected affine, found \"mxfp4\"", 0},
    {CONFIG, "\"affine\"", "\"nvfp4\"", "expected affine, found \"nvfp4\"", 0},
    {CONFIG, "\"affine\"", "4", "expected affine, found 4", 0},
    {CONFIG, "\"affine\"", "\"a\\u001b[2J\\u009b\"", "expected affine, found \"a\\u001b[2J??\"", 0},
    {CONFIG, "\"quantization\"",
     "\"quantization_config\":{\"group_size\":64,\"bits\":8,\"mode\":\"affine\"},\"quantization\"",
     "config.json: quantization_config bits of " P
     "embed_tokens: expected 4 as in quantization, found 8",
     0},
    {CONFIG, "\"quantization\"",
     "\"quantization_config\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"},\"quantization\"",
     "quantization_config bits of " L "0.mlp.gate: expected 8 as in quantization, found 4", 0},
    {CONFIG, TINY_QUANT, TINY_QUANT "\"quantization_config\":{},",
     "config.json: quantization_config group_size of " P "embed_tokens: expected 64, found nothing",
     0},
    {CONFIG, TINY_QUANT, TINY_QUANT "\"quantization_config\":{\"mode\":\"mxfp4\"},",
     "config.json: quantization_config mode: expected affine, found \"mxfp4\"", 0},
    {CONFIG, TINY_QUANT, TINY_QUANT "\"quantization_config\":4,",
     "quantization_config: expected an object, found 4", 0},
    {CONFIG, "{\"bits\":8}", "{\"bits\":8,\"mode\":\"mxfp8\"}",
     "quantization mode of " L "1.mlp.gate: expected affine, found \"mxfp8\"", 0},
    {CONFIG, "{\"bits\":8}", "false",
     "tensor " L "1.mlp.gate.scales: expected none because "
     "config.json does not quantise this matrix",
     0},
    {CONFIG, "{\"bits\":8}", "8",
     "quantization of " L "1.mlp.gate: expected an object, true or false, found 8", 0},
    {CONFIG, "{\"bits\":8}", "{\"bits\":4}", "expected 4-bit codes by config.json, found 8-bit", 0},
    {CONFIG, TINY_QUANT, "", ".scales: expected none because config.json does not quantise", 0},
    {CONFIG, TINY_QUANT, "\"quantization\":7,", "quantization: expected an object, found 7", 0},
    {CONFIG, "\"group_size\":64,\"bits\":4", "\"quant_method\":\"fp8\",\"bits\":4",
     "quant_method: expected none, as MLX writes, found \"fp8\"", 0},
    {CONFIG, TINY_QUANT, "\"quantization_config\":{\"quant_method\":\"gptq\"},",
     "quant_method: expected none, as MLX writes, found \"gptq\"", 0},
    {CONFIG, "\"num_hidden_layers\":4", "\"num_hidden_layers\":3", "layer_types", 0},
    {CONFIG, "\"vocab_size\":96", "\"vocab_size\":95",
     "tensor " P "embed_tokens.scales: expected shape [95, 1], found [96, 1]", 0},
    {CONFIG, "\"hidden_size\":64", "\"hidden_size\":128",
     "embed_tokens.scales: expected shape "
     "[96, 2], found [96, 1]",
     0},
    {CONFIG, "\"num_experts\":4", "\"num_experts\":8",
     "mlp.gate.scales: expected shape [8, 1], "
     "found [4, 1]",
     0},
    {CONFIG, "\"linear_num_value_heads\":2", "\"linear_num_value_heads\":4",
     "expected shape [768, 1], found [512, 1]", 0},
};

static void apply_change(stw_list *l, size_t i, const char *dir)
{
    const bool is_config = refusals[i].what == CONFIG;
    const char *base = refusals[i].hf ? TINY_CONFIG_HF : TINY_CONFIG;
    const char *a = refusals[i].a, *b = refusals[i].b;
    char *config = is_config ? stw_replaced(base, a, b) : mem_strdup(base);
    stw_write_text(dir, "config.json", config);
    mem_free(config);
    if (is_config) return;
    stw_tensor *t = refusals[i].what == ADD ? stw_add(l, a, "U8", b, NULL) : stw_find(l, a);
    if (refusals[i].what == DROP) {
        stw_drop(l, t);
        return;
    }
    mem_free(t->data);
    t->data = NULL;
    if (refusals[i].what == DTYPE) (void)snprintf(t->dtype, sizeof t->dtype, "%s", b);
    if (refusals[i].what == SHAPE) (void)snprintf(t->shape, sizeof t->shape, "%s", b);
    if (refusals[i].what == RENAME) (void)snprintf(t->name, sizeof t->name, "%s", b);
}

static void test_refusals(void **state)
{
    (void)state;
    char *dir = stw_mkdir();
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        stw_list l = {0};
        opened o;
        tiny_model(&l, refusals[i].hf, 4);
        apply_change(&l, i, dir);
        stw_save(&l, dir, 0, false);
        const calla_status st = open_all(&o, dir);
        if (st == CALLA_OK || strstr(o.err.message, refusals[i].sentence) == NULL)
            fail_msg("%zu: expected \"%s\", found \"%s\"", i, refusals[i].sentence,
                     st == CALLA_OK ? "ok" : o.err.message);
        assert_true(st == CALLA_ERR_UNSUPPORTED || st == CALLA_ERR_FORMAT);
        assert_int_equal(o.err.code, st);
        assert_null(o.w.layers);
        close_all(&o);
        stw_free(&l);
    }
    stw_rmdir(dir);
}

/* Every allocation of open, shape and bind fails once. */
static void test_out_of_memory(void **state)
{
    (void)state;
    char *dir = stw_mkdir();
    stw_list l = {0};
    tiny_model(&l, false, 5);
    l.items[4].shard = 1;
    stw_save(&l, dir, 2, true);
    stw_write_text(dir, "config.json", TINY_CONFIG);
    stw_write_text(dir, "generation_config.json", "{\"eos_token_id\":5}");
    stw_free(&l);
    calla_status st = CALLA_ERR_MEMORY;
    int64_t k = 0;
    for (; st != CALLA_OK; k++) {
        opened o;
        mem_fail_after(k);
        st = open_all(&o, dir);
        mem_fail_after(-1);
        if (st != CALLA_OK && st != CALLA_ERR_MEMORY) fail_msg("%s", o.err.message);
        close_all(&o);
        assert_true(k < 100000);
    }
    assert_true(k > 50);
    stw_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_mlx),      cmocka_unit_test(test_real_hf),
        cmocka_unit_test(test_mlx_values),    cmocka_unit_test(test_hf_values),
        cmocka_unit_test(test_mixed),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
