/* Quantising: the demonstration model's own weights, every tensor of a tiny model by the formula
 * written out, shards, the MTP head, and everything that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include "format/affine.h"
#include "model/quantize.h"
#include "model/weights.h"
#include "support/st_writer.h"
#include "support/tiny_model.h"

static const st_tensor *must_find(const checkpoint *ck, const char *name)
{
    const st_tensor *t = checkpoint_find(ck, name);
    if (t == NULL) fail_msg("no tensor %s", name);
    return t;
}

/* ---- The demonstration model ---- */

static void check_group(const st_tensor *src, const safetensors *want, const char *module,
                        uint32_t bits)
{
    char name[128];
    const st_tensor *part[3];
    static const char *const suffix[] = {".weight", ".scales", ".biases"};
    for (int k = 0; k < 3; k++) {
        (void)snprintf(name, sizeof name, "%s%s", module, suffix[k]);
        part[k] = safetensors_find(want, name);
        assert_non_null(part[k]);
    }
    const uint32_t bytes = 8 * bits;
    for (uint64_t g = 0; g < src->n_bytes / 128; g++) {
        float w[64];
        uint8_t codes[64];
        for (size_t i = 0; i < 64; i++)
            w[i] = load_bf16(src->data + g * 128 + 2 * i);
        const affine a = affine_fit(w, bits);
        affine_codes(w, a, bits, codes);
        assert_int_equal(f32_to_bf16(a.scale), load_le16(part[1]->data + 2 * g));
        assert_int_equal(f32_to_bf16(a.bias), load_le16(part[2]->data + 2 * g));
        assert_memory_equal(codes, part[0]->data + g * bytes, bytes);
    }
}

static void test_demo_model(void **state)
{
    (void)state;
    static const struct {
        const char *part;
        uint32_t bits;
    } all[] = {{"linear_attn.in_proj_b", 4}, {"mlp.shared_expert_gate", 8}, {"mlp.gate", 8}};
    safetensors *src = NULL, *want = NULL;
    calla_error err;
    assert_int_equal(safetensors_open(&src, "tests/data/quantize/source.safetensors", &err), 0);
    assert_int_equal(safetensors_open(&want, "models/nano/model.safetensors", &err), 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char from[128], to[128];
        (void)snprintf(from, sizeof from, "model.language_model.layers.0.%s.weight", all[i].part);
        (void)snprintf(to, sizeof to, "language_model.model.layers.0.%s", all[i].part);
        check_group(safetensors_find(src, from), want, to, all[i].bits);
    }
    safetensors_close(src);
    safetensors_close(want);
}

/* ---- Groups at the edges ---- */

static void test_groups(void **state)
{
    (void)state;
    float w[64] = {0};
    uint8_t q[64];
    affine a = affine_fit(w, 4); /* all zero */
    assert_true(a.bias == 0.0f && a.scale == -1e-7f);
    affine_codes(w, a, 4, q);
    for (int i = 0; i < 32; i++)
        assert_int_equal(q[i], 0);
    for (int i = 0; i < 64; i++)
        w[i] = (float)(i % 16) - 15; /* -15 .. 0: exact */
    a = affine_fit(w, 4);
    assert_true(a.scale == 1.0f && a.bias == -15.0f);
    affine_codes(w, a, 4, q);
    for (int i = 0; i < 32; i++)
        assert_int_equal(q[i], 2 * i % 16 | (2 * i + 1) % 16 << 4);
    for (int i = 0; i < 64; i++)
        w[i] = (float)(i % 16); /* 0 .. 15: a negative scale counts down from the largest */
    a = affine_fit(w, 4);
    assert_true(a.scale == -1.0f && a.bias == 15.0f);
    for (int i = 0; i < 64; i++)
        w[i] = -2.0f + (float)i / 64; /* all negative: zero is within the range all the same */
    a = affine_fit(w, 8);
    assert_true(a.bias == -2.0f);
    assert_true(fabsf(a.scale - 2.0f / 255) < 1e-6f);
    for (int i = 0; i < 64; i++)
        w[i] = 0.5f + (float)(i % 15); /* halves go to the even code */
    affine_codes(w, (affine){1.0f, 0.0f}, 8, q);
    for (int i = 0; i < 64; i++)
        assert_int_equal(q[i], (i % 15 + 1) / 2 * 2);
}

/* ---- A tiny model ---- */

typedef struct fixture {
    char *dir, *hf, *out;
    stw_list list;
    quantize_options o;
    quantize_result r;
    calla_error err;
} fixture;

static void begin(fixture *f)
{
    *f = (fixture){.dir = stw_mkdir(), .o = {.n_threads = 2}};
    f->hf = path_join(f->dir, "hf");
    f->out = path_join(f->dir, "out");
    assert_int_equal(mkdir(f->hf, 0700), 0);
    tiny_model(&f->list, true, 11);
}

static void save(fixture *f)
{
    stw_write_text(f->hf, "config.json", TINY_CONFIG_HF);
    stw_write_text(f->hf, "tokenizer.json", "{\"any\": 1}");
    stw_save(&f->list, f->hf, 0, true);
}

static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    if (d == NULL) return;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (e->d_name[0] != '.') stw_remove(dir, e->d_name);
    (void)closedir(d);
    assert_int_equal(rmdir(dir), 0);
}

/* Nothing but hf may be left in the folder of the test. */
static void end(fixture *f)
{
    remove_folder(f->hf);
    if (rmdir(f->dir) != 0) fail_msg("something is left in %s", f->dir);
    stw_free(&f->list);
    mem_free(f->hf);
    mem_free(f->out);
    mem_free(f->dir);
}

static calla_status run(fixture *f)
{
    return quantize_write(f->hf, f->out, &f->o, &f->r, &f->err);
}

static void run_ok(fixture *f)
{
    if (run(f) != CALLA_OK) fail_msg("%s", f->err.message);
}

static void refused(fixture *f, calla_status code, const char *words)
{
    save(f);
    const calla_status st = run(f);
    if (st != code || strstr(f->err.message, words) == NULL)
        fail_msg("expected status %d with \"%s\", found %d: %s", code, words, st, f->err.message);
    end(f);
}

/* docs/MODEL.md section 4, one weight after another. */
static void check_module(const checkpoint *ck, const char *module, const float *w, size_t n,
                         uint32_t bits)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s.weight", module);
    const st_tensor *codes = must_find(ck, name);
    (void)snprintf(name, sizeof name, "%s.scales", module);
    const st_tensor *scales = must_find(ck, name);
    (void)snprintf(name, sizeof name, "%s.biases", module);
    const st_tensor *biases = must_find(ck, name);
    assert_int_equal(codes->n_bytes, n * bits / 8);
    assert_int_equal(scales->n_bytes, n / 32);
    const float top = bits == 4 ? 15 : 255;
    for (size_t i = 0; i < n; i++) {
        const float *g = w + i / 64 * 64;
        float lo = 0, hi = 0;
        for (int k = 0; k < 64; k++) {
            lo = fminf(lo, g[k]);
            hi = fmaxf(hi, g[k]);
        }
        const float step = (hi - lo) * (1 / top), edge = -lo > hi ? lo : hi;
        const float s = edge / rintf(edge / (-lo > hi ? step : -step));
        const float code = fminf(fmaxf(rintf((w[i] - edge) / s), 0), top);
        const unsigned found = bits == 8 ? codes->data[i] : codes->data[i / 2] >> 4 * (i & 1) & 15;
        if ((unsigned)code != found)
            fail_msg("%s, weight %zu: expected %g, found %u", module, i, (double)code, found);
        assert_int_equal(load_le16(scales->data + i / 64 * 2), f32_to_bf16(s));
        assert_int_equal(load_le16(biases->data + i / 64 * 2), f32_to_bf16(edge));
    }
}

static float *values(fixture *f, const char *name, size_t *n)
{
    const stw_tensor *t = stw_find(&f->list, name);
    assert_non_null(t);
    *n = stw_bytes(t) / 2;
    float *w = mem_array(*n, sizeof *w);
    for (size_t i = 0; i < *n; i++)
        w[i] = load_bf16(t->data + 2 * i);
    return w;
}

static void check_matrix(fixture *f, const checkpoint *ck, const char *from, const char *to,
                         uint32_t bits)
{
    size_t n;
    float *w = values(f, from, &n);
    check_module(ck, to, w, n, bits);
    mem_free(w);
}

/* Expert e has rows 0 .. 63 gate, 64 .. 127 up. */
static void check_experts(fixture *f, const checkpoint *ck)
{
    size_t n;
    float *all = values(f, "model.language_model.layers.1.mlp.experts.gate_up_proj", &n);
    float *half = mem_array(n / 2, sizeof *half);
    for (int up = 0; up < 2; up++) {
        for (size_t e = 0; e < 4; e++)
            memcpy(half + e * 64 * 64, all + (2 * e + (size_t)up) * 64 * 64,
                   64 * 64 * sizeof *half);
        check_module(ck,
                     up == 0 ? "language_model.model.layers.1.mlp.switch_mlp.gate_proj"
                             : "language_model.model.layers.1.mlp.switch_mlp.up_proj",
                     half, n / 2, 4);
    }
    mem_free(all);
    mem_free(half);
}

static void test_tiny(void **state)
{
    (void)state;
    fixture f;
    checkpoint *ck = NULL;
    model_shape s;
    model_weights w;
    begin(&f);
    tiny_rng r = {5};
    tiny_add(&f.list, &r, "", "model.visual.blocks.0.norm1.weight", "BF16", "16");
    tiny_add(&f.list, &r, "", "mtp.norm.weight", "BF16", "64");
    save(&f);
    run_ok(&f);
    assert_int_equal(f.r.n_vision, 1);
    assert_int_equal(f.r.n_mtp, 1);
    assert_int_equal(checkpoint_open(&ck, f.out, &f.err), CALLA_OK);
    if (shape_read(&s, checkpoint_config(ck), NULL, &f.err) != CALLA_OK)
        fail_msg("%s", f.err.message);
    if (weights_bind(&w, ck, &s, &f.err) != CALLA_OK) fail_msg("%s", f.err.message);
    assert_int_equal(w.embed.type, MAT_Q4);
    assert_int_equal(w.layers[0].router.type, MAT_Q8);
    assert_int_equal(w.mapped_bytes, f.r.bytes_out);
    weights_unbind(&w);
    check_matrix(&f, ck, "lm_head.weight", "language_model.lm_head", 4);
    check_matrix(&f, ck, "model.language_model.layers.3.self_attn.q_proj.weight",
                 "language_model.model.layers.3.self_attn.q_proj", 4);
    check_matrix(&f, ck, "model.language_model.layers.2.mlp.gate.weight",
                 "language_model.model.layers.2.mlp.gate", 8);
    check_matrix(&f, ck, "model.language_model.layers.1.mlp.experts.down_proj",
                 "language_model.model.layers.1.mlp.switch_mlp.down_proj", 4);
    check_experts(&f, ck);
    /* norms plus one, not the delta net's */
    size_t n;
    float *norm = values(&f, "model.language_model.norm.weight", &n);
    const st_tensor *t = must_find(ck, "language_model.model.norm.weight");
    for (size_t i = 0; i < n; i++)
        assert_int_equal(load_le16(t->data + 2 * i), f32_to_bf16(1 + norm[i]));
    mem_free(norm);
    const stw_tensor *gdn =
        stw_find(&f.list, "model.language_model.layers.0.linear_attn.norm.weight");
    t = must_find(ck, "language_model.model.layers.0.linear_attn.norm.weight");
    for (size_t i = 0; i < 128; i++) {
        float v;
        memcpy(&v, gdn->data + 4 * i, 4);
        assert_int_equal(load_le16(t->data + 2 * i), f32_to_bf16(v));
    }
    t = must_find(ck, "language_model.model.layers.0.linear_attn.conv1d.weight");
    assert_int_equal(t->shape[1], 4);
    assert_memory_equal(
        t->data, stw_find(&f.list, "model.language_model.layers.0.linear_attn.conv1d.weight")->data,
        t->n_bytes);
    checkpoint_close(ck);
    char *path = path_join(f.out, "tokenizer.json");
    assert_true(file_exists(path));
    mem_free(path);
    remove_folder(f.out);
    end(&f);
}

/* The same tensors, whatever the shards, the threads, and the type of the source. */
static void test_same(void **state)
{
    (void)state;
    fixture f;
    checkpoint *a = NULL, *b = NULL;
    begin(&f);
    save(&f);
    run_ok(&f);
    char *one = f.out;
    f.out = path_join(f.dir, "other");
    f.o = (quantize_options){.n_threads = 1, .shard_bytes = 30000};
    stw_tensor *t = stw_find(&f.list, "model.language_model.layers.2.mlp.gate.weight");
    uint8_t *wide = mem_alloc(2 * (size_t)stw_bytes(t));
    for (size_t i = 0; i < stw_bytes(t) / 2; i++)
        memcpy(wide + 4 * i + 2, t->data + 2 * i, 2);
    mem_free(t->data);
    t->data = wide;
    (void)snprintf(t->dtype, sizeof t->dtype, "F32");
    save(&f);
    run_ok(&f);
    assert_int_equal(checkpoint_open(&a, one, &f.err), CALLA_OK);
    if (checkpoint_open(&b, f.out, &f.err) != CALLA_OK) fail_msg("%s", f.err.message);
    assert_int_equal(checkpoint_n_shards(a), 1);
    assert_true(checkpoint_n_shards(b) > 4);
    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
    for (size_t i = 0; i < checkpoint_count(a); i++) {
        const st_tensor *x = checkpoint_at(a, i), *y = must_find(b, x->name);
        assert_int_equal(x->n_bytes, y->n_bytes);
        assert_memory_equal(x->data, y->data, x->n_bytes);
    }
    checkpoint_close(a);
    checkpoint_close(b);
    remove_folder(one);
    remove_folder(f.out);
    mem_free(one);
    end(&f);
}

static void test_mtp(void **state)
{
    (void)state;
    for (uint32_t bits = 4; bits <= 8; bits += 4) {
        fixture f;
        checkpoint *ck = NULL;
        model_shape s;
        model_weights w;
        begin(&f);
        tiny_rng r = {3};
        tiny_matrix(&f.list, &r, "mtp.", "fc", "", 64, 128, 16);
        tiny_add(&f.list, &r, "mtp.", "norm.weight", "BF16", "64");
        tiny_add(&f.list, &r, "mtp.", "pre_fc_norm_hidden.weight", "BF16", "64");
        tiny_add(&f.list, &r, "mtp.", "pre_fc_norm_embedding.weight", "BF16", "64");
        tiny_layer(&f.list, &r, "mtp.layers.0.", true, true);
        f.o.mtp_bits = bits;
        save(&f);
        run_ok(&f);
        assert_int_equal(checkpoint_open(&ck, f.out, &f.err), CALLA_OK);
        check_matrix(&f, ck, "mtp.fc.weight", "mtp.fc", bits);
        check_matrix(&f, ck, "mtp.layers.0.mlp.gate.weight", "mtp.layers.0.mlp.gate", 8);
        check_matrix(&f, ck, "mtp.layers.0.mlp.experts.down_proj",
                     "mtp.layers.0.mlp.switch_mlp.down_proj", bits);
        const json_value *q = json_get(checkpoint_config(ck), "quantization");
        assert_true((json_get(q, "mtp.fc") != NULL) == (bits == 8));
        assert_int_equal(shape_read(&s, checkpoint_config(ck), NULL, &f.err), CALLA_OK);
        if (weights_bind(&w, ck, &s, &f.err) != CALLA_OK) fail_msg("%s", f.err.message);
        assert_true(w.n_skipped_mtp > 19);
        weights_unbind(&w);
        checkpoint_close(ck);
        remove_folder(f.out);
        end(&f);
    }
}

/* ---- Refusals ---- */

#define LAYER0 "model.language_model.layers.0."

static void test_refused(void **state)
{
    (void)state;
    fixture f;
    tiny_rng r = {1};
    begin(&f);
    stw_drop(&f.list, stw_find(&f.list, LAYER0 "mlp.gate.weight"));
    refused(&f, CALLA_ERR_UNSUPPORTED, "expected a tensor " LAYER0 "mlp.gate.weight");
    begin(&f);
    tiny_add(&f.list, &r, LAYER0, "mlp.extra.weight", "BF16", "64");
    refused(&f, CALLA_ERR_UNSUPPORTED, "mlp.extra.weight has no place");
    begin(&f);
    stw_drop(&f.list, stw_find(&f.list, LAYER0 "mlp.gate.weight"));
    tiny_add(&f.list, &r, LAYER0, "mlp.gate.weight", "BF16", "64x4");
    refused(&f, CALLA_ERR_UNSUPPORTED, "expected shape [4, 64] (by config.json), found [64, 4]");
    begin(&f);
    stw_drop(&f.list, stw_find(&f.list, LAYER0 "mlp.gate.weight"));
    tiny_add(&f.list, &r, LAYER0, "mlp.gate.weight", "U32", "4x64");
    refused(&f, CALLA_ERR_UNSUPPORTED, "expected BF16, F16 or F32, found U32");
    begin(&f);
    f.o.mtp_bits = 8;
    refused(&f, CALLA_ERR_UNSUPPORTED, "expected a tensor mtp.fc.weight");
    begin(&f);
    stw_free(&f.list);
    tiny_model(&f.list, false, 1);
    refused(&f, CALLA_ERR_UNSUPPORTED, "is in MLX's layout already");
}

static void test_not_finite(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    stw_tensor *t = stw_find(&f.list, LAYER0 "mlp.experts.down_proj");
    t->data[stw_bytes(t) - 2] = 0x80; /* the last one: infinity */
    t->data[stw_bytes(t) - 1] = 0x7f;
    refused(&f, CALLA_ERR_FORMAT, LAYER0 "mlp.experts.down_proj has a weight that is not finite");
    begin(&f);
    t = stw_find(&f.list, LAYER0 "linear_attn.dt_bias");
    t->data[0] = 0xc1;
    t->data[1] = 0x7f; /* NaN */
    refused(&f, CALLA_ERR_FORMAT, "dt_bias has a weight that is not finite");
}

static void test_config(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    save(&f);
    stw_write_text(f.hf, "config.json",
                   "{\"model_type\":\"qwen3_5_moe\",\"quantization_config\":{\"quant_method\":"
                   "\"fp8\"}," TINY_TEXT_CONFIG "}");
    assert_int_equal(run(&f), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(f.err.message, "expected an unquantised checkpoint"));
    end(&f);
}

static bool cancel_late(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    return done < total / 2;
}

static void test_leaves_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    f.o.progress = cancel_late;
    refused(&f, CALLA_ERR_CANCELLED, "cancelled");
    begin(&f);
    save(&f);
    stw_write_text(f.dir, "out", "a file");
    assert_int_equal(run(&f), CALLA_ERR_IO);
    assert_non_null(strstr(f.err.message, "exists already"));
    stw_remove(f.dir, "out");
    /* no allocation that fails leaves anything behind, or is taken for success */
    for (int64_t i = 0;; i++) {
        mem_fail_after(i);
        const calla_status st = run(&f);
        mem_fail_after(-1);
        if (st == CALLA_OK) break;
        assert_int_equal(st, CALLA_ERR_MEMORY);
    }
    remove_folder(f.out);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_model),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_mtp),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
