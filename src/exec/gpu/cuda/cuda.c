/* The CUDA driver: device, errors, memory. */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "exec/gpu/cuda/cuda_dev.h"
#include "exec/gpu/cuda/image.h"

/* ---- Errors ---- */

calla_status cuda_enter(cuda_device *d, calla_error *err)
{
    if (d->lost)
        return err_set(err, CALLA_ERR_DEVICE, "%s failed before and must be opened again", d->name);
    const cu_result r = d->api.ctx_push(d->ctx);
    return r == 0 ? CALLA_OK : cuda_fail(d, r, "entering its context", err);
}

void cuda_leave(cuda_device *d)
{
    cu_context c;
    d->api.ctx_pop(&c);
}

static const char *describe(const cuda_api *api, cu_result r, char *text, size_t bytes)
{
    const char *name = NULL, *words = NULL;
    if (api->error_name(r, &name) != 0 || name == NULL) name = "unknown";
    if (api->error_text(r, &words) != 0 || words == NULL) words = "no description";
    snprintf(text, bytes, "CUDA error %d, %s: %s", r, name, words);
    return text;
}

calla_status cuda_fail(cuda_device *d, cu_result r, const char *what, calla_error *err)
{
    char text[256];
    describe(&d->api, r, text, sizeof text);
    /* An error of the work itself stays with the context: it answers every later call. */
    if (r != CU_OUT_OF_MEMORY && d->ctx != NULL && d->api.ctx_sync() != 0) d->lost = true;
    return err_set(err, r == CU_OUT_OF_MEMORY ? CALLA_ERR_MEMORY : CALLA_ERR_DEVICE,
                   "%s failed while %s (%s)", d->name, what, text);
}

/* ---- Device ---- */

static bool cuda_lost(const gpu_device *dev)
{
    return ((const cuda_device *)dev)->lost;
}

static void cuda_inject(gpu_device *dev, uint32_t n)
{
    ((cuda_device *)dev)->inject = n;
}

static void cuda_limits(gpu_device *dev, gpu_limits *out)
{
    cuda_device *d = (cuda_device *)dev;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", d->name);
    out->n_cores = d->n_cores;
    out->native_mm = d->native_mm ? GPU_MM_WGMMA : GPU_MM_TILES;
    if (cuda_enter(d, NULL) != CALLA_OK) return;
    size_t n_free = 0, n_total = 0;
    if (d->api.mem_info(&n_free, &n_total) == 0) {
        out->free_bytes = n_free;
        out->total_bytes = n_total;
    }
    cuda_leave(d);
}

static void slots_deinit(cuda_device *d)
{
    for (uint32_t i = 0; i < CUDA_SLOTS; i++) {
        if (d->slot[i].begin != NULL) d->api.event_destroy(d->slot[i].begin);
        if (d->slot[i].end != NULL) d->api.event_destroy(d->slot[i].end);
    }
}

static void cuda_destroy(gpu_device *dev)
{
    cuda_device *d = (cuda_device *)dev;
    if (d == NULL) return;
    if (d->ctx != NULL) {
        const bool entered = d->api.ctx_push(d->ctx) == 0;
        if (d->stream != NULL) d->api.stream_sync(d->stream);
        cuda_copy_deinit(d);
        slots_deinit(d);
        for (uint32_t i = 0; i < d->n_modules; i++)
            d->api.module_unload(d->module[i]);
        if (d->stream != NULL) d->api.stream_destroy(d->stream);
        if (entered) cuda_leave(d);
        d->api.ctx_destroy(d->ctx);
    }
    mem_free(d);
}

static calla_status buffer_create(gpu_device *dev, gpu_memory kind, uint64_t bytes,
                                  const char *name, gpu_buffer **out, calla_error *err)
{
    cuda_device *d = (cuda_device *)dev;
    calla_status st = CALLA_OK;
    *out = NULL;
    TRY(cuda_enter(d, err));
    gpu_buffer *b = mem_alloc(sizeof *b);
    cu_result r = CU_OUT_OF_MEMORY;
    if (b == NULL) goto done;
    b->bytes = bytes;
    if (kind == GPU_MEM_DEVICE) {
        r = d->api.mem_alloc(&b->ptr, (size_t)bytes);
    } else {
        r = d->api.host_alloc(&b->host, (size_t)bytes, CU_HOST_PORTABLE | CU_HOST_MAPPED);
        if (r == 0) {
            r = d->api.host_device_ptr(&b->ptr, b->host, 0);
            if (r != 0) d->api.host_free(b->host);
        }
    }
done:
    if (r == 0) {
        *out = b;
    } else if (r == CU_OUT_OF_MEMORY) {
        st = err_set(err, CALLA_ERR_MEMORY, "%s has no room for %s (%llu MiB)", d->name,
                     name != NULL ? name : "a buffer", (unsigned long long)(bytes >> 20));
    } else {
        st = cuda_fail(d, r, "making a buffer", err);
    }
    if (*out == NULL) mem_free(b);
    cuda_leave(d);
fail:
    return st;
}

/* Also of a lost device: its memory is still the context's. */
static void buffer_destroy(gpu_device *dev, gpu_buffer *b)
{
    cuda_device *d = (cuda_device *)dev;
    if (b == NULL) return;
    if (d->api.ctx_push(d->ctx) == 0) {
        /* Copies and launches in flight may use it. */
        d->api.stream_sync(d->stream);
        if (b->host != NULL)
            d->api.host_free(b->host);
        else
            d->api.mem_free(b->ptr);
        cuda_leave(d);
    }
    mem_free(b);
}

static uint64_t buffer_bytes(const gpu_buffer *b)
{
    return b->bytes;
}

static void *buffer_host(gpu_buffer *b)
{
    return b->host;
}

static const gpu_ops cuda_ops = {
    .name = "cuda",
    .destroy = cuda_destroy,
    .limits = cuda_limits,
    .buffer_create = buffer_create,
    .buffer_destroy = buffer_destroy,
    .buffer_bytes = buffer_bytes,
    .buffer_host = buffer_host,
    .write = cuda_write,
    .zero = cuda_zero,
    .copy = cuda_copy,
    .read = cuda_read,
    .program_create = cuda_program_create,
    .program_destroy = cuda_program_destroy,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .profile = cuda_profile,
    .inject_failure = cuda_inject,
    .lost = cuda_lost,
};

/* ---- Creation ---- */

/* The device itself: exists, is new enough. */
static calla_status find_device(cuda_device *d, uint32_t i_device, calla_error *err)
{
    const cuda_api *a = &d->api;
    char text[256];
    int n = 0, major = 0, minor = 0, cores = 0;
    cu_result r = a->init(0);
    if (r == 0) r = a->device_count(&n);
    if (r == CU_NO_DEVICE || (r == 0 && n == 0))
        return err_set(err, CALLA_ERR_UNSUPPORTED, "the NVIDIA driver finds no GPU");
    if (r != 0)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "the NVIDIA driver does not start (%s)",
                       describe(a, r, text, sizeof text));
    if (i_device >= (uint32_t)n)
        return err_set(err, CALLA_ERR_ARGUMENT, "there is no GPU %u: the NVIDIA driver finds %d",
                       i_device, n);
    if ((r = a->device_get(&d->id, (int)i_device)) != 0 ||
        (r = a->device_name(d->name, (int)sizeof d->name, d->id)) != 0 ||
        (r = a->device_attr(&cores, CU_ATTR_MULTIPROCESSORS, d->id)) != 0 ||
        (r = a->device_attr(&major, CU_ATTR_CC_MAJOR, d->id)) != 0 ||
        (r = a->device_attr(&minor, CU_ATTR_CC_MINOR, d->id)) != 0)
        return err_set(err, CALLA_ERR_UNSUPPORTED, "GPU %u cannot be queried (%s)", i_device,
                       describe(a, r, text, sizeof text));
    d->n_cores = (uint32_t)cores;
    d->native_mm = major == 9 && minor == 0;
    d->native_pdl = major >= 9 && a->launch_ex != NULL && a->graph_edges != NULL;
    if (major < 8)
        return err_set(err, CALLA_ERR_UNSUPPORTED,
                       "%s has compute capability %d.%d; calla needs 8.0 or newer", d->name, major,
                       minor);
    return CALLA_OK;
}

/* Dynamic shared memory that the module asks for (KERNEL_DYN_SMEM), and the size of the argument
 * struct, which is the parameter after the bindings. */
static calla_status kernel_details(cuda_device *d, cu_module m, uint32_t i, calla_error *err)
{
    calla_status st = CALLA_OK;
    cuda_kernel *k = &d->kernel[i];
    char symbol[96];
    cu_ptr p = 0;
    size_t bytes = 0, off = 0;
    snprintf(symbol, sizeof symbol, "%s_dyn_smem", kernel_table[i].name);
    /* Elsewhere the native main loops are never launched, and the device may have less. */
    if (d->native_mm && d->api.module_global(&p, &bytes, m, symbol) == 0 &&
        bytes == sizeof k->dyn_smem) {
        CU(d, d->api.copy((cu_ptr)(uintptr_t)&k->dyn_smem, p, bytes, d->stream),
           "reading a kernel's shared memory size", err);
        CU(d, d->api.stream_sync(d->stream), "reading a kernel's shared memory size", err);
        CU(d, d->api.func_set(k->func, CU_FUNC_MAX_DYN_SMEM, (int)k->dyn_smem),
           "raising a kernel's shared memory", err);
    }
    k->args_bytes = UINT32_MAX;
    if (d->api.param_info == NULL) return CALLA_OK;
    k->args_bytes = 0;
    if (d->api.param_info(k->func, kernel_table[i].n_bindings, &off, &bytes) == 0)
        k->args_bytes = (uint32_t)bytes;
fail:
    return st;
}

static calla_status load_kernels(cuda_device *d, const cuda_source *src, calla_error *err)
{
    calla_status st = CALLA_OK;
    for (uint32_t i = 0; i < src->n_images; i++) {
        if (src->image[i].bytes == 0) continue;
        const cu_result r = d->api.module_load(&d->module[d->n_modules], src->image[i].data);
        if (r == CU_NO_BINARY)
            return err_set(err, CALLA_ERR_UNSUPPORTED, "this build has no kernels for %s", d->name);
        CU(d, r, "loading the kernels", err);
        d->n_modules++;
    }
    for (uint32_t k = 0; kernel_table[k].name != NULL; k++)
        for (uint32_t m = 0; m < d->n_modules && d->kernel[k].func == NULL; m++) {
            cu_function f = NULL;
            const cu_result r = d->api.module_function(&f, d->module[m], kernel_table[k].name);
            if (r == CU_NOT_FOUND) continue;
            CU(d, r, "looking for a kernel", err);
            d->kernel[k].func = f;
            TRY(kernel_details(d, d->module[m], k, err));
        }
    for (uint32_t m = 0; m < d->n_modules && d->faulty == NULL; m++)
        if (d->api.module_function(&d->faulty, d->module[m], "kx_faulty") != 0) d->faulty = NULL;
fail:
    return st;
}

static calla_status start(cuda_device *d, const cuda_source *src, calla_error *err)
{
    calla_status st = CALLA_OK;
    CU(d, d->api.stream_create(&d->stream, CU_STREAM_ASIDE), "making a stream", err);
    for (uint32_t i = 0; i < CUDA_SLOTS; i++) {
        CU(d, d->api.event_create(&d->slot[i].begin, 0), "making an event", err);
        CU(d, d->api.event_create(&d->slot[i].end, 0), "making an event", err);
    }
    TRY(cuda_copy_init(d, err));
    TRY(load_kernels(d, src, err));
fail:
    return st;
}

calla_status cuda_create_from(gpu_device **out, const cuda_source *src, uint32_t i_device,
                              calla_error *err)
{
    calla_status st = CALLA_OK;
    bool entered = false;
    *out = NULL;
    cuda_device *d = mem_alloc(sizeof *d);
    if (d == NULL) return err_set(err, CALLA_ERR_MEMORY, "no memory for the GPU driver");
    d->base.ops = &cuda_ops;
    d->api = *src->api;
    TRY(find_device(d, i_device, err));
    CU(d, d->api.ctx_create(&d->ctx, 0, d->id), "making a context", err);
    entered = true; /* a new context is current */
    TRY(start(d, src, err));
    cuda_leave(d);
    *out = &d->base;
    return CALLA_OK;
fail:
    if (entered) cuda_leave(d);
    cuda_destroy(&d->base);
    return st;
}

calla_status gpu_cuda_create(gpu_device **out, uint32_t i_device, calla_error *err)
{
    *out = NULL;
#define F(n) {cuda_image_##n, cuda_image_##n##_bytes},
    const cuda_image image[] = {CUDA_FAMILIES(F)};
#undef F
    const uint32_t n = (uint32_t)(sizeof image / sizeof *image);
    if (image[0].bytes == 0)
        return err_set(
            err, CALLA_ERR_UNSUPPORTED,
            "this build of calla has no CUDA kernels: there was no nvcc when it was made");
    cuda_api api;
    const calla_status st = cuda_api_open(&api, "libcuda.so.1", err);
    if (st != CALLA_OK) return st;
    return cuda_create_from(out, &(cuda_source){&api, image, n}, i_device, err);
}
