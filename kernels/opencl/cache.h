// Rows of K and V caches as vectors of floats, and what every attention kernel is given.
//
// The host prepends constants:
//   HEADS, RATIO    query heads, and how many of them share a KV head
//   K_DIM, V_DIM    elements of a row
//   K_TYPE, V_TYPE  f16, bf16, q8_0 or q8_KV: what the rows hold
//   K_PACK, V_PACK  a load takes 2 << PACK bytes: 1 << PACK 16-bit elements, twice as many quants
//   X_TYPE          TYPE_F16 or TYPE_F32: what q holds
//   QUANT_Q         8: q is quantised as K is, and products are of integers; 0: it is not
//   K_HELD, V_HELD  query heads whose sums one lane group (one work-item on a CPU) holds
//   SHARED          1: the heads held share a KV head, and a row is loaded once for them
//   BLOCK           workgroup size; 1 for the CPU kernels
// and HALF of types.h. Loads are aligned to their size, but in the CPU kernels, whose quants
// may lie anywhere.
#ifndef CACHE_H
#define CACHE_H
#include "types.h"

#define ARGUMENTS                                                                              \
    const __global uchar *k, const __global uchar *v, const __global XT *q,                    \
        __global float *scores, __global float *partial, __global float *out, uint tokens,     \
        uint k_chunk, uint v_chunk, uint splits, uint score_stride, ulong k_offset,            \
        ulong v_offset, ulong k_token, ulong k_head, ulong v_token, ulong v_head, float scale

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

// Types as words: IS_QUANTISED(K_TYPE) also in #if.
#define QUANTISED_f16 0
#define QUANTISED_bf16 0
#define QUANTISED_q8_0 1
#define QUANTISED_q8_KV 1
#define IS_QUANTISED(type) PASTE(QUANTISED_, type)

#if K_PACK + IS_QUANTISED(K_TYPE) == 0
#define K_WIDTH 1
#elif K_PACK + IS_QUANTISED(K_TYPE) == 1
#define K_WIDTH 2
#elif K_PACK + IS_QUANTISED(K_TYPE) == 2
#define K_WIDTH 4
#else
#define K_WIDTH 8
#endif
#if V_PACK + IS_QUANTISED(V_TYPE) == 0
#define V_WIDTH 1
#elif V_PACK + IS_QUANTISED(V_TYPE) == 1
#define V_WIDTH 2
#elif V_PACK + IS_QUANTISED(V_TYPE) == 2
#define V_WIDTH 4
#else
#define V_WIDTH 8
#endif

#define float1 float
#define int1 int
#define K_VEC PASTE(float, K_WIDTH)
#define K_INT PASTE(int, K_WIDTH)
#define V_VEC PASTE(float, V_WIDTH)

typedef const __global uchar *row_ptr;

// WIDTH elements from element i on, as floats; quants without their scale.
#define DEFINE_AT(S, N)                                                                        \
    static inline float##S at_f16_##N(row_ptr row, uint i) { return F16_AT(S, row + 2 * i); }  \
    static inline float##S at_bf16_##N(row_ptr row, uint i) { return BF16_AT(S, row + 2 * i); }
#define DEFINE_QUANTS(N)                                                                       \
    static inline int##N quants_q8_0_##N(row_ptr row, uint i) {                                \
        return convert_int##N(QUANTS(N, row + i / 32 * 34 + 2 + i % 32));                      \
    }                                                                                          \
    static inline int##N quants_q8_KV_##N(row_ptr row, uint i) {                               \
        return convert_int##N(QUANTS(N, row + 8 + i));                                         \
    }                                                                                          \
    static inline float##N at_q8_0_##N(row_ptr row, uint i) {                                  \
        return convert_float##N(QUANTS(N, row + i / 32 * 34 + 2 + i % 32));                    \
    }                                                                                          \
    static inline float##N at_q8_KV_##N(row_ptr row, uint i) {                                 \
        return convert_float##N(QUANTS(N, row + 8 + i));                                       \
    }

#if HALF == HALF_VLOAD
// Words, converted in registers: NVIDIA's compiler makes a load of 2 bytes for each element of a
// vload_half8 from memory, and splits an aligned ushort8.
#define DEFINE_WORDS(S, W)                                                                     \
    static inline float##S f16_words##S(const uint##W u) {                                     \
        return vload_half##S(0, (const __private half *)&u);                                   \
    }
DEFINE_WORDS(2, )
DEFINE_WORDS(4, 2)
DEFINE_WORDS(8, 4)
static inline float2 bf16_words2(const uint u) {
    return (float2)(as_float(u << 16), as_float(u & 0xffff0000u));
}
static inline float4 bf16_words4(const uint2 u) {
    return (float4)(bf16_words2(u.x), bf16_words2(u.y));
}
static inline float8 bf16_words8(const uint4 u) {
    return (float8)(bf16_words4(u.lo), bf16_words4(u.hi));
}
#define WORD_ uint
#define WORD_2 uint
#define WORD_4 uint2
#define WORD_8 uint4
#define F16_AT_(p) vload_half(0, (const __global half *)(p))
#define F16_AT_2(p) f16_words2(*(const __global uint *)(p))
#define F16_AT_4(p) f16_words4(*(const __global uint2 *)(p))
#define F16_AT_8(p) f16_words8(*(const __global uint4 *)(p))
#define BF16_AT_(p) BF16_LOAD(, p)
#define BF16_AT_2(p) bf16_words2(*(const __global uint *)(p))
#define BF16_AT_4(p) bf16_words4(*(const __global uint2 *)(p))
#define BF16_AT_8(p) bf16_words8(*(const __global uint4 *)(p))
#define F16_AT(S, p) F16_AT_##S(p)
#define BF16_AT(S, p) BF16_AT_##S(p)
#else
#define F16_AT(S, p) HALF_LOAD(S, p)
#define BF16_AT(S, p) BF16_LOAD(S, p)
#endif
#if BLOCK == 1
#define QUANTS(N, p) vload##N(0, (const __global char *)(p))
#else
#define QUANTS(N, p) (*(const __global char##N *)(p))
#endif

DEFINE_AT(, 1)
DEFINE_AT(2, 2)
DEFINE_AT(4, 4)
DEFINE_AT(8, 8)
DEFINE_QUANTS(2)
DEFINE_QUANTS(4)
DEFINE_QUANTS(8)

// The factor of the elements from i on: one for 32 quants, or for the row.
static inline float scale_f16(row_ptr row, uint i) { return 1; }
static inline float scale_bf16(row_ptr row, uint i) { return 1; }
static inline float scale_q8_0(row_ptr row, uint i) { return F16_AT(, row + i / 32 * 34); }
static inline float scale_q8_KV(row_ptr row, uint i) { return *(const __global float *)row; }

#define k_at(row, i) PASTE(PASTE(PASTE(at_, K_TYPE), _), K_WIDTH)(row, i)
#define v_at(row, i) PASTE(PASTE(PASTE(at_, V_TYPE), _), V_WIDTH)(row, i)
#define k_quants(row, i) PASTE(PASTE(PASTE(quants_, K_TYPE), _), K_WIDTH)(row, i)
#define k_scale(row, i) PASTE(scale_, K_TYPE)(row, i)
#define v_scale(row, i) PASTE(scale_, V_TYPE)(row, i)

// Elements of Q that are quantised together: as K's.
#define GROUP_q8_0 32
#define GROUP_q8_KV K_DIM
#define Q_GROUP PASTE(GROUP_, K_TYPE)

static inline float largest(const __global XT *q, uint i, uint count) {
    float most = 0;
    for (uint j = 0; j < count; j++)
        most = max(most, fabs(load_x1(q, i + j)));
    return most;
}

// Correctly rounded but for rare cases, and exact where it can be: OpenCL allows a division 2.5
// ulp, by which quants at a tie would come out differently from device to device.
static inline float quotient(float a, float b) {
    const float q = a / b;
    return q + fma(-q, b, a) / b;
}

static inline int quantised(float value, float most) {
    return most > 0 ? convert_int_rte(value * quotient(127.0f, most)) : 0;
}

static inline float mul1(float a, float b) { return a * b; }
static inline float mul2(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
static inline float mul4(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
static inline float mul8(float8 a, float8 b) { return mul4(a.lo, b.lo) + mul4(a.hi, b.hi); }
static inline int imul2(int2 a, int2 b) { return a.x * b.x + a.y * b.y; }
static inline int imul4(int4 a, int4 b) { return imul2(a.lo, b.lo) + imul2(a.hi, b.hi); }
static inline int imul8(int8 a, int8 b) { return imul4(a.lo, b.lo) + imul4(a.hi, b.hi); }
#define k_dot(a, b) PASTE(mul, K_WIDTH)(a, b)
#define k_idot(a, b) PASTE(imul, K_WIDTH)(a, b)

#endif
