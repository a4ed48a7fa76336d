/* kmath.h - the elementary functions of every GPU kernel, and of the kernels' C references.
 *
 * Does:       exp, log1p, sigmoid, silu, softplus, sine and cosine, bf16 conversion, built from
 *             fma, multiplication, addition, division and square root alone, each correctly rounded
 *             on every target. So the same bits come from Metal, CUDA, the emulator and C.
 * Invariants: compiled as C11, C++, CUDA C++ and Metal Shading Language. Contraction off: a product
 *             and a sum are fused only where KFMA says so. Denormals are flushed.
 *             Coefficients: our own weighted least-squares fits; errors below are measured over
 *             the whole range by tests/unit/test_kmath.c.
 */
#ifndef CALLA_KERNELS_KMATH_H
#define CALLA_KERNELS_KMATH_H

#if defined(__METAL_VERSION__)
#define KFN           static inline
#define KFMA(a, b, c) metal::fma(a, b, c)
#define KSQRT(x)      metal::precise::sqrt(x)
#define KBITS(x)      as_type<uint>(x)
#define KFLOAT(u)     as_type<float>(u)
#elif defined(__CUDACC__)
#define KFN           static __device__ __forceinline__
#define KFMA(a, b, c) __fmaf_rn(a, b, c)
#define KSQRT(x)      __fsqrt_rn(x)
#define KBITS(x)      __float_as_uint(x)
#define KFLOAT(u)     __uint_as_float(u)
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#define KFN           static inline
#define KFMA(a, b, c) fmaf(a, b, c)
#define KSQRT(x)      sqrtf(x)
#define KBITS(x)      kx_bits(x)
#define KFLOAT(u)     kx_float(u)
KFN unsigned kx_bits(float x)
{
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}
KFN float kx_float(unsigned u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
#endif

#define kmin(a, b) ((a) < (b) ? (a) : (b))
#define kmax(a, b) ((a) > (b) ? (a) : (b))

/* bf16 is a 16-bit storage type; arithmetic is f32. Rounds to nearest, ties to even. NaN stays NaN.
 */
KFN float kx_bf16_load(unsigned h)
{
    return KFLOAT((unsigned)(h << 16));
}

KFN unsigned kx_bf16_store(float x)
{
    const unsigned u = KBITS(x);
    const unsigned r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 64u) : r;
}

/* The nearest integer as a float; |x| < 2^22. */
KFN float kx_round(float x)
{
    const float magic = 12582912.0f;
    return (x + magic) - magic;
}

/* e^x within 2 ulp; 0 below -87.3, about 3.4e38 above 88.7. */
KFN float kx_exp(float x)
{
    const float c = x < -87.3f ? -87.3f : (x > 88.7f ? 88.7f : x);
    const float n = kx_round(c * 1.442695041f);
    float r = KFMA(n, -0.693115234375f, c);
    r = KFMA(n, -3.194618329871446e-05f, r);
    float p = 1.395054052e-03f;
    p = KFMA(p, r, 8.368917867e-03f);
    p = KFMA(p, r, 4.166620506e-02f);
    p = KFMA(p, r, 1.666651860e-01f);
    p = KFMA(p, r, 5.000000095e-01f);
    p = KFMA(p * r, r, r) + 1.0f;
    /* 2^n in two factors: n reaches 128 */
    const int n_half = (int)n >> 1;
    const float a = KFLOAT((unsigned)(n_half + 127) << 23);
    const float b = KFLOAT((unsigned)((int)n - n_half + 127) << 23);
    return x < -87.3f ? 0.0f : (p * a) * b;
}

/* ln x within 2 ulp; x positive and normal. */
KFN float kx_log(float x)
{
    const unsigned u = KBITS(x);
    /* exponent such that the mantissa lies in [sqrt 1/2, sqrt 2) */
    const int e = (int)(u - 0x3f3504f3u) >> 23;
    const float m = KFLOAT(u - ((unsigned)e << 23));
    const float f = m - 1.0f, n = (float)e;
    float p = -7.634496881e-02f;
    p = KFMA(p, f, 1.276157728e-01f);
    p = KFMA(p, f, -1.316018236e-01f);
    p = KFMA(p, f, 1.420175795e-01f);
    p = KFMA(p, f, -1.662335734e-01f);
    p = KFMA(p, f, 2.000122688e-01f);
    p = KFMA(p, f, -2.500082103e-01f);
    p = KFMA(p, f, 3.333333171e-01f);
    const float f2 = f * f;
    float y = p * (f2 * f);
    y = KFMA(n, 3.194618329871446e-05f, y);
    y = KFMA(-0.5f, f2, y);
    return KFMA(n, 0.693115234375f, y + f);
}

KFN float kx_sigmoid(float x)
{
    return 1.0f / (1.0f + kx_exp(-x));
}

KFN float kx_silu(float x)
{
    return x / (1.0f + kx_exp(-x));
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|); the logarithm is corrected for what 1 + y rounds away.
 */
KFN float kx_softplus(float x)
{
    const float y = kx_exp(x < 0.0f ? x : -x);
    const float u = 1.0f + y;
    const float l = kx_log(u) + (y - (u - 1.0f)) / u;
    return (x > 0.0f ? x : 0.0f) + l;
}

/* 1 / sqrt(x), two correctly rounded steps. */
KFN float kx_rsqrt(float x)
{
    return 1.0f / KSQRT(x);
}

/* sin x and cos x within 2e-7; 0 <= x <= 2^18. */
typedef struct kx_sincos_result {
    float s, c;
} kx_sincos_result;

KFN kx_sincos_result kx_sincos(float x)
{
    const float k = kx_round(x * 6.366197724e-01f);
    float r = KFMA(k, -1.5703125f, x); /* pi/2 in four parts; the first two steps are exact */
    r = KFMA(k, -0.00048351287841796875f, r);
    r = KFMA(k, -3.1385570764541626e-07f, r);
    r = KFMA(k, -6.07710062827671e-11f, r);
    const float z = r * r;
    const float ps = KFMA(KFMA(-1.951665576e-04f, z, 8.332173543e-03f), z, -1.666665487e-01f);
    const float pc = KFMA(KFMA(2.443773001e-05f, z, -1.388736145e-03f), z, 4.166664675e-02f);
    const float s = KFMA(ps * z, r, r);
    const float c = KFMA(pc * z, z, KFMA(-0.5f, z, 1.0f));
    const int q = (int)k & 3;
    kx_sincos_result out;
    out.s = (q & 1) != 0 ? c : s;
    out.c = (q & 1) != 0 ? s : c;
    if ((q & 2) != 0) out.s = -out.s;
    if (q == 1 || q == 2) out.c = -out.c;
    return out;
}

#endif
