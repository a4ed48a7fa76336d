/* Traces of requests, as lines: nothing but sentences for what is wrong; what is read is within its
 * limits and of paths that take messages. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bench/agent_trace.h"
#include "server/api_question.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    agent_trace t;
    calla_error err;
    if (agent_trace_parse(&t, "t", (const char *)data, size, &err) != CALLA_OK) {
        must(t.n == 0 && t.requests == NULL);
        must(strncmp(err.message, "t", 1) == 0 && strlen(err.message) > 5);
        return 0;
    }
    uint64_t bytes = 0;
    must(t.n > 0 && t.n <= AGENT_REQUESTS_MAX);
    for (uint32_t i = 0; i < t.n; i++) {
        const agent_request *q = &t.requests[i];
        must(api_question_path(q->path) && strncmp(q->where, "t:", 2) == 0);
        must(q->body != NULL && strlen(q->body) <= q->n_body);
        bytes += q->n_body;
    }
    must(bytes == t.bytes);
    agent_trace_close(&t);
    return 0;
}
