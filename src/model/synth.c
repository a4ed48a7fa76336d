#include "model/synth.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/ck.h"
#include "base/file.h"
#include "base/pool.h"
#include "format/checkpoint.h"

#define SHARD_BYTES_MAX (5ull << 30)
#define CHUNK_BYTES     (1u << 20)
#define SPARE_BYTES     (64ull << 20) /* for the JSON files, and not to fill the disk */

typedef enum item_kind { CODES, SCALES, BIASES, NEAR_ONE, CONV, A_LOG, DT_BIAS } item_kind;

/* One tensor. */
typedef struct item {
    char name[96];
    item_kind kind;
    uint32_t n_dims;
    uint64_t dims[3];
    uint64_t n_bytes;
    uint64_t key; /* of its random numbers; scales and biases of a module share one */
    float scale;  /* SCALES, BIASES: mean size of a scale */
    float middle; /* BIASES: the middle code */
    uint32_t shard;
    uint64_t offset; /* in its shard's file */
} item;

typedef struct plan {
    const model_shape *shape;
    uint64_t seed;
    item *items;
    size_t n, cap;
    uint64_t n_bytes;
    uint32_t n_shards;
    bool failed;
} plan;

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
    if (p->n == p->cap) {
        const size_t cap = p->cap == 0 ? 256 : 2 * p->cap;
        item *items = mem_resize(p->items, cap * sizeof *items);
        if (items == NULL) {
            p->failed = true;
            return NULL;
        }
        p->items = items;
        p->cap = cap;
    }
    item *it = &p->items[p->n++];
    memset(it, 0, sizeof *it);
    (void)snprintf(it->name, sizeof it->name, "%s", name);
    it->kind = kind;
    it->n_dims = n_dims;
    it->n_bytes = kind == CODES ? 4 : 2;
    for (uint32_t d = 0; d < n_dims; d++) {
        it->dims[d] = dims[d];
        it->n_bytes *= dims[d];
    }
    it->key = key_of(p->seed, key_name);
    p->n_bytes += it->n_bytes;
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

/* Shards in order; a new one begins when the next tensor would pass the limit. */
static void place_items(plan *p)
{
    uint64_t at = 0;
    for (size_t i = 0; i < p->n; i++) {
        item *it = &p->items[i];
        if (i == 0 || at + it->n_bytes > SHARD_BYTES_MAX) {
            p->n_shards++;
            at = 0;
        }
        it->shard = p->n_shards - 1;
        it->offset = at;
        at += it->n_bytes;
    }
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
    place_items(p);
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

typedef struct chunk {
    uint32_t i_item, n;
    uint64_t offset; /* in the tensor */
} chunk;

typedef struct writer {
    const plan *plan;
    const synth_options *options;
    calla_error *err;
    char *dir; /* temporary */
    int dir_fd;
    bool made; /* the folder is ours */
    pool *pool;
    uint8_t *buffers; /* CHUNK_BYTES per thread */
    chunk *chunks;    /* of one round */
    uint32_t n_chunks, max_chunks;
    int fd;
    uint64_t data_at, done;
    _Atomic int fault; /* errno of a worker */
} writer;

static int write_all(int fd, const uint8_t *p, size_t n, uint64_t at)
{
    while (n != 0) {
        const ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return k < 0 ? errno : EIO;
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return 0;
}

static void write_chunk(void *ctx, uint32_t i_task, uint32_t i_thread)
{
    writer *w = ctx;
    const chunk *c = &w->chunks[i_task];
    const item *it = &w->plan->items[c->i_item];
    uint8_t *buf = w->buffers + (size_t)i_thread * CHUNK_BYTES;
    fill(it, c->offset, c->n, buf);
    const int e = write_all(w->fd, buf, c->n, w->data_at + it->offset + c->offset);
    if (e != 0) atomic_store(&w->fault, e);
}

/* Runs the chunks collected so far, then reports. */
static calla_status flush_chunks(writer *w, const char *name)
{
    pool_run(w->pool, write_chunk, w, w->n_chunks);
    const int e = atomic_load(&w->fault);
    if (e != 0) return err_set(w->err, CALLA_ERR_IO, "cannot write %s: %s", name, strerror(e));
    for (uint32_t i = 0; i < w->n_chunks; i++)
        w->done += w->chunks[i].n;
    w->n_chunks = 0;
    const synth_options *o = w->options;
    if (o->progress != NULL && !o->progress(o->user, w->done, w->plan->n_bytes))
        return err_set(w->err, CALLA_ERR_CANCELLED, "cancelled; nothing was kept");
    return CALLA_OK;
}

static calla_status write_items(writer *w, uint32_t shard, const char *name)
{
    calla_status st = CALLA_OK;
    for (size_t i = 0; i < w->plan->n; i++) {
        const item *it = &w->plan->items[i];
        if (it->shard != shard) continue;
        for (uint64_t at = 0; at < it->n_bytes; at += CHUNK_BYTES) {
            const uint64_t left = it->n_bytes - at;
            w->chunks[w->n_chunks++] =
                (chunk){(uint32_t)i, left < CHUNK_BYTES ? (uint32_t)left : CHUNK_BYTES, at};
            if (w->n_chunks == w->max_chunks) TRY(flush_chunks(w, name));
        }
    }
    st = flush_chunks(w, name);
fail:
    return st;
}

/* The header of a shard with its length before it, ended by a blank where that makes the data
 * begin at an odd address. */
static bool shard_header(strbuf *b, const plan *p, uint32_t shard)
{
    (void)strbuf_append(b, "\0\0\0\0\0\0\0\0", 8);
    (void)strbuf_puts(b, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < p->n; i++) {
        const item *it = &p->items[i];
        if (it->shard != shard) continue;
        (void)strbuf_printf(b, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", it->name,
                            it->kind == CODES ? "U32" : "BF16");
        for (uint32_t d = 0; d < it->n_dims; d++)
            (void)strbuf_printf(b, "%s%llu", d == 0 ? "" : ",", (unsigned long long)it->dims[d]);
        (void)strbuf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)it->offset,
                            (unsigned long long)it->offset + it->n_bytes);
    }
    (void)strbuf_putc(b, '}');
    if (b->len % 2 == 0) (void)strbuf_putc(b, ' ');
    for (unsigned i = 0; i < 8 && !b->failed; i++)
        b->data[i] = (char)((uint64_t)(b->len - 8) >> (8 * i) & 0xff);
    return !b->failed;
}

typedef struct file_name {
    char s[48];
} file_name;

static file_name shard_name(const plan *p, uint32_t i)
{
    file_name f;
    if (p->n_shards == 1)
        (void)snprintf(f.s, sizeof f.s, CHECKPOINT_SINGLE);
    else
        (void)snprintf(f.s, sizeof f.s, "model-%05u-of-%05u.safetensors", i + 1, p->n_shards);
    return f;
}

static calla_status create_file(writer *w, const char *name, int *fd)
{
    *fd = openat(w->dir_fd, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (*fd >= 0) return CALLA_OK;
    return err_set(w->err, CALLA_ERR_IO, "cannot create %s/%s: %s", w->dir, name, strerror(errno));
}

static calla_status close_file(writer *w, const char *name, int fd)
{
    if (close(fd) == 0) return CALLA_OK;
    return err_set(w->err, CALLA_ERR_IO, "cannot write %s: %s", name, strerror(errno));
}

static calla_status write_shard(writer *w, uint32_t shard)
{
    const file_name name = shard_name(w->plan, shard);
    strbuf head = {0};
    calla_status st = CALLA_OK;
    if (!shard_header(&head, w->plan, shard)) {
        st = err_set(w->err, CALLA_ERR_MEMORY, "no memory for the header of %s", name.s);
        goto fail;
    }
    TRY(create_file(w, name.s, &w->fd));
    const int e = write_all(w->fd, (const uint8_t *)head.data, head.len, 0);
    w->data_at = head.len;
    if (e != 0)
        st = err_set(w->err, CALLA_ERR_IO, "cannot write %s: %s", name.s, strerror(e));
    else
        st = write_items(w, shard, name.s);
    const calla_status closed = close_file(w, name.s, w->fd);
    if (st == CALLA_OK) st = closed;
fail:
    strbuf_deinit(&head);
    return st;
}

/* Writes and empties a text. */
static calla_status write_text(writer *w, const char *name, strbuf *text)
{
    int fd = -1;
    calla_status st = CALLA_OK;
    if (text->failed) {
        st = err_set(w->err, CALLA_ERR_MEMORY, "no memory for %s", name);
        goto fail;
    }
    TRY(create_file(w, name, &fd));
    const int e = write_all(fd, (const uint8_t *)text->data, text->len, 0);
    st = close_file(w, name, fd);
    if (e != 0) st = err_set(w->err, CALLA_ERR_IO, "cannot write %s: %s", name, strerror(e));
fail:
    strbuf_deinit(text);
    return st;
}

static calla_status write_index(writer *w)
{
    const plan *p = w->plan;
    strbuf b = {0};
    (void)strbuf_printf(&b,
                        "{\n    \"metadata\": {\n        \"total_size\": %llu\n    },\n"
                        "    \"weight_map\": {",
                        (unsigned long long)p->n_bytes);
    for (size_t i = 0; i < p->n; i++)
        (void)strbuf_printf(&b, "%s\n        \"%s\": \"%s\"", i == 0 ? "" : ",", p->items[i].name,
                            shard_name(p, p->items[i].shard).s);
    (void)strbuf_puts(&b, "\n    }\n}\n");
    return write_text(w, CHECKPOINT_INDEX, &b);
}

static calla_status copy_template(writer *w)
{
    char *data = NULL;
    size_t n = 0;
    strbuf b = {0};
    if (w->options->chat_template == NULL) return CALLA_OK;
    const calla_status st = file_read(w->options->chat_template, 1u << 20, &data, &n, w->err);
    if (st != CALLA_OK) return st;
    (void)strbuf_append(&b, data, n);
    mem_free(data);
    return write_text(w, "chat_template.jinja", &b);
}

static calla_status write_json_files(writer *w)
{
    const model_shape *s = w->plan->shape;
    calla_status st;
    strbuf b = {0};
    (void)synth_config(&b, s);
    TRY(write_text(w, "config.json", &b));
    (void)synth_generation_config(&b, s);
    TRY(write_text(w, "generation_config.json", &b));
    (void)synth_tokenizer(&b, synth_n_tokens(s));
    TRY(write_text(w, "tokenizer.json", &b));
    (void)synth_tokenizer_config(&b, s);
    TRY(write_text(w, "tokenizer_config.json", &b));
    TRY(write_index(w));
    st = copy_template(w);
fail:
    return st;
}

/* ---- The folder ---- */

/* Allocates nothing: it has to work when memory ran out. */
static void remove_partial(const writer *w)
{
    static const char *const names[] = {"config.json",    "generation_config.json",
                                        "tokenizer.json", "tokenizer_config.json",
                                        CHECKPOINT_INDEX, "chat_template.jinja"};
    for (size_t i = 0; w->dir_fd >= 0 && i < sizeof names / sizeof *names; i++)
        (void)unlinkat(w->dir_fd, names[i], 0);
    for (uint32_t i = 0; w->dir_fd >= 0 && i < w->plan->n_shards; i++)
        (void)unlinkat(w->dir_fd, shard_name(w->plan, i).s, 0);
    (void)rmdir(w->dir);
}

/* "OUT.partial-PID", made; OUT must not exist, its parent needs room. */
static calla_status make_dir(writer *w, const char *out)
{
    strbuf b = {0};
    struct stat sb;
    struct statvfs fs;
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        n--;
    if (n == 0) return err_set(w->err, CALLA_ERR_ARGUMENT, "expected a new folder, found no name");
    (void)strbuf_append(&b, out, n);
    /* Before anything is written: a broken link, too, would only be met by rename(). */
    if (!b.failed && lstat(b.data, &sb) == 0) {
        strbuf_deinit(&b);
        return err_set(w->err, CALLA_ERR_IO, "%s exists already: expected a new folder", out);
    }
    if (!strbuf_printf(&b, ".partial-%ld", (long)getpid())) {
        strbuf_deinit(&b);
        return err_set(w->err, CALLA_ERR_MEMORY, "no memory for a file name");
    }
    w->dir = b.data;
    if (mkdir(w->dir, 0777) != 0)
        return err_set(w->err, CALLA_ERR_IO, "cannot make the folder %s: %s", w->dir,
                       strerror(errno));
    w->made = true;
    w->dir_fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->dir_fd < 0)
        return err_set(w->err, CALLA_ERR_IO, "cannot open the folder %s: %s", w->dir,
                       strerror(errno));
    if (fstatvfs(w->dir_fd, &fs) == 0) {
        const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (room < w->plan->n_bytes + SPARE_BYTES)
            return err_set(w->err, CALLA_ERR_IO,
                           "%s: not enough room on the disk: expected %llu bytes free, found %llu",
                           out, (unsigned long long)(w->plan->n_bytes + SPARE_BYTES),
                           (unsigned long long)room);
    }
    return CALLA_OK;
}

static calla_status write_all_files(writer *w, const char *out)
{
    calla_status st;
    TRY(make_dir(w, out));
    TRY(pool_create(&w->pool, w->options->n_threads, w->err));
    const uint32_t n_threads = pool_n_threads(w->pool);
    w->max_chunks = 16 * n_threads;
    w->chunks = mem_array(w->max_chunks, sizeof *w->chunks);
    w->buffers = mem_alloc((size_t)n_threads * CHUNK_BYTES);
    if (w->chunks == NULL || w->buffers == NULL) {
        st = err_set(w->err, CALLA_ERR_MEMORY, "no memory for %u buffers", n_threads);
        goto fail;
    }
    for (uint32_t i = 0; i < w->plan->n_shards; i++)
        TRY(write_shard(w, i));
    TRY(write_json_files(w));
    if (rename(w->dir, out) != 0)
        st = err_set(w->err, CALLA_ERR_IO, "cannot rename %s to %s: %s", w->dir, out,
                     strerror(errno));
fail:
    if (st != CALLA_OK && w->made) remove_partial(w);
    if (w->dir_fd >= 0) (void)close(w->dir_fd);
    pool_destroy(w->pool);
    mem_free(w->chunks);
    mem_free(w->buffers);
    mem_free(w->dir);
    return st;
}

calla_status synth_write(const char *out, const synth_options *options, uint64_t *n_bytes,
                         calla_error *err)
{
    model_shape shape;
    plan p;
    calla_status st = synth_shape(&shape, options->shape, options->n_layers, err);
    if (st != CALLA_OK) return st;
    if (plan_make(&p, &shape, options->seed)) {
        writer w = {.plan = &p, .options = options, .err = err, .dir_fd = -1};
        st = write_all_files(&w, out);
        if (n_bytes != NULL) *n_bytes = p.n_bytes;
    } else {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the list of tensors");
    }
    mem_free(p.items);
    return st;
}

/* ---- Shapes ---- */

static const model_shape full_shape = {
    .n_layers = 40,
    .hidden = 2048,
    .n_vocab = 248320,
    .max_context = 262144,
    .full_interval = 4,
    .n_heads = 16,
    .n_kv_heads = 2,
    .head_dim = MODEL_HEAD_DIM,
    .rotary_dim = MODEL_ROTARY_DIM,
    .gdn_k_heads = 16,
    .gdn_v_heads = 32,
    .gdn_k_dim = MODEL_GDN_DIM,
    .gdn_v_dim = MODEL_GDN_DIM,
    .conv_kernel = MODEL_CONV_KERNEL,
    .n_experts = 256,
    .n_experts_used = 8,
    .expert_width = 512,
    .shared_width = 512,
    .rms_eps = 1e-6f,
    .rope_theta = 1e7f,
};

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
    *out = full_shape;
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
    mem_free(p.items);
    return ok ? p.n_bytes : 0;
}
