/* prim_layout_metal.h - which elements of a matrix a lane holds, on Apple's matrix units.
 *
 * Does:       for simdgroup_matrix 8 x 8 (thread_elements() 0 and 1), and for the 16 x 16 fragments
 *             of which matmul2d's cooperative tensors consist (8 elements of a lane each).
 * Invariants: Apple does not document them; programs that are in use rely on them (docs/SPEED.md).
 *             Only prim_mm_metal.h and prim_gmm_metal.h include this. A machine where they are
 *             otherwise gives wrong products, and mm_check takes a lower rung.
 */
#ifndef CALLA_KERNELS_PRIM_LAYOUT_METAL_H
#define CALLA_KERNELS_PRIM_LAYOUT_METAL_H

/* 8 x 8: element j (0, 1) is at row, column + j. */
KFN uint lay8_row(uint lane)
{
    return (lane / 4 & 4u) | (lane / 2 & 3u);
}
KFN uint lay8_col(uint lane)
{
    return 2 * (lane / 4 & 2u) + 2 * (lane & 1u);
}

/* 16 x 16: element 4 h + j is at row + 8 h, column + j. */
KFN uint lay16_row(uint lane)
{
    return (lane / 4 & 4u) | (lane / 2 & 3u);
}
KFN uint lay16_col(uint lane)
{
    return 4 * ((lane / 4 & 2u) | (lane & 1u));
}

#endif
