/* check_priv.h - the state of a draw, for check.c and who runs the checks. */
#ifndef CALLA_CHECK_CHECK_PRIV_H
#define CALLA_CHECK_CHECK_PRIV_H

#include "check/check.h"

#define CHECK_BUFFERS_MAX 64u
#define CHECK_BLOCKS_MAX  4096u

struct check {
    gpu_device *dev;
    recorder *rec;
    gpu_context context;
    uint64_t rng;
    uint32_t time_reps;           /* 0: no timing */
    bool early, graph;            /* how programs are run */
    bool metal, codes;            /* Metal's texts on the emulator; with GPU_MM_CODES */
    bool raw;                     /* leaves what is not initialised alone */
    double peak_gbs, peak_tflops; /* 0: unknown */
    const char *name;
    gpu_buffer *buffers[CHECK_BUFFERS_MAX];
    void *blocks[CHECK_BLOCKS_MAX];
    uint32_t n_buffers, n_blocks;
    char shape[160], failure[700];
    bool failed;
    double worst;   /* largest error in units of its bound, over all draws */
    double seconds; /* of the device, over all runs of the draw */
};

/* All families but those of the emulator; each ends with an empty row. */
extern const check_case *const check_families[];
extern const size_t check_n_families;

/* One draw of a case on c->dev with c->rec; failed, failure, shape, worst say how it went. Values
 * depend on the seed and the case's name alone. */
void check_draw(check *c, const check_case *k, uint64_t seed);

#endif
