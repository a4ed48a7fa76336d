// The kernels for the SIMT emulator. No C++ run-time library is needed.
#include "kernels/dialect.h"

#include "kernels/util.h"
#if __has_include("kernels/basic.h")
#include "kernels/basic.h"
#endif
#if __has_include("kernels/gemv.h")
#include "kernels/gemv.h"
#endif
#if __has_include("kernels/gemm.h")
#include "kernels/gemm.h"
#endif
#if __has_include("kernels/gdn.h")
#include "kernels/gdn.h"
#endif
#if __has_include("kernels/attn.h")
#include "kernels/attn.h"
#include "kernels/attn_mm.h"
#include "kernels/attn_mma.h"
#endif

#if defined(SIMT_CHECK)
#define SIMT_KERNELS simt_kernels_check
#else
#define SIMT_KERNELS simt_kernels_fast
#endif

#define K(name, threads, n_bindings) SIMT_ASSERT(name, threads, n_bindings)
#include "kernels/kernels.inc"
#undef K

extern "C" {
extern const simt_kernel SIMT_KERNELS[];
const simt_kernel SIMT_KERNELS[] = {
#define K(name, threads, n_bindings) SIMT_ROW(name, threads, n_bindings)
#include "kernels/kernels.inc"
#undef K
    {nullptr, 0, 0, 0, nullptr, nullptr}};
}
