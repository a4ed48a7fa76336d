#include "format/affine.h"

#include <math.h>

/* The sum that leaves no bits for a fraction: rounds 0 .. 2^22 to the nearest, ties to even. */
static inline uint8_t round_code(float x)
{
    return (uint8_t)(int)((x + 0x1.8p23f) - 0x1.8p23f);
}

affine affine_fit(const float w[AFFINE_GROUP], uint32_t bits)
{
    const float steps = (float)((1u << bits) - 1);
    float lo = w[0], hi = 0.0f;
    for (uint32_t i = 0; i < AFFINE_GROUP; i++) {
        lo = w[i] < lo ? w[i] : lo;
        hi = w[i] > hi ? w[i] : hi;
    }
    /* The reciprocal, as MLX's compiled kernels have it: a division rounds otherwise. */
    float scale = (hi - lo) * (1.0f / steps);
    if (scale < 1e-7f) scale = 1e-7f;
    float edge = lo;
    if (!(fabsf(lo) > fabsf(hi))) {
        edge = hi;
        scale = -scale;
    }
    const float q0 = rintf(edge / scale);
    return q0 != 0.0f ? (affine){edge / q0, edge} : (affine){scale, 0.0f};
}

void affine_codes(const float w[AFFINE_GROUP], affine a, uint32_t bits, uint8_t *out)
{
    const float steps = (float)((1u << bits) - 1);
    uint8_t q[AFFINE_GROUP];
    for (uint32_t i = 0; i < AFFINE_GROUP; i++) {
        float x = (w[i] - a.bias) / a.scale;
        x = x > 0.0f ? x : 0.0f;
        q[i] = round_code(x < steps ? x : steps);
    }
    for (uint32_t i = 0; i < AFFINE_GROUP * bits / 8; i++)
        out[i] = bits == 8 ? q[i] : (uint8_t)(q[2 * i] | q[2 * i + 1] << 4);
}
