/* engine_fake.h - an engine on the null device, for tests of what stands above the executor. */
#ifndef CALLA_TESTS_ENGINE_FAKE_H
#define CALLA_TESTS_ENGINE_FAKE_H

#include <string.h>

#include "engine/session.h"
#include "exec/null.h"

#define FAKE_VOCAB 97u

static bool fake_streams; /* fake engines have them */

/* No tokenizer, no stop ids; the caller may add them: the struct is not opaque here. */
static inline calla_engine *fake_engine(uint32_t chunk_tokens)
{
    calla_error err;
    calla_engine *e = mem_alloc(sizeof *e);
    assert_non_null(e);
    e->shape = (model_shape){.n_vocab = FAKE_VOCAB, .max_context = 1000};
    e->chunk_tokens = chunk_tokens;
    assert_int_equal(exec_null_create(&e->ex, FAKE_VOCAB, chunk_tokens, &err), CALLA_OK);
    if (fake_streams) exec_null_streams(e->ex, UINT64_MAX);
    assert_int_equal(engine_assemble(e, &err), CALLA_OK);
    return e;
}

static inline calla_session *fake_session(calla_engine *e, uint32_t n_ctx)
{
    calla_error err;
    calla_session *s;
    const calla_session_options options = {.n_ctx = n_ctx};
    if (calla_session_create(&s, e, &options, &err) != CALLA_OK) fail_msg("%s", err.message);
    return s;
}

/* n pseudo-random ids below n_vocab. */
static inline void fake_ids(int32_t *ids, size_t n, uint32_t n_vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((seed >> 33) % n_vocab);
    }
}

#endif
