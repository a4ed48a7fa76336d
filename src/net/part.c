#include "net/part.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "net/disk.h"

static calla_status fail(calla_error *err, const char *what, const char *path)
{
    return err_set(err, CALLA_ERR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static calla_status write_at(int fd, const char *path, uint64_t offset, const void *data, size_t n,
                             calla_error *err)
{
    const char *p = data;
    while (n > 0) {
        const ssize_t w = pwrite(fd, p, n, (off_t)offset);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return fail(err, "write", path);
        p += w;
        offset += (uint64_t)w;
        n -= (size_t)w;
    }
    return CALLA_OK;
}

static uint32_t count_blocks(uint64_t size)
{
    return (uint32_t)((size + PART_BLOCK - 1) / PART_BLOCK);
}

/* The map as it is on the disk; false when it is not one of this file. */
static bool read_map(part *p)
{
    char *text = NULL;
    size_t n = 0;
    if (file_read(p->map_path, (uint64_t)p->n_blocks, &text, &n, NULL) != CALLA_OK) return false;
    bool ok = n == p->n_blocks;
    for (size_t i = 0; ok && i < n; i++)
        ok = text[i] == PART_TODO || text[i] == PART_DONE;
    if (ok) memcpy(p->blocks, text, n);
    mem_free(text);
    return ok;
}

static void count_done(part *p)
{
    p->n_done = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++)
        p->n_done += p->blocks[i] == PART_DONE;
}

static calla_status write_map(part *p, calla_error *err)
{
    calla_status st;
    TRY(write_at(p->map_fd, p->map_path, 0, p->blocks, p->n_blocks, err));
    if (ftruncate(p->map_fd, (off_t)p->n_blocks) != 0) return fail(err, "write", p->map_path);
    TRY(disk_sync(p->map_fd, p->map_path, err));
fail:
    return st;
}

/* A new file of the right size in the place of whatever is there. */
static calla_status make_file(part *p, calla_error *err)
{
    if (p->fd >= 0) (void)close(p->fd);
    p->fd = -1;
    const calla_status st = disk_remove(p->path, err); /* it may be a link to one in use */
    if (st != CALLA_OK) return st;
    p->fd = open(p->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (p->fd < 0) return fail(err, "make", p->path);
    if (ftruncate(p->fd, (off_t)p->size) != 0) return fail(err, "write", p->path);
    return CALLA_OK;
}

calla_status part_reset(part *p, calla_error *err)
{
    calla_status st;
    memset(p->blocks, PART_TODO, p->n_blocks);
    p->n_done = 0;
    TRY(write_map(p, err));
    TRY(make_file(p, err));
fail:
    return st;
}

static calla_status set_names(part *p, const char *dir, const char *name, calla_error *err)
{
    strbuf map = {0};
    (void)strbuf_printf(&map, "%s/%s.map", dir, name);
    p->path = disk_path(dir, name, NULL);
    p->blocks = mem_alloc((size_t)p->n_blocks + 1);
    p->map_path = map.data;
    if (p->path && p->blocks && !map.failed) return CALLA_OK;
    return err_set(err, CALLA_ERR_MEMORY, "no memory for the download of %s", name);
}

calla_status part_open(part *p, const char *dir, const char *name, uint64_t size, calla_error *err)
{
    calla_status st;
    uint64_t found = 0;
    *p = (part){.fd = -1, .map_fd = -1, .size = size, .n_blocks = count_blocks(size)};
    TRY(set_names(p, dir, name, err));
    const bool there = disk_size(p->path, &found) && found == size;
    const bool mapped = file_exists(p->map_path);
    if (!mapped && there) {
        p->checked = true;
        p->n_done = p->n_blocks;
        memset(p->blocks, PART_DONE, p->n_blocks);
        return CALLA_OK;
    }
    if (!mapped) TRY(disk_remove(p->path, err));
    const bool good = mapped && there && read_map(p);
    p->map_fd = open(p->map_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (p->map_fd < 0) return fail(err, "make", p->map_path);
    if (!good) return part_reset(p, err);
    p->fd = open(p->path, O_RDWR | O_CLOEXEC);
    if (p->fd < 0) return fail(err, "open", p->path);
    count_done(p);
fail:
    return st;
}

void part_close(part *p)
{
    if (!p->path) return;
    if (p->fd >= 0) (void)close(p->fd);
    if (p->map_fd >= 0) (void)close(p->map_fd);
    mem_free(p->path);
    mem_free(p->map_path);
    mem_free(p->blocks);
    *p = (part){.fd = -1, .map_fd = -1};
}

bool part_adopt(const char *dir, const char *name, uint64_t size, const char *from)
{
    part p = {.fd = -1, .map_fd = -1, .size = size, .n_blocks = count_blocks(size)};
    bool ok = false;
    if (set_names(&p, dir, name, NULL) == CALLA_OK && !file_exists(p.path) &&
        !file_exists(p.map_path)) {
        memset(p.blocks, PART_DONE, p.n_blocks);
        p.map_fd = open(p.map_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        ok = p.map_fd >= 0 && write_map(&p, NULL) == CALLA_OK && link(from, p.path) == 0;
        if (!ok) (void)unlink(p.map_path);
    }
    part_close(&p);
    return ok;
}

uint64_t part_peek(const char *dir, const char *name, uint64_t size)
{
    part p = {.fd = -1, .map_fd = -1, .size = size, .n_blocks = count_blocks(size)};
    uint64_t found = 0, n = 0;
    if (set_names(&p, dir, name, NULL) == CALLA_OK && disk_size(p.path, &found) && found == size) {
        if (!file_exists(p.map_path)) {
            n = size;
        } else if (read_map(&p)) {
            count_done(&p);
            n = part_bytes_done(&p);
        }
    }
    part_close(&p);
    return n;
}

calla_status part_write(const part *p, uint64_t offset, const void *data, size_t n,
                        calla_error *err)
{
    return write_at(p->fd, p->path, offset, data, n, err);
}

calla_status part_mark(const part *p, uint32_t first, uint32_t end, calla_error *err)
{
    char marks[256];
    calla_status st;
    memset(marks, PART_DONE, sizeof marks);
    TRY(disk_sync(p->fd, p->path, err));
    while (first < end) {
        const uint32_t n = end - first < sizeof marks ? end - first : (uint32_t)sizeof marks;
        TRY(write_at(p->map_fd, p->map_path, first, marks, n, err));
        first += n;
    }
fail:
    return st;
}

uint64_t part_block_bytes(const part *p, uint32_t i)
{
    const uint64_t left = p->size - i * PART_BLOCK;
    return left < PART_BLOCK ? left : PART_BLOCK;
}

uint64_t part_bytes_done(const part *p)
{
    uint64_t n = p->n_done * PART_BLOCK;
    if (p->n_blocks > 0 && p->blocks[p->n_blocks - 1] == PART_DONE)
        n -= PART_BLOCK - part_block_bytes(p, p->n_blocks - 1);
    return n;
}

calla_status part_finish(part *p, calla_error *err)
{
    if (p->checked) return CALLA_OK;
    calla_status st = disk_sync(p->fd, p->path, err);
    if (st == CALLA_OK) st = disk_remove(p->map_path, err);
    if (st == CALLA_OK) p->checked = true;
    return st;
}
