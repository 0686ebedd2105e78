// y = W x with a fixed number of 16-byte loads of W in flight for each thread. A row belongs to a
// block, or to the CLUSTER blocks of a cluster, whose sums meet in the first one's shared memory.
//
// Constants: those of types.h with PACK 3 and ACC 32; BLOCK, AHEAD (loads in flight), CLUSTER (1, 2,
// 4, 8) and DEPENDENT. With DEPENDENT 1 the launch may begin before the one before it has ended:
// loads of W, which nothing writes, are issued first, and then that end is waited for.
// CLUSTER above 1 and DEPENDENT need sm_90. The block count is CLUSTER * n.
#include "types.h"

#define WARP 32
#define WARPS (BLOCK / WARP)
#define STEP (CLUSTER * BLOCK * WIDTH)

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

// Weights are read once: past the first level of cache, and in lines of 256 bytes where the
// architecture has that.
__device__ __forceinline__ Words load_once(const WT *p) {
    Words w;
#if __CUDA_ARCH__ >= 800
    asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
        : "l"(p));
#else
    w = load_words(p);
#endif
    return w;
}

__device__ __forceinline__ Values as_values(const Words &words) {
    Values values;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        values.v[i] = i % 2 ? high_float<W_TYPE>(words.word[i / 2])
                            : low_float<W_TYPE>(words.word[i / 2]);
    return values;
}

__device__ __forceinline__ float butterfly(float v, int lanes) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}

// The sums of all blocks of a cluster, in the first one's first thread.
__device__ __forceinline__ float over_cluster(float v, unsigned rank) {
#if CLUSTER > 1
    __shared__ float sums[CLUSTER];
    // The first block's shared memory is there to write to once that block has begun.
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) {
        unsigned place;
        const unsigned own = (unsigned)__cvta_generic_to_shared(sums + rank);
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(place) : "r"(own));
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place), "f"(v) : "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (rank == 0 && threadIdx.x == 0) {
        v = 0;
#pragma unroll
        for (int c = 0; c < CLUSTER; c++)
            v += sums[c];
    }
#endif
    return v;
}

extern "C" __global__ void CLUSTERED __launch_bounds__(BLOCK)
gemv_flight(const WT *__restrict__ w, const XT *__restrict__ x, float *__restrict__ y,
            unsigned k, unsigned n, unsigned long long w_offset, unsigned x_offset) {
    __shared__ float parts[WARPS];
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    const unsigned row = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    const WT *from = w + w_offset + (unsigned long long)row * k;
    x += x_offset;

    unsigned i = (rank * BLOCK + threadIdx.x) * WIDTH;
    Words held[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
        if (i + a * STEP < k)
            held[a] = load_once(from + i + a * STEP);
#if DEPENDENT
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    Values acc = {};
    for (; i < k; i += AHEAD * STEP) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const unsigned at = i + a * STEP, next = at + AHEAD * STEP;
            if (at < k)
                accumulate(acc, as_values(held[a]), load_x(x + at));
            if (next < k)
                held[a] = load_once(from + next);
        }
    }

    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float v = butterfly(sum(acc), WARP);
    if (lane == 0)
        parts[warp] = v;
    __syncthreads();
    if (warp == 0)
        v = butterfly(lane < WARPS ? parts[lane] : 0, WARPS);
    v = over_cluster(v, rank);
    if (rank == 0 && threadIdx.x == 0)
        y[row] = v;
}
