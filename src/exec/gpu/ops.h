/* ops.h - the steps of the forward pass as dispatches: what the executor says, what kernels do.
 *
 * Does:       each op_*() records the dispatches of one step for a batch of T tokens. Decode steps
 *             serve T <= 16 tokens of different sequences; prefill steps T tokens in S segments.
 * Invariants: a token's result does not depend on the other tokens of the batch - bitwise, within
 *             decode and within prefill. Switches choose older kernels, never other mathematics.
 * Shapes:     row-major, last index fastest, f32 unless said otherwise. H hidden, V vocabulary,
 *             E experts, U experts used, W expert width, Q = n_heads * 256, KVW = n_kv_heads * 256,
 *             KW = gdn_k_heads * 128, VW = gdn_v_heads * 128, C = 2 KW + VW,
 *             N1 = C + VW + 2 gdn_v_heads (rows: qkv | z | b | a), N2 = 2 Q + 2 KVW (q and gate
 *             per head as in the checkpoint | k | v).
 * Memory:     scratch is the caller's; op_*_scratch() says how many bytes, which depend on the
 *             dimensions and the largest T (and context) alone.
 */
#ifndef CALLA_EXEC_GPU_OPS_H
#define CALLA_EXEC_GPU_OPS_H

#include "exec/gpu/recorder.h"
#include "kernels/args.h"
#include "model/shape.h"

/* Ablation switches (one bit each); all on is the release path. Names are those of
 * `calla bench --ablate`. */
#define GPU_SWITCHES(S)                                                                            \
    S(inline_dequant)                                                                              \
    S(gpu_routing)                                                                                 \
    S(tile32)                                                                                      \
    S(gdn_regs)                                                                                    \
    S(gemv_rows)                                                                                   \
    S(token_slots)                                                                                 \
    S(concurrent)                                                                                  \
    S(fuse_gateup)                                                                                 \
    S(fuse_down)                                                                                   \
    S(fuse_qkprep)                                                                                 \
    S(fuse_gdnnorm)                                                                                \
    S(kv_coalesce)                                                                                 \
    S(gqa_pack)                                                                                    \
    S(attn_blocks)                                                                                 \
    S(gpu_argmax)                                                                                  \
    S(tensor_main) /* the target's own GEMM main loop (wgmma) instead of mm_mac */                 \
    S(gdn_staged)                                                                                  \
    S(gdn_one_reduction)                                                                           \
    S(router_tail)                                                                                 \
    S(norm_fold)                                                                                   \
    S(attn_mm)                                                                                     \
    S(pdl)                                                                                         \
    S(sampler_gpu)
typedef enum gpu_switch {
#define S(name) GPU_SW_##name,
    GPU_SWITCHES(S)
#undef S
        GPU_SW_COUNT
} gpu_switch;

typedef struct gpu_context {
    recorder *rec;
    const model_shape *shape;
    uint32_t n_cores; /* of the device */
    gpu_mm native_mm; /* the device's own main loop (gpu_limits) */
    gpu_view mm;      /* op_mm_scratch() bytes for the prefill products */
    /* Warpgroups, 2 or 4, of the native main loop: dense, experts up, down; 0: the usual. */
    uint8_t mm_groups[3];
    uint32_t groups_per_core; /* of products whose groups take turns, for measuring; 0: their own */
    bool off[GPU_SW_COUNT];
} gpu_context;

/* 4-bit matrix of the pack: codes [rows][cols / 2] bytes, element j of a word in bits 4 (j % 8) as
 * in the checkpoint; sb [rows][cols / 64] u32: scale bf16 in the low half, bias in the high half.
 * y = sum over groups of scale * sum(q x) + bias * sum(x). */
typedef struct gpu_q4 {
    gpu_view codes, sb;
    uint32_t rows, cols;
} gpu_q4;

/* 8-bit matrix: codes [rows][cols] bytes. */
typedef struct gpu_q8 {
    gpu_view codes, sb;
    uint32_t rows, cols;
} gpu_q8;

/* Expert slabs [E + 1], the last one the shared expert. A slab: gate and up codes [2 W][H / 2] with
 * rows interleaved g0 u0 g1 u1 ..., their sb [2 W][H / 64], down codes [H][W / 2], sb [H][W / 64].
 */
typedef struct gpu_bank {
    gpu_view slabs;
    uint32_t slab_bytes;
} gpu_bank;

/* ---- basic (ops_basic.c) ---- */

/* x [T][H] = rows of embed; rope [T][64]: cos then sin of pos * inv_freq[i], i < 32. */
void op_embed(gpu_context *g, uint32_t n, gpu_view tok, const gpu_q4 *embed, gpu_view inv_freq,
              gpu_view x, gpu_view rope);
/* y [T][H] bf16 = RMS1(x; w) (docs/MODEL.md 6.1). */
void op_norm_bf16(gpu_context *g, uint32_t n, gpu_view x, gpu_view w, gpu_view y);
/* From logits [T][E + 1] (the last is the shared expert's gate): ids [T][U] u32, the U largest of
 * the first E, ties to the lower id, largest first; weights [T][U + 1]: their softmax, then
 * sigmoid of the last logit. */
void op_top8(gpu_context *g, uint32_t n, gpu_view logits, gpu_view ids, gpu_view weights);
/* logits [T][V] -> best [T] u32: largest of the first n_valid, ties to the lower id. */
uint64_t op_argmax_scratch(const model_shape *s, uint32_t n);
void op_argmax(gpu_context *g, uint32_t n, uint32_t n_valid, gpu_view logits, gpu_view scratch,
               gpu_view best);

/* What op_sample works on; rows of a batch are sequences. */
typedef struct gpu_sampling {
    gpu_view banned;  /* [V / 32] bits: ids that are never drawn */
    gpu_view entries; /* [T] sample_entry (args_basic.h): parameters, generator, ids drawn */
    gpu_view counts;  /* [slots][V] u32 of sequences with penalties */
    gpu_view ring;    /* host memory, [T][ring_len] u32: the ids drawn, the n-th at n % ring_len */
    gpu_view tok;     /* [T] tok_entry: takes the id and the next position; buf NULL: not */
    uint32_t n_slots, ring_len;
} gpu_sampling;
/* Draws the next token of each sequence: the id that sampler_draw (engine/sampler.h) would draw
 * from the same logits, parameters and generator, for top_k <= 64 or greedy; SAMPLE_BAD where
 * sampler_draw would refuse the row. V <= SAMPLE_VOCAB_MAX. */
uint64_t op_sample_scratch(const model_shape *s, uint32_t n);
void op_sample(gpu_context *g, uint32_t n, gpu_view logits, const gpu_sampling *sampling,
               gpu_view scratch);

/* ---- decode products (ops_gemv.c); T <= 16 ---- */

/* Of op_gemv and op_gemv_add, for any matrix of the model. */
uint64_t op_gemv_scratch(const model_shape *s, uint32_t n);
/* y [T][rows] = W RMS1(x; norm). norm.buf NULL: y = W x. rows_of.buf not NULL: row t of x is
 * rows_of[t] (u32), all below n_x, the rows of x (n without rows_of). */
void op_gemv(gpu_context *g, uint32_t n, gpu_view x, uint32_t n_x, gpu_view norm, gpu_view rows_of,
             const gpu_q4 *w, gpu_view scratch, gpu_view y);
/* x [T][rows] += W in, in [T][cols]. */
void op_gemv_add(gpu_context *g, uint32_t n, gpu_view in, const gpu_q4 *w, gpu_view scratch,
                 gpu_view x);
/* Router of decode: logits as in op_top8 from RMS1(x; norm), then ids and weights. The scratch's
 * first 4 KiB must be zero before the first use and are left zero. */
uint64_t op_router_scratch(const model_shape *s, uint32_t n);
void op_router(gpu_context *g, uint32_t n, gpu_view x, gpu_view norm, const gpu_q8 *router,
               gpu_view scratch, gpu_view ids, gpu_view weights);
/* x [T][H] += MOE(RMS1(x; norm)) for the given routing (docs/MODEL.md 6.6). */
uint64_t op_moe_scratch(const model_shape *s, uint32_t n);
void op_moe(gpu_context *g, uint32_t n, gpu_view x, gpu_view norm, gpu_view ids, gpu_view weights,
            const gpu_bank *bank, gpu_view scratch);

/* ---- prefill products (ops_gemm.c) ---- */

/* Bytes that g->mm must have for batches of up to n tokens, by the context's switches: activations
 * as the native main loop reads them, or expanded weights without inline_dequant. 0: none. */
uint64_t op_mm_scratch(const gpu_context *g, uint32_t n);
/* y [T][rows] (=, or += when add) W in; in [T][cols] bf16. */
void op_gemm(gpu_context *g, uint32_t n, gpu_view in, const gpu_q4 *w, bool add, gpu_view y);
/* logits [T][E + 1] = router RMS1(x; norm), f32 throughout. */
void op_router_gemm(gpu_context *g, uint32_t n, gpu_view x, gpu_view norm, const gpu_q8 *router,
                    gpu_view logits);
/* x [T][H] += experts of xn [T][H] bf16 for ids and weights of op_top8: the routing lists, then the
 * experts. */
uint64_t op_moe_gemm_scratch(const model_shape *s, uint32_t n);
void op_moe_gemm(gpu_context *g, uint32_t n, gpu_view xn, gpu_view ids, gpu_view weights,
                 const gpu_bank *bank, gpu_view scratch, gpu_view x);
/* The two halves. Without gpu_routing the lists come from the host: ids [T][U] read back, then the
 * image goes to the first op_moe_plan_bytes() bytes of scratch. */
void op_moe_plan(gpu_context *g, uint32_t n, gpu_view ids, gpu_view scratch);
void op_moe_experts(gpu_context *g, uint32_t n, gpu_view xn, gpu_view weights, const gpu_bank *bank,
                    gpu_view scratch, gpu_view x);
uint64_t op_moe_plan_bytes(const model_shape *s, uint32_t n);
void op_moe_plan_host(const gpu_context *g, uint32_t n, const uint32_t *ids, void *image);

/* ---- Gated DeltaNet (ops_gdn.c; docs/MODEL.md 6.3) ---- */

typedef struct gpu_gdn {
    gpu_view conv;  /* [4][C] */
    gpu_view rate;  /* [gdn_v_heads]: exp(A_log) */
    gpu_view dt;    /* [gdn_v_heads] */
    gpu_view norm;  /* [128] */
    gpu_view state; /* [slots][gdn_v_heads][16384], each head in the kernels' own order */
    gpu_view ring;  /* [slots][4][C]: inputs of the convolution, position p in row p & 3 */
} gpu_gdn;
/* Decode: y [T][N1] -> o [T][VW], gated and normed; state and ring of each token's slot advance.
 * The scratch's first 4 KiB must be zero before the first use and are left zero. */
uint64_t op_gdn_step_scratch(const model_shape *s, uint32_t n);
void op_gdn_step(gpu_context *g, uint32_t n, gpu_view tok, const gpu_gdn *l, gpu_view y,
                 gpu_view scratch, gpu_view o);
/* Prefill: the same for segments; o [T][VW] bf16. A segment at position 0 starts from zero state
 * whatever the slot holds (so does decode at position 0). */
uint64_t op_gdn_scan_scratch(const model_shape *s, uint32_t n, uint32_t n_segs);
void op_gdn_scan(gpu_context *g, uint32_t n, uint32_t n_segs, gpu_view tok, gpu_view seg,
                 const gpu_gdn *l, gpu_view y, gpu_view scratch, gpu_view o);
/* One head's state (host memory, 16,384 floats) between the kernels' order, state, and [k][v],
 * image.
 */
void gdn_state_to_image(const float *state, float *image);
void gdn_state_from_image(const float *image, float *state);

/* ---- attention (ops_attn.c; docs/MODEL.md 6.4, 6.5) ---- */

typedef struct gpu_attn {
    gpu_view q_norm, k_norm; /* [256] */
    gpu_view k, v;           /* [n_kv_heads][n_rows][256] bf16 */
    uint32_t n_rows;         /* rows of the cache: all sequences together */
} gpu_attn;
/* Decode: y [T][N2], rope [T][64] -> k and v appended, o [T][Q] times sigmoid(gate). max_len: no
 * sequence is longer after this token; it bounds the grid, the tokens' positions say the rest. */
uint64_t op_attn_step_scratch(const model_shape *s, uint32_t n, uint32_t max_len);
void op_attn_step(gpu_context *g, uint32_t n, uint32_t max_len, gpu_view tok, const gpu_attn *l,
                  gpu_view y, gpu_view rope, gpu_view scratch, gpu_view o);
/* Prefill: o [T][Q] bf16. */
uint64_t op_attn_scan_scratch(const model_shape *s, uint32_t n, uint32_t n_segs);
void op_attn_scan(gpu_context *g, uint32_t n, uint32_t n_segs, uint32_t max_len, gpu_view tok,
                  gpu_view seg, const gpu_attn *l, gpu_view y, gpu_view rope, gpu_view scratch,
                  gpu_view o);

#endif
