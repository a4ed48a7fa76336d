/* kernels.h - the CPU kernels: one table of functions, one contract each.
 *
 * Does:       names every hot operation of the forward pass. Each has a plain C reference (ref.c)
 *             that defines the semantics; every variant is a row of registry.inc and is held
 *             against the reference by build/calla-check.
 * Invariants, for every variant:
 *             (1) Row independence: an output element depends only on the inputs its formula names;
 *                 bitwise the same for any n_tokens, any [row0, row1), any other rows in the call.
 *                 This is what makes chunked = whole = batched, and 1 thread = N threads.
 *             (2) Accumulation in f32 in an order fixed by the shape alone.
 *             (3) No reads or writes outside the documented ranges.
 *             Two variants may differ in the last bits (other orders); one process uses one table.
 * Alignment:  activation rows (x, y, prepared rows, o) are 64-byte aligned with a length multiple
 * of 16 floats unless said otherwise; checkpoint data (matrix pointers) have none. Threads:    pure
 * functions of their arguments.
 */
#ifndef CALLA_EXEC_CPU_KERNELS_H
#define CALLA_EXEC_CPU_KERNELS_H

#include "model/weights.h"

/* CPU features, found once per process. */
enum {
    CPU_AVX2 = 1u << 0,   /* AVX2 + FMA + F16C */
    CPU_AVX512 = 1u << 1, /* F, BW, DQ, VL */
    CPU_AVX512VNNI = 1u << 2,
    CPU_NEON = 1u << 3,
    CPU_I8MM = 1u << 4
};
uint32_t cpu_features(void);

/* Floats of per-thread scratch that a matmul over `cols` columns may use. */
#define MATMUL_STRIP_ROWS           16u
#define MATMUL_SCRATCH_FLOATS(cols) ((size_t)MATMUL_STRIP_ROWS * (cols))

/* Attention walks positions in blocks of ATTN_BLOCK that begin at multiples of it. */
#define ATTN_BLOCK 64u
/* Floats of scratch for attn_block with up to n_q query rows. */
#define ATTN_SCRATCH_FLOATS(n_q)                                                                   \
    ((size_t)ATTN_BLOCK * MODEL_HEAD_DIM * 2 + (size_t)(n_q)*ATTN_BLOCK)

/* A head's recurrent state S[k][v] is stored as slabs of GDN_SLAB value columns:
 * state[(v / 16) * 128 * 16 + k * 16 + v % 16], so that one slab (8 KB) stays in L1. */
#define GDN_SLAB         16u
#define GDN_STATE_FLOATS (MODEL_GDN_DIM * MODEL_GDN_DIM)

/* y[t][r] = sum_c W[r][c] * x[t][c] for r in [row0, row1), t in [0, n_tokens). x[t] has `cols`
 * floats (for Q4: made by prep_q4 of the same table). Writes y[t][row0 .. row1) only; y[t] any
 * alignment. row0, row1 arbitrary. scratch: MATMUL_SCRATCH_FLOATS(cols), 64-byte aligned, per
 * thread. */
typedef void (*matmul_fn)(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                          uint32_t n_tokens, float *const *y, float *scratch);

typedef struct attn_state {
    float m;  /* running maximum, -INFINITY at the start */
    float l;  /* running sum of exp(score - m) */
    float *o; /* [256], running sum of exp(score - m) * v; zero at the start */
} attn_state;

typedef struct cpu_kernels {
    const char *name; /* "ref", "avx2", "avx512", "neon" */

    /* Reorders x[0 .. cols) into the order in which this table's matmul_q4 consumes it; a
     * permutation within each group of 64. x and xp may not overlap. */
    void (*prep_q4)(const float *x, uint32_t cols, float *xp);
    matmul_fn matmul_q4;   /* cols % 64 == 0; weight value scale * code + bias in f32 */
    matmul_fn matmul_q8;   /* cols % 64 == 0; x plain */
    matmul_fn matmul_bf16; /* cols % 16 == 0; x plain */
    matmul_fn matmul_f32;  /* cols % 16 == 0; x plain */

    /* y = x * rsqrt(mean(x^2) + eps) * w over n floats, n % 16 == 0. y may equal x. */
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    /* y = x * rsqrt(sum(x^2) + eps) * scale over n floats, n % 16 == 0. y may equal x. */
    void (*l2norm)(const float *x, uint32_t n, float eps, float scale, float *y);
    /* y = x * rsqrt(mean(x^2) + eps) * w * silu(z). y may equal x. n % 16 == 0. */
    void (*gated_rmsnorm)(const float *x, const float *z, const float *w, uint32_t n, float eps,
                          float *y);
    /* y = silu(g) * u. y may equal g or u. n % 16 == 0. */
    void (*silu_mul)(const float *g, const float *u, uint32_t n, float *y);
    /* y *= sigmoid(g). n % 16 == 0. */
    void (*sigmoid_mul)(const float *g, uint32_t n, float *y);
    /* y += a * x. n % 16 == 0. */
    void (*axpy)(float a, const float *x, uint32_t n, float *y);

    /* Depthwise causal convolution and SiLU for channels [ch0, ch1), both % 16 == 0:
     * y[c] = silu(sum_j w[j * n_channels + c] * rows[j][c]), rows[3] the current token, rows[0] the
     * oldest. */
    void (*conv_silu)(const float *w, uint32_t n_channels, const float *const rows[4], uint32_t ch0,
                      uint32_t ch1, float *y);

    /* Gated delta rule for one value head, slabs [slab0, slab1), n_tokens tokens in order:
     *   S = decay[t] * S;  d = beta[t] * (v - S^T k);  S = S + k d^T;  o = S^T q
     * q, k: [n_tokens] rows of 128 (normalised, q scaled) at the given float strides; v, o
     * likewise; decay, beta: one float per token at gate_stride. state: GDN_STATE_FLOATS. */
    void (*gdn_scan)(float *state, uint32_t slab0, uint32_t slab1, uint32_t n_tokens,
                     const float *q, const float *k, size_t qk_stride, const float *v,
                     size_t v_stride, const float *decay, const float *beta, size_t gate_stride,
                     float *o, size_t o_stride);

    /* One block of flash attention. For each of n_q query rows (256 floats, already scaled by
     * 1/16): scores against the first n_visible[i] (0 .. n_kv) of n_kv <= ATTN_BLOCK rows of k,
     * then online softmax into st[i]. k, v: [n_kv] rows of 256, bf16 (kv_type CALLA_KV_BF16) or
     * f32, 64-byte aligned. n_visible 0 leaves the row's state untouched. scratch:
     * ATTN_SCRATCH_FLOATS(n_q). */
    void (*attn_block)(const float *const *q, const uint32_t *n_visible, uint32_t n_q,
                       const void *k, const void *v, uint32_t n_kv, calla_kv_type kv_type,
                       attn_state *st, float *scratch);
} cpu_kernels;

/* The table for the highest variant that this CPU has and `limit` allows ("ref" < "avx2" <
 * "avx512"; "ref" < "neon"). limit NULL: no limit. An unknown or unavailable name fails with the
 * list of what is available. */
calla_status cpu_kernels_select(cpu_kernels *out, const char *limit, calla_error *err);

/* Plain helpers without variants. */

/* Row r of a matrix, widened to f32: out[cols]. */
void matrix_row(const matrix *m, uint32_t r, float *out);

#endif
