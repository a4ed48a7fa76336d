/* pack.h - the weights in the layout of the GPU kernels.
 *
 * Does:       lays the checkpoint's tensors out in blobs (one for what is outside the layers, one a
 *             layer; docs/ARCHITECTURE.md, "The pack"): 4-bit codes as they are, scale and bias of
 *             a group side by side, matrices with the same input joined, gate and up rows
 *             interleaved. Loads them into device buffers: from the pack file (pack_file.h), or
 *             from the mapped checkpoint. A device that can read the host's memory gets the mapped
 *             file itself, checksums verified: then the weights exist once.
 * Owns:       gpu_weights owns its device buffers, and the file that they may lie in; views point
 *             into them.
 * Invariants: nothing is expanded; the bytes of all blobs are the checkpoint's but for padding.
 *             Whoever changes what is in a blob counts PACK_VERSION up.
 * Errors:     CALLA_ERR_UNSUPPORTED for a checkpoint that is not 4-bit (router: 8-bit).
 */
#ifndef CALLA_EXEC_GPU_PACK_H
#define CALLA_EXEC_GPU_PACK_H

#include "exec/executor.h"
#include "exec/gpu/ops.h"
#include "model/weights.h"

typedef struct gpu_layer {
    gpu_view input_norm, post_norm; /* [H] */
    gpu_q4 in;                      /* GDN: N1 rows; attention: N2 rows */
    gpu_q4 out;                     /* [H, VW or Q] */
    gpu_gdn gdn;                    /* conv, rate, dt, norm; state and ring are the executor's */
    gpu_attn attn;                  /* q_norm, k_norm; k and v are the executor's */
    gpu_q8 router;                  /* [E + 1, H] */
    gpu_bank bank;
} gpu_layer;

typedef struct gpu_weights {
    gpu_q4 embed, lm_head;
    gpu_view final_norm, inv_freq; /* [H], [32] */
    gpu_layer *layers;             /* [n_layers] */
    gpu_buffer **bufs;             /* [1 + n_layers] */
    uint32_t n_bufs;
    uint64_t bytes;
    struct pack_file *file; /* where the buffers' memory is; NULL: they have their own */
} gpu_weights;

/* Device bytes of all blobs. */
uint64_t gpu_weights_bytes(const model_shape *s);

/* From the pack file, when options name a folder and it has the right one; else from w, and the
 * file is written meanwhile. A file that cannot be used or written is only a line in the log.
 * options->progress is called on this thread. */
calla_status gpu_weights_load(gpu_weights *out, gpu_device *d, const model_shape *s,
                              const model_weights *w, const exec_options *options,
                              calla_error *err);
/* Buffers and views without contents: for a schedule. */
calla_status gpu_weights_place(gpu_weights *out, gpu_device *d, const model_shape *s,
                               calla_error *err);
void gpu_weights_free(gpu_weights *w, gpu_device *d);

#endif
