/* gdn_avx512.c - the gated delta rule: two slabs of 128 x 16 at a time, 16 KB that stay in the
 * first-level cache for all tokens of the call.
 *
 * S^T k and S^T q are kept as four partial sums (rows k % 4), added as (0 + 1) + (2 + 3): with two
 * slabs that makes eight chains of FMA, which cover their latency. The order is the same for one
 * slab. S^T k is taken before the decay and scaled after: the decayed state need not be written
 * between the passes.
 */
#include "exec/cpu/registry.h"
#include "exec/cpu/simd_avx512.h"

#define DIM    MODEL_GDN_DIM
#define STRIDE (MODEL_GDN_DIM * GDN_SLAB)
#define CHAINS 4

static ATTR_INLINE __m512 chains_sum(const __m512 s[CHAINS])
{
    return _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
}

/* d = beta * (v - decay * S^T k) for n_slabs slabs. */
static ATTR_INLINE void gdn_delta(uint32_t n_slabs, const float *s, const float *k, const float *v,
                                  __m512 decay, __m512 beta, __m512 *d)
{
    __m512 sum[2][CHAINS];
    UNROLLED (i, n_slabs)
        UNROLLED (j, CHAINS)
            sum[i][j] = _mm512_setzero_ps();
    for (uint32_t row = 0; row < DIM; row += CHAINS) {
        UNROLLED (j, CHAINS) {
            const __m512 kb = _mm512_set1_ps(k[row + j]);
            UNROLLED (i, n_slabs) {
                const float *at = s + (size_t)i * STRIDE + (row + j) * GDN_SLAB;
                sum[i][j] = _mm512_fmadd_ps(_mm512_load_ps(at), kb, sum[i][j]);
            }
        }
    }
    UNROLLED (i, n_slabs) {
        const __m512 m = _mm512_mul_ps(decay, chains_sum(sum[i]));
        d[i] = _mm512_mul_ps(beta, _mm512_sub_ps(_mm512_loadu_ps(v + (size_t)i * GDN_SLAB), m));
    }
}

/* S = decay * S + k d^T;  o = S^T q. */
static ATTR_INLINE void gdn_update(uint32_t n_slabs, float *s, const float *q, const float *k,
                                   __m512 decay, const __m512 *d, float *o)
{
    __m512 sum[2][CHAINS];
    UNROLLED (i, n_slabs)
        UNROLLED (j, CHAINS)
            sum[i][j] = _mm512_setzero_ps();
    for (uint32_t row = 0; row < DIM; row += CHAINS) {
        UNROLLED (j, CHAINS) {
            const __m512 kb = _mm512_set1_ps(k[row + j]);
            const __m512 qb = _mm512_set1_ps(q[row + j]);
            UNROLLED (i, n_slabs) {
                float *at = s + (size_t)i * STRIDE + (row + j) * GDN_SLAB;
                const __m512 t =
                    _mm512_fmadd_ps(kb, d[i], _mm512_mul_ps(decay, _mm512_load_ps(at)));
                _mm512_store_ps(at, t);
                sum[i][j] = _mm512_fmadd_ps(t, qb, sum[i][j]);
            }
        }
    }
    UNROLLED (i, n_slabs)
        _mm512_storeu_ps(o + (size_t)i * GDN_SLAB, chains_sum(sum[i]));
}

static ATTR_INLINE void gdn_step(uint32_t n_slabs, float *s, const float *q, const float *k,
                                 const float *v, float decay, float beta, float *o)
{
    __m512 d[2];
    const __m512 dec = _mm512_set1_ps(decay);
    gdn_delta(n_slabs, s, k, v, dec, _mm512_set1_ps(beta), d);
    gdn_update(n_slabs, s, q, k, dec, d, o);
}

void avx512_gdn_scan(float *state, uint32_t slab0, uint32_t slab1, uint32_t n_tokens,
                     const float *q, const float *k, size_t qk_stride, const float *v,
                     size_t v_stride, const float *decay, const float *beta, size_t gate_stride,
                     float *o, size_t o_stride)
{
    uint32_t i = slab0;
    for (; i + 2 <= slab1; i += 2)
        for (size_t t = 0; t < n_tokens; t++)
            gdn_step(2, state + (size_t)i * STRIDE, q + t * qk_stride, k + t * qk_stride,
                     v + t * v_stride + (size_t)i * GDN_SLAB, decay[t * gate_stride],
                     beta[t * gate_stride], o + t * o_stride + (size_t)i * GDN_SLAB);
    if (i < slab1)
        for (size_t t = 0; t < n_tokens; t++)
            gdn_step(1, state + (size_t)i * STRIDE, q + t * qk_stride, k + t * qk_stride,
                     v + t * v_stride + (size_t)i * GDN_SLAB, decay[t * gate_stride],
                     beta[t * gate_stride], o + t * o_stride + (size_t)i * GDN_SLAB);
}
