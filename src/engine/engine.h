/* engine.h - what an engine is made of (public part: calla.h).
 *
 * Does:       opens a checkpoint (open.c) or takes ready parts (engine_assemble: tests, other
 *             devices), plans memory, owns the one executor and lends it to sessions.
 * Owns:       everything in the struct. Order of death: executor, weights, checkpoint.
 * Invariants: `device` is held for every call into the executor, and guards `reserved`. All else is
 *             constant once engine_assemble has returned.
 * Memory:     the limit is fixed when the engine opens (the option, else what the system reports
 *             then). Mapped weights + copied + scratch + all sessions stay under it; the weights
 *             are page cache, but a model that does not fit would read its disk for every token.
 */
#ifndef CALLA_ENGINE_ENGINE_H
#define CALLA_ENGINE_ENGINE_H

#include <pthread.h>

#include "exec/executor.h"

#define ENGINE_CHUNK_DEFAULT 512u
#define ENGINE_CHUNK_GPU     2048u
#define ENGINE_CHUNK_MAX     4096u
#define ENGINE_CTX_DEFAULT   4096u

struct calla_engine {
    uint64_t id; /* of no other engine of this process, ever: snapshots may outlive theirs */
    char *model_dir;
    checkpoint *ck;        /* NULL without one */
    model_weights weights; /* zero without a checkpoint */
    model_shape shape;
    calla_tokenizer *tok; /* NULL in tests: then every id stands for a token without bytes */
    executor *ex;
    calla_sampling sampling;
    int32_t *banned; /* [n_banned] ids below n_vocab that stand for no token */
    size_t n_banned;
    uint32_t *banned_bits; /* the same, a bit for each of n_vocab ids */
    uint32_t chunk_tokens;
    uint64_t limit_bytes;
    calla_log_fn log;
    void *log_user;
    pthread_mutex_t device;
    bool has_device;
    uint64_t reserved; /* bytes: scratch, copies, sessions */
};

/* Completes an engine whose shape, executor, and (maybe) tokenizer, checkpoint, weights, limit,
 * log are set; checks that they fit together. On failure the caller destroys it. */
calla_status engine_assemble(calla_engine *e, calla_error *err);

/* Session memory: refuses, with the sum, what would exceed the limit; else counts it. */
calla_status engine_reserve(calla_engine *e, uint32_t n_ctx, calla_error *err);
void engine_release(calla_engine *e, uint32_t n_ctx);

/* Refuses when weights + total exceed limit_bytes; the sentence shows the sum. */
calla_status memory_check(const calla_memory_plan *plan, uint64_t other_sessions,
                          uint64_t limit_bytes, uint32_t n_ctx, calla_error *err);

/* Executor part and the rest of a plan. */
void plan_fill(calla_memory_plan *plan, const exec_plan *exec, const model_weights *weights,
               uint32_t n_vocab, uint32_t n_ctx);

/* The checkpoint's defaults, from the root of generation_config.json or NULL. As in Hugging Face's
 * format, no do_sample means greedy; other absent values are off (temperature 1). */
calla_status sampling_read(calla_sampling *out, const json_value *generation, calla_error *err);

bool engine_is_stop(const calla_engine *e, int32_t id);
void engine_log(const calla_engine *e, calla_log_level level, const char *fmt, ...)
    ATTR_PRINTF(3, 4);

#endif
