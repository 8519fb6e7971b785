"""Gradient descent, without and with momentum, in one pass over the vectors."""

from __future__ import annotations

from npxl.kernels import kernel


@kernel
def sgd_update(params, gradient, scale, lr):
    """Move params [P] in place: with g = scale · gradient, θ ← θ − lr · g."""
    for i in range(params.size):
        params[i] -= lr * (gradient[i] * scale)


@kernel
def momentum_update(params, gradient, velocity, scale, momentum, lr):
    """Move params and update the velocity, all [P] and in place.

    With g = scale · gradient: v ← momentum · v + g and θ ← θ − lr · v.  The scalars are of the type
    of the vectors.
    """
    for i in range(params.size):
        v = momentum * velocity[i] + gradient[i] * scale
        velocity[i] = v
        params[i] -= lr * v
