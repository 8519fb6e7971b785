"""Bias, rectifier and dropout in one pass, and back."""

from __future__ import annotations

from npxl.kernels import kernel
from npxl.kernels.random_mask import keep


@kernel
def rectify_forward(x, bias, rule):
    """Overwrite x [B, q, D] by max(0, x + bias) · mask / (1 − rate), with the mask of `keep`.

    bias [D].  What is not a number stays so.
    """
    zero = x.dtype.type(0)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            values = x[row, i]
            for d in range(values.size):
                value = values[d] + bias[d]
                values[d] = zero if value < zero else value
            if rule.threshold > 0:
                number = i * values.size
                for d in range(values.size):
                    factor = keep(rule, row, number + d)
                    values[d] = values[d] * factor if factor > zero else zero


@kernel
def rectify_backward(dy, y, factor, d_bias):
    """Overwrite dy [n, D] by the gradient of `rectify_forward`'s x; add its sum to d_bias [D].

    y [n, D] is what that function has returned, and factor its 1 / (1 − rate): what was dropped is
    zero in y, as is what was rectified, and neither lets a gradient through.
    """
    zero = dy.dtype.type(0)
    for n in range(dy.shape[0]):
        gradient, value = dy[n], y[n]
        for d in range(gradient.size):
            g = gradient[d] * factor if value[d] > zero else zero
            gradient[d] = g
            d_bias[d] += g
