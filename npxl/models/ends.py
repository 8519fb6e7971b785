"""Both ends of a model: symbols become vectors, and hidden states become probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from npxl.config import LanguageModelConfig
from npxl.layers.adaptive_softmax import AdaptiveSoftmaxCache, SoftmaxCluster
from npxl.layers.clusters import cluster_members
from npxl.layers.embedding import EmbeddingCluster
from npxl.layers.softmax import OutputWeights

Array = NDArray[Any]
Shapes = dict[str, tuple[int, ...]]


def embedding_shapes(config: LanguageModelConfig) -> Shapes:
    """Names and shapes of the embedding's tensors."""
    shapes = _table_shapes("embedding", config)
    if config.has_projections:
        for i, width in enumerate(config.cluster_widths):
            shapes[_embedding_projection(config, i)] = (config.d_model, width)
    return shapes


def softmax_shapes(config: LanguageModelConfig) -> Shapes:
    """Names and shapes of the output layer's own tensors, without those of the embedding."""
    shapes = {} if config.tie_weight else _table_shapes("softmax", config)
    shapes["softmax.bias"] = (config.vocab_size,)
    n_tails = len(config.cutoffs)
    if n_tails:
        shapes["softmax.cluster_weight"] = (n_tails, config.embedding_width)
        shapes["softmax.cluster_bias"] = (n_tails,)
    for i, width in enumerate(config.cluster_widths):
        name = _softmax_projection(config, i)
        if name is not None and name not in embedding_shapes(config):
            shapes[name] = (config.d_model, width)
    return shapes


def tables(config: LanguageModelConfig) -> set[str]:
    """Names of the tensors that have a row for each symbol of the vocabulary, or of a cluster."""
    parts = ("embedding",) if config.tie_weight else ("embedding", "softmax")
    return {name for part in parts for name in _table_shapes(part, config)}


def embedding_weights(
    params: Mapping[str, Array], config: LanguageModelConfig
) -> tuple[EmbeddingCluster, ...]:
    """Views of the embedding's parameters, or of their gradients.

    Where all clusters have one width they are one table.
    """
    tables = [params[name] for name in _table_shapes("embedding", config)]
    if not config.has_projections:
        return tuple(map(EmbeddingCluster, tables))
    return tuple(
        EmbeddingCluster(table, params[_embedding_projection(config, i)])
        for i, table in enumerate(tables)
    )


def softmax_weights(
    params: Mapping[str, Array], config: LanguageModelConfig
) -> tuple[SoftmaxCluster, ...]:
    """Views of the output layer's parameters, or of their gradients.

    What is tied is a view of the embedding's, so that both uses add to one gradient.
    """
    clusters = []
    for i, symbols in enumerate(config.clusters):
        name, rows = _output_rows(config, i)
        bias = params["softmax.bias"][symbols.start : symbols.stop]
        outputs = [OutputWeights(params[name][rows], bias)]
        if i == 0 and config.cutoffs:
            outputs.append(
                OutputWeights(params["softmax.cluster_weight"], params["softmax.cluster_bias"])
            )
        projection = _softmax_projection(config, i)
        clusters.append(
            SoftmaxCluster(tuple(outputs), None if projection is None else params[projection])
        )
    return tuple(clusters)


def touched_rows(
    inputs: Array, softmax: AdaptiveSoftmaxCache, config: LanguageModelConfig
) -> dict[str, list[slice | Array]]:
    """The rows of each table to which a backward pass adds something.

    Those of the inputs in the embedding's tables, and all of the clusters that a target is in.
    """
    shapes = _table_shapes("embedding", config)
    members = cluster_members(inputs.reshape(-1), [n_rows for n_rows, _ in shapes.values()])
    touched: dict[str, list[slice | Array]] = {name: [] for name in tables(config)}
    for name, (_, symbols) in zip(shapes, members, strict=True):
        touched[name].append(symbols)
    for i, cached in enumerate(softmax.clusters):
        if cached is not None:
            name, rows = _output_rows(config, i)
            touched[name].append(rows)
    return touched


def _table_shapes(part: str, config: LanguageModelConfig) -> Shapes:
    """The tables with a row for each symbol: one for each width."""
    if config.div_val == 1:
        return {f"{part}.weight": (config.vocab_size, config.embedding_width)}
    return {
        f"{part}.{i}.weight": (len(symbols), width)
        for i, (symbols, width) in enumerate(
            zip(config.clusters, config.cluster_widths, strict=True)
        )
    }


def _output_rows(config: LanguageModelConfig, i: int) -> tuple[str, slice]:
    """The table of the output weights of cluster i, and its rows there."""
    part, symbols = "embedding" if config.tie_weight else "softmax", config.clusters[i]
    if config.div_val == 1:
        return f"{part}.weight", slice(symbols.start, symbols.stop)
    return f"{part}.{i}.weight", slice(0, len(symbols))


def _embedding_projection(config: LanguageModelConfig, i: int) -> str:
    return "embedding.projection" if config.div_val == 1 else f"embedding.{i}.projection"


def _softmax_projection(config: LanguageModelConfig, i: int) -> str | None:
    """Name of the projection to the width of cluster i, the embedding's if they are tied."""
    if not config.has_projections:
        return None
    tied = config.tie_projs[i] if config.tie_projs else False
    return _embedding_projection(config, i) if tied else f"softmax.{i}.projection"
