// The work of a block of BLOCK threads: see opencl/attention.h, whose counterpart this is. Lane
// groups lie within warps, so their sums go by shuffles and need no shared memory.
//
// Every loop around a shuffle is the same for all threads of a block: lane groups without work
// of their own do another one's, and do not store it.
#include "cache.h"

typedef Side<K_TYPE, K_DIM, K_PACK, K_LANES, K_ACROSS, K_HELD> K;
typedef Side<V_TYPE, V_DIM, V_PACK, V_LANES, V_ACROSS, V_HELD> V;

#define STEP (DEPTH * K::SUBS)  // tokens that a block takes at once
#define WIDE_GROUPS ((K_DIM + 31) / 32)

__device__ __forceinline__ float warp_sum(float value, int lanes) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

// q of the heads that a lane group holds. `most` is shared memory for the largest magnitudes.
__device__ __forceinline__ void load_queries(Query<K> *query, const XT *q, float *most,
                                             unsigned slab, unsigned across, unsigned lane) {
#if QUANT_Q
    for (unsigned n = threadIdx.x; n < K_ACROSS * K_HELD * WIDE_GROUPS; n += BLOCK) {
        const unsigned head = existing(slab * K_ACROSS * K_HELD + n / WIDE_GROUPS);
        float top = 0;
        for (int j = 0; j < 32; j++)
            top = fmaxf(top, fabsf(load_x(q + head * K_DIM + n % WIDE_GROUPS * 32 + j)));
        most[n] = top;
    }
    __syncthreads();
#endif
#pragma unroll
    for (int r = 0; r < K_HELD; r++)
        query[r].load(q + existing(K::head(slab, across, r)) * K_DIM,
                      most + (r * K_ACROSS + across) * WIDE_GROUPS, lane);
}

// Products of DEPTH tokens from `base` on with the heads held, in every lane of the group.
// Tokens past `last` read the row of the last one again.
__device__ __forceinline__ void dot_rows(float (&sums)[DEPTH][K_HELD], const Query<K> *query,
                                         const unsigned char *k, unsigned long long k_token,
                                         unsigned long long k_head, unsigned slab,
                                         unsigned across, unsigned sub, unsigned lane,
                                         unsigned base, unsigned last) {
    Fragment<K> rows[DEPTH][K::ROWS];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        const unsigned char *token = k + min(base + d * K::SUBS + sub, last - 1) * k_token;
#pragma unroll
        for (int w = 0; w < K::ROWS; w++)
            rows[d][w].load(token + existing(K::head(slab, across, w)) / RATIO * k_head, lane);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
#pragma unroll
        for (int r = 0; r < K_HELD; r++)
            sums[d][r] = warp_sum(query[r].dot(rows[d][SHARED ? 0 : r]), K_LANES);
}

// A lane's sums over tokens, of the heads that its group holds.
struct Sums {
    float v[V_HELD][V::LOADS][V::WIDTH];

    // DEPTH tokens: p times the rows that `token` gives.
    __device__ __forceinline__ void add(const float (&p)[DEPTH][V_HELD],
                                        const unsigned char *const (&token)[DEPTH],
                                        unsigned long long v_head, unsigned slab, unsigned across,
                                        unsigned lane) {
        Fragment<V> rows[DEPTH][V::ROWS];
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
#pragma unroll
            for (int w = 0; w < V::ROWS; w++)
                rows[d][w].load(token[d] + existing(V::head(slab, across, w)) / RATIO * v_head,
                                lane);
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
#pragma unroll
            for (int r = 0; r < V_HELD; r++)
#pragma unroll
                for (int l = 0; l < V::LOADS; l++) {
                    const Fragment<V> &row = rows[d][SHARED ? 0 : r];
                    const float weight = p[d][r] * row.factor[l];
#pragma unroll
                    for (int e = 0; e < V::WIDTH; e++)
                        v[r][l][e] = fmaf(weight, row.value(l, e), v[r][l][e]);
                }
    }

    // The r-th head's to its place among those of all lane groups.
    __device__ __forceinline__ void put(float *part, int r, unsigned group, unsigned lane) const {
#pragma unroll
        for (int l = 0; l < V::LOADS; l++)
#pragma unroll
            for (int e = 0; e < V::WIDTH; e++)
                if (V::holds(V::first(l, lane)))
                    part[group * V_DIM + V::first(l, lane) + e] = v[r][l][e];
    }
};
