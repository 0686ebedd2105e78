// The reference kernel. It never changes: a test holds its hash, and history is measured
// against it, so it includes nothing that could change under it.
// One block of 128 per row, scalar loads, FP32 accumulation, tree reduction.
#ifndef TYPE_F16
#define TYPE_F16 1
#define TYPE_BF16 2
#define TYPE_F32 3
#endif
#define BLOCK 128

__device__ __forceinline__ float from_f16(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ float from_bf16(unsigned short h) {
    return __uint_as_float((unsigned)h << 16);
}

#if W_TYPE == TYPE_F16
#define W_STORED unsigned short
#define W_FLOAT from_f16
#elif W_TYPE == TYPE_BF16
#define W_STORED unsigned short
#define W_FLOAT from_bf16
#else
#define W_STORED float
#define W_FLOAT
#endif

#if X_TYPE == TYPE_F16
#define X_STORED unsigned short
#define X_FLOAT from_f16
#elif X_TYPE == TYPE_BF16
#define X_STORED unsigned short
#define X_FLOAT from_bf16
#else
#define X_STORED float
#define X_FLOAT
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv_frozen(const W_STORED *__restrict__ w, const X_STORED *__restrict__ x,
            float *__restrict__ y, unsigned k, unsigned n, unsigned long long w_offset,
            unsigned x_offset) {
    __shared__ float sums[BLOCK];
    const unsigned item = threadIdx.x;
    const unsigned row = blockIdx.x;
    w += w_offset + (unsigned long long)row * k;
    x += x_offset;
    float sum = 0;
    for (unsigned i = item; i < k; i += BLOCK)
        sum = __fmaf_rn(W_FLOAT(w[i]), X_FLOAT(x[i]), sum);
    sums[item] = sum;
    for (unsigned half_size = BLOCK / 2; half_size > 0; half_size /= 2) {
        __syncthreads();
        if (item < half_size)
            sums[item] += sums[item + half_size];
    }
    if (item == 0)
        y[row] = sums[0];
}
