#include "exec/gpu/pack.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/ck.h"
#include "base/mem.h"
#include "exec/gpu/pack_file.h"

#define PACK_ALIGN 256u

/* Hands out aligned places of a blob. */
typedef struct carver {
    gpu_buffer *buf;
    uint64_t used;
} carver;

static gpu_view carve(carver *c, uint64_t bytes)
{
    const gpu_view v = {c->buf, c->used, bytes};
    c->used += (bytes + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
    return v;
}

static gpu_q4 carve_q4(carver *c, uint32_t rows, uint32_t cols)
{
    gpu_q4 m = {.rows = rows, .cols = cols};
    m.codes = carve(c, (uint64_t)rows * (cols / 2));
    m.sb = carve(c, (uint64_t)rows * (cols / 64) * 4);
    return m;
}

static gpu_q8 carve_q8(carver *c, uint32_t rows, uint32_t cols)
{
    gpu_q8 m = {.rows = rows, .cols = cols};
    m.codes = carve(c, (uint64_t)rows * cols);
    m.sb = carve(c, (uint64_t)rows * (cols / 64) * 4);
    return m;
}

/* Bytes of a slab's parts, in order: gate and up codes, their sb, down codes, its sb. */
static void slab_parts(const model_shape *s, uint64_t part[4])
{
    const uint64_t w = s->expert_width, h = s->hidden;
    part[0] = 2 * w * (h / 2);
    part[1] = 2 * w * (h / 64) * 4;
    part[2] = h * (w / 2);
    part[3] = h * (w / 64) * 4;
}

static gpu_bank carve_bank(carver *c, const model_shape *s)
{
    uint64_t p[4];
    slab_parts(s, p);
    const uint64_t slab = p[0] + p[1] + p[2] + p[3];
    return (gpu_bank){carve(c, slab * (s->n_experts + 1u)), (uint32_t)slab};
}

static void layout_globals(carver *c, const model_shape *s, gpu_weights *w)
{
    w->embed = carve_q4(c, s->n_vocab, s->hidden);
    w->lm_head = carve_q4(c, s->n_vocab, s->hidden);
    w->final_norm = carve(c, (uint64_t)s->hidden * 4);
    w->inv_freq = carve(c, MODEL_ROTARY_DIM / 2 * 4);
}

static void layout_layer(carver *c, const model_shape *s, uint32_t i, gpu_layer *l)
{
    l->input_norm = carve(c, (uint64_t)s->hidden * 4);
    l->post_norm = carve(c, (uint64_t)s->hidden * 4);
    if (shape_is_full(s, i)) {
        l->in = carve_q4(c, 2 * shape_q_width(s) + 2 * shape_kv_width(s), s->hidden);
        l->out = carve_q4(c, s->hidden, shape_q_width(s));
        l->attn.q_norm = carve(c, MODEL_HEAD_DIM * 4);
        l->attn.k_norm = carve(c, MODEL_HEAD_DIM * 4);
    } else {
        const uint32_t vw = shape_gdn_v_width(s), ch = shape_conv_channels(s);
        l->in = carve_q4(c, ch + vw + 2 * s->gdn_v_heads, s->hidden);
        l->out = carve_q4(c, s->hidden, vw);
        l->gdn.conv = carve(c, (uint64_t)MODEL_CONV_KERNEL * ch * 4);
        l->gdn.rate = carve(c, (uint64_t)s->gdn_v_heads * 4);
        l->gdn.dt = carve(c, (uint64_t)s->gdn_v_heads * 4);
        l->gdn.norm = carve(c, MODEL_GDN_DIM * 4);
    }
    l->router = carve_q8(c, s->n_experts + 1u, s->hidden);
    l->bank = carve_bank(c, s);
}

static uint64_t blob_bytes(const model_shape *s, uint32_t i_blob)
{
    carver c = {0};
    gpu_weights g;
    gpu_layer l;
    if (i_blob == 0)
        layout_globals(&c, s, &g);
    else
        layout_layer(&c, s, i_blob - 1, &l);
    return c.used;
}

uint64_t gpu_weights_bytes(const model_shape *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= s->n_layers; i++)
        n += blob_bytes(s, i);
    return n;
}

/* ---- filling ---- */

/* Rows of m to rows first, first + step, ... of a packed matrix. */
static void put_rows(uint8_t *codes, uint8_t *sb, const matrix *m, uint32_t first, uint32_t step)
{
    const uint32_t n_groups = m->cols / MODEL_QUANT_GROUP;
    for (uint32_t r = 0; r < m->rows; r++) {
        const size_t to = first + (size_t)r * step;
        memcpy(codes + to * m->row_bytes, m->data + (size_t)r * m->row_bytes, m->row_bytes);
        uint8_t *p = sb + to * n_groups * 4;
        const uint8_t *scale = m->scales + (size_t)r * n_groups * 2;
        const uint8_t *bias = m->biases + (size_t)r * n_groups * 2;
        for (uint32_t g = 0; g < n_groups; g++, p += 4) {
            memcpy(p, scale + (size_t)2 * g, 2);
            memcpy(p + 2, bias + (size_t)2 * g, 2);
        }
    }
}

typedef struct fill {
    const model_shape *s;
    const layer_weights *lw;
    const gpu_layer *l;
    uint8_t *blob;
} fill;

static void put_q4(uint8_t *blob, const gpu_q4 *to, const matrix *m, uint32_t n)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < n; row += m[i].rows, i++)
        put_rows(blob + to->codes.off, blob + to->sb.off, &m[i], row, 1);
}

static void put_floats(uint8_t *blob, gpu_view v, const float *x)
{
    memcpy(blob + v.off, x, v.bytes);
}

/* One expert's slab; i_expert == n_experts is the shared expert. */
static void fill_expert(void *p, uint32_t i_expert, uint32_t i_thread)
{
    (void)i_thread;
    const fill *f = p;
    const bool shared = i_expert == f->s->n_experts;
    const matrix gate = shared ? f->lw->shared_gate : expert_matrix(&f->lw->gate, i_expert);
    const matrix up = shared ? f->lw->shared_up : expert_matrix(&f->lw->up, i_expert);
    const matrix down = shared ? f->lw->shared_down : expert_matrix(&f->lw->down, i_expert);
    uint64_t part[4];
    slab_parts(f->s, part);
    uint8_t *slab = f->blob + f->l->bank.slabs.off + (uint64_t)i_expert * f->l->bank.slab_bytes;
    put_rows(slab, slab + part[0], &gate, 0, 2);
    put_rows(slab, slab + part[0], &up, 1, 2);
    slab += part[0] + part[1];
    put_rows(slab, slab + part[2], &down, 0, 1);
}

static void fill_layer(const fill *f, bool full)
{
    const layer_weights *lw = f->lw;
    uint8_t *b = f->blob;
    put_floats(b, f->l->input_norm, lw->input_norm);
    put_floats(b, f->l->post_norm, lw->post_norm);
    if (full) {
        const matrix in[] = {lw->q, lw->k, lw->v};
        put_q4(b, &f->l->in, in, 3);
        put_q4(b, &f->l->out, &lw->o, 1);
        put_floats(b, f->l->attn.q_norm, lw->q_norm);
        put_floats(b, f->l->attn.k_norm, lw->k_norm);
    } else {
        const matrix in[] = {lw->in_qkv, lw->in_z, lw->in_b, lw->in_a};
        put_q4(b, &f->l->in, in, 4);
        put_q4(b, &f->l->out, &lw->gdn_out, 1);
        put_floats(b, f->l->gdn.conv, lw->conv);
        put_floats(b, f->l->gdn.dt, lw->dt_bias);
        put_floats(b, f->l->gdn.norm, lw->gdn_norm);
        float *rate = (float *)(void *)(b + f->l->gdn.rate.off);
        for (uint32_t h = 0; h < f->s->gdn_v_heads; h++)
            rate[h] = expf(lw->a_log[h]);
    }
    put_rows(b + f->l->router.codes.off, b + f->l->router.sb.off, &lw->router, 0, 1);
    put_rows(b + f->l->router.codes.off, b + f->l->router.sb.off, &lw->shared_router,
             f->s->n_experts, 1);
}

static void fill_globals(uint8_t *blob, const gpu_weights *g, const model_shape *s,
                         const model_weights *w)
{
    put_q4(blob, &g->embed, &w->embed, 1);
    put_q4(blob, &g->lm_head, &w->lm_head, 1);
    put_floats(blob, g->final_norm, w->final_norm);
    float *inv = (float *)(void *)(blob + g->inv_freq.off);
    for (uint32_t i = 0; i < MODEL_ROTARY_DIM / 2; i++)
        inv[i] = (float)(1.0 / pow((double)s->rope_theta, 2.0 * i / MODEL_ROTARY_DIM));
}

/* ---- checking ---- */

static calla_status check_matrix(const matrix *m, mat_type want, const char *name, uint32_t layer,
                                 calla_error *err)
{
    if (m->type == want) return CALLA_OK;
    return err_set(err, CALLA_ERR_UNSUPPORTED,
                   "layer %u, %s: a GPU needs the checkpoint in MLX's %s-bit format, found %s",
                   layer, name, want == MAT_Q4 ? "4" : "8",
                   m->type == MAT_Q4   ? "4-bit"
                   : m->type == MAT_Q8 ? "8-bit"
                                       : "unquantised weights");
}

static calla_status check_layer(const layer_weights *l, bool full, uint32_t i, calla_error *err)
{
    const struct {
        const matrix *m;
        mat_type type;
        const char *name;
        bool used;
    } all[] = {
        {&l->q, MAT_Q4, "q_proj", full},
        {&l->k, MAT_Q4, "k_proj", full},
        {&l->v, MAT_Q4, "v_proj", full},
        {&l->o, MAT_Q4, "o_proj", full},
        {&l->in_qkv, MAT_Q4, "in_proj_qkv", !full},
        {&l->in_z, MAT_Q4, "in_proj_z", !full},
        {&l->in_b, MAT_Q4, "in_proj_b", !full},
        {&l->in_a, MAT_Q4, "in_proj_a", !full},
        {&l->gdn_out, MAT_Q4, "out_proj", !full},
        {&l->router, MAT_Q8, "mlp.gate", true},
        {&l->shared_router, MAT_Q8, "shared_expert_gate", true},
        {&l->gate.first, MAT_Q4, "switch_mlp.gate_proj", true},
        {&l->up.first, MAT_Q4, "switch_mlp.up_proj", true},
        {&l->down.first, MAT_Q4, "switch_mlp.down_proj", true},
        {&l->shared_gate, MAT_Q4, "shared_expert.gate_proj", true},
        {&l->shared_up, MAT_Q4, "shared_expert.up_proj", true},
        {&l->shared_down, MAT_Q4, "shared_expert.down_proj", true},
    };
    for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
        if (!all[j].used) continue;
        const calla_status st = check_matrix(all[j].m, all[j].type, all[j].name, i, err);
        if (st != CALLA_OK) return st;
    }
    return CALLA_OK;
}

static calla_status check(const model_shape *s, const model_weights *w, calla_error *err)
{
    if (s->shared_width != s->expert_width)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "a GPU needs shared_expert_intermediate_size = moe_intermediate_size, "
                       "found %u and %u",
                       s->shared_width, s->expert_width);
    calla_status st = check_matrix(&w->embed, MAT_Q4, "embed_tokens", 0, err);
    if (st == CALLA_OK) st = check_matrix(&w->lm_head, MAT_Q4, "lm_head", 0, err);
    for (uint32_t i = 0; i < s->n_layers && st == CALLA_OK; i++)
        st = check_layer(&w->layers[i], shape_is_full(s, i), i, err);
    return st;
}

/* ---- placing ---- */

/* The views of a blob, into its buffer if there is one already. */
static void lay_out(gpu_weights *out, const model_shape *s, uint32_t i_blob)
{
    carver c = {.buf = out->bufs[i_blob]};
    if (i_blob == 0)
        layout_globals(&c, s, out);
    else
        layout_layer(&c, s, i_blob - 1, &out->layers[i_blob - 1]);
}

/* Everything but the buffers. */
static calla_status lay_out_all(gpu_weights *out, const model_shape *s, calla_error *err)
{
    *out = (gpu_weights){.n_bufs = s->n_layers + 1u, .bytes = gpu_weights_bytes(s)};
    out->layers = mem_array(s->n_layers, sizeof *out->layers);
    out->bufs = mem_array(out->n_bufs, sizeof(gpu_buffer *));
    if (out->layers == NULL || out->bufs == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory to lay out the weights");
    for (uint32_t i = 0; i < out->n_bufs; i++) {
        const uint64_t bytes = blob_bytes(s, i);
        if (bytes > UINT32_MAX) /* kernels count in 32 bits within a matrix */
            return err_set(err, CALLA_ERR_UNSUPPORTED,
                           "a GPU takes up to 4 GiB of weights a layer, found %.1f",
                           (double)bytes / (1024.0 * 1024.0 * 1024.0));
        lay_out(out, s, i);
    }
    return CALLA_OK;
}

static const char *blob_name(uint32_t i_blob)
{
    return i_blob == 0 ? "weights" : "layer weights";
}

/* Buffers of their own, without contents. */
static calla_status place_all(gpu_weights *out, gpu_device *d, const model_shape *s,
                              calla_error *err)
{
    calla_status st = CALLA_OK;
    for (uint32_t i = 0; i < out->n_bufs && st == CALLA_OK; i++) {
        st = d->ops->buffer_create(d, GPU_MEM_DEVICE, blob_bytes(s, i), blob_name(i), &out->bufs[i],
                                   err);
        lay_out(out, s, i);
    }
    return st;
}

calla_status gpu_weights_place(gpu_weights *out, gpu_device *d, const model_shape *s,
                               calla_error *err)
{
    calla_status st = lay_out_all(out, s, err);
    if (st == CALLA_OK) st = place_all(out, d, s, err);
    if (st != CALLA_OK) gpu_weights_free(out, d);
    return st;
}

/* ---- the pack file of a checkpoint ---- */

static_assert(PACK_BLOBS_MAX >= MODEL_LAYERS_MAX + 1, "a blob a layer, and one for the rest");

typedef struct cache {
    pack_spec spec;
    uint64_t blob_bytes[PACK_BLOBS_MAX];
    char *path; /* NULL: no cache */
} cache;

/* Everything that the contents of the blobs depend on, beside the checkpoint's tensors. */
static void spec_dims(uint32_t dims[PACK_DIMS], const model_shape *s)
{
    uint32_t theta;
    memcpy(&theta, &s->rope_theta, sizeof theta);
    const uint32_t all[] = {s->n_layers,    s->hidden,      s->n_vocab,      s->full_interval,
                            s->n_heads,     s->n_kv_heads,  s->head_dim,     s->rotary_dim,
                            s->gdn_k_heads, s->gdn_v_heads, s->gdn_k_dim,    s->gdn_v_dim,
                            s->conv_kernel, s->n_experts,   s->expert_width, s->shared_width,
                            theta,          PACK_ALIGN};
    static_assert(sizeof all <= PACK_DIMS * sizeof *dims, "no room for the shape");
    memcpy(dims, all, sizeof all);
}

static bool is_cached(const exec_options *o)
{
    return o->pack_dir != NULL && strcmp(o->pack_dir, "none") != 0 && o->source != NULL;
}

/* False: no memory. */
static bool cache_init(cache *c, const model_shape *s, const exec_options *o)
{
    *c = (cache){.spec = {.n_blobs = s->n_layers + 1u}};
    c->spec.blob_bytes = c->blob_bytes;
    spec_dims(c->spec.dims, s);
    for (uint32_t i = 0; i < c->spec.n_blobs; i++)
        c->blob_bytes[i] = blob_bytes(s, i);
    if (!is_cached(o)) return true;
    const checkpoint_identity id = checkpoint_identify(o->source);
    memcpy(c->spec.source, id.hash, sizeof c->spec.source);
    c->path = pack_file_path(o->pack_dir, checkpoint_dir(o->source));
    return c->path != NULL;
}

calla_status exec_gpu_pack(exec_pack *out, const model_shape *shape, const exec_options *options,
                           calla_error *err)
{
    cache c;
    pack_file f;
    *out = (exec_pack){0};
    if (!cache_init(&c, shape, options))
        return err_set(err, CALLA_ERR_MEMORY, "no memory for the name of a file");
    if (c.path == NULL)
        return err_set(err, CALLA_ERR_ARGUMENT, "no folder is given for packed weights");
    out->path = c.path;
    out->bytes = pack_file_bytes(&c.spec);
    out->usable = pack_file_open(&f, c.path, &c.spec, &out->why) == CALLA_OK;
    pack_file_close(&f);
    return CALLA_OK;
}

/* ---- loading ---- */

typedef struct loader {
    gpu_weights *out;
    gpu_device *d;
    const model_shape *s;
    const model_weights *w;
    const exec_options *o;
    pool *pool;
    uint8_t *staging;
    cache cache;
    pack_writer *writer; /* NULL: nothing is written */
    bool maps;           /* the device reads the file where it is mapped */
    bool built;          /* the file is this load's own */
} loader;

static void say(const loader *ld, calla_log_level level, const char *fmt, ...) ATTR_PRINTF(3, 4);
static void say(const loader *ld, calla_log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (ld->o->log == NULL) return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    ld->o->log(ld->o->log_user, level, line);
}

/* Where the parts of a blob go. */
typedef struct blob_sink {
    const loader *ld;
    uint32_t i_blob;
    uint64_t before; /* bytes of the blobs before it */
} blob_sink;

static calla_status report(const loader *ld, uint64_t done, calla_error *err)
{
    if (ld->o->progress == NULL ||
        ld->o->progress(ld->o->progress_user, (size_t)done, (size_t)ld->out->bytes))
        return CALLA_OK;
    return err_set(err, CALLA_ERR_CANCELLED, "loading the weights was cancelled");
}

static calla_status put_part(void *user, uint64_t off, const uint8_t *data, uint64_t n,
                             calla_error *err)
{
    const blob_sink *s = user;
    const loader *ld = s->ld;
    const calla_status st =
        ld->maps
            ? CALLA_OK
            : ld->d->ops->write(ld->d, (gpu_view){ld->out->bufs[s->i_blob], off, n}, data, err);
    const uint64_t done = s->before + off + n;
    /* The last report comes when the file is complete, too; its own file is no news. */
    return st != CALLA_OK || done == ld->out->bytes || ld->built ? st : report(ld, done, err);
}

static void drop_buffers(gpu_weights *w, gpu_device *d)
{
    for (uint32_t i = 0; w->bufs != NULL && i < w->n_bufs; i++) {
        if (w->bufs[i] != NULL) d->ops->buffer_destroy(d, w->bufs[i]);
        w->bufs[i] = NULL;
    }
}

/* A blob that is right, without a copy. */
static calla_status map_blob(const loader *ld, const pack_file *f, uint32_t i, calla_error *err)
{
    const calla_status st = ld->d->ops->buffer_map(
        ld->d, pack_file_data(f, i), ld->cache.blob_bytes[i], blob_name(i), &ld->out->bufs[i], err);
    lay_out(ld->out, ld->s, i);
    return st;
}

static calla_status load_blobs(loader *ld, const pack_file *f, calla_error *err)
{
    calla_status st = CALLA_OK;
    blob_sink s = {ld, 0, 0};
    for (; s.i_blob < ld->out->n_bufs && st == CALLA_OK; s.i_blob++) {
        st = pack_file_blob(f, s.i_blob, ld->pool, put_part, &s, err);
        if (st == CALLA_OK && ld->maps) st = map_blob(ld, f, s.i_blob, err);
        s.before += ld->cache.blob_bytes[s.i_blob];
    }
    return st;
}

/* *loaded stays false, with a line in the log, when the file cannot be used. */
static calla_status load_file(loader *ld, bool *loaded, calla_error *err)
{
    calla_error why;
    pack_file *f = mem_alloc(sizeof *f);
    if (f == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to read a pack");
    calla_status st = pack_file_open(f, ld->cache.path, &ld->cache.spec, &why);
    const bool opened = st == CALLA_OK;
    if (opened) st = load_blobs(ld, f, &why);
    *loaded = st == CALLA_OK;
    if (*loaded && ld->maps) {
        ld->out->file = f;
    } else {
        if (ld->maps) drop_buffers(ld->out, ld->d);
        pack_file_close(f);
        mem_free(f);
    }
    if (*loaded) {
        if (!ld->built)
            say(ld, CALLA_LOG_INFO, "packed weights read from %s (%.1f MB)", ld->cache.path,
                (double)pack_file_bytes(&ld->cache.spec) / 1e6);
        return CALLA_OK;
    }
    if (opened && st != CALLA_ERR_FORMAT) { /* the device's failure, not the file's */
        if (err != NULL) *err = why;
        return st;
    }
    if (st != CALLA_ERR_IO || file_exists(ld->cache.path))
        say(ld, st == CALLA_ERR_UNSUPPORTED ? CALLA_LOG_INFO : CALLA_LOG_WARN,
            "%s is not used but written anew: %s", ld->cache.path, why.message);
    return CALLA_OK;
}

static void fill_blob(const loader *ld, uint32_t i_blob)
{
    const model_shape *s = ld->s;
    if (i_blob == 0) {
        fill_globals(ld->staging, ld->out, s, ld->w);
        return;
    }
    const uint32_t i = i_blob - 1;
    fill f = {s, &ld->w->layers[i], &ld->out->layers[i], ld->staging};
    fill_layer(&f, shape_is_full(s, i));
    pool_run(ld->pool, fill_expert, &f, s->n_experts + 1u);
}

/* The cache is a convenience: what goes wrong with it is said, and the model loads without. */
static void give_up_file(loader *ld, const calla_error *why)
{
    say(ld, CALLA_LOG_WARN, "packed weights are not kept: %s", why->message);
    pack_writer_destroy(ld->writer);
    ld->writer = NULL;
}

static calla_status build_blob(loader *ld, uint32_t i_blob, uint64_t *done, calla_error *err)
{
    calla_error why;
    /* The padding between the parts: else it would be what the blob before had there. */
    memset(ld->staging, 0, (size_t)ld->cache.blob_bytes[i_blob]);
    fill_blob(ld, i_blob);
    blob_sink s = {ld, i_blob, *done};
    const uint64_t bytes = ld->cache.blob_bytes[i_blob];
    const calla_status st = put_part(&s, 0, ld->staging, bytes, err);
    *done += bytes;
    if (st == CALLA_OK && ld->writer != NULL &&
        pack_writer_blob(ld->writer, i_blob, ld->pool, ld->staging, &why) != CALLA_OK)
        give_up_file(ld, &why);
    return st;
}

static uint64_t largest_blob(const cache *c)
{
    uint64_t max = 0;
    for (uint32_t i = 0; i < c->spec.n_blobs; i++)
        if (c->blob_bytes[i] > max) max = c->blob_bytes[i];
    return max;
}

/* Into the device's buffers, or only into the file (ld->maps). *kept: the file is complete. */
static calla_status build(loader *ld, bool *kept, calla_error *err)
{
    calla_error why;
    calla_status st = CALLA_OK;
    uint64_t done = 0;
    const size_t staging = (size_t)largest_blob(&ld->cache);
    ld->staging = mem_alloc_pages(staging);
    if (ld->staging == NULL)
        return err_set(err, CALLA_ERR_MEMORY, "no memory to lay out the weights");
    if (ld->cache.path != NULL &&
        pack_writer_open(&ld->writer, ld->cache.path, &ld->cache.spec, &why) != CALLA_OK)
        give_up_file(ld, &why);
    for (uint32_t i = 0; i < ld->out->n_bufs && st == CALLA_OK; i++) {
        if (ld->maps && ld->writer == NULL) break;
        st = build_blob(ld, i, &done, err);
    }
    if (st == CALLA_OK && ld->writer != NULL) {
        *kept = pack_writer_commit(ld->writer, &why) == CALLA_OK;
        if (!*kept)
            give_up_file(ld, &why);
        else
            say(ld, CALLA_LOG_INFO, "packed weights kept in %s (%.1f MB)", ld->cache.path,
                (double)pack_file_bytes(&ld->cache.spec) / 1e6);
    }
    pack_writer_destroy(ld->writer);
    ld->writer = NULL;
    mem_free_pages(ld->staging, staging);
    return st;
}

/* For a device that maps: the file, then its mapping; the weights are never there twice. */
static calla_status build_file(loader *ld, bool *loaded, calla_error *err)
{
    bool kept = false;
    const calla_status st = build(ld, &kept, err);
    ld->built = kept;
    return st == CALLA_OK && kept ? load_file(ld, loaded, err) : st;
}

/* Without a file, or beside one that a device copies. */
static calla_status build_buffers(loader *ld, calla_error *err)
{
    bool kept = false;
    calla_status st = CALLA_OK;
    if (ld->maps) { /* it has no place for the file */
        ld->maps = false;
        mem_free(ld->cache.path);
        ld->cache.path = NULL;
        st = place_all(ld->out, ld->d, ld->s, err);
    }
    return st == CALLA_OK ? build(ld, &kept, err) : st;
}

calla_status gpu_weights_load(gpu_weights *out, gpu_device *d, const model_shape *s,
                              const model_weights *w, const exec_options *options, calla_error *err)
{
    loader ld = {.out = out, .d = d, .s = s, .w = w, .o = options};
    bool loaded = false;
    *out = (gpu_weights){0};
    calla_status st = check(s, w, err);
    if (st == CALLA_OK && !cache_init(&ld.cache, s, options))
        st = err_set(err, CALLA_ERR_MEMORY, "no memory to lay out the weights");
    if (st == CALLA_OK) st = pool_create(&ld.pool, options->n_threads, err);
    if (st == CALLA_OK) st = lay_out_all(out, s, err);
    ld.maps = ld.cache.path != NULL && d->ops->buffer_map != NULL;
    if (st == CALLA_OK && !ld.maps) st = place_all(out, d, s, err);
    if (st == CALLA_OK && ld.cache.path != NULL) st = load_file(&ld, &loaded, err);
    if (st == CALLA_OK && !loaded && ld.maps) st = build_file(&ld, &loaded, err);
    if (st == CALLA_OK && !loaded) st = build_buffers(&ld, err);
    if (st == CALLA_OK) st = report(&ld, out->bytes, err);
    pool_destroy(ld.pool);
    mem_free(ld.cache.path);
    if (st != CALLA_OK) gpu_weights_free(out, d);
    return st;
}

void gpu_weights_free(gpu_weights *w, gpu_device *d)
{
    drop_buffers(w, d);
    if (w->file != NULL) pack_file_close(w->file);
    mem_free(w->file);
    mem_free(w->bufs);
    mem_free(w->layers);
    *w = (gpu_weights){0};
}
