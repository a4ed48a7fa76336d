/* filter_constraint.h - constraints over bytes as the scheduler's filter over tokens.
 *
 * Does:       asks the constraints about the bytes of a token: it may come when one of them allows
 *             it; a constraint that does not allow what came is out. Control tokens never may:
 *             those that the vocabulary marks special, "<|...|>", and the tags of thinking and of
 *             tool responses, which would change what the text means, not continue it.
 * Owns:       copies of the constraints. The tokenizer is borrowed and must outlive the filter.
 * Threads:    the scheduler's worker.
 */
#ifndef CALLA_ENGINE_FILTER_CONSTRAINT_H
#define CALLA_ENGINE_FILTER_CONSTRAINT_H

#include "engine/scheduler.h"
#include "text/constraint.h"

#define FILTER_FORMS_MAX 2u

/* The text has one of the forms [n], of which any may be NULL; out->user is NULL when all are.
 * After a failure there is nothing to destroy. */
calla_status filter_constraint_create(sched_filter *out, constraint *const *forms, size_t n,
                                      const calla_tokenizer *tok, calla_error *err);

#endif
