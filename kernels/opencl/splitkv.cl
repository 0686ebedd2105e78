// Attention of one query position in one pass over the cache: workgroups take ranges of tokens
// with an online softmax (running maximum m, sum l of exp(score - m), sums of values), and a
// second launch merges the ranges, or with FUSED the last workgroup of a slab that is done. Heads
// that share a KV head are held together.
//
// Constants: those of attention.h with ACROSS 1 and SHARED 1, TILE, tokens (a multiple of STEP)
// whose scores are made before their values are added, and FUSED. With it `partial` begins with a
// count of workgroups that are done for each slab, COUNTERS words in all; they are zero before and
// after each launch.
#include "attention.h"

#if FUSED
#define COUNTERS ((HEADS + 63) / 64 * 64)
#define RESULTS const volatile __global float  // written by other workgroups of this launch
#else
#define COUNTERS 0
#define RESULTS const __global float
#endif

#define HELD K_HELD
#define PARTS (BLOCK / HELD)  // items that look for the maximum of one head
#define PART_SIZE (VALUES * BLOCK > GROUPS(V) * V_DIM ? VALUES * BLOCK : GROUPS(V) * V_DIM)

// The ranges of a head, weighed by their maxima; by one workgroup.
void merge_head(uint head, RESULTS *sums, __global float *out, uint splits) {
    RESULTS *ml = sums + splits * HEADS * V_DIM + 2 * head;
    float top = -INFINITY, total = 0;
    for (uint range = 0; range < splits; range++)
        top = max(top, ml[2 * HEADS * range]);
    for (uint range = 0; range < splits; range++)
        total += ml[2 * HEADS * range + 1] * exp(ml[2 * HEADS * range] - top);
    for (uint d = get_local_id(0); d < V_DIM; d += BLOCK) {
        float sum = 0;
        for (uint range = 0; range < splits; range++)
            sum += sums[(range * HEADS + head) * V_DIM + d] * exp(ml[2 * HEADS * range] - top);
        out[head * V_DIM + d] = sum / total;
    }
}

// What this item has written is seen by workgroups that see what it writes from now on.
void publish(void) {
#ifdef __NV_CL_C_VERSION
    asm volatile("membar.gl;" ::: "memory");
#else
    mem_fence(CLK_GLOBAL_MEM_FENCE);
#endif
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void attn_splitkv(ARGUMENTS) {
    __local float part[PART_SIZE];
    __local float most[QUANT_Q ? HELD * Q_WIDE_GROUPS : 1];
    __local float score[HELD * TILE], tops[HELD * PARTS], m[HELD], shrink[HELD];
    __local float sums_of[GROUPS(V)];
    __local uint done;
    __global float *results = partial + COUNTERS;
    const uint item = get_local_id(0);
    const uint k_lane = item % K_LANES, k_sub = item / K_LANES;
    const uint v_lane = item % V_LANES, v_sub = item / V_LANES;
    const uint slab = get_group_id(0) / splits, range = get_group_id(0) % splits;
    const uint first = range * v_chunk, last = min(tokens, first + v_chunk);

    query_t query[HELD];
    load_query(query, q, most, slab, 0, k_lane);
    V_VEC acc[HELD * LOADS(V)];
    float l[HELD];
    #pragma unroll
    for (uint n = 0; n < HELD * LOADS(V); n++)
        acc[n] = 0;
    #pragma unroll
    for (uint r = 0; r < HELD; r++)
        l[r] = 0;
    if (item < HELD)
        m[item] = -INFINITY;

    for (uint tile = first; tile < last; tile += TILE) {
        const uint count = min((uint)TILE, last - tile);
        for (uint base = 0; base < count; base += STEP) {
            float sums[VALUES];
            dot_rows(sums, query, k + k_offset, k_token, k_head, slab, 0, k_sub, k_lane,
                     tile + base, last);
            #pragma unroll
            for (uint n = 0; n < VALUES; n++)
                part[n * BLOCK + item] = sums[n];
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint n = item; n < VALUES * GROUPS(K); n += BLOCK) {
                const uint g = n % GROUPS(K), value = n / GROUPS(K);
                const uint t = base + value / HELD * SUBS(K) + g;
                if (t < count)
                    score[value % HELD * TILE + t] =
                        scale * sum_lanes(part + value * BLOCK + g * K_LANES, item);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        if (item < HELD * PARTS) {
            const uint r = item / PARTS;
            float top = -INFINITY;
            for (uint t = item % PARTS; t < count; t += PARTS)
                top = max(top, score[r * TILE + t]);
            tops[item] = top;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < HELD) {
            float top = m[item];
            for (uint n = 0; n < PARTS; n++)
                top = max(top, tops[item * PARTS + n]);
            shrink[item] = exp(m[item] - top);
            m[item] = top;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint r = 0; r < HELD; r++)
            for (uint t = item; t < count; t += BLOCK)
                score[r * TILE + t] = exp(score[r * TILE + t] - m[r]);
        barrier(CLK_LOCAL_MEM_FENCE);

        #pragma unroll
        for (uint r = 0; r < HELD; r++) {
            l[r] *= shrink[r];
            #pragma unroll
            for (uint n = 0; n < LOADS(V); n++)
                acc[r * LOADS(V) + n] *= shrink[r];
        }
        for (uint base = v_sub; base < count; base += DEPTH * SUBS(V)) {
            #pragma unroll
            for (uint d = 0; d < DEPTH; d++) {
                const uint t = min(base + d * SUBS(V), count - 1);
                float p[HELD];
                #pragma unroll
                for (uint r = 0; r < HELD; r++) {
                    p[r] = base + d * SUBS(V) < count ? score[r * TILE + t] : 0;
                    l[r] += p[r];
                }
                add_rows(acc, p, v + v_offset + (tile + t) * v_token, v_head, slab, 0, v_lane);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    #pragma unroll
    for (uint r = 0; r < HELD; r++) {
        const uint head = HEAD(K, slab, 0, r), place = range * HEADS + head;
        put_sums(part, acc + r * LOADS(V), v_sub, v_lane);
        if (v_lane == 0)
            sums_of[v_sub] = l[r];
        barrier(CLK_LOCAL_MEM_FENCE);
        float total = 0;
        for (uint s = 0; s < SUBS(V); s++)
            total += sums_of[s];
        for (uint d = item; d < V_DIM; d += BLOCK) {
            float sum = 0;
            for (uint s = 0; s < SUBS(V); s++)
                sum += part[s * V_DIM + d];
            if (splits == 1)
                out[head * V_DIM + d] = sum / total;
            else
                results[place * V_DIM + d] = sum;
        }
        if (splits > 1 && item == 0) {
            __global float *ml = results + splits * HEADS * V_DIM + 2 * place;
            ml[0] = m[r];
            ml[1] = total;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#if FUSED
    if (splits > 1) {
        publish();
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        volatile __global uint *count = (volatile __global uint *)partial + slab;
        if (item == 0)
            done = atomic_inc(count) + 1;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (done == splits) {
            publish();
            for (uint r = 0; r < HELD; r++)
                merge_head(HEAD(K, slab, 0, r), results, out, splits);
            if (item == 0)
                *count = 0;
        }
    }
#endif
}

// A workgroup for each head.
__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void attn_merge(ARGUMENTS) {
    merge_head(get_group_id(0), partial + COUNTERS, out, splits);
}
