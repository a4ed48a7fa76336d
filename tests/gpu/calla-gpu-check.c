/* calla-gpu-check.c - holds every GPU kernel against its plain C reference, on the emulator or a
 * device. The last line is "N passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fpenv.h"
#include "base/mem.h"
#include "check/check_priv.h"
#include "exec/gpu/simt/simt.h"
#include "msl.h"

/* Of the emulator itself; behind those of check_families. */
extern const check_case check_simt_cases[];

static const check_case *family(size_t i)
{
    if (i < check_n_families) return check_families[i];
    return i == check_n_families ? check_simt_cases : NULL;
}

typedef struct options {
    const char *device, *only;
    uint64_t seed;
    uint32_t n_draws, reps, rung;
    bool list, time, fast, early, graph, raw;
    double peak_gbs, peak_tflops;
} options;

static const char usage[] =
    "usage: calla-gpu-check [options]\n"
    "  --device simt|cuda|metal|msl\n"
    "                      default simt; msl: Metal's texts on the emulator\n"
    "  --rung N            of metal, msl: the kind of matrix tiles, 0 (scalar) to 3, default 0\n"
    "  --only TEXT,...     cases whose name contains a TEXT, or is NAME for =NAME\n"
    "  --seed N            default 1; values, shapes and the emulator's schedule\n"
    "  --draws N           draws a case, default 3\n"
    "  --graph             run programs as graphs\n"
    "  --early             let dispatches start early (PDL)\n"
    "  --raw               do not fill new buffers with NaN\n"
    "  --fast              the emulator without its checks\n"
    "  --time              time the cases, and run those that only measure\n"
    "  --reps N            repetitions when timing, default 20\n"
    "  --gbs X --tflops X  ceilings to print percentages of\n"
    "  --list              names of cases\n";

/* The emulator's schedule changes with every draw; other devices live on. */
static void open_device(check *c, const options *o, uint64_t schedule)
{
    calla_error err;
    calla_status st;
    const gpu_simt_options simt = {.seed = schedule, .check = !o->fast && !o->time};
    if (strcmp(o->device, "simt") == 0)
        st = gpu_simt_create(&c->dev, &simt, &err);
    else if (strcmp(o->device, "cuda") == 0)
        st = gpu_cuda_create(&c->dev, 0, &err);
    else if (strcmp(o->device, "metal") == 0)
        st = gpu_metal_create(
            &c->dev, &(gpu_metal_options){.max_rung = (int32_t)o->rung, .trust = true}, &err);
    else if (strcmp(o->device, "msl") == 0)
        st = simt_device_create(&c->dev, &(gpu_simt_options){.check = false},
                                msl_table((metal_rung)o->rung), &err);
    else
        st = err_set(&err, CALLA_ERR_UNSUPPORTED, "no driver \"%s\" in this build", o->device);
    const bool device = strcmp(o->device, "metal") == 0;
    c->metal = device || strcmp(o->device, "msl") == 0;
    c->codes = c->metal && o->rung == METAL_RUNG_TENSOR4;
    if (st == CALLA_OK) st = recorder_create(&c->rec, c->dev, &err);
    if (st != CALLA_OK) {
        fprintf(stderr, "calla-gpu-check: %s\n", err.message);
        exit(2);
    }
}

static void close_device(check *c)
{
    recorder_destroy(c->rec);
    if (c->dev != NULL) c->dev->ops->destroy(c->dev);
    c->rec = NULL;
    c->dev = NULL;
}

/* Values depend on the seed, the case's name and the draw alone, so that it can be run alone. */
static bool run_case(check *c, const check_case *k, const options *o)
{
    const bool simt = strcmp(o->device, "simt") == 0;
    const uint32_t n = (k->flags & CHECK_BENCH) != 0 ? 1 : o->n_draws;
    c->worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (simt) open_device(c, o, o->seed + i - 1); /* the first of seed 1 in ascending order */
        check_draw(c, k, o->seed + i);
        if (simt) close_device(c);
        if (!c->failed) continue;
        printf("FAIL %s (%s): %s\n", k->name, c->shape, c->failure);
        printf("     again: build/calla-gpu-check --device %s --rung %u --seed %llu --draws 1 "
               "--only %s%s\n",
               o->device, o->rung, (unsigned long long)(o->seed + i), k->name,
               o->fast ? " --fast" : "");
        (void)fflush(stdout);
        return false;
    }
    if (c->worst > 0)
        printf("ok   %s: worst error %.2f of the bound\n", k->name, c->worst);
    else
        printf("ok   %s\n", k->name);
    (void)fflush(stdout);
    return true;
}

/* list: parts of names, or =NAME, with commas between. */
static bool named(const char *name, const char *list)
{
    char part[128];
    for (const char *p = list; *p != '\0'; p += *p == ',') {
        const size_t n = strcspn(p, ",");
        snprintf(part, sizeof part, "%.*s", (int)(n < sizeof part ? n : sizeof part - 1), p);
        if (part[0] == '=' ? strcmp(name, part + 1) == 0 : strstr(name, part) != NULL) return true;
        p += n;
    }
    return false;
}

static bool wanted(const check_case *k, const options *o)
{
    if (o->only != NULL && !named(k->name, o->only)) return false;
    if ((k->flags & CHECK_BENCH) != 0 && !o->time) return false;
    const bool simt = strcmp(o->device, "simt") == 0;
    if (strcmp(o->device, "msl") == 0) return (k->flags & (CHECK_ON_DEVICE | CHECK_EMULATOR)) == 0;
    return (k->flags & (simt ? CHECK_ON_DEVICE : CHECK_EMULATOR)) == 0;
}

static int run_all(const options *o)
{
    static check c;
    unsigned n_passed = 0, n_failed = 0;
    c.time_reps = o->time ? o->reps : 0;
    c.early = o->early;
    c.graph = o->graph;
    c.raw = o->raw;
    c.peak_gbs = o->peak_gbs;
    c.peak_tflops = o->peak_tflops;
    if (strcmp(o->device, "simt") != 0) open_device(&c, o, 0);
    printf("device %s, seed %llu, %u draws\n", o->device, (unsigned long long)o->seed, o->n_draws);
    for (size_t f = 0; family(f) != NULL; f++)
        for (const check_case *k = family(f); k->name != NULL; k++) {
            if (!wanted(k, o)) continue;
            if (run_case(&c, k, o))
                n_passed++;
            else
                n_failed++;
        }
    close_device(&c);
    printf("%u passed, %u failed\n", n_passed, n_failed);
    return n_failed > 0 || n_passed == 0;
}

static double number(const char *option, const char *text)
{
    char *end = NULL;
    const double x = text == NULL ? -1 : strtod(text, &end);
    if (!(x >= 0) || end == text || *end != '\0') {
        fprintf(stderr, "calla-gpu-check: %s: expected a number, found \"%s\"\n", option,
                text != NULL ? text : "");
        exit(2);
    }
    return x;
}

static bool parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool *flag = strcmp(a, "--list") == 0    ? &o->list
                     : strcmp(a, "--time") == 0  ? &o->time
                     : strcmp(a, "--fast") == 0  ? &o->fast
                     : strcmp(a, "--graph") == 0 ? &o->graph
                     : strcmp(a, "--early") == 0 ? &o->early
                     : strcmp(a, "--raw") == 0   ? &o->raw
                                                 : NULL;
        if (flag != NULL) {
            *flag = true;
            continue;
        }
        i++;
        if (strcmp(a, "--device") == 0 && value != NULL)
            o->device = value;
        else if (strcmp(a, "--only") == 0 && value != NULL)
            o->only = value;
        else if (strcmp(a, "--seed") == 0)
            o->seed = (uint64_t)number(a, value);
        else if (strcmp(a, "--draws") == 0)
            o->n_draws = (uint32_t)number(a, value);
        else if (strcmp(a, "--rung") == 0)
            o->rung = (uint32_t)number(a, value);
        else if (strcmp(a, "--reps") == 0)
            o->reps = (uint32_t)number(a, value);
        else if (strcmp(a, "--gbs") == 0)
            o->peak_gbs = number(a, value);
        else if (strcmp(a, "--tflops") == 0)
            o->peak_tflops = number(a, value);
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    options o = {.device = "simt", .seed = 1, .n_draws = 3, .reps = 20};
    if (!parse(&o, argc, argv) || o.reps == 0 || o.rung >= METAL_RUNGS) {
        fputs(usage, stderr);
        return 2;
    }
    (void)fpenv_flush_denormals();
    if (!o.list) return run_all(&o);
    for (size_t f = 0; family(f) != NULL; f++)
        for (const check_case *k = family(f); k->name != NULL; k++)
            puts(k->name);
    return 0;
}
