"""What the equations need: operations, a product and its addition counting as two, and bytes.

Counted are matrix products only, over the cells that some query may see, and nothing twice.  What
an implementation computes beside (masked cells, copies, recomputation) is its own loss.
"""

from __future__ import annotations

from npxl.config import ModelConfig
from npxl.models.transformer_xl import TransformerXL
from npxl.params import n_parameters


def training_step(config: ModelConfig, batch_size: int, tgt_len: int) -> float:
    """One update of B streams with full memory: forward and backward pass.

    Keys and values of the memory are projected again, because the weights have changed, and their
    weights receive gradient; the memory itself receives none, but for learned places, whose table
    does.
    """
    t = tgt_len
    k = _n_keys(config, t)
    d, width = config.d_model, config.n_head * config.d_head
    cells = _cell_products(config, tgt_len)
    segment = 2 * t * d * width + 2 * t * d * config.d_inner  # W_q and W_o; W_1 and W_2
    context = 2 * k * d * width  # W_k and W_v
    forward = segment + context + cells
    # To the weights as much again; to the inputs as well, but of W_k and W_v to the segment's only.
    inputs = k if config.attn_type == "al-rfou" else t
    backward = segment + context + segment + 2 * inputs * d * width + 2 * cells
    # W_{k,R}, forward and to the weights: once for all streams.  A table needs no product.
    positions = 2 * k * d * width if config.attn_type == "dai" else 0
    layers = config.n_layer * (batch_size * (forward + backward) + positions)
    return 2 * (layers + batch_size * 3 * _ends(config, t))


def reading(config: ModelConfig, tgt_len: int, every_symbol: bool = False) -> float:
    """One segment of one stream with full memory whose keys and values are there already.

    To score it, or for the probabilities of every symbol, as generation needs them.
    """
    t, d, width = tgt_len, config.d_model, config.n_head * config.d_head
    layer = 4 * t * d * width + 2 * t * d * config.d_inner + _cell_products(config, tgt_len)
    return 2 * (config.n_layer * layer + _ends(config, t, every_symbol))


def _ends(config: ModelConfig, n_tokens: int, every_symbol: bool = False) -> float:
    """Of the embedding and the output layer, forward, for tokens drawn uniformly.

    Of several clusters the head's softmax is computed for all tokens, another one for its members.
    """
    total: float = 0
    for i, symbols in enumerate(config.clusters):
        width, n_outputs = config.cluster_widths[i], len(symbols)
        members = n_tokens * n_outputs / config.vocab_size
        n_scored = n_tokens if i == 0 or every_symbol else members
        if i == 0:
            n_outputs += len(config.cutoffs)
        total += n_scored * width * n_outputs
        if config.has_projections:  # of the members' embeddings, and of hidden states
            total += (members + n_scored) * config.d_model * width
    return total


def _cell_products(config: ModelConfig, tgt_len: int) -> int:
    """Products that the forward pass of one layer takes for pairs of a query and a key.

    Scores of content, scores of distances where there are any, and the sum of values.
    """
    each = 3 if config.encodes_distances else 2
    return each * visible_cells(config, tgt_len) * config.n_head * config.d_head


def visible_cells(config: ModelConfig, tgt_len: int) -> int:
    """Pairs of a query and a key that it sees, in one head of one segment with full memory."""
    seen = (config.mem_len + i + 1 for i in range(tgt_len))
    window = config.attn_window
    return sum(n if window is None else min(n, window) for n in seen)


def training_traffic(config: ModelConfig, batch_size: int, tgt_len: int) -> int:
    """Bytes of float32 that an update moves at least, were everything else in a cache.

    Parameters are read by the forward and the backward pass, their gradient is written, and Adam
    reads four vectors and writes three; each layer's memory is read, and the segment joins it.
    """
    states = config.n_layer * batch_size * _n_keys(config, tgt_len) * config.d_model
    return 4 * (10 * _n_parameters(config) + states)


def reading_traffic(config: ModelConfig, batch_size: int, tgt_len: int) -> int:
    """Bytes of float32 that one segment of B streams moves at least without gradients.

    Parameters are read once, keys and values of memory for each stream, W_{k,R} R for all; a table
    is among the parameters.
    """
    width = config.n_head * config.d_head
    for_all = 1 if config.attn_type == "dai" else 0
    cached = config.n_layer * _n_keys(config, tgt_len) * width * (2 * batch_size + for_all)
    return 4 * (_n_parameters(config) + cached)


def _n_keys(config: ModelConfig, tgt_len: int) -> int:
    """Positions that some query of a segment with full memory sees."""
    return min(config.mem_len, config.window(config.mem_len + 1) - 1) + tgt_len


def _n_parameters(config: ModelConfig) -> int:
    return n_parameters(TransformerXL.parameter_shapes(config))
