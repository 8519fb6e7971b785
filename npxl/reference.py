"""Transformer-XL as the paper writes it: the oracle that the fast path is tested against.

Nothing here is fast and nothing is shared with the layers: one stream, one head, one query, one key
at a time.  Arrays may be complex, so that f(θ + i·h) gives the derivative Im f / h to the last
digit (Squire & Trapp 1998); where the function is not analytic (max, comparison) the real part
decides.

Equations are those of Dai et al. 2019, section 3.3; positions those of Vaswani et al. 2017, or of
Shaw et al. 2018; the output layer that of Grave et al. 2017, with widths as in Baevski & Auli 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.config import LanguageModelConfig, ModelConfig

Array = NDArray[Any]
Mask = Callable[[str, Array], Array]
"""A function of a site's name and an array [B, ...] that applies the site's dropout mask."""


class Output(NamedTuple):
    """What one segment gives."""

    nll: Array  # [B, T], nats
    log_probs: Array  # [B, T, V]
    memory: list[Array]  # n_layer arrays [B, m', d_model]
    kink: float  # the smallest |input| of a ReLU: how near the sample is to a kink


def no_dropout(site: str, x: Array) -> Array:
    """The mask of evaluation: everything is kept."""
    return x


def forward(
    params: Mapping[str, Array],
    config: ModelConfig,
    inputs: Array,
    targets: Array,
    memory: Sequence[Array],
    mask: Mask = no_dropout,
    embedded: Array | None = None,
) -> Output:
    """Score one segment.

    inputs [B, E+T] and targets [B, T] int, −1 for what is not scored; memory n_layer arrays
    [B, m, d_model].  The last T positions are scored.  `embedded` [B, E+T, d_model] replaces the
    embeddings of the inputs.
    """
    seen = list(memory)
    if config.attn_window is not None:  # no query looks back further than W − 1 positions
        start = max(0, memory[0].shape[1] - (config.attn_window - 1))
        seen = [states[:, start:] for states in memory]
    n_keys = seen[0].shape[1] + inputs.shape[1]
    if embedded is None:
        embedded = np.array([[embedding(params, config, token) for token in row] for row in inputs])
    h = mask("embedding", embedded)  # [B, q, d]
    # All layers and streams share one mask of R, so that it is drawn for a batch of one.
    r = [position(distance, config) for distance in range(n_keys)]  # r[distance] is [d]
    if config.attn_type == "dai":
        r = list(mask("positions", np.array(r[::-1])[None])[0, ::-1])

    layer_inputs = []
    kink = math.inf
    for n in range(config.n_layer):
        layer_inputs.append(h)
        if config.attn_type == "vaswani" and n == 0:  # added to what is read, not to what is kept
            places = np.array(r[::-1])  # [K, d], the last token's in the last row
            n_memory = seen[0].shape[1]
            seen[0] = seen[0] + places[:n_memory]
            h = mask("embedding", embedded + places[n_memory:])
        h, layer_kink = layer(params, config, n, h, seen[n], r, mask)
        kink = min(kink, layer_kink)
    h = mask("hidden", h)

    nll, log_probs = scores(params, config, h, targets)
    return Output(nll, log_probs, updated_memory(memory, layer_inputs, config), kink)


def layer(
    params: Mapping[str, Array],
    config: ModelConfig,
    n: int,
    h: Array,
    memory: Array,
    r: Sequence[Array],
    mask: Mask,
) -> tuple[Array, float]:
    """Layer n: h [B, q, d], memory [B, m, d], r[distance] [d]; returns the output [B, q, d]."""
    name = f"layers.{n}"
    n_queries = h.shape[1]

    def norm(x: Array, which: str) -> Array:
        gain, bias = params[f"{name}.{which}_norm.gain"], params[f"{name}.{which}_norm.bias"]
        return np.array([[layer_norm(row, gain, bias, config) for row in rows] for rows in x])

    if config.attn_type == "al-rfou":
        table, n_keys = params[f"{name}.position"], memory.shape[1] + n_queries
        places = np.array([table[learned_row(n_keys - 1 - j, config)] for j in range(n_keys)])
        memory, h = memory + places[: n_keys - n_queries], h + places[n_keys - n_queries :]
    context = np.concatenate([memory, h], axis=1)  # h̃ = [SG(m) ∘ h], [B, K, d]
    if config.pre_lnorm:
        context = norm(context, "attention")
    probabilities = attention_probabilities(params, config, n, context, n_queries, r)
    probabilities = mask(f"{name}.attention_probabilities", probabilities)  # [B, H, q, K]
    y = np.zeros(h.shape, context.dtype)  # [B, q, d]
    for b, head, i, j in np.ndindex(probabilities.shape):
        w_v, w_o = params[f"{name}.attention.w_v"], params[f"{name}.attention.w_o"]
        columns = slice(head * config.d_head, (head + 1) * config.d_head)
        if probabilities[b, head, i, j] != 0:
            value = w_v[columns] @ context[b, j]  # [d_head]
            y[b, i] += w_o[:, columns] @ (probabilities[b, head, i, j] * value)
    h = h + mask(f"{name}.attention_output", y)
    if not config.pre_lnorm:
        h = norm(h, "attention")

    x = norm(h, "feed_forward") if config.pre_lnorm else h
    w_1, b_1 = params[f"{name}.feed_forward.w_1"], params[f"{name}.feed_forward.b_1"]
    w_2, b_2 = params[f"{name}.feed_forward.w_2"], params[f"{name}.feed_forward.b_2"]
    inner = np.array([[w_1 @ row + b_1 for row in rows] for rows in x])  # [B, q, d_inner]
    kink = float(np.abs(inner.real).min())
    inner = mask(f"{name}.feed_forward_inner", np.where(inner.real > 0, inner, 0))
    y = np.array([[w_2 @ row + b_2 for row in rows] for rows in inner])  # [B, q, d]
    h = h + mask(f"{name}.feed_forward_output", y)
    if not config.pre_lnorm:
        h = norm(h, "feed_forward")
    return h, kink


def attention_probabilities(
    params: Mapping[str, Array],
    config: ModelConfig,
    n: int,
    context: Array,
    n_queries: int,
    r: Sequence[Array],
) -> Array:
    """a [B, H, q, K] of layer n over context [B, K, d]; zero where a query must not look."""
    batch_size, n_keys, _ = context.shape
    a = np.zeros((batch_size, config.n_head, n_queries, n_keys), context.dtype)
    for b, head, i in np.ndindex(batch_size, config.n_head, n_queries):
        me = n_keys - n_queries + i  # the query's own place among the keys
        window = math.inf if config.attn_window is None else config.attn_window
        seen = [j for j in range(me + 1) if me - j < window]
        scores = [
            score(params, config, n, head, context[b, me], context[b, j], me - j, r) for j in seen
        ]
        a[b, head, i, seen] = np.exp(log_softmax(np.array(scores) / math.sqrt(config.d_head)))
    return a


def score(
    params: Mapping[str, Array],
    config: ModelConfig,
    n: int,
    head: int,
    h_i: Array,
    h_j: Array,
    distance: int,
    r: Sequence[Array],
) -> Any:
    """A_ij of one head of layer n: query i looks back at key j from that distance."""
    name = f"layers.{n}.attention"
    rows = slice(head * config.d_head, (head + 1) * config.d_head)
    q = params[f"{name}.w_q"][rows] @ h_i
    k = params[f"{name}.w_k"][rows] @ h_j
    if config.attn_type == "shaw":
        u, row = params[f"{name}.u"][head], learned_row(distance, config)
        k_r = params[f"{name}.relative"][row, head]
        bias = params[f"{name}.relative_bias"][row, head]
        return q @ k + q @ k_r + u @ k + bias
    if config.attn_type != "dai":
        return q @ k
    biases = name if config.untie_r else "attention"
    u, v = params[f"{biases}.u"][head], params[f"{biases}.v"][head]
    k_r = params[f"{name}.w_r"][rows] @ r[distance]
    return q @ k + q @ k_r + u @ k + v @ k_r  # terms (a) + (b) + (c) + (d)


def learned_row(distance: int, config: ModelConfig) -> int:
    """The row of a learned table; the last one is for distance 0, the first for all beyond."""
    assert config.clamp_len is not None
    return config.clamp_len - min(distance, config.clamp_len)


def embedding(params: Mapping[str, Array], config: LanguageModelConfig, token: int) -> Array:
    """√d P_i E_i[token] with i the cluster of the token, [d]."""
    first = [0, *config.cutoffs]  # the first symbol of each cluster
    i = max(n for n in range(len(first)) if first[n] <= token)
    if config.div_val == 1:  # one table for all
        x = params["embedding.weight"][token]
        p = params.get("embedding.projection")
    else:
        x = params[f"embedding.{i}.weight"][token - first[i]]
        p = params[f"embedding.{i}.projection"]
    if p is not None:
        x = p @ x  # from [d_i] to [d]
    y: Array = math.sqrt(config.d_model) * x
    return y


def scores(
    params: Mapping[str, Array], config: LanguageModelConfig, h: Array, targets: Array
) -> tuple[Array, Array]:
    """nll [B, T] and log p [B, T, V] after the last T of the hidden states [B, q, d]."""
    h = h[:, h.shape[1] - targets.shape[1] :]  # [B, T, d]
    log_probs = np.array([[adaptive_log_softmax(params, config, x) for x in row] for row in h])
    nll = np.zeros(targets.shape, log_probs.dtype)  # [B, T]
    for b, t in np.ndindex(targets.shape):
        if targets[b, t] != -1:  # what is not scored costs nothing
            nll[b, t] = -log_probs[b, t, targets[b, t]]
    return nll, log_probs


def adaptive_log_softmax(
    params: Mapping[str, Array], config: LanguageModelConfig, h: Array
) -> Array:
    """log p of every symbol after the hidden state h [d]: [V].

    p(symbol) is that of the head for its own symbols, and for those of another cluster that of the
    cluster in the head times that of the symbol in the cluster.
    """
    first = [0, *config.cutoffs, config.vocab_size]
    weights = "embedding" if config.tie_weight else "softmax"

    def logits(i: int) -> tuple[Array, Array]:
        """h at the width of cluster i, [d_i], and the logits of its symbols."""
        projections = "softmax"
        if config.tie_projs and config.tie_projs[i]:
            projections = "embedding"
        p = params.get(f"{projections}.{i}.projection")
        if projections == "embedding" and config.div_val == 1:
            p = params["embedding.projection"]
        x = h if p is None else p.T @ h
        if config.div_val == 1:
            weight = params[f"{weights}.weight"][first[i] : first[i + 1]]
        else:
            weight = params[f"{weights}.{i}.weight"]
        return x, weight @ x + params["softmax.bias"][first[i] : first[i + 1]]

    x, of_symbols = logits(0)
    if not config.cutoffs:
        return log_softmax(of_symbols)
    of_clusters = params["softmax.cluster_weight"] @ x + params["softmax.cluster_bias"]
    head = log_softmax(np.concatenate([of_symbols, of_clusters]))
    log_p = list(head[: first[1]])
    for i in range(1, len(config.cutoffs) + 1):
        log_p += list(head[first[1] + i - 1] + log_softmax(logits(i)[1]))
    return np.array(log_p)


def position(distance: int, config: ModelConfig) -> Array:
    """R_distance [d]: all sines, then all cosines."""
    if config.clamp_len is not None:
        distance = min(distance, config.clamp_len)
    angles = [distance / 10000 ** (2 * i / config.d_model) for i in range(config.d_model // 2)]
    return np.array([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])


def layer_norm(x: Array, gain: Array, bias: Array, config: ModelConfig) -> Array:
    """gain · (x − μ) / √(σ² + ε) + bias for one vector."""
    centered = x - x.sum() / len(x)
    variance = (centered**2).sum() / len(x)
    y: Array = gain * centered / np.sqrt(variance + config.layer_norm_epsilon) + bias
    return y


def log_softmax(x: Array) -> Array:
    """log softmax of one vector."""
    shifted: Array = x - x.real.max()
    log_p: Array = shifted - np.log(np.exp(shifted).sum())
    return log_p


def updated_memory(
    memory: Sequence[Array], layer_inputs: Sequence[Array], config: ModelConfig
) -> list[Array]:
    """The last mem_len positions of memory and segment that end ext_len before the segment's."""
    updated = []
    for old, new in zip(memory, layer_inputs, strict=True):
        positions = [old[:, t] for t in range(old.shape[1])]
        positions += [new[:, t] for t in range(max(0, new.shape[1] - config.ext_len))]
        positions = positions[max(0, len(positions) - config.mem_len) :]
        shape = (old.shape[0], 0, config.d_model)
        updated.append(np.stack(positions, axis=1) if positions else np.zeros(shape, new.dtype))
    return updated
