// The reference kernel. It never changes: a test holds its hash, and history is measured
// against it, so it includes nothing that could change under it.
// One workgroup of 128 per row, scalar loads, FP32 accumulation, tree reduction.
#ifndef TYPE_F16
#define TYPE_F16 1
#define TYPE_BF16 2
#define TYPE_F32 3
#endif
#define BLOCK 128

#pragma OPENCL FP_CONTRACT OFF

static float from_f16(ushort h) {
    const uint magnitude = (uint)(h & 0x7fff) << 13, sign = (uint)(h & 0x8000) << 16;
    if (magnitude >= 0x0f800000)  // Inf and NaN
        return as_float(sign | magnitude | 0x7f800000);
    if (magnitude >= 0x00800000)  // normal: only the exponent's bias differs
        return as_float(sign | (magnitude + 0x38000000));
    // Subnormal: an integer times 2**-24, exact in float.
    return as_float(sign | as_uint((float)(h & 0x03ff) * 0x1p-24f));
}

static float from_bf16(ushort h) {
    return as_float((uint)h << 16);
}

#if W_TYPE == TYPE_F16
#define W_STORED ushort
#define W_FLOAT from_f16
#elif W_TYPE == TYPE_BF16
#define W_STORED ushort
#define W_FLOAT from_bf16
#else
#define W_STORED float
#define W_FLOAT
#endif

#if X_TYPE == TYPE_F16
#define X_STORED ushort
#define X_FLOAT from_f16
#elif X_TYPE == TYPE_BF16
#define X_STORED ushort
#define X_FLOAT from_bf16
#else
#define X_STORED float
#define X_FLOAT
#endif

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void gemv_frozen(__global const W_STORED *w, __global const X_STORED *x, __global float *y,
                 uint k, uint n, ulong w_offset, uint x_offset) {
    __local float sums[BLOCK];
    const uint item = get_local_id(0);
    const uint row = get_group_id(0);
    w += w_offset + (ulong)row * k;
    x += x_offset;
    float sum = 0;
    for (uint i = item; i < k; i += BLOCK)
        sum += W_FLOAT(w[i]) * X_FLOAT(x[i]);
    sums[item] = sum;
    for (uint half_size = BLOCK / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_size)
            sums[item] += sums[item + half_size];
    }
    if (item == 0)
        y[row] = sums[0];
}
