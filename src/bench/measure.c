#include "bench/measure.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "bench/machine.h"
#include "exec/gpu/gpu.h"
#include "exec/predict.h"

calla_status measure_init(measure *m, calla_engine *e, const measure_options *o, calla_error *err)
{
    *m = (measure){.e = e, .ex = e->ex, .o = *o, .rng = 1};
    m->ids = mem_array(e->chunk_tokens, sizeof *m->ids);
    m->logits = mem_array(e->shape.n_vocab, sizeof *m->logits);
    if (m->ids != NULL && m->logits != NULL) return CALLA_OK;
    return err_set(err, CALLA_ERR_MEMORY, "no memory for a benchmark");
}

void measure_deinit(measure *m)
{
    mem_free(m->ids);
    mem_free(m->logits);
    *m = (measure){0};
}

/* ---- Running ---- */

static int32_t next_token(measure *m)
{
    m->rng = m->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (int32_t)((m->rng >> 33) % m->e->shape.n_vocab);
}

calla_status measure_feed(measure *m, exec_seq *seq, uint32_t n, double *seconds, calla_error *err)
{
    calla_status st = CALLA_OK;
    const double t0 = time_now();
    while (n != 0 && st == CALLA_OK) {
        const uint32_t k = n < m->e->chunk_tokens ? n : m->e->chunk_tokens;
        for (uint32_t i = 0; i < k; i++)
            m->ids[i] = next_token(m);
        const exec_segment seg = {seq, m->ids, k, k == n ? EXEC_LOGITS_LAST : EXEC_LOGITS_NONE,
                                  k == n ? m->logits : NULL};
        st = m->ex->ops->run(m->ex, &seg, 1, err);
        n -= k;
        if (m->o.progress != NULL && n != 0) m->o.progress(m->o.progress_user, n);
    }
    *seconds = time_now() - t0;
    return st;
}

calla_status measure_prefill(measure *m, uint32_t n, double *seconds, calla_error *err)
{
    exec_seq *seq = NULL;
    calla_status st = m->ex->ops->seq_create(m->ex, n, &seq, err);
    if (st == CALLA_OK) st = measure_feed(m, seq, n, seconds, err);
    m->ex->ops->seq_destroy(m->ex, seq);
    return st;
}

/* Steps drawn by the device, greedily. */
static calla_status stream(measure *m, exec_seq *seq, double *t, calla_error *err)
{
    const exec_ops *ops = m->ex->ops;
    const exec_stream item = {.seq = seq,
                              .token = next_token(m),
                              .sampling = {.top_k = 1, .greedy = 1, .by = 1, .repetition = 1}};
    const uint32_t n = m->o.steps + MEASURE_WARM;
    int32_t id;
    calla_status st = ops->stream_begin(m->ex, &item, 1, m->e->banned_bits, n + MEASURE_AHEAD, err);
    if (st != CALLA_OK) return st;
    for (uint32_t i = 0; i < n && st == CALLA_OK; i++) {
        const double t0 = time_now();
        st = ops->stream_next(m->ex, &id, err);
        if (i >= MEASURE_WARM) t[i - MEASURE_WARM] = time_now() - t0;
    }
    float *const logits[] = {NULL};
    return st == CALLA_OK ? ops->stream_end(m->ex, logits, NULL, err) : st;
}

calla_status measure_decode(measure *m, exec_seq *seq, double *seconds, calla_error *err)
{
    calla_status st = CALLA_OK;
    double warm;
    if (m->ex->ops->stream_begin != NULL) {
        st = stream(m, seq, seconds, err);
        if (st != CALLA_ERR_FULL) return st; /* the device may not draw (gpu_argmax) */
        st = CALLA_OK;
    }
    for (uint32_t i = 0; i < MEASURE_WARM && st == CALLA_OK; i++)
        st = measure_feed(m, seq, 1, &warm, err);
    for (uint32_t i = 0; i < m->o.steps && st == CALLA_OK; i++)
        st = measure_feed(m, seq, 1, &seconds[i], err);
    return st;
}

/* ---- What a token must do ---- */

static uint32_t n_full(const model_shape *s)
{
    return s->n_layers / s->full_interval;
}

double measure_prefill_flops(const model_shape *s, uint32_t n)
{
    return 2.0 * shape_macs(s) + 4.0 * shape_q_width(s) * n_full(s) * (n / 2.0);
}

double measure_decode_flops(const model_shape *s, uint32_t n)
{
    return 2.0 * shape_macs(s) + 2.0 * s->n_vocab * s->hidden +
           4.0 * shape_q_width(s) * n_full(s) * (double)n;
}

static double matrix_bytes(const matrix *w)
{
    const double params = w->scales != NULL ? w->cols / (double)MODEL_QUANT_GROUP * 4.0 : 0.0;
    return w->rows * ((double)w->row_bytes + params);
}

/* Of the experts of one token, in all layers. */
static double expert_bytes(const measure *m)
{
    double sum = 0.0;
    for (uint32_t i = 0; m->e->weights.layers != NULL && i < m->e->shape.n_layers; i++) {
        const layer_weights *l = &m->e->weights.layers[i];
        sum += matrix_bytes(&l->gate.first) + matrix_bytes(&l->up.first) +
               matrix_bytes(&l->down.first);
    }
    return sum * m->e->shape.n_experts_used;
}

double measure_prefill_bytes(const measure *m, uint32_t n)
{
    const model_shape *s = &m->e->shape;
    const double experts = expert_bytes(m), head = matrix_bytes(&m->e->weights.lm_head);
    const double dense = (double)m->e->weights.active_bytes - experts - head;
    const double miss = 1.0 - (double)s->n_experts_used / s->n_experts;
    const double all = (double)s->n_experts / s->n_experts_used;
    double bytes = head;
    exec_plan plan;
    for (uint32_t at = 0; at < n;) {
        const uint32_t k = n - at < m->e->chunk_tokens ? n - at : m->e->chunk_tokens;
        at += k;
        m->ex->ops->plan(m->ex, at, &plan);
        bytes += dense + experts * all * (1.0 - pow(miss, k)) + (double)plan.kv_bytes +
                 2.0 * (double)plan.state_bytes;
    }
    return bytes / n;
}

double measure_decode_bytes(const measure *m, uint32_t n)
{
    exec_plan plan;
    m->ex->ops->plan(m->ex, n, &plan);
    return (double)m->e->weights.active_bytes + (double)plan.kv_bytes +
           2.0 * (double)plan.state_bytes;
}

/* ---- Counts ---- */

typedef struct counts {
    uint32_t kernels, stages;
    bool by_level; /* else each is a stage */
} counts;

static void count(void *user, const exec_stage *s)
{
    counts *c = user;
    c->kernels++;
    if (!c->by_level)
        c->stages++;
    else if (s->level + 1 > c->stages)
        c->stages = s->level + 1;
}

/* Of a chunk that ends at n_ctx, or of a step there, without running it. */
static bool count_gpu(const measure *m, bool prefill, uint32_t n, uint32_t n_ctx, counts *c)
{
    const gpu_exec *ex = gpu_self_c(m->ex);
    gpu_limits lim;
    calla_error ignored;
    ex->dev->ops->limits(ex->dev, &lim);
    const exec_chip chip = {.n_cores = lim.n_cores, .native_mm = (uint32_t)lim.native_mm};
    *c = (counts){.by_level = true};
    return exec_gpu_schedule(&m->e->shape, &chip, prefill, n, n_ctx, count, c, &ignored) ==
           CALLA_OK;
}

static void count_chunks(const measure *m, bench_result *r)
{
    double kernels = 0.0, stages = 0.0;
    for (uint32_t at = 0; at < r->tokens;) {
        const uint32_t left = r->tokens - at;
        const uint32_t k = left < m->e->chunk_tokens ? left : m->e->chunk_tokens;
        counts c;
        at += k;
        if (!count_gpu(m, true, k, at, &c)) return;
        kernels += c.kernels;
        stages += c.stages;
    }
    r->kernels = kernels / r->tokens;
    r->stages = stages / r->tokens;
}

void measure_counts(measure *m, bench_result *r)
{
    const bool prefill = strcmp(r->kind, "prefill") == 0;
    counts c = {0};
    calla_error ignored;
    if (machine_is_gpu(m->e)) {
        if (prefill) {
            count_chunks(m, r);
            return;
        }
        if (!count_gpu(m, false, 1, r->tokens, &c)) return;
    } else if (prefill || m->ex->ops->profile == NULL ||
               m->ex->ops->profile(m->ex, false, 1, 1, count, &c, &ignored) != CALLA_OK) {
        return;
    }
    r->kernels = c.kernels;
    r->stages = c.stages;
}

uint64_t measure_memory(const measure *m, uint32_t n)
{
    exec_plan plan;
    if (!machine_is_gpu(m->e)) {
        bench_memory now;
        machine_memory(&now);
        return now.anonymous + now.mapped;
    }
    m->ex->ops->plan(m->ex, n, &plan);
    return plan.weight_bytes + plan.scratch_bytes + plan.kv_bytes + plan.state_bytes;
}

bench_result measure_result(measure *m, const char *kind, uint32_t n)
{
    const bool prefill = strcmp(kind, "prefill") == 0;
    bench_result r = {.kind = kind, .tokens = n, .memory = measure_memory(m, n)};
    r.bytes = prefill ? measure_prefill_bytes(m, n) : measure_decode_bytes(m, n);
    r.flops =
        prefill ? measure_prefill_flops(&m->e->shape, n) : measure_decode_flops(&m->e->shape, n);
    return r;
}
