"""Checkpoints: all that a run needs to continue bit for bit, in one safetensors file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from npxl.data import Split
from npxl.errors import NpxlError
from npxl.inference.evaluation import Score, bits_per_byte, bits_per_character, perplexity
from npxl.memory import Memory
from npxl.models import LanguageModel
from npxl.models.files import model_from, save_model
from npxl.tensor_files import EXTRA_PREFIX, open_tensors, read_metadata
from npxl.training.schedules import Plateau

Array = NDArray[Any]

_MEMORY = EXTRA_PREFIX + "memory"


@dataclass(frozen=True)
class Evaluation:
    """Scores on the validation split after some step."""

    step: int
    nll: float
    """Nats a token."""
    bpc: float
    """Bits per character of the original text."""
    bpb: float
    """Bits per byte of the original text."""
    ppl: float
    """exp(nll)."""

    @classmethod
    def of(cls, step: int, score: Score, split: Split) -> Evaluation:
        """The score of the model of `step` on `split`, in all units."""
        return cls(
            step=step,
            nll=score.nll,
            bpc=bits_per_character(score.nll, split),
            bpb=bits_per_byte(score.nll, split),
            ppl=perplexity(score.nll),
        )


@dataclass(frozen=True)
class Tally:
    """Sums over the steps since the last line of metrics."""

    steps: int = 0
    nll: float = 0.0
    grad_norm: float = 0.0
    clipped: int = 0


@dataclass(frozen=True)
class Progress:
    """How far a run is.  Nothing here depends on a clock, except `steps` when it was measured."""

    step: int = 0
    """Updates made."""
    steps: int | None = None
    """Updates of the whole run; None while they are to be measured from a number of minutes."""
    evaluated: int = 0
    """The last step whose evaluation is done."""
    consumed: int = 0
    """Tokens that each stream has read."""
    best: Evaluation | None = None
    plateau: Plateau = field(default_factory=Plateau)
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class Checkpoint:
    """A run at one moment: the model, the optimiser's vectors by name, memory and progress."""

    model: LanguageModel
    optimizer: dict[str, Array]
    memory: Memory
    progress: Progress


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, atomically: what was at `path` before stays until all is on the disk.

    The file is also a model file: `npxl.load` reads it and leaves the rest aside.  The same
    checkpoint always gives the same bytes.

    Raises
    ------
    NpxlError
        When the disk is full.
    """
    vectors = {EXTRA_PREFIX + name: each for name, each in checkpoint.optimizer.items()}
    save_model(
        checkpoint.model,
        path,
        {**vectors, _MEMORY: checkpoint.memory.states},
        {"progress": asdict(checkpoint.progress)},
    )


def load_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint in a file that `save_checkpoint` wrote; all arrays are copies.

    Raises
    ------
    NpxlError
        When there is no such file, it is damaged, or it is a model without a run's state.
    """
    with open_tensors(path) as file:
        model = model_from(file)
        progress = _progress_from(path, file.metadata)
        try:
            memory = Memory(file[_MEMORY])
        except (KeyError, NpxlError) as error:
            raise NpxlError(f"{path} holds no usable memory of the streams: {error}") from error
        fresh = model.init_memory(memory.batch_size)
        if _but_for_length(memory) != _but_for_length(fresh):
            raise NpxlError(
                f"{path} holds {memory}, which does not fit its model: expected {fresh}."
            )
        optimizer = {
            name.removeprefix(EXTRA_PREFIX): file[name]
            for name in file
            if name.startswith(EXTRA_PREFIX) and name != _MEMORY
        }
    return Checkpoint(model, optimizer, memory, progress)


def load_progress(path: str | Path) -> Progress:
    """How far the run of a checkpoint is, without reading its tensors."""
    return _progress_from(path, read_metadata(path))


def _progress_from(path: str | Path, metadata: dict[str, Any]) -> Progress:
    try:
        values = dict(metadata["progress"])
        tally = Tally(**_numbers(values.pop("tally")))
        plateau = Plateau(**_numbers(values.pop("plateau")))
        best = values.pop("best")
        best = None if best is None else Evaluation(**_numbers(best))
        return Progress(**_numbers(values), best=best, plateau=plateau, tally=tally)
    except (KeyError, TypeError, ValueError) as error:
        raise NpxlError(
            f"{path} is a model without the state of a run, so that training cannot continue "
            "from it; use the run's last.safetensors."
        ) from error


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    """The record itself; TypeError when a value is no number, or no whole one where it counts."""
    for name, value in dict(record).items():
        counts = name in ("step", "steps", "evaluated", "consumed", "clipped", "bad")
        is_unknown = name in ("steps", "best") and value is None
        if not is_unknown and type(value) not in ((int,) if counts else (int, float)):
            raise TypeError(f"{name} is {value!r}")
    return record


def _but_for_length(memory: Memory) -> tuple[Any, ...]:
    n_layer, batch_size, _, d_model = memory.states.shape
    return n_layer, batch_size, d_model, memory.states.dtype
