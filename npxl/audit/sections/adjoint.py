"""Adjoint identities ⟨Ax, y⟩ = ⟨x, Aᵀy⟩: each linear piece against its own backward pass.

The scores of attention are linear in queries, keys, distances, u and v, and logits in hidden states
and weights, but neither is returned: they are the logarithms of probabilities, up to a number a
row, and are paired with what sums to 0 along a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Progress, Result, Subject
from npxl.audit.sections.adjoint_lstm import steps_of_lstm
from npxl.audit.sections.identity import TOLERANCE, identity
from npxl.config import LanguageModelConfig, LSTMConfig, ModelConfig
from npxl.layers.adaptive_softmax import (
    SoftmaxCluster,
    adaptive_log_softmax,
    adaptive_softmax_backward,
    adaptive_softmax_forward,
)
from npxl.layers.attention import attend_backward, attend_forward
from npxl.layers.clusters import cluster_members
from npxl.layers.content_attention import ContentWeights
from npxl.layers.dropout import MaskKey, dropout_backward, dropout_cache, dropout_forward
from npxl.layers.embedding import EmbeddingCluster, embedding_backward, embedding_forward
from npxl.layers.feed_forward import (
    FeedForwardWeights,
    feed_forward_backward,
    feed_forward_forward,
)
from npxl.layers.layer_norm import layer_norm_backward, layer_norm_forward
from npxl.layers.linear import linear_backward, linear_forward
from npxl.layers.positions import learned_positions_backward, learned_positions_forward
from npxl.layers.projections import (
    output_backward,
    output_forward,
    project_backward,
    project_forward,
)
from npxl.layers.softmax import OutputWeights

Array = NDArray[Any]

_DROPOUT = 0.3
_BATCH_SIZE, _N_QUERIES, _N_MEMORY = 2, 40, 20  # more queries than a block of the kernel has


def _run(subject: Subject, progress: Progress) -> Iterator[Result]:
    config, draw = subject.small, subject.draw("structure/adjoint")
    site = MaskKey(subject.seed).site("adjoint")
    yield from _linear(config, draw)
    yield from _embedding(subject, draw)
    yield from _LAYERS[config.architecture](config, draw, site)
    yield from _logits(subject, draw)


def _of_attention(config: ModelConfig, draw: np.random.Generator, site: Any) -> Iterator[Result]:
    """The pieces of a decoder's layer."""
    if config.learns_positions:
        table = draw.standard_normal((config.n_learned, 3))
        d_rows, d_table = draw.standard_normal((config.n_learned + 4, 3)), np.zeros_like(table)
        rows = learned_positions_forward(table, len(d_rows))
        learned_positions_backward(d_rows, d_table)
        yield identity("rows of learned positions", rows, d_rows, table, d_table)
    yield from _projections(config, draw)
    yield from _scores(config, draw)
    yield from _values(config, draw, site)
    yield from _output(config, draw, site)
    yield from _dropout(config, draw, site)
    yield from _layer_norm(config, draw)
    yield from _feed_forward(config, draw, site)


def _of_lstm(config: LSTMConfig, draw: np.random.Generator, site: Any) -> Iterator[Result]:
    """The pieces of a recurrent layer, and what is above it."""
    yield from steps_of_lstm(config, draw)
    yield from _dropout(config, draw, site)


_LAYERS: Mapping[str, Callable[[Any, np.random.Generator, Any], Iterable[Result]]] = {
    "transformer_xl": _of_attention,
    "lstm": _of_lstm,
}


def _linear(config: LanguageModelConfig, draw: np.random.Generator) -> Iterator[Result]:
    x = draw.standard_normal((3, 5, config.d_model))
    weight, bias = draw.standard_normal((7, config.d_model)), draw.standard_normal(7)
    dy, d_weight, d_bias = draw.standard_normal((3, 5, 7)), np.zeros_like(weight), np.zeros(7)
    dx = linear_backward(dy, x, weight, d_weight, d_bias)
    y = linear_forward(x, weight)
    yield identity("linear map of x", y, dy, x, dx)
    yield identity("linear map of W", y, dy, weight, d_weight)
    yield identity("linear map of b", linear_forward(x, weight, bias) - y, dy, bias, d_bias)


def _embedding(subject: Subject, draw: np.random.Generator) -> Iterator[Result]:
    """Gather and scatter-add, with every symbol twice or more."""
    config = subject.small
    symbols = np.repeat(np.arange(config.vocab_size), 2)
    tokens = draw.permutation(np.append(symbols, [0, 0])).reshape(2, -1)
    model = subject.model()
    clusters = model.embedding(model.params)
    dy = draw.standard_normal((*tokens.shape, config.d_model))
    for i in range(len(clusters)):
        only = [  # linear in the table alone, with the tables of other clusters zero
            EmbeddingCluster(np.where(n == i, table, 0.0), projection)
            for n, (table, projection) in enumerate(clusters)
        ]
        grads = [EmbeddingCluster(*(_zeros(part) for part in cluster)) for cluster in only]
        embedding_backward(dy, tokens, only, grads)
        y = embedding_forward(tokens, only)
        table, projection = only[i]
        yield identity(f"embedding of cluster {i}", y, dy, table, grads[i].table)
        if projection is not None:
            name = f"projection of cluster {i}'s embedding"
            yield identity(name, y, dy, projection, grads[i].projection)


def _projections(config: ModelConfig, draw: np.random.Generator) -> Iterator[Result]:
    """Queries of the segment, keys and values of memory and segment."""
    width = config.n_head * config.d_head
    q, m = 4, 3
    weights, grads = (
        ContentWeights(*(make(shape) for shape in [(width, config.d_model)] * 3 + [(0, 0)]))
        for make in (draw.standard_normal, np.zeros)
    )
    context = draw.standard_normal((2, m + q, config.d_model))
    projected = project_forward(context, q, weights, config.n_head)
    cotangents = tuple(draw.standard_normal(x.shape) for x in projected)
    dq, dk, dv = cotangents
    d_context = project_backward(dq, dk, dv, context, weights, grads)
    yield identity("q, k and v of context", projected, cotangents, context, d_context)
    for name, y, dy in zip(("w_q", "w_k", "w_v"), projected, cotangents, strict=True):
        weight, d_weight = getattr(weights, name), getattr(grads, name)
        yield identity(f"{name[-1]} of {name}", y, dy, weight, d_weight)
    of_segment = context.copy()
    of_segment[:, :m] = 0
    yield identity(
        "q, k and v of the segment alone",
        project_forward(of_segment, q, weights, config.n_head), cotangents,
        context[:, m:], project_backward(dq, dk, dv, context, weights, grads, first=m),
        "As the model has it, which returns nothing for memory.",
    )  # fmt: skip


def _scores(config: ModelConfig, draw: np.random.Generator) -> Iterator[Result]:
    """Each part of A_ij = (q_i + u)ᵀ k_j + (q_i + v)ᵀ r_{i−j}: the shift is that of r."""
    n_keys, window = _N_MEMORY + _N_QUERIES, _window(config)
    heads, width = config.n_head, config.d_head
    shapes = {
        "query": (_BATCH_SIZE, _N_QUERIES, heads, width),
        "key": (_BATCH_SIZE, n_keys, heads, width),
        "relative": (n_keys, heads, width), "u": (heads, width), "v": (heads, width),
    }  # fmt: skip
    full = {name: draw.standard_normal(shape) for name, shape in shapes.items()}
    # Values that are unit vectors: d_attended is then the gradient of the probabilities.
    value = np.tile(np.eye(n_keys)[:, None], (_BATCH_SIZE, 1, heads, 1))  # [B, K, H, K]
    d_probabilities = draw.standard_normal((_BATCH_SIZE, _N_QUERIES, heads, n_keys))
    for name, others, detail in (
        ("relative", ("key",), "The shift: r by distance becomes scores by key."),
        ("key", ("relative",), "Terms (a) and (c)."),
        ("query", ("u", "v"), "Terms (a) and (b)."),
        ("u", ("query", "relative"), "Term (c)."),
        ("v", ("query", "key"), "Term (d)."),
    ):
        parts = {n: np.zeros_like(x) if n in others else x for n, x in full.items()}
        query, key, relative, u, v = parts.values()
        a, cache = attend_forward(query, key, value, relative, u, v, window)  # [B, q, H, K]
        scores = np.log(a, where=a > 0, out=np.zeros_like(a))  # A / √d_head, up to a number a row
        inner = (a * d_probabilities).sum(-1, keepdims=True)
        d_scores = a * (d_probabilities - inner)  # sums to 0 along a row
        d_u, d_v = np.zeros_like(u), np.zeros_like(v)
        d_query, d_key, _, d_relative = attend_backward(d_probabilities, cache, u, v, d_u, d_v)
        gradient = {"query": d_query, "key": d_key, "relative": d_relative, "u": d_u, "v": d_v}
        label = "shift" if name == "relative" else f"scores of {name}"
        yield identity(label, scores, d_scores, parts[name], gradient[name], detail)


def _values(config: ModelConfig, draw: np.random.Generator, site: Any) -> Iterator[Result]:
    """Σ_j ã_ij v_j for given probabilities, some of which are dropped."""
    n_keys, shape = _N_MEMORY + _N_QUERIES, (config.n_head, config.d_head)
    query, d_attended = draw.standard_normal((2, _BATCH_SIZE, _N_QUERIES, *shape))
    key, value = draw.standard_normal((2, _BATCH_SIZE, n_keys, *shape))
    relative, (u, v) = draw.standard_normal((n_keys, *shape)), draw.standard_normal((2, *shape))
    for name, dropout in (("", None), (", some dropped", dropout_cache(_DROPOUT, site))):
        attended, cache = attend_forward(
            query, key, value, relative, u, v, _window(config), dropout
        )
        _, _, d_value, _ = attend_backward(
            d_attended, cache, u, v, np.zeros_like(u), np.zeros_like(v)
        )
        yield identity(f"attention's sum of values{name}", attended, d_attended, value, d_value)


def _output(config: ModelConfig, draw: np.random.Generator, site: Any) -> Iterator[Result]:
    attended = draw.standard_normal((2, 4, config.n_head, config.d_head))
    w_o = draw.standard_normal((config.d_model, config.n_head * config.d_head))
    dy, d_w_o = draw.standard_normal((2, 4, config.d_model)), np.zeros_like(w_o)
    y, cache = output_forward(attended, w_o, _DROPOUT, site)
    d_attended = output_backward(dy, attended, cache, w_o, d_w_o)
    yield identity("attention's output", y, dy, attended, d_attended)
    yield identity("attention's output of w_o", y, dy, w_o, d_w_o)


def _dropout(config: LanguageModelConfig, draw: np.random.Generator, site: Any) -> Iterator[Result]:
    x, y = draw.standard_normal((2, 3, 5, config.d_model))
    dropped, cache = dropout_forward(x, _DROPOUT, site)
    yield identity("dropout", dropped, y, x, dropout_backward(y, cache))


def _layer_norm(config: ModelConfig, draw: np.random.Generator) -> Iterator[Result]:
    """Its Jacobian J is symmetric but for the gain, and blind to a constant."""
    x, y, z = draw.standard_normal((3, 4, 5, config.d_model))
    gain, bias, ones = *draw.standard_normal((2, config.d_model)), np.ones(config.d_model)
    out, cache = layer_norm_forward(x, gain, bias, config.layer_norm_epsilon)

    def backward(dy: Array, gain: Array) -> tuple[Array, Array, Array]:
        d_gain, d_bias = np.zeros_like(gain), np.zeros_like(bias)
        return layer_norm_backward(dy, cache, gain, d_gain, d_bias), d_gain, d_bias

    jy, jz = backward(y, ones)[0], backward(z, ones)[0]
    yield identity("layer norm's Jacobian is symmetric", jy, z, y, jz)
    dx, d_gain, d_bias = backward(y, gain)
    yield identity("layer norm's Jacobian and its gain", jz, gain * y, z, dx)
    yield identity("layer norm of gain and bias", out, y, [gain, bias], [d_gain, d_bias])
    residue = np.abs(dx.sum(-1)).max() / np.abs(dx).sum(-1).max()
    detail = "Its gradient sums to 0 over a vector's entries."
    yield Result.of("layer norm ignores a constant", residue, TOLERANCE, detail)


def _feed_forward(config: ModelConfig, draw: np.random.Generator, site: Any) -> Iterator[Result]:
    """Without biases f(cx) = c f(x) for c > 0, so that f(x) = J(x) x (Euler)."""
    x, dy = draw.standard_normal((2, 3, 5, config.d_model))
    shape = (config.d_inner, config.d_model)
    weights, grads = (
        FeedForwardWeights(make(shape), np.zeros(shape[0]), make(shape[::-1]), np.zeros(shape[1]))
        for make in (draw.standard_normal, np.zeros)
    )
    y, cache = feed_forward_forward(x, weights, _DROPOUT, site, site)
    dx = feed_forward_backward(dy, cache, weights, grads)
    detail = "Without biases, by Euler's theorem."
    yield identity("feed-forward block of x", y, dy, x, dx, detail)
    for name in ("w_1", "w_2"):
        pair = getattr(weights, name), getattr(grads, name)
        yield identity(f"feed-forward block of {name}", y, dy, *pair, detail)


def _logits(subject: Subject, draw: np.random.Generator) -> Iterable[Result]:
    """Of every softmax of the output layer: one, or a head and its tails."""
    config, model = subject.small, subject.model()
    targets = draw.permutation(np.arange(2 * config.vocab_size) % config.vocab_size)  # all of them
    hidden, dnll = (
        draw.standard_normal((len(targets), config.d_model)),
        draw.normal(size=len(targets)),
    )

    def made(change: Any) -> list[SoftmaxCluster]:
        """The clusters, with nothing tied, and weights and biases as `change` has them."""
        return [
            SoftmaxCluster(
                tuple(OutputWeights(*change(each)) for each in outputs), _copied(projection)
            )
            for outputs, projection in model.softmax(model.params)
        ]

    def gradients(clusters: list[SoftmaxCluster]) -> tuple[Array, list[SoftmaxCluster]]:
        grads = [
            SoftmaxCluster(
                tuple(OutputWeights(*map(np.zeros_like, each)) for each in outputs),
                _zeros(projection),
            )
            for outputs, projection in clusters
        ]
        _, cache = adaptive_softmax_forward(hidden, targets, clusters)
        return adaptive_softmax_backward(dnll, cache, clusters, grads), grads

    linear = made(lambda each: (each.weight.copy(), np.zeros_like(each.bias)))
    pairs = _logits_and_cotangents(hidden, targets, dnll, linear)
    d_hidden, grads = gradients(linear)
    logits, d_logits = zip(*pairs, strict=True)
    yield identity("logits of hidden states", logits, d_logits, hidden, d_hidden)
    for i, (pair, cluster, grad) in enumerate(zip(pairs, linear, grads, strict=True)):
        weights, d_weights = ([each.weight for each in c.outputs] for c in (cluster, grad))
        yield identity(f"logits of cluster {i}'s weights", *pair, weights, d_weights)
        if cluster.projection is not None:
            name = f"logits of cluster {i}'s projection"
            yield identity(name, *pair, cluster.projection, grad.projection)
    constant = made(lambda each: (np.zeros_like(each.weight), draw.normal(size=each.bias.shape)))
    pairs = _logits_and_cotangents(hidden, targets, dnll, constant)
    _, grads = gradients(constant)
    for i, (pair, cluster, grad) in enumerate(zip(pairs, constant, grads, strict=True)):
        biases, d_biases = ([each.bias for each in c.outputs] for c in (cluster, grad))
        yield identity(f"logits of cluster {i}'s biases", *pair, biases, d_biases)


def _logits_and_cotangents(
    hidden: Array, targets: Array, dnll: Array, clusters: list[SoftmaxCluster]
) -> list[tuple[Array, Array]]:
    """By cluster, logits up to a number a row, and dnll · (p − [symbol = target])."""
    log_p = adaptive_log_softmax(hidden, clusters)  # [n, V]
    sizes = [len(cluster.outputs[0].bias) for cluster in clusters]
    *parts, _ = np.split(log_p, np.cumsum(sizes), axis=1)
    of_clusters = [np.log(np.exp(part).sum(-1, keepdims=True)) for part in parts]
    members = list(cluster_members(targets, sizes))
    symbols = targets.copy()
    for column, (places, _) in enumerate(members[1:], start=sizes[0]):
        symbols[places] = column
    pairs = [(np.concatenate([parts[0], *of_clusters[1:]], axis=1), symbols, dnll)]
    for part, of_cluster, (places, within) in zip(
        parts[1:], of_clusters[1:], members[1:], strict=True
    ):
        pairs.append(((part - of_cluster)[places], within, dnll[places]))
    return [
        (logits, scale[:, None] * (np.exp(logits) - np.eye(logits.shape[1])[target]))
        for logits, target, scale in pairs
    ]


def _window(config: ModelConfig) -> int:
    """Of two keys at least: the only score of a softmax does not matter."""
    return max(2, config.window(_N_MEMORY + _N_QUERIES))


def _zeros(array: Array | None) -> Any:
    return None if array is None else np.zeros_like(array)


def _copied(array: Array | None) -> Array | None:
    return None if array is None else array.copy()


ADJOINT = Check(
    name="adjoint",
    proves="The backward pass of each linear piece is its transpose: for a random $x$ and a random "
    "cotangent $y$, both sides are the same number. No step size is involved, and one wrong entry "
    "of $A^\\top$ is enough to tell them apart.",
    equation=r"\frac{\left| \langle A x, y \rangle - \langle x, A^\top y \rangle \right|}"
    r"{\sum_i |(A x)_i y_i|} \le 10^{-13}",
    run=_run,
)
