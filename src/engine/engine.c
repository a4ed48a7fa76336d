#include "engine/engine.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/ck.h"
#include "engine/sampler.h"
#include "text/tokenizer.h"

const char *calla_version(void)
{
    return CALLA_VERSION;
}

void calla_free(void *p)
{
    mem_free(p);
}

void engine_log(const calla_engine *e, calla_log_level level, const char *fmt, ...)
{
    if (e->log == NULL) return;
    char line[640];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    e->log(e->log_user, level, line);
}

/* ---- Memory ---- */

void plan_fill(calla_memory_plan *plan, const exec_plan *exec, const model_weights *weights,
               uint32_t n_vocab, uint32_t n_ctx)
{
    *plan = (calla_memory_plan){
        .weights_mapped = weights->mapped_bytes,
        .weights_copied = weights->copied_bytes,
        .kv_bytes = exec->kv_bytes,
        .state_bytes = exec->state_bytes,
        .scratch_bytes = exec->scratch_bytes,
        .logits_bytes = n_vocab * (uint64_t)sizeof(float) + sampler_bytes(n_vocab) +
                        n_ctx * (uint64_t)sizeof(int32_t),
    };
    plan->total_bytes = plan->weights_copied + plan->kv_bytes + plan->state_bytes +
                        plan->scratch_bytes + plan->logits_bytes;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

calla_status memory_check(const calla_memory_plan *plan, uint64_t other_sessions,
                          uint64_t limit_bytes, uint32_t n_ctx, calla_error *err)
{
    uint64_t sum;
    if (ck_add(plan->weights_mapped, plan->total_bytes, &sum) &&
        ck_add(sum, other_sessions, &sum) && sum <= limit_bytes)
        return CALLA_OK;
    return err_set(
        err, CALLA_ERR_MEMORY,
        "not enough memory: %.2f GiB of weights (mapped, page cache) + %.1f MiB allocated (copied "
        "weights %.1f + scratch %.1f + a session of %u tokens: key-value cache %.1f, state %.1f, "
        "logits %.1f) + %.1f MiB of other sessions = %.2f GiB, expected at most %.2f GiB",
        gib(plan->weights_mapped), mib(plan->total_bytes), mib(plan->weights_copied),
        mib(plan->scratch_bytes), n_ctx, mib(plan->kv_bytes), mib(plan->state_bytes),
        mib(plan->logits_bytes), mib(other_sessions),
        gib(plan->weights_mapped) + gib(plan->total_bytes) + gib(other_sessions), gib(limit_bytes));
}

static void engine_plan(const calla_engine *e, uint32_t n_ctx, calla_memory_plan *plan)
{
    exec_plan exec;
    e->ex->ops->plan(e->ex, n_ctx, &exec);
    plan_fill(plan, &exec, &e->weights, e->shape.n_vocab, n_ctx);
}

/* Bytes that belong to one session of a plan. */
static uint64_t session_bytes(const calla_memory_plan *plan)
{
    return plan->kv_bytes + plan->state_bytes + plan->logits_bytes;
}

static calla_status check_ctx(const calla_engine *e, uint32_t n_ctx, calla_error *err)
{
    if (n_ctx != 0 && n_ctx <= e->shape.max_context) return CALLA_OK;
    return err_set(err, CALLA_ERR_ARGUMENT,
                   "a session must hold between 1 and %u tokens (max_position_embeddings), found "
                   "%u",
                   e->shape.max_context, n_ctx);
}

calla_status calla_engine_plan(const calla_engine *engine, uint32_t n_ctx, calla_memory_plan *plan,
                               calla_error *err)
{
    const calla_status st = check_ctx(engine, n_ctx, err);
    if (st == CALLA_OK) engine_plan(engine, n_ctx, plan);
    return st;
}

calla_status engine_reserve(calla_engine *e, uint32_t n_ctx, calla_error *err)
{
    calla_memory_plan plan;
    calla_status st = calla_engine_plan(e, n_ctx, &plan, err);
    if (st != CALLA_OK) return st;
    (void)pthread_mutex_lock(&e->device);
    const uint64_t others = e->reserved - plan.scratch_bytes - plan.weights_copied;
    st = memory_check(&plan, others, e->limit_bytes, n_ctx, err);
    if (st == CALLA_OK) e->reserved += session_bytes(&plan);
    (void)pthread_mutex_unlock(&e->device);
    return st;
}

void engine_release(calla_engine *e, uint32_t n_ctx)
{
    calla_memory_plan plan;
    engine_plan(e, n_ctx, &plan);
    (void)pthread_mutex_lock(&e->device);
    e->reserved -= session_bytes(&plan);
    (void)pthread_mutex_unlock(&e->device);
}

/* ---- Life ---- */

static calla_status find_banned(calla_engine *e, calla_error *err)
{
    if (e->tok == NULL) return CALLA_OK;
    const uint32_t n_vocab = e->shape.n_vocab;
    const int32_t n_tokens = calla_tokenizer_size(e->tok);
    if (n_tokens < 1 || (uint32_t)n_tokens > n_vocab)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "tokenizer.json has %d tokens, expected at most the %u rows of the model's "
                       "output matrix",
                       (int)n_tokens, n_vocab);
    size_t n = 0, n_bytes;
    for (uint32_t i = 0; i < n_vocab; i++)
        n += calla_tokenizer_bytes(e->tok, (int32_t)i, &n_bytes) == NULL;
    if (n == n_vocab)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "tokenizer.json has no token below %u, the rows of the model's output "
                       "matrix",
                       n_vocab);
    e->banned = mem_array(n, sizeof *e->banned);
    if (e->banned == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for %zu padding ids", n);
    for (uint32_t i = 0; i < n_vocab; i++)
        if (calla_tokenizer_bytes(e->tok, (int32_t)i, &n_bytes) == NULL)
            e->banned[e->n_banned++] = (int32_t)i;
    return CALLA_OK;
}

calla_status engine_assemble(calla_engine *e, calla_error *err)
{
    static _Atomic uint64_t n_engines;
    e->id = atomic_fetch_add(&n_engines, 1);
    if (pthread_mutex_init(&e->device, NULL) != 0)
        return err_set(err, CALLA_ERR_MEMORY, "cannot create the device lock");
    e->has_device = true;
    if (e->chunk_tokens == 0) e->chunk_tokens = ENGINE_CHUNK_DEFAULT;
    if (e->limit_bytes == 0) e->limit_bytes = UINT64_MAX;
    calla_memory_plan plan;
    engine_plan(e, 1, &plan);
    e->reserved = plan.scratch_bytes + plan.weights_copied;
    const calla_status st = find_banned(e, err);
    if (st != CALLA_OK) return st;
    e->banned_bits = mem_array((e->shape.n_vocab + 31u) / 32, sizeof *e->banned_bits);
    if (e->banned_bits == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for %zu padding ids", e->n_banned);
    for (size_t i = 0; i < e->n_banned; i++)
        e->banned_bits[e->banned[i] / 32] |= 1u << (e->banned[i] % 32);
    return CALLA_OK;
}

const calla_tokenizer *calla_engine_tokenizer(const calla_engine *engine)
{
    return engine->tok;
}

void calla_engine_get_info(const calla_engine *engine, calla_engine_info *info)
{
    const executor *ex = engine->ex;
    *info = (calla_engine_info){
        .model_dir = engine->model_dir,
        .backend = ex->ops->name,
        .variant = ex->ops->variant(ex),
        .n_threads = ex->ops->n_threads(ex),
        .chunk_tokens = engine->chunk_tokens,
        .n_vocab = (int32_t)engine->shape.n_vocab,
        .n_tokens = (int32_t)(engine->shape.n_vocab - engine->n_banned),
        .max_context = engine->shape.max_context,
        .weight_bytes = engine->weights.mapped_bytes,
        .active_bytes = engine->weights.active_bytes,
    };
}

void calla_engine_default_sampling(const calla_engine *engine, calla_sampling *sampling)
{
    *sampling = engine->sampling;
}

bool engine_is_stop(const calla_engine *e, int32_t id)
{
    for (uint32_t i = 0; i < e->shape.n_stop_ids; i++)
        if (e->shape.stop_ids[i] == id) return true;
    return false;
}

/* ---- generation_config.json ---- */

/* Absent or null keeps *out. */
static calla_status read_float(const json_value *root, const char *key, float *out,
                               calla_error *err)
{
    const json_value *v = json_get(root, key);
    double d;
    if (v == NULL || v->type == JSON_NULL) return CALLA_OK;
    if (!json_double(v, &d))
        return err_set(err, CALLA_ERR_FORMAT, "generation_config.json: %s must be a number", key);
    *out = (float)d;
    return CALLA_OK;
}

static calla_status read_top_k(const json_value *root, int32_t *out, calla_error *err)
{
    const json_value *v = json_get(root, "top_k");
    int64_t n;
    if (v == NULL || v->type == JSON_NULL) return CALLA_OK;
    if (!json_int(v, &n) || n < 0 || n > INT32_MAX)
        return err_set(err, CALLA_ERR_FORMAT,
                       "generation_config.json: top_k must be an integer of 0 to %d, found %s",
                       INT32_MAX, v->text != NULL ? v->text : "another type");
    *out = (int32_t)n;
    return CALLA_OK;
}

calla_status sampling_read(calla_sampling *out, const json_value *generation, calla_error *err)
{
    calla_status st;
    *out = (calla_sampling){0};
    const json_value *sample = json_get(generation, "do_sample");
    if (sample != NULL && sample->type != JSON_TRUE && sample->type != JSON_FALSE &&
        sample->type != JSON_NULL)
        return err_set(err, CALLA_ERR_FORMAT,
                       "generation_config.json: do_sample must be true or false");
    out->temperature = 1.0f;
    TRY(read_float(generation, "temperature", &out->temperature, err));
    TRY(read_float(generation, "top_p", &out->top_p, err));
    TRY(read_float(generation, "min_p", &out->min_p, err));
    TRY(read_float(generation, "presence_penalty", &out->presence_penalty, err));
    TRY(read_float(generation, "frequency_penalty", &out->frequency_penalty, err));
    TRY(read_float(generation, "repetition_penalty", &out->repetition_penalty, err));
    TRY(read_top_k(generation, &out->top_k, err));
    st = sampling_check(out, err);
    if (st != CALLA_OK) {
        (void)err_prefix(err, st, "generation_config.json");
        if (err != NULL) err->code = CALLA_ERR_FORMAT;
        return CALLA_ERR_FORMAT;
    }
    if (sample == NULL || sample->type != JSON_TRUE) out->temperature = 0.0f;
fail:
    return st;
}
