/* kernels.metal - the Metal unit. tools/metal-flatten.sh makes one text of it for each family, with
 * KX_FAMILY its number; the driver compiles the text where the program runs (exec/gpu/metal/source.h).
 *
 * CALLA_RUNG: the kind of matrix tiles (prim_mm_metal.h), a macro of the driver; 0 without it.
 * No contraction: a product and a sum are fused only where KFMA says so. The driver asks for safe
 * math and precise functions; the pragmas say the rest. */
#include <metal_stdlib>

#if !defined(CALLA_RUNG)
#define CALLA_RUNG 0
#endif
#if CALLA_RUNG >= 2
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
/* Without it the two headers are empty, and nothing would say so. */
#if !defined(__HAVE_TENSOR__)
#error "this compiler, or the language version that it was asked for, has no tensors"
#endif
#endif

using namespace metal;

#if __METAL_VERSION__ >= 320
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#endif
#pragma clang fp contract(off)

#include "kernels/dialect.h"

#if KX_FAMILY == 1
#include "kernels/util.h"
#include "kernels/basic.h"
#endif

#if KX_FAMILY == 2
#include "kernels/gemv.h"
#endif

#if KX_FAMILY == 3
#include "kernels/gemm.h"
#endif

#if KX_FAMILY == 4
#include "kernels/gdn.h"
#endif

#if KX_FAMILY == 5
#include "kernels/attn.h"
#include "kernels/attn_mm.h"
#endif
