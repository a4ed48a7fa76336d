/* ops_gemm.h - where the steps of op_moe_gemm lie in its scratch; for tests.
 *
 * Does:       splits the scratch: first the routing lists (op_moe_plan_bytes), then activations.
 */
#ifndef CALLA_EXEC_GPU_OPS_GEMM_H
#define CALLA_EXEC_GPU_OPS_GEMM_H

#include "exec/gpu/ops.h"
#include "kernels/args_gemm.h"

typedef struct moe_layout {
    uint64_t counts, slot_token, slot_of, n_map, full, tails; /* lists, byte offsets */
    uint64_t plan_bytes;
    uint64_t h; /* [slots][W] bf16; in the order of GMM_COLUMN if gemm_is_permuted() */
    uint64_t y; /* [slots][H] bf16 */
    uint64_t total;
    uint32_t n_slots, tiles_max; /* of each list */
} moe_layout;
moe_layout moe_layout_of(const model_shape *s, uint32_t n);

/* The native main loop does the products; and reads activations in the order of GMM_COLUMN. */
bool gemm_is_native(const gpu_context *g);
bool gemm_is_permuted(const gpu_context *g);

/* Products of matrices with rows of cols take weights as scale q + bias, without rounding them. */
bool gemm_is_exact(const gpu_context *g, uint32_t cols);

/* How the context cuts tiles. */
moe_plan_args moe_plan_args_of(const gpu_context *g, uint32_t n);

#endif
