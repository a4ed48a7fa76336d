#include "engine/prefix_cache.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

struct saved_state {
    uint8_t *data; /* [state_bytes] pages */
    uint32_t refs; /* timelines that hold it */
    uint64_t used;
};

struct prefix_cache {
    calla_engine *engine;
    uint32_t n_ctx;
    uint64_t token_bytes, state_bytes; /* of a timeline's token, of a state */
    uint64_t tick;
    bool has_warned;     /* of a sequence that is too large */
    timeline *timelines; /* parked and active, latest created first */
    prefix_stats stats;
};

/* ---- Saved states ---- */

static void state_unref(prefix_cache *c, saved_state *s)
{
    if (--s->refs != 0) return;
    mem_free_pages(s->data, (size_t)c->state_bytes);
    mem_free(s);
    c->stats.n_states--;
    c->stats.bytes -= c->state_bytes;
}

/* Takes a reference. False without memory for the list. */
static bool saved_push(timeline *t, uint32_t position, saved_state *s)
{
    if (t->n_saved == t->saved_cap) {
        const uint32_t cap = t->saved_cap == 0 ? 8 : 2 * t->saved_cap;
        saved_at *grown = mem_resize(t->saved, cap * sizeof *grown);
        if (grown == NULL) return false;
        t->saved = grown;
        t->saved_cap = cap;
    }
    t->saved[t->n_saved++] = (saved_at){position, s};
    s->refs++;
    return true;
}

/* Forgets the saved states above a position. */
static void saved_cut(prefix_cache *c, timeline *t, uint32_t position)
{
    while (t->n_saved != 0 && t->saved[t->n_saved - 1].position > position)
        state_unref(c, t->saved[--t->n_saved].state);
}

static void state_evict(prefix_cache *c, saved_state *s)
{
    s->refs++; /* stays until every list has been seen */
    for (timeline *t = c->timelines; t != NULL; t = t->next) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < t->n_saved; i++) {
            if (t->saved[i].state == s)
                s->refs--;
            else
                t->saved[n++] = t->saved[i];
        }
        t->n_saved = n;
    }
    state_unref(c, s);
    c->stats.n_evicted_states++;
}

/* ---- Timelines ---- */

static uint64_t timeline_bytes(const prefix_cache *c, const timeline *t)
{
    return t->n_written * c->token_bytes + c->state_bytes;
}

static void timeline_free(prefix_cache *c, timeline *t)
{
    saved_cut(c, t, 0);
    if (t->seq != NULL) {
        (void)pthread_mutex_lock(&c->engine->device);
        c->engine->ex->ops->seq_destroy(c->engine->ex, t->seq);
        (void)pthread_mutex_unlock(&c->engine->device);
    }
    mem_free_pages(t->tokens, c->n_ctx * sizeof *t->tokens);
    mem_free(t->saved);
    mem_free(t);
}

static calla_status timeline_create(prefix_cache *c, timeline **out, calla_error *err)
{
    *out = NULL;
    timeline *t = mem_alloc(sizeof *t);
    if (t == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a sequence");
    t->tokens = mem_alloc_pages(c->n_ctx * sizeof *t->tokens);
    calla_status st;
    if (t->tokens == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for %u token ids", c->n_ctx);
    } else {
        (void)pthread_mutex_lock(&c->engine->device);
        st = c->engine->ex->ops->seq_create(c->engine->ex, c->n_ctx, &t->seq, err);
        (void)pthread_mutex_unlock(&c->engine->device);
    }
    if (st != CALLA_OK) {
        timeline_free(c, t);
        return st;
    }
    *out = t;
    return CALLA_OK;
}

/* Takes a parked or active timeline out of the list and frees it. */
static void timeline_remove(prefix_cache *c, timeline *t)
{
    timeline **at = &c->timelines;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (!t->active) {
        c->stats.n_timelines--;
        c->stats.bytes -= timeline_bytes(c, t);
    }
    timeline_free(c, t);
}

/* ---- Eviction ---- */

static timeline *oldest_parked(const prefix_cache *c, const timeline *but)
{
    timeline *oldest = NULL;
    for (timeline *t = c->timelines; t != NULL; t = t->next)
        if (!t->active && t != but && (oldest == NULL || t->used < oldest->used)) oldest = t;
    return oldest;
}

static saved_state *oldest_state(const prefix_cache *c)
{
    saved_state *oldest = NULL;
    for (timeline *t = c->timelines; t != NULL; t = t->next)
        for (uint32_t i = 0; i < t->n_saved; i++)
            if (oldest == NULL || t->saved[i].state->used < oldest->used)
                oldest = t->saved[i].state;
    return oldest;
}

static void evict_timeline(prefix_cache *c, timeline *t)
{
    timeline_remove(c, t);
    c->stats.n_evicted_timelines++;
}

/* Evicts what was used longest ago until `bytes` more fit. */
static void make_room(prefix_cache *c, uint64_t bytes)
{
    while (c->stats.bytes > c->stats.limit_bytes - bytes) {
        saved_state *s = oldest_state(c);
        timeline *t = oldest_parked(c, NULL);
        if (s != NULL && (t == NULL || s->used < t->used))
            state_evict(c, s);
        else
            evict_timeline(c, t);
    }
}

/* ---- Life ---- */

calla_status prefix_cache_create(prefix_cache **out, calla_engine *engine, uint32_t n_ctx,
                                 uint64_t limit_bytes, calla_error *err)
{
    *out = NULL;
    prefix_cache *c = mem_alloc(sizeof *c);
    if (c == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the prefix cache");
    exec_plan plan;
    engine->ex->ops->plan(engine->ex, n_ctx, &plan);
    c->engine = engine;
    c->n_ctx = n_ctx;
    c->token_bytes = plan.kv_bytes / n_ctx + sizeof(int32_t);
    c->state_bytes = engine->ex->ops->seq_state_bytes(engine->ex);
    c->stats.limit_bytes = limit_bytes;
    *out = c;
    return CALLA_OK;
}

void prefix_cache_destroy(prefix_cache *c)
{
    if (c == NULL) return;
    while (c->timelines != NULL)
        timeline_remove(c, c->timelines);
    mem_free(c);
}

void prefix_cache_stats(const prefix_cache *c, prefix_stats *out)
{
    *out = c->stats;
}

/* ---- Looking up ---- */

uint32_t prefix_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (n - i >= 256 && memcmp(a + i, b + i, 256 * sizeof *a) == 0)
        i += 256;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

void prefix_cache_find(const prefix_cache *c, const int32_t *ids, uint32_t n_ids, prefix_match *out)
{
    *out = (prefix_match){.diverged_id = -1};
    if (c->stats.limit_bytes == 0) return;
    for (timeline *t = c->timelines; t != NULL; t = t->next) {
        const uint32_t n_both = t->n_tokens < n_ids ? t->n_tokens : n_ids;
        const uint32_t common = prefix_common(t->tokens, ids, n_both);
        const bool diverged = common < n_both;
        if (common > out->n_common || (common == out->n_common && common != 0 && !diverged)) {
            out->n_common = common;
            out->diverged = diverged;
            out->diverged_id = diverged ? t->tokens[common] : -1;
        }
        const uint32_t most = common < n_ids ? common : n_ids - 1;
        if (!t->active && t->n_tokens <= most && t->n_tokens > out->n_cached) {
            out->n_cached = t->n_tokens;
            out->from = t;
            out->state = NULL;
            continue;
        }
        uint32_t i = t->n_saved;
        while (i != 0 && t->saved[i - 1].position > most)
            i--;
        if (i == 0 || t->saved[i - 1].position <= out->n_cached) continue;
        out->n_cached = t->saved[i - 1].position;
        out->from = t;
        out->state = t->saved[i - 1].state;
    }
}

/* ---- Continuing ---- */

/* May the timeline itself go on from there? What it would lose behind its last saved state is the
 * answer that this prompt replaces or repeats; an earlier state means another conversation. */
static bool fits_in_place(const prefix_match *m)
{
    return !m->from->active &&
           (m->state == NULL || m->from->saved[m->from->n_saved - 1].state == m->state);
}

static calla_status restore(prefix_cache *c, timeline *dst, const prefix_match *m, calla_error *err)
{
    executor *ex = c->engine->ex;
    assert(m->state != NULL); /* without one the match is parked, and goes on as it is */
    (void)pthread_mutex_lock(&c->engine->device);
    const calla_status st =
        ex->ops->seq_restore(ex, dst->seq, m->from->seq, m->n_cached, m->state->data, err);
    (void)pthread_mutex_unlock(&c->engine->device);
    return st;
}

/* A timeline that cannot be put back is gone: nothing says what the device left in it. */
static calla_status continue_in_place(prefix_cache *c, const prefix_match *m, calla_error *err)
{
    timeline *t = m->from;
    const calla_status st = m->state == NULL ? CALLA_OK : restore(c, t, m, err);
    if (st != CALLA_OK) {
        evict_timeline(c, t);
        return st;
    }
    c->stats.n_timelines--;
    c->stats.bytes -= timeline_bytes(c, t);
    t->active = true;
    if (m->state == NULL) return CALLA_OK;
    saved_cut(c, t, m->n_cached);
    t->n_tokens = m->n_cached;
    return CALLA_OK;
}

static void fork_from(timeline *t, const prefix_match *m)
{
    timeline_append(t, m->from->tokens, m->n_cached);
    for (uint32_t i = 0; i < m->from->n_saved; i++) {
        const saved_at *at = &m->from->saved[i];
        if (at->position > m->n_cached || !saved_push(t, at->position, at->state)) break;
    }
}

static calla_status begin_new(prefix_cache *c, const prefix_match *m, timeline **out,
                              calla_error *err)
{
    timeline *victim;
    if (c->stats.n_timelines >= PREFIX_TIMELINES_MAX) evict_timeline(c, oldest_parked(c, m->from));
    calla_status st;
    while ((st = timeline_create(c, out, err)) != CALLA_OK &&
           (victim = oldest_parked(c, m->from)) != NULL)
        evict_timeline(c, victim);
    if (st == CALLA_OK && m->from != NULL && (st = restore(c, *out, m, err)) != CALLA_OK)
        timeline_free(c, *out);
    if (st != CALLA_OK) {
        *out = NULL;
        return st;
    }
    (*out)->active = true;
    (*out)->next = c->timelines;
    c->timelines = *out;
    if (m->from != NULL) fork_from(*out, m);
    return CALLA_OK;
}

calla_status prefix_cache_begin(prefix_cache *c, const prefix_match *m, timeline **out,
                                calla_error *err)
{
    calla_status st = CALLA_OK;
    *out = NULL;
    if (m->from != NULL) {
        if (m->state != NULL) m->state->used = ++c->tick;
        if (m->from->n_saved != 0) m->from->saved[0].state->used = ++c->tick;
    }
    if (m->from == NULL || !fits_in_place(m)) st = begin_new(c, m, out, err);
    if (*out == NULL && m->from != NULL && !m->from->active) { /* also when no fork could be had */
        st = continue_in_place(c, m, err);
        *out = st == CALLA_OK ? m->from : NULL;
    }
    return st;
}

void timeline_append(timeline *t, const int32_t *ids, uint32_t n_ids)
{
    memcpy(t->tokens + t->n_tokens, ids, n_ids * sizeof *ids);
    t->n_tokens += n_ids;
    if (t->n_tokens > t->n_written) t->n_written = t->n_tokens;
}

bool prefix_cache_saves(const prefix_cache *c)
{
    return c->state_bytes <= c->stats.limit_bytes;
}

void prefix_cache_save(prefix_cache *c, timeline *t)
{
    if (!prefix_cache_saves(c)) return;
    if (t->n_saved != 0 && t->saved[t->n_saved - 1].position == t->n_tokens) return;
    calla_error err;
    make_room(c, c->state_bytes);
    saved_state *s = mem_alloc(sizeof *s);
    if (s != NULL) s->data = mem_alloc_pages((size_t)c->state_bytes);
    if (s == NULL || s->data == NULL || !saved_push(t, t->n_tokens, s)) {
        if (s != NULL) mem_free_pages(s->data, (size_t)c->state_bytes);
        mem_free(s);
        return;
    }
    s->used = ++c->tick;
    c->stats.n_states++;
    c->stats.bytes += c->state_bytes;
    (void)pthread_mutex_lock(&c->engine->device);
    const calla_status st =
        c->engine->ex->ops->seq_state_save(c->engine->ex, t->seq, s->data, &err);
    (void)pthread_mutex_unlock(&c->engine->device);
    if (st != CALLA_OK) state_evict(c, s);
}

static void warn_too_large(prefix_cache *c, const timeline *t, uint64_t bytes)
{
    if (c->has_warned || c->stats.limit_bytes == 0) return;
    c->has_warned = true;
    engine_log(c->engine, CALLA_LOG_WARN,
               "a conversation of %u tokens is not kept: it needs %.1f MB, the prefix cache has "
               "%.1f MB in all (--cache-ram); said once",
               t->n_written, (double)bytes / 1e6, (double)c->stats.limit_bytes / 1e6);
}

void prefix_cache_park(prefix_cache *c, timeline *t)
{
    const uint64_t bytes = timeline_bytes(c, t);
    if (t->n_tokens == 0 || bytes > c->stats.limit_bytes) {
        if (t->n_tokens != 0) warn_too_large(c, t, bytes);
        prefix_cache_drop(c, t);
        return;
    }
    t->active = false;
    t->used = ++c->tick;
    c->stats.n_timelines++;
    c->stats.bytes += bytes;
    make_room(c, 0);
}

void prefix_cache_drop(prefix_cache *c, timeline *t)
{
    timeline_remove(c, t);
}
