/* simt.h - what kernels of the SIMT emulator and its driver share (C11 and C++17).
 *
 * Does:       one fiber per thread of a group. A simdgroup operation is a rendezvous of 32 lanes, a
 *             barrier one of the whole group; between rendezvous a lane runs alone. The last lane
 *             to arrive computes for all and runs on; the others become runnable. In checking mode
 *             every access to memory goes through simt_device_access() or simt_tg_access().
 * Owns:       nothing; the driver (exec/gpu/simt) owns groups, lanes and memory.
 * Invariants: a group's fibers stay on one thread of the host. A lane is at most one rendezvous
 *             ahead of the others, so exchanged values need two buffers (parity of `round`).
 * Errors:     simt_violation() ends the group: it switches to the driver and does not return.
 */
#ifndef CALLA_KERNELS_SIMT_H
#define CALLA_KERNELS_SIMT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMT_LANES        32u
#define SIMT_GROUP_MAX    1024u /* threads */
#define SIMT_SGS_MAX      (SIMT_GROUP_MAX / SIMT_LANES)
#define SIMT_TG_BYTES     32768u
#define SIMT_NATIVE_BYTES 232448u /* threadgroup memory of native main loops (KERNEL_DYN_SMEM) */
#define SIMT_TG_ALL       (SIMT_TG_BYTES + SIMT_NATIVE_BYTES)
#define SIMT_BINDINGS     16u
#define SIMT_ARRAYS       16u

typedef struct simt_lane simt_lane;
typedef struct simt_sg simt_sg;
typedef struct simt_group simt_group;
typedef struct simt_machine simt_machine;
typedef struct simt_launch simt_launch;
typedef struct simt_track simt_track; /* of the checks; see exec/gpu/simt/shadow.h */

typedef struct simt_binding {
    uint8_t *ptr;
    uint64_t bytes;
    simt_track *track; /* checking mode, else NULL */
} simt_binding;

/* A threadgroup array of a group. */
typedef struct simt_array {
    const char *name;
    uint32_t off, bytes;
} simt_array;

/* Runs one thread of the launch. */
typedef void (*simt_fn)(const simt_launch *l);

typedef struct simt_kernel {
    const char *name;
    uint32_t threads, n_bindings, args_bytes;
    simt_fn fn;
    const char *params; /* the parameters' text, for the names of bindings */
} simt_kernel;

struct simt_launch {
    const simt_kernel *kernel;
    const void *args;
    uint32_t grid_x, grid_y;
    uint32_t i_dispatch;
    simt_binding bind[SIMT_BINDINGS];
    struct simt_checker *checker; /* checking mode, else NULL */
};

struct simt_lane {
    void *sp; /* saved stack pointer */
    simt_sg *sg;
    simt_group *group;
    uint32_t tid, lane;
    uint32_t tg_used, n_arrays; /* threadgroup memory declared so far */
    uint8_t *stack;             /* lowest usable address */
    uint64_t stack_bytes;
    void *fake_stack; /* the address sanitizer's */
};

struct simt_sg {
    uint32_t runnable, done; /* masks of lanes */
    uint32_t n_arrived;      /* at the present rendezvous */
    uint32_t round;          /* rendezvous completed */
    uint32_t epoch;          /* SG_BARRIERs */
    const char *site;        /* of the present rendezvous */
    simt_lane *lanes;
    bool at_barrier; /* all lanes wait at a barrier of the group */
    uint32_t val[2][SIMT_LANES];
    uint32_t res[2];
    void *arg[2][SIMT_LANES];
};

struct simt_group {
    simt_machine *machine;
    const simt_launch *launch;
    uint32_t gx, gy;
    uint32_t n_threads, n_sg;
    uint32_t n_at_barrier;
    uint32_t n_done;     /* threads */
    uint32_t run, epoch; /* number of this group among all; TG_BARRIERs of both kinds */
    uint32_t dev_epoch;  /* TG_BARRIER_DEVICEs */
    bool at_device;      /* the barrier that lanes arrive at is one */
    uint32_t n_arrays;
    uint32_t slot; /* of the machine */
    const char *barrier_site;
    bool seeded; /* order by the machine's generator */
    uint8_t *tg; /* [SIMT_TG_ALL]: TG_ARRAYs, then the block of a native main loop */
    simt_lane *lanes;
    simt_array arrays[SIMT_ARRAYS];
    simt_sg sgs[SIMT_SGS_MAX];
};

/* The lane that runs on this thread of the host. (__thread: C++ would guard thread_local.) */
extern __thread simt_lane *simt_self;

/* Ends the group with a sentence; the kernel, group and thread are put before it. */
#if defined(__GNUC__)
__attribute__((noreturn, format(printf, 2, 3)))
#endif
void simt_violation(simt_lane *t, const char *fmt, ...);
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void simt_diverged(simt_lane *t, const char *site);
/* Lets other lanes run; returns when t is scheduled again. */
void simt_reschedule(simt_lane *t);
void simt_switch(simt_lane *from, simt_lane *to);
/* The last lane of a simdgroup has arrived at a barrier of the group. */
void simt_barrier_sg(simt_lane *t, const char *site);
/* Where groups may be interleaved: the lane stays runnable. */
void simt_pause(simt_lane *t);
/* A place in threadgroup memory for n bytes; the array's number. */
uint32_t simt_tg_declare(simt_lane *t, uint64_t bytes, const char *name);
/* The same for the block of a native main loop. */
uint32_t simt_native_declare(simt_lane *t, uint64_t bytes, const char *name);

static inline uint32_t simt_lowest(uint32_t mask)
{
    return (uint32_t)__builtin_ctz(mask);
}

static inline void simt_yield(simt_lane *t)
{
    simt_sg *s = t->sg;
    const uint32_t mask = s->runnable;
    if (mask == 0 || t->group->seeded) {
        simt_reschedule(t);
        return;
    }
    s->runnable = mask & (mask - 1);
    simt_switch(t, &s->lanes[simt_lowest(mask)]);
}

/* A site is a string literal, "OPERATION FILE:LINE#N", N different for every place. */
static inline void simt_meet(simt_lane *t, const char *site)
{
    simt_sg *s = t->sg;
    if (s->n_arrived == 0) s->site = site;
    if (s->site != site || s->done != 0) simt_diverged(t, site);
}

/* True for the last of the simdgroup's lanes, at once; false when it has let this one go. */
static inline bool simt_arrive(simt_lane *t, const char *site)
{
    simt_sg *s = t->sg;
    simt_meet(t, site);
    if (++s->n_arrived < SIMT_LANES) {
        simt_yield(t);
        return false;
    }
    s->n_arrived = 0;
    s->round++;
    s->runnable = ~(1u << t->lane);
    return true;
}

static inline void simt_barrier(simt_lane *t, const char *site)
{
    simt_meet(t, site);
    if (++t->sg->n_arrived < SIMT_LANES)
        simt_yield(t);
    else
        simt_barrier_sg(t, site);
}

/* ---- Checked accesses ---- */

enum {
    SIMT_READ = 1,
    SIMT_WRITE = 2,
    SIMT_SHARED = 4, /* atomic, st_shared, ld_shared */
    SIMT_BY_SG = 8   /* by all lanes of the simdgroup together */
};

/* Where those bytes lie, after all checks. */
uint8_t *simt_device_access(const simt_binding *b, int64_t off, uint32_t bytes, uint32_t how,
                            const char *file, int line);
uint8_t *simt_tg_access(const simt_array *a, int64_t off, uint32_t bytes, uint32_t how,
                        const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
