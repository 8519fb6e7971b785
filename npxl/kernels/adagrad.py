"""Adagrad's update in one pass over the three vectors."""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel


@kernel
def adagrad_update(params, gradient, squares, scale, lr, epsilon):
    """Move params and add to the sum of squares, all [P] and in place.

    With g = scale · gradient: s ← s + g² and θ ← θ − lr · g / (√s + epsilon).  The scalars are of
    the type of the vectors.
    """
    for i in range(params.size):
        g = gradient[i] * scale
        s = squares[i] + g * g
        squares[i] = s
        params[i] -= lr * g / (np.sqrt(s) + epsilon)
