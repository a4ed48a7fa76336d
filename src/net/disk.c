#include "net/disk.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/mem.h"

static calla_status fail(calla_error *err, const char *what, const char *path)
{
    return err_set(err, CALLA_ERR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

char *disk_path(const char *dir, const char *a, const char *b)
{
    strbuf s = {0};
    (void)strbuf_printf(&s, "%s/%s%s%s", dir, a, b ? "/" : "", b ? b : "");
    if (!s.failed) return s.data;
    strbuf_deinit(&s);
    return NULL;
}

calla_status disk_make_dirs(const char *path, calla_error *err)
{
    char *copy = mem_strdup(path);
    if (!copy) return err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
    calla_status st = CALLA_OK;
    for (char *p = copy + 1; st == CALLA_OK; p++) {
        if (*p != '/' && *p != '\0') continue;
        const char end = *p;
        *p = '\0';
        struct stat sb;
        if (mkdir(copy, 0777) != 0 && (errno != EEXIST || stat(copy, &sb) != 0)) {
            /* Above the folder others may own what is there: only a missing folder counts. */
            const int e = errno;
            if (stat(copy, &sb) != 0) {
                errno = e;
                st = fail(err, "make the folder", copy);
            }
        } else if (stat(copy, &sb) == 0 && !S_ISDIR(sb.st_mode)) {
            errno = ENOTDIR;
            st = fail(err, "make the folder", copy);
        }
        *p = end;
        if (end == '\0') break;
    }
    mem_free(copy);
    return st;
}

calla_status disk_remove(const char *path, calla_error *err)
{
    if (unlink(path) == 0 || errno == ENOENT) return CALLA_OK;
    return fail(err, "remove", path);
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

bool disk_is_link(const char *path)
{
    struct stat sb;
    return lstat(path, &sb) == 0 && S_ISLNK(sb.st_mode);
}

calla_status disk_remove_dir(const char *path, int depth, calla_error *err)
{
    if (disk_is_link(path)) return disk_remove(path, err); /* what it leads to is not ours */
    DIR *d = opendir(path);
    if (!d) return errno == ENOENT ? CALLA_OK : fail(err, "open the folder", path);
    calla_status st = CALLA_OK;
    const struct dirent *e;
    while (st == CALLA_OK && (e = readdir(d)) != NULL) {
        if (is_dots(e->d_name)) continue;
        char *name = disk_path(path, e->d_name, NULL);
        struct stat sb;
        if (!name)
            st = err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
        else if (depth > 0 && lstat(name, &sb) == 0 && S_ISDIR(sb.st_mode))
            st = disk_remove_dir(name, depth - 1, err);
        else
            st = disk_remove(name, err);
        mem_free(name);
    }
    (void)closedir(d);
    if (st == CALLA_OK && rmdir(path) != 0 && errno != ENOENT)
        st = fail(err, "remove the folder", path);
    return st;
}

calla_status disk_rename(const char *from, const char *to, calla_error *err)
{
    if (rename(from, to) == 0) return CALLA_OK;
    return err_set(err, CALLA_ERR_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
}

calla_status disk_sync(int fd, const char *path, calla_error *err)
{
#if defined(__APPLE__)
    if (fsync(fd) == 0) return CALLA_OK;
#else
    if (fdatasync(fd) == 0) return CALLA_OK;
#endif
    return fail(err, "write", path);
}

void disk_sync_dir(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    (void)close(fd);
}

static calla_status write_all(int fd, const char *path, const char *p, size_t n, calla_error *err)
{
    while (n > 0) {
        const ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return fail(err, "write", path);
        p += w;
        n -= (size_t)w;
    }
    return disk_sync(fd, path, err);
}

calla_status disk_write(const char *path, const void *data, size_t n, calla_error *err)
{
    strbuf tmp = {0};
    calla_status st;
    int fd = -1;
    if (!strbuf_printf(&tmp, "%s.new", path)) {
        strbuf_deinit(&tmp);
        return err_set(err, CALLA_ERR_MEMORY, "no memory for a file name");
    }
    fd = open(tmp.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = fail(err, "make", tmp.data);
        goto fail;
    }
    TRY(write_all(fd, tmp.data, data, n, err));
    TRY(disk_rename(tmp.data, path, err));
fail:
    if (fd >= 0) (void)close(fd);
    if (st != CALLA_OK) (void)unlink(tmp.data);
    strbuf_deinit(&tmp);
    return st;
}

uint64_t disk_free_bytes(const char *path)
{
    struct statvfs v;
    if (statvfs(path, &v) != 0) return UINT64_MAX;
    return (uint64_t)v.f_bavail * (uint64_t)(v.f_frsize ? v.f_frsize : v.f_bsize);
}

bool disk_size(const char *path, uint64_t *size)
{
    struct stat sb;
    if (stat(path, &sb) != 0 || !S_ISREG(sb.st_mode)) return false;
    *size = (uint64_t)sb.st_size;
    return true;
}

calla_status disk_lock_take(disk_lock *l, const char *path, calla_error *err)
{
    *l = (disk_lock){.fd = -1};
    for (;;) {
        const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) return fail(err, "make", path);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            const bool busy = errno == EWOULDBLOCK;
            const calla_status st = busy ? CALLA_ERR_FULL : fail(err, "lock", path);
            (void)close(fd);
            if (busy) (void)err_set(err, st, "another calla is at work there (%s)", path);
            return st;
        }
        /* The one before may have removed the file between our two calls. */
        struct stat here, there;
        if (fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino &&
            here.st_dev == there.st_dev) {
            l->fd = fd;
            l->path = mem_strdup(path);
            return CALLA_OK;
        }
        (void)close(fd);
    }
}

void disk_lock_drop(disk_lock *l)
{
    if (l->fd < 0) return;
    if (l->path) (void)unlink(l->path);
    (void)close(l->fd);
    mem_free(l->path);
    *l = (disk_lock){.fd = -1};
}
