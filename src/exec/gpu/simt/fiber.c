#if defined(__APPLE__) && !defined(_XOPEN_SOURCE)
#define _XOPEN_SOURCE 700 /* ucontext */
#endif
#include "exec/gpu/simt/fiber.h"

#include <stdint.h>

#if defined(FIBER_UCONTEXT)

#include <ucontext.h>

#include "base/mem.h"

typedef struct fiber_context {
    ucontext_t u;
    void (*fn)(void *);
    void *arg;
} fiber_context;

static void fiber_start(unsigned hi, unsigned lo)
{
    fiber_context *c = (fiber_context *)((uintptr_t)(((uint64_t)hi << 32) | lo));
    c->fn(c->arg);
}

void *fiber_init(void *stack, void *top, void (*fn)(void *), void *arg)
{
    fiber_context *c = mem_alloc(sizeof *c);
    if (c == NULL || getcontext(&c->u) != 0) {
        mem_free(c);
        return NULL;
    }
    c->fn = fn;
    c->arg = arg;
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = (size_t)((uint8_t *)top - (uint8_t *)stack);
    const uint64_t p = (uintptr_t)c;
    makecontext(&c->u, (void (*)(void))fiber_start, 2, (unsigned)(p >> 32), (unsigned)p);
    return c;
}

/* A context without fiber_init() (the thread's own) lives on its own stack while it waits. */
void fiber_swap(void **save, void *load)
{
    fiber_context own, *from = *save != NULL ? *save : &own;
    *save = from;
    (void)swapcontext(&from->u, &((fiber_context *)load)->u);
    if (from == &own) *save = NULL;
}

void fiber_deinit(void *sp)
{
    mem_free(sp);
}

#else

/* Hidden, not local: through the address table the GNU assembler reaches a local symbol of aarch64
 * as its section's begin. */
#if defined(__APPLE__)
#define GLOBAL(name) ".globl _" name "\n.private_extern _" name "\n_" name ":\n"
#else
#define GLOBAL(name) ".globl " name "\n.hidden " name "\n" name ":\n"
#endif

/* clang-format off */
#if defined(__x86_64__)
/* A jump rather than a return: the return predictor does not know this stack. */
__asm__(".text\n"
        ".p2align 4\n"
        GLOBAL("fiber_swap")
        "    popq %rdx\n"
        "    pushq %rbx\n"
        "    pushq %rbp\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    pushq %rdx\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %rdx\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbp\n"
        "    popq %rbx\n"
        "    jmp *%rdx\n"
        ".p2align 4\n"
        GLOBAL("fiber_start")
        "    movq %r12, %rdi\n"
        "    xorl %ebp, %ebp\n"
        "    callq *%r13\n"
        "    ud2\n");
#else
__asm__(".text\n"
        ".p2align 4\n"
        GLOBAL("fiber_swap")
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    br x30\n"
        ".p2align 4\n"
        GLOBAL("fiber_start")
        "    mov x0, x19\n"
        "    mov x29, xzr\n"
        "    blr x20\n"
        "    brk #1\n");
#endif
/* clang-format on */

void fiber_start(void); /* the label above; not a C function */

void *fiber_init(void *stack, void *top, void (*fn)(void *), void *arg)
{
    (void)stack;
    uint64_t *sp = top;
#if defined(__x86_64__)
    sp -= 9; /* fiber_start, r15, r14, r13, r12, rbp, rbx, and two for alignment */
    sp[0] = (uintptr_t)fiber_start;
    sp[1] = sp[2] = sp[5] = sp[6] = sp[7] = sp[8] = 0;
    sp[3] = (uintptr_t)fn;
    sp[4] = (uintptr_t)arg;
#else
    sp -= 20;
    for (int i = 0; i < 20; i++)
        sp[i] = 0;
    sp[0] = (uintptr_t)arg;
    sp[1] = (uintptr_t)fn;
    sp[11] = (uintptr_t)fiber_start;
#endif
    return sp;
}

void fiber_deinit(void *sp)
{
    (void)sp;
}

#endif
