/* lint_names.h - the lists of lint.c. A name comes onto a list of what is allowed when shipped
 * kernels of others that compile on a Mac use it, or Apple's specification names it. */
#ifndef CALLA_TESTS_MSL_LINT_NAMES_H
#define CALLA_TESTS_MSL_LINT_NAMES_H

#define LIST(name, ...) static const char *const name[] = {__VA_ARGS__, NULL}

LIST(lint_directives, "include", "define", "undef", "if", "ifdef", "ifndef", "elif", "else",
     "endif", "error", "pragma");
LIST(lint_headers, "<metal_stdlib>", "<metal_tensor>",
     "<MetalPerformancePrimitives/MetalPerformancePrimitives.h>");
LIST(lint_pragmas, "clang loop unroll(full)", "clang fp contract(off)", "METAL fp math_mode(safe)",
     "METAL fp contract(off)");
LIST(lint_spaces, "device", "constant", "threadgroup", "thread");
LIST(lint_attributes, "kernel", "max_total_threads_per_threadgroup", "buffer",
     "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
     "simdgroups_per_threadgroup", "threadgroup_position_in_grid", "threadgroups_per_grid");

/* Types without metal::. */
LIST(lint_types, "void", "bool", "char", "uchar", "short", "ushort", "int", "uint", "unsigned",
     "ulong", "size_t", "float", "bfloat", "half", "int32_t", "uint32_t", "uint2", "uint3", "uint4",
     "float2", "float4", "ushort4", "atomic_uint");

/* Functions and types with metal:: or mpp::. */
LIST(lint_metal,
     /* arithmetic */
     "metal::fma", "metal::precise::sqrt",
     /* synchronisation */
     "metal::threadgroup_barrier", "metal::simdgroup_barrier", "metal::mem_flags::mem_device",
     "metal::mem_flags::mem_threadgroup", "metal::atomic_fetch_add_explicit",
     "metal::atomic_load_explicit", "metal::atomic_store_explicit", "metal::atomic_thread_fence",
     "metal::memory_order_relaxed", "metal::memory_order_seq_cst", "metal::thread_scope_device",
     /* simdgroup functions */
     "metal::simd_shuffle", "metal::simd_shuffle_xor", "metal::simd_sum", "metal::simd_min",
     "metal::simd_max", "metal::simd_prefix_exclusive_sum", "metal::simd_ballot",
     "metal::simd_vote::vote_t",
     /* matrices of simdgroups */
     "metal::simdgroup_float8x8", "metal::simdgroup_multiply_accumulate",
     /* tensors (Metal 4) */
     "metal::tensor", "metal::dextents", "metal::tensor_inline", "metal::execution_simdgroup",
     "metal::uint4b_format", "metal::remove_addrspace_t", "mpp::tensor_ops::matmul2d",
     "mpp::tensor_ops::matmul2d_descriptor", "mpp::tensor_ops::matmul2d_descriptor::mode::multiply",
     "mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate");

/* Words of C++ that Metal does not have, or that the kernels do without. */
LIST(lint_banned, "goto", "new", "delete", "throw", "try", "catch", "virtual", "operator", "class",
     "private", "protected", "public", "friend", "union", "double", "volatile", "mutable",
     "thread_local", "asm", "dynamic_cast", "typeid", "reinterpret_cast", "const_cast", "explicit",
     "extern", "register", "wchar_t", "long", "nullptr", "noexcept", "alignas", "alignof",
     "concept", "requires", "co_await", "export", "this", "threadgroup_imageblock", "ray_data",
     "object_data", "imageblock", "visible", "stitchable", "restrict", "signed");

/* Names of Metal's that a name of ours must not be, with or without a meaning here: keywords, types
 * that the kernels do without, functions of namespace metal, macros of its headers. */
LIST(lint_taken,
     /* keywords and types */
     "kernel", "vertex", "fragment", "intersection", "mesh", "object", "sampler", "texture",
     "depth2d", "texture1d", "texture2d", "texture3d", "texturecube", "texture_buffer", "patch",
     "array", "array_ref", "vec", "matrix", "packed_float2", "packed_float3", "packed_float4",
     "packed_uint4", "packed_half4", "float3", "half2", "half3", "half4", "bfloat2", "bfloat3",
     "bfloat4", "int2", "int3", "int4", "short2", "short3", "short4", "ushort2", "ushort3", "char2",
     "char3", "char4", "uchar2", "uchar3", "uchar4", "long2", "long4", "ulong2", "ulong4", "bool2",
     "bool3", "bool4", "int8_t", "uint8_t", "int16_t", "uint16_t", "int64_t", "uint64_t",
     "ptrdiff_t", "float2x2", "float3x3", "float4x4", "half4x4", "atomic_int", "atomic_bool",
     "atomic_float", "atomic_ulong", "atomic", "tensor", "tensor_inline", "tensor_handle",
     "extents", "dextents", "dynamic_extent", "command_buffer", "compute_pipeline_state",
     "coherent", "access", "ray", "instance_acceleration_structure",
     "primitive_acceleration_structure", "intersector", "visible_function_table",
     "function_constant", "host_name", "stage_in", "buffer", "thread_position_in_grid",
     "simdgroup_matrix", "simdgroup_float8x8", "simdgroup_half8x8", "simd_vote", "mem_flags",
     "memory_order", "thread_scope", "memory_order_relaxed", "memory_order_seq_cst",
     "thread_scope_device", "execution_simdgroup", "execution_simdgroups", "execution_thread",
     "mpp", "tensor_ops", "matmul2d", "matmul2d_descriptor",
     /* common, integer, relational functions */
     "clamp", "mix", "saturate", "sign", "smoothstep", "step", "abs", "absdiff", "addsat", "clz",
     "ctz", "extract_bits", "hadd", "insert_bits", "mad24", "madhi", "madsat", "max", "max3",
     "median3", "min", "min3", "mul24", "mulhi", "popcount", "reverse_bits", "rhadd", "rotate",
     "subsat", "all", "any", "isfinite", "isinf", "isnan", "isnormal", "isordered", "isunordered",
     "not", "select", "signbit",
     /* mathematics */
     "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh",
     "cospi", "divide", "exp", "exp10", "exp2", "fabs", "fdim", "floor", "fma", "fmax", "fmax3",
     "fmedian3", "fmin", "fmin3", "fmod", "fract", "frexp", "ilogb", "ldexp", "log", "log10",
     "log2", "modf", "nextafter", "pow", "powr", "rint", "round", "rsqrt", "sin", "sincos", "sinh",
     "sinpi", "sqrt", "tan", "tanh", "tanpi", "trunc", "precise", "fast",
     /* geometry, packing */
     "cross", "distance", "distance_squared", "dot", "faceforward", "length", "length_squared",
     "normalize", "reflect", "refract", "determinant", "transpose", "pack_float_to_unorm4x8",
     "unpack_unorm4x8_to_float",
     /* threads of a group */
     "threadgroup_barrier", "simdgroup_barrier", "quad_sum", "quad_shuffle", "quad_broadcast",
     "simd_all", "simd_any", "simd_and", "simd_or", "simd_xor", "simd_sum", "simd_product",
     "simd_min", "simd_max", "simd_ballot", "simd_broadcast", "simd_broadcast_first",
     "simd_is_first", "simd_is_helper_thread", "simd_active_threads_mask", "simd_shuffle",
     "simd_shuffle_xor", "simd_shuffle_up", "simd_shuffle_down", "simd_shuffle_rotate_up",
     "simd_shuffle_rotate_down", "simd_shuffle_and_fill_up", "simd_shuffle_and_fill_down",
     "simd_prefix_exclusive_sum", "simd_prefix_inclusive_sum", "simd_prefix_exclusive_product",
     "simdgroup_load", "simdgroup_store", "simdgroup_multiply", "simdgroup_multiply_accumulate",
     "simdgroup_async_copy", "simdgroup_event", "make_filled_simdgroup_matrix", "atomic_fence",
     "atomic_load_explicit", "atomic_store_explicit", "atomic_fetch_add_explicit",
     "atomic_exchange_explicit", "atomic_thread_fence", "as_type_packed", "get_num_samples",
     /* namespaces and helpers of its library */
     "distribution", "numeric_limits", "enable_if", "enable_if_t", "is_same", "is_same_v",
     "remove_addrspace_t", "conditional_t", "forward", "move", "swap", "declval", "index_sequence",
     "make_index_sequence", "integral_constant", "true_type", "false_type", "os_log",
     /* macros */
     "NULL", "INFINITY", "NAN", "HUGE_VALF", "MAXFLOAT", "FLT_MAX", "FLT_MIN", "FLT_EPSILON",
     "INT_MAX", "UINT_MAX", "M_PI_F", "M_E_F", "M_LN2_F", "M_LOG2E_F", "M_SQRT2_F", "assert",
     "METAL_FUNC", "METAL_ALIGN");

#undef LIST
#endif
