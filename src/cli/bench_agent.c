#include "cli/bench_agent.h"

#include "cli/cli.h"
#include "cli/term.h"

typedef struct view {
    bool no_cache;
    term_progress progress;
} view;

static void on_turn(void *user, const agent_turn *turn, uint32_t of)
{
    view *v = user;
    term_progress_clear(&v->progress);
    agent_print_turn(stdout, turn, v->no_cache);
    term_progress_update(&v->progress, turn->request, of);
}

calla_status bench_agent_run(const bench_agent *o, calla_engine *engine, agent_result *out,
                             calla_error *err)
{
    view v = {.no_cache = o->no_cache != 0};
    char *own = NULL;
    if (o->trace == NULL) {
        own = cli_data_file("bench/agent/session.jsonl", "agent-session.jsonl");
        if (own == NULL)
            return err_set(err, CALLA_ERR_IO,
                           "the session that comes with calla is neither in the source tree nor "
                           "installed; give a trace");
    }
    const agent_options ao = {.engine = engine,
                              .trace = own != NULL ? own : o->trace,
                              .no_cache = v.no_cache,
                              .n_turns = (uint32_t)o->n_turns,
                              .n_ctx = (uint32_t)o->n_ctx,
                              .cache_bytes = o->cache_bytes,
                              .on_turn = on_turn,
                              .user = &v};
    agent_print_head(stdout, v.no_cache);
    (void)fflush(stdout);
    term_progress_begin(&v.progress, "playing", "turns");
    const calla_status st = agent_run(out, &ao, err);
    term_progress_end(&v.progress);
    if (st == CALLA_OK) agent_print_total(stdout, out);
    mem_free(own);
    return st;
}
