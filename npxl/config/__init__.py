"""What a model is and how it is trained: frozen dataclasses, validated once.

Their fields are the options of the command line and the keys of a TOML file; their documentation is
the help text.  Names are those of the paper's code.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any, TypeVar, cast

from npxl.config.base import LanguageModelConfig
from npxl.config.checks import checked_int
from npxl.config.lstm import LSTMConfig
from npxl.config.training import (
    DatasetName,
    Loss,
    OptimizerName,
    Precision,
    ScheduleName,
    TrainConfig,
    VocabularyKind,
)
from npxl.config.transformer_xl import AttentionType, InitialMemory, ModelConfig
from npxl.errors import NpxlError

__all__ = [
    "ARCHITECTURES",
    "AttentionType",
    "DatasetName",
    "InitialMemory",
    "LSTMConfig",
    "LanguageModelConfig",
    "Loss",
    "ModelConfig",
    "OptimizerName",
    "Precision",
    "ScheduleName",
    "TrainConfig",
    "VocabularyKind",
    "checked_int",
    "config_of",
    "from_dict",
    "to_dict",
    "with_options",
]

ARCHITECTURES: dict[str, type[ModelConfig] | type[LSTMConfig]] = {
    kind.architecture: kind for kind in (ModelConfig, LSTMConfig)
}
"""The kinds of models by name, each with the class of its configurations."""

Config = TypeVar("Config", bound=LanguageModelConfig | TrainConfig)
Model = TypeVar("Model", bound=LanguageModelConfig)


def to_dict(config: LanguageModelConfig | TrainConfig) -> dict[str, Any]:
    """A configuration as plain JSON values."""
    values = asdict(cast(Any, config))
    return {n: list(value) if isinstance(value, tuple) else value for n, value in values.items()}


def from_dict(kind: type[Config], values: dict[str, Any]) -> Config:
    """A configuration of class `kind` from plain values; unknown names are an error."""
    known = [field.name for field in fields(cast(Any, kind))]
    for name in values:
        if name not in known:
            raise NpxlError(f"{kind.__name__} has no option {name!r}; it has {', '.join(known)}.")
    return kind(**values)


def with_options(config: Model, **options: Any) -> Model:
    """A model's configuration with some options replaced, as far as it has them.

    An option of other architectures means nothing to it; one that none has is an error.
    """
    known = {field.name for kind in ARCHITECTURES.values() for field in fields(kind)}
    for name in options:
        if name not in known:
            raise NpxlError(f"No architecture has an option {name!r}.")
    own = {name: value for name, value in options.items() if name in to_dict(config)}
    changed: Model = replace(cast(Any, config), **own)
    return changed


def config_of(architecture: Any, values: dict[str, Any]) -> ModelConfig | LSTMConfig:
    """The configuration of a model of some architecture, from plain values."""
    if architecture not in ARCHITECTURES:
        raise NpxlError(
            f"There is no architecture {architecture!r}; npxl has {', '.join(ARCHITECTURES)}."
        )
    return from_dict(ARCHITECTURES[architecture], values)
