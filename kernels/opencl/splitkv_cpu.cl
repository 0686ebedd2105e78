// Attention of one query position in one pass over the cache, for CPU devices: the kernels of
// splitkv.cl with one work-item for each KV head (or part of its query heads) and range.
#include "attention_cpu.h"

#define HELD K_HELD
#define TILE 8  // tokens whose scores are made before their values are added

__kernel void attn_splitkv(ARGUMENTS) {
    const uint head = get_group_id(0) / splits * HELD, range = get_group_id(0) % splits;
    const uint first = range * v_chunk, last = min(tokens, first + v_chunk);
    query_t query;
    load_query(&query, q, head);
    V_VEC acc[HELD * VECS(V)];
    float m[HELD], l[HELD], s[HELD * TILE];
    for (uint n = 0; n < HELD * VECS(V); n++)
        acc[n] = 0;
    for (uint r = 0; r < HELD; r++) {
        m[r] = -INFINITY;
        l[r] = 0;
    }
    k += k_offset + head / RATIO * k_head;
    v += v_offset + head / RATIO * v_head;
    for (uint tile = first; tile < last; tile += TILE) {
        const uint count = min((uint)TILE, last - tile);
        for (uint t = 0; t < TILE; t++) {
            float sums[HELD];
            if (t < count)
                dot_row(sums, &query, k + (tile + t) * k_token, 0);
            for (uint r = 0; r < HELD; r++)
                s[r * TILE + t] = t < count ? sums[r] * scale : -INFINITY;
        }
        for (uint r = 0; r < HELD; r++) {
            const float8 x = vload8(r, s);
            const float top = max(m[r], max8(x)), shrink = exp(m[r] - top);
            const float8 p = exp(x - top);
            vstore8(p, r, s);
            l[r] = l[r] * shrink + hsum8(p);
            m[r] = top;
            if (shrink != 1)
                for (uint n = 0; n < VECS(V); n++)
                    acc[r * VECS(V) + n] *= shrink;
        }
        for (uint t = 0; t < count; t++) {
            float p[HELD];
            for (uint r = 0; r < HELD; r++)
                p[r] = s[r * TILE + t];
            add_row(acc, p, v + (tile + t) * v_token, 0);
        }
    }
    for (uint r = 0; r < HELD; r++) {
        const uint place = range * HEADS + head + r;
        __global float *ml = partial + splits * HEADS * V_DIM + 2 * place;
        if (splits == 1) {
            put_row(out + (head + r) * V_DIM, acc + r * VECS(V), 1 / l[r]);
        } else {
            put_row(partial + place * V_DIM, acc + r * VECS(V), 1);
            ml[0] = m[r];
            ml[1] = l[r];
        }
    }
}

// The ranges of a head, weighed by their maxima; an item for each head.
__kernel void attn_merge(ARGUMENTS) {
    const uint head = get_group_id(0);
    const __global float *ml = partial + splits * HEADS * V_DIM + 2 * head;
    float top = -INFINITY, total = 0;
    for (uint range = 0; range < splits; range++)
        top = max(top, ml[2 * HEADS * range]);
    for (uint d = 0; d < V_DIM; d++)
        out[head * V_DIM + d] = 0;
    for (uint range = 0; range < splits; range++) {
        const float weight = exp(ml[2 * HEADS * range] - top);
        total += ml[2 * HEADS * range + 1] * weight;
        for (uint d = 0; d < V_DIM; d++)
            out[head * V_DIM + d] += weight * partial[(range * HEADS + head) * V_DIM + d];
    }
    for (uint d = 0; d < V_DIM; d++)
        out[head * V_DIM + d] /= total;
}
