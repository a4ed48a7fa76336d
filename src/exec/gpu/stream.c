/* Generation without the host between two tokens: the last kernel of a step draws and writes the
 * token table that the first kernel of the next one reads. It runs a step ahead of the
 * host; the logits of two steps lie in two places, so that those after the last wanted token stay.
 * A sequence that drew a stop id goes through the step that is ahead in its own parking row and
 * without a recurrent state: nothing is written where another reads or writes. */
#include <string.h>

#include "exec/gpu/gpu.h"
#include "exec/segment.h"

static uint64_t layout(const model_shape *s, gpu_stream *t)
{
    const uint64_t vocab = s->n_vocab;
    uint64_t used = 0;
    t->tok = gpu_carve(t->buf, &used, GPU_DECODE_MAX * sizeof(tok_entry));
    t->samp = gpu_carve(t->buf, &used, GPU_DECODE_MAX * sizeof(sample_entry));
    t->banned = gpu_carve(t->buf, &used, (vocab + 31) / 32 * 4);
    for (int i = 0; i < 2; i++)
        t->logits[i] = gpu_carve(t->buf, &used, GPU_DECODE_MAX * vocab * 4);
    return used;
}

static uint64_t counts_bytes(const model_shape *s)
{
    return GPU_DECODE_MAX * 4ull * s->n_vocab;
}

uint64_t gpu_stream_bytes(const model_shape *s)
{
    gpu_stream t = {0};
    return layout(s, &t) + counts_bytes(s);
}

calla_status gpu_stream_create(gpu_exec *ex, calla_error *err)
{
    const gpu_ops *ops = ex->dev->ops;
    gpu_stream *t = &ex->stream;
    const uint64_t counts = counts_bytes(ex->shape);
    calla_status st =
        ops->buffer_create(ex->dev, GPU_MEM_DEVICE, layout(ex->shape, t), "stream", &t->buf, err);
    (void)layout(ex->shape, t);
    if (st == CALLA_OK)
        st = ops->buffer_create(ex->dev, GPU_MEM_HOST, GPU_DECODE_MAX * GPU_RING * 4, "ids",
                                &t->ring, err);
    if (st == CALLA_OK)
        st = ops->buffer_create(ex->dev, GPU_MEM_DEVICE, counts, "counts", &t->counts, err);
    return st == CALLA_OK ? ops->zero(ex->dev, (gpu_view){t->counts, 0, counts}, err) : st;
}

void gpu_stream_free(gpu_exec *ex)
{
    const gpu_ops *ops = ex->dev->ops;
    gpu_stream *t = &ex->stream;
    gpu_buffer *const bufs[] = {t->buf, t->ring, t->counts};
    for (size_t i = 0; i < 3; i++)
        if (bufs[i] != NULL) ops->buffer_destroy(ex->dev, bufs[i]);
    *t = (gpu_stream){0};
}

void gpu_stream_drain(gpu_exec *ex)
{
    const gpu_stream *t = &ex->stream;
    calla_error ignored;
    if (t->n != 0 && t->n_submitted != 0)
        (void)ex->dev->ops->wait(ex->dev, t->ticket[(t->n_submitted - 1) & 1], NULL, &ignored);
}

/* The device failed, or a row of logits was no good: nobody knows where the sequences are. */
static calla_status broken(gpu_exec *ex, calla_status st)
{
    gpu_stream *t = &ex->stream;
    calla_error ignored;
    gpu_stream_drain(ex);
    for (uint32_t i = 0; i < t->n; i++)
        t->seqs[i]->n_tokens = 0;
    t->n = 0;
    (void)ex->dev->ops->zero(ex->dev, ex->s.zero, &ignored);
    return st;
}

static calla_status submit(gpu_exec *ex, calla_error *err)
{
    gpu_stream *t = &ex->stream;
    uint32_t max_len = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->start[i] + t->n_submitted + 1 > max_len) max_len = t->start[i] + t->n_submitted + 1;
    const uint32_t which = t->n_submitted & 1;
    const program_key key = {t->n, gpu_len_bucket(max_len), t->n, 1 + which};
    cached_program *c = gpu_find_program(ex, key);
    calla_status st;
    if (c->program == NULL) {
        gpu_record_stream(ex, t->n, key.max_len, which);
        st = gpu_submit_recorded(ex, false, &c->program, &t->ticket[which], err);
    } else {
        st = ex->dev->ops->submit(ex->dev, c->program, &t->ticket[which], err);
    }
    if (st == CALLA_OK) t->n_submitted++;
    return st;
}

static calla_status check(const gpu_exec *ex, const exec_stream *items, uint32_t n,
                          uint32_t max_steps, calla_error *err)
{
    if (ex->stream.n != 0) return err_set(err, CALLA_ERR_FULL, "another stream is running");
    if (n == 0 || n > GPU_DECODE_MAX || ex->ctx.off[GPU_SW_gpu_argmax])
        return err_set(err, CALLA_ERR_FULL, "a stream takes 1 to %u sequences, found %u",
                       GPU_DECODE_MAX, n);
    if (ex->shape->n_vocab % 4 != 0 || ex->shape->n_vocab > SAMPLE_VOCAB_MAX)
        return err_set(err, CALLA_ERR_FULL, "a GPU cannot draw from a vocabulary of %u",
                       ex->shape->n_vocab);
    if (max_steps == 0) return err_set(err, CALLA_ERR_FULL, "a stream of no steps");
    for (uint32_t i = 0; i < n; i++) {
        const exec_stream *s = &items[i];
        calla_status st = exec_check_token(s->token, ex->shape->n_vocab, err);
        if (st == CALLA_OK) st = exec_check_room(max_steps, s->seq->n_tokens, s->seq->n_ctx, err);
        if (st != CALLA_OK) return st;
        if (ex->ctx.off[GPU_SW_sampler_gpu] && s->sampling.greedy == 0)
            return err_set(err, CALLA_ERR_FULL, "sampling on the GPU is off");
    }
    return CALLA_OK;
}

calla_status gpu_stream_begin(executor *base, const exec_stream *items, uint32_t n,
                              const uint32_t *banned, uint32_t max_steps, calla_error *err)
{
    gpu_exec *ex = gpu_self(base);
    const gpu_ops *ops = ex->dev->ops;
    gpu_stream *t = &ex->stream;
    tok_entry tok[GPU_DECODE_MAX];
    calla_status st = check(ex, items, n, max_steps, err);
    if (st != CALLA_OK) return st;
    const uint64_t row = 4ull * ex->shape->n_vocab;
    for (uint32_t i = 0; i < n && st == CALLA_OK; i++) {
        exec_seq *seq = items[i].seq;
        tok[i] = (tok_entry){(uint32_t)items[i].token, seq->n_tokens, seq->slot, seq->kv_row};
        t->entries[i] = items[i].sampling;
        t->entries[i].slot = i;
        t->entries[i].park_slot = TOK_NO_SLOT;
        t->entries[i].park_row = i;
        t->seqs[i] = seq;
        t->start[i] = seq->n_tokens;
        t->ended[i] = false;
        if (items[i].sampling.counted != 0)
            st = ops->write(ex->dev, (gpu_view){t->counts, i * row, row}, items[i].counts, err);
    }
    if (st == CALLA_OK) st = ops->write(ex->dev, gpu_sub(t->tok, 0, n * sizeof *tok), tok, err);
    if (st == CALLA_OK)
        st = ops->write(ex->dev, gpu_sub(t->samp, 0, n * sizeof(sample_entry)), t->entries, err);
    if (st == CALLA_OK) st = ops->write(ex->dev, t->banned, banned, err);
    if (st != CALLA_OK) return st;
    t->n = n;
    t->n_submitted = t->n_taken = 0;
    t->max_steps = max_steps;
    t->depth = !ex->ctx.off[GPU_SW_token_slots] ? 2 : 1;
    return CALLA_OK;
}

/* What sequence i drew in a step that is done. */
static calla_status drawn(const gpu_exec *ex, uint32_t i, uint32_t step, int32_t *id,
                          calla_error *err)
{
    const uint32_t *ring = ex->dev->ops->buffer_host(ex->stream.ring);
    const uint32_t x = ring[i * GPU_RING + step % GPU_RING];
    *id = (int32_t)x;
    if (x != SAMPLE_BAD) return CALLA_OK;
    return err_set(err, CALLA_ERR_INTERNAL,
                   "the logits hold a NaN or an infinity, or nothing to draw");
}

calla_status gpu_stream_next(executor *base, int32_t *ids, calla_error *err)
{
    gpu_exec *ex = gpu_self(base);
    gpu_stream *t = &ex->stream;
    calla_status st = CALLA_OK;
    if (t->n == 0 || t->n_taken == t->max_steps)
        return err_set(err, CALLA_ERR_ARGUMENT, "the stream has no more steps");
    while (st == CALLA_OK && t->n_submitted < t->max_steps &&
           t->n_submitted < t->n_taken + t->depth)
        st = submit(ex, err);
    if (st == CALLA_OK) st = ex->dev->ops->wait(ex->dev, t->ticket[t->n_taken & 1], NULL, err);
    if (st != CALLA_OK) return broken(ex, st);
    for (uint32_t i = 0; i < t->n; i++) {
        st = drawn(ex, i, t->n_taken, &ids[i], err);
        if (st != CALLA_OK) return broken(ex, st);
        t->seqs[i]->n_tokens++;
        for (uint32_t j = 0; j < t->entries[i].n_stops; j++)
            t->ended[i] = t->ended[i] || t->entries[i].stops[j] == (uint32_t)ids[i];
    }
    t->n_taken++;
    return CALLA_OK;
}

/* Steps until every sequence has taken what it drew. Several sequences that ended apart are not
 * told apart by a step: those that ended are parked by the token table. */
calla_status gpu_stream_end(executor *base, float *const *logits, int32_t *ids, calla_error *err)
{
    gpu_exec *ex = gpu_self(base);
    gpu_stream *t = &ex->stream;
    const uint64_t row = 4ull * ex->shape->n_vocab;
    calla_status st = CALLA_OK;
    bool open = false;
    if (t->n == 0) return CALLA_OK;
    for (uint32_t i = 0; i < t->n; i++)
        open = open || !t->ended[i];
    if (open && t->n_submitted == t->n_taken && t->n_taken < t->max_steps) st = submit(ex, err);
    if (st == CALLA_OK && t->n_submitted != 0)
        st = ex->dev->ops->wait(ex->dev, t->ticket[(t->n_submitted - 1) & 1], NULL, err);
    for (uint32_t i = 0; i < t->n && st == CALLA_OK; i++) {
        /* the last step that this sequence itself has run */
        const uint32_t last = t->ended[i] ? t->n_taken : t->n_submitted;
        t->seqs[i]->n_tokens = t->start[i] + last;
        if (logits[i] != NULL && last != 0)
            st = ex->dev->ops->read(ex->dev, logits[i],
                                    gpu_sub(t->logits[(last - 1) & 1], i * row, row), err);
        if (ids == NULL || st != CALLA_OK) continue;
        ids[i] = -1;
        if (last != t->n_taken) st = drawn(ex, i, last - 1, &ids[i], err);
    }
    if (st != CALLA_OK) return broken(ex, st);
    t->n = 0;
    return CALLA_OK;
}
