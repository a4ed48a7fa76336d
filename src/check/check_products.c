/* Times of the decode products: chains of forty layers with weights of their own, so that nothing
 * is read from a cache. 35B shapes; each step depends on the one before. Measuring only. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "check/check.h"

#define N_BANKS 4u /* the experts of forty layers would be 18 GB; a bank is used by ten layers */

typedef struct bench {
    check *c;
    gpu_context *g;
    uint32_t n, n_layers;
    gpu_view x, y[2], o, norm, scratch, ids, weights, none;
    gpu_q4 in, out; /* n_layers matrices, one after the other */
    gpu_q8 router;
    gpu_bank banks; /* N_BANKS */
} bench;

/* A view of n_bytes that repeats a block. */
static gpu_view repeated(check *c, const char *name, uint64_t n_bytes, const void *block,
                         uint64_t block_bytes)
{
    const gpu_view v = check_view(c, name, n_bytes, NULL);
    gpu_device *d = check_device(c);
    calla_error err;
    for (uint64_t at = 0; at < n_bytes; at += block_bytes) {
        const uint64_t n = n_bytes - at < block_bytes ? n_bytes - at : block_bytes;
        if (d->ops->write(d, gpu_sub(v, at, n), block, &err) != CALLA_OK)
            check_fail(c, "%s", err.message);
    }
    return v;
}

static gpu_q4 matrices(check *c, uint32_t n, uint32_t rows, uint32_t cols)
{
    const uint64_t codes = (uint64_t)rows * cols / 2, sb = (uint64_t)rows * cols / 16;
    return (gpu_q4){repeated(c, "codes", n * codes, check_words(c, codes / 4), codes),
                    repeated(c, "sb", n * sb, check_scales(c, sb / 4, -7.5f), sb), rows, cols};
}

static gpu_q4 matrix_of(const gpu_q4 *m, uint32_t i)
{
    const uint64_t codes = (uint64_t)m->rows * m->cols / 2, sb = codes / 8;
    return (gpu_q4){gpu_sub(m->codes, i * codes, codes), gpu_sub(m->sb, i * sb, sb), m->rows,
                    m->cols};
}

static void make_routers(bench *b)
{
    const model_shape *s = &shape_35b;
    const uint64_t codes = (s->n_experts + 1ull) * s->hidden, sb = codes / 16;
    b->router = (gpu_q8){
        repeated(b->c, "router", b->n_layers * codes, check_words(b->c, codes / 4), codes),
        repeated(b->c, "router sb", b->n_layers * sb, check_scales(b->c, sb / 4, -127.5f), sb),
        s->n_experts + 1, s->hidden};
}

static void make_banks(bench *b)
{
    const model_shape *s = &shape_35b;
    const uint32_t hw = s->hidden * s->expert_width, words = hw / 64 * 27;
    uint32_t *slab = check_words(b->c, words);
    memcpy(slab + hw / 4, check_scales(b->c, hw / 32, -7.5f), hw / 32 * 4);
    memcpy(slab + hw / 32 * 13, check_scales(b->c, hw / 64, -7.5f), hw / 64 * 4);
    const uint64_t bytes = words * 4ull;
    b->banks = (gpu_bank){
        repeated(b->c, "slabs", N_BANKS * (s->n_experts + 1ull) * bytes, slab, bytes), words * 4};
}

static bench begin(check *c, uint32_t n)
{
    const model_shape *s = &shape_35b;
    bench b = {.c = c, .g = check_context(c, s), .n = n};
    b.n_layers = check_on_emulator(c) ? 1 : s->n_layers;
    const uint32_t h = s->hidden, u = s->n_experts_used;
    uint64_t scratch = op_gemv_scratch(s, n);
    if (scratch < op_moe_scratch(s, n)) scratch = op_moe_scratch(s, n);
    scratch += op_router_scratch(s, n);
    b.x = check_view(c, "x", (uint64_t)n * h * 4, check_floats(c, (uint64_t)n * h, -1, 1));
    b.o = check_view(c, "o", n * 16384, check_floats(c, n * 4096, -0.1f, 0.1f));
    for (int i = 0; i < 2; i++)
        b.y[i] = check_view(c, "y", (uint64_t)n * 12352 * 4, check_floats(c, n * 12352, -1, 1));
    b.norm = check_view(c, "norm", h * 4, check_floats(c, h, 0.9f, 1.1f));
    b.scratch = check_view(c, "scratch", scratch, check_host(c, scratch));
    uint32_t *ids = check_host(c, n * u * 4);
    for (uint32_t i = 0; i < n * u; i++)
        ids[i] = (i * 37 + i / u * 5) % s->n_experts;
    b.ids = check_view(c, "ids", n * u * 4, ids);
    b.weights = check_view(c, "weights", n * (u + 1) * 4, check_floats(c, n * (u + 1), 0, 0.1f));
    return b;
}

static void record_router(bench *b, uint32_t i)
{
    const uint64_t codes = (uint64_t)b->router.rows * b->router.cols, sb = codes / 16;
    const gpu_q8 r = {gpu_sub(b->router.codes, i * codes, codes), gpu_sub(b->router.sb, i * sb, sb),
                      b->router.rows, b->router.cols};
    op_router(b->g, b->n, b->x, b->norm, &r, b->scratch, b->ids, b->weights);
}

static void record_moe(bench *b, uint32_t i)
{
    const uint64_t bytes = (shape_35b.n_experts + 1ull) * b->banks.slab_bytes;
    const gpu_bank bank = {gpu_sub(b->banks.slabs, i % N_BANKS * bytes, bytes),
                           b->banks.slab_bytes};
    /* the counters of the router lie in front */
    op_moe(b->g, b->n, b->x, b->norm, b->ids, b->weights, &bank,
           gpu_sub(b->scratch, 4096, b->scratch.bytes - 4096));
}

static void bench_in(check *c, uint32_t n, uint32_t rows)
{
    bench b = begin(c, n);
    b.in = matrices(c, b.n_layers, rows, shape_35b.hidden);
    check_shape(c, "%u x norm + %u x 2048, T %u", b.n_layers, rows, n);
    for (uint32_t i = 0; i < b.n_layers; i++) {
        const gpu_q4 w = matrix_of(&b.in, i);
        op_gemv(b.g, n, b.y[i % 2], n, b.norm, b.none, &w, b.scratch, b.y[(i + 1) % 2]);
    }
    check_run(c);
}

static void bench_out(check *c, uint32_t n)
{
    bench b = begin(c, n);
    b.out = matrices(c, b.n_layers, shape_35b.hidden, 4096);
    check_shape(c, "%u x 2048 x 4096 + residual, T %u", b.n_layers, n);
    for (uint32_t i = 0; i < b.n_layers; i++) {
        const gpu_q4 w = matrix_of(&b.out, i);
        op_gemv_add(b.g, n, b.o, &w, b.scratch, b.x);
    }
    check_run(c);
}

static void bench_head(check *c, uint32_t n)
{
    bench b = begin(c, n);
    b.in = matrices(c, 1, shape_35b.n_vocab, shape_35b.hidden);
    const gpu_view logits = check_view(c, "logits", (uint64_t)n * shape_35b.n_vocab * 4, NULL);
    check_shape(c, "lm_head, T %u", n);
    op_gemv(b.g, n, b.x, n, b.norm, b.none, &b.in, b.scratch, logits);
    check_run(c);
}

static void bench_router(check *c, uint32_t n, bool tail)
{
    bench b = begin(c, n);
    make_routers(&b);
    b.g->off[GPU_SW_router_tail] = !tail;
    check_shape(c, "%u x router%s, T %u", b.n_layers, tail ? "" : " + top8", n);
    for (uint32_t i = 0; i < b.n_layers; i++)
        record_router(&b, i);
    check_run(c);
}

static void bench_moe(check *c, uint32_t n, bool fused)
{
    bench b = begin(c, n);
    make_banks(&b);
    b.g->off[GPU_SW_fuse_gateup] = b.g->off[GPU_SW_fuse_down] = !fused;
    check_shape(c, "%u x experts%s, T %u", b.n_layers, fused ? "" : " not fused", n);
    for (uint32_t i = 0; i < b.n_layers; i++)
        record_moe(&b, i);
    check_run(c);
}

/* All products of a token: what is left of a step are the mixers. */
static void bench_all(check *c, uint32_t n, uint32_t per_core)
{
    bench b = begin(c, n);
    b.in = matrices(c, b.n_layers, 12352, shape_35b.hidden);
    b.out = matrices(c, b.n_layers, shape_35b.hidden, 4096);
    make_routers(&b);
    make_banks(&b);
    b.g->groups_per_core = per_core;
    check_shape(c, "%u layers, T %u, groups a core %u", b.n_layers, n, per_core);
    for (uint32_t i = 0; i < b.n_layers; i++) {
        const gpu_q4 in = matrix_of(&b.in, i), out = matrix_of(&b.out, i);
        op_gemv(b.g, n, b.x, n, b.norm, b.none, &in, b.scratch, b.y[0]);
        op_gemv_add(b.g, n, gpu_sub(b.y[0], 0, n * 16384), &out, b.scratch, b.x);
        record_router(&b, i);
        record_moe(&b, i);
    }
    check_run(c);
}

#define CASE(name, call)                                                                           \
    static void name(check *c)                                                                     \
    {                                                                                              \
        call;                                                                                      \
    }
CASE(in_1, bench_in(c, 1, 12352))
CASE(qkv_1, bench_in(c, 1, 9216))
CASE(in_4, bench_in(c, 4, 12352))
CASE(in_16, bench_in(c, 16, 12352))
CASE(out_1, bench_out(c, 1))
CASE(out_16, bench_out(c, 16))
CASE(head_1, bench_head(c, 1))
CASE(head_16, bench_head(c, 16))
CASE(router_1, bench_router(c, 1, true))
CASE(router_1_top8, bench_router(c, 1, false))
CASE(router_16, bench_router(c, 16, true))
CASE(moe_1, bench_moe(c, 1, true))
CASE(moe_1_separate, bench_moe(c, 1, false))
CASE(moe_16, bench_moe(c, 16, true))
CASE(all_1, bench_all(c, 1, 0))
CASE(all_1_1, bench_all(c, 1, 1))
CASE(all_1_2, bench_all(c, 1, 2))
CASE(all_1_3, bench_all(c, 1, 3))
CASE(all_1_4, bench_all(c, 1, 4))
CASE(all_8, bench_all(c, 8, 0))
CASE(all_16, bench_all(c, 16, 0))

const check_case check_products_cases[] = {
#define ROW(name)                                                                                  \
    {                                                                                              \
        "products_" #name, name, CHECK_BENCH | CHECK_ON_DEVICE                                     \
    }
    ROW(in_1),    ROW(qkv_1),      ROW(in_4),          ROW(in_16),     ROW(out_1),
    ROW(out_16),  ROW(head_1),     ROW(head_16),       ROW(moe_1),     ROW(moe_1_separate),
    ROW(moe_16),  ROW(router_1),   ROW(router_1_top8), ROW(router_16), ROW(all_1),
    ROW(all_1_1), ROW(all_1_2),    ROW(all_1_3),       ROW(all_1_4),   ROW(all_8),
    ROW(all_16),  {NULL, NULL, 0},
};
