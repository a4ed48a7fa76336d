/* From checkpoint bytes to weights, by hand: 4- and 8-bit codes, negative scales, odd addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "exec/cpu/kernels.h"
#include "support/tiny_model.h"

/* bf16 numbers used below */
#define MINUS_HALF   0xbf00u
#define QUARTER      0x3e80u
#define MINUS_EIGHTH 0xbe00u
#define ONE          0x3f80u
#define MINUS_ONE    0xbf80u
#define TWO          0x4000u
#define THREE        0x4040u

static void put16(uint8_t *p, size_t i, unsigned v)
{
    p[2 * i] = (uint8_t)v;
    p[2 * i + 1] = (uint8_t)(v >> 8);
}

static void expect(const float *row, size_t i, float want)
{
    if (!(row[i] == want))
        fail_msg("element %zu: expected %.9g, found %.9g", i, (double)want, (double)row[i]);
}

/* Two rows of 128 columns; everything lies at odd addresses. */
static void test_q4(void **state)
{
    (void)state;
    uint8_t codes[1 + 2 * 64] = {0}, scales[1 + 2 * 2 * 2] = {0}, biases[1 + 2 * 2 * 2] = {0};
    uint8_t *c = codes + 1, *s = scales + 1, *b = biases + 1;
    float row[128 + 1];
    put16(s, 0, ONE); /* row 0: w = code, then w = 0.25 code - 1 */
    put16(s, 1, QUARTER);
    put16(b, 1, MINUS_ONE);
    put16(s, 2, MINUS_HALF); /* row 1: w = 2 - code / 2, then w = 3 - code */
    put16(b, 2, TWO);
    put16(s, 3, MINUS_ONE);
    put16(b, 3, THREE);
    c[0] = 0x21;       /* columns 0 and 1 of row 0 hold 1 and 2 */
    c[31] = 0xf0;      /* columns 62, 63 */
    c[32] = 0xc4;      /* columns 64, 65 */
    c[64] = 0x21;      /* row 1 */
    c[64 + 31] = 0xf0; /* columns 62, 63 */
    c[64 + 63] = 0x5f; /* columns 126, 127 */
    const matrix m = {.type = MAT_Q4,
                      .rows = 2,
                      .cols = 128,
                      .row_bytes = 64,
                      .data = c,
                      .scales = s,
                      .biases = b};
    row[128] = 77;
    matrix_row(&m, 0, row);
    expect(row, 0, 1);
    expect(row, 1, 2);
    expect(row, 2, 0);
    expect(row, 62, 0);
    expect(row, 63, 15);
    expect(row, 64, 0);
    expect(row, 65, 2);
    expect(row, 66, -1);
    matrix_row(&m, 1, row);
    expect(row, 0, 1.5f);
    expect(row, 1, 1);
    expect(row, 2, 2);
    expect(row, 62, 2);
    expect(row, 63, -5.5f);
    expect(row, 64, 3);
    expect(row, 126, -12);
    expect(row, 127, -2);
    expect(row, 128, 77); /* nothing behind the row */
}

static void test_q8(void **state)
{
    (void)state;
    uint8_t codes[1 + 2 * 64] = {0}, scales[1 + 2 * 2] = {0}, biases[1 + 2 * 2] = {0};
    uint8_t *c = codes + 1, *s = scales + 1, *b = biases + 1;
    float row[64 + 1];
    put16(s, 1, MINUS_EIGHTH); /* row 1: w = 1 - code / 8 */
    put16(b, 1, ONE);
    c[64] = 255;
    c[65] = 128;
    c[127] = 7;
    const matrix m = {.type = MAT_Q8,
                      .rows = 2,
                      .cols = 64,
                      .row_bytes = 64,
                      .data = c,
                      .scales = s,
                      .biases = b};
    row[64] = 77;
    matrix_row(&m, 1, row);
    expect(row, 0, -30.875f);
    expect(row, 1, -15);
    expect(row, 2, 1);
    expect(row, 63, 0.125f);
    expect(row, 64, 77);
    matrix_row(&m, 0, row);
    expect(row, 0, 0);
}

static void test_plain(void **state)
{
    (void)state;
    uint8_t bytes[1 + 2 * 64 * 4] = {0};
    uint8_t *p = bytes + 1;
    float row[64];
    put16(p, 64 + 3, MINUS_EIGHTH); /* row 1, column 3 */
    const matrix b = {.type = MAT_BF16, .rows = 2, .cols = 64, .row_bytes = 128, .data = p};
    matrix_row(&b, 1, row);
    expect(row, 3, -0.125f);
    expect(row, 4, 0);
    const float third = 1.0f / 3.0f;
    memcpy(p + 256 + 4 * 5, &third, 4);
    const matrix f = {.type = MAT_F32, .rows = 2, .cols = 64, .row_bytes = 256, .data = p};
    matrix_row(&f, 1, row);
    expect(row, 5, third);
}

/* The worked examples that come with the model's description. */
static void test_worked_examples(void **state)
{
    (void)state;
    static const char path[] = "tests/data/qwen3.6/numeric-golden.json";
    char *text = NULL;
    size_t n = 0;
    json_doc doc;
    calla_error err = {0};
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &err), CALLA_OK);
    assert_int_equal(json_parse(&doc, text, n, NULL, &err), CALLA_OK);
    for (unsigned bits = 4; bits <= 8; bits += 4) {
        const json_value *g = json_get(doc.root, bits == 4 ? "affine4" : "affine8");
        const json_value *words = json_get(g, "words_u32"), *w = json_get(g, "w_f32");
        uint8_t codes[64], scale[2], bias[2];
        float row[64];
        int64_t x = 0;
        double want = 0;
        assert_int_equal(words->n_items, 2 * bits);
        for (size_t i = 0; i < 2 * bits; i++) {
            assert_true(json_int(json_at(words, i), &x));
            for (unsigned k = 0; k < 4; k++)
                codes[4 * i + k] = (uint8_t)(x >> (8 * k));
        }
        assert_true(json_int(json_get(g, "scale_bf16_bits"), &x));
        put16(scale, 0, (unsigned)x);
        assert_true(json_int(json_get(g, "bias_bf16_bits"), &x));
        put16(bias, 0, (unsigned)x);
        const matrix m = {.type = bits == 4 ? MAT_Q4 : MAT_Q8,
                          .rows = 1,
                          .cols = 64,
                          .row_bytes = 8 * bits,
                          .data = codes,
                          .scales = scale,
                          .biases = bias};
        matrix_row(&m, 0, row);
        for (size_t i = 0; i < 64; i++) {
            assert_true(json_double(json_at(w, i), &want));
            expect(row, i, (float)want);
        }
    }
    json_free(&doc);
    mem_free(text);
}

/* The same through a checkpoint: an 8-bit override, a 4-bit expert, data at an odd address. */
static void test_bound(void **state)
{
    (void)state;
#define L1 "language_model.model.layers.1.mlp."
    stw_list l = {0};
    char *dir = stw_mkdir();
    checkpoint *ck = NULL;
    model_shape shape;
    model_weights w;
    calla_error err = {0};
    float row[64];
    tiny_model(&l, false, 6);
    /* router, expert 2: w = 3 - code / 8 */
    stw_find(&l, L1 "gate.weight")->data[2 * 64 + 1] = 200;
    put16(stw_find(&l, L1 "gate.scales")->data, 2, MINUS_EIGHTH);
    put16(stw_find(&l, L1 "gate.biases")->data, 2, THREE);
    /* expert 3, up, row 5: w = 1 - code / 2 */
    stw_find(&l, L1 "switch_mlp.up_proj.weight")->data[(3 * 64 + 5) * 32 + 31] = 0x9e;
    put16(stw_find(&l, L1 "switch_mlp.up_proj.scales")->data, 3 * 64 + 5, MINUS_HALF);
    put16(stw_find(&l, L1 "switch_mlp.up_proj.biases")->data, 3 * 64 + 5, ONE);
    stw_save(&l, dir, 0, true);
    stw_write_text(dir, "config.json", TINY_CONFIG);
    assert_int_equal(checkpoint_open(&ck, dir, &err), CALLA_OK);
    assert_int_equal(shape_read(&shape, checkpoint_config(ck), NULL, &err), CALLA_OK);
    if (weights_bind(&w, ck, &shape, &err) != CALLA_OK) fail_msg("%s", err.message);
    const layer_weights *layer = &w.layers[1];
    assert_int_equal(layer->router.type, MAT_Q8);
    assert_int_equal((uintptr_t)layer->router.data % 2, 1);
    matrix_row(&layer->router, 2, row);
    expect(row, 1, -22);
    const matrix up = expert_matrix(&layer->up, 3);
    matrix_row(&up, 5, row);
    expect(row, 62, -6);    /* code 14: the low half of 0x9e */
    expect(row, 63, -3.5f); /* code 9 */
    weights_unbind(&w);
    checkpoint_close(ck);
    stw_free(&l);
    stw_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q4),    cmocka_unit_test(test_q8),
        cmocka_unit_test(test_plain), cmocka_unit_test(test_worked_examples),
        cmocka_unit_test(test_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
