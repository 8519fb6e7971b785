"""What studies say of results made by hand: seen, not seen, or not to be judged."""

import numpy as np
import pytest

from npxl.studies import STUDIES
from npxl.studies.ablation import IN_ORDER, SHUFFLED
from npxl.studies.frame import all_of
from npxl.studies.page import shown

GROUPS = STUDIES["recl"].full.groups


def verdicts(name, result):
    return [statement.seen for statement in STUDIES[name].statements(result)]


def cells(name, result):
    """All that the tables of a study show."""
    return " ".join(
        shown(cell) for table in STUDIES[name].tables(result) for row in table.rows for cell in row
    )


def test_all_of_what_is_judged():
    assert all_of([True, True]) is True
    assert all_of([True, None]) is None
    assert all_of([None, False, True]) is False


@pytest.mark.parametrize(
    ("first", "mean", "seen"),
    [
        ((3.2, 0.2), (0.16, 0.01), True),
        ((3.2, 0.2), (0.16, 0.2), None),
        ((0.1, 0.2), (0.16, 0.01), None),
        ((-3.2, 0.2), (0.16, 0.01), False),
        ((3.2, 0.2), (-0.16, 0.01), False),
    ],
)
def test_fragmentation(first, mean, seen):
    gaps = {
        "gap": {"taken away": [first, (0.5, 0.1)], "never": [(1.0, 0.1), (0.5, 0.1)]},
        "mean_gap": {"taken away": mean, "never": (0.1, 0.01)},
    }
    assert verdicts("fragmentation", gaps) == [seen, True]


def test_memory():
    """What memory changes, and what the longest changes from there, by model."""
    right = {
        "dai": ((-0.16, 0.01), (0.005, 0.002)),
        "dai, clamped": ((-0.16, 0.01), (0.005, 0.002)),
        "dai, trained without": ((-0.05, 0.01), (0.0, 0.01)),
        "vaswani": ((-0.1, 0.01), (0.9, 0.03)),
        "vaswani, clamped": ((-0.1, 0.01), (0.3, 0.03)),
        "vaswani, trained without": ((0.9, 0.02), (0.8, 0.1)),
        "al-rfou": ((-0.1, 0.01), (0.05, 0.003)),
        "al-rfou, trained without": ((0.4, 0.01), (0.1, 0.1)),
    }

    def judged(**changes):
        curves = {
            name: [{"change": change}, {"change": change, "over_trained": longest}]
            for name, (change, longest) in (right | changes).items()
        }
        for curve in curves.values():
            curve.insert(0, {"change": (0.0, 0.0)})
        return verdicts("memory", {"lengths": [0, 8, 32], "trained_with": 8, "curves": curves})

    assert judged() == [True] * 6
    for mean, seen in ((-0.16, True), (-0.005, None), (0.16, False)):
        assert judged(dai=((mean, 0.01), (0.0, 0.0)))[0] is seen
    for mean, seen in ((0.005, True), (0.009, None), (0.02, False)):  # of a cost of 0.01
        assert judged(dai=((-0.16, 0.01), (mean, 0.002)))[1] is seen
        assert judged(vaswani=((-0.1, 0.01), (mean, 0.002)))[4] is (
            None if seen is None else not seen
        )
    for i, name in ((2, "vaswani"), (3, "al-rfou")):
        for mean, seen in ((0.4, True), (0.02, None), (-0.4, False)):
            assert judged(**{f"{name}, trained without": ((mean, 0.02), (0, 0))})[i] is seen
    assert judged(**{"al-rfou": ((-0.1, 0.01), (0.0, 0.0))})[5] is False


def test_attention():
    """Two layers of two heads, by distance to ten keys, the last two of which are the furthest."""
    near = np.array([[0.6, 0.6], [0.6, 0.1]])
    by_distance = np.stack([near, *[(1 - near) / 9] * 9], axis=-1)

    def judged(in_memory, by_distance, if_even):
        result = {
            "in_memory": in_memory, "by_distance": np.asarray(by_distance).tolist(),
            "by_distance_if_even": [*[0.1] * 8, if_even, if_even],
        }  # fmt: skip
        return verdicts("attention", result)

    assert judged([[0.1, 0.1], [0.2, 0.4]], by_distance, 0.1) == [True, True, True]
    assert judged([[0.1, 0.1], [0.0, 0.01]], by_distance, 0.1) == [False, True, True]
    assert judged([[0.1, 0.1], [0.2, 0.4]], by_distance / 2, 0.1) == [True, False, False]
    assert judged([[0.1, 0.1], [0.2, 0.4]], by_distance, 0.21) == [True, True, False]


def test_reach():
    exact = {"wrong": 0, "reach": 6, "furthest": 6, "moved": [[1, 1], [0, 1]]}
    right = {
        "exact": [exact, exact],
        "trained_reach": 4, "window": 3, "n_layer": 2,
        "gradient": [1, 0.5, 0.5, 0.03, 0.01, 0], "attention": [1, 0.5, 0.5, 0.1, 0.1, 0],
        "exchange": [0.8, 0.1, 0.0], "exchanged": [0, 4, 5],
    }  # fmt: skip
    assert verdicts("reach", right) == [True, True, True]
    for changes in (dict(wrong=1), dict(furthest=5)):
        assert verdicts("reach", right | {"exact": [exact, exact | changes]}) == [False, True, True]
    for name, values in (
        ("gradient", [1, 0.5, 0.5, 0.03, 0.01, 1e-9]),
        ("attention", [1, 0.5, 0.5, 0.1, 0.1, 1e-9]),
        ("exchange", [0.8, 0.1, 1e-9]),
        ("exchange", [0.8, 0.0, 0.0]),  # the furthest that could has none
    ):
        assert verdicts("reach", right | {name: values})[1] is False
    assert verdicts("reach", right | {"gradient": [1, 0.5, 0.5, 0.001, 0.001, 0]})[2] is False


@pytest.mark.parametrize(
    ("length", "rounds", "seen"),
    [
        (3800, (1880, 2000, 1900), True),
        (3800, (1800, 2000, 1900), None),
        (3800, (1800, 1700, 1870), False),
        (1800, (800, 790, 780), True),
        (400, (180, 190, 170), None),  # a length that the paper has not
    ],
)
def test_speed(length, rounds, seen):
    row = {"length": length, "reusing": 1.0, "sliding": float(np.median(rounds))}
    row |= {"rounds": list(rounds), "difference": 1e-6}
    slow = row | {"length": 800, "rounds": [1, 2]}
    assert verdicts("speed", {"shapes": {"small": [slow], "large": [slow, row]}}) == [seen]


@pytest.mark.parametrize(
    ("one", "other", "seen"),
    [
        ((0.96, 0.0), (0.95, 0.05), True),
        ((0.96, 0.0), (0.94, 0.0), None),  # as long on some texts
        ((0.96, 0.0), (0.0, 0.0), None),  # as long on all
        ((0.5, 0.3), (0.0, 0.95), False),
        ((0.04, 0.96), (1.0, 0.0), False),
    ],
)
def test_recl(one, other, seen):
    """In which part of texts the second model's, and the third's, is shorter, and longer."""
    result = {
        "contexts": [32, 64, 96],
        "groups": [{name: [(64, True), (32, True), (96, False)] for name in g} for g in GROUPS],
        "resampled": [
            {
                name: dict(zip(("shorter", "longer"), one if n == 1 else other, strict=True))
                for n, name in enumerate(group)
            }
            for group in GROUPS
        ],
        "gains": [
            {name: [(0.05, (-0.02, 0.01)), (0.02, (-0.02, 0.03)), (0.02, (0, 0))] for name in g}
            for g in GROUPS
        ],
    }
    assert verdicts("recl", result)[1] is seen
    for statement in STUDIES["recl"].statements(result):
        assert "surely falls in 1 of 3 steps" in statement.evidence
        assert f"longer on {one[0]:.0%} of resampled texts, shorter on {one[1]:.0%}" in (
            statement.evidence
        )


def test_contexts_at_the_ends_of_the_scale_are_bounds():
    found = [(32, True), (64, True), (96, False)]
    result = {
        "contexts": [32, 64, 96], "parameters": {}, "attention_lengths": {}, "loss": {},
        "groups": [dict.fromkeys(group, found) for group in GROUPS],
        "resampled": [
            {name: {"interval": [(32, 64), (64, 64), (64, 96)]} for name in group}
            for group in GROUPS
        ],
        "gains": [dict.fromkeys(group, [(0.05, (-0.02, 0.01))] * 2) for group in GROUPS],
    }  # fmt: skip
    table, *_ = STUDIES["recl"].tables(result)
    assert table.rows[0][2:5] == ("≤ 32 (32–64)", "64 (64–64)", "≥ 96 (64–96)")
    assert "5.00 (-0.0200 ± 0.0100)" in cells("recl", result)


def of_seeds(of_variant, seeds):
    """The ablation's results with such bits a byte, and so much more for each seed."""
    texts = {"in order": IN_ORDER, "shuffled": SHUFFLED}
    return {
        text: [
            {
                **variant._asdict(),
                "seeds": [
                    {"initial": bits, "best": bits, "attention_length": 64}
                    for bits in (of_variant(text, variant) + more for more in seeds)
                ],
            }
            for variant in variants
        ]
        for text, variants in texts.items()
    }


def bits(text, variant, gain=0.5, shuffled=0.1, against_shaw=0.5):
    """Of variants of which recurrence and the paper's encoding make less."""
    if variant.attn_type != "dai":
        return 2.0 + against_shaw
    if variant.recurrence:
        return 2.0
    return 2.0 + (gain if text == "in order" else shuffled)


@pytest.mark.parametrize(
    ("changes", "spread", "seen"),
    [
        ({}, 0.1, [True, True, True]),
        ({}, 0.45, [True, True, None]),  # 0.4 less on shuffled lines
        ({}, 0.6, [None, None, None]),
        (dict(gain=-0.5), 0.1, [False, True, False]),
        (dict(against_shaw=-0.5), 0.1, [True, False, True]),
        (dict(shuffled=0.9), 0.1, [True, True, False]),
    ],
)
def test_ablation(changes, spread, seen):
    result = of_seeds(lambda *cell: bits(*cell, **changes), (0, spread))
    assert verdicts("ablation", result) == seen
    assert "±" in cells("ablation", result)


def test_one_seed_of_an_ablation_has_no_spread_to_compare_with():
    result = of_seeds(bits, (0,))
    assert verdicts("ablation", result) == [None] * 3
    assert all(each.mark == "not judged" for each in STUDIES["ablation"].statements(result))
    assert not any("spread" in table.title for table in STUDIES["ablation"].tables(result))
    assert "±" not in cells("ablation", result)
