/* thermal.h - how hot the machine is, and whether it slowed itself down for that.
 *
 * Linux:   the hottest of the processor's thermal zones and sensors, and the counters of throttling
 *          that Intel's processors have. NVIDIA: NVML, opened at run time. macOS: the thermal
 *          pressure that the system publishes; it gives programs no temperatures.
 * Errors:  none; what the system does not say stays unknown.
 */
#ifndef CALLA_BENCH_THERMAL_H
#define CALLA_BENCH_THERMAL_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/record.h"

typedef struct thermal_state {
    double celsius; /* NAN: unknown */
    int64_t slowed; /* a count that grows when the machine slows down; -1: unknown */
    int slow_now;   /* -1: unknown */
} thermal_state;

/* gpu: of the NVIDIA GPU instead of the processor. */
void thermal_read(thermal_state *out, bool gpu);

/* Between the two. */
bench_thermal thermal_between(const thermal_state *before, const thermal_state *after);

/* As thermal_read of a processor, with "/sys" replaced (tests). Linux only. */
void thermal_read_at(thermal_state *out, const char *sys);

#endif
