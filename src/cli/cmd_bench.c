/* cmd_bench.c - calla bench: options of src/bench, which measures. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "bench/ablate.h"
#include "bench/agent.h"
#include "bench/compare.h"
#include "bench/limits.h"
#include "bench/plot.h"
#include "bench/profile.h"
#include "bench/report.h"
#include "bench/sweep.h"
#include "bench/thermal.h"
#include "cli/bench_agent.h"
#include "cli/cli.h"
#include "cli/term.h"

#define BUDGET_MINUTES 5.0
#define BUSY_LOAD      1.0 /* of a minute ago: our own last run may count */

typedef struct bench_options {
    cli_common common;
    const char *prefill, *decode, *only, *json, *csv, *plot, *kv, *variant;
    uint64_t reps, steps;
    double budget; /* minutes; 0: not given */
    int quick, ablate, profile, compare;
    bench_agent agent;
} bench_options;

/* Options whose values are files or folders have one of these metavars: see put_flags(). */
static const cli_option options[] = {
    CLI_OPT_SECTION("What is measured"),
    CLI_OPT_TEXT(0, "prefill", bench_options, prefill, "N,N,...",
                 "prompt lengths, and no contexts unless --decode names some"),
    CLI_OPT_TEXT(0, "decode", bench_options, decode, "N,N,...",
                 "context lengths, and no prompts unless --prefill names some"),
    CLI_OPT_FLAG(0, "quick", bench_options, quick, 1, "--prefill 512,2048 --decode 256,4096"),
    CLI_OPT_REAL(0, "budget", bench_options, budget, 0.1, 1e5, "MINUTES",
                 "what would take longer is left out; default 5, and no limit when lengths are "
                 "named"),
    CLI_OPT_UINT(0, "reps", bench_options, reps, 1, MEASURE_REPS_MAX, "N",
                 "repetitions of a prefill, of which the median counts; default 6"),
    CLI_OPT_UINT(0, "steps", bench_options, steps, 1, MEASURE_STEPS_MAX, "N",
                 "tokens of a decode measurement; default 32"),
    CLI_OPT_FLAG(0, "ablate", bench_options, ablate, 1,
                 "the gain of each mechanism: with it and without it, alternating; at each "
                 "mechanism's own length, or at those named"),
    CLI_OPT_TEXT(0, "only", bench_options, only, "A,B,...", "these mechanisms of --ablate"),
    CLI_OPT_FLAG(0, "profile", bench_options, profile, 1,
                 "the time of each kernel, timed alone; on a CPU of each step, as it runs"),
    CLI_OPT_FLAG(
        0, "compare", bench_options, compare, 1,
        "measure nothing: compare the results A with B, files of --json or lists \"A1,A2\""),
    CLI_OPT_SECTION("An agent's session"),
    CLI_OPT_FLAG(0, "agent", bench_options, agent.on, 1,
                 "play a recorded session: a folder that calla serve filled, or a file of JSON "
                 "lines; without an argument the session that comes with calla"),
    CLI_OPT_FLAG(0, "no-cache", bench_options, agent.no_cache, 1,
                 "each turn a second time without the prefix cache, and compare the answers"),
    CLI_OPT_UINT(0, "turns", bench_options, agent.n_turns, 1, 1e6, "N", "only the first N turns"),
    CLI_OPT_UINT(0, "ctx", bench_options, agent.n_ctx, 16, 4294967295.0, "N",
                 "tokens a turn can have; default what the session needs and the model can"),
    CLI_OPT_TEXT(0, "cache-ram", bench_options, agent.cache_ram, "SIZE",
                 "memory for the prefix cache, as 512M or 4G; default 2G, or less when memory is "
                 "short"),
    CLI_OPT_SECTION("Where results go"),
    CLI_OPT_TEXT(0, "json", bench_options, json, "FILE", "results as JSON"),
    CLI_OPT_TEXT(0, "csv", bench_options, csv, "FILE", "results as CSV"),
    CLI_OPT_TEXT(0, "plot", bench_options, plot, "FILE",
                 "results as a drawing (SVG): speed against length, and roofline; with files "
                 "of --json as arguments, theirs, and nothing is measured"),
    CLI_OPT_SECTION("Model and machine"),
    CLI_ROW_MODEL(bench_options, common),
    CLI_ROW_BACKEND(bench_options, common),
    CLI_ROW_THREADS(bench_options, common),
    CLI_ROW_PRECISION(bench_options, common),
    CLI_OPT_CHOICE(0, "kv", bench_options, kv, "bf16|f32", "format of the attention cache"),
    CLI_OPT_CHOICE(0, "variant", bench_options, variant, "ref|avx2|avxvnni|avx512|neon|i8mm",
                   "best CPU kernels to use; default the best that this processor has"),
    CLI_ROW_PACK_DIR(bench_options, common),
    CLI_ROW_LOG_LEVEL(bench_options, common),
    CLI_OPT_END,
};

static int cmd_bench(int argc, char **argv);

const cli_command cli_bench = {
    .name = "bench",
    .summary = "tokens per second of prefill and decode",
    .args = "[FILE...]",
    .about =
        "Measures prefill and decode at ten lengths, 256 to 131072 tokens, as far as memory and\n"
        "the time budget allow, with pseudo-random tokens: tokens a second with a 95 % interval,\n"
        "what a token must read and compute, and what part of this machine's limits that is.\n"
        "On a GPU, --ablate measures what each mechanism is worth, beside the figures of the\n"
        "article that this engine follows. --profile divides the time. --compare A B says for\n"
        "each measurement whether B's speed differs from A's, with a 95 % interval for the whole\n"
        "table; three pairs of alternating runs or more show what differs between runs. It\n"
        "exits with 1 when something is slower, 2 when it cannot compare. --plot OUT.svg A.json "
        "B.json draws kept results\n"
        "on one page. --agent plays the requests of a recorded session through the server's\n"
        "prompts and prefix cache, one after the other: time to first token and cost of each\n"
        "turn. Answers are generated greedily, as long as the recorded ones, which they replace\n"
        "in later prompts; with --no-cache it exits with 1 when an answer depends on the cache.\n",
    .options = options,
    .n_args_max = PLOT_SERIES_MAX,
    .main = cmd_bench,
};

/* ---- Options ---- */

/* The option that an argument names, of the table above; *value: it is followed by "=...". */
static const cli_option *named(const char *arg, bool *value)
{
    const size_t n = strcspn(arg, "=");
    *value = arg[n] == '=';
    for (const cli_option *o = options; o->kind != CLI_END; o++) {
        if (o->name != NULL && strncmp(arg, "--", 2) == 0 && strlen(o->name) == n - 2 &&
            strncmp(arg + 2, o->name, n - 2) == 0)
            return o;
        if (o->short_name != '\0' && arg[0] == '-' && arg[1] == o->short_name) {
            *value = arg[2] != '\0';
            return o;
        }
    }
    return NULL;
}

/* The command's options as they were given, without those that name files or folders. */
static void put_flags(char *buf, size_t size, int argc, char *const *argv)
{
    size_t used = 0;
    buf[0] = '\0';
    for (int i = 1; i < argc; i++) {
        bool joined;
        const cli_option *o = named(argv[i], &joined);
        if (o == NULL) continue;
        const bool valued = o->kind != CLI_FLAG && !joined && i + 1 < argc;
        const char *m = o->metavar != NULL ? o->metavar : "";
        if (strcmp(m, "FILE") != 0 && strcmp(m, "DIR") != 0 && strcmp(m, "MODEL") != 0 &&
            used < size) {
            const char *text = valued ? argv[i + 1] : "";
            const int n =
                snprintf(buf + used, size - used, "%s%s%s%s", used == 0 ? "" : " ", argv[i],
                         valued ? " " : "", valued && text[0] == '\0' ? "''" : text);
            used += n > 0 ? (size_t)n : 0;
        }
        i += valued;
    }
}

/* -1, or the exit code of a usage error. */
static int check_options(bench_options *o, sweep_options *s)
{
    const bool given = o->prefill != NULL || o->decode != NULL;
    size_t n_bad = 0;
    if (o->quick && given) return cli_usage_error(&cli_bench, "--quick names the lengths itself");
    if (o->quick || (o->profile && !given)) {
        o->prefill = "512,2048";
        o->decode = "256,4096";
    }
    if (!sweep_parse(o->prefill != NULL ? o->prefill : "", &s->prefill) ||
        !sweep_parse(o->decode != NULL ? o->decode : "", &s->decode))
        return cli_usage_error(&cli_bench,
                               "--prefill and --decode take up to %u lengths as \"256,4096\"",
                               SWEEP_LENGTHS_MAX);
    if (given && s->prefill.n_n + s->decode.n_n == 0)
        return cli_usage_error(&cli_bench, "--prefill and --decode name no length");
    if (o->profile && (o->json != NULL || o->csv != NULL))
        return cli_usage_error(&cli_bench,
                               "--profile prints a table; --json and --csv keep speeds");
    s->budget = 60.0 * o->budget;
    if (!given && !o->quick && !o->profile) {
        s->prefill = s->decode = sweep_article;
        if (o->budget == 0.0) s->budget = 60.0 * BUDGET_MINUTES;
    }
    if (o->only != NULL && !o->ablate)
        return cli_usage_error(&cli_bench, "--only chooses among the mechanisms of --ablate");
    const char *bad = o->only != NULL ? ablate_unknown(o->only, &n_bad) : NULL;
    if (o->plot != NULL && (o->ablate || o->profile))
        return cli_usage_error(&cli_bench, "--plot draws speed at several lengths, not %s",
                               o->ablate ? "--ablate" : "--profile");
    if (bad != NULL)
        return cli_usage_error(&cli_bench, "--only: there is no mechanism '%.*s'", (int)n_bad, bad);
    return -1;
}

/* -1, or the exit code of a usage error; the trace is no argument any more. */
static int check_agent(bench_options *o, char **argv, int *n_args)
{
    bench_agent *a = &o->agent;
    if (!a->on) {
        const bool given = a->no_cache || a->n_turns != 0 || a->n_ctx != 0 || a->cache_ram != NULL;
        return !given ? -1
                      : cli_usage_error(&cli_bench, "--no-cache, --turns, --ctx and --cache-ram go "
                                                    "with --agent");
    }
    if (*n_args > 1) return cli_usage_error(&cli_bench, "--agent takes one trace");
    if (a->cache_ram != NULL && !cli_size(a->cache_ram, &a->cache_bytes))
        return cli_usage_error(
            &cli_bench, "--cache-ram: expected a size like 512M or 4G, found '%s'", a->cache_ram);
    if (a->cache_ram != NULL && a->cache_bytes == 0)
        return cli_usage_error(&cli_bench, "--cache-ram 0 leaves nothing to measure; --no-cache "
                                           "plays each turn without a cache too");
    if (o->ablate || o->profile || o->plot != NULL || o->prefill != NULL || o->decode != NULL)
        return cli_usage_error(&cli_bench, "--agent measures nothing else");
    a->trace = *n_args == 1 ? argv[1] : NULL;
    *n_args = 0;
    return -1;
}

static calla_kv_type kv_type(const bench_options *o)
{
    return o->kv != NULL && strcmp(o->kv, "f32") == 0 ? CALLA_KV_F32 : CALLA_KV_BF16;
}

/* ---- Running ---- */

typedef struct bench {
    const bench_options *o;
    cli_logger logger;
    calla_engine *e;
    measure m;
    bench_record *r;
    agent_result *agent;
    term_progress progress;
} bench;

static calla_status open_engine(bench *b, const char *dir, const char *pack_dir, calla_error *err)
{
    const bench_options *o = b->o;
    term_progress progress;
    term_progress_begin(&progress, "loading weights", "bytes");
    b->logger = cli_logger_make(&cli_bench, &o->common);
    const calla_engine_options eo = {
        .model_dir = dir,
        .backend = o->common.backend,
        .n_threads = (unsigned)o->common.n_threads,
        .pack_dir = pack_dir,
        .precision = cli_precision(&o->common),
        .kv_type = kv_type(o),
        .cpu_variant = o->variant,
        .progress = cli_on_load,
        .progress_user = &progress,
        .log = cli_log,
        .log_user = &b->logger,
    };
    const double t0 = time_now();
    const calla_status st = calla_engine_create(&b->e, &eo, err);
    term_progress_end(&progress);
    if (st != CALLA_OK) return st;
    calla_engine_info i;
    calla_engine_get_info(b->e, &i);
    printf("%s: %s (%s), opened in %.2f s, %.3f GB of weights\n", i.model_dir, i.backend, i.variant,
           time_now() - t0, (double)i.weight_bytes / 1e9);
    return st;
}

static calla_status open_bench(bench *b, calla_error *err)
{
    char *dir, *pack_dir = NULL;
    const measure_options mo = {.reps = (uint32_t)b->o->reps, .steps = (uint32_t)b->o->steps};
    calla_status st = cli_model_dir(b->o->common.model, &dir, err);
    if (st == CALLA_OK) st = cli_pack_dir(&b->o->common, &pack_dir, err);
    if (st == CALLA_OK) st = open_engine(b, dir, pack_dir, err);
    mem_free(pack_dir);
    mem_free(dir);
    if (st == CALLA_OK && !b->o->agent.on) st = measure_init(&b->m, b->e, &mo, err);
    if (st == CALLA_OK) record_begin(b->r, b->e, kv_type(b->o));
    return st;
}

static void on_result(void *user, const bench_result *x)
{
    bench *b = user;
    term_progress_clear(&b->progress);
    report_result(b->r, x, stdout);
}

static void on_progress(void *user, const char *what, double done, double total)
{
    bench *b = user;
    b->progress.label = what;
    term_progress_update(&b->progress, done, total);
}

static calla_status run_sweep(bench *b, sweep_options *s, calla_error *err)
{
    thermal_state before, after;
    const bool nvidia = strcmp(b->r->backend, "cuda") == 0;
    s->on_result = on_result;
    s->on_progress = on_progress;
    s->user = b;
    limits_measure(&b->r->limits, b->e);
    report_limits(b->r, stdout);
    if (b->r->load > BUSY_LOAD)
        fprintf(stderr,
                "calla bench: load average %.1f: other programs run here, figures are low\n",
                b->r->load);
    thermal_read(&before, nvidia);
    report_heading(b->r, stdout);
    term_progress_begin(&b->progress, "", TERM_ESTIMATE);
    const calla_status st = sweep_run(&b->m, b->r, s, err);
    term_progress_end(&b->progress);
    thermal_read(&after, nvidia);
    b->r->thermal = thermal_between(&before, &after);
    record_end(b->r, b->e);
    if (st == CALLA_OK) report_end(b->r, stdout);
    return st;
}

static calla_status run_agent(bench *b, calla_error *err)
{
    thermal_state before, after;
    const bool nvidia = strcmp(b->r->backend, "cuda") == 0;
    thermal_read(&before, nvidia);
    const calla_status st = bench_agent_run(&b->o->agent, b->e, b->agent, err);
    thermal_read(&after, nvidia);
    b->r->thermal = thermal_between(&before, &after);
    record_end(b->r, b->e);
    return st;
}

static calla_status run_profile(bench *b, const sweep_options *s, calla_error *err)
{
    calla_status st = CALLA_OK;
    for (uint32_t i = 0; i < s->prefill.n_n && st == CALLA_OK; i++) {
        const uint32_t n = s->prefill.n[i];
        st = profile_step(b->e->ex, true, n < b->e->chunk_tokens ? n : b->e->chunk_tokens, n, err);
    }
    for (uint32_t i = 0; i < s->decode.n_n && st == CALLA_OK; i++)
        st = profile_step(b->e->ex, false, 1, s->decode.n[i], err);
    return st;
}

static calla_status run_ablation(bench *b, const sweep_options *s, calla_error *err)
{
    const bool given = b->o->prefill != NULL || b->o->decode != NULL;
    const ablate_options o = {.only = b->o->only,
                              .prefill = s->prefill.n,
                              .n_prefill = given ? s->prefill.n_n : 0,
                              .decode = s->decode.n,
                              .n_decode = given ? s->decode.n_n : 0};
    const calla_status st = ablate_run(&b->m, b->r, &o, err);
    record_end(b->r, b->e);
    return st;
}

static bool put_all(const char *path, const char *data, size_t n)
{
    FILE *f = fopen(path, "w");
    const bool ok = f != NULL && fwrite(data, 1, n, f) == n;
    const bool closed = f != NULL && fclose(f) == 0;
    return ok && closed;
}

/* A whole new file in the place of the old one, or the old one. What is no file is written to. With
 * data NULL only tries whether that would do. */
static calla_status write_file(const char *path, const char *data, size_t n, calla_error *err)
{
    struct stat sb;
    strbuf tmp = {0};
    bool ok;
    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode)) {
        ok = data == NULL ? access(path, W_OK) == 0 : put_all(path, data, n);
    } else {
        (void)strbuf_printf(&tmp, "%s.partial-%ld", path, (long)getpid());
        ok = !tmp.failed && path[0] != '\0' && put_all(tmp.data, data != NULL ? data : "", n);
        if (ok && data != NULL) ok = rename(tmp.data, path) == 0;
    }
    const int e = errno;
    if (tmp.data != NULL && (!ok || data == NULL)) (void)unlink(tmp.data);
    strbuf_deinit(&tmp);
    return ok ? CALLA_OK
              : err_set(err, CALLA_ERR_IO, "cannot write %s: %s", path,
                        path[0] == '\0' ? "it has no name" : strerror(e));
}

/* Before anything is measured. */
static calla_status try_files(const bench_options *o, calla_error *err)
{
    const char *const paths[] = {o->json, o->csv, o->plot};
    calla_status st = CALLA_OK;
    for (size_t i = 0; i < 3 && st == CALLA_OK; i++) {
        if (paths[i] == NULL) continue;
        for (size_t k = 0; k < i; k++)
            if (paths[k] != NULL && strcmp(paths[k], paths[i]) == 0)
                return err_set(err, CALLA_ERR_ARGUMENT, "%s cannot be two results", paths[i]);
        st = write_file(paths[i], NULL, 0, err);
    }
    return st;
}

/* Is OUT of --plot rather a file of results? Then it was forgotten. */
static bool is_results(const char *path)
{
    char c = 0;
    FILE *f = fopen(path, "r");
    if (f == NULL) return false;
    const bool is = fread(&c, 1, 1, f) == 1 && c == '{';
    (void)fclose(f);
    return is;
}

/* Draws the record, if there is one, and the files. */
static calla_status write_plot(const char *path, const bench_record *r, char *const *files,
                               int n_files, calla_error *err)
{
    plot *p = NULL;
    strbuf json = {0}, svg = {0};
    calla_status st = plot_create(&p, err);
    if (st == CALLA_OK && r != NULL) {
        report_json(r, &json);
        st = json.failed ? err_set(err, CALLA_ERR_MEMORY, "no memory for a plot")
                         : plot_add(p, "results", json.data, json.len, err);
    }
    for (int i = 0; i < n_files && st == CALLA_OK; i++)
        st = plot_add_file(p, files[i], err);
    if (st == CALLA_OK) st = plot_draw(p, &svg, err);
    if (st == CALLA_OK && svg.failed) st = err_set(err, CALLA_ERR_MEMORY, "no memory for a plot");
    if (st == CALLA_OK) st = write_file(path, svg.data, svg.len, err);
    strbuf_deinit(&svg);
    strbuf_deinit(&json);
    plot_destroy(p);
    return st;
}

static calla_status write_files(const bench *b, calla_error *err)
{
    const struct {
        const char *path;
        void (*report)(const bench_record *r, strbuf *out);
    } files[] = {{b->o->json, report_json}, {b->o->csv, report_csv}};
    calla_error other;
    calla_status st = CALLA_OK, one;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        strbuf s = {0};
        if (files[i].path == NULL) continue;
        files[i].report(b->r, &s);
        one = s.failed ? err_set(&other, CALLA_ERR_MEMORY, "no memory for results")
                       : write_file(files[i].path, s.data, s.len, &other);
        strbuf_deinit(&s);
        if (st == CALLA_OK && one != CALLA_OK) *err = other, st = one;
    }
    one = b->o->plot != NULL ? write_plot(b->o->plot, b->r, NULL, 0, &other) : CALLA_OK;
    if (st == CALLA_OK && one != CALLA_OK) *err = other, st = one;
    return st;
}

static int run_compare(char **argv, int n_args)
{
    calla_error err;
    bool slower;
    if (n_args != 2)
        return cli_usage_error(&cli_bench, "--compare takes two files, or two lists of files");
    if (bench_compare(argv[1], argv[2], &slower, &err) != CALLA_OK) {
        (void)cli_fail(&cli_bench, &err);
        return CLI_USAGE; /* as diff does: 1 is an answer */
    }
    if (!cli_stdout_ok()) return CLI_USAGE;
    return slower ? CLI_FAILED : CLI_OK;
}

static calla_status run(bench *b, sweep_options *s, calla_error *err)
{
    calla_status st = CALLA_OK;
    if (b->o->agent.on)
        st = run_agent(b, err);
    else if (b->o->profile)
        st = run_profile(b, s, err);
    else if (b->o->ablate)
        st = run_ablation(b, s, err);
    else
        st = run_sweep(b, s, err);
    return st == CALLA_OK ? write_files(b, err) : st;
}

static int cmd_bench(int argc, char **argv)
{
    bench_options o = {.common = CLI_COMMON_DEFAULTS, .reps = 6, .steps = 32};
    static bench_record record;
    agent_result agent = {0};
    bench b = {.o = &o, .r = &record, .agent = &agent};
    sweep_options s = {.budget = 0.0};
    char flags[sizeof record.flags];
    int n_args = 0;
    calla_error err;
    put_flags(flags, sizeof flags, argc, argv);
    int rc = cli_parse(&cli_bench, argc, argv, &o, &n_args);
    if (rc >= 0) return rc;
    if (o.compare) return run_compare(argv, n_args);
    rc = check_agent(&o, argv, &n_args);
    if (rc >= 0) return rc;
    if (n_args != 0 && o.plot == NULL)
        return cli_usage_error(&cli_bench, "files are for --agent, --compare and --plot");
    rc = check_options(&o, &s);
    if (rc >= 0) return rc;
    if (o.plot != NULL && is_results(o.plot))
        return cli_usage_error(&cli_bench, "--plot OUT.svg: %s is a file of results", o.plot);
    if (n_args != 0)
        return write_plot(o.plot, NULL, argv + 1, n_args, &err) == CALLA_OK
                   ? CLI_OK
                   : cli_fail(&cli_bench, &err);
    calla_status st = try_files(&o, &err);
    if (st == CALLA_OK) st = open_bench(&b, &err);
    (void)snprintf(record.flags, sizeof record.flags, "%s", flags);
    record.agent = o.agent.on ? &agent : NULL;
    if (st == CALLA_OK) st = run(&b, &s, &err);
    measure_deinit(&b.m);
    calla_engine_destroy(b.e);
    record_deinit(&record);
    const bool differ = agent.n_differ != 0;
    agent_result_deinit(&agent);
    if (st != CALLA_OK) return cli_fail(&cli_bench, &err);
    return differ || !cli_stdout_ok() ? CLI_FAILED : CLI_OK;
}
