/* check_priv.h - the state of a draw, for check.c and calla-gpu-check.c. */
#ifndef CALLA_TESTS_GPU_CHECK_PRIV_H
#define CALLA_TESTS_GPU_CHECK_PRIV_H

#include "check.h"

#define CHECK_BUFFERS_MAX 64u
#define CHECK_BLOCKS_MAX  4096u

struct check {
    gpu_device *dev;
    recorder *rec;
    gpu_context context;
    uint64_t rng;
    uint32_t time_reps;           /* 0: no timing */
    bool early, graph;            /* how programs are run */
    bool raw;                     /* leaves what is not initialised alone */
    double peak_gbs, peak_tflops; /* 0: unknown */
    const char *name;
    gpu_buffer *buffers[CHECK_BUFFERS_MAX];
    void *blocks[CHECK_BLOCKS_MAX];
    uint32_t n_buffers, n_blocks;
    char shape[160], failure[700];
    bool failed;
    double worst; /* largest error in units of its bound, over all draws */
};

#endif
