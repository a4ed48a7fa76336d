/* Experts of several tasks each: the demonstration model's are one task wide, so here its layers
 * get wider ones of random values. The division over threads must not show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "exec/executor.h"
#include "format/checkpoint.h"

#define EXPERT_WIDTH 192u
#define SHARED_WIDTH 128u
#define N_TOKENS     41u

typedef struct model {
    checkpoint *ck;
    model_shape shape;
    model_weights weights;
    uint8_t *bytes; /* of every wide matrix, each from a place of its own */
    size_t n_bytes, used;
} model;

static uint8_t *take(model *m, size_t n)
{
    uint8_t *p = m->bytes + m->used;
    m->used += n;
    assert_true(m->used <= m->n_bytes);
    return p;
}

/* n matrices one after the other, their parameters likewise: weights -0.08 .. 0.07. */
static matrix wide(model *m, uint32_t rows, uint32_t cols, uint32_t n)
{
    const size_t n_codes = (size_t)n * rows * cols / 2;
    const size_t n_params = (size_t)n * rows * cols / MODEL_QUANT_GROUP * 2;
    matrix w = {.type = MAT_Q4, .rows = rows, .cols = cols, .row_bytes = cols / 2};
    uint8_t *codes = take(m, n_codes), *scales = take(m, n_params), *biases = take(m, n_params);
    uint32_t seed = rows * 7919u + cols;
    for (size_t i = 0; i < n_codes; i++) {
        seed = seed * 1664525u + 1013904223u;
        codes[i] = (uint8_t)(seed >> 24);
    }
    for (size_t i = 0; i < n_params; i += 2) { /* bf16 */
        memcpy(scales + i, (const uint8_t[]){0x24, 0x3c}, 2);
        memcpy(biases + i, (const uint8_t[]){0xa4, 0xbd}, 2);
    }
    w.data = codes;
    w.scales = scales;
    w.biases = biases;
    return w;
}

static expert_bank bank(model *m, uint32_t rows, uint32_t cols)
{
    const uint64_t n = (uint64_t)rows * cols;
    return (expert_bank){wide(m, rows, cols, m->shape.n_experts), n / 2, n / MODEL_QUANT_GROUP * 2};
}

static void open_model(model *m)
{
    calla_error err;
    *m = (model){0};
    assert_int_equal(checkpoint_open(&m->ck, "models/nano", &err), CALLA_OK);
    assert_int_equal(shape_read(&m->shape, checkpoint_config(m->ck), NULL, &err), CALLA_OK);
    assert_int_equal(weights_bind(&m->weights, m->ck, &m->shape, &err), CALLA_OK);
    const uint32_t h = m->shape.hidden;
    m->shape.expert_width = EXPERT_WIDTH;
    m->shape.shared_width = SHARED_WIDTH;
    m->n_bytes = (size_t)m->shape.n_layers * (m->shape.n_experts + 1) * 3 * h * EXPERT_WIDTH;
    m->bytes = mem_alloc(m->n_bytes);
    assert_non_null(m->bytes);
    for (uint32_t i = 0; i < m->shape.n_layers; i++) {
        layer_weights *l = &m->weights.layers[i];
        l->gate = bank(m, EXPERT_WIDTH, h);
        l->up = bank(m, EXPERT_WIDTH, h);
        l->down = bank(m, h, EXPERT_WIDTH);
        l->shared_gate = wide(m, SHARED_WIDTH, h, 1);
        l->shared_up = wide(m, SHARED_WIDTH, h, 1);
        l->shared_down = wide(m, h, SHARED_WIDTH, 1);
    }
}

static void close_model(model *m)
{
    weights_unbind(&m->weights);
    checkpoint_close(m->ck);
    mem_free(m->bytes);
}

/* Logits of the last token, the prompt in steps of `piece` tokens. */
static void run(model *m, uint32_t n_threads, calla_precision precision, uint32_t piece,
                float *logits)
{
    calla_error err;
    executor *ex;
    exec_seq *seq;
    int32_t ids[N_TOKENS];
    const exec_options o = {.n_threads = n_threads, .precision = precision};
    for (uint32_t i = 0; i < N_TOKENS; i++)
        ids[i] = (int32_t)(i * 37u % m->shape.n_vocab);
    assert_int_equal(exec_cpu_create(&ex, &m->shape, &m->weights, &o, &err), CALLA_OK);
    assert_int_equal(ex->ops->seq_create(ex, N_TOKENS, &seq, &err), CALLA_OK);
    for (uint32_t at = 0; at < N_TOKENS; at += piece) {
        const uint32_t n = N_TOKENS - at < piece ? N_TOKENS - at : piece;
        const exec_segment seg = {seq, ids + at, n, EXEC_LOGITS_LAST, logits};
        assert_int_equal(ex->ops->run(ex, &seg, 1, &err), CALLA_OK);
    }
    ex->ops->seq_destroy(ex, seq);
    ex->ops->destroy(ex);
}

static void test_threads(void **state)
{
    (void)state;
    static const calla_precision precisions[] = {CALLA_PRECISION_EXACT, CALLA_PRECISION_INT16,
                                                 CALLA_PRECISION_INT8};
    model m;
    open_model(&m);
    const size_t n = m.shape.n_vocab;
    float *want = mem_array(n, sizeof *want), *got = mem_array(n, sizeof *got);
    assert_true(want != NULL && got != NULL);
    for (uint32_t p = 0; p < 3; p++) {
        run(&m, 1, precisions[p], N_TOKENS, want);
        assert_true(want[0] - want[0] == 0.0f && want[0] != want[1]); /* finite, and something */
        for (uint32_t t = 1; t <= 5; t++) {
            run(&m, t, precisions[p], t % 2 == 0 ? 1 : N_TOKENS, got);
            assert_memory_equal(got, want, n * sizeof *want);
            run(&m, t, precisions[p], 2, got);
            assert_memory_equal(got, want, n * sizeof *want);
        }
    }
    mem_free(want);
    mem_free(got);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
