/* shape.h - the dimensions of the model, from config.json.
 *
 * Does:       reads text_config (or a flat config), checks every value that the code relies on and
 *             refuses what contradicts this architecture (spec: docs/MODEL.md section 1).
 * Invariants: after shape_read succeeds: head_dim 256, gdn_k_dim = gdn_v_dim = 128, conv_kernel 4,
 *             rotary_dim 64, every matrix width a multiple of 64, counts non-zero and bounded,
 *             n_heads % n_kv_heads == 0, gdn_v_heads % gdn_k_heads == 0,
 *             n_experts_used <= n_experts <= 1024, n_experts_used <= 32.
 */
#ifndef CALLA_MODEL_SHAPE_H
#define CALLA_MODEL_SHAPE_H

#include "base/json.h"

#define MODEL_LAYERS_MAX       256u
#define MODEL_EXPERTS_MAX      1024u
#define MODEL_EXPERTS_USED_MAX 32u
#define MODEL_STOP_IDS_MAX     16u
#define MODEL_HEAD_DIM         256u
#define MODEL_GDN_DIM          128u
#define MODEL_CONV_KERNEL      4u
#define MODEL_ROTARY_DIM       64u
#define MODEL_QUANT_GROUP      64u

typedef struct model_shape {
    uint32_t n_layers;
    uint32_t hidden;
    uint32_t n_vocab; /* rows of embedding and lm_head */
    uint32_t max_context;
    uint32_t full_interval; /* layer i is full attention iff (i + 1) % full_interval == 0 */
    uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
    uint32_t gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim, conv_kernel;
    uint32_t n_experts, n_experts_used, expert_width, shared_width;
    float rms_eps, rope_theta;
    uint32_t n_stop_ids;
    int32_t stop_ids[MODEL_STOP_IDS_MAX]; /* generation_config, else top-level eos_token_id, else
                                             text_config */
} model_shape;

/* config: root of config.json; generation: root of generation_config.json or NULL. */
calla_status shape_read(model_shape *out, const json_value *config, const json_value *generation,
                        calla_error *err);

/* "FILE: KEY: expected EXPECTED, found VALUE"; v may be NULL. Returns CALLA_ERR_UNSUPPORTED. */
calla_status shape_refuse(const json_value *v, const char *file, const char *key,
                          const char *expected, calla_error *err);

/* Qwen3.6-35B-A3B: sizes only, no stop ids. */
extern const model_shape shape_35b;

static inline bool shape_is_full(const model_shape *s, uint32_t i_layer)
{
    return (i_layer + 1) % s->full_interval == 0;
}

/* Multiply-adds of one token in all matrices but lm_head (docs/MODEL.md section 10). */
double shape_macs(const model_shape *s);

/* Derived widths. */
static inline uint32_t shape_gdn_k_width(const model_shape *s)
{
    return s->gdn_k_heads * s->gdn_k_dim;
}
static inline uint32_t shape_gdn_v_width(const model_shape *s)
{
    return s->gdn_v_heads * s->gdn_v_dim;
}
static inline uint32_t shape_conv_channels(const model_shape *s)
{
    return 2 * shape_gdn_k_width(s) + shape_gdn_v_width(s);
}
static inline uint32_t shape_q_width(const model_shape *s)
{
    return s->n_heads * s->head_dim;
}
static inline uint32_t shape_kv_width(const model_shape *s)
{
    return s->n_kv_heads * s->head_dim;
}

#endif
