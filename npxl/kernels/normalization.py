"""Layer normalisation over rows."""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel


@kernel
def layer_norm_rows_forward(x, gain, bias, epsilon, y, normalized, inv_std):
    """The loop of `layer_norm_forward`: y = gain · z + bias with z = (x − μ) / √(σ² + ε), by rows.

    Fills y, normalized (z) [N, D] and inv_std [N] from x [N, D]; epsilon of the type of x.
    """
    zero, one, size = x.dtype.type(0), x.dtype.type(1), x.dtype.type(x.shape[1])
    for n in range(x.shape[0]):
        row = x[n]
        mean = zero
        for d in range(row.size):
            mean += row[d]
        mean /= size
        variance = zero
        for d in range(row.size):
            variance += (row[d] - mean) * (row[d] - mean)
        variance /= size
        scale = one / np.sqrt(variance + epsilon)
        inv_std[n] = scale
        for d in range(row.size):
            z = (row[d] - mean) * scale
            normalized[n, d] = z
            y[n, d] = gain[d] * z + bias[d]


@kernel
def layer_norm_rows_backward(dy, normalized, inv_std, gain, dx, d_gain, d_bias):
    """The loop of `layer_norm_backward`: dx = (g − mean(g) − z · mean(g · z)) · inv_std, by rows.

    With g = gain · dy and z = normalized.  Fills dx [N, D]; adds to d_gain and d_bias [D].
    """
    zero, size = dy.dtype.type(0), dy.dtype.type(dy.shape[1])
    for n in range(dy.shape[0]):
        dy_row = dy[n]
        z = normalized[n]
        mean_g = zero
        mean_gz = zero
        for d in range(dy_row.size):
            g = gain[d] * dy_row[d]
            mean_g += g
            mean_gz += g * z[d]
            d_gain[d] += dy_row[d] * z[d]
            d_bias[d] += dy_row[d]
        mean_g /= size
        mean_gz /= size
        for d in range(dy_row.size):
            dx[n, d] = (gain[d] * dy_row[d] - mean_g - z[d] * mean_gz) * inv_std[n]
