/* hash.h - a fast 64-bit checksum.
 *
 * Does:    notices damage: eight lanes of multiply and rotate, near the speed of memory. A change
 * of one aligned 64-bit word is always noticed, others but for one in 2^64. No protection against a
 * forger. The value depends on the byte order of the machine. Threads: pure.
 */
#ifndef CALLA_BASE_HASH_H
#define CALLA_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *data, size_t n, uint64_t seed);

#endif
