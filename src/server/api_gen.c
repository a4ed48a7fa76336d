/* How an answer flows. The worker's on_token pushes bytes into the choice's parser; the parser's
 * events pass take_event, where content waits in `held` as long as it may begin a stop string; what
 * leaves it is collected in `answer` and, in a stream, goes to the protocol. A choice that has
 * `ended` (stop string, second call where one is allowed) takes nothing more and ends its request
 * by the return value of on_token. Everything under the job's lock, which the handler holds from
 * the first submit to the last, so that a refused second choice leaves no event behind. */
#include "server/api_gen.h"

#include <stdio.h>
#include <string.h>

#include "engine/filter_constraint.h"

/* ---- Events ---- */

static void deliver(gen_choice *c, const gen_event *ev)
{
    gen_job *job = c->job;
    if (job->sse != NULL || job->protocol->collects) job->protocol->event(job, c, ev);
}

static void begin_choice(gen_choice *c)
{
    const gen_event ev = {.kind = GEN_BEGIN};
    if (c->begun) return;
    c->begun = true;
    deliver(c, &ev);
}

static bool is_custom(const gen_request *in, const char *name, size_t n)
{
    const json_value *v = in->customs.node != NULL ? in->customs.node->first : NULL;
    while (v != NULL && (v->n_text != n || memcmp(v->text, name, n) != 0))
        v = v->next;
    return v != NULL;
}

static bool new_call(gen_choice *c, uint32_t index, const char *name, size_t n)
{
    if (index >= c->cap_calls) {
        const size_t cap = c->cap_calls == 0 ? 4 : c->cap_calls * 2;
        gen_call *grown = mem_resize(c->calls, cap * sizeof *grown);
        if (grown == NULL) return false;
        c->calls = grown;
        c->cap_calls = cap;
    }
    random_id(c->calls[index].id, c->job->protocol->call_prefix);
    c->calls[index].custom = is_custom(&c->job->in, name, n);
    c->reader = (custom_reader){0};
    return true;
}

/* Of a call of a custom tool, in place of its arguments' JSON: the text. */
static void take_input(gen_choice *c, output_event *ev)
{
    strbuf_clear(&c->input);
    custom_read(&c->reader, ev->text, ev->n, &c->input);
    if (c->input.failed) c->failed = c->ended = true;
    ev->text = c->input.data;
    ev->n = c->input.len;
}

static void emit(gen_choice *c, const output_event *out)
{
    static const gen_kind kinds[] = {GEN_REASONING, GEN_CONTENT, GEN_CALL, GEN_ARGS, GEN_CALL_END};
    output_event from = *out;
    const bool in_call = from.kind == OUTPUT_CALL_ARGS || from.kind == OUTPUT_CALL_END;
    if (from.kind == OUTPUT_CALL_BEGIN && !new_call(c, from.index, from.text, from.n)) {
        c->failed = c->ended = true;
        return;
    }
    if (in_call && c->calls[from.index].custom) {
        take_input(c, &from);
        if (from.kind == OUTPUT_CALL_ARGS && from.n == 0) return;
    }
    const gen_event ev = {.kind = kinds[from.kind],
                          .text = from.text,
                          .n = from.n,
                          .index = from.index,
                          .complete = from.complete};
    /* Arguments that were cut off stay unfinished: nobody shall take them for whole. */
    if (from.kind == OUTPUT_CALL_END) from.n = 0;
    output_result_event(&c->answer, &from);
    if (c->answer.failed) c->failed = c->ended = true;
    deliver(c, &ev);
}

static void emit_content(gen_choice *c, const char *s, size_t n)
{
    const output_event ev = {.kind = OUTPUT_CONTENT, .text = s, .n = n};
    if (n != 0) emit(c, &ev);
}

static void flush_held(gen_choice *c)
{
    if (c->held.failed) c->failed = c->ended = true;
    if (!c->ended) emit_content(c, c->held.data, c->held.len);
    strbuf_clear(&c->held);
}

/* The first occurrence of any stop string; NULL when there is none. */
static const gen_stop *find_stop(const gen_request *in, const char *s, size_t n, size_t *at)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < in->n_stops; k++) {
            const gen_stop *stop = &in->stops[k];
            if (stop->n <= n - i && memcmp(s + i, stop->s, stop->n) == 0) {
                *at = i;
                return stop;
            }
        }
    }
    return NULL;
}

/* Length of the longest end of s that begins a stop string. */
static size_t stop_begun(const gen_request *in, const char *s, size_t n)
{
    size_t longest = 0;
    for (size_t k = 0; k < in->n_stops; k++) {
        const gen_stop *stop = &in->stops[k];
        size_t len = stop->n - 1 < n ? stop->n - 1 : n;
        while (len > longest && memcmp(s + n - len, stop->s, len) != 0)
            len--;
        if (len > longest) longest = len;
    }
    return longest;
}

static void take_content(gen_choice *c, const char *s, size_t n)
{
    const gen_request *in = &c->job->in;
    size_t at;
    if (in->must_call) return; /* white space is all that may stand there */
    c->n_content += n;
    if (in->n_stops == 0) {
        emit_content(c, s, n);
        return;
    }
    if (!strbuf_append(&c->held, s, n)) {
        c->failed = c->ended = true;
        return;
    }
    c->stop = find_stop(in, c->held.data, c->held.len, &at);
    if (c->stop != NULL) {
        emit_content(c, c->held.data, at);
        c->ended = true;
        return;
    }
    const size_t keep = stop_begun(in, c->held.data, c->held.len);
    const size_t out = c->held.len - keep;
    emit_content(c, c->held.data, out);
    if (out != 0) memmove(c->held.data, c->held.data + out, keep);
    c->held.len = keep;
}

static void take_event(void *user, const output_event *ev)
{
    gen_choice *c = user;
    if (c->ended) return;
    if (ev->kind == OUTPUT_CONTENT) {
        take_content(c, ev->text, ev->n);
        return;
    }
    flush_held(c);
    if (ev->kind == OUTPUT_CALL_END && ev->index == 0) c->n_first_call = c->ids.len;
    if (ev->kind == OUTPUT_CALL_BEGIN && ev->index > 0 && c->job->in.serial) c->ended = true;
    if (!c->ended) emit(c, ev);
}

/* Text that nobody parses: whole characters, all content. */
static void take_raw(gen_choice *c, const char *bytes, size_t n, bool last)
{
    char text[3 * (64 + 3) + 12];
    while (!c->ended && (n != 0 || last)) {
        const size_t step = n < 64 ? n : 64;
        size_t len = calla_utf8_stream_push(&c->utf8, bytes, step, text);
        if (n == step && last) len += calla_utf8_stream_finish(&c->utf8, text + len);
        if (len != 0) take_content(c, text, len);
        bytes += step;
        n -= step;
        if (n == 0) break;
    }
}

/* ---- Callbacks of the scheduler ---- */

static bool keep_logprob(gen_choice *c, const sched_token *t)
{
    const uint32_t n_top = c->job->in.n_top;
    if (c->n_logprobs == c->cap_logprobs) {
        const size_t cap = c->cap_logprobs == 0 ? 64 : c->cap_logprobs * 2;
        gen_logprob *rows = mem_resize(c->logprobs, cap * sizeof *rows);
        if (rows == NULL) return false;
        c->logprobs = rows;
        if (n_top != 0) {
            sched_top *tops = mem_resize(c->tops, cap * n_top * sizeof *tops);
            if (tops == NULL) return false;
            c->tops = tops;
        }
        c->cap_logprobs = cap;
    }
    const uint32_t n = t->n_top < n_top ? t->n_top : n_top;
    if (n != 0) memcpy(c->tops + c->n_logprobs * n_top, t->top, n * sizeof *t->top);
    c->logprobs[c->n_logprobs++] =
        (gen_logprob){.id = t->id, .logprob = t->logprob, .n_top = n, .before = c->n_content};
    return true;
}

static void on_progress(void *user, uint32_t n_done, uint32_t n_total, uint32_t n_cached)
{
    gen_choice *c = user;
    (void)n_done;
    (void)n_total;
    if (c->begun) return;
    (void)pthread_mutex_lock(&c->job->lock);
    c->n_cached = n_cached;
    begin_choice(c);
    (void)pthread_mutex_unlock(&c->job->lock);
}

static bool on_token(void *user, const sched_token *t)
{
    gen_choice *c = user;
    gen_job *job = c->job;
    (void)pthread_mutex_lock(&job->lock);
    begin_choice(c);
    if (!id_list_push(&c->ids, t->id)) c->failed = c->ended = true;
    if (job->in.logprobs && !t->thinking && !c->ended && !keep_logprob(c, t))
        c->failed = c->ended = true;
    if (!c->ended && !calla_tokenizer_is_special(job->ctx->tok, t->id)) {
        if (c->parser == NULL)
            take_raw(c, t->bytes, t->n_bytes, false);
        else if (output_parser_push(c->parser, t->bytes, t->n_bytes) != CALLA_OK)
            c->failed = c->ended = true;
    }
    http_note_token(job->req);
    const bool go_on = !c->ended && !atomic_load(&job->gone);
    (void)pthread_mutex_unlock(&job->lock);
    return go_on;
}

static gen_finish finish_of(const gen_choice *c)
{
    if (c->failed || c->result.status != CALLA_OK) return GEN_FAILED;
    if (c->stop != NULL) return GEN_STOP_STRING;
    if (c->ended) return GEN_CALLS; /* a second call where one is allowed */
    switch (c->result.stop) {
    case CALLA_STOP_EOS:
        return c->answer.n_calls != 0 ? GEN_CALLS : GEN_STOP;
    case CALLA_STOP_LENGTH:
    case CALLA_STOP_CONTEXT:
        return GEN_LENGTH;
    case CALLA_STOP_CANCELLED:
    case CALLA_STOP_CALLBACK:
        return GEN_CANCELLED;
    }
    return GEN_STOP;
}

/* Tokens of the answer as it was given out. 0: it is not whole. */
static size_t whole_ids(const gen_choice *c)
{
    if (c->finish != GEN_STOP && c->finish != GEN_CALLS) return 0;
    if (!c->ended) return c->ids.len;
    /* A second call was begun where one is allowed. */
    const int32_t close = calla_tokenizer_added_id(c->job->ctx->tok, "</tool_call>");
    for (size_t i = c->n_first_call; i != 0 && i <= c->ids.len; i++)
        if (c->ids.data[i - 1] == close) return i;
    return 0;
}

/* Remembers the answer's tokens for the time when the client sends it back. */
static void remember(gen_choice *c)
{
    gen_job *job = c->job;
    const output_result *a = &c->answer;
    const size_t n_ids = whole_ids(c);
    if (n_ids == 0 || c->parser == NULL || job->chat.continues) return;
    tree t = {0};
    tree_list m = tree_begin(&t, JSON_OBJECT), calls = tree_begin(&t, JSON_ARRAY);
    tree_set(&t, &m, "role", tree_literal(&t, "assistant"));
    tree_set(&t, &m, "content", tree_string(&t, a->content.data, a->content.len));
    for (size_t i = 0; i < a->n_calls && !t.failed; i++) {
        json_value *args = NULL;
        tree_list call = tree_begin(&t, JSON_OBJECT);
        const strbuf *text = &a->calls[i].arguments;
        if (c->calls[i].custom)
            args = custom_arguments(&t, text->data, text->len);
        else if (tree_parse(&t, text->data, text->len, NULL, &args, NULL) != CALLA_OK)
            t.failed = true;
        tree_set(&t, &call, "name", tree_string(&t, a->calls[i].name, a->calls[i].n_name));
        tree_set(&t, &call, "arguments", args);
        tree_append(&t, &calls, call.node);
    }
    if (a->n_calls != 0) tree_set(&t, &m, "tool_calls", calls.node);
    if (!t.failed)
        replay_put(job->ctx->replay, replay_next(job->ctx->replay, job->in.prompt.key, m.node),
                   a->reasoning.data != NULL ? a->reasoning.data : "", a->reasoning.len,
                   c->ids.data, n_ids, job->in.prompt.in_thinking);
    tree_deinit(&t);
}

/* Tokens at and behind the stop string are not part of the content. */
static void cut_logprobs(gen_choice *c)
{
    if (c->stop == NULL) return;
    while (c->n_logprobs > c->n_sent &&
           c->logprobs[c->n_logprobs - 1].before >= c->answer.content.len)
        c->n_logprobs--;
}

static void note_usage(gen_job *job)
{
    http_usage u = {.n_prompt = gen_n_prompt(job),
                    .diverged_at = HTTP_NO_POSITION,
                    .diverged_message = HTTP_NO_POSITION};
    for (uint32_t i = 0; i < job->n_submitted; i++) {
        const sched_result *r = &job->choices[i].result;
        u.n_generated += r->n_generated;
        if (i != 0) continue;
        u.n_cached = r->n_cached;
        u.diverged_at = r->diverged_at;
        u.diverged_message = gen_message_at(job, r->diverged_at);
        u.queue_seconds = r->queue_seconds;
        u.prefill_seconds = r->prefill_seconds;
        u.decode_seconds = r->decode_seconds;
        u.stop = job->choices[i].finish == GEN_CANCELLED ? "cancelled"
                                                         : finish_name(job->choices[i].finish);
    }
    http_note_usage(job->req, &u);
}

/* The last choice is done: the stream ends. The lock is held, and gone afterwards. */
static void end_stream(gen_job *job)
{
    sse_stream *sse = job->sse;
    job->protocol->finish(job);
    note_usage(job);
    (void)pthread_mutex_unlock(&job->lock);
    sse_close(sse);
    gen_destroy(job);
}

static void on_done(void *user, const sched_result *r)
{
    static const gen_event end = {.kind = GEN_END};
    gen_choice *c = user;
    gen_job *job = c->job;
    (void)pthread_mutex_lock(&job->lock);
    c->result = *r;
    (void)snprintf(c->message, sizeof c->message, "%s", r->message);
    c->result.message = c->message;
    c->n_cached = r->n_cached;
    if (job->refused) {
        job->n_done++;
        (void)pthread_cond_broadcast(&job->changed);
        (void)pthread_mutex_unlock(&job->lock);
        return;
    }
    begin_choice(c);
    if (c->parser == NULL)
        take_raw(c, "", 0, true);
    else if (output_parser_finish(c->parser, r->stop != CALLA_STOP_EOS) != CALLA_OK)
        c->failed = c->ended = true;
    flush_held(c);
    c->finish = finish_of(c);
    cut_logprobs(c);
    remember(c);
    deliver(c, &end);
    job->n_done++;
    c->done = true;
    if (job->sse != NULL && job->n_done == job->in.n) {
        end_stream(job);
        return;
    }
    (void)pthread_cond_broadcast(&job->changed);
    (void)pthread_mutex_unlock(&job->lock);
}

/* ---- Submitting ---- */

static bool start_parser(gen_choice *c, calla_error *err)
{
    gen_job *job = c->job;
    const output_options o = {.start_in_reasoning = job->in.prompt.in_thinking,
                              .tools = job->in.tools,
                              .call_after_reasoning = job->in.forms[0] != NULL,
                              .on_event = take_event,
                              .user = c};
    if (!gen_prompt(c)->is_chat) return true;
    return output_parser_create(&c->parser, &o, err) == CALLA_OK;
}

/* The hang-up callback: any thread, without the job's lock. */
static void on_hangup(void *user)
{
    gen_job *job = user;
    atomic_store(&job->gone, true);
    for (uint32_t i = 0; i < API_CHOICES_MAX; i++) {
        const sched_ticket t = atomic_load(&job->choices[i].ticket);
        if (t != 0) scheduler_cancel(job->ctx->scheduler, t);
    }
}

static bool submit(gen_choice *c, api_error *e)
{
    gen_job *job = c->job;
    const gen_request *in = &job->in;
    const api_prompt *prompt = gen_prompt(c);
    sched_ticket ticket;
    sched_filter filter;
    calla_error err;
    calla_sampling sampling = in->sampling;
    sampling.seed += c->index;
    if (!start_parser(c, &err)) return api_from(e, NULL, &err);
    if (filter_constraint_create(&filter, in->forms, 2, job->ctx->tok, &err) != CALLA_OK)
        return api_from(e, NULL, &err);
    const sched_request r = {.prompt = prompt->ids.data,
                             .n_prompt = prompt->ids.len,
                             .sampling = &sampling,
                             .max_tokens = in->max_tokens,
                             .bias_ids = in->bias_ids,
                             .bias = in->bias,
                             .n_bias = in->n_bias,
                             .logprobs = in->logprobs,
                             .n_top_logprobs = in->n_top,
                             .boundaries = prompt->ends,
                             .n_boundaries = prompt->n_ends,
                             .in_thinking = prompt->in_thinking,
                             .limit_thinking = in->limit_thinking && prompt->in_thinking,
                             .thinking_budget = in->thinking_budget,
                             .filter = filter.user != NULL ? &filter : NULL,
                             .filter_after_thinking = prompt->in_thinking,
                             .user = c,
                             .on_progress = on_progress,
                             .on_token = on_token,
                             .on_done = on_done};
    const calla_status st = scheduler_submit(job->ctx->scheduler, &r, &ticket, &err);
    if (st == CALLA_OK) {
        atomic_store(&c->ticket, ticket);
        job->n_submitted++;
        if (atomic_load(&job->gone)) scheduler_cancel(job->ctx->scheduler, ticket);
        return true;
    }
    if (filter.user != NULL) filter.destroy(filter.user);
    if (st == CALLA_ERR_FULL)
        return api_fail(e, 429, "queue_full", NULL,
                        "The server is busy: its queue of requests is full. Try again later.");
    if (st == CALLA_ERR_CANCELLED)
        return api_fail(e, 503, "shutting_down", NULL, "The server is shutting down.");
    return api_from(e, NULL, &err);
}

/* One choice was refused: the others are called back, nothing of them is seen. Locked. */
static void withdraw(gen_job *job)
{
    job->refused = true;
    for (uint32_t i = 0; i < job->in.n; i++) {
        const sched_ticket t = atomic_load(&job->choices[i].ticket);
        if (t != 0) scheduler_cancel(job->ctx->scheduler, t);
    }
    while (job->n_done < job->n_submitted)
        (void)pthread_cond_wait(&job->changed, &job->lock);
}

static bool check_length(const gen_job *job, api_error *e)
{
    for (uint32_t i = 0; i < job->in.n; i++) {
        const api_prompt *p = gen_prompt(&job->choices[i]);
        if (p->ids.len == 0) return api_bad(e, "prompt", "it has no token");
        if (p->ids.len >= job->ctx->n_ctx)
            return api_fail(e, 400, "context_length_exceeded", job->protocol->prompt_name,
                            "The prompt has %zu tokens; this server's context holds %u, of which "
                            "at least one is for the answer.",
                            p->ids.len, job->ctx->n_ctx);
    }
    return true;
}

/* Whole answer: the handler's thread waits for it. Locked before and unlocked after. */
static void answer_whole(gen_job *job)
{
    strbuf out = {0};
    while (job->n_done < job->n_submitted)
        (void)pthread_cond_wait(&job->changed, &job->lock);
    (void)pthread_mutex_unlock(&job->lock);
    http_clear_hangup(job->req);
    note_usage(job);
    api_error e = {0};
    const gen_choice *failed = gen_failed(job);
    if (failed == NULL) {
        job->protocol->answer(job, &out);
        http_respond_json(job->req, 200, &out);
    } else {
        gen_failure(failed, &e);
        api_respond_error(job->req, &e);
    }
    gen_destroy(job);
}

void gen_run(gen_job *job)
{
    api_error e = {0};
    if (!check_length(job, &e) || !gen_constrain(job, &e)) {
        gen_refuse(job, &e);
        return;
    }
    if (job->in.stream) {
        job->sse = sse_open(job->req);
        if (job->sse == NULL) {
            (void)api_no_memory(&e);
            gen_refuse(job, &e);
            return;
        }
    }
    (void)pthread_mutex_lock(&job->lock);
    http_on_hangup(job->req, on_hangup, job);
    bool ok = true;
    for (uint32_t i = 0; i < job->in.n && ok; i++)
        ok = submit(&job->choices[i], &e);
    if (!ok) {
        withdraw(job);
        (void)pthread_mutex_unlock(&job->lock);
        http_clear_hangup(job->req);
        if (job->sse != NULL) sse_abort(job->sse);
        gen_refuse(job, &e);
    } else if (job->sse != NULL) {
        (void)pthread_mutex_unlock(&job->lock); /* from here on the job is the worker's */
    } else {
        answer_whole(job);
    }
}
