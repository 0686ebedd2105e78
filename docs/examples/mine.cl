// mine.cl: a workgroup per row, for FP16 weights and FP16 x
__kernel void gemv_mine(__global const half *w, __global const half *x, __global float *y,
                        uint k, uint n, ulong w_offset, uint x_offset) {
    __local float sums[BLOCK];
    const uint row = get_group_id(0), item = get_local_id(0);
    float sum = 0;
    for (uint i = item; i < k; i += BLOCK)
        sum += vload_half(w_offset + (ulong)row * k + i, w) * vload_half(x_offset + i, x);
    sums[item] = sum;
    for (uint width = BLOCK / 2; width > 0; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < width)
            sums[item] += sums[item + width];
    }
    if (item == 0)
        y[row] = sums[0];
}
