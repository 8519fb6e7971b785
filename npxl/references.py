"""The equations that each kind of model is held against, and dropout as they apply it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl import reference, reference_lstm
from npxl.config import LanguageModelConfig
from npxl.layers.dropout import MaskKey, dropout_forward
from npxl.reference import Mask, Output, no_dropout

Array = NDArray[Any]

_MODULES: Mapping[str, ModuleType] = {"transformer_xl": reference, "lstm": reference_lstm}


def reference_of(config: LanguageModelConfig) -> Callable[..., Output]:
    """The literal forward pass of a configuration's models, such as `npxl.reference.forward`."""
    forward: Callable[..., Output] = _MODULES[config.architecture].forward
    return forward


def reference_mask(key: MaskKey | None, config: LanguageModelConfig) -> Mask:
    """The dropout masks of `key` in the form in which a reference applies them."""
    if key is None:
        return no_dropout

    def mask(name: str, x: Array) -> Array:
        rate = config.dropatt if name.endswith("attention_probabilities") else config.dropout
        site = key.site(name)
        if name == "positions":
            site = site.shared()
        return x * dropout_forward(np.ones(x.shape), rate, site)[0]

    return mask
