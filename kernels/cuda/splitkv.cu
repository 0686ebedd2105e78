// Attention of one query position in one pass over the cache: blocks take ranges of tokens with
// an online softmax (running maximum m, sum l of exp(score - m), sums of values), and a second
// launch merges the ranges, or with FUSED the last block of a slab that is done. Heads that share a
// KV head are held together.
//
// Constants: those of attention.h with ACROSS 1 and SHARED 1, TILE, tokens (a multiple of STEP)
// whose scores are made before their values are added, and FUSED. With it `partial` begins with a
// count of blocks that are done for each slab, COUNTERS words in all; they are zero before and after
// each launch.
#include "attention.h"

#define HELD K_HELD
#define WARPS (BLOCK / 32)
#define COUNTERS (FUSED ? (HEADS + 63) / 64 * 64 : 0)

// One head's scores of a tile become exp(score - m), with the new maximum; by one warp.
__device__ __forceinline__ void exponentiate(float *score, unsigned count, float &m,
                                             float &shrink) {
    const unsigned lane = threadIdx.x % 32;
    const float old = m;
    float top = old;
    for (unsigned t = lane; t < count; t += 32)
        top = fmaxf(top, score[t]);
    top = warp_max(top);
    for (unsigned t = lane; t < count; t += 32)
        score[t] = expf(score[t] - top);
    if (lane == 0) {
        shrink = expf(old - top);
        m = top;
    }
}

// The ranges of a head, weighed by their maxima; by one block. Other blocks of this launch may have
// written them: not from the first cache.
__device__ __forceinline__ void merge_head(unsigned head, const float *sums, float *out,
                                           unsigned splits) {
    const float *ml = sums + splits * HEADS * V_DIM + 2 * head;
    float top = __int_as_float(0xff800000), total = 0;
    for (unsigned range = 0; range < splits; range++)
        top = fmaxf(top, __ldcg(ml + 2 * HEADS * range));
    for (unsigned range = 0; range < splits; range++)
        total += __ldcg(ml + 2 * HEADS * range + 1) * expf(__ldcg(ml + 2 * HEADS * range) - top);
    for (unsigned d = threadIdx.x; d < V_DIM; d += BLOCK) {
        float sum = 0;
        for (unsigned range = 0; range < splits; range++)
            sum += __ldcg(sums + (range * HEADS + head) * V_DIM + d) *
                   expf(__ldcg(ml + 2 * HEADS * range) - top);
        out[head * V_DIM + d] = sum / total;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) attn_splitkv(ARGUMENTS) {
    __shared__ float most[QUANT_Q ? HELD * WIDE_GROUPS : 1];
    __shared__ float score[HELD][TILE], m[HELD], shrink[HELD];
    __shared__ float part[V::GROUPS * V_DIM], sums_of[V::GROUPS];
    float *results = partial + COUNTERS;
    const unsigned k_lane = threadIdx.x % K_LANES, k_sub = threadIdx.x / K_LANES;
    const unsigned v_lane = threadIdx.x % V_LANES, v_sub = threadIdx.x / V_LANES;
    const unsigned slab = blockIdx.x / splits, range = blockIdx.x % splits;
    const unsigned first = range * v_chunk, last = min(tokens, first + v_chunk);

    Query<K> query[HELD];
    load_queries(query, q, most, slab, 0, k_lane);
    Sums sums = {};
    float l[HELD] = {};
    if (threadIdx.x < HELD)
        m[threadIdx.x] = __int_as_float(0xff800000);

    for (unsigned tile = first; tile < last; tile += TILE) {
        const unsigned count = min(TILE, last - tile);
        for (unsigned base = 0; base < count; base += STEP) {
            float dots[DEPTH][HELD];
            dot_rows(dots, query, k + k_offset, k_token, k_head, slab, 0, k_sub, k_lane,
                     tile + base, last);
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const unsigned t = base + d * K::SUBS + k_sub;
#pragma unroll
                for (int r = 0; r < HELD; r++)
                    if (k_lane == 0 && t < count)
                        score[r][t] = scale * dots[d][r];
            }
        }
        __syncthreads();
        for (unsigned r = threadIdx.x / 32; r < HELD; r += WARPS)
            exponentiate(score[r], count, m[r], shrink[r]);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < HELD; r++) {
            const float factor = shrink[r];
            l[r] *= factor;
#pragma unroll
            for (int n = 0; n < V::LOADS; n++)
#pragma unroll
                for (int e = 0; e < V::WIDTH; e++)
                    sums.v[r][n][e] *= factor;
        }
        for (unsigned base = v_sub; base < count; base += DEPTH * V::SUBS) {
            float p[DEPTH][HELD];
            const unsigned char *token[DEPTH];
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const unsigned t = min(base + d * V::SUBS, count - 1);
                token[d] = v + v_offset + (tile + t) * v_token;
#pragma unroll
                for (int r = 0; r < HELD; r++) {
                    p[d][r] = base + d * V::SUBS < count ? score[r][t] : 0;
                    l[r] += p[d][r];
                }
            }
            sums.add(p, token, v_head, slab, 0, v_lane);
        }
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < HELD; r++) {
        const unsigned head = K::head(slab, 0, r), place = range * HEADS + head;
        sums.put(part, r, v_sub, v_lane);
        if (v_lane == 0)
            sums_of[v_sub] = l[r];
        __syncthreads();
        float total = 0;
        for (int s = 0; s < V::SUBS; s++)
            total += sums_of[s];
        for (unsigned d = threadIdx.x; d < V_DIM; d += BLOCK) {
            float sum = 0;
            for (int s = 0; s < V::SUBS; s++)
                sum += part[s * V_DIM + d];
            if (splits == 1)
                out[head * V_DIM + d] = sum / total;
            else
                results[place * V_DIM + d] = sum;
        }
        if (splits > 1 && threadIdx.x == 0) {
            float *ml = results + splits * HEADS * V_DIM + 2 * place;
            ml[0] = m[r];
            ml[1] = total;
        }
        __syncthreads();
    }
#if FUSED
    __shared__ unsigned place;
    if (splits == 1)
        return;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        place = atomicInc((unsigned *)partial + slab, splits - 1);  // wraps to 0 at the last
        __threadfence();
    }
    __syncthreads();
    if (place == splits - 1)
        for (int r = 0; r < HELD; r++)
            merge_head(K::head(slab, 0, r), results, out, splits);
#endif
}

// A block for each head.
extern "C" __global__ void __launch_bounds__(BLOCK) attn_merge(ARGUMENTS) {
    merge_head(blockIdx.x, partial + COUNTERS, out, splits);
}
