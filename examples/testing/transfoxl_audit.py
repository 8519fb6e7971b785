"""Run npxl's checks on Hugging Face's TransfoXL 4.35.2, and print docs/audits/transfoxl.md.

    python examples/testing/transfoxl_audit.py

Needs the extra `peers`; the page itself needs nothing, and says what was measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transfoxl_deviations import BY_CHECKS, Deviation, small_model
from transfoxl_measurements import MEASURED

from npxl.invariants import CHECKS, Case, Finding, Inapplicable, InvariantBroken, Vacuous
from npxl.invariants.transfoxl import transfoxl

INTRODUCTION = """\
# Hugging Face's TransfoXL

What npxl's [checks](../testing.md) find in `TransfoXLLMHeadModel` of `transformers` 4.35.2, the
last release in which it runs (here on torch {torch}). It was made from the paper's PyTorch code;
what that does as well is said so. All of this page is what

    python examples/testing/transfoxl_audit.py

prints, with `pip install '.[peers]'`, and
[a test](../../tests/test_transfoxl_audit.py) holds it against that, but for how large figures
are where an invariant holds.
[`test_transfoxl.py`](../../examples/testing/test_transfoxl.py) is a file of tests that runs all
checks on such a model, with the deviations below as expected failures; the model is called as its
documentation says, by [`transfoxl`](../../npxl/invariants/transfoxl.py).

A fault contradicts the paper or its own documentation; a choice is something that the paper leaves
open. Models are small, with parameters of seed 0 and of standard deviation 0.4, in float32.
"""

TABLE = """\
## By check

The largest figure of {n_cases} cases where the invariant holds; **broken** where it does not; a
dash where it is not claimed or could not be shown. Columns:

- *whole*: no window, one softmax;
- *window*: `same_length`, clusters, two layers, dropout for the checks of dropout;
- *declared*: the same, with what can be declared or set from outside: `window=mem_len`, an empty
  memory to begin with, `model.crit.keep_order = True`.

What is broken in the last column no caller can help. For the rest `check_reference` says that it is
the paper's function: the predictions are those of npxl's [literal equations](../reference.md), with
the same parameters in float64.

The adapter copies inputs and scores. So `check_memory_is_constant` says here that reading changes
no state, and nothing of storage that states share with them.
"""

CASES = (
    Case(),
    Case(batch_size=3, lengths=(5, 2, 4), position=6, row=2, seed=2),
    Case(batch_size=2, lengths=(4, 4, 4), position=9, row=1, seed=3),
    Case(batch_size=2, lengths=(2, 6), position=2, row=0, seed=4),
)


WINDOW = dict(n_layer=2, cutoffs=[2, 5], same_length=True, dropout=0.2)


def declared_model() -> Any:
    """What is left of the deviations when a caller does what is possible."""
    model = small_model(**WINDOW)
    model.crit.keep_order = True
    return transfoxl(model, window=model.config.mem_len, start_empty=True)


COLUMNS: dict[str, Callable[[], Any]] = {
    "whole": lambda: transfoxl(small_model()),
    "window": lambda: transfoxl(small_model(**WINDOW)),
    "declared": declared_model,
}


def outcome(check: Any, implementation: Any, cases: Sequence[Case] = CASES) -> str:
    """A figure, **broken**, or a dash."""
    findings: list[Finding] = []
    for case in cases:
        try:
            findings.append(check(implementation, case))
        except (Inapplicable, Vacuous):
            continue
        except InvariantBroken:
            return "**broken**"
    return f"{max(each.figure for each in findings):.1g}" if findings else "—"


def smallest(check: Any, implementation: Any) -> tuple[Case, InvariantBroken]:
    """The case of fewest tokens, then streams, then segments, that shows the deviation."""
    for case in small_cases():
        try:
            check(implementation, case)
        except InvariantBroken as broken:
            return case, broken
        except (Inapplicable, Vacuous):
            continue
    raise AssertionError(f"{check.__name__} holds in every small case.")


def small_cases(most_tokens: int = 6) -> Iterator[Case]:
    """Cases in the order of their size."""
    for n_tokens in range(1, most_tokens + 1):
        for batch_size in (each for each in (1, 2) if n_tokens % each == 0):
            for lengths in sorted(compositions(n_tokens // batch_size), key=len):
                for position in range(sum(lengths)):
                    for row in range(batch_size):
                        for seed in range(3):
                            yield Case(batch_size, lengths, position, row, seed)


def compositions(n: int) -> list[tuple[int, ...]]:
    """All ways to cut n tokens into segments."""
    if n == 0:
        return [()]
    return [(first, *rest) for first in range(1, n + 1) for rest in compositions(n - first)]


def shown(deviation: Deviation) -> tuple[str, str]:
    """The smallest input of a deviation, and what was measured there."""
    measured = "" if deviation.measure is None else deviation.measure()
    if not deviation.checks:
        return deviation.input, measured
    implementation = transfoxl(small_model(**deviation.options))
    case, broken = smallest(CHECKS[deviation.checks[0]], implementation)
    options = ", ".join(f"{name}={value}" for name, value in deviation.options.items())
    lengths = " and ".join(map(str, case.lengths))
    return (
        f"{f'`{options}`; ' if options else ''}{case.batch_size} × segments of {lengths}, "
        f"position {case.position}, row {case.row}, seed {case.seed}",
        f"expected {broken.expected}; found {broken.found}, at {broken.where}"
        f"{'; ' if measured else ''}{measured}",
    )


def section(deviation: Deviation, of: Callable[[Deviation], tuple[str, str]] = shown) -> str:
    """One deviation."""
    case, found = of(deviation)
    by = " and ".join(f"`{name}`" for name in deviation.checks) or "no check: measured"
    facts = [
        f"**{deviation.kind.capitalize()}**, found by {by}",
        f"expected: {deviation.expected}",
        f"why not: {deviation.cause}",
        f"smallest input: {case}",
        f"measured: {found}",
        f"what to do: {deviation.remedy}",
    ]
    return "\n".join([f"### {deviation.name}", "", *map(_bullet, facts), ""])


def _bullet(fact: str) -> str:
    lines = textwrap.wrap(f"- {fact}", 104, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def page() -> Iterator[str]:
    """The page, part by part."""
    import torch

    torch.set_num_threads(1)  # as small as the models are, more would only wait

    yield INTRODUCTION.format(torch=torch.__version__.split("+")[0])
    yield TABLE.format(n_cases=len(CASES))
    yield "\n".join([f"| check | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"])
    made = [make() for make in COLUMNS.values()]
    for name, check in CHECKS.items():
        yield f"| `{name}` | {' | '.join(outcome(check, each) for each in made)} |"
    yield "\n## Deviations\n"
    for deviation in (*BY_CHECKS, *MEASURED):
        yield section(deviation)


if __name__ == "__main__":
    for part in page():
        print(part, flush=True)
