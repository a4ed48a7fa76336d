/* api_support.h - the handlers on the demonstration model, with an HTTP layer that only records. */
#ifndef CALLA_TESTS_API_SUPPORT_H
#define CALLA_TESTS_API_SUPPORT_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "server/api.h"
#include "base/json.h"

#define MODEL_DIR "models/nano"

/* ---- What a request heard ---- */

struct sse_stream {
    http_request *req;
    strbuf log; /* events as they would go out */
    bool closed, aborted;
    unsigned n_events, fail_after; /* 0: never */
};

typedef struct fake {
    http_request req; /* first */
    unsigned status;  /* 0: not answered */
    strbuf body;
    char param[128], code[64];
    sse_stream sse;
    bool has_sse;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    http_hangup_fn hangup;
    void *hangup_user;
    http_usage usage;
    unsigned n_tokens;
    json_doc doc; /* of the whole answer */
} fake;

static inline fake *fake_of(const http_request *req)
{
    union {
        const http_request *in;
        fake *out;
    } u = {.in = req};
    return u.out;
}

void http_respond_json(http_request *req, unsigned status, strbuf *body)
{
    fake *f = fake_of(req);
    assert_int_equal(f->status, 0);
    assert_false(body->failed);
    f->status = status;
    f->body = *body;
    *body = (strbuf){0};
}

void http_error_object(const http_request *req, strbuf *out, const http_error *e,
                       const char *message)
{
    (void)req;
    (void)strbuf_printf(out, "{\"error\":{\"status\":%u,\"message\":", e->status);
    (void)json_write_string(out, message, strlen(message));
    (void)strbuf_puts(out, "}}");
}

void http_respond_error(http_request *req, const http_error *e, const char *fmt, ...)
{
    fake *f = fake_of(req);
    char text[1024];
    va_list args;
    strbuf b = {0};
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)snprintf(f->param, sizeof f->param, "%s", e->param != NULL ? e->param : "");
    (void)snprintf(f->code, sizeof f->code, "%s", e->code != NULL ? e->code : "");
    http_error_object(req, &b, e, text);
    http_respond_json(req, e->status, &b);
}

sse_stream *sse_open(http_request *req)
{
    fake *f = fake_of(req);
    f->sse.req = req;
    f->has_sse = true;
    return &f->sse;
}

void sse_abort(sse_stream *s)
{
    s->aborted = true;
    strbuf_clear(&s->log);
    fake_of(s->req)->has_sse = false;
}

bool sse_send(sse_stream *s, const char *event, const char *data, size_t n)
{
    fake *f = fake_of(s->req);
    (void)pthread_mutex_lock(&f->lock);
    assert_false(s->closed);
    if (event != NULL) (void)strbuf_printf(&s->log, "event: %s\n", event);
    (void)strbuf_puts(&s->log, "data: ");
    (void)strbuf_append(&s->log, data, n);
    (void)strbuf_puts(&s->log, "\n\n");
    s->n_events++;
    const bool ok = s->fail_after == 0 || s->n_events < s->fail_after;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
    return ok;
}

void sse_close(sse_stream *s)
{
    fake *f = fake_of(s->req);
    (void)pthread_mutex_lock(&f->lock);
    assert_false(s->closed);
    s->closed = true;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
}

void http_on_hangup(http_request *req, http_hangup_fn fn, void *user)
{
    fake_of(req)->hangup = fn;
    fake_of(req)->hangup_user = user;
}

void http_clear_hangup(http_request *req)
{
    fake_of(req)->hangup = NULL;
}

void http_note_usage(http_request *req, const http_usage *usage)
{
    fake_of(req)->usage = *usage;
}

void http_note_token(http_request *req)
{
    fake_of(req)->n_tokens++;
}

/* ---- The model ---- */

typedef struct world {
    calla_engine *engine;
    scheduler *sched;
    api_ctx *ctx;
} world;

static inline void world_open(world *w, const scheduler_options *so)
{
    calla_error err;
    const calla_engine_options eo = {.model_dir = MODEL_DIR, .n_threads = 1};
    if (calla_engine_create(&w->engine, &eo, &err) != CALLA_OK) fail_msg("%s", err.message);
    if (scheduler_create(&w->sched, w->engine, so, &err) != CALLA_OK) fail_msg("%s", err.message);
    const api_options ao = {.engine = w->engine, .scheduler = w->sched, .model_name = "nano"};
    if (api_create(&w->ctx, &ao, &err) != CALLA_OK) fail_msg("%s", err.message);
}

static inline void world_close(world *w)
{
    scheduler_destroy(w->sched);
    api_destroy(w->ctx);
    calla_engine_destroy(w->engine);
}

/* ---- Asking ---- */

static inline fake *fake_new(const char *body, size_t n)
{
    fake *f = mem_alloc(sizeof *f);
    assert_non_null(f);
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->changed, NULL);
    f->req = (http_request){.id = 1,
                            .id_text = "req_1",
                            .method = "POST",
                            .path = "/",
                            .tail = "",
                            .body = body,
                            .n_body = n};
    return f;
}

static inline void fake_free(fake *f)
{
    strbuf_deinit(&f->body);
    strbuf_deinit(&f->sse.log);
    json_free(&f->doc);
    (void)pthread_cond_destroy(&f->changed);
    (void)pthread_mutex_destroy(&f->lock);
    mem_free(f);
}

static inline void fake_wait(fake *f)
{
    (void)pthread_mutex_lock(&f->lock);
    while (f->has_sse && !f->sse.closed)
        (void)pthread_cond_wait(&f->changed, &f->lock);
    (void)pthread_mutex_unlock(&f->lock);
}

/* Runs a handler to the end; parses a JSON answer. */
static inline fake *ask_n(world *w, http_handler fn, const char *body, size_t n)
{
    fake *f = fake_new(body, n);
    calla_error err;
    fn(w->ctx, &f->req);
    fake_wait(f);
    if (f->status != 0) {
        assert_false(f->has_sse);
        if (json_parse(&f->doc, f->body.data, f->body.len, NULL, &err) != CALLA_OK)
            fail_msg("%s\n%s", err.message, f->body.data);
    }
    return f;
}

static inline fake *ask(world *w, http_handler fn, const char *body)
{
    return ask_n(w, fn, body, strlen(body));
}

/* A path like "choices.0.message.content" into the answer. */
static inline const json_value *at(const json_value *v, const char *path)
{
    char part[64];
    while (v != NULL && *path != '\0') {
        const size_t n = strcspn(path, ".");
        (void)snprintf(part, sizeof part, "%.*s", (int)n, path);
        v = v->type == JSON_ARRAY ? json_at(v, (size_t)strtoul(part, NULL, 10)) : json_get(v, part);
        path += n + (path[n] == '.');
    }
    return v;
}

static inline const char *text_at(const fake *f, const char *path)
{
    const json_value *v = at(f->doc.root, path);
    if (v == NULL || v->text == NULL)
        fail_msg("no text at %s in %s", path, f->body.data != NULL ? f->body.data : "(nothing)");
    return v->text;
}

/* The data of the i-th event, parsed; NULL behind the last one or for [DONE]. */
static inline json_value *event_at(const fake *f, size_t i, json_doc *doc)
{
    const char *s = f->sse.log.data;
    for (size_t k = 0;; k++) {
        s = s != NULL ? strstr(s, "data: ") : NULL;
        if (s == NULL) return NULL;
        s += 6;
        if (k == i) break;
    }
    const char *end = strstr(s, "\n\n");
    if (strncmp(s, "[DONE]", 6) == 0) return NULL;
    calla_error err;
    if (json_parse(doc, s, (size_t)(end - s), NULL, &err) != CALLA_OK)
        fail_msg("%s: %s", err.message, s);
    return doc->root;
}

/* All strings at `path` of all events, joined. */
static inline void join_events(const fake *f, const char *path, strbuf *out)
{
    for (size_t i = 0; i < f->sse.n_events; i++) {
        json_doc doc = {0};
        const json_value *v = event_at(f, i, &doc);
        v = v != NULL ? at(v, path) : NULL;
        if (v != NULL && v->type == JSON_STRING) (void)strbuf_append(out, v->text, v->n_text);
        json_free(&doc);
    }
}

#endif
