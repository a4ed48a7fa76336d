/* The forward pass as dispatches (docs/MODEL.md section 2): decode steps and prefill chunks. */
#include <string.h>

#include "base/mem.h"
#include "exec/gpu/gpu.h"
#include "exec/segment.h"

uint32_t gpu_len_bucket(uint32_t len)
{
    uint32_t step = 256;
    while (step * 8 < len)
        step *= 2;
    return (len + step - 1) / step * step;
}

static gpu_view f32_rows(gpu_view v, uint32_t n, uint32_t cols)
{
    return gpu_sub(v, 0, (uint64_t)n * cols * 4);
}

/* The layer's state beside its weights. */
static gpu_gdn gdn_of(const gpu_exec *ex, const gpu_layer *l, uint32_t i_gdn)
{
    const gpu_ops *ops = ex->dev->ops;
    gpu_gdn g = l->gdn;
    g.state = (gpu_view){ex->state[i_gdn], 0, ops->buffer_bytes(ex->state[i_gdn])};
    g.ring = (gpu_view){ex->ring[i_gdn], 0, ops->buffer_bytes(ex->ring[i_gdn])};
    return g;
}

static gpu_attn attn_of(const gpu_exec *ex, const gpu_layer *l, uint32_t i_full)
{
    const gpu_ops *ops = ex->dev->ops;
    gpu_attn a = l->attn;
    a.k = (gpu_view){ex->k[i_full], 0, ops->buffer_bytes(ex->k[i_full])};
    a.v = (gpu_view){ex->v[i_full], 0, ops->buffer_bytes(ex->v[i_full])};
    a.n_rows = (uint32_t)(a.k.bytes / (2u * shape_kv_width(ex->shape)));
    return a;
}

static void decode_mix(gpu_exec *ex, uint32_t i, uint32_t n, uint32_t max_len, gpu_view tok)
{
    const model_shape *s = ex->shape;
    const gpu_layer *l = &ex->w.layers[i];
    const gpu_scratch *t = &ex->s;
    gpu_context *g = &ex->ctx;
    const bool full = shape_is_full(s, i);
    const gpu_view x = f32_rows(t->x, n, s->hidden);
    const gpu_view y = f32_rows(t->y, n, l->in.rows);
    const gpu_view o = f32_rows(t->o, n, l->out.cols);
    const gpu_view none = {NULL, 0, 0};
    rec_label(ex->rec, full ? "A1 in" : "G1 in");
    op_gemv(g, n, x, n, l->input_norm, none, &l->in, t->op, y);
    if (full) {
        const gpu_attn a = attn_of(ex, l, i / s->full_interval);
        rec_label(ex->rec, "A2 attention");
        op_attn_step(g, n, max_len, tok, &a, y, f32_rows(t->rope, n, MODEL_ROTARY_DIM), t->op, o);
    } else {
        const gpu_gdn d = gdn_of(ex, l, i - i / s->full_interval);
        rec_label(ex->rec, "G2 delta");
        op_gdn_step(g, n, tok, &d, y, t->gdn, o);
    }
    rec_label(ex->rec, full ? "A4 out" : "G3 out");
    op_gemv_add(g, n, o, &l->out, t->op, x);
}

static void decode_experts(gpu_exec *ex, uint32_t i, uint32_t n)
{
    const model_shape *s = ex->shape;
    const gpu_layer *l = &ex->w.layers[i];
    const gpu_scratch *t = &ex->s;
    const gpu_view x = f32_rows(t->x, n, s->hidden);
    const gpu_view ids = f32_rows(t->ids, n, s->n_experts_used);
    const gpu_view weights = f32_rows(t->weights, n, s->n_experts_used + 1);
    rec_label(ex->rec, "M1 router");
    op_router(&ex->ctx, n, x, l->post_norm, &l->router, t->router, ids, weights);
    rec_label(ex->rec, "M2 experts");
    op_moe(&ex->ctx, n, x, l->post_norm, ids, weights, &l->bank, t->op);
}

/* n_x: tokens of the batch, of which rows_of names n. */
static void logits_of_rows(gpu_exec *ex, uint32_t n, uint32_t n_x, gpu_view rows_of)
{
    const gpu_view logits = f32_rows(ex->s.logits, n, ex->shape->n_vocab);
    rec_label(ex->rec, "lm_head");
    op_gemv(&ex->ctx, n, f32_rows(ex->s.x, n_x, ex->shape->hidden), n_x, ex->w.final_norm, rows_of,
            &ex->w.lm_head, ex->s.op, logits);
}

static void embed(gpu_exec *ex, uint32_t n, gpu_view tok)
{
    rec_label(ex->rec, "embed");
    op_embed(&ex->ctx, n, tok, &ex->w.embed, ex->w.inv_freq,
             f32_rows(ex->s.x, n, ex->shape->hidden), f32_rows(ex->s.rope, n, MODEL_ROTARY_DIM));
}

static void decode_layers(gpu_exec *ex, uint32_t n, uint32_t max_len, gpu_view tok)
{
    rec_reset(ex->rec);
    embed(ex, n, tok);
    for (uint32_t i = 0; i < ex->shape->n_layers; i++) {
        decode_mix(ex, i, n, max_len, tok);
        decode_experts(ex, i, n);
    }
}

void gpu_record_decode(gpu_exec *ex, uint32_t n, uint32_t max_len, uint32_t n_logits)
{
    decode_layers(ex, n, max_len, ex->s.tok);
    if (n_logits != 0) logits_of_rows(ex, n_logits, n, gpu_sub(ex->s.rows_of, 0, 4ull * n_logits));
}

void gpu_record_stream(gpu_exec *ex, uint32_t n, uint32_t max_len, uint32_t which)
{
    const gpu_stream *t = &ex->stream;
    const gpu_view none = {NULL, 0, 0};
    const gpu_view logits = f32_rows(t->logits[which], n, ex->shape->n_vocab);
    const gpu_ops *ops = ex->dev->ops;
    const gpu_sampling sampling = {
        .banned = t->banned,
        .entries = t->samp,
        .counts = {t->counts, 0, ops->buffer_bytes(t->counts)},
        .ring = {t->ring, 0, ops->buffer_bytes(t->ring)},
        .tok = t->tok,
        .n_slots = (uint32_t)(ops->buffer_bytes(t->counts) / (4ull * ex->shape->n_vocab)),
        .ring_len = GPU_RING};
    decode_layers(ex, n, max_len, t->tok);
    rec_label(ex->rec, "lm_head");
    op_gemv(&ex->ctx, n, f32_rows(ex->s.x, n, ex->shape->hidden), n, ex->w.final_norm, none,
            &ex->w.lm_head, ex->s.op, logits);
    rec_label(ex->rec, "draw");
    op_sample(&ex->ctx, n, logits, &sampling, ex->s.op);
}

/* A layer up to its routing. */
static void prefill_mix(gpu_exec *ex, uint32_t i, uint32_t n, uint32_t n_segs, uint32_t max_len)
{
    const model_shape *s = ex->shape;
    const gpu_layer *l = &ex->w.layers[i];
    const gpu_scratch *t = &ex->s;
    gpu_context *g = &ex->ctx;
    const bool full = shape_is_full(s, i);
    const gpu_view x = f32_rows(t->x, n, s->hidden);
    const gpu_view xn = gpu_sub(t->xn, 0, 2ull * n * s->hidden);
    const gpu_view y = f32_rows(t->y, n, l->in.rows);
    const gpu_view o = gpu_sub(t->o, 0, 2ull * n * l->out.cols);
    const gpu_view router = f32_rows(t->route_logits, n, s->n_experts + 1);
    rec_label(ex->rec, full ? "attention in" : "delta in");
    op_norm_bf16(g, n, x, l->input_norm, xn);
    op_gemm(g, n, xn, &l->in, false, y);
    if (full) {
        const gpu_attn a = attn_of(ex, l, i / s->full_interval);
        rec_label(ex->rec, "attention");
        op_attn_scan(g, n, n_segs, max_len, t->tok, t->seg, &a, y,
                     f32_rows(t->rope, n, MODEL_ROTARY_DIM), t->op, o);
    } else {
        const gpu_gdn d = gdn_of(ex, l, i - i / s->full_interval);
        rec_label(ex->rec, "delta scan");
        op_gdn_scan(g, n, n_segs, t->tok, t->seg, &d, y, t->op, o);
    }
    rec_label(ex->rec, full ? "attention out" : "delta out");
    op_gemm(g, n, o, &l->out, true, x);
    rec_label(ex->rec, "router");
    op_norm_bf16(g, n, x, l->post_norm, xn);
    op_router_gemm(g, n, x, l->post_norm, &l->router, router);
    op_top8(g, n, router, f32_rows(t->ids, n, s->n_experts_used),
            f32_rows(t->weights, n, s->n_experts_used + 1));
}

/* plan: routing lists on the GPU too; otherwise they are in place. */
static void prefill_experts(gpu_exec *ex, uint32_t i, uint32_t n, bool plan)
{
    const model_shape *s = ex->shape;
    const gpu_scratch *t = &ex->s;
    rec_label(ex->rec, "experts");
    if (plan) op_moe_plan(&ex->ctx, n, f32_rows(t->ids, n, s->n_experts_used), t->op);
    op_moe_experts(&ex->ctx, n, gpu_sub(t->xn, 0, 2ull * n * s->hidden),
                   f32_rows(t->weights, n, s->n_experts_used + 1), &ex->w.layers[i].bank, t->op,
                   f32_rows(t->x, n, s->hidden));
}

void gpu_record_prefill(gpu_exec *ex, uint32_t n, uint32_t n_segs, uint32_t max_len,
                        uint32_t first_layer, uint32_t end_layer)
{
    rec_reset(ex->rec);
    if (first_layer == 0) embed(ex, n, ex->s.tok);
    for (uint32_t i = first_layer; i < end_layer; i++) {
        prefill_mix(ex, i, n, n_segs, max_len);
        prefill_experts(ex, i, n, true);
    }
}

/* ---- running ---- */

calla_status gpu_submit_recorded(gpu_exec *ex, bool once, gpu_program **out, uint64_t *ticket,
                                 calla_error *err)
{
    gpu_recording r;
    *out = NULL;
    calla_status st = rec_finish(ex->rec, ex->ctx.off[GPU_SW_concurrent], &r, err);
    if (st != CALLA_OK) return st;
    r.early_start = !ex->ctx.off[GPU_SW_pdl];
    st = ex->dev->ops->program_create(ex->dev, &r, once, out, err);
    if (st == CALLA_OK) st = ex->dev->ops->submit(ex->dev, *out, ticket, err);
    return st;
}

/* Records, runs and waits for what `ex->rec` holds. */
static calla_status run_once(gpu_exec *ex, calla_error *err)
{
    gpu_program *p;
    uint64_t ticket = 0;
    calla_status st = gpu_submit_recorded(ex, true, &p, &ticket, err);
    if (st == CALLA_OK) st = ex->dev->ops->wait(ex->dev, ticket, NULL, err);
    if (p != NULL) ex->dev->ops->program_destroy(ex->dev, p);
    return st;
}

/* Runs what is recorded and shows the residual stream. */
static calla_status run_shown(gpu_exec *ex, uint32_t i_layer, exec_point point, uint32_t n,
                              float *host, calla_error *err)
{
    calla_status st = run_once(ex, err);
    if (st == CALLA_OK)
        st = ex->dev->ops->read(ex->dev, host, f32_rows(ex->s.x, n, ex->shape->hidden), err);
    if (st == CALLA_OK) ex->tap(ex->tap_user, i_layer, point, host, ex->shape->hidden, n);
    rec_reset(ex->rec);
    return st;
}

/* All layers, point by point: of a decode step when n_segs is 0, else of a prefill chunk. */
static calla_status layers_shown(gpu_exec *ex, uint32_t n, uint32_t n_segs, uint32_t max_len,
                                 calla_error *err)
{
    float *host = mem_array((size_t)n * ex->shape->hidden, sizeof *host);
    if (host == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to show a layer's output");
    rec_reset(ex->rec);
    embed(ex, n, ex->s.tok);
    calla_status st = run_shown(ex, 0, EXEC_POINT_EMBED, n, host, err);
    for (uint32_t i = 0; i < ex->shape->n_layers && st == CALLA_OK; i++) {
        if (n_segs == 0)
            decode_mix(ex, i, n, max_len, ex->s.tok);
        else
            prefill_mix(ex, i, n, n_segs, max_len);
        st = run_shown(ex, i, EXEC_POINT_MIX, n, host, err);
        if (st != CALLA_OK) break;
        if (n_segs == 0)
            decode_experts(ex, i, n);
        else
            prefill_experts(ex, i, n, true);
        st = run_shown(ex, i, EXEC_POINT_EXPERTS, n, host, err);
    }
    mem_free(host);
    return st;
}

cached_program *gpu_find_program(gpu_exec *ex, program_key key)
{
    cached_program *oldest = &ex->programs[0];
    for (uint32_t i = 0; i < GPU_PROGRAMS_MAX; i++) {
        cached_program *c = &ex->programs[i];
        if (c->program != NULL && memcmp(&c->key, &key, sizeof key) == 0) {
            c->last_use = ++ex->use_count;
            return c;
        }
        if (c->program == NULL ? oldest->program != NULL
                               : oldest->program != NULL && c->last_use < oldest->last_use)
            oldest = c;
    }
    if (oldest->program != NULL) ex->dev->ops->program_destroy(ex->dev, oldest->program);
    oldest->program = NULL;
    oldest->key = key;
    oldest->last_use = ++ex->use_count;
    return oldest;
}

static void put_token(gpu_exec *ex, uint32_t t, const exec_seq *seq, int32_t token, uint32_t pos)
{
    ex->tok_host[t] = (tok_entry){(uint32_t)token, pos, seq->slot, seq->kv_row};
}

/* One token for each of n <= 16 sequences. Those that want logits come first in rows_of. */
static calla_status decode_step(gpu_exec *ex, const exec_segment *const *segs, uint32_t n,
                                calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    const uint64_t row = 4ull * ex->shape->n_vocab;
    uint32_t rows_of[GPU_DECODE_MAX], n_logits = 0, max_len = 0;
    for (uint32_t t = 0; t < n; t++) {
        const exec_seq *seq = segs[t]->seq;
        put_token(ex, t, seq, segs[t]->tokens[0], seq->n_tokens);
        if (seq->n_tokens + 1 > max_len) max_len = seq->n_tokens + 1;
        if (segs[t]->want != EXEC_LOGITS_NONE) rows_of[n_logits++] = t;
    }
    const program_key key = {n, gpu_len_bucket(max_len), n_logits, 0};
    calla_status st =
        ops->write(ex->dev, gpu_sub(ex->s.tok, 0, n * sizeof(tok_entry)), ex->tok_host, err);
    if (st == CALLA_OK && n_logits != 0)
        st = ops->write(ex->dev, gpu_sub(ex->s.rows_of, 0, 4ull * n_logits), rows_of, err);
    if (st != CALLA_OK) return st;
    uint64_t ticket = 0;
    cached_program *c = ex->tap == NULL ? gpu_find_program(ex, key) : NULL;
    if (c == NULL) {
        st = layers_shown(ex, n, 0, key.max_len, err);
        if (st == CALLA_OK && n_logits != 0) {
            logits_of_rows(ex, n_logits, n, gpu_sub(ex->s.rows_of, 0, 4ull * n_logits));
            st = run_once(ex, err);
        }
    } else if (c->program == NULL) {
        gpu_record_decode(ex, n, key.max_len, n_logits);
        st = gpu_submit_recorded(ex, false, &c->program, &ticket, err);
    } else {
        st = ops->submit(ex->dev, c->program, &ticket, err);
    }
    if (st == CALLA_OK && c != NULL) st = ops->wait(ex->dev, ticket, NULL, err);
    for (uint32_t i = 0; i < n_logits && st == CALLA_OK; i++)
        st = ops->read(ex->dev, segs[rows_of[i]]->logits, gpu_sub(ex->s.logits, i * row, row), err);
    return st;
}

/* Logits of tokens [first, first + n) of the batch; to[i] is the place of token first + i. */
static calla_status last_logits(gpu_exec *ex, uint32_t n_x, const uint32_t *rows, float *const *to,
                                uint32_t n, calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    const uint64_t row = 4ull * ex->shape->n_vocab;
    const gpu_view view = gpu_sub(ex->s.rows_of, 0, 4ull * n);
    calla_status st = ops->write(ex->dev, view, rows, err);
    if (st != CALLA_OK) return st;
    rec_reset(ex->rec);
    logits_of_rows(ex, n, n_x, view);
    st = run_once(ex, err);
    for (uint32_t i = 0; i < n && st == CALLA_OK; i++)
        st = ops->read(ex->dev, to[i], gpu_sub(ex->s.logits, i * row, row), err);
    return st;
}

/* All logits of a segment whose tokens begin at `first` of the batch. */
static calla_status all_logits(gpu_exec *ex, const exec_segment *seg, uint32_t first,
                               calla_error *err)
{
    const model_shape *s = ex->shape;
    const uint64_t row = 4ull * s->n_vocab;
    calla_status st = CALLA_OK;
    for (uint32_t j = 0; j < seg->n_tokens && st == CALLA_OK; j += GPU_LOGIT_ROWS) {
        const uint32_t left = seg->n_tokens - j;
        const uint32_t n = left < GPU_LOGIT_ROWS ? left : GPU_LOGIT_ROWS;
        const uint64_t h = 4ull * s->hidden;
        const gpu_view xn = gpu_sub(ex->s.xn, 0, 2ull * n * s->hidden);
        const gpu_view logits = gpu_sub(ex->s.logits, 0, n * row);
        rec_reset(ex->rec);
        rec_label(ex->rec, "lm_head");
        op_norm_bf16(&ex->ctx, n, gpu_sub(ex->s.x, (first + j) * h, n * h), ex->w.final_norm, xn);
        op_gemm(&ex->ctx, n, xn, &ex->w.lm_head, false, logits);
        st = run_once(ex, err);
        if (st == CALLA_OK)
            st = ex->dev->ops->read(ex->dev, seg->logits + (size_t)j * s->n_vocab, logits, err);
    }
    return st;
}

static calla_status chunk_logits(gpu_exec *ex, uint32_t n_x, const exec_segment *const *segs,
                                 uint32_t n_segs, calla_error *err)
{
    uint32_t rows[GPU_DECODE_MAX], n = 0;
    float *to[GPU_DECODE_MAX];
    calla_status st = CALLA_OK;
    for (uint32_t i = 0; i < n_segs && st == CALLA_OK; i++) {
        const uint32_t first = ex->seg_host[i].first;
        if (segs[i]->want == EXEC_LOGITS_LAST) {
            rows[n] = first + segs[i]->n_tokens - 1;
            to[n++] = segs[i]->logits;
        } else if (segs[i]->want == EXEC_LOGITS_ALL) {
            st = all_logits(ex, segs[i], first, err);
        }
        if (st == CALLA_OK && (n == GPU_DECODE_MAX || (i + 1 == n_segs && n != 0))) {
            st = last_logits(ex, n_x, rows, to, n, err);
            n = 0;
        }
    }
    return st;
}

/* Layers of one submission: bounded work, so that a display or a watchdog never waits long. */
static uint32_t layers_at_once(const gpu_exec *ex, uint32_t n, uint32_t max_len)
{
    const double per_token = 1.3e8 + 1.64e4 * (double)max_len; /* operations of an average layer */
    const double layers = 8e12 / (per_token * (double)n);
    return layers < 1.0 ? 1 : layers > ex->shape->n_layers ? ex->shape->n_layers : (uint32_t)layers;
}

/* The ablation of gpu_routing: every layer's ids come to the host, and lists go back. */
static calla_status layer_routed_by_host(gpu_exec *ex, uint32_t i, uint32_t n, uint32_t n_segs,
                                         uint32_t max_len, calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    const gpu_view ids = f32_rows(ex->s.ids, n, ex->shape->n_experts_used);
    const uint64_t bytes = op_moe_plan_bytes(ex->shape, n);
    uint8_t *host = mem_alloc((size_t)(ids.bytes + bytes));
    if (host == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for routing lists");
    rec_reset(ex->rec);
    if (i == 0) embed(ex, n, ex->s.tok);
    prefill_mix(ex, i, n, n_segs, max_len);
    calla_status st = run_once(ex, err);
    if (st == CALLA_OK) st = ops->read(ex->dev, host, ids, err);
    if (st == CALLA_OK) {
        op_moe_plan_host(&ex->ctx, n, (const uint32_t *)(const void *)host, host + ids.bytes);
        st = ops->write(ex->dev, gpu_sub(ex->s.op, 0, bytes), host + ids.bytes, err);
    }
    if (st == CALLA_OK) {
        rec_reset(ex->rec);
        prefill_experts(ex, i, n, false);
        st = run_once(ex, err);
    }
    mem_free(host);
    return st;
}

static calla_status run_layers(gpu_exec *ex, uint32_t n, uint32_t n_segs, uint32_t max_len,
                               calla_error *err)
{
    const uint32_t step = layers_at_once(ex, n, max_len), all = ex->shape->n_layers;
    const uint32_t bound = gpu_len_bucket(max_len);
    calla_status st = CALLA_OK;
    if (ex->tap != NULL) return layers_shown(ex, n, n_segs, bound, err);
    if (ex->ctx.off[GPU_SW_gpu_routing]) {
        for (uint32_t i = 0; i < all && st == CALLA_OK; i++)
            st = layer_routed_by_host(ex, i, n, n_segs, bound, err);
        return st;
    }
    for (uint32_t i = 0; i < all && st == CALLA_OK; i += step) {
        gpu_record_prefill(ex, n, n_segs, bound, i, all - i < step ? all : i + step);
        st = run_once(ex, err);
    }
    return st;
}

/* Segments of several tokens each: one chunk. */
static calla_status prefill_chunk(gpu_exec *ex, const exec_segment *const *segs, uint32_t n_segs,
                                  calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    uint32_t n = 0, max_len = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        const exec_seq *seq = segs[i]->seq;
        const uint32_t pos = seq->n_tokens, len = segs[i]->n_tokens;
        ex->seg_host[i] =
            (seg_entry){.first = n, .n = len, .slot = seq->slot, .kv_row = seq->kv_row, .pos = pos};
        for (uint32_t j = 0; j < len; j++)
            put_token(ex, n++, seq, segs[i]->tokens[j], pos + j);
        if (pos + len > max_len) max_len = pos + len;
    }
    calla_status st =
        ops->write(ex->dev, gpu_sub(ex->s.tok, 0, n * sizeof(tok_entry)), ex->tok_host, err);
    if (st == CALLA_OK)
        st = ops->write(ex->dev, gpu_sub(ex->s.seg, 0, n_segs * sizeof(seg_entry)), ex->seg_host,
                        err);
    if (st == CALLA_OK) st = run_layers(ex, n, n_segs, max_len, err);
    return st == CALLA_OK ? chunk_logits(ex, n, segs, n_segs, err) : st;
}

uint32_t gpu_tokens_at_once(const model_shape *s, double dispatch_flops, uint32_t chunk,
                            uint32_t max_len)
{
    const double per_token = 4.0 * s->n_heads * s->head_dim * (double)gpu_len_bucket(max_len);
    if (dispatch_flops == 0 || dispatch_flops / per_token > chunk) return chunk;
    const uint32_t n = (uint32_t)(dispatch_flops / per_token);
    return n < 32 ? 32 : n;
}

/* A segment in pieces; none has one token, which would be another path. */
static calla_status prefill_pieces(gpu_exec *ex, const exec_segment *seg, uint32_t most,
                                   calla_error *err)
{
    const uint32_t start = seg->seq->n_tokens;
    calla_status st = CALLA_OK;
    for (uint32_t done = 0; done < seg->n_tokens && st == CALLA_OK;) {
        const uint32_t left = seg->n_tokens - done;
        const uint32_t n = left <= most ? left : left == most + 1 ? most - 1 : most;
        exec_segment piece = *seg;
        const exec_segment *one = &piece;
        piece.tokens += done;
        piece.n_tokens = n;
        if (seg->want == EXEC_LOGITS_ALL)
            piece.logits += (size_t)done * ex->shape->n_vocab;
        else if (n != left)
            piece.want = EXEC_LOGITS_NONE;
        st = prefill_chunk(ex, &one, 1, err);
        done += n;
        seg->seq->n_tokens = start + done;
    }
    seg->seq->n_tokens = start; /* the caller counts */
    return st;
}

static calla_status prefill(gpu_exec *ex, const exec_segment *const *segs, uint32_t n_segs,
                            calla_error *err)
{
    uint32_t n = 0, max_len = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        const uint32_t end = segs[i]->seq->n_tokens + segs[i]->n_tokens;
        n += segs[i]->n_tokens;
        if (end > max_len) max_len = end;
    }
    const uint32_t most = gpu_tokens_at_once(ex->shape, ex->dispatch_flops, ex->chunk, max_len);
    if (n <= most) return prefill_chunk(ex, segs, n_segs, err);
    calla_status st = CALLA_OK;
    for (uint32_t i = 0; i < n_segs && st == CALLA_OK; i++)
        st = prefill_pieces(ex, segs[i], most, err);
    return st;
}

/* Checks the call; nothing is changed on failure. */
static calla_status check(const gpu_exec *ex, const exec_segment *segs, uint32_t n_segs,
                          calla_error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        const exec_segment *seg = &segs[i];
        const exec_seq *seq = seg->seq;
        const calla_status st = exec_check_segment(seg, i, n, ex->chunk, seq->n_tokens, seq->n_ctx,
                                                   ex->shape->n_vocab, err);
        if (st != CALLA_OK) return st;
        n += seg->n_tokens;
    }
    return CALLA_OK;
}

/* Runs the segments of one kind in groups that fit. */
static calla_status run_kind(gpu_exec *ex, const exec_segment *segs, uint32_t n_segs, bool decode,
                             calla_error *err)
{
    const exec_segment *group[GPU_SEGS_MAX];
    const uint32_t most = decode ? GPU_DECODE_MAX : GPU_SEGS_MAX;
    uint32_t n = 0;
    calla_status st = CALLA_OK;
    for (uint32_t i = 0; i <= n_segs && st == CALLA_OK; i++) {
        if (i < n_segs && (segs[i].n_tokens == 1) == decode) group[n++] = &segs[i];
        if (n == 0 || (n < most && i < n_segs)) continue;
        st = decode ? decode_step(ex, group, n, err) : prefill(ex, group, n, err);
        n = 0;
    }
    return st;
}

calla_status gpu_forward(gpu_exec *ex, const exec_segment *segs, uint32_t n_segs, calla_error *err)
{
    calla_status st = check(ex, segs, n_segs, err);
    if (st != CALLA_OK) return st;
    st = run_kind(ex, segs, n_segs, true, err);
    if (st == CALLA_OK) st = run_kind(ex, segs, n_segs, false, err);
    for (uint32_t i = 0; i < n_segs; i++)
        segs[i].seq->n_tokens = st == CALLA_OK ? segs[i].seq->n_tokens + segs[i].n_tokens : 0;
    if (st != CALLA_OK) {
        calla_error ignored;
        (void)ex->dev->ops->zero(ex->dev, ex->s.zero, &ignored);
    }
    return st;
}
