/* cmd_pull.c - `calla pull`: downloads a model. */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/json.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "model/shape.h"
#include "net/disk.h"
#include "net/pull.h"

#define LINE_SECONDS 30.0 /* between lines where there is no bar */

typedef struct pull_args {
    const char *endpoint;
    uint64_t n_connections, n_retries;
    double stall_seconds, retry_seconds;
    int check, any, quiet;
} pull_args;

static const cli_option options[] = {
    CLI_OPT_TEXT(0, "endpoint", pull_args, endpoint, "URL",
                 "where models are; default $HF_ENDPOINT, then " HUB_ENDPOINT),
    CLI_OPT_UINT(0, "connections", pull_args, n_connections, 1, PULL_CONNECTIONS_MAX, "N",
                 "connections at the same time; default 8"),
    CLI_OPT_REAL(0, "timeout", pull_args, stall_seconds, 1, 3600, "X",
                 "seconds without a byte after which a connection is given up; default 30"),
    CLI_OPT_UINT(0, "retries", pull_args, n_retries, 0, 1000, "N",
                 "how often something is tried again before the pull fails; default 8"),
    CLI_OPT_REAL(0, "retry-wait", pull_args, retry_seconds, 0, 600, "X",
                 "seconds before the first of these; doubles up to 30; default 1"),
    CLI_OPT_FLAG(0, "check", pull_args, check, 1,
                 "hash the files of a model that is here already, and fetch what is wrong"),
    CLI_OPT_FLAG(0, "any", pull_args, any, 1, "also a model that calla cannot run"),
    CLI_OPT_FLAG('q', "quiet", pull_args, quiet, 1, "no progress on stderr"),
    CLI_OPT_END,
};

static int cmd_pull(int argc, char **argv);

const cli_command cli_pull = {
    .name = "pull",
    .summary = "download a model",
    .args = "OWNER/NAME[@REVISION]",
    .about =
        "Downloads a model from Hugging Face, or from an endpoint like it, and prints its folder;\n"
        "then calla run -m OWNER/NAME finds it (-m NAME, when only one owner has it). Only the\n"
        "files that calla needs are fetched; each is checked by its SHA-256, and the folder is\n"
        "there when all is complete, or not at all. When interrupted, at whatever moment, the\n"
        "same command goes on where it was. What a newer revision has in common with what is\n"
        "here is not fetched again. Exit status 3: the network or the server failed, and trying\n"
        "again may help.\n",
    .options = options,
    .n_args_min = 1,
    .n_args_max = 1,
    .configurable = true,
    .main = cmd_pull,
};

/* ---- Signals ------------------------------------------------------------------------------ */

static atomic_bool cancel;
static volatile sig_atomic_t received;

static void on_signal(int sig)
{
    if (received) _exit(128 + sig);
    received = sig;
    atomic_store(&cancel, true);
}

static void catch_signals(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sa.sa_flags = SA_RESTART;
    (void)sigemptyset(&sa.sa_mask);
    (void)sigaction(SIGINT, &sa, NULL);
    (void)sigaction(SIGTERM, &sa, NULL);
}

/* ---- Progress ----------------------------------------------------------------------------- */

typedef struct view {
    term_progress bar;
    pull_phase phase;
    double line; /* when the last was written */
    bool quiet, any;
} view;

static void on_progress(void *user, pull_phase phase, uint64_t done, uint64_t total)
{
    static const char *const labels[] = {"asking", "pulling", "checking"};
    view *v = user;
    if (v->quiet) return;
    if (phase != v->phase) {
        term_progress_end(&v->bar);
        term_progress_begin(&v->bar, labels[phase], TERM_BYTES);
        v->phase = phase;
    }
    if (phase == PULL_LISTING) return;
    term_progress_update(&v->bar, (double)done, (double)total);
    if (v->bar.on || total == 0 || time_now() - v->line < LINE_SECONDS) return;
    v->line = time_now();
    cli_error(&cli_pull, "%s: %.2f of %.2f GB", labels[phase], (double)done / 1e9,
              (double)total / 1e9);
}

static void on_note(void *user, const char *line)
{
    view *v = user;
    if (v->quiet) return;
    term_progress_clear(&v->bar);
    cli_error(&cli_pull, "%s", line);
}

/* ---- The command -------------------------------------------------------------------------- */

static calla_status read_json(json_doc *doc, const char *dir, const char *name, calla_error *err)
{
    char *path = disk_path(dir, name, NULL), *text = NULL;
    size_t n = 0;
    const json_limits limits = {.what = name};
    calla_status st = path ? file_read(path, (uint64_t)16 << 20, &text, &n, err)
                           : err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
    if (st == CALLA_OK) st = json_parse(doc, text, n, &limits, err);
    mem_free(text);
    mem_free(path);
    return st;
}

/* Before gigabytes come: is it the model that calla runs? */
static calla_status accept(void *user, const char *dir, calla_error *err)
{
    const view *v = user;
    json_doc config = {0};
    model_shape shape;
    if (v->any) return CALLA_OK;
    calla_status st = read_json(&config, dir, "config.json", err);
    if (st == CALLA_OK) st = shape_read(&shape, config.root, NULL, err);
    json_free(&config);
    if (st != CALLA_OK) (void)err_prefix(err, st, "not a model that calla runs (--any pulls it)");
    return st;
}

static int finish(const pull_args *a, const char *name, const pull_result *r, double seconds)
{
    puts(r->dir);
    if (!a->quiet && r->complete_before)
        cli_error(&cli_pull, "%s is here already, at commit %.12s (%zu files, %.2f GB)", name,
                  r->commit, r->n_files, (double)r->bytes / 1e9);
    else if (!a->quiet)
        cli_error(&cli_pull,
                  "%s is complete, at commit %.12s: %zu files, %.2f GB; %.2f GB came in "
                  "%.0f s",
                  name, r->commit, r->n_files, (double)r->bytes / 1e9,
                  (double)r->bytes_fetched / 1e9, seconds);
    return cli_stdout_ok() ? CLI_OK : CLI_FAILED;
}

static int cmd_pull(int argc, char **argv)
{
    pull_args a = {.n_connections = 8, .n_retries = 8, .stall_seconds = 30, .retry_seconds = 1};
    int rc = cli_parse(&cli_pull, argc, argv, &a, NULL);
    if (rc >= 0) return rc;
    calla_error err = {0};
    hub_repo repo;
    if (hub_parse(argv[1], &repo, &err) != CALLA_OK)
        return cli_usage_error(&cli_pull, "%s", err.message);

    hub h = {0};
    http_library *lib = NULL;
    char *root = NULL;
    pull_result result = {0};
    view v = {.quiet = a.quiet != 0, .any = a.any != 0, .line = time_now()};
    const double t0 = time_now();
    calla_status st;
    TRY(store_root(&root, &err));
    TRY(hub_init(&h, a.endpoint, &err));
    TRY(http_library_open(&lib, NULL, &err));
    if (h.token && !http_token_safe(h.endpoint))
        cli_error(&cli_pull,
                  "the token is not sent to %s: only https, or this machine, may have it",
                  h.endpoint);
    const pull_options o = {
        .lib = lib,
        .hub = &h,
        .repo = &repo,
        .root = root,
        .n_connections = (uint32_t)a.n_connections,
        .n_retries = (uint32_t)a.n_retries,
        .retry_seconds = a.retry_seconds,
        .stall_seconds = a.stall_seconds,
        .check = a.check != 0,
        .cancel = &cancel,
        .accept = accept,
        .on_progress = on_progress,
        .on_note = on_note,
        .user = &v,
    };
    catch_signals();
    st = pull_run(&o, &result, &err);
    term_progress_end(&v.bar);
    if (st == CALLA_OK) rc = finish(&a, argv[1], &result, time_now() - t0);
fail:
    if (received && st != CALLA_OK) {
        cli_error(&cli_pull, "stopped; the same command goes on from here");
        rc = 128 + received;
    } else if (st != CALLA_OK) {
        (void)cli_fail(&cli_pull, &err);
        rc = result.again ? CLI_AGAIN : CLI_FAILED;
    }
    mem_free(result.dir);
    mem_free(root);
    hub_deinit(&h);
    http_library_close(lib);
    return rc;
}
