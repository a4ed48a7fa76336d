/* agent.h - what a recorded conversation costs, turn by turn, with the prefix cache and without.
 *
 * Does:       replays a trace (agent_trace.h) through the server's own reading of requests, prompt
 *             and boundaries (server/api_question.h) and a scheduler with the server's prefix
 *             cache, one request after the other. Each turn generates, greedily and through stop
 *             tokens, as many tokens as the recorded answer has: those that were recorded; else
 *             those of the answer that a later request sends along; else what the request allows,
 *             AGENT_ANSWER_TOKENS at most. The tokens just generated then stand in later prompts
 *             where the recorded answer stands, as they would in a server that gave that answer.
 *             With no_cache each turn is asked twice, of two schedulers of one engine, first of one
 *             and first of the other by turns, and the answers are compared.
 * Times:      of a turn, from its body's bytes to its first and to its last token: parsing,
 *             rendering and tokenizing count, HTTP does not. A request of its own warms up.
 * Owns:       the result owns its turns.
 * Threads:    the caller's, and the schedulers'.
 * Errors:     a request that cannot be read ends it, naming the trace's line. Turns that do not fit
 *             the context are left out and counted. Answers that differ are no error here.
 */
#ifndef CALLA_BENCH_AGENT_H
#define CALLA_BENCH_AGENT_H

#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"

#define AGENT_ANSWER_TOKENS 64u
#define AGENT_CACHE_BYTES   (UINT64_C(2) << 30) /* the server's default */

typedef struct agent_cost {
    uint32_t n_prompt, n_cached;
    double first_token_s; /* to the first token */
    double total_s;       /* to the last */
} agent_cost;

typedef struct agent_turn {
    uint32_t request; /* in the trace, from 1 */
    uint32_t n_generated;
    agent_cost cache, plain; /* plain: without the cache; zero unless no_cache */
    bool differs;            /* plain's answer is another */
} agent_turn;

typedef struct agent_options {
    calla_engine *engine; /* with a tokenizer */
    const char *trace;
    bool no_cache;
    uint32_t n_turns;     /* at most so many; 0: all */
    uint32_t n_ctx;       /* tokens a turn can have; 0: what the trace needs, if the model can */
    uint64_t cache_bytes; /* 0: AGENT_CACHE_BYTES, or less where memory is short */
    /* After each turn; of: how many there are at most. NULL: nobody. */
    void (*on_turn)(void *user, const agent_turn *turn, uint32_t of);
    void *user;
} agent_options;

typedef struct agent_result {
    agent_turn *turns; /* [n] */
    uint32_t n;
    uint32_t n_left_out; /* of the trace: other paths, failed requests */
    uint32_t n_too_long; /* did not fit the context */
    uint32_t n_differ;
    uint32_t n_ctx;
    uint64_t cache_bytes, cache_limit_bytes; /* used at the end */
    bool no_cache;
} agent_result;

calla_status agent_run(agent_result *out, const agent_options *options, calla_error *err);
void agent_result_deinit(agent_result *r); /* zeroed struct is fine */

/* Sums over the turns; those of plain are zero without no_cache. */
typedef struct agent_total {
    uint64_t n_prompt, n_cached, n_generated, n_plain_computed;
    double first_token_s, total_s, plain_first_token_s, plain_total_s;
    double first_token_median_s, first_token_max_s;
    double plain_first_token_median_s, plain_first_token_max_s;
} agent_total;
agent_total agent_sum(const agent_result *r);

/* A table for people, a row a turn. */
void agent_print_head(FILE *f, bool no_cache);
void agent_print_turn(FILE *f, const agent_turn *turn, bool no_cache);
void agent_print_total(FILE *f, const agent_result *r);
/* "agent": [...], "agent_total": {...}: members of a JSON object; lines of CSV with their head. */
void agent_put_json(strbuf *b, const agent_result *r);
void agent_put_csv(strbuf *b, const agent_result *r);

#endif
