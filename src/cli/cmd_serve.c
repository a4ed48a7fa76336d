/* cmd_serve.c - `calla serve`: the HTTP server. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/notify.h"
#include "cli/term.h"
#include "server/server.h"

#define FILES_WANTED 1024u /* macOS begins with 256 */

typedef struct serve_options {
    cli_common common;
    const char *host, *unix_socket, *key_file, *allow_hosts, *cors_origins;
    const char *cache_ram, *trace_dir, *model_name, *log_format;
    uint64_t port, n_parallel, n_ctx, queue_max, body_mib, n_connections;
    double drain_seconds, idle_unload;
    int log_prompts;
} serve_options;

static const cli_option options[] = {
    CLI_ROW_MODEL(serve_options, common),
    CLI_OPT_TEXT(0, "model-name", serve_options, model_name, "NAME",
                 "the model's name in the API; default the name of its folder"),
    CLI_OPT_SECTION("Where it listens"),
    CLI_OPT_TEXT(0, "host", serve_options, host, "ADDRESS",
                 "address or name to listen on, 0.0.0.0 for all; default 127.0.0.1"),
    CLI_OPT_UINT(0, "port", serve_options, port, 0, 65535, "N",
                 "TCP port; 0 takes a free one; default 8080"),
    CLI_OPT_TEXT(0, "unix-socket", serve_options, unix_socket, "PATH",
                 "listen on this Unix socket (mode 0600) instead"),
    CLI_OPT_SECTION("Who may ask"),
    CLI_OPT_TEXT(0, "api-key-file", serve_options, key_file, "FILE",
                 "keys, one a line; every request but /health and /ready must bring one"),
    CLI_OPT_TEXT(0, "allow-host", serve_options, allow_hosts, "NAME[,...]",
                 "names besides localhost and addresses that the Host header may have"),
    CLI_OPT_TEXT(0, "cors-origin", serve_options, cors_origins, "ORIGIN[,...]",
                 "origins whose pages may use the server, https://host:port or *; default none"),
    CLI_OPT_SECTION("Work and memory"),
    CLI_OPT_UINT(0, "parallel", serve_options, n_parallel, 1, 64, "N",
                 "requests that generate together; default 4, less when memory is short"),
    CLI_OPT_UINT(0, "ctx", serve_options, n_ctx, 1, 4294967295.0, "N",
                 "tokens that one request can hold; default 32768, less when memory is short"),
    CLI_OPT_TEXT(0, "cache-ram", serve_options, cache_ram, "SIZE",
                 "memory for conversations kept between requests (512M, 4G; 0: none); default 2G, "
                 "less when memory is short"),
    CLI_OPT_UINT(0, "queue", serve_options, queue_max, 1, 100000, "N",
                 "requests that may wait before others get 429; default 64"),
    CLI_OPT_UINT(0, "max-body", serve_options, body_mib, 1, 1024, "MIB",
                 "largest request body; default 32"),
    CLI_OPT_UINT(0, "connections", serve_options, n_connections, 1, 4096, "N",
                 "connections at the same time; default 256"),
    CLI_OPT_REAL(0, "drain-seconds", serve_options, drain_seconds, 0, 86400, "X",
                 "after a signal, running requests have this long to end; default 30"),
    CLI_OPT_REAL(
        0, "idle-unload", serve_options, idle_unload, 0, 1e9, "X",
        "after X seconds without a request for the model it leaves memory, until the next; "
        "default 0: never"),
    CLI_ROW_BACKEND(serve_options, common),
    CLI_ROW_THREADS(serve_options, common),
    CLI_ROW_PRECISION(serve_options, common),
    CLI_ROW_PACK_DIR(serve_options, common),
    CLI_OPT_SECTION("Reports"),
    CLI_OPT_CHOICE(0, "log-format", serve_options, log_format, "auto|text|json",
                   "lines on stderr; auto is text on a terminal, else JSON"),
    CLI_OPT_FLAG(0, "log-prompts", serve_options, log_prompts, 1, "log the bodies of requests too"),
    CLI_OPT_TEXT(0, "trace", serve_options, trace_dir, "DIR",
                 "write every request and its answer, with the times, to a file in this folder"),
    CLI_OPT_CHOICE(0, "log-level", serve_options, common.log_level, "error|warn|info|debug",
                   "how much to report on stderr; info, the default, has a line a request"),
    CLI_OPT_END,
};

/* ---- Signals ------------------------------------------------------------------------------ */

static int signal_pipe[2];
static volatile sig_atomic_t received;

static void on_signal(int sig)
{
    const int saved = errno;
    if (received) _exit(128 + sig);
    received = sig;
    const char byte = 0;
    if (write(signal_pipe[1], &byte, 1) < 0) {
        /* the pipe is empty before the only write */
    }
    errno = saved;
}

static bool catch_signals(void)
{
    struct sigaction sa;
    if (pipe(signal_pipe) != 0) return false;
    for (int i = 0; i < 2; i++)
        (void)fcntl(signal_pipe[i], F_SETFD, FD_CLOEXEC);
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sa.sa_flags = SA_RESTART;
    (void)sigemptyset(&sa.sa_mask);
    (void)sigaction(SIGINT, &sa, NULL);
    (void)sigaction(SIGTERM, &sa, NULL);
    return true;
}

/* Until a signal comes; an idle model is unloaded, and loaded again. */
static void wait_signal(server *s, double idle_unload)
{
    struct pollfd p[] = {{.fd = signal_pipe[0], .events = POLLIN},
                         {.fd = server_wake_fd(s), .events = POLLIN}};
    const int tick = idle_unload >= 4 ? 1000 : 1 + (int)(idle_unload * 250);
    bool loaded = true;
    while (!received) {
        if (poll(p, 2, idle_unload > 0 ? tick : -1) < 0 && errno != EINTR) break;
        if (idle_unload <= 0 || received) continue;
        const bool before = loaded;
        server_tend(s, &loaded);
        if (loaded != before)
            notify("STATUS=%s %s", loaded ? "answering at" : "idle, without the model, at",
                   server_url(s));
    }
}

/* A supervisor sees how far it is, and waits on: each time 60 s longer. */
static bool on_load(void *user, size_t n_done, size_t n_total)
{
    static size_t told = 101;
    const size_t percent = n_total > 0 ? n_done / (n_total / 100 + 1) : 0;
    if (percent != told) {
        told = percent;
        notify("STATUS=loading weights: %zu %%\nEXTEND_TIMEOUT_USEC=60000000", percent);
    }
    return cli_on_load(user, n_done, n_total) && !received;
}

/* ---- The command -------------------------------------------------------------------------- */

/* "512M": bytes, with a factor of K, M, G or T (powers of 1024). */
bool cli_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    uint64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (v > UINT64_MAX / 16) return false;
        v = v * 10 + (uint64_t)(*p - '0');
    }
    if (p == text) return false;
    const char *unit = *p ? strchr(units, *p >= 'a' ? *p - 'a' + 'A' : *p) : NULL;
    const unsigned shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;
    if (unit) p++;
    if (*p != '\0' || v > (UINT64_MAX >> 1) >> shift) return false;
    *out = v << shift;
    return true;
}

static void raise_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FILES_WANTED) return;
    limit.rlim_cur = limit.rlim_max < FILES_WANTED ? limit.rlim_max : FILES_WANTED;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static calla_status serve(const server_options *so, double drain_seconds, calla_error *err)
{
    server *s = NULL;
    calla_status st;
    notify("STATUS=opening %s", so->model_dir);
    TRY(server_create(&s, so, err));
    TRY(server_load(s, err));
    notify("READY=1\nSTATUS=answering at %s", server_url(s));
    /* For scripts: with --port 0 the only way to know. */
    (void)printf("%s\n", server_url(s));
    if (!cli_stdout_ok()) cli_error(&cli_serve, "standard output is closed");
    if (!received) wait_signal(s, so->idle_unload_seconds);
    notify("STOPPING=1\nSTATUS=letting requests end");
    (void)server_drain(s, drain_seconds);
fail:
    if (st != CALLA_OK && err->message[0]) notify("STATUS=%s", err->message);
    server_destroy(s);
    return st;
}

static bool is_loopback(const char *host)
{
    return !strcmp(host, "localhost") || !strcmp(host, "::1") || !strncmp(host, "127.", 4);
}

static int cmd_serve(int argc, char **argv)
{
    serve_options o = {.common = CLI_COMMON_DEFAULTS,
                       .host = "127.0.0.1",
                       .port = 8080,
                       .log_format = "auto",
                       .drain_seconds = 30};
    o.common.log_level = "info";
    calla_error err;
    char *dir = NULL, *pack_dir = NULL;
    term_progress progress;
    uint64_t cache_bytes = SERVER_CACHE_AUTO;
    const int rc = cli_parse(&cli_serve, argc, argv, &o, NULL);
    if (rc >= 0) return rc;
    if (o.cache_ram && !cli_size(o.cache_ram, &cache_bytes))
        return cli_usage_error(
            &cli_serve, "--cache-ram: expected a size like 512M or 4G, found '%s'", o.cache_ram);
    if (cli_model_dir(o.common.model, &dir, &err) != CALLA_OK ||
        cli_pack_dir(&o.common, &pack_dir, &err) != CALLA_OK) {
        mem_free(dir);
        return cli_fail(&cli_serve, &err);
    }
    if (!o.unix_socket && !is_loopback(o.host) && !o.key_file)
        cli_error(&cli_serve, "--host %s without --api-key-file: whoever reaches it may use it",
                  o.host);
    term_progress_begin(&progress, "loading weights", "bytes");
    const bool terminal = isatty(STDERR_FILENO) != 0;
    const server_options so = {
        .model_dir = dir,
        .model_name = o.model_name,
        .backend = o.common.backend,
        .n_threads = (unsigned)o.common.n_threads,
        .n_parallel = (uint32_t)o.n_parallel,
        .n_ctx = (uint32_t)o.n_ctx,
        .queue_max = (uint32_t)o.queue_max,
        .cache_ram_bytes = cache_bytes,
        .pack_dir = pack_dir,
        .precision = cli_precision(&o.common),
        .progress = on_load,
        .progress_user = &progress,
        .host = o.host,
        .port = (uint16_t)o.port,
        .unix_socket = o.unix_socket,
        .key_file = o.key_file,
        .allow_hosts = o.allow_hosts,
        .cors_origins = o.cors_origins,
        .body_bytes_max = o.body_mib << 20,
        .connections_max = (uint32_t)o.n_connections,
        .log_fd = STDERR_FILENO,
        .log_json = !strcmp(o.log_format, "json") || (!strcmp(o.log_format, "auto") && !terminal),
        .log_prompts = o.log_prompts != 0,
        .log_level = cli_logger_make(&cli_serve, &o.common).level,
        .trace_dir = o.trace_dir,
        .idle_unload_seconds = o.idle_unload,
    };
    raise_files();
    calla_status st = catch_signals() ? serve(&so, o.drain_seconds, &err)
                                      : err_set(&err, CALLA_ERR_IO, "pipe: %s", strerror(errno));
    term_progress_end(&progress);
    mem_free(pack_dir);
    mem_free(dir);
    if (st == CALLA_ERR_CANCELLED && received) return CLI_OK;
    return st == CALLA_OK ? CLI_OK : cli_fail(&cli_serve, &err);
}

const cli_command cli_serve = {
    .name = "serve",
    .summary = "answer over HTTP, as OpenAI's and Anthropic's APIs do",
    .about =
        "Listens on http://127.0.0.1:8080 and answers /v1/chat/completions, /v1/completions,\n"
        "/v1/responses, /v1/messages, /v1/models; / is a chat page, /metrics is for\n"
        "Prometheus, /health and /ready are for supervisors. The URL is printed when the\n"
        "model is loaded. SIGTERM or Ctrl-C lets running requests end; a second one does not.\n",
    .options = options,
    .configurable = true,
    .main = cmd_serve,
};
