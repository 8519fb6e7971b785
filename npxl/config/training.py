"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from npxl.config.checks import (
    ReadOnlyWith,
    require_bool,
    require_choice,
    require_float,
    require_int,
    require_that_options_have_an_effect,
)
from npxl.errors import NpxlError

Loss = Literal["full", "half"]
Precision = Literal["float32", "float64"]
OptimizerName = Literal["adam", "sgd", "adagrad"]
ScheduleName = Literal["cosine", "inv_sqrt", "plateau", "constant"]
DatasetName = Literal["text", "wt103", "enwik8", "text8", "lm1b", "ptb"]
VocabularyKind = Literal["bytes", "characters", "words", "symbols", "subwords"]

_ABOUT_TEXT = {"about": "text"}
"""Of options that say how the text is read, rather than how a model is trained."""

READ_ONLY_WITH: ReadOnlyWith = {
    "momentum": ("optimizer", ("sgd",)),
    "beta1": ("optimizer", ("adam",)),
    "beta2": ("optimizer", ("adam",)),
    "adam_epsilon": ("optimizer", ("adam",)),
    "lr_min_ratio": ("schedule", ("cosine", "plateau")),
    "decay_rate": ("schedule", ("plateau",)),
    "patience": ("schedule", ("plateau",)),
}


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
        The cosine ends at this fraction of lr, and plateau goes no lower. Only for these two.
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
            require_int(self, name, minimum=1)
        require_int(self, "batch_chunk", minimum=1)
        if self.batch_chunk > self.batch_size:
            raise NpxlError(
                f"batch_chunk is {self.batch_chunk}, but it must be at most the batch_size, "
                f"{self.batch_size}."
            )
        for name in ("eval_interval", "log_interval"):
            require_int(self, name, minimum=1)
        for name in ("warmup_steps", "patience"):
            require_int(self, name, minimum=0)
        require_int(self, "seed", minimum=0, maximum=None)
        for name in ("workers", "min_count"):
            require_int(self, name, minimum=1, optional=True)
        require_float(self, "minutes", above=0.0, optional=True)
        for name in ("lr", "adam_epsilon"):
            require_float(self, name, above=0.0)
        require_float(self, "clip", above=0.0, optional=True)
        for name in ("momentum", "beta1", "beta2"):
            require_float(self, name, minimum=0.0, below=1.0)
        require_float(self, "lr_min_ratio", minimum=0.0, maximum=1.0)
        require_float(self, "decay_rate", above=0.0, below=1.0)
        require_float(self, "save_interval", minimum=0.0)
        require_bool(self, "varlen")
        require_choice(self, "loss", get_args(Loss))
        require_choice(self, "optimizer", get_args(OptimizerName))
        require_choice(self, "schedule", get_args(ScheduleName))
        require_choice(self, "dtype", get_args(Precision))
        require_choice(self, "dataset", get_args(DatasetName))
        require_choice(self, "vocabulary", get_args(VocabularyKind), optional=True)
        if self.tokenizer is not None and not (self.tokenizer and isinstance(self.tokenizer, str)):
            raise NpxlError(
                f"tokenizer is {self.tokenizer!r}, but it must be the path of a tokenizer.json or "
                "none."
            )
        require_that_options_have_an_effect(self, READ_ONLY_WITH)
