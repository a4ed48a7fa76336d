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
 * Inputs:     finite. Overflow to infinity behaves as in the reference as far as it does in f32.
 * Alignment:  activation rows (x, y, prepared rows, o, k and v of attention) are 64-byte aligned
 *             with a length multiple of 16 floats unless said otherwise; norm and convolution
 *             weights are aligned as floats are; checkpoint data (matrix pointers) not at all.
 * Threads:    pure functions of their arguments.
 */
#ifndef CALLA_EXEC_CPU_KERNELS_H
#define CALLA_EXEC_CPU_KERNELS_H

#include "model/weights.h"

/* CPU features that a registry row can ask for. */
enum {
    CPU_AVX2 = 1u << 0,   /* AVX2 and FMA */
    CPU_AVX512 = 1u << 1, /* F, BW, DQ, VL, and AVX2 */
    CPU_NEON = 1u << 2,
    CPU_VNNI = 1u << 3,    /* AVX-512 VNNI, and AVX512 */
    CPU_DOTPROD = 1u << 4, /* NEON's sums of four products of bytes */
    CPU_AVXVNNI = 1u << 5, /* VNNI on 256 bits, and AVX2 */
    CPU_I8MM = 1u << 6     /* NEON's products of matrices of bytes, and DOTPROD */
};
uint32_t cpu_features(void);

/* Floats of per-thread scratch that a matmul over `cols` columns may use. */
#define MATMUL_STRIP_ROWS           16u
#define MATMUL_SCRATCH_FLOATS(cols) ((size_t)MATMUL_STRIP_ROWS * (cols))

/* Activations as integers, for the products of 4-bit matrices. A group of 64 columns becomes
 *   int8 high[64], int8 low[64] (16-bit only), f32 scale, f32 sum
 * with x = scale * q, q = 256 * high + low or high alone, sum = scale * (sum of q), scale =
 * largest |x| / PREP_I16_MAX or PREP_I8_MAX, q rounded to nearest, ties to even. All is zero where
 * the largest |x| is below PREP_LEAST. The order of a group's q is the table's own, and its two
 * planes may take turns of eight bytes. */
#define PREP_I16_MAX   32639.0f /* 256 * 127 + 127 */
#define PREP_I8_MAX    127.0f
#define PREP_LEAST     1e-33f
#define PREP_BYTES_F32 256u /* of a group, by what prepared it */
#define PREP_BYTES_I16 136u
#define PREP_BYTES_I8  72u

/* Attention walks positions in blocks of ATTN_BLOCK that begin at multiples of it. */
#define ATTN_BLOCK 64u
/* Floats of scratch for attn_block with up to n_q query rows. */
#define ATTN_SCRATCH_FLOATS(n_q) ((size_t)(n_q) * (ATTN_BLOCK + 16u) + 2u * MODEL_HEAD_DIM)

/* The KV cache lies so that it is read in the order of memory, 32 elements are widened by a shift
 * and a mask, and a score needs no sum across lanes. Keys are stored in groups of ATTN_KEYS
 * positions, [256 dims][ATTN_KEYS]; values in groups of ATTN_BLOCK positions,
 * [256 / 32][ATTN_BLOCK][32 dims]. Element i of each 32 is at attn_slot(type, i): a 32-bit word of
 * bf16 holds elements i and i + 16. */
#define ATTN_KEYS 32u
static inline uint32_t attn_slot(calla_kv_type type, uint32_t i)
{
    return type == CALLA_KV_F32 ? i : i < ATTN_KEYS / 2 ? 2 * i : 2 * i - (ATTN_KEYS - 1);
}
/* Where element d of position pos is, in elements from a head's first. */
static inline size_t attn_key_at(calla_kv_type type, uint32_t pos, uint32_t d)
{
    return ((size_t)(pos / ATTN_KEYS) * MODEL_HEAD_DIM + d) * ATTN_KEYS +
           attn_slot(type, pos % ATTN_KEYS);
}
static inline size_t attn_value_at(calla_kv_type type, uint32_t pos, uint32_t d)
{
    const size_t block = pos / ATTN_BLOCK, part = d / ATTN_KEYS;
    return ((block * (MODEL_HEAD_DIM / ATTN_KEYS) + part) * ATTN_BLOCK + pos % ATTN_BLOCK) *
               ATTN_KEYS +
           attn_slot(type, d % ATTN_KEYS);
}

/* A head's recurrent state S[k][v] is stored as slabs of GDN_SLAB value columns:
 * state[(v / 16) * 128 * 16 + k * 16 + v % 16], so that one slab (8 KB) stays in L1. */
#define GDN_SLAB         16u
#define GDN_STATE_FLOATS (MODEL_GDN_DIM * MODEL_GDN_DIM)

typedef struct attn_state {
    float m;  /* running maximum, -INFINITY at the start */
    float l;  /* running sum of exp(score - m) */
    float *o; /* [256], running sum of exp(score - m) * v; zero at the start */
} attn_state;

/* ---- The contracts, as function types: kernel_X is the type of every variant of X ---- */

/* Prepares x[0 .. cols), cols % 64 == 0, for the product of the same table that goes with it, at
 * PREP_BYTES_* a group; xp is aligned as floats are. x and xp may not overlap.
 * prep_q4: f32, in the order in which matmul_q4 consumes them, a permutation within each group. */
typedef void kernel_prep(const float *x, uint32_t cols, void *xp);
typedef kernel_prep kernel_prep_q4;
typedef kernel_prep kernel_prep_i16;
typedef kernel_prep kernel_prep_i8;

/* y[t][r] = sum_c W[r][c] * x[t][c] for r in [row0, row1), t in [0, n_tokens). x[t] has `cols`
 * floats (for Q4: made by prep_q4 of the same table). Writes y[t][row0 .. row1) only; y[t] aligned
 * as floats are, its elements are absolute (y[t][row0] is the first written). row0, row1 arbitrary.
 * w->type is the kernel's. scratch: MATMUL_SCRATCH_FLOATS(cols), 64-byte aligned, per thread. */
typedef void kernel_matmul(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                           uint32_t n_tokens, float *const *y, float *scratch);
typedef kernel_matmul *matmul_fn;
typedef kernel_matmul kernel_matmul_q4; /* cols % 64 == 0; weight scale * code + bias in f32 */
/* 4-bit weights by x from prep_i16 or prep_i8 (x[t] points to its bytes). With I the integer sum of
 * code * q over group g, from y = 0 and g ascending:
 *   y = fma(I as f32, w_scale[g] * x_scale[g], y);  y = fma(w_bias[g], x_sum[g], y)
 * so that all variants agree bitwise. */
typedef kernel_matmul kernel_matmul_i16;
typedef kernel_matmul kernel_matmul_i8;
typedef kernel_matmul kernel_matmul_q8;   /* cols % 64 == 0; x plain */
typedef kernel_matmul kernel_matmul_bf16; /* cols % 16 == 0; x plain */
typedef kernel_matmul kernel_matmul_f32;  /* cols % 16 == 0; x plain */

/* y = x * (1 / sqrt(mean(x^2) + eps)) * w over n floats, n % 16 == 0. y may equal x. */
typedef void kernel_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y);

/* y = x * (1 / sqrt(sum(x^2) + eps)) * scale over n floats, n % 16 == 0. y may equal x. */
typedef void kernel_l2norm(const float *x, uint32_t n, float eps, float scale, float *y);

/* y = x * (1 / sqrt(mean(x^2) + eps)) * w * silu(z). y may equal x or z. n % 16 == 0. */
typedef void kernel_gated_rmsnorm(const float *x, const float *z, const float *w, uint32_t n,
                                  float eps, float *y);

/* y = silu(g) * u. y may equal g or u. n % 16 == 0. */
typedef void kernel_silu_mul(const float *g, const float *u, uint32_t n, float *y);

/* y *= sigmoid(g). n % 16 == 0. */
typedef void kernel_sigmoid_mul(const float *g, uint32_t n, float *y);

/* y += a * x. n % 16 == 0. */
typedef void kernel_axpy(float a, const float *x, uint32_t n, float *y);

/* Depthwise causal convolution and SiLU for channels [ch0, ch1), both % 16 == 0:
 * y[c] = silu(sum_j w[j * n_channels + c] * rows[j][c]), rows[3] the current token, rows[0] the
 * oldest. */
typedef void kernel_conv_silu(const float *w, uint32_t n_channels, const float *const rows[4],
                              uint32_t ch0, uint32_t ch1, float *y);

/* Gated delta rule for one value head, slabs [slab0, slab1), n_tokens tokens in order:
 *   S = decay[t] * S;  d = beta[t] * (v - S^T k);  S = S + k d^T;  o = S^T q
 * q, k: rows of 128 (normalised, q scaled), one per token at qk_stride floats; v, o likewise, of
 * which only columns [16 * slab0, 16 * slab1) are read and written; decay, beta: one float per
 * token at gate_stride. Strides of rows % 16 == 0. state: GDN_STATE_FLOATS, 64-byte aligned. */
typedef void kernel_gdn_scan(float *state, uint32_t slab0, uint32_t slab1, uint32_t n_tokens,
                             const float *q, const float *k, size_t qk_stride, const float *v,
                             size_t v_stride, const float *decay, const float *beta,
                             size_t gate_stride, float *o, size_t o_stride);

/* One block of flash attention. For each of n_q query rows (256 floats, already scaled by 1/16):
 * scores s against the first n_visible[i] (0 .. n_kv) of n_kv <= ATTN_BLOCK rows of k, then
 *   m' = max(m, max s);  f = exp(m - m');  p = exp(s - m');  l = l * f + sum p;
 *   o = o * f + sum_j p_j v_j, positions added in order;  m = m'.
 * k: n_kv positions from the start of a group, v: of n_kv rows, as attn_key_at and attn_value_at
 * say, bf16 (CALLA_KV_BF16) or f32. Whole groups of k may be read; what lies in them beyond
 * n_visible may be anything and does not matter. n_visible 0 leaves the row's state untouched.
 * scratch: ATTN_SCRATCH_FLOATS(n_q), 64-byte aligned. */
typedef void kernel_attn_block(const float *const *q, const uint32_t *n_visible, uint32_t n_q,
                               const void *k, const void *v, uint32_t n_kv, calla_kv_type kv_type,
                               attn_state *st, float *scratch);

typedef struct cpu_kernels {
    const char *name; /* "ref", "avx2", "avxvnni", "avx512", "neon", "i8mm" */
    kernel_prep_q4 *prep_q4;
    kernel_matmul_q4 *matmul_q4;
    kernel_prep_i16 *prep_i16;
    kernel_matmul_i16 *matmul_i16;
    kernel_prep_i8 *prep_i8;
    kernel_matmul_i8 *matmul_i8;
    kernel_matmul_q8 *matmul_q8;
    kernel_matmul_bf16 *matmul_bf16;
    kernel_matmul_f32 *matmul_f32;
    kernel_rmsnorm *rmsnorm;
    kernel_l2norm *l2norm;
    kernel_gated_rmsnorm *gated_rmsnorm;
    kernel_silu_mul *silu_mul;
    kernel_sigmoid_mul *sigmoid_mul;
    kernel_axpy *axpy;
    kernel_conv_silu *conv_silu;
    kernel_gdn_scan *gdn_scan;
    kernel_attn_block *attn_block;
} cpu_kernels;

/* The table for the highest variant that this CPU has and `limit` allows ("ref" < "avx2" <
 * "avxvnni" < "avx512"; "ref" < "neon" < "i8mm"). limit NULL: no limit. An unknown or unavailable
 * name fails with the list of what is available. */
calla_status cpu_kernels_select(cpu_kernels *out, const char *limit, calla_error *err);

/* The product for matrices of `type`. */
static inline matmul_fn kernels_matmul(const cpu_kernels *k, mat_type type)
{
    switch (type) {
    case MAT_Q4:
        return k->matmul_q4;
    case MAT_Q8:
        return k->matmul_q8;
    case MAT_BF16:
        return k->matmul_bf16;
    case MAT_F32:
        break;
    }
    return k->matmul_f32;
}

/* Plain helpers without variants. */

/* Row r of a matrix, widened to f32: out[cols]. */
void matrix_row(const matrix *m, uint32_t r, float *out);

#endif
