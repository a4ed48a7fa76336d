#include "msl.h"

#include "exec/gpu/device.h"

/* Families without tiles are compiled once, as rung 0. */
#define LIBRARY(name, rung) extern const msl_library msl_library_##name##_##rung;
LIBRARY(basic, 0)
LIBRARY(gemv, 0)
LIBRARY(gdn, 0)
#define LIBRARIES(name) LIBRARY(name, 0) LIBRARY(name, 1) LIBRARY(name, 2) LIBRARY(name, 3)
LIBRARIES(gemm)
LIBRARIES(attn)

static const msl_library *const libraries[METAL_SOURCES][METAL_RUNGS] = {
#define ONE(name)                                                                                  \
    {                                                                                              \
        &msl_library_##name##_0, &msl_library_##name##_0, &msl_library_##name##_0,                 \
            &msl_library_##name##_0                                                                \
    }
#define ALL(name)                                                                                  \
    {                                                                                              \
        &msl_library_##name##_0, &msl_library_##name##_1, &msl_library_##name##_2,                 \
            &msl_library_##name##_3                                                                \
    }
    ONE(basic), ONE(gemv), ALL(gemm), ONE(gdn), ALL(attn)};

int msl_plant;

uint64_t msl_hash(const void *text, size_t bytes)
{
    const uint8_t *p = text;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

const simt_kernel *msl_kernels(metal_rung rung, uint32_t family, uint64_t *hash)
{
    if (rung >= METAL_RUNGS || family >= METAL_SOURCES) return NULL;
    const msl_library *l = libraries[family][rung];
    if (hash != NULL) *hash = msl_hash(l->text, l->bytes);
    return l->kernels;
}

static void missing(const simt_launch *l)
{
    simt_violation(simt_self, "Metal has no kernel %s", l->kernel->name);
}

const simt_kernel *msl_table(metal_rung rung)
{
    static simt_kernel table[METAL_RUNGS][KERNEL_COUNT + 1];
    static const struct {
        uint32_t threads, n_bindings;
        const char *name;
    } rows[KERNEL_COUNT] = {
#define K(name, threads, n_bindings) {threads, n_bindings, #name},
#include "kernels/kernels.inc"
#undef K
    };
    simt_kernel *t = table[rung];
    if (t[0].name != NULL) return t;
    const simt_kernel *next[METAL_SOURCES];
    for (uint32_t f = 0; f < METAL_SOURCES; f++)
        next[f] = msl_kernels(rung, f, NULL);
    for (uint32_t i = 0; i < KERNEL_COUNT; i++) {
        const uint8_t f = metal_source_of[i];
        if (f < METAL_SOURCES)
            t[i] = *next[f]++; /* rows of a family are in the order of kernels.inc */
        else
            t[i] = (simt_kernel){.name = rows[i].name,
                                 .threads = rows[i].threads,
                                 .n_bindings = rows[i].n_bindings,
                                 .fn = missing,
                                 .params = ""};
    }
    return t;
}
