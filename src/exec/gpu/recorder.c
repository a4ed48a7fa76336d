#include "exec/gpu/recorder.h"

#include <string.h>

#include "base/mem.h"

#define RECORDER_DISPATCHES_MAX 8192u

typedef struct access {
    uint64_t begin, end;
    uint32_t dispatch;
} access_record;

/* What is still visible of one buffer's history: a write that covers an older record replaces it,
 * because whatever conflicts with the old one conflicts with the write, which comes after it. */
typedef struct history {
    gpu_buffer *buf;
    access_record *reads, *writes;
    uint32_t n_reads, n_writes, cap_reads, cap_writes;
} history;

struct recorder {
    gpu_device *dev;
    gpu_dispatch *dispatch;
    uint32_t n, cap;
    const char *label;
    history *hist; /* open hash, a power of two */
    uint32_t n_hist, cap_hist;
    uint32_t *level, *dep_first, *dep;
    uint64_t *reach; /* bit sets: all that dispatch i comes after */
    uint8_t *mark;
    uint32_t n_dep, cap_dep, cap_out;
    calla_error err;
    calla_status status;
};

calla_status recorder_create(recorder **out, gpu_device *d, calla_error *err)
{
    *out = mem_alloc(sizeof **out);
    if (*out == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a GPU recorder");
    (*out)->dev = d;
    return CALLA_OK;
}

static void history_free(recorder *r)
{
    for (uint32_t i = 0; i < r->cap_hist; i++) {
        mem_free(r->hist[i].reads);
        mem_free(r->hist[i].writes);
    }
    mem_free(r->hist);
    r->hist = NULL;
    r->n_hist = r->cap_hist = 0;
}

void recorder_destroy(recorder *r)
{
    if (r == NULL) return;
    history_free(r);
    mem_free(r->dispatch);
    mem_free(r->level);
    mem_free(r->dep_first);
    mem_free(r->dep);
    mem_free(r->reach);
    mem_free(r->mark);
    mem_free(r);
}

void rec_reset(recorder *r)
{
    r->n = 0;
    r->label = NULL;
    r->status = CALLA_OK;
    memset(&r->err, 0, sizeof r->err);
}

static void fail(recorder *r, calla_status st, const char *what)
{
    if (r->status != CALLA_OK) return;
    const char *name = r->n == 0 ? "?" : kernel_table[r->dispatch[r->n - 1].kernel].name;
    r->status = err_set(&r->err, st, "GPU kernel %s, dispatch %u: %s", name, r->n, what);
}

/* Makes room for n elements; false and the sticky error when there is no memory. */
static bool reserve(recorder *r, void **p, uint32_t *cap, uint32_t n, size_t size)
{
    if (n <= *cap) return true;
    const uint32_t want = n < 16 ? 16 : n + n / 2;
    void *q = mem_resize(*p, want * size);
    if (q == NULL) {
        fail(r, CALLA_ERR_MEMORY, "no memory for the recording");
        return false;
    }
    *p = q;
    *cap = want;
    return true;
}

void rec_dispatch(recorder *r, kernel_id k, uint32_t grid_x, uint32_t grid_y)
{
    if (r->status != CALLA_OK) return;
    if (r->n == RECORDER_DISPATCHES_MAX) {
        fail(r, CALLA_ERR_INTERNAL, "a program holds 8192 dispatches at most");
        return;
    }
    if (!reserve(r, (void **)&r->dispatch, &r->cap, r->n + 1, sizeof *r->dispatch)) return;
    gpu_dispatch *d = &r->dispatch[r->n++];
    memset(d, 0, sizeof *d);
    d->kernel = k;
    d->grid_x = grid_x;
    d->grid_y = grid_y;
    d->label = r->label != NULL ? r->label : kernel_table[k].name;
    if (grid_x == 0 || grid_y == 0 || grid_y > 65535u) fail(r, CALLA_ERR_INTERNAL, "bad grid");
}

static gpu_dispatch *current(recorder *r)
{
    if (r->status == CALLA_OK && r->n == 0) fail(r, CALLA_ERR_INTERNAL, "no dispatch begun");
    return r->status != CALLA_OK ? NULL : &r->dispatch[r->n - 1];
}

static void bind(recorder *r, gpu_view v, uint32_t access)
{
    gpu_dispatch *d = current(r);
    if (d == NULL) return;
    if (d->n_bindings == kernel_table[d->kernel].n_bindings) {
        fail(r, CALLA_ERR_INTERNAL, "more bindings than the kernel has");
        return;
    }
    if (v.buf == NULL) {
        fail(r, CALLA_ERR_INTERNAL, "a binding without a buffer");
        return;
    }
    const uint64_t size = r->dev->ops->buffer_bytes(v.buf);
    if (v.off > size || v.bytes > size - v.off || v.bytes == 0 || v.off % 16 != 0) {
        fail(r, CALLA_ERR_INTERNAL, "a binding outside its buffer, empty or not aligned");
        return;
    }
    d->bind[d->n_bindings++] = (gpu_binding){v, access};
}

void rec_read(recorder *r, gpu_view v)
{
    bind(r, v, GPU_READ);
}

void rec_write(recorder *r, gpu_view v)
{
    bind(r, v, GPU_WRITE);
}

void rec_read_write(recorder *r, gpu_view v)
{
    bind(r, v, GPU_READ_WRITE);
}

void rec_args(recorder *r, const void *args, uint32_t bytes)
{
    gpu_dispatch *d = current(r);
    if (d == NULL) return;
    if (bytes > GPU_ARGS_MAX) {
        fail(r, CALLA_ERR_INTERNAL, "argument struct of more than 128 bytes");
        return;
    }
    memcpy(d->args, args, bytes);
    d->args_bytes = bytes;
}

void rec_cost(recorder *r, double bytes, double flops)
{
    gpu_dispatch *d = current(r);
    if (d == NULL) return;
    d->bytes = bytes;
    d->flops = flops;
}

void rec_label(recorder *r, const char *label)
{
    r->label = label;
}

/* ---- hazards ---- */

static uint32_t slot_of(const recorder *r, const gpu_buffer *buf)
{
    uint32_t i = (uint32_t)(((uintptr_t)buf >> 4) * 0x9e3779b1u) & (r->cap_hist - 1);
    while (r->hist[i].buf != NULL && r->hist[i].buf != buf)
        i = (i + 1) & (r->cap_hist - 1);
    return i;
}

static bool history_grow(recorder *r)
{
    history *old = r->hist;
    const uint32_t n_old = r->cap_hist;
    history *fresh = mem_array(n_old == 0 ? 256 : 2 * (size_t)n_old, sizeof *fresh);
    if (fresh == NULL) {
        fail(r, CALLA_ERR_MEMORY, "no memory for the recording");
        return false;
    }
    r->hist = fresh;
    r->cap_hist = n_old == 0 ? 256 : 2 * n_old;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].buf != NULL) r->hist[slot_of(r, old[i].buf)] = old[i];
    mem_free(old);
    return true;
}

static history *history_of(recorder *r, gpu_buffer *buf)
{
    if (2 * r->n_hist >= r->cap_hist && !history_grow(r)) return NULL;
    history *h = &r->hist[slot_of(r, buf)];
    if (h->buf == NULL) {
        h->buf = buf;
        r->n_hist++;
    }
    return h;
}

static void mark_overlaps(recorder *r, const access_record *list, uint32_t n, uint64_t begin,
                          uint64_t end, uint32_t i)
{
    for (uint32_t j = 0; j < n; j++)
        if (list[j].begin < end && begin < list[j].end && list[j].dispatch != i)
            r->mark[list[j].dispatch] = 1;
}

/* Drops records of other dispatches that [begin, end) covers. */
static uint32_t drop_covered(access_record *list, uint32_t n, uint64_t begin, uint64_t end,
                             uint32_t i)
{
    uint32_t kept = 0;
    for (uint32_t j = 0; j < n; j++)
        if (list[j].dispatch == i || list[j].begin < begin || list[j].end > end)
            list[kept++] = list[j];
    return kept;
}

static void visit(recorder *r, uint32_t i, const gpu_binding *b)
{
    history *h = history_of(r, b->view.buf);
    if (h == NULL) return;
    const uint64_t begin = b->view.off, end = begin + b->view.bytes;
    mark_overlaps(r, h->writes, h->n_writes, begin, end, i);
    if ((b->access & GPU_WRITE) == 0) {
        if (!reserve(r, (void **)&h->reads, &h->cap_reads, h->n_reads + 1, sizeof *h->reads))
            return;
        h->reads[h->n_reads++] = (access_record){begin, end, i};
        return;
    }
    mark_overlaps(r, h->reads, h->n_reads, begin, end, i);
    h->n_reads = drop_covered(h->reads, h->n_reads, begin, end, i);
    h->n_writes = drop_covered(h->writes, h->n_writes, begin, end, i);
    if (!reserve(r, (void **)&h->writes, &h->cap_writes, h->n_writes + 1, sizeof *h->writes))
        return;
    h->writes[h->n_writes++] = (access_record){begin, end, i};
}

/* Turns the marks of dispatch i into its reduced dependencies, level and reach. */
static void settle(recorder *r, uint32_t i, uint32_t n_words)
{
    uint64_t *reach = r->reach + (size_t)i * n_words;
    memset(reach, 0, n_words * sizeof *reach);
    r->level[i] = 0;
    for (uint32_t j = i; j-- > 0;) { /* nearest first: what it reaches need not be named again */
        if (r->mark[j] == 0) continue;
        r->mark[j] = 0;
        if ((reach[j / 64] >> (j % 64) & 1) != 0) continue;
        if (!reserve(r, (void **)&r->dep, &r->cap_dep, r->n_dep + 1, sizeof *r->dep)) return;
        r->dep[r->n_dep++] = j;
        reach[j / 64] |= UINT64_C(1) << (j % 64);
        const uint64_t *theirs = r->reach + (size_t)j * n_words;
        for (uint32_t w = 0; w <= j / 64; w++)
            reach[w] |= theirs[w];
        if (r->level[j] + 1 > r->level[i]) r->level[i] = r->level[j] + 1;
    }
    r->dep_first[i + 1] = r->n_dep;
}

static bool make_room(recorder *r)
{
    if (r->n <= r->cap_out) return true;
    const uint32_t n = r->n + r->n / 2;
    mem_free(r->level);
    mem_free(r->dep_first);
    mem_free(r->mark);
    r->cap_out = 0;
    r->level = mem_array(n, sizeof *r->level);
    r->dep_first = mem_array((size_t)n + 1, sizeof *r->dep_first);
    r->mark = mem_array(n, 1);
    if (r->level == NULL || r->dep_first == NULL || r->mark == NULL) return false;
    r->cap_out = n;
    return true;
}

calla_status rec_finish(recorder *r, bool serial, gpu_recording *out, calla_error *err)
{
    const uint32_t n_words = (r->n + 63) / 64;
    for (uint32_t i = 0; i < r->n && r->status == CALLA_OK; i++)
        if (r->dispatch[i].n_bindings != kernel_table[r->dispatch[i].kernel].n_bindings)
            r->status = err_set(
                &r->err, CALLA_ERR_INTERNAL, "GPU kernel %s, dispatch %u: %u bindings, expected %u",
                kernel_table[r->dispatch[i].kernel].name, i, r->dispatch[i].n_bindings,
                kernel_table[r->dispatch[i].kernel].n_bindings);
    mem_free(r->reach);
    r->reach = NULL;
    if (r->status == CALLA_OK && r->n > 0) {
        r->reach = mem_array((size_t)r->n * n_words, sizeof *r->reach);
        if (r->reach == NULL || !make_room(r))
            fail(r, CALLA_ERR_MEMORY, "no memory for the recording");
    }
    if (r->mark != NULL) memset(r->mark, 0, r->cap_out); /* a recording that failed left some */
    r->n_dep = 0;
    history_free(r);
    uint32_t n_levels = 0;
    for (uint32_t i = 0; i < r->n && r->status == CALLA_OK; i++) {
        if (i == 0) r->dep_first[0] = 0;
        for (uint32_t b = 0; b < r->dispatch[i].n_bindings; b++)
            visit(r, i, &r->dispatch[i].bind[b]);
        if (serial && i > 0) r->mark[i - 1] = 1;
        if (r->status == CALLA_OK) settle(r, i, n_words);
        if (r->level[i] + 1 > n_levels) n_levels = r->level[i] + 1;
    }
    mem_free(r->reach);
    r->reach = NULL;
    if (r->status != CALLA_OK) {
        if (err != NULL) *err = r->err;
        return r->status;
    }
    *out = (gpu_recording){r->dispatch, r->level, r->dep_first, r->dep, r->n, n_levels, false};
    return CALLA_OK;
}
