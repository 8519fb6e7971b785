"""Studies at a size that takes a moment, on real text: what holds exactly, whatever is found."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from signal import SIGINT, raise_signal
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl import LSTMConfig, ModelConfig, NpxlError, TrainConfig, TransformerXL, load_corpus
from npxl.cli import main
from npxl.data import BUNDLED
from npxl.inference import Score, evaluate
from npxl.inference.sliding import score_windows
from npxl.models.architectures import model_class
from npxl.studies import STUDIES, Lab, StudyStopped, conduct, lab, recl, runner, speed
from npxl.studies.ablation import shuffled_text
from npxl.studies.attention import by_distance
from npxl.studies.effective_context import effective_context
from npxl.studies.frame import octaves, spelled
from npxl.studies.influence import by_exchange, by_gradient
from npxl.studies.page import shown
from npxl.studies.paper import TABLE_6, TABLE_7
from npxl.studies.recl import GROUPS, RATIOS
from npxl.studies.speed import growth
from npxl.studies.statistics import N_BLOCKS, Estimate, over_blocks, over_text

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
    "recl": dict(lstm=LSTM, lstm_train=TRAIN, step=4, longest=24, n_positions=60),
    "ablation": dict(seeds=(0,), lengths=(2, 3)),
}


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
            conduct(tiny["fragmentation"], tmp_path, quick=True)
        assert main(["study", "fragmentation", "--quick", "--out", str(tmp_path)]) == 130
    assert len(list((tmp_path / "models").iterdir())) == 1
    conduct(tiny["fragmentation"], tmp_path, quick=True)
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_a_model_that_was_trained_for_longer_is_refused(tiny, tmp_path):
    setting = replace(tiny["attention"].quick, train=replace(TRAIN, steps=2, eval_interval=2))
    study = replace(tiny["attention"], quick=setting)
    conduct(study, tmp_path, quick=True)
    (folder,) = (tmp_path / "models").iterdir()
    assert main(["train", "--out", str(folder), "--resume", "--steps=3"]) == 0
    with pytest.raises(NpxlError, match=r"one of 3 updates by now, but the study needs .* of 2"):
        conduct(study, tmp_path, quick=True)


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
    monkeypatch.setattr(lab, "versions", lambda: {"processor": "an abacus"})
    assert part(setting) == 3


def test_a_part_that_fails_leaves_nothing(tiny, tmp_path):
    setting = tiny["fragmentation"].quick
    one = Lab(tmp_path, "fragmentation", setting)
    with pytest.raises(ZeroDivisionError):
        one.part("one", lambda: 1 / 0)
    with pytest.raises(NpxlError, match="not a finite number, in its part 'one'"):
        one.part("one", lambda: {"mean": [1.0, float("nan")]})
    assert one.part("one", lambda: [1.5]) == [1.5]
    assert one.seconds >= 0


def untrained(lab, model, train, corpus=None):
    """In place of `Lab.trained`: a run whose model is as it begins."""
    return SimpleNamespace(model=lambda which: model_class(model)(model, seed=train.seed))


@pytest.mark.parametrize(
    ("name", "enough"),
    [
        ("reach", 2 * 8 + 3),  # the token beyond the reach, and a target
        ("fragmentation", (1 + N_BLOCKS) * 8 + 1),  # segments, the first of which has no memory
        ("memory", N_BLOCKS + 1),
        ("recl", 24 + 60),  # the longest context, and positions
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
    study = replace(tiny[name], quick=replace(tiny[name].quick, **fewer))

    def outcome(length):
        (tmp_path / "text" / "valid.txt").write_bytes(text[:length])
        return conduct(study, tmp_path, quick=True, corpus=str(tmp_path / "text"))

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
        conduct(tiny[name], tmp_path / "out", quick=True, corpus=str(tmp_path))


@pytest.mark.parametrize("file", ["out", "out/parts"])
def test_a_folder_that_cannot_be_used_is_refused_before_anything(file, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "measure", None)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("in the way")
    with pytest.raises(NpxlError, match=r"Nothing can be kept in .*: choose another folder"):
        conduct(tiny["speed"], tmp_path / "out", quick=True)


def test_nothing_is_half_written_while_a_picture_is_drawn(tiny, folder, monkeypatch):
    left = []

    def drawn(picture):
        left.extend(folder.glob(".*.tmp"))
        return b"<svg/>"

    monkeypatch.setattr(runner, "drawn", drawn)
    assert conduct(tiny["speed"], folder, quick=True).pictures
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


def test_an_interval_that_excludes_zero():
    assert Estimate(-0.2, 0.1).excludes_zero
    assert not Estimate(0.1, 0.2).excludes_zero


# Each study


def model_of(folder, **changes):
    """The model that the studies above have trained with this configuration."""
    expected = replace(MODEL, **changes), replace(TRAIN, vocabulary="bytes")
    (run,) = (
        run
        for run in (lab.Run.open(path) for path in (folder / "models").iterdir())
        if (run.model_config, run.train_config) == expected and "texts" not in run.corpus_source
    )
    return run.model("last")


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
            octaves = [mean for mean, _ in result["gap_by_octave"][name]]
            expected = [gap[0], gap[1], gap[2:4].mean(), gap[4:].mean()]
            np.testing.assert_allclose(octaves, expected, atol=1e-6)
        memory = model.init_memory(1)


def test_memory_lengths_are_evaluations(found, folder, text):
    result = found("memory").result
    curves, tokens = result["curves"], load_corpus(text).valid.tokens
    assert result["lengths"] == [0, 8, 32]
    assert all(curve[0]["change"] == [0, 0] for curve in curves.values())
    assert all(curve[1]["over_trained"] == [0, 0] for curve in curves.values())
    for _, at, longest in curves.values():  # of the same tokens
        difference = longest["loss"][0] - at["loss"][0]
        assert longest["over_trained"][0] == pytest.approx(difference, abs=1e-9)
    assert curves["dai"][:2] == curves["dai, clamped"][:2]  # no distance is beyond it yet
    assert curves["dai"][2] != curves["dai, clamped"][2]
    for attn_type, clamp_len in (("dai", None), ("vaswani", None), ("al-rfou", 15)):
        model = model_of(folder, attn_type=attn_type, clamp_len=clamp_len)
        expected = evaluate(model.reconfigured(mem_len=32), tokens, 8).nll
        # Blocks differ by a token in length, and count the same.
        assert curves[attn_type][2]["loss"][0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(multiples=(1, 8)), r"multiples are \(1, 8\) of a mem_len of 8"),
        (dict(multiples=(0, 8)), "pass 0 and 1 among them"),
        (dict(model=replace(MODEL, mem_len=0)), "mem_len of 0, .* a model that has a memory"),
    ],
)
def test_memories_that_cannot_be_compared_are_refused(changes, message, tiny, tmp_path):
    study = replace(tiny["memory"], quick=replace(tiny["memory"].quick, **changes))
    with pytest.raises(NpxlError, match=message):
        conduct(study, tmp_path, quick=True)


def test_memories_may_be_given_in_any_order(tiny, folder, found):
    in_order = found("memory").result
    mixed = replace(tiny["memory"].quick, multiples=(4, 1, 0))
    assert conduct(replace(tiny["memory"], quick=mixed), folder, quick=True).result == in_order
    found("memory")  # so that the folder is as other tests expect it


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("memory", lambda r: [curve[-1]["loss"][0] for curve in r["curves"].values()]),
        ("fragmentation", lambda r: [gap[0][0] for gap in r["gap"].values()]),
        ("recl", lambda r: [losses[-1] for losses in r["loss"].values()]),
        ("ablation", lambda r: [row["seeds"][0]["best"] for row in r["in order"]]),
    ],
)
def test_a_picture_is_told_by_its_figures(name, values, found):
    outcome = found(name)
    for value in values(outcome.result):
        assert f"{value:.3f}" in outcome.pictures[0].alternative


def verdicts(name, result):
    return [statement.seen for statement in STUDIES[name].statements(result)]


def test_noise_makes_no_statement_about_memory_easier():
    def result(dai, places, error):
        point = {"loss": [2.0, 0.01], "change": [0.1, 0.01]}
        names = ("vaswani", "al-rfou", "vaswani, trained without", "al-rfou, trained without")
        over = dict.fromkeys(names, places) | {"dai": dai, "dai, clamped": dai}
        return {
            "lengths": [0, 8, 32],
            "trained_with": 8,
            "curves": {
                name: [point, point, {**point, "over_trained": [mean, error]}]
                for name, mean in over.items()
            },
        }

    def about_the_longest(*figures):
        _, no_harm, _, _, *harmed = verdicts("memory", result(*figures))
        return no_harm, *harmed

    assert about_the_longest(0.0, 0.3, 0.005) == (True, True, True)
    assert about_the_longest(0.0, 0.3, 0.5) == (False, False, False)
    assert about_the_longest(0.02, -0.3, 0.005) == (False, False, False)


def test_one_seed_has_no_spread_to_compare_with(found):
    result = found("ablation").result
    assert verdicts("ablation", result) == [None] * 3
    assert all(each.mark == "not judged" for each in STUDIES["ablation"].statements(result))
    assert not any("spread" in table.title for table in STUDIES["ablation"].tables(result))
    assert "±" not in cells("ablation", result)

    def of_seeds(row, text, spread):
        bits = 2.0 if row["recurrence"] and row["attn_type"] == "dai" else 2.5
        bits = 2.4 if text == "shuffled" and row["recurrence"] else bits
        each = [{**row["seeds"][0], "best": bits + noise} for noise in (0, spread)]
        return {**row, "seeds": each}

    for spread, seen in ((0.1, True), (0.45, False)):
        twice = {
            text: [of_seeds(row, text, spread) for row in rows] for text, rows in result.items()
        }
        verdict = verdicts("ablation", twice)
        assert verdict == ([True] * 3 if seen else [True, True, False])
        assert "±" in cells("ablation", twice)


def cells(name, result):
    """All that the tables of a study show."""
    return " ".join(
        shown(cell) for table in STUDIES[name].tables(result) for row in table.rows for cell in row
    )


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


def test_the_part_in_memory_of_even_attention_is_that_of_the_keys_that_are_seen(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(Lab, "trained", untrained)
    model = replace(MODEL, attn_window=5, init_std=1e-6)  # so small that attention is even
    study = replace(tiny["attention"], quick=replace(tiny["attention"].quick, model=model))
    result = conduct(study, tmp_path, quick=True).result
    expected = np.mean([4 / 5, 3 / 5, 2 / 5, 1 / 5, 0, 0, 0, 0])
    assert result["in_memory_if_even"] == pytest.approx(expected)
    np.testing.assert_allclose(result["in_memory"], expected, rtol=1e-4)


@given(st.integers(1, 5), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_sums_by_distance_by_hand(n_queries, n_memory, seed):
    n_keys = n_queries + n_memory
    attention = np.random.default_rng(seed).random((2, n_queries, n_keys))
    expected = np.zeros((2, n_keys))
    for i in range(n_queries):
        for j in range(n_memory + i + 1):
            expected[:, n_memory + i - j] += attention[:, i, j]
    np.testing.assert_allclose(by_distance(attention), expected)


def test_reach_is_exact_in_ten_configurations(found):
    result = found("reach").result
    assert len(result["exact"]) == 10
    for each in result["exact"]:
        moved, segments = np.array(each["moved"]), each["segments"]
        assert each["mem_len"] >= each["window"] - 1
        assert len(segments) > 1
        distances = np.subtract.outer(np.arange(24), np.arange(24)).T  # [s, t]: t − s
        reach = each["n_layer"] * (each["window"] - 1)
        assert (moved == ((distances >= 0) & (distances <= reach))).all()
        assert each["wrong"] == 0
        assert each["furthest"] == each["reach"] == reach
    assert len({(each["n_layer"], each["window"]) for each in result["exact"]}) > 3


def test_influences_of_a_trained_model_end_at_its_reach(found):
    result = found("reach").result
    reach = result["trained_reach"]
    assert reach == 2 * 8
    for name in ("gradient", "attention"):
        values = np.array(result[name])
        assert (values[: reach + 1] > 0).all()
        assert (values[reach + 1 :] == 0).all()
    assert sum(result["attention"]) == pytest.approx(1)
    assert result["exchanged"][-2:] == [reach, reach + 1]
    assert (np.array(result["exchange"][:-1]) > 0).all()
    assert result["exchange"][-1] == 0
    window = result["window"]
    for further, seen in ((0.0005, False), (0.02, True)):
        gradient = np.zeros(reach + 2)
        gradient[[0, window]] = 1, further
        assert verdicts("reach", {**result, "gradient": gradient.tolist()})[-1] is seen


def test_a_gradient_by_distance_is_a_slope(folder, found):
    found("reach")
    model = model_of(folder).astype(np.float64).reconfigured(mem_len=0, attn_window=9)
    text = np.random.default_rng(0).integers(32, 127, (1, 7))
    inputs, target = text[:, :-1], text[:, -1:]
    memory, embedded = model.init_memory(1), model.embed(inputs)

    def loss(moved):
        return model.forward(inputs, target, memory, embedded=moved).nll[0, 0]

    slopes = np.empty_like(embedded)
    for index in np.ndindex(embedded.shape):
        step = np.zeros_like(embedded)
        step[index] = 1e-5
        slopes[index] = (loss(embedded + step) - loss(embedded - step)) / 2e-5
    expected = np.linalg.norm(slopes, axis=-1)[:, ::-1]
    np.testing.assert_allclose(by_gradient(model, text), expected, rtol=1e-6)


def test_a_token_is_exchanged_for_another_one_of_its_text_if_there_is_one():
    model = TransformerXL(replace(MODEL, vocab_size=9, init_std=0.3), dtype=np.float64)
    draw = np.random.default_rng(0)
    texts = np.array([[7, 7, 7, 7, 7], [1, 3, 1, 1, 7]])

    def moved(row, other):
        exchanged = row[:-1].copy()
        exchanged[1] = other
        before, after = (
            np.exp(model.log_probs(each[None], model.init_memory(1))[0][0, -1])
            for each in (row[:-1], exchanged)
        )
        return pytest.approx(np.abs(before - after).sum() / 2)

    first, second = by_exchange(model, texts, 2, draw)
    assert any(first == moved(texts[0], other) for other in (1, 3))  # it has no other itself
    assert any(second == moved(texts[1], other) for other in (1, 7))
    with pytest.raises(NpxlError, match="All texts are token 7 again and again"):
        by_exchange(model, texts[:1], 2, draw)


def test_both_sides_of_speed_are_right(found):
    result = found("speed").result
    rows = result["shapes"]["tiny"]
    assert [row["length"] for row in rows] == [20, 40]
    assert all(row["difference"] < 1e-4 for row in rows)
    assert all(row["reusing"] > 0 for row in rows)
    assert verdicts("speed", result) == [None]  # lengths are not the paper's
    rows[-1]["length"] = 3800
    assert verdicts("speed", result) == [rows[-1]["sliding"] / rows[-1]["reusing"] >= 1874]


def test_a_side_that_is_wrong_is_not_timed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "score_windows", lambda *_: np.zeros(1))
    with pytest.raises(NpxlError, match=r"differ by .* nats"):
        conduct(tiny["speed"], tmp_path, quick=True)


def test_one_key_more_or_less_is_a_difference(monkeypatch):
    reusing, sliding = speed.sides(MODEL, length=20, seed=0)
    tokens = np.random.default_rng(0).integers(0, 256, 24)
    assert speed.wrong_by(reusing, tokens[None, None, :9]) < 1e-4
    assert speed.wrong_by_sliding(sliding, tokens, 20) < 1e-4
    for changes in (dict(attn_window=19), dict(mem_len=18)):
        other = reusing.reconfigured(**changes).reader
        with monkeypatch.context() as patch:
            patch.setattr(reusing, "reader", other, raising=False)
            assert speed.wrong_by(reusing, tokens[None, None, :9]) > speed.LARGEST_DIFFERENCE
    monkeypatch.setattr(speed, "score_windows", lambda m, t, p, n: score_windows(m, t, p, n - 1))
    assert speed.wrong_by_sliding(sliding, tokens, 20) > speed.LARGEST_DIFFERENCE


@pytest.mark.parametrize("side", [0, 1])
def test_a_loss_that_is_not_a_number_is_not_timed(side, tiny, tmp_path, monkeypatch):
    both = speed.sides(MODEL, 20, seed=0)
    both[side].params.flat[:] = np.nan
    monkeypatch.setattr(speed, "sides", lambda *_: both)
    with pytest.raises(NpxlError, match="differ by nan nats"):
        conduct(tiny["speed"], tmp_path, quick=True)


@pytest.mark.parametrize(("n_cores", "n_windows"), [(1, 4), (2, 4), (3, 6), (8, 8)])
def test_all_cores_have_windows(n_cores, n_windows, tiny, monkeypatch):
    timed = []

    def score(model, tokens, pairs, window, n_workers=1):
        timed.append((len(pairs), n_workers))
        return score_windows(model, tokens, pairs, window)

    monkeypatch.setattr(speed, "available_cores", lambda: n_cores)
    monkeypatch.setattr(speed, "score_windows", score)
    speed.measure(MODEL, 20, replace(tiny["speed"].quick, n_windows=4))
    assert timed[-1] == (n_windows, n_cores)


def test_growth_is_found_again():
    lengths = np.array([800, 1800, 3800])
    assert growth(lengths, 0.3 * lengths**1.2) == pytest.approx((0.3, 1.2))


def test_losses_after_a_context_read_nothing_else(found, folder, text):
    result = found("recl").result
    tokens = np.asarray(load_corpus(text).valid.tokens, np.int64)
    places = np.linspace(24, len(tokens) - 1, 60).astype(int)
    for name, mem_len in (("Transformer-XL", 8), ("without recurrence", 0)):
        window = result["attention_lengths"][name]
        model = model_of(folder, mem_len=mem_len).reconfigured(mem_len=0, attn_window=window)
        for context, loss in zip(result["contexts"], result["loss"][name], strict=True):
            inputs = tokens[places[:, None] + np.arange(-context, 0)]
            log_p, _ = model.log_probs(inputs, model.init_memory(60))
            expected = -log_p[np.arange(60), -1, tokens[places]].mean()
            assert loss == pytest.approx(expected, rel=1e-5)


def test_attention_lengths_are_multiples_of_a_model_s_own(tiny, folder, monkeypatch):
    tried = []

    def shortest(model, *args, **options):
        tried.append(model.config.attn_window)
        return Score(tokens=1, nll=model.config.attn_window, tokens_per_second=1.0)

    monkeypatch.setattr(recl, "evaluate", shortest)
    setting = replace(tiny["recl"].quick, n_positions=2, longest=8)  # of the same models
    result = recl.run(setting, Lab(folder, "lengths", setting))
    memory, segment = MODEL.mem_len, TRAIN.tgt_len
    assert result["attention_lengths"] == {
        "Transformer-XL": memory + segment,
        "with Shaw's encoding": memory + segment,
        "without recurrence": segment,
    }
    assert tried == [16, 32, 16, 32, 8, 16]


def test_effective_contexts_are_those_of_the_kept_losses(found, folder):
    result = found("recl").result
    assert [list(group) for group in result["groups"]] == [list(group) for group in GROUPS]
    kept = [
        json.loads(path.read_text())["value"]
        for context in result["contexts"]
        for path in (folder / "parts").glob(f"recl-*-losses-after-{context}.json")
    ]
    for group in result["groups"]:
        losses = np.array([[each[name] for each in kept] for name in group])
        for i, rows in enumerate(group.values()):
            expected = [effective_context(losses, i, r) for r in RATIOS]
            assert rows == [[result["contexts"][c], ended] for c, ended in expected]
    # A Transformer reads no more than a segment.
    assert len(set(result["loss"]["Transformer"][1:])) == 1


@pytest.mark.parametrize(
    ("ours", "other", "seen"),
    [
        ((96, True), (64, True), True),
        ((64, True), (64, True), False),
        ((128, False), (96, True), True),  # at least that
        ((96, True), (128, False), False),
        ((128, False), (128, False), None),  # both were still gaining
    ],
)
def test_contexts_without_an_end_are_compared_as_far_as_they_can_be(ours, other, seen, found):
    result = found("recl").result

    def group(others):
        first, *names = others
        return {first: [ours] * 3, **{name: [other] * 3 for name in names}}

    shown = {**result, "groups": [group(names) for names in GROUPS]}
    assert verdicts("recl", shown) == [seen, seen]
    for statement in STUDIES["recl"].statements(shown):
        assert ("≥" in statement.evidence) == (not (ours[1] and other[1]))
    second = shown["groups"][1]
    second["without recurrence"] = [(1000, True)] * 3  # longer than ours, whatever the others are
    assert verdicts("recl", shown)[1] is False


def test_an_interval_up_to_the_longest_context_may_go_further(found):
    result = found("recl").result
    longest = result["contexts"][-1]
    for high, shown_as in ((longest, f"8 (4–≥ {longest})"), (longest - 4, f"8 (4–{longest - 4})")):
        changed = {
            **result,
            "groups": [{name: [(8, True)] * 3 for name in names} for names in GROUPS],
            "intervals": [{name: [(4, high)] * 3 for name in names} for names in GROUPS],
        }
        table = next(iter(STUDIES["recl"].tables(changed)))
        assert table.rows[0][2:5] == (shown_as,) * 3


def test_ablation_has_the_paper_s_rows(found, folder, text):
    result = found("ablation").result
    assert [len(rows) for rows in result.values()] == [len(TABLE_6), len(TABLE_7)]
    rows = {(row["recurrence"], row["attn_type"], row["loss"]): row for row in result["in order"]}
    for row in rows.values():
        assert all(each["best"] <= each["initial"] for each in row["seeds"])
    (places,) = rows[False, "vaswani", "half"]["seeds"]
    assert places["attention_length"] == TRAIN.tgt_len
    tokens = load_corpus(text).valid
    (seed,) = rows[True, "dai", "full"]["seeds"]
    expected = evaluate(model_of(folder), tokens.tokens, TRAIN.tgt_len).nll / np.log(2)
    assert seed["initial"] == pytest.approx(expected * (len(tokens) - 1) / tokens.scored_bytes)


def test_a_shuffled_text_has_the_same_lines(text, tmp_path):
    corpus = load_corpus(text)
    shuffled = load_corpus(shuffled_text(corpus, tmp_path))
    for name in ("train", "valid", "test"):
        before, after = (
            bytes(each.split(name).tokens).decode().splitlines() for each in (corpus, shuffled)
        )
        before = [line for line in before if line.strip()]
        assert sorted(before) == sorted(after)
        assert before != after
    assert shuffled_text(corpus, tmp_path) == shuffled.path


def test_a_text_that_is_one_line_cannot_be_shuffled(tmp_path):
    (tmp_path / "train.txt").write_text("some words\nand others\n")
    assert load_corpus(shuffled_text(load_corpus(tmp_path), tmp_path / "texts")).valid is None
    (tmp_path / "valid.txt").write_text("some words and no other line\n")
    with pytest.raises(NpxlError, match=r"The valid split of .* is a single line"):
        shuffled_text(load_corpus(tmp_path), tmp_path / "texts")


# The command line


def test_the_command_prints_tables_or_json(tiny, folder, capsys):
    words = ["study", "attention", "--quick", "--out", str(folder)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Share of attention by distance" in lines  # which is wider than the table
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["attention"]["result"]["mem_len"] == 8


def test_a_folder_that_is_a_file_is_refused_by_its_name(tiny, tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("of mine")
    assert main(["study", "speed", "--quick", "--out", str(path)]) == 2
    assert f"Nothing can be kept in {path} (File exists)" in capsys.readouterr().err
    assert path.read_text() == "of mine"


def test_a_text_is_refused_before_any_study_begins(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("npxl.studies.runner.Lab.trained", None)  # nothing is trained
    monkeypatch.setattr(speed, "measure", None)  # or measured
    text = tmp_path / "short.txt"  # long enough for all but one
    text.write_bytes(BUNDLED["kjv"].read_bytes()[:12_000])
    setting = replace(tiny["recl"].quick, n_positions=1000)
    monkeypatch.setitem(STUDIES, "recl", replace(tiny["recl"], quick=setting))
    words = ["study", "--all", "--quick", "--corpus", str(text), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert "at least 1,024 are needed by the study recl" in printed.err
    assert printed.out == ""


def test_the_command_says_what_is_trained_and_where_it_is_kept(tiny, text, tmp_path, capsys):
    words = ["study", "fragmentation", "--quick", "--corpus", text, "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for n, memory in ((1, "memory 8"), (2, "no memory")):
        assert f"model {n} of 2, {memory}, encoding dai, full loss, seed 0" in printed
    assert f"Kept in {tmp_path}/fragmentation-quick.json, with 1 picture." in printed
    assert (tmp_path / "fragmentation-quick.json").exists()


def test_ctrl_c_in_a_training_names_no_other_command(tiny, tmp_path, capsys, monkeypatch):
    def stop(reporter, run, progress):
        raise_signal(SIGINT)

    monkeypatch.setattr(lab.ConsoleReporter, "begin", stop)
    assert main(["study", "fragmentation", "--quick", "--out", str(tmp_path)]) == 130
    printed = capsys.readouterr().out
    assert "Stopped after step 0 of 40; everything is saved.\nStopped; what is fin" in printed
    assert "--resume" not in printed


def test_ctrl_c_while_measuring_says_how_to_go_on(tiny, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "measure", interrupted)
    assert main(["study", "speed", "--quick", "--out", str(tmp_path)]) == 130
    assert "what is finished is kept, and the same command goes on" in capsys.readouterr().out


class Links(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, page):
        super().__init__()
        self.targets, self.names = set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src", "xlink:href"):
                self.targets.add(value)
            if name == "id":
                self.names.add(value)


def test_all_studies_on_a_page(tiny, folder, capsys, monkeypatch):
    chosen = {name: tiny[name] for name in ("fragmentation", "attention")}
    monkeypatch.setattr("npxl.studies.STUDIES", chosen)
    assert main(["study", "--all", "--quick", "--out", str(folder)]) == 0
    page = (folder / "index-quick.html").read_text()  # the one of the full settings is kept
    printed = capsys.readouterr().out
    assert f"Page: {folder / 'index-quick.html'}" in printed
    links = Links(page)
    assert {"#fragmentation", "#attention"} <= links.targets
    for target in links.targets:  # within the page, or in it
        assert target.startswith("data:") or target.removeprefix("#") in links.names
    for name, study in chosen.items():
        outcome = conduct(study, folder, quick=True)
        for table in outcome.tables:
            for row in table.rows:
                assert all(f">{shown(cell)}</td>" in page for cell in row), name
        assert page.count("<svg role") >= len(outcome.pictures)
    assert f"npxl study --all --quick --out {folder}" in page


def test_a_text_of_ones_own_has_results_of_its_own(tiny, folder, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(runner, "write_json", lambda path, values: called.append(path.name))
    other = tmp_path / "exodus.txt"
    other.write_bytes(BUNDLED["kjv"].read_bytes()[200_000:230_000])
    conduct(tiny["attention"], tmp_path, quick=True, corpus=str(other))
    assert called == ["attention-quick-exodus.json"]
    (tmp_path / "leviticus").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "leviticus" / name).write_bytes(BUNDLED["kjv"].read_bytes()[320_000:322_000])
    monkeypatch.chdir(tmp_path / "leviticus")
    monkeypatch.setattr(Lab, "trained", untrained)
    conduct(tiny["attention"], tmp_path, quick=True, corpus=".")
    assert called[1:] == ["attention-quick-leviticus.json"]
    with pytest.raises(NpxlError, match="no file or folder"):
        conduct(tiny["attention"], tmp_path, quick=True, corpus=str(tmp_path / "nowhere"))
    with pytest.raises(NpxlError, match="The study speed reads no text: leave out the corpus"):
        conduct(tiny["speed"], tmp_path, quick=True, corpus=str(other))
