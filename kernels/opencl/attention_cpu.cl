// Attention of one query position in several launches, for CPU devices: the kernels of
// attention.cl with one work-item (local size 1) for each slab of heads and range of tokens.
#include "attention_cpu.h"

__kernel void attn_kq(ARGUMENTS) {
    const uint ranges = get_num_groups(0) / SLABS(K);
    const uint head = get_group_id(0) / ranges * K_HELD;
    const uint first = get_group_id(0) % ranges * k_chunk, last = min(tokens, first + k_chunk);
    query_t query;
    load_query(&query, q, head);
    k += k_offset;
    for (uint t = first; t < last; t++)
        for (uint r = 0; r < K_HELD && head + r < HEADS; r += AT_ONCE(K)) {
            float s[AT_ONCE(K)];
            dot_row(s, &query, k + t * k_token + (head + r) / RATIO * k_head, r);
            #pragma unroll
            for (uint h = 0; h < AT_ONCE(K); h++)
                scores[(ulong)(head + r + h) * score_stride + t] = s[h] * scale;
        }
}

// scores[h] = softmax(scores[h]), in place; an item for each head.
__kernel void attn_softmax(ARGUMENTS) {
    scores += get_group_id(0) * (ulong)score_stride;
    const uint whole = tokens / 8 * 8;
    float8 tops = -INFINITY, sums = 0;
    for (uint t = 0; t < whole; t += 8)
        tops = max(tops, vload8(0, scores + t));
    float top = max8(tops), sum = 0;
    for (uint t = whole; t < tokens; t++)
        top = max(top, scores[t]);
    for (uint t = 0; t < whole; t += 8) {
        const float8 p = exp(vload8(0, scores + t) - top);
        vstore8(p, 0, scores + t);
        sums += p;
    }
    for (uint t = whole; t < tokens; t++) {
        scores[t] = exp(scores[t] - top);
        sum += scores[t];
    }
    const float factor = 1 / (sum + hsum8(sums));
    for (uint t = 0; t < tokens; t++)
        scores[t] *= factor;
}

__kernel void attn_av(ARGUMENTS) {
    const uint head = get_group_id(0) / splits * V_HELD, range = get_group_id(0) % splits;
    const uint first = range * v_chunk, last = min(tokens, first + v_chunk);
    V_VEC acc[V_HELD * VECS(V)];
    for (uint n = 0; n < V_HELD * VECS(V); n++)
        acc[n] = 0;
    v += v_offset;
    for (uint t = first; t < last; t++)
        for (uint r = 0; r < V_HELD && head + r < HEADS; r += AT_ONCE(V)) {
            float p[AT_ONCE(V)];
            #pragma unroll
            for (uint h = 0; h < AT_ONCE(V); h++)
                p[h] = scores[(ulong)(head + r + h) * score_stride + t];
            add_row(acc, p, v + t * v_token + (head + r) / RATIO * v_head, r);
        }
    __global float *to = (splits == 1 ? out : partial) + range * HEADS * V_DIM;
    for (uint r = 0; r < V_HELD && head + r < HEADS; r++)
        put_row(to + (head + r) * V_DIM, acc + r * VECS(V), 1);
}

// The sum of the partial results of all ranges; an item for each head.
__kernel void attn_sum(ARGUMENTS) {
    const uint head = get_group_id(0);
    for (uint d = 0; d < V_DIM; d++) {
        float sum = 0;
        for (uint range = 0; range < splits; range++)
            sum += partial[(range * HEADS + head) * V_DIM + d];
        out[head * V_DIM + d] = sum;
    }
}
