/* calla-check.c - holds every kernel variant of registry.inc against the definition.
 *
 * For each row: draws shapes and values from a seed, computes the kernel's formula in f64 with an
 * error bound from the magnitudes of its terms, and compares. The reference kernels are rows like
 * any other, so two definitions written apart must agree. Checked besides: guard bands around all
 * memory, stray reads (NaN padding, unmapped pages), bitwise independence of rows, tokens, slabs.
 */
#include <fnmatch.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "exec/cpu/registry.h"

typedef struct row {
    const char *kernel, *variant;
    uint32_t needs;
    void (*run)(check *c);
    void (*bench)(bench *b);
} row;

static const row rows[] = {
#define KERNEL(name, variant, needs) {#name, #variant, needs, check_##name, bench_##name},
#include "exec/cpu/registry.inc"
#undef KERNEL
};
#define N_ROWS (sizeof rows / sizeof *rows)

#define NEEDS_MAX 4u
typedef struct options {
    const char *pattern, *need[NEEDS_MAX];
    uint32_t n_needs;
    uint64_t seed;
    uint32_t n_cases;
    int64_t only_case; /* -1: all */
    bool list, bench, csv;
} options;

static const char usage[] =
    "usage: calla-check [options] [PATTERN]   PATTERN: kernel, or kernel/variant, with * and ?\n"
    "  --list           rows and whether this CPU can run them\n"
    "  --bench          time instead of check; --csv for a table\n"
    "  --seed N         default 1\n"
    "  --cases N        cases per row, default 60\n"
    "  --case N         only this case (printed with a failure)\n"
    "  --need VARIANT   fail unless every row of VARIANT ran; may be repeated\n";

static bool row_matches(const row *r, const char *pattern)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s", r->kernel, r->variant);
    return pattern == NULL || fnmatch(pattern, name, 0) == 0 || fnmatch(pattern, r->kernel, 0) == 0;
}

static bool row_runs(const row *r)
{
    return (r->needs & ~cpu_features()) == 0;
}

/* ---- Crashes: a signal inside a kernel ends the case, not the program ---- */

static sigjmp_buf crash_return;
static volatile sig_atomic_t crash_armed;

static void on_crash(int sig)
{
    if (!crash_armed) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    siglongjmp(crash_return, sig);
}

static void crash_install(void)
{
    static char stack[1 << 16];
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    const stack_t alt = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alt, NULL);
    struct sigaction sa = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &sa, NULL);
}

static const char *signal_name(int sig)
{
    return sig == SIGILL   ? "SIGILL"
           : sig == SIGFPE ? "SIGFPE"
           : sig == SIGBUS ? "SIGBUS"
                           : "SIGSEGV";
}

/* ---- Checking ---- */

/* One case. Its randomness depends on seed and number only, so that it can be run alone. */
static void run_case(check *c, const row *r, uint64_t seed, uint32_t i_case)
{
    c->rng = seed * 0x100000001b3u + i_case;
    check_random(c);
    c->shape[0] = '\0';
    const int sig = sigsetjmp(crash_return, 1);
    if (sig == 0) {
        crash_armed = 1;
        r->run(c);
    } else {
        check_fail(c, "%s", signal_name(sig));
    }
    crash_armed = 0;
    check_release(c, sig == 0);
}

static bool run_row(const row *r, const cpu_kernels *k, const options *o)
{
    static check c; /* survives the longjmp */
    memset(&c, 0, sizeof c);
    c.k = k;
    for (uint32_t i = 0; i < o->n_cases; i++) {
        if (o->only_case >= 0 && i != o->only_case) continue;
        run_case(&c, r, o->seed, i);
        if (!c.failed) continue;
        printf("FAIL %s/%s case %u (%s): %s\n", r->kernel, r->variant, i, c.shape, c.failure);
        printf("     again: build/calla-check --seed %llu --case %u '%s/%s'\n",
               (unsigned long long)o->seed, i, r->kernel, r->variant);
        return false;
    }
    printf("%s %s/%s: worst error %.2f of the warn bound\n", c.worst > 1 ? "warn" : "ok  ",
           r->kernel, r->variant, c.worst);
    return true;
}

static int run_checks(const options *o)
{
    unsigned n_passed = 0, n_failed = 0, n_skipped = 0, n_ran[NEEDS_MAX] = {0};
    crash_install();
    printf("seed %llu, %u cases per row\n", (unsigned long long)o->seed, o->n_cases);
    for (size_t i = 0; i < N_ROWS; i++) {
        const row *r = &rows[i];
        cpu_kernels k;
        if (!row_matches(r, o->pattern)) continue;
        if (!row_runs(r) || cpu_kernels_select(&k, r->variant, NULL) != CALLA_OK) {
            printf("skip %s/%s: not on this CPU\n", r->kernel, r->variant);
            n_skipped++;
            continue;
        }
        for (uint32_t n = 0; n < o->n_needs; n++)
            if (strcmp(o->need[n], r->variant) == 0) n_ran[n]++;
        if (run_row(r, &k, o))
            n_passed++;
        else
            n_failed++;
        fflush(stdout);
    }
    for (uint32_t n = 0; n < o->n_needs; n++) {
        unsigned n_registered = 0;
        for (size_t i = 0; i < N_ROWS; i++)
            if (strcmp(rows[i].variant, o->need[n]) == 0) n_registered++;
        const bool met = n_ran[n] > 0 && (o->pattern != NULL || n_ran[n] == n_registered);
        printf("%s: %u of %u rows ran%s\n", o->need[n], n_ran[n], n_registered,
               met ? "" : ", but all were needed");
        if (!met) n_failed++;
    }
    if (n_skipped > 0) printf("%u skipped\n", n_skipped);
    printf("%u passed, %u failed\n", n_passed, n_failed);
    return n_failed > 0 || n_passed == 0;
}

/* ---- Benchmark ---- */

static int run_bench(const options *o)
{
    cpu_kernels ref;
    if (cpu_kernels_select(&ref, "ref", NULL) != CALLA_OK) return 1;
    if (o->csv) printf("kernel,variant,shape,us,GB/s,GFLOP/s,x ref,+-%%\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        const row *r = &rows[i];
        cpu_kernels k;
        if (!row_matches(r, o->pattern) || !row_runs(r)) continue;
        if (cpu_kernels_select(&k, r->variant, NULL) != CALLA_OK) return 1;
        double seconds[BENCH_SHAPES_MAX] = {0};
        bench b = {r->kernel, r->variant, &ref, seconds, 0, true, true, o->csv};
        const bool is_ref = strcmp(r->variant, "ref") == 0;
        if (!is_ref) r->bench(&b);
        b = (bench){r->kernel, r->variant, &k, seconds, 0, is_ref, false, o->csv};
        r->bench(&b);
    }
    return 0;
}

static int list_rows(const options *o)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (row_matches(&rows[i], o->pattern))
            printf("%s/%s%s\n", rows[i].kernel, rows[i].variant,
                   row_runs(&rows[i]) ? "" : "  (not on this CPU)");
    return 0;
}

static int64_t number(const char *text)
{
    char *end = NULL;
    const long long n = text == NULL ? -1 : strtoll(text, &end, 10);
    if (n < 0 || end == text || *end != '\0') {
        fprintf(stderr, "calla-check: expected a number, found \"%s\"\n", text ? text : "");
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    options o = {.seed = 1, .n_cases = 60, .only_case = -1};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--list") == 0)
            o.list = true;
        else if (strcmp(a, "--bench") == 0)
            o.bench = true;
        else if (strcmp(a, "--csv") == 0)
            o.csv = true;
        else if (strcmp(a, "--seed") == 0)
            o.seed = (uint64_t)number(argv[++i]);
        else if (strcmp(a, "--cases") == 0)
            o.n_cases = (uint32_t)number(argv[++i]);
        else if (strcmp(a, "--case") == 0)
            o.only_case = number(argv[++i]);
        else if (strcmp(a, "--need") == 0 && i + 1 < argc && o.n_needs < NEEDS_MAX)
            o.need[o.n_needs++] = argv[++i];
        else if (a[0] != '-' && o.pattern == NULL)
            o.pattern = a;
        else {
            fputs(usage, stderr);
            return 2;
        }
    }
    if (o.only_case >= o.n_cases) o.n_cases = (uint32_t)o.only_case + 1;
    return o.list ? list_rows(&o) : o.bench ? run_bench(&o) : run_checks(&o);
}
