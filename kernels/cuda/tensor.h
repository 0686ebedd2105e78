// Instructions from sm_80 on: copies into shared memory that a thread does not wait for, and
// products of 16-bit matrices by a warp. Shared memory goes by its 32-bit address.
//
// Lane l is the l / 4-th group's l % 4-th here. Of an 8 x 8 matrix a lane holds two neighbours in
// one word: row l / 4, columns l % 4 * 2 and the next.
#ifndef TENSOR_H
#define TENSOR_H

__device__ __forceinline__ unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

// 16 bytes past the first cache.
__device__ __forceinline__ void copy_ahead(unsigned to, const unsigned char *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

// The same, or zeros where `bytes` is 0.
__device__ __forceinline__ void copy_or_clear(unsigned to, const unsigned char *from,
                                              unsigned bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}

// Closes a group of copies.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for this thread's groups but for the last PENDING ones.
template <int PENDING> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8 x 8 matrices: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned (&word)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(row)
                 : "memory");
}

// The same, each transposed.
__device__ __forceinline__ void load_transposed(unsigned (&word)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ unsigned transpose(unsigned word) {
    unsigned made;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(made) : "r"(word));
    return made;
}

// c += a b: a [16, 16] as matrices (0 0), (8 0), (0 8), (8 8) by first row and column; b [16, 8] as
// the transposes of its upper and lower half; c [16, 8] in FP32, upper half first.
template <bool BF16>
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
    if (BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two floats rounded to 16 bits, the first one low.
template <bool BF16> __device__ __forceinline__ unsigned pack_pair(float low, float high) {
    unsigned word;
    if (BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Each half of a minus that of b, in FP16.
__device__ __forceinline__ unsigned subtract_halves(unsigned a, unsigned b) {
    unsigned made;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    return made;
}

// A launch may begin before the one before it has ended: waits for that end.
__device__ __forceinline__ void await_launch_before() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#endif
