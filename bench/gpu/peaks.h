/* peaks.h - the fat binary of peaks.cu; 0 bytes when there was no nvcc. */
#ifndef CALLA_BENCH_GPU_PEAKS_H
#define CALLA_BENCH_GPU_PEAKS_H

#include <stddef.h>
#include "base/attrs.h"

extern const unsigned char bench_peaks[] ATTR_ALIGNED(16);
extern const size_t bench_peaks_bytes;

#endif
