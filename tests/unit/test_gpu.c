/* The GPU executor on the demonstration model: golden texts, agreement with the CPU executor,
 * invariances, images, copies, growth of the arenas, device errors. CALLA_TEST_GPU names the
 * driver: "simt" (default; a part of the cases, because it is slow), "cuda" or "metal" (all of
 * them, but on the stand-in). */
#include "support/golden.h"

#include "engine/sampler.h"
#include "exec/gpu/gpu.h"

#define LOGIT_BAR_GPU 0.7f /* as the reference's own bfloat16 run */
#define N_TEXT        96u

static const char *driver(void)
{
    const char *name = getenv("CALLA_TEST_GPU");
    return name != NULL ? name : "simt";
}

static bool is_fast(void)
{
    return strcmp(driver(), "simt") != 0 && getenv("CALLA_METAL_FRAMEWORK") == NULL;
}

/* Under a sanitizer the emulator takes minutes for texts; the other tests run the same code. */
static bool is_slow(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return !is_fast();
#else
    return false;
#endif
}

/* What the executors of these tests share: the model, without an engine. */
typedef struct model {
    checkpoint *ck;
    model_shape shape;
    model_weights weights;
    int32_t text[MAX_IDS];
    size_t n_text;
} model;
static model m;

static int set_up(void **state)
{
    calla_error err;
    if (golden_set_up(state) != 0) return -1;
    if (checkpoint_open(&m.ck, MODEL_DIR, &err) != CALLA_OK ||
        shape_read(&m.shape, checkpoint_config(m.ck), NULL, &err) != CALLA_OK ||
        weights_bind(&m.weights, m.ck, &m.shape, &err) != CALLA_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    m.n_text = read_ids(json_get(json_get(golden.root, "perplexity"), "ids"), m.text);
    return 0;
}

static int tear_down(void **state)
{
    weights_unbind(&m.weights);
    checkpoint_close(m.ck);
    return golden_tear_down(state);
}

static executor *open_gpu(uint32_t chunk)
{
    calla_error err;
    executor *ex;
    const exec_options o = {.chunk_tokens = chunk};
    if (exec_gpu_open(&ex, driver(), &m.shape, &m.weights, &o, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    return ex;
}

/* The emulator, looking for races, wrong addresses and what was never written. */
static executor *open_checked(void)
{
    calla_error err;
    executor *ex = NULL;
    gpu_device *dev;
    const exec_options o = {.chunk_tokens = 64};
    if (gpu_simt_create(&dev, &(gpu_simt_options){.seed = 3, .check = true}, &err) != CALLA_OK ||
        gpu_exec_create(&ex, dev, &m.shape, &m.weights, &o, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    return ex;
}

static executor *open_cpu(void)
{
    calla_error err;
    executor *ex;
    const exec_options o = {.kv_type = CALLA_KV_BF16};
    if (exec_cpu_create(&ex, &m.shape, &m.weights, &o, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    return ex;
}

static exec_seq *new_seq(executor *ex, uint32_t n_ctx)
{
    calla_error err;
    exec_seq *seq;
    if (ex->ops->seq_create(ex, n_ctx, &seq, &err) != CALLA_OK) fail_msg("%s", err.message);
    ex->ops->seq_reset(ex, seq);
    return seq;
}

static float *rows(size_t n)
{
    float *p = malloc(n * m.shape.n_vocab * sizeof *p);
    assert_non_null(p);
    return p;
}

/* Feeds text[from, to) in pieces; logits of the last token. */
static void feed(executor *ex, exec_seq *seq, uint32_t from, uint32_t to, uint32_t piece,
                 float *logits)
{
    calla_error err;
    while (from < to) {
        const uint32_t n = to - from < piece ? to - from : piece;
        const bool last = from + n == to && logits != NULL;
        const exec_segment seg = {seq, m.text + from, n, last ? EXEC_LOGITS_LAST : EXEC_LOGITS_NONE,
                                  logits};
        if (ex->ops->run(ex, &seg, 1, &err) != CALLA_OK) fail_msg("%s", err.message);
        from += n;
    }
}

static double worst_difference(const float *a, const float *b, size_t n_rows)
{
    double worst = 0.0;
    for (size_t i = 0; i < n_rows * m.shape.n_vocab; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void assert_same(const float *a, const float *b)
{
    assert_memory_equal(a, b, m.shape.n_vocab * sizeof *a);
}

static uint32_t best(const float *logits)
{
    uint32_t b = 0;
    for (uint32_t i = 1; i < m.shape.n_vocab; i++)
        if (logits[i] > logits[b]) b = i;
    return b;
}

static void test_golden(void **state)
{
    (void)state;
    if (is_slow()) skip();
    calla_error err;
    calla_engine *e;
    const calla_engine_options o = {.model_dir = MODEL_DIR, .backend = driver()};
    if (calla_engine_create(&e, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    calla_engine_info info;
    calla_engine_get_info(e, &info);
    assert_string_equal(info.backend, driver());
    assert_true(run_cases(e, is_fast() ? SIZE_MAX : 60, "bf16") < (double)LOGIT_BAR_GPU);
    if (is_fast()) check_perplexity(e, "bf16", 2e-3);
    calla_engine_destroy(e);
}

/* Teacher-forced against the CPU executor: prefill, and every token by decode steps. */
static void test_agrees_with_cpu(void **state)
{
    (void)state;
    const uint32_t n = is_fast() ? 2048 : N_TEXT, n_step = is_fast() ? 256 : 12;
    executor *cpu = open_cpu(), *gpu = open_gpu(0);
    exec_seq *a = new_seq(cpu, n), *b = new_seq(gpu, n);
    float *want = rows(n), *got = rows(n);
    calla_error err;
    uint32_t same = 0, same_step = 0;
    for (uint32_t i = 0; i < n; i += 256) {
        const uint32_t k = n - i < 256 ? n - i : 256;
        const size_t at = (size_t)i * m.shape.n_vocab;
        exec_segment seg = {a, m.text + i, k, EXEC_LOGITS_ALL, want + at};
        assert_int_equal(cpu->ops->run(cpu, &seg, 1, &err), CALLA_OK);
        seg.seq = b;
        seg.logits = got + at;
        assert_int_equal(gpu->ops->run(gpu, &seg, 1, &err), CALLA_OK);
    }
    for (uint32_t i = 0; i < n; i++)
        same += best(want + (size_t)i * m.shape.n_vocab) == best(got + (size_t)i * m.shape.n_vocab);
    const double worst = worst_difference(want, got, n);
    gpu->ops->seq_reset(gpu, b);
    for (uint32_t i = 0; i < n_step; i++) {
        const size_t at = (size_t)i * m.shape.n_vocab;
        feed(gpu, b, i, i + 1, 1, got + at);
        same_step += best(want + at) == best(got + at);
    }
    const double worst_step = worst_difference(want, got, n_step);
    print_message("  %u positions by prefill: top-1 %u, max |dlogit| %.2e; %u by decode: top-1 %u, "
                  "max |dlogit| %.2e\n",
                  n, same, worst, n_step, same_step, worst_step);
    assert_true(worst < (double)LOGIT_BAR_GPU && worst_step < 0.1);
    assert_true(same >= n - n / 32 && same_step >= n_step - n_step / 64);
    cpu->ops->seq_destroy(cpu, a);
    gpu->ops->seq_destroy(gpu, b);
    cpu->ops->destroy(cpu);
    gpu->ops->destroy(gpu);
    free(want);
    free(got);
}

/* However a prompt is cut, as long as pieces have two tokens or more. */
static void test_pieces(void **state)
{
    (void)state;
    executor *gpu = open_gpu(64);
    exec_seq *s = new_seq(gpu, N_TEXT);
    float *want = rows(1), *got = rows(1);
    feed(gpu, s, 0, 60, 60, want);
    static const uint32_t pieces[] = {30, 4, 17};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        gpu->ops->seq_reset(gpu, s);
        feed(gpu, s, 0, 60, pieces[i], got);
        assert_same(got, want);
    }
    /* A device that bounds its dispatches has chunks cut for it: here at 32, 33 and 59 of 60. */
    for (uint32_t most = 32; most <= 59; most += most == 32 ? 1 : 26) {
        gpu_self(gpu)->dispatch_flops =
            (most + 0.5) * 4.0 * m.shape.n_heads * m.shape.head_dim * gpu_len_bucket(60);
        gpu->ops->seq_reset(gpu, s);
        feed(gpu, s, 0, 60, 60, got);
        assert_same(got, want);
        assert_int_equal(gpu->ops->seq_position(s), 60);
    }
    gpu->ops->seq_destroy(gpu, s);
    gpu->ops->destroy(gpu);
    free(want);
    free(got);
}

/* Alone or in company, in prefill and decode, and while the arenas grow. */
static void test_company(void **state)
{
    (void)state;
    executor *gpu = open_gpu(64);
    calla_error err;
    exec_seq *s[3];
    float *want[3], *got[3];
    for (uint32_t i = 0; i < 3; i++) {
        s[i] = new_seq(gpu, N_TEXT + i);
        want[i] = rows(2);
        got[i] = rows(2);
        feed(gpu, s[i], i, 12 + 2 * i, 64, want[i]);
        feed(gpu, s[i], 12 + 2 * i, 13 + 2 * i, 1, want[i] + m.shape.n_vocab);
        gpu->ops->seq_reset(gpu, s[i]);
    }
    exec_segment seg[3];
    for (uint32_t i = 0; i < 3; i++)
        seg[i] = (exec_segment){s[i], m.text + i, 12 + i, EXEC_LOGITS_LAST, got[i]};
    assert_int_equal(gpu->ops->run(gpu, seg, 3, &err), CALLA_OK);
    exec_seq *other = new_seq(gpu, 333); /* moves everything */
    for (uint32_t i = 0; i < 3; i++)
        seg[i] = (exec_segment){s[i], m.text + 12 + 2 * i, 1, EXEC_LOGITS_LAST,
                                got[i] + m.shape.n_vocab};
    assert_int_equal(gpu->ops->run(gpu, seg, 3, &err), CALLA_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_same(got[i], want[i]);
        assert_same(got[i] + m.shape.n_vocab, want[i] + m.shape.n_vocab);
        gpu->ops->seq_destroy(gpu, s[i]);
        free(want[i]);
        free(got[i]);
    }
    gpu->ops->seq_destroy(gpu, other);
    gpu->ops->destroy(gpu);
}

/* An image taken from one executor and loaded into another continues as the first would. */
static void move_image(executor *from, exec_seq *a, executor *to, exec_seq *b, uint32_t n)
{
    calla_error err;
    assert_true(from->ops->seq_image_bytes(from, n) == to->ops->seq_image_bytes(to, n));
    uint8_t *image = malloc(from->ops->seq_image_bytes(from, n));
    assert_non_null(image);
    assert_int_equal(from->ops->seq_save(from, a, image, &err), CALLA_OK);
    assert_int_equal(to->ops->seq_load(to, b, image, n, &err), CALLA_OK);
    free(image);
}

static void test_images(void **state)
{
    (void)state;
    executor *cpu = open_cpu(), *gpu = open_gpu(64);
    exec_seq *a = new_seq(cpu, N_TEXT), *b = new_seq(gpu, N_TEXT), *c = new_seq(gpu, N_TEXT);
    float *want = rows(1), *got = rows(1);
    static const uint32_t lengths[] = {0, 2, 35};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint32_t n = lengths[i];
        cpu->ops->seq_reset(cpu, a);
        feed(cpu, a, 0, n, 64, NULL);
        move_image(cpu, a, gpu, b, n); /* from the CPU */
        feed(cpu, a, n, n + 1, 1, want);
        feed(gpu, b, n, n + 1, 1, got);
        assert_true(worst_difference(want, got, 1) < 0.05);
        move_image(gpu, b, gpu, c, n + 1); /* between sequences: the same bits */
        move_image(gpu, b, cpu, a, n + 1); /* and back */
        feed(gpu, b, n + 1, n + 2, 1, want);
        feed(gpu, c, n + 1, n + 2, 1, got);
        assert_same(got, want);
        feed(cpu, a, n + 1, n + 2, 1, got);
        assert_true(worst_difference(want, got, 1) < 0.05);
    }
    cpu->ops->seq_destroy(cpu, a);
    gpu->ops->seq_destroy(gpu, b);
    gpu->ops->seq_destroy(gpu, c);
    cpu->ops->destroy(cpu);
    gpu->ops->destroy(gpu);
    free(want);
    free(got);
}

/* Saved, forked and taken back, as the prefix cache does. */
static void test_restore(void **state)
{
    (void)state;
    executor *gpu = open_gpu(64);
    exec_seq *a = new_seq(gpu, N_TEXT), *b = new_seq(gpu, 40);
    float *want = rows(1), *got = rows(1);
    calla_error err;
    uint8_t *saved = malloc(gpu->ops->seq_state_bytes(gpu));
    assert_non_null(saved);
    feed(gpu, a, 0, 21, 64, NULL);
    assert_int_equal(gpu->ops->seq_state_save(gpu, a, saved, &err), CALLA_OK);
    feed(gpu, a, 21, 30, 64, want);
    assert_int_equal(gpu->ops->seq_restore(gpu, b, a, 21, saved, &err), CALLA_OK);
    assert_int_equal(gpu->ops->seq_position(b), 21);
    feed(gpu, b, 21, 30, 64, got);
    assert_same(got, want);
    assert_int_equal(gpu->ops->seq_restore(gpu, a, a, 21, saved, &err), CALLA_OK);
    feed(gpu, a, 21, 30, 64, got);
    assert_same(got, want);
    free(saved);
    gpu->ops->seq_destroy(gpu, a);
    gpu->ops->seq_destroy(gpu, b);
    gpu->ops->destroy(gpu);
    free(want);
    free(got);
}

/* A device error ends the call and empties its sequences; the others and the next call are right.
 */
static void test_device_error(void **state)
{
    (void)state;
    executor *gpu = open_gpu(64);
    gpu_device *dev = gpu_self(gpu)->dev;
    exec_seq *a = new_seq(gpu, N_TEXT), *b = new_seq(gpu, N_TEXT);
    float *want = rows(1), *want_b = rows(1), *got = rows(1);
    calla_error err;
    feed(gpu, b, 5, 20, 64, NULL);
    feed(gpu, b, 20, 21, 1, want_b);
    gpu->ops->seq_reset(gpu, b);
    feed(gpu, b, 5, 20, 64, NULL);
    feed(gpu, a, 0, 15, 64, NULL);
    feed(gpu, a, 15, 16, 1, want);
    for (uint32_t n = 1; n <= 2; n++) { /* in a decode step, in a prefill */
        const exec_segment seg = {a, m.text + 16, n == 1 ? 1 : 7, EXEC_LOGITS_LAST, got};
        dev->ops->inject_failure(dev, 1);
        assert_int_equal(gpu->ops->run(gpu, &seg, 1, &err), CALLA_ERR_DEVICE);
        assert_true(strlen(err.message) > 10);
        assert_int_equal(gpu->ops->seq_position(a), 0);
        feed(gpu, a, 0, 15, 64, NULL);
        feed(gpu, a, 15, 16, 1, got);
        assert_same(got, want);
    }
    feed(gpu, b, 20, 21, 1, got);
    assert_same(got, want_b);
    gpu->ops->seq_destroy(gpu, a);
    gpu->ops->seq_destroy(gpu, b);
    gpu->ops->destroy(gpu);
    free(want);
    free(want_b);
    free(got);
}

/* ---- A device that is full ---- */

static const gpu_ops *real_ops;

static calla_status no_values(gpu_device *d, gpu_memory kind, uint64_t bytes, const char *name,
                              gpu_buffer **out, calla_error *err)
{
    if (strcmp(name, "values") == 0) return err_set(err, CALLA_ERR_MEMORY, "no room for values");
    return real_ops->buffer_create(d, kind, bytes, name, out, err);
}

/* A sequence that finds no room while the arenas grow changes nothing for the others. */
static void test_no_room(void **state)
{
    (void)state;
    executor *gpu = open_gpu(64);
    gpu_device *dev = gpu_self(gpu)->dev;
    exec_seq *a = new_seq(gpu, 40), *b = NULL;
    float *want = rows(1), *got = rows(1);
    calla_error err;
    feed(gpu, a, 0, 4, 64, NULL);
    feed(gpu, a, 4, 5, 1, want);
    real_ops = dev->ops;
    gpu_ops full = *real_ops;
    full.buffer_create = no_values;
    dev->ops = &full;
    assert_int_equal(gpu->ops->seq_create(gpu, 300, &b, &err), CALLA_ERR_MEMORY);
    dev->ops = real_ops;
    gpu->ops->seq_reset(gpu, a);
    feed(gpu, a, 0, 4, 64, NULL);
    feed(gpu, a, 4, 5, 1, got);
    assert_same(got, want);
    b = new_seq(gpu, 300);
    gpu->ops->seq_destroy(gpu, a);
    gpu->ops->seq_destroy(gpu, b);
    gpu->ops->destroy(gpu);
    free(want);
    free(got);
}

/* What no kernel could do is refused in a sentence. */
static void test_shapes(void **state)
{
    (void)state;
    calla_error err;
    executor *ex;
    const exec_options o = {.chunk_tokens = 64};
    model_shape s = m.shape;
    s.gdn_k_heads = s.gdn_v_heads = 3;
    assert_int_equal(exec_gpu_open(&ex, driver(), &s, NULL, &o, &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "linear_num_value_heads, found 3"));
    s = m.shape;
    s.expert_width = s.shared_width = 65536;
    s.hidden = 65536;
    s.n_layers = s.full_interval;
    assert_int_equal(exec_gpu_schedule(&s, NULL, false, 1, 100, NULL, NULL, &err),
                     CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "4 GiB"));
    model_weights w = m.weights; /* as of a checkpoint that was not quantised */
    w.embed.type = MAT_BF16;
    assert_int_equal(exec_gpu_open(&ex, driver(), &m.shape, &w, &o, &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "embed_tokens"));
    assert_non_null(strstr(err.message, "found unquantised weights"));
}

/* ---- Streams ---- */

#define STREAM_STEPS 6u

/* n sequences at the end of their prompts, and what they say step by step. */
typedef struct talk {
    executor *gpu;
    uint32_t n, n_steps; /* n_steps are known */
    exec_seq *seq[3];
    uint8_t *state[3];
    uint32_t text[3], start[3]; /* where the prompt begins in the text; its length */
    int32_t first[3];
    calla_sampling sampling[3];
    sampler *sampler[3];
    int32_t ids[3][STREAM_STEPS];
    float *logits[3]; /* [STREAM_STEPS, n_vocab] */
    uint32_t *banned;
} talk;

/* Sampler and sequence as they were. */
static void talk_rewind(talk *t)
{
    calla_error err;
    for (uint32_t i = 0; i < t->n; i++) {
        sampler_begin(t->sampler[i], &t->sampling[i], m.text + t->text[i], t->start[i]);
        sampler_accept(t->sampler[i], t->first[i]);
        if (t->gpu->ops->seq_restore(t->gpu, t->seq[i], t->seq[i], t->start[i], t->state[i],
                                     &err) != CALLA_OK)
            fail_msg("%s", err.message);
    }
}

static void talk_begin(talk *t, executor *gpu, uint32_t n, bool twins)
{
    calla_error err;
    static const calla_sampling sampling[] = {{0},
                                              {.temperature = 1.0f, .top_k = 20, .seed = 4},
                                              {.temperature = 0.8f,
                                               .top_k = 40,
                                               .top_p = 0.95f,
                                               .presence_penalty = 0.5f,
                                               .repetition_penalty = 1.1f,
                                               .seed = 5}};
    *t = (talk){.gpu = gpu, .n = n};
    t->banned = calloc((m.shape.n_vocab + 31) / 32, sizeof *t->banned);
    assert_non_null(t->banned);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = twins ? i % 2 : i;
        t->text[i] = k;
        t->start[i] = 3 + 2 * k;
        t->first[i] = m.text[k + t->start[i]];
        t->sampling[i] = sampling[n == 1 ? 2 : k];
        t->seq[i] = new_seq(gpu, 30);
        t->state[i] = malloc(gpu->ops->seq_state_bytes(gpu));
        t->logits[i] = rows(STREAM_STEPS);
        feed(gpu, t->seq[i], k, k + t->start[i], 64, NULL);
        if (gpu->ops->seq_state_save(gpu, t->seq[i], t->state[i], &err) != CALLA_OK ||
            sampler_create(&t->sampler[i], m.shape.n_vocab, NULL, 0, &err) != CALLA_OK)
            fail_msg("%s", err.message);
    }
    talk_rewind(t);
}

static void talk_end(talk *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        t->gpu->ops->seq_destroy(t->gpu, t->seq[i]);
        sampler_destroy(t->sampler[i]);
        free(t->state[i]);
        free(t->logits[i]);
    }
    free(t->banned);
}

static void talk_by_steps(talk *t, uint32_t n_steps)
{
    calla_error err;
    exec_segment seg[3];
    t->n_steps = n_steps;
    for (uint32_t k = 0; k < n_steps; k++) {
        for (uint32_t i = 0; i < t->n; i++)
            seg[i] = (exec_segment){t->seq[i], k == 0 ? &t->first[i] : &t->ids[i][k - 1], 1,
                                    EXEC_LOGITS_LAST, t->logits[i] + (size_t)k * m.shape.n_vocab};
        if (t->gpu->ops->run(t->gpu, seg, t->n, &err) != CALLA_OK) fail_msg("%s", err.message);
        for (uint32_t i = 0; i < t->n; i++) {
            assert_int_equal(sampler_draw(t->sampler[i], seg[i].logits, &t->ids[i][k], &err),
                             CALLA_OK);
            sampler_accept(t->sampler[i], t->ids[i][k]);
        }
    }
}

/* The same by a stream: n_steps of it, at most max_steps; stop: sequences of bit i stop at what
 * they draw last; grow: other sequences come and run in between. Ids, then positions and logits
 * must be those of steps. */
static void talk_by_stream(talk *t, uint32_t n_steps, uint32_t max_steps, uint32_t stop, bool grow)
{
    const exec_ops *ops = t->gpu->ops;
    calla_error err;
    exec_stream items[3];
    exec_seq *other = NULL;
    float *got[3] = {0};
    int32_t drawn[3];
    talk_rewind(t);
    for (uint32_t i = 0; i < t->n; i++) {
        items[i] = (exec_stream){.seq = t->seq[i], .token = t->first[i]};
        assert_true(sampler_export(t->sampler[i], &items[i].sampling));
        if ((stop >> i & 1) != 0) {
            items[i].sampling.n_stops = 2;
            items[i].sampling.stops[0] = m.shape.n_vocab - 1;
            items[i].sampling.stops[1] = (uint32_t)t->ids[i][n_steps - 1];
        }
        uint32_t *counts = calloc(m.shape.n_vocab, sizeof *counts);
        sampler_export_counts(t->sampler[i], counts);
        items[i].counts = counts;
        got[i] = rows(1);
    }
    if (ops->stream_begin(t->gpu, items, t->n, t->banned, max_steps, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    assert_int_equal(ops->stream_begin(t->gpu, items, t->n, t->banned, max_steps, &err),
                     CALLA_ERR_FULL);
    for (uint32_t k = 0; k < n_steps; k++) {
        int32_t ids[3];
        if (ops->stream_next(t->gpu, ids, &err) != CALLA_OK) fail_msg("%s", err.message);
        for (uint32_t i = 0; i < t->n; i++)
            assert_int_equal(ids[i], t->ids[i][k]);
        if (!grow || k != 1) continue;
        other = new_seq(t->gpu, 100);
        feed(t->gpu, other, 0, 5, 64, NULL);
        feed(t->gpu, other, 5, 6, 1, NULL);
    }
    if (ops->stream_end(t->gpu, got, drawn, &err) != CALLA_OK) fail_msg("%s", err.message);
    for (uint32_t i = 0; i < t->n; i++) {
        const uint32_t n = n_steps + (n_steps < max_steps && (stop >> i & 1) == 0);
        assert_int_equal(ops->seq_position(t->seq[i]), t->start[i] + n);
        assert_same(got[i], t->logits[i] + (size_t)(n - 1) * m.shape.n_vocab);
        assert_int_equal(drawn[i], n == n_steps ? -1 : t->ids[i][n - 1]);
        if (n < t->n_steps) { /* and it goes on as before */
            const exec_segment seg = {t->seq[i], &t->ids[i][n - 1], 1, EXEC_LOGITS_LAST, got[i]};
            assert_int_equal(ops->run(t->gpu, &seg, 1, &err), CALLA_OK);
            assert_same(got[i], t->logits[i] + (size_t)n * m.shape.n_vocab);
        }
        free(got[i]);
        free((void *)(uintptr_t)items[i].counts);
    }
    ops->seq_destroy(t->gpu, other);
}

/* Where sequence i draws what it drew before, it would stop earlier. */
static bool is_new(const talk *t, uint32_t i, uint32_t k)
{
    bool fresh = true;
    for (uint32_t j = 0; j < k; j++)
        fresh = fresh && t->ids[i][j] != t->ids[i][k];
    return fresh;
}

static void test_streams(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n += 2) {
        executor *gpu = open_gpu(64);
        talk t;
        talk_begin(&t, gpu, n, false);
        talk_by_steps(&t, STREAM_STEPS);
        talk_by_stream(&t, STREAM_STEPS, STREAM_STEPS, 0, false);
        talk_by_stream(&t, 1, 9, 0, false);
        talk_by_stream(&t, 3, 3, 0, true);
        uint32_t k = 4;
        while (!is_new(&t, n - 1, k - 1))
            k--;
        talk_by_stream(&t, k, 9, 1u << (n - 1), false);
        talk_end(&t);
        gpu->ops->destroy(gpu);
    }
}

/* Two stop at once, a third goes on: nothing races. */
static void test_streams_checked(void **state)
{
    (void)state;
    if (is_fast() || is_slow()) skip(); /* it is the emulator that checks */
    executor *gpu = open_checked();
    talk t;
    talk_begin(&t, gpu, 3, true);
    talk_by_steps(&t, 3);
    assert_true(is_new(&t, 0, 1));
    talk_by_stream(&t, 2, 9, 5, false);
    talk_end(&t);
    gpu->ops->destroy(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),          cmocka_unit_test(test_agrees_with_cpu),
        cmocka_unit_test(test_pieces),          cmocka_unit_test(test_company),
        cmocka_unit_test(test_images),          cmocka_unit_test(test_restore),
        cmocka_unit_test(test_device_error),    cmocka_unit_test(test_streams),
        cmocka_unit_test(test_streams_checked), cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_shapes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
