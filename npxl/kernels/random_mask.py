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
def keep(rule, row, number):
    """What dropout multiplies entry `number` of a row by: 0, or 1 / (1 − rate).

    rule is a DropoutRule: row r holds stream first_stream + r, and an entry is kept when its 32
    random bits reach the threshold.
    """
    stream_low = mix(rule.key_low ^ ((rule.first_stream + row) & _WORD))
    stream_high = mix(rule.key_high ^ stream_low)
    bits = mix(mix((number & _WORD) ^ stream_low) ^ stream_high)
    return rule.factor if bits >= rule.threshold else rule.factor - rule.factor


@kernel
def drop(x, y, rule):
    """y = x · mask / (1 − rate), x and y [B, n], with the mask of `keep`."""
    zero = x.dtype.type(0)
    for row in range(x.shape[0]):
        x_row, y_row = x[row], y[row]
        for number in range(x_row.size):
            factor = keep(rule, row, number)
            y_row[number] = x_row[number] * factor if factor > zero else zero
