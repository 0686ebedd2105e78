// Bare reads: the ceiling a GEMV is compared with. Every word is read once, and a
// work-item stores the XOR of its words, so that no load can be dropped and the
// fold over the sink can be checked.
//
// Constants: VEC (4, 8, 16 uints per load), UNROLL (1, 2, 4, 8 loads in flight),
// BLOCK (local size of read_strided). data + word_offset must be aligned to VEC
// uints; words is free.
#if VEC == 4
typedef uint4 vec_t;
#elif VEC == 8
typedef uint8 vec_t;
#elif VEC == 16
typedef uint16 vec_t;
#else
#error unknown VEC
#endif

static inline uint fold4(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }
static inline uint fold(vec_t v) {
#if VEC == 4
    return fold4(v);
#elif VEC == 8
    return fold4(v.lo ^ v.hi);
#else
    return fold4(v.lo.lo ^ v.lo.hi ^ v.hi.lo ^ v.hi.hi);
#endif
}

// The words after the last whole vector, strided over the work-items.
static inline uint read_tail(__global const uint *data, ulong words, size_t item, size_t items) {
    uint v = 0;
    for (ulong i = words / VEC * VEC + item; i < words; i += items)
        v ^= data[i];
    return v;
}

// UNROLL loads, first all issued and then folded.
static inline vec_t read_step(__global const vec_t *p, size_t stride) {
    vec_t v[UNROLL], sum = (vec_t)0;
    #pragma unroll
    for (uint u = 0; u < UNROLL; u++)
        v[u] = p[u * stride];
    #pragma unroll
    for (uint u = 0; u < UNROLL; u++)
        sum ^= v[u];
    return sum;
}

// For CPUs: a work-item reads one contiguous chunk.
__kernel void read_chunked(__global const uint *data, __global uint *sink, ulong words,
                           ulong word_offset) {
    const size_t item = get_global_id(0), items = get_global_size(0);
    data += word_offset;
    __global const vec_t *vecs = (__global const vec_t *)data;
    const ulong count = words / VEC, end = count * (item + 1) / items;
    ulong i = count * item / items;
    vec_t sum = (vec_t)0;
    for (; i + UNROLL <= end; i += UNROLL)
        sum ^= read_step(vecs + i, 1);
    for (; i < end; i++)
        sum ^= vecs[i];
    sink[item] = fold(sum) ^ read_tail(data, words, item, items);
}

// For GPUs: workgroups stride over tiles of BLOCK * UNROLL vectors, neighbouring
// work-items read neighbouring vectors.
__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void
read_strided(__global const uint *data, __global uint *sink, ulong words, ulong word_offset) {
    const size_t item = get_global_id(0), items = get_global_size(0);
    data += word_offset;
    __global const vec_t *vecs = (__global const vec_t *)data;
    const ulong count = words / VEC, tile = (ulong)BLOCK * UNROLL, tiles = count / tile;
    vec_t sum = (vec_t)0;
    for (ulong t = get_group_id(0); t < tiles; t += get_num_groups(0))
        sum ^= read_step(vecs + t * tile + get_local_id(0), BLOCK);
    for (ulong i = tiles * tile + item; i < count; i += items)
        sum ^= vecs[i];
    sink[item] = fold(sum) ^ read_tail(data, words, item, items);
}
