// A workgroup per ROWS rows, scalar vload_half, ROWS >= 2. The project's notes report that
// Intel's CPU runtime got 300 of 301 rows of such a kernel wrong, and none with
// -cl-opt-disable. Not seen again: 2026.22.10.0.01 (intel-opencl-rt 2026.2.0, AVX-512 EPYC)
// and PoCL 3.0 are right with ROWS 1, 2 and 4. Kept to notice it on another version.
// Launch ceil(n / ROWS) * BLOCK work-items; with n = 301 the last group has one row.
#ifndef ROWS
#define ROWS 2
#endif
#define BLOCK 64

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void gemv_rows(__global const half *w, __global const float *x, __global float *y, uint k, uint n) {
    __local float sums[ROWS * BLOCK];
    const uint item = get_local_id(0), row = get_group_id(0) * ROWS;
    float acc[ROWS];
    for (uint r = 0; r < ROWS; r++)
        acc[r] = 0;
    for (uint i = item; i < k; i += BLOCK)
        for (uint r = 0; r < ROWS; r++)
            acc[r] += vload_half((size_t)min(row + r, n - 1) * k + i, w) * x[i];
    for (uint r = 0; r < ROWS; r++)
        sums[r * BLOCK + item] = acc[r];
    for (uint half_block = BLOCK / 2; half_block > 0; half_block /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_block)
            for (uint r = 0; r < ROWS; r++)
                sums[r * BLOCK + item] += sums[r * BLOCK + item + half_block];
    }
    if (item < ROWS && row + item < n)
        y[row + item] = sums[item * BLOCK];
}
