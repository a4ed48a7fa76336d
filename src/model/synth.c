#include "model/synth.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/ck.h"
#include "base/file.h"
#include "format/ckpt_writer.h"

typedef enum item_kind { CODES, SCALES, BIASES, NEAR_ONE, CONV, A_LOG, DT_BIAS } item_kind;

/* What a tensor is filled with. */
typedef struct item {
    item_kind kind;
    uint64_t key; /* of its random numbers; scales and biases of a module share one */
    float scale;  /* SCALES, BIASES: mean size of a scale */
    float middle; /* BIASES: the middle code */
} item;

typedef struct plan {
    const model_shape *shape;
    uint64_t seed;
    cw_list list;
    item *items; /* [list.n] */
    size_t cap;
    bool failed;
} plan;

static void plan_free(plan *p)
{
    mem_free(p->items);
    mem_free(p->list.items);
}

/* ---- Random numbers ---- */

/* The finaliser of splitmix64: a bijection that mixes well. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t random_at(uint64_t key, uint64_t i)
{
    return mix(key + (i + 1) * 0x9e3779b97f4a7c15u);
}

/* [0, 1), of the upper bits. */
static float uniform_of(uint64_t r)
{
    return (float)(r >> 40) * 0x1p-24f;
}

/* FNV-1a over the name. */
static uint64_t key_of(uint64_t seed, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return mix(h ^ mix(seed));
}

/* ---- The tensors ---- */

static item *add_item(plan *p, const char *name, item_kind kind, const char *key_name,
                      uint32_t n_dims, const uint64_t *dims)
{
    if (p->list.n == p->cap) {
        const size_t cap = p->cap == 0 ? 256 : 2 * p->cap;
        item *items = mem_resize(p->items, cap * sizeof *items);
        if (items == NULL) {
            p->failed = true;
            return NULL;
        }
        p->items = items;
        p->cap = cap;
    }
    if (!cw_add(&p->list, name, kind == CODES ? ST_U32 : ST_BF16, n_dims, dims)) {
        p->failed = true;
        return NULL;
    }
    item *it = &p->items[p->list.n - 1];
    *it = (item){.kind = kind, .key = key_of(p->seed, key_name)};
    return it;
}

/* Codes, scales, biases. n_experts 0: a plain matrix. `gain`: deviation of y for inputs of
 * deviation 1. */
static void add_matrix(plan *p, const char *module, uint32_t bits, uint32_t n_experts,
                       uint32_t rows, uint32_t cols, float gain)
{
    char name[96], key[96];
    const uint32_t first = n_experts == 0 ? 1 : 0; /* dims used: first .. 2 */
    uint64_t dims[3] = {n_experts, rows, cols * bits / 32};
    (void)snprintf(name, sizeof name, "%s.weight", module);
    (void)add_item(p, name, CODES, name, 3 - first, dims + first);
    dims[2] = cols / MODEL_QUANT_GROUP;
    /* n equally likely codes have deviation sqrt((n^2 - 1) / 12). */
    const float n = (float)(1u << bits);
    const float scale = gain / sqrtf((float)cols) / sqrtf((n * n - 1) / 12);
    (void)snprintf(key, sizeof key, "%s.scales", module);
    for (int k = 0; k < 2; k++) {
        (void)snprintf(name, sizeof name, "%s.%s", module, k == 0 ? "scales" : "biases");
        item *it = add_item(p, name, k == 0 ? SCALES : BIASES, key, 3 - first, dims + first);
        if (it == NULL) return;
        it->scale = scale;
        it->middle = (n - 1) / 2;
    }
}

static void add_vector(plan *p, const char *name, item_kind kind, uint32_t n)
{
    const uint64_t dims[1] = {n};
    (void)add_item(p, name, kind, name, 1, dims);
}

/* "language_model.model.layers.I.NAME" */
typedef struct layer_name {
    char s[80];
} layer_name;

static layer_name in_layer(uint32_t i, const char *name)
{
    layer_name out;
    (void)snprintf(out.s, sizeof out.s, "language_model.model.layers.%u.%s", i, name);
    return out;
}

static void add_gdn(plan *p, uint32_t i)
{
    const model_shape *s = p->shape;
    const uint32_t v = shape_gdn_v_width(s), channels = shape_conv_channels(s);
    const uint32_t h = s->gdn_v_heads;
    add_matrix(p, in_layer(i, "linear_attn.in_proj_qkv").s, 4, 0, channels, s->hidden, 1);
    add_matrix(p, in_layer(i, "linear_attn.in_proj_z").s, 4, 0, v, s->hidden, 1);
    add_matrix(p, in_layer(i, "linear_attn.in_proj_b").s, 4, 0, h, s->hidden, 1);
    add_matrix(p, in_layer(i, "linear_attn.in_proj_a").s, 4, 0, h, s->hidden, 1);
    add_matrix(p, in_layer(i, "linear_attn.out_proj").s, 4, 0, s->hidden, v, 1);
    const layer_name conv = in_layer(i, "linear_attn.conv1d.weight");
    const uint64_t dims[3] = {channels, s->conv_kernel, 1};
    (void)add_item(p, conv.s, CONV, conv.s, 3, dims);
    add_vector(p, in_layer(i, "linear_attn.A_log").s, A_LOG, h);
    add_vector(p, in_layer(i, "linear_attn.dt_bias").s, DT_BIAS, h);
    add_vector(p, in_layer(i, "linear_attn.norm.weight").s, NEAR_ONE, s->gdn_v_dim);
}

static void add_attention(plan *p, uint32_t i)
{
    const model_shape *s = p->shape;
    const uint32_t q = shape_q_width(s), kv = shape_kv_width(s);
    add_matrix(p, in_layer(i, "self_attn.q_proj").s, 4, 0, 2 * q, s->hidden, 1);
    add_matrix(p, in_layer(i, "self_attn.k_proj").s, 4, 0, kv, s->hidden, 1);
    add_matrix(p, in_layer(i, "self_attn.v_proj").s, 4, 0, kv, s->hidden, 1);
    add_matrix(p, in_layer(i, "self_attn.o_proj").s, 4, 0, s->hidden, q, 1);
    add_vector(p, in_layer(i, "self_attn.q_norm.weight").s, NEAR_ONE, s->head_dim);
    add_vector(p, in_layer(i, "self_attn.k_norm.weight").s, NEAR_ONE, s->head_dim);
}

static void add_moe(plan *p, uint32_t i)
{
    const model_shape *s = p->shape;
    const uint32_t e = s->n_experts, h = s->hidden, w = s->expert_width, sw = s->shared_width;
    add_matrix(p, in_layer(i, "mlp.gate").s, 8, 0, e, h, 1.5f);
    add_matrix(p, in_layer(i, "mlp.switch_mlp.gate_proj").s, 4, e, w, h, 1);
    add_matrix(p, in_layer(i, "mlp.switch_mlp.up_proj").s, 4, e, w, h, 1);
    add_matrix(p, in_layer(i, "mlp.switch_mlp.down_proj").s, 4, e, h, w, 1);
    add_matrix(p, in_layer(i, "mlp.shared_expert.gate_proj").s, 4, 0, sw, h, 1);
    add_matrix(p, in_layer(i, "mlp.shared_expert.up_proj").s, 4, 0, sw, h, 1);
    add_matrix(p, in_layer(i, "mlp.shared_expert.down_proj").s, 4, 0, h, sw, 1);
    add_matrix(p, in_layer(i, "mlp.shared_expert_gate").s, 8, 0, 1, h, 1);
}

static bool plan_make(plan *p, const model_shape *s, uint64_t seed)
{
    *p = (plan){.shape = s, .seed = seed};
    /* An embedding row has deviation 1; logits about 2. */
    add_matrix(p, "language_model.model.embed_tokens", 4, 0, s->n_vocab, s->hidden,
               sqrtf((float)s->hidden));
    add_matrix(p, "language_model.lm_head", 4, 0, s->n_vocab, s->hidden, 2);
    add_vector(p, "language_model.model.norm.weight", NEAR_ONE, s->hidden);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        add_vector(p, in_layer(i, "input_layernorm.weight").s, NEAR_ONE, s->hidden);
        add_vector(p, in_layer(i, "post_attention_layernorm.weight").s, NEAR_ONE, s->hidden);
        if (shape_is_full(s, i))
            add_attention(p, i);
        else
            add_gdn(p, i);
        add_moe(p, i);
    }
    return !p->failed;
}

/* ---- Values ---- */

static void fill_codes(const item *it, uint64_t offset, size_t n, uint8_t *out)
{
    for (size_t k = 0; k + 8 <= n; k += 8) {
        const uint64_t r = random_at(it->key, (offset + k) / 8);
        for (unsigned b = 0; b < 8; b++)
            out[k + b] = (uint8_t)(r >> (8 * b));
    }
}

/* Of either sign, a quarter around the mean size. */
static float scale_of(const item *it, uint64_t r)
{
    const float size = it->scale * (0.75f + 0.5f * uniform_of(r));
    return bf16_to_f32(f32_to_bf16((r & 1) != 0 ? -size : size));
}

static float value_at(const item *it, uint64_t i)
{
    const uint64_t r = random_at(it->key, i);
    const float u = uniform_of(r);
    switch (it->kind) {
    case SCALES:
        return scale_of(it, r);
    case BIASES:
        return -it->middle * scale_of(it, r);
    case NEAR_ONE:
        return 0.8f + 0.4f * u;
    case CONV:
        return (2 * u - 1) * 0.866f; /* deviation 1/2: four taps keep the deviation */
    case A_LOG:
        return logf(1 + 15 * u);
    case DT_BIAS: { /* softplus gives 0.001 .. 0.1 */
        const float dt = expf(logf(0.001f) + u * logf(100));
        return logf(expm1f(dt));
    }
    case CODES:
        break;
    }
    return 0;
}

static void fill(const item *it, uint64_t offset, size_t n, uint8_t *out)
{
    if (it->kind == CODES) {
        fill_codes(it, offset, n, out);
        return;
    }
    for (size_t k = 0; k + 2 <= n; k += 2) {
        const uint16_t h = f32_to_bf16(value_at(it, (offset + k) / 2));
        out[k] = (uint8_t)h;
        out[k + 1] = (uint8_t)(h >> 8);
    }
}

/* ---- Writing ---- */

static void fill_tensor(void *user, size_t i, uint64_t offset, size_t n, uint8_t *out)
{
    const plan *p = user;
    fill(&p->items[i], offset, n, out);
}

/* The small files; texts[] are to be freed. */
#define N_TEXTS 5

static calla_status make_texts(strbuf texts[N_TEXTS], cw_file files[N_TEXTS], size_t *n,
                               const plan *p, const synth_options *o, calla_error *err)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    const model_shape *s = p->shape;
    bool ok = synth_config(&texts[0], s) && synth_generation_config(&texts[1], s) &&
              synth_tokenizer(&texts[2], synth_n_tokens(s)) && synth_tokenizer_config(&texts[3], s);
    *n = 4;
    if (ok && o->chat_template != NULL) {
        char *data = NULL;
        size_t n_data = 0;
        const calla_status st = file_read(o->chat_template, 1u << 20, &data, &n_data, err);
        if (st != CALLA_OK) return st;
        ok = strbuf_append(&texts[4], data, n_data);
        mem_free(data);
        *n = 5;
    }
    if (!ok) return err_set(err, CALLA_ERR_MEMORY, "no memory for the JSON files");
    for (size_t i = 0; i < *n; i++)
        files[i] = (cw_file){names[i], texts[i].data, texts[i].len};
    return CALLA_OK;
}

calla_status synth_write(const char *out, const synth_options *options, uint64_t *n_bytes,
                         calla_error *err)
{
    model_shape shape;
    plan p;
    strbuf texts[N_TEXTS] = {0};
    cw_file files[N_TEXTS];
    cw_options o = {.fill = fill_tensor,
                    .user = &p,
                    .files = files,
                    .n_threads = options->n_threads,
                    .odd = true,
                    .progress = options->progress,
                    .progress_user = options->user};
    calla_status st = synth_shape(&shape, options->shape, options->n_layers, err);
    if (st != CALLA_OK) return st;
    if (!plan_make(&p, &shape, options->seed))
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the list of tensors");
    if (st == CALLA_OK) st = make_texts(texts, files, &o.n_files, &p, options, err);
    if (st == CALLA_OK) st = ckpt_write(out, &p.list, &o, err);
    if (n_bytes != NULL) *n_bytes = p.list.n_bytes;
    for (int i = 0; i < N_TEXTS; i++)
        strbuf_deinit(&texts[i]);
    plan_free(&p);
    return st;
}

/* ---- Shapes ---- */

/* The demonstration model: the same in everything that is not a size. */
static void make_nano(model_shape *s)
{
    s->n_layers = 8;
    s->hidden = 256;
    s->n_vocab = 4096;
    s->max_context = 32768;
    s->n_heads = 8;
    s->n_kv_heads = 1;
    s->gdn_k_heads = 2;
    s->gdn_v_heads = 4;
    s->n_experts = 32;
    s->expert_width = 64;
    s->shared_width = 64;
}

calla_status synth_shape(model_shape *out, const char *name, uint32_t n_layers, calla_error *err)
{
    const bool slice = strcmp(name, "slice") == 0, nano = strcmp(name, "nano") == 0;
    if (!slice && !nano && strcmp(name, "full") != 0)
        return err_set(err, CALLA_ERR_ARGUMENT, "shape: expected full, slice or nano, found %.40s",
                       name);
    *out = shape_35b;
    if (nano) make_nano(out);
    if (slice) out->n_layers = 8;
    if (n_layers != 0) out->n_layers = n_layers;
    if (out->n_layers > MODEL_LAYERS_MAX)
        return err_set(err, CALLA_ERR_ARGUMENT, "layers: expected at most %u, found %u",
                       MODEL_LAYERS_MAX, out->n_layers);
    return CALLA_OK;
}

uint64_t synth_tensor_bytes(const model_shape *shape)
{
    plan p;
    const bool ok = plan_make(&p, shape, 0);
    const uint64_t n = p.list.n_bytes;
    plan_free(&p);
    return ok ? n : 0;
}
