#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#if defined(__APPLE__)
#define MTIME(sb) ((sb).st_mtimespec)
#else
#define MTIME(sb) ((sb).st_mtim)
#endif

#define MAX_READ ((size_t)1 << 30) /* macOS refuses 2 GB and more at once */

/* Opens a regular file; -1 with err set otherwise. O_NONBLOCK: a FIFO must not hang the open. */
static int open_regular(const char *path, uint64_t *size, int64_t *mtime_ns, calla_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat sb;
    if (fd < 0) {
        (void)err_set(err, CALLA_ERR_IO, "cannot open %s: %s", path, strerror(errno));
        return -1;
    }
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        (void)err_set(err, CALLA_ERR_IO, "%s is not a regular file", path);
        (void)close(fd);
        return -1;
    }
    *size = (uint64_t)sb.st_size;
    *mtime_ns = (int64_t)((uint64_t)MTIME(sb).tv_sec * 1000000000u + (uint64_t)MTIME(sb).tv_nsec);
    return fd;
}

calla_status filemap_open(filemap *map, const char *path, calla_error *err)
{
    uint64_t size = 0;
    *map = (filemap){0};
    const int fd = open_regular(path, &size, &map->mtime_ns, err);
    if (fd < 0) return CALLA_ERR_IO;
    void *p = NULL;
    if (size != 0) {
        p = size > SIZE_MAX ? MAP_FAILED : mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    }
    const int e = errno;
    (void)close(fd);
    if (p == MAP_FAILED) return err_set(err, CALLA_ERR_IO, "cannot map %s: %s", path, strerror(e));
    map->data = p;
    map->size = size;
    return CALLA_OK;
}

void filemap_close(filemap *map)
{
    if (map->data != NULL) (void)munmap((void *)(uintptr_t)map->data, (size_t)map->size);
    *map = (filemap){0};
}

static calla_status read_fd(int fd, char *buf, size_t n, const char *path, calla_error *err)
{
    size_t done = 0;
    while (done < n) {
        const ssize_t r = read(fd, buf + done, n - done < MAX_READ ? n - done : MAX_READ);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return err_set(err, CALLA_ERR_IO, "cannot read %s: %s", path, strerror(errno));
        if (r == 0) return err_set(err, CALLA_ERR_IO, "%s became shorter while it was read", path);
        done += (size_t)r;
    }
    return CALLA_OK;
}

calla_status file_read(const char *path, uint64_t max_bytes, char **data, size_t *n,
                       calla_error *err)
{
    uint64_t size = 0;
    int64_t mtime_ns;
    *data = NULL;
    *n = 0;
    const int fd = open_regular(path, &size, &mtime_ns, err);
    if (fd < 0) return CALLA_ERR_IO;
    calla_status st = CALLA_OK;
    char *buf = NULL;
    if (size > max_bytes) {
        st = err_set(err, CALLA_ERR_FORMAT, "%s has %llu bytes, more than the limit of %llu", path,
                     (unsigned long long)size, (unsigned long long)max_bytes);
    } else if ((buf = mem_alloc((size_t)size + 1)) == NULL) {
        st = err_set(err, CALLA_ERR_MEMORY, "no memory for the %llu bytes of %s",
                     (unsigned long long)size, path);
    } else {
        st = read_fd(fd, buf, (size_t)size, path, err);
    }
    (void)close(fd);
    if (st != CALLA_OK) {
        mem_free(buf);
        return st;
    }
    *data = buf;
    *n = (size_t)size;
    return CALLA_OK;
}

bool file_sync(int fd)
{
#if defined(F_FULLFSYNC)
    if (fcntl(fd, F_FULLFSYNC) == 0) return true; /* not every file system can */
#endif
    return fsync(fd) == 0;
}

bool file_exists(const char *path)
{
    struct stat sb;
    return lstat(path, &sb) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool file_is_special(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && !S_ISREG(sb.st_mode) && !S_ISDIR(sb.st_mode);
}

char *path_join(const char *dir, const char *name)
{
    strbuf b = {0};
    (void)strbuf_puts(&b, dir);
    if (b.len != 0 && b.data[b.len - 1] != '/') (void)strbuf_putc(&b, '/');
    (void)strbuf_puts(&b, name);
    if (!b.failed) return b.data;
    strbuf_deinit(&b);
    return NULL;
}

calla_status folder_make_for(const char *path, calla_error *err)
{
    char *copy = mem_strdup(path);
    if (copy == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a path");
    calla_status st = CALLA_OK;
    for (char *p = strchr(copy + 1, '/'); p != NULL && st == CALLA_OK; p = strchr(p + 1, '/')) {
        *p = '\0';
        /* Above the folder anything may stand in the way of mkdir; what counts is the open. */
        if (mkdir(copy, 0700) != 0 && (errno == ENOENT || errno == ENOTDIR || errno == ENOSPC))
            st = err_set(err, CALLA_ERR_IO, "cannot make the folder %s: %s", copy, strerror(errno));
        *p = '/';
    }
    mem_free(copy);
    return st;
}
