/* disk.h - folders and small files that are there whole or not at all.
 *
 * Errors:  sentences name the file or folder.
 */
#ifndef CALLA_NET_DISK_H
#define CALLA_NET_DISK_H

#include <stdbool.h>
#include "base/error.h"

/* The folder and those above it; one that is there is fine. */
calla_status disk_make_dirs(const char *path, calla_error *err);
bool disk_is_link(const char *path);
/* Removes a folder of files, and folders of files up to `depth` below it; a link, not what it leads
 * to. Not there: fine. */
calla_status disk_remove_dir(const char *path, int depth, calla_error *err);
/* A file that is not there is fine. */
calla_status disk_remove(const char *path, calla_error *err);
calla_status disk_rename(const char *from, const char *to, calla_error *err);
/* The file has these bytes, or still its old ones. */
calla_status disk_write(const char *path, const void *data, size_t n, calla_error *err);
/* The names in a folder are on the disk. */
void disk_sync_dir(const char *path);
/* Data of an open file are on the disk. */
calla_status disk_sync(int fd, const char *path, calla_error *err);
/* Bytes that this user may still write; UINT64_MAX when the system does not say. */
uint64_t disk_free_bytes(const char *path);
/* The size of a regular file; false: there is none of this name. */
bool disk_size(const char *path, uint64_t *size);
/* "DIR/A", "DIR/A/B": fresh memory, or NULL. b may be NULL. */
char *disk_path(const char *dir, const char *a, const char *b);

/* An exclusive lock by a file, which vanishes with disk_unlock(). FULL: somebody else has it. */
typedef struct disk_lock {
    int fd; /* -1: none */
    char *path;
} disk_lock;
calla_status disk_lock_take(disk_lock *l, const char *path, calla_error *err);
void disk_lock_drop(disk_lock *l); /* {-1, NULL} is fine */

#endif
