"""The models that studies share: those of presets, evaluated only at their end."""

from __future__ import annotations

from dataclasses import replace

from npxl.config import ModelConfig, TrainConfig
from npxl.presets import preset


def configurations(name: str) -> tuple[ModelConfig, TrainConfig]:
    """Those of a preset; the validation text is scored once, and chooses no model."""
    chosen = preset(name)
    return chosen.model, replace(chosen.train, eval_interval=chosen.train.steps)


FULL_MODEL, FULL_TRAIN = configurations("default")
QUICK_MODEL, QUICK_TRAIN = configurations("tiny")
