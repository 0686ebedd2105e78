// A warp's part of attention: tiles of 16 tokens from shared memory through the tensor cores.
//
// Tokens are the rows of products, query heads the 8 columns: scores [16, 8] = K q^T, and
// values [16 elements, 8] += V^T p^T. Lane l has tokens l / 4 and l / 4 + 8 and heads l % 4 * 2 and
// the next of scores, and the same heads of values, so a factor of a head is a lane's own.
#include "cache.h"
#include "tensor.h"

#define TOKENS 16

// A cache of one KV head, and its tiles in shared memory.
template <Type TYPE_, int DIM_> struct Cache {
    static const Type TYPE = TYPE_;
    static const bool QUANTISED = TYPE_ == q8_0 || TYPE_ == q8_KV, BF16 = TYPE_ == bf16;
    static const int DIM = DIM_, BLOCKS = DIM_ / 32;
    static const int ROW = TYPE_ == q8_0 ? DIM_ / 32 * 34 : TYPE_ == q8_KV ? 8 + DIM_ : 2 * DIM_;
    // Rows begin at multiples of it, since every stride is a multiple of ROW. What is copied begins
    // at a multiple of 16, up to `skew` bytes before the row.
    static const int ALIGNED = ROW % 16 == 0 ? 16 : ROW % 8 == 0 ? 8 : ROW % 4 == 0 ? 4 : 2;
    static const int CHUNKS = (ROW + 16 - ALIGNED + 15) / 16;
    static const int PITCH = 16 * (CHUNKS | 1);  // odd: eight rows lie in all banks
    static const int TILE = TOKENS * PITCH;

    const unsigned char *base;
    unsigned stride;

    __device__ __forceinline__ unsigned skew(unsigned token) const {
        return ALIGNED == 16 ? 0 : ((unsigned)(unsigned long long)base + token * stride) % 16;
    }

    __device__ __forceinline__ const unsigned char *row(unsigned token) const {
        return base + (unsigned long long)token * stride;
    }

    // Rows of the tokens from `first` on; those from `last` on become zeros.
    __device__ __forceinline__ void fetch(unsigned to, unsigned first, unsigned last) const {
        if (first + TOKENS <= last)
            fetch_whole(to, first);
        else
            fetch_part(to, first, last);
    }

private:
    // Eight lanes copy a row, 128 bytes of four rows at once; what is left of 16 rows goes last.
    __device__ __forceinline__ void fetch_whole(unsigned to, unsigned first) const {
        const unsigned lane = threadIdx.x % 32;
        const unsigned char *from = row(first + lane / 8);
        to += lane / 8 * PITCH + lane % 8 * 16;
#pragma unroll
        for (int i = 0; i < TOKENS / 4; i++)
#pragma unroll
            for (int j = 0; j < CHUNKS / 8; j++)
                copy(to + 4 * i * PITCH + 128 * j, from + 4 * i * (unsigned long long)stride,
                     lane % 8 + 8 * j);
        const int LEFT = CHUNKS % 8;
        to -= lane / 8 * PITCH + lane % 8 * 16;
#pragma unroll
        for (int i = 0; i < (TOKENS * LEFT + 31) / 32; i++) {
            const unsigned n = lane + 32 * i, t = n / (LEFT ? LEFT : 1);
            const unsigned c = CHUNKS - LEFT + n % (LEFT ? LEFT : 1);
            if (TOKENS * LEFT % 32 == 0 || t < TOKENS)
                copy(to + t * PITCH + 16 * c, row(first + t), c);
        }
    }

    // Chunk c of the row at `from`; a row does not always reach into the last one.
    static __device__ __forceinline__ void copy(unsigned to, const unsigned char *from,
                                                unsigned c) {
        const unsigned before = ALIGNED == 16 ? 0 : (unsigned)(unsigned long long)from % 16;
        if (16 * (CHUNKS - 1) < ROW)
            copy_ahead(to, from - before + 16 * c);
        else if (16 * c < before + ROW)
            copy_ahead(to, from - before + 16 * c);
    }

    __device__ __forceinline__ void fetch_part(unsigned to, unsigned first, unsigned last) const {
#pragma unroll 1
        for (unsigned n = threadIdx.x % 32; n < TOKENS * CHUNKS; n += 32) {
            const unsigned t = n / CHUNKS, c = n % CHUNKS;
            const unsigned token = min(first + t, last - 1), before = skew(token);
            const bool there = first + t < last && 16 * c < before + ROW;
            const unsigned char *from = row(token) - before;
            copy_or_clear(to + t * PITCH + 16 * c, there ? from + 16 * c : from, there ? 16 : 0);
        }
    }
};

typedef Cache<K_TYPE, K_DIM> K;
typedef Cache<V_TYPE, V_DIM> V;

__device__ __forceinline__ unsigned short_at(const unsigned char *p) {
    return *(const unsigned short *)p;
}

__device__ __forceinline__ unsigned word_at(const unsigned char *p) { return *(const unsigned *)p; }

// Four quants at once: the n-th four from quant i of a row on.
template <typename C>
__device__ __forceinline__ unsigned quants_at(const unsigned char *row, int i, unsigned n) {
    const int start = C::TYPE == q8_0 ? i / 32 * 34 + 2 + i % 32 : 8 + i;
    const unsigned char *p = row + start + 4 * n;
    if (C::ALIGNED >= 4 && start % 4 == 0)
        return word_at(p);
    if (C::ALIGNED >= 4)
        return __byte_perm(word_at(p - 2), word_at(p + 2), 0x5432);
    return short_at(p) | short_at(p + 2) << 16;
}

// Bytes 0 and 2 of quants as FP16, exact: 1024 + 128 + quant, less what was added.
__device__ __forceinline__ unsigned even_halves(unsigned quants) {
    return subtract_halves((quants & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
}

__device__ __forceinline__ unsigned odd_halves(unsigned quants) { return even_halves(quants >> 8); }

// Scale of a row's block: q8_KV has one for all.
template <Type TYPE> __device__ __forceinline__ float scale_at(const unsigned char *row, int block) {
    if (TYPE == q8_0)
        return half_to_float((unsigned short)short_at(row + 34 * block));
    return *(const float *)row;
}

// q of a block's heads as right factor. Of 16 elements, a lane has 2 and 2 for keys of 16 bits; for
// quants, which it loads four at a time, elements 0 and 2, 1 and 3 of its four.
struct Heads {
    static const int PARTS = K::BF16 ? 2 : 1;  // q is FP16: as BF16 it is a sum of two
    unsigned word[PARTS][K_DIM / 16][2];

    __device__ __forceinline__ void load(const XT *q, bool there) {
        const unsigned lane = threadIdx.x % 32, four = lane % 4;
#pragma unroll
        for (int s = 0; s < K_DIM / 16; s++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const XT *p = q + 16 * s + (K::QUANTISED ? 4 * four + half : 2 * four + 8 * half);
                const unsigned low = there ? p[0] : 0, high = there ? p[K::QUANTISED ? 2 : 1] : 0;
                if (K::BF16) {
                    const float a = half_to_float((unsigned short)low);
                    const float b = half_to_float((unsigned short)high);
                    const unsigned top = pack_pair<true>(a, b);
                    word[0][s][half] = top;
                    word[PARTS - 1][s][half] =
                        pack_pair<true>(a - __uint_as_float(top << 16),
                                        b - __uint_as_float(top & 0xffff0000u));
                } else {
                    word[0][s][half] = low | high << 16;
                }
            }
    }

    // Products with a tile of keys: of 16 bits ...
    __device__ __forceinline__ void dot_halves(float (&score)[4], const unsigned char *tile) const {
        const unsigned lane = threadIdx.x % 32;
        const unsigned row = shared_address(tile) + lane % 16 * K::PITCH + lane / 16 * 16;
        float other[4] = {};
#pragma unroll
        for (int s = 0; s < K_DIM / 16; s++) {
            unsigned keys[4];
            load_matrices(keys, row + 32 * s);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                multiply<K::BF16>(s % 2 ? other : score, keys, word[p][s]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[e] += other[e];
    }

    // ... and of quants, from rows `a` and `b`.
    __device__ __forceinline__ void dot_quants(float (&score)[4], const unsigned char *a,
                                               const unsigned char *b) const {
        const unsigned four = threadIdx.x % 4;
#pragma unroll
        for (int block = 0; block < K::BLOCKS; block++) {
            float sum[4] = {};
#pragma unroll
            for (int s = 2 * block; s < 2 * block + 2; s++) {
                const unsigned x = quants_at<K>(a, 16 * s, four);
                const unsigned y = quants_at<K>(b, 16 * s, four);
                const unsigned keys[4] = {even_halves(x), even_halves(y), odd_halves(x),
                                          odd_halves(y)};
                multiply<false>(sum, keys, word[0][s]);
            }
            const float of_a = scale_at<K_TYPE>(a, block), of_b = scale_at<K_TYPE>(b, block);
#pragma unroll
            for (int e = 0; e < 4; e++)
                score[e] = fmaf(e < 2 ? of_a : of_b, sum[e], score[e]);
        }
    }

    __device__ __forceinline__ void dot(float (&score)[4], const unsigned char *tile,
                                        const K &keys, unsigned first) const {
        const unsigned group = threadIdx.x % 32 / 4;
        if (K::QUANTISED)
            dot_quants(score, tile + group * K::PITCH + keys.skew(first + group),
                       tile + (group + 8) * K::PITCH + keys.skew(first + group + 8));
        else
            dot_halves(score, tile);
    }
};

// Weights of a tile as right factor: a sum of numbers of 16 bits that is as good as FP32.
struct Weights {
    static const int PARTS = V::BF16 ? 3 : 2;
    // FP16 has too few small numbers: the largest weight is 2 to this power.
    static const int SHIFT = V::BF16 ? 0 : V::QUANTISED ? 14 : 15;
    unsigned word[PARTS][2];

    __device__ __forceinline__ void set(float (&p)[4]) {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned pair = pack_pair<V::BF16>(p[2 * half], p[2 * half + 1]);
                word[part][half] = transpose(pair);
                p[2 * half] -= V::BF16 ? __uint_as_float(pair << 16)
                                       : half_to_float((unsigned short)pair);
                p[2 * half + 1] -= V::BF16 ? __uint_as_float(pair & 0xffff0000u)
                                           : half_to_float((unsigned short)(pair >> 16));
            }
    }
};

// Sums over tokens of a warp's tiles. Element 16 m + lane / 4 and the one 8 behind it for 16 bits;
// for quants see `element`.
struct Values {
    float v[V_DIM / 16][4];
    float unit, inverse;  // scales of quants are multiples of it, about the largest; a power of 2

    // Of v[m][2 * lower] and v[m][2 * lower + 1].
    static __device__ __forceinline__ unsigned element(int m, int lower) {
        const unsigned group = threadIdx.x % 32 / 4;
        return V::QUANTISED ? m / 2 * 32 + 4 * group + m % 2 * 2 + lower
                            : 16 * m + group + 8 * lower;
    }

    __device__ __forceinline__ void shrink(float first, float second) {
#pragma unroll
        for (int m = 0; m < V_DIM / 16; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[m][e] *= e % 2 ? second : first;
    }

    __device__ __forceinline__ void add_halves(float (&p)[4], const unsigned char *tile) {
        const unsigned lane = threadIdx.x % 32;
        const unsigned row = shared_address(tile) + (lane % 8 + lane / 16 * 8) * V::PITCH +
                             lane / 8 % 2 * 16;
        Weights weights;
        weights.set(p);
#pragma unroll
        for (int m = 0; m < V_DIM / 16; m++) {
            unsigned values[4];
            load_transposed(values, row + 32 * m);
#pragma unroll
            for (int part = 0; part < Weights::PARTS; part++)
                multiply<V::BF16>(v[m], values, weights.word[part]);
        }
    }

    // Scales join the weights, so that what is multiplied are quants.
    __device__ __forceinline__ void add_quants(const float (&p)[4], const unsigned char *tile,
                                               const V &cache, unsigned first) {
        const int SCALES = V_TYPE == q8_0 ? V::BLOCKS : 1;
        const unsigned group = threadIdx.x % 32 / 4, four = threadIdx.x % 4;
        const unsigned char *a = tile + group * V::PITCH + cache.skew(first + group);
        const unsigned char *b = tile + (group + 8) * V::PITCH + cache.skew(first + group + 8);
        float scale[2][SCALES], most = 0;
#pragma unroll
        for (int s = 0; s < SCALES; s++) {
            scale[0][s] = scale_at<V_TYPE>(a, s), scale[1][s] = scale_at<V_TYPE>(b, s);
            most = fmaxf(most, fmaxf(fabsf(scale[0][s]), fabsf(scale[1][s])));
        }
        settle(most);
        const unsigned char *rows[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const unsigned token = 2 * four + t % 2 + t / 2 * 8;
            rows[t] = tile + token * V::PITCH + cache.skew(first + token);
        }
        Weights weights;
#pragma unroll
        for (int block = 0; block < V::BLOCKS; block++) {
            if (block < SCALES) {
                const float of_a = scale[0][block] * inverse, of_b = scale[1][block] * inverse;
                float scaled[4] = {p[0] * of_a, p[1] * of_a, p[2] * of_b, p[3] * of_b};
                weights.set(scaled);
            }
            unsigned quants[4];
#pragma unroll
            for (int t = 0; t < 4; t++)
                quants[t] = quants_at<V>(rows[t], 32 * block, group);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const unsigned which = m ? 0x7632 : 0x5410;
                const unsigned low = __byte_perm(quants[0], quants[1], which);
                const unsigned high = __byte_perm(quants[2], quants[3], which);
                const unsigned values[4] = {even_halves(low), odd_halves(low), even_halves(high),
                                            odd_halves(high)};
#pragma unroll
                for (int part = 0; part < Weights::PARTS; part++)
                    multiply<false>(v[2 * block + m], values, weights.word[part]);
            }
        }
    }

    // A unit for scales up to `most` in all lanes.
    __device__ __forceinline__ void settle(float most) {
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
        const float wanted = __uint_as_float(__float_as_uint(most) & 0x7f800000u);
        if (wanted > unit) {
            shrink(unit / wanted, unit / wanted);
            unit = wanted, inverse = 1 / wanted;
        }
    }

    __device__ __forceinline__ void add(float (&p)[4], const unsigned char *tile, const V &cache,
                                        unsigned first) {
        if (V::QUANTISED)
            add_quants(p, tile, cache, first);
        else
            add_halves(p, tile);
    }
};
