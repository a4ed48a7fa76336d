#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic int64_t fail_after = -1;
static _Atomic uint64_t n_allocs;

/* Counts one allocation; true when the test hook wants it to fail. */
static bool mem_refuse(void)
{
    atomic_fetch_add_explicit(&n_allocs, 1, memory_order_relaxed);
    const int64_t left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    if (left < 0) return false;
    if (left == 0) return true;
    atomic_store_explicit(&fail_after, left - 1, memory_order_relaxed);
    return false;
}

void mem_fail_after(int64_t n)
{
    atomic_store(&fail_after, n);
}

uint64_t mem_count(void)
{
    return atomic_load_explicit(&n_allocs, memory_order_relaxed);
}

void *mem_alloc(size_t n_bytes)
{
    return mem_array(n_bytes, 1);
}

void *mem_array(size_t n, size_t size)
{
    if (mem_refuse()) return NULL;
    if (n == 0 || size == 0) n = size = 1;
    return calloc(n, size);
}

void *mem_resize(void *p, size_t n_bytes)
{
    if (mem_refuse()) return NULL;
    return realloc(p, n_bytes == 0 ? 1 : n_bytes);
}

void mem_free(void *p)
{
    free(p);
}

char *mem_strdup(const char *s)
{
    return mem_memdup(s, strlen(s));
}

char *mem_memdup(const void *p, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *d = mem_alloc(n + 1);
    if (d != NULL && n != 0) memcpy(d, p, n);
    return d;
}

void *mem_alloc_aligned(size_t n_bytes)
{
    void *p = NULL;
    if (mem_refuse() || n_bytes > SIZE_MAX - MEM_ALIGN) return NULL;
    if (n_bytes == 0) n_bytes = 1;
    if (posix_memalign(&p, MEM_ALIGN, n_bytes) != 0) return NULL;
    memset(p, 0, n_bytes);
    return p;
}

void mem_free_aligned(void *p)
{
    free(p);
}

void *mem_alloc_pages(size_t n_bytes)
{
    if (mem_refuse()) return NULL;
    void *p = mmap(NULL, n_bytes == 0 ? 1 : n_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void mem_free_pages(void *p, size_t n_bytes)
{
    if (p != NULL) (void)munmap(p, n_bytes == 0 ? 1 : n_bytes);
}

void mem_small_pages(void *p, size_t n_bytes)
{
#if defined(MADV_NOHUGEPAGE)
    if (p != NULL && n_bytes != 0) (void)madvise(p, n_bytes, MADV_NOHUGEPAGE);
#else
    (void)p;
    (void)n_bytes;
#endif
}

void mem_large_pages(void *p, size_t n_bytes)
{
#if defined(MADV_HUGEPAGE)
    if (p != NULL && n_bytes != 0) (void)madvise(p, n_bytes, MADV_HUGEPAGE);
#else
    (void)p;
    (void)n_bytes;
#endif
}

/* Makes room for n more bytes and the NUL. */
static bool strbuf_reserve(strbuf *b, size_t n)
{
    const size_t max = b->max == 0 ? SIZE_MAX - 1 : b->max;
    if (b->failed) return false;
    if (n > max - b->len) {
        b->failed = true;
        return false;
    }
    const size_t need = b->len + n + 1;
    if (need <= b->cap) return true;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *data = mem_resize(b->data, cap);
    if (data == NULL) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

bool strbuf_append(strbuf *b, const void *p, size_t n)
{
    if (!strbuf_reserve(b, n)) return false;
    if (n != 0) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
    return true;
}

bool strbuf_puts(strbuf *b, const char *s)
{
    return strbuf_append(b, s, strlen(s));
}

bool strbuf_putc(strbuf *b, char c)
{
    return strbuf_append(b, &c, 1);
}

bool strbuf_printf(strbuf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !strbuf_reserve(b, (size_t)n)) {
        b->failed = true;
        return false;
    }
    va_start(ap, fmt);
    (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return true;
}

void strbuf_clear(strbuf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data != NULL) b->data[0] = '\0';
}

void strbuf_deinit(strbuf *b)
{
    mem_free(b->data);
    const size_t max = b->max;
    memset(b, 0, sizeof *b);
    b->max = max;
}

#define ARENA_BLOCK_BYTES 65536u

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    char pad[8];
};

_Static_assert(sizeof(struct arena_block) % 16 == 0, "arena payload keeps 16-byte alignment");

void *arena_alloc(arena *a, size_t n_bytes)
{
    const size_t max = a->max == 0 ? SIZE_MAX / 2 : a->max;
    if (n_bytes > max || n_bytes > SIZE_MAX - 15) return NULL;
    const size_t n = (n_bytes + 15) & ~(size_t)15;
    if (n > max - a->used) return NULL;
    struct arena_block *blk = a->head;
    if (blk == NULL || n > blk->cap - blk->used) {
        const size_t cap = n > ARENA_BLOCK_BYTES ? n : ARENA_BLOCK_BYTES;
        blk = mem_alloc(sizeof *blk + cap);
        if (blk == NULL) return NULL;
        blk->cap = cap;
        blk->next = a->head;
        a->head = blk;
    }
    void *p = (char *)(blk + 1) + blk->used;
    blk->used += n;
    a->used += n;
    return p;
}

char *arena_memdup(arena *a, const void *p, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *d = arena_alloc(a, n + 1);
    if (d != NULL && n != 0) memcpy(d, p, n);
    return d;
}

void arena_deinit(arena *a)
{
    while (a->head != NULL) {
        struct arena_block *next = a->head->next;
        mem_free(a->head);
        a->head = next;
    }
    a->used = 0;
}
