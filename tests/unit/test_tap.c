/* The residual stream that an executor shows point by point: on the CPU against the golden trace,
 * on the emulated GPU against the CPU, and without effect on the results. */
#include "support/golden.h"

#include "exec/executor.h"

#define N_TOKENS 14u

static checkpoint *ck;
static model_shape shape;
static model_weights weights;

static int set_up(void **state)
{
    calla_error err;
    if (golden_set_up(state) != 0) return -1;
    if (checkpoint_open(&ck, MODEL_DIR, &err) == CALLA_OK &&
        shape_read(&shape, checkpoint_config(ck), NULL, &err) == CALLA_OK &&
        weights_bind(&weights, ck, &shape, &err) == CALLA_OK)
        return 0;
    print_error("%s\n", err.message);
    return -1;
}

static int tear_down(void **state)
{
    weights_unbind(&weights);
    checkpoint_close(ck);
    return golden_tear_down(state);
}

/* Point p of a pass is 0 for the embedding, then two a layer. */
typedef struct pass {
    float *x;              /* [2 * n_layers + 1][N_TOKENS][hidden] */
    uint32_t n_points, at; /* at: tokens that came before this call */
    float *logits;
} pass;

static void on_point(void *user, uint32_t i_layer, exec_point point, const float *base,
                     size_t stride, uint32_t n_tokens)
{
    pass *p = user;
    const uint32_t i = point == EXEC_POINT_EMBED ? 0 : 2 * i_layer + (uint32_t)point;
    p->n_points++;
    for (uint32_t t = 0; t < n_tokens; t++)
        memcpy(p->x + ((size_t)i * N_TOKENS + p->at + t) * shape.hidden, base + t * stride,
               shape.hidden * sizeof(float));
}

/* The golden case "hello" in calls of `piece` tokens. */
static void run(executor *ex, uint32_t piece, bool shown, pass *p)
{
    int32_t ids[MAX_IDS];
    calla_error err;
    exec_seq *seq = NULL;
    const json_value *first = json_at(json_get(golden.root, "cases"), 0);
    assert_int_equal(read_ids(json_get(first, "input_ids"), ids), N_TOKENS);
    *p = (pass){.x = mem_array((2 * shape.n_layers + 1) * (size_t)N_TOKENS, shape.hidden * 4u),
                .logits = mem_array(shape.n_vocab, sizeof(float))};
    assert_true(p->x != NULL && p->logits != NULL);
    ex->ops->tap(ex, shown ? on_point : NULL, p);
    if (ex->ops->seq_create(ex, 64, &seq, &err) != CALLA_OK) fail_msg("%s", err.message);
    for (; p->at < N_TOKENS; p->at += piece) {
        const exec_segment seg = {seq, ids + p->at, piece, EXEC_LOGITS_LAST, p->logits};
        if (ex->ops->run(ex, &seg, 1, &err) != CALLA_OK) fail_msg("%s", err.message);
    }
    ex->ops->seq_destroy(ex, seq);
    ex->ops->tap(ex, NULL, NULL);
    const uint32_t n_calls = N_TOKENS / piece;
    assert_int_equal(p->n_points, shown ? n_calls * (2 * shape.n_layers + 1) : 0);
}

static void pass_free(pass *p)
{
    mem_free(p->x);
    mem_free(p->logits);
}

static double worst(const float *a, const uint8_t *b, size_t n)
{
    double w = 0.0;
    for (size_t i = 0; i < n; i++) {
        float want;
        memcpy(&want, b + 4 * i, 4);
        const double d = fabs((double)a[i] - (double)want);
        if (!(d <= w)) w = d;
    }
    return w;
}

static double largest(const float *a, size_t n)
{
    double size = 0.0;
    for (size_t i = 0; i < n; i++)
        size = fmax(size, fabs((double)a[i]));
    return size;
}

static void test_cpu_shows_the_golden_trace(void **state)
{
    (void)state;
    const exec_options o = {.kv_type = CALLA_KV_F32};
    calla_error err;
    executor *ex;
    pass shown, plain;
    const size_t n = (size_t)N_TOKENS * shape.hidden;
    if (exec_cpu_create(&ex, &shape, &weights, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    run(ex, N_TOKENS, true, &shown);
    run(ex, N_TOKENS, false, &plain);
    assert_memory_equal(shown.logits, plain.logits, shape.n_vocab * sizeof(float));
    for (uint32_t i = 0; i <= shape.n_layers; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, i == 0 ? "trace.embedding" : "trace.layer%u", i - 1);
        const st_tensor *t = safetensors_find(tensors, name);
        assert_non_null(t);
        assert_int_equal(t->n_bytes, n * 4);
        const double w = worst(shown.x + 2 * i * n, t->data, n);
        const double size = largest(shown.x + 2 * i * n, n);
        if (!(w < 1e-4 * size)) fail_msg("%s: off by %g of %g", name, w, size);
    }
    pass_free(&shown);
    pass_free(&plain);
    ex->ops->destroy(ex);
}

/* Both paths of a GPU, against the CPU's stream; bf16 activations set the bar. */
static void test_gpu_shows_what_the_cpu_shows(void **state)
{
    (void)state;
    static const uint32_t pieces[] = {N_TOKENS, 1};
    const exec_options o = {.chunk_tokens = 64, .n_ctx = 64};
    calla_error err;
    executor *cpu, *gpu;
    pass want;
    const size_t n = (size_t)N_TOKENS * shape.hidden;
    if (exec_cpu_create(&cpu, &shape, &weights, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    if (exec_gpu_open(&gpu, "simt", &shape, &weights, &o, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    run(cpu, N_TOKENS, true, &want);
    for (size_t i = 0; i < 2; i++) {
        pass shown, plain;
        run(gpu, pieces[i], true, &shown);
        run(gpu, pieces[i], false, &plain);
        assert_memory_equal(shown.logits, plain.logits, shape.n_vocab * sizeof(float));
        for (uint32_t p = 0; p <= 2 * shape.n_layers; p++) {
            const double size = largest(want.x + p * n, n);
            const double w = worst(shown.x + p * n, (const uint8_t *)(want.x + p * n), n);
            if (!(w <= 0.05 * size)) fail_msg("point %u: off by %g of %g", p, w, size);
        }
        pass_free(&shown);
        pass_free(&plain);
    }
    pass_free(&want);
    cpu->ops->destroy(cpu);
    gpu->ops->destroy(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_shows_the_golden_trace),
        cmocka_unit_test(test_gpu_shows_what_the_cpu_shows),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
