// Inputs from a counter: the same bits here, in inputs.cl and in gemvbench/inputs.py.
//
// Constants: TYPE (TYPE_F16, TYPE_BF16, TYPE_F32) and KIND, both for fill_values only:
//   KIND_RANDOM  like uniform in (-1, 1): every mantissa bit random, magnitude >= 2**-9,
//                one stream of values that narrower types truncate
//   KIND_SMALL   integers -3 .. 3 without 0
//   KIND_SPARSE  +1 or -1 where index % period == phase, else 0
#ifndef TYPE_F16
#define TYPE_F16 1
#define TYPE_BF16 2
#define TYPE_F32 3
#endif
#define KIND_RANDOM 0
#define KIND_SMALL 1
#define KIND_SPARSE 2
#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef KIND
#define KIND KIND_RANDOM
#endif

#define DEVICE __device__ __forceinline__
typedef unsigned long long u64;
#if TYPE == TYPE_F32
typedef unsigned value_t;
#else
typedef unsigned short value_t;
#endif

DEVICE unsigned mix(unsigned h) {
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return h ^ h >> 16;
}

DEVICE unsigned stream_key(unsigned seed, unsigned stream) {
    return mix(mix(seed + 0x9e3779b9u) ^ stream);
}

DEVICE unsigned element(unsigned key, u64 index) {
    const unsigned high = mix(key + (unsigned)(index >> 32) * 0x85ebca6bu);
    return mix(mix((unsigned)index ^ high) + key);
}

DEVICE int small_value(unsigned h) {
    const int m = (int)((h >> 16) * 6 >> 16);
    return m - 3 + (m >= 3);
}

DEVICE int sparse_value(unsigned h, u64 index, unsigned period, unsigned phase) {
    return index % period == phase ? 1 - 2 * (int)(h >> 31) : 0;
}

// Bits of a float: exponent by the leading zeros of the low byte, mantissa from the rest.
DEVICE unsigned random_bits(unsigned h) {
    const unsigned zeros = __clz((h & 255) << 24 | 1u << 23);
    return (h & 0x80000000u) | (126 - zeros) << 23 | (h >> 8 & 0x7fffffu);
}

// Bits of the float of an integer -3 .. 3.
DEVICE unsigned integer_bits(int v) {
    const unsigned m = abs(v);
    const unsigned f = m > 1 ? 0x40000000u | (m & 1) << 22 : m * 0x3f800000u;
    return f | (v < 0 ? 0x80000000u : 0);
}

// Truncates; only zero and what f16 holds as a normal number come here.
DEVICE value_t narrow(unsigned f) {
#if TYPE == TYPE_F32
    return f;
#elif TYPE == TYPE_BF16
    return (value_t)(f >> 16);
#else
    const unsigned m = f & 0x7fffffffu;
    return (value_t)((f >> 16 & 0x8000u) | (m ? (m - (112u << 23)) >> 13 : 0));
#endif
}

DEVICE u64 first_item() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

DEVICE u64 item_count() {
    return (u64)gridDim.x * blockDim.x;
}

// out[out_offset + i] = value(first_index + i) for i < count, by any number of items.
extern "C" __global__ void fill_values(value_t *out, u64 count, u64 first_index,
                                       u64 out_offset, unsigned seed, unsigned stream,
                                       unsigned period, unsigned phase) {
    const unsigned key = stream_key(seed, stream);
    for (u64 i = first_item(); i < count; i += item_count()) {
        const u64 index = first_index + i;
        const unsigned h = element(key, index);
#if KIND == KIND_RANDOM
        const unsigned f = random_bits(h);
#elif KIND == KIND_SMALL
        const unsigned f = integer_bits(small_value(h));
#else
        const unsigned f = integer_bits(sparse_value(h, index, period, phase));
#endif
        out[out_offset + i] = narrow(f);
    }
}

// sums[row] of small w and small or sparse x (x_kind), from the generator alone: what y
// must be, for matrices too large for the host. Rows go over any number of items.
extern "C" __global__ void exact_rows(int *sums, unsigned k, unsigned n, unsigned seed,
                                      unsigned w_stream, unsigned x_stream, unsigned x_kind,
                                      unsigned period, unsigned phase) {
    const unsigned w_key = stream_key(seed, w_stream), x_key = stream_key(seed, x_stream);
    const bool sparse = x_kind == KIND_SPARSE;
    const unsigned step = sparse ? period : 1;
    const unsigned first = !sparse ? 0 : phase < period ? phase : k;
    for (u64 row = first_item(); row < n; row += item_count()) {
        int sum = 0;
        for (u64 j = first; j < k; j += step) {
            const unsigned h = element(x_key, j);
            const int v = sparse ? sparse_value(h, j, period, phase) : small_value(h);
            sum += small_value(element(w_key, row * k + j)) * v;
        }
        sums[row] = sum;
    }
}
