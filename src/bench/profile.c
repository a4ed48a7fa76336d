#include "bench/profile.h"

#include <stdio.h>
#include <string.h>

typedef struct profile_row {
    const char *label, *kernel;
    uint32_t n;
    double bytes, flops, seconds;
} profile_row;

typedef struct profile {
    profile_row rows[128];
    uint32_t n_rows, n_kernels, n_stages;
    double seconds;
} profile;

static void add_stage(void *user, const exec_stage *s)
{
    profile *p = user;
    uint32_t i = 0;
    while (i < p->n_rows &&
           (strcmp(p->rows[i].label, s->label) != 0 || strcmp(p->rows[i].kernel, s->kernel) != 0))
        i++;
    if (i == 128) i--;
    profile_row *r = &p->rows[i];
    if (i == p->n_rows) {
        *r = (profile_row){.label = s->label, .kernel = s->kernel};
        p->n_rows++;
    }
    r->n++;
    r->bytes += s->bytes;
    r->flops += s->flops;
    r->seconds += s->seconds;
    p->seconds += s->seconds;
    p->n_kernels++;
    if (s->level + 1 > p->n_stages) p->n_stages = s->level + 1;
}

calla_status profile_step(executor *ex, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                          calla_error *err)
{
    static profile p;
    p = (profile){.n_rows = 0};
    if (ex->ops->profile == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "%s cannot be profiled", ex->ops->name);
    const calla_status st = ex->ops->profile(ex, prefill, n_tokens, n_ctx, add_stage, &p, err);
    if (st != CALLA_OK) return st;
    printf("%s of %u tokens at %u: %u kernels, %u stages, %.1f us together\n",
           prefill ? "prefill" : "decode", n_tokens, n_ctx, p.n_kernels, p.n_stages,
           p.seconds * 1e6);
    printf("  %-16s %-26s %6s %10s %7s %9s %9s\n", "step", "kernel", "times", "us each", "share",
           "GB/s", "TFLOP/s");
    for (uint32_t i = 0; i < p.n_rows; i++) {
        const profile_row *r = &p.rows[i];
        printf("  %-16s %-26s %6u %10.2f %6.1f%% %9.1f %9.2f\n", r->label, r->kernel, r->n,
               r->seconds * 1e6 / r->n, 100.0 * r->seconds / p.seconds, r->bytes / r->seconds / 1e9,
               r->flops / r->seconds / 1e12);
    }
    (void)fflush(stdout);
    return CALLA_OK;
}
