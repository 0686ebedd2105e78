// y = W x, for one layer or for all layers of a token in one launch. A block holds one
// multiprocessor: one thread copies rows of W into a ring of stages in shared memory, by bulk
// copies that run ahead over layer boundaries; GROUPS groups of four warps multiply them by x.
// Between layers all blocks wait for each other.
//
// Constants: W_TYPE, X_TYPE (16 bits), GROUPS, STAGES, STAGE_BYTES, X_BYTES of the longest x, and
// FENCED (see below).
// A tile is up to ROWS rows that fill a stage, or a part of one row that is longer than a stage.
// Tiles go to blocks in turn. Needs sm_90, and k and the addresses of rows in steps of 16 bytes.
//
// A stage is always read by the same group within a layer: STAGES is a multiple of GROUPS times
// the stages of a row. Else a group could take the phase before the last for the last one.
#define TYPE_F16 1
#define TYPE_BF16 2

#define CONSUMERS (128 * GROUPS)
#define ROWS 3
#define X_LOADS ((X_BYTES / 16 + CONSUMERS - 1) / CONSUMERS)

typedef unsigned short Half;
typedef unsigned long long u64;

struct Layer {
    const Half *w, *x;
    float *y;
    unsigned k, n;
    unsigned first;  // the block that has the first tile, so that remainders go round
    unsigned unused;
};

extern __shared__ __align__(128) unsigned char shared[];

// Barriers in shared memory, and what waits on them. A wait that never ends is an error and no
// hang: __trap() fails the launch.

__device__ __forceinline__ unsigned address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void init(u64 *bar, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count));
}

__device__ __forceinline__ void expect(u64 *bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(bar)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void arrive(u64 *bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(bar)) : "memory");
}

__device__ __forceinline__ void wait(u64 *bar, unsigned parity) {
    for (unsigned tries = 0; tries < 1u << 20; tries++) {
        unsigned done;
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(address(bar)), "r"(parity)
                     : "memory");
        if (done)
            return;
    }
    __trap();
}

__device__ __forceinline__ void sync(unsigned id, unsigned threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The barrier of all blocks. A release at the scope of the device also waits for the bulk copies
// under way, which are the point of this kernel. With FENCED 0 there is none: results are
// exchanged at the second level of cache, where all blocks meet, and have arrived there when the
// exchange returns; only then is the group counted. That is how the hardware works, and more than
// the memory model of PTX promises; FENCED 1 keeps to the model.
//
// Returns what was there; whoever uses that has waited for the exchange.
__device__ __forceinline__ float publish(float *y, float v) {
#if FENCED
    *y = v;
    return 0;
#else
    float old;
    asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;"
                 : "=f"(old)
                 : "l"(y), "f"(v)
                 : "memory");
    return old;
#endif
}

__device__ __forceinline__ void count_group(u64 *arrived) {
#if FENCED
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(arrived) : "memory");
#else
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(arrived) : "memory");
#endif
}

__device__ __forceinline__ void wait_for_groups(const u64 *arrived, u64 target) {
    for (unsigned tries = 0; tries < 1u << 22; tries++) {
        u64 now;
#if FENCED
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(arrived) : "memory");
#else
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(arrived) : "memory");
#endif
        if (now >= target)
            return;
    }
    __trap();
}

// A place in the ring, and how often it went round.
struct Place {
    unsigned stage, turn;

    __device__ __forceinline__ void next() {
        if (++stage == STAGES)
            stage = 0, turn++;
    }
};

// Tiles of a layer: `rows` rows of `part` columns.
struct Tiling {
    unsigned rows, part, parts;

    __device__ __forceinline__ explicit Tiling(unsigned k) {
        rows = min((unsigned)ROWS, STAGE_BYTES / (2 * k));
        parts = rows ? 1 : (2 * k + STAGE_BYTES - 1) / STAGE_BYTES;
        part = rows ? k : (k / 8 + parts - 1) / parts * 8;
        rows = max(rows, 1u);
    }
    __device__ __forceinline__ unsigned first_row(const Layer &layer) const {
        return (blockIdx.x + gridDim.x - layer.first) % gridDim.x * rows;
    }
    __device__ __forceinline__ unsigned step() const { return gridDim.x * rows; }
};

__device__ __forceinline__ void produce(const Layer *layers, unsigned count, u64 *full,
                                        u64 *empty) {
    u64 once;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    Place at = {};
    for (unsigned l = 0; l < count; l++) {
        const Layer layer = layers[l];
        const Tiling tiling(layer.k);
        for (unsigned row = tiling.first_row(layer); row < layer.n; row += tiling.step()) {
            const unsigned rows = min(tiling.rows, layer.n - row);
            for (unsigned from = 0; from < layer.k; from += tiling.part) {
                const unsigned bytes = 2 * rows * min(tiling.part, layer.k - from);
                wait(empty + at.stage, (at.turn & 1) ^ 1);
                expect(full + at.stage, bytes);
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                             ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                                 address(shared + at.stage * STAGE_BYTES)),
                             "l"(layer.w + (u64)row * layer.k + from), "r"(bytes),
                             "r"(address(full + at.stage)), "l"(once)
                             : "memory");
                at.next();
            }
        }
    }
}

template <int TYPE> __device__ __forceinline__ float2 both(unsigned word) {
    float2 f;
    if (TYPE == TYPE_BF16)
        return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
    asm("{\n"
        ".reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.f32.f16 %0, l;\n"
        "cvt.f32.f16 %1, h;\n"
        "}"
        : "=f"(f.x), "=f"(f.y)
        : "r"(word));
    return f;
}

__device__ __forceinline__ unsigned word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// What a thread adds to the sums of R rows: every 128th octet of their columns.
template <int R>
__device__ __forceinline__ void multiply(float (&sum)[ROWS], const uint4 *w, const uint4 *x,
                                         unsigned octets, unsigned thread) {
#pragma unroll 2
    for (unsigned c = thread; c < octets; c += 128) {
        const uint4 xs = x[c];
        uint4 ws[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            ws[r] = w[r * octets + c];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 xf = both<X_TYPE>(word(xs, i));
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float2 wf = both<W_TYPE>(word(ws[r], i));
                sum[r] = __fmaf_rn(wf.x, xf.x, sum[r]);
                sum[r] = __fmaf_rn(wf.y, xf.y, sum[r]);
            }
        }
    }
}

// x of a layer into shared memory. Past the first level of cache: another block may just have
// written it.
__device__ __forceinline__ void load_x(uint4 *x, const Layer &layer, unsigned consumer) {
    const uint4 *from = (const uint4 *)layer.x;
    const unsigned octets = layer.k / 8;
    uint4 v[X_LOADS];
#pragma unroll
    for (int j = 0; j < X_LOADS; j++)
        if (consumer + j * CONSUMERS < octets)
            v[j] = __ldcg(from + consumer + j * CONSUMERS);
#pragma unroll
    for (int j = 0; j < X_LOADS; j++)
        if (consumer + j * CONSUMERS < octets)
            x[consumer + j * CONSUMERS] = v[j];
}

// The sums of a group's tile into y. Returns what `publish` does.
__device__ __forceinline__ float store(const Layer &layer, unsigned row, unsigned rows,
                                       const float (&sum)[ROWS], float (&parts)[4][ROWS],
                                       unsigned group, unsigned thread) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float v = sum[r];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            v += __shfl_xor_sync(0xffffffffu, v, distance);
        if (thread % 32 == 0)
            parts[thread / 32][r] = v;
    }
    sync(2 + group, 128);
    if (thread >= rows)
        return 0;
    const float v = parts[0][thread] + parts[1][thread] + parts[2][thread] + parts[3][thread];
    return publish(layer.y + row + thread, v);
}

// `arrived` counts groups that finished a layer, over all launches; null for one layer.
__device__ __forceinline__ void consume(const Layer *layers, unsigned count, u64 *arrived,
                                        u64 *full, u64 *empty) {
    // Two of each, so that a group can go on while its last sums are read.
    __shared__ float parts[GROUPS][2][4][ROWS];
    // For what results replaced, a tile later: nobody reads it.
    __shared__ volatile float replaced[GROUPS][ROWS];
    uint4 *x = (uint4 *)(shared + STAGES * STAGE_BYTES);
    const unsigned consumer = threadIdx.x - 32, group = consumer / 128, thread = consumer % 128;
    const unsigned groups = gridDim.x * GROUPS;
    const u64 all = (u64)groups * count;
    u64 target = 0;
    if (arrived && consumer == 0) {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(target) : "l"(arrived) : "memory");
        target = target / all * all;  // what earlier launches left
    }
    Place at = {};
    unsigned tile = 0;
    float old = 0;
    for (unsigned l = 0; l < count; l++) {
        const Layer layer = layers[l];
        const Tiling tiling(layer.k);
        if (arrived && consumer == 0 && l > 0)
            wait_for_groups(arrived, target += groups);
        sync(1, CONSUMERS);
        load_x(x, layer, consumer);
        sync(1, CONSUMERS);
        for (unsigned row = tiling.first_row(layer); row < layer.n; row += tiling.step(), tile++) {
            if (tile % GROUPS != group) {
                for (unsigned p = 0; p < tiling.parts; p++)
                    at.next();
                continue;
            }
            const unsigned rows = min(tiling.rows, layer.n - row);
            float sum[ROWS] = {};
            for (unsigned from = 0; from < layer.k; from += tiling.part) {
                const unsigned octets = min(tiling.part, layer.k - from) / 8;
                const uint4 *w = (const uint4 *)(shared + at.stage * STAGE_BYTES);
                wait(full + at.stage, at.turn & 1);
                if (rows == 1)
                    multiply<1>(sum, w, x + from / 8, octets, thread);
                else if (rows == 2)
                    multiply<2>(sum, w, x + from / 8, octets, thread);
                else
                    multiply<3>(sum, w, x + from / 8, octets, thread);
                __syncwarp();
                if (thread % 32 == 0)
                    arrive(empty + at.stage);
                at.next();
            }
            if (thread < ROWS)
                replaced[group][thread] = old;
            old = store(layer, row, rows, sum, parts[group][tile / GROUPS % 2], group, thread);
        }
        if (!arrived)
            continue;
        if (thread < ROWS)
            replaced[group][thread] = old;
        sync(2 + group, 128);
        if (thread == 0)
            count_group(arrived);
    }
}

__device__ __forceinline__ void run(const Layer *layers, unsigned count, u64 *arrived) {
    __shared__ u64 full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++)
            init(full + s, 1), init(empty + s, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 32)
        consume(layers, count, arrived, full, empty);
    else if (threadIdx.x == 0)
        produce(layers, count, full, empty);
}

// One layer, called like every other kernel.
extern "C" __global__ void __launch_bounds__(32 + CONSUMERS, 1)
gemv_bulk(const Half *w, const Half *x, float *y, unsigned k, unsigned n,
          unsigned long long w_offset, unsigned x_offset) {
    __shared__ Layer layer;
    if (threadIdx.x == 0)
        layer = {w + w_offset, x + x_offset, y, k, n, 0, 0};
    __syncthreads();
    run(&layer, 1, nullptr);
}

// All layers of a token. The blocks have to be on the device all at once.
extern "C" __global__ void __launch_bounds__(32 + CONSUMERS, 1)
token_bulk(const Layer *layers, unsigned count, u64 *arrived) {
    run(layers, count, arrived);
}
