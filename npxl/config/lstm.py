"""The configuration of an LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npxl.config.base import MOST_LAYERS, LanguageModelConfig
from npxl.config.checks import require_bool, require_float, require_int


@dataclass(frozen=True)
class LSTMConfig(LanguageModelConfig):
    """The shape of one LSTM (Zaremba et al. 2014), to compare a Transformer-XL with.

    Its options are some of `ModelConfig`'s, with the same meaning where both have a meaning.

    Parameters
    ----------
    vocab_size
        Number of symbols V. Training takes it from the corpus.
    n_layer
        Number of layers N.
    d_model
        Width d of the hidden states and the cells of every layer.
    dropout
        Probability of dropping an entry of the embedding and of every layer's output, as it is read
        by the layer above; what a layer says to its own next step is never dropped.
    tie_weight
        Use the embedding table as the output layer's weights.
    d_embed
        Width of the embeddings, as in `ModelConfig`.
    cutoffs
        Symbols at which clusters after the first begin, as in `ModelConfig`.
    div_val
        What divides the width of the embeddings from cluster to cluster, as in `ModelConfig`.
    tie_projs
        For each cluster, whether its output projection is the embedding's, as in `ModelConfig`.
    init_std
        Standard deviation of the normal distribution that weights are drawn from.
    proj_init_std
        Standard deviation of the distribution that projections of embeddings are drawn from.
    """

    architecture: ClassVar[str] = "lstm"

    vocab_size: int = 256
    n_layer: int = 2
    d_model: int = 228
    dropout: float = 0.0
    tie_weight: bool = True
    d_embed: int | None = None
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    tie_projs: tuple[bool, ...] = ()
    init_std: float = 0.1
    proj_init_std: float = 0.01

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model"):
            require_int(self, name, minimum=1)
        require_int(self, "n_layer", minimum=1, maximum=MOST_LAYERS)
        require_float(self, "dropout", minimum=0.0, below=1.0)
        for name in ("init_std", "proj_init_std"):
            require_float(self, name, minimum=0.0)
        require_bool(self, "tie_weight")
        self._require_clusters()

    @property
    def ext_len(self) -> int:
        """No token is read again: what has been read is in the state."""
        return 0

    @property
    def reach(self) -> int | None:
        """None: a prediction depends on all tokens before it."""
        return None

    @property
    def reach_is_exact(self) -> bool:
        """Every prediction depends on all tokens before it."""
        return True

    def longest_reach(self, tgt_len: int) -> int | None:
        """None: a prediction depends on all tokens before it, less and less."""
        return None

    def segments_to_fill(self, tgt_len: int) -> int:
        """None at all: the state has one size."""
        return 0
