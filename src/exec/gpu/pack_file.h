/* pack_file.h - the pack as a file: blobs behind a page that says what they are.
 *
 * Does:       writes the blobs of a checkpoint, and maps them again when they are whole and are
 * what is asked for (pack_spec). Format:     in the byte order of the machine. A header of one page
 * (PACK_PAGE), then the blobs in order, each at a multiple of PACK_PAGE. The header has a checksum
 * of itself and one for each blob. Hostile:    nothing read from a file drives a size, an offset or
 * a loop: all of them follow from the spec, and a header that says anything else is refused. A blob
 * is given out only when its checksum is right. (Who can write to the folder can forge both.)
 * Writing:    to "PATH.tmp", locked, synced and renamed when complete: a file under the final name
 *             is complete. What a crash leaves is overwritten by the next writer. Of two writers at
 *             the same time one is refused.
 * Owns:       the mapping; a file that is cut short while it is mapped raises SIGBUS, as one of the
 *             model does.
 * Threads:    one a pack_file or pack_writer.
 * Errors:     reading: CALLA_ERR_IO not there, CALLA_ERR_UNSUPPORTED whole but of something else,
 *             CALLA_ERR_FORMAT damaged. Writing: any error means that there is no new file.
 */
#ifndef CALLA_EXEC_GPU_PACK_FILE_H
#define CALLA_EXEC_GPU_PACK_FILE_H

#include "base/file.h"
#include "base/pool.h"

/* Counts up whenever pack.c lays the weights out in another way. */
#define PACK_VERSION     1u
#define PACK_PAGE        16384u
#define PACK_BLOBS_MAX   257u
#define PACK_DIMS        24u
#define PACK_SPARE_BYTES (UINT64_C(1) << 30) /* that a writer leaves free on the disk */

typedef struct pack_spec {
    uint64_t source[2];         /* identity of the checkpoint */
    uint32_t dims[PACK_DIMS];   /* what the layout depends on; unused: 0 */
    uint32_t n_blobs;           /* 1 .. PACK_BLOBS_MAX */
    const uint64_t *blob_bytes; /* [n_blobs] */
} pack_spec;

/* Bytes of the whole file; UINT64_MAX when they do not fit in 64 bits. */
uint64_t pack_file_bytes(const pack_spec *spec);

/* Checksum of a blob, by all threads of the pool (NULL: by this one). */
uint64_t pack_sum(pool *p, const uint8_t *data, uint64_t n);

/* ---- Reading ---- */

typedef struct pack_file {
    filemap map;
    uint32_t n_blobs;
    const uint64_t *blob_bytes; /* the spec's */
} pack_file;

/* Maps the file and checks its header and size; the blobs not yet. */
calla_status pack_file_open(pack_file *f, const char *path, const pack_spec *spec,
                            calla_error *err);
/* The same over bytes in memory, which are borrowed (tests, fuzzing). */
calla_status pack_file_view(pack_file *f, const uint8_t *data, uint64_t n, const pack_spec *spec,
                            calla_error *err);
/* Takes the next n bytes of a blob, which begin at off; they are borrowed. */
typedef calla_status (*pack_sink)(void *user, uint64_t off, const uint8_t *data, uint64_t n,
                                  calla_error *err);
/* Hands blob i to the sink, a part after another while it is in the processor's cache, and verifies
 * it on the way: only when CALLA_OK is returned was it right. CALLA_ERR_FORMAT: it is damaged. The
 * sink's failure ends it. */
calla_status pack_file_blob(const pack_file *f, uint32_t i, pool *p, pack_sink sink, void *user,
                            calla_error *err);
/* Blob i in the mapping: at a page, padded to PACK_PAGE; unverified. */
const uint8_t *pack_file_data(const pack_file *f, uint32_t i);
void pack_file_close(pack_file *f); /* zeroed struct is fine */

/* ---- Writing ---- */

typedef struct pack_writer pack_writer;

/* Makes the folder of path (mode 0700) when there is none. Refuses when the disk has too little
 * room, or when another process is writing the same file. */
calla_status pack_writer_open(pack_writer **out, const char *path, const pack_spec *spec,
                              calla_error *err);
/* Blobs in any order, each once. */
calla_status pack_writer_blob(pack_writer *w, uint32_t i, pool *p, const uint8_t *data,
                              calla_error *err);
/* Header, sync, rename. Refuses when a blob is missing. */
calla_status pack_writer_commit(pack_writer *w, calla_error *err);
void pack_writer_destroy(pack_writer *w); /* removes what was not committed; NULL is fine */

/* ---- Names ---- */

/* "DIR/NAME-HASH.pack" for a checkpoint's folder: its name, and its place. mem_free; NULL: no
 * memory. */
char *pack_file_path(const char *dir, const char *model_dir);

#endif
