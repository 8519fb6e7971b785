"""What every model's configuration has: its two ends, and answers for those who read with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar

from npxl.config.checks import require_int, require_tuple
from npxl.errors import NpxlError

MOST_LAYERS = 2**16
"""Layers whose tensors can be listed in a moment, whatever a file from elsewhere asks for."""


class LanguageModelConfig(ABC):
    """Base of the models' configurations, which are dataclasses with the fields that it names.

    What is not abstract says what holds for a model without attention; where a model has an option
    of that name, the option stands in its place.

    Attributes
    ----------
    architecture
        Which kind of model this is the configuration of.
    """

    architecture: ClassVar[str]

    vocab_size: int
    n_layer: int
    d_model: int
    dropout: float
    tie_weight: bool
    d_embed: int | None
    cutoffs: tuple[int, ...]
    div_val: int
    tie_projs: tuple[bool, ...]
    init_std: float
    proj_init_std: float

    def _require_clusters(self) -> None:
        """Clusters with symbols, embeddings with a width, and ties of projections that exist."""
        require_int(self, "d_embed", minimum=1, optional=True)
        require_int(self, "div_val", minimum=1)
        require_tuple(self, "cutoffs", int)
        bounds = (0, *self.cutoffs, self.vocab_size)
        if any(start >= stop for start, stop in pairwise(bounds)):
            raise NpxlError(
                f"cutoffs is {self.cutoffs!r}, but it must be symbols in ascending order, each at "
                f"least 1 and less than vocab_size, {self.vocab_size}."
            )
        if self.cluster_widths[-1] < 1:
            raise NpxlError(
                f"div_val is {self.div_val!r}, but it must be less: d_embed, "
                f"{self.embedding_width}, divided by it {len(self.cutoffs)} times leaves cluster "
                f"{len(self.cutoffs)} embeddings of no width."
            )
        require_tuple(self, "tie_projs", bool)
        if self.tie_projs and len(self.tie_projs) != len(self.clusters):
            raise NpxlError(
                f"tie_projs is {self.tie_projs!r}, but it must be one value for each of the "
                f"{len(self.clusters)} clusters, or none at all."
            )
        if any(self.tie_projs) and not self.has_projections:
            raise NpxlError(
                f"tie_projs is {self.tie_projs!r}, but it must be left out: where div_val is 1 and "
                "d_embed is d_model there are no projections to tie."
            )
        if self.proj_init_std != type(self).proj_init_std and not self.has_projections:
            raise NpxlError(
                f"proj_init_std is {self.proj_init_std!r}, but it must be left out: where div_val "
                "is 1 and d_embed is d_model there are no projections to draw."
            )

    @property
    def clusters(self) -> tuple[range, ...]:
        """The symbols of each cluster, the most frequent first; one of all without cutoffs."""
        return tuple(range(*pair) for pair in pairwise((0, *self.cutoffs, self.vocab_size)))

    @property
    def embedding_width(self) -> int:
        """Width of the first cluster's embeddings."""
        return self.d_model if self.d_embed is None else self.d_embed

    @property
    def cluster_widths(self) -> tuple[int, ...]:
        """Width d_i of the embeddings and the output weights of each cluster."""
        return tuple(self.embedding_width // self.div_val**i for i in range(len(self.clusters)))

    @property
    def has_projections(self) -> bool:
        """Whether embeddings are projected to d_model, and hidden states to their width."""
        return self.div_val > 1 or self.embedding_width != self.d_model

    @property
    def attends(self) -> bool:
        """Whether layers take averages of what they see, as attention does."""
        return False

    @property
    def encodes_distances(self) -> bool:
        """Whether states do not depend on their place, and so not on where a text was cut."""
        return True

    @property
    def mem_len(self) -> int | None:
        """Positions that a memory holds at most; None: it is a state of all that was read."""
        return None

    @property
    def attn_window(self) -> int | None:
        """Keys that a query sees at most, itself included; None: all there are."""
        return None

    def window(self, n_keys: int) -> int:
        """Keys W that a query sees at most where there are n_keys."""
        return n_keys if self.attn_window is None else self.attn_window

    @property
    def initial_memory(self) -> str:
        """Memory before the first segment: "empty", or "zeros" that are attended to."""
        return "empty"

    @property
    def dropatt(self) -> float:
        """Probability of dropping an attention probability."""
        return 0.0

    @property
    def shares_biases(self) -> bool:
        """Whether all layers have one pair of attention's biases u and v."""
        return False

    @property
    @abstractmethod
    def ext_len(self) -> int:
        """Tokens before each segment that are read again as context, without being scored."""

    @property
    @abstractmethod
    def reach(self) -> int | None:
        """Tokens before a token that its prediction depends on, however a text is cut.

        None where that depends on the segmentation, or where it is all of them.
        """

    @property
    @abstractmethod
    def reach_is_exact(self) -> bool:
        """Whether every prediction reaches as far back as `longest_reach` says."""

    @abstractmethod
    def longest_reach(self, tgt_len: int) -> int | None:
        """Tokens before a token that its prediction can depend on, in segments of `tgt_len`.

        None: all of them.
        """

    @abstractmethod
    def segments_to_fill(self, tgt_len: int) -> int:
        """Segments of `tgt_len` after which the memory holds as much as it ever does."""
