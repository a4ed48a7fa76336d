/* output_check.h - runs the output parser over one output, whole and cut up, and holds the results
 * against what output.h promises. Shared by test_output.c and fuzz_output.c.
 */
#ifndef OUTPUT_CHECK_H
#define OUTPUT_CHECK_H

#include <string.h>
#include "base/attrs.h"
#include "text/output.h"

/* Tools with every declared type; `{}` ends the list of what the parser may meet. */
#define CHECK_TOOLS                                                                                \
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "         \
    "{\"type\": \"object\", \"$defs\": {\"T\": {\"type\": \"string\"}}, \"properties\": "          \
    "{\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}, "                       \
    "\"opts\": {\"type\": \"object\"}, \"tags\": {\"type\": \"array\"}, "                          \
    "\"lat\": {\"type\": \"number\"}, \"metric\": {\"type\": \"boolean\"}, "                       \
    "\"note\": {\"type\": [\"string\", \"null\"]}, "                                               \
    "\"when\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}, "                     \
    "\"any\": {\"type\": [\"number\", \"object\", \"string\"]}, "                                  \
    "\"ref\": {\"$ref\": \"#/$defs/T\"}, \"mode\": {\"enum\": [\"a\", \"b\"]}}}}}, "               \
    "{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {}, \"b\": {\"type\": "            \
    "\"int\"}}}}, {\"type\": \"function\", \"function\": {\"name\": \"list_files\"}}, {}]"

typedef struct check_log {
    strbuf text;       /* all events; neighbours of one kind are one */
    int last;          /* kind of the last one, or -1 */
    bool in_call;      /* between begin and end */
    uint32_t n_calls;  /* ended */
    const char *fault; /* first broken promise, or NULL */
    strbuf args;       /* of the call at hand */
    strbuf part[2];    /* reasoning, content */
} check_log;

static inline uint64_t check_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void check_that(check_log *l, bool ok, const char *promise)
{
    if (!ok && l->fault == NULL) l->fault = promise;
}

static inline bool check_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        size_t more = c < 0x80 ? 0 : c < 0xc2 ? 9 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : 9;
        if (more > n - i - 1) return false;
        for (; more > 0; more--)
            if (((unsigned char)s[++i] & 0xc0) != 0x80) return false;
    }
    return true;
}

static inline bool check_object(const char *s, size_t n)
{
    const json_limits limits = {.max_depth = 80};
    json_doc doc = {0};
    const bool ok =
        json_parse(&doc, s, n, &limits, NULL) == CALLA_OK && doc.root->type == JSON_OBJECT;
    json_free(&doc);
    return ok;
}

static inline void check_event(void *user, const output_event *e)
{
    check_log *l = user;
    const bool same = l->last == (int)e->kind && e->kind != OUTPUT_CALL_BEGIN;
    const bool call = e->kind >= OUTPUT_CALL_BEGIN;
    check_that(l, check_utf8(e->text, e->n), "an event is no whole UTF-8");
    check_that(l, e->n > 0 || e->kind == OUTPUT_CALL_END, "an event is empty");
    check_that(l, call == (l->in_call || e->kind == OUTPUT_CALL_BEGIN), "text inside a call");
    check_that(l, !call || e->index == l->n_calls, "wrong index");
    if (!same) (void)strbuf_printf(&l->text, "\n[%d %u] ", (int)e->kind, call ? e->index : 0);
    (void)strbuf_append(&l->text, e->text, e->n);
    l->last = (int)e->kind;
    switch (e->kind) {
    case OUTPUT_REASONING:
    case OUTPUT_CONTENT:
        (void)strbuf_append(&l->part[e->kind == OUTPUT_CONTENT], e->text, e->n);
        break;
    case OUTPUT_CALL_BEGIN:
        check_that(l, !l->in_call, "a call begins inside a call");
        l->in_call = true;
        strbuf_clear(&l->args);
        break;
    case OUTPUT_CALL_ARGS:
        (void)strbuf_append(&l->args, e->text, e->n);
        break;
    case OUTPUT_CALL_END:
        (void)strbuf_puts(&l->text, e->complete ? " whole" : " cut");
        check_that(l, e->complete ? e->n == 0 : e->n > 0, "closing text");
        if (!e->complete)
            check_that(l, !check_object(l->args.len > 0 ? l->args.data : "", l->args.len),
                       "a cut call passes for whole");
        (void)strbuf_append(&l->args, e->text, e->n);
        check_that(l, check_object(l->args.data, l->args.len), "arguments are no JSON object");
        l->in_call = false;
        l->n_calls++;
        break;
    }
}

typedef struct check_input {
    const char *bytes;
    size_t n;
    const json_value *tools;
    bool reasoning, truncated, after; /* after: call_after_reasoning */
} check_input;

/* Cuts of random length up to max_cut (0: one push). False: memory ran out. */
static inline bool check_parse(check_log *l, const check_input *in, size_t max_cut, uint64_t seed)
{
    const output_options o = {.start_in_reasoning = in->reasoning,
                              .call_after_reasoning = in->after,
                              .tools = in->tools,
                              .on_event = check_event,
                              .user = l};
    output_parser *p;
    *l = (check_log){.last = -1};
    if (output_parser_create(&p, &o, NULL) != CALLA_OK) return false;
    bool ok = true;
    for (size_t i = 0; i < in->n && ok;) {
        size_t k = max_cut == 0 ? in->n : 1 + (size_t)(check_random(&seed) % max_cut);
        if (k > in->n - i) k = in->n - i;
        ok = output_parser_push(p, in->bytes + i, k) == CALLA_OK;
        i += k;
    }
    ok = output_parser_finish(p, in->truncated) == CALLA_OK && ok;
    output_parser_destroy(p);
    check_that(l, !ok || !l->in_call, "a call has no end");
    for (int i = 0; i < 2; i++) {
        const strbuf *b = &l->part[i];
        check_that(l, b->len == 0 || (b->data[0] != '\n' && b->data[b->len - 1] != '\n'),
                   "newlines at an end");
    }
    check_that(l, in->tools != NULL || l->n_calls == 0, "a call without tools");
    return ok;
}

static inline void check_log_deinit(check_log *l)
{
    strbuf_deinit(&l->text);
    strbuf_deinit(&l->args);
    strbuf_deinit(&l->part[0]);
    strbuf_deinit(&l->part[1]);
}

static inline bool check_same(const check_log *a, const check_log *b)
{
    return a->text.len == b->text.len &&
           (a->text.len == 0 || memcmp(a->text.data, b->text.data, a->text.len) == 0);
}

/* NULL, or the promise that was broken: whole, and cut into pieces of up to max_cut bytes. */
static inline const char *check_output(const check_input *in, size_t max_cut, uint64_t seed)
{
    check_log whole, cut;
    const bool ok = check_parse(&whole, in, 0, seed);
    const bool ok_cut = check_parse(&cut, in, max_cut, seed);
    const char *fault = whole.fault != NULL         ? whole.fault
                        : cut.fault != NULL         ? cut.fault
                        : !ok || !ok_cut            ? "no memory"
                        : !check_same(&whole, &cut) ? "another way of cutting, other events"
                                                    : NULL;
    check_log_deinit(&whole);
    check_log_deinit(&cut);
    return fault;
}

#endif
