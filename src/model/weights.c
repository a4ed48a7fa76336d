#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/ck.h"

#define NAME_BYTES 256

typedef struct binder {
    model_weights *w;
    const checkpoint *ck;
    const model_shape *shape;
    const json_value *quant, *quant_twin; /* quantisation blocks of config.json, or NULL */
    const char *prefix;                   /* of every text tensor but lm_head */
    const char *lm_head;
    bool *used; /* per tensor of ck */
    calla_error *err;
} binder;

/* ---- Finding and checking tensors ---- */

typedef struct path {
    char s[NAME_BYTES];
} path;

static path path_of(const char *fmt, ...) ATTR_PRINTF(1, 2);
static path path_of(const char *fmt, ...)
{
    path p;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(p.s, sizeof p.s, fmt, ap);
    va_end(ap);
    return p;
}

/* The path of a module in layer i: PREFIX "layers.I." NAME. */
static path layer_path(const binder *b, uint32_t i_layer, const char *name)
{
    return path_of("%slayers.%u.%s", b->prefix, i_layer, name);
}

static const st_tensor *find(const binder *b, const char *module, const char *suffix)
{
    return checkpoint_find(b->ck, path_of("%s%s", module, suffix).s);
}

/* Marks a tensor as bound and counts its bytes. */
static void take(binder *b, const st_tensor *t)
{
    b->used[t - checkpoint_at(b->ck, 0)] = true;
    b->w->mapped_bytes += t->n_bytes;
}

typedef struct dims {
    uint32_t n;
    uint64_t d[3];
} dims;

static void format_dims(char *out, size_t n, uint32_t n_dims, const uint64_t *d)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n_dims && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%llu", i == 0 ? "" : ", ",
                               (unsigned long long)d[i]);
}

static calla_status check_dims(binder *b, const st_tensor *t, dims want)
{
    if (t->n_dims == want.n && memcmp(t->shape, want.d, want.n * sizeof *want.d) == 0)
        return CALLA_OK;
    char expected[80], found[200];
    format_dims(expected, sizeof expected, want.n, want.d);
    format_dims(found, sizeof found, t->n_dims, t->shape);
    return err_set(b->err, CALLA_ERR_UNSUPPORTED, "tensor %s: expected shape [%s], found [%s]",
                   t->name, expected, found);
}

static calla_status bad_dtype(binder *b, const st_tensor *t, const char *expected)
{
    return err_set(b->err, CALLA_ERR_UNSUPPORTED, "tensor %s: expected dtype %s, found %s", t->name,
                   expected, st_dtype_name(t->dtype));
}

static calla_status missing(binder *b, const char *module, const char *suffix)
{
    return err_set(b->err, CALLA_ERR_FORMAT,
                   "tensor %s%s is missing: a model of %u layers needs it", module, suffix,
                   b->shape->n_layers);
}

/* ---- Vectors, widened to f32 ---- */

static float *new_floats(binder *b, uint64_t n)
{
    char *p = arena_alloc(&b->w->mem, (size_t)n * sizeof(float) + MEM_ALIGN);
    if (p == NULL) {
        (void)err_set(b->err, CALLA_ERR_MEMORY, "no memory for the small tensors of the model");
        return NULL;
    }
    b->w->copied_bytes += n * sizeof(float);
    p += (MEM_ALIGN - (uintptr_t)p % MEM_ALIGN) % MEM_ALIGN;
    return (float *)(void *)p;
}

static float load_element(const st_tensor *t, uint64_t i)
{
    if (t->dtype == ST_BF16) return load_bf16(t->data + 2 * i);
    const uint32_t u = load_le32(t->data + 4 * i);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* A [n] tensor, BF16 or F32; `add` is 1 for norms stored as an offset from one. */
static calla_status bind_vector(binder *b, const char *name, uint32_t n, float add,
                                const float **out)
{
    const st_tensor *t = find(b, name, "");
    if (t == NULL) return missing(b, name, "");
    if (t->dtype != ST_BF16 && t->dtype != ST_F32) return bad_dtype(b, t, "BF16 or F32");
    const calla_status st = check_dims(b, t, (dims){1, {n}});
    if (st != CALLA_OK) return st;
    float *v = new_floats(b, n);
    if (v == NULL) return CALLA_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        v[i] = load_element(t, i) + add;
    take(b, t);
    b->w->active_bytes += t->n_bytes;
    *out = v;
    return CALLA_OK;
}

/* conv1d.weight: [C, 4, 1] in MLX's layout, [C, 1, 4] in Hugging Face's: the same bytes, and the
 * mark by which the layouts are told apart (MLX's norms hold 1 + w already). */
static calla_status bind_conv(binder *b, uint32_t i_layer, const float **out)
{
    const path name = layer_path(b, i_layer, "linear_attn.conv1d.weight");
    const uint32_t n = shape_conv_channels(b->shape);
    const st_tensor *t = find(b, name.s, "");
    if (t == NULL) return missing(b, name.s, "");
    if (t->dtype != ST_BF16 && t->dtype != ST_F32) return bad_dtype(b, t, "BF16 or F32");
    const dims want = b->w->hf_layout ? (dims){3, {n, 1, MODEL_CONV_KERNEL}}
                                      : (dims){3, {n, MODEL_CONV_KERNEL, 1}};
    const calla_status st = check_dims(b, t, want);
    if (st != CALLA_OK) return st;
    float *v = new_floats(b, (uint64_t)n * MODEL_CONV_KERNEL);
    if (v == NULL) return CALLA_ERR_MEMORY;
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t j = 0; j < MODEL_CONV_KERNEL; j++)
            v[(size_t)j * n + c] = load_element(t, (uint64_t)c * MODEL_CONV_KERNEL + j);
    take(b, t);
    b->w->active_bytes += t->n_bytes;
    *out = v;
    return CALLA_OK;
}

/* ---- Matrices ---- */

#define NO_SCALES                                                                                  \
    "tensor %s.scales: expected none because config.json does not quantise this matrix"

/* "config.json: BLOCK KEY of MODULE: expected ..."; without " of MODULE" for NULL. */
static calla_status bad_quant(const binder *b, const json_value *v, path block_key,
                              const char *module, const char *expected)
{
    const path p = module == NULL ? block_key : path_of("%s of %s", block_key.s, module);
    return shape_refuse(v, "config.json", p.s, expected, b->err);
}

/* What one block of config.json says of `module`, which has scales: affine, groups of 64, codes of
 * *bits bits. */
static calla_status quant_block(const binder *b, const json_value *block, const char *module,
                                int64_t *bits)
{
    const char *name = block->key;
    const json_value *over = json_get(block, module);
    if (over != NULL && over->type == JSON_FALSE)
        return err_set(b->err, CALLA_ERR_UNSUPPORTED, NO_SCALES, module);
    if (over != NULL && over->type != JSON_OBJECT && over->type != JSON_TRUE)
        return bad_quant(b, over, path_of("%s", name), module, "an object, true or false");
    const json_value *mode = json_get(over, "mode"), *group = json_get(over, "group_size"),
                     *v = json_get(over, "bits");
    if (group == NULL) group = json_get(block, "group_size");
    if (v == NULL) v = json_get(block, "bits");
    int64_t n = 0;
    if (mode != NULL && !json_is(mode, "affine"))
        return bad_quant(b, mode, path_of("%s mode", name), module, "affine");
    if (!json_int(group, &n) || n != MODEL_QUANT_GROUP)
        return bad_quant(b, group, path_of("%s group_size", name), module, "64");
    if (!json_int(v, bits) || (*bits != 4 && *bits != 8))
        return bad_quant(b, v, path_of("%s bits", name), module, "4 or 8");
    return CALLA_OK;
}

/* MLX writes the block twice; which of the two a reader takes must not matter. */
static calla_status quant_config(const binder *b, const char *module, int64_t *bits)
{
    calla_status st;
    int64_t twin = 0;
    if (b->quant == NULL) return err_set(b->err, CALLA_ERR_UNSUPPORTED, NO_SCALES, module);
    TRY(quant_block(b, b->quant, module, bits));
    if (b->quant_twin == NULL) return CALLA_OK;
    TRY(quant_block(b, b->quant_twin, module, &twin));
    if (twin != *bits)
        st = err_set(b->err, CALLA_ERR_UNSUPPORTED,
                     "config.json: quantization_config bits of %s: expected %lld as in "
                     "quantization, found %lld",
                     module, (long long)*bits, (long long)twin);
fail:
    return st;
}

/* [rows, cols], or [n_experts, rows, cols] for n_experts != 0. */
static dims matrix_dims(uint32_t n_experts, uint64_t rows, uint64_t cols)
{
    return n_experts == 0 ? (dims){2, {rows, cols}} : (dims){3, {n_experts, rows, cols}};
}

static calla_status bind_quantised(binder *b, const char *module, uint32_t n_experts, matrix *m,
                                   const st_tensor *scales)
{
    calla_status st;
    int64_t bits = 0;
    const st_tensor *weight = find(b, module, ".weight"), *biases = find(b, module, ".biases");
    TRY(quant_config(b, module, &bits));
    if (weight == NULL) return missing(b, module, ".weight");
    if (biases == NULL) return missing(b, module, ".biases");
    if (weight->dtype != ST_U32) return bad_dtype(b, weight, "U32");
    if (scales->dtype != ST_BF16) return bad_dtype(b, scales, "BF16");
    if (biases->dtype != ST_BF16) return bad_dtype(b, biases, "BF16");
    const dims params = matrix_dims(n_experts, m->rows, m->cols / MODEL_QUANT_GROUP);
    TRY(check_dims(b, scales, params));
    TRY(check_dims(b, biases, params));
    const uint64_t code_cols = weight->n_dims == 0 ? 0 : weight->shape[weight->n_dims - 1];
    const bool is_q8 = code_cols == m->cols / 4;
    TRY(check_dims(b, weight, matrix_dims(n_experts, m->rows, m->cols / (is_q8 ? 4 : 8))));
    if (bits != (is_q8 ? 8 : 4))
        return err_set(b->err, CALLA_ERR_UNSUPPORTED,
                       "tensor %s: expected %d-bit codes by config.json, found %d-bit by its shape",
                       weight->name, (int)bits, is_q8 ? 8 : 4);
    m->type = is_q8 ? MAT_Q8 : MAT_Q4;
    m->row_bytes = is_q8 ? m->cols : m->cols / 2;
    m->data = weight->data;
    m->scales = scales->data;
    m->biases = biases->data;
    take(b, weight);
    take(b, scales);
    take(b, biases);
fail:
    return st;
}

static calla_status bind_plain(binder *b, const char *name, uint32_t n_experts, matrix *m)
{
    const st_tensor *t = find(b, name, "");
    if (t == NULL) return missing(b, name, "");
    if (t->dtype != ST_BF16 && t->dtype != ST_F32) return bad_dtype(b, t, "BF16 or F32");
    const calla_status st = check_dims(b, t, matrix_dims(n_experts, m->rows, m->cols));
    if (st != CALLA_OK) return st;
    m->type = t->dtype == ST_BF16 ? MAT_BF16 : MAT_F32;
    m->row_bytes = (uint64_t)m->cols * st_dtype_bytes(t->dtype);
    m->data = t->data;
    take(b, t);
    return CALLA_OK;
}

/* Any matrix may be 4-bit, 8-bit or plain: the tensors decide, config.json has to agree. */
static calla_status bind_any(binder *b, const char *module, uint32_t n_experts, uint32_t rows,
                             uint32_t cols, matrix *m)
{
    *m = (matrix){.rows = rows, .cols = cols};
    const st_tensor *scales = find(b, module, ".scales");
    if (scales != NULL) return bind_quantised(b, module, n_experts, m, scales);
    return bind_plain(b, path_of("%s.weight", module).s, n_experts, m);
}

/* A matrix that every token reads as a whole. */
static calla_status bind_matrix(binder *b, const char *module, uint32_t rows, uint32_t cols,
                                matrix *m)
{
    const uint64_t before = b->w->mapped_bytes;
    const calla_status st = bind_any(b, module, 0, rows, cols, m);
    b->w->active_bytes += b->w->mapped_bytes - before;
    return st;
}

static void set_strides(expert_bank *bank)
{
    const matrix *m = &bank->first;
    bank->data_stride = m->rows * m->row_bytes;
    bank->param_stride = m->scales == NULL ? 0 : (uint64_t)m->rows * (m->cols / 64) * 2;
}

static calla_status bind_bank(binder *b, const char *module, uint32_t rows, uint32_t cols,
                              expert_bank *bank)
{
    const calla_status st = bind_any(b, module, b->shape->n_experts, rows, cols, &bank->first);
    set_strides(bank);
    return st;
}

/* Hugging Face: one tensor per layer holds each expert's gate rows, then its up rows. */
static calla_status bind_fused(binder *b, uint32_t i_layer, layer_weights *l)
{
    const model_shape *s = b->shape;
    const path gate_up = layer_path(b, i_layer, "mlp.experts.gate_up_proj");
    const path down = layer_path(b, i_layer, "mlp.experts.down_proj");
    matrix m = {.rows = 2 * s->expert_width, .cols = s->hidden};
    calla_status st = bind_plain(b, gate_up.s, s->n_experts, &m);
    if (st != CALLA_OK) return st;
    l->gate.first = m;
    l->gate.first.rows = s->expert_width;
    l->gate.data_stride = m.rows * m.row_bytes;
    l->up = l->gate;
    l->up.first.data += s->expert_width * m.row_bytes;
    l->down.first = (matrix){.rows = s->hidden, .cols = s->expert_width};
    st = bind_plain(b, down.s, s->n_experts, &l->down.first);
    set_strides(&l->down);
    return st;
}

static calla_status bind_experts(binder *b, uint32_t i_layer, layer_weights *l)
{
    const model_shape *s = b->shape;
    const uint64_t before = b->w->mapped_bytes;
    calla_status st;
    if (find(b, layer_path(b, i_layer, "mlp.experts.gate_up_proj").s, "") != NULL) {
        TRY(bind_fused(b, i_layer, l));
    } else {
        TRY(bind_bank(b, layer_path(b, i_layer, "mlp.switch_mlp.gate_proj").s, s->expert_width,
                      s->hidden, &l->gate));
        TRY(bind_bank(b, layer_path(b, i_layer, "mlp.switch_mlp.up_proj").s, s->expert_width,
                      s->hidden, &l->up));
        TRY(bind_bank(b, layer_path(b, i_layer, "mlp.switch_mlp.down_proj").s, s->hidden,
                      s->expert_width, &l->down));
    }
    b->w->active_bytes += (b->w->mapped_bytes - before) / s->n_experts * s->n_experts_used;
fail:
    return st;
}

/* ---- Layers ---- */

static calla_status layer_matrix(binder *b, uint32_t i_layer, const char *name, uint32_t rows,
                                 uint32_t cols, matrix *m)
{
    return bind_matrix(b, layer_path(b, i_layer, name).s, rows, cols, m);
}

static calla_status layer_vector(binder *b, uint32_t i_layer, const char *name, uint32_t n,
                                 float add, const float **out)
{
    return bind_vector(b, layer_path(b, i_layer, name).s, n, add, out);
}

static calla_status bind_gdn(binder *b, uint32_t i, layer_weights *l)
{
    const model_shape *s = b->shape;
    const uint32_t v_width = shape_gdn_v_width(s), heads = s->gdn_v_heads;
    calla_status st;
    TRY(layer_matrix(b, i, "linear_attn.in_proj_qkv", shape_conv_channels(s), s->hidden,
                     &l->in_qkv));
    TRY(layer_matrix(b, i, "linear_attn.in_proj_z", v_width, s->hidden, &l->in_z));
    TRY(layer_matrix(b, i, "linear_attn.in_proj_b", heads, s->hidden, &l->in_b));
    TRY(layer_matrix(b, i, "linear_attn.in_proj_a", heads, s->hidden, &l->in_a));
    TRY(layer_matrix(b, i, "linear_attn.out_proj", s->hidden, v_width, &l->gdn_out));
    TRY(bind_conv(b, i, &l->conv));
    TRY(layer_vector(b, i, "linear_attn.A_log", heads, 0, &l->a_log));
    TRY(layer_vector(b, i, "linear_attn.dt_bias", heads, 0, &l->dt_bias));
    TRY(layer_vector(b, i, "linear_attn.norm.weight", s->gdn_v_dim, 0, &l->gdn_norm));
fail:
    return st;
}

static calla_status bind_attention(binder *b, uint32_t i, float add, layer_weights *l)
{
    const model_shape *s = b->shape;
    const uint32_t q = shape_q_width(s), kv = shape_kv_width(s);
    calla_status st;
    TRY(layer_matrix(b, i, "self_attn.q_proj", 2 * q, s->hidden, &l->q));
    TRY(layer_matrix(b, i, "self_attn.k_proj", kv, s->hidden, &l->k));
    TRY(layer_matrix(b, i, "self_attn.v_proj", kv, s->hidden, &l->v));
    TRY(layer_matrix(b, i, "self_attn.o_proj", s->hidden, q, &l->o));
    TRY(layer_vector(b, i, "self_attn.q_norm.weight", s->head_dim, add, &l->q_norm));
    TRY(layer_vector(b, i, "self_attn.k_norm.weight", s->head_dim, add, &l->k_norm));
fail:
    return st;
}

static calla_status bind_layer(binder *b, uint32_t i, float add, layer_weights *l)
{
    const model_shape *s = b->shape;
    calla_status st;
    TRY(layer_vector(b, i, "input_layernorm.weight", s->hidden, add, &l->input_norm));
    TRY(layer_vector(b, i, "post_attention_layernorm.weight", s->hidden, add, &l->post_norm));
    TRY(shape_is_full(s, i) ? bind_attention(b, i, add, l) : bind_gdn(b, i, l));
    TRY(layer_matrix(b, i, "mlp.gate", s->n_experts, s->hidden, &l->router));
    TRY(bind_experts(b, i, l));
    TRY(layer_matrix(b, i, "mlp.shared_expert.gate_proj", s->shared_width, s->hidden,
                     &l->shared_gate));
    TRY(layer_matrix(b, i, "mlp.shared_expert.up_proj", s->shared_width, s->hidden, &l->shared_up));
    TRY(layer_matrix(b, i, "mlp.shared_expert.down_proj", s->hidden, s->shared_width,
                     &l->shared_down));
    TRY(layer_matrix(b, i, "mlp.shared_expert_gate", 1, s->hidden, &l->shared_router));
fail:
    return st;
}

/* ---- The whole ---- */

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool starts_with_any(const char *s, const char *const *prefixes)
{
    for (; *prefixes != NULL; prefixes++)
        if (starts_with(s, *prefixes)) return true;
    return false;
}

static bool is_vision(const char *name)
{
    static const char *const prefixes[] = {"vision_tower.", "model.visual.", "visual.", NULL};
    return starts_with_any(name, prefixes);
}

static bool is_mtp(const char *name)
{
    static const char *const prefixes[] = {"mtp.", "language_model.mtp.", "model.mtp.",
                                           "language_model.model.mtp.", NULL};
    return starts_with_any(name, prefixes);
}

/* Everything that was not bound is vision, MTP, or a reason to refuse. */
static calla_status check_rest(binder *b)
{
    const size_t n = checkpoint_count(b->ck);
    for (size_t i = 0; i < n; i++) {
        const st_tensor *t = checkpoint_at(b->ck, i);
        if (b->used[i]) continue;
        if (is_vision(t->name))
            b->w->n_skipped_vision++;
        else if (is_mtp(t->name))
            b->w->n_skipped_mtp++;
        else
            return err_set(b->err, CALLA_ERR_UNSUPPORTED,
                           "tensor %s has no place in a model of %u layers", t->name,
                           b->shape->n_layers);
        b->w->skipped_bytes += t->n_bytes;
    }
    return CALLA_OK;
}

/* MLX: language_model.model.X and language_model.lm_head; Hugging Face: model.language_model.X and
 * lm_head. */
static calla_status find_names(binder *b)
{
    static const char mlx[] = "language_model.model.", hf[] = "model.language_model.";
    const bool is_mlx = find(b, mlx, "embed_tokens.weight") != NULL;
    const bool is_hf = find(b, hf, "embed_tokens.weight") != NULL;
    if (is_mlx == is_hf)
        return err_set(b->err, CALLA_ERR_UNSUPPORTED,
                       "expected a tensor %sembed_tokens.weight or %sembed_tokens.weight, found %s",
                       mlx, hf, is_mlx ? "both" : "neither");
    b->prefix = is_mlx ? mlx : hf;
    b->lm_head = is_mlx ? "language_model.lm_head" : "lm_head";
    return CALLA_OK;
}

/* A block is absent, or MLX's affine quantisation. */
static calla_status find_block(binder *b, const char *name, const json_value **out)
{
    const json_value *q = json_get(checkpoint_config(b->ck), name);
    const json_value *method = json_get(q, "quant_method"), *mode = json_get(q, "mode");
    *out = NULL;
    if (q == NULL || q->type == JSON_NULL) return CALLA_OK;
    if (q->type != JSON_OBJECT) return bad_quant(b, q, path_of("%s", name), NULL, "an object");
    if (method != NULL)
        return bad_quant(b, method, path_of("%s quant_method", name), NULL, "none, as MLX writes");
    if (mode != NULL && !json_is(mode, "affine"))
        return bad_quant(b, mode, path_of("%s mode", name), NULL, "affine");
    *out = q;
    return CALLA_OK;
}

static calla_status find_quantization(binder *b)
{
    calla_status st;
    TRY(find_block(b, "quantization", &b->quant));
    TRY(find_block(b, "quantization_config", &b->quant_twin));
    if (b->quant != NULL) return CALLA_OK;
    b->quant = b->quant_twin;
    b->quant_twin = NULL;
fail:
    return st;
}

static calla_status bind_all(binder *b)
{
    const model_shape *s = b->shape;
    model_weights *w = b->w;
    calla_status st;
    TRY(find_quantization(b));
    TRY(find_names(b));
    w->layers = arena_alloc(&w->mem, s->n_layers * sizeof *w->layers);
    if (w->layers == NULL) return err_set(b->err, CALLA_ERR_MEMORY, "no memory for the layers");
    TRY(bind_any(b, path_of("%sembed_tokens", b->prefix).s, 0, s->n_vocab, s->hidden, &w->embed));
    w->active_bytes += w->mapped_bytes / s->n_vocab; /* one row */
    TRY(bind_matrix(b, b->lm_head, s->n_vocab, s->hidden, &w->lm_head));
    /* Layer 0 is a Gated DeltaNet layer (full_interval >= 2): its conv1d decides the layout. */
    const path conv = layer_path(b, 0, "linear_attn.conv1d.weight");
    const st_tensor *t = find(b, conv.s, "");
    if (t == NULL) return missing(b, conv.s, "");
    w->hf_layout = t->n_dims == 3 && t->shape[2] == MODEL_CONV_KERNEL;
    const float add = w->hf_layout ? 1.0f : 0.0f;
    TRY(bind_vector(b, path_of("%snorm.weight", b->prefix).s, s->hidden, add, &w->final_norm));
    for (uint32_t i = 0; i < s->n_layers; i++)
        TRY(bind_layer(b, i, add, &w->layers[i]));
    st = check_rest(b);
fail:
    return st;
}

calla_status weights_bind(model_weights *out, const checkpoint *ck, const model_shape *shape,
                          calla_error *err)
{
    memset(out, 0, sizeof *out);
    binder b = {.w = out, .ck = ck, .shape = shape, .err = err};
    b.used = mem_array(checkpoint_count(ck), sizeof *b.used);
    if (b.used == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to bind the weights");
    const calla_status st = bind_all(&b);
    mem_free(b.used);
    if (st != CALLA_OK) weights_unbind(out);
    return st;
}

void weights_unbind(model_weights *w)
{
    if (w == NULL) return;
    arena_deinit(&w->mem);
    memset(w, 0, sizeof *w);
}

/* ---- Groups ---- */

/* The first row whose text occurs in a tensor's name says its group. */
static const struct {
    const char *part;
    uint32_t group;
} group_rules[] = {
    {"embed_tokens.", 0},        {"lm_head.", 1},
    {".linear_attn.in_proj", 2}, {".linear_attn.out_proj", 2},
    {".linear_attn.", 3},        {".self_attn.q_norm.", 6},
    {".self_attn.k_norm.", 6},   {".self_attn.", 4},
    {".mlp.gate.", 7},           {".mlp.shared_expert_gate.", 8},
    {".mlp.shared_expert.", 9},  {".mlp.switch_mlp.", 10},
    {".mlp.experts.", 10},       {"norm.", 5},
};

void weights_groups(const checkpoint *ck, weight_group out[WEIGHT_GROUPS])
{
    static const char *const names[WEIGHT_GROUPS] = {
        "embed_tokens",          "lm_head",
        "GDN projections",       "GDN small",
        "attention projections", "layer norms and final norm",
        "q_norm, k_norm",        "router gate",
        "shared_expert_gate",    "shared expert",
        "routed experts",
    };
    for (uint32_t i = 0; i < WEIGHT_GROUPS; i++)
        out[i] = (weight_group){.name = names[i]};
    const size_t n = checkpoint_count(ck);
    for (size_t i = 0; i < n; i++) {
        const st_tensor *t = checkpoint_at(ck, i);
        if (is_vision(t->name) || is_mtp(t->name)) continue;
        for (size_t r = 0; r < sizeof group_rules / sizeof *group_rules; r++) {
            if (strstr(t->name, group_rules[r].part) == NULL) continue;
            out[group_rules[r].group].n_tensors++;
            out[group_rules[r].group].n_bytes += t->n_bytes;
            break;
        }
    }
}
