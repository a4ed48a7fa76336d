/* selftest.h - what the parts of `calla selftest` share.
 *
 * Does:    verdicts go to stdout and into the report, notes into the report alone. The report is
 *          text for people, made to be attached to an issue: no user names, no paths.
 * Threads: one.
 */
#ifndef CALLA_CLI_SELFTEST_H
#define CALLA_CLI_SELFTEST_H

#include "base/attrs.h"
#include "base/mem.h"
#include "exec/gpu/device.h"
#include "model/shape.h"

typedef struct selftest_log {
    strbuf report;
    unsigned n_ok, n_failed;
} selftest_log;

/* A line of its own, without stop or newline. */
void selftest_verdict(selftest_log *t, bool ok, const char *fmt, ...) ATTR_PRINTF(3, 4);
void selftest_heading(selftest_log *t, const char *fmt, ...) ATTR_PRINTF(2, 3);
void selftest_note(selftest_log *t, const char *fmt, ...) ATTR_PRINTF(2, 3);

/* selftest_machine.c: system, processor and memory, into the report. */
void selftest_machine(selftest_log *t);

/* selftest_gpu.c: opens the device, CALLA_ERR_UNSUPPORTED when there is none; checks its kernels
 * and matrix products, measures its ceilings. name: [96], the device's. */
calla_status selftest_gpu(selftest_log *t, const char *backend, char *name, calla_error *err);

/* A prompt and what a session on the CPU says to it, greedily. */
typedef struct selftest_text {
    const int32_t *ids, *reply;
    size_t n;
    uint32_t n_reply; /* at most 32 */
} selftest_text;

/* selftest_sched.c: the same through the scheduler: alone, from the prefix cache, in company. */
calla_status selftest_sched(selftest_log *t, const char *model_dir, const selftest_text *x,
                            calla_error *err);

/* selftest_golden.c: the demonstration model against logits of another implementation; nothing for
 * other models. */
calla_status selftest_golden(selftest_log *t, const char *model_dir, calla_error *err);

/* selftest_speed.c: tokens a second of a model on a backend, beside the prediction for the device
 * where there is one. */
calla_status selftest_speed(selftest_log *t, const char *model_dir, const char *backend,
                            const char *pack_dir, const char *device, calla_error *err);

#endif
