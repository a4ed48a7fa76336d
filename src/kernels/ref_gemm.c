#include "kernels/ref_gemm.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/kmath.h"

uint16_t ref_gemm_weight(const uint32_t *codes, const uint32_t *sb, uint32_t k)
{
    const uint32_t q = codes[k / 8] >> (4 * (k % 8)) & 15u, g = sb[k / 64];
    const float w = fmaf(kx_bf16_load(g & 0xffffu), (float)q, kx_bf16_load(g >> 16));
    return (uint16_t)kx_bf16_store(w);
}

/* Weight k of a row and the magnitude of what it is made of. */
static double weight_of(const uint32_t *codes, const uint32_t *sb, uint32_t k, bool rounded,
                        double *magnitude)
{
    const double q = codes[k / 8] >> (4 * (k % 8)) & 15u;
    const double s = (double)kx_bf16_load(sb[k / 64] & 0xffffu);
    const double b = (double)kx_bf16_load(sb[k / 64] >> 16);
    const double w = rounded ? (double)kx_bf16_load(ref_gemm_weight(codes, sb, k)) : s * q + b;
    *magnitude = rounded ? fabs(w) : fabs(s * q) + fabs(b);
    return w;
}

static void product(uint32_t n, uint32_t rows, uint32_t cols, const uint16_t *x,
                    const uint32_t *rows_of, const uint32_t *codes, const uint32_t *sb,
                    bool rounded, double *sum, double *magnitude)
{
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t *code_row = codes + (uint64_t)r * (cols / 8);
        const uint32_t *sb_row = sb + (uint64_t)r * (cols / 64);
        for (uint32_t t = 0; t < n; t++)
            sum[(uint64_t)t * rows + r] = magnitude[(uint64_t)t * rows + r] = 0;
        for (uint32_t k = 0; k < cols; k++) {
            double m;
            const double w = weight_of(code_row, sb_row, k, rounded, &m);
            for (uint32_t t = 0; t < n; t++) {
                const uint64_t row = rows_of != NULL ? rows_of[t] : t;
                const double v = (double)kx_bf16_load(x[row * cols + k]);
                sum[(uint64_t)t * rows + r] += w * v;
                magnitude[(uint64_t)t * rows + r] += m * fabs(v);
            }
        }
    }
}

void ref_gemm(uint32_t n, uint32_t rows, uint32_t cols, const uint16_t *x, const uint32_t *rows_of,
              const uint32_t *codes, const uint32_t *sb, double *sum, double *magnitude)
{
    product(n, rows, cols, x, rows_of, codes, sb, true, sum, magnitude);
}

void ref_gemm_codes(uint32_t n, uint32_t rows, uint32_t cols, const uint16_t *x,
                    const uint32_t *rows_of, const uint32_t *codes, const uint32_t *sb, double *sum,
                    double *magnitude)
{
    product(n, rows, cols, x, rows_of, codes, sb, false, sum, magnitude);
}

void ref_gmm_sums(uint32_t n, uint32_t cols, const uint16_t *x, float *sums)
{
    for (uint64_t i = 0; i < (uint64_t)n * (cols / 64); i++) {
        float s[8];
        for (uint32_t l = 0; l < 8; l++) {
            s[l] = kx_bf16_load(x[64 * i + 8 * l]);
            for (uint32_t j = 1; j < 8; j++)
                s[l] = s[l] + kx_bf16_load(x[64 * i + 8 * l + j]);
        }
        for (uint32_t m = 4; m != 0; m /= 2)
            for (uint32_t l = 0; l < m; l++)
                s[l] = s[l] + s[l + m];
        sums[i] = s[0];
    }
}

/* rsqrt(mean of x^2 + eps) as gemm_router sums it. */
static float router_inverse(const float *x, uint32_t cols, float eps)
{
    float part[4] = {0};
    for (uint32_t i = 0; i < cols; i++)
        part[i / 8 % 4] = fmaf(x[i], x[i], part[i / 8 % 4]);
    return kx_rsqrt(((part[0] + part[1]) + (part[2] + part[3])) / (float)cols + eps);
}

void ref_gemm_router(const gemm_router_args *a, const float *x, const float *norm,
                     const uint32_t *codes, const uint32_t *sb, float *y)
{
    for (uint32_t t = 0; t < a->n; t++) {
        const float *row = x + (uint64_t)t * a->cols;
        const float inverse = router_inverse(row, a->cols, a->eps);
        for (uint32_t r = 0; r < a->rows; r++) {
            const uint32_t *q = codes + (uint64_t)r * (a->cols / 4);
            const uint32_t *g = sb + (uint64_t)r * (a->cols / 64);
            float s = 0;
            for (uint32_t k = 0; k < a->cols; k++) {
                const float scale = kx_bf16_load(g[k / 64] & 0xffffu);
                const float bias = kx_bf16_load(g[k / 64] >> 16);
                const float w = fmaf(scale, (float)(q[k / 4] >> (8 * (k % 4)) & 255u), bias);
                s = fmaf(w, row[k] * norm[k], s);
            }
            y[(uint64_t)t * a->rows + r] = s * inverse;
        }
    }
}

static void put_tile(uint32_t *map, uint32_t i, uint32_t expert, uint32_t slot, uint32_t rows)
{
    map[4 * i] = expert;
    map[4 * i + 1] = slot;
    map[4 * i + 2] = rows;
    map[4 * i + 3] = 0;
}

/* Cuts the slots of an expert into tiles. */
static void cut(const moe_plan_args *a, uint32_t expert, uint32_t slot, uint32_t c,
                const ref_moe_lists *out)
{
    uint32_t full = a->full;
    if (a->tail == 0 && c != 0) {
        const uint32_t n = (c + full - 1) / full, even = (c + n - 1) / n;
        full = (even + 15) / 16 * 16;
    }
    while (c != 0) {
        const bool is_short = full == 0 || (c < full && c <= a->tail);
        const uint32_t height = is_short ? a->tail : full;
        const uint32_t rows = c < height ? c : height;
        const uint32_t list = is_short ? MOE_MAP_SHORT : MOE_MAP_FULL;
        put_tile(is_short ? out->tails : out->full, out->n_map[list]++, expert, slot, rows);
        slot += rows;
        c -= rows;
    }
}

void ref_moe_plan(const moe_plan_args *a, const uint32_t *ids, const ref_moe_lists *out)
{
    const uint32_t n = a->n * a->n_used, share = (n + 1023) / 1024 * 128;
    uint32_t slot = 0;
    for (uint32_t i = 0; i < 16; i++)
        out->n_map[i] = 0;
    for (uint32_t i = 0; i < 8 * a->n_experts; i++)
        out->counts[i] = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        const uint32_t first = slot;
        for (uint32_t i = 0; i < n; i++) {
            if (ids[i] != e) continue;
            out->counts[8 * e + i / share]++;
            out->slot_token[slot] = i / a->n_used;
            out->slot_of[i] = slot++;
        }
        cut(a, e, first, slot - first, out);
    }
    for (uint32_t t = 0; t < a->n; t++)
        out->slot_token[n + t] = t;
    cut(a, a->n_experts, n, a->n, out);
}

void ref_moe_combine(const moe_combine_args *a, const uint16_t *y, const uint32_t *slot_of,
                     const float *weights, float *x)
{
    const uint32_t u = a->n_used;
    for (uint32_t t = 0; t < a->n; t++) {
        for (uint32_t c = 0; c < a->hidden; c++) {
            float s = 0;
            for (uint32_t i = 0; i <= u; i++) {
                const uint64_t slot = i < u ? slot_of[t * u + i] : a->n * u + t;
                s = fmaf(weights[t * (u + 1) + i], kx_bf16_load(y[slot * a->hidden + c]), s);
            }
            x[(uint64_t)t * a->hidden + c] += s;
        }
    }
}
