/* inspect_schedule.h - what a GPU would be asked to do, for `calla inspect --schedule`. */
#ifndef CALLA_CLI_INSPECT_SCHEDULE_H
#define CALLA_CLI_INSPECT_SCHEDULE_H

#include "base/mem.h"
#include "model/shape.h"

/* Appends a table (or, json, the members "decode" and "prefill" of an object) of the dispatches of
 * one decode step and one prefill chunk at n_ctx tokens of context. */
calla_status inspect_schedule(strbuf *b, const model_shape *shape, uint32_t n_ctx, bool json,
                              calla_error *err);

#endif
