/* bpe.h - byte-pair merging inside one word.
 *
 * Does:       turns the bytes of a word into ids: single bytes first, then, again and again, the
 *             adjacent pair of lowest rank is replaced by its product, leftmost first on a tie.
 * Owns:       its hash table.
 * Invariants: byte_id[] is complete. Different pairs may have the same product.
 * Cost:       O(n log n) time and 36 bytes of scratch a byte for a word of n bytes.
 * Threads:    immutable once built; a scratch belongs to one thread.
 */
#ifndef CALLA_TEXT_BPE_H
#define CALLA_TEXT_BPE_H

#include "text/tokenizer.h"

typedef struct bpe_merge {
    int32_t left, right, product;
    uint32_t rank;
} bpe_merge;

typedef struct bpe {
    bpe_merge *slots; /* [mask + 1] open addressing; left < 0: empty */
    size_t mask;
    int32_t byte_id[256];
} bpe;

/* Room for n_merges. False when memory ran out. */
bool bpe_init(bpe *b, size_t n_merges);
void bpe_deinit(bpe *b);
/* Adds a merge; false when the pair is there already. At most n_merges of them. */
bool bpe_add(bpe *b, bpe_merge m);

typedef struct bpe_scratch {
    void *symbols, *heap;
    size_t cap; /* longest word there is room for, bytes */
} bpe_scratch;

void bpe_scratch_deinit(bpe_scratch *s);

#define BPE_WORD_MAX (UINT32_MAX / 4u)

/* Appends the ids of a word of n bytes, 1 <= n <= BPE_WORD_MAX. False when memory ran out. */
bool bpe_word(const bpe *b, bpe_scratch *scratch, const char *word, size_t n, id_list *ids);

#endif
