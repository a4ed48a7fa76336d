#include "exec/gpu/metal/chip.h"

#include <string.h>

/* Public figures: cores, GB/s, TFLOP/s. */
static const metal_chip chips[] = {
    {"Apple M1", 13, 8, 68e9, 2.6e12},        {"Apple M1 Pro", 13, 16, 200e9, 5.2e12},
    {"Apple M1 Max", 13, 32, 400e9, 10.4e12}, {"Apple M1 Ultra", 13, 64, 800e9, 20.8e12},
    {"Apple M2", 14, 10, 100e9, 3.6e12},      {"Apple M2 Pro", 14, 19, 200e9, 6.8e12},
    {"Apple M2 Max", 14, 38, 400e9, 13.6e12}, {"Apple M2 Ultra", 14, 76, 800e9, 27.2e12},
    {"Apple M3", 15, 10, 100e9, 3.5e12},      {"Apple M3 Pro", 15, 18, 150e9, 6.4e12},
    {"Apple M3 Max", 15, 40, 400e9, 14.2e12}, {"Apple M3 Ultra", 15, 80, 819e9, 28.4e12},
    {"Apple M4", 16, 10, 120e9, 4.3e12},      {"Apple M4 Pro", 16, 20, 273e9, 8.5e12},
    {"Apple M4 Max", 16, 40, 546e9, 17e12},   {"Apple M5", 17, 10, 153e9, 4.2e12},
    {"Apple M5 Pro", 17, 20, 307e9, 8.4e12},  {"Apple M5 Max", 17, 40, 614e9, 16.8e12},
};
#define N_CHIPS (sizeof chips / sizeof *chips)

uint32_t metal_generation(const char *architecture, bool *phone)
{
    static const char prefix[] = "applegpu_g";
    *phone = false;
    if (strncmp(architecture, prefix, sizeof prefix - 1) != 0) return 0;
    const char *p = architecture + sizeof prefix - 1;
    if (p[0] < '0' || p[0] > '9' || p[1] < '0' || p[1] > '9') return 0;
    *phone = p[2] == 'p';
    return (uint32_t)(p[0] - '0') * 10u + (uint32_t)(p[1] - '0');
}

const metal_chip *metal_chip_find(const char *name, const char *architecture)
{
    bool phone;
    const uint32_t generation = metal_generation(architecture, &phone);
    const metal_chip *like = &chips[0];
    for (size_t i = 0; i < N_CHIPS; i++) {
        if (strcmp(chips[i].name, name) == 0) return &chips[i];
        /* rows go up, and the first of a generation is the smallest */
        if (chips[i].generation > like->generation && chips[i].generation <= generation)
            like = &chips[i];
    }
    return like;
}

/* ---- Rungs ---- */

metal_rung metal_best_rung(uint32_t generation, bool phone, metal_os os)
{
    const bool units = generation >= (phone ? 18u : 17u);
    const uint32_t v = os.major * 100u + os.minor;
    if (units && v >= 2604u) return METAL_RUNG_TENSOR4;
    if (units && v >= 2602u) return METAL_RUNG_TENSOR;
    return METAL_RUNG_SIMDGROUP;
}

static const struct {
    const char *name, *text;
} rungs[METAL_RUNGS] = {{"scalar", "scalar tiles"},
                        {"simdgroup", "simdgroup 8x8"},
                        {"tensor", "tensor 16x32x16"},
                        {"tensor4", "tensor 4-bit"}};

const char *metal_rung_text(metal_rung r)
{
    return rungs[r].text;
}

const char *metal_rung_name(metal_rung r)
{
    return rungs[r].name;
}

bool metal_rung_parse(const char *name, metal_rung *r)
{
    for (uint32_t i = 0; i < METAL_RUNGS; i++)
        if (strcmp(rungs[i].name, name) == 0) {
            *r = (metal_rung)i;
            return true;
        }
    return false;
}

/* ---- Command buffers ---- */

metal_rates metal_rates_of(const metal_chip *c, metal_rung rung)
{
    /* tensors do three to four times what f32 lanes do, but not all kernels are tiles */
    const double part = rung >= METAL_RUNG_TENSOR ? 0.6 : 0.3;
    return (metal_rates){0.3 * c->bytes_s, part * c->flops_s, 5e-6};
}

double metal_seconds(const metal_rates *r, const gpu_dispatch *d)
{
    const double b = d->bytes / r->bytes_s, f = d->flops / r->flops_s;
    return b > f ? b : f;
}

/* Stable: within a level the order of the recording. */
static void by_level(const gpu_recording *r, uint32_t *order, uint32_t *place)
{
    memset(place, 0, ((size_t)r->n + 1) * sizeof *place);
    for (uint32_t i = 0; i < r->n; i++)
        place[r->level[i] + 1]++;
    for (uint32_t l = 0; l < r->n_levels; l++)
        place[l + 1] += place[l];
    for (uint32_t i = 0; i < r->n; i++)
        order[place[r->level[i]]++] = i;
}

uint32_t metal_split(const gpu_recording *r, const metal_rates *rates, double budget,
                     uint32_t *order, uint32_t *first)
{
    uint32_t n_parts = 0;
    double part = 0;
    by_level(r, order, first);
    for (uint32_t i = 0; i < r->n;) {
        uint32_t end = i;
        double level = rates->level_s;
        for (; end < r->n && r->level[order[end]] == r->level[order[i]]; end++)
            level += metal_seconds(rates, &r->dispatch[order[end]]);
        if (i == 0 || part + level > budget) {
            first[n_parts++] = i;
            part = 0;
        }
        part += level;
        i = end;
    }
    first[n_parts] = r->n;
    return n_parts;
}
