/* From a folder to an engine. */
#include <string.h>

#include "engine/engine.h"
#include "engine/sysmem.h"
#include "text/chat.h"

static calla_status check_options(const calla_engine_options *o, calla_error *err)
{
    if (o == NULL || o->model_dir == NULL)
        return err_set(err, CALLA_ERR_ARGUMENT, "model_dir is missing");
    if (o->backend != NULL && strcmp(o->backend, "auto") != 0 && strcmp(o->backend, "cpu") != 0)
        return err_set(err, CALLA_ERR_ARGUMENT, "backend must be \"auto\" or \"cpu\", found \"%s\"",
                       o->backend);
    if (o->chunk_tokens > ENGINE_CHUNK_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "chunk_tokens must be at most %u, found %u",
                       ENGINE_CHUNK_MAX, o->chunk_tokens);
    if (o->kv_type != CALLA_KV_DEFAULT && o->kv_type != CALLA_KV_BF16 && o->kv_type != CALLA_KV_F32)
        return err_set(err, CALLA_ERR_ARGUMENT, "kv_type must be bf16 or f32, found %d",
                       (int)o->kv_type);
    return CALLA_OK;
}

/* The smallest plan that is of use (one default session) must fit before anything is allocated. */
static calla_status check_memory(const calla_engine *e, const exec_options *eo, calla_error *err)
{
    const uint32_t n_ctx =
        e->shape.max_context < ENGINE_CTX_DEFAULT ? e->shape.max_context : ENGINE_CTX_DEFAULT;
    exec_plan exec;
    calla_memory_plan plan;
    exec_cpu_plan(&e->shape, eo, n_ctx, &exec);
    plan_fill(&plan, &exec, &e->weights, e->shape.n_vocab, n_ctx);
    return memory_check(&plan, 0, e->limit_bytes, n_ctx, err);
}

static calla_status open_parts(calla_engine *e, const calla_engine_options *o, calla_error *err)
{
    calla_status st;
    calla_error warning;
    const exec_options eo = {
        .n_threads = o->n_threads,
        .chunk_tokens = o->chunk_tokens == 0 ? ENGINE_CHUNK_DEFAULT : o->chunk_tokens,
        .kv_type = o->kv_type == CALLA_KV_DEFAULT ? CALLA_KV_BF16 : o->kv_type,
        .variant = o->cpu_variant,
    };
    e->model_dir = mem_strdup(o->model_dir);
    if (e->model_dir == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for an engine");
    e->log = o->log;
    e->log_user = o->log_user;
    e->chunk_tokens = eo.chunk_tokens;
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
    TRY(check_memory(e, &eo, err));
    TRY(calla_tokenizer_open(&e->tok, o->model_dir, err));
    if (chat_template_check(o->model_dir, &warning) != CALLA_OK)
        engine_log(e, CALLA_LOG_WARN, "%s", warning.message);
    TRY(exec_cpu_create(&e->ex, &e->shape, &e->weights, &eo, err));
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
    mem_free(e->model_dir);
    mem_free(e);
}
