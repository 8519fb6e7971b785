"""The output layer of several clusters against its loop, and what no target may touch."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numerical import assert_eq, central_difference, leading_shapes, read_only, seeds

from npxl import IGNORE, reference
from npxl.layers.adaptive_softmax import (
    SoftmaxCluster,
    adaptive_log_softmax,
    adaptive_softmax_backward,
    adaptive_softmax_forward,
)
from npxl.layers.softmax import OutputWeights, log_softmax, softmax_backward, softmax_forward

dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@st.composite
def forms(draw):
    """Sizes and widths of clusters, and whether they have projections."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    d = draw(st.integers(1, 5))
    widths = [d] * len(sizes)
    projected = draw(st.booleans())
    if projected:
        widths = draw(st.lists(st.integers(1, 5), min_size=len(sizes), max_size=len(sizes)))
    return SimpleNamespace(sizes=sizes, widths=widths, d=d, projected=projected)


def form(sizes, d, widths=None):
    widths, projected = widths or [d] * len(sizes), widths is not None
    return SimpleNamespace(sizes=sizes, widths=widths, d=d, projected=projected)


def draw_clusters(form, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    clusters = []
    for i, (size, width) in enumerate(zip(form.sizes, form.widths, strict=True)):
        outputs = [OutputWeights(normal(size, width), normal(size))]
        if i == 0 and len(form.sizes) > 1:
            outputs.append(
                OutputWeights(normal(len(form.sizes) - 1, width), normal(len(form.sizes) - 1))
            )
        projection = normal(form.d, width) if form.projected else None
        clusters.append(SoftmaxCluster(tuple(outputs), projection))
    return clusters


def draw(form, seed, leading, dtype=np.float64):
    """Clusters, hidden states, targets of which a fifth are to be ignored, and a cotangent."""
    rng = np.random.default_rng([seed, 1])
    hidden = rng.standard_normal((*leading, form.d)).astype(dtype)
    targets = rng.integers(sum(form.sizes), size=leading)
    targets = np.where(rng.random(leading) < 0.2, IGNORE, targets)
    return (
        draw_clusters(form, seed, dtype),
        hidden,
        targets,
        rng.standard_normal(leading).astype(dtype),
    )


def arrays_of(clusters):
    """Every array in them, in one order."""
    found = []
    for cluster in clusters:
        found += [array for output in cluster.outputs for array in output]
        found += [] if cluster.projection is None else [cluster.projection]
    return found


def mapped(function, clusters):
    """Clusters of what `function` makes of each array."""
    return [
        SoftmaxCluster(
            tuple(OutputWeights(*map(function, output)) for output in cluster.outputs),
            None if cluster.projection is None else function(cluster.projection),
        )
        for cluster in clusters
    ]


def gradients(clusters, hidden, targets, dnll):
    """d_hidden and the gradients of the clusters."""
    _, cache = adaptive_softmax_forward(hidden, targets, clusters)
    grads = mapped(np.zeros_like, clusters)
    return adaptive_softmax_backward(dnll, cache, clusters, grads), grads


def naive_log_softmax(clusters, hidden):
    """One hidden state [d], symbol by symbol; tail i is column V_0 + i − 1 of the head."""

    def logits(cluster):
        x = hidden if cluster.projection is None else cluster.projection.T @ hidden
        return np.concatenate([weight @ x + bias for weight, bias in cluster.outputs])

    head = reference.log_softmax(logits(clusters[0]))
    n_first = len(clusters[0].outputs[0].bias)
    log_p = list(head[:n_first])
    for i, tail in enumerate(clusters[1:], start=1):
        for within in reference.log_softmax(logits(tail)):
            log_p.append(head[n_first + i - 1] + within)
    return np.array(log_p)


ONE_OF_EACH = form([1], 1)
SINGLE_TAILS = form([2, 1, 1], 3)
NARROW = form([3, 2, 4], 4, [4, 2, 1])


@pytest.mark.fault("HF #1086", "HF #4461", "HF 4.35.2: order of adaptive losses", "pytorch #37155")
@example(form=ONE_OF_EACH, seed=0, leading=())
@example(form=SINGLE_TAILS, seed=0, leading=(7,))
@example(form=NARROW, seed=0, leading=(3, 5))
@given(form=forms(), seed=seeds, leading=leading_shapes)
def test_forward_equals_the_loop_in_reading_order(form, seed, leading):
    """HF 4.35.2, measured: the right losses at the wrong positions; HF #1086, #4461: shapes."""
    clusters, hidden, targets, _ = draw(form, seed, leading)
    log_p, nll = np.empty((*leading, sum(form.sizes))), np.zeros(leading)
    for at in np.ndindex(leading):
        log_p[at] = naive_log_softmax(clusters, hidden[at])
        if targets[at] != IGNORE:
            nll[at] = -log_p[(*at, targets[at])]
    clusters = mapped(read_only, clusters)
    hidden, targets = read_only(hidden), read_only(targets)
    actual, _ = adaptive_softmax_forward(hidden, targets, clusters)
    assert_eq(actual, nll, rtol=1e-13, atol=1e-14)
    assert_eq(adaptive_log_softmax(hidden, clusters), log_p, rtol=1e-13, atol=1e-14)


@pytest.mark.fault("HF #1086", "HF #4461")
@dtypes
@given(form=forms(), seed=seeds, leading=leading_shapes)
def test_probabilities_sum_to_one_and_are_those_of_the_losses(dtype, form, seed, leading):
    """HF #1086, #4461: equal to −loss entry by entry, whatever the cut-offs."""
    clusters, hidden, *_ = draw(form, seed, leading, dtype)
    log_p = adaptive_log_softmax(hidden, clusters)
    precision = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1, atol=precision)
    for symbol in range(sum(form.sizes)):
        nll, _ = adaptive_softmax_forward(hidden, np.full(leading, symbol), clusters)
        assert_eq(nll, -log_p[..., symbol], rtol=precision, atol=precision)


@pytest.mark.fault("pytorch #37155")
@given(form=forms(), seed=seeds, leading=leading_shapes)
def test_backward_equals_central_differences(form, seed, leading):
    clusters, hidden, targets, dnll = draw(form, seed, leading)
    d_hidden, grads = gradients(
        mapped(read_only, clusters), *map(read_only, (hidden, targets, dnll))
    )

    def nll():
        return adaptive_softmax_forward(hidden, targets, clusters)[0]

    assert_eq(d_hidden, central_difference(nll, hidden, dnll), rtol=1e-8, atol=1e-8)
    for variable, gradient in zip(arrays_of(clusters), arrays_of(grads), strict=True):
        assert_eq(gradient, central_difference(nll, variable, dnll), rtol=1e-8, atol=1e-8)


@given(form=forms(), seed=seeds, leading=leading_shapes)
def test_backward_adds_to_the_gradients(form, seed, leading):
    clusters, hidden, targets, dnll = draw(form, seed, leading)
    d_hidden, fresh = gradients(clusters, hidden, targets, dnll)
    before = draw_clusters(form, seed + 1)
    after = mapped(np.copy, before)
    _, cache = adaptive_softmax_forward(hidden, targets, clusters)
    assert_eq(adaptive_softmax_backward(dnll, cache, clusters, after), d_hidden)
    for a, b, expected in zip(*map(arrays_of, (after, before, fresh)), strict=True):
        assert_eq(a - b, expected, rtol=1e-13, atol=1e-13)


@given(form=forms(), seed=seeds, leading=leading_shapes)
def test_targets_to_ignore_cost_nothing_and_change_nothing(form, seed, leading):
    """Exactly 0, in one cluster as in several; the others are as if they were alone."""
    clusters, hidden, targets, dnll = draw(form, seed, (6, *leading))
    ignored = targets == IGNORE
    nll, _ = adaptive_softmax_forward(hidden, targets, clusters)
    d_hidden, grads = gradients(clusters, hidden, targets, dnll)
    assert (nll[ignored] == 0).all()
    assert (d_hidden[ignored] == 0).all()
    scored = ~ignored
    if scored.any():
        alone, _ = adaptive_softmax_forward(hidden[scored], targets[scored], clusters)
        d_alone, grads_alone = gradients(clusters, hidden[scored], targets[scored], dnll[scored])
        assert_eq(nll[scored], alone, rtol=1e-14, atol=1e-15)
        assert_eq(d_hidden[scored], d_alone, rtol=1e-13, atol=1e-14)
        for a, b in zip(arrays_of(grads), arrays_of(grads_alone), strict=True):
            assert_eq(a, b, rtol=1e-13, atol=1e-14)

    nll, _ = adaptive_softmax_forward(hidden, np.full_like(targets, IGNORE), clusters)
    d_hidden, grads = gradients(clusters, hidden, np.full_like(targets, IGNORE), dnll)
    assert not nll.any()
    assert not d_hidden.any()
    assert not any(gradient.any() for gradient in arrays_of(grads))


@pytest.mark.parametrize("met", [0, 1, 2, 3])
def test_clusters_that_no_target_is_in_are_not_read_and_not_written(met):
    """All tokens in one cluster, at its boundaries, again and again."""
    sizes = [3, 2, 4, 1]
    clusters, hidden, _, dnll = draw(form(sizes, 4, [4, 3, 2, 1]), 0, (2, 5))
    first, last = sum(sizes[:met]), sum(sizes[: met + 1]) - 1
    targets = np.where(np.arange(10).reshape(2, 5) % 3 == 0, first, last)
    expected = adaptive_softmax_forward(hidden, targets, clusters)[0]
    poisoned = [
        cluster
        if i in (0, met)
        else mapped(lambda array: np.full_like(array, np.nan), [cluster])[0]
        for i, cluster in enumerate(clusters)
    ]
    assert_eq(adaptive_softmax_forward(hidden, targets, poisoned)[0], expected)
    d_hidden, grads = gradients(poisoned, hidden, targets, dnll)
    assert np.isfinite(d_hidden).all()
    for i, grad in enumerate(grads):
        if i not in (0, met):
            assert not any(gradient.any() for gradient in arrays_of([grad]))
        else:
            assert all(np.isfinite(gradient).all() for gradient in arrays_of([grad]))


@pytest.mark.fault("HF #678", "HF #690", "HF #848")
@given(seed=seeds, n_symbols=st.integers(1, 6), d=st.integers(1, 5), leading=leading_shapes)
def test_one_cluster_is_the_ordinary_softmax(seed, n_symbols, d, leading):
    """HF #678, #690: no cut-offs; HF #848: a model that is not adaptive."""
    clusters, hidden, targets, dnll = draw(form([n_symbols], d), seed, leading)
    (output,) = clusters[0].outputs
    nll, cache = softmax_forward(hidden, targets, output)
    d_output = mapped(np.zeros_like, clusters)[0].outputs[0]
    d_hidden = softmax_backward(dnll, cache, [output], [d_output])
    assert_eq(adaptive_softmax_forward(hidden, targets, clusters)[0], nll)
    assert_eq(adaptive_log_softmax(hidden, clusters), log_softmax(hidden, output))
    d_adaptive, grads = gradients(clusters, hidden, targets, dnll)
    assert_eq(d_adaptive, d_hidden)
    for actual, expected in zip(arrays_of(grads), d_output, strict=True):
        assert_eq(actual, expected)


@given(seed=seeds, n_first=st.integers(1, 4), n_tails=st.integers(0, 3), leading=leading_shapes)
def test_tails_of_one_symbol_are_the_ordinary_softmax_under_other_names(
    seed, n_first, n_tails, leading
):
    """p(tail) is p(its symbol): W = [W_0; K] P_0ᵀ, b = [b_0; k], and so are the gradients."""
    shape = form([n_first] + [1] * n_tails, 4, [3] + [2] * n_tails)
    clusters, hidden, targets, dnll = draw(shape, seed, leading)
    outputs, projection = clusters[0].outputs, clusters[0].projection
    narrow = np.concatenate([weight for weight, _ in outputs])
    plain = OutputWeights(narrow @ projection.T, np.concatenate([bias for _, bias in outputs]))
    nll, cache = softmax_forward(hidden, targets, plain)
    d_plain = OutputWeights(*map(np.zeros_like, plain))
    d_hidden = softmax_backward(dnll, cache, [plain], [d_plain])

    assert_eq(adaptive_softmax_forward(hidden, targets, clusters)[0], nll, rtol=1e-12, atol=1e-13)
    log_p = adaptive_log_softmax(hidden, clusters)
    assert_eq(log_p, log_softmax(hidden, plain), rtol=1e-12, atol=1e-13)
    d_adaptive, grads = gradients(clusters, hidden, targets, dnll)
    assert_eq(d_adaptive, d_hidden, rtol=1e-12, atol=1e-13)
    d_weight = np.concatenate([weight for weight, _ in grads[0].outputs])
    d_bias = np.concatenate([bias for _, bias in grads[0].outputs])
    assert_eq(d_weight, d_plain.weight @ projection, rtol=1e-12, atol=1e-13)
    assert_eq(d_bias, d_plain.bias, rtol=1e-12, atol=1e-13)
    assert_eq(grads[0].projection, d_plain.weight.T @ narrow, rtol=1e-12, atol=1e-13)
    for tail in grads[1:]:  # what is certain has nothing to learn
        assert_eq(arrays_of([tail])[0], np.zeros((1, 2)), atol=1e-15)


@given(form=forms(), seed=seeds, leading=leading_shapes)
def test_float32_stays_float32(form, seed, leading):
    def run(dtype):
        clusters, hidden, targets, dnll = draw(form, seed, leading, np.float32)
        clusters = mapped(lambda array: array.astype(dtype), clusters)
        hidden, dnll = hidden.astype(dtype), dnll.astype(dtype)
        nll, _ = adaptive_softmax_forward(hidden, targets, clusters)
        d_hidden, grads = gradients(clusters, hidden, targets, dnll)
        return nll, adaptive_log_softmax(hidden, clusters), d_hidden, *arrays_of(grads)

    for actual, expected in zip(run(np.float32), run(np.float64), strict=True):
        assert_eq(actual, expected.astype(np.float32), rtol=1e-5, atol=1e-5)


@dtypes
def test_an_impossible_tail_stays_finite(dtype):
    """The column of a tail may be so unlikely that its probability is nothing in this precision."""
    clusters, hidden, _, _ = draw(NARROW, 0, (4,), dtype)
    clusters[0].outputs[1].bias[:] = [-1e4, 0]
    targets, dnll = np.array([3, 4, 5, 0]), np.ones(4, dtype)
    nll, _ = adaptive_softmax_forward(hidden, targets, clusters)
    assert (nll[:2] > 9e3).all()
    assert np.isfinite(nll).all()
    log_p = adaptive_log_softmax(hidden, clusters)
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1, rtol=1e-5)
    d_hidden, grads = gradients(clusters, hidden, targets, dnll)
    assert all(np.isfinite(array).all() for array in (d_hidden, *arrays_of(grads)))
