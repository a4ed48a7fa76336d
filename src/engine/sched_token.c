#include <math.h>

#include "engine/sched.h"

/* ---- Log-probabilities ---- */

/* Inserts into top[n], which falls; the last one leaves when n == n_top. Returns the new n. */
static uint32_t top_insert(sched_top *top, uint32_t n, uint32_t n_top, int32_t id, float x)
{
    if (n == n_top && x <= top[n - 1].logprob) return n;
    uint32_t i = n < n_top ? n++ : n - 1;
    for (; i != 0 && top[i - 1].logprob < x; i--)
        top[i] = top[i - 1];
    top[i] = (sched_top){id, x};
    return n;
}

void sched_logprobs(const float *logits, uint32_t n_vocab, const int32_t *banned, size_t n_banned,
                    int32_t id, float *logprob, sched_top *top, uint32_t n_top)
{
    float largest = -INFINITY;
    uint32_t n = 0;
    size_t i_banned = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (i_banned < n_banned && banned[i_banned] == (int32_t)i) {
            i_banned++;
            continue;
        }
        if (logits[i] > largest) largest = logits[i];
        if (n_top != 0) n = top_insert(top, n, n_top, (int32_t)i, logits[i]);
    }
    double sum = 0.0;
    i_banned = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (i_banned < n_banned && banned[i_banned] == (int32_t)i)
            i_banned++;
        else
            sum += (double)expf(logits[i] - largest);
    }
    const double norm = (double)largest + log(sum);
    *logprob = (float)((double)logits[id] - norm);
    for (uint32_t i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - norm);
}

/* ---- Choosing ---- */

/* Will a filter begin when the block of thinking ends? */
static bool filter_waits(const sched_slot *slot)
{
    return slot->thinking && !slot->filtering && slot->req->r.filter != NULL;
}

void sched_token_begin(const scheduler *s, sched_slot *slot)
{
    const sched_req *q = slot->req;
    sampler_begin(slot->sampler, &q->sampling, q->prompt, q->n_prompt);
    sampler_set_bias(slot->sampler, q->bias_ids, q->bias, q->r.n_bias);
    slot->thinking = q->r.in_thinking;
    slot->filtering = q->r.filter != NULL && !(q->r.in_thinking && q->r.filter_after_thinking);
    slot->i_forced = s->options.n_think_close;
    slot->drawable = false;
}

/* What the sampler asks about a candidate. */
typedef struct candidate_check {
    const scheduler *s;
    const sched_slot *slot;
} candidate_check;

static bool is_stop(const scheduler *s, const sched_slot *slot, int32_t id)
{
    return !slot->req->r.ignore_eos && engine_is_stop(s->engine, id);
}

static bool allow(void *user, int32_t id)
{
    const candidate_check *c = user;
    const sched_filter *f = &c->slot->req->filter;
    return is_stop(c->s, c->slot, id) ? f->may_end(f->user) : f->allow(f->user, id);
}

/* Must the block of thinking be closed now? */
static bool is_over_budget(const sched_slot *slot)
{
    const sched_request *r = &slot->req->r;
    return slot->thinking && r->limit_thinking && slot->result.n_thinking >= r->thinking_budget;
}

static int32_t force_next(const scheduler *s, sched_slot *slot)
{
    return s->options.think_close[slot->i_forced++];
}

/* id was drawn. A stop id that a filter waits for closes the block instead: *forced. */
static int32_t or_forced(const scheduler *s, sched_slot *slot, int32_t id, bool *forced)
{
    *forced = filter_waits(slot) && is_stop(s, slot, id);
    if (!*forced) return id;
    slot->i_forced = 0;
    return force_next(s, slot);
}

/* *id comes next; *forced: by the closing of the block. */
static calla_status choose(const scheduler *s, sched_slot *slot, int32_t *id, bool *forced,
                           calla_error *err)
{
    candidate_check c = {s, slot};
    if (slot->i_forced == s->options.n_think_close && is_over_budget(slot)) slot->i_forced = 0;
    *forced = slot->i_forced != s->options.n_think_close;
    if (*forced) {
        *id = force_next(s, slot);
        return CALLA_OK;
    }
    const calla_status st =
        slot->filtering ? sampler_draw_filtered(slot->sampler, slot->logits, allow, &c, id, err)
                        : sampler_draw(slot->sampler, slot->logits, id, err);
    if (st == CALLA_OK) *id = or_forced(s, slot, *id, forced);
    return st;
}

/* The block of thinking ends with this token: what follows is the answer. */
static void end_thinking(const scheduler *s, sched_slot *slot)
{
    const scheduler_options *o = &s->options;
    const bool waits = filter_waits(slot);
    slot->thinking = false;
    if (!waits) return;
    slot->filtering = true;
    /* Behind it in think_close, so that the filter's text begins where the model expects it; there
     * already when the closing is being put in. */
    slot->i_forced = 0;
    while (slot->i_forced < o->n_think_close && o->think_close[slot->i_forced++] != o->think_end_id)
        ;
}

static void report_token(const scheduler *s, sched_slot *slot, sched_token *t)
{
    const calla_engine *e = s->engine;
    const sched_request *r = &slot->req->r;
    if (e->tok != NULL) t->bytes = calla_tokenizer_bytes(e->tok, t->id, &t->n_bytes);
    if (!r->logprobs) return;
    t->n_top = r->n_top_logprobs;
    if (t->n_top > e->shape.n_vocab - e->n_banned)
        t->n_top = (uint32_t)(e->shape.n_vocab - e->n_banned);
    sched_logprobs(slot->logits, e->shape.n_vocab, e->banned, e->n_banned, t->id, &t->logprob,
                   slot->top, t->n_top);
    t->top = slot->top;
}

/* id comes next. */
static void take(const scheduler *s, sched_slot *slot, int32_t id, bool forced, bool *done,
                 calla_stop *stop)
{
    const sched_request *r = &slot->req->r;
    sched_token t = {.id = id, .forced = forced, .thinking = slot->thinking};
    *done = true;
    if (!t.forced && is_stop(s, slot, t.id)) {
        *stop = CALLA_STOP_EOS;
        return;
    }
    sampler_accept(slot->sampler, t.id);
    if (slot->filtering && !t.forced) slot->req->filter.accept(slot->req->filter.user, t.id);
    slot->result.n_generated++;
    slot->result.n_thinking += t.thinking;
    if (slot->thinking && t.id == s->options.think_end_id && s->options.n_think_close != 0)
        end_thinking(s, slot);
    report_token(s, slot, &t);
    slot->next = t.id;
    if (r->on_token != NULL && !r->on_token(r->user, &t))
        *stop = CALLA_STOP_CALLBACK;
    else if (r->max_tokens != 0 && slot->result.n_generated == r->max_tokens)
        *stop = CALLA_STOP_LENGTH;
    else if (slot->t->n_tokens + 1 >= s->options.n_ctx)
        *stop = CALLA_STOP_CONTEXT;
    else
        *done = false;
}

calla_status sched_token_next(const scheduler *s, sched_slot *slot, bool *done, calla_stop *stop,
                              calla_error *err)
{
    int32_t id;
    bool forced;
    const calla_status st = choose(s, slot, &id, &forced, err);
    if (st == CALLA_OK) take(s, slot, id, forced, done, stop);
    return st;
}

bool sched_token_drawn(const scheduler *s, sched_slot *slot, int32_t id, bool *done,
                       calla_stop *stop)
{
    bool forced;
    sampler_skip(slot->sampler);
    id = or_forced(s, slot, id, &forced);
    take(s, slot, id, forced, done, stop);
    return !*done && !forced && sched_token_draws(s, slot) != 0;
}

uint32_t sched_token_draws(const scheduler *s, const sched_slot *slot)
{
    const sched_request *r = &slot->req->r;
    const sched_result *so_far = &slot->result;
    if (slot->filtering || slot->i_forced != s->options.n_think_close || r->logprobs) return 0;
    uint32_t n = s->options.n_ctx - 1 - slot->t->n_tokens;
    if (r->max_tokens != 0 && r->max_tokens - so_far->n_generated < n)
        n = r->max_tokens - so_far->n_generated;
    if (!slot->thinking || !r->limit_thinking) return n;
    if (is_over_budget(slot)) return 0;
    return r->thinking_budget - so_far->n_thinking < n ? r->thinking_budget - so_far->n_thinking
                                                       : n;
}
