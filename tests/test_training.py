"""The loop: it learns, repeats itself bit for bit, and survives whatever stops it."""

import io
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from small_runs import OTHERS, contents, create, finish, write_text

import npxl.files
from npxl import NpxlError
from npxl.inference.evaluation import Score
from npxl.models.architectures import model_class
from npxl.training import loop
from npxl.training.budget import Budget, TimeLeft
from npxl.training.checkpoints import Progress
from npxl.training.loop import Diverged, Trainer
from npxl.training.metrics import MetricsFile, read_metrics
from npxl.training.reporting import ConsoleReporter, Reporter, StepReport
from npxl.training.run import Run
from npxl.training.segment_lengths import segment_length


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "text.txt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run as the tests make, never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    create(folder / "run", write_text(folder / "text.txt"))
    return finish(folder / "run")


def without_clocks(records):
    clocks = {"elapsed", "tokens_per_second"}
    return [{key: record[key] for key in record.keys() - clocks} for record in records]


def assert_same_run(run, whole):
    for name, expected in contents(whole).items():
        assert contents(run)[name] == expected, f"{name} differs"
    metrics, expected = read_metrics(run.metrics), read_metrics(whole.metrics)
    assert without_clocks(metrics) == without_clocks(expected)
    times = [record["elapsed"] for record in metrics]
    assert times == sorted(times)
    assert not list(run.folder.glob(".*"))


# What it does


@pytest.mark.fault("KY #14")
@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, 0.6),
        (dict(optimizer="sgd", momentum=0.9, lr=0.3), 0.9),  # post-normalization slows it down
        (dict(optimizer="adagrad", lr=0.05, batch_chunk=3), 0.6),
        (dict(schedule="inv_sqrt", lr=0.02, varlen=True), 0.6),
        (dict(schedule="plateau", patience=3), 0.6),
        (dict(schedule="constant", clip=None), 0.6),
    ],
    ids=str,
)
def test_it_learns_more_than_the_frequencies_of_symbols(tmp_path, text, options, part):
    counts = np.bincount(np.frombuffer(text.read_bytes(), np.uint8))
    frequencies = counts[counts > 0] / counts.sum()
    entropy = -(frequencies * np.log2(frequencies)).sum()
    model = {"dropout": 0.0, "init_std": 0.1}
    create(tmp_path / "run", text, model, batch_size=8, tgt_len=16, steps=300, **options)
    run = finish(tmp_path / "run")
    best = run.checkpoint().progress.best
    assert best.bpb < part * entropy
    assert best.bpb == best.bpc == pytest.approx(best.nll / math.log(2))
    assert best.ppl == pytest.approx(math.exp(best.nll))


every_kind_of_model = pytest.mark.parametrize("model", [None, *OTHERS.values()], ids=str)


@every_kind_of_model
@pytest.mark.parametrize("varlen", [False, True])
def test_updates_are_those_of_the_equations_written_out(tmp_path, text, varlen, model):
    """Streams, masks, memory, clipping, schedule and Adam, without any of training's own code."""
    options = dict(workers=1, dtype="float64", clip=0.2, steps=12, varlen=varlen, model=model)
    run = create(tmp_path / "run", text, **options)
    assert Trainer(run).run()

    model = model_class(run.model_config)(run.model_config, seed=0, dtype=np.float64)
    tokens = np.frombuffer(text.read_bytes(), np.uint8)[: len(run.corpus.train)].astype(int)
    starts = [b * (len(tokens) - 1) // 3 for b in range(3)]
    theta, memory = model.params.flat, model.init_memory(3)
    m, v, read = np.zeros_like(theta), np.zeros_like(theta), 0
    for t in range(1, 13):
        length = segment_length(t, run.train_config)
        assert varlen or length == 8
        rows = np.array([np.arange(length) + start + read for start in starts])
        read += length
        forward = model.forward(tokens[rows], tokens[rows + 1], memory, rng=npxl.MaskKey(0, t))
        g, memory = model.backward(forward).flat, forward.memory
        g *= min(1, 0.2 / np.linalg.norm(g))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        lr = 5e-3 * (
            t / 10 if t <= 10 else 0.01 + 0.99 * (1 + math.cos(math.pi * (t - 10) / 2)) / 2
        )
        theta -= lr * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(run.model("last").params.flat, theta, rtol=0, atol=1e-9)


def test_the_best_model_is_the_one_with_the_best_score(whole):
    evaluations = [r for r in read_metrics(whole.metrics) if r["split"] == "valid"]
    assert [record["step"] for record in evaluations] == [20, 40, 60]
    lowest = min(evaluations, key=lambda record: record["nll"])
    best = whole.checkpoint().progress.best
    assert (best.step, best.nll) == (lowest["step"], pytest.approx(lowest["nll"], rel=1e-5))
    score = loop.evaluate(whole.model(), whole.corpus.valid.tokens, tgt_len=8, n_workers=2)
    assert score.nll == best.nll


@pytest.mark.fault("KY #69", "KY #24", "KY #92", "KY #102", "fastai #1736")
def test_metrics_are_means_over_the_steps_since_the_last_line(whole):
    records = [r for r in read_metrics(whole.metrics) if r["split"] == "train"]
    assert [record["step"] for record in records] == [*range(7, 57, 7), 60]
    assert records[0]["lr"] == pytest.approx(5e-3 * 7 / 10)
    assert records[-1]["lr"] == pytest.approx(5e-5)
    for record in records:
        assert record["bpc"] == pytest.approx(record["nll"] / math.log(2), rel=1e-5)
        assert 0 <= record["clipped"] <= 1
        assert record["grad_norm"] > 0
        assert record["tokens_per_second"] > 0


def test_the_means_are_those_of_the_updates(tmp_path, text):
    class Collector(Reporter):
        def __init__(self):
            self.losses, self.records = [], []

        def step(self, report):
            self.losses.append(report.nll)

        def metrics(self, record):
            self.records.append(record)

    collector = Collector()
    create(tmp_path / "run", text, steps=10, log_interval=4, eval_interval=100)
    finish(tmp_path / "run", collector)
    means = [np.mean(part) for part in np.split(np.array(collector.losses), [4, 8])]
    got = [record["nll"] for record in collector.records if record["split"] == "train"]
    assert got == pytest.approx(means)


@pytest.mark.fault("KY #69", "KY #24", "KY #92", "KY #102", "fastai #1736")
@pytest.mark.parametrize(("clip", "part"), [(None, 0), (1e6, 0), (1e-6, 1)])
def test_the_metrics_say_how_often_it_clipped(tmp_path, text, clip, part):
    create(tmp_path / "run", text, clip=clip, steps=4)
    records = read_metrics(finish(tmp_path / "run").metrics)
    assert [r["clipped"] for r in records if r["split"] == "train"] == [part]


def test_words_and_characters_train_too(tmp_path, text):
    for kind in ("words", "characters"):
        create(tmp_path / kind, text, vocabulary=kind, steps=4)
        best = finish(tmp_path / kind).checkpoint().progress.best
        assert best.bpc == pytest.approx(best.bpb, rel=1e-9)  # the text is ASCII
    assert best.bpc == pytest.approx(best.nll / math.log(2))


def test_without_a_validation_split_there_is_a_last_but_no_best(tmp_path):
    (tmp_path / "corpus").mkdir()
    write_text(tmp_path / "corpus" / "train.txt")
    create(tmp_path / "run", tmp_path / "corpus", steps=5)
    run = finish(tmp_path / "run")
    assert run.checkpoint().progress.step == 5
    assert not run.best.exists()
    np.testing.assert_array_equal(run.model().params.flat, run.model("last").params.flat)


def test_context_that_is_read_again_is_passed_on(tmp_path, text):
    create(tmp_path / "run", text, model={"ext_len": 3}, steps=6)
    assert finish(tmp_path / "run").checkpoint().memory.length == 8


@pytest.mark.parametrize(
    ("patience", "falls"), [(0, [0, 0, 0, 1, 2, 2, 2, 2]), (1, [0, 0, 0, 0, 1, 1, 1, 2])]
)
def test_the_rate_falls_after_evaluations_that_are_no_better(
    tmp_path, text, monkeypatch, patience, falls
):
    scores = iter([3.0, 2.0, 2.5, 2.1, 1.9, 1.95, 2.0, 2.0])
    monkeypatch.setattr(loop, "evaluate", lambda *_, **__: Score(100, next(scores), 1.0))
    create(
        tmp_path / "run", text, schedule="plateau", patience=patience, decay_rate=0.1,
        warmup_steps=5, steps=80, eval_interval=10, log_interval=10,
    )  # fmt: skip
    run = Run.open(tmp_path / "run")
    Trainer(run).run()
    logged = [r["lr"] for r in read_metrics(run.metrics) if r["split"] == "train"]
    assert logged == pytest.approx([5e-3 * 0.1**n for n in falls])  # down to 1 % of lr


def test_a_plateau_needs_a_validation_split(tmp_path):
    (tmp_path / "corpus").mkdir()
    write_text(tmp_path / "corpus" / "train.txt")
    with pytest.raises(NpxlError, match=r"loss on the validation split, but corpus has none"):
        create(tmp_path / "run", tmp_path / "corpus", schedule="plateau")
    assert not (tmp_path / "run").exists()


# It repeats itself


@every_kind_of_model
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path, text, model):
    whole, _, other = (
        finish(create(tmp_path / name, text, model, seed=seed).folder)
        for name, seed in (("whole", 0), ("same", 0), ("other", 1))
    )
    assert_same_run(Run.open(tmp_path / "same"), whole)
    assert contents(other) != contents(whole)


@every_kind_of_model
def test_another_number_of_workers_or_chunks_agrees_to_rounding(tmp_path, text, model):
    runs = []
    for n, (workers, chunks) in enumerate([(1, 1), (2, 1), (3, 1), (1, 3), (2, 2)]):
        numbers = dict(workers=workers, batch_chunk=chunks)
        create(tmp_path / str(n), text, model, dtype="float64", steps=20, **numbers)
        runs.append(finish(tmp_path / str(n)).model("last").params.flat)
    for other in runs[1:]:
        np.testing.assert_allclose(other, runs[0], rtol=0, atol=1e-9)
        assert not np.array_equal(other, runs[0])  # so that the comparison means something


# It survives what stops it


OPTIONS = {
    "adam": {},
    "momentum": dict(optimizer="sgd", momentum=0.9, lr=0.05, clip=None, batch_chunk=2),
    "adagrad": dict(optimizer="adagrad", lr=0.05, schedule="inv_sqrt", varlen=True),
    "plateau": dict(schedule="plateau", patience=1, decay_rate=0.5, lr=0.05),
    **{kind: dict(model=model) for kind, model in OTHERS.items()},
}
every_kind_of_run = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


class Crash(BaseException):
    """As sudden as a power cut: nothing catches it."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_a_crash_while_a_file_takes_its_name_changes_nothing(
    tmp_path, text, whole, monkeypatch, name, number, moment
):
    replace, count = os.replace, 0

    def crashing(source, target):
        nonlocal count
        count += Path(target).name == name
        if count == number and moment == "before":
            raise Crash
        replace(source, target)
        if count == number:
            raise Crash

    create(tmp_path / "run", text, save_interval=1e6)  # saved after evaluations only
    with monkeypatch.context() as patch:
        patch.setattr(npxl.files.os, "replace", crashing)
        with pytest.raises(Crash):
            Trainer(Run.open(tmp_path / "run")).run()
    assert_same_run(finish(tmp_path / "run"), whole)


SCRIPT = """
    import os, signal, sys, threading, time
    from npxl.training.loop import Trainer
    from npxl.training.reporting import ConsoleReporter
    from npxl.training.run import Run
    from rich.console import Console

    folder, number, step, delay = sys.argv[1:]

    class Signalling(ConsoleReporter):
        def step(self, report):
            if report.step == int(step):
                if float(delay) == 0:
                    os.kill(os.getpid(), int(number))
                else:
                    threading.Timer(float(delay), os.kill, (os.getpid(), int(number))).start()

    run = Run.open(folder)
    print(Trainer(run).run(Signalling(Console(width=200))))
"""


def run_until_signal(run, number, step, delay):
    """The outcome of a process that sends itself a signal some time after a step."""
    script = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    arguments = [str(run.folder), str(int(number)), str(step), str(delay)]
    return subprocess.run([*script, *arguments], capture_output=True, text=True, timeout=120)


@every_kind_of_run
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path, text, options):
    whole = create(tmp_path / "whole", text, steps=400, eval_interval=50, **options)
    run = create(tmp_path / "run", text, steps=400, eval_interval=50, **options)
    assert Trainer(whole).run()
    moments = random.Random(11)
    for _ in range(3):
        step = run.checkpoint().progress.step + moments.randrange(1, 80)
        outcome = run_until_signal(run, signal.SIGKILL, step, moments.random() * 0.05)
        assert outcome.returncode == -signal.SIGKILL, outcome.stderr
        assert run.checkpoint().progress.step < 400
    assert_same_run(finish(run.folder), whole)


@every_kind_of_run
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_everything_saved(tmp_path, text, number, options):
    create(tmp_path / "whole", text, **options)
    run = create(tmp_path / "run", text, save_interval=1000.0, **options)
    outcome = run_until_signal(run, number, 13, 0.0)
    assert outcome.returncode == 0, outcome.stderr
    assert "Stopped after step" in outcome.stdout
    assert f"npxl train --out {run.folder} --resume" in outcome.stdout
    assert outcome.stdout.splitlines()[-1] == "False"
    assert outcome.stderr == ""
    assert 13 <= run.checkpoint().progress.step < 60
    finish(run.folder)
    assert contents(run) == contents(finish(tmp_path / "whole"))


def test_a_signal_gives_up_an_evaluation_which_is_made_later(tmp_path, text, whole):
    class Impatient(Reporter):
        def evaluating(self, done, total):
            os.kill(os.getpid(), signal.SIGINT)

    run = create(tmp_path / "run", text, workers=1)  # so that the main thread evaluates
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert not Trainer(run).run(Impatient())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    progress = run.checkpoint().progress
    assert (progress.step, progress.evaluated) == (20, 0)
    assert all(record["split"] == "train" for record in read_metrics(run.metrics))
    create(tmp_path / "other", text, workers=1)
    assert_same_run(finish(run.folder), finish(tmp_path / "other"))


def test_a_second_signal_is_not_held_back(tmp_path, text):
    class VeryImpatient(Reporter):
        def step(self, report):
            if report.step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    run = create(tmp_path / "run", text)
    with pytest.raises(KeyboardInterrupt):
        Trainer(run).run(VeryImpatient())
    assert run.checkpoint().progress.step < 60


def test_outside_the_main_thread_signals_are_left_alone(tmp_path, text, whole):
    run = create(tmp_path / "run", text)
    thread = threading.Thread(target=lambda: Trainer(run).run())
    thread.start()
    thread.join()
    assert_same_run(run, whole)


def test_full_disk_keeps_the_last_checkpoint(tmp_path, text, whole):
    resource = pytest.importorskip("resource")
    run = create(tmp_path / "run", text)
    before = run.last.read_bytes()
    (run.folder / ".last.safetensors.0a1b2c3d.tmp").touch()  # of a save that was killed
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(NpxlError, match="no room left"):
            Trainer(run).run()
        with pytest.raises(NpxlError, match="no room left"):
            create(tmp_path / "new", text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.last.read_bytes() == before
    assert not list(run.folder.glob(".*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "text.txt"]
    assert_same_run(finish(run.folder), whole)


# It is alone


def test_a_run_is_trained_by_one_at_a_time(tmp_path, text, whole):
    class Second(Reporter):
        def step(self, report):
            if report.step == 30:
                with pytest.raises(NpxlError, match=r"run is being trained already: wait"):
                    Trainer(Run.open(run.folder)).run()

    run = create(tmp_path / "run", text)
    late = Trainer(Run.open(run.folder))
    assert Trainer(run).run(Second())
    with pytest.raises(NpxlError, match="trained further since it was opened"):
        late.run()
    assert_same_run(run, whole)


def test_whoever_fails_does_not_keep_the_run(tmp_path, text):
    class Crashing(Reporter):
        def step(self, report):
            raise Crash

    run = create(tmp_path / "run", text)
    for _ in range(2):
        with pytest.raises(Crash):
            Trainer(run).run(Crashing())


# It stops when it must


@pytest.mark.fault("nanoGPT #136", "nanoGPT #167", "nanoGPT #215")
def test_a_loss_that_is_not_finite_stops_it_before_the_update(tmp_path, text, capfd):
    run = create(
        tmp_path / "run", text, lr=1e30, warmup_steps=0, eval_interval=50, save_interval=1e6
    )
    before = run.last.read_bytes()
    with pytest.raises(Diverged, match=r"loss at step 2 is (nan|inf).*step 0 is kept.*lower lr"):
        Trainer(run).run()
    assert run.last.read_bytes() == before
    assert not run.best.exists()
    assert capfd.readouterr().err == ""  # one clear sentence, no warnings beside it


@pytest.mark.fault("nanoGPT #136", "nanoGPT #167", "nanoGPT #215")
def test_a_state_is_saved_when_its_loss_has_proved_finite(tmp_path, text):
    """However often it saves: the update that ruins the parameters is not in the checkpoint."""
    run = create(
        tmp_path / "run", text, lr=1e30, warmup_steps=0, eval_interval=50, save_interval=0.0
    )
    with pytest.raises(Diverged):
        Trainer(run).run()
    model = run.model("last")
    tokens = run.corpus.train.tokens[None, :9].astype(int)
    fwd = model.forward(tokens[:, :-1], tokens[:, 1:], model.init_memory(1))
    assert np.isfinite(fwd.nll).all()


def test_a_validation_loss_that_is_not_finite_stops_it(tmp_path, text):
    run = create(
        tmp_path / "run", text, lr=1e30, warmup_steps=0, eval_interval=1, save_interval=1e6
    )
    before = run.last.read_bytes()
    with pytest.raises(Diverged, match="validation loss at step 1 is"):
        Trainer(run).run()
    assert run.last.read_bytes() == before
    assert not run.best.exists()


@pytest.mark.fault("KY #69", "KY #24", "KY #92", "KY #102", "fastai #1736")
def test_a_gradient_that_is_not_finite_stops_it(tmp_path, text, monkeypatch):
    run = create(tmp_path / "run", text)
    monkeypatch.setattr(loop, "gradient_norm", lambda *gradient: math.inf)
    trainer = Trainer(run)
    with pytest.raises(Diverged, match="norm of the gradient at step 1 is inf"):
        trainer.run()
    assert trainer.progress == Progress(steps=60)
    assert run.checkpoint().progress == Progress(steps=60)


# It goes on


def test_a_finished_run_says_so_and_changes_nothing(tmp_path, text, whole):
    create(tmp_path / "run", text)
    run = finish(tmp_path / "run")
    trainer = Trainer(Run.open(run.folder))
    assert trainer.finished
    assert trainer.run()
    assert_same_run(run, whole)


def test_more_steps_continue_a_finished_run(tmp_path, text):
    create(tmp_path / "run", text, steps=20)
    run = finish(tmp_path / "run")
    trainer = Trainer(run, steps=30)
    assert not trainer.finished
    assert trainer.run()
    assert run.checkpoint().progress.step == run.describe()["steps"] == 30
    with pytest.raises(NpxlError, match="has made 30 updates already"):
        Trainer(run, steps=29)


def test_a_new_number_of_steps_holds_from_the_start(tmp_path, text):
    class Crashing(Reporter):
        def step(self, report):
            raise Crash

    run = create(tmp_path / "run", text, save_interval=1e6)
    with pytest.raises(Crash):
        Trainer(run, steps=70).run(Crashing())
    assert Run.open(run.folder).describe()["steps"] == 70


class SimulatedClock:
    """A clock on which an update takes a second and an evaluation ten."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize(("minutes", "eval_interval"), [(10.0, 50), (2.0, 1000), (30.0, 400)])
def test_minutes_become_the_steps_that_fit(minutes, eval_interval, monkeypatch):
    clock = SimulatedClock()
    monkeypatch.setattr("npxl.training.budget.time", clock)
    budget = Budget(60 * minutes, unmeasured=3, evaluation=10.0, eval_interval=eval_interval)
    clock.now += 20  # compiling
    done, steps = 0, None
    while steps is None:
        clock.now += 1.0
        done += 1
        left = budget.steps_left(1.0)
        steps = None if left is None else done + left
    evaluations = steps // eval_interval + (steps % eval_interval > 0)
    total = 20 + steps + 10 * evaluations
    assert 0.9 * 60 * minutes < total <= 60 * minutes + 10


def test_a_machine_that_is_busy_at_first_does_not_fix_fewer_steps(monkeypatch):
    clock = SimulatedClock()
    monkeypatch.setattr("npxl.training.budget.time", clock)
    budget = Budget(160, unmeasured=3, evaluation=0.0, eval_interval=10_000)
    left = None
    for seconds in itertools.chain([0.5] * 15, itertools.repeat(0.1)):
        clock.now += seconds
        left = budget.steps_left(seconds)
        if left is not None:
            break
    assert clock.now < 0.12 * 160
    assert left == pytest.approx((160 - clock.now) / 0.1, abs=1)


def test_a_time_that_is_over_before_anything_is_measured_ends_the_run(monkeypatch):
    clock = SimulatedClock()
    monkeypatch.setattr("npxl.training.budget.time", clock)
    budget = Budget(60, unmeasured=3, evaluation=10.0, eval_interval=10)
    clock.now += 61
    assert budget.steps_left(61.0) == 0


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"schedule": "constant"}], ids=str)
def test_minutes_are_fixed_once(tmp_path, text, options):
    class Stop(Reporter):
        def step(self, report):
            if report.steps is not None:
                os.kill(os.getpid(), signal.SIGINT)

    run = create(tmp_path / "run", text, minutes=0.01, eval_interval=10_000, **options)
    assert run.checkpoint().progress.steps is None
    Trainer(run).run(Stop())
    steps = run.checkpoint().progress.steps
    assert steps is not None
    finish(run.folder)
    progress = run.checkpoint().progress
    assert progress.step == progress.steps == progress.evaluated == steps


# What it writes


def metrics_lines(*places):
    for split, step in places:
        record = {"split": split, "step": step, "elapsed": float(step)}
        yield json.dumps(record).encode() + b"\n"


@pytest.mark.parametrize(
    ("progress", "kept", "elapsed"),
    [
        (Progress(), 0, 0.0),
        (Progress(step=10), 1, 10.0),
        (Progress(step=20, evaluated=0), 2, 20.0),
        (Progress(step=20, evaluated=20), 3, 20.0),
        (Progress(step=35, evaluated=20), 4, 30.0),
    ],
)
def test_metrics_after_the_checkpoint_are_cut_off(tmp_path, progress, kept, elapsed):
    path = tmp_path / "metrics.jsonl"
    places = [("train", 10), ("train", 20), ("valid", 20), ("train", 30), ("train", 40)]
    lines = list(metrics_lines(*places))
    path.write_bytes(b"".join(lines))
    with MetricsFile(path, progress) as metrics:
        assert metrics.elapsed == elapsed
        metrics.append({"new": 1})
    assert path.read_bytes() == b"".join(lines[:kept]) + b'{"new": 1}\n'


def test_a_line_of_metrics_is_short_and_begins_with_when(whole):
    for line in whole.metrics.read_text().splitlines():
        names = list(json.loads(line))
        assert names[:3] == ["step", "elapsed", "split"]
        assert len(names) == len(set(names)) == len(re.findall(r'"\w+": ', line))
        for number in re.findall(r"[\d.]*\.[\d.]*", line):
            assert len(number.replace(".", "").lstrip("0")) <= 6


@pytest.mark.parametrize("torn", [b'{"split": "train", "st', b'{"split": "train"}', b"\0\0\0\n"])
def test_a_torn_line_is_cut_off(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    (line,) = metrics_lines(("train", 10))
    path.write_bytes(line + torn)
    with MetricsFile(path, Progress(step=50, evaluated=50)):
        pass
    assert path.read_bytes() == line


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_shows_how_it_goes(tmp_path, text, terminal):
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=100, color_system=None)
    create(tmp_path / "run", text)
    run = finish(tmp_path / "run", ConsoleReporter(console))
    shown = output.getvalue()
    assert f"{run.n_parameters:,} parameters on text.txt" in shown
    assert shown.count("validation: loss") == 3
    assert "Finished after 60 steps" in shown
    assert f"({len(text.read_bytes()) * 9 // 10:,} bytes, vocabulary 256), in {run.folder}" in shown
    assert "bpb" not in shown  # the same as bpc in a text that is ASCII
    assert shown.count("|g|") == shown.count("elapsed") == (0 if terminal else 9)
    assert ("60/60" in shown) == terminal


def test_bits_per_byte_are_shown_where_they_differ(tmp_path):
    (tmp_path / "text.txt").write_text("é bé\n" * 400)
    output = io.StringIO()
    create(tmp_path / "run", tmp_path / "text.txt", steps=2)
    finish(tmp_path / "run", ConsoleReporter(Console(file=output)))
    assert re.search(r"[\d.]+ bpc  [\d.]+ bpb  perplexity", output.getvalue())


@pytest.mark.parametrize(
    ("width", "there", "missing"),
    [(100, "━ loss tok/s lr left", ""), (76, "loss tok/s lr left", "━"),
     (65, "loss tok/s left", "━ lr"), (25, "left", "━ loss")],
)  # fmt: skip
def test_a_narrow_terminal_keeps_step_and_time_and_its_last_columns(
    tmp_path, text, width, there, missing
):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width, color_system=None)
    create(tmp_path / "run", text, eval_interval=1000)
    finish(tmp_path / "run", ConsoleReporter(console))
    (line,) = {line for line in re.split(r"[\r\n]", plain(output)) if line.startswith("60/60")}
    assert all(word in line for word in there.split())
    assert not any(word in line for word in missing.split())
    assert "━" not in there or len(line) == width - 3
    assert len(line) <= width - 3


def test_the_speed_is_that_of_tokens_whatever_the_length_of_a_segment(tmp_path, text):
    reporter = ConsoleReporter(Console(file=io.StringIO()))
    reporter.begin(create(tmp_path / "run", text), Progress())
    for step in range(1, 9):
        tokens = 300 if step % 2 else 100
        reporter.step(StepReport(step, 60, 1.0, 1.0, 0.1, tokens, seconds=tokens / 1000))
        if step > 1:
            assert "1,000 tok/s" in reporter._lines.training.fields


def plain(output):
    """What was written, without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())


def test_a_console_says_that_it_is_starting_and_that_it_is_measuring(tmp_path, text):
    class Slow(ConsoleReporter):
        def begin(self, run, progress):
            super().begin(run, progress)
            self._live.refresh()

        def step(self, report):
            super().step(report)
            self._live.refresh()

    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, color_system=None)
    create(tmp_path / "run", text, minutes=0.01, eval_interval=10_000)
    finish(tmp_path / "run", Slow(console))
    lines = [line for line in re.split(r"[\r\n]", plain(output)) if "━" in line]
    assert re.match(r"0/\?  ━+  starting  a first run compiles its kernels", lines[0])
    assert re.match(r"2/\?  ━+  loss .*  measuring", lines[2])
    assert re.match(r"\d+/\d+  ━+  loss .* left", lines[-1])


def test_the_time_left_is_that_of_the_updates_and_the_evaluations_that_are_left():
    """A run whose updates take 2 seconds and whose evaluations take 30."""
    for steps, interval in ((100, 20), (100, 30), (7, 50)):
        left = TimeLeft(interval, evaluated=0, evaluation=15.0)
        assert left.seconds(0, steps) is None
        places = [step for step in range(1, steps + 1) if step % interval == 0 or step == steps]
        for step in range(1, steps + 1):
            left.add_update(50.0 if step == 1 else 2.0)
            for evaluated in (False, True):
                if evaluated and step in places:
                    left.add_evaluation(step, 30.0)
                if step > 1:
                    after = [
                        each for each in places if each > step or (each == step and not evaluated)
                    ]
                    expected = 2 * (steps - step) + 30 * len(after)
                    assert left.seconds(step, steps) == pytest.approx(expected)
    left = TimeLeft(None, evaluated=0, evaluation=0.0)
    assert [left.add_update(2.0), left.add_update(2.0)] == [False, True]
    assert left.seconds(2, 12) == 20


def test_how_to_go_on_is_a_line_of_its_own(tmp_path, text):
    class Stop(ConsoleReporter):
        def step(self, report):
            os.kill(os.getpid(), signal.SIGINT)

    output = io.StringIO()
    folder = tmp_path / "a folder"
    assert not Trainer(create(folder, text)).run(Stop(Console(file=output, width=40)))
    assert output.getvalue().endswith(f"\nnpxl train --out '{folder}' --resume\n")


@pytest.mark.fault("HF #466", "HF #2000", "HF #4459")
def test_a_console_says_when_much_of_the_text_is_unknown(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.txt").write_text("to be or not to be or not to be\n" * 20)
    (folder / "valid.txt").write_text("to be or to seem or to mean\n" * 3)
    output = io.StringIO()
    create(tmp_path / "run", folder, vocabulary="words", min_count=21, steps=2)
    run = finish(tmp_path / "run", ConsoleReporter(Console(file=output, width=60)))
    # "seem" and "mean" are unknown; <eos>, seen 20 times, is never rare.
    assert "6 of 27 tokens for validation are not in the vocabulary" in output.getvalue()
    assert "for training" not in output.getvalue()
    (record,) = [r for r in read_metrics(run.metrics) if r["split"] == "valid"]
    assert record["unknown"] == 6

    output = io.StringIO()
    create(tmp_path / "rare", folder, vocabulary="words", min_count=41, steps=2)
    finish(tmp_path / "rare", ConsoleReporter(Console(file=output, width=60)))
    lines = output.getvalue().splitlines()
    assert lines[1].startswith("80 of 220 tokens for training and 12 of 27 tokens for validation")
    assert "cannot be compared" in lines[1]


def test_a_console_says_nothing_of_unknown_symbols_when_there_are_none(tmp_path, text):
    output = io.StringIO()
    create(tmp_path / "run", text, steps=2)
    run = finish(tmp_path / "run", ConsoleReporter(Console(file=output)))
    assert "unknown" not in output.getvalue()
    (record,) = [r for r in read_metrics(run.metrics) if r["split"] == "valid"]
    assert record["unknown"] == 0


def test_a_run_on_the_bundled_text_is_created_by_name(tmp_path):
    create(tmp_path / "run", "kjv")
    assert Path(tmp_path / "run" / "run.json").is_file()
    assert Run.open(tmp_path / "run").corpus.name == "kjv"
