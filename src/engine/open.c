/* From a folder to an engine. */
#include <string.h>

#include "base/pool.h"
#include "engine/engine.h"
#include "engine/sysmem.h"
#include "format/residence.h"
#include "text/chat.h"

/* What "auto" tries before the CPU. */
#if defined(__APPLE__)
#define GPU_DRIVER "metal"
#else
#define GPU_DRIVER "cuda"
#endif

#define MAP_SECONDS 0.1 /* enough for all weights in large pages */

static bool is_backend(const char *name)
{
    static const char *const names[] = {"auto", "cpu", "metal", "cuda", "simt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (name == NULL || strcmp(name, names[i]) == 0) return true;
    return false;
}

static calla_status check_options(const calla_engine_options *o, calla_error *err)
{
    if (o == NULL || o->model_dir == NULL)
        return err_set(err, CALLA_ERR_ARGUMENT, "model_dir is missing");
    if (!is_backend(o->backend))
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "backend must be \"auto\", \"cpu\", \"metal\", \"cuda\" or \"simt\", found "
                       "\"%s\"",
                       o->backend);
    if (o->chunk_tokens > ENGINE_CHUNK_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "chunk_tokens must be at most %u, found %u",
                       ENGINE_CHUNK_MAX, o->chunk_tokens);
    if (o->kv_type != CALLA_KV_DEFAULT && o->kv_type != CALLA_KV_BF16 && o->kv_type != CALLA_KV_F32)
        return err_set(err, CALLA_ERR_ARGUMENT, "kv_type must be bf16 or f32, found %d",
                       (int)o->kv_type);
    if ((int)o->precision < CALLA_PRECISION_DEFAULT || o->precision > CALLA_PRECISION_INT8)
        return err_set(err, CALLA_ERR_ARGUMENT, "precision must be exact, int16 or int8, found %d",
                       (int)o->precision);
    return CALLA_OK;
}

/* The smallest plan that is of use (one session) must fit before anything is allocated. */
static calla_status check_memory(const calla_engine *e, const exec_options *eo, uint64_t limit,
                                 calla_error *err)
{
    const uint32_t asked = eo->n_ctx == 0 ? ENGINE_CTX_DEFAULT : eo->n_ctx;
    const uint32_t n_ctx = e->shape.max_context < asked ? e->shape.max_context : asked;
    exec_plan exec;
    calla_memory_plan plan;
    exec_cpu_plan(&e->shape, eo, n_ctx, &exec);
    plan_fill(&plan, &exec, &e->weights, e->shape.n_vocab, n_ctx);
    return memory_check(&plan, 0, limit, n_ctx, err);
}

/* Weights that are on disk only: read at once, in order and in large pages. Left to the forward
 * pass they would come in small pieces, out of order, and in small pages for as long as the system
 * keeps them. Not when they would push each other out: the caller's limit may be above what there
 * is. */
static calla_status fill_memory(const calla_engine *e, const exec_options *eo, calla_error *err)
{
    const double t0 = time_now();
    uint64_t n = 0;
    if (check_memory(e, eo, sysmem_available(), NULL) != CALLA_OK) return CALLA_OK;
    const calla_status st = residence_fill(e->ck, eo->progress, eo->progress_user, &n, err);
    if (n != 0)
        engine_log(e, CALLA_LOG_INFO, "read %.2f GB of weights into memory in %.1f s",
                   (double)n / 1e9, time_now() - t0);
    if (st == CALLA_OK) (void)residence_map(e->ck, MAP_SECONDS);
    return st;
}

/* eo without a chunk size: what suits the device. */
static exec_options with_chunk(calla_engine *e, const exec_options *eo, uint32_t n)
{
    exec_options with = *eo;
    if (with.chunk_tokens == 0) with.chunk_tokens = n;
    e->chunk_tokens = with.chunk_tokens;
    return with;
}

static calla_status open_cpu(calla_engine *e, const exec_options *eo, calla_error *err)
{
    const exec_options with = with_chunk(e, eo, ENGINE_CHUNK_DEFAULT);
    calla_status st;
    TRY(check_memory(e, &with, e->limit_bytes, err));
    TRY(fill_memory(e, &with, err));
    TRY(exec_cpu_create(&e->ex, &e->shape, &e->weights, &with, err));
fail:
    return st;
}

/* The device's memory is checked by its executor, when weights and sequences are placed there. */
static calla_status open_gpu(calla_engine *e, const char *driver, const exec_options *eo,
                             calla_error *err)
{
    exec_options with = with_chunk(e, eo, ENGINE_CHUNK_GPU);
    with.source = e->ck;
    const calla_status st = exec_gpu_open(&e->ex, driver, &e->shape, &e->weights, &with, err);
    if (st == CALLA_OK) e->limit_bytes = UINT64_MAX;
    return st;
}

/* "auto": a GPU when there is one that can hold the model; why not, in the log. */
static calla_status open_executor(calla_engine *e, const calla_engine_options *o,
                                  const exec_options *eo, calla_error *err)
{
    const char *name = o->backend == NULL ? "auto" : o->backend;
    calla_error why;
    if (strcmp(name, "cpu") == 0) return open_cpu(e, eo, err);
    if (strcmp(name, "auto") != 0) return open_gpu(e, name, eo, err);
    if (o->cpu_variant != NULL || o->kv_type == CALLA_KV_F32) return open_cpu(e, eo, err);
    const calla_status st = open_gpu(e, GPU_DRIVER, eo, &why);
    if (st == CALLA_OK || st == CALLA_ERR_CANCELLED) {
        if (st != CALLA_OK && err != NULL) *err = why;
        return st;
    }
    engine_log(e, why.code == CALLA_ERR_UNSUPPORTED ? CALLA_LOG_DEBUG : CALLA_LOG_WARN,
               "no GPU is used: %s", why.message);
    return open_cpu(e, eo, err);
}

static calla_status open_parts(calla_engine *e, const calla_engine_options *o, calla_error *err)
{
    calla_status st;
    calla_error warning;
    const exec_options eo = {
        .n_threads = o->n_threads,
        .chunk_tokens = o->chunk_tokens,
        .kv_type = o->kv_type == CALLA_KV_DEFAULT ? CALLA_KV_BF16 : o->kv_type,
        .variant = o->cpu_variant,
        .precision = o->precision,
        .n_ctx = o->n_ctx,
        .pack_dir = o->pack_dir,
        .progress = o->progress,
        .progress_user = o->progress_user,
        .log = o->log,
        .log_user = o->log_user,
    };
    e->model_dir = mem_strdup(o->model_dir);
    if (e->model_dir == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for an engine");
    e->log = o->log;
    e->log_user = o->log_user;
    e->limit_bytes = o->memory_limit_bytes != 0 ? o->memory_limit_bytes : sysmem_available();

    TRY(checkpoint_open(&e->ck, o->model_dir, err));
    const json_value *generation = checkpoint_generation_config(e->ck);
    TRY(shape_read(&e->shape, checkpoint_config(e->ck), generation, err));
    TRY(sampling_read(&e->sampling, generation, err));
    TRY(weights_bind(&e->weights, e->ck, &e->shape, err));
    if (e->weights.n_skipped_vision != 0 || e->weights.n_skipped_mtp != 0)
        engine_log(e, CALLA_LOG_INFO,
                   "skipped %u vision and %u multi-token-prediction tensors (%.1f MB)",
                   e->weights.n_skipped_vision, e->weights.n_skipped_mtp,
                   (double)e->weights.skipped_bytes / 1e6);
    TRY(calla_tokenizer_open(&e->tok, o->model_dir, err));
    if (chat_template_check(o->model_dir, &warning) != CALLA_OK)
        engine_log(e, CALLA_LOG_WARN, "%s", warning.message);
    TRY(open_executor(e, o, &eo, err));
    TRY(engine_assemble(e, err));
fail:
    return st;
}

static void log_ready(const calla_engine *e)
{
    calla_engine_info i;
    calla_engine_get_info(e, &i);
    engine_log(e, CALLA_LOG_INFO,
               "%s: %u layers, %u experts, %d tokens; %s (%s), %u threads, chunks of %u, %.1f MB "
               "of weights, %.1f MB read a token",
               i.model_dir, e->shape.n_layers, e->shape.n_experts, (int)i.n_tokens, i.backend,
               i.variant, i.n_threads, i.chunk_tokens, (double)i.weight_bytes / 1e6,
               (double)i.active_bytes / 1e6);
}

calla_status calla_engine_create(calla_engine **out, const calla_engine_options *options,
                                 calla_error *err)
{
    *out = NULL;
    calla_status st = check_options(options, err);
    if (st != CALLA_OK) return st;
    calla_engine *e = mem_alloc(sizeof *e);
    if (e == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for an engine");
    st = open_parts(e, options, err);
    if (st != CALLA_OK) {
        calla_engine_destroy(e);
        return st;
    }
    log_ready(e);
    *out = e;
    return CALLA_OK;
}

void calla_engine_destroy(calla_engine *e)
{
    if (e == NULL) return;
    if (e->ex != NULL) e->ex->ops->destroy(e->ex);
    calla_tokenizer_close(e->tok);
    weights_unbind(&e->weights);
    checkpoint_close(e->ck);
    if (e->has_device) (void)pthread_mutex_destroy(&e->device);
    mem_free(e->banned);
    mem_free(e->banned_bits);
    mem_free(e->model_dir);
    mem_free(e);
}
