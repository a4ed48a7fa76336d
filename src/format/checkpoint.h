/* checkpoint.h - a checkpoint folder: its shards as one table of tensors, its JSON files.
 *
 * Does:    opens model.safetensors, or every shard that model.safetensors.index.json names, checks
 *          that index and shards agree (each tensor exactly where the index says, none missing,
 * none twice, names of shards without path separators or ".."), reads config.json and
 *          generation_config.json.
 * Owns:    mappings and names, until checkpoint_close.
 * Threads: immutable once open.
 */
#ifndef CALLA_FORMAT_CHECKPOINT_H
#define CALLA_FORMAT_CHECKPOINT_H

#include "base/json.h"
#include "format/safetensors.h"

#define CHECKPOINT_SINGLE     "model.safetensors"
#define CHECKPOINT_INDEX      "model.safetensors.index.json"
#define CHECKPOINT_SHARDS_MAX 4096u
#define CHECKPOINT_JSON_MAX   (64u << 20) /* bytes of config.json, index, ... */
#define CHECKPOINT_NODES_MAX  2000000u    /* JSON values of one such file */

typedef struct checkpoint checkpoint;

calla_status checkpoint_open(checkpoint **out, const char *dir, calla_error *err);
void checkpoint_close(checkpoint *ck);

const char *checkpoint_dir(const checkpoint *ck);
size_t checkpoint_count(const checkpoint *ck);                  /* tensors over all shards */
const st_tensor *checkpoint_at(const checkpoint *ck, size_t i); /* sorted by name */
const st_tensor *checkpoint_find(const checkpoint *ck, const char *name);
size_t checkpoint_n_shards(const checkpoint *ck);
const char *checkpoint_shard_name(const checkpoint *ck, size_t i);
uint64_t checkpoint_file_bytes(const checkpoint *ck); /* sum over the shards */
/* The whole of shard i < checkpoint_n_shards as it is mapped until checkpoint_close: *n bytes from
 * the start of a page. */
const uint8_t *checkpoint_shard_bytes(const checkpoint *ck, size_t i, uint64_t *n);
/* Tells checkpoints apart without reading the tensors: names, sizes, times of change and headers of
 * the shards. */
typedef struct checkpoint_identity {
    uint64_t hash[2];
} checkpoint_identity;
checkpoint_identity checkpoint_identify(const checkpoint *ck);
const json_value *checkpoint_config(const checkpoint *ck);            /* root of config.json */
const json_value *checkpoint_generation_config(const checkpoint *ck); /* NULL when absent */

#endif
