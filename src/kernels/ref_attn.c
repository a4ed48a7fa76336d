#include "kernels/ref_attn.h"

#include <math.h>

#define D ATTN_DIM

typedef struct state {
    float m, l, o[D];
} state;

/* Dim i (0 .. 7) of a lane. */
static uint32_t dim(uint32_t lane, uint32_t i, bool strided)
{
    return strided ? lane + 32 * i : 8 * lane + i;
}

static float tree(float v[32])
{
    for (uint32_t m = 16; m != 0; m >>= 1)
        for (uint32_t l = 0; l < m; l++)
            v[l] = v[l] + v[l + m];
    return v[0];
}

static float dot(const float *q, const uint16_t *k, bool strided)
{
    float s[32];
    for (uint32_t l = 0; l < 32; l++) {
        s[l] = 0.0f;
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t d = dim(l, i, strided);
            s[l] = KFMA(q[d], kx_bf16_load(k[d]), s[l]);
        }
    }
    return tree(s);
}

static void norm_rope(const float *x, const float *w, const float *rope, float eps, float scale,
                      bool strided, float *out)
{
    float s[32];
    for (uint32_t l = 0; l < 32; l++) {
        s[l] = 0.0f;
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t d = dim(l, i, strided);
            s[l] = KFMA(x[d], x[d], s[l]);
        }
    }
    const float r = kx_rsqrt(KFMA(tree(s), 1.0f / D, eps));
    for (uint32_t d = 0; d < D; d++)
        out[d] = (x[d] * r) * w[d];
    for (uint32_t i = 0; i < 32; i++) {
        const float x0 = out[i], x1 = out[i + 32];
        out[i] = KFMA(x0, rope[i], -(x1 * rope[32 + i]));
        out[i + 32] = KFMA(x1, rope[i], x0 * rope[32 + i]);
    }
    for (uint32_t d = 0; d < D; d++)
        out[d] = out[d] * scale;
}

static size_t row_at(const attn_args *a, uint32_t kv, const tok_entry *t, uint32_t pos)
{
    return ((size_t)kv * a->n_rows + t->kv_row + pos) * D;
}

void ref_attn_prepare(const attn_args *a, const tok_entry *tok, const float *y, const float *rope,
                      const float *q_norm, const float *k_norm, bool strided, bool bf16,
                      uint16_t *k, uint16_t *v, float *q)
{
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        const float *yt = y + (size_t)t * a->y_pitch, *rt = rope + (size_t)t * 64;
        for (uint32_t h = 0; h < a->n_heads; h++) {
            float *out = q + ((size_t)t * a->n_heads + h) * D;
            norm_rope(yt + (size_t)h * 2 * D, q_norm, rt, a->eps, ATTN_SCALE, strided, out);
            for (uint32_t d = 0; d < D && bf16; d++)
                out[d] = kx_bf16_load(kx_bf16_store(out[d]));
        }
        for (uint32_t h = 0; h < a->n_kv_heads; h++) {
            const float *yk = yt + (size_t)(2 * a->n_heads + h) * D;
            const float *yv = yk + (size_t)a->n_kv_heads * D;
            const size_t at = row_at(a, h, &tok[t], tok[t].pos);
            float x[D];
            norm_rope(yk, k_norm, rt, a->eps, 1.0f, strided, x);
            for (uint32_t d = 0; d < D; d++) {
                k[at + d] = (uint16_t)kx_bf16_store(x[d]);
                v[at + d] = (uint16_t)kx_bf16_store(yv[d]);
            }
        }
    }
}

static void clear(state *s)
{
    s->m = -1e30f;
    s->l = 0.0f;
    for (uint32_t d = 0; d < D; d++)
        s->o[d] = 0.0f;
}

/* Up to 4 keys, rows k and v of the first one. */
static void batch(state *s, const float *q, const uint16_t *k, const uint16_t *v, uint32_t n,
                  bool strided)
{
    float p[4], m = s->m;
    for (uint32_t j = 0; j < 4; j++) {
        p[j] = j < n ? dot(q, k + (size_t)j * D, strided) : -1e30f;
        m = p[j] > m ? p[j] : m;
    }
    const float f = attn_exp2(s->m - m);
    for (uint32_t j = 0; j < 4; j++)
        p[j] = attn_exp2(p[j] - m);
    s->m = m;
    s->l = KFMA(s->l, f, (p[0] + p[1]) + (p[2] + p[3]));
    for (uint32_t d = 0; d < D; d++) {
        float o = s->o[d] * f;
        for (uint32_t j = 0; j < 4; j++)
            o = KFMA(p[j], kx_bf16_load(v[(size_t)(j < n ? j : 0) * D + d]), o);
        s->o[d] = o;
    }
}

static void join(state *a, const state *b)
{
    const float m = a->m > b->m ? a->m : b->m;
    const float fa = attn_exp2(a->m - m), fb = attn_exp2(b->m - m);
    a->m = m;
    a->l = KFMA(a->l, fa, b->l * fb);
    for (uint32_t d = 0; d < D; d++)
        a->o[d] = KFMA(a->o[d], fa, b->o[d] * fb);
}

/* Keys [begin, end) of one head: slices joined pairwise. */
static void block(state *out, const float *q, const uint16_t *k, const uint16_t *v, uint32_t begin,
                  uint32_t end, uint32_t slices, bool strided)
{
    state s[8];
    for (uint32_t i = 0; i < slices; i++) {
        clear(&s[i]);
        for (uint32_t key = begin + 4 * i; key < end; key += 4 * slices)
            batch(&s[i], q, k + (size_t)key * D, v + (size_t)key * D, end - key < 4 ? end - key : 4,
                  strided);
    }
    for (uint32_t half = slices / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            join(&s[i], &s[i + half]);
    *out = s[0];
}

/* As attn_merge: lane i holds blocks i and i + 32; four interleaved sums. */
static void merge(const state *s, uint32_t n, const float *gate, float *o)
{
    float m = -1e30f, w[64], l[32];
    for (uint32_t i = 0; i < n; i++)
        m = s[i].m > m ? s[i].m : m;
    for (uint32_t i = 0; i < 64; i++)
        w[i] = attn_exp2((i < n ? s[i].m : -1e30f) - m);
    for (uint32_t i = 0; i < 32; i++)
        l[i] = KFMA(i < n ? s[i].l : 0.0f, w[i], (i + 32 < n ? s[i + 32].l : 0.0f) * w[i + 32]);
    const float total = tree(l);
    for (uint32_t d = 0; d < D; d++) {
        float p[4] = {0, 0, 0, 0};
        for (uint32_t i = 0; i < n; i++)
            p[i % 4] = KFMA(s[i].o[d], w[i], p[i % 4]);
        o[d] = (((p[0] + p[1]) + (p[2] + p[3])) / total) * kx_sigmoid(gate[d]);
    }
}

void ref_attn_step(const attn_args *a, const tok_entry *tok, const float *y, const float *q,
                   const uint16_t *k, const uint16_t *v, bool strided, uint32_t nh, float *o)
{
    static state parts[ATTN_BLOCKS_MAX];
    const uint32_t quads = nh == 1 ? 1 : (a->group + nh - 1) / nh;
    const uint32_t slices = quads == 1 ? 8 : quads == 2 ? 4 : 2;
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        const uint32_t n = tok[t].pos + 1, kb = attn_block_keys(n, a->one);
        for (uint32_t h = 0; h < a->n_heads; h++) {
            const size_t at = row_at(a, h / a->group, &tok[t], 0);
            const size_t qo = ((size_t)t * a->n_heads + h) * D;
            uint32_t n_parts = 0;
            for (uint32_t b = 0; b < n; b += kb)
                block(&parts[n_parts++], q + qo, k + at, v + at, b, n - b < kb ? n : b + kb, slices,
                      strided);
            merge(parts, n_parts, y + (size_t)t * a->y_pitch + (size_t)(2 * h + 1) * D, o + qo);
        }
    }
}

void ref_attn_scan(const attn_args *a, const tok_entry *tok, const float *y, const float *q,
                   const uint16_t *k, const uint16_t *v, uint16_t *o)
{
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        for (uint32_t h = 0; h < a->n_heads; h++) {
            const size_t at = row_at(a, h / a->group, &tok[t], 0);
            const size_t qo = ((size_t)t * a->n_heads + h) * D;
            const float *gate = y + (size_t)t * a->y_pitch + (size_t)(2 * h + 1) * D;
            state s;
            block(&s, q + qo, k + at, v + at, 0, tok[t].pos + 1, 1, false);
            for (uint32_t d = 0; d < D; d++)
                o[qo + d] = (uint16_t)kx_bf16_store((s.o[d] / s.l) * kx_sigmoid(gate[d]));
        }
    }
}

void ref_attn_exact(const attn_args *a, const tok_entry *tok, const float *y, const float *q,
                    const uint16_t *k, const uint16_t *v, float *o)
{
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        for (uint32_t h = 0; h < a->n_heads; h++) {
            const size_t at = row_at(a, h / a->group, &tok[t], 0);
            const size_t qo = ((size_t)t * a->n_heads + h) * D;
            const float *gate = y + (size_t)t * a->y_pitch + (size_t)(2 * h + 1) * D;
            double m = -1e30, l = 0.0, acc[D] = {0};
            for (uint32_t j = 0; j <= tok[t].pos; j++) {
                const uint16_t *kr = k + at + (size_t)j * D, *vr = v + at + (size_t)j * D;
                double s = 0.0;
                for (uint32_t d = 0; d < D; d++)
                    s += (double)q[qo + d] * (double)kx_bf16_load(kr[d]);
                const double top = s > m ? s : m, f = exp2(m - top), p = exp2(s - top);
                m = top;
                l = l * f + p;
                for (uint32_t d = 0; d < D; d++)
                    acc[d] = acc[d] * f + p * (double)kx_bf16_load(vr[d]);
            }
            for (uint32_t d = 0; d < D; d++)
                o[qo + d] = (float)(acc[d] / l / (1.0 + exp(-(double)gate[d])));
        }
    }
}
