// Rows of K and V caches as floats, and what every attention kernel is given. The counterpart
// of opencl/cache.h: constants and arguments are the same.
//
// Given to kernels: Side<...> for each cache, Fragment (what a lane loads of a row), Query.
#ifndef CACHE_H
#define CACHE_H

#define TYPE_F16 1
#define TYPE_BF16 2
#define TYPE_F32 3

#define ARGUMENTS                                                                              \
    const unsigned char *__restrict__ k, const unsigned char *__restrict__ v,                  \
        const XT *__restrict__ q, float *scores, float *partial, float *out, unsigned tokens,  \
        unsigned k_chunk, unsigned v_chunk, unsigned splits, unsigned score_stride,            \
        unsigned long long k_offset, unsigned long long v_offset, unsigned long long k_token,  \
        unsigned long long k_head, unsigned long long v_token, unsigned long long v_head,      \
        float scale

enum Type { f16, bf16, q8_0, q8_KV };

#if X_TYPE == TYPE_F32
typedef float XT;
#else
typedef unsigned short XT;
#endif

__device__ __forceinline__ float half_to_float(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ float load_x(const XT *q) {
#if X_TYPE == TYPE_F32
    return __ldg(q);
#else
    return half_to_float(__ldg(q));
#endif
}

// BYTES (2 to 16) as they lie in memory, one load through the read-only path.
template <int BYTES> struct Words {
    unsigned word[BYTES > 4 ? BYTES / 4 : 1];

    __device__ __forceinline__ void load(const unsigned char *p) {
        if (BYTES == 16) {
            const uint4 u = __ldg((const uint4 *)p);
            word[0] = u.x, word[BYTES > 4 ? 1 : 0] = u.y;
            word[BYTES > 8 ? 2 : 0] = u.z, word[BYTES > 8 ? 3 : 0] = u.w;
        } else if (BYTES == 8) {
            const uint2 u = __ldg((const uint2 *)p);
            word[0] = u.x, word[BYTES > 4 ? 1 : 0] = u.y;
        } else if (BYTES == 4) {
            word[0] = __ldg((const unsigned *)p);
        } else {
            word[0] = __ldg((const unsigned short *)p);
        }
    }
};

// Element i of words. Quants go through a float whose mantissa they are the end of: the byte
// plus 128 plus 2^23, exact, where a conversion instruction has a quarter of the rate or less.
template <Type TYPE, int BYTES>
__device__ __forceinline__ float element(const Words<BYTES> &words, int i) {
    if (TYPE == f16)
        return half_to_float((unsigned short)(words.word[i / 2] >> (i % 2 * 16)));
    if (TYPE == bf16)
        return __uint_as_float(i % 2 ? words.word[i / 2] & 0xffff0000u : words.word[i / 2] << 16);
    const unsigned biased = words.word[i / 4] ^ 0x80808080u;
    return __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7440 | i % 4)) - 8388736.0f;
}

// How lanes go through rows of one cache: LANES lanes read a row, WIDTH elements at a time.
template <Type TYPE_, int DIM_, int PACK, int LANES_, int ACROSS_, int HELD_> struct Side {
    static const Type TYPE = TYPE_;
    static const bool QUANTISED = TYPE_ == q8_0 || TYPE_ == q8_KV;
    static const int DIM = DIM_, LANES = LANES_, ACROSS = ACROSS_, HELD = HELD_;
    static const int WIDTH = 1 << (PACK + (QUANTISED ? 1 : 0)), BYTES = 2 << PACK;
    static const int STRIDE = LANES * WIDTH, LOADS = (DIM + STRIDE - 1) / STRIDE;
    static const bool COVERED = DIM % STRIDE == 0;
    static const int GROUPS = BLOCK / LANES, SUBS = GROUPS / ACROSS;
    static const int SLABS = (HEADS + ACROSS * HELD - 1) / (ACROSS * HELD);
    static const int ROWS = SHARED ? 1 : HELD;

    // The first element of a lane's l-th load, and whether it lies in the row.
    static __device__ __forceinline__ int first(int l, int lane) {
        return (l * LANES + lane) * WIDTH;
    }
    static __device__ __forceinline__ bool holds(int i) { return COVERED || i < DIM; }
    static __device__ __forceinline__ unsigned head(unsigned slab, unsigned across, int held) {
        return (slab * HELD + held) * ACROSS + across;
    }
};

// Heads past the last, which are not stored, read the last one's.
__device__ __forceinline__ unsigned existing(unsigned head) { return min(head, HEADS - 1u); }

// What one lane loads of one row.
template <typename S> struct Fragment {
    Words<S::BYTES> words[S::LOADS];
    float factor[S::LOADS];

    __device__ __forceinline__ void load(const unsigned char *row, int lane) {
#pragma unroll
        for (int l = 0; l < S::LOADS; l++) {
            const int i = S::first(l, lane);
            factor[l] = 0;
#pragma unroll
            for (int w = 0; w < (S::BYTES > 4 ? S::BYTES / 4 : 1); w++)
                words[l].word[w] = 0;
            if (!S::holds(i))
                continue;
            if (S::TYPE == q8_0) {
                const unsigned char *block = row + i / 32 * 34;
                words[l].load(block + 2 + i % 32);
                factor[l] = half_to_float(__ldg((const unsigned short *)block));
            } else if (S::TYPE == q8_KV) {
                words[l].load(row + 8 + i);
                factor[l] = __ldg((const float *)row);
            } else {
                words[l].load(row + 2 * i);
                factor[l] = 1;
            }
        }
    }

    __device__ __forceinline__ float value(int l, int e) const {
        return element<S::TYPE, S::BYTES>(words[l], e);
    }
};

// The elements of one head of q that a lane multiplies.
template <typename S> struct Query {
#if QUANT_Q
    Words<S::WIDTH> words[S::LOADS];  // quants, a byte each
    float factor[S::LOADS];

    // `most`: largest magnitudes of 32 elements each, of this head.
    __device__ __forceinline__ void load(const XT *q, const float *most, int lane) {
        const int GROUP = S::TYPE == q8_0 ? 32 : S::DIM;
#pragma unroll
        for (int l = 0; l < S::LOADS; l++) {
            const int i = S::first(l, lane);
            float top = 0;
            if (S::holds(i))
                for (int n = 0; n < GROUP / 32; n++)
                    top = fmaxf(top, most[i / GROUP * (GROUP / 32) + n]);
            factor[l] = top / 127.0f;
#pragma unroll
            for (int w = 0; w < (S::WIDTH > 4 ? S::WIDTH / 4 : 1); w++)
                words[l].word[w] = 0;
#pragma unroll
            for (int e = 0; e < S::WIDTH; e++) {
                const int quant =
                    top > 0 && S::holds(i) ? __float2int_rn(load_x(q + i + e) * (127.0f / top)) : 0;
                words[l].word[e / 4] |= ((unsigned)quant & 0xffu) << (e % 4 * 8);
            }
        }
    }

    __device__ __forceinline__ float dot(const Fragment<S> &row) const {
        float sum = 0;
#pragma unroll
        for (int l = 0; l < S::LOADS; l++) {
            int products = 0;
#pragma unroll
            for (int w = 0; w < (S::WIDTH > 4 ? S::WIDTH / 4 : 1); w++)
                products = __dp4a((int)row.words[l].word[w], (int)words[l].word[w], products);
            sum = fmaf((float)products, row.factor[l] * factor[l], sum);
        }
        return sum;
    }
#else
    float v[S::LOADS][S::WIDTH];

    __device__ __forceinline__ void load(const XT *q, const float *, int lane) {
#pragma unroll
        for (int l = 0; l < S::LOADS; l++)
#pragma unroll
            for (int e = 0; e < S::WIDTH; e++) {
                const int i = S::first(l, lane);
                v[l][e] = S::holds(i) ? load_x(q + i + e) : 0;
            }
    }

    __device__ __forceinline__ float dot(const Fragment<S> &row) const {
        float sum = 0;
#pragma unroll
        for (int l = 0; l < S::LOADS; l++) {
            float part = S::QUANTISED ? 0 : sum;
#pragma unroll
            for (int e = 0; e < S::WIDTH; e++)
                part = fmaf(row.value(l, e), v[l][e], part);
            sum = S::QUANTISED ? fmaf(part, row.factor[l], sum) : part;
        }
        return sum;
    }
#endif
};

#endif
