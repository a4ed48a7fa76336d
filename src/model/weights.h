/* weights.h - the checkpoint's tensors bound to their places in the model.
 *
 * Does:       decides the layout (MLX or Hugging Face) by conv1d.weight's last dimension, finds and
 *             checks every tensor (name, dtype, shape, quantisation parameters), points matrices
 *             into the mapping, widens small vectors to f32 (norms: 1 + w in the Hugging Face
 *             layout, as stored in MLX's). Counts what it skips (vision, MTP).
 * Owns:       the widened vectors. Matrices borrow from the checkpoint, which must outlive this.
 * Invariants: matrix data have any alignment; cols % 64 == 0 for quantised matrices.
 * Threads:    immutable once bound.
 */
#ifndef CALLA_MODEL_WEIGHTS_H
#define CALLA_MODEL_WEIGHTS_H

#include "format/checkpoint.h"
#include "model/shape.h"

typedef enum mat_type {
    MAT_Q4,   /* MLX affine, group 64: w = scale * code + bias, scale may be negative */
    MAT_Q8,   /* the same with 8-bit codes */
    MAT_BF16, /* plain */
    MAT_F32
} mat_type;

typedef struct matrix_row_ref {
    const struct matrix *w; /* NULL: none */
    uint32_t row;
} matrix_row_ref;

/* y[rows] = W[rows, cols] x[cols]. Row r of the codes begins at data + r * row_bytes; its scales at
 * scales + r * (cols / 64) * 2 bytes (bf16, little endian), its biases likewise. */
typedef struct matrix {
    mat_type type;
    uint32_t rows, cols;
    uint64_t row_bytes; /* Q4: cols / 2; Q8: cols; BF16: 2 cols; F32: 4 cols */
    const uint8_t *data;
    const uint8_t *scales; /* NULL unless quantised */
    const uint8_t *biases;
    /* A hint for a product over some rows: what its thread reads after them, of a matrix of the
     * same type; none: the rows that follow. */
    matrix_row_ref next;
} matrix;

/* n_experts equal matrices; expert e is `first` with its pointers moved by e strides. */
typedef struct expert_bank {
    matrix first;
    uint64_t data_stride, param_stride; /* bytes; param: scales and biases alike */
} expert_bank;

static inline matrix expert_matrix(const expert_bank *b, uint32_t i_expert)
{
    matrix m = b->first;
    m.data += (uint64_t)i_expert * b->data_stride;
    if (m.scales != NULL) {
        m.scales += (uint64_t)i_expert * b->param_stride;
        m.biases += (uint64_t)i_expert * b->param_stride;
    }
    return m;
}

typedef struct layer_weights {
    const float *input_norm; /* [hidden], multiply by it as it is */
    const float *post_norm;  /* [hidden] */
    /* Gated DeltaNet layers */
    matrix in_qkv, in_z, in_b, in_a, gdn_out;
    const float *conv;  /* [4, conv_channels]: transposed at binding; tap 3 is the current token */
    const float *a_log; /* [gdn_v_heads] */
    const float *dt_bias;  /* [gdn_v_heads] */
    const float *gdn_norm; /* [gdn_v_dim], used directly */
    /* full-attention layers */
    matrix q, k, v, o;            /* q: per head 256 query rows then 256 gate rows */
    const float *q_norm, *k_norm; /* [head_dim] */
    /* mixture of experts */
    matrix router;        /* [n_experts, hidden] */
    expert_bank gate, up; /* [expert_width, hidden] */
    expert_bank down;     /* [hidden, expert_width] */
    matrix shared_gate, shared_up, shared_down;
    matrix shared_router; /* [1, hidden] */
} layer_weights;

typedef struct model_weights {
    matrix embed, lm_head; /* [n_vocab, hidden] */
    const float *final_norm;
    layer_weights *layers; /* [n_layers] */
    bool hf_layout;
    uint64_t mapped_bytes; /* text tensors in the mapping */
    uint64_t active_bytes; /* weight bytes read per decoded token (docs/MODEL.md, cost model) */
    uint64_t copied_bytes; /* widened vectors */
    uint32_t n_skipped_vision, n_skipped_mtp;
    uint64_t skipped_bytes;
    arena mem;
} model_weights;

/* Refuses unknown, missing, misshapen tensors before anything is computed. */
calla_status weights_bind(model_weights *out, const checkpoint *ck, const model_shape *shape,
                          calla_error *err);
void weights_unbind(model_weights *w);

/* Groups for `calla inspect`: the rows of the byte table of docs/MODEL.md section 3.2, in its
 * order. */
typedef struct weight_group {
    const char *name; /* "embed_tokens", "lm_head", "GDN projections", ... */
    uint64_t n_tensors, n_bytes;
} weight_group;

#define WEIGHT_GROUPS 11u
void weights_groups(const checkpoint *ck, weight_group out[WEIGHT_GROUPS]);

#endif
