/* The order that the recorder derives, on the demonstration model's own programs under the
 * emulator's checks: declared ranges hold, every schedule that the dependencies allow gives the
 * same bits, and no dependency can go without being missed. CALLA_TEST_GPU_EDGES=all removes each
 * of them in turn; otherwise a few. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "exec/gpu/gpu.h"
#include "exec/gpu/simt/simt.h"
#include "format/checkpoint.h"

#define MODEL_DIR  "models/nano"
#define N_PROMPT   12u
#define N_SEQS     2u
#define EDGES_MAX  2048u
#define PARAMS_MAX 512u
#define PAIRS_MAX  64u

typedef struct model {
    checkpoint *ck;
    model_shape shape;
    model_weights weights;
} model;
static model m;

static int set_up(void **state)
{
    (void)state;
    calla_error err;
    if (checkpoint_open(&m.ck, MODEL_DIR, &err) != CALLA_OK ||
        shape_read(&m.shape, checkpoint_config(m.ck), NULL, &err) != CALLA_OK ||
        weights_bind(&m.weights, m.ck, &m.shape, &err) != CALLA_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    weights_unbind(&m.weights);
    checkpoint_close(m.ck);
    return 0;
}

/* ---- A device that leaves dependencies out ---- */

/* Programs pass through here; drop: the edge to leave out of the program numbered `of`. */
typedef struct filter {
    gpu_ops ops; /* the emulator's, with program_create replaced */
    const gpu_ops *real;
    int64_t n_programs, of, drop;
    uint32_t before, after; /* what was dropped */
} filter;
static filter f;

static calla_status filtered_create(gpu_device *d, const gpu_recording *r, bool once,
                                    gpu_program **out, calla_error *err)
{
    if (f.n_programs++ != f.of) return f.real->program_create(d, r, once, out, err);
    const uint32_t n_dep = r->dep_first[r->n];
    uint32_t *first = test_calloc(r->n + 1, sizeof *first), *dep = test_calloc(n_dep, sizeof *dep);
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        for (uint32_t k = r->dep_first[i]; k < r->dep_first[i + 1]; k++)
            if (k != (uint32_t)f.drop) {
                dep[n++] = r->dep[k];
            } else {
                f.before = r->dep[k];
                f.after = i;
            }
        first[i + 1] = n;
    }
    gpu_recording less = *r;
    less.dep_first = first;
    less.dep = dep;
    const calla_status st = f.real->program_create(d, &less, once, out, err);
    test_free(first);
    test_free(dep);
    return st;
}

static executor *open_checked(uint64_t seed, gpu_device **dev)
{
    calla_error err;
    executor *ex;
    const gpu_simt_options so = {.seed = seed, .check = true};
    const exec_options o = {.chunk_tokens = 64};
    if (gpu_simt_create(dev, &so, &err) != CALLA_OK) fail_msg("%s", err.message);
    f = (filter){.ops = *(*dev)->ops, .real = (*dev)->ops, .of = -1};
    f.ops.program_create = filtered_create;
    (*dev)->ops = &f.ops;
    if (gpu_exec_create(&ex, *dev, &m.shape, &m.weights, &o, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    return ex;
}

/* ---- The workload: a prompt, then a decode step of two sequences ---- */

static calla_status run_model(executor *ex, float *logits, calla_error *err)
{
    exec_seq *seq[N_SEQS] = {NULL, NULL};
    calla_status st;
    int32_t ids[N_PROMPT];
    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = (int32_t)(37 * i % 1000);
    exec_segment segs[N_SEQS];
    for (uint32_t s = 0; s < N_SEQS; s++) {
        TRY(ex->ops->seq_create(ex, 64, &seq[s], err));
        ex->ops->seq_reset(ex, seq[s]);
        segs[s] = (exec_segment){seq[s], ids + s, N_PROMPT - 5 * s - 1, EXEC_LOGITS_NONE, NULL};
    }
    TRY(ex->ops->run(ex, segs, N_SEQS, err));
    for (uint32_t s = 0; s < N_SEQS; s++)
        segs[s] = (exec_segment){seq[s], ids, 1, EXEC_LOGITS_LAST, logits + s * m.shape.n_vocab};
    TRY(ex->ops->run(ex, segs, N_SEQS, err));
fail:
    for (uint32_t s = 0; s < N_SEQS; s++)
        ex->ops->seq_destroy(ex, seq[s]);
    return st;
}

static float *new_logits(void)
{
    return test_calloc((size_t)N_SEQS * m.shape.n_vocab, sizeof(float));
}

static void test_schedules(void **state)
{
    (void)state;
    calla_error err;
    executor *fast = NULL;
    gpu_device *dev;
    float *want = new_logits(), *got = new_logits();
    const gpu_simt_options so = {0};
    const exec_options o = {.chunk_tokens = 64};
    if (gpu_simt_create(&dev, &so, &err) != CALLA_OK ||
        gpu_exec_create(&fast, dev, &m.shape, &m.weights, &o, &err) != CALLA_OK ||
        run_model(fast, want, &err) != CALLA_OK)
        fail_msg("%s", err.message);
    fast->ops->destroy(fast);
    for (uint64_t seed = 1; seed < 3; seed++) {
        executor *ex = open_checked(seed, &dev);
        if (run_model(ex, got, &err) != CALLA_OK)
            fail_msg("seed %u: %s", (unsigned)seed, err.message);
        assert_memory_equal(got, want, N_SEQS * m.shape.n_vocab * sizeof *got);
        ex->ops->destroy(ex);
    }
    test_free(want);
    test_free(got);
}

/* ---- Edges and ranges ---- */

typedef struct param {
    const char *kernel;
    char name[32];
    uint32_t n, n_over;                /* bindings; of them with bytes that were not touched */
    uint64_t declared, touched, n_old; /* n_old: declared read and written, nothing old was read */
} param;

typedef struct notes {
    struct {
        int64_t program;
        uint32_t k;
        bool needed;
    } edge[EDGES_MAX];
    uint32_t n_edges, n_needless;
    struct {
        const char *before, *after;
        uint32_t n;
    } pairs[PAIRS_MAX]; /* of the needless */
    uint32_t n_pairs;
    param params[PARAMS_MAX];
    uint32_t n_params;
} notes;

static void on_edge(void *ctx, const simt_edge *e)
{
    notes *n = ctx;
    assert_true(n->n_edges < EDGES_MAX);
    n->edge[n->n_edges].program = f.n_programs - 1; /* each runs as soon as it is made */
    n->edge[n->n_edges].needed = e->needed;
    const bool same = n->n_edges > 0 && n->edge[n->n_edges - 1].program == f.n_programs - 1;
    n->edge[n->n_edges].k = same ? n->edge[n->n_edges - 1].k + 1 : 0;
    n->n_edges++;
    if (e->needed) return;
    n->n_needless++;
    uint32_t i = 0;
    while (i < n->n_pairs &&
           (n->pairs[i].before != e->kernel_before || n->pairs[i].after != e->kernel_after))
        i++;
    assert_true(i < PAIRS_MAX);
    n->n_pairs += i == n->n_pairs;
    n->pairs[i].before = e->kernel_before;
    n->pairs[i].after = e->kernel_after;
    n->pairs[i].n++;
}

static void on_touch(void *ctx, const simt_touch *t)
{
    notes *n = ctx;
    uint32_t i = 0;
    while (i < n->n_params &&
           (n->params[i].kernel != t->kernel || strcmp(n->params[i].name, t->param) != 0))
        i++;
    assert_true(i < PARAMS_MAX);
    param *p = &n->params[i];
    if (i == n->n_params) {
        n->n_params++;
        p->kernel = t->kernel;
        memcpy(p->name, t->param, sizeof p->name);
    }
    const uint32_t access = t->dispatch->bind[t->i_binding].access;
    const uint64_t touched = t->n_read > t->n_written ? t->n_read : t->n_written;
    p->n++;
    p->declared += t->declared;
    p->touched += touched;
    p->n_over += touched < t->declared;
    p->n_old += access == GPU_READ_WRITE && !t->old_read;
}

static void print_notes(const notes *n)
{
    print_message("%u dependencies; %u of them between dispatches that touched nothing in common\n",
                  n->n_edges, n->n_needless);
    for (uint32_t i = 0; i < n->n_pairs; i++)
        print_message("  %s, then %s: %u\n", n->pairs[i].before, n->pairs[i].after, n->pairs[i].n);
    for (uint32_t i = 0; i < n->n_params; i++) {
        const param *p = &n->params[i];
        if (p->n_over > 0)
            print_message(
                "  %-22s %-10s %3u of %3u bindings larger than what was touched: %5.1f %% "
                "of %llu bytes\n",
                p->kernel, p->name, p->n_over, p->n,
                100.0 * (double)p->touched / (double)p->declared, (unsigned long long)p->declared);
        if (p->n_old > 0)
            print_message("  %-22s %-10s read and written, but nothing old was read: %llu of %u\n",
                          p->kernel, p->name, (unsigned long long)p->n_old, p->n);
    }
}

/* The dependencies are reduced: without one, no chain of others orders its two dispatches. So when
 * these touched a byte in conflict, its absence shows. */
static void test_dependencies(void **state)
{
    (void)state;
    calla_error err;
    gpu_device *dev;
    notes *n = test_calloc(1, sizeof *n);
    float *logits = new_logits();
    executor *ex = open_checked(1, &dev);
    const simt_watch w = {on_touch, on_edge, n};
    simt_device_watch(dev, &w);
    if (run_model(ex, logits, &err) != CALLA_OK) fail_msg("%s", err.message);
    ex->ops->destroy(ex);
    print_notes(n);
    assert_true(n->n_edges > 100);
    assert_true(n->n_needless * 4 < n->n_edges);

    const char *all = getenv("CALLA_TEST_GPU_EDGES");
    const uint32_t step = all != NULL ? 1 : n->n_edges / 4 + 1;
    uint32_t n_tried = 0;
    for (uint32_t i = all != NULL ? 0 : 1; i < n->n_edges; i += step) {
        if (!n->edge[i].needed) continue;
        ex = open_checked(i, &dev);
        f.of = n->edge[i].program;
        f.drop = n->edge[i].k;
        const calla_status st = run_model(ex, logits, &err);
        if (st != CALLA_ERR_DEVICE)
            fail_msg("program %d without the dependency of dispatch %u on %u: not noticed",
                     (int)f.of, f.after, f.before);
        ex->ops->destroy(ex);
        n_tried++;
    }
    print_message("%u dependencies left out, each noticed\n", n_tried);
    assert_true(n_tried > 0);
    test_free(logits);
    test_free(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_dependencies),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
