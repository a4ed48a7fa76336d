# mistakes.sh - for tests/scripts/test_msl.sh: what must be refused, and what must not.

for tool in compile lint; do
    right $tool 310 <<'X'
struct probe_args { uint n; float eps; };
KFN float probe_add(THREF(float) a, THARRAY(float, 4, b), DPTR(const float) p, TPTR(float) t)
{
    UNROLL for (uint i = 0; i < 4; i++) a = KFMA(b[i], p[i], a);
    t[0] = a * 0.5f;
    return a > 1e30f ? t[0] : a;
}
KERNEL(probe, 64, KIN(0, float, x), KOUT(1, float, y), KARG(2, probe_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 64);
    float v = 0.0f, w[4];
    UNROLL for (uint i = 0; i < 4; i++) w[i] = a.eps;
    v = probe_add(v, w, x + gx * a.n, part + 4 * lane);
    TG_BARRIER();
    if (tid == 0) y[gx] = part[n_sg] + v + (float)(ngx * ngy + gy + sg);
}
KERNEL_END
X
done

# ---- The compiler's: address spaces, functions, types ----

plant compile 310 'cannot initialize' <<'X'
KFN float probe(DPTR(const float) p) { TPTR(const float) q = p; return q[0]; }
X
plant compile 310 'no matching function' <<'X'
KFN float probe(DPTR(const uint) p) { return (float)tg_ld16(p, 0).x; }
X
plant compile 310 'no matching function' <<'X'
KFN float probe_sum(const float *p) { return p[0]; }
KFN float probe(DPTR(const float) p) { return probe_sum(p); }
X
plant compile 310 'no matching function' <<'X'
KFN void probe_add(THREF(float) a) { a = a + 1.0f; }
KFN void probe(DPTR(float) p) { probe_add(p[0]); }
X
plant compile 310 'no matching function' <<'X'
KFN void probe_sum(THARRAY(float, 4, a)) { a[0] = a[1]; }
KFN void probe(TPTR(float) p) { probe_sum(*(threadgroup float(*)[4])p); }
X
plant compile 310 'read-only\|const-qualified' <<'X'
struct probe_args { uint n; };
KFN void probe(ARGS(probe_args) a) { a.n = 1; }
X
plant compile 310 'no viable\|no matching' <<'X'
struct probe_args { uint n; };
KFN uint probe_n(probe_args a) { return a.n; }
KFN uint probe(DPTR(const probe_args) a) { return probe_n(a[0]); }
X
plant compile 310 'address space' <<'X'
KFN void probe() { device float x; (void)x; }
X
plant compile 310 'object parameter' <<'X'
struct probe_args { uint n; uint get() const { return n; } };
KFN uint probe(DPTR(const probe_args) a) { return a[0].get(); }
X
plant compile 310 'double' <<'X'
KFN float probe(float x) { return x * 0.5; }
X
plant compile 310 'simd_shuffle_up' <<'X'
KFN float probe(float x) { return metal::simd_shuffle_up(x, 1); }
X
plant compile 310 'atomic_thread_fence' <<'X'
KFN void probe()
{
    metal::atomic_thread_fence(metal::mem_flags::mem_device, metal::memory_order_seq_cst,
                               metal::thread_scope_device);
}
X
right compile 320 <<'X'
KFN void probe()
{
    metal::atomic_thread_fence(metal::mem_flags::mem_device, metal::memory_order_seq_cst,
                               metal::thread_scope_device);
}
X
plant compile 320 'memory_order_acquire' <<'X'
KFN uint probe(DPTR(uint) p)
{
    return metal::atomic_load_explicit((device atomic_uint *)p, metal::memory_order_acquire);
}
X
plant compile 310 'C++17' <<'X'
KFN uint probe(uint x) { if (const uint y = x + 1; y > 2) return y; return x; }
X
plant compile 310 'C++17' <<'X'
template <uint N> KFN uint probe(uint x) { if constexpr (N > 1) return x; return N; }
X
plant compile 310 'half' <<'X'
KFN uint probe(uint x) { const uint half = x / 2; return half; }
X
plant compile 310 'too few arguments\|no matching' <<'X'
KFN uint4 probe(DPTR(const uint) p) { return ld16(p); }
X
plant compile 310 'vector element' <<'X'
KFN void probe_add(THREF(float) a) { a = a + 1.0f; }
KFN void probe(float4 v) { probe_add(v.x); }
X
plant compile 310 'atomic_uint' <<'X'
KFN uint probe(DPTR(uint) p) { return metal::atomic_load_explicit(p, metal::memory_order_relaxed); }
X
plant compile 310 'goto\|jump\|label' <<'X'
KFN uint probe(uint x) { goto nowhere; return x; }
X

# ---- The lint's: words, lists, places ----

plant lint 310 'no address space' <<'X'
KFN void probe(float &x) { x = 1.0f; }
X
plant lint 310 'no address space' <<'X'
template <uint N> struct probe_row { float v[N]; };
KFN void probe(probe_row<4> &x) { x.v[0] = 1.0f; }
X
plant lint 310 'no address space' <<'X'
KFN void probe(float (&x)[4]) { x[0] = 1.0f; }
X
plant lint 310 'no address space' <<'X'
KFN float probe() { float x[4]; x[0] = 1.0f; float *p = x; return p[0]; }
X
plant lint 310 'no address space' <<'X'
KFN float probe(THREF(u32x2) a) { return *(float *)&a; }
X
plant lint 310 'is a double' <<'X'
KFN float probe(float x) { return x * 0.5; }
X
plant lint 310 'is a double' <<'X'
KFN float probe(float x) { return x * 1e3; }
X
plant lint 310 'hexadecimal float' <<'X'
KFN float probe(float x) { return x * 0x1p3f; }
X
plant lint 310 '`half` is a type' <<'X'
KFN uint probe(uint x) { const uint half = x / 2; return half; }
X
plant lint 310 '`sampler` is a name' <<'X'
KFN uint probe(uint sampler) { return sampler; }
X
plant lint 310 '`max` is a name' <<'X'
KFN uint probe(uint x) { return max(x, 1u); }
X
plant lint 310 'metal::exp is not on the list' <<'X'
KFN float probe(float x) { return metal::exp(x); }
X
plant lint 310 'metal::fast::exp2 is not on the list' <<'X'
KFN float probe(float x) { return metal::fast::exp2(x); }
X
plant lint 310 'memory_order_acquire is not on the list' <<'X'
KFN uint probe(DPTR(uint) p)
{
    return metal::atomic_load_explicit((device atomic_uint *)p, metal::memory_order_acquire);
}
X
plant lint 310 'recursion' <<'X'
KFN uint probe(uint n) { return n == 0 ? 1 : n * probe(n - 1); }
X
plant lint 310 'recursion' <<'X'
KFN uint probe_even(uint n);
KFN uint probe_odd(uint n) { return n == 0 ? 0 : probe_even(n - 1); }
KFN uint probe_even(uint n) { return n == 0 ? 1 : probe_odd(n - 1); }
X
plant lint 310 'no `goto`' <<'X'
KFN uint probe(uint n) { if (n > 1) goto end; end: return n; }
X
plant lint 310 '`static` in probe' <<'X'
KFN uint probe(uint n) { static uint last; last = n; return last; }
X
plant lint 310 'pointer to a function' <<'X'
KFN uint probe(uint (*f)(uint)) { return f(1); }
X
plant lint 310 'lambda' <<'X'
KFN uint probe(uint n) { auto f = [=](uint x) { return x + n; }; return f(1); }
X
plant lint 310 'variable arguments' <<'X'
KFN uint probe(uint n, ...) { return n; }
X
plant lint 310 'no `virtual`' <<'X'
struct probe { virtual void f(); };
X
plant lint 310 'not at the top of a kernel' <<'X'
KFN uint probe() { TG_ARRAY(uint, part, 4); part[0] = 1; return part[0]; }
X
plant lint 310 'not at the top of a kernel' <<'X'
KERNEL(probe, 32, KOUT(0, float, y), KARG(1, util_sum_args, a))
{
    KCTX;
    if (a.scale > 0.0f) { TG_ARRAY(float, part, 4); part[0] = 1.0f; y[0] = part[0]; }
}
X
plant lint 310 'cannot be initialised' <<'X'
KERNEL(probe, 32, KOUT(0, float, y), KARG(1, util_sum_args, a))
{
    threadgroup float part = 1.0f;
    y[0] = part;
}
X
plant lint 310 'outside a kernel' <<'X'
threadgroup float probe[4];
X
plant lint 310 'bytes of threadgroup memory' <<'X'
KERNEL(probe, 32, KOUT(0, float, y), KARG(1, util_sum_args, a))
{
    KCTX;
    TG_ARRAY(float, part, 8193);
    y[0] = part[0];
}
X
plant lint 310 'return in a kernel' <<'X'
KERNEL(probe, 32, KOUT(0, float, y), KARG(1, util_sum_args, a))
{
    KCTX;
    if (gx > 1) return;
    y[0] = a.scale;
}
X
plant lint 310 'threads' <<'X'
KERNEL(probe, 33, KOUT(0, float, y), KARG(1, util_sum_args, a)) { y[0] = a.scale; }
X
plant lint 310 'buffers are not' <<'X'
KERNEL(probe, 32, KOUT(1, float, y), KARG(0, util_sum_args, a)) { y[0] = a.scale; }
X
plant lint 310 'the attribute early_fragment_tests' <<'X'
[[early_fragment_tests]] KFN uint probe(uint n) { return n; }
X
plant lint 310 'a pragma that is not known' <<'X'
KFN uint probe(uint n)
{
#pragma unroll
    for (uint i = 0; i < 4; i++) n += i;
    return n;
}
X
plant lint 310 'a pragma that is not known' <<'X'
#pragma METAL fp contract(of)
X
plant lint 310 'the directive #warning' <<'X'
#warning "x"
X
plant lint 310 'is not Apple' <<'X'
#if 0
#include "kernels/args.h"
#endif
X
plant lint 310 'the byte 0x' <<'X'
/* 2 µs */
X
plant lint 310 'differ in address spaces alone' <<'X'
KFN float probe(device const float *p) { return p[0]; }
KFN float probe(threadgroup const float *p) { return p[0]; }
X
plant lint 310 "a kernel's name" <<'X'
KFN float util_sum(float p) { return p; }
X
plant lint 310 'calls the kernel' <<'X'
KFN void probe(DPTR(uint) y, ARGS(util_fill_args) a) { util_fill(y, a); }
X
plant lint 310 'explicit instantiation' <<'X'
template <uint N> KFN uint probe(uint n) { return n + N; }
template uint probe<4>(uint n);
X

# ---- In the texts themselves ----

mutate lint gemv 310 - 'no address space' 's/^#define THREF(T) .*/#define THREF(T) T \&/'
mutate lint gdn 310 - 'no address space' 's/^#define THARRAY(T, n, name) .*/#define THARRAY(T, n, name) T(\&name)[n]/'
mutate lint gemv 310 - 'no address space' 's/^#define DPTR(T) .*/#define DPTR(T) T */'
mutate lint attn 310 1 'no address space' 's/threadgroup T \*const name = (threadgroup T \*)/threadgroup T *const name = (T *)/'
mutate lint gdn 320 - 'simd_group' 's/\[\[thread_index_in_simdgroup\]\]/[[thread_index_in_simd_group]]/'
mutate lint gemv 310 - 'buffers are not' 's/KIN(1, uint, sb)/KIN(2, uint, sb)/'
mutate lint basic 320 - 'a pragma' 's/contract(off)/contract(no)/'
mutate lint basic 310 - 'is a double' 's/= 12582912.0f/= 12582912.0/'
mutate lint gemm 310 0 'bytes of threadgroup memory' 's/^#define GEMM_PITCH 72u/#define GEMM_PITCH 144u/'
mutate compile gemv 310 - 'no matching\|cannot initialize' 's/^#define TPTR(T) .*/#define TPTR(T) device T */'
mutate compile attn 310 0 'no matching\|cannot initialize' 's/^#define KOUT(i, T, name) .*/#define KOUT(i, T, name) threadgroup T *name/'
mutate compile gdn 310 - 'no matching' 's/tg_ld16f(o_s, i)/ld16f(o_s, i)/'
mutate compile basic 310 - 'no matching' 's/st16h(out, i, o)/tg_st16h(out, i, o)/'
mutate compile gemm 310 0 'undeclared\|no member' 's/metal::simd_shuffle(/metal::simd_shuffle_to(/'
mutate compile gemv 310 - 'read-only\|const' 's/a\.tail != 0u/(a.tail = 0u) != 0u/'
