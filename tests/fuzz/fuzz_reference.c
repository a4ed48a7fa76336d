/* fuzz_reference.c - any bytes as a reference file of calla verify. */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "format/reference.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reference r;
    calla_error err = {0};
    if (reference_parse(&r, "fuzz", data, size, &err) != CALLA_OK) {
        if (r.file != NULL || err.code == CALLA_OK || err.message[0] == '\0') abort();
        return 0;
    }
    /* What was accepted is readable, in range and finite. */
    float *row = mem_array((size_t)r.n_vocab + r.n_width, sizeof *row);
    uint32_t n_seen = 0;
    for (uint32_t s = 0; s < r.n_seqs; s++) {
        uint32_t first, n;
        reference_seq(&r, s, &first, &n);
        if (n == 0 || first != n_seen) abort();
        n_seen += n;
    }
    if (n_seen != r.n_tokens) abort();
    for (uint32_t i = 0; i < r.n_tokens && row != NULL; i++) {
        if ((uint32_t)reference_token(&r, i) >= r.n_vocab) abort();
        if (r.k == 0) {
            reference_row(&r, i, row);
            if (!isfinite(row[r.n_vocab - 1])) abort();
            continue;
        }
        if (!isfinite(reference_log_sum(&r, i)) || !isfinite(reference_target_logit(&r, i)))
            abort();
        for (uint32_t j = 0; j < r.k; j++)
            if ((uint32_t)reference_top_id(&r, i, j) >= r.n_vocab ||
                (j > 0 && reference_top_logit(&r, i, j) > reference_top_logit(&r, i, j - 1)))
                abort();
    }
    for (uint32_t p = 0; p < r.n_points && row != NULL; p++) {
        reference_point(&r, p, r.n_traced - 1, row);
        if (!isfinite(row[r.n_width - 1])) abort();
    }
    mem_free(row);
    reference_close(&r);
    return 0;
}
