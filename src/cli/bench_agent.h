/* bench_agent.h - calla bench --agent: its options, and the table while it runs. */
#ifndef CALLA_CLI_BENCH_AGENT_H
#define CALLA_CLI_BENCH_AGENT_H

#include "bench/agent.h"

typedef struct bench_agent {
    int on, no_cache;
    uint64_t n_turns, n_ctx; /* 0: not given */
    const char *cache_ram;   /* NULL: not given */
    uint64_t cache_bytes;    /* what it says */
    const char *trace;       /* NULL: that of the package */
} bench_agent;

calla_status bench_agent_run(const bench_agent *o, calla_engine *engine, agent_result *out,
                             calla_error *err);

#endif
