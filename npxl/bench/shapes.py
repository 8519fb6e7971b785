"""The shapes that speed is measured on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npxl.config import ModelConfig
from npxl.presets import preset


@dataclass(frozen=True)
class Shape:
    """A model, and how it is fed.  Memory starts as zeros, so that it is full at once."""

    model: ModelConfig
    batch_size: int
    tgt_len: int


def _shape(
    n_layer: int, d_model: int, n_head: int, d_head: int, d_inner: int, tgt_len: int, mem_len: int,
    batch_size: int, attn_window: int | None = None, clamp_len: int | None = None,
) -> Shape:  # fmt: skip
    model = ModelConfig(
        vocab_size=256, n_layer=n_layer, n_head=n_head, d_model=d_model, d_head=d_head,
        d_inner=d_inner, mem_len=mem_len, attn_window=attn_window, clamp_len=clamp_len,
        initial_memory="zeros",
    )  # fmt: skip
    return Shape(model, batch_size, tgt_len)


TRAINING = {
    "small": _shape(4, 128, 4, 32, 512, 64, 64, 12),
    "medium": _shape(6, 256, 8, 32, 1024, 128, 128, 8),
    "long": _shape(4, 128, 4, 32, 512, 64, 640, 4),
    "base": _shape(12, 512, 8, 64, 2048, 512, 512, 2),
    # 267,735 words in clusters: what a step may not cost.
    "wt103": Shape(
        replace(preset("wt103-base").model, dropout=0.0, initial_memory="zeros"),
        batch_size=2,
        tgt_len=150,
    ),
}
EVALUATION = {
    "small": _shape(4, 128, 4, 32, 512, 64, 640, 1, attn_window=640),
    "base": _shape(12, 512, 8, 64, 2048, 80, 2100, 1, attn_window=2100, clamp_len=820),
}
GENERATION = {
    "small": _shape(4, 128, 4, 32, 512, 1, 640, 1),
    "small-1280": _shape(4, 128, 4, 32, 512, 1, 1280, 1),  # how the cost grows with M
    "small-2560": _shape(4, 128, 4, 32, 512, 1, 2560, 1),
    "base": _shape(12, 512, 8, 64, 2048, 1, 2100, 1),
}

ON_REQUEST = ("wt103",)
"""Shapes that are measured only when they are named: they need minutes, or much memory."""
