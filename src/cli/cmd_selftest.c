/* cmd_selftest.c - calla selftest: does this build compute rightly on this machine?
 *
 * Kernels: every variant that the CPU has against the plain C reference, on matrices of the model
 * and at its widths. Model: results that must be equal bit for bit are compared so. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/ck.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "exec/cpu/kernels.h"

typedef struct selftest_options {
    cli_common common;
} selftest_options;

static const cli_option options[] = {
    CLI_ROW_MODEL(selftest_options, common),
    CLI_ROW_LOG_LEVEL(selftest_options, common),
    CLI_OPT_END,
};

static int cmd_selftest(int argc, char **argv);

const cli_command cli_selftest = {
    .name = "selftest",
    .summary = "check this build on this machine",
    .about = "Compares the CPU kernels with their plain C reference at the model's shapes, then\n"
             "checks that results do not depend on chunks, threads, snapshots or neighbours.\n"
             "Takes less than a minute with the demonstration model. Exit code 1 on a failure.\n",
    .options = options,
    .main = cmd_selftest,
};

#define ROWS_MAX   96u /* rows of a matrix that are compared */
#define TOKENS     5u  /* rows of x of a matmul */
#define WIDTH_MAX  65536u
#define KERNEL_BAR 1e-5 /* of the largest value, or of sum |w x| */
#define LOGIT_BAR  2e-2 /* max |dlogit|, reference against the best kernels */

typedef struct selftest {
    const char *dir;
    const cli_command *cmd;
    unsigned n_ok, n_failed;
    cpu_kernels ref, fast;
    double worst; /* of the kernel under test, in units of its bar */
    float *a, *b, *c, *w, *y0, *y1, *scratch;
} selftest;

static void verdict(selftest *t, bool ok, const char *fmt, ...) ATTR_PRINTF(3, 4);
static void verdict(selftest *t, bool ok, const char *fmt, ...)
{
    va_list ap;
    (void)printf("  %s  ", ok ? "ok    " : "FAILED");
    va_start(ap, fmt);
    (void)vprintf(fmt, ap);
    va_end(ap);
    (void)putchar('\n');
    (void)fflush(stdout);
    if (ok)
        t->n_ok++;
    else
        t->n_failed++;
}

/* ---- Kernels ---- */

/* Repeatable values in (-1, 1). */
static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(seed >> 40) * 0x1p-23 - 1.0);
    }
}

static void note(selftest *t, double got, double want, double scale)
{
    const double d = fabs(got - want) / (KERNEL_BAR * (scale > 0.0 ? scale : 1.0));
    if (!(d <= t->worst)) t->worst = d;
}

/* Compares two results by the largest value of the reference. */
static void note_all(selftest *t, const float *got, const float *want, size_t n)
{
    double scale = 0.0;
    for (size_t i = 0; i < n; i++)
        if (fabs((double)want[i]) > scale) scale = fabs((double)want[i]);
    for (size_t i = 0; i < n; i++)
        note(t, (double)got[i], (double)want[i], scale);
}

static void run_matmul(selftest *t, const cpu_kernels *k, const matrix *m, uint32_t row0,
                       uint32_t row1, float *out)
{
    const float *x[TOKENS];
    float *y[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) {
        float *prepared = t->b + (size_t)i * m->cols;
        if (m->type == MAT_Q4)
            k->prep_q4(t->a + (size_t)i * m->cols, m->cols, prepared);
        else
            memcpy(prepared, t->a + (size_t)i * m->cols, m->cols * sizeof *prepared);
        x[i] = prepared;
        y[i] = out + (size_t)i * ROWS_MAX - row0;
    }
    kernels_matmul(k, m->type)(m, row0, row1, x, TOKENS, y, t->scratch);
}

static void check_matrix(selftest *t, const matrix *m)
{
    const uint32_t n = m->rows < ROWS_MAX ? m->rows : ROWS_MAX;
    const uint32_t row0 = m->rows - n, row1 = m->rows;
    if ((uint64_t)m->cols * TOKENS > WIDTH_MAX) return;
    fill(t->a, (size_t)m->cols * TOKENS, m->cols);
    run_matmul(t, &t->ref, m, row0, row1, t->y0);
    run_matmul(t, &t->fast, m, row0, row1, t->y1);
    for (uint32_t r = 0; r < n; r++) {
        matrix_row(m, row0 + r, t->w);
        for (uint32_t i = 0; i < TOKENS; i++) {
            double scale = 0.0;
            for (uint32_t c = 0; c < m->cols; c++)
                scale += fabs((double)t->w[c] * (double)t->a[(size_t)i * m->cols + c]);
            const size_t at = (size_t)i * ROWS_MAX + r;
            note(t, (double)t->y1[at], (double)t->y0[at], scale);
        }
    }
}

static void check_layer(selftest *t, const layer_weights *l, bool full)
{
    const matrix gate = expert_matrix(&l->gate, 0), down = expert_matrix(&l->down, 1);
    const matrix *const all[] = {&l->router, &gate, &down, &l->shared_up, &l->shared_router};
    const matrix *const gdn[] = {&l->in_qkv, &l->in_z, &l->in_b, &l->gdn_out};
    const matrix *const attention[] = {&l->q, &l->k, &l->v, &l->o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_matrix(t, all[i]);
    for (size_t i = 0; i < 4; i++)
        check_matrix(t, full ? attention[i] : gdn[i]);
}

static void check_vectors(selftest *t, const model_shape *s)
{
    const uint32_t n = s->hidden, d = s->gdn_v_dim;
    const cpu_kernels *const k[2] = {&t->ref, &t->fast};
    float *const y[2] = {t->y0, t->y1};
    if (n > WIDTH_MAX / 8) return;
    fill(t->a, n, 1);
    fill(t->b, n, 2);
    fill(t->w, n, 3);
    for (int v = 0; v < 2; v++) {
        float *o = y[v];
        k[v]->rmsnorm(t->a, t->w, n, s->rms_eps, o);
        k[v]->silu_mul(t->a, t->b, n, o + n);
        memcpy(o + 2 * n, t->a, n * sizeof *o);
        k[v]->sigmoid_mul(t->b, n, o + 2 * n);
        memcpy(o + 3 * n, t->a, n * sizeof *o);
        k[v]->axpy(0.37f, t->b, n, o + 3 * n);
        k[v]->l2norm(t->a, d, 1e-6f, 0.25f, o + 4 * n);
        k[v]->gated_rmsnorm(t->a, t->b, t->w, d, s->rms_eps, o + 4 * n + d);
    }
    for (uint32_t part = 0; part < 4; part++)
        note_all(t, t->y1 + part * n, t->y0 + part * n, n);
    note_all(t, t->y1 + 4 * n, t->y0 + 4 * n, d);
    note_all(t, t->y1 + 4 * n + d, t->y0 + 4 * n + d, d);
}

static void check_conv(selftest *t, const model_shape *s, const float *w)
{
    const uint32_t n = shape_conv_channels(s);
    if (4 * n > WIDTH_MAX) return;
    fill(t->a, (size_t)4 * n, 4);
    const float *const rows[4] = {t->a, t->a + n, t->a + 2 * n, t->a + 3 * n};
    t->ref.conv_silu(w, n, rows, 0, n, t->y0);
    t->fast.conv_silu(w, n, rows, 0, n, t->y1);
    note_all(t, t->y1, t->y0, n);
}

static void check_gdn(selftest *t)
{
    enum { n = 9, d = MODEL_GDN_DIM };
    float decay[n], beta[n], *state = t->b, *o = t->y0;
    fill(t->a, 3 * n * d, 5);
    for (int i = 0; i < n; i++) {
        decay[i] = 0.5f + 0.05f * (float)i;
        beta[i] = 0.9f - 0.08f * (float)i;
        t->ref.l2norm(t->a + i * d, d, 1e-6f, 0.088f, t->a + i * d);
        t->ref.l2norm(t->a + (n + i) * d, d, 1e-6f, 1.0f, t->a + (n + i) * d);
    }
    for (int v = 0; v < 2; v++, o = t->y1) {
        fill(state, GDN_STATE_FLOATS, 6);
        (v == 0 ? &t->ref : &t->fast)
            ->gdn_scan(state, 0, d / GDN_SLAB, n, t->a, t->a + n * d, d, t->a + 2 * n * d, d, decay,
                       beta, 1, o, d);
        memcpy(o + n * d, state, GDN_STATE_FLOATS * sizeof *o);
    }
    note_all(t, t->y1, t->y0, n * d);
    note_all(t, t->y1 + n * d, t->y0 + n * d, GDN_STATE_FLOATS);
}

static void check_attention(selftest *t, calla_kv_type kv)
{
    enum { n_q = 8, d = MODEL_HEAD_DIM };
    const float *q[n_q];
    uint32_t n_visible[n_q];
    fill(t->a, n_q * d, 7);
    fill(t->b, (size_t)ATTN_BLOCK * d, 8);
    fill(t->c, (size_t)ATTN_BLOCK * d, 9);
    if (kv == CALLA_KV_BF16) /* packed in place */
        for (size_t i = 0; i < ATTN_BLOCK * d; i++) {
            const uint16_t hk = f32_to_bf16(t->b[i]), hv = f32_to_bf16(t->c[i]);
            memcpy((uint8_t *)t->b + 2 * i, &hk, 2);
            memcpy((uint8_t *)t->c + 2 * i, &hv, 2);
        }
    for (uint32_t i = 0; i < n_q; i++) {
        q[i] = t->a + i * d;
        n_visible[i] = i * 9;
    }
    float *o = t->y0;
    for (int v = 0; v < 2; v++, o = t->y1) {
        attn_state st[n_q];
        memset(o, 0, (n_q * d + 2 * n_q) * sizeof *o);
        for (uint32_t i = 0; i < n_q; i++)
            st[i] = (attn_state){-INFINITY, 0.0f, o + i * d};
        (v == 0 ? &t->ref : &t->fast)
            ->attn_block(q, n_visible, n_q, t->b, t->c, ATTN_BLOCK, kv, st, t->scratch);
        for (uint32_t i = 1; i < n_q; i++)
            o[n_q * d + i] = st[i].l;
    }
    note_all(t, t->y1, t->y0, n_q * d + n_q);
}

static void check_variant(selftest *t, const char *name, const model_shape *s,
                          const model_weights *w)
{
    t->worst = 0.0;
    check_layer(t, &w->layers[0], shape_is_full(s, 0));
    check_layer(t, &w->layers[s->full_interval - 1], true);
    check_matrix(t, &w->lm_head);
    verdict(t, t->worst <= 1.0, "%-7s matrix products at %.3f of the bar", name, t->worst);
    t->worst = 0.0;
    check_vectors(t, s);
    verdict(t, t->worst <= 1.0, "%-7s norms and activations at %.3f of the bar", name, t->worst);
    t->worst = 0.0;
    if (!shape_is_full(s, 0)) check_conv(t, s, w->layers[0].conv);
    check_gdn(t);
    verdict(t, t->worst <= 1.0, "%-7s convolution and delta rule at %.3f of the bar", name,
            t->worst);
    t->worst = 0.0;
    check_attention(t, CALLA_KV_BF16);
    check_attention(t, CALLA_KV_F32);
    verdict(t, t->worst <= 1.0, "%-7s attention at %.3f of the bar", name, t->worst);
}

static calla_status check_kernels(selftest *t, calla_error *err)
{
    static const char *const names[] = {"avx2", "avx512", "neon"};
    calla_status st;
    checkpoint *ck = NULL;
    model_shape shape;
    model_weights weights = {0};
    float **const buffers[] = {&t->a, &t->b, &t->c, &t->w, &t->y0, &t->y1, &t->scratch};
    for (size_t i = 0; i < 7; i++) {
        *buffers[i] = mem_alloc_aligned(
            (i < 6 ? WIDTH_MAX : MATMUL_SCRATCH_FLOATS(WIDTH_MAX / TOKENS)) * sizeof(float));
        if (*buffers[i] == NULL) {
            st = err_set(err, CALLA_ERR_MEMORY, "no memory for the kernel check");
            goto fail;
        }
    }
    TRY(checkpoint_open(&ck, t->dir, err));
    TRY(shape_read(&shape, checkpoint_config(ck), checkpoint_generation_config(ck), err));
    TRY(weights_bind(&weights, ck, &shape, err));
    TRY(cpu_kernels_select(&t->ref, "ref", err));
    (void)printf("kernels against the plain C reference\n");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (cpu_kernels_select(&t->fast, names[i], NULL) != CALLA_OK) continue;
        check_variant(t, names[i], &shape, &weights);
    }
fail:
    weights_unbind(&weights);
    checkpoint_close(ck);
    for (size_t i = 0; i < 7; i++)
        mem_free_aligned(*buffers[i]);
    return st;
}

/* ---- The model ---- */

typedef struct run {
    calla_engine *engine;
    calla_session *session;
} run;

typedef struct text {
    int32_t *ids;
    size_t n;
    float *logits;     /* after n ids, of the plain run */
    int32_t reply[16]; /* greedy */
    size_t n_logits;
} text;

#define N_REPLY (sizeof((text){0}).reply / sizeof(int32_t))

static void run_close(run *r)
{
    calla_session_destroy(r->session);
    calla_engine_destroy(r->engine);
    *r = (run){0};
}

static calla_status run_open(run *r, const selftest *t, uint32_t n_threads, uint32_t chunk,
                             const char *variant, const text *x, calla_error *err)
{
    const calla_engine_options eo = {
        .model_dir = t->dir, .n_threads = n_threads, .chunk_tokens = chunk, .cpu_variant = variant};
    const calla_session_options so = {.n_ctx = (uint32_t)(x->n + N_REPLY + 1)};
    calla_status st = calla_engine_create(&r->engine, &eo, err);
    if (st == CALLA_OK) st = calla_session_create(&r->session, r->engine, &so, err);
    return st;
}

/* Generates; *same: logits before and text equal those of the plain run, bit for bit. */
static calla_status compare(calla_session *s, const text *x, bool *same, calla_error *err)
{
    const calla_generate_options o = {
        .sampling = &(calla_sampling){0}, .max_tokens = (uint32_t)N_REPLY, .ignore_eos = true};
    *same = memcmp(calla_session_logits(s), x->logits, x->n_logits * sizeof(float)) == 0;
    const calla_status st = calla_session_generate(s, &o, NULL, NULL, NULL, err);
    if (st != CALLA_OK) return st;
    *same = *same && memcmp(calla_session_tokens(s) + x->n, x->reply, sizeof x->reply) == 0;
    return st;
}

static calla_status plain_run(text *x, const selftest *t, calla_error *err)
{
    static const char sentence[] = "On Monday the baker of Lima sold 17 loaves, 3 cakes and 1 pie. "
                                   "Sort these words: pear, apple, fig! \u00bfQu\u00e9 tal? ";
    const calla_generate_options o = {
        .sampling = &(calla_sampling){0}, .max_tokens = (uint32_t)N_REPLY, .ignore_eos = true};
    calla_status st;
    calla_engine_info info;
    strbuf s = {0};
    run r = {0};
    for (int i = 0; i < 12; i++)
        (void)strbuf_puts(&s, sentence);
    TRY(run_open(&r, t, 0, 0, NULL, &(text){.n = 1}, err));
    calla_engine_get_info(r.engine, &info);
    TRY(calla_tokenizer_encode(calla_engine_tokenizer(r.engine), s.data, s.len, 0, &x->ids, &x->n,
                               err));
    const size_t n_max = info.weight_bytes > (uint64_t)1 << 30 ? 100 : 330;
    if (x->n > n_max) x->n = n_max;
    run_close(&r);
    TRY(run_open(&r, t, 0, 0, NULL, x, err));
    TRY(calla_session_feed(r.session, x->ids, x->n, NULL, NULL, err));
    x->n_logits = (size_t)info.n_vocab;
    x->logits = mem_array(x->n_logits, sizeof *x->logits);
    if (x->logits == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the logits");
        goto fail;
    }
    memcpy(x->logits, calla_session_logits(r.session), x->n_logits * sizeof *x->logits);
    TRY(calla_session_generate(r.session, &o, NULL, NULL, NULL, err));
    memcpy(x->reply, calla_session_tokens(r.session) + x->n, sizeof x->reply);
fail:
    run_close(&r);
    strbuf_deinit(&s);
    return st;
}

static calla_status check_same(selftest *t, const text *x, uint32_t n_threads, uint32_t chunk,
                               const char *what, calla_error *err)
{
    run r = {0};
    bool same = false;
    calla_status st;
    TRY(run_open(&r, t, n_threads, chunk, NULL, x, err));
    TRY(calla_session_feed(r.session, x->ids, x->n, NULL, NULL, err));
    TRY(compare(r.session, x, &same, err));
    verdict(t, same, "%s", what);
fail:
    run_close(&r);
    return st;
}

/* Snapshot half-way, a detour, restore; a fork fed in turns with the restored session. */
static calla_status check_restored(selftest *t, const text *x, calla_error *err)
{
    const size_t half = x->n / 2;
    run r = {0};
    calla_session *fork = NULL;
    calla_snapshot *c = NULL;
    bool same = false;
    calla_status st;
    TRY(run_open(&r, t, 0, 0, NULL, x, err));
    TRY(calla_session_feed(r.session, x->ids, half, NULL, NULL, err));
    TRY(calla_session_snapshot(r.session, &c, err));
    TRY(calla_session_fork(&fork, r.session, err));
    TRY(calla_session_feed(r.session, x->ids + 3, half / 2, NULL, NULL, err));
    TRY(calla_session_restore(r.session, c, err));
    for (size_t i = half, n; i < x->n; i += n) {
        n = x->n - i < 19 ? x->n - i : 19;
        TRY(calla_session_feed(r.session, x->ids + i, n, NULL, NULL, err));
        TRY(calla_session_feed(fork, x->ids + i, n, NULL, NULL, err));
    }
    TRY(compare(r.session, x, &same, err));
    verdict(t, same, "restored = uninterrupted");
    TRY(compare(fork, x, &same, err));
    verdict(t, same, "forked = original, fed in turns = alone");
fail:
    calla_session_destroy(fork);
    calla_snapshot_destroy(c);
    run_close(&r);
    return st;
}

static calla_status check_reference(selftest *t, const text *x, calla_error *err)
{
    const size_t n = x->n < 40 ? x->n : 40;
    run r[2] = {{0}, {0}};
    double worst = 0.0;
    calla_status st = CALLA_OK;
    for (int i = 0; i < 2; i++) {
        TRY(run_open(&r[i], t, 0, 0, i == 0 ? "ref" : NULL, x, err));
        TRY(calla_session_feed(r[i].session, x->ids, n, NULL, NULL, err));
    }
    for (size_t i = 0; i < x->n_logits; i++) {
        const double d = fabs((double)calla_session_logits(r[0].session)[i] -
                              (double)calla_session_logits(r[1].session)[i]);
        if (!(d <= worst)) worst = d;
    }
    verdict(t, worst < LOGIT_BAR, "best kernels = reference kernels: max |dlogit| %.1e (bar %.0e)",
            worst, LOGIT_BAR);
fail:
    run_close(&r[0]);
    run_close(&r[1]);
    return st;
}

static calla_status check_model(selftest *t, calla_error *err)
{
    text x = {0};
    calla_status st;
    TRY(plain_run(&x, t, err));
    (void)printf("the model, %zu tokens and %zu more, bit for bit\n", x.n, N_REPLY);
    TRY(check_same(t, &x, 0, 7, "chunks of 7 = whole", err));
    TRY(check_same(t, &x, 0, 64, "chunks of 64 = whole", err));
    TRY(check_same(t, &x, 1, 0, "1 thread = all threads", err));
    TRY(check_same(t, &x, 2, 0, "2 threads = all threads", err));
    TRY(check_same(t, &x, 3, 0, "3 threads = all threads", err));
    TRY(check_restored(t, &x, err));
    (void)printf("the model, best kernels against the reference\n");
    TRY(check_reference(t, &x, err));
fail:
    calla_free(x.ids);
    mem_free(x.logits);
    return st;
}

static int cmd_selftest(int argc, char **argv)
{
    selftest_options o = {.common = CLI_COMMON_DEFAULTS};
    selftest t = {.cmd = &cli_selftest};
    calla_error err;
    char *dir = NULL;
    int n_args;
    const int rc = cli_parse(&cli_selftest, argc, argv, &o, &n_args);
    if (rc >= 0) return rc;
    const double t0 = time_now();
    calla_status st;
    TRY(cli_model_dir(o.common.model, &dir, &err));
    t.dir = dir;
    (void)printf("calla %s, %s\n", calla_version(), dir);
    TRY(check_kernels(&t, &err));
    TRY(check_model(&t, &err));
    (void)printf("%u passed, %u failed, %.1f s\n", t.n_ok, t.n_failed, time_now() - t0);
fail:
    mem_free(dir);
    if (st != CALLA_OK) return cli_fail(&cli_selftest, &err);
    return t.n_failed == 0 && cli_stdout_ok() ? CLI_OK : CLI_FAILED;
}
