/* cpu.h - internals of the CPU executor, shared by its files.
 *
 * Does:       executor.c creates, plans, saves and loads; forward.c walks the layers; linear.c runs
 *             dense matrices; gdn.c, attention.c, moe.c are the three kinds of block.
 * Owns:       cpu_exec owns the pool and all scratch; a sequence owns its KV cache and state.
 * Invariants: every buffer row is 64-byte aligned. Work is divided over threads by output element
 *             only, never inside a sum: results do not depend on the division.
 */
#ifndef CALLA_EXEC_CPU_CPU_H
#define CALLA_EXEC_CPU_CPU_H

#include "base/pool.h"
#include "exec/cpu/kernels.h"
#include "exec/executor.h"

#define CPU_CHUNK_DEFAULT 512u
#define CPU_CHUNK_MAX     4096u
/* Attention works on spans of positions whose partial results are merged in ascending order, so
 * that long contexts can be divided over threads without changing the result. */
#define ATTN_SPAN      512u /* positions, a multiple of ATTN_BLOCK */
#define ATTN_TILE_ROWS 64u  /* query rows of a prefill tile */

/* n rows of `stride` floats; p[i] is row i. */
typedef struct rows {
    float *base;
    size_t stride;
    float **p;
} rows;

struct exec_seq {
    uint32_t n_ctx, n_tokens;
    uint32_t n_rows;   /* positions of the cache: n_ctx in whole blocks */
    size_t elem_bytes; /* of a KV element */
    uint8_t *k, *v;    /* [full layers][kv heads][n_rows][256], in the order of kernels.h */
    uint64_t kv_bytes; /* of each of k and v */
    float *gdn;        /* [GDN layers][value heads][GDN_STATE_FLOATS], slab order (kernels.h) */
    float *conv;       /* [GDN layers][3][conv channels], oldest first, before the convolution */
    uint64_t gdn_bytes, conv_bytes;
};

/* One token of the running batch. */
typedef struct batch_token {
    exec_seq *seq;
    uint32_t pos;
    uint32_t i_seg;
} batch_token;

/* One expert, or the shared expert, with the tokens routed to it. */
typedef struct moe_group {
    matrix gate, up, down;
    uint32_t first, n; /* rows [first, first + n) of the slot buffers */
} moe_group;

typedef struct cpu_exec {
    executor base;
    const model_shape *shape;
    const model_weights *weights;
    cpu_kernels kern;
    pool *pool;
    uint32_t n_threads, chunk;
    calla_kv_type kv_type;
    exec_stage_fn stage; /* NULL: nobody listens */
    void *stage_user;
    exec_tap_fn tap; /* NULL: none */
    void *tap_user;
    calla_precision precision;
    kernel_prep *prep; /* what Q4 matrices take their inputs from, by the precision */
    matmul_fn matmul_q4;
    uint32_t prep_bytes;    /* of a prepared group */
    uint64_t scratch_bytes; /* of `scratch` */
    uint8_t *scratch;       /* everything below, except per-sequence state */

    /* the running batch */
    uint32_t n_tokens;
    const exec_segment *segs;
    uint32_t n_segs;
    uint32_t *seg_first;                   /* [chunk] first token of a segment */
    batch_token *tokens;                   /* [chunk] */
    float *inv_freq, *rope_cos, *rope_sin; /* [32], [chunk][32] */

    /* Rows prepared for Q4 (xp, mixp, slot_act) hold prep_bytes a group of 64 columns. */
    rows x, xn, xp; /* [chunk][hidden]: residual, normed, normed and prepared */
    rows mix, mixp; /* [chunk][max(gdn value width, q width)]: block output, prepared */
    /* Gated DeltaNet */
    rows qkv, conv, z; /* [chunk][conv channels], same, [chunk][value width] */
    rows b, a;         /* [chunk][value heads]; become beta and decay */
    /* attention */
    rows q, k, v;     /* [chunk][2 * q width], [chunk][kv width] */
    float *attn_part; /* [part_rows][256] partial outputs of spans */
    attn_state *attn_part_st;
    uint32_t part_rows;
    /* mixture of experts; slots: chunk * n_experts_used routed, then chunk shared */
    rows logits, shared_logit;         /* [chunk][n_experts], [chunk][16] */
    rows slot_gate, slot_up, slot_act; /* [slots][max expert width] */
    rows slot_out;                     /* [slots][hidden] */
    const float **slot_x, **slot_xp;   /* [slots] input rows */
    float **logit_y;                   /* [chunk] output rows of lm_head */
    uint32_t *route_expert;            /* [chunk][used] */
    float *route_weight;               /* [chunk][used] */
    uint32_t *route_slot;              /* [chunk][used] */
    uint32_t *expert_count;            /* [n_experts + 1] */
    moe_group *groups;                 /* [n_experts + 1] */
    uint32_t n_groups;
    /* per thread */
    float *thread_mem;
    size_t thread_floats;
} cpu_exec;

static inline const float *const *rows_c(const rows *r)
{
    return (const float *const *)r->p;
}

static inline float *thread_scratch(const cpu_exec *ex, uint32_t i_thread)
{
    return ex->thread_mem + ex->thread_floats * i_thread;
}

/* Prepares columns [col, col + n) of a row for Q4 matrices; x points to the first of them. */
static inline void prep_cols(const cpu_exec *ex, const float *x, uint32_t col, uint32_t n,
                             float *row)
{
    ex->prep(x, n, (uint8_t *)row + (size_t)(col / MODEL_QUANT_GROUP) * ex->prep_bytes);
}

/* One step of the forward pass: n_tasks over all threads. What it must move through memory and
 * compute is told to `stage` with the time it took; label names it. */
typedef struct cpu_step {
    const char *label;
    double bytes, flops;
} cpu_step;
void cpu_run(cpu_exec *ex, cpu_step step, pool_fn fn, void *ctx, uint32_t n_tasks);
void cpu_run_ranges(cpu_exec *ex, cpu_step step, pool_range_fn fn, void *ctx, uint32_t n_tasks);

/* Bytes of codes, scales and biases. */
static inline double matrix_bytes(const matrix *w)
{
    const double params = w->scales == NULL ? 0.0 : 4.0 / MODEL_QUANT_GROUP;
    return (double)w->rows * ((double)w->row_bytes + (double)w->cols * params);
}

/* y = W x for n_tokens rows; xp is x prepared for Q4 matrices (unused otherwise). */
typedef struct linear_job {
    const matrix *w;
    const float *const *x, *const *xp;
    float *const *y;
    uint32_t n_tokens;
} linear_job;

#define LINEAR_JOBS_MAX 4u
#define LINEAR_FEW      2u /* tokens: weights are read once, in the order of memory */
/* The least that a thread is given: what the kernels take at once. */
#define LINEAR_TASK_ROWS (2 * MATMUL_STRIP_ROWS)

/* Runs the jobs side by side over all threads. */
void linear_run(cpu_exec *ex, const char *label, const linear_job *jobs, uint32_t n_jobs);
/* One job on the calling thread, rows [row0, row1). */
void linear_rows(const cpu_exec *ex, const linear_job *job, uint32_t row0, uint32_t row1,
                 float *scratch);
/* The same; more than LINEAR_FEW tokens in pieces, whose weights stay in the cache for all of them.
 * next: what the thread reads then; may be none, and one of another type is ignored. */
void linear_span(const cpu_exec *ex, const linear_job *job, uint32_t row0, uint32_t row1,
                 matrix_row_ref next, float *scratch);
/* Floats of per-thread scratch a matmul needs for this model. */
size_t linear_scratch_floats(const model_shape *s);

/* The blocks read xn/xp and leave their result in mix/mixp (gdn, attention: before the output
 * projection, which they then add to x) or add it to x (moe). */
void gdn_block(cpu_exec *ex, uint32_t i_layer, uint32_t i_gdn);
void attention_block(cpu_exec *ex, uint32_t i_layer, uint32_t i_full);
void moe_block(cpu_exec *ex, uint32_t i_layer, const float *next_norm);

/* xn = rmsnorm(x) * w, xp = prepared xn, for one token. */
void norm_token(const cpu_exec *ex, uint32_t t, const float *w);

/* Per-thread scratch of the attention tiles, and rows of partial results for divided spans. */
size_t attention_scratch_floats(const model_shape *s);
uint32_t attention_part_rows(const model_shape *s);

/* exec_ops.profile: one step on a sequence of n_ctx made-up tokens. */
calla_status cpu_profile(executor *base, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                         exec_stage_fn fn, void *user, calla_error *err);

calla_status cpu_forward(cpu_exec *ex, const exec_segment *segs, uint32_t n_segs, calla_error *err);

#endif
