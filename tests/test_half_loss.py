"""Half the loss: the last half of a segment is scored, all of it is read and remembered."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, seeds
from small_runs import MODEL, TRAIN, contents, create, finish, write_text
from support import each_kind, model_for, tokens

from npxl import MaskKey, ModelConfig
from npxl.data.streams import Streams
from npxl.inference import evaluate
from npxl.training.loop import Trainer, scored_targets
from npxl.training.metrics import read_metrics
from npxl.training.run import Run
from npxl.training.workers import Workers


@given(tgt_len=st.integers(1, 9), batch_size=st.integers(1, 3))
def test_the_last_half_of_the_positions_is_scored_and_the_middle_one_too(tgt_len, batch_size):
    targets = np.arange(batch_size * tgt_len).reshape(batch_size, tgt_len)
    scored = scored_targets(targets, "half")
    expected = [[row[t] for t in range(tgt_len) if 2 * t >= tgt_len - 1] for row in targets]
    assert scored.tolist() == expected
    assert scored_targets(targets, "full") is targets


@each_kind()
@given(data=st.data(), tgt_len=st.integers(1, 5), seed=seeds)
def test_it_is_the_loss_whose_cotangent_is_zero_in_the_first_half(configs, data, tgt_len, seed):
    config = data.draw(configs)
    model = model_for(config, seed)
    batch_size, n_before = 2, 3
    before = tokens((batch_size, n_before), seed, config.vocab_size)
    _, memory = model.log_probs(before, model.init_memory(batch_size))
    text = tokens((batch_size, config.ext_len + tgt_len + 1), seed + 1, config.vocab_size)
    inputs, targets = text[:, :-1], text[:, config.ext_len + 1 :]
    key = MaskKey(seed)

    workers = Workers(model, batch_size, 1)
    workers.memory = memory
    result = workers.step(inputs, scored_targets(targets, "half"), key)

    fwd = model.forward(inputs, targets, memory, key)
    first = tgt_len // 2
    dnll = np.zeros(targets.shape)
    dnll[:, first:] = 1 / (batch_size * (tgt_len - first))
    assert result.nll == pytest.approx(float((dnll * fwd.nll).sum()), rel=1e-13)
    assert_eq(result.gradient.flat, model.backward(fwd, dnll).flat, rtol=1e-13, atol=1e-16)
    assert_eq(workers.memory.states, fwd.memory.states)  # of the whole segment


def test_the_first_half_sends_nothing_back_by_itself():
    """Where no query sees another token, tokens of the first half have no gradient at all."""
    config = ModelConfig(
        vocab_size=8, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=5, attn_window=1,
        tie_weight=False,
    )  # fmt: skip
    model = model_for(config)
    inputs, targets = np.arange(8)[None], np.arange(8)[None, ::-1]
    gradient = Workers(model, 1, 1).step(inputs, scored_targets(targets, "half"), None).gradient
    of_tokens = np.abs(gradient["embedding.weight"]).max(1)
    assert not of_tokens[:4].any()
    assert (of_tokens[4:] > 0).all()
    # With a wider window, what the second half looks at does.
    wide = model.reconfigured(attn_window=None)
    gradient = Workers(wide, 1, 1).step(inputs, scored_targets(targets, "half"), None).gradient
    assert np.abs(gradient["embedding.weight"]).max(1).all()


@pytest.mark.parametrize("tgt_len", [1, 7, 8])
def test_a_run_reports_the_mean_over_what_it_scores(tmp_path, tgt_len):
    text = write_text(tmp_path / "text.txt")
    options = dict(loss="half", tgt_len=tgt_len, steps=2, log_interval=1, eval_interval=2)
    run = create(tmp_path / "run", text, **options)
    model = run.model("last")
    streams = Streams(run.corpus.train.tokens, TRAIN["batch_size"], tgt_len)
    inputs, targets = streams.batch(0)
    fwd = model.forward(inputs, targets, model.init_memory(len(inputs)), MaskKey(0, 1))
    reports = []

    class Listening(Trainer):
        def update(self):
            reports.append(super().update())
            return reports[-1]

    assert Listening(Run.open(run.folder)).run()
    assert reports[0].nll == pytest.approx(float(fwd.nll[:, tgt_len // 2 :].mean()), rel=1e-6)
    assert {report.tokens for report in reports} == {targets.size}
    lines = [line for line in read_metrics(run.metrics) if line["split"] == "train"]
    assert lines[0]["nll"] == pytest.approx(reports[0].nll, rel=1e-5)


def test_evaluation_scores_all_and_the_memory_is_of_the_whole_segment(tmp_path):
    text = write_text(tmp_path / "text.txt")
    run = create(tmp_path / "run", text, loss="half", steps=20)
    finish(run.folder)
    lines = [line for line in read_metrics(run.metrics) if line["split"] == "valid"]
    valid = run.corpus.valid.tokens
    score = evaluate(run.model("last"), valid, TRAIN["tgt_len"])
    assert score.tokens == len(valid) - 1
    assert lines[-1]["nll"] == pytest.approx(score.nll, rel=1e-5)
    assert run.checkpoint().memory.length == MODEL["mem_len"]


def test_half_the_loss_is_another_training_and_the_same_again(tmp_path):
    text = write_text(tmp_path / "text.txt")
    half, again, full = (
        finish(create(tmp_path / name, text, loss=loss, steps=10).folder)
        for name, loss in (("half", "half"), ("again", "half"), ("full", "full"))
    )
    assert contents(half) == contents(again)
    assert replace(half.train_config, loss="full") == full.train_config
    assert (half.model("last").params.flat != full.model("last").params.flat).any()
