/* api_blocks.h - the events of one choice as a row of blocks: reasoning, text, call.
 *
 * Does:    for the APIs whose answers are lists of items (messages, responses): opens a block when
 *          text of its kind begins, closes it when another begins or the answer ends, and keeps its
 *          text. Whole answers are made of the same calls, so that they equal the streamed ones.
 * Threads: under the job's lock.
 */
#ifndef CALLA_SERVER_API_BLOCKS_H
#define CALLA_SERVER_API_BLOCKS_H

#include "server/api_gen.h"

typedef enum block_kind { BLOCK_NONE, BLOCK_REASONING, BLOCK_TEXT, BLOCK_CALL } block_kind;

typedef struct block {
    block_kind kind;
    uint32_t index;         /* of the block in the answer */
    strbuf text;            /* so far; a call's arguments */
    strbuf name;            /* of the call's function */
    char id[RANDOM_ID_MAX]; /* of the item: rs_, msg_, fc_ */
    const char *call_id;
    bool custom;         /* a call whose text is its input, not arguments */
    const char *closing; /* at close: what makes the arguments of a call that was cut off JSON */
    size_t n_closing;
    bool complete; /* at close: not cut off */
} block;

typedef struct block_hooks {
    void (*open)(gen_job *job, const block *b);
    void (*delta)(gen_job *job, const block *b, const char *s, size_t n);
    void (*close)(gen_job *job, const block *b);
} block_hooks;

typedef struct blocks {
    block now;
    uint32_t n; /* opened so far */
} blocks;

/* All events but GEN_BEGIN; GEN_END closes what is open. */
void blocks_event(blocks *s, gen_job *job, const gen_choice *c, const gen_event *ev,
                  const block_hooks *hooks);
void blocks_deinit(blocks *s);

#endif
