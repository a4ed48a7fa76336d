#include "engine/session.h"

#include <string.h>

#include "base/pool.h"

/* Rows of logits that scoring holds at a time: at most 64, at most 32 MiB (but one). */
#define SCORE_ROWS_MAX  64u
#define SCORE_BYTES_MAX (32u << 20)

calla_status calla_session_create(calla_session **out, calla_engine *engine,
                                  const calla_session_options *options, calla_error *err)
{
    calla_status st;
    *out = NULL;
    uint32_t n_ctx = options != NULL ? options->n_ctx : 0;
    if (n_ctx == 0) {
        n_ctx = engine->shape.max_context;
        if (n_ctx > ENGINE_CTX_DEFAULT) n_ctx = ENGINE_CTX_DEFAULT;
    }
    calla_session *s = mem_alloc(sizeof *s);
    if (s == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a session");
    s->engine = engine;
    s->n_ctx = n_ctx;
    TRY(engine_reserve(engine, n_ctx, err));
    s->reserved = true;
    s->tokens = mem_array(n_ctx, sizeof *s->tokens);
    s->logits = mem_alloc_aligned(engine->shape.n_vocab * sizeof(float));
    if (s->tokens == NULL || s->logits == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for a session of %u tokens", n_ctx);
        goto fail;
    }
    TRY(sampler_create(&s->sampler, engine->shape.n_vocab, engine->banned, engine->n_banned, err));
    (void)pthread_mutex_lock(&engine->device);
    st = engine->ex->ops->seq_create(engine->ex, n_ctx, &s->seq, err);
    (void)pthread_mutex_unlock(&engine->device);
    if (st != CALLA_OK) goto fail;
    *out = s;
    return CALLA_OK;
fail:
    calla_session_destroy(s);
    return st;
}

void calla_session_destroy(calla_session *s)
{
    if (s == NULL) return;
    calla_engine *e = s->engine;
    if (s->seq != NULL) {
        (void)pthread_mutex_lock(&e->device);
        e->ex->ops->seq_destroy(e->ex, s->seq);
        (void)pthread_mutex_unlock(&e->device);
    }
    if (s->reserved) engine_release(e, s->n_ctx);
    sampler_destroy(s->sampler);
    mem_free_aligned(s->logits);
    mem_free(s->tokens);
    mem_free(s);
}

void calla_session_reset(calla_session *s)
{
    calla_engine *e = s->engine;
    (void)pthread_mutex_lock(&e->device);
    e->ex->ops->seq_reset(e->ex, s->seq);
    (void)pthread_mutex_unlock(&e->device);
    s->n_tokens = 0;
    s->has_logits = s->broken = false;
}

uint32_t calla_session_position(const calla_session *s)
{
    return s->n_tokens;
}

const int32_t *calla_session_tokens(const calla_session *s)
{
    return s->tokens;
}

const float *calla_session_logits(const calla_session *s)
{
    return s->has_logits ? s->logits : NULL;
}

void calla_session_cancel(calla_session *s)
{
    atomic_store(&s->cancelled, true);
}

/* True once for each request. */
static bool take_cancel(calla_session *s)
{
    return atomic_exchange(&s->cancelled, false);
}

static calla_status cancelled(const calla_session *s, calla_error *err)
{
    return err_set(err, CALLA_ERR_CANCELLED, "cancelled with %u tokens in the session",
                   s->n_tokens);
}

calla_status session_check(const calla_session *s, calla_error *err)
{
    if (!s->broken) return CALLA_OK;
    return err_set(err, CALLA_ERR_ARGUMENT,
                   "the session is broken by an earlier failure, reset or restore it first");
}

/* One run of at most chunk_tokens tokens; keeps the invariants of session.h. */
static calla_status run_chunk(calla_session *s, const int32_t *ids, uint32_t n, exec_logits want,
                              float *logits, calla_error *err)
{
    executor *ex = s->engine->ex;
    const exec_segment seg = {s->seq, ids, n, want, logits};
    (void)pthread_mutex_lock(&s->engine->device);
    const calla_status st = ex->ops->run(ex, &seg, 1, err);
    (void)pthread_mutex_unlock(&s->engine->device);
    if (st != CALLA_OK) {
        s->has_logits = false;
        s->broken = ex->ops->seq_position(s->seq) != s->n_tokens;
        return st;
    }
    memcpy(s->tokens + s->n_tokens, ids, n * sizeof *ids);
    s->n_tokens += n;
    if (want == EXEC_LOGITS_ALL)
        memcpy(s->logits, logits + (size_t)(n - 1) * s->engine->shape.n_vocab,
               s->engine->shape.n_vocab * sizeof *logits);
    s->has_logits = true;
    return CALLA_OK;
}

static calla_status check_ids(const calla_session *s, const int32_t *ids, size_t n,
                              calla_error *err)
{
    const calla_status st = session_check(s, err);
    if (st != CALLA_OK) return st;
    if (n > s->n_ctx - s->n_tokens)
        return err_set(err, CALLA_ERR_FULL,
                       "%zu tokens do not fit: the session holds %u of at most %u", n, s->n_tokens,
                       s->n_ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->engine->shape.n_vocab)
            return err_set(err, CALLA_ERR_ARGUMENT, "token %zu: id %d, expected 0 to %u", i,
                           (int)ids[i], s->engine->shape.n_vocab - 1);
    return CALLA_OK;
}

static uint32_t min_size(size_t a, uint32_t b)
{
    return a < b ? (uint32_t)a : b;
}

calla_status calla_session_feed(calla_session *s, const int32_t *ids, size_t n_ids,
                                calla_progress_fn progress, void *user, calla_error *err)
{
    calla_status st = check_ids(s, ids, n_ids, err);
    if (st == CALLA_OK && take_cancel(s)) st = cancelled(s, err);
    for (size_t i = 0; st == CALLA_OK && i < n_ids;) {
        const uint32_t n = min_size(n_ids - i, s->engine->chunk_tokens);
        st = run_chunk(s, ids + i, n, EXEC_LOGITS_LAST, s->logits, err);
        if (st != CALLA_OK) break;
        i += n;
        const bool go_on = progress == NULL || progress(user, i, n_ids);
        if (take_cancel(s) || !go_on) st = cancelled(s, err);
    }
    return st;
}

/* ---- Generation ---- */

typedef struct generation {
    calla_session *s;
    const calla_generate_options *options;
    calla_token_fn on_token;
    void *user;
    calla_generate_result result;
    bool accepted; /* the sampler knows the token that is being taken */
} generation;

/* Shows a token, unless it is a stop id: then result.stop says so. False: the reader has enough. */
static bool show(generation *g, int32_t id)
{
    const calla_session *s = g->s;
    if (!g->options->ignore_eos && engine_is_stop(s->engine, id)) {
        g->result.stop = CALLA_STOP_EOS;
        return false;
    }
    size_t n_bytes = 0;
    const char *bytes = NULL;
    if (s->engine->tok != NULL) bytes = calla_tokenizer_bytes(s->engine->tok, id, &n_bytes);
    g->result.stop = CALLA_STOP_CALLBACK; /* if the reader says so */
    return g->on_token == NULL || g->on_token(g->user, id, bytes, n_bytes);
}

/* A token of the response is part of the session now. */
static void count(generation *g, int32_t id, double since)
{
    if (!g->accepted) sampler_accept(g->s->sampler, id);
    g->accepted = false;
    g->result.n_tokens++;
    g->result.decode_seconds += time_now() - since;
}

/* Draws the next token from the session's logits and shows it. *done: result.stop says why; a
 * stop id is not shown. The callback comes before the forward pass, so that the reader does not
 * wait for it. */
static calla_status draw_one(generation *g, int32_t *id, bool *go_on, calla_error *err)
{
    calla_session *s = g->s;
    const double t0 = time_now();
    const calla_status st = sampler_draw(s->sampler, s->logits, id, err);
    g->result.decode_seconds += time_now() - t0;
    if (st == CALLA_OK) *go_on = show(g, *id);
    return st;
}

/* Samples one token, shows it, appends it. */
static calla_status generate_one(generation *g, bool *done, calla_error *err)
{
    calla_session *s = g->s;
    int32_t id;
    bool go_on;
    calla_status st = draw_one(g, &id, &go_on, err);
    *done = true;
    if (st != CALLA_OK || g->result.stop == CALLA_STOP_EOS) return st;
    const double t0 = time_now();
    st = run_chunk(s, &id, 1, EXEC_LOGITS_LAST, s->logits, err);
    if (st != CALLA_OK) return st;
    count(g, id, t0);
    *done = !go_on;
    return CALLA_OK;
}

/* True when generation is over; result.stop says why. */
static bool is_over(generation *g)
{
    const calla_session *s = g->s;
    if (take_cancel(g->s))
        g->result.stop = CALLA_STOP_CANCELLED;
    else if (g->options->max_tokens != 0 && g->result.n_tokens == g->options->max_tokens)
        g->result.stop = CALLA_STOP_LENGTH;
    else if (s->n_tokens == s->n_ctx)
        g->result.stop = CALLA_STOP_CONTEXT;
    else
        return false;
    return true;
}

/* ---- Streams: tokens are drawn by the device (executor.h) ---- */

static calla_status stream_open(generation *g, int32_t first, calla_error *err)
{
    calla_session *s = g->s;
    calla_engine *e = s->engine;
    const uint32_t room = s->n_ctx - s->n_tokens, max = g->options->max_tokens;
    exec_stream item = {.seq = s->seq, .token = first};
    uint32_t *counts = NULL;
    if (!sampler_export(s->sampler, &item.sampling))
        return err_set(err, CALLA_ERR_FULL, "the device cannot draw so");
    if (!g->options->ignore_eos) {
        item.sampling.n_stops = e->shape.n_stop_ids;
        for (uint32_t i = 0; i < e->shape.n_stop_ids; i++)
            item.sampling.stops[i] = (uint32_t)e->shape.stop_ids[i];
    }
    if (item.sampling.counted != 0) {
        counts = mem_array(e->shape.n_vocab, sizeof *counts);
        if (counts == NULL) return err_set(err, CALLA_ERR_FULL, "no memory for counts");
        sampler_export_counts(s->sampler, counts);
        item.counts = counts;
    }
    const uint32_t left = max == 0 ? room : max - g->result.n_tokens;
    (void)pthread_mutex_lock(&e->device);
    const calla_status st =
        e->ex->ops->stream_begin(e->ex, &item, 1, e->banned_bits, left < room ? left : room, err);
    (void)pthread_mutex_unlock(&e->device);
    mem_free(counts);
    return st;
}

static calla_status stream_next(calla_session *s, int32_t *id, calla_error *err)
{
    calla_engine *e = s->engine;
    (void)pthread_mutex_lock(&e->device);
    const calla_status st = e->ex->ops->stream_next(e->ex, id, err);
    (void)pthread_mutex_unlock(&e->device);
    return st;
}

static calla_status stream_close(calla_session *s, calla_error *err)
{
    calla_engine *e = s->engine;
    float *const logits[] = {s->logits};
    (void)pthread_mutex_lock(&e->device);
    const calla_status st = e->ex->ops->stream_end(e->ex, logits, NULL, err);
    (void)pthread_mutex_unlock(&e->device);
    return st;
}

/* The session has taken id. */
static void taken(generation *g, int32_t id, double since)
{
    calla_session *s = g->s;
    s->tokens[s->n_tokens++] = id;
    count(g, id, since);
}

/* Goes on from `id`, which was shown and not taken yet, until generation is over. */
static calla_status stream_loop(generation *g, int32_t id, bool go_on, calla_error *err)
{
    calla_session *s = g->s;
    calla_status st = CALLA_OK;
    for (;;) {
        const double t0 = time_now();
        const uint32_t max = g->options->max_tokens;
        const bool last = !go_on || (max != 0 && g->result.n_tokens + 1 == max) ||
                          s->n_tokens + 1 == s->n_ctx || atomic_load(&s->cancelled);
        int32_t next = -1;
        st = last ? stream_close(s, err) : stream_next(s, &next, err);
        if (st != CALLA_OK) break;
        taken(g, id, t0);
        if (last) {
            if (go_on) (void)is_over(g);
            return CALLA_OK;
        }
        id = next;
        sampler_skip(s->sampler);
        go_on = show(g, id);
        if (g->result.stop == CALLA_STOP_EOS) {
            st = stream_close(s, err);
            break;
        }
    }
    s->has_logits = st == CALLA_OK;
    s->broken = st != CALLA_OK && s->engine->ex->ops->seq_position(s->seq) != s->n_tokens;
    return st;
}

/* One token drawn here, the rest by the device; *done stays false when it cannot. */
static calla_status generate_stream(generation *g, bool *done, calla_error *err)
{
    calla_session *s = g->s;
    int32_t id;
    bool go_on;
    calla_status st = draw_one(g, &id, &go_on, err);
    *done = true;
    if (st != CALLA_OK || g->result.stop == CALLA_STOP_EOS) return st;
    sampler_accept(s->sampler, id);
    g->accepted = true;
    st = stream_open(g, id, err);
    if (st == CALLA_OK) return stream_loop(g, id, go_on, err);
    /* It has left the sequence alone: without room for a stream, too, it goes on by steps. */
    if (st != CALLA_ERR_FULL && st != CALLA_ERR_MEMORY) return st;
    const double t0 = time_now();
    st = run_chunk(s, &id, 1, EXEC_LOGITS_LAST, s->logits, err);
    if (st == CALLA_OK) count(g, id, t0);
    *done = !go_on;
    return st;
}

static calla_status generate_loop(generation *g, calla_error *err)
{
    calla_status st = CALLA_OK;
    bool done = is_over(g);
    if (!done && g->s->engine->ex->ops->stream_begin != NULL) {
        st = generate_stream(g, &done, err);
        done = done || (st == CALLA_OK && is_over(g));
    }
    while (st == CALLA_OK && !done) {
        st = generate_one(g, &done, err);
        done = done || (st == CALLA_OK && is_over(g));
    }
    return st;
}

calla_status calla_session_generate(calla_session *s, const calla_generate_options *options,
                                    calla_token_fn on_token, void *user,
                                    calla_generate_result *result, calla_error *err)
{
    static const calla_generate_options no_options = {0};
    generation g = {s, options != NULL ? options : &no_options, on_token, user, {0}, false};
    if (result != NULL) *result = g.result;
    const calla_sampling *p =
        g.options->sampling != NULL ? g.options->sampling : &s->engine->sampling;
    calla_status st;
    TRY(session_check(s, err));
    TRY(sampling_check(p, err));
    if (!s->has_logits)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "the session has no logits to sample from, feed at least one token first");
    sampler_begin(s->sampler, p, s->tokens, s->n_tokens);
    st = generate_loop(&g, err);
    if (result != NULL) *result = g.result;
fail:
    return st;
}

/* ---- Scoring ---- */

calla_status calla_session_score(calla_session *s, const int32_t *ids, size_t n_ids,
                                 calla_logits_fn on_logits, void *user, calla_error *err)
{
    const uint32_t n_vocab = s->engine->shape.n_vocab;
    const uint64_t row_bytes = n_vocab * (uint64_t)sizeof(float);
    calla_status st = check_ids(s, ids, n_ids, err);
    if (st != CALLA_OK || n_ids == 0) return st;
    uint32_t max_rows = s->engine->chunk_tokens;
    if (max_rows > SCORE_ROWS_MAX) max_rows = SCORE_ROWS_MAX;
    if (max_rows > SCORE_BYTES_MAX / row_bytes) max_rows = (uint32_t)(SCORE_BYTES_MAX / row_bytes);
    if (max_rows == 0) max_rows = 1;
    float *rows = mem_alloc_aligned((size_t)(max_rows * row_bytes));
    if (rows == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for %u rows of logits", max_rows);
    for (size_t i = 0; st == CALLA_OK && i < n_ids;) {
        const uint32_t n = min_size(n_ids - i, max_rows);
        if (take_cancel(s)) {
            st = cancelled(s, err);
            break;
        }
        st = run_chunk(s, ids + i, n, EXEC_LOGITS_ALL, rows, err);
        for (uint32_t r = 0; st == CALLA_OK && r < n; r++)
            if (!on_logits(user, i + r, rows + (size_t)r * n_vocab, (int32_t)n_vocab))
                st = cancelled(s, err);
        i += n;
    }
    mem_free_aligned(rows);
    return st;
}
