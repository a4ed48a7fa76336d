/* A snapshot: tokens, logits, and the executor's state image, in one block of pages:
 *   image  [image_bytes]   at 0 (executors like alignment)
 *   logits [n_vocab] f32   when has_logits
 *   tokens [n_tokens] i32 */
#include <string.h>

#include "base/ck.h"
#include "engine/session.h"
#include "engine/sysmem.h"

struct calla_snapshot {
    uint64_t engine_id;
    uint32_t n_tokens;
    bool has_logits;
    uint8_t *data;
    uint64_t logits_at, tokens_at, n_bytes;
};

static calla_status snapshot_alloc(calla_snapshot **out, const calla_session *s, calla_error *err)
{
    const executor *ex = s->engine->ex;
    const uint64_t row = s->engine->shape.n_vocab * (uint64_t)sizeof(float);
    *out = NULL;
    calla_snapshot *c = mem_alloc(sizeof *c);
    if (c == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a snapshot");
    c->engine_id = s->engine->id;
    c->n_tokens = s->n_tokens;
    c->has_logits = s->has_logits;
    c->logits_at = (ex->ops->seq_image_bytes(ex, s->n_tokens) + 63) & ~(uint64_t)63;
    c->tokens_at = c->logits_at + (s->has_logits ? row : 0);
    c->n_bytes = c->tokens_at + s->n_tokens * (uint64_t)sizeof *s->tokens;
    const uint64_t available = sysmem_available();
    if (c->n_bytes <= available && c->n_bytes <= SIZE_MAX)
        c->data = mem_alloc_pages((size_t)c->n_bytes);
    if (c->data == NULL) {
        const calla_status st =
            err_set(err, CALLA_ERR_MEMORY,
                    "a snapshot of %u tokens needs %.1f MiB, the system has %.1f MiB available",
                    c->n_tokens, (double)c->n_bytes / 1048576.0, (double)available / 1048576.0);
        mem_free(c);
        return st;
    }
    *out = c;
    return CALLA_OK;
}

calla_status calla_session_snapshot(const calla_session *s, calla_snapshot **out, calla_error *err)
{
    *out = NULL;
    calla_status st = session_check(s, err);
    if (st == CALLA_OK) st = snapshot_alloc(out, s, err);
    if (st != CALLA_OK) return st;
    calla_snapshot *c = *out;
    calla_engine *e = s->engine;
    (void)pthread_mutex_lock(&e->device);
    st = e->ex->ops->seq_save(e->ex, s->seq, c->data, err);
    (void)pthread_mutex_unlock(&e->device);
    if (st != CALLA_OK) {
        calla_snapshot_destroy(c);
        *out = NULL;
        return st;
    }
    if (c->has_logits) memcpy(c->data + c->logits_at, s->logits, c->tokens_at - c->logits_at);
    memcpy(c->data + c->tokens_at, s->tokens, c->n_bytes - c->tokens_at);
    return CALLA_OK;
}

calla_status calla_session_restore(calla_session *s, const calla_snapshot *c, calla_error *err)
{
    calla_engine *e = s->engine;
    if (c->engine_id != e->id)
        return err_set(err, CALLA_ERR_ARGUMENT, "the snapshot belongs to another engine");
    if (c->n_tokens > s->n_ctx)
        return err_set(err, CALLA_ERR_FULL,
                       "a snapshot of %u tokens does not fit into a session of %u", c->n_tokens,
                       s->n_ctx);
    (void)pthread_mutex_lock(&e->device);
    const calla_status st = e->ex->ops->seq_load(e->ex, s->seq, c->data, c->n_tokens, err);
    (void)pthread_mutex_unlock(&e->device);
    s->broken = st != CALLA_OK;
    s->has_logits = st == CALLA_OK && c->has_logits;
    if (st != CALLA_OK) return st;
    s->n_tokens = c->n_tokens;
    if (c->has_logits) memcpy(s->logits, c->data + c->logits_at, c->tokens_at - c->logits_at);
    memcpy(s->tokens, c->data + c->tokens_at, c->n_bytes - c->tokens_at);
    return CALLA_OK;
}

uint32_t calla_snapshot_position(const calla_snapshot *c)
{
    return c->n_tokens;
}

uint64_t calla_snapshot_bytes(const calla_snapshot *c)
{
    return c->n_bytes;
}

void calla_snapshot_destroy(calla_snapshot *c)
{
    if (c == NULL) return;
    mem_free_pages(c->data, (size_t)c->n_bytes);
    mem_free(c);
}

calla_status calla_session_fork(calla_session **out, const calla_session *s, calla_error *err)
{
    const calla_session_options options = {.n_ctx = s->n_ctx};
    calla_session *copy = NULL;
    calla_snapshot *snapshot = NULL;
    calla_status st;
    *out = NULL;
    TRY(session_check(s, err));
    TRY(calla_session_create(&copy, s->engine, &options, err));
    TRY(calla_session_snapshot(s, &snapshot, err));
    TRY(calla_session_restore(copy, snapshot, err));
    *out = copy;
    copy = NULL;
fail:
    calla_snapshot_destroy(snapshot);
    calla_session_destroy(copy);
    return st;
}
