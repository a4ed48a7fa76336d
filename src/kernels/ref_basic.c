#include "kernels/ref_basic.h"

#include <stdbool.h>

#include "kernels/kmath.h"

float ref_simd_sum(const float *v)
{
    float a[32], b[32];
    memcpy(a, v, sizeof a);
    for (uint32_t mask = 16; mask != 0; mask /= 2) {
        for (uint32_t l = 0; l < 32; l++)
            b[l] = a[l] + a[l ^ mask];
        memcpy(a, b, sizeof a);
    }
    return a[0];
}

float ref_rms_inverse(const float *x, uint32_t n, float eps)
{
    float part[4];
    for (uint32_t p = 0; p < 4; p++) {
        float lane[32] = {0};
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t i = 4 * (32 * p + l); i < n; i += 512)
                for (uint32_t c = 0; c < 4; c++)
                    lane[l] = fmaf(x[i + c], x[i + c], lane[l]);
        part[p] = ref_simd_sum(lane);
    }
    return kx_rsqrt(((part[0] + part[1]) + (part[2] + part[3])) / (float)n + eps);
}

void ref_q4_row(const uint32_t *codes, const uint32_t *sb, uint32_t cols, float *out)
{
    for (uint32_t i = 0; i < cols; i++) {
        const uint32_t g = sb[i / 64];
        const uint32_t q = codes[i / 8] >> (4 * (i % 8)) & 15u;
        out[i] = fmaf(kx_bf16_load(g & 0xffffu), (float)q, kx_bf16_load(g >> 16));
    }
}

void ref_embed(uint32_t n, uint32_t hidden, const tok_entry *tok, const uint32_t *codes,
               const uint32_t *sb, const float *inv_freq, float *x, float *rope)
{
    for (uint32_t t = 0; t < n; t++) {
        const size_t row = tok[t].token;
        ref_q4_row(codes + row * (hidden / 8), sb + row * (hidden / 64), hidden,
                   x + (size_t)t * hidden);
        for (uint32_t i = 0; i < 32; i++) {
            const kx_sincos_result sc = kx_sincos((float)tok[t].pos * inv_freq[i]);
            rope[64 * (size_t)t + i] = sc.c;
            rope[64 * (size_t)t + 32 + i] = sc.s;
        }
    }
}

void ref_norm_bf16(uint32_t n, uint32_t hidden, float eps, const float *x, const float *w,
                   uint16_t *y)
{
    for (uint32_t t = 0; t < n; t++) {
        const float *row = x + (size_t)t * hidden;
        const float inv = ref_rms_inverse(row, hidden, eps);
        for (uint32_t i = 0; i < hidden; i++)
            y[(size_t)t * hidden + i] = (uint16_t)kx_bf16_store(row[i] * inv * w[i]);
    }
}

void ref_top8(uint32_t n, uint32_t n_experts, uint32_t n_used, const float *logits, uint32_t *ids,
              float *weights)
{
    for (uint32_t t = 0; t < n; t++) {
        const float *row = logits + (size_t)t * (n_experts + 1);
        uint32_t *id = ids + (size_t)t * n_used;
        float *w = weights + (size_t)t * (n_used + 1);
        float e[32] = {0};
        for (uint32_t r = 0; r < n_used; r++) {
            /* the best of what comes after the one before, in the order (logit, lower id) */
            uint32_t best = UINT32_MAX;
            for (uint32_t i = 0; i < n_experts; i++) {
                const bool after = r == 0 || row[i] < row[id[r - 1]] ||
                                   (row[i] == row[id[r - 1]] && i > id[r - 1]);
                if (after && (best == UINT32_MAX || row[i] > row[best])) best = i;
            }
            id[r] = best;
            e[r] = kx_exp(row[best] - row[id[0]]);
        }
        const float sum = ref_simd_sum(e);
        for (uint32_t r = 0; r < n_used; r++)
            w[r] = e[r] / sum;
        w[n_used] = kx_sigmoid(row[n_experts]);
    }
}

void ref_argmax(uint32_t n, uint32_t n_vocab, uint32_t n_valid, const float *logits, uint32_t *best)
{
    for (uint32_t t = 0; t < n; t++) {
        const float *row = logits + (size_t)t * n_vocab;
        best[t] = 0;
        for (uint32_t i = 1; i < n_valid; i++)
            if (row[i] > row[best[t]]) best[t] = i;
    }
}
