"""Models as safetensors files, with the configuration in the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from npxl.config import ARCHITECTURES, config_of, to_dict
from npxl.errors import NpxlError
from npxl.params import Params, check_shapes
from npxl.tensor_files import EXTRA_PREFIX, TensorFile, open_tensors, write_tensors

if TYPE_CHECKING:
    from npxl.models import LanguageModel
    from npxl.models.lstm import LSTM
    from npxl.models.transformer_xl import TransformerXL


def save_model(
    model: LanguageModel,
    path: str | Path,
    more_tensors: Mapping[str, NDArray[Any]] | None = None,
    more_metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a model to a safetensors file, atomically.

    A checkpoint adds tensors, whose names start with `EXTRA_PREFIX`, and metadata of its own; it
    stays a file that `load_model` reads.
    """
    config = model.config
    metadata = {"model": config.architecture, "config": to_dict(config), **(more_metadata or {})}
    write_tensors(path, {**model.params, **(more_tensors or {})}, metadata)


def load_model(path: str | Path) -> TransformerXL | LSTM:
    """The model in a file that `save_model` wrote; NpxlError says what is wrong with the file."""
    if Path(path).is_dir():
        raise NpxlError(
            f"{path} is a folder, but a model's file was expected: of a run, load "
            f"{Path(path, 'best.safetensors')}."
        )
    with open_tensors(path) as file:
        return model_from(file)


def model_from(file: TensorFile) -> TransformerXL | LSTM:
    """The model in an open file; its tensors are read one by one into the model's vector."""
    from npxl.models.architectures import model_class  # models save by this module themselves

    metadata = file.metadata
    if metadata.get("model") not in ARCHITECTURES:
        raise NpxlError(
            f"{file.path} holds a model of kind {metadata.get('model')!r}, unknown to npxl."
        )
    try:
        config = config_of(metadata["model"], metadata["config"])
        kind = model_class(config)
        own = {n: spec for n, spec in file.specs.items() if not n.startswith(EXTRA_PREFIX)}
        shapes = kind.parameter_shapes(config)
        check_shapes({name: spec.shape for name, spec in own.items()}, shapes)
        dtypes = {spec.dtype for spec in own.values()}
        if len(dtypes) != 1:
            raise NpxlError(f"Its tensors have the types {sorted(map(str, dtypes))}, not one type.")
        params = Params(shapes, dtype=dtypes.pop())
        for name, view in params.items():
            view[...] = file[name]
        return kind(config, params=params)
    except (KeyError, TypeError, NpxlError) as error:
        raise NpxlError(f"{file.path} holds no usable model. {error}") from error
