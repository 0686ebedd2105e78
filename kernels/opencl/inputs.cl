// Inputs from a counter: the same bits here, in inputs.cu and in gemvbench/inputs.py.
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

#if TYPE == TYPE_F32
typedef uint value_t;
#else
typedef ushort value_t;
#endif

static inline uint mix(uint h) {
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return h ^ h >> 16;
}

static inline uint stream_key(uint seed, uint stream) {
    return mix(mix(seed + 0x9e3779b9u) ^ stream);
}

static inline uint element(uint key, ulong index) {
    const uint high = mix(key + (uint)(index >> 32) * 0x85ebca6bu);
    return mix(mix((uint)index ^ high) + key);
}

static inline int small_value(uint h) {
    const int m = (int)((h >> 16) * 6 >> 16);
    return m - 3 + (m >= 3);
}

static inline int sparse_value(uint h, ulong index, uint period, uint phase) {
    return index % period == phase ? 1 - 2 * (int)(h >> 31) : 0;
}

// Bits of a float: exponent by the leading zeros of the low byte, mantissa from the rest.
static inline uint random_bits(uint h) {
    const uint zeros = clz((h & 255) << 24 | 1u << 23);
    return (h & 0x80000000u) | (126 - zeros) << 23 | (h >> 8 & 0x7fffffu);
}

// Bits of the float of an integer -3 .. 3.
static inline uint integer_bits(int v) {
    const uint m = abs(v);
    const uint f = m > 1 ? 0x40000000u | (m & 1) << 22 : m * 0x3f800000u;
    return f | (v < 0 ? 0x80000000u : 0);
}

// Truncates; only zero and what f16 holds as a normal number come here.
static inline value_t narrow(uint f) {
#if TYPE == TYPE_F32
    return f;
#elif TYPE == TYPE_BF16
    return (value_t)(f >> 16);
#else
    const uint m = f & 0x7fffffffu;
    return (value_t)((f >> 16 & 0x8000u) | (m ? (m - (112u << 23)) >> 13 : 0));
#endif
}

// out[out_offset + i] = value(first_index + i) for i < count, by any number of items.
__kernel void fill_values(__global value_t *out, ulong count, ulong first_index,
                          ulong out_offset, uint seed, uint stream, uint period, uint phase) {
    const uint key = stream_key(seed, stream);
    for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) {
        const ulong index = first_index + i;
        const uint h = element(key, index);
#if KIND == KIND_RANDOM
        const uint f = random_bits(h);
#elif KIND == KIND_SMALL
        const uint f = integer_bits(small_value(h));
#else
        const uint f = integer_bits(sparse_value(h, index, period, phase));
#endif
        out[out_offset + i] = narrow(f);
    }
}

// sums[row] of small w and small or sparse x (x_kind), from the generator alone: what y
// must be, for matrices too large for the host. Rows go over any number of items.
__kernel void exact_rows(__global int *sums, uint k, uint n, uint seed, uint w_stream,
                         uint x_stream, uint x_kind, uint period, uint phase) {
    const uint w_key = stream_key(seed, w_stream), x_key = stream_key(seed, x_stream);
    const bool sparse = x_kind == KIND_SPARSE;
    const uint step = sparse ? period : 1;
    const uint first = !sparse ? 0 : phase < period ? phase : k;
    for (ulong row = get_global_id(0); row < n; row += get_global_size(0)) {
        int sum = 0;
        for (ulong j = first; j < k; j += step) {
            const uint h = element(x_key, j);
            const int v = sparse ? sparse_value(h, j, period, phase) : small_value(h);
            sum += small_value(element(w_key, row * k + j)) * v;
        }
        sums[row] = sum;
    }
}
