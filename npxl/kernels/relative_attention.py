"""Relative attention of projected queries, keys and values, one stream and head after another.

Query i of a segment of q that sees K keys, the last q of them the segment's own, may look at key j
when start ≤ j < stop, with stop = K − (q − 1 − i) and start = max(0, stop − W).  Its position
scores are ordered by descending distance, column c for distance K − 1 − c, so that key j finds its
score in column c = j + (q − 1 − i): the left shift of the paper's appendix B, done by the address
at which a tile of them is stored.  Cells that no query of a tile sees are not computed; those that
only some of its queries see are, and go nowhere.

The scores are never all there at once: the rows of 32 queries live and die in the second cache.
The backward pass computes them again, and the probabilities from each query's largest score and the
normalizer of its exponentials (Dao et al. 2022), so that nothing of size q · K is kept.
"""

from __future__ import annotations

import numpy as np

from npxl.kernels import kernel
from npxl.kernels.exponential import exp
from npxl.kernels.random_mask import keep
from npxl.kernels.vectors import TILE_COLUMNS, TILE_ROWS, multiply_tile, row_maximum

_MARGIN = 32
"""Columns of scratch before key 0 and after the last: tiles are shifted, and may end beyond."""

_BLOCK = 32
"""Queries that are handled together, so that a key is loaded once for all; whole tiles of them."""

_CHUNK = 256
"""Keys that they meet before the next ones: as many as stay in the second cache."""


@kernel
def relative_attention_heads_forward(
    query, key, value, relative, u, v, scale, window, dropout, heads, attended, largest, normalizer
):
    """attended_i = Σ_j ã_ij v_j with a_i = softmax_j(A_ij · scale), ã = a after dropout, and

        A_ij = (q_i + u)ᵀ k_j + (q_i + v)ᵀ r_δ,  δ = (K − q + i) − j    terms (a) + (c), (b) + (d)

    query [B, q, H, D]; key [B, K, H, D]; value [B, K, H, E]; relative r [K, H, D] by descending
    distance; u and v [H, D]; scale of their type; window W keys a query.  dropout is a rule for
    `keep`, which has a threshold of 0 for none.  Only the heads of range(*heads) are computed:
    attended [B, q, H, E], and what the backward pass needs, largest and normalizer [B, H, q].
    """
    n_queries, n_keys, value_width = query.shape[1], key.shape[1], value.shape[3]
    row_length = n_keys + 2 * _MARGIN
    scores = np.zeros((_BLOCK, row_length), query.dtype)
    relative_t = _pack_transposed(relative, heads)
    for b in range(query.shape[0]):
        query_u, query_v = _pack_biased(query[b], u, heads), _pack_biased(query[b], v, heads)
        key_t, values = _pack_transposed(key[b], heads), _pack(value[b], heads)
        out = np.zeros((values.shape[0], query_u.shape[1], values.shape[2]), query.dtype)
        for n in range(values.shape[0]):
            h = heads[0] + n
            for block in range(0, n_queries, _BLOCK):
                end = min(block + _BLOCK, n_queries)
                # A = (q + u)ᵀ k + (q + v)ᵀ r
                _score(
                    query_u[n], query_v[n], key_t[n], relative_t[n], block, n_queries, n_keys,
                    window, scores,
                )  # fmt: skip
                # ã, but for the normalizer
                for i in range(block, end):
                    start, stop = _visible(i, n_queries, n_keys, window)
                    row = scores[i - block, _MARGIN + start : _MARGIN + stop]
                    maximum = row_maximum(row)
                    total = query.dtype.type(0)
                    for j in range(row.size):
                        weight = exp((row[j] - maximum) * scale)
                        row[j] = weight
                        total += weight
                    largest[b, h, i] = maximum
                    normalizer[b, h, i] = query.dtype.type(1) / total
                    if dropout.threshold > 0:
                        number = (h * n_queries + i) * n_keys + start  # of the row's first decision
                        for j in range(row.size):
                            row[j] *= keep(dropout, b, number + j)
                    _clear_margins(scores[i - block], start, stop)
                # Σ_j ã_ij v_j, but for the normalizer
                _add_by_key(scores, values[n], block, n_queries, n_keys, window, out[n, block:])
        for i in range(n_queries):
            for n in range(values.shape[0]):
                h = heads[0] + n
                for d in range(value_width):
                    attended[b, i, h, d] = out[n, i, d] * normalizer[b, h, i]


@kernel
def relative_attention_heads_backward(
    d_attended, attended, largest, normalizer, query, key, value, relative, u, v, scale, window,
    dropout, heads, d_query, d_key, d_value, d_relative, d_u, d_v,
):  # fmt: skip
    """The adjoint of `relative_attention_heads_forward`, in the heads of range(*heads).

    Overwrites d_query, d_key, d_value and d_relative, of the shapes of what they are the gradients
    of; adds to d_u and d_v.  With ã = μ a, μ dropout's factor, o = attended and ō its gradient,

        dã = ō vᵀ,  dA = a · (μ dã − ōᵀo) · scale,  d(q + u) = dA k,  d(q + v) = dX r,
        dk = dAᵀ (q + u),  dr = dXᵀ (q + v),  dv = ãᵀ ō,

    where X are the position scores and dX is dA, shifted back; ō_iᵀo_i is Σ_j a_ij μ_ij dã_ij.
    """
    n_streams, n_queries, _, width = query.shape
    n_keys, value_width = key.shape[1], value.shape[3]
    row_length = n_keys + 2 * _MARGIN
    dtype = query.dtype
    scores = np.zeros((_BLOCK, row_length), dtype)  # A, then ã
    d_scores = np.zeros((_BLOCK, row_length), dtype)  # dã, then dA
    relatives, relative_t = _pack(relative, heads), _pack_transposed(relative, heads)
    n_heads, _, padded = relatives.shape
    d_relatives = np.zeros((n_heads, n_keys + TILE_ROWS, padded), dtype)
    d_query_u, d_query_v = np.empty((_BLOCK, padded), dtype), np.empty((_BLOCK, padded), dtype)
    for b in range(n_streams):
        query_u, query_v = _pack_biased(query[b], u, heads), _pack_biased(query[b], v, heads)
        keys, key_t = _pack(key[b], heads), _pack_transposed(key[b], heads)
        value_t, d_out = _pack_transposed(value[b], heads), _pack(d_attended[b], heads)
        d_keys = np.zeros((n_heads, n_keys + TILE_ROWS, padded), dtype)
        d_values = np.zeros((n_heads, n_keys + TILE_ROWS, d_out.shape[2]), dtype)
        for n in range(n_heads):
            h = heads[0] + n
            for block in range(0, n_queries, _BLOCK):
                end = min(block + _BLOCK, n_queries)
                # A = (q + u)ᵀ k + (q + v)ᵀ r
                _score(
                    query_u[n], query_v[n], key_t[n], relative_t[n], block, n_queries, n_keys,
                    window, scores,
                )  # fmt: skip
                # dã = ō vᵀ
                _multiply_by_key(
                    d_out[n], value_t[n], block, n_queries, n_keys, window, d_scores, False
                )
                # ã = μ softmax(A · scale), dA = a (μ dã − ōᵀo) scale
                for i in range(block, end):
                    start, stop = _visible(i, n_queries, n_keys, window)
                    a = scores[i - block, _MARGIN + start : _MARGIN + stop]
                    da = d_scores[i - block, _MARGIN + start : _MARGIN + stop]
                    maximum, factor = largest[b, h, i], normalizer[b, h, i]
                    inner = dtype.type(0)
                    for d in range(value_width):
                        inner += d_out[n, i, d] * attended[b, i, h, d]
                    if dropout.threshold > 0:
                        number = (h * n_queries + i) * n_keys + start
                        for j in range(a.size):
                            kept = keep(dropout, b, number + j)
                            p = exp((a[j] - maximum) * scale) * factor
                            a[j] = p * kept
                            da[j] = p * (da[j] * kept - inner) * scale
                    else:
                        for j in range(a.size):
                            p = exp((a[j] - maximum) * scale) * factor
                            a[j] = p
                            da[j] = p * (da[j] - inner) * scale
                    _clear_margins(scores[i - block], start, stop)
                    _clear_margins(d_scores[i - block], start, stop)
                # d(q + u) = dA k, d(q + v) = dX r
                d_query_u[:] = 0
                d_query_v[:] = 0
                _add_by_key(d_scores, keys[n], block, n_queries, n_keys, window, d_query_u)
                _add_by_distance(
                    d_scores, relatives[n], block, n_queries, n_keys, window, d_query_v
                )
                for i in range(block, end):
                    for d in range(width):
                        du, dv = d_query_u[i - block, d], d_query_v[i - block, d]
                        d_query[b, i, h, d] = du + dv
                        d_u[h, d] += du
                        d_v[h, d] += dv
                # dk = dAᵀ (q + u), dv = ãᵀ ō, dr = dXᵀ (q + v)
                _add_to_keys(d_scores, query_u[n], block, n_queries, n_keys, window, d_keys[n])
                _add_to_keys(scores, d_out[n], block, n_queries, n_keys, window, d_values[n])
                _add_to_distances(
                    d_scores, query_v[n], block, n_queries, n_keys, window, d_relatives[n]
                )
        _unpack(d_keys, heads, d_key[b])
        _unpack(d_values, heads, d_value[b])
    _unpack(d_relatives, heads, d_relative)


@kernel
def _visible(i, n_queries, n_keys, window):
    """The keys start … stop − 1 that query i sees."""
    stop = n_keys - (n_queries - 1 - i)
    return max(0, stop - window), stop


@kernel
def _first_column(last, n_queries, n_keys, window):
    """The column of the furthest distance that query `last`, or one before it, has."""
    return max(n_queries - 1 - last, n_keys - window)


@kernel
def _score(query_u, query_v, key_t, relative_t, block, n_queries, n_keys, window, scores):
    """Put the score of a block's query i for key j into scores[i − block, _MARGIN + j].

    What lies beside the keys that a query sees is left to chance.
    """
    padded, width, row_length = query_u.shape[1], relative_t.shape[1], scores.shape[1]
    end = min(block + _BLOCK, n_queries)
    # Position scores first, by distance: each query's columns lie one further left than the next's.
    first_column = _first_column(end - 1, n_queries, n_keys, window)
    for c in range(first_column - first_column % TILE_COLUMNS, n_keys, TILE_COLUMNS):
        for first in range(block, end, TILE_ROWS):
            last = min(first + TILE_ROWS, n_queries) - 1
            if c + TILE_COLUMNS > _first_column(last, n_queries, n_keys, window):
                multiply_tile(
                    query_v, first * padded, (padded, 1), relative_t, c * width, TILE_COLUMNS,
                    scores, (first - block) * row_length + _MARGIN + c - (n_queries - 1 - first),
                    row_length + 1, width, False,
                )  # fmt: skip
    _multiply_by_key(query_u, key_t, block, n_queries, n_keys, window, scores, True)


@kernel
def _multiply_by_key(x, y_t, block, n_queries, n_keys, window, cells, add):
    """cells[i − block, _MARGIN + j] = x_iᵀ y_j, or that much more, where query i sees key j.

    x [q, D′], a row a query; y_t the keys' rows as `_pack_transposed` gives them.
    """
    padded, width, row_length = x.shape[1], y_t.shape[1], cells.shape[1]
    end = min(block + _BLOCK, n_queries)
    low, _ = _visible(block, n_queries, n_keys, window)
    _, high = _visible(end - 1, n_queries, n_keys, window)
    for j in range(low - low % TILE_COLUMNS, high, TILE_COLUMNS):
        for first in range(block, end, TILE_ROWS):
            start, _ = _visible(first, n_queries, n_keys, window)
            _, stop = _visible(min(first + TILE_ROWS, n_queries) - 1, n_queries, n_keys, window)
            if start < j + TILE_COLUMNS and j < stop:
                multiply_tile(
                    x, first * padded, (padded, 1), y_t, j * width, TILE_COLUMNS,
                    cells, (first - block) * row_length + _MARGIN + j, row_length, width, add,
                )  # fmt: skip


@kernel
def _add_by_key(cells, y, block, n_queries, n_keys, window, out):
    """out[i − block] += Σ_j cells_ij y_j over the keys j that a block's query i sees.

    y [K, D′]; cells as `_score` lays them out, with `_clear_margins`.
    """
    padded, row_length = y.shape[1], cells.shape[1]
    end = min(block + _BLOCK, n_queries)
    low, _ = _visible(block, n_queries, n_keys, window)
    _, high = _visible(end - 1, n_queries, n_keys, window)
    for chunk in range(low, high, _CHUNK):
        for first in range(block, end, TILE_ROWS):
            start, _ = _visible(first, n_queries, n_keys, window)
            _, stop = _visible(min(first + TILE_ROWS, n_queries) - 1, n_queries, n_keys, window)
            j = max(chunk, start)
            for column in range(0, padded, TILE_COLUMNS):
                multiply_tile(
                    cells, (first - block) * row_length + _MARGIN + j, (row_length, 1),
                    y, j * padded + column, padded,
                    out, (first - block) * padded + column, padded,
                    min(chunk + _CHUNK, stop) - j, True,
                )  # fmt: skip


@kernel
def _add_by_distance(cells, y, block, n_queries, n_keys, window, out):
    """out[i − block] += Σ_c cells_i,c−(q−1−i) y_c over the columns c of distances that i has."""
    padded, row_length = y.shape[1], cells.shape[1]
    end = min(block + _BLOCK, n_queries)
    for chunk in range(_first_column(end - 1, n_queries, n_keys, window), n_keys, _CHUNK):
        for first in range(block, end, TILE_ROWS):
            last = min(first + TILE_ROWS, n_queries) - 1
            c = max(chunk, _first_column(last, n_queries, n_keys, window))
            corner = (first - block) * row_length + _MARGIN + c - (n_queries - 1 - first)
            for column in range(0, padded, TILE_COLUMNS):
                multiply_tile(
                    cells, corner, (row_length + 1, 1), y, c * padded + column, padded,
                    out, (first - block) * padded + column, padded,
                    min(chunk + _CHUNK, n_keys) - c, True,
                )  # fmt: skip


@kernel
def _add_to_keys(cells, x, block, n_queries, n_keys, window, out):
    """out[j] += Σ_i cells_ij x_i over the block's queries i that see key j; x [q, D′]."""
    padded, row_length, n_memory = x.shape[1], cells.shape[1], n_keys - n_queries
    end = min(block + _BLOCK, n_queries)
    low, _ = _visible(block, n_queries, n_keys, window)
    _, high = _visible(end - 1, n_queries, n_keys, window)
    for j in range(low, high, TILE_ROWS):
        # Of the block's queries, those that see one of these four keys.
        i = max(block, j - n_memory)
        n_seeing = min(end, j + TILE_ROWS - 1 - n_memory + window) - i
        for column in range(0, padded, TILE_COLUMNS):
            multiply_tile(
                cells, (i - block) * row_length + _MARGIN + j, (1, row_length),
                x, i * padded + column, padded, out, j * padded + column, padded, n_seeing, True,
            )  # fmt: skip


@kernel
def _add_to_distances(cells, x, block, n_queries, n_keys, window, out):
    """out[c] += Σ_i cells_i,c−(q−1−i) x_i over the block's queries i that have that distance."""
    padded, row_length = x.shape[1], cells.shape[1]
    end = min(block + _BLOCK, n_queries)
    for c in range(_first_column(end - 1, n_queries, n_keys, window), n_keys, TILE_ROWS):
        # Of the block's queries, those that are late enough to have one of these four distances.
        i = max(block, n_queries - c - TILE_ROWS)
        corner = (i - block) * row_length + _MARGIN + c - (n_queries - 1 - i)
        for column in range(0, padded, TILE_COLUMNS):
            multiply_tile(
                cells, corner, (1, row_length + 1), x, i * padded + column, padded,
                out, c * padded + column, padded, end - i, True,
            )  # fmt: skip


@kernel
def _clear_margins(row, start, stop):
    """Zeros beside a row's keys, where other queries of a tile see up to three more."""
    row[_MARGIN + start - TILE_ROWS : _MARGIN + start] = 0
    row[_MARGIN + stop : _MARGIN + stop + TILE_ROWS] = 0


@kernel
def _round_up(n, size):
    """n, or the next larger multiple of a tile's size."""
    return (n + size - 1) // size * size


# Heads lie side by side in x [n, H, D] and one behind another in what tiles are made from.  Each is
# walked in the order of x, whose pieces of one head would come from far apart.


@kernel
def _pack(x, heads):
    """Some heads of x [n, H, D], rows and columns continued by zeros to tiles: [heads, n′, D′]."""
    n, _, width = x.shape
    shape = (heads[1] - heads[0], _round_up(n, TILE_ROWS), _round_up(width, TILE_COLUMNS))
    y = np.zeros(shape, x.dtype)
    for i in range(n):
        for h in range(heads[0], heads[1]):
            for d in range(width):
                y[h - heads[0], i, d] = x[i, h, d]
    return y


@kernel
def _pack_biased(x, bias, heads):
    """`_pack` of x + bias, whose rows are bias [H, D]."""
    y = _pack(x, heads)
    for h in range(heads[0], heads[1]):
        for i in range(x.shape[0]):
            for d in range(x.shape[2]):
                y[h - heads[0], i, d] += bias[h, d]
    return y


@kernel
def _pack_transposed(x, heads):
    """xᵀ of some heads of x [n, H, D], in tiles of 16 columns: [heads, tiles, D, 16].

    A tile's rows lie one behind another, so that a product that walks down them stays in the
    nearest cache.
    """
    n, _, width = x.shape
    n_tiles = _round_up(n, TILE_COLUMNS) // TILE_COLUMNS
    y = np.zeros((heads[1] - heads[0], n_tiles, width, TILE_COLUMNS), x.dtype)
    for i in range(n):
        for h in range(heads[0], heads[1]):
            tile, column = y[h - heads[0], i // TILE_COLUMNS], i % TILE_COLUMNS
            for d in range(width):
                tile[d, column] = x[i, h, d]
    return y


@kernel
def _unpack(y, heads, x):
    """The inverse of `_pack`: overwrites those heads of x [n, H, D]."""
    for i in range(x.shape[0]):
        for h in range(heads[0], heads[1]):
            for d in range(x.shape[2]):
                x[i, h, d] = y[h - heads[0], i, d]
