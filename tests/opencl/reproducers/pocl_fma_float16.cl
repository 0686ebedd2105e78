// PoCL 3.0-rc2 (LLVM 14, pocl-binary-distribution 3.0; target znver3 on an AVX-512 EPYC):
// the process aborts at the first enqueue (SIGABRT, "In function: _Z7_cl_fmaDv16_fS_S_").
// Intel's CPU runtime 2026.22 computes a * a + a. Run it in a process of its own.
__kernel void fma_float16(__global const float16 *a, __global float16 *y) {
    y[get_global_id(0)] = fma(a[get_global_id(0)], a[get_global_id(0)], a[get_global_id(0)]);
}
