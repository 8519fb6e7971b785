"""The relative attention pair against two independent forms of it, and its own symmetries."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numerical import assert_adjoint, central_difference, directional_difference, seeds

from npxl import MaskKey, reference
from npxl.kernels.packing import pack_into, pack_transposed, round_up
from npxl.kernels.vectors import TILE_COLUMNS, TILE_ROWS
from npxl.layers import attention
from npxl.layers.attention import (
    AttentionWeights,
    PackedMemory,
    attend_backward,
    attend_forward,
    attend_packed,
    attention_probabilities,
    relative_attention_backward,
    relative_attention_forward,
)
from npxl.layers.dropout import dropout_cache, dropout_forward
from npxl.layers.positions import sinusoid
from npxl.layers.projections import project_backward, project_forward
from npxl.threads import Threads


@dataclass(frozen=True)
class Shape:
    batch_size: int = 1
    n_heads: int = 1
    d_head: int = 2
    d_model: int = 3
    n_queries: int = 1
    n_memory: int = 0
    window: int = 99
    dropout: float = 0.0
    dropatt: float = 0.0
    seed: int = 0

    @property
    def n_keys(self):
        return self.n_memory + self.n_queries

    def sees(self, i, j):
        """Whether query i may look at key j."""
        return 0 <= self.n_memory + i - j < self.window


shapes = st.builds(
    Shape,
    batch_size=st.integers(1, 3),
    n_heads=st.integers(1, 3),
    d_head=st.integers(1, 5),
    d_model=st.integers(1, 6),
    n_queries=st.integers(1, 6),
    n_memory=st.integers(0, 6),
    window=st.integers(1, 13),
    dropout=st.sampled_from([0.0, 0.4]),
    dropatt=st.sampled_from([0.0, 0.4]),
    seed=seeds,
)

# Kernels compute tiles of R queries and C keys or columns, and keep the cells of 32 queries.
EDGES = [n + more for n in (TILE_ROWS, TILE_COLUMNS, 32, 64) for more in (-1, 0, 1)]


def lengths(smallest, largest):
    """Lengths that a tile ends before, at or behind, among others."""
    at_edges = [n for n in EDGES if smallest <= n <= largest]
    return st.integers(smallest, largest) | st.sampled_from(at_edges)


COMPILED = not numba.config.DISABLE_JIT
# Too large to look at every entry's slope, or for kernels that are not compiled.
long_shapes = st.builds(
    Shape,
    batch_size=st.integers(1, 2),
    n_heads=st.integers(1, 2),
    d_head=lengths(1, 33),
    d_model=st.integers(1, 6),
    n_queries=lengths(1, 70),
    n_memory=lengths(0, 70),
    window=lengths(1, 141),
    dropout=st.sampled_from([0.0, 0.4]),
    dropatt=st.sampled_from([0.0, 0.4]),
    seed=seeds,
) if COMPILED else shapes  # fmt: skip


class Problem(NamedTuple):
    context: np.ndarray  # [B, K, d]
    positions: np.ndarray  # [K, d]
    weights: AttentionWeights
    dy: np.ndarray  # [B, q, d]


def problem(shape, dtype=np.float64):
    """Inputs, and a random cotangent of the output."""
    draw = np.random.default_rng(shape.seed)
    wide, narrow = (shape.n_heads * shape.d_head, shape.d_model), (shape.n_heads, shape.d_head)

    def normal(*size, scale=1.0):
        return draw.normal(0, scale, size).astype(dtype)

    weights = AttentionWeights(
        *(normal(*wide, scale=0.7) for _ in range(4)), normal(*wide[::-1]),
        normal(*narrow), normal(*narrow),
    )  # fmt: skip
    return Problem(
        normal(shape.batch_size, shape.n_keys, shape.d_model),
        normal(shape.n_keys, shape.d_model),
        weights,
        normal(shape.batch_size, shape.n_queries, shape.d_model),
    )


def sites(shape):
    key = MaskKey(seed=7)
    return key.site("attention_probabilities"), key.site("attention_output")


def forward(shape, p):
    return relative_attention_forward(
        p.context, shape.n_queries, p.positions, p.weights, shape.window,
        shape.dropatt, shape.dropout, *sites(shape),
    )  # fmt: skip


def backward(shape, p, cache, *first):
    """The gradient of the context, and those of the weights."""
    grads = AttentionWeights(*map(np.zeros_like, p.weights))
    d_context = relative_attention_backward(p.dy, cache, p.weights, grads, *first)
    return d_context, grads


def gradients(shape, p):
    """The gradient of Σ dy · y by the name of what it belongs to."""
    d_context, grads = backward(shape, p, forward(shape, p)[1])
    return {"context": d_context, **grads._asdict()}


def probabilities(shape, p):
    """a [B, H, q, K], before dropout."""
    return attention_probabilities(forward(shape, p)[1].attend, p.weights.u, p.weights.v)


def reference_output(shape, p):
    """y by the reference's probabilities and a loop over one query, head and key at a time."""
    weights = p.weights
    params = {f"layers.0.attention.{name}": w for name, w in weights._asdict().items()}
    config = SimpleNamespace(
        n_head=shape.n_heads,
        d_head=shape.d_head,
        attn_window=shape.window,
        untie_r=True,
        attn_type="dai",
    )
    r = p.positions[::-1]  # r[distance]
    a = reference.attention_probabilities(params, config, 0, p.context, shape.n_queries, r)
    attention_site, output_site = sites(shape)
    a = a * dropout_forward(np.ones(a.shape), shape.dropatt, attention_site)[0]
    y = np.zeros(p.dy.shape)
    for b, h, i, j in np.ndindex(a.shape):
        columns = slice(h * shape.d_head, (h + 1) * shape.d_head)
        value = weights.w_v[columns] @ p.context[b, j]
        y[b, i] += weights.w_o[:, columns] @ (a[b, h, i, j] * value)
    return y * dropout_forward(np.ones(y.shape), shape.dropout, output_site)[0]


def appendix_b_shift(x):
    """The paper's trick: pad a column, read the rows with another width, drop what is in front."""
    *batch, n_queries, n_keys = x.shape
    padded = np.concatenate([np.zeros((*batch, n_queries, 1)), x], axis=-1)
    return padded.reshape(*batch, n_keys + 1, n_queries)[..., 1:, :].reshape(x.shape)


def xlnet_shift(x):
    """XLNet's: R has one row more in front and some of later keys behind; drop the first row."""
    *batch, n_queries, n_keys = x.shape
    nothing = [(0, 0)] * (len(batch) + 1)
    wider = np.pad(x, [*nothing, (1, n_queries - 1)], constant_values=7.0)
    rows = wider.reshape(*batch, n_keys + n_queries, n_queries)[..., 1:, :]
    return rows.reshape(*batch, n_queries, n_keys + n_queries - 1)[..., :n_keys]


def appendix_b_probabilities(shape, p, shift=appendix_b_shift):
    """a [B, H, q, K] from whole matrices, the shift of appendix B and a mask of −∞."""
    weights, heads = p.weights, (shape.n_heads, shape.d_head)
    segment = p.context[:, shape.n_memory :]
    q = (segment @ weights.w_q.T).reshape(*segment.shape[:2], *heads)
    k = (p.context @ weights.w_k.T).reshape(*p.context.shape[:2], *heads)
    k_r = (p.positions @ weights.w_r.T).reshape(-1, *heads)
    content = (
        np.einsum("bihd,bjhd->bhij", q, k) + np.einsum("hd,bjhd->bhj", weights.u, k)[:, :, None]
    )
    position = np.einsum("bihd,jhd->bhij", q + weights.v, k_r)
    scores = (content + shift(position)) / math.sqrt(shape.d_head)
    seen = [[shape.sees(i, j) for j in range(shape.n_keys)] for i in range(shape.n_queries)]
    scores = np.where(seen, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def appendix_b_output(shape, p):
    """y by those, in whole matrices."""
    weights, heads = p.weights, (shape.n_heads, shape.d_head)
    attention_site, output_site = sites(shape)
    a = appendix_b_probabilities(shape, p)
    a = a * dropout_forward(np.ones(a.shape), shape.dropatt, attention_site)[0]
    value = (p.context @ weights.w_v.T).reshape(*p.context.shape[:2], *heads)
    attended = np.einsum("bhij,bjhd->bihd", a, value).reshape(*p.dy.shape[:2], -1)
    return dropout_forward(attended @ weights.w_o.T, shape.dropout, output_site)[0]


def relative_error(actual, expected, floor=0.0):
    """The largest difference, relative to the largest expected entry."""
    assert actual.shape == expected.shape
    if not actual.size:
        return 0.0
    return np.abs(actual - expected).max() / max(np.abs(expected).max(), floor, 1e-300)


def examples(*shapes):
    def decorate(test):
        for shape in shapes:
            test = example(shape=shape)(test)
        return test

    return decorate


# One of everything; no memory; a window of one; a window wider than the keys.
edges = examples(
    Shape(),
    Shape(n_queries=4, n_heads=2, d_head=3),
    Shape(n_queries=4, n_memory=3, window=1, batch_size=2),
    Shape(n_queries=3, n_memory=4, window=3, n_heads=3, dropout=0.4, dropatt=0.4),
    Shape(n_queries=1, n_memory=5, batch_size=3),
)
# The last query alone in its block, in its tile, or at the end of both; windows that begin within a
# tile, that reach from one block into the one before, and that are narrower than a tile; heads of
# whole tiles and of one column more.
TILE_EDGES = (
    Shape(n_queries=33, n_memory=32, window=33, d_head=TILE_COLUMNS, batch_size=2, dropatt=0.4),
    Shape(n_queries=64, n_memory=64, window=64, d_head=TILE_COLUMNS + 1, n_heads=2, dropout=0.4),
    Shape(n_queries=70, n_memory=70, d_head=20, n_heads=2, dropatt=0.4),
    Shape(n_queries=65, n_memory=0, window=18, d_head=32),
    Shape(n_queries=37, n_memory=27, window=3, d_head=1, batch_size=2),
    Shape(n_queries=35, n_memory=5, window=1, d_head=TILE_COLUMNS - 1),
    Shape(n_queries=1, n_memory=139, window=100, d_head=33, n_heads=2, batch_size=2),
)
tile_edges = examples(*(TILE_EDGES if COMPILED else TILE_EDGES[-2:]))


@edges
@given(shape=shapes)
def test_forward_is_the_references(shape):
    p = problem(shape)
    y, _ = forward(shape, p)
    expected = reference_output(shape, p)
    assert y.dtype == expected.dtype
    assert relative_error(y, expected, floor=1e-3) < 1e-12


@pytest.mark.fault("zihangdai/xlnet #97")
@edges
@tile_edges
@given(shape=shapes | long_shapes)
def test_forward_is_that_of_appendix_b(shape):
    p = problem(shape)
    a, a_b = probabilities(shape, p), appendix_b_probabilities(shape, p)
    assert a.shape == a_b.shape
    np.testing.assert_allclose(a, a_b, rtol=0, atol=1e-13)
    assert relative_error(forward(shape, p)[0], appendix_b_output(shape, p), floor=1e-3) < 1e-12


@pytest.mark.fault("zihangdai/xlnet #97")
@edges
@given(shape=shapes | long_shapes)
def test_the_shift_of_xlnet_gives_the_same(shape):
    p = problem(shape)
    a_x = appendix_b_probabilities(shape, p, xlnet_shift)
    np.testing.assert_allclose(probabilities(shape, p), a_x, rtol=0, atol=1e-13)


@edges
@given(shape=shapes)
def test_backward_is_the_slope_of_forward(shape):
    p = problem(shape)
    computed = gradients(shape, p)
    overall = max(np.abs(gradient).max() for gradient in computed.values())

    for name, array in {"context": p.context, **p.weights._asdict()}.items():
        slopes = central_difference(lambda: forward(shape, p)[0], array, p.dy)
        assert relative_error(computed[name], slopes, floor=1e-3 * overall) < 1e-7, name


@tile_edges
@given(shape=long_shapes)
def test_backward_of_many_queries_is_the_slope_of_forward_in_any_direction(shape):
    p = problem(shape)
    draw = np.random.default_rng(shape.seed + 1)
    computed = gradients(shape, p)
    for name, array in {"context": p.context, **p.weights._asdict()}.items():
        direction = draw.standard_normal(array.shape)
        slope = directional_difference(lambda: forward(shape, p)[0], array, direction, p.dy)
        size = np.linalg.norm(computed[name]) * np.linalg.norm(direction)
        assert abs(np.vdot(computed[name], direction) - slope) < 1e-7 * max(size, 1e-2), name


@given(shape=shapes | long_shapes)
def test_backward_adds_to_the_gradients_it_is_given(shape):
    p = problem(shape)
    _, cache = forward(shape, p)
    _, once = backward(shape, p, cache)
    twice = AttentionWeights(*map(np.copy, once))
    relative_attention_backward(p.dy, cache, p.weights, twice)
    for one, two in zip(once, twice, strict=True):
        np.testing.assert_allclose(two, 2 * one, rtol=1e-13, atol=1e-13 * np.abs(one).max())


@edges
@tile_edges
@given(shape=shapes | long_shapes)
def test_a_segment_in_pieces_gives_what_it_gives_at_once(shape):
    """Wherever it is cut: tiles and blocks of queries begin elsewhere, and see other keys."""
    shape = replace(shape, dropout=0.0, dropatt=0.0)  # masks are numbered by the whole
    p = problem(shape)
    y, cache = forward(shape, p)
    whole_context, whole = backward(shape, p, cache)
    cuts = [0, shape.n_queries // 3, shape.n_queries // 2, shape.n_queries]
    d_context, grads = np.zeros_like(p.context), AttentionWeights(*map(np.zeros_like, p.weights))
    for start, stop in pairwise(cuts):
        if start == stop:
            continue
        n_keys = shape.n_memory + stop
        piece = p._replace(
            context=p.context[:, :n_keys],
            positions=p.positions[shape.n_keys - n_keys :],
            dy=p.dy[:, start:stop],
        )
        y_piece, cache = forward(replace(shape, n_queries=stop - start), piece)
        np.testing.assert_allclose(y_piece, y[:, start:stop], rtol=1e-12, atol=1e-12)
        d_context[:, :n_keys] += relative_attention_backward(piece.dy, cache, p.weights, grads)
    assert relative_error(d_context, whole_context, floor=1.0) < 1e-12
    for in_pieces, at_once in zip(grads, whole, strict=True):
        assert relative_error(in_pieces, at_once, floor=1.0) < 1e-12


@given(shape=shapes | long_shapes, first=st.integers(0, 80))
def test_first_leaves_out_the_gradient_of_what_comes_before(shape, first):
    p = problem(shape)
    first = min(first, shape.n_memory)
    _, cache = forward(shape, p)
    whole, whole_grads = backward(shape, p, cache)
    tail, tail_grads = backward(shape, p, cache, first)
    assert tail.shape == (shape.batch_size, shape.n_keys - first, shape.d_model)
    assert relative_error(tail, whole[:, first:]) < 1e-13
    for of_tail, of_whole in zip(tail_grads, whole_grads, strict=True):
        np.testing.assert_array_equal(of_tail, of_whole)


@edges
@given(shape=shapes)
def test_projections_are_linear_in_all_of_the_context(shape):
    p = problem(shape)
    draw = np.random.default_rng(shape.seed + 1)
    projected = project_forward(p.context, shape.n_queries, p.weights, shape.n_heads)
    cotangents = [draw.standard_normal(x.shape) for x in projected]
    grads = AttentionWeights(*map(np.zeros_like, p.weights))
    d_context = project_backward(*cotangents, p.context, p.weights, grads)
    y, dy = (np.concatenate([x.ravel() for x in each]) for each in (projected, cotangents))
    assert_adjoint(y, dy, p.context, d_context)


@pytest.mark.fault("KY #138", "KY #8")
@edges
@tile_edges
@given(shape=shapes | long_shapes)
def test_what_no_query_sees_has_no_gradient_and_no_influence(shape):
    # Exactly: not one bit of y and of the gradients changes, however large the unseen numbers are.
    p = problem(shape)
    queries, keys = range(shape.n_queries), range(shape.n_keys)
    unseen = [j for j in keys if not any(shape.sees(i, j) for i in queries)]
    far = max(0, shape.n_keys - shape.window)  # rows of R for distances beyond every window
    context, positions = p.context.copy(), p.positions.copy()
    context[:, unseen] = 1e100
    positions[:far] = -1e100
    changed = p._replace(context=context, positions=positions)
    np.testing.assert_array_equal(forward(shape, p)[0], forward(shape, changed)[0])
    before, after = gradients(shape, p), gradients(shape, changed)
    assert not before["context"][:, unseen].any()
    for name, gradient in before.items():
        np.testing.assert_array_equal(gradient, after[name])


@pytest.mark.fault(
    "KY #138", "KY #8", "espnet #2684", "espnet #2917", "ZhengkunTian/OpenTransformer #25"
)
@tile_edges
@given(shape=shapes | long_shapes)
def test_a_query_neither_reads_nor_changes_what_it_does_not_see(shape):
    p = problem(shape)
    y, _ = forward(shape, p)
    for i in {0, shape.n_queries // 2, shape.n_queries - 1, shape.seed % shape.n_queries}:
        unseen = [j for j in range(shape.n_keys) if not shape.sees(i, j)]
        context = p.context.copy()
        context[:, unseen] = 1e100
        y_changed, _ = forward(shape, p._replace(context=context))
        np.testing.assert_array_equal(y_changed[:, i], y[:, i])
        only_i = np.zeros_like(p.dy)
        only_i[:, i] = p.dy[:, i]
        assert not gradients(shape, p._replace(dy=only_i))["context"][:, unseen].any()


@pytest.mark.fault("KY #104", "KY #86")
@tile_edges
@given(shape=shapes | long_shapes)
def test_masked_probabilities_are_exactly_zero_and_the_rest_sums_to_one(shape):
    a = probabilities(shape, problem(shape))
    for i in range(shape.n_queries):
        seen = [shape.sees(i, j) for j in range(shape.n_keys)]
        assert (a[:, :, i, np.logical_not(seen)] == 0).all()
        assert (a[:, :, i, seen] > 0).all()
    np.testing.assert_allclose(a.sum(-1), 1, rtol=1e-13)


@given(shape=shapes | long_shapes)
def test_attention_is_dropped_by_the_decisions_of_the_whole_array(shape):
    """Cell (h, i, j) takes decision (h · q + i) · K + j of its stream, whatever tile it is in."""
    p, site = problem(shape), sites(shape)[0]
    attend = forward(shape, p)[1].attend
    units = np.eye(shape.n_keys)[None, :, None]
    units = np.broadcast_to(units, (*attend.key.shape[:3], shape.n_keys))
    kept, _ = attend_forward(
        attend.query, attend.key, units, attend.relative, p.weights.u, p.weights.v, shape.window,
        dropout_cache(0.4, site),
    )  # fmt: skip
    a = probabilities(shape, p)
    expected = a * dropout_forward(np.ones(a.shape), 0.4, site)[0]
    np.testing.assert_allclose(kept.transpose(0, 2, 1, 3), expected, rtol=1e-13, atol=1e-15)


@given(shape=shapes | long_shapes, scale=st.floats(0.1, 2.0))
def test_values_are_weighted_by_the_probabilities_whatever_the_scale(shape, scale):
    p = problem(shape)
    query, key, value, relative, *_ = forward(shape, p)[1].attend
    u, v = p.weights.u, p.weights.v
    attended, cache = attend_forward(query, key, value, relative, u, v, shape.window, scale=scale)
    a = attention_probabilities(cache, u, v)
    expected = np.einsum("bhij,bjhd->bihd", a, value)
    np.testing.assert_allclose(attended, expected, rtol=1e-12, atol=1e-12)


@edges
@tile_edges
@given(shape=shapes | long_shapes)
def test_what_is_packed_already_is_attended_to_alike(shape):
    """Some heads at a time, and where keys before the first that counts are there as well."""
    p = problem(shape)
    query, key, value, relative, *_ = forward(shape, p)[1].attend
    u, v, window = p.weights.u, p.weights.v, shape.window
    every, room = (0, shape.n_heads), round_up(shape.n_keys, TILE_COLUMNS)
    values = np.zeros((len(value), shape.n_heads, room, round_up(shape.d_head, TILE_COLUMNS)))
    for of_stream, rows in zip(values, value, strict=True):
        pack_into(of_stream, 0, 0, rows, every)
    key_t = np.stack([pack_transposed(rows, every) for rows in key])
    memory = PackedMemory(key_t, values, pack_transposed(relative, every), shape.n_keys)
    start, half = shape.n_memory // 2, shape.n_heads // 2
    seen = (np.ascontiguousarray(x[:, start:]) for x in (key, value))
    expected, _ = attend_forward(query, *seen, relative[start:], u, v, window)
    attended = np.full_like(query, np.nan)
    for heads in (range(half, shape.n_heads), range(half)):
        assert np.isnan(attended[:, :, :half]).all()
        attend_packed(query, memory, (start, shape.n_keys), p.weights, window, heads, attended)
    np.testing.assert_allclose(attended, expected, rtol=1e-12, atol=1e-12)


def test_what_the_work_is_worth_is_said_in_multiplications(monkeypatch):
    costs = []

    def alone(task, n, cost):
        costs.append((n, cost))
        task(range(n))

    monkeypatch.setattr(attention, "spread", alone)
    shape = Shape(batch_size=2, n_heads=3, d_head=5, n_queries=4, n_memory=3)
    gradients(shape, problem(shape))
    product = 2 * 3 * 4 * 7 * 5  # B · H · q · K · d_head, for each head's product of matrices
    # (q + u) kᵀ, (q + v) rᵀ and ã v; then the first two again, and both factors' gradients of each.
    assert costs == [(3, 3 * product), (3, 8 * product)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dropatt", [0.0, 0.4])
def test_any_number_of_threads_gives_the_same_bits(dtype, dropatt):
    shape = Shape(n_queries=37, n_memory=30, n_heads=5, d_head=7, d_model=9, batch_size=2)
    p = problem(replace(shape, window=40), dtype)
    cache = forward(shape, p)[1].attend
    arrays = cache.query, cache.key, cache.value, cache.relative, p.weights.u, p.weights.v
    dropout = dropout_cache(dropatt, sites(shape)[0])
    d_attended = np.random.default_rng(1).standard_normal(cache.attended.shape).astype(dtype)

    def everything():
        attended, cache = attend_forward(*arrays, 40, dropout)
        d_u, d_v = np.ones_like(p.weights.u), np.ones_like(p.weights.v)
        gradients = attend_backward(d_attended, cache, *arrays[4:], d_u, d_v)
        return attended, cache.largest, cache.normalizer, *gradients, d_u, d_v

    alone = everything()
    for n_threads in (1, 2, 3, 8):
        with Threads(n_threads, 1) as threads:
            (shared,) = threads.run([everything])
        for ours, expected in zip(shared, alone, strict=True):
            np.testing.assert_array_equal(ours, expected)


LONG = Shape(batch_size=2, n_heads=2, d_head=3, d_model=4, n_queries=5, n_memory=4)


def log_ratios(shape, p):
    """log a_ij − log a_i,j+1 [B, H, q, K−1]: differences of scores; NaN where unseen."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(probabilities(shape, p))
        differences = logs[..., :-1] - logs[..., 1:]
    return np.where(np.isfinite(differences), differences, np.nan)


def without(weights, *names):
    return weights._replace(**{name: np.zeros_like(getattr(weights, name)) for name in names})


def test_the_global_content_term_depends_on_the_key_alone():
    p = problem(LONG)
    ratios = log_ratios(LONG, p._replace(weights=without(p.weights, "w_q", "v")))
    column_range = np.nanmax(ratios, axis=2) - np.nanmin(ratios, axis=2)
    assert column_range.max() < 1e-13
    assert np.nanstd(ratios) > 0.1


def test_the_global_position_term_depends_on_the_distance_alone():
    p = problem(LONG)
    ratios = log_ratios(LONG, p._replace(weights=without(p.weights, "w_q", "w_k")))
    for offset in range(-LONG.n_queries + 2, LONG.n_memory):
        diagonal = np.diagonal(ratios, offset, axis1=2, axis2=3)
        assert np.ptp(diagonal, axis=-1).max() < 1e-13
    assert np.nanstd(ratios) > 0.1


@given(shape=shapes | long_shapes, more=st.integers(1, 20))
def test_absolute_positions_do_not_matter(shape, more):
    # The same keys further along in a longer text: scores know distances only.
    window = min(shape.window, shape.n_memory + 1)  # full for every query, here and there
    shape = replace(shape, window=window, dropatt=0.0)
    longer = replace(shape, n_memory=shape.n_memory + more)
    p = problem(shape)
    draw = np.random.default_rng(shape.seed + 1)
    before = draw.standard_normal((shape.batch_size, more, shape.d_model))
    further = draw.standard_normal((more, shape.d_model))
    moved = p._replace(
        context=np.concatenate([before, p.context], axis=1),
        positions=np.concatenate([further, p.positions]),
    )
    y, _ = forward(longer, moved)
    np.testing.assert_allclose(y, forward(shape, p)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clamp_len", [1, 3, 6])
def test_beyond_the_clamp_all_distances_are_one(clamp_len):
    p = problem(LONG)
    positions = sinusoid(LONG.n_keys, LONG.d_model, clamp_len)
    weights = without(p.weights, "w_k")  # leaves terms (b) and (d)
    a = probabilities(LONG, p._replace(positions=positions, weights=weights))
    for i in range(LONG.n_queries):
        distances = LONG.n_memory + i - np.arange(LONG.n_keys)
        beyond = a[:, :, i, distances >= clamp_len]
        if beyond.size:
            assert np.ptp(beyond, axis=-1).max() < 1e-15
            nearer = a[:, :, i, distances == clamp_len - 1][..., 0]
            assert (np.abs(nearer - beyond[..., -1]) > 1e-4).all()


def test_clamping_at_the_furthest_distance_changes_nothing():
    p = problem(LONG)
    outputs = [
        forward(LONG, p._replace(positions=sinusoid(LONG.n_keys, LONG.d_model, clamp_len)))[0]
        for clamp_len in (None, LONG.n_keys - 1, LONG.n_keys, 100)
    ]
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])


@pytest.mark.fault("KY #111")
def test_the_order_of_the_positions_matters():
    p = problem(LONG)
    y, _ = forward(LONG, p)
    reversed_y, _ = forward(LONG, p._replace(positions=p.positions[::-1]))
    assert relative_error(y, reference_output(LONG, p)) < 1e-13
    assert relative_error(reversed_y, reference_output(LONG, p)) > 1e-2


@tile_edges
@given(shape=shapes | long_shapes)
def test_float32_stays_float32_and_near_float64(shape):
    p, single = problem(shape), problem(shape, np.float32)
    y, _ = forward(shape, single)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, forward(shape, p)[0], rtol=1e-4, atol=1e-4)
    double = gradients(shape, p)
    for name, gradient in gradients(shape, single).items():
        assert gradient.dtype == np.float32
        assert relative_error(gradient, double[name], floor=1.0) < 1e-4


def test_without_a_site_or_a_rate_nothing_is_dropped():
    p = problem(LONG)
    attention_site, output_site = sites(LONG)
    for options in (
        dict(dropatt=0.5, dropout=0.5),
        dict(attention_site=attention_site, output_site=output_site),
    ):
        y, _ = relative_attention_forward(
            p.context, LONG.n_queries, p.positions, p.weights, 99, **options
        )
        np.testing.assert_array_equal(y, forward(LONG, p)[0])


def test_very_large_scores_do_not_overflow():
    p = problem(LONG)
    weights = p.weights._replace(u=p.weights.u * 1e4)
    a = probabilities(LONG, p._replace(weights=weights))
    np.testing.assert_allclose(a.sum(-1), 1, rtol=1e-14)
    assert all(np.isfinite(g).all() for g in gradients(LONG, p._replace(weights=weights)).values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_kept_has_the_precision_of_the_queries(dtype):
    """Else kernels would compute in another one, more slowly."""
    draw = np.random.default_rng(5)
    query, key, value = (draw.standard_normal((2, 3, 2, 4)).astype(dtype) for _ in range(3))
    relative, u, v = (draw.standard_normal(n).astype(dtype) for n in ((3, 2, 4), (2, 4), (2, 4)))
    attended, cache = attend_forward(query, key, value, relative, u, v, 3, None)
    kept = [each for each in cache if isinstance(each, np.ndarray)]
    assert len(kept) >= 6
    assert {each.dtype for each in (attended, *kept)} == {np.dtype(dtype)}
