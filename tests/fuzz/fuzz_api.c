/* Requests of the APIs, through the handlers, on the null device with the demonstration model's
 * tokenizer. The first byte chooses the route; the rest is the body. Checked: exactly one answer,
 * which is JSON; 200, 400 or 503, never 500; streams end; the scheduler has nothing left. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must_at(int ok, const char *what, int line)
{
    if (ok) return;
    (void)fprintf(stderr, "line %d: %s\n", line, what);
    abort();
}

/* What the support headers use of cmocka. */
#define must(x)                must_at((x), #x, __LINE__)
#define assert_true(x)         must(x)
#define assert_false(x)        must(!(x))
#define assert_non_null(x)     must((x) != NULL)
#define assert_int_equal(a, b) must((a) == (b))
#define fail_msg(...)          must_at(((void)printf(__VA_ARGS__), 0), "failed", __LINE__)

#include "unit/api_support.h"
#include "unit/engine_fake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const http_handler handlers[] = {api_chat,         api_completions, api_messages,
                                        api_count_tokens, api_responses,   api_tokenize,
                                        api_detokenize};

/* Left to the end of the process: one world serves all inputs. */
static world *get_world(void)
{
    static world w;
    calla_error err;
    if (w.ctx != NULL) return &w;
    calla_tokenizer *tok = NULL;
    calla_engine *e = mem_alloc(sizeof *e);
    must(e != NULL && calla_tokenizer_open(&tok, MODEL_DIR, &err) == CALLA_OK);
    e->tok = tok;
    e->shape =
        (model_shape){.n_vocab = 4096, .max_context = 1000, .n_stop_ids = 1, .stop_ids = {4034}};
    e->chunk_tokens = 64;
    must(exec_null_create(&e->ex, 4096, 64, &err) == CALLA_OK);
    must(engine_assemble(e, &err) == CALLA_OK);
    w.engine = e;
    const scheduler_options so = {
        .n_parallel = 2, .n_ctx = 400, .cache_ram_bytes = UINT64_C(16) << 20};
    must(scheduler_create(&w.sched, e, &so, &err) == CALLA_OK);
    const api_options ao = {.engine = e, .scheduler = w.sched, .replay_bytes = 4096};
    must(api_create(&w.ctx, &ao, &err) == CALLA_OK);
    return &w;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world *w = get_world();
    if (size == 0) return 0;
    const size_t n = size - 1;
    char *body = mem_memdup(data + 1, n);
    must(body != NULL);
    fake *f = ask_n(w, handlers[data[0] % (sizeof handlers / sizeof *handlers)], body, n);
    if (f->has_sse) {
        must(f->status == 0 && f->sse.closed && f->sse.n_events > 0);
    } else {
        must(f->status == 200 || f->status == 400 || f->status == 503);
        if (f->status == 400) must(strlen(text_at(f, "error.message")) > 5);
    }
    fake_free(f);
    mem_free(body);
    return 0;
}
