/* inspect_schedule.h - what a GPU would be asked to do, and how long it would take,
 * for `calla inspect --schedule` and `--predict`. */
#ifndef CALLA_CLI_INSPECT_SCHEDULE_H
#define CALLA_CLI_INSPECT_SCHEDULE_H

#include "base/mem.h"
#include "exec/predict.h"

/* The row of the table of chips; NULL: there is none. */
const exec_chip *inspect_chip(const char *id);

/* Appends a table (or, json, the members "decode" and "prefill" of an object) of the dispatches of
 * one decode step and one prefill chunk at n_ctx tokens of context; chip NULL: an H200. */
calla_status inspect_schedule(strbuf *b, const model_shape *shape, const exec_chip *chip,
                              uint32_t n_ctx, bool json, calla_error *err);

/* Appends the predicted speed of all chips, or of one, at 256 to 131,072 tokens. */
calla_status inspect_predict(strbuf *b, const model_shape *shape, const exec_chip *only, bool json,
                             calla_error *err);

#endif
