/* profile.h - the time of each kernel of a step, as a table. */
#ifndef CALLA_BENCH_PROFILE_H
#define CALLA_BENCH_PROFILE_H

#include "exec/executor.h"

/* A decode step of n_tokens sequences at n_ctx, or a prefill chunk of n_tokens that ends there:
 * timed (executor.h, profile), equal kernels of one label added up, printed. */
calla_status profile_step(executor *ex, bool prefill, uint32_t n_tokens, uint32_t n_ctx,
                          calla_error *err);

#endif
