/* The scheduler's part of `calla selftest`: what a request says must not depend on the company it
 * has, nor on what the prefix cache holds. */
#include <pthread.h>
#include <string.h>

#include "cli/selftest.h"
#include "engine/scheduler.h"

#define N_COMPANY   3u
#define N_TOKEN_MAX 32u

typedef struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t done;
    unsigned n_open;
} waiting;

typedef struct heard {
    waiting *w;
    int32_t ids[N_TOKEN_MAX];
    float logprobs[N_TOKEN_MAX];
    uint32_t n, n_cached;
    calla_status status;
    calla_error err;
} heard;

static bool on_token(void *user, const sched_token *token)
{
    heard *h = user;
    if (h->n == N_TOKEN_MAX) return false;
    h->ids[h->n] = token->id;
    h->logprobs[h->n++] = token->logprob;
    return true;
}

static void on_done(void *user, const sched_result *result)
{
    heard *h = user;
    h->n_cached = result->n_cached;
    h->status = result->status;
    if (result->status != CALLA_OK) (void)err_set(&h->err, result->status, "%s", result->message);
    pthread_mutex_lock(&h->w->lock);
    h->w->n_open--;
    pthread_cond_signal(&h->w->done);
    pthread_mutex_unlock(&h->w->lock);
}

static void wait_all(waiting *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->n_open != 0)
        pthread_cond_wait(&w->done, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* The first i tokens left out. */
static calla_status ask(scheduler *s, heard *h, waiting *w, const selftest_text *x, uint32_t i,
                        calla_error *err)
{
    const uint32_t half = (uint32_t)x->n / 2;
    const sched_request r = {.prompt = x->ids + i,
                             .n_prompt = x->n - i,
                             .sampling = &(calla_sampling){0},
                             .max_tokens = x->n_reply,
                             .ignore_eos = true,
                             .logprobs = true,
                             .boundaries = &half,
                             .n_boundaries = 1,
                             .user = h,
                             .on_token = on_token,
                             .on_done = on_done};
    sched_ticket ticket;
    *h = (heard){.w = w};
    pthread_mutex_lock(&w->lock);
    w->n_open++;
    pthread_mutex_unlock(&w->lock);
    const calla_status st = scheduler_submit(s, &r, &ticket, err);
    if (st == CALLA_OK) return st;
    pthread_mutex_lock(&w->lock);
    w->n_open--;
    pthread_mutex_unlock(&w->lock);
    return st;
}

static bool same(const heard *a, const heard *b)
{
    return a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0 &&
           memcmp(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs) == 0;
}

static calla_status failed(const heard *h, calla_error *err)
{
    if (h->status != CALLA_OK) return err_set(err, h->status, "%s", h->err.message);
    return CALLA_OK;
}

/* Alone, as a session has it; then with what the cache kept. */
static calla_status check_cached(selftest_log *t, scheduler *s, waiting *w, const selftest_text *x,
                                 heard *alone, calla_error *err)
{
    heard cached;
    calla_status st;
    TRY(ask(s, alone, w, x, 0, err));
    wait_all(w);
    TRY(failed(alone, err));
    selftest_verdict(t,
                     alone->n == x->n_reply &&
                         memcmp(alone->ids, x->reply, x->n_reply * sizeof *x->reply) == 0,
                     "scheduled = a session's");
    TRY(ask(s, &cached, w, x, 0, err));
    wait_all(w);
    TRY(failed(&cached, err));
    selftest_verdict(t, cached.n_cached != 0 && same(&cached, alone),
                     "cached (%u of %zu tokens) = computed", cached.n_cached, x->n);
fail:
    return st;
}

static calla_status check_batched(selftest_log *t, scheduler *s, waiting *w, const selftest_text *x,
                                  const heard *alone, calla_error *err)
{
    heard all[1 + N_COMPANY] = {{0}};
    calla_status st = CALLA_OK;
    for (uint32_t i = 1 + N_COMPANY; i-- > 0 && st == CALLA_OK;)
        st = ask(s, &all[i], w, x, i, err);
    wait_all(w);
    if (st == CALLA_OK) st = failed(&all[0], err);
    if (st == CALLA_OK)
        selftest_verdict(t, same(&all[0], alone), "batched with %u others = alone", N_COMPANY);
    return st;
}

static calla_status check_engine(selftest_log *t, calla_engine *e, waiting *w,
                                 const selftest_text *x, calla_error *err)
{
    scheduler_options o = {.n_ctx = (uint32_t)x->n + N_TOKEN_MAX + 1,
                           .cache_ram_bytes = (uint64_t)256 << 20};
    scheduler *s;
    heard alone;
    calla_status st = scheduler_create(&s, e, &o, err);
    if (st != CALLA_OK) return st;
    st = check_cached(t, s, w, x, &alone, err);
    scheduler_destroy(s);
    if (st != CALLA_OK) return st;
    o.n_parallel = N_COMPANY + 1;
    o.cache_ram_bytes = 0;
    st = scheduler_create(&s, e, &o, err);
    if (st != CALLA_OK) return st;
    st = check_batched(t, s, w, x, &alone, err);
    scheduler_destroy(s);
    return st;
}

calla_status selftest_sched(selftest_log *t, const char *dir, const selftest_text *x,
                            calla_error *err)
{
    const calla_engine_options eo = {.model_dir = dir, .backend = "cpu"};
    calla_engine *e = NULL;
    waiting w = {.n_open = 0};
    if (pthread_mutex_init(&w.lock, NULL) != 0)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a lock");
    if (pthread_cond_init(&w.done, NULL) != 0) {
        (void)pthread_mutex_destroy(&w.lock);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a lock");
    }
    calla_status st = calla_engine_create(&e, &eo, err);
    if (st == CALLA_OK) st = check_engine(t, e, &w, x, err);
    calla_engine_destroy(e);
    (void)pthread_cond_destroy(&w.done);
    (void)pthread_mutex_destroy(&w.lock);
    return st;
}
