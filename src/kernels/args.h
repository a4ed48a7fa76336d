/* args.h - argument structs of all kernels, shared by host and device. */
#ifndef CALLA_KERNELS_ARGS_H
#define CALLA_KERNELS_ARGS_H

#if defined(__METAL_VERSION__)
#define KARGS_SIZE(name, bytes) static_assert(sizeof(name) == (bytes), "size of " #name)
#elif defined(__cplusplus)
#include <stdint.h>
#define KARGS_SIZE(name, bytes) static_assert(sizeof(name) == (bytes), "size of " #name)
#else
#include <stdint.h>
#define KARGS_SIZE(name, bytes) _Static_assert(sizeof(name) == (bytes), "size of " #name)
#endif

/* One token of a batch (binding `tok`, [T]): 16 bytes. */
typedef struct tok_entry {
    uint32_t token;  /* id */
    uint32_t pos;    /* position in its sequence */
    uint32_t slot;   /* recurrent-state slot of its sequence; decode only: TOK_NO_SLOT */
    uint32_t kv_row; /* first key-value row of its sequence: position p is row kv_row + p */
} tok_entry;
KARGS_SIZE(tok_entry, 16);
#define TOK_NO_SLOT 0xffffffffu /* at position 0: the recurrent state is not kept */

/* One segment of a prefill batch (binding `seg`, [S]): 32 bytes. Tokens first .. first + n - 1. */
typedef struct seg_entry {
    uint32_t first, n;
    uint32_t slot, kv_row;
    uint32_t pos; /* of its first token */
    uint32_t reserved[3];
} seg_entry;
KARGS_SIZE(seg_entry, 32);

#endif
