#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "engine/sched.h"

/* A prompt that ends further than this behind its last boundary gets a state at its end. */
#define TAIL_TOKENS 32u

/* ---- Marks ---- */

uint32_t sched_marks_max(uint32_t n_prompt, size_t n_boundaries, uint32_t every)
{
    const uint64_t n = n_boundaries + n_prompt / every + 2u;
    return n < n_prompt ? (uint32_t)n : n_prompt;
}

/* Adds a mark, and those between it and the last one that `every` asks for. */
static uint32_t add_mark(uint32_t *out, uint32_t n, uint32_t position, uint32_t every)
{
    uint32_t last = n == 0 ? 0 : out[n - 1];
    for (; position - last > every; out[n++] = last)
        last += every;
    if (position > last) out[n++] = position;
    return n;
}

uint32_t sched_marks(const uint32_t *boundaries, size_t n_boundaries, uint32_t n_prompt,
                     uint32_t every, uint32_t *out)
{
    if (n_prompt <= SCHED_MARK_MIN) return 0;
    while (n_boundaries != 0 && boundaries[n_boundaries - 1] >= n_prompt)
        n_boundaries--;
    uint32_t n = 0, last = 0, skipped = 0;
    for (size_t i = 0; i < n_boundaries; i++) {
        const uint32_t at = boundaries[i];
        if (at < SCHED_MARK_MIN) continue;
        if (at - last > every && skipped > last) { /* rather there than amid this message */
            n = add_mark(out, n, skipped, every);
            last = skipped;
        }
        skipped = at;
        if (n != 0 && i + 2 < n_boundaries && at - last < every) continue;
        n = add_mark(out, n, at, every);
        last = at;
    }
    if (n_prompt - last > TAIL_TOKENS || n == 0) n = add_mark(out, n, n_prompt - 1, every);
    return n;
}

/* ---- Checks ---- */

static calla_status check_prompt(const scheduler *s, const sched_request *r, calla_error *err)
{
    const uint32_t n_vocab = s->engine->shape.n_vocab;
    if (r->n_prompt == 0 || r->prompt == NULL)
        return err_set(err, CALLA_ERR_ARGUMENT, "the prompt is empty, expected at least one token");
    if (r->n_prompt >= s->options.n_ctx)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "the prompt has %zu tokens, the context holds %u and one must be left for "
                       "the answer",
                       r->n_prompt, s->options.n_ctx);
    for (size_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= n_vocab)
            return err_set(err, CALLA_ERR_ARGUMENT, "prompt token %zu: id %d, expected 0 to %u", i,
                           (int)r->prompt[i], n_vocab - 1);
    for (size_t i = 0; i < r->n_boundaries; i++)
        if (r->boundaries[i] > r->n_prompt || (i != 0 && r->boundaries[i] < r->boundaries[i - 1]))
            return err_set(err, CALLA_ERR_ARGUMENT,
                           "boundary %zu is %u, expected ascending positions up to %zu", i,
                           r->boundaries[i], r->n_prompt);
    return CALLA_OK;
}

static calla_status check_rest(const scheduler *s, const sched_request *r, calla_error *err)
{
    const uint32_t n_vocab = s->engine->shape.n_vocab;
    if (r->n_top_logprobs > SCHED_TOP_LOGPROBS_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "n_top_logprobs is %u, expected at most %u",
                       r->n_top_logprobs, SCHED_TOP_LOGPROBS_MAX);
    for (size_t i = 0; i < r->n_bias; i++) {
        if (r->bias_ids[i] < 0 || (uint32_t)r->bias_ids[i] >= n_vocab)
            return err_set(err, CALLA_ERR_ARGUMENT, "logit bias %zu: id %d, expected 0 to %u", i,
                           (int)r->bias_ids[i], n_vocab - 1);
        if (isnan(r->bias[i]) || r->bias[i] == INFINITY)
            return err_set(err, CALLA_ERR_ARGUMENT,
                           "logit bias %zu: %g for id %d, expected a number", i, (double)r->bias[i],
                           (int)r->bias_ids[i]);
    }
    const bool closes =
        r->in_thinking && (r->limit_thinking || (r->filter != NULL && r->filter_after_thinking));
    if (closes && s->options.n_think_close == 0)
        return err_set(err, CALLA_ERR_ARGUMENT,
                       "thinking cannot be limited or told apart: the tokenizer has no </think>");
    return r->sampling == NULL ? CALLA_OK : sampling_check(r->sampling, err);
}

/* ---- Copy ---- */

/* A copy of n items, or NULL with *failed set; NULL for none. */
static void *copy_items(const void *p, size_t n, size_t size, bool *failed)
{
    if (n == 0) return NULL;
    void *copy = mem_array(n, size);
    if (copy == NULL)
        *failed = true;
    else
        memcpy(copy, p, n * size);
    return copy;
}

static bool copy_request(sched_req *q, const scheduler *s)
{
    sched_request *r = &q->r;
    bool failed = false;
    const uint32_t every = s->options.state_every_tokens;
    r->prompt = q->prompt = copy_items(r->prompt, r->n_prompt, sizeof *q->prompt, &failed);
    r->bias_ids = q->bias_ids = copy_items(r->bias_ids, r->n_bias, sizeof *q->bias_ids, &failed);
    r->bias = q->bias = copy_items(r->bias, r->n_bias, sizeof *q->bias, &failed);
    if (prefix_cache_saves(s->cache)) {
        q->marks =
            mem_array(sched_marks_max(q->n_prompt, r->n_boundaries, every), sizeof *q->marks);
        if (q->marks == NULL) failed = true;
    }
    if (failed) return false;
    if (q->marks != NULL)
        q->n_marks = sched_marks(r->boundaries, r->n_boundaries, q->n_prompt, every, q->marks);
    r->boundaries = NULL;
    r->n_boundaries = 0;
    return true;
}

calla_status sched_req_create(sched_req **out, const scheduler *s, const sched_request *request,
                              calla_error *err)
{
    calla_status st;
    *out = NULL;
    sched_req *q = NULL;
    TRY(check_prompt(s, request, err));
    TRY(check_rest(s, request, err));
    q = mem_alloc(sizeof *q);
    if (q == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a request");
    q->r = *request;
    q->r.filter = NULL; /* the caller's until all is well */
    q->n_prompt = (uint32_t)request->n_prompt;
    q->sampling = request->sampling != NULL ? *request->sampling : s->engine->sampling;
    q->r.sampling = &q->sampling;
    if (!copy_request(q, s)) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for a request of %u tokens", q->n_prompt);
        goto fail;
    }
    q->t_submit = time_now();
    *out = q;
    return CALLA_OK;
fail:
    sched_req_destroy(q);
    return st;
}

void sched_req_destroy(sched_req *q)
{
    if (q == NULL) return;
    if (q->r.filter != NULL && q->filter.destroy != NULL) q->filter.destroy(q->filter.user);
    mem_free(q->prompt);
    mem_free(q->bias_ids);
    mem_free(q->bias);
    mem_free(q->marks);
    mem_free(q);
}
