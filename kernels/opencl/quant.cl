// y = W x for quantised W, the counterpart of cuda/quant.cu. LANES work-items share ROWS rows,
// neighbouring lanes take neighbouring units of 16 bytes of quants, and AHEAD units of each row are
// on their way to every item. x waits in local memory, as floats or quantised by the workgroup
// itself (X8), whose first weights are on their way by then.
//
// Constants: those of quant.h, and
//   BLOCK     items of a workgroup
//   LANES     a power of two from 8 on that divides BLOCK
//   ROWS      rows of LANES items; a workgroup takes TILE = ROWS * BLOCK / LANES rows at a time
//   AHEAD     units of a row in flight for each item
//   X_ROUNDS  x is held in pieces of X_ROUNDS * AHEAD * LANES * UNIT elements (UNIT: 16 of q8_0, 32
//             of q4_0 and q4_K), 4 bytes each, or 1.25 with X8. Fastest where one is the whole x.
//             Sums take ROWS * BLOCK * 4.5 bytes of local memory more, quantising BLOCK * 8.
//   W_PACK    a load takes 2 << W_PACK bytes: 0 to 3; for q8_0 and q4_0 as in files 0, and 1, which
//             loads aligned words and shifts the quants out of them.
// Alignment: w + w_offset and rows to the load; that is, as in files, for q8_0 and q4_0 k / 32 even
// for 1. REPACK: k / 32 even, and w to the load.
// The workgroup count is any: they go on to further tiles. ceil(n / TILE) of them take one each.
#include "quant.h"

#if W_TYPE == TYPE_Q8_0
#define UNIT 16
#else
#define UNIT 32
#endif
#define UNITS_32 (32 / UNIT)  // units that share a scale of x, and of w
#define GROUPS (BLOCK / LANES)
#define TILE (ROWS * GROUPS)
#define ROUND (AHEAD * LANES)      // units of a row in one round
#define HELD (X_ROUNDS * ROUND)    // units of x in local memory
#define FAN 8                      // sums that one item adds in the first stage
#define PARTS (LANES / FAN)        // and the second

#if W_TYPE == TYPE_Q4_K
#define HAS_HEAD
#endif

// A unit as it lies in memory.
typedef struct {
    uint4 quants;
#ifdef HAS_HEAD
    uint4 head;
#else
    ushort scale;
#endif
} Unit;

// 16 bytes from an address aligned to the load.
static inline uint4 load_aligned(byte_ptr p) {
#if W_PACK == 3
    return *(const __global uint4 *)p;
#elif W_PACK == 2
    const __global uint2 *q = (const __global uint2 *)p;
    return (uint4)(q[0], q[1]);
#elif W_PACK == 1
    const __global uint *q = (const __global uint *)p;
    return (uint4)(q[0], q[1], q[2], q[3]);
#else
    const __global ushort *q = (const __global ushort *)p;
    return (uint4)(q[0] | (uint)q[1] << 16, q[2] | (uint)q[3] << 16, q[4] | (uint)q[5] << 16,
                   q[6] | (uint)q[7] << 16);
#endif
}

// 16 bytes from an even address, by aligned words. The fifth is read only where it is needed: it
// may lie behind the row.
static inline uint4 load_shifted(byte_ptr p) {
    const bool odd = (size_t)p & 2;
    const __global uint *q = (const __global uint *)(p - (odd ? 2 : 0));
    const uint4 low = (uint4)(q[0], q[1], q[2], q[3]);
    const uint4 high = (uint4)(low.y, low.z, low.w, q[odd ? 4 : 3]);
    return odd ? low >> 16 | high << 16 : low;
}

// Unit u of a row of the matrix at w.
static inline Unit load_unit(byte_ptr w, uint k, uint n, uint row, uint u) {
    Unit unit;
#if REPACK
    const ulong row_bytes = (ulong)(k / 32) * QUANTS_32;
    const __global ushort *scales = (const __global ushort *)(w + row_bytes * n);
    unit.quants = load_aligned(w + row_bytes * row + u * 16);
    unit.scale = scales[(ulong)row * (k / 32) + u / UNITS_32];
#else
    w += (ulong)(k / BLOCK_WEIGHTS) * BLOCK_BYTES * row;
#ifdef HAS_HEAD
    w += u / 8 * BLOCK_BYTES;
    unit.head = load_aligned(w);
    unit.quants = load_aligned(w + 16 + u % 8 * 16);
#else
    w += u / UNITS_32 * BLOCK_BYTES;
    unit.scale = *(const __global ushort *)w;
    w += 2 + u % UNITS_32 * 16;
#if W_PACK == 0
    unit.quants = load_aligned(w);
#else
    unit.quants = load_shifted(w);
#endif
#endif
#endif
    return unit;
}

// The unit that 16 elements of x belong to, and whether they are its first or second ones.
static inline uint2 place(uint run) {
#if W_TYPE == TYPE_Q8_0
    return (uint2)(run, 0);
#elif W_TYPE == TYPE_Q4_0
    return (uint2)(run / 2, run % 2);
#else
    return (uint2)(run / 4 * 2 + run % 2, run / 2 % 2);
#endif
}

#if X8

// c plus the products of four signed bytes each. NVIDIA: sm_61 and later.
static inline int dp4a(uint a, uint b, int c) {
#if PTX
    int sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
#elif defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
    return c + dot_4x8packed_ss_int(a, b);
#else
    const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
    return c + products.x + products.y + products.z + products.w;
#endif
}

#define PIECES (UNIT / 16)

typedef struct {
    uint4 quants[PIECES];
    float2 scale;
    float sum;  // of the elements that belong to a min, or to the 8 of q4_0
} XUnit;

// What local memory holds of x.
typedef struct {
    uint4 quants[PIECES][HELD];
    float2 scales[HELD / UNITS_32];  // and sums
    float tops[BLOCK];
    int sums[BLOCK];
} Held;

static inline XUnit held_unit(const __local Held *held, uint u) {
    XUnit x;
    for (uint p = 0; p < PIECES; p++)
        x.quants[p] = held->quants[p][u];
#ifdef HAS_HEAD
    const float2 low = held->scales[u / 2 * 2], high = held->scales[u / 2 * 2 + 1];
    x.scale = (float2)(low.x, high.x);
    x.sum = u % 2 ? high.y : low.y;
#else
    const float2 both = held->scales[u / UNITS_32];
    x.scale = both.xx;
    x.sum = both.y;
#endif
    return x;
}

// Quantises `count` elements, a multiple of 32: an item takes 16, and two share a scale.
static inline void fill(__local Held *held, const __global XT *x, uint count, bool wide) {
    const uint item = get_local_id(0);
    for (uint from = 0; from < count; from += BLOCK * 16) {
        const uint i = from + item * 16;
        float8 low = 0, high = 0;
        if (i < count) {
            low = load_eight(x + i, wide);
            high = load_eight(x + i + 8, wide);
        }
        held->tops[item] = max(magnitude(low), magnitude(high));
        barrier(CLK_LOCAL_MEM_FENCE);
        const float top = max(held->tops[item], held->tops[item ^ 1]);
        const int8 first = quantised(low, top), second = quantised(high, top);
        held->sums[item] = isum(first + second);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < count) {
            const uint2 at = place(i / 16);
            held->quants[at.y][at.x] =
                (uint4)(as_uint2(convert_char8(first)), as_uint2(convert_char8(second)));
            if (i % 32 == 0) {
                const float scale = quotient(top, 127.0f);
                held->scales[i / 32] =
                    (float2)(scale, scale * (held->sums[item] + held->sums[item + 1]));
            }
        }
    }
}

#define DOT4(sum, a, b) \
    sum = dp4a((a).w, (b).w, dp4a((a).z, (b).z, dp4a((a).y, (b).y, dp4a((a).x, (b).x, sum))))

#define POWER 0u  // of no use

static inline float dot_unit(Unit w, XUnit x, uint u, uint power) {
    int first = 0;
#if W_TYPE == TYPE_Q8_0
    DOT4(first, w.quants, x.quants[0]);
    return half_value(w.scale) * x.scale.x * first;
#else
    const uint4 low = w.quants & 0x0f0f0f0f, high = w.quants >> 4 & 0x0f0f0f0f;
    DOT4(first, low, x.quants[0]);
#if W_TYPE == TYPE_Q4_0
    DOT4(first, high, x.quants[1]);
    return half_value(w.scale) * (x.scale.x * first - 8 * x.sum);
#else
    int second = 0;
    DOT4(second, high, x.quants[1]);
    // Two units hold the halves of two times 32 weights; each takes the min of one of them.
    const float4 f = factors(w.head, u / 2 % 4);
    return f.x * x.scale.x * first + f.y * x.scale.y * second - (u % 2 ? f.w : f.z) * x.sum;
#endif
#endif
}

#else

#define PIECES (UNIT / 4)

typedef struct {
    float4 v[PIECES];
} XUnit;

// Units of x lie in planes, so that neighbouring items read neighbouring pieces.
typedef struct {
    float4 pieces[PIECES][HELD];
} Held;

static inline XUnit held_unit(const __local Held *held, uint u) {
    XUnit x;
    #pragma unroll
    for (uint p = 0; p < PIECES; p++)
        x.v[p] = held->pieces[p][u];
    return x;
}

static inline void fill(__local Held *held, const __global XT *x, uint count, bool wide) {
    for (uint i = get_local_id(0) * 8; i < count; i += BLOCK * 8) {
        const float8 v = load_eight(x + i, wide);
        const uint2 at = place(i / 16);
        const uint piece = at.y * 4 + i / 4 % 4;
        held->pieces[piece][at.x] = v.lo;
        held->pieces[piece + 1][at.x] = v.hi;
    }
}

// Numbers out of bytes: the byte becomes the end of the mantissa of 2^23, which comes off again, or
// a nibble the first places of 16's, which comes off the sum: cuda/quant.h. `power` must look
// unknown: NVIDIA's compiler sets a constant anew for each use.
#if W_TYPE == TYPE_Q8_0
#define POWER 0x4b000000u
#define BYTE_AT 0
#else
#define POWER 0x41000000u
#define BYTE_AT 16
#endif
static inline float byte_value(uint word, uint i, uint power) {
#if PTX
    uint bits;
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(bits) : "r"(word), "r"(power), "r"(BYTE_AT ? 0x7044 | i << 8 : 0x7440 | i));
    return as_float(bits);
#else
    return as_float((word >> (8 * i) & 0xff) << BYTE_AT | power);
#endif
}

static inline float sum4(float4 v) { return v.x + v.y + v.z + v.w; }

// Products of four words' bytes with 16 elements of x.
static inline float products(uint4 w, const XUnit *x, uint first, uint power) {
    float4 sum = 0;
    #pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint word = i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
        const float4 values = (float4)(byte_value(word, 0, power), byte_value(word, 1, power),
                                       byte_value(word, 2, power), byte_value(word, 3, power));
#if W_TYPE == TYPE_Q8_0
        sum += (values - (8388608.0f + 128)) * x->v[first + i];
#else
        sum += values * x->v[first + i];
#endif
    }
    return sum4(sum);
}

static inline float dot_unit(Unit w, XUnit x, uint u, uint power) {
#if W_TYPE == TYPE_Q8_0
    return half_value(w.scale) * products(w.quants ^ 0x80808080u, &x, 0, power);
#else
    const float low = products((w.quants << 3 & 0x78787878u) | 0x80808080u, &x, 0, power);
    const float high = products((w.quants >> 1 & 0x78787878u) | 0x80808080u, &x, 4, power);
    const float total_low = sum4(x.v[0] + x.v[1] + x.v[2] + x.v[3]);  // the same for every row
    const float total_high = sum4(x.v[4] + x.v[5] + x.v[6] + x.v[7]);
#if W_TYPE == TYPE_Q4_0
    return half_value(w.scale) * (low + high - 24 * (total_low + total_high));
#else
    const float4 f = factors(w.head, u / 2 % 4);
    return f.x * (low - 16 * total_low) + f.y * (high - 16 * total_high) -
           (f.z * total_low + f.w * total_high);
#endif
#endif
}

#endif

// Rows past the end read the last row again, and are not stored.
static inline uint row_of(uint tile, uint group, uint r, uint n) {
    return min(tile * TILE + group * ROWS + r, n - 1);
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void gemv_quant(__global const uchar *restrict w, __global const XT *restrict x,
                __global float *restrict y, uint k, uint n, ulong w_offset, uint x_offset) {
    __local Held held;
    __local float sums[ROWS * BLOCK];
    __local float parts[ROWS * BLOCK / FAN];
    const uint item = get_local_id(0), lane = item % LANES, group = item / LANES;
    const uint first_tile = get_group_id(0), groups = get_num_groups(0);
    const uint units = k / UNIT, rounds = (units + ROUND - 1) / ROUND;
    const uint tiles = (n + TILE - 1) / TILE;
    const bool wide = x_offset % 8 == 0;
    const uint power = POWER | n >> 31;  // n is below 2^31, which the compiler cannot know
    w += w_offset;
    x += x_offset;

    Unit flight[AHEAD][ROWS];
    #pragma unroll
    for (uint a = 0; a < AHEAD; a++)
        if (first_tile < tiles && a * LANES + lane < units) {
            #pragma unroll
            for (uint r = 0; r < ROWS; r++)
                flight[a][r] =
                    load_unit(w, k, n, row_of(first_tile, group, r, n), a * LANES + lane);
        }

    for (uint tile = first_tile; tile < tiles; tile += groups) {
        float acc[ROWS];
        #pragma unroll
        for (uint r = 0; r < ROWS; r++)
            acc[r] = 0;
        for (uint round = 0; round < rounds; round++) {
            const uint base = round / X_ROUNDS * HELD;  // first unit of x held
            if (round % X_ROUNDS == 0 && (tile == first_tile || rounds > X_ROUNDS)) {
                barrier(CLK_LOCAL_MEM_FENCE);
                fill(&held, x + base * UNIT, min((uint)HELD, units - base) * UNIT, wide);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            const bool last = round + 1 == rounds;
            const uint next = last ? 0 : round + 1, next_tile = last ? tile + groups : tile;
            #pragma unroll
            for (uint a = 0; a < AHEAD; a++) {
                const uint u = (round * AHEAD + a) * LANES + lane;
                if (u < units) {
                    const XUnit xs = held_unit(&held, u - base);
                    #pragma unroll
                    for (uint r = 0; r < ROWS; r++)
                        acc[r] += dot_unit(flight[a][r], xs, u, power);
                }
                const uint v = (next * AHEAD + a) * LANES + lane;
                if (next_tile < tiles && v < units) {
                    #pragma unroll
                    for (uint r = 0; r < ROWS; r++)
                        flight[a][r] = load_unit(w, k, n, row_of(next_tile, group, r, n), v);
                }
            }
        }
        #pragma unroll
        for (uint r = 0; r < ROWS; r++)
            sums[(group * ROWS + r) * LANES + lane] = acc[r];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = item; i < TILE * PARTS; i += BLOCK) {
            const uint from = i / PARTS * LANES + i % PARTS;
            float sum = sums[from];
            for (uint f = 1; f < FAN; f++)
                sum += sums[from + f * PARTS];
            parts[i] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = item; i < TILE; i += BLOCK) {
            float sum = parts[i * PARTS];
            for (uint f = 1; f < PARTS; f++)
                sum += parts[i * PARTS + f];
            if (tile * TILE + i < n)
                y[tile * TILE + i] = sum;
        }
    }
}
