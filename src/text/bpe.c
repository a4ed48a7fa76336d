#include "text/bpe.h"

#include <string.h>

#define NO_RANK UINT32_MAX

static size_t slot_of(const bpe *b, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    const uint64_t h = (key ^ key >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h ^ h >> 32) & b->mask;
}

bool bpe_init(bpe *b, size_t n_merges)
{
    size_t n = 16;
    while (n < n_merges * 2)
        n *= 2;
    b->slots = mem_array(n, sizeof *b->slots);
    if (b->slots == NULL) return false;
    b->mask = n - 1;
    for (size_t i = 0; i < n; i++)
        b->slots[i].left = -1;
    return true;
}

void bpe_deinit(bpe *b)
{
    mem_free(b->slots);
    b->slots = NULL;
}

/* The merge of a pair, or the empty slot where it would be. */
static bpe_merge *find(const bpe *b, int32_t left, int32_t right)
{
    size_t i = slot_of(b, left, right);
    while (b->slots[i].left >= 0 && (b->slots[i].left != left || b->slots[i].right != right))
        i = (i + 1) & b->mask;
    return &b->slots[i];
}

bool bpe_add(bpe *b, bpe_merge m)
{
    bpe_merge *slot = find(b, m.left, m.right);
    if (slot->left >= 0) return false;
    *slot = m;
    return true;
}

static const bpe_merge *lookup(const bpe *b, int32_t left, int32_t right)
{
    const bpe_merge *m = find(b, left, right);
    return m->left >= 0 ? m : NULL;
}

/* ---- Short words: look at every pair again and again ---- */

#define SHORT_MAX 24u

typedef struct short_symbol {
    int32_t id, product; /* product: of the pair with the next symbol */
    uint32_t rank;       /* of that pair, or NO_RANK */
} short_symbol;

static void rate(const bpe *b, short_symbol *s, size_t i, size_t n)
{
    const bpe_merge *m = i + 1 < n ? lookup(b, s[i].id, s[i + 1].id) : NULL;
    s[i].rank = m != NULL ? m->rank : NO_RANK;
    s[i].product = m != NULL ? m->product : -1;
}

static bool short_word(const bpe *b, const char *word, size_t n, id_list *ids)
{
    short_symbol s[SHORT_MAX];
    for (size_t i = 0; i < n; i++)
        s[i].id = b->byte_id[(uint8_t)word[i]];
    for (size_t i = 0; i < n; i++)
        rate(b, s, i, n);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank) best = i;
        if (s[best].rank == NO_RANK) break;
        s[best].id = s[best].product;
        n--;
        memmove(s + best + 1, s + best + 2, (n - best - 1) * sizeof *s);
        rate(b, s, best, n);
        if (best > 0) rate(b, s, best - 1, n);
    }
    for (size_t i = 0; i < n; i++)
        if (!id_list_push(ids, s[i].id)) return false;
    return true;
}

/* ---- Long words: a linked list of symbols and a heap of pairs ----
 *
 * A heap entry is rank << 32 | position of the left symbol, so that the smallest is the next to
 * merge. Entries are never removed when a merge changes their pair; they are stale then, and told
 * by the rank: it belongs to one pair only, and a pair that has changed never becomes the same pair
 * again, as symbols only grow. */

typedef struct symbol {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t prev, next;
} symbol;

#define NONE UINT32_MAX

/* Four children a node: half the depth, and a node's children share a cache line or two. */
static void sift_down(uint64_t *h, size_t n, size_t i)
{
    const uint64_t p = h[i];
    for (size_t kid = 4 * i + 1; kid < n; kid = 4 * i + 1) {
        const size_t end = n - kid < 4 ? n : kid + 4;
        size_t least = kid;
        for (size_t k = kid + 1; k < end; k++)
            if (h[k] < h[least]) least = k;
        if (h[least] >= p) break;
        h[i] = h[least];
        i = least;
    }
    h[i] = p;
}

static void sift_up(uint64_t *h, size_t i)
{
    const uint64_t p = h[i];
    while (i > 0 && p < h[(i - 1) / 4]) {
        h[i] = h[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    h[i] = p;
}

/* Every merge removes a symbol and adds at most two pairs: 3n entries are enough. */
static bool reserve(bpe_scratch *x, size_t n)
{
    if (x->cap >= n) return true;
    void *symbols = mem_resize(x->symbols, n * sizeof(symbol));
    if (symbols == NULL) return false;
    x->symbols = symbols;
    void *heap = mem_resize(x->heap, 3 * n * sizeof(uint64_t));
    if (heap == NULL) return false;
    x->heap = heap;
    x->cap = n;
    return true;
}

static void heap_push(uint64_t *h, size_t *n, const bpe *b, const symbol *s, uint32_t at)
{
    const bpe_merge *m = lookup(b, s[at].id, s[s[at].next].id);
    if (m == NULL) return;
    h[*n] = (uint64_t)m->rank << 32 | at;
    sift_up(h, (*n)++);
}

static void merge_all(const bpe *b, symbol *s, uint64_t *h, size_t n_heap)
{
    while (n_heap > 0) {
        const uint32_t rank = (uint32_t)(h[0] >> 32), at = (uint32_t)h[0];
        h[0] = h[--n_heap];
        if (n_heap > 1) sift_down(h, n_heap, 0);
        symbol *left = &s[at];
        if (left->id < 0 || left->next == NONE) continue;
        symbol *right = &s[left->next];
        const bpe_merge *m = lookup(b, left->id, right->id);
        if (m == NULL || m->rank != rank) continue;
        left->id = m->product;
        left->next = right->next;
        right->id = -1;
        if (left->next != NONE) {
            s[left->next].prev = at;
            heap_push(h, &n_heap, b, s, at);
        }
        if (left->prev != NONE) heap_push(h, &n_heap, b, s, left->prev);
    }
}

static bool long_word(const bpe *b, bpe_scratch *x, const char *word, size_t n, id_list *ids)
{
    if (!reserve(x, n)) return false;
    symbol *s = x->symbols;
    uint64_t *h = x->heap;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        s[i] = (symbol){b->byte_id[(uint8_t)word[i]], i - 1, i + 1}; /* 0 - 1 is NONE */
    s[n - 1].next = NONE;
    for (uint32_t i = 0; i + 1 < n; i++) {
        const bpe_merge *m = lookup(b, s[i].id, s[i + 1].id);
        if (m != NULL) h[n_heap++] = (uint64_t)m->rank << 32 | i;
    }
    for (size_t i = (n_heap + 2) / 4; i-- > 0;)
        sift_down(h, n_heap, i);
    merge_all(b, s, h, n_heap);
    for (uint32_t i = 0; i != NONE; i = s[i].next)
        if (!id_list_push(ids, s[i].id)) return false;
    return true;
}

bool bpe_word(const bpe *b, bpe_scratch *scratch, const char *word, size_t n, id_list *ids)
{
    return n <= SHORT_MAX ? short_word(b, word, n, ids) : long_word(b, scratch, word, n, ids);
}

void bpe_scratch_deinit(bpe_scratch *s)
{
    mem_free(s->symbols);
    mem_free(s->heap);
    memset(s, 0, sizeof *s);
}
