/* quantize.h - a Hugging Face checkpoint to MLX's affine 4-bit layout.
 *
 * Does:       writes what MLX's converter writes for this architecture (docs/MODEL.md 3 and 4):
 *             matrices, embeddings and experts 4-bit, router and shared expert's gate 8-bit, in
 *             groups of 64; the fused experts divided; norms plus one, in bf16; everything else
 *             bf16; the vision tower left out; config.json with its quantization block; tokenizer
 *             files as they are.
 * Invariants: the folder is complete or not there (ckpt_writer.h). Memory does not depend on the
 *             model: pieces of a tensor go from the mapped shards through buffers of 1 MiB.
 * Threads:    blocks; uses n_threads; progress is called on the caller's.
 * Errors:     CALLA_ERR_UNSUPPORTED, naming the tensor, for one that is missing, unknown, of
 *             another shape or type than config.json says, or already quantised;
 *             CALLA_ERR_FORMAT for a weight that is not finite.
 */
#ifndef CALLA_MODEL_QUANTIZE_H
#define CALLA_MODEL_QUANTIZE_H

#include "base/error.h"

typedef struct quantize_options {
    uint32_t mtp_bits;    /* 0: the MTP head is left out; 4 or 8: it is kept */
    uint32_t n_threads;   /* 0: all */
    uint64_t shard_bytes; /* 0: 5 GiB */
    bool (*progress)(void *user, uint64_t done, uint64_t total); /* bytes; false cancels; or NULL */
    void *user;
} quantize_options;

typedef struct quantize_result {
    uint64_t bytes_in, bytes_out;        /* of the tensors read and written */
    uint32_t n_tensors, n_vision, n_mtp; /* written; vision and MTP tensors left out */
    bool has_tokenizer;                  /* tokenizer.json was there */
} quantize_result;

calla_status quantize_write(const char *hf_dir, const char *out, const quantize_options *options,
                            quantize_result *result, calla_error *err);

#endif
