/* fpenv.h - denormal handling of the current thread.
 *
 * The recurrent state decays towards zero; arithmetic on denormals is up to a hundred times slower
 * on x86. Every thread that runs kernels flushes them to zero, so results do not depend on which
 * thread ran a task; the caller's own setting is put back.
 */
#ifndef CALLA_BASE_FPENV_H
#define CALLA_BASE_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

static inline uint64_t fpenv_flush_denormals(void)
{
    const unsigned old = _mm_getcsr();
    _mm_setcsr(old | 0x8040u); /* FTZ, DAZ */
    return old;
}

static inline void fpenv_restore(uint64_t old)
{
    _mm_setcsr((unsigned)old);
}

#elif defined(__aarch64__)

static inline uint64_t fpenv_flush_denormals(void)
{
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(old | (UINT64_C(1) << 24))); /* FZ */
    return old;
}

static inline void fpenv_restore(uint64_t old)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(old));
}

#else

static inline uint64_t fpenv_flush_denormals(void)
{
    return 0;
}

static inline void fpenv_restore(uint64_t old)
{
    (void)old;
}

#endif
#endif
