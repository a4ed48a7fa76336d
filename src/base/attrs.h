/* attrs.h - the only place for compiler extensions. */
#ifndef CALLA_BASE_ATTRS_H
#define CALLA_BASE_ATTRS_H

#if defined(__GNUC__) || defined(__clang__)
#define ATTR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ATTR_ALIGNED(n)        __attribute__((aligned(n)))
#define ATTR_UNUSED            __attribute__((unused))
#define ATTR_NODISCARD         __attribute__((warn_unused_result))
#define ATTR_INLINE            __attribute__((always_inline)) inline
#define TYPE_OF(x)             __typeof__(x)
#define LIKELY(x)              __builtin_expect(!!(x), 1)
#define UNLIKELY(x)            __builtin_expect(!!(x), 0)
#define PREFETCH(p)            __builtin_prefetch(p)         /* p may point anywhere */
#define PREFETCH_FAR(p)        __builtin_prefetch((p), 0, 2) /* not into the nearest cache */
#define ATTR_NO_ASAN           __attribute__((no_sanitize_address))
#define LOADS_STAY()           __asm__ volatile("" ::: "memory") /* none moves across */
#if defined(__x86_64__)
#define CPU_SUPPORTS(feature) __builtin_cpu_supports(feature) /* CPU and operating system */
#endif
/* for (uint32_t i = 0; i < n; i++), n a constant up to 64: unrolled completely. */
#if defined(__clang__)
#define UNROLL         _Pragma("clang loop unroll(full)")
#define UNROLLED(i, n) _Pragma("clang loop unroll(full)") for (uint32_t i = 0; i < (n); i++)
#else
#define UNROLL         _Pragma("GCC unroll 64")
#define UNROLLED(i, n) _Pragma("GCC unroll 64") for (uint32_t i = 0; i < (n); i++)
#endif
#else
#error "calla needs GCC or Clang"
#endif

#endif
