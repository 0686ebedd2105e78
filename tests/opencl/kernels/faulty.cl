// Kernels that go wrong each in its own way, with family row's convention.
#define SIGNATURE                                                                   \
    (__global const ushort *w, __global const ushort *x, __global volatile float *y, \
     uint k, uint n, ulong w_offset, uint x_offset)

static float dot(__global const ushort *w, __global const ushort *x, uint k) {
    float sum = 0;
    for (uint i = 0; i < k; i++)
        sum += vload_half(i, (__global const half *)w) * vload_half(i, (__global const half *)x);
    return sum;
}

#define ROW_DOT dot(w + w_offset + (ulong)row * k, x + x_offset, k)

__kernel void all_right SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0)
        y[row] = ROW_DOT;
}

__kernel void last_row_missing SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0 && row + 1 < n)
        y[row] = ROW_DOT;
}

__kernel void last_column_missing SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0)
        y[row] = dot(w + w_offset + (ulong)row * k, x + x_offset, k - 1);
}

__kernel void one_row_too_many SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0)
        y[row] = ROW_DOT;
    y[n] = 1.0f;
}

__kernel void one_column_too_many SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0)
        y[row] = dot(w + w_offset + (ulong)row * k, x + x_offset, k + 1);
}

__kernel void no_w_offset SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0)
        y[row] = dot(w + (ulong)row * k, x + x_offset, k);
}

__kernel void no_x_offset SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0)
        y[row] = dot(w + w_offset + (ulong)row * k, x, k);
}

// Half to float without a thought for zeros and subnormals.
static float hasty(ushort h) {
    return as_float((uint)(h & 0x8000) << 16 | (((uint)h & 0x7fff) << 13) + (112u << 23));
}

__kernel void no_zeros SIGNATURE {
    const uint row = get_group_id(0);
    float sum = 0;
    if (get_local_id(0) > 0)
        return;
    for (uint i = 0; i < k; i++)
        sum += hasty(w[w_offset + (ulong)row * k + i]) *
               vload_half(x_offset + i, (__global const half *)x);
    y[row] = sum;
}

__kernel void writes_weights SIGNATURE {
    const uint row = get_group_id(0);
    if (get_local_id(0) == 0)
        y[row] = ROW_DOT;
    ((__global ushort *)w)[w_offset + (ulong)row * k] = 0x7e00;
}

__kernel void endless SIGNATURE {
    while (y[0] != 3.25f)
        ;
}

__kernel void wild_pointer SIGNATURE {
    y[0] = *(__global volatile float *)16;
}

// Loses mantissa bits in the rows that a sample of 64 out of 8448 does not see.
__kernel void coarse_between_samples SIGNATURE {
    const uint row = get_group_id(0);
    float sum = 0;
    if (get_local_id(0) > 0)
        return;
    for (uint i = 0; i < k; i++) {
        ushort h = w[w_offset + (ulong)row * k + i];
        if (row + 128 >= n && row + 66 <= n)
            h &= 0xff80;
        sum += vload_half(0, (const __private half *)&h) *
               vload_half(x_offset + i, (__global const half *)x);
    }
    y[row] = sum;
}
