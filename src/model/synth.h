/* synth.h - a random checkpoint of the architecture, in MLX's 4-bit layout, for tests and
 * benchmarks.
 *
 * Does:       writes config.json, generation_config.json, shards of at most 5 GiB with their index,
 *             and a stand-in tokenizer whose 33 added tokens have the ids they have in the real
 * one. Text model only: no vision, no MTP. Values:     deterministic in (shape, n_layers, seed):
 * each element is a function of its tensor's name and its index, so threads do not matter. Matrices
 * have mean 0 and deviation 1 / sqrt(cols), half of the scales are negative, norms are near 1,
 * A_log and dt_bias in their usual ranges: activations stay of order one. Files:      written to
 * "OUT.partial-PID", renamed to OUT when complete, removed on failure. Data begin at an odd address
 * in every shard, which MLX's own files do half of the time. Threads:    blocks; uses n_threads.
 * progress is called on the caller's thread.
 */
#ifndef CALLA_MODEL_SYNTH_H
#define CALLA_MODEL_SYNTH_H

#include "model/shape.h"

#define SYNTH_ADDED_TOKENS 33u

typedef struct synth_options {
    const char
        *shape; /* "full": the real one; "slice": 8 of its layers; "nano": the demo model's */
    uint32_t n_layers; /* 0: the shape's own */
    uint64_t seed;
    uint32_t n_threads;        /* 0: all */
    const char *chat_template; /* a file to copy as chat_template.jinja, or NULL */
    bool (*progress)(void *user, uint64_t done, uint64_t total); /* bytes; false cancels */
    void *user;
} synth_options;

/* Fills a shape by its name; CALLA_ERR_ARGUMENT for an unknown one. */
calla_status synth_shape(model_shape *out, const char *name, uint32_t n_layers, calla_error *err);

/* Bytes of all tensors of a shape: 19,508,787,456 for "full". */
uint64_t synth_tensor_bytes(const model_shape *shape);

/* Refuses when OUT exists or the disk has too little room. CALLA_ERR_CANCELLED when progress says
 * so. *n_bytes (may be NULL): tensor bytes written. */
calla_status synth_write(const char *out, const synth_options *options, uint64_t *n_bytes,
                         calla_error *err);

/* The JSON files; false when memory ran out. n_tokens: ids with a token, added tokens included. */
uint32_t synth_n_tokens(const model_shape *shape);
bool synth_config(strbuf *out, const model_shape *shape);
/* Whether a config.json is of a checkpoint of random values ("calla_synth"): what it answers says
 * nothing, and near ties between experts make it sensitive to the last bit. */
bool synth_is(const json_value *config);
bool synth_generation_config(strbuf *out, const model_shape *shape);
bool synth_tokenizer(strbuf *out, uint32_t n_tokens);
bool synth_tokenizer_config(strbuf *out, const model_shape *shape);

#endif
