/* sha.h - SHA-256 and SHA-1, the names that model hubs give to contents.
 *
 * Does:    digests of bytes that come in pieces, as hexadecimal digits. SHA-1 is there because Git
 *          names small files by it; it is no protection against a forger.
 * Speed:   SHA-256 with the processor's instructions where it has them (about 2 GB/s), else plain
 *          C (about 250 MB/s).
 * Threads: pure; one sha belongs to one thread.
 */
#ifndef CALLA_BASE_SHA_H
#define CALLA_BASE_SHA_H

#include <stddef.h>
#include <stdint.h>

#define SHA_HEX_MAX 65 /* 64 digits and a NUL */

typedef enum sha_kind { SHA_1, SHA_256 } sha_kind;

typedef struct sha {
    sha_kind kind;
    uint32_t h[8];
    uint64_t n_bytes;
    uint8_t block[64]; /* the last n_bytes % 64 bytes */
} sha;

void sha_init(sha *s, sha_kind kind);
void sha_update(sha *s, const void *data, size_t n);
/* 40 or 64 lower-case digits. The sha is used up. */
void sha_final(sha *s, char hex[SHA_HEX_MAX]);

/* For tests and their figures: "plain", "sha-ni" or "armv8"; sha_force_plain(1) until (0) leaves
 * the processor's instructions out. */
const char *sha_variant(void);
void sha_force_plain(int on);

#endif
