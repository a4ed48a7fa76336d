#include "model/quantize.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/ck.h"
#include "format/affine.h"
#include "format/ckpt_writer.h"
#include "model/shape.h"

static_assert(AFFINE_GROUP == MODEL_QUANT_GROUP, "one size of groups");

#define HF_PREFIX  "model.language_model."
#define MLX_PREFIX "language_model.model."
#define GROUP_MAX  64u /* bytes of a group's codes */
#define NO_TENSOR  SIZE_MAX

typedef enum rule { CODES, SCALES, BIASES, PLAIN, PLUS_ONE } rule;

/* Where a tensor of the new checkpoint comes from: row r of it is row
 * r / rows * src_rows + row0 + r % rows of the source. */
typedef struct job {
    const st_tensor *src;
    rule rule;
    uint32_t bits;
    uint64_t cols, rows, src_rows, row0;
} job;

typedef struct quantizer {
    const checkpoint *ck;
    const quantize_options *options;
    quantize_result *result;
    calla_error *err;
    model_shape shape;
    cw_list list;
    job *jobs; /* [list.n] */
    size_t cap;
    bool *used;         /* [checkpoint_count], by place in the sorted table */
    strbuf overrides;   /* of the quantization block: what is not 4-bit */
    _Atomic size_t bad; /* job whose source is not finite, or NO_TENSOR */
} quantizer;

typedef struct name {
    char s[CKPT_WRITER_NAME_MAX];
} name;

static name join(const char *a, const char *b)
{
    name n;
    (void)snprintf(n.s, sizeof n.s, "%s%s", a, b);
    return n;
}

/* ---- What there must be ---- */

static size_t place_of(const quantizer *q, const st_tensor *t)
{
    size_t lo = 0, hi = checkpoint_count(q->ck);
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (strcmp(checkpoint_at(q->ck, mid)->name, t->name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool is_float(st_dtype t)
{
    return t == ST_BF16 || t == ST_F16 || t == ST_F32;
}

/* The source's tensor, of the shape dims. */
static calla_status need(quantizer *q, const char *source, uint32_t n_dims, const uint64_t *dims,
                         const st_tensor **out)
{
    const st_tensor *t = checkpoint_find(q->ck, source);
    if (t == NULL)
        return err_set(q->err, CALLA_ERR_UNSUPPORTED,
                       "expected a tensor %s (by config.json), found none", source);
    if (!is_float(t->dtype))
        return err_set(q->err, CALLA_ERR_UNSUPPORTED,
                       "tensor %s: expected BF16, F16 or F32, found %s", source,
                       st_dtype_name(t->dtype));
    bool same = t->n_dims == n_dims;
    for (uint32_t d = 0; same && d < n_dims; d++)
        same = t->shape[d] == dims[d];
    if (!same) {
        char want[64] = "", found[64] = "";
        for (uint32_t d = 0; d < n_dims; d++)
            (void)snprintf(want + strlen(want), sizeof want - strlen(want), "%s%llu",
                           d == 0 ? "" : ", ", (unsigned long long)dims[d]);
        for (uint32_t d = 0; d < t->n_dims; d++)
            (void)snprintf(found + strlen(found), sizeof found - strlen(found), "%s%llu",
                           d == 0 ? "" : ", ", (unsigned long long)t->shape[d]);
        return err_set(q->err, CALLA_ERR_UNSUPPORTED,
                       "tensor %s: expected shape [%s] (by config.json), found [%s]", source, want,
                       found);
    }
    bool *used = &q->used[place_of(q, t)];
    if (!*used) q->result->bytes_in += t->n_bytes;
    *used = true;
    *out = t;
    return CALLA_OK;
}

static calla_status add(quantizer *q, const char *target, st_dtype dtype, uint32_t n_dims,
                        const uint64_t *dims, const job *j)
{
    if (q->list.n == q->cap) {
        const size_t cap = q->cap == 0 ? 256 : 2 * q->cap;
        job *jobs = mem_resize(q->jobs, cap * sizeof *jobs);
        if (jobs == NULL) return err_set(q->err, CALLA_ERR_MEMORY, "no memory for %s", target);
        q->jobs = jobs;
        q->cap = cap;
    }
    if (!cw_add(&q->list, target, dtype, n_dims, dims))
        return err_set(q->err, CALLA_ERR_MEMORY, "no memory for %s", target);
    q->jobs[q->list.n - 1] = *j;
    return CALLA_OK;
}

/* The three tensors of a quantised module; n_experts 0: a plain matrix. */
static calla_status add_module(quantizer *q, const char *module, uint64_t n_experts, const job *of)
{
    const uint32_t first = n_experts == 0 ? 1 : 0; /* dims used: first .. 2 */
    static const char *const suffix[] = {".weight", ".scales", ".biases"};
    if (of->cols % AFFINE_GROUP != 0)
        return err_set(q->err, CALLA_ERR_UNSUPPORTED,
                       "tensor %s: expected a multiple of %u columns, found %llu", of->src->name,
                       AFFINE_GROUP, (unsigned long long)of->cols);
    for (int k = 0; k < 3; k++) {
        const uint64_t n = k == 0 ? of->cols * of->bits / 32 : of->cols / AFFINE_GROUP;
        const uint64_t dims[3] = {n_experts, of->rows, n};
        job j = *of;
        j.rule = k == 0 ? CODES : k == 1 ? SCALES : BIASES;
        const calla_status st = add(q, join(module, suffix[k]).s, k == 0 ? ST_U32 : ST_BF16,
                                    3 - first, dims + first, &j);
        if (st != CALLA_OK) return st;
    }
    if (of->bits != 4 &&
        !strbuf_printf(&q->overrides, ", \"%s\": {\"group_size\": %u, \"bits\": %u}", module,
                       AFFINE_GROUP, of->bits))
        return err_set(q->err, CALLA_ERR_MEMORY, "no memory for config.json");
    return CALLA_OK;
}

/* ---- The layers ---- */

/* Where the parts of a block are: "model.language_model.layers.3." and the like. */
typedef struct block {
    char from[64], to[64];
    uint32_t bits, gate_bits;
} block;

static calla_status matrix(quantizer *q, const block *b, const char *part, uint64_t rows,
                           uint64_t cols, uint32_t bits)
{
    job j = {.bits = bits, .cols = cols, .rows = rows, .src_rows = rows};
    const uint64_t dims[2] = {rows, cols};
    const calla_status st = need(q, join(join(b->from, part).s, ".weight").s, 2, dims, &j.src);
    return st != CALLA_OK ? st : add_module(q, join(b->to, part).s, 0, &j);
}

static calla_status vector(quantizer *q, const block *b, const char *part, uint64_t n, rule r)
{
    job j = {.rule = r, .cols = n, .rows = 1, .src_rows = 1};
    const calla_status st = need(q, join(b->from, part).s, 1, &n, &j.src);
    return st != CALLA_OK ? st : add(q, join(b->to, part).s, ST_BF16, 1, &n, &j);
}

static calla_status add_gdn(quantizer *q, const block *b)
{
    const model_shape *s = &q->shape;
    const uint64_t v = shape_gdn_v_width(s), channels = shape_conv_channels(s);
    const uint64_t hf[3] = {channels, 1, s->conv_kernel}, mlx[3] = {channels, s->conv_kernel, 1};
    job conv = {.rule = PLAIN, .cols = channels * s->conv_kernel, .rows = 1, .src_rows = 1};
    calla_status st;
    TRY(matrix(q, b, "linear_attn.in_proj_qkv", channels, s->hidden, b->bits));
    TRY(matrix(q, b, "linear_attn.in_proj_z", v, s->hidden, b->bits));
    TRY(matrix(q, b, "linear_attn.in_proj_b", s->gdn_v_heads, s->hidden, b->bits));
    TRY(matrix(q, b, "linear_attn.in_proj_a", s->gdn_v_heads, s->hidden, b->bits));
    TRY(matrix(q, b, "linear_attn.out_proj", s->hidden, v, b->bits));
    TRY(need(q, join(b->from, "linear_attn.conv1d.weight").s, 3, hf, &conv.src));
    TRY(add(q, join(b->to, "linear_attn.conv1d.weight").s, ST_BF16, 3, mlx, &conv));
    TRY(vector(q, b, "linear_attn.A_log", s->gdn_v_heads, PLAIN));
    TRY(vector(q, b, "linear_attn.dt_bias", s->gdn_v_heads, PLAIN));
    st = vector(q, b, "linear_attn.norm.weight", s->gdn_v_dim, PLAIN);
fail:
    return st;
}

static calla_status add_attention(quantizer *q, const block *b)
{
    const model_shape *s = &q->shape;
    const uint64_t width = shape_q_width(s), kv = shape_kv_width(s);
    calla_status st;
    TRY(matrix(q, b, "self_attn.q_proj", 2 * width, s->hidden, b->bits));
    TRY(matrix(q, b, "self_attn.k_proj", kv, s->hidden, b->bits));
    TRY(matrix(q, b, "self_attn.v_proj", kv, s->hidden, b->bits));
    TRY(matrix(q, b, "self_attn.o_proj", s->hidden, width, b->bits));
    TRY(vector(q, b, "self_attn.q_norm.weight", s->head_dim, PLUS_ONE));
    st = vector(q, b, "self_attn.k_norm.weight", s->head_dim, PLUS_ONE);
fail:
    return st;
}

/* gate_up_proj has an expert's gate rows, then its up rows. */
static calla_status add_experts(quantizer *q, const block *b)
{
    const model_shape *s = &q->shape;
    const uint64_t e = s->n_experts, w = s->expert_width, h = s->hidden;
    const uint64_t up[3] = {e, 2 * w, h}, down[3] = {e, h, w};
    job j = {.bits = b->bits, .cols = h, .rows = w, .src_rows = 2 * w};
    calla_status st;
    TRY(need(q, join(b->from, "mlp.experts.gate_up_proj").s, 3, up, &j.src));
    TRY(add_module(q, join(b->to, "mlp.switch_mlp.gate_proj").s, e, &j));
    j.row0 = w;
    TRY(add_module(q, join(b->to, "mlp.switch_mlp.up_proj").s, e, &j));
    j = (job){.bits = b->bits, .cols = w, .rows = h, .src_rows = h};
    TRY(need(q, join(b->from, "mlp.experts.down_proj").s, 3, down, &j.src));
    st = add_module(q, join(b->to, "mlp.switch_mlp.down_proj").s, e, &j);
fail:
    return st;
}

static calla_status add_layer(quantizer *q, const block *b, bool full)
{
    const model_shape *s = &q->shape;
    const uint64_t h = s->hidden, sw = s->shared_width;
    calla_status st;
    TRY(vector(q, b, "input_layernorm.weight", h, PLUS_ONE));
    TRY(vector(q, b, "post_attention_layernorm.weight", h, PLUS_ONE));
    TRY(full ? add_attention(q, b) : add_gdn(q, b));
    TRY(matrix(q, b, "mlp.gate", s->n_experts, h, b->gate_bits));
    TRY(add_experts(q, b));
    TRY(matrix(q, b, "mlp.shared_expert.gate_proj", sw, h, b->bits));
    TRY(matrix(q, b, "mlp.shared_expert.up_proj", sw, h, b->bits));
    TRY(matrix(q, b, "mlp.shared_expert.down_proj", h, sw, b->bits));
    st = matrix(q, b, "mlp.shared_expert_gate", 1, h, b->gate_bits);
fail:
    return st;
}

/* The head that drafts a second token: one layer of full attention behind a product of 2 H columns.
 */
static calla_status add_mtp(quantizer *q)
{
    const uint64_t h = q->shape.hidden;
    const block top = {"mtp.", "mtp.", q->options->mtp_bits, 8};
    const block layer = {"mtp.layers.0.", "mtp.layers.0.", q->options->mtp_bits, 8};
    calla_status st;
    TRY(matrix(q, &top, "fc", h, 2 * h, top.bits));
    TRY(vector(q, &top, "pre_fc_norm_embedding.weight", h, PLUS_ONE));
    TRY(vector(q, &top, "pre_fc_norm_hidden.weight", h, PLUS_ONE));
    TRY(vector(q, &top, "norm.weight", h, PLUS_ONE));
    st = add_layer(q, &layer, true);
fail:
    return st;
}

static bool begins(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Everything that no rule took: vision and MTP are left out, the rest is refused. */
static calla_status check_rest(quantizer *q)
{
    for (size_t i = 0; i < checkpoint_count(q->ck); i++) {
        const st_tensor *t = checkpoint_at(q->ck, i);
        if (q->used[i]) continue;
        if (begins(t->name, "model.visual.") || begins(t->name, "vision_tower."))
            q->result->n_vision++;
        else if (begins(t->name, "mtp.") && q->options->mtp_bits == 0)
            q->result->n_mtp++;
        else
            return err_set(q->err, CALLA_ERR_UNSUPPORTED,
                           "tensor %s has no place in a model of %u layers", t->name,
                           q->shape.n_layers);
    }
    return CALLA_OK;
}

static calla_status make_jobs(quantizer *q)
{
    const model_shape *s = &q->shape;
    const block top = {HF_PREFIX, MLX_PREFIX, 4, 8}, head = {"", "language_model.", 4, 8};
    calla_status st;
    if (checkpoint_find(q->ck, MLX_PREFIX "embed_tokens.weight") != NULL)
        return err_set(q->err, CALLA_ERR_UNSUPPORTED,
                       "%s is in MLX's layout already: expected Hugging Face's, with a tensor "
                       "%sembed_tokens.weight",
                       checkpoint_dir(q->ck), HF_PREFIX);
    TRY(matrix(q, &top, "embed_tokens", s->n_vocab, s->hidden, 4));
    TRY(matrix(q, &head, "lm_head", s->n_vocab, s->hidden, 4));
    TRY(vector(q, &top, "norm.weight", s->hidden, PLUS_ONE));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        block b = {.bits = 4, .gate_bits = 8};
        (void)snprintf(b.from, sizeof b.from, HF_PREFIX "layers.%u.", i);
        (void)snprintf(b.to, sizeof b.to, MLX_PREFIX "layers.%u.", i);
        TRY(add_layer(q, &b, shape_is_full(s, i)));
    }
    if (q->options->mtp_bits != 0) TRY(add_mtp(q));
    st = check_rest(q);
fail:
    return st;
}

/* ---- Values ---- */

static float f16_to_f32(uint16_t h)
{
    const int e = h >> 10 & 31, m = h & 1023;
    const float v = e == 0    ? ldexpf((float)m, -24)
                    : e == 31 ? (m == 0 ? INFINITY : NAN)
                              : ldexpf((float)(m + 1024), e - 25);
    return (h & 0x8000) != 0 ? -v : v;
}

/* n elements from element `at`, as bf16 numbers. False: one is not finite. */
static bool load(const st_tensor *t, uint64_t at, uint32_t n, float *out)
{
    const uint8_t *p = t->data + at * st_dtype_bytes(t->dtype);
    uint32_t odd = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (t->dtype == ST_BF16) {
            out[i] = load_bf16(p + (size_t)2 * i);
        } else {
            float f = 0;
            const uint32_t u = t->dtype == ST_F32 ? load_le32(p + (size_t)4 * i) : 0;
            if (t->dtype == ST_F32)
                memcpy(&f, &u, sizeof f);
            else
                f = f16_to_f32(load_le16(p + (size_t)2 * i));
            out[i] = bf16_to_f32(f32_to_bf16(f));
        }
        odd |= isfinite(out[i]) ? 0u : 1u;
    }
    return odd == 0;
}

/* Elements of the source before group g of the new module. */
static uint64_t group_at(const job *j, uint64_t g)
{
    const uint64_t per_row = j->cols / AFFINE_GROUP, r = g / per_row;
    const uint64_t row = r / j->rows * j->src_rows + j->row0 + r % j->rows;
    return row * j->cols + g % per_row * AFFINE_GROUP;
}

static void store_le16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static bool fill_module(const job *j, uint64_t offset, size_t n, uint8_t *out)
{
    const uint32_t bytes = j->rule == CODES ? AFFINE_GROUP * j->bits / 8 : 2;
    bool ok = true;
    for (size_t k = 0; k < n; k += bytes) {
        float w[AFFINE_GROUP];
        ok = load(j->src, group_at(j, (offset + k) / bytes), AFFINE_GROUP, w) && ok;
        const affine a = affine_fit(w, j->bits);
        if (j->rule == CODES)
            affine_codes(w, a, j->bits, out + k);
        else
            store_le16(out + k, f32_to_bf16(j->rule == SCALES ? a.scale : a.bias));
    }
    return ok;
}

static bool fill_plain(const job *j, uint64_t offset, size_t n, uint8_t *out)
{
    bool ok = true;
    for (size_t k = 0; k < n; k += 2) {
        float w;
        ok = load(j->src, (offset + k) / 2, 1, &w) && ok;
        store_le16(out + k, f32_to_bf16(j->rule == PLUS_ONE ? w + 1.0f : w));
    }
    return ok;
}

static void fill(void *user, size_t i, uint64_t offset, size_t n, uint8_t *out)
{
    quantizer *q = user;
    const job *j = &q->jobs[i];
    const bool ok =
        j->rule >= PLAIN ? fill_plain(j, offset, n, out) : fill_module(j, offset, n, out);
    if (!ok) atomic_store(&q->bad, i);
}

static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    quantizer *q = user;
    const quantize_options *o = q->options;
    if (atomic_load(&q->bad) != NO_TENSOR) return false;
    return o->progress == NULL || o->progress(o->user, done, total);
}

/* ---- The small files ---- */

static const char *const copied[] = {
    "generation_config.json",  "tokenizer.json",   "tokenizer_config.json",
    "chat_template.jinja",     "vocab.json",       "merges.txt",
    "special_tokens_map.json", "added_tokens.json"};
#define N_FILES  (1 + sizeof copied / sizeof *copied)
#define FILE_MAX (64u << 20)

/* config.json with the quantization block that MLX writes, twice. */
static calla_status make_config(quantizer *q, strbuf *b)
{
    static const char *const keys[] = {"quantization", "quantization_config"};
    const json_value *root = checkpoint_config(q->ck);
    (void)strbuf_puts(b, "{");
    for (const json_value *v = root->first; v != NULL; v = v->next) {
        for (int k = 0; k < 2; k++)
            if (v->n_key == strlen(keys[k]) && memcmp(v->key, keys[k], v->n_key) == 0)
                return err_set(q->err, CALLA_ERR_UNSUPPORTED,
                               "config.json: %s: expected an unquantised checkpoint", keys[k]);
        (void)strbuf_puts(b, "\n    ");
        (void)json_write_string(b, v->key, v->n_key);
        (void)strbuf_puts(b, ": ");
        (void)json_write(b, v);
        (void)strbuf_putc(b, ',');
    }
    for (int k = 0; k < 2; k++)
        (void)strbuf_printf(b,
                            "\n    \"%s\": {\"group_size\": %u, \"bits\": 4, \"mode\": "
                            "\"affine\"%s}%s",
                            keys[k], AFFINE_GROUP,
                            q->overrides.data == NULL ? "" : q->overrides.data,
                            k == 0 ? "," : "\n}\n");
    return b->failed ? err_set(q->err, CALLA_ERR_MEMORY, "no memory for config.json") : CALLA_OK;
}

static calla_status read_files(quantizer *q, char *data[N_FILES], cw_file *files, size_t *n)
{
    strbuf config = {0};
    calla_status st = make_config(q, &config);
    data[0] = config.data;
    files[0] = (cw_file){"config.json", config.data, config.len};
    *n = 1;
    for (size_t i = 1; i < N_FILES && st == CALLA_OK; i++) {
        char *path = path_join(checkpoint_dir(q->ck), copied[i - 1]);
        if (path == NULL) return err_set(q->err, CALLA_ERR_MEMORY, "no memory for a file name");
        if (file_exists(path)) {
            size_t bytes = 0;
            st = file_read(path, FILE_MAX, &data[i], &bytes, q->err);
            if (st == CALLA_OK) files[(*n)++] = (cw_file){copied[i - 1], data[i], bytes};
            if (strcmp(copied[i - 1], "tokenizer.json") == 0) q->result->has_tokenizer = true;
        }
        mem_free(path);
    }
    return st;
}

static calla_status write_folder(quantizer *q, const char *out)
{
    char *data[N_FILES] = {NULL};
    cw_file files[N_FILES];
    cw_options o = {.fill = fill,
                    .user = q,
                    .files = files,
                    .n_threads = q->options->n_threads,
                    .shard_bytes = q->options->shard_bytes,
                    .progress = on_progress,
                    .progress_user = q};
    calla_status st = read_files(q, data, files, &o.n_files);
    if (st == CALLA_OK) st = ckpt_write(out, &q->list, &o, q->err);
    const size_t bad = atomic_load(&q->bad);
    if (st == CALLA_ERR_CANCELLED && bad != NO_TENSOR)
        st = err_set(q->err, CALLA_ERR_FORMAT, "tensor %s has a weight that is not finite",
                     q->jobs[bad].src->name);
    for (size_t i = 0; i < N_FILES; i++)
        mem_free(data[i]);
    return st;
}

calla_status quantize_write(const char *hf_dir, const char *out, const quantize_options *options,
                            quantize_result *result, calla_error *err)
{
    checkpoint *ck = NULL;
    calla_status st = checkpoint_open(&ck, hf_dir, err);
    if (st != CALLA_OK) return st;
    *result = (quantize_result){0};
    quantizer q = {.ck = ck, .options = options, .result = result, .err = err};
    atomic_init(&q.bad, NO_TENSOR);
    q.used = mem_array(checkpoint_count(ck) + 1, sizeof *q.used);
    if (q.used == NULL) st = err_set(err, CALLA_ERR_MEMORY, "no memory for the list of tensors");
    if (st == CALLA_OK)
        st = shape_read(&q.shape, checkpoint_config(ck), checkpoint_generation_config(ck), err);
    if (st == CALLA_OK) st = make_jobs(&q);
    if (st == CALLA_OK) st = write_folder(&q, out);
    result->bytes_out = q.list.n_bytes;
    result->n_tensors = (uint32_t)q.list.n;
    mem_free(q.used);
    mem_free(q.jobs);
    mem_free(q.list.items);
    strbuf_deinit(&q.overrides);
    checkpoint_close(ck);
    return st;
}
