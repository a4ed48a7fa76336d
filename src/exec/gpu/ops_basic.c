/* Embedding, norms, routing, argmax as dispatches. */
#include "exec/gpu/ops.h"

#include "kernels/args_basic.h"

static uint32_t blocks_of(uint32_t n, uint32_t size)
{
    return (n + size - 1) / size;
}

void op_embed(gpu_context *g, uint32_t n, gpu_view tok, const gpu_q4 *embed, gpu_view inv_freq,
              gpu_view x, gpu_view rope)
{
    const uint32_t hidden = g->shape->hidden;
    const uint64_t rope_bytes = (uint64_t)n * MODEL_ROTARY_DIM * 4;
    rec_dispatch(g->rec, KERNEL_basic_embed, n, 1);
    rec_read(g->rec, gpu_sub(tok, 0, (uint64_t)n * sizeof(tok_entry)));
    rec_read(g->rec, embed->codes);
    rec_read(g->rec, embed->sb);
    rec_read(g->rec, gpu_sub(inv_freq, 0, MODEL_ROTARY_DIM / 2 * 4));
    rec_write(g->rec, gpu_sub(x, 0, (uint64_t)n * hidden * 4));
    rec_write(g->rec, gpu_sub(rope, 0, rope_bytes));
    const basic_embed_args a = {.hidden = hidden};
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * (hidden * 4.5625 + MODEL_ROTARY_DIM * 4 + sizeof(tok_entry)),
             (double)n * hidden * 2);
}

void op_norm_bf16(gpu_context *g, uint32_t n, gpu_view x, gpu_view w, gpu_view y)
{
    const uint32_t hidden = g->shape->hidden;
    rec_dispatch(g->rec, KERNEL_basic_norm_bf16, n, 1);
    rec_read(g->rec, gpu_sub(x, 0, (uint64_t)n * hidden * 4));
    rec_read(g->rec, gpu_sub(w, 0, (uint64_t)hidden * 4));
    rec_write(g->rec, gpu_sub(y, 0, (uint64_t)n * hidden * 2));
    const basic_norm_args a = {.n = hidden, .eps = g->shape->rms_eps};
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * hidden * 6, (double)n * hidden * 4);
}

void op_top8(gpu_context *g, uint32_t n, gpu_view logits, gpu_view ids, gpu_view weights)
{
    const uint32_t n_experts = g->shape->n_experts, n_used = g->shape->n_experts_used;
    rec_dispatch(g->rec, n_experts <= 256 ? KERNEL_basic_top8 : KERNEL_basic_top8_wide,
                 blocks_of(n, 4), 1);
    rec_read(g->rec, gpu_sub(logits, 0, (uint64_t)n * (n_experts + 1) * 4));
    rec_write(g->rec, gpu_sub(ids, 0, (uint64_t)n * n_used * 4));
    rec_write(g->rec, gpu_sub(weights, 0, (uint64_t)n * (n_used + 1) * 4));
    const basic_top8_args a = {.n_tokens = n, .n_experts = n_experts, .n_used = n_used};
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * 4 * (n_experts + 2 + 2 * n_used), 0);
}

uint64_t op_argmax_scratch(const model_shape *s, uint32_t n)
{
    return (uint64_t)n * blocks_of(s->n_vocab, ARGMAX_BLOCK) * 8;
}

void op_argmax(gpu_context *g, uint32_t n, uint32_t n_valid, gpu_view logits, gpu_view scratch,
               gpu_view best)
{
    const basic_argmax_args a = {.n_vocab = g->shape->n_vocab,
                                 .n_valid = n_valid,
                                 .n_blocks = blocks_of(n_valid, ARGMAX_BLOCK)};
    const gpu_view pairs = gpu_sub(scratch, 0, (uint64_t)n * a.n_blocks * 8);
    rec_dispatch(g->rec, KERNEL_basic_argmax_part, a.n_blocks, n);
    rec_read(g->rec, gpu_sub(logits, 0, (uint64_t)n * a.n_vocab * 4));
    rec_write(g->rec, pairs);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * n_valid * 4, 0);

    rec_dispatch(g->rec, KERNEL_basic_argmax_final, n, 1);
    rec_read(g->rec, pairs);
    rec_write(g->rec, gpu_sub(best, 0, (uint64_t)n * 4));
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * a.n_blocks * 8, 0);
}

uint64_t op_sample_scratch(const model_shape *s, uint32_t n)
{
    return (uint64_t)n * blocks_of(s->n_vocab, SAMPLE_BLOCK) * SAMPLE_K_MAX * 8;
}

void op_sample(gpu_context *g, uint32_t n, gpu_view logits, const gpu_sampling *sampling,
               gpu_view scratch)
{
    const uint32_t n_vocab = g->shape->n_vocab;
    const basic_sample_args a = {.n_vocab = n_vocab,
                                 .n_blocks = blocks_of(n_vocab, SAMPLE_BLOCK),
                                 .ring_len = sampling->ring_len,
                                 .advance = sampling->tok.buf != NULL};
    const gpu_view cand = gpu_sub(scratch, 0, op_sample_scratch(g->shape, n));
    const gpu_view entries = gpu_sub(sampling->entries, 0, n * sizeof(sample_entry));
    const gpu_view counts = gpu_sub(sampling->counts, 0, (uint64_t)sampling->n_slots * n_vocab * 4);
    rec_dispatch(g->rec, KERNEL_basic_sample_part, a.n_blocks, n);
    rec_read(g->rec, gpu_sub(logits, 0, (uint64_t)n * n_vocab * 4));
    rec_read(g->rec, gpu_sub(sampling->banned, 0, (uint64_t)blocks_of(n_vocab, 32) * 4));
    rec_read(g->rec, entries);
    rec_read(g->rec, counts);
    rec_write(g->rec, cand);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * n_vocab * 4, 0);

    rec_dispatch(g->rec, KERNEL_basic_sample_final, n, 1);
    rec_read(g->rec, cand);
    rec_read_write(g->rec, entries);
    rec_read_write(g->rec, counts);
    rec_write(g->rec, gpu_sub(sampling->ring, 0, (uint64_t)n * a.ring_len * 4));
    if (a.advance)
        rec_read_write(g->rec, gpu_sub(sampling->tok, 0, n * sizeof(tok_entry)));
    else
        rec_read(g->rec, cand);
    rec_args(g->rec, &a, sizeof a);
    rec_cost(g->rec, (double)n * a.n_blocks * SAMPLE_K_MAX * 8, 0);
}
