"""What npxl bench counts and compares; how fast anything is, no test says."""

import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from support import configs

from npxl import ModelConfig, NpxlError
from npxl.bench import run
from npxl.bench.arithmetic import reading, training_step, visible_cells
from npxl.bench.shapes import Shape
from npxl.cli import main

TINY = Shape(
    ModelConfig(vocab_size=7, n_layer=1, n_head=2, d_model=4, d_head=3, d_inner=5, mem_len=3,
                initial_memory="zeros"),
    batch_size=2, tgt_len=2,
)  # fmt: skip


@given(config=configs())
def test_visible_cells_are_counted_one_by_one(config):
    tgt_len, m = 3, config.mem_len
    window = config.attn_window or 10**9
    seen = [(i, j) for i in range(tgt_len) for j in range(m + tgt_len) if 0 <= m + i - j < window]
    assert visible_cells(config, tgt_len) == len(seen)


def test_arithmetic_of_a_step_product_by_product():
    """Rows × columns × inner length of every matrix product of one layer, two streams."""
    d, width, inner, v, t, k, cells = 4, 6, 5, 7, 2, 5, 4 + 5
    forward = [t * d * width, k * d * width, k * d * width, t * width * d]  # q, k, v, o
    forward += [cells * width] * 3  # (a) + (c), (b) + (d), values
    forward += [t * d * inner, t * inner * d, t * d * v]
    weights = [t * d * width, k * d * width, k * d * width, t * width * d]
    weights += [t * d * inner, t * inner * d, t * d * v]
    inputs = [t * d * width] * 4 + [t * d * inner, t * inner * d, t * d * v]
    scores = [cells * width] * 6  # of p, v, q + u, q + v, k and r
    relative = 2 * k * d * width
    expected = 2 * (2 * sum(forward + weights + inputs + scores) + relative)
    assert training_step(TINY.model, batch_size=2, tgt_len=2) == expected


def test_arithmetic_of_reading_has_no_memory_in_it_but_its_cells():
    d, width, inner, v, t, cells = 4, 6, 5, 7, 2, 4 + 5
    assert reading(TINY.model, 2) == 2 * (
        4 * t * d * width + 2 * t * d * inner + 3 * cells * width + t * d * v
    )


@pytest.mark.parametrize("task", ["train", "evaluate", "generate"])
def test_every_task_is_measured(monkeypatch, task):
    shape = TINY if task != "generate" else Shape(TINY.model, 1, 1)
    monkeypatch.setitem(run.SHAPES[task], "tiny", shape)
    monkeypatch.setattr(run, "_SECONDS_A_TURN", 0.01)
    (result,) = run.measure(task, "tiny", rounds=2)
    assert (result.task, result.shape, result.side) == (task, "tiny", "npxl")
    assert result.tokens_per_second > 0
    assert 0 < result.sgemm_share < 1
    assert result.peak_memory > 10
    assert result.ratio is None


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs the extra peers"
)
def test_a_peer_is_compared(monkeypatch):
    monkeypatch.setitem(run.SHAPES["train"], "tiny", TINY)
    monkeypatch.setattr(run, "_SECONDS_A_TURN", 0.01)
    ours, theirs = run.measure("train", "tiny", ("transformers",), rounds=2)
    assert theirs.disagreement < 1e-4
    assert theirs.ratio > 0
    assert ours.side == "npxl"


def test_sides_that_disagree_are_not_compared():
    sides = {
        "npxl": lambda method, segments: (np.zeros((2, 2, 1)), 0.0),
        "other": lambda method, segments: (np.full((2, 2, 1), 0.1), 0.0),
    }
    with pytest.raises(NpxlError, match=r"0\.1 nats apart"):
        run._disagreements(sides, TINY)


def test_json_and_table(monkeypatch, capsys):
    for shapes in run.SHAPES.values():
        monkeypatch.setitem(shapes, "tiny", TINY)
    monkeypatch.setattr(run, "_SECONDS_A_TURN", 0.01)
    words = ["bench", "--shape", "tiny", "--task", "train", "--rounds", "1"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [result["shape"] for result in printed["results"]] == ["tiny"]
    assert main(words) == 0
    assert "of sgemm" in capsys.readouterr().out


def test_unknown_shapes_and_rounds(capsys):
    assert main(["bench", "--shape", "huge"]) == 2
    assert "choose from base, long, medium, small" in capsys.readouterr().err
    assert main(["bench", "--task", "generate", "--shape", "medium"]) == 2
    assert "no shape 'medium' for generate; choose from base, small" in capsys.readouterr().err
    assert main(["bench", "--rounds", "0"]) == 2


def test_peers_that_are_not_installed_are_named(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["npxl.cli.bench"], "find_spec", lambda name: None)
    assert main(["bench", "--peers"]) == 2
    assert "pip install 'npxl[peers]'" in capsys.readouterr().err


def test_a_side_that_dies_is_an_error(monkeypatch):
    monkeypatch.setitem(run.SHAPES["train"], "tiny", TINY)
    with pytest.raises(NpxlError, match="process of nobody has ended"):
        run.measure("train", "tiny", ("nobody",), rounds=1)


def test_keys_beyond_the_window_need_no_arithmetic():
    window = replace(TINY.model, attn_window=2)
    assert training_step(window, 2, 2) == training_step(replace(window, mem_len=1), 2, 2)
