/* limits.h - what this machine can do at most, measured in the run whose results it is held
 * against.
 *
 * CPU:     reading by all threads, of memory as large as the weights (at most 1 GiB; a small model
 *          may lie in the caches, and then so does this); f32 fused multiply-adds from registers;
 *          products by the precision: f32 for exact, bytes for int8, and for int16, whose inputs
 * are two planes of bytes, half of that. GPU:     reading and copying (check/ceilings.h), and the
 * largest product of the program's own 4-bit kernels: what its tiles reach where nothing else is in
 * the way, not what the hardware's data sheet says. Errors:  what cannot be measured (no memory)
 * stays 0.
 */
#ifndef CALLA_BENCH_LIMITS_H
#define CALLA_BENCH_LIMITS_H

#include "bench/record.h"

void limits_measure(bench_limits *out, calla_engine *e);

#endif
