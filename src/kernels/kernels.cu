/* kernels.cu - the CUDA unit: compiled once for each family, with KX_FAMILY its number, so that
 * `make -j` has something to do (mk/cuda.mk). Without KX_FAMILY: all kernels. */
#include "kernels/dialect.h"

#ifndef KX_FAMILY
#define KX_FAMILY 0
#endif
#define KX_IS(n) (KX_FAMILY == 0 || KX_FAMILY == (n))

#if KX_IS(1)
#include "kernels/util.h"
#if __has_include("kernels/basic.h")
#include "kernels/basic.h"
#endif
#endif

#if KX_IS(2)
#if __has_include("kernels/gemv.h")
#include "kernels/gemv.h"
#endif
#endif

#if KX_IS(3)
#if __has_include("kernels/gemm.h")
#include "kernels/gemm.h"
#endif
#endif

#if KX_IS(4)
#if __has_include("kernels/gdn.h")
#include "kernels/gdn.h"
#endif
#endif

#if KX_IS(5)
#if __has_include("kernels/attn.h")
#include "kernels/attn.h"
#include "kernels/attn_mma.h"
#endif
#endif
