/* check.h - what the kernel checks share: guarded memory, values, comparison, timing.
 *
 * Does:    gives each case inputs and outputs that lie between canaries and unmapped pages, draws
 *          shapes and values from a seed, compares with a warn and a fail bound, and times.
 *          Memory is filled with 0xff bytes, which are NaN in f32 and bf16: a stray read poisons
 *          the result, a stray write disturbs the canary, a far one faults.
 * Owns:    blocks of a case live until the case ends.
 * Errors:  the first failure of a case is kept; later ones are ignored.
 */
#ifndef CALLA_TESTS_KERNEL_CHECK_H
#define CALLA_TESTS_KERNEL_CHECK_H

#include <float.h>

#include "base/attrs.h"
#include "exec/cpu/kernels.h"

#define CHECK_BLOCKS_MAX 64u
#define EPS              ((double)FLT_EPSILON)
#define TINY             1.401298464324817e-45 /* the smallest f32 denormal */

typedef struct check_block {
    uint8_t *map, *data;
    size_t map_bytes, data_bytes;
} check_block;

typedef struct check {
    const cpu_kernels *k; /* the table up to the variant under test */
    uint64_t rng;
    check_block blocks[CHECK_BLOCKS_MAX];
    uint32_t n_blocks;
    char shape[160]; /* what was drawn, for messages */
    char failure[400];
    bool failed;
    double worst; /* largest error in units of the warn bound */
} check;

/* ---- Drawing ---- */

uint64_t check_random(check *c);
uint32_t check_below(check *c, uint32_t n); /* 0 .. n - 1 */
double check_unit(check *c);                /* [-1, 1) */
#define CHECK_PICK(c, list) ((list)[check_below((c), (uint32_t)(sizeof(list) / sizeof *(list)))])

/* Families of values; `large` is the magnitude that "huge" means for the operand. */
typedef enum values {
    VALUES_PLAIN, /* [-2, 2) */
    VALUES_TINY,
    VALUES_HUGE,
    VALUES_ZERO, /* both signs */
    VALUES_DENORMAL,
    VALUES_MIXED, /* exponents over 24 binades */
    N_VALUES
} values;
values check_values(check *c); /* plain more often than the others */
const char *values_name(values v);
float check_draw(check *c, values v, double large);
void check_fill(check *c, float *x, size_t n, values v, double large);

/* ---- Memory ---- */

float *check_floats(check *c, size_t n);  /* 64-byte aligned; n % 16 == 0: ends at the page */
uint8_t *check_bytes(check *c, size_t n); /* ends at an unmapped page or starts at an odd address */
float *check_copy(check *c, const float *x, size_t n);
void check_release(check *c, bool verify); /* verify: canaries must be intact */

/* ---- Comparing ---- */

void check_fail(check *c, const char *fmt, ...) ATTR_PRINTF(2, 3);
void check_shape(check *c, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* |got - want| against the bounds; element [i][j] of `what`. */
void check_close(check *c, const char *what, size_t i, size_t j, float got, double want,
                 double warn, double fail);
void check_same(check *c, const char *what, size_t i, size_t j, float got, float want); /* bits */
void check_unwritten(check *c, const char *what, size_t i, size_t j, float got);

/* ---- Timing ---- */

typedef struct bench {
    const char *name, *variant;
    const cpu_kernels *k;
    double *ref_seconds; /* per shape, in order; filled by the run over the reference */
    uint32_t i_shape;
    bool is_ref, quiet, csv;
} bench;
#define BENCH_SHAPES_MAX 16u

/* Times call(ctx) (median of batches) and prints a line with GB/s, GFLOP/s, ratio to ref. */
void bench_run(bench *b, const char *shape, double n_bytes, double n_flops, void (*call)(void *),
               void *ctx);
/* Memory for benchmarks: page-aligned, never freed before exit; filled with plain values. */
float *bench_floats(size_t n);
uint8_t *bench_bytes(size_t n);

/* One case / all benchmark shapes of each kernel; registry rows refer to them by name. */
#define CHECK_KERNEL(name)                                                                         \
    void check_##name(check *c);                                                                   \
    void bench_##name(bench *b);
CHECK_KERNEL(prep_q4)
CHECK_KERNEL(matmul_q4)
CHECK_KERNEL(prep_i16)
CHECK_KERNEL(matmul_i16)
CHECK_KERNEL(prep_i8)
CHECK_KERNEL(matmul_i8)
CHECK_KERNEL(matmul_q8)
CHECK_KERNEL(matmul_bf16)
CHECK_KERNEL(matmul_f32)
CHECK_KERNEL(rmsnorm)
CHECK_KERNEL(l2norm)
CHECK_KERNEL(gated_rmsnorm)
CHECK_KERNEL(silu_mul)
CHECK_KERNEL(sigmoid_mul)
CHECK_KERNEL(axpy)
CHECK_KERNEL(conv_silu)
CHECK_KERNEL(gdn_scan)
CHECK_KERNEL(attn_block)
#undef CHECK_KERNEL

#endif
