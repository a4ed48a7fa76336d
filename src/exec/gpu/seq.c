/* Sequences: rows and slots of the arenas, images, copies. */
#include <string.h>

#include "base/mem.h"
#include "exec/gpu/gpu.h"

#define ROW_BYTES   (MODEL_HEAD_DIM * 2u)
#define HEAD_FLOATS (MODEL_GDN_DIM * MODEL_GDN_DIM)
#define CONV_ROWS   (MODEL_CONV_KERNEL - 1)

static uint64_t state_slot_bytes(const model_shape *s)
{
    return (uint64_t)s->gdn_v_heads * HEAD_FLOATS * 4;
}

static uint64_t ring_slot_bytes(const model_shape *s)
{
    return (uint64_t)MODEL_CONV_KERNEL * shape_conv_channels(s) * 4;
}

uint64_t gpu_arena_bytes(const model_shape *s, uint32_t n_rows, uint32_t n_slots)
{
    const uint64_t n_full = s->n_layers / s->full_interval, n_gdn = s->n_layers - n_full;
    return n_full * 2 * n_rows * s->n_kv_heads * ROW_BYTES +
           n_gdn * n_slots * (state_slot_bytes(s) + ring_slot_bytes(s));
}

/* ---- arenas ---- */

/* *out: a copy of buf with n_heads * to_rows rows, where the old rows of each head keep their
 * places; NULL when buf is large enough. */
static calla_status enlarge(gpu_exec *ex, gpu_buffer *buf, uint32_t n_heads, uint64_t row_bytes,
                            uint64_t to_rows, const char *name, gpu_buffer **out, calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    const uint64_t bytes = n_heads * to_rows * row_bytes;
    const uint64_t old = buf == NULL ? 0 : ops->buffer_bytes(buf) / n_heads;
    gpu_buffer *fresh = NULL;
    *out = NULL;
    if (old >= to_rows * row_bytes) return CALLA_OK;
    calla_status st = ops->buffer_create(ex->dev, GPU_MEM_DEVICE, bytes, name, &fresh, err);
    if (st == CALLA_OK) st = ops->zero(ex->dev, (gpu_view){fresh, 0, bytes}, err);
    for (uint32_t h = 0; h < n_heads && old != 0 && st == CALLA_OK; h++)
        st = ops->copy(ex->dev, (gpu_view){fresh, h * to_rows * row_bytes, old},
                       (gpu_view){buf, h * old, old}, err);
    if (st != CALLA_OK && fresh != NULL) ops->buffer_destroy(ex->dev, fresh);
    if (st == CALLA_OK) *out = fresh;
    return st;
}

static void replace(gpu_exec *ex, gpu_buffer **buf, gpu_buffer *fresh)
{
    if (fresh == NULL) return;
    if (*buf != NULL) ex->dev->ops->buffer_destroy(ex->dev, *buf);
    *buf = fresh;
}

static calla_status grow(gpu_exec *ex, gpu_buffer **buf, uint64_t slot_bytes, uint32_t n_slots,
                         const char *name, calla_error *err)
{
    gpu_buffer *fresh;
    const calla_status st = enlarge(ex, *buf, 1, slot_bytes, n_slots, name, &fresh, err);
    if (st == CALLA_OK) replace(ex, buf, fresh);
    return st;
}

/* Keys and values of a layer have the same number of rows: both grow, or none. */
static calla_status grow_layer(gpu_exec *ex, uint32_t i, uint32_t n_rows, calla_error *err)
{
    const uint32_t heads = ex->shape->n_kv_heads;
    gpu_buffer *k, *v = NULL;
    calla_status st = enlarge(ex, ex->k[i], heads, ROW_BYTES, n_rows, "keys", &k, err);
    if (st != CALLA_OK) return st;
    st = enlarge(ex, ex->v[i], heads, ROW_BYTES, n_rows, "values", &v, err);
    if (st != CALLA_OK) {
        if (k != NULL) ex->dev->ops->buffer_destroy(ex->dev, k);
        return st;
    }
    replace(ex, &ex->k[i], k);
    replace(ex, &ex->v[i], v);
    return CALLA_OK;
}

static calla_status grow_rows(gpu_exec *ex, uint32_t n_rows, calla_error *err)
{
    calla_status st = CALLA_OK;
    gpu_programs_forget(ex);
    for (uint32_t i = 0; i < ex->n_full && st == CALLA_OK; i++)
        st = grow_layer(ex, i, n_rows, err);
    if (st == CALLA_OK) ex->n_rows = n_rows;
    return st;
}

static calla_status grow_slots(gpu_exec *ex, uint32_t n_slots, calla_error *err)
{
    calla_status st = CALLA_OK;
    gpu_programs_forget(ex);
    uint8_t *used = mem_resize(ex->slot_used, n_slots);
    if (used == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a sequence");
    ex->slot_used = used;
    for (uint32_t i = 0; i < ex->n_gdn && st == CALLA_OK; i++) {
        st = grow(ex, &ex->state[i], state_slot_bytes(ex->shape), n_slots, "recurrent state", err);
        if (st == CALLA_OK)
            st = grow(ex, &ex->ring[i], ring_slot_bytes(ex->shape), n_slots, "convolution", err);
    }
    if (st != CALLA_OK) return st;
    memset(ex->slot_used + ex->n_slots, 0, n_slots - ex->n_slots);
    ex->n_slots = n_slots;
    return CALLA_OK;
}

/* First gap of n rows between the sequences, which are sorted by row and lie behind the parking
 * rows; *at: place in the list. */
static uint32_t find_rows(const gpu_exec *ex, uint32_t n, uint32_t *at)
{
    uint32_t end = GPU_PARK_ROWS;
    for (*at = 0; *at < ex->n_seqs; (*at)++) {
        const exec_seq *s = ex->seqs[*at];
        if (s->kv_row - end >= n) break;
        end = s->kv_row + s->n_ctx;
    }
    return end;
}

static uint32_t find_slot(const gpu_exec *ex)
{
    uint32_t i = 0;
    while (i < ex->n_slots && ex->slot_used[i] != 0)
        i++;
    return i;
}

/* Of one layer, when its larger arena stands beside the smaller one. */
static uint64_t moved_bytes(const gpu_exec *ex, uint32_t n_rows, uint32_t n_slots)
{
    uint64_t kv = 0, state = 0;
    if (n_rows > ex->n_rows && ex->n_full != 0)
        kv = gpu_arena_bytes(ex->shape, ex->n_rows, 0) / ex->n_full;
    if (n_slots > ex->n_slots && ex->n_gdn != 0)
        state = gpu_arena_bytes(ex->shape, 0, ex->n_slots) / ex->n_gdn;
    return kv > state ? kv : state;
}

/* Refuses what would not fit, with the sum, before anything is allocated. */
static calla_status check_memory(gpu_exec *ex, uint32_t n_rows, uint32_t n_slots, uint32_t n_ctx,
                                 calla_error *err)
{
    gpu_limits lim;
    ex->dev->ops->limits(ex->dev, &lim);
    if (lim.total_bytes == 0) return CALLA_OK;
    const uint64_t have = gpu_arena_bytes(ex->shape, ex->n_rows, ex->n_slots);
    const uint64_t want = gpu_arena_bytes(ex->shape, n_rows, n_slots);
    const uint64_t layer = moved_bytes(ex, n_rows, n_slots);
    if (want + layer <= have + lim.free_bytes) return CALLA_OK;
    const double gib = 1024.0 * 1024.0 * 1024.0;
    return err_set(err, CALLA_ERR_MEMORY,
                   "not enough GPU memory for a sequence of %u tokens: all sequences would take "
                   "%.2f GiB, and %.2f GiB while they are moved; %.2f GiB in use by them and %.2f "
                   "GiB free on %s",
                   n_ctx, (double)want / gib, (double)(want + layer) / gib, (double)have / gib,
                   (double)lim.free_bytes / gib, lim.name);
}

calla_status gpu_seq_create(executor *base, uint32_t n_ctx, exec_seq **out, calla_error *err)
{
    gpu_exec *ex = gpu_self(base);
    uint32_t at;
    *out = NULL;
    if (ex->n_seqs == ex->cap_seqs) {
        const uint32_t cap = ex->cap_seqs == 0 ? 16 : 2 * ex->cap_seqs;
        exec_seq **list = mem_resize(ex->seqs, cap * sizeof *list);
        if (list == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a sequence");
        ex->seqs = list;
        ex->cap_seqs = cap;
    }
    exec_seq *seq = mem_alloc(sizeof *seq);
    if (seq == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a sequence");
    seq->n_ctx = n_ctx;
    seq->kv_row = find_rows(ex, n_ctx, &at);
    seq->slot = find_slot(ex);
    const uint32_t end = seq->kv_row + n_ctx;
    const uint32_t rows = end > ex->n_rows ? end : ex->n_rows;
    const uint32_t slots = seq->slot == ex->n_slots ? ex->n_slots + 1 : ex->n_slots;
    calla_status st = check_memory(ex, rows, slots, n_ctx, err);
    if (st == CALLA_OK && rows > ex->n_rows) st = grow_rows(ex, rows, err);
    if (st == CALLA_OK && slots > ex->n_slots) st = grow_slots(ex, slots, err);
    if (st != CALLA_OK) {
        mem_free(seq);
        return st;
    }
    memmove(&ex->seqs[at + 1], &ex->seqs[at], (ex->n_seqs - at) * sizeof(exec_seq *));
    ex->seqs[at] = seq;
    ex->n_seqs++;
    ex->slot_used[seq->slot] = 1;
    *out = seq;
    return CALLA_OK;
}

void gpu_seq_destroy(executor *base, exec_seq *seq)
{
    gpu_exec *ex = gpu_self(base);
    if (seq == NULL) return;
    uint32_t at = 0;
    while (ex->seqs[at] != seq)
        at++;
    ex->n_seqs--;
    memmove(&ex->seqs[at], &ex->seqs[at + 1], (ex->n_seqs - at) * sizeof(exec_seq *));
    ex->slot_used[seq->slot] = 0;
    mem_free(seq);
}

/* ---- images ---- */

static uint64_t conv_image_bytes(const model_shape *s)
{
    return (uint64_t)CONV_ROWS * shape_conv_channels(s) * 4;
}

uint64_t gpu_image_bytes(const executor *base, uint32_t n_tokens)
{
    const gpu_exec *ex = gpu_self_c(base);
    const model_shape *s = ex->shape;
    return (uint64_t)ex->n_full * 2 * n_tokens * s->n_kv_heads * ROW_BYTES +
           ex->n_gdn * (state_slot_bytes(s) + conv_image_bytes(s));
}

static gpu_view kv_view(const gpu_exec *ex, gpu_buffer *buf, const exec_seq *seq, uint32_t head,
                        uint32_t n_tokens)
{
    const uint64_t rows = ex->dev->ops->buffer_bytes(buf) / ex->shape->n_kv_heads / ROW_BYTES;
    return (gpu_view){buf, (head * rows + seq->kv_row) * ROW_BYTES, (uint64_t)n_tokens * ROW_BYTES};
}

static gpu_view slot_view(gpu_buffer *buf, const exec_seq *seq, uint64_t slot_bytes)
{
    return (gpu_view){buf, seq->slot * slot_bytes, slot_bytes};
}

static calla_status move(gpu_exec *ex, bool save, uint8_t *host, gpu_view v, calla_error *err)
{
    if (v.bytes == 0) return CALLA_OK;
    return save ? ex->dev->ops->read(ex->dev, host, v, err)
                : ex->dev->ops->write(ex->dev, v, host, err);
}

static calla_status kv_image(gpu_exec *ex, const exec_seq *seq, uint8_t *image, uint32_t n_tokens,
                             bool save, calla_error *err)
{
    calla_status st = CALLA_OK;
    for (int half = 0; half < 2; half++)
        for (uint32_t l = 0; l < ex->n_full; l++)
            for (uint32_t h = 0; h < ex->shape->n_kv_heads && st == CALLA_OK; h++) {
                const gpu_view v = kv_view(ex, half == 0 ? ex->k[l] : ex->v[l], seq, h, n_tokens);
                st = move(ex, save, image, v, err);
                image += v.bytes;
            }
    return st;
}

static calla_status state_image(gpu_exec *ex, const exec_seq *seq, uint8_t *image, bool save,
                                calla_error *err)
{
    const uint64_t bytes = state_slot_bytes(ex->shape);
    calla_status st = CALLA_OK;
    for (uint32_t l = 0; l < ex->n_gdn && st == CALLA_OK; l++)
        for (uint32_t h = 0; h < ex->shape->gdn_v_heads && st == CALLA_OK; h++) {
            gpu_view v = slot_view(ex->state[l], seq, bytes);
            v = gpu_sub(v, h * HEAD_FLOATS * 4ull, HEAD_FLOATS * 4);
            float *image_head = ex->host + HEAD_FLOATS;
            if (save) {
                st = ex->dev->ops->read(ex->dev, ex->host, v, err);
                gdn_state_to_image(ex->host, image_head);
                memcpy(image, image_head, v.bytes);
            } else {
                memcpy(image_head, image, v.bytes);
                gdn_state_from_image(image_head, ex->host);
                st = ex->dev->ops->write(ex->dev, v, ex->host, err);
            }
            image += v.bytes;
        }
    return st;
}

/* The last three inputs of the convolution, oldest first; position p lies in ring row p & 3. */
static calla_status conv_image(gpu_exec *ex, const exec_seq *seq, uint8_t *image, uint32_t n_tokens,
                               bool save, calla_error *err)
{
    const uint64_t row = conv_image_bytes(ex->shape) / CONV_ROWS;
    calla_status st = CALLA_OK;
    for (uint32_t l = 0; l < ex->n_gdn; l++)
        for (uint32_t j = 0; j < CONV_ROWS && st == CALLA_OK; j++, image += row) {
            const uint32_t back = CONV_ROWS - j;
            if (n_tokens < back) {
                if (save) memset(image, 0, row);
                continue;
            }
            gpu_view v = slot_view(ex->ring[l], seq, ring_slot_bytes(ex->shape));
            st = move(ex, save, image, gpu_sub(v, ((n_tokens - back) & 3u) * row, row), err);
        }
    return st;
}

static calla_status image_copy(gpu_exec *ex, const exec_seq *seq, uint8_t *image, uint32_t n_tokens,
                               bool save, calla_error *err)
{
    const model_shape *s = ex->shape;
    calla_status st = kv_image(ex, seq, image, n_tokens, save, err);
    image += (uint64_t)ex->n_full * 2 * n_tokens * s->n_kv_heads * ROW_BYTES;
    /* at position 0 the kernels start from zero, whatever the slot holds */
    if (n_tokens == 0) {
        if (save) memset(image, 0, ex->n_gdn * (state_slot_bytes(s) + conv_image_bytes(s)));
        return st;
    }
    if (st == CALLA_OK) st = state_image(ex, seq, image, save, err);
    image += ex->n_gdn * state_slot_bytes(s);
    if (st == CALLA_OK) st = conv_image(ex, seq, image, n_tokens, save, err);
    return st;
}

calla_status gpu_seq_save(executor *base, const exec_seq *seq, uint8_t *image, calla_error *err)
{
    return image_copy(gpu_self(base), seq, image, seq->n_tokens, true, err);
}

calla_status gpu_seq_load(executor *base, exec_seq *seq, const uint8_t *image, uint32_t n_tokens,
                          calla_error *err)
{
    if (n_tokens > seq->n_ctx)
        return err_set(err, CALLA_ERR_FULL,
                       "a snapshot of %u tokens does not fit into a context of %u", n_tokens,
                       seq->n_ctx);
    const calla_status st =
        image_copy(gpu_self(base), seq, (uint8_t *)(uintptr_t)image, n_tokens, false, err);
    seq->n_tokens = st == CALLA_OK ? n_tokens : 0;
    return st;
}

/* ---- the prefix cache's copies: slots as they are ---- */

uint64_t gpu_state_bytes(const executor *base)
{
    const gpu_exec *ex = gpu_self_c(base);
    return ex->n_gdn * (state_slot_bytes(ex->shape) + ring_slot_bytes(ex->shape));
}

static calla_status state_copy(gpu_exec *ex, const exec_seq *seq, uint8_t *state, bool save,
                               calla_error *err)
{
    calla_status st = CALLA_OK;
    for (uint32_t l = 0; l < ex->n_gdn && st == CALLA_OK; l++) {
        const gpu_view s = slot_view(ex->state[l], seq, state_slot_bytes(ex->shape));
        const gpu_view r = slot_view(ex->ring[l], seq, ring_slot_bytes(ex->shape));
        st = move(ex, save, state, s, err);
        if (st == CALLA_OK) st = move(ex, save, state + s.bytes, r, err);
        state += s.bytes + r.bytes;
    }
    return st;
}

calla_status gpu_state_save(executor *base, const exec_seq *seq, uint8_t *state, calla_error *err)
{
    return state_copy(gpu_self(base), seq, state, true, err);
}

calla_status gpu_seq_restore(executor *base, exec_seq *dst, const exec_seq *src, uint32_t n_tokens,
                             const uint8_t *state, calla_error *err)
{
    gpu_exec *ex = gpu_self(base);
    calla_status st = CALLA_OK;
    for (uint32_t l = 0; dst != src && n_tokens != 0 && l < ex->n_full; l++)
        for (uint32_t h = 0; h < ex->shape->n_kv_heads && st == CALLA_OK; h++) {
            st = ex->dev->ops->copy(ex->dev, kv_view(ex, ex->k[l], dst, h, n_tokens),
                                    kv_view(ex, ex->k[l], src, h, n_tokens), err);
            if (st == CALLA_OK)
                st = ex->dev->ops->copy(ex->dev, kv_view(ex, ex->v[l], dst, h, n_tokens),
                                        kv_view(ex, ex->v[l], src, h, n_tokens), err);
        }
    if (st == CALLA_OK) st = state_copy(ex, dst, (uint8_t *)(uintptr_t)state, false, err);
    dst->n_tokens = st == CALLA_OK ? n_tokens : 0;
    return st;
}
