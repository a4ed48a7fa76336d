/* ckpt_writer.h - writes a checkpoint folder: shards, their index, small files.
 *
 * Does:       places a list of tensors in shards, and asks for their contents piece by piece, from
 *             several threads. The shards are those that checkpoint.h reads.
 * Invariants: everything is written to "OUT.partial-PID", which becomes OUT when it is complete and
 *             is removed on failure: OUT is there and whole, or not there. Memory does not depend
 *             on the size of a tensor.
 * Threads:    blocks; fill is called on the threads of a pool, progress on the caller's.
 * Errors:     CALLA_ERR_IO: OUT exists, the disk has too little room (asked before anything is
 *             written) or fails. CALLA_ERR_CANCELLED: progress said so.
 */
#ifndef CALLA_FORMAT_CKPT_WRITER_H
#define CALLA_FORMAT_CKPT_WRITER_H

#include "format/checkpoint.h"

#define CKPT_WRITER_NAME_MAX 128u
#define CKPT_WRITER_DIMS_MAX 3u
#define CKPT_SHARD_BYTES_MAX (5ull << 30)

typedef struct cw_tensor {
    char name[CKPT_WRITER_NAME_MAX];
    st_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[CKPT_WRITER_DIMS_MAX];
    uint64_t n_bytes;
    uint32_t shard;  /* set by ckpt_write */
    uint64_t offset; /* in its shard's data */
} cw_tensor;

/* The list; zero-initialise. */
typedef struct cw_list {
    cw_tensor *items; /* mem_free */
    size_t n, cap;
    uint64_t n_bytes;
    bool failed; /* no memory, or a name or shape that does not fit */
} cw_list;

/* Appends a tensor; false: failed. */
bool cw_add(cw_list *l, const char *name, st_dtype dtype, uint32_t n_dims, const uint64_t *dims);

/* A file beside the shards. */
typedef struct cw_file {
    const char *name;
    const char *data;
    size_t n;
} cw_file;

typedef struct cw_options {
    /* Writes bytes offset .. offset + n of tensor i to out; offset and n are multiples of 64, but
     * for the end of the tensor. Tensors and their parts come in order, several at a time. */
    void (*fill)(void *user, size_t i, uint64_t offset, size_t n, uint8_t *out);
    void *user;
    const cw_file *files;
    size_t n_files;
    uint32_t n_threads;   /* 0: all */
    uint64_t shard_bytes; /* 0: CKPT_SHARD_BYTES_MAX */
    bool odd;             /* data begin at an odd address, else at a multiple of 8 */
    bool (*progress)(void *user, uint64_t done, uint64_t total); /* bytes; false cancels; or NULL */
    void *progress_user;
} cw_options;

calla_status ckpt_write(const char *out, cw_list *tensors, const cw_options *options,
                        calla_error *err);

#endif
