/* mem.h - the only place that calls malloc.
 *
 * Does:    zeroed allocation with overflow check, aligned blocks, a growable byte string with a
 *          maximum, an arena for parse trees.
 * Errors:  NULL / false on exhaustion; the object stays valid.
 * Testing: mem_fail_after(n) lets the n-th following allocation and all after it fail (tests only).
 */
#ifndef CALLA_BASE_MEM_H
#define CALLA_BASE_MEM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/attrs.h"

#define MEM_ALIGN 64u

void *mem_alloc(size_t n_bytes);           /* zeroed, malloc alignment */
void *mem_array(size_t n, size_t size);    /* zeroed; NULL when n * size overflows */
void *mem_resize(void *p, size_t n_bytes); /* realloc; old block stays on failure */
void mem_free(void *p);                    /* NULL is fine */
char *mem_strdup(const char *s);
char *mem_memdup(const void *p, size_t n); /* n bytes plus a NUL */
void *mem_alloc_aligned(size_t n_bytes);   /* MEM_ALIGN bytes, zeroed; mem_free_aligned */
void mem_free_aligned(void *p);
void *mem_alloc_pages(size_t n_bytes); /* page-aligned, zero, not yet resident */
void mem_free_pages(void *p, size_t n_bytes);
/* Asks for such a block to become resident in small steps as it is written, whatever the system
 * prefers: for arrays of which mostly the beginnings of many rows are used. */
void mem_small_pages(void *p, size_t n_bytes);
/* Asks for the opposite: pages of 2 MB where the system has them, before it is first written. */
void mem_large_pages(void *p, size_t n_bytes);
void mem_fail_after(int64_t n); /* negative: never fail (default) */
uint64_t mem_count(void);       /* allocations so far, all threads */

/* Growable byte string, always NUL-terminated once data != NULL. Zero-initialise, then set `max`
 * (0 = SIZE_MAX). The first failure sets `failed` and later appends do nothing: check once. */
typedef struct strbuf {
    char *data;
    size_t len, cap, max;
    bool failed;
} strbuf;

bool strbuf_append(strbuf *b, const void *p, size_t n);
bool strbuf_puts(strbuf *b, const char *s);
bool strbuf_putc(strbuf *b, char c);
bool strbuf_printf(strbuf *b, const char *fmt, ...) ATTR_PRINTF(2, 3);
void strbuf_clear(strbuf *b);  /* len = 0, keeps memory and max */
void strbuf_deinit(strbuf *b); /* frees; usable again */

/* Bump allocator; all blocks die together. Zero-initialise. `max` as in strbuf. */
typedef struct arena {
    struct arena_block *head;
    size_t used, max;
} arena;

void *arena_alloc(arena *a, size_t n_bytes);           /* zeroed, 16-byte aligned */
char *arena_memdup(arena *a, const void *p, size_t n); /* n bytes plus a NUL */
void arena_deinit(arena *a);

#endif
