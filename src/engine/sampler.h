/* sampler.h - from one row of logits to one token id.
 *
 * Does:       penalties, temperature, top-k, top-p, min-p, one draw (calla_sampling in calla.h says
 *             what each means). temperature 0: the largest logit, lowest id on a tie.
 * Owns:       scratch of sampler_bytes(n_vocab), allocated at creation; nothing later.
 * Invariants: a function of the parameters, the history and the logits alone: own generator
 *             (xoshiro256**), sums in f64 in a fixed order; with top_k up to SAMPLE_K_MAX sums of
 *             integers, weights in units of 2^-25 of the largest, so that a GPU draws the same ids
 *             (op_sample). Ids in `banned` are never returned.
 *             Ids whose weight is below e^-50 of the largest are left out: in a vocabulary of
 *             2^18 all of them together weigh less than 2^-53, the grain of the draw.
 * Errors:     a NaN or +infinity in the row, or nothing left to draw, is CALLA_ERR_INTERNAL.
 * Filters:    the ids that a filter refuses count as if their logit were -infinity, before top-k,
 *             top-p and min-p: the draw is from the softmax over what is allowed. It is asked as
 *             little as possible: with greedy or top-k in falling order until enough are found,
 *             otherwise about every id that is not negligible beside the best allowed one.
 * Threads:    one thread a sampler.
 */
#ifndef CALLA_ENGINE_SAMPLER_H
#define CALLA_ENGINE_SAMPLER_H

#include <stdbool.h>
#include "base/error.h"
#include "kernels/args_basic.h"

typedef struct sampler sampler;

/* Refuses values outside the ranges of calla.h, naming the field. */
calla_status sampling_check(const calla_sampling *p, calla_error *err);

uint64_t sampler_bytes(uint32_t n_vocab);

/* banned [n_banned] is borrowed and must outlive the sampler. */
calla_status sampler_create(sampler **out, uint32_t n_vocab, const int32_t *banned, size_t n_banned,
                            calla_error *err);
void sampler_destroy(sampler *s);

/* Starts a response: seeds the generator, forgets earlier counts. history: the tokens before it
 * (repetition_penalty counts them), each in [0, n_vocab). p must have passed sampling_check. */
void sampler_begin(sampler *s, const calla_sampling *p, const int32_t *history, size_t n_history);

/* logits [n_vocab], untouched. */
calla_status sampler_draw(sampler *s, const float *logits, int32_t *id, calla_error *err);

/* As sampler_draw, among the ids that `allow` allows. */
typedef bool (*sampler_allow_fn)(void *user, int32_t id);
calla_status sampler_draw_filtered(sampler *s, const float *logits, sampler_allow_fn allow,
                                   void *user, int32_t *id, calla_error *err);

/* Adds values[i] to the logit of ids[i], before all else, in every draw until the next begin.
 * Values are finite or -infinity, which forbids. Both are borrowed until then. */
void sampler_set_bias(sampler *s, const int32_t *ids, const float *values, size_t n);

/* Counts a token of the response, for the penalties. */
void sampler_accept(sampler *s, int32_t id);

/* ---- Draws on a GPU (op_sample) ---- */

/* Parameters and generator for the next draw there; slot and n_drawn are 0. False: this response
 * must be drawn here (a bias, or top_k off or above SAMPLE_K_MAX). */
bool sampler_export(const sampler *s, sample_entry *e);

/* counts [n_vocab] as the penalties stand; needed when e->counted. */
void sampler_export_counts(const sampler *s, uint32_t *counts);

/* An id was drawn there: the generator moves on as sampler_draw moves it. sampler_accept follows
 * as ever. */
void sampler_skip(sampler *s);

#endif
