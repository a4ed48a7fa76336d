#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "engine/sched.h"

/* ---- Ends ---- */

sched_result sched_result_none(const sched_req *req)
{
    return (sched_result){.message = "",
                          .diverged_at = SCHED_NO_POSITION,
                          .diverged_id = -1,
                          .queue_seconds = time_now() - req->t_submit};
}

void sched_publish(scheduler *s)
{
    prefix_stats c;
    prefix_cache_stats(s->cache, &c);
    (void)pthread_mutex_lock(&s->lock);
    s->stats.n_timelines = c.n_timelines;
    s->stats.n_states = c.n_states;
    s->stats.cache_bytes = c.bytes;
    s->stats.n_evicted_timelines = c.n_evicted_timelines;
    s->stats.n_evicted_states = c.n_evicted_states;
    (void)pthread_mutex_unlock(&s->lock);
}

void sched_done(scheduler *s, sched_req *req, sched_result *result)
{
    result->n_prompt = req->n_prompt;
    sched_publish(s);
    (void)pthread_mutex_lock(&s->lock);
    s->stats.n_tokens_generated += result->n_generated;
    if (result->status != CALLA_OK)
        s->stats.n_failed++;
    else if (result->stop == CALLA_STOP_CANCELLED || result->stop == CALLA_STOP_CALLBACK)
        s->stats.n_cancelled++;
    else
        s->stats.n_finished++;
    (void)pthread_mutex_unlock(&s->lock);
    if (req->r.on_done != NULL) req->r.on_done(req->r.user, result);
    sched_req_destroy(req);
    (void)pthread_mutex_lock(&s->lock);
    s->n_live--;
    (void)pthread_mutex_unlock(&s->lock);
}

static void end(scheduler *s, sched_slot *slot)
{
    const double now = time_now();
    sched_result result = slot->result;
    sched_req *req = slot->req;
    if (slot->phase == SLOT_DECODE)
        result.decode_seconds = now - slot->t_first;
    else
        result.prefill_seconds = now - slot->t_admit;
    if (result.status == CALLA_OK)
        prefix_cache_park(s->cache, slot->t);
    else
        prefix_cache_drop(s->cache, slot->t);
    (void)pthread_mutex_lock(&s->lock);
    slot->phase = SLOT_FREE;
    slot->req = NULL;
    slot->t = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    sched_done(s, req, &result);
}

void sched_finish(scheduler *s, sched_slot *slot, calla_stop stop)
{
    slot->result.stop = stop;
    end(s, slot);
}

void sched_fail(scheduler *s, sched_slot *slot, const calla_error *err)
{
    slot->result.status = err->code;
    slot->result.message = err->message;
    end(s, slot);
}

/* ---- Building a step ---- */

typedef struct step {
    exec_segment segs[SCHED_PARALLEL_MAX];
    sched_slot *slots[SCHED_PARALLEL_MAX]; /* whose segment it is */
    uint32_t n_segs, n_decode;
} step;

static void add_segment(step *st, sched_slot *slot, const int32_t *ids, uint32_t n, bool logits)
{
    st->slots[st->n_segs] = slot;
    st->segs[st->n_segs++] =
        (exec_segment){slot->t->seq, ids, n, logits ? EXEC_LOGITS_LAST : EXEC_LOGITS_NONE,
                       logits ? slot->logits : NULL};
}

/* The next piece of a prompt: at most `most` tokens, and up to the next state to save. */
static uint32_t add_piece(step *st, sched_slot *slot, uint32_t most)
{
    const sched_req *q = slot->req;
    const uint32_t at = slot->t->n_tokens;
    while (slot->i_mark < q->n_marks && q->marks[slot->i_mark] <= at)
        slot->i_mark++;
    const uint32_t to = slot->i_mark < q->n_marks ? q->marks[slot->i_mark] : q->n_prompt;
    const uint32_t n = to - at < most ? to - at : most;
    add_segment(st, slot, q->prompt + at, n, at + n == q->n_prompt);
    return n;
}

/* One token of each that generates; then prompts, beginning with another one each time, as far as
 * a piece reaches - or the whole chunk when nobody waits for tokens. */
static void build(scheduler *s, step *st)
{
    const uint32_t n_slots = s->options.n_parallel;
    st->n_segs = 0;
    for (uint32_t i = 0; i < n_slots; i++)
        if (s->slots[i].phase == SLOT_DECODE)
            add_segment(st, &s->slots[i], &s->slots[i].next, 1, true);
    st->n_decode = st->n_segs;
    uint32_t room = s->engine->chunk_tokens - st->n_decode;
    if (st->n_decode != 0 && room > s->options.piece_tokens) room = s->options.piece_tokens;
    const uint32_t first = s->i_turn;
    bool turned = false;
    for (uint32_t k = 0; k < n_slots && room != 0; k++) {
        sched_slot *slot = &s->slots[(first + k) % n_slots];
        if (slot->phase != SLOT_PREFILL) continue;
        room -= add_piece(st, slot, room);
        if (!turned) s->i_turn = (first + k + 1) % n_slots;
        turned = true;
    }
}

/* ---- Digesting it ---- */

/* drawn: by the device; -1: not yet. */
static void next_token(scheduler *s, sched_slot *slot, int32_t drawn)
{
    bool done = false;
    calla_stop stop = CALLA_STOP_EOS;
    calla_error err;
    calla_status st = CALLA_OK;
    if (drawn >= 0)
        (void)sched_token_drawn(s, slot, drawn, &done, &stop);
    else
        st = sched_token_next(s, slot, &done, &stop, &err);
    if (st != CALLA_OK)
        sched_fail(s, slot, &err);
    else if (done)
        sched_finish(s, slot, stop);
}

/* The prompt is complete: its first token can be drawn. */
static void begin_decoding(scheduler *s, sched_slot *slot)
{
    slot->t_first = time_now();
    slot->result.prefill_seconds = slot->t_first - slot->t_admit;
    (void)pthread_mutex_lock(&s->lock);
    slot->phase = SLOT_DECODE;
    (void)pthread_mutex_unlock(&s->lock);
    sched_token_begin(s, slot);
    next_token(s, slot, -1);
}

static void piece_done(scheduler *s, sched_slot *slot)
{
    const sched_req *q = slot->req;
    const uint32_t at = slot->t->n_tokens;
    if (slot->i_mark < q->n_marks && q->marks[slot->i_mark] == at)
        prefix_cache_save(s->cache, slot->t);
    if (q->r.on_progress != NULL)
        q->r.on_progress(q->r.user, at, q->n_prompt, slot->result.n_cached);
    if (at == q->n_prompt) begin_decoding(s, slot);
}

void sched_count_step(scheduler *s, uint64_t n_prefilled)
{
    (void)pthread_mutex_lock(&s->lock);
    s->stats.n_steps++;
    s->stats.n_tokens_prefilled += n_prefilled;
    (void)pthread_mutex_unlock(&s->lock);
}

static void count_step(scheduler *s, const exec_segment *segs, uint32_t n_segs, uint32_t n_decode)
{
    uint64_t n = 0;
    for (uint32_t i = n_decode; i < n_segs; i++)
        n += segs[i].n_tokens;
    sched_count_step(s, n);
}

static calla_status run(scheduler *s, const exec_segment *segs, uint32_t n_segs, calla_error *err)
{
    executor *ex = s->engine->ex;
    (void)pthread_mutex_lock(&s->engine->device);
    const calla_status status = ex->ops->run(ex, segs, n_segs, err);
    (void)pthread_mutex_unlock(&s->engine->device);
    return status;
}

/* The i-th segment has been run. */
static void digest(scheduler *s, const step *st, uint32_t i)
{
    sched_slot *slot = st->slots[i];
    timeline_append(slot->t, st->segs[i].tokens, st->segs[i].n_tokens);
    if (i < st->n_decode)
        next_token(s, slot, -1);
    else
        piece_done(s, slot);
}

/* One of several segments was refused, which says nothing of the others: each alone. */
static void run_apart(scheduler *s, const step *st)
{
    calla_error err;
    for (uint32_t i = 0; i < st->n_segs; i++) {
        if (run(s, &st->segs[i], 1, &err) != CALLA_OK) {
            sched_fail(s, st->slots[i], &err);
            continue;
        }
        count_step(s, &st->segs[i], 1, i < st->n_decode);
        digest(s, st, i);
    }
}

/* What a stream has left. */
static void finish_stream(scheduler *s)
{
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        sched_slot *slot = &s->slots[i];
        if (slot->phase != SLOT_DECODE || !slot->drawable) continue;
        slot->drawable = false;
        next_token(s, slot, slot->drawn);
    }
}

void sched_step(scheduler *s)
{
    step st;
    calla_error err;
    finish_stream(s);
    if (s->stream.n != 0 || sched_stream_begin(s)) {
        sched_stream_step(s);
        return;
    }
    build(s, &st);
    if (st.n_segs == 0) return;
    const calla_status status = run(s, st.segs, st.n_segs, &err);
    const bool refused = status == CALLA_ERR_ARGUMENT || status == CALLA_ERR_FULL;
    if (refused && st.n_segs > 1) {
        run_apart(s, &st);
        return;
    }
    if (status == CALLA_OK) count_step(s, st.segs, st.n_segs, st.n_decode);
    for (uint32_t i = 0; i < st.n_segs; i++) {
        if (status == CALLA_OK)
            digest(s, &st, i);
        else
            sched_fail(s, st.slots[i], &err);
    }
}
