/* constraint_batch.c - constraints on many cases, for tools/oracle/check_constraint.py.
 *
 * One JSON object a line: {"schema": ..., "docs": [texts], "walks": n, "seed": s} or, with "tools",
 * {"tools": [...], "parallel": bool, "auto": bool, ...}. One line out: {"error": [code, sentence]}
 * or
 * {"docs": [accepted?], "walks": [texts], "states": n}.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "support/constraint_walk.h"

static void fail(const char *what)
{
    fprintf(stderr, "constraint_batch: %s\n", what);
    exit(1);
}

static calla_status create(constraint **c, const json_value *job, calla_error *err)
{
    const json_value *tools = json_get(job, "tools"), *strict = json_get(job, "strict");
    const json_value *parallel = json_get(job, "parallel"), *is_auto = json_get(job, "auto");
    if (tools == NULL)
        return constraint_json_schema(c, json_get(job, "schema"),
                                      strict != NULL && strict->type == JSON_TRUE, err);
    const constraint_tool_options o = {.tools = tools,
                                       .parallel = parallel != NULL && parallel->type == JSON_TRUE,
                                       .mode = is_auto != NULL && is_auto->type == JSON_TRUE
                                                   ? CONSTRAINT_TOOLS_AUTO
                                                   : CONSTRAINT_TOOLS_REQUIRED};
    return constraint_tool_calls(c, &o, err);
}

static void run_docs(constraint *c, const json_value *docs, strbuf *out)
{
    for (const json_value *d = docs == NULL ? NULL : docs->first; d != NULL; d = d->next) {
        constraint_reset(c);
        const bool could = constraint_try(c, d->text, d->n_text);
        const bool ok = d->n_text != 0 && constraint_advance(c, d->text, d->n_text);
        if (could != ok) fail("try and advance differ");
        constraint_reset(c);
        bool each = d->n_text != 0;
        for (size_t i = 0; i < d->n_text && each; i++)
            each = constraint_advance(c, d->text + i, 1);
        if (each != ok) fail("bytes one by one differ");
        strbuf_puts(out, d == docs->first ? "" : ", ");
        strbuf_puts(out, ok && constraint_may_end(c) ? "true" : "false");
    }
}

static void run_walks(constraint *c, const json_value *job, strbuf *out)
{
    int64_t n = 0, seed = 1;
    (void)json_int(json_get(job, "walks"), &n);
    (void)json_int(json_get(job, "seed"), &seed);
    walk_random r = {(uint64_t)seed};
    for (int64_t i = 0; i < n; i++) {
        strbuf text = {0};
        bool stuck;
        constraint_reset(c);
        const bool ok = walk(c, &r, &text, &stuck);
        if (stuck) {
            fprintf(stderr, "stuck after %zu bytes: %s\n", text.len, text.data);
            fail("nothing could come next");
        }
        strbuf_puts(out, i == 0 ? "" : ", ");
        if (ok)
            json_write_string(out, text.len == 0 ? "" : text.data, text.len);
        else
            strbuf_puts(out, "null");
        strbuf_deinit(&text);
    }
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_doc doc = {0};
        calla_error err = {0};
        strbuf out = {0};
        const json_limits limits = {.max_depth = 200};
        if (json_parse(&doc, line, (size_t)n, &limits, &err) != CALLA_OK) fail(err.message);
        constraint *c;
        if (create(&c, doc.root, &err) != CALLA_OK) {
            strbuf_printf(&out, "{\"error\": [%d, ", (int)err.code);
            json_write_string(&out, err.message, strlen(err.message));
            strbuf_puts(&out, "]}");
        } else {
            strbuf_puts(&out, "{\"docs\": [");
            run_docs(c, json_get(doc.root, "docs"), &out);
            strbuf_puts(&out, "], \"walks\": [");
            run_walks(c, doc.root, &out);
            strbuf_printf(&out, "], \"states\": %u}", constraint_n_states(c));
            constraint_destroy(c);
        }
        puts(out.data);
        fflush(stdout);
        strbuf_deinit(&out);
        json_free(&doc);
    }
    free(line);
    return 0;
}
