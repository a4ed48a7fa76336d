/* count - the instructions that a kernel variant executes, counted one by one.
 *
 *   count-kernels [--marks] [PATTERN]     PATTERN: kernel/variant, with * and ?
 *
 * One line a call: kernel, variant, tokens, rows, columns, instructions. A child makes the call
 * between two signals while this process lets it take single steps (ptrace). With --marks nobody
 * steps: the call stands between two getppid, by which plugin.c counts under qemu-user. What is
 * not the kernel cancels in the difference of two calls of different size, which
 * `bench/instructions` takes. */
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/cpu/registry.h"

#define COLS       1024u
#define ROWS_MAX   64u
#define TOKENS_MAX 24u

typedef struct call {
    kernel_prep *prep;
    matmul_fn fn;
    matrix w;
    uint32_t n_tokens;
    const float *x[TOKENS_MAX];
    float *y[TOKENS_MAX], *scratch;
} call;

static float *floats(size_t n)
{
    float *p = mem_alloc_aligned(n * sizeof *p);
    if (p == NULL) exit(1);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(i * 7919 % 1000) / 1000.0f - 0.5f;
    return p;
}

/* Any bits do as codes; scales and biases are small positive bfloat16. */
static uint8_t *bytes(size_t n, bool params)
{
    uint8_t *p = (uint8_t *)floats((n + 3) / 4);
    for (size_t i = 0; i < n; i++)
        p[i] = params ? (uint8_t)(i % 2 == 0 ? i * 31 : 0x3c) : (uint8_t)(i * 167 + i / 256);
    return p;
}

static void prepare(call *c, uint32_t rows, uint32_t n_tokens)
{
    c->n_tokens = n_tokens;
    c->w = (matrix){.type = MAT_Q4, .rows = rows, .cols = COLS, .row_bytes = COLS / 2};
    c->w.data = bytes((size_t)rows * COLS / 2, false);
    c->w.scales = bytes((size_t)rows * COLS / 32, true);
    c->w.biases = bytes((size_t)rows * COLS / 32, true);
    c->scratch = floats(MATMUL_SCRATCH_FLOATS(COLS));
    for (uint32_t t = 0; t < n_tokens; t++) {
        float *x = floats(COLS), *xp = floats(COLS);
        c->prep(x, COLS, xp);
        c->x[t] = xp;
        c->y[t] = floats(rows);
    }
}

static void make(const call *c)
{
    c->fn(&c->w, 0, c->w.rows, c->x, c->n_tokens, c->y, c->scratch);
}

/* Instructions from one SIGUSR1 to the next; 0 when the child ends before. */
static unsigned long long steps_of(const call *c)
{
    const pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(1);
        make(c); /* pages are mapped, code is there */
        (void)raise(SIGUSR1);
        make(c);
        (void)raise(SIGUSR1);
        _exit(0);
    }
    int status;
    unsigned long long n = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return 0;
    do {
        n++;
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0) n = 0;
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return 0;
    } while (n != 0 && WSTOPSIG(status) == SIGTRAP);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, &status, 0);
    return n;
}

static void count(call *c, const char *name, bool marks, uint32_t rows, uint32_t n_tokens)
{
    prepare(c, rows, n_tokens);
    printf("%s %u %u %u ", name, n_tokens, rows, COLS);
    (void)fflush(stdout);
    if (marks) {
        make(c);
        (void)syscall(SYS_getppid);
        make(c);
        (void)syscall(SYS_getppid); /* the plugin ends the line */
    } else {
        printf("%llu\n", steps_of(c));
    }
}

int main(int argc, char **argv)
{
    const bool marks = argc > 1 && strcmp(argv[1], "--marks") == 0;
    const char *pattern = argc > 1 + marks ? argv[1 + marks] : "*";
    static const char *const variants[] = VARIANT_NAMES;
    static const char *const kernels[] = {"matmul_q4", "matmul_i16", "matmul_i8"};
    static const uint32_t tokens[] = {1, 2, 4, TOKENS_MAX};
    for (size_t v = 0; v < N_VARIANTS; v++) {
        cpu_kernels k;
        if (cpu_kernels_select(&k, variants[v], NULL) != CALLA_OK) continue;
        const call of[] = {{.prep = k.prep_q4, .fn = k.matmul_q4},
                           {.prep = k.prep_i16, .fn = k.matmul_i16},
                           {.prep = k.prep_i8, .fn = k.matmul_i8}};
        for (size_t i = 0; i < 3; i++) {
            char name[64];
            snprintf(name, sizeof name, "%s/%s", kernels[i], variants[v]);
            if (fnmatch(pattern, name, 0) != 0) continue;
            /* the reference takes long, and the same for each row and token */
            const uint32_t few = v == VARIANT_ref ? 4 : ROWS_MAX / 2;
            for (size_t t = 0; t < (v == VARIANT_ref ? 1u : 4u); t++)
                for (uint32_t rows = few; rows <= 2 * few; rows *= 2) {
                    call c = of[i];
                    count(&c, name, marks, rows, tokens[t]);
                }
        }
    }
    return 0;
}
