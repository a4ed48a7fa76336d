/* basic.h: embedding, norm, top-8, argmax, sampling. */
#include <math.h>
#include <string.h>

#include "check/check.h"
#include "engine/sampler.h"
#include "kernels/ref_basic.h"

static const model_shape *any_shape(check *c)
{
    return check_below(c, 2) == 0 ? &check_nano : &shape_35b;
}

static void embed(check *c)
{
    model_shape s = *any_shape(c);
    s.n_vocab = 50;
    gpu_context *g = check_context(c, &s);
    const uint32_t n = 1 + check_below(c, 5), h = s.hidden;
    check_shape(c, "T %u, H %u", n, h);
    tok_entry *tok = check_host(c, n * sizeof *tok);
    for (uint32_t t = 0; t < n; t++)
        tok[t] = (tok_entry){check_below(c, s.n_vocab), check_below(c, 262144), t, 0};
    const uint32_t *codes = check_words(c, (uint64_t)s.n_vocab * h / 8);
    const uint32_t *sb = check_scales(c, (uint64_t)s.n_vocab * h / 64, -8);
    const float *freq = check_floats(c, 32, 0, 1);
    const gpu_q4 w = {check_view(c, "codes", (uint64_t)s.n_vocab * h / 2, codes),
                      check_view(c, "sb", (uint64_t)s.n_vocab * h / 16, sb), s.n_vocab, h};
    const gpu_view x = check_view(c, "x", (uint64_t)n * h * 4, NULL);
    const gpu_view rope = check_view(c, "rope", n * 256, NULL);
    op_embed(g, n, check_view(c, "tok", n * sizeof *tok, tok), &w, check_view(c, "freq", 128, freq),
             x, rope);
    if (!check_run(c)) return;
    float *want = check_host(c, (uint64_t)n * h * 4), *want_rope = check_host(c, n * 256);
    ref_embed(n, h, tok, codes, sb, freq, want, want_rope);
    check_same_f32(c, "x", check_fetch(c, x), want, n, h);
    check_same_f32(c, "rope", check_fetch(c, rope), want_rope, n, 64);
}

static void norm_bf16(check *c)
{
    static const uint32_t widths[] = {64, 256, 320, 2048};
    model_shape s = check_nano;
    s.hidden = CHECK_PICK(c, widths);
    gpu_context *g = check_context(c, &s);
    const uint32_t n = 1 + check_below(c, 7), h = s.hidden;
    check_shape(c, "T %u, H %u", n, h);
    const float *x = check_floats(c, (uint64_t)n * h, -3, 3), *w = check_floats(c, h, 0.5f, 2);
    const gpu_view y = check_view(c, "y", (uint64_t)n * h * 2, NULL);
    op_norm_bf16(g, n, check_view(c, "x", (uint64_t)n * h * 4, x), check_view(c, "w", h * 4, w), y);
    if (!check_run(c)) return;
    uint16_t *want = check_host(c, (uint64_t)n * h * 2);
    ref_norm_bf16(n, h, s.rms_eps, x, w, want);
    check_same_u16(c, "y", check_fetch(c, y), want, n, h);
}

/* Few different values, so that ties are common. */
static float *tied_logits(check *c, uint64_t n, uint32_t n_values)
{
    float *x = check_host(c, n * 4);
    const uint32_t middle = n_values / 2;
    for (uint64_t i = 0; i < n; i++) {
        x[i] = ((float)check_below(c, n_values) - (float)middle) * 0.37f;
        if (x[i] == 0.0f && check_below(c, 2) == 0) x[i] = -0.0f;
    }
    return x;
}

static void top8(check *c)
{
    static const uint32_t experts[] = {16, 32, 100, 256, 257, 1024};
    static const uint32_t values[] = {3, 20, 100000};
    model_shape s = shape_35b;
    s.n_experts = CHECK_PICK(c, experts);
    if (check_below(c, 3) == 0) s.n_experts_used = 1 + check_below(c, 16);
    gpu_context *g = check_context(c, &s);
    const uint32_t n = 1 + check_below(c, 9), e = s.n_experts, u = s.n_experts_used;
    check_shape(c, "T %u, E %u, U %u", n, e, u);
    const float *logits = tied_logits(c, (uint64_t)n * (e + 1), CHECK_PICK(c, values));
    const gpu_view ids = check_view(c, "ids", n * u * 4, NULL);
    const gpu_view weights = check_view(c, "weights", n * (u + 1) * 4, NULL);
    op_top8(g, n, check_view(c, "logits", (uint64_t)n * (e + 1) * 4, logits), ids, weights);
    if (!check_run(c)) return;
    uint32_t *want_ids = check_host(c, n * u * 4);
    float *want = check_host(c, n * (u + 1) * 4);
    ref_top8(n, e, u, logits, want_ids, want);
    check_same_u32(c, "ids", check_fetch(c, ids), want_ids, n, u);
    check_same_f32(c, "weights", check_fetch(c, weights), want, n, u + 1);
}

static void argmax(check *c)
{
    static const uint32_t vocabularies[] = {64, 4096, 4160, 20000};
    static const uint32_t values[] = {3, 1000, 1000000};
    model_shape s = check_nano;
    s.n_vocab = CHECK_PICK(c, vocabularies);
    gpu_context *g = check_context(c, &s);
    const uint32_t n = 1 + check_below(c, 3), n_valid = s.n_vocab - check_below(c, 60);
    check_shape(c, "T %u, V %u of %u", n, n_valid, s.n_vocab);
    float *logits = tied_logits(c, (uint64_t)n * s.n_vocab, CHECK_PICK(c, values));
    for (uint32_t i = n_valid; i < s.n_vocab; i++)
        logits[i] = 1e20f;
    const gpu_view best = check_view(c, "best", n * 4, NULL);
    op_argmax(g, n, n_valid, check_view(c, "logits", (uint64_t)n * s.n_vocab * 4, logits),
              check_view(c, "scratch", op_argmax_scratch(&s, n), NULL), best);
    if (!check_run(c)) return;
    uint32_t *want = check_host(c, n * 4);
    ref_argmax(n, s.n_vocab, n_valid, logits, want);
    check_same_u32(c, "best", check_fetch(c, best), want, 1, n);
}

/* ---- Sampling: the ids of the engine's sampler, step after step ---- */

#define N_SEQUENCES 4u
#define N_STEPS     6u
#define N_BANNED    40u

static calla_sampling any_sampling(check *c)
{
    static const float temperatures[] = {0.0f, 0.01f, 0.6f, 1.0f, 1.0f, 1.0f, 3.0f, 100.0f};
    static const float top_ps[] = {0.0f, 0.3f, 0.8f, 0.95f, 0.9999f, 1.0f};
    static const int32_t top_ks[] = {1, 2, 20, 20, 40, 63, 64};
    calla_sampling p = {.temperature = CHECK_PICK(c, temperatures),
                        .top_p = CHECK_PICK(c, top_ps),
                        .top_k = CHECK_PICK(c, top_ks),
                        .seed = check_random(c)};
    if (check_below(c, 3) == 0) p.min_p = check_uniform(c, 0, 0.5f);
    if (check_below(c, 3) == 0) p.presence_penalty = check_uniform(c, -2, 2);
    if (check_below(c, 3) == 0) p.frequency_penalty = check_uniform(c, -2, 2);
    if (check_below(c, 3) == 0) p.repetition_penalty = check_uniform(c, 0.5f, 2);
    return p;
}

/* Logits of one step: rough ones with many ties, or fine ones; now and then a row to refuse. */
static void any_rows(check *c, float *logits, uint32_t n, uint32_t n_vocab)
{
    for (uint32_t t = 0; t < n; t++) {
        const bool fine = check_below(c, 3) != 0;
        for (uint32_t i = 0; i < n_vocab; i++)
            logits[t * n_vocab + i] =
                fine ? check_uniform(c, -12, 12) : (float)check_below(c, 9) * 0.5f - 2.0f;
        if (check_below(c, 4) == 0) /* as a forbidden id */
            logits[t * n_vocab + check_below(c, n_vocab)] = -INFINITY;
        if (check_below(c, 30) == 0)
            logits[t * n_vocab + N_BANNED + check_below(c, n_vocab - N_BANNED)] = INFINITY;
    }
}

typedef struct sample_run {
    uint32_t n_vocab;
    sampler *cpu[N_SEQUENCES];
    gpu_sampling gpu;
    int32_t banned[N_BANNED];
} sample_run;

static void begin_sampling(check *c, sample_run *r)
{
    const uint32_t v = r->n_vocab;
    uint32_t *bits = check_host(c, v / 8 + 4), *counts = check_host(c, N_SEQUENCES * v * 4);
    sample_entry *entries = check_host(c, N_SEQUENCES * sizeof *entries);
    tok_entry *tok = check_host(c, N_SEQUENCES * sizeof *tok);
    calla_error err;
    for (uint32_t i = 0; i < N_BANNED; i++) {
        r->banned[i] = (int32_t)(3 * i);
        bits[3 * i / 32] |= 1u << (3 * i % 32);
    }
    for (uint32_t t = 0; t < N_SEQUENCES; t++) {
        const calla_sampling p = any_sampling(c);
        int32_t history[30];
        for (uint32_t i = 0; i < 30; i++)
            history[i] = (int32_t)check_below(c, v);
        if (sampler_create(&r->cpu[t], v, r->banned, N_BANNED, &err) != CALLA_OK) {
            check_fail(c, "%s", err.message);
            return;
        }
        sampler_begin(r->cpu[t], &p, history, 30);
        if (!sampler_export(r->cpu[t], &entries[t])) check_fail(c, "the sampler is not exported");
        entries[t].slot = N_SEQUENCES - 1 - t;
        sampler_export_counts(r->cpu[t], counts + (size_t)entries[t].slot * v);
        tok[t] = (tok_entry){.pos = 100 + t, .slot = 7, .kv_row = 9};
    }
    r->gpu = (gpu_sampling){
        .banned = check_view(c, "banned", (v + 31) / 32 * 4, bits),
        .entries = check_view(c, "entries", N_SEQUENCES * sizeof *entries, entries),
        .counts = check_view(c, "counts", (uint64_t)N_SEQUENCES * v * 4, counts),
        .ring = check_view(c, "ring", N_SEQUENCES * 4 * 4, check_host(c, N_SEQUENCES * 4 * 4)),
        .tok = check_view(c, "tok", N_SEQUENCES * sizeof *tok, tok),
        .n_slots = N_SEQUENCES,
        .ring_len = 4,
    };
    if (check_below(c, 3) == 0) r->gpu.tok.buf = NULL;
}

static void one_step(check *c, sample_run *r, const model_shape *s, uint32_t step)
{
    gpu_context *g = check_context(c, s);
    float *logits = check_host(c, (uint64_t)N_SEQUENCES * r->n_vocab * 4);
    any_rows(c, logits, N_SEQUENCES, r->n_vocab);
    op_sample(g, N_SEQUENCES,
              check_view(c, "logits", (uint64_t)N_SEQUENCES * r->n_vocab * 4, logits), &r->gpu,
              check_view(c, "scratch", op_sample_scratch(s, N_SEQUENCES), NULL));
    if (!check_run(c)) return;
    const uint32_t *ring = check_fetch(c, r->gpu.ring);
    const tok_entry *tok = r->gpu.tok.buf != NULL ? check_fetch(c, r->gpu.tok) : NULL;
    for (uint32_t t = 0; t < N_SEQUENCES; t++) {
        calla_error err;
        int32_t id = 0;
        const uint32_t got = ring[4 * t + step % 4];
        if (sampler_draw(r->cpu[t], logits + (size_t)t * r->n_vocab, &id, &err) != CALLA_OK) {
            if (got != SAMPLE_BAD)
                check_fail(c, "id %u of a row that is refused: %s", got, err.message);
            sampler_skip(r->cpu[t]);
            continue;
        }
        sampler_accept(r->cpu[t], id);
        if (got != (uint32_t)id)
            check_fail(c, "step %u, sequence %u: id %u, expected %d", step, t, got, id);
        if (tok != NULL && (tok[t].token != (uint32_t)id || tok[t].pos != 101 + t + step ||
                            tok[t].slot != 7 || tok[t].kv_row != 9))
            check_fail(c, "the token table says %u at %u", tok[t].token, tok[t].pos);
    }
}

static void sample(check *c)
{
    static const uint32_t vocabularies[] = {512, 4096, 4128, 9000};
    model_shape s = check_nano;
    s.n_vocab = CHECK_PICK(c, vocabularies);
    sample_run r = {.n_vocab = s.n_vocab};
    check_shape(c, "V %u", s.n_vocab);
    begin_sampling(c, &r);
    for (uint32_t step = 0; step < N_STEPS && !check_failed(c); step++)
        one_step(c, &r, &s, step);
    for (uint32_t t = 0; t < N_SEQUENCES; t++)
        sampler_destroy(r.cpu[t]);
}

static void sample_bench(check *c)
{
    const uint32_t n = 4, v = shape_35b.n_vocab;
    gpu_context *g = check_context(c, &shape_35b);
    sample_entry *entries = check_host(c, n * sizeof *entries);
    for (uint32_t t = 0; t < n; t++)
        entries[t] = (sample_entry){.top_k = 20, .by = 1, .top_p = 0.95f, .rng = {1, 2, 3, 4}};
    const gpu_sampling sampling = {
        .banned = check_view(c, "banned", v / 8, check_host(c, v / 8)),
        .entries = check_view(c, "entries", n * sizeof *entries, entries),
        .counts = check_view(c, "counts", v * 4, NULL),
        .ring = check_view(c, "ring", n * 4, NULL),
        .n_slots = 1,
        .ring_len = 1,
    };
    check_shape(c, "V %u, T %u", v, n);
    const float *logits = check_floats(c, (uint64_t)n * v, -9, 9);
    op_sample(g, n, check_view(c, "logits", (uint64_t)n * v * 4, logits), &sampling,
              check_view(c, "scratch", op_sample_scratch(&shape_35b, n), NULL));
    check_run(c);
}

static void argmax_bench(check *c)
{
    gpu_context *g = check_context(c, &shape_35b);
    const uint32_t v = shape_35b.n_vocab;
    check_shape(c, "V %u", v);
    const gpu_view logits = check_view(c, "logits", (uint64_t)v * 4, check_floats(c, v, -9, 9));
    op_argmax(g, 1, 248077, logits,
              check_view(c, "scratch", op_argmax_scratch(&shape_35b, 1), NULL),
              check_view(c, "best", 4, NULL));
    check_run(c);
}

const check_case check_basic_cases[] = {
    {"basic_embed", embed, 0},
    {"basic_norm_bf16", norm_bf16, 0},
    {"basic_top8", top8, 0},
    {"basic_argmax", argmax, 0},
    {"basic_sample", sample, 0},
    {"basic_sample_bench", sample_bench, CHECK_BENCH},
    {"basic_argmax_bench", argmax_bench, CHECK_BENCH},
    {NULL, NULL, 0},
};
