"""Presets: pairs of configurations by name.

Those of the benchmarks are the released models'.  Each has a sibling NAME-cpu: the same form, with
fewer and narrower layers, for one night on a laptop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from npxl.config import DatasetName, LSTMConfig, ModelConfig, TrainConfig
from npxl.datasets import DATASETS
from npxl.errors import NpxlError

Model = TypeVar("Model", ModelConfig, LSTMConfig)


@dataclass(frozen=True)
class Preset(Generic[Model]):
    """A named pair of configurations."""

    summary: str
    model: Model
    train: TrainConfig


def _vocab_size(dataset: DatasetName) -> int:
    size = DATASETS[dataset].vocab_size
    assert size is not None
    return size


def _for_a_night(
    preset: Preset[ModelConfig], model: dict[str, Any], train: dict[str, Any]
) -> Preset[ModelConfig]:
    """A preset with other sizes; in a night a text is read less than once, which needs no dropout.

    Evaluations are counted in the night.  A layer this narrow learns faster than at the original's
    rate, after a warm-up.
    """
    night = dict(
        minutes=480.0, batch_size=8, lr=1e-3, lr_min_ratio=0.01, warmup_steps=1000,
        eval_interval=5000, log_interval=100,
    )  # fmt: skip
    title = DATASETS[preset.train.dataset].title
    return Preset(
        f"{title}, a small model of the same form for one night on a laptop",
        replace(preset.model, dropout=0.0, dropatt=0.0, **model),
        replace(preset.train, **{**night, **train}),
    )


_ENWIK8_BASE = Preset(
    "enwik8, 12 layers, 41M parameters: 1.06 bits per byte in the paper (Table 2)",
    ModelConfig(
        vocab_size=_vocab_size("enwik8"),
        n_layer=12,
        n_head=8,
        d_model=512,
        d_head=64,
        d_inner=2048,
        mem_len=512,
        dropout=0.1,
    ),
    TrainConfig(
        dataset="enwik8",
        batch_size=22,
        tgt_len=512,
        steps=400_000,
        lr=2.5e-4,
        lr_min_ratio=0.0,
        warmup_steps=0,
        eval_interval=4000,
        log_interval=200,
    ),
)
_ENWIK8_LARGE = Preset(
    "enwik8, 24 layers, 277M parameters: 0.99 bits per byte in the paper (Table 2)",
    ModelConfig(
        vocab_size=_vocab_size("enwik8"),
        n_layer=24,
        n_head=8,
        d_model=1024,
        d_head=128,
        d_inner=3072,
        mem_len=768,
        dropout=0.15,
        dropatt=0.15,
    ),
    TrainConfig(
        dataset="enwik8",
        batch_size=64,
        tgt_len=768,
        steps=400_000,
        lr=2.5e-4,
        lr_min_ratio=0.0,
        warmup_steps=4000,
        eval_interval=4000,
        log_interval=200,
    ),
)
_TEXT8_BASE = Preset(
    "text8, 12 layers: enwik8-base for 27 symbols",
    replace(_ENWIK8_BASE.model, vocab_size=_vocab_size("text8")),
    replace(_ENWIK8_BASE.train, dataset="text8"),
)
_TEXT8_LARGE = Preset(
    "text8, 24 layers: 1.08 bits per character in the paper (Table 3)",
    replace(_ENWIK8_LARGE.model, vocab_size=_vocab_size("text8")),
    replace(_ENWIK8_LARGE.train, dataset="text8", warmup_steps=0),
)
# Their validation text of five million characters takes a quarter of an hour to score.
_CHARACTERS_BASE: dict[str, Any] = dict(
    n_layer=6, d_model=256, d_head=32, d_inner=1024, mem_len=256
)
_CHARACTERS_LARGE: dict[str, Any] = dict(
    n_layer=12, d_model=256, d_head=32, d_inner=768, mem_len=384
)
_CHARACTERS_TRAIN: dict[str, Any] = dict(tgt_len=128, eval_interval=10_000)

_WT103_BASE = Preset(
    "WikiText-103, 16 layers, 151M parameters: perplexity 24.0 in the paper (Table 1)",
    ModelConfig(
        vocab_size=_vocab_size("wt103"),
        n_layer=16,
        n_head=10,
        d_model=410,
        d_head=41,
        d_inner=2100,
        mem_len=150,
        dropout=0.1,
        cutoffs=(20_000, 40_000, 200_000),
    ),
    TrainConfig(
        dataset="wt103",
        batch_size=60,
        tgt_len=150,
        steps=200_000,
        lr=2.5e-4,
        lr_min_ratio=0.0,
        warmup_steps=0,
        eval_interval=4000,
        log_interval=200,
    ),
)
_WT103_LARGE = Preset(
    "WikiText-103, 18 layers, 285M parameters as released: perplexity 18.3 in the paper (Table 1)",
    ModelConfig(
        vocab_size=_vocab_size("wt103"),
        n_layer=18,
        n_head=16,
        d_model=1024,
        d_head=64,
        d_inner=4096,
        mem_len=384,
        dropout=0.2,
        dropatt=0.2,
        cutoffs=(20_000, 40_000, 200_000),
        div_val=4,
        tie_projs=(False, True, True, True),
    ),
    replace(_WT103_BASE.train, batch_size=128, tgt_len=384, steps=4_000_000, warmup_steps=16_000),
)
_LM1B_BASE = Preset(
    "One Billion Word, 18 layers, 358M parameters as released",
    replace(
        _WT103_LARGE.model,
        vocab_size=_vocab_size("lm1b"),
        n_head=8,
        d_head=128,
        mem_len=32,
        dropout=0.0,
        dropatt=0.0,
        cutoffs=(60_000, 100_000, 640_000),
        tie_projs=(),
    ),
    replace(
        _WT103_BASE.train,
        dataset="lm1b",
        batch_size=224,
        tgt_len=32,
        steps=500_000,
        warmup_steps=20_000,
    ),
)
_LM1B_LARGE = Preset(
    "One Billion Word, 24 layers, 0.8B parameters: perplexity 21.8 in the paper (Table 4)",
    replace(
        _LM1B_BASE.model,
        n_layer=24,
        n_head=16,
        d_model=1280,
        d_head=80,
        d_inner=8192,
        dropout=0.05,
        dropatt=0.05,
    ),
    replace(_LM1B_BASE.train, batch_size=512, steps=1_200_000, warmup_steps=30_000),
)

# As large as the paper's model, which is all that it says of it.
_PTB = Preset(
    "Penn Treebank, 12 layers, 24M parameters as in the paper (Table 5), settings of our own",
    ModelConfig(
        vocab_size=_vocab_size("ptb"),
        n_layer=12,
        n_head=10,
        d_model=410,
        d_head=41,
        d_inner=1000,
        mem_len=70,
        dropout=0.4,
        dropatt=0.2,
        pre_lnorm=True,
    ),
    TrainConfig(
        dataset="ptb",
        batch_size=20,
        tgt_len=70,
        steps=40_000,
        lr=2.5e-4,
        lr_min_ratio=0.0,
        warmup_steps=2000,
        eval_interval=1000,
        log_interval=200,
    ),
)

PRESETS: dict[str, Preset[Any]] = {
    # Pre-normalization learns faster at this size and rate: compare npxl train --no-pre-lnorm.
    "default": Preset(
        "the bundled text in about five minutes",
        ModelConfig(mem_len=64, pre_lnorm=True),
        TrainConfig(eval_interval=2800),
    ),
    "lstm": Preset(
        "an LSTM to compare it with: as many parameters, in as long",
        LSTMConfig(),
        TrainConfig(steps=7400, eval_interval=3700),
    ),
    "vanilla": Preset(
        "a Transformer without memory, to compare it with (Al-Rfou et al. 2019)",
        ModelConfig(mem_len=0, attn_type="al-rfou", clamp_len=127, pre_lnorm=True),
        TrainConfig(batch_size=4, tgt_len=128, steps=7000, eval_interval=3500),
    ),
    "tiny": Preset(
        "seconds, to see everything work once",
        ModelConfig(
            n_layer=2, n_head=2, d_model=64, d_head=32, d_inner=128, mem_len=32, pre_lnorm=True
        ),
        TrainConfig(
            tgt_len=32, steps=500, warmup_steps=50, eval_interval=250, log_interval=50, lr=5e-3
        ),
    ),
    "original": Preset(
        "what train.py of the original PyTorch code does unless told otherwise, on WikiText-103",
        ModelConfig(
            vocab_size=_vocab_size("wt103"),
            n_layer=12,
            n_head=10,
            d_model=500,
            d_head=50,
            d_inner=1000,
            mem_len=0,
        ),
        TrainConfig(
            batch_size=60,
            tgt_len=70,
            steps=100_000,
            lr=2.5e-4,
            lr_min_ratio=0.0,
            warmup_steps=0,
            eval_interval=4000,
            log_interval=200,
            seed=1111,
            dataset="wt103",
        ),
    ),
    "wt103-base": _WT103_BASE,
    "wt103-large": _WT103_LARGE,
    "enwik8-base": _ENWIK8_BASE,
    "enwik8-large": _ENWIK8_LARGE,
    "text8-base": _TEXT8_BASE,
    "text8-large": _TEXT8_LARGE,
    "lm1b-base": _LM1B_BASE,
    "lm1b-large": _LM1B_LARGE,
    "ptb": _PTB,
    "wt103-base-cpu": _for_a_night(
        _WT103_BASE,
        dict(
            n_layer=8,
            n_head=6,
            d_model=192,
            d_head=32,
            d_inner=1024,
            cutoffs=(10_000, 40_000, 200_000),
        ),
        dict(),
    ),
    "wt103-large-cpu": _for_a_night(
        _WT103_LARGE,
        dict(n_layer=9, n_head=8, d_model=256, d_head=32, d_inner=1024, mem_len=192),
        dict(tgt_len=128),
    ),
    "enwik8-base-cpu": _for_a_night(_ENWIK8_BASE, _CHARACTERS_BASE, _CHARACTERS_TRAIN),
    "enwik8-large-cpu": _for_a_night(_ENWIK8_LARGE, _CHARACTERS_LARGE, _CHARACTERS_TRAIN),
    "text8-base-cpu": _for_a_night(_TEXT8_BASE, _CHARACTERS_BASE, _CHARACTERS_TRAIN),
    "text8-large-cpu": _for_a_night(_TEXT8_LARGE, _CHARACTERS_LARGE, _CHARACTERS_TRAIN),
    "lm1b-base-cpu": _for_a_night(
        _LM1B_BASE,
        dict(n_layer=9, d_model=256, d_head=32, d_inner=1024, cutoffs=(20_000, 100_000, 640_000)),
        dict(batch_size=32),
    ),
    "lm1b-large-cpu": _for_a_night(
        _LM1B_LARGE,
        dict(
            n_layer=12,
            n_head=10,
            d_model=320,
            d_head=32,
            d_inner=2048,
            cutoffs=(20_000, 100_000, 640_000),
        ),
        dict(batch_size=32),
    ),
    "ptb-cpu": Preset(
        "Penn Treebank, a small model of the same form for an hour on a laptop",
        replace(
            _PTB.model,
            n_layer=3,
            n_head=8,
            d_model=256,
            d_head=32,
            d_inner=1024,
            mem_len=64,
            dropout=0.3,
            dropatt=0.0,
        ),
        replace(
            _PTB.train,
            minutes=55.0,
            batch_size=10,
            tgt_len=64,
            lr=2e-3,
            lr_min_ratio=0.01,
            warmup_steps=200,
        ),
    ),
}


START = {"transformer_xl": "default", "lstm": "lstm"}
"""By architecture, the preset that options change when none is named."""


def preset(name: str) -> Preset[Any]:
    """The preset called `name`; NpxlError lists the names when there is none."""
    if name not in PRESETS:
        raise NpxlError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
