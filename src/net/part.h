/* part.h - a file that comes in blocks, in any order, over several runs of the program.
 *
 * Files:      NAME, of its final size from the beginning; NAME.map, a byte for each block of 256
 * KiB:
 *             '#' it is on the disk, '.' it is not. Without a map the file has been checked.
 * Invariants: (1) a map never says more than what is on the disk: data are synchronised first.
 *             (2) the map is made before the file and removed after the check; so whatever moment
 * the program ends at, the two say what is still to be done. Threads:    none by itself; writes to
 * different blocks may run together. The caller guards `blocks`, n_done and part_mark()'s last step
 * by its own lock.
 */
#ifndef CALLA_NET_PART_H
#define CALLA_NET_PART_H

#include <stdbool.h>
#include "base/error.h"

#define PART_BLOCK ((uint64_t)256 << 10)
#define PART_TODO  '.'
#define PART_DONE  '#'
#define PART_BUSY  'b' /* in memory only */

typedef struct part {
    char *path, *map_path;
    int fd, map_fd; /* -1: closed */
    uint64_t size;
    uint32_t n_blocks, n_done;
    char *blocks;
    bool checked; /* complete and checked: the rest is closed */
} part;

/* Continues or begins DIR/NAME. part_close() also after failure. */
calla_status part_open(part *p, const char *dir, const char *name, uint64_t size, calla_error *err);
void part_close(part *p);

/* A complete file from elsewhere takes the place: a link to it, still to be checked. False: it
 * could not be linked, and nothing is there. Before part_open(). */
bool part_adopt(const char *dir, const char *name, uint64_t size, const char *from);

/* Bytes of DIR/NAME that are there, without touching it. */
uint64_t part_peek(const char *dir, const char *name, uint64_t size);

calla_status part_write(const part *p, uint64_t offset, const void *data, size_t n,
                        calla_error *err);
/* Blocks [first, end) are written: makes that last. Then the caller sets them to PART_DONE. */
calla_status part_mark(const part *p, uint32_t first, uint32_t end, calla_error *err);
uint64_t part_block_bytes(const part *p, uint32_t i);
uint64_t part_bytes_done(const part *p);

/* Everything is to be done again. */
calla_status part_reset(part *p, calla_error *err);
/* It was checked: the map goes. */
calla_status part_finish(part *p, calla_error *err);

#endif
