/* prefix_cache.h - what earlier requests computed, kept for prompts that begin alike.
 *
 * Does:       a timeline is a sequence of the executor with its tokens. Active, it belongs to a
 *             request; parked, it waits for a prompt that begins with its tokens. Key-value rows
 *             are valid at every position, but the recurrent state only at the last, and where a
 *             copy was saved. A prompt therefore continues from the largest saved position within
 *             the longest common prefix: in place, or, when that would throw away more than the
 *             tail of the same conversation, in a new timeline that copies the rows (a fork).
 *             Active timelines serve forks too.
 * Owns:       all timelines and saved states. A state may belong to several timelines (a shared
 *             system prompt): it dies with the last, or alone when it is evicted.
 * Invariants: (1) t->n_tokens is the executor's position of t->seq. (2) t->saved ascends, and none
 *             lies above n_tokens. (3) bytes <= limit_bytes after every call; counted are saved
 *             states and parked timelines (rows ever written, state, tokens), not active ones, for
 *             which the scheduler plans. (4) Eviction is by last use. Continuing from a timeline
 *             uses its first saved state too, the one most likely shared; a fork does not use what
 *             it leaves behind, which may well be a past that the conversation has dropped.
 * Threads:    one; takes the engine's device lock for every executor call.
 * Errors:     only begin can fail. save and park keep less when memory is short. The first sequence
 *             that is larger than the whole limit, and so not kept, is a line in the engine's log.
 * Limits:     PREFIX_TIMELINES_MAX parked timelines.
 */
#ifndef CALLA_ENGINE_PREFIX_CACHE_H
#define CALLA_ENGINE_PREFIX_CACHE_H

#include "engine/engine.h"

#define PREFIX_TIMELINES_MAX 128u

typedef struct prefix_cache prefix_cache;
typedef struct saved_state saved_state;

typedef struct saved_at {
    uint32_t position;
    saved_state *state;
} saved_at;

typedef struct timeline {
    struct timeline *next;
    exec_seq *seq;
    int32_t *tokens; /* [n_ctx], n_tokens of them valid */
    uint32_t n_tokens;
    uint32_t n_written; /* rows ever written, hence resident */
    bool active;
    uint64_t used; /* tick of the last use */
    saved_at *saved;
    uint32_t n_saved, saved_cap;
} timeline;

/* Where a prompt can continue. Valid until the next call that is not `find`. */
typedef struct prefix_match {
    uint32_t n_cached; /* 0: nowhere */
    uint32_t n_common; /* longest common prefix with any timeline, >= n_cached */
    bool diverged;     /* that timeline goes on with diverged_id where the prompt has another */
    int32_t diverged_id;
    timeline *from;     /* NULL when n_cached is 0 */
    saved_state *state; /* NULL: from's present state */
} prefix_match;

/* limit_bytes 0: nothing is kept. */
calla_status prefix_cache_create(prefix_cache **out, calla_engine *engine, uint32_t n_ctx,
                                 uint64_t limit_bytes, calla_error *err);
/* No timeline may be active. NULL is fine. */
void prefix_cache_destroy(prefix_cache *c);

/* How many of the first n ids of a and b are equal. */
uint32_t prefix_common(const int32_t *a, const int32_t *b, uint32_t n);

/* At most n_ids - 1 tokens are reused: one must run to have logits. */
void prefix_cache_find(const prefix_cache *c, const int32_t *ids, uint32_t n_ids,
                       prefix_match *out);

/* An active timeline at position match->n_cached; frees parked ones if memory is short. */
calla_status prefix_cache_begin(prefix_cache *c, const prefix_match *match, timeline **out,
                                calla_error *err);

/* Tells of tokens that the executor has just appended. Allocates nothing. */
void timeline_append(timeline *t, const int32_t *ids, uint32_t n_ids);

/* Saves the state at the present position, unless that is done or cannot be paid. */
void prefix_cache_save(prefix_cache *c, timeline *t);

/* The request has ended: its timeline is kept, or forgotten (after a failure). */
void prefix_cache_park(prefix_cache *c, timeline *t);
void prefix_cache_drop(prefix_cache *c, timeline *t);

/* Can a state be paid at all? Otherwise save does nothing. */
bool prefix_cache_saves(const prefix_cache *c);

typedef struct prefix_stats {
    uint32_t n_timelines; /* parked */
    uint32_t n_states;
    uint64_t bytes, limit_bytes;
    uint64_t n_evicted_timelines, n_evicted_states;
} prefix_stats;

void prefix_cache_stats(const prefix_cache *c, prefix_stats *out);

#endif
