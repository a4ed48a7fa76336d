/* sha_blocks.h - the compression function of SHA-256 by the processor's own instructions. */
#ifndef CALLA_BASE_SHA_BLOCKS_H
#define CALLA_BASE_SHA_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

extern const uint32_t sha256_k[64];

/* h: the eight words of the state; p: n blocks of 64 bytes, at any address. */
typedef void (*sha256_blocks_fn)(uint32_t h[8], const uint8_t *p, size_t n);
void sha256_blocks_shani(uint32_t h[8], const uint8_t *p, size_t n);
void sha256_blocks_armsha(uint32_t h[8], const uint8_t *p, size_t n);

#endif
