/* Full attention block (docs/MODEL.md 6.4, 6.5).
 *
 * Order of sums, the same for prefill and decode: positions are taken in blocks of ATTN_BLOCK,
 * blocks in spans of ATTN_SPAN; each span starts from an empty state; spans are merged in ascending
 * order. A task is a tile of query rows of one KV head, or, when there are few tiles and a long
 * context, one span of one tile. */
#include <math.h>
#include <string.h>

#include "base/ck.h"
#include "exec/cpu/cpu.h"

#define D                MODEL_HEAD_DIM
#define TILES_PER_THREAD 4u /* fewer are divided, so that threads end together */

typedef struct attn_ctx {
    cpu_exec *ex;
    const layer_weights *lw;
    uint32_t i_full;
    uint32_t group;       /* query heads of a KV head */
    uint32_t tile_tokens; /* tokens of a tile */
    uint32_t n_spans;     /* divided mode: spans of the longest sequence; else 0 */
} attn_ctx;

/* Query rows of one tile, with room for a span's state and the merged state. */
typedef struct tile {
    const float *q[ATTN_TILE_ROWS];
    float *out[ATTN_TILE_ROWS];
    uint32_t pos[ATTN_TILE_ROWS], n_visible[ATTN_TILE_ROWS];
    attn_state st[ATTN_TILE_ROWS];
    uint32_t n_rows, end; /* end: positions visible to the last token */
    const uint8_t *k, *v; /* this KV head's cache */
    size_t row_bytes;
} tile;

size_t attention_scratch_floats(const model_shape *s)
{
    (void)s;
    return ATTN_SCRATCH_FLOATS(ATTN_TILE_ROWS) + 2u * ATTN_TILE_ROWS * D;
}

uint32_t attention_part_rows(const model_shape *s)
{
    return s->n_heads * ((s->max_context + ATTN_SPAN - 1) / ATTN_SPAN);
}

static void rope(float *x, const float *cos_t, const float *sin_t)
{
    for (uint32_t i = 0; i < MODEL_ROTARY_DIM / 2; i++) {
        const float x0 = x[i], x1 = x[i + MODEL_ROTARY_DIM / 2];
        x[i] = x0 * cos_t[i] - x1 * sin_t[i];
        x[i + MODEL_ROTARY_DIM / 2] = x1 * cos_t[i] + x0 * sin_t[i];
    }
}

static uint8_t *cache_head(const cpu_exec *ex, uint8_t *base, const exec_seq *seq, uint32_t i_full,
                           uint32_t kv_head)
{
    const size_t head = (size_t)i_full * ex->shape->n_kv_heads + kv_head;
    return base + head * seq->n_rows * D * seq->elem_bytes;
}

static void store(calla_kv_type type, uint8_t *cache, size_t at, float x)
{
    if (type == CALLA_KV_F32)
        ((float *)(void *)cache)[at] = x;
    else
        ((uint16_t *)(void *)cache)[at] = f32_to_bf16(x);
}

static void cache_store(const cpu_exec *ex, const batch_token *tok, uint32_t i_full,
                        uint32_t kv_head, const float *k, const float *v)
{
    const calla_kv_type type = ex->kv_type;
    uint8_t *keys = cache_head(ex, tok->seq->k, tok->seq, i_full, kv_head);
    uint8_t *values = cache_head(ex, tok->seq->v, tok->seq, i_full, kv_head);
    for (uint32_t i = 0; i < D; i++) {
        store(type, keys, attn_key_at(type, tok->pos, i), k[i]);
        store(type, values, attn_value_at(type, tok->pos, i), v[i]);
    }
}

/* Norm and RoPE of one token's q and k; k and v go to the cache; q is scaled by 1/sqrt(256). */
static void prepare_task(void *p, uint32_t t, uint32_t i_thread)
{
    (void)i_thread;
    const attn_ctx *c = p;
    cpu_exec *ex = c->ex;
    const batch_token *tok = &ex->tokens[t];
    const float *cos_t = ex->rope_cos + (size_t)t * (MODEL_ROTARY_DIM / 2);
    const float *sin_t = ex->rope_sin + (size_t)t * (MODEL_ROTARY_DIM / 2);
    const float eps = ex->shape->rms_eps;
    for (uint32_t h = 0; h < ex->shape->n_heads; h++) {
        float *q = ex->q.p[t] + (size_t)h * 2 * D;
        ex->kern.rmsnorm(q, c->lw->q_norm, D, eps, q);
        rope(q, cos_t, sin_t);
        for (uint32_t i = 0; i < D; i++)
            q[i] *= 1.0f / 16.0f;
    }
    for (uint32_t h = 0; h < ex->shape->n_kv_heads; h++) {
        float *k = ex->k.p[t] + (size_t)h * D;
        ex->kern.rmsnorm(k, c->lw->k_norm, D, eps, k);
        rope(k, cos_t, sin_t);
        cache_store(ex, tok, c->i_full, h, k, ex->v.p[t] + (size_t)h * D);
    }
}

/* Tokens [t0, t0 + n) of one segment for one KV head. */
static void tile_init(const attn_ctx *c, tile *tl, uint32_t t0, uint32_t n, uint32_t kv_head)
{
    const cpu_exec *ex = c->ex;
    exec_seq *seq = ex->tokens[t0].seq;
    tl->n_rows = 0;
    for (uint32_t t = t0; t < t0 + n; t++) {
        for (uint32_t g = 0; g < c->group; g++) {
            const uint32_t head = kv_head * c->group + g;
            tl->q[tl->n_rows] = ex->q.p[t] + (size_t)head * 2 * D;
            tl->out[tl->n_rows] = ex->mix.p[t] + (size_t)head * D;
            tl->pos[tl->n_rows] = ex->tokens[t].pos;
            tl->n_rows++;
        }
    }
    tl->end = ex->tokens[t0 + n - 1].pos + 1;
    tl->row_bytes = D * seq->elem_bytes;
    tl->k = cache_head(ex, seq->k, seq, c->i_full, kv_head);
    tl->v = cache_head(ex, seq->v, seq, c->i_full, kv_head);
}

/* All blocks of span i_span into st, which starts empty with st[i].o zeroed here. */
static void tile_span(const cpu_exec *ex, tile *tl, uint32_t i_span, float *scratch)
{
    for (uint32_t r = 0; r < tl->n_rows; r++) {
        tl->st[r].m = -INFINITY;
        tl->st[r].l = 0.0f;
        memset(tl->st[r].o, 0, D * sizeof(float));
    }
    const uint32_t begin = i_span * ATTN_SPAN;
    const uint32_t end = tl->end - begin < ATTN_SPAN ? tl->end : begin + ATTN_SPAN;
    for (uint32_t j = begin; j < end; j += ATTN_BLOCK) {
        const uint32_t n_kv = end - j < ATTN_BLOCK ? end - j : ATTN_BLOCK;
        for (uint32_t r = 0; r < tl->n_rows; r++) {
            const uint32_t seen = tl->pos[r] + 1;
            tl->n_visible[r] = seen <= j ? 0 : seen - j < n_kv ? seen - j : n_kv;
        }
        ex->kern.attn_block(tl->q, tl->n_visible, tl->n_rows, tl->k + j * tl->row_bytes,
                            tl->v + j * tl->row_bytes, n_kv, ex->kv_type, tl->st, scratch);
    }
}

/* acc += part, where part covers later positions. An empty part changes nothing. */
static void state_merge(attn_state *acc, const attn_state *part)
{
    if (part->l == 0.0f) return;
    const float m = acc->m > part->m ? acc->m : part->m;
    const float fa = expf(acc->m - m), fp = expf(part->m - m);
    float *restrict o = acc->o;
    const float *restrict po = part->o;
    acc->m = m;
    acc->l = acc->l * fa + part->l * fp;
    for (uint32_t i = 0; i < D; i++)
        o[i] = o[i] * fa + po[i] * fp;
}

/* out = o / l, gated; and its Q4 order. */
static void row_finish(const cpu_exec *ex, const attn_state *st, float *out, const float *gate,
                       uint32_t col, float *prepared)
{
    const float inv = 1.0f / st->l;
    for (uint32_t i = 0; i < D; i++)
        out[i] = st->o[i] * inv;
    ex->kern.sigmoid_mul(gate, D, out);
    prep_cols(ex, out, col, D, prepared);
}

static void tile_finish(const attn_ctx *c, const tile *tl, uint32_t r, const attn_state *acc,
                        uint32_t t0)
{
    const uint32_t t = t0 + r / c->group;
    const uint32_t col = (uint32_t)(tl->out[r] - c->ex->mix.p[t]);
    row_finish(c->ex, acc, tl->out[r], tl->q[r] + D, col, c->ex->mixp.p[t]);
}

static uint32_t seg_tiles(const attn_ctx *c, uint32_t i_seg)
{
    return (c->ex->segs[i_seg].n_tokens + c->tile_tokens - 1) / c->tile_tokens;
}

/* The i-th (segment, tile, KV head): first token and count. */
static uint32_t find_tile(const attn_ctx *c, uint32_t i, uint32_t *t0, uint32_t *n)
{
    const uint32_t n_kv = c->ex->shape->n_kv_heads;
    uint32_t i_seg = 0;
    for (;; i_seg++) {
        const uint32_t here = seg_tiles(c, i_seg) * n_kv;
        if (i < here) break;
        i -= here;
    }
    const uint32_t off = i / n_kv * c->tile_tokens;
    const uint32_t all = c->ex->segs[i_seg].n_tokens;
    *t0 = c->ex->seg_first[i_seg] + off;
    *n = all - off < c->tile_tokens ? all - off : c->tile_tokens;
    return i % n_kv;
}

/* Whole tile: every span in turn. */
static void tile_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    const attn_ctx *c = p;
    const cpu_exec *ex = c->ex;
    float *scratch = thread_scratch(ex, i_thread);
    float *span_o = scratch + ATTN_SCRATCH_FLOATS(ATTN_TILE_ROWS);
    float *acc_o = span_o + (size_t)ATTN_TILE_ROWS * D;
    attn_state acc[ATTN_TILE_ROWS];
    tile tl;
    uint32_t t0, n;
    const uint32_t kv_head = find_tile(c, i_task, &t0, &n);
    tile_init(c, &tl, t0, n, kv_head);
    for (uint32_t r = 0; r < tl.n_rows; r++) {
        tl.st[r].o = span_o + (size_t)r * D;
        acc[r].o = acc_o + (size_t)r * D;
    }
    for (uint32_t sp = 0; sp * ATTN_SPAN < tl.end; sp++) {
        tile_span(ex, &tl, sp, scratch);
        for (uint32_t r = 0; r < tl.n_rows; r++) {
            if (sp > 0) {
                state_merge(&acc[r], &tl.st[r]);
                continue;
            }
            acc[r].m = tl.st[r].m;
            acc[r].l = tl.st[r].l;
            memcpy(acc_o + (size_t)r * D, span_o + (size_t)r * D, D * sizeof(float));
        }
    }
    for (uint32_t r = 0; r < tl.n_rows; r++)
        tile_finish(c, &tl, r, &acc[r], t0);
}

/* Span sp of row r of tile i in the buffer of partial results (divided mode: tile = 1 token). */
static size_t part_row(const attn_ctx *c, uint32_t i_tile, uint32_t r, uint32_t sp)
{
    return ((size_t)i_tile * c->group + r) * c->n_spans + sp;
}

static void part_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    const attn_ctx *c = p;
    const cpu_exec *ex = c->ex;
    const uint32_t i_tile = i_task / c->n_spans, sp = i_task % c->n_spans;
    tile tl;
    uint32_t t0, n;
    const uint32_t kv_head = find_tile(c, i_tile, &t0, &n);
    tile_init(c, &tl, t0, n, kv_head);
    if (sp * ATTN_SPAN >= tl.end) return;
    for (uint32_t r = 0; r < tl.n_rows; r++)
        tl.st[r].o = ex->attn_part + part_row(c, i_tile, r, sp) * D;
    tile_span(ex, &tl, sp, thread_scratch(ex, i_thread));
    for (uint32_t r = 0; r < tl.n_rows; r++)
        ex->attn_part_st[part_row(c, i_tile, r, sp)] = tl.st[r];
}

/* One query row of a tile. */
static void merge_task(void *p, uint32_t i_task, uint32_t i_thread)
{
    (void)i_thread;
    const attn_ctx *c = p;
    const uint32_t i_tile = i_task / c->group, r = i_task % c->group;
    tile tl;
    uint32_t t0, n;
    const uint32_t kv_head = find_tile(c, i_tile, &t0, &n);
    tile_init(c, &tl, t0, n, kv_head);
    attn_state *part = c->ex->attn_part_st + part_row(c, i_tile, r, 0);
    for (uint32_t sp = 1; sp * ATTN_SPAN < tl.end; sp++)
        state_merge(&part[0], &part[sp]);
    tile_finish(c, &tl, r, &part[0], t0);
}

/* Chooses between whole tiles and divided spans; both give the same bits. */
static void attend(attn_ctx *c)
{
    cpu_exec *ex = c->ex;
    uint32_t n_tiles = 0;
    uint32_t max_end = 0;
    c->tile_tokens = ATTN_TILE_ROWS / c->group;
    for (uint32_t i = 0; i < ex->n_segs; i++)
        n_tiles += seg_tiles(c, i) * ex->shape->n_kv_heads;
    cpu_step step = {.label = "attention"};
    for (uint32_t t = 0; t < ex->n_tokens; t++) {
        const uint32_t end = ex->tokens[t].pos + 1;
        if (end > max_end) max_end = end;
        step.flops += 4.0 * end * shape_q_width(ex->shape);
    }
    for (uint32_t i = 0; i < ex->n_segs; i++)
        step.bytes += 2.0 * shape_kv_width(ex->shape) * (double)ex->segs[i].seq->elem_bytes *
                      (ex->segs[i].seq->n_tokens + ex->segs[i].n_tokens);
    const uint32_t n_spans = (max_end + ATTN_SPAN - 1) / ATTN_SPAN;
    const uint64_t n_one = (uint64_t)ex->n_tokens * ex->shape->n_kv_heads; /* 1-token tiles */
    const bool divide = n_spans > 1 && n_one == n_tiles &&
                        n_one < (uint64_t)ex->n_threads * TILES_PER_THREAD &&
                        n_one * n_spans * c->group <= ex->part_rows;
    if (!divide) {
        cpu_run(ex, step, tile_task, c, n_tiles);
        return;
    }
    c->n_spans = n_spans;
    cpu_run(ex, step, part_task, c, n_tiles * n_spans);
    cpu_run(ex, (cpu_step){.label = "attention merge"}, merge_task, c, n_tiles * c->group);
}

void attention_block(cpu_exec *ex, uint32_t i_layer, uint32_t i_full)
{
    const layer_weights *lw = &ex->weights->layers[i_layer];
    const uint32_t n = ex->n_tokens;
    const linear_job in[] = {
        {&lw->q, rows_c(&ex->xn), rows_c(&ex->xp), ex->q.p, n},
        {&lw->k, rows_c(&ex->xn), rows_c(&ex->xp), ex->k.p, n},
        {&lw->v, rows_c(&ex->xn), rows_c(&ex->xp), ex->v.p, n},
    };
    linear_run(ex, "attention in", in, 3);
    attn_ctx c = {
        .ex = ex, .lw = lw, .i_full = i_full, .group = ex->shape->n_heads / ex->shape->n_kv_heads};
    cpu_run(ex, (cpu_step){.label = "attention q k v"}, prepare_task, &c, n);
    attend(&c);
    const linear_job out = {&lw->o, rows_c(&ex->mix), rows_c(&ex->mixp), ex->xn.p, n};
    linear_run(ex, "attention out", &out, 1);
}
