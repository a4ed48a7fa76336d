/* sched.h - internals of the scheduler, shared by its files.
 *
 * Does:       sched_request.c checks and copies requests and decides where states are saved;
 *             scheduler.c is the object, the queue and the worker's loop; sched_step.c builds, runs
 *             and digests one step; sched_token.c goes from a row of logits to a token;
 *             sched_stream.c has the steps whose tokens the device draws.
 * Invariants: a slot's phase decides what its fields mean. SLOT_FREE: nothing (but req,
 *             while a request is being admitted). SLOT_PREFILL: t is
 *             active and t->n_tokens prompt tokens are in it. SLOT_DECODE: the prompt is in t, and
 *             `next` has been drawn and reported but not run; or, when drawable, it has been run
 *             and what comes behind it can be chosen. While a stream runs, its slots are
 *             all that are not free; they stay, and nothing is admitted, until it has ended.
 * Threads:    `lock` guards the queue, every slot's req and phase against readers, the `cancelled`
 *             of requests, `draining`, `aborting`, `stopping`, the counters. The worker alone
 *             writes slots, and reads its own without the lock. Callbacks are called without it.
 */
#ifndef CALLA_ENGINE_SCHED_H
#define CALLA_ENGINE_SCHED_H

#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

#define SCHED_CLOSE_MAX 16u /* tokens that close a block of thinking */

typedef struct sched_req {
    struct sched_req *next; /* in the queue */
    sched_ticket ticket;
    sched_request r; /* its arrays are the copies below; owns r.filter's user pointer */
    calla_sampling sampling;
    sched_filter filter;
    int32_t *prompt;
    int32_t *bias_ids;
    float *bias;
    uint32_t n_prompt;
    uint32_t *marks; /* positions at which to save the state: ascending, below n_prompt */
    uint32_t n_marks;
    uint32_t n_passed; /* younger requests that were admitted while this one waited for a prompt */
    double t_submit;
    bool cancelled;
} sched_req;

typedef enum slot_phase { SLOT_FREE, SLOT_PREFILL, SLOT_DECODE } slot_phase;

typedef struct sched_slot {
    slot_phase phase;
    sched_req *req;
    timeline *t;
    sampler *sampler;
    float *logits; /* [n_vocab] */
    uint32_t i_mark;
    int32_t next;
    bool drawable;   /* next has been run */
    int32_t drawn;   /*   and this id drawn behind it; -1: logits are those behind it */
    bool streaming;  /* the executor may be further than t */
    bool thinking;   /* inside the block */
    bool filtering;  /* the filter is asked */
    size_t i_forced; /* next token of think_close; n_think_close: nothing is forced */
    double t_admit, t_first;
    sched_result result;
    sched_top top[SCHED_TOP_LOGPROBS_MAX];
} sched_slot;

/* Slots whose tokens the device draws. */
typedef struct sched_stream {
    sched_slot *slots[EXEC_STREAM_MAX];
    uint32_t n; /* 0: none */
    uint32_t n_steps, max_steps;
} sched_stream;

struct scheduler {
    calla_engine *engine;
    scheduler_options options; /* defaults filled in; think_close points below */
    int32_t think_close[SCHED_CLOSE_MAX];
    uint64_t planned_bytes; /* reserved with the engine */
    prefix_cache *cache;
    sched_slot *slots; /* [n_parallel] */
    sched_stream stream;
    bool no_streams; /* the executor has failed to begin one */
    uint32_t i_turn; /* slot whose prompt is served first in the next step */
    pthread_t worker;
    bool has_worker, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t wake;       /* the worker: a request came, or stopping */
    sched_req *head, **tail;   /* waiting, first come first */
    uint32_t n_queued, n_live; /* live: accepted, on_done not yet returned */
    sched_ticket last_ticket;
    bool draining, aborting, stopping;
    sched_stats stats;
};

/* ---- sched_request.c ---- */

calla_status sched_req_create(sched_req **out, const scheduler *s, const sched_request *request,
                              calla_error *err);
/* Also destroys the filter, when the request has taken it over. */
void sched_req_destroy(sched_req *req);

/* Writes the positions at which a prompt's state is worth saving: the first boundary, the last two,
 * others when `every` tokens have passed, a position just before the end when the last boundary is
 * far from it, and enough between that none is more than `every` from the one before. All lie
 * in [SCHED_MARK_MIN, n_prompt). out [sched_marks_max(...)]; returns their number. */
#define SCHED_MARK_MIN 16u
uint32_t sched_marks_max(uint32_t n_prompt, size_t n_boundaries, uint32_t every);
uint32_t sched_marks(const uint32_t *boundaries, size_t n_boundaries, uint32_t n_prompt,
                     uint32_t every, uint32_t *out);

/* ---- sched_step.c ---- */

/* One executor call for all slots that are not free, and what follows from it. */
void sched_step(scheduler *s);
void sched_count_step(scheduler *s, uint64_t n_prefilled);

/* Ends a slot's request: keeps (or drops) the timeline, frees the slot, calls on_done. */
void sched_finish(scheduler *s, sched_slot *slot, calla_stop stop);
void sched_fail(scheduler *s, sched_slot *slot, const calla_error *err);
/* The result of a request that no slot has taken. */
sched_result sched_result_none(const sched_req *req);
/* Shows the cache's present figures to scheduler_stats. */
void sched_publish(scheduler *s);
/* The last callback of a request that is in no slot any more; frees it. */
void sched_done(scheduler *s, sched_req *req, sched_result *result);

/* ---- sched_stream.c ---- */

/* True: a stream has begun for all slots that are not free. */
bool sched_stream_begin(scheduler *s);
/* One token for each of its slots. Ends it when one of them stops or needs the host. */
void sched_stream_step(scheduler *s);
/* Ends it, if one is running: its slots are drawable. Ends requests only if it fails. */
void sched_stream_end(scheduler *s);

/* ---- sched_token.c ---- */

/* Prepares a slot whose prompt has just been completed. */
void sched_token_begin(const scheduler *s, sched_slot *slot);
/* Chooses a token from slot->logits and reports it. *done: the request ends, *stop says why;
 * otherwise slot->next is to be run. */
calla_status sched_token_next(const scheduler *s, sched_slot *slot, bool *done, calla_stop *stop,
                              calla_error *err);
/* The same with an id that the device has drawn. True: it may draw the next one too. */
bool sched_token_drawn(const scheduler *s, sched_slot *slot, int32_t id, bool *done,
                       calla_stop *stop);
/* How many of the next tokens the device may draw, one after the other, before max_tokens, the
 * context or the budget of thinking ends that; 0: the next one must be chosen here. */
uint32_t sched_token_draws(const scheduler *s, const sched_slot *slot);

/* Log-softmax of one row without the banned ids (ascending); top [n_top]: the largest, falling,
 * lower id first on a tie. */
void sched_logprobs(const float *logits, uint32_t n_vocab, const int32_t *banned, size_t n_banned,
                    int32_t id, float *logprob, sched_top *top, uint32_t n_top);

#endif
