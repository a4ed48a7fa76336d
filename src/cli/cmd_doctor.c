/* cmd_doctor.c - `calla doctor`: is all there, and what to do about what is not. */
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#include "base/file.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/term.h"
#include "engine/engine.h"
#include "engine/sysmem.h"
#include "exec/cpu/kernels.h"
#include "exec/gpu/device.h"
#include "format/residence.h"
#include "model/synth.h"
#include "net/store.h"

/* docs/MODEL.md, 3.2: the tensors of the text model in MLX's 4-bit checkpoint. */
#define REAL_WEIGHT_BYTES UINT64_C(19508787456)
#define CTX_SERVE         32768u /* what calla serve wants for a request */

/* A smaller model is in the processor's caches half the time. */
#define LARGE_PAGES_MATTER (UINT64_C(256) << 20)

typedef struct doctor_args {
    cli_common common;
    int reload;
} doctor_args;

static const cli_option options[] = {
    CLI_ROW_MODEL(doctor_args, common),
    CLI_OPT_FLAG(0, "reload", doctor_args, reload, 1,
                 "first let the system forget the model's files, and read them again from disk: in "
                 "large pages where it can (Linux)"),
    CLI_OPT_END,
};

static int cmd_doctor(int argc, char **argv);

const cli_command cli_doctor = {
    .name = "doctor",
    .summary = "check machine, model, GPU, port and folders",
    .about =
        "Looks at what calla needs: the machine and its memory, the model and the contexts that\n"
        "fit, a GPU and its driver, the port of calla serve, folders and their permissions, the\n"
        "configuration. Says what to do about each problem. Exit status 1: there is one.\n"
        "A CPU reads the weights where the system caches them: a tenth faster in large pages than\n"
        "in small ones, and the reader or copier that came first has settled which. doctor says\n"
        "what is cached, and how; --reload begins anew. No other calla may use the model then.\n",
    .options = options,
    .main = cmd_doctor,
};

/* ---- Findings ----------------------------------------------------------------------------- */

static unsigned n_problems;

static void finding(const char *mark, const char *fmt, va_list args) ATTR_PRINTF(2, 0);
static void finding(const char *mark, const char *fmt, va_list args)
{
    printf("  %-8s ", mark);
    vprintf(fmt, args);
    putchar('\n');
}

static void good(const char *fmt, ...) ATTR_PRINTF(1, 2);
static void good(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    finding("ok", fmt, args);
    va_end(args);
}

/* Not as it may be wished, and no obstacle. */
static void note(const char *fmt, ...) ATTR_PRINTF(1, 2);
static void note(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    finding("note", fmt, args);
    va_end(args);
}

static void problem(const char *fmt, ...) ATTR_PRINTF(1, 2);
static void problem(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    finding("PROBLEM", fmt, args);
    va_end(args);
    n_problems++;
}

static void next_step(const char *fmt, ...) ATTR_PRINTF(1, 2);
static void next_step(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    finding("  ->", fmt, args);
    va_end(args);
}

static double gib(uint64_t n)
{
    return (double)n / 1073741824.0;
}

/* ---- Machine ------------------------------------------------------------------------------ */

static void cpu_name(char *out, size_t size)
{
    (void)snprintf(out, size, "processor");
#if defined(__APPLE__)
    size_t n = size;
    (void)sysctlbyname("machdep.cpu.brand_string", out, &n, NULL, 0);
#else
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += strspn(value, ": \t");
        (void)snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f) (void)fclose(f);
#endif
}

static void check_machine(void)
{
    struct utsname u;
    char name[128], kernels[96];
    cpu_name(name, sizeof name);
    if (uname(&u) == 0)
        printf("machine: %s %s, %s\n", u.sysname, u.release, u.machine);
    else
        puts("machine");
    static const struct {
        uint32_t bit;
        const char *name;
    } features[] = {{CPU_AVX2, "AVX2"}, {CPU_AVX512, "AVX-512"},   {CPU_VNNI, "VNNI"},
                    {CPU_NEON, "NEON"}, {CPU_AVXVNNI, "AVX-VNNI"}, {CPU_DOTPROD, "dot product"},
                    {CPU_I8MM, "i8mm"}};
    const uint32_t have = cpu_features();
    size_t n = 0;
    kernels[0] = '\0';
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if ((have & features[i].bit) && n < sizeof kernels)
            n += (size_t)snprintf(kernels + n, sizeof kernels - n, "%s%s", n ? ", " : "",
                                  features[i].name);
    if (n > 0) {
        good("%s; %u cores for this process; %s", name, cpu_count(), kernels);
    } else {
        problem("%s; %u cores; none of the instructions that calla is written for", name,
                cpu_count());
        next_step("it works, many times slower: an x86-64 processor with AVX2 or an arm64 one");
    }
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint64_t total = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    const uint64_t available = sysmem_available();
    if (available == UINT64_MAX)
        note("memory: %.1f GiB; the system does not say how much is available", gib(total));
    else
        good("memory: %.1f GiB, of which calla may plan with %.1f GiB now", gib(total),
             gib(available));
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_max >= 1024) return;
    problem("files: a process may open %llu only", (unsigned long long)files.rlim_max);
    next_step("raise it: ulimit -n 1024, or LimitNOFILE= of the service");
}

/* ---- GPU ---------------------------------------------------------------------------------- */

#if defined(__linux__)
static bool file_begins(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name), line[64] = "";
    FILE *f = path ? fopen(path, "r") : NULL;
    const bool ok = f && fgets(line, sizeof line, f) && !strncmp(line, text, strlen(text));
    if (f) (void)fclose(f);
    mem_free(path);
    return ok;
}

/* A display or compute device of NVIDIA's on the PCI bus, driver or not. */
static bool has_nvidia_device(void)
{
    static const char root[] = "/sys/bus/pci/devices";
    DIR *d = opendir(root);
    const struct dirent *e;
    bool found = false;
    while (d && !found && (e = readdir(d)) != NULL) {
        char *dir = path_join(root, e->d_name);
        found = dir && file_begins(dir, "vendor", "0x10de") && file_begins(dir, "class", "0x03");
        mem_free(dir);
    }
    if (d) (void)closedir(d);
    return found;
}
#endif

static void explain_gpu(const calla_error *err)
{
#if defined(__linux__)
    if (access("/dev/nvidiactl", F_OK) == 0 && access("/dev/nvidiactl", R_OK | W_OK) != 0) {
        problem("/dev/nvidiactl: %s", strerror(errno));
        next_step("let this user use the GPU: on most systems, groups video or render");
        return;
    }
    if (has_nvidia_device() || access("/dev/nvidiactl", F_OK) == 0) {
        problem("an NVIDIA GPU is there, and cannot be used: %s", err->message);
        next_step("%s", strstr(err->message, "no kernels")
                            ? "build calla where nvcc (CUDA 12) is installed"
                            : "install or update NVIDIA's driver, then try nvidia-smi");
        return;
    }
#endif
    note("no GPU is used: %s", err->message);
}

/* Fills what a model may use; 0: there is no GPU. */
static uint64_t check_gpu(void)
{
    gpu_device *dev = NULL;
    gpu_limits limits;
    calla_error err = {0};
    puts("GPU");
#if defined(__APPLE__)
    const gpu_metal_options mo = {.max_rung = -1};
    const calla_status st = gpu_metal_create(&dev, &mo, &err);
#else
    const calla_status st = gpu_cuda_create(&dev, 0, &err);
#endif
    if (st != CALLA_OK) {
        explain_gpu(&err);
        return 0;
    }
    memset(&limits, 0, sizeof limits);
    dev->ops->limits(dev, &limits);
    const char *driver = dev->ops->name;
    good("%s (%s): %.1f GiB, %.1f GiB free", limits.name, driver, gib(limits.total_bytes),
         gib(limits.free_bytes));
    dev->ops->destroy(dev);
    return limits.free_bytes;
}

/* ---- Model -------------------------------------------------------------------------------- */

typedef struct subject {
    const model_shape *shape;
    const model_weights *weights;
    uint64_t weight_bytes; /* mapped, beside those of `weights` */
    uint64_t memory, gpu;  /* to be had; gpu 0: none */
} subject;

typedef struct needs {
    uint64_t kv, state, buffers, weights, sum; /* CPU */
    uint64_t gpu;
} needs;

static needs needs_of(const subject *s, uint32_t n_ctx)
{
    calla_memory_plan plan;
    exec_plan exec;
    const exec_options cpu = {.n_threads = cpu_count(), .chunk_tokens = ENGINE_CHUNK_DEFAULT};
    const exec_options gpu = {.chunk_tokens = ENGINE_CHUNK_GPU};
    exec_cpu_plan(s->shape, &cpu, n_ctx, &exec);
    plan_fill(&plan, &exec, s->weights, s->shape->n_vocab, n_ctx);
    needs n = {.kv = plan.kv_bytes,
               .state = plan.state_bytes,
               .weights = plan.weights_mapped + s->weight_bytes};
    n.sum = plan.total_bytes + n.weights;
    n.buffers = n.sum - n.kv - n.state - n.weights;
    exec_gpu_plan(s->shape, &gpu, n_ctx, &exec);
    n.gpu = exec.weight_bytes + exec.scratch_bytes + exec.kv_bytes + exec.state_bytes;
    return n;
}

/* The largest context, in steps of 1024, that fits into `limit`. */
static uint32_t largest(const subject *s, bool gpu, uint64_t limit)
{
    uint32_t low = 0, high = s->shape->max_context / 1024;
    while (low < high) {
        const uint32_t mid = (low + high + 1) / 2;
        const needs n = needs_of(s, mid * 1024);
        if ((gpu ? n.gpu : n.sum) <= limit)
            low = mid;
        else
            high = mid - 1;
    }
    return low * 1024;
}

static void print_table(const subject *s)
{
    printf("           context  KV cache     state   buffers   weights       sum  memory%s\n",
           s->gpu ? "   GPU sum  GPU" : "");
    for (uint32_t n_ctx = 4096; n_ctx <= 262144 && n_ctx <= s->shape->max_context; n_ctx *= 2) {
        if (n_ctx == 8192) continue;
        const needs n = needs_of(s, n_ctx);
        printf("          %8u %9.2f %9.2f %9.2f %9.2f %9.2f  %-6s", n_ctx, gib(n.kv), gib(n.state),
               gib(n.buffers), gib(n.weights), gib(n.sum), n.sum <= s->memory ? "fits" : "no");
        if (s->gpu) printf(" %9.2f  %s", gib(n.gpu), n.gpu <= s->gpu ? "fits" : "no");
        putchar('\n');
    }
    puts("          (GiB, for one request; calla inspect --memory --ctx N --parallel N has more)");
}

static void check_fit(const subject *s)
{
    print_table(s);
    const uint32_t cpu = largest(s, false, s->memory), gpu = s->gpu ? largest(s, true, s->gpu) : 0;
    const uint32_t wanted = s->shape->max_context < CTX_SERVE ? s->shape->max_context : CTX_SERVE;
    if (gpu > 0) good("on the GPU, contexts up to %u tokens fit", gpu);
    if (cpu > 0)
        good("on the CPU, contexts up to %u tokens fit", cpu);
    else if (gpu > 0)
        note("on the CPU, it does not fit");
    if (cpu >= wanted || gpu >= wanted) return;
    if (cpu == 0 && gpu == 0) {
        problem("it does not fit: %.1f GiB are needed for 1024 tokens, and %.1f GiB available",
                gib(needs_of(s, 1024).sum), gib(s->memory));
        next_step("close other programs, raise a container's limit, or take a machine with more");
    } else {
        note("calla serve will offer less than its %u tokens of context", wanted);
    }
}

/* What is to be expected of the real model, when another is looked at. */
static void check_real(uint64_t memory, uint64_t gpu)
{
    model_shape shape;
    const model_weights none = {0};
    const subject s = {.shape = &shape,
                       .weights = &none,
                       .weight_bytes = REAL_WEIGHT_BYTES,
                       .memory = memory,
                       .gpu = gpu};
    if (synth_shape(&shape, "full", 0, NULL) != CALLA_OK) return;
    puts("model: Qwen3.6-35B-A3B, 4-bit, as this machine would run it");
    print_table(&s);
    const uint32_t cpu = largest(&s, false, memory), on_gpu = gpu ? largest(&s, true, gpu) : 0;
    if (cpu > 0 || on_gpu > 0)
        good("it fits, with contexts up to %u tokens: calla pull "
             "mlx-community/Qwen3.6-35B-A3B-4bit",
             cpu > on_gpu ? cpu : on_gpu);
    else
        note("it does not fit: %.1f GiB are needed, and %.1f GiB available",
             gib(needs_of(&s, 1024).sum), gib(memory));
}

static calla_status reload(const checkpoint *ck, calla_error *err)
{
    calla_status st;
    term_progress progress;
    uint64_t n = 0;
    const double t0 = time_now();
    TRY(residence_drop(ck, err));
    term_progress_begin(&progress, "reading weights", TERM_BYTES);
    st = residence_fill(ck, cli_on_load, &progress, &n, err);
    term_progress_end(&progress);
    if (st == CALLA_OK) good("read %.2f GB from disk in %.1f s", (double)n / 1e9, time_now() - t0);
fail:
    return st;
}

/* What of the weights is cached, and in which pages. */
static void check_cached(const checkpoint *ck, bool reloaded, calla_error *err)
{
    residence r;
    if (residence_look(ck, &r, err) != CALLA_OK || !r.known) {
        note("in memory: this system does not say how much of it is");
        return;
    }
    const double all = (double)r.bytes / 1e9, cached = (double)r.cached / 1e9;
    if (r.bytes < LARGE_PAGES_MATTER) return;
    const double part = r.cached == 0 ? 0 : 100 * (double)r.large / (double)r.cached;
    if (r.cached < r.bytes - r.bytes / 10) {
        note("in memory: %.2f of %.2f GB, %.0f %% of it in large pages; a CPU's next start reads "
             "the rest from disk",
             cached, all, part);
        if (reloaded) next_step("what else runs takes the memory: close it, and try again");
    } else if (part >= 90) {
        good("in memory: %.2f of %.2f GB, %.0f %% of it in large pages", cached, all, part);
    } else {
        note("in memory: %.2f of %.2f GB, %.0f %% of it in large pages; a CPU would be some 10 %% "
             "faster with all",
             cached, all, part);
        next_step(reloaded ? "nothing here: this system has none for these files (Linux 6.16 with "
                             "ext4, or xfs, has), its memory is fragmented, or a program uses them"
                           : "calla doctor --reload reads them again, in large pages");
    }
}

static void check_memory(const checkpoint *ck, const subject *s, bool wanted)
{
    calla_error err = {0};
    if (checkpoint_file_bytes(ck) < LARGE_PAGES_MATTER && !wanted) return;
    const bool fits = needs_of(s, 1024).sum <= s->memory;
    if (wanted && !fits) note("not read again: there is no memory for it");
    if (wanted && fits && reload(ck, &err) != CALLA_OK)
        problem("%s", err.message);
    else
        check_cached(ck, wanted && fits, &err);
}

static void check_model(const char *given, uint64_t gpu, bool wants_reload)
{
    checkpoint *ck = NULL;
    model_shape shape;
    model_weights weights = {0};
    calla_tokenizer *tok = NULL;
    char *dir = NULL;
    calla_error err = {0};
    calla_status st;
    bool real = false;
    const uint64_t memory = sysmem_available();
    TRY(cli_model_dir(given, &dir, &err));
    printf("model: %s\n", dir);
    TRY(checkpoint_open(&ck, dir, &err));
    TRY(shape_read(&shape, checkpoint_config(ck), checkpoint_generation_config(ck), &err));
    TRY(weights_bind(&weights, ck, &shape, &err));
    TRY(calla_tokenizer_open(&tok, dir, &err));
    good("its files are complete and what they should be: %.2f GB in %zu file%s of weights",
         (double)checkpoint_file_bytes(ck) / 1e9, checkpoint_n_shards(ck),
         checkpoint_n_shards(ck) == 1 ? "" : "s");
    real = shape.n_layers == 40 && shape.hidden == 2048;
    const subject s = {.shape = &shape, .weights = &weights, .memory = memory, .gpu = gpu};
    check_fit(&s);
    check_memory(ck, &s, wants_reload);
fail:
    if (st != CALLA_OK) {
        if (!dir) puts("model");
        problem("%s", err.message);
        next_step("calla models lists what is here; calla pull --check OWNER/NAME mends a model");
    }
    if (!real) check_real(memory, gpu);
    calla_tokenizer_close(tok);
    weights_unbind(&weights);
    checkpoint_close(ck);
    mem_free(dir);
}

/* ---- Server ------------------------------------------------------------------------------- */

/* Does a calla serve answer there? */
static bool is_calla(const struct addrinfo *a)
{
    static const char request[] = "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
    const struct timeval limit = {.tv_sec = 1};
    char reply[2048];
    size_t n = 0;
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) return false;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
        send(fd, request, sizeof request - 1, 0) == (ssize_t)sizeof request - 1) {
        ssize_t r;
        while (n < sizeof reply - 1 && (r = recv(fd, reply + n, sizeof reply - 1 - n, 0)) > 0)
            n += (size_t)r;
    }
    reply[n] = '\0';
    (void)close(fd);
    return strstr(reply, "\"ready\":") != NULL;
}

/* errno of a try to listen, or 0. */
static int try_listen(const struct addrinfo *a)
{
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol), on = 1;
    if (fd < 0) return errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const int e = bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1) != 0 ? errno : 0;
    (void)close(fd);
    return e;
}

static void check_port(void)
{
    const char *host = cli_lookup(&cli_serve, "host"), *port = cli_lookup(&cli_serve, "port");
    const char *unix_socket = cli_lookup(&cli_serve, "unix-socket");
    const char *keys = cli_lookup(&cli_serve, "api-key-file");
    struct addrinfo hints, *list = NULL;
    struct stat sb;
    puts("server");
    if (!host) host = "127.0.0.1";
    if (!port) port = "8080";
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    const int rc = unix_socket ? 0 : getaddrinfo(host, port, &hints, &list);
    if (unix_socket) {
        good("it will listen on the socket %s", unix_socket);
    } else if (rc != 0) {
        problem("host %s, port %s: %s", host, port, gai_strerror(rc));
        next_step("give --host an address of this machine");
    } else {
        const int e = try_listen(list);
        if (e == 0)
            good("port %s of %s is free", port, host);
        else if (e == EADDRINUSE && is_calla(list))
            good("a calla serve answers on port %s of %s already", port, host);
        else
            problem("port %s of %s: %s", port, host, strerror(e));
        if (e == EADDRINUSE && !is_calla(list))
            next_step("take another (--port N), or see who has it: ss -ltnp, lsof -i :%s", port);
        else if (e == EACCES)
            next_step("ports below 1024 need a privilege: take one above");
        freeaddrinfo(list);
    }
    if (!keys) return;
    if (access(keys, R_OK) != 0 || stat(keys, &sb) != 0) {
        problem("%s: %s", keys, strerror(errno));
        next_step("make the file of keys, one a line, and let this user read it");
    } else if (sb.st_mode & 077) {
        problem("%s: others may read the keys", keys);
        next_step("chmod 600 %s", keys);
    } else {
        good("%s: keys, readable by their owner only", keys);
    }
}

/* ---- Folders and files -------------------------------------------------------------------- */

/* May this user write there, or make it? The folder that decides into *at (mem_free). */
static bool can_write(const char *dir, char **at)
{
    char *p = mem_strdup(dir);
    while (p && access(p, F_OK) != 0) {
        char *slash = strrchr(p, '/');
        if (!slash || slash == p) break;
        *slash = '\0';
    }
    *at = p;
    return p && access(p, W_OK | X_OK) == 0;
}

static void check_folder(const char *what, const char *dir)
{
    char *at = NULL;
    if (can_write(dir, &at)) {
        const uint64_t room = disk_free_bytes(at);
        good("%s: %s, %.1f GB free", what, dir, (double)room / 1e9);
    } else {
        problem("%s: %s cannot be written: %s: %s", what, dir, at ? at : dir, strerror(errno));
        next_step("chown it to this user, or name another folder");
    }
    mem_free(at);
}

static void check_files(void)
{
    const cli_common common = CLI_COMMON_DEFAULTS;
    calla_error err;
    char *dir = NULL;
    http_library *lib = NULL;
    puts("files");
    if (store_root(&dir, &err) == CALLA_OK)
        check_folder("models", dir);
    else
        note("%s", err.message);
    mem_free(dir);
    if (cli_pack_dir(&common, &dir, &err) == CALLA_OK && dir) check_folder("packed weights", dir);
    mem_free(dir);
    if (http_library_open(&lib, NULL, &err) == CALLA_OK)
        good("downloads: %s", http_library_version(lib));
    else
        note("%s", err.message);
    http_library_close(lib);
    switch (cli_check_config(&cli_doctor)) {
    case CLI_CONFIG_GOOD:
        good("configuration: %s", cli_config_path());
        break;
    case CLI_CONFIG_NONE:
        good("configuration: none (%s is not there)", cli_config_path());
        break;
    case CLI_CONFIG_BAD:
        problem("configuration: see above");
        next_step("mend that line; man calla, CONFIGURATION, says what may be there");
        break;
    }
}

static int cmd_doctor(int argc, char **argv)
{
    doctor_args a = {.common = CLI_COMMON_DEFAULTS};
    const int rc = cli_parse(&cli_doctor, argc, argv, &a, NULL);
    if (rc >= 0) return rc;
    puts("calla " CALLA_VERSION);
    check_machine();
    const uint64_t gpu = check_gpu();
    check_model(a.common.model ? a.common.model : cli_lookup(&cli_serve, "model"), gpu,
                a.reload != 0);
    check_port();
    check_files();
    if (n_problems == 0)
        puts("no problems");
    else
        printf("%u problem%s\n", n_problems, n_problems == 1 ? "" : "s");
    if (!cli_stdout_ok()) return CLI_FAILED;
    return n_problems == 0 ? CLI_OK : CLI_FAILED;
}
