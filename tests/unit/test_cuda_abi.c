/* Our declarations of the driver interface against NVIDIA's header, where that is installed: sizes,
 * positions and values; and every symbol against the stub library beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "exec/gpu/cuda/api.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define SAME_SIZE(ours, theirs) assert_int_equal(sizeof(ours), sizeof(theirs))
#define SAME_PLACE(ours, a, theirs, b)                                                             \
    assert_int_equal(offsetof(ours, a), offsetof(theirs, b));                                      \
    assert_int_equal(sizeof(((ours *)NULL)->a), sizeof(((theirs *)NULL)->b))

static void test_values(void **state)
{
    (void)state;
    const int pair[][2] = {
        {CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY},
        {CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE},
        {CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU},
        {CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND},
        {CU_ATTR_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
        {CU_ATTR_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
        {CU_ATTR_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {CU_FUNC_MAX_DYN_SMEM, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
        {CU_STREAM_ASIDE, CU_STREAM_NON_BLOCKING},
        {CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE},
        {CU_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP},
        {CU_LAUNCH_ATTR_PDL, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION},
        {CU_PORT_PROGRAMMATIC, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC},
        {CU_EDGE_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC},
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        assert_int_equal(pair[i][0], pair[i][1]);
}

static void test_types(void **state)
{
    (void)state;
    SAME_SIZE(cu_result, CUresult);
    SAME_SIZE(cu_device, CUdevice);
    SAME_SIZE(cu_ptr, CUdeviceptr);
    SAME_SIZE(cu_node_params, CUDA_KERNEL_NODE_PARAMS_v2);
    SAME_PLACE(cu_node_params, grid_x, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
    SAME_PLACE(cu_node_params, block_x, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
    SAME_PLACE(cu_node_params, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
    SAME_PLACE(cu_node_params, params, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
    SAME_PLACE(cu_node_params, ctx, CUDA_KERNEL_NODE_PARAMS_v2, ctx);
    SAME_SIZE(cu_edge, CUgraphEdgeData);
    SAME_PLACE(cu_edge, from_port, CUgraphEdgeData, from_port);
    SAME_PLACE(cu_edge, to_port, CUgraphEdgeData, to_port);
    SAME_PLACE(cu_edge, type, CUgraphEdgeData, type);
    SAME_SIZE(cu_launch_attr, CUlaunchAttribute);
    SAME_PLACE(cu_launch_attr, id, CUlaunchAttribute, id);
    SAME_PLACE(cu_launch_attr, v, CUlaunchAttribute, value);
    SAME_PLACE(cu_launch_attr, v.value, CUlaunchAttribute,
               value.programmaticStreamSerializationAllowed);
    SAME_SIZE(cu_launch_config, CUlaunchConfig);
    SAME_PLACE(cu_launch_config, stream, CUlaunchConfig, hStream);
    SAME_PLACE(cu_launch_config, attrs, CUlaunchConfig, attrs);
    SAME_PLACE(cu_launch_config, n_attrs, CUlaunchConfig, numAttrs);
}

#else

static void test_values(void **state)
{
    (void)state;
    skip();
}

static void test_types(void **state)
{
    (void)state;
    skip();
}

#endif

#ifndef CUDA_STUBS
#define CUDA_STUBS ""
#endif

static void test_symbols(void **state)
{
    (void)state;
    cuda_api api;
    calla_error err;
    FILE *f = fopen(CUDA_STUBS "libcuda.so", "rb");
    if (f == NULL) skip();
    fclose(f);
    if (cuda_api_open(&api, CUDA_STUBS "libcuda.so", &err) != CALLA_OK) fail_msg("%s", err.message);
    assert_non_null((void *)(uintptr_t)api.launch_ex);
    assert_non_null((void *)(uintptr_t)api.graph_edges);
    assert_non_null((void *)(uintptr_t)api.param_info);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_symbols),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
