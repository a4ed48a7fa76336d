// The same kernels with every access checked.
#define SIMT_CHECK 1
#include "exec/gpu/simt/kernels_simt.cpp"
