/* Programs: launches in order, or a graph whose edges are the recording's dependencies; submission
 * and waiting. */
#include <string.h>
#include "base/mem.h"
#include "exec/gpu/cuda/cuda_dev.h"

/* A dispatch, ready to launch. The driver copies the parameters when it is told of them. */
typedef struct cuda_launch {
    cu_function func;
    uint32_t grid_x, grid_y, threads, shared_bytes;
    uint32_t n_bindings;
    cu_ptr ptr[GPU_BINDINGS_MAX];
    uint8_t args[GPU_ARGS_MAX] ATTR_ALIGNED(16);
    void *param[GPU_BINDINGS_MAX + 1]; /* into ptr and args */
} cuda_launch;

struct gpu_program {
    cuda_launch *launch; /* [n] */
    uint32_t n;
    bool early_start;
    uint32_t mode; /* cuda_program_mode() */
    cu_exec exec;  /* NULL: once */
};

uint32_t cuda_program_mode(const gpu_program *p)
{
    return p->mode;
}

/* ---- From a recording ---- */

static calla_status launch_fill(const cuda_device *d, cuda_launch *l, const gpu_dispatch *g,
                                calla_error *err)
{
    const char *name = kernel_table[g->kernel].name;
    const cuda_kernel *k = &d->kernel[g->kernel];
    if (k->func == NULL)
        return err_set(err, CALLA_ERR_INTERNAL, "GPU kernel %s is not in this build for CUDA",
                       name);
    if (g->n_bindings != kernel_table[g->kernel].n_bindings ||
        (k->args_bytes != UINT32_MAX && k->args_bytes != g->args_bytes))
        return err_set(err, CALLA_ERR_INTERNAL,
                       "GPU kernel %s: %u bindings and %u bytes of arguments, expected %u and %u",
                       name, g->n_bindings, g->args_bytes, kernel_table[g->kernel].n_bindings,
                       k->args_bytes);
    l->func = k->func;
    l->grid_x = g->grid_x;
    l->grid_y = g->grid_y;
    l->threads = kernel_table[g->kernel].threads;
    l->shared_bytes = k->dyn_smem;
    l->n_bindings = g->n_bindings;
    for (uint32_t i = 0; i < g->n_bindings; i++) {
        l->ptr[i] = g->bind[i].view.buf->ptr + g->bind[i].view.off;
        l->param[i] = &l->ptr[i];
    }
    memcpy(l->args, g->args, g->args_bytes);
    l->param[g->n_bindings] = l->args;
    return CALLA_OK;
}

static cu_node_params node_params(cuda_launch *l)
{
    return (cu_node_params){l->func, l->grid_x,       l->grid_y, 1,    l->threads, 1,
                            1,       l->shared_bytes, l->param,  NULL, NULL,       NULL};
}

/* ---- Graphs ---- */

/* How many dispatches may start early, and which: those with one dependency, which then waits
 * inside (PDL_WAIT) for the end of that one; and since every kernel waits so, for the end of all
 * before it. Where `single`, only if nothing else depends on it. */
static uint32_t choose_early(const gpu_recording *r, bool single, uint8_t *early)
{
    uint32_t n_early = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t n_after = 0;
        early[i] = r->dep_first[i + 1] - r->dep_first[i] == 1;
        for (uint32_t j = 0; single && early[i] && j < r->dep_first[r->n]; j++)
            n_after += r->dep[j] == r->dep[r->dep_first[i]];
        if (n_after > 1) early[i] = 0;
        n_early += early[i];
    }
    return n_early;
}

/* early: one flag a dispatch, or NULL for none. nodes: [2 n], scratch. */
static calla_status build_graph(cuda_device *d, gpu_program *p, const gpu_recording *r,
                                const uint8_t *early, cu_node *nodes, calla_error *err)
{
    calla_status st = CALLA_OK;
    cu_graph graph = NULL;
    cu_node *deps = nodes + r->n;
    CU(d, d->api.graph_create(&graph, 0), "making a graph", err);
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t first = r->dep_first[i], n_deps = r->dep_first[i + 1] - first;
        const bool starts_early = early != NULL && early[i];
        const cu_node_params np = node_params(&p->launch[i]);
        for (uint32_t j = 0; j < n_deps; j++)
            deps[j] = nodes[r->dep[first + j]];
        CU(d, d->api.graph_kernel(&nodes[i], graph, deps, starts_early ? 0 : n_deps, &np),
           "adding a kernel to a graph", err);
        if (!starts_early) continue;
        const cu_edge edge = {CU_PORT_PROGRAMMATIC, 0, CU_EDGE_PROGRAMMATIC, {0}};
        CU(d, d->api.graph_edges(graph, deps, &nodes[i], &edge, 1), "adding an edge to a graph",
           err);
    }
    CU(d, d->api.graph_instantiate(&p->exec, graph, 0), "preparing a graph", err);
    CU(d, d->api.exec_upload(p->exec, d->stream), "preparing a graph", err);
fail:
    if (graph != NULL) d->api.graph_destroy(graph);
    if (st != CALLA_OK && p->exec != NULL) {
        d->api.exec_destroy(p->exec);
        p->exec = NULL;
    }
    return st;
}

/* The most permissive graph that the driver takes. */
static calla_status make_graph(cuda_device *d, gpu_program *p, const gpu_recording *r,
                               calla_error *err)
{
    cu_node *nodes = mem_array(2 * (size_t)r->n + 1, sizeof *nodes);
    uint8_t *early = mem_alloc((size_t)r->n + 1);
    calla_status st = CALLA_ERR_MEMORY;
    if (nodes == NULL || early == NULL) {
        err_set(err, st, "no memory for a graph of %u kernels", r->n);
        goto done;
    }
    for (uint32_t single = 0; p->early_start && single < 2; single++) {
        if (choose_early(r, single != 0, early) == 0) break;
        st = build_graph(d, p, r, early, nodes, NULL);
        p->mode = 2;
        if (st == CALLA_OK || d->lost) goto done;
    }
    p->mode = 1;
    st = build_graph(d, p, r, NULL, nodes, err);
done:
    mem_free(nodes);
    mem_free(early);
    return st;
}

calla_status cuda_program_create(gpu_device *dev, const gpu_recording *r, bool once,
                                 gpu_program **out, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    *out = NULL;
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    gpu_program *p = mem_alloc(sizeof *p);
    if (p != NULL) p->launch = mem_array((size_t)r->n + 1, sizeof *p->launch);
    if (p == NULL || p->launch == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for a program of %u kernels", r->n);
        goto fail;
    }
    p->n = r->n;
    p->early_start = r->early_start && d->native_pdl;
    for (uint32_t i = 0; i < r->n; i++)
        TRY(launch_fill(d, &p->launch[i], &r->dispatch[i], err));
    if (!once) TRY(make_graph(d, p, r, err));
    *out = p;
fail:
    if (*out == NULL) cuda_program_destroy(dev, p);
    cuda_leave(d);
    return st;
}

void cuda_program_destroy(gpu_device *dev, gpu_program *p)
{
    cuda_device *d = (cuda_device *)dev;
    if (p == NULL) return;
    if (p->exec != NULL && d->api.ctx_push(d->ctx) == 0) {
        d->api.exec_destroy(p->exec);
        cuda_leave(d);
    }
    mem_free(p->launch);
    mem_free(p);
}

/* ---- Submission ---- */

static cu_result launch(cuda_device *d, cuda_launch *l, bool early)
{
    if (!early)
        return d->api.launch(l->func, l->grid_x, l->grid_y, 1, l->threads, 1, 1, l->shared_bytes,
                             d->stream, l->param, NULL);
    cu_launch_attr attr = {.id = CU_LAUNCH_ATTR_PDL, .v.value = 1};
    const cu_launch_config c = {l->grid_x, l->grid_y,       1,         l->threads, 1,
                                1,         l->shared_bytes, d->stream, &attr,      1};
    return d->api.launch_ex(&c, l->func, l->param, NULL);
}

calla_status cuda_program_launch(cuda_device *d, gpu_program *p, calla_error *err)
{
    calla_status st = CALLA_OK;
    if (p->exec != NULL) {
        CU(d, d->api.exec_launch(p->exec, d->stream), "launching a graph", err);
        return CALLA_OK;
    }
    for (uint32_t i = 0; i < p->n; i++)
        CU(d, launch(d, &p->launch[i], p->early_start && i > 0), "launching a kernel", err);
fail:
    return st;
}

/* Marks ticket as failed; what is reported is *err. */
static void note_failure(cuda_device *d, uint64_t ticket, const calla_error *err)
{
    if (d->fail_first != 0 && d->fail_last == 0) return;
    d->fail_first = ticket;
    d->fail_last = 0;
    d->fail_error = *err;
}

calla_status cuda_pending(cuda_device *d, uint64_t ticket, calla_error *err)
{
    if (d->fail_first == 0 || ticket < d->fail_first) return CALLA_OK;
    if (d->fail_last == 0) d->fail_last = d->last_ticket;
    if (ticket > d->fail_last) return CALLA_OK;
    return err_set(err, d->fail_error.code, "%s", d->fail_error.message);
}

calla_status cuda_submit(gpu_device *dev, gpu_program *p, uint64_t *ticket, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    const uint64_t t = d->last_ticket + 1;
    cuda_slot *s = &d->slot[t % CUDA_SLOTS];
    const bool injected = d->inject == 1;
    if (d->inject != 0) d->inject--;
    if (s->ticket != 0) CU(d, d->api.event_sync(s->end), "running a program", err);
    CU(d, d->api.event_record(s->begin, d->stream), "starting a program", err);
    if (injected) {
        calla_error e;
        err_set(&e, CALLA_ERR_DEVICE, "%s failed while running a program (as it was told to)",
                d->name);
        note_failure(d, t, &e);
    } else {
        TRY(cuda_program_launch(d, p, err));
    }
    CU(d, d->api.event_record(s->end, d->stream), "starting a program", err);
    s->ticket = d->last_ticket = t;
    *ticket = t;
fail:
    cuda_leave(d);
    return st;
}

calla_status cuda_wait(gpu_device *dev, uint64_t ticket, double *seconds, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    if (seconds != NULL) *seconds = 0;
    if (ticket == 0 || ticket > d->last_ticket)
        return err_set(err, CALLA_ERR_ARGUMENT, "there was no submission %llu",
                       (unsigned long long)ticket);
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    const cuda_slot *s = &d->slot[ticket % CUDA_SLOTS];
    if (s->ticket == ticket) {
        float ms = 0;
        CU(d, d->api.event_sync(s->end), "running a program", err);
        TRY(cuda_pending(d, ticket, err));
        if (seconds != NULL) {
            CU(d, d->api.event_elapsed(&ms, s->begin, s->end), "timing a program", err);
            *seconds = (double)ms * 1e-3;
        }
    } else {
        TRY(cuda_pending(d, ticket, err));
    }
fail:
    cuda_leave(d);
    return st;
}

calla_status cuda_break(gpu_device *dev, uint64_t *ticket, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    cuda_launch bad = {.func = d->faulty, .grid_x = 1, .grid_y = 1, .threads = 32};
    gpu_program p = {.launch = &bad, .n = 1};
    if (d->faulty == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "this build has no faulty kernel");
    bad.ptr[0] = 64; /* nothing is mapped there */
    bad.param[0] = &bad.ptr[0];
    return cuda_submit(dev, &p, ticket, err);
}

/* ---- Profile ---- */

#define PROFILE_RUNS 21u

/* A graph of the program's kernels one after the other, with an event before and after each, so
 * that nothing depends on how fast this side launches. Two events with nothing between them come
 * first: what they take is what an event takes. */
typedef struct profile_run {
    cu_event *event; /* [n_events] */
    uint32_t n_events;
    cu_exec exec;
    float *ms; /* [n_events - 1][PROFILE_RUNS] */
} profile_run;

static void profile_deinit(cuda_device *d, profile_run *q)
{
    if (q->exec != NULL) d->api.exec_destroy(q->exec);
    for (uint32_t i = 0; q->event != NULL && i < q->n_events; i++)
        if (q->event[i] != NULL) d->api.event_destroy(q->event[i]);
    mem_free(q->event);
    mem_free(q->ms);
}

static calla_status profile_init(cuda_device *d, profile_run *q, gpu_program *p, calla_error *err)
{
    calla_status st = CALLA_OK;
    cu_graph graph = NULL;
    cu_node last = NULL;
    q->n_events = p->n + 2;
    q->event = mem_array(q->n_events, sizeof *q->event);
    q->ms = mem_array((size_t)q->n_events * PROFILE_RUNS, sizeof *q->ms);
    if (q->event == NULL || q->ms == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a profile of %u kernels", p->n);
    CU(d, d->api.graph_create(&graph, 0), "making a graph", err);
    for (uint32_t i = 0; i < q->n_events; i++) {
        CU(d, d->api.event_create(&q->event[i], 0), "making an event", err);
        if (i >= 2) {
            const cu_node_params np = node_params(&p->launch[i - 2]);
            CU(d, d->api.graph_kernel(&last, graph, &last, 1, &np), "adding a kernel to a graph",
               err);
        }
        CU(d, d->api.graph_event(&last, graph, &last, i == 0 ? 0 : 1, q->event[i]),
           "adding an event to a graph", err);
    }
    CU(d, d->api.graph_instantiate(&q->exec, graph, 0), "preparing a graph", err);
fail:
    if (graph != NULL) d->api.graph_destroy(graph);
    return st;
}

static float median(float *v, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j > 0 && v[j] < v[j - 1]; j--) {
            const float t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    return v[n / 2];
}

calla_status cuda_profile(gpu_device *dev, gpu_program *p, double *seconds, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    profile_run q = {0};
    calla_status st = cuda_enter(d, err);
    if (st != CALLA_OK) return st;
    TRY(profile_init(d, &q, p, err));
    for (uint32_t run = 0; run < PROFILE_RUNS + 2; run++) {
        CU(d, d->api.exec_launch(q.exec, d->stream), "launching a graph", err);
        CU(d, d->api.stream_sync(d->stream), "running a program", err);
        for (uint32_t i = 0; run >= 2 && i + 1 < q.n_events; i++)
            CU(d,
               d->api.event_elapsed(&q.ms[(size_t)i * PROFILE_RUNS + run - 2], q.event[i],
                                    q.event[i + 1]),
               "timing a kernel", err);
    }
    const float nothing = median(q.ms, PROFILE_RUNS);
    for (uint32_t i = 0; i < p->n; i++) {
        const float ms = median(q.ms + (size_t)(i + 1) * PROFILE_RUNS, PROFILE_RUNS) - nothing;
        seconds[i] = ms > 0 ? (double)ms * 1e-3 : 0;
    }
fail:
    profile_deinit(d, &q);
    cuda_leave(d);
    return st;
}
