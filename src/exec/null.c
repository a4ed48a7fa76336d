#include "exec/null.h"

#include <assert.h>
#include <string.h>

#include "base/ck.h"
#include "base/mem.h"

struct exec_seq {
    uint64_t state;
    uint32_t n_ctx, n_tokens;
    int32_t *tokens; /* [n_ctx] */
    bool streaming;
};

typedef struct null_stream {
    uint32_t n; /* 0: none */
    exec_seq *seqs[EXEC_STREAM_MAX];
    int32_t next[EXEC_STREAM_MAX]; /* that it has not taken */
    sample_entry entries[EXEC_STREAM_MAX];
    uint32_t *counts[EXEC_STREAM_MAX]; /* [n_vocab]; NULL: not counted */
    bool ended[EXEC_STREAM_MAX];       /* next is a stop id */
    uint32_t n_steps, max_steps;
} null_stream;

typedef struct null_executor {
    executor base;
    exec_ops ops; /* base.ops points here */
    null_stream stream;
    uint64_t max_streams, n_streams, n_stream_steps;
    uint32_t *banned;
    float *logits; /* [n_vocab] */
    uint32_t n_vocab, chunk_tokens;
    exec_null_fault fault;
    uint32_t runs_to_fault;
    int32_t refused_token;
    calla_status refused_status;
    uint64_t n_runs;
} null_executor;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static void null_logits(const null_executor *ex, uint64_t state, float *out)
{
    for (uint32_t i = 0; i < ex->n_vocab; i++)
        out[i] = (float)(mix(state + i) >> 48) * (16.0f / 65536.0f) - 8.0f;
}

static void null_destroy(executor *base)
{
    null_executor *ex = (null_executor *)base;
    if (ex == NULL) return;
    for (uint32_t i = 0; i < EXEC_STREAM_MAX; i++)
        mem_free(ex->stream.counts[i]);
    mem_free(ex->banned);
    mem_free(ex->logits);
    mem_free(ex);
}

static const char *null_variant(const executor *ex)
{
    (void)ex;
    return "none";
}

static uint32_t null_n_threads(const executor *ex)
{
    (void)ex;
    return 1;
}

static void null_plan(const executor *ex, uint32_t n_ctx, exec_plan *plan)
{
    (void)ex;
    *plan = (exec_plan){.kv_bytes = (uint64_t)n_ctx * sizeof(int32_t), .state_bytes = 8};
}

static void null_seq_destroy(executor *ex, exec_seq *seq)
{
    (void)ex;
    if (seq == NULL) return;
    assert(!seq->streaming);
    mem_free(seq->tokens);
    mem_free(seq);
}

static calla_status null_seq_create(executor *ex, uint32_t n_ctx, exec_seq **out, calla_error *err)
{
    exec_seq *seq = mem_alloc(sizeof *seq);
    *out = NULL;
    if (seq != NULL) seq->tokens = mem_array(n_ctx, sizeof *seq->tokens);
    if (seq == NULL || seq->tokens == NULL) {
        null_seq_destroy(ex, seq);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a sequence of %u tokens", n_ctx);
    }
    seq->n_ctx = n_ctx;
    *out = seq;
    return CALLA_OK;
}

static uint32_t null_seq_position(const exec_seq *seq)
{
    return seq->n_tokens;
}

static void null_seq_reset(executor *ex, exec_seq *seq)
{
    (void)ex;
    assert(!seq->streaming);
    seq->n_tokens = 0;
    seq->state = 0;
}

static uint64_t next_state(uint64_t state, int32_t token)
{
    return mix(state ^ ((uint64_t)token + 0x9e3779b97f4a7c15u));
}

/* Does the state belong to the tokens? It would not after a bad restore. */
static bool state_is_right(const exec_seq *seq)
{
    uint64_t state = 0;
    for (uint32_t i = 0; i < seq->n_tokens; i++)
        state = next_state(state, seq->tokens[i]);
    return state == seq->state;
}

static calla_status in_stream(calla_error *err)
{
    return err_set(err, CALLA_ERR_INTERNAL, "the sequence is in a stream that is running");
}

static calla_status null_check(const null_executor *ex, const exec_segment *segs, uint32_t n_segs,
                               calla_error *err)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        const exec_segment *g = &segs[i];
        n += g->n_tokens;
        if (g->n_tokens == 0 || g->n_tokens > g->seq->n_ctx - g->seq->n_tokens ||
            (g->want != EXEC_LOGITS_NONE) != (g->logits != NULL))
            return err_set(err, CALLA_ERR_INTERNAL, "segment %u breaks the executor's contract", i);
        if (g->seq->streaming) return in_stream(err);
        if (!state_is_right(g->seq))
            return err_set(err, CALLA_ERR_INTERNAL,
                           "segment %u: the state is not that of the %u "
                           "tokens before it",
                           i, g->seq->n_tokens);
        for (uint32_t t = 0; t < g->n_tokens; t++)
            if (g->tokens[t] < 0 || (uint32_t)g->tokens[t] >= ex->n_vocab)
                return err_set(err, CALLA_ERR_INTERNAL, "token id %d is outside the vocabulary",
                               (int)g->tokens[t]);
    }
    if (n > ex->chunk_tokens)
        return err_set(err, CALLA_ERR_INTERNAL, "a run of %u tokens is longer than a chunk",
                       (uint32_t)n);
    return CALLA_OK;
}

static calla_status null_refuse(const null_executor *ex, const exec_segment *segs, uint32_t n_segs,
                                calla_error *err)
{
    for (uint32_t i = 0; i < n_segs; i++)
        for (uint32_t t = 0; t < segs[i].n_tokens; t++)
            if (segs[i].tokens[t] == ex->refused_token)
                return err_set(err, ex->refused_status, "segment %u is refused as arranged", i);
    return CALLA_OK;
}

static void null_append(const null_executor *ex, const exec_segment *g)
{
    for (uint32_t t = 0; t < g->n_tokens; t++) {
        exec_seq *seq = g->seq;
        seq->tokens[seq->n_tokens++] = g->tokens[t];
        seq->state = next_state(seq->state, g->tokens[t]);
        if (g->want == EXEC_LOGITS_ALL)
            null_logits(ex, seq->state, g->logits + (size_t)t * ex->n_vocab);
    }
    if (g->want == EXEC_LOGITS_LAST) null_logits(ex, g->seq->state, g->logits);
}

static calla_status null_run(executor *base, const exec_segment *segs, uint32_t n_segs,
                             calla_error *err)
{
    null_executor *ex = (null_executor *)base;
    ex->n_runs++;
    calla_status st = null_check(ex, segs, n_segs, err);
    if (st == CALLA_OK) st = null_refuse(ex, segs, n_segs, err);
    if (st != CALLA_OK) return st;
    if (ex->fault != NULL_FAULT_NONE && ex->runs_to_fault-- == 0) {
        const exec_null_fault fault = ex->fault;
        ex->fault = NULL_FAULT_NONE;
        for (uint32_t i = 0; i < n_segs; i++) {
            if (segs[i].logits != NULL) segs[i].logits[0] = 1e9f; /* a run may leave rubbish */
            if (fault == NULL_FAULT_BROKEN) segs[i].seq->n_tokens++;
        }
        return err_set(err, CALLA_ERR_INTERNAL, "the null device failed as arranged");
    }
    for (uint32_t i = 0; i < n_segs; i++)
        null_append(ex, &segs[i]);
    return CALLA_OK;
}

/* Image: the state (8 bytes), then the tokens (4 bytes each). */
static uint64_t null_image_bytes(const executor *ex, uint32_t n_tokens)
{
    (void)ex;
    return sizeof(uint64_t) + (uint64_t)n_tokens * sizeof(int32_t);
}

static calla_status null_seq_save(executor *ex, const exec_seq *seq, uint8_t *image,
                                  calla_error *err)
{
    (void)ex;
    if (seq->streaming) return in_stream(err);
    memcpy(image, &seq->state, sizeof seq->state);
    memcpy(image + sizeof seq->state, seq->tokens, seq->n_tokens * sizeof *seq->tokens);
    return CALLA_OK;
}

static calla_status null_seq_load(executor *ex, exec_seq *seq, const uint8_t *image,
                                  uint32_t n_tokens, calla_error *err)
{
    (void)ex;
    if (seq->streaming) return in_stream(err);
    if (n_tokens > seq->n_ctx)
        return err_set(err, CALLA_ERR_FULL, "an image of %u tokens does not fit into %u", n_tokens,
                       seq->n_ctx);
    memcpy(&seq->state, image, sizeof seq->state);
    memcpy(seq->tokens, image + sizeof seq->state, n_tokens * sizeof *seq->tokens);
    seq->n_tokens = n_tokens;
    return CALLA_OK;
}

static uint64_t null_state_bytes(const executor *ex)
{
    (void)ex;
    return sizeof(uint64_t);
}

static calla_status null_state_save(executor *ex, const exec_seq *seq, uint8_t *state,
                                    calla_error *err)
{
    (void)ex;
    if (seq->streaming) return in_stream(err);
    memcpy(state, &seq->state, sizeof seq->state);
    return CALLA_OK;
}

static calla_status null_restore(executor *ex, exec_seq *dst, const exec_seq *src,
                                 uint32_t n_tokens, const uint8_t *state, calla_error *err)
{
    (void)ex;
    if (dst->streaming || src->streaming) return in_stream(err);
    if (dst != src) memcpy(dst->tokens, src->tokens, n_tokens * sizeof *src->tokens);
    memcpy(&dst->state, state, sizeof dst->state);
    dst->n_tokens = n_tokens;
    return CALLA_OK;
}

/* ---- Streams ---- */

static calla_status stream_check(const null_executor *ex, const exec_stream *items, uint32_t n,
                                 uint32_t max_steps, calla_error *err)
{
    if (ex->stream.n != 0 || ex->n_streams == ex->max_streams)
        return err_set(err, CALLA_ERR_FULL, "another stream is running");
    if (n == 0 || n > EXEC_STREAM_MAX || max_steps == 0)
        return err_set(err, CALLA_ERR_INTERNAL, "a stream of %u sequences", n);
    for (uint32_t i = 0; i < n; i++) {
        const exec_seq *seq = items[i].seq;
        if (max_steps > seq->n_ctx - seq->n_tokens || seq->streaming || !state_is_right(seq))
            return err_set(err, CALLA_ERR_INTERNAL, "a stream breaks the executor's contract");
        if (items[i].token == ex->refused_token)
            return err_set(err, ex->refused_status, "a stream is refused as arranged");
    }
    return CALLA_OK;
}

static calla_status null_stream_begin(executor *base, const exec_stream *items, uint32_t n,
                                      const uint32_t *banned, uint32_t max_steps, calla_error *err)
{
    null_executor *ex = (null_executor *)base;
    null_stream *t = &ex->stream;
    const calla_status st = stream_check(ex, items, n, max_steps, err);
    if (st != CALLA_OK) return st;
    memcpy(ex->banned, banned, (ex->n_vocab + 31) / 32 * sizeof *banned);
    for (uint32_t i = 0; i < n; i++) {
        t->seqs[i] = items[i].seq;
        t->seqs[i]->streaming = true;
        t->next[i] = items[i].token;
        t->entries[i] = items[i].sampling;
        t->ended[i] = false;
        if (items[i].sampling.counted != 0)
            memcpy(t->counts[i], items[i].counts, ex->n_vocab * sizeof *t->counts[i]);
    }
    t->n = n;
    t->n_steps = 0;
    t->max_steps = max_steps;
    ex->n_streams++;
    return CALLA_OK;
}

static void stream_stop(null_stream *t, bool failed)
{
    for (uint32_t i = 0; i < t->n; i++) {
        t->seqs[i]->streaming = false;
        if (failed) null_seq_reset(NULL, t->seqs[i]);
    }
    t->n = 0;
}

static bool stream_fails(null_executor *ex, calla_error *err)
{
    if (ex->fault == NULL_FAULT_NONE || ex->runs_to_fault-- != 0) return false;
    ex->fault = NULL_FAULT_NONE;
    stream_stop(&ex->stream, true);
    (void)err_set(err, CALLA_ERR_INTERNAL, "the null device failed as arranged");
    return true;
}

/* Takes what it drew, and draws. */
static int32_t stream_move(null_executor *ex, uint32_t i)
{
    null_stream *t = &ex->stream;
    sample_entry *e = &t->entries[i];
    const exec_segment g = {t->seqs[i], &t->next[i], 1, EXEC_LOGITS_LAST, ex->logits};
    null_append(ex, &g);
    const uint32_t id = exec_null_draw(e, ex->logits, ex->n_vocab, ex->banned,
                                       e->counted != 0 ? t->counts[i] : NULL);
    for (uint32_t k = 0; k < e->n_stops; k++)
        t->ended[i] = t->ended[i] || e->stops[k] == id;
    return t->next[i] = (int32_t)id;
}

static calla_status null_stream_next(executor *base, int32_t *ids, calla_error *err)
{
    null_executor *ex = (null_executor *)base;
    null_stream *t = &ex->stream;
    ex->n_runs++;
    ex->n_stream_steps++;
    if (stream_fails(ex, err)) return CALLA_ERR_INTERNAL;
    bool ended = t->n == 0 || t->n_steps == t->max_steps;
    for (uint32_t i = 0; i < t->n; i++)
        ended = ended || t->ended[i];
    if (ended) return err_set(err, CALLA_ERR_INTERNAL, "the stream cannot go on");
    t->n_steps++;
    for (uint32_t i = 0; i < t->n; i++)
        ids[i] = stream_move(ex, i);
    return CALLA_OK;
}

static calla_status null_stream_end(executor *base, float *const *logits, int32_t *ids,
                                    calla_error *err)
{
    null_executor *ex = (null_executor *)base;
    null_stream *t = &ex->stream;
    if (stream_fails(ex, err)) return CALLA_ERR_INTERNAL;
    for (uint32_t i = 0; i < t->n; i++) {
        const bool moves = !t->ended[i] && t->n_steps < t->max_steps;
        const int32_t id = moves ? stream_move(ex, i) : -1;
        if (ids != NULL) ids[i] = id;
        if (logits[i] != NULL) null_logits(ex, t->seqs[i]->state, logits[i]);
    }
    stream_stop(t, false);
    return CALLA_OK;
}

static const exec_ops null_ops = {
    .name = "null",
    .piece_tokens = 48,
    .destroy = null_destroy,
    .variant = null_variant,
    .n_threads = null_n_threads,
    .plan = null_plan,
    .seq_create = null_seq_create,
    .seq_destroy = null_seq_destroy,
    .seq_position = null_seq_position,
    .seq_reset = null_seq_reset,
    .run = null_run,
    .seq_image_bytes = null_image_bytes,
    .seq_save = null_seq_save,
    .seq_load = null_seq_load,
    .seq_state_bytes = null_state_bytes,
    .seq_state_save = null_state_save,
    .seq_restore = null_restore,
};

calla_status exec_null_create(executor **out, uint32_t n_vocab, uint32_t chunk_tokens,
                              calla_error *err)
{
    null_executor *ex = mem_alloc(sizeof *ex);
    *out = NULL;
    if (ex == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the null device");
    ex->ops = null_ops;
    ex->base.ops = &ex->ops;
    ex->n_vocab = n_vocab;
    ex->chunk_tokens = chunk_tokens;
    ex->refused_token = -1;
    ex->banned = mem_array((n_vocab + 31) / 32, sizeof *ex->banned);
    ex->logits = mem_array(n_vocab, sizeof *ex->logits);
    bool ok = ex->banned != NULL && ex->logits != NULL;
    for (uint32_t i = 0; i < EXEC_STREAM_MAX && ok; i++) {
        ex->stream.counts[i] = mem_array(n_vocab, sizeof *ex->stream.counts[i]);
        ok = ex->stream.counts[i] != NULL;
    }
    if (!ok) {
        null_destroy(&ex->base);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the null device");
    }
    *out = &ex->base;
    return CALLA_OK;
}

void exec_null_fail(executor *ex, exec_null_fault fault, uint32_t n_runs)
{
    null_executor *null = (null_executor *)ex;
    null->fault = fault;
    null->runs_to_fault = n_runs;
}

void exec_null_refuse(executor *ex, int32_t token, calla_status status)
{
    null_executor *null = (null_executor *)ex;
    null->refused_token = token;
    null->refused_status = status;
}

void exec_null_streams(executor *ex, uint64_t max_streams)
{
    null_executor *null = (null_executor *)ex;
    null->max_streams = max_streams;
    null->ops.stream_begin = null_stream_begin;
    null->ops.stream_next = null_stream_next;
    null->ops.stream_end = null_stream_end;
}

uint64_t exec_null_streams_begun(const executor *ex)
{
    return ((const null_executor *)ex)->n_streams;
}

uint64_t exec_null_stream_steps(const executor *ex)
{
    return ((const null_executor *)ex)->n_stream_steps;
}

uint64_t exec_null_runs(const executor *ex)
{
    return ((const null_executor *)ex)->n_runs;
}
