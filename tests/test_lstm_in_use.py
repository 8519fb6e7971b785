"""An LSTM goes through everything that is done with a model, and refuses what it has not."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import TRAIN, contents, finish, write_text

import npxl
from npxl import LSTM, LSTMConfig, TrainConfig
from npxl.cli import main
from npxl.cli.options import configured
from npxl.config import to_dict
from npxl.inference import evaluate, score
from npxl.params import n_parameters
from npxl.presets import preset
from npxl.training.loop import Trainer
from npxl.training.run import Run

OPTIONS = ["--architecture=lstm", "--n-layer=2", "--d-model=12", "--dropout=0.1"]
SHORT = ["--batch-size=3", "--tgt-len=8", "--warmup-steps=1", "--workers=2", "--eval-interval=4"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text.txt")
    return tmp_path


def create(folder, d_model=12, **train):
    return Run.create(
        folder,
        "text.txt",
        LSTMConfig(d_model=d_model, dropout=0.1, init_std=0.2),
        TrainConfig(**{**TRAIN, "schedule": "constant", **train}),
    )


def test_a_run_goes_on_with_the_same_bytes(here):
    whole = finish(create(here / "whole", steps=20).folder)
    stopped = finish(create(here / "stopped", steps=7).folder)
    assert Trainer(Run.open(stopped.folder), steps=20).run()
    assert contents(stopped) == contents(whole)
    memory = whole.checkpoint().memory
    assert memory.states.shape == (2, 3, 2, 12)
    assert np.abs(memory.states).min() > 0


def test_it_learns(here):
    """A text of six words: what comes next in one is nearly certain, and which one is not."""
    run = finish(create(here / "run", 32, steps=200, lr=1e-2, eval_interval=200).folder)
    tokens = run.corpus.valid.tokens
    frequencies = np.bincount(tokens) / len(tokens)
    entropy = -sum(p * np.log(p) for p in frequencies if p)
    assert run.checkpoint().progress.best.nll < 0.6 * entropy


def test_everything_that_is_done_with_a_run(here, capsys):
    assert main(["train", "text.txt", "--out=run", *OPTIONS, *SHORT, "--steps=8"]) == 0
    assert f"{n_parameters(LSTM.parameter_shapes(Run.open('run').model_config)):,}" in (
        capsys.readouterr().out
    )
    record = json.loads(Path("run/run.json").read_text())
    assert record["architecture"] == "lstm"
    assert record["model"] == to_dict(Run.open("run").model_config)

    assert main(["eval", "run", "--split=valid", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    model, tokens = npxl.load("run/best.safetensors"), Run.open("run").corpus.valid.tokens
    assert isinstance(model, LSTM)
    assert printed["nll"] == pytest.approx(evaluate(model, tokens, 8).nll, rel=1e-6)
    log_p, _ = model.log_probs(tokens[None, :-1].astype(int), model.init_memory(1))
    expected = -log_p[0, np.arange(len(tokens) - 1), tokens[1:]]
    np.testing.assert_allclose(score(model, tokens, 8, n_workers=2), expected, atol=1e-5)

    assert main(["generate", "run", "--prompt=abba ", "--tokens=10"]) == 0
    assert capsys.readouterr().out.startswith("abba ")

    assert main(["info", "run", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["architecture"], printed["reach"]) == ("lstm", None)
    assert printed["parameters"] == model.params.flat.size
    assert main(["info", "run"]) == 0
    assert "reach                all tokens before" in capsys.readouterr().out

    only = ["gradients/first-segment", "truncation/trained", "recurrence/segmentation"]
    assert main(["audit", "run", "--only", *only, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["passed"]
    assert {check["name"]: len(check["rows"]) for check in printed["checks"]} == {
        "gradients/first-segment": 10, "truncation/trained": 10, "recurrence/segmentation": 3
    }  # fmt: skip

    assert main(["train", "--out=run", "--resume", "--steps=12"]) == 0
    assert Run.open("run").checkpoint().progress.step == 12


@pytest.mark.parametrize(
    ("name", "architecture"), [("lstm", "lstm"), ("vanilla", "transformer_xl")]
)  # fmt: skip
def test_a_preset_to_compare_with_is_audited(here, capsys, name, architecture):
    only = ["gradients/first-segment", "structure/sums", "recurrence/streams"]
    assert main(["audit", f"--preset={name}", "--only", *only, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["passed"]
    assert (printed["architecture"], len(printed["checks"])) == (architecture, 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "text.txt", *OPTIONS, "--n-head=2"], "n_head is 2, but the architecture lstm"),
        (["train", "text.txt", *OPTIONS, "--preset=tiny"], "the preset tiny is of a transformer"),
        (["eval", "run", "--mem-len=4"], "LSTMConfig has no option 'mem_len'"),
        (["generate", "run", "--mem-len=4"], "mem_len is 4, but an LSTM remembers all"),
        (["convert", "run", "--out=converted"], "architecture lstm, but only a transformer_xl"),
        (["audit", "run", "--only=recurrence/clamp"], "Nothing was checked: the configuration"),
    ],
)
def test_what_it_has_not_is_refused_in_a_sentence(here, capsys, words, sentence):
    create(here / "run")
    assert main(words) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_file_says_which_model_it_is(here, capsys):
    file = here / "lstm.toml"
    file.write_text('steps = 3\n[model]\narchitecture = "lstm"\nn_layer = 1\n')
    model, train, chosen = configured(None, file, {"d_model": 7})
    assert model == LSTMConfig(n_layer=1, d_model=7)
    assert train.steps == 3
    assert chosen == {"steps", "architecture", "n_layer", "d_model"}
    model, _, _ = configured(None, None, {"architecture": "transformer_xl"})
    assert model == preset("default").model
    model, _, _ = configured("lstm", None, {"architecture": "lstm"})
    assert model == preset("lstm").model
    file.write_text('architecture = "gru"\n')
    assert main(["train", "text.txt", "--config=lstm.toml"]) == 2
    assert "architecture is 'gru', but it must be one of" in capsys.readouterr().err


def test_a_run_from_before_there_were_others_is_a_transformers(here):
    assert main(["train", "text.txt", "--out=run", "--preset=tiny", "--steps=1", *SHORT]) == 0
    path = Path("run/run.json")
    record = json.loads(path.read_text())
    assert record.pop("architecture") == "transformer_xl"
    path.write_text(json.dumps(record))
    assert Run.open("run").model().config == Run.open("run").model_config


def test_the_presets_to_compare_with_are_as_large_as_the_default():
    def size(name):
        model = preset(name).model
        kind = {"lstm": npxl.LSTM}.get(model.architecture, npxl.TransformerXL)
        return n_parameters(kind.parameter_shapes(model))

    for name in ("lstm", "vanilla"):
        assert size(name) == pytest.approx(size("default"), rel=0.005)
