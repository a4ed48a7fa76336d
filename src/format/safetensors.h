/* safetensors.h - one .safetensors file, mapped and checked.
 *
 * Does:       reads the header, checks every entry, gives views of the data in place. Refuses, with
 *             a sentence naming file and tensor: truncated or padded files, absurd header lengths,
 *             bad JSON, unknown dtypes, offsets that overlap, leave gaps or leave the file, sizes
 *             that contradict the shape, duplicate names, Git-LFS pointer files.
 * Owns:       the mapping; names and data pointers live until safetensors_close.
 * Format:     u64 LE header length n, n bytes JSON, data. MLX does not pad the header: data begins
 *             at any address, read it with unaligned loads only.
 * Threads:    immutable once open.
 */
#ifndef CALLA_FORMAT_SAFETENSORS_H
#define CALLA_FORMAT_SAFETENSORS_H

#include "base/file.h"

#define SAFETENSORS_HEADER_MAX  (64u << 20) /* bytes */
#define SAFETENSORS_TENSORS_MAX 200000u
#define SAFETENSORS_DIMS_MAX    8u
#define SAFETENSORS_NAME_MAX    255u /* bytes */

typedef enum st_dtype {
    ST_U8,
    ST_I8,
    ST_U16,
    ST_I16,
    ST_U32,
    ST_I32,
    ST_U64,
    ST_I64,
    ST_F16,
    ST_BF16,
    ST_F32,
    ST_F64,
    ST_BOOL,
    ST_F8_E4M3,
    ST_F8_E5M2
} st_dtype;

const char *st_dtype_name(st_dtype t); /* "U32", as in the file */
uint32_t st_dtype_bytes(st_dtype t);

typedef struct st_tensor {
    const char *name; /* NUL-terminated */
    st_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    const uint8_t *data; /* n_bytes, any alignment */
    uint64_t n_bytes;
} st_tensor;

typedef struct safetensors safetensors;

calla_status safetensors_open(safetensors **out, const char *path, calla_error *err);
/* The same over bytes in memory (tests, fuzzing); `what` names them in errors. data is borrowed. */
calla_status safetensors_parse(safetensors **out, const char *what, const uint8_t *data, uint64_t n,
                               calla_error *err);
void safetensors_close(safetensors *st);

uint64_t safetensors_file_bytes(const safetensors *st);
int64_t safetensors_mtime_ns(const safetensors *st); /* 0 when parsed from memory */
/* The header with its length, as in the file. */
const uint8_t *safetensors_header(const safetensors *st, size_t *n);
size_t safetensors_count(const safetensors *st);
/* i-th tensor in order of its data offset. */
const st_tensor *safetensors_at(const safetensors *st, size_t i);
const st_tensor *safetensors_find(const safetensors *st, const char *name);

#endif
