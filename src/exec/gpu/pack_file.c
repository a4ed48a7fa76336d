#include "exec/gpu/pack_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/ck.h"
#include "base/hash.h"
#include "base/mem.h"

#define MAGIC           "calla\npk"
#define BYTE_ORDER_MARK 0x01020304u
#define PIECE           (1u << 20) /* of a checksum: one task */
#define PART            (16u << 20)

typedef struct header_blob {
    uint64_t off, bytes, sum;
} header_blob;

typedef struct header {
    char magic[8];
    uint32_t byte_order, version;
    uint64_t file_bytes;
    uint64_t source[2];
    uint32_t dims[PACK_DIMS];
    uint32_t n_blobs, page;
    header_blob blobs[PACK_BLOBS_MAX];
    uint8_t zero[PACK_PAGE - 8 * 18 - PACK_BLOBS_MAX * sizeof(header_blob) - 8];
    uint64_t sum; /* of all before it */
} header;
static_assert(sizeof(header) == PACK_PAGE, "the header is one page");

static uint64_t header_sum(const header *h)
{
    return hash64(h, offsetof(header, sum), PACK_VERSION);
}

/* The header that a file of this spec has, but for the blobs' checksums. False: too large. */
static bool header_make(header *h, const pack_spec *spec)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->byte_order = BYTE_ORDER_MARK;
    h->version = PACK_VERSION;
    memcpy(h->source, spec->source, sizeof h->source);
    memcpy(h->dims, spec->dims, sizeof h->dims);
    h->n_blobs = spec->n_blobs;
    h->page = PACK_PAGE;
    uint64_t off = PACK_PAGE;
    for (uint32_t i = 0; i < spec->n_blobs; i++) {
        h->blobs[i] = (header_blob){off, spec->blob_bytes[i], 0};
        if (!ck_add(off, spec->blob_bytes[i], &off) || !ck_add(off, PACK_PAGE - 1, &off))
            return false;
        off -= off % PACK_PAGE;
    }
    h->file_bytes = off;
    return true;
}

uint64_t pack_file_bytes(const pack_spec *spec)
{
    uint64_t off = PACK_PAGE;
    for (uint32_t i = 0; i < spec->n_blobs; i++) {
        if (!ck_add(off, spec->blob_bytes[i], &off) || !ck_add(off, PACK_PAGE - 1, &off))
            return UINT64_MAX;
        off -= off % PACK_PAGE;
    }
    return off;
}

/* ---- Checksum ---- */

/* A blob is summed in pieces; a part is what is handed on at once. */
typedef struct sum_task {
    const uint8_t *data;
    uint64_t n;
    uint32_t first; /* piece */
    _Atomic uint64_t sum;
} sum_task;

/* Pieces are seeded by their places, so that their sum does not depend on who adds when. */
static void sum_piece(void *p, uint32_t i, uint32_t i_thread)
{
    (void)i_thread;
    sum_task *t = p;
    const uint64_t off = (uint64_t)i * PIECE, left = t->n - off;
    const size_t n = left < PIECE ? (size_t)left : PIECE;
    const uint64_t h = hash64(t->data + off, n, t->first + i);
    (void)atomic_fetch_add_explicit(&t->sum, h, memory_order_relaxed);
}

/* Adds the part of a blob that begins at piece `first`; all parts but the last are whole pieces. */
static uint64_t sum_part(pool *p, const uint8_t *data, uint64_t n, uint64_t first)
{
    sum_task t = {.data = data, .n = n, .first = (uint32_t)first};
    const uint32_t n_pieces = (uint32_t)((n + PIECE - 1) / PIECE);
    if (p != NULL) {
        pool_run(p, sum_piece, &t, n_pieces);
    } else {
        for (uint32_t i = 0; i < n_pieces; i++)
            sum_piece(&t, i, 0);
    }
    return atomic_load(&t.sum);
}

/* Sums a blob and hands it to the sink (NULL: none) part by part. */
static calla_status sum_blob(pool *p, const uint8_t *data, uint64_t n, uint64_t *sum,
                             pack_sink sink, void *user, calla_error *err)
{
    uint64_t all[] = {0, n};
    calla_status st = CALLA_OK;
    for (uint64_t off = 0; off < n && st == CALLA_OK; off += PART) {
        const uint64_t k = n - off < PART ? n - off : PART;
        all[0] += sum_part(p, data + off, k, off / PIECE);
        if (sink != NULL) st = sink(user, off, data + off, k, err);
    }
    *sum = hash64(all, sizeof all, 0);
    return st;
}

uint64_t pack_sum(pool *p, const uint8_t *data, uint64_t n)
{
    uint64_t sum;
    (void)sum_blob(p, data, n, &sum, NULL, NULL, NULL);
    return sum;
}

/* ---- Reading ---- */

static calla_status cut_short(uint64_t want, uint64_t found, calla_error *err)
{
    return err_set(err, CALLA_ERR_FORMAT, "cut short: expected %llu bytes, found %llu",
                   (unsigned long long)want, (unsigned long long)found);
}

/* Is it a header of this version at all? */
static calla_status check_kind(const header *h, calla_error *err)
{
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return err_set(err, CALLA_ERR_FORMAT, "damaged header: it is no pack of calla's");
    if (h->byte_order != BYTE_ORDER_MARK)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "another byte order: expected %08x, found %08x",
                       BYTE_ORDER_MARK, h->byte_order);
    if (h->version != PACK_VERSION)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "another version: expected %u, found %u",
                       PACK_VERSION, h->version);
    if (h->sum != header_sum(h))
        return err_set(err, CALLA_ERR_FORMAT, "damaged header: its checksum differs");
    return CALLA_OK;
}

/* Is it what the spec describes? */
static calla_status check_spec(const header *h, const header *want, calla_error *err)
{
    if (memcmp(h->dims, want->dims, sizeof h->dims) != 0)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "made for a model of another shape");
    if (memcmp(h->source, want->source, sizeof h->source) != 0)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "made from another checkpoint, or from this one before it was changed");
    bool same =
        h->page == want->page && h->n_blobs == want->n_blobs && h->file_bytes == want->file_bytes;
    for (uint32_t i = 0; i < want->n_blobs && same; i++)
        same = h->blobs[i].off == want->blobs[i].off && h->blobs[i].bytes == want->blobs[i].bytes;
    if (same) return CALLA_OK;
    return err_set(err, CALLA_ERR_UNSUPPORTED,
                   "another layout: expected %u blobs in %llu bytes, "
                   "found %u in %llu or at other places",
                   want->n_blobs, (unsigned long long)want->file_bytes, h->n_blobs,
                   (unsigned long long)h->file_bytes);
}

calla_status pack_file_view(pack_file *f, const uint8_t *data, uint64_t n, const pack_spec *spec,
                            calla_error *err)
{
    *f = (pack_file){
        .map = {.data = data, .size = n}, .n_blobs = spec->n_blobs, .blob_bytes = spec->blob_bytes};
    if (n < PACK_PAGE) return cut_short(PACK_PAGE, n, err);
    header *both = mem_array(2, sizeof *both);
    if (both == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to read a pack");
    header *h = &both[0], *want = &both[1];
    memcpy(h, data, sizeof *h);
    calla_status st = CALLA_OK;
    if (!header_make(want, spec))
        st = err_set(err, CALLA_ERR_UNSUPPORTED, "the weights are too large for a file");
    if (st == CALLA_OK) st = check_kind(h, err);
    if (st == CALLA_OK) st = check_spec(h, want, err);
    if (st == CALLA_OK && n < want->file_bytes) st = cut_short(want->file_bytes, n, err);
    if (st == CALLA_OK && n > want->file_bytes)
        st = err_set(err, CALLA_ERR_FORMAT, "damaged: expected %llu bytes, found %llu",
                     (unsigned long long)want->file_bytes, (unsigned long long)n);
    mem_free(both);
    return st;
}

calla_status pack_file_open(pack_file *f, const char *path, const pack_spec *spec, calla_error *err)
{
    filemap map;
    *f = (pack_file){0};
    calla_status st = filemap_open(&map, path, err);
    if (st != CALLA_OK) return st;
    st = pack_file_view(f, map.data, map.size, spec, err);
    f->map = map;
    if (st != CALLA_OK) pack_file_close(f);
    return st;
}

static uint64_t blob_offset(const pack_file *f, uint32_t i)
{
    const pack_spec before = {.n_blobs = i, .blob_bytes = f->blob_bytes};
    return pack_file_bytes(&before);
}

const uint8_t *pack_file_data(const pack_file *f, uint32_t i)
{
    return f->map.data + blob_offset(f, i);
}

/* Lets the system read the next blob while this one is used. */
static void read_ahead(const pack_file *f, uint32_t i)
{
    if (i >= f->n_blobs || f->blob_bytes[i] == 0) return;
    const uintptr_t p = (uintptr_t)f->map.data + (uintptr_t)blob_offset(f, i);
    if (p % PACK_PAGE == 0)
        (void)posix_madvise((void *)p, (size_t)f->blob_bytes[i], POSIX_MADV_WILLNEED);
}

calla_status pack_file_blob(const pack_file *f, uint32_t i, pool *p, pack_sink sink, void *user,
                            calla_error *err)
{
    header_blob b;
    uint64_t sum;
    if (i == 0) read_ahead(f, 0);
    read_ahead(f, i + 1);
    memcpy(&b, f->map.data + offsetof(header, blobs) + i * sizeof b, sizeof b);
    const calla_status st =
        sum_blob(p, f->map.data + blob_offset(f, i), f->blob_bytes[i], &sum, sink, user, err);
    if (st != CALLA_OK || sum == b.sum) return st;
    return err_set(err, CALLA_ERR_FORMAT, "damaged: the checksum of blob %u of %u differs", i,
                   f->n_blobs);
}

void pack_file_close(pack_file *f)
{
    filemap_close(&f->map);
    *f = (pack_file){0};
}

/* ---- Writing ---- */

struct pack_writer {
    int fd;
    char *path, *tmp;
    header h;
    bool made, committed, done[PACK_BLOBS_MAX];
};

/* Is fd still the file of that name? */
static bool is_named(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* Opens and locks w->tmp. Whoever holds the lock may rename the file, so the name can go to
 * another file between open and lock; then once more. */
static calla_status lock_file(pack_writer *w, calla_error *err)
{
    struct stat sb;
    for (int i = 0; i < 100; i++) {
        w->fd = open(w->tmp, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (w->fd < 0)
            return err_set(err, CALLA_ERR_IO, "cannot create %s: %s", w->tmp, strerror(errno));
        if (flock(w->fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK)
                return err_set(err, CALLA_ERR_IO, "another process is writing %s", w->path);
            return err_set(err, CALLA_ERR_IO, "cannot lock %s: %s", w->tmp, strerror(errno));
        }
        if (is_named(w->fd, w->tmp)) {
            if (fstat(w->fd, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_nlink != 1)
                return err_set(err, CALLA_ERR_IO, "%s is not a file of its own", w->tmp);
            w->made = true;
            return CALLA_OK;
        }
        (void)close(w->fd);
        w->fd = -1;
    }
    return err_set(err, CALLA_ERR_IO, "%s is taken away again and again", w->tmp);
}

static calla_status check_space(const pack_writer *w, calla_error *err)
{
    struct statvfs v;
    uint64_t free_bytes, need;
    if (fstatvfs(w->fd, &v) != 0) return CALLA_OK; /* the writes will tell */
    if (!ck_mul(v.f_bavail, v.f_frsize, &free_bytes)) return CALLA_OK;
    if (ck_add(w->h.file_bytes, PACK_SPARE_BYTES, &need) && need <= free_bytes) return CALLA_OK;
    return err_set(err, CALLA_ERR_IO,
                   "%s needs %.2f GB, and %.2f GB shall stay free on its disk: found %.2f GB free",
                   w->path, (double)w->h.file_bytes / 1e9, (double)PACK_SPARE_BYTES / 1e9,
                   (double)free_bytes / 1e9);
}

calla_status pack_writer_open(pack_writer **out, const char *path, const pack_spec *spec,
                              calla_error *err)
{
    *out = NULL;
    pack_writer *w = mem_alloc(sizeof *w);
    if (w == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory to write a pack");
    strbuf tmp = {0};
    calla_status st = CALLA_OK;
    w->fd = -1;
    w->path = mem_strdup(path);
    (void)strbuf_printf(&tmp, "%s.tmp", path);
    w->tmp = tmp.data;
    if (w->path == NULL || tmp.failed)
        st = err_set(err, CALLA_ERR_MEMORY, "no memory to write a pack");
    else if (!header_make(&w->h, spec) || w->h.file_bytes > INT64_MAX)
        st = err_set(err, CALLA_ERR_IO, "the weights are too large for a file");
    if (st == CALLA_OK) st = folder_make_for(path, err);
    if (st == CALLA_OK) st = lock_file(w, err);
    if (st == CALLA_OK && ftruncate(w->fd, 0) != 0)
        st = err_set(err, CALLA_ERR_IO, "cannot write %s: %s", w->tmp, strerror(errno));
    if (st == CALLA_OK) st = check_space(w, err);
    if (st != CALLA_OK) {
        pack_writer_destroy(w);
        return st;
    }
    *out = w;
    return CALLA_OK;
}

static calla_status write_at(pack_writer *w, const void *data, uint64_t n, uint64_t off,
                             calla_error *err)
{
    const uint8_t *p = data;
    while (n != 0) {
        const ssize_t k = pwrite(w->fd, p, (size_t)n, (off_t)off);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return err_set(err, CALLA_ERR_IO, "cannot write %s: %s", w->tmp,
                           k < 0 ? strerror(errno) : "nothing was written");
        p += k;
        off += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return CALLA_OK;
}

typedef struct write_sink {
    pack_writer *w;
    uint64_t begin; /* of the blob in the file */
} write_sink;

static calla_status write_part(void *user, uint64_t off, const uint8_t *data, uint64_t n,
                               calla_error *err)
{
    const write_sink *s = user;
    return write_at(s->w, data, n, s->begin + off, err);
}

calla_status pack_writer_blob(pack_writer *w, uint32_t i, pool *p, const uint8_t *data,
                              calla_error *err)
{
    header_blob *b = &w->h.blobs[i];
    write_sink s = {w, b->off};
    const calla_status st = sum_blob(p, data, b->bytes, &b->sum, write_part, &s, err);
    w->done[i] = st == CALLA_OK;
    return st;
}

/* The entry in the folder; a file system that cannot is not worth a word. */
static void sync_folder(const char *path)
{
    char *copy = mem_strdup(path);
    char *slash = copy != NULL ? strrchr(copy, '/') : NULL;
    if (slash != NULL) {
        *(slash == copy ? slash + 1 : slash) = '\0';
        const int fd = open(copy, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            (void)file_sync(fd);
            (void)close(fd);
        }
    }
    mem_free(copy);
}

calla_status pack_writer_commit(pack_writer *w, calla_error *err)
{
    for (uint32_t i = 0; i < w->h.n_blobs; i++)
        if (!w->done[i])
            return err_set(err, CALLA_ERR_INTERNAL, "blob %u of %s is missing", i, w->path);
    w->h.sum = header_sum(&w->h);
    calla_status st = write_at(w, &w->h, sizeof w->h, 0, err);
    if (st != CALLA_OK) return st;
    if (ftruncate(w->fd, (off_t)w->h.file_bytes) != 0 || !file_sync(w->fd))
        return err_set(err, CALLA_ERR_IO, "cannot write %s: %s", w->tmp, strerror(errno));
    if (rename(w->tmp, w->path) != 0)
        return err_set(err, CALLA_ERR_IO, "cannot rename %s: %s", w->tmp, strerror(errno));
    w->committed = true;
    sync_folder(w->path);
    return CALLA_OK;
}

void pack_writer_destroy(pack_writer *w)
{
    if (w == NULL) return;
    if (w->made && !w->committed) (void)unlink(w->tmp); /* while it is locked */
    if (w->fd >= 0) (void)close(w->fd);
    mem_free(w->tmp);
    mem_free(w->path);
    mem_free(w);
}

/* ---- Names ---- */

char *pack_file_path(const char *dir, const char *model_dir)
{
    char real[PATH_MAX];
    const char *place = realpath(model_dir, real) != NULL ? real : model_dir;
    const char *slash = strrchr(place, '/');
    const char *name = slash != NULL && slash[1] != '\0' ? slash + 1 : place;
    char plain[65];
    size_t n = 0;
    for (; name[n] != '\0' && n < sizeof plain - 1; n++) {
        const char c = name[n];
        const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (c >= '0' && c <= '9') || c == '-' || (c == '.' && n != 0);
        plain[n] = ok ? c : '_';
    }
    plain[n] = '\0';
    strbuf b = {0};
    (void)strbuf_printf(&b, "%s%s%s-%016llx.pack", dir,
                        dir[0] != '\0' && dir[strlen(dir) - 1] != '/' ? "/" : "", plain,
                        (unsigned long long)hash64(place, strlen(place), 0));
    if (!b.failed) return b.data;
    strbuf_deinit(&b);
    return NULL;
}
