"""Transformer-XL in NumPy and Numba, with every gradient written by hand.

>>> import npxl
>>> config = npxl.ModelConfig(vocab_size=256, n_layer=2, mem_len=64)
>>> model = npxl.TransformerXL(config, seed=0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from npxl.environment import installed_version

# For type checkers, which do not run `__getattr__`; a test holds it against `_HOMES`.
if TYPE_CHECKING:
    from npxl.audit.gradients import gradcheck as gradcheck
    from npxl.config import LSTMConfig as LSTMConfig
    from npxl.config import ModelConfig as ModelConfig
    from npxl.config import TrainConfig as TrainConfig
    from npxl.data.corpora import load_corpus as load_corpus
    from npxl.errors import NpxlError as NpxlError
    from npxl.kernels.cross_entropy import IGNORE as IGNORE
    from npxl.layers.dropout import MaskKey as MaskKey
    from npxl.memory import Memory as Memory
    from npxl.models.files import load_model
    from npxl.models.lstm import LSTM as LSTM
    from npxl.models.transformer_xl import TransformerXL as TransformerXL
    from npxl.params import Params as Params

    load = load_model
    __version__: str

# Loaded on first use: asking the command line for help needs neither numba nor NumPy.
_HOMES = {
    "IGNORE": ("npxl.kernels.cross_entropy", "IGNORE"),
    "LSTM": ("npxl.models.lstm", "LSTM"),
    "LSTMConfig": ("npxl.config", "LSTMConfig"),
    "MaskKey": ("npxl.layers.dropout", "MaskKey"),
    "Memory": ("npxl.memory", "Memory"),
    "ModelConfig": ("npxl.config", "ModelConfig"),
    "NpxlError": ("npxl.errors", "NpxlError"),
    "Params": ("npxl.params", "Params"),
    "TrainConfig": ("npxl.config", "TrainConfig"),
    "TransformerXL": ("npxl.models.transformer_xl", "TransformerXL"),
    "gradcheck": ("npxl.audit.gradients", "gradcheck"),
    "load": ("npxl.models.files", "load_model"),
    "load_corpus": ("npxl.data.corpora", "load_corpus"),
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version("npxl")
    if name not in _HOMES:
        raise AttributeError(f"module 'npxl' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
