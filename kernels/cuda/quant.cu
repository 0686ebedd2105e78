// y = W x for quantised W. LANES threads share ROWS rows, neighbouring lanes take neighbouring
// units of 16 bytes of quants, and AHEAD units of each row are on their way to every thread. x waits
// in shared memory, as floats or quantised by the block itself (X8), whose first weights are on
// their way by then; a unit of it that is read serves all ROWS rows.
//
// Constants: those of quant.h, and
//   BLOCK      threads, whole warps
//   LANES      8, 16, 32 or whole warps, dividing BLOCK
//   ROWS       rows of LANES threads; a block takes TILE = ROWS * BLOCK / LANES rows at a time
//   AHEAD      units of a row in flight for each thread
//   X_ROUNDS   x is held in pieces of X_ROUNDS * AHEAD * LANES * UNIT elements; at 4 bytes, or 1.25
//              with X8, they must fit in shared memory. Fastest where one piece is the whole x.
//   W_PACK     REPACK and q4_K: 0 to 3. Blocks of q8_0 and q4_0 as in files: 0; 1; 2 and 3, where
//              loads of 8 and 16 bytes bring them to shared memory first (sm_80: without registers),
//              BLOCK * AHEAD * ROWS * 17 bytes of it (q8_0), or 18 (q4_0): LANES 16 or 32.
//   DEPENDENT  as in flight.cu
// Alignment: w + w_offset and rows to the load, 2 << W_PACK bytes; that is, as in files, for q8_0 and
// q4_0 k / 32 even for 1, k % 128 == 0 for 2, k % 256 == 0 for 3. REPACK: k / 32 even, and w to 16.
// The block count is any: blocks go on to further tiles. ceil(n / TILE) of them take one each.
#include "quant.h"

#ifndef DEPENDENT
#define DEPENDENT 0
#endif
#define WARP 32
#define WARPS (BLOCK / WARP)
#define GROUPS (BLOCK / LANES)
#define TILE (ROWS * GROUPS)
#define ROUND (AHEAD * LANES)  // units of a row in one round
#define STAGED (!REPACK && W_TYPE != TYPE_Q4_K && W_PACK > 1)

__device__ __forceinline__ float butterfly(float v, int lanes) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}

// Weights on their way: AHEAD units of ROWS rows.
#if STAGED

#define PIECE (2 << W_PACK)
#define STEP_BYTES (LANES / UNITS_32 * BLOCK_BYTES)  // of a row, for all lanes

__device__ __forceinline__ void copy_piece(Byte *to, const Byte *from) {
#if __CUDA_ARCH__ >= 800
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
#if W_PACK == 3
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(at), "l"(from)
                 : "memory");
#else
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], 8;" ::"r"(at), "l"(from)
                 : "memory");
#endif
#elif W_PACK == 3
    *(uint4 *)to = __ldg((const uint4 *)from);
#else
    *(uint2 *)to = __ldg((const uint2 *)from);
#endif
}

struct Flight {
    Byte *staged;  // the group's, [AHEAD][ROWS][STEP_BYTES]
    unsigned lane;

    __device__ __forceinline__ Flight(unsigned group, unsigned lane_) : lane(lane_) {
        __shared__ __align__(16) Byte all[GROUPS][AHEAD * ROWS * STEP_BYTES];
        staged = all[group];
    }

    // What arrives is waited for in the order of departures, so an empty one counts too.
    __device__ __forceinline__ void depart(const Matrix &w, const unsigned (&rows)[ROWS], int a,
                                           unsigned step, bool there) {
        __syncwarp();  // all lanes are done with what was there
        const unsigned first = step * STEP_BYTES;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const Byte *row = w.quants + rows[r] * w.row_bytes;
            Byte *to = staged + (a * ROWS + r) * STEP_BYTES;
#pragma unroll
            for (unsigned i = lane * PIECE; i < STEP_BYTES; i += LANES * PIECE)
                if (there && first + i < w.row_bytes)
                    copy_piece(to + i, row + first + i);
        }
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }

    __device__ __forceinline__ void arrive() {
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
#endif
        __syncwarp();
    }

    __device__ __forceinline__ Unit take(int a, int r) const {
        Unit unit;
        unit_in_shared(unit, staged + (a * ROWS + r) * STEP_BYTES, lane);
        return unit;
    }
};

#else

struct Flight {
    Unit held[AHEAD][ROWS];
    unsigned lane;

    __device__ __forceinline__ Flight(unsigned, unsigned lane_) : lane(lane_) {}

    __device__ __forceinline__ void depart(const Matrix &w, const unsigned (&rows)[ROWS], int a,
                                           unsigned step, bool there) {
        const unsigned u = step * LANES + lane;
        if (!there || u * UNIT >= w.row_scales * 32)
            return;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            w.load(held[a][r], rows[r], u);
    }

    __device__ __forceinline__ void arrive() {}
    __device__ __forceinline__ const Unit &take(int a, int r) const { return held[a][r]; }
};

#endif

// Rows of a group in a tile. Those past the end read the last row again, and are not stored.
__device__ __forceinline__ void rows_of(unsigned (&rows)[ROWS], unsigned tile, unsigned group,
                                        unsigned n) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        rows[r] = min(tile * TILE + group * ROWS + r, n - 1);
}

__device__ __forceinline__ void store(float *y, const float (&acc)[ROWS], unsigned tile,
                                      unsigned group, unsigned lane, unsigned n) {
    const unsigned row = tile * TILE + group * ROWS;
#if LANES > WARP
    __shared__ float parts[ROWS][WARPS];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float v = butterfly(acc[r], WARP);
        if (lane % WARP == 0)
            parts[r][threadIdx.x / WARP] = v;
    }
    __syncthreads();
    if (lane < ROWS && row + lane < n) {
        float v = 0;
        for (unsigned i = 0; i < LANES / WARP; i++)
            v += parts[lane][group * (LANES / WARP) + i];
        y[row + lane] = v;
    }
#else
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float v = butterfly(acc[r], LANES);
        if (lane == 0 && row + r < n)
            y[row + r] = v;
    }
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv_quant(const Byte *__restrict__ bytes, const XT *__restrict__ x, float *__restrict__ y,
           unsigned k, unsigned n, unsigned long long w_offset, unsigned x_offset) {
    __shared__ Held<X_ROUNDS * ROUND * UNIT> held;
    const unsigned lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const unsigned units = k / UNIT, rounds = (units + ROUND - 1) / ROUND;
    const unsigned tiles = (n + TILE - 1) / TILE;
    const Matrix w(bytes + w_offset, k, n);
    const bool wide = x_offset % 8 == 0;
    x += x_offset;

    const unsigned power = POWER | n >> 31;  // n is below 2^31, which the compiler cannot know
    unsigned rows[ROWS];
    rows_of(rows, blockIdx.x, group, n);
    Flight flight(group, lane);
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
        flight.depart(w, rows, a, a, blockIdx.x < tiles);
#if DEPENDENT
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif

    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float acc[ROWS] = {};
        for (unsigned round = 0; round < rounds; round++) {
            const unsigned base = round / X_ROUNDS * (X_ROUNDS * ROUND);  // first unit of x held
            if (round % X_ROUNDS == 0 && (tile == blockIdx.x || rounds > X_ROUNDS)) {
                __syncthreads();
                held.fill(x + base * UNIT, min(X_ROUNDS * ROUND, units - base) * UNIT, wide);
                __syncthreads();
            }
            const bool last = round + 1 == rounds;
            const unsigned next = last ? 0 : round + 1;
            if (last)
                rows_of(rows, tile + gridDim.x, group, n);
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const unsigned u = (round * AHEAD + a) * LANES + lane;
                flight.arrive();
                if (u < units) {
                    const XUnit xs = held.unit(u - base);
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        acc[r] += dot(flight.take(a, r), xs, u, power);
                }
                flight.depart(w, rows, a, next * AHEAD + a, !last || tile + gridDim.x < tiles);
            }
        }
        store(y, acc, tile, group, lane, n);
    }
}
