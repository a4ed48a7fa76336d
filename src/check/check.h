/* check.h - what the checks of GPU kernels share: buffers, running, values, comparison, timing.
 *
 * Does:    a case draws a shape and values from a seed, puts them into buffers, records dispatches
 *          through op_*(), runs them on the device under test and compares with the plain C
 *          reference. On the emulator every draw runs under another schedule.
 * Owns:    buffers and host blocks of a case live until the draw ends.
 * Errors:  the first failure of a draw is kept; later ones are ignored. check_view() and
 * check_host() end the program when there is no memory, so cases need not test them. How to:
 * src/check/check_X.c defines `const check_case check_X_cases[]`, the last row empty; FAMILIES of
 * check.c names X. Denormals are flushed, so references have the kernels' bits.
 */
#ifndef CALLA_CHECK_CHECK_H
#define CALLA_CHECK_CHECK_H

#include "base/attrs.h"
#include "exec/gpu/ops.h"

typedef struct check check;

enum {
    CHECK_BENCH = 1,     /* runs with --time only, once */
    CHECK_ON_DEVICE = 2, /* too big for the emulator */
    CHECK_EMULATOR = 4   /* of the emulator itself */
};

typedef struct check_case {
    const char *name;
    void (*run)(check *c);
    uint32_t flags; /* CHECK_BENCH, ... */
} check_case;

extern const model_shape check_nano; /* the demonstration model's */

/* ---- Device ---- */

gpu_device *check_device(check *c);
bool check_on_emulator(const check *c);
bool check_draws_native(const check *c); /* has every main loop: a case chooses native_mm */
bool check_timing(const check *c);       /* --time */

/* A context whose recorder is empty; change `off` at will. */
gpu_context *check_context(check *c, const model_shape *shape);

/* A new buffer; init may be NULL (the contents are undefined then). name: static storage. */
gpu_view check_view(check *c, const char *name, uint64_t bytes, const void *init);
/* Its contents now, in memory that lives until the draw ends. */
void *check_fetch(check *c, gpu_view v);

/* Runs what the context's recorder holds, and empties it. False after a failure, which is noted.
 * With --time: also repeats it and prints time, GB/s and TFLOP/s from the dispatches' costs. */
bool check_run(check *c);
/* The same without timing: what a measurement needs beforehand. */
bool check_run_once(check *c);

/* ---- Values ---- */

void *check_host(check *c, uint64_t bytes); /* zeroed */
uint64_t check_random(check *c);
uint32_t check_below(check *c, uint32_t n); /* 0 .. n - 1 */
float check_uniform(check *c, float a, float b);
#define CHECK_PICK(c, list) ((list)[check_below((c), (uint32_t)(sizeof(list) / sizeof *(list)))])
float *check_floats(check *c, uint64_t n, float a, float b); /* uniform in [a, b) */
uint16_t *check_bf16s(check *c, uint64_t n, float a, float b);
uint32_t *check_words(check *c, uint64_t n); /* any bits: 4-bit and 8-bit codes */
/* Scale and bias pairs of n groups: scales about 0.01, biases about -8 scales (4-bit codes: 8). */
uint32_t *check_scales(check *c, uint64_t n, float bias_in_scales);

/* ---- Comparing ---- */

void check_fail(check *c, const char *fmt, ...) ATTR_PRINTF(2, 3);
void check_shape(check *c, const char *fmt, ...) ATTR_PRINTF(2, 3); /* what was drawn */
bool check_failed(const check *c);
/* got [rows][cols] against want, bit for bit. */
void check_same_f32(check *c, const char *what, const float *got, const float *want, uint64_t rows,
                    uint64_t cols);
void check_same_u32(check *c, const char *what, const uint32_t *got, const uint32_t *want,
                    uint64_t rows, uint64_t cols);
void check_same_u16(check *c, const char *what, const uint16_t *got, const uint16_t *want,
                    uint64_t rows, uint64_t cols);
/* |got - want| <= abs + rel * |want|. */
void check_close_f32(check *c, const char *what, const float *got, const float *want, uint64_t rows,
                     uint64_t cols, double abs, double rel);
/* Against a bound for each element (from the magnitudes of its terms). */
void check_bound_f32(check *c, const char *what, const float *got, const double *want,
                     const double *bound, uint64_t rows, uint64_t cols);

#endif
