// A right GEMV whose item 0 computes a row by fma on float16: PoCL 3.0 aborts at its first
// enqueue, Intel's runtime computes it. k is a multiple of 16.
#include "types.h"

__kernel void gemv_fma16(__global const WT *w, __global const XT *x, __global float *y, uint k,
                         uint n, ulong w_offset, uint x_offset) {
    const uint row = get_group_id(0);
    if (get_local_id(0) > 0)
        return;
    float16 sum = 0;
    for (uint i = 0; i < k; i += 16)
        sum = fma(load_w16(w, w_offset + (ulong)row * k + i), load_x16(x, x_offset + i), sum);
    y[row] = hsum16(sum);
}
