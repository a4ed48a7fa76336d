/* dialect_simt.h - the kernel language as C++17 for the SIMT emulator (README.md, simt.h).
 *
 * A kernel is a plain function; simt_entry unpacks a launch's bindings by position. Without
 * SIMT_CHECK pointers are plain; with it they are classes whose every use is checked, and which
 * know the line of the source: an index converts to simt_index where it is used.
 */
#ifndef CALLA_KERNELS_DIALECT_SIMT_H
#define CALLA_KERNELS_DIALECT_SIMT_H

#include <stdint.h>
#include <string.h>

#include "kernels/simt.h"

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;
static_assert(sizeof(ulong) == 8, "a 64-bit target");

struct alignas(16) uint4 {
    uint x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

#define SIMT_TEXT2(x)       #x
#define SIMT_TEXT(x)        SIMT_TEXT2(x)
#define SIMT_TEXT_ALL2(...) #__VA_ARGS__
#define SIMT_TEXT_ALL(...)  SIMT_TEXT_ALL2(__VA_ARGS__)
#define SIMT_SITE(op)       op " " __FILE__ ":" SIMT_TEXT(__LINE__) "#" SIMT_TEXT(__COUNTER__)

/* ---- Kernels ---- */

#define KERNEL(name, threads, ...)                                                                 \
    enum { simt_threads_##name = (threads) };                                                      \
    static const char simt_params_##name[] = SIMT_TEXT_ALL(__VA_ARGS__);                           \
    static void simt_kernel_##name(__VA_ARGS__)
#define KERNEL_END
#define KIN(i, T, name)  [[maybe_unused]] DPTR(const T) name
#define KOUT(i, T, name) [[maybe_unused]] DPTR(T) name
#define KARG(i, T, name) [[maybe_unused]] const T &name

#define KCTX                                                                                       \
    [[maybe_unused]] const uint tid = simt_self->tid, lane = simt_self->lane, sg = tid / 32u,      \
                                n_sg = simt_self->group->n_sg, gx = simt_self->group->gx,          \
                                gy = simt_self->group->gy, ngx = simt_self->group->launch->grid_x, \
                                ngy = simt_self->group->launch->grid_y

template <typename T> using simt_ref = T &;
#define THREF(T)            simt_ref<T>
#define ARGS(T)             T
#define ARGS_REF(T)         simt_ref<const T>
#define THARRAY(T, n, name) T(&name)[n]
#define DPTR(T)             simt_dptr<T>
#define TPTR(T)             simt_tptr<T>

#if defined(SIMT_CHECK)

/* ---- Checked memory ---- */

/* An index, and the place in the source that uses it. */
struct simt_index {
    int64_t i;
    const char *file;
    int line;
    template <typename I>
    simt_index(I at, const char *f = __builtin_FILE(), int l = __builtin_LINE())
        : i((int64_t)at), file(f), line(l)
    {
    }
};

struct simt_device_space {
    typedef simt_binding base;
    static uint8_t *access(const base *b, int64_t off, uint n, uint how, const simt_index &at)
    {
        return simt_device_access(b, off, n, how, at.file, at.line);
    }
};
struct simt_tg_space {
    typedef simt_array base;
    static uint8_t *access(const base *b, int64_t off, uint n, uint how, const simt_index &at)
    {
        return simt_tg_access(b, off, n, how, at.file, at.line);
    }
};

/* V at element i of an array of T; V is T or 16 bytes. */
template <typename S, typename T, typename V>
static inline V simt_get(const typename S::base *b, int64_t off, const simt_index &at,
                         uint how = SIMT_READ)
{
    V v;
    const int64_t o = off + at.i * (int64_t)sizeof(T);
    memcpy(&v, S::access(b, o, (uint)sizeof v, how, at), sizeof v);
    return v;
}
template <typename S, typename T, typename V>
static inline void simt_put(const typename S::base *b, int64_t off, const simt_index &at, V v,
                            uint how = SIMT_WRITE)
{
    const int64_t o = off + at.i * (int64_t)sizeof(T);
    memcpy(S::access(b, o, (uint)sizeof v, how, at), &v, sizeof v);
}

/* What p[i] is when it may be assigned. */
template <typename S, typename T> struct simt_element {
    const typename S::base *b;
    int64_t off;
    simt_index at;
    operator T() const
    {
        return simt_get<S, T, T>(b, off, at);
    }
    const simt_element &operator=(T v) const
    {
        simt_put<S, T, T>(b, off, at, v);
        return *this;
    }
    simt_element(const typename S::base *b_, int64_t off_, const simt_index &at_)
        : b(b_), off(off_), at(at_)
    {
    }
    simt_element(const simt_element &) = default;
    const simt_element &operator=(const simt_element &o) const
    {
        return *this = (T)o;
    }
#define SIMT_UPDATE(op)                                                                            \
    const simt_element &operator op##=(T v) const                                                  \
    {                                                                                              \
        return *this = (T)((T) * this op v);                                                       \
    }
    SIMT_UPDATE(+)
    SIMT_UPDATE(-)
    SIMT_UPDATE(*)
    SIMT_UPDATE(/)
    SIMT_UPDATE(|)
    SIMT_UPDATE(&)
    SIMT_UPDATE(^)
#undef SIMT_UPDATE
};

/* Moving a pointer checks nothing; its use does. */
template <typename S, typename T> struct simt_pointer {
    const typename S::base *b;
    int64_t off; /* bytes */
    simt_pointer() : b(nullptr), off(0)
    {
    }
    simt_pointer(const typename S::base *b_, int64_t off_) : b(b_), off(off_)
    {
    }
    /* to const */
    operator simt_pointer<S, const T>() const
    {
        return {b, off};
    }
    simt_element<S, T> operator[](simt_index i) const
    {
        return {b, off, i};
    }
    template <typename I> simt_pointer operator+(I n) const
    {
        return {b, off + (int64_t)n * (int64_t)sizeof(T)};
    }
    template <typename I> simt_pointer operator-(I n) const
    {
        return {b, off - (int64_t)n * (int64_t)sizeof(T)};
    }
    template <typename I> simt_pointer &operator+=(I n)
    {
        return *this = *this + n;
    }
    template <typename I> simt_pointer &operator-=(I n)
    {
        return *this = *this - n;
    }
};
template <typename S, typename T> struct simt_pointer<S, const T> {
    const typename S::base *b;
    int64_t off;
    simt_pointer() : b(nullptr), off(0)
    {
    }
    simt_pointer(const typename S::base *b_, int64_t off_) : b(b_), off(off_)
    {
    }
    T operator[](simt_index i) const
    {
        return simt_get<S, T, T>(b, off, i);
    }
    template <typename I> simt_pointer operator+(I n) const
    {
        return {b, off + (int64_t)n * (int64_t)sizeof(T)};
    }
    template <typename I> simt_pointer operator-(I n) const
    {
        return {b, off - (int64_t)n * (int64_t)sizeof(T)};
    }
    template <typename I> simt_pointer &operator+=(I n)
    {
        return *this = *this + n;
    }
    template <typename I> simt_pointer &operator-=(I n)
    {
        return *this = *this - n;
    }
};

template <typename T> using simt_dptr = simt_pointer<simt_device_space, T>;
template <typename T> using simt_tptr = simt_pointer<simt_tg_space, T>;

template <typename P> struct simt_bind;
template <typename T> struct simt_bind<simt_dptr<T>> {
    static simt_dptr<T> get(const simt_launch *l, uint i)
    {
        return {&l->bind[i], 0};
    }
};

template <typename T> static inline simt_tptr<T> simt_tg_array(uint n, const char *name)
{
    simt_lane *t = simt_self;
    return {&t->group->arrays[simt_tg_declare(t, (uint64_t)n * sizeof(T), name)], 0};
}

template <typename T> static inline simt_tptr<T> simt_native_array(uint bytes, const char *name)
{
    simt_lane *t = simt_self;
    return {&t->group->arrays[simt_native_declare(t, bytes, name)], 0};
}

#define SIMT_ACCESSORS(prefix, space, ptr)                                                         \
    template <typename V, typename T> static inline V prefix##load16(ptr<const T> p, simt_index i) \
    {                                                                                              \
        return simt_get<space, T, V>(p.b, p.off, i);                                               \
    }                                                                                              \
    template <typename V, typename T>                                                              \
    static inline void prefix##store16(ptr<T> p, simt_index i, V v)                                \
    {                                                                                              \
        simt_put<space, T, V>(p.b, p.off, i, v);                                                   \
    }                                                                                              \
    static inline uint prefix##atomic_add(ptr<uint> p, simt_index i, uint v)                       \
    {                                                                                              \
        const uint old = simt_get<space, uint, uint>(p.b, p.off, i, SIMT_READ | SIMT_SHARED);      \
        simt_put<space, uint, uint>(p.b, p.off, i, old + v, SIMT_WRITE | SIMT_SHARED);             \
        return old;                                                                                \
    }
SIMT_ACCESSORS(simt_, simt_device_space, simt_dptr)
SIMT_ACCESSORS(simt_tg_, simt_tg_space, simt_tptr)
#undef SIMT_ACCESSORS

static inline uint simt_atomic_add_paused(simt_dptr<uint> p, simt_index i, uint v)
{
    const uint old = simt_atomic_add(p, i, v);
    simt_pause(simt_self);
    return old;
}
template <typename T> static inline void simt_store_shared(simt_dptr<T> p, simt_index i, T v)
{
    simt_put<simt_device_space, T, T>(p.b, p.off, i, v, SIMT_WRITE | SIMT_SHARED);
}
template <typename T> static inline T simt_load_shared(simt_dptr<const T> p, simt_index i)
{
    return simt_get<simt_device_space, T, T>(p.b, p.off, i, SIMT_READ | SIMT_SHARED);
}
/* A read on behalf of the whole simdgroup. */
static inline uint4 simt_sg_load16h(simt_tptr<const ushort> p, simt_index i)
{
    return simt_get<simt_tg_space, ushort, uint4>(p.b, p.off, i, SIMT_READ | SIMT_BY_SG);
}
#define atomic_add_u32(p, i, v) simt_atomic_add_paused(p, i, v)
#define device_fence()          simt_pause(simt_self)

#else

/* ---- Plain memory ---- */

template <typename T> using simt_dptr = T *;
template <typename T> using simt_tptr = T *;

template <typename P> struct simt_bind;
template <typename T> struct simt_bind<T *> {
    static T *get(const simt_launch *l, uint i)
    {
        return reinterpret_cast<T *>(l->bind[i].ptr);
    }
};

template <typename T> static inline T *simt_tg_array(uint n, const char *name)
{
    simt_lane *t = simt_self;
    const uint at = t->tg_used, bytes = (n * (uint)sizeof(T) + 15u) & ~15u;
    if (bytes > SIMT_TG_BYTES - at) (void)simt_tg_declare(t, bytes, name);
    t->tg_used = at + bytes;
    return reinterpret_cast<T *>(t->group->tg + at);
}

template <typename T> static inline T *simt_native_array(uint bytes, const char *name)
{
    simt_lane *t = simt_self;
    if (bytes > SIMT_NATIVE_BYTES) (void)simt_native_declare(t, bytes, name);
    return reinterpret_cast<T *>(t->group->tg + SIMT_TG_BYTES);
}

#define SIMT_ACCESSORS(prefix)                                                                     \
    template <typename V, typename T> static inline V prefix##load16(const T *p, ulong i)          \
    {                                                                                              \
        V v;                                                                                       \
        memcpy(&v, p + i, 16);                                                                     \
        return v;                                                                                  \
    }                                                                                              \
    template <typename V, typename T> static inline void prefix##store16(T *p, ulong i, V v)       \
    {                                                                                              \
        memcpy(p + i, &v, 16);                                                                     \
    }                                                                                              \
    static inline uint prefix##atomic_add(uint *p, ulong i, uint v)                                \
    {                                                                                              \
        return __atomic_fetch_add(p + i, v, __ATOMIC_RELAXED);                                     \
    }
SIMT_ACCESSORS(simt_)
SIMT_ACCESSORS(simt_tg_)
#undef SIMT_ACCESSORS

template <typename T> static inline void simt_store_shared(T *p, ulong i, T v)
{
    __atomic_store(p + i, &v, __ATOMIC_RELAXED);
}
template <typename T> static inline T simt_load_shared(const T *p, ulong i)
{
    T v;
    __atomic_load(p + i, &v, __ATOMIC_RELAXED);
    return v;
}
static inline uint4 simt_sg_load16h(const ushort *p, ulong i)
{
    return simt_load16<uint4, ushort>(p, i);
}
#define atomic_add_u32(p, i, v) simt_atomic_add(p, i, v)
#define device_fence()          __atomic_thread_fence(__ATOMIC_SEQ_CST)

#endif

template <typename T> struct simt_bind<const T &> {
    static const T &get(const simt_launch *l, uint)
    {
        return *static_cast<const T *>(l->args);
    }
};

#define TG_ARRAY(T, name, n) const TPTR(T) name = simt_tg_array<T>((n), #name)

#define ld16(p, i)                 simt_load16<uint4, uint>(p, i)
#define ld16_stream(p, i)          simt_load16<uint4, uint>(p, i)
#define ld16f(p, i)                simt_load16<float4, float>(p, i)
#define ld16h(p, i)                simt_load16<uint4, ushort>(p, i)
#define st16(p, i, v)              simt_store16<uint4, uint>(p, i, v)
#define st16f(p, i, v)             simt_store16<float4, float>(p, i, v)
#define st16h(p, i, v)             simt_store16<uint4, ushort>(p, i, v)
#define tg_ld16(p, i)              simt_tg_load16<uint4, uint>(p, i)
#define tg_ld16f(p, i)             simt_tg_load16<float4, float>(p, i)
#define tg_ld16h(p, i)             simt_tg_load16<uint4, ushort>(p, i)
#define tg_st16(p, i, v)           simt_tg_store16<uint4, uint>(p, i, v)
#define tg_st16f(p, i, v)          simt_tg_store16<float4, float>(p, i, v)
#define tg_st16h(p, i, v)          simt_tg_store16<uint4, ushort>(p, i, v)
#define tg_atomic_add_u32(p, i, v) simt_tg_atomic_add(p, i, v)
#define st_shared_f32(p, i, v)     simt_store_shared<float>(p, i, v)
#define st_shared_u32(p, i, v)     simt_store_shared<uint>(p, i, v)
#define ld_shared_f32(p, i)        simt_load_shared<float>(p, i)
#define ld_shared_u32(p, i)        simt_load_shared<uint>(p, i)

/* ---- Rendezvous ---- */

#define TG_BARRIER() simt_barrier(simt_self, SIMT_SITE("TG_BARRIER"))
#define TG_BARRIER_DEVICE()                                                                        \
    (simt_self->group->at_device = true, simt_barrier(simt_self, SIMT_SITE("TG_BARRIER_DEVICE")))
#define SG_BARRIER() simt_sg_barrier(SIMT_SITE("SG_BARRIER"))

static inline void simt_sg_barrier(const char *site)
{
    simt_sg *s = simt_self->sg;
    if (simt_arrive(simt_self, site)) s->epoch++;
}

/* All lanes' values. */
static inline const uint *simt_gather(uint v, const char *site)
{
    simt_lane *t = simt_self;
    uint *all = t->sg->val[t->sg->round & 1];
    all[t->lane] = v;
    (void)simt_arrive(t, site);
    return all;
}

/* fn(all lanes' values), computed once. */
template <typename F> static inline uint simt_reduce(uint v, const char *site, F fn)
{
    simt_lane *t = simt_self;
    simt_sg *s = t->sg;
    const uint r = s->round & 1;
    s->val[r][t->lane] = v;
    if (simt_arrive(t, site)) s->res[r] = fn(s->val[r]);
    return s->res[r];
}

/* Every lane's arg, handed once to fn(void *const args[32]); for matrix tiles. */
template <typename F> static inline void simt_collective(void *arg, const char *site, F fn)
{
    simt_lane *t = simt_self;
    simt_sg *s = t->sg;
    const uint r = s->round & 1;
    s->arg[r][t->lane] = arg;
    if (simt_arrive(t, site)) fn(s->arg[r]);
}

/* The xor tree: sums are commutative, so half the lanes stand for all. Overwrites v. */
template <typename T, typename F> static inline T simt_tree(T *v, F fn)
{
    for (uint n = 16; n > 0; n /= 2)
        for (uint i = 0; i < n; i++)
            v[i] = fn(v[i], v[i + n]);
    return v[0];
}

static inline float simt_xor_f32(float v, uint mask, const char *site)
{
    return KFLOAT(simt_gather(KBITS(v), site)[(simt_self->lane ^ mask) & 31u]);
}
static inline uint simt_xor_u32(uint v, uint mask, const char *site)
{
    return simt_gather(v, site)[(simt_self->lane ^ mask) & 31u];
}
static inline uint simt_shift_u32(uint v, int d, const char *site)
{
    const int from = (int)simt_self->lane + d;
    return simt_gather(v, site)[from < 0 || from > 31 ? (int)simt_self->lane : from];
}
static inline float simt_shift_f32(float v, int d, const char *site)
{
    return KFLOAT(simt_shift_u32(KBITS(v), d, site));
}
static inline uint simt_lane_u32(uint v, uint i, const char *site)
{
    const uint *all = simt_gather(v, site);
    if (i > 31u) simt_violation(simt_self, "%s: no lane %u", site, i);
    return all[i];
}
static inline float simt_lane_f32(float v, uint i, const char *site)
{
    return KFLOAT(simt_lane_u32(KBITS(v), i, site));
}
template <typename F> static inline float simt_reduce_f32(float v, const char *site, F fn)
{
    return KFLOAT(simt_reduce(KBITS(v), site, [&](const uint *all) {
        float x[SIMT_LANES];
        memcpy(x, all, sizeof x);
        return KBITS(simt_tree(x, fn));
    }));
}
template <typename F> static inline uint simt_reduce_u32(uint v, const char *site, F fn)
{
    return simt_reduce(v, site, [&](const uint *all) {
        uint x[SIMT_LANES];
        memcpy(x, all, sizeof x);
        return simt_tree(x, fn);
    });
}
static inline uint simt_prefix_u32(uint v, const char *site)
{
    const uint *all = simt_gather(v, site);
    uint sum = 0;
    for (uint i = 0; i < simt_self->lane; i++)
        sum += all[i];
    return sum;
}
static inline uint simt_ballot(bool c, const char *site)
{
    return simt_reduce(c ? 1u : 0u, site, [](const uint *all) {
        uint mask = 0;
        for (uint i = 0; i < SIMT_LANES; i++)
            mask |= all[i] << i;
        return mask;
    });
}

#define simd_xor_f32(v, mask) simt_xor_f32(v, mask, SIMT_SITE("simd_xor_f32"))
#define simd_xor_u32(v, mask) simt_xor_u32(v, mask, SIMT_SITE("simd_xor_u32"))
#define simd_down_f32(v, d)   simt_shift_f32(v, (int)(d), SIMT_SITE("simd_down_f32"))
#define simd_down_u32(v, d)   simt_shift_u32(v, (int)(d), SIMT_SITE("simd_down_u32"))
#define simd_up_f32(v, d)     simt_shift_f32(v, -(int)(d), SIMT_SITE("simd_up_f32"))
#define simd_up_u32(v, d)     simt_shift_u32(v, -(int)(d), SIMT_SITE("simd_up_u32"))
#define simd_lane_f32(v, i)   simt_lane_f32(v, i, SIMT_SITE("simd_lane_f32"))
#define simd_lane_u32(v, i)   simt_lane_u32(v, i, SIMT_SITE("simd_lane_u32"))
#define simd_sum_f32(v)                                                                            \
    simt_reduce_f32(v, SIMT_SITE("simd_sum_f32"), [](float a, float b) { return a + b; })
#define simd_max_f32(v)                                                                            \
    simt_reduce_f32(v, SIMT_SITE("simd_max_f32"), [](float a, float b) { return kmax(a, b); })
#define simd_sum_u32(v)                                                                            \
    simt_reduce_u32(v, SIMT_SITE("simd_sum_u32"), [](uint a, uint b) { return a + b; })
#define simd_min_u32(v)                                                                            \
    simt_reduce_u32(v, SIMT_SITE("simd_min_u32"), [](uint a, uint b) { return kmin(a, b); })
#define simd_max_u32(v)                                                                            \
    simt_reduce_u32(v, SIMT_SITE("simd_max_u32"), [](uint a, uint b) { return kmax(a, b); })
#define simd_prefix_u32(v) simt_prefix_u32(v, SIMT_SITE("simd_prefix_u32"))
#define simd_ballot_u32(c) simt_ballot(c, SIMT_SITE("simd_ballot_u32"))

#define UNROLL /* little to gain here, and compiling takes a tenth of the time */
#if defined(__clang__)
#define SIMT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SIMT_UNROLL _Pragma("GCC unroll 16")
#endif
#define PDL_WAIT()   ((void)0)
#define PDL_LAUNCH() ((void)0)

/* ---- The table ---- */

template <uint... I> struct simt_numbers {
};
template <uint N, uint... I> struct simt_count : simt_count<N - 1, N - 1, I...> {
};
template <uint... I> struct simt_count<0, I...> {
    typedef simt_numbers<I...> type; /* 0 .. N - 1 */
};
template <typename T> struct simt_plain {
    typedef T type;
};
template <typename T> struct simt_plain<const T &> {
    typedef T type;
};

template <typename... A, uint... I>
static inline void simt_call(void (*fn)(A...), const simt_launch *l, simt_numbers<I...>)
{
    fn(simt_bind<A>::get(l, I)...);
}
template <typename... A> static constexpr uint simt_last_bytes()
{
    const uint all[] = {sizeof(typename simt_plain<A>::type)...};
    return all[sizeof...(A) - 1];
}
template <auto FN> struct simt_entry;
template <typename... A, void (*FN)(A...)> struct simt_entry<FN> {
    enum : uint { N_BINDINGS = sizeof...(A) - 1, ARGS_BYTES = simt_last_bytes<A...>() };
    static void run(const simt_launch *l)
    {
        simt_call(FN, l, typename simt_count<sizeof...(A)>::type());
    }
};

/* A row of the table; for #define K(...) SIMT_ROW(...) before kernels.inc. */
#define SIMT_ROW(name, threads, n_bindings)                                                        \
    {#name,                                                                                        \
     threads,                                                                                      \
     n_bindings,                                                                                   \
     simt_entry<simt_kernel_##name>::ARGS_BYTES,                                                   \
     simt_entry<simt_kernel_##name>::run,                                                          \
     simt_params_##name},
#define SIMT_ASSERT(name, threads, n_bindings)                                                     \
    static_assert(simt_threads_##name == (threads), "threads of " #name);                          \
    static_assert(simt_entry<simt_kernel_##name>::N_BINDINGS == (n_bindings), "bindings "          \
                                                                              "of " #name);

#endif
