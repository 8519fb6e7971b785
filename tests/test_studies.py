"""Studies at a size that takes a moment, on real text: what holds exactly, whatever is found."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl import ModelConfig, NpxlError, TrainConfig, load_corpus
from npxl.cli import main
from npxl.data import BUNDLED
from npxl.inference import evaluate
from npxl.studies import STUDIES, Lab, StudyStopped, conduct, lab, runner
from npxl.studies.attention import by_distance
from npxl.studies.frame import octaves, spelled
from npxl.studies.statistics import N_BLOCKS, Estimate, over_blocks, over_text

MODEL = ModelConfig(
    n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=16, mem_len=8, pre_lnorm=True
)
TRAIN = TrainConfig(
    batch_size=4, tgt_len=8, steps=40, lr=1e-2, warmup_steps=5, eval_interval=40, workers=1
)
SMALLER = {"memory": dict(multiples=(0, 1, 4)), "attention": dict(n_streams=2, n_segments=3)}


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """The beginning of the bundled text, as a file of its own."""
    path = tmp_path_factory.mktemp("text") / "genesis.txt"
    path.write_bytes(BUNDLED["kjv"].read_bytes()[:40_000])
    return str(path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where all studies here work, and share their models."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture
def tiny(text, monkeypatch):
    """The studies by name, with quick settings that are quicker yet."""

    def smaller(name, study):
        setting = study.quick
        if hasattr(setting, "corpus"):
            setting = replace(setting, corpus=text)
        if hasattr(setting, "model"):
            setting = replace(setting, model=MODEL, train=TRAIN)
        return replace(study, quick=replace(setting, **SMALLER.get(name, {})))

    studies = {name: smaller(name, study) for name, study in STUDIES.items()}
    for name, study in studies.items():
        monkeypatch.setitem(STUDIES, name, study)
    return studies


@pytest.fixture
def found(tiny, folder):
    """The outcome of a study by name."""
    return lambda name: conduct(tiny[name], folder, quick=True)


# What all studies do


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_shows_what_it_found_and_finds_it_again(name, found, folder, monkeypatch):
    first = found(name)
    assert first.tables
    for table in first.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
    for statement in first.statements:
        assert isinstance(statement.seen, bool)
    kept = json.loads((folder / f"{name}-quick.json").read_text())
    assert kept["result"] == first.result
    pictures = [(folder / f"{name}-quick-{n}.svg") for n, _ in enumerate(first.pictures, 1)]
    drawn = [picture.read_bytes() for picture in pictures]

    monkeypatch.setattr(lab, "write_json", None)  # nothing is computed again
    again = found(name)
    assert again.as_json() == first.as_json()
    assert [picture.read_bytes() for picture in pictures] == drawn


def test_a_training_that_was_interrupted_goes_on(tiny, tmp_path, text, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(lab.Trainer, "run", lambda trainer, reporter: trainer.update() and False)
        with pytest.raises(StudyStopped):
            conduct(tiny["fragmentation"], tmp_path, quick=True)
        assert main(["study", "fragmentation", "--quick", "--out", str(tmp_path)]) == 130
    assert len(list((tmp_path / "models").iterdir())) == 1
    conduct(tiny["fragmentation"], tmp_path, quick=True)
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_another_setting_or_another_text_is_another_part(tiny, text, tmp_path):
    setting = tiny["fragmentation"].quick
    counts = iter(range(10))

    def part(setting):
        return Lab(tmp_path, "fragmentation", setting).part("one", lambda: next(counts))

    assert part(setting) == part(setting) == 0
    assert part(replace(setting, split="test")) == 1
    (tmp_path / "other.txt").write_bytes(BUNDLED["kjv"].read_bytes()[:30_000])
    assert part(replace(setting, corpus=str(tmp_path / "other.txt"))) == 2
    (tmp_path / "copy.txt").write_bytes((tmp_path / "other.txt").read_bytes())
    assert part(replace(setting, corpus=str(tmp_path / "copy.txt"))) == 2  # the same text


def test_a_part_that_fails_leaves_nothing(tiny, tmp_path):
    setting = tiny["fragmentation"].quick
    one = Lab(tmp_path, "fragmentation", setting)
    with pytest.raises(ZeroDivisionError):
        one.part("one", lambda: 1 / 0)
    with pytest.raises(ValueError, match="JSON"):
        one.part("one", lambda: float("nan"))
    assert one.part("one", lambda: [1.5]) == [1.5]
    assert one.seconds >= 0


# Statistics and words


@given(st.integers(1, 300))
def test_octaves_are_all_numbers_once(n):
    ranges = octaves(n)
    assert [i for each in ranges for i in each] == list(range(n))
    assert all(len(each) == max(1, each.start) for each in ranges[:-1])


def test_ranges_are_spelled():
    assert [spelled(each) for each in octaves(6)] == ["0", "1", "2–3", "4–5"]


@given(st.integers(0, 2**32 - 1), st.integers(N_BLOCKS, 100))
def test_error_bars_by_hand(seed, n):
    values = np.random.default_rng(seed).standard_normal(n)
    sizes = [n // N_BLOCKS + (b < n % N_BLOCKS) for b in range(N_BLOCKS)]
    means, start = [], 0
    for size in sizes:
        means.append(sum(values[start : start + size]) / size)
        start += size
    mean = sum(means) / N_BLOCKS
    variance = sum((each - mean) ** 2 for each in means) / (N_BLOCKS - 1)
    estimate = over_text(values)
    assert estimate.mean == pytest.approx(mean, abs=1e-12)
    assert estimate.error == pytest.approx(2.045 * (variance / N_BLOCKS) ** 0.5, rel=1e-9)
    assert over_blocks(np.stack([values, -values], axis=1))[1].mean == pytest.approx(-mean)


def test_an_interval_that_excludes_zero():
    assert Estimate(-0.2, 0.1).excludes_zero
    assert not Estimate(0.1, 0.2).excludes_zero


# Each study


def model_of(folder, **changes):
    """The model that the studies above have trained with this configuration."""
    runs = [lab.Run.open(path) for path in (folder / "models").iterdir()]
    expected = replace(MODEL, **changes)
    return next(run.model("last") for run in runs if run.model_config == expected)


def test_fragmentation_is_the_loss_of_segments_alone(found, folder, text):
    result = found("fragmentation").result
    tokens = np.asarray(load_corpus(text).valid.tokens, np.int64)
    n = (len(tokens) - 1) // 8
    inputs, targets = tokens[: 8 * n].reshape(n, 8), tokens[1 : 8 * n + 1].reshape(n, 8)
    memory = model_of(folder).init_memory(1)
    for name, model in (
        ("memory", model_of(folder)),
        ("taken away", model_of(folder)),
        ("never", model_of(folder, mem_len=0)),
    ):
        losses = []
        for segment, target in zip(inputs, targets, strict=True):
            fwd = model.forward(segment[None], target[None], memory)
            memory = fwd.memory if name == "memory" else model.init_memory(1)
            losses.append(fwd.nll[0].astype(float))
        expected = over_blocks(np.array(losses[1:]))  # the first has no memory
        np.testing.assert_allclose(result["loss"][name], expected, rtol=1e-5)
        if name != "memory":
            gap = np.subtract(result["loss"][name], result["loss"]["memory"])[:, 0]
            np.testing.assert_allclose([mean for mean, _ in result["gap"][name]], gap, atol=1e-6)
        memory = model.init_memory(1)


def test_memory_lengths_are_evaluations(found, folder, text):
    result = found("memory").result
    curves, tokens = result["curves"], load_corpus(text).valid.tokens
    assert result["lengths"] == [0, 8, 32]
    assert all(curve[0]["change"] == [0, 0] for curve in curves.values())
    assert curves["dai"][:2] == curves["dai, clamped"][:2]  # no distance is beyond it yet
    assert curves["dai"][2] != curves["dai, clamped"][2]
    for attn_type, clamp_len in (("dai", None), ("vaswani", None), ("al-rfou", 15)):
        model = model_of(folder, attn_type=attn_type, clamp_len=clamp_len)
        expected = evaluate(model.reconfigured(mem_len=32), tokens, 8).nll
        # Blocks differ by a token in length, and count the same.
        assert curves[attn_type][2]["loss"][0] == pytest.approx(expected, rel=1e-2)


def test_attention_is_a_distribution_over_distances(found):
    result = found("attention").result
    shares = np.array(result["by_distance"])
    assert shares.shape == (2, 2, 16)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)
    # Distances from 8 on are in memory for every query, and 0 is for none.
    in_memory = np.array(result["in_memory"])
    assert (shares[..., 8:].sum(-1) <= in_memory + 1e-6).all()
    assert (in_memory <= 1 - shares[..., 0] + 1e-6).all()
    assert (np.array(result["effective_keys"]) <= 16).all()
    assert result["in_memory_if_even"] == pytest.approx(np.mean([8 / n for n in range(9, 17)]))


@given(st.integers(1, 5), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_sums_by_distance_by_hand(n_queries, n_memory, seed):
    n_keys = n_queries + n_memory
    attention = np.random.default_rng(seed).random((2, n_queries, n_keys))
    expected = np.zeros((2, n_keys))
    for i in range(n_queries):
        for j in range(n_memory + i + 1):
            expected[:, n_memory + i - j] += attention[:, i, j]
    np.testing.assert_allclose(by_distance(attention), expected)


# The command line


def test_the_command_prints_tables_or_json(tiny, folder, capsys):
    words = ["study", "attention", "--quick", "--out", str(folder)]
    assert main(words) == 0
    assert "Attention by head" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["attention"]["result"]["mem_len"] == 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Say which studies to run, or --all"),
        (["attention", "--all"], "Say which studies to run, or --all"),
        (["atention"], "There is no study 'atention'; choose from"),
        (["attention", "--corpus", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_sentences(words, says, capsys, tmp_path):
    assert main(["study", *words, "--out", str(tmp_path / "studies")]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "studies").exists()


def test_a_text_of_ones_own_has_results_of_its_own(tiny, folder, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(runner, "write_json", lambda path, values: called.append(path.name))
    other = tmp_path / "exodus.txt"
    other.write_bytes(BUNDLED["kjv"].read_bytes()[200_000:230_000])
    conduct(tiny["attention"], tmp_path, quick=True, corpus=str(other))
    assert called == ["attention-quick-exodus.json"]
    with pytest.raises(NpxlError, match="no file or folder"):
        conduct(tiny["attention"], tmp_path, quick=True, corpus=str(tmp_path / "nowhere"))
