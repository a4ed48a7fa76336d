/* chip.h - what is known of a chip by its name, and what may be expected of it.
 *
 * Does:       a table of Apple's chips (peaks of the largest variant of each), which rung of matrix
 *             tiles a chip and a system can have, and how a program is divided into command buffers
 *             of bounded time.
 * Threads:    pure.
 */
#ifndef CALLA_EXEC_GPU_METAL_CHIP_H
#define CALLA_EXEC_GPU_METAL_CHIP_H

#include "exec/gpu/device.h"
#include "exec/gpu/metal/source.h"

typedef struct metal_chip {
    const char *name;    /* "Apple M1 Max" */
    uint32_t generation; /* M1: 13, M2: 14, ... as in the architecture's name */
    uint32_t n_cores;
    double bytes_s; /* peak of the memory */
    double flops_s; /* peak of f32, an fma is two */
} metal_chip;

/* By the device's name; another of the architecture's generation ("applegpu_g13s", may be empty)
 * when the name is unknown, the smallest of its kind; never NULL. */
const metal_chip *metal_chip_find(const char *name, const char *architecture);
/* The generation by the architecture's name, 0: unknown. *phone: one of a phone's chips. */
uint32_t metal_generation(const char *architecture, bool *phone);

typedef struct metal_os {
    uint32_t major, minor; /* 26.4 */
} metal_os;

/* The best rung that a chip and a system can have; whether it works is for the self-check. */
metal_rung metal_best_rung(uint32_t generation, bool phone, metal_os os);
const char *metal_rung_text(metal_rung r); /* "tensor 16x32x16" */
const char *metal_rung_name(metal_rung r); /* "tensor": CALLA_METAL_RUNG */
bool metal_rung_parse(const char *name, metal_rung *r);

/* ---- Command buffers ---- */

#define METAL_PART_SECONDS 0.2 /* aimed at; Metal's watchdog has seconds, a display less */

/* What a chip does at least: a part of its peaks. */
typedef struct metal_rates {
    double bytes_s, flops_s;
    double level_s; /* a level without work */
} metal_rates;

metal_rates metal_rates_of(const metal_chip *c, metal_rung rung);
double metal_seconds(const metal_rates *r, const gpu_dispatch *d);

/* Puts the dispatches into the order of their levels (order[n]) and cuts between levels, so that
 * no part has more than `budget` seconds unless it is one level: part i is order[first[i]] up to
 * first[i + 1]. first: [n + 1]. Returns the number of parts, 0 for no dispatches. */
uint32_t metal_split(const gpu_recording *r, const metal_rates *rates, double budget,
                     uint32_t *order, uint32_t *first);

#endif
