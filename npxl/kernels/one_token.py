"""One layer read by one token of one stream, whose memory is keys and values already.

Nothing here is a product of matrices: every number of a weight or of the memory is used once, so
that a token takes as long as it takes to read them, each row from its beginning to its end.  All
work is done in arrays that are given.
"""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel
from npxl.kernels.exponential import exponentiate
from npxl.kernels.vectors import (
    LANES,
    TILE_COLUMNS,
    add,
    broadcast,
    load,
    multiply_add,
    row_maximum,
    store,
    zeros,
)


@kernel
def attention_of_one(
    x, w_q, w_k, w_v, u, v, key_t, values, relative_t, n_distances, scale, seen, room, attended,
):  # fmt: skip
    """Put what each head finds for the last token into attended [H, D].

    x [d] is that token's input of the projections.  Its key and value are put into the place
    seen[1] − 1 of key_t [H, tiles, D, C] and values [H, K′, E′], and those of range(*seen) are
    attended to.  relative_t [H, tiles, D, C] has n_distances columns by descending distance, the
    first of which stands for all further ones.  room [H, `room_for_one`] is to work in.
    """
    width = u.shape[1]
    start, stop = seen
    last = stop - 1
    for h in range(u.shape[0]):
        query_u, query_v = room[h, :width], room[h, width : 2 * width]
        found, scores = room[h, 2 * width :], room[h, 2 * width + values.shape[2] :]
        tile, column = key_t[h, last // TILE_COLUMNS], last % TILE_COLUMNS
        for d in range(width):
            row = h * width + d
            query = _dot(w_q[row], x)
            query_u[d], query_v[d] = query + u[h, d], query + v[h, d]
            tile[d, column] = _dot(w_k[row], x)
            values[h, last, d] = _dot(w_v[row], x)
        # A = (q + u)ᵀ k + (q + v)ᵀ r; that of key j is at scores[C + j]
        _score_distances(query_v, relative_t[h], n_distances, start, stop, scores)
        for j in range(start - start % TILE_COLUMNS, stop, TILE_COLUMNS):
            _multiply_one(query_u, key_t[h], j, scores, TILE_COLUMNS + j, True)
        # a = softmax(A · scale), but for the normalizer
        row = scores[TILE_COLUMNS + start : TILE_COLUMNS + stop]
        total = exponentiate(row, row_maximum(row), scale)
        # Σ_j a_j v_j
        _weighted_sum(row, values[h], start, found)
        normalizer = row.dtype.type(1) / total
        for d in range(width):
            attended[h, d] = found[d] * normalizer


@kernel
def room_for_one(n_keys, width, padded):
    """Numbers that `attention_of_one` has to keep for each head: (q + u), (q + v), Σ a v, A."""
    return 2 * width + padded + n_keys + 2 * TILE_COLUMNS


@kernel
def add_product(h, w, bias, x):
    """h [E] += W x + b, a linear map and its residual connection: W [E, D], b [E], x [D]."""
    for e in range(h.size):
        h[e] += _dot(w[e], x) + bias[e]


@kernel
def rectified_product(w, bias, x, y):
    """y [E] = max(0, W x + b): W [E, D], b [E], x [D]."""
    zero = x.dtype.type(0)
    for e in range(y.size):
        unit = _dot(w[e], x) + bias[e]
        y[e] = zero if unit < zero else unit


@kernel
def normalize_one(x, gain, bias, epsilon, y):
    """Overwrite y [d], which may be x, by gain · (x − μ) / √(σ² + ε) + bias."""
    size = x.dtype.type(x.size)
    mean = x.sum() / size
    variance = x.dtype.type(0)
    for d in range(x.size):
        variance += (x[d] - mean) * (x[d] - mean)
    factor = x.dtype.type(1) / np.sqrt(variance / size + epsilon)
    for d in range(x.size):
        y[d] = gain[d] * ((x[d] - mean) * factor) + bias[d]


@kernel
def _dot(x, y):
    """xᵀ y."""
    total = x.dtype.type(0)
    for d in range(x.size):
        total += x[d] * y[d]
    return total


@kernel
def _score_distances(query_v, relative_t, n_distances, start, stop, scores):
    """Put (q + v)ᵀ r of the distance to key j into scores[C + j]."""
    shared = stop - n_distances  # keys whose distance has no column of its own
    if start < shared:
        score = scores.dtype.type(0)
        for d in range(query_v.size):
            score += query_v[d] * relative_t[0, d, 0]
        scores[TILE_COLUMNS + start : TILE_COLUMNS + shared] = score
    first = max(0, start - shared)
    for r in range(first - first % TILE_COLUMNS, n_distances, TILE_COLUMNS):
        _multiply_one(query_v, relative_t, r, scores, TILE_COLUMNS + shared + r, False)


@kernel
def _weighted_sum(weights, values, first, out):
    """out [E′] = Σ_j weights_j values_{first + j}: weights [K], values [K′, E′].

    A row is read in one go, as far as its sums stay in registers: what is read a piece of each row
    at a time, comes from memory at a third of the speed.
    """
    padded = values.shape[1]
    wide = padded - padded % (8 * LANES)
    half = padded - padded % (4 * LANES)
    zero = zeros(out)
    for column in range(0, wide, 8 * LANES):
        sum_0, sum_1, sum_2, sum_3, sum_4, sum_5, sum_6, sum_7 = (
            zero, zero, zero, zero, zero, zero, zero, zero,
        )  # fmt: skip
        start = first * padded + column
        for j in range(weights.size):
            weight = broadcast(weights, j)
            sum_0 = multiply_add(weight, load(values, start), sum_0)
            sum_1 = multiply_add(weight, load(values, start + LANES), sum_1)
            sum_2 = multiply_add(weight, load(values, start + 2 * LANES), sum_2)
            sum_3 = multiply_add(weight, load(values, start + 3 * LANES), sum_3)
            sum_4 = multiply_add(weight, load(values, start + 4 * LANES), sum_4)
            sum_5 = multiply_add(weight, load(values, start + 5 * LANES), sum_5)
            sum_6 = multiply_add(weight, load(values, start + 6 * LANES), sum_6)
            sum_7 = multiply_add(weight, load(values, start + 7 * LANES), sum_7)
            start += padded
        store(out, column, sum_0)
        store(out, column + LANES, sum_1)
        store(out, column + 2 * LANES, sum_2)
        store(out, column + 3 * LANES, sum_3)
        store(out, column + 4 * LANES, sum_4)
        store(out, column + 5 * LANES, sum_5)
        store(out, column + 6 * LANES, sum_6)
        store(out, column + 7 * LANES, sum_7)
    for column in range(wide, half, 4 * LANES):
        sum_0, sum_1, sum_2, sum_3 = zero, zero, zero, zero
        start = first * padded + column
        for j in range(weights.size):
            weight = broadcast(weights, j)
            sum_0 = multiply_add(weight, load(values, start), sum_0)
            sum_1 = multiply_add(weight, load(values, start + LANES), sum_1)
            sum_2 = multiply_add(weight, load(values, start + 2 * LANES), sum_2)
            sum_3 = multiply_add(weight, load(values, start + 3 * LANES), sum_3)
            start += padded
        store(out, column, sum_0)
        store(out, column + LANES, sum_1)
        store(out, column + 2 * LANES, sum_2)
        store(out, column + 3 * LANES, sum_3)
    for column in range(half, padded, TILE_COLUMNS):
        sum_0, sum_1, sum_2, sum_3 = zero, zero, zero, zero
        start = first * padded + column
        for j in range(0, weights.size - 1, 2):
            weight = broadcast(weights, j)
            sum_0 = multiply_add(weight, load(values, start), sum_0)
            sum_1 = multiply_add(weight, load(values, start + LANES), sum_1)
            start += padded
            weight = broadcast(weights, j + 1)
            sum_2 = multiply_add(weight, load(values, start), sum_2)
            sum_3 = multiply_add(weight, load(values, start + LANES), sum_3)
            start += padded
        if weights.size % 2:
            weight = broadcast(weights, weights.size - 1)
            sum_0 = multiply_add(weight, load(values, start), sum_0)
            sum_1 = multiply_add(weight, load(values, start + LANES), sum_1)
        store(out, column, add(sum_0, sum_2))
        store(out, column + LANES, add(sum_1, sum_3))


@kernel
def _multiply_one(x, y_t, column, out, at, accumulate):
    """C numbers of out from `at` on: xᵀ Y, or that much more.

    x [D]; Y are the columns from `column` on of y_t [tiles, D, C].
    """
    zero = zeros(out)
    sum_00, sum_01 = (load(out, at), load(out, at + LANES)) if accumulate else (zero, zero)
    sum_10, sum_11 = zero, zero
    start = column * x.size
    for d in range(0, x.size - 1, 2):
        factor = broadcast(x, d)
        sum_00 = multiply_add(factor, load(y_t, start), sum_00)
        sum_01 = multiply_add(factor, load(y_t, start + LANES), sum_01)
        factor = broadcast(x, d + 1)
        sum_10 = multiply_add(factor, load(y_t, start + TILE_COLUMNS), sum_10)
        sum_11 = multiply_add(factor, load(y_t, start + TILE_COLUMNS + LANES), sum_11)
        start += 2 * TILE_COLUMNS
    if x.size % 2:
        factor = broadcast(x, x.size - 1)
        sum_00 = multiply_add(factor, load(y_t, start), sum_00)
        sum_01 = multiply_add(factor, load(y_t, start + LANES), sum_01)
    store(out, at, add(sum_00, sum_10))
    store(out, at + LANES, add(sum_01, sum_11))
