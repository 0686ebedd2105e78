// y = W x by S1's kernel with S2's levers: a workgroup of BLOCK items owns ROWS rows,
// consecutive items read consecutive packs, and one loaded x pack serves every row.
//
// Constants: those of types.h, and ROWS (1, 2, 4) and BLOCK (a power of two, 64 to 512).
// UNROLL fixes how many loads of a row are in flight; 0 leaves it to the compiler.
// EXTRA rows behind the last are computed too, into y[n] and on: a planted effect.
// The group count is ceil((n + EXTRA) / ROWS). ACC 16 keeps half sums per item; the
// reduction over the workgroup is in float, which costs nothing and keeps its error out of
// the figure.
#include "types.h"

#ifndef UNROLL
#define UNROLL 0
#endif
#ifndef EXTRA
#define EXTRA 0
#endif

// The bits may not depend on ROWS, so nobody but this file decides what is fused: the
// built-in where a GPU has it in hardware (NVIDIA's compiler does not say so; CPUs get
// HALF_BITS, and PoCL's wide fma aborts), and otherwise two roundings.
#pragma OPENCL FP_CONTRACT OFF
#if (defined(FP_FAST_FMAF) || defined(__NV_CL_C_VERSION)) && ACC == 32 && HALF != HALF_BITS
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

// GPUs load words and convert them in registers: NVIDIA's compiler makes eight loads of
// 2 bytes of a vload_half8 (or a vloada_half8) from memory, and two of an aligned ushort8.
#if HALF == HALF_VLOAD && PACK > 0
#if PACK == 1
#define PACKED(f) f##2
#define PACKED_WORDS(f) f
#elif PACK == 2
#define PACKED(f) f##4
#define PACKED_WORDS(f) f##2
#else
#define PACKED(f) f##8
#define PACKED_WORDS(f) f##4
#endif
typedef PACKED_WORDS(uint) words_t;
static inline acc_v words_f16(const words_t u) {
#if ACC == 16
    return PACKED(as_half)(u);
#else
    return PACKED(vload_half)(0, (const __private half *)&u);
#endif
}
#if ACC == 32
// By shifts of whole words: through as_ushort8 NVIDIA's compiler splits the load again.
static inline acc_v words_bf16(const words_t u) {
    const PACKED_WORDS(float) low = PACKED_WORDS(as_float)(u << 16);
    const PACKED_WORDS(float) high = PACKED_WORDS(as_float)(u & 0xffff0000u);
#if PACK == 1
    return (acc_v)(low, high);
#elif PACK == 2
    return (acc_v)(low.x, high.x, low.y, high.y);
#else
    return (acc_v)(low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w);
#endif
}
#endif
#if W_TYPE == TYPE_F16
#define LOAD_W(p, i) words_f16(*(const __global words_t *)((p) + (i)))
#else
#define LOAD_W(p, i) words_bf16(*(const __global words_t *)((p) + (i)))
#endif
#if X_TYPE == TYPE_F16
#define LOAD_X(p, i) words_f16(*(const __global words_t *)((p) + (i)))
#elif X_TYPE == TYPE_F32
#define LOAD_X load_x
#else
#define LOAD_X(p, i) words_bf16(*(const __global words_t *)((p) + (i)))
#endif
#else
#define LOAD_W load_w
#define LOAD_X load_x
#endif

#define FAN 16               // values that one item sums in the first stage
#define PARTS (BLOCK / FAN)  // and the second

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void gemv_row(__global const WT *restrict w, __global const XT *restrict x,
              __global float *restrict y, uint k, uint n, ulong w_offset, uint x_offset) {
    __local float sums[ROWS * BLOCK];
    __local float parts[ROWS * PARTS];
    const uint item = get_local_id(0);
    const uint row = get_group_id(0) * ROWS, end = n + EXTRA;

    // Rows past the end read the last row again, and are not stored.
    const __global WT *rows[ROWS];
    acc_v acc[ROWS];
    #pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        rows[r] = w + w_offset + (ulong)min(row + r, end - 1) * k;
        acc[r] = (acc_v)0;
    }
    x += x_offset;
#if UNROLL == 1
    #pragma unroll 1
#elif UNROLL == 2
    #pragma unroll 2
#elif UNROLL == 4
    #pragma unroll 4
#elif UNROLL == 8
    #pragma unroll 8
#elif ROWS == 4 && PACK > 0
    // NVIDIA's compiler does not unroll this by itself, and loses a third (H200). With fewer
    // rows or scalar loads it does, and a pragma loses as much.
    #pragma unroll 2
#endif
    for (uint i = item << PACK; i < k; i += BLOCK << PACK) {
        const acc_v xs = LOAD_X(x, i);
        #pragma unroll
        for (uint r = 0; r < ROWS; r++)
            acc[r] = MULTIPLY_ADD(LOAD_W(rows[r], i), xs, acc[r]);
    }
    #pragma unroll
    for (uint r = 0; r < ROWS; r++)
        sums[r * BLOCK + item] = hsum(acc[r]);

    // Two barriers in all; a halving tree needs one per level.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < ROWS * PARTS) {
        const uint first = item / PARTS * BLOCK + item % PARTS;
        float sum = sums[first];
        for (uint j = 1; j < FAN; j++)
            sum += sums[first + j * PARTS];
        parts[item] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < ROWS && row + item < end) {
        float sum = parts[item * PARTS];
        for (uint j = 1; j < PARTS; j++)
            sum += parts[item * PARTS + j];
        y[row + item] = sum;
    }
}
