#include "engine/scheduler.h"

#include <string.h>
#include <time.h>

#include "base/ck.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/sched.h"

#define QUEUE_DEFAULT 64u
#define EVERY_DEFAULT 2048u

/* A prompt that another one is just computing is waited for when it saves so many tokens. */
#define WAIT_GAIN_TOKENS 32u

/* ---- The worker ---- */

static void unlink_request(scheduler *s, sched_req **at)
{
    sched_req *q = *at;
    *at = q->next;
    if (s->tail == &q->next) s->tail = at;
    q->next = NULL;
    s->n_queued--;
}

static calla_status shut_down(calla_error *err)
{
    return err_set(err, CALLA_ERR_CANCELLED, "the scheduler is shutting down");
}

static void end_slot(scheduler *s, sched_slot *slot, bool failed)
{
    calla_error err;
    if (!failed) {
        sched_finish(s, slot, CALLA_STOP_CANCELLED);
        return;
    }
    (void)shut_down(&err);
    sched_fail(s, slot, &err);
}

static void end_waiting(scheduler *s, sched_req *q, bool failed)
{
    calla_error err;
    sched_result r = sched_result_none(q);
    r.stop = CALLA_STOP_CANCELLED;
    if (failed) {
        r.status = shut_down(&err);
        r.message = err.message;
    }
    sched_done(s, q, &r);
}

/* Ends what was cancelled, or everything when the scheduler stops or aborts. */
static void end_cancelled(scheduler *s)
{
    sched_req *gone = NULL, **gone_at = &gone;
    uint64_t slots = 0, failed = 0; /* bit i: slot i */
    (void)pthread_mutex_lock(&s->lock);
    const bool all = s->stopping || s->aborting, fail = s->aborting;
    for (sched_req **at = &s->head; *at != NULL;) {
        sched_req *q = *at;
        if (!q->cancelled && !all) {
            at = &q->next;
            continue;
        }
        unlink_request(s, at);
        *gone_at = q;
        gone_at = &q->next;
    }
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        const sched_req *q = s->slots[i].req;
        if (q == NULL || s->slots[i].streaming || !(q->cancelled || all)) continue;
        slots |= (uint64_t)1 << i;
        if (fail && !q->cancelled) failed |= (uint64_t)1 << i;
    }
    (void)pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < s->options.n_parallel; i++)
        if (slots >> i & 1) end_slot(s, &s->slots[i], failed >> i & 1);
    while (gone != NULL) {
        sched_req *q = gone;
        gone = q->next;
        end_waiting(s, q, fail && !q->cancelled);
    }
}

/* A stream goes on until somebody leaves, or could come. */
static void end_stream(scheduler *s)
{
    if (s->stream.n == 0) return;
    (void)pthread_mutex_lock(&s->lock);
    bool ends = s->stopping || s->aborting;
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        const sched_req *q = s->slots[i].req;
        ends = ends || (q == NULL ? s->head != NULL : q->cancelled);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (ends) sched_stream_end(s);
}

/* Would a prompt gain by waiting for one that is being computed? Then that one will save a state
 * further on in their common prefix than anything there is. But a slot that becomes free meanwhile
 * goes to a younger request, and so that this cannot go on for ever, only so many may pass. */
static bool should_wait(const scheduler *s, const sched_req *q, uint32_t n_cached)
{
    if (q->n_passed >= s->options.n_parallel) return false;
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        const sched_slot *slot = &s->slots[i];
        if (slot->phase != SLOT_PREFILL) continue;
        const sched_req *other = slot->req;
        const uint32_t n_both = other->n_prompt < q->n_prompt ? other->n_prompt : q->n_prompt - 1;
        const uint32_t n = prefix_common(q->prompt, other->prompt, n_both);
        for (uint32_t m = other->n_marks; m-- != 0;)
            if (other->marks[m] <= n && other->marks[m] > slot->t->n_tokens &&
                other->marks[m] >= n_cached + WAIT_GAIN_TOKENS)
                return true;
    }
    return false;
}

static void fill_slot(scheduler *s, sched_slot *slot, const prefix_match *m, timeline *t)
{
    const sched_req *q = slot->req;
    slot->t_admit = time_now();
    slot->i_mark = 0;
    slot->result = (sched_result){
        .message = "",
        .n_cached = m->n_cached,
        .n_common = m->n_common,
        .diverged_at = m->diverged ? m->n_common : SCHED_NO_POSITION,
        .diverged_id = m->diverged_id,
        .queue_seconds = slot->t_admit - q->t_submit,
    };
    (void)pthread_mutex_lock(&s->lock);
    slot->t = t;
    slot->phase = SLOT_PREFILL;
    s->stats.n_tokens_cached += m->n_cached;
    if (m->n_cached != 0)
        s->stats.n_hits++;
    else
        s->stats.n_misses++;
    (void)pthread_mutex_unlock(&s->lock);
    if (q->r.on_progress != NULL)
        q->r.on_progress(q->r.user, m->n_cached, q->n_prompt, m->n_cached);
}

static void admit_to(scheduler *s, sched_slot *slot, const prefix_match *m)
{
    timeline *t;
    calla_error err;
    if (prefix_cache_begin(s->cache, m, &t, &err) == CALLA_OK) {
        fill_slot(s, slot, m, t);
        return;
    }
    sched_req *q = slot->req;
    (void)pthread_mutex_lock(&s->lock);
    slot->req = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    sched_result r = sched_result_none(q);
    r.status = err.code;
    r.message = err.message;
    sched_done(s, q, &r);
}

/* Moves the first request that need not wait for another's prompt from the queue into a free slot,
 * whose phase stays SLOT_FREE: the caller fills the rest, or frees it. */
static bool take_request(scheduler *s, sched_slot *slot, prefix_match *m)
{
    (void)pthread_mutex_lock(&s->lock);
    sched_req *q = s->head; /* only the worker takes requests out: q stays */
    (void)pthread_mutex_unlock(&s->lock);
    while (q != NULL) {
        prefix_cache_find(s->cache, q->prompt, q->n_prompt, m);
        const bool wait = should_wait(s, q, m->n_cached);
        (void)pthread_mutex_lock(&s->lock);
        if (!wait) {
            sched_req **at = &s->head;
            for (; *at != q; at = &(*at)->next)
                (*at)->n_passed++;
            unlink_request(s, at);
            slot->req = q;
        }
        sched_req *next = q->next;
        (void)pthread_mutex_unlock(&s->lock);
        if (!wait) return true;
        q = next;
    }
    return false;
}

static void admit(scheduler *s)
{
    if (s->stream.n != 0) return;
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        prefix_match m;
        if (s->slots[i].phase != SLOT_FREE) continue;
        if (!take_request(s, &s->slots[i], &m)) return;
        admit_to(s, &s->slots[i], &m);
    }
}

static bool is_idle(const scheduler *s)
{
    bool idle = true;
    for (uint32_t i = 0; i < s->options.n_parallel; i++)
        idle = idle && s->slots[i].phase == SLOT_FREE;
    return idle;
}

static void *work(void *p)
{
    scheduler *s = p;
    for (;;) {
        end_stream(s);
        end_cancelled(s);
        admit(s);
        sched_step(s);
        sched_publish(s);
        const bool idle = is_idle(s);
        (void)pthread_mutex_lock(&s->lock);
        while (idle && s->head == NULL && !s->stopping)
            (void)pthread_cond_wait(&s->wake, &s->lock);
        const bool stop = s->stopping && s->n_live == 0;
        (void)pthread_mutex_unlock(&s->lock);
        if (stop) return NULL;
    }
}

/* ---- Creation ---- */

static calla_status check_options(const scheduler *s, calla_error *err)
{
    const scheduler_options *o = &s->options;
    if (o->n_parallel > SCHED_PARALLEL_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "n_parallel is %u, expected at most %u",
                       o->n_parallel, SCHED_PARALLEL_MAX);
    if (o->n_parallel >= s->engine->chunk_tokens)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "%u sequences leave no room for a prompt in a step of %u tokens "
                       "(chunk_tokens)",
                       o->n_parallel, s->engine->chunk_tokens);
    if (o->n_ctx < 2)
        return err_set(err, CALLA_ERR_ARGUMENT, "n_ctx is %u, expected at least 2", o->n_ctx);
    return CALLA_OK;
}

/* The ids that close a block of thinking: given, or looked up. None is not an error. */
static calla_status find_think_close(scheduler *s, calla_error *err)
{
    static const char text[] = "\n</think>\n\n";
    scheduler_options *o = &s->options;
    const calla_tokenizer *tok = s->engine->tok;
    int32_t *ids = NULL;
    size_t n = o->n_think_close;
    const int32_t *from = o->think_close;
    if (from == NULL) n = 0;
    if (from == NULL && tok != NULL && calla_tokenizer_added_id(tok, "</think>") >= 0) {
        const calla_status st =
            calla_tokenizer_encode(tok, text, sizeof text - 1, CALLA_ENCODE_DEFAULT, &ids, &n, err);
        if (st != CALLA_OK) return st;
        o->think_end_id = calla_tokenizer_added_id(tok, "</think>");
        from = ids;
    }
    bool closes = n == 0;
    for (size_t i = 0; i < n && n <= SCHED_CLOSE_MAX; i++) {
        s->think_close[i] = from[i];
        closes = closes || from[i] == o->think_end_id;
    }
    calla_free(ids);
    if (!closes)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "think_close must have at most %u tokens, think_end_id among them, found "
                       "%zu",
                       SCHED_CLOSE_MAX, n);
    o->think_close = s->think_close;
    o->n_think_close = n;
    return CALLA_OK;
}

static calla_status reserve(scheduler *s, calla_error *err)
{
    const scheduler_options *o = &s->options;
    calla_engine *e = s->engine;
    calla_memory_plan plan;
    calla_status st = calla_engine_plan(e, o->n_ctx, &plan, err);
    if (st != CALLA_OK) return st;
    const uint64_t seq = plan.kv_bytes + plan.state_bytes + plan.logits_bytes;
    const uint64_t prompts = ((uint64_t)o->queue_max + o->n_parallel) * o->n_ctx * sizeof(int32_t);
    uint64_t need, sum = 0;
    (void)pthread_mutex_lock(&e->device);
    const uint64_t others = e->reserved;
    const bool fits = ck_mul(seq, o->n_parallel, &need) && ck_add(need, prompts, &need) &&
                      ck_add(need, o->cache_ram_bytes, &need) && ck_add(need, others, &sum) &&
                      ck_add(sum, plan.weights_mapped, &sum) && sum <= e->limit_bytes;
    if (fits) e->reserved += need;
    (void)pthread_mutex_unlock(&e->device);
    if (fits) {
        s->planned_bytes = need;
        return CALLA_OK;
    }
    const double gib = 1073741824.0, mib = 1048576.0;
    const double total = (double)plan.weights_mapped + (double)others + (double)prompts +
                         (double)seq * o->n_parallel + (double)o->cache_ram_bytes;
    return err_set(err, CALLA_ERR_MEMORY,
                   "not enough memory: %.2f GiB of weights (mapped, page cache) + %.1f MiB in use "
                   "+ %u sequences of %u tokens at %.1f MiB + %.1f MiB of waiting prompts + %.1f "
                   "MiB of prefix cache = %.2f GiB, expected at most %.2f GiB",
                   (double)plan.weights_mapped / gib, (double)others / mib, o->n_parallel, o->n_ctx,
                   (double)seq / mib, (double)prompts / mib, (double)o->cache_ram_bytes / mib,
                   total / gib, (double)e->limit_bytes / gib);
}

static calla_status create_slots(scheduler *s, calla_error *err)
{
    const calla_engine *e = s->engine;
    s->slots = mem_array(s->options.n_parallel, sizeof *s->slots);
    if (s->slots == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the scheduler");
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        sched_slot *slot = &s->slots[i];
        slot->logits = mem_alloc_aligned(e->shape.n_vocab * sizeof(float));
        if (slot->logits == NULL)
            return err_set(err, CALLA_ERR_MEMORY, "no memory for a row of logits");
        const calla_status st =
            sampler_create(&slot->sampler, e->shape.n_vocab, e->banned, e->n_banned, err);
        if (st != CALLA_OK) return st;
    }
    return CALLA_OK;
}

static calla_status create_worker(scheduler *s, calla_error *err)
{
    if (pthread_mutex_init(&s->lock, NULL) != 0)
        return err_set(err, CALLA_ERR_MEMORY, "cannot create the scheduler's lock");
    if (pthread_cond_init(&s->wake, NULL) != 0) {
        (void)pthread_mutex_destroy(&s->lock);
        return err_set(err, CALLA_ERR_MEMORY, "cannot create the scheduler's condition");
    }
    s->has_lock = true;
    if (!thread_start(&s->worker, work, s))
        return err_set(err, CALLA_ERR_MEMORY, "cannot create the scheduler's thread");
    s->has_worker = true;
    return CALLA_OK;
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

calla_status scheduler_create(scheduler **out, calla_engine *engine,
                              const scheduler_options *options, calla_error *err)
{
    static const scheduler_options none = {0};
    calla_status st;
    *out = NULL;
    scheduler *s = mem_alloc(sizeof *s);
    if (s == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the scheduler");
    const uint32_t max = engine->shape.max_context;
    s->engine = engine;
    s->options = options != NULL ? *options : none;
    scheduler_options *o = &s->options;
    o->n_parallel = or_default(o->n_parallel, 1);
    o->n_ctx = or_default(o->n_ctx, max < ENGINE_CTX_DEFAULT ? max : ENGINE_CTX_DEFAULT);
    o->queue_max = or_default(o->queue_max, QUEUE_DEFAULT);
    o->piece_tokens = or_default(o->piece_tokens, engine->ex->ops->piece_tokens);
    o->piece_tokens = or_default(o->piece_tokens, UINT32_MAX);
    o->state_every_tokens = or_default(o->state_every_tokens, EVERY_DEFAULT);
    s->tail = &s->head;
    s->stats = (sched_stats){.n_parallel = o->n_parallel,
                             .n_ctx = o->n_ctx,
                             .queue_max = o->queue_max,
                             .cache_limit_bytes = o->cache_ram_bytes};
    TRY(check_options(s, err));
    TRY(find_think_close(s, err));
    TRY(reserve(s, err));
    s->stats.planned_bytes = s->planned_bytes;
    TRY(create_slots(s, err));
    TRY(prefix_cache_create(&s->cache, engine, o->n_ctx, o->cache_ram_bytes, err));
    TRY(create_worker(s, err));
    *out = s;
    return CALLA_OK;
fail:
    scheduler_destroy(s);
    return st;
}

void scheduler_destroy(scheduler *s)
{
    if (s == NULL) return;
    if (s->has_worker) {
        (void)pthread_mutex_lock(&s->lock);
        s->draining = s->stopping = true;
        (void)pthread_cond_signal(&s->wake);
        (void)pthread_mutex_unlock(&s->lock);
        (void)pthread_join(s->worker, NULL);
    }
    prefix_cache_destroy(s->cache);
    for (uint32_t i = 0; s->slots != NULL && i < s->options.n_parallel; i++) {
        sampler_destroy(s->slots[i].sampler);
        mem_free_aligned(s->slots[i].logits);
    }
    mem_free(s->slots);
    (void)pthread_mutex_lock(&s->engine->device);
    s->engine->reserved -= s->planned_bytes;
    (void)pthread_mutex_unlock(&s->engine->device);
    if (s->has_lock) {
        (void)pthread_cond_destroy(&s->wake);
        (void)pthread_mutex_destroy(&s->lock);
    }
    mem_free(s);
}

/* ---- From other threads ---- */

/* Counts the request and puts it at the end of the queue; the lock is held. */
static calla_status enqueue(scheduler *s, sched_req *q, calla_error *err)
{
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < s->options.n_parallel; i++)
        n_free += s->slots[i].req == NULL;
    if (s->draining) return shut_down(err);
    if (s->n_queued >= s->options.queue_max + n_free) {
        s->stats.n_refused++;
        return err_set(err, CALLA_ERR_FULL, "%u requests are waiting already, expected at most %u",
                       s->n_queued, s->options.queue_max);
    }
    q->ticket = ++s->last_ticket;
    *s->tail = q;
    s->tail = &q->next;
    s->n_queued++;
    s->n_live++;
    s->stats.n_submitted++;
    (void)pthread_cond_signal(&s->wake);
    return CALLA_OK;
}

calla_status scheduler_submit(scheduler *s, const sched_request *request, sched_ticket *out,
                              calla_error *err)
{
    sched_req *q;
    *out = 0;
    calla_status st = sched_req_create(&q, s, request, err);
    if (st != CALLA_OK) return st;
    (void)pthread_mutex_lock(&s->lock);
    st = enqueue(s, q, err);
    if (st == CALLA_OK) {
        *out = q->ticket;
        if (request->filter != NULL) {
            q->filter = *request->filter;
            q->r.filter = &q->filter;
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (st != CALLA_OK) sched_req_destroy(q);
    return st;
}

void scheduler_cancel(scheduler *s, sched_ticket ticket)
{
    (void)pthread_mutex_lock(&s->lock);
    for (sched_req *q = s->head; q != NULL; q = q->next)
        if (q->ticket == ticket) q->cancelled = true;
    for (uint32_t i = 0; i < s->options.n_parallel; i++)
        if (s->slots[i].req != NULL && s->slots[i].req->ticket == ticket)
            s->slots[i].req->cancelled = true;
    (void)pthread_mutex_unlock(&s->lock);
}

bool scheduler_drain(scheduler *s, double seconds)
{
    const double end = time_now() + seconds;
    for (;;) {
        (void)pthread_mutex_lock(&s->lock);
        s->draining = true;
        const bool done = s->n_live == 0;
        (void)pthread_mutex_unlock(&s->lock);
        if (done || time_now() >= end) return done;
        const struct timespec nap = {.tv_nsec = 5000000};
        (void)nanosleep(&nap, NULL);
    }
}

void scheduler_abort(scheduler *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->draining = s->aborting = true;
    (void)pthread_mutex_unlock(&s->lock);
}

void scheduler_stats(scheduler *s, sched_stats *out)
{
    (void)pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->n_queued = s->n_queued;
    out->n_running = out->n_prefilling = 0;
    for (uint32_t i = 0; i < s->options.n_parallel; i++) {
        out->n_running += s->slots[i].req != NULL;
        out->n_prefilling += s->slots[i].req != NULL && s->slots[i].phase == SLOT_PREFILL;
    }
    (void)pthread_mutex_unlock(&s->lock);
}
