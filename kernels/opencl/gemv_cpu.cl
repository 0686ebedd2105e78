// y = W x for CPU devices. Each work-item takes a contiguous range of rows, so a
// few work-items (local size 1) read W as a few long streams. Offsets and k
// count elements; for PACK > 0 they are multiples of 1 << PACK.
#include "types.h"

// Elements of x that a work-item converts once, up front, or 0: convert inside
// the loop. Pays where the conversion is slow (HALF_BITS); needs k <= X_CACHE.
#ifndef X_CACHE
#define X_CACHE 0
#endif

// Rows behind the last that are computed too, into y[n] and on: a planted effect.
#ifndef EXTRA
#define EXTRA 0
#endif

#define VEC (1 << PACK)
#define STEP (VEC * ACCS)

#if X_CACHE
typedef const acc_v *x_ptr;
#define X_AT(x, i) (x)[(i) >> PACK]
#else
typedef const __global XT *x_ptr;
#define X_AT(x, i) load_x(x, i)
#endif

static inline float dot_row(const __global WT *w, x_ptr x, uint k) {
    acc_v acc[ACCS];
    #pragma unroll
    for (uint a = 0; a < ACCS; a++)
        acc[a] = (acc_v)0;

    const uint whole = k / STEP * STEP;
    uint i = 0;
    for (; i < whole; i += STEP) {
        // Plain * and +, which the compiler may contract: fma() of float16
        // aborts on PoCL.
        #pragma unroll
        for (uint a = 0; a < ACCS; a++)
            acc[a] += load_w(w, i + a * VEC) * X_AT(x, i + a * VEC);
    }
    for (; i < k; i += VEC)
        acc[0] += load_w(w, i) * X_AT(x, i);

    float total = hsum(acc[0]);
    #pragma unroll
    for (uint a = 1; a < ACCS; a++)
        total += hsum(acc[a]);
    return total;
}

__kernel void gemv_cpu(__global const WT *w, __global const XT *x, __global float *y, uint k,
                       uint n, ulong w_offset, uint x_offset) {
    const ulong item = get_global_id(0), items = get_global_size(0), rows = n + EXTRA;
    const uint end = (item + 1) * rows / items;
    w += w_offset;
    x += x_offset;
#if X_CACHE
    acc_v xs[(X_CACHE + VEC - 1) / VEC];
    for (uint i = 0; i < k; i += VEC)
        xs[i / VEC] = load_x(x, i);
#else
    x_ptr xs = x;
#endif
    for (uint row = item * rows / items; row < end; row++)
        y[row] = dot_row(w + (size_t)row * k, xs, k);
}
