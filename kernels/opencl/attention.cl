// Attention of one query position in several launches: scores, softmax, values, and the sum of
// partial results where the tokens of a head are split over workgroups. per_head, gqa and
// token_major are these kernels with other constants: see attention.h.
#include "attention.h"

// scores[h][t] = scale q[h] . k[t][h / RATIO]
__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void attn_kq(ARGUMENTS) {
    __local float part[VALUES * BLOCK];
    __local float most[QUANT_Q ? K_ACROSS * K_HELD * Q_WIDE_GROUPS : 1];
    const uint item = get_local_id(0), lane = item % K_LANES, group = item / K_LANES;
    const uint across = group % K_ACROSS, sub = group / K_ACROSS;
    const uint ranges = get_num_groups(0) / SLABS(K);
    const uint slab = get_group_id(0) / ranges, first = get_group_id(0) % ranges * k_chunk;
    const uint last = min(tokens, first + k_chunk);

    query_t query[K_HELD];
    load_query(query, q, most, slab, across, lane);
    for (uint base = first; base < last; base += STEP) {
        float sums[VALUES];
        dot_rows(sums, query, k + k_offset, k_token, k_head, slab, across, sub, lane, base, last);
        #pragma unroll
        for (uint n = 0; n < VALUES; n++)
            part[n * BLOCK + item] = sums[n];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint n = item; n < VALUES * GROUPS(K); n += BLOCK) {
            const uint g = n % GROUPS(K), value = n / GROUPS(K);
            const uint head = HEAD(K, slab, g % K_ACROSS, value % K_HELD);
            const uint t = base + value / K_HELD * SUBS(K) + g / K_ACROSS;
            if (g < SUBS(K) * K_ACROSS && head < HEADS && t < last)
                scores[(ulong)head * score_stride + t] =
                    scale * sum_lanes(part + value * BLOCK + g * K_LANES, item);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

// Sum or maximum over the workgroup, in every item.
static inline float over_block(__local float *part, float value, bool maximum) {
    const uint item = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    part[item] = value;
    for (uint width = BLOCK / 2; width > 0; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < width)
            part[item] = maximum ? max(part[item], part[item + width])
                                 : part[item] + part[item + width];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return part[0];
}

// scores[h] = softmax(scores[h]), in place; a workgroup for each head.
__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void attn_softmax(ARGUMENTS) {
    __local float part[BLOCK];
    const uint item = get_local_id(0);
    scores += get_group_id(0) * (ulong)score_stride;
    float most = -INFINITY, sum = 0;
    for (uint t = item; t < tokens; t += BLOCK)
        most = max(most, scores[t]);
    most = over_block(part, most, true);
    for (uint t = item; t < tokens; t += BLOCK) {
        const float p = exp(scores[t] - most);
        scores[t] = p;
        sum += p;
    }
    const float factor = 1 / over_block(part, sum, false);
    for (uint t = item; t < tokens; t += BLOCK)
        scores[t] *= factor;
}

// out[h] = sum over t of scores[h][t] v[t][h / RATIO], or the part of it over a range of tokens.
__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void attn_av(ARGUMENTS) {
    __local float part[GROUPS(V) * V_DIM];
    const uint item = get_local_id(0), lane = item % V_LANES, group = item / V_LANES;
    const uint across = group % V_ACROSS, sub = group / V_ACROSS;
    const uint slab = get_group_id(0) / splits, range = get_group_id(0) % splits;
    const uint first = range * v_chunk, last = min(tokens, first + v_chunk);

    V_VEC acc[V_HELD * LOADS(V)];
    #pragma unroll
    for (uint n = 0; n < V_HELD * LOADS(V); n++)
        acc[n] = 0;
    for (uint base = first + sub; base < last && sub < SUBS(V); base += DEPTH * SUBS(V)) {
        #pragma unroll
        for (uint d = 0; d < DEPTH; d++) {
            const uint t = min(base + d * SUBS(V), last - 1);
            float p[V_HELD];
            #pragma unroll
            for (uint r = 0; r < V_HELD; r++) {
                const uint head = min((uint)HEAD(V, slab, across, r), (uint)HEADS - 1);
                p[r] = base + d * SUBS(V) < last ? scores[(ulong)head * score_stride + t] : 0;
            }
            add_rows(acc, p, v + v_offset + t * v_token, v_head, slab, across, lane);
        }
    }
    __global float *to = (splits == 1 ? out : partial) + range * HEADS * V_DIM;
    #pragma unroll
    for (uint r = 0; r < V_HELD; r++) {
        put_sums(part, acc + r * LOADS(V), group, lane);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint n = item; n < V_ACROSS * V_DIM; n += BLOCK) {
            const uint head = HEAD(V, slab, n / V_DIM, r);
            float sum = 0;
            for (uint s = 0; s < SUBS(V); s++)
                sum += part[(s * V_ACROSS + n / V_DIM) * V_DIM + n % V_DIM];
            if (head < HEADS)
                to[head * V_DIM + n % V_DIM] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

// The sum of the partial results of all ranges; a workgroup for each head.
__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void attn_sum(ARGUMENTS) {
    const uint head = get_group_id(0);
    for (uint d = get_local_id(0); d < V_DIM; d += BLOCK) {
        float sum = 0;
        for (uint range = 0; range < splits; range++)
            sum += partial[(range * HEADS + head) * V_DIM + d];
        out[head * V_DIM + d] = sum;
    }
}
