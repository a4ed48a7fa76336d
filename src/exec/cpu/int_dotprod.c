/* int_dotprod.c - 4-bit matrices by activations of 8 or 16 bits: Advanced SIMD with the dot product
 * of bytes (ARMv8.2, every Apple silicon). */
#include "exec/cpu/registry.h"

#include "exec/cpu/vec.h"

#include "exec/cpu/int_128.inc"

#define K(name)    neon_##name
#define INT_TOKENS 6
#include "exec/cpu/vec_int.inc"
#include "exec/cpu/vec_int_one.inc"
