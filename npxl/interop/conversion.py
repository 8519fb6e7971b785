"""From one implementation's files to another's: what npxl convert does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npxl.config import ModelConfig
from npxl.errors import NpxlError
from npxl.interop.original import read_original
from npxl.interop.tensors import HUGGING_FACE, ORIGINAL, Dialect, Part, Tensor, tensors
from npxl.interop.transfoxl import read_transfoxl, write_transfoxl
from npxl.models import LanguageModel
from npxl.models.files import load_model
from npxl.models.transformer_xl import TransformerXL
from npxl.params import n_parameters

Target = Literal["npxl", "transfoxl"]
Names = tuple[str, ...]
Source = Literal["npxl", "transfoxl", "original"]


@dataclass(frozen=True)
class Conversion:
    """What has been converted."""

    source: Source
    target: Target
    config: ModelConfig
    dtype: np.dtype[Any]

    @property
    def n_parameters(self) -> int:
        """Numbers in all tensors, those that are tied once."""
        return n_parameters(TransformerXL.parameter_shapes(self.config))

    @property
    def rows(self) -> list[Row]:
        """The tensors on the other side, which is that of PyTorch, and what they are of npxl's.

        None when both sides are npxl's.
        """
        if self.source == self.target == "npxl":
            return []
        return rows(self.config, ORIGINAL if self.source == "original" else HUGGING_FACE)


def convert(
    source: str | Path | LanguageModel,
    out: str | Path,
    target: Target | None = None,
    options: str | Path | Mapping[str, Any] | None = None,
    **changes: Any,
) -> Conversion:
    """Read a model of any implementation and write it for another.

    Parameters
    ----------
    source
        A folder of Hugging Face's TransfoXL; with `options`, a state dict of the original code; a
        model of npxl, or the file that it was saved to.
    out
        The file for npxl, or the folder for Hugging Face, to make; nothing may be there.
    target
        Whose form to write; npxl's when not given, or Hugging Face's of a model of npxl.
    options
        What `read_original` takes besides the state dict.
    **changes
        New values of fields that `TransformerXL.reconfigured` changes; predictions change with
        them.

    Raises
    ------
    NpxlError
        When there is something at `out`, and for all that `read_transfoxl`, `read_original`,
        `npxl.load` and `write_transfoxl` refuse.
    """
    out = Path(out)
    if out.exists():
        raise NpxlError(f"{out} exists, and nothing is overwritten: choose another name.")
    kind, model = _read(source, options)
    model = model.reconfigured(**changes)
    target = target or ("transfoxl" if kind == "npxl" else "npxl")
    if target == "transfoxl":
        write_transfoxl(model, out)
    else:
        model.save(out)
    return Conversion(kind, target, model.config, model.dtype)


def _read(
    source: str | Path | LanguageModel, options: str | Path | Mapping[str, Any] | None
) -> tuple[Source, TransformerXL]:
    if not isinstance(source, str | Path):
        if options is not None:
            raise NpxlError(
                "Options of the original code (--args) belong to its state dict, but this is a "
                "model of npxl, which has its own: leave them out."
            )
        return "npxl", _transformer_xl(source)
    path = Path(source)
    if options is not None:
        if path.is_dir():
            raise NpxlError(
                f"{path} is a folder, but options of the original code (--args) belong to its "
                "state dict: name that file, or leave them out for a folder of TransfoXL's."
            )
        return "original", read_original(path, options)
    if path.is_dir():
        return "transfoxl", read_transfoxl(path)
    try:
        model = load_model(path)
    except NpxlError as error:
        raise NpxlError(
            f"{error} A state dict of the original code needs its options as well: --args FILE."
        ) from error
    return "npxl", _transformer_xl(model)


def _transformer_xl(model: LanguageModel) -> TransformerXL:
    """The model, if it is one that the other implementations have."""
    if not isinstance(model, TransformerXL):
        raise NpxlError(
            f"This model is of the architecture {model.config.architecture}, but only a "
            "transformer_xl can be converted."
        )
    return model


@dataclass(frozen=True)
class Row:
    """One of their tensors, or the same one of every layer."""

    names: Names
    ours: Names
    shape: tuple[int, ...]
    n_tensors: int


def rows(config: ModelConfig, dialect: Dialect) -> list[Row]:
    """The table of tensors, with one row for what all layers have; docs/weights.md shows it."""
    counts: Counter[tuple[Names, Names, tuple[int, ...]]] = Counter()
    for tensor in tensors(config, dialect):
        names = tuple(dict.fromkeys(map(_of_any_layer, tensor.names)))  # each once, in order
        ours = tuple(dict.fromkeys(map(_of_any_layer, _described(tensor))))
        counts[names, ours, tensor.shape] += 1
    return [Row(*row, n_tensors) for row, n_tensors in counts.items()]


def _of_any_layer(name: str) -> str:
    return re.sub(r"\blayers\.\d+", "layers.{n}", name)


def _described(tensor: Tensor) -> list[str]:
    if tensor.constant is not None:
        return ["10000^(−2i/d_model)"]
    return [part.ours + _rows_of(part) for part in tensor.parts]


def _rows_of(part: Part) -> str:
    """Which rows of npxl's, where it is not all of them in their order."""
    if part.at == slice(None, None, -1):
        return "[::-1]"
    if part.rows == slice(None):
        return ""
    return f"[{part.rows.start}:{part.rows.stop}]"
