/* basic.h: embedding, norm, top-8, argmax. */
#include "check.h"
#include "kernels/ref_basic.h"

static const model_shape *any_shape(check *c)
{
    return check_below(c, 2) == 0 ? &check_nano : &check_35b;
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
    for (uint64_t i = 0; i < n; i++) {
        x[i] = ((float)check_below(c, n_values) - (float)(n_values / 2)) * 0.37f;
        if (x[i] == 0.0f && check_below(c, 2) == 0) x[i] = -0.0f;
    }
    return x;
}

static void top8(check *c)
{
    static const uint32_t experts[] = {16, 32, 100, 256, 257, 1024};
    static const uint32_t values[] = {3, 20, 100000};
    model_shape s = check_35b;
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

static void argmax_bench(check *c)
{
    gpu_context *g = check_context(c, &check_35b);
    const uint32_t v = check_35b.n_vocab;
    check_shape(c, "V %u", v);
    const gpu_view logits = check_view(c, "logits", (uint64_t)v * 4, check_floats(c, v, -9, 9));
    op_argmax(g, 1, 248077, logits,
              check_view(c, "scratch", op_argmax_scratch(&check_35b, 1), NULL),
              check_view(c, "best", 4, NULL));
    check_run(c);
}

const check_case check_basic_cases[] = {
    {"basic_embed", embed, 0},
    {"basic_norm_bf16", norm_bf16, 0},
    {"basic_top8", top8, 0},
    {"basic_argmax", argmax, 0},
    {"basic_argmax_bench", argmax_bench, CHECK_BENCH},
    {NULL, NULL, 0},
};
