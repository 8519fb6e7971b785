"""What npxl bench counts and compares; how fast anything is, no test says."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from matplotlib.figure import Figure

from npxl import MaskKey, ModelConfig, NpxlError, TransformerXL
from npxl.bench import OPTIMIZATIONS, plain, roofline, run
from npxl.bench.arithmetic import (
    reading,
    reading_traffic,
    training_step,
    training_traffic,
    visible_cells,
)
from npxl.bench.shapes import Shape
from npxl.bench.sides import SIDES
from npxl.cli import main
from npxl.kernels import normalization, rectifier
from npxl.kernels.adam import adam_update
from npxl.layers import attention
from npxl.layers.dropout import dropout_cache, dropout_rule
from npxl.testing.strategies import configs

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


def test_a_learned_table_needs_no_product():
    shaw = replace(TINY.model, attn_type="shaw", clamp_len=3)
    k, width, d = 5, 6, 4
    assert training_step(TINY.model, 2, 2) - training_step(shaw, 2, 2) == 2 * 2 * k * d * width
    assert reading(shaw, 2) == reading(TINY.model, 2)
    n_parameters = TransformerXL(shaw).params.flat.size
    assert reading_traffic(shaw, 2, 2) == 4 * (n_parameters + k * width * 2 * 2)


def test_content_alone_needs_no_products_with_distances():
    vaswani = replace(TINY.model, attn_type="vaswani")
    cells, width, k, d = 4 + 5, 6, 5, 4
    less = 2 * (2 * 3 * cells * width + 2 * k * d * width)  # two streams; W_{k,R} once for both
    assert training_step(TINY.model, 2, 2) - training_step(vaswani, 2, 2) == less
    assert reading(TINY.model, 2) - reading(vaswani, 2) == 2 * cells * width
    learned = replace(TINY.model, attn_type="al-rfou", clamp_len=3)
    more = 2 * 2 * 2 * 3 * d * width  # through W_k and W_v to what is added to three in memory
    assert training_step(learned, 2, 2) - training_step(vaswani, 2, 2) == more
    assert reading(learned, 2) == reading(vaswani, 2)


def test_arithmetic_of_reading_has_no_memory_in_it_but_its_cells():
    d, width, inner, v, t, cells = 4, 6, 5, 7, 2, 4 + 5
    assert reading(TINY.model, 2) == 2 * (
        4 * t * d * width + 2 * t * d * inner + 3 * cells * width + t * d * v
    )


def test_arithmetic_of_clusters_product_by_product():
    """Tokens are drawn uniformly: a third of them in each cluster of three symbols of nine."""
    plain = replace(TINY.model, vocab_size=9)
    adaptive = replace(plain, cutoffs=(3, 6), div_val=2, d_embed=8)
    d, t, in_each = 4, 6, 2
    embedding = [in_each * d * width for width in (8, 4, 2)]
    head = [t * d * 8, t * 8 * (3 + 2)]
    tails = [rows * products for rows in [in_each] for products in (d * 4, 4 * 3, d * 2, 2 * 3)]
    every = [t * products for products in (d * 4, 4 * 3, d * 2, 2 * 3)]

    def ends(*products):
        return 2 * (sum(map(sum, products)) - t * d * 9)  # beyond those of the plain softmax

    assert reading(adaptive, t) - reading(plain, t) == ends(embedding, head, tails)
    difference = reading(adaptive, t, every_symbol=True) - reading(plain, t, every_symbol=True)
    assert difference == ends(embedding, head, every)
    difference = training_step(adaptive, 5, t) - training_step(plain, 5, t)
    assert difference == 5 * 3 * ends(embedding, head, tails)


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
@pytest.mark.parametrize("clusters", [{}, {"vocab_size": 20, "cutoffs": (5, 9), "div_val": 2}])
def test_a_peer_is_compared(monkeypatch, clusters):
    shape = replace(TINY, model=replace(TINY.model, **clusters))
    monkeypatch.setitem(run.SHAPES["train"], "tiny", shape)
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


def test_shapes_that_take_minutes_are_measured_on_request(monkeypatch):
    measured = []
    monkeypatch.setattr(run, "measure", lambda task, name, *rest: measured.append(name) or [])
    assert main(["bench", "--task", "train", "--json"]) == 0
    assert measured == [name for name in run.SHAPES["train"] if name != "wt103"]
    measured.clear()
    assert main(["bench", "--shape", "wt103", "--json"]) == 0
    assert measured == ["wt103"]


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


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("window", [1, 6, 99])
def test_the_plain_twin_of_attention_gives_the_same(rate, window):
    draw = np.random.default_rng(0)
    n_streams, n_heads, n_queries, n_keys, d = 2, 3, 5, 9, 4
    query = draw.standard_normal((n_streams, n_queries, n_heads, d))
    key, value = draw.standard_normal((2, n_streams, n_keys, n_heads, d))
    relative = draw.standard_normal((n_keys, n_heads, d))
    u, v = draw.standard_normal((2, n_heads, d))
    dropout = dropout_cache(rate, MaskKey(1).site("attention_probabilities"))
    results = []
    for module in (attention, plain):
        attended, cache = module.attend_forward(query, key, value, relative, u, v, window, dropout)
        d_u, d_v = np.ones_like(u), np.ones_like(v)
        d_attended = np.random.default_rng(1).standard_normal(attended.shape)
        gradients = module.attend_backward(d_attended, cache, u, v, d_u, d_v)
        results.append((attended, *gradients, d_u, d_v))
    for fast, slow in zip(*results, strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_the_plain_twins_of_row_kernels_give_the_same(rate):
    draw = np.random.default_rng(0)
    x, dy = draw.standard_normal((2, 2, 3, 5))
    bias, gain = draw.standard_normal((2, 5))
    rule = dropout_rule(dropout_cache(rate, MaskKey(1).site("inner")), x.dtype)
    results = []
    for forward, backward in (
        (rectifier.rectify_forward, rectifier.rectify_backward),
        (plain.rectify_forward, plain.rectify_backward),
    ):
        y, d, d_bias = x.copy(), dy.reshape(-1, 5).copy(), np.ones(5)
        forward(y, bias, rule)
        backward(d, y.reshape(-1, 5), rule.factor, d_bias)
        results.append((y.reshape(-1, 5), d, d_bias))
    for name in ("normalization", "plain"):
        module = {"normalization": normalization, "plain": plain}[name]
        rows, d_rows = x.reshape(-1, 5), dy.reshape(-1, 5)
        y, z, dx = np.empty((3, 6, 5))
        inv_std, d_gain, d_bias = np.empty(6), np.ones(5), np.ones(5)
        module.layer_norm_rows_forward(rows, gain, bias, 1e-5, y, z, inv_std)
        module.layer_norm_rows_backward(d_rows, z, inv_std, gain, dx, d_gain, d_bias)
        results.append((y, z, inv_std, dx, d_gain, d_bias))
    for fast, slow in ((results[0], results[1]), (results[2], results[3])):
        for a, b in zip(fast, slow, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_the_plain_twin_of_adam_gives_the_same():
    draw = np.random.default_rng(0)
    start = [*draw.standard_normal((3, 7)), draw.random(7)]
    results = []
    for update in (adam_update, plain.adam_update):
        vectors = [vector.copy() for vector in start]
        update(*vectors, 0.5, 0.9, 0.1, 0.99, 0.01, 0.1, 1.5, 1e-8)
        results.append(vectors)
    for fast, slow in zip(*results, strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-13)


def test_every_optimization_can_be_left_out():
    assert {*plain.WITHOUT, "workers", "projected-memory", "one-token"} == OPTIMIZATIONS.keys()
    assert {f"without {name}" for name in OPTIMIZATIONS} < set(SIDES)


@pytest.mark.parametrize("task", ["train", "evaluate"])
def test_what_an_optimization_earns_is_measured(monkeypatch, capsys, task):
    monkeypatch.setitem(run.SHAPES[task], "tiny", TINY)
    monkeypatch.setattr(run, "_SECONDS_A_TURN", 0.01)
    options = ["--task", task, "--shape", "tiny", "--rounds", "1", "--json"]
    assert main(["bench", *options, "--without", "fused-attention", "projected-memory"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    expected = ["npxl", "without fused-attention", "without projected-memory"]
    assert [result["side"] for result in results] == expected[: 3 if task == "evaluate" else 2]
    assert all(result["disagreement"] < 1e-5 and result["ratio"] > 0 for result in results[1:])


COUNTED = """
import sys

import numpy as np

from npxl.bench import plain, sides
from test_bench import TINY

task, name, *twins = sys.argv[1:]
called = set()
for twin in twins:
    def counted(*arguments, twin=twin, original=getattr(plain, twin)):
        called.add(twin)
        return original(*arguments)
    counted.__name__ = twin
    setattr(plain, twin, counted)
side = sides.SIDES[f"without {name}"](TINY, 1)
segments = [np.zeros((2, TINY.tgt_len + 1), int)]
getattr(side, task)(3 if task == "generate" else segments)
assert called == set(twins), called
"""


@pytest.mark.parametrize(
    ("task", "name", "twins"),
    [
        ("train", "fused-attention", ["attend_forward", "attend_backward"]),
        ("evaluate", "fused-attention", ["attend_forward"]),
        ("evaluate", "fused-attention", ["attend_packed"]),
        ("train", "fused-rectifier", ["rectify_forward", "rectify_backward"]),
        ("evaluate", "fused-rectifier", ["rectify_forward"]),
        ("train", "fused-norm", ["layer_norm_rows_forward", "layer_norm_rows_backward"]),
        ("evaluate", "fused-norm", ["layer_norm_rows_forward"]),
        ("train", "fused-adam", ["adam_update"]),
    ],
)
def test_without_an_optimization_its_plain_twin_runs(task, name, twins):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), str(here)])
    subprocess.run(
        [sys.executable, "-c", COUNTED, task, name, *twins],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_the_bytes_that_have_to_be_moved():
    model = TransformerXL(TINY.model)
    n_parameters, width, d = model.params.flat.size, 6, 4
    assert training_traffic(TINY.model, 2, 2) == 4 * (10 * n_parameters + 2 * 5 * d)
    assert reading_traffic(TINY.model, 2, 2) == 4 * (n_parameters + 5 * width * (2 * 2 + 1))
    windowed = replace(TINY.model, attn_window=2)
    assert training_traffic(windowed, 2, 2) == 4 * (10 * n_parameters + 2 * 3 * d)
    assert reading_traffic(windowed, 2, 2) == 4 * (n_parameters + 3 * width * (2 * 2 + 1))


def test_a_roofline_is_drawn(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(run.SHAPES["train"], "tiny", TINY)
    monkeypatch.setattr(run, "_SECONDS_A_TURN", 0.01)
    monkeypatch.setattr(roofline, "memory_bandwidth", lambda n_threads: 1e10)
    path = tmp_path / "roof.svg"
    options = ["bench", "--task", "train", "--shape", "tiny", "--rounds", "1"]
    assert main([*options, "--roofline", str(path)]) == 0
    picture = path.read_text()
    assert "<svg" in picture
    assert "arithmetic intensity" in picture
    assert picture.count("<!-- tiny -->") == 1
    assert "GFLOP/s" in picture


@pytest.mark.parametrize("intensity", [0.5, 50.0])
def test_the_roof_rises_to_the_ridge_and_no_further(monkeypatch, tmp_path, intensity):
    drawn = []
    add_subplot = Figure.add_subplot
    monkeypatch.setattr(
        Figure, "add_subplot", lambda self: drawn.append(add_subplot(self)) or drawn[0]
    )
    monkeypatch.setattr(roofline, "memory_bandwidth", lambda n_threads: 1e10)
    result = run.Result(
        "train", "tiny", "npxl", 1e3, intensity * 8.0, 8.0, 0.5, 1e11, None, None, None
    )
    roofline.draw_roofline([result], 1, tmp_path / "roof.png")
    roof = drawn[0].lines[0]
    x, y = (np.asarray(values) for values in roof.get_data())
    assert (np.diff(x) > 0).all()
    np.testing.assert_allclose(y, np.minimum(x * 10, 100))  # GFLOP/s
    assert x[0] < intensity < x[-1]


def test_memory_bandwidth_is_measured():
    assert 1e7 < run.memory_bandwidth(2, size=2**16, repeats=2) < 1e13


def test_a_roofline_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(run, "measure", None)
    for path, message in (
        (tmp_path / "roof.bmp", "has to end in .png, .svg, .pdf"),
        (tmp_path / "none" / "roof.svg", "no folder"),
    ):
        assert main(["bench", "--roofline", str(path)]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")
