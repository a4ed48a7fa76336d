#include "format/ckpt_writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/ck.h"
#include "base/pool.h"

#define CHUNK_BYTES (1u << 20)
#define PIECE_BYTES (2u << 20)    /* of one write: a large page of the page cache (residence.h) */
#define SPARE_BYTES (64ull << 20) /* for the JSON files, and not to fill the disk */

/* ---- The list ---- */

bool cw_add(cw_list *l, const char *name, st_dtype dtype, uint32_t n_dims, const uint64_t *dims)
{
    if (l->n == l->cap) {
        const size_t cap = l->cap == 0 ? 256 : 2 * l->cap;
        cw_tensor *items = mem_resize(l->items, cap * sizeof *items);
        if (items == NULL) {
            l->failed = true;
            return false;
        }
        l->items = items;
        l->cap = cap;
    }
    cw_tensor *t = &l->items[l->n];
    memset(t, 0, sizeof *t);
    const int n_name = snprintf(t->name, sizeof t->name, "%s", name);
    bool ok = n_name > 0 && (size_t)n_name < sizeof t->name && n_dims <= CKPT_WRITER_DIMS_MAX;
    t->dtype = dtype;
    t->n_dims = n_dims;
    t->n_bytes = st_dtype_bytes(dtype);
    for (uint32_t d = 0; ok && d < n_dims; d++) {
        t->dims[d] = dims[d];
        ok = ck_mul(t->n_bytes, dims[d], &t->n_bytes);
    }
    ok = ok && ck_add(l->n_bytes, t->n_bytes, &l->n_bytes);
    l->failed = l->failed || !ok;
    l->n += ok ? 1 : 0;
    return ok;
}

/* Shards in order; a new one begins when the next tensor would pass the limit. */
static uint32_t place(cw_list *l, uint64_t shard_bytes)
{
    uint64_t at = 0;
    uint32_t n_shards = 0;
    for (size_t i = 0; i < l->n; i++) {
        cw_tensor *t = &l->items[i];
        if (i == 0 || (at != 0 && at + t->n_bytes > shard_bytes)) {
            n_shards++;
            at = 0;
        }
        t->shard = n_shards - 1;
        t->offset = at;
        at += t->n_bytes;
    }
    return n_shards;
}

/* ---- Writing ---- */

typedef struct chunk {
    uint32_t n;
    size_t i_tensor;
    uint64_t offset; /* in the tensor */
    size_t at;       /* in the stage */
} chunk;

/* Contents pass through the stage, a stretch of the shard that begins at a multiple of PIECE_BYTES:
 * first it is filled by chunks, then what is whole of it is written in pieces. */
typedef struct writer {
    const cw_list *list;
    const cw_options *options;
    uint32_t n_shards;
    calla_error *err;
    char *dir; /* temporary */
    int dir_fd;
    bool made; /* the folder is ours */
    pool *pool;
    uint8_t *buffers; /* CHUNK_BYTES per thread: aligned, which the stage's contents are not */
    uint8_t *stage;
    size_t n_stage, stage_cap;
    uint64_t stage_at; /* in the shard */
    chunk *chunks;     /* that the stage has room for */
    uint32_t n_chunks, max_chunks;
    int fd;
    uint64_t done;
    _Atomic int fault; /* errno of a worker */
} writer;

static size_t min_size(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

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

static void fill_chunk(void *ctx, uint32_t i_task, uint32_t i_thread)
{
    writer *w = ctx;
    const chunk *c = &w->chunks[i_task];
    uint8_t *buf = w->buffers + (size_t)i_thread * CHUNK_BYTES;
    w->options->fill(w->options->user, c->i_tensor, c->offset, c->n, buf);
    memcpy(w->stage + c->at, buf, c->n);
}

static void write_piece(void *ctx, uint32_t i_task, uint32_t i_thread)
{
    writer *w = ctx;
    const size_t at = (size_t)i_task * PIECE_BYTES;
    (void)i_thread;
    const int e =
        write_all(w->fd, w->stage + at, min_size(w->n_stage - at, PIECE_BYTES), w->stage_at + at);
    if (e != 0) atomic_store(&w->fault, e);
}

/* Fills and writes what the stage holds, without an unfinished piece at its end unless it is the
 * shard's last; then reports. */
static calla_status flush_stage(writer *w, const char *name, bool last)
{
    pool_run(w->pool, fill_chunk, w, w->n_chunks);
    const size_t n = last ? w->n_stage : w->n_stage - w->n_stage % PIECE_BYTES;
    pool_run(w->pool, write_piece, w, (uint32_t)((n + PIECE_BYTES - 1) / PIECE_BYTES));
    const int e = atomic_load(&w->fault);
    if (e != 0) return err_set(w->err, CALLA_ERR_IO, "cannot write %s: %s", name, strerror(e));
    memmove(w->stage, w->stage + n, w->n_stage - n);
    w->n_stage -= n;
    w->stage_at += n;
    for (uint32_t i = 0; i < w->n_chunks; i++)
        w->done += w->chunks[i].n;
    w->n_chunks = 0;
    const cw_options *o = w->options;
    if (o->progress != NULL && !o->progress(o->progress_user, w->done, w->list->n_bytes))
        return err_set(w->err, CALLA_ERR_CANCELLED, "cancelled; nothing was kept");
    return CALLA_OK;
}

/* The stage keeps room for a chunk at any time. */
static calla_status flush_when_full(writer *w, const char *name)
{
    const bool full = w->stage_cap - w->n_stage < CHUNK_BYTES || w->n_chunks == w->max_chunks;
    return full ? flush_stage(w, name, false) : CALLA_OK;
}

static calla_status write_header(writer *w, const strbuf *head, const char *name)
{
    calla_status st = CALLA_OK;
    for (size_t at = 0; at < head->len;) {
        const size_t n = min_size(head->len - at, CHUNK_BYTES);
        memcpy(w->stage + w->n_stage, head->data + at, n);
        w->n_stage += n;
        at += n;
        TRY(flush_when_full(w, name));
    }
fail:
    return st;
}

static calla_status write_tensors(writer *w, uint32_t shard, const char *name)
{
    calla_status st = CALLA_OK;
    for (size_t i = 0; i < w->list->n; i++) {
        const cw_tensor *t = &w->list->items[i];
        if (t->shard != shard) continue;
        for (uint64_t at = 0; at < t->n_bytes; at += CHUNK_BYTES) {
            const size_t n = min_size(t->n_bytes - at, CHUNK_BYTES);
            w->chunks[w->n_chunks++] = (chunk){(uint32_t)n, i, at, w->n_stage};
            w->n_stage += n;
            TRY(flush_when_full(w, name));
        }
    }
    st = flush_stage(w, name, true);
fail:
    return st;
}

/* The header of a shard with its length before it, ended by blanks where the data would not begin
 * as asked. */
static bool shard_header(strbuf *b, const writer *w, uint32_t shard)
{
    (void)strbuf_append(b, "\0\0\0\0\0\0\0\0", 8);
    (void)strbuf_puts(b, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < w->list->n; i++) {
        const cw_tensor *t = &w->list->items[i];
        if (t->shard != shard) continue;
        (void)strbuf_putc(b, ',');
        (void)json_write_string(b, t->name, strlen(t->name));
        (void)strbuf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->n_dims; d++)
            (void)strbuf_printf(b, "%s%llu", d == 0 ? "" : ",", (unsigned long long)t->dims[d]);
        (void)strbuf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->offset,
                            (unsigned long long)t->offset + t->n_bytes);
    }
    (void)strbuf_putc(b, '}');
    while (!b->failed && (w->options->odd ? b->len % 2 == 0 : b->len % 8 != 0))
        (void)strbuf_putc(b, ' ');
    for (unsigned i = 0; i < 8 && !b->failed; i++)
        b->data[i] = (char)((uint64_t)(b->len - 8) >> (8 * i) & 0xff);
    return !b->failed;
}

typedef struct file_name {
    char s[48];
} file_name;

static file_name shard_name(const writer *w, uint32_t i)
{
    file_name f;
    if (w->n_shards == 1)
        (void)snprintf(f.s, sizeof f.s, CHECKPOINT_SINGLE);
    else
        (void)snprintf(f.s, sizeof f.s, "model-%05u-of-%05u.safetensors", i + 1, w->n_shards);
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
    const file_name name = shard_name(w, shard);
    strbuf head = {0};
    calla_status st = CALLA_OK;
    if (!shard_header(&head, w, shard)) {
        st = err_set(w->err, CALLA_ERR_MEMORY, "no memory for the header of %s", name.s);
        goto fail;
    }
    TRY(create_file(w, name.s, &w->fd));
    w->stage_at = w->n_stage = 0;
    st = write_header(w, &head, name.s);
    if (st == CALLA_OK) st = write_tensors(w, shard, name.s);
    const calla_status closed = close_file(w, name.s, w->fd);
    if (st == CALLA_OK) st = closed;
fail:
    strbuf_deinit(&head);
    return st;
}

static calla_status write_file(writer *w, const char *name, const char *data, size_t n)
{
    int fd = -1;
    calla_status st;
    TRY(create_file(w, name, &fd));
    const int e = write_all(fd, (const uint8_t *)data, n, 0);
    st = close_file(w, name, fd);
    if (e != 0) st = err_set(w->err, CALLA_ERR_IO, "cannot write %s: %s", name, strerror(e));
fail:
    return st;
}

static calla_status write_index(writer *w)
{
    const cw_list *l = w->list;
    strbuf b = {0};
    (void)strbuf_printf(&b,
                        "{\n    \"metadata\": {\n        \"total_size\": %llu\n    },\n"
                        "    \"weight_map\": {",
                        (unsigned long long)l->n_bytes);
    for (size_t i = 0; i < l->n; i++) {
        (void)strbuf_puts(&b, i == 0 ? "\n        " : ",\n        ");
        (void)json_write_string(&b, l->items[i].name, strlen(l->items[i].name));
        (void)strbuf_printf(&b, ": \"%s\"", shard_name(w, l->items[i].shard).s);
    }
    (void)strbuf_puts(&b, "\n    }\n}\n");
    const calla_status st = b.failed ? err_set(w->err, CALLA_ERR_MEMORY, "no memory for the index")
                                     : write_file(w, CHECKPOINT_INDEX, b.data, b.len);
    strbuf_deinit(&b);
    return st;
}

/* ---- The folder ---- */

/* Allocates nothing: it has to work when memory ran out. */
static void remove_partial(const writer *w)
{
    for (size_t i = 0; w->dir_fd >= 0 && i < w->options->n_files; i++)
        (void)unlinkat(w->dir_fd, w->options->files[i].name, 0);
    for (uint32_t i = 0; w->dir_fd >= 0 && i < w->n_shards; i++)
        (void)unlinkat(w->dir_fd, shard_name(w, i).s, 0);
    if (w->dir_fd >= 0) (void)unlinkat(w->dir_fd, CHECKPOINT_INDEX, 0);
    (void)rmdir(w->dir);
}

/* What a killed process left: its folder is nobody's, and nobody holds its lock. */
static void remove_stale(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        if (fd >= 0) (void)close(fd);
        return;
    }
    for (const struct dirent *d; (d = readdir(dir)) != NULL;)
        (void)unlinkat(fd, d->d_name, 0); /* files; folders are none of ours */
    (void)closedir(dir);
    (void)rmdir(path);
}

/* `stem`: "OUT.partial-" */
static void remove_all_stale(const char *stem)
{
    const char *slash = strrchr(stem, '/'), *name = slash == NULL ? stem : slash + 1;
    strbuf b = {0};
    (void)strbuf_append(&b, stem, (size_t)(name - stem));
    const size_t n_parent = b.len;
    DIR *dir = b.failed ? NULL : opendir(n_parent == 0 ? "." : b.data);
    if (dir == NULL) {
        strbuf_deinit(&b);
        return;
    }
    for (const struct dirent *d; (d = readdir(dir)) != NULL;) {
        if (strncmp(d->d_name, name, strlen(name)) != 0) continue;
        const char *digits = d->d_name + strlen(name);
        const size_t n = strspn(digits, "0123456789");
        if (n == 0 || n > 9 || digits[n] != '\0') continue;
        if (kill((pid_t)strtol(digits, NULL, 10), 0) == 0 || errno != ESRCH) continue;
        b.len = n_parent;
        if (strbuf_puts(&b, d->d_name)) remove_stale(b.data);
    }
    (void)closedir(dir);
    strbuf_deinit(&b);
}

static calla_status check_room(const writer *w, const char *out)
{
    struct statvfs fs;
    if (fstatvfs(w->dir_fd, &fs) != 0) return CALLA_OK;
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room >= w->list->n_bytes + SPARE_BYTES) return CALLA_OK;
    return err_set(w->err, CALLA_ERR_IO,
                   "%s: not enough room on the disk: expected %llu bytes free, found %llu", out,
                   (unsigned long long)(w->list->n_bytes + SPARE_BYTES), (unsigned long long)room);
}

/* "OUT.partial-PID", made; OUT must not exist, its parent needs room. */
static calla_status make_dir(writer *w, const char *out)
{
    strbuf b = {0};
    struct stat sb;
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
    if (strbuf_puts(&b, ".partial-")) remove_all_stale(b.data);
    if (!strbuf_printf(&b, "%ld", (long)getpid())) {
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
    (void)flock(w->dir_fd, LOCK_EX | LOCK_NB);
    return check_room(w, out);
}

static calla_status write_folder(writer *w, const char *out)
{
    calla_status st;
    const cw_options *o = w->options;
    TRY(make_dir(w, out));
    TRY(pool_create(&w->pool, o->n_threads, w->err));
    const uint32_t n_threads = pool_n_threads(w->pool);
    /* Many small tensors are a chunk each. */
    w->max_chunks = 64 * n_threads;
    w->stage_cap = (size_t)(2 * n_threads + 1) * PIECE_BYTES;
    w->stage = mem_alloc(w->stage_cap);
    w->chunks = mem_array(w->max_chunks, sizeof *w->chunks);
    w->buffers = mem_alloc((size_t)n_threads * CHUNK_BYTES);
    if (w->chunks == NULL || w->buffers == NULL || w->stage == NULL) {
        st = err_set(w->err, CALLA_ERR_MEMORY, "no memory for %u buffers", n_threads);
        goto fail;
    }
    for (uint32_t i = 0; i < w->n_shards; i++)
        TRY(write_shard(w, i));
    for (size_t i = 0; i < o->n_files; i++)
        TRY(write_file(w, o->files[i].name, o->files[i].data, o->files[i].n));
    TRY(write_index(w));
    if (rename(w->dir, out) != 0) {
        const int e = errno;
        struct stat sb;
        if (lstat(out, &sb) == 0)
            st = err_set(w->err, CALLA_ERR_IO, "%s has come into being meanwhile", out);
        else
            st = err_set(w->err, CALLA_ERR_IO, "cannot rename %s to %s: %s", w->dir, out,
                         strerror(e));
    }
fail:
    return st;
}

calla_status ckpt_write(const char *out, cw_list *tensors, const cw_options *options,
                        calla_error *err)
{
    if (tensors->failed) return err_set(err, CALLA_ERR_MEMORY, "no memory for the list of tensors");
    const uint64_t limit = options->shard_bytes == 0 ? CKPT_SHARD_BYTES_MAX : options->shard_bytes;
    writer w = {.list = tensors,
                .options = options,
                .n_shards = place(tensors, limit),
                .err = err,
                .dir_fd = -1};
    const calla_status st = write_folder(&w, out);
    if (st != CALLA_OK && w.made) remove_partial(&w);
    if (w.dir_fd >= 0) (void)close(w.dir_fd);
    pool_destroy(w.pool);
    mem_free(w.chunks);
    mem_free(w.buffers);
    mem_free(w.stage);
    mem_free(w.dir);
    return st;
}
