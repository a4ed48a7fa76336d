/* int_i8mm.c - 4-bit matrices by activations of 8 or 16 bits: Advanced SIMD with products of
 * matrices of bytes (ARMv8.6, Apple's processors from the M2 on).
 *
 * smmla multiplies 2 x 8 bytes by 8 x 2 and adds to 2 x 2 sums. Two rows of codes meet the two
 * planes of a token, whose bytes lie together eight by eight, or, with one plane, two tokens. */
#include "exec/cpu/registry.h"

#include "exec/cpu/vec.h"

#include "exec/cpu/int_128.inc"

#define K(name)                  i8mm_##name
#define INT_X_AT(n_planes, p, i) ((n_planes) == 2 ? (i) / 8 * 16 + (p)*8 + (i) % 8 : (i))
#define INT_TILES                "exec/cpu/int_i8mm.inc"
#include "exec/cpu/vec_int.inc"
#include "exec/cpu/vec_int_one.inc"
