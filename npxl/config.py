"""What a model is and how it is trained: two frozen dataclasses, validated once.

The fields of the two dataclasses are the options of the command line and the keys of a TOML file;
their documentation is the help text.  Names are those of the paper's code.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, get_args

from npxl.errors import NpxlError

AttentionType = Literal["dai", "shaw", "vaswani", "al-rfou"]
InitialMemory = Literal["empty", "zeros"]
Loss = Literal["full", "half"]
Precision = Literal["float32", "float64"]
OptimizerName = Literal["adam", "sgd", "adagrad"]
ScheduleName = Literal["cosine", "inv_sqrt", "plateau", "constant"]
DatasetName = Literal["text", "wt103", "enwik8", "text8", "lm1b", "ptb"]
VocabularyKind = Literal["bytes", "characters", "words", "symbols", "subwords"]

_LARGEST = 2**31 - 1
"""The largest number in a configuration: sums and products of two fit where arrays are indexed."""

_MOST_LAYERS = 2**16
"""Layers whose tensors can be listed in a moment, whatever a file from elsewhere asks for."""


_ABOUT_TEXT = {"about": "text"}
"""Of options that say how the text is read, rather than how a model is trained."""


@dataclass(frozen=True)
class ModelConfig:
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
            _require_int(self, name, minimum=1)
        _require_int(self, "n_layer", minimum=1, maximum=_MOST_LAYERS)
        for name in ("mem_len", "ext_len"):
            _require_int(self, name, minimum=0)
        for name in ("attn_window", "clamp_len"):  # a query sees itself besides its memory
            _require_int(self, name, minimum=1, maximum=_LARGEST + 1, optional=True)
        for name in ("dropout", "dropatt"):
            _require_float(self, name, minimum=0.0, below=1.0)
        for name in ("init_std", "proj_init_std"):
            _require_float(self, name, minimum=0.0)
        _require_float(self, "layer_norm_epsilon", above=0.0)
        for name in ("pre_lnorm", "untie_r", "tie_weight"):
            _require_bool(self, name)
        _require_choice(self, "initial_memory", get_args(InitialMemory))
        _require_choice(self, "attn_type", get_args(AttentionType))
        self._require_positions()
        _require_that_options_have_an_effect(self)

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
        self._require_clusters()

    def _require_clusters(self) -> None:
        """Clusters with symbols, embeddings with a width, and ties of projections that exist."""
        _require_int(self, "d_embed", minimum=1, optional=True)
        _require_int(self, "div_val", minimum=1)
        _require_tuple(self, "cutoffs", int)
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
        _require_tuple(self, "tie_projs", bool)
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

    def window(self, n_keys: int) -> int:
        """Keys W that a query sees at most where there are n_keys."""
        return n_keys if self.attn_window is None else self.attn_window

    @property
    def reach(self) -> int | None:
        """Tokens before a token that its prediction depends on: n_layer · (W − 1).

        Exact when W ≤ mem_len + 1; None without a window, where it depends on the segmentation.
        """
        return None if self.attn_window is None else self.n_layer * (self.attn_window - 1)

    def longest_reach(self, tgt_len: int) -> int:
        """Tokens before a token that its prediction can depend on, in segments of `tgt_len`.

        n_layer · (K − 1), with K the most keys that a query sees: mem_len + ext_len + tgt_len, or W
        if that is less.  Unless `reach_is_exact`, some tokens reach less far.
        """
        keys = self.mem_len + self.ext_len + tgt_len
        return self.n_layer * (min(keys, self.attn_window or keys) - 1)

    @property
    def reach_is_exact(self) -> bool:
        """Whether all tokens reach equally far back, however a text is cut: W ≤ mem_len + 1."""
        return self.attn_window is not None and self.attn_window <= self.mem_len + 1


_READ_ONLY_WITH = {
    "untie_r": ("attn_type", "dai"),
    "momentum": ("optimizer", "sgd"),
    "beta1": ("optimizer", "adam"),
    "beta2": ("optimizer", "adam"),
    "adam_epsilon": ("optimizer", "adam"),
    "decay_rate": ("schedule", "plateau"),
    "patience": ("schedule", "plateau"),
}
"""Options that mean something beside one value of another option, and nothing else."""


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained: data, length, optimiser, schedule and bookkeeping.

    Parameters
    ----------
    batch_size
        Streams of text read in parallel, each with its own memory.
    batch_chunk
        Parts of the batch that are computed one after another, to need less memory: what the
        backward pass needs of batch_size / batch_chunk streams is held at a time. The update is
        that of the whole batch, up to rounding.
    tgt_len
        Tokens of a stream predicted in one step: the segment length T.
    varlen
        Draw the segment length of each update anew, around tgt_len.
    loss
        Positions of a segment that training scores: full, all of them; half, the last half, which
        is (T + 1) // 2, each with at least T // 2 tokens before it. Evaluation always scores all.
    steps
        Number of updates.
    minutes
        Train for about this long instead of a number of steps: the speed is measured during the
        first steps, and the number of updates fixed from then on.
    optimizer
        Adam; sgd, gradient descent with or without momentum; or adagrad.
    lr
        Learning rate at the end of the warm-up, with the schedule inv_sqrt times the root of
        warmup_steps. What suits depends on the optimizer.
    schedule
        How the learning rate goes on after the warm-up. cosine: half a cosine down to the last
        step; inv_sqrt: lr / √step; plateau: lowered when the validation loss stops falling;
        constant: as it is.
    lr_min_ratio
        The cosine ends at this fraction of lr, and plateau goes no lower.
    warmup_steps
        Updates during which the learning rate rises linearly to where the schedule begins.
    decay_rate
        What plateau multiplies the learning rate by. Only for plateau.
    patience
        Evaluations in a row that may be no better than the best before plateau lowers the learning
        rate at the next one. Only for plateau.
    clip
        Largest Euclidean norm of the whole gradient; longer gradients are scaled down to it. none:
        they are left as they are.
    momentum
        Decay of the velocity, the sum of earlier gradients that sgd moves along; 0: it moves along
        the gradient. Only for sgd.
    beta1
        Decay of Adam's mean of the gradient.
    beta2
        Decay of Adam's mean of the squared gradient.
    adam_epsilon
        Added to the root of Adam's second moment.
    eval_interval
        Updates between two evaluations on the validation split.
    log_interval
        Updates between two lines of metrics.
    save_interval
        Seconds between two saves of the last state, so that no more is lost when a run is killed.
    seed
        Of the initial parameters and of dropout.
    workers
        Threads that share the streams; none: one for each processor core.
    dtype
        Precision of parameters and arithmetic: float32 or float64.
    dataset
        How the text lies in files, becomes words and is scored: as any text, or as a benchmark.
    vocabulary
        What a token is: bytes, characters, words, symbols (the bytes that occur, without newlines)
        or subwords (of a tokenizer); none: what the dataset is read in, which is bytes for a text.
    min_count
        Words seen less often than this become unknown; none: the dataset's, 1 for a text.
    tokenizer
        Path of a Hugging Face tokenizer.json, for subwords; needs the extra tokenizers.
    """

    batch_size: int = 8
    batch_chunk: int = 1
    tgt_len: int = 64
    varlen: bool = False
    loss: Loss = "full"
    steps: int = 5600
    minutes: float | None = None
    optimizer: OptimizerName = "adam"
    lr: float = 3e-3
    schedule: ScheduleName = "cosine"
    lr_min_ratio: float = 0.01
    warmup_steps: int = 200
    decay_rate: float = 0.5
    patience: int = 0
    clip: float | None = 0.25
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    adam_epsilon: float = 1e-8
    eval_interval: int = 1000
    log_interval: int = 100
    save_interval: float = 30.0
    seed: int = 0
    workers: int | None = None
    dtype: Precision = "float32"
    dataset: DatasetName = field(default="text", metadata=_ABOUT_TEXT)
    vocabulary: VocabularyKind | None = field(default=None, metadata=_ABOUT_TEXT)
    min_count: int | None = field(default=None, metadata=_ABOUT_TEXT)
    tokenizer: str | None = field(default=None, metadata=_ABOUT_TEXT)

    def __post_init__(self) -> None:
        for name in ("batch_size", "tgt_len", "steps"):
            _require_int(self, name, minimum=1)
        _require_int(self, "batch_chunk", minimum=1)
        if self.batch_chunk > self.batch_size:
            raise NpxlError(
                f"batch_chunk is {self.batch_chunk}, but it must be at most the batch_size, "
                f"{self.batch_size}."
            )
        for name in ("eval_interval", "log_interval"):
            _require_int(self, name, minimum=1)
        for name in ("warmup_steps", "patience"):
            _require_int(self, name, minimum=0)
        _require_int(self, "seed", minimum=0, maximum=None)
        for name in ("workers", "min_count"):
            _require_int(self, name, minimum=1, optional=True)
        _require_float(self, "minutes", above=0.0, optional=True)
        for name in ("lr", "adam_epsilon"):
            _require_float(self, name, above=0.0)
        _require_float(self, "clip", above=0.0, optional=True)
        for name in ("momentum", "beta1", "beta2"):
            _require_float(self, name, minimum=0.0, below=1.0)
        _require_float(self, "lr_min_ratio", minimum=0.0, maximum=1.0)
        _require_float(self, "decay_rate", above=0.0, below=1.0)
        _require_float(self, "save_interval", minimum=0.0)
        _require_bool(self, "varlen")
        _require_choice(self, "loss", get_args(Loss))
        _require_choice(self, "optimizer", get_args(OptimizerName))
        _require_choice(self, "schedule", get_args(ScheduleName))
        _require_choice(self, "dtype", get_args(Precision))
        _require_choice(self, "dataset", get_args(DatasetName))
        _require_choice(self, "vocabulary", get_args(VocabularyKind), optional=True)
        if self.tokenizer is not None and not (self.tokenizer and isinstance(self.tokenizer, str)):
            raise NpxlError(
                f"tokenizer is {self.tokenizer!r}, but it must be the path of a tokenizer.json or "
                "none."
            )
        _require_that_options_have_an_effect(self)


Config = TypeVar("Config", ModelConfig, TrainConfig)


def to_dict(config: ModelConfig | TrainConfig) -> dict[str, Any]:
    """A configuration as plain JSON values."""
    values = asdict(config)
    return {n: list(value) if isinstance(value, tuple) else value for n, value in values.items()}


def from_dict(kind: type[Config], values: dict[str, Any]) -> Config:
    """A configuration of class `kind` from plain values; unknown names are an error."""
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise NpxlError(f"{kind.__name__} has no option {name!r}; it has {', '.join(known)}.")
    return kind(**values)


def checked_int(
    name: str,
    value: Any,
    minimum: int,
    maximum: int | None = _LARGEST,
    optional: bool = False,
) -> Any:
    """`value` as an int, NumPy's whole numbers included; None only if it is optional."""
    if optional and value is None:
        return None
    if not _is_whole(value) or value < minimum:
        unset = " or none" if optional else ""
        raise NpxlError(
            f"{name} is {value!r}, but it must be a whole number of at least {minimum}{unset}."
        )
    if maximum is not None and value > maximum:
        raise NpxlError(f"{name} is {value!r}, but it must be at most {maximum}.")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _require_int(
    config: Any,
    name: str,
    minimum: int,
    maximum: int | None = _LARGEST,
    optional: bool = False,
) -> None:
    value = checked_int(name, getattr(config, name), minimum, maximum, optional)
    object.__setattr__(config, name, value)  # a field of a frozen dataclass


def _require_float(
    config: Any,
    name: str,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    value = getattr(config, name)
    if optional and value is None:
        return
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and minimum <= value <= maximum and above < value < below:
        object.__setattr__(config, name, float(value))
        return
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (
            ("at least", minimum),
            ("more than", above),
            ("at most", maximum),
            ("less than", below),
        )
        if math.isfinite(bound)
    ]
    unset = " or none" if optional else ""
    raise NpxlError(
        f"{name} is {value!r}, but it must be a number of {' and '.join(bounds)}{unset}."
    )


def _require_tuple(config: Any, name: str, kind: type[int]) -> None:
    """Whole numbers, or true and false: in a list, as files have them, or in a tuple."""
    values = getattr(config, name)
    is_one, several = {
        int: (_is_whole, "whole numbers"),
        bool: (lambda value: isinstance(value, bool), "true and false"),
    }[kind]
    if not isinstance(values, list | tuple) or not all(map(is_one, values)):
        raise NpxlError(f"{name} is {values!r}, but it must be a list of {several}.")
    object.__setattr__(config, name, tuple(map(kind, values)))


def _require_bool(config: Any, name: str) -> None:
    value = getattr(config, name)
    if not isinstance(value, bool):
        raise NpxlError(f"{name} is {value!r}, but it must be true or false.")


def _require_choice(
    config: Any, name: str, choices: tuple[str, ...], optional: bool = False
) -> None:
    value = getattr(config, name)
    if value not in choices and not (optional and value is None):
        unset = " or none" if optional else ""
        raise NpxlError(f"{name} is {value!r}, but it must be one of {', '.join(choices)}{unset}.")


def _require_that_options_have_an_effect(config: Any) -> None:
    """NpxlError when one differs from its default that nothing reads beside the others."""
    for option in fields(config):
        if option.name not in _READ_ONLY_WITH:
            continue
        chooser, reader = _READ_ONLY_WITH[option.name]
        value, chosen = getattr(config, option.name), getattr(config, chooser)
        if value != option.default and chosen != reader:
            raise NpxlError(
                f"{option.name} is {value!r}, but only the {chooser} {reader} reads it, and the "
                f"{chooser} is {chosen}: leave {option.name} out, or choose {reader}."
            )
