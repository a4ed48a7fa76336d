/* The steps of a forward pass, timed as they run. */
#include <string.h>

#include "base/mem.h"
#include "exec/cpu/cpu.h"

static void tell(const cpu_exec *ex, cpu_step step, uint32_t n_tasks, double t0)
{
    const exec_stage stage = {.kernel = ex->kern.name,
                              .label = step.label,
                              .groups = n_tasks,
                              .threads = ex->n_threads,
                              .bytes = step.bytes,
                              .flops = step.flops,
                              .seconds = time_now() - t0};
    ex->stage(ex->stage_user, &stage);
}

void cpu_run(cpu_exec *ex, cpu_step step, pool_fn fn, void *ctx, uint32_t n_tasks)
{
    const double t0 = ex->stage == NULL ? 0.0 : time_now();
    pool_run(ex->pool, fn, ctx, n_tasks);
    if (ex->stage != NULL) tell(ex, step, n_tasks, t0);
}

void cpu_run_ranges(cpu_exec *ex, cpu_step step, pool_range_fn fn, void *ctx, uint32_t n_tasks)
{
    const double t0 = ex->stage == NULL ? 0.0 : time_now();
    pool_run_ranges(ex->pool, fn, ctx, n_tasks);
    if (ex->stage != NULL) tell(ex, step, n_tasks, t0);
}

/* Keys and values become resident and small. */
static void fill(exec_seq *seq)
{
    memset(seq->k, 0x3c, (size_t)seq->kv_bytes);
    memset(seq->v, 0x3c, (size_t)seq->kv_bytes);
}

static calla_status run_once(cpu_exec *ex, exec_seq **seqs, uint32_t n_seqs, uint32_t n_tokens,
                             uint32_t pos, int32_t *ids, float *logits, calla_error *err)
{
    exec_segment segs[16];
    const uint32_t n_vocab = ex->shape->n_vocab;
    for (uint32_t i = 0; i < n_tokens; i++)
        ids[i] = (int32_t)(((uint64_t)ids[i] * 7919 + i * 104729u + 13) % n_vocab);
    for (uint32_t i = 0; i < n_seqs; i++)
        seqs[i]->n_tokens = pos;
    for (uint32_t i = 0; i < n_seqs; i++)
        segs[i] = (exec_segment){seqs[i], ids + i, n_tokens / n_seqs, EXEC_LOGITS_LAST,
                                 logits + (size_t)i * n_vocab};
    return cpu_forward(ex, segs, n_seqs, err);
}

calla_status cpu_profile(executor *base, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                         exec_stage_fn fn, void *user, calla_error *err)
{
    cpu_exec *ex = (cpu_exec *)base;
    exec_seq *seqs[16] = {NULL};
    const uint32_t n_seqs = prefill ? 1 : n_tokens;
    const uint32_t pos = prefill ? (n_ctx > n_tokens ? n_ctx - n_tokens : 0) : n_ctx;
    calla_status st = CALLA_OK;
    if (n_tokens == 0 || n_tokens > ex->chunk || n_seqs > 16)
        return err_set(err, CALLA_ERR_ARGUMENT, "a step of %u tokens cannot be profiled", n_tokens);
    int32_t *ids = mem_array(n_tokens, sizeof *ids);
    float *logits = mem_array((size_t)n_seqs * ex->shape->n_vocab, sizeof *logits);
    if (ids == NULL || logits == NULL)
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for a profile");
    for (uint32_t i = 0; i < n_seqs && st == CALLA_OK; i++) {
        st = base->ops->seq_create(base, pos + n_tokens, &seqs[i], err);
        if (st == CALLA_OK) fill(seqs[i]);
    }
    for (uint32_t i = 0; i < 4 && st == CALLA_OK; i++) { /* the last one counts */
        ex->stage = i == 3 ? fn : NULL;
        ex->stage_user = user;
        st = run_once(ex, seqs, n_seqs, n_tokens, pos, ids, logits, err);
    }
    ex->stage = NULL;
    for (uint32_t i = 0; i < n_seqs; i++)
        base->ops->seq_destroy(base, seqs[i]);
    mem_free(ids);
    mem_free(logits);
    return st;
}
