/* file.h - read-only file mappings, whole small files, folders.
 *
 * Owns:    a filemap owns its mapping; filemap_close() ends every pointer into it.
 * Errors:  sentences name the file.
 */
#ifndef CALLA_BASE_FILE_H
#define CALLA_BASE_FILE_H

#include "base/error.h"

typedef struct filemap {
    const uint8_t *data; /* NULL for an empty file */
    uint64_t size;
    int64_t mtime_ns; /* last change of the contents, since 1970 */
} filemap;

/* Maps a regular file read-only. A folder, a device or a FIFO is refused. */
calla_status filemap_open(filemap *map, const char *path, calla_error *err);
void filemap_close(filemap *map); /* zeroed struct is fine */

/* Reads a whole regular file of at most max_bytes. *data: mem_free(), NUL-terminated. */
calla_status file_read(const char *path, uint64_t max_bytes, char **data, size_t *n,
                       calla_error *err);

/* Puts what was written to fd on the disk itself; false, errno set, on failure. macOS's fsync()
 * leaves it in the disk's own cache: there F_FULLFSYNC is asked for first. */
bool file_sync(int fd);

/* False only when nothing has that name. A broken link, a folder or a file out of reach is there:
 * opening it says what is wrong, where "missing" or silence would be untrue. */
bool file_exists(const char *path);

/* A device, a pipe, a socket: a file that is renamed over it would take its place. */
bool file_is_special(const char *path);

/* Makes the folder that path lies in (mode 0700), and those above it, where they are missing. */
calla_status folder_make_for(const char *path, calla_error *err);

/* "dir/name" in fresh memory (mem_free), or NULL. */
char *path_join(const char *dir, const char *name);

#endif
