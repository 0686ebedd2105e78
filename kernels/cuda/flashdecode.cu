// Attention of one query position in one launch, on the tensor cores (sm_80 on). A block has the
// heads of one KV head (eight at most) and a range of tokens; its warps take tiles of 16 tokens in
// turn, each through a ring of its own in shared memory that copies run ahead into. The last block of
// a KV head that is done merges its ranges; ranges are merged in order, so that sums are the same
// every time.
//
// Constants: those of cache.h, K_HELD (heads of a block), SLOTS (tiles of K or V in a warp's ring),
// RESIDENT (blocks of a multiprocessor) and DEPENDENT (see flight.cu; K and V are read before the launch before has ended). `partial` begins
// with a count of the blocks that are done for each block's heads, COUNTERS words in all; they are
// zero before and after each launch.
#include "flashdecode.h"

#define HELD K_HELD
#define WARPS (BLOCK / 32)
#define KV_HEADS (HEADS / RATIO)
#define SHARES ((RATIO + HELD - 1) / HELD)  // blocks that share a KV head's heads
#define COUNTERS ((HEADS + 63) / 64 * 64)
#define SLOT (K::TILE > V::TILE ? K::TILE : V::TILE)
#define STRIDE (V_DIM + 4)  // floats of a head's sums in shared memory: lanes lie in all banks
#define QUADS (V_DIM / 4)
#define NONE __int_as_float(0xff800000)
#define BATCH 8  // partial results of a thread that are loaded at once

// What a block is to do.
struct Work {
    unsigned slab, range, kv_head, head, count, first, last;

    __device__ __forceinline__ Work(unsigned tokens, unsigned chunk) {
        slab = blockIdx.x % (KV_HEADS * SHARES), range = blockIdx.x / (KV_HEADS * SHARES);
        kv_head = slab / SHARES;
        head = kv_head * RATIO + slab % SHARES * HELD;
        count = min(HELD, RATIO - slab % SHARES * HELD);
        first = range * chunk, last = min(tokens, first + chunk);
    }
};

// A warp's softmax: of two heads the maximum, and a lane's sum of weights.
struct Softmax {
    float most[2], sum[2];

    // Scores of a tile become weights; `values` shrinks with a new maximum.
    __device__ __forceinline__ void weigh(float (&score)[4], Values &values, unsigned left,
                                          float factor) {
        const unsigned group = threadIdx.x % 32 / 4;
        if (group >= left)
            score[0] = score[1] = NONE;
        if (group + 8 >= left)
            score[2] = score[3] = NONE;
        float top[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[h] = fmaxf(score[h], score[2 + h]);
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2)
                top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], distance));
            top[h] = fmaxf(top[h], most[h]);
        }
        if (__any_sync(0xffffffffu, top[0] > most[0] || top[1] > most[1])) {
            const float first = exp2_fast((most[0] - top[0]) * factor);
            const float second = exp2_fast((most[1] - top[1]) * factor);
            values.shrink(first, second);
            sum[0] *= first, sum[1] *= second;
            most[0] = top[0], most[1] = top[1];
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            score[e] = exp2_fast(fmaf(score[e] - most[e % 2], factor, Weights::SHIFT));
            sum[e % 2] += score[e];
        }
    }
};

// All tiles of a warp.
__device__ __forceinline__ void attend(Softmax &softmax, Values &values, const Work &work,
                                       const K &keys, const V &cache, const XT *q,
                                       unsigned char *ring, float factor) {
    const unsigned warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4;
    const unsigned all = (work.last - work.first + TOKENS - 1) / TOKENS;
    const unsigned items = all > warp ? 2 * ((all - warp + WARPS - 1) / WARPS) : 0;
    const unsigned place = shared_address(ring);

    // Item 2 i is the i-th tile of K, item 2 i + 1 that of V.
    unsigned next = 0, free_slot = 0, full_slot = 0;
    auto fetch = [&]() {
        const unsigned first = work.first + (next / 2 * WARPS + warp) * TOKENS;
        if (next < items && next % 2 == 0)
            keys.fetch(place + free_slot * SLOT, first, work.last);
        else if (next < items)
            cache.fetch(place + free_slot * SLOT, first, work.last);
        commit_copies();
        next++;
        free_slot = free_slot + 1 == SLOTS ? 0 : free_slot + 1;
    };
    auto take = [&]() {
        const unsigned char *tile = ring + full_slot * SLOT;
        full_slot = full_slot + 1 == SLOTS ? 0 : full_slot + 1;
        await_copies<SLOTS - 1>();
        __syncwarp();
        return tile;
    };
    for (int slot = 0; slot < SLOTS; slot++)
        fetch();
#if DEPENDENT
    await_launch_before();
#endif
    Heads heads;
    heads.load(q + (work.head + (group < work.count ? group : 0)) * K_DIM, group < work.count);

    for (unsigned item = 0; item < items; item += 2) {
        const unsigned first = work.first + (item / 2 * WARPS + warp) * TOKENS;
        float score[4] = {};
        heads.dot(score, take(), keys, first);
        __syncwarp();
        fetch();
        softmax.weigh(score, values, work.last - first, factor);
        values.add(score, take(), cache, first);
        __syncwarp();
        fetch();
    }
    await_copies<0>();
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
        softmax.sum[0] += __shfl_xor_sync(0xffffffffu, softmax.sum[0], distance);
        softmax.sum[1] += __shfl_xor_sync(0xffffffffu, softmax.sum[1], distance);
    }
}

// What the warps of a block found of each head, in shared memory.
struct Found {
    float most[WARPS][8], sum[WARPS][8], total[8];
    float values[WARPS][HELD][STRIDE];

    __device__ __forceinline__ float top(unsigned head) const {
        float made = most[0][head];
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            made = fmaxf(made, most[w][head]);
        return made;
    }

    __device__ __forceinline__ void put(const Softmax &softmax, const Values &values_,
                                        float factor) {
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane < 4)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                most[warp][2 * lane + h] = softmax.most[h];
                sum[warp][2 * lane + h] = softmax.sum[h];
            }
        __syncthreads();
        if (threadIdx.x < 8) {
            total[threadIdx.x] = 0;
            for (int w = 0; w < WARPS; w++)
                total[threadIdx.x] += sum[w][threadIdx.x] *
                    exp2_fast((most[w][threadIdx.x] - top(threadIdx.x)) * factor);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const unsigned head = lane % 4 * 2 + h;
            if (head >= HELD)
                continue;
            const float share = exp2_fast((softmax.most[h] - top(head)) * factor) * values_.unit;
#pragma unroll
            for (int m = 0; m < V_DIM / 16; m++)
#pragma unroll
                for (int lower = 0; lower < 2; lower++)
                    values[warp][head][Values::element(m, lower)] =
                        values_.v[m][2 * lower + h] * share;
        }
        __syncthreads();
    }

    // Four neighbours of a head's sum over warps.
    __device__ __forceinline__ float4 quad(unsigned head, unsigned n) const {
        float4 made = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float4 own = *(const float4 *)(values[w][head] + 4 * n);
            made.x += own.x, made.y += own.y, made.z += own.z, made.w += own.w;
        }
        return made;
    }
};

__device__ __forceinline__ float4 times(float4 a, float factor) {
    return make_float4(a.x * factor, a.y * factor, a.z * factor, a.w * factor);
}

// Whether this block is the last of its heads to be done.
__device__ __forceinline__ bool is_last(float *partial, unsigned slab, unsigned splits) {
    __shared__ unsigned place;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        place = atomicInc((unsigned *)partial + slab, splits - 1);  // wraps to 0 at the last
        __threadfence();
    }
    __syncthreads();
    return place == splits - 1;
}

// The ranges of a block's heads, weighed by their maxima. `room`: shared memory for the weight of
// each range of each head, for totals, and for sums.
__device__ __forceinline__ void merge(float *room, const float *sums, const float *ml, float *out,
                                      const Work &work, unsigned splits, float factor) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned quads = work.count * QUADS, groups = quads < BLOCK ? BLOCK / quads : 1;
    float *weights = room, *totals = room + HELD * splits;
    float4 *spare = (float4 *)(room + (HELD * (splits + 1) + 3) / 4 * 4);

    for (unsigned h = warp; h < work.count; h += WARPS) {
        const float *own = ml + 2 * (work.head + h);
        float top = NONE, total = 0;
        for (unsigned r = lane; r < splits; r += 32)
            top = fmaxf(top, __ldcg(own + 2 * HEADS * r));
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
        for (unsigned r = lane; r < splits; r += 32) {
            const float weight = exp2_fast((__ldcg(own + 2 * HEADS * r) - top) * factor);
            weights[h * splits + r] = weight;
            total += weight * __ldcg(own + 2 * HEADS * r + 1);
        }
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2)
            total += __shfl_xor_sync(0xffffffffu, total, distance);
        if (lane == 0)
            totals[h] = total;
    }
    __syncthreads();

    for (unsigned base = 0; base < quads; base += BLOCK) {
        const unsigned n = groups > 1 ? threadIdx.x % quads : base + threadIdx.x;
        const unsigned group = groups > 1 ? threadIdx.x / quads : 0;
        const unsigned h = n / QUADS, step = HEADS * V_DIM;
        const bool works = n < quads && group < groups;
        float4 sum = make_float4(0, 0, 0, 0);
        const float *from = sums + (work.head + h) * V_DIM + n % QUADS * 4;
        for (unsigned r = group; works && r < splits; r += BATCH * groups) {
            float4 held[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                held[b] = __ldcg((const float4 *)(from + min(r + b * groups, splits - 1) * step));
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const unsigned range = r + b * groups;
                const float weight = range < splits ? weights[h * splits + range] : 0;
                sum.x = fmaf(weight, held[b].x, sum.x), sum.y = fmaf(weight, held[b].y, sum.y);
                sum.z = fmaf(weight, held[b].z, sum.z), sum.w = fmaf(weight, held[b].w, sum.w);
            }
        }
        if (groups > 1) {
            spare[threadIdx.x] = sum;
            __syncthreads();
            for (unsigned g = 1; group == 0 && g < groups; g++) {
                const float4 other = spare[g * quads + n];
                sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
            }
        }
        if (works && group == 0)
            *(float4 *)(out + (work.head + h) * V_DIM + n % QUADS * 4) = times(sum, 1 / totals[h]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) attn_flash(ARGUMENTS) {
    extern __shared__ __align__(128) unsigned char room[];
    const Work work(tokens, v_chunk);
    const K keys = {k + k_offset + work.kv_head * k_head, (unsigned)k_token};
    const V cache = {v + v_offset + work.kv_head * v_head, (unsigned)v_token};
    const float factor = scale * 1.4426950408889634f;  // exp2 in place of exp

    Softmax softmax = {{NONE, NONE}, {0, 0}};
    Values values = {};
    values.unit = V::QUANTISED ? 0x1p-100f : 1, values.inverse = 1 / values.unit;
    attend(softmax, values, work, keys, cache, q, room + threadIdx.x / 32 * SLOTS * SLOT, factor);
    __syncthreads();
    Found &found = *(Found *)room;
    found.put(softmax, values, factor);

    float *sums = partial + COUNTERS, *ml = sums + splits * HEADS * V_DIM;
    for (unsigned n = threadIdx.x; n < work.count * QUADS; n += BLOCK) {
        const unsigned h = n / QUADS, head = work.head + h;
        const float4 made = found.quad(h, n % QUADS);
        float *to = splits == 1 ? out : sums + work.range * HEADS * V_DIM;
        *(float4 *)(to + head * V_DIM + n % QUADS * 4) =
            splits == 1 ? times(made, 1 / found.total[h]) : made;
    }
    if (splits == 1)
        return;
    if (threadIdx.x < work.count) {
        float *own = ml + 2 * (work.range * HEADS + work.head + threadIdx.x);
        own[0] = found.top(threadIdx.x), own[1] = found.total[threadIdx.x];
    }
    if (is_last(partial, work.slab, splits))
        merge((float *)room, sums, ml, out, work, splits, factor);
}
