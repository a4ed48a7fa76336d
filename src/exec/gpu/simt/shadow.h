/* shadow.h - what the emulator remembers of memory in checking mode, and its verdicts.
 *
 * Does:       for every two bytes of memory that a dispatch may write: who wrote and who read them
 *             last (group, thread, barriers passed). An access in conflict with one that no barrier
 *             orders is a violation, as are bytes outside of the binding, bytes never written,
 *             misaligned 16-byte accesses, writes to a binding declared read, and reads through a
 *             binding declared written of what the dispatch has not written itself.
 * Invariants: what a group has written to device memory is ordered within it by TG_BARRIER_DEVICE,
 *             what it has read by TG_BARRIER too; threadgroup memory also by SG_BARRIER within a
 *             simdgroup. Groups are not ordered at all; among atomics and
 *             ld/st_shared there is no conflict.
 * Owns:       a shadow belongs to its buffer, a checker to its device.
 */
#ifndef CALLA_EXEC_GPU_SIMT_SHADOW_H
#define CALLA_EXEC_GPU_SIMT_SHADOW_H

#include "exec/gpu/simt/simt.h"

typedef struct shadow shadow;
typedef struct simt_checker simt_checker;

/* Of a buffer. */
shadow *shadow_create(uint64_t bytes, bool initialised);
void shadow_destroy(shadow *s);
void shadow_written(shadow *s, uint64_t off, uint64_t bytes); /* from outside */
void shadow_copied(shadow *dst, uint64_t dst_off, const shadow *src, uint64_t src_off,
                   uint64_t bytes);

/* Of a binding of a dispatch that runs. */
struct simt_track {
    simt_checker *c;
    shadow *s;
    const char *buffer;
    uint64_t off; /* of the binding in its buffer */
    uint32_t access, i_binding;
    bool cells;              /* a binding of the dispatch writes here */
    bool old_read;           /* a byte was read that the dispatch had not written before */
    uint8_t *read, *written; /* touched: a bit for each four bytes */
};

/* Are two dispatches that touched a byte of this buffer free to run at the same time? */
typedef bool (*simt_rivals)(const void *ctx, const shadow *s, uint32_t a, uint32_t b);

/* Runs programs; one group after the other has a number, by which accesses are told apart. Those
 * of one dispatch are not ordered; different dispatches are, or as simt_checker_rivals() says. */
calla_status simt_checker_create(simt_checker **out, uint32_t n_slots, calla_error *err);
void simt_checker_destroy(simt_checker *c);
void simt_checker_rivals(simt_checker *c, simt_rivals fn, const void *ctx);
void simt_checker_begin(simt_checker *c); /* of a submission: earlier ones are ordered before it */
/* The next group, of launch l: its number, or 0 when there is no memory. slot: where it runs. */
uint32_t simt_checker_group(simt_checker *c, uint32_t slot, const simt_launch *l, uint32_t gx,
                            uint32_t gy);

/* The binding's name among the kernel's parameters, in `to`. */
void kernel_param(char *to, size_t size, const simt_kernel *k, uint32_t i_binding);

#endif
