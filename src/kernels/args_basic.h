/* args_basic.h - arguments of the kernels in basic.h. */
#ifndef CALLA_KERNELS_ARGS_BASIC_H
#define CALLA_KERNELS_ARGS_BASIC_H

#include "kernels/args.h"

typedef struct basic_embed_args {
    uint32_t hidden; /* % 64 == 0 */
} basic_embed_args;
KARGS_SIZE(basic_embed_args, 4);

typedef struct basic_norm_args {
    uint32_t n; /* width of a row, % 4 == 0 */
    float eps;
} basic_norm_args;
KARGS_SIZE(basic_norm_args, 8);

typedef struct basic_top8_args {
    uint32_t n_tokens, n_experts, n_used;
} basic_top8_args;
KARGS_SIZE(basic_top8_args, 12);

#define ARGMAX_BLOCK 4096u /* logits a group of basic_argmax_part */
typedef struct basic_argmax_args {
    uint32_t n_vocab; /* logits in a row, % 4 == 0 */
    uint32_t n_valid; /* that take part */
    uint32_t n_blocks;
} basic_argmax_args;
KARGS_SIZE(basic_argmax_args, 12);

/* ---- Sampling ---- */

#define SAMPLE_K_MAX     64u
#define SAMPLE_BLOCK     4096u /* logits a group of basic_sample_part */
#define SAMPLE_VOCAB_MAX (SAMPLE_BLOCK * 64u)
#define SAMPLE_TOUCHED   0x80000000u /* in a count: the id counts for repetition */
#define SAMPLE_BAD       0xffffffffu /* instead of an id: a NaN, an infinity, or nothing to draw */

#define SAMPLE_STOPS_MAX 16u

/* One sequence's sampling (binding `samp`, [T]): 160 bytes. The generator's state advances with
 * every draw that is not greedy. A stop id in the token table would be computed by a step that
 * nobody wants: the table then names a parking place, at position 0: row park_row, which no other
 * sequence has, and slot park_slot, which may be TOK_NO_SLOT. */
typedef struct sample_entry {
    uint32_t top_k;   /* 1 .. SAMPLE_K_MAX; 1 when greedy */
    uint32_t greedy;  /* no draw */
    uint32_t counted; /* penalties are on: counts of row `slot` are used and advanced */
    uint32_t slot;
    uint32_t n_drawn;                      /* ids written to the ring so far */
    float by;                              /* 1 / temperature */
    float top_p, min_p;                    /* 0: off */
    float presence, frequency, repetition; /* 0, 0, 1: off */
    uint32_t n_stops;
    uint32_t rng[8]; /* xoshiro256**, low words first */
    uint32_t park_slot, park_row;
    uint32_t reserved[2];
    uint32_t stops[SAMPLE_STOPS_MAX];
} sample_entry;
#define SAMPLE_ENTRY_WORDS 40u
KARGS_SIZE(sample_entry, 4 * SAMPLE_ENTRY_WORDS);

typedef struct basic_sample_args {
    uint32_t n_vocab; /* logits in a row, % 4 == 0, <= SAMPLE_VOCAB_MAX */
    uint32_t n_blocks;
    uint32_t ring_len; /* ids of a sequence in the ring */
    uint32_t advance;  /* the token table takes the id */
} basic_sample_args;
KARGS_SIZE(basic_sample_args, 16);

#endif
