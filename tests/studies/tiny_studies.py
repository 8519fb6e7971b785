"""Settings of studies that take a moment, and the models that they train."""

from dataclasses import replace
from types import SimpleNamespace

from npxl import LSTMConfig, ModelConfig, TrainConfig
from npxl.models.architectures import model_class
from npxl.studies import lab

MODEL = ModelConfig(
    n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=16, mem_len=8, pre_lnorm=True
)
TRAIN = TrainConfig(
    batch_size=4, tgt_len=8, steps=40, lr=1e-2, warmup_steps=5, eval_interval=40, workers=1
)
LSTM = LSTMConfig(n_layer=1, d_model=12)
SMALLER = {
    "reach": dict(n_configurations=10, n_texts=3, n_distances=4),
    "memory": dict(multiples=(0, 1, 4)),
    "attention": dict(n_streams=2, n_segments=3),
    "speed": dict(
        shapes=(("tiny", MODEL),), lengths=(20, 40), tgt_len=8, n_segments=2, n_windows=2, rounds=1
    ),
    "recl": dict(lstm=LSTM, lstm_train=TRAIN, step=4, longest=24, n_positions=300, n_resampled=20),
    "ablation": dict(seeds=(0,), lengths=(2, 3)),
}


def untrained(lab, model, train, corpus=None):
    """In place of `Lab.trained`: a run whose model is as it begins."""
    return SimpleNamespace(model=lambda which: model_class(model)(model, seed=train.seed))


def model_of(folder, **changes):
    """The model that the studies above have trained with this configuration."""
    expected = replace(MODEL, **changes), replace(TRAIN, vocabulary="bytes")
    (run,) = (
        run
        for run in (lab.Run.open(path) for path in (folder / "models").iterdir())
        if (run.model_config, run.train_config) == expected and "texts" not in run.corpus_source
    )
    return run.model("last")
