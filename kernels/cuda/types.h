// Element types, loads and conversions shared by the CUDA kernels.
//
// Constants from the host: W_TYPE, X_TYPE (TYPE_F16, TYPE_BF16, TYPE_F32), PACK (0 to 3,
// elements per load are 1 << PACK; those of an FP32 x come in loads of 16 bytes at most) and ACC
// (32 or 16).
//
// Given to kernels:
//   WT, XT         element types of the arguments (unsigned short for 16-bit types)
//   Values         one pack as numbers ready for accumulate; zero-initialised
//   load_w(p), load_x(p)  the pack at p, one load of the full width
//   accumulate(acc, w, x) acc += w * x, fused, each element on its own
//   sum(acc)       over the pack, as float
// No header is included and no bf16 arithmetic is used: that needs sm_80.
#ifndef TYPES_H
#define TYPES_H

#define TYPE_F16 1
#define TYPE_BF16 2
#define TYPE_F32 3

#ifndef PACK
#define PACK 0
#endif
#ifndef ACC
#define ACC 32
#endif
#define WIDTH (1 << PACK)

template <int TYPE> struct Stored { typedef unsigned short type; };
template <> struct Stored<TYPE_F32> { typedef float type; };
typedef Stored<W_TYPE>::type WT;
typedef Stored<X_TYPE>::type XT;

#if ACC == 16 && (W_TYPE != TYPE_F16 || X_TYPE != TYPE_F16)
#error half accumulation needs f16 operands
#endif

// A pack as it lies in memory, through the read-only path.
struct Words {
    unsigned word[PACK > 1 ? 1 << (PACK - 1) : 1];
};

template <typename T> __device__ __forceinline__ Words load_words(const T *p) {
    Words w;
#if PACK == 3
    const uint4 v = __ldg((const uint4 *)p);
    w.word[0] = v.x, w.word[1] = v.y, w.word[2] = v.z, w.word[3] = v.w;
#elif PACK == 2
    const uint2 v = __ldg((const uint2 *)p);
    w.word[0] = v.x, w.word[1] = v.y;
#elif PACK == 1
    w.word[0] = __ldg((const unsigned *)p);
#else
    w.word[0] = __ldg((const unsigned short *)p);
#endif
    return w;
}

#if ACC == 32

struct Values {
    float v[WIDTH];
};

template <int TYPE> __device__ __forceinline__ float low_float(unsigned word) {
    if (TYPE == TYPE_BF16)
        return __uint_as_float(word << 16);
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)word));
    return f;
}

template <int TYPE> __device__ __forceinline__ float high_float(unsigned word) {
    if (TYPE == TYPE_BF16)
        return __uint_as_float(word & 0xffff0000u);
    return low_float<TYPE>(word >> 16);
}

template <int TYPE, typename T> __device__ __forceinline__ Values load_values(const T *p) {
    Values values;
    if (TYPE == TYPE_F32) {
#if PACK >= 2
#pragma unroll
        for (int i = 0; i < WIDTH; i += 4) {
            const float4 v = __ldg((const float4 *)p + i / 4);
            values.v[i] = v.x, values.v[i + 1] = v.y, values.v[i + 2] = v.z, values.v[i + 3] = v.w;
        }
#elif PACK == 1
        const float2 v = __ldg((const float2 *)p);
        values.v[0] = v.x, values.v[1] = v.y;
#else
        values.v[0] = __ldg((const float *)p);
#endif
        return values;
    }
    const Words words = load_words(p);
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        values.v[i] = i % 2 ? high_float<TYPE>(words.word[i / 2])
                            : low_float<TYPE>(words.word[i / 2]);
    return values;
}

__device__ __forceinline__ Values load_w(const WT *p) { return load_values<W_TYPE>(p); }
__device__ __forceinline__ Values load_x(const XT *p) { return load_values<X_TYPE>(p); }

__device__ __forceinline__ void accumulate(Values &acc, const Values &w, const Values &x) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        acc.v[i] = __fmaf_rn(w.v[i], x.v[i], acc.v[i]);
}

__device__ __forceinline__ float sum(const Values &acc) {
    Values s = acc;
#pragma unroll
    for (int half = WIDTH / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++)
            s.v[i] += s.v[i + half];
    return s.v[0];
}

#else  // half sums stay packed in pairs; PACK 0 uses the low one, the high one is 0

typedef Words Values;

__device__ __forceinline__ Values load_w(const WT *p) { return load_words(p); }
__device__ __forceinline__ Values load_x(const XT *p) { return load_words(p); }

__device__ __forceinline__ void accumulate(Values &acc, const Values &w, const Values &x) {
#pragma unroll
    for (int i = 0; i < (WIDTH + 1) / 2; i++)
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(acc.word[i]) : "r"(w.word[i]), "r"(x.word[i]));
}

__device__ __forceinline__ float sum(const Values &acc) {
    float s = 0;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        float f;
        const unsigned short h = (unsigned short)(acc.word[i / 2] >> (i % 2 * 16));
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
        s += f;
    }
    return s;
}

#endif
#endif
