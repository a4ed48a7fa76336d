/* The CUDA driver on a driver interface in plain memory: order, edges, tickets, every failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "support/fake_cuda.h"

static const unsigned char image_bytes[] = "fake image";
static const cuda_image images[] = {{image_bytes, sizeof image_bytes}, {NULL, 0}};

static calla_status create(gpu_device **out, calla_error *err)
{
    cuda_api api;
    const calla_status st = cuda_api_load(&api, fake_lookup, NULL, err);
    if (st != CALLA_OK) return st;
    return cuda_create_from(out, &(cuda_source){&api, images, 2}, 0, err);
}

static gpu_device *must_create(void)
{
    gpu_device *d = NULL;
    calla_error err = {0};
    fake_reset();
    if (create(&d, &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_int_equal(fake.depth, 0);
    return d;
}

static void must_end(gpu_device *d)
{
    d->ops->destroy(d);
    assert_false(fake_leaks());
}

static gpu_buffer *buffer(gpu_device *d, gpu_memory kind, uint64_t bytes)
{
    gpu_buffer *b = NULL;
    assert_int_equal(d->ops->buffer_create(d, kind, bytes, "a test", &b, NULL), CALLA_OK);
    assert_int_equal(d->ops->buffer_bytes(b), bytes);
    return b;
}

/* ---- Recordings ---- */

enum { NODES = 40 };

typedef struct graph_case {
    gpu_recording r;
    gpu_dispatch dispatch[NODES];
    uint32_t level[NODES], dep_first[NODES + 1], dep[NODES * NODES];
} graph_case;

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* Any kernel that this build of the fake has; each with its own number in the arguments. */
static void fill_case(graph_case *c, uint32_t n, gpu_buffer *b, uint64_t *seed)
{
    memset(c, 0, sizeof *c);
    for (uint32_t i = 0; i < n; i++) {
        gpu_dispatch *g = &c->dispatch[i];
        g->kernel = next_random(seed) % 2;
        g->n_bindings = kernel_table[g->kernel].n_bindings;
        g->grid_x = 1 + next_random(seed) % 100;
        g->grid_y = 1 + next_random(seed) % 3;
        for (uint32_t j = 0; j < g->n_bindings; j++)
            g->bind[j] = (gpu_binding){{b, 16 * (uint64_t)(next_random(seed) % 8), 16}, GPU_READ};
        g->args_bytes = 16;
        memcpy(g->args, &i, sizeof i);
        c->dep_first[i + 1] = c->dep_first[i];
        for (uint32_t j = i < 4 ? 0 : i - 4; j < i; j++)
            if (next_random(seed) % 3 == 0) c->dep[c->dep_first[i + 1]++] = j;
    }
    c->r = (gpu_recording){c->dispatch, c->level, c->dep_first, c->dep, n, n, false};
}

static void check_launch(const fake_launch *l, const gpu_dispatch *g)
{
    assert_string_equal(l->func->info->name, kernel_table[g->kernel].name);
    assert_int_equal(l->grid_x, g->grid_x);
    assert_int_equal(l->grid_y, g->grid_y);
    assert_int_equal(l->threads, kernel_table[g->kernel].threads);
    /* native main loops run on sm_90a alone */
    assert_int_equal(l->shared_bytes, fake.major == 9 ? l->func->dyn_smem : 0);
    assert_memory_equal(l->args, g->args, g->args_bytes);
    for (uint32_t i = 0; i < g->n_bindings; i++)
        assert_int_equal(l->ptr[i], g->bind[i].view.buf->ptr + g->bind[i].view.off);
}

static void check_launched(const graph_case *c, bool early)
{
    assert_int_equal(fake.n_launched, c->r.n);
    for (uint32_t i = 0; i < c->r.n; i++) {
        check_launch(&fake.launched[i], &c->dispatch[i]);
        assert_int_equal(fake.launched[i].early, early && i > 0);
    }
}

/* ---- Creation ---- */

static void test_create(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_limits l;
    d->ops->limits(d, &l);
    assert_string_equal(l.name, "Fake GPU");
    assert_int_equal(l.n_cores, 132);
    assert_int_equal(l.native_mm, GPU_MM_WGMMA);
    assert_int_equal(l.total_bytes, (uint64_t)1 << 40);
    assert_string_equal(d->ops->name, "cuda");
    assert_false(d->ops->lost(d));
    must_end(d);
}

static void expect_refused(const char *word)
{
    gpu_device *d = NULL;
    calla_error err;
    assert_int_equal(create(&d, &err), CALLA_ERR_UNSUPPORTED);
    assert_null(d);
    if (strstr(err.message, word) == NULL) fail_msg("no \"%s\" in: %s", word, err.message);
    assert_false(fake_leaks());
}

static void test_refused(void **state)
{
    (void)state;
    cuda_api api;
    calla_error err;
    fake_reset();
    fake.n_devices = 0;
    expect_refused("no GPU");
    fake_reset();
    fake.major = 7;
    expect_refused("compute capability 7.0");
    fake_reset();
    fake.missing = "cuGraphAddKernelNode_v2";
    expect_refused("cuGraphAddKernelNode_v2");
    fake_reset();
    fake.fail_at = 1;
    expect_refused("does not start");
    assert_int_equal(cuda_api_open(&api, "libcalla-no-such.so.1", &err), CALLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no NVIDIA driver"));
    fake_reset();
    gpu_device *d = NULL;
    assert_int_equal(cuda_api_load(&api, fake_lookup, NULL, NULL), CALLA_OK);
    assert_int_equal(cuda_create_from(&d, &(cuda_source){&api, images, 2}, 1, &err),
                     CALLA_ERR_ARGUMENT);
}

/* On a machine of CI: no driver, or no kernels; both are said. */
static void test_real_create(void **state)
{
    (void)state;
    gpu_device *d = NULL;
    calla_error err = {0};
    const calla_status st = gpu_cuda_create(&d, 0, &err);
    if (st == CALLA_OK) {
        d->ops->destroy(d);
        return;
    }
    assert_int_equal(st, CALLA_ERR_UNSUPPORTED);
    assert_null(d);
    assert_true(err.message[0] != 0);
}

/* ---- Memory ---- */

#define MODEL_BYTES (3 * (size_t)CUDA_SEGMENT_BYTES)

static void check_model(gpu_device *d, gpu_buffer *b, const uint8_t *model)
{
    uint8_t *got = mem_alloc(MODEL_BYTES);
    assert_non_null(got);
    assert_int_equal(d->ops->read(d, got, (gpu_view){b, 0, MODEL_BYTES}, NULL), CALLA_OK);
    assert_memory_equal(got, model, MODEL_BYTES);
    mem_free(got);
}

/* Writes whose source is spoilt at once, clears and copies, against plain memory. */
static void test_memory(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, MODEL_BYTES);
    uint8_t *model = mem_alloc(MODEL_BYTES), *src = mem_alloc(MODEL_BYTES);
    uint64_t seed = 20261129;
    assert_non_null(model);
    assert_non_null(src);
    assert_int_equal(d->ops->zero(d, (gpu_view){b, 0, MODEL_BYTES}, NULL), CALLA_OK);
    for (uint32_t round = 0; round < 300; round++) {
        const uint32_t what = next_random(&seed) % 8;
        const size_t most = round % 50 == 0 ? MODEL_BYTES : round % 10 == 0 ? 3000000 : 5000;
        const size_t n = 1 + next_random(&seed) % most;
        const size_t at = next_random(&seed) % ((MODEL_BYTES - n) / 16 + 1) * 16;
        const gpu_view v = {b, at, n};
        if (what == 0) {
            assert_int_equal(d->ops->zero(d, v, NULL), CALLA_OK);
            memset(model + at, 0, n);
        } else if (what == 1 && at >= n + 16) {
            const size_t from = (at - n) / 16 * 16;
            assert_int_equal(d->ops->copy(d, v, (gpu_view){b, from, n}, NULL), CALLA_OK);
            memcpy(model + at, model + from, n);
        } else {
            for (size_t i = 0; i < n; i += 7)
                src[i] = (uint8_t)next_random(&seed);
            assert_int_equal(d->ops->write(d, v, src, NULL), CALLA_OK);
            memcpy(model + at, src, n);
            memset(src, 0xee, n);
        }
        if (round % 100 == 99) check_model(d, b, model);
    }
    assert_int_equal(d->ops->copy(d, (gpu_view){b, 0, 16}, (gpu_view){b, 16, 32}, NULL),
                     CALLA_ERR_INTERNAL);
    mem_free(model);
    mem_free(src);
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

static void test_host_memory(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *h = buffer(d, GPU_MEM_HOST, 4096), *b = buffer(d, GPU_MEM_DEVICE, 4096);
    uint8_t *p = d->ops->buffer_host(h), got[16];
    assert_non_null(p);
    assert_null(d->ops->buffer_host(b));
    memset(p, 7, 4096);
    assert_int_equal(d->ops->copy(d, (gpu_view){b, 0, 4096}, (gpu_view){h, 0, 4096}, NULL),
                     CALLA_OK);
    assert_int_equal(d->ops->read(d, got, (gpu_view){b, 4080, 16}, NULL), CALLA_OK);
    assert_int_equal(got[15], 7);
    calla_error err;
    gpu_buffer *none = b;
    fake.fail_at = 1;
    fake.fail_with = CU_OUT_OF_MEMORY;
    assert_int_equal(d->ops->buffer_create(d, GPU_MEM_DEVICE, 5 << 20, "the weights", &none, &err),
                     CALLA_ERR_MEMORY);
    assert_null(none);
    assert_non_null(strstr(err.message, "the weights (5 MiB)"));
    d->ops->buffer_destroy(d, h);
    d->ops->buffer_destroy(d, b);
    d->ops->buffer_destroy(d, NULL);
    must_end(d);
}

/* ---- Programs ---- */

static void run(gpu_device *d, gpu_program *p, calla_status want)
{
    uint64_t t = 0;
    double seconds = -1;
    assert_int_equal(d->ops->submit(d, p, &t, NULL), CALLA_OK);
    assert_int_equal(d->ops->wait(d, t, &seconds, NULL), want);
    assert_true(seconds >= 0);
}

static gpu_program *program(gpu_device *d, const graph_case *c, bool once)
{
    gpu_program *p = NULL;
    calla_error err = {0};
    if (d->ops->program_create(d, &c->r, once, &p, &err) != CALLA_OK) fail_msg("%s", err.message);
    return p;
}

static void test_once(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096);
    graph_case c;
    uint64_t seed = 1;
    for (uint32_t early = 0; early < 2; early++) {
        fill_case(&c, NODES, b, &seed);
        c.r.early_start = early != 0;
        gpu_program *p = program(d, &c, true);
        assert_int_equal(cuda_program_mode(p), 0);
        fake.n_launched = 0;
        run(d, p, CALLA_OK);
        check_launched(&c, early != 0);
        d->ops->program_destroy(d, p);
    }
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

/* The graph has the recording's dependencies, no more; early ones as `mode` and `single` say. */
static void check_edges(const graph_case *c, bool early, bool single)
{
    const struct cu_graph_s *g = fake.last_graph;
    assert_int_equal(g->n, c->r.n);
    for (uint32_t i = 0; i < g->n; i++) {
        const struct cu_node_s *n = g->node[i];
        const uint32_t n_deps = c->dep_first[i + 1] - c->dep_first[i];
        check_launch(&n->l, &c->dispatch[i]);
        assert_int_equal(n->n_deps, n_deps);
        for (uint32_t j = 0; j < n_deps; j++) {
            const uint32_t before = c->dep[c->dep_first[i] + j];
            uint32_t n_after = 0;
            for (uint32_t k = 0; k < c->dep_first[c->r.n]; k++)
                n_after += c->dep[k] == before;
            assert_ptr_equal(n->dep[j], g->node[before]);
            assert_int_equal(n->dep_early[j], early && n_deps == 1 && (!single || n_after == 1));
        }
    }
}

/* Would some dispatch have several early ones after it? */
static bool shares_early(const graph_case *c)
{
    uint32_t n[NODES] = {0};
    bool shared = false;
    for (uint32_t i = 0; i < c->r.n; i++)
        if (c->dep_first[i + 1] - c->dep_first[i] == 1)
            shared = ++n[c->dep[c->dep_first[i]]] > 1 || shared;
    return shared;
}

static uint32_t count_early(const struct cu_graph_s *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n; i++)
        for (uint32_t j = 0; j < g->node[i]->n_deps; j++)
            n += g->node[i]->dep_early[j];
    return n;
}

static void test_graph(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096);
    graph_case c;
    uint64_t seed = 2;
    /* 0: ordinary; 1: early; 2: the driver takes one early edge out of a node; 3: none */
    for (uint32_t kind = 0; kind < 4; kind++)
        for (uint32_t round = 0; round < 8; round++) {
            fill_case(&c, 12 + next_random(&seed) % (NODES - 12), b, &seed);
            c.r.early_start = kind != 0;
            fake.refuse_instantiate_early = kind == 2;
            fake.refuse_edges = kind == 3;
            gpu_program *p = program(d, &c, false);
            check_edges(&c, kind == 1 || kind == 2, kind == 2 && shares_early(&c));
            const uint32_t n_early = count_early(fake.last_graph);
            assert_int_equal(cuda_program_mode(p), n_early > 0 ? 2 : 1);
            assert_true(kind != 1 || n_early > 0);
            fake.n_launched = 0;
            run(d, p, CALLA_OK);
            run(d, p, CALLA_OK);
            assert_int_equal(fake.n_launched, 2 * c.r.n);
            d->ops->program_destroy(d, p);
        }
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

/* sm_80 has no early starts. */
static void test_old_device(void **state)
{
    (void)state;
    gpu_device *d = NULL;
    fake_reset();
    fake.major = 8;
    assert_int_equal(create(&d, NULL), CALLA_OK);
    gpu_limits l;
    d->ops->limits(d, &l);
    assert_int_equal(l.native_mm, GPU_MM_TILES);
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096);
    graph_case c;
    uint64_t seed = 3;
    fill_case(&c, NODES, b, &seed);
    c.r.early_start = true;
    gpu_program *p = program(d, &c, false);
    assert_int_equal(cuda_program_mode(p), 1);
    check_edges(&c, false, false);
    d->ops->program_destroy(d, p);
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

static void test_bad_programs(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096);
    graph_case c;
    gpu_program *p = NULL;
    calla_error err;
    uint64_t seed = 4;
    fill_case(&c, 3, b, &seed);
    c.dispatch[1].kernel = 2; /* the fake's module lacks it */
    assert_int_equal(d->ops->program_create(d, &c.r, false, &p, &err), CALLA_ERR_INTERNAL);
    assert_null(p);
    assert_non_null(strstr(err.message, "not in this build"));
    fill_case(&c, 3, b, &seed);
    c.dispatch[2].args_bytes = 12;
    assert_int_equal(d->ops->program_create(d, &c.r, false, &p, &err), CALLA_ERR_INTERNAL);
    fill_case(&c, 3, b, &seed);
    c.dispatch[2].n_bindings--;
    assert_int_equal(d->ops->program_create(d, &c.r, true, &p, &err), CALLA_ERR_INTERNAL);
    d->ops->program_destroy(d, NULL);
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

static void test_profile(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096);
    graph_case c;
    double seconds[NODES];
    uint64_t seed = 5;
    fill_case(&c, NODES, b, &seed);
    gpu_program *p = program(d, &c, true);
    assert_int_equal(d->ops->profile(d, p, seconds, NULL), CALLA_OK);
    for (uint32_t i = 0; i < NODES; i++)
        assert_true(seconds[i] > 0.9e-3 && seconds[i] < 1.1e-3); /* the fake's launch: 1 ms */
    /* kernels and events in one chain */
    assert_int_equal(fake.last_graph->n, 2 * NODES + 2);
    for (uint32_t i = 1; i < fake.last_graph->n; i++) {
        assert_int_equal(fake.last_graph->node[i]->n_deps, 1);
        assert_ptr_equal(fake.last_graph->node[i]->dep[0], fake.last_graph->node[i - 1]);
    }
    d->ops->program_destroy(d, p);
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

/* ---- Tickets and failures ---- */

static void test_many_submissions(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096);
    graph_case c;
    uint64_t seed = 6, t = 0;
    double seconds = -1;
    fill_case(&c, 2, b, &seed);
    gpu_program *p = program(d, &c, false);
    for (uint32_t i = 1; i <= 3 * CUDA_SLOTS; i++) {
        assert_int_equal(d->ops->submit(d, p, &t, NULL), CALLA_OK);
        assert_int_equal(t, i);
    }
    /* A slot is used again only after its submission ended. */
    assert_true(fake.n_launched >= 2 * 2 * CUDA_SLOTS);
    assert_int_equal(d->ops->wait(d, 1, &seconds, NULL), CALLA_OK);
    assert_int_equal(d->ops->wait(d, t, &seconds, NULL), CALLA_OK);
    assert_true(seconds > 1.9e-3 && seconds < 2.1e-3);
    assert_int_equal(fake.n_launched, 2 * 3 * CUDA_SLOTS);
    assert_int_equal(d->ops->wait(d, 0, NULL, NULL), CALLA_ERR_ARGUMENT);
    assert_int_equal(d->ops->wait(d, t + 1, NULL, NULL), CALLA_ERR_ARGUMENT);
    d->ops->program_destroy(d, p);
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

static void test_injected_failure(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096);
    graph_case c;
    uint64_t seed = 7, t[6];
    calla_error err;
    uint8_t got[16];
    fill_case(&c, 2, b, &seed);
    gpu_program *p = program(d, &c, false);
    d->ops->inject_failure(d, 2);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(d->ops->submit(d, p, &t[i], NULL), CALLA_OK);
    assert_int_equal(d->ops->wait(d, t[0], NULL, NULL), CALLA_OK);
    assert_int_equal(d->ops->wait(d, t[1], NULL, &err), CALLA_ERR_DEVICE);
    assert_non_null(strstr(err.message, "Fake GPU failed"));
    assert_int_equal(d->ops->wait(d, t[3], NULL, NULL), CALLA_ERR_DEVICE); /* was in flight */
    assert_int_equal(d->ops->wait(d, t[0], NULL, NULL), CALLA_OK);
    assert_false(d->ops->lost(d));
    /* What comes after the report is good. */
    assert_int_equal(d->ops->submit(d, p, &t[4], NULL), CALLA_OK);
    assert_int_equal(d->ops->wait(d, t[4], NULL, NULL), CALLA_OK);
    assert_int_equal(d->ops->read(d, got, (gpu_view){b, 0, 16}, NULL), CALLA_OK);
    /* A read reports it too; 0 takes an injection back. */
    d->ops->inject_failure(d, 1);
    assert_int_equal(d->ops->submit(d, p, &t[5], NULL), CALLA_OK);
    assert_int_equal(d->ops->read(d, got, (gpu_view){b, 0, 16}, NULL), CALLA_ERR_DEVICE);
    /* Once: the next one may belong to somebody else. */
    assert_int_equal(d->ops->read(d, got, (gpu_view){b, 0, 16}, NULL), CALLA_OK);
    assert_int_equal(d->ops->wait(d, t[5], NULL, NULL), CALLA_ERR_DEVICE);
    d->ops->inject_failure(d, 1);
    d->ops->inject_failure(d, 0);
    run(d, p, CALLA_OK);
    d->ops->program_destroy(d, p);
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

/* A bad address: the context is gone, all calls say so, the next device works. */
static void test_lost(void **state)
{
    (void)state;
    gpu_device *d = must_create();
    gpu_buffer *b = buffer(d, GPU_MEM_DEVICE, 4096), *none = NULL;
    graph_case c;
    uint64_t seed = 8, t = 0;
    calla_error err;
    gpu_limits l;
    uint8_t byte[16] = {0};
    const gpu_view v = {b, 0, 16};
    fill_case(&c, 2, b, &seed);
    gpu_program *p = program(d, &c, false), *q = NULL;
    assert_int_equal(cuda_break(d, &t, &err), CALLA_OK);
    assert_int_equal(d->ops->wait(d, t, NULL, &err), CALLA_ERR_DEVICE);
    assert_non_null(strstr(err.message, "a bad address"));
    assert_true(d->ops->lost(d));
    assert_int_equal(d->ops->submit(d, p, &t, NULL), CALLA_ERR_DEVICE);
    assert_int_equal(d->ops->write(d, v, byte, NULL), CALLA_ERR_DEVICE);
    assert_int_equal(d->ops->zero(d, v, NULL), CALLA_ERR_DEVICE);
    assert_int_equal(d->ops->copy(d, v, v, NULL), CALLA_ERR_DEVICE);
    assert_int_equal(d->ops->read(d, byte, v, NULL), CALLA_ERR_DEVICE);
    assert_int_equal(d->ops->buffer_create(d, GPU_MEM_HOST, 16, "x", &none, NULL),
                     CALLA_ERR_DEVICE);
    assert_int_equal(d->ops->program_create(d, &c.r, false, &q, NULL), CALLA_ERR_DEVICE);
    double seconds[2];
    assert_int_equal(d->ops->profile(d, p, seconds, NULL), CALLA_ERR_DEVICE);
    d->ops->limits(d, &l);
    assert_int_equal(l.free_bytes, 0);
    d->ops->program_destroy(d, p);
    d->ops->buffer_destroy(d, b);
    must_end(d);

    assert_int_equal(create(&d, NULL), CALLA_OK);
    b = buffer(d, GPU_MEM_DEVICE, 4096);
    fill_case(&c, 2, b, &seed);
    p = program(d, &c, false);
    run(d, p, CALLA_OK);
    d->ops->program_destroy(d, p);
    d->ops->buffer_destroy(d, b);
    must_end(d);
}

/* All that a device can do, stopping at the first failure, as a caller would. */
static calla_status scenario(calla_error *err)
{
    static uint8_t src[CUDA_SEGMENT_BYTES + 100];
    calla_status st = CALLA_OK;
    gpu_device *d = NULL;
    gpu_buffer *b = NULL, *h = NULL;
    gpu_program *once = NULL, *graph = NULL;
    graph_case c;
    double seconds[3];
    uint64_t seed = 9, t = 0;
    TRY(create(&d, err));
    TRY(d->ops->buffer_create(d, GPU_MEM_DEVICE, sizeof src, "b", &b, err));
    TRY(d->ops->buffer_create(d, GPU_MEM_HOST, 64, "h", &h, err));
    TRY(d->ops->zero(d, (gpu_view){b, 0, sizeof src}, err));
    TRY(d->ops->write(d, (gpu_view){b, 0, 50}, src, err));
    TRY(d->ops->write(d, (gpu_view){b, 0, sizeof src}, src, err));
    TRY(d->ops->copy(d, (gpu_view){b, 0, 64}, (gpu_view){h, 0, 64}, err));
    fill_case(&c, 3, b, &seed);
    c.r.early_start = true;
    TRY(d->ops->program_create(d, &c.r, true, &once, err));
    TRY(d->ops->program_create(d, &c.r, false, &graph, err));
    TRY(d->ops->submit(d, once, &t, err));
    TRY(d->ops->submit(d, graph, &t, err));
    TRY(d->ops->wait(d, t, seconds, err));
    TRY(d->ops->profile(d, graph, seconds, err));
    TRY(d->ops->read(d, src, (gpu_view){b, 0, 64}, err));
fail:
    if (d == NULL) return st;
    assert_int_equal(fake.depth, 0);
    d->ops->program_destroy(d, once);
    d->ops->program_destroy(d, graph);
    d->ops->buffer_destroy(d, b);
    d->ops->buffer_destroy(d, h);
    d->ops->destroy(d);
    return st;
}

static void test_every_call_fails(void **state)
{
    (void)state;
    calla_error err = {0};
    fake_reset();
    if (scenario(&err) != CALLA_OK) fail_msg("%s", err.message);
    const uint32_t n_calls = fake.n_calls;
    uint32_t n_failed = 0;
    assert_true(n_calls > 300);
    for (uint32_t i = 1; i <= n_calls; i++)
        for (uint32_t oom = 0; oom < 2; oom++) {
            fake_reset();
            fake.fail_at = i;
            if (oom) fake.fail_with = CU_OUT_OF_MEMORY;
            err.message[0] = 0;
            const calla_status st = scenario(&err);
            /* An early graph that fails is tried again; what is not required may fail. */
            n_failed += st != CALLA_OK;
            assert_true(st == CALLA_OK || err.message[0] != 0);
            if (fake_leaks()) fail_msg("after call %u failed", i);
        }
    print_message("%u calls, %u of %u runs failed\n", n_calls, n_failed, 2 * n_calls);
    assert_true(n_failed > n_calls);
}

static void test_no_memory(void **state)
{
    (void)state;
    calla_error err = {0};
    uint32_t n = 0;
    for (;; n++) {
        fake_reset();
        mem_fail_after(n);
        const calla_status st = scenario(&err);
        mem_fail_after(-1);
        if (fake_leaks()) fail_msg("after allocation %u failed", n);
        if (st == CALLA_OK) break;
        assert_int_equal(st, CALLA_ERR_MEMORY);
    }
    assert_true(n >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_real_create),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_old_device),
        cmocka_unit_test(test_bad_programs),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_many_submissions),
        cmocka_unit_test(test_injected_failure),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
