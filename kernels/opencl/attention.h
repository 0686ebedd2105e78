// The work of a workgroup of BLOCK items, in lane groups: LANES items read one row of a cache,
// neighbours neighbouring packs. Of GROUPS lane groups, ACROSS lie side by side along the heads
// and SUBS along the tokens. A workgroup has one slab of ACROSS * HELD heads and one range of
// tokens; ranges of a slab follow each other in the grid.
//
// Constants: those of cache.h, and K_LANES, V_LANES (powers of two, 1 to 32), K_ACROSS, V_ACROSS,
// and DEPTH, tokens of which a lane group has the rows in flight.
#include "cache.h"

#define GROUPS(S) (BLOCK / S##_LANES)
#define SUBS(S) (GROUPS(S) / S##_ACROSS)
#define STRIDE(S) (S##_LANES * S##_WIDTH)
#define LOADS(S) ((S##_DIM + STRIDE(S) - 1) / STRIDE(S))
#define COVERED(S) (S##_DIM % STRIDE(S) == 0)
#define SLABS(S) ((HEADS + S##_ACROSS * S##_HELD - 1) / (S##_ACROSS * S##_HELD))
#define HEAD(S, slab, across, i) (((slab) * S##_HELD + (i)) * S##_ACROSS + (across))
// The KV head of a head; heads past the last, which are not stored, read the last one's.
#define KV_HEAD(head) (min((uint)(head), (uint)HEADS - 1) / RATIO)
#define VALUES (DEPTH * K_HELD)  // sums that a lane group makes at once
#define STEP (DEPTH * SUBS(K))   // tokens that a workgroup takes at once

// Rows that a lane group loads for one token: one, or one for each head.
#define ROWS(S) (SHARED ? 1 : S##_HELD)

typedef struct {
#if QUANT_Q
    K_INT v[LOADS(K)];
    float scale[LOADS(K)];
#else
    K_VEC v[LOADS(K)];
#endif
} query_t;

#define Q_WIDE_GROUPS ((K_DIM + 31) / 32)

// The elements of q that a lane multiplies, of every head it holds. `most` holds the largest
// magnitude in 32 elements each, if q is quantised.
static inline void load_query(query_t *query, const __global XT *q, __local float *most, uint slab,
                              uint across, uint lane) {
#if QUANT_Q
    for (uint n = get_local_id(0); n < K_ACROSS * K_HELD * Q_WIDE_GROUPS; n += BLOCK) {
        const uint head = slab * K_ACROSS * K_HELD + n / Q_WIDE_GROUPS;
        most[n] = largest(q + min(head, (uint)HEADS - 1) * K_DIM, n % Q_WIDE_GROUPS * 32, 32);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    #pragma unroll
    for (uint r = 0; r < K_HELD; r++) {
        const uint head = min((uint)HEAD(K, slab, across, r), (uint)HEADS - 1);
        const __global XT *from = q + head * K_DIM;
        #pragma unroll
        for (uint l = 0; l < LOADS(K); l++) {
            const uint i = (l * K_LANES + lane) * K_WIDTH;
#if QUANT_Q
            const uint first = (r * K_ACROSS + across) * Q_WIDE_GROUPS;
            float top = 0;
            if (COVERED(K) || i < K_DIM)
                for (uint n = 0; n < Q_GROUP / 32; n++)
                    top = max(top, most[first + i / Q_GROUP * (Q_GROUP / 32) + n]);
            int part[K_WIDTH];
#else
            float part[K_WIDTH];
#endif
            #pragma unroll
            for (uint e = 0; e < K_WIDTH; e++) {
                const float x = COVERED(K) || i < K_DIM ? load_x1(from, i + e) : 0;
#if QUANT_Q
                part[e] = quantised(x, top);
#else
                part[e] = x;
#endif
            }
#if QUANT_Q
            query[r].scale[l] = quotient(top, 127.0f);
            query[r].v[l] = PASTE(vload, K_WIDTH)(0, part);
#elif K_WIDTH == 1
            query[r].v[l] = part[0];
#else
            query[r].v[l] = PASTE(vload, K_WIDTH)(0, part);
#endif
        }
    }
}

// Sums over a lane's own elements for DEPTH tokens from `base` on. Tokens past `last` read the
// row of the last one again.
static inline void dot_rows(float *sums, const query_t *query, row_ptr k, ulong k_token,
                            ulong k_head, uint slab, uint across, uint sub, uint lane, uint base,
                            uint last) {
    #pragma unroll
    for (uint d = 0; d < DEPTH; d++) {
        const row_ptr token = k + min(base + d * SUBS(K) + sub, last - 1) * k_token;
        #pragma unroll
        for (uint r = 0; r < K_HELD; r++)
            sums[d * K_HELD + r] = 0;
        #pragma unroll
        for (uint w = 0; w < ROWS(K); w++) {
            const row_ptr row = token + KV_HEAD(HEAD(K, slab, across, w)) * k_head;
            #pragma unroll
            for (uint l = 0; l < LOADS(K); l++) {
                const uint i = (l * K_LANES + lane) * K_WIDTH;
                if (COVERED(K) || i < K_DIM) {
#if QUANT_Q
                    const K_INT elements = k_quants(row, i);
#else
                    const K_VEC elements = k_at(row, i);
#endif
                    const float factor = k_scale(row, i);
                    #pragma unroll
                    for (uint r = SHARED ? 0 : w; r < (SHARED ? K_HELD : w + 1); r++)
#if QUANT_Q
                        sums[d * K_HELD + r] += k_idot(elements, query[r].v[l])
                                                * (factor * query[r].scale[l]);
#elif IS_QUANTISED(K_TYPE)
                        sums[d * K_HELD + r] += k_dot(elements, query[r].v[l]) * factor;
#else
                        sums[d * K_HELD + r] += k_dot(elements, query[r].v[l]);
#endif
                }
            }
        }
    }
}

// The sum of LANES values; items begin at different ones, so that their banks differ.
static inline float sum_lanes(const __local float *part, uint item) {
    float sum = 0;
    for (uint j = 0; j < K_LANES; j++)
        sum += part[(j + item) % K_LANES];
    return sum;
}

// acc += p * row, for the rows of one token.
static inline void add_rows(V_VEC *acc, const float *p, row_ptr token, ulong v_head, uint slab,
                            uint across, uint lane) {
    #pragma unroll
    for (uint w = 0; w < ROWS(V); w++) {
        const row_ptr row = token + KV_HEAD(HEAD(V, slab, across, w)) * v_head;
        #pragma unroll
        for (uint l = 0; l < LOADS(V); l++) {
            const uint i = (l * V_LANES + lane) * V_WIDTH;
            if (COVERED(V) || i < V_DIM) {
                const V_VEC elements = v_at(row, i);
                const float factor = v_scale(row, i);
                #pragma unroll
                for (uint r = SHARED ? 0 : w; r < (SHARED ? V_HELD : w + 1); r++)
                    acc[r * LOADS(V) + l] += (p[r] * factor) * elements;
            }
        }
    }
}

// A lane's elements of a sum over tokens, to its place among those of all lane groups.
static inline void put_sums(__local float *part, const V_VEC *acc, uint group, uint lane) {
    #pragma unroll
    for (uint l = 0; l < LOADS(V); l++) {
        const uint i = (l * V_LANES + lane) * V_WIDTH;
        if (COVERED(V) || i < V_DIM) {
#if V_WIDTH == 1
            part[group * V_DIM + i] = acc[l];
#else
            PASTE(vstore, V_WIDTH)(acc[l], 0, part + group * V_DIM + i);
#endif
        }
    }
}
