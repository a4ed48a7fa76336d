/* affine.h - MLX's affine quantisation of a group of 64 weights: w = scale q + bias.
 *
 * Does:       chooses scale and bias as MLX does (docs/MODEL.md section 4), and the codes.
 * Invariants: one extreme weight of a group is kept exactly but for the rounding of bias. Codes are
 *             chosen with the f32 scale and bias; the file has both rounded to bf16. The scale is
 *             negative unless the smallest weight is the extreme one.
 */
#ifndef CALLA_FORMAT_AFFINE_H
#define CALLA_FORMAT_AFFINE_H

#include <stdint.h>

#define AFFINE_GROUP 64u

typedef struct affine {
    float scale, bias;
} affine;

/* bits: 4 or 8. w: finite. */
affine affine_fit(const float w[AFFINE_GROUP], uint32_t bits);

/* The group's codes, 32 (4-bit) or 64 (8-bit) bytes, the first code in the lowest bits. */
void affine_codes(const float w[AFFINE_GROUP], affine a, uint32_t bits, uint8_t *out);

#endif
