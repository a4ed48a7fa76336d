/* dialect_simt.h - the kernel language as C++17 for the SIMT emulator (README.md, simt.h).
 *
 * A kernel is a plain function; simt_entry unpacks a launch's bindings by position. Without
 * SIMT_CHECK pointers are plain.
 */
#ifndef CALLA_KERNELS_DIALECT_SIMT_H
#define CALLA_KERNELS_DIALECT_SIMT_H

#include <stdint.h>
#include <string.h>
#include <utility>

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

#define SIMT_TEXT2(x) #x
#define SIMT_TEXT(x)  SIMT_TEXT2(x)
#define SIMT_SITE(op) op " " __FILE__ ":" SIMT_TEXT(__LINE__) "#" SIMT_TEXT(__COUNTER__)

/* ---- Kernels ---- */

#define KERNEL(name, threads, ...)                                                                 \
    enum { simt_threads_##name = (threads) };                                                      \
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

/* ---- Pointers ---- */

template <typename T> using simt_ref = T &;
#define THREF(T) simt_ref<T>

template <typename T> using simt_ptr = T *;
#define DPTR(T) simt_ptr<T>
#define TPTR(T) simt_ptr<T>

template <typename P> struct simt_bind;
template <typename T> struct simt_bind<T *> {
    static T *get(const simt_launch *l, uint i)
    {
        return reinterpret_cast<T *>(l->bind[i].ptr);
    }
};
template <typename T> struct simt_bind<const T &> {
    static const T &get(const simt_launch *l, uint)
    {
        return *static_cast<const T *>(l->args);
    }
};

template <typename T> static inline T *simt_tg_array(uint n, const char *name)
{
    simt_lane *t = simt_self;
    const uint at = t->tg_used, bytes = (n * (uint)sizeof(T) + 15u) & ~15u;
    if (bytes > SIMT_TG_BYTES - at)
        simt_violation(t, "threadgroup memory beyond %u bytes: %s needs %u, %u are used",
                       SIMT_TG_BYTES, name, bytes, at);
    t->tg_used = at + bytes;
    return reinterpret_cast<T *>(t->group->tg + at);
}
#define TG_ARRAY(T, name, n) const TPTR(T) name = simt_tg_array<T>((n), #name)

template <typename V, typename T> static inline V simt_load16(const T *p, ulong i)
{
    V v;
    memcpy(&v, p + i, 16);
    return v;
}
template <typename V, typename T> static inline void simt_store16(T *p, ulong i, V v)
{
    memcpy(p + i, &v, 16);
}
#define ld16(p, i)        simt_load16<uint4, uint>(p, i)
#define ld16_stream(p, i) simt_load16<uint4, uint>(p, i)
#define ld16f(p, i)       simt_load16<float4, float>(p, i)
#define ld16h(p, i)       simt_load16<uint4, ushort>(p, i)
#define st16(p, i, v)     simt_store16<uint4, uint>(p, i, v)
#define st16f(p, i, v)    simt_store16<float4, float>(p, i, v)
#define st16h(p, i, v)    simt_store16<uint4, ushort>(p, i, v)
#define tg_ld16(p, i)     simt_load16<uint4, uint>(p, i)
#define tg_ld16f(p, i)    simt_load16<float4, float>(p, i)
#define tg_ld16h(p, i)    simt_load16<uint4, ushort>(p, i)
#define tg_st16(p, i, v)  simt_store16<uint4, uint>(p, i, v)
#define tg_st16f(p, i, v) simt_store16<float4, float>(p, i, v)
#define tg_st16h(p, i, v) simt_store16<uint4, ushort>(p, i, v)

/* ---- Between groups ---- */

static inline uint simt_atomic_add(uint *p, ulong i, uint v)
{
    return __atomic_fetch_add(p + i, v, __ATOMIC_RELAXED);
}
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
#define atomic_add_u32(p, i, v)    simt_atomic_add(p, i, v)
#define tg_atomic_add_u32(p, i, v) simt_atomic_add(p, i, v)
#define st_shared_f32(p, i, v)     simt_store_shared<float>(p, i, v)
#define st_shared_u32(p, i, v)     simt_store_shared<uint>(p, i, v)
#define ld_shared_f32(p, i)        simt_load_shared<float>(p, i)
#define ld_shared_u32(p, i)        simt_load_shared<uint>(p, i)
#define device_fence()             __atomic_thread_fence(__ATOMIC_SEQ_CST)

/* ---- Rendezvous ---- */

#define TG_BARRIER() simt_barrier(simt_self, SIMT_SITE("TG_BARRIER"))
#define SG_BARRIER() ((void)simt_arrive(simt_self, SIMT_SITE("SG_BARRIER")))

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
#define simd_ballot(c)     simt_ballot(c, SIMT_SITE("simd_ballot"))

#define UNROLL /* nothing to gain here, and compiling takes half the time */
#define PDL_WAIT()   ((void)0)
#define PDL_LAUNCH() ((void)0)

/* ---- The table ---- */

template <typename... A, size_t... I>
static inline void simt_call(void (*fn)(A...), const simt_launch *l, std::index_sequence<I...>)
{
    fn(simt_bind<A>::get(l, (uint)I)...);
}
template <auto FN> struct simt_entry;
template <typename... A, void (*FN)(A...)> struct simt_entry<FN> {
    enum { N_BINDINGS = sizeof...(A) - 1 };
    static void run(const simt_launch *l)
    {
        simt_call(FN, l, std::index_sequence_for<A...>());
    }
};

/* A row of the table; for #define K(...) SIMT_ROW(...) before kernels.inc. */
#define SIMT_ROW(name, threads, n_bindings)                                                        \
    {#name, threads, n_bindings, simt_entry<simt_kernel_##name>::run},
#define SIMT_ASSERT(name, threads, n_bindings)                                                     \
    static_assert(simt_threads_##name == (threads), "threads of " #name);                          \
    static_assert(simt_entry<simt_kernel_##name>::N_BINDINGS == (n_bindings), "bindings "          \
                                                                              "of " #name);

#endif
