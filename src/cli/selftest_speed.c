/* How fast a model runs, for `calla selftest`: one prompt, one answer, the time of each kernel, and
 * what was predicted. */
#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "cli/selftest.h"
#include "engine/engine.h"
#include "exec/predict.h"

#define PROMPT 512u
#define STEPS  64u

typedef struct speed {
    double prefill, decode; /* tokens/s */
    uint32_t n;
} speed;

static calla_status run(calla_session *s, uint32_t n, int32_t n_vocab, speed *out, calla_error *err)
{
    int32_t ids[PROMPT];
    const calla_generate_options o = {
        .sampling = &(calla_sampling){0}, .max_tokens = STEPS, .ignore_eos = true};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 7919u + 13u) % (uint32_t)n_vocab);
    double t0 = time_now();
    calla_status st = calla_session_feed(s, ids, n, NULL, NULL, err);
    out->prefill = n / (time_now() - t0);
    out->n = n;
    t0 = time_now();
    if (st == CALLA_OK) st = calla_session_generate(s, &o, NULL, NULL, NULL, err);
    out->decode = STEPS / (time_now() - t0);
    return st;
}

static void note_stage(void *user, const exec_stage *s)
{
    selftest_note(user, "  %-16s %-26s level %4u, %6u groups: %9.2f us, %8.1f GB/s, %7.3f TFLOP/s",
                  s->label, s->kernel, s->level, s->groups, s->seconds * 1e6,
                  s->seconds > 0 ? s->bytes / s->seconds / 1e9 : 0.0,
                  s->seconds > 0 ? s->flops / s->seconds / 1e12 : 0.0);
}

static calla_status profile(selftest_log *t, executor *ex, uint32_t n, calla_error *err)
{
    if (ex->ops->profile == NULL) return CALLA_OK;
    selftest_note(t, "a decode step at %u tokens, every dispatch timed alone", n);
    calla_status st = ex->ops->profile(ex, false, 1, n, note_stage, t, err);
    if (st != CALLA_OK) return st;
    selftest_note(t, "a prefill chunk of %u tokens, every dispatch timed alone", n);
    return ex->ops->profile(ex, true, n, n, note_stage, t, err);
}

static calla_status note_prediction(selftest_log *t, const model_shape *shape, const char *device,
                                    const speed *v, calla_error *err)
{
    const exec_chip *chip = exec_chip_of(device);
    exec_prediction d, p;
    if (chip == NULL) return CALLA_OK;
    calla_status st = exec_gpu_predict(shape, chip, false, v->n + STEPS / 2, &d, err);
    if (st == CALLA_OK) st = exec_gpu_predict(shape, chip, true, v->n, &p, err);
    if (st != CALLA_OK) return st;
    const double prefill = v->n / p.seconds, decode = 1.0 / d.seconds;
    selftest_note(t, "  predicted for %s with %s: prefill %.0f, decode %.0f tokens/s", chip->device,
                  chip->tiles, prefill, decode);
    selftest_note(t, "  measured / predicted: prefill %.2f, decode %.2f", v->prefill / prefill,
                  v->decode / decode);
    return st;
}

calla_status selftest_speed(selftest_log *t, const char *model_dir, const char *backend,
                            const char *pack_dir, const char *device, calla_error *err)
{
    const calla_engine_options eo = {
        .model_dir = model_dir, .backend = backend, .pack_dir = pack_dir};
    calla_engine *e = NULL;
    calla_session *s = NULL;
    calla_engine_info info;
    speed v = {0};
    const uint32_t n = PROMPT;
    const double t0 = time_now();
    calla_status st;
    TRY(calla_engine_create(&e, &eo, err));
    const double opened = time_now() - t0;
    calla_engine_get_info(e, &info);
    const calla_session_options so = {.n_ctx = n + STEPS + 1};
    for (int i = 0; i < 2; i++) { /* the first one warms up */
        TRY(calla_session_create(&s, e, &so, err));
        TRY(run(s, n, info.n_tokens, &v, err));
        calla_session_destroy(s);
        s = NULL;
    }
    selftest_heading(t, "speed on %s (%s)", info.backend, info.variant);
    selftest_note(t, "  model: %.3f GB of weights, %.3f GB read a token; opened in %.1f s",
                  (double)info.weight_bytes / 1e9, (double)info.active_bytes / 1e9, opened);
    selftest_note(t, "  prefill of %u tokens %.1f tokens/s, decode after them %.1f tokens/s", n,
                  v.prefill, v.decode);
    (void)printf("  prefill %.0f tokens/s, decode %.0f tokens/s\n", v.prefill, v.decode);
    TRY(note_prediction(t, &e->shape, device, &v, err));
    st = profile(t, e->ex, n, err);
fail:
    calla_session_destroy(s);
    calla_engine_destroy(e);
    return st;
}
