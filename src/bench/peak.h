/* peak.h - what this machine can do, measured in the same run as what we do with it.
 *
 * Threads: uses all threads of the given pool; nothing else should run.
 */
#ifndef CALLA_BENCH_PEAK_H
#define CALLA_BENCH_PEAK_H

#include "base/pool.h"

/* Bytes per second that all threads of p together read from [data, data + n), best of n_reps, with
 * the vectors of `variant` and several prefetch distances. */
double peak_read_bandwidth(pool *p, const uint8_t *data, uint64_t n, int n_reps,
                           const char *variant);

/* f32 operations per second (an FMA counts two) of all threads together, from registers, with the
 * vectors of kernel variant `variant` ("avx512", "avx2", "neon", else what the compiler makes of
 * C).
 */
double peak_fma(pool *p, const char *variant);

/* Products of bytes with 32-bit sums, likewise, by the instructions that the variant's kernels use
 * (a multiply-add counts two); 0 where they have none. */
double peak_int8(pool *p, const char *variant);

/* One thread: reads [at, at + n), n % 256 == 0, `ahead` bytes prefetched; the exclusive or. */
uint64_t peak_read_generic(const uint8_t *at, uint64_t n, uint64_t ahead);
uint64_t peak_read_avx512(const uint8_t *at, uint64_t n, uint64_t ahead);
uint64_t peak_read_avx2(const uint8_t *at, uint64_t n, uint64_t ahead);
uint64_t peak_read_neon(const uint8_t *at, uint64_t n, uint64_t ahead);

/* One thread: n steps of independent sums; returns the operations done. */
double peak_fma_avx512(uint64_t n, float *sink);
double peak_fma_avx2(uint64_t n, float *sink);
double peak_fma_neon(uint64_t n, float *sink);
double peak_int8_avx512vnni(uint64_t n, float *sink);
double peak_int8_avx2(uint64_t n, float *sink);
double peak_int8_avxvnni(uint64_t n, float *sink);
double peak_int8_dotprod(uint64_t n, float *sink);
double peak_int8_i8mm(uint64_t n, float *sink);

#endif
