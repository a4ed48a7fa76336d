/* session.h - one timeline of tokens (public part: calla.h).
 *
 * Owns:       an executor sequence, its tokens, the logits after the last one, a sampler.
 * Invariants: n_tokens == the executor's position, and has_logits when n_tokens > 0, unless a run
 *             failed: then logits are forgotten (until the next feed), or, when the executor
 *             moved half-way, the session is broken until reset or restore.
 * Threads:    one at a time, but for `cancelled`, which any thread or signal handler may set. A
 *             request is consumed by the call that it stops; one that comes while nothing runs
 *             stops the next call.
 */
#ifndef CALLA_ENGINE_SESSION_H
#define CALLA_ENGINE_SESSION_H

#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/sampler.h"

struct calla_session {
    calla_engine *engine;
    exec_seq *seq;
    uint32_t n_ctx, n_tokens;
    int32_t *tokens; /* [n_ctx] */
    float *logits;   /* [n_vocab] */
    sampler *sampler;
    bool has_logits, broken, reserved;
    atomic_bool cancelled;
};

/* Fails when the session is broken. */
calla_status session_check(const calla_session *s, calla_error *err);

#endif
