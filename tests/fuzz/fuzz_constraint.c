/* fuzz_constraint.c - a schema (or tools), a zero byte, a document: the compiler takes anything;
 * however the document is cut, the answer is the same; what is accepted is JSON; and there is no
 * dead end. */
#include <stdlib.h>
#include <string.h>

#include "text/constraint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Accepted bytes, one by one; *end: the text could end there. */
static size_t bytewise(constraint *c, const char *s, size_t n, bool *end)
{
    size_t i = 0;
    constraint_reset(c);
    while (i < n && constraint_advance(c, s + i, 1))
        i++;
    *end = constraint_may_end(c);
    return i;
}

static void check_dead_end(constraint *c)
{
    if (constraint_may_end(c)) return;
    for (int b = 0; b < 256; b++) {
        const char byte = (char)b;
        if (constraint_try(c, &byte, 1)) return;
    }
    abort();
}

static void check(constraint *c, const char *s, size_t n, bool is_json)
{
    bool end, all_end;
    const size_t n_ok = bytewise(c, s, n, &end);
    check_dead_end(c);
    constraint_reset(c);
    if (n != 0 && constraint_try(c, s, n) != (n_ok == n)) abort();
    if (n_ok == 0) return;
    if (!constraint_advance(c, s, n_ok)) abort();
    all_end = constraint_may_end(c);
    if (all_end != end) abort();
    constraint_reset(c);
    const size_t half = n_ok / 2;
    if (!constraint_advance(c, s, half) || !constraint_advance(c, s + half, n_ok - half)) abort();
    if (constraint_may_end(c) != end) abort();
    json_doc doc = {0};
    if (is_json && end && json_parse(&doc, s, n_ok, NULL, NULL) != CALLA_OK) abort();
    json_free(&doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size == 0 ? NULL : memchr(data, 0, size);
    const size_t n_schema = zero == NULL ? size : (size_t)(zero - data);
    const char *text = zero == NULL ? "" : (const char *)zero + 1;
    const size_t n_text = zero == NULL ? 0 : size - n_schema - 1;
    json_doc doc = {0};
    if (n_schema > 2000 || json_parse(&doc, (const char *)data, n_schema, NULL, NULL) != CALLA_OK)
        return 0;
    constraint *c;
    if (doc.root->type == JSON_ARRAY) {
        const constraint_tool_options o = {
            .tools = doc.root, .parallel = true, .mode = CONSTRAINT_TOOLS_AUTO};
        if (constraint_tool_calls(&c, &o, NULL) == CALLA_OK) check(c, text, n_text, false);
    } else if (constraint_json_schema(&c, doc.root, false, NULL) == CALLA_OK) {
        check(c, text, n_text, true);
    }
    constraint_destroy(c);
    json_free(&doc);
    return 0;
}
