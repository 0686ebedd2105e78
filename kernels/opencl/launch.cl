// A launch with a GEMV's arguments and nothing to do: what a launch itself costs.
__kernel void launch_only(__global const ushort *w, __global const ushort *x, __global float *y,
                          uint k, uint n, ulong w_offset, uint x_offset) {}
