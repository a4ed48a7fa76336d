/* Opening the driver library. */
#include "exec/gpu/cuda/api.h"

#include <dlfcn.h>
#include <string.h>

calla_status cuda_api_load(cuda_api *api, cuda_lookup lookup, void *ctx, calla_error *err)
{
    memset(api, 0, sizeof *api);
    const char *missing = NULL;
    cuda_any_fn f;
    /* POSIX lets a function's address pass through memory of another function pointer type. */
#define X(field, symbol, params)                                                                   \
    f = lookup(ctx, #symbol);                                                                      \
    memcpy(&api->field, &f, sizeof f);
    CUDA_API_OPTIONAL(X)
#undef X
#define X(field, symbol, params)                                                                   \
    f = lookup(ctx, #symbol);                                                                      \
    memcpy(&api->field, &f, sizeof f);                                                             \
    if (f == NULL && missing == NULL) missing = #symbol;
    CUDA_API_REQUIRED(X)
#undef X
    if (missing == NULL) return CALLA_OK;
    return err_set(err, CALLA_ERR_UNSUPPORTED,
                   "the NVIDIA driver is too old: calla needs one for CUDA 12.0 or newer, and this "
                   "one has no %s",
                   missing);
}

static cuda_any_fn from_library(void *ctx, const char *symbol)
{
    void *p = dlsym(ctx, symbol);
    cuda_any_fn f;
    memcpy(&f, &p, sizeof f);
    return f;
}

calla_status cuda_api_open(cuda_api *api, const char *file, calla_error *err)
{
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "there is no NVIDIA driver on this machine (%s cannot be opened)", file);
    return cuda_api_load(api, from_library, lib, err);
}
