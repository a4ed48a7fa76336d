/* fake_cuda.h - a CUDA driver that is none: the functions of exec/gpu/cuda/api.h in plain memory.
 *
 * Does:       counts what is alive; keeps the work of a stream until somebody synchronises, as late
 *             as a real driver may, then copies and fills memory and notes launches, in order;
 *             records graphs as they were built; can fail any call, break for good, be old.
 *             Kernels do nothing, but each launch is noted with its parameters.
 * Invariants: device addresses are addresses of this process. Calls need a current context and a
 *             live handle, or the test fails.
 * Usage:      include after <cmocka.h>, in one file per program; fake_reset() first.
 */
#ifndef CALLA_TESTS_FAKE_CUDA_H
#define CALLA_TESTS_FAKE_CUDA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/gpu/cuda/cuda_dev.h"

#define FAKE_OPS    32768u
#define FAKE_NODES  4096u
#define FAKE_PARAMS (GPU_BINDINGS_MAX + 1u)

enum { FAKE_ILLEGAL_ADDRESS = 700, FAKE_ERROR = 999 };

struct cu_context_s {
    int unused;
};
struct cu_stream_s {
    int unused;
};
struct cu_module_s {
    int unused;
};
struct cu_event_s {
    uint64_t at; /* operations before it */
    uint64_t time;
    bool recorded;
};
struct cu_function_s {
    const kernel_info *info; /* NULL: kx_faulty */
    uint32_t dyn_smem;
};

typedef struct fake_launch {
    cu_function func;
    uint32_t grid_x, grid_y, threads, shared_bytes;
    cu_ptr ptr[GPU_BINDINGS_MAX];
    uint8_t args[GPU_ARGS_MAX];
    bool early;
} fake_launch;

struct cu_node_s {
    fake_launch l; /* func NULL: an event */
    cu_event event;
    uint32_t n_deps;
    cu_node dep[64];
    bool dep_early[64];
};

struct cu_graph_s {
    cu_node node[FAKE_NODES];
    uint32_t n;
};
struct cu_exec_s {
    struct cu_graph_s g; /* owns its nodes */
};

typedef struct fake_op {
    enum { FAKE_COPY, FAKE_FILL, FAKE_LAUNCH, FAKE_EVENT } kind;
    cu_ptr dst, src;
    size_t bytes;
    unsigned char value;
    cu_event event;
    fake_launch l;
} fake_op;

typedef struct fake_state {
    /* what a test sets */
    uint32_t fail_at; /* this call (1: the next) fails */
    cu_result fail_with;
    int n_devices, major;
    const char *missing; /* symbol that this driver does not have */
    bool refuse_edges, refuse_instantiate_early;
    /* what it finds */
    uint32_t n_calls;
    int n_contexts, n_streams, n_events, n_modules, n_device, n_host, n_graphs, n_execs, n_nodes;
    uint64_t device_bytes;
    int depth; /* pushed contexts */
    bool broken;
    fake_op op[FAKE_OPS];
    uint64_t n_ops, n_run;
    uint64_t n_launched, clock;
    fake_launch launched[FAKE_NODES];
    struct cu_graph_s *last_graph; /* a copy of the last one that was instantiated */
} fake_state;

static fake_state fake;
static struct cu_context_s fake_context;
static struct cu_stream_s fake_stream;
static struct cu_module_s fake_module;
static struct cu_function_s fake_function[KERNEL_COUNT + 1];
static struct cu_graph_s fake_last_graph;
static struct cu_node_s fake_last_nodes[FAKE_NODES];
static uint32_t fake_big_smem = 100000;

static void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.n_devices = 1;
    fake.major = 9;
    fake.fail_with = FAKE_ERROR;
    for (uint32_t i = 0; kernel_table[i].name != NULL; i++)
        fake_function[i] = (struct cu_function_s){&kernel_table[i], i == 1 ? fake_big_smem : 0};
}

static bool fake_leaks(void)
{
    const int n[] = {fake.n_contexts, fake.n_streams, fake.n_events, fake.n_modules, fake.n_device,
                     fake.n_host,     fake.n_graphs,  fake.n_execs,  fake.n_nodes,   fake.depth};
    bool leak = false;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        if (n[i] != 0) {
            print_error("fake driver: object kind %zu: %d alive\n", i, n[i]);
            leak = true;
        }
    return leak;
}

/* Every function begins so. */
static cu_result fake_call(bool needs_context)
{
    fake.n_calls++;
    if (needs_context && fake.depth <= 0) fail_msg("a call without a current context");
    if (fake.fail_at != 0 && --fake.fail_at == 0) return fake.fail_with;
    return fake.broken && needs_context ? FAKE_ILLEGAL_ADDRESS : 0;
}

#define FAKE_BEGIN(needs_context)                                                                  \
    do {                                                                                           \
        const cu_result fake_r = fake_call(needs_context);                                         \
        if (fake_r != 0) return fake_r;                                                            \
    } while (0)

/* ---- The stream ---- */

static void fake_run_launch(const fake_launch *l)
{
    if (l->func->info == NULL) {
        fake.broken = true;
        return;
    }
    if (fake.n_launched < FAKE_NODES) fake.launched[fake.n_launched] = *l;
    fake.n_launched++;
    fake.clock += 1000;
}

static void fake_run(uint64_t until)
{
    for (; fake.n_run < until && !fake.broken; fake.n_run++) {
        const fake_op *o = &fake.op[fake.n_run % FAKE_OPS];
        switch (o->kind) {
        case FAKE_COPY:
            memcpy((void *)(uintptr_t)o->dst, (void *)(uintptr_t)o->src, o->bytes);
            break;
        case FAKE_FILL:
            memset((void *)(uintptr_t)o->dst, o->value, o->bytes);
            break;
        case FAKE_LAUNCH:
            fake_run_launch(&o->l);
            break;
        case FAKE_EVENT:
            o->event->time = fake.clock;
            break;
        }
    }
}

static fake_op *fake_push(void)
{
    if (fake.n_ops - fake.n_run == FAKE_OPS) fake_run(fake.n_run + FAKE_OPS / 2);
    fake_op *o = &fake.op[fake.n_ops++ % FAKE_OPS];
    memset(o, 0, sizeof *o);
    return o;
}

static fake_launch fake_take(const cu_node_params *p)
{
    fake_launch l = {.func = p->func,
                     .grid_x = p->grid_x,
                     .grid_y = p->grid_y,
                     .threads = p->block_x,
                     .shared_bytes = p->shared_bytes};
    const uint32_t n = p->func->info == NULL ? 1 : p->func->info->n_bindings;
    assert_int_equal(p->grid_z, 1);
    assert_int_equal(p->block_y, 1);
    assert_int_equal(p->block_z, 1);
    assert_true(p->shared_bytes <= p->func->dyn_smem);
    for (uint32_t i = 0; i < n; i++)
        memcpy(&l.ptr[i], p->params[i], sizeof l.ptr[i]);
    if (p->func->info != NULL) memcpy(l.args, p->params[n], sizeof l.args);
    return l;
}

/* ---- The functions ---- */

static cu_result f_init(unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(false);
    return 0;
}
static cu_result f_driver_version(int *v)
{
    FAKE_BEGIN(false);
    *v = 13000;
    return 0;
}
static cu_result f_error_name(cu_result r, const char **name)
{
    *name = r == FAKE_ILLEGAL_ADDRESS ? "FAKE_ILLEGAL_ADDRESS" : "FAKE_ERROR";
    return 0;
}
static cu_result f_error_text(cu_result r, const char **text)
{
    *text = r == FAKE_ILLEGAL_ADDRESS ? "a bad address" : "an error";
    return 0;
}
static cu_result f_device_count(int *n)
{
    FAKE_BEGIN(false);
    *n = fake.n_devices;
    return n[0] == 0 ? CU_NO_DEVICE : 0;
}
static cu_result f_device_get(cu_device *d, int i)
{
    FAKE_BEGIN(false);
    *d = i;
    return 0;
}
static cu_result f_device_name(char *name, int bytes, cu_device d)
{
    (void)d;
    FAKE_BEGIN(false);
    snprintf(name, (size_t)bytes, "Fake GPU");
    return 0;
}
static cu_result f_device_attr(int *value, int attr, cu_device d)
{
    (void)d;
    FAKE_BEGIN(false);
    *value = attr == CU_ATTR_MULTIPROCESSORS ? 132 : attr == CU_ATTR_CC_MAJOR ? fake.major : 0;
    return 0;
}
static cu_result f_ctx_create(cu_context *c, unsigned flags, cu_device d)
{
    (void)flags, (void)d;
    FAKE_BEGIN(false);
    assert_int_equal(fake.n_contexts, 0);
    *c = &fake_context;
    fake.n_contexts++;
    fake.depth++;
    fake.broken = false;
    return 0;
}
static cu_result f_ctx_destroy(cu_context c)
{
    assert_ptr_equal(c, &fake_context);
    fake.n_calls++;
    /* Takes all that belongs to it along. */
    fake.n_contexts--;
    fake_run(fake.n_ops);
    fake.n_run = fake.n_ops;
    fake.broken = false;
    return 0;
}
static cu_result f_ctx_push(cu_context c)
{
    assert_ptr_equal(c, &fake_context);
    fake.depth++;
    return 0;
}
static cu_result f_ctx_pop(cu_context *c)
{
    assert_true(fake.depth > 0);
    *c = &fake_context;
    fake.depth--;
    return 0;
}
static cu_result f_ctx_sync(void)
{
    assert_true(fake.depth > 0);
    fake_run(fake.n_ops);
    return fake.broken ? FAKE_ILLEGAL_ADDRESS : 0;
}
static cu_result f_stream_create(cu_stream *s, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(true);
    *s = &fake_stream;
    fake.n_streams++;
    return 0;
}
static cu_result f_stream_destroy(cu_stream s)
{
    assert_ptr_equal(s, &fake_stream);
    fake.n_streams--;
    return 0;
}
static cu_result f_stream_sync(cu_stream s)
{
    assert_ptr_equal(s, &fake_stream);
    FAKE_BEGIN(true);
    fake_run(fake.n_ops);
    return fake.broken ? FAKE_ILLEGAL_ADDRESS : 0;
}
static cu_result f_event_create(cu_event *e, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(true);
    *e = calloc(1, sizeof **e);
    assert_non_null(*e);
    fake.n_events++;
    return 0;
}
static cu_result f_event_destroy(cu_event e)
{
    fake_run(fake.n_ops);
    free(e);
    fake.n_events--;
    return 0;
}
static cu_result f_event_record(cu_event e, cu_stream s)
{
    assert_ptr_equal(s, &fake_stream);
    FAKE_BEGIN(true);
    fake_op *o = fake_push();
    o->kind = FAKE_EVENT;
    o->event = e;
    e->recorded = true;
    e->at = fake.n_ops;
    return 0;
}
static cu_result f_event_sync(cu_event e)
{
    FAKE_BEGIN(true);
    if (e->recorded) fake_run(e->at);
    return fake.broken ? FAKE_ILLEGAL_ADDRESS : 0;
}
static cu_result f_event_elapsed(float *ms, cu_event a, cu_event b)
{
    FAKE_BEGIN(true);
    *ms = (float)(b->time - a->time) * 1e-3f;
    return 0;
}
static cu_result f_mem_info(size_t *n_free, size_t *n_total)
{
    FAKE_BEGIN(true);
    *n_total = (size_t)1 << 40;
    *n_free = *n_total - fake.device_bytes;
    return 0;
}
static cu_result f_mem_alloc(cu_ptr *p, size_t bytes)
{
    FAKE_BEGIN(true);
    void *m = malloc(bytes);
    assert_non_null(m);
    memset(m, 0xa5, bytes);
    *p = (cu_ptr)(uintptr_t)m;
    fake.n_device++;
    return 0;
}
static cu_result f_mem_free(cu_ptr p)
{
    fake_run(fake.n_ops);
    free((void *)(uintptr_t)p);
    fake.n_device--;
    return 0;
}
static cu_result f_host_alloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(true);
    *p = malloc(bytes);
    assert_non_null(*p);
    fake.n_host++;
    return 0;
}
static cu_result f_host_free(void *p)
{
    fake_run(fake.n_ops);
    free(p);
    fake.n_host--;
    return 0;
}
static cu_result f_host_device_ptr(cu_ptr *p, void *host, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(true);
    *p = (cu_ptr)(uintptr_t)host;
    return 0;
}
static cu_result f_copy(cu_ptr dst, cu_ptr src, size_t bytes, cu_stream s)
{
    assert_ptr_equal(s, &fake_stream);
    FAKE_BEGIN(true);
    fake_op *o = fake_push();
    o->kind = FAKE_COPY;
    o->dst = dst;
    o->src = src;
    o->bytes = bytes;
    return 0;
}
static cu_result f_fill(cu_ptr dst, unsigned char v, size_t bytes, cu_stream s)
{
    assert_ptr_equal(s, &fake_stream);
    FAKE_BEGIN(true);
    fake_op *o = fake_push();
    o->kind = FAKE_FILL;
    o->dst = dst;
    o->value = v;
    o->bytes = bytes;
    return 0;
}
static cu_result f_module_load(cu_module *m, const void *image)
{
    FAKE_BEGIN(true);
    assert_memory_equal(image, "fake", 4);
    *m = &fake_module;
    fake.n_modules++;
    return 0;
}
static cu_result f_module_unload(cu_module m)
{
    assert_ptr_equal(m, &fake_module);
    fake.n_modules--;
    return 0;
}
static cu_result f_module_function(cu_function *f, cu_module m, const char *name)
{
    assert_ptr_equal(m, &fake_module);
    FAKE_BEGIN(true);
    for (uint32_t i = 0; kernel_table[i].name != NULL; i++)
        if (i != 2 && strcmp(kernel_table[i].name, name) == 0) { /* one is missing */
            *f = &fake_function[i];
            return 0;
        }
    if (strcmp(name, "kx_faulty") != 0) return CU_NOT_FOUND;
    *f = &fake_function[KERNEL_COUNT];
    return 0;
}
static cu_result f_module_global(cu_ptr *p, size_t *bytes, cu_module m, const char *name)
{
    char want[128];
    assert_ptr_equal(m, &fake_module);
    FAKE_BEGIN(true);
    snprintf(want, sizeof want, "%s_dyn_smem", kernel_table[1].name);
    if (strcmp(want, name) != 0) return CU_NOT_FOUND;
    *p = (cu_ptr)(uintptr_t)&fake_big_smem;
    *bytes = sizeof fake_big_smem;
    return 0;
}
static cu_result f_func_set(cu_function f, int attr, int value)
{
    FAKE_BEGIN(true);
    assert_int_equal(attr, CU_FUNC_MAX_DYN_SMEM);
    assert_int_equal(value, f->dyn_smem);
    return 0;
}
static cu_result f_launch(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared_bytes, cu_stream s,
                          void **params, void **extra)
{
    const cu_node_params p = {f, gx, gy, gz, bx, by, bz, shared_bytes, params, extra, NULL, NULL};
    assert_ptr_equal(s, &fake_stream);
    FAKE_BEGIN(true);
    fake_op *o = fake_push();
    o->kind = FAKE_LAUNCH;
    o->l = fake_take(&p);
    return 0;
}
static cu_result f_launch_ex(const cu_launch_config *c, cu_function f, void **params, void **extra)
{
    const cu_result r = f_launch(f, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y,
                                 c->block_z, c->shared_bytes, c->stream, params, extra);
    if (r != 0) return r;
    assert_int_equal(c->n_attrs, 1);
    assert_int_equal(c->attrs[0].id, CU_LAUNCH_ATTR_PDL);
    assert_int_equal(c->attrs[0].v.value, 1);
    fake.op[(fake.n_ops - 1) % FAKE_OPS].l.early = true;
    return 0;
}

/* ---- Graphs ---- */

static cu_result f_graph_create(cu_graph *g, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(true);
    *g = calloc(1, sizeof **g);
    assert_non_null(*g);
    fake.n_graphs++;
    return 0;
}
static void fake_free_nodes(struct cu_graph_s *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        free(g->node[i]);
    fake.n_nodes -= (int)g->n;
}
static cu_result f_graph_destroy(cu_graph g)
{
    fake_free_nodes(g);
    free(g);
    fake.n_graphs--;
    return 0;
}
static cu_node fake_node(cu_graph g, const cu_node *deps, size_t n_deps)
{
    cu_node n = calloc(1, sizeof *n);
    assert_non_null(n);
    assert_true(g->n < FAKE_NODES && n_deps <= 64);
    for (size_t i = 0; i < n_deps; i++) {
        bool known = false;
        for (uint32_t j = 0; j < g->n; j++)
            known = known || g->node[j] == deps[i];
        assert_true(known);
        n->dep[i] = deps[i];
    }
    n->n_deps = (uint32_t)n_deps;
    g->node[g->n++] = n;
    fake.n_nodes++;
    return n;
}
static cu_result f_graph_kernel(cu_node *out, cu_graph g, const cu_node *deps, size_t n_deps,
                                const cu_node_params *p)
{
    FAKE_BEGIN(true);
    const fake_launch l = fake_take(p);
    *out = fake_node(g, deps, n_deps);
    (*out)->l = l;
    return 0;
}
static cu_result f_graph_event(cu_node *out, cu_graph g, const cu_node *deps, size_t n_deps,
                               cu_event e)
{
    FAKE_BEGIN(true);
    *out = fake_node(g, deps, n_deps);
    (*out)->event = e;
    return 0;
}
static cu_result f_graph_edges(cu_graph g, const cu_node *from, const cu_node *to,
                               const cu_edge *edge, size_t n)
{
    (void)g;
    FAKE_BEGIN(true);
    if (fake.refuse_edges) return 1;
    for (size_t i = 0; i < n; i++) {
        cu_node t = to[i];
        assert_int_equal(edge[i].from_port, CU_PORT_PROGRAMMATIC);
        assert_int_equal(edge[i].type, CU_EDGE_PROGRAMMATIC);
        assert_true(t->n_deps < 64 && t->l.func != NULL && from[i]->l.func != NULL);
        t->dep[t->n_deps] = from[i];
        t->dep_early[t->n_deps++] = true;
    }
    return 0;
}
/* Copies nodes and edges: `to` gets its own nodes at store, or new ones when store is NULL. */
static void fake_copy_graph(struct cu_graph_s *to, const struct cu_graph_s *g, cu_node store)
{
    to->n = g->n;
    for (uint32_t i = 0; i < g->n; i++) {
        to->node[i] = store != NULL ? &store[i] : calloc(1, sizeof *to->node[i]);
        assert_non_null(to->node[i]);
        *to->node[i] = *g->node[i];
        for (uint32_t j = 0; j < g->node[i]->n_deps; j++)
            for (uint32_t k = 0; k < i; k++)
                if (g->node[k] == g->node[i]->dep[j]) to->node[i]->dep[j] = to->node[k];
    }
}
static cu_result f_graph_instantiate(cu_exec *x, cu_graph g, unsigned long long flags)
{
    (void)flags;
    FAKE_BEGIN(true);
    for (uint32_t i = 0; fake.refuse_instantiate_early && i < g->n; i++) {
        uint32_t n = 0; /* early edges out of one node */
        for (uint32_t j = 0; j < g->n; j++)
            for (uint32_t k = 0; k < g->node[j]->n_deps; k++)
                n += g->node[j]->dep[k] == g->node[i] && g->node[j]->dep_early[k];
        if (n > 1) return 1;
    }
    *x = calloc(1, sizeof **x);
    assert_non_null(*x);
    fake_copy_graph(&(*x)->g, g, NULL);
    fake_copy_graph(&fake_last_graph, g, fake_last_nodes);
    fake.last_graph = &fake_last_graph;
    fake.n_nodes += (int)g->n;
    fake.n_execs++;
    return 0;
}
static cu_result f_exec_destroy(cu_exec x)
{
    fake_free_nodes(&x->g);
    free(x);
    fake.n_execs--;
    return 0;
}
static cu_result f_exec_upload(cu_exec x, cu_stream s)
{
    (void)x, (void)s;
    FAKE_BEGIN(true);
    return 0;
}
static cu_result f_exec_launch(cu_exec x, cu_stream s)
{
    assert_ptr_equal(s, &fake_stream);
    FAKE_BEGIN(true);
    for (uint32_t i = 0; i < x->g.n; i++) {
        fake_op *o = fake_push();
        o->kind = x->g.node[i]->l.func != NULL ? FAKE_LAUNCH : FAKE_EVENT;
        o->l = x->g.node[i]->l;
        o->event = x->g.node[i]->event;
        if (o->event != NULL) o->event->recorded = true;
        if (o->event != NULL) o->event->at = fake.n_ops;
    }
    return 0;
}
static cu_result f_param_info(cu_function f, size_t i, size_t *off, size_t *bytes)
{
    FAKE_BEGIN(true);
    *off = 0;
    assert_int_equal(i, f->info->n_bindings);
    *bytes = 16;
    return 0;
}

static cuda_any_fn fake_lookup(void *ctx, const char *symbol)
{
    (void)ctx;
    if (fake.missing != NULL && strcmp(fake.missing, symbol) == 0) return NULL;
#define X(field, name, params)                                                                     \
    if (strcmp(symbol, #name) == 0) {                                                              \
        cu_result(*f) params = f_##field;                                                          \
        cuda_any_fn any;                                                                           \
        memcpy(&any, &f, sizeof any);                                                              \
        return any;                                                                                \
    }
    CUDA_API_REQUIRED(X)
    CUDA_API_OPTIONAL(X)
#undef X
    return NULL;
}

#endif
