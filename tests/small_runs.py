"""Runs that take a moment: what the tests of training share."""

from pathlib import Path

import numpy as np

from npxl import TrainConfig
from npxl.config import config_of
from npxl.training.loop import Trainer
from npxl.training.run import Run

MODEL = dict(n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=16, mem_len=8, dropout=0.1)
LSTM = dict(n_layer=2, d_model=12, dropout=0.1)
OTHERS = {
    "lstm": dict(architecture="lstm"),
    "vanilla": dict(mem_len=0, attn_type="al-rfou", clamp_len=7),
}
"""Models to compare with, as `create` takes them."""
TRAIN = dict(
    batch_size=3,
    tgt_len=8,
    steps=60,
    lr=5e-3,
    warmup_steps=10,
    eval_interval=20,
    log_interval=7,
    save_interval=0.0,
    workers=2,
)


def write_text(path: Path, n_words: int = 800) -> Path:
    """Some text over few letters, always the same."""
    words = ["ababa", "cadabra", "abba", "bar", "dad", "cab"]
    picks = np.random.default_rng(0).choice(words, n_words)
    path.write_text(" ".join(picks) + "\n")
    return path


def create(folder: Path, text: Path, model=None, **train) -> Run:
    options = {"architecture": "transformer_xl", **(model or {})}
    architecture = options.pop("architecture")
    ordinary = LSTM if architecture == "lstm" else MODEL
    return Run.create(
        folder,
        text,
        config_of(architecture, {**ordinary, **options}),
        TrainConfig(**{**TRAIN, **train}),
        command=["npxl", "train"],
    )


def finish(folder: Path, reporter=None) -> Run:
    """Train what is in the folder to its end, as a new process would."""
    run = Run.open(folder)
    assert Trainer(run).run(reporter)
    return run


def contents(run: Run) -> dict[str, bytes]:
    """The files that an interruption must not change."""
    return {path.name: path.read_bytes() for path in (run.last, run.best)}
