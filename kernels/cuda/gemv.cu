// y = W x by S1's kernel with S2's levers: a block of BLOCK threads owns ROWS rows,
// consecutive threads read consecutive packs, and one loaded x pack serves every row.
//
// Constants: those of types.h, and ROWS (1, 2, 4) and BLOCK (64 to 512, whole warps).
// UNROLL fixes how many loads of a row are in flight; 0 leaves it to the compiler.
// EXTRA rows behind the last are computed too, into y[n] and on: a planted effect.
// The block count is ceil((n + EXTRA) / ROWS). ACC 16 keeps half sums per thread; the
// reduction over the block is in float, which costs nothing and keeps its error out of the
// figure.
// Every fused operation is written out, so the bits do not depend on ROWS.
#include "types.h"

#ifndef UNROLL
#define UNROLL 0
#endif
#ifndef EXTRA
#define EXTRA 0
#endif
#define WARP 32
#define WARPS (BLOCK / WARP)

// The sum over each group of `lanes` neighbouring lanes, in all of them.
__device__ __forceinline__ float butterfly(float v, int lanes) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv_row(const WT *__restrict__ w, const XT *__restrict__ x, float *__restrict__ y,
         unsigned k, unsigned n, unsigned long long w_offset, unsigned x_offset) {
    __shared__ float parts[ROWS][WARPS];
    const unsigned row = blockIdx.x * ROWS, end = n + EXTRA;

    // Rows past the end read the last row again, and are not stored.
    const WT *rows[ROWS];
    Values acc[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        rows[r] = w + w_offset + (unsigned long long)min(row + r, end - 1) * k;
    x += x_offset;
    // The compiler's own choice is best or close to it but for these two (H200: 5 to 15 %).
#if UNROLL > 0
#pragma unroll UNROLL
#elif ROWS == 4 && PACK == 1
#pragma unroll 4
#elif ROWS == 4 && PACK == 3
#pragma unroll 2
#endif
    for (unsigned i = threadIdx.x * WIDTH; i < k; i += BLOCK * WIDTH) {
        const Values xs = load_x(x + i);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            accumulate(acc[r], load_w(rows[r] + i), xs);
    }

    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float v = butterfly(sum(acc[r]), WARP);
        if (lane == 0)
            parts[r][warp] = v;
    }
    __syncthreads();
    if (warp > 0)
        return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float v = butterfly(lane < WARPS ? parts[r][lane] : 0, WARPS);
        if (lane == 0 && row + r < end)
            y[row + r] = v;
    }
}
