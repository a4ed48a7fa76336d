/* ref.c - the reference kernels: they define what every variant computes. Written to be read. */
#include "exec/cpu/registry.h"

#include <math.h>

#include "base/ck.h"

/* Sixteen partial sums, then a tree: the order of the SIMD variants, and a smaller error than one
 * running sum. n % 16 == 0. */
static float dot(const float *a, const float *b, uint32_t n)
{
    float sum[16] = {0};
    for (uint32_t i = 0; i < n; i += 16)
        for (uint32_t j = 0; j < 16; j++)
            sum[j] += a[i + j] * b[i + j];
    for (uint32_t width = 8; width > 0; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            sum[j] += sum[j + width];
    return sum[0];
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* ---- Matrices ---- */

/* Group g of 64 columns: w = scale * code + bias. The product is exact in f32 (8 + 8 bits), so
 * fused or not, there is one rounding. */
static void row_quantised(const matrix *m, uint32_t r, float *out)
{
    const uint64_t param_off = (uint64_t)r * (m->cols / MODEL_QUANT_GROUP) * 2;
    const uint8_t *codes = m->data + (uint64_t)r * m->row_bytes;
    for (uint32_t c = 0; c < m->cols; c++) {
        const uint64_t off = param_off + (uint64_t)(c / MODEL_QUANT_GROUP) * 2;
        const float scale = load_bf16(m->scales + off);
        const float bias = load_bf16(m->biases + off);
        const unsigned code = m->type == MAT_Q8 ? codes[c]
                              : c % 2 == 0      ? codes[c / 2] & 15u
                                                : codes[c / 2] >> 4;
        out[c] = scale * (float)code + bias;
    }
}

void matrix_row(const matrix *m, uint32_t r, float *out)
{
    const uint8_t *row = m->data + (uint64_t)r * m->row_bytes;
    switch (m->type) {
    case MAT_Q4:
    case MAT_Q8:
        row_quantised(m, r, out);
        break;
    case MAT_BF16:
        for (uint32_t c = 0; c < m->cols; c++)
            out[c] = load_bf16(row + (uint64_t)c * 2);
        break;
    case MAT_F32:
        memcpy(out, row, (size_t)m->cols * sizeof *out);
        break;
    }
}

static void matmul(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                   uint32_t n_tokens, float *const *y, float *scratch)
{
    for (uint32_t r = row0; r < row1; r++) {
        matrix_row(w, r, scratch);
        for (uint32_t t = 0; t < n_tokens; t++)
            y[t][r] = dot(scratch, x[t], w->cols);
    }
}

void ref_prep_q4(const float *x, uint32_t cols, void *xp)
{
    memcpy(xp, x, (size_t)cols * sizeof *x);
}

void ref_matmul_q4(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                   uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(w, row0, row1, x, n_tokens, y, scratch);
}

/* One group as integers: q[64], scale, sum. */
static void prep_group(const float *x, float q_max, int32_t *q, float *scale, float *sum)
{
    float top = 0.0f;
    int32_t total = 0;
    for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++)
        top = fmaxf(top, fabsf(x[i]));
    const float inverse = top < PREP_LEAST ? 0.0f : q_max / top;
    for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++) {
        q[i] = (int32_t)rintf(x[i] * inverse);
        total += q[i];
    }
    *scale = top < PREP_LEAST ? 0.0f : top / q_max;
    *sum = *scale * (float)total;
}

static void prep_params(uint8_t *at, float scale, float sum)
{
    memcpy(at, &scale, sizeof scale);
    memcpy(at + sizeof scale, &sum, sizeof sum);
}

void ref_prep_i16(const float *x, uint32_t cols, void *xp)
{
    uint8_t *out = xp;
    for (uint32_t c = 0; c < cols; c += MODEL_QUANT_GROUP, out += PREP_BYTES_I16) {
        int32_t q[MODEL_QUANT_GROUP];
        float scale, sum;
        prep_group(x + c, PREP_I16_MAX, q, &scale, &sum);
        for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++) {
            const int32_t high = (q[i] + 128 + 32768) / 256 - 128; /* rounded down */
            out[i] = (uint8_t)high;
            out[MODEL_QUANT_GROUP + i] = (uint8_t)(q[i] - 256 * high);
        }
        prep_params(out + 2u * MODEL_QUANT_GROUP, scale, sum);
    }
}

void ref_prep_i8(const float *x, uint32_t cols, void *xp)
{
    uint8_t *out = xp;
    for (uint32_t c = 0; c < cols; c += MODEL_QUANT_GROUP, out += PREP_BYTES_I8) {
        int32_t q[MODEL_QUANT_GROUP];
        float scale, sum;
        prep_group(x + c, PREP_I8_MAX, q, &scale, &sum);
        for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++)
            out[i] = (uint8_t)q[i];
        prep_params(out + MODEL_QUANT_GROUP, scale, sum);
    }
}

/* The number of -128 .. 127 whose two's complement is b. */
static int32_t from_byte(uint8_t b)
{
    return (int32_t)b - ((b & 0x80) != 0 ? 256 : 0);
}

/* Row r of w by one prepared x; n_planes 1: 8 bits, 2: 16. */
static float dot_int(const matrix *w, uint32_t r, const uint8_t *x, uint32_t n_planes)
{
    const uint32_t n_groups = w->cols / MODEL_QUANT_GROUP;
    float y = 0.0f;
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint8_t *codes = w->data + r * w->row_bytes + (size_t)g * (MODEL_QUANT_GROUP / 2);
        const size_t param = ((size_t)r * n_groups + g) * 2;
        int32_t sum = 0;
        float x_scale, x_sum;
        for (uint32_t i = 0; i < MODEL_QUANT_GROUP; i++) {
            int32_t q = from_byte(x[i]);
            if (n_planes == 2) q = 256 * q + from_byte(x[MODEL_QUANT_GROUP + i]);
            sum += (codes[i / 2] >> (i % 2 * 4) & 15) * q;
        }
        x += n_planes * MODEL_QUANT_GROUP;
        memcpy(&x_scale, x, sizeof x_scale);
        memcpy(&x_sum, x + sizeof x_scale, sizeof x_sum);
        x += 2 * sizeof x_scale;
        y = fmaf((float)sum, load_bf16(w->scales + param) * x_scale, y);
        y = fmaf(load_bf16(w->biases + param), x_sum, y);
    }
    return y;
}

void ref_matmul_i16(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                    uint32_t n_tokens, float *const *y, float *scratch)
{
    (void)scratch;
    for (uint32_t r = row0; r < row1; r++)
        for (uint32_t t = 0; t < n_tokens; t++)
            y[t][r] = dot_int(w, r, (const uint8_t *)x[t], 2);
}

void ref_matmul_i8(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                   uint32_t n_tokens, float *const *y, float *scratch)
{
    (void)scratch;
    for (uint32_t r = row0; r < row1; r++)
        for (uint32_t t = 0; t < n_tokens; t++)
            y[t][r] = dot_int(w, r, (const uint8_t *)x[t], 1);
}

void ref_matmul_q8(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                   uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(w, row0, row1, x, n_tokens, y, scratch);
}

void ref_matmul_bf16(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                     uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(w, row0, row1, x, n_tokens, y, scratch);
}

void ref_matmul_f32(const matrix *w, uint32_t row0, uint32_t row1, const float *const *x,
                    uint32_t n_tokens, float *const *y, float *scratch)
{
    matmul(w, row0, row1, x, n_tokens, y, scratch);
}

/* ---- Rows ---- */

void ref_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    const float inv = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inv * w[i];
}

void ref_l2norm(const float *x, uint32_t n, float eps, float scale, float *y)
{
    const float inv = 1.0f / sqrtf(dot(x, x, n) + eps) * scale;
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inv;
}

void ref_gated_rmsnorm(const float *x, const float *z, const float *w, uint32_t n, float eps,
                       float *y)
{
    const float inv = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inv * w[i] * silu(z[i]);
}

void ref_silu_mul(const float *g, const float *u, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = silu(g[i]) * u[i];
}

void ref_sigmoid_mul(const float *g, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] *= sigmoid(g[i]);
}

void ref_axpy(float a, const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

void ref_conv_silu(const float *w, uint32_t n_channels, const float *const rows[4], uint32_t ch0,
                   uint32_t ch1, float *y)
{
    for (uint32_t c = ch0; c < ch1; c++) {
        float sum = 0;
        for (uint32_t j = 0; j < MODEL_CONV_KERNEL; j++)
            sum += w[(size_t)j * n_channels + c] * rows[j][c];
        y[c] = silu(sum);
    }
}

/* ---- Gated delta rule ---- */

/* One token, one slab s[k][16]; v and o point at the slab's 16 columns. */
static void gdn_step(float *s, const float *q, const float *k, const float *v, float decay,
                     float beta, float *o)
{
    float d[GDN_SLAB] = {0}, sum[GDN_SLAB] = {0};
    for (uint32_t i = 0; i < MODEL_GDN_DIM; i++)
        for (uint32_t j = 0; j < GDN_SLAB; j++) {
            s[i * GDN_SLAB + j] *= decay;
            d[j] += s[i * GDN_SLAB + j] * k[i];
        }
    for (uint32_t j = 0; j < GDN_SLAB; j++)
        d[j] = beta * (v[j] - d[j]);
    for (uint32_t i = 0; i < MODEL_GDN_DIM; i++)
        for (uint32_t j = 0; j < GDN_SLAB; j++) {
            s[i * GDN_SLAB + j] += k[i] * d[j];
            sum[j] += s[i * GDN_SLAB + j] * q[i];
        }
    memcpy(o, sum, sizeof sum);
}

void ref_gdn_scan(float *state, uint32_t slab0, uint32_t slab1, uint32_t n_tokens, const float *q,
                  const float *k, size_t qk_stride, const float *v, size_t v_stride,
                  const float *decay, const float *beta, size_t gate_stride, float *o,
                  size_t o_stride)
{
    for (uint32_t i = slab0; i < slab1; i++) {
        float *slab = state + (size_t)i * MODEL_GDN_DIM * GDN_SLAB;
        const size_t col = (size_t)i * GDN_SLAB;
        for (size_t t = 0; t < n_tokens; t++)
            gdn_step(slab, q + t * qk_stride, k + t * qk_stride, v + t * v_stride + col,
                     decay[t * gate_stride], beta[t * gate_stride], o + t * o_stride + col);
    }
}

/* ---- Attention ---- */

/* Position j of a K or V block, widened. */
static void kv_row(const void *kv, bool is_key, calla_kv_type type, uint32_t j, float *out)
{
    for (uint32_t i = 0; i < MODEL_HEAD_DIM; i++) {
        const size_t at = is_key ? attn_key_at(type, j, i) : attn_value_at(type, j, i);
        out[i] = type == CALLA_KV_BF16 ? bf16_to_f32(((const uint16_t *)kv)[at])
                                       : ((const float *)kv)[at];
    }
}

static void attn_row(const float *q, uint32_t n_visible, const void *k, const void *v,
                     calla_kv_type type, attn_state *st, float *scratch)
{
    float *row = scratch, *p = scratch + MODEL_HEAD_DIM;
    float m = st->m;
    for (uint32_t j = 0; j < n_visible; j++) {
        kv_row(k, true, type, j, row);
        p[j] = dot(q, row, MODEL_HEAD_DIM);
        m = fmaxf(m, p[j]);
    }
    const float f = expf(st->m - m);
    st->m = m;
    st->l *= f;
    for (uint32_t i = 0; i < MODEL_HEAD_DIM; i++)
        st->o[i] *= f;
    for (uint32_t j = 0; j < n_visible; j++) {
        p[j] = expf(p[j] - m);
        st->l += p[j];
        kv_row(v, false, type, j, row);
        for (uint32_t i = 0; i < MODEL_HEAD_DIM; i++)
            st->o[i] += p[j] * row[i];
    }
}

void ref_attn_block(const float *const *q, const uint32_t *n_visible, uint32_t n_q, const void *k,
                    const void *v, uint32_t n_kv, calla_kv_type kv_type, attn_state *st,
                    float *scratch)
{
    (void)n_kv;
    for (uint32_t i = 0; i < n_q; i++)
        if (n_visible[i] > 0) attn_row(q[i], n_visible[i], k, v, kv_type, &st[i], scratch);
}
