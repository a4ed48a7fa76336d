/* The trace is read twice. The plan finds, for each request, the later one that sends its answer
 * along (their conversations have the same key up to there) and how long that answer is; of all
 * that, only numbers are kept. The run asks one request at a time. */
#include "bench/agent.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "bench/agent_trace.h"
#include "engine/scheduler.h"
#include "server/api_question.h"

#define NONE         UINT32_MAX
#define WARM_TOKENS  256u
#define CACHE_LEAST  (UINT64_C(256) << 20)
#define REPLAY_BYTES (UINT64_C(256) << 20) /* of answers: none shall be forgotten */
#define KEYS_MAX     (UINT64_C(1) << 26)   /* messages of all requests together */

typedef struct planned {
    uint32_t n_prompt, n_generate;
    uint32_t next; /* the request that sends the answer along; NONE: none does */
    size_t n_messages;
    replay_key *keys; /* [n_messages] */
    uint8_t *answers; /* [n_messages] is it an answer? */
    uint32_t max_tokens;
} planned;

typedef struct side {
    api_ctx *api; /* reads requests; has its own memory of answers */
    scheduler *sched;
    int32_t *ids; /* [n_ctx] of the last answer */
    uint32_t n_ids;
} side;

typedef struct replayer {
    const agent_options *o;
    agent_trace trace;
    planned *plan; /* [trace.n] */
    side cache, plain;
    agent_result *out;
    uint32_t n_ctx;
} replayer;

static calla_status no_memory(calla_error *err)
{
    return err_set(err, CALLA_ERR_MEMORY, "no memory for the replay");
}

/* Names the request that the error is about. */
static calla_status at(const agent_request *q, calla_status st, calla_error *err)
{
    char text[sizeof err->message];
    (void)snprintf(text, sizeof text, "%s", err->message);
    return err_set(err, st, "%s: %s", q->where, text);
}

static calla_status read_request(api_question **out, api_ctx *api, const agent_request *q,
                                 calla_error *err)
{
    const calla_status st = api_question_create(out, api, q->path, q->body, q->n_body, err);
    return st == CALLA_OK ? st : at(q, st, err);
}

/* ---- Plan ---- */

static calla_status plan_one(replayer *r, api_ctx *api, uint32_t i, uint64_t *n_keys,
                             calla_error *err)
{
    planned *p = &r->plan[i];
    sched_request request = {0};
    api_question *q;
    const calla_status st = read_request(&q, api, &r->trace.requests[i], err);
    if (st != CALLA_OK) return st;
    api_question_fill(q, &request);
    *p = (planned){.n_prompt = (uint32_t)request.n_prompt,
                   .n_generate = r->trace.requests[i].n_generated,
                   .next = NONE,
                   .n_messages = api_question_n_messages(q),
                   .max_tokens = api_question_max_tokens(q)};
    *n_keys += p->n_messages;
    if (*n_keys <= KEYS_MAX) {
        p->keys = mem_array(p->n_messages, sizeof *p->keys);
        p->answers = mem_array(p->n_messages, sizeof *p->answers);
    }
    const bool ok = p->keys != NULL && p->answers != NULL;
    if (ok) api_question_keys(q, p->keys);
    for (size_t m = 0; ok && m < p->n_messages; m++)
        p->answers[m] = api_question_is_answer(q, m);
    api_question_destroy(q);
    return ok ? CALLA_OK : no_memory(err);
}

static bool sends_answer(const planned *later, const planned *p)
{
    const size_t n = p->n_messages;
    return n < later->n_messages && later->answers[n] &&
           memcmp(&later->keys[n - 1], &p->keys[n - 1], sizeof *p->keys) == 0;
}

/* How many tokens request i generates. */
static calla_status plan_answer(replayer *r, api_ctx *api, uint32_t i, calla_error *err)
{
    planned *p = &r->plan[i];
    api_question *q = NULL, *later = NULL;
    calla_status st = CALLA_OK;
    if (p->n_generate == 0 && p->next != NONE) {
        st = read_request(&q, api, &r->trace.requests[i], err);
        if (st == CALLA_OK) st = read_request(&later, api, &r->trace.requests[p->next], err);
        if (st == CALLA_OK && api_question_count(q, later, &p->n_generate, err) != CALLA_OK)
            st = at(&r->trace.requests[p->next], err->code, err);
        api_question_destroy(later);
        api_question_destroy(q);
        if (p->n_generate == 0) p->n_generate = 1;
    }
    if (p->n_generate == 0) {
        const bool less = p->max_tokens != 0 && p->max_tokens < AGENT_ANSWER_TOKENS;
        p->n_generate = less ? p->max_tokens : AGENT_ANSWER_TOKENS;
    }
    return st;
}

/* The context that the trace needs, with room for thinking that clients do not send back. */
static uint32_t needed_context(const replayer *r)
{
    calla_engine_info info;
    uint64_t most = 0;
    calla_engine_get_info(r->o->engine, &info);
    for (uint32_t i = 0; i < r->trace.n; i++) {
        const uint64_t n = (uint64_t)r->plan[i].n_prompt + r->plan[i].n_generate;
        if (n > most) most = n;
    }
    most += most / 4 + 256;
    return most < info.max_context ? (uint32_t)most : info.max_context;
}

static calla_status make_plan(replayer *r, calla_error *err)
{
    const api_options ao = {.engine = r->o->engine};
    uint64_t n_keys = 0;
    api_ctx *api;
    r->plan = mem_array(r->trace.n, sizeof *r->plan);
    if (r->plan == NULL) return no_memory(err);
    calla_status st = api_create(&api, &ao, err);
    for (uint32_t i = 0; i < r->trace.n && st == CALLA_OK; i++)
        st = plan_one(r, api, i, &n_keys, err);
    for (uint32_t i = 0; i < r->trace.n && st == CALLA_OK; i++) {
        uint32_t next = i + 1;
        while (next < r->trace.n && !sends_answer(&r->plan[next], &r->plan[i]))
            next++;
        if (next < r->trace.n) r->plan[i].next = next;
        st = plan_answer(r, api, i, err);
    }
    api_destroy(api);
    r->n_ctx = r->o->n_ctx != 0 ? r->o->n_ctx : needed_context(r);
    return st;
}

/* ---- Asking ---- */

typedef struct asked {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    side *s;
    uint32_t max;
    double t_first, t_end;
    uint32_t n_prompt, n_cached;
    calla_status status;
    char message[256];
    bool done;
} asked;

/* Only the worker touches what it writes before `done` is set. */
static bool on_token(void *user, const sched_token *t)
{
    asked *a = user;
    if (a->s->n_ids == 0) a->t_first = time_now();
    a->s->ids[a->s->n_ids++] = t->id;
    return a->s->n_ids < a->max;
}

static void on_done(void *user, const sched_result *result)
{
    asked *a = user;
    (void)pthread_mutex_lock(&a->lock);
    a->t_end = time_now();
    a->n_prompt = result->n_prompt;
    a->n_cached = result->n_cached;
    a->status = result->status;
    (void)snprintf(a->message, sizeof a->message, "%s", result->message);
    a->done = true;
    (void)pthread_cond_signal(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
}

/* Submits and waits. request: prompt and boundaries. */
static calla_status generate(side *s, const sched_request *request, asked *a, calla_error *err)
{
    static const calla_sampling greedy = {0};
    sched_request r = *request;
    sched_ticket ticket;
    r.sampling = &greedy;
    r.max_tokens = a->max;
    r.ignore_eos = true;
    r.user = a;
    r.on_token = on_token;
    r.on_done = on_done;
    a->s = s;
    s->n_ids = 0;
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_cond_init(&a->changed, NULL);
    calla_status st = scheduler_submit(s->sched, &r, &ticket, err);
    if (st == CALLA_OK) {
        (void)pthread_mutex_lock(&a->lock);
        while (!a->done)
            (void)pthread_cond_wait(&a->changed, &a->lock);
        (void)pthread_mutex_unlock(&a->lock);
        st = a->status == CALLA_OK ? CALLA_OK : err_set(err, a->status, "%s", a->message);
    }
    (void)pthread_cond_destroy(&a->changed);
    (void)pthread_mutex_destroy(&a->lock);
    return st;
}

/* Later prompts of this side have the tokens just generated in place of the recorded answer. */
static calla_status remember(const replayer *r, side *s, const api_question *q, uint32_t next,
                             calla_error *err)
{
    api_question *later;
    const calla_status st = read_request(&later, s->api, &r->trace.requests[next], err);
    if (st != CALLA_OK) return st;
    api_question_answer(q, later, s->ids, s->n_ids);
    api_question_destroy(later);
    return CALLA_OK;
}

/* *fits: false when the prompt is too long; nothing else is set then. */
static calla_status ask(replayer *r, side *s, uint32_t i, agent_cost *cost, bool *fits,
                        calla_error *err)
{
    const agent_request *recorded = &r->trace.requests[i];
    const planned *p = &r->plan[i];
    sched_request request = {0};
    asked a = {.max = p->n_generate};
    api_question *q;
    const double t0 = time_now();
    calla_status st = read_request(&q, s->api, recorded, err);
    if (st != CALLA_OK) return st;
    api_question_fill(q, &request);
    *fits = request.n_prompt < r->n_ctx;
    if (!*fits) {
        api_question_destroy(q);
        return CALLA_OK;
    }
    if (a.max > r->n_ctx - request.n_prompt) a.max = r->n_ctx - (uint32_t)request.n_prompt;
    st = generate(s, &request, &a, err);
    if (st != CALLA_OK)
        st = at(recorded, st, err);
    else if (p->next != NONE)
        st = remember(r, s, q, p->next, err);
    *cost = (agent_cost){.n_prompt = a.n_prompt,
                         .n_cached = a.n_cached,
                         .first_token_s = a.t_first - t0,
                         .total_s = a.t_end - t0};
    api_question_destroy(q);
    return st;
}

/* ---- The run ---- */

static calla_status side_create(const replayer *r, side *s, uint64_t cache_bytes, calla_error *err)
{
    const api_options ao = {.engine = r->o->engine, .replay_bytes = REPLAY_BYTES};
    const scheduler_options so = {.n_ctx = r->n_ctx, .cache_ram_bytes = cache_bytes};
    calla_status st = scheduler_create(&s->sched, r->o->engine, &so, err);
    if (st == CALLA_OK) st = api_create(&s->api, &ao, err);
    if (st == CALLA_OK && (s->ids = mem_array(r->n_ctx, sizeof *s->ids)) == NULL)
        st = no_memory(err);
    return st;
}

static void side_destroy(side *s)
{
    api_destroy(s->api);
    scheduler_destroy(s->sched);
    mem_free(s->ids);
    *s = (side){0};
}

/* As the server does: what was not asked for gives way when memory does not suffice. */
static calla_status cache_create(replayer *r, calla_error *err)
{
    uint64_t bytes = r->o->cache_bytes != 0 ? r->o->cache_bytes : AGENT_CACHE_BYTES;
    calla_status st = side_create(r, &r->cache, bytes, err);
    while (st == CALLA_ERR_MEMORY && r->o->cache_bytes == 0 && bytes > CACHE_LEAST) {
        side_destroy(&r->cache);
        bytes /= 2;
        st = side_create(r, &r->cache, bytes, err);
    }
    return st;
}

static calla_status warm_up(replayer *r, calla_error *err)
{
    sched_request request = {0};
    asked a = {.max = 4};
    api_question *q;
    calla_status st = read_request(&q, r->plain.api, &r->trace.requests[0], err);
    if (st != CALLA_OK) return st;
    api_question_fill(q, &request);
    request.boundaries = NULL;
    request.n_boundaries = 0;
    if (request.n_prompt > WARM_TOKENS) request.n_prompt = WARM_TOKENS;
    if (request.n_prompt + a.max >= r->n_ctx) request.n_prompt = 1;
    st = generate(&r->plain, &request, &a, err);
    api_question_destroy(q);
    return st;
}

/* Turn i of both sides; which is asked first changes from turn to turn. */
static calla_status take_turn(replayer *r, uint32_t i, calla_error *err)
{
    agent_result *out = r->out;
    agent_turn turn = {.request = i + 1};
    bool fits = true;
    calla_status st = CALLA_OK;
    for (uint32_t k = 0; k < 2 && st == CALLA_OK && fits; k++) {
        if ((k + i) % 2 == 0)
            st = ask(r, &r->cache, i, &turn.cache, &fits, err);
        else if (r->o->no_cache)
            st = ask(r, &r->plain, i, &turn.plain, &fits, err);
    }
    if (st != CALLA_OK) return st;
    if (!fits) {
        out->n_too_long++;
        return CALLA_OK;
    }
    turn.n_generated = r->cache.n_ids;
    turn.differs = r->o->no_cache &&
                   (r->plain.n_ids != r->cache.n_ids ||
                    memcmp(r->plain.ids, r->cache.ids, r->cache.n_ids * sizeof *r->cache.ids) != 0);
    out->n_differ += turn.differs;
    out->turns[out->n++] = turn;
    if (r->o->on_turn != NULL) r->o->on_turn(r->o->user, &turn, r->trace.n);
    return CALLA_OK;
}

static calla_status run(replayer *r, calla_error *err)
{
    agent_result *out = r->out;
    sched_stats stats;
    out->n_ctx = r->n_ctx;
    out->n_left_out = r->trace.n_left_out;
    out->no_cache = r->o->no_cache;
    out->turns = mem_array(r->trace.n, sizeof *out->turns);
    if (out->turns == NULL) return no_memory(err);
    calla_status st = side_create(r, &r->plain, 0, err);
    if (st == CALLA_OK) st = warm_up(r, err);
    if (!r->o->no_cache) side_destroy(&r->plain);
    if (st == CALLA_OK) st = cache_create(r, err);
    for (uint32_t i = 0; i < r->trace.n && st == CALLA_OK; i++)
        st = take_turn(r, i, err);
    if (st != CALLA_OK) return st;
    if (out->n == 0)
        return err_set(err, CALLA_ERR_ARGUMENT, "no turn of the trace fits a context of %u tokens",
                       r->n_ctx);
    scheduler_stats(r->cache.sched, &stats);
    out->cache_bytes = stats.cache_bytes;
    out->cache_limit_bytes = stats.cache_limit_bytes;
    return CALLA_OK;
}

calla_status agent_run(agent_result *out, const agent_options *options, calla_error *err)
{
    replayer r = {.o = options, .out = out};
    *out = (agent_result){0};
    calla_status st = agent_trace_open(&r.trace, options->trace, err);
    const uint32_t n_all = r.trace.n;
    if (st == CALLA_OK && options->n_turns != 0 && options->n_turns < n_all)
        r.trace.n = options->n_turns;
    if (st == CALLA_OK) st = make_plan(&r, err);
    if (st == CALLA_OK) st = run(&r, err);
    if (st != CALLA_OK) agent_result_deinit(out);
    side_destroy(&r.cache);
    side_destroy(&r.plain);
    for (uint32_t i = 0; r.plan != NULL && i < r.trace.n; i++) {
        mem_free(r.plan[i].keys);
        mem_free(r.plan[i].answers);
    }
    mem_free(r.plan);
    r.trace.n = n_all;
    agent_trace_close(&r.trace);
    return st;
}

void agent_result_deinit(agent_result *r)
{
    mem_free(r->turns);
    *r = (agent_result){0};
}
