/* image.h - the CUDA kernels compiled into this build (mk/cuda.mk); none when there was no nvcc.
 */
#ifndef CALLA_EXEC_GPU_CUDA_IMAGE_H
#define CALLA_EXEC_GPU_CUDA_IMAGE_H

#include <stddef.h>
#include "base/attrs.h"

#define CUDA_FAMILIES(F) F(1) F(2) F(3) F(4) F(5)

/* One fat binary a family of kernels; 0 bytes: not built. */
#define F(n)                                                                                       \
    extern const unsigned char cuda_image_##n[] ATTR_ALIGNED(16);                                  \
    extern const size_t cuda_image_##n##_bytes;
CUDA_FAMILIES(F)
#undef F

#endif
