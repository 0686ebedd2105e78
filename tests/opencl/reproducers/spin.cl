// Runs until the host writes a nonzero value to the flag: for tests of hangs. On PoCL 3.0
// and Intel 2026.22 it keeps running, and ends at once when the flag is set through a
// mapping made before (a write through the queue would wait behind the kernel).
__kernel void spin(__global volatile uint *flag) {
    while (*flag == 0)
        ;
}
