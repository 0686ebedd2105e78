// mine.cu: a block per row, for FP16 weights and FP16 x
#include <cuda_fp16.h>

extern "C" __global__ void gemv_mine(const half *w, const half *x, float *y, unsigned k, unsigned n,
                                     unsigned long long w_offset, unsigned x_offset) {
    __shared__ float sums[BLOCK];
    const unsigned row = blockIdx.x, item = threadIdx.x;
    float sum = 0;
    for (unsigned i = item; i < k; i += BLOCK)
        sum += __half2float(w[w_offset + (unsigned long long)row * k + i]) *
               __half2float(x[x_offset + i]);
    sums[item] = sum;
    for (unsigned width = BLOCK / 2; width > 0; width /= 2) {
        __syncthreads();
        if (item < width)
            sums[item] += sums[item + width];
    }
    if (item == 0)
        y[row] = sums[0];
}
