"""What all studies do: what they keep, resume and refuse; error bars, and how numbers are shown."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_studies import TRAIN, untrained

from npxl import NpxlError
from npxl.cli import main
from npxl.data import BUNDLED
from npxl.studies import STUDIES, Lab, StudyStopped, conduct, lab, runner, speed
from npxl.studies.frame import octaves, spelled
from npxl.studies.page import shown
from npxl.studies.statistics import N_BLOCKS, Estimate, over_blocks, over_text
from npxl.training.run import Run


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_shows_what_it_found_and_finds_it_again(name, found, folder, monkeypatch):
    first = found(name)
    assert first.tables
    for table in first.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
    for statement in first.statements:
        assert statement.seen is None or type(statement.seen) is bool  # what JSON has
    kept = json.loads((folder / f"{name}-quick.json").read_text())
    assert kept["result"] == first.result
    pictures = [(folder / f"{name}-quick-{n}.svg") for n, _ in enumerate(first.pictures, 1)]
    drawn = [picture.read_bytes() for picture in pictures]

    monkeypatch.setattr(lab, "write_json", None)  # nothing is computed again
    needed = set()

    class Counting(Lab):
        def trained(self, *configurations):
            run = super().trained(*configurations)
            needed.add(run.folder)
            return run

    monkeypatch.setattr(runner, "Lab", Counting)
    again = found(name)
    assert len(needed) == getattr(again.setting, "n_models", 0)
    assert again.as_json() == first.as_json()
    assert [picture.read_bytes() for picture in pictures] == drawn


def test_a_training_that_was_interrupted_goes_on(tiny, tmp_path, text, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(lab.Trainer, "run", lambda trainer, reporter: trainer.update() and False)
        with pytest.raises(StudyStopped):
            conduct(tiny["fragmentation"], tmp_path, tiny["fragmentation"].quick)
        assert main(["study", "fragmentation", "--quick", "--out", str(tmp_path)]) == 130
    assert len(list((tmp_path / "models").iterdir())) == 1
    conduct(tiny["fragmentation"], tmp_path, tiny["fragmentation"].quick)
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_a_model_that_was_trained_for_longer_is_refused(tiny, tmp_path):
    setting = replace(tiny["attention"].quick, train=replace(TRAIN, steps=2, eval_interval=2))
    conduct(tiny["attention"], tmp_path, setting)
    (folder,) = (tmp_path / "models").iterdir()
    assert main(["train", "--out", str(folder), "--resume", "--steps=3"]) == 0
    with pytest.raises(NpxlError, match=r"one of 3 updates by now, but the study needs .* of 2"):
        conduct(tiny["attention"], tmp_path, setting)


def test_another_setting_text_or_machine_is_another_part(tiny, text, tmp_path, monkeypatch):
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
    monkeypatch.setattr(lab, "environment", lambda: {"processor": "an abacus"})
    assert part(setting) == 3
    monkeypatch.setattr(lab, "digest_of_sources", lambda: "of another day")
    assert part(setting) == 4


def test_a_model_that_cannot_be_used_is_named_with_what_to_do(tiny, tmp_path):
    # What a run finds out when it is made is no other model.
    setting = replace(tiny["fragmentation"].quick, train=replace(TRAIN, workers=None))

    def opened():
        return conduct(tiny["fragmentation"], tmp_path, setting)

    assert opened().result == opened().result
    one, other = (tmp_path / "models").iterdir()
    again = rf"Move the folder .*({one.name}|{other.name}) away, and the same command trains it"
    aside = one.rename(tmp_path / "aside")
    other.rename(one)
    aside.rename(other)
    with pytest.raises(NpxlError, match=f"holds another model than its name says. {again}"):
        opened()
    on_another = Lab(tmp_path, "fragmentation", setting)
    text = tmp_path / "other.txt"
    text.write_bytes(BUNDLED["kjv"].read_bytes()[50_000:80_000])
    theirs = on_another.trained(setting.model, setting.train, text).folder
    shutil.rmtree(one)
    shutil.copytree(theirs, one)  # of the same configuration
    shutil.rmtree(other)
    with pytest.raises(NpxlError, match=again):
        opened()
    shutil.rmtree(tmp_path / "models")
    opened()
    for damage in ("run.json", "last.safetensors", "metrics.jsonl"):
        (one / damage).unlink()
        with pytest.raises(NpxlError, match=again):
            opened()
        shutil.rmtree(tmp_path / "models")
        opened()
        one, other = sorted((tmp_path / "models").iterdir(), key=lambda path: path.name != one.name)


def test_other_models_are_another_part(tiny, tmp_path):
    setting = tiny["attention"].quick
    counts = iter(range(10))
    found = []
    for seed in (0, 1, 0):
        one = Lab(tmp_path, "attention", setting)
        one.transformer(setting.model, replace(setting.train, seed=seed))
        found.append(one.part("one", lambda: next(counts)))
        ((name, made),) = one.models.items()
        assert made["npxl"] == Run.open(tmp_path / "models" / name, setting.corpus).version
    assert found == [0, 1, 0]


def test_a_part_that_fails_leaves_nothing(tiny, tmp_path):
    setting = tiny["fragmentation"].quick
    one = Lab(tmp_path, "fragmentation", setting)
    with pytest.raises(ZeroDivisionError):
        one.part("one", lambda: 1 / 0)
    with pytest.raises(NpxlError, match="not a finite number, in its part 'one'"):
        one.part("one", lambda: {"mean": [1.0, float("nan")]})
    assert one.part("one", lambda: [1.5]) == [1.5]
    assert one.seconds >= 0


@pytest.mark.parametrize(
    "contents",
    [
        "", "{", "{}", "[1.5]", '{"seconds": 1}', '{"seconds": {}, "value": {}}',
        '{"seconds": 1.0, "value": 3, "digest": "of something else"}',
        '{"seconds": 1.0, "value": NaN, "digest": ""}',
    ],
)  # fmt: skip
def test_what_is_no_part_is_measured_anew(contents, tiny, tmp_path):
    one = Lab(tmp_path, "fragmentation", tiny["fragmentation"].quick)
    assert one.part("one", lambda: 1) == 1
    (path,) = (tmp_path / "parts").iterdir()
    path.write_text(contents)
    assert one.part("one", lambda: 2) == one.part("one", lambda: 3) == 2


@pytest.mark.parametrize("changes", [dict(value=[3]), dict(seconds={}), dict(more=1)])
def test_a_part_that_was_changed_is_measured_anew(changes, tiny, tmp_path):
    one = Lab(tmp_path, "fragmentation", tiny["fragmentation"].quick)
    assert one.part("one", lambda: [1, 2]) == [1, 2]
    (path,) = (tmp_path / "parts").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert one.part("one", lambda: [4]) == [4]


@pytest.mark.parametrize(
    ("name", "enough"),
    [
        ("reach", 2 * 8 + 3),  # the token beyond the reach, and a target
        ("fragmentation", (1 + N_BLOCKS) * 8 + 1),  # segments, the first of which has no memory
        ("memory", 4 * 8 + N_BLOCKS + 1),  # what fills the longest memory, and losses after it
        ("recl", 24 + 300),  # the longest context, and positions
        ("attention", 2 * (1 + 3) * 8 + 1),  # streams of segments
    ],
)
def test_a_text_that_is_too_short_is_refused_before_training(
    name, enough, tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(Lab, "trained", untrained)
    text = BUNDLED["kjv"].read_bytes()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_bytes(text[:1000])

    fewer = dict(n_configurations=1) if name == "reach" else {}
    setting = replace(tiny[name].quick, corpus=str(tmp_path / "text"), **fewer)

    def outcome(length):
        (tmp_path / "text" / "valid.txt").write_bytes(text[:length])
        return conduct(tiny[name], tmp_path, setting)

    assert outcome(enough).tables
    monkeypatch.setattr(Lab, "trained", None)  # nothing is trained
    message = f"has {enough - 1} tokens, but at least {enough} are needed by the study {name}"
    with pytest.raises(NpxlError, match=message):
        outcome(enough - 1)


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "speed"])
def test_a_text_without_the_split_is_refused_before_training(name, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Lab, "trained", None)
    (tmp_path / "train.txt").write_bytes(BUNDLED["kjv"].read_bytes()[:1000])
    with pytest.raises(NpxlError, match="has no split 'valid'; it has train"):
        conduct(tiny[name], tmp_path / "out", replace(tiny[name].quick, corpus=str(tmp_path)))


@pytest.mark.parametrize("file", ["out", "out/parts"])
def test_a_folder_that_cannot_be_used_is_refused_before_anything(file, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "measure", None)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("in the way")
    with pytest.raises(NpxlError, match=r"Nothing can be kept in .*: choose another folder"):
        conduct(tiny["speed"], tmp_path / "out", tiny["speed"].quick)


def test_nothing_is_half_written_while_a_picture_is_drawn(tiny, folder, monkeypatch):
    left = []

    def drawn(picture):
        left.extend(folder.glob(".*.tmp"))
        return b"<svg/>"

    monkeypatch.setattr(runner, "drawn", drawn)
    assert conduct(tiny["speed"], folder, tiny["speed"].quick).pictures
    assert left == []


# Statistics and words


@pytest.mark.parametrize(
    ("cell", "as_shown"),
    [
        (None, ""),
        ("30.1", "30.1"),
        (2048, "2,048"),
        (30.1, "30.10"),
        (0.337, "0.3370"),
        (999.96, "1,000"),
        (2443.2, "2,443"),
        (123456.7, "123,457"),
        (3.5461e-11, "3.546e-11"),
    ],
)
def test_cells_of_a_column_have_as_many_digits(cell, as_shown):
    assert shown(cell) == as_shown


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


def test_error_bars_need_a_value_for_each_block():
    assert over_text(np.zeros(N_BLOCKS)) == (0, 0)
    with pytest.raises(NpxlError, match=r"There are 29 rows of values, but .* of 30 blocks"):
        over_text(np.zeros(N_BLOCKS - 1))


@pytest.mark.parametrize(
    ("mean", "error", "bound", "above"),
    [
        (0.3, 0.1, 0.0, True),
        (0.1, 0.2, 0.0, None),
        (-0.1, 0.2, 0.0, None),
        (-0.3, 0.1, 0.0, False),
        (0.3, 0.1, 0.5, False),
        (0.0, 0.0, 0.0, False),  # what is equal is not above
        (float("nan"), 0.1, 0.0, None),
    ],
)
def test_an_interval_is_above_a_bound_below_it_or_on_both_sides(mean, error, bound, above):
    assert Estimate(mean, error).is_above(bound) is above


def test_an_interval_from_its_ends():
    assert Estimate.between(1.0, 3.0) == (2.0, 1.0)
