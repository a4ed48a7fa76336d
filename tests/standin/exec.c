/* The GPU: a thread that takes command buffers in the order of their commits. Dispatches that
 * nothing orders run in a random order, their groups mixed; what may overlap by the rules of Metal
 * but does not run together here is judged by the order's rules (rivals) when memory is touched. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fpenv.h"
#include "base/mem.h"
#include "base/pool.h"
#include "metal.h"
#include "msl.h"

#define ENCODERS_MAX   (1u << 14)
#define DISPATCHES_MAX (1u << 20)
#define WAITING_MAX    256u
#define THREADS        2u

typedef struct node {
    uint32_t encoder, epoch;
} node;

static encoder_info encoders[ENCODERS_MAX]; /* rings */
static node *nodes;
static uint32_t observed;
static obj *waiting[WAITING_MAX];
static size_t n_waiting;
static bool started, stop, busy;
static pthread_t thread;
static uint64_t rng;
static simt_machine *machines[THREADS];
static pool *threads;
static simt_checker *checker;
static uint8_t *touched; /* bits that nobody reads */
static uint64_t touched_bytes;

/* ---- Order ---- */

encoder_info *exec_encoder(uint32_t id)
{
    return &encoders[id % ENCODERS_MAX];
}

void exec_dispatch(uint32_t number, uint32_t encoder, uint32_t epoch)
{
    if (nodes == NULL) nodes = mem_array(DISPATCHES_MAX, sizeof *nodes);
    if (nodes == NULL) abort();
    nodes[number % DISPATCHES_MAX] = (node){encoder, epoch};
}

/* Encoders without a command count as known; pairs that close the gap become part of upto. */
static void know_close(knowledge *k, uint32_t own)
{
    for (bool more = true; more && k->upto + 1 < own;) {
        more = exec_encoder(k->upto + 1)->n_dispatches == 0;
        for (uint32_t i = 0; i < k->n && !more; i++)
            more = k->pair[i].encoder == k->upto + 1 && k->pair[i].epochs == UINT32_MAX;
        k->upto += more;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n; i++)
        if (k->pair[i].encoder > k->upto) k->pair[n++] = k->pair[i];
    k->n = n;
}

static void know_pair(knowledge *k, known_pair p)
{
    for (uint32_t i = 0; i < k->n; i++)
        if (k->pair[i].encoder == p.encoder) {
            if (p.epochs > k->pair[i].epochs) k->pair[i].epochs = p.epochs;
            return;
        }
    uint32_t at = k->n;
    if (k->n < KNOWN_MAX) {
        k->n++;
    } else { /* two queues leave gaps that never close: what is longest ago is forgotten */
        at = 0;
        for (uint32_t i = 1; i < k->n; i++)
            if (k->pair[i].encoder < k->pair[at].encoder) at = i;
    }
    k->pair[at] = p;
}

void exec_update_fence(fence_body *f, const encoder_body *e)
{
    f->encoder = e->id;
    f->epochs = e->epoch + 1;
    f->n_dispatches = e->n_dispatches;
}

void exec_wait_fence(const fence_body *f, const encoder_body *e)
{
    if (f->encoder == 0) return;
    knowledge *k = &exec_encoder(e->id)->known;
    /* Not what it knew when it updated the fence: it has learned more when it was committed. */
    const knowledge *its = &exec_encoder(f->encoder)->known;
    if (its->upto > k->upto) k->upto = its->upto;
    for (uint32_t i = 0; i < its->n; i++)
        know_pair(k, its->pair[i]);
    const bool whole = exec_encoder(f->encoder)->n_dispatches == f->n_dispatches;
    know_pair(k, (known_pair){f->encoder, whole ? UINT32_MAX : f->epochs});
    know_close(k, e->id);
}

void exec_observed(uint32_t encoder)
{
    if (encoder > observed) observed = encoder;
}

static bool may_overlap(const void *ctx, const shadow *s, uint32_t a, uint32_t b)
{
    (void)ctx;
    node x = nodes[a % DISPATCHES_MAX], y = nodes[b % DISPATCHES_MAX];
    if (x.encoder == y.encoder) return x.epoch == y.epoch;
    if (x.encoder > y.encoder) {
        const node t = x;
        x = y;
        y = t;
    }
    const knowledge *k = &exec_encoder(y.encoder)->known;
    if (x.encoder <= k->upto) return false;
    for (uint32_t i = 0; i < k->n; i++)
        if (k->pair[i].encoder == x.encoder && x.epoch < k->pair[i].epochs) return false;
    return !buffer_tracked(s);
}

/* Is all that was encoded before this command buffer ordered before it? */
static bool is_after_all(const cb_body *b)
{
    if (b->first_encoder == 0) return false;
    for (uint32_t e = b->first_encoder; e <= b->last_encoder; e++)
        if (exec_encoder(e)->known.upto + 1 < b->first_encoder) return false;
    return true;
}

/* ---- Dispatches ---- */

static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

typedef struct blit_args {
    uint64_t bytes;
    uint8_t value;
} blit_args;

/* Copies and fills as kernels: the first lane does it all. */
static void blit_run(const simt_launch *l)
{
    blit_args a;
    memcpy(&a, l->args, sizeof a);
    if (simt_self->tid != 0) return;
    for (uint64_t i = 0; i < a.bytes; i += 4) {
        uint8_t *to = simt_device_access(&l->bind[0], (int64_t)i, 4, SIMT_WRITE, "blit", 0);
        if (l->kernel->n_bindings == 2)
            memcpy(to, simt_device_access(&l->bind[1], (int64_t)i, 4, SIMT_READ, "blit", 0), 4);
        else
            memset(to, a.value, 4);
    }
}

static const simt_kernel blit_copy = {"copyFromBuffer:", 32,       2,
                                      sizeof(blit_args), blit_run, "to, const from,"};
static const simt_kernel blit_fill = {"fillBuffer:", 32, 1, sizeof(blit_args), blit_run, "to,"};

typedef struct job {
    simt_launch launch;
    simt_track track[SIMT_BINDINGS];
    blit_args blit;
    uint32_t n_groups, n_begun;
    uint32_t *order; /* [n_groups]; NULL: ascending */
} job;

static void *touched_bits(uint64_t bytes)
{
    if (bytes <= touched_bytes) return touched;
    mem_free_pages(touched, touched_bytes);
    touched = mem_alloc_pages(bytes);
    touched_bytes = bytes;
    if (touched == NULL) abort();
    return touched;
}

static void job_init(job *j, const op *p)
{
    *j = (job){.n_groups = p->grid_x * p->grid_y};
    simt_launch *l = &j->launch;
    *l = (simt_launch){.kernel = p->kernel,
                       .args = p->args,
                       .grid_x = p->grid_x,
                       .grid_y = p->grid_y,
                       .i_dispatch = p->number};
    if (p->kind != OP_DISPATCH) {
        l->kernel = p->kind == OP_COPY ? &blit_copy : &blit_fill;
        j->blit = (blit_args){p->value, p->args[0]};
        l->args = &j->blit;
    }
    for (uint32_t i = 0; i < p->n_bindings; i++) {
        const buffer_body *b = RT_BODY(p->buffer[i], buffer_body);
        const uint64_t bytes = p->kind == OP_DISPATCH ? b->bytes - p->offset[i] : p->value;
        l->bind[i] = (simt_binding){b->data + p->offset[i], bytes, NULL};
        (void)touched_bits(bytes / 32 + 8);
    }
    if (j->n_groups > 1 && rng != 0) {
        j->order = mem_array(j->n_groups, sizeof *j->order);
        for (uint32_t i = 0; j->order != NULL && i < j->n_groups; i++) {
            const uint32_t k = below(i + 1);
            j->order[i] = j->order[k];
            j->order[k] = i;
        }
    }
}

/* After the bits have their place. */
static void job_track(job *j, const op *p)
{
    j->launch.checker = checker;
    for (uint32_t i = 0; i < p->n_bindings; i++) {
        buffer_body *b = RT_BODY(p->buffer[i], buffer_body);
        j->track[i] = (simt_track){.c = checker,
                                   .s = b->shadow,
                                   .buffer = b->label,
                                   .off = p->offset[i],
                                   .access = GPU_READ_WRITE,
                                   .i_binding = i,
                                   .cells = b->by_kernels,
                                   .read = touched,
                                   .written = touched};
        j->launch.bind[i].track = &j->track[i];
    }
}

typedef struct wave {
    job *jobs;
    uint32_t n;
} wave;

static bool wave_next(void *ctx, simt_group *g)
{
    wave *w = ctx;
    const uint32_t first = rng != 0 ? below(w->n) : 0;
    for (uint32_t i = 0; i < w->n; i++) {
        job *j = &w->jobs[(first + i) % w->n];
        if (j->n_begun == j->n_groups) continue;
        const uint32_t at = j->order != NULL ? j->order[j->n_begun] : j->n_begun;
        j->n_begun++;
        g->launch = &j->launch;
        g->gx = at % j->launch.grid_x;
        g->gy = at / j->launch.grid_x;
        g->run = simt_checker_group(checker, g->slot, &j->launch, g->gx, g->gy);
        memset(g->tg, 0xff, SIMT_TG_BYTES);
        rt_count.groups++;
        return g->run != 0;
    }
    return false;
}

static void wave_ended(void *ctx, const simt_group *g)
{
    (void)ctx;
    (void)g;
}

static bool wave_check(wave *w)
{
    const simt_source source = {wave_next, wave_ended, w};
    if (simt_machine_run_all(machines[0], &source)) return true;
    rt_violation("%s", simt_machine_failure(machines[0]));
    return false;
}

typedef struct fast_run {
    const job *j;
    uint32_t per_task;
    bool failed[THREADS];
} fast_run;

static void fast_groups(void *ctx, uint32_t i_task, uint32_t i_thread)
{
    fast_run *r = ctx;
    const job *j = r->j;
    const uint32_t first = i_task * r->per_task;
    for (uint32_t i = first; i < first + r->per_task && i < j->n_groups; i++) {
        const uint32_t at = j->order != NULL ? j->order[i] : i;
        if (r->failed[i_thread]) return;
        r->failed[i_thread] = !simt_machine_run(machines[i_thread], &j->launch,
                                                at % j->launch.grid_x, at / j->launch.grid_x);
    }
}

static bool job_fast(const job *j)
{
    const simt_launch *l = &j->launch;
    if (l->kernel == &blit_copy) {
        memcpy(l->bind[0].ptr, l->bind[1].ptr, j->blit.bytes);
        return true;
    }
    if (l->kernel == &blit_fill) {
        memset(l->bind[0].ptr, j->blit.value, j->blit.bytes);
        return true;
    }
    fast_run r = {.j = j, .per_task = 1 + j->n_groups / (THREADS * 8)};
    pool_run(threads, fast_groups, &r, (j->n_groups + r.per_task - 1) / r.per_task);
    rt_count.groups += j->n_groups;
    for (uint32_t i = 0; i < THREADS; i++)
        if (r.failed[i]) {
            rt_violation("%s", simt_machine_failure(machines[i]));
            return false;
        }
    return true;
}

static bool wave_fast(wave *w)
{
    bool ok = true;
    uint32_t *order = mem_array(w->n, sizeof *order);
    if (order == NULL) abort();
    for (uint32_t i = 0; i < w->n; i++) {
        const uint32_t k = rng != 0 ? below(i + 1) : i;
        order[i] = order[k];
        order[k] = i;
    }
    for (uint32_t i = 0; i < w->n && ok; i++)
        ok = job_fast(&w->jobs[order[i]]);
    mem_free(order);
    return ok;
}

/* The rung whose kernels are wrong at sizes above 1024. */
static void spoil(const op *p)
{
    if (rt_opt.wrong_rung < 0 || p->rung != rt_opt.wrong_rung || p->kernel == NULL) return;
    bool big = false;
    for (uint32_t i = 0; i + 4 <= p->kernel->args_bytes; i += 4) {
        uint32_t v;
        memcpy(&v, p->args + i, 4);
        big = big || (v > 1024 && v < (1u << 24));
    }
    for (uint32_t i = 0; i < p->n_bindings && big; i++) {
        const buffer_body *b = RT_BODY(p->buffer[i], buffer_body);
        if ((p->writes >> i & 1) != 0) b->data[p->offset[i] + 3] ^= 1; /* an exponent */
    }
}

static bool wave_run(const op *ops, uint32_t n)
{
    wave w = {mem_array(n, sizeof(job)), n};
    bool ok = true;
    if (w.jobs == NULL) abort();
    rt_count.waves++;
    for (uint32_t i = 0; i < n; i++)
        job_init(&w.jobs[i], &ops[i]);
    if (rt_opt.mode == MODE_CHECK) {
        for (uint32_t i = 0; i < n; i++)
            job_track(&w.jobs[i], &ops[i]);
        ok = wave_check(&w);
        rt_count.checked += n;
    } else if (rt_opt.mode == MODE_MSL) {
        ok = wave_fast(&w);
    }
    for (uint32_t i = 0; i < n; i++) {
        spoil(&ops[i]);
        mem_free(w.jobs[i].order);
    }
    mem_free(w.jobs);
    return ok;
}

/* ---- Command buffers ---- */

static void event_op(const op *p)
{
    event_body *b = RT_BODY(p->pipeline, event_body);
    rt_lock();
    if (p->kind == OP_SIGNAL) {
        if (p->value <= b->value)
            rt_violation("encodeSignalEvent: %llu after %llu", (unsigned long long)p->value,
                         (unsigned long long)b->value);
        b->value = p->value;
        b->encoder = p->encoder;
        rt_wake();
    }
    while (p->kind == OP_WAIT && b->value < p->value && !stop)
        rt_wait();
    rt_unlock();
}

static bool is_work(const op *p)
{
    return p->kind != OP_SIGNAL && p->kind != OP_WAIT;
}

static bool run_ops(const cb_body *b)
{
    for (size_t i = 0; i < b->n_ops;) {
        const op *p = &b->ops[i];
        uint32_t n = 1;
        if (!is_work(p)) {
            event_op(p);
        } else {
            while (i + n < b->n_ops && is_work(&p[n]) && p[n].encoder == p->encoder &&
                   p[n].epoch == p->epoch)
                n++;
            if (!wave_run(p, n)) return false;
        }
        i += n;
    }
    return true;
}

static void machines_create(void)
{
    calla_error err;
    const uint32_t n_slots = rt_opt.mode == MODE_CHECK && rt_opt.seed != 0 ? 3 : 1;
    const uint32_t n = rt_opt.mode == MODE_CHECK ? 1 : THREADS;
    rng = rt_opt.seed != 0 ? rt_opt.seed * 2 + 1 : 0;
    for (uint32_t i = 0; i < n; i++)
        if (simt_machine_create(&machines[i], n_slots, rt_opt.mode == MODE_CHECK ? rt_opt.seed : 0,
                                &err) != CALLA_OK)
            abort();
    if (rt_opt.mode == MODE_CHECK) {
        if (simt_checker_create(&checker, n_slots, &err) != CALLA_OK) abort();
        simt_checker_rivals(checker, may_overlap, NULL);
    } else if (pool_create(&threads, THREADS, &err) != CALLA_OK) {
        abort();
    }
}

static void machines_destroy(void)
{
    for (uint32_t i = 0; i < THREADS; i++) {
        simt_machine_destroy(machines[i]);
        machines[i] = NULL;
    }
    simt_checker_destroy(checker);
    pool_destroy(threads);
    checker = NULL;
    threads = NULL;
}

/* n: of the object's body. One that ended too early is a violation that was told. */
static void hold(obj *o, uint32_t *n, bool begin, bool retains)
{
    *n = begin ? *n + 1 : *n - 1;
    if (retains && begin) rt_retain(o);
    if (retains && !begin) rt_release(o);
}

static void in_flight(const cb_body *b, bool begin)
{
    for (size_t i = 0; i < b->n_ops; i++) {
        const op *p = &b->ops[i];
        uint32_t events = 1;
        if (p->pipeline != NULL && p->pipeline->dead) continue;
        if (p->kind == OP_DISPATCH)
            hold(p->pipeline, &RT_BODY(p->pipeline, pipeline_body)->n_in_flight, begin, b->retains);
        else if (p->pipeline != NULL)
            hold(p->pipeline, &events, begin, true);
        for (uint32_t k = 0; k < p->n_bindings; k++)
            if (!p->buffer[k]->dead)
                hold(p->buffer[k], &RT_BODY(p->buffer[k], buffer_body)->n_in_flight, begin,
                     b->retains);
    }
}

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void error_of(obj *cb, long code)
{
    static const char *const texts[] = {
        "none",
        "Internal Error (0000000e:kIOGPUCommandBufferCallbackError)",
        "Caused GPU Timeout Error",
        "Caused GPU Address Fault Error",
        "Ignored (for causing prior/excessive GPU errors)",
        "?",
        "?",
        "Insufficient Permission (background)",
        "Insufficient Memory",
        "Invalid Resource",
        "Memoryless",
        "Device removed",
        "Stack overflow"};
    const char *text = code >= 0 && code <= 12 ? texts[code] : "?";
    RT_BODY(cb, cb_body)->error = ns_error("MTLCommandBufferErrorDomain", code, text);
}

static void cb_end(obj *cb, bool ok, long code)
{
    cb_body *b = RT_BODY(cb, cb_body);
    if (!ok) error_of(cb, code);
    b->end = seconds();
    in_flight(b, false);
    RT_BODY(b->queue, queue_body)->n_open--;
    b->status = ok ? CB_COMPLETED : CB_ERROR;
    rt_wake();
    rt_release(cb);
}

static bool must_hang(const cb_body *b)
{
    return rt_opt.cb_hang_at != 0 && b->number >= rt_opt.cb_hang_at;
}

static void pause_at_random(void)
{
    if (rt_opt.delay_us == 0 || rng == 0) return;
    const uint32_t us = below((uint32_t)rt_opt.delay_us + 1);
    (void)nanosleep(&(struct timespec){us / 1000000, (long)(us % 1000000) * 1000}, NULL);
}

/* With the lock held, which is released while it runs. */
static void run_one(obj *cb)
{
    cb_body *b = RT_BODY(cb, cb_body);
    const bool fails =
        rt_opt.cb_error_at != 0 && (b->number == rt_opt.cb_error_at ||
                                    (rt_opt.cb_error_sticky && b->number > rt_opt.cb_error_at));
    b->status = CB_SCHEDULED;
    while (must_hang(b) && !stop)
        rt_wait();
    const bool run = !fails && !must_hang(b);
    rt_unlock();
    pause_at_random();
    b->start = seconds();
    if (run && checker != NULL && is_after_all(b)) simt_checker_begin(checker);
    const bool ok = run && run_ops(b);
    pause_at_random(); /* its event may have been signalled, but it has not ended */
    rt_lock();
    cb_end(cb, ok, fails ? rt_opt.cb_error : must_hang(b) ? 2 : 3);
}

static void *gpu_main(void *arg)
{
    (void)arg;
    (void)fpenv_flush_denormals();
    machines_create();
    rt_lock();
    while (!stop || n_waiting > 0) {
        if (n_waiting == 0) {
            busy = false;
            rt_wake();
            rt_wait();
            continue;
        }
        busy = true;
        obj *cb = waiting[0];
        memmove(waiting, waiting + 1, --n_waiting * sizeof *waiting);
        run_one(cb);
    }
    busy = false;
    rt_unlock();
    machines_destroy();
    return NULL;
}

void exec_commit(obj *cb)
{
    cb_body *b = RT_BODY(cb, cb_body);
    b->status = CB_COMMITTED;
    for (uint32_t e = b->first_encoder; e != 0 && e <= b->last_encoder; e++) {
        knowledge *k = &exec_encoder(e)->known;
        if (observed > k->upto) k->upto = observed;
        know_close(k, e);
    }
    rt_retain(cb);
    in_flight(b, true);
    if (n_waiting == WAITING_MAX) abort();
    waiting[n_waiting++] = cb;
    if (!started) {
        stop = false;
        started = pthread_create(&thread, NULL, gpu_main, NULL) == 0;
        if (!started) abort();
    }
    rt_wake();
}

void metal_drain(void)
{
    rt_lock();
    const bool join = started;
    stop = true;
    started = false;
    rt_wake();
    rt_unlock();
    if (join) (void)pthread_join(thread, NULL);
}

void metal_reset(void)
{
    observed = 0;
    n_waiting = 0;
    memset(encoders, 0, sizeof encoders);
    device_reset();
    encode_reset();
}

/* ---- Kernels ---- */

/* Without the expansions (STANDIN_NO_MSL, a quick build) there is no mode msl. */
static uint64_t expansion_hash(uint32_t i)
{
#if defined(STANDIN_NO_MSL)
    return exec_hash(metal_sources[i].text);
#else
    uint64_t h = 0;
    (void)msl_kernels(METAL_RUNG_SCALAR, i, &h);
    return h;
#endif
}

/* Which of the texts that ship it is; METAL_SOURCES: none. */
static uint32_t text_of(uint64_t hash)
{
    static uint64_t hashes[METAL_SOURCES];
    uint32_t i = 0;
    for (; i < METAL_SOURCES; i++) {
        if (hashes[i] == 0) hashes[i] = expansion_hash(i);
        if (hashes[i] == hash) break;
    }
    return i;
}

const simt_kernel *exec_kernels(uint64_t hash, int rung)
{
    const uint32_t i = text_of(hash);
    if (i == METAL_SOURCES) return NULL;
    if (metal_sources[i].has_tiles != (rung >= 0))
        rt_violation("the text \"%s\" is compiled %s CALLA_RUNG", metal_sources[i].name,
                     rung >= 0 ? "with" : "without");
    if (rt_opt.mode != MODE_MSL) return simt_kernels_check;
#if defined(STANDIN_NO_MSL)
    return NULL;
#else
    return msl_kernels(rung >= 0 ? (metal_rung)rung : METAL_RUNG_SCALAR, i, NULL);
#endif
}

bool exec_has(uint64_t hash, const char *kernel)
{
    const uint32_t i = text_of(hash);
    for (uint32_t k = 0; kernel_table[k].name != NULL; k++)
        if (strcmp(kernel_table[k].name, kernel) == 0) return metal_source_of[k] == i;
    return false;
}

const char *exec_params(const char *kernel)
{
    for (const simt_kernel *k = simt_kernels_check; k->name != NULL; k++)
        if (strcmp(k->name, kernel) == 0) return k->params;
    return "";
}
