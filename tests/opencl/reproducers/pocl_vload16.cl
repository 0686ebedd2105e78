// PoCL 3.0-rc2 (LLVM 14, pocl-binary-distribution 3.0; target znver3 on an AVX-512 EPYC):
// elements 8 to 15 of every vector are garbage, without any message. Right on Intel's CPU
// runtime 2026.22, and on PoCL with y[i] = ((__global const float16 *)a)[i].
__kernel void copy16(__global const float *a, __global float16 *y) {
    y[get_global_id(0)] = vload16(get_global_id(0), a);
}
