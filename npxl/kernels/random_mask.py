"""Dropout masks from counters: the n-th decision is a function of a key and n alone."""

from __future__ import annotations

from npxl.kernels import kernel

_WORD = 0xFFFFFFFF


@kernel
def mix(x):
    """A 32-bit word hashed: a bijection in which every input bit flips half of the output bits.

    The multipliers are those found by Wellons' hash prospector.  Of each product only the low 32
    bits are kept, which are the same in 64-bit integers that wrap around and in Python's.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


@kernel
def drop(x, y, key_low, key_high, first_stream, threshold, scale, start, strides):
    """y = x · mask · scale, where an entry is kept when its 32 random bits reach `threshold`.

    x and y [H, B, I, J].  Entry (h, b, i, j) takes decision number start + h · strides[0] +
    i · strides[1] + j of stream first_stream + b: a block of a larger array draws the same
    decisions as the whole.
    """
    zero = x.dtype.type(0)
    for h in range(x.shape[0]):
        for b in range(x.shape[1]):
            stream_low = mix(key_low ^ ((first_stream + b) & _WORD))
            stream_high = mix(key_high ^ stream_low)
            for i in range(x.shape[2]):
                offset = start + h * strides[0] + i * strides[1]
                x_row = x[h, b, i]
                y_row = y[h, b, i]
                for j in range(x_row.size):
                    bits = mix(mix(((offset + j) & _WORD) ^ stream_low) ^ stream_high)
                    y_row[j] = x_row[j] * scale if bits >= threshold else zero
