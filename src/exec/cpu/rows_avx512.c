/* rows_avx512.c - norms, activations and the convolution: one pass over a row, or two. */
#include <math.h>

#include "exec/cpu/registry.h"
#include "exec/cpu/simd_avx512.h"

/* Two partial vectors hide half the latency; which elements go where depends on n alone. */
static float sum_squares(const float *x, uint32_t n)
{
    __m512 a = _mm512_setzero_ps(), b = _mm512_setzero_ps();
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512 x0 = _mm512_loadu_ps(x + i), x1 = _mm512_loadu_ps(x + i + 16);
        a = _mm512_fmadd_ps(x0, x0, a);
        b = _mm512_fmadd_ps(x1, x1, b);
    }
    if (i < n) {
        const __m512 x0 = _mm512_loadu_ps(x + i);
        a = _mm512_fmadd_ps(x0, x0, a);
    }
    return sum1(_mm512_add_ps(a, b));
}

void avx512_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    const __m512 inv = _mm512_set1_ps(1.0f / sqrtf(sum_squares(x, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), inv);
        _mm512_storeu_ps(y + i, _mm512_mul_ps(v, _mm512_loadu_ps(w + i)));
    }
}

void avx512_l2norm(const float *x, uint32_t n, float eps, float scale, float *y)
{
    const __m512 inv = _mm512_set1_ps(1.0f / sqrtf(sum_squares(x, n) + eps) * scale);
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), inv));
}

void avx512_gated_rmsnorm(const float *x, const float *z, const float *w, uint32_t n, float eps,
                          float *y)
{
    const __m512 inv = _mm512_set1_ps(1.0f / sqrtf(sum_squares(x, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), inv);
        v = _mm512_mul_ps(v, _mm512_loadu_ps(w + i));
        _mm512_storeu_ps(y + i, _mm512_mul_ps(v, silu512(_mm512_loadu_ps(z + i))));
    }
}

void avx512_silu_mul(const float *g, const float *u, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 s = silu512(_mm512_loadu_ps(g + i));
        _mm512_storeu_ps(y + i, _mm512_mul_ps(s, _mm512_loadu_ps(u + i)));
    }
}

void avx512_sigmoid_mul(const float *g, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 e = exp512(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_loadu_ps(g + i)));
        const __m512 d = _mm512_add_ps(_mm512_set1_ps(1), e);
        _mm512_storeu_ps(y + i, _mm512_div_ps(_mm512_loadu_ps(y + i), d));
    }
}

void avx512_axpy(float a, const float *x, uint32_t n, float *y)
{
    const __m512 va = _mm512_set1_ps(a);
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i,
                         _mm512_fmadd_ps(va, _mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i)));
}

void avx512_conv_silu(const float *w, uint32_t n_channels, const float *const rows[4], uint32_t ch0,
                      uint32_t ch1, float *y)
{
    const float *w0 = w, *w1 = w0 + n_channels, *w2 = w1 + n_channels, *w3 = w2 + n_channels;
    for (uint32_t c = ch0; c < ch1; c += 16) {
        __m512 s = _mm512_mul_ps(_mm512_loadu_ps(w0 + c), _mm512_loadu_ps(rows[0] + c));
        s = _mm512_fmadd_ps(_mm512_loadu_ps(w1 + c), _mm512_loadu_ps(rows[1] + c), s);
        s = _mm512_fmadd_ps(_mm512_loadu_ps(w2 + c), _mm512_loadu_ps(rows[2] + c), s);
        s = _mm512_fmadd_ps(_mm512_loadu_ps(w3 + c), _mm512_loadu_ps(rows[3] + c), s);
        _mm512_storeu_ps(y + c, silu512(s));
    }
}
