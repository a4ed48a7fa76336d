/* What agent_run found, for people and for programs. */
#include <inttypes.h>
#include <stdlib.h>

#include "bench/agent.h"

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void spread(double *values, uint32_t n, double *median, double *most)
{
    if (values == NULL || n == 0) return;
    qsort(values, n, sizeof *values, by_value);
    *median = n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
    *most = values[n - 1];
}

agent_total agent_sum(const agent_result *r)
{
    agent_total t = {0};
    double *values = mem_array(r->n, sizeof *values);
    for (uint32_t i = 0; i < r->n; i++) {
        const agent_turn *u = &r->turns[i];
        t.n_prompt += u->cache.n_prompt;
        t.n_cached += u->cache.n_cached;
        t.n_generated += u->n_generated;
        t.n_plain_computed += u->plain.n_prompt - u->plain.n_cached;
        t.first_token_s += u->cache.first_token_s;
        t.total_s += u->cache.total_s;
        t.plain_first_token_s += u->plain.first_token_s;
        t.plain_total_s += u->plain.total_s;
        if (values != NULL) values[i] = u->cache.first_token_s;
    }
    spread(values, r->n, &t.first_token_median_s, &t.first_token_max_s);
    for (uint32_t i = 0; values != NULL && i < r->n; i++)
        values[i] = r->turns[i].plain.first_token_s;
    spread(values, r->n, &t.plain_first_token_median_s, &t.plain_first_token_max_s);
    mem_free(values);
    return t;
}

/* Tokens after the first, over their time; 0: there is one only. */
static double speed(uint64_t n_generated, uint64_t n_answers, double seconds)
{
    return n_generated > n_answers && seconds > 0.0 ? (double)(n_generated - n_answers) / seconds
                                                    : 0.0;
}

static double turn_speed(const agent_turn *t)
{
    return speed(t->n_generated, 1, t->cache.total_s - t->cache.first_token_s);
}

static double share(uint64_t part, uint64_t all)
{
    return all != 0 ? 100.0 * (double)part / (double)all : 0.0;
}

void agent_print_head(FILE *f, bool no_cache)
{
    (void)fprintf(f, "%4s %7s %7s %6s %8s %9s %5s %8s %8s", "turn", "prompt", "cached", "share",
                  "computed", "first", "gen.", "tokens/s", "total");
    if (no_cache) (void)fprintf(f, " | %9s %8s %8s", "no cache:", "first", "total");
    (void)fprintf(f, "\n");
}

void agent_print_turn(FILE *f, const agent_turn *t, bool no_cache)
{
    const agent_cost *c = &t->cache, *p = &t->plain;
    (void)fprintf(f, "%4u %7u %7u %5.1f%% %8u %7.3f s %5u %8.1f %6.2f s", t->request, c->n_prompt,
                  c->n_cached, share(c->n_cached, c->n_prompt), c->n_prompt - c->n_cached,
                  c->first_token_s, t->n_generated, turn_speed(t), c->total_s);
    if (no_cache)
        (void)fprintf(f, " | %9s %6.3f s %6.2f s%s", "", p->first_token_s, p->total_s,
                      t->differs ? "  THE ANSWERS DIFFER" : "");
    (void)fprintf(f, "\n");
    (void)fflush(f);
}

void agent_print_total(FILE *f, const agent_result *r)
{
    const agent_total t = agent_sum(r);
    (void)fprintf(
        f,
        "%u turns: %" PRIu64 " tokens of prompt, %.1f %% from the cache, %" PRIu64
        " computed; %" PRIu64 " generated at %.1f tokens/s\n"
        "time to first token: %.3f s median, %.3f s most, %.2f s together; %.2f s in all\n"
        "cache: %.0f of %.0f MiB used; context of %u tokens\n",
        r->n, t.n_prompt, share(t.n_cached, t.n_prompt), t.n_prompt - t.n_cached, t.n_generated,
        speed(t.n_generated, r->n, t.total_s - t.first_token_s), t.first_token_median_s,
        t.first_token_max_s, t.first_token_s, t.total_s, (double)r->cache_bytes / 1048576.0,
        (double)r->cache_limit_bytes / 1048576.0, r->n_ctx);
    if (r->no_cache)
        (void)fprintf(f,
                      "without the cache: %" PRIu64 " tokens computed (%.1f times as many); first "
                      "token %.3f s median, %.3f s most, %.2f s together (%.1f times); %.2f s in "
                      "all (%.1f times)\nanswers that differ: %u of %u\n",
                      t.n_plain_computed,
                      (double)t.n_plain_computed / (double)(t.n_prompt - t.n_cached),
                      t.plain_first_token_median_s, t.plain_first_token_max_s,
                      t.plain_first_token_s, t.plain_first_token_s / t.first_token_s,
                      t.plain_total_s, t.plain_total_s / t.total_s, r->n_differ, r->n);
    if (r->n_left_out != 0)
        (void)fprintf(f, "left out: %u record%s of other paths, or that were not answered\n",
                      r->n_left_out, r->n_left_out == 1 ? "" : "s");
    if (r->n_too_long != 0)
        (void)fprintf(f, "left out: %u turn%s, longer than the context of %u tokens\n",
                      r->n_too_long, r->n_too_long == 1 ? "" : "s", r->n_ctx);
}

static void put_cost(strbuf *b, const agent_cost *c)
{
    (void)strbuf_printf(b,
                        "\"cached_tokens\": %u, \"computed_tokens\": %u, \"first_token_s\": %.6f, "
                        "\"total_s\": %.6f",
                        c->n_cached, c->n_prompt - c->n_cached, c->first_token_s, c->total_s);
}

void agent_put_json(strbuf *b, const agent_result *r)
{
    const agent_total t = agent_sum(r);
    (void)strbuf_puts(b, "\"agent\": [");
    for (uint32_t i = 0; i < r->n; i++) {
        const agent_turn *u = &r->turns[i];
        (void)strbuf_printf(b, "%s\n  {\"turn\": %u, \"prompt_tokens\": %u, \"generated\": %u, ",
                            i == 0 ? "" : ",", u->request, u->cache.n_prompt, u->n_generated);
        put_cost(b, &u->cache);
        if (r->no_cache) {
            (void)strbuf_puts(b, ", \"no_cache\": {");
            put_cost(b, &u->plain);
            (void)strbuf_printf(b, "}, \"same_answer\": %s", u->differs ? "false" : "true");
        }
        (void)strbuf_putc(b, '}');
    }
    (void)strbuf_printf(b,
                        "],\n\"agent_total\": {\"turns\": %u, \"prompt_tokens\": %" PRIu64
                        ", \"cached_tokens\": %" PRIu64 ", \"computed_tokens\": %" PRIu64
                        ", \"generated\": %" PRIu64 ", \"first_token_s\": %.6f, "
                        "\"first_token_median_s\": %.6f, \"total_s\": %.6f, \"context\": %u, "
                        "\"cache_bytes\": %" PRIu64 ", \"left_out\": %u, \"too_long\": %u",
                        r->n, t.n_prompt, t.n_cached, t.n_prompt - t.n_cached, t.n_generated,
                        t.first_token_s, t.first_token_median_s, t.total_s, r->n_ctx,
                        r->cache_bytes, r->n_left_out, r->n_too_long);
    if (r->no_cache)
        (void)strbuf_printf(b,
                            ", \"no_cache\": {\"computed_tokens\": %" PRIu64
                            ", \"first_token_s\": %.6f, \"first_token_median_s\": %.6f, "
                            "\"total_s\": %.6f}, \"answers_differ\": %u",
                            t.n_plain_computed, t.plain_first_token_s, t.plain_first_token_median_s,
                            t.plain_total_s, r->n_differ);
    (void)strbuf_putc(b, '}');
}

void agent_put_csv(strbuf *b, const agent_result *r)
{
    (void)strbuf_puts(b, "turn,prompt_tokens,cached_tokens,computed_tokens,generated,first_token_s,"
                         "total_s,no_cache_first_token_s,no_cache_total_s\n");
    for (uint32_t i = 0; i < r->n; i++) {
        const agent_turn *u = &r->turns[i];
        const agent_cost *c = &u->cache;
        (void)strbuf_printf(b, "%u,%u,%u,%u,%u,%.6f,%.6f,", u->request, c->n_prompt, c->n_cached,
                            c->n_prompt - c->n_cached, u->n_generated, c->first_token_s,
                            c->total_s);
        if (r->no_cache)
            (void)strbuf_printf(b, "%.6f,%.6f\n", u->plain.first_token_s, u->plain.total_s);
        else
            (void)strbuf_puts(b, ",\n");
    }
}
