/* scheduler.h - many requests on one device.
 *
 * Does:       takes requests (a prompt of token ids, how to sample, when to stop) from any thread
 *             into a bounded queue and runs up to n_parallel of them together. One worker thread
 *             owns the device. Each of its steps is one executor call that appends one token to
 *             every sequence that generates and a limited piece of prompts, so that they do not
 *             stop the others' text. Where the device can draw tokens it does so as long as no
 *             prompt, end or wish of a request needs the host (executor.h, streams). Prompts
 *             continue from the longest prefix that the prefix cache knows (prefix_cache.h), with
 *             the recurrent state saved there.
 * Owns:       the worker, n_parallel samplers and rows of logits, every sequence and saved state;
 *             all memory is planned at creation and refused with the sum.
 * Invariants: (1) What a request generates is a function of the request alone: neither company, nor
 *             arrival, nor what the cache held changes a bit of it. (2) Every accepted request gets
 *             exactly one on_done, its last callback. (3) A failure of the device ends the requests
 *             of that step with its sentence, forgets their sequences, and touches nothing else. A
 *             segment that the executor refuses ends its own request only. (4) First come, first
 *             served, but that a request may wait for a prompt that is being computed and begins
 *             alike; n_parallel younger ones, and no more, may pass it meanwhile. Prompts in work
 *             take turns, a piece each: none waits longer than n_parallel steps for its next.
 * Threads:    submit, cancel, stats, drain and abort from any thread. Callbacks run on the worker
 *             and hold up everyone's tokens: they hand over and return, never block. A callback may
 *             call submit, cancel and stats, never drain or destroy.
 * Memory:     nothing is allocated per token.
 * Limits:     SCHED_PARALLEL_MAX, SCHED_TOP_LOGPROBS_MAX.
 */
#ifndef CALLA_ENGINE_SCHEDULER_H
#define CALLA_ENGINE_SCHEDULER_H

#include "base/error.h"

#define SCHED_PARALLEL_MAX     64u
#define SCHED_TOP_LOGPROBS_MAX 20u
#define SCHED_NO_POSITION      UINT32_MAX

typedef struct scheduler scheduler;
typedef uint64_t sched_ticket; /* never 0, never used twice */

typedef struct scheduler_options {
    uint32_t n_parallel;         /* sequences that run together; 0: 1 */
    uint32_t n_ctx;              /* tokens a sequence can hold; 0: 4096 or the model's, if less */
    uint32_t queue_max;          /* requests that may wait for a sequence; 0: 64 */
    uint64_t cache_ram_bytes;    /* for sequences kept after their request, and saved states; 0: no
                                    prefix cache */
    uint32_t piece_tokens;       /* prompt tokens a step while others generate; 0: as the
                                    executor prefers */
    uint32_t state_every_tokens; /* saved states at most this far apart in a long prompt; 0: 2048 */
    /* How a block of thinking is closed, "\n</think>\n\n", and the id in it after which it is
     * closed. Default (NULL): looked up in the engine's tokenizer. Copied. */
    const int32_t *think_close; /* [n_think_close] */
    size_t n_think_close;
    int32_t think_end_id;
} scheduler_options;

/* Refuses tokens while a request generates (a grammar, say). All but destroy run on the worker. */
typedef struct sched_filter {
    void *user;
    bool (*allow)(void *user, int32_t id);  /* could id come next? changes nothing; never asked
                                               about stop ids */
    bool (*may_end)(void *user);            /* could the text end here? */
    void (*accept)(void *user, int32_t id); /* id, which was allowed, comes next */
    void (*destroy)(void *user);            /* NULL: nothing to free */
} sched_filter;

typedef struct sched_top {
    int32_t id;
    float logprob;
} sched_top;

/* One generated token. Borrowed for the duration of the callback. */
typedef struct sched_token {
    int32_t id;
    const char *bytes; /* raw, maybe part of a character; [n_bytes] */
    size_t n_bytes;
    bool forced;    /* put there to close the thinking, not drawn */
    bool thinking;  /* inside the block of thinking, its closing id included */
    float logprob;  /* of the model's own distribution: before temperature, penalties, filters;
                       0 unless the request wants logprobs */
    uint32_t n_top; /* most likely ids, falling; n_top_logprobs of them */
    const sched_top *top;
} sched_token;

typedef struct sched_result {
    calla_status status; /* CALLA_OK, or why the device or the sampler failed */
    const char *message; /* the sentence, "" when OK; borrowed for the duration of the callback */
    calla_stop stop;     /* when OK. CALLA_STOP_CANCELLED also for one that never left the queue */
    uint32_t n_prompt;
    uint32_t n_cached;    /* prompt tokens that were not computed again */
    uint32_t n_generated; /* tokens given to on_token; the stop id is not */
    uint32_t n_thinking;  /* of them with `thinking` */
    uint32_t n_common;    /* longest prefix of the prompt that the cache held (n_cached is the part
                             of it up to a saved state) */
    uint32_t diverged_at; /* n_common, when the prompt and the best match both go on there, with
                             different tokens; else SCHED_NO_POSITION: nothing was contradicted */
    int32_t diverged_id;  /* what the match has at diverged_at, else -1 */
    double queue_seconds; /* submit to admission */
    double prefill_seconds; /* admission to the first token's logits */
    double decode_seconds;  /* from there to the end */
} sched_result;

typedef struct sched_request {
    const int32_t *prompt; /* [n_prompt], 1 .. n_ctx - 1; copied */
    size_t n_prompt;
    const calla_sampling *sampling; /* NULL: the checkpoint's defaults; copied */
    uint32_t max_tokens;            /* 0: until the context is full (CALLA_STOP_CONTEXT) */
    bool ignore_eos;                /* stop ids are ordinary tokens; benchmarks only */

    /* Added to the logits before everything else; -infinity forbids. Copied. */
    const int32_t *bias_ids; /* [n_bias] */
    const float *bias;       /* [n_bias] */
    size_t n_bias;

    bool logprobs;           /* fill sched_token.logprob */
    uint32_t n_top_logprobs; /* and top; at most SCHED_TOP_LOGPROBS_MAX */

    /* Positions (tokens before them) that later prompts are likely to share: the ends of messages.
     * Ascending; copied. States are saved at the first, the last two, and some between. */
    const uint32_t *boundaries; /* [n_boundaries], each <= n_prompt */
    size_t n_boundaries;

    bool in_thinking;         /* the prompt ends inside an open block of thinking */
    bool limit_thinking;      /* with in_thinking: after thinking_budget tokens the block is */
    uint32_t thinking_budget; /*   closed by force; 0 closes it at once */

    /* NULL: no filter. Copied; the user pointer moves to the scheduler when submit succeeds. With
     * in_thinking and filter_after_thinking it begins behind the closing tokens, which are then
     * always those of think_close; a stop id drawn before that closes the block instead. */
    const sched_filter *filter;
    bool filter_after_thinking;

    void *user; /* of the callbacks, each of which may be NULL */
    /* After admission (n_done == n_cached) and after each piece of the prompt. */
    void (*on_progress)(void *user, uint32_t n_done, uint32_t n_total, uint32_t n_cached);
    /* Return false to stop after this token (CALLA_STOP_CALLBACK). */
    bool (*on_token)(void *user, const sched_token *token);
    void (*on_done)(void *user, const sched_result *result);
} sched_request;

/* The engine is borrowed; its other sessions may run beside the scheduler, step by step. */
calla_status scheduler_create(scheduler **out, calla_engine *engine,
                              const scheduler_options *options, calla_error *err);

/* Cancels what waits or runs (their on_done comes before this returns). NULL is fine. */
void scheduler_destroy(scheduler *s);

/* Queues a request. Everything is checked here: CALLA_ERR_ARGUMENT names the field;
 * CALLA_ERR_FULL: queue_max requests wait already; CALLA_ERR_CANCELLED: draining.
 * *out is written before the first callback. */
calla_status scheduler_submit(scheduler *s, const sched_request *request, sched_ticket *out,
                              calla_error *err);

/* Ends a request within one step, with CALLA_STOP_CANCELLED; its on_done comes from the worker.
 * What was computed of its prompt stays in the cache. Does nothing when it has ended. */
void scheduler_cancel(scheduler *s, sched_ticket ticket);

/* Refuses new requests from now on and waits until all have ended, at most so many seconds. True
 * when none is left. */
bool scheduler_drain(scheduler *s, double seconds);

/* Refuses new requests, and ends what waits or runs within one step: their results are
 * CALLA_ERR_CANCELLED with a sentence for the client, as nobody there has asked for the end.
 * scheduler_drain waits for it. */
void scheduler_abort(scheduler *s);

typedef struct sched_stats {
    uint32_t n_parallel, n_ctx, queue_max;
    uint32_t n_queued;               /* waiting */
    uint32_t n_running;              /* admitted: prefilling and generating */
    uint32_t n_prefilling;           /* of them */
    uint64_t n_submitted, n_refused; /* since creation, as all below; refused: queue full */
    uint64_t n_finished, n_cancelled, n_failed;
    uint64_t n_tokens_prefilled, n_tokens_cached, n_tokens_generated;
    uint64_t n_steps;               /* executor calls */
    uint32_t n_timelines, n_states; /* now in the cache: kept sequences, saved states */
    uint64_t cache_bytes, cache_limit_bytes;
    uint64_t n_evicted_timelines, n_evicted_states;
    uint64_t n_hits, n_misses; /* admitted requests with n_cached above 0, and the others */
    uint64_t planned_bytes;    /* sequences, logits, samplers, cache: what creation reserved */
} sched_stats;

void scheduler_stats(scheduler *s, sched_stats *out);

#endif
