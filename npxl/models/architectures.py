"""Which class a model is of, by its configuration."""

from __future__ import annotations

from npxl.config import LanguageModelConfig
from npxl.models.lstm import LSTM
from npxl.models.transformer_xl import TransformerXL

_CLASSES: dict[str, type[TransformerXL] | type[LSTM]] = {
    model.config_class.architecture: model for model in (TransformerXL, LSTM)
}


def model_class(config: LanguageModelConfig) -> type[TransformerXL] | type[LSTM]:
    """The class of the models of a configuration."""
    return _CLASSES[config.architecture]
