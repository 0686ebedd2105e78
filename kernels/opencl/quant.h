// Quantised weights: layouts, conversions and products of integers. The counterpart of
// cuda/quant.h: constants mean the same.
//
// The host prepends W_TYPE (TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_K), X_TYPE, REPACK, X8, and HALF of types.h.
// PTX (default: 1 with NVIDIA's compiler) allows its instructions where OpenCL C has none.
#ifndef QUANT_H
#define QUANT_H
#include "types.h"

#define TYPE_Q8_0 4
#define TYPE_Q4_0 5
#define TYPE_Q4_K 6

#ifndef REPACK
#define REPACK 0
#endif
#ifndef X8
#define X8 0
#endif
#if REPACK && W_TYPE == TYPE_Q4_K
#error blocks of q4_K are aligned as they are
#endif
#ifndef PTX
#ifdef __NV_CL_C_VERSION
#define PTX 1
#else
#define PTX 0
#endif
#endif

// Blocks as in files.
#if W_TYPE == TYPE_Q8_0
#define BLOCK_BYTES 34
#define BLOCK_WEIGHTS 32
#define QUANTS_32 32  // bytes of 32 quants
#elif W_TYPE == TYPE_Q4_0
#define BLOCK_BYTES 18
#define BLOCK_WEIGHTS 32
#define QUANTS_32 16
#else
#define BLOCK_BYTES 144
#define BLOCK_WEIGHTS 256
#define QUANTS_32 16
#endif

typedef const __global uchar *byte_ptr;

// One f16 out of a register.
static inline float half_value(ushort u) {
#if HALF == HALF_BITS
    return half_bits(u);
#elif HALF == HALF_F16C
    return F16C_CONVERT_(u);
#else
    return vload_half(0, (const __private half *)&u);
#endif
}

// Eight elements of x; `wide`: their address is aligned to 16 bytes.
static inline float8 load_eight(const __global XT *x, bool wide) {
    float8 v;
#if X_TYPE == TYPE_F32
    if (wide) {
        const __global float4 *p = (const __global float4 *)x;
        return (float8)(p[0], p[1]);
    }
#else
    if (wide) {
        const uint4 u = *(const __global uint4 *)x;
#if X_TYPE == TYPE_BF16
        v.even = as_float4(u << 16);
        v.odd = as_float4(u & 0xffff0000u);
#else
        v.even = (float4)(half_value((ushort)u.x), half_value((ushort)u.y),
                          half_value((ushort)u.z), half_value((ushort)u.w));
        v.odd = (float4)(half_value((ushort)(u.x >> 16)), half_value((ushort)(u.y >> 16)),
                         half_value((ushort)(u.z >> 16)), half_value((ushort)(u.w >> 16)));
#endif
        return v;
    }
#endif
    v = (float8)(load_x1(x, 0), load_x1(x, 1), load_x1(x, 2), load_x1(x, 3), load_x1(x, 4),
                 load_x1(x, 5), load_x1(x, 6), load_x1(x, 7));
    return v;
}

// The six-bit scales of sub-blocks 2 * pair and 2 * pair + 1 (bytes 0 and 1 of x) and their mins
// (of y), out of a q4_K block's first 16 bytes: ggml's get_scale_min_k4.
static inline uint2 six_bits(uint4 head, uint pair) {
    const uint low = pair < 2 ? head.y & 0x3f3f3f3f
                              : (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030);
    const uint high = pair < 2 ? head.z & 0x3f3f3f3f
                               : (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030);
    return (uint2)(low, high) >> (pair % 2 * 16);
}

// d times the two scales, and dmin times the two mins.
static inline float4 factors(uint4 head, uint pair) {
    const uint2 bits = six_bits(head, pair);
    const float d = half_value((ushort)head.x), dmin = half_value((ushort)(head.x >> 16));
    return (float4)(d * (bits.x & 0xff), d * (bits.x >> 8 & 0xff), dmin * (bits.y & 0xff),
                    dmin * (bits.y >> 8 & 0xff));
}

#if X8

// Correctly rounded but for rare cases, and exact where it can be: OpenCL allows a division 2.5
// ulp, by which quants at a tie would come out differently from device to device.
static inline float quotient(float a, float b) {
    const float q = a / b;
    return q + fma(-q, b, a) / b;
}

static inline float magnitude(float8 v) {
    const float8 m = fabs(v);
    const float4 four = max(m.lo, m.hi);
    return max(max(four.x, four.y), max(four.z, four.w));
}

// Quants of eight elements, whose 32 have the magnitude `top`.
static inline int8 quantised(float8 v, float top) {
    return convert_int8_rte(v * (top > 0 ? quotient(127.0f, top) : 0.0f));
}

static inline int isum(int8 v) {
    const int4 four = v.lo + v.hi;
    return four.x + four.y + four.z + four.w;
}

#endif
#endif
