// Quantised weights, 16 bytes of quants at a time, and their products with x.
//
// Constants from the host: W_TYPE (TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_K), X_TYPE, and
//   REPACK  0: blocks as in files; 1: all quants, then all scales (not q4_K)
//   X8      0: x as floats; 1: x in quants of 8 bits, 32 to a scale (q8_1), products of integers
//   W_PACK  a load takes 2 << W_PACK bytes. Blocks of q8_0 and q4_0 as in files are aligned to two
//           bytes only: 0 loads those, 1 aligned words, out of which the quants are shifted.
//           An even number of blocks to a row keeps those words within it.
//
// Given to kernels:
//   UNIT            weights of a unit: what 16 bytes of quants hold
//   Unit            a unit as it lies in memory
//   Matrix          where units are
//   XUnit           the elements of x that a unit meets; they come from a Held
//   Held<N>         N elements of x, as floats or quants, for shared memory
//   dot(w, x)       the sum over a unit, as float
// Elements of a unit lie apart in memory as nibbles do: a byte of q4_0 holds elements j and j + 16,
// one of q4_K j and j + 32.
#ifndef QUANT_H
#define QUANT_H
#define TYPE_Q8_0 4
#define TYPE_Q4_0 5
#define TYPE_Q4_K 6
#include "types.h"

#ifndef REPACK
#define REPACK 0
#endif
#ifndef X8
#define X8 0
#endif
#if REPACK && W_TYPE == TYPE_Q4_K
#error blocks of q4_K are aligned as they are
#endif

#if W_TYPE == TYPE_Q8_0
#define UNIT 16
#define BLOCK_BYTES 34
#else
#define UNIT 32
#define BLOCK_BYTES (W_TYPE == TYPE_Q4_0 ? 18 : 144)
#endif
#define QUANTS_32 (W_TYPE == TYPE_Q8_0 ? 32 : 16)  // bytes of 32 quants
#define UNITS_32 (32 / UNIT)                       // units that share a scale of x or of w

typedef unsigned char Byte;

struct Unit {
    unsigned quant[4];
    unsigned short scale;
#if W_TYPE == TYPE_Q4_K
    unsigned head[4];  // d, dmin and the scales of the block of 256
#endif
};

// 16 bytes. Weights are read once: past the first level of cache, and in lines of 256 bytes where
// the architecture has that. Blocks of q4_K share sectors with their heads, and so keep them.
__device__ __forceinline__ void load_16(unsigned (&word)[4], const Byte *p) {
#if __CUDA_ARCH__ >= 800 && W_TYPE == TYPE_Q4_K
#define ONCE "ld.global.nc.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
#elif __CUDA_ARCH__ >= 800
#define ONCE "ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
#else
#define ONCE "ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
#endif
    asm(ONCE : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3]) : "l"(p));
}

// 16 bytes from an address aligned to the load.
__device__ __forceinline__ void load_aligned(unsigned (&word)[4], const Byte *p) {
#if W_PACK == 3
    load_16(word, p);
#elif W_PACK == 2
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint2 v = __ldg((const uint2 *)p + i);
        word[2 * i] = v.x, word[2 * i + 1] = v.y;
    }
#elif W_PACK == 1
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = __ldg((const unsigned *)p + i);
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = __ldg((const unsigned short *)p + 2 * i) |
                  (unsigned)__ldg((const unsigned short *)p + 2 * i + 1) << 16;
#endif
}

__device__ __forceinline__ unsigned load_word(const Byte *p, bool global) {
    return global ? __ldg((const unsigned *)p) : *(const unsigned *)p;
}

// 16 bytes from an even address, by aligned words. The fifth word is read only where it is needed:
// it may lie behind the row.
__device__ __forceinline__ void load_shifted(unsigned (&word)[4], const Byte *p, bool global) {
    const bool odd = (unsigned long long)p & 2;
    p -= odd ? 2 : 0;
    unsigned low = load_word(p, global);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const unsigned high = load_word(p + 4 * (i < 3 || odd ? i + 1 : 3), global);
        word[i] = __funnelshift_r(low, high, odd ? 16 : 0);
        low = high;
    }
}

// W as bytes; rows of k weights.
struct Matrix {
    const Byte *quants;
    const unsigned short *scales;  // of REPACK
    unsigned long long row_bytes;
    unsigned row_scales;

    __device__ __forceinline__ Matrix(const Byte *w, unsigned k, unsigned n) {
        quants = w;
        row_scales = k / 32;
#if REPACK
        row_bytes = (unsigned long long)k / 32 * QUANTS_32;
        scales = (const unsigned short *)(w + row_bytes * n);
#else
        row_bytes = (unsigned long long)k / (W_TYPE == TYPE_Q4_K ? 256 : 32) * BLOCK_BYTES;
        scales = 0;
#endif
    }

    __device__ __forceinline__ void load(Unit &unit, unsigned row, unsigned u) const {
        const Byte *from = quants + row * row_bytes;
#if REPACK
        load_aligned(unit.quant, from + u * 16);
        unit.scale = __ldg(scales + ((unsigned long long)row * row_scales + u / UNITS_32));
#elif W_TYPE == TYPE_Q4_K
        from += u / 8 * BLOCK_BYTES;
        load_aligned(unit.head, from);
        load_aligned(unit.quant, from + 16 + u % 8 * 16);
#else
        from += u / UNITS_32 * BLOCK_BYTES;
        unit.scale = __ldg((const unsigned short *)from);
        from += 2 + u % UNITS_32 * 16;
#if W_PACK == 0
        load_aligned(unit.quant, from);
#else
        load_shifted(unit.quant, from, true);
#endif
#endif
    }
};

// The same from a copy of `units` in shared memory.
#if !REPACK && W_TYPE != TYPE_Q4_K
__device__ __forceinline__ void unit_in_shared(Unit &unit, const Byte *units, unsigned u) {
    const Byte *from = units + u / UNITS_32 * BLOCK_BYTES;
    unit.scale = *(const unsigned short *)from;
    load_shifted(unit.quant, from + 2 + u % UNITS_32 * 16, false);
}
#endif

// The six-bit scales and mins of the two halves of a unit's 64 weights, ggml's get_scale_min_k4.
#if W_TYPE == TYPE_Q4_K
struct Factors {
    float scale[2], min[2];  // d times the one, dmin times the other

    __device__ __forceinline__ Factors(const unsigned (&head)[4], unsigned u) {
        const bool upper = u & 4;
        const unsigned shift = u / 2 % 2 * 16;
        const unsigned scales = (upper ? (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u)
                                       : head[1] & 0x3f3f3f3fu) >> shift;
        const unsigned mins = (upper ? (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u)
                                     : head[2] & 0x3f3f3f3fu) >> shift;
        const float d = low_float<TYPE_F16>(head[0]), dmin = high_float<TYPE_F16>(head[0]);
        scale[0] = d * (scales & 0xff), scale[1] = d * (scales >> 8 & 0xff);
        min[0] = dmin * (mins & 0xff), min[1] = dmin * (mins >> 8 & 0xff);
    }
};
#endif

// Eight elements of x; `wide`: their address is aligned to 16 bytes.
__device__ __forceinline__ void load_eight(float *v, const XT *x, bool wide) {
    if (!wide) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] = load_x(x + e).v[0];
        return;
    }
#pragma unroll
    for (int i = 0; i < (X_TYPE == TYPE_F32 ? 2 : 1); i++) {
        const uint4 u = __ldg((const uint4 *)x + i);
        const unsigned word[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (X_TYPE == TYPE_F32) {
                v[4 * i + j] = __uint_as_float(word[j]);
            } else {
                v[2 * j] = low_float<X_TYPE>(word[j]);
                v[2 * j + 1] = high_float<X_TYPE>(word[j]);
            }
        }
    }
}

// Units of x lie in planes, so that neighbouring lanes read neighbouring pieces: piece `p` of unit
// `u` for piece number `c` of x, `per` pieces to 16 elements.
__device__ __forceinline__ void place(unsigned c, unsigned per, unsigned &u, unsigned &p) {
    const unsigned run = c / per;  // of 16 elements, the half of a unit of nibbles
#if W_TYPE == TYPE_Q8_0
    u = run, p = 0;
#elif W_TYPE == TYPE_Q4_0
    u = run / 2, p = run % 2;
#else
    u = run / 4 * 2 + run % 2, p = run / 2 % 2;
#endif
    p = p * per + c % per;
}

#if X8

#define PIECES (UNIT / 16)  // of 16 quants
#define POWER 0u           // of no use

struct XUnit {
    unsigned quant[UNIT / 4];
    float scale[2], sum;  // sum: of the elements that belong to a min or to the 8 of q4_0
};

template <int N> struct Held {
    uint4 quants[PIECES][N / UNIT];
    float2 scales[N / 32];  // and sums

    __device__ __forceinline__ XUnit unit(unsigned u) const {
        XUnit x;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const uint4 v = quants[p][u];
            x.quant[4 * p] = v.x, x.quant[4 * p + 1] = v.y;
            x.quant[4 * p + 2] = v.z, x.quant[4 * p + 3] = v.w;
        }
#if W_TYPE == TYPE_Q4_K
        const float4 pair = *(const float4 *)(scales + u / 2 * 2);
        x.scale[0] = pair.x, x.scale[1] = pair.z, x.sum = u % 2 ? pair.w : pair.y;
#else
        const float2 one = scales[u / UNITS_32];
        x.scale[0] = one.x, x.sum = one.y;
#endif
        return x;
    }

    // Quantises `count` elements, a multiple of 32. A thread takes 16, and two share a scale: every
    // thread of a warp takes part.
    __device__ __forceinline__ void fill(const XT *x, unsigned count, bool wide) {
        for (unsigned from = 0; from < count; from += BLOCK * 16) {
            const unsigned i = from + threadIdx.x * 16;
            float v[16] = {}, top = 0;
            if (i < count)
                load_eight(v, x + i, wide), load_eight(v + 8, x + i + 8, wide);
#pragma unroll
            for (int e = 0; e < 16; e++)
                top = fmaxf(top, fabsf(v[e]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            const float scale = top / 127.0f, inverse = top > 0 ? 127.0f / top : 0;
            // To the nearest integer, ties to even, where the sum's last place is 1: the low byte.
            unsigned word[4];
            int sum = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                unsigned bits[4];
#pragma unroll
                for (int e = 0; e < 4; e++)
                    bits[e] =
                        __float_as_uint(__fadd_rn(__fmul_rn(v[4 * j + e], inverse), 12582912.0f));
                word[j] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0040),
                                      __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
                sum = __dp4a((int)word[j], 0x01010101, sum);
            }
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            if (i >= count)
                continue;
            unsigned u, p;
            place(i / 16, 1, u, p);
            quants[p][u] = make_uint4(word[0], word[1], word[2], word[3]);
            if (i % 32 == 0)
                scales[i / 32] = make_float2(scale, scale * sum);
        }
    }
};

__device__ __forceinline__ float dot(const Unit &w, const XUnit &x, unsigned u, unsigned) {
    int sum[2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if W_TYPE == TYPE_Q8_0
        sum[0] = __dp4a((int)w.quant[i], (int)x.quant[i], sum[0]);
#else
        const int low = w.quant[i] & 0x0f0f0f0fu, high = w.quant[i] >> 4 & 0x0f0f0f0fu;
        int &second = sum[W_TYPE == TYPE_Q4_K];
        sum[0] = __dp4a(low, (int)x.quant[i], sum[0]);
        second = __dp4a(high, (int)x.quant[4 + i], second);
#endif
    }
#if W_TYPE == TYPE_Q8_0
    return low_float<TYPE_F16>(w.scale) * x.scale[0] * sum[0];
#elif W_TYPE == TYPE_Q4_0
    return low_float<TYPE_F16>(w.scale) * fmaf(x.scale[0], sum[0], -8 * x.sum);
#else
    // Two units hold the halves of two times 32 weights; each takes the min of one of them.
    const Factors f(w.head, u);
    return fmaf(f.scale[0] * x.scale[0], sum[0],
                fmaf(f.scale[1] * x.scale[1], sum[1], -f.min[u % 2] * x.sum));
#endif
}

#else

#define PIECES (UNIT / 4)  // of four floats

struct XUnit {
    float v[UNIT];
};

template <int N> struct Held {
    float4 pieces[PIECES][N / UNIT];

    __device__ __forceinline__ XUnit unit(unsigned u) const {
        XUnit x;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const float4 v = pieces[p][u];
            x.v[4 * p] = v.x, x.v[4 * p + 1] = v.y, x.v[4 * p + 2] = v.z, x.v[4 * p + 3] = v.w;
        }
        return x;
    }

    __device__ __forceinline__ void fill(const XT *x, unsigned count, bool wide) {
        for (unsigned i = threadIdx.x * 8; i < count; i += BLOCK * 8) {
            float v[8];
            load_eight(v, x + i, wide);
            unsigned u, p;
            place(i / 4, 4, u, p);
            pieces[p][u] = make_float4(v[0], v[1], v[2], v[3]);
            pieces[p + 1][u] = make_float4(v[4], v[5], v[6], v[7]);
        }
    }
};

// Numbers out of bytes by a permutation, which costs half of a conversion. Exponents come from
// `power`, which must look unknown: the compiler sets a constant anew for each use.
#if W_TYPE == TYPE_Q8_0
#define POWER 0x4b000000u  // 2^23, whose last place is 1
// Byte i of a word, less 128.
__device__ __forceinline__ float byte_at(unsigned word, int i, unsigned power) {
    return __uint_as_float(__byte_perm(word, power, 0x7440 | i)) - (8388608.0f + 128);
}
#else
#define POWER 0x41000000u
// Nibble `half` of byte i of a word, plus 16: the first places of a mantissa. Sums less 16 times
// those of x are within rounding of sums of nibbles: numbers up to 31, not 15, are rounded.
__device__ __forceinline__ float nibble_at(unsigned word, int i, int half, unsigned power) {
    const unsigned bytes = ((half ? word >> 1 : word << 3) & 0x78787878u) | 0x80808080u;
    return __uint_as_float(__byte_perm(bytes, power, 0x7044 | i << 8));
}
#endif

__device__ __forceinline__ float dot(const Unit &w, const XUnit &x, unsigned u, unsigned power) {
#if W_TYPE == TYPE_Q8_0
    float sum = 0;
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        sum = fmaf(byte_at(w.quant[i / 4] ^ 0x80808080u, i % 4, power), x.v[i], sum);
    return low_float<TYPE_F16>(w.scale) * sum;
#else
    float sum[2] = {}, total[2] = {};
#pragma unroll
    for (int i = 0; i < 16; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float v = x.v[16 * half + i];
            sum[half] = fmaf(nibble_at(w.quant[i / 4], i % 4, half, power), v, sum[half]);
            total[half] += v;  // the same for every row
        }
    }
#if W_TYPE == TYPE_Q4_0
    return low_float<TYPE_F16>(w.scale) * (sum[0] + sum[1] - 24 * (total[0] + total[1]));
#else
    const Factors f(w.head, u);
    return f.scale[0] * (sum[0] - 16 * total[0]) + f.scale[1] * (sum[1] - 16 * total[1]) -
           (f.min[0] * total[0] + f.min[1] * total[1]);
#endif
#endif
}

#endif
#endif
