/* shim_run.h - Metal Shading Language as C++17 on the emulator: the text that ships is run.
 *
 * Does:       address-space words are nothing; built-in functions are the emulator's rendezvous
 *             (kernels/simt.h); msl_entry calls a kernel with a launch's buffers by number, its
 *             arguments, and the position of the thread.
 * Invariants: vectors are plain structs, so that arithmetic on them does not compile. Memory is not
 *             checked access by access: that is simt_kernels_check's task, on the same kernels.
 */
#ifndef CALLA_TESTS_MSL_SHIM_RUN_H
#define CALLA_TESTS_MSL_SHIM_RUN_H

#include <stdint.h>
#include <string.h>

#include "kernels/simt.h"

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;

struct uint3 {
    uint x, y, z;
};
struct alignas(16) uint4 {
    uint x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

template <typename T, typename F> static inline T msl_as_type(F v)
{
    static_assert(sizeof(T) == sizeof(F), "as_type between sizes");
    T to;
    memcpy(&to, &v, sizeof to);
    return to;
}
#define as_type msl_as_type

/* A place in the text: the same pointer for all lanes there. */
#define MSL_TEXT2(x) #x
#define MSL_TEXT1(x) MSL_TEXT2(x)
#define MSL_SITE(op) op " " __FILE__ ":" MSL_TEXT1(__LINE__) "#" MSL_TEXT1(__COUNTER__)

template <typename T> static inline T *msl_tg_array(uint n, const char *name)
{
    simt_lane *t = simt_self;
    const uint at = t->tg_used, bytes = (n * (uint)sizeof(T) + 15u) & ~15u;
    if (bytes > SIMT_TG_BYTES - at) (void)simt_tg_declare(t, bytes, name);
    t->tg_used = at + bytes;
    return reinterpret_cast<T *>(t->group->tg + at);
}
#define TG_ARRAY(T, name, n) T *const name = msl_tg_array<T>((n), #name)
#define UNROLL               /* as in dialect_simt.h */

namespace metal
{

static inline float fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
namespace precise
{
static inline float sqrt(float x)
{
    return __builtin_sqrtf(x);
}
} /* namespace precise */

/* ---- Barriers ---- */

enum class mem_flags : unsigned { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b)
{
    return mem_flags((unsigned)a | (unsigned)b);
}
static inline void msl_tg_barrier(mem_flags, const char *site)
{
    simt_barrier(simt_self, site);
}
static inline void msl_sg_barrier(mem_flags, const char *site)
{
    simt_sg *s = simt_self->sg;
    if (simt_arrive(simt_self, site)) s->epoch++;
}
#define threadgroup_barrier(flags) msl_tg_barrier(flags, MSL_SITE("threadgroup_barrier"))
#define simdgroup_barrier(flags)   msl_sg_barrier(flags, MSL_SITE("simdgroup_barrier"))

/* ---- Simdgroup functions ---- */

static inline const uint *msl_gather(uint v, const char *site)
{
    simt_lane *t = simt_self;
    uint *all = t->sg->val[t->sg->round & 1];
    all[t->lane] = v;
    (void)simt_arrive(t, site);
    return all;
}
/* Every lane's arg, handed once to fn(void *const args[32]); for matrix tiles. */
template <typename F> static inline void msl_collective(void *arg, const char *site, F fn)
{
    simt_lane *t = simt_self;
    simt_sg *s = t->sg;
    const uint r = s->round & 1;
    s->arg[r][t->lane] = arg;
    if (simt_arrive(t, site)) fn(s->arg[r]);
}
template <typename F> static inline uint msl_reduce(uint v, const char *site, F fn)
{
    simt_lane *t = simt_self;
    simt_sg *s = t->sg;
    const uint r = s->round & 1;
    s->val[r][t->lane] = v;
    if (simt_arrive(t, site)) {
        uint x = s->val[r][0];
        for (uint i = 1; i < SIMT_LANES; i++)
            x = fn(x, s->val[r][i]);
        s->res[r] = x;
    }
    return s->res[r];
}

template <typename T> static inline T simd_shuffle(T v, ushort lane)
{
    const uint *all = msl_gather(msl_as_type<uint>(v), MSL_SITE("simd_shuffle"));
    if (lane > 31u) simt_violation(simt_self, "simd_shuffle: no lane %u", lane);
    return msl_as_type<T>(all[lane]);
}
template <typename T> static inline T simd_shuffle_xor(T v, ushort mask)
{
    const uint *all = msl_gather(msl_as_type<uint>(v), MSL_SITE("simd_shuffle_xor"));
    const uint from = simt_self->lane ^ mask;
    if (from > 31u) simt_violation(simt_self, "simd_shuffle_xor: no lane %u", from);
    return msl_as_type<T>(all[from]);
}
static inline uint simd_sum(uint v)
{
    return msl_reduce(v, MSL_SITE("simd_sum"), [](uint a, uint b) { return a + b; });
}
static inline uint simd_min(uint v)
{
    return msl_reduce(v, MSL_SITE("simd_min"), [](uint a, uint b) { return a < b ? a : b; });
}
static inline uint simd_max(uint v)
{
    return msl_reduce(v, MSL_SITE("simd_max"), [](uint a, uint b) { return a > b ? a : b; });
}
static inline uint simd_prefix_exclusive_sum(uint v)
{
    const uint *all = msl_gather(v, MSL_SITE("simd_prefix_exclusive_sum"));
    uint sum = 0;
    for (uint i = 0; i < simt_self->lane; i++)
        sum += all[i];
    return sum;
}
struct simd_vote {
    typedef ulong vote_t;
    vote_t msl_bits;
    explicit operator vote_t() const
    {
        return msl_bits;
    }
};
static inline simd_vote simd_ballot(bool c)
{
    return {msl_reduce(c ? 1u << simt_self->lane : 0u, MSL_SITE("simd_ballot"),
                       [](uint a, uint b) { return a | b; })};
}

/* ---- Atomics ---- */

enum memory_order { memory_order_relaxed, memory_order_seq_cst };
enum thread_scope { thread_scope_threadgroup, thread_scope_device };
struct atomic_uint {
    uint msl_value;
};
static inline uint atomic_fetch_add_explicit(atomic_uint *p, uint v, memory_order)
{
    return __atomic_fetch_add(&p->msl_value, v, __ATOMIC_RELAXED);
}
static inline uint atomic_load_explicit(const atomic_uint *p, memory_order)
{
    return __atomic_load_n(&p->msl_value, __ATOMIC_RELAXED);
}
static inline void atomic_store_explicit(atomic_uint *p, uint v, memory_order)
{
    __atomic_store_n(&p->msl_value, v, __ATOMIC_RELAXED);
}
static inline void atomic_thread_fence(mem_flags, memory_order, thread_scope)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

} /* namespace metal */

/* ---- Calling a kernel ---- */

enum : uint { MSL_POSITIONS = 6 }; /* parameters that KERNEL adds */

template <typename T> struct msl_param;
template <typename T> struct msl_param<T *> {
    static T *get(const simt_launch *l, uint i, uint)
    {
        return reinterpret_cast<T *>(l->bind[i].ptr);
    }
};
template <typename T> struct msl_param<const T &> {
    static const T &get(const simt_launch *l, uint, uint)
    {
        return *static_cast<const T *>(l->args);
    }
};
template <> struct msl_param<uint> {
    static uint get(const simt_launch *, uint i, uint n)
    {
        const simt_lane *t = simt_self;
        const uint at[] = {t->tid, t->lane, t->tid / SIMT_LANES, t->group->n_sg};
        return at[i + MSL_POSITIONS - n];
    }
};
template <> struct msl_param<uint3> {
    static uint3 get(const simt_launch *l, uint i, uint n)
    {
        const simt_group *g = simt_self->group;
        return i + 1 == n ? uint3{l->grid_x, l->grid_y, 1} : uint3{g->gx, g->gy, 0};
    }
};

template <uint... I> struct msl_numbers {
};
template <uint N, uint... I> struct msl_count : msl_count<N - 1, N - 1, I...> {
};
template <uint... I> struct msl_count<0, I...> {
    typedef msl_numbers<I...> type;
};
template <typename T> struct msl_plain {
    typedef T type;
};
template <typename T> struct msl_plain<const T &> {
    typedef T type;
};
template <typename... A> static constexpr uint msl_args_bytes()
{
    const uint all[] = {sizeof(typename msl_plain<A>::type)...};
    return all[sizeof...(A) - MSL_POSITIONS - 1];
}

template <auto FN> struct msl_entry;
template <typename... A, void (*FN)(A...)> struct msl_entry<FN> {
    enum : uint {
        N_BINDINGS = sizeof...(A) - MSL_POSITIONS - 1,
        ARGS_BYTES = msl_args_bytes<A...>()
    };
    template <uint... I> static void call(const simt_launch *l, msl_numbers<I...>)
    {
        FN(msl_param<A>::get(l, I, sizeof...(A))...);
    }
    static void run(const simt_launch *l)
    {
        call(l, typename msl_count<sizeof...(A)>::type());
    }
};

#include "shim_matrix_run.h"

/* The text follows: these words say nothing here. */
#define device
#define thread
#define threadgroup
#define constant const

#endif
