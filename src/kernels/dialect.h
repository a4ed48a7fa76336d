/* dialect.h - the kernel language (README.md): selects the target's definitions. */
#ifndef CALLA_KERNELS_DIALECT_H
#define CALLA_KERNELS_DIALECT_H

#include "kernels/kmath.h"

#if defined(__METAL_VERSION__)
#include "kernels/dialect_metal.h"
#elif defined(__CUDACC__)
#include "kernels/dialect_cuda.h"
#else
#include "kernels/dialect_simt.h"
#endif

#endif
