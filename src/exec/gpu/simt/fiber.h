/* fiber.h - switching between stacks on one thread.
 *
 * Does:   fiber_init() prepares a stack so that the first switch to it calls fn(arg), which must
 * not return; fiber_swap() stores the running context's stack pointer and resumes another. Only
 *         what the calling convention preserves is kept; the floating-point mode is the thread's.
 */
#ifndef CALLA_EXEC_GPU_SIMT_FIBER_H
#define CALLA_EXEC_GPU_SIMT_FIBER_H

#include <stddef.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#define FIBER_UCONTEXT 1
#endif

/* top: one past the highest byte, 16-byte aligned. Returns the value for `load`. */
void *fiber_init(void *stack, void *top, void (*fn)(void *), void *arg);
void fiber_swap(void **save, void *load);
/* Gives back what fiber_init() took besides the stack. */
void fiber_deinit(void *sp);

#endif
