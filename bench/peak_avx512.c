#define PEAK_FN peak_fma_avx512
#include "peak_fma.inc"
