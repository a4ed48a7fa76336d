/* api_replay.h - remembers the tokens of answers, for when a client sends them back.
 *
 * Does:       keeps, for the latest answers, the ids that the model generated, under a key made of
 *             the whole conversation before the answer and of the answer as clients see it. A
 *             client that echoes the answer, with its reasoning or without, gets a prompt with the
 *             very same tokens: thinking that the client dropped is there again, the prefix cache
 *             hits, and the model sees its own spelling.
 * Key:        role, content (trimmed) and tool calls of every message, and the tools. Reasoning is
 *             no part of it, so that dropping reasoning does not change the key of later turns.
 *             Numbers count by value and members of objects in any order, since clients rewrite
 *             JSON. A keyed 128-bit hash: nobody can look up a conversation he does not know.
 * Owns:       the ids, at most `bytes` in all; the least recently used answers go first.
 * Threads:    any.
 */
#ifndef CALLA_SERVER_API_REPLAY_H
#define CALLA_SERVER_API_REPLAY_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef struct replay replay;

typedef struct replay_key {
    uint64_t half[2];
} replay_key;

calla_status replay_create(replay **out, uint64_t max_bytes, calla_error *err);
void replay_destroy(replay *r);

/* The key of a conversation without messages; then of one with a message more. */
replay_key replay_begin(const replay *r, const json_value *tools);
replay_key replay_next(const replay *r, replay_key before, const json_value *message);

/* The answer whose conversation, with it, has this key. reasoning: of the answer. thinking: its
 * generation began inside the block of thinking. Forgotten at once when memory is short. */
void replay_put(replay *r, replay_key key, const char *reasoning, size_t n_reasoning,
                const int32_t *ids, size_t n_ids, bool thinking);

/* Appends the ids to *out. message: the answer as echoed; reasoning that differs from what was
 * generated is no match, no reasoning is one. */
bool replay_get(replay *r, replay_key key, const json_value *message, id_list *out, bool *thinking);

#endif
