/* segment.h - what every executor refuses of a call, in the same words.
 *
 * Threads: pure.
 * Errors:  CALLA_ERR_ARGUMENT for a batch that is empty or too large and for a token that is none,
 *          CALLA_ERR_FULL for a sequence without room.
 */
#ifndef CALLA_EXEC_SEGMENT_H
#define CALLA_EXEC_SEGMENT_H

#include "exec/executor.h"

calla_status exec_check_token(int32_t token, uint32_t n_vocab, calla_error *err);
/* n tokens more in a sequence of n_used that can hold n_ctx. */
calla_status exec_check_room(uint32_t n, uint32_t n_used, uint32_t n_ctx, calla_error *err);
/* Segment i of a call in which n_before tokens precede it, of at most chunk; the sequence as above.
 */
calla_status exec_check_segment(const exec_segment *seg, uint32_t i, uint32_t n_before,
                                uint32_t chunk, uint32_t n_used, uint32_t n_ctx, uint32_t n_vocab,
                                calla_error *err);

#endif
