#include "bench/agent_trace.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/api_arguments.h"
#include "server/api_question.h"

#define FILE_BYTES_MAX (UINT64_C(256) << 20) /* of one record */

/* Where an object stands: lines[line] is the index of its request, UINT32_MAX for none. */
typedef struct reader {
    agent_trace *t;
    const char *where;
    const uint32_t *lines; /* [n_lines] before this one */
    size_t n_lines;
    calla_error *err;
} reader;

void agent_trace_close(agent_trace *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        mem_free(t->requests[i].where);
        mem_free(t->requests[i].path);
        mem_free(t->requests[i].body);
        mem_free(t->requests[i].time);
    }
    mem_free(t->requests);
    *t = (agent_trace){0};
}

static calla_status no_memory(calla_error *err)
{
    return err_set(err, CALLA_ERR_MEMORY, "no memory for the trace");
}

/* Takes over *body, whatever happens. */
static calla_status add(const reader *r, const json_value *object, const char *path, strbuf *body)
{
    agent_trace *t = r->t;
    int64_t n = 0;
    const json_value *time = json_get(object, "time");
    calla_status st = CALLA_OK;
    (void)json_int(json_get(json_get(object, "usage"), "generated_tokens"), &n);
    if (n < 0 || n > INT32_MAX) n = 0;
    if (t->n == AGENT_REQUESTS_MAX)
        st = err_set(r->err, CALLA_ERR_FORMAT, "%s: expected at most %u requests", r->where,
                     AGENT_REQUESTS_MAX);
    else if (body->len > AGENT_BYTES_MAX - t->bytes)
        st = err_set(r->err, CALLA_ERR_FORMAT,
                     "%s: expected at most %llu bytes of requests together", r->where,
                     (unsigned long long)AGENT_BYTES_MAX);
    if (st == CALLA_OK && t->n == t->cap) {
        const uint32_t cap = t->cap == 0 ? 64 : 2 * t->cap;
        agent_request *grown = mem_resize(t->requests, cap * sizeof *grown);
        if (grown == NULL) st = no_memory(r->err);
        if (grown != NULL) t->requests = grown;
        if (grown != NULL) t->cap = cap;
    }
    if (st != CALLA_OK) {
        strbuf_deinit(body);
        return st;
    }
    agent_request *q = &t->requests[t->n++];
    *q = (agent_request){.where = mem_strdup(r->where),
                         .path = mem_strdup(path),
                         .body = body->data,
                         .n_body = body->len,
                         .n_generated = (uint32_t)n};
    const bool timed = time != NULL && time->type == JSON_STRING;
    if (timed) q->time = mem_strdup(time->text);
    t->bytes += q->n_body;
    const bool ok = q->body != NULL && q->where != NULL && q->path != NULL;
    return ok && (!timed || q->time != NULL) ? CALLA_OK : no_memory(r->err);
}

static calla_status unexpected(const reader *r, const char *what)
{
    return err_set(r->err, CALLA_ERR_FORMAT, "%s: %s", r->where, what);
}

static void write_value(strbuf *b, const char *key, const json_value *v)
{
    if (b->len > 1) (void)strbuf_puts(b, ", ");
    (void)json_write_string(b, key, strlen(key));
    (void)strbuf_puts(b, ": ");
    (void)json_write(b, v);
}

static void write_items(strbuf *b, const json_value *array, int64_t n, bool *first)
{
    for (const json_value *m = array->first; m != NULL && n > 0; m = m->next, n--) {
        if (!*first) (void)strbuf_puts(b, ", ");
        *first = false;
        (void)json_write(b, m);
    }
}

/* base: the body that is gone on from. */
static calla_status continue_body(const reader *r, const json_value *object, const json_value *base,
                                  const char *path)
{
    const json_value *before = json_get(base, "messages"), *more = json_get(object, "messages");
    const json_value *keep = json_get(object, "keep");
    strbuf b = {.max = (size_t)AGENT_BYTES_MAX};
    bool first = true;
    if (more == NULL || more->type != JSON_ARRAY)
        return unexpected(r, "\"messages\": expected an array beside \"after\"");
    if (before == NULL || before->type != JSON_ARRAY)
        return unexpected(r, "\"after\": the request of that line has no array of messages");
    int64_t n = (int64_t)before->n_items;
    if (keep != NULL && (!json_int(keep, &n) || n < 0 || n > (int64_t)before->n_items))
        return unexpected(r, "\"keep\": expected a number of messages that the line has");
    (void)strbuf_putc(&b, '{');
    for (const json_value *m = base->first; m != NULL; m = m->next)
        if (m != before) write_value(&b, m->key, m);
    (void)strbuf_puts(&b, b.len > 1 ? ", \"messages\": [" : "\"messages\": [");
    write_items(&b, before, n, &first);
    write_items(&b, more, INT64_MAX, &first);
    (void)strbuf_puts(&b, "]}");
    if (b.failed) {
        strbuf_deinit(&b);
        return unexpected(r, "no memory, or the request is too large");
    }
    return add(r, object, path, &b);
}

static calla_status read_after(const reader *r, const json_value *object)
{
    int64_t line;
    json_doc doc = {0};
    if (!json_int(json_get(object, "after"), &line) || line < 1 || (uint64_t)line > r->n_lines ||
        r->lines[line - 1] == UINT32_MAX)
        return unexpected(r, "\"after\": expected the number of an earlier line with a request");
    const agent_request *base = &r->t->requests[r->lines[line - 1]];
    const json_limits limits = {.what = base->where, .max_depth = API_JSON_DEPTH};
    calla_status st = json_parse(&doc, base->body, base->n_body, &limits, r->err);
    if (st == CALLA_OK) st = continue_body(r, object, doc.root, base->path);
    json_free(&doc);
    return st;
}

static calla_status leave_out(const reader *r)
{
    r->t->n_left_out++;
    return CALLA_OK;
}

static calla_status read_record(const reader *r, const json_value *object)
{
    const json_value *body = json_get(object, "request"), *path = json_get(object, "path");
    int64_t status = 200;
    strbuf b = {0};
    if (path != NULL && path->type != JSON_STRING)
        return unexpected(r, "\"path\": expected a string");
    const char *route = path != NULL ? path->text : "/v1/chat/completions";
    (void)json_int(json_get(object, "status"), &status);
    if (status != 200 || !api_question_path(route)) return leave_out(r);
    if (body->type == JSON_STRING)
        (void)strbuf_append(&b, body->text, body->n_text);
    else if (body->type == JSON_OBJECT)
        (void)json_write(&b, body);
    else
        return unexpected(r, "\"request\": expected a string or an object");
    return add(r, object, route, &b);
}

static calla_status read_object(const reader *r, const char *data, size_t n)
{
    const json_limits limits = {.what = r->where, .max_depth = API_JSON_DEPTH + 2};
    json_doc doc = {0};
    strbuf b = {0};
    calla_status st = json_parse(&doc, data, n, &limits, r->err);
    if (st != CALLA_OK) return st;
    const json_value *o = doc.root;
    if (o->type != JSON_OBJECT) {
        st = unexpected(r, "expected an object");
    } else if (json_get(o, "request_hex") != NULL) {
        st = leave_out(r);
    } else if (json_get(o, "request") != NULL) {
        st = read_record(r, o);
    } else if (json_get(o, "after") != NULL) {
        st = read_after(r, o);
    } else if (json_get(o, "messages") != NULL || json_get(o, "input") != NULL) {
        (void)strbuf_append(&b, data, n);
        st = add(r, o, json_get(o, "input") != NULL ? "/v1/responses" : "/v1/chat/completions", &b);
    } else {
        st = unexpected(r, "expected \"messages\", \"input\", \"request\" or \"after\"");
    }
    json_free(&doc);
    return st;
}

/* ---- A file ---- */

static bool is_blank(const char *s, size_t n)
{
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t' || s[n - 1] == '\r'))
        n--;
    return n == 0;
}

static calla_status parse_lines(agent_trace *out, const char *name, const char *data, size_t n,
                                uint32_t *lines, calla_error *err)
{
    calla_status st = CALLA_OK;
    strbuf where = {0};
    size_t line = 0;
    for (size_t at = 0; at < n && st == CALLA_OK; line++) {
        const char *end = memchr(data + at, '\n', n - at);
        const size_t len = end != NULL ? (size_t)(end - data) - at : n - at;
        const uint32_t before = out->n;
        strbuf_clear(&where);
        if (!strbuf_printf(&where, "%s:%zu", name, line + 1)) st = no_memory(err);
        const reader r = {out, where.data, lines, line, err};
        if (st == CALLA_OK && !is_blank(data + at, len)) st = read_object(&r, data + at, len);
        lines[line] = out->n > before ? before : UINT32_MAX;
        at += len + 1;
    }
    strbuf_deinit(&where);
    return st;
}

static calla_status need_one(const agent_trace *t, const char *name, calla_error *err)
{
    if (t->n != 0) return CALLA_OK;
    return err_set(err, CALLA_ERR_FORMAT,
                   "%s: no request there that has messages and was answered (%u others)", name,
                   t->n_left_out);
}

calla_status agent_trace_parse(agent_trace *out, const char *name, const char *data, size_t n,
                               calla_error *err)
{
    size_t n_lines = 1;
    *out = (agent_trace){0};
    for (size_t i = 0; i < n; i++)
        n_lines += data[i] == '\n';
    uint32_t *lines = mem_array(n_lines, sizeof *lines);
    if (lines == NULL) return no_memory(err);
    calla_status st = parse_lines(out, name, data, n, lines, err);
    if (st == CALLA_OK) st = need_one(out, name, err);
    mem_free(lines);
    if (st != CALLA_OK) agent_trace_close(out);
    return st;
}

/* ---- A folder ---- */

static bool is_record(const char *name)
{
    const size_t n = strlen(name);
    return name[0] != '.' && n > 5 && strcmp(name + n - 5, ".json") == 0;
}

static calla_status read_one(agent_trace *t, const char *dir, const char *name, calla_error *err)
{
    char *path = path_join(dir, name), *data = NULL;
    size_t n = 0;
    calla_status st = path != NULL ? CALLA_OK : no_memory(err);
    if (st == CALLA_OK) st = file_read(path, FILE_BYTES_MAX, &data, &n, err);
    const reader r = {.t = t, .where = path, .err = err};
    if (st == CALLA_OK) st = read_object(&r, data, n);
    mem_free(data);
    mem_free(path);
    return st;
}

/* By time; files without one first; then by name, which begins with the time too. */
static int by_time(const void *a, const void *b)
{
    const agent_request *x = a, *y = b;
    const int order = strcmp(x->time != NULL ? x->time : "", y->time != NULL ? y->time : "");
    return order != 0 ? order : strcmp(x->where, y->where);
}

static calla_status read_folder(agent_trace *t, const char *path, calla_error *err)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    calla_status st = CALLA_OK;
    if (dir == NULL) return err_set(err, CALLA_ERR_IO, "%s: %s", path, strerror(errno));
    while (st == CALLA_OK && (entry = readdir(dir)) != NULL)
        if (is_record(entry->d_name)) st = read_one(t, path, entry->d_name, err);
    (void)closedir(dir);
    if (st == CALLA_OK) st = need_one(t, path, err);
    if (st == CALLA_OK) qsort(t->requests, t->n, sizeof *t->requests, by_time);
    if (st != CALLA_OK) agent_trace_close(t);
    return st;
}

calla_status agent_trace_open(agent_trace *out, const char *path, calla_error *err)
{
    struct stat s;
    char *data = NULL;
    size_t n = 0;
    *out = (agent_trace){0};
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode)) return read_folder(out, path, err);
    calla_status st = file_read(path, AGENT_BYTES_MAX, &data, &n, err);
    if (st == CALLA_OK) st = agent_trace_parse(out, path, data, n, err);
    mem_free(data);
    return st;
}
