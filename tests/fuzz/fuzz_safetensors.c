/* fuzz_safetensors.c - any bytes as a .safetensors file. */
#include <stdlib.h>
#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors *st = NULL;
    calla_error err = {0};
    if (safetensors_parse(&st, "fuzz", data, size, &err) != CALLA_OK) {
        if (st != NULL || err.code == CALLA_OK || err.message[0] == '\0') abort();
        return 0;
    }
    unsigned sum = 0; /* every byte that a tensor claims has to be readable */
    uint64_t total = 0;
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const st_tensor *t = safetensors_at(st, i);
        if (safetensors_find(st, t->name) != t) abort();
        if (t->n_bytes != 0) sum += t->data[0] + (unsigned)t->data[t->n_bytes - 1];
        total += t->n_bytes;
    }
    if (total > size || sum == ~0u) abort();
    safetensors_close(st);
    return 0;
}
