/* Queues, command buffers, encoders, fences and events: what may be said when, and what is kept of
 * it for exec.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "metal.h"
#include "standin.h"

static uint32_t n_encoders; /* numbers given out */
static uint64_t n_dispatches, n_barriers;

#define LOG_MAX (1u << 20)
static struct {
    const char *kernel;
    uint32_t n_arguments;
} * dispatch_log; /* [LOG_MAX] */

static void log_dispatch(const simt_kernel *k)
{
    if (dispatch_log == NULL) dispatch_log = mem_alloc_pages(LOG_MAX * sizeof *dispatch_log);
    if (dispatch_log == NULL) abort();
    if (n_dispatches > LOG_MAX) return;
    dispatch_log[n_dispatches - 1].kernel = k->name;
    dispatch_log[n_dispatches - 1].n_arguments = k->n_bindings + (k->args_bytes > 0);
}

static uint32_t barrier_log[LOG_MAX];

STANDIN_API uint64_t standin_barrier(uint64_t n)
{
    return n >= 1 && n <= rt_count.barriers && n <= LOG_MAX ? barrier_log[n - 1] : 0;
}

STANDIN_API uint32_t standin_dispatch(uint64_t n, const char **kernel)
{
    if (n == 0 || n > n_dispatches || n > LOG_MAX || dispatch_log[n - 1].kernel == NULL) return 0;
    *kernel = dispatch_log[n - 1].kernel;
    return dispatch_log[n - 1].n_arguments;
}

void encode_reset(void)
{
    n_encoders = 0;
    n_dispatches = n_barriers = 0;
}

/* ---- Queues ---- */

static void queue_dealloc(obj *o)
{
    const queue_body *q = RT_BODY(o, queue_body);
    for (size_t i = 0; i < q->n_sets; i++)
        rt_release(q->sets[i]);
}

static void queue_add_set(obj *self, rt_sel *sel, obj *set)
{
    (void)sel;
    rt_lock();
    queue_body *q = RT_BODY(self, queue_body);
    if (rt_is(set, &class_MTLResidencySet, "addResidencySet:")) {
        if (q->n_sets == SETS_MAX)
            rt_violation("more than %u residency sets of a queue", SETS_MAX);
        else
            q->sets[q->n_sets++] = rt_retain(set);
    }
    rt_unlock();
}

static void queue_remove_set(obj *self, rt_sel *sel, obj *set)
{
    (void)sel;
    rt_lock();
    queue_body *q = RT_BODY(self, queue_body);
    size_t i = 0;
    while (i < q->n_sets && q->sets[i] != set)
        i++;
    if (i == q->n_sets) {
        rt_violation("removeResidencySet: the queue does not have it");
    } else {
        q->sets[i] = q->sets[--q->n_sets];
        rt_release(set);
    }
    rt_unlock();
}

static obj *command_buffer(obj *self, bool retains)
{
    rt_lock();
    queue_body *q = RT_BODY(self, queue_body);
    if (q->n_open >= QUEUE_MAX)
        rt_violation("commandBuffer would wait: %u command buffers have not ended", q->n_open);
    q->n_open++;
    obj *o = rt_new(&class_MTLCommandBuffer);
    cb_body *b = RT_BODY(o, cb_body);
    b->queue = rt_retain(self);
    b->retains = retains;
    rt_autorelease(o);
    rt_unlock();
    return o;
}

static obj *queue_buffer(obj *self, rt_sel *sel)
{
    (void)sel;
    return command_buffer(self, true);
}

static obj *queue_buffer_unretained(obj *self, rt_sel *sel)
{
    (void)sel;
    return command_buffer(self, false);
}

static const rt_method queue_methods[] = {
    RT_M("commandBuffer", queue_buffer, RT_FAILS, 0),
    RT_M("commandBufferWithUnretainedReferences", queue_buffer_unretained, RT_FAILS, 0),
    RT_M("addResidencySet:", queue_add_set, 0, 1500),
    RT_M("removeResidencySet:", queue_remove_set, 0, 1500),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLCommandQueue = {"MTLCommandQueue",  &class_NSObject, queue_methods,
                                        sizeof(queue_body), queue_dealloc,   0};

/* ---- Command buffers ---- */

static void cb_dealloc(obj *o)
{
    cb_body *b = RT_BODY(o, cb_body);
    if (b->status == CB_NEW && b->open != NULL)
        rt_violation("a command buffer ends with an encoder open");
    if (b->status == CB_NEW) RT_BODY(b->queue, queue_body)->n_open--;
    if (b->open != NULL) RT_BODY(b->open, encoder_body)->cb = NULL;
    rt_release(b->error);
    rt_release(b->queue);
    mem_free(b->ops);
}

/* A place for a command. */
static op *cb_op(obj *cb)
{
    cb_body *b = RT_BODY(cb, cb_body);
    if (b->n_ops == b->cap_ops) {
        b->cap_ops = 2 * b->cap_ops + 64;
        b->ops = mem_resize(b->ops, b->cap_ops * sizeof *b->ops);
        if (b->ops == NULL) abort();
    }
    op *p = &b->ops[b->n_ops++];
    *p = (op){.kind = OP_DISPATCH};
    return p;
}

static bool cb_is_new(const cb_body *b, const char *what)
{
    if (b->status != CB_NEW) rt_violation("%s after commit of the command buffer", what);
    if (b->open != NULL) rt_violation("%s while an encoder is open", what);
    return b->status == CB_NEW && b->open == NULL;
}

static obj *new_encoder(obj *cb, const rt_class *cls, bool concurrent)
{
    obj *o = NULL;
    rt_lock();
    cb_body *b = RT_BODY(cb, cb_body);
    if (cb_is_new(b, "a new encoder")) {
        o = b->open = rt_new(cls);
        encoder_body *e = RT_BODY(o, encoder_body);
        e->cb = cb;
        e->concurrent = concurrent;
        e->id = ++n_encoders;
        b->last_encoder = e->id;
        if (b->first_encoder == 0) b->first_encoder = e->id;
        *exec_encoder(e->id) = (encoder_info){.id = e->id};
        rt_count.encoders++;
        rt_autorelease(o);
    }
    rt_unlock();
    return o;
}

static obj *cb_compute(obj *self, rt_sel *sel, unsigned long type)
{
    (void)sel;
    if (type > 1) rt_violation("computeCommandEncoderWithDispatchType: %lu", type);
    return new_encoder(self, &class_MTLComputeCommandEncoder, type == 1);
}

static obj *cb_blit(obj *self, rt_sel *sel)
{
    (void)sel;
    return new_encoder(self, &class_MTLBlitCommandEncoder, true);
}

static void cb_event(obj *self, op_kind kind, obj *event, uint64_t value)
{
    rt_lock();
    cb_body *b = RT_BODY(self, cb_body);
    if (rt_is(event, &class_MTLSharedEvent, "an event of a command buffer") &&
        cb_is_new(b, "an event")) {
        op *p = cb_op(self);
        p->kind = kind;
        p->pipeline = event;
        p->value = value;
        p->encoder = b->last_encoder != 0 ? b->last_encoder : n_encoders;
    }
    rt_unlock();
}

static void cb_signal(obj *self, rt_sel *sel, obj *event, uint64_t value)
{
    (void)sel;
    cb_event(self, OP_SIGNAL, event, value);
}

static void cb_wait_event(obj *self, rt_sel *sel, obj *event, uint64_t value)
{
    (void)sel;
    cb_event(self, OP_WAIT, event, value);
}

/* Everything that a command buffer refers to must live, and be resident where sets say what is. */
static void check_resident(const queue_body *q, const op *p)
{
    for (uint32_t i = 0; i < p->n_bindings && q->n_sets > 0; i++) {
        bool found = false;
        for (size_t s = 0; s < q->n_sets && !found; s++)
            found = set_has(q->sets[s], p->buffer[i]);
        if (!found)
            rt_violation("dispatch %u (%s): buffer %s at argument %u is in no residency set that "
                         "the queue has and that was committed",
                         p->number, p->kernel != NULL ? p->kernel->name : "blit",
                         RT_BODY(p->buffer[i], buffer_body)->label, i);
    }
}

static bool cb_check(const cb_body *b)
{
    bool ok = true;
    for (size_t k = 0; k < b->n_ops; k++) {
        const op *p = &b->ops[k];
        if (p->kind == OP_DISPATCH && !rt_is(p->pipeline, &class_MTLComputePipelineState, "commit"))
            ok = false;
        for (uint32_t i = 0; i < p->n_bindings; i++)
            if (!rt_is(p->buffer[i], &class_MTLBuffer, "commit")) ok = false;
        if (ok) check_resident(RT_BODY(b->queue, queue_body), p);
    }
    return ok;
}

static void cb_commit(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    cb_body *b = RT_BODY(self, cb_body);
    queue_body *q = RT_BODY(b->queue, queue_body);
    if (cb_is_new(b, "commit") && cb_check(b)) {
        if (b->first_encoder != 0 && b->first_encoder < q->last_encoder)
            rt_violation("command buffers are committed in another order than they were encoded");
        if (b->last_encoder != 0) q->last_encoder = b->last_encoder;
        b->number = ++rt_count.commits;
        exec_commit(self);
    }
    rt_unlock();
}

static void cb_wait(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    cb_body *b = RT_BODY(self, cb_body);
    if (b->status < CB_COMMITTED)
        rt_violation("waitUntilCompleted before commit");
    else if (rt_opt.cb_hang_at != 0 && b->number >= rt_opt.cb_hang_at && b->status < CB_COMPLETED)
        rt_violation("waitUntilCompleted of a command buffer that never ends");
    else {
        rt_retain(self);
        while (b->status < CB_COMPLETED)
            rt_wait();
        exec_observed(b->last_encoder);
        rt_release(self);
    }
    rt_unlock();
}

static unsigned long cb_status(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    const cb_body *b = RT_BODY(self, cb_body);
    if (b->status >= CB_COMPLETED) exec_observed(b->last_encoder);
    const unsigned long status = b->status;
    rt_unlock();
    return status;
}

static obj *cb_error(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    obj *e = rt_autorelease(rt_retain(RT_BODY(self, cb_body)->error));
    rt_unlock();
    return e;
}

static double cb_start(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, cb_body)->start;
}

static double cb_end(obj *self, rt_sel *sel)
{
    (void)sel;
    return RT_BODY(self, cb_body)->end;
}

static const rt_method cb_methods[] = {
    RT_M("computeCommandEncoderWithDispatchType:", cb_compute, RT_FAILS, 0),
    RT_M("blitCommandEncoder", cb_blit, RT_FAILS, 0),
    RT_M("encodeSignalEvent:value:", cb_signal, 0, 0),
    RT_M("encodeWaitForEvent:value:", cb_wait_event, 0, 0),
    RT_M("commit", cb_commit, 0, 0),
    RT_M("waitUntilCompleted", cb_wait, 0, 0),
    RT_M("status", cb_status, 0, 0),
    RT_M("error", cb_error, RT_FAILS, 0),
    RT_M("GPUStartTime", cb_start, 0, 0),
    RT_M("GPUEndTime", cb_end, 0, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLCommandBuffer = {"MTLCommandBuffer", &class_NSObject, cb_methods,
                                         sizeof(cb_body),    cb_dealloc,      0};

/* ---- Compute encoders ---- */

static void encoder_dealloc(obj *o)
{
    encoder_body *e = RT_BODY(o, encoder_body);
    if (e->ended || e->cb == NULL) return;
    rt_violation("an encoder ends without endEncoding");
    RT_BODY(e->cb, cb_body)->open = NULL;
}

/* An encoder that may be told something; NULL after a violation. The lock is held then. */
static encoder_body *encoding(obj *self, const char *what)
{
    rt_lock();
    encoder_body *e = RT_BODY(self, encoder_body);
    if (!e->ended && e->cb != NULL) return e;
    rt_violation("%s after endEncoding", what);
    rt_unlock();
    return NULL;
}

static slot *slot_at(encoder_body *e, unsigned long i, const char *what)
{
    if (i < SLOTS_MAX) return &e->slots[i];
    rt_violation("%s: argument %lu of %u", what, i, SLOTS_MAX);
    return NULL;
}

static void set_pipeline(obj *self, rt_sel *sel, obj *pipeline)
{
    (void)sel;
    encoder_body *e = encoding(self, "setComputePipelineState:");
    if (e == NULL) return;
    if (rt_is(pipeline, &class_MTLComputePipelineState, "setComputePipelineState:"))
        e->pipeline = pipeline;
    rt_unlock();
}

static void check_offset(const buffer_body *b, unsigned long offset, unsigned long i)
{
    if (offset >= b->bytes)
        rt_violation("argument %lu: offset %lu of buffer %s, which has %llu bytes", i, offset,
                     b->label, (unsigned long long)b->bytes);
    if (offset % 16 != 0)
        rt_violation("argument %lu: offset %lu of buffer %s is not a multiple of 16", i, offset,
                     b->label);
}

static void set_buffer(obj *self, rt_sel *sel, obj *buffer, unsigned long offset, unsigned long i)
{
    (void)sel;
    encoder_body *e = encoding(self, "setBuffer:offset:atIndex:");
    if (e == NULL) return;
    slot *s = slot_at(e, i, "setBuffer:offset:atIndex:");
    if (s != NULL && rt_is(buffer, &class_MTLBuffer, "setBuffer:offset:atIndex:")) {
        check_offset(RT_BODY(buffer, buffer_body), offset, i);
        *s = (slot){.kind = SLOT_BUFFER, .fresh = true, .buffer = buffer, .offset = offset};
    }
    rt_unlock();
}

static void set_offset(obj *self, rt_sel *sel, unsigned long offset, unsigned long i)
{
    (void)sel;
    encoder_body *e = encoding(self, "setBufferOffset:atIndex:");
    if (e == NULL) return;
    slot *s = slot_at(e, i, "setBufferOffset:atIndex:");
    if (s != NULL && s->kind != SLOT_BUFFER) {
        rt_violation("setBufferOffset:atIndex: argument %lu has no buffer", i);
    } else if (s != NULL) {
        check_offset(RT_BODY(s->buffer, buffer_body), offset, i);
        s->offset = offset;
        s->fresh = true;
    }
    rt_unlock();
}

static void set_bytes(obj *self, rt_sel *sel, const void *p, unsigned long bytes, unsigned long i)
{
    (void)sel;
    encoder_body *e = encoding(self, "setBytes:length:atIndex:");
    if (e == NULL) return;
    slot *s = slot_at(e, i, "setBytes:length:atIndex:");
    if (bytes == 0 || bytes > BYTES_MAX || p == NULL)
        rt_violation("setBytes:length:atIndex: %lu bytes; 1 to %u are allowed", bytes, BYTES_MAX);
    else if (s != NULL && bytes > sizeof s->data)
        rt_violation("setBytes:length:atIndex: %lu bytes; no kernel takes more than %zu", bytes,
                     sizeof s->data);
    else if (s != NULL) {
        *s = (slot){.kind = SLOT_BYTES, .fresh = true, .bytes = (uint32_t)bytes};
        memcpy(s->data, p, bytes);
    }
    rt_unlock();
}

static bool same_slot(const slot *a, const slot *b)
{
    return a->kind == b->kind && a->buffer == b->buffer && a->offset == b->offset &&
           a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
}

/* The arguments as the mutation of this dispatch makes them. */
static void mutate(encoder_body *e, slot *to)
{
    memcpy(to, e->slots, sizeof e->slots);
    if (rt_opt.mutation == MUTATE_NONE || n_dispatches != rt_opt.mutated) return;
    const uint32_t a = rt_opt.mutate_a;
    const uint32_t b = rt_opt.mutation == MUTATE_SWAP ? (uint32_t)rt_opt.mutate_b : a;
    if (a >= SLOTS_MAX || b >= SLOTS_MAX) return;
    if (rt_opt.mutation == MUTATE_SWAP) {
        to[a] = e->slots[b];
        to[b] = e->slots[a];
    } else if (rt_opt.mutation == MUTATE_SHIFT) {
        to[a].offset += to[a].kind == SLOT_BUFFER ? rt_opt.mutate_b : 0;
    } else {
        to[a] = e->before[a];
    }
    if (!same_slot(&to[a], &e->slots[a])) rt_count.mutated = 1;
}

static void check_grid(const pipeline_body *p, m_size groups, m_size threads)
{
    const simt_kernel *k = p->kernel;
    if (groups.width == 0 || groups.height == 0 || groups.depth != 1 || groups.width > UINT32_MAX ||
        groups.height > UINT32_MAX)
        rt_violation("kernel %s: a grid of %lu x %lu x %lu groups", k->name, groups.width,
                     groups.height, groups.depth);
    if (threads.width != k->threads || threads.height != 1 || threads.depth != 1)
        rt_violation("kernel %s: groups of %lu x %lu x %lu threads, it has %u", k->name,
                     threads.width, threads.height, threads.depth, k->threads);
    if (threads.width > p->max_threads)
        rt_violation("kernel %s: %lu threads, the pipeline allows %lu", k->name, threads.width,
                     p->max_threads);
}

/* The kernel's arguments are buffers, then its struct when it has one. */
static bool check_slots(const simt_kernel *k, const slot *s)
{
    const uint32_t n = k->n_bindings + (k->args_bytes > 0);
    for (uint32_t i = 0; i < SLOTS_MAX; i++) {
        const int want = i < k->n_bindings ? SLOT_BUFFER : i < n ? SLOT_BYTES : SLOT_EMPTY;
        if (i >= n && !s[i].fresh) continue; /* of a dispatch before */
        if ((int)s[i].kind != want) {
            static const char *const words[] = {"nothing", "a buffer", "bytes"};
            rt_violation("kernel %s: argument %u is %s, not %s", k->name, i, words[s[i].kind],
                         words[want]);
            return false;
        }
        if (want == SLOT_BUFFER) check_offset(RT_BODY(s[i].buffer, buffer_body), s[i].offset, i);
        if (want == SLOT_BYTES && s[i].bytes != k->args_bytes) {
            rt_violation("kernel %s: argument %u has %u bytes, not %u", k->name, i, s[i].bytes,
                         k->args_bytes);
            return false;
        }
    }
    return true;
}

/* Is the parameter a pointer to what may be written? */
static bool is_written(const char *params, uint32_t i)
{
    const char *p = params;
    for (; i > 0 && p != NULL; i--) {
        p = strchr(p, ',');
        if (p != NULL) p++;
    }
    const char *end = p != NULL ? strchr(p, ',') : NULL;
    const char *word = p != NULL ? strstr(p, "const") : NULL;
    return word == NULL || (end != NULL && word > end);
}

static void keep_dispatch(encoder_body *e, const slot *s, m_size groups)
{
    const pipeline_body *pipe = RT_BODY(e->pipeline, pipeline_body);
    const simt_kernel *k = pipe->kernel;
    op *p = cb_op(e->cb);
    p->encoder = e->id;
    p->epoch = e->epoch;
    p->number = (uint32_t)n_dispatches;
    p->pipeline = e->pipeline;
    p->kernel = k;
    p->rung = pipe->rung;
    p->grid_x = (uint32_t)groups.width;
    p->grid_y = (uint32_t)groups.height;
    p->n_bindings = k->n_bindings;
    for (uint32_t i = 0; i < k->n_bindings; i++) {
        p->buffer[i] = s[i].buffer;
        p->writes |= (uint32_t)is_written(pipe->params, i) << i;
        p->offset[i] = s[i].offset;
        if ((p->writes >> i & 1) != 0) RT_BODY(s[i].buffer, buffer_body)->by_kernels = true;
    }
    if (k->args_bytes > 0) memcpy(p->args, s[k->n_bindings].data, k->args_bytes);
}

static void count_command(encoder_body *e)
{
    n_dispatches++;
    rt_count.dispatches++;
    e->n_dispatches++;
    exec_encoder(e->id)->n_dispatches++;
    exec_dispatch((uint32_t)n_dispatches, e->id, e->epoch);
}

static void dispatch(obj *self, rt_sel *sel, m_size groups, m_size threads)
{
    (void)sel;
    encoder_body *e = encoding(self, "dispatchThreadgroups:");
    if (e == NULL) return;
    if (e->pipeline == NULL) {
        rt_violation("dispatchThreadgroups: no pipeline is set");
    } else if (rt_is(e->pipeline, &class_MTLComputePipelineState, "dispatchThreadgroups:")) {
        slot now[SLOTS_MAX];
        if (!e->concurrent && e->n_dispatches > 0) e->epoch++;
        count_command(e);
        log_dispatch(RT_BODY(e->pipeline, pipeline_body)->kernel);
        mutate(e, now);
        check_grid(RT_BODY(e->pipeline, pipeline_body), groups, threads);
        if (check_slots(RT_BODY(e->pipeline, pipeline_body)->kernel, now))
            keep_dispatch(e, now, groups);
        for (uint32_t i = 0; i < SLOTS_MAX; i++)
            e->slots[i].fresh = false;
        memcpy(e->before, e->slots, sizeof e->slots);
    }
    rt_unlock();
}

static void barrier(obj *self, rt_sel *sel, unsigned long scope)
{
    (void)sel;
    encoder_body *e = encoding(self, "memoryBarrierWithScope:");
    if (e == NULL) return;
    if (scope != 1) rt_violation("memoryBarrierWithScope: %lu, buffers are 1", scope);
    if (!e->concurrent)
        rt_violation("memoryBarrierWithScope: in an encoder that is not concurrent");
    if (++rt_count.barriers <= LOG_MAX && n_dispatches > 0 && n_dispatches < LOG_MAX)
        barrier_log[rt_count.barriers - 1] = (uint32_t)n_dispatches;
    if (++n_barriers == rt_opt.drop_barrier)
        rt_count.mutated = 1;
    else
        e->epoch++;
    rt_unlock();
}

static void wait_fence(obj *self, rt_sel *sel, obj *fence)
{
    (void)sel;
    encoder_body *e = encoding(self, "waitForFence:");
    if (e == NULL) return;
    if (rt_is(fence, &class_MTLFence, "waitForFence:")) {
        if (e->n_dispatches > 0) rt_violation("waitForFence: after a command of the encoder");
        exec_wait_fence(RT_BODY(fence, fence_body), e);
    }
    rt_unlock();
}

static void update_fence(obj *self, rt_sel *sel, obj *fence)
{
    (void)sel;
    encoder_body *e = encoding(self, "updateFence:");
    if (e == NULL) return;
    if (rt_is(fence, &class_MTLFence, "updateFence:"))
        exec_update_fence(RT_BODY(fence, fence_body), e);
    rt_unlock();
}

static void end_encoding(obj *self, rt_sel *sel)
{
    (void)sel;
    encoder_body *e = encoding(self, "endEncoding");
    if (e == NULL) return;
    e->ended = true;
    RT_BODY(e->cb, cb_body)->open = NULL;
    rt_unlock();
}

static const rt_method encoder_methods[] = {
    RT_M("setComputePipelineState:", set_pipeline, 0, 0),
    RT_M("setBuffer:offset:atIndex:", set_buffer, 0, 0),
    RT_M("setBufferOffset:atIndex:", set_offset, 0, 0),
    RT_M("setBytes:length:atIndex:", set_bytes, 0, 0),
    RT_M("dispatchThreadgroups:threadsPerThreadgroup:", dispatch, 0, 0),
    RT_M("memoryBarrierWithScope:", barrier, 0, 0),
    RT_M("waitForFence:", wait_fence, 0, 0),
    RT_M("updateFence:", update_fence, 0, 0),
    RT_M("endEncoding", end_encoding, 0, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLComputeCommandEncoder = {
    "MTLComputeCommandEncoder", &class_NSObject, encoder_methods,
    sizeof(encoder_body),       encoder_dealloc, 0};

/* ---- Blit encoders: each command is a dispatch of its own, of no kernel ---- */

typedef struct m_range {
    unsigned long location, length;
} m_range;

static bool blit_range(obj *buffer, unsigned long off, unsigned long bytes, const char *what)
{
    if (!rt_is(buffer, &class_MTLBuffer, what)) return false;
    const buffer_body *b = RT_BODY(buffer, buffer_body);
    if (off <= b->bytes && bytes <= b->bytes - off && bytes > 0) return true;
    rt_violation("%s: %lu bytes at %lu of buffer %s, which has %llu", what, bytes, off, b->label,
                 (unsigned long long)b->bytes);
    return false;
}

static op *blit_op(encoder_body *e, op_kind kind, obj *buffer, unsigned long off,
                   unsigned long bytes)
{
    count_command(e);
    op *p = cb_op(e->cb);
    p->kind = kind;
    p->encoder = e->id;
    p->epoch = e->epoch;
    p->number = (uint32_t)n_dispatches;
    p->grid_x = p->grid_y = p->n_bindings = p->writes = 1;
    p->buffer[0] = buffer;
    p->offset[0] = off;
    p->value = bytes;
    p->rung = -1;
    RT_BODY(buffer, buffer_body)->by_kernels = true;
    return p;
}

static void blit_copy(obj *self, rt_sel *sel, obj *from, unsigned long from_off, obj *to,
                      unsigned long to_off, unsigned long bytes)
{
    (void)sel;
    encoder_body *e = encoding(self, "copyFromBuffer:");
    if (e == NULL) return;
    if (blit_range(from, from_off, bytes, "copyFromBuffer:") &&
        blit_range(to, to_off, bytes, "copyFromBuffer:toBuffer:")) {
        if (from == to && from_off < to_off + bytes && to_off < from_off + bytes)
            rt_violation("copyFromBuffer: the ranges overlap");
        if ((from_off | to_off | bytes) % 4 != 0)
            rt_violation("copyFromBuffer: offsets %lu, %lu and %lu bytes are not multiples of 4",
                         from_off, to_off, bytes);
        op *p = blit_op(e, OP_COPY, to, to_off, bytes);
        p->buffer[1] = from;
        p->offset[1] = from_off;
        p->n_bindings = 2;
    }
    rt_unlock();
}

static void blit_fill(obj *self, rt_sel *sel, obj *buffer, m_range range, uint8_t value)
{
    (void)sel;
    encoder_body *e = encoding(self, "fillBuffer:");
    if (e == NULL) return;
    if (blit_range(buffer, range.location, range.length, "fillBuffer:")) {
        if ((range.location | range.length) % 4 != 0)
            rt_violation("fillBuffer: %lu bytes at %lu are not multiples of 4", range.length,
                         range.location);
        blit_op(e, OP_FILL, buffer, range.location, range.length)->args[0] = value;
    }
    rt_unlock();
}

static const rt_method blit_methods[] = {
    RT_M("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", blit_copy, 0, 0),
    RT_M("fillBuffer:range:value:", blit_fill, 0, 0),
    RT_M("waitForFence:", wait_fence, 0, 0),
    RT_M("updateFence:", update_fence, 0, 0),
    RT_M("endEncoding", end_encoding, 0, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLBlitCommandEncoder = {
    "MTLBlitCommandEncoder", &class_NSObject, blit_methods,
    sizeof(encoder_body),    encoder_dealloc, 0};

/* ---- Fences and events ---- */

const rt_class class_MTLFence = {"MTLFence", &class_NSObject, NULL, sizeof(fence_body), NULL, 0};

static uint64_t event_value(obj *self, rt_sel *sel)
{
    (void)sel;
    rt_lock();
    const event_body *b = RT_BODY(self, event_body);
    exec_observed(b->encoder);
    const uint64_t v = b->value;
    rt_unlock();
    return v;
}

static void event_set(obj *self, rt_sel *sel, uint64_t v)
{
    (void)sel;
    rt_lock();
    RT_BODY(self, event_body)->value = v;
    rt_wake();
    rt_unlock();
}

static bool event_wait(obj *self, rt_sel *sel, uint64_t v, uint64_t timeout_ms)
{
    (void)sel;
    rt_lock();
    event_body *b = RT_BODY(self, event_body);
    const bool in_time = rt_wait_value(&b->value, v, timeout_ms);
    if (in_time) exec_observed(b->encoder);
    rt_unlock();
    return in_time;
}

static const rt_method event_methods[] = {
    RT_M("signaledValue", event_value, 0, 0),
    RT_M("setSignaledValue:", event_set, 0, 0),
    RT_M("waitUntilSignaledValue:timeoutMS:", event_wait, RT_FAILS, 0),
    {NULL, NULL, 0, 0}};
const rt_class class_MTLSharedEvent = {
    "MTLSharedEvent", &class_NSObject, event_methods, sizeof(event_body), NULL, 0};

const rt_class *const rt_classes[] = {&class_NSObject,
                                      &class_NSString,
                                      &class_NSError,
                                      &class_NSNumber,
                                      &class_NSDictionary,
                                      &class_NSMutableDictionary,
                                      &class_NSArray,
                                      &class_NSProcessInfo,
                                      &class_MTLCompileOptions,
                                      &class_MTLComputePipelineDescriptor,
                                      &class_MTLResidencySetDescriptor,
                                      &class_MTLDevice,
                                      &class_MTLArchitecture,
                                      &class_MTLBuffer,
                                      &class_MTLLibrary,
                                      &class_MTLFunction,
                                      &class_MTLComputePipelineState,
                                      &class_MTLResidencySet,
                                      &class_MTLCommandQueue,
                                      &class_MTLCommandBuffer,
                                      &class_MTLComputeCommandEncoder,
                                      &class_MTLBlitCommandEncoder,
                                      &class_MTLFence,
                                      &class_MTLSharedEvent,
                                      NULL};
