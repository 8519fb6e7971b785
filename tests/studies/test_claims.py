"""Each study at a size that takes a moment: what holds exactly, whatever is found."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_studies import MODEL, TRAIN, model_of, untrained

from npxl import NpxlError, TransformerXL, load_corpus
from npxl.inference import Score, evaluate, score
from npxl.inference.sliding import score_windows
from npxl.studies import STUDIES, Lab, conduct, recl, speed
from npxl.studies.ablation import shuffled_text
from npxl.studies.attention import by_distance
from npxl.studies.effective_context import effective_context
from npxl.studies.influence import by_exchange, by_gradient
from npxl.studies.paper import TABLE_6, TABLE_7
from npxl.studies.recl import RATIOS
from npxl.studies.speed import growth
from npxl.studies.statistics import over_blocks


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
    assert curves["vaswani"][:2] == curves["vaswani, clamped"][:2]
    assert curves["vaswani"][2] != curves["vaswani, clamped"][2]
    assert "al-rfou, clamped" not in curves  # which it is anyway
    for attn_type, clamp_len in (("dai", None), ("vaswani", None), ("al-rfou", 15)):
        model = model_of(folder, attn_type=attn_type, clamp_len=clamp_len)
        expected = score(model.reconfigured(mem_len=32), tokens, 8)[32:].mean()
        # Blocks differ by a token in length, and count the same.
        assert curves[attn_type][2]["loss"][0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(multiples=(1, 8)), r"multiples are \(1, 8\) of a mem_len of 8"),
        (dict(multiples=(0, 8)), "pass 0, 1 and more among them"),
        (dict(multiples=(0, 0.5, 1)), "and with a longer one are compared"),
        (dict(model=replace(MODEL, mem_len=0)), "mem_len of 0, .* a model that has a memory"),
    ],
)
def test_memories_that_cannot_be_compared_are_refused(changes, message, tiny, tmp_path):
    with pytest.raises(NpxlError, match=message):
        conduct(tiny["memory"], tmp_path, replace(tiny["memory"].quick, **changes))


def test_memories_may_be_given_in_any_order(tiny, folder, found):
    in_order = found("memory").result
    mixed = replace(tiny["memory"].quick, multiples=(4, 1, 0))
    assert conduct(tiny["memory"], folder, mixed).result == in_order


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
    if_even = [np.mean([(delta < n) / n for n in range(9, 17)]) for delta in range(16)]
    np.testing.assert_allclose(result["by_distance_if_even"], if_even)


def test_the_part_in_memory_of_even_attention_is_that_of_the_keys_that_are_seen(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(Lab, "trained", untrained)
    model = replace(MODEL, attn_window=5, init_std=1e-6)  # so small that attention is even
    setting = replace(tiny["attention"].quick, model=model)
    result = conduct(tiny["attention"], tmp_path, setting).result
    expected = np.mean([4 / 5, 3 / 5, 2 / 5, 1 / 5, 0, 0, 0, 0])
    assert result["in_memory_if_even"] == pytest.approx(expected)
    np.testing.assert_allclose(result["in_memory"], expected, rtol=1e-4)
    np.testing.assert_allclose(
        np.array(result["by_distance"])[0, 0], result["by_distance_if_even"], atol=1e-4
    )


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
    for row in rows:
        assert len(row["rounds"]) == 1
        assert row["sliding"] / row["reusing"] == pytest.approx(row["rounds"][0])


def test_a_side_that_is_wrong_is_not_timed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "score_windows", lambda *_: np.zeros(1))
    with pytest.raises(NpxlError, match=r"differ by .* nats"):
        conduct(tiny["speed"], tmp_path, tiny["speed"].quick)


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
        conduct(tiny["speed"], tmp_path, tiny["speed"].quick)


@pytest.mark.parametrize(("n_cores", "n_windows"), [(1, 4), (2, 4), (3, 6), (8, 8)])
def test_all_cores_have_windows(n_cores, n_windows, tiny, monkeypatch):
    timed = []

    def score(model, tokens, pairs, window, n_workers=1):
        timed.append((len(pairs), n_workers))
        return score_windows(model, tokens, pairs, window)

    monkeypatch.setattr(speed, "score_windows", score)
    speed.measure(MODEL, 20, replace(tiny["speed"].quick, n_windows=4), n_cores)
    assert timed[-1] == (n_windows, n_cores)


def test_growth_is_found_again():
    lengths = np.array([800, 1800, 3800])
    assert growth(lengths, 0.3 * lengths**1.2) == pytest.approx((0.3, 1.2))


def test_losses_after_a_context_read_nothing_else(found, folder, text):
    result = found("recl").result
    tokens = np.asarray(load_corpus(text).valid.tokens, np.int64)
    places = np.linspace(24, len(tokens) - 1, 300).astype(int)
    for name, mem_len in (("Transformer-XL", 8), ("without recurrence", 0)):
        window = result["attention_lengths"][name]
        model = model_of(folder, mem_len=mem_len).reconfigured(mem_len=0, attn_window=window)
        for context, loss in zip(result["contexts"], result["loss"][name], strict=True):
            inputs = tokens[places[:, None] + np.arange(-context, 0)]
            log_p, _ = model.log_probs(inputs, model.init_memory(300))
            expected = -log_p[np.arange(300), -1, tokens[places]].mean()
            assert loss == pytest.approx(expected, rel=1e-5)


def test_attention_lengths_are_multiples_of_a_model_s_own(tiny, folder, monkeypatch):
    tried = []

    def shortest(model, *args, **options):
        tried.append(model.config.attn_window)
        return Score(tokens=1, nll=model.config.attn_window, tokens_per_second=1.0)

    monkeypatch.setattr(recl, "evaluate", shortest)
    setting = replace(tiny["recl"].quick, longest=12)  # of the same models
    result = recl.run(setting, Lab(folder, "lengths", setting))
    memory, segment = MODEL.mem_len, TRAIN.tgt_len
    assert result["attention_lengths"] == {
        "Transformer-XL": memory + segment,
        "with Shaw's encoding": memory + segment,
        "without recurrence": segment,
    }
    assert tried == [16, 32, 16, 32, 8, 16]


@pytest.mark.parametrize("changes", [dict(n_positions=299), dict(longest=11)])
def test_positions_and_contexts_that_are_too_few_are_refused_before_training(
    changes, tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(Lab, "trained", None)
    with pytest.raises(NpxlError, match="at least 300 positions and 3 contexts are needed"):
        conduct(tiny["recl"], tmp_path, replace(tiny["recl"].quick, **changes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("reach", dict(n_configurations=0), "n_configurations is 0, .* at least 1"),
        ("reach", dict(seed=-1), "seed is -1, .* at least 0"),
        ("speed", dict(shapes=()), "There are 0 shapes, .* at least one shape is needed"),
        ("speed", dict(lengths=(8,)), r"lengths is \(8,\), .* two lengths, to say how"),
        ("speed", dict(rounds=0), "rounds is 0, .* at least 1"),
        ("recl", dict(step=0), "step is 0, .* at least 1"),
        ("recl", dict(windows=()), r"windows is \(\), .* one or more whole numbers, .* at least 1"),
        ("recl", dict(n_resampled=1.5), "n_resampled is 1.5, .* whole number"),
        (
            "recl",
            dict(compared=("LSTM",)),
            r"compared is \('LSTM',\), .* Transformer-XL and others",
        ),
        (
            "recl",
            dict(compared=("Transformer-XL", "QRNN")),
            "QRNN.* others of with Shaw's encoding",
        ),
        (
            "recl",
            dict(compared=("Transformer-XL",)),
            "it must be Transformer-XL and others of with",
        ),
        ("ablation", dict(seeds=()), r"seeds is \(\), .* one or more whole numbers, .* at least 0"),
        ("ablation", dict(lengths=(0, 2)), r"lengths is \(0, 2\), .* at least 1"),
        ("attention", dict(n_segments=True), "n_segments is True, .* whole number"),
    ],
)
def test_numbers_that_mean_nothing_are_refused_where_they_are_set(name, changes, message):
    with pytest.raises(NpxlError, match=message):
        replace(STUDIES[name].quick, **changes)


def test_two_models_alone_are_compared_in_their_group(tiny, folder):
    pair = ("Transformer-XL", "with Shaw's encoding")
    setting = replace(tiny["recl"].quick, longest=12, compared=pair)
    lab = Lab(folder, "pair", setting)
    result = recl.run(setting, lab)
    assert [tuple(group) for group in result["groups"]] == [pair[:1], pair]
    assert len(lab.models) == setting.n_models == 2
    (statement,) = recl.statements(result)
    assert statement.says.endswith("others: with Shaw's encoding.")
    *_, lengths = recl.tables(result)
    assert [name for name, _ in lengths.rows] == list(pair)


def test_a_model_alone_in_its_group_prolongs_nothing(tiny, folder, monkeypatch):
    setting = replace(tiny["recl"].quick, compared=("Transformer-XL", "LSTM"))
    monkeypatch.setattr(recl, "effective_context", lambda losses, i, r: (0, len(losses) > 1))
    assert len(recl.run(setting, Lab(folder, "alone", setting))["contexts"]) == 3
    monkeypatch.setattr(recl, "effective_context", lambda losses, i, r: (0, len(losses) == 1))
    assert len(recl.run(setting, Lab(folder, "alone", setting))["contexts"]) == 6


def test_effective_contexts_are_those_of_the_kept_losses(found, folder):
    result = found("recl").result
    assert tuple(map(tuple, result["groups"])) == STUDIES["recl"].full.groups
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
