// Element types, loads and conversions shared by the OpenCL kernels.
//
// The host prepends constants, all of them used here:
//   W_TYPE, X_TYPE  TYPE_F16, TYPE_BF16 or TYPE_F32: what w and x hold
//   PACK            elements per load are 1 << PACK: 1, 2, 4, 8 or 16
//   ACC             32 (float accumulators) or 16 (half; needs cl_khr_fp16)
//   HALF            how f16 becomes float: HALF_* below
// HALF, ACC and X_TYPE default to HALF_BITS, 32 and TYPE_F32.
//
// Given to kernels:
//   WT, XT               element types of the arguments (ushort for 16-bit types)
//   load_w1/2/4/8/16(p, i)  elements p[i] ... of w as float, float2 ... float16
//   load_x1/2/4/8/16(p, i)  the same of x
//   acc_t, acc_v         one accumulator; a vector of 1 << PACK of them
//   load_w(p, i), load_x(p, i)  1 << PACK elements as acc_v
//   hsum(v)              the sum over an acc_v, as float
// p is a pointer to global WT or XT and i counts elements. A load of N elements
// needs p + i aligned to N elements (HALF_VLOAD to one element).
#ifndef TYPES_H
#define TYPES_H

#define TYPE_F16 1
#define TYPE_BF16 2
#define TYPE_F32 3

#define HALF_BITS 1    // integer operations: every device
#define HALF_VLOAD 2   // vload_half: core OpenCL, a slow library call on PoCL
#define HALF_NATIVE 3  // half vectors: cl_khr_fp16
#define HALF_F16C 4    // clang's __fp16 vectors, vcvtph2ps on x86: compile probe

#ifndef HALF
#define HALF HALF_BITS
#endif
#ifndef ACC
#define ACC 32
#endif
#ifndef X_TYPE
#define X_TYPE TYPE_F32
#endif
#if HALF == HALF_NATIVE || ACC == 16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

// f16 to float by integers. The magnitude moves into a float's place, where its
// exponent is 112 too small; the product is exact, subnormals included (the
// device must not flush float subnormals). Exponent 31 keeps its meaning by hand:
// otherwise Inf and NaN would come out finite.
#define HALF_BY_BITS(S)                                                         \
    static inline float##S half_bits##S(ushort##S h) {                          \
        uint##S u = convert_uint##S(h);                                         \
        uint##S m = (u & (uint##S)0x7fff) << (uint##S)13;                       \
        uint##S f = as_uint##S(as_float##S(m) * (float##S)0x1p112f);            \
        f = m >= (uint##S)0x0f800000 ? (m | (uint##S)0x7f800000) : f;           \
        return as_float##S(f | (u & (uint##S)0x8000) << (uint##S)16);           \
    }

#if HALF == HALF_BITS
HALF_BY_BITS()
HALF_BY_BITS(2)
HALF_BY_BITS(4)
HALF_BY_BITS(8)
HALF_BY_BITS(16)
#define HALF_LOAD(S, p) half_bits##S(*(const __global ushort##S *)(p))
#elif HALF == HALF_VLOAD
#define HALF_LOAD(S, p) vload_half##S(0, (const __global half *)(p))
#elif HALF == HALF_NATIVE
#define HALF_LOAD(S, p) convert_float##S(*(const __global half##S *)(p))
#elif HALF == HALF_F16C
// One element goes through a vector of two: half scalars need cl_khr_fp16.
#define F16C_TYPE(S) \
    typedef __fp16 fp16_v##S __attribute__((ext_vector_type(S)));
F16C_TYPE(2)
F16C_TYPE(4)
F16C_TYPE(8)
F16C_TYPE(16)
#define F16C_CONVERT(S, u) __builtin_convertvector(__builtin_astype(u, fp16_v##S), float##S)
#define F16C_CONVERT_(u) F16C_CONVERT(2, ((ushort2)(u, 0))).x
#define F16C_CONVERT_2(u) F16C_CONVERT(2, u)
#define F16C_CONVERT_4(u) F16C_CONVERT(4, u)
#define F16C_CONVERT_8(u) F16C_CONVERT(8, u)
#define F16C_CONVERT_16(u) F16C_CONVERT(16, u)
#define HALF_LOAD(S, p) F16C_CONVERT_##S((*(const __global ushort##S *)(p)))
#else
#error unknown HALF
#endif

#define BF16_LOAD(S, p) \
    as_float##S(convert_uint##S(*(const __global ushort##S *)(p)) << (uint##S)16)
#define F32_LOAD(S, p) (*(const __global float##S *)(p))

#define DEFINE_LOADS(NAME, T, LOAD)                                             \
    static inline float NAME##1(const __global T *p, size_t i) {                \
        return LOAD(, p + i);                                                   \
    }                                                                           \
    static inline float2 NAME##2(const __global T *p, size_t i) {               \
        return LOAD(2, p + i);                                                  \
    }                                                                           \
    static inline float4 NAME##4(const __global T *p, size_t i) {               \
        return LOAD(4, p + i);                                                  \
    }                                                                           \
    static inline float8 NAME##8(const __global T *p, size_t i) {               \
        return LOAD(8, p + i);                                                  \
    }                                                                           \
    static inline float16 NAME##16(const __global T *p, size_t i) {             \
        return LOAD(16, p + i);                                                 \
    }

#if W_TYPE == TYPE_F16
typedef ushort WT;
DEFINE_LOADS(load_w, ushort, HALF_LOAD)
#elif W_TYPE == TYPE_BF16
typedef ushort WT;
DEFINE_LOADS(load_w, ushort, BF16_LOAD)
#else
typedef float WT;
DEFINE_LOADS(load_w, float, F32_LOAD)
#endif
#if X_TYPE == TYPE_F16
typedef ushort XT;
DEFINE_LOADS(load_x, ushort, HALF_LOAD)
#elif X_TYPE == TYPE_BF16
typedef ushort XT;
DEFINE_LOADS(load_x, ushort, BF16_LOAD)
#else
typedef float XT;
DEFINE_LOADS(load_x, float, F32_LOAD)
#endif

#ifdef PACK
#if PACK == 0
#define WIDTH_(f) f##1
#define VEC_(t) t
#elif PACK == 1
#define WIDTH_(f) f##2
#define VEC_(t) t##2
#elif PACK == 2
#define WIDTH_(f) f##4
#define VEC_(t) t##4
#elif PACK == 3
#define WIDTH_(f) f##8
#define VEC_(t) t##8
#elif PACK == 4
#define WIDTH_(f) f##16
#define VEC_(t) t##16
#else
#error unknown PACK
#endif
#if ACC == 16
typedef half acc_t;
typedef VEC_(half) acc_v;
// NVIDIA computes in half but has no convert_ functions for it: scalars go by a cast, and
// sums back to float through memory, which vload_half reads on every device.
#if PACK == 0
#define load_w(p, i) ((half)load_w1(p, i))
#define load_x(p, i) ((half)load_x1(p, i))
#else
#define load_w(p, i) VEC_(convert_half)(WIDTH_(load_w)(p, i))
#define load_x(p, i) VEC_(convert_half)(WIDTH_(load_x)(p, i))
#endif
#define hsum(v) WIDTH_(hsum)(VEC_(vload_half)(0, (const __private half *)&(v)))
#else
typedef float acc_t;
typedef VEC_(float) acc_v;
#define load_w(p, i) WIDTH_(load_w)(p, i)
#define load_x(p, i) WIDTH_(load_x)(p, i)
#define hsum(v) WIDTH_(hsum)(v)
#endif
#endif

static inline float hsum1(float v) { return v; }
static inline float hsum2(float2 v) { return v.x + v.y; }
static inline float hsum4(float4 v) { return hsum2(v.lo + v.hi); }
static inline float hsum8(float8 v) { return hsum4(v.lo + v.hi); }
static inline float hsum16(float16 v) { return hsum8(v.lo + v.hi); }

#endif
