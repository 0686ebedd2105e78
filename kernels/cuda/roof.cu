// Bare reads: the ceiling a GEMV is compared with. Every word is read once, and a thread
// stores the XOR of its words, so that no load can be dropped and the fold over the sink
// can be checked.
//
// Constants: VEC (4, 8, 16 uints per step, as loads of 16 bytes), UNROLL (1, 2, 4, 8 steps
// in flight), BLOCK. data + word_offset must be aligned to 16 bytes; words is free.
#define LOADS (VEC / 4 * UNROLL)

__device__ __forceinline__ unsigned fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

// Blocks stride over tiles of LOADS * BLOCK vectors, neighbouring threads read neighbours.
extern "C" __global__ void __launch_bounds__(BLOCK)
read_strided(const unsigned *__restrict__ data, unsigned *__restrict__ sink,
             unsigned long long words, unsigned long long word_offset) {
    typedef unsigned long long size;
    const size item = (size)blockIdx.x * BLOCK + threadIdx.x, items = (size)gridDim.x * BLOCK;
    data += word_offset;
    const uint4 *vecs = (const uint4 *)data;
    const size count = words / 4, tile = (size)BLOCK * LOADS, tiles = count / tile;
    unsigned sum = 0;
    for (size t = blockIdx.x; t < tiles; t += gridDim.x) {
        const uint4 *p = vecs + t * tile + threadIdx.x;
        uint4 v[LOADS];  // first all issued and then folded
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            v[i] = __ldg(p + i * BLOCK);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            sum ^= fold(v[i]);
    }
    for (size i = tiles * tile + item; i < count; i += items)
        sum ^= fold(vecs[i]);
    for (size i = count * 4 + item; i < words; i += items)
        sum ^= data[i];
    sink[item] = sum;
}
