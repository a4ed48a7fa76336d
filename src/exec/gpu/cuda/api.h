/* api.h - the few functions of NVIDIA's driver interface that we use, found at run time.
 *
 * Does:       declares types, values and functions of the public binary interface of libcuda.so.1,
 *             in our own words, so that neither CUDA's headers nor its libraries are needed to
 *             build or to start the program. tests/unit/test_cuda_abi.c compares them with cuda.h
 *             where that is installed.
 * Errors:     CALLA_ERR_UNSUPPORTED when there is no driver, or an older one that lacks a function.
 */
#ifndef CALLA_EXEC_GPU_CUDA_API_H
#define CALLA_EXEC_GPU_CUDA_API_H

#include "base/error.h"

typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef unsigned long long cu_ptr; /* address in device memory */
typedef struct cu_context_s *cu_context;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;
typedef struct cu_module_s *cu_module;
typedef struct cu_function_s *cu_function;
typedef struct cu_graph_s *cu_graph;
typedef struct cu_node_s *cu_node;
typedef struct cu_exec_s *cu_exec; /* an instantiated graph */

enum {
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_NO_BINARY = 209,
    CU_NOT_FOUND = 500,

    CU_ATTR_MULTIPROCESSORS = 16,
    CU_ATTR_CC_MAJOR = 75,
    CU_ATTR_CC_MINOR = 76,

    CU_FUNC_MAX_DYN_SMEM = 8,

    CU_STREAM_ASIDE = 1, /* does not wait for the null stream */
    CU_HOST_PORTABLE = 1,
    CU_HOST_MAPPED = 2,

    CU_LAUNCH_ATTR_PDL = 6, /* programmatic stream serialization */
    CU_PORT_PROGRAMMATIC = 1,
    CU_EDGE_PROGRAMMATIC = 1
};

typedef struct cu_node_params {
    cu_function func;
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    void **params;
    void **extra;
    void *kern;
    cu_context ctx;
} cu_node_params;

typedef struct cu_edge {
    unsigned char from_port, to_port, type, reserved[5];
} cu_edge;

typedef struct cu_launch_attr {
    int id, pad;
    union {
        char bytes[64];
        int value;
        uint64_t align;
    } v;
} cu_launch_attr;

typedef struct cu_launch_config {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    cu_stream stream;
    cu_launch_attr *attrs;
    unsigned n_attrs;
} cu_launch_config;

/* X(field, symbol, parameters); the driver has had them since CUDA 12.0. */
#define CUDA_API_REQUIRED(X)                                                                       \
    X(init, cuInit, (unsigned flags))                                                              \
    X(driver_version, cuDriverGetVersion, (int *version))                                          \
    X(error_name, cuGetErrorName, (cu_result r, const char **name))                                \
    X(error_text, cuGetErrorString, (cu_result r, const char **text))                              \
    X(device_count, cuDeviceGetCount, (int *n))                                                    \
    X(device_get, cuDeviceGet, (cu_device * d, int i))                                             \
    X(device_name, cuDeviceGetName, (char *name, int bytes, cu_device d))                          \
    X(device_attr, cuDeviceGetAttribute, (int *value, int attr, cu_device d))                      \
    X(ctx_create, cuCtxCreate_v2, (cu_context * c, unsigned flags, cu_device d))                   \
    X(ctx_destroy, cuCtxDestroy_v2, (cu_context c))                                                \
    X(ctx_push, cuCtxPushCurrent_v2, (cu_context c))                                               \
    X(ctx_pop, cuCtxPopCurrent_v2, (cu_context * c))                                               \
    X(ctx_sync, cuCtxSynchronize, (void))                                                          \
    X(stream_create, cuStreamCreate, (cu_stream * s, unsigned flags))                              \
    X(stream_destroy, cuStreamDestroy_v2, (cu_stream s))                                           \
    X(stream_sync, cuStreamSynchronize, (cu_stream s))                                             \
    X(event_create, cuEventCreate, (cu_event * e, unsigned flags))                                 \
    X(event_destroy, cuEventDestroy_v2, (cu_event e))                                              \
    X(event_record, cuEventRecord, (cu_event e, cu_stream s))                                      \
    X(event_sync, cuEventSynchronize, (cu_event e))                                                \
    X(event_elapsed, cuEventElapsedTime, (float *ms, cu_event a, cu_event b))                      \
    X(mem_info, cuMemGetInfo_v2, (size_t * n_free, size_t * n_total))                              \
    X(mem_alloc, cuMemAlloc_v2, (cu_ptr * p, size_t bytes))                                        \
    X(mem_free, cuMemFree_v2, (cu_ptr p))                                                          \
    X(host_alloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))                        \
    X(host_free, cuMemFreeHost, (void *p))                                                         \
    X(host_device_ptr, cuMemHostGetDevicePointer_v2, (cu_ptr * p, void *host, unsigned flags))     \
    X(copy, cuMemcpyAsync, (cu_ptr dst, cu_ptr src, size_t bytes, cu_stream s))                    \
    X(fill, cuMemsetD8Async, (cu_ptr dst, unsigned char v, size_t bytes, cu_stream s))             \
    X(module_load, cuModuleLoadData, (cu_module * m, const void *image))                           \
    X(module_unload, cuModuleUnload, (cu_module m))                                                \
    X(module_function, cuModuleGetFunction, (cu_function * f, cu_module m, const char *name))      \
    X(module_global, cuModuleGetGlobal_v2,                                                         \
      (cu_ptr * p, size_t * bytes, cu_module m, const char *name))                                 \
    X(func_set, cuFuncSetAttribute, (cu_function f, int attr, int value))                          \
    X(launch, cuLaunchKernel,                                                                      \
      (cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,             \
       unsigned bz, unsigned shared_bytes, cu_stream s, void **params, void **extra))              \
    X(graph_create, cuGraphCreate, (cu_graph * g, unsigned flags))                                 \
    X(graph_destroy, cuGraphDestroy, (cu_graph g))                                                 \
    X(graph_kernel, cuGraphAddKernelNode_v2,                                                       \
      (cu_node * n, cu_graph g, const cu_node *deps, size_t n_deps, const cu_node_params *p))      \
    X(graph_event, cuGraphAddEventRecordNode,                                                      \
      (cu_node * n, cu_graph g, const cu_node *deps, size_t n_deps, cu_event e))                   \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                                              \
      (cu_exec * x, cu_graph g, unsigned long long flags))                                         \
    X(exec_destroy, cuGraphExecDestroy, (cu_exec x))                                               \
    X(exec_upload, cuGraphUpload, (cu_exec x, cu_stream s))                                        \
    X(exec_launch, cuGraphLaunch, (cu_exec x, cu_stream s))

/* NULL where the driver is too old. */
#define CUDA_API_OPTIONAL(X)                                                                       \
    X(launch_ex, cuLaunchKernelEx,                                                                 \
      (const cu_launch_config *c, cu_function f, void **params, void **extra))                     \
    X(graph_edges, cuGraphAddDependencies_v2,                                                      \
      (cu_graph g, const cu_node *from, const cu_node *to, const cu_edge *edge, size_t n))         \
    X(param_info, cuFuncGetParamInfo, (cu_function f, size_t i, size_t * off, size_t * bytes))

typedef struct cuda_api {
#define X(field, symbol, params) cu_result(*field) params;
    CUDA_API_REQUIRED(X)
    CUDA_API_OPTIONAL(X)
#undef X
} cuda_api;

/* A function of the driver by its name, or NULL. */
typedef void (*cuda_any_fn)(void);
typedef cuda_any_fn (*cuda_lookup)(void *ctx, const char *symbol);

calla_status cuda_api_load(cuda_api *api, cuda_lookup lookup, void *ctx, calla_error *err);
/* From the shared library `file`; it stays open until the process ends. */
calla_status cuda_api_open(cuda_api *api, const char *file, calla_error *err);

#endif
