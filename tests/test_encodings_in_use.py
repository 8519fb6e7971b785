"""Every encoding of positions goes through everything that is done with a model."""

import json

import numpy as np
import pytest
from small_runs import create, finish, write_text

import npxl
from npxl.cli import main
from npxl.inference import evaluate, generate, score
from npxl.testing.strategies import ATTN_TYPES
from npxl.training.loop import Trainer
from npxl.training.run import Run

pytestmark = [
    pytest.mark.parametrize("attn_type", ATTN_TYPES),
    pytest.mark.parametrize("mem_len", [8, 0]),
]
OPTIONS = dict(schedule="constant", warmup_steps=0, eval_interval=3, workers=2)


def new_run(folder, attn_type, mem_len, **train):
    model = dict(attn_type=attn_type, mem_len=mem_len, clamp_len=10)
    return create(folder / "run", write_text(folder / "text.txt"), model, **OPTIONS, **train)


def test_a_run_goes_on_with_the_same_bits(tmp_path, attn_type, mem_len):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = finish(new_run(tmp_path / "whole", attn_type, mem_len, steps=6).folder)
    stopped = finish(new_run(tmp_path / "stopped", attn_type, mem_len, steps=3).folder)
    assert Trainer(Run.open(stopped.folder), steps=6).run()
    ours, expected = (run.checkpoint() for run in (stopped, whole))
    np.testing.assert_array_equal(ours.model.params.flat, expected.model.params.flat)
    np.testing.assert_array_equal(ours.memory.states, expected.memory.states)
    assert ours.memory.length == mem_len


def test_a_saved_model_is_scored_and_continued(tmp_path, capsys, attn_type, mem_len):
    run = finish(new_run(tmp_path, attn_type, mem_len, steps=3, dtype="float64").folder)
    model = npxl.load(run.best)
    assert model.config == run.model_config
    tokens = run.corpus.valid.tokens
    one = score(model, tokens, 8, n_streams=1)
    several = score(model, tokens, 8, n_streams=3, n_workers=2)
    np.testing.assert_allclose(several, one, rtol=0, atol=1e-12)

    assert main(["eval", str(run.folder), "--split", "valid", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["nll"] == pytest.approx(evaluate(model, tokens, 8).nll, rel=1e-9)
    assert len(list(generate(model, [97, 98], 5, mem_len=6))) == 5
    assert main(["info", str(run.folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["parameters"] == model.params.flat.size
    assert printed["model"]["attn_type"] == attn_type
