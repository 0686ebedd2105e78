// Attention of one query position in several launches: scores, softmax, values, and the sum of
// partial results where the tokens of a head are split over blocks. per_head, gqa and
// token_major are these kernels with other constants: see attention.h.
#include "attention.h"

// scores[h][t] = scale q[h] . k[t][h / RATIO]
extern "C" __global__ void __launch_bounds__(BLOCK) attn_kq(ARGUMENTS) {
    __shared__ float most[QUANT_Q ? K_ACROSS * K_HELD * WIDE_GROUPS : 1];
    const unsigned lane = threadIdx.x % K_LANES, group = threadIdx.x / K_LANES;
    const unsigned across = group % K_ACROSS, sub = group / K_ACROSS;
    const unsigned ranges = gridDim.x / K::SLABS;
    const unsigned slab = blockIdx.x / ranges, first = blockIdx.x % ranges * k_chunk;
    const unsigned last = min(tokens, first + k_chunk);

    Query<K> query[K_HELD];
    load_queries(query, q, most, slab, across, lane);
    for (unsigned base = first; base < last; base += STEP) {
        float sums[DEPTH][K_HELD];
        dot_rows(sums, query, k + k_offset, k_token, k_head, slab, across, sub, lane, base, last);
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
#pragma unroll
            for (int r = 0; r < K_HELD; r++) {
                const unsigned head = K::head(slab, across, r), t = base + d * K::SUBS + sub;
                if (lane == 0 && sub < K::SUBS && head < HEADS && t < last)
                    scores[(unsigned long long)head * score_stride + t] = scale * sums[d][r];
            }
    }
}

// Sum or maximum over the block, in every thread.
template <bool MAXIMUM> __device__ __forceinline__ float over_block(float *part, float value) {
    const unsigned lane = threadIdx.x % 32;
    value = MAXIMUM ? warp_max(value) : warp_sum(value, 32);
    __syncthreads();
    if (lane == 0)
        part[threadIdx.x / 32] = value;
    __syncthreads();
    value = part[0];
#pragma unroll
    for (int n = 1; n < BLOCK / 32; n++)
        value = MAXIMUM ? fmaxf(value, part[n]) : value + part[n];
    return value;
}

// scores[h] = softmax(scores[h]), in place; a block for each head.
extern "C" __global__ void __launch_bounds__(BLOCK) attn_softmax(ARGUMENTS) {
    __shared__ float part[BLOCK / 32];
    scores += (unsigned long long)blockIdx.x * score_stride;
    float most = __int_as_float(0xff800000), sum = 0;
    for (unsigned t = threadIdx.x; t < tokens; t += BLOCK)
        most = fmaxf(most, scores[t]);
    most = over_block<true>(part, most);
    for (unsigned t = threadIdx.x; t < tokens; t += BLOCK) {
        const float p = expf(scores[t] - most);
        scores[t] = p;
        sum += p;
    }
    const float factor = 1 / over_block<false>(part, sum);
    for (unsigned t = threadIdx.x; t < tokens; t += BLOCK)
        scores[t] *= factor;
}

// out[h] = sum over t of scores[h][t] v[t][h / RATIO], or the part of it over a range of tokens.
extern "C" __global__ void __launch_bounds__(BLOCK) attn_av(ARGUMENTS) {
    __shared__ float part[V::GROUPS * V_DIM];
    const unsigned lane = threadIdx.x % V_LANES, group = threadIdx.x / V_LANES;
    const unsigned across = group % V_ACROSS, sub = group / V_ACROSS;
    const unsigned slab = blockIdx.x / splits, range = blockIdx.x % splits;
    const unsigned first = range * v_chunk, last = min(tokens, first + v_chunk);

    Sums sums = {};
    for (unsigned base = first + sub; base < last && sub < V::SUBS; base += DEPTH * V::SUBS) {
        float p[DEPTH][V_HELD];
        const unsigned char *token[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const unsigned t = min(base + d * V::SUBS, last - 1);
            token[d] = v + v_offset + t * v_token;
#pragma unroll
            for (int r = 0; r < V_HELD; r++) {
                const unsigned long long head = existing(V::head(slab, across, r));
                p[d][r] = base + d * V::SUBS < last ? scores[head * score_stride + t] : 0;
            }
        }
        sums.add(p, token, v_head, slab, across, lane);
    }
    float *to = (splits == 1 ? out : partial) + range * HEADS * V_DIM;
#pragma unroll
    for (int r = 0; r < V_HELD; r++) {
        sums.put(part, r, group, lane);
        __syncthreads();
        for (unsigned n = threadIdx.x; n < V_ACROSS * V_DIM; n += BLOCK) {
            const unsigned head = V::head(slab, n / V_DIM, r);
            float sum = 0;
            for (int s = 0; s < V::SUBS; s++)
                sum += part[(s * V_ACROSS + n / V_DIM) * V_DIM + n % V_DIM];
            if (head < HEADS)
                to[head * V_DIM + n % V_DIM] = sum;
        }
        __syncthreads();
    }
}

// The sum of the partial results of all ranges; a block for each head.
extern "C" __global__ void __launch_bounds__(BLOCK) attn_sum(ARGUMENTS) {
    const unsigned head = blockIdx.x;
    for (unsigned d = threadIdx.x; d < V_DIM; d += BLOCK) {
        float sum = 0;
        for (unsigned range = 0; range < splits; range++)
            sum += partial[(range * HEADS + head) * V_DIM + d];
        out[head * V_DIM + d] = sum;
    }
}
