// The work of one work-item on a CPU: a range of tokens for the heads of one slab, vectors of up
// to 8 elements. The item holds HELD heads. With SHARED they have one KV head, and its row is
// read once for all of them; otherwise heads are the inner loop, so that memory is read in order.
//
// Constants: those of cache.h, with BLOCK 1.
#include "cache.h"

#define VECS(S) (S##_DIM / S##_WIDTH)
#define SLABS(S) ((HEADS + S##_HELD - 1) / S##_HELD)
#define AT_ONCE(S) (SHARED ? S##_HELD : 1)

// Elements of a row under one factor: sums are made of them first.
#define FACTORED_f16(dim) dim
#define FACTORED_bf16(dim) dim
#define FACTORED_q8_0(dim) 32
#define FACTORED_q8_KV(dim) dim
#define FACTORED(S) PASTE(FACTORED_, S##_TYPE)(S##_DIM)

// Independent sums of one head: enough of them hide the latency of an addition.
#define ACCS (AT_ONCE(K) > 2 ? 1 : AT_ONCE(K) == 2 ? 2 : 4)

#if QUANT_Q
typedef K_INT element_t;
#define K_ELEMENTS(row, i) k_quants(row, i)
#define AS_FLOATS(x) PASTE(convert_float, K_WIDTH)(x)
#else
typedef K_VEC element_t;
#define K_ELEMENTS(row, i) k_at(row, i)
#define AS_FLOATS(x) (x)
#endif
#define Q_SCALES (K_DIM / FACTORED(K))

// q of a slab's heads as it is multiplied, and, where it is quantised, its scales.
typedef struct {
    element_t v[K_HELD * VECS(K)];
    float scale[QUANT_Q ? K_HELD * Q_SCALES : 1];
} query_t;

static inline void load_query(query_t *query, const __global XT *q, uint first_head) {
    for (uint r = 0; r < K_HELD; r++) {
        const __global XT *from = q + min(first_head + r, (uint)HEADS - 1) * K_DIM;
#if QUANT_Q
        int part[K_WIDTH];
        for (uint g = 0; g < Q_SCALES; g++) {
            const float most = largest(from, g * FACTORED(K), FACTORED(K));
            query->scale[r * Q_SCALES + g] = quotient(most, 127.0f);
        }
#else
        float part[K_WIDTH];
#endif
        for (uint n = 0; n < VECS(K); n++) {
#if QUANT_Q
            const uint g = n * K_WIDTH / FACTORED(K);
            const float most = largest(from, g * FACTORED(K), FACTORED(K));
#endif
            for (uint e = 0; e < K_WIDTH; e++) {
                const float x = load_x1(from, n * K_WIDTH + e);
#if QUANT_Q
                part[e] = quantised(x, most);
#else
                part[e] = x;
#endif
            }
#if K_WIDTH == 1
            query->v[r * VECS(K) + n] = part[0];
#else
            query->v[r * VECS(K) + n] = PASTE(vload, K_WIDTH)(0, part);
#endif
        }
    }
}

// Products of one row with AT_ONCE heads, from the r-th held on.
static inline void dot_row(float *to, const query_t *query, row_ptr row, uint r) {
    K_VEC total[AT_ONCE(K)];
    #pragma unroll
    for (uint h = 0; h < AT_ONCE(K); h++)
        total[h] = 0;
    #pragma unroll
    for (uint g = 0; g < K_DIM / FACTORED(K); g++) {
        element_t sum[AT_ONCE(K) * ACCS];
        #pragma unroll
        for (uint h = 0; h < AT_ONCE(K) * ACCS; h++)
            sum[h] = 0;
        #pragma unroll
        for (uint n = 0; n < FACTORED(K) / K_WIDTH; n++) {
            const uint place = g * (FACTORED(K) / K_WIDTH) + n;
            const element_t elements = K_ELEMENTS(row, place * K_WIDTH);
            #pragma unroll
            for (uint h = 0; h < AT_ONCE(K); h++)
                sum[h * ACCS + n % ACCS] += elements * query->v[(r + h) * VECS(K) + place];
        }
        #pragma unroll
        for (uint h = 0; h < AT_ONCE(K); h++) {
            #pragma unroll
            for (uint a = 1; a < ACCS; a++)
                sum[h * ACCS] += sum[h * ACCS + a];
            const float factor = k_scale(row, g * FACTORED(K));
#if QUANT_Q
            total[h] += AS_FLOATS(sum[h * ACCS]) * (factor * query->scale[(r + h) * Q_SCALES + g]);
#elif IS_QUANTISED(K_TYPE)
            total[h] += sum[h * ACCS] * factor;
#else
            total[h] += sum[h * ACCS];
#endif
        }
    }
    #pragma unroll
    for (uint h = 0; h < AT_ONCE(K); h++)
        to[h] = PASTE(hsum, K_WIDTH)(total[h]);
}

// acc += p * row, for AT_ONCE heads from the r-th held on.
static inline void add_row(V_VEC *acc, const float *p, row_ptr row, uint r) {
    #pragma unroll
    for (uint n = 0; n < VECS(V); n++) {
        const V_VEC elements = v_at(row, n * V_WIDTH);
        const float factor = v_scale(row, n * V_WIDTH);
        #pragma unroll
        for (uint h = 0; h < AT_ONCE(V); h++)
            acc[(r + h) * VECS(V) + n] += (p[h] * factor) * elements;
    }
}

static inline void put_row(__global float *to, const V_VEC *acc, float factor) {
    for (uint n = 0; n < VECS(V); n++)
#if V_WIDTH == 1
        to[n] = acc[n] * factor;
#else
        PASTE(vstore, V_WIDTH)(acc[n] * factor, n, to);
#endif
}

static inline float max8(float8 x) {
    const float4 a = max(x.lo, x.hi);
    return max(max(a.x, a.y), max(a.z, a.w));
}
