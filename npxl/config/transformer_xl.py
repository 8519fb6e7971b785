"""The configuration of a Transformer-XL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from npxl.config.base import MOST_LAYERS, LanguageModelConfig
from npxl.config.checks import (
    LARGEST,
    require_bool,
    require_choice,
    require_float,
    require_int,
    require_that_options_have_an_effect,
)
from npxl.errors import NpxlError

AttentionType = Literal["dai", "shaw", "vaswani", "al-rfou"]
InitialMemory = Literal["empty", "zeros"]


@dataclass(frozen=True)
class ModelConfig(LanguageModelConfig):
    """The shape and the semantics of one Transformer-XL (Dai et al. 2019).

    Parameters
    ----------
    vocab_size
        Number of symbols V. Training takes it from the corpus.
    n_layer
        Number of layers N.
    n_head
        Number of attention heads H.
    d_model
        Width d of the hidden states; even where positions are sinusoids, half of them cosines.
    d_head
        Width of one head; n_head × d_head need not equal d_model.
    d_inner
        Width of the hidden layer of the feed-forward block.
    mem_len
        Hidden states M of earlier segments cached per layer; 0 turns recurrence off.
    attn_window
        Keys W a query sees, itself included; none: all that is cached. With encodings of distances,
        results do not depend on how a text is cut into segments exactly when W ≤ mem_len + 1.
    attn_type
        How positions are encoded, as in the paper's Table 6: dai, its own sinusoids of distances;
        shaw, a learned table of distances in each layer; vaswani, sinusoids of places added to the
        embeddings; al-rfou, a learned table of places in each layer, added to what it reads.
    clamp_len
        Distances beyond this are encoded as this distance, and places further than this before the
        segment's last as that; none: every distance is its own. A learned table has clamp_len + 1
        rows.
    ext_len
        Tokens before each segment that are read again as context, without being scored.
    dropout
        Probability of dropping an entry of the embedding, the positions, the sub-layers' outputs,
        the feed-forward block's hidden layer and the last hidden state.
    dropatt
        Probability of dropping an attention probability.
    pre_lnorm
        Normalise the input of each sub-layer instead of its output.
    untie_r
        Give each layer its own biases u and v instead of one pair for all; only for dai.
    tie_weight
        Use the embedding table as the output layer's weights.
    d_embed
        Width of the embeddings, which are projected to d_model if it differs; none: d_model.
    cutoffs
        Symbols, in ascending order, at which clusters after the first begin: a rare symbol's
        probability is that of its cluster times that within it, and only clusters that are met cost
        anything (adaptive softmax, Grave et al. 2017). Without any, one softmax over all symbols.
    div_val
        Symbols of cluster i, counted from 0, have embeddings and output weights of width
        d_embed // div_val^i, each cluster with projections of its own (Baevski & Auli 2019); 1: one
        width for all.
    tie_projs
        For each cluster, whether its output projection is the embedding's; without any, none is.
    initial_memory
        Memory before the first segment: empty, or mem_len zero vectors that are attended to.
    init_std
        Standard deviation of the normal distribution that parameters are drawn from.
    proj_init_std
        Standard deviation of the distribution that projections of embeddings are drawn from.
    layer_norm_epsilon
        Added to the variance in layer normalisation.
    """

    architecture: ClassVar[str] = "transformer_xl"

    vocab_size: int = 256
    n_layer: int = 4
    n_head: int = 4
    d_model: int = 128
    d_head: int = 32
    d_inner: int = 512
    mem_len: int = 128
    attn_window: int | None = None
    attn_type: AttentionType = "dai"
    clamp_len: int | None = None
    ext_len: int = 0
    dropout: float = 0.0
    dropatt: float = 0.0
    pre_lnorm: bool = False
    untie_r: bool = False
    tie_weight: bool = True
    d_embed: int | None = None
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    tie_projs: tuple[bool, ...] = ()
    initial_memory: InitialMemory = "empty"
    init_std: float = 0.02
    proj_init_std: float = 0.01
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_head", "d_model", "d_head", "d_inner"):
            require_int(self, name, minimum=1)
        require_int(self, "n_layer", minimum=1, maximum=MOST_LAYERS)
        for name in ("mem_len", "ext_len"):
            require_int(self, name, minimum=0)
        for name in ("attn_window", "clamp_len"):  # a query sees itself besides its memory
            require_int(self, name, minimum=1, maximum=LARGEST + 1, optional=True)
        for name in ("dropout", "dropatt"):
            require_float(self, name, minimum=0.0, below=1.0)
        for name in ("init_std", "proj_init_std"):
            require_float(self, name, minimum=0.0)
        require_float(self, "layer_norm_epsilon", above=0.0)
        for name in ("pre_lnorm", "untie_r", "tie_weight"):
            require_bool(self, name)
        require_choice(self, "initial_memory", get_args(InitialMemory))
        require_choice(self, "attn_type", get_args(AttentionType))
        self._require_positions()
        self._require_clusters()
        require_that_options_have_an_effect(self, {"untie_r": ("attn_type", ("dai",))})

    def _require_positions(self) -> None:
        """What the encoding of positions cannot be made without."""
        if not self.learns_positions and self.d_model % 2:
            raise NpxlError(
                f"d_model is {self.d_model}, but it must be even: a position is encoded by "
                f"d_model/2 sines and d_model/2 cosines; try {self.d_model + 1}."
            )
        if self.learns_positions and self.clamp_len is None:
            raise NpxlError(
                f"clamp_len is None, but attn_type {self.attn_type} learns a row for each distance "
                "up to clamp_len: give the largest distance of training, tgt_len + mem_len - 1, or "
                "a shorter one for all further ones to share."
            )

    @property
    def attends(self) -> bool:
        """Every layer does."""
        return True

    @property
    def encodes_distances(self) -> bool:
        """Whether attention knows distances alone, so that states do not depend on their place."""
        return self.attn_type in ("dai", "shaw")

    @property
    def learns_positions(self) -> bool:
        """Whether layers have tables with a row for each distance up to clamp_len."""
        return self.attn_type in ("shaw", "al-rfou")

    @property
    def n_learned(self) -> int:
        """Rows of such a table: one for each distance 0 … clamp_len, or none."""
        return 0 if self.clamp_len is None or not self.learns_positions else self.clamp_len + 1

    @property
    def shares_biases(self) -> bool:
        """Whether all layers have one pair of biases u and v."""
        return self.attn_type == "dai" and not self.untie_r

    @property
    def reach(self) -> int | None:
        """Tokens before a token that its prediction depends on: n_layer · (W − 1).

        Exact when W ≤ mem_len + 1; None without a window, where it depends on the segmentation.
        """
        return None if self.attn_window is None else self.n_layer * (self.attn_window - 1)

    def longest_reach(self, tgt_len: int) -> int:
        """Tokens before a token that its prediction can depend on, in segments of `tgt_len`.

        n_layer · (K − 1), with K the most keys that a query sees: mem_len + ext_len + tgt_len, or W
        if that is less; without memory no further than the segment.  Unless `reach_is_exact`, some
        tokens reach less far.
        """
        keys = self.mem_len + self.ext_len + tgt_len
        reach = self.n_layer * (min(keys, self.attn_window or keys) - 1)
        return reach if self.mem_len else min(reach, keys - 1)

    @property
    def reach_is_exact(self) -> bool:
        """Whether all tokens reach equally far back, however a text is cut: W ≤ mem_len + 1."""
        return self.attn_window is not None and self.attn_window <= self.mem_len + 1

    def segments_to_fill(self, tgt_len: int) -> int:
        """⌈mem_len / T⌉, after which the memory holds mem_len positions."""
        return -(-self.mem_len // tgt_len)
