"""The squared norm of a gradient, and Adam's update in one pass over the four vectors."""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel


@kernel
def squared_norm(x):
    """Sum of the squares of x [P], added up in float64 whatever the precision of x."""
    total = 0.0
    for i in range(x.size):
        value = np.float64(x[i])
        total += value * value
    return total


@kernel
def adam_update(
    params, gradient, first, second, scale, decay1, gain1, decay2, gain2, step_size, root2, epsilon
):
    """Move params by one step of Adam and update both moments, all [P] and in place.

    With g = scale · gradient: m ← decay1 · m + gain1 · g, v ← decay2 · v + gain2 · g², and
    θ ← θ − step_size · m / (√v · root2 + epsilon).  The scalars are of the type of the vectors.
    """
    for i in range(params.size):
        g = gradient[i] * scale
        m = decay1 * first[i] + gain1 * g
        v = decay2 * second[i] + gain2 * (g * g)
        first[i] = m
        second[i] = v
        params[i] -= step_size * m / (np.sqrt(v) * root2 + epsilon)
