/* kernels.cu - the CUDA unit: compiled once for each family, with KX_FAMILY its number, so that
 * `make -j` has something to do (mk/cuda.mk). Without KX_FAMILY: all kernels. */
#include "kernels/dialect.h"

#ifndef KX_FAMILY
#define KX_FAMILY 0
#endif
#define KX_IS(n) (KX_FAMILY == 0 || KX_FAMILY == (n))

#if KX_IS(1)
/* Writes wherever it is told to: how the driver takes a failure is tested with a bad address. */
extern "C" __global__ void kx_faulty(float *p)
{
    PDL_WAIT();
    p[threadIdx.x] = 1.0f;
}
#include "kernels/util.h"
#include "kernels/basic.h"
#endif

#if KX_IS(2)
#include "kernels/gemv.h"
#endif

#if KX_IS(3)
#include "kernels/gemm.h"
#endif

#if KX_IS(4)
#include "kernels/gdn.h"
#endif

#if KX_IS(5)
#include "kernels/attn.h"
#include "kernels/attn_mm.h"
#include "kernels/attn_mma.h"
#endif
