/* The scheduler on the null device (everything but the model), and on the demonstration model: the
 * same bits alone, in company, and from the cache. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine_fake.h"
#include "sched_support.h"

#include "engine/sched.h"

#define N_IDS 900u
#define MIB   (1u << 20)
#if defined(__SANITIZE_THREAD__) /* some fifty times slower */
#define CROWD        20u
#define NANO_PROMPTS 3u
#define NANO_TOKENS  3u
#define NANO_REPEATS 1u
#else
#define CROWD        60u
#define NANO_PROMPTS 10u
#define NANO_TOKENS  24u
#define NANO_REPEATS 12u
#endif

static int32_t ids[N_IDS];

static int set_up(void **state)
{
    (void)state;
    fake_ids(ids, N_IDS, FAKE_VOCAB, 1);
    return 0;
}

static uint64_t rng = 42;

static uint32_t draw(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

/* ---- One request ---- */

static void test_alone(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 400});
    static const calla_sampling sampling[] = {
        {0},
        {.temperature = 0.8f, .top_p = 0.9f, .seed = 5},
        {.temperature = 1.0f,
         .top_k = 20,
         .presence_penalty = 1.0f,
         .frequency_penalty = 0.5f,
         .repetition_penalty = 1.2f,
         .seed = 6},
    };
    for (uint32_t i = 0; i < 3; i++) {
        heard *h = heard_new();
        spoken a;
        sched_request r = heard_request(h, ids, 150, 60);
        r.sampling = &sampling[i];
        h->check_allocs = true;
        ask(s, &r);
        speak(e, &r, 400, &a);
        assert_said(h, &a);
        assert_int_equal(h->result.stop, CALLA_STOP_LENGTH);
        assert_int_equal(h->result.n_prompt, 150);
        assert_int_equal(h->result.n_generated, 60);
        assert_int_equal(h->result.n_cached, 0);
        assert_int_equal(h->result.diverged_at, SCHED_NO_POSITION);
        assert_int_equal(h->n_progress, 4); /* 0, 64, 128, 150 */
        heard_free(h);
    }
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

static void test_stops(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    heard *h = heard_new();
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 100});
    sched_request r = heard_request(h, ids, 90, 0);
    ask(s, &r);
    assert_int_equal(h->result.stop, CALLA_STOP_CONTEXT);
    assert_int_equal(h->n, 10);
    spoken a;
    speak(e, &r, 100, &a);
    assert_said(h, &a);
    heard_free(h);

    h = heard_new(); /* a full context but for one */
    r = heard_request(h, ids, 99, 0);
    ask(s, &r);
    assert_int_equal(h->result.stop, CALLA_STOP_CONTEXT);
    assert_int_equal(h->n, 1);
    heard_free(h);

    h = heard_new(); /* the callback says no */
    h->stop_after = 3;
    r = heard_request(h, ids, 20, 0);
    ask(s, &r);
    assert_int_equal(h->result.stop, CALLA_STOP_CALLBACK);
    assert_int_equal(h->n, 3);
    e->shape.n_stop_ids = 1; /* the third token of that text becomes the end */
    e->shape.stop_ids[0] = h->ids[2];
    heard_free(h);

    h = heard_new();
    r = heard_request(h, ids, 20, 0);
    ask(s, &r);
    speak(e, &r, 100, &a);
    assert_said(h, &a);
    assert_int_equal(h->result.stop, CALLA_STOP_EOS);
    assert_true(h->n <= 2);
    heard_free(h);
    h = heard_new();
    r = heard_request(h, ids, 20, 5);
    r.ignore_eos = true;
    ask(s, &r);
    assert_int_equal(h->result.stop, CALLA_STOP_LENGTH);
    assert_int_equal(h->n, 5);
    heard_free(h);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

static void expect_refused(scheduler *s, const sched_request *r, const char *sentence)
{
    calla_error err;
    sched_ticket t = 7;
    assert_int_equal(scheduler_submit(s, r, &t, &err), CALLA_ERR_ARGUMENT);
    assert_string_equal(err.message, sentence);
    assert_int_equal(t, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 100});
    static const int32_t bad[] = {1, FAKE_VOCAB};
    static const float nan_bias[] = {NAN};
    static const uint32_t falling[] = {9, 8};
    static const calla_sampling no_sampling = {.top_p = 2.0f};
    sched_request r = {.prompt = ids, .n_prompt = 0};
    expect_refused(s, &r, "the prompt is empty, expected at least one token");
    r.n_prompt = 100;
    expect_refused(s, &r,
                   "the prompt has 100 tokens, the context holds 100 and one must be left "
                   "for the answer");
    r.n_prompt = 2;
    r.prompt = bad;
    expect_refused(s, &r, "prompt token 1: id 97, expected 0 to 96");
    r = (sched_request){.prompt = ids, .n_prompt = 10, .boundaries = falling, .n_boundaries = 2};
    expect_refused(s, &r, "boundary 1 is 8, expected ascending positions up to 10");
    r = (sched_request){.prompt = ids, .n_prompt = 10, .n_top_logprobs = 21};
    expect_refused(s, &r, "n_top_logprobs is 21, expected at most 20");
    r = (sched_request){
        .prompt = ids, .n_prompt = 10, .bias_ids = ids, .bias = nan_bias, .n_bias = 1};
    char sentence[80];
    (void)snprintf(sentence, sizeof sentence, "logit bias 0: nan for id %d, expected a number",
                   (int)ids[0]);
    expect_refused(s, &r, sentence);
    r = (sched_request){.prompt = ids, .n_prompt = 10, .in_thinking = true, .limit_thinking = true};
    expect_refused(s, &r,
                   "thinking cannot be limited or told apart: the tokenizer has no "
                   "</think>");
    r = (sched_request){.prompt = ids, .n_prompt = 10, .sampling = &no_sampling};
    calla_error err;
    sched_ticket t;
    assert_int_equal(scheduler_submit(s, &r, &t, &err), CALLA_ERR_ARGUMENT);
    sched_stats st;
    scheduler_stats(s, &st);
    assert_int_equal(st.n_submitted, 0);
    scheduler_destroy(s);
    scheduler_destroy(NULL);

    const scheduler_options many = {.n_parallel = 65}, wide = {.n_parallel = 64};
    assert_int_equal(scheduler_create(&s, e, &many, &err), CALLA_ERR_ARGUMENT);
    assert_null(s);
    assert_int_equal(scheduler_create(&s, e, &wide, &err), CALLA_ERR_ARGUMENT);
    assert_string_equal(err.message, "64 sequences leave no room for a prompt in a step of 64 "
                                     "tokens (chunk_tokens)");
    const scheduler_options large = {.n_ctx = 1001};
    assert_int_equal(scheduler_create(&s, e, &large, &err), CALLA_ERR_ARGUMENT);
    calla_engine_destroy(e);
}

/* ---- Company ---- */

typedef struct crowd {
    heard *h;
    spoken want;
    int32_t prompt[300];
    uint32_t n_prompt, max_tokens, at;
    calla_sampling sampling;
    uint32_t boundaries[4];
} crowd;

/* Prompts of which many begin alike, and diverge at a few places. */
static void crowd_member(crowd *c)
{
    const uint32_t n_shared = 40 * draw(5) + draw(3);
    c->n_prompt = n_shared + 1 + draw(100);
    memcpy(c->prompt, ids, sizeof c->prompt);
    for (uint32_t i = n_shared; i < c->n_prompt; i++)
        c->prompt[i] = (int32_t)draw(FAKE_VOCAB);
    c->max_tokens = 1 + draw(40);
    c->sampling = (calla_sampling){0};
    if (draw(2) == 0) c->sampling = (calla_sampling){.temperature = 1.0f, .seed = draw(1000)};
    for (uint32_t i = 0; i < 4; i++)
        c->boundaries[i] = (i + 1) * 40 < c->n_prompt ? (i + 1) * 40 : c->n_prompt;
    c->h = heard_new();
}

static void nap(uint32_t microseconds)
{
    const struct timespec t = {.tv_nsec = (long)microseconds * 1000};
    (void)nanosleep(&t, NULL);
}

static void run_crowd(calla_engine *e, scheduler_options o, bool all_at_once)
{
    static crowd members[CROWD];
    scheduler *s = make_scheduler(e, o);
    for (uint32_t i = 0; i < CROWD; i++) {
        crowd *c = &members[i];
        crowd_member(c);
        sched_request r = heard_request(c->h, c->prompt, c->n_prompt, c->max_tokens);
        r.sampling = &c->sampling;
        r.boundaries = c->boundaries;
        r.n_boundaries = 4;
        speak(e, &r, o.n_ctx, &c->want);
        submit(s, &r);
        if (!all_at_once) nap(draw(300));
    }
    uint64_t n_cached = 0, n_prompt = 0;
    for (uint32_t i = 0; i < CROWD; i++) {
        heard_wait_done(members[i].h);
        assert_said(members[i].h, &members[i].want);
        n_cached += members[i].h->result.n_cached;
        n_prompt += members[i].n_prompt;
        heard_free(members[i].h);
    }
    assert_true(scheduler_drain(s, 5.0));
    sched_stats st;
    scheduler_stats(s, &st);
    assert_int_equal(st.n_finished, CROWD);
    assert_int_equal(st.n_running + st.n_queued, 0);
    assert_int_equal(st.n_tokens_cached, n_cached);
    assert_int_equal(st.n_tokens_prefilled + n_cached, n_prompt);
    assert_true(st.cache_bytes <= st.cache_limit_bytes);
    assert_true(o.cache_ram_bytes == 0 ? n_cached == 0 : n_cached > 0);
    scheduler_destroy(s);
}

static void test_company(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {9, 64, 512};
    for (uint32_t i = 0; i < 3; i++) {
        calla_engine *e = fake_engine(chunks[i]);
        scheduler_options o = {
            .n_parallel = 8, .n_ctx = 400, .piece_tokens = 1 + draw(70), .state_every_tokens = 50};
        run_crowd(e, o, true);
        o.cache_ram_bytes = MIB;
        run_crowd(e, o, true);
        run_crowd(e, o, false);
        o.cache_ram_bytes = 3000; /* a few sequences: evicts all the time */
        run_crowd(e, o, false);
        o.n_parallel = 1;
        run_crowd(e, o, true);
        calla_engine_destroy(e);
    }
}

/* Some are cancelled at random moments; the others do not notice, nor does what comes later. */
static void test_company_leaves(void **state)
{
    (void)state;
    static crowd members[CROWD];
    bool cancelled[CROWD];
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(
        e, (scheduler_options){
               .n_parallel = 6, .n_ctx = 400, .piece_tokens = 20, .cache_ram_bytes = 20000});
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < CROWD; i++) {
            crowd *c = &members[i];
            crowd_member(c);
            sched_request r = heard_request(c->h, c->prompt, c->n_prompt, c->max_tokens);
            r.sampling = &c->sampling;
            r.boundaries = c->boundaries;
            r.n_boundaries = 4;
            speak(e, &r, 400, &c->want);
            cancelled[i] = draw(3) == 0;
            submit(s, &r);
            if (draw(2) == 0) nap(draw(300));
            if (i >= 3 && cancelled[i - 3]) scheduler_cancel(s, members[i - 3].h->ticket);
        }
        for (uint32_t i = 0; i < CROWD; i++) {
            const crowd *c = &members[i];
            heard_wait_done(c->h);
            if (!cancelled[i] || c->h->result.stop != CALLA_STOP_CANCELLED)
                assert_said(c->h, &c->want);
            assert_true(c->h->n <= c->want.n);
            assert_memory_equal(c->h->ids, c->want.ids, c->h->n * sizeof(int32_t));
            heard_free(c->h);
        }
    }
    assert_true(scheduler_drain(s, 5.0));
    sched_stats st;
    scheduler_stats(s, &st);
    assert_int_equal(st.n_finished + st.n_cancelled, 3 * CROWD);
    assert_int_equal(st.n_running + st.n_queued + st.n_failed, 0);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* While one generates, a long prompt comes in pieces: both go on. */
static void check_pieces(uint32_t piece_tokens, uint32_t n_pieces)
{
    calla_engine *e = fake_engine(256);
    scheduler *s = make_scheduler(
        e, (scheduler_options){.n_parallel = 2, .n_ctx = 1000, .piece_tokens = piece_tokens});
    heard *a = heard_new(), *b = heard_new();
    a->hold_at = 2;
    sched_request ra = heard_request(a, ids, 10, 200), rb = heard_request(b, ids + 5, 500, 4);
    submit(s, &ra);
    heard_wait_hold(a);
    submit(s, &rb);
    heard_release(a);
    heard_wait_done(a);
    heard_wait_done(b);
    assert_int_equal(b->n_progress, 1 + n_pieces); /* the beginning too */
    sched_stats st;
    scheduler_stats(s, &st);
    assert_true(st.n_steps <= 1 + 199 + 1);
    heard_free(a);
    heard_free(b);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

static void test_pieces(void **state)
{
    (void)state;
    check_pieces(10, 50);
    check_pieces(0, 11); /* of 48, the null device's choice */
}

/* ---- Queue, cancelling, ending ---- */

static void test_queue(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_error err;
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 200, .queue_max = 2});
    heard *h[4];
    for (uint32_t i = 0; i < 4; i++)
        h[i] = heard_new();
    h[0]->hold_at = 1;
    sched_request r[4];
    for (uint32_t i = 0; i < 4; i++)
        r[i] = heard_request(h[i], ids + i, 20, 5);
    submit(s, &r[0]);
    heard_wait_hold(h[0]);
    submit(s, &r[1]);
    submit(s, &r[2]);
    sched_ticket t;
    assert_int_equal(scheduler_submit(s, &r[3], &t, &err), CALLA_ERR_FULL);
    assert_string_equal(err.message, "2 requests are waiting already, expected at most 2");
    sched_stats st;
    scheduler_stats(s, &st);
    assert_int_equal(st.n_queued, 2);
    assert_int_equal(st.n_running, 1);
    assert_int_equal(st.n_refused, 1);
    scheduler_cancel(s, h[1]->ticket); /* waiting */
    assert_false(scheduler_drain(s, 0.0));
    assert_int_equal(scheduler_submit(s, &r[3], &t, &err), CALLA_ERR_CANCELLED);
    assert_string_equal(err.message, "the scheduler is shutting down");
    heard_release(h[0]);
    assert_true(scheduler_drain(s, 10.0));
    assert_int_equal(h[0]->result.stop, CALLA_STOP_LENGTH);
    assert_int_equal(h[1]->result.stop, CALLA_STOP_CANCELLED);
    assert_int_equal(h[1]->n_progress, 0);
    assert_int_equal(h[2]->result.stop, CALLA_STOP_LENGTH);
    scheduler_stats(s, &st);
    assert_int_equal(st.n_finished, 2);
    assert_int_equal(st.n_cancelled, 1);
    scheduler_destroy(s);
    for (uint32_t i = 0; i < 4; i++)
        heard_free(h[i]);
    calla_engine_destroy(e);
}

/* Shutting down: nobody there has asked for the end, so it is a failure and says why. */
static void test_abort(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_error err;
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 200});
    heard *h[3];
    sched_request r;
    for (uint32_t i = 0; i < 3; i++) {
        h[i] = heard_new();
        h[i]->hold_at = i == 0;
        r = heard_request(h[i], ids + i, 20, 50);
        submit(s, &r);
        if (i == 0) heard_wait_hold(h[0]);
    }
    scheduler_cancel(s, h[2]->ticket);
    scheduler_abort(s);
    sched_ticket t;
    assert_int_equal(scheduler_submit(s, &r, &t, &err), CALLA_ERR_CANCELLED);
    heard_release(h[0]);
    assert_true(scheduler_drain(s, 10.0));
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(h[i]->n_done, 1);
        assert_int_equal(h[i]->result.status, CALLA_ERR_CANCELLED);
        assert_string_equal(h[i]->result.message, "the scheduler is shutting down");
    }
    assert_in_range(h[0]->n, 1, 2);
    assert_int_equal(h[2]->n_done, 1); /* its client has gone */
    assert_int_equal(h[2]->result.status, CALLA_OK);
    assert_int_equal(h[2]->result.stop, CALLA_STOP_CANCELLED);
    scheduler_destroy(s);
    for (uint32_t i = 0; i < 3; i++)
        heard_free(h[i]);
    calla_engine_destroy(e);
}

/* ---- The order of service ---- */

/* First come, first served, whatever the requests are. */
static void test_order(void **state)
{
    (void)state;
    enum { N = 40 };
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(
        e, (scheduler_options){.n_parallel = 3, .n_ctx = 900, .cache_ram_bytes = MIB});
    heard *h[N];
    for (uint32_t i = 0; i < N; i++) {
        h[i] = heard_new();
        h[i]->hold_at = i == 0;
        const sched_request r =
            heard_request(h[i], ids + 11 * i, 20 + draw(200), 1 + draw(i % 7 == 0 ? 100 : 10));
        submit(s, &r);
        if (i == 0) heard_wait_hold(h[0]);
    }
    const uint32_t first = h[0]->admitted; /* the worker is held */
    heard_release(h[0]);
    for (uint32_t i = 0; i < N; i++) {
        heard_wait_done(h[i]);
        assert_int_equal(h[i]->admitted, first + i);
        heard_free(h[i]);
    }
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* One that waits for another's prompt is not passed by more than n_parallel younger ones. */
static void test_passing(void **state)
{
    (void)state;
    enum { N = 12 };
    static const uint32_t boundaries[] = {700};
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(
        e, (scheduler_options){
               .n_parallel = 2, .n_ctx = 900, .piece_tokens = 5, .cache_ram_bytes = MIB});
    heard *first = heard_new(), *second = heard_new(), *h[N];
    int32_t text[800];
    memcpy(text, ids, sizeof text);
    text[720]++;
    first->hold_prefill = 5;
    sched_request r = heard_request(first, ids, 800, 4),
                  waits = heard_request(second, text, 800, 4);
    r.boundaries = waits.boundaries = boundaries;
    r.n_boundaries = waits.n_boundaries = 1;
    submit(s, &r);
    heard_wait_hold(first);
    submit(s, &waits);
    for (uint32_t i = 0; i < N; i++) {
        h[i] = heard_new();
        r = heard_request(h[i], ids + 40 + 10 * i, 6, 20);
        submit(s, &r);
    }
    heard_release(first);
    heard_wait_done(second);
    uint32_t n_passed = 0;
    for (uint32_t i = 0; i < N; i++) {
        heard_wait_done(h[i]);
        n_passed += h[i]->admitted < second->admitted;
        heard_free(h[i]);
    }
    assert_int_equal(n_passed, 2);
    spoken want;
    speak(e, &waits, 900, &want);
    assert_said(second, &want);
    heard_wait_done(first);
    heard_free(first);
    heard_free(second);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* Where no state can be kept, nothing is gained by waiting. */
static void test_no_wait(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s =
        make_scheduler(e, (scheduler_options){.n_parallel = 2, .n_ctx = 900, .cache_ram_bytes = 7});
    heard *a = heard_new(), *b = heard_new();
    a->hold_prefill = 64;
    sched_request r = heard_request(a, ids, 800, 4);
    submit(s, &r);
    heard_wait_hold(a);
    b->hold_prefill = 1;
    r = heard_request(b, ids, 800, 4);
    submit(s, &r);
    heard_release(a);
    heard_wait_hold(b);
    assert_true(a->n_done_tokens < 799); /* the worker is held */
    heard_release(b);
    heard_wait_done(a);
    heard_wait_done(b);
    heard_free(a);
    heard_free(b);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

typedef struct turns {
    heard *h;
    const executor *ex;
    uint64_t last, longest; /* run() calls from a piece to the next */
} turns;

static void turns_progress(void *user, uint32_t n_done, uint32_t n_total, uint32_t n_cached)
{
    turns *t = user;
    const uint64_t now = exec_null_runs(t->ex);
    if (n_done != n_cached && now - t->last > t->longest) t->longest = now - t->last;
    t->last = now;
    heard_progress(t->h, n_done, n_total, n_cached);
}

static bool turns_token(void *user, const sched_token *token)
{
    return heard_token(((turns *)user)->h, token);
}

static void turns_done(void *user, const sched_result *r)
{
    heard_done(((turns *)user)->h, r);
}

/* Prompts of any length take turns, beside one that generates. */
static void test_prompt_turns(void **state)
{
    (void)state;
    enum { N = 5 };
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(
        e, (scheduler_options){.n_parallel = N + 1, .n_ctx = 900, .piece_tokens = 16});
    heard *talker = heard_new();
    talker->hold_at = 1;
    sched_request r = heard_request(talker, ids, 10, 400);
    submit(s, &r);
    heard_wait_hold(talker);
    turns t[N];
    for (uint32_t i = 0; i < N; i++) {
        t[i] = (turns){.h = heard_new(), .ex = e->ex};
        r = heard_request(t[i].h, ids + i, i == 2 ? 30 : 790, 3);
        r.user = &t[i];
        r.on_progress = turns_progress;
        r.on_token = turns_token;
        r.on_done = turns_done;
        sched_ticket ticket;
        calla_error err;
        assert_int_equal(scheduler_submit(s, &r, &ticket, &err), CALLA_OK);
    }
    heard_release(talker);
    for (uint32_t i = 0; i < N; i++) {
        heard_wait_done(t[i].h);
        assert_in_range(t[i].longest, 1, N);
        heard_free(t[i].h);
    }
    heard_wait_done(talker);
    heard_free(talker);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

static void test_cancel(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 900, .cache_ram_bytes = MIB});
    heard *h = heard_new(); /* in the prompt */
    h->hold_prefill = 128;
    sched_request r = heard_request(h, ids, 800, 5);
    submit(s, &r);
    heard_wait_hold(h);
    scheduler_cancel(s, h->ticket);
    heard_release(h);
    heard_wait_done(h);
    assert_int_equal(h->result.stop, CALLA_STOP_CANCELLED);
    assert_int_equal(h->n_done_tokens, 128);
    assert_int_equal(h->n, 0);
    scheduler_cancel(s, h->ticket); /* too late: nothing */
    heard_free(h);

    h = heard_new(); /* what was done of the prompt is there; cancelled while generating */
    h->hold_at = 3;
    r = heard_request(h, ids, 800, 50);
    submit(s, &r);
    heard_wait_hold(h);
    scheduler_cancel(s, h->ticket);
    heard_release(h);
    heard_wait_done(h);
    assert_int_equal(h->result.stop, CALLA_STOP_CANCELLED);
    assert_int_equal(h->result.n_cached, 128);
    assert_int_equal(h->n, 3);
    heard_free(h);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* A scheduler that is destroyed ends everything first. */
static void test_destroy(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    const uint64_t reserved = e->reserved;
    scheduler *s = make_scheduler(
        e, (scheduler_options){.n_parallel = 3, .n_ctx = 900, .cache_ram_bytes = MIB});
    assert_true(e->reserved > reserved + MIB);
    heard *h[6];
    for (uint32_t i = 0; i < 6; i++) {
        h[i] = heard_new();
        const sched_request r = heard_request(h[i], ids + i, 50, 800);
        submit(s, &r);
    }
    heard_wait_tokens(h[0], 2);
    scheduler_destroy(s);
    uint32_t n_cancelled = 0;
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(h[i]->n_done, 1);
        n_cancelled += h[i]->result.stop == CALLA_STOP_CANCELLED;
        /* a busy machine may let some end by themselves before */
        assert_true(h[i]->result.stop == CALLA_STOP_CANCELLED ||
                    h[i]->result.stop == CALLA_STOP_LENGTH);
        heard_free(h[i]);
    }
    assert_true(n_cancelled >= 1);
    assert_int_equal(e->reserved, reserved);
    calla_engine_destroy(e);
}

/* ---- Failures ---- */

static void test_faults(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    for (int broken = 0; broken < 2; broken++) {
        scheduler *s = make_scheduler(
            e, (scheduler_options){.n_parallel = 2, .n_ctx = 400, .cache_ram_bytes = MIB});
        heard *a = heard_new(), *b = heard_new(), *c = heard_new();
        a->hold_at = 2;
        sched_request ra = heard_request(a, ids, 100, 50), rb = heard_request(b, ids + 7, 90, 50);
        submit(s, &ra);
        heard_wait_hold(a);
        submit(s, &rb);
        sched_request rc = heard_request(c, ids, 100, 50); /* waits */
        submit(s, &rc);
        exec_null_fail(e->ex, broken ? NULL_FAULT_BROKEN : NULL_FAULT_CLEAN, 3);
        heard_release(a);
        heard_wait_done(a);
        heard_wait_done(b);
        for (int i = 0; i < 2; i++) {
            const heard *h = i == 0 ? a : b;
            assert_int_equal(h->result.status, CALLA_ERR_INTERNAL);
            assert_string_equal(h->result.message, "the null device failed as arranged");
        }
        spoken want; /* the next one is well */
        heard_wait_done(c);
        speak(e, &rc, 400, &want);
        assert_said(c, &want);
        assert_int_equal(c->result.n_cached, 0); /* and finds nothing of the failed ones */
        sched_stats st;
        scheduler_stats(s, &st);
        assert_int_equal(st.n_failed, 2);
        assert_int_equal(st.n_timelines, 1);
        heard_free(a);
        heard_free(b);
        heard_free(c);
        scheduler_destroy(s);
    }
    calla_engine_destroy(e);
}

static bool says(const spoken *a, int32_t id)
{
    bool found = false;
    for (uint32_t i = 0; i < a->n; i++)
        found = found || a->ids[i] == id;
    return found;
}

/* A segment that the executor refuses ends its own request, not those beside it. */
static void test_refused_segment(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    int32_t text[3][100], bad = 96;
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t i = 0; i < 100; i++)
            text[k][i] = ids[100 * k + i] % 90;
    heard *h[3];
    sched_request r[3];
    spoken want[3];
    for (uint32_t k = 0; k < 3; k++) {
        h[k] = heard_new();
        r[k] = heard_request(h[k], text[k], 100, 20);
        speak(e, &r[k], 400, &want[k]);
    }
    while (says(&want[0], bad) || says(&want[1], bad))
        bad--;
    assert_true(bad >= 90);
    text[2][70] = bad;
    const calla_status statuses[] = {CALLA_ERR_FULL, CALLA_ERR_ARGUMENT};
    for (uint32_t i = 0; i < 2; i++) {
        scheduler *s = make_scheduler(
            e, (scheduler_options){.n_parallel = 3, .n_ctx = 400, .cache_ram_bytes = MIB});
        h[0]->hold_at = 2;
        submit(s, &r[0]);
        heard_wait_hold(h[0]);
        submit(s, &r[1]);
        submit(s, &r[2]);
        exec_null_refuse(e->ex, bad, statuses[i]);
        heard_release(h[0]);
        for (uint32_t k = 0; k < 3; k++)
            heard_wait_done(h[k]);
        assert_said(h[0], &want[0]);
        assert_said(h[1], &want[1]);
        assert_int_equal(h[2]->result.status, statuses[i]);
        assert_string_equal(h[2]->message, "segment 0 is refused as arranged");
        exec_null_refuse(e->ex, -1, CALLA_OK);
        sched_stats st;
        scheduler_stats(s, &st);
        assert_int_equal(st.n_failed, 1);
        assert_int_equal(st.n_finished, 2);
        assert_int_equal(st.n_timelines, 2);
        scheduler_destroy(s);
        for (uint32_t k = 0; k < 3; k++) {
            heard_free(h[k]);
            h[k] = heard_new();
            r[k].user = h[k];
        }
    }
    for (uint32_t k = 0; k < 3; k++)
        heard_free(h[k]);
    calla_engine_destroy(e);
}

static void count_line(void *user, calla_log_level level, const char *line)
{
    assert_int_equal(level, CALLA_LOG_WARN);
    assert_non_null(strstr(line, "a conversation of 105 tokens is not kept"));
    assert_non_null(strstr(line, "--cache-ram"));
    ++*(int *)user;
}

/* What the cache cannot hold is said, once. */
static void test_too_large_to_keep(void **state)
{
    (void)state;
    int n_lines = 0;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 400, .cache_ram_bytes = 500});
    e->log = count_line;
    e->log_user = &n_lines;
    const uint32_t n_prompt[] = {10, 101, 101, 10};
    for (uint32_t i = 0; i < 4; i++) {
        heard *h = heard_new();
        sched_request r = heard_request(h, ids + i, n_prompt[i], 5);
        ask(s, &r);
        assert_int_equal(h->result.n_cached, 0);
        heard_free(h);
        assert_int_equal(n_lines, i != 0);
    }
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

static void test_memory(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    calla_error err;
    scheduler *s;
    const scheduler_options o = {.n_parallel = 4, .n_ctx = 400, .cache_ram_bytes = 64 * MIB};
    e->limit_bytes = 32 * MIB;
    assert_int_equal(scheduler_create(&s, e, &o, &err), CALLA_ERR_MEMORY);
    assert_non_null(strstr(err.message, "4 sequences of 400 tokens at"));
    assert_non_null(strstr(err.message, "64.0 MiB of prefix cache"));
    e->limit_bytes = UINT64_MAX;
    const uint64_t reserved = e->reserved;
    calla_status st = CALLA_ERR_MEMORY; /* every allocation of creation fails in turn */
    for (int n = 0; st != CALLA_OK; n++) {
        mem_fail_after(n);
        st = scheduler_create(&s, e, &o, &err);
        mem_fail_after(-1);
        if (st == CALLA_OK) break;
        assert_int_equal(st, CALLA_ERR_MEMORY);
        assert_null(s);
        assert_int_equal(e->reserved, reserved);
        assert_true(n < 200);
    }
    /* A request that finds no memory fails, in submit or later, and the next one is well. */
    uint32_t n_failed = 0;
    for (int n = 0; n < 12; n++) {
        heard *h = heard_new();
        const sched_request r = heard_request(h, ids + n, 50, 5);
        mem_fail_after(n);
        if (scheduler_submit(s, &r, &h->ticket, &err) == CALLA_OK) heard_wait_done(h);
        mem_fail_after(-1);
        n_failed += h->n_done == 0 || h->result.status == CALLA_ERR_MEMORY;
        heard_free(h);
        h = heard_new();
        const sched_request again = heard_request(h, ids + n, 50, 5);
        ask(s, &again);
        assert_int_equal(h->result.status, CALLA_OK);
        heard_free(h);
    }
    assert_true(n_failed >= 4 && n_failed < 12);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* ---- Log-probabilities, bias, filters, thinking ---- */

static void test_logprobs(void **state)
{
    (void)state;
    static const float row[] = {1.0f, 3.0f, 2.0f, 3.0f, 9.0f, -1.0f, 0.0f};
    static const int32_t banned[] = {4, 6};
    sched_top top[4];
    float lp;
    sched_logprobs(row, 7, banned, 2, 2, &lp, top, 4);
    const double sum = exp(1.0) + 2 * exp(3.0) + exp(2.0) + exp(-1.0);
    assert_true(fabs((double)lp - (2.0 - log(sum))) < 1e-6);
    static const int32_t order[] = {1, 3, 2, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(top[i].id, order[i]);
        assert_true(fabs((double)top[i].logprob - ((double)row[order[i]] - log(sum))) < 1e-6);
    }
    sched_logprobs(row, 7, NULL, 0, 4, &lp, NULL, 0);
    assert_true(lp < 0.0f && lp > -0.01f);

    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 100});
    heard *h = heard_new();
    sched_request r = heard_request(h, ids, 20, 8);
    r.logprobs = true;
    r.n_top_logprobs = 3;
    ask(s, &r);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(h->logprobs[i] < 0.0f && h->logprobs[i] > -4.0f);
    heard_free(h);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

static void test_bias(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 100});
    heard *a = heard_new(), *b = heard_new();
    sched_request r = heard_request(a, ids, 20, 6);
    ask(s, &r);
    const int32_t bias_ids[] = {a->ids[0], 33};
    const float forbid[] = {-INFINITY, 0.0f}, force[] = {0.0f, 1000.0f};
    r.user = b;
    r.bias_ids = bias_ids;
    r.bias = forbid;
    r.n_bias = 2;
    ask(s, &r);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_not_equal(b->ids[i], a->ids[0]);
    heard_free(b);
    b = heard_new();
    r.user = b;
    r.bias = force;
    ask(s, &r);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(b->ids[i], 33);
    heard_free(b);
    b = heard_new(); /* the next request knows nothing of it */
    r = heard_request(b, ids, 20, 6);
    ask(s, &r);
    assert_memory_equal(b->ids, a->ids, 6 * sizeof *a->ids);
    heard_free(a);
    heard_free(b);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* Allows ids of one residue; may end after `n_least` tokens. */
typedef struct parity {
    int32_t mod, n_least, n_accepted;
    int n_destroyed;
} parity;

static bool parity_allow(void *user, int32_t id)
{
    const parity *p = user;
    return id % p->mod == 0;
}
static bool parity_may_end(void *user)
{
    const parity *p = user;
    return p->n_accepted >= p->n_least;
}
static void parity_accept(void *user, int32_t id)
{
    parity *p = user;
    assert_true(parity_allow(user, id));
    p->n_accepted++;
}
static void parity_destroy(void *user)
{
    parity *p = user;
    p->n_destroyed++;
}

static sched_filter parity_filter(parity *p)
{
    return (sched_filter){p, parity_allow, parity_may_end, parity_accept, parity_destroy};
}

static void test_filter(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    e->shape.n_stop_ids = 3;
    e->shape.stop_ids[0] = 10;
    e->shape.stop_ids[1] = 20;
    e->shape.stop_ids[2] = 31;
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 900});
    for (int sampled = 0; sampled < 2; sampled++) {
        const calla_sampling hot = {.temperature = 1.0f, .seed = 3};
        parity p = {.mod = 5, .n_least = 30};
        const sched_filter f = parity_filter(&p);
        heard *h = heard_new();
        sched_request r = heard_request(h, ids, 20, 400);
        if (sampled) r.sampling = &hot;
        r.filter = &f;
        ask(s, &r);
        assert_true(scheduler_drain(s, 0.0) || true);
        if (h->result.status != CALLA_OK) fail_msg("%s", h->result.message);
        assert_int_equal(h->result.stop, CALLA_STOP_EOS);
        assert_true(h->n >= 30);
        for (uint32_t i = 0; i < h->n; i++)
            assert_true(h->ids[i] % 5 == 0 && h->ids[i] != 10 && h->ids[i] != 20);
        assert_int_equal(p.n_accepted, h->n);
        heard_free(h);
        scheduler_destroy(s);
        assert_int_equal(p.n_destroyed, 1);
        s = make_scheduler(e, (scheduler_options){.n_ctx = 900});
    }
    parity p = {.mod = 5}; /* refused: the filter stays the caller's */
    const sched_filter f = parity_filter(&p);
    sched_request r = {.prompt = ids, .n_prompt = 0, .filter = &f};
    sched_ticket t;
    assert_int_equal(scheduler_submit(s, &r, &t, NULL), CALLA_ERR_ARGUMENT);
    assert_int_equal(p.n_destroyed, 0);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

static const int32_t close_ids[] = {11, 90, 12};

static scheduler *thinking_scheduler(calla_engine *e)
{
    return make_scheduler(
        e, (scheduler_options){
               .n_ctx = 900, .think_close = close_ids, .n_think_close = 3, .think_end_id = 90});
}

static void test_thinking_budget(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = thinking_scheduler(e);
    static const uint32_t budgets[] = {0, 1, 7};
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t n = budgets[i];
        heard *h = heard_new();
        sched_request r = heard_request(h, ids, 20, n + 10);
        r.in_thinking = r.limit_thinking = true;
        r.thinking_budget = n;
        ask(s, &r);
        assert_int_equal(h->n, n + 10);
        assert_int_equal(h->result.n_thinking, n + 2);
        for (uint32_t k = 0; k < h->n; k++) {
            assert_int_equal(h->forced[k], k >= n && k < n + 3);
            assert_int_equal(h->thinking[k], k < n + 2);
            if (k >= n && k < n + 3) assert_int_equal(h->ids[k], close_ids[k - n]);
        }
        /* What follows is what the model says after just these tokens. */
        int32_t all[64];
        memcpy(all, ids, 20 * sizeof *all);
        memcpy(all + 20, h->ids, (n + 3) * sizeof *all);
        heard *after = heard_new();
        r = heard_request(after, all, 20 + n + 3, 7);
        ask(s, &r);
        assert_memory_equal(after->ids, h->ids + n + 3, 7 * sizeof *all);
        heard_free(after);
        heard_free(h);
    }
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* Without a budget, thinking goes on until the model closes it; a stop id inside it closes it when
 * a filter waits, and ends the text when none does. */
static void test_thinking_filter(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = thinking_scheduler(e);
    heard *h = heard_new();
    sched_request r = heard_request(h, ids, 20, 12);
    ask(s, &r);
    e->shape.n_stop_ids = 1;
    e->shape.stop_ids[0] = h->ids[5]; /* the sixth token now ends the text */
    uint32_t first = 0;
    while (h->ids[first] != h->ids[5])
        first++;
    for (int waits = 0; waits < 2; waits++) {
        heard *g = heard_new();
        parity p = {.mod = 3, .n_least = 1000};
        const sched_filter f = parity_filter(&p);
        r = heard_request(g, ids, 20, 40);
        r.in_thinking = true;
        if (waits) r.filter = &f;
        r.filter_after_thinking = true;
        ask(s, &r);
        if (waits) {
            assert_int_equal(g->result.stop, CALLA_STOP_LENGTH);
            assert_memory_equal(g->ids + first, close_ids, sizeof close_ids);
            for (uint32_t i = first + 3; i < 40; i++)
                assert_true(g->ids[i] % 3 == 0 && !g->forced[i] && !g->thinking[i]);
            assert_int_equal(p.n_accepted, 40 - first - 3);
        } else {
            assert_int_equal(g->result.stop, CALLA_STOP_EOS);
            assert_int_equal(g->n, first);
        }
        heard_free(g);
    }
    heard_free(h);
    scheduler_destroy(s);

    /* The model closes by itself: the rest of the closing is put in, then the filter begins. */
    e->shape.n_stop_ids = 0;
    h = heard_new();
    s = thinking_scheduler(e);
    r = heard_request(h, ids, 20, 8);
    ask(s, &r);
    scheduler_destroy(s);
    uint32_t at = 0; /* first occurrence of a token at index 4 */
    while (h->ids[at] != h->ids[4])
        at++;
    const int32_t natural[] = {11, h->ids[4], 12, 13};
    s = make_scheduler(e, (scheduler_options){.n_ctx = 900,
                                              .think_close = natural,
                                              .n_think_close = 4,
                                              .think_end_id = natural[1]});
    heard *g = heard_new();
    parity p = {.mod = 3};
    const sched_filter f = parity_filter(&p);
    r = heard_request(g, ids, 20, 30);
    r.in_thinking = r.filter_after_thinking = true;
    r.filter = &f;
    ask(s, &r);
    assert_memory_equal(g->ids, h->ids, (at + 1) * sizeof *h->ids);
    assert_false(g->forced[at]);
    assert_int_equal(g->ids[at + 1], 12);
    assert_int_equal(g->ids[at + 2], 13);
    assert_true(g->forced[at + 1] && g->forced[at + 2] && !g->forced[at + 3]);
    for (uint32_t i = at + 3; i < 30; i++)
        assert_int_equal(g->ids[i] % 3, 0);
    heard_free(g);
    heard_free(h);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* ---- Streams: tokens that the device draws ---- */

static calla_engine *engine_with(bool streams)
{
    const bool kept = fake_streams;
    fake_streams = streams;
    calla_engine *e = fake_engine(64);
    fake_streams = kept;
    return e;
}

static const calla_sampling stream_sampling[] = {
    {0},
    {.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .seed = 5},
    {.temperature = 1.3f,
     .top_k = 64,
     .min_p = 0.01f,
     .presence_penalty = 1.0f,
     .frequency_penalty = 0.5f,
     .repetition_penalty = 1.2f,
     .seed = 6},
    {.temperature = 0.7f, .seed = 7}, /* must be drawn here */
};

/* What request i is: lengths, sampling, how it ends. Some leave early. */
static sched_request varied_request(heard *h, uint32_t i, bool ignore_eos)
{
    sched_request r = heard_request(h, ids + 7 * i, 20 + 13 * (i % 5), i % 4 == 3 ? 0 : 5 + i);
    r.sampling = &stream_sampling[i % 6 == 5 ? 3 : i % 3];
    r.ignore_eos = ignore_eos;
    if (i % 5 == 4) h->stop_after = 3 + i;
    return r;
}

/* Every text is the same whether the device draws it or not, alone and in company. */
static void test_stream_texts(void **state)
{
    (void)state;
    enum { N = 24 };
    static const uint32_t n_parallel[] = {1, 1, 3, 13, 20, 4};
    for (uint32_t round = 0; round < 6; round++) {
        heard *h[2][N];
        for (int k = 0; k < 2; k++) {
            calla_engine *e = engine_with(k == 1);
            if (k == 1 && round == 5) exec_null_streams(e->ex, 3); /* the others are refused */
            e->shape.n_stop_ids = 2;
            e->shape.stop_ids[0] = 3;
            e->shape.stop_ids[1] = 77;
            scheduler *s =
                make_scheduler(e, (scheduler_options){.n_parallel = n_parallel[round],
                                                      .n_ctx = 120,
                                                      .cache_ram_bytes = round % 2 == 0 ? 0 : MIB});
            for (uint32_t i = 0; i < N; i++) {
                h[k][i] = heard_new();
                const sched_request r = varied_request(h[k][i], i, round % 3 == 1);
                submit(s, &r);
            }
            for (uint32_t i = 0; i < N; i++)
                heard_wait_done(h[k][i]);
            assert_true(scheduler_drain(s, 5.0));
            sched_stats st;
            scheduler_stats(s, &st);
            assert_int_equal(st.n_finished + st.n_cancelled, N);
            assert_true((exec_null_stream_steps(e->ex) != 0) == (k == 1));
            if (round == 5 && k == 1) assert_in_range(exec_null_streams_begun(e->ex), 1, 3);
            scheduler_destroy(s);
            calla_engine_destroy(e);
        }
        for (uint32_t i = 0; i < N; i++) {
            const heard *a = h[0][i], *b = h[1][i];
            assert_int_equal(a->n, b->n);
            assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
            assert_int_equal(a->result.status, b->result.status);
            assert_int_equal(a->result.stop, b->result.stop);
            heard_free(h[0][i]);
            heard_free(h[1][i]);
        }
    }
}

/* One stream serves a whole answer; its last token is not taken, as without streams. */
static void test_stream_alone(void **state)
{
    (void)state;
    calla_engine *e = engine_with(true);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 400, .cache_ram_bytes = MIB});
    int32_t text[400];
    memcpy(text, ids, 50 * sizeof *text);
    for (uint32_t turn = 0; turn < 3; turn++) {
        const uint32_t n = 50 + 40 * turn;
        heard *h = heard_new();
        h->check_allocs = true;
        sched_request r = heard_request(h, text, n, 30);
        ask(s, &r);
        assert_int_equal(h->n, 30);
        assert_int_equal(h->result.n_cached, turn == 0 ? 0 : n - 11);
        assert_int_equal(exec_null_streams_begun(e->ex), turn + 1);
        assert_int_equal(exec_null_stream_steps(e->ex), 29 * (turn + 1));
        memcpy(text + n, h->ids, 30 * sizeof *text);
        memcpy(text + n + 30, ids + 500 + 10 * turn, 10 * sizeof *text);
        heard_free(h);
    }
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* What must be drawn here, or reports more than tokens, is - and so is its company, meanwhile. */
static void test_stream_not(void **state)
{
    (void)state;
    static const int32_t bias_id[] = {5};
    static const float bias[] = {-1.0f};
    for (uint32_t kind = 0; kind < 4; kind++) {
        calla_engine *e = engine_with(true);
        scheduler *s = make_scheduler(e, (scheduler_options){.n_parallel = 2, .n_ctx = 400});
        heard *a = heard_new(), *b = heard_new();
        sched_request plain = heard_request(a, ids, 20, 40), r = heard_request(b, ids + 9, 20, 20);
        r.sampling = &stream_sampling[kind == 0 ? 3 : 0];
        r.logprobs = kind == 1;
        if (kind == 2) {
            r.bias_ids = bias_id;
            r.bias = bias;
            r.n_bias = 1;
        }
        parity p = {.mod = 2, .n_least = 1000};
        const sched_filter f = parity_filter(&p);
        if (kind == 3) r.filter = &f;
        b->hold_at = 1;
        submit(s, &r);
        heard_wait_hold(b);
        submit(s, &plain);
        heard_release(b);
        heard_wait_done(b);
        heard_wait_done(a);
        spoken want;
        speak(e, &plain, 400, &want);
        assert_said(a, &want);
        assert_int_equal(exec_null_streams_begun(e->ex), 2); /* one of them is speak's */
        assert_in_range(exec_null_stream_steps(e->ex), 20 + 39, 22 + 40);
        heard_free(a);
        heard_free(b);
        scheduler_destroy(s);
        calla_engine_destroy(e);
    }
}

/* Who comes while a stream runs is admitted behind the token that is under way; who must wait for a
 * slot does not disturb it. */
static void test_stream_arrival(void **state)
{
    (void)state;
    for (uint32_t n_parallel = 1; n_parallel <= 2; n_parallel++) {
        calla_engine *e = engine_with(true);
        scheduler *s =
            make_scheduler(e, (scheduler_options){.n_parallel = n_parallel, .n_ctx = 900});
        heard *a = heard_new(), *b = heard_new();
        a->hold_at = 10;
        b->hold_prefill = 1;
        sched_request ra = heard_request(a, ids, 20, 60), rb = heard_request(b, ids + 9, 30, 20);
        submit(s, &ra);
        heard_wait_hold(a);
        assert_int_equal(exec_null_streams_begun(e->ex), 1);
        submit(s, &rb);
        heard_release(a);
        heard_wait_hold(b);
        assert_in_range(a->n, n_parallel == 1 ? 60 : 11, n_parallel == 1 ? 60 : 12);
        heard_release(b);
        heard_wait_done(a);
        heard_wait_done(b);
        assert_int_equal(exec_null_streams_begun(e->ex), n_parallel == 1 ? 2 : 3);
        heard_free(a);
        heard_free(b);
        scheduler_destroy(s);
        calla_engine_destroy(e);
    }
}

/* Cancelled at any token of a stream, alone or in company: it ends there, the other goes on. */
static void test_stream_cancel(void **state)
{
    (void)state;
    for (uint32_t at = 1; at <= 7; at++)
        for (uint32_t n_parallel = 1; n_parallel <= 2; n_parallel++) {
            calla_engine *e = engine_with(true);
            scheduler *s = make_scheduler(e, (scheduler_options){.n_parallel = n_parallel,
                                                                 .n_ctx = 400,
                                                                 .cache_ram_bytes = MIB});
            heard *a = heard_new(), *b = heard_new(), *c = heard_new();
            sched_request ra = heard_request(a, ids, 20, 60), rb = heard_request(b, ids + 9, 20, 9);
            spoken want;
            speak(e, &rb, 400, &want);
            a->hold_at = at;
            submit(s, &ra);
            submit(s, &rb);
            heard_wait_hold(a);
            scheduler_cancel(s, a->ticket);
            heard_release(a);
            heard_wait_done(a);
            heard_wait_done(b);
            assert_int_equal(a->result.stop, CALLA_STOP_CANCELLED);
            assert_int_equal(a->n, at);
            assert_said(b, &want);
            int32_t text[40]; /* the cancelled one's sequence is whole */
            memcpy(text, ids, 20 * sizeof *text);
            memcpy(text + 20, a->ids, at * sizeof *text);
            text[20 + at] = 50;
            sched_request rc = heard_request(c, text, 21 + at, 9);
            ask(s, &rc);
            assert_in_range(c->result.n_cached, 20 + at - 1, 20 + at);
            speak(e, &rc, 400, &want);
            assert_said(c, &want);
            heard_free(a);
            heard_free(b);
            heard_free(c);
            scheduler_destroy(s);
            calla_engine_destroy(e);
        }
}

/* A stream that fails, at its end too, ends its own requests; the next one is right. */
static void test_stream_faults(void **state)
{
    (void)state;
    for (uint32_t n_runs = 0; n_runs < 4; n_runs++) {
        calla_engine *e = engine_with(true);
        scheduler *s = make_scheduler(
            e, (scheduler_options){.n_parallel = 2, .n_ctx = 400, .cache_ram_bytes = MIB});
        heard *a = heard_new(), *b = heard_new(), *c = heard_new();
        sched_request ra = heard_request(a, ids, 20, 60), rb = heard_request(b, ids + 9, 20, 60),
                      rc = heard_request(c, ids, 20, 20);
        b->hold_at = 1;
        submit(s, &rb);
        heard_wait_hold(b);
        a->hold_at = 3;
        submit(s, &ra);
        heard_release(b);
        heard_wait_hold(a);
        submit(s, &rc);    /* waits for a slot */
        a->stop_after = 6; /* the stream must end here */
        exec_null_fail(e->ex, NULL_FAULT_CLEAN, n_runs);
        heard_release(a);
        heard_wait_done(a);
        heard_wait_done(b);
        heard_wait_done(c);
        spoken want;
        speak(e, &rc, 400, &want);
        assert_said(c, &want);
        assert_int_equal(b->result.status, CALLA_ERR_INTERNAL);
        assert_string_equal(b->result.message, "the null device failed as arranged");
        assert_int_equal(a->result.status, CALLA_ERR_INTERNAL);
        assert_int_equal(a->n, n_runs < 3 ? 3 + n_runs : 6); /* three steps, and the end */
        sched_stats st;
        assert_true(scheduler_drain(s, 5.0));
        scheduler_stats(s, &st);
        assert_int_equal(st.n_failed, 2);
        heard_free(a);
        heard_free(b);
        heard_free(c);
        scheduler_destroy(s);
        calla_engine_destroy(e);
    }
}

/* ---- Where states are saved ---- */

static void expect_marks(const uint32_t *b, size_t n_b, uint32_t n_prompt, const uint32_t *want,
                         uint32_t n)
{
    uint32_t out[64];
    assert_int_equal(sched_marks(b, n_b, n_prompt, 100, out), n);
    assert_memory_equal(out, want, n * sizeof *out);
}
#define MARKS(n_prompt, boundaries, ...)                                                           \
    do {                                                                                           \
        const uint32_t want[] = {__VA_ARGS__};                                                     \
        expect_marks(boundaries, sizeof boundaries / sizeof *boundaries, n_prompt, want,           \
                     sizeof want / sizeof *want);                                                  \
    } while (0)

static void test_marks(void **state)
{
    (void)state;
    static const uint32_t one[] = {30}, chat[] = {30, 50, 60, 70, 80}, far[] = {30, 90, 140, 420},
                          end[] = {40, 60}, small[] = {5, 50};
    expect_marks(NULL, 0, 16, NULL, 0);
    expect_marks(NULL, 0, 1, NULL, 0);
    MARKS(20, small, 19);
    MARKS(55, small, 50);
    MARKS(35, one, 30);
    MARKS(62, one, 30);
    MARKS(63, one, 30, 62);
    MARKS(85, chat, 30, 70, 80);
    MARKS(60, end, 40); /* a boundary at the end of the prompt is no use to a repeat */
    MARKS(430, far, 30, 90, 140, 240, 340, 420);
    uint32_t out[64];
    const uint32_t plain[] = {100, 200, 300, 349};
    assert_int_equal(sched_marks(NULL, 0, 350, 100, out), 4);
    assert_memory_equal(out, plain, sizeof plain);
    for (uint32_t i = 0; i < 20000; i++) { /* ascending, in range, within the maximum */
        uint32_t b[12], n_b = draw(12), n_prompt = 1 + draw(400), every = 1 + draw(150), at = 0;
        for (uint32_t k = 0; k < n_b; k++)
            b[k] = at = at + draw(n_prompt - at + 1);
        const uint32_t max = sched_marks_max(n_prompt, n_b, every);
        uint32_t *m = mem_array(max, sizeof *m);
        const uint32_t n = sched_marks(b, n_b, n_prompt, every, m);
        assert_true(n <= max);
        for (uint32_t k = 0; k < n; k++) {
            assert_true(m[k] < n_prompt && m[k] > (k == 0 ? 0 : m[k - 1]));
            assert_true(m[k] - (k == 0 ? 0 : m[k - 1]) <= every);
        }
        mem_free(m);
    }
}

/* ---- The prefix cache through the scheduler ---- */

/* A conversation that grows as chats do: system, then user and answer by turns. */
static void test_turns(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 900, .cache_ram_bytes = MIB});
    int32_t text[900];
    uint32_t n = 100, boundaries[16] = {60, 95}, n_boundaries = 2, expect = 0;
    memcpy(text, ids, n * sizeof *text);
    for (uint32_t turn = 0; turn < 6; turn++) {
        heard *h = heard_new();
        sched_request r = heard_request(h, text, n, 20);
        r.boundaries = boundaries;
        r.n_boundaries = n_boundaries;
        ask(s, &r);
        spoken want;
        speak(e, &r, 900, &want);
        assert_said(h, &want);
        assert_int_equal(h->result.n_cached, expect);
        if (turn % 2 == 0) {
            /* the answer comes back as it was: the live state serves, but for the last token */
            expect = n + 19;
            memcpy(text + n, h->ids, 20 * sizeof *text);
        } else {
            /* the thinking is gone from it: back to the end of the user's message */
            expect = boundaries[n_boundaries - 1];
            memcpy(text + n, ids + 300 + 40 * turn, 20 * sizeof *text);
        }
        boundaries[n_boundaries++] = n + 20;
        boundaries[n_boundaries++] = n + 35;
        memcpy(text + n + 20, ids + 500 + 40 * turn, 20 * sizeof *text);
        n += 40;
        if (turn != 0) {
            const bool kept = turn % 2 == 1; /* by the turn before */
            assert_int_equal(h->result.diverged_at, kept ? SCHED_NO_POSITION : n - 80);
            assert_int_equal(h->result.n_common, kept ? n - 80 + 19 : n - 80);
        }
        heard_free(h);
    }
    sched_stats st;
    scheduler_stats(s, &st);
    assert_int_equal(st.n_timelines, 1); /* one conversation, always in place */
    assert_int_equal(st.n_hits, 5);
    assert_int_equal(st.n_misses, 1);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* Two conversations with one system prompt: neither destroys the other. */
static void test_shared_system(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(e, (scheduler_options){.n_ctx = 900, .cache_ram_bytes = MIB});
    int32_t text[2][300];
    for (uint32_t c = 0; c < 2; c++) {
        memcpy(text[c], ids, 100 * sizeof(int32_t));
        memcpy(text[c] + 100, ids + 200 + 300 * c, 200 * sizeof(int32_t));
    }
    static const uint32_t boundaries[] = {100, 150, 190, 240, 290};
    static const uint32_t n_prompt[] = {200, 300}, n_b[] = {3, 5},
                          cached[2][2] = {{0, 100}, {190, 190}};
    for (uint32_t turn = 0; turn < 2; turn++)
        for (uint32_t c = 0; c < 2; c++) {
            heard *h = heard_new();
            sched_request r = heard_request(h, text[c], n_prompt[turn], 10);
            r.boundaries = boundaries;
            r.n_boundaries = n_b[turn];
            ask(s, &r);
            spoken want;
            speak(e, &r, 900, &want);
            assert_said(h, &want);
            assert_int_equal(h->result.n_cached, cached[turn][c]);
            heard_free(h);
        }
    sched_stats st;
    scheduler_stats(s, &st);
    assert_int_equal(st.n_timelines, 2);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* Several requests with one prompt at once: it is computed once. */
static void test_same_prompt_at_once(void **state)
{
    (void)state;
    calla_engine *e = fake_engine(64);
    scheduler *s = make_scheduler(
        e, (scheduler_options){.n_parallel = 4, .n_ctx = 900, .cache_ram_bytes = MIB});
    heard *h[4], *block = heard_new();
    block->hold_at = 1;
    sched_request r = heard_request(block, ids + 40, 30, 2);
    submit(s, &r);
    heard_wait_hold(block);
    spoken want;
    for (uint32_t i = 0; i < 4; i++) {
        h[i] = heard_new();
        r = heard_request(h[i], ids, 500, 10);
        submit(s, &r);
    }
    speak(e, &r, 900, &want);
    heard_release(block);
    uint32_t n_computed = 0;
    for (uint32_t i = 0; i < 4; i++) {
        heard_wait_done(h[i]);
        assert_said(h[i], &want);
        n_computed += 500 - h[i]->result.n_cached;
        heard_free(h[i]);
    }
    assert_int_equal(n_computed, 503);
    heard_wait_done(block);
    heard_free(block);
    scheduler_destroy(s);
    calla_engine_destroy(e);
}

/* ---- The demonstration model ---- */

static void nano_prompt(const calla_tokenizer *tok, uint32_t i, int32_t **out, size_t *n,
                        uint32_t *boundary)
{
    static const char *const asks[] = {"What is 47 + 38?",
                                       "Hello!",
                                       "Who are you?",
                                       "Sort these words: pear, apple, fig",
                                       "What is the capital of Peru?",
                                       "Count from 1 to 10",
                                       "Buongiorno",
                                       "Hello!",
                                       "How do you say 'cat' in French?",
                                       "Where is the red box?"};
    strbuf text = {0};
    calla_error err;
    int32_t *system;
    size_t n_system;
    (void)strbuf_puts(&text, "<|im_start|>system\n");
    for (uint32_t k = 0; k < NANO_REPEATS; k++)
        (void)strbuf_puts(&text, "The baker of Lima sold 17 loaves, 3 cakes and a pie. ");
    (void)strbuf_puts(&text, "<|im_end|>\n");
    if (calla_tokenizer_encode(tok, text.data, text.len, 0, &system, &n_system, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    *boundary = (uint32_t)n_system;
    calla_free(system);
    (void)strbuf_printf(&text,
                        "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
                        "</think>\n\n",
                        asks[i]);
    if (calla_tokenizer_encode(tok, text.data, text.len, 0, out, n, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    strbuf_deinit(&text);
}

static void test_nano(void **state)
{
    (void)state;
    calla_error err;
    calla_engine *e;
    const calla_engine_options eo = {.model_dir = "models/nano", .n_threads = 2};
    if (calla_engine_create(&e, &eo, &err) != CALLA_OK) fail_msg("%s", err.message);
    const calla_tokenizer *tok = calla_engine_tokenizer(e);
    int32_t *prompt[NANO_PROMPTS];
    size_t n[NANO_PROMPTS];
    uint32_t boundary[NANO_PROMPTS];
    heard *alone[NANO_PROMPTS];
    for (uint32_t i = 0; i < NANO_PROMPTS; i++)
        nano_prompt(tok, i, &prompt[i], &n[i], &boundary[i]);
    for (uint32_t round = 0; round < 3; round++) { /* alone; in company; the same with a cache */
        scheduler *s =
            make_scheduler(e, (scheduler_options){.n_parallel = round == 0 ? 1 : 4,
                                                  .n_ctx = 600,
                                                  .piece_tokens = 50,
                                                  .cache_ram_bytes = round == 2 ? 64 * MIB : 0});
        heard *h[NANO_PROMPTS];
        for (uint32_t i = 0; i < NANO_PROMPTS; i++) {
            h[i] = heard_new();
            sched_request r = heard_request(h[i], prompt[i], n[i], NANO_TOKENS);
            r.logprobs = true;
            r.boundaries = &boundary[i];
            r.n_boundaries = 1;
            if (round == 0) {
                spoken want;
                ask(s, &r);
                speak(e, &r, 600, &want);
                assert_said(h[i], &want);
                alone[i] = h[i];
                continue;
            }
            submit(s, &r);
            nap(draw(20000));
        }
        uint32_t n_hits = 0;
        for (uint32_t i = 0; i < NANO_PROMPTS && round != 0; i++) {
            heard_wait_done(h[i]);
            assert_int_equal(h[i]->result.stop, alone[i]->result.stop);
            assert_int_equal(h[i]->n, alone[i]->n);
            assert_memory_equal(h[i]->ids, alone[i]->ids, h[i]->n * sizeof(int32_t));
            assert_memory_equal(h[i]->logprobs, alone[i]->logprobs, h[i]->n * sizeof(float));
            n_hits += h[i]->result.n_cached >= boundary[i];
            heard_free(h[i]);
        }
        if (round == 2) assert_int_equal(n_hits, NANO_PROMPTS - 1);
        scheduler_destroy(s);
    }
    for (uint32_t i = 0; i < NANO_PROMPTS; i++) {
        heard_free(alone[i]);
        calla_free(prompt[i]);
    }
    calla_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_company_leaves),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_passing),
        cmocka_unit_test(test_no_wait),
        cmocka_unit_test(test_prompt_turns),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_destroy),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_refused_segment),
        cmocka_unit_test(test_too_large_to_keep),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_stream_texts),
        cmocka_unit_test(test_stream_alone),
        cmocka_unit_test(test_stream_not),
        cmocka_unit_test(test_stream_arrival),
        cmocka_unit_test(test_stream_cancel),
        cmocka_unit_test(test_stream_faults),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_filter),
        cmocka_unit_test(test_thinking_budget),
        cmocka_unit_test(test_thinking_filter),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_shared_system),
        cmocka_unit_test(test_same_prompt_at_once),
        cmocka_unit_test(test_nano),
    };
    const int n_failed = cmocka_run_group_tests_name("scheduler", tests, set_up, NULL);
    fake_streams = true; /* the same where the device draws */
    return n_failed + cmocka_run_group_tests_name("scheduler, streams", tests, set_up, NULL);
}
