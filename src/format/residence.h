/* residence.h - how much of a checkpoint's shards is in memory, and in pages of which size.
 *
 * Does:    residence_look: the share that the system's page cache holds, and the share of that
 * which a mapping gets in large pages (2 MB). residence_fill: reads what is missing, in order and
 *          so that it comes in large pages. residence_map: puts what the page cache holds into the
 *          table of the checkpoint's own mapping, where the forward pass would do so page by page.
 *          residence_drop: lets the page cache forget the shards, so that a fill can do it anew.
 * Why:     weights are read in place from a mapping, a token 1.7 GB of them. In pages of 4 KB the
 *          address translation alone costs 10 to 15 % of that. Linux gives a mapped file large
 * pages where its page cache holds pieces of 2 MB: with a file system that can (ext4 from 6.16 on,
 * xfs, btrfs), for what was read or written in pieces as large. The usual read-ahead is 128 KB, and
 * a piece once in the cache stays as it is: what is read first decides. Method:  samples, one page
 * of each 2 MB: exact for large pages, an estimate for small ones. The fill reads through a mapping
 * of its own, which alone is advised to take large pages: on the mapping of the weights the advice
 * would also forbid read-ahead, and let each page that is missing later cost a read of 2 MB.
 * Callers: fill and map only when the whole checkpoint fits in memory beside all else; otherwise
 *          what is read pushes out what was read before.
 * Systems: Linux 5.14 and later; elsewhere `known` is false, fill, map and drop do nothing.
 *          Linux tells only who owns a file or may write to it: of others nothing is filled or
 *          mapped.
 * Threads: none of its own; blocks.
 */
#ifndef CALLA_FORMAT_RESIDENCE_H
#define CALLA_FORMAT_RESIDENCE_H

#include "format/checkpoint.h"

typedef struct residence {
    bool known;             /* false: the system does not say */
    uint64_t bytes, cached; /* of all shards; of them in the page cache */
    uint64_t large;         /* of what is cached: mapped in large pages */
} residence;

calla_status residence_look(const checkpoint *ck, residence *out, calla_error *err);

/* *n_read: bytes that were missing. progress (may be NULL) is called with bytes done and missing;
 * false: CALLA_ERR_CANCELLED. Nothing missing: no call. A disk that fails is no error here: whoever
 * uses the weights will meet it. */
calla_status residence_fill(const checkpoint *ck, calla_progress_fn progress, void *user,
                            uint64_t *n_read, calla_error *err);

/* Ends after `seconds` and at most 32 MB more, complete or not: in large pages 18 GB take some 0.03
 * s, in small ones 1 s, as they do when the forward pass meets them. What is cached is sampled, one
 * page of 2 MB: of such a piece the rest is read. Returns the bytes that it mapped. */
uint64_t residence_map(const checkpoint *ck, double seconds);

/* What is mapped by other programs, or by `ck` itself where it was read, stays. */
calla_status residence_drop(const checkpoint *ck, calla_error *err);

#endif
