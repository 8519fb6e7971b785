"""The paper's figures (Dai et al. 2019, arXiv 1901.02860v3) that studies are shown beside."""

from __future__ import annotations

from typing import NamedTuple

from npxl.config import AttentionType, Loss


class AblationRow(NamedTuple):
    """A row of Table 6: perplexity on WikiText-103, backpropagation over 128 words."""

    recurrence: bool
    attn_type: AttentionType
    loss: Loss
    initial: float
    """With the attention length of training."""
    best: float
    """With the best attention length."""
    attention_length: int
    """The best one."""


TABLE_6 = (
    AblationRow(True, "dai", "full", 27.02, 26.77, 500),
    AblationRow(True, "shaw", "full", 27.94, 27.94, 256),
    AblationRow(True, "dai", "half", 28.69, 28.33, 460),
    AblationRow(False, "dai", "full", 29.59, 29.02, 260),
    AblationRow(False, "dai", "half", 30.10, 30.10, 120),
    AblationRow(False, "shaw", "full", 29.75, 29.75, 120),
    AblationRow(False, "shaw", "half", 30.50, 30.50, 120),
    AblationRow(False, "vaswani", "half", 30.97, 30.97, 120),
    AblationRow(False, "al-rfou", "half", 31.16, 31.16, 120),
)
"""128M parameters."""

TABLE_7: dict[tuple[bool, AttentionType], float] = {
    (True, "dai"): 25.2,
    (True, "shaw"): 25.7,
    (False, "dai"): 27.1,
}
"""Perplexity on One Billion Word, whose sentences are shuffled, by recurrence and encoding."""

TABLE_8 = (
    {
        "Transformer-XL": (900, 800, 700),
        "QRNN": (500, 400, 300),
        "LSTM": (400, 300, 200),
    },
    {
        "Transformer-XL": (700, 600, 500),
        "with Shaw's encoding": (400, 400, 300),
        "without recurrence": (300, 300, 300),
        "Transformer": (128, 128, 128),
    },
)
"""Relative effective context length in words of WikiText-103 at r = 0.1, 0.5 and 1, by group."""

TABLE_9 = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""How many times slower the evaluation of Al-Rfou et al. 2019 is, by attention length."""

TRAINED_FOR, EVALUATED_WITH = 784, 3800
"""Attention lengths on enwik8 in training and in evaluation (section 4.1)."""
