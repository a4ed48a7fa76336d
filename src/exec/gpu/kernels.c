/* The kernel table. */
#include "exec/gpu/device.h"

const kernel_info kernel_table[KERNEL_COUNT + 1] = {
#define K(name, threads, bindings) {#name, threads, bindings},
#include "kernels/kernels.inc"
#undef K
    {NULL, 0, 0}};
