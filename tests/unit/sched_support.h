/* sched_support.h - requests whose callbacks are recorded and can be waited for, and what a session
 * says to the same prompt. */
#ifndef CALLA_TESTS_SCHED_SUPPORT_H
#define CALLA_TESTS_SCHED_SUPPORT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "engine/scheduler.h"
#include "engine/session.h"

#define HEARD_MAX 512u

typedef struct heard {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sched_ticket ticket;
    int32_t ids[HEARD_MAX];
    bool forced[HEARD_MAX], thinking[HEARD_MAX];
    float logprobs[HEARD_MAX];
    uint32_t n, n_progress, n_done_tokens, n_cached, n_done;
    uint32_t admitted; /* the how manieth of this program */
    sched_result result;
    char message[512];
    uint32_t stop_after;   /* on_token says no after so many */
    uint32_t hold_at;      /* on_token blocks at this one until `release` */
    uint32_t hold_prefill; /* on_progress blocks once so many prompt tokens are done */
    bool holding, release;
    uint64_t n_allocs; /* mem_count at the first token */
    bool check_allocs;
} heard;

static inline heard *heard_new(void)
{
    heard *h = mem_alloc(sizeof *h);
    assert_non_null(h);
    (void)pthread_mutex_init(&h->lock, NULL);
    (void)pthread_cond_init(&h->changed, NULL);
    return h;
}

static inline void heard_free(heard *h)
{
    (void)pthread_cond_destroy(&h->changed);
    (void)pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

static inline void heard_hold(heard *h)
{
    h->holding = true;
    (void)pthread_cond_broadcast(&h->changed);
    while (!h->release)
        (void)pthread_cond_wait(&h->changed, &h->lock);
    h->holding = false;
}

static inline void heard_progress(void *user, uint32_t n_done, uint32_t n_total, uint32_t n_cached)
{
    static atomic_uint n_admitted;
    heard *h = user;
    (void)pthread_mutex_lock(&h->lock);
    assert_int_equal(h->n_done, 0);
    assert_int_equal(h->n, 0);
    if (h->n_progress == 0) h->admitted = atomic_fetch_add(&n_admitted, 1) + 1;
    assert_true(n_done <= n_total && n_done >= n_cached);
    assert_true(h->n_progress == 0 ? n_done == n_cached : n_done > h->n_done_tokens);
    h->n_done_tokens = n_done;
    h->n_cached = n_cached;
    h->n_progress++;
    if (h->hold_prefill != 0 && n_done >= h->hold_prefill) {
        h->hold_prefill = 0;
        heard_hold(h);
    }
    (void)pthread_mutex_unlock(&h->lock);
}

static inline bool heard_token(void *user, const sched_token *t)
{
    heard *h = user;
    (void)pthread_mutex_lock(&h->lock);
    assert_int_equal(h->n_done, 0);
    if (h->check_allocs) {
        if (h->n == 0) h->n_allocs = mem_count();
        assert_int_equal(h->n_allocs, mem_count());
    }
    if (h->n < HEARD_MAX) {
        h->ids[h->n] = t->id;
        h->forced[h->n] = t->forced;
        h->thinking[h->n] = t->thinking;
        h->logprobs[h->n] = t->logprob;
    }
    h->n++;
    const bool go_on = h->stop_after == 0 || h->n < h->stop_after;
    if (h->hold_at != 0 && h->n == h->hold_at) heard_hold(h);
    (void)pthread_cond_broadcast(&h->changed);
    (void)pthread_mutex_unlock(&h->lock);
    return go_on;
}

static inline void heard_done(void *user, const sched_result *r)
{
    heard *h = user;
    (void)pthread_mutex_lock(&h->lock);
    h->n_done++;
    h->result = *r;
    (void)snprintf(h->message, sizeof h->message, "%s", r->message);
    h->result.message = h->message;
    assert_int_equal(r->n_generated, h->n);
    (void)pthread_cond_broadcast(&h->changed);
    (void)pthread_mutex_unlock(&h->lock);
}

static inline void heard_wait_done(heard *h)
{
    (void)pthread_mutex_lock(&h->lock);
    while (h->n_done == 0)
        (void)pthread_cond_wait(&h->changed, &h->lock);
    (void)pthread_mutex_unlock(&h->lock);
}

static inline void heard_wait_tokens(heard *h, uint32_t n)
{
    (void)pthread_mutex_lock(&h->lock);
    while (h->n < n && h->n_done == 0)
        (void)pthread_cond_wait(&h->changed, &h->lock);
    (void)pthread_mutex_unlock(&h->lock);
}

static inline void heard_wait_hold(heard *h)
{
    (void)pthread_mutex_lock(&h->lock);
    while (!h->holding)
        (void)pthread_cond_wait(&h->changed, &h->lock);
    (void)pthread_mutex_unlock(&h->lock);
}

static inline void heard_release(heard *h)
{
    (void)pthread_mutex_lock(&h->lock);
    h->release = true;
    (void)pthread_cond_broadcast(&h->changed);
    (void)pthread_mutex_unlock(&h->lock);
}

/* A request with the recorder's callbacks. */
static inline sched_request heard_request(heard *h, const int32_t *prompt, size_t n,
                                          uint32_t max_tokens)
{
    static const calla_sampling greedy = {0};
    return (sched_request){.prompt = prompt,
                           .n_prompt = n,
                           .sampling = &greedy,
                           .max_tokens = max_tokens,
                           .user = h,
                           .on_progress = heard_progress,
                           .on_token = heard_token,
                           .on_done = heard_done};
}

static inline void submit(scheduler *s, const sched_request *r)
{
    calla_error err;
    heard *h = r->user;
    if (scheduler_submit(s, r, &h->ticket, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_true(h->ticket != 0);
}

/* Submits and waits. */
static inline void ask(scheduler *s, const sched_request *r)
{
    submit(s, r);
    heard_wait_done(r->user);
}

static inline scheduler *make_scheduler(calla_engine *e, scheduler_options o)
{
    calla_error err;
    scheduler *s;
    if (scheduler_create(&s, e, &o, &err) != CALLA_OK) fail_msg("%s", err.message);
    return s;
}

/* What a session generates. */
typedef struct spoken {
    int32_t ids[HEARD_MAX];
    uint32_t n;
    calla_stop stop;
} spoken;

static inline bool spoken_token(void *user, int32_t id, const char *bytes, size_t n_bytes)
{
    spoken *a = user;
    (void)bytes;
    (void)n_bytes;
    a->ids[a->n++] = id;
    return true;
}

static inline void speak(calla_engine *e, const sched_request *r, uint32_t n_ctx, spoken *out)
{
    calla_error err;
    calla_session *s;
    const calla_session_options so = {.n_ctx = n_ctx};
    const calla_generate_options go = {.sampling = r->sampling, .max_tokens = r->max_tokens};
    calla_generate_result result;
    *out = (spoken){0};
    if (calla_session_create(&s, e, &so, &err) != CALLA_OK ||
        calla_session_feed(s, r->prompt, r->n_prompt, NULL, NULL, &err) != CALLA_OK ||
        calla_session_generate(s, &go, spoken_token, out, &result, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    out->stop = result.stop;
    calla_session_destroy(s);
}

static inline void assert_said(const heard *h, const spoken *a)
{
    assert_int_equal(h->n_done, 1);
    if (h->result.status != CALLA_OK) fail_msg("%s", h->result.message);
    assert_int_equal(h->n, a->n);
    assert_memory_equal(h->ids, a->ids, a->n * sizeof *a->ids);
    assert_int_equal(h->result.stop, a->stop);
}

#endif
