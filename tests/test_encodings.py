"""Attention of the ablation's other encodings against two independent forms of each."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numerical import central_difference, directional_difference
from test_attention import COMPILED, TILE_EDGES, Shape, long_shapes, relative_error, shapes, sites

from npxl import reference
from npxl.layers.attention import (
    AttentionWeights,
    attention_probabilities,
    relative_attention_forward,
)
from npxl.layers.content_attention import (
    ContentWeights,
    content_attention_backward,
    content_attention_forward,
)
from npxl.layers.dropout import dropout_forward
from npxl.layers.positions import sinusoid
from npxl.layers.shaw_attention import (
    ShawWeights,
    shaw_attention_backward,
    shaw_attention_forward,
)

clamps = st.integers(1, 9) | st.sampled_from([15, 16, 17, 99])


both = pytest.mark.parametrize("kind", ["shaw", "content"])


class Problem(NamedTuple):
    context: np.ndarray  # [B, K, d]
    weights: ShawWeights | ContentWeights
    dy: np.ndarray  # [B, q, d]


def problem(shape, clamp_len, dtype=np.float64, kind="shaw"):
    """Inputs, and a random cotangent of the output."""
    draw = np.random.default_rng(shape.seed)
    heads, width = (shape.n_heads, shape.d_head), shape.n_heads * shape.d_head

    def normal(*size, scale=1.0):
        return draw.normal(0, scale, size).astype(dtype)

    weights = ContentWeights(
        *(normal(width, shape.d_model, scale=0.7) for _ in range(3)), normal(shape.d_model, width)
    )
    if kind == "shaw":
        tables = normal(clamp_len + 1, *heads), normal(clamp_len + 1, shape.n_heads)
        weights = ShawWeights(*weights, normal(*heads), *tables)
    return Problem(
        normal(shape.batch_size, shape.n_keys, shape.d_model),
        weights,
        normal(shape.batch_size, shape.n_queries, shape.d_model),
    )


def forward(shape, p):
    options = p.weights, shape.window, shape.dropatt, shape.dropout, *sites(shape)
    if isinstance(p.weights, ShawWeights):
        return shaw_attention_forward(p.context, shape.n_queries, *options)
    return content_attention_forward(p.context, shape.n_queries, shape.n_heads, *options)


def backward(shape, p, cache, *first, grads=None):
    """The gradient of the context, and those of the weights, added to `grads`."""
    if grads is None:
        grads = type(p.weights)(*map(np.zeros_like, p.weights))
    function = shaw_attention_backward
    if isinstance(p.weights, ContentWeights):
        function = content_attention_backward
    return function(p.dy, cache, p.weights, grads, *first), grads


def gradients(shape, p):
    """The gradient of Σ dy · y by the name of what it belongs to."""
    d_context, grads = backward(shape, p, forward(shape, p)[1])
    return {"context": d_context, **grads._asdict()}


def arrays(p):
    return {"context": p.context, **p.weights._asdict()}


def output(shape, p, a):
    """y of probabilities a [B, H, q, K], one query, head and key at a time."""
    weights, (attention_site, output_site) = p.weights, sites(shape)
    a = a * dropout_forward(np.ones(a.shape), shape.dropatt, attention_site)[0]
    y = np.zeros(p.dy.shape)
    for b, h, i, j in np.ndindex(a.shape):
        columns = slice(h * shape.d_head, (h + 1) * shape.d_head)
        value = weights.w_v[columns] @ p.context[b, j]
        y[b, i] += weights.w_o[:, columns] @ (a[b, h, i, j] * value)
    return y * dropout_forward(np.ones(y.shape), shape.dropout, output_site)[0]


def reference_output(shape, p):
    """y by the reference's probabilities."""
    params = {f"layers.0.attention.{name}": w for name, w in p.weights._asdict().items()}
    config = SimpleNamespace(
        n_head=shape.n_heads, d_head=shape.d_head, attn_window=shape.window, attn_type="vaswani"
    )
    if isinstance(p.weights, ShawWeights):
        config.attn_type, config.clamp_len = "shaw", len(p.weights.relative) - 1
    return output(
        shape,
        p,
        reference.attention_probabilities(params, config, 0, p.context, shape.n_queries, ()),
    )


def whole_output(shape, p):
    """y by whole matrices; each cell looks up its row of a table."""
    weights, heads = p.weights, (shape.n_heads, shape.d_head)
    segment = p.context[:, shape.n_memory :]
    q, k, v = (
        (x @ w.T).reshape(*x.shape[:2], *heads)
        for x, w in ((segment, weights.w_q), (p.context, weights.w_k), (p.context, weights.w_v))
    )
    distances = np.arange(shape.n_memory, shape.n_keys)[:, None] - np.arange(shape.n_keys)  # [q, K]
    scores = np.einsum("bihd,bjhd->bhij", q, k)
    if isinstance(weights, ShawWeights):
        clamp_len = len(weights.relative) - 1
        rows = clamp_len - np.clip(distances, 0, clamp_len)
        scores += np.einsum("hd,bjhd->bhj", weights.u, k)[:, :, None]
        scores += np.einsum("bihd,ijhd->bhij", q, weights.relative[rows])
        scores += np.einsum("ijh->hij", weights.relative_bias[rows])
    scores = np.where((distances >= 0) & (distances < shape.window), scores, -np.inf)
    scores /= math.sqrt(shape.d_head)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    a = e / e.sum(-1, keepdims=True)
    attention_site, output_site = sites(shape)
    a = a * dropout_forward(np.ones(a.shape), shape.dropatt, attention_site)[0]
    attended = np.einsum("bhij,bjhd->bihd", a, v).reshape(*p.dy.shape[:2], -1)
    return dropout_forward(attended @ weights.w_o.T, shape.dropout, output_site)[0]


def examples(*cases):
    def decorate(test):
        for shape, clamp_len in cases:
            test = example(shape=shape, clamp_len=clamp_len)(test)
        return test

    return decorate


# One of everything; no memory; a window of one; a table that is longer, as long, shorter than the
# keys; a table of two rows.
edges = examples(
    (Shape(), 1),
    (Shape(n_queries=4, n_heads=2, d_head=3), 3),
    (Shape(n_queries=4, n_memory=3, window=1, batch_size=2), 9),
    (Shape(n_queries=3, n_memory=4, window=3, n_heads=3, dropout=0.4, dropatt=0.4), 2),
    (Shape(n_queries=1, n_memory=5, batch_size=3), 1),
)
tile_edges = examples(*((s, c) for s in TILE_EDGES[-2 if not COMPILED else 0 :] for c in (7, 200)))


@both
@edges
@given(shape=shapes, clamp_len=clamps)
def test_forward_is_the_references(kind, shape, clamp_len):
    p = problem(shape, clamp_len, kind=kind)
    y, _ = forward(shape, p)
    expected = reference_output(shape, p)
    assert y.dtype == expected.dtype
    assert relative_error(y, expected, floor=1e-3) < 1e-12


@both
@edges
@tile_edges
@given(shape=shapes | long_shapes, clamp_len=clamps)
def test_forward_is_that_of_whole_matrices(kind, shape, clamp_len):
    p = problem(shape, clamp_len, kind=kind)
    assert relative_error(forward(shape, p)[0], whole_output(shape, p), floor=1e-3) < 1e-12


@both
@edges
@given(shape=shapes, clamp_len=clamps)
def test_backward_is_the_slope_of_forward(kind, shape, clamp_len):
    p = problem(shape, clamp_len, kind=kind)
    computed = gradients(shape, p)
    overall = max(np.abs(gradient).max() for gradient in computed.values())
    for name, array in arrays(p).items():
        slopes = central_difference(lambda: forward(shape, p)[0], array, p.dy)
        assert relative_error(computed[name], slopes, floor=1e-3 * overall) < 1e-7, name


@both
@tile_edges
@given(shape=long_shapes, clamp_len=clamps)
def test_backward_of_many_queries_is_the_slope_of_forward_in_any_direction(kind, shape, clamp_len):
    p = problem(shape, clamp_len, kind=kind)
    draw = np.random.default_rng(shape.seed + 1)
    computed = gradients(shape, p)
    for name, array in arrays(p).items():
        direction = draw.standard_normal(array.shape)
        slope = directional_difference(lambda: forward(shape, p)[0], array, direction, p.dy)
        size = np.linalg.norm(computed[name]) * np.linalg.norm(direction)
        assert abs(np.vdot(computed[name], direction) - slope) < 1e-7 * max(size, 1e-2), name


@both
@given(shape=shapes | long_shapes, clamp_len=clamps)
def test_backward_adds_to_the_gradients_it_is_given(kind, shape, clamp_len):
    p = problem(shape, clamp_len, kind=kind)
    _, cache = forward(shape, p)
    _, once = backward(shape, p, cache)
    twice = type(once)(*map(np.copy, once))
    backward(shape, p, cache, grads=twice)
    for one, two in zip(once, twice, strict=True):
        np.testing.assert_allclose(two, 2 * one, rtol=1e-13, atol=1e-13 * np.abs(one).max())


@both
@edges
@tile_edges
@given(shape=shapes | long_shapes, clamp_len=clamps)
def test_a_segment_in_pieces_gives_what_it_gives_at_once(kind, shape, clamp_len):
    """The scores know distances only, and memory is read as the segment is."""
    shape = replace(shape, dropout=0.0, dropatt=0.0)  # masks are numbered by the whole
    p = problem(shape, clamp_len, kind=kind)
    y, cache = forward(shape, p)
    whole_context, whole = backward(shape, p, cache)
    cuts = [0, shape.n_queries // 3, shape.n_queries // 2, shape.n_queries]
    d_context, grads = np.zeros_like(p.context), type(whole)(*map(np.zeros_like, p.weights))
    for start, stop in pairwise(cuts):
        if start == stop:
            continue
        n_keys = shape.n_memory + stop
        piece = p._replace(context=p.context[:, :n_keys], dy=p.dy[:, start:stop])
        y_piece, cache = forward(replace(shape, n_queries=stop - start), piece)
        np.testing.assert_allclose(y_piece, y[:, start:stop], rtol=1e-12, atol=1e-12)
        d_context[:, :n_keys] += backward(shape, piece, cache, grads=grads)[0]
    assert relative_error(d_context, whole_context, floor=1.0) < 1e-12
    for in_pieces, at_once in zip(grads, whole, strict=True):
        assert relative_error(in_pieces, at_once, floor=1.0) < 1e-12


@both
@given(shape=shapes | long_shapes, clamp_len=clamps, first=st.integers(0, 80))
def test_first_leaves_out_the_gradient_of_what_comes_before(kind, shape, clamp_len, first):
    p = problem(shape, clamp_len, kind=kind)
    first = min(first, shape.n_memory)
    _, cache = forward(shape, p)
    whole, whole_grads = backward(shape, p, cache)
    tail, tail_grads = backward(shape, p, cache, first)
    assert tail.shape == (shape.batch_size, shape.n_keys - first, shape.d_model)
    assert relative_error(tail, whole[:, first:]) < 1e-13
    for of_tail, of_whole in zip(tail_grads, whole_grads, strict=True):
        np.testing.assert_array_equal(of_tail, of_whole)


@both
@edges
@tile_edges
@given(shape=shapes | long_shapes, clamp_len=clamps)
def test_what_no_query_sees_has_no_gradient_and_no_influence(kind, shape, clamp_len):
    """Exactly: keys, and rows of the table for distances that there are not."""
    p = problem(shape, clamp_len, kind=kind)
    unseen = range(max(0, shape.n_memory - shape.window + 1))
    furthest = min(shape.window, shape.n_keys) - 1  # the largest distance that a query has
    unused = range(max(0, clamp_len - furthest))
    changed = p._replace(
        context=p.context.copy(), weights=type(p.weights)(*map(np.copy, p.weights))
    )
    changed.context[:, unseen] = 1e100
    tables = [name for name in p.weights._fields if name.startswith("relative")]
    for name in tables:
        getattr(changed.weights, name)[unused] = -1e100
    np.testing.assert_array_equal(forward(shape, p)[0], forward(shape, changed)[0])
    before, after = gradients(shape, p), gradients(shape, changed)
    assert not before["context"][:, unseen].any()
    for name in tables:
        assert not before[name][unused].any()
    for name, gradient in before.items():
        np.testing.assert_array_equal(gradient, after[name])


@edges
@given(shape=shapes, clamp_len=clamps)
def test_a_row_that_distances_share_gets_the_sum_of_their_gradients(shape, clamp_len):
    p = problem(shape, clamp_len)
    more = 20  # rows of their own for that many further distances, all equal
    tables = {
        name: np.concatenate([np.repeat(table[:1], more, axis=0), table])
        for name, table in p.weights._asdict().items() if name.startswith("relative")
    }  # fmt: skip
    longer = p._replace(weights=p.weights._replace(**tables))
    np.testing.assert_array_equal(forward(shape, p)[0], forward(shape, longer)[0])
    shared, own = gradients(shape, p), gradients(shape, longer)
    for name, gradient in shared.items():
        if name in tables:
            summed = np.concatenate([own[name][: more + 1].sum(0)[None], own[name][more + 1 :]])
            assert relative_error(gradient, summed, floor=1e-3) < 1e-12
        else:
            np.testing.assert_array_equal(gradient, own[name])


def test_the_papers_scores_are_those_of_a_table():
    """r_δ = W_{k,R} R_δ and b_δ = vᵀ r_δ: what Shaw et al. learn, Dai et al. compute."""
    shape = Shape(batch_size=2, n_heads=2, d_head=3, d_model=4, n_queries=5, n_memory=4)
    p = problem(shape, shape.n_keys - 1)
    draw = np.random.default_rng(1)
    w_r, v = draw.standard_normal((6, 4)), draw.standard_normal((2, 3))
    positions = sinusoid(shape.n_keys, 4)
    relative = (positions @ w_r.T).reshape(-1, 2, 3)
    weights = p.weights._replace(
        relative=relative, relative_bias=np.einsum("chd,hd->ch", relative, v)
    )
    y, _ = forward(shape, p._replace(weights=weights))
    dai = AttentionWeights(weights.w_q, weights.w_k, weights.w_v, w_r, weights.w_o, weights.u, v)
    expected, _ = relative_attention_forward(p.context, 5, positions, dai, 99)
    assert relative_error(y, expected) < 1e-13


def test_masked_probabilities_are_exactly_zero_and_the_rest_sums_to_one():
    shape = Shape(n_queries=5, n_memory=4, window=3, n_heads=2, batch_size=2)
    p = problem(shape, 2)
    u = np.concatenate([p.weights.u, np.zeros((2, 1))], axis=1)
    v = np.zeros_like(u)
    v[:, -1] = 1
    a = attention_probabilities(forward(shape, p)[1].attend, u, v)
    np.testing.assert_allclose(a.sum(-1), 1, rtol=1e-14)
    for i in range(shape.n_queries):
        seen = [shape.sees(i, j) for j in range(shape.n_keys)]
        assert (a[:, :, i, np.logical_not(seen)] == 0).all()
        assert (a[:, :, i, seen] > 0).all()


@both
@tile_edges
@given(shape=shapes | long_shapes, clamp_len=clamps)
def test_float32_stays_float32_and_near_float64(kind, shape, clamp_len):
    p, single = problem(shape, clamp_len, kind=kind), problem(shape, clamp_len, np.float32, kind)
    y, _ = forward(shape, single)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, forward(shape, p)[0], rtol=1e-4, atol=1e-4)
    double = gradients(shape, p)
    for name, gradient in gradients(shape, single).items():
        assert gradient.dtype == np.float32
        assert relative_error(gradient, double[name], floor=1.0) < 1e-4


def test_without_a_site_or_a_rate_nothing_is_dropped():
    shape = Shape(n_queries=5, n_memory=4)
    attention_site, output_site = sites(shape)
    for options in (
        dict(dropatt=0.5, dropout=0.5),
        dict(attention_site=attention_site, output_site=output_site),
    ):
        p = problem(shape, 3)
        y, _ = shaw_attention_forward(p.context, 5, p.weights, 99, **options)
        np.testing.assert_array_equal(y, forward(shape, p)[0])
        p = problem(shape, 3, kind="content")
        y, _ = content_attention_forward(p.context, 5, 1, p.weights, 99, **options)
        np.testing.assert_array_equal(y, forward(shape, p)[0])


@both
def test_the_order_of_keys_matters_to_encodings_of_distances_alone(kind):
    """Content alone knows memory as a set."""
    shape = Shape(batch_size=2, n_heads=2, d_head=3, d_model=4, n_queries=3, n_memory=6)
    p = problem(shape, 8, kind=kind)
    order = [3, 4, 5, 0, 1, 2, 6, 7, 8]
    y, _ = forward(shape, p)
    y_shuffled, _ = forward(shape, p._replace(context=p.context[:, order]))
    difference = np.abs(y_shuffled - y).max()
    assert difference > 1e-2 if kind == "shaw" else difference < 1e-13


@pytest.mark.parametrize("clamp_len", [1, 3, 6])
def test_beyond_the_clamp_all_distances_are_one(clamp_len):
    """Distances differ up to clamp_len, and are the same from there on."""
    shape = Shape(batch_size=2, n_heads=2, d_head=3, d_model=4, n_queries=5, n_memory=4)
    p = problem(shape, clamp_len)
    weights = p.weights._replace(w_k=np.zeros_like(p.weights.w_k))  # leaves terms (b) and (d)
    _, cache = forward(shape, p._replace(weights=weights))
    u = np.zeros((2, 4))
    v = np.eye(4)[[3, 3]]
    a = attention_probabilities(cache.attend, u, v)
    for i in range(shape.n_queries):
        distances = shape.n_memory + i - np.arange(shape.n_keys)
        beyond = a[:, :, i, distances >= clamp_len]
        if beyond.size:
            assert np.ptp(beyond, axis=-1).max() < 1e-15
            nearer = a[:, :, i, distances == clamp_len - 1][..., 0]
            assert (np.abs(nearer - beyond[..., -1]) > 1e-4).all()
