// y = W x for quantised W on CPU devices. Each work-item takes a contiguous range of rows, so a few
// work-items (local size 1) read W as a few long streams; vectors are of eight elements.
//
// Constants: those of quant.h, and X_CACHE, at least k: elements of x that a work-item converts (with
// X8: quantises) once, up front.
// Quants are read byte by byte and scales by two bytes, wherever they lie.
#include "quant.h"

// Row of the matrix: where its blocks are, and its scales.
typedef struct {
    byte_ptr blocks;
    const __global ushort *scales;
} Row;

static inline Row row_at(byte_ptr w, uint k, uint n, uint row) {
    Row it;
#if REPACK
    const ulong bytes = (ulong)(k / 32) * QUANTS_32;
    it.blocks = w + bytes * row;
    it.scales = (const __global ushort *)(w + bytes * n) + (ulong)(k / 32) * row;
#else
    it.blocks = w + (ulong)(k / BLOCK_WEIGHTS) * BLOCK_BYTES * row;
    it.scales = (const __global ushort *)it.blocks;
#endif
    return it;
}

// Quants and scale of block b of 32.
#if REPACK
#define QUANTS(row, b) ((row).blocks + (b) * QUANTS_32)
#define SCALE(row, b) half_value((row).scales[b])
#else
#define QUANTS(row, b) ((row).blocks + (b) * BLOCK_BYTES + 2)
#define SCALE(row, b) half_value((row).scales[(b) * (BLOCK_BYTES / 2)])
#endif

// Clang's own conversions are instructions, and OpenCL's built-ins may be calls (PoCL).
#ifdef __clang__
#define CONVERT(v, type) __builtin_convertvector(v, type)
#else
#define CONVERT(v, type) convert_##type(v)
#endif
#if W_TYPE == TYPE_Q8_0
typedef char8 chars_t __attribute__((aligned(1)));
#else
typedef uchar8 chars_t __attribute__((aligned(1)));
#endif
#define CHARS(p) (*(const __global chars_t *)(p))

#if X8

// Products of quants are summed in 16 bits: two of bytes fit, and four of nibbles.
typedef short8 lanes_t;
#define W_LANES(chars) CONVERT(chars, short8)
#define X_LANES(x, i) CONVERT((x)->quants[(i) / 8], short8)
#define WIDEN(v) CONVERT(v, float8)
#define X_SCALE(x, b) (x)->scales[b]
#define X_SUM(x, b) (x)->sums[b]

typedef struct {
    char8 quants[X_CACHE / 8];
    float scales[X_CACHE / 32], sums[X_CACHE / 32];
} Xs;

static inline void fill(Xs *to, const __global XT *x, uint k, bool wide) {
    for (uint b = 0; b < k / 32; b++) {
        float8 v[4];
        float top = 0;
        for (uint j = 0; j < 4; j++) {
            v[j] = load_eight(x + b * 32 + j * 8, wide);
            top = max(top, magnitude(v[j]));
        }
        int sum = 0;
        for (uint j = 0; j < 4; j++) {
            const int8 quants = quantised(v[j], top);
            to->quants[b * 4 + j] = convert_char8(quants);
            sum += isum(quants);
        }
        to->scales[b] = quotient(top, 127.0f);
        to->sums[b] = to->scales[b] * sum;
    }
}

#else

typedef float8 lanes_t;
#define W_LANES(chars) CONVERT(chars, float8)
#define X_LANES(x, i) (x)->values[(i) / 8]
#define WIDEN(v) (v)
#define X_SCALE(x, b) 1.0f
#define X_SUM(x, b) (x)->sums[b]

typedef struct {
    float8 values[X_CACHE / 8];
    float sums[X_CACHE / 32];
} Xs;

static inline void fill(Xs *to, const __global XT *x, uint k, bool wide) {
    for (uint b = 0; b < k / 32; b++) {
        float8 sum = 0;
        for (uint j = 0; j < 4; j++) {
            to->values[b * 4 + j] = load_eight(x + b * 32 + j * 8, wide);
            sum += to->values[b * 4 + j];
        }
        to->sums[b] = hsum8(sum);
    }
}

#endif

// Quants p .. p + 15 (as chars a, b) with elements i .. i + 15 of x.
#define SIXTEEN(a, b, x, i) (W_LANES(a) * X_LANES(x, i) + W_LANES(b) * X_LANES(x, (i) + 8))

#if W_TYPE == TYPE_Q8_0

#define STEP 32
static inline float8 products(Row row, const Xs *x, uint i) {
    const uint b = i / 32;
    const byte_ptr q = QUANTS(row, b);
    const float8 sum = WIDEN(SIXTEEN(CHARS(q), CHARS(q + 8), x, i)) +
                       WIDEN(SIXTEEN(CHARS(q + 16), CHARS(q + 24), x, i + 16));
    return sum * (SCALE(row, b) * X_SCALE(x, b));
}

#elif W_TYPE == TYPE_Q4_0

#define STEP 32
#define SIGNED(nibbles) (as_char8(nibbles) - (char8)8)
static inline float8 products(Row row, const Xs *x, uint i) {
    const uint b = i / 32;
    const byte_ptr q = QUANTS(row, b);
    const uchar8 first = CHARS(q), second = CHARS(q + 8);
    const lanes_t low = SIXTEEN(SIGNED(first & (uchar8)15), SIGNED(second & (uchar8)15), x, i);
    const lanes_t high = SIXTEEN(SIGNED(first >> (uchar8)4), SIGNED(second >> (uchar8)4), x, i + 16);
    return WIDEN(low + high) * (SCALE(row, b) * X_SCALE(x, b));
}

#else

#define STEP 256
#define HALVES(nibbles_of, x, i)                                                           \
    (WIDEN(SIXTEEN(nibbles_of(CHARS(q)), nibbles_of(CHARS(q + 8)), x, i)) +                \
     WIDEN(SIXTEEN(nibbles_of(CHARS(q + 16)), nibbles_of(CHARS(q + 24)), x, (i) + 16)))
#define LOW(bytes) ((bytes) & (uchar8)15)
#define HIGH(bytes) ((bytes) >> (uchar8)4)
static inline uint word_at(byte_ptr p) {
    const __global ushort *u = (const __global ushort *)p;
    return u[0] | (uint)u[1] << 16;
}
static inline float8 products(Row row, const Xs *x, uint i) {
    const byte_ptr from = row.blocks + i / 256 * BLOCK_BYTES;
    const uint4 head = (uint4)(word_at(from), word_at(from + 4), word_at(from + 8),
                               word_at(from + 12));
    float8 sum = 0;
    float mins = 0;
    for (uint pair = 0; pair < 4; pair++) {
        const byte_ptr q = from + 16 + pair * 32;
        const uint at = i + pair * 64, b = at / 32;
        const float4 f = factors(head, pair);
        sum += HALVES(LOW, x, at) * (f.x * X_SCALE(x, b));
        sum += HALVES(HIGH, x, at + 32) * (f.y * X_SCALE(x, b + 1));
        mins += f.z * X_SUM(x, b) + f.w * X_SUM(x, b + 1);
    }
    sum.s0 -= mins;
    return sum;
}

#endif

__kernel void gemv_quant_cpu(__global const uchar *w, __global const XT *x, __global float *y,
                             uint k, uint n, ulong w_offset, uint x_offset) {
    const ulong item = get_global_id(0), items = get_global_size(0);
    const uint end = (item + 1) * n / items;
    Xs xs;
    fill(&xs, x + x_offset, k, x_offset % 8 == 0);
    for (uint r = item * n / items; r < end; r++) {
        const Row row = row_at(w + w_offset, k, n, r);
        float8 acc[2] = {(float8)0, (float8)0};
        uint i = 0;
        for (; i + STEP < k; i += 2 * STEP) {
            acc[0] += products(row, &xs, i);
            acc[1] += products(row, &xs, i + STEP);
        }
        if (i < k)
            acc[0] += products(row, &xs, i);
        y[r] = hsum8(acc[0] + acc[1]);
    }
}
