#include "kernels/ref_gemv.h"

#include "base/mem.h"
#include "kernels/kmath.h"
#include "kernels/ref_basic.h"

/* (x + y) + (z + w) of each float4, then the xor tree over n / 4 of them. */
static float run_sum(const float *x, uint32_t n)
{
    float s[8], t[8];
    const uint32_t n_fours = n / 4;
    for (uint32_t i = 0; i < n_fours; i++)
        s[i] = (x[4 * i] + x[4 * i + 1]) + (x[4 * i + 2] + x[4 * i + 3]);
    for (uint32_t mask = n_fours / 2; mask != 0; mask /= 2) {
        for (uint32_t i = 0; i < n_fours; i++)
            t[i] = s[i] + s[i ^ mask];
        memcpy(s, t, sizeof s);
    }
    return s[0];
}

static float dot16(const uint32_t *codes, uint32_t bits, uint32_t at, const float *x)
{
    const uint32_t per_word = 32 / bits;
    float s = 0.0f;
    for (uint32_t i = at; i < at + 16; i++) {
        const uint32_t q = codes[i / per_word] >> (bits * (i % per_word)) & ((1u << bits) - 1);
        s = fmaf((float)q, x[i], s);
    }
    return s;
}

static float scale_of(uint32_t sb)
{
    return kx_bf16_load(sb & 0xffffu);
}

static float bias_of(uint32_t sb)
{
    return kx_bf16_load(sb >> 16);
}

/* One run of 32 columns from column `at`, added to acc. */
static float add_run(const uint32_t *codes, const uint32_t *sb, uint32_t at, const float *x,
                     float acc)
{
    const uint32_t g = sb[at / 64];
    acc = fmaf(scale_of(g), dot16(codes, 4, at, x), acc);
    acc = fmaf(scale_of(g), dot16(codes, 4, at + 16, x), acc);
    return fmaf(bias_of(g), run_sum(x + at, 32), acc);
}

static float row_dot(const uint32_t *codes, const uint32_t *sb, uint32_t cols, const float *x)
{
    float total = 0.0f;
    for (uint32_t piece = 0; piece < cols; piece += 2048) {
        float lane[32] = {0};
        for (uint32_t at = piece; at < cols && at < piece + 2048; at += 32) {
            const uint32_t l = at / 32 % 32;
            lane[l] = add_run(codes, sb, at, x, lane[l]);
        }
        total = piece == 0 ? ref_simd_sum(lane) : total + ref_simd_sum(lane);
    }
    return total;
}

/* x times the norm's weight; returns the norm's factor. */
static float scaled_input(const float *x, const float *norm, uint32_t n, float eps, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = norm != NULL ? x[i] * norm[i] : x[i];
    return norm != NULL ? ref_rms_inverse(x, n, eps) : 1.0f;
}

void ref_gemv(const ref_matrix *w, const float *x, const float *norm, float eps, float *y)
{
    float *in = mem_array(w->cols, sizeof *in);
    if (in == NULL) return;
    const float inv = scaled_input(x, norm, w->cols, eps, in);
    for (uint32_t r = 0; r < w->rows; r++)
        y[r] = row_dot(w->codes + (size_t)r * (w->cols / 8), w->sb + (size_t)r * (w->cols / 64),
                       w->cols, in) *
               inv;
    mem_free(in);
}

void ref_router(const ref_matrix *w, const float *x, const float *norm, float eps, float *logits)
{
    float *in = mem_array(w->cols, sizeof *in);
    if (in == NULL) return;
    const float inv = scaled_input(x, norm, w->cols, eps, in);
    for (uint32_t r = 0; r < w->rows; r++) {
        const uint32_t *codes = w->codes + (size_t)r * (w->cols / 4);
        const uint32_t *sb = w->sb + (size_t)r * (w->cols / 64);
        float lane[32] = {0};
        for (uint32_t at = 0; at < w->cols; at += 16) {
            float *acc = &lane[at / 16 % 32];
            *acc = fmaf(scale_of(sb[at / 64]), dot16(codes, 8, at, in), *acc);
            *acc = fmaf(bias_of(sb[at / 64]), run_sum(in + at, 16), *acc);
        }
        logits[r] = ref_simd_sum(lane) * inv;
    }
    mem_free(in);
}

/* ---- Experts ---- */

static const uint32_t *slab_of(const ref_experts *m, const uint32_t *ids, uint32_t slot)
{
    const uint32_t e = slot < m->n_used ? ids[slot] : m->n_experts;
    return m->slabs + (size_t)e * m->slab_words;
}

static ref_matrix down_of(const ref_experts *m, const uint32_t *slab)
{
    const uint32_t codes_at = m->width * (m->hidden / 4 + m->hidden / 32);
    return (ref_matrix){.codes = slab + codes_at,
                        .sb = slab + codes_at + m->hidden * (m->width / 8),
                        .rows = m->hidden,
                        .cols = m->width};
}

void ref_gateup(const ref_experts *m, const float *x, const float *norm, float eps,
                const uint32_t *ids, float *h)
{
    float *y = mem_array(2 * (size_t)m->width, sizeof *y);
    if (y == NULL) return;
    for (uint32_t s = 0; s <= m->n_used; s++) {
        const uint32_t *slab = slab_of(m, ids, s);
        const ref_matrix w = {.codes = slab,
                              .sb = slab + m->width * (m->hidden / 4),
                              .rows = 2 * m->width,
                              .cols = m->hidden};
        ref_gemv(&w, x, norm, eps, y);
        for (uint32_t i = 0; i < m->width; i++)
            h[(size_t)s * m->width + i] = kx_silu(y[2 * i]) * y[2 * i + 1];
    }
    mem_free(y);
}

void ref_down(const ref_experts *m, const float *h, const uint32_t *ids, const float *weights,
              float *x)
{
    for (uint32_t r = 0; r < m->hidden; r++) {
        float lane[32] = {0};
        for (uint32_t s = 0; s <= m->n_used; s++) {
            const ref_matrix w = down_of(m, slab_of(m, ids, s));
            for (uint32_t at = 0; at < m->width; at += 32) {
                const float p =
                    add_run(w.codes + (size_t)r * (m->width / 8),
                            w.sb + (size_t)r * (m->width / 64), at, h + (size_t)s * m->width, 0.0f);
                lane[at / 32] = fmaf(weights[s], p, lane[at / 32]);
            }
        }
        x[r] += ref_simd_sum(lane);
    }
}

void ref_down_separate(const ref_experts *m, const float *h, const uint32_t *ids,
                       const float *weights, float *x)
{
    const size_t n_slots = (size_t)m->n_used + 1;
    float *d = mem_array(n_slots * m->hidden, sizeof *d);
    if (d == NULL) return;
    for (uint32_t s = 0; s < n_slots; s++) {
        const ref_matrix w = down_of(m, slab_of(m, ids, s));
        ref_gemv(&w, h + (size_t)s * m->width, NULL, 0.0f, d + (size_t)s * m->hidden);
    }
    for (uint32_t r = 0; r < m->hidden; r++) {
        float acc = 0.0f;
        for (uint32_t s = 0; s < n_slots; s++)
            acc = fmaf(weights[s], d[(size_t)s * m->hidden + r], acc);
        x[r] += acc;
    }
    mem_free(d);
}
