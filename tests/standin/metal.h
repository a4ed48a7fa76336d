/* metal.h - the objects of the framework, for its files.
 *
 * Invariants: all of it is under rt_lock(), but for the dispatches of the command buffer that runs
 *             (exec.c), which are then nobody else's.
 * Order:      encoders are numbered as they are made, dispatches as they are encoded. What an
 *             encoder knows: encoders up to `upto` have ended before it begins, and of a few others
 *             the dispatches up to an epoch. Epochs are counted by barriers. Work that is neither
 *             known nor separated by an epoch may overlap, for resources that are not tracked.
 */
#ifndef CALLA_TESTS_STANDIN_METAL_H
#define CALLA_TESTS_STANDIN_METAL_H

#include "exec/gpu/simt/shadow.h"
#include "rt.h"

#define SLOTS_MAX 31u
#define BYTES_MAX 4096u
#define KNOWN_MAX 8u
#define UNTRACKED 0x100ul
#define QUEUE_MAX 64u /* command buffers of a queue that have not ended */
#define SETS_MAX  32u

extern const rt_class class_MTLDevice, class_MTLArchitecture, class_MTLBuffer, class_MTLLibrary,
    class_MTLFunction, class_MTLComputePipelineState, class_MTLComputePipelineDescriptor,
    class_MTLCompileOptions, class_MTLResidencySet, class_MTLResidencySetDescriptor,
    class_MTLCommandQueue, class_MTLCommandBuffer, class_MTLComputeCommandEncoder,
    class_MTLBlitCommandEncoder, class_MTLFence, class_MTLSharedEvent;

typedef struct m_size {
    unsigned long width, height, depth;
} m_size;

/* ---- Resources (device.c) ---- */

typedef struct buffer_body {
    uint8_t *data;
    uint64_t bytes, mapped; /* mapped 0: somebody else's memory */
    unsigned long options;
    shadow *shadow;
    bool by_kernels; /* some kernel may write it */
    uint32_t n_in_flight;
    char label[48];
} buffer_body;

typedef struct library_body {
    uint64_t hash;
    int rung; /* -1: compiled without the macro */
    const simt_kernel *kernels;
} library_body;

typedef struct function_body {
    const simt_kernel *kernel;
    int rung;
} function_body;

typedef struct pipeline_body {
    const simt_kernel *kernel;
    const char *params; /* their names and types, from the portable kernel */
    int rung;
    unsigned long max_threads;
    uint32_t n_in_flight;
} pipeline_body;

typedef struct set_body {
    obj **items, **committed; /* retained */
    size_t n_items, n_committed, cap;
    bool requested;
} set_body;

/* Does Metal order accesses to it from different encoders by itself? */
bool buffer_tracked(const shadow *s);
/* Buffers that the set makes resident. */
bool set_has(obj *set, const obj *buffer);

/* ---- Order ---- */

typedef struct known_pair {
    uint32_t encoder, epochs;
} known_pair;
typedef struct knowledge {
    uint32_t upto, n;
    known_pair pair[KNOWN_MAX];
} knowledge;

typedef struct fence_body {
    uint32_t encoder; /* that updated it last; 0: none */
    uint32_t epochs, n_dispatches;
} fence_body;

typedef struct event_body {
    uint64_t value;
    uint32_t encoder; /* the last before the signal */
} event_body;

/* ---- Commands (encode.c) ---- */

typedef struct slot {
    enum { SLOT_EMPTY, SLOT_BUFFER, SLOT_BYTES } kind;
    bool fresh; /* set since the last dispatch */
    obj *buffer;
    uint64_t offset;
    uint32_t bytes;
    uint8_t data[128];
} slot;

typedef enum op_kind { OP_DISPATCH, OP_COPY, OP_FILL, OP_SIGNAL, OP_WAIT } op_kind;

typedef struct op {
    op_kind kind;
    uint32_t encoder, epoch, number;
    obj *pipeline; /* or event */
    const simt_kernel *kernel;
    int rung;
    uint32_t grid_x, grid_y, n_bindings, writes; /* writes: bit i for buffer i */
    obj *buffer[SIMT_BINDINGS];
    uint64_t offset[SIMT_BINDINGS];
    uint64_t value; /* of the event; bytes of a copy */
    uint8_t args[128];
} op;

typedef struct queue_body {
    obj *sets[SETS_MAX];
    size_t n_sets;
    uint32_t n_open; /* command buffers that have not ended */
    uint32_t last_encoder;
} queue_body;

enum { CB_NEW, CB_ENQUEUED, CB_COMMITTED, CB_SCHEDULED, CB_COMPLETED, CB_ERROR };
typedef struct cb_body {
    obj *queue, *open, *error;
    bool retains;
    unsigned status;
    op *ops;
    size_t n_ops, cap_ops;
    uint32_t first_encoder, last_encoder;
    uint64_t number; /* of commits */
    double start, end;
} cb_body;

typedef struct encoder_body {
    obj *cb, *pipeline;
    bool ended, concurrent;
    uint32_t id, epoch, n_dispatches;
    slot slots[SLOTS_MAX], before[SLOTS_MAX];
} encoder_body;

/* ---- Running (exec.c) ---- */

/* What is known of an encoder; n_dispatches counts on while it is open. */
typedef struct encoder_info {
    uint32_t id, n_dispatches;
    knowledge known;
} encoder_info;
encoder_info *exec_encoder(uint32_t id);
void exec_dispatch(uint32_t number, uint32_t encoder, uint32_t epoch);
void exec_update_fence(fence_body *f, const encoder_body *e);
void exec_wait_fence(const fence_body *f, const encoder_body *e);
/* Hands a command buffer over; it is retained until it has ended. */
void exec_commit(obj *cb);
/* The host has seen that encoders up to this one have ended. */
void exec_observed(uint32_t encoder);
/* The kernels that a text stands for; NULL when it is not one of those that ship. */
const simt_kernel *exec_kernels(uint64_t hash, int rung);
uint64_t exec_hash(const char *text); /* FNV-1a */
/* Is the kernel in the text with this hash? */
bool exec_has(uint64_t hash, const char *kernel);
const char *exec_params(const char *kernel);

#endif
