/* Steps whose tokens the device draws (the streams of exec/executor.h), for as long as the slots at
 * work stay the same. */
#include "engine/sched.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* All slots at work, when a stream may take them; their number, else 0. *max_steps: of them no slot
 * needs the host in between. */
static uint32_t gather(scheduler *s, sched_slot **slots, uint32_t *max_steps)
{
    uint32_t n = 0;
    *max_steps = UINT32_MAX;
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        sched_slot *slot = &s->slots[i];
        if (slot->phase == SLOT_FREE) continue;
        const uint32_t most = slot->phase == SLOT_DECODE ? sched_token_draws(s, slot) : 0;
        if (most == 0 || n == EXEC_STREAM_MAX) return 0;
        *max_steps = min_u32(*max_steps, most);
        slots[n++] = slot;
    }
    return n;
}

/* False: this response must be drawn here. */
static bool export_slot(const calla_engine *e, const sched_slot *slot, exec_stream *item)
{
    *item = (exec_stream){.seq = slot->t->seq, .token = slot->next};
    if (!sampler_export(slot->sampler, &item->sampling)) return false;
    if (slot->req->r.ignore_eos) return true;
    item->sampling.n_stops = e->shape.n_stop_ids;
    for (uint32_t i = 0; i < e->shape.n_stop_ids; i++)
        item->sampling.stops[i] = (uint32_t)e->shape.stop_ids[i];
    return true;
}

/* `next` has been drawn: the row of logits is free, and as large as the counts. */
static void export_counts(sched_slot *slot, exec_stream *item)
{
    if (item->sampling.counted == 0) return;
    uint32_t *counts = (uint32_t *)(void *)slot->logits;
    sampler_export_counts(slot->sampler, counts);
    item->counts = counts;
}

/* Whatever keeps a stream from beginning leaves the sequences alone, so that a step may follow. */
bool sched_stream_begin(scheduler *s)
{
    calla_engine *e = s->engine;
    sched_stream *t = &s->stream;
    exec_stream items[EXEC_STREAM_MAX];
    calla_error err;
    if (e->ex->ops->stream_begin == NULL || s->no_streams) return false;
    const uint32_t n = gather(s, t->slots, &t->max_steps);
    for (uint32_t i = 0; i < n; i++)
        if (!export_slot(e, t->slots[i], &items[i])) return false;
    for (uint32_t i = 0; i < n; i++)
        export_counts(t->slots[i], &items[i]);
    if (n == 0) return false;
    (void)pthread_mutex_lock(&e->device);
    const calla_status st =
        e->ex->ops->stream_begin(e->ex, items, n, e->banned_bits, t->max_steps, &err);
    (void)pthread_mutex_unlock(&e->device);
    /* FULL: a session's stream is running. Anything else would come back each time. */
    s->no_streams = st != CALLA_OK && st != CALLA_ERR_FULL;
    if (s->no_streams && e->log != NULL) e->log(e->log_user, CALLA_LOG_WARN, err.message);
    if (st != CALLA_OK) return false;
    t->n = n;
    t->n_steps = 0;
    for (uint32_t i = 0; i < n; i++)
        t->slots[i]->streaming = true;
    return true;
}

/* The stream is gone, and with it its sequences. */
static void fail_all(scheduler *s, const calla_error *err)
{
    sched_stream *t = &s->stream;
    const uint32_t n = t->n;
    t->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        t->slots[i]->streaming = false;
        sched_fail(s, t->slots[i], err);
    }
}

/* done bit i: the request of the stream's slot i has ended. False: the stream has failed. Logits
 * come to the host only for slots that it must choose for. */
static bool close_stream(scheduler *s, uint32_t done)
{
    executor *ex = s->engine->ex;
    sched_stream *t = &s->stream;
    float *logits[EXEC_STREAM_MAX];
    int32_t ids[EXEC_STREAM_MAX];
    calla_error err;
    for (uint32_t i = 0; i < t->n; i++) {
        const bool chooses = (done >> i & 1) == 0 && sched_token_draws(s, t->slots[i]) == 0;
        logits[i] = chooses ? t->slots[i]->logits : NULL;
    }
    (void)pthread_mutex_lock(&s->engine->device);
    const calla_status st = ex->ops->stream_end(ex, logits, ids, &err);
    (void)pthread_mutex_unlock(&s->engine->device);
    if (st != CALLA_OK) {
        fail_all(s, &err);
        return false;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        sched_slot *slot = t->slots[i];
        slot->streaming = false;
        slot->drawable = ex->ops->seq_position(slot->t->seq) != slot->t->n_tokens;
        slot->drawn = logits[i] == NULL ? ids[i] : -1;
        if (slot->drawable) timeline_append(slot->t, &slot->next, 1);
    }
    t->n = 0;
    return true;
}

void sched_stream_end(scheduler *s)
{
    if (s->stream.n != 0) (void)close_stream(s, 0);
}

void sched_stream_step(scheduler *s)
{
    executor *ex = s->engine->ex;
    sched_stream *t = &s->stream;
    const uint32_t n = t->n;
    int32_t ids[EXEC_STREAM_MAX];
    calla_stop stops[EXEC_STREAM_MAX];
    calla_error err;
    (void)pthread_mutex_lock(&s->engine->device);
    const calla_status st = ex->ops->stream_next(ex, ids, &err);
    (void)pthread_mutex_unlock(&s->engine->device);
    if (st != CALLA_OK) {
        fail_all(s, &err);
        return;
    }
    sched_count_step(s, 0);
    uint32_t done = 0;
    bool over = ++t->n_steps == t->max_steps;
    for (uint32_t i = 0; i < n; i++) {
        sched_slot *slot = t->slots[i];
        bool ends = false;
        timeline_append(slot->t, &slot->next, 1);
        if (!sched_token_drawn(s, slot, ids[i], &ends, &stops[i])) over = true;
        done |= (uint32_t)ends << i;
    }
    if (!over || !close_stream(s, done)) return;
    for (uint32_t i = 0; i < n; i++)
        if ((done >> i & 1) != 0) sched_finish(s, t->slots[i], stops[i]);
}
