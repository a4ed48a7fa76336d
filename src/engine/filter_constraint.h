/* filter_constraint.h - a constraint over bytes as the scheduler's filter over tokens.
 *
 * Does:       asks the constraint about the bytes of a token. Control tokens are never allowed
 *             (marked special in the vocabulary, and <think>, </think>), nor tokens without bytes.
 * Owns:       the constraint, once created. The tokenizer is borrowed and must outlive the filter.
 * Threads:    the scheduler's worker.
 */
#ifndef CALLA_ENGINE_FILTER_CONSTRAINT_H
#define CALLA_ENGINE_FILTER_CONSTRAINT_H

#include "engine/scheduler.h"
#include "text/constraint.h"

/* Fills *out. On failure the constraint stays the caller's. */
calla_status filter_constraint_create(sched_filter *out, constraint *c, const calla_tokenizer *tok,
                                      calla_error *err);

#endif
