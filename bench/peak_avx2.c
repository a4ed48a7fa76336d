#define PEAK_FN peak_fma_avx2
#include "peak_fma.inc"
