/* One token after the other, everything in the order of gdn.h. */
#include "kernels/ref_gdn.h"

#include "kernels/kmath.h"

#define DIM 128u

static float tree(const float *lane, uint32_t n)
{
    float v[32] = {0.0f};
    for (uint32_t i = 0; i < n; i++)
        v[i] = lane[i];
    for (uint32_t d = n / 2; d != 0; d /= 2)
        for (uint32_t i = 0; i < d; i++)
            v[i] = v[i] + v[i + d];
    return v[0];
}

/* Sum over a simdgroup of four neighbours a lane. */
static float dot128(const float *a, const float *b)
{
    float lane[32];
    for (uint32_t l = 0; l < 32; l++) {
        lane[l] = a[4 * l] * b[4 * l];
        for (uint32_t e = 1; e < 4; e++)
            lane[l] = fmaf(a[4 * l + e], b[4 * l + e], lane[l]);
    }
    return tree(lane, 32);
}

static uint32_t state_index(uint32_t row, uint32_t col)
{
    return col / 8 * GDN_TILE_FLOATS + row / 16 * 128 + (row / 4 % 4 * 8 + col % 8) * 4 + row % 4;
}

/* sum over rows of s[row][col] * x[row]: lane p of lpc has rows 4 (lpc j + p) + e, a sum for each
 * e.
 */
static float column_dot(const float *s, uint32_t col, const float *x, uint32_t lpc)
{
    float lane[32];
    for (uint32_t p = 0; p < lpc; p++) {
        float acc[4] = {0};
        for (uint32_t j = 0; j < 32 / lpc; j++)
            for (uint32_t e = 0; e < 4; e++) {
                const uint32_t row = 4 * (lpc * j + p) + e;
                acc[e] = fmaf(s[state_index(row, col)], x[row], acc[e]);
            }
        lane[p] = (acc[0] + acc[1]) + (acc[2] + acc[3]);
    }
    return tree(lane, lpc);
}

typedef struct token {
    float q[DIM], k[DIM], v[DIM]; /* after convolution; q and k normalised */
    float alpha, beta, qk;
} token;

static float update_column(float *s, uint32_t col, const token *t, uint32_t lpc, bool one)
{
    if (one) {
        const float m = column_dot(s, col, t->k, lpc), o = column_dot(s, col, t->q, lpc);
        const float delta = t->beta * fmaf(-t->alpha, m, t->v[col]);
        for (uint32_t r = 0; r < DIM; r++) {
            float *x = &s[state_index(r, col)];
            *x = fmaf(t->k[r], delta, t->alpha * *x);
        }
        return fmaf(t->alpha, o, t->qk * delta);
    }
    for (uint32_t r = 0; r < DIM; r++)
        s[state_index(r, col)] *= t->alpha;
    const float delta = t->beta * (t->v[col] - column_dot(s, col, t->k, lpc));
    for (uint32_t r = 0; r < DIM; r++) {
        float *x = &s[state_index(r, col)];
        *x = fmaf(t->k[r], delta, *x);
    }
    return column_dot(s, col, t->q, lpc);
}

/* Where the input of channel ch lies j positions before token t. */
static float history(const ref_gdn *l, const tok_entry *tok, const float *y, uint32_t pitch,
                     uint32_t t, uint32_t j, uint32_t ch)
{
    const uint32_t channels = (2 * l->k_heads + l->v_heads) * DIM;
    const tok_entry *e = &tok[t];
    if (t >= j && tok[t - j].slot == e->slot) return y[(size_t)(t - j) * pitch + ch];
    if (e->pos < j) return 0.0f;
    return l->ring[((size_t)e->slot * 4 + ((e->pos - j) & 3)) * channels + ch];
}

static void convolve(const ref_gdn *l, const tok_entry *tok, const float *y, uint32_t pitch,
                     uint32_t t, uint32_t ch0, float *out)
{
    const uint32_t channels = (2 * l->k_heads + l->v_heads) * DIM;
    for (uint32_t i = 0; i < DIM; i++) {
        const uint32_t ch = ch0 + i;
        float c = l->conv[ch] * history(l, tok, y, pitch, t, 3, ch);
        for (uint32_t j = 1; j < 4; j++)
            c = fmaf(l->conv[j * channels + ch], history(l, tok, y, pitch, t, 3 - j, ch), c);
        out[i] = kx_silu(c);
    }
}

static void prepare(const ref_gdn *l, const tok_entry *tok, const float *y, uint32_t pitch,
                    uint32_t t, uint32_t head, token *out)
{
    const uint32_t kw = l->k_heads * DIM, vw = l->v_heads * DIM;
    const uint32_t key = head / (l->v_heads / l->k_heads) * DIM;
    convolve(l, tok, y, pitch, t, key, out->q);
    convolve(l, tok, y, pitch, t, kw + key, out->k);
    convolve(l, tok, y, pitch, t, 2 * kw + head * DIM, out->v);
    const float rq = kx_rsqrt(dot128(out->q, out->q) + 1e-6f) * 8.838834764831845e-02f;
    const float rk = kx_rsqrt(dot128(out->k, out->k) + 1e-6f);
    out->qk = dot128(out->q, out->k) * rq * rk;
    for (uint32_t i = 0; i < DIM; i++) {
        out->q[i] *= rq;
        out->k[i] *= rk;
    }
    const float *ba = y + (size_t)t * pitch + 2 * kw + 2 * vw;
    out->beta = kx_sigmoid(ba[head]);
    out->alpha = kx_exp(-l->rate[head] * kx_softplus(ba[l->v_heads + head] + l->dt[head]));
}

static void gated_norm(const ref_gdn *l, const float *z, float *o)
{
    float lane[16];
    for (uint32_t i = 0; i < 16; i++) {
        float half[2];
        for (uint32_t h = 0; h < 2; h++) {
            const float *x = o + 8 * i + 4 * h;
            half[h] = x[0] * x[0];
            for (uint32_t e = 1; e < 4; e++)
                half[h] = fmaf(x[e], x[e], half[h]);
        }
        lane[i] = half[0] + half[1];
    }
    const float scale = kx_rsqrt(fmaf(tree(lane, 16), 1.0f / 128.0f, l->eps));
    for (uint32_t i = 0; i < DIM; i++)
        o[i] = o[i] * scale * l->norm[i] * kx_silu(z[i]);
}

/* Token t, head: the state advances, o [128] is the head's gated output. */
static void head_token(const ref_gdn *l, const tok_entry *tok, const float *y, uint32_t t,
                       uint32_t head, uint32_t lpc, bool one, float *o)
{
    const uint32_t channels = (2 * l->k_heads + l->v_heads) * DIM;
    const uint32_t pitch = channels + l->v_heads * (DIM + 2);
    float *s = l->state + ((size_t)tok[t].slot * l->v_heads + head) * GDN_HEAD_FLOATS;
    token x;
    prepare(l, tok, y, pitch, t, head, &x);
    if (tok[t].pos == 0)
        for (uint32_t i = 0; i < GDN_HEAD_FLOATS; i++)
            s[i] = 0.0f;
    for (uint32_t c = 0; c < DIM; c++)
        o[c] = update_column(s, c, &x, lpc, one);
    gated_norm(l, y + (size_t)t * pitch + channels + head * DIM, o);
}

static void ring_write(const ref_gdn *l, const tok_entry *e, const float *y)
{
    const uint32_t channels = (2 * l->k_heads + l->v_heads) * DIM;
    float *row = l->ring + ((size_t)e->slot * 4 + (e->pos & 3)) * channels;
    for (uint32_t i = 0; i < channels; i++)
        row[i] = y[i];
}

static size_t y_pitch(const ref_gdn *l)
{
    return (size_t)(2 * l->k_heads + 2 * l->v_heads) * DIM + 2 * l->v_heads;
}

void ref_gdn_decode(const ref_gdn *l, uint32_t n, const tok_entry *tok, const float *y, float *o)
{
    for (uint32_t t = 0; t < n; t++) {
        const float *yt = y + t * y_pitch(l);
        for (uint32_t h = 0; h < l->v_heads; h++)
            head_token(l, tok + t, yt, 0, h, 4, true, o + ((size_t)t * l->v_heads + h) * DIM);
        ring_write(l, &tok[t], yt);
    }
}

void ref_gdn_prefill(const ref_gdn *l, uint32_t n, const tok_entry *tok, const float *y,
                     uint32_t lpc, bool one, uint16_t *o)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < l->v_heads; h++) {
            float x[DIM];
            head_token(l, tok, y, t, h, lpc, one, x);
            for (uint32_t i = 0; i < DIM; i++)
                o[((size_t)t * l->v_heads + h) * DIM + i] = (uint16_t)kx_bf16_store(x[i]);
        }
    for (uint32_t t = 0; t < n; t++)
        if (t + 4 >= n || tok[t + 4].slot != tok[t].slot)
            ring_write(l, &tok[t], y + t * y_pitch(l));
}
