"""Relative attention of projected queries, keys and values, one stream and head after another.

Query i of a segment of q that sees K keys, the last q of them the segment's own, may look at key j
when start ≤ j < stop, with stop = K − (q − 1 − i) and start = max(0, stop − W).  Its position
scores are ordered by descending distance, column c for distance K − 1 − c, so that key j finds its
score in column c = j + (q − 1 − i): the left shift of the paper's appendix B, done by the address
at which a tile of them is stored.  Cells that no query of a tile sees are not computed; those that
only some of its queries see are, and go nowhere.

The scores are never all there at once: a block of queries meets some keys after the other, and
what it has summed is made smaller when a larger score than before turns up (Milakov and Gimelshein
2018).  The backward pass computes scores again, all those of a smaller block, and the probabilities
from each query's largest score and the normalizer of its exponentials (Dao et al. 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npxl.kernels import kernel
from npxl.kernels.exponential import exp, exponentiate
from npxl.kernels.packing import pack, pack_biased, pack_transposed, round_up, unpack
from npxl.kernels.random_mask import keep
from npxl.kernels.vectors import TILE_COLUMNS, TILE_ROWS, multiply_tile, row_maximum

_MARGIN = 2 * TILE_COLUMNS
"""Columns of scratch before key 0 and after the last: tiles are shifted, and may end beyond."""

_BLOCK = 32
"""Queries that are handled together, so that a key is loaded once for all; whole tiles of them."""

_MANY_KEYS = 512
"""From which on more are: keys then come from further away than the second cache."""

_KEYS = 1024
"""That many keys, whole tiles, are met before the next ones: scores stay in the second cache."""

_CHUNK = 8192
"""Numbers of the rows that they meet before the next ones: as many as stay in the first cache."""


class Extent(NamedTuple):
    """What the queries see: as above, but only keys from `first` to before `last`.

    Column n_distances − 1 − δ of what is packed is for distance δ; column 0 for all further ones.
    `block` queries are handled together.
    """

    n_queries: int
    n_keys: int
    n_distances: int
    window: int
    block: int
    first: int
    last: int


@kernel
def relative_attention_heads_forward(
    query, key, value, relative, u, v, scale, window, dropout, heads, attended, largest, normalizer
):
    """attended_i = Σ_j ã_ij v_j with a_i = softmax_j(A_ij · scale), ã = a after dropout, and

        A_ij = (q_i + u)ᵀ k_j + (q_i + v)ᵀ r_δ,  δ = (K − q + i) − j    terms (a) + (c), (b) + (d)

    query [B, q, H, D]; key [B, K, H, D]; value [B, K, H, E]; relative r [K, H, D] by descending
    distance, or [K, H, 0] where scores have no terms (b) and (d); u and v [H, D]; scale of their
    type; window W keys a query.  dropout is a rule for `keep`, which has a threshold of 0 for none.
    Only the heads of range(*heads) are computed: attended [B, q, H, E], and what the backward pass
    needs, largest and normalizer [B, H, q].
    """
    n_keys = key.shape[1]
    block = _block_of(query.shape[1], n_keys, 4 * _BLOCK)
    extent = Extent(query.shape[1], n_keys, n_keys, window, block, 0, n_keys)
    scores = np.zeros((extent.block, min(n_keys, _KEYS) + 2 * _MARGIN), query.dtype)
    relative_t = pack_transposed(relative, heads)
    for b in range(query.shape[0]):
        query_u, query_v = pack_biased(query[b], u, heads), pack_biased(query[b], v, heads)
        key_t, values = pack_transposed(key[b], heads), pack(value[b], heads)
        out = np.zeros((values.shape[0], query_u.shape[1], values.shape[2]), query.dtype)
        for n in range(values.shape[0]):
            h = heads[0] + n
            _attend(
                query_u[n], query_v[n], key_t[n], values[n], relative_t[n], scale, extent,
                dropout, b, h, scores, out[n], largest[b, h], normalizer[b, h],
            )  # fmt: skip
        _unpack_normalized(out, normalizer[b], heads, attended[b])


@kernel
def packed_attention_heads_forward(
    query, key_t, values, relative_t, n_distances, u, v, scale, seen, window, dropout, heads,
    attended,
):  # fmt: skip
    """`relative_attention_heads_forward` of keys, values and distances that are packed already.

    query [B, q, H, D]; key_t and relative_t [B, H, tiles, D, C] and [H, tiles, D, C] as
    `pack_transposed` gives them, values [B, H, n′, E′] as `pack` does.  Only the keys of
    range(*seen) count.  The first of relative_t's n_distances columns stands for all distances
    from n_distances − 1 on.  attended [B, q, H, E].
    """
    start, stop = seen
    # Keys are counted from the first tile that is seen.
    tile = start // TILE_COLUMNS
    base = tile * TILE_COLUMNS
    n_queries = query.shape[1]
    n_keys = stop - base
    block = _block_of(n_queries, n_keys, 4 * _BLOCK)
    extent = Extent(n_queries, n_keys, n_distances, window, block, start - base, n_keys)
    scores = np.zeros((extent.block, min(n_keys, _KEYS) + 2 * _MARGIN), query.dtype)
    largest = np.empty(n_queries, query.dtype)
    normalizer = np.empty((query.shape[2], n_queries), query.dtype)
    n_heads, padded = heads[1] - heads[0], values.shape[3]
    for b in range(query.shape[0]):
        query_u, query_v = pack_biased(query[b], u, heads), pack_biased(query[b], v, heads)
        out = np.zeros((n_heads, query_u.shape[1], padded), query.dtype)
        for n in range(n_heads):
            h = heads[0] + n
            _attend(
                query_u[n], query_v[n], key_t[b, h, tile:], values[b, h, base:], relative_t[h],
                scale, extent, dropout, b, h, scores, out[n], largest, normalizer[h],
            )  # fmt: skip
        _unpack_normalized(out, normalizer, heads, attended[b])


@kernel
def _attend(
    query_u, query_v, key_t, values, relative_t, scale, extent, dropout, b, h, scores, out, largest,
    normalizer,
):  # fmt: skip
    """One head of one stream: out [q′, E′], which begins as zeros, has Σ_j ã_ij v_j / normalizer_i.

    Overwrites largest and normalizer [q]; `scores` is room for a block's rows.
    """
    n_queries, n_keys = extent.n_queries, extent.n_keys
    lowest = np.finfo(scores.dtype).min
    one = scores.dtype.type(1)
    for block in range(0, n_queries, extent.block):
        end = min(block + extent.block, n_queries)
        largest[block:end] = lowest
        normalizer[block:end] = 0  # Σ_j e^{(A_ij − largest_i) · scale} of the keys so far
        low, high = _seen_by_some(block, end, extent)
        for first in range(low - low % TILE_COLUMNS, high, _KEYS):
            part = Extent(
                n_queries, n_keys, extent.n_distances, extent.window, extent.block,
                max(first, low), min(first + _KEYS, high),
            )  # fmt: skip
            # A = (q + u)ᵀ k + (q + v)ᵀ r
            _score(query_u, query_v, key_t, relative_t, block, part, scores)
            # ã, but for the normalizer
            for i in range(block, end):
                start, stop = _visible(i, part)
                at = _MARGIN + start - part.first
                row = scores[i - block, at : at + stop - start]
                if start < stop:
                    maximum = row_maximum(row)
                    if not maximum <= largest[i]:  # nor if it is not a number
                        factor = exp((largest[i] - maximum) * scale)
                        normalizer[i] *= factor
                        out[i] *= factor
                        largest[i] = maximum
                    normalizer[i] += exponentiate(row, largest[i], scale)
                if dropout.threshold > 0:
                    number = (h * n_queries + i) * n_keys + start  # of the row's first decision
                    for j in range(row.size):
                        row[j] *= keep(dropout, b, number + j)
                _clear_margins(scores[i - block], at, at + row.size)
            # Σ_j ã_ij v_j, but for the normalizer
            _add_by_key(scores, values, block, part, out[block:])
        for i in range(block, end):
            normalizer[i] = one / normalizer[i]
            if largest[i] == lowest:  # of nothing but −∞ there is no softmax
                normalizer[i] = np.nan


@kernel
def _unpack_normalized(out, normalizer, heads, attended):
    """attended [q, H, E] = out · normalizer, of some heads' sums out [heads, q′, E′]."""
    for i in range(attended.shape[0]):
        for h in range(heads[0], heads[1]):
            for d in range(attended.shape[2]):
                attended[i, h, d] = out[h - heads[0], i, d] * normalizer[h, i]


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
    block = _block_of(n_queries, n_keys, 2 * _BLOCK)
    extent = Extent(n_queries, n_keys, n_keys, window, block, 0, n_keys)
    row_length = n_keys + 2 * _MARGIN
    dtype = query.dtype
    scores = np.zeros((extent.block, row_length), dtype)  # A, then ã
    d_scores = np.zeros((extent.block, row_length), dtype)  # dã, then dA
    relatives, relative_t = pack(relative, heads), pack_transposed(relative, heads)
    n_heads, padded = len(relatives), round_up(width, TILE_COLUMNS)
    d_relatives = np.zeros((n_heads, n_keys + TILE_ROWS, relatives.shape[2]), dtype)
    d_query_u = np.empty((extent.block, padded), dtype)
    d_query_v = np.empty((extent.block, padded), dtype)
    for b in range(n_streams):
        query_u, query_v = pack_biased(query[b], u, heads), pack_biased(query[b], v, heads)
        keys, key_t = pack(key[b], heads), pack_transposed(key[b], heads)
        value_t, d_out = pack_transposed(value[b], heads), pack(d_attended[b], heads)
        d_keys = np.zeros((n_heads, n_keys + TILE_ROWS, padded), dtype)
        d_values = np.zeros((n_heads, n_keys + TILE_ROWS, d_out.shape[2]), dtype)
        for n in range(n_heads):
            h = heads[0] + n
            for block in range(0, n_queries, extent.block):
                end = min(block + extent.block, n_queries)
                # A = (q + u)ᵀ k + (q + v)ᵀ r
                _score(query_u[n], query_v[n], key_t[n], relative_t[n], block, extent, scores)
                # dã = ō vᵀ
                _multiply_by_key(d_out[n], value_t[n], block, extent, d_scores, False)
                # ã = μ softmax(A · scale), dA = a (μ dã − ōᵀo) scale
                for i in range(block, end):
                    start, stop = _visible(i, extent)
                    a = scores[i - block, _MARGIN + start : _MARGIN + stop]
                    da = d_scores[i - block, _MARGIN + start : _MARGIN + stop]
                    maximum, factor = largest[b, h, i], normalizer[b, h, i]
                    inner = dtype.type(0)
                    for d in range(value_width):
                        inner += d_out[n, i, d] * attended[b, i, h, d]
                    exponentiate(a, maximum, scale)
                    if dropout.threshold > 0:
                        number = (h * n_queries + i) * n_keys + start
                        for j in range(a.size):
                            kept = keep(dropout, b, number + j)
                            p = a[j] * factor
                            a[j] = p * kept
                            da[j] = p * (da[j] * kept - inner) * scale
                    else:
                        for j in range(a.size):
                            p = a[j] * factor
                            a[j] = p
                            da[j] = p * (da[j] - inner) * scale
                    _clear_margins(scores[i - block], _MARGIN + start, _MARGIN + stop)
                    _clear_margins(d_scores[i - block], _MARGIN + start, _MARGIN + stop)
                # d(q + u) = dA k, d(q + v) = dX r
                d_query_u[:] = 0
                d_query_v[:] = 0
                _add_by_key(d_scores, keys[n], block, extent, d_query_u)
                _add_by_distance(d_scores, relatives[n], block, extent, d_query_v)
                for i in range(block, end):
                    for d in range(width):
                        du, dv = d_query_u[i - block, d], d_query_v[i - block, d]
                        d_query[b, i, h, d] = du + dv
                        d_u[h, d] += du
                        d_v[h, d] += dv
                # dk = dAᵀ (q + u), dv = ãᵀ ō, dr = dXᵀ (q + v)
                _add_to_keys(d_scores, query_u[n], block, extent, d_keys[n])
                _add_to_keys(scores, d_out[n], block, extent, d_values[n])
                _add_to_distances(d_scores, query_v[n], block, extent, d_relatives[n])
        unpack(d_keys, heads, d_key[b])
        unpack(d_values, heads, d_value[b])
    unpack(d_relatives, heads, d_relative)


@kernel
def _block_of(n_queries, n_keys, largest):
    """How many queries are handled together: no more than there are, nor than `largest`."""
    block = largest if n_keys >= _MANY_KEYS else _BLOCK
    return min(block, round_up(n_queries, TILE_ROWS))


@kernel
def _visible(i, extent):
    """The keys start … stop − 1 that query i sees."""
    end = extent.n_keys - (extent.n_queries - 1 - i)
    stop = min(max(extent.first, end), extent.last)
    return min(max(extent.first, end - extent.window), stop), stop


@kernel
def _seen_by_some(block, end, extent):
    """The keys start … stop − 1, each of which one of the queries block … end − 1 sees."""
    start, _ = _visible(block, extent)
    _, stop = _visible(end - 1, extent)
    return start, stop


@kernel
def _first_column(last, extent):
    """The column of the furthest distance that query `last`, or one before it, has."""
    return max(extent.first + extent.n_queries - 1 - last, extent.n_keys - extent.window)


@kernel
def _last_column(first, extent):
    """One behind the column of the nearest distance that query `first`, or one after it, has."""
    return min(extent.last + extent.n_queries - 1 - first, extent.n_keys)


@kernel
def _score(query_u, query_v, key_t, relative_t, block, extent, scores):
    """Put the score of a block's query i for key j into scores[i − block, _MARGIN + j − first].

    What lies beside the keys that a query sees is left to chance.
    """
    if extent.n_distances < extent.n_keys:
        _score_far_positions(query_v, relative_t, block, extent, scores)
    _score_positions(query_v, relative_t, block, extent, scores)
    _multiply_by_key(query_u, key_t, block, extent, scores, True)


@kernel
def _score_positions(query_v, relative_t, block, extent, scores):
    """Put (q_i + v)ᵀ r_δ there, for distances that have a column of their own in r.

    By distance: each query's columns lie one further left than the next's.
    """
    n_queries, n_keys = extent.n_queries, extent.n_keys
    padded, width, row_length = query_v.shape[1], relative_t.shape[1], scores.shape[1]
    end = min(block + extent.block, n_queries)
    shared = n_keys - extent.n_distances  # columns of distances that share one
    start = max(0, _first_column(end - 1, extent) - shared)
    stop = _last_column(block, extent) - shared
    for r in range(start - start % TILE_COLUMNS, stop, TILE_COLUMNS):
        c = shared + r
        for first in range(block, end, TILE_ROWS):
            last = min(first + TILE_ROWS, n_queries) - 1
            if _first_column(last, extent) < c + TILE_COLUMNS and c < _last_column(first, extent):
                j = c - (n_queries - 1 - first)
                multiply_tile(
                    query_v, first * padded, (padded, 1), relative_t, r * width, TILE_COLUMNS,
                    scores, (first - block) * row_length + _MARGIN + j - extent.first,
                    row_length + 1, width, False,
                )  # fmt: skip


@kernel
def _score_far_positions(query_v, relative_t, block, extent, scores):
    """Put (q_i + v)ᵀ r there, with r's first column, for distances that have none of their own."""
    n_queries, width = extent.n_queries, relative_t.shape[1]
    for i in range(block, min(block + extent.block, n_queries)):
        start, stop = _visible(i, extent)
        stop = min(stop, extent.n_keys - extent.n_distances - (n_queries - 1 - i))
        if start < stop:
            score = scores.dtype.type(0)
            for d in range(width):
                score += query_v[i, d] * relative_t[0, d, 0]
            at = _MARGIN + start - extent.first
            scores[i - block, at : at + stop - start] = score


@kernel
def _multiply_by_key(x, y_t, block, extent, cells, add):
    """cells[i − block, _MARGIN + j − first] = x_iᵀ y_j, or that much more, if query i sees key j.

    x [q, D′], a row a query; y_t the keys' rows as `pack_transposed` gives them.
    """
    n_queries = extent.n_queries
    padded, width, row_length = x.shape[1], y_t.shape[1], cells.shape[1]
    end = min(block + extent.block, n_queries)
    low, high = _seen_by_some(block, end, extent)
    for j in range(low - low % TILE_COLUMNS, high, TILE_COLUMNS):
        for first in range(block, end, TILE_ROWS):
            start, stop = _seen_by_some(first, min(first + TILE_ROWS, n_queries), extent)
            if start < j + TILE_COLUMNS and j < stop:
                multiply_tile(
                    x, first * padded, (padded, 1), y_t, j * width, TILE_COLUMNS,
                    cells, (first - block) * row_length + _MARGIN + j - extent.first,
                    row_length, width, add,
                )  # fmt: skip


@kernel
def _add_by_key(cells, y, block, extent, out):
    """out[i − block] += Σ_j cells_ij y_j over the keys j that a block's query i sees.

    y [K, D′]; cells as `_score` lays them out, with `_clear_margins`.
    """
    n_queries = extent.n_queries
    padded, row_length = y.shape[1], cells.shape[1]
    end = min(block + extent.block, n_queries)
    low, high = _seen_by_some(block, end, extent)
    size = _rows_of_a_chunk(padded)
    for chunk in range(low, high, size):
        for first in range(block, end, TILE_ROWS):
            start, stop = _seen_by_some(first, min(first + TILE_ROWS, n_queries), extent)
            j = max(chunk, start)
            for column in range(0, padded, TILE_COLUMNS):
                multiply_tile(
                    cells, (first - block) * row_length + _MARGIN + j - extent.first,
                    (row_length, 1), y, j * padded + column, padded,
                    out, (first - block) * padded + column, padded,
                    min(chunk + size, stop) - j, True,
                )  # fmt: skip


@kernel
def _add_by_distance(cells, y, block, extent, out):
    """out[i − block] += Σ_c cells_i,c−(q−1−i) y_c over the columns c of distances that i has."""
    n_queries, n_keys = extent.n_queries, extent.n_keys
    padded, row_length = y.shape[1], cells.shape[1]
    end = min(block + extent.block, n_queries)
    size = _rows_of_a_chunk(padded)
    for chunk in range(_first_column(end - 1, extent), n_keys, size):
        for first in range(block, end, TILE_ROWS):
            last = min(first + TILE_ROWS, n_queries) - 1
            c = max(chunk, _first_column(last, extent))
            corner = (first - block) * row_length + _MARGIN + c - (n_queries - 1 - first)
            for column in range(0, padded, TILE_COLUMNS):
                multiply_tile(
                    cells, corner, (row_length + 1, 1), y, c * padded + column, padded,
                    out, (first - block) * padded + column, padded,
                    min(chunk + size, n_keys) - c, True,
                )  # fmt: skip


@kernel
def _add_to_keys(cells, x, block, extent, out):
    """out[j] += Σ_i cells_ij x_i over the block's queries i that see key j; x [q, D′]."""
    n_queries, n_keys, window = extent.n_queries, extent.n_keys, extent.window
    padded, row_length, n_memory = x.shape[1], cells.shape[1], n_keys - n_queries
    end = min(block + extent.block, n_queries)
    low, high = _seen_by_some(block, end, extent)
    for j in range(low, high, TILE_ROWS):
        # Of the block's queries, those that see one of a tile's keys.
        i = max(block, j - n_memory)
        n_seeing = min(end, j + TILE_ROWS - 1 - n_memory + window) - i
        for column in range(0, padded, TILE_COLUMNS):
            multiply_tile(
                cells, (i - block) * row_length + _MARGIN + j, (1, row_length),
                x, i * padded + column, padded, out, j * padded + column, padded, n_seeing, True,
            )  # fmt: skip


@kernel
def _add_to_distances(cells, x, block, extent, out):
    """out[c] += Σ_i cells_i,c−(q−1−i) x_i over the block's queries i that have that distance."""
    n_queries, n_keys = extent.n_queries, extent.n_keys
    padded, row_length = x.shape[1], cells.shape[1]
    end = min(block + extent.block, n_queries)
    for c in range(_first_column(end - 1, extent), n_keys, TILE_ROWS):
        # Of the block's queries, those that are late enough to have one of a tile's distances.
        i = max(block, n_queries - c - TILE_ROWS)
        corner = (i - block) * row_length + _MARGIN + c - (n_queries - 1 - i)
        for column in range(0, out.shape[1], TILE_COLUMNS):
            multiply_tile(
                cells, corner, (1, row_length + 1), x, i * padded + column, padded,
                out, c * padded + column, padded, end - i, True,
            )  # fmt: skip


@kernel
def _rows_of_a_chunk(padded):
    """How many rows of so many numbers are met before the next ones; there may be no numbers."""
    return max(1, _CHUNK // max(1, padded))


@kernel
def _clear_margins(row, start, stop):
    """Zeros beside row[start:stop], where other queries of a tile see some keys more."""
    row[start - TILE_ROWS : start] = 0
    row[stop : stop + TILE_ROWS] = 0
