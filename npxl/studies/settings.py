"""The models that studies train, and share: those of presets, and their variants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from npxl.config import AttentionType, Loss, LSTMConfig, ModelConfig, TrainConfig
from npxl.presets import preset


class Variant(NamedTuple):
    """A row of the paper's Table 6: whether there is recurrence, which encoding and which loss."""

    recurrence: bool = True
    attn_type: AttentionType = "dai"
    loss: Loss = "full"

    def of(
        self, model: ModelConfig, train: TrainConfig, seed: int = 0
    ) -> tuple[ModelConfig, TrainConfig]:
        """These configurations in this form; learned tables end where training does."""
        mem_len = model.mem_len if self.recurrence else 0
        is_learned = self.attn_type in ("shaw", "al-rfou")
        clamp_len = train.tgt_len + mem_len - 1 if is_learned else None
        return (
            replace(model, mem_len=mem_len, attn_type=self.attn_type, clamp_len=clamp_len),
            replace(train, loss=self.loss, seed=seed),
        )

    def __str__(self) -> str:
        return f"{'' if self.recurrence else 'no '}recurrence, {self.attn_type}, {self.loss} loss"


def filling(model: ModelConfig, train: TrainConfig) -> int:
    """Segments of training until the memory is full."""
    return -(-model.mem_len // train.tgt_len)


def configurations(name: str) -> tuple[Any, TrainConfig]:
    """Those of a preset; the validation text is scored once, and chooses no model."""
    chosen = preset(name)
    return chosen.model, replace(chosen.train, eval_interval=chosen.train.steps)


FULL_MODEL: ModelConfig
LSTM_MODEL: LSTMConfig
QUICK_MODEL: ModelConfig
FULL_MODEL, FULL_TRAIN = configurations("default")
LSTM_MODEL, LSTM_TRAIN = configurations("lstm")
QUICK_MODEL, QUICK_TRAIN = configurations("tiny")


@dataclass(frozen=True)
class TextSetting(ABC):
    """Of a study that trains models on a text and reads one of its splits."""

    corpus: str = "kjv"
    """What `load_corpus` takes."""
    model: ModelConfig = FULL_MODEL
    train: TrainConfig = FULL_TRAIN
    split: str = "valid"

    @property
    @abstractmethod
    def n_models(self) -> int:
        """How many models it needs."""
