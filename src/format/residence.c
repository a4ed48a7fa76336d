#include "format/residence.h"

#if defined(__linux__)
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"

#define BLOCK  ((uint64_t)2 << 20)
#define WINDOW (16 * BLOCK) /* read between two calls of progress */

#if !defined(MADV_POPULATE_READ) /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

typedef struct fill {
    calla_progress_fn progress;
    void *user;
    uint64_t done, missing;
    calla_error *err;
} fill;

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* mincore() says of a file that is neither ours nor open to us for writing that all is cached. */
static bool may_ask(const char *path)
{
    struct stat sb;
    return access(path, W_OK) == 0 || (stat(path, &sb) == 0 && sb.st_uid == geteuid());
}

/* For each shard, in order: opens a mapping of its own and hands it to fn. */
typedef calla_status (*shard_fn)(void *ctx, const filemap *map, bool asks);

static calla_status each_shard(const checkpoint *ck, shard_fn fn, void *ctx, calla_error *err)
{
    calla_status st = CALLA_OK;
    for (size_t i = 0; st == CALLA_OK && i < checkpoint_n_shards(ck); i++) {
        char *path = path_join(checkpoint_dir(ck), checkpoint_shard_name(ck, i));
        filemap map = {0};
        if (path == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a path");
        st = filemap_open(&map, path, err);
        if (st == CALLA_OK && map.size != 0) st = fn(ctx, &map, may_ask(path));
        mem_free(path);
        filemap_close(&map);
    }
    return st;
}

static void *address(const filemap *map, uint64_t at)
{
    return (void *)(uintptr_t)(map->data + at);
}

static bool is_cached(const filemap *map, uint64_t at)
{
    unsigned char v = 1;
    return mincore(address(map, at), 1, &v) != 0 || (v & 1) != 0;
}

/* Bytes from `at` on that are in the page cache, at most WINDOW. */
static uint64_t cached_from(const filemap *map, uint64_t at)
{
    const uint64_t begin = at;
    while (at < map->size && at - begin < WINDOW && is_cached(map, at))
        at += BLOCK;
    return min_u64(at, map->size) - begin;
}

/* "KEY  N kB" of the mapping that begins at p, in bytes. */
static bool smaps_value(const void *p, const char *key, uint64_t *bytes)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    bool here = false, found = false;
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
        uintptr_t first, end;
        uint64_t kb;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &end) == 2)
            here = first == (uintptr_t)p;
        else if (here && strncmp(line, key, strlen(key)) == 0 &&
                 sscanf(line + strlen(key), "%" SCNu64, &kb) == 1) {
            *bytes = kb * 1024;
            found = true;
        }
    }
    if (f != NULL) (void)fclose(f);
    return found;
}

/* Touches what is cached, so that the system maps it, and asks how it did. */
static calla_status look(void *ctx, const filemap *map, bool asks)
{
    residence *r = ctx;
    uint64_t large;
    r->bytes += map->size;
    r->known = r->known && asks;
    if (!asks) return CALLA_OK;
    for (uint64_t at = 0; at < map->size; at += BLOCK) {
        if (!is_cached(map, at)) continue;
        r->cached += min_u64(BLOCK, map->size - at);
        (void)*(const volatile uint8_t *)(map->data + at);
    }
    if (smaps_value(map->data, "FilePmdMapped:", &large))
        r->large += min_u64(large, map->size);
    else
        r->known = false;
    return CALLA_OK;
}

calla_status residence_look(const checkpoint *ck, residence *out, calla_error *err)
{
    *out = (residence){.known = true};
    return each_shard(ck, look, out, err);
}

static calla_status count_missing(void *ctx, const filemap *map, bool asks)
{
    fill *f = ctx;
    for (uint64_t at = 0; asks && at < map->size; at += BLOCK)
        if (!is_cached(map, at)) f->missing += min_u64(BLOCK, map->size - at);
    return CALLA_OK;
}

static calla_status fill_shard(void *ctx, const filemap *map, bool asks)
{
    fill *f = ctx;
    if (!asks) return CALLA_OK;
    (void)madvise(address(map, 0), (size_t)map->size, MADV_HUGEPAGE);
    for (uint64_t at = 0; at < map->size;) {
        if (is_cached(map, at)) {
            at += BLOCK;
            continue;
        }
        const uint64_t begin = at;
        while (at < map->size && at - begin < WINDOW && !is_cached(map, at))
            at += BLOCK;
        const uint64_t n = min_u64(at, map->size) - begin;
        if (madvise(address(map, begin), (size_t)n, MADV_POPULATE_READ) != 0) return CALLA_OK;
        f->done += n;
        if (f->progress != NULL && !f->progress(f->user, (size_t)f->done, (size_t)f->missing))
            return err_set(f->err, CALLA_ERR_CANCELLED, "cancelled while the weights were read");
    }
    return CALLA_OK;
}

calla_status residence_fill(const checkpoint *ck, calla_progress_fn progress, void *user,
                            uint64_t *n_read, calla_error *err)
{
    fill f = {.progress = progress, .user = user, .err = err};
    calla_status st = each_shard(ck, count_missing, &f, err);
    if (st == CALLA_OK && f.missing != 0) st = each_shard(ck, fill_shard, &f, err);
    *n_read = f.done;
    return st;
}

uint64_t residence_map(const checkpoint *ck, double seconds)
{
    const double until = time_now() + seconds;
    uint64_t done = 0;
    for (size_t i = 0; i < checkpoint_n_shards(ck); i++) {
        filemap map = {0};
        char *path = path_join(checkpoint_dir(ck), checkpoint_shard_name(ck, i));
        const bool asks = path != NULL && may_ask(path);
        mem_free(path);
        map.data = checkpoint_shard_bytes(ck, i, &map.size);
        for (uint64_t at = 0, n; asks && at < map.size; at += n) {
            if (time_now() > until) return done;
            n = cached_from(&map, at);
            if (n != 0 && madvise(address(&map, at), (size_t)n, MADV_POPULATE_READ) == 0) done += n;
            if (n == 0) n = BLOCK;
        }
    }
    return done;
}

calla_status residence_drop(const checkpoint *ck, calla_error *err)
{
    for (size_t i = 0; i < checkpoint_n_shards(ck); i++) {
        char *path = path_join(checkpoint_dir(ck), checkpoint_shard_name(ck, i));
        if (path == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for a path");
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        mem_free(path);
        if (fd < 0) continue; /* whoever opens the checkpoint says so better */
        (void)fdatasync(fd);  /* pages that are not on the disk yet would stay */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        (void)close(fd);
    }
    return CALLA_OK;
}

#else

uint64_t residence_map(const checkpoint *ck, double seconds)
{
    (void)ck;
    (void)seconds;
    return 0;
}

calla_status residence_look(const checkpoint *ck, residence *out, calla_error *err)
{
    (void)ck;
    (void)err;
    *out = (residence){0};
    return CALLA_OK;
}

calla_status residence_fill(const checkpoint *ck, calla_progress_fn progress, void *user,
                            uint64_t *n_read, calla_error *err)
{
    (void)ck;
    (void)progress;
    (void)user;
    (void)err;
    *n_read = 0;
    return CALLA_OK;
}

calla_status residence_drop(const checkpoint *ck, calla_error *err)
{
    (void)ck;
    (void)err;
    return CALLA_OK;
}

#endif
