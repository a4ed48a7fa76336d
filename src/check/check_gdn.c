/* Gated DeltaNet. */
#include <math.h>
#include <string.h>

#include "check/check.h"
#include "exec/gpu/ops_gdn.h"
#include "kernels/kmath.h"
#include "kernels/ref_gdn.h"

#define SLOTS 5u

/* A layer on the device and its copy for the reference, which advances with it. */
typedef struct layer {
    const model_shape *shape;
    uint32_t channels, vw, pitch, n_slots;
    uint64_t state_floats, ring_floats;
    ref_gdn ref;
    gpu_gdn gpu;
} layer;

static const float *values(check *c, const char *name, uint64_t n, float a, float b, gpu_view *v)
{
    float *x = check_floats(c, n, a, b);
    *v = check_view(c, name, n * sizeof *x, x);
    return x;
}

static layer layer_create(check *c, const model_shape *s, uint32_t n_slots)
{
    layer l = {.shape = s, .n_slots = n_slots};
    l.channels = shape_conv_channels(s);
    l.vw = shape_gdn_v_width(s);
    l.pitch = l.channels + l.vw + 2 * s->gdn_v_heads;
    l.state_floats = (uint64_t)n_slots * s->gdn_v_heads * GDN_HEAD_FLOATS;
    l.ring_floats = (uint64_t)n_slots * 4 * l.channels;
    l.ref.k_heads = s->gdn_k_heads;
    l.ref.v_heads = s->gdn_v_heads;
    l.ref.eps = s->rms_eps;
    l.ref.conv = values(c, "conv", 4 * (uint64_t)l.channels, -0.6f, 0.6f, &l.gpu.conv);
    l.ref.rate = values(c, "rate", s->gdn_v_heads, 0.0f, 4.0f, &l.gpu.rate);
    l.ref.dt = values(c, "dt", s->gdn_v_heads, -4.0f, 1.0f, &l.gpu.dt);
    l.ref.norm = values(c, "norm", 128, 0.5f, 1.5f, &l.gpu.norm);
    l.ref.state = check_floats(c, l.state_floats, -1.0f, 1.0f);
    l.gpu.state = check_view(c, "state", l.state_floats * 4, l.ref.state);
    l.ref.ring = check_floats(c, l.ring_floats, -2.0f, 2.0f);
    l.gpu.ring = check_view(c, "ring", l.ring_floats * 4, l.ref.ring);
    return l;
}

/* A batch: y, tokens and segments. */
typedef struct batch {
    uint32_t n, n_segs;
    tok_entry *tok;
    seg_entry *seg;
    float *y;
} batch;

static float *batch_y(check *c, const layer *l, uint32_t n)
{
    float *y = check_floats(c, (uint64_t)n * l->pitch, -2.0f, 2.0f);
    for (uint32_t t = 0; t < n; t++) /* gates of all sizes */
        for (uint32_t i = l->channels + l->vw; i < l->pitch; i++)
            y[(uint64_t)t * l->pitch + i] *= check_uniform(c, 0.0f, 5.0f);
    return y;
}

/* Segments of the given lengths in different slots; first positions include 0, 1, 2. */
static batch batch_create(check *c, const layer *l, uint32_t n_segs, const uint32_t *lengths)
{
    static const uint32_t pos[] = {0, 0, 1, 2, 3, 7, 4096};
    batch b = {.n_segs = n_segs};
    for (uint32_t i = 0; i < n_segs; i++)
        b.n += lengths[i];
    b.tok = check_host(c, b.n * sizeof *b.tok);
    b.seg = check_host(c, n_segs * sizeof *b.seg);
    b.y = batch_y(c, l, b.n);
    const uint32_t slot0 = check_below(c, l->n_slots);
    uint32_t t = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        b.seg[i] = (seg_entry){.first = t,
                               .n = lengths[i],
                               .slot = (slot0 + i) % l->n_slots,
                               .pos = CHECK_PICK(c, pos)};
        for (uint32_t j = 0; j < lengths[i]; j++, t++)
            b.tok[t] = (tok_entry){.pos = b.seg[i].pos + j, .slot = b.seg[i].slot};
    }
    return b;
}

static void compare_layer(check *c, const layer *l)
{
    check_same_f32(c, "state", check_fetch(c, l->gpu.state), l->ref.state,
                   l->state_floats / GDN_HEAD_FLOATS, GDN_HEAD_FLOATS);
    check_same_f32(c, "ring", check_fetch(c, l->gpu.ring), l->ref.ring,
                   l->ring_floats / l->channels, l->channels);
}

/* ---- Decode ---- */

static gpu_view zeroed(check *c, const char *name, uint64_t bytes)
{
    return check_view(c, name, bytes, check_host(c, bytes));
}

/* Two steps of n sequences. */
static void step(check *c, const model_shape *s, uint32_t n, bool fused, bool split)
{
    gpu_context *g = check_context(c, s);
    g->off[GPU_SW_fuse_gdnnorm] = !fused;
    g->n_cores = split ? 1000 : 1;
    layer l = layer_create(c, s, SLOTS);
    static const uint32_t ones[SLOTS] = {1, 1, 1, 1, 1};
    const gpu_view scratch = zeroed(c, "scratch", op_gdn_step_scratch(s, n));
    batch b = batch_create(c, &l, n, ones);
    check_shape(c, "%u tokens, %s%s", n, fused ? "fused" : "plain", split ? ", split" : "");
    for (uint32_t i = 0; i < 2 && !check_failed(c); i++) {
        const gpu_view tok = check_view(c, "tok", n * sizeof *b.tok, b.tok);
        const gpu_view y = check_view(c, "y", (uint64_t)n * l.pitch * 4, b.y);
        const gpu_view o = check_view(c, "o", (uint64_t)n * l.vw * 4, NULL);
        op_gdn_step(g, n, tok, &l.gpu, y, scratch, o);
        if (!check_run(c)) return;
        if (check_timing(c)) return;
        float *want = check_host(c, (uint64_t)n * l.vw * 4);
        ref_gdn_decode(&l.ref, n, b.tok, b.y, want);
        check_same_f32(c, "o", check_fetch(c, o), want, n, l.vw);
        compare_layer(c, &l);
        b.y = batch_y(c, &l, n);
        for (uint32_t t = 0; t < n; t++)
            b.tok[t].pos++;
    }
}

static void step_nano(check *c)
{
    step(c, &check_nano, 1 + check_below(c, SLOTS), true, false);
}

static void step_split_nano(check *c)
{
    step(c, &check_nano, 1 + check_below(c, SLOTS), true, true);
}

static void step_raw_nano(check *c)
{
    step(c, &check_nano, 1 + check_below(c, SLOTS), false, false);
}

static void step_35b(check *c)
{
    step(c, &shape_35b, 1 + check_below(c, SLOTS), check_below(c, 3) != 0, check_below(c, 2) != 0);
}

/* ---- Prefill ---- */

static gpu_view scan(check *c, gpu_context *g, const gdn_scan_kind *kind, const layer *l,
                     const batch *b)
{
    const gpu_view tok = check_view(c, "tok", b->n * sizeof *b->tok, b->tok);
    const gpu_view seg = check_view(c, "seg", b->n_segs * sizeof *b->seg, b->seg);
    const gpu_view y = check_view(c, "y", (uint64_t)b->n * l->pitch * 4, b->y);
    const gpu_view o = check_view(c, "o", (uint64_t)b->n * l->vw * 2, NULL);
    const gpu_view scratch =
        check_view(c, "scratch", op_gdn_scan_scratch(l->shape, b->n, b->n_segs), NULL);
    if (kind != NULL)
        gdn_scan_with(g, kind, b->n, b->n_segs, tok, seg, &l->gpu, y, scratch, o);
    else
        op_gdn_scan(g, b->n, b->n_segs, tok, seg, &l->gpu, y, scratch, o);
    (void)check_run(c);
    return o;
}

static void compare_scan(check *c, const gdn_scan_kind *kind, const layer *l, const batch *b,
                         gpu_view o)
{
    if (check_failed(c) || check_timing(c)) return;
    uint16_t *want = check_host(c, (uint64_t)b->n * l->vw * 2);
    ref_gdn_prefill(&l->ref, b->n, b->tok, b->y, kind->lanes, kind->one, want);
    check_same_u16(c, "o", check_fetch(c, o), want, b->n, l->vw);
    compare_layer(c, l);
}

static void scan_case(check *c, const model_shape *s, uint32_t n_max, const gdn_scan_kind *kind)
{
    const uint32_t n_segs = 1 + check_below(c, 3);
    uint32_t lengths[3] = {0};
    for (uint32_t i = 0; i < n_segs; i++)
        lengths[i] = 1 + check_below(c, check_below(c, 3) == 0 ? 5 : n_max);
    layer l = layer_create(c, s, SLOTS);
    const batch b = batch_create(c, &l, n_segs, lengths);
    check_shape(c, "%s, %u segments, %u tokens, first %u at %u", kernel_table[kind->kernel].name,
                n_segs, b.n, lengths[0], b.seg[0].pos);
    compare_scan(c, kind, &l, &b, scan(c, check_context(c, s), kind, &l, &b));
}

#define SCAN_NANO(i)                                                                               \
    static void scan_nano_##i(check *c)                                                            \
    {                                                                                              \
        scan_case(c, &check_nano, 40, &gdn_scan_kinds[i]);                                         \
    }
SCAN_NANO(0)
SCAN_NANO(1)
SCAN_NANO(2)
SCAN_NANO(3)
SCAN_NANO(4)
SCAN_NANO(5)
SCAN_NANO(6)
SCAN_NANO(7)

static void scan_35b(check *c)
{
    scan_case(c, &shape_35b, 200, &gdn_scan_kinds[check_below(c, GDN_SCAN_KINDS)]);
}

/* Which kernel each switch means; all of them compute the definition. */
static void scan_switches(check *c)
{
    static const uint32_t switches[] = {GPU_SW_gdn_regs, GPU_SW_gdn_staged,
                                        GPU_SW_gdn_one_reduction};
    gpu_context *g = check_context(c, &check_nano);
    layer l = layer_create(c, &check_nano, SLOTS);
    const uint32_t n = 1 + check_below(c, 20);
    const batch b = batch_create(c, &l, 1, &n);
    for (uint32_t i = 0; i < 3; i++)
        g->off[switches[i]] = check_below(c, 2) != 0;
    check_shape(c, "%u tokens, off: %d %d %d", n, g->off[switches[0]], g->off[switches[1]],
                g->off[switches[2]]);
    gdn_scan_kind kind = gdn_scan_kinds[0];
    kind.one = !g->off[GPU_SW_gdn_one_reduction];
    if (g->off[GPU_SW_gdn_staged] && !g->off[GPU_SW_gdn_regs]) kind.lanes = 32;
    compare_scan(c, &kind, &l, &b, scan(c, g, NULL, &l, &b));
}

/* ---- Invariants ---- */

static batch piece(check *c, const layer *l, const batch *whole, uint32_t first, uint32_t n)
{
    batch p = {.n = n, .n_segs = 1, .tok = whole->tok + first};
    p.y = whole->y + (uint64_t)first * l->pitch;
    p.seg = check_host(c, sizeof *p.seg);
    *p.seg = whole->seg[0];
    p.seg->n = n;
    p.seg->pos += first;
    return p;
}

/* A segment scanned in pieces gives the bits of one scan: outputs, state, ring. */
static void pieces(check *c)
{
    const gdn_scan_kind *kind = &gdn_scan_kinds[check_below(c, GDN_SCAN_KINDS)];
    gpu_context *g = check_context(c, &check_nano);
    layer l = layer_create(c, &check_nano, SLOTS);
    const uint32_t n = 20 + check_below(c, 30);
    const batch b = batch_create(c, &l, 1, &n);
    check_shape(c, "%s, %u tokens at %u", kernel_table[kind->kernel].name, n, b.seg[0].pos);
    layer m = l;
    m.gpu.state = check_view(c, "state 2", l.state_floats * 4, l.ref.state);
    m.gpu.ring = check_view(c, "ring 2", l.ring_floats * 4, l.ref.ring);
    const uint16_t *whole = check_fetch(c, scan(c, g, kind, &l, &b));
    for (uint32_t first = 0; first < n && !check_failed(c);) {
        const uint32_t left = n - first, size = 1 + check_below(c, 17);
        const batch p = piece(c, &l, &b, first, size < left ? size : left);
        const uint16_t *o = check_fetch(c, scan(c, g, kind, &m, &p));
        check_same_u16(c, "o of a piece", o, whole + (uint64_t)first * l.vw, p.n, l.vw);
        first += p.n;
    }
    if (check_failed(c)) return;
    check_same_f32(c, "state", check_fetch(c, m.gpu.state), check_fetch(c, l.gpu.state),
                   l.state_floats / GDN_HEAD_FLOATS, GDN_HEAD_FLOATS);
    check_same_f32(c, "ring", check_fetch(c, m.gpu.ring), check_fetch(c, l.gpu.ring), SLOTS * 4,
                   l.channels);
}

/* docs/MODEL.md 6.3 in f64 for one head of one segment that begins at position 0: state [k][v]. */
static void define(const layer *l, const batch *b, uint32_t head, double *state, double *o)
{
    const uint32_t kw = shape_gdn_k_width(l->shape);
    const uint32_t key = head / (l->shape->gdn_v_heads / l->shape->gdn_k_heads) * 128;
    memset(state, 0, GDN_HEAD_FLOATS * sizeof *state);
    for (uint32_t t = 0; t < b->n; t++) {
        double x[3][128], sum[2] = {0, 0};
        const uint32_t first[3] = {key, kw + key, 2 * kw + head * 128};
        for (uint32_t p = 0; p < 3; p++)
            for (uint32_t i = 0; i < 128; i++) {
                const uint32_t ch = first[p] + i;
                double u = 0;
                for (uint32_t j = 0; j < 4; j++)
                    if (t + j >= 3)
                        u += (double)l->ref.conv[j * l->channels + ch] *
                             (double)b->y[(uint64_t)(t + j - 3) * l->pitch + ch];
                x[p][i] = u / (1 + exp(-u));
                if (p < 2) sum[p] += x[p][i] * x[p][i];
            }
        const float *ba = b->y + (uint64_t)t * l->pitch + l->channels + l->vw;
        const double beta = 1 / (1 + exp(-(double)ba[head]));
        const double a = (double)ba[l->shape->gdn_v_heads + head] + (double)l->ref.dt[head];
        const double alpha = exp(-(double)l->ref.rate[head] * (fmax(a, 0) + log1p(exp(-fabs(a)))));
        for (uint32_t v = 0; v < 128; v++) {
            double m = 0, out = 0;
            for (uint32_t k = 0; k < 128; k++) {
                state[k * 128 + v] *= alpha;
                m += state[k * 128 + v] * x[1][k] / sqrt(sum[1] + 1e-6);
            }
            for (uint32_t k = 0; k < 128; k++) {
                state[k * 128 + v] += x[1][k] / sqrt(sum[1] + 1e-6) * beta * (x[2][v] - m);
                out += state[k * 128 + v] * x[0][k] / sqrt(sum[0] + 1e-6) / sqrt(128.0);
            }
            o[(uint64_t)t * 128 + v] = out;
        }
        double square = 0;
        for (uint32_t v = 0; v < 128; v++)
            square += o[t * 128 + v] * o[t * 128 + v];
        for (uint32_t v = 0; v < 128; v++) {
            const double z = (double)b->y[(uint64_t)t * l->pitch + l->channels + head * 128 + v];
            o[t * 128 + v] *= (double)l->ref.norm[v] / sqrt(square / 128 + (double)l->ref.eps) * z /
                              (1 + exp(-z));
        }
    }
}

/* The references are within rounding of the definition. */
static void definition(check *c)
{
    const bool one = check_below(c, 2) != 0;
    const uint32_t lanes = 1u << (2 + check_below(c, 4)), n = 1 + check_below(c, 60);
    layer l = layer_create(c, &check_nano, SLOTS);
    batch b = batch_create(c, &l, 1, &n);
    for (uint32_t t = 0; t < n; t++)
        b.tok[t].pos = t;
    check_shape(c, "%u tokens, %u lanes, %s", n, lanes, one ? "one reduction" : "two");
    float *o = check_host(c, (uint64_t)n * l.vw * 4);
    uint16_t *o16 = check_host(c, (uint64_t)n * l.vw * 2);
    double *want = check_host(c, (uint64_t)n * 128 * sizeof *want);
    double *state = check_host(c, GDN_HEAD_FLOATS * sizeof *state);
    float *image = check_host(c, GDN_HEAD_FLOATS * 4), *want32 = check_host(c, GDN_HEAD_FLOATS * 4);
    ref_gdn_prefill(&l.ref, n, b.tok, b.y, lanes, one, o16);
    for (uint64_t i = 0; i < (uint64_t)n * l.vw; i++)
        o[i] = kx_bf16_load(o16[i]);
    for (uint32_t h = 0; h < l.shape->gdn_v_heads; h++) {
        define(&l, &b, h, state, want);
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t i = 0; i < 128; i++) {
                const float got = o[(uint64_t)t * l.vw + h * 128 + i];
                const float w = (float)want[t * 128 + i];
                check_close_f32(c, "o", &got, &w, 1, 1, 2e-4, 0x1p-8);
            }
        for (uint32_t i = 0; i < GDN_HEAD_FLOATS; i++)
            want32[i] = (float)state[i];
        const uint64_t head = (uint64_t)b.tok[0].slot * l.shape->gdn_v_heads + h;
        gdn_state_to_image(l.ref.state + head * GDN_HEAD_FLOATS, image);
        check_close_f32(c, "state", image, want32, 128, 128, 1e-5, 1e-5);
    }
}

static void image(check *c)
{
    const float *state = check_floats(c, GDN_HEAD_FLOATS, -1, 1);
    float *there = check_host(c, GDN_HEAD_FLOATS * 4), *back = check_host(c, GDN_HEAD_FLOATS * 4);
    gdn_state_to_image(state, there);
    gdn_state_from_image(there, back);
    check_same_f32(c, "state", back, state, 128, 128);
}

/* ---- Measurements: 35B shapes ---- */

/* Thirty layers, one after the other because they share scratch and output. */
static void step_bench(check *c, uint32_t n, bool fused, bool split)
{
    gpu_context *g = check_context(c, &shape_35b);
    g->off[GPU_SW_fuse_gdnnorm] = !fused;
    g->n_cores = split ? 100000 : 1;
    const uint32_t n_layers = check_on_emulator(c) ? 1 : 30;
    layer l = layer_create(c, &shape_35b, n);
    uint32_t ones[16];
    for (uint32_t i = 0; i < 16; i++)
        ones[i] = 1;
    const batch b = batch_create(c, &l, n, ones);
    for (uint32_t t = 0; t < n; t++)
        b.tok[t].pos += 4;
    const gpu_view scratch = zeroed(c, "scratch", op_gdn_step_scratch(&shape_35b, n));
    const gpu_view tok = check_view(c, "tok", n * sizeof *b.tok, b.tok);
    const gpu_view y = check_view(c, "y", (uint64_t)n * l.pitch * 4, b.y);
    const gpu_view o = check_view(c, "o", (uint64_t)n * l.vw * 4, NULL);
    check_shape(c, "%u layers, %u tokens, %s%s", n_layers, n, fused ? "fused" : "plain",
                split ? ", split" : "");
    for (uint32_t i = 0; i < n_layers; i++) {
        gpu_gdn x = l.gpu;
        x.state = check_view(c, "state of a layer", l.state_floats * 4, l.ref.state);
        op_gdn_step(g, n, tok, &x, y, scratch, o);
    }
    (void)check_run(c);
}

static void step_bench_1(check *c)
{
    step_bench(c, 1, true, false);
}

static void step_bench_1_split(check *c)
{
    step_bench(c, 1, true, true);
}

static void step_bench_1_plain(check *c)
{
    step_bench(c, 1, false, false);
}

static void step_bench_4(check *c)
{
    step_bench(c, 4, true, false);
}

static void step_bench_4_split(check *c)
{
    step_bench(c, 4, true, true);
}

static void step_bench_16(check *c)
{
    step_bench(c, 16, true, false);
}

static void step_bench_16_split(check *c)
{
    step_bench(c, 16, true, true);
}

static void scan_bench_of(check *c, const gdn_scan_kind *kind, uint32_t n)
{
    if (check_on_emulator(c)) n = 32;
    layer l = layer_create(c, &shape_35b, 1);
    const batch b = batch_create(c, &l, 1, &n);
    check_shape(c, "%s, %u tokens", kernel_table[kind->kernel].name, n);
    (void)scan(c, check_context(c, &shape_35b), kind, &l, &b);
}

static void scan_bench(check *c, const gdn_scan_kind *kind)
{
    scan_bench_of(c, kind, 2048);
}

static void scan_bench_256(check *c)
{
    scan_bench_of(c, &gdn_scan_kinds[0], 256);
}

#define SCAN_BENCH(i)                                                                              \
    static void scan_bench_##i(check *c)                                                           \
    {                                                                                              \
        scan_bench(c, &gdn_scan_kinds[i]);                                                         \
    }
SCAN_BENCH(0)
SCAN_BENCH(1)
SCAN_BENCH(2)
SCAN_BENCH(3)
SCAN_BENCH(4)
SCAN_BENCH(6)
SCAN_BENCH(7)

const check_case check_gdn_cases[] = {{"gdn_step", step_nano, 0},
                                      {"gdn_step_split", step_split_nano, 0},
                                      {"gdn_step_raw", step_raw_nano, 0},
                                      {"gdn_step_35b", step_35b, CHECK_ON_DEVICE},
                                      {"gdn_scan_4", scan_nano_0, 0},
                                      {"gdn_scan_8", scan_nano_1, 0},
                                      {"gdn_scan_8x2", scan_nano_2, 0},
                                      {"gdn_scan_4_text", scan_nano_3, 0},
                                      {"gdn_scan_4_mem", scan_nano_4, 0},
                                      {"gdn_scan_4_text_mem", scan_nano_5, 0},
                                      {"gdn_scan_direct", scan_nano_6, 0},
                                      {"gdn_scan_direct_text", scan_nano_7, 0},
                                      {"gdn_scan_35b", scan_35b, CHECK_ON_DEVICE},
                                      {"gdn_scan_switches", scan_switches, 0},
                                      {"gdn_pieces", pieces, 0},
                                      {"gdn_definition", definition, 0},
                                      {"gdn_image", image, 0},
                                      {"gdn_step_bench_1", step_bench_1, CHECK_BENCH},
                                      {"gdn_step_bench_1_split", step_bench_1_split, CHECK_BENCH},
                                      {"gdn_step_bench_1_plain", step_bench_1_plain, CHECK_BENCH},
                                      {"gdn_step_bench_4", step_bench_4, CHECK_BENCH},
                                      {"gdn_step_bench_4_split", step_bench_4_split, CHECK_BENCH},
                                      {"gdn_step_bench_16", step_bench_16, CHECK_BENCH},
                                      {"gdn_step_bench_16_split", step_bench_16_split, CHECK_BENCH},
                                      {"gdn_scan_bench_256", scan_bench_256, CHECK_BENCH},
                                      {"gdn_scan_bench_4", scan_bench_0, CHECK_BENCH},
                                      {"gdn_scan_bench_8", scan_bench_1, CHECK_BENCH},
                                      {"gdn_scan_bench_8x2", scan_bench_2, CHECK_BENCH},
                                      {"gdn_scan_bench_text", scan_bench_3, CHECK_BENCH},
                                      {"gdn_scan_bench_mem", scan_bench_4, CHECK_BENCH},
                                      {"gdn_scan_bench_direct", scan_bench_6, CHECK_BENCH},
                                      {"gdn_scan_bench_direct_text", scan_bench_7, CHECK_BENCH},
                                      {NULL, NULL, 0}};
